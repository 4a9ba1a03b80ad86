#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "daemon/host/reduce.h"
#include "tests/lib/elements.h"
#include "tests/sim/conditions.h"
#include "tests/sim/sim_comm.h"

/*
 * Floats of which many are NaN with different payloads, infinities or zeros of both signs. All ranks must get
 * the same bits. With one schedule, every run must give the same bits, whatever comes first.
 */
enum { NODES = 3, RANKS = 6, COUNT = 2001, RUNS = 2 };
static const uint32_t node_of_rank[RANKS] = {0, 1, 2, 2, 0, 1};

/* Every second part is special. Each rank has payloads of its own. */
static void put_special(enum dtype dtype, uint32_t rank, unsigned char *bytes)
{
    struct element_layout layout = element_layout(dtype);
    size_t size = element_part_bytes(dtype);
    uint64_t sign = UINT64_C(1) << (8 * size - 1);
    uint64_t infinite = (sign - 1) >> layout.fraction << layout.fraction;
    uint64_t quiet = infinite | UINT64_C(1) << (layout.fraction - 1);
    const uint64_t specials[] = {quiet | (rank + 1),
                                 sign | quiet | (rank + 1),
                                 infinite | (rank + 1),
                                 infinite,
                                 sign | infinite,
                                 0,
                                 sign};
    for (size_t i = 0; i < COUNT * element_parts(dtype); i++) {
        size_t which = (i * 31 + rank * 17 + i / 7 * rank) % 14;
        if (which < sizeof specials / sizeof specials[0]) {
            memcpy(bytes + i * size, &specials[which], size);
        } else {
            element_put_real(dtype, bytes, i, ((double)(i * 13 % 101) - 49.7) / (rank + 3));
        }
    }
}

/* Runs the operation. Writes to `result` what rank 0 got, and checks that the other ranks got the same. */
static void run_special(struct sim_comm *comm, enum dtype dtype, enum reduce reduce, unsigned char *result)
{
    struct sim_op *op = sim_op_new(
        comm,
        &(struct sim_call){.kind = OP_KIND_ALL_REDUCE, .dtype = dtype, .reduce = reduce, .count = COUNT});
    size_t bytes = COUNT * dtype_size_bytes(dtype), size = element_part_bytes(dtype), nans = 0;
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        sim_op_post(op, rank);
        put_special(dtype, rank, op->parts[rank].input.bytes); /* it runs only below */
    }
    assert_true(cluster_run_until(comm->cluster, sim_op_done, op, 10 * TIME_S));
    memcpy(result, op->parts[0].output.bytes, bytes);
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        assert_int_equal(op->parts[rank].result.status, STATUS_OK);
        assert_memory_equal(op->parts[rank].output.bytes, result, bytes);
    }
    for (size_t i = 0; i < bytes; i += size) {
        uint64_t bits = 0;
        memcpy(&bits, result + i, size);
        nans += element_is_nan(dtype, bits);
    }
    assert_in_range(nans, bytes / size / 2, bytes / size - 1);
    sim_op_free(op);
}

static void run_all(const char *algorithm, uint32_t seed, unsigned char (*results)[COUNT * 16])
{
    static const enum dtype dtypes[] = {DTYPE_F64, DTYPE_F32, DTYPE_F16, DTYPE_C64};
    struct cluster *cluster = cluster_new(&(struct cluster_options){
        .seed = cluster_seed(seed), .node_count = NODES, .conditions = rough, .datagrams = true});
    struct sim_comm *comm = sim_comm_new(cluster, "special", RANKS, node_of_rank);
    sim_comm_form(comm, &(struct sim_options){.algorithms = algorithm}, 10 * TIME_S);
    for (uint32_t i = 0; i < 4; i++) {
        run_special(comm, dtypes[i], REDUCE_SUM, results[2 * i]);
        run_special(comm, dtypes[i], REDUCE_PROD, results[2 * i + 1]);
    }
    sim_comm_free(comm);
    cluster_free(cluster);
}

static void test_of_nan_and_infinity(void **state)
{
    static const char *const algorithms[] = {"all_reduce=direct", "all_reduce=ring",
                                             "all_reduce=recursive_doubling", "all_reduce=halving_doubling",
                                             "all_reduce=tree"};
    static const char *const levels[] = {"portable", "avx2", "avx512"};
    static unsigned char results[RUNS][8][COUNT * 16];
    (void)state;
    for (size_t level = 0; level < sizeof levels / sizeof levels[0]; level++) {
        if (host_reduce_force_level(levels[level], NULL) != STATUS_OK) {
            continue;
        }
        for (uint32_t i = 0; i < sizeof algorithms / sizeof algorithms[0]; i++) {
            memset(results, 0, sizeof results);
            for (uint32_t run = 0; run < RUNS; run++) {
                run_all(algorithms[i], i * RUNS + run, results[run]);
            }
            assert_memory_equal(results[0], results[1], sizeof results[0]);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_of_nan_and_infinity),
    };
    return cluster_report(cmocka_run_group_tests(tests, NULL, NULL));
}
