#ifndef TESTS_DATAGRAMS_VIRTUAL_TIME_H
#define TESTS_DATAGRAMS_VIRTUAL_TIME_H

#include "daemon/base/timer_heap.h"

/*
 * What stands in for daemon/base/loop.c in programs that link it: one clock for all loops of
 * the process, which moves when somebody says so, and what happens when. A watched descriptor is one of
 * network_datagram.c's sockets. loop_run_once moves the clock to what happens next.
 */
struct virtual_event {
    struct timer_node node; /* index TIMER_NODE_DISARMED at first */
    void (*fire)(struct virtual_event *event);
};

/* Past times are now. */
void virtual_event_set(struct virtual_event *event, uint64_t at_ns);
void virtual_event_cancel(struct virtual_event *event);
/* TIME_NEVER: nothing. */
uint64_t virtual_next_ns(void);
/* Lets everything happen that is due until then. */
void virtual_advance(uint64_t now_ns);
/* Nothing may be set. */
void virtual_time_start(void);

/* The watch of that descriptor is told. */
void virtual_fd_ready(int fd, unsigned events);

#endif
