#include "daemon/base/checked.h"
#include "daemon/coll/stage_internal.h"

/*
 * The stage plan of all_to_all. What a node sends (COLL_INPUT) lies by (node, sending rank, receiving rank),
 * what it gets (COLL_WORK) likewise. What stays on the node goes from input to output: unstaged in slices of
 * its own, which are ranges of the line of all pairs' blocks, by (sending rank, receiving rank); staged,
 * where one domain has both buffers, with the others; else through its place among what is sent.
 */

/* The slice's part of one block, between a rank of this node and any other. */
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

/* --- On the node --- */

/* Elements that both ranks of this node say go from the one to the other. */
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

uint64_t stage_pairs_total(const struct coll_stage_op *op)
{
    uint64_t locals = op->map->local_count;
    uint64_t total = 0;
    if (!op->terms.has_layouts) {
        return checked_mul_u64(locals * locals, op->terms.count_elements, &total) ? total : UINT64_MAX;
    }
    for (uint32_t from = 0; from < locals; from++) {
        for (uint32_t to = 0; to < locals; to++) {
            if (!checked_add_u64(total, pair_count(op, from, to), &total)) {
                return UINT64_MAX;
            }
        }
    }
    return total;
}

uint64_t coll_stage_local_slice_elements(const struct coll_stage_op *op, uint64_t slice_bytes)
{
    uint64_t least = (uint64_t)op->map->local_count * op->map->local_count * COLL_STAGE_PAIR_BYTES;
    uint64_t bytes = slice_bytes > least ? slice_bytes : least;
    return bytes > op->element_bytes ? bytes / op->element_bytes : 1;
}

uint64_t coll_stage_local_slices(const struct coll_stage_op *op)
{
    if (op->terms.kind != OP_KIND_ALL_TO_ALL || op->mode == COLL_STAGE_STAGED) {
        return 0;
    }
    uint64_t total = stage_pairs_total(op);
    return total == 0 ? 1 : (total - 1) / op->local_slice_elements + 1;
}

/* The pair that the line of all pairs has element `at` in, where blocks are equal; else the first one. */
static uint64_t first_pair(const struct coll_stage_op *op, uint64_t at, uint64_t *begin)
{
    uint64_t pair =
        op->terms.has_layouts || op->terms.count_elements == 0 ? 0 : at / op->terms.count_elements;
    *begin = pair * op->terms.count_elements;
    return pair;
}

static void exchange_locally(struct stage_plan *plan)
{
    const struct coll_stage_op *op = plan->slice.op;
    uint32_t locals = op->map->local_count;
    uint64_t slice_begin = plan->slice.index * op->local_slice_elements;
    uint64_t slice_end = slice_begin + op->local_slice_elements;
    uint64_t begin;
    uint64_t pair = first_pair(op, slice_begin, &begin);
    for (; pair < (uint64_t)locals * locals && begin < slice_end; pair++) {
        uint32_t from = (uint32_t)(pair / locals), to = (uint32_t)(pair % locals);
        uint64_t end = begin + pair_count(op, from, to);
        uint64_t first = begin > slice_begin ? begin : slice_begin;
        uint64_t last = end < slice_end ? end : slice_end;
        if (first < last) {
            stage_put_copy(plan, pair_source(op, from, to, first - begin),
                           pair_target(op, from, to, first - begin), last - first);
        }
        begin = end;
    }
}

/* --- Vectors --- */

void stage_pairs_measure(const struct stage_slice *slice, uint64_t *sent, uint64_t *received)
{
    const struct coll_map *map = slice->op->map;
    uint64_t out = 0, in = 0;
    for (uint32_t node = 0; node < map->node_count; node++) {
        sent[node] = out;
        received[node] = in;
        for (uint32_t k = map->node_first[node]; k < map->node_first[node + 1]; k++) {
            for (uint32_t local = 0; local < map->local_count; local++) {
                const struct coll_stage_rank *rank = &slice->op->ranks[local];
                out += part_of(slice, &rank->input_layout, map->order[k]).count_elements;
                in += part_of(slice, &rank->output_layout, map->order[k]).count_elements;
            }
        }
    }
    sent[map->node_count] = out;
    received[map->node_count] = in;
}

/* Calls `visit` for each block that is sent, or got, in its order: with the local rank, the other rank, and
 * the block's part and place in the vector. */
typedef void visit_block(void *context, uint32_t local, uint32_t other, struct part part, uint64_t begin);

static uint64_t for_sent(const struct stage_slice *slice, visit_block *visit, void *context)
{
    const struct coll_map *map = slice->op->map;
    uint64_t begin = 0;
    for (uint32_t node = 0; node < map->node_count; node++) {
        for (uint32_t local = 0; local < map->local_count; local++) {
            for (uint32_t k = map->node_first[node]; k < map->node_first[node + 1]; k++) {
                struct part part = part_of(slice, &slice->op->ranks[local].input_layout, map->order[k]);
                visit(context, local, map->order[k], part, begin);
                begin += part.count_elements;
            }
        }
    }
    return begin;
}

static void for_received(const struct stage_slice *slice, visit_block *visit, void *context)
{
    const struct coll_map *map = slice->op->map;
    uint64_t begin = 0;
    for (uint32_t k = 0; k < map->size; k++) {
        for (uint32_t local = 0; local < map->local_count; local++) {
            struct part part = part_of(slice, &slice->op->ranks[local].output_layout, map->order[k]);
            visit(context, local, map->order[k], part, begin);
            begin += part.count_elements;
        }
    }
}

struct lay_out {
    const struct coll_stage_op *op;
    bool input;
    uint64_t memory_begin;
    coll_stage_extent *extent;
    void *context;
};

static void lay_out_block(void *context, uint32_t local, uint32_t other, struct part part, uint64_t begin)
{
    const struct lay_out *to = context;
    const struct coll_stage_rank *rank = &to->op->ranks[local];
    struct coll_stage_place place = stage_memory(to->memory_begin + begin);
    if (to->op->mode != COLL_STAGE_STAGED && to->input) {
        place = stage_input(local, stage_block_begin(to->op, &rank->input_layout, other) + part.offset);
    } else if (to->op->mode != COLL_STAGE_STAGED) {
        place = stage_output(local, stage_block_begin(to->op, &rank->output_layout, other) + part.offset);
    }
    to->extent(to->context, &place, part.count_elements);
}

static void skip_block(void *context, uint32_t local, uint32_t other, struct part part, uint64_t begin)
{
    (void)context;
    (void)local;
    (void)other;
    (void)part;
    (void)begin;
}

void stage_pairs_lay_out(const struct stage_slice *slice, enum coll_space space, coll_stage_extent *extent,
                         void *context)
{
    struct lay_out to = {.op = slice->op, .input = space == COLL_INPUT, .extent = extent, .context = context};
    if (space == COLL_INPUT) {
        (void)for_sent(slice, lay_out_block, &to);
    } else if (space == COLL_WORK) {
        to.memory_begin = slice->op->mode == COLL_STAGE_STAGED ? for_sent(slice, skip_block, NULL) : 0;
        for_received(slice, lay_out_block, &to);
    }
}

/* --- Staged --- */

static bool goes_straight(const struct coll_stage_op *op, uint32_t from, uint32_t to)
{
    return op->ranks[from].input_domain == op->ranks[to].output_domain;
}

static void sent_in(void *context, uint32_t local, uint32_t other, struct part part, uint64_t begin)
{
    struct stage_plan *plan = context;
    const struct coll_stage_op *op = plan->slice.op;
    const struct coll_layout *layout = &op->ranks[local].input_layout;
    uint32_t to = op->map->local_of_rank[other];
    struct coll_stage_place source = stage_input(local, stage_block_begin(op, layout, other) + part.offset);
    if (to == UINT32_MAX) {
        stage_put_copy(plan, source, stage_memory(begin), part.count_elements);
        return;
    }
    bool straight = goes_straight(op, local, to);
    stage_put_copy(plan, source, straight ? pair_target(op, local, to, part.offset) : stage_memory(begin),
                   stage_within(part.offset, part.count_elements, pair_count(op, local, to)));
}

/* What did not go straight: from where it was read to. */
static void sent_out(void *context, uint32_t local, uint32_t other, struct part part, uint64_t begin)
{
    struct stage_plan *plan = context;
    const struct coll_stage_op *op = plan->slice.op;
    uint32_t to = op->map->local_of_rank[other];
    if (to != UINT32_MAX && !goes_straight(op, local, to)) {
        stage_put_copy(plan, stage_memory(begin), pair_target(op, local, to, part.offset),
                       stage_within(part.offset, part.count_elements, pair_count(op, local, to)));
    }
}

struct received_out {
    struct stage_plan *plan;
    uint64_t memory_begin;
};

static void received_out(void *context, uint32_t local, uint32_t other, struct part part, uint64_t begin)
{
    struct received_out *out = context;
    const struct coll_stage_op *op = out->plan->slice.op;
    const struct coll_layout *layout = &op->ranks[local].output_layout;
    if (op->map->local_of_rank[other] == UINT32_MAX) {
        stage_put_copy(out->plan, stage_memory(out->memory_begin + begin),
                       stage_output(local, stage_block_begin(op, layout, other) + part.offset),
                       part.count_elements);
    }
}

void stage_pairs_step(struct stage_plan *plan, enum coll_stage_step step)
{
    bool staged = plan->slice.op->mode == COLL_STAGE_STAGED;
    if (step == COLL_STAGE_LOCAL && !staged) {
        exchange_locally(plan);
    } else if (step == COLL_STAGE_IN && staged) {
        (void)for_sent(&plan->slice, sent_in, plan);
    } else if (step == COLL_STAGE_OUT && staged) {
        struct received_out out = {.plan = plan};
        out.memory_begin = for_sent(&plan->slice, sent_out, plan);
        for_received(&plan->slice, received_out, &out);
    }
}
