#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "daemon/base/random.h"
#include "daemon/base/ranges.h"

/* Neighbours become one range, in whatever order they come; others stay apart. */
static void test_neighbours(void **state)
{
    (void)state;
    struct ranges set = {0};
    uint32_t code = 0;
    assert_false(ranges_find(&set, 5, NULL));
    assert_true(ranges_add(&set, 5, 1, 1, 8));
    assert_true(ranges_add(&set, 7, 2, 1, 8));
    assert_int_equal(set.count, 2);
    assert_true(ranges_add(&set, 6, 1, 1, 8));
    assert_int_equal(set.count, 1);
    assert_true(ranges_add(&set, 4, 1, 1, 8));
    assert_int_equal(set.count, 1);
    assert_true(ranges_add(&set, 9, 1, 2, 8));
    assert_int_equal(set.count, 2);
    assert_true(ranges_find(&set, 9, &code));
    assert_int_equal(code, 2);
    assert_true(ranges_find(&set, 4, &code));
    assert_int_equal(code, 1);
    assert_false(ranges_find(&set, 3, NULL));
    assert_false(ranges_find(&set, 10, NULL));
    ranges_free(&set);
}

/* A number keeps its first code. ranges_gap finds the gaps one by one. */
static void test_gaps(void **state)
{
    (void)state;
    struct ranges set = {0};
    uint32_t code = 0;
    uint64_t first = 0;
    assert_true(ranges_add(&set, 3, 2, 1, 8));
    assert_true(ranges_add(&set, 8, 1, 1, 8));
    assert_int_equal(ranges_gap(&set, &first, 20), 3);
    first = 3;
    assert_int_equal(ranges_gap(&set, &first, 20), 3);
    assert_int_equal(first, 5);
    first = 8;
    assert_int_equal(ranges_gap(&set, &first, 20), 11);
    first = 3;
    assert_int_equal(ranges_gap(&set, &first, 5), 0);
    assert_true(ranges_add(&set, 0, 20, 2, 8));
    for (uint64_t number = 0; number < 20; number++) {
        assert_true(ranges_find(&set, number, &code));
        assert_int_equal(code, number == 3 || number == 4 || number == 8 ? 1 : 2);
    }
    ranges_drop_below(&set, 9);
    assert_false(ranges_find(&set, 8, NULL));
    assert_true(ranges_find(&set, 9, NULL));
    ranges_free(&set);
}

/* A full set forgets its lowest range. A number that extends a range needs no place. */
static void test_full(void **state)
{
    (void)state;
    enum { MAX = 16 };
    struct ranges set = {0};
    for (uint64_t i = 0; i < MAX; i++) {
        assert_true(ranges_add(&set, 10 + 2 * i, 1, 0, MAX));
    }
    assert_true(ranges_add(&set, 11 + 2 * (MAX - 1), UINT64_C(1) << 33, 0, MAX)); /* two more ranges */
    assert_int_equal(set.count, MAX);
    assert_false(ranges_find(&set, 10, NULL));
    assert_true(ranges_find(&set, 11 + 2 * (MAX - 1) + (UINT64_C(1) << 33) - 1, NULL));
    uint64_t lowest = set.items[0].first;
    assert_true(ranges_add(&set, lowest - 2, 1, 0, MAX)); /* forgotten at once */
    assert_false(ranges_find(&set, lowest - 2, NULL));
    assert_true(ranges_add(&set, lowest + 1, 1, 0, MAX));
    assert_int_equal(set.count, MAX - 1);
    assert_true(ranges_find(&set, lowest, NULL));
    ranges_free(&set);
}

/* Compares with an array of codes, in which 0 means none. */
static void test_random(void **state)
{
    (void)state;
    enum { NUMBERS = 200, ROUNDS = 200 };
    struct random random;
    random_seed(&random, 12);
    for (unsigned round = 0; round < ROUNDS; round++) {
        struct ranges set = {0};
        uint32_t codes[NUMBERS] = {0};
        for (unsigned i = 0; i < 40; i++) {
            uint64_t first = random_below(&random, NUMBERS - 9), count = 1 + random_below(&random, 8);
            uint32_t code = 1 + (uint32_t)random_below(&random, 2);
            assert_true(ranges_add(&set, first, count, code, NUMBERS));
            for (uint64_t number = first; number < first + count; number++) {
                codes[number] = codes[number] != 0 ? codes[number] : code;
            }
            for (uint64_t number = 0; number < NUMBERS; number++) {
                uint32_t found = 0;
                assert_int_equal(ranges_find(&set, number, &found), codes[number] != 0);
                assert_int_equal(found, codes[number]);
            }
            for (uint32_t at = 1; at < set.count; at++) {
                const struct range *low = &set.items[at - 1], *high = &set.items[at];
                assert_true(low->first + low->count + (low->code == high->code) <= high->first);
            }
        }
        ranges_free(&set);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_neighbours),
        cmocka_unit_test(test_gaps),
        cmocka_unit_test(test_full),
        cmocka_unit_test(test_random),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
