#include <assert.h>
#include <stdbool.h>

#include "daemon/coll/registry.h"
#include "daemon/coll/transfer.h"

/*
 * Each node sends everything directly to its destination, in one round of all pairs. In a reduce-scatter,
 * node i sends its contribution to part j to node j, and folds part i: its own first, then those of i + 1, i
 * + 2, ..., whatever order they arrive in. In an all-gather it sends its part to all. An all-reduce is a
 * reduce-scatter, then an all-gather. All rounds send in the order i - 1, i - 2, ...: with all nodes in step
 * k, every node has one sender, the one whose message it takes next.
 */

static uint32_t direct_one_round(const struct coll_call *call)
{
    return call->node_count > 1;
}

static uint32_t direct_two_rounds(const struct coll_call *call)
{
    return call->node_count > 1 ? 2 : 0;
}

/* Between the root and the others only. */
static uint32_t direct_rooted_transfers(const struct coll_call *call)
{
    return call->node_index == call->root_node ? call->node_count - 1 : 1;
}

static void direct_exchange(const struct coll_call *call, bool reducing, struct coll_round *out)
{
    uint32_t self = call->node_index;
    assert(self < call->node_count);
    enum coll_action action = reducing ? COLL_REDUCE : COLL_STORE;
    coll_round_begin(out);
    for (uint32_t step = 1; step < call->node_count; step++) {
        uint32_t to = coll_node_before(call, self, step);
        uint32_t from = coll_node_after(call, self, step);
        coll_add_part(call, to, reducing ? to : self, action, coll_sends(out));
        coll_add_part(call, from, reducing ? self : from, action, coll_receives(out));
    }
}

static void direct_reduce_scatter_round(const struct coll_call *call, uint32_t round, struct coll_round *out)
{
    assert(round == 0);
    (void)round;
    direct_exchange(call, true, out);
}

static void direct_all_gather_round(const struct coll_call *call, uint32_t round, struct coll_round *out)
{
    assert(round == 0);
    (void)round;
    direct_exchange(call, false, out);
}

static void direct_all_reduce_round(const struct coll_call *call, uint32_t round, struct coll_round *out)
{
    assert(round < 2);
    direct_exchange(call, round == 0, out);
}

/* Transfers between the root and each other node, of that node's block. */
static void direct_rooted(const struct coll_call *call, struct coll_side of_root, struct coll_side of_others)
{
    uint32_t self = call->node_index;
    assert(self < call->node_count);
    if (self != call->root_node) {
        coll_add_part(call, call->root_node, self, COLL_STORE, of_others);
        return;
    }
    for (uint32_t step = 1; step < call->node_count; step++) {
        uint32_t other = coll_node_after(call, self, step);
        coll_add_part(call, other, other, COLL_STORE, of_root);
    }
}

static void direct_gather_round(const struct coll_call *call, uint32_t round, struct coll_round *out)
{
    assert(round == 0);
    (void)round;
    coll_round_begin(out);
    direct_rooted(call, coll_receives(out), coll_sends(out));
}

static void direct_scatter_round(const struct coll_call *call, uint32_t round, struct coll_round *out)
{
    assert(round == 0);
    (void)round;
    coll_round_begin(out);
    direct_rooted(call, coll_sends(out), coll_receives(out));
}

static void direct_all_to_all_round(const struct coll_call *call, uint32_t round, struct coll_round *out)
{
    assert(round == 0 && call->node_index < call->node_count);
    (void)round;
    coll_round_begin(out);
    for (uint32_t step = 1; step < call->node_count; step++) {
        coll_add_block_pair(call, coll_node_before(call, call->node_index, step),
                            coll_node_after(call, call->node_index, step), out);
    }
}

static void direct_exchange_estimate(const struct coll_call *call, struct coll_estimate *out)
{
    double elements = coll_all_but_own(call);
    uint32_t others = call->node_count - 1;
    *out = (struct coll_estimate){.rounds = direct_one_round(call),
                                  .messages = others,
                                  .senders = others,
                                  .path_elements = elements,
                                  .busy_elements = elements};
}

static void direct_all_reduce_estimate(const struct coll_call *call, struct coll_estimate *out)
{
    direct_exchange_estimate(call, out);
    coll_estimate_double(out);
}

static void direct_scatter_estimate(const struct coll_call *call, struct coll_estimate *out)
{
    direct_exchange_estimate(call, out);
    out->senders = out->rounds;
}

const struct coll_algorithm coll_direct_all_reduce = {
    .id = 2,
    .name = "direct",
    .description =
        "best for small operations of few nodes: 2 rounds, 2(n-1)/n of the bytes each way, n-1 messages a "
        "round",
    .kind = OP_KIND_ALL_REDUCE,
    .round_count = direct_two_rounds,
    .transfers_max = coll_other_nodes,
    .round = direct_all_reduce_round,
    .estimate = direct_all_reduce_estimate,
};

const struct coll_algorithm coll_direct_all_gather = {
    .id = 15,
    .name = "direct",
    .description =
        "best for small operations of few nodes: 1 round of n-1 messages, each other block in once",
    .kind = OP_KIND_ALL_GATHER,
    .round_count = direct_one_round,
    .transfers_max = coll_other_nodes,
    .round = direct_all_gather_round,
    .estimate = direct_exchange_estimate,
};

const struct coll_algorithm coll_direct_reduce_scatter = {
    .id = 17,
    .name = "direct",
    .description =
        "best for small operations of few nodes: 1 round of n-1 messages, each other block out once",
    .kind = OP_KIND_REDUCE_SCATTER,
    .round_count = direct_one_round,
    .transfers_max = coll_other_nodes,
    .round = direct_reduce_scatter_round,
    .estimate = direct_exchange_estimate,
};

const struct coll_algorithm coll_direct_gather = {
    .id = 19,
    .name = "direct",
    .description = "best for small operations of few nodes: 1 round, the root receives n-1 messages at once",
    .kind = OP_KIND_GATHER,
    .round_count = direct_one_round,
    .transfers_max = direct_rooted_transfers,
    .round = direct_gather_round,
    .estimate = direct_exchange_estimate,
};

const struct coll_algorithm coll_direct_scatter = {
    .id = 21,
    .name = "direct",
    .description = "best for small operations of few nodes: 1 round, the root sends n-1 messages at once",
    .kind = OP_KIND_SCATTER,
    .round_count = direct_one_round,
    .transfers_max = direct_rooted_transfers,
    .round = direct_scatter_round,
    .estimate = direct_scatter_estimate,
};

const struct coll_algorithm coll_direct_all_to_all = {
    .id = 23,
    .name = "direct",
    .description = "best for small blocks: 1 round of n-1 messages, each block straight to its node",
    .kind = OP_KIND_ALL_TO_ALL,
    .round_count = direct_one_round,
    .transfers_max = coll_other_nodes,
    .round = direct_all_to_all_round,
    .estimate = direct_exchange_estimate,
};
