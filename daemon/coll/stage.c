#include "daemon/coll/stage.h"

#include <assert.h>

#include "daemon/base/checked.h"
#include "daemon/coll/stage_internal.h"

/* The domains' parts of a sum lie a multiple of this apart, so no cache line has elements of two parts. */
#define SLOT_ALIGN_ELEMENTS 256

static enum stage_family stage_family_of(enum op_kind kind)
{
    switch (kind) {
    case OP_KIND_ALL_REDUCE:
    case OP_KIND_REDUCE:
    case OP_KIND_BROADCAST:
        return STAGE_VECTOR;
    case OP_KIND_ALL_GATHER:
    case OP_KIND_REDUCE_SCATTER:
    case OP_KIND_GATHER:
    case OP_KIND_SCATTER:
        return STAGE_BLOCKS;
    case OP_KIND_ALL_TO_ALL:
        return STAGE_PAIRS;
    case OP_KIND_SCAN:
    case OP_KIND_EXCLUSIVE_SCAN:
        return STAGE_SCAN;
    case OP_KIND_BARRIER:
    case OP_KIND_SEND:
    case OP_KIND_RECEIVE:
        break;
    }
    return STAGE_NONE;
}

static struct stage_slice stage_slice_of(const struct coll_stage_op *op, uint64_t index)
{
    struct stage_slice slice = {.op = op, .index = index, .count_elements = op->total_elements};
    enum stage_family family = stage_family_of(op->terms->kind);
    if ((family == STAGE_VECTOR || family == STAGE_SCAN) && op->slice_count > 1) {
        coll_slice_range(op->total_elements, op->element_bytes, op->slice_bytes, index,
                         &slice.offset_elements, &slice.count_elements);
    }
    return slice;
}

/* --- Facts that all nodes agree on --- */

bool coll_stage_sizes_are_private(const struct coll_stage_op *op)
{
    return op->terms->has_layouts && op_kind_has_private_counts(op->terms->kind);
}

bool coll_stage_is_scan(const struct op_terms *terms)
{
    return stage_family_of(terms->kind) == STAGE_SCAN;
}

enum op_kind coll_stage_schedule_kind(enum op_kind kind, const struct coll_map *map)
{
    bool gathers = stage_family_of(kind) == STAGE_SCAN && !coll_map_is_contiguous(map);
    return gathers ? OP_KIND_ALL_GATHER : kind;
}

bool coll_stage_total(const struct coll_stage_op *op, uint64_t *out)
{
    bool fits = true;
    *out = 0;
    switch (stage_family_of(op->terms->kind)) {
    case STAGE_PAIRS: /* with layouts no node knows it */
        return checked_mul_u64(op->terms->count_elements, op->map->size, out);
    case STAGE_BLOCKS:
        for (uint32_t position = 0; position < op->map->size; position++) {
            uint64_t count;
            fits = fits && coll_stage_block_count(op, position, &count) && checked_add_u64(*out, count, out);
        }
        return fits;
    case STAGE_VECTOR:
    case STAGE_SCAN:
        for (uint32_t part = 0; part < op->terms->bucket_ops; part++) {
            fits = fits && checked_add_u64(*out, op->part_counts[part], out);
        }
        return fits;
    case STAGE_NONE:
        break;
    }
    return true;
}

bool coll_stage_needs_agreement(const struct coll_stage_op *op)
{
    bool hears_of_all = op->terms->kind == OP_KIND_ALL_REDUCE || op->terms->kind == OP_KIND_ALL_GATHER ||
                        op->terms->kind == OP_KIND_REDUCE_SCATTER || op->terms->kind == OP_KIND_ALL_TO_ALL;
    return op->terms->kind != OP_KIND_BARRIER &&
           (op->total_elements == 0 || op->terms->has_layouts || !hears_of_all);
}

uint64_t coll_stage_touched_elements(const struct coll_stage_op *op)
{
    uint64_t locals = op->map->local_count;
    switch (stage_family_of(op->terms->kind)) {
    case STAGE_VECTOR:
        return (op->terms->kind == OP_KIND_ALL_REDUCE ? 2 * locals : locals + 1) * op->total_elements;
    case STAGE_BLOCKS:
        return (op_kind_has_root(op->terms->kind) ? 2 : locals + 1) * op->total_elements;
    case STAGE_PAIRS:
        return 2 * stage_pairs_total(op);
    case STAGE_SCAN:
    case STAGE_NONE:
        break;
    }
    return 0;
}

bool coll_stage_in_place(const struct coll_stage_op *op, uint32_t rank, struct coll_stage_place *first,
                         struct coll_stage_place *same)
{
    const struct coll_stage_rank *at = &op->ranks[rank];
    uint32_t number = coll_map_local_rank(op->map, rank % op->map->local_count);
    *first = stage_input(rank, 0);
    *same = stage_output(rank, 0);
    if (op->terms->kind == OP_KIND_ALL_GATHER || op->terms->kind == OP_KIND_GATHER) {
        same->offset_elements = stage_own_block_begin(op, rank, &at->output_layout, number);
    } else if (op->terms->kind == OP_KIND_REDUCE_SCATTER || op->terms->kind == OP_KIND_SCATTER) {
        *first = stage_output(rank, 0);
        *same = stage_input(rank, stage_own_block_begin(op, rank, &at->input_layout, number));
    }
    return op->terms->kind != OP_KIND_ALL_TO_ALL; /* it would overwrite blocks before they are sent */
}

uint64_t coll_stage_slice_offset(const struct coll_stage_op *op, uint64_t slice)
{
    return stage_slice_of(op, slice).offset_elements;
}

uint64_t coll_stage_alone_slice_bytes(const struct coll_stage_op *op, uint64_t slice_bytes,
                                      uint64_t most_bytes)
{
    enum stage_family family = stage_family_of(op->terms->kind);
    bool has_blocks = family == STAGE_BLOCKS || family == STAGE_PAIRS;
    uint64_t most = has_blocks ? slice_bytes : most_bytes / op->map->local_count;
    return slice_bytes < most ? slice_bytes : most;
}

/* --- Domains --- */

uint32_t stage_slots(const struct coll_stage_op *op, uint32_t part)
{
    const struct coll_stage_rank *ranks = &op->ranks[(size_t)part * op->map->local_count];
    uint64_t seen = 0;
    uint32_t count = 0;
    for (uint32_t local = 0; local < op->map->local_count; local++) {
        uint64_t bit = UINT64_C(1) << ranks[local].input_domain;
        count += (seen & bit) == 0;
        seen |= bit;
    }
    return count;
}

static void hand_over(struct stage_plan *plan)
{
    plan->stopped |= !plan->emit(plan->context, &plan->piece);
}

static uint32_t domain_of(const struct coll_stage_op *op, const struct coll_stage_place *place)
{
    const struct coll_stage_rank *rank = &op->ranks[place->rank];
    return place->buffer == COLL_STAGE_INPUT ? rank->input_domain : rank->output_domain;
}

/* Collects the places of one domain, in their order. */
static uint32_t places_of(const struct coll_stage_op *op, uint32_t domain,
                          const struct coll_stage_place *places, uint32_t count, struct coll_stage_place *out)
{
    uint32_t found = 0;
    for (uint32_t i = 0; i < count; i++) {
        if (domain_of(op, &places[i]) == domain) {
            out[found++] = places[i];
        }
    }
    return found;
}

/*
 * Splits the piece by the domains of its inputs or outputs: `places` and `count` are the piece's own. Each
 * domain's contribution goes to a vector of its own, `apart_elements` behind the one before it. That of the
 * first domain goes to the slice's vector.
 */
static void put_by_domains(struct stage_plan *plan, struct coll_stage_place *places, uint32_t *count,
                           uint64_t apart_elements)
{
    const struct coll_stage_op *op = plan->slice.op;
    struct coll_stage_piece *piece = &plan->piece;
    struct coll_stage_place all[COLL_STAGE_PLACES_MAX];
    uint32_t all_count = *count;
    uint64_t seen = 0;
    for (uint32_t i = 0; i < all_count; i++) {
        all[i] = places[i];
    }
    for (uint32_t i = 0; i < all_count; i++) {
        uint32_t domain = domain_of(op, &all[i]);
        if ((seen >> domain & 1) != 0) {
            continue;
        }
        seen |= UINT64_C(1) << domain;
        piece->domain = domain;
        *count = places_of(op, domain, all, all_count, places);
        hand_over(plan);
        piece->targets[0].offset_elements += apart_elements;
    }
}

void stage_put(struct stage_plan *plan)
{
    struct coll_stage_piece *piece = &plan->piece;
    if (piece->source_count == 0 || piece->target_count == 0 || piece->count_elements == 0) {
        return;
    }
    assert(piece->source_count <= COLL_STAGE_PLACES_MAX && piece->target_count <= COLL_STAGE_PLACES_MAX);
    bool staged = plan->slice.op->mode == COLL_STAGE_STAGED;
    if (staged && piece->sources[0].buffer == COLL_STAGE_INPUT) {
        put_by_domains(plan, piece->sources, &piece->source_count, plan->slot_elements);
    } else if (staged && piece->targets[0].buffer == COLL_STAGE_OUTPUT) {
        put_by_domains(plan, piece->targets, &piece->target_count, 0);
    } else {
        hand_over(plan);
    }
}

void stage_put_gathered(struct stage_plan *plan)
{
    struct coll_stage_piece *piece = &plan->piece;
    piece->action = piece->source_count > 1 ? COLL_STAGE_COPY_EACH : COLL_STAGE_COPY;
    stage_put(plan);
    piece->source_count = 0;
}

void stage_put_each(struct stage_plan *plan, struct coll_stage_place source, struct coll_stage_place target,
                    uint64_t count_elements)
{
    const struct coll_stage_piece *piece = &plan->piece;
    uint64_t bytes = (piece->source_count + UINT64_C(1)) * plan->slice.op->element_bytes;
    if (count_elements == 0) {
        return;
    }
    if (piece->source_count > 0 &&
        (piece->source_count == COLL_STAGE_PLACES_MAX || piece->count_elements != count_elements ||
         count_elements > COLL_STAGE_EACH_BYTES / bytes)) {
        stage_put_gathered(plan);
    }
    if (piece->source_count == 0) {
        stage_piece(plan, COLL_STAGE_COPY, count_elements);
    }
    stage_source(plan, source);
    stage_target(plan, target);
}

void stage_put_scatter(struct stage_plan *plan, struct coll_stage_place source,
                       struct coll_stage_place target, uint32_t rank_count, uint64_t count_elements)
{
    stage_put_gathered(plan);
    stage_piece(plan, COLL_STAGE_SCATTER, count_elements);
    plan->piece.rank_count = rank_count;
    stage_source(plan, source);
    stage_target(plan, target);
    stage_put(plan);
    plan->piece.source_count = 0;
}

static uint64_t slot_elements(uint64_t vector_elements)
{
    return (vector_elements + SLOT_ALIGN_ELEMENTS - 1) / SLOT_ALIGN_ELEMENTS * SLOT_ALIGN_ELEMENTS;
}

/* --- Plans --- */

static uint64_t vector_elements(const struct stage_slice *slice)
{
    return stage_family_of(slice->op->terms->kind) == STAGE_BLOCKS ? stage_blocks_measure(slice, NULL)
                                                                   : slice->count_elements;
}

bool coll_stage_plan(const struct coll_stage_op *op, enum coll_stage_step step, uint64_t slice,
                     struct coll_stage_cursor *cursor, coll_stage_emit *emit, void *context)
{
    struct stage_plan plan;
    if ((op->mode == COLL_STAGE_ALONE && step != COLL_STAGE_LOCAL) ||
        (op->mode != COLL_STAGE_STAGED && step == COLL_STAGE_COMBINE) ||
        (step == COLL_STAGE_IN && coll_stage_lends_input(op))) {
        return true;
    }
    plan.slice = stage_slice_of(op, slice);
    plan.emit = emit;
    plan.context = context;
    plan.at = cursor;
    plan.looks = COLL_STAGE_LOOKS;
    plan.stopped = false;
    plan.piece.source_count = 0;
    plan.slot_elements = stage_has_slots(op) ? slot_elements(vector_elements(&plan.slice)) : 0;
    switch (stage_family_of(op->terms->kind)) {
    case STAGE_VECTOR:
        return stage_vector_step(&plan, step);
    case STAGE_BLOCKS:
        return stage_blocks_step(&plan, step);
    case STAGE_PAIRS:
        return stage_pairs_step(&plan, step);
    case STAGE_SCAN:
        return stage_scan_step(&plan, step);
    case STAGE_NONE:
        break;
    }
    return true;
}

/* --- Vectors of a slice --- */

/* A scan that gathers has one part of the vector for each run of ranks. */
static void measure_runs(const struct stage_slice *slice, uint64_t *offsets)
{
    const struct coll_map *map = slice->op->map;
    for (uint32_t node = 0; node <= map->node_count; node++) {
        offsets[node] = map->run_first[node] * slice->count_elements;
    }
}

bool coll_stage_measure(struct coll_stage_op *op, uint64_t index, struct coll_stage_cursor *cursor,
                        uint64_t *offsets)
{
    struct stage_slice slice = stage_slice_of(op, index);
    uint64_t *sent = offsets + op->map->node_count + 1;
    switch (stage_family_of(op->terms->kind)) {
    case STAGE_BLOCKS:
        (void)stage_blocks_measure(&slice, offsets);
        break;
    case STAGE_PAIRS:
        if (!stage_pairs_measure(&slice, cursor, sent, offsets)) {
            return false;
        }
        op->sent_elements = sent[op->map->node_count];
        op->received_elements = offsets[op->map->node_count];
        break;
    case STAGE_SCAN:
        if (stage_scan_gathers(op)) {
            measure_runs(&slice, offsets);
        }
        break;
    case STAGE_VECTOR:
    case STAGE_NONE:
        break;
    }
    return true;
}

struct coll_call coll_stage_call(const struct coll_stage_op *op, uint64_t index, const uint64_t *offsets)
{
    struct stage_slice slice = stage_slice_of(op, index);
    enum stage_family family = stage_family_of(op->terms->kind);
    bool has_blocks =
        family == STAGE_BLOCKS || family == STAGE_PAIRS || (family == STAGE_SCAN && stage_scan_gathers(op));
    return (struct coll_call){
        .kind = coll_stage_schedule_kind(op->terms->kind, op->map),
        .node_count = op->map->node_count,
        .node_index = op->map->node_index,
        .keeps_empty = coll_stage_sizes_are_private(op),
        .count_elements = has_blocks ? offsets[op->map->node_count] : slice.count_elements,
        .block_offsets = has_blocks ? offsets : NULL,
        .send_offsets = family == STAGE_PAIRS ? offsets + op->map->node_count + 1 : NULL};
}

/* Finds the end of the extents in the slice's memory. */
static void memory_end(void *context, const struct coll_stage_place *place, uint64_t count_elements)
{
    uint64_t *end = context;
    uint64_t reaches = place->offset_elements + count_elements;
    if (place->buffer == COLL_STAGE_MEMORY && reaches > *end) {
        *end = reaches;
    }
}

/* Lays out COLL_WORK for families whose time does not grow with the ranks on the node. */
static void lay_out_at_once(const struct stage_slice *slice, coll_stage_extent *extent, void *context)
{
    switch (stage_family_of(slice->op->terms->kind)) {
    case STAGE_VECTOR:
        stage_vector_lay_out(slice, false, extent, context);
        return;
    case STAGE_BLOCKS:
        stage_blocks_lay_out(slice, extent, context);
        return;
    case STAGE_SCAN:
        stage_scan_lay_out(slice, extent, context);
        return;
    case STAGE_PAIRS:
    case STAGE_NONE:
        return;
    }
}

uint64_t coll_stage_memory_elements(const struct coll_stage_op *op, uint64_t index)
{
    struct stage_slice slice = stage_slice_of(op, index);
    enum stage_family family = stage_family_of(op->terms->kind);
    uint32_t slots = 1;
    uint64_t end = 0;
    if (family == STAGE_SCAN) {
        return stage_scan_memory(&slice);
    }
    if (op->mode == COLL_STAGE_ALONE) {
        return 0;
    }
    if (family == STAGE_PAIRS) {
        return stage_pairs_memory(&slice);
    }
    lay_out_at_once(&slice, memory_end, &end);
    for (uint32_t part = 0; stage_has_slots(op) && part < op->terms->bucket_ops; part++) {
        uint32_t of_part = stage_slots(op, part);
        slots = of_part > slots ? of_part : slots;
    }
    return slots == 1 ? end : slots * slot_elements(vector_elements(&slice));
}

bool coll_stage_lay_out(const struct coll_stage_op *op, uint64_t index, enum coll_space space,
                        struct coll_stage_cursor *cursor, coll_stage_extent *extent, void *context)
{
    struct stage_slice slice = stage_slice_of(op, index);
    if (stage_family_of(op->terms->kind) == STAGE_PAIRS) {
        return stage_pairs_lay_out(&slice, space, cursor, extent, context);
    }
    if (space == COLL_WORK) {
        lay_out_at_once(&slice, extent, context);
    }
    return true;
}

uint32_t coll_stage_extents_max(const struct coll_stage_op *op, enum coll_space space)
{
    if (space == COLL_SCRATCH || (space == COLL_INPUT && stage_family_of(op->terms->kind) != STAGE_PAIRS)) {
        return 0;
    }
    switch (stage_family_of(op->terms->kind)) {
    case STAGE_VECTOR:
        return op->terms->bucket_ops;
    case STAGE_BLOCKS:
        return op->map->size * op->terms->bucket_ops;
    case STAGE_PAIRS:
        return stage_pairs_in_memory(op) ? 1 : op->map->local_count * op->map->size;
    case STAGE_SCAN:
        return 1;
    case STAGE_NONE:
        break;
    }
    return 0;
}

bool coll_stage_lends_input(const struct coll_stage_op *op)
{
    return op->keeps_input && op->mode == COLL_STAGE_UNSTAGED && op->map->local_count == 1 &&
           op_kind_reduces(op->terms->kind) && !op_kind_is_scan(op->terms->kind);
}

void coll_stage_lay_out_input(const struct coll_stage_op *op, uint64_t index, coll_stage_extent *extent,
                              void *context)
{
    struct stage_slice slice = stage_slice_of(op, index);
    if (stage_family_of(op->terms->kind) == STAGE_BLOCKS) {
        stage_blocks_lay_out_input(&slice, extent, context);
    } else {
        stage_vector_lay_out(&slice, true, extent, context);
    }
}

bool coll_stage_out_writes_vector(const struct coll_stage_op *op)
{
    return op->divides && (op->mode == COLL_STAGE_UNSTAGED || op->vector_ranks > 0);
}
