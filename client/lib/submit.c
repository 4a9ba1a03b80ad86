#include <stdlib.h>
#include <string.h>

#include "client/lib/internal.h"

/* What a call submits. Buffers are null where nothing is read or written. */
struct call {
    const char *name;
    enum op_kind kind;
    enum dtype dtype;
    enum reduce reduce;
    size_t count;
    size_t size_bytes;
    uint32_t root;
    const void *input;
    void *output;
    bool output_is_there; /* the output holds already what commd would write */
    comm_call_options_t options;
};

/* --- Where commd finds the buffers --- */

static struct client_memory *use_memory(struct client_memory *memory)
{
    if (memory != NULL) {
        memory->uses++;
    }
    return memory;
}

static struct client_memory *use_found(struct comm_client *client, const void *buffer, size_t size_bytes)
{
    return buffer != NULL ? use_memory(memory_find(client, buffer, size_bytes)) : NULL;
}

/* Gives commd a block in place of the buffers that it has not mapped; one does for both. */
static comm_result_t stage(struct comm_comm *comm, const struct call *call, struct client_op *op)
{
    struct comm_client *client = comm->client;
    bool stage_input = call->input != NULL && op->input == NULL;
    bool stage_output = call->output != NULL && op->output == NULL;
    struct client_memory *block;
    if (!stage_input && !stage_output) {
        return COMM_OK;
    }
    comm_result_t result = ops_make_room(comm, call->size_bytes);
    if (result == COMM_OK) {
        result = staging_take(client, call->size_bytes, &block);
    }
    if (result != COMM_OK) {
        return result;
    }
    op->staged_bytes = block->size_bytes;
    if (stage_input) {
        op->input = use_memory(block);
        client_leave(client); /* nobody else knows the block yet */
        memcpy(block->base, call->input, call->size_bytes);
        pthread_mutex_lock(&client->lock);
    }
    if (stage_output) {
        op->output = use_memory(block);
        op->copy_to = call->output_is_there ? NULL : call->output;
        op->copy_from = block->base;
        op->copy_bytes = call->size_bytes;
    }
    return COMM_OK;
}

static void set_range(Commd__Client__Range *range, const struct client_memory *memory, const void *buffer)
{
    range->memory = memory->id;
    range->offset_bytes = memory->staging ? 0 : memory_offset_bytes(memory, buffer);
}

static comm_result_t submit_locked(struct comm_comm *comm, const struct call *call, uint64_t *ticket)
{
    struct comm_client *client = comm->client;
    struct client_op *op = calloc(1, sizeof *op);
    if (op == NULL) {
        return error_report(COMM_NO_MEMORY, "\"%s\": no memory for an operation", comm->name);
    }
    op->kind = call->kind;
    op->input = use_found(client, call->input, call->size_bytes);
    op->output = use_found(client, call->output, call->size_bytes);
    comm_result_t result = stage(comm, call, op);
    if (result == COMM_OK) {
        result = ops_make_room(comm, 0); /* from here to the list nobody else gets the lock */
    }
    if (result != COMM_OK) {
        op_free(client, op, true);
        return result;
    }
    Commd__Client__Range input = COMMD__CLIENT__RANGE__INIT;
    Commd__Client__Range output = COMMD__CLIENT__RANGE__INIT;
    Commd__Client__Submit body = COMMD__CLIENT__SUBMIT__INIT;
    if (op->input != NULL) {
        set_range(&input, op->input, call->input);
        body.input = &input;
    }
    if (op->output != NULL) {
        set_range(&output, op->output, call->output);
        body.output = &output;
    }
    body.kind = call->kind;
    body.dtype = call->dtype;
    body.reduce = call->reduce;
    body.count_elements = call->count;
    body.root_rank = call->root;
    body.factor = call->options.factor;
    body.timeout_ms = call->options.timeout_ms;
    uint32_t timeout_ms = call->options.timeout_ms != 0 ? call->options.timeout_ms : comm->op_timeout_ms;
    return ops_submit(comm, op, &body, timeout_ms, ticket);
}

static comm_result_t submit(struct comm_comm *comm, const struct call *call, bool then_sync)
{
    struct comm_client *client = comm->client;
    uint64_t ticket;
    comm_result_t result = client_enter(client);
    if (result != COMM_OK) {
        return result;
    }
    result = submit_locked(comm, call, &ticket);
    if (result == COMM_OK && then_sync) {
        result = ops_finish(comm, ticket, UINT64_MAX);
    }
    client_leave(client);
    return result;
}

/* --- Checks --- */

static comm_result_t check_call(const struct comm_comm *comm, comm_dtype_t dtype, size_t count,
                                const comm_call_options_t *options, struct call *call)
{
    call->options = (comm_call_options_t)COMM_CALL_OPTIONS_INIT;
    if (comm == NULL) {
        return error_report(COMM_INVALID_ARGUMENT, "%s: the communicator is a null pointer", call->name);
    }
    comm_result_t result =
        options_copy(&call->options, sizeof call->options, options, call->name, "COMM_CALL_OPTIONS_INIT");
    if (result != COMM_OK) {
        return result;
    }
    if (call->options.stream != NULL) {
        return error_report(COMM_UNSUPPORTED,
                            "%s on \"%s\": a CUDA stream, but the communicator is the host's", call->name,
                            comm->name);
    }
    if (!dtype_from_wire((unsigned)dtype, &call->dtype)) {
        return error_report(COMM_INVALID_ARGUMENT, "%s on \"%s\": %d is no element type", call->name,
                            comm->name, (int)dtype);
    }
    if (__builtin_mul_overflow(count, dtype_size_bytes(call->dtype), &call->size_bytes) ||
        call->size_bytes > PTRDIFF_MAX) {
        return error_report(COMM_INVALID_ARGUMENT,
                            "%s on \"%s\": %zu elements of %s exceed the address space", call->name,
                            comm->name, count, dtype_text(call->dtype));
    }
    call->count = count;
    return COMM_OK;
}

static comm_result_t check_buffer(const struct comm_comm *comm, const struct call *call, const void *buffer,
                                  const char *which)
{
    if (call->size_bytes > 0 && buffer == NULL) {
        return error_report(COMM_INVALID_ARGUMENT, "%s on \"%s\": the %s of %zu elements is a null pointer",
                            call->name, comm->name, which, call->count);
    }
    if ((uintptr_t)buffer + call->size_bytes < call->size_bytes) {
        return error_report(COMM_INVALID_ARGUMENT,
                            "%s on \"%s\": the %s of %zu elements of %s at %p exceeds the address space",
                            call->name, comm->name, which, call->count, dtype_text(call->dtype), buffer);
    }
    return COMM_OK;
}

static bool overlap_in_part(const void *a, const void *b, size_t size_bytes)
{
    uintptr_t low = (uintptr_t)a < (uintptr_t)b ? (uintptr_t)a : (uintptr_t)b;
    uintptr_t high = (uintptr_t)a < (uintptr_t)b ? (uintptr_t)b : (uintptr_t)a;
    return low != high && high - low < size_bytes;
}

/* --- The calls --- */

comm_result_t comm_all_reduce(comm_t *comm, const void *send, void *receive, size_t count, comm_dtype_t dtype,
                              comm_op_t op, const comm_call_options_t *options)
{
    struct call call = {.name = "comm_all_reduce", .kind = OP_KIND_ALL_REDUCE};
    comm_result_t result = check_call(comm, dtype, count, options, &call);
    if (result != COMM_OK) {
        return result;
    }
    if (!reduce_from_wire((unsigned)op, &call.reduce)) {
        return error_report(COMM_INVALID_ARGUMENT, "comm_all_reduce on \"%s\": %d is no operator", comm->name,
                            (int)op);
    }
    if (!reduce_is_defined(call.dtype, call.reduce)) {
        return error_report(COMM_UNSUPPORTED, "comm_all_reduce on \"%s\": %s of %s has no meaning",
                            comm->name, reduce_text(call.reduce), dtype_text(call.dtype));
    }
    result = check_buffer(comm, &call, send, "send buffer");
    if (result == COMM_OK) {
        result = check_buffer(comm, &call, receive, "receive buffer");
    }
    if (result != COMM_OK) {
        return result;
    }
    if (overlap_in_part(send, receive, call.size_bytes)) {
        return error_report(
            COMM_INVALID_ARGUMENT,
            "comm_all_reduce on \"%s\": the buffers of %zu bytes at %p and %p overlap in part: they "
            "must be the same, or apart",
            comm->name, call.size_bytes, send, receive);
    }
    call.input = count > 0 ? send : NULL;
    call.output = count > 0 ? receive : NULL;
    return submit(comm, &call, false);
}

comm_result_t comm_broadcast(comm_t *comm, void *buffer, size_t count, comm_dtype_t dtype, uint32_t root,
                             const comm_call_options_t *options)
{
    struct call call = {.name = "comm_broadcast", .kind = OP_KIND_BROADCAST, .root = root};
    comm_result_t result = check_call(comm, dtype, count, options, &call);
    if (result != COMM_OK) {
        return result;
    }
    if (root >= comm->size) {
        return error_report(COMM_INVALID_ARGUMENT, "comm_broadcast on \"%s\": root %u of %u ranks",
                            comm->name, root, comm->size);
    }
    result = check_buffer(comm, &call, buffer, "buffer");
    if (result != COMM_OK) {
        return result;
    }
    call.output_is_there = root == comm->rank;
    call.output = count > 0 ? buffer : NULL;
    call.input = call.output_is_there ? call.output : NULL;
    return submit(comm, &call, false);
}

comm_result_t comm_barrier(comm_t *comm, const comm_call_options_t *options)
{
    struct call call = {.name = "comm_barrier", .kind = OP_KIND_BARRIER};
    comm_result_t result = check_call(comm, COMM_U8, 0, options, &call);
    return result == COMM_OK ? submit(comm, &call, true) : result;
}
