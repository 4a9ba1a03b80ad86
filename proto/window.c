#include "proto/window.h"

/* How many blocks the input and the output have. Returns false if the kind has no window. */
static bool blocks_of(enum op_kind kind, uint32_t ranks, struct window_shape *shape)
{
    shape->input_blocks = shape->output_blocks = 1;
    shape->has_blocks =
        kind == OP_KIND_ALL_GATHER || kind == OP_KIND_REDUCE_SCATTER || kind == OP_KIND_ALL_TO_ALL;
    switch (kind) {
    case OP_KIND_ALL_GATHER:
        shape->output_blocks = ranks;
        return true;
    case OP_KIND_REDUCE_SCATTER:
        shape->input_blocks = ranks;
        return true;
    case OP_KIND_ALL_TO_ALL:
        shape->input_blocks = shape->output_blocks = ranks;
        return true;
    case OP_KIND_ALL_REDUCE:
    case OP_KIND_REDUCE:
    case OP_KIND_BROADCAST:
        return true;
    case OP_KIND_BARRIER:
    case OP_KIND_GATHER:
    case OP_KIND_SCATTER:
    case OP_KIND_SCAN:
    case OP_KIND_EXCLUSIVE_SCAN:
    case OP_KIND_SEND:
    case OP_KIND_RECEIVE:
        break;
    }
    return false;
}

bool window_shape_of(const struct op_terms *terms, uint32_t ranks, struct window_shape *out)
{
    uint64_t element_bytes = dtype_size_bytes(terms->dtype);
    *out = (struct window_shape){.count_elements = terms->count_elements};
    if (element_bytes == 0 || terms->has_layouts || terms->bucket_ops > 1 ||
        terms->compression != COMPRESSION_NONE || !blocks_of(terms->kind, ranks, out)) {
        return false;
    }
    uint32_t blocks = out->input_blocks > out->output_blocks ? out->input_blocks : out->output_blocks;
    uint64_t part_bytes = WINDOW_SLICE_BYTES / blocks;
    out->slot_elements = part_bytes / element_bytes;
    if (part_bytes < WINDOW_PART_MIN_BYTES) {
        return false;
    }
    out->slice_count = terms->count_elements / out->slot_elements +
                       (terms->count_elements % out->slot_elements != 0 ? 1 : 0);
    return out->slice_count >= WINDOW_SLICES_MIN && out->slice_count >= WINDOW_RANK_SLICES_MIN / ranks &&
           out->slice_count < UINT32_MAX;
}

void window_part(const struct window_shape *shape, uint64_t slice, uint64_t *offset_elements,
                 uint64_t *part_elements)
{
    if (shape->has_blocks) {
        uint64_t least = shape->count_elements / shape->slice_count;
        uint64_t larger = shape->count_elements % shape->slice_count;
        *offset_elements = least * slice + (slice < larger ? slice : larger);
        *part_elements = least + (slice < larger);
        return;
    }
    uint64_t left = shape->count_elements - slice * shape->slot_elements;
    *offset_elements = slice * shape->slot_elements;
    *part_elements = left < shape->slot_elements ? left : shape->slot_elements;
}
