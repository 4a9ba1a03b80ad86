#include "daemon/coll/comm_map.h"

#include <stdlib.h>
#include <string.h>

#include "daemon/coll/overrides.h"

/* Size of the map, with the data that lies behind it. */
static size_t map_bytes(const struct comm_map *from)
{
    size_t nodes = from->ranks.node_count;
    size_t bytes = sizeof *from + nodes * sizeof(char *) + strlen(from->name) + 1;
    bytes += (nodes + from->ranks.size) * sizeof(uint32_t);
    bytes += from->overrides != NULL ? sizeof *from->overrides : 0;
    for (size_t node = 0; node < nodes; node++) {
        bytes += strlen(from->node_names[node]) + 1;
    }
    return bytes;
}

/* Copies to *end, and moves *end past the copy. */
static void *place(unsigned char **end, const void *from, size_t bytes)
{
    void *copy = *end;
    memcpy(copy, from, bytes);
    *end += bytes;
    return copy;
}

/* The arrays with the strictest alignment come first. */
static void copy_facts(struct comm_map *map, const struct comm_map *from)
{
    unsigned char *end = (unsigned char *)(map + 1);
    size_t nodes = from->ranks.node_count;
    memcpy(map, from, sizeof *map);
    map->ranks = (struct coll_map){0};
    map->account = from->account != NULL ? budget_ref(from->account) : NULL;
    const char **names = place(&end, from->node_names, nodes * sizeof *names);
    map->node_names = names;
    if (from->overrides != NULL) {
        map->overrides = place(&end, from->overrides, sizeof *from->overrides);
    }
    map->peers = place(&end, from->peers, nodes * sizeof *map->peers);
    map->node_of_rank = place(&end, from->node_of_rank, from->ranks.size * sizeof *map->node_of_rank);
    map->name = place(&end, from->name, strlen(from->name) + 1);
    for (size_t node = 0; node < nodes; node++) {
        names[node] = place(&end, names[node], strlen(names[node]) + 1);
    }
}

enum status comm_map_new(const struct comm_map *from, struct comm_map **out, struct error *error)
{
    const struct coll_map *ranks = &from->ranks;
    size_t bytes = map_bytes(from);
    struct comm_map *map = calloc(1, bytes);
    if (map == NULL) {
        return error_set(error, STATUS_NO_MEMORY, "no memory for communicator \"%s\"", from->name);
    }
    copy_facts(map, from);
    atomic_init(&map->references, 1);
    atomic_init(&map->charged_bytes, 0);
    enum status status = comm_map_charge(map, bytes + coll_map_bytes(ranks->size, ranks->node_count), error);
    if (status == STATUS_OK &&
        !coll_map_init(&map->ranks, map->node_of_rank, ranks->size, ranks->node_count, ranks->node_index)) {
        status = error_set(error, STATUS_NO_MEMORY, "no memory for communicator \"%s\"", from->name);
    }
    if (status != STATUS_OK) {
        comm_map_release(map);
        return status;
    }
    *out = map;
    return STATUS_OK;
}

struct comm_map *comm_map_ref(struct comm_map *map)
{
    atomic_fetch_add_explicit(&map->references, 1, memory_order_relaxed);
    return map;
}

void comm_map_release(struct comm_map *map)
{
    if (map != NULL && atomic_fetch_sub(&map->references, 1) == 1) {
        coll_map_free(&map->ranks);
        budget_release(map->account, BUDGET_COMMUNICATOR_BYTES, map->charged_bytes);
        budget_close(map->account);
        free(map);
    }
}

enum status comm_map_charge(struct comm_map *map, uint64_t bytes, struct error *error)
{
    struct error why;
    enum status status = budget_charge(map->account, BUDGET_COMMUNICATOR_BYTES, bytes, &why);
    if (status != STATUS_OK) {
        return error_set(error, status, "communicator \"%s\": %s", map->name, why.text);
    }
    atomic_fetch_add_explicit(&map->charged_bytes, bytes, memory_order_relaxed);
    return STATUS_OK;
}
