#ifndef TESTS_UNIT_COLL_LAYOUTS_H
#define TESTS_UNIT_COLL_LAYOUTS_H

#include <stdint.h>
#include <stdlib.h>

#include "tests/checker/check.h"

/* Calls of every kind, with vectors and blocks of many shapes. */

enum layout {
    LAYOUT_NOTHING,
    LAYOUT_ONE,         /* one element; of blocks, each has one */
    LAYOUT_ONE_FEWER,   /* than nodes; the last block has none */
    LAYOUT_NODES,       /* as many as nodes; of blocks, each has twelve */
    LAYOUT_ONE_MORE,    /* the first block has two */
    LAYOUT_ODD,         /* 2n + 1; blocks of 0, 1, 2, 0, 1, 2, ... */
    LAYOUT_MANY,        /* 1000; blocks that grow */
    LAYOUT_FIRST_ALONE, /* the first block has all */
    LAYOUT_LAST_ALONE,  /* the last block has all */
    LAYOUT_SOME,        /* every third block from the second on */
    LAYOUT_COUNT
};

static inline uint64_t layout_block(enum layout layout, uint32_t nodes, uint32_t node)
{
    switch (layout) {
    case LAYOUT_NOTHING:
        return 0;
    case LAYOUT_ONE:
        return 1;
    case LAYOUT_ONE_FEWER:
        return node + 1 < nodes;
    case LAYOUT_NODES:
        return 12;
    case LAYOUT_ONE_MORE:
        return node == 0 ? 2 : 1;
    case LAYOUT_ODD:
        return node % 3;
    case LAYOUT_MANY:
        return 1 + node;
    case LAYOUT_FIRST_ALONE:
        return node == 0 ? 7 : 0;
    case LAYOUT_LAST_ALONE:
        return node + 1 == nodes ? 7 : 0;
    case LAYOUT_SOME:
        return node % 3 == 1 ? 5 : 0;
    case LAYOUT_COUNT:
        break;
    }
    return 0;
}

static inline uint64_t layout_count(enum layout layout, uint32_t nodes)
{
    switch (layout) {
    case LAYOUT_NOTHING:
        return 0;
    case LAYOUT_ONE:
        return 1;
    case LAYOUT_ONE_FEWER:
        return nodes - 1;
    case LAYOUT_NODES:
        return nodes;
    case LAYOUT_ONE_MORE:
        return nodes + UINT64_C(1);
    case LAYOUT_ODD:
        return 2 * (uint64_t)nodes + 1;
    case LAYOUT_MANY:
    case LAYOUT_FIRST_ALONE:
    case LAYOUT_LAST_ALONE:
    case LAYOUT_SOME:
    case LAYOUT_COUNT:
        break;
    }
    return 1000;
}

/* A barrier has no elements. The last layout for kinds without blocks is LAYOUT_MANY. */
static inline bool layout_exists(enum op_kind kind, enum layout layout)
{
    return kind == OP_KIND_BARRIER ? layout == LAYOUT_NOTHING
                                   : op_kind_has_blocks(kind) || layout <= LAYOUT_MANY;
}

/* A call and its offsets. An all_to_all has counts by sender and receiver, too. */
struct layout_call {
    struct coll_call call;
    uint64_t *offsets;
    uint64_t *counts;
};

/* How many elements node `from` has for node `to` in an all_to_all of that layout. In some layouts the sizes
 * have another order for every sender. In the others, every sender has the size of node `to`'s block. */
static inline uint64_t layout_pair(enum layout layout, uint32_t nodes, uint32_t from, uint32_t to)
{
    bool turned = layout == LAYOUT_ONE_FEWER || layout == LAYOUT_ONE_MORE || layout == LAYOUT_ODD ||
                  layout == LAYOUT_MANY || layout == LAYOUT_SOME;
    return layout_block(layout, nodes, turned ? (2 * from + to) % nodes : to);
}

static inline struct layout_call layout_call(enum op_kind kind, uint32_t nodes, uint32_t root,
                                             enum layout layout)
{
    struct layout_call made = {.call = {.kind = kind, .node_count = nodes, .root_node = root}};
    if (!op_kind_has_blocks(kind)) {
        made.call.count_elements = kind == OP_KIND_BARRIER ? 0 : layout_count(layout, nodes);
        return made;
    }
    made.offsets = calloc((size_t)nodes + 1, sizeof *made.offsets);
    made.counts = calloc((size_t)nodes * nodes, sizeof *made.counts);
    if (made.offsets == NULL || made.counts == NULL) {
        abort();
    }
    for (uint32_t node = 0; node < nodes; node++) {
        made.offsets[node + 1] = made.offsets[node] + layout_block(layout, nodes, node);
        for (uint32_t to = 0; to < nodes; to++) {
            made.counts[(size_t)node * nodes + to] = layout_pair(layout, nodes, node, to);
        }
    }
    made.call.count_elements = made.offsets[nodes];
    made.call.block_offsets = made.offsets;
    if (kind == OP_KIND_ALL_TO_ALL) {
        made.call.send_offsets = made.offsets;
        made.call.blocks_are_equal =
            layout == LAYOUT_NOTHING || layout == LAYOUT_ONE || layout == LAYOUT_NODES;
    }
    return made;
}

static inline void layout_free(struct layout_call *made)
{
    free(made->offsets);
    free(made->counts);
    *made = (struct layout_call){0};
}

static inline enum status layout_check(const struct coll_algorithm *algorithm, const struct layout_call *made,
                                       struct coll_cost *cost, struct error *error)
{
    return made->call.kind == OP_KIND_ALL_TO_ALL && !made->call.blocks_are_equal
               ? coll_check_all_to_all(algorithm, &made->call, made->counts, cost, error)
               : coll_check(algorithm, &made->call, cost, error);
}

#endif
