#ifndef DAEMON_BASE_THREAD_H
#define DAEMON_BASE_THREAD_H

#include <pthread.h>
#include <stdint.h>
#include <time.h>

#define THREAD_TURN_NS 100000u /* the shortest turn that Linux grants */

/*
 * Starts a thread that takes no signals of commd: the main thread handles those. SIGBUS and SIGSEGV stay
 * unblocked, since the thread's own code causes them (daemon/host/guard.h). attributes: null for the default.
 * Returns 0, or an error number as pthread_create does. Any thread.
 */
int thread_start(pthread_t *out, const pthread_attr_t *attributes, void *(*function)(void *), void *context);

/* Makes a condition whose timed waits end by CLOCK_MONOTONIC. */
static inline void thread_cond_init(pthread_cond_t *out)
{
    pthread_condattr_t attributes;
    (void)pthread_condattr_init(&attributes);
    (void)pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    (void)pthread_cond_init(out, &attributes);
    (void)pthread_condattr_destroy(&attributes);
}

/*
 * Asks the kernel to give the calling thread the processor in turns of THREAD_TURN_NS. What it starts later
 * does the same. Its share stays the same, but when it wakes, it need not wait until other threads have had
 * turns of some milliseconds. sched_setattr(2); before Linux 6.12, and if the kernel refuses, nothing
 * changes.
 */
void thread_take_short_turns(void);

#define THREAD_WAKE_DEFAULT_NS 12000u
/*
 * Measures how long a thread that sleeps takes to run again when its processor has nothing else to do: by
 * some microseconds, or on some virtual machines by 50. The calling thread sleeps for a tenth of a
 * millisecond several times; it gives up after 20 ms, as on a busy machine. Returns the lower quartile, or
 * THREAD_WAKE_DEFAULT_NS if it has too few.
 */
uint64_t thread_measure_wake_ns(void);

#endif
