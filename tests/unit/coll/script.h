#ifndef TESTS_UNIT_COLL_SCRIPT_H
#define TESTS_UNIT_COLL_SCRIPT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/base/random.h"
#include "daemon/coll/schedule.h"

/*
 * Schedules written out line by line, right or wrong, as algorithms that coll_check takes; and
 * script_runs_right, which runs one on real values in a random order, as an executor does: an opinion of its
 * own about what coll_check accepts.
 */

#define SCRIPT_LINES_MAX 256
#define SCRIPT_NODES_MAX 8
#define SCRIPT_ELEMENTS_MAX 16

enum script_direction { SCRIPT_SEND, SCRIPT_RECEIVE };

struct script_line {
    uint32_t node;
    uint32_t round;
    enum script_direction direction;
    struct coll_transfer transfer;
};

struct script {
    struct script_line
        lines[SCRIPT_LINES_MAX]; /* any order among nodes and rounds; within both, that of the list */
    uint32_t line_count;
    uint32_t round_count;
    uint32_t transfers_max;
};

/* The script that the algorithms below play. */
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

/* The algorithm that plays a script, which must outlive it; one script at a time. */
static inline struct coll_algorithm script_algorithm(const struct script *script, enum op_kind kind)
{
    script_played = script;
    return (struct coll_algorithm){.id = 1000,
                                   .name = "script",
                                   .description = "a script",
                                   .kind = kind,
                                   .round_count = script_round_count,
                                   .transfers_max = script_transfers_max,
                                   .round = script_round};
}

/* Appends a line, and makes the script as long and wide as that needs. False when it is full. */
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

/* Writes an algorithm's call down. False when it does not fit. */
static inline bool script_record(struct script *script, const struct coll_algorithm *algorithm,
                                 const struct coll_call *call)
{
    *script = (struct script){0};
    struct coll_transfer sends[SCRIPT_NODES_MAX];
    struct coll_transfer receives[SCRIPT_NODES_MAX];
    struct coll_call own = *call;
    if (call->node_count > SCRIPT_NODES_MAX || algorithm->transfers_max(call) > SCRIPT_NODES_MAX) {
        return false;
    }
    bool fits = true;
    for (own.node_index = 0; own.node_index < call->node_count; own.node_index++) {
        for (uint32_t round = 0; round < algorithm->round_count(&own); round++) {
            struct coll_round out = {.sends = sends, .receives = receives};
            algorithm->round(&own, round, &out);
            for (uint32_t i = 0; i < out.send_count; i++) {
                fits = fits && script_add(script, own.node_index, round, SCRIPT_SEND, sends[i]);
            }
            for (uint32_t i = 0; i < out.receive_count; i++) {
                fits = fits && script_add(script, own.node_index, round, SCRIPT_RECEIVE, receives[i]);
            }
        }
    }
    return fits;
}

/* --- Running one --- */

/* What an element holds: how often each node contributed (8 bits each), and a hash of the order of the folds.
 */
struct script_value {
    uint64_t contributions;
    uint64_t order;
};

struct script_message {
    bool left; /* the sender has come to its round: it may be read from now on */
    bool taken;
    struct script_value early[SCRIPT_ELEMENTS_MAX]; /* what was there at that time */
};

struct script_state {
    const struct script *script;
    struct coll_call call;
    struct script_value values[SCRIPT_NODES_MAX][SCRIPT_ELEMENTS_MAX];
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

/* The node's first receive not yet taken, by round and then as listed; line_count when there is none. */
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

/* The first message from one node to another not yet taken, sent or not; line_count when there is none. */
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

/* Sends whatever the node may send now. */
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
            memcpy(state->messages[i].early, state->values[node], sizeof state->messages[i].early);
        }
    }
}

/*
 * Takes a node's next receive if its message has left. The network read each element when it was sent, or
 * reads it only now.
 */
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
    *right = *right && from->count_elements == to->count_elements &&
             from->offset_elements == to->offset_elements && from->action == to->action &&
             to->offset_elements <= state->call.count_elements &&
             to->count_elements <= state->call.count_elements - to->offset_elements;
    for (uint64_t i = 0; *right && i < to->count_elements; i++) {
        uint64_t element = to->offset_elements + i;
        struct script_value *value = &state->values[node][element];
        const struct script_value *read = random_chance(random, 0.5) ? &state->messages[send].early[element]
                                                                     : &state->values[to->node][element];
        if (to->action == COLL_STORE) {
            *value = *read;
        } else {
            value->contributions += read->contributions;
            value->order = script_mix(value->order, read->order);
        }
    }
    return true;
}

static inline bool script_ends_right(const struct script_state *state)
{
    const struct coll_call *call = &state->call;
    uint64_t all = 0;
    for (uint32_t node = 0; node < call->node_count; node++) {
        all |= UINT64_C(1) << (8 * node);
    }
    uint64_t wanted = call->kind == OP_KIND_BROADCAST ? UINT64_C(1) << (8 * call->root_node) : all;
    for (uint32_t node = 0; node < call->node_count; node++) {
        for (uint64_t element = 0; element < call->count_elements; element++) {
            const struct script_value *value = &state->values[node][element];
            if (value->contributions != wanted || value->order != state->values[0][element].order) {
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
    bool all_entered = true;
    bool one_passed = false;
    for (uint32_t node = 0; node < state->call.node_count; node++) {
        all_entered = all_entered && state->entered[node];
        one_passed = one_passed ||
                     (state->entered[node] && script_next_receive(state, node) == state->script->line_count);
    }
    return state->call.kind == OP_KIND_BARRIER && one_passed && !all_entered;
}

/*
 * One run: a random node comes a step further, as often as one can. One node at random does so only when no
 * other can, as if it were slow. True if it comes to the right end.
 */
static inline bool script_runs_right(const struct script *script, const struct coll_call *call,
                                     struct random *random)
{
    struct script_state *state = calloc(1, sizeof *state);
    if (state == NULL || call->node_count > SCRIPT_NODES_MAX || call->count_elements > SCRIPT_ELEMENTS_MAX) {
        abort();
    }
    state->script = script;
    state->call = *call;
    for (uint32_t node = 0; node < call->node_count; node++) {
        for (uint64_t element = 0; element < call->count_elements; element++) {
            bool holds = call->kind != OP_KIND_BROADCAST || node == call->root_node;
            state->values[node][element].contributions =
                holds ? UINT64_C(1) << (8 * node) : UINT64_C(0xee) << 56;
            state->values[node][element].order = script_mix(node, element);
        }
    }
    uint32_t slow = (uint32_t)random_below(random, call->node_count);
    bool right = true;
    for (uint32_t idle = 0; right && idle < 32 * call->node_count;) {
        uint32_t node = (uint32_t)random_below(random, call->node_count);
        if (node == slow && idle < 16 * call->node_count) {
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
    right = right && script_ends_right(state);
    free(state);
    return right;
}

#endif
