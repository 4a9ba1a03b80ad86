#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "daemon/exec/exec_internal.h"
#include "tests/sim/cluster.h"
#include "tests/sim/sim_comm.h"

/* Steps of stages that the main thread lends to workers, because other users share the main thread. */

#define RANKS_EACH 3u /* on a node */

static const struct network_conditions calm = {
    .delay_ns = 50 * TIME_US, .jitter_ns = 20 * TIME_US, .packet_bytes = 8192};

static struct sim_comm *start(uint32_t which, uint32_t node_count, uint32_t worker_count,
                              uint64_t slice_bytes)
{
    struct cluster *cluster = cluster_new(&(struct cluster_options){.seed = cluster_seed(which),
                                                                    .node_count = node_count,
                                                                    .conditions = calm,
                                                                    .worker_count = worker_count});
    uint32_t node_of_rank[CLUSTER_NODES_MAX];
    cluster_connect(cluster);
    for (uint32_t i = 0; i < node_count * RANKS_EACH; i++) {
        node_of_rank[i] = i / RANKS_EACH;
    }
    struct sim_comm *comm = sim_comm_new(cluster, "lent", node_count * RANKS_EACH, node_of_rank);
    sim_comm_form(comm, &(struct sim_options){.slice_bytes = slice_bytes}, 10 * TIME_S);
    return comm;
}

static void stop(struct sim_comm *comm)
{
    struct cluster *cluster = comm->cluster;
    sim_comm_free(comm);
    cluster_free(cluster);
}

static uint32_t lent(const struct sim_comm *comm)
{
    return comm->cluster->nodes[0].exec->lent;
}

static void test_steps_are_lent_and_right(void **state)
{
    (void)state;
    static const struct sim_call calls[] = {
        {.kind = OP_KIND_ALL_REDUCE, .dtype = DTYPE_F32, .reduce = REDUCE_SUM, .count = 300000},
        {.kind = OP_KIND_ALL_REDUCE,
         .dtype = DTYPE_F64,
         .reduce = REDUCE_AVG,
         .count = 9999,
         .in_place = true},
        {.kind = OP_KIND_ALL_TO_ALL, .dtype = DTYPE_U8, .count = 5000},
        {.kind = OP_KIND_ALL_TO_ALL, .dtype = DTYPE_I16, .count = 300, .has_layouts = true, .layout_seed = 7},
        {.kind = OP_KIND_REDUCE_SCATTER, .dtype = DTYPE_I32, .reduce = REDUCE_MAX, .count = 100000},
        {.kind = OP_KIND_ALL_GATHER, .dtype = DTYPE_F32, .count = 100000},
        {.kind = OP_KIND_SCAN, .dtype = DTYPE_I64, .reduce = REDUCE_SUM, .count = 100000},
    };
    for (uint32_t i = 0; i < sizeof calls / sizeof calls[0]; i++) {
        struct sim_comm *comm = start(300 + i, 2, 1 + i % 2, 1 << 20);
        sim_comm_run(comm, &calls[i]);
        if (lent(comm) == 0) {
            fail_msg("call %u: nothing was lent", i);
        }
        stop(comm);
    }
}

/* Any thread may take slices within a node, so workers take all of them. */
static void test_slices_within_a_node_are_left_to_workers(void **state)
{
    (void)state;
    static const struct sim_call call = {
        .kind = OP_KIND_ALL_REDUCE, .dtype = DTYPE_F32, .reduce = REDUCE_SUM, .count = 2000000};
    struct sim_comm *comm = start(320, 1, 2, 65536);
    struct sim_op *op = sim_comm_post_all(comm, &call);
    cluster_run(comm->cluster, 0);
    sim_op_finish(op, 10 * TIME_S);
    /* The main thread takes no virtual time. Only the turns of workers, one every 200 us, take time. */
    assert_true(op->parts[0].done_ns > op->posted_ns + TIME_MS);
    sim_op_free(op);
    stop(comm);
}

static void test_nothing_is_lent_while_a_user_is_alone(void **state)
{
    (void)state;
    static const struct sim_call call = {
        .kind = OP_KIND_ALL_REDUCE, .dtype = DTYPE_F32, .reduce = REDUCE_SUM, .count = 100000};
    struct sim_comm *comm = start(330, 2, 2, 1 << 20);
    comm->cluster->users_are_alone = true;
    cluster_run(comm->cluster, 2 * EXEC_SHARED_NS); /* by now, other users have had no turn for long */
    sim_comm_run(comm, &call);
    assert_int_equal(lent(comm), 0);
    stop(comm);
}

static bool is_out(const void *context)
{
    const struct sim_comm *comm = context;
    struct exec_comm *each, *next;
    HASH_ITER (hh, comm->cluster->nodes[0].exec->comms, each, next) {
        if (!loans_are_back(each)) {
            return true;
        }
    }
    return false;
}

/* A worker holds the buffers of an operation. So the operation ends, and gives its buffers back, only when
 * the worker has finished. */
static void test_the_deadline_passes_while_a_step_is_lent(void **state)
{
    (void)state;
    static const struct sim_call late = {.kind = OP_KIND_ALL_REDUCE,
                                         .dtype = DTYPE_F32,
                                         .reduce = REDUCE_SUM,
                                         .count = 3000000,
                                         .timeout_ms = 6};
    static const struct sim_call small = {
        .kind = OP_KIND_ALL_REDUCE, .dtype = DTYPE_I32, .reduce = REDUCE_SUM, .count = 5000};
    struct sim_comm *comm = start(340, 2, 1, 16 << 20);
    struct sim_op *op = sim_comm_post_all(comm, &late);
    assert_true(cluster_run_until(comm->cluster, is_out, comm, TIME_S));
    assert_true(cluster_run_until(comm->cluster, sim_op_done, op, 10 * TIME_S));
    assert_false(is_out(comm));
    for (uint32_t i = 0; i < comm->size; i++) {
        assert_int_equal(op->parts[i].result.status, STATUS_TIMED_OUT);
    }
    sim_op_free(op);
    sim_comm_run(comm, &small); /* the late operation ended alone */
    stop(comm);
}

static void test_a_rank_dies_while_a_step_is_lent(void **state)
{
    (void)state;
    static const struct sim_call call = {.kind = OP_KIND_ALL_TO_ALL, .dtype = DTYPE_F32, .count = 500000};
    struct sim_comm *comm = start(350, 2, 2, 16 << 20);
    struct sim_op *op = sim_comm_post_all(comm, &call);
    assert_true(cluster_run_until(comm->cluster, is_out, comm, TIME_S));
    sim_comm_leave(comm, 1, COMMS_LEAVE_LOST);
    assert_true(cluster_run_until(comm->cluster, sim_op_done, op, 10 * TIME_S));
    assert_false(is_out(comm));
    stop(comm);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_steps_are_lent_and_right),
        cmocka_unit_test(test_slices_within_a_node_are_left_to_workers),
        cmocka_unit_test(test_nothing_is_lent_while_a_user_is_alone),
        cmocka_unit_test(test_the_deadline_passes_while_a_step_is_lent),
        cmocka_unit_test(test_a_rank_dies_while_a_step_is_lent),
    };
    return cluster_report(cmocka_run_group_tests(tests, NULL, NULL));
}
