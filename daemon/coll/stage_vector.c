#include "daemon/coll/stage_internal.h"

/* The stage plans of kinds without blocks: all_reduce, reduce, broadcast. */

/* The slice's part of one of the operation's parts. */
struct share {
    uint32_t ranks; /* index of the part's first rank */
    uint64_t from;  /* first element within the part */
    uint64_t count_elements;
    uint64_t begin; /* first element within the slice */
};

static bool share_of(const struct stage_slice *slice, uint32_t part, uint64_t part_begin, struct share *out)
{
    const struct coll_stage_op *op = slice->op;
    uint64_t begin = slice->offset_elements, end = begin + slice->count_elements;
    uint64_t part_end = part_begin + op->part_counts[part];
    uint64_t from = begin > part_begin ? begin : part_begin;
    uint64_t to = end < part_end ? end : part_end;
    if (from >= to) {
        return false;
    }
    *out = (struct share){.ranks = part * op->map->local_count,
                          .from = from - part_begin,
                          .count_elements = to - from,
                          .begin = from - begin};
    return true;
}

/* Cuts the next strip off the share. */
static void share_cut(const struct coll_stage_op *op, struct share *share, struct coll_stage_cursor *at)
{
    uint64_t left = share->count_elements - at->within;
    share->from += at->within;
    share->begin += at->within;
    share->count_elements = stage_strip(op, left, op->map->local_count + UINT64_C(1));
    at->within += share->count_elements;
}

/* Where the share lies in the slice's vector. */
static struct coll_stage_place place_of(const struct stage_slice *slice, const struct share *share)
{
    const struct coll_stage_op *op = slice->op;
    if (op->vector_ranks > 0) {
        return stage_output(share->ranks + (uint32_t)(slice->index % op->vector_ranks), share->from);
    }
    bool is_root_node = op_kind_has_root(op->terms->kind) && stage_is_root_node(op);
    if (op->mode == COLL_STAGE_STAGED || (op->terms->kind == OP_KIND_REDUCE && !is_root_node)) {
        return stage_memory(share->begin);
    }
    if (op->terms->kind == OP_KIND_BROADCAST && is_root_node) {
        return stage_input(share->ranks + stage_root_local(op), share->from);
    }
    uint32_t local = op->terms->kind == OP_KIND_REDUCE ? stage_root_local(op) : 0;
    return stage_output(share->ranks + local, share->from);
}

static void sources_of_all(struct stage_plan *plan, const struct share *share)
{
    for (uint32_t local = 0; local < plan->slice.op->map->local_count; local++) {
        uint32_t rank = share->ranks + local;
        stage_source(plan, stage_scaled(stage_input(rank, share->from), rank));
    }
}

/* Adds the outputs of all ranks that have one, except `except`, which already has the data. */
static void targets_of_all(struct stage_plan *plan, const struct share *share, uint32_t except)
{
    const struct coll_stage_op *op = plan->slice.op;
    for (uint32_t local = 0; local < op->map->local_count; local++) {
        uint32_t rank = share->ranks + local;
        bool wanted = op->terms->kind == OP_KIND_ALL_REDUCE ||
                      (op->terms->kind == OP_KIND_BROADCAST ? op->ranks[rank].has_output
                                                            : local == stage_root_local(op));
        if (wanted && rank != except) {
            stage_target(plan, stage_output(rank, share->from));
        }
    }
}

static void reduce_alone(struct stage_plan *plan, const struct share *share)
{
    stage_piece(plan, plan->slice.op->divides ? COLL_STAGE_DIVIDE : COLL_STAGE_REDUCE, share->count_elements);
    sources_of_all(plan, share);
    targets_of_all(plan, share, UINT32_MAX);
    stage_put(plan);
}

static void broadcast_alone(struct stage_plan *plan, const struct share *share)
{
    stage_piece(plan, COLL_STAGE_COPY, share->count_elements);
    stage_source(plan, stage_input(share->ranks + stage_root_local(plan->slice.op), share->from));
    targets_of_all(plan, share, UINT32_MAX);
    stage_put(plan);
}

static void share_in(struct stage_plan *plan, const struct share *share)
{
    const struct coll_stage_op *op = plan->slice.op;
    if (op->terms->kind != OP_KIND_BROADCAST) {
        stage_piece(plan, COLL_STAGE_REDUCE, share->count_elements);
        sources_of_all(plan, share);
        stage_target(plan, place_of(&plan->slice, share));
        stage_put(plan);
    } else if (op->mode == COLL_STAGE_STAGED && stage_is_root_node(op)) {
        stage_put_copy(plan, stage_input(share->ranks + stage_root_local(op), share->from),
                       place_of(&plan->slice, share), share->count_elements);
    }
}

static void share_combine(struct stage_plan *plan, const struct share *share)
{
    const struct coll_stage_op *op = plan->slice.op;
    uint32_t slots = stage_has_slots(op) ? stage_slots(op, share->ranks / op->map->local_count) : 1;
    if (slots == 1) {
        return;
    }
    stage_piece(plan, COLL_STAGE_REDUCE, share->count_elements);
    for (uint32_t slot = 0; slot < slots; slot++) {
        stage_source(plan, stage_memory(share->begin + slot * plan->slot_elements));
    }
    stage_target(plan, stage_memory(share->begin));
    stage_put(plan);
}

static void share_out(struct stage_plan *plan, const struct share *share)
{
    const struct coll_stage_op *op = plan->slice.op;
    struct coll_stage_place place = place_of(&plan->slice, share);
    bool in_output = place.buffer == COLL_STAGE_OUTPUT;
    if (op->terms->kind == OP_KIND_REDUCE && !stage_is_root_node(op)) {
        return;
    }
    stage_piece(plan, stage_result_action(op), share->count_elements);
    stage_source(plan, place);
    targets_of_all(plan, share, in_output && !op->divides ? place.rank : UINT32_MAX);
    stage_put(plan);
}

bool stage_vector_step(struct stage_plan *plan, enum coll_stage_step step)
{
    const struct coll_stage_op *op = plan->slice.op;
    struct coll_stage_cursor *at = plan->at;
    while (at->item < op->terms->bucket_ops) {
        struct share share;
        if (!stage_goes_on(plan)) {
            return false;
        }
        if (!share_of(&plan->slice, (uint32_t)at->item, at->begin, &share) ||
            at->within == share.count_elements) {
            at->within = 0;
            at->begin += op->part_counts[at->item++];
            continue;
        }
        share_cut(op, &share, at);
        switch (step) {
        case COLL_STAGE_LOCAL:
            if (op->mode == COLL_STAGE_ALONE && op->terms->kind == OP_KIND_BROADCAST) {
                broadcast_alone(plan, &share);
            } else if (op->mode == COLL_STAGE_ALONE) {
                reduce_alone(plan, &share);
            }
            break;
        case COLL_STAGE_IN:
            share_in(plan, &share);
            break;
        case COLL_STAGE_COMBINE:
            share_combine(plan, &share);
            break;
        case COLL_STAGE_OUT:
            share_out(plan, &share);
            break;
        }
    }
    return true;
}

void stage_vector_lay_out(const struct stage_slice *slice, bool in_input, coll_stage_extent *extent,
                          void *context)
{
    const struct coll_stage_op *op = slice->op;
    uint64_t part_begin = 0;
    for (uint32_t part = 0; part < op->terms->bucket_ops; part_begin += op->part_counts[part++]) {
        struct share share;
        if (share_of(slice, part, part_begin, &share)) {
            struct coll_stage_place place =
                in_input ? stage_input(share.ranks, share.from) : place_of(slice, &share);
            extent(context, &place, share.count_elements);
        }
    }
}
