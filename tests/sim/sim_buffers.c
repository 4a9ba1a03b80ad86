#include "tests/sim/sim_buffers.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "daemon/base/hash.h"
#include "tests/sim/data.h"

#define SIM_POISON 0xa5

/* --- Layouts --- */

static uint64_t draw(const struct sim_call *call, uint64_t what, uint64_t a, uint64_t b)
{
    uint64_t words[] = {call->layout_seed, what, a, b};
    return hash_bytes(7, words, sizeof words);
}

/* Returns how many elements go from one rank's input to another's output. For reduce_scatter and scatter,
 * `from` does not matter; for all_gather and gather, `to` does not matter. */
static uint64_t block_count(const struct sim_call *call, uint32_t from, uint32_t to)
{
    if (!call->has_layouts) {
        return call->count;
    }
    bool by_sender = call->kind == OP_KIND_ALL_GATHER || call->kind == OP_KIND_GATHER;
    bool by_both = call->kind == OP_KIND_ALL_TO_ALL;
    uint64_t number = draw(call, 1, by_sender || by_both ? from : 0, by_sender ? 0 : to);
    return number % 4 == 0 ? 0 : number / 4 % (call->count + 1);
}

uint64_t sim_own_count(const struct sim_op *op, uint32_t rank)
{
    const struct sim_call *call = &op->call;
    if (call->kind == OP_KIND_BARRIER) {
        return 0;
    }
    bool own = call->has_layouts && (call->kind == OP_KIND_GATHER || call->kind == OP_KIND_SCATTER);
    return own ? block_count(call, rank, rank) : call->count;
}

static void layout_new(struct sim_buffer *buffer, uint32_t block_count_)
{
    struct error error;
    size_t bytes = 2 * (size_t)block_count_ * sizeof(uint64_t);
    buffer->used = true;
    buffer->block_count = block_count_;
    buffer->counts = malloc(bytes);
    assert_non_null(buffer->counts);
    buffer->displacements = buffer->counts + block_count_;
    assert_int_equal(memory_wrap(buffer->counts, bytes, &buffer->layout_memory, &error), STATUS_OK);
}

/* Places the blocks one after the other. With layouts, their order is random, and there are gaps. */
static void place_blocks(const struct sim_op *op, uint32_t rank, struct sim_buffer *buffer, bool gaps)
{
    const struct sim_call *call = &op->call;
    uint32_t count = buffer->block_count;
    bool scrambled = call->has_layouts && op_kind_has_blocks(call->kind) && gaps;
    uint32_t step = scrambled ? (uint32_t)(draw(call, 2, rank, gaps) % count) : 0;
    uint64_t at = 0;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t block = (i + step) % count;
        at += scrambled ? draw(call, 3, rank, block) % 4 : 0;
        buffer->displacements[block] = at;
        at += buffer->counts[block];
    }
    buffer->elements = at + (scrambled ? 2 : 0);
}

/* Decides which buffers this rank has, and of which blocks. */
static void lay_out(struct sim_op *op, uint32_t rank)
{
    const struct sim_call *call = &op->call;
    struct sim_part *part = &op->parts[rank];
    uint32_t size = op->comm->size;
    bool is_root = call->root == rank;
    bool reads = true, writes = true, input_blocks = false, output_blocks = false;
    switch (call->kind) {
    case OP_KIND_BARRIER:
    case OP_KIND_SEND:
    case OP_KIND_RECEIVE:
        return;
    case OP_KIND_ALL_REDUCE:
    case OP_KIND_SCAN:
    case OP_KIND_EXCLUSIVE_SCAN:
        break;
    case OP_KIND_BROADCAST:
        reads = is_root;
        writes = !is_root;
        break;
    case OP_KIND_REDUCE:
        writes = is_root;
        break;
    case OP_KIND_ALL_GATHER:
        output_blocks = true;
        break;
    case OP_KIND_REDUCE_SCATTER:
        input_blocks = true;
        break;
    case OP_KIND_GATHER:
        writes = output_blocks = is_root;
        break;
    case OP_KIND_SCATTER:
        reads = input_blocks = is_root;
        break;
    case OP_KIND_ALL_TO_ALL:
        input_blocks = output_blocks = true;
        break;
    }
    bool has_blocks = op_kind_has_blocks(call->kind);
    if (reads) {
        layout_new(&part->input, input_blocks ? size : 1);
        for (uint32_t i = 0; i < part->input.block_count; i++) {
            part->input.counts[i] = input_blocks ? block_count(call, rank, i)
                                    : has_blocks ? block_count(call, rank, rank)
                                                 : call->count;
        }
        place_blocks(op, rank, &part->input, input_blocks && call->kind != OP_KIND_REDUCE_SCATTER);
    }
    if (writes) {
        layout_new(&part->output, output_blocks ? size : 1);
        for (uint32_t i = 0; i < part->output.block_count; i++) {
            part->output.counts[i] = output_blocks ? block_count(call, i, rank)
                                     : has_blocks  ? block_count(call, rank, rank)
                                                   : call->count;
        }
        place_blocks(op, rank, &part->output, output_blocks);
    }
}

/* --- Memory --- */

static void buffer_new(struct sim_buffer *buffer, enum dtype dtype)
{
    struct error error;
    size_t bytes = (size_t)buffer->elements * dtype_size_bytes(dtype) + 1;
    buffer->bytes = malloc(bytes);
    assert_non_null(buffer->bytes);
    memset(buffer->bytes, SIM_POISON, bytes);
    assert_int_equal(memory_wrap(buffer->bytes, bytes, &buffer->memory, &error), STATUS_OK);
}

static void buffer_keep(struct sim_buffer *buffer, enum dtype dtype)
{
    size_t bytes = (size_t)buffer->elements * dtype_size_bytes(dtype);
    buffer->original = malloc(bytes + 1);
    assert_non_null(buffer->original);
    memcpy(buffer->original, buffer->bytes, bytes);
}

/* Makes one buffer a block of the other, or the whole of it. */
static void share(struct sim_buffer *part, const struct sim_buffer *whole, uint32_t block, enum dtype dtype)
{
    part->offset_bytes = whole->displacements[whole->block_count == 1 ? 0 : block] * dtype_size_bytes(dtype);
    part->bytes = whole->bytes + part->offset_bytes;
    part->memory = memory_ref(whole->memory);
}

/* In place: whether the memory is the input's, and the output is a part of it. */
static bool input_is_whole(const struct sim_part *part)
{
    return part->input.elements > part->output.elements;
}

void sim_part_prepare(struct sim_op *op, uint32_t rank)
{
    const struct sim_call *call = &op->call;
    struct sim_part *part = &op->parts[rank];
    struct sim_buffer *input = &part->input, *output = &part->output;
    lay_out(op, rank);
    part->in_place = call->in_place && input->used && output->used && call->kind != OP_KIND_ALL_TO_ALL;
    if (part->in_place && input_is_whole(part)) {
        buffer_new(input, call->dtype);
        share(output, input, rank, call->dtype);
    } else if (part->in_place) {
        buffer_new(output, call->dtype);
        share(input, output, rank, call->dtype);
    } else {
        if (input->used) {
            buffer_new(input, call->dtype);
        }
        if (output->used) {
            buffer_new(output, call->dtype);
        }
    }
    if (input->used) {
        data_fill(call->dtype, call->reduce, op->comm->cluster->seed + op->seq, rank, input->elements,
                  input->bytes);
        buffer_keep(input, call->dtype);
    }
    if (output->used) {
        buffer_keep(output, call->dtype);
    }
    if (call->compression != COMPRESSION_NONE) {
        struct error error;
        part->residual = calloc(call->count + 1, sizeof *part->residual);
        assert_non_null(part->residual);
        assert_int_equal(memory_wrap(part->residual, (call->count + 1) * sizeof *part->residual,
                                     &part->residual_memory, &error),
                         STATUS_OK);
    }
}

static void buffer_release(struct sim_buffer *buffer, bool owns)
{
    memory_unref(buffer->memory);
    memory_unref(buffer->layout_memory);
    if (owns) {
        free(buffer->bytes);
    }
    free(buffer->original);
    free(buffer->counts);
}

void sim_part_release(struct sim_part *part)
{
    bool input_owns = !part->in_place || input_is_whole(part);
    buffer_release(&part->input, input_owns);
    buffer_release(&part->output, !part->in_place || !input_owns);
    memory_unref(part->residual_memory);
    free(part->residual);
}

/* --- Checks --- */

static bool part_succeeded(const struct sim_part *part)
{
    return part->posted && part->done && part->result.status == STATUS_OK;
}

/* No rank may be done before all ranks have posted the operation. */
static void check_all_posted(const struct sim_op *op)
{
    for (uint32_t i = 0; i < op->comm->size; i++) {
        if (!op->parts[i].posted) {
            fail_msg("%s operation %llu (%s): done, and rank %u has not posted it", op->comm->name,
                     (unsigned long long)op->seq, op_kind_text(op->call.kind), i);
        }
    }
}

static const unsigned char *original_at(const struct sim_op *op, const struct sim_buffer *buffer,
                                        uint32_t block)
{
    uint64_t begin = buffer->displacements[buffer->block_count == 1 ? 0 : block];
    return buffer->original + begin * dtype_size_bytes(op->call.dtype);
}

/* Checks that this rank's output is the reduction of its block of ranks first .. end - 1. */
static void check_reduced(const struct sim_op *op, uint32_t rank, uint32_t first, uint32_t end)
{
    const struct sim_call *call = &op->call;
    const struct sim_buffer *output = &op->parts[rank].output;
    const void **inputs = calloc(op->comm->size, sizeof *inputs);
    assert_non_null(inputs);
    for (uint32_t i = first; i < end; i++) {
        inputs[i - first] = original_at(op, &op->parts[i].input, rank);
    }
    data_check_reduced(call->dtype, call->reduce, end - first, inputs, end - first, output->counts[0],
                       output->bytes + output->displacements[0] * dtype_size_bytes(call->dtype));
    free(inputs);
}

static void check_copied(const struct sim_op *op, uint32_t rank, uint32_t block, uint32_t from,
                         uint32_t from_block)
{
    const struct sim_buffer *output = &op->parts[rank].output;
    size_t element = dtype_size_bytes(op->call.dtype);
    uint64_t count = output->counts[block];
    if (count > 0 && memcmp(output->bytes + output->displacements[block] * element,
                            original_at(op, &op->parts[from].input, from_block), count * element) != 0) {
        fail_msg("%s operation %llu (%s%s of %llu %s, root %u): block %u of rank %u is not rank %u's",
                 op->comm->name, (unsigned long long)op->seq, op_kind_text(op->call.kind),
                 op->call.has_layouts ? "_v" : "", (unsigned long long)op->call.count,
                 dtype_text(op->call.dtype), op->call.root, block, rank, from);
    }
}

/* Checks that nothing was written between the blocks. */
static void check_gaps(const struct sim_op *op, uint32_t rank)
{
    const struct sim_part *part = &op->parts[rank];
    const struct sim_buffer *output = &part->output;
    size_t element = dtype_size_bytes(op->call.dtype);
    if (!output->used || part->in_place) {
        return;
    }
    bool *written = calloc(output->elements + 1, sizeof *written);
    assert_non_null(written);
    bool nothing = op->call.kind == OP_KIND_EXCLUSIVE_SCAN && rank == 0;
    for (uint32_t i = 0; i < output->block_count && !nothing; i++) {
        for (uint64_t k = 0; k < output->counts[i]; k++) {
            written[output->displacements[i] + k] = true;
        }
    }
    for (uint64_t k = 0; k < output->elements; k++) {
        for (size_t byte = 0; byte < element && !written[k]; byte++) {
            if (output->bytes[k * element + byte] != SIM_POISON) {
                fail_msg("%s operation %llu (%s): rank %u: element %llu was written", op->comm->name,
                         (unsigned long long)op->seq, op_kind_text(op->call.kind), rank,
                         (unsigned long long)k);
            }
        }
    }
    assert_int_equal(output->bytes[output->elements * element], SIM_POISON);
    free(written);
}

static void check_part(const struct sim_op *op, uint32_t rank)
{
    uint32_t size = op->comm->size;
    switch (op->call.kind) {
    case OP_KIND_ALL_REDUCE:
        check_reduced(op, rank, 0, size);
        return;
    case OP_KIND_REDUCE:
        if (rank == op->call.root) {
            check_reduced(op, rank, 0, size);
        }
        return;
    case OP_KIND_REDUCE_SCATTER:
        check_reduced(op, rank, 0, size);
        return;
    case OP_KIND_SCAN:
        check_reduced(op, rank, 0, rank + 1);
        return;
    case OP_KIND_EXCLUSIVE_SCAN:
        if (rank > 0) {
            check_reduced(op, rank, 0, rank);
        }
        return;
    case OP_KIND_BROADCAST:
        if (rank != op->call.root) {
            check_copied(op, rank, 0, op->call.root, 0);
        }
        return;
    case OP_KIND_SCATTER:
        check_copied(op, rank, 0, op->call.root, rank);
        return;
    case OP_KIND_GATHER:
        for (uint32_t i = 0; i < size && rank == op->call.root; i++) {
            check_copied(op, rank, i, i, 0);
        }
        return;
    case OP_KIND_ALL_GATHER:
        for (uint32_t i = 0; i < size; i++) {
            check_copied(op, rank, i, i, 0);
        }
        return;
    case OP_KIND_ALL_TO_ALL:
        for (uint32_t i = 0; i < size; i++) {
            check_copied(op, rank, i, i, rank);
        }
        return;
    case OP_KIND_BARRIER:
    case OP_KIND_SEND:
    case OP_KIND_RECEIVE:
        return;
    }
}

/* Checks that all ranks hold the same bits. */
static void check_identical(const struct sim_op *op)
{
    const struct sim_part *first = NULL;
    size_t bytes = (size_t)op->call.count * dtype_size_bytes(op->call.dtype);
    for (uint32_t i = 0; i < op->comm->size; i++) {
        const struct sim_part *part = &op->parts[i];
        if (!part_succeeded(part)) {
            continue;
        }
        first = first == NULL ? part : first;
        if (memcmp(part->output.bytes, first->output.bytes, bytes) != 0) {
            fail_msg("%s operation %llu (%s %s %s of %llu): rank %u has other bits than those before it",
                     op->comm->name, (unsigned long long)op->seq, op_kind_text(op->call.kind),
                     dtype_text(op->call.dtype), reduce_text(op->call.reduce),
                     (unsigned long long)op->call.count, i);
        }
    }
}

void sim_op_check(const struct sim_op *op)
{
    bool any = false;
    for (uint32_t i = 0; i < op->comm->size; i++) {
        const struct sim_part *part = &op->parts[i];
        if (part->posted && part->input.used && !part->in_place) {
            assert_memory_equal(part->input.bytes, part->input.original,
                                part->input.elements * dtype_size_bytes(op->call.dtype));
        }
        if (part->posted) {
            check_gaps(op, i);
        }
        any = any || part_succeeded(part);
    }
    if (!any) {
        return;
    }
    check_all_posted(op);
    bool identical = op->call.kind == OP_KIND_ALL_REDUCE;
    bool checked = false;
    for (uint32_t i = 0; i < op->comm->size; i++) {
        if (!part_succeeded(&op->parts[i]) || op->call.compression != COMPRESSION_NONE) {
            continue;
        }
        if (!identical || !checked) {
            check_part(op, i);
        }
        checked = true;
    }
    if (identical) {
        check_identical(op);
    }
}
