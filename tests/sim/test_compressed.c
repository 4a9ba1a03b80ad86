#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "tests/sim/conditions.h"
#include "tests/sim/sim_comm.h"

/*
 * Compressed all-reduces among simulated nodes. The bits are identical everywhere, errors are as small as
 * documented, and fewer bytes are sent. With error feedback, sums over many steps lose nothing.
 */
enum { NODES = 4, RANKS = 7, COUNT = 6000 };
static const uint32_t node_of_rank[RANKS] = {0, 1, 2, 3, 1, 0, 2};
static struct sim_comm *start(struct cluster **cluster, uint32_t seed)
{
    *cluster = cluster_new(&(struct cluster_options){.seed = cluster_seed(seed),
                                                     .node_count = NODES,
                                                     .conditions = rough,
                                                     .datagrams = true,
                                                     .slice_bytes = 8192});
    struct sim_comm *comm = sim_comm_new(*cluster, "small", RANKS, node_of_rank);
    sim_comm_form(comm, NULL, 10 * TIME_S);
    return comm;
}

static float at(const unsigned char *bytes, uint32_t i)
{
    float value;
    memcpy(&value, bytes + i * sizeof value, sizeof value);
    return value;
}

static void test_results_are_near_and_identical(void **state)
{
    static const enum compression kinds[] = {COMPRESSION_BF16, COMPRESSION_F8};
    /* The error of each of the NODES - 1 contributions, and of the sum: |x| / 2^8, or 1/16 of the block's
     * magnitudes. */
    static const double relative[] = {1.0 / 256, 1.0 / 16};
    (void)state;
    for (uint32_t k = 0; k < 2; k++) {
        for (uint32_t avg = 0; avg < 2; avg++) {
            struct cluster *cluster;
            struct sim_comm *comm = start(&cluster, k * 2 + avg);
            struct sim_op *op =
                sim_comm_post_all(comm, &(struct sim_call){.kind = OP_KIND_ALL_REDUCE,
                                                           .dtype = DTYPE_F32,
                                                           .reduce = avg ? REDUCE_AVG : REDUCE_SUM,
                                                           .count = COUNT,
                                                           .in_place = avg == 1,
                                                           .compression = kinds[k]});
            sim_op_finish(op, 10 * TIME_S); /* this checks that all ranks have the same bits */
            for (uint32_t i = 0; i < COUNT; i++) {
                double exact = 0, magnitude = 0;
                for (uint32_t r = 0; r < RANKS; r++) {
                    double x = (double)at(op->parts[r].input.original, i);
                    exact += x;
                    magnitude += fabs(x);
                }
                double off = fabs((double)at(op->parts[0].output.bytes, i) * (avg ? RANKS : 1) - exact);
                if (off > (magnitude + 7) * relative[k] * 2) {
                    fail_msg("%s, element %u: off by %g of %g", compression_text(kinds[k]), i, off, exact);
                }
            }
            sim_op_free(op);
            sim_comm_free(comm);
            cluster_free(cluster);
        }
    }
}

static uint64_t bytes_of(enum compression compression)
{
    struct cluster *cluster;
    struct sim_comm *comm = start(&cluster, 77);
    struct network_counters before, after;
    network_counters(cluster->network, &before);
    sim_comm_run(comm, &(struct sim_call){.kind = OP_KIND_ALL_REDUCE,
                                          .dtype = DTYPE_F32,
                                          .reduce = REDUCE_SUM,
                                          .count = 100000,
                                          .compression = compression});
    network_counters(cluster->network, &after);
    sim_comm_free(comm);
    cluster_free(cluster);
    return after.stream_bytes - before.stream_bytes;
}

static void test_fewer_bytes_are_sent(void **state)
{
    (void)state;
    uint64_t plain = bytes_of(COMPRESSION_NONE);
    assert_true(bytes_of(COMPRESSION_BF16) < plain * 6 / 10);
    assert_true(bytes_of(COMPRESSION_F8) < plain * 35 / 100);
    assert_true(bytes_of(COMPRESSION_TOP_K) < plain / 10);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_results_are_near_and_identical),
        cmocka_unit_test(test_fewer_bytes_are_sent),
    };
    return cluster_report(cmocka_run_group_tests(tests, NULL, NULL));
}
