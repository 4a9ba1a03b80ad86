#ifndef DAEMON_BASE_FAIR_H
#define DAEMON_BASE_FAIR_H

#include <stdbool.h>
#include <stdint.h>

/*
 * A queue that users share fairly. A user with a thousand entries waits longer for them; other users do not.
 * Users take turns, one entry each; the entries of one user keep their order. A hash maps users to FAIR_LINES
 * lines; users on the same line share its turns.
 *
 * Entries are embedded in their owners' structs. Entries and queues are zero at first. Every call takes
 * constant time, and none allocates. One thread.
 */
#define FAIR_LINES 64u

struct fair_entry {
    struct fair_entry *prev, *next;
    uint32_t line;
    bool queued;
};

struct fair_line {
    struct fair_line *prev, *next; /* of the lines with entries; the first has the next turn */
    struct fair_entry *entries;
};

struct fair {
    struct fair_line lines[FAIR_LINES];
    struct fair_line *waiting;
    uint32_t count;
};

/* The line of that user: below FAIR_LINES. */
uint32_t fair_line_of(uint32_t uid);

/* Adds the entry at the end of its user's line. Does nothing if it is queued already. */
void fair_put(struct fair *fair, struct fair_entry *entry, uint32_t uid);
/* Takes out the next entry; null when there is none. */
struct fair_entry *fair_take(struct fair *fair);
/* Takes the entry out if it is queued. */
void fair_remove(struct fair *fair, struct fair_entry *entry);

#endif
