#include "daemon/coll/stage_internal.h"

/* The stage plans of kinds with a block for each rank: all_gather, reduce_scatter, gather, scatter. */

/* The slice's part of the block of one rank. */
struct block {
    uint32_t rank;
    uint32_t local;          /* UINT32_MAX: of another node */
    uint64_t offset;         /* of the part, in the block */
    uint64_t count_elements; /* of the part */
    uint64_t begin;          /* of the part, in the slice's vector */
};

/* The layout that tells block sizes. Null: each rank knows only its own. */
static const struct coll_layout *known_layout(const struct coll_stage_op *op)
{
    if (op->terms.kind == OP_KIND_ALL_GATHER) {
        return &op->ranks[0].output_layout;
    }
    if (op->terms.kind == OP_KIND_REDUCE_SCATTER) {
        return &op->ranks[0].input_layout;
    }
    if (!stage_is_root_node(op)) {
        return NULL;
    }
    const struct coll_stage_rank *root = &op->ranks[stage_root_local(op)];
    return op->terms.kind == OP_KIND_GATHER ? &root->output_layout : &root->input_layout;
}

static uint64_t block_count(const struct coll_stage_op *op, const struct coll_layout *layout, uint32_t rank)
{
    if (!op->terms.has_layouts) {
        return op->terms.count_elements;
    }
    if (layout != NULL) {
        return layout->counts[rank];
    }
    uint32_t local = op->map->local_of_rank[rank];
    return local == UINT32_MAX ? 0 : op->ranks[local].count_elements;
}

uint64_t coll_stage_block_count(const struct coll_stage_op *op, uint32_t position)
{
    return block_count(op, known_layout(op), op->map->order[position]);
}

/* The least size that any rank of this node gives for the block, so that no rank's buffer is exceeded. */
static uint64_t block_limit(const struct coll_stage_op *op, const struct block *block)
{
    uint64_t limit = UINT64_MAX;
    if (!op->terms.has_layouts) {
        return limit;
    }
    if (op->terms.kind == OP_KIND_GATHER || op->terms.kind == OP_KIND_SCATTER) {
        return block->local == UINT32_MAX ? limit : op->ranks[block->local].count_elements;
    }
    for (uint32_t local = 0; local < op->map->local_count; local++) {
        const struct coll_stage_rank *rank = &op->ranks[local];
        const struct coll_layout *layout =
            op->terms.kind == OP_KIND_ALL_GATHER ? &rank->output_layout : &rank->input_layout;
        uint64_t count = layout->counts[block->rank];
        limit = count < limit ? count : limit;
    }
    return limit;
}

/* Visits the blocks in node order; starts as all zero. Returns false after the last one. */
struct block_walk {
    uint32_t position;
    const struct coll_layout *layout;
    struct block block;
};

static bool next_block(const struct stage_slice *slice, struct block_walk *walk)
{
    const struct coll_stage_op *op = slice->op;
    struct block *block = &walk->block;
    if (walk->position == op->map->size) {
        return false;
    }
    if (walk->layout == NULL) {
        walk->layout = known_layout(op);
    }
    block->begin += block->count_elements;
    block->rank = op->map->order[walk->position++];
    block->local = op->map->local_of_rank[block->rank];
    stage_block_part(slice, block_count(op, walk->layout, block->rank), &block->offset,
                     &block->count_elements);
    return true;
}

/* --- Where blocks lie --- */

static struct coll_stage_place in_output(const struct coll_stage_op *op, uint32_t local,
                                         const struct block *block)
{
    uint64_t begin = stage_block_begin(op, &op->ranks[local].output_layout, block->rank);
    return stage_output(local, begin + block->offset);
}

static struct coll_stage_place in_input(const struct coll_stage_op *op, uint32_t local,
                                        const struct block *block)
{
    uint64_t begin = stage_block_begin(op, &op->ranks[local].input_layout, block->rank);
    return stage_input(local, begin + block->offset);
}

/* Where the block lies in the slice's vector. */
static struct coll_stage_place place_of(const struct coll_stage_op *op, const struct block *block)
{
    bool own = block->local != UINT32_MAX;
    if (op->mode == COLL_STAGE_STAGED) {
        return stage_memory(block->begin);
    }
    if (op->terms.kind == OP_KIND_ALL_GATHER) {
        return in_output(op, 0, block);
    }
    if (op->terms.kind == OP_KIND_GATHER && stage_is_root_node(op)) {
        return in_output(op, stage_root_local(op), block);
    }
    if (op->terms.kind == OP_KIND_SCATTER && stage_is_root_node(op)) {
        return in_input(op, stage_root_local(op), block);
    }
    if (op->terms.kind == OP_KIND_GATHER && own) {
        return stage_input(block->local, block->offset);
    }
    bool fits = own && block->offset + block->count_elements <= block_limit(op, block);
    return fits ? stage_output(block->local, block->offset) : stage_memory(block->begin);
}

uint64_t stage_blocks_measure(const struct stage_slice *slice, uint64_t *offsets)
{
    const struct coll_map *map = slice->op->map;
    struct block_walk walk = {0};
    uint32_t node = 0;
    while (next_block(slice, &walk)) {
        while (offsets != NULL && map->node_first[node] < walk.position) {
            offsets[node++] = walk.block.begin;
        }
    }
    uint64_t end = walk.block.begin + walk.block.count_elements;
    if (offsets != NULL) {
        offsets[map->node_count] = end;
    }
    return end;
}

void stage_blocks_lay_out(const struct stage_slice *slice, coll_stage_extent *extent, void *context)
{
    struct block_walk walk = {0};
    while (next_block(slice, &walk)) {
        struct coll_stage_place place = place_of(slice->op, &walk.block);
        extent(context, &place, walk.block.count_elements);
    }
}

/* For a reduce_scatter with one rank on this node. */
void stage_blocks_lay_out_input(const struct stage_slice *slice, coll_stage_extent *extent, void *context)
{
    struct block_walk walk = {0};
    while (next_block(slice, &walk)) {
        struct coll_stage_place place = in_input(slice->op, 0, &walk.block);
        extent(context, &place, walk.block.count_elements);
    }
}

/* --- Pieces --- */

static uint64_t agreed_part(const struct coll_stage_op *op, const struct block *block)
{
    return stage_within(block->offset, block->count_elements, block_limit(op, block));
}

static void reduce_block(struct stage_plan *plan, const struct block *block, enum coll_stage_action action,
                         struct coll_stage_place target)
{
    const struct coll_stage_op *op = plan->slice.op;
    stage_piece(plan, action, agreed_part(op, block));
    for (uint32_t local = 0; local < op->map->local_count; local++) {
        stage_source(plan, stage_scaled(in_input(op, local, block), local));
    }
    plan->piece.near = target.buffer == COLL_STAGE_OUTPUT ? target.rank : COLL_STAGE_ALL;
    stage_target(plan, target);
    stage_put(plan);
}

/* Copies to every rank of this node except the first `skipped`. */
static void block_to_ranks(struct stage_plan *plan, const struct block *block, struct coll_stage_place source,
                           uint32_t skipped)
{
    const struct coll_stage_op *op = plan->slice.op;
    if (op->map->local_count == skipped) {
        return;
    }
    stage_piece(plan, COLL_STAGE_COPY, agreed_part(op, block));
    stage_source(plan, source);
    for (uint32_t local = skipped; local < op->map->local_count; local++) {
        stage_target(plan, in_output(op, local, block));
    }
    stage_put(plan);
}

static void block_local(struct stage_plan *plan, const struct block *block)
{
    const struct coll_stage_op *op = plan->slice.op;
    struct coll_stage_place own_input = stage_input(block->local, block->offset);
    struct coll_stage_place own_output = stage_output(block->local, block->offset);
    if (op->terms.kind == OP_KIND_ALL_GATHER) {
        block_to_ranks(plan, block, own_input, 0);
    } else if (op->terms.kind == OP_KIND_REDUCE_SCATTER) {
        reduce_block(plan, block, op->divides ? COLL_STAGE_DIVIDE : COLL_STAGE_REDUCE, own_output);
    } else if (op->terms.kind == OP_KIND_GATHER) {
        stage_put_copy(plan, own_input, in_output(op, stage_root_local(op), block), agreed_part(op, block));
    } else {
        stage_put_copy(plan, in_input(op, stage_root_local(op), block), own_output, agreed_part(op, block));
    }
}

static void block_in(struct stage_plan *plan, const struct block *block)
{
    const struct coll_stage_op *op = plan->slice.op;
    struct coll_stage_place place = place_of(op, block);
    bool own = block->local != UINT32_MAX;
    bool staged = op->mode == COLL_STAGE_STAGED;
    if (op->terms.kind == OP_KIND_REDUCE_SCATTER) {
        reduce_block(plan, block, COLL_STAGE_REDUCE, place);
    } else if (op->terms.kind == OP_KIND_SCATTER && staged && stage_is_root_node(op)) {
        stage_put_copy(plan, in_input(op, stage_root_local(op), block), place, block->count_elements);
    } else if (op->terms.kind != OP_KIND_SCATTER && own && place.buffer != COLL_STAGE_INPUT) {
        stage_put_copy(plan, stage_input(block->local, block->offset), place, agreed_part(op, block));
    }
}

static void block_out(struct stage_plan *plan, const struct block *block)
{
    const struct coll_stage_op *op = plan->slice.op;
    struct coll_stage_place place = place_of(op, block);
    bool own = block->local != UINT32_MAX;
    bool staged = op->mode == COLL_STAGE_STAGED;
    if (op->terms.kind == OP_KIND_ALL_GATHER) {
        block_to_ranks(plan, block, place, staged ? 0 : 1); /* unstaged, the first rank has it already */
    } else if (op->terms.kind == OP_KIND_GATHER && staged && stage_is_root_node(op)) {
        stage_put_copy(plan, place, in_output(op, stage_root_local(op), block), block->count_elements);
    } else if (op->terms.kind == OP_KIND_SCATTER && own && place.buffer != COLL_STAGE_OUTPUT) {
        stage_put_copy(plan, place, stage_output(block->local, block->offset), agreed_part(op, block));
    } else if (op->terms.kind == OP_KIND_REDUCE_SCATTER && own &&
               (op->divides || place.buffer == COLL_STAGE_MEMORY)) {
        stage_piece(plan, stage_result_action(op), agreed_part(op, block));
        stage_source(plan, place);
        stage_target(plan, stage_output(block->local, block->offset));
        stage_put(plan);
    }
}

/* Combines the domains' sums block by block, in the order in which IN wrote them. */
static void combine_blocks(struct stage_plan *plan)
{
    const struct coll_stage_op *op = plan->slice.op;
    uint32_t slots = stage_has_slots(op) ? stage_slots(op, 0) : 1;
    if (slots == 1) {
        return;
    }
    stage_piece(plan, COLL_STAGE_REDUCE, stage_blocks_measure(&plan->slice, NULL));
    for (uint32_t slot = 0; slot < slots; slot++) {
        stage_source(plan, stage_memory(slot * plan->slot_elements));
    }
    stage_target(plan, stage_memory(0));
    stage_put(plan);
}

bool stage_blocks_step(struct stage_plan *plan, enum coll_stage_step step)
{
    struct coll_stage_cursor *at = plan->at;
    struct block_walk walk = {.position = (uint32_t)at->item, .block.begin = at->begin};
    if (step == COLL_STAGE_COMBINE) {
        combine_blocks(plan);
        return true;
    }
    if (step == COLL_STAGE_LOCAL && plan->slice.op->mode != COLL_STAGE_ALONE) {
        return true;
    }
    while (walk.position < plan->slice.op->map->size) {
        if (!stage_goes_on(plan)) {
            return false;
        }
        (void)next_block(&plan->slice, &walk);
        at->item = walk.position;
        at->begin = walk.block.begin + walk.block.count_elements;
        if (step == COLL_STAGE_LOCAL) {
            block_local(plan, &walk.block);
        } else if (step == COLL_STAGE_IN) {
            block_in(plan, &walk.block);
        } else {
            block_out(plan, &walk.block);
        }
    }
    return true;
}
