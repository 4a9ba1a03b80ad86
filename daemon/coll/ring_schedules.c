#include <assert.h>

#include "daemon/coll/registry.h"
#include "daemon/coll/transfer.h"

/*
 * Around the ring 0 -> 1 -> ... -> n-1 -> 0, in n - 1 steps: Thakur, Rabenseifner and Gropp, "Optimization of
 * Collective Communication Operations in MPICH", 2005 (the all-gather); Patarasuk and Yuan, "Bandwidth
 * Optimal All-reduce Algorithms for Clusters of Workstations", 2009 (reduce-scatter, then all-gather). In
 * step s of the reduce-scatter, node i passes on part i - 1 - s. So after this phase node i holds part i of
 * the result. Part p is folded from node p + 1 onward, ending at p. In the all-reduce every node then stores
 * these same bits.
 */

static uint32_t ring_both_rounds(const struct coll_call *call)
{
    return 2 * coll_other_nodes(call);
}

/* A step in which every node sends the part `behind` before its own number, and receives the part before that
 * one. */
static void ring_step(const struct coll_call *call, uint32_t behind, enum coll_action action,
                      struct coll_round *out)
{
    uint32_t self = call->node_index;
    assert(self < call->node_count && behind < call->node_count);
    coll_round_begin(out);
    coll_add_part(call, coll_node_after(call, self, 1), coll_node_before(call, self, behind), action,
                  coll_sends(out));
    coll_add_part(call, coll_node_before(call, self, 1), coll_node_before(call, self, behind + 1), action,
                  coll_receives(out));
}

static void ring_reduce_scatter_round(const struct coll_call *call, uint32_t round, struct coll_round *out)
{
    assert(round < coll_other_nodes(call));
    ring_step(call, round + 1, COLL_REDUCE, out);
}

static void ring_all_gather_round(const struct coll_call *call, uint32_t round, struct coll_round *out)
{
    assert(round < coll_other_nodes(call));
    ring_step(call, round, COLL_STORE, out);
}

static void ring_all_reduce_round(const struct coll_call *call, uint32_t round, struct coll_round *out)
{
    uint32_t phase = coll_other_nodes(call);
    if (round < phase) {
        ring_reduce_scatter_round(call, round, out);
    } else {
        ring_all_gather_round(call, round - phase, out);
    }
}

static void ring_phase_estimate(const struct coll_call *call, struct coll_estimate *out)
{
    double elements = coll_all_but_own(call);
    uint32_t rounds = coll_other_nodes(call);
    *out = coll_estimate_of(rounds, elements);
}

static void ring_both_estimate(const struct coll_call *call, struct coll_estimate *out)
{
    ring_phase_estimate(call, out);
    coll_estimate_double(out);
}

const struct coll_algorithm coll_ring_all_reduce = {
    .id = 1,
    .name = "ring",
    .description = "best for large operations: 2(n-1) rounds, 2(n-1)/n of the bytes each way, one neighbour "
                   "on each side",
    .kind = OP_KIND_ALL_REDUCE,
    .round_count = ring_both_rounds,
    .transfers_max = coll_one_transfer,
    .round = ring_all_reduce_round,
    .estimate = ring_both_estimate,
};

const struct coll_algorithm coll_ring_all_gather = {
    .id = 13,
    .name = "ring",
    .description =
        "best for large operations: n-1 rounds, each other block in and out once, one neighbour on "
        "each side",
    .kind = OP_KIND_ALL_GATHER,
    .round_count = coll_other_nodes,
    .transfers_max = coll_one_transfer,
    .round = ring_all_gather_round,
    .estimate = ring_phase_estimate,
};

const struct coll_algorithm coll_ring_reduce_scatter = {
    .id = 16,
    .name = "ring",
    .description =
        "best for large operations: n-1 rounds, each other block in and out once, one neighbour on "
        "each side",
    .kind = OP_KIND_REDUCE_SCATTER,
    .round_count = coll_other_nodes,
    .transfers_max = coll_one_transfer,
    .round = ring_reduce_scatter_round,
    .estimate = ring_phase_estimate,
};
