#include "daemon/coll/registry.h"

#include <stddef.h>
#include <string.h>

/*
 * Up to this size an all-reduce goes direct. Both families move the same bytes in the same number of messages
 * a node; they differ in waiting and in crowding. The ring waits for 2(n-1) messages one after the other,
 * direct for two: with 50 us a message from daemon to daemon, three nodes save 100 us already, more than
 * 256 KiB take at 25 Gbit/s (84 us). But direct has n - 1 senders converge on every node at once, and
 * together they should not overrun a switch port's share of its packet buffer, however many they are: past
 * that, losses cost more than the rounds save. What converges on a node is about the whole operation, hence
 * one bound on it for every node count. The figures are estimates, not measurements; the bound is the place
 * to put those.
 */
#define COLL_DIRECT_MAX_BYTES (UINT64_C(256) << 10)

/* Among two nodes there is nothing to crowd, and direct makes the ring's rounds. */
#define COLL_DIRECT_ALWAYS_NODES 2

static const struct coll_algorithm *const algorithms[] = {
    &coll_ring_all_reduce,
    &coll_direct_all_reduce,
    &coll_tree_broadcast,
    &coll_dissemination_barrier,
};
#define ALGORITHM_COUNT (sizeof algorithms / sizeof algorithms[0])

const struct coll_algorithm *const *coll_registry(uint32_t *count)
{
    *count = ALGORITHM_COUNT;
    return algorithms;
}

const struct coll_algorithm *coll_registry_by_id(uint32_t id)
{
    for (size_t i = 0; i < ALGORITHM_COUNT; i++) {
        if (algorithms[i]->id == id) {
            return algorithms[i];
        }
    }
    return NULL;
}

const struct coll_algorithm *coll_registry_by_name(enum op_kind kind, const char *name)
{
    for (size_t i = 0; i < ALGORITHM_COUNT; i++) {
        if (algorithms[i]->kind == kind && strcmp(algorithms[i]->name, name) == 0) {
            return algorithms[i];
        }
    }
    return NULL;
}

const struct coll_algorithm *coll_select(enum op_kind kind, uint32_t node_count, uint64_t size_bytes)
{
    switch (kind) {
    case OP_KIND_ALL_REDUCE:
        return node_count <= COLL_DIRECT_ALWAYS_NODES || size_bytes <= COLL_DIRECT_MAX_BYTES
                   ? &coll_direct_all_reduce
                   : &coll_ring_all_reduce;
    case OP_KIND_BROADCAST:
        return &coll_tree_broadcast;
    case OP_KIND_BARRIER:
        return &coll_dissemination_barrier;
    }
    return NULL;
}
