#include "tests/network/mem_event.h"

#include <assert.h>

#include "daemon/base/time.h"

enum status mem_event_claim(struct mem_events *events, struct mem_event *event,
                            void (*fire)(struct mem_event *event, uint64_t now_ns))
{
    if (!timer_heap_reserve(&events->heap, events->claimed + 1)) {
        return STATUS_NO_MEMORY;
    }
    events->claimed++;
    event->node.index = TIMER_NODE_DISARMED;
    event->fire = fire;
    return STATUS_OK;
}

void mem_event_release(struct mem_events *events, struct mem_event *event)
{
    if (event->fire == NULL) {
        return;
    }
    mem_event_cancel(events, event);
    event->fire = NULL;
    assert(events->claimed > 0);
    events->claimed--;
}

void mem_event_schedule(struct mem_events *events, struct mem_event *event, uint64_t at_ns)
{
    assert(event->fire != NULL);
    timer_heap_set(&events->heap, &event->node, at_ns);
}

void mem_event_cancel(struct mem_events *events, struct mem_event *event)
{
    assert(event->fire != NULL);
    timer_heap_remove(&events->heap, &event->node);
}

struct mem_event *mem_event_take(struct mem_events *events, uint64_t now_ns)
{
    struct timer_node *node = timer_heap_first(&events->heap);
    if (node == NULL || node->deadline_ns > now_ns) {
        return NULL;
    }
    timer_heap_remove(&events->heap, node);
    return (struct mem_event *)((char *)node - offsetof(struct mem_event, node));
}

uint64_t mem_event_next_ns(const struct mem_events *events)
{
    const struct timer_node *node = timer_heap_first(&events->heap);
    return node == NULL ? TIME_NEVER : node->deadline_ns;
}
