#include <assert.h>

#include "daemon/coll/registry.h"
#include "daemon/coll/transfer.h"

/*
 * Binomial trees of blocks, counted from the root: Thakur, Rabenseifner and Gropp, "Optimization of
 * Collective Communication Operations in MPICH", 2005. In round r of a gather, nodes whose number is an odd
 * multiple of 2^r send. Such a node has the blocks of the 2^r nodes that begin with itself, as far as there
 * are nodes. It sends them to the node 2^r before it. A scatter runs the other way round. A range of nodes
 * counted from the root is a range of blocks around the circle: one transfer, or two if it passes the last
 * node.
 */

/* The round in which blocks travel `distance` nodes, towards the root or away from it. */
static void block_tree_step(const struct coll_call *call, uint32_t distance, bool to_root,
                            struct coll_round *out)
{
    assert(call->node_index < call->node_count && call->root_node < call->node_count);
    uint32_t self = call->node_index;
    uint32_t from_root = coll_from_root(call);
    bool is_child = from_root % (2 * distance) == distance;
    bool is_parent = from_root % (2 * distance) == 0 && from_root + distance < call->node_count;
    coll_round_begin(out);
    if (!is_child && !is_parent) {
        return;
    }
    uint32_t child = is_child ? from_root : from_root + distance;
    uint32_t child_node = coll_node_after(call, call->root_node, child);
    uint32_t other = is_child ? coll_node_before(call, self, distance) : child_node;
    uint32_t left = call->node_count - child;
    uint32_t blocks = left < distance ? left : distance;
    coll_add_circle(call, other, COLL_STORE, child_node, blocks,
                    is_child == to_root ? coll_sends(out) : coll_receives(out));
}

static void block_tree_gather_round(const struct coll_call *call, uint32_t round, struct coll_round *out)
{
    assert(round < coll_doubling_rounds(call));
    block_tree_step(call, UINT32_C(1) << round, true, out);
}

static void block_tree_scatter_round(const struct coll_call *call, uint32_t round, struct coll_round *out)
{
    assert(round < coll_doubling_rounds(call));
    block_tree_step(call, UINT32_C(1) << (coll_doubling_rounds(call) - 1 - round), false, out);
}

/* The root has a message in every round. It has two in the round whose blocks pass the last node: those of a
 * child with node 0 inside its range, not at the start of the range. */
static void block_tree_estimate(const struct coll_call *call, struct coll_estimate *out)
{
    double elements = coll_all_but_own(call);
    uint32_t rounds = coll_doubling_rounds(call);
    uint32_t to_first = call->node_count - call->root_node;
    bool wraps = call->root_node > 0 && (to_first & (to_first - 1)) != 0;
    *out = coll_estimate_of(rounds, elements);
    out->messages += wraps;
}

const struct coll_algorithm coll_tree_gather = {
    .id = 20,
    .name = "tree",
    .description =
        "best for many nodes: binomial tree, ceil(log2 n) rounds and messages at the root, blocks are passed "
        "on",
    .kind = OP_KIND_GATHER,
    .round_count = coll_doubling_rounds,
    .transfers_max = coll_two_transfers,
    .round = block_tree_gather_round,
    .estimate = block_tree_estimate,
};

const struct coll_algorithm coll_tree_scatter = {
    .id = 22,
    .name = "tree",
    .description =
        "best for many nodes: binomial tree, ceil(log2 n) rounds and messages at the root, blocks are passed "
        "on",
    .kind = OP_KIND_SCATTER,
    .round_count = coll_doubling_rounds,
    .transfers_max = coll_two_transfers,
    .round = block_tree_scatter_round,
    .estimate = block_tree_estimate,
};
