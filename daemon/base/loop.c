#include "daemon/base/loop.h"

#include <assert.h>
#include <errno.h>
#include <event2/event.h>
#include <event2/event_struct.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/queue.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

#include "daemon/base/lag.h"
#include "daemon/base/log.h"
#include "daemon/base/log_writer.h"
#include "daemon/base/time.h"
#include "daemon/base/timer_heap.h"

/*
 * libevent waits and dispatches; this file keeps the timers. libevent's own timers would be set relative to a
 * cached time, in microseconds, with no defined order among equal deadlines, and with a system call per turn.
 * Here one timerfd, absolute and in nanoseconds, stands for the earliest timer.
 */

#define LIBEVENT_DESCRIPTORS 4  /* that an event base takes at most: epoll, a pair of sockets, a wake-up */
#define LIBEVENT_FLUSH_MS 1000u /* how long the end of the process waits for a reader of its log */

struct loop_watch {
    LIST_ENTRY(loop_watch) entry;
    struct loop *loop;
    struct event event;
    int fd;
    unsigned events;
    loop_watch_function *function;
    void *context;
};

struct loop_timer {
    struct timer_node node; /* first member: the node's address is also the timer's */
    LIST_ENTRY(loop_timer) entry;
    struct loop *loop;
    loop_timer_function *function;
    void *context;
};
_Static_assert(offsetof(struct loop_timer, node) == 0, "a node is cast to its timer");

struct loop_signal_watch {
    LIST_ENTRY(loop_signal_watch) entry;
    struct event event;
    loop_signal_function *function;
    void *context;
};

struct loop {
    struct event_base *base;
    LIST_HEAD(, loop_watch) watches;
    LIST_HEAD(, loop_timer) timers;
    LIST_HEAD(, loop_signal_watch) signals;

    struct timer_heap heap; /* the armed timers; has room for all timers */
    size_t timer_count;
    uint64_t timer_pass_ns; /* time of the last pass over the timers */
    int timer_fd;
    struct event timer_event;
    uint64_t programmed_ns; /* when timer_fd fires; TIME_NEVER when not armed */

    struct lag lag;
};

uint64_t loop_now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * TIME_S + (uint64_t)now.tv_nsec;
}

/* --- construction --- */

/* Only errors are logged as such. The rest of what libevent says is also returned by the failing call, so it
 * goes to the debug log. */
static void loop_log_libevent(int severity, const char *message)
{
    log_line(severity == EVENT_LOG_ERR ? LOG_LEVEL_ERROR : LOG_LEVEL_DEBUG, "libevent: %s", message);
}

static void loop_timer_fd_fired(evutil_socket_t fd, short what, void *context)
{
    struct loop *loop = context;
    uint64_t count;
    (void)what;
    if (read(fd, &count, sizeof(count)) < 0 && errno != EAGAIN && errno != EINTR) {
        log_error("event loop: reading the timer: %s", strerrordesc_np(errno));
    }
    loop->programmed_ns = TIME_NEVER;
}

/* libevent ends the process in some cases of missing descriptors. Its reason is still in the log's queue. */
static void loop_libevent_ends(int code)
{
    (void)code;
    log_writer_stop(LIBEVENT_FLUSH_MS);
}

/* So those that it needs are looked for first. */
static enum status loop_check_descriptors(struct error *error)
{
    int fds[LIBEVENT_DESCRIPTORS], count = 0, failure = 0;
    while (count < LIBEVENT_DESCRIPTORS && failure == 0) {
        fds[count] = eventfd(0, EFD_CLOEXEC);
        if (fds[count] >= 0) {
            count++;
        } else {
            failure = errno;
        }
    }
    while (count > 0) {
        close(fds[--count]);
    }
    return failure == 0 ? STATUS_OK : error_set_errno(error, failure, "event loop: descriptors for libevent");
}

static struct event_base *loop_new_base(void)
{
    struct event_config *config = event_config_new();
    if (config == NULL) {
        return NULL;
    }
    struct event_base *base = NULL;
    if (event_config_set_flag(config, EVENT_BASE_FLAG_NOLOCK) == 0 &&
        event_config_set_flag(config, EVENT_BASE_FLAG_IGNORE_ENV) == 0) {
        base = event_base_new_with_config(config);
    }
    event_config_free(config);
    return base;
}

enum status loop_new(struct loop **out, struct error *error)
{
    event_set_log_callback(loop_log_libevent);
    event_set_fatal_callback(loop_libevent_ends);
    struct loop *loop = calloc(1, sizeof(*loop));
    if (loop == NULL) {
        return error_set(error, STATUS_NO_MEMORY, "event loop: out of memory");
    }
    loop->programmed_ns = TIME_NEVER;
    enum status status = STATUS_OK;
    loop->timer_fd = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
    if (loop->timer_fd < 0) {
        status = error_set_errno(error, errno, "event loop: timerfd_create");
        goto fail;
    }
    status = loop_check_descriptors(error);
    if (status != STATUS_OK) {
        goto fail;
    }
    loop->base = loop_new_base();
    if (loop->base == NULL) {
        status = error_set(error, STATUS_SYSTEM, "event loop: libevent offers no event base");
        goto fail;
    }
    if (event_assign(&loop->timer_event, loop->base, loop->timer_fd, EV_READ | EV_PERSIST,
                     loop_timer_fd_fired, loop) != 0 ||
        event_add(&loop->timer_event, NULL) != 0) {
        status = error_set(error, STATUS_SYSTEM, "event loop: libevent does not take the timer");
        goto fail;
    }
    *out = loop;
    return STATUS_OK;

fail:
    loop_free(loop);
    return status;
}

void loop_free(struct loop *loop)
{
    if (loop == NULL) {
        return;
    }
    struct loop_watch *next_watch;
    for (struct loop_watch *watch = LIST_FIRST(&loop->watches); watch != NULL; watch = next_watch) {
        next_watch = LIST_NEXT(watch, entry);
        loop_watch_free(watch);
    }
    struct loop_timer *next_timer;
    for (struct loop_timer *timer = LIST_FIRST(&loop->timers); timer != NULL; timer = next_timer) {
        next_timer = LIST_NEXT(timer, entry);
        loop_timer_free(timer);
    }
    struct loop_signal_watch *next_signal;
    for (struct loop_signal_watch *signal = LIST_FIRST(&loop->signals); signal != NULL;
         signal = next_signal) {
        next_signal = LIST_NEXT(signal, entry);
        event_del(&signal->event);
        free(signal);
    }
    if (event_initialized(&loop->timer_event)) {
        event_del(&loop->timer_event);
    }
    if (loop->timer_fd >= 0) {
        close(loop->timer_fd);
    }
    if (loop->base != NULL) {
        event_base_free(loop->base);
    }
    timer_heap_free(&loop->heap);
    free(loop);
}

/* --- watches and signals --- */

static void loop_watch_ready(evutil_socket_t fd, short what, void *context)
{
    (void)fd;
    struct loop_watch *watch = context;
    unsigned events = 0;
    if ((what & EV_READ) != 0) {
        events |= LOOP_READ;
    }
    if ((what & EV_WRITE) != 0) {
        events |= LOOP_WRITE;
    }
    watch->function(watch->context, events, loop_now_ns());
}

/* Registers watch->events with libevent; the watch's event is not pending. False with errno set. */
static bool loop_watch_add(struct loop_watch *watch)
{
    if (watch->events == 0) {
        return true;
    }
    short what = EV_PERSIST;
    if ((watch->events & LOOP_READ) != 0) {
        what |= EV_READ;
    }
    if ((watch->events & LOOP_WRITE) != 0) {
        what |= EV_WRITE;
    }
    errno = 0;
    if (event_assign(&watch->event, watch->loop->base, watch->fd, what, loop_watch_ready, watch) != 0 ||
        event_add(&watch->event, NULL) != 0) {
        watch->events = 0;
        return false;
    }
    return true;
}

enum status loop_watch_new(struct loop *loop, int fd, unsigned events, loop_watch_function *function,
                           void *context, struct loop_watch **out, struct error *error)
{
    assert((events & ~(unsigned)(LOOP_READ | LOOP_WRITE)) == 0);
    struct loop_watch *watch = calloc(1, sizeof(*watch));
    if (watch == NULL) {
        return error_set(error, STATUS_NO_MEMORY, "event loop: out of memory for a watch of fd %d", fd);
    }
    *watch = (struct loop_watch){
        .loop = loop, .fd = fd, .events = events, .function = function, .context = context};
    if (!loop_watch_add(watch)) {
        int errnum = errno;
        free(watch);
        return error_set_errno(error, errnum, "event loop: watching fd %d", fd);
    }
    LIST_INSERT_HEAD(&loop->watches, watch, entry);
    *out = watch;
    return STATUS_OK;
}

void loop_watch_set(struct loop_watch *watch, unsigned events)
{
    assert((events & ~(unsigned)(LOOP_READ | LOOP_WRITE)) == 0);
    if (watch->events == events) {
        return;
    }
    if (watch->events != 0) {
        event_del(&watch->event);
    }
    watch->events = events;
    if (!loop_watch_add(watch)) {
        log_error("event loop: fd %d is not watched any more: %s", watch->fd, strerrordesc_np(errno));
    }
}

void loop_watch_free(struct loop_watch *watch)
{
    if (watch == NULL) {
        return;
    }
    if (watch->events != 0) {
        event_del(&watch->event); /* also removes it from libevent's list of ready events */
    }
    LIST_REMOVE(watch, entry);
    free(watch);
}

static void loop_signal_arrived(evutil_socket_t signal_number, short what, void *context)
{
    (void)what;
    struct loop_signal_watch *watch = context;
    watch->function(watch->context, (int)signal_number, loop_now_ns());
}

enum status loop_signal(struct loop *loop, int signal_number, loop_signal_function *function, void *context,
                        struct error *error)
{
    struct loop_signal_watch *watch = calloc(1, sizeof(*watch));
    if (watch == NULL) {
        return error_set(error, STATUS_NO_MEMORY, "event loop: out of memory for signal %d", signal_number);
    }
    watch->function = function;
    watch->context = context;
    errno = 0;
    if (event_assign(&watch->event, loop->base, signal_number, EV_SIGNAL | EV_PERSIST, loop_signal_arrived,
                     watch) != 0 ||
        event_add(&watch->event, NULL) != 0) {
        int errnum = errno;
        free(watch);
        return error_set_errno(error, errnum, "event loop: watching signal %d", signal_number);
    }
    LIST_INSERT_HEAD(&loop->signals, watch, entry);
    return STATUS_OK;
}

/* --- timers --- */

enum status loop_timer_new(struct loop *loop, loop_timer_function *function, void *context,
                           struct loop_timer **out, struct error *error)
{
    struct loop_timer *timer = calloc(1, sizeof(*timer));
    if (timer == NULL || !timer_heap_reserve(&loop->heap, loop->timer_count + 1)) {
        free(timer);
        return error_set(error, STATUS_NO_MEMORY, "event loop: out of memory for a timer");
    }
    *timer = (struct loop_timer){
        .node = {.index = TIMER_NODE_DISARMED}, .loop = loop, .function = function, .context = context};
    loop->timer_count++;
    LIST_INSERT_HEAD(&loop->timers, timer, entry);
    *out = timer;
    return STATUS_OK;
}

void loop_timer_set(struct loop_timer *timer, uint64_t deadline_ns)
{
    struct loop *loop = timer->loop;
    if (deadline_ns == TIME_NEVER) {
        timer_heap_remove(&loop->heap, &timer->node);
        return;
    }
    /* Not before the last pass: a timer that always asks for a past time fires after the other due ones. */
    uint64_t from_ns = deadline_ns > loop->timer_pass_ns ? deadline_ns : loop->timer_pass_ns;
    timer_heap_set(&loop->heap, &timer->node, from_ns);
}

void loop_timer_free(struct loop_timer *timer)
{
    if (timer == NULL) {
        return;
    }
    timer_heap_remove(&timer->loop->heap, &timer->node);
    timer->loop->timer_count--;
    LIST_REMOVE(timer, entry);
    free(timer);
}

/* Fires the timers that are due. Timers set meanwhile wait for the next turn, so that I/O gets its share. */
static void loop_run_timers(struct loop *loop)
{
    uint64_t set_before = loop->heap.set_number;
    loop->timer_pass_ns = loop_now_ns();
    for (;;) {
        struct timer_node *node = timer_heap_first(&loop->heap);
        if (node == NULL || node->deadline_ns > loop->timer_pass_ns || node->set_number >= set_before) {
            return;
        }
        timer_heap_remove(&loop->heap, node);
        struct loop_timer *timer = (struct loop_timer *)node;
        timer->function(timer->context, loop_now_ns());
    }
}

static void loop_program(struct loop *loop, uint64_t deadline_ns)
{
    if (deadline_ns == loop->programmed_ns) {
        return;
    }
    struct itimerspec at = {0};
    if (deadline_ns != TIME_NEVER) {
        at.it_value.tv_sec = (time_t)(deadline_ns / TIME_S);
        at.it_value.tv_nsec = (long)(deadline_ns % TIME_S);
        if (deadline_ns == 0) {
            at.it_value.tv_nsec = 1; /* zero would disarm the timerfd */
        }
    }
    if (timerfd_settime(loop->timer_fd, TFD_TIMER_ABSTIME, &at, NULL) != 0) {
        log_error("event loop: timerfd_settime: %s", strerrordesc_np(errno));
        return;
    }
    loop->programmed_ns = deadline_ns;
}

bool loop_is_due(const struct loop *loop, uint64_t now_ns)
{
    const struct timer_node *first = timer_heap_first(&loop->heap);
    return first != NULL && first->deadline_ns <= now_ns;
}

uint64_t loop_lag_ns(const struct loop *loop, uint64_t now_ns)
{
    return lag_worst_ns(&loop->lag, now_ns);
}

struct event_base *loop_event_base(const struct loop *loop)
{
    return loop->base;
}

/* --- turns --- */

enum status loop_run_once(struct loop *loop, uint64_t timeout_ms, struct error *error)
{
    uint64_t began_ns = loop_now_ns();
    uint64_t deadline_ns = 0;
    uint64_t timeout_ns;
    if (timeout_ms > 0) {
        bool fits = !__builtin_mul_overflow(timeout_ms, (uint64_t)TIME_MS, &timeout_ns);
        deadline_ns = fits ? time_after(began_ns, timeout_ns) : TIME_NEVER;
    }
    const struct timer_node *first = timer_heap_first(&loop->heap);
    if (first != NULL) {
        deadline_ns = time_min(deadline_ns, first->deadline_ns);
    }
    int flags = EVLOOP_ONCE;
    bool waits = deadline_ns > began_ns;
    if (!waits) {
        flags = EVLOOP_ONCE | EVLOOP_NONBLOCK; /* NONBLOCK alone continues while anything is ready */
    } else {
        loop_program(loop, deadline_ns);
    }
    errno = 0;
    if (event_base_loop(loop->base, flags) < 0) {
        return error_set(error, STATUS_INTERNAL, "event loop: libevent's %s backend failed (errno: %s)",
                         event_base_get_method(loop->base), strerrordesc_np(errno));
    }
    /* A timer that was set to a past time counts as set in the last pass. */
    uint64_t due_ns = !waits && loop->timer_pass_ns > deadline_ns ? loop->timer_pass_ns : deadline_ns;
    loop_run_timers(loop);
    lag_note(&loop->lag, due_ns, loop->timer_pass_ns);
    return STATUS_OK;
}
