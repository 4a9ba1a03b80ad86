#include <stdlib.h>
#include <string.h>

#include "client/lib/internal.h"

/* Calls become operations: where commd finds their buffers, and the messages that say so. */

/* One operation on its way to commd. */
struct submission {
    struct client_op *op;
    struct submit_record record;
};

/* Several, in one packet. */
struct submit_packet {
    size_t size_bytes;
    uint32_t timeout_ms; /* of the first one's communicator */
    unsigned char bytes[REQUEST_MAX_BYTES];
};

/* --- Where commd finds the buffers --- */

static struct client_memory *use_memory(struct client_memory *memory)
{
    memory->uses++;
    return memory;
}

static void add_range(struct submission *out, enum record_what what, const struct client_memory *memory,
                      const void *at)
{
    submit_record_add(&out->record, what, memory->id, memory_offset_bytes(memory, at), 0);
}

/* A staging block, counted for the operation. May let go of the lock. */
static comm_result_t take_block(struct comm_comm *comm, struct client_op *op, enum client_use use,
                                size_t size_bytes)
{
    struct client_memory *block;
    comm_result_t result = ops_make_room(comm, op->kind, size_bytes);
    if (result == COMM_OK) {
        result = staging_take(comm->client, size_bytes, &block);
    }
    if (result == COMM_OK) {
        op->uses[use] = use_memory(block);
        op->staged_bytes += op_kind_is_message(op->kind) ? 0 : block->size_bytes;
    }
    return result;
}

/* The caller's memory that holds all of the range; null: none, and its bytes are copied. */
static comm_result_t locate(struct comm_comm *comm, const struct client_call *call, const void *at,
                            size_t size_bytes, struct client_memory **out)
{
    *out = memory_find(comm->client, at, size_bytes);
    bool on_host = comm->client->gpus == NULL || (*out != NULL && (*out)->gpu == NULL);
    return on_host ? COMM_OK : gpu_memory_locate(comm, call, at, size_bytes, out);
}

static size_t buffer_bytes(const struct client_call *call, const struct call_buffer *buffer)
{
    return buffer->elements * dtype_size_bytes(call->terms.dtype);
}

static comm_result_t place_input(struct comm_comm *comm, const struct client_call *call,
                                 struct submission *out)
{
    struct comm_client *client = comm->client;
    size_t size_bytes = buffer_bytes(call, &call->input);
    if (call->input.at == NULL) {
        return COMM_OK;
    }
    struct client_memory *found;
    comm_result_t result = locate(comm, call, call->input.at, size_bytes, &found);
    if (result != COMM_OK) {
        return result;
    }
    /* On a GPU commd takes care of what is in place. */
    if (found != NULL && (!call->stages_input || found->gpu != NULL)) {
        out->op->uses[USE_INPUT] = use_memory(found);
        add_range(out, RECORD_INPUT, found, call->input.at);
        return COMM_OK;
    }
    result = take_block(comm, out->op, USE_INPUT, size_bytes);
    if (result == COMM_OK) {
        struct client_memory *block = out->op->uses[USE_INPUT];
        client_leave(client); /* nobody else knows the block yet */
        memcpy(block->base, call->input.at, size_bytes);
        pthread_mutex_lock(&client->lock);
        add_range(out, RECORD_INPUT, block, block->base);
    }
    return result;
}

static void add_copy(struct client_op *op, const struct client_call *call, const unsigned char *block,
                     size_t begin, size_t count)
{
    size_t element_bytes = dtype_size_bytes(call->terms.dtype);
    if (count > 0) {
        op->copies[op->copy_count++] =
            (struct client_copy){.to = (unsigned char *)call->output.at + begin * element_bytes,
                                 .from = block + begin * element_bytes,
                                 .size_bytes = count * element_bytes};
    }
}

/* What the caller gets: its blocks, not what lies between them. */
static void plan_copies(struct client_op *op, const struct comm_comm *comm, const struct client_call *call,
                        const unsigned char *block)
{
    size_t packed = 0;
    if (call->keeps_output) {
        return;
    }
    if (call->output.counts == NULL || call->output.displacements == NULL) {
        add_copy(op, call, block, 0, call->output.elements);
        return;
    }
    for (uint32_t rank = 0; rank < comm->size; rank++) {
        size_t begin = call->output.displacements != NULL ? call->output.displacements[rank] : packed;
        add_copy(op, call, block, begin, call->output.counts[rank]);
        packed += call->output.counts[rank];
    }
}

static comm_result_t place_output(struct comm_comm *comm, const struct client_call *call,
                                  struct submission *out)
{
    struct client_op *op = out->op;
    size_t size_bytes = buffer_bytes(call, &call->output);
    if (call->output.at == NULL) {
        return COMM_OK;
    }
    struct client_memory *found;
    comm_result_t result = locate(comm, call, call->output.at, size_bytes, &found);
    if (result != COMM_OK) {
        return result;
    }
    if (found != NULL) {
        op->uses[USE_OUTPUT] = use_memory(found);
        add_range(out, RECORD_OUTPUT, found, call->output.at);
        return COMM_OK;
    }
    struct client_memory *input = op->uses[USE_INPUT];
    if (input != NULL && input->slab != NULL && !call->stages_input && call->input.at == call->output.at &&
        call->input.elements == call->output.elements) {
        op->uses[USE_OUTPUT] = use_memory(input); /* one block does for both */
    } else {
        result = take_block(comm, op, USE_OUTPUT, size_bytes);
    }
    if (result == COMM_OK) {
        add_range(out, RECORD_OUTPUT, op->uses[USE_OUTPUT], op->uses[USE_OUTPUT]->base);
        plan_copies(op, comm, call, op->uses[USE_OUTPUT]->base);
    }
    return result;
}

static void write_layout(uint64_t *numbers, const struct call_buffer *buffer, uint32_t size)
{
    uint64_t packed = 0;
    for (uint32_t rank = 0; rank < size; rank++) {
        numbers[rank] = buffer->counts[rank];
        numbers[size + rank] = buffer->displacements != NULL ? buffer->displacements[rank] : packed;
        packed += buffer->counts[rank];
    }
}

static comm_result_t place_layouts(struct comm_comm *comm, const struct client_call *call,
                                   struct submission *out)
{
    bool has_input = call->input.counts != NULL, has_output = call->output.counts != NULL;
    size_t layout_bytes = 2 * (size_t)comm->size * sizeof(uint64_t);
    if (!has_input && !has_output) {
        return COMM_OK;
    }
    comm_result_t result = take_block(comm, out->op, USE_LAYOUTS, 2 * layout_bytes);
    if (result != COMM_OK) {
        return result;
    }
    struct client_memory *block = out->op->uses[USE_LAYOUTS];
    uint64_t *numbers = (uint64_t *)(void *)block->base;
    if (has_input) {
        write_layout(numbers, &call->input, comm->size);
        add_range(out, RECORD_INPUT_LAYOUT, block, block->base);
    }
    if (has_output) {
        write_layout(numbers + 2 * (size_t)comm->size, &call->output, comm->size);
        add_range(out, RECORD_OUTPUT_LAYOUT, block, block->base + layout_bytes);
    }
    return COMM_OK;
}

static comm_result_t place_residual(struct comm_comm *comm, const struct client_call *call,
                                    struct submission *out)
{
    float *residual = call->options.residual;
    size_t size_bytes = call->terms.count_elements * sizeof(float);
    struct client_op *op = out->op;
    if (call->options.compression == COMM_COMPRESSION_NONE || residual == NULL || size_bytes == 0) {
        return COMM_OK;
    }
    struct client_memory *found;
    comm_result_t result = locate(comm, call, residual, size_bytes, &found);
    if (result != COMM_OK) {
        return result;
    }
    if (found != NULL) {
        op->uses[USE_RESIDUAL] = use_memory(found);
        add_range(out, RECORD_RESIDUAL, found, residual);
        return COMM_OK;
    }
    result = take_block(comm, op, USE_RESIDUAL, size_bytes);
    if (result == COMM_OK) {
        unsigned char *block = op->uses[USE_RESIDUAL]->base;
        memcpy(block, residual, size_bytes);
        add_range(out, RECORD_RESIDUAL, op->uses[USE_RESIDUAL], block);
        op->copies[op->copy_count++] =
            (struct client_copy){.to = residual, .from = block, .size_bytes = size_bytes};
    }
    return result;
}

/* What tells its end, and what it waits for. */
static void place_fences(const struct comm_comm *comm, const struct stream_order *order,
                         struct submit_record *record)
{
    if (order->slot != NULL) {
        fence_add(record, RECORD_ENDED, &order->ended);
    }
    member_add_waits(comm, record);
    if (order->slot != NULL && !fence_is_reached(&order->ready)) {
        fence_add(record, RECORD_WAIT, &order->ready);
    }
}

/* --- Operations --- */

/* Everything but its place in the list. May let go of the lock, and wait. Reported. */
static comm_result_t prepare(struct comm_comm *comm, const struct client_call *call,
                             const struct stream_order *order, struct submission *out)
{
    size_t copies = (call->output.counts != NULL ? comm->size : 1) + 1;
    out->op = calloc(1, sizeof *out->op + copies * sizeof out->op->copies[0]);
    if (out->op == NULL) {
        return error_report(COMM_NO_MEMORY, "\"%s\": no memory for an operation", comm->name);
    }
    submit_record_begin(&out->record, RECORD_OPERATION, comm->handle);
    out->op->kind = call->terms.kind;
    out->op->dtype = call->terms.dtype;
    if (order->slot != NULL) { /* a program may have nothing but its streams to wait for */
        client_take_events(comm->client);
    }
    comm_result_t result = place_input(comm, call, out);
    result = result == COMM_OK ? place_output(comm, call, out) : result;
    result = result == COMM_OK ? place_layouts(comm, call, out) : result;
    result = result == COMM_OK ? place_residual(comm, call, out) : result;
    result = result == COMM_OK ? ops_make_room(comm, call->terms.kind, 0) : result;
    if (result != COMM_OK) {
        op_free(comm->client, out->op, true);
        return result;
    }
    out->op->slot = order->slot;
    out->op->ended = order->ended;
    member_drop_reached(comm);
    place_fences(comm, order, &out->record);
    out->record.terms = call->terms;
    out->record.factor = call->options.factor;
    out->record.timeout_ms = call->options.timeout_ms;
    out->record.peer_rank = call->peer;
    out->record.tag = call->tag;
    return COMM_OK;
}

/* From here to the list nobody else gets the lock. */
static void append(struct comm_comm *comm, const struct client_call *call, struct comm_request *request,
                   struct submission *submission)
{
    uint32_t timeout_ms = call->options.timeout_ms != 0 ? call->options.timeout_ms : comm->op_timeout_ms;
    submission->op->request = request;
    if (request != NULL) {
        request->op = submission->op;
        request->ended = false;
    }
    ops_append(comm, submission->op, timeout_ms);
    submission->record.ticket = submission->op->ticket;
}

/* Whether to make room for it could have to wait for those that are not sent yet. */
static bool needs_room(const struct comm_comm *comm, const struct client_call *call)
{
    size_t wanted = buffer_bytes(call, &call->input) + buffer_bytes(call, &call->output);
    return !op_kind_is_message(call->terms.kind) &&
           (comm->collectives_in_flight + 1 >= comm->client->pending_ops_max ||
            comm->staged_bytes + 4 * wanted + 4 * STAGING_MIN_BYTES >= STAGING_FLIGHT_MAX_BYTES);
}

static void packet_add(struct submit_packet *packet, const struct comm_comm *comm,
                       const struct submit_record *record)
{
    size_t record_bytes = submit_record_bytes(record);
    packet->timeout_ms = packet->size_bytes == 0 ? comm->op_timeout_ms : packet->timeout_ms;
    memcpy(packet->bytes + packet->size_bytes, record, record_bytes);
    packet->size_bytes += record_bytes;
}

static void packet_send(struct comm_client *client, struct submit_packet *packet)
{
    if (packet->size_bytes > 0) {
        ops_send(client, packet->bytes, packet->size_bytes, packet->timeout_ms);
        packet->size_bytes = 0;
    }
}

comm_result_t call_submit_entries(struct comm_client *client, struct client_entry *entries, size_t count)
{
    struct submission submission;
    struct submit_packet packet;
    comm_result_t result = COMM_OK;
    size_t submitted = 0;
    packet.size_bytes = packet.timeout_ms = 0;
    for (; submitted < count; submitted++) {
        struct client_entry *entry = &entries[submitted];
        bool full = packet.size_bytes > sizeof packet.bytes - sizeof submission.record;
        if (full || (packet.size_bytes > 0 && needs_room(entry->comm, entry->call))) {
            packet_send(client, &packet);
        }
        result = prepare(entry->comm, entry->call, &entry->order, &submission);
        if (result != COMM_OK) {
            break;
        }
        append(entry->comm, entry->call, entry->request, &submission);
        packet_add(&packet, entry->comm, &submission.record);
    }
    packet_send(client, &packet);
    for (size_t i = submitted; i < count; i++) {
        stream_abandon(entries[i].comm, &entries[i].order);
    }
    for (size_t i = 0; i < count && result == COMM_OK; i++) {
        result = member_check(entries[i].comm);
    }
    return result;
}

/* Its place in the stream is the operation's, or abandoned; a handle is of no operation when it fails. */
static comm_result_t submit_one(struct comm_comm *comm, const struct client_call *call,
                                struct comm_request *request, struct stream_order *order)
{
    struct submission submission;
    comm_result_t result = prepare(comm, call, order, &submission);
    if (result == COMM_OK) {
        append(comm, call, request, &submission);
        ops_send(comm->client, &submission.record, submit_record_bytes(&submission.record),
                 comm->op_timeout_ms);
        result = member_check(comm);
        if (result != COMM_OK && request != NULL && request->op != NULL) {
            request->op->request = NULL;
        }
    } else {
        stream_abandon(comm, order);
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

static comm_result_t submit_now(struct comm_comm *comm, const struct client_call *call,
                                struct comm_request *request, struct stream_order *order)
{
    comm_result_t result = client_enter(comm->client);
    if (result == COMM_OK) {
        result = submit_one(comm, call, request, order);
        client_leave(comm->client);
    } else {
        stream_abandon(comm, order);
    }
    if (result != COMM_OK) {
        request_free(request); /* it may have ended, and have a text */
        return result;
    }
    result = stream_end(comm, call, order);
    if (result != COMM_OK) {
        comm_request_free(request); /* its operation goes on */
    } else if (request != NULL) {
        *call->options.request = request;
    }
    return result;
}

comm_result_t call_submit(struct comm_comm *comm, const struct client_call *call)
{
    struct comm_request *request = NULL;
    struct stream_order order;
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
    comm_result_t result = stream_begin(comm, call, &order);
    if (result != COMM_OK) {
        free(request);
        return result;
    }
    if (!group_is_open()) {
        return submit_now(comm, call, request, &order);
    }
    if (request != NULL) {
        request->collected = true;
    }
    result = group_add(comm, call, request, &order);
    if (result != COMM_OK) {
        stream_abandon(comm, &order);
        free(request);
    } else if (request != NULL) {
        *call->options.request = request;
    }
    return result;
}

comm_result_t call_submit_and_sync(struct comm_comm *comm, const struct client_call *call)
{
    struct stream_order order;
    if (group_is_open()) {
        return error_report(COMM_INVALID_ARGUMENT, "%s on \"%s\": within a group nothing is waited for",
                            call->name, comm->name);
    }
    comm_result_t result = stream_begin(comm, call, &order);
    if (result != COMM_OK) {
        return result;
    }
    result = client_enter(comm->client);
    if (result != COMM_OK) {
        stream_abandon(comm, &order);
        return result;
    }
    result = submit_one(comm, call, NULL, &order);
    uint64_t ticket = comm->last_ticket;
    if (result == COMM_OK && order.slot != NULL) {
        client_leave(comm->client);
        result = stream_end(comm, call, &order);
        pthread_mutex_lock(&comm->client->lock);
    }
    if (result == COMM_OK) {
        result = ops_finish(comm, ticket, UINT64_MAX);
    }
    client_leave(comm->client);
    return result;
}
