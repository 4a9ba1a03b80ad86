#include <assert.h>
#include <stdbool.h>

#include "daemon/coll/transfer.h"

/*
 * Reduce-scatter and all-gather, each in one round of all pairs. In round 0 node i sends its contribution of
 * part j to node j, and folds part i: its own first, then those of i + 1, i + 2, ..., no matter which arrive
 * first. In round 1 it sends the finished part to all. Both rounds send in the order i - 1, i - 2, ...: with
 * everyone in step k, every node has one sender, the one whose message it takes next.
 */

static uint32_t direct_round_count(const struct coll_call *call)
{
    return call->node_count == 1 ? 0 : 2;
}

static uint32_t direct_transfers_max(const struct coll_call *call)
{
    return call->node_count - 1;
}

static void direct_round(const struct coll_call *call, uint32_t round, struct coll_round *out)
{
    uint32_t nodes = call->node_count;
    uint32_t self = call->node_index;
    assert(self < nodes && round < direct_round_count(call));
    bool reducing = round == 0;
    enum coll_action action = reducing ? COLL_REDUCE : COLL_STORE;
    out->send_count = 0;
    out->receive_count = 0;
    for (uint32_t step = 1; step < nodes; step++) {
        uint32_t to = (self + nodes - step) % nodes;
        uint32_t from = (self + step) % nodes;
        coll_add_part(call, to, reducing ? to : self, action, out->sends, &out->send_count);
        coll_add_part(call, from, reducing ? self : from, action, out->receives, &out->receive_count);
    }
}

const struct coll_algorithm coll_direct_all_reduce = {
    .id = 2,
    .name = "direct",
    .description =
        "best for small operations: 2 rounds, 2(n-1)/n of the bytes each way, n-1 messages a round",
    .kind = OP_KIND_ALL_REDUCE,
    .round_count = direct_round_count,
    .transfers_max = direct_transfers_max,
    .round = direct_round,
};
