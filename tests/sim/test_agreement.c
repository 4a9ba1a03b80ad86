#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "tests/sim/conditions.h"
#include "tests/sim/sim_buffers.h"
#include "tests/sim/sim_comm.h"

/*
 * Ranks that call operations differently. Each rank is told within a second of the last call. The text names
 * two ranks, their processes and both calls. The communicator goes on, with what is already queued and with
 * what comes later.
 */

struct contradiction {
    struct sim_call most; /* what all ranks but one call */
    struct sim_call odd;
    const char *texts[2]; /* texts that the error must have */
};

#define REDUCTION(elements, type, operator)                                                                  \
    .kind = OP_KIND_ALL_REDUCE, .dtype = DTYPE_##type, .reduce = REDUCE_##operator, .count =(elements)

static const struct contradiction contradictions[] = {
    {{REDUCTION(1000, F32, SUM)}, {REDUCTION(1000, I32, SUM)}, {"1000 f32", "1000 i32"}},
    {{REDUCTION(1000, F32, SUM)}, {REDUCTION(1001, F32, SUM)}, {"1000 f32", "1001 f32"}},
    {{REDUCTION(1000, F32, SUM)}, {REDUCTION(0, F32, SUM)}, {"1000 f32", "of 0 f32"}},
    {{REDUCTION(1000, F32, SUM)}, {REDUCTION(1000, F32, MAX)}, {"f32, sum", "f32, max"}},
    {{REDUCTION(40000, F32, SUM)}, {REDUCTION(40000, F32, MIN)}, {"f32, sum", "f32, min"}},
    {{REDUCTION(1000, F32, SUM)}, {.kind = OP_KIND_BARRIER}, {"all_reduce of 1000 f32, sum", "barrier"}},
    {{.kind = OP_KIND_BARRIER}, {REDUCTION(1000, F32, SUM)}, {"all_reduce of 1000 f32, sum", "barrier"}},
    {{REDUCTION(1000, F32, SUM)},
     {.kind = OP_KIND_BROADCAST, .dtype = DTYPE_F32, .count = 1000, .root = 2},
     {"all_reduce of 1000 f32", "broadcast of 1000 f32 from rank 2"}},
    {{.kind = OP_KIND_BROADCAST, .dtype = DTYPE_F32, .count = 1000, .root = 1},
     {.kind = OP_KIND_BROADCAST, .dtype = DTYPE_F32, .count = 1000, .root = 2},
     {"from rank 1", "from rank 2"}},
    {{.kind = OP_KIND_BROADCAST, .dtype = DTYPE_F32, .count = 1000, .root = 1},
     {.kind = OP_KIND_BROADCAST, .dtype = DTYPE_F32, .count = 30000, .root = 1},
     {"of 1000 f32", "of 30000 f32"}},
    {{.kind = OP_KIND_REDUCE, .dtype = DTYPE_F32, .count = 1000, .root = 3},
     {.kind = OP_KIND_REDUCE, .dtype = DTYPE_F32, .count = 1000, .root = 0},
     {"to rank 3", "to rank 0"}},
    {{.kind = OP_KIND_ALL_GATHER, .dtype = DTYPE_U8, .count = 100},
     {.kind = OP_KIND_ALL_GATHER, .dtype = DTYPE_U8, .count = 101},
     {"all_gather of 100 u8", "all_gather of 101 u8"}},
    {{.kind = OP_KIND_ALL_GATHER, .dtype = DTYPE_U8, .count = 100, .has_layouts = true, .layout_seed = 1},
     {.kind = OP_KIND_ALL_GATHER, .dtype = DTYPE_U8, .count = 100, .has_layouts = true, .layout_seed = 2},
     {"all_gather_v of u8, counts", "all_gather_v of u8, counts"}},
    {{.kind = OP_KIND_ALL_GATHER, .dtype = DTYPE_U8, .count = 100},
     {.kind = OP_KIND_ALL_GATHER, .dtype = DTYPE_U8, .count = 100, .has_layouts = true, .layout_seed = 2},
     {"all_gather of 100 u8", "all_gather_v of u8, counts"}},
    {{.kind = OP_KIND_REDUCE_SCATTER, .dtype = DTYPE_U8, .count = 9, .has_layouts = true, .layout_seed = 1},
     {.kind = OP_KIND_REDUCE_SCATTER, .dtype = DTYPE_U8, .count = 9, .has_layouts = true, .layout_seed = 2},
     {"reduce_scatter_v of u8, sum, counts", "reduce_scatter_v of u8, sum, counts"}},
    {{.kind = OP_KIND_ALL_TO_ALL, .dtype = DTYPE_I16, .count = 10},
     {.kind = OP_KIND_ALL_TO_ALL, .dtype = DTYPE_I16, .count = 11},
     {"all_to_all of 10 i16", "all_to_all of 11 i16"}},
    {{.kind = OP_KIND_SCAN, .dtype = DTYPE_F64, .reduce = REDUCE_SUM, .count = 10},
     {.kind = OP_KIND_EXCLUSIVE_SCAN, .dtype = DTYPE_F64, .reduce = REDUCE_SUM, .count = 10},
     {"scan of 10 f64, sum", "exclusive_scan of 10 f64, sum"}},
    {{REDUCTION(1000, F32, SUM)},
     {REDUCTION(1000, F32, SUM), .compression = COMPRESSION_BF16},
     {"1000 f32, sum", "bf16 on the wire"}},
};
#define CONTRADICTIONS (sizeof contradictions / sizeof contradictions[0])

static struct sim_comm *form(struct cluster **cluster, uint32_t seed, uint32_t nodes,
                             const uint32_t *node_of_rank, uint32_t size)
{
    *cluster = cluster_new(&(struct cluster_options){.seed = cluster_seed(seed),
                                                     .node_count = nodes,
                                                     .conditions = rough,
                                                     .datagrams = true,
                                                     .slice_bytes = 16384});
    struct sim_comm *comm = sim_comm_new(*cluster, "odd", size, node_of_rank);
    sim_comm_form(comm, NULL, 10 * TIME_S);
    return comm;
}

static void assert_all_heard(const struct sim_op *op, const char *const *texts, uint64_t by_ns)
{
    for (uint32_t i = 0; i < op->comm->size; i++) {
        const struct error *result = &op->parts[i].result;
        assert_true(op->parts[i].posted);
        if (!op->parts[i].done || result->status != STATUS_MISMATCH ||
            strstr(result->text, texts[0]) == NULL || strstr(result->text, texts[1]) == NULL ||
            strstr(result->text, "(pid 100") == NULL ||
            strstr(strstr(result->text, "(pid 100") + 1, "(pid 100") == NULL) {
            fail_msg("rank %u: %s, \"%s\" instead of what names two ranks, \"%s\" and \"%s\"", i,
                     op->parts[i].done ? status_name(result->status) : "not done", result->text, texts[0],
                     texts[1]);
        }
        assert_string_equal(result->text, op->parts[0].result.text);
        assert_true(op->parts[i].done_ns <= by_ns);
        assert_false(op->comm->ranks[i].aborted);
    }
}

/* One rank, `odd`, calls something else. Correct operations run before it, and others are queued behind
 * it. */
static void run_contradiction(const struct contradiction *what, struct sim_comm *comm, uint32_t odd)
{
    static const struct sim_call right = {REDUCTION(20000, F32, SUM)};
    static const struct sim_call gather = {
        .kind = OP_KIND_GATHER, .dtype = DTYPE_U16, .count = 50, .root = 1};
    struct cluster *cluster = comm->cluster;
    struct sim_op *before = sim_comm_post_all(comm, &right);
    struct sim_op *op = sim_op_new(comm, &what->most);
    for (uint32_t i = 0; i < comm->size; i++) {
        if (i != odd) {
            sim_op_post(op, i);
        }
    }
    cluster_run(cluster, random_below(&cluster->random, 2) * random_below(&cluster->random, TIME_S));
    op->call = what->odd;
    sim_op_post(op, odd);
    uint64_t posted_ns = cluster->now_ns;
    struct sim_op *behind = sim_comm_post_all(comm, &right);
    struct sim_op *last = sim_comm_post_all(comm, &gather);
    sim_op_finish(before, 10 * TIME_S);
    (void)cluster_run_until(cluster, sim_op_done, op, 10 * TIME_S);
    assert_all_heard(op, what->texts, posted_ns + TIME_S);
    sim_op_finish(behind, 10 * TIME_S);
    sim_op_finish(last, 10 * TIME_S);
    sim_comm_run(comm, &right);
    while (comm->ops != NULL) {
        sim_op_free(comm->ops);
    }
}

static void test_between_nodes(void **state)
{
    (void)state;
    static const uint32_t node_of_rank[] = {0, 1, 2, 3};
    struct cluster *cluster;
    struct sim_comm *comm = form(&cluster, 1, 4, node_of_rank, 4);
    for (size_t i = 0; i < CONTRADICTIONS; i++) {
        for (uint32_t odd = 0; odd < 4; odd++) {
            run_contradiction(&contradictions[i], comm, odd);
        }
    }
    sim_comm_free(comm);
    cluster_free(cluster);
}

static void test_within_a_node_of_several(void **state)
{
    (void)state;
    static const uint32_t node_of_rank[] = {0, 1, 0, 1, 2, 0};
    struct cluster *cluster;
    struct sim_comm *comm = form(&cluster, 2, 3, node_of_rank, 6);
    for (size_t i = 0; i < CONTRADICTIONS; i++) {
        run_contradiction(&contradictions[i], comm, (uint32_t)(i % 6));
    }
    sim_comm_free(comm);
    cluster_free(cluster);
}

static void test_on_one_node(void **state)
{
    (void)state;
    static const uint32_t node_of_rank[] = {0, 0, 0, 0};
    struct cluster *cluster;
    struct sim_comm *comm = form(&cluster, 3, 1, node_of_rank, 4);
    for (size_t i = 0; i < CONTRADICTIONS; i++) {
        run_contradiction(&contradictions[i], comm, (uint32_t)(i % 4));
    }
    sim_comm_free(comm);
    cluster_free(cluster);
}

/* Some sizes are known to only two ranks. One of them has a wrong size, which may also be 0. */
static void test_blocks_of_two_sizes(void **state)
{
    (void)state;
    static const uint32_t node_of_rank[] = {0, 1, 2, 3};
    static const enum op_kind kinds[] = {OP_KIND_ALL_TO_ALL, OP_KIND_GATHER, OP_KIND_SCATTER};
    for (uint32_t which = 0; which < 3; which++) {
        struct cluster *cluster;
        struct sim_comm *comm = form(&cluster, 10 + which, 4, node_of_rank, 4);
        for (uint32_t turn = 0; turn < 12; turn++) {
            struct contradiction what = {.most = {.kind = kinds[which],
                                                  .dtype = DTYPE_I16,
                                                  .count = 500,
                                                  .root = 2,
                                                  .has_layouts = true,
                                                  .layout_seed = turn},
                                         .texts = {op_kind_text(kinds[which]), "bytes are sent where"}};
            what.odd = what.most;
            const struct sim_op most = {.call = what.most};
            struct sim_op odd = {.call = what.most};
            do { /* in an all_to_all, some sizes differ with any other seed */
                odd.call.layout_seed += 100;
            } while (sim_own_count(&odd, turn % 4) == sim_own_count(&most, turn % 4) &&
                     kinds[which] != OP_KIND_ALL_TO_ALL);
            what.odd.layout_seed = odd.call.layout_seed;
            run_contradiction(&what, comm, turn % 4);
        }
        sim_comm_free(comm);
        cluster_free(cluster);
    }
}

/* One rank puts two all_reduces in a group, the others do not. Both operations end, and the next one is
 * right. */
static void test_groups_that_differ(void **state)
{
    (void)state;
    static const uint32_t node_of_rank[] = {0, 1, 1, 2};
    struct cluster *cluster;
    struct sim_comm *comm = form(&cluster, 20, 3, node_of_rank, 4);
    static const struct sim_call right = {REDUCTION(500, F32, SUM)};
    static const char *const texts[] = {"500 f32, sum;", "500 f32, sum, 1 of 2 in a group"};
    for (uint32_t odd = 0; odd < 4; odd++) {
        struct sim_op *ops[2] = {sim_op_new(comm, &right), sim_op_new(comm, &right)};
        for (uint32_t rank = 0; rank < 4; rank++) {
            for (uint32_t i = 0; i < 2; i++) {
                ops[i]->call.bucket_ops = rank == odd ? 2 : 1;
                ops[i]->call.bucket_index = rank == odd ? i : 0;
                sim_op_post(ops[i], rank);
            }
        }
        struct sim_op *behind = sim_comm_post_all(comm, &right);
        (void)cluster_run_until(cluster, sim_op_done, ops[0], 10 * TIME_S);
        (void)cluster_run_until(cluster, sim_op_done, ops[1], 10 * TIME_S);
        for (uint32_t rank = 0; rank < 4; rank++) {
            assert_int_equal(ops[0]->parts[rank].result.status, STATUS_MISMATCH);
            assert_int_equal(ops[1]->parts[rank].result.status, STATUS_MISMATCH);
            assert_non_null(strstr(ops[0]->parts[rank].result.text, texts[1]));
        }
        sim_op_finish(behind, 10 * TIME_S);
        while (comm->ops != NULL) {
            sim_op_free(comm->ops);
        }
    }
    sim_comm_free(comm);
    cluster_free(cluster);
}

/* The operations of a group run as one, with blocks of any size. */
static void test_groups(void **state)
{
    (void)state;
    static const uint32_t node_of_rank[] = {0, 1, 1, 2, 0, 2, 2};
    static const uint64_t counts[] = {0, 1, 7, 5000, 4096, 0, 16, 20011, 3};
    struct cluster *cluster;
    struct sim_comm *comm = form(&cluster, 21, 3, node_of_rank, 7);
    for (uint32_t turn = 0; turn < 6; turn++) {
        struct sim_op *ops[9];
        for (uint32_t i = 0; i < 9; i++) {
            ops[i] =
                sim_comm_post_all(comm, &(struct sim_call){.kind = OP_KIND_ALL_REDUCE,
                                                           .dtype = turn % 2 == 0 ? DTYPE_F32 : DTYPE_BF16,
                                                           .reduce = turn < 3 ? REDUCE_SUM : REDUCE_AVG,
                                                           .count = counts[i],
                                                           .in_place = i % 2 == 0,
                                                           .bucket_ops = 9,
                                                           .bucket_index = i});
        }
        for (uint32_t i = 0; i < 9; i++) {
            sim_op_finish(ops[i], 10 * TIME_S);
            sim_op_free(ops[i]);
        }
    }
    sim_comm_free(comm);
    cluster_free(cluster);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_between_nodes),      cmocka_unit_test(test_within_a_node_of_several),
        cmocka_unit_test(test_on_one_node),        cmocka_unit_test(test_blocks_of_two_sizes),
        cmocka_unit_test(test_groups_that_differ), cmocka_unit_test(test_groups),
    };
    return cluster_report(cmocka_run_group_tests(tests, NULL, NULL));
}
