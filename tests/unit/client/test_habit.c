#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>

#include "client/lib/internal.h"

/* What the library learns of how a program waits. */

static struct comm_comm *comm;

static int make(void **state)
{
    (void)state;
    comm = calloc(1, sizeof *comm);
    return comm != NULL ? 0 : -1;
}

static int unmake(void **state)
{
    (void)state;
    free(comm);
    return 0;
}

/* The machine may be busy, so only a wait that was at once for sure counts. */
static void submit_and_wait(void)
{
    const struct wait_habit before = comm->habit;
    uint64_t began_ns;
    do {
        comm->habit = before;
        began_ns = clock_ns();
        habit_submitted(comm);
        assert_false(habit_waits(comm)); /* nobody has waited for it yet */
        habit_awaited(comm);
    } while (clock_ns() - began_ns > HABIT_AT_ONCE_NS);
}

static void submit_and_wait_late(void)
{
    habit_submitted(comm);
    comm->habit.submitted_ns -= HABIT_AT_ONCE_NS + 1;
    habit_awaited(comm);
}

static void test_a_program_waits_at_once(void **state)
{
    (void)state;
    assert_true(habit_waits(comm)); /* what is assumed at first */
    for (int i = 0; i < 100; i++) {
        submit_and_wait();
        assert_true(habit_waits(comm));
        habit_awaited(comm); /* once more, for nothing */
        assert_true(habit_waits(comm));
    }
    submit_and_wait_late();
    assert_false(habit_waits(comm)); /* whatever it did before */
}

static void test_one_wait_makes_good_for_misses(void **state)
{
    (void)state;
    for (int i = 0; i < 100; i++) {
        submit_and_wait_late();
        assert_false(habit_waits(comm));
    }
    submit_and_wait();
    assert_true(habit_waits(comm));
}

static void test_two_operations_without_a_wait(void **state)
{
    (void)state;
    habit_submitted(comm);
    habit_submitted(comm);
    assert_false(habit_waits(comm));
    comm->habit.submitted_ns -= HABIT_AT_ONCE_NS + 1; /* the wait for both is late */
    habit_awaited(comm);
    assert_false(habit_waits(comm));
    submit_and_wait();
    assert_true(habit_waits(comm));
}

/* As after an operation in slices that was abandoned. */
static void test_a_long_memory(void **state)
{
    (void)state;
    comm->habit.waits = HABIT_WAITS_AFTER_MISS;
    for (int i = HABIT_WAITS_AFTER_MISS; i < 0; i++) {
        assert_false(habit_waits(comm));
        submit_and_wait();
    }
    assert_true(habit_waits(comm));
    comm->habit.waits = HABIT_WAITS_AFTER_MISS;
    submit_and_wait_late();
    assert_int_equal(comm->habit.waits, HABIT_WAITS_AFTER_MISS); /* neither better nor worse */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_a_program_waits_at_once, make, unmake),
        cmocka_unit_test_setup_teardown(test_one_wait_makes_good_for_misses, make, unmake),
        cmocka_unit_test_setup_teardown(test_two_operations_without_a_wait, make, unmake),
        cmocka_unit_test_setup_teardown(test_a_long_memory, make, unmake),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
