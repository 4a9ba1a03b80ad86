#include <assert.h>
#include <stdlib.h>

#include "daemon/base/loop.h"
#include "daemon/base/time.h"
#include "tests/datagrams/virtual_time.h"

#define FD_MAX 4096

struct loop {
    char unused; /* unused, because all loops share `virtual` */
};

struct loop_timer {
    struct virtual_event event;
    loop_timer_function *function;
    void *context;
};

struct loop_watch {
    int fd;
    unsigned events;
    loop_watch_function *function;
    void *context;
};

static struct {
    struct timer_heap heap;
    uint64_t now_ns;
    struct loop_watch *watches[FD_MAX];
} virtual;

/* --- Time --- */

void virtual_event_set(struct virtual_event *event, uint64_t at_ns)
{
    if (!timer_heap_reserve(&virtual.heap, virtual.heap.count + 1)) {
        abort();
    }
    timer_heap_set(&virtual.heap, &event->node, at_ns > virtual.now_ns ? at_ns : virtual.now_ns);
}

void virtual_event_cancel(struct virtual_event *event)
{
    timer_heap_remove(&virtual.heap, &event->node);
}

uint64_t virtual_next_ns(void)
{
    const struct timer_node *first = timer_heap_first(&virtual.heap);
    return first == NULL ? TIME_NEVER : first->deadline_ns;
}

void virtual_advance(uint64_t now_ns)
{
    for (struct timer_node *first; (first = timer_heap_first(&virtual.heap)) != NULL;) {
        if (first->deadline_ns > now_ns) {
            break;
        }
        timer_heap_remove(&virtual.heap, first);
        virtual.now_ns = first->deadline_ns > virtual.now_ns ? first->deadline_ns : virtual.now_ns;
        struct virtual_event *event =
            (struct virtual_event *)((char *)first - offsetof(struct virtual_event, node));
        event->fire(event);
    }
    virtual.now_ns = now_ns > virtual.now_ns ? now_ns : virtual.now_ns;
}

void virtual_stand_still(uint64_t span_ns)
{
    virtual.now_ns += span_ns;
}

void virtual_time_start(void)
{
    assert(virtual.heap.count == 0);
    timer_heap_free(&virtual.heap);
    virtual.heap = (struct timer_heap){0};
    virtual.now_ns = 0;
}

/* --- daemon/base/loop.h --- */

uint64_t loop_now_ns(void)
{
    return virtual.now_ns;
}

enum status loop_new(struct loop **out, struct error *error)
{
    *out = calloc(1, sizeof **out);
    return *out != NULL ? STATUS_OK : error_set(error, STATUS_NO_MEMORY, "no memory for a loop");
}

void loop_free(struct loop *loop)
{
    free(loop);
}

enum status loop_run_once(struct loop *loop, uint64_t timeout_ms, struct error *error)
{
    (void)loop;
    (void)error;
    virtual_advance(time_min(virtual_next_ns(), time_after(virtual.now_ns, timeout_ms * TIME_MS)));
    return STATUS_OK;
}

/* Virtual time has no signals. */
enum status loop_signal(struct loop *loop, int signal_number, loop_signal_function *function, void *context,
                        struct error *error)
{
    (void)loop;
    (void)function;
    (void)context;
    return error_set(error, STATUS_INTERNAL, "signal %d in virtual time", signal_number);
}

static void timer_fired(struct virtual_event *event)
{
    struct loop_timer *timer = (struct loop_timer *)event;
    timer->function(timer->context, virtual.now_ns);
}

enum status loop_timer_new(struct loop *loop, loop_timer_function *function, void *context,
                           struct loop_timer **out, struct error *error)
{
    (void)loop;
    struct loop_timer *timer = calloc(1, sizeof *timer);
    if (timer == NULL) {
        return error_set(error, STATUS_NO_MEMORY, "no memory for a timer");
    }
    *timer = (struct loop_timer){{.node.index = TIMER_NODE_DISARMED, .fire = timer_fired}, function, context};
    *out = timer;
    return STATUS_OK;
}

void loop_timer_set(struct loop_timer *timer, uint64_t deadline_ns)
{
    if (deadline_ns == TIME_NEVER) {
        virtual_event_cancel(&timer->event);
    } else {
        virtual_event_set(&timer->event, deadline_ns);
    }
}

void loop_timer_free(struct loop_timer *timer)
{
    if (timer != NULL) {
        virtual_event_cancel(&timer->event);
        free(timer);
    }
}

void virtual_fd_ready(int fd, unsigned events)
{
    const struct loop_watch *watch = virtual.watches[fd];
    if (watch != NULL && (watch->events & events) != 0) {
        watch->function(watch->context, watch->events & events, virtual.now_ns);
    }
}

enum status loop_watch_new(struct loop *loop, int fd, unsigned events, loop_watch_function *function,
                           void *context, struct loop_watch **out, struct error *error)
{
    (void)loop;
    assert(fd >= 0 && fd < FD_MAX && virtual.watches[fd] == NULL);
    struct loop_watch *watch = calloc(1, sizeof *watch);
    if (watch == NULL) {
        return error_set(error, STATUS_NO_MEMORY, "no memory for a watch");
    }
    *watch = (struct loop_watch){fd, events, function, context};
    virtual.watches[fd] = watch;
    *out = watch;
    return STATUS_OK;
}

void loop_watch_set(struct loop_watch *watch, unsigned events)
{
    watch->events = events;
}

void loop_watch_free(struct loop_watch *watch)
{
    if (watch != NULL) {
        virtual.watches[watch->fd] = NULL;
        free(watch);
    }
}
