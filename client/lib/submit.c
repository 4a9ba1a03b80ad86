#include <stdlib.h>
#include <string.h>

#include "client/lib/internal.h"

/* Turns calls into operations: finds or stages their buffers, and makes their records for commd. */

/* --- Where commd finds the buffers --- */

static struct client_memory *use_memory(struct client_memory *memory)
{
    memory->uses++;
    return memory;
}

/* Takes a staging block and counts it for the operation. May release the lock. */
static comm_result_t take_block(struct comm_comm *comm, struct client_op *op, enum client_use use,
                                size_t size_bytes)
{
    struct client_memory *block;
    comm_result_t result = staging_take(comm->client, size_bytes, &block);
    if (result == COMM_OK) {
        op->uses[use] = use_memory(block);
        op->staged_bytes += op_kind_is_message(op->kind) ? 0 : block->size_bytes;
    }
    return result;
}

static size_t buffer_bytes(const struct client_call *call, const struct call_buffer *buffer)
{
    return buffer->elements * dtype_size_bytes(call->terms.dtype);
}

static size_t residual_bytes(const struct client_call *call)
{
    bool has_residual = call->options.compression != COMM_COMPRESSION_NONE && call->options.residual != NULL;
    return has_residual ? call->terms.count_elements * sizeof(float) : 0;
}

static size_t layout_bytes(const struct comm_comm *comm)
{
    return 2 * (size_t)comm->size * sizeof(uint64_t);
}

static bool has_layouts(const struct client_call *call)
{
    return call->input.counts != NULL || call->output.counts != NULL;
}

/* Finds the caller's memory that holds the whole range. *out is null if there is none: the bytes are copied.
 */
static comm_result_t locate(struct comm_comm *comm, const struct client_call *call, const void *at,
                            size_t size_bytes, struct client_memory **out)
{
    *out = memory_find(comm->client, at, size_bytes);
    bool on_host = comm->client->gpus == NULL || (*out != NULL && (*out)->gpu == NULL);
    return on_host ? COMM_OK : gpu_memory_locate(comm, call, at, size_bytes, out);
}

/* If commd has mapped the memory, the operation uses it. */
static comm_result_t find_memory(struct comm_comm *comm, const struct client_call *call, const void *at,
                                 size_t size_bytes, struct client_op *op, enum client_use use)
{
    struct client_memory *found = NULL;
    comm_result_t result = locate(comm, call, at, size_bytes, &found);
    if (result != COMM_OK || found == NULL) {
        return result;
    }
    /* On a GPU, commd handles operations in place. */
    if (use != USE_INPUT || !call->stages_input || found->gpu != NULL) {
        op->uses[use] = use_memory(found);
    }
    return COMM_OK;
}

static comm_result_t find_buffers(struct comm_comm *comm, const struct client_call *call,
                                  struct client_op *op)
{
    comm_result_t result = member_check(comm);
    if (result == COMM_OK && call->input.at != NULL) {
        result = find_memory(comm, call, call->input.at, buffer_bytes(call, &call->input), op, USE_INPUT);
    }
    if (result == COMM_OK && call->output.at != NULL) {
        result = find_memory(comm, call, call->output.at, buffer_bytes(call, &call->output), op, USE_OUTPUT);
    }
    if (result == COMM_OK && residual_bytes(call) > 0) {
        result = find_memory(comm, call, call->options.residual, residual_bytes(call), op, USE_RESIDUAL);
    }
    return result;
}

/* Whether both buffers can share one block, because the operation is in place. */
static bool shares_block(const struct client_call *call)
{
    return !call->stages_input && call->input.at == call->output.at &&
           call->input.elements == call->output.elements;
}

/* Returns the bytes that must be staged, after find_buffers. */
static size_t staged_bytes(const struct comm_comm *comm, const struct client_call *call,
                           const struct client_op *op)
{
    bool stages_input = call->input.at != NULL && op->uses[USE_INPUT] == NULL;
    bool stages_output = call->output.at != NULL && op->uses[USE_OUTPUT] == NULL;
    size_t sum = stages_input ? buffer_bytes(call, &call->input) : 0;
    sum += stages_output && !(stages_input && shares_block(call)) ? buffer_bytes(call, &call->output) : 0;
    sum += has_layouts(call) ? 2 * layout_bytes(comm) : 0;
    return sum + (op->uses[USE_RESIDUAL] == NULL ? residual_bytes(call) : 0);
}

/* Takes a block and copies into it. The lock is released during the copy: no other thread knows the block. */
static comm_result_t stage_copy(struct comm_comm *comm, struct client_op *op, enum client_use use,
                                const void *from, size_t size_bytes)
{
    comm_result_t result = take_block(comm, op, use, size_bytes);
    if (result == COMM_OK) {
        client_leave(comm->client);
        memcpy(op->uses[use]->base, from, size_bytes);
        pthread_mutex_lock(&comm->client->lock);
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

/* Plans the copies to the caller's buffer: only its blocks, not the gaps between them. */
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

static comm_result_t stage_output(struct comm_comm *comm, const struct client_call *call,
                                  struct client_op *op)
{
    struct client_memory *input = op->uses[USE_INPUT];
    comm_result_t result = COMM_OK;
    if (input != NULL && input->slab != NULL && shares_block(call)) {
        op->uses[USE_OUTPUT] = use_memory(input);
    } else {
        result = take_block(comm, op, USE_OUTPUT, buffer_bytes(call, &call->output));
    }
    if (result == COMM_OK) {
        plan_copies(op, comm, call, op->uses[USE_OUTPUT]->base);
    }
    return result;
}

static void write_layout(uint64_t *numbers, const struct call_buffer *buffer, uint32_t size)
{
    uint64_t packed = 0;
    for (uint32_t rank = 0; buffer->counts != NULL && rank < size; rank++) {
        numbers[rank] = buffer->counts[rank];
        numbers[size + rank] = buffer->displacements != NULL ? buffer->displacements[rank] : packed;
        packed += buffer->counts[rank];
    }
}

static comm_result_t stage_layouts(struct comm_comm *comm, const struct client_call *call,
                                   struct client_op *op)
{
    comm_result_t result = take_block(comm, op, USE_LAYOUTS, 2 * layout_bytes(comm));
    if (result == COMM_OK) {
        uint64_t *numbers = (uint64_t *)(void *)op->uses[USE_LAYOUTS]->base;
        write_layout(numbers, &call->input, comm->size);
        write_layout(numbers + 2 * (size_t)comm->size, &call->output, comm->size);
    }
    return result;
}

static comm_result_t stage_residual(struct comm_comm *comm, const struct client_call *call,
                                    struct client_op *op)
{
    float *residual = call->options.residual;
    size_t size_bytes = residual_bytes(call);
    comm_result_t result = stage_copy(comm, op, USE_RESIDUAL, residual, size_bytes);
    if (result == COMM_OK) {
        op->copies[op->copy_count++] = (struct client_copy){
            .to = residual, .from = op->uses[USE_RESIDUAL]->base, .size_bytes = size_bytes};
    }
    return result;
}

comm_result_t submit_stage(struct comm_comm *comm, const struct client_call *call, struct client_op *op)
{
    comm_result_t result = COMM_OK;
    if (call->input.at != NULL && op->uses[USE_INPUT] == NULL) {
        result = stage_copy(comm, op, USE_INPUT, call->input.at, buffer_bytes(call, &call->input));
    }
    if (result == COMM_OK && call->output.at != NULL && op->uses[USE_OUTPUT] == NULL) {
        result = stage_output(comm, call, op);
    }
    if (result == COMM_OK && has_layouts(call) && op->uses[USE_LAYOUTS] == NULL) {
        result = stage_layouts(comm, call, op);
    }
    if (result == COMM_OK && residual_bytes(call) > 0 && op->uses[USE_RESIDUAL] == NULL) {
        result = stage_residual(comm, call, op);
    }
    return result;
}

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
    add_range(out, RECORD_INPUT, uses[USE_INPUT], call->input.at, 0);
    add_range(out, RECORD_OUTPUT, uses[USE_OUTPUT], call->output.at, 0);
    add_range(out, RECORD_INPUT_LAYOUT, call->input.counts != NULL ? uses[USE_LAYOUTS] : NULL, NULL, 0);
    add_range(out, RECORD_OUTPUT_LAYOUT, call->output.counts != NULL ? uses[USE_LAYOUTS] : NULL, NULL,
              layout_bytes(comm));
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

static struct client_op *op_new(const struct comm_comm *comm, const struct client_call *call)
{
    size_t copies = (call->output.counts != NULL ? comm->size : 1) + 1;
    struct client_op *op = calloc(1, sizeof *op + copies * sizeof op->copies[0]);
    if (op != NULL) {
        op->kind = call->terms.kind;
        op->dtype = call->terms.dtype;
    }
    return op;
}

/* Finds the operation's buffers, and stages them or holds the operation. First handles events, if the
 * operation has a stream or others are held. */
static comm_result_t place(struct comm_comm *comm, const struct client_call *call,
                           const struct stream_order *order, struct submit_packet *packet,
                           struct client_op *op)
{
    if (order->slot != NULL || comm->held != NULL) { /* a program may wait only for its streams */
        client_take_events(comm->client);
        held_feed(comm->client);
    }
    comm_result_t result = find_buffers(comm, call, op);
    if (result != COMM_OK) {
        return result;
    }
    size_t staged = staged_bytes(comm, call, op);
    bool waits = held_must_wait(comm, op->kind, staged);
    if (!waits) {
        result = submit_stage(comm, call, op);
        waits = result == COMM_OK && held_must_wait(comm, op->kind, 0);
    }
    if (waits) {
        packet_send(comm->client, packet); /* earlier operations are sent first */
        result = held_new(comm, call, staged, order, op);
    }
    return result == COMM_OK ? member_check(comm) : result;
}

/*
 * Adds the operation to the list, and its record to the packet, unless it is held. May release the lock.
 * Failures are reported.
 */
static comm_result_t submit(struct comm_comm *comm, const struct client_call *call,
                            struct comm_request *request, const struct stream_order *order,
                            struct submit_packet *packet)
{
    uint32_t timeout_ms = call->options.timeout_ms != 0 ? call->options.timeout_ms : comm->op_timeout_ms;
    struct client_op *op = op_new(comm, call);
    if (op == NULL) {
        return error_report(COMM_NO_MEMORY, "\"%s\": no memory for an operation", comm->name);
    }
    comm_result_t result = place(comm, call, order, packet, op);
    if (result != COMM_OK) {
        held_free(comm, op->held);
        op_free(comm->client, op, true);
        return result;
    }
    /* The lock is not released from here until the operation is in the list. */
    op->slot = order->slot;
    op->ended = order->ended;
    op->request = request;
    if (request != NULL) {
        request->op = op;
        request->ended = false;
    }
    ops_append(comm, op, timeout_ms);
    if (op->held != NULL) {
        held_push(comm, op->held);
        return COMM_OK;
    }
    struct submit_record record;
    struct fence_mark waits[CLIENT_FENCES_MAX];
    uint32_t wait_count = member_collect_waits(comm, order, waits);
    submit_make_record(comm, call, op, waits, wait_count, &record);
    record.ticket = op->ticket;
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
        struct client_entry *entry = &entries[submitted];
        result = submit(entry->comm, entry->call, entry->request, &entry->order, &packet);
        if (result != COMM_OK) {
            break;
        }
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

/* The operation takes its place in the stream. If the call fails, the place is abandoned, and the handle has
 * no operation. */
static comm_result_t submit_one(struct comm_comm *comm, const struct client_call *call,
                                struct comm_request *request, struct stream_order *order)
{
    struct submit_packet packet;
    packet.size_bytes = packet.timeout_ms = 0;
    comm_result_t result = submit(comm, call, request, order, &packet);
    if (result != COMM_OK) {
        stream_abandon(comm, order);
        return result;
    }
    packet_send(comm->client, &packet);
    result = member_check(comm);
    if (result != COMM_OK && request != NULL && request->op != NULL) {
        request->op->request = NULL;
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
        return error_report(COMM_INVALID_ARGUMENT,
                            "%s on \"%s\": a group is open: a call cannot wait before comm_group_end",
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
