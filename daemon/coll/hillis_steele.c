#include <assert.h>

#include "daemon/coll/registry.h"
#include "daemon/coll/transfer.h"

/*
 * Hillis and Steele, "Data Parallel Algorithms", 1986: in round r node i sends its running value to node i +
 * 2^r. That value is the fold of the 2^r nodes that end with node i. The receiver folds it before its own.
 */

static void hillis_steele_round(const struct coll_call *call, uint32_t round, struct coll_round *out)
{
    uint32_t self = call->node_index;
    assert(self < call->node_count && round < coll_doubling_rounds(call));
    uint32_t distance = UINT32_C(1) << round;
    coll_round_begin(out);
    if (self + distance < call->node_count) {
        coll_add_all(call, self + distance, COLL_PREFIX, coll_sends(out));
    }
    if (self >= distance) {
        coll_add_all(call, self - distance, COLL_PREFIX, coll_receives(out));
    }
}

static void hillis_steele_estimate(const struct coll_call *call, struct coll_estimate *out)
{
    uint32_t rounds = coll_doubling_rounds(call);
    double elements = (double)call->count_elements * rounds;
    *out = coll_estimate_of(rounds, elements);
}

/* The algorithm for one kind of scan. */
#define HILLIS_STEELE(number, of_kind)                                                                       \
    {                                                                                                        \
        .id = (number), .name = "hillis_steele",                                                             \
        .description = "best for small operations: ceil(log2 n) rounds of all bytes", .kind = (of_kind),     \
        .copies_sends = true, .round_count = coll_doubling_rounds, .transfers_max = coll_one_transfer,       \
        .round = hillis_steele_round, .estimate = hillis_steele_estimate,                                    \
    }

const struct coll_algorithm coll_hillis_steele_scan = HILLIS_STEELE(26, OP_KIND_SCAN);
const struct coll_algorithm coll_hillis_steele_exclusive_scan = HILLIS_STEELE(28, OP_KIND_EXCLUSIVE_SCAN);
