#include "daemon/comm/agreement.h"

#include <stdlib.h>
#include <string.h>

/* What a node knows of another one. */
struct agreement_node {
    bool down;
    bool answered; /* to the present phase of our ballot */
    bool left_out; /* it does not reach a lower node */
    bool asked;    /* it has sent us something: it wants to know the decision */
};

enum agreement_phase { AGREEMENT_FOLLOWS, AGREEMENT_PREPARES, AGREEMENT_CONFIRMS, AGREEMENT_ACCEPTS };

struct agreement {
    struct agreement_options options;
    struct agreement_node *nodes;
    bool begun;
    bool decided;
    bool gave_up;
    bool confirmed; /* nodes that do not reach each other had their time */
    enum agreement_phase phase;
    struct agreement_ballot promised;
    struct agreement_ballot accepted_by; /* of `accepted` */
    struct agreement_ballot adopted_by;  /* on the leader: the highest in the promises */
    uint64_t limit_ns;
    uint64_t confirm_ns;
    struct agreement_value part;     /* this node's own */
    struct agreement_value combined; /* on the leader */
    struct agreement_value accepted; /* later the decision */
};

static int ballot_compare(struct agreement_ballot a, struct agreement_ballot b)
{
    if (a.attempt != b.attempt) {
        return a.attempt < b.attempt ? -1 : 1;
    }
    return a.leader < b.leader ? -1 : a.leader > b.leader;
}

/* --- Values --- */

bool agreement_value_init(struct agreement_value *value, uint32_t rank_count, uint32_t node_count)
{
    *value = (struct agreement_value){0};
    value->lost = calloc(1, agreement_bits_bytes(rank_count));
    value->down = calloc(1, agreement_bits_bytes(node_count));
    if (value->lost == NULL || value->down == NULL) {
        agreement_value_free(value);
        return false;
    }
    return true;
}

void agreement_value_free(struct agreement_value *value)
{
    free(value->lost);
    free(value->down);
    *value = (struct agreement_value){0};
}

/* Both values have bitmaps. */
static void value_copy(const struct agreement *agreement, struct agreement_value *to,
                       const struct agreement_value *from)
{
    uint8_t *lost = to->lost, *down = to->down;
    memcpy(lost, from->lost, agreement_bits_bytes(agreement->options.rank_count));
    memcpy(down, from->down, agreement_bits_bytes(agreement->options.node_count));
    *to = *from;
    to->lost = lost;
    to->down = down;
}

/* `down` is not combined: see leave_out. */
static void value_combine(const struct agreement *agreement, struct agreement_value *into,
                          const struct agreement_value *part)
{
    for (uint32_t i = 0; i < agreement_bits_bytes(agreement->options.rank_count); i++) {
        into->lost[i] |= part->lost[i];
    }
    into->last = part->last < into->last ? part->last : into->last;
    into->generation = part->generation > into->generation ? part->generation : into->generation;
    if (part->cause_weight < into->cause_weight) {
        into->cause = part->cause;
        into->cause_weight = part->cause_weight;
        into->has_detail = part->has_detail;
        into->detail = part->detail;
    }
}

bool agreement_may_go_on(const uint8_t *down, const uint8_t *dead, uint32_t node_count)
{
    uint32_t counted = 0, here = 0;
    bool has_lowest = false;
    for (uint32_t i = 0; i < node_count; i++) {
        bool is_down = agreement_bit(down, i);
        if (is_down && agreement_bit(dead, i)) {
            continue;
        }
        has_lowest = counted == 0 ? !is_down : has_lowest;
        counted++;
        here += !is_down;
    }
    return 2 * (uint64_t)here > counted || (2 * (uint64_t)here == counted && has_lowest);
}

/* --- Construction --- */

struct agreement *agreement_new(const struct agreement_options *options)
{
    struct agreement *agreement = calloc(1, sizeof *agreement);
    if (agreement == NULL) {
        return NULL;
    }
    agreement->options = *options;
    agreement->limit_ns = TIME_NEVER;
    agreement->confirm_ns = TIME_NEVER;
    agreement->nodes = calloc(options->node_count, sizeof *agreement->nodes);
    if (agreement->nodes == NULL ||
        !agreement_value_init(&agreement->part, options->rank_count, options->node_count) ||
        !agreement_value_init(&agreement->combined, options->rank_count, options->node_count) ||
        !agreement_value_init(&agreement->accepted, options->rank_count, options->node_count)) {
        agreement_free(agreement);
        return NULL;
    }
    return agreement;
}

void agreement_free(struct agreement *agreement)
{
    if (agreement == NULL) {
        return;
    }
    agreement_value_free(&agreement->part);
    agreement_value_free(&agreement->combined);
    agreement_value_free(&agreement->accepted);
    free(agreement->nodes);
    free(agreement);
}

const struct agreement_value *agreement_decision(const struct agreement *agreement)
{
    return agreement->decided ? &agreement->accepted : NULL;
}

/* --- Sending --- */

static void send_to(const struct agreement *agreement, uint32_t node, enum agreement_step step,
                    struct agreement_ballot ballot, const struct agreement_value *value)
{
    struct agreement_message message = {.step = step, .ballot = ballot, .value = value};
    if (step == AGREEMENT_PROMISE && value == &agreement->accepted) {
        message.accepted = agreement->accepted_by;
    }
    agreement->options.send(agreement->options.context, node, &message);
}

static void send_all(const struct agreement *agreement, enum agreement_step step,
                     const struct agreement_value *value)
{
    for (uint32_t i = 0; i < agreement->options.node_count; i++) {
        if (i != agreement->options.own && !agreement->nodes[i].down) {
            send_to(agreement, i, step, agreement->promised, value);
        }
    }
}

static void promise(const struct agreement *agreement)
{
    const struct agreement_value *value =
        agreement->accepted_by.attempt != 0 ? &agreement->accepted : &agreement->part;
    send_to(agreement, agreement->promised.leader, AGREEMENT_PROMISE, agreement->promised, value);
}

/* --- The leader --- */

static uint32_t lowest_up(const struct agreement *agreement)
{
    uint32_t node = 0;
    while (node != agreement->options.own && agreement->nodes[node].down) {
        node++;
    }
    return node;
}

static void decide(struct agreement *agreement, uint64_t now_ns)
{
    agreement->decided = true;
    agreement->limit_ns = TIME_NEVER;
    agreement->confirm_ns = TIME_NEVER;
    for (uint32_t i = 0; i < agreement->options.node_count; i++) {
        const struct agreement_node *node = &agreement->nodes[i];
        bool leads = agreement->phase == AGREEMENT_ACCEPTS;
        if (i != agreement->options.own && !node->down && (leads || node->asked)) {
            send_to(agreement, i, AGREEMENT_DECIDED, agreement->promised, &agreement->accepted);
        }
    }
    agreement->phase = AGREEMENT_FOLLOWS;
    agreement->options.decided(agreement->options.context, &agreement->accepted, now_ns);
}

static bool all_answered(const struct agreement *agreement)
{
    for (uint32_t i = 0; i < agreement->options.node_count; i++) {
        const struct agreement_node *node = &agreement->nodes[i];
        if (i != agreement->options.own && !node->down && !node->left_out && !node->answered) {
            return false;
        }
    }
    return true;
}

static void begin_phase(struct agreement *agreement, enum agreement_phase phase)
{
    agreement->phase = phase;
    for (uint32_t i = 0; i < agreement->options.node_count; i++) {
        agreement->nodes[i].answered = false;
    }
}

static void prepare(struct agreement *agreement)
{
    agreement->promised.attempt++;
    agreement->promised.leader = agreement->options.own;
    agreement->adopted_by = agreement->accepted_by;
    if (agreement->accepted_by.attempt != 0) {
        value_copy(agreement, &agreement->combined, &agreement->accepted);
    } else {
        value_copy(agreement, &agreement->combined, &agreement->part);
        memset(agreement->combined.down, 0, agreement_bits_bytes(agreement->options.node_count));
    }
    for (uint32_t i = 0; i < agreement->options.node_count; i++) {
        agreement->nodes[i].left_out = false;
    }
    begin_phase(agreement, AGREEMENT_PREPARES);
    send_all(agreement, AGREEMENT_PREPARE, &agreement->part);
}

/* Nodes that do not reach each other: `combined.down` has those whom another node with a part has lost. */
static bool nodes_contradict(const struct agreement *agreement)
{
    for (uint32_t i = 0; i < agreement->options.node_count; i++) {
        if (agreement_bit(agreement->combined.down, i) && !agreement->nodes[i].down) {
            return true;
        }
    }
    return false;
}

/* A node has no part if it is down, or left out. */
static void set_down(struct agreement *agreement)
{
    memset(agreement->combined.down, 0, agreement_bits_bytes(agreement->options.node_count));
    for (uint32_t i = 0; i < agreement->options.node_count; i++) {
        if (agreement->nodes[i].down || agreement->nodes[i].left_out) {
            agreement_bit_set(agreement->combined.down, i);
        }
    }
}

static void propose(struct agreement *agreement)
{
    if (agreement->adopted_by.attempt == 0) {
        set_down(agreement);
        agreement->options.conclude(agreement->options.context, &agreement->combined);
    }
    value_copy(agreement, &agreement->accepted, &agreement->combined);
    agreement->accepted_by = agreement->promised;
    begin_phase(agreement, AGREEMENT_ACCEPTS);
    send_all(agreement, AGREEMENT_ACCEPT, &agreement->accepted);
}

/* Goes to the next phase if all nodes have answered. */
static void advance(struct agreement *agreement, uint64_t now_ns)
{
    if (agreement->phase == AGREEMENT_PREPARES && all_answered(agreement)) {
        if (agreement->adopted_by.attempt == 0 && nodes_contradict(agreement) && !agreement->confirmed) {
            agreement->phase = AGREEMENT_CONFIRMS;
            agreement->confirm_ns = time_after(now_ns, AGREEMENT_CONFIRM_NS);
            return;
        }
        propose(agreement);
    }
    if (agreement->phase == AGREEMENT_ACCEPTS && all_answered(agreement)) {
        decide(agreement, now_ns);
    }
}

static void lead(struct agreement *agreement, uint64_t now_ns)
{
    prepare(agreement);
    advance(agreement, now_ns);
}

/* This node and `lost` do not reach each other. The higher one is left out, once the leader has confirmed. */
static void leave_out(struct agreement *agreement, uint32_t node, const struct agreement_value *part)
{
    for (uint32_t lost = 0; lost < agreement->options.node_count; lost++) {
        bool here = agreement_bit(part->down, lost) && !agreement->nodes[lost].down &&
                    lost != agreement->options.own && lost != node;
        if (here) {
            agreement_bit_set(agreement->combined.down, lost);
        }
        if (here && agreement->confirmed && !agreement->nodes[lost].left_out) {
            agreement->nodes[node > lost ? node : lost].left_out = true;
        }
    }
}

static void on_promise(struct agreement *agreement, uint32_t from, const struct agreement_message *message,
                       uint64_t now_ns)
{
    if (agreement->phase != AGREEMENT_PREPARES || ballot_compare(message->ballot, agreement->promised) != 0 ||
        agreement->nodes[from].answered || message->value == NULL) {
        return;
    }
    agreement->nodes[from].answered = true;
    if (message->accepted.attempt != 0) {
        if (ballot_compare(message->accepted, agreement->adopted_by) > 0) {
            agreement->adopted_by = message->accepted;
            value_copy(agreement, &agreement->combined, message->value);
        }
    } else if (agreement->adopted_by.attempt == 0) {
        value_combine(agreement, &agreement->combined, message->value);
        leave_out(agreement, from, message->value);
    }
    advance(agreement, now_ns);
}

/* --- Followers --- */

/* Tells the leader, or leads. */
static void seek_leader(struct agreement *agreement, uint64_t now_ns)
{
    uint32_t leader = lowest_up(agreement);
    if (leader == agreement->options.own) {
        lead(agreement, now_ns);
    } else {
        send_to(agreement, leader, AGREEMENT_REPORT, agreement->promised, &agreement->part);
    }
}

enum status agreement_begin(struct agreement *agreement, const struct agreement_value *part, uint64_t now_ns)
{
    if (agreement->begun || agreement->decided || agreement->gave_up) {
        return STATUS_OK;
    }
    agreement->begun = true;
    agreement->limit_ns = time_after(now_ns, AGREEMENT_LIMIT_NS);
    value_copy(agreement, &agreement->part, part);
    for (uint32_t i = 0; i < agreement->options.node_count; i++) {
        if (agreement->nodes[i].down) {
            agreement_bit_set(agreement->part.down, i);
        }
    }
    if (agreement->promised.attempt != 0 && !agreement->nodes[agreement->promised.leader].down) {
        promise(agreement); /* its leader waits for it */
    } else {
        seek_leader(agreement, now_ns);
    }
    return STATUS_OK;
}

void agreement_node_down(struct agreement *agreement, uint32_t node, uint64_t now_ns)
{
    if (node == agreement->options.own || agreement->nodes[node].down) {
        return;
    }
    bool was_leader = lowest_up(agreement) == node || agreement->promised.leader == node;
    agreement->nodes[node].down = true;
    agreement_bit_set(agreement->part.down, node);
    if (!agreement->begun || agreement->decided || agreement->gave_up) {
        return;
    }
    agreement->limit_ns = time_after(now_ns, AGREEMENT_LIMIT_NS);
    if (agreement->phase != AGREEMENT_FOLLOWS) {
        advance(agreement, now_ns);
    } else if (was_leader) {
        seek_leader(agreement, now_ns);
    }
}

/* Returns whether the ballot counts; if so it is promised. */
static bool follow(struct agreement *agreement, uint32_t from, struct agreement_ballot ballot)
{
    if (ballot.leader != from || ballot.attempt == 0 || ballot_compare(ballot, agreement->promised) < 0) {
        send_to(agreement, from, AGREEMENT_REJECT, agreement->promised, NULL);
        return false;
    }
    agreement->promised = ballot;
    agreement->phase = AGREEMENT_FOLLOWS;
    agreement->confirm_ns = TIME_NEVER;
    return true;
}

static void on_prepare(struct agreement *agreement, uint32_t from, const struct agreement_message *message,
                       uint64_t now_ns)
{
    if (!follow(agreement, from, message->ballot)) {
        return;
    }
    if (agreement->begun) {
        promise(agreement);
    } else if (message->value != NULL) {
        agreement->options.wanted(agreement->options.context, message->value, now_ns);
    }
}

static void on_accept(struct agreement *agreement, uint32_t from, const struct agreement_message *message)
{
    if (message->value == NULL || !follow(agreement, from, message->ballot)) {
        return;
    }
    value_copy(agreement, &agreement->accepted, message->value);
    agreement->accepted_by = message->ballot;
    send_to(agreement, from, AGREEMENT_ACCEPTED, message->ballot, NULL);
}

static void on_report(struct agreement *agreement, const struct agreement_message *message, uint64_t now_ns)
{
    if (!agreement->begun && message->value != NULL) {
        agreement->options.wanted(agreement->options.context, message->value, now_ns);
    }
}

/* Another leader has a higher ballot. If it is down, this node tries again, above it. */
static void on_reject(struct agreement *agreement, const struct agreement_message *message, uint64_t now_ns)
{
    if (agreement->phase == AGREEMENT_FOLLOWS || ballot_compare(message->ballot, agreement->promised) <= 0 ||
        message->ballot.leader >= agreement->options.node_count) {
        return;
    }
    agreement->promised = message->ballot;
    agreement->phase = AGREEMENT_FOLLOWS;
    agreement->confirm_ns = TIME_NEVER;
    if (agreement->nodes[message->ballot.leader].down && lowest_up(agreement) == agreement->options.own) {
        lead(agreement, now_ns);
    }
}

static void on_decided(struct agreement *agreement, const struct agreement_message *message, uint64_t now_ns)
{
    if (message->value != NULL) {
        value_copy(agreement, &agreement->accepted, message->value);
        agreement->phase = AGREEMENT_FOLLOWS;
        decide(agreement, now_ns);
    }
}

/* A node without a part: its cause counts as a reason to agree. */
static void on_gone(struct agreement *agreement, uint32_t from, const struct agreement_message *message,
                    uint64_t now_ns)
{
    if (message->value != NULL && agreement->begun && agreement->phase != AGREEMENT_FOLLOWS &&
        agreement->adopted_by.attempt == 0 && agreement->phase != AGREEMENT_ACCEPTS) {
        struct agreement_value cause = *message->value;
        cause.last = UINT64_MAX;
        value_combine(agreement, &agreement->combined, &cause);
    }
    agreement_node_down(agreement, from, now_ns);
    on_report(agreement, message, now_ns);
}

void agreement_received(struct agreement *agreement, uint32_t from, const struct agreement_message *message,
                        uint64_t now_ns)
{
    if (from == agreement->options.own || agreement->nodes[from].down) {
        return; /* it was lost; what it sent before came before */
    }
    if (agreement->gave_up) {
        send_to(agreement, from, AGREEMENT_GONE, agreement->promised, NULL);
        return;
    }
    agreement->nodes[from].asked = true;
    if (agreement->decided) {
        if (message->step != AGREEMENT_DECIDED && message->step != AGREEMENT_ACCEPTED &&
            message->step != AGREEMENT_REJECT && message->step != AGREEMENT_GONE) {
            send_to(agreement, from, AGREEMENT_DECIDED, agreement->promised, &agreement->accepted);
        }
        return;
    }
    switch (message->step) {
    case AGREEMENT_REPORT:
        on_report(agreement, message, now_ns);
        break;
    case AGREEMENT_PREPARE:
        on_prepare(agreement, from, message, now_ns);
        break;
    case AGREEMENT_PROMISE:
        on_promise(agreement, from, message, now_ns);
        break;
    case AGREEMENT_ACCEPT:
        on_accept(agreement, from, message);
        break;
    case AGREEMENT_ACCEPTED:
        if (agreement->phase == AGREEMENT_ACCEPTS &&
            ballot_compare(message->ballot, agreement->promised) == 0) {
            agreement->nodes[from].answered = true;
            advance(agreement, now_ns);
        }
        break;
    case AGREEMENT_DECIDED:
        on_decided(agreement, message, now_ns);
        break;
    case AGREEMENT_REJECT:
        on_reject(agreement, message, now_ns);
        break;
    case AGREEMENT_GONE:
        on_gone(agreement, from, message, now_ns);
        break;
    }
}

uint64_t agreement_deadline_ns(const struct agreement *agreement)
{
    return time_min(agreement->limit_ns, agreement->confirm_ns);
}

void agreement_tick(struct agreement *agreement, uint64_t now_ns)
{
    if (now_ns >= agreement->limit_ns) {
        agreement->limit_ns = TIME_NEVER;
        agreement->confirm_ns = TIME_NEVER;
        agreement->phase = AGREEMENT_FOLLOWS;
        agreement->gave_up = true;
        for (uint32_t i = 0; i < agreement->options.node_count; i++) {
            if (i != agreement->options.own && !agreement->nodes[i].down) {
                send_to(agreement, i, AGREEMENT_GONE, agreement->promised, &agreement->part);
            }
        }
        agreement->options.gave_up(agreement->options.context, now_ns);
    } else if (now_ns >= agreement->confirm_ns) {
        agreement->confirm_ns = TIME_NEVER;
        agreement->confirmed = true;
        lead(agreement, now_ns);
    }
}
