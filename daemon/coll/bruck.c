#include <assert.h>

#include "daemon/coll/registry.h"
#include "daemon/coll/transfer.h"

/*
 * Bruck, Ho, Kipnis, Upfal and Weathersby, "Efficient Algorithms for All-to-All Communications in Multiport
 * Message-Passing Systems", 1997.
 *
 * all_gather: in round r node i has the blocks of the 2^r nodes that begin with itself, around the circle. It
 * sends as many as are needed to node i - 2^r, and receives the following ones from i + 2^r. Blocks lie at
 * their final places from the beginning: nothing is rotated.
 *
 * all_to_all: a block for the node at distance d travels 2^r nodes in each round r whose bit is set in d, the
 * lowest bit first. In its first round it is sent from COLL_INPUT. In its last round it arrives in COLL_WORK.
 * In between it lies in COLL_SCRATCH, at a place for its distance. Scratch counts distances backwards, like
 * the nodes that blocks come from, so blocks that lie side by side travel together all the way. Nothing is
 * packed. So the messages of all rounds are about n, as in one direct round to all. The algorithm saves
 * partners, of which there are ceil(log2 n), not messages.
 */

/* --- all_gather --- */

/* Blocks that a node receives in the round. */
static uint32_t bruck_blocks(const struct coll_call *call, uint32_t distance)
{
    return (uint32_t)coll_least(distance, call->node_count - distance);
}

static void bruck_all_gather_round(const struct coll_call *call, uint32_t round, struct coll_round *out)
{
    uint32_t self = call->node_index;
    assert(self < call->node_count && round < coll_doubling_rounds(call));
    uint32_t distance = UINT32_C(1) << round;
    uint32_t blocks = bruck_blocks(call, distance);
    uint32_t from = coll_node_after(call, self, distance);
    coll_round_begin(out);
    coll_add_circle(call, coll_node_before(call, self, distance), COLL_STORE, self, blocks, coll_sends(out));
    coll_add_circle(call, from, COLL_STORE, from, blocks, coll_receives(out));
}

/* The blocks of the last node pass the end of the vector whenever it has at least two. */
static void bruck_all_gather_estimate(const struct coll_call *call, struct coll_estimate *out)
{
    double elements = coll_all_but_own(call);
    uint32_t rounds = coll_doubling_rounds(call);
    *out = coll_estimate_of(rounds, elements);
    for (uint32_t round = 0; round < rounds; round++) {
        out->messages += bruck_blocks(call, UINT32_C(1) << round) >= 2;
    }
}

/* --- all_to_all --- */

#define DISTANCE_FIRST 3 /* the smallest that has two bits, and so lies in scratch between them */

static bool bruck_serves(const struct coll_call *call)
{
    return call->blocks_are_equal;
}

static uint64_t bruck_block_elements(const struct coll_call *call)
{
    return call->count_elements / call->node_count;
}

static uint64_t bruck_scratch_elements(const struct coll_call *call)
{
    return call->node_count > DISTANCE_FIRST
               ? (call->node_count - DISTANCE_FIRST) * bruck_block_elements(call)
               : 0;
}

/*
 * The number of odd multiples of `step` below node_count. Each begins a run of distances that have this bit.
 */
static uint32_t bruck_runs(const struct coll_call *call, uint32_t step)
{
    return step < call->node_count ? (call->node_count - 1 - step) / (2 * step) + 1 : 0;
}

/* For each run: one block from the input, and the rest from scratch. In the first run the rest may pass the
 * end of the vector where it arrives. */
static uint32_t bruck_transfers_max(const struct coll_call *call)
{
    uint32_t most = 1;
    for (uint32_t step = 1; step < call->node_count; step *= 2) {
        uint32_t transfers = bruck_runs(call, step) * (step > 1 ? 2 : 1) + 1;
        most = transfers > most ? transfers : most;
    }
    return most;
}

/* Appends a message of `blocks` blocks of equal size, unless they are empty. */
static void bruck_add(const struct coll_call *call, uint32_t node, enum coll_space space, uint64_t first,
                      uint32_t blocks, struct coll_side side)
{
    uint64_t each = bruck_block_elements(call);
    if (each > 0 && blocks > 0) {
        side.transfers[(*side.count)++] = (struct coll_transfer){.node = node,
                                                                 .action = COLL_STORE,
                                                                 .space = space,
                                                                 .offset_elements = first * each,
                                                                 .count_elements = blocks * each};
    }
}

/* The scratch block at which runs of distances that end before `end` begin. */
static uint32_t bruck_scratch_block(const struct coll_call *call, uint32_t end)
{
    return call->node_count - end;
}

/* The transfers that `self` sends in the round of `step`. */
static void bruck_sends(const struct coll_call *call, uint32_t self, uint32_t step, struct coll_round *out)
{
    uint32_t nodes = call->node_count;
    uint32_t to = coll_node_after(call, self, step);
    for (uint32_t base = step; base < nodes; base += 2 * step) {
        uint32_t end = (uint32_t)coll_least(base + step, nodes);
        uint32_t rest = end - base - 1;
        bruck_add(call, to, COLL_INPUT, coll_node_after(call, self, base), 1, coll_sends(out));
        uint32_t scratch = bruck_scratch_block(call, end);
        uint32_t first = coll_node_before(call, to, end - 1); /* the node that sent its first block */
        uint32_t before_wrap = base == step && rest > nodes - first ? nodes - first : rest;
        bruck_add(call, to, COLL_SCRATCH, scratch, before_wrap, coll_sends(out));
        bruck_add(call, to, COLL_SCRATCH, scratch + before_wrap, rest - before_wrap, coll_sends(out));
    }
}

/* The transfers that `self` receives: those that the node `step` before it sends. */
static void bruck_receives(const struct coll_call *call, uint32_t self, uint32_t step, struct coll_round *out)
{
    uint32_t nodes = call->node_count;
    uint32_t from = coll_node_before(call, self, step);
    for (uint32_t base = step; base < nodes; base += 2 * step) {
        uint32_t end = (uint32_t)coll_least(base + step, nodes);
        uint32_t rest = end - base - 1;
        if (base > step) { /* not at their destination yet */
            bruck_add(call, from, COLL_SCRATCH, bruck_scratch_block(call, base + 1), 1, coll_receives(out));
            bruck_add(call, from, COLL_SCRATCH, bruck_scratch_block(call, end), rest, coll_receives(out));
            continue;
        }
        uint32_t first = coll_node_before(call, self, end - 1);
        uint32_t before_wrap = rest > nodes - first ? nodes - first : rest;
        bruck_add(call, from, COLL_WORK, from, 1, coll_receives(out));
        bruck_add(call, from, COLL_WORK, first, before_wrap, coll_receives(out));
        bruck_add(call, from, COLL_WORK, 0, rest - before_wrap, coll_receives(out));
    }
}

static void bruck_all_to_all_round(const struct coll_call *call, uint32_t round, struct coll_round *out)
{
    assert(call->node_index < call->node_count && round < coll_doubling_rounds(call) && bruck_serves(call));
    coll_round_begin(out);
    bruck_sends(call, call->node_index, UINT32_C(1) << round, out);
    bruck_receives(call, call->node_index, UINT32_C(1) << round, out);
}

static void bruck_all_to_all_estimate(const struct coll_call *call, struct coll_estimate *out)
{
    uint32_t nodes = call->node_count;
    uint32_t messages = 0;
    uint32_t blocks = 0;
    for (uint32_t step = 1; step < nodes; step *= 2) {
        uint32_t runs = bruck_runs(call, step);
        uint32_t last = step * (2 * runs - 1); /* where the last run begins */
        uint32_t last_blocks = (uint32_t)coll_least(step, nodes - last);
        uint32_t first_blocks = (uint32_t)coll_least(step, nodes - step);
        blocks += (runs - 1) * step + last_blocks;
        messages += runs;
        messages += step > 1 ? runs - (last_blocks == 1) : 0;
        messages += first_blocks > 2; /* at node 1, all blocks that can pass the end of the vector do */
    }
    double each = (double)call->count_elements / nodes;
    *out = (struct coll_estimate){.rounds = coll_doubling_rounds(call),
                                  .messages = messages,
                                  .senders = nodes > 1,
                                  .path_elements = blocks * each,
                                  .busy_elements = blocks * each,
                                  .scratch_elements =
                                      nodes > DISTANCE_FIRST ? (nodes - DISTANCE_FIRST) * each : 0};
}

const struct coll_algorithm coll_bruck_all_gather = {
    .id = 14,
    .name = "bruck",
    .description = "best for many nodes: ceil(log2 n) rounds, each other block in and out once",
    .kind = OP_KIND_ALL_GATHER,
    .round_count = coll_doubling_rounds,
    .transfers_max = coll_two_transfers,
    .round = bruck_all_gather_round,
    .estimate = bruck_all_gather_estimate,
};

const struct coll_algorithm coll_bruck_all_to_all = {
    .id = 25,
    .name = "bruck",
    .description = "for small equal blocks where each partner costs much: ceil(log2 n) rounds with one "
                   "partner each, about n messages, log2(n)/2 of the bytes",
    .kind = OP_KIND_ALL_TO_ALL,
    .copies_sends = true,
    .serves = bruck_serves,
    .round_count = coll_doubling_rounds,
    .transfers_max = bruck_transfers_max,
    .scratch_elements = bruck_scratch_elements,
    .round = bruck_all_to_all_round,
    .estimate = bruck_all_to_all_estimate,
};
