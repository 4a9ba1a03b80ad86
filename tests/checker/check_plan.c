#include "tests/checker/check_plan.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/base/checked.h"

/* Room behind a round's arrays, so that a schedule that writes too much is detected and damages no memory. */
#define OVERRUN_TRANSFERS 16

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

enum status coll_plan_limit(const struct coll_plan *plan, struct error *error, const char *format, ...)
{
    char text[ERROR_TEXT_MAX_BYTES];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    return error_set(error, STATUS_LIMIT, CALL_FORMAT "%s", CALL_ARGUMENTS(plan), text);
}

const char *coll_plan_part_text(const struct coll_plan *plan, uint32_t node, uint32_t part,
                                char text[COLL_PART_TEXT_BYTES])
{
    static const char *const names[COLL_SPACE_COUNT] = {"", "input ", "scratch "};
    const struct coll_plan_node *own = &plan->nodes[node];
    uint64_t first = own->cuts->list[part];
    unsigned space = 0;
    while (space + 1 < COLL_SPACE_COUNT && first >= own->space_begin[space + 1]) {
        space++;
    }
    uint64_t begin = own->space_begin[space];
    snprintf(text, COLL_PART_TEXT_BYTES, "%selements %" PRIu64 " to %" PRIu64, names[space], first - begin,
             own->cuts->list[part + 1] - begin - 1);
    return text;
}

enum status coll_plan_no_memory(const struct coll_plan *plan, struct error *error)
{
    return error_set(error, STATUS_NO_MEMORY, CALL_FORMAT "out of memory for the check",
                     CALL_ARGUMENTS(plan));
}

/* --- Recording the rounds --- */

struct coll_call coll_plan_call(const struct coll_plan *plan, uint32_t node)
{
    struct coll_call call = plan->call;
    call.node_index = node;
    if (plan->offsets != NULL) {
        size_t width = (size_t)call.node_count + 1;
        call.block_offsets = &plan->offsets[2 * width * node];
        call.send_offsets = call.block_offsets + width;
        call.count_elements = call.block_offsets[call.node_count];
    }
    return call;
}

uint32_t coll_plan_block(const struct coll_plan *plan, const uint64_t *offsets, uint64_t element)
{
    uint32_t low = 0;
    uint32_t high = plan->call.node_count - 1;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (offsets[middle + 1] > element) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    return low;
}

bool coll_plan_is_scan(const struct coll_plan *plan)
{
    return plan->call.kind == OP_KIND_SCAN || plan->call.kind == OP_KIND_EXCLUSIVE_SCAN;
}

/* Whether a receive may write to its range. If not, *what names what is kept there. */
static bool coll_plan_may_write(const struct coll_plan *plan, uint32_t node,
                                const struct coll_transfer *receive, const char **what)
{
    *what = "its input";
    if (receive->space != COLL_WORK || receive->count_elements == 0) {
        return receive->space != COLL_INPUT;
    }
    struct coll_call call = coll_plan_call(plan, node);
    switch (call.kind) {
    case OP_KIND_BROADCAST:
    case OP_KIND_SCATTER:
        *what = "the root's elements";
        return node != call.root_node;
    case OP_KIND_GATHER:
    case OP_KIND_ALL_TO_ALL:
        *what = "its own block";
        return receive->offset_elements >= call.block_offsets[node + 1] ||
               receive->offset_elements + receive->count_elements <= call.block_offsets[node];
    case OP_KIND_ALL_REDUCE:
    case OP_KIND_BARRIER:
    case OP_KIND_REDUCE:
    case OP_KIND_ALL_GATHER:
    case OP_KIND_REDUCE_SCATTER:
    case OP_KIND_SCAN:
    case OP_KIND_EXCLUSIVE_SCAN:
    case OP_KIND_SEND:
    case OP_KIND_RECEIVE:
        break;
    }
    return true;
}

static enum status coll_plan_check_numbers(const struct coll_plan *plan, uint32_t node, uint32_t round,
                                           const char *direction, const struct coll_transfer *transfer,
                                           struct error *error)
{
    if (transfer->node >= plan->call.node_count || transfer->node == node) {
        return coll_plan_fault(plan, node, round, error,
                               "%s with node %" PRIu32 ": not another node of the call", direction,
                               transfer->node);
    }
    unsigned action = (unsigned)transfer->action;
    if (action > COLL_PREFIX || (action == COLL_PREFIX && !coll_plan_is_scan(plan))) {
        return coll_plan_fault(plan, node, round, error, "%s with node %" PRIu32 ": action %u is none",
                               direction, transfer->node, action);
    }
    if ((unsigned)transfer->space >= COLL_SPACE_COUNT) {
        return coll_plan_fault(plan, node, round, error, "%s with node %" PRIu32 ": space %u is none",
                               direction, transfer->node, (unsigned)transfer->space);
    }
    return STATUS_OK;
}

static enum status coll_plan_check_transfer(const struct coll_plan *plan, uint32_t node, uint32_t round,
                                            bool receives, const struct coll_transfer *transfer,
                                            struct error *error)
{
    const char *direction = receives ? "receive" : "send";
    enum status status = coll_plan_check_numbers(plan, node, round, direction, transfer, error);
    if (status != STATUS_OK) {
        return status;
    }
    static const char *const spaces[COLL_SPACE_COUNT] = {"slice", "input", "scratch"};
    const uint64_t *begin = &plan->nodes[node].space_begin[transfer->space];
    uint64_t elements = begin[1] - begin[0];
    bool is_prefix = receives && transfer->action == COLL_PREFIX;
    elements = is_prefix && transfer->space == COLL_WORK ? elements / 2 : elements;
    if (!checked_range(transfer->offset_elements, transfer->count_elements, elements) ||
        (is_prefix && transfer->space != COLL_WORK)) {
        return coll_plan_fault(plan, node, round, error,
                               "%s with node %" PRIu32 ": %" PRIu64 " elements at %" PRIu64
                               " reach out of the %s",
                               direction, transfer->node, transfer->count_elements, transfer->offset_elements,
                               is_prefix ? "running value" : spaces[transfer->space]);
    }
    if (transfer->count_elements == 0 && plan->call.kind != OP_KIND_BARRIER && !plan->call.keeps_empty) {
        return coll_plan_fault(plan, node, round, error,
                               "%s with node %" PRIu32 ": an empty transfer of data", direction,
                               transfer->node);
    }
    const char *kept;
    if (receives && !coll_plan_may_write(plan, node, transfer, &kept)) {
        return coll_plan_fault(plan, node, round, error,
                               "writes to %s what it receives from node %" PRIu32 " (%" PRIu64
                               " elements at %" PRIu64 ")",
                               kept, transfer->node, transfer->count_elements, transfer->offset_elements);
    }
    return STATUS_OK;
}

static bool coll_plan_append(struct coll_plan_transfers *transfers, const struct coll_transfer *transfer,
                             uint64_t place, uint32_t round)
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
    transfers->list[transfers->count++] = (struct coll_plan_transfer){
        .at = *transfer, .place = place, .round = round, .match = COLL_PLAN_NO_TRANSFER};
    return true;
}

/* Records one round's transfers of one direction. Then fills the buffer with 0xff: no node has that index,
 * so an entry that the algorithm does not write is refused. */
static enum status coll_plan_take(struct coll_plan *plan, uint32_t node, uint32_t round, bool receives,
                                  struct coll_transfer *transfers, uint32_t count, uint32_t max,
                                  struct error *error)
{
    struct coll_plan_transfers *out = receives ? &plan->receives : &plan->sends;
    if (count > max) {
        return coll_plan_fault(plan, node, round, error,
                               "%" PRIu32 " transfers (%s), where transfers_max announced %" PRIu32, count,
                               receives ? "receive" : "send", max);
    }
    if (count > COLL_PLAN_TRANSFERS_MAX - out->count) {
        return coll_plan_limit(plan, error, "more than %u transfers", COLL_PLAN_TRANSFERS_MAX);
    }
    for (uint32_t i = 0; i < count; i++) {
        enum status status = coll_plan_check_transfer(plan, node, round, receives, &transfers[i], error);
        if (status != STATUS_OK) {
            return status;
        }
        uint64_t place = plan->nodes[node].space_begin[transfers[i].space] + transfers[i].offset_elements;
        if (!coll_plan_append(out, &transfers[i], place, round)) {
            return coll_plan_no_memory(plan, error);
        }
    }
    memset(transfers, 0xff, (count + OVERRUN_TRANSFERS) * sizeof *transfers);
    return STATUS_OK;
}

/* Asks the algorithm for all rounds of one node, into buffers of `max` transfers each. */
static enum status coll_plan_ask_rounds(struct coll_plan *plan, uint32_t node, struct coll_transfer *sends,
                                        struct coll_transfer *receives, uint32_t max, struct error *error)
{
    struct coll_plan_node *out = &plan->nodes[node];
    struct coll_call call = coll_plan_call(plan, node);
    for (uint32_t round = 0; round < out->round_count; round++) {
        struct coll_round transfers = {
            .sends = sends, .send_count = UINT32_MAX, .receives = receives, .receive_count = UINT32_MAX};
        plan->algorithm->round(&call, round, &transfers);
        out->send_begin[round] = plan->sends.count;
        out->receive_begin[round] = plan->receives.count;
        enum status status =
            coll_plan_take(plan, node, round, false, sends, transfers.send_count, max, error);
        if (status == STATUS_OK) {
            status = coll_plan_take(plan, node, round, true, receives, transfers.receive_count, max, error);
        }
        if (status != STATUS_OK) {
            return status;
        }
    }
    out->send_begin[out->round_count] = plan->sends.count;
    out->receive_begin[out->round_count] = plan->receives.count;
    return STATUS_OK;
}

/* Lays out the node's line of places: its vector (two for a scan), its input, its scratch. */
static enum status coll_plan_lay_out(struct coll_plan *plan, uint32_t node, struct error *error)
{
    struct coll_call call = coll_plan_call(plan, node);
    uint64_t *begin = plan->nodes[node].space_begin;
    uint64_t input = call.send_offsets != NULL ? call.send_offsets[call.node_count] : 0;
    uint64_t scratch =
        plan->algorithm->scratch_elements != NULL ? plan->algorithm->scratch_elements(&call) : 0;
    begin[COLL_WORK] = 0;
    bool fits = checked_mul_u64(call.count_elements, coll_plan_is_scan(plan) ? 2 : 1, &begin[COLL_INPUT]) &&
                checked_add_u64(begin[COLL_INPUT], input, &begin[COLL_SCRATCH]) &&
                checked_add_u64(begin[COLL_SCRATCH], scratch, &begin[COLL_SPACE_COUNT]);
    return fits
               ? STATUS_OK
               : coll_plan_limit(plan, error, "the elements of node %" PRIu32 " do not fit in 64 bits", node);
}

static enum status coll_plan_ask_node(struct coll_plan *plan, uint32_t node, struct error *error)
{
    struct coll_plan_node *out = &plan->nodes[node];
    struct coll_call call = coll_plan_call(plan, node);
    uint32_t round_count = plan->algorithm->round_count(&call);
    uint32_t max = plan->algorithm->transfers_max(&call);
    if (round_count > COLL_PLAN_ROUNDS_MAX || max > COLL_PLAN_ROUND_TRANSFERS_MAX) {
        return coll_plan_limit(plan, error,
                               "node %" PRIu32 " announces %" PRIu32 " rounds (at most %u) of up to %" PRIu32
                               " transfers (at most %u)",
                               node, round_count, COLL_PLAN_ROUNDS_MAX, max, COLL_PLAN_ROUND_TRANSFERS_MAX);
    }
    enum status status = coll_plan_lay_out(plan, node, error);
    struct coll_transfer *sends = malloc((max + OVERRUN_TRANSFERS) * sizeof *sends);
    struct coll_transfer *receives = malloc((max + OVERRUN_TRANSFERS) * sizeof *receives);
    out->send_begin = calloc((size_t)round_count + 1, sizeof *out->send_begin);
    out->receive_begin = calloc((size_t)round_count + 1, sizeof *out->receive_begin);
    if (status != STATUS_OK) {
        goto out;
    }
    if (sends == NULL || receives == NULL || out->send_begin == NULL || out->receive_begin == NULL) {
        status = coll_plan_no_memory(plan, error);
        goto out;
    }
    /* 0xff is no valid node, so a field that the algorithm does not write is refused */
    memset(sends, 0xff, (max + OVERRUN_TRANSFERS) * sizeof *sends);
    memset(receives, 0xff, (max + OVERRUN_TRANSFERS) * sizeof *receives);
    out->round_count = round_count;
    status = coll_plan_ask_rounds(plan, node, sends, receives, max, error);
out:
    free(receives);
    free(sends);
    return status;
}

/* --- The whole --- */

static enum status coll_plan_no_call(const struct coll_plan *plan, struct error *error, const char *why)
{
    return error_set(error, STATUS_INVALID_ARGUMENT, CALL_FORMAT "%s", CALL_ARGUMENTS(plan), why);
}

/* Ascending, from 0 to `total`. */
static bool coll_plan_offsets_are_good(const uint64_t *offsets, uint32_t nodes, uint64_t total)
{
    bool good = offsets != NULL && offsets[0] == 0 && offsets[nodes] == total;
    for (uint32_t node = 0; good && node < nodes; node++) {
        good = offsets[node] <= offsets[node + 1];
    }
    return good;
}

static bool coll_plan_offsets_are_equal(const uint64_t *offsets, uint32_t nodes, uint64_t each)
{
    bool equal = offsets != NULL;
    for (uint32_t node = 0; equal && node <= nodes; node++) {
        equal = offsets[node] == node * each;
    }
    return equal;
}

static enum status coll_plan_check_blocks(const struct coll_plan *plan, struct error *error)
{
    const struct coll_call *call = &plan->call;
    if (call->kind == OP_KIND_ALL_TO_ALL) {
        uint64_t each = call->count_elements / call->node_count;
        if (plan->counts == NULL &&
            (!coll_plan_offsets_are_equal(call->block_offsets, call->node_count, each) ||
             !coll_plan_offsets_are_equal(call->send_offsets, call->node_count, each))) {
            return coll_plan_no_call(plan, error, "blocks of an all_to_all without counts must be equal");
        }
        return STATUS_OK;
    }
    if (plan->counts != NULL || call->send_offsets != NULL) {
        return coll_plan_no_call(plan, error, "only an all_to_all has an input");
    }
    if (!op_kind_has_blocks(call->kind)) {
        return call->block_offsets == NULL ? STATUS_OK
                                           : coll_plan_no_call(plan, error, "its vector has no blocks");
    }
    return coll_plan_offsets_are_good(call->block_offsets, call->node_count, call->count_elements)
               ? STATUS_OK
               : coll_plan_no_call(plan, error, "its blocks do not make up the vector");
}

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
        return coll_plan_no_call(plan, error, "a barrier has no elements");
    }
    if (call->node_count > COLL_CHECK_NODES_MAX) {
        return coll_plan_limit(plan, error, "at most %u nodes are checked", COLL_CHECK_NODES_MAX);
    }
    enum status status = coll_plan_check_blocks(plan, error);
    if (status == STATUS_OK && plan->algorithm->serves != NULL && !plan->algorithm->serves(call)) {
        return coll_plan_no_call(plan, error, "the algorithm does not serve it");
    }
    return status;
}

/* Computes each node's offsets from the counts by sender and receiver. */
static enum status coll_plan_add_up(struct coll_plan *plan, struct error *error)
{
    size_t nodes = plan->call.node_count;
    plan->offsets = calloc(2 * nodes * (nodes + 1), sizeof *plan->offsets);
    if (plan->offsets == NULL) {
        return coll_plan_no_memory(plan, error);
    }
    bool fits = true;
    bool equal = true;
    for (size_t node = 0; node < nodes; node++) {
        uint64_t *received = &plan->offsets[2 * (nodes + 1) * node];
        uint64_t *sent = received + nodes + 1;
        for (size_t other = 0; other < nodes; other++) {
            uint64_t from = plan->counts[other * nodes + node];
            uint64_t to = plan->counts[node * nodes + other];
            fits = fits && checked_add_u64(received[other], from, &received[other + 1]) &&
                   checked_add_u64(sent[other], to, &sent[other + 1]);
            equal = equal && to == plan->counts[0];
        }
    }
    if (!fits) {
        return coll_plan_limit(plan, error, "the blocks do not fit in 64 bits");
    }
    return equal || !plan->call.blocks_are_equal
               ? STATUS_OK
               : coll_plan_no_call(plan, error, "its blocks are called equal, and are not");
}

enum status coll_plan_init(struct coll_plan *plan, const struct coll_algorithm *algorithm,
                           const struct coll_call *call, const uint64_t *counts, struct error *error)
{
    *plan = (struct coll_plan){.algorithm = algorithm, .call = *call, .counts = counts};
    plan->call.node_index = 0;
    enum status status = coll_plan_check_call(plan, error);
    if (status == STATUS_OK && counts != NULL) {
        status = coll_plan_add_up(plan, error);
    }
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
    for (uint32_t i = 0; i < plan->cuts_count; i++) {
        coll_cuts_free(&plan->cuts[i]);
    }
    free(plan->cuts);
    free(plan->nodes);
    free(plan->offsets);
    free(plan->sends.list);
    free(plan->receives.list);
    *plan = (struct coll_plan){0};
}
