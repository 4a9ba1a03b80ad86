#include <stdlib.h>

#include "client/lib/internal.h"
#include "client/lib/submit.h"

/* Collectives on lists of buffers. They are the _v forms, with blocks that may be anywhere. */

/* --- Overlaps --- */

struct range {
    uintptr_t begin, end;
    uint32_t rank; /* of a list's block; UINT32_MAX: the whole buffer */
};

static int compare_ranges(const void *a, const void *b)
{
    const struct range *left = a, *right = b;
    return left->begin < right->begin ? -1 : left->begin > right->begin;
}

static struct range block_range(const struct client_call *call, const struct call_buffer *buffer,
                                uint32_t rank)
{
    size_t element_bytes = dtype_size_bytes(call->terms.dtype);
    bool in_list = buffer->list != NULL;
    uintptr_t begin = (uintptr_t)(in_list ? buffer->list[rank] : buffer->at);
    size_t elements = in_list ? buffer->counts[rank] : buffer->elements;
    return (struct range){begin, begin + elements * element_bytes, in_list ? rank : UINT32_MAX};
}

/* Writes the ranges of the buffer that are not empty, by address. Returns their number. */
static uint32_t list_ranges(const struct client_call *call, const struct comm_comm *comm,
                            const struct call_buffer *buffer, struct range *out)
{
    uint32_t count = 0, blocks = buffer->list != NULL ? comm->size : 1;
    bool sorted = true;
    for (uint32_t rank = 0; rank < blocks && buffer->at != NULL; rank++) {
        struct range range = block_range(call, buffer, rank);
        if (range.begin < range.end) {
            sorted = sorted && (count == 0 || out[count - 1].begin <= range.begin);
            out[count++] = range;
        }
    }
    if (!sorted) {
        qsort(out, count, sizeof *out, compare_ranges);
    }
    return count;
}

/* Whether the operation may be in place there. own: the rank whose block may be; or UINT32_MAX, for the
 * blocks of equal ranks. */
static bool is_in_place(const struct range *input, const struct range *output, uint32_t own)
{
    uint32_t rank = input->rank != UINT32_MAX ? input->rank : output->rank;
    bool same_rank = input->rank == UINT32_MAX || output->rank == UINT32_MAX || input->rank == output->rank;
    return input->begin == output->begin && input->end == output->end && same_rank &&
           (own == UINT32_MAX || rank == own);
}

static comm_result_t report_overlap(const struct client_call *call, const struct comm_comm *comm,
                                    const struct range *one, const struct range *other)
{
    return error_report(COMM_INVALID_ARGUMENT,
                        "%s on \"%s\": the blocks of %zu bytes at %p and %zu at %p overlap, but not as this "
                        "operation allows in place",
                        call->name, comm->name, (size_t)(one->end - one->begin), (void *)one->begin,
                        (size_t)(other->end - other->begin), (void *)other->begin);
}

/* The outputs are by address and disjoint. */
static comm_result_t check_input(const struct client_call *call, const struct comm_comm *comm,
                                 const struct range *input, const struct range *outputs, uint32_t count,
                                 uint32_t own)
{
    uint32_t low = 0, high = count;
    while (low < high) { /* the first output that ends after the input's begin */
        uint32_t middle = low + (high - low) / 2;
        if (outputs[middle].end <= input->begin) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    for (; low < count && outputs[low].begin < input->end; low++) {
        if (!is_in_place(input, &outputs[low], own)) {
            return report_overlap(call, comm, input, &outputs[low]);
        }
    }
    return COMM_OK;
}

/* Checks that received blocks overlap neither each other nor what is sent, but for blocks in place. */
static comm_result_t check_overlaps(const struct client_call *call, const struct comm_comm *comm,
                                    uint32_t own)
{
    struct range *inputs = calloc(2 * (size_t)comm->size + 2, sizeof *inputs);
    if (inputs == NULL) {
        return error_report(COMM_NO_MEMORY, "%s on \"%s\": no memory for a list", call->name, comm->name);
    }
    struct range *outputs = inputs + comm->size + 1;
    uint32_t input_count = list_ranges(call, comm, &call->input, inputs);
    uint32_t output_count = list_ranges(call, comm, &call->output, outputs);
    comm_result_t result = COMM_OK;
    for (uint32_t i = 1; i < output_count && result == COMM_OK; i++) {
        if (outputs[i].begin < outputs[i - 1].end) {
            result = report_overlap(call, comm, &outputs[i - 1], &outputs[i]);
        }
    }
    for (uint32_t i = 0; i < input_count && result == COMM_OK; i++) {
        result = check_input(call, comm, &inputs[i], outputs, output_count, own);
    }
    free(inputs);
    return result;
}

/* --- The calls --- */

static comm_result_t begin(struct client_call *call, const char *name, enum op_kind kind,
                           const struct comm_comm *comm, comm_dtype_t dtype, size_t count,
                           const comm_call_options_t *options)
{
    comm_result_t result = call_begin(call, name, kind, comm, dtype, count, options);
    call->terms.has_layouts = 1;
    return result;
}

comm_result_t comm_all_gather_list(comm_t *comm, const void *send, void *const *receives,
                                   const size_t *counts, comm_dtype_t dtype,
                                   const comm_call_options_t *options)
{
    struct client_call call;
    comm_result_t result = begin(&call, "comm_all_gather_list", OP_KIND_ALL_GATHER, comm, dtype, 0, options);
    if (result == COMM_OK) {
        result = call_set_list(&call, comm, &call.output, receives, counts, "receive buffers");
    }
    if (result == COMM_OK) {
        call.terms.count_elements = counts[comm->rank];
        result = call_set_buffer(&call, comm, &call.input, send, 1, "send buffer");
    }
    result = result == COMM_OK ? check_overlaps(&call, comm, comm->rank) : result;
    return result == COMM_OK ? call_submit(comm, &call) : result;
}

comm_result_t comm_reduce_scatter_list(comm_t *comm, const void *const *sends, void *receive,
                                       const size_t *counts, comm_dtype_t dtype, comm_op_t op,
                                       const comm_call_options_t *options)
{
    struct client_call call;
    comm_result_t result =
        begin(&call, "comm_reduce_scatter_list", OP_KIND_REDUCE_SCATTER, comm, dtype, 0, options);
    result = result == COMM_OK ? call_set_reduce(&call, comm, op) : result;
    if (result == COMM_OK) {
        result =
            call_set_list(&call, comm, &call.input, (void *const *)(uintptr_t)sends, counts, "send buffers");
    }
    if (result == COMM_OK) {
        call.terms.count_elements = counts[comm->rank];
        result = call_set_buffer(&call, comm, &call.output, receive, 1, "receive buffer");
    }
    result = result == COMM_OK ? check_overlaps(&call, comm, comm->rank) : result;
    return result == COMM_OK ? call_submit(comm, &call) : result;
}

/* Whether any block is received where it is sent from: then it would be overwritten before it is sent. */
static bool has_common_block(const struct client_call *call, uint32_t size)
{
    bool found = false;
    for (uint32_t rank = 0; rank < size && !found; rank++) {
        found = call->input.counts[rank] > 0 && call->output.counts[rank] > 0 &&
                call->input.list[rank] == call->output.list[rank];
    }
    return found;
}

comm_result_t comm_all_to_all_list(comm_t *comm, const void *const *sends, const size_t *send_counts,
                                   void *const *receives, const size_t *receive_counts, comm_dtype_t dtype,
                                   const comm_call_options_t *options)
{
    struct client_call call;
    comm_result_t result = begin(&call, "comm_all_to_all_list", OP_KIND_ALL_TO_ALL, comm, dtype, 0, options);
    if (result == COMM_OK) {
        result = call_set_list(&call, comm, &call.input, (void *const *)(uintptr_t)sends, send_counts,
                               "send buffers");
    }
    if (result == COMM_OK) {
        result = call_set_list(&call, comm, &call.output, receives, receive_counts, "receive buffers");
    }
    result = result == COMM_OK ? check_overlaps(&call, comm, UINT32_MAX) : result;
    if (result == COMM_OK) {
        call.stages_input = has_common_block(&call, comm->size);
        result = call_submit(comm, &call);
    }
    return result;
}

comm_result_t comm_gather_list(comm_t *comm, const void *send, size_t send_count, void *const *receives,
                               const size_t *counts, comm_dtype_t dtype, uint32_t root,
                               const comm_call_options_t *options)
{
    struct client_call call;
    comm_result_t result = begin(&call, "comm_gather_list", OP_KIND_GATHER, comm, dtype, send_count, options);
    result = result == COMM_OK ? call_set_root(&call, comm, root) : result;
    result = result == COMM_OK ? call_set_buffer(&call, comm, &call.input, send, 1, "send buffer") : result;
    if (result == COMM_OK && comm->rank == root) {
        result = call_set_list(&call, comm, &call.output, receives, counts, "receive buffers");
        result = result == COMM_OK ? call_check_own_count(&call, comm, counts) : result;
        result = result == COMM_OK ? check_overlaps(&call, comm, root) : result;
    }
    return result == COMM_OK ? call_submit(comm, &call) : result;
}

comm_result_t comm_scatter_list(comm_t *comm, const void *const *sends, const size_t *counts, void *receive,
                                size_t receive_count, comm_dtype_t dtype, uint32_t root,
                                const comm_call_options_t *options)
{
    struct client_call call;
    comm_result_t result =
        begin(&call, "comm_scatter_list", OP_KIND_SCATTER, comm, dtype, receive_count, options);
    result = result == COMM_OK ? call_set_root(&call, comm, root) : result;
    result =
        result == COMM_OK ? call_set_buffer(&call, comm, &call.output, receive, 1, "receive buffer") : result;
    if (result == COMM_OK && comm->rank == root) {
        result =
            call_set_list(&call, comm, &call.input, (void *const *)(uintptr_t)sends, counts, "send buffers");
        result = result == COMM_OK ? call_check_own_count(&call, comm, counts) : result;
        result = result == COMM_OK ? check_overlaps(&call, comm, root) : result;
    }
    return result == COMM_OK ? call_submit(comm, &call) : result;
}
