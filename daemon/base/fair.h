#ifndef DAEMON_BASE_FAIR_H
#define DAEMON_BASE_FAIR_H

#include <stdbool.h>
#include <stdint.h>

/*
 * A queue that users share: who has a thousand entries in it waits longer for all of them, nobody else does.
 * Users take turns, one entry each; the entries of one user keep their order. Users are told apart by
 * FAIR_LINES lines: who shares one with another user shares its turns.
 *
 * Entries are part of what their owners have. Both are zero at first. Every call takes constant time, and
 * none allocates. One thread.
 */
#define FAIR_LINES 64u

struct fair_entry {
    struct fair_entry *prev, *next;
    uint32_t line;
    bool queued;
};

struct fair_line {
    struct fair_line *prev, *next; /* among those with entries; the first has the next turn */
    struct fair_entry *entries;
};

struct fair {
    struct fair_line lines[FAIR_LINES];
    struct fair_line *waiting;
    uint32_t count;
};

/* Whose line that user has: below FAIR_LINES. */
uint32_t fair_line_of(uint32_t uid);

/* At the end of its user's; nothing when it is queued already. */
void fair_put(struct fair *fair, struct fair_entry *entry, uint32_t uid);
/* Takes the next one out; null when there is none. */
struct fair_entry *fair_take(struct fair *fair);
/* Takes it out, if it is queued. */
void fair_remove(struct fair *fair, struct fair_entry *entry);

#endif
