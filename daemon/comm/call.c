#include "daemon/comm/call.h"

#include <stdlib.h>
#include <string.h>

#include "daemon/base/budget.h"
#include "daemon/base/checked.h"
#include "daemon/base/hash.h"

#define CALL_TOP_K_DEFAULT_PERMILLE 10

/* --- Layouts --- */

/* Copies the numbers first, as the client may change them at any time. */
static enum status read_layout(const struct comms_op_range *range, const char *what, uint32_t size,
                               uint64_t **out, struct error *error)
{
    size_t bytes = 2 * (size_t)size * sizeof(uint64_t);
    if (range->memory == NULL) {
        return error_set(error, STATUS_INVALID_ARGUMENT, "no counts for the %s", what);
    }
    bool here = memory_gpu(range->memory) == MEMORY_OF_HOST;
    const void *from = here ? memory_range(range->memory, range->offset_bytes, bytes) : NULL;
    if (from == NULL) {
        return error_set(error, STATUS_INVALID_ARGUMENT, "counts for the %s: not within memory of the host",
                         what);
    }
    uint64_t *layout = malloc(bytes);
    if (layout == NULL) {
        return error_set(error, STATUS_NO_MEMORY, "no memory for the counts of %u ranks", size);
    }
    memcpy(layout, from, bytes);
    *out = layout;
    return memory_check(range->memory, error);
}

/* How many elements of the buffer the blocks reach. Checks that the counts do not overflow. */
static enum status layout_extent(const uint64_t *layout, const char *what, uint32_t size, uint64_t *extent,
                                 struct error *error)
{
    uint64_t total = 0;
    *extent = 0;
    for (uint32_t rank = 0; rank < size; rank++) {
        uint64_t count = layout[rank];
        uint64_t end;
        if (!checked_add_u64(total, count, &total) || !checked_add_u64(layout[size + rank], count, &end) ||
            total > MEMORY_MAX_BYTES || end > MEMORY_MAX_BYTES) {
            return error_set(error, STATUS_INVALID_ARGUMENT,
                             "%s: the block of rank %u, %llu elements from %llu on, is too large", what, rank,
                             (unsigned long long)count, (unsigned long long)layout[size + rank]);
        }
        if (count > 0 && end > *extent) {
            *extent = end;
        }
    }
    return STATUS_OK;
}

/* --- Buffers --- */

/* Number of elements in this rank's buffers; 0 if a buffer is not used. */
struct call_extents {
    bool reads;
    bool writes;
    uint64_t input_elements;
    uint64_t output_elements;
};

static enum status equal_extent(const struct comms_op *op, uint32_t size, uint64_t *extent,
                                struct error *error)
{
    if (!checked_mul_u64(op->terms.count_elements, size, extent)) {
        return error_set(error, STATUS_INVALID_ARGUMENT, "%u blocks of %llu elements are too many", size,
                         (unsigned long long)op->terms.count_elements);
    }
    return STATUS_OK;
}

/* Of a buffer with a block for each rank. *layout: gets the counts that the call gives, if it gives any. */
static enum status blocks_extent(const struct comms_op *op, const struct comms_op_range *given,
                                 const char *what, uint32_t size, uint64_t **layout, uint64_t *extent,
                                 struct error *error)
{
    if (!op->terms.has_layouts) {
        return equal_extent(op, size, extent, error);
    }
    enum status status = read_layout(given, what, size, layout, error);
    return status == STATUS_OK ? layout_extent(*layout, what, size, extent, error) : status;
}

/* The counts say how large this rank's own block is. */
static enum status own_extents(const struct comms_op *op, uint32_t rank, const struct comms_buffers *buffers,
                               struct call_extents *extents, struct error *error)
{
    if (op->terms.kind == OP_KIND_ALL_GATHER) {
        extents->input_elements = buffers->output_layout[rank];
    } else if (op->terms.kind == OP_KIND_REDUCE_SCATTER) {
        extents->output_elements = buffers->input_layout[rank];
    }
    const uint64_t *roots = op->terms.kind == OP_KIND_GATHER    ? buffers->output_layout
                            : op->terms.kind == OP_KIND_SCATTER ? buffers->input_layout
                                                                : NULL;
    if (roots != NULL && roots[rank] != op->terms.count_elements) {
        return error_set(error, STATUS_INVALID_ARGUMENT,
                         "the root's own block has %llu elements, its counts say %llu",
                         (unsigned long long)op->terms.count_elements, (unsigned long long)roots[rank]);
    }
    return STATUS_OK;
}

static enum status block_extents(const struct comms_op *op, uint32_t rank, uint32_t size,
                                 struct comms_buffers *buffers, struct call_extents *extents,
                                 struct error *error)
{
    enum status status = STATUS_OK;
    if (extents->reads && op_kind_has_input_blocks(op->terms.kind)) {
        status = blocks_extent(op, &op->input_layout, "input", size, &buffers->input_layout,
                               &extents->input_elements, error);
    }
    if (status == STATUS_OK && extents->writes && op_kind_has_output_blocks(op->terms.kind)) {
        status = blocks_extent(op, &op->output_layout, "output", size, &buffers->output_layout,
                               &extents->output_elements, error);
    }
    return status == STATUS_OK && op->terms.has_layouts ? own_extents(op, rank, buffers, extents, error)
                                                        : status;
}

static enum status call_extents(const struct comms_op *op, uint32_t rank, uint32_t size,
                                struct comms_buffers *buffers, struct call_extents *extents,
                                struct error *error)
{
    enum op_kind kind = op->terms.kind;
    bool is_root = rank == op->terms.root_rank;
    bool copies = kind == OP_KIND_BROADCAST && op->output.memory != NULL; /* on the root, too */
    *extents = (struct call_extents){.reads = op_kind_reads(kind, is_root),
                                     .writes = op_kind_writes(kind, is_root) || copies,
                                     .input_elements = op->terms.count_elements,
                                     .output_elements = op->terms.count_elements};
    return op_kind_has_blocks(kind) ? block_extents(op, rank, size, buffers, extents, error) : STATUS_OK;
}

static bool is_on_gpu(const struct memory *memory)
{
    return memory != NULL && memory_gpu(memory) != MEMORY_OF_HOST;
}

/* Each buffer of a rank must be on the host, or on the same GPU as its other buffers. */
static enum status check_place(struct comms_buffers *buffers, struct error *error)
{
    const struct memory *memories[] = {buffers->exec.input_memory, buffers->exec.output_memory,
                                       buffers->exec.residual_memory};
    struct exec_rank *exec = &buffers->exec;
    for (size_t i = 0; i < sizeof memories / sizeof memories[0]; i++) {
        if (!is_on_gpu(memories[i])) {
            continue;
        }
        uint32_t gpu = (uint32_t)memory_gpu(memories[i]);
        if (exec->on_gpu && gpu != exec->gpu) {
            return error_set(error, STATUS_INVALID_ARGUMENT, "its buffers are on different GPUs, %u and %u",
                             exec->gpu, gpu);
        }
        exec->on_gpu = true;
        exec->gpu = gpu;
    }
    exec->input_on_host = !is_on_gpu(memories[0]);
    exec->output_on_host = !is_on_gpu(memories[1]);
    exec->residual_on_host = !is_on_gpu(memories[2]);
    return STATUS_OK;
}

/* Kernels read and write whole elements: a misaligned access breaks the GPU for all its users. */
static enum status check_alignment(const struct comms_op *op, const struct exec_rank *buffers,
                                   struct error *error)
{
    bool in_parts = op->terms.dtype == DTYPE_C64 || op->terms.dtype == DTYPE_C128;
    size_t alignment = dtype_size_bytes(op->terms.dtype) / (in_parts ? 2 : 1);
    bool input = buffers->input_on_host || (uintptr_t)buffers->input % alignment == 0;
    bool output = buffers->output_on_host || (uintptr_t)buffers->output % alignment == 0;
    if (!input || !output) {
        return error_set(error, STATUS_INVALID_ARGUMENT,
                         "%s: memory on a GPU that is not aligned to elements of %s",
                         input ? "output" : "input", dtype_text(op->terms.dtype));
    }
    return STATUS_OK;
}

/* Checks and references one buffer; *out stays null if none of it is used. */
static enum status take_range(const struct comms_op_range *range, const char *what, uint64_t elements,
                              uint64_t element_bytes, struct memory **memory, void **out, struct error *error)
{
    uint64_t size_bytes;
    if (!checked_mul_u64(elements, element_bytes, &size_bytes) || size_bytes > MEMORY_MAX_BYTES) {
        return error_set(error, STATUS_INVALID_ARGUMENT, "%s: %llu elements of %llu bytes are too many", what,
                         (unsigned long long)elements, (unsigned long long)element_bytes);
    }
    if (size_bytes == 0) {
        return STATUS_OK;
    }
    if (range->memory == NULL) {
        return error_set(error, STATUS_INVALID_ARGUMENT, "the operation needs an %s, and there is none",
                         what);
    }
    *out = memory_range(range->memory, range->offset_bytes, size_bytes);
    if (*out == NULL) {
        return error_set(error, STATUS_INVALID_ARGUMENT,
                         "%s: %llu bytes at offset %llu lie beyond the memory of %llu bytes", what,
                         (unsigned long long)size_bytes, (unsigned long long)range->offset_bytes,
                         (unsigned long long)memory_size_bytes(range->memory));
    }
    enum status status = memory_check(range->memory, error);
    if (status == STATUS_OK) {
        *memory = memory_ref(range->memory);
    }
    return status;
}

/* For buffers on a GPU: lets its streams use the words of the client's stream. */
static void find_words(struct comms_buffers *buffers)
{
    struct comms_fences *fences = buffers->fences;
    const struct memory *of_gpu =
        buffers->exec.input_memory != NULL ? buffers->exec.input_memory : buffers->exec.output_memory;
    if (!is_on_gpu(of_gpu)) {
        return;
    }
    comms_fences_find(fences, of_gpu);
    buffers->exec.ended_gpu_word = fences->ended_gpu_word;
    buffers->exec.ended_value = fences->ended_value;
    buffers->exec.ended_by_gpu = &fences->ended_by_gpu;
}

static enum status take_buffers(const struct comms_op *op, uint32_t rank, uint32_t size,
                                struct comms_buffers *buffers, struct error *error)
{
    struct call_extents extents;
    size_t element_bytes = dtype_size_bytes(op->terms.dtype);
    void *input = NULL, *output = NULL, *residual = NULL;
    enum status status = call_extents(op, rank, size, buffers, &extents, error);
    if (status == STATUS_OK && extents.reads) {
        status = take_range(&op->input, "input", extents.input_elements, element_bytes,
                            &buffers->exec.input_memory, &input, error);
    }
    if (status == STATUS_OK && extents.writes) {
        status = take_range(&op->output, "output", extents.output_elements, element_bytes,
                            &buffers->exec.output_memory, &output, error);
    }
    if (status == STATUS_OK && op->residual.memory != NULL) {
        status = take_range(&op->residual, "residual", op->terms.count_elements, sizeof(float),
                            &buffers->exec.residual_memory, &residual, error);
    }
    if (status == STATUS_OK && (uintptr_t)residual % sizeof(float) != 0) {
        status = error_set(error, STATUS_INVALID_ARGUMENT, "the residual is not aligned to its elements");
    }
    if (status != STATUS_OK) {
        return status;
    }
    uint64_t *in = buffers->input_layout, *out = buffers->output_layout;
    buffers->exec = (struct exec_rank){.input = input,
                                       .output = output,
                                       .factor = op->factor,
                                       .count_elements = op->terms.count_elements,
                                       .input_layout = {in, in == NULL ? NULL : in + size},
                                       .output_layout = {out, out == NULL ? NULL : out + size},
                                       .residual = residual,
                                       .input_memory = buffers->exec.input_memory,
                                       .output_memory = buffers->exec.output_memory,
                                       .residual_memory = buffers->exec.residual_memory,
                                       .input_bytes = extents.input_elements * element_bytes,
                                       .output_bytes = extents.output_elements * element_bytes,
                                       .residual_bytes = op->terms.count_elements * sizeof(float)};
    if (buffers->fences != NULL) {
        buffers->exec.waits = buffers->fences->waits;
        buffers->exec.wait_count = buffers->fences->wait_count;
    }
    status = check_place(buffers, error);
    if (status == STATUS_OK && buffers->fences != NULL && buffers->exec.on_gpu) {
        find_words(buffers);
    }
    return status == STATUS_OK ? check_alignment(op, &buffers->exec, error) : status;
}

void comms_buffers_release(struct comms_buffers *buffers)
{
    memory_unref(buffers->exec.input_memory);
    memory_unref(buffers->exec.output_memory);
    memory_unref(buffers->exec.residual_memory);
    comms_fences_end(buffers->fences); /* last: the client may free the memory once it sees the word */
    free(buffers->input_layout);
    free(buffers->output_layout);
    *buffers = (struct comms_buffers){0};
}

void comms_buffers_free(struct comms_buffers *buffers)
{
    if (buffers != NULL) {
        struct budget_account *account = buffers->account;
        uint64_t charged_bytes = buffers->charged_bytes;
        comms_buffers_release(buffers);
        budget_release(account, BUDGET_OPERATIONS, charged_bytes);
        free(buffers);
    }
}

/* --- */

static enum status check_reduction(const struct comms_op *op, struct error *error)
{
    bool is_scan = op_kind_is_scan(op->terms.kind);
    if (!reduce_is_defined(op->terms.dtype, op->terms.reduce) ||
        (is_scan && op->terms.reduce == REDUCE_AVG)) {
        return error_set(error, STATUS_UNSUPPORTED, "%s: %s of %s has no meaning",
                         op_kind_text(op->terms.kind), reduce_text(op->terms.reduce),
                         dtype_text(op->terms.dtype));
    }
    return STATUS_OK;
}

static enum status check_compression(const struct comms_op *op, struct error *error)
{
    if (op->terms.compression == COMPRESSION_NONE) {
        return STATUS_OK;
    }
    if (op->terms.kind != OP_KIND_ALL_REDUCE || op->terms.dtype != DTYPE_F32 ||
        (op->terms.reduce != REDUCE_SUM && op->terms.reduce != REDUCE_AVG) || op->terms.bucket_ops > 1) {
        return error_set(error, STATUS_UNSUPPORTED,
                         "only all_reduces of f32 with sum or avg, not in a group, can be compressed");
    }
    return STATUS_OK;
}

static enum status check_arguments(const struct comms_op *op, uint32_t size, struct error *error)
{
    if (op_kind_has_root(op->terms.kind) && op->terms.root_rank >= size) {
        return error_set(error, STATUS_INVALID_ARGUMENT, "the root is rank %u, but there are %u ranks",
                         op->terms.root_rank, size);
    }
    if (op->terms.has_layouts && !op_kind_has_blocks(op->terms.kind)) {
        return error_set(error, STATUS_INVALID_ARGUMENT, "%s has no blocks to count",
                         op_kind_text(op->terms.kind));
    }
    if (op->terms.kind == OP_KIND_SEND && op->peer_rank >= size) {
        return error_set(error, STATUS_INVALID_ARGUMENT, "send to rank %u, but there are %u ranks",
                         op->peer_rank, size);
    }
    if (op->terms.kind == OP_KIND_RECEIVE && op->peer_rank >= size && op->peer_rank != COMM_ANY_SOURCE_RANK) {
        return error_set(error, STATUS_INVALID_ARGUMENT, "recv from rank %u, but there are %u ranks",
                         op->peer_rank, size);
    }
    enum status status = op_kind_reduces(op->terms.kind) ? check_reduction(op, error) : STATUS_OK;
    return status == STATUS_OK ? check_compression(op, error) : status;
}

static uint64_t counts_hash(const struct comms_op *op, const struct comms_buffers *buffers, uint32_t size)
{
    const uint64_t *counts = op->terms.kind == OP_KIND_ALL_GATHER       ? buffers->output_layout
                             : op->terms.kind == OP_KIND_REDUCE_SCATTER ? buffers->input_layout
                                                                        : NULL;
    return counts == NULL ? 0 : hash_bytes(1, counts, size * sizeof *counts) | 1;
}

/* What the other ranks must agree on. */
static void state_terms(const struct comms_op *op, uint32_t size, const struct comms_buffers *buffers,
                        struct op_terms *terms)
{
    bool compressed = op->terms.compression != COMPRESSION_NONE;
    *terms = op->terms;
    terms->dtype = op->terms.kind == OP_KIND_BARRIER ? DTYPE_U8 : terms->dtype;
    terms->reduce = op_kind_reduces(op->terms.kind) ? terms->reduce : REDUCE_SUM;
    terms->count_elements =
        op->terms.kind == OP_KIND_BARRIER || op->terms.has_layouts ? 0 : terms->count_elements;
    terms->root_rank = op_kind_has_root(op->terms.kind) ? terms->root_rank : 0;
    terms->has_residual = compressed && op->residual.memory != NULL;
    terms->bucket_ops = terms->bucket_ops > 1 ? terms->bucket_ops : 1;
    terms->hash = op->terms.has_layouts ? counts_hash(op, buffers, size) : 0;
    if (op->terms.compression != COMPRESSION_TOP_K) {
        terms->top_k_permille = 0;
    } else if (terms->top_k_permille == 0) {
        terms->top_k_permille = CALL_TOP_K_DEFAULT_PERMILLE;
    }
}

enum status comms_call_check(const struct comms_op *op, uint32_t rank, uint32_t size, struct op_terms *terms,
                             struct comms_buffers *buffers, struct error *error)
{
    *buffers = (struct comms_buffers){0};
    enum status status = comms_fences_take(op->waits, op->wait_count, &op->ended, &buffers->fences, error);
    if (status == STATUS_OK) {
        status = check_arguments(op, size, error);
    }
    if (status == STATUS_OK) {
        status = take_buffers(op, rank, size, buffers, error);
    }
    if (status != STATUS_OK) {
        comms_buffers_release(buffers);
        return status;
    }
    state_terms(op, size, buffers, terms);
    return STATUS_OK;
}

enum status comms_call_check_placed(const struct comms_op *op, uint32_t size,
                                    const struct comms_cell_place *place, struct op_terms *terms,
                                    struct comms_buffers *buffers, struct error *error)
{
    *buffers = (struct comms_buffers){.exec = {.input = place->input,
                                               .output = place->output,
                                               .factor = op->factor,
                                               .count_elements = op->terms.count_elements,
                                               .input_on_host = true,
                                               .output_on_host = true,
                                               .residual_on_host = true}};
    enum status status = check_arguments(op, size, error);
    if (status == STATUS_OK) {
        state_terms(op, size, buffers, terms);
    }
    return status;
}
