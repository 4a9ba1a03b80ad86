#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "tests/sim/cluster.h"
#include "tests/sim/sim_comm.h"

/* Clusters whose nodes have several rails: what the rails carry, and what happens when one of them is in
 * trouble. */

#define RAILS 3

static const struct network_conditions calm = {
    .delay_ns = 50 * TIME_US, .jitter_ns = 20 * TIME_US, .packet_bytes = 8192};

/* 61 slices of 4 KiB, so every rail has a share. */
static const struct sim_call spread = {
    .kind = OP_KIND_ALL_REDUCE, .dtype = DTYPE_F32, .reduce = REDUCE_SUM, .count = 62000};

static struct cluster *cluster_of(uint32_t which, uint32_t node_count,
                                  const struct network_conditions *conditions)
{
    struct cluster *cluster = cluster_new(&(struct cluster_options){.seed = cluster_seed(which),
                                                                    .node_count = node_count,
                                                                    .conditions = *conditions,
                                                                    .slice_bytes = 4096,
                                                                    .rail_count = RAILS});
    cluster_connect(cluster);
    return cluster;
}

static struct sim_comm *comm_of_all(struct cluster *cluster, const char *name, uint64_t op_timeout_ms)
{
    uint32_t node_of_rank[CLUSTER_NODES_MAX];
    for (uint32_t i = 0; i < cluster->node_count; i++) {
        node_of_rank[i] = i;
    }
    struct sim_comm *comm = sim_comm_new(cluster, name, cluster->node_count, node_of_rank);
    sim_comm_form(comm,
                  &(struct sim_options){.algorithms = "all_reduce=ring", .op_timeout_ms = op_timeout_ms},
                  30 * TIME_S);
    return comm;
}

/* --- What they carry --- */

/* Returns a rail's traffic, after the rails have published what they carried. */
static struct mesh_rails_traffic traffic_to(struct cluster *cluster, uint32_t node, uint32_t peer)
{
    struct mesh_rails_traffic traffic;
    for (uint32_t i = 0; i < 2; i++) {
        cluster_run(cluster, MESH_PUBLISH_NS);
    }
    cluster_run(cluster, 0);
    mesh_rails_traffic(cluster->nodes[node].mesh, peer, &traffic);
    return traffic;
}

static void test_traffic_of_all_rails(void **state)
{
    (void)state;
    struct cluster *cluster = cluster_of(200, 3, &calm);
    const struct cluster_node *node = &cluster->nodes[0];
    struct mesh_rails_traffic before = traffic_to(cluster, 0, 0);
    assert_int_equal(before.needed, 0);
    assert_int_equal(before.sent_bytes, 0);

    static const uint32_t node_of_rank[] = {0, 1};
    struct sim_comm *comm = sim_comm_new(cluster, "pair", 2, node_of_rank);
    sim_comm_form(comm, NULL, 10 * TIME_S);
    sim_comm_run(comm, &spread);
    struct mesh_rails_traffic after = traffic_to(cluster, 0, 0);
    uint64_t sent_bytes = 0;
    for (uint32_t rail = 1; rail < RAILS; rail++) {
        struct net_peer_statistics seen;
        net_peer_statistics(node->rail_nets[rail], 0, &seen);
        assert_true(seen.sent_bytes > spread.count * 4 / RAILS / 2);
        sent_bytes += seen.sent_bytes;
    }
    assert_int_equal(after.sent_bytes, sent_bytes);
    assert_true(after.received_bytes > 0);
    assert_int_equal(after.needed, RAILS - 1);
    assert_int_equal(after.connected, RAILS - 1);
    assert_string_equal(after.missing, "");
    /* The third node is no member, so no rail to it is needed. */
    struct mesh_rails_traffic third = traffic_to(cluster, 0, 1);
    assert_int_equal(third.needed, 0);
    assert_int_equal(third.sent_bytes, 0);
    sim_comm_free(comm);
    cluster_free(cluster);
}

/* --- A rail in trouble --- */

/* With these conditions, `spread` takes at least 5 ms. */
static const struct network_conditions narrow = {.delay_ns = 50 * TIME_US,
                                                 .jitter_ns = 100 * TIME_US,
                                                 .packet_bytes = 8192,
                                                 .bandwidth_bytes_s = 10000000};

static void cut(struct cluster *cluster, uint32_t rail, uint32_t a, uint32_t b, bool cut)
{
    cluster_cut_rail(cluster, rail, a, b, cut);
    cluster_cut_rail(cluster, rail, b, a, cut);
}

/* Checks that the rank's operation ended with that status, and with a text that contains all `texts`. */
static void assert_ended(const struct sim_op *op, uint32_t rank, enum status status, const char *const *texts)
{
    const struct sim_part *part = &op->parts[rank];
    if (!part->done || part->result.status != status) {
        fail_msg("rank %u: %s \"%s\"", rank, part->done ? status_name(part->result.status) : "not done",
                 part->result.text);
    }
    for (const char *const *text = texts; *text != NULL; text++) {
        if (strstr(part->result.text, *text) == NULL) {
            fail_msg("rank %u: \"%s\" has no \"%s\"", rank, part->result.text, *text);
        }
    }
}

static void assert_all_ended(const struct sim_op *op, enum status status, const char *const *texts)
{
    for (uint32_t i = 0; i < op->comm->size; i++) {
        assert_ended(op, i, status, texts);
    }
}

/* Checks that operations work on all rails, and that the trouble has left nothing behind. */
static void assert_works(struct cluster *cluster, const char *name)
{
    struct sim_comm *comm = comm_of_all(cluster, name, 0);
    for (uint32_t i = 0; i < 3; i++) {
        sim_comm_run(comm, &spread);
    }
    for (uint32_t i = 0; i + 1 < cluster->node_count; i++) {
        assert_int_equal(traffic_to(cluster, 0, i).connected, RAILS - 1);
    }
    sim_comm_free(comm);
}

/*
 * A node that only received on a connection may not have noticed its end. It notices when the other node
 * dials again. What it had begun on the old connection is then lost, with that cause. After that both nodes
 * know.
 */
static void assert_meets(struct cluster *cluster, const char *name, const char *rail)
{
    struct sim_comm *comm = comm_of_all(cluster, name, 0);
    struct sim_op *op = sim_comm_post_all(comm, &spread);
    assert_true(cluster_run_until(cluster, sim_op_done, op, 10 * TIME_S));
    sim_op_check(op);
    if (op->parts[0].result.status != STATUS_OK) {
        assert_all_ended(op, STATUS_NODE_LOST, (const char *const[]){"op 1 all_reduce", rail, NULL});
    }
    sim_comm_free(comm);
}

/* A rail is cut in the middle of an operation, until its connection is given up. All nodes are told which
 * rail it was. */
static void test_a_rail_is_lost_under_way(void **state)
{
    (void)state;
    for (uint32_t nodes = 2; nodes <= 3; nodes++) {
        struct cluster *cluster = cluster_of(210 + nodes, nodes, &narrow);
        struct sim_comm *comm = comm_of_all(cluster, "lost", 0);
        static const uint32_t beside[] = {0, 0};
        struct sim_comm *other = sim_comm_new(cluster, "beside", 2, beside);
        sim_comm_form(other, NULL, 10 * TIME_S);
        sim_comm_run(comm, &spread);
        struct sim_op *op = sim_comm_post_all(comm, &spread);
        cluster_run(cluster, 2 * TIME_MS);
        assert_false(sim_op_done(op));
        cut(cluster, 2, 0, 1, true);
        uint64_t bound_ns = cluster->now_ns + NETWORK_IDLE_TIMEOUT_NS + 2 * TIME_S;
        assert_true(cluster_run_until(cluster, sim_comm_aborted, comm, 120 * TIME_S));
        assert_true(cluster->now_ns <= bound_ns);
        assert_all_ended(op, STATUS_NODE_LOST,
                         (const char *const[]){"op 2 all_reduce on \"lost\"", "rail 2 to node n00", NULL});
        assert_true(cluster_connected(cluster)); /* the connections between the nodes themselves are fine */
        sim_comm_run(other, &spread);
        sim_comm_free(other);
        sim_comm_free(comm);
        cut(cluster, 2, 0, 1, false);
        assert_meets(cluster, "healed", "rail 2");
        assert_works(cluster, "healed");
        cluster_free(cluster);
    }
}

/*
 * A connection breaks and comes back at once, at many moments of an operation. A rank that has all its data
 * may end the operation well. Then either the next operation ends well, or all ranks are told.
 */
static void test_a_connection_breaks_under_way(void **state)
{
    (void)state;
    static const char *const texts[] = {"all_reduce", "\"broken\"", "rail ", "node n00", NULL};
    unsigned broken = 0;
    for (uint32_t turn = 0; turn < 60; turn++) {
        struct cluster *cluster = cluster_of(300 + turn, 2 + turn % 2, &narrow);
        struct sim_comm *comm = comm_of_all(cluster, "broken", 0);
        sim_comm_run(comm, &spread); /* now all rails are connected */
        struct sim_op *ops[] = {sim_comm_post_all(comm, &spread), sim_comm_post_all(comm, &spread)};
        cluster_run(cluster, turn * 200 * TIME_US);
        struct error cause;
        error_set(&cause, STATUS_NODE_LOST, "cut by the test");
        net_disconnect(cluster->nodes[turn % 2].rail_nets[1 + turn / 2 % 2], 0, &cause);
        cluster_touch(cluster);
        assert_true(cluster_run_until(cluster, sim_comm_idle, comm, 40 * TIME_S));
        for (uint32_t i = 0; i < 2; i++) {
            sim_op_check(ops[i]);
        }
        bool well = true;
        for (uint32_t rank = 0; rank < comm->size; rank++) {
            well = well && ops[1]->parts[rank].result.status == STATUS_OK;
        }
        if (!well) {
            broken++;
            assert_all_ended(ops[1], STATUS_NODE_LOST, texts);
        }
        sim_comm_free(comm);
        assert_works(cluster, "broken");
        cluster_free(cluster);
    }
    assert_true(broken > 20);
}

/* A rail is silent for less time than the patience. The operation waits, and goes on. */
static void test_a_rail_is_silent_for_a_while(void **state)
{
    (void)state;
    struct cluster *cluster = cluster_of(220, 3, &narrow);
    struct sim_comm *comm = comm_of_all(cluster, "silent", 0);
    for (uint32_t rail = 1; rail < RAILS; rail++) {
        struct sim_op *op = sim_comm_post_all(comm, &spread);
        cluster_run(cluster, 2 * TIME_MS);
        cut(cluster, rail, 0, 2, true);
        cluster_run(cluster, 10 * TIME_S);
        assert_false(sim_op_done(op));
        cut(cluster, rail, 0, 2, false);
        sim_op_finish(op, 20 * TIME_S);
        sim_op_free(op);
    }
    sim_comm_run(comm, &spread);
    sim_comm_free(comm);
    cluster_free(cluster);
}

/* The deadline comes before the loss is certain. The text says for which node and which rail the operation
 * waited. */
static void test_the_deadline_of_an_operation_on_a_silent_rail(void **state)
{
    (void)state;
    struct cluster *cluster = cluster_of(230, 2, &narrow);
    struct sim_comm *comm = comm_of_all(cluster, "late", 3000);
    struct sim_op *op = sim_comm_post_all(comm, &spread);
    cluster_run(cluster, 2 * TIME_MS);
    cut(cluster, 1, 0, 1, true);
    assert_true(cluster_run_until(cluster, sim_op_done, op, 10 * TIME_S));
    assert_all_ended(op, STATUS_TIMED_OUT,
                     (const char *const[]){"op 1 all_reduce", "\"late\"", "node n000: rail 1: round ",
                                           "waiting for data from node n001", NULL});
    cut(cluster, 1, 0, 1, false);
    sim_comm_run(comm, &spread); /* the late operation ended alone */
    sim_comm_free(comm);
    assert_works(cluster, "late");
    cluster_free(cluster);
}

/* In a broadcast the root receives no data. It waits for acknowledgements of sends that are too large to
 * be copied. */
static void test_the_deadline_of_a_sender_on_a_silent_rail(void **state)
{
    (void)state;
    static const struct sim_call broadcast = {.kind = OP_KIND_BROADCAST, .dtype = DTYPE_F32, .count = 200000};
    static const uint32_t node_of_rank[] = {0, 1};
    struct cluster *cluster = cluster_of(235, 2, &narrow);
    struct sim_comm *comm = sim_comm_new(cluster, "root", 2, node_of_rank);
    sim_comm_form(
        comm,
        &(struct sim_options){.algorithms = "broadcast=tree", .op_timeout_ms = 3000, .slice_bytes = 131072},
        10 * TIME_S);
    struct sim_op *op = sim_comm_post_all(comm, &broadcast);
    cluster_run(cluster, 2 * TIME_MS);
    cut(cluster, 2, 0, 1, true);
    assert_true(cluster_run_until(cluster, sim_comm_aborted, comm, 10 * TIME_S));
    /* The other node may have everything that was sent before. But its acknowledgements do not arrive. */
    assert_ended(
        op, 0, STATUS_TIMED_OUT,
        (const char *const[]){"op 1 broadcast on \"root\"",
                              "node n000: rail 2: what was sent to node n001 is not acknowledged yet", NULL});
    sim_comm_free(comm);
    cut(cluster, 2, 0, 1, false);
    assert_works(cluster, "root");
    cluster_free(cluster);
}

/* A rail is cut before it has a connection. Operations wait for it. If their time is over first, their
 * text says so. */
static void test_a_rail_that_cannot_be_connected(void **state)
{
    (void)state;
    struct cluster *cluster = cluster_of(240, 3, &calm);
    cut(cluster, 2, 0, 1, true);
    struct sim_comm *comm = comm_of_all(cluster, "without", 3000);
    /* The operation waits until the nodes have agreed on rails. Then its slices go over the other rails,
     * also between nodes that have a connection on this rail. */
    struct sim_op *op = sim_comm_post_all(comm, &spread);
    cluster_run(cluster, 200 * TIME_MS);
    assert_false(sim_op_done(op));
    sim_op_finish(op, 3 * TIME_S);
    sim_op_free(op);
    for (uint32_t i = 0; i < 3; i++) {
        sim_comm_run(comm, &spread);
    }
    struct net_peer_statistics seen;
    net_peer_statistics(cluster->nodes[1].rail_nets[1], 1, &seen);
    assert_true(seen.sent_bytes > spread.count);
    net_peer_statistics(cluster->nodes[1].rail_nets[2], 1, &seen);
    assert_true(seen.sent_bytes < spread.count / 10);
    struct mesh_rails_traffic traffic = traffic_to(cluster, 0, 0);
    assert_int_equal(traffic.needed, RAILS - 1);
    assert_int_equal(traffic.connected, RAILS - 2);
    assert_non_null(strstr(traffic.missing, "rail 2 is not connected"));
    cut(cluster, 2, 0, 1, false);
    cluster_run(cluster, 7 * TIME_S);
    sim_comm_run(comm, &spread); /* the communicator keeps the rails that it agreed on */
    sim_comm_free(comm);
    assert_works(cluster, "with");
    net_peer_statistics(cluster->nodes[1].rail_nets[2], 1, &seen);
    assert_true(seen.sent_bytes > spread.count / 10);
    cluster_free(cluster);
}

/* The deadline comes before the nodes give the rail up. The text names the rail. */
static void test_a_deadline_before_the_rails_are_agreed(void **state)
{
    (void)state;
    struct cluster *cluster = cluster_of(245, 2, &calm);
    cut(cluster, 2, 0, 1, true);
    struct sim_comm *comm = comm_of_all(cluster, "early", 1000);
    struct sim_op *op = sim_comm_post_all(comm, &spread);
    assert_true(cluster_run_until(cluster, sim_op_done, op, 10 * TIME_S));
    assert_all_ended(
        op, STATUS_TIMED_OUT,
        (const char *const[]){"op 1 all_reduce",
                              "rail 2 has no connection to node n001 (UDP port of its address + 2)", NULL});
    cluster_run(cluster, 2 * TIME_S);
    sim_comm_run(comm, &spread);
    sim_comm_free(comm);
    cluster_free(cluster);
}

/* A connection breaks between operations. Nothing of theirs is lost, so the communicator goes on over the
 * next connection. */
static void test_a_rail_is_lost_between_operations(void **state)
{
    (void)state;
    struct cluster *cluster = cluster_of(250, 3, &calm);
    struct sim_comm *comm = comm_of_all(cluster, "idle", 0);
    for (uint32_t turn = 0; turn < 4; turn++) {
        sim_comm_run(comm, &spread);
        cluster_run(cluster, 100 * TIME_MS);
        struct error cause;
        error_set(&cause, STATUS_NODE_LOST, "cut by the test");
        uint32_t rail = 1 + turn % (RAILS - 1);
        net_disconnect(cluster->nodes[turn % 3].rail_nets[rail], turn % 2, &cause);
        cluster_touch(cluster);
        cluster_run(cluster, TIME_S);
    }
    sim_comm_run(comm, &spread);
    sim_comm_free(comm);
    assert_works(cluster, "idle");
    cluster_free(cluster);
}

static uint32_t rails_up(const struct cluster *cluster, uint32_t node, uint32_t peer)
{
    uint32_t count = 0;
    for (uint32_t rail = 1; rail < RAILS; rail++) {
        struct net_peer_statistics seen;
        net_peer_statistics(cluster->nodes[node].rail_nets[rail], peer, &seen);
        count += seen.up;
    }
    return count;
}

/* A node that broke the protocol on one rail is refused on all rails. Whichever node dials, no rail gets a
 * connection. */
static void test_a_node_that_is_held_off_is_so_on_all_rails(void **state)
{
    (void)state;
    struct cluster *cluster = cluster_of(260, 2, &calm);
    struct sim_comm *comm = comm_of_all(cluster, "before", 0);
    struct error cause;
    sim_comm_run(comm, &spread);
    assert_int_equal(rails_up(cluster, 0, 0), RAILS - 1);
    error_set(&cause, STATUS_PROTOCOL, "it sent what no node should");
    net_disconnect(cluster->nodes[0].rail_nets[2], 0, &cause);
    cluster_touch(cluster);
    cluster_run(cluster, 100 * TIME_MS);
    assert_int_equal(rails_up(cluster, 0, 0), 0);
    for (uint32_t rail = 1; rail < RAILS; rail++) {
        assert_int_equal(net_connect(cluster->nodes[1].rail_nets[rail], 0, &cause), STATUS_OK);
    }
    cluster_touch(cluster);
    cluster_run(cluster, 500 * TIME_MS);
    assert_int_equal(rails_up(cluster, 0, 0), 0);
    sim_comm_free(comm);
    cluster_run(cluster, 5 * TIME_S);
    assert_works(cluster, "after");
    assert_int_equal(rails_up(cluster, 0, 0), RAILS - 1);
    cluster_free(cluster);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_traffic_of_all_rails),
        cmocka_unit_test(test_a_rail_is_lost_under_way),
        cmocka_unit_test(test_a_connection_breaks_under_way),
        cmocka_unit_test(test_a_rail_is_silent_for_a_while),
        cmocka_unit_test(test_the_deadline_of_an_operation_on_a_silent_rail),
        cmocka_unit_test(test_the_deadline_of_a_sender_on_a_silent_rail),
        cmocka_unit_test(test_a_rail_that_cannot_be_connected),
        cmocka_unit_test(test_a_deadline_before_the_rails_are_agreed),
        cmocka_unit_test(test_a_rail_is_lost_between_operations),
        cmocka_unit_test(test_a_node_that_is_held_off_is_so_on_all_rails),
    };
    return cluster_report(cmocka_run_group_tests(tests, NULL, NULL));
}
