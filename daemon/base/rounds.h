#ifndef DAEMON_BASE_ROUNDS_H
#define DAEMON_BASE_ROUNDS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/base/fair.h"

/*
 * Rounds of turns. In a round, each busy entry has at least one turn; users take turns, as in fair.h. A round
 * may be interrupted, and goes on later. Whoever has news calls rounds_wake: an entry may have had its turn
 * in this round already, so another round is needed.
 *
 * Entries are embedded in their owners' structs. Entries and rounds are zero at first. Every call takes
 * constant time, and none allocates. One thread.
 */
struct rounds_entry {
    struct fair_entry turn; /* the first member */
    uint32_t uid;
    uint32_t round; /* of the last turn */
};

struct rounds {
    struct fair busy;
    uint32_t round;     /* number of the current one */
    uint32_t unstepped; /* busy entries that had no turn in it yet */
    bool more;          /* another round is needed */
    bool woken;         /* there is something to do; rounds_end sets it anew */
};

static inline void rounds_wake(struct rounds *rounds)
{
    rounds->more = true;
    rounds->woken = true;
}

/* Adds the entry; its first turn is in the current round. Does nothing if it is there already. */
static inline void rounds_put(struct rounds *rounds, struct rounds_entry *entry, uint32_t uid)
{
    if (!entry->turn.queued) {
        entry->uid = uid;
        entry->round = rounds->round - 1;
        rounds->unstepped++;
        fair_put(&rounds->busy, &entry->turn, uid);
    }
}

/* Takes the entry out if it is there. */
static inline void rounds_remove(struct rounds *rounds, struct rounds_entry *entry)
{
    if (entry->turn.queued) {
        rounds->unstepped -= entry->round != rounds->round ? 1 : 0;
        fair_remove(&rounds->busy, &entry->turn);
    }
}

/* Begins a round, unless one is interrupted. Returns whether it did. */
static inline bool rounds_begin(struct rounds *rounds)
{
    if (rounds->unstepped > 0) {
        return false;
    }
    rounds->round++;
    rounds->unstepped = rounds->busy.count;
    rounds->more = false;
    return true;
}

/* The entry that has the next turn; null: the round is over. It stays busy, behind others. */
static inline struct rounds_entry *rounds_next(struct rounds *rounds)
{
    if (rounds->unstepped == 0) {
        return NULL;
    }
    struct rounds_entry *entry = (struct rounds_entry *)fair_take(&rounds->busy);
    fair_put(&rounds->busy, &entry->turn, entry->uid);
    rounds->unstepped -= entry->round != rounds->round ? 1 : 0;
    entry->round = rounds->round;
    return entry;
}

/* The turns of this call are over. `again`: there is something else to do. Returns whether there is anything
 * to do: again, an interrupted round, or another one. */
static inline bool rounds_end(struct rounds *rounds, bool again)
{
    rounds->woken = again || rounds->unstepped > 0 || rounds->more;
    return rounds->woken;
}

#endif
