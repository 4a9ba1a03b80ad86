#include <assert.h>

#include "daemon/coll/registry.h"
#include "daemon/coll/transfer.h"

/*
 * Nodes pass the data along a line, for operations of many slices. While one slice travels on, the next ones
 * follow, and every link carries the bytes once ("pipeline" in Pjesivac-Grbovic and others, "Performance
 * Analysis of MPI Collective Operations", 2007). A broadcast begins at the root. A reduce ends there, and
 * folds from the last node on. A scan runs from node 0 to the last node.
 */

/*
 * The round in which position `at` of the line sends to the next position; the line begins at node `first`.
 */
static void chain_step(const struct coll_call *call, uint32_t first, uint32_t at, enum coll_action action,
                       struct coll_round *out)
{
    uint32_t position = coll_node_before(call, call->node_index, first);
    coll_round_begin(out);
    if (position == at) {
        coll_add_all(call, coll_node_after(call, call->node_index, 1), action, coll_sends(out));
    } else if (position == at + 1) {
        coll_add_all(call, coll_node_before(call, call->node_index, 1), action, coll_receives(out));
    }
}

static void chain_broadcast_round(const struct coll_call *call, uint32_t round, struct coll_round *out)
{
    assert(call->node_index < call->node_count && round < coll_other_nodes(call));
    chain_step(call, call->root_node, round, COLL_STORE, out);
}

static void chain_reduce_round(const struct coll_call *call, uint32_t round, struct coll_round *out)
{
    assert(call->node_index < call->node_count && round < coll_other_nodes(call));
    uint32_t sender = call->node_count - 1 - round; /* counted from the root */
    uint32_t from_root = coll_from_root(call);
    coll_round_begin(out);
    if (from_root == sender) {
        coll_add_all(call, coll_node_before(call, call->node_index, 1), COLL_REDUCE, coll_sends(out));
    } else if (from_root + 1 == sender) {
        coll_add_all(call, coll_node_after(call, call->node_index, 1), COLL_REDUCE, coll_receives(out));
    }
}

static void chain_scan_round(const struct coll_call *call, uint32_t round, struct coll_round *out)
{
    assert(call->node_index < call->node_count && round < coll_other_nodes(call));
    chain_step(call, 0, round, COLL_PREFIX, out);
}

static void chain_estimate(const struct coll_call *call, struct coll_estimate *out)
{
    uint32_t rounds = coll_other_nodes(call);
    double elements = (double)call->count_elements;
    *out = (struct coll_estimate){.rounds = rounds,
                                  .messages = rounds > 0,
                                  .senders = rounds > 0,
                                  .path_elements = elements * rounds,
                                  .busy_elements = rounds > 0 ? elements : 0};
}

/* The algorithm for one kind of operation. */
#define CHAIN(number, of_kind, round_function)                                                               \
    {                                                                                                        \
        .id = (number), .name = "chain",                                                                     \
        .description = "best for operations of many slices: n-1 rounds, every node passes the bytes on "     \
                       "once",                                                                               \
        .kind = (of_kind), .round_count = coll_other_nodes, .transfers_max = coll_one_transfer,              \
        .round = (round_function), .estimate = chain_estimate,                                               \
    }

const struct coll_algorithm coll_chain_broadcast = CHAIN(8, OP_KIND_BROADCAST, chain_broadcast_round);
const struct coll_algorithm coll_chain_reduce = CHAIN(11, OP_KIND_REDUCE, chain_reduce_round);
const struct coll_algorithm coll_chain_scan = CHAIN(27, OP_KIND_SCAN, chain_scan_round);
const struct coll_algorithm coll_chain_exclusive_scan = CHAIN(29, OP_KIND_EXCLUSIVE_SCAN, chain_scan_round);
