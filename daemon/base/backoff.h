#ifndef DAEMON_BASE_BACKOFF_H
#define DAEMON_BASE_BACKOFF_H

#include "daemon/base/random.h"
#include "daemon/base/time.h"

/*
 * When to retry after a failure: one rule for all connections to other nodes. The wait doubles with each
 * failure, up to a maximum. Each wait is random, between half of that value and all of it. So nodes that lost
 * each other at the same time do not retry at the same time. All zero: the next attempt may start at once,
 * and the next failure starts with the shortest wait.
 */
struct backoff {
    uint64_t next_ns;
    uint32_t failures; /* since the last success */
};

#define BACKOFF_DOUBLINGS_MAX 20u

/* min_ns is the first wait, max_ns the longest one; min_ns is at most max_ns. */
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
