#include "daemon/exec/exec_internal.h"

/* Operations whose ranks have windows (proto/window.h): slices begin when all ranks have filled their slots.
 */

const struct exec_window *window_of_call(const struct exec_call *call)
{
    for (uint32_t i = 0; i < call->rank_count * call->terms.bucket_ops; i++) {
        if (call->ranks[i].window != NULL) {
            return call->ranks[i].window;
        }
    }
    return NULL;
}

uint64_t window_filled(const struct exec_op *op)
{
    uint64_t filled = op->stage.slice_count;
    for (uint32_t i = 0; i < op->call.rank_count; i++) {
        const struct exec_window *window = op->ranks[i].window;
        filled = window != NULL && window->filled < filled ? window->filled : filled;
    }
    return filled;
}

uint32_t window_missing(const struct exec_op *op, uint64_t slice)
{
    uint32_t rank = 0;
    while (rank < op->call.rank_count &&
           (op->ranks[rank].window == NULL || op->ranks[rank].window->filled > slice)) {
        rank++;
    }
    return rank;
}

uint64_t window_element(const struct exec_op *op, const struct coll_stage_place *place)
{
    const struct exec_window *window = op->ranks[place->rank].window;
    bool is_input = place->buffer == COLL_STAGE_INPUT;
    bool within =
        window != NULL && place->buffer != COLL_STAGE_MEMORY && (is_input ? window->input : window->output);
    if (!within) {
        return place->offset_elements;
    }
    const struct window_shape *shape = &window->shape;
    uint64_t offset, part;
    window_part(shape, op->slice, &offset, &part);
    return window_place(shape, is_input ? shape->input_blocks : shape->output_blocks, op->slice,
                        place->offset_elements / shape->count_elements) +
           place->offset_elements % shape->count_elements - offset;
}
