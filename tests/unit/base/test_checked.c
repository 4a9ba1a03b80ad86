#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "daemon/base/checked.h"
#include "daemon/base/time.h"

static void test_add(void **state)
{
    (void)state;
    size_t size = 77;
    assert_true(checked_add_size(3, 4, &size));
    assert_int_equal(size, 7);
    assert_true(checked_add_size(SIZE_MAX, 0, &size));
    assert_true(size == SIZE_MAX);
    assert_true(checked_add_size(SIZE_MAX - 5, 5, &size));
    assert_true(size == SIZE_MAX);
    assert_false(checked_add_size(SIZE_MAX - 5, 6, &size));
    assert_false(checked_add_size(SIZE_MAX, SIZE_MAX, &size));

    uint64_t value = 77;
    assert_true(checked_add_u64(UINT64_MAX - 1, 1, &value));
    assert_true(value == UINT64_MAX);
    assert_false(checked_add_u64(UINT64_MAX, 1, &value));
    assert_false(checked_add_u64(1ull << 63, 1ull << 63, &value));
}

static void test_multiply(void **state)
{
    (void)state;
    uint64_t value = 77;
    assert_true(checked_mul_u64(6, 7, &value));
    assert_int_equal(value, 42);
    assert_true(checked_mul_u64(0, UINT64_MAX, &value));
    assert_int_equal(value, 0);
    assert_true(checked_mul_u64(UINT64_MAX, 1, &value));
    assert_true(value == UINT64_MAX);
    assert_true(checked_mul_u64(1ull << 32, (1ull << 32) - 1, &value));
    assert_true(value == (1ull << 32) * ((1ull << 32) - 1));
    assert_false(checked_mul_u64(1ull << 32, 1ull << 32, &value));
}

static void test_range(void **state)
{
    (void)state;
    assert_true(checked_range(0, 10, 10));
    assert_true(checked_range(4, 6, 10));
    assert_false(checked_range(4, 7, 10));
    assert_true(checked_range(10, 0, 10));
    assert_false(checked_range(10, 1, 10));
    assert_false(checked_range(11, 0, 10));
    assert_true(checked_range(0, 0, 0));
    assert_false(checked_range(UINT64_MAX, 2, 10)); /* the sum would wrap to 1 */
    assert_false(checked_range(2, UINT64_MAX, 10));
    assert_true(checked_range(1, UINT64_MAX - 1, UINT64_MAX));
    assert_false(checked_range(2, UINT64_MAX - 1, UINT64_MAX));
}

static void test_time_saturates(void **state)
{
    (void)state;
    assert_true(time_after(5, 7) == 12);
    assert_true(time_after(TIME_NEVER - 7, 6) == TIME_NEVER - 1);
    assert_true(time_after(TIME_NEVER - 7, 7) == TIME_NEVER);
    assert_true(time_after(TIME_NEVER - 7, 8) == TIME_NEVER);
    assert_true(time_after(5, TIME_NEVER) == TIME_NEVER);
    assert_true(time_after(TIME_NEVER, 0) == TIME_NEVER);
    assert_true(time_min(3, TIME_NEVER) == 3);
    assert_true(time_min(TIME_NEVER, 3) == 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_add),
        cmocka_unit_test(test_multiply),
        cmocka_unit_test(test_range),
        cmocka_unit_test(test_time_saturates),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
