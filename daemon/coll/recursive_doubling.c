#include <assert.h>

#include "daemon/coll/registry.h"
#include "daemon/coll/transfer.h"

/*
 * Thakur, Rabenseifner and Gropp, "Optimization of Collective Communication Operations in MPICH", 2005: in
 * round r the active nodes whose numbers differ in bit r exchange all that they have. Both fold it with the
 * lower numbers first, so both get the same bits. If the number of nodes is no power of two, there are
 * surplus pairs. The lower node of such a pair first gives its contribution to the other node, and gets the
 * result last.
 */

static uint32_t recursive_doubling_round_count(const struct coll_call *call)
{
    struct coll_fold fold = coll_fold_of(call, UINT32_MAX);
    return fold.rounds + (fold.pairs > 0 ? 2 : 0);
}

static void recursive_doubling_round(const struct coll_call *call, uint32_t round, struct coll_round *out)
{
    assert(call->node_index < call->node_count && round < recursive_doubling_round_count(call));
    struct coll_fold fold = coll_fold_of(call, UINT32_MAX);
    uint32_t step = round - (fold.pairs > 0);
    bool folding = fold.pairs > 0 && round == 0;
    coll_round_begin(out);
    if (folding || step == fold.rounds) {
        coll_fold_exchange(call, &fold, folding, 0, call->count_elements, out);
        return;
    }
    uint32_t number = coll_fold_number(&fold, call->node_index);
    if (coll_fold_node(&fold, number) != call->node_index) {
        return;
    }
    uint32_t bit = UINT32_C(1) << step;
    uint32_t other = coll_fold_node(&fold, number ^ bit);
    bool is_lower = (number & bit) == 0;
    coll_add_all(call, other, is_lower ? COLL_REDUCE_BEFORE : COLL_REDUCE, coll_sends(out));
    coll_add_all(call, other, is_lower ? COLL_REDUCE : COLL_REDUCE_BEFORE, coll_receives(out));
}

static void recursive_doubling_estimate(const struct coll_call *call, struct coll_estimate *out)
{
    struct coll_fold fold = coll_fold_of(call, UINT32_MAX);
    uint32_t rounds = recursive_doubling_round_count(call);
    uint32_t messages = fold.rounds + (fold.pairs > 0);
    *out = (struct coll_estimate){.rounds = rounds,
                                  .messages = messages,
                                  .senders = rounds > 0,
                                  .path_elements = (double)call->count_elements * rounds,
                                  .busy_elements = (double)call->count_elements * messages};
}

const struct coll_algorithm coll_recursive_doubling_all_reduce = {
    .id = 5,
    .name = "recursive_doubling",
    .description =
        "best for small operations: floor(log2 n) rounds of all bytes, two more unless n is a power "
        "of two",
    .kind = OP_KIND_ALL_REDUCE,
    .copies_sends = true,
    .reduces_twice = true,
    .round_count = recursive_doubling_round_count,
    .transfers_max = coll_one_transfer,
    .round = recursive_doubling_round,
    .estimate = recursive_doubling_estimate,
};
