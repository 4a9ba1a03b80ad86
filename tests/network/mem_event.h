#ifndef TESTS_NETWORK_MEM_EVENT_H
#define TESTS_NETWORK_MEM_EVENT_H

#include <stddef.h>
#include <stdint.h>

#include "daemon/base/error.h"
#include "daemon/base/timer_heap.h"

/*
 * What happens when: events by (time, order of scheduling), each part of what it happens to. Room for an
 * event is claimed when it is made, so that scheduling never fails. Scheduling, cancelling and taking are
 * O(log n).
 */
struct mem_event {
    struct timer_node node;
    /* Called when it is not scheduled any more; null before mem_event_claim and after mem_event_release. */
    void (*fire)(struct mem_event *event, uint64_t now_ns);
};

struct mem_events {
    struct timer_heap heap;
    size_t claimed;
};

/* Makes an event ready to be scheduled. NO_MEMORY. */
enum status mem_event_claim(struct mem_events *events, struct mem_event *event,
                            void (*fire)(struct mem_event *event, uint64_t now_ns)) COMM_MUST_USE;
/* Cancels it and gives its room back. Harmless for one that was zeroed and never claimed. */
void mem_event_release(struct mem_events *events, struct mem_event *event);

/* Replaces an earlier time. */
void mem_event_schedule(struct mem_events *events, struct mem_event *event, uint64_t at_ns);
void mem_event_cancel(struct mem_events *events, struct mem_event *event);

/* The next one, taken out when it is due at now_ns; null when none is. */
struct mem_event *mem_event_take(struct mem_events *events, uint64_t now_ns);
/* TIME_NEVER when nothing is scheduled. */
uint64_t mem_event_next_ns(const struct mem_events *events);

#endif
