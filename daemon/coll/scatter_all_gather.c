#include <assert.h>

#include "daemon/coll/registry.h"
#include "daemon/coll/transfer.h"

/*
 * Barnett, Gupta, Payne, Shuler, van de Geijn and Watts, "Interprocessor Collective Communication Library",
 * 1994: a broadcast as a scatter of n parts along a binomial tree, then an all-gather around the ring, all
 * counted from the root. A node whose number is an odd multiple of 2^r gets the 2^r parts that begin with its
 * own in the scatter. The ring leaves out parts that a node already has, and the root receives nothing.
 */

static uint32_t scatter_all_gather_round_count(const struct coll_call *call)
{
    return call->node_count > 1 ? coll_doubling_rounds(call) + call->node_count - 1 : 0;
}

/* Whether the node has the part after the scatter. */
static bool scatter_leaves(const struct coll_call *call, uint32_t from_root, uint32_t part)
{
    uint32_t parts = from_root == 0 ? call->node_count : from_root & -from_root;
    return part >= from_root && part - from_root < parts;
}

static void scatter_step(const struct coll_call *call, uint32_t distance, struct coll_round *out)
{
    uint32_t nodes = call->node_count;
    uint32_t from_root = coll_from_root(call);
    if (from_root % (2 * distance) == distance) {
        coll_add_parts(call, coll_node_before(call, call->node_index, distance), COLL_STORE, nodes, from_root,
                       (uint32_t)coll_least(from_root + distance, nodes), coll_receives(out));
    } else if (from_root % (2 * distance) == 0 && from_root + distance < nodes) {
        coll_add_parts(call, coll_node_after(call, call->node_index, distance), COLL_STORE, nodes,
                       from_root + distance, (uint32_t)coll_least(from_root + 2 * distance, nodes),
                       coll_sends(out));
    }
}

static void all_gather_step(const struct coll_call *call, uint32_t step, struct coll_round *out)
{
    uint32_t nodes = call->node_count;
    uint32_t from_root = coll_from_root(call);
    uint32_t sent = (from_root + nodes - step) % nodes;
    uint32_t received = (from_root + 2 * nodes - step - 1) % nodes;
    if (!scatter_leaves(call, (from_root + 1) % nodes, sent)) {
        coll_add_part(call, coll_node_after(call, call->node_index, 1), sent, COLL_STORE, coll_sends(out));
    }
    if (!scatter_leaves(call, from_root, received)) {
        coll_add_part(call, coll_node_before(call, call->node_index, 1), received, COLL_STORE,
                      coll_receives(out));
    }
}

static void scatter_all_gather_round(const struct coll_call *call, uint32_t round, struct coll_round *out)
{
    assert(call->node_index < call->node_count && call->root_node < call->node_count &&
           round < scatter_all_gather_round_count(call));
    uint32_t scatter = coll_doubling_rounds(call);
    coll_round_begin(out);
    if (round < scatter) {
        scatter_step(call, UINT32_C(1) << (scatter - 1 - round), out);
    } else {
        all_gather_step(call, round - scatter, out);
    }
}

/* The root sends in every round. */
static void scatter_all_gather_estimate(const struct coll_call *call, struct coll_estimate *out)
{
    double elements = 2 * coll_all_but_own(call);
    uint32_t rounds = scatter_all_gather_round_count(call);
    *out = coll_estimate_of(rounds, elements);
}

const struct coll_algorithm coll_scatter_all_gather_broadcast = {
    .id = 9,
    .name = "scatter_all_gather",
    .description =
        "best for large operations of few slices: ceil(log2 n) + n - 1 rounds, 2(n-1)/n of the bytes",
    .kind = OP_KIND_BROADCAST,
    .round_count = scatter_all_gather_round_count,
    .transfers_max = coll_one_transfer,
    .round = scatter_all_gather_round,
    .estimate = scatter_all_gather_estimate,
};
