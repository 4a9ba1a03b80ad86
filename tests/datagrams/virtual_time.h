#ifndef TESTS_DATAGRAMS_VIRTUAL_TIME_H
#define TESTS_DATAGRAMS_VIRTUAL_TIME_H

#include "daemon/base/timer_heap.h"

/*
 * Replaces daemon/base/loop.c in programs that link it. All loops of the process share one clock, which moves
 * only when the program asks for it. Events fire at set times. A watched descriptor is a socket of
 * network_datagram.c. loop_run_once moves the clock to the next event.
 */
struct virtual_event {
    struct timer_node node; /* its index must be TIMER_NODE_DISARMED at first */
    void (*fire)(struct virtual_event *event);
};

/* A time in the past means now. */
void virtual_event_set(struct virtual_event *event, uint64_t at_ns);
void virtual_event_cancel(struct virtual_event *event);
/* Returns TIME_NEVER if no event is set. */
uint64_t virtual_next_ns(void);
/* Moves the clock to now_ns, and fires every event that is due until then. */
void virtual_advance(uint64_t now_ns);
/* Moves the clock by that much without firing any event: the machine stood still. They fire late, then. */
void virtual_stand_still(uint64_t span_ns);
/* Sets the clock to 0. No event may be set. */
void virtual_time_start(void);

/* Tells the watch of that descriptor that it is ready. */
void virtual_fd_ready(int fd, unsigned events);

#endif
