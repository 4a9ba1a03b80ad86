#include "daemon/coll/map.h"

#include <stdlib.h>

static bool map_allocate(struct coll_map *map)
{
    size_t nodes = map->node_count;
    size_t size = map->size;
    map->order = calloc(size, sizeof *map->order);
    map->node_first = calloc(nodes + 1, sizeof *map->node_first);
    map->local_of_rank = calloc(size, sizeof *map->local_of_rank);
    map->runs = calloc(size, sizeof *map->runs);
    map->run_first = calloc(nodes + 1, sizeof *map->run_first);
    return map->order != NULL && map->node_first != NULL && map->local_of_rank != NULL && map->runs != NULL &&
           map->run_first != NULL;
}

/* Finds the runs in rank order. Counts, at index node + 1, the ranks and the runs of each node. */
static void map_count(struct coll_map *map, const uint32_t *node_of_rank)
{
    for (uint32_t rank = 0; rank < map->size; rank++) {
        uint32_t node = node_of_rank[rank];
        map->node_first[node + 1]++;
        map->local_of_rank[rank] = UINT32_MAX;
        if (rank == 0 || node != node_of_rank[rank - 1]) {
            map->runs[map->run_count++] = (struct coll_run){.node = node};
            map->run_first[node + 1]++;
        }
        map->runs[map->run_count - 1].rank_count++;
    }
    for (uint32_t node = 0; node < map->node_count; node++) {
        map->node_first[node + 1] += map->node_first[node];
        map->run_first[node + 1] += map->run_first[node];
    }
}

bool coll_map_init(struct coll_map *map, const uint32_t *node_of_rank, uint32_t size, uint32_t node_count,
                   uint32_t node_index)
{
    *map = (struct coll_map){.size = size, .node_count = node_count, .node_index = node_index};
    uint32_t *ranks_placed = calloc(node_count, sizeof *ranks_placed);
    uint32_t *runs_placed = calloc(node_count, sizeof *runs_placed);
    bool complete = map_allocate(map) && ranks_placed != NULL && runs_placed != NULL;
    if (complete) {
        uint32_t rank = 0;
        map_count(map, node_of_rank);
        for (uint32_t r = 0; r < map->run_count; r++) {
            struct coll_run *run = &map->runs[r];
            run->slot = map->run_first[run->node] + runs_placed[run->node]++;
            run->first_local = ranks_placed[run->node];
            for (uint32_t i = 0; i < run->rank_count; i++, rank++) {
                uint32_t local = ranks_placed[run->node]++;
                map->order[map->node_first[run->node] + local] = rank;
                map->local_of_rank[rank] = run->node == node_index ? local : UINT32_MAX;
            }
        }
        map->local_count = map->node_first[node_index + 1] - map->node_first[node_index];
    }
    free(ranks_placed);
    free(runs_placed);
    return complete;
}

void coll_map_free(struct coll_map *map)
{
    free(map->order);
    free(map->node_first);
    free(map->local_of_rank);
    free(map->runs);
    free(map->run_first);
    *map = (struct coll_map){0};
}
