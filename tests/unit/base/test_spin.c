#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "daemon/base/spin.h"

/* How long a thread polls before it sleeps. */

/* There are as many waits as finds, as with messages between nodes. So the length of the waits decides. */
static void test_short_waits_make_long_spins(void **state)
{
    (void)state;
    const uint64_t longest_ns = 100 * TIME_US;
    struct spin spin;
    spin_init(&spin, longest_ns / SPIN_WAKES);
    uint64_t now_ns = 1;
    for (int i = 0; i < 8; i++) {
        spin_waited(&spin, SPIN_PAYS * longest_ns - 1);
        spin_found(&spin, now_ns);
    }
    assert_int_equal(spin.length_ns, longest_ns);
    spin_found(&spin, now_ns);
    assert_true(spin_goes_on(&spin, now_ns + longest_ns - 1));
    assert_false(spin_goes_on(&spin, now_ns + longest_ns));
    for (int i = 0; i < 8; i++) {
        spin_waited(&spin, SPIN_PAYS * longest_ns);
        spin_found(&spin, now_ns);
    }
    assert_int_equal(spin.length_ns, SPIN_MIN_NS);
}

/* A program computes between its operations. Timers and acknowledgements end commd's sleeps early: with
 * longer spins, commd would take the processor from the program. */
static void test_sleeps_that_end_without_work_are_one_wait(void **state)
{
    (void)state;
    const uint64_t longest_ns = 100 * TIME_US, now_ns = 1;
    struct spin spin;
    spin_init(&spin, longest_ns / SPIN_WAKES);
    spin.length_ns = longest_ns;
    for (int i = 0; i < 8; i++) {
        for (int sleep = 0; sleep < 5; sleep++) {
            spin_waited(&spin, longest_ns / 2);
        }
        spin_found(&spin, now_ns);
        spin_found(&spin, now_ns); /* nothing was waited for */
    }
    assert_int_equal(spin.length_ns, SPIN_MIN_NS);
}

/* The longest spin follows what being woken costs, within its bounds. */
static void test_slow_wakes_make_longer_spins(void **state)
{
    (void)state;
    const struct {
        uint64_t wake_ns, longest_ns;
    } cases[] = {{0, SPIN_LONGEST_MIN_NS},
                 {SPIN_LONGEST_MIN_NS / SPIN_WAKES, SPIN_LONGEST_MIN_NS},
                 {40 * TIME_US, SPIN_WAKES * 40 * TIME_US},
                 {SPIN_LONGEST_MAX_NS, SPIN_LONGEST_MAX_NS},
                 {UINT64_MAX, SPIN_LONGEST_MAX_NS}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct spin spin;
        spin_init(&spin, cases[i].wake_ns);
        assert_int_equal(spin.longest_ns, cases[i].longest_ns);
        assert_false(spin_goes_on(&spin, 1));
    }
}

static void test_nobody_spins_on_a_crowded_processor(void **state)
{
    (void)state;
    struct spin spin = {.length_ns = SPIN_LONGEST_MIN_NS};
    uint64_t now_ns = TIME_S, rest_ns = SPIN_REST_MIN_NS;
    for (int i = 0; i < 6; i++) {
        spin_found(&spin, now_ns);
        assert_true(spin_goes_on(&spin, now_ns));
        spin_yielded(&spin, now_ns, now_ns + SPIN_CROWDED_NS);
        assert_true(spin_goes_on(&spin, now_ns));
        spin_yielded(&spin, now_ns, now_ns + SPIN_CROWDED_NS + 1);
        now_ns += SPIN_CROWDED_NS + 1;
        assert_int_equal(spin.rest_until_ns, now_ns + rest_ns);
        spin_found(&spin, now_ns + rest_ns - 1);
        assert_false(spin_goes_on(&spin, now_ns));
        now_ns += rest_ns;
        rest_ns = 4 * rest_ns < SPIN_REST_MAX_NS ? 4 * rest_ns : SPIN_REST_MAX_NS;
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_short_waits_make_long_spins),
                                       cmocka_unit_test(test_sleeps_that_end_without_work_are_one_wait),
                                       cmocka_unit_test(test_slow_wakes_make_longer_spins),
                                       cmocka_unit_test(test_nobody_spins_on_a_crowded_processor)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
