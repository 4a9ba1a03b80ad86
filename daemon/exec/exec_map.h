#ifndef DAEMON_EXEC_EXEC_MAP_H
#define DAEMON_EXEC_EXEC_MAP_H

#include <stdatomic.h>

#include "daemon/coll/map.h"
#include "daemon/exec/exec.h"

/*
 * What of a communicator does not change after it is made: the home and its rails share one. Any thread reads
 * it, takes a reference and releases one; whoever releases the last one frees it, and what its account was
 * charged.
 */
struct exec_map {
    struct exec_comm_options options; /* the home's; texts and arrays lie behind the map */
    struct coll_map ranks;
    uint64_t charged_bytes;
    atomic_uint references;
};

/* A copy of all that options point to, with one reference. Its own bytes and share_bytes are charged to the
 * account. LIMIT, NO_MEMORY. */
enum status exec_map_new(const struct exec_comm_options *options, uint64_t share_bytes, struct exec_map **out,
                         struct error *error) COMM_MUST_USE;
struct exec_map *exec_map_ref(struct exec_map *map);
void exec_map_release(struct exec_map *map);

#endif
