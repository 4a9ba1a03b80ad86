#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "tests/lib/own_process.h"
#include "tests/sim/sim_comm.h"

/*
 * Tests of what earlier systems of this kind got wrong. The numbers are those of tests/predecessors.txt,
 * which also names tests in other places. Data differ by rank and element everywhere, because uniform data
 * hid half of these faults.
 */

static const struct network_conditions calm = {
    .delay_ns = 20 * TIME_US, .jitter_ns = 5 * TIME_US, .packet_bytes = 65536};

static struct sim_comm *start(struct cluster **cluster, uint32_t nodes, uint32_t ranks_a_node,
                              uint64_t slice_bytes, const char *algorithms)
{
    static uint32_t node_of_rank[256];
    *cluster = cluster_new(&(struct cluster_options){.seed = cluster_seed(17 * nodes + ranks_a_node),
                                                     .node_count = nodes,
                                                     .conditions = calm,
                                                     .slice_bytes = slice_bytes});
    for (uint32_t i = 0; i < nodes * ranks_a_node; i++) {
        node_of_rank[i] = i / ranks_a_node;
    }
    struct sim_comm *comm = sim_comm_new(*cluster, "old", nodes * ranks_a_node, node_of_rank);
    sim_comm_form(comm, &(struct sim_options){.algorithms = algorithms}, 30 * TIME_S);
    return comm;
}

static void stop(struct cluster *cluster, struct sim_comm *comm)
{
    sim_comm_free(comm);
    cluster_free(cluster);
}

/* 1. With several ranks on a node, the data of every rank is reduced between the nodes, for every element. */
static void test_01_every_shard_crosses_the_nodes(void **state)
{
    (void)state;
    for (uint32_t ranks = 2; ranks <= 4; ranks++) {
        struct cluster *cluster;
        struct sim_comm *comm = start(&cluster, 3, ranks, 4096, NULL);
        static const enum op_kind kinds[] = {OP_KIND_ALL_REDUCE, OP_KIND_REDUCE, OP_KIND_REDUCE_SCATTER};
        for (uint32_t i = 0; i < 3; i++) {
            sim_comm_run(comm, &(struct sim_call){.kind = kinds[i],
                                                  .dtype = DTYPE_I64,
                                                  .reduce = REDUCE_SUM,
                                                  .count = 4 * ranks * 1000 + 1,
                                                  .root = ranks});
        }
        stop(cluster, comm);
    }
}

/* 2. Rank i gets slice i. */
static void test_02_reduce_scatter_gives_each_rank_its_own_slice(void **state)
{
    (void)state;
    static const char *const algorithms[] = {"reduce_scatter=ring", "reduce_scatter=direct",
                                             "reduce_scatter=halving"};
    for (uint32_t nodes = 1; nodes <= 5; nodes++) {
        for (uint32_t i = 0; i < 3; i++) {
            struct cluster *cluster;
            struct sim_comm *comm = start(&cluster, nodes, 1 + nodes % 2, 1024, algorithms[i]);
            sim_comm_run(comm, &(struct sim_call){.kind = OP_KIND_REDUCE_SCATTER,
                                                  .dtype = DTYPE_I32,
                                                  .reduce = REDUCE_SUM,
                                                  .count = 1000});
            stop(cluster, comm);
        }
    }
}

/* 3. 25 MiB of f32 on 2, 3 and 4 ranks, in segments of 2 MiB: each cut is between two elements. */
static void test_03_segments_cut_between_elements(void **state)
{
    (void)state;
    for (uint32_t nodes = 2; nodes <= 4; nodes++) {
        struct cluster *cluster;
        struct sim_comm *comm = start(&cluster, nodes, 1, 2u << 20, "all_reduce=ring");
        sim_comm_run(comm, &(struct sim_call){.kind = OP_KIND_ALL_REDUCE,
                                              .dtype = DTYPE_F32,
                                              .reduce = REDUCE_SUM,
                                              .count = 25u << 18});
        stop(cluster, comm);
    }
}

/* 4. 6,291,457 f32 on 3 ranks: all ranks cut them into the same number of segments. */
static void test_04_ranks_agree_on_the_segments(void **state)
{
    (void)state;
    struct cluster *cluster;
    struct sim_comm *comm = start(&cluster, 3, 1, 2u << 20, "all_reduce=ring");
    for (uint64_t off = 0; off < 2; off++) {
        sim_comm_run(comm, &(struct sim_call){.kind = OP_KIND_ALL_REDUCE,
                                              .dtype = DTYPE_F32,
                                              .reduce = REDUCE_SUM,
                                              .count = 6291457 - off});
    }
    stop(cluster, comm);
}

/* 5. More than a thousand steps, with hundreds of operations in flight, of two communicators on the same
 * nodes. */
static void test_05_steps_of_operations_in_flight_never_mix(void **state)
{
    (void)state;
    enum { FLIGHT = 300 };
    static struct sim_op *ops[2][FLIGHT];
    struct cluster *cluster;
    struct sim_comm *parent = start(&cluster, 5, 1, 512, "all_reduce=ring");
    static const uint32_t node_of_rank[] = {0, 1, 2, 3, 4};
    struct sim_comm *child = sim_comm_new(cluster, "child", 5, node_of_rank);
    sim_comm_form(child, &(struct sim_options){.algorithms = "all_reduce=ring"}, 30 * TIME_S);
    for (uint32_t i = 0; i < FLIGHT; i++) {
        for (uint32_t which = 0; which < 2; which++) {
            ops[which][i] = sim_comm_post_all(
                which == 0 ? parent : child,
                &(struct sim_call){
                    .kind = OP_KIND_ALL_REDUCE, .dtype = DTYPE_I32, .reduce = REDUCE_SUM, .count = 640});
        }
    }
    for (uint32_t i = 0; i < FLIGHT; i++) {
        for (uint32_t which = 0; which < 2; which++) {
            sim_op_finish(ops[which][i], 60 * TIME_S);
            sim_op_free(ops[which][i]);
        }
    }
    sim_comm_free(child);
    stop(cluster, parent);
}

/* 8. After a long idle time with heartbeats, collectives work. */
static void test_08_heartbeats_do_not_stand_in_the_way(void **state)
{
    (void)state;
    struct cluster *cluster;
    struct sim_comm *comm = start(&cluster, 3, 2, 4096, NULL);
    for (uint32_t turn = 0; turn < 3; turn++) {
        cluster_run(cluster, 600 * TIME_S);
        sim_comm_run(comm, &(struct sim_call){.kind = OP_KIND_BARRIER});
        sim_comm_run(
            comm, &(struct sim_call){
                      .kind = OP_KIND_ALL_REDUCE, .dtype = DTYPE_F64, .reduce = REDUCE_SUM, .count = 5000});
    }
    stop(cluster, comm);
}

/* 10. After 100,000 operations, no memory is kept of them. */
static void test_10_memory_is_flat_over_operations(void **state)
{
    (void)state;
    enum { BEFORE = 2000, TURNS = 100000, AHEAD = 50 };
    struct cluster *cluster;
    struct sim_comm *comm = start(&cluster, 2, 1, 65536, NULL);
    struct sim_op *ops[AHEAD];
    size_t before = 0;
    for (uint32_t turn = 0; turn < TURNS; turn++) {
        if (turn >= AHEAD) {
            sim_op_finish(ops[turn % AHEAD], 10 * TIME_S);
            sim_op_free(ops[turn % AHEAD]);
        }
        struct sim_call call = {.kind = turn % 3 == 0 ? OP_KIND_BARRIER : OP_KIND_ALL_REDUCE,
                                .dtype = DTYPE_I32,
                                .reduce = REDUCE_SUM,
                                .count = turn % 7};
        ops[turn % AHEAD] = sim_op_new(comm, &call);
        sim_op_post(ops[turn % AHEAD], 0);
        sim_op_post(ops[turn % AHEAD], 1);
        if (turn == BEFORE) {
            before = allocated_bytes();
        }
    }
    size_t after = allocated_bytes();
    if (after > before + (64u << 10)) {
        fail_msg("%d operations left %zu bytes behind", TURNS - BEFORE, after - before);
    }
    for (uint32_t i = 0; i < AHEAD; i++) {
        sim_op_finish(ops[i], 10 * TIME_S);
        sim_op_free(ops[i]);
    }
    stop(cluster, comm);
}

/* 11. Operations that are given up in the middle leave no data on the connection that could disturb the
 * next ones. */
static void test_11_what_is_given_up_leaves_no_half_frame(void **state)
{
    (void)state;
    static const uint32_t node_of_rank[] = {0, 1, 2};
    static const struct network_conditions narrow = {
        .delay_ns = 50 * TIME_US, .packet_bytes = 1400, .bandwidth_bytes_s = 200000000};
    struct cluster *cluster = cluster_new(&(struct cluster_options){
        .seed = cluster_seed(11), .node_count = 3, .conditions = narrow, .slice_bytes = 65536});
    for (uint32_t turn = 0; turn < 20; turn++) {
        struct sim_comm *comm = sim_comm_new(cluster, "given-up", 3, node_of_rank);
        sim_comm_form(comm, NULL, 10 * TIME_S);
        struct sim_op *op = sim_comm_post_all(
            comm, &(struct sim_call){
                      .kind = OP_KIND_ALL_REDUCE, .dtype = DTYPE_F32, .reduce = REDUCE_SUM, .count = 500000});
        cluster_run(cluster, turn * TIME_MS / 4);
        assert_false(sim_op_done(op));
        sim_comm_leave(comm, turn % 3, COMMS_LEAVE_LOST);
        assert_true(cluster_run_until(cluster, sim_comm_idle, comm, 10 * TIME_S));
        sim_comm_free(comm);
        comm = sim_comm_new(cluster, "next", 3, node_of_rank);
        sim_comm_form(comm, NULL, 10 * TIME_S);
        sim_comm_run(
            comm, &(struct sim_call){
                      .kind = OP_KIND_ALL_REDUCE, .dtype = DTYPE_F32, .reduce = REDUCE_SUM, .count = 20000});
        sim_comm_free(comm);
    }
    cluster_free(cluster);
}

static uint64_t time_of_slices(uint64_t slices)
{
    static const struct network_conditions far = {.delay_ns = 10 * TIME_MS, .packet_bytes = 65536};
    static const uint32_t node_of_rank[] = {0, 1, 2, 3};
    struct cluster *cluster = cluster_new(&(struct cluster_options){
        .seed = cluster_seed(13), .node_count = 4, .conditions = far, .slice_bytes = 4096});
    struct sim_comm *comm = sim_comm_new(cluster, "far", 4, node_of_rank);
    sim_comm_form(comm, &(struct sim_options){.algorithms = "all_reduce=ring"}, 30 * TIME_S);
    struct sim_op *op = sim_op_new(comm, &(struct sim_call){.kind = OP_KIND_ALL_REDUCE,
                                                            .dtype = DTYPE_F32,
                                                            .reduce = REDUCE_SUM,
                                                            .count = slices * 1024});
    for (uint32_t i = 0; i < 4; i++) {
        sim_op_post(op, i);
    }
    uint64_t begin_ns = cluster->now_ns;
    assert_true(cluster_run_until(cluster, sim_op_done, op, 60 * TIME_S));
    uint64_t took_ns = cluster->now_ns - begin_ns;
    sim_op_finish(op, TIME_S);
    sim_op_free(op);
    stop(cluster, comm);
    return took_ns;
}

/* 13. Slices are under way while others are reduced: eight slices take little longer than one. */
static void test_13_slices_overlap(void **state)
{
    (void)state;
    uint64_t one_ns = time_of_slices(1);
    uint64_t eight_ns = time_of_slices(8);
    assert_true(eight_ns < one_ns + one_ns / 4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_01_every_shard_crosses_the_nodes),
        cmocka_unit_test(test_02_reduce_scatter_gives_each_rank_its_own_slice),
        cmocka_unit_test(test_03_segments_cut_between_elements),
        cmocka_unit_test(test_04_ranks_agree_on_the_segments),
        cmocka_unit_test(test_05_steps_of_operations_in_flight_never_mix),
        cmocka_unit_test(test_08_heartbeats_do_not_stand_in_the_way),
        cmocka_unit_test(test_10_memory_is_flat_over_operations),
        cmocka_unit_test(test_11_what_is_given_up_leaves_no_half_frame),
        cmocka_unit_test(test_13_slices_overlap),
    };
    return cluster_report(cmocka_run_group_tests(tests, NULL, NULL));
}
