#ifndef DAEMON_BASE_TIME_H
#define DAEMON_BASE_TIME_H

#include <stdint.h>

/*
 * Time is an argument: nanoseconds of CLOCK_MONOTONIC, read once per event by base/loop or made up by a
 * simulation. Components expose their next deadline; TIME_NEVER means none.
 */
#define TIME_NEVER UINT64_MAX
#define TIME_US 1000ull
#define TIME_MS 1000000ull
#define TIME_S 1000000000ull

static inline uint64_t time_min(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* now + delta, saturating at TIME_NEVER. */
static inline uint64_t time_after(uint64_t now_ns, uint64_t delta_ns)
{
    return delta_ns >= TIME_NEVER - now_ns ? TIME_NEVER : now_ns + delta_ns;
}

#endif
