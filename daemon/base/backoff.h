#ifndef DAEMON_BASE_BACKOFF_H
#define DAEMON_BASE_BACKOFF_H

#include "daemon/base/random.h"
#include "daemon/base/time.h"

/*
 * When to try again what failed: one rule for all connections to other nodes. Waits double with each failure,
 * up to a most; each is between half of that and the whole, so that nodes that lost each other at once do not
 * meet again at once. All zero: at any time, and the next wait is the first.
 */
struct backoff {
    uint64_t next_ns;
    uint32_t failures; /* since it last went well */
};

#define BACKOFF_DOUBLINGS_MAX 20u

/* min_ns: of the first wait, at most max_ns, that of the longest. */
static inline void backoff_failed(struct backoff *backoff, uint64_t min_ns, uint64_t max_ns,
                                  struct random *random, uint64_t now_ns)
{
    uint32_t doublings =
        backoff->failures < BACKOFF_DOUBLINGS_MAX ? backoff->failures : BACKOFF_DOUBLINGS_MAX;
    uint64_t wait_ns = min_ns <= max_ns >> doublings ? min_ns << doublings : max_ns;
    backoff->failures++;
    backoff->next_ns = time_after(now_ns, wait_ns - random_below(random, wait_ns / 2 + 1));
}

#endif
