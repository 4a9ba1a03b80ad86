#include "daemon/coll/check.h"

#include <assert.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/base/checked.h"
#include "daemon/coll/check_plan.h"
#include "daemon/coll/check_value.h"

/*
 * Runs a plan on symbolic values, one possible order of events for all: it is enough, because everything that
 * could depend on the order is refused.
 *
 * Order. A receive is consumed when its sender has come to the round of the send, and a node leaves a round
 * when its receives are consumed and its sends are taken. The real executor does not wait for the sends; so
 * whatever comes to its end here does so there, whether or not the network buffers anything.
 *
 * Causality. What a node has certainly seen is a vector clock, merged on every message consumed (Fidge 1988,
 * Mattern 1988), and counts only what the real executor waits for: a message carries what its sender had
 * consumed in earlier rounds. A range that was sent stays on a list until a write to it comes, by which time
 * the receiver's consumption must be in the clock. Two events that are not so ordered never touch the same
 * range in a way that matters, and the values are the same in every order.
 */

#define NO_SENT UINT32_MAX
#define NEVER UINT32_MAX

/* A part that was sent: it may be written once `receiver` is known to have come to `clock`. */
struct sent_part {
    uint32_t next;
    uint32_t receiver;
    uint32_t clock;
    uint32_t round; /* of the send */
};

struct node_progress {
    uint32_t round;
    uint32_t next_receive; /* index into the plan's receives */
    uint32_t untaken;      /* sends of this round */
    bool queued;
};

struct coll_run {
    const struct coll_plan *plan;
    struct coll_values values;
    struct node_progress *nodes;
    uint32_t *cells;   /* by (node, part): the value there */
    uint32_t *written; /* by (node, part): the round of the last write, or NEVER */
    uint32_t *sent;    /* by (node, part): the sent_parts not known to be consumed, a list */
    struct sent_part *sent_parts;
    uint32_t sent_part_count;
    uint32_t sent_part_capacity;
    uint32_t free_sent_part; /* a list */
    /*
     * By (node, other): how far the node knows the other to have come: 0 for nothing, 1 + k for having
     * entered and consumed k receives; now, and when the node entered its round.
     */
    uint32_t *known;
    uint32_t *known_at_round;
    bool *taken;     /* by send */
    uint32_t *queue; /* nodes that may have something to do: a ring of node_count, each at most once */
    uint32_t queue_head;
    uint32_t queue_count;
};

/* --- Setting up --- */

static size_t coll_run_cell(const struct coll_run *run, uint32_t node, uint32_t part)
{
    return (size_t)node * run->plan->part_count + part;
}

static uint32_t *coll_run_known(const struct coll_run *run, uint32_t *table, uint32_t node)
{
    return &table[(size_t)node * run->plan->call.node_count];
}

/* What a node's buffer holds before the call. */
static uint32_t coll_run_first_value(const struct coll_run *run, uint32_t node)
{
    switch (run->plan->call.kind) {
    case OP_KIND_ALL_REDUCE:
        return coll_values_contribution(&run->values, node);
    case OP_KIND_BROADCAST:
        return node == run->plan->call.root_node ? coll_values_contribution(&run->values, node)
                                                 : COLL_VALUE_NONE;
    case OP_KIND_BARRIER:
        break;
    }
    return COLL_VALUE_NONE;
}

static bool coll_run_init(struct coll_run *run, const struct coll_plan *plan)
{
    *run = (struct coll_run){.plan = plan, .free_sent_part = NO_SENT};
    size_t nodes = plan->call.node_count;
    size_t cells;
    if (!checked_mul_size(nodes, plan->part_count, &cells) ||
        !coll_values_init(&run->values, plan->call.node_count)) {
        return false;
    }
    run->nodes = calloc(nodes, sizeof *run->nodes);
    run->cells = calloc(cells + 1, sizeof *run->cells);
    run->written = calloc(cells + 1, sizeof *run->written);
    run->sent = calloc(cells + 1, sizeof *run->sent);
    run->known = calloc(nodes * nodes, sizeof *run->known);
    run->known_at_round = calloc(nodes * nodes, sizeof *run->known_at_round);
    run->taken = calloc((size_t)plan->sends.count + 1, sizeof *run->taken);
    run->queue = calloc(nodes, sizeof *run->queue);
    if (run->nodes == NULL || run->cells == NULL || run->written == NULL || run->sent == NULL ||
        run->known == NULL || run->known_at_round == NULL || run->taken == NULL || run->queue == NULL) {
        return false;
    }
    for (uint32_t node = 0; node < nodes; node++) {
        uint32_t value = coll_run_first_value(run, node);
        for (uint32_t part = 0; part < plan->part_count; part++) {
            size_t cell = coll_run_cell(run, node, part);
            run->cells[cell] = value;
            run->written[cell] = NEVER;
            run->sent[cell] = NO_SENT;
        }
        coll_run_known(run, run->known, node)[node] = 1;
    }
    return true;
}

static void coll_run_free(struct coll_run *run)
{
    coll_values_free(&run->values);
    free(run->nodes);
    free(run->cells);
    free(run->written);
    free(run->sent);
    free(run->sent_parts);
    free(run->known);
    free(run->known_at_round);
    free(run->taken);
    free(run->queue);
}

/* --- Ranges that were sent --- */

static bool coll_run_add_sent(struct coll_run *run, size_t cell, uint32_t receiver, uint32_t clock,
                              uint32_t round)
{
    uint32_t at = run->free_sent_part;
    if (at != NO_SENT) {
        run->free_sent_part = run->sent_parts[at].next;
    } else {
        if (run->sent_part_count == run->sent_part_capacity) {
            uint32_t capacity = run->sent_part_capacity == 0 ? 256 : run->sent_part_capacity * 2;
            struct sent_part *larger =
                capacity == 0 ? NULL : reallocarray(run->sent_parts, capacity, sizeof *larger);
            if (larger == NULL) {
                return false;
            }
            run->sent_parts = larger;
            run->sent_part_capacity = capacity;
        }
        at = run->sent_part_count++;
    }
    run->sent_parts[at] = (struct sent_part){run->sent[cell], receiver, clock, round};
    run->sent[cell] = at;
    return true;
}

/* A receive in `round` writes to a part of a node: everything sent from there must be known to be consumed.
 */
static enum status coll_run_check_write(struct coll_run *run, uint32_t node, uint32_t part, uint32_t round,
                                        struct error *error)
{
    const uint32_t *known = coll_run_known(run, run->known, node);
    uint32_t *list = &run->sent[coll_run_cell(run, node, part)];
    while (*list != NO_SENT) {
        uint32_t at = *list;
        struct sent_part *sent = &run->sent_parts[at];
        if (known[sent->receiver] < sent->clock) {
            return coll_plan_fault(
                run->plan, node, round, error,
                "writes elements %" PRIu64 " to %" PRIu64 ", which it sends to node %" PRIu32
                " in round %" PRIu32 ", before it can know that they are consumed",
                run->plan->bounds[part], run->plan->bounds[part + 1] - 1, sent->receiver, sent->round);
        }
        *list = sent->next;
        sent->next = run->free_sent_part;
        run->free_sent_part = at;
    }
    return STATUS_OK;
}

/* --- Events --- */

static void coll_run_wake(struct coll_run *run, uint32_t node)
{
    if (run->nodes[node].queued) {
        return;
    }
    uint32_t capacity = run->plan->call.node_count;
    assert(run->queue_count < capacity);
    run->nodes[node].queued = true;
    run->queue[(run->queue_head + run->queue_count++) % capacity] = node;
}

/* The node comes to its round `nodes[node].round`: its sends are offered. */
static enum status coll_run_enter(struct coll_run *run, uint32_t node, struct error *error)
{
    const struct coll_plan *plan = run->plan;
    const struct coll_plan_node *own = &plan->nodes[node];
    uint32_t round = run->nodes[node].round;
    assert(round < own->round_count);
    memcpy(coll_run_known(run, run->known_at_round, node), coll_run_known(run, run->known, node),
           plan->call.node_count * sizeof *run->known);
    run->nodes[node].untaken = own->send_begin[round + 1] - own->send_begin[round];
    for (uint32_t i = own->send_begin[round]; i < own->send_begin[round + 1]; i++) {
        const struct coll_plan_transfer *send = &plan->sends.list[i];
        uint32_t receiver = send->at.node;
        uint32_t clock = 1 + (send->match - plan->nodes[receiver].receive_begin[0]) + 1;
        for (uint32_t part = send->part_first; part < send->part_end; part++) {
            size_t cell = coll_run_cell(run, node, part);
            if (run->cells[cell] == COLL_VALUE_NONE) {
                return coll_plan_fault(plan, node, round, error,
                                       "sends elements %" PRIu64 " to %" PRIu64 " to node %" PRIu32
                                       " without having them",
                                       plan->bounds[part], plan->bounds[part + 1] - 1, receiver);
            }
            if (!coll_run_add_sent(run, cell, receiver, clock, round)) {
                return coll_plan_no_memory(plan, error);
            }
        }
        coll_run_wake(run, receiver);
    }
    return STATUS_OK;
}

/* One part of a message is consumed. */
static enum status coll_run_write(struct coll_run *run, uint32_t node,
                                  const struct coll_plan_transfer *receive, uint32_t part,
                                  struct error *error)
{
    enum status status = coll_run_check_write(run, node, part, receive->round, error);
    if (status != STATUS_OK) {
        return status;
    }
    uint32_t *cell = &run->cells[coll_run_cell(run, node, part)];
    uint32_t value = run->cells[coll_run_cell(run, receive->at.node, part)];
    run->written[coll_run_cell(run, node, part)] = receive->round;
    if (receive->at.action == COLL_STORE) {
        *cell = value;
        return STATUS_OK;
    }
    uint64_t first = run->plan->bounds[part];
    uint64_t last = run->plan->bounds[part + 1] - 1;
    if (*cell == COLL_VALUE_NONE) {
        return coll_plan_fault(run->plan, node, receive->round, error,
                               "reduces into elements %" PRIu64 " to %" PRIu64 " without having them", first,
                               last);
    }
    uint32_t twice = coll_values_shared(&run->values, *cell, value);
    if (twice < run->plan->call.node_count) {
        return coll_plan_fault(run->plan, node, receive->round, error,
                               "reduces the contribution of node %" PRIu32
                               " a second time into elements %" PRIu64 " to %" PRIu64,
                               twice, first, last);
    }
    return coll_values_fold(&run->values, *cell, value, cell) ? STATUS_OK
                                                              : coll_plan_no_memory(run->plan, error);
}

/* Consumes the node's next receive, if its round is this one and its sender is ready. */
static enum status coll_run_consume(struct coll_run *run, uint32_t node, bool *consumed, struct error *error)
{
    const struct coll_plan *plan = run->plan;
    struct node_progress *own = &run->nodes[node];
    *consumed = false;
    if (own->next_receive == plan->nodes[node].receive_begin[own->round + 1]) {
        return STATUS_OK;
    }
    const struct coll_plan_transfer *receive = &plan->receives.list[own->next_receive];
    uint32_t sender = receive->at.node;
    if (run->nodes[sender].round != plan->sends.list[receive->match].round) {
        return STATUS_OK; /* the sender comes to it later: it cannot leave the round before this is taken */
    }
    uint32_t *known = coll_run_known(run, run->known, node);
    const uint32_t *carried = coll_run_known(run, run->known_at_round, sender);
    for (uint32_t other = 0; other < plan->call.node_count; other++) {
        known[other] = known[other] > carried[other] ? known[other] : carried[other];
    }
    for (uint32_t part = receive->part_first; part < receive->part_end; part++) {
        enum status status = coll_run_write(run, node, receive, part, error);
        if (status != STATUS_OK) {
            return status;
        }
    }
    own->next_receive++;
    known[node]++;
    run->taken[receive->match] = true;
    run->nodes[sender].untaken--;
    coll_run_wake(run, sender);
    *consumed = true;
    return STATUS_OK;
}

static bool coll_run_node_done(const struct coll_run *run, uint32_t node)
{
    return run->nodes[node].round == run->plan->nodes[node].round_count;
}

/* Takes a node as far as it comes. */
static enum status coll_run_advance(struct coll_run *run, uint32_t node, struct error *error)
{
    const struct coll_plan_node *plan_node = &run->plan->nodes[node];
    struct node_progress *own = &run->nodes[node];
    while (!coll_run_node_done(run, node)) {
        bool consumed = false;
        enum status status = coll_run_consume(run, node, &consumed, error);
        if (status != STATUS_OK) {
            return status;
        }
        if (consumed) {
            continue;
        }
        if (own->next_receive < plan_node->receive_begin[own->round + 1] || own->untaken > 0) {
            return STATUS_OK;
        }
        own->round++;
        if (!coll_run_node_done(run, node)) {
            status = coll_run_enter(run, node, error);
            if (status != STATUS_OK) {
                return status;
            }
        }
    }
    return STATUS_OK;
}

/* --- Standstill --- */

/* Whom a node that stands still waits for, and what for. */
static uint32_t coll_run_waits_for(const struct coll_run *run, uint32_t node, bool *to_send)
{
    const struct coll_plan *plan = run->plan;
    const struct node_progress *own = &run->nodes[node];
    *to_send = own->next_receive < plan->nodes[node].receive_begin[own->round + 1];
    if (*to_send) {
        return plan->receives.list[own->next_receive].at.node;
    }
    uint32_t send = plan->nodes[node].send_begin[own->round];
    while (run->taken[send]) {
        send++;
    }
    assert(send < plan->nodes[node].send_begin[own->round + 1]);
    return plan->sends.list[send].at.node;
}

/*
 * Every receive has its send and the other way round, so a node that is not done waits for another that is
 * not done: following them leads into a circle.
 */
static enum status coll_run_report_circle(struct coll_run *run, uint32_t start, struct error *error)
{
    bool to_send;
    for (uint32_t step = 0; step < run->plan->call.node_count; step++) {
        start = coll_run_waits_for(run, start, &to_send);
    }
    char text[ERROR_TEXT_MAX_BYTES / 2];
    size_t length = 0;
    uint32_t node = start;
    do {
        uint32_t other = coll_run_waits_for(run, node, &to_send);
        int wanted = snprintf(text + length, sizeof text - length,
                              "%snode %" PRIu32 " (round %" PRIu32 ") waits for node %" PRIu32 " to %s",
                              length > 0 ? ", " : "", node, run->nodes[node].round, other,
                              to_send ? "send" : "receive");
        if (wanted < 0 || (size_t)wanted >= sizeof text - length) {
            text[length] = '\0';
            return coll_plan_fault(run->plan, start, run->nodes[start].round, error,
                                   "circular wait: %s, and so on, back to node %" PRIu32, text, start);
        }
        length += (size_t)wanted;
        node = other;
    } while (node != start);
    return coll_plan_fault(run->plan, start, run->nodes[start].round, error, "circular wait: %s", text);
}

/* --- The end --- */

/* What is at fault at a node's end is put down to its last round, or to round 0 if it has none. */
static uint32_t coll_run_last_round(const struct coll_run *run, uint32_t node)
{
    uint32_t rounds = run->plan->nodes[node].round_count;
    return rounds > 0 ? rounds - 1 : 0;
}

static enum status coll_run_check_part(const struct coll_run *run, uint32_t node, uint32_t part,
                                       struct error *error)
{
    const struct coll_plan *plan = run->plan;
    size_t cell = coll_run_cell(run, node, part);
    uint32_t value = run->cells[cell];
    uint64_t first = plan->bounds[part];
    uint64_t last = plan->bounds[part + 1] - 1;
    uint32_t round = run->written[cell] != NEVER ? run->written[cell] : coll_run_last_round(run, node);
    const char *when = run->written[cell] != NEVER ? "written here for the last time" : "never written";
    if (value == COLL_VALUE_NONE) {
        return coll_plan_fault(plan, node, round, error,
                               "ends without elements %" PRIu64 " to %" PRIu64 " of the root (%s)", first,
                               last, when);
    }
    if (plan->call.kind == OP_KIND_BROADCAST) {
        assert(value == coll_values_contribution(&run->values, plan->call.root_node)); /* there is no other */
        return STATUS_OK;
    }
    uint32_t missing = coll_values_missing(&run->values, value);
    if (missing < plan->call.node_count) {
        return coll_plan_fault(plan, node, round, error,
                               "elements %" PRIu64 " to %" PRIu64
                               " (%s) end without the contribution of node %" PRIu32,
                               first, last, when, missing);
    }
    if (value != run->cells[coll_run_cell(run, 0, part)]) {
        return coll_plan_fault(plan, node, round, error,
                               "elements %" PRIu64 " to %" PRIu64
                               " (%s) are reduced in another order than at node 0",
                               first, last, when);
    }
    return STATUS_OK;
}

static enum status coll_run_check_end(const struct coll_run *run, struct error *error)
{
    uint32_t nodes = run->plan->call.node_count;
    for (uint32_t node = 0; node < nodes; node++) {
        for (uint32_t part = 0; part < run->plan->part_count; part++) {
            enum status status = coll_run_check_part(run, node, part, error);
            if (status != STATUS_OK) {
                return status;
            }
        }
        const uint32_t *known = coll_run_known(run, run->known, node);
        for (uint32_t other = 0; run->plan->call.kind == OP_KIND_BARRIER && other < nodes; other++) {
            if (known[other] == 0) {
                return coll_plan_fault(
                    run->plan, node, coll_run_last_round(run, node), error,
                    "passes the barrier without knowing that node %" PRIu32 " has entered it", other);
            }
        }
    }
    return STATUS_OK;
}

/* --- The whole --- */

static enum status coll_run_all(struct coll_run *run, struct error *error)
{
    uint32_t nodes = run->plan->call.node_count;
    assert(nodes > 0);
    enum status status = STATUS_OK;
    for (uint32_t node = 0; status == STATUS_OK && node < nodes; node++) {
        run->nodes[node].next_receive = run->plan->nodes[node].receive_begin[0];
        coll_run_wake(run, node);
        if (!coll_run_node_done(run, node)) {
            status = coll_run_enter(run, node, error);
        }
    }
    while (status == STATUS_OK && run->queue_count > 0) {
        uint32_t node = run->queue[run->queue_head];
        run->queue_head = (run->queue_head + 1) % nodes;
        run->queue_count--;
        run->nodes[node].queued = false;
        status = coll_run_advance(run, node, error);
    }
    for (uint32_t node = 0; status == STATUS_OK && node < nodes; node++) {
        if (!coll_run_node_done(run, node)) {
            status = coll_run_report_circle(run, node, error);
        }
    }
    return status == STATUS_OK ? coll_run_check_end(run, error) : status;
}

enum status coll_check(const struct coll_algorithm *algorithm, const struct coll_call *call,
                       struct coll_cost *cost, struct error *error)
{
    struct coll_plan plan;
    struct coll_run run = {0};
    enum status status = coll_plan_init(&plan, algorithm, call, error);
    if (status != STATUS_OK) {
        goto out;
    }
    status = coll_run_init(&run, &plan) ? coll_run_all(&run, error) : coll_plan_no_memory(&plan, error);
    coll_run_free(&run);
    if (status == STATUS_OK && cost != NULL) {
        status = coll_plan_cost(&plan, cost, error);
    }
out:
    coll_plan_free(&plan);
    return status;
}
