#include <stdlib.h>

#include "tests/lib/stage_model_internal.h"

/* --- The net stage of one slice, on all nodes: messages carry values, and arrive in order --- */

struct net_node {
    struct coll_round round;
    uint32_t number, count;
    uint32_t received;
    bool begun, prefix_begun;
};

struct message {
    struct message *next;
    uint32_t from, to;
    uint64_t count;
    struct value values[];
};

struct net {
    struct world *world;
    const struct coll_algorithm *algorithm;
    struct net_node nodes[STAGE_CASE_NODES_MAX];
    struct message *messages; /* in the order sent */
};

static struct cell *cell_of(struct net *net, uint32_t node, enum coll_space space, uint64_t element)
{
    struct node *at = &net->world->nodes[node];
    const struct slice_state *state = &at->slices[net->world->slice];
    if (element >= state->counts[space]) {
        stage_wrong(net->world, "the schedule leaves the vector");
        return NULL;
    }
    return &at->heap[state->maps[space][element]];
}

/* Returns what the vector holds there. That is the input's element, as long as nothing else was written. */
static struct cell *read_cell(struct net *net, uint32_t node, enum coll_space space, uint64_t element)
{
    struct node *at = &net->world->nodes[node];
    const struct slice_state *state = &at->slices[net->world->slice];
    bool lent =
        space == COLL_WORK && state->fresh != NULL && element < state->counts[space] && state->fresh[element];
    return lent ? &at->heap[state->origin[element]] : cell_of(net, node, space, element);
}

static struct value current(struct net *net, uint32_t node, enum coll_space space, uint64_t element)
{
    const struct cell *cell = read_cell(net, node, space, element);
    struct value value = cell == NULL ? (struct value){0} : cell->value;
    bool reduces = op_kind_reduces(net->world->drawn->kind);
    if (reduces && value.kind == VALUE_RAW &&
        net->world->nodes[node].slices[net->world->slice].fresh != NULL) {
        value.kind = VALUE_SUM;
    }
    return value;
}

static void send_all(struct net *net, uint32_t node)
{
    const struct coll_round *round = &net->nodes[node].round;
    for (uint32_t i = 0; i < round->send_count; i++) {
        const struct coll_transfer *send = &round->sends[i];
        struct message *message =
            stage_need(1, sizeof *message + send->count_elements * sizeof(struct value));
        struct message **last = &net->messages;
        message->from = node;
        message->to = send->node;
        message->count = send->count_elements;
        for (uint64_t k = 0; k < send->count_elements; k++) {
            struct cell *cell = read_cell(net, node, send->space, send->offset_elements + k);
            message->values[k] = current(net, node, send->space, send->offset_elements + k);
            if (cell != NULL) {
                cell->sent = cell->sent || !net->algorithm->copies_sends;
            }
            if (message->values[k].kind == VALUE_JUNK) {
                stage_wrong(net->world, "what nobody wrote is sent");
            }
        }
        while (*last != NULL) {
            last = &(*last)->next;
        }
        *last = message;
    }
}

static void put(struct net *net, uint32_t node, enum coll_space space, uint64_t element, struct value value)
{
    struct slice_state *state = &net->world->nodes[node].slices[net->world->slice];
    struct cell *cell = cell_of(net, node, space, element);
    if (cell == NULL) {
        return;
    }
    if (cell->read_only) {
        stage_wrong(net->world, "the schedule writes an input");
    }
    cell->value = value;
    cell->writes++;
    if (space == COLL_WORK && state->fresh != NULL) {
        state->fresh[element] = false;
    }
}

static void apply(struct net *net, uint32_t node, const struct coll_transfer *receive,
                  const struct message *message)
{
    const struct coll_call *call = &net->world->nodes[node].slices[net->world->slice].call;
    bool prefix_begun = net->nodes[node].prefix_begun;
    for (uint64_t k = 0; k < message->count && !net->world->failed; k++) {
        uint64_t element = receive->offset_elements + k;
        const struct value *came = &message->values[k];
        struct value here = current(net, node, receive->space, element), prefix;
        switch (receive->action) {
        case COLL_STORE:
            here = *came;
            break;
        case COLL_REDUCE:
            here = stage_fold(net->world, &here, came);
            break;
        case COLL_REDUCE_BEFORE:
            here = stage_fold(net->world, came, &here);
            break;
        case COLL_PREFIX:
            here = stage_fold(net->world, came, &here);
            prefix = current(net, node, receive->space, element + call->count_elements);
            prefix = stage_fold(net->world, came, prefix_begun ? &prefix : NULL);
            put(net, node, receive->space, element + call->count_elements, prefix);
            break;
        }
        put(net, node, receive->space, element, here);
    }
    net->nodes[node].prefix_begun |= receive->action == COLL_PREFIX;
}

static struct message *take_message(struct net *net, uint32_t from, uint32_t to)
{
    for (struct message **at = &net->messages; *at != NULL; at = &(*at)->next) {
        struct message *message = *at;
        if (message->from == from && message->to == to) {
            *at = message->next;
            return message;
        }
    }
    return NULL;
}

/* Advances a node as far as it can go. Returns whether it made any step. */
static bool net_advance(struct net *net, uint32_t node)
{
    struct net_node *at = &net->nodes[node];
    const struct coll_call *call = &net->world->nodes[node].slices[net->world->slice].call;
    bool advanced = false;
    while (at->number < at->count && !net->world->failed) {
        if (!at->begun) {
            at->begun = advanced = true;
            at->received = at->round.send_count = at->round.receive_count = 0;
            net->algorithm->round(call, at->number, &at->round);
            send_all(net, node);
        }
        while (at->received < at->round.receive_count) {
            const struct coll_transfer *receive = &at->round.receives[at->received];
            struct message *message = take_message(net, receive->node, node);
            if (message == NULL) {
                return advanced;
            }
            if (message->count != receive->count_elements) {
                stage_wrong(net->world, "%llu elements come where %llu are expected",
                            (unsigned long long)message->count, (unsigned long long)receive->count_elements);
            } else {
                apply(net, node, receive, message);
            }
            free(message);
            at->received++;
            advanced = true;
        }
        at->begun = false;
        at->number++;
    }
    return advanced;
}

static void net_begin(struct net *net, uint32_t node)
{
    struct node *at = &net->world->nodes[node];
    struct slice_state *state = &at->slices[net->world->slice];
    uint32_t transfers = net->algorithm->transfers_max(&state->call);
    uint64_t scratch =
        net->algorithm->scratch_elements != NULL ? net->algorithm->scratch_elements(&state->call) : 0;
    uint64_t begin = stage_heap_add(at, scratch);
    state->maps[COLL_SCRATCH] = stage_need(scratch, sizeof(uint64_t));
    state->counts[COLL_SCRATCH] = scratch;
    for (uint64_t i = 0; i < scratch; i++) {
        state->maps[COLL_SCRATCH][i] = begin + i;
    }
    net->nodes[node].count = net->algorithm->round_count(&state->call);
    net->nodes[node].round.sends = stage_need(transfers, sizeof(struct coll_transfer));
    net->nodes[node].round.receives = stage_need(transfers, sizeof(struct coll_transfer));
}

void stage_net(struct world *world, uint64_t slice)
{
    uint32_t nodes = world->drawn->node_count;
    struct net net = {.world = world, .algorithm = world->drawn->algorithm};
    bool moved = nodes > 1;
    world->slice = slice;
    for (uint32_t node = 0; node < nodes && moved; node++) {
        net_begin(&net, node);
    }
    while (moved && !world->failed) {
        uint32_t first = (uint32_t)random_below(world->random, nodes);
        moved = false;
        for (uint32_t i = 0; i < nodes; i++) {
            moved = net_advance(&net, (first + i) % nodes) || moved;
        }
    }
    for (uint32_t node = 0; node < nodes; node++) {
        if (net.nodes[node].number < net.nodes[node].count) {
            stage_wrong(world, "the schedule does not come to its end");
        }
        free(net.nodes[node].round.sends);
        free(net.nodes[node].round.receives);
    }
    while (net.messages != NULL) {
        struct message *next = net.messages->next;
        free(net.messages);
        net.messages = next;
    }
}

/* --- The end --- */

/* What an element of an output must hold: who contributed what. */
struct wanted {
    uint32_t block;
    uint64_t offset;
    uint64_t ranks;
    bool reduced;
};

static void check_cell(struct world *world, struct node *node, uint32_t rank, uint64_t at,
                       const struct wanted *wanted)
{
    const struct stage_case *drawn = world->drawn;
    const struct cell *cell = &node->heap[at];
    const struct value *value = &cell->value;
    bool scans = drawn->kind == OP_KIND_SCAN || drawn->kind == OP_KIND_EXCLUSIVE_SCAN;
    enum value_kind kind = !wanted->reduced ? VALUE_RAW : drawn->divides ? VALUE_RESULT : VALUE_SUM;
    if (value->kind != kind || value->block != wanted->block || value->offset != wanted->offset ||
        value->ranks != wanted->ranks) {
        stage_wrong(
            world,
            "rank %u: element %llu of block %u of ranks %llx is wanted, there is %llu of %u of %llx, kind %d",
            rank, (unsigned long long)wanted->offset, wanted->block, (unsigned long long)wanted->ranks,
            (unsigned long long)value->offset, value->block, (unsigned long long)value->ranks,
            (int)value->kind);
    } else if (scans && !value->ordered) {
        stage_wrong(world, "rank %u: ranks were not folded in their order", rank);
    } else if (node->op.mode == COLL_STAGE_ALONE && wanted->reduced && !value->ordered) {
        stage_wrong(world, "rank %u: ranks of one node were not folded in their order", rank);
    }
    if (node->op.mode == COLL_STAGE_ALONE && cell->writes > 1) {
        stage_wrong(world, "rank %u: an element is written %u times", rank, cell->writes);
    }
}

static uint64_t all_ranks(const struct stage_case *drawn)
{
    return (UINT64_C(1) << drawn->size) - 1;
}

/* Checks that this range of an output holds the block of `wanted`. */
static void check_range(struct world *world, struct node *node, uint32_t rank, uint32_t entry, uint64_t begin,
                        uint64_t count, struct wanted wanted, bool *checked)
{
    for (uint64_t i = 0; i < count; i++) {
        wanted.offset = i;
        check_cell(world, node, rank, node->output[entry] + begin + i, &wanted);
        checked[begin + i] = true;
    }
}

static void check_output(struct world *world, struct node *node, uint32_t local, uint32_t part, bool *checked)
{
    const struct stage_case *drawn = world->drawn;
    uint32_t rank = coll_map_local_rank(&node->map, local);
    uint32_t entry = part * node->map.local_count + local;
    uint64_t all = node->output_elements[entry];
    bool root = rank == drawn->root_rank;
    struct wanted sum = {.block = part, .ranks = all_ranks(drawn), .reduced = true};
    switch (drawn->kind) {
    case OP_KIND_ALL_REDUCE:
    case OP_KIND_REDUCE:
        check_range(world, node, rank, entry, 0, all, sum, checked);
        return;
    case OP_KIND_SCAN:
        sum.ranks = (UINT64_C(2) << rank) - 1;
        check_range(world, node, rank, entry, 0, all, sum, checked);
        return;
    case OP_KIND_EXCLUSIVE_SCAN:
        sum.ranks = (UINT64_C(1) << rank) - 1;
        check_range(world, node, rank, entry, 0, rank == 0 ? 0 : all, sum, checked);
        return;
    case OP_KIND_REDUCE_SCATTER:
        sum.block = part * drawn->size + rank;
        check_range(world, node, rank, entry, 0, all, sum, checked);
        return;
    case OP_KIND_BROADCAST:
        check_range(world, node, rank, entry, 0, all,
                    (struct wanted){.ranks = UINT64_C(1) << drawn->root_rank}, checked);
        return;
    case OP_KIND_SCATTER:
        check_range(world, node, rank, entry, 0, all,
                    (struct wanted){.block = rank, .ranks = UINT64_C(1) << drawn->root_rank}, checked);
        return;
    case OP_KIND_ALL_GATHER:
    case OP_KIND_GATHER:
    case OP_KIND_ALL_TO_ALL:
        for (uint32_t from = 0; from < drawn->size && (drawn->kind != OP_KIND_GATHER || root); from++) {
            struct stage_block block = stage_output_block(drawn, rank, part, from);
            check_range(world, node, rank, entry, block.begin, block.count,
                        (struct wanted){.block = drawn->kind == OP_KIND_ALL_TO_ALL ? rank : part,
                                        .ranks = UINT64_C(1) << from},
                        checked);
        }
        return;
    case OP_KIND_BARRIER:
    case OP_KIND_SEND:
    case OP_KIND_RECEIVE:
        return;
    }
}

/* Checks that all ranks hold the same bits, and that nothing was written to gaps. */
static void check_rest(struct world *world, struct node *node, uint32_t entry, const bool *checked)
{
    const struct node *first = &world->nodes[0];
    uint32_t part = entry / node->map.local_count;
    for (uint64_t i = 0; i < node->output_elements[entry]; i++) {
        const struct cell *cell = &node->heap[node->output[entry] + i];
        if (!checked[i] && cell->writes > 0) {
            stage_wrong(world, "element %llu of an output, which is nobody's, is written",
                        (unsigned long long)i);
        }
        if (checked[i] && world->drawn->kind == OP_KIND_ALL_REDUCE &&
            cell->value.hash != first->heap[first->output[part * first->map.local_count] + i].value.hash) {
            stage_wrong(world, "element %llu has other bits than on rank 0", (unsigned long long)i);
        }
    }
}

void stage_check_end(struct world *world)
{
    for (uint32_t index = 0; index < world->drawn->node_count; index++) {
        struct node *node = &world->nodes[index];
        for (uint32_t entry = 0; entry < node->map.local_count * node->op.terms->bucket_ops; entry++) {
            bool *checked = stage_need(node->output_elements[entry], sizeof *checked);
            check_output(world, node, entry % node->map.local_count, entry / node->map.local_count, checked);
            check_rest(world, node, entry, checked);
            free(checked);
        }
    }
}
