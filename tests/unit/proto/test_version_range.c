#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "proto/version_range.h"

static bool speaks(struct version_range range, uint32_t version)
{
    uint32_t oldest = range.oldest == 0 ? range.newest : range.oldest;
    return version >= oldest && version <= range.newest;
}

/* Compares with a search of every version. Both sides choose the same version. Some of the ranges are empty
 * or begin at 0. */
static void test_newest_of_both(void **state)
{
    (void)state;
    enum { MOST = 6 };
    for (uint32_t i = 0; i < MOST * MOST * MOST * MOST; i++) {
        const struct version_range a = {i % MOST, i / MOST % MOST};
        const struct version_range b = {i / (MOST * MOST) % MOST, i / (MOST * MOST * MOST)};
        uint32_t expected = 0;
        for (uint32_t version = 1; version < MOST; version++) {
            expected = speaks(a, version) && speaks(b, version) ? version : expected;
        }
        assert_int_equal(version_choose(a, b), expected);
        assert_int_equal(version_choose(b, a), expected);
    }
}

static void test_extremes(void **state)
{
    (void)state;
    const struct version_range ours = {2, 4};
    assert_int_equal(version_choose(ours, (struct version_range){1, UINT32_MAX}), 4);
    assert_int_equal(version_choose(ours, (struct version_range){0, UINT32_MAX}), 0);
    assert_int_equal(version_choose(ours, (struct version_range){UINT32_MAX, 3}), 0);
    assert_int_equal(version_choose(ours, (struct version_range){UINT32_MAX, UINT32_MAX}), 0);
}

static void test_texts(void **state)
{
    (void)state;
    char text[VERSION_RANGE_TEXT_BYTES];
    assert_string_equal(version_range_text((struct version_range){4, 4}, text, sizeof text), "version 4");
    assert_string_equal(version_range_text((struct version_range){0, 4}, text, sizeof text), "version 4");
    assert_string_equal(version_range_text((struct version_range){2, 4}, text, sizeof text),
                        "versions 2 to 4");
    assert_string_equal(
        version_range_text((struct version_range){UINT32_MAX - 1, UINT32_MAX}, text, sizeof text),
        "versions 4294967294 to 4294967295");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_newest_of_both),
        cmocka_unit_test(test_extremes),
        cmocka_unit_test(test_texts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
