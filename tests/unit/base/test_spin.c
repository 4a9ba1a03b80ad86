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
    struct spin spin = {0};
    uint64_t now_ns = 1;
    for (int i = 0; i < 8; i++) {
        spin_found(&spin, now_ns);
        spin_waited(&spin, SPIN_PAYS_NS - 1);
    }
    assert_int_equal(spin.length_ns, SPIN_MAX_NS);
    spin_found(&spin, now_ns);
    assert_true(spin_goes_on(&spin, now_ns + SPIN_MAX_NS - 1));
    assert_false(spin_goes_on(&spin, now_ns + SPIN_MAX_NS));
    for (int i = 0; i < 8; i++) {
        spin_found(&spin, now_ns);
        spin_waited(&spin, SPIN_PAYS_NS);
    }
    assert_int_equal(spin.length_ns, SPIN_MIN_NS);
}

static void test_nobody_spins_on_a_crowded_processor(void **state)
{
    (void)state;
    struct spin spin = {.length_ns = SPIN_MAX_NS};
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
                                       cmocka_unit_test(test_nobody_spins_on_a_crowded_processor)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
