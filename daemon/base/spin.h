#ifndef DAEMON_BASE_SPIN_H
#define DAEMON_BASE_SPIN_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/base/time.h"

/*
 * How long a thread polls for work before it sleeps. Work comes in rows: a look for the next piece costs less
 * than being woken for it. The length of the waits adapts the length of the spins. Time is an argument.
 *
 * The thread yields its processor in each turn of a spin. So spinning pays with one processor, too: the
 * process that waits for the thread runs meanwhile, and neither has to wake the other. The struct is the
 * caller's; spin_init sets it.
 */
/* The longest spin lasts SPIN_WAKES times as long as being woken takes, within these bounds. */
#define SPIN_WAKES 4u
#define SPIN_LONGEST_MIN_NS (50 * TIME_US)
#define SPIN_LONGEST_MAX_NS (250 * TIME_US)
#define SPIN_MIN_NS (4 * TIME_US)
/* A wait has a wake-up in it. So one that is shorter than SPIN_PAYS times the longest spin should be a spin.
 */
#define SPIN_PAYS 2u
/* If yielding takes this long, another process runs on our core. Sleeping then wakes us sooner than spinning.
 */
#define SPIN_CROWDED_NS (2 * TIME_MS)
#define SPIN_REST_MIN_NS (10 * TIME_MS) /* no spinning for this long then; longer if it repeats */
#define SPIN_REST_MAX_NS (1 * TIME_S)

struct spin {
    uint64_t longest_ns;
    uint64_t length_ns;
    uint64_t waited_ns; /* since there was work last */
    uint64_t until_ns;
    uint64_t rest_ns, rest_until_ns;
};

/* wake_ns: how long it takes to be woken on this machine (thread_measure_wake_ns). It differs by a factor of
 * ten: a processor of a virtual machine that has nothing to do may leave it to the host. */
void spin_init(struct spin *spin, uint64_t wake_ns);
/*
 * There was work: the spin begins anew. If the thread has waited for the work, and a spin would have seen it,
 * the next spins are longer; otherwise they are shorter.
 */
void spin_found(struct spin *spin, uint64_t now_ns);
/* The thread has slept for so long. It may have been woken for no work: by a timer, or by an acknowledgement.
 * Then the wait goes on. */
void spin_waited(struct spin *spin, uint64_t waited_ns);
/* The thread has yielded its processor from before_ns to now_ns. */
void spin_yielded(struct spin *spin, uint64_t before_ns, uint64_t now_ns);
static inline bool spin_goes_on(const struct spin *spin, uint64_t now_ns)
{
    return now_ns < spin->until_ns;
}

#endif
