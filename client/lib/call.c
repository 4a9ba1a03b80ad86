#include <stdlib.h>
#include <string.h>

#include "client/lib/internal.h"

/* Checks the arguments of calls, and converts them to struct client_call. */

/* A call that commd would refuse is refused here: it must not take an operation's number on this rank alone.
 */
static comm_result_t check_compression(const struct client_call *call, const struct comm_comm *comm)
{
    const struct op_terms *terms = &call->terms;
    if (terms->compression == COMPRESSION_NONE || op_kind_is_message(terms->kind)) {
        return COMM_OK;
    }
    bool is_known = terms->kind == OP_KIND_ALL_REDUCE && terms->dtype == DTYPE_F32 &&
                    (terms->reduce == REDUCE_SUM || terms->reduce == REDUCE_AVG);
    if (!is_known) {
        return error_report(COMM_UNSUPPORTED,
                            "%s on \"%s\": only all_reduces of f32 with sum or avg can be compressed",
                            call->name, comm->name);
    }
    if ((uintptr_t)call->options.residual % sizeof(float) != 0) {
        return error_report(COMM_INVALID_ARGUMENT,
                            "%s on \"%s\": the residual at %p is not aligned to its elements", call->name,
                            comm->name, (const void *)call->options.residual);
    }
    return COMM_OK;
}

comm_result_t call_begin(struct client_call *call, const char *name, enum op_kind kind,
                         const struct comm_comm *comm, comm_dtype_t dtype, size_t count,
                         const comm_call_options_t *options)
{
    *call = (struct client_call){.name = name,
                                 .terms = {.kind = kind, .count_elements = count, .bucket_ops = 1},
                                 .options = COMM_CALL_OPTIONS_INIT};
    comm_result_t result =
        options_copy(&call->options, sizeof call->options, options, name, "COMM_CALL_OPTIONS_INIT");
    if (result != COMM_OK) {
        return result;
    }
    if (call->options.request != NULL) { /* first: a caller that ignores the failure may wait for it */
        *call->options.request = NULL;
    }
    if (comm == NULL) {
        return error_report(COMM_INVALID_ARGUMENT, "%s: the communicator is a null pointer", name);
    }
    if (call->options.stream != NULL && call->options.stream != COMM_STREAM_NONE && comm->gpu == NULL) {
        return error_report(COMM_UNSUPPORTED,
                            "%s on \"%s\": a CUDA stream, but the communicator's rank is on the host", name,
                            comm->name);
    }
    if (call->options.persistent != 0 && call->options.request == NULL) {
        return error_report(COMM_INVALID_ARGUMENT,
                            "%s on \"%s\": persistent, but the argument for the handle is a null pointer",
                            name, comm->name);
    }
    if (call->options.queue != NULL && call->options.request != NULL && call->options.persistent == 0) {
        return error_report(COMM_INVALID_ARGUMENT,
                            "%s on \"%s\": a handle and a queue: only a persistent operation may have both",
                            name, comm->name);
    }
    if (!dtype_from_wire((unsigned)dtype, &call->terms.dtype)) {
        return error_report(COMM_INVALID_ARGUMENT, "%s on \"%s\": %d is no element type", name, comm->name,
                            (int)dtype);
    }
    if (!compression_from_wire((unsigned)call->options.compression, &call->terms.compression) ||
        call->options.top_k_permille > OP_TOP_K_MAX_PERMILLE) {
        return error_report(COMM_INVALID_ARGUMENT,
                            "%s on \"%s\": compression %d with %u of a thousand elements is not known", name,
                            comm->name, (int)call->options.compression, call->options.top_k_permille);
    }
    call->terms.top_k_permille = (uint16_t)call->options.top_k_permille;
    return check_compression(call, comm);
}

/* An integer's factor: what a double holds exactly. */
static bool factor_fits(const struct client_call *call)
{
    enum dtype dtype = call->terms.dtype;
    double factor = call->options.factor;
    bool is_integer = reduce_is_defined(dtype, REDUCE_BAND);
    return call->terms.reduce != REDUCE_PREMUL_SUM || !is_integer ||
           (factor >= -REDUCE_WHOLE_FACTOR_MAX && factor <= REDUCE_WHOLE_FACTOR_MAX &&
            (double)(int64_t)factor == factor);
}

comm_result_t call_set_reduce(struct client_call *call, const struct comm_comm *comm, comm_op_t op)
{
    if (!reduce_from_wire((unsigned)op, &call->terms.reduce)) {
        return error_report(COMM_INVALID_ARGUMENT, "%s on \"%s\": %d is no operator", call->name, comm->name,
                            (int)op);
    }
    bool is_scan = op_kind_is_scan(call->terms.kind);
    if (!reduce_is_defined(call->terms.dtype, call->terms.reduce) ||
        (is_scan && call->terms.reduce == REDUCE_AVG)) {
        return error_report(COMM_UNSUPPORTED, "%s on \"%s\": %s of %s has no meaning", call->name, comm->name,
                            reduce_text(call->terms.reduce), dtype_text(call->terms.dtype));
    }
    if (!factor_fits(call)) {
        return error_report(COMM_INVALID_ARGUMENT,
                            "%s on \"%s\": a factor of %g: premul_sum of %s takes a whole number of at most "
                            "2^53",
                            call->name, comm->name, call->options.factor, dtype_text(call->terms.dtype));
    }
    return check_compression(call, comm);
}

comm_result_t call_set_root(struct client_call *call, const struct comm_comm *comm, uint32_t root)
{
    if (root >= comm->size) {
        return error_report(COMM_INVALID_ARGUMENT,
                            "%s on \"%s\": the root is rank %u, but there are %u ranks", call->name,
                            comm->name, root, comm->size);
    }
    call->terms.root_rank = root;
    return COMM_OK;
}

static comm_result_t check_range(const struct client_call *call, const struct comm_comm *comm, const void *at,
                                 size_t elements, const char *which)
{
    size_t size_bytes;
    if (__builtin_mul_overflow(elements, dtype_size_bytes(call->terms.dtype), &size_bytes) ||
        size_bytes > PTRDIFF_MAX) {
        return error_report(COMM_INVALID_ARGUMENT,
                            "%s on \"%s\": the %s of %zu elements of %s exceeds the address space",
                            call->name, comm->name, which, elements, dtype_text(call->terms.dtype));
    }
    if (size_bytes > 0 && at == NULL) {
        return error_report(COMM_INVALID_ARGUMENT, "%s on \"%s\": the %s of %zu elements is a null pointer",
                            call->name, comm->name, which, elements);
    }
    if ((uintptr_t)at + size_bytes < size_bytes) {
        return error_report(COMM_INVALID_ARGUMENT,
                            "%s on \"%s\": the %s of %zu elements of %s at %p exceeds the address space",
                            call->name, comm->name, which, elements, dtype_text(call->terms.dtype), at);
    }
    return COMM_OK;
}

comm_result_t call_set_buffer(const struct client_call *call, const struct comm_comm *comm,
                              struct call_buffer *buffer, const void *at, size_t blocks, const char *which)
{
    size_t elements;
    if (__builtin_mul_overflow(call->terms.count_elements, blocks, &elements)) {
        return error_report(COMM_INVALID_ARGUMENT,
                            "%s on \"%s\": %zu blocks of %zu elements exceed the address space", call->name,
                            comm->name, blocks, (size_t)call->terms.count_elements);
    }
    *buffer = (struct call_buffer){.at = elements > 0 ? (void *)(uintptr_t)at : NULL, .elements = elements};
    return check_range(call, comm, at, elements, which);
}

size_t call_buffer_bytes(const struct client_call *call, const struct call_buffer *buffer)
{
    return buffer->at != NULL ? buffer->elements * dtype_size_bytes(call->terms.dtype) : 0;
}

static bool overlaps(const void *at, size_t size_bytes, const void *other, size_t other_bytes)
{
    uintptr_t begin = (uintptr_t)at, other_begin = (uintptr_t)other;
    return size_bytes > 0 && other_bytes > 0 && begin < other_begin + other_bytes &&
           other_begin < begin + size_bytes;
}

bool call_reads_output_of(const struct client_call *call, const struct client_call *other)
{
    return overlaps(call->input.at, call_buffer_bytes(call, &call->input), other->output.at,
                    call_buffer_bytes(other, &other->output));
}

static bool buffer_overlaps(const struct client_call *call, const struct call_buffer *buffer, uint32_t size,
                            const void *at, size_t size_bytes)
{
    size_t element_bytes = dtype_size_bytes(call->terms.dtype);
    for (uint32_t rank = 0; buffer->list != NULL && rank < size; rank++) {
        if (overlaps(buffer->list[rank], buffer->counts[rank] * element_bytes, at, size_bytes)) {
            return true;
        }
    }
    return buffer->list == NULL && overlaps(buffer->at, call_buffer_bytes(call, buffer), at, size_bytes);
}

bool call_works_on(const struct client_call *call, uint32_t size, const void *at, size_t size_bytes)
{
    return buffer_overlaps(call, &call->input, size, at, size_bytes) ||
           buffer_overlaps(call, &call->output, size, at, size_bytes);
}

size_t call_block_begin(const struct call_buffer *buffer, uint32_t rank)
{
    size_t begin = 0;
    if (buffer->displacements != NULL) {
        return buffer->displacements[rank];
    }
    for (uint32_t i = 0; i < rank; i++) {
        begin += buffer->counts[i];
    }
    return begin;
}

comm_result_t call_set_layout(const struct client_call *call, const struct comm_comm *comm,
                              struct call_buffer *buffer, const void *at, const size_t *counts,
                              const size_t *displacements, const char *which)
{
    size_t packed = 0;
    size_t extent = 0;
    if (counts == NULL) {
        return error_report(COMM_INVALID_ARGUMENT, "%s on \"%s\": the counts of the %s are a null pointer",
                            call->name, comm->name, which);
    }
    for (uint32_t rank = 0; rank < comm->size; rank++) {
        size_t begin = displacements != NULL ? displacements[rank] : packed;
        size_t end;
        if (__builtin_add_overflow(packed, counts[rank], &packed) ||
            __builtin_add_overflow(begin, counts[rank], &end)) {
            return error_report(COMM_INVALID_ARGUMENT,
                                "%s on \"%s\": the %s: the block of rank %u exceeds the address space",
                                call->name, comm->name, which, rank);
        }
        extent = counts[rank] > 0 && end > extent ? end : extent;
    }
    *buffer = (struct call_buffer){.at = extent > 0 ? (void *)(uintptr_t)at : NULL,
                                   .elements = extent,
                                   .counts = counts,
                                   .displacements = displacements};
    return check_range(call, comm, at, extent, which);
}

/* One block of a list. */
static comm_result_t check_block(const struct client_call *call, const struct comm_comm *comm, const void *at,
                                 size_t elements, uint32_t rank, const char *which)
{
    size_t size_bytes;
    if (elements > 0 && at == NULL) {
        return error_report(COMM_INVALID_ARGUMENT,
                            "%s on \"%s\": the %s: the block of rank %u, of %zu elements, is a null pointer",
                            call->name, comm->name, which, rank, elements);
    }
    if (__builtin_mul_overflow(elements, dtype_size_bytes(call->terms.dtype), &size_bytes) ||
        size_bytes > PTRDIFF_MAX || (uintptr_t)at + size_bytes < size_bytes) {
        return error_report(
            COMM_INVALID_ARGUMENT,
            "%s on \"%s\": the %s: the block of rank %u, %zu elements of %s at %p, exceeds the "
            "address space",
            call->name, comm->name, which, rank, elements, dtype_text(call->terms.dtype), at);
    }
    return COMM_OK;
}

comm_result_t call_set_list(const struct client_call *call, const struct comm_comm *comm,
                            struct call_buffer *buffer, void *const *list, const size_t *counts,
                            const char *which)
{
    size_t elements = 0, size_bytes = 0;
    unsigned char *lowest = NULL;
    if (counts == NULL || list == NULL) {
        return error_report(COMM_INVALID_ARGUMENT, "%s on \"%s\": the %s of the %s are a null pointer",
                            call->name, comm->name, counts == NULL ? "counts" : "pointers", which);
    }
    for (uint32_t rank = 0; rank < comm->size; rank++) {
        comm_result_t result = check_block(call, comm, list[rank], counts[rank], rank, which);
        if (result != COMM_OK) {
            return result;
        }
        if (__builtin_add_overflow(elements, counts[rank], &elements) ||
            __builtin_mul_overflow(elements, dtype_size_bytes(call->terms.dtype), &size_bytes) ||
            size_bytes > PTRDIFF_MAX) {
            return error_report(COMM_INVALID_ARGUMENT,
                                "%s on \"%s\": the %s: the blocks of ranks 0 to %u exceed the address space",
                                call->name, comm->name, which, rank);
        }
        unsigned char *at = list[rank];
        if (counts[rank] > 0 && (lowest == NULL || (uintptr_t)at < (uintptr_t)lowest)) {
            lowest = at;
        }
    }
    *buffer = (struct call_buffer){.at = lowest, .elements = elements, .counts = counts, .list = list};
    return COMM_OK;
}

comm_result_t call_check_own_count(const struct client_call *call, const struct comm_comm *comm,
                                   const size_t *counts)
{
    if (counts[comm->rank] == call->terms.count_elements) {
        return COMM_OK;
    }
    return error_report(COMM_INVALID_ARGUMENT,
                        "%s on \"%s\": the root's own block has %zu elements, but its count is %zu",
                        call->name, comm->name, (size_t)call->terms.count_elements, counts[comm->rank]);
}

comm_result_t call_check_overlap(const struct client_call *call, const struct comm_comm *comm,
                                 size_t own_block)
{
    size_t element_bytes = dtype_size_bytes(call->terms.dtype);
    const unsigned char *input = call->input.at;
    const unsigned char *output = call->output.at;
    size_t input_bytes = call->input.elements * element_bytes;
    size_t output_bytes = call->output.elements * element_bytes;
    if (input == NULL || output == NULL || input + input_bytes <= output || output + output_bytes <= input) {
        return COMM_OK;
    }
    size_t own = own_block == SIZE_MAX ? 0 : own_block * element_bytes;
    const unsigned char *whole = input_bytes > output_bytes ? input : output;
    const unsigned char *part = input_bytes > output_bytes ? output : input;
    if (part == whole + own) {
        return COMM_OK;
    }
    return error_report(COMM_INVALID_ARGUMENT,
                        "%s on \"%s\": the buffers of %zu bytes at %p and %zu at %p overlap, but not as this "
                        "operation allows in place",
                        call->name, comm->name, input_bytes, (const void *)input, output_bytes,
                        (const void *)output);
}

static void copy_layout(struct call_buffer *buffer, uint32_t size, size_t **space)
{
    if (buffer->counts == NULL) {
        return;
    }
    if (buffer->list != NULL) {
        memcpy(*space, buffer->list, size * sizeof *buffer->list);
        buffer->list = (void *const *)(void *)*space;
        *space += size;
    }
    memcpy(*space, buffer->counts, size * sizeof **space);
    buffer->counts = *space;
    *space += size;
    if (buffer->displacements != NULL) {
        memcpy(*space, buffer->displacements, size * sizeof **space);
        buffer->displacements = *space;
        *space += size;
    }
}

struct client_call *call_copy(const struct client_call *call, uint32_t size)
{
    _Static_assert(sizeof(size_t) == sizeof(void *), "counts and pointers share the space");
    size_t arrays = 0;
    arrays += call->input.list != NULL;
    arrays += call->output.list != NULL;
    arrays += call->input.counts != NULL;
    arrays += call->input.displacements != NULL;
    arrays += call->output.counts != NULL;
    arrays += call->output.displacements != NULL;
    struct client_call *copy = malloc(sizeof *copy + arrays * size * sizeof(size_t));
    if (copy != NULL) {
        size_t *space = (size_t *)(void *)(copy + 1);
        *copy = *call;
        copy_layout(&copy->input, size, &space);
        copy_layout(&copy->output, size, &space);
    }
    return copy;
}
