#ifndef DAEMON_EXEC_EXEC_MAP_H
#define DAEMON_EXEC_EXEC_MAP_H

#include <stdatomic.h>

#include "daemon/coll/map.h"
#include "daemon/exec/exec.h"

/*
 * The part of a communicator that does not change after it is made. The main thread and all rails share one.
 * Any thread may read it, take a reference and release one. The release of the last reference frees the map
 * and returns its charge to the account.
 */
struct exec_map {
    struct exec_comm_options options; /* the main thread's; texts and arrays lie behind the map */
    struct coll_map ranks;
    uint64_t charged_bytes;
    atomic_uint references;
};

/* Copies options and all that they point to; the map has one reference. Its own bytes and share_bytes are
 * charged to the account. LIMIT, NO_MEMORY. */
enum status exec_map_new(const struct exec_comm_options *options, uint64_t share_bytes, struct exec_map **out,
                         struct error *error) COMM_MUST_USE;
struct exec_map *exec_map_ref(struct exec_map *map);
void exec_map_release(struct exec_map *map);

#endif
