#ifndef DAEMON_COLL_TRANSFER_H
#define DAEMON_COLL_TRANSFER_H

#include "daemon/coll/schedule.h"
#include "daemon/coll/slice.h"

/* Functions that the families of algorithms share. Private to daemon/coll. */

/* ceil(log2 node_count): the rounds until all nodes have something, if each node that has it sends it to one
 * more. */
static inline uint32_t coll_doubling_rounds(const struct coll_call *call)
{
    uint32_t rounds = 0;
    while ((UINT32_C(1) << rounds) < call->node_count) {
        rounds++;
    }
    return rounds;
}

/* How many other nodes there are: as many rounds, or transfers of one round, have one for each of them. */
static inline uint32_t coll_other_nodes(const struct coll_call *call)
{
    return call->node_count - 1;
}

static inline uint64_t coll_least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* The node `distance` after (or before) `node` in the circle of all nodes; distance <= node_count. */
static inline uint32_t coll_node_after(const struct coll_call *call, uint32_t node, uint32_t distance)
{
    return (node + distance) % call->node_count;
}

static inline uint32_t coll_node_before(const struct coll_call *call, uint32_t node, uint32_t distance)
{
    return (node + call->node_count - distance) % call->node_count;
}

/* Distance from the root to the asking node, around the circle. */
static inline uint32_t coll_from_root(const struct coll_call *call)
{
    return coll_node_before(call, call->node_index, call->root_node);
}

/* Where part `index` of `parts` of the vector begins; index <= parts. If the vector has blocks, parts is
 * node_count and the parts are the blocks. Otherwise coll_part_range defines the parts. */
static inline uint64_t coll_part_begin(const struct coll_call *call, uint32_t parts, uint32_t index)
{
    if (call->block_offsets != NULL) {
        return call->block_offsets[index];
    }
    uint64_t least = call->count_elements / parts;
    return least * index + coll_least(index, call->count_elements % parts);
}

/* Where transfers of a round are appended: to its sends, or to its receives. */
struct coll_side {
    struct coll_transfer *transfers;
    uint32_t *count;
};

static inline struct coll_side coll_sends(struct coll_round *round)
{
    return (struct coll_side){round->sends, &round->send_count};
}

static inline struct coll_side coll_receives(struct coll_round *round)
{
    return (struct coll_side){round->receives, &round->receive_count};
}

/* Appends a transfer within COLL_WORK. Leaves out an empty transfer unless call->keeps_empty. */
static inline void coll_add_range(const struct coll_call *call, uint32_t node, enum coll_action action,
                                  uint64_t begin, uint64_t end, struct coll_side side)
{
    if (end > begin || call->keeps_empty) {
        side.transfers[(*side.count)++] = (struct coll_transfer){.node = node,
                                                                 .action = action,
                                                                 .space = COLL_WORK,
                                                                 .offset_elements = begin,
                                                                 .count_elements = end - begin};
    }
}

/* Appends the transfer of parts first .. end - 1 of `parts`. */
static inline void coll_add_parts(const struct coll_call *call, uint32_t node, enum coll_action action,
                                  uint32_t parts, uint32_t first, uint32_t end, struct coll_side side)
{
    coll_add_range(call, node, action, coll_part_begin(call, parts, first), coll_part_begin(call, parts, end),
                   side);
}

/* Appends the transfer of one of node_count parts: the block of one node. */
static inline void coll_add_part(const struct coll_call *call, uint32_t node, uint32_t part,
                                 enum coll_action action, struct coll_side side)
{
    coll_add_parts(call, node, action, call->node_count, part, part + 1, side);
}

/*
 * Appends the transfers of `blocks` blocks that begin at `first`, around the circle: at most two transfers.
 */
static inline void coll_add_circle(const struct coll_call *call, uint32_t node, enum coll_action action,
                                   uint32_t first, uint32_t blocks, struct coll_side side)
{
    uint32_t nodes = call->node_count;
    uint32_t before_wrap = blocks < nodes - first ? blocks : nodes - first;
    coll_add_parts(call, node, action, nodes, first, first + before_wrap, side);
    coll_add_parts(call, node, action, nodes, 0, blocks - before_wrap, side);
}

/* Appends the transfer of the whole vector (scans: of the running value). */
static inline void coll_add_all(const struct coll_call *call, uint32_t node, enum coll_action action,
                                struct coll_side side)
{
    coll_add_range(call, node, action, 0, call->count_elements, side);
}

/*
 * Appends one round's transfers of an all_to_all: the block for `to` and the block of `from`, sent directly.
 */
static inline void coll_add_block_pair(const struct coll_call *call, uint32_t to, uint32_t from,
                                       struct coll_round *out)
{
    uint32_t sent = out->send_count;
    coll_add_range(call, to, COLL_STORE, call->send_offsets[to], call->send_offsets[to + 1], coll_sends(out));
    if (out->send_count > sent) {
        out->sends[sent].space = COLL_INPUT;
    }
    coll_add_part(call, from, from, COLL_STORE, coll_receives(out));
}

/* (nodes - 1) / nodes of the vector, for estimates. */
static inline double coll_all_but_own(const struct coll_call *call)
{
    double nodes = call->node_count;
    return (double)call->count_elements * (nodes - 1) / nodes;
}

/*
 * Reduces the nodes to `active` ones: the largest power of two that is not above node_count. The first 2 ×
 * pairs nodes form pairs. Before the rounds, one node of each pair folds its data into the other, which stays
 * active. The higher node of a pair stays active, unless the lower one is `wanted`. Active nodes are numbered
 * in ascending order, so each represents an ascending range of nodes.
 */
struct coll_fold {
    uint32_t active; /* a power of two */
    uint32_t rounds; /* log2 of it */
    uint32_t pairs;
    uint32_t wanted;
};

static inline struct coll_fold coll_fold_of(const struct coll_call *call, uint32_t wanted)
{
    struct coll_fold fold = {.active = 1, .wanted = wanted};
    while (fold.active <= call->node_count / 2) {
        fold.active *= 2;
        fold.rounds++;
    }
    fold.pairs = call->node_count - fold.active;
    return fold;
}

/* The node that has this number among the active ones. */
static inline uint32_t coll_fold_node(const struct coll_fold *fold, uint32_t number)
{
    if (number >= fold->pairs) {
        return number + fold->pairs;
    }
    return fold->wanted == 2 * number ? 2 * number : 2 * number + 1;
}

/* The number of a node, if it is active; otherwise the number of the active node of its pair. */
static inline uint32_t coll_fold_number(const struct coll_fold *fold, uint32_t node)
{
    return node < 2 * fold->pairs ? node / 2 : node - fold->pairs;
}

static inline bool coll_fold_is_paired(const struct coll_fold *fold, uint32_t node)
{
    return node < 2 * fold->pairs;
}

/* The first node that the active nodes from `number` on represent; node_count for number == active. */
static inline uint32_t coll_fold_first(const struct coll_fold *fold, uint32_t number)
{
    return number < fold->pairs ? 2 * number : number + fold->pairs;
}

/* The message within a pair before the rounds of the active nodes (forth), or after them (back). */
static inline void coll_fold_exchange(const struct coll_call *call, const struct coll_fold *fold, bool forth,
                                      uint64_t begin, uint64_t end, struct coll_round *out)
{
    uint32_t self = call->node_index;
    if (!coll_fold_is_paired(fold, self)) {
        return;
    }
    uint32_t other = self ^ 1;
    bool goes_on = coll_fold_node(fold, self / 2) == self;
    uint32_t active = goes_on ? self : other;
    enum coll_action action = COLL_STORE;
    if (forth) {
        action = (active & 1) != 0 ? COLL_REDUCE_BEFORE : COLL_REDUCE;
    }
    coll_add_range(call, other, action, begin, end, goes_on == forth ? coll_receives(out) : coll_sends(out));
}

/* Starts an empty round. */
static inline void coll_round_begin(struct coll_round *out)
{
    out->send_count = 0;
    out->receive_count = 0;
}

/* For a schedule whose busiest node sends, or receives, one message in each round, and `elements` in all. */
static inline struct coll_estimate coll_estimate_of(uint32_t rounds, double elements)
{
    return (struct coll_estimate){.rounds = rounds,
                                  .messages = rounds,
                                  .senders = rounds > 0,
                                  .path_elements = elements,
                                  .busy_elements = elements};
}

/* Doubles an estimate: for schedules that do the same again in the other direction. */
static inline void coll_estimate_double(struct coll_estimate *out)
{
    out->rounds *= 2;
    out->messages *= 2;
    out->path_elements *= 2;
    out->busy_elements *= 2;
}

/* transfers_max of many algorithms. */
static inline uint32_t coll_one_transfer(const struct coll_call *call)
{
    (void)call;
    return 1;
}

static inline uint32_t coll_two_transfers(const struct coll_call *call)
{
    (void)call;
    return 2;
}

#endif
