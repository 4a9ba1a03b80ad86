#ifndef TESTS_UNIT_COLL_SCRIPT_H
#define TESTS_UNIT_COLL_SCRIPT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/base/random.h"
#include "daemon/coll/schedule.h"
#include "tests/lib/chance.h"

/*
 * Schedules written line by line, right or wrong. coll_check takes them as algorithms. script_runs_right runs
 * one on real values in a random order, as an executor does. It does not use coll_check, so it can judge what
 * coll_check accepts.
 */

#define SCRIPT_LINES_MAX 256
#define SCRIPT_NODES_MAX 8
#define SCRIPT_ELEMENTS_MAX 24 /* of a vector, an input or scratch */
#define SCRIPT_SPACES 3

enum script_direction { SCRIPT_SEND, SCRIPT_RECEIVE };

struct script_line {
    uint32_t node;
    uint32_t round;
    enum script_direction direction;
    struct coll_transfer transfer;
};

struct script {
    /* The lines of one node and round keep the order of the list. Between nodes and rounds, any order will
     * do. */
    struct script_line lines[SCRIPT_LINES_MAX];
    uint32_t line_count;
    uint32_t round_count;
    uint32_t transfers_max;
    uint64_t scratch_elements;
    bool copies_sends;
    const uint64_t *counts; /* null, or the counts of an all_to_all, by sender and receiver */
};

/* The script of the algorithm that script_algorithm returns. */
static const struct script *script_played;

static inline uint32_t script_round_count(const struct coll_call *call)
{
    (void)call;
    return script_played->round_count;
}

static inline uint32_t script_transfers_max(const struct coll_call *call)
{
    (void)call;
    return script_played->transfers_max;
}

static inline uint64_t script_scratch_elements(const struct coll_call *call)
{
    (void)call;
    return script_played->scratch_elements;
}

static inline void script_round(const struct coll_call *call, uint32_t round, struct coll_round *out)
{
    out->send_count = 0;
    out->receive_count = 0;
    for (uint32_t i = 0; i < script_played->line_count; i++) {
        const struct script_line *line = &script_played->lines[i];
        if (line->node == call->node_index && line->round == round) {
            if (line->direction == SCRIPT_SEND) {
                out->sends[out->send_count++] = line->transfer;
            } else {
                out->receives[out->receive_count++] = line->transfer;
            }
        }
    }
}

/* Returns the algorithm that plays a script. The script must outlive it. There is one script at a time. */
static inline struct coll_algorithm script_algorithm(const struct script *script, enum op_kind kind)
{
    script_played = script;
    return (struct coll_algorithm){.id = 1000,
                                   .name = "script",
                                   .description = "a script",
                                   .kind = kind,
                                   .copies_sends = script->copies_sends,
                                   .round_count = script_round_count,
                                   .transfers_max = script_transfers_max,
                                   .scratch_elements = script_scratch_elements,
                                   .round = script_round};
}

/* Appends a line, and makes the script as long and wide as that needs. Returns false if it is full. */
static inline bool script_add(struct script *script, uint32_t node, uint32_t round,
                              enum script_direction direction, struct coll_transfer transfer)
{
    if (script->line_count == SCRIPT_LINES_MAX) {
        return false;
    }
    script->lines[script->line_count++] = (struct script_line){node, round, direction, transfer};
    script->round_count = round + 1 > script->round_count ? round + 1 : script->round_count;
    uint32_t width = 0;
    for (uint32_t i = 0; i < script->line_count; i++) {
        const struct script_line *line = &script->lines[i];
        width += line->node == node && line->round == round && line->direction == direction;
    }
    script->transfers_max = width > script->transfers_max ? width : script->transfers_max;
    return true;
}

/* A node's call. For an all_to_all with counts, it has the offsets that follow from them for this node. */
struct script_call {
    struct coll_call call;
    uint64_t received[SCRIPT_NODES_MAX + 1];
    uint64_t sent[SCRIPT_NODES_MAX + 1];
};

static inline void script_call_of(struct script_call *out, const struct coll_call *call,
                                  const uint64_t *counts, uint32_t node)
{
    *out = (struct script_call){.call = *call};
    out->call.node_index = node;
    if (counts == NULL) {
        return;
    }
    for (uint32_t other = 0; other < call->node_count; other++) {
        out->received[other + 1] = out->received[other] + counts[other * call->node_count + node];
        out->sent[other + 1] = out->sent[other] + counts[node * call->node_count + other];
    }
    out->call.block_offsets = out->received;
    out->call.send_offsets = out->sent;
    out->call.count_elements = out->received[call->node_count];
}

/* Writes the schedule of an algorithm's call as a script. Returns false if it does not fit. */
static inline bool script_record(struct script *script, const struct coll_algorithm *algorithm,
                                 const struct coll_call *call, const uint64_t *counts)
{
    *script = (struct script){.copies_sends = algorithm->copies_sends, .counts = counts};
    struct coll_transfer sends[2 * SCRIPT_NODES_MAX];
    struct coll_transfer receives[2 * SCRIPT_NODES_MAX];
    if (call->node_count > SCRIPT_NODES_MAX) {
        return false;
    }
    bool fits = true;
    for (uint32_t node = 0; node < call->node_count; node++) {
        struct script_call own;
        script_call_of(&own, call, counts, node);
        if (algorithm->transfers_max(&own.call) > 2 * SCRIPT_NODES_MAX) {
            return false;
        }
        script->scratch_elements =
            algorithm->scratch_elements != NULL ? algorithm->scratch_elements(&own.call) : 0;
        for (uint32_t round = 0; round < algorithm->round_count(&own.call); round++) {
            struct coll_round out = {.sends = sends, .receives = receives};
            algorithm->round(&own.call, round, &out);
            for (uint32_t i = 0; i < out.send_count; i++) {
                fits = fits && script_add(script, node, round, SCRIPT_SEND, sends[i]);
            }
            for (uint32_t i = 0; i < out.receive_count; i++) {
                fits = fits && script_add(script, node, round, SCRIPT_RECEIVE, receives[i]);
            }
        }
    }
    return fits;
}

/* --- Running one --- */

/*
 * What an element holds. Each node contributes a random number for each of its elements. Folding does two
 * operations at once:
 * - a sum, for which order does not matter;
 * - (hash, power): (a, p) and (b, q) make (a × q + b, p × q). Brackets do not matter for it, but order does.
 * An element also counts how often each node contributed (8 bits each), and has a hash of order and brackets.
 */
struct script_value {
    uint64_t contributions;
    uint64_t order;
    uint64_t sum;
    uint64_t hash;
    uint64_t power;
};

#define SCRIPT_UNDEFINED (UINT64_C(0xee) << 56) /* its contributions */

struct script_message {
    bool left; /* the sender has reached its round: it may be read from now on */
    bool taken;
    struct script_value early[SCRIPT_ELEMENTS_MAX]; /* the elements at that time */
};

/* A vector has room for a scan's prefix. */
typedef struct script_value script_memory[SCRIPT_SPACES][2 * SCRIPT_ELEMENTS_MAX];

struct script_state {
    const struct script *script;
    struct script_call calls[SCRIPT_NODES_MAX];
    script_memory first[SCRIPT_NODES_MAX]; /* what they held before */
    script_memory values[SCRIPT_NODES_MAX];
    struct script_message messages[SCRIPT_LINES_MAX]; /* of the sends among the lines */
    bool taken[SCRIPT_LINES_MAX];                     /* of the receives */
    bool entered[SCRIPT_NODES_MAX];
};

static inline uint64_t script_mix(uint64_t left, uint64_t right)
{
    uint64_t mixed = (left ^ 0x9e3779b97f4a7c15u) * 0xff51afd7ed558ccdu + right;
    mixed = (mixed ^ mixed >> 29) * 0xc4ceb9fe1a85ec53u;
    return mixed ^ mixed >> 32;
}

static inline struct script_value script_fold(const struct script_value *left,
                                              const struct script_value *right)
{
    return (struct script_value){.contributions = left->contributions + right->contributions,
                                 .order = script_mix(left->order, right->order),
                                 .sum = left->sum + right->sum,
                                 .hash = left->hash * right->power + right->hash,
                                 .power = left->power * right->power};
}

static inline bool script_same(const struct script_value *left, const struct script_value *right)
{
    return memcmp(left, right, sizeof *left) == 0;
}

/* Whether a node contributes an element of one of its spaces. */
static inline bool script_contributes(const struct coll_call *call, unsigned space, uint64_t element)
{
    uint32_t node = call->node_index;
    switch (call->kind) {
    case OP_KIND_ALL_REDUCE:
    case OP_KIND_REDUCE:
    case OP_KIND_REDUCE_SCATTER:
    case OP_KIND_SCAN:
    case OP_KIND_EXCLUSIVE_SCAN:
        return space == COLL_WORK && element < call->count_elements;
    case OP_KIND_BROADCAST:
    case OP_KIND_SCATTER:
        return space == COLL_WORK && node == call->root_node;
    case OP_KIND_ALL_GATHER:
    case OP_KIND_GATHER:
        return space == COLL_WORK && element >= call->block_offsets[node] &&
               element < call->block_offsets[node + 1];
    case OP_KIND_ALL_TO_ALL:
        return space == COLL_INPUT;
    case OP_KIND_BARRIER:
    case OP_KIND_SEND:
    case OP_KIND_RECEIVE:
        break;
    }
    return false;
}

static inline void script_fill(struct script_state *state, uint32_t node, struct random *random)
{
    for (unsigned space = 0; space < SCRIPT_SPACES; space++) {
        for (uint64_t element = 0; element < 2 * SCRIPT_ELEMENTS_MAX; element++) {
            bool contributes = script_contributes(&state->calls[node].call, space, element);
            uint64_t number = random_u64(random);
            state->first[node][space][element] = (struct script_value){
                .contributions = contributes ? UINT64_C(1) << (8 * node) : SCRIPT_UNDEFINED,
                .order = number,
                .sum = number,
                .hash = number,
                .power = random_u64(random) | 1};
        }
    }
    memcpy(state->values[node], state->first[node], sizeof state->values[node]);
}

/* Returns the node's first receive that is not yet taken, by round and then by the list. Without one, it
 * returns line_count. */
static inline uint32_t script_next_receive(const struct script_state *state, uint32_t node)
{
    const struct script *script = state->script;
    uint32_t next = script->line_count;
    for (uint32_t i = 0; i < script->line_count; i++) {
        const struct script_line *line = &script->lines[i];
        if (line->node == node && line->direction == SCRIPT_RECEIVE && !state->taken[i] &&
            (next == script->line_count || line->round < script->lines[next].round)) {
            next = i;
        }
    }
    return next;
}

/* Returns the first message from one node to another that is not yet taken, sent or not. Without one, it
 * returns line_count. */
static inline uint32_t script_next_message(const struct script_state *state, uint32_t from, uint32_t to)
{
    const struct script *script = state->script;
    uint32_t next = script->line_count;
    for (uint32_t i = 0; i < script->line_count; i++) {
        const struct script_line *line = &script->lines[i];
        if (line->node == from && line->direction == SCRIPT_SEND && line->transfer.node == to &&
            !state->messages[i].taken &&
            (next == script->line_count || line->round < script->lines[next].round)) {
            next = i;
        }
    }
    return next;
}

static inline struct script_value *script_at(struct script_state *state, uint32_t node,
                                             const struct coll_transfer *transfer)
{
    return &state->values[node][transfer->space][transfer->offset_elements];
}

/* Sends everything that the node may send now. */
static inline void script_send(struct script_state *state, uint32_t node)
{
    const struct script *script = state->script;
    uint32_t next = script_next_receive(state, node);
    uint32_t round = next < script->line_count ? script->lines[next].round : script->round_count;
    for (uint32_t i = 0; i < script->line_count; i++) {
        const struct script_line *line = &script->lines[i];
        if (line->node == node && line->direction == SCRIPT_SEND && line->round <= round &&
            !state->messages[i].left) {
            state->messages[i].left = true;
            memcpy(state->messages[i].early, script_at(state, node, &line->transfer),
                   line->transfer.count_elements * sizeof state->messages[i].early[0]);
        }
    }
}

/* Does what the receiver does with one element. */
static inline void script_apply(const struct coll_call *call, enum coll_action action,
                                struct script_value *there, const struct script_value *received)
{
    struct script_value *prefix = there + call->count_elements;
    switch (action) {
    case COLL_STORE:
        *there = *received;
        break;
    case COLL_REDUCE:
        *there = script_fold(there, received);
        break;
    case COLL_REDUCE_BEFORE:
        *there = script_fold(received, there);
        break;
    case COLL_PREFIX:
        *there = script_fold(received, there);
        *prefix = prefix->contributions == SCRIPT_UNDEFINED ? *received : script_fold(received, prefix);
        break;
    }
}

/* Whether a transfer lies within its node's memory. The rest of a run relies on that. */
static inline bool script_in_bounds(const struct script_state *state, const struct script_line *line)
{
    const struct coll_call *call = &state->calls[line->node].call;
    const struct coll_transfer *transfer = &line->transfer;
    bool scans = call->kind == OP_KIND_SCAN || call->kind == OP_KIND_EXCLUSIVE_SCAN;
    uint64_t elements = scans ? 2 * call->count_elements : call->count_elements;
    if (transfer->space == COLL_INPUT) {
        elements = call->send_offsets != NULL ? call->send_offsets[call->node_count] : 0;
    } else if (transfer->space == COLL_SCRATCH) {
        elements = state->script->scratch_elements;
    }
    return transfer->node < call->node_count && transfer->offset_elements <= elements &&
           transfer->count_elements <= elements - transfer->offset_elements &&
           transfer->count_elements <= SCRIPT_ELEMENTS_MAX;
}

/* Takes a node's next receive if its message has left. For each element, the network has read it when it was
 * sent, or reads it only now: at random. It has read a copied message when it was sent. */
static inline bool script_take(struct script_state *state, uint32_t node, struct random *random, bool *right)
{
    const struct script *script = state->script;
    uint32_t receive = script_next_receive(state, node);
    if (receive == script->line_count) {
        return false;
    }
    const struct coll_transfer *to = &script->lines[receive].transfer;
    uint32_t send = script_next_message(state, to->node, node);
    if (send == script->line_count || !state->messages[send].left) {
        return false;
    }
    const struct coll_transfer *from = &script->lines[send].transfer;
    state->taken[receive] = true;
    state->messages[send].taken = true;
    *right = *right && from->count_elements == to->count_elements && from->action == to->action;
    for (uint64_t i = 0; *right && i < to->count_elements; i++) {
        bool early = script->copies_sends || random_chance(random, 0.5);
        struct script_value received =
            early ? state->messages[send].early[i] : script_at(state, to->node, from)[i];
        script_apply(&state->calls[node].call, to->action, script_at(state, node, to) + i, &received);
    }
    return true;
}

/* Whether a value has every node's contribution of an element exactly once, and their sum. */
static inline bool script_is_reduced(const struct script_state *state, const struct script_value *value,
                                     uint64_t element)
{
    uint64_t contributions = 0;
    uint64_t sum = 0;
    for (uint32_t node = 0; node < state->calls[0].call.node_count; node++) {
        contributions += UINT64_C(1) << (8 * node);
        sum += state->first[node][COLL_WORK][element].sum;
    }
    return value->contributions == contributions && value->sum == sum;
}

/* Whether a value is the fold of the nodes before this one, in order. */
static inline bool script_is_prefix(const struct script_state *state, uint32_t node,
                                    const struct script_value *value, uint64_t element)
{
    struct script_value expected = state->first[0][COLL_WORK][element];
    for (uint32_t other = 1; other < node; other++) {
        expected = script_fold(&expected, &state->first[other][COLL_WORK][element]);
    }
    return value->hash == expected.hash && value->power == expected.power &&
           value->contributions == expected.contributions;
}

static inline uint32_t script_block_of(const struct coll_call *call, uint64_t element)
{
    uint32_t block = 0;
    while (call->block_offsets[block + 1] <= element) {
        block++;
    }
    return block;
}

/* Whether an element of the vector holds what coll_call says. */
static inline bool script_element_is_right(const struct script_state *state, uint32_t node, uint64_t element)
{
    const struct coll_call *call = &state->calls[node].call;
    const struct script_value *value = &state->values[node][COLL_WORK][element];
    bool is_root = node == call->root_node;
    uint32_t block = call->block_offsets != NULL ? script_block_of(call, element) : 0;
    uint64_t sent;
    switch (call->kind) {
    case OP_KIND_ALL_REDUCE:
        return script_is_reduced(state, value, element) &&
               script_same(value, &state->values[0][COLL_WORK][element]);
    case OP_KIND_REDUCE:
        return !is_root || script_is_reduced(state, value, element);
    case OP_KIND_REDUCE_SCATTER:
        return block != node || script_is_reduced(state, value, element);
    case OP_KIND_BROADCAST:
        return script_same(value, &state->first[call->root_node][COLL_WORK][element]);
    case OP_KIND_SCATTER:
        return block != node || script_same(value, &state->first[call->root_node][COLL_WORK][element]);
    case OP_KIND_ALL_GATHER:
        return script_same(value, &state->first[block][COLL_WORK][element]);
    case OP_KIND_GATHER:
        return !is_root || script_same(value, &state->first[block][COLL_WORK][element]);
    case OP_KIND_ALL_TO_ALL:
        sent = state->calls[block].call.send_offsets[node] + (element - call->block_offsets[block]);
        return block == node || script_same(value, &state->first[block][COLL_INPUT][sent]);
    case OP_KIND_SCAN:
    case OP_KIND_EXCLUSIVE_SCAN:
        return node == 0 || script_is_prefix(state, node, value + call->count_elements, element);
    case OP_KIND_BARRIER:
    case OP_KIND_SEND:
    case OP_KIND_RECEIVE:
        break;
    }
    return false;
}

/* Whether the elements that a call must not write are unchanged. These are the input, and the elements that
 * broadcast, scatter and gather may not write. */
static inline bool script_kept(const struct script_state *state, uint32_t node)
{
    const struct coll_call *call = &state->calls[node].call;
    if (memcmp(state->values[node][COLL_INPUT], state->first[node][COLL_INPUT],
               sizeof state->values[node][COLL_INPUT]) != 0) {
        return false;
    }
    for (uint64_t element = 0; element < call->count_elements; element++) {
        bool kept = false;
        if (call->kind == OP_KIND_BROADCAST || call->kind == OP_KIND_SCATTER) {
            kept = node == call->root_node;
        } else if (call->kind == OP_KIND_GATHER || call->kind == OP_KIND_ALL_TO_ALL) {
            kept = script_block_of(call, element) == node;
        }
        if (kept &&
            !script_same(&state->values[node][COLL_WORK][element], &state->first[node][COLL_WORK][element])) {
            return false;
        }
    }
    return true;
}

static inline bool script_ends_right(const struct script_state *state)
{
    for (uint32_t node = 0; node < state->calls[0].call.node_count; node++) {
        if (!script_kept(state, node)) {
            return false;
        }
        for (uint64_t element = 0; element < state->calls[node].call.count_elements; element++) {
            if (!script_element_is_right(state, node, element)) {
                return false;
            }
        }
    }
    for (uint32_t i = 0; i < state->script->line_count; i++) {
        if (!(state->script->lines[i].direction == SCRIPT_SEND ? state->messages[i].taken
                                                               : state->taken[i])) {
            return false;
        }
    }
    return true;
}

/* Whether a node has passed the barrier although another has not entered it. */
static inline bool script_passed_early(const struct script_state *state)
{
    const struct coll_call *call = &state->calls[0].call;
    bool all_entered = true;
    bool one_passed = false;
    for (uint32_t node = 0; node < call->node_count; node++) {
        all_entered = all_entered && state->entered[node];
        one_passed = one_passed ||
                     (state->entered[node] && script_next_receive(state, node) == state->script->line_count);
    }
    return call->kind == OP_KIND_BARRIER && one_passed && !all_entered;
}

/* Random nodes take a step, one after the other, until none can. One of them, chosen at random, takes a step
 * only when no other can, as if it were slow. */
static inline bool script_run(struct script_state *state, struct random *random)
{
    uint32_t nodes = state->calls[0].call.node_count;
    uint32_t slow = (uint32_t)random_below(random, nodes);
    bool right = true;
    for (uint32_t i = 0; i < state->script->line_count; i++) {
        right = right && script_in_bounds(state, &state->script->lines[i]);
    }
    for (uint32_t idle = 0; right && idle < 32 * nodes;) {
        uint32_t node = (uint32_t)random_below(random, nodes);
        if (node == slow && idle < 16 * nodes) {
            idle++;
            continue;
        }
        bool moved = !state->entered[node];
        if (moved) {
            state->entered[node] = true;
        } else {
            moved = script_take(state, node, random, &right);
        }
        script_send(state, node);
        idle = moved ? 0 : idle + 1;
        right = right && !script_passed_early(state);
    }
    return right && script_ends_right(state);
}

/* Runs a script once on random values. Returns whether the result is right. */
static inline bool script_runs_right(const struct script *script, const struct coll_call *call,
                                     struct random *random)
{
    struct script_state *state = calloc(1, sizeof *state);
    if (state == NULL || call->node_count > SCRIPT_NODES_MAX ||
        script->scratch_elements > SCRIPT_ELEMENTS_MAX) {
        abort();
    }
    state->script = script;
    for (uint32_t node = 0; node < call->node_count; node++) {
        struct script_call *own = &state->calls[node];
        script_call_of(own, call, script->counts, node);
        if (own->call.count_elements > SCRIPT_ELEMENTS_MAX ||
            (own->call.send_offsets != NULL &&
             own->call.send_offsets[call->node_count] > SCRIPT_ELEMENTS_MAX)) {
            abort();
        }
        script_fill(state, node, random);
    }
    bool right = script_run(state, random);
    free(state);
    return right;
}

#endif
