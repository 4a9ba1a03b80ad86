#ifndef CLIENT_LIB_HABIT_H
#define CLIENT_LIB_HABIT_H

#include <stdbool.h>
#include <stdint.h>

/*
 * Whether a program waits at once for its long operations on a communicator. Then its threads do the work of
 * cells in slices (cells_slices.c). Otherwise the library's thread does, or commd if it can read the memory
 * where it is. The library cannot know what the program will do, so it goes by what the program did. All
 * functions need the client's lock.
 */
struct comm_comm;

/* If nobody waited for an operation in slices, so many long ones must be waited for at once before the next
 * one goes in slices. */
#define HABIT_WAITS_AFTER_MISS (-6)
#define HABIT_AT_ONCE_NS 200000u /* between the end of a call and a wait that comes at once */

struct wait_habit {
    int waits;             /* below 0: how many waits at once are missing; never above 0 */
    uint64_t submitted_ns; /* when the last one was submitted, if nobody has waited since; else 0 */
};

/* The call has submitted an operation that could go through cells in slices, or went there. */
void habit_submitted(struct comm_comm *comm);
/* A thread of the program waits for operations of the communicator. */
void habit_awaited(struct comm_comm *comm);
/* Whether the program will probably wait at once for the operation that it submits now. */
bool habit_waits(const struct comm_comm *comm);

#endif
