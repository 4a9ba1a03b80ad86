#ifndef DAEMON_BASE_LOOP_H
#define DAEMON_BASE_LOOP_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/base/error.h"

/*
 * The event loop: libevent behind a small interface, and the only place that reads the clock. One thread owns
 * a loop. Another thread wakes it through a descriptor that the loop watches (mailbox.h).
 *
 * Each turn waits, then handles ready fds and signals, then due timers. Any callback may make, set and free
 * watches and timers, its own included. A watch or timer that was freed or paused is not called any more,
 * even if it was ready. No callback may call loop_free or loop_run_once.
 */
struct loop;
struct loop_watch;
struct loop_timer;

enum loop_events { LOOP_READ = 1, LOOP_WRITE = 2 };

/*
 * now_ns: read just before the call. events: which of loop_events are ready. An error or hang-up of the fd
 * makes each watched event ready.
 */
typedef void loop_watch_function(void *context, unsigned events, uint64_t now_ns);
typedef void loop_timer_function(void *context, uint64_t now_ns);
typedef void loop_signal_function(void *context, int signal_number, uint64_t now_ns);

enum status loop_new(struct loop **out, struct error *error) COMM_MUST_USE;
/* Frees the loop and all watches and timers that are left; fds stay the caller's. Null is accepted. */
void loop_free(struct loop *loop);

/* CLOCK_MONOTONIC now, in nanoseconds. Only entry points (start-up, tests) call it; callbacks get the time as
 * an argument. */
uint64_t loop_now_ns(void);

/* Whether a timer is due: loop_run_once would not wait. Costs little, for loops that spin. */
bool loop_is_due(const struct loop *loop, uint64_t now_ns);

/*
 * How late the loop came to its timers or to its next turn: the worst of the last one or two windows (lag.h).
 * Every user waited that long.
 */
uint64_t loop_lag_ns(const struct loop *loop, uint64_t now_ns);

/* For the metrics endpoint alone, whose HTTP is libevent's. */
struct event_base *loop_event_base(const struct loop *loop);

/*
 * Runs one turn: waits until something is ready or due, but no longer than timeout_ms, handles it and
 * returns. INTERNAL when the backend fails.
 */
enum status loop_run_once(struct loop *loop, uint64_t timeout_ms, struct error *error) COMM_MUST_USE;

/*
 * Watches fd, level-triggered; events may be 0 (paused). The fd stays the caller's: free the watch first,
 * then close the fd. SYSTEM for an fd that cannot be watched (closed, a regular file).
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
 * Fires once at deadline_ns, never before. A past deadline fires in this turn or the next, which then does
 * not wait. TIME_NEVER disarms. Setting a timer again replaces its deadline. Timers fire in the order of
 * their deadlines; timers with equal deadlines fire in the order in which they were set. Past deadlines count
 * as the time of the last turn. Never fails, and costs no system call.
 */
void loop_timer_set(struct loop_timer *timer, uint64_t deadline_ns);
/* Null is accepted. */
void loop_timer_free(struct loop_timer *timer);

/*
 * Calls function for each delivery of the signal until loop_free, on the loop's thread and outside the signal
 * handler. Several pending deliveries may come as one. Signals go to one loop of the process, the first that
 * called this: the main thread's.
 */
enum status loop_signal(struct loop *loop, int signal_number, loop_signal_function *function, void *context,
                        struct error *error) COMM_MUST_USE;

#endif
