#ifndef TESTS_NETWORK_PART_NODES_H
#define TESTS_NETWORK_PART_NODES_H

#include "tests/network/mesh_node.h"
#include "tests/network/pump.h"

/*
 * Nodes with a mesh and one part above it, on a network of pipes. Time is the test's. Include it after these:
 * - struct node, with `net` (null: it does not run) and `mesh`;
 * - struct world, with `network`, `now_ns`, `nodes` and their `count`;
 * - node_start(world, index, instance), and node_part_next_ns(node) and node_part_tick(node, now_ns), which
 *   call the part.
 */

static inline void world_start(struct world *world, unsigned count)
{
    static const struct network_conditions calm = {.delay_ns = 50 * TIME_US, .jitter_ns = 50 * TIME_US};
    memset(world, 0, sizeof *world);
    world->network = network_new_pipes(1, &calm);
    world->count = count;
    for (unsigned i = 0; i < count; i++) {
        node_start(world, i, 100 + i);
    }
}

static inline uint64_t node_next_ns(const struct node *node)
{
    return node->net == NULL ? TIME_NEVER
                             : time_min(mesh_next_deadline_ns(node->mesh), node_part_next_ns(node));
}

static inline uint64_t world_next_ns(void *context)
{
    const struct world *world = context;
    uint64_t next_ns = TIME_NEVER;
    for (unsigned i = 0; i < world->count; i++) {
        next_ns = time_min(next_ns, node_next_ns(&world->nodes[i]));
    }
    return next_ns;
}

static inline bool world_tick(void *context, uint64_t now_ns)
{
    struct world *world = context;
    bool any = false;
    for (unsigned i = 0; i < world->count; i++) {
        struct node *node = &world->nodes[i];
        if (node_next_ns(node) <= now_ns) {
            mesh_tick(node->mesh, now_ns);
            node_part_tick(node, now_ns);
            any = true;
        }
    }
    return any;
}

static inline void run(struct world *world, uint64_t span_ns)
{
    struct pump pump = {world->network, &world->now_ns, world, world_next_ns, world_tick};
    pump_run(&pump, span_ns);
}

#endif
