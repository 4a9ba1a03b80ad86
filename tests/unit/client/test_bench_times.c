#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "client/commctl/bench_times.h"

static struct bench_times times; /* half a MiB */

static void test_few(void **state)
{
    (void)state;
    bench_times_clear(&times);
    const double values_s[] = {5, 1, 4, 2, 3};
    for (size_t i = 0; i < sizeof values_s / sizeof values_s[0]; i++) {
        bench_times_add(&times, values_s[i]);
    }
    assert_int_equal(times.count, 5);
    assert_true(times.shortest_s == 1 && times.longest_s == 5);
    assert_true(bench_times_median_s(&times) == 3);
}

/* The i-th time is i, so the median shows whether those kept are spread over all. */
static void test_more_than_are_kept(void **state)
{
    (void)state;
    for (uint32_t count = BENCH_TIMES_MAX - 1; count < 10 * BENCH_TIMES_MAX; count += BENCH_TIMES_MAX / 3) {
        bench_times_clear(&times);
        for (uint32_t i = 0; i < count; i++) {
            bench_times_add(&times, (double)i);
        }
        assert_int_equal(times.count, count);
        assert_in_range(times.kept, count < BENCH_TIMES_MAX ? count : BENCH_TIMES_MAX / 2, BENCH_TIMES_MAX);
        for (uint32_t i = 0; i < times.kept; i++) {
            assert_true(times.values_s[i] == (double)i * times.stride);
        }
        assert_true(times.shortest_s == 0 && times.longest_s == (double)(count - 1));
        double off = bench_times_median_s(&times) - (double)count / 2;
        assert_true(off <= times.stride && off >= -(double)times.stride);
    }
}

/* Runs operations of this time on a virtual clock; returns how long that takes, and their number. */
static double duration_s(double operation_s, double wanted_s, uint32_t *done)
{
    double elapsed_s = 0;
    uint32_t batch, rounds = 0;
    for (*done = 0; (batch = bench_times_next_batch(*done, elapsed_s, wanted_s)) != 0; *done += batch) {
        assert_true(*done == 0 || batch <= *done);
        assert_in_range(++rounds, 1, 64);
        elapsed_s += batch * operation_s;
    }
    return elapsed_s;
}

static void test_the_time_bounds(void **state)
{
    (void)state;
    uint32_t done;
    for (double operation_s = 1e-7; operation_s < 0.1; operation_s *= 3) {
        double took_s = duration_s(operation_s, 2, &done);
        assert_true(took_s >= 2 - 1e-6 && took_s <= 2 + 2 * operation_s);
    }
    assert_true(duration_s(1e-6, 3600, &done) <=
                3600.1); /* the longest time, at a rate that is not reached */
    (void)duration_s(20, 1, &done);
    assert_int_equal(done, 3);
    (void)duration_s(1e-6, 0, &done);
    assert_int_equal(done, 3);
    (void)duration_s(0, 1, &done); /* a clock that stands still */
    assert_int_equal(done, BENCH_ITERATIONS_MAX);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_few),
        cmocka_unit_test(test_more_than_are_kept),
        cmocka_unit_test(test_the_time_bounds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
