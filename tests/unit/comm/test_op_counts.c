#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>

#include "daemon/base/time.h"
#include "daemon/comm/op_counts.h"

/* Where an operation that ended is counted. */

static struct op_counts counts;

static int begin(void **state)
{
    (void)state;
    counts = (struct op_counts){0};
    return 0;
}

static const struct op_counts_cell *add(enum op_kind kind, uint64_t size_bytes, enum status result,
                                        uint64_t latency_ns, uint64_t run_ns)
{
    struct op_end end = {
        .kind = kind, .result = result, .size_bytes = size_bytes, .latency_ns = latency_ns, .run_ns = run_ns};
    op_counts_add(&counts, &end);
    unsigned class = 0;
    while (size_bytes > op_bounds_class_bytes[class]) {
        class ++;
    }
    return &counts.cells[kind][class];
}

static void test_classes(void **state)
{
    (void)state;
    const uint64_t sizes[] = {0,       1,       4096,     4097,     65536,     65537,
                              1048576, 1048577, 16777216, 16777217, UINT64_MAX};
    const unsigned expected[] = {0, 0, 0, 1, 1, 2, 2, 3, 3, 4, 4};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        uint64_t before = counts.cells[OP_KIND_BROADCAST][expected[i]].results[STATUS_OK];
        (void)add(OP_KIND_BROADCAST, sizes[i], STATUS_OK, TIME_MS, TIME_MS);
        assert_int_equal(counts.cells[OP_KIND_BROADCAST][expected[i]].results[STATUS_OK], before + 1);
    }
}

static void test_success(void **state)
{
    (void)state;
    const struct op_counts_cell *cell = add(OP_KIND_ALL_REDUCE, 2000, STATUS_OK, 5 * TIME_US, 2 * TIME_US);
    assert_int_equal(cell->results[STATUS_OK], 1);
    assert_int_equal(cell->bytes, 2000);
    assert_int_equal(cell->latency_ns.counts[2], 1); /* above 3 us, at most 10 us */
    assert_int_equal(cell->latency_ns.sum, 5 * TIME_US);
    assert_int_equal(cell->bandwidth.counts[6], 1); /* 1 GB/s: at most that */
    assert_int_equal(cell->bandwidth.sum, 1000000000);
}

/* Failures count by their result, and are in no histogram: a deadline is no latency. */
static void test_failure(void **state)
{
    (void)state;
    const struct op_counts_cell *cell = add(OP_KIND_SEND, 10, STATUS_TIMED_OUT, 60 * TIME_S, 60 * TIME_S);
    assert_int_equal(cell->results[STATUS_TIMED_OUT], 1);
    assert_int_equal(cell->results[STATUS_OK], 0);
    assert_int_equal(cell->bytes, 0);
    assert_int_equal(histogram_count(&cell->latency_ns), 0);
    assert_int_equal(histogram_count(&cell->bandwidth), 0);
}

/* A barrier moves no bytes. An operation that took no time has no bandwidth. */
static void test_no_bandwidth(void **state)
{
    (void)state;
    const struct op_counts_cell *cell = add(OP_KIND_BARRIER, 0, STATUS_OK, TIME_MS, TIME_MS);
    assert_int_equal(histogram_count(&cell->bandwidth), 0);
    assert_int_equal(histogram_count(&cell->latency_ns), 1);
    cell = add(OP_KIND_ALL_REDUCE, 8, STATUS_OK, 0, 0);
    assert_int_equal(histogram_count(&cell->bandwidth), 0);
    assert_int_equal(cell->latency_ns.counts[0], 1);
}

static void test_beyond_every_bound(void **state)
{
    (void)state;
    const struct op_counts_cell *cell = add(OP_KIND_ALL_REDUCE, UINT64_MAX, STATUS_OK, UINT64_MAX, 1);
    assert_int_equal(cell->latency_ns.counts[HISTOGRAM_BUCKETS_MAX], 1);
    assert_int_equal(cell->bandwidth.counts[HISTOGRAM_BUCKETS_MAX], 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_classes, begin),
        cmocka_unit_test_setup(test_success, begin),
        cmocka_unit_test_setup(test_failure, begin),
        cmocka_unit_test_setup(test_no_bandwidth, begin),
        cmocka_unit_test_setup(test_beyond_every_bound, begin),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
