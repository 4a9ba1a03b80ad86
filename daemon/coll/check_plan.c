#include "daemon/coll/check_plan.h"

#include <assert.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/base/checked.h"

#define NO_TRANSFER UINT32_MAX
#define OVERRUN_TRANSFERS                                                                                    \
    16 /* room behind a round's arrays, so that a schedule that overruns them is caught, not obeyed */

/* --- Faults --- */

#define CALL_FORMAT "%s %s, %" PRIu32 " nodes, %" PRIu64 " elements: "
#define CALL_ARGUMENTS(plan)                                                                                 \
    (plan)->algorithm->name, op_kind_text((plan)->call.kind), (plan)->call.node_count,                       \
        (plan)->call.count_elements

enum status coll_plan_fault(const struct coll_plan *plan, uint32_t node, uint32_t round, struct error *error,
                            const char *format, ...)
{
    char text[ERROR_TEXT_MAX_BYTES];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    return error_set(error, STATUS_INTERNAL, CALL_FORMAT "node %" PRIu32 ", round %" PRIu32 ": %s",
                     CALL_ARGUMENTS(plan), node, round, text);
}

enum status coll_plan_no_memory(const struct coll_plan *plan, struct error *error)
{
    return error_set(error, STATUS_NO_MEMORY, CALL_FORMAT "out of memory for the check",
                     CALL_ARGUMENTS(plan));
}

/* --- The rounds, written down --- */

static enum status coll_plan_check_transfer(const struct coll_plan *plan, uint32_t node, uint32_t round,
                                            const char *direction, const struct coll_transfer *transfer,
                                            struct error *error)
{
    const struct coll_call *call = &plan->call;
    if (transfer->node >= call->node_count || transfer->node == node) {
        return coll_plan_fault(plan, node, round, error,
                               "%s with node %" PRIu32 ": not another node of the call", direction,
                               transfer->node);
    }
    if (transfer->action != COLL_STORE && transfer->action != COLL_REDUCE) {
        return coll_plan_fault(plan, node, round, error, "%s with node %" PRIu32 ": action %u is none",
                               direction, transfer->node, (unsigned)transfer->action);
    }
    if (!checked_range(transfer->offset_elements, transfer->count_elements, call->count_elements)) {
        return coll_plan_fault(
            plan, node, round, error,
            "%s with node %" PRIu32 ": %" PRIu64 " elements at %" PRIu64 " reach out of the slice", direction,
            transfer->node, transfer->count_elements, transfer->offset_elements);
    }
    if (transfer->count_elements == 0 && call->kind != OP_KIND_BARRIER) {
        return coll_plan_fault(plan, node, round, error,
                               "%s with node %" PRIu32 ": an empty transfer of data", direction,
                               transfer->node);
    }
    return STATUS_OK;
}

static bool coll_plan_append(struct coll_plan_transfers *transfers, const struct coll_transfer *transfer,
                             uint32_t round)
{
    if (transfers->count == transfers->capacity) {
        uint32_t capacity = transfers->capacity == 0 ? 64 : transfers->capacity * 2;
        struct coll_plan_transfer *list = reallocarray(transfers->list, capacity, sizeof *list);
        if (list == NULL) {
            return false;
        }
        transfers->list = list;
        transfers->capacity = capacity;
    }
    transfers->list[transfers->count++] =
        (struct coll_plan_transfer){.at = *transfer, .round = round, .match = NO_TRANSFER};
    return true;
}

/* Takes over one round's transfers of one direction. */
static enum status coll_plan_take(struct coll_plan *plan, uint32_t node, uint32_t round,
                                  const char *direction, const struct coll_transfer *transfers,
                                  uint32_t count, uint32_t max, struct coll_plan_transfers *out,
                                  struct error *error)
{
    if (count > max) {
        return coll_plan_fault(plan, node, round, error,
                               "%" PRIu32 " transfers (%s), where transfers_max announced %" PRIu32, count,
                               direction, max);
    }
    if (count > COLL_PLAN_TRANSFERS_MAX - out->count) {
        return error_set(error, STATUS_LIMIT, CALL_FORMAT "more than %u transfers", CALL_ARGUMENTS(plan),
                         COLL_PLAN_TRANSFERS_MAX);
    }
    for (uint32_t i = 0; i < count; i++) {
        enum status status = coll_plan_check_transfer(plan, node, round, direction, &transfers[i], error);
        if (status != STATUS_OK) {
            return status;
        }
        if (!coll_plan_append(out, &transfers[i], round)) {
            return coll_plan_no_memory(plan, error);
        }
    }
    return STATUS_OK;
}

/* Asks for all rounds of one node, into buffers of `max` transfers each. */
static enum status coll_plan_ask_rounds(struct coll_plan *plan, uint32_t node, struct coll_transfer *sends,
                                        struct coll_transfer *receives, uint32_t max, struct error *error)
{
    struct coll_plan_node *out = &plan->nodes[node];
    struct coll_call call = plan->call;
    call.node_index = node;
    for (uint32_t round = 0; round < out->round_count; round++) {
        /* Whatever the algorithm leaves out is refused: no node has that index. */
        memset(sends, 0xff, (max + OVERRUN_TRANSFERS) * sizeof *sends);
        memset(receives, 0xff, (max + OVERRUN_TRANSFERS) * sizeof *receives);
        struct coll_round transfers = {
            .sends = sends, .send_count = UINT32_MAX, .receives = receives, .receive_count = UINT32_MAX};
        plan->algorithm->round(&call, round, &transfers);
        out->send_begin[round] = plan->sends.count;
        out->receive_begin[round] = plan->receives.count;
        enum status status =
            coll_plan_take(plan, node, round, "send", sends, transfers.send_count, max, &plan->sends, error);
        if (status == STATUS_OK) {
            status = coll_plan_take(plan, node, round, "receive", receives, transfers.receive_count, max,
                                    &plan->receives, error);
        }
        if (status != STATUS_OK) {
            return status;
        }
    }
    out->send_begin[out->round_count] = plan->sends.count;
    out->receive_begin[out->round_count] = plan->receives.count;
    return STATUS_OK;
}

static enum status coll_plan_ask_node(struct coll_plan *plan, uint32_t node, struct error *error)
{
    struct coll_plan_node *out = &plan->nodes[node];
    struct coll_call call = plan->call;
    call.node_index = node;
    uint32_t round_count = plan->algorithm->round_count(&call);
    uint32_t max = plan->algorithm->transfers_max(&call);
    if (round_count > COLL_PLAN_ROUNDS_MAX || max > COLL_PLAN_ROUND_TRANSFERS_MAX) {
        return error_set(error, STATUS_LIMIT,
                         CALL_FORMAT "node %" PRIu32 " announces %" PRIu32
                                     " rounds (at most %u) of up to %" PRIu32 " transfers (at most %u)",
                         CALL_ARGUMENTS(plan), node, round_count, COLL_PLAN_ROUNDS_MAX, max,
                         COLL_PLAN_ROUND_TRANSFERS_MAX);
    }
    enum status status;
    struct coll_transfer *sends = calloc(max + OVERRUN_TRANSFERS, sizeof *sends);
    struct coll_transfer *receives = calloc(max + OVERRUN_TRANSFERS, sizeof *receives);
    out->send_begin = calloc((size_t)round_count + 1, sizeof *out->send_begin);
    out->receive_begin = calloc((size_t)round_count + 1, sizeof *out->receive_begin);
    if (sends == NULL || receives == NULL || out->send_begin == NULL || out->receive_begin == NULL) {
        status = coll_plan_no_memory(plan, error);
        goto out;
    }
    out->round_count = round_count;
    status = coll_plan_ask_rounds(plan, node, sends, receives, max, error);
out:
    free(receives);
    free(sends);
    return status;
}

/* --- Sends and their receives --- */

static enum status coll_plan_compare(const struct coll_plan *plan, const struct coll_plan_transfer *send,
                                     const struct coll_plan_transfer *receive, struct error *error)
{
    uint32_t sender = receive->at.node;
    uint32_t receiver = send->at.node;
    if (send->at.count_elements != receive->at.count_elements) {
        return coll_plan_fault(plan, receiver, receive->round, error,
                               "receives %" PRIu64 " elements from node %" PRIu32 ", which sends %" PRIu64
                               " (its round %" PRIu32 ")",
                               receive->at.count_elements, sender, send->at.count_elements, send->round);
    }
    if (send->at.offset_elements != receive->at.offset_elements) {
        return coll_plan_fault(plan, receiver, receive->round, error,
                               "receives at element %" PRIu64 " what node %" PRIu32
                               " sends from element %" PRIu64 " (its round %" PRIu32
                               "): elements keep their places",
                               receive->at.offset_elements, sender, send->at.offset_elements, send->round);
    }
    if (send->at.action != receive->at.action) {
        return coll_plan_fault(plan, receiver, receive->round, error,
                               "%s what node %" PRIu32 " sends to be %s (its round %" PRIu32 ")",
                               receive->at.action == COLL_STORE ? "stores" : "reduces", sender,
                               send->at.action == COLL_STORE ? "stored" : "reduced", send->round);
    }
    return STATUS_OK;
}

/* Takes the receives in order; each gets the first send of its pair of nodes that none before it got. */
static enum status coll_plan_match_receives(struct coll_plan *plan, uint32_t *first, const uint32_t *next,
                                            struct error *error)
{
    uint32_t nodes = plan->call.node_count;
    for (uint32_t node = 0; node < nodes; node++) {
        const struct coll_plan_node *own = &plan->nodes[node];
        for (uint32_t i = own->receive_begin[0]; i < own->receive_begin[own->round_count]; i++) {
            struct coll_plan_transfer *receive = &plan->receives.list[i];
            uint32_t *queue = &first[(size_t)receive->at.node * nodes + node];
            if (*queue == NO_TRANSFER) {
                return coll_plan_fault(plan, node, receive->round, error,
                                       "receives %" PRIu64 " elements at %" PRIu64 " from node %" PRIu32
                                       ", which sends nothing for it",
                                       receive->at.count_elements, receive->at.offset_elements,
                                       receive->at.node);
            }
            struct coll_plan_transfer *send = &plan->sends.list[*queue];
            enum status status = coll_plan_compare(plan, send, receive, error);
            if (status != STATUS_OK) {
                return status;
            }
            send->match = i;
            receive->match = *queue;
            *queue = next[*queue];
        }
    }
    return STATUS_OK;
}

static enum status coll_plan_match(struct coll_plan *plan, struct error *error)
{
    uint32_t nodes = plan->call.node_count;
    enum status status;
    uint32_t *first = malloc((size_t)nodes * nodes * sizeof *first);         /* by (sender, receiver) */
    uint32_t *next = malloc((plan->sends.count + (size_t)1) * sizeof *next); /* by send */
    if (first == NULL || next == NULL) {
        status = coll_plan_no_memory(plan, error);
        goto out;
    }
    memset(first, 0xff, (size_t)nodes * nodes * sizeof *first);
    for (uint32_t node = nodes; node-- > 0;) {
        const struct coll_plan_node *own = &plan->nodes[node];
        for (uint32_t i = own->send_begin[own->round_count]; i-- > own->send_begin[0];) {
            uint32_t *queue = &first[(size_t)node * nodes + plan->sends.list[i].at.node];
            next[i] = *queue;
            *queue = i;
        }
    }
    status = coll_plan_match_receives(plan, first, next, error);
    for (uint32_t node = 0; status == STATUS_OK && node < nodes; node++) {
        const struct coll_plan_node *own = &plan->nodes[node];
        for (uint32_t i = own->send_begin[0]; status == STATUS_OK && i < own->send_begin[own->round_count];
             i++) {
            const struct coll_plan_transfer *send = &plan->sends.list[i];
            if (send->match == NO_TRANSFER) {
                status = coll_plan_fault(plan, node, send->round, error,
                                         "sends %" PRIu64 " elements at %" PRIu64 " to node %" PRIu32
                                         ", which does not receive them",
                                         send->at.count_elements, send->at.offset_elements, send->at.node);
            }
        }
    }
out:
    free(next);
    free(first);
    return status;
}

/* --- Parts --- */

static int coll_plan_compare_bounds(const void *a, const void *b)
{
    uint64_t left = *(const uint64_t *)a;
    uint64_t right = *(const uint64_t *)b;
    return (left > right) - (left < right);
}

/* Sorts, drops repetitions, and returns how many are left. */
static size_t coll_plan_sort_bounds(uint64_t *bounds, size_t count)
{
    qsort(bounds, count, sizeof *bounds, coll_plan_compare_bounds);
    size_t kept = 0;
    for (size_t i = 0; i < count; i++) {
        if (kept == 0 || bounds[kept - 1] != bounds[i]) {
            bounds[kept++] = bounds[i];
        }
    }
    return kept;
}

/* The index of a bound that is there. */
static uint32_t coll_plan_find_bound(const struct coll_plan *plan, uint64_t element)
{
    const uint64_t *found = bsearch(&element, plan->bounds, (size_t)plan->part_count + 1, sizeof element,
                                    coll_plan_compare_bounds);
    assert(found != NULL);
    return (uint32_t)(found - plan->bounds);
}

/*
 * Collects the ends of all transfers. Few differ, so they are sorted whenever the array is full, and it grows
 * only if that leaves more than half of it in use.
 */
static bool coll_plan_collect_bounds(struct coll_plan *plan)
{
    size_t capacity = 64;
    size_t count = 0;
    plan->bounds = calloc(capacity, sizeof *plan->bounds);
    if (plan->bounds == NULL) {
        return false;
    }
    plan->bounds[count++] = 0;
    plan->bounds[count++] = plan->call.count_elements;
    for (uint32_t i = 0; i < plan->sends.count; i++) {
        const struct coll_transfer *send = &plan->sends.list[i].at;
        if (count + 2 > capacity) {
            count = coll_plan_sort_bounds(plan->bounds, count);
            if (count > capacity / 2) {
                uint64_t *larger = reallocarray(plan->bounds, capacity * 2, sizeof *larger);
                if (larger == NULL) {
                    return false;
                }
                plan->bounds = larger;
                capacity *= 2;
            }
        }
        plan->bounds[count++] = send->offset_elements;
        plan->bounds[count++] = send->offset_elements + send->count_elements;
    }
    plan->part_count = (uint32_t)coll_plan_sort_bounds(plan->bounds, count) - 1;
    return true;
}

static enum status coll_plan_cut(struct coll_plan *plan, struct error *error)
{
    if (!coll_plan_collect_bounds(plan)) {
        return coll_plan_no_memory(plan, error);
    }
    for (uint32_t i = 0; i < plan->sends.count; i++) {
        struct coll_plan_transfer *send = &plan->sends.list[i];
        struct coll_plan_transfer *receive = &plan->receives.list[send->match];
        send->part_first = coll_plan_find_bound(plan, send->at.offset_elements);
        send->part_end = coll_plan_find_bound(plan, send->at.offset_elements + send->at.count_elements);
        receive->part_first = send->part_first;
        receive->part_end = send->part_end;
    }
    return STATUS_OK;
}

/* --- The whole --- */

static enum status coll_plan_check_call(const struct coll_plan *plan, struct error *error)
{
    const struct coll_call *call = &plan->call;
    if (call->kind != plan->algorithm->kind) {
        return error_set(error, STATUS_INVALID_ARGUMENT, CALL_FORMAT "the algorithm serves %s",
                         CALL_ARGUMENTS(plan), op_kind_text(plan->algorithm->kind));
    }
    if (call->node_count == 0 || call->node_count > COLL_NODES_MAX || call->root_node >= call->node_count) {
        return error_set(error, STATUS_INVALID_ARGUMENT,
                         CALL_FORMAT "root node %" PRIu32 "; 1 to %u nodes are meant", CALL_ARGUMENTS(plan),
                         call->root_node, COLL_NODES_MAX);
    }
    if (call->kind == OP_KIND_BARRIER && call->count_elements > 0) {
        return error_set(error, STATUS_INVALID_ARGUMENT, CALL_FORMAT "a barrier has no elements",
                         CALL_ARGUMENTS(plan));
    }
    if (call->node_count > COLL_CHECK_NODES_MAX) {
        return error_set(error, STATUS_LIMIT, CALL_FORMAT "at most %u nodes are checked",
                         CALL_ARGUMENTS(plan), COLL_CHECK_NODES_MAX);
    }
    return STATUS_OK;
}

enum status coll_plan_init(struct coll_plan *plan, const struct coll_algorithm *algorithm,
                           const struct coll_call *call, struct error *error)
{
    *plan = (struct coll_plan){.algorithm = algorithm, .call = *call};
    plan->call.node_index = 0;
    enum status status = coll_plan_check_call(plan, error);
    if (status != STATUS_OK) {
        return status;
    }
    plan->nodes = calloc(call->node_count, sizeof *plan->nodes);
    if (plan->nodes == NULL) {
        return coll_plan_no_memory(plan, error);
    }
    for (uint32_t node = 0; node < call->node_count; node++) {
        status = coll_plan_ask_node(plan, node, error);
        if (status != STATUS_OK) {
            return status;
        }
    }
    status = coll_plan_match(plan, error);
    return status == STATUS_OK ? coll_plan_cut(plan, error) : status;
}

void coll_plan_free(struct coll_plan *plan)
{
    for (uint32_t node = 0; plan->nodes != NULL && node < plan->call.node_count; node++) {
        free(plan->nodes[node].send_begin);
        free(plan->nodes[node].receive_begin);
    }
    free(plan->nodes);
    free(plan->sends.list);
    free(plan->receives.list);
    free(plan->bounds);
    *plan = (struct coll_plan){0};
}

enum status coll_plan_cost(const struct coll_plan *plan, struct coll_cost *cost, struct error *error)
{
    struct coll_cost sum = {.messages_total = plan->sends.count};
    for (uint32_t node = 0; node < plan->call.node_count; node++) {
        const struct coll_plan_node *own = &plan->nodes[node];
        uint64_t sent = 0;
        bool fits = true;
        for (uint32_t i = own->send_begin[0]; fits && i < own->send_begin[own->round_count]; i++) {
            fits = checked_add_u64(sent, plan->sends.list[i].at.count_elements, &sent);
        }
        if (!fits || !checked_add_u64(sum.sent_elements_total, sent, &sum.sent_elements_total)) {
            return error_set(error, STATUS_LIMIT, CALL_FORMAT "the elements sent do not fit in 64 bits",
                             CALL_ARGUMENTS(plan));
        }
        sum.rounds = own->round_count > sum.rounds ? own->round_count : sum.rounds;
        sum.sent_elements_max = sent > sum.sent_elements_max ? sent : sum.sent_elements_max;
    }
    *cost = sum;
    return STATUS_OK;
}
