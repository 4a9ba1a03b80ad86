#include "client/lib/internal.h"
#include "client/lib/submit.h"

/* The calls: what each reads and writes on which rank, and which buffers may be in place. */

#define OWN_SAME SIZE_MAX

/* A collective whose blocks, if it has any, are equal. op and root count for kinds that have them. Inline:
 * each kind needs a few of the lines. */
static inline comm_result_t equal_blocks(const char *name, enum op_kind kind, comm_t *comm, const void *send,
                                         void *receive, size_t count, comm_dtype_t dtype, comm_op_t op,
                                         uint32_t root, const comm_call_options_t *options)
{
    const struct cells_arguments arguments = {comm, kind, send, receive, count, dtype, op, root, options};
    if (cells_call_again(&arguments)) {
        return COMM_OK;
    }
    struct client_call call;
    bool has_in = op_kind_has_input_blocks(kind), has_out = op_kind_has_output_blocks(kind);
    comm_result_t result = call_begin(&call, name, kind, comm, dtype, count, options);
    if (result == COMM_OK && op_kind_reduces(kind)) {
        result = call_set_reduce(&call, comm, op);
    }
    if (result == COMM_OK && op_kind_has_root(kind)) {
        result = call_set_root(&call, comm, root);
    }
    if (result == COMM_OK && op_kind_reads(kind, comm->rank == root)) {
        result = call_set_buffer(&call, comm, &call.input, send, has_in ? comm->size : 1, "send buffer");
    }
    if (result == COMM_OK && op_kind_writes(kind, comm->rank == root)) {
        result =
            call_set_buffer(&call, comm, &call.output, receive, has_out ? comm->size : 1, "receive buffer");
    }
    if (result == COMM_OK) {
        result = call_check_overlap(&call, comm, has_in != has_out ? comm->rank * count : OWN_SAME);
    }
    if (result != COMM_OK) {
        return result;
    }
    /* In place, every block would be overwritten before it is sent. */
    call.stages_input = has_in && has_out && call.input.at == call.output.at;
    call.keeps_output = kind == OP_KIND_EXCLUSIVE_SCAN && comm->rank == 0;
    return call_submit(comm, &call);
}

comm_result_t comm_all_reduce(comm_t *comm, const void *send, void *receive, size_t count, comm_dtype_t dtype,
                              comm_op_t op, const comm_call_options_t *options)
{
    return equal_blocks("comm_all_reduce", OP_KIND_ALL_REDUCE, comm, send, receive, count, dtype, op, 0,
                        options);
}

comm_result_t comm_reduce(comm_t *comm, const void *send, void *receive, size_t count, comm_dtype_t dtype,
                          comm_op_t op, uint32_t root, const comm_call_options_t *options)
{
    return equal_blocks("comm_reduce", OP_KIND_REDUCE, comm, send, receive, count, dtype, op, root, options);
}

comm_result_t comm_broadcast(comm_t *comm, void *buffer, size_t count, comm_dtype_t dtype, uint32_t root,
                             const comm_call_options_t *options)
{
    const struct cells_arguments arguments = {.comm = comm,
                                              .kind = OP_KIND_BROADCAST,
                                              .send = buffer,
                                              .receive = buffer,
                                              .count = count,
                                              .dtype = dtype,
                                              .op = COMM_SUM,
                                              .root = root,
                                              .options = options};
    if (cells_call_again(&arguments)) {
        return COMM_OK;
    }
    struct client_call call;
    comm_result_t result =
        call_begin(&call, "comm_broadcast", OP_KIND_BROADCAST, comm, dtype, count, options);
    result = result == COMM_OK ? call_set_root(&call, comm, root) : result;
    if (result == COMM_OK) {
        struct call_buffer *used = comm->rank == root ? &call.input : &call.output;
        result = call_set_buffer(&call, comm, used, buffer, 1, "buffer");
    }
    return result == COMM_OK ? call_submit(comm, &call) : result;
}

comm_result_t comm_all_gather(comm_t *comm, const void *send, void *receive, size_t count, comm_dtype_t dtype,
                              const comm_call_options_t *options)
{
    return equal_blocks("comm_all_gather", OP_KIND_ALL_GATHER, comm, send, receive, count, dtype, COMM_SUM, 0,
                        options);
}

comm_result_t comm_all_gather_v(comm_t *comm, const void *send, void *receive, const size_t *counts,
                                const size_t *displacements, comm_dtype_t dtype,
                                const comm_call_options_t *options)
{
    struct client_call call;
    comm_result_t result =
        call_begin(&call, "comm_all_gather_v", OP_KIND_ALL_GATHER, comm, dtype, 0, options);
    if (result == COMM_OK) {
        result = call_set_layout(&call, comm, &call.output, receive, counts, displacements, "receive buffer");
    }
    if (result == COMM_OK) {
        call.terms.has_layouts = 1;
        call.terms.count_elements = counts[comm->rank];
        result = call_set_buffer(&call, comm, &call.input, send, 1, "send buffer");
    }
    if (result == COMM_OK) {
        result = call_check_overlap(&call, comm, call_block_begin(&call.output, comm->rank));
    }
    return result == COMM_OK ? call_submit(comm, &call) : result;
}

comm_result_t comm_reduce_scatter(comm_t *comm, const void *send, void *receive, size_t count,
                                  comm_dtype_t dtype, comm_op_t op, const comm_call_options_t *options)
{
    return equal_blocks("comm_reduce_scatter", OP_KIND_REDUCE_SCATTER, comm, send, receive, count, dtype, op,
                        0, options);
}

comm_result_t comm_reduce_scatter_v(comm_t *comm, const void *send, void *receive, const size_t *counts,
                                    comm_dtype_t dtype, comm_op_t op, const comm_call_options_t *options)
{
    struct client_call call;
    comm_result_t result =
        call_begin(&call, "comm_reduce_scatter_v", OP_KIND_REDUCE_SCATTER, comm, dtype, 0, options);
    result = result == COMM_OK ? call_set_reduce(&call, comm, op) : result;
    if (result == COMM_OK) {
        result = call_set_layout(&call, comm, &call.input, send, counts, NULL, "send buffer");
    }
    if (result == COMM_OK) {
        call.terms.has_layouts = 1;
        call.terms.count_elements = counts[comm->rank];
        result = call_set_buffer(&call, comm, &call.output, receive, 1, "receive buffer");
    }
    if (result == COMM_OK) {
        result = call_check_overlap(&call, comm, call_block_begin(&call.input, comm->rank));
    }
    return result == COMM_OK ? call_submit(comm, &call) : result;
}

comm_result_t comm_gather(comm_t *comm, const void *send, void *receive, size_t count, comm_dtype_t dtype,
                          uint32_t root, const comm_call_options_t *options)
{
    return equal_blocks("comm_gather", OP_KIND_GATHER, comm, send, receive, count, dtype, COMM_SUM, root,
                        options);
}

comm_result_t comm_gather_v(comm_t *comm, const void *send, size_t send_count, void *receive,
                            const size_t *counts, const size_t *displacements, comm_dtype_t dtype,
                            uint32_t root, const comm_call_options_t *options)
{
    struct client_call call;
    comm_result_t result =
        call_begin(&call, "comm_gather_v", OP_KIND_GATHER, comm, dtype, send_count, options);
    call.terms.has_layouts = 1;
    result = result == COMM_OK ? call_set_root(&call, comm, root) : result;
    result = result == COMM_OK ? call_set_buffer(&call, comm, &call.input, send, 1, "send buffer") : result;
    if (result == COMM_OK && comm->rank == root) {
        result = call_set_layout(&call, comm, &call.output, receive, counts, displacements, "receive buffer");
        result = result == COMM_OK ? call_check_own_count(&call, comm, counts) : result;
        if (result == COMM_OK) {
            result = call_check_overlap(&call, comm, call_block_begin(&call.output, root));
        }
    }
    return result == COMM_OK ? call_submit(comm, &call) : result;
}

comm_result_t comm_scatter(comm_t *comm, const void *send, void *receive, size_t count, comm_dtype_t dtype,
                           uint32_t root, const comm_call_options_t *options)
{
    return equal_blocks("comm_scatter", OP_KIND_SCATTER, comm, send, receive, count, dtype, COMM_SUM, root,
                        options);
}

comm_result_t comm_scatter_v(comm_t *comm, const void *send, const size_t *counts,
                             const size_t *displacements, void *receive, size_t receive_count,
                             comm_dtype_t dtype, uint32_t root, const comm_call_options_t *options)
{
    struct client_call call;
    comm_result_t result =
        call_begin(&call, "comm_scatter_v", OP_KIND_SCATTER, comm, dtype, receive_count, options);
    call.terms.has_layouts = 1;
    result = result == COMM_OK ? call_set_root(&call, comm, root) : result;
    result =
        result == COMM_OK ? call_set_buffer(&call, comm, &call.output, receive, 1, "receive buffer") : result;
    if (result == COMM_OK && comm->rank == root) {
        result = call_set_layout(&call, comm, &call.input, send, counts, displacements, "send buffer");
        result = result == COMM_OK ? call_check_own_count(&call, comm, counts) : result;
        if (result == COMM_OK) {
            result = call_check_overlap(&call, comm, call_block_begin(&call.input, root));
        }
    }
    return result == COMM_OK ? call_submit(comm, &call) : result;
}

comm_result_t comm_all_to_all(comm_t *comm, const void *send, void *receive, size_t count, comm_dtype_t dtype,
                              const comm_call_options_t *options)
{
    return equal_blocks("comm_all_to_all", OP_KIND_ALL_TO_ALL, comm, send, receive, count, dtype, COMM_SUM, 0,
                        options);
}

comm_result_t comm_all_to_all_v(comm_t *comm, const void *send, const size_t *send_counts,
                                const size_t *send_displacements, void *receive, const size_t *receive_counts,
                                const size_t *receive_displacements, comm_dtype_t dtype,
                                const comm_call_options_t *options)
{
    struct client_call call;
    comm_result_t result =
        call_begin(&call, "comm_all_to_all_v", OP_KIND_ALL_TO_ALL, comm, dtype, 0, options);
    call.terms.has_layouts = 1;
    if (result == COMM_OK) {
        result =
            call_set_layout(&call, comm, &call.input, send, send_counts, send_displacements, "send buffer");
    }
    if (result == COMM_OK) {
        result = call_set_layout(&call, comm, &call.output, receive, receive_counts, receive_displacements,
                                 "receive buffer");
    }
    result = result == COMM_OK ? call_check_overlap(&call, comm, OWN_SAME) : result;
    call.stages_input = call.input.at == call.output.at;
    return result == COMM_OK ? call_submit(comm, &call) : result;
}

comm_result_t comm_scan(comm_t *comm, const void *send, void *receive, size_t count, comm_dtype_t dtype,
                        comm_op_t op, const comm_call_options_t *options)
{
    return equal_blocks("comm_scan", OP_KIND_SCAN, comm, send, receive, count, dtype, op, 0, options);
}

comm_result_t comm_exclusive_scan(comm_t *comm, const void *send, void *receive, size_t count,
                                  comm_dtype_t dtype, comm_op_t op, const comm_call_options_t *options)
{
    return equal_blocks("comm_exclusive_scan", OP_KIND_EXCLUSIVE_SCAN, comm, send, receive, count, dtype, op,
                        0, options);
}

comm_result_t comm_barrier(comm_t *comm, const comm_call_options_t *options)
{
    struct client_call call;
    comm_result_t result = call_begin(&call, "comm_barrier", OP_KIND_BARRIER, comm, COMM_U8, 0, options);
    if (result == COMM_OK && (call.options.request != NULL || call.options.queue != NULL)) {
        return call_submit(comm, &call);
    }
    return result == COMM_OK ? call_submit_and_sync(comm, &call) : result;
}
