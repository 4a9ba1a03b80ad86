#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "tests/sim/large_cluster.h"
#include "tests/sim/sim_text.h"

/*
 * Communicators that form by a tree have few connections, and make others when operations need them. Here
 * connections and rails fail: for less than the patience, for good, and before they were first needed.
 */
enum { SIZE = 34, RAILS = 3 };
#define PATIENCE_NS (4 * TIME_S)

static const struct sim_call barrier = {.kind = OP_KIND_BARRIER};
/* Many slices, so every rail has a share. */
static const struct sim_call spread = {
    .kind = OP_KIND_ALL_REDUCE, .dtype = DTYPE_F32, .reduce = REDUCE_SUM, .count = 30000};
static const struct sim_call exchange = {
    .kind = OP_KIND_ALL_TO_ALL, .dtype = DTYPE_I32, .reduce = REDUCE_SUM, .count = 7};

/* Rank r is on node r. So node 0 is the root, nodes 1 to 8 are its children, and node 9 is a child of 1. */
static struct sim_comm *form(struct cluster *cluster, const struct sim_options *options)
{
    uint32_t node_of_rank[SIZE];
    for (uint32_t i = 0; i < SIZE; i++) {
        node_of_rank[i] = i;
    }
    struct sim_comm *comm = sim_comm_new(cluster, "tree", SIZE, node_of_rank);
    sim_comm_form(comm, options, 10 * TIME_S);
    return comm;
}

static struct cluster *cluster_of(uint32_t which, uint32_t rails, bool datagrams,
                                  const struct network_conditions *conditions)
{
    struct cluster *cluster = cluster_new(&(struct cluster_options){.seed = cluster_seed(which),
                                                                    .node_count = SIZE,
                                                                    .conditions = *conditions,
                                                                    .slice_bytes = 4096,
                                                                    .rail_count = rails,
                                                                    .datagrams = datagrams});
    cluster_connect(cluster);
    cluster_run(cluster, 12 * TIME_S); /* connections that nobody needs are over */
    return cluster;
}

static void cut(struct cluster *cluster, uint32_t a, uint32_t b, bool cut)
{
    cluster_cut(cluster, a, b, cut);
    cluster_cut(cluster, b, a, cut);
}

static bool are_linked(const struct cluster *cluster, uint32_t a, uint32_t b)
{
    uint32_t there;
    assert_true(mesh_find_node(cluster->nodes[a].mesh, cluster->nodes[b].name, &there));
    return mesh_node_is_up(cluster->nodes[a].mesh, there);
}

/* All ranks but at most one, which the others have left out, were told the same: it names one of the nodes.
 */
static void assert_one_verdict(const struct sim_comm *comm, const char *a, const char *b)
{
    const struct error *verdict = &comm->ranks[SIZE - 1].abort_cause;
    uint32_t others = 0;
    assert_int_equal(verdict->status, STATUS_NODE_LOST);
    assert_true(strstr(verdict->text, a) != NULL || strstr(verdict->text, b) != NULL);
    for (uint32_t i = 0; i < comm->size; i++) {
        others += strcmp(comm->ranks[i].abort_cause.text, verdict->text) != 0;
    }
    assert_true(others <= 1);
}

/* --- Links --- */

/* The link to a parent, and one that an operation has made, carry nothing for two seconds. No operation
 * fails.
 */
static void test_a_link_is_silent_for_a_while(void **state)
{
    (void)state;
    static const uint32_t ends[][2] = {{0, 3}, {1, 9}, {20, 21}};
    struct cluster *cluster = cluster_of(420, 1, true, &rough);
    struct sim_comm *comm = form(cluster, NULL);
    sim_comm_run(comm, &spread);
    for (uint32_t i = 0; i < sizeof ends / sizeof *ends; i++) {
        struct sim_op *op = sim_comm_post_all(comm, &spread);
        cluster_run(cluster, 2 * TIME_MS);
        assert_false(sim_op_done(op));
        cut(cluster, ends[i][0], ends[i][1], true);
        cluster_run(cluster, 2 * TIME_S);
        cut(cluster, ends[i][0], ends[i][1], false);
        sim_op_finish(op, 5 * TIME_S);
        sim_op_free(op);
        sim_comm_run(comm, &barrier);
    }
    sim_comm_free(comm);
    cluster_free(cluster);
}

/* The link between a parent and a child is lost for good. All are told the same, though no operation runs. */
static void test_a_link_of_the_tree_is_lost(void **state)
{
    (void)state;
    static const uint32_t ends[][2] = {{0, 3}, {1, 9}};
    for (uint32_t i = 0; i < sizeof ends / sizeof *ends; i++) {
        uint32_t a = ends[i][0], b = ends[i][1];
        struct cluster *cluster = cluster_of(421 + i, 1, false, &calm);
        struct sim_comm *comm = form(cluster, NULL);
        assert_true(are_linked(cluster, a, b));
        cut(cluster, a, b, true);
        assert_true(cluster_run_until(cluster, sim_comm_all_told, comm, PATIENCE_NS + 2 * TIME_S));
        assert_one_verdict(comm, cluster->nodes[a].name, cluster->nodes[b].name);
        sim_comm_free(comm);
        cluster_free(cluster);
    }
}

/* A path that no connection uses is cut: nobody notices. The first operation that needs it ends for all. */
static void test_a_link_that_is_needed_later(void **state)
{
    (void)state;
    struct cluster *cluster = cluster_of(425, 1, false, &calm);
    struct sim_comm *comm = form(cluster, &(struct sim_options){.algorithms = "all_to_all=pairwise"});
    uint32_t a = 11, b = 11 + 5; /* a barrier's distances are powers of two */
    while (are_linked(cluster, a, b)) {
        a++;
        b++;
    }
    cut(cluster, a, b, true);
    cluster_run(cluster, 3 * PATIENCE_NS);
    sim_comm_run(comm, &barrier);
    for (uint32_t i = 0; i < SIZE; i++) {
        assert_false(comm->ranks[i].aborted);
    }
    struct sim_op *op = sim_comm_post_all(comm, &exchange);
    assert_true(cluster_run_until(cluster, sim_comm_all_told, comm, 3 * PATIENCE_NS + 3 * TIME_S));
    assert_one_verdict(comm, cluster->nodes[a].name, cluster->nodes[b].name);
    assert_true(sim_op_done(op));
    sim_op_free(op);
    sim_comm_free(comm);
    cluster_free(cluster);
}

/* --- Rails --- */

static void cut_rail(struct cluster *cluster, uint32_t rail, uint32_t a, uint32_t b, bool cut)
{
    cluster_cut_rail(cluster, rail, a, b, cut);
    cluster_cut_rail(cluster, rail, b, a, cut);
}

/* A rail is silent for two seconds in an operation, which waits and ends well. */
static void test_a_rail_is_silent_for_a_while(void **state)
{
    (void)state;
    struct cluster *cluster = cluster_of(430, RAILS, false, &calm);
    struct sim_comm *comm = form(cluster, &(struct sim_options){.algorithms = "all_reduce=ring"});
    sim_comm_run(comm, &spread);
    for (uint32_t rail = 1; rail < RAILS; rail++) {
        struct sim_op *op = sim_comm_post_all(comm, &spread);
        cluster_run(cluster, 500 * TIME_US);
        assert_false(sim_op_done(op));
        cut_rail(cluster, rail, 17, 18, true);
        cluster_run(cluster, 2 * TIME_S);
        assert_false(sim_op_done(op));
        cut_rail(cluster, rail, 17, 18, false);
        sim_op_finish(op, 5 * TIME_S);
        sim_op_free(op);
    }
    sim_comm_free(comm);
    cluster_free(cluster);
}

/* A rail has no connection when operations first need the rails: they use the others. */
static void test_a_rail_that_cannot_be_connected(void **state)
{
    (void)state;
    struct cluster *cluster = cluster_of(431, RAILS, false, &calm);
    cut_rail(cluster, 2, 17, 18, true);
    struct sim_comm *comm = form(cluster, &(struct sim_options){.algorithms = "all_reduce=ring"});
    sim_comm_run(comm, &barrier);
    struct sim_op *op = sim_comm_post_all(comm, &spread);
    sim_op_finish(op, 14 * TIME_S); /* they wait 10 s for it, as many nodes dial at once */
    sim_op_free(op);
    sim_comm_run(comm, &spread);
    struct net_peer_statistics seen;
    uint32_t peer;
    assert_true(mesh_find_node(cluster->nodes[17].mesh, cluster->nodes[18].name, &peer));
    net_peer_statistics(cluster->nodes[17].rail_nets[1], peer, &seen);
    assert_true(seen.sent_bytes > spread.count);
    net_peer_statistics(cluster->nodes[17].rail_nets[2], peer, &seen);
    assert_true(seen.sent_bytes < spread.count / 10);
    sim_comm_free(comm);
    cluster_free(cluster);
}

/* A rail's connection breaks in an operation. Either that goes on, or all are told the same. */
static void test_a_rail_is_lost(void **state)
{
    (void)state;
    for (uint32_t turn = 0; turn < 2; turn++) {
        struct cluster *cluster = cluster_of(440 + turn, RAILS, false, &calm);
        struct sim_comm *comm = form(cluster, &(struct sim_options){.algorithms = "all_reduce=ring"});
        sim_comm_run(comm, &spread);
        struct sim_op *ops[] = {sim_comm_post_all(comm, &spread), sim_comm_post_all(comm, &spread)};
        cluster_run(cluster, turn * 400 * TIME_US);
        struct error cause;
        uint32_t peer;
        error_set(&cause, STATUS_NODE_LOST, "cut by the test");
        assert_true(mesh_find_node(cluster->nodes[17].mesh, cluster->nodes[18].name, &peer));
        net_disconnect(cluster->nodes[17].rail_nets[1 + turn % 2], peer, &cause);
        cluster_touch(cluster);
        assert_true(cluster_run_until(cluster, sim_comm_idle, comm, 20 * TIME_S));
        const struct error *first = &ops[1]->parts[0].result;
        for (uint32_t i = 0; i < SIZE; i++) {
            assert_true(ops[1]->parts[i].done);
            assert_int_equal(ops[1]->parts[i].result.status, first->status);
            assert_string_equal(ops[1]->parts[i].result.text, first->text);
        }
        if (first->status != STATUS_OK) {
            assert_text(first, STATUS_NODE_LOST, "rail ", "node n01");
            assert_true(cluster_run_until(cluster, sim_comm_all_told, comm, 5 * TIME_S));
        }
        sim_op_free(ops[0]);
        sim_op_free(ops[1]);
        sim_comm_free(comm);
        comm = form(cluster, NULL);
        sim_comm_run(comm, &spread);
        sim_comm_free(comm);
        cluster_free(cluster);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_link_is_silent_for_a_while),
        cmocka_unit_test(test_a_link_of_the_tree_is_lost),
        cmocka_unit_test(test_a_link_that_is_needed_later),
        cmocka_unit_test(test_a_rail_is_silent_for_a_while),
        cmocka_unit_test(test_a_rail_that_cannot_be_connected),
        cmocka_unit_test(test_a_rail_is_lost),
    };
    return cluster_report(cmocka_run_group_tests(tests, NULL, NULL));
}
