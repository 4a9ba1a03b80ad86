#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "daemon/base/fair.h"

enum { MANY = 1000 };

/* One user has one entry, another has many: the one entry gets every second turn. */
static void test_turns(void **state)
{
    (void)state;
    struct fair fair = {0};
    struct fair_entry many[MANY] = {0}, one = {0};
    for (unsigned i = 0; i < MANY; i++) {
        fair_put(&fair, &many[i], 1000);
    }
    fair_put(&fair, &one, 1001);
    assert_int_equal(fair.count, MANY + 1);
    for (unsigned i = 0; i < MANY; i++) {
        assert_ptr_equal(fair_take(&fair), &many[i]);
        assert_ptr_equal(fair_take(&fair), &one);
        fair_put(&fair, &one, 1001);
    }
    assert_ptr_equal(fair_take(&fair), &one);
    assert_null(fair_take(&fair));
    assert_int_equal(fair.count, 0);
}

/* The entries of one user keep their order, even if an entry is put twice or taken out. */
static void test_order(void **state)
{
    (void)state;
    struct fair fair = {0};
    struct fair_entry entries[4] = {0};
    for (unsigned i = 0; i < 4; i++) {
        fair_put(&fair, &entries[i], 7);
    }
    fair_put(&fair, &entries[0], 7);
    fair_remove(&fair, &entries[1]);
    fair_remove(&fair, &entries[1]);
    assert_int_equal(fair.count, 3);
    assert_ptr_equal(fair_take(&fair), &entries[0]);
    assert_ptr_equal(fair_take(&fair), &entries[2]);
    fair_remove(&fair, &entries[3]);
    assert_null(fair_take(&fair));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_turns), cmocka_unit_test(test_order)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
