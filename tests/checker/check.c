#include "tests/checker/check.h"

#include <assert.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/checker/check_plan.h"
#include "tests/checker/check_run.h"
#include "tests/checker/check_value.h"

/*
 * Runs a plan on symbolic values. It tries one possible order of events. That is enough, because everything
 * that could depend on the order is refused.
 *
 * Order. A receive is consumed when its sender has come to the round of the send. A node leaves a round when
 * its receives are consumed and its sends are taken. The real executor does not wait for the sends. So a plan
 * that ends here also ends there, whether or not the network buffers anything.
 *
 * Causality. A vector clock counts what a node has certainly seen; every message consumed merges the sender's
 * clock (Fidge 1988, Mattern 1988). The clock counts only what the real executor waits for: a message carries
 * what its sender had consumed in earlier rounds. A range that was sent stays on a list until a write to it
 * comes. By then, the clock must show that the receiver has consumed it. So the result never depends on the
 * order of two events that have no such order, and the values are the same in every order.
 */

#define NO_SENT UINT32_MAX /* no index of a sent_part */

/* --- Setting up --- */

/* Whether a place holds what its node contributes before the call. */
static bool coll_run_contributes(const struct coll_plan *plan, uint32_t node, uint64_t place)
{
    const struct coll_call *call = &plan->call;
    const uint64_t *begin = plan->nodes[node].space_begin;
    switch (call->kind) {
    case OP_KIND_ALL_REDUCE:
    case OP_KIND_REDUCE:
    case OP_KIND_REDUCE_SCATTER:
        return place < begin[COLL_INPUT];
    case OP_KIND_SCAN:
    case OP_KIND_EXCLUSIVE_SCAN:
        return place < call->count_elements;
    case OP_KIND_BROADCAST:
    case OP_KIND_SCATTER:
        return place < begin[COLL_INPUT] && node == call->root_node;
    case OP_KIND_ALL_GATHER:
    case OP_KIND_GATHER:
        return place >= call->block_offsets[node] && place < call->block_offsets[node + 1];
    case OP_KIND_ALL_TO_ALL:
        return place >= begin[COLL_INPUT] && place < begin[COLL_SCRATCH];
    case OP_KIND_BARRIER:
    case OP_KIND_SEND:
    case OP_KIND_RECEIVE:
        break;
    }
    return false;
}

static bool coll_run_init_cells(struct coll_run *run)
{
    const struct coll_plan *plan = run->plan;
    size_t count = 0;
    for (uint32_t node = 0; node < plan->call.node_count; node++) {
        run->first_cell[node] = count;
        count += plan->nodes[node].part_count;
    }
    run->cells = calloc(count + 1, sizeof *run->cells);
    if (run->cells == NULL) {
        return false;
    }
    for (uint32_t node = 0; node < plan->call.node_count; node++) {
        for (uint32_t part = 0; part < plan->nodes[node].part_count; part++) {
            uint64_t place = coll_run_place(run, node, part);
            bool contributes = coll_run_contributes(plan, node, place);
            *coll_run_cell(run, node, part) = (struct coll_cell){
                .origin = place,
                .value = contributes ? coll_values_contribution(&run->values, node) : COLL_VALUE_NONE,
                .written = COLL_RUN_NEVER,
                .sent = NO_SENT};
        }
    }
    return true;
}

static bool coll_run_init(struct coll_run *run, const struct coll_plan *plan)
{
    *run = (struct coll_run){.plan = plan, .free_sent_part = NO_SENT};
    size_t nodes = plan->call.node_count;
    if (!coll_values_init(&run->values, plan->call.node_count)) {
        return false;
    }
    run->nodes = calloc(nodes, sizeof *run->nodes);
    run->first_cell = calloc(nodes, sizeof *run->first_cell);
    run->known = calloc(nodes * nodes, sizeof *run->known);
    run->known_at_round = calloc(nodes * nodes, sizeof *run->known_at_round);
    run->taken = calloc((size_t)plan->sends.count + 1, sizeof *run->taken);
    run->copies =
        calloc(plan->algorithm->copies_sends ? (size_t)plan->sends.count + 1 : 1, sizeof *run->copies);
    run->queue = calloc(nodes, sizeof *run->queue);
    if (run->nodes == NULL || run->first_cell == NULL || run->known == NULL || run->known_at_round == NULL ||
        run->taken == NULL || run->copies == NULL || run->queue == NULL) {
        return false;
    }
    for (uint32_t node = 0; node < nodes; node++) {
        coll_run_known(run, run->known, node)[node] = 1;
    }
    return coll_run_init_cells(run);
}

static void coll_run_free(struct coll_run *run)
{
    coll_values_free(&run->values);
    for (uint32_t i = 0;
         run->copies != NULL && run->plan->algorithm->copies_sends && i < run->plan->sends.count; i++) {
        free(run->copies[i]);
    }
    free(run->copies);
    free(run->nodes);
    free(run->first_cell);
    free(run->cells);
    free(run->sent_parts);
    free(run->known);
    free(run->known_at_round);
    free(run->taken);
    free(run->queue);
}

/* --- Ranges that were sent --- */

static bool coll_run_add_sent(struct coll_run *run, struct coll_cell *cell, uint32_t receiver, uint32_t clock,
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
    run->sent_parts[at] = (struct sent_part){cell->sent, receiver, clock, round};
    cell->sent = at;
    return true;
}

/* Checks a receive in `round` that writes to a part of a node: the node must know that everything sent
 * from that part is consumed. */
static enum status coll_run_check_write(struct coll_run *run, uint32_t node, uint32_t part, uint32_t round,
                                        struct error *error)
{
    const uint32_t *known = coll_run_known(run, run->known, node);
    uint32_t *list = &coll_run_cell(run, node, part)->sent;
    while (*list != NO_SENT) {
        uint32_t at = *list;
        struct sent_part *sent = &run->sent_parts[at];
        if (known[sent->receiver] < sent->clock) {
            char text[COLL_PART_TEXT_BYTES];
            return coll_plan_fault(run->plan, node, round, error,
                                   "writes %s, which it sends to node %" PRIu32 " in round %" PRIu32
                                   ", before it can know that they are consumed",
                                   coll_plan_part_text(run->plan, node, part, text), sent->receiver,
                                   sent->round);
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

/* Offers a send to its receiver. The node must have its parts. They are copied, or must not change until
 * they are consumed. */
static enum status coll_run_offer(struct coll_run *run, uint32_t node, uint32_t index, struct error *error)
{
    const struct coll_plan *plan = run->plan;
    const struct coll_plan_transfer *send = &plan->sends.list[index];
    uint32_t receiver = send->at.node;
    uint32_t clock = 1 + (send->match - plan->nodes[receiver].receive_begin[0]) + 1;
    for (uint32_t part = send->part_first; part < send->part_end; part++) {
        struct coll_cell *cell = coll_run_cell(run, node, part);
        if (cell->value == COLL_VALUE_NONE) {
            char text[COLL_PART_TEXT_BYTES];
            return coll_plan_fault(plan, node, send->round, error,
                                   "sends %s to node %" PRIu32 " without having them",
                                   coll_plan_part_text(plan, node, part, text), receiver);
        }
        if (!plan->algorithm->copies_sends && !coll_run_add_sent(run, cell, receiver, clock, send->round)) {
            return coll_plan_no_memory(plan, error);
        }
    }
    if (plan->algorithm->copies_sends && send->part_end > send->part_first) {
        size_t bytes = (send->part_end - send->part_first) * sizeof **run->copies;
        run->copies[index] = malloc(bytes);
        if (run->copies[index] == NULL) {
            return coll_plan_no_memory(plan, error);
        }
        memcpy(run->copies[index], coll_run_cell(run, node, send->part_first), bytes);
    }
    coll_run_wake(run, receiver);
    return STATUS_OK;
}

/* The node enters its round `nodes[node].round` and offers its sends. */
static enum status coll_run_enter(struct coll_run *run, uint32_t node, struct error *error)
{
    const struct coll_plan *plan = run->plan;
    const struct coll_plan_node *own = &plan->nodes[node];
    uint32_t round = run->nodes[node].round;
    assert(round < own->round_count);
    run->nodes[node].untaken = own->send_begin[round + 1] - own->send_begin[round];
    if (run->nodes[node].untaken > 0) { /* otherwise nobody reads known_at_round */
        memcpy(coll_run_known(run, run->known_at_round, node), coll_run_known(run, run->known, node),
               plan->call.node_count * sizeof *run->known);
    }
    enum status status = STATUS_OK;
    for (uint32_t i = own->send_begin[round]; status == STATUS_OK && i < own->send_begin[round + 1]; i++) {
        status = coll_run_offer(run, node, i, error);
    }
    return status;
}

/* Folds a received part into a cell: as the left operand if `before`, otherwise as the right one. */
static enum status coll_run_fold(struct coll_run *run, uint32_t node,
                                 const struct coll_plan_transfer *receive, uint32_t part,
                                 struct coll_cell *cell, const struct coll_cell *received, bool before,
                                 struct error *error)
{
    const struct coll_plan *plan = run->plan;
    char text[COLL_PART_TEXT_BYTES];
    if (cell->value == COLL_VALUE_NONE) {
        return coll_plan_fault(plan, node, receive->round, error, "reduces into %s without having them",
                               coll_plan_part_text(plan, node, part, text));
    }
    if (cell->origin != received->origin) {
        return coll_plan_fault(plan, node, receive->round, error,
                               "reduces into %s those of other places, from element %" PRIu64 " on",
                               coll_plan_part_text(plan, node, part, text), received->origin);
    }
    uint32_t twice = coll_values_shared(&run->values, cell->value, received->value);
    if (twice < plan->call.node_count) {
        return coll_plan_fault(plan, node, receive->round, error,
                               "reduces the contribution of node %" PRIu32 " a second time into %s", twice,
                               coll_plan_part_text(plan, node, part, text));
    }
    uint32_t left = before ? received->value : cell->value;
    uint32_t right = before ? cell->value : received->value;
    return coll_values_fold(&run->values, left, right, &cell->value) ? STATUS_OK
                                                                     : coll_plan_no_memory(plan, error);
}

/* Writes the prefix of a scan: the place that belongs to `part` of the running value. */
static enum status coll_run_write_prefix(struct coll_run *run, uint32_t node,
                                         const struct coll_plan_transfer *receive, uint32_t part,
                                         const struct coll_cell *received, struct error *error)
{
    uint64_t place = coll_run_place(run, node, part) + run->plan->call.count_elements;
    uint32_t beside = (uint32_t)coll_cuts_at(run->plan->nodes[node].cuts, place);
    enum status status = coll_run_check_write(run, node, beside, receive->round, error);
    if (status != STATUS_OK) {
        return status;
    }
    struct coll_cell *cell = coll_run_cell(run, node, beside);
    cell->written = receive->round;
    if (cell->value == COLL_VALUE_NONE) {
        cell->value = received->value;
        cell->origin = received->origin;
        return STATUS_OK;
    }
    return coll_run_fold(run, node, receive, beside, cell, received, true, error);
}

/* Consumes one part of a message. */
static enum status coll_run_write(struct coll_run *run, uint32_t node,
                                  const struct coll_plan_transfer *receive, uint32_t part,
                                  const struct coll_cell *received, struct error *error)
{
    enum status status = coll_run_check_write(run, node, part, receive->round, error);
    if (status != STATUS_OK) {
        return status;
    }
    struct coll_cell *cell = coll_run_cell(run, node, part);
    cell->written = receive->round;
    switch (receive->at.action) {
    case COLL_STORE:
        cell->value = received->value;
        cell->origin = received->origin;
        return STATUS_OK;
    case COLL_REDUCE:
        return coll_run_fold(run, node, receive, part, cell, received, false, error);
    case COLL_REDUCE_BEFORE:
        return coll_run_fold(run, node, receive, part, cell, received, true, error);
    case COLL_PREFIX:
        status = coll_run_fold(run, node, receive, part, cell, received, true, error);
        return status == STATUS_OK ? coll_run_write_prefix(run, node, receive, part, received, error)
                                   : status;
    }
    return STATUS_OK;
}

/* Writes all parts of a message. Each part lies within one part of the sender. */
static enum status coll_run_write_all(struct coll_run *run, uint32_t node,
                                      const struct coll_plan_transfer *receive, struct error *error)
{
    uint32_t sender = receive->at.node;
    const struct coll_plan_transfer *send = &run->plan->sends.list[receive->match];
    const struct coll_cell *copy = run->copies[run->plan->algorithm->copies_sends ? receive->match : 0];
    uint32_t from = send->part_first;
    enum status status = STATUS_OK;
    for (uint32_t part = receive->part_first; status == STATUS_OK && part < receive->part_end; part++) {
        uint64_t place = send->place + (coll_run_place(run, node, part) - receive->place);
        while (coll_run_place(run, sender, from + 1) <= place) {
            from++;
        }
        struct coll_cell received =
            copy != NULL ? copy[from - send->part_first] : *coll_run_cell(run, sender, from);
        received.origin += place - coll_run_place(run, sender, from);
        status = coll_run_write(run, node, receive, part, &received, error);
    }
    return status;
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
        /* the sender enters the round later, and cannot leave it before this send is taken */
        return STATUS_OK;
    }
    uint32_t *known = coll_run_known(run, run->known, node);
    const uint32_t *carried = coll_run_known(run, run->known_at_round, sender);
    for (uint32_t other = 0; other < plan->call.node_count; other++) {
        known[other] = known[other] > carried[other] ? known[other] : carried[other];
    }
    enum status status = coll_run_write_all(run, node, receive, error);
    if (status != STATUS_OK) {
        return status;
    }
    if (plan->algorithm->copies_sends) {
        free(run->copies[receive->match]);
        run->copies[receive->match] = NULL;
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

/* Advances a node as far as it can go. */
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

/* --- Deadlock --- */

/* Returns the node for which a blocked node waits, and sets what it waits for: a send or a receive. */
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
 * Every receive has its send, and every send its receive. So a blocked node always waits for another blocked
 * node. Following them leads into a circle.
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

enum status coll_check_all_to_all(const struct coll_algorithm *algorithm, const struct coll_call *call,
                                  const uint64_t *counts, struct coll_cost *cost, struct error *error)
{
    struct coll_plan plan;
    struct coll_run run = {0};
    enum status status = coll_plan_init(&plan, algorithm, call, counts, error);
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

enum status coll_check(const struct coll_algorithm *algorithm, const struct coll_call *call,
                       struct coll_cost *cost, struct error *error)
{
    return coll_check_all_to_all(algorithm, call, NULL, cost, error);
}
