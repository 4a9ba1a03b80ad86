#include "daemon/base/checked.h"
#include "daemon/coll/stage_internal.h"

/*
 * The stage plan of all_to_all. What a node sends (COLL_INPUT) is ordered by (node, sending rank, receiving
 * rank). What it receives (COLL_WORK) has the same order. Both lie in the ranks' buffers or, if staged or
 * packed, in the slice's memory. Data that stay on the node go from input to output:
 *   - unstaged: in slices of their own. These are ranges of the line of all pairs' blocks, by (sending rank,
 *     receiving rank);
 *   - staged, if one domain has both buffers: with the other data;
 *   - otherwise: through their place among the data that are sent.
 */

/* The slice's part of one block, between a rank of this node and any rank. */
struct part {
    uint64_t offset;
    uint64_t count_elements;
};

static struct part part_of(const struct stage_slice *slice, const struct coll_layout *layout, uint32_t other)
{
    struct part part;
    stage_block_part(slice, stage_layout_count(slice->op, layout, other), &part.offset, &part.count_elements);
    return part;
}

static bool has_many_blocks(const struct coll_stage_op *op)
{
    return op->mode != COLL_STAGE_STAGED && (uint64_t)op->map->local_count * op->map->size > op->many_blocks;
}

/* Collects copies, because each of many small pieces would cost more than its copy. */
static void put_block(struct stage_plan *plan, struct coll_stage_place source, struct coll_stage_place target,
                      uint64_t count_elements)
{
    if (has_many_blocks(plan->slice.op)) {
        stage_put_each(plan, source, target, count_elements);
    } else {
        stage_put_copy(plan, source, target, count_elements);
    }
}

/* --- Within the node --- */

/* The elements that go from one rank of this node to another: the smaller of both ranks' counts. */
static uint64_t pair_count(const struct coll_stage_op *op, uint32_t from, uint32_t to)
{
    uint64_t sent = stage_layout_count(op, &op->ranks[from].input_layout, coll_map_local_rank(op->map, to));
    uint64_t expected =
        stage_layout_count(op, &op->ranks[to].output_layout, coll_map_local_rank(op->map, from));
    return sent < expected ? sent : expected;
}

static struct coll_stage_place pair_source(const struct coll_stage_op *op, uint32_t from, uint32_t to,
                                           uint64_t offset)
{
    uint32_t rank = coll_map_local_rank(op->map, to);
    return stage_input(from, stage_block_begin(op, &op->ranks[from].input_layout, rank) + offset);
}

static struct coll_stage_place pair_target(const struct coll_stage_op *op, uint32_t from, uint32_t to,
                                           uint64_t offset)
{
    uint32_t rank = coll_map_local_rank(op->map, from);
    return stage_output(to, stage_block_begin(op, &op->ranks[to].output_layout, rank) + offset);
}

/* Whether all pairs are counted, so that the line of their blocks is cut into equal slices. */
static bool pairs_are_counted(const struct coll_stage_op *op)
{
    uint64_t locals = op->map->local_count;
    return !op->terms->has_layouts || locals * locals <= op->many_blocks;
}

uint64_t stage_pairs_total(const struct coll_stage_op *op)
{
    uint64_t locals = op->map->local_count;
    uint64_t total = 0;
    if (!op->terms->has_layouts) {
        return checked_mul_u64(locals * locals, op->terms->count_elements, &total) ? total : UINT64_MAX;
    }
    uint64_t seen = pairs_are_counted(op) ? locals : 1;
    for (uint64_t i = 0; i < locals * seen; i++) {
        uint32_t from = (uint32_t)(i / seen);
        uint32_t to = (uint32_t)((from + i % seen) % locals);
        if (!checked_add_u64(total, pair_count(op, from, to), &total)) {
            return UINT64_MAX;
        }
    }
    return checked_mul_u64(total, locals / seen, &total) ? total : UINT64_MAX;
}

uint64_t coll_stage_local_slice_elements(const struct coll_stage_op *op, uint64_t slice_bytes)
{
    uint64_t least = (uint64_t)op->map->local_count * op->map->local_count * COLL_STAGE_PAIR_BYTES;
    uint64_t bytes = slice_bytes > least ? slice_bytes : least;
    return bytes > op->element_bytes ? bytes / op->element_bytes : 1;
}

uint64_t coll_stage_local_slices(const struct coll_stage_op *op)
{
    if (op->terms->kind != OP_KIND_ALL_TO_ALL || op->mode == COLL_STAGE_STAGED) {
        return 0;
    }
    if (!pairs_are_counted(op)) {
        return op->map->local_count;
    }
    uint64_t total = stage_pairs_total(op);
    return total == 0 ? 1 : (total - 1) / op->local_slice_elements + 1;
}

/* The pair that contains element `at` of the line of all pairs, if blocks are equal; otherwise the first
 * pair. */
static uint64_t first_pair(const struct coll_stage_op *op, uint64_t at, uint64_t *begin)
{
    uint64_t pair =
        op->terms->has_layouts || op->terms->count_elements == 0 ? 0 : at / op->terms->count_elements;
    *begin = pair * op->terms->count_elements;
    return pair;
}

/* How many small, equal blocks of one sender lie in a row from this pair to the end of the line. Such a row
 * is one piece, because describing a block of a few bytes takes longer than copying it. */
static uint32_t blocks_in_row(const struct coll_stage_op *op, uint32_t to, uint64_t line_elements)
{
    uint64_t count = op->terms->count_elements;
    if (op->terms->has_layouts || count == 0 || !has_many_blocks(op) || !coll_map_is_contiguous(op->map)) {
        return 0;
    }
    uint64_t most = COLL_STAGE_EACH_BYTES / op->element_bytes / count;
    uint64_t left = op->map->local_count - to, whole = line_elements / count;
    left = left < whole ? left : whole;
    return (uint32_t)(left < most ? left : most);
}

/* A slice's pairs may begin anywhere on the line, so this searches for the first one. */
static bool exchange_range(struct stage_plan *plan)
{
    const struct coll_stage_op *op = plan->slice.op;
    struct coll_stage_cursor *at = plan->at;
    uint32_t locals = op->map->local_count;
    uint64_t slice_begin = plan->slice.index * op->local_slice_elements;
    uint64_t slice_end = slice_begin + op->local_slice_elements;
    if (at->item == 0) {
        at->item = first_pair(op, slice_begin, &at->begin);
    }
    while (at->item < (uint64_t)locals * locals && at->begin < slice_end) {
        if (!stage_goes_on(plan)) {
            return false;
        }
        uint32_t from = (uint32_t)(at->item / locals), to = (uint32_t)(at->item % locals);
        uint64_t begin = at->begin, end = begin + pair_count(op, from, to);
        uint64_t first = begin > slice_begin ? begin : slice_begin;
        uint64_t last = end < slice_end ? end : slice_end;
        uint32_t row = first == begin ? blocks_in_row(op, to, slice_end - begin) : 0;
        if (row > 1) {
            at->item += row;
            at->begin += row * op->terms->count_elements;
            stage_put_scatter(plan, pair_source(op, from, to, 0), pair_target(op, from, to, 0), row,
                              op->terms->count_elements);
            continue;
        }
        at->item++;
        at->begin = end;
        if (first < last) {
            put_block(plan, pair_source(op, from, to, first - begin),
                      pair_target(op, from, to, first - begin), last - first);
        }
    }
    return true;
}

/* What one rank sends to the ranks of this node. No piece is larger than a slice that is counted. */
static bool exchange_of_one(struct stage_plan *plan)
{
    const struct coll_stage_op *op = plan->slice.op;
    struct coll_stage_cursor *at = plan->at;
    uint32_t from = (uint32_t)plan->slice.index;
    while (at->item < op->map->local_count) {
        if (!stage_goes_on(plan)) {
            return false;
        }
        uint32_t to = (uint32_t)at->item;
        uint64_t first = at->begin, left = pair_count(op, from, to) - first;
        uint64_t count = left < op->local_slice_elements ? left : op->local_slice_elements;
        at->item += count == left;
        at->begin = count == left ? 0 : first + count;
        put_block(plan, pair_source(op, from, to, first), pair_target(op, from, to, first), count);
    }
    return true;
}

/* --- Vectors --- */

/* Counts what this node's ranks send to one other rank, and what they receive from it. */
static void measure_rank(const struct stage_slice *slice, uint32_t other, uint64_t *out, uint64_t *in)
{
    const struct coll_stage_op *op = slice->op;
    for (uint32_t local = 0; local < op->map->local_count; local++) {
        *out += part_of(slice, &op->ranks[local].input_layout, other).count_elements;
        *in += part_of(slice, &op->ranks[local].output_layout, other).count_elements;
    }
}

/* Goes from node to node. The blocks of one rank are counted in one step. */
bool stage_pairs_measure(const struct stage_slice *slice, struct coll_stage_cursor *at, uint64_t *sent,
                         uint64_t *received)
{
    const struct coll_map *map = slice->op->map;
    const struct coll_layout equal = {0};
    uint64_t part = part_of(slice, &equal, 0).count_elements;
    uint32_t looks = COLL_STAGE_LOOKS / map->local_count;
    sent[0] = received[0] = 0;
    for (; at->node < map->node_count; at->node++, at->item = at->begin = at->base = 0) {
        uint64_t ranks = map->node_first[at->node + 1] - map->node_first[at->node];
        uint64_t equal_elements = slice->op->terms->has_layouts ? 0 : ranks * map->local_count * part;
        for (; slice->op->terms->has_layouts && at->item < ranks; at->item++) {
            if (looks-- == 0) {
                return false;
            }
            measure_rank(slice, map->order[map->node_first[at->node] + at->item], &at->begin, &at->base);
        }
        sent[at->node + 1] = sent[at->node] + at->begin + equal_elements;
        received[at->node + 1] = received[at->node] + at->base + equal_elements;
    }
    return true;
}

/* All elements that the slice sends, and receives; with layouts there is only one slice. */
static uint64_t sent_elements(const struct stage_slice *slice)
{
    const struct coll_stage_op *op = slice->op;
    const struct coll_layout equal = {0};
    return op->terms->has_layouts
               ? op->sent_elements
               : (uint64_t)op->map->local_count * op->map->size * part_of(slice, &equal, 0).count_elements;
}

static uint64_t received_elements(const struct stage_slice *slice)
{
    return slice->op->terms->has_layouts ? slice->op->received_elements : sent_elements(slice);
}

static bool is_packed(const struct coll_stage_op *op)
{
    uint64_t blocks = (uint64_t)op->map->local_count * op->map->size;
    uint64_t most = COLL_STAGE_PACKED_BLOCK_BYTES / op->element_bytes;
    if (op->mode != COLL_STAGE_UNSTAGED || !has_many_blocks(op)) {
        return false;
    }
    return op->terms->has_layouts ? (op->sent_elements + op->received_elements) / 2 / blocks < most
                                  : op->terms->count_elements / op->slice_count < most;
}

bool stage_pairs_in_memory(const struct coll_stage_op *op)
{
    return op->mode == COLL_STAGE_STAGED || is_packed(op);
}

uint64_t stage_pairs_memory(const struct stage_slice *slice)
{
    return stage_pairs_in_memory(slice->op) ? sent_elements(slice) + received_elements(slice) : 0;
}

/* A block between a rank of this node and any rank: the slice's part of it, and its place in the vector. */
struct block {
    uint32_t local, other;
    struct part part;
    uint64_t begin;
};

/* The next block to send, starting at zero: by (node, sending rank, receiving rank). */
static bool next_sent(const struct stage_slice *slice, struct coll_stage_cursor *at, struct block *out)
{
    const struct coll_map *map = slice->op->map;
    if (at->node == map->node_count) {
        return false;
    }
    uint32_t first = map->node_first[at->node];
    out->local = at->local;
    out->other = map->order[first + at->item];
    out->part = part_of(slice, &slice->op->ranks[out->local].input_layout, out->other);
    out->begin = at->begin;
    at->begin += out->part.count_elements;
    if (first + ++at->item == map->node_first[at->node + 1]) {
        at->item = 0;
        at->local = (at->local + 1) % map->local_count;
        at->node += at->local == 0;
    }
    return true;
}

/* The next block to receive, starting at zero: by (sending rank, receiving rank). */
static bool next_received(const struct stage_slice *slice, struct coll_stage_cursor *at, struct block *out)
{
    const struct coll_map *map = slice->op->map;
    if (at->item == map->size) {
        return false;
    }
    out->local = at->local;
    out->other = map->order[at->item];
    out->part = part_of(slice, &slice->op->ranks[out->local].output_layout, out->other);
    out->begin = at->begin;
    at->begin += out->part.count_elements;
    at->local = (at->local + 1) % map->local_count;
    at->item += at->local == 0;
    return true;
}

/* In the slice's memory, data to receive lie after the data to send. */
static void lay_out_memory(const struct stage_slice *slice, bool input, coll_stage_extent *extent,
                           void *context)
{
    uint64_t sent = sent_elements(slice);
    struct coll_stage_place place = stage_memory(input ? 0 : sent);
    extent(context, &place, input ? sent : received_elements(slice));
}

static struct coll_stage_place place_of_block(const struct coll_stage_op *op, const struct block *block,
                                              bool input)
{
    const struct coll_stage_rank *rank = &op->ranks[block->local];
    uint64_t begin = stage_block_begin(op, input ? &rank->input_layout : &rank->output_layout, block->other) +
                     block->part.offset;
    return input ? stage_input(block->local, begin) : stage_output(block->local, begin);
}

bool stage_pairs_lay_out(const struct stage_slice *slice, enum coll_space space, struct coll_stage_cursor *at,
                         coll_stage_extent *extent, void *context)
{
    bool input = space == COLL_INPUT;
    struct block block;
    if (stage_pairs_in_memory(slice->op)) {
        lay_out_memory(slice, input, extent, context);
        return true;
    }
    for (uint32_t looks = 0; looks < COLL_STAGE_LOOKS; looks++) {
        if (input ? !next_sent(slice, at, &block) : !next_received(slice, at, &block)) {
            return true;
        }
        struct coll_stage_place place = place_of_block(slice->op, &block, input);
        extent(context, &place, block.part.count_elements);
    }
    return false;
}

/* --- Through the slice's memory --- */

static bool goes_straight(const struct coll_stage_op *op, uint32_t from, uint32_t to)
{
    return op->ranks[from].input_domain == op->ranks[to].output_domain;
}

static void sent_in(struct stage_plan *plan, const struct block *block)
{
    const struct coll_stage_op *op = plan->slice.op;
    const struct part *part = &block->part;
    uint64_t begin = stage_block_begin(op, &op->ranks[block->local].input_layout, block->other);
    uint32_t to = op->map->local_of_rank[block->other];
    struct coll_stage_place source = stage_input(block->local, begin + part->offset);
    struct coll_stage_place target = stage_memory(block->begin);
    uint64_t count = part->count_elements;
    if (to != UINT32_MAX && op->mode != COLL_STAGE_STAGED) {
        return; /* LOCAL copies it */
    }
    if (to != UINT32_MAX) {
        target =
            goes_straight(op, block->local, to) ? pair_target(op, block->local, to, part->offset) : target;
        count = stage_within(part->offset, count, pair_count(op, block->local, to));
    }
    put_block(plan, source, target, count);
}

/* Copies blocks that did not go directly, from where IN put them. */
static void sent_out(struct stage_plan *plan, const struct block *block)
{
    const struct coll_stage_op *op = plan->slice.op;
    const struct part *part = &block->part;
    uint32_t to = op->map->local_of_rank[block->other];
    if (to != UINT32_MAX && !goes_straight(op, block->local, to)) {
        put_block(plan, stage_memory(block->begin), pair_target(op, block->local, to, part->offset),
                  stage_within(part->offset, part->count_elements, pair_count(op, block->local, to)));
    }
}

static void received_out(struct stage_plan *plan, const struct block *block)
{
    const struct coll_stage_op *op = plan->slice.op;
    uint64_t begin = stage_block_begin(op, &op->ranks[block->local].output_layout, block->other);
    if (op->map->local_of_rank[block->other] == UINT32_MAX) {
        put_block(plan, stage_memory(plan->at->base + block->begin),
                  stage_output(block->local, begin + block->part.offset), block->part.count_elements);
    }
}

/* Whether a rank's data for all ranks of a node are one range of its input. */
static bool blocks_lie_together(const struct stage_slice *slice)
{
    const struct coll_stage_op *op = slice->op;
    return op->mode != COLL_STAGE_STAGED && !op->terms->has_layouts && op->slice_count == 1 &&
           coll_map_is_contiguous(op->map);
}

/* The next block to send, or all blocks of one rank for one node as one. */
static void next_sent_together(const struct stage_slice *slice, struct coll_stage_cursor *at,
                               struct block *out)
{
    uint64_t begin = at->begin, left = 1;
    if (blocks_lie_together(slice)) {
        left = slice->op->map->node_first[at->node + 1] - slice->op->map->node_first[at->node];
        at->item = left - 1;
    }
    (void)next_sent(slice, at, out);
    out->other = left > 1 ? out->other - (uint32_t)(left - 1) : out->other;
    out->part.count_elements *= left;
    out->begin = begin;
    at->begin = begin + out->part.count_elements;
}

static bool go_through_sent(struct stage_plan *plan,
                            void (*put)(struct stage_plan *plan, const struct block *block))
{
    struct block block;
    while (plan->at->node < plan->slice.op->map->node_count) {
        if (!stage_goes_on(plan)) {
            return false;
        }
        next_sent_together(&plan->slice, plan->at, &block);
        put(plan, &block);
    }
    return true;
}

/* Copies what this node's ranks sent to each other, then what other nodes sent. */
static bool go_out(struct stage_plan *plan)
{
    struct coll_stage_cursor *at = plan->at;
    struct block block;
    if (at->phase == 0) {
        if (plan->slice.op->mode == COLL_STAGE_STAGED && !go_through_sent(plan, sent_out)) {
            return false;
        }
        *at = (struct coll_stage_cursor){.phase = 1, .base = sent_elements(&plan->slice)};
    }
    while (at->item < plan->slice.op->map->size) {
        if (!stage_goes_on(plan)) {
            return false;
        }
        (void)next_received(&plan->slice, at, &block);
        received_out(plan, &block);
    }
    return true;
}

static bool go_on(struct stage_plan *plan, enum coll_stage_step step)
{
    const struct coll_stage_op *op = plan->slice.op;
    switch (step) {
    case COLL_STAGE_LOCAL:
        if (op->mode == COLL_STAGE_STAGED) {
            return true;
        }
        return pairs_are_counted(op) ? exchange_range(plan) : exchange_of_one(plan);
    case COLL_STAGE_IN:
        return !stage_pairs_in_memory(op) || go_through_sent(plan, sent_in);
    case COLL_STAGE_COMBINE:
        break;
    case COLL_STAGE_OUT:
        return !stage_pairs_in_memory(op) || go_out(plan);
    }
    return true;
}

bool stage_pairs_step(struct stage_plan *plan, enum coll_stage_step step)
{
    bool over = go_on(plan, step);
    if (has_many_blocks(plan->slice.op)) {
        stage_put_gathered(plan);
    }
    return over;
}
