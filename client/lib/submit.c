#include <stdlib.h>
#include <string.h>

#include "client/lib/buffers.h"
#include "client/lib/internal.h"
#include "client/lib/layout.h"
#include "client/lib/submit.h"

/* Turns calls into operations, and makes their records for commd. */

/* --- Records --- */

/* at: the address in the caller's memory. A staging block is used from its start. */
static void add_range(struct submit_record *record, enum record_what what, const struct client_memory *memory,
                      const void *at, size_t offset_bytes)
{
    if (memory != NULL) {
        uint64_t begin = memory_offset_bytes(memory, memory->slab != NULL ? memory->base : at);
        submit_record_add(record, what, memory->id, begin + offset_bytes, 0);
    }
}

void submit_make_record(const struct comm_comm *comm, const struct client_call *call,
                        const struct client_op *op, const struct fence_mark *waits, uint32_t wait_count,
                        struct submit_record *out)
{
    struct client_memory *const *uses = op->uses;
    submit_record_begin(out, RECORD_OPERATION, comm->handle);
    add_range(out, RECORD_INPUT, uses[USE_INPUT], call->input.at, op->places_bytes[USE_INPUT]);
    add_range(out, RECORD_OUTPUT, uses[USE_OUTPUT], call->output.at, op->places_bytes[USE_OUTPUT]);
    add_range(out, RECORD_INPUT_LAYOUT, call->input.counts != NULL ? uses[USE_LAYOUTS] : NULL, NULL, 0);
    add_range(out, RECORD_OUTPUT_LAYOUT, call->output.counts != NULL ? uses[USE_LAYOUTS] : NULL, NULL,
              layout_bytes(comm->size));
    add_range(out, RECORD_RESIDUAL, uses[USE_RESIDUAL], call->options.residual, 0);
    if (op->slot != NULL) {
        fence_add(out, RECORD_ENDED, &op->ended);
    }
    for (uint32_t i = 0; i < wait_count; i++) {
        fence_add(out, RECORD_WAIT, &waits[i]);
    }
    out->terms = call->terms;
    out->factor = call->options.factor;
    out->timeout_ms = call->options.timeout_ms;
    out->peer_rank = call->peer;
    out->tag = call->tag;
}

/* --- Operations --- */

static struct client_op *op_init(struct client_op *op, const struct client_call *call)
{
    if (op != NULL) {
        memset(op, 0, sizeof *op); /* a structure of zeros would be stored by a slow instruction */
        op->kind = call->terms.kind;
        op->dtype = call->terms.dtype;
    }
    return op;
}

static size_t op_bytes(size_t copies)
{
    return sizeof(struct client_op) + (copies + 1) * sizeof(struct client_copy);
}

struct client_op *op_new(const struct comm_comm *comm, const struct client_call *call)
{
    /* Not calloc: glibc's has no cache for the thread, and took a tenth of a small operation's time. */
    return op_init(malloc(op_bytes(call->output.counts != NULL ? comm->size : 1)), call);
}

bool submit_has_spare(struct comm_comm *comm, const struct client_call *call)
{
    if (comm->spare == NULL) {
        comm->spare = malloc(op_bytes(1));
    }
    return comm->spare != NULL && call->output.counts == NULL;
}

static struct client_op *op_spare_or_new(struct comm_comm *comm, const struct client_call *call)
{
    struct client_op *spare = call->output.counts == NULL ? comm->spare : NULL;
    if (spare == NULL) {
        return op_new(comm, call);
    }
    comm->spare = NULL;
    return op_init(spare, call);
}

/* Finds the operation's buffers, and stages them or holds the operation. First handles events, if the
 * operation has a stream or others are held. */
static comm_result_t place(struct client_entry *entry, struct submit_packet *packet, struct client_op *op)
{
    struct comm_comm *comm = entry->comm;
    const struct client_call *call = entry->call;
    const struct stream_order *order = &entry->order;
    if (order->slot != NULL || comm->held != NULL) { /* a program may wait only for its streams */
        client_take_events(comm->client);
        held_feed(comm->client);
    }
    size_t staged_bytes = 0;
    comm_result_t result = buffers_find(comm, call, op, &staged_bytes);
    if (result != COMM_OK) {
        return result;
    }
    bool waits = held_must_wait(comm, op->kind, staged_bytes);
    if (!waits && staged_bytes > 0) {
        result = buffers_stage(comm, call, op);
    }
    if (!waits) {
        waits = result == COMM_OK && held_must_wait(comm, op->kind, 0);
    }
    if (waits && result == COMM_OK) {
        packet_send(comm->client, packet); /* earlier operations are sent first */
        result = held_new(comm, call, staged_bytes, order, op);
        if (result == COMM_OK && entry->alone && comm->cells != NULL) {
            op->held->in_slices = cells_has_slices(comm, call, false);
        }
    }
    return result == COMM_OK ? member_check(comm) : result;
}

/* Places the entry's operation, which is made if need be. On failure it stays with the entry, without memory.
 */
static comm_result_t prepare(struct client_entry *entry, struct submit_packet *packet)
{
    struct comm_comm *comm = entry->comm;
    comm_result_t result = queue_check(comm, entry->call);
    if (result != COMM_OK) {
        return result;
    }
    if (entry->op == NULL && (entry->op = op_new(comm, entry->call)) == NULL) {
        return error_report(COMM_NO_MEMORY, "\"%s\": no memory for an operation", comm->name);
    }
    result = place(entry, packet, entry->op);
    if (result == COMM_OK) {
        result = queue_check(comm, entry->call); /* another thread may have destroyed it */
    }
    if (result != COMM_OK) {
        held_free(comm, entry->op->held);
        entry->op->held = NULL;
        op_release(comm->client, entry->op, true);
        entry->op->copy_count = 0;
    }
    return result;
}

/* The operation gets what its end needs: its place in the stream, its handle and its queue. */
static void connect_op(struct client_entry *entry, struct client_op *op)
{
    op->slot = entry->order.slot;
    op->ended = entry->order.ended;
    op->request = entry->request;
    if (entry->request != NULL) {
        entry->request->op = op;
        entry->request->ended = false;
    }
    queue_expect(op, entry->call);
    if (op->place.queue != NULL && op->slot != NULL && entry->returns) {
        op->place.withheld = true;
        entry->withheld = op;
    }
}

/*
 * Copies long data to where the other ranks will read them. The ranks then do all the work, in the library's
 * thread unless the program waits at once. commd does it better only if it can read the memory where it is.
 * Returns whether the operation may be published. May release the lock.
 */
static bool write_first_slice(struct client_entry *entry, bool waits)
{
    struct comm_comm *comm = entry->comm;
    entry->large = entry->alone && cells_has_slices(comm, entry->call, true);
    if (!entry->large) {
        return false;
    }
    entry->attended = !habit_waits(comm);
    if (!cells_has_slices(comm, entry->call, !entry->attended)) {
        cells_use_slices(comm, false);
        return false;
    }
    if (!cells_may_publish_slices(comm, entry->call, waits)) {
        return false;
    }
    cells_write_first(comm, entry->call);
    return !held_is_fed(comm) && cells_may_publish_slices(comm, entry->call, waits);
}

void submit_ended(const struct client_entry *entry)
{
    if (entry->request != NULL) {
        request_end(entry->request, COMM_OK, NULL, "");
        entry->request->at_once = true;
    }
}

struct client_op *submit_append(struct client_entry *entry, uint32_t timeout_ms)
{
    struct client_op *op = op_spare_or_new(entry->comm, entry->call);
    if (op != NULL) {
        connect_op(entry, op);
        ops_append(entry->comm, op, timeout_ms);
    }
    return op;
}

bool submit_open(struct client_entry *entry, uint32_t timeout_ms)
{
    struct comm_comm *comm = entry->comm;
    struct client_op *op = op_spare_or_new(comm, entry->call);
    if (op == NULL) {
        return false;
    }
    connect_op(entry, op);
    cells_reserve(comm, entry->call, op);
    ops_append(comm, op, timeout_ms);
    cells_put(comm, op);
    if (entry->alone && entry->request != NULL) {
        entry->request->at_once = entry->request->ended; /* the caller does not know the handle yet */
    }
    if (entry->attended) {
        cells_attend_to(comm, op);
    }
    return true;
}

/* Publishes the operation in the ranks' cells, if it may go there. Returns whether it did. */
static bool publish(struct client_entry *entry, uint32_t timeout_ms)
{
    struct comm_comm *comm = entry->comm;
    bool waits = entry->order.slot != NULL || comm->wait_count > 0;
    if (comm->cells == NULL || op_kind_is_message(entry->call->terms.kind) || entry->op != NULL ||
        held_is_fed(comm)) {
        return false;
    }
    if (!cells_may_look_later(comm, entry->call)) {
        cells_progress(comm->client); /* it may release the lock */
    }
    if (held_is_fed(comm) ||
        !(cells_may_publish(comm, entry->call, waits) || write_first_slice(entry, waits))) {
        return false;
    }
    bool may_end = entry->alone && !entry->large && submit_has_spare(comm, entry->call);
    if (may_end && cells_end_at_once(comm, entry->call)) {
        submit_ended(entry);
        return true;
    }
    return submit_open(entry, timeout_ms); /* if memory is short, the caller says so */
}

/* All ranks give their collective operations the same numbers. */
static void number(struct client_entry *entry)
{
    bool is_message = op_kind_is_message(entry->call->terms.kind);
    entry->order.number = is_message ? 0 : ++entry->comm->collective_count;
}

/*
 * Adds the operation to the list, and its record to the packet, unless it is held. May release the lock.
 * Failures are reported.
 */
static comm_result_t submit(struct client_entry *entry, struct submit_packet *packet)
{
    struct comm_comm *comm = entry->comm;
    const struct client_call *call = entry->call;
    uint32_t timeout_ms = call->options.timeout_ms != 0 ? call->options.timeout_ms : comm->op_timeout_ms;
    if (cells_submit_message(entry, timeout_ms)) {
        return COMM_OK;
    }
    if (publish(entry, timeout_ms)) {
        number(entry);
        return COMM_OK;
    }
    comm_result_t result = stream_check(comm, call, &entry->order);
    result = result == COMM_OK ? prepare(entry, packet) : result;
    if (result != COMM_OK) {
        return result;
    }
    /* The lock is not released from here until the operation is in the list. */
    struct client_op *op = entry->op;
    entry->op = NULL;
    number(entry);
    connect_op(entry, op);
    ops_append(comm, op, timeout_ms);
    if (op->held != NULL) {
        held_push(comm, op->held);
        return COMM_OK;
    }
    struct submit_record record;
    struct fence_mark waits[CLIENT_FENCES_MAX];
    uint32_t wait_count = member_collect_waits(comm, &entry->order, waits);
    if (!cells_pass_message(comm, op, call, waits, wait_count)) {
        return COMM_OK;
    }
    submit_make_record(comm, call, op, waits, wait_count, &record);
    record.ticket = op->ticket;
    cells_pass(comm, op, &record);
    packet_add(comm->client, packet, comm, &record);
    return COMM_OK;
}

void packet_add(struct comm_client *client, struct submit_packet *packet, const struct comm_comm *comm,
                const struct submit_record *record)
{
    size_t record_bytes = submit_record_bytes(record);
    if (packet->size_bytes + record_bytes > sizeof packet->bytes) {
        packet_send(client, packet);
    }
    packet->timeout_ms = packet->size_bytes == 0 ? comm->op_timeout_ms : packet->timeout_ms;
    memcpy(packet->bytes + packet->size_bytes, record, record_bytes);
    packet->size_bytes += record_bytes;
}

void packet_send(struct comm_client *client, struct submit_packet *packet)
{
    size_t size_bytes = packet->size_bytes;
    packet->size_bytes = 0;
    if (size_bytes > 0) {
        ops_send(client, packet->bytes, size_bytes, packet->timeout_ms);
    }
}

comm_result_t call_submit_entries(struct comm_client *client, struct client_entry *entries, size_t count)
{
    struct submit_packet packet;
    comm_result_t result = COMM_OK;
    size_t submitted = 0;
    packet.size_bytes = packet.timeout_ms = 0;
    for (; submitted < count; submitted++) {
        result = submit(&entries[submitted], &packet);
        if (result != COMM_OK) {
            break;
        }
    }
    packet_send(client, &packet);
    for (size_t i = submitted; i < count; i++) {
        stream_abandon(entries[i].comm, &entries[i].order);
    }
    /* A queue has, or gets, the completion of what was submitted. */
    for (size_t i = 0; i < count && result == COMM_OK; i++) {
        result = entries[i].call->options.queue == NULL ? member_check(entries[i].comm) : COMM_OK;
    }
    return result;
}

/* The operation takes its place in the stream. If the call fails, the place is abandoned, and the handle has
 * no operation. */
static comm_result_t submit_one(struct client_entry *entry)
{
    struct submit_packet packet;
    struct comm_request *request = entry->request;
    packet.size_bytes = packet.timeout_ms = 0;
    comm_result_t result = submit(entry, &packet);
    if (result != COMM_OK) {
        stream_abandon(entry->comm, &entry->order);
        free(entry->op);
        return result;
    }
    packet_send(entry->comm->client, &packet);
    if (entry->call->options.queue != NULL) {
        return COMM_OK; /* the queue has, or gets, the completion */
    }
    result = member_check(entry->comm);
    if (result != COMM_OK && request != NULL && request->op != NULL) {
        request->op->request = NULL;
    }
    return result;
}

comm_result_t submit_end(const struct client_entry *entry)
{
    comm_result_t result = stream_end(entry->comm, entry->call, &entry->order);
    if (entry->withheld != NULL && client_enter(entry->comm->client) == COMM_OK) {
        queue_settle(entry->withheld, result == COMM_OK);
        client_leave(entry->comm->client);
    }
    return result;
}

static comm_result_t make_persistent(struct comm_comm *comm, const struct client_call *call,
                                     struct comm_request *request)
{
    request->call = call_copy(call, comm->size);
    if (request->call == NULL) {
        free(request);
        return error_report(COMM_NO_MEMORY, "%s on \"%s\": no memory for a handle", call->name, comm->name);
    }
    *call->options.request = request;
    return COMM_OK;
}

static comm_result_t submit_now(struct client_entry *entry)
{
    struct comm_client *client = entry->comm->client;
    struct comm_request *request = entry->request;
    comm_result_t result = client_enter(client);
    if (result == COMM_OK) {
        result = submit_one(entry);
        if (entry->large && result == COMM_OK) {
            habit_submitted(entry->comm);
        }
        client_leave(client);
    } else {
        stream_abandon(entry->comm, &entry->order);
    }
    if (result != COMM_OK) {
        request_free(request); /* it may have ended, and have a text */
        return result;
    }
    result = submit_end(entry);
    if (result != COMM_OK) {
        comm_request_free(request); /* its operation goes on */
    } else if (request != NULL) {
        *entry->call->options.request = request;
    }
    return result;
}

comm_result_t call_submit(struct comm_comm *comm, const struct client_call *call)
{
    struct comm_request *request = NULL;
    struct client_entry entry = {.comm = comm, .call = call, .alone = true, .returns = true};
    if (call->options.request != NULL) {
        request = request_new(comm);
        if (request == NULL) {
            return error_report(COMM_NO_MEMORY, "%s on \"%s\": no memory for a handle", call->name,
                                comm->name);
        }
    }
    if (call->options.persistent != 0) {
        return make_persistent(comm, call, request);
    }
    comm_result_t result = stream_begin(comm, call, &entry.order);
    if (result == COMM_OK && group_is_open()) {
        result = group_check_capture(comm, call, entry.order.capture.id);
        if (result != COMM_OK) {
            stream_abandon(comm, &entry.order);
        }
    }
    if (result != COMM_OK || entry.order.capture.id != 0) {
        free(request);
        return result != COMM_OK ? result : capture_submit(comm, call, &entry.order.capture);
    }
    entry.request = request;
    if (!group_is_open()) {
        return submit_now(&entry);
    }
    if (request != NULL) {
        request->collected = true;
    }
    result = group_add(comm, call, request, &entry.order);
    if (result != COMM_OK) {
        stream_abandon(comm, &entry.order);
        free(request);
    } else if (request != NULL) {
        *call->options.request = request;
    }
    return result;
}

comm_result_t call_submit_and_sync(struct comm_comm *comm, const struct client_call *call)
{
    struct client_entry entry = {.comm = comm, .call = call};
    if (group_is_open()) {
        return error_report(COMM_INVALID_ARGUMENT,
                            "%s on \"%s\": a group is open: a call cannot wait before comm_group_end",
                            call->name, comm->name);
    }
    comm_result_t result = stream_begin(comm, call, &entry.order);
    result = result == COMM_OK ? capture_refuse(comm, call, &entry.order.capture, "it waits") : result;
    if (result != COMM_OK) {
        return result;
    }
    result = client_enter(comm->client);
    if (result != COMM_OK) {
        stream_abandon(comm, &entry.order);
        return result;
    }
    result = submit_one(&entry);
    uint64_t ticket = comm->last_ticket;
    if (result == COMM_OK && entry.order.slot != NULL) {
        client_leave(comm->client);
        result = stream_end(comm, call, &entry.order);
        pthread_mutex_lock(&comm->client->lock);
    }
    if (result == COMM_OK) {
        result = ops_finish(comm, ticket, UINT64_MAX);
    }
    client_leave(comm->client);
    return result;
}
