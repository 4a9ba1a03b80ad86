#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <utlist.h>

#include "client/lib/internal.h"
#include "client/lib/policy.h"

#define NS_PER_MS 1000000u
#define COARSE_TIMEOUT_MS 1000u /* a deadline that may be late by a tick */

void memory_unuse(struct comm_client *client, struct client_memory *memory, bool clean)
{
    if (memory == NULL || --memory->uses > 0) {
        return;
    }
    if (memory->slab != NULL) {
        staging_give(client, memory, clean);
    } else if (memory->gone) {
        memory_free(memory);
    }
}

static void release_use(struct comm_client *client, struct client_op *op, int use, bool clean)
{
    memory_unuse(client, op->uses[use], clean);
    op->uses[use] = NULL;
}

void op_release(struct comm_client *client, struct client_op *op, bool clean)
{
    /* If two uses share a block, the last call gives it back. */
    for (int use = 0; use < USE_COUNT; use++) {
        release_use(client, op, use, clean);
        op->places_bytes[use] = 0;
    }
    if (op->slot != NULL) {
        fence_reach(&op->ended);
        fence_give(&client->fences, op->slot, !clean);
        op->slot = NULL;
    }
}

void op_free(struct comm_client *client, struct client_op *op, bool clean)
{
    op_release(client, op, clean);
    free(op->known);
    free(op->kept);
    free(op);
}

void op_copy_out(const struct client_op *op)
{
    for (uint32_t i = 0; i < op->copy_count; i++) {
        memcpy(op->copies[i].to, op->copies[i].from, op->copies[i].size_bytes);
    }
}

/* How an operation ends. */
struct ending {
    const char *text; /* of a failure */
    const comm_failure_t *data;
    comm_received_t received;
    bool clean; /* commd has finished with its buffers */
};

/* The handle gets the result; without one, the communicator keeps the first failure. */
static void op_tell(struct comm_comm *comm, struct client_op *op, const struct ending *ending)
{
    struct comm_request *request = op->request;
    comm_result_t result = ending->data->result;
    if (request != NULL) {
        request->op = NULL;
        request->received = ending->received;
        request_end(request, result, ending->data, ending->text);
        op->request = NULL;
    } else if (result != COMM_OK && comm->op_failure == COMM_OK) {
        comm->op_failure = result;
        comm->op_failure_data = *ending->data;
        (void)snprintf(comm->op_failure_text, sizeof comm->op_failure_text, "%s", ending->text);
    }
}

/* Keeps only the staging blocks that are still to be copied out. */
static void op_keep_copies(struct comm_client *client, struct client_op *op)
{
    for (int use = 0; use < USE_COUNT; use++) {
        if (op->uses[use] != NULL && op->uses[use]->slab == NULL) {
            release_use(client, op, use, true);
        }
    }
}

/* Ends an operation that is in no list any more. Its queue gets it, or it is freed. */
static void op_end(struct comm_comm *comm, struct client_op *op, const struct ending *ending)
{
    comm_result_t result = ending->data->result;
    size_t copied_bytes = 0;
    for (uint32_t i = 0; i < op->copy_count; i++) {
        copied_bytes += op->copies[i].size_bytes;
    }
    bool copies_later = op->place.queue != NULL && copied_bytes > QUEUE_COPY_NOW_MAX_BYTES;
    if (result == COMM_OK && !copies_later) {
        op_copy_out(op);
    }
    if (op->place.queue == NULL) {
        op_tell(comm, op, ending);
        op_free(comm->client, op, ending->clean);
        return;
    }
    if (result == COMM_OK && copies_later) {
        op_keep_copies(comm->client, op);
    } else {
        op_release(comm->client, op, ending->clean);
        op->copy_count = 0;
    }
    op->place.result = result;
    op->place.received = ending->received;
    op->place.failure = result != COMM_OK ? failure_new(ending->data, ending->text) : NULL;
    queue_add(op);
}

void op_fail_unsent(struct comm_comm *comm, struct client_op *op, const comm_failure_t *data,
                    const char *text)
{
    comm_failure_t own = *data;
    struct ending ending = {.text = text, .data = &own, .clean = true};
    own.operation = op_kind_text(op->kind);
    op_end(comm, op, &ending);
}

/* --- Operations in flight or held: a list, and a table by ticket --- */

#define BUCKETS_MIN 64u

static struct client_op **bucket_of(const struct comm_comm *comm, uint64_t ticket)
{
    return &comm->buckets[ticket & (comm->bucket_count - 1)];
}

bool ops_init(struct comm_comm *comm)
{
    comm->bucket_count = BUCKETS_MIN;
    comm->buckets = calloc(BUCKETS_MIN, sizeof(struct client_op *));
    return comm->buckets != NULL;
}

/* If memory is short, the table keeps its size and gets slower. */
static void buckets_grow(struct comm_comm *comm)
{
    struct client_op **grown = calloc(2 * (size_t)comm->bucket_count, sizeof(struct client_op *));
    if (grown == NULL) {
        return;
    }
    free(comm->buckets);
    comm->buckets = grown;
    comm->bucket_count *= 2;
    for (struct client_op *op = comm->ops; op != NULL; op = op->next) {
        struct client_op **bucket = bucket_of(comm, op->ticket);
        op->next_in_bucket = *bucket;
        *bucket = op;
    }
}

static void bucket_add(struct comm_comm *comm, struct client_op *op)
{
    if (comm->op_count >= comm->bucket_count) {
        buckets_grow(comm);
    }
    struct client_op **bucket = bucket_of(comm, op->ticket);
    op->next_in_bucket = *bucket;
    *bucket = op;
}

static void list_append(struct comm_comm *comm, struct client_op *op)
{
    bucket_add(comm, op);
    DL_APPEND(comm->ops, op);
    comm->op_count++;
    if (op->held == NULL && op->cell == NULL) {
        comm->collectives_in_flight += !op_kind_is_message(op->kind);
        comm->staged_bytes += op->staged_bytes;
    }
}

/* Returns what points to the operation in the table, or would. */
static struct client_op **list_find(const struct comm_comm *comm, uint64_t ticket)
{
    struct client_op **link = bucket_of(comm, ticket);
    while (*link != NULL && (*link)->ticket != ticket) {
        link = &(*link)->next_in_bucket;
    }
    return link;
}

/* Takes the operation out of the list and the table. Returns null if it is not there. */
static struct client_op *list_take(struct comm_comm *comm, uint64_t ticket)
{
    struct client_op **link = list_find(comm, ticket);
    struct client_op *op = *link;
    if (op == NULL) {
        return NULL;
    }
    *link = op->next_in_bucket;
    DL_DELETE(comm->ops, op);
    comm->op_count--;
    if (op->held == NULL && op->cell == NULL) {
        comm->collectives_in_flight -= !op_kind_is_message(op->kind);
        comm->staged_bytes -= op->staged_bytes;
    }
    cells_forget(comm, op);
    cells_forget_receive(comm, op);
    return op;
}

void ops_drop(struct comm_comm *comm, struct client_op *op)
{
    bool was_sent = op->held == NULL, failed = comm->failure != COMM_OK;
    if (op->staging) {
        op->dropped = true;
        return;
    }
    if (op->cell != NULL) {
        cells_lend_withdraw(comm, op->cell);
    }
    (void)list_take(comm, op->ticket);
    held_free(comm, op->held);
    comm_failure_t data = failed ? comm->failure_data : failure_data(COMM_ABORTED, "");
    struct ending ending = {.text = failed ? comm->failure_text : "this rank left the communicator",
                            .data = &data,
                            .clean = !was_sent};
    data.operation = op_kind_text(op->kind);
    op_end(comm, op, &ending);
}

void ops_forget(struct comm_comm *comm)
{
    struct client_op *op, *next;
    cells_forget_behind(comm);
    DL_FOREACH_SAFE(comm->ops, op, next)
    {
        ops_drop(comm, op);
    }
    held_forget_records(comm);
}

/* --- Events from commd --- */

/* Returns the communicator of an event, or null if it was destroyed meanwhile. */
static struct comm_comm *event_comm(struct comm_client *client, uint32_t handle, const char *what)
{
    struct comm_comm *comm = member_by_handle(client, handle);
    if (comm != NULL) {
        comm->heard_ns = clock_ns();
    } else if (handle == 0 || handle > client->last_handle) {
        client_lose(client, COMM_PROTOCOL, "%s: commd sent %s for communicator %u, which never existed",
                    client->path, what, handle);
    }
    return comm;
}

/* The next call that waits for all gets the failure. */
static void op_failed_in_replay(struct comm_comm *comm, const struct completion_record *completion)
{
    comm_result_t result = failure_from_wire(completion->status);
    if (comm->op_failure == COMM_OK && completion->status != STATUS_OK) {
        comm->op_failure = result;
        comm->op_failure_data = failure_data(result, "");
        (void)snprintf(comm->op_failure_text, sizeof comm->op_failure_text, "%s",
                       completion->text[0] != '\0' ? completion->text : comm_result_text(result));
    }
}

void ops_handle_completion(struct comm_client *client, const struct completion_record *completion)
{
    struct comm_comm *comm = event_comm(client, completion->handle, "a completion");
    if (comm == NULL) {
        return;
    }
    struct client_op *op = *list_find(comm, completion->ticket);
    if (op == NULL && comm->parent != NULL) { /* of a replay */
        op_failed_in_replay(comm->parent, completion);
        return;
    }
    bool is_sent = op != NULL && op->held == NULL && op->cell == NULL && op->receive == NULL;
    if (is_sent && op->kind == OP_KIND_RECEIVE) {
        cells_count_received(comm, op, completion);
    }
    op = is_sent ? list_take(comm, completion->ticket) : NULL;
    if (op == NULL) {
        client_lose(client, COMM_PROTOCOL,
                    "%s: \"%s\": commd completed operation %" PRIu64 ", which is not in flight", client->path,
                    comm->name, completion->ticket);
        return;
    }
    comm_result_t result = completion->status == STATUS_OK ? COMM_OK : failure_from_wire(completion->status);
    bool has_text = result == COMM_OK || completion->text[0] != '\0';
    size_t came = (size_t)completion->count_elements * dtype_size_bytes(op->dtype);
    if (op->kind == OP_KIND_RECEIVE && op->copy_count > 0 && came < op->copies[0].size_bytes) {
        op->copies[0].size_bytes = came;
    }
    trace_op_seen(client->trace, comm, op, result);
    if (!op_kind_is_message(op->kind) && (result == COMM_RANK_LOST || result == COMM_NODE_LOST)) {
        comm->verdict_is_due = true;
        policy_lost(comm, result, has_text ? completion->text : comm_result_text(result));
    }
    if (result == COMM_OK && op->slot != NULL) { /* commd has set its word, or is about to */
        fence_give(&client->fences, op->slot, false);
        op->slot = NULL;
    }
    struct ending ending = {
        .text = has_text ? completion->text : comm_result_text(result),
        .data = failure_plain(COMM_OK),
        .received = {.source = completion->source_rank, .count = (size_t)completion->count_elements},
        .clean = result == COMM_OK};
    comm_failure_t data;
    if (result != COMM_OK) {
        data = op->known != NULL ? *op->known : failure_data(result, "");
        data.result = result;
        data.operation = op_kind_text(op->kind);
        ending.data = &data;
    }
    op_end(comm, op, &ending);
}

void ops_let_go(struct comm_comm *comm, struct client_op *op)
{
    struct ending ending = {.text = "", .data = failure_plain(COMM_OK)};
    op_tell(comm, op, &ending);
    if (comm->waiters > 0) {
        pthread_cond_broadcast(&comm->client->changed);
    }
}

void ops_end_receive(struct comm_comm *comm, struct client_op *op, const comm_received_t *received)
{
    (void)list_take(comm, op->ticket);
    trace_op_seen(comm->client->trace, comm, op, COMM_OK);
    struct ending ending = {.text = "", .data = failure_plain(COMM_OK), .received = *received, .clean = true};
    op_end(comm, op, &ending);
}

void ops_end_well(struct comm_comm *comm, struct client_op *op)
{
    const comm_received_t nothing = {0};
    ops_end_receive(comm, op, &nothing);
}

void ops_end_badly(struct comm_comm *comm, struct client_op *op, comm_result_t result, const char *text)
{
    (void)list_take(comm, op->ticket);
    trace_op_seen(comm->client->trace, comm, op, result);
    comm_failure_t data = failure_data(result, op_kind_text(op->kind));
    op_fail_unsent(comm, op, &data, text);
}

void ops_handle_failed(struct comm_client *client, const Commd__Client__Failed *failed)
{
    struct comm_comm *comm = event_comm(client, failed->handle, "a failure");
    struct client_op *op = comm != NULL ? *list_find(comm, failed->ticket) : NULL;
    if (op == NULL || failed->failure == NULL) {
        return;
    }
    op->known = op->known != NULL ? op->known : malloc(sizeof *op->known);
    if (op->known != NULL) {
        *op->known = failure_from_message(failed->failure);
    }
}

void ops_handle_aborted(struct comm_client *client, const Commd__Client__Aborted *aborted)
{
    struct comm_comm *comm = event_comm(client, aborted->handle, "an abort");
    if (comm != NULL) {
        comm_result_t failure = failure_from_wire(aborted->status);
        bool first = comm->failure == COMM_OK;
        member_fail(comm, failure, "%s",
                    aborted->text[0] != '\0' ? aborted->text : comm_result_text(failure));
        if (first && aborted->failure != NULL) {
            comm->failure_data = failure_from_message(aborted->failure);
            comm->failure_data.result = failure;
        }
        member_take_verdict(comm, aborted->verdict);
        if (first) {
            policy_lost(comm, failure, comm->failure_text);
        }
        if (comm->parent != NULL && comm->parent->failure == COMM_OK) { /* replays were a part of it */
            member_fail(comm->parent, failure, "%s", comm->failure_text);
            comm->parent->failure_data = comm->failure_data;
        }
    }
}

/* --- Sending --- */

void ops_release(struct comm_comm *comm, struct client_op *op, uint32_t timeout_ms)
{
    op->held = NULL;
    op->deadline_ns = clock_ns() + (uint64_t)timeout_ms * NS_PER_MS;
    comm->collectives_in_flight++;
    comm->staged_bytes += op->staged_bytes;
}

void ops_append(struct comm_comm *comm, struct client_op *op, uint32_t timeout_ms)
{
    op->ticket = ++comm->last_ticket;
    /* For a small operation, the exact clock takes a tenth of the time. */
    bool coarse = op->cell != NULL && timeout_ms >= COARSE_TIMEOUT_MS && comm->client->trace == NULL;
    op->submitted_ns = coarse ? clock_coarse_ns() : clock_ns();
    op->deadline_ns =
        op->submitted_ns + (coarse ? CLOCK_COARSE_TICK_NS : 0) + (uint64_t)timeout_ms * NS_PER_MS;
    TRACE_PROBE(op_submitted, comm->comm_id, op->ticket, op->kind, comm->rank, 0, op->staged_bytes);
    /* Added before it is sent, because it may complete and be freed before the call that sends it returns. */
    list_append(comm, op);
}

void ops_insert(struct comm_comm *comm, struct client_op *op)
{
    struct client_op *later = NULL;
    struct client_op *before = comm->ops != NULL ? comm->ops->prev : NULL; /* the youngest */
    bucket_add(comm, op);
    while (before != NULL && before->ticket > op->ticket) {
        later = before;
        before = later != comm->ops ? later->prev : NULL;
    }
    if (later != NULL) {
        DL_PREPEND_ELEM(comm->ops, later, op);
    } else {
        DL_APPEND(comm->ops, op);
    }
    comm->op_count++;
}

static void fail_unsent(struct comm_client *client, const struct submit_record *record, comm_result_t result)
{
    struct comm_comm *comm = member_by_handle(client, record->handle);
    if (comm == NULL) {
        return;
    }
    member_fail(comm, result,
                "%s: commd does not read its socket: operation %" PRIu64 " on \"%s\" could not be sent",
                client->path, record->ticket, comm->name);
    struct client_op *unsent = *list_find(comm, record->ticket);
    if (unsent != NULL && unsent->staging) { /* it ends when the slice is copied */
        unsent->dropped = true;
    } else if (unsent != NULL) {
        (void)list_take(comm, record->ticket);
        op_fail_unsent(comm, unsent, &comm->failure_data, comm->failure_text);
    }
}

void ops_send(struct comm_client *client, const void *packet, size_t size_bytes, uint32_t timeout_ms)
{
    uint64_t send_by_ns = clock_after_ms((uint64_t)timeout_ms + DAEMON_MARGIN_MS);
    comm_result_t result = client_send_packet(client, packet, size_bytes, -1, send_by_ns);
    size_t record_bytes = 0;
    for (size_t at = 0; result != COMM_OK && at < size_bytes; at += record_bytes) {
        struct submit_record record;
        const char *what;
        record_bytes = submit_record_read((const char *)packet + at, size_bytes - at, &record, &what);
        if (record_bytes == 0) {
            return; /* impossible: the library made these records */
        }
        fail_unsent(client, &record, result);
    }
}
