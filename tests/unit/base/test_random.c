#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

#include "daemon/base/random.h"
#include "tests/lib/chance.h"

/* xoshiro256** from the state {1, 2, 3, 4}, computed by hand. By its definition, the result is rotl(s1 * 5,
 * 7) * 9; then comes the linear step. */
static void test_generator_follows_its_definition(void **state)
{
    (void)state;
    struct random random = {.state = {1, 2, 3, 4}};
    /* 2 * 5 = 10; rotl by 7 = 1280; * 9 = 11520. */
    assert_true(random_u64(&random) == 11520);
    /* s2 = 3^1 = 2, s3 = 4^2 = 6, s1 = 2^2 = 0, s0 = 1^6 = 7, s2 ^= 2 << 17 = 262146, s3 = rotl(6, 45). */
    assert_true(random.state[0] == 7);
    assert_true(random.state[1] == 0);
    assert_true(random.state[2] == 262146);
    assert_true(random.state[3] == 6ull << 45);
    assert_true(random_u64(&random) == 0);
    /* s2 = 262146^7 = 262149, s3 = 6<<45 ^ 0, s1 = 0^262149, s0 = 7 ^ 6<<45. */
    assert_true(random.state[1] == 262149);
    assert_true(random_u64(&random) == (262149ull * 5 << 7) * 9);
}

static void test_seed_reproduces_and_separates(void **state)
{
    (void)state;
    struct random a;
    struct random b;
    struct random c;
    memset(&a, 0xff, sizeof(a));
    memset(&b, 0x00, sizeof(b));
    random_seed(&a, 42);
    random_seed(&b, 42);
    random_seed(&c, 43);
    unsigned same_as_c = 0;
    for (int i = 0; i < 1000; i++) {
        uint64_t value = random_u64(&a);
        assert_true(value == random_u64(&b));
        same_as_c += value == random_u64(&c);
    }
    assert_int_equal(same_as_c, 0);

    random_seed(
        &a,
        0); /* the all-zero state, in which the generator would stand still, does not come from any seed */
    assert_true((a.state[0] | a.state[1] | a.state[2] | a.state[3]) != 0);
    assert_true(a.state[0] == 0xe220a8397b1dcdafu); /* splitmix64's first number from 0 */
}

static void test_below_stays_below_and_reaches_all(void **state)
{
    (void)state;
    struct random random;
    random_seed(&random, 7);
    static const uint64_t limits[] = {1, 2, 3, 5, 6, 7, 64, 100};
    for (size_t l = 0; l < sizeof(limits) / sizeof(limits[0]); l++) {
        unsigned hits[100] = {0};
        unsigned draws = 2000 * (unsigned)limits[l];
        for (unsigned i = 0; i < draws; i++) {
            uint64_t value = random_below(&random, limits[l]);
            assert_true(value < limits[l]);
            hits[value]++;
        }
        for (uint64_t value = 0; value < limits[l]; value++) {
            assert_in_range(hits[value], limits[l] == 1 ? 2000 : 1700, 2300); /* 2000 ± more than 6 sigma */
        }
    }
}

/* The limit is 3/4 of 2^64. A generator that does not draw again would give some results twice as often as
 * others. With a modulo, these are the lowest third; with a product, every third result. */
static void test_below_is_unbiased_for_large_limits(void **state)
{
    (void)state;
    struct random random;
    random_seed(&random, 11);
    uint64_t third = 1ull << 62;
    unsigned thirds[3] = {0};
    unsigned residues[3] = {0};
    for (int i = 0; i < 30000; i++) {
        uint64_t value = random_below(&random, 3 * third);
        assert_true(value < 3 * third);
        thirds[value / third]++;
        residues[value % 3]++;
    }
    for (int i = 0; i < 3; i++) {
        assert_in_range(thirds[i], 9500, 10500); /* 10000 ± 6 sigma */
        assert_in_range(residues[i], 9500, 10500);
    }
    for (int i = 0; i < 1000; i++) {
        assert_true(random_below(&random, UINT64_MAX) < UINT64_MAX);
    }
}

static void test_chance(void **state)
{
    (void)state;
    struct random random;
    struct random twin;
    random_seed(&random, 13);
    twin = random;
    unsigned hits = 0;
    for (int i = 0; i < 10000; i++) {
        assert_false(random_chance(&random, 0.0));
        assert_true(random_chance(&random, 1.0));
        assert_false(random_chance(&random, -1.0));
        assert_true(random_chance(&random, 2.0));
        hits += random_chance(&random, 0.25);
    }
    assert_in_range(hits, 2240, 2760); /* 2500 ± 6 sigma */
    for (int i = 0; i < 50000; i++) {
        (void)random_u64(&twin);
    }
    assert_memory_equal(&random, &twin, sizeof(random)); /* it draws one number, whatever the probability */
}

static void test_secure_fills_everything(void **state)
{
    (void)state;
    struct error error;
    enum { SIZE = 1000 };
    uint8_t guarded[SIZE + 2];
    bool differs_from_poison[SIZE] = {false};
    for (unsigned round = 0; round < 8; round++) {
        memset(guarded, 0x5c, sizeof(guarded));
        assert_int_equal(random_secure(guarded + 1, SIZE, &error), STATUS_OK);
        assert_int_equal(guarded[0], 0x5c);
        assert_int_equal(guarded[SIZE + 1], 0x5c);
        for (size_t i = 0; i < SIZE; i++) {
            differs_from_poison[i] |= guarded[i + 1] != 0x5c;
        }
    }
    for (size_t i = 0; i < SIZE; i++) {
        assert_true(differs_from_poison[i]); /* 2^-64 each to fail by chance */
    }
    assert_int_equal(random_secure(guarded, 0, &error), STATUS_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_generator_follows_its_definition),
        cmocka_unit_test(test_seed_reproduces_and_separates),
        cmocka_unit_test(test_below_stays_below_and_reaches_all),
        cmocka_unit_test(test_below_is_unbiased_for_large_limits),
        cmocka_unit_test(test_chance),
        cmocka_unit_test(test_secure_fills_everything),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
