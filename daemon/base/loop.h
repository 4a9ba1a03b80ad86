#ifndef DAEMON_BASE_LOOP_H
#define DAEMON_BASE_LOOP_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/base/error.h"

/*
 * The event loop: libevent behind a small interface, the only place that reads the clock. One thread owns a
 * loop; only loop_post and loop_stop may be called from another thread, loop_stop also from a signal handler.
 *
 * Each turn waits, then handles ready fds and signals, then tasks, then due timers. Any callback may make,
 * set and free watches and timers, its own among them: what was freed or paused is not called any more,
 * though it was ready. None may call loop_free, loop_run or loop_run_once.
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
typedef void loop_task_function(void *context, uint64_t now_ns);

enum status loop_new(struct loop **out, struct error *error) COMM_MUST_USE;
/* Frees the loop and what is left of watches, timers and tasks; fds stay the caller's. Null is accepted. */
void loop_free(struct loop *loop);

/* CLOCK_MONOTONIC now, in nanoseconds: for entry points alone (start-up, tests); callbacks get it. */
uint64_t loop_now_ns(void);

/* Runs until loop_stop; at once if that was called before. STATUS_INTERNAL when the backend fails. */
enum status loop_run(struct loop *loop, struct error *error) COMM_MUST_USE;
/*
 * One turn: waits until something is ready or due, but no longer than timeout_ms, handles it and returns; for
 * tests and tools. A loop_stop takes effect in the next loop_run.
 */
enum status loop_run_once(struct loop *loop, uint64_t timeout_ms, struct error *error) COMM_MUST_USE;
/* Ends loop_run after the present turn. Thread-safe and async-signal-safe. */
void loop_stop(struct loop *loop);

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

/*
 * Runs function once, on the loop's thread, before it waits again, in the order posted; never from within
 * this call. Thread-safe. At most LOOP_TASKS_MAX wait; beyond that STATUS_LIMIT. NO_MEMORY when the queue
 * cannot grow. Tasks still queued at loop_free are dropped without being run. Nobody may post any more when
 * loop_free is called.
 */
#define LOOP_TASKS_MAX 65536
enum status loop_post(struct loop *loop, loop_task_function *function, void *context) COMM_MUST_USE;

#endif
