#ifndef DAEMON_BASE_LOOP_H
#define DAEMON_BASE_LOOP_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/base/error.h"

/*
 * The event loop: libevent behind a small interface, the only place that reads the clock. One thread owns a
 * loop; another one wakes it through a descriptor that it watches (mailbox.h).
 *
 * Each turn waits, then handles ready fds and signals, then due timers. Any callback may make, set and free
 * watches and timers, its own among them: what was freed or paused is not called any more, though it was
 * ready. None may call loop_free or loop_run_once.
 */
struct loop;
struct loop_watch;
struct loop_timer;

enum loop_events { LOOP_READ = 1, LOOP_WRITE = 2 };

/*
 * now_ns: read just before the call. events: which of loop_events are ready; an error or hang-up of the fd is
 * ready for each that is watched.
 */
typedef void loop_watch_function(void *context, unsigned events, uint64_t now_ns);
typedef void loop_timer_function(void *context, uint64_t now_ns);
typedef void loop_signal_function(void *context, int signal_number, uint64_t now_ns);

enum status loop_new(struct loop **out, struct error *error) COMM_MUST_USE;
/* Frees the loop and what is left of watches and timers; fds stay the caller's. Null is accepted. */
void loop_free(struct loop *loop);

/* CLOCK_MONOTONIC now, in nanoseconds: for entry points alone (start-up, tests); callbacks get it. */
uint64_t loop_now_ns(void);

/*
 * One turn: waits until something is ready or due, but no longer than timeout_ms, handles it and returns.
 * INTERNAL when the backend fails.
 */
enum status loop_run_once(struct loop *loop, uint64_t timeout_ms, struct error *error) COMM_MUST_USE;

/*
 * Watches fd, level-triggered; events may be 0 (paused). The fd stays the caller's: free the watch, then
 * close. SYSTEM for an fd that cannot be watched (closed, a regular file).
 */
enum status loop_watch_new(struct loop *loop, int fd, unsigned events, loop_watch_function *function,
                           void *context, struct loop_watch **out, struct error *error) COMM_MUST_USE;
/* Replaces the events. A failure (the fd was closed, no memory) is logged and leaves the watch paused. */
void loop_watch_set(struct loop_watch *watch, unsigned events);
/* Null is accepted. */
void loop_watch_free(struct loop_watch *watch);

enum status loop_timer_new(struct loop *loop, loop_timer_function *function, void *context,
                           struct loop_timer **out, struct error *error) COMM_MUST_USE;
/*
 * Fires once at deadline_ns, never before (when past: in this turn or the next, which does not wait);
 * TIME_NEVER disarms. Re-arming replaces. Timers fire in the order of their deadlines, those of one deadline
 * in the order in which they were set; past deadlines are taken as the time of the last turn. Never fails,
 * and costs no system call.
 */
void loop_timer_set(struct loop_timer *timer, uint64_t deadline_ns);
/* Null is accepted. */
void loop_timer_free(struct loop_timer *timer);

/*
 * Calls function, on the loop's thread and outside the signal handler, for each delivery of the signal
 * (several pending ones may come as one), until loop_free. Signals go to one loop of the process: the one
 * that asked first, which is main's.
 */
enum status loop_signal(struct loop *loop, int signal_number, loop_signal_function *function, void *context,
                        struct error *error) COMM_MUST_USE;

#endif
