#include "daemon/exec/exec_internal.h"

/*
 * Determines where a slice's vectors lie: in the ranks' buffers, or in the lane's memory, as its plan says.
 */

struct lay_out {
    struct exec_lane *lane;
    const struct exec_op *op;
    struct exec_vector *vector;
};

static void add_extent(void *context, const struct coll_stage_place *place, uint64_t count_elements)
{
    const struct lay_out *to = context;
    vector_add(to->vector, stage_at(to->lane, to->op, place), count_elements);
}

/* If one rank's input is the node's contribution, it is not copied: the vector's initial values are read from
 * it. */
static enum status lay_out_input(struct exec_lane *lane, const struct exec_op *op, struct error *error)
{
    struct lay_out to = {.lane = lane, .op = op, .vector = &lane->lent.from};
    lane->lent.count = 0;
    if (!coll_stage_lends_input(&op->stage)) {
        return STATUS_OK;
    }
    enum status status = lane_table(lane, to.vector, op->stage.element_bytes,
                                    coll_stage_extents_max(&op->stage, COLL_WORK), error);
    if (status == STATUS_OK) {
        coll_stage_lay_out_input(&op->stage, lane->slice, add_extent, &to);
        vector_lend(&lane->lent);
    }
    return status;
}

/* Scratch memory lies behind the plan's memory. Most algorithms need none. */
static enum status lay_out_scratch(struct exec_lane *lane, const struct exec_op *op, uint64_t begin,
                                   uint64_t elements, struct error *error)
{
    const struct coll_stage_place place = {.buffer = COLL_STAGE_MEMORY, .offset_elements = begin};
    enum status status = lane_table(lane, &lane->vectors[COLL_SCRATCH], op->stage.element_bytes, 1, error);
    if (status == STATUS_OK && elements > 0) {
        vector_add(&lane->vectors[COLL_SCRATCH], stage_at(lane, op, &place), elements);
    }
    return status;
}

/* The elements of the slice's part of the residual, if it is copied. */
static uint64_t residual_elements(const struct exec_lane *lane, const struct exec_op *op)
{
    const struct coll_stage_op *stage = &op->stage;
    if (!compressed_copies_residual(lane->comm, op)) {
        return 0;
    }
    bool last = lane->slice + 1 == stage->slice_count;
    uint64_t end = last ? stage->total_elements : coll_stage_slice_offset(stage, lane->slice + 1);
    return end - lane->offset_elements;
}

/* The slice's part of the residual lies behind the scratch memory. */
static void lay_out_residual(struct exec_lane *lane, const struct exec_op *op, uint64_t begin,
                             uint64_t elements)
{
    const struct coll_stage_place place = {.buffer = COLL_STAGE_MEMORY, .offset_elements = begin};
    lane->residual = elements > 0 ? (float *)(void *)stage_at(lane, op, &place) : NULL;
    lane->residual_bytes = elements * sizeof(float);
}

/* Elements of a slice in the lane's memory, one part behind the other. */
struct parts {
    uint64_t memory, scratch, residual;
};

static struct parts parts_of(const struct exec_lane *lane, const struct exec_op *op)
{
    bool has_scratch = op->algorithm != NULL && op->algorithm->scratch_elements != NULL;
    return (struct parts){.memory = coll_stage_memory_elements(&op->stage, lane->slice),
                          .scratch = has_scratch ? op->algorithm->scratch_elements(&lane->call) : 0,
                          .residual = residual_elements(lane, op)};
}

enum status lane_prepare(struct exec_lane *lane, const struct exec_op *op, struct error *error)
{
    lane->call = coll_stage_call(&op->stage, lane->slice, lane->offsets);
    lane->call.root_node = op_kind_has_root(op->call.terms.kind) ? op->root_node : 0;
    lane->call.blocks_are_equal = op->blocks_are_equal;
    lane->offset_elements = coll_stage_slice_offset(&op->stage, lane->slice);
    struct parts parts = parts_of(lane, op);
    return lane_reserve(lane, (parts.memory + parts.scratch + parts.residual) * op->stage.element_bytes,
                        error);
}

enum status lane_begin_lay_out(struct exec_lane *lane, const struct exec_op *op, struct error *error)
{
    struct parts parts = parts_of(lane, op);
    enum status status = STATUS_OK;
    for (enum coll_space space = COLL_WORK; space <= COLL_INPUT && status == STATUS_OK; space++) {
        uint32_t extents = coll_stage_extents_max(&op->stage, space);
        status = lane_table(lane, &lane->vectors[space], op->stage.element_bytes, extents, error);
    }
    if (status == STATUS_OK) {
        lay_out_residual(lane, op, parts.memory + parts.scratch, parts.residual);
        status = lay_out_input(lane, op, error);
    }
    return status == STATUS_OK ? lay_out_scratch(lane, op, parts.memory, parts.scratch, error) : status;
}

bool lane_lay_out(struct exec_lane *lane, const struct exec_op *op)
{
    for (; lane->space <= COLL_INPUT; lane->space++) {
        struct lay_out to = {.lane = lane, .op = op, .vector = &lane->vectors[lane->space]};
        if (!coll_stage_lay_out(&op->stage, lane->slice, lane->space, &lane->cursor, add_extent, &to)) {
            return false;
        }
        lane->cursor = (struct coll_stage_cursor){0};
    }
    return true;
}
