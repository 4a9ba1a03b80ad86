#include "client/lib/layout.h"

#include <string.h>

#include "client/lib/internal.h"

bool layout_is_used(const struct client_call *call)
{
    return call->input.counts != NULL || call->output.counts != NULL;
}

size_t layout_bytes(uint32_t rank_count)
{
    return 2 * (size_t)rank_count * sizeof(uint64_t);
}

void layout_write(uint64_t *numbers, const struct call_buffer *buffer, const struct client_memory *memory,
                  uint32_t rank_count, size_t element_bytes)
{
    uint64_t packed = 0;
    bool is_staged = memory != NULL && memory->slab != NULL;
    for (uint32_t rank = 0; buffer->counts != NULL && rank < rank_count; rank++) {
        uint64_t begin = packed;
        if (buffer->displacements != NULL) {
            begin = buffer->displacements[rank];
        } else if (buffer->list != NULL && !is_staged && buffer->counts[rank] > 0) {
            begin = ((uintptr_t)buffer->list[rank] - (uintptr_t)buffer->at) / element_bytes;
        }
        numbers[rank] = buffer->counts[rank];
        numbers[rank_count + rank] = begin;
        packed += buffer->counts[rank];
    }
}

size_t layout_span_bytes(const struct call_buffer *buffer, uint32_t rank_count, size_t element_bytes)
{
    size_t span_bytes = 0;
    for (uint32_t rank = 0; rank < rank_count; rank++) {
        if (buffer->counts[rank] == 0) {
            continue;
        }
        size_t begin = (uintptr_t)buffer->list[rank] - (uintptr_t)buffer->at;
        size_t end = begin + buffer->counts[rank] * element_bytes;
        if (begin % element_bytes != 0) {
            return 0;
        }
        span_bytes = end > span_bytes ? end : span_bytes;
    }
    return span_bytes;
}

void layout_copy_in(unsigned char *staged, const struct call_buffer *buffer, uint32_t rank_count,
                    size_t element_bytes)
{
    if (buffer->list == NULL) {
        memcpy(staged, buffer->at, buffer->elements * element_bytes);
        return;
    }
    for (uint32_t rank = 0; rank < rank_count; rank++) {
        size_t size_bytes = buffer->counts[rank] * element_bytes;
        if (size_bytes > 0) {
            memcpy(staged, buffer->list[rank], size_bytes);
            staged += size_bytes;
        }
    }
}

static void add_copy(struct client_op *op, void *to, const unsigned char *from, size_t size_bytes)
{
    if (size_bytes > 0) {
        op->copies[op->copy_count++] = (struct client_copy){.to = to, .from = from, .size_bytes = size_bytes};
    }
}

void layout_plan_copies(struct client_op *op, const struct client_call *call, uint32_t rank_count,
                        const unsigned char *staged)
{
    const struct call_buffer *output = &call->output;
    size_t element_bytes = dtype_size_bytes(call->terms.dtype);
    unsigned char *base = output->at;
    if (call->keeps_output) {
        return;
    }
    if (output->list == NULL && output->displacements == NULL) {
        add_copy(op, base, staged, output->elements * element_bytes);
        return;
    }
    size_t packed = 0;
    for (uint32_t rank = 0; rank < rank_count; rank++) {
        size_t size_bytes = output->counts[rank] * element_bytes;
        if (output->list != NULL) {
            add_copy(op, output->list[rank], staged + packed, size_bytes);
        } else {
            size_t begin = output->displacements[rank] * element_bytes;
            add_copy(op, base + begin, staged + begin, size_bytes);
        }
        packed += size_bytes;
    }
}
