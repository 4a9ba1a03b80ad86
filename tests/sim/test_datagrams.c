#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "tests/sim/cluster.h"
#include "tests/sim/sim_comm.h"

/* Clusters on real QUIC, with datagrams that are lost, doubled and overtaken. */

#define NODES 4
#define RANKS 7

static const struct network_conditions rough = {.loss = 0.01,
                                                .duplication = 0.01,
                                                .delay_ns = 100 * TIME_US,
                                                .jitter_ns = 200 * TIME_US,
                                                .packet_bytes = 1452};

static const struct sim_call small = {
    .kind = OP_KIND_ALL_REDUCE, .dtype = DTYPE_F32, .reduce = REDUCE_SUM, .count = 1000};
static const struct sim_call large = {
    .kind = OP_KIND_ALL_REDUCE, .dtype = DTYPE_F32, .reduce = REDUCE_SUM, .count = 500000};

static struct cluster *start(uint32_t which, const struct network_conditions *conditions, uint32_t rails)
{
    struct cluster *cluster = cluster_new(&(struct cluster_options){.seed = cluster_seed(which),
                                                                    .node_count = NODES,
                                                                    .conditions = *conditions,
                                                                    .slice_bytes = 65536,
                                                                    .rail_count = rails,
                                                                    .datagrams = true});
    cluster_connect(cluster);
    return cluster;
}

static struct sim_comm *form(struct cluster *cluster, const char *name)
{
    static const uint32_t node_of_rank[RANKS] = {2, 0, 1, 3, 1, 0, 2};
    struct sim_comm *comm = sim_comm_new(cluster, name, RANKS, node_of_rank);
    sim_comm_form(comm, NULL, 30 * TIME_S);
    return comm;
}

/* Runs every kind of operation, once small and once with several slices. */
static uint64_t run_kinds(uint32_t which, uint32_t rails)
{
    struct cluster *cluster = start(which, &rough, rails);
    struct sim_comm *comm = form(cluster, "kinds");
    for (int kind = 0; kind < OP_KIND_COUNT; kind++) {
        for (uint32_t size = 0; size < 2 && !op_kind_is_message((enum op_kind)kind); size++) {
            sim_comm_run(comm, &(struct sim_call){.kind = (enum op_kind)kind,
                                                  .dtype = DTYPE_I32,
                                                  .reduce = REDUCE_SUM,
                                                  .count = size == 0 ? 33 : 60001,
                                                  .root = (uint32_t)kind % RANKS,
                                                  .has_layouts = size == 0,
                                                  .layout_seed = (uint64_t)kind});
        }
    }
    struct network_counters counters;
    network_counters(cluster->network, &counters);
    assert_true(counters.packets_lost > counters.packets / 200);
    uint64_t trace = cluster_trace(cluster);
    sim_comm_free(comm);
    cluster_free(cluster);
    return trace;
}

static void test_every_kind(void **state)
{
    (void)state;
    uint64_t first = run_kinds(1, 1);
    assert_true(run_kinds(1, 1) == first);
}

static void test_every_kind_on_rails(void **state)
{
    (void)state;
    (void)run_kinds(2, 3);
}

/* The cluster is cut in two for a moment. What is under way goes on afterwards. */
static void test_a_short_blackhole_fails_nothing(void **state)
{
    (void)state;
    struct network_conditions narrow = rough;
    narrow.bandwidth_bytes_s = 100000000;
    struct cluster *cluster = start(3, &narrow, 1);
    struct sim_comm *comm = form(cluster, "blackhole");
    for (uint32_t turn = 0; turn < 3; turn++) {
        struct sim_op *op = sim_comm_post_all(comm, &large);
        cluster_run(cluster, 5 * TIME_MS);
        assert_false(sim_op_done(op));
        cluster_partition(cluster, 1 + turn, true);
        cluster_run(cluster, 300 * TIME_MS);
        cluster_partition(cluster, 1 + turn, false);
        sim_op_finish(op, 20 * TIME_S);
        sim_op_free(op);
    }
    sim_comm_free(comm);
    cluster_free(cluster);
}

/* The survivors are told, and form a new communicator. The lost node comes back. */
static void test_a_node_is_lost(void **state)
{
    (void)state;
    struct cluster *cluster = start(4, &rough, 2);
    for (uint32_t turn = 0; turn < 2; turn++) {
        struct sim_comm *comm = form(cluster, "before");
        struct sim_op *op = sim_comm_post_all(comm, &large);
        cluster_run(cluster, 2 * TIME_MS);
        (turn == 0 ? cluster_kill : cluster_crash)(cluster, 3);
        sim_comm_forget_node(comm, 3);
        cluster_bury(cluster, 3);
        assert_true(cluster_run_until(cluster, sim_comm_aborted, comm, 10 * TIME_S));
        for (uint32_t i = 0; i < comm->size; i++) {
            if (comm->ranks[i].member != NULL) {
                assert_int_equal(comm->ranks[i].abort_cause.status, STATUS_NODE_LOST);
                assert_non_null(strstr(comm->ranks[i].abort_cause.text, "n003"));
            }
        }
        sim_op_check(op);
        sim_op_free(op);
        sim_comm_free(comm);
        static const uint32_t survivors[] = {0, 1, 2};
        comm = sim_comm_new(cluster, "survivors", 3, survivors);
        sim_comm_form(comm, NULL, 30 * TIME_S);
        sim_comm_run(comm, &small);
        sim_comm_free(comm);
        cluster_restart(cluster, 3);
        cluster_connect(cluster);
    }
    cluster_free(cluster);
}

/* Each node finds the largest datagrams that the path carries. */
static void test_the_path_is_as_wide_as_it_is(void **state)
{
    (void)state;
    static const uint32_t sizes[] = {1252, 1452, 8952};
    for (uint32_t i = 0; i < 3; i++) {
        struct network_conditions conditions = {.delay_ns = 50 * TIME_US, .packet_bytes = sizes[i]};
        struct cluster *cluster = start(10 + i, &conditions, 1);
        struct sim_comm *comm = form(cluster, "path");
        for (uint32_t turn = 0; turn < 5; turn++) {
            sim_comm_run(comm, &large);
        }
        cluster_run(cluster, 5 * TIME_S);
        struct net_peer_statistics statistics;
        net_peer_statistics(cluster->nodes[0].net, 0, &statistics);
        assert_true(statistics.datagram_bytes <= sizes[i] && statistics.datagram_bytes * 10 > sizes[i] * 9);
        sim_comm_free(comm);
        cluster_free(cluster);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_kind),
        cmocka_unit_test(test_every_kind_on_rails),
        cmocka_unit_test(test_a_short_blackhole_fails_nothing),
        cmocka_unit_test(test_a_node_is_lost),
        cmocka_unit_test(test_the_path_is_as_wide_as_it_is),
    };
    return cluster_report(cmocka_run_group_tests(tests, NULL, NULL));
}
