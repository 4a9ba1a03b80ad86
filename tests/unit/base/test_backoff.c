#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "daemon/base/backoff.h"

#define MIN_NS (100 * TIME_MS)
#define MAX_NS (5 * TIME_S)

static void test_waits_double_up_to_the_most(void **state)
{
    (void)state;
    struct random random;
    struct backoff backoff = {0};
    uint64_t whole_ns = MIN_NS;
    random_seed(&random, 1);
    for (uint32_t failures = 1; failures <= 100; failures++) {
        backoff_failed(&backoff, MIN_NS, MAX_NS, &random, TIME_S);
        assert_int_equal(backoff.failures, failures);
        assert_in_range(backoff.next_ns - TIME_S, whole_ns / 2, whole_ns);
        whole_ns = time_min(2 * whole_ns, MAX_NS);
    }
}

static void test_nodes_do_not_meet_at_once(void **state)
{
    (void)state;
    struct random random;
    struct backoff backoffs[2] = {{0}};
    random_seed(&random, 1);
    for (uint32_t i = 0; i < 2; i++) {
        backoff_failed(&backoffs[i], MIN_NS, MAX_NS, &random, TIME_S);
    }
    assert_int_not_equal(backoffs[0].next_ns, backoffs[1].next_ns);
}

static void test_the_end_of_time(void **state)
{
    (void)state;
    struct random random;
    struct backoff backoff = {0};
    random_seed(&random, 1);
    backoff_failed(&backoff, MIN_NS, MAX_NS, &random, TIME_NEVER - 1);
    assert_true(backoff.next_ns == TIME_NEVER);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_waits_double_up_to_the_most),
        cmocka_unit_test(test_nodes_do_not_meet_at_once),
        cmocka_unit_test(test_the_end_of_time),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
