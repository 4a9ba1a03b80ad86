#include <assert.h>

#include "daemon/coll/registry.h"
#include "daemon/coll/transfer.h"

/*
 * Recursive halving: Rabenseifner, "Optimization of Collective Reduction Operations", 2004; Thakur,
 * Rabenseifner and Gropp, "Optimization of Collective Communication Operations in MPICH", 2005. In each step,
 * active nodes whose numbers differ in one bit (the highest first) exchange half of their range of parts:
 * each sends the half that the peer keeps, and folds the half that it keeps. At the end each has its own part
 * of the result. The parts are
 *   reduce_scatter  the blocks of the nodes that an active node represents. If it represents another node,
 *                   that node then gets its block
 *   all_reduce      one part of the vector for each active node; the way back (doubling) gathers the parts
 *   reduce          the same, but the parts are gathered to the root alone, which always is active
 */

#define NOBODY UINT32_MAX

/* --- Steps --- */

/* Whether the node is active; *number gets its number among the active nodes. */
static bool halving_is_active(const struct coll_call *call, const struct coll_fold *fold, uint32_t *number)
{
    *number = coll_fold_number(fold, call->node_index);
    return coll_fold_node(fold, *number) == call->node_index;
}

/* The range of the vector that belongs to the aligned group of `width` active nodes around `number`. */
static void halving_range(const struct coll_call *call, const struct coll_fold *fold, uint32_t number,
                          uint32_t width, uint64_t *begin, uint64_t *end)
{
    uint32_t first = number & ~(width - 1);
    if (call->block_offsets != NULL) {
        *begin = call->block_offsets[coll_fold_first(fold, first)];
        *end = call->block_offsets[coll_fold_first(fold, first + width)];
    } else {
        *begin = coll_part_begin(call, fold->active, first);
        *end = coll_part_begin(call, fold->active, first + width);
    }
}

static void halving_add(const struct coll_call *call, const struct coll_fold *fold, uint32_t other,
                        uint32_t number, uint32_t width, enum coll_action action, struct coll_side side)
{
    uint64_t begin;
    uint64_t end;
    halving_range(call, fold, number, width, &begin, &end);
    coll_add_range(call, coll_fold_node(fold, other), action, begin, end, side);
}

/* Halving: ranges of 2 × width become ranges of width. Doubling: the other way round. */
static void halving_step(const struct coll_call *call, const struct coll_fold *fold, uint32_t width,
                         bool doubles, struct coll_round *out)
{
    uint32_t number;
    if (halving_is_active(call, fold, &number)) {
        uint32_t other = number ^ width;
        enum coll_action action = doubles ? COLL_STORE : COLL_REDUCE;
        halving_add(call, fold, other, doubles ? number : other, width, action, coll_sends(out));
        halving_add(call, fold, other, doubles ? other : number, width, action, coll_receives(out));
    }
}

/* Like doubling, but only towards the root, along a binomial tree of the numbers' differing bits. */
static void gathering_step(const struct coll_call *call, const struct coll_fold *fold, uint32_t width,
                           struct coll_round *out)
{
    uint32_t number;
    if (!halving_is_active(call, fold, &number)) {
        return;
    }
    uint32_t differing = number ^ coll_fold_number(fold, call->root_node);
    uint32_t other = number ^ width;
    if (differing % (2 * width) == width) {
        halving_add(call, fold, other, number, width, COLL_STORE, coll_sends(out));
    } else if (differing % (2 * width) == 0) {
        halving_add(call, fold, other, other, width, COLL_STORE, coll_receives(out));
    }
}

static uint32_t halving_width(const struct coll_fold *fold, uint32_t step)
{
    return fold->active >> (step + 1);
}

/* --- all_reduce --- */

static uint32_t halving_doubling_round_count(const struct coll_call *call)
{
    struct coll_fold fold = coll_fold_of(call, NOBODY);
    return 2 * fold.rounds + (fold.pairs > 0 ? 2 : 0);
}

static void halving_doubling_round(const struct coll_call *call, uint32_t round, struct coll_round *out)
{
    assert(call->node_index < call->node_count && round < halving_doubling_round_count(call));
    struct coll_fold fold = coll_fold_of(call, NOBODY);
    bool folding = fold.pairs > 0 && round == 0;
    uint32_t step = round - (fold.pairs > 0);
    coll_round_begin(out);
    if (folding || step == 2 * fold.rounds) {
        coll_fold_exchange(call, &fold, folding, 0, call->count_elements, out);
    } else if (step < fold.rounds) {
        halving_step(call, &fold, halving_width(&fold, step), false, out);
    } else {
        halving_step(call, &fold, UINT32_C(1) << (step - fold.rounds), true, out);
    }
}

static void halving_doubling_estimate(const struct coll_call *call, struct coll_estimate *out)
{
    struct coll_fold fold = coll_fold_of(call, NOBODY);
    double elements = (double)call->count_elements;
    double parts = fold.active;
    double halving = elements * (parts - 1) / parts;
    uint32_t folds = fold.pairs > 0;
    *out = (struct coll_estimate){.rounds = halving_doubling_round_count(call),
                                  .messages = 2 * fold.rounds + folds,
                                  .senders = call->node_count > 1,
                                  .path_elements = 2 * halving + 2 * folds * elements,
                                  .busy_elements = 2 * halving + folds * elements};
}

/* --- reduce --- */

static uint32_t scatter_gather_round_count(const struct coll_call *call)
{
    struct coll_fold fold = coll_fold_of(call, call->root_node);
    return 2 * fold.rounds + (fold.pairs > 0);
}

static void scatter_gather_round(const struct coll_call *call, uint32_t round, struct coll_round *out)
{
    assert(call->node_index < call->node_count && round < scatter_gather_round_count(call));
    struct coll_fold fold = coll_fold_of(call, call->root_node);
    uint32_t step = round - (fold.pairs > 0);
    coll_round_begin(out);
    if (fold.pairs > 0 && round == 0) {
        coll_fold_exchange(call, &fold, true, 0, call->count_elements, out);
    } else if (step < fold.rounds) {
        halving_step(call, &fold, halving_width(&fold, step), false, out);
    } else {
        gathering_step(call, &fold, UINT32_C(1) << (step - fold.rounds), out);
    }
}

/*
 * The busiest node is the root, which receives in every step, and also the fold if it is one of a pair. If
 * the root is not one of a pair, it can be another node. That node receives its fold and, of the gathering,
 * the parts that pass it: the later it sends, the more.
 */
static void scatter_gather_estimate(const struct coll_call *call, struct coll_estimate *out)
{
    struct coll_fold fold = coll_fold_of(call, call->root_node);
    double elements = (double)call->count_elements;
    double parts = fold.active;
    double halving = elements * (parts - 1) / parts;
    uint32_t folds = fold.pairs > 0;
    bool root_is_paired = coll_fold_is_paired(&fold, call->root_node);
    double busy = 2 * halving + (root_is_paired ? elements : 0);
    uint32_t root = coll_fold_number(&fold, call->root_node);
    for (uint32_t width = fold.active / 2; width > 0; width /= 2) {
        uint32_t lowest = (root & (width - 1)) | (~root & width); /* of the nodes that send `width` parts */
        double other = halving + elements + elements * (width - 1) / parts;
        if (lowest < fold.pairs && other > busy) {
            busy = other;
        }
    }
    *out = (struct coll_estimate){.rounds = scatter_gather_round_count(call),
                                  .messages = 2 * fold.rounds + root_is_paired,
                                  .senders = call->node_count > 1,
                                  .path_elements = 2 * halving + folds * elements,
                                  .busy_elements = busy};
}

/* --- reduce_scatter --- */

static uint32_t halving_round_count(const struct coll_call *call)
{
    struct coll_fold fold = coll_fold_of(call, NOBODY);
    return fold.rounds + (fold.pairs > 0 ? 2 : 0);
}

static void halving_round(const struct coll_call *call, uint32_t round, struct coll_round *out)
{
    assert(call->node_index < call->node_count && round < halving_round_count(call));
    struct coll_fold fold = coll_fold_of(call, NOBODY);
    bool folding = fold.pairs > 0 && round == 0;
    uint32_t step = round - (fold.pairs > 0);
    uint32_t lower = call->node_index & ~UINT32_C(1); /* of the pair: it gets its block last */
    coll_round_begin(out);
    if (folding) {
        coll_fold_exchange(call, &fold, true, 0, call->count_elements, out);
    } else if (step < fold.rounds) {
        halving_step(call, &fold, halving_width(&fold, step), false, out);
    } else if (coll_fold_is_paired(&fold, lower)) {
        coll_fold_exchange(call, &fold, false, call->block_offsets[lower], call->block_offsets[lower + 1],
                           out);
    }
}

/* The ranges of the first `width` active nodes are the longest, because these represent two nodes each. */
static void halving_estimate(const struct coll_call *call, struct coll_estimate *out)
{
    struct coll_fold fold = coll_fold_of(call, NOBODY);
    double elements = (double)call->count_elements;
    uint32_t folds = fold.pairs > 0;
    double blocks = 0;
    for (uint32_t width = fold.active / 2; width > 0; width /= 2) {
        blocks += coll_fold_first(&fold, width);
    }
    double halving = elements * blocks / call->node_count;
    *out = (struct coll_estimate){.rounds = halving_round_count(call),
                                  .messages = fold.rounds + folds,
                                  .senders = call->node_count > 1,
                                  .path_elements = halving + folds * (elements + elements / call->node_count),
                                  .busy_elements = halving + folds * elements};
}

const struct coll_algorithm coll_halving_doubling_all_reduce = {
    .id = 6,
    .name = "halving_doubling",
    .description = "best for medium operations: 2 ceil(log2 n) rounds, 2(p-1)/p of the bytes each way among "
                   "p nodes, the largest power of two, and all bytes twice for the other nodes",
    .kind = OP_KIND_ALL_REDUCE,
    .round_count = halving_doubling_round_count,
    .transfers_max = coll_one_transfer,
    .round = halving_doubling_round,
    .estimate = halving_doubling_estimate,
};

const struct coll_algorithm coll_scatter_gather_reduce = {
    .id = 12,
    .name = "scatter_gather",
    .description = "best for medium operations: reduce-scatter by halving, then gather: 2 log2(n) rounds, "
                   "2(n-1)/n of the bytes, more unless n is a power of two",
    .kind = OP_KIND_REDUCE,
    .round_count = scatter_gather_round_count,
    .transfers_max = coll_one_transfer,
    .round = scatter_gather_round,
    .estimate = scatter_gather_estimate,
};

const struct coll_algorithm coll_halving_reduce_scatter = {
    .id = 18,
    .name = "halving",
    .description =
        "best for small operations: floor(log2 n) rounds, each other block in and out once; two more "
        "rounds, and all bytes once more, unless n is a power of two",
    .kind = OP_KIND_REDUCE_SCATTER,
    .round_count = halving_round_count,
    .transfers_max = coll_one_transfer,
    .round = halving_round,
    .estimate = halving_estimate,
};
