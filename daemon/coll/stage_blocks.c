#include "daemon/base/checked.h"
#include "daemon/coll/stage_internal.h"

/* The stage plans of kinds with a block for each rank: all_gather, reduce_scatter, gather, scatter. */

/*
 * The slice's share of the block of one rank. If several operations run as one, each has a block for each
 * rank. In the vector, the blocks of one rank follow each other.
 */
struct block {
    uint32_t position; /* in node order */
    uint32_t rank;
    uint32_t local;          /* UINT32_MAX: of another node */
    uint32_t part;           /* the operation */
    uint64_t offset;         /* of the share, in the block */
    uint64_t count_elements; /* of the share */
    uint64_t begin;          /* of the share, in the slice's vector */
};

/* The layout that tells block sizes. Null: each rank knows only its own. */
static const struct coll_layout *known_layout(const struct coll_stage_op *op)
{
    if (op->terms->kind == OP_KIND_ALL_GATHER) {
        return &op->ranks[0].output_layout;
    }
    if (op->terms->kind == OP_KIND_REDUCE_SCATTER) {
        return &op->ranks[0].input_layout;
    }
    if (!stage_is_root_node(op)) {
        return NULL;
    }
    const struct coll_stage_rank *root = &op->ranks[stage_root_local(op)];
    return op->terms->kind == OP_KIND_GATHER ? &root->output_layout : &root->input_layout;
}

static uint64_t block_count(const struct coll_stage_op *op, const struct coll_layout *layout, uint32_t rank,
                            uint32_t part)
{
    if (!op->terms->has_layouts) {
        return op->part_counts[part];
    }
    if (layout != NULL) {
        return layout->counts[rank];
    }
    uint32_t local = op->map->local_of_rank[rank];
    return local == UINT32_MAX ? 0 : op->ranks[local].count_elements;
}

bool coll_stage_block_count(const struct coll_stage_op *op, uint32_t position, uint64_t *out)
{
    bool fits = true;
    *out = 0;
    for (uint32_t part = 0; part < op->terms->bucket_ops; part++) {
        uint64_t count = block_count(op, known_layout(op), op->map->order[position], part);
        fits = fits && checked_add_u64(*out, count, out);
    }
    return fits;
}

/* The least size that any rank of this node gives for the block, so that no rank's buffer is exceeded. */
static uint64_t block_limit(const struct coll_stage_op *op, const struct block *block)
{
    uint64_t limit = UINT64_MAX;
    if (!op->terms->has_layouts) {
        return limit;
    }
    if (op->terms->kind == OP_KIND_GATHER || op->terms->kind == OP_KIND_SCATTER) {
        return block->local == UINT32_MAX ? limit : op->ranks[block->local].count_elements;
    }
    for (uint32_t local = 0; local < op->map->local_count; local++) {
        const struct coll_stage_rank *rank = &op->ranks[local];
        const struct coll_layout *layout =
            op->terms->kind == OP_KIND_ALL_GATHER ? &rank->output_layout : &rank->input_layout;
        uint64_t count = layout->counts[block->rank];
        limit = count < limit ? count : limit;
    }
    return limit;
}

/* Visits the blocks in node order; starts as all zero. Returns false after the last one. */
struct block_walk {
    uint64_t item; /* number of the next block */
    const struct coll_layout *layout;
    struct block block;
};

static bool next_block(const struct stage_slice *slice, struct block_walk *walk)
{
    const struct coll_stage_op *op = slice->op;
    struct block *block = &walk->block;
    if (walk->item == (uint64_t)op->map->size * op->terms->bucket_ops) {
        return false;
    }
    if (walk->layout == NULL) {
        walk->layout = known_layout(op);
    }
    block->begin += block->count_elements;
    block->position = (uint32_t)(walk->item / op->terms->bucket_ops);
    block->part = (uint32_t)(walk->item++ % op->terms->bucket_ops);
    block->rank = op->map->order[block->position];
    block->local = op->map->local_of_rank[block->rank];
    stage_block_part(slice, block_count(op, walk->layout, block->rank, block->part), &block->offset,
                     &block->count_elements);
    return true;
}

/* --- Where blocks lie --- */

/* Index into ranks: the buffers that a local rank gave for the block's operation. */
static uint32_t entry_of(const struct coll_stage_op *op, uint32_t local, const struct block *block)
{
    return block->part * op->map->local_count + local;
}

static struct coll_stage_place in_output(const struct coll_stage_op *op, uint32_t local,
                                         const struct block *block)
{
    uint32_t entry = entry_of(op, local, block);
    return stage_output(entry,
                        stage_own_block_begin(op, entry, &op->ranks[entry].output_layout, block->rank) +
                            block->offset);
}

static struct coll_stage_place in_input(const struct coll_stage_op *op, uint32_t local,
                                        const struct block *block)
{
    uint32_t entry = entry_of(op, local, block);
    return stage_input(entry, stage_own_block_begin(op, entry, &op->ranks[entry].input_layout, block->rank) +
                                  block->offset);
}

static struct coll_stage_place own_input(const struct coll_stage_op *op, const struct block *block)
{
    return stage_input(entry_of(op, block->local, block), block->offset);
}

static struct coll_stage_place own_output(const struct coll_stage_op *op, const struct block *block)
{
    return stage_output(entry_of(op, block->local, block), block->offset);
}

/* Where the block lies in the slice's vector. */
static struct coll_stage_place place_of(const struct coll_stage_op *op, const struct block *block)
{
    bool own = block->local != UINT32_MAX;
    if (op->mode == COLL_STAGE_STAGED) {
        return stage_memory(block->begin);
    }
    if (op->terms->kind == OP_KIND_ALL_GATHER) {
        return in_output(op, 0, block);
    }
    if (op->terms->kind == OP_KIND_GATHER && stage_is_root_node(op)) {
        return in_output(op, stage_root_local(op), block);
    }
    if (op->terms->kind == OP_KIND_SCATTER && stage_is_root_node(op)) {
        return in_input(op, stage_root_local(op), block);
    }
    if (op->terms->kind == OP_KIND_GATHER && own) {
        return own_input(op, block);
    }
    bool fits = own && block->offset + block->count_elements <= block_limit(op, block);
    return fits ? own_output(op, block) : stage_memory(block->begin);
}

uint64_t stage_blocks_measure(const struct stage_slice *slice, uint64_t *offsets)
{
    const struct coll_map *map = slice->op->map;
    struct block_walk walk = {0};
    uint32_t node = 0;
    while (next_block(slice, &walk)) {
        while (offsets != NULL && map->node_first[node] <= walk.block.position) {
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
        stage_source(plan, stage_scaled(in_input(op, local, block), entry_of(op, local, block)));
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
    if (op->terms->kind == OP_KIND_ALL_GATHER) {
        block_to_ranks(plan, block, own_input(op, block), 0);
    } else if (op->terms->kind == OP_KIND_REDUCE_SCATTER) {
        reduce_block(plan, block, op->divides ? COLL_STAGE_DIVIDE : COLL_STAGE_REDUCE, own_output(op, block));
    } else if (op->terms->kind == OP_KIND_GATHER) {
        stage_put_copy(plan, own_input(op, block), in_output(op, stage_root_local(op), block),
                       agreed_part(op, block));
    } else {
        stage_put_copy(plan, in_input(op, stage_root_local(op), block), own_output(op, block),
                       agreed_part(op, block));
    }
}

/* Staged, on the root's node: whether a local rank's block need not pass through the slice's memory, because
 * both buffers are in one domain. */
static bool goes_directly(const struct coll_stage_op *op, const struct block *block)
{
    if (op->mode != COLL_STAGE_STAGED || block->local == UINT32_MAX || !op_kind_has_root(op->terms->kind) ||
        !stage_is_root_node(op)) {
        return false;
    }
    const struct coll_stage_rank *own = &op->ranks[entry_of(op, block->local, block)];
    const struct coll_stage_rank *root = &op->ranks[entry_of(op, stage_root_local(op), block)];
    return op->terms->kind == OP_KIND_GATHER ? own->input_domain == root->output_domain
                                             : root->input_domain == own->output_domain;
}

static void block_in(struct stage_plan *plan, const struct block *block)
{
    const struct coll_stage_op *op = plan->slice.op;
    struct coll_stage_place place = place_of(op, block);
    bool own = block->local != UINT32_MAX;
    bool staged = op->mode == COLL_STAGE_STAGED;
    if (goes_directly(op, block)) {
        return;
    }
    if (op->terms->kind == OP_KIND_REDUCE_SCATTER) {
        reduce_block(plan, block, COLL_STAGE_REDUCE, place);
    } else if (op->terms->kind == OP_KIND_SCATTER && staged && stage_is_root_node(op)) {
        stage_put_copy(plan, in_input(op, stage_root_local(op), block), place, block->count_elements);
    } else if (op->terms->kind != OP_KIND_SCATTER && own && place.buffer != COLL_STAGE_INPUT) {
        stage_put_copy(plan, own_input(op, block), place, agreed_part(op, block));
    }
}

static void block_out(struct stage_plan *plan, const struct block *block)
{
    const struct coll_stage_op *op = plan->slice.op;
    struct coll_stage_place place = place_of(op, block);
    bool own = block->local != UINT32_MAX;
    bool staged = op->mode == COLL_STAGE_STAGED;
    if (goes_directly(op, block)) {
        block_local(plan, block);
    } else if (op->terms->kind == OP_KIND_ALL_GATHER) {
        block_to_ranks(plan, block, place, staged ? 0 : 1); /* unstaged, the first rank has it already */
    } else if (op->terms->kind == OP_KIND_GATHER && staged && stage_is_root_node(op)) {
        stage_put_copy(plan, place, in_output(op, stage_root_local(op), block), block->count_elements);
    } else if (op->terms->kind == OP_KIND_SCATTER && own && place.buffer != COLL_STAGE_OUTPUT) {
        stage_put_copy(plan, place, own_output(op, block), agreed_part(op, block));
    } else if (op->terms->kind == OP_KIND_REDUCE_SCATTER && own &&
               (op->divides || place.buffer == COLL_STAGE_MEMORY)) {
        stage_piece(plan, stage_result_action(op), agreed_part(op, block));
        stage_source(plan, place);
        stage_target(plan, own_output(op, block));
        stage_put(plan);
    }
}

/* Combines the domains' sums, in the order in which IN wrote them. part: of one operation among several. */
static void combine(struct stage_plan *plan, uint32_t part, uint64_t begin, uint64_t count_elements)
{
    uint32_t slots = stage_has_slots(plan->slice.op) ? stage_slots(plan->slice.op, part) : 1;
    if (slots == 1) {
        return;
    }
    stage_piece(plan, COLL_STAGE_REDUCE, count_elements);
    for (uint32_t slot = 0; slot < slots; slot++) {
        stage_source(plan, stage_memory(begin + slot * plan->slot_elements));
    }
    stage_target(plan, stage_memory(begin));
    stage_put(plan);
}

bool stage_blocks_step(struct stage_plan *plan, enum coll_stage_step step)
{
    struct coll_stage_cursor *at = plan->at;
    const struct coll_stage_op *op = plan->slice.op;
    struct block_walk walk = {.item = at->item, .block.begin = at->begin};
    if (step == COLL_STAGE_COMBINE && op->terms->bucket_ops == 1) {
        combine(plan, 0, 0, stage_blocks_measure(&plan->slice, NULL));
        return true;
    }
    if (step == COLL_STAGE_LOCAL && op->mode != COLL_STAGE_ALONE) {
        return true;
    }
    while (walk.item < (uint64_t)op->map->size * op->terms->bucket_ops) {
        if (!stage_goes_on(plan)) {
            return false;
        }
        (void)next_block(&plan->slice, &walk);
        at->item = walk.item;
        at->begin = walk.block.begin + walk.block.count_elements;
        if (step == COLL_STAGE_LOCAL) {
            block_local(plan, &walk.block);
        } else if (step == COLL_STAGE_COMBINE) {
            combine(plan, walk.block.part, walk.block.begin, walk.block.count_elements);
        } else if (step == COLL_STAGE_IN) {
            block_in(plan, &walk.block);
        } else {
            block_out(plan, &walk.block);
        }
    }
    return true;
}
