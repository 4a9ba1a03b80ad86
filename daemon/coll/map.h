#ifndef DAEMON_COLL_MAP_H
#define DAEMON_COLL_MAP_H

#include <stdbool.h>
#include <stdint.h>

/* A run of consecutive ranks on one node, as long as possible. */
struct coll_run {
    uint32_t node;
    uint32_t slot;        /* in node order */
    uint32_t first_local; /* index into its node's ranks */
    uint32_t rank_count;
};

/*
 * Which rank of a communicator is on which node, as seen by one of the nodes. Node order: the ranks of the
 * first node, ascending, then those of the next node, and so on. A rank's position is its index in that
 * order.
 */
struct coll_map {
    uint32_t size; /* ranks */
    uint32_t node_count;
    uint32_t node_index;     /* this node */
    uint32_t local_count;    /* ranks of this node */
    uint32_t *order;         /* size entries: the rank at each position */
    uint32_t *node_first;    /* node_count + 1 entries: the position of each node's first rank */
    uint32_t *local_of_rank; /* size entries: index among our ranks; UINT32_MAX: on other nodes */
    struct coll_run *runs;   /* in rank order */
    uint32_t run_count;      /* node_count when the ranks of every node are contiguous */
    uint32_t *run_first;     /* node_count + 1 entries: the first slot of each node */
};

/* node_of_rank: size entries below node_count; every node has at least one rank. Returns false if memory is
 * short. Call coll_map_free in either case. */
bool coll_map_init(struct coll_map *map, const uint32_t *node_of_rank, uint32_t size, uint32_t node_count,
                   uint32_t node_index) __attribute__((warn_unused_result));
void coll_map_free(struct coll_map *map);
/* Upper limit of the bytes that the map's arrays take. */
static inline uint64_t coll_map_bytes(uint32_t size, uint32_t node_count)
{
    return size * (2 * sizeof(uint32_t) + sizeof(struct coll_run)) +
           2 * (node_count + UINT64_C(1)) * sizeof(uint32_t);
}

/* The rank in the communicator of local rank `local`. */
static inline uint32_t coll_map_local_rank(const struct coll_map *map, uint32_t local)
{
    return map->order[map->node_first[map->node_index] + local];
}

/* Whether the ranks of every node are consecutive. */
static inline bool coll_map_is_contiguous(const struct coll_map *map)
{
    return map->run_count == map->node_count;
}

#endif
