#ifndef DAEMON_COLL_REGISTRY_H
#define DAEMON_COLL_REGISTRY_H

#include "daemon/coll/schedule.h"

extern const struct coll_algorithm coll_ring_all_reduce;
extern const struct coll_algorithm coll_direct_all_reduce;
extern const struct coll_algorithm coll_recursive_doubling_all_reduce;
extern const struct coll_algorithm coll_halving_doubling_all_reduce;
extern const struct coll_algorithm coll_tree_all_reduce;
extern const struct coll_algorithm coll_tree_broadcast;
extern const struct coll_algorithm coll_chain_broadcast;
extern const struct coll_algorithm coll_scatter_all_gather_broadcast;
extern const struct coll_algorithm coll_dissemination_barrier;
extern const struct coll_algorithm coll_tree_reduce;
extern const struct coll_algorithm coll_chain_reduce;
extern const struct coll_algorithm coll_scatter_gather_reduce;
extern const struct coll_algorithm coll_ring_all_gather;
extern const struct coll_algorithm coll_bruck_all_gather;
extern const struct coll_algorithm coll_direct_all_gather;
extern const struct coll_algorithm coll_ring_reduce_scatter;
extern const struct coll_algorithm coll_direct_reduce_scatter;
extern const struct coll_algorithm coll_halving_reduce_scatter;
extern const struct coll_algorithm coll_direct_gather;
extern const struct coll_algorithm coll_tree_gather;
extern const struct coll_algorithm coll_direct_scatter;
extern const struct coll_algorithm coll_tree_scatter;
extern const struct coll_algorithm coll_direct_all_to_all;
extern const struct coll_algorithm coll_pairwise_all_to_all;
extern const struct coll_algorithm coll_bruck_all_to_all;
extern const struct coll_algorithm coll_hillis_steele_scan;
extern const struct coll_algorithm coll_chain_scan;
extern const struct coll_algorithm coll_hillis_steele_exclusive_scan;
extern const struct coll_algorithm coll_chain_exclusive_scan;

/* All algorithms, in the order of their ids; *count gets their number. Static storage. Thread-safe, as are
 * all functions below. */
const struct coll_algorithm *const *coll_registry(uint32_t *count);

/* Finds an algorithm by wire id, or by name and kind. Returns null if there is none. */
const struct coll_algorithm *coll_registry_by_id(uint32_t id);
const struct coll_algorithm *coll_registry_by_name(enum op_kind kind, const char *name);

/* --- Selection --- */

/* The network between the nodes of a communicator, described by its worst link. All nodes agree on it. */
struct coll_network {
    double latency_s;             /* of a small message, from daemon to daemon */
    double bandwidth_bytes_per_s; /* of a node, each way */
    double message_s;             /* processor time that one more message costs its node */
};

/* Used where nothing was measured: 50 us, 10 Gbit/s, 5 us. */
extern const struct coll_network coll_network_default;

/* What the choice of an algorithm depends on. All nodes agree on it, so all choose the same algorithm. */
struct coll_choice {
    enum op_kind kind;
    uint32_t node_count;
    uint32_t root_node;     /* as in coll_call */
    uint64_t size_bytes;    /* of the whole operation's vector (coll_call): all blocks together */
    uint64_t element_bytes; /* 0 counts as 1 (a barrier) */
    uint64_t slice_bytes;   /* 0: one slice */
    bool blocks_are_equal;  /* all_to_all: as in coll_call */
    bool few_links; /* no node sends to all others in one round, where another algorithm serves: connections
                       are dialled when they are first used */
};

/* Slices of one operation that are in flight at once: the executor has as many lanes. */
#define COLL_LANES 8

/*
 * How long the operation takes, in seconds, by the algorithm's estimate of one slice:
 *
 *   path  = rounds × latency + messages × message_s + path_elements / bandwidth
 *   busy  = messages × message_s + busy_elements / bandwidth
 *   total = path + (slices - 1) × max(busy, path / COLL_LANES)
 *
 * The first slice takes the whole path. Each further slice follows when the busiest node is done with the
 * previous one, or when a lane is free again. slices = size / slice_bytes, at least 1; it may be a fraction.
 * An all_to_all is one slice. If the executor copies what it sends (copies_sends), the copy is added at
 * COLL_COPY_BYTES_PER_S. Where several nodes send to one node at once, the bytes beyond COLL_CROWD_BYTES take
 * twice as long (registry.c gives the reason). This is a model: use it only to compare algorithms. network:
 * null for the default.
 */
double coll_predict(const struct coll_algorithm *algorithm, const struct coll_choice *choice,
                    const struct coll_network *network);

/* Whether the algorithm can carry out the operation. */
bool coll_serves(const struct coll_algorithm *algorithm, const struct coll_choice *choice);

struct coll_overrides;

/*
 * Returns the algorithm that the overrides name for the operation, if there is one and it serves the
 * operation. Otherwise returns the one with the lowest predicted time; among equal times, the lowest id. It
 * is a pure function of agreed values, so every node picks the same. Times within 1 % count as equal, so
 * different rounding on different machines does not matter. network: null for the default. overrides: null
 * for none. Returns null only for send and recv.
 */
const struct coll_algorithm *coll_select(const struct coll_choice *choice, const struct coll_network *network,
                                         const struct coll_overrides *overrides);

#endif
