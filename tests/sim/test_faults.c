#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "tests/sim/cluster.h"
#include "tests/sim/conditions.h"
#include "tests/sim/sim_comm.h"

/* Whole clusters in trouble: nothing hangs, all ranks are told the same, the survivors go on. */

/* With these conditions, the larger calls below take at least 20 ms, so there is time to break something. */
static const struct network_conditions narrow = {.loss = 0.02,
                                                 .delay_ns = 50 * TIME_US,
                                                 .jitter_ns = 100 * TIME_US,
                                                 .packet_bytes = 8192,
                                                 .bandwidth_bytes_s = 100000000};

static const struct sim_call large = {
    .kind = OP_KIND_ALL_REDUCE, .dtype = DTYPE_F32, .reduce = REDUCE_SUM, .count = 500000};
static const struct sim_call small = {
    .kind = OP_KIND_ALL_REDUCE, .dtype = DTYPE_I32, .reduce = REDUCE_SUM, .count = 3333, .in_place = true};
static const struct sim_call barrier = {.kind = OP_KIND_BARRIER};

#define SILENT_HOST_BOUND_NS (4500 * TIME_MS)
#define CRASH_BOUND_NS TIME_S
#define PARTITION_BOUND_NS (5 * TIME_S)

/* Forms a communicator on all live nodes. Ranks are in the reverse order of the nodes, and every third
 * node has two. */
static struct sim_comm *sim_comm_of_all(struct cluster *cluster, const char *name)
{
    uint32_t node_of_rank[2 * CLUSTER_NODES_MAX];
    uint32_t size = 0;
    for (uint32_t turn = 0; turn < 2; turn++) {
        for (uint32_t i = cluster->node_count; i-- > 0;) {
            if (cluster->nodes[i].alive && (turn == 0 || i % 3 == 0)) {
                node_of_rank[size++] = i;
            }
        }
    }
    struct sim_comm *comm = sim_comm_new(cluster, name, size, node_of_rank);
    /* With a ring, the test knows which nodes need each other. */
    sim_comm_form(comm, &(struct sim_options){.algorithms = "all_reduce=ring"}, 30 * TIME_S);
    return comm;
}

/* Checks that the operation ended with this status on every rank that is left, in time, and with a text
 * that contains `name`. */
static void assert_ended(const struct sim_op *op, enum status status, const char *name, uint64_t by_ns)
{
    for (uint32_t i = 0; i < op->comm->size; i++) {
        const struct sim_part *part = &op->parts[i];
        if (op->comm->ranks[i].member == NULL) {
            continue;
        }
        assert_true(part->posted);
        if (!part->done || part->result.status != status || strstr(part->result.text, name) == NULL) {
            fail_msg("rank %u: %s \"%s\" instead of %s naming %s", i,
                     part->done ? status_name(part->result.status) : "not done", part->result.text,
                     status_name(status), name);
        }
        if (part->done_ns > by_ns) {
            fail_msg("rank %u: %llu ms too late", i, (unsigned long long)((part->done_ns - by_ns) / TIME_MS));
        }
        assert_true(op->comm->ranks[i].aborted);
        assert_int_equal(op->comm->ranks[i].abort_cause.status, status);
    }
}

/* --- Lost nodes --- */

static void lose_node(struct cluster *cluster, struct sim_comm *comm, uint32_t node, bool host,
                      const struct sim_call *call)
{
    struct sim_op *op = call == NULL ? NULL : sim_comm_post_all(comm, call);
    if (op != NULL) {
        cluster_run(cluster, TIME_MS);
        assert_false(sim_op_done(op));
    }
    (host ? cluster_kill : cluster_crash)(cluster, node);
    sim_comm_forget_node(comm, node);
    cluster_bury(cluster, node);
    uint64_t bound_ns = cluster->now_ns + (host ? SILENT_HOST_BOUND_NS : CRASH_BOUND_NS);
    assert_true(cluster_run_until(cluster, sim_comm_aborted, comm, 20 * TIME_S));
    assert_true(cluster->now_ns <= bound_ns);
    if (op != NULL) {
        assert_ended(op, STATUS_NODE_LOST, cluster->nodes[node].name, bound_ns);
    }
    for (uint32_t i = 0; i < comm->size; i++) {
        if (comm->ranks[i].member != NULL) {
            assert_int_equal(comm->ranks[i].abort_cause.status, STATUS_NODE_LOST);
            assert_non_null(strstr(comm->ranks[i].abort_cause.text, cluster->nodes[node].name));
        }
    }
}

static void run_losses(uint32_t which, bool host)
{
    struct cluster *cluster = cluster_new(&(struct cluster_options){
        .seed = cluster_seed(which), .node_count = 12, .conditions = narrow, .slice_bytes = 32768});
    static const struct sim_call *calls[] = {&large, &small, NULL, &barrier};
    /* Loses a node, goes on among the others with a new communicator, four times. */
    for (uint32_t round = 0; round < 4; round++) {
        char name[16];
        (void)snprintf(name, sizeof name, "round-%u", round);
        struct sim_comm *comm = sim_comm_of_all(cluster, name);
        sim_comm_run(comm, &small);
        struct sim_comm *other = NULL;
        if (round == 1) { /* a communicator without the node notices nothing */
            static const uint32_t node_of_rank[] = {1, 4, 1, 7};
            other = sim_comm_new(cluster, "other", 4, node_of_rank);
            sim_comm_form(other, NULL, 10 * TIME_S);
        }
        if (calls[round] == &small || calls[round] == &barrier) {
            /* These operations are short, so one rank comes late and the others wait. */
            struct sim_op *op = sim_op_new(comm, calls[round]);
            uint32_t lost = 11 - 3 * round;
            for (uint32_t i = 0; i < comm->size; i++) {
                if (comm->ranks[i].node->index != lost) {
                    sim_op_post(op, i);
                }
            }
            cluster_run(cluster, 10 * TIME_MS);
            lose_node(cluster, comm, lost, host, NULL);
            assert_ended(op, STATUS_NODE_LOST, cluster->nodes[lost].name, cluster->now_ns);
        } else {
            lose_node(cluster, comm, 11 - 3 * round, host, calls[round]);
        }
        if (other != NULL) {
            cluster_run(cluster, 5 * TIME_S);
            sim_comm_run(other, &small);
            sim_comm_free(other);
        }
        sim_comm_free(comm);
    }
    struct sim_comm *comm = sim_comm_of_all(cluster, "survivors");
    sim_comm_run(comm, &small);
    sim_comm_free(comm);
    /* The nodes come back as other instances. */
    for (uint32_t round = 0; round < 4; round++) {
        cluster_restart(cluster, 11 - 3 * round);
    }
    cluster_connect(cluster);
    comm = sim_comm_of_all(cluster, "all");
    sim_comm_run(comm, &small);
    sim_comm_free(comm);
    cluster_free(cluster);
}

static void test_a_host_dies_silently(void **state)
{
    (void)state;
    run_losses(100, true);
}

static void test_a_daemon_dies_and_its_host_lives(void **state)
{
    (void)state;
    run_losses(101, false);
}

/* A daemon restarts at once, before anybody missed it. The communicators that it belonged to are lost all
 * the same. */
static void test_a_daemon_restarts_at_once(void **state)
{
    (void)state;
    struct cluster *cluster = cluster_new(&(struct cluster_options){
        .seed = cluster_seed(102), .node_count = 5, .conditions = rough, .datagrams = true});
    struct sim_comm *comm = sim_comm_of_all(cluster, "before");
    struct sim_op *op = sim_op_new(comm, &barrier);
    for (uint32_t i = 0; i < comm->size; i++) {
        if (comm->ranks[i].node->index != 2) {
            sim_op_post(op, i);
        }
    }
    cluster_run(cluster, 100 * TIME_MS);
    cluster_crash(cluster, 2);
    sim_comm_forget_node(comm, 2);
    cluster_bury(cluster, 2);
    cluster_restart(cluster, 2);
    uint64_t bound_ns = cluster->now_ns + CRASH_BOUND_NS;
    assert_true(cluster_run_until(cluster, sim_comm_aborted, comm, 20 * TIME_S));
    assert_ended(op, STATUS_NODE_LOST, "n002", bound_ns);
    cluster_connect(cluster);
    sim_comm_free(comm);
    comm = sim_comm_of_all(cluster, "before");
    sim_comm_run(comm, &small);
    sim_comm_free(comm);
    cluster_free(cluster);
}

static void test_a_process_dies(void **state)
{
    (void)state;
    struct cluster *cluster = cluster_new(&(struct cluster_options){
        .seed = cluster_seed(103), .node_count = 6, .conditions = narrow, .slice_bytes = 32768});
    for (uint32_t turn = 0; turn < 3; turn++) {
        struct sim_comm *comm = sim_comm_of_all(cluster, "processes");
        sim_comm_run(comm, &small);
        struct sim_op *op = turn == 2 ? NULL : sim_comm_post_all(comm, turn == 0 ? &large : &barrier);
        cluster_run(cluster, turn == 0 ? TIME_MS : 0);
        sim_comm_leave(comm, 4, COMMS_LEAVE_LOST);
        uint64_t bound_ns = cluster->now_ns + 100 * TIME_MS;
        assert_true(cluster_run_until(cluster, sim_comm_aborted, comm, 20 * TIME_S));
        assert_true(cluster->now_ns <= bound_ns);
        if (turn == 0) {
            assert_ended(op, STATUS_RANK_LOST, "rank 4", bound_ns);
        }
        for (uint32_t i = 0; i < comm->size; i++) {
            if (comm->ranks[i].member != NULL) {
                assert_int_equal(comm->ranks[i].abort_cause.status, STATUS_RANK_LOST);
                assert_non_null(strstr(comm->ranks[i].abort_cause.text, "rank 4"));
            }
        }
        sim_comm_free(comm);
    }
    cluster_free(cluster);
}

/* --- Lost links --- */

/* The nodes below `first` are cut off. Only the other side, the larger one, may go on; each has one text. */
static void assert_sides(const struct sim_op *op, uint32_t first, uint64_t by_ns)
{
    const char *texts[2] = {NULL, NULL};
    for (uint32_t i = 0; i < op->comm->size; i++) {
        const struct sim_part *part = &op->parts[i];
        bool many = op->comm->ranks[i].node->index >= first;
        assert_true(part->done && part->done_ns <= by_ns);
        assert_int_equal(part->result.status, many ? STATUS_NODE_LOST : STATUS_ABORTED);
        assert_non_null(strstr(part->result.text, many ? "n00" : "minority: only 3 of its 8 nodes"));
        texts[many] = texts[many] == NULL ? part->result.text : texts[many];
        assert_string_equal(part->result.text, texts[many]);
    }
}

static void test_a_partition_and_its_end(void **state)
{
    (void)state;
    struct cluster *cluster = cluster_new(&(struct cluster_options){
        .seed = cluster_seed(110), .node_count = 8, .conditions = narrow, .slice_bytes = 32768});
    for (uint32_t turn = 0; turn < 2; turn++) {
        struct sim_comm *comm = sim_comm_of_all(cluster, "halves");
        struct sim_op *op = sim_comm_post_all(comm, &large);
        cluster_run(cluster, TIME_MS);
        assert_false(sim_op_done(op));
        cluster_partition(cluster, 3, true);
        uint64_t bound_ns = cluster->now_ns + PARTITION_BOUND_NS;
        assert_true(cluster_run_until(cluster, sim_comm_aborted, comm, 20 * TIME_S));
        assert_sides(op, 3, bound_ns);
        sim_comm_free(comm);
        /* Each side can go on alone, with communicators of other names. */
        static const uint32_t node_of_rank[2][4] = {{0, 1, 2, 0}, {3, 4, 7, 6}};
        struct sim_comm *sides[2];
        for (uint32_t side = 0; side < 2; side++) {
            sides[side] = sim_comm_new(cluster, side == 0 ? "left" : "right", 4, node_of_rank[side]);
            sim_comm_form(sides[side], NULL, 10 * TIME_S);
            sim_comm_run(sides[side], &small);
        }
        cluster_run(cluster, 20 * TIME_S);
        cluster_partition(cluster, 3, false);
        cluster_connect(cluster);
        for (uint32_t side = 0; side < 2; side++) {
            sim_comm_run(sides[side], &small);
            sim_comm_free(sides[side]);
        }
    }
    struct sim_comm *comm = sim_comm_of_all(cluster, "halves");
    sim_comm_run(comm, &small);
    sim_comm_free(comm);
    cluster_free(cluster);
}

/*
 * The way between two nodes is cut in one direction. Ranks that have all their data may end the current
 * operation well. No rank ends the last of three operations well, and all get the same verdict.
 */
static void test_a_way_cut_in_one_direction(void **state)
{
    (void)state;
    struct cluster *cluster = cluster_new(&(struct cluster_options){
        .seed = cluster_seed(111), .node_count = 6, .conditions = narrow, .slice_bytes = 32768});
    static const uint32_t pairs[][2] = {{0, 1}, {5, 0}, {2, 3}, {4, 3}, {1, 0}, {2, 4}};
    for (uint32_t turn = 0; turn < 6; turn++) {
        struct sim_comm *comm = sim_comm_of_all(cluster, "ways");
        struct sim_op *ops[3];
        for (uint32_t i = 0; i < 3; i++) {
            ops[i] = sim_comm_post_all(comm, &large);
        }
        cluster_run(cluster, TIME_MS);
        assert_false(sim_op_done(ops[0]));
        cluster_cut(cluster, pairs[turn][0], pairs[turn][1], true);
        uint64_t bound_ns = cluster->now_ns + PARTITION_BOUND_NS;
        assert_true(cluster_run_until(cluster, sim_comm_aborted, comm, 20 * TIME_S));
        for (uint32_t i = 0; i < 3; i++) {
            sim_op_check(ops[i]);
        }
        if (turn < 5) { /* in the last turn, the nodes are no neighbours in the ring */
            assert_ended(ops[2], STATUS_NODE_LOST, "n00", bound_ns);
        }
        assert_true(cluster->now_ns <= bound_ns);
        cluster_cut(cluster, pairs[turn][0], pairs[turn][1], false);
        sim_comm_free(comm);
        cluster_connect(cluster);
    }
    struct sim_comm *comm = sim_comm_of_all(cluster, "ways");
    sim_comm_run(comm, &small);
    sim_comm_free(comm);
    cluster_free(cluster);
}

/* Nothing gets through for two seconds, in both directions or in one, in the middle of work. Nobody gives
 * up. */
static void test_a_blackhole_of_2_seconds(void **state)
{
    (void)state;
    for (uint32_t turn = 0; turn < 3; turn++) {
        struct cluster *cluster = cluster_new(&(struct cluster_options){
            .seed = cluster_seed(112 + turn), .node_count = 6, .conditions = narrow, .slice_bytes = 32768});
        struct sim_comm *comm = sim_comm_of_all(cluster, "hole");
        struct sim_op *op = sim_comm_post_all(comm, &large);
        struct sim_op *next = sim_comm_post_all(comm, &small);
        cluster_run(cluster, 2 * TIME_MS);
        assert_false(sim_op_done(op));
        for (uint32_t i = 0; i < 6; i++) {
            for (uint32_t j = 0; j < 6; j++) {
                if (i != j && (turn == 0 || (turn == 1) == (i < j))) {
                    cluster_cut(cluster, i, j, true);
                }
            }
        }
        cluster_run(cluster, 2 * TIME_S);
        assert_false(sim_op_done(op));
        for (uint32_t i = 0; i < 6; i++) {
            for (uint32_t j = 0; j < 6; j++) {
                if (i != j) {
                    cluster_cut(cluster, i, j, false);
                }
            }
        }
        sim_op_finish(op, 10 * TIME_S);
        sim_op_finish(next, 10 * TIME_S);
        assert_true(cluster_connected(cluster));
        sim_comm_free(comm);
        cluster_free(cluster);
    }
}

/* A node is lost while a communicator forms. The others are told which rank or node is missing; nobody
 * hangs. */
static void test_a_node_lost_while_forming(void **state)
{
    (void)state;
    struct cluster *cluster = cluster_new(&(struct cluster_options){
        .seed = cluster_seed(120), .node_count = 4, .conditions = rough, .datagrams = true});
    cluster_connect(cluster);
    static const uint32_t node_of_rank[] = {0, 1, 2, 3};
    struct sim_comm *comm = sim_comm_new(cluster, "forming", 4, node_of_rank);
    struct sim_options options = {.form_timeout_ms = 8000};
    for (uint32_t i = 0; i < 3; i++) {
        sim_comm_join(comm, i, 0, &options);
    }
    cluster_run(cluster, TIME_S);
    cluster_kill(cluster, 1);
    sim_comm_forget_node(comm, 1);
    cluster_bury(cluster, 1);
    cluster_run(cluster, 4 * TIME_S);
    sim_comm_join(comm, 3, 0, &options);
    assert_true(cluster_run_until(cluster, sim_comm_formed, comm, 20 * TIME_S));
    for (uint32_t i = 0; i < 4; i++) {
        if (i != 1) {
            const struct error *result = &comm->ranks[i].formed_result;
            assert_true(result->status == STATUS_TIMED_OUT || result->status == STATUS_NODE_LOST);
            assert_true(strstr(result->text, "1") != NULL);
        }
    }
    sim_comm_free(comm);
    /* The node comes back, and the name can be used again. */
    cluster_restart(cluster, 1);
    cluster_connect(cluster);
    comm = sim_comm_new(cluster, "forming", 4, node_of_rank);
    sim_comm_form(comm, NULL, 10 * TIME_S);
    sim_comm_run(comm, &small);
    sim_comm_free(comm);
    cluster_free(cluster);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_host_dies_silently),
        cmocka_unit_test(test_a_daemon_dies_and_its_host_lives),
        cmocka_unit_test(test_a_daemon_restarts_at_once),
        cmocka_unit_test(test_a_process_dies),
        cmocka_unit_test(test_a_partition_and_its_end),
        cmocka_unit_test(test_a_way_cut_in_one_direction),
        cmocka_unit_test(test_a_blackhole_of_2_seconds),
        cmocka_unit_test(test_a_node_lost_while_forming),
    };
    return cluster_report(cmocka_run_group_tests(tests, NULL, NULL));
}
