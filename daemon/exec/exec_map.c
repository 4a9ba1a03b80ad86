#include "daemon/exec/exec_map.h"

#include <stdlib.h>
#include <string.h>

#include "daemon/base/budget.h"
#include "daemon/coll/overrides.h"

/* Size of the map, with the data that lies behind it. */
static size_t map_bytes(const struct exec_comm_options *options)
{
    size_t nodes = options->node_count;
    size_t bytes = sizeof(struct exec_map) + nodes * sizeof(char *) + strlen(options->name) + 1;
    bytes += (nodes + options->size) * sizeof(uint32_t);
    bytes += options->overrides != NULL ? sizeof *options->overrides : 0;
    for (size_t node = 0; node < nodes; node++) {
        bytes += strlen(options->node_names[node]) + 1;
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
static void copy_options(struct exec_map *map, const struct exec_comm_options *options)
{
    struct exec_comm_options *own = &map->options;
    unsigned char *end = (unsigned char *)(map + 1);
    size_t nodes = options->node_count;
    *own = *options;
    own->account = options->account != NULL ? budget_ref(options->account) : NULL;
    const char **names = place(&end, options->node_names, nodes * sizeof *names);
    own->node_names = names;
    if (options->overrides != NULL) {
        own->overrides = place(&end, options->overrides, sizeof *options->overrides);
    }
    own->peers = place(&end, options->peers, nodes * sizeof *own->peers);
    own->node_of_rank = place(&end, options->node_of_rank, options->size * sizeof *own->node_of_rank);
    own->name = place(&end, options->name, strlen(options->name) + 1);
    for (size_t node = 0; node < nodes; node++) {
        names[node] = place(&end, names[node], strlen(names[node]) + 1);
    }
}

enum status exec_map_new(const struct exec_comm_options *options, uint64_t share_bytes, struct exec_map **out,
                         struct error *error)
{
    size_t bytes = map_bytes(options);
    struct exec_map *map = calloc(1, bytes);
    struct error why;
    if (map == NULL) {
        return error_set(error, STATUS_NO_MEMORY, "no memory for communicator \"%s\"", options->name);
    }
    copy_options(map, options);
    atomic_init(&map->references, 1);
    uint64_t charged_bytes = bytes + share_bytes + coll_map_bytes(options->size, options->node_count);
    enum status status = budget_charge(map->options.account, BUDGET_COMMUNICATOR_BYTES, charged_bytes, &why);
    if (status != STATUS_OK) {
        exec_map_release(map);
        return error_set(error, status, "communicator \"%s\": %s", options->name, why.text);
    }
    map->charged_bytes = charged_bytes;
    if (!coll_map_init(&map->ranks, options->node_of_rank, options->size, options->node_count,
                       options->node_index)) {
        exec_map_release(map);
        return error_set(error, STATUS_NO_MEMORY, "no memory for communicator \"%s\"", options->name);
    }
    *out = map;
    return STATUS_OK;
}

struct exec_map *exec_map_ref(struct exec_map *map)
{
    atomic_fetch_add_explicit(&map->references, 1, memory_order_relaxed);
    return map;
}

void exec_map_release(struct exec_map *map)
{
    if (map != NULL && atomic_fetch_sub(&map->references, 1) == 1) {
        coll_map_free(&map->ranks);
        budget_release(map->options.account, BUDGET_COMMUNICATOR_BYTES, map->charged_bytes);
        budget_close(map->options.account);
        free(map);
    }
}
