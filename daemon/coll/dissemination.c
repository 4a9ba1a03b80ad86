#include <assert.h>

#include "daemon/coll/registry.h"
#include "daemon/coll/transfer.h"

/*
 * Hensgen, Finkel and Manber, "Two Algorithms for Barrier Synchronization", 1988: in round r node i signals
 * node i + 2^r, and waits for node i - 2^r. After round r it has, directly or through others, a signal of the
 * 2^(r+1) - 1 nodes before it.
 */

static void dissemination_round(const struct coll_call *call, uint32_t round, struct coll_round *out)
{
    uint32_t nodes = call->node_count;
    assert(call->node_index < nodes && round < coll_doubling_rounds(call));
    uint32_t distance = UINT32_C(1) << round;
    out->sends[0] =
        (struct coll_transfer){.node = (call->node_index + distance) % nodes, .action = COLL_STORE};
    out->send_count = 1;
    out->receives[0] =
        (struct coll_transfer){.node = (call->node_index + nodes - distance) % nodes, .action = COLL_STORE};
    out->receive_count = 1;
}

static void dissemination_estimate(const struct coll_call *call, struct coll_estimate *out)
{
    uint32_t rounds = coll_doubling_rounds(call);
    *out = coll_estimate_of(rounds, 0);
}

const struct coll_algorithm coll_dissemination_barrier = {
    .id = 4,
    .name = "dissemination",
    .description = "ceil(log2 n) rounds of one empty message each way",
    .kind = OP_KIND_BARRIER,
    .round_count = coll_doubling_rounds,
    .transfers_max = coll_one_transfer,
    .round = dissemination_round,
    .estimate = dissemination_estimate,
};
