#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <sched.h>
#include <stdlib.h>
#include <unistd.h>

#include "client/lib/cells_internal.h"

/* Where ranks run. This thread is rank 0; the test writes what the others say. */

#define RANKS 4u
#define SHARED_NS (CELLS_YIELD_SHARED_NS + 1)
#define LONG_NS (CELLS_YIELD_LONG_NS + 1)
#define MANY 20000u

static struct client_cells *cells;
static cpu_set_t allowed;

static int make(void **state)
{
    (void)state;
    cells = calloc(1, sizeof *cells);
    if (cells == NULL || sched_getaffinity(0, sizeof allowed, &allowed) != 0) {
        return -1;
    }
    cells->rank_count = RANKS;
    cells->shared = aligned_alloc(CELLS_PAGE_BYTES, cells_control_bytes(RANKS));
    if (cells->shared == NULL) {
        return -1;
    }
    memset(cells->shared, 0, cells_control_bytes(RANKS));
    return 0;
}

static int unmake(void **state)
{
    (void)state;
    (void)sched_setaffinity(0, sizeof allowed, &allowed);
    free(cells->shared);
    free(cells);
    return 0;
}

static void say_processors(uint32_t rank, uint64_t hash)
{
    atomic_store(&cells->shared->ranks[rank].processors, hash);
}

static void say_processor(uint32_t rank, int processor)
{
    atomic_store(&cells->shared->ranks[rank].processor, (uint32_t)(processor + 1));
}

/* Stays where it is, and is told that the others are on `processor`. */
static void put_others_on(int processor)
{
    for (uint32_t rank = 1; rank < RANKS; rank++) {
        say_processor(rank, processor);
    }
}

static bool is_allowed_as_before(const cpu_set_t *before)
{
    cpu_set_t now;
    assert_int_equal(sched_getaffinity(0, sizeof now, &now), 0);
    return CPU_EQUAL(&now, before);
}

/* Two ranks, of which this one may use one processor: that on which it is. */
static cpu_set_t take_one_processor(void)
{
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET((size_t)sched_getcpu(), &one);
    assert_int_equal(sched_setaffinity(0, sizeof one, &one), 0);
    cells->rank_count = 2;
    cells_take_place(cells);
    return one;
}

static void bound_ranks_are_not_crowded(void **state)
{
    (void)state;
    (void)take_one_processor();
    assert_int_equal(cells->processor_count, 1);
    assert_true(cells->crowded); /* the other may use the same one */
    assert_false(cells->places_are_known);
    uint64_t own = atomic_load(&cells->shared->ranks[0].processors);
    assert_true(own != 0);
    say_processors(1, own + 2);
    cells_look_at_places(cells);
    assert_false(cells->crowded);
    assert_true(cells->places_are_known);
}

static void bound_to_the_same_processor(void **state)
{
    (void)state;
    cpu_set_t one = take_one_processor();
    say_processors(1, atomic_load(&cells->shared->ranks[0].processors));
    cells_look_at_places(cells);
    assert_true(cells->crowded && cells->places_are_known);
    say_processor(1, sched_getcpu());
    for (unsigned i = 0; i < MANY; i++) { /* there is nowhere to go */
        assert_false(cells_should_move(cells, LONG_NS));
    }
    assert_true(is_allowed_as_before(&one));
}

/* Yields until the rank is to sleep. Returns how many it took; MANY: it is not. */
static unsigned yields_until_sleep(uint64_t yield_ns)
{
    unsigned yields = 1;
    while (yields < MANY && !cells_should_move(cells, yield_ns)) {
        put_others_on(sched_getcpu()); /* the kernel may move this thread at any time */
        yields++;
    }
    return yields;
}

static void sleeps_if_there_are_processors(void **state)
{
    (void)state;
    cells->crowded = false;
    cells->processor_count = RANKS;
    put_others_on(sched_getcpu());
    assert_int_equal(yields_until_sleep(CELLS_YIELD_SHARED_NS), MANY); /* nobody else ran */
    assert_in_range(yields_until_sleep(SHARED_NS), 1, 100);
    assert_int_equal(yields_until_sleep(SHARED_NS), MANY); /* it has moved since, or asked to */
    assert_true(is_allowed_as_before(&allowed));
    cells->yields_to_move = 0;
    put_others_on(CPU_SETSIZE - 1);
    for (unsigned i = 0; i < MANY; i++) { /* alone on its processor */
        assert_false(cells_should_move(cells, SHARED_NS));
    }
}

/* Three ranks on one of two processors, whatever this thread may use otherwise. */
static void crowded_ranks_spread(void **state)
{
    (void)state;
    int other = -1, here = sched_getcpu();
    for (int i = 0; i < CPU_SETSIZE && other < 0; i++) {
        other = i != here && CPU_ISSET((size_t)i, &allowed) ? i : -1;
    }
    if (other < 0) {
        print_message("SKIP: this thread may use one processor only\n");
        skip();
    }
    cpu_set_t two = {{0}}, one = {{0}};
    CPU_SET((size_t)here, &one);
    CPU_SET((size_t)here, &two);
    CPU_SET((size_t)other, &two);
    const cpu_set_t *sets[] = {&two, &allowed, &one};
    for (unsigned i = 0; i < 3; i++) {
        for (int is_long = 0; is_long < 2; is_long++) {
            bool moved = false;
            cells->crowded = is_long == 0;
            cells->processor_count = 2;
            cells->yields_to_move = 0;
            for (unsigned turn = 0; turn < 200 && !moved; turn++) {
                assert_int_equal(sched_setaffinity(0, sizeof one, &one), 0); /* comes here, */
                assert_int_equal(sched_setaffinity(0, sizeof *sets[i], sets[i]), 0);
                say_processor(1, here);
                say_processor(2, here);
                say_processor(3, CPU_SETSIZE - 1);
                bool sleeps = cells_should_move(cells, is_long ? LONG_NS : SHARED_NS);
                assert_false(sleeps && cells->crowded);
                moved = sched_getcpu() != here;
                assert_true(is_allowed_as_before(sets[i]));
            }
            assert_int_equal(moved, sets[i] != &one); /* and goes, if it may */
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(bound_ranks_are_not_crowded, make, unmake),
        cmocka_unit_test_setup_teardown(bound_to_the_same_processor, make, unmake),
        cmocka_unit_test_setup_teardown(sleeps_if_there_are_processors, make, unmake),
        cmocka_unit_test_setup_teardown(crowded_ranks_spread, make, unmake),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
