#include <assert.h>

#include "daemon/coll/transfer.h"

/*
 * Binomial tree: counted from the root, in round r each of the 2^r nodes that have the data sends it to the
 * node 2^r further, if there is one.
 */

static uint32_t tree_round_count(const struct coll_call *call)
{
    return coll_doubling_rounds(call->node_count);
}

static uint32_t tree_transfers_max(const struct coll_call *call)
{
    (void)call;
    return 1;
}

static void tree_round(const struct coll_call *call, uint32_t round, struct coll_round *out)
{
    uint32_t nodes = call->node_count;
    assert(call->node_index < nodes && call->root_node < nodes && round < tree_round_count(call));
    uint32_t from_root = (call->node_index + nodes - call->root_node) % nodes;
    uint32_t distance = UINT32_C(1) << round;
    struct coll_transfer all = {.action = COLL_STORE, .count_elements = call->count_elements};
    out->send_count = 0;
    out->receive_count = 0;
    if (call->count_elements == 0) {
        return;
    }
    if (from_root < distance && from_root + distance < nodes) {
        all.node = (call->node_index + distance) % nodes;
        out->sends[out->send_count++] = all;
    } else if (from_root >= distance && from_root < 2 * distance) {
        all.node = (call->node_index + nodes - distance) % nodes;
        out->receives[out->receive_count++] = all;
    }
}

const struct coll_algorithm coll_tree_broadcast = {
    .id = 3,
    .name = "tree",
    .description = "binomial tree: ceil(log2 n) rounds, every other node receives the bytes once",
    .kind = OP_KIND_BROADCAST,
    .round_count = tree_round_count,
    .transfers_max = tree_transfers_max,
    .round = tree_round,
};
