#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "daemon/base/lag.h"
#include "daemon/base/time.h"

#define START_NS (1000 * TIME_S)

static void test_the_worst_counts(void **state)
{
    (void)state;
    struct lag lag = {0};
    assert_int_equal(lag_worst_ns(&lag, START_NS), 0);
    lag_note(&lag, START_NS - 7, START_NS);
    assert_int_equal(lag_worst_ns(&lag, START_NS), 7);
    lag_note(&lag, START_NS + 1, START_NS + 4);
    assert_int_equal(lag_worst_ns(&lag, START_NS + 4), 7);
    lag_note(&lag, START_NS + 4, START_NS + 4 + 60 * TIME_MS);
    assert_int_equal(lag_worst_ns(&lag, START_NS + TIME_S), 60 * TIME_MS);
}

/* Nothing was due, or it came in time. */
static void test_waiting_is_no_lag(void **state)
{
    (void)state;
    struct lag lag = {0};
    static const uint64_t due_ns[] = {0, TIME_NEVER, START_NS, START_NS + 1, TIME_NEVER - 1};
    for (size_t i = 0; i < sizeof due_ns / sizeof due_ns[0]; i++) {
        lag_note(&lag, due_ns[i], START_NS);
        assert_int_equal(lag_worst_ns(&lag, START_NS), 0);
    }
}

static void test_the_worst_is_forgotten_after_two_windows(void **state)
{
    (void)state;
    struct lag lag = {0};
    lag_note(&lag, START_NS - 5, START_NS);
    assert_int_equal(lag_worst_ns(&lag, START_NS + LAG_WINDOW_NS), 5); /* nothing was noted since */
    assert_int_equal(lag_worst_ns(&lag, START_NS + 2ull * LAG_WINDOW_NS - 1), 5);
    assert_int_equal(lag_worst_ns(&lag, START_NS + 2ull * LAG_WINDOW_NS), 0);
    uint64_t next_ns = START_NS + LAG_WINDOW_NS;
    lag_note(&lag, next_ns - 2, next_ns);
    assert_int_equal(lag_worst_ns(&lag, next_ns), 5); /* of the window before */
    assert_int_equal(lag_worst_ns(&lag, next_ns + LAG_WINDOW_NS - 1), 5);
    assert_int_equal(lag_worst_ns(&lag, next_ns + LAG_WINDOW_NS), 2);
    uint64_t later_ns = next_ns + 2ull * LAG_WINDOW_NS;
    lag_note(&lag, 0, later_ns); /* a window passed without a turn */
    assert_int_equal(lag_worst_ns(&lag, later_ns), 0);
}

/* A time before the window began, as another thread's clock may say. */
static void test_an_earlier_time(void **state)
{
    (void)state;
    struct lag lag = {0};
    lag_note(&lag, START_NS - 5, START_NS);
    assert_int_equal(lag_worst_ns(&lag, START_NS - TIME_S), 5);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_worst_counts),
        cmocka_unit_test(test_waiting_is_no_lag),
        cmocka_unit_test(test_the_worst_is_forgotten_after_two_windows),
        cmocka_unit_test(test_an_earlier_time),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
