#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "daemon/mesh/coordinate.h"

/* Network coordinates: nodes measure round trips to a few others, and estimate all of them. */

enum { NODES = 60, RACKS = 4, NEIGHBOURS = 8, ROUNDS = 400 };

static struct coordinate coordinates[NODES];
static struct random chance;

/* Round trips are 100 us within a rack, and 0.7 to 2.8 ms between racks, and each node adds a little. */
static uint64_t round_trip_ns(unsigned one, unsigned other)
{
    static const uint64_t between_us[RACKS][RACKS] = {
        {0, 700, 1400, 2100}, {700, 0, 900, 2000}, {1400, 900, 0, 2800}, {2100, 2000, 2800, 0}};
    uint64_t own_us = 50 + one % 7 + 50 + other % 7;
    return (between_us[one % RACKS][other % RACKS] + own_us) * TIME_US;
}

static void start(uint64_t seed)
{
    random_seed(&chance, seed);
    for (unsigned i = 0; i < NODES; i++) {
        coordinates[i] = coordinate_first();
    }
}

/* Each node measures its fixed neighbours, with noise of up to a fifth. `liar` tells of a place far away. */
static void run(unsigned rounds, unsigned liar)
{
    static const struct coordinate far = {{50000000, -50000000}, 40000000, 1};
    for (unsigned round = 0; round < rounds; round++) {
        for (unsigned i = 0; i < NODES; i++) {
            unsigned other = (i + 1 + (round % NEIGHBOURS) * 7) % NODES;
            uint64_t measured_ns = round_trip_ns(i, other) * (100 + random_below(&chance, 20)) / 100;
            coordinate_move(&coordinates[i], other == liar ? &far : &coordinates[other], measured_ns,
                            &chance);
        }
    }
}

static int compare(const void *left, const void *right)
{
    uint64_t a = *(const uint64_t *)left, b = *(const uint64_t *)right;
    return (a > b) - (a < b);
}

/* The given part of all pairs is estimated at least so well: in per mille of the true round trip. */
static uint64_t error_permille(unsigned part_percent, unsigned without)
{
    static uint64_t errors[NODES * NODES];
    size_t count = 0;
    for (unsigned i = 0; i < NODES; i++) {
        for (unsigned j = 0; j < i; j++) {
            uint64_t is_ns = round_trip_ns(i, j);
            uint64_t guess_ns = coordinate_round_trip_ns(&coordinates[i], &coordinates[j]);
            uint64_t off_ns = guess_ns > is_ns ? guess_ns - is_ns : is_ns - guess_ns;
            if (i != without && j != without) {
                errors[count++] = off_ns * 1000 / is_ns;
            }
        }
    }
    qsort(errors, count, sizeof errors[0], compare);
    return errors[count * part_percent / 100];
}

static void test_nodes_find_their_places(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 20; seed++) {
        start(seed);
        run(ROUNDS, NODES);
        uint64_t half = error_permille(50, NODES), most = error_permille(75, NODES);
        if (half > 200 || most > 500) {
            fail_msg("seed %llu: median error %llu, 75 %% below %llu per mille", (unsigned long long)seed,
                     (unsigned long long)half, (unsigned long long)most);
        }
        for (unsigned i = 0; i < NODES; i++) {
            assert_true(coordinate_is_sound(&coordinates[i]));
            assert_in_range(coordinates[i].error_permille, 1, COORDINATE_ERROR_MAX - 1);
        }
    }
}

/* One node that lies spoils the estimates of others a little, and they stay sound. */
static void test_a_liar(void **state)
{
    (void)state;
    start(3);
    run(ROUNDS, NODES);
    run(ROUNDS, 11);
    assert_in_range(error_permille(50, 11), 0, 500);
    for (unsigned i = 0; i < NODES; i++) {
        assert_true(coordinate_is_sound(&coordinates[i]));
    }
}

static void test_numbers_that_no_node_has(void **state)
{
    (void)state;
    static const int32_t least = -COORDINATE_MAX, most = COORDINATE_MAX;
    const struct {
        struct coordinate coordinate;
        bool sound;
    } cases[] = {
        {{{0, 0}, 0, 1}, true},
        {{{most, least}, (uint32_t)most, COORDINATE_ERROR_MAX}, true},
        {{{most + 1, 0}, 0, 1}, false},
        {{{0, least - 1}, 0, 1}, false},
        {{{0, INT32_MIN}, 0, 1}, false},
        {{{0, 0}, (uint32_t)most + 1, 1}, false},
        {{{0, 0}, UINT32_MAX, 1}, false},
        {{{0, 0}, 0, 0}, false},
        {{{0, 0}, 0, COORDINATE_ERROR_MAX + 1}, false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        assert_int_equal(coordinate_is_sound(&cases[i].coordinate), cases[i].sound);
    }
}

/* Extreme measurements and places leave numbers that a node may have, and one call moves a node by no more
 * than 2.5 of what was measured. */
static void test_extremes(void **state)
{
    (void)state;
    static const uint64_t round_trips_ns[] = {0, 1, 50 * TIME_US, 10 * TIME_S, UINT64_MAX};
    static const int32_t most = COORDINATE_MAX;
    const struct coordinate others[] = {
        {{0, 0}, 0, 1}, {{most, most}, (uint32_t)most, 1}, {{-most, -most}, 0, 1000}};
    random_seed(&chance, 5);
    for (size_t i = 0; i < 5; i++) {
        for (size_t j = 0; j < 3; j++) {
            struct coordinate own = coordinate_first(), near = own;
            for (unsigned times = 0; times < 1000; times++) {
                coordinate_move(&own, &others[j], round_trips_ns[i], &chance);
                assert_true(coordinate_is_sound(&own));
            }
            coordinate_move(&near, &others[j], 400 * TIME_US, &chance);
            for (unsigned axis = 0; axis < COORDINATE_AXES; axis++) {
                assert_in_range(near.at[axis] + 10001, 0, 20002); /* 1 ms */
            }
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_nodes_find_their_places),
        cmocka_unit_test(test_a_liar),
        cmocka_unit_test(test_numbers_that_no_node_has),
        cmocka_unit_test(test_extremes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
