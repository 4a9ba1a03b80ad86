#ifndef DAEMON_COLL_MAP_H
#define DAEMON_COLL_MAP_H

#include <stdbool.h>
#include <stdint.h>

/* Ranks that follow each other and are of one node: as many of them as there can be. */
struct coll_run {
    uint32_t node;
    uint32_t slot;        /* in node order */
    uint32_t first_local; /* index into its node's ranks */
    uint32_t rank_count;
};

/*
 * Which rank of a communicator is on which node, as one of the nodes sees it. Node order: the first node's
 * ranks, ascending, then those of the next; a rank's position is its index in that order.
 */
struct coll_map {
    uint32_t size; /* ranks */
    uint32_t node_count;
    uint32_t node_index;     /* ours */
    uint32_t local_count;    /* our ranks */
    uint32_t *order;         /* size: the rank at each position */
    uint32_t *node_first;    /* node_count + 1: the position of each node's first rank */
    uint32_t *local_of_rank; /* size: index into our ranks; UINT32_MAX for those of other nodes */
    struct coll_run *runs;   /* in rank order */
    uint32_t run_count;      /* node_count when the ranks of every node are contiguous */
    uint32_t *run_first;     /* node_count + 1: the first slot of each node */
};

/* node_of_rank: size entries below node_count; every node has one. False without memory. Free it in any case.
 */
bool coll_map_init(struct coll_map *map, const uint32_t *node_of_rank, uint32_t size, uint32_t node_count,
                   uint32_t node_index) __attribute__((warn_unused_result));
void coll_map_free(struct coll_map *map);
/* What its arrays take at most. */
static inline uint64_t coll_map_bytes(uint32_t size, uint32_t node_count)
{
    return size * (2 * sizeof(uint32_t) + sizeof(struct coll_run)) +
           2 * (node_count + UINT64_C(1)) * sizeof(uint32_t);
}

/* The rank of the communicator that is our `local`-th. */
static inline uint32_t coll_map_local_rank(const struct coll_map *map, uint32_t local)
{
    return map->order[map->node_first[map->node_index] + local];
}

/* Whether the ranks of every node follow each other. */
static inline bool coll_map_is_contiguous(const struct coll_map *map)
{
    return map->run_count == map->node_count;
}

#endif
