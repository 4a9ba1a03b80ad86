#include "client/lib/buffers.h"

#include <string.h>

#include "client/lib/internal.h"
#include "client/lib/layout.h"

/* Where commd finds an operation's buffers: in memory that it has mapped, or in staging blocks. */

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

static size_t residual_bytes(const struct client_call *call)
{
    bool has_residual = call->options.compression != COMM_COMPRESSION_NONE && call->options.residual != NULL;
    return has_residual ? call->terms.count_elements * sizeof(float) : 0;
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

static void use_found(const struct client_call *call, struct client_memory *found, struct client_op *op,
                      enum client_use use)
{
    /* On a GPU, commd handles operations in place. */
    if (found != NULL && (use != USE_INPUT || !call->stages_input || found->gpu != NULL)) {
        op->uses[use] = use_memory(found);
    }
}

/* If commd has mapped the memory, the operation uses it. */
static comm_result_t find_memory(struct comm_comm *comm, const struct client_call *call, const void *at,
                                 size_t size_bytes, struct client_op *op, enum client_use use)
{
    struct client_memory *found = NULL;
    comm_result_t result = locate(comm, call, at, size_bytes, &found);
    if (result == COMM_OK) {
        use_found(call, found, op, use);
    }
    return result;
}

/* Registers the list's blocks that are on a GPU. *on_gpu: whether there are any. */
static comm_result_t locate_blocks(struct comm_comm *comm, const struct client_call *call,
                                   const struct call_buffer *buffer, bool *on_gpu)
{
    *on_gpu = false;
    for (uint32_t rank = 0; comm->client->gpus != NULL && rank < comm->size; rank++) {
        struct client_memory *found = NULL;
        size_t size_bytes = buffer->counts[rank] * dtype_size_bytes(call->terms.dtype);
        comm_result_t result =
            size_bytes > 0 ? locate(comm, call, buffer->list[rank], size_bytes, &found) : COMM_OK;
        if (result != COMM_OK) {
            return result;
        }
        *on_gpu = *on_gpu || (found != NULL && found->gpu != NULL);
    }
    return COMM_OK;
}

/* If commd has mapped one memory that holds all blocks of the list, the operation uses it. */
static comm_result_t find_list(struct comm_comm *comm, const struct client_call *call,
                               const struct call_buffer *buffer, struct client_op *op, enum client_use use)
{
    bool on_gpu;
    size_t span_bytes = layout_span_bytes(buffer, comm->size, dtype_size_bytes(call->terms.dtype));
    comm_result_t result = locate_blocks(comm, call, buffer, &on_gpu);
    if (result != COMM_OK) {
        return result;
    }
    struct client_memory *found = span_bytes > 0 ? memory_find(comm->client, buffer->at, span_bytes) : NULL;
    if (on_gpu && (found == NULL || found->gpu != comm->gpu)) {
        return error_report(
            COMM_UNSUPPORTED,
            "%s on \"%s\": the %s blocks of the list lie in several allocations, at least one of them on a "
            "GPU: allocate them from one chunk of a pool, or copy them into one buffer",
            call->name, comm->name, use == USE_INPUT ? "send" : "receive");
    }
    use_found(call, found, op, use);
    return COMM_OK;
}

static comm_result_t find_buffer(struct comm_comm *comm, const struct client_call *call,
                                 const struct call_buffer *buffer, struct client_op *op, enum client_use use)
{
    if (buffer->at == NULL) {
        return COMM_OK;
    }
    return buffer->list != NULL
               ? find_list(comm, call, buffer, op, use)
               : find_memory(comm, call, buffer->at, call_buffer_bytes(call, buffer), op, use);
}

/* Whether both buffers can share one block: the operation is in place, or its result may replace the copy of
 * its input. */
static bool shares_block(const struct client_call *call)
{
    bool replaces = call->terms.kind == OP_KIND_ALL_REDUCE || call->terms.kind == OP_KIND_REDUCE;
    return !call->stages_input && call->input.list == NULL && call->output.list == NULL &&
           (replaces || call->input.at == call->output.at) && call->input.elements == call->output.elements;
}

/* Whether the copy of the smaller buffer can be this rank's part of the copy of the larger one, as in place.
 */
static bool shares_part(const struct client_call *call)
{
    return (call->terms.kind == OP_KIND_ALL_GATHER || call->terms.kind == OP_KIND_REDUCE_SCATTER) &&
           !call->terms.has_layouts && call->input.list == NULL && call->output.list == NULL;
}

/* Returns the bytes that must be staged, once the mapped buffers were found. */
static size_t bytes_to_stage(const struct comm_comm *comm, const struct client_call *call,
                             const struct client_op *op)
{
    bool stages_input = call->input.at != NULL && op->uses[USE_INPUT] == NULL;
    bool stages_output = call->output.at != NULL && op->uses[USE_OUTPUT] == NULL;
    bool one = stages_input && stages_output && (shares_block(call) || shares_part(call));
    size_t input = call_buffer_bytes(call, &call->input), output = call_buffer_bytes(call, &call->output);
    size_t sum =
        one ? (input > output ? input : output) : (stages_input ? input : 0) + (stages_output ? output : 0);
    sum += layout_is_used(call) ? 2 * layout_bytes(comm->size) : 0;
    return sum + (op->uses[USE_RESIDUAL] == NULL ? residual_bytes(call) : 0);
}

comm_result_t buffers_find(struct comm_comm *comm, const struct client_call *call, struct client_op *op,
                           size_t *staged_bytes)
{
    comm_result_t result = member_check(comm);
    result = result == COMM_OK ? find_buffer(comm, call, &call->input, op, USE_INPUT) : result;
    result = result == COMM_OK ? find_buffer(comm, call, &call->output, op, USE_OUTPUT) : result;
    if (result == COMM_OK && residual_bytes(call) > 0) {
        result = find_memory(comm, call, call->options.residual, residual_bytes(call), op, USE_RESIDUAL);
    }
    *staged_bytes = bytes_to_stage(comm, call, op);
    return result;
}

/* --- Staging --- */

static bool input_is_part(const struct client_call *call, const struct client_op *op)
{
    return shares_part(call) && call->terms.kind == OP_KIND_ALL_GATHER && call->output.at != NULL &&
           op->uses[USE_OUTPUT] == NULL;
}

static bool output_is_part(const struct client_call *call, const struct client_op *op)
{
    const struct client_memory *input = op->uses[USE_INPUT];
    return shares_part(call) && call->terms.kind == OP_KIND_REDUCE_SCATTER && input != NULL &&
           input->slab != NULL;
}

/* Takes a block and copies the buffer into it. The lock is released during the copy: no other thread knows
 * the block. */
static comm_result_t stage_copy(struct comm_comm *comm, const struct client_call *call,
                                const struct call_buffer *buffer, struct client_op *op)
{
    comm_result_t result = COMM_OK;
    if (input_is_part(call, op)) {
        result = take_block(comm, op, USE_OUTPUT, call_buffer_bytes(call, &call->output));
        if (result == COMM_OK) {
            op->uses[USE_INPUT] = use_memory(op->uses[USE_OUTPUT]);
            op->places_bytes[USE_INPUT] = comm->rank * call_buffer_bytes(call, buffer);
            layout_plan_copies(op, call, comm->size, op->uses[USE_OUTPUT]->base);
        }
    } else {
        result = take_block(comm, op, USE_INPUT, call_buffer_bytes(call, buffer));
    }
    if (result == COMM_OK) {
        unsigned char *to = op->uses[USE_INPUT]->base + op->places_bytes[USE_INPUT];
        client_leave(comm->client);
        layout_copy_in(to, buffer, comm->size, dtype_size_bytes(call->terms.dtype));
        pthread_mutex_lock(&comm->client->lock);
    }
    return result;
}

static comm_result_t stage_output(struct comm_comm *comm, const struct client_call *call,
                                  struct client_op *op)
{
    struct client_memory *input = op->uses[USE_INPUT];
    comm_result_t result = COMM_OK;
    if (input != NULL && input->slab != NULL && shares_block(call)) {
        op->uses[USE_OUTPUT] = use_memory(input);
    } else if (output_is_part(call, op)) {
        op->uses[USE_OUTPUT] = use_memory(input);
        op->places_bytes[USE_OUTPUT] = comm->rank * call_buffer_bytes(call, &call->output);
    } else {
        result = take_block(comm, op, USE_OUTPUT, call_buffer_bytes(call, &call->output));
    }
    if (result == COMM_OK) {
        layout_plan_copies(op, call, comm->size, op->uses[USE_OUTPUT]->base + op->places_bytes[USE_OUTPUT]);
    }
    return result;
}

static comm_result_t stage_layouts(struct comm_comm *comm, const struct client_call *call,
                                   struct client_op *op)
{
    comm_result_t result = take_block(comm, op, USE_LAYOUTS, 2 * layout_bytes(comm->size));
    if (result == COMM_OK) {
        uint64_t *numbers = (uint64_t *)(void *)op->uses[USE_LAYOUTS]->base;
        size_t element_bytes = dtype_size_bytes(call->terms.dtype);
        layout_write(numbers, &call->input, op->uses[USE_INPUT], comm->size, element_bytes);
        layout_write(numbers + 2 * (size_t)comm->size, &call->output, op->uses[USE_OUTPUT], comm->size,
                     element_bytes);
    }
    return result;
}

static comm_result_t stage_residual(struct comm_comm *comm, const struct client_call *call,
                                    struct client_op *op)
{
    float *residual = call->options.residual;
    size_t size_bytes = residual_bytes(call);
    comm_result_t result = take_block(comm, op, USE_RESIDUAL, size_bytes);
    if (result == COMM_OK) {
        client_leave(comm->client);
        memcpy(op->uses[USE_RESIDUAL]->base, residual, size_bytes);
        pthread_mutex_lock(&comm->client->lock);
        op->copies[op->copy_count++] = (struct client_copy){
            .to = residual, .from = op->uses[USE_RESIDUAL]->base, .size_bytes = size_bytes};
    }
    return result;
}

comm_result_t buffers_stage(struct comm_comm *comm, const struct client_call *call, struct client_op *op)
{
    comm_result_t result = COMM_OK;
    if (call->input.at != NULL && op->uses[USE_INPUT] == NULL) {
        result = stage_copy(comm, call, &call->input, op);
    }
    if (result == COMM_OK && call->output.at != NULL && op->uses[USE_OUTPUT] == NULL) {
        result = stage_output(comm, call, op);
    }
    if (result == COMM_OK && layout_is_used(call) && op->uses[USE_LAYOUTS] == NULL) {
        result = stage_layouts(comm, call, op);
    }
    if (result == COMM_OK && residual_bytes(call) > 0 && op->uses[USE_RESIDUAL] == NULL) {
        result = stage_residual(comm, call, op);
    }
    return result;
}
