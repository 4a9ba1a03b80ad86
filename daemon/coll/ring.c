#include <assert.h>
#include <stdbool.h>

#include "daemon/coll/transfer.h"

/*
 * Reduce-scatter, then all-gather, each n - 1 steps around the ring 0 -> 1 -> ... -> n-1 -> 0: Thakur,
 * Rabenseifner and Gropp, "Optimization of Collective Communication Operations in MPICH", 2005 (the ring
 * all-gather); Patarasuk and Yuan, "Bandwidth Optimal All-reduce Algorithms for Clusters of Workstations",
 * 2009 (the ring for both phases). In step s of the first phase node i passes on part i - 1 - s, so that the
 * parts come to rest where they have their number: after the phase node i holds part i of the result. Part p
 * is folded from node p + 1 onward, ending at p; every node then stores those same bits.
 */

static uint32_t ring_round_count(const struct coll_call *call)
{
    return 2 * (call->node_count - 1);
}

static uint32_t ring_transfers_max(const struct coll_call *call)
{
    (void)call;
    return 1;
}

static void ring_round(const struct coll_call *call, uint32_t round, struct coll_round *out)
{
    uint32_t nodes = call->node_count;
    uint32_t self = call->node_index;
    assert(self < nodes && round < ring_round_count(call));
    bool reducing = round < nodes - 1;
    /* How far behind this node's own number the part is that it sends. The one received is one further. */
    uint32_t behind = reducing ? round + 1 : round - (nodes - 1);
    enum coll_action action = reducing ? COLL_REDUCE : COLL_STORE;
    out->send_count = 0;
    out->receive_count = 0;
    coll_add_part(call, (self + 1) % nodes, (self + nodes - behind) % nodes, action, out->sends,
                  &out->send_count);
    coll_add_part(call, (self + nodes - 1) % nodes, (self + 2 * nodes - behind - 1) % nodes, action,
                  out->receives, &out->receive_count);
}

const struct coll_algorithm coll_ring_all_reduce = {
    .id = 1,
    .name = "ring",
    .description = "best for large operations: 2(n-1) rounds, 2(n-1)/n of the bytes each way, one neighbour "
                   "on each side",
    .kind = OP_KIND_ALL_REDUCE,
    .round_count = ring_round_count,
    .transfers_max = ring_transfers_max,
    .round = ring_round,
};
