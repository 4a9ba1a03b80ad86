#include <assert.h>

#include "daemon/coll/registry.h"
#include "daemon/coll/transfer.h"

/*
 * Thakur, Rabenseifner and Gropp, "Optimization of Collective Communication Operations in MPICH", 2005: in
 * round r node i sends the block of node i + r + 1 and receives that of node i - r - 1. So every node has one
 * sender and one receiver at a time.
 */

static void pairwise_round(const struct coll_call *call, uint32_t round, struct coll_round *out)
{
    assert(call->node_index < call->node_count && round < coll_other_nodes(call));
    coll_round_begin(out);
    coll_add_block_pair(call, coll_node_after(call, call->node_index, round + 1),
                        coll_node_before(call, call->node_index, round + 1), out);
}

static void pairwise_estimate(const struct coll_call *call, struct coll_estimate *out)
{
    double elements = coll_all_but_own(call);
    uint32_t rounds = coll_other_nodes(call);
    *out = coll_estimate_of(rounds, elements);
}

const struct coll_algorithm coll_pairwise_all_to_all = {
    .id = 24,
    .name = "pairwise",
    .description = "best for large blocks: n-1 rounds, one node at a time, each block straight to its node",
    .kind = OP_KIND_ALL_TO_ALL,
    .round_count = coll_other_nodes,
    .transfers_max = coll_one_transfer,
    .round = pairwise_round,
    .estimate = pairwise_estimate,
};
