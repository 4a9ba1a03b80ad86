#include <assert.h>

#include "daemon/coll/registry.h"
#include "daemon/coll/transfer.h"

/*
 * Binomial trees of the whole vector, counted from the root: Thakur, Rabenseifner and Gropp, "Optimization of
 * Collective Communication Operations in MPICH", 2005. Broadcast: in round r each of the 2^r nodes that have
 * the data sends it to the node 2^r further, if there is one. Reduce: in round r a node whose number is an
 * odd multiple of 2^r sends the fold of 2^r nodes in order to the node 2^r before it. So the root folds all
 * in order, beginning with itself. All-reduce: a reduce, then a broadcast, both at node 0.
 */

static uint32_t tree_both_rounds(const struct coll_call *call)
{
    return 2 * coll_doubling_rounds(call);
}

static void tree_broadcast_round(const struct coll_call *call, uint32_t round, struct coll_round *out)
{
    assert(call->node_index < call->node_count && call->root_node < call->node_count &&
           round < coll_doubling_rounds(call));
    uint32_t self = call->node_index;
    uint32_t from_root = coll_from_root(call);
    uint32_t distance = UINT32_C(1) << round;
    coll_round_begin(out);
    if (from_root < distance && from_root + distance < call->node_count) {
        coll_add_all(call, coll_node_after(call, self, distance), COLL_STORE, coll_sends(out));
    } else if (from_root >= distance && from_root < 2 * distance) {
        coll_add_all(call, coll_node_before(call, self, distance), COLL_STORE, coll_receives(out));
    }
}

static void tree_reduce_round(const struct coll_call *call, uint32_t round, struct coll_round *out)
{
    assert(call->node_index < call->node_count && call->root_node < call->node_count &&
           round < coll_doubling_rounds(call));
    uint32_t self = call->node_index;
    uint32_t from_root = coll_from_root(call);
    uint32_t distance = UINT32_C(1) << round;
    coll_round_begin(out);
    if (from_root % (2 * distance) == distance) {
        coll_add_all(call, coll_node_before(call, self, distance), COLL_REDUCE, coll_sends(out));
    } else if (from_root % (2 * distance) == 0 && from_root + distance < call->node_count) {
        coll_add_all(call, coll_node_after(call, self, distance), COLL_REDUCE, coll_receives(out));
    }
}

static void tree_all_reduce_round(const struct coll_call *call, uint32_t round, struct coll_round *out)
{
    uint32_t phase = coll_doubling_rounds(call);
    if (round < phase) {
        tree_reduce_round(call, round, out);
    } else {
        tree_broadcast_round(call, round - phase, out);
    }
}

/* The root has the largest share: it sends, or receives, in every round. */
static void tree_estimate(const struct coll_call *call, struct coll_estimate *out)
{
    uint32_t rounds = coll_doubling_rounds(call);
    double elements = (double)call->count_elements * rounds;
    *out = coll_estimate_of(rounds, elements);
}

/* The root receives in one half and sends in the other. */
static void tree_all_reduce_estimate(const struct coll_call *call, struct coll_estimate *out)
{
    tree_estimate(call, out);
    out->rounds *= 2;
    out->path_elements *= 2;
}

const struct coll_algorithm coll_tree_broadcast = {
    .id = 3,
    .name = "tree",
    .description = "best for small operations: binomial tree, ceil(log2 n) rounds, every other node receives "
                   "the bytes once",
    .kind = OP_KIND_BROADCAST,
    .round_count = coll_doubling_rounds,
    .transfers_max = coll_one_transfer,
    .round = tree_broadcast_round,
    .estimate = tree_estimate,
};

const struct coll_algorithm coll_tree_all_reduce = {
    .id = 7,
    .name = "tree",
    .description =
        "binomial trees to node 0 and back: 2 ceil(log2 n) rounds of all bytes, 2(n-1) messages in "
        "all",
    .kind = OP_KIND_ALL_REDUCE,
    .round_count = tree_both_rounds,
    .transfers_max = coll_one_transfer,
    .round = tree_all_reduce_round,
    .estimate = tree_all_reduce_estimate,
};

const struct coll_algorithm coll_tree_reduce = {
    .id = 10,
    .name = "tree",
    .description =
        "best for small operations: binomial tree, ceil(log2 n) rounds, every other node sends the "
        "bytes once",
    .kind = OP_KIND_REDUCE,
    .round_count = coll_doubling_rounds,
    .transfers_max = coll_one_transfer,
    .round = tree_reduce_round,
    .estimate = tree_estimate,
};
