#ifndef DAEMON_BASE_PACER_H
#define DAEMON_BASE_PACER_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/base/time.h"

/*
 * How often to poll what sends no notification: whether a GPU is done, or whether a stream has written its
 * word. The caller polls without a pause for PACER_AT_ONCE_NS. Then it pauses between polls for 1/PACER_SHARE
 * of the time waited so far, at most PACER_MAX_NS.
 */
#define PACER_AT_ONCE_NS 1000000ull
#define PACER_SHARE 64
#define PACER_MAX_NS 200000ull

struct pacer {
    bool waits;    /* something is not done yet */
    bool advanced; /* something has made progress */
    uint64_t since_ns;
    uint64_t next_ns; /* when to poll again; TIME_NEVER: nothing waits, or at once */
};

/* Call it before a poll. */
static inline void pacer_begin(struct pacer *pacer)
{
    pacer->waits = false;
    pacer->advanced = false;
}

/* Call it after a poll. Returns whether to poll again at once. */
static inline bool pacer_end(struct pacer *pacer, uint64_t now_ns)
{
    pacer->next_ns = TIME_NEVER;
    if (!pacer->waits) {
        pacer->since_ns = 0;
        return false;
    }
    if (pacer->since_ns == 0 || pacer->advanced) {
        pacer->since_ns = now_ns;
    }
    uint64_t waited_ns = now_ns - pacer->since_ns;
    if (waited_ns < PACER_AT_ONCE_NS) {
        return true;
    }
    uint64_t pause_ns = waited_ns / PACER_SHARE;
    pacer->next_ns = now_ns + (pause_ns < PACER_MAX_NS ? pause_ns : PACER_MAX_NS);
    return false;
}

#endif
