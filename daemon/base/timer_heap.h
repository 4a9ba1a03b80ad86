#ifndef DAEMON_BASE_TIMER_HEAP_H
#define DAEMON_BASE_TIMER_HEAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * A binary heap that finds the next timer. Its nodes are embedded in their owners' structs. They are ordered
 * by deadline; nodes with equal deadlines keep the order in which they were set. Every operation is O(log n);
 * only timer_heap_reserve allocates. One thread at a time.
 */
#define TIMER_NODE_DISARMED SIZE_MAX

struct timer_node {
    uint64_t deadline_ns;
    uint64_t set_number;
    size_t index; /* in the heap; TIMER_NODE_DISARMED at first and when not in it */
};

/* All zero is an empty heap. timer_heap_free frees the array, not the nodes. */
struct timer_heap {
    struct timer_node **nodes;
    size_t count;
    size_t capacity;
    uint64_t set_number; /* of the next node that is set */
};

/* Makes room for `count` nodes, so that setting that many never fails. Returns false when out of memory. */
bool timer_heap_reserve(struct timer_heap *heap, size_t count) __attribute__((warn_unused_result));

/* Puts node into the heap, or moves it, with this deadline. The heap must have room. */
void timer_heap_set(struct timer_heap *heap, struct timer_node *node, uint64_t deadline_ns);

/* Takes node out; does nothing if it is not in the heap. */
void timer_heap_remove(struct timer_heap *heap, struct timer_node *node);

/* The node that is next, or null. */
static inline struct timer_node *timer_heap_first(const struct timer_heap *heap)
{
    return heap->count > 0 ? heap->nodes[0] : 0;
}

void timer_heap_free(struct timer_heap *heap);

#endif
