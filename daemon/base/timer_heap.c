#include "daemon/base/timer_heap.h"

#include <assert.h>
#include <stdlib.h>

static bool timer_node_before(const struct timer_node *a, const struct timer_node *b)
{
    if (a->deadline_ns != b->deadline_ns) {
        return a->deadline_ns < b->deadline_ns;
    }
    return a->set_number < b->set_number;
}

static void timer_heap_place(struct timer_heap *heap, size_t index, struct timer_node *node)
{
    heap->nodes[index] = node;
    node->index = index;
}

/* Moves node from the free place `index` to where it belongs. */
static void timer_heap_sift(struct timer_heap *heap, size_t index, struct timer_node *node)
{
    while (index > 0 && timer_node_before(node, heap->nodes[(index - 1) / 2])) {
        timer_heap_place(heap, index, heap->nodes[(index - 1) / 2]);
        index = (index - 1) / 2;
    }
    for (;;) {
        size_t child = 2 * index + 1;
        if (child + 1 < heap->count && timer_node_before(heap->nodes[child + 1], heap->nodes[child])) {
            child++;
        }
        if (child >= heap->count || !timer_node_before(heap->nodes[child], node)) {
            break;
        }
        timer_heap_place(heap, index, heap->nodes[child]);
        index = child;
    }
    timer_heap_place(heap, index, node);
}

bool timer_heap_reserve(struct timer_heap *heap, size_t count)
{
    if (count <= heap->capacity) {
        return true;
    }
    size_t capacity = heap->capacity > 8 ? 2 * heap->capacity : 16;
    capacity = capacity > count ? capacity : count;
    struct timer_node **nodes = reallocarray(heap->nodes, capacity, sizeof(struct timer_node *));
    if (nodes == NULL) {
        return false;
    }
    heap->nodes = nodes;
    heap->capacity = capacity;
    return true;
}

void timer_heap_set(struct timer_heap *heap, struct timer_node *node, uint64_t deadline_ns)
{
    if (node->index == TIMER_NODE_DISARMED) {
        assert(heap->count < heap->capacity);
        node->index = heap->count++;
    }
    assert(node->index < heap->count);
    node->deadline_ns = deadline_ns;
    node->set_number = heap->set_number++;
    timer_heap_sift(heap, node->index, node);
}

void timer_heap_remove(struct timer_heap *heap, struct timer_node *node)
{
    if (node->index == TIMER_NODE_DISARMED) {
        return;
    }
    size_t index = node->index;
    assert(index < heap->count && heap->nodes[index] == node);
    node->index = TIMER_NODE_DISARMED;
    heap->count--;
    struct timer_node *last = heap->nodes[heap->count];
    if (last != node) {
        timer_heap_sift(heap, index, last);
    }
}

void timer_heap_free(struct timer_heap *heap)
{
    free(heap->nodes);
    *heap = (struct timer_heap){0};
}
