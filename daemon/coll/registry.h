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

/* All algorithms, in the order of their ids; *count gets how many. Static storage. Thread-safe, as is all
 * below. */
const struct coll_algorithm *const *coll_registry(uint32_t *count);

/* By wire id, or by name and kind; null when there is none. */
const struct coll_algorithm *coll_registry_by_id(uint32_t id);
const struct coll_algorithm *coll_registry_by_name(enum op_kind kind, const char *name);

/* --- Selection --- */

/* The network between the nodes of a communicator, by its worst link; agreed by all of them. */
struct coll_network {
    double latency_s;             /* of a small message, from daemon to daemon */
    double bandwidth_bytes_per_s; /* of a node, each way */
    double message_s;             /* one more message: what it costs its node's processor */
};

/* Where nothing was measured: 50 us, 10 Gbit/s, 5 us. */
extern const struct coll_network coll_network_default;

/* What algorithms are chosen by: agreed by all nodes, so that all choose the same. */
struct coll_choice {
    enum op_kind kind;
    uint32_t node_count;
    uint32_t root_node;     /* as coll_call's */
    uint64_t size_bytes;    /* of the whole operation's vector (coll_call): all blocks together */
    uint64_t element_bytes; /* 0 counts as 1: a barrier */
    uint64_t slice_bytes;   /* 0: one slice */
    bool blocks_are_equal;  /* all_to_all: as coll_call's */
};

/* Slices that one operation has under way at once; as many as the executor has lanes. */
#define COLL_LANES 8

/*
 * How long the operation takes, in seconds, by the algorithm's estimate of one slice:
 *
 *   path  = rounds × latency + messages × message_s + path_elements / bandwidth
 *   busy  = messages × message_s + busy_elements / bandwidth
 *   total = path + (slices - 1) × max(busy, path / COLL_LANES)
 *
 * the first slice all the way, and each further one when the busiest node has got through the one before, or
 * a lane is free again. slices = size / slice_bytes, at least 1, also a fraction; an all_to_all is one slice.
 * Where a schedule copies what it sends, that is added at COLL_COPY_BYTES_PER_S; where several send to one
 * node at once, those of its bytes beyond COLL_CROWD_BYTES take twice as long (registry.c says why). A model,
 * to compare by. network: null for the default.
 */
double coll_predict(const struct coll_algorithm *algorithm, const struct coll_choice *choice,
                    const struct coll_network *network);

/* Whether the algorithm can do it. */
bool coll_serves(const struct coll_algorithm *algorithm, const struct coll_choice *choice);

struct coll_overrides;

/*
 * The algorithm that the overrides name for the operation, if they do and it serves; otherwise the one with
 * the lowest predicted time, of equal ones the lowest id. A pure function of agreed values, so that every
 * node picks the same: times within a hundredth count as equal, whatever a machine's rounding makes of sums
 * that are the same. network, overrides: null for the default, and for none. Null for send and recv alone.
 */
const struct coll_algorithm *coll_select(const struct coll_choice *choice, const struct coll_network *network,
                                         const struct coll_overrides *overrides);

#endif
