#include "client/lib/habit.h"

#include "client/lib/internal.h"

static void has_missed(struct wait_habit *habit)
{
    habit->waits = habit->waits >= 0 ? -1 : habit->waits;
}

void habit_submitted(struct comm_comm *comm)
{
    struct wait_habit *habit = &comm->habit;
    if (habit->submitted_ns != 0) { /* nobody waited for the last one */
        has_missed(habit);
    }
    habit->submitted_ns = clock_ns();
}

void habit_awaited(struct comm_comm *comm)
{
    struct wait_habit *habit = &comm->habit;
    if (habit->submitted_ns == 0) {
        return;
    }
    bool at_once = clock_ns() - habit->submitted_ns <= HABIT_AT_ONCE_NS;
    habit->submitted_ns = 0;
    if (!at_once) {
        has_missed(habit);
    } else if (habit->waits < 0) {
        habit->waits++;
    }
}

bool habit_waits(const struct comm_comm *comm)
{
    return comm->habit.waits >= 0 && comm->habit.submitted_ns == 0;
}
