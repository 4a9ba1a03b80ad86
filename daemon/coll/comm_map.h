#ifndef DAEMON_COLL_COMM_MAP_H
#define DAEMON_COLL_COMM_MAP_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "daemon/base/budget.h"
#include "daemon/base/error.h"
#include "daemon/coll/map.h"
#include "daemon/coll/registry.h"

/*
 * What does not change of a communicator once it is formed, as one of its nodes sees it. exec, all its rails
 * and p2p share one map. Any thread may read it, take a reference and release one. The release of the last
 * reference frees the map and returns its charge to the account.
 */
struct comm_map {
    uint64_t comm_id;              /* the same on all nodes; never used by another communicator */
    uint32_t owner_uid;            /* the user whose turns it uses */
    const char *name;              /* for messages */
    struct coll_map ranks;         /* size, nodes, and which rank is where */
    const uint32_t *node_of_rank;  /* size. Nodes are ordered by their lowest rank */
    const uint32_t *peers;         /* node_count: net's peer index of each node; ignored for ourselves */
    const char *const *node_names; /* node_count, for messages */
    /* The owner's account: charged for what the communicator holds, on any thread. Null: nothing is charged.
     * The map keeps a reference. */
    struct budget_account *account;
    /* Agreed by all nodes: */
    uint64_t slice_bytes;
    uint32_t rail_count;                    /* 0 or 1: rail 0 alone. Ignored on one node */
    bool few_links;                         /* as in coll_choice */
    bool rails_wait;                        /* operations of several slices wait for exec_comm_use_rails */
    struct coll_network network;            /* input to the choice of algorithms */
    const struct coll_overrides *overrides; /* null for none */
    /* The map's own: */
    _Atomic uint64_t charged_bytes;
    atomic_uint references;
};

/*
 * Copies `from` and all that it points to; the map has one reference. Of from->ranks, only size, node_count
 * (1 to COLL_NODES_MAX) and node_index are read. The map's bytes are charged to the account. LIMIT,
 * NO_MEMORY.
 */
enum status comm_map_new(const struct comm_map *from, struct comm_map **out,
                         struct error *error) COMM_MUST_USE;
struct comm_map *comm_map_ref(struct comm_map *map);
/* Null is accepted. */
void comm_map_release(struct comm_map *map);
/* Charges further bytes of the communicator to its account, until the map is freed. LIMIT. */
enum status comm_map_charge(struct comm_map *map, uint64_t bytes, struct error *error) COMM_MUST_USE;

#endif
