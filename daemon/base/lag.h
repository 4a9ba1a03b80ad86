#ifndef DAEMON_BASE_LAG_H
#define DAEMON_BASE_LAG_H

#include <stdint.h>

/*
 * The worst lateness of the last one or two windows of LAG_WINDOW_NS. Zero is the beginning. Times come as
 * arguments, in nanoseconds of one clock; they do not go back. Not thread-safe.
 */
#define LAG_WINDOW_NS 10000000000u

struct lag {
    uint64_t since_ns;   /* when the present window began */
    uint64_t worst_ns;   /* in the present window */
    uint64_t earlier_ns; /* in the window before */
};

/* Something came at now_ns that was due at due_ns. due_ns is 0 or TIME_NEVER if nothing was due, and may lie
 * after now_ns: then nothing was late. */
void lag_note(struct lag *lag, uint64_t due_ns, uint64_t now_ns);
uint64_t lag_worst_ns(const struct lag *lag, uint64_t now_ns);

#endif
