#include "daemon/coll/stage_internal.h"

/*
 * The stage plans of scans. A slice's memory holds, in this order: running value and prefix (if ranks are not
 * contiguous: the value of each run of ranks); the fold of all ranks before a run; room for two values; if
 * staged, a place for each local rank, for its input and later its output. All folds go from lower to higher
 * ranks.
 */

bool stage_scan_gathers(const struct coll_stage_op *op)
{
    return !coll_map_is_contiguous(op->map);
}

/* Values in the slice's vector. */
static uint64_t value_count(const struct coll_stage_op *op)
{
    return stage_scan_gathers(op) ? op->map->run_count : 2;
}

/* Values after it: the fold of all ranks before a run, and room for two. For contiguous ranks, the prefix is
 * the fold of the ranks before them. */
static uint64_t extra_count(const struct coll_stage_op *op)
{
    return stage_scan_gathers(op) ? 3 : 2;
}

static struct coll_stage_place value_place(const struct stage_slice *slice, uint64_t index)
{
    return stage_memory(index * slice->count_elements + slice->strip_begin);
}

/* The fold of the ranks before a run. The first node's ranks, and a node alone, have none. */
static struct coll_stage_place before_place(const struct stage_slice *slice)
{
    return value_place(slice, stage_scan_gathers(slice->op) ? value_count(slice->op) : 1);
}

/* Room for one value. */
static struct coll_stage_place spare_place(const struct stage_slice *slice, uint32_t index)
{
    bool alone = slice->op->mode == COLL_STAGE_ALONE;
    return value_place(slice, alone ? index : value_count(slice->op) + extra_count(slice->op) - 2 + index);
}

/* Staged: the place of a local rank. */
static struct coll_stage_place own_place(const struct stage_slice *slice, uint32_t local)
{
    return value_place(slice, value_count(slice->op) + extra_count(slice->op) + local);
}

static struct coll_stage_place input_place(const struct stage_slice *slice, uint32_t local)
{
    bool staged = slice->op->mode == COLL_STAGE_STAGED;
    return stage_scaled(staged ? own_place(slice, local)
                               : stage_input(local, slice->offset_elements + slice->strip_begin),
                        local);
}

static struct coll_stage_place output_place(const struct stage_slice *slice, uint32_t local)
{
    bool staged = slice->op->mode == COLL_STAGE_STAGED;
    return staged ? own_place(slice, local)
                  : stage_output(local, slice->offset_elements + slice->strip_begin);
}

uint64_t stage_scan_memory(const struct stage_slice *slice)
{
    const struct coll_stage_op *op = slice->op;
    if (op->mode == COLL_STAGE_ALONE) {
        return op->has_memory && op->terms->kind == OP_KIND_EXCLUSIVE_SCAN ? 2 * slice->count_elements : 0;
    }
    uint64_t own = op->mode == COLL_STAGE_STAGED ? op->map->local_count : 0;
    return (value_count(op) + extra_count(op) + own) * slice->count_elements;
}

void stage_scan_lay_out(const struct stage_slice *slice, coll_stage_extent *extent, void *context)
{
    struct coll_stage_place place = stage_memory(0);
    extent(context, &place, value_count(slice->op) * slice->count_elements);
}

/* --- Sums of runs --- */

static void fold_locals(struct stage_plan *plan, uint32_t first, uint32_t count,
                        struct coll_stage_place target)
{
    stage_piece(plan, COLL_STAGE_REDUCE, plan->slice.strip_elements);
    for (uint32_t local = first; local < first + count; local++) {
        stage_source(plan, input_place(&plan->slice, local));
    }
    stage_target(plan, target);
    stage_put(plan);
}

static void fold_runs(struct stage_plan *plan)
{
    const struct coll_map *map = plan->slice.op->map;
    if (!stage_scan_gathers(plan->slice.op)) {
        fold_locals(plan, 0, map->local_count, value_place(&plan->slice, 0));
        return;
    }
    for (uint32_t r = 0; r < map->run_count; r++) {
        const struct coll_run *run = &map->runs[r];
        if (run->node == map->node_index) {
            fold_locals(plan, run->first_local, run->rank_count, value_place(&plan->slice, run->slot));
        }
    }
}

static void read_inputs(struct stage_plan *plan)
{
    for (uint32_t local = 0; local < plan->slice.op->map->local_count; local++) {
        stage_put_copy(plan, stage_input(local, plan->slice.offset_elements), own_place(&plan->slice, local),
                       plan->slice.strip_elements);
    }
}

/* --- Prefixes --- */

/* Folds left (op) the rank's input. If left is null, the value is the input alone. */
static void fold_one(struct stage_plan *plan, const struct coll_stage_place *left, uint32_t local,
                     struct coll_stage_place target)
{
    stage_piece(plan, COLL_STAGE_REDUCE, plan->slice.strip_elements);
    if (left != NULL) {
        stage_source(plan, *left);
    }
    stage_source(plan, input_place(&plan->slice, local));
    stage_target(plan, target);
    stage_put(plan);
}

/* Each output is the previous output (op) the rank's own input. */
static void scan_inclusive(struct stage_plan *plan, uint32_t first, uint32_t count,
                           const struct coll_stage_place *before)
{
    struct coll_stage_place left;
    for (uint32_t local = first; local < first + count; local++) {
        bool has_left = before != NULL || local > first;
        if (has_left) {
            left = local > first ? output_place(&plan->slice, local - 1) : *before;
        }
        fold_one(plan, has_left ? &left : NULL, local, output_place(&plan->slice, local));
    }
}

/* In place an output may be the input that later ranks need, so that input is folded first. */
static void scan_exclusive(struct stage_plan *plan, uint32_t first, uint32_t count,
                           const struct coll_stage_place *before)
{
    struct coll_stage_place left;
    bool has_left = before != NULL;
    if (has_left) {
        left = *before;
    }
    for (uint32_t local = first; local < first + count; local++) {
        struct coll_stage_place next = spare_place(&plan->slice, (local - first) % 2);
        if (local + 1 < first + count) {
            fold_one(plan, has_left ? &left : NULL, local, next);
        }
        if (has_left) {
            stage_put_copy(plan, left, output_place(&plan->slice, local), plan->slice.strip_elements);
        }
        left = next;
        has_left = true;
    }
}

/* Scans the ranks first .. first + count - 1 of this node, after the value `before`; null: there is none. */
static void scan_locals(struct stage_plan *plan, uint32_t first, uint32_t count,
                        const struct coll_stage_place *before)
{
    if (plan->slice.op->terms->kind == OP_KIND_SCAN) {
        scan_inclusive(plan, first, count, before);
    } else {
        scan_exclusive(plan, first, count, before);
    }
}

/* Scans every run of this node, after the fold of all earlier runs. */
static void scan_runs(struct stage_plan *plan)
{
    const struct coll_map *map = plan->slice.op->map;
    struct coll_stage_place before = before_place(&plan->slice);
    uint32_t own_left = map->run_first[map->node_index + 1] - map->run_first[map->node_index];
    for (uint32_t r = 0; r < map->run_count && own_left > 0; r++) {
        const struct coll_run *run = &map->runs[r];
        if (run->node == map->node_index) {
            scan_locals(plan, run->first_local, run->rank_count, r > 0 ? &before : NULL);
            own_left--;
        }
        struct coll_stage_place value = value_place(&plan->slice, run->slot);
        if (own_left > 0 && r == 0) {
            stage_put_copy(plan, value, before, plan->slice.strip_elements);
        } else if (own_left > 0) {
            stage_piece(plan, COLL_STAGE_REDUCE, plan->slice.strip_elements);
            stage_source(plan, before);
            stage_source(plan, value);
            stage_target(plan, before);
            stage_put(plan);
        }
    }
}

/* Staged: copies the ranks' places to their outputs. */
static void write_outputs(struct stage_plan *plan)
{
    const struct coll_stage_op *op = plan->slice.op;
    bool exclusive = op->terms->kind == OP_KIND_EXCLUSIVE_SCAN;
    for (uint32_t local = 0; local < op->map->local_count; local++) {
        if (!exclusive || coll_map_local_rank(op->map, local) > 0) {
            stage_put_copy(plan, own_place(&plan->slice, local),
                           stage_output(local, plan->slice.offset_elements), plan->slice.strip_elements);
        }
    }
}

/*
 * Without memory, in as many steps as ranks. It goes from the last rank to the first, because in place an
 * output is an input of the later ranks. One engine does all steps, in this order.
 */
static void scan_alone(struct stage_plan *plan)
{
    const struct coll_stage_op *op = plan->slice.op;
    uint32_t skipped = op->terms->kind == OP_KIND_EXCLUSIVE_SCAN ? 1 : 0;
    if (op->has_memory) {
        scan_locals(plan, 0, op->map->local_count, NULL);
        return;
    }
    for (uint32_t last = op->map->local_count; last > skipped; last--) {
        stage_piece(plan, COLL_STAGE_REDUCE, plan->slice.strip_elements);
        plan->piece.near = 0;
        for (uint32_t local = 0; local < last - skipped; local++) {
            stage_source(plan, input_place(&plan->slice, local));
        }
        stage_target(plan, output_place(&plan->slice, last - 1));
        stage_put(plan);
    }
}

static void scan_strip(struct stage_plan *plan, enum coll_stage_step step)
{
    const struct coll_stage_op *op = plan->slice.op;
    bool staged = op->mode == COLL_STAGE_STAGED;
    struct coll_stage_place before = before_place(&plan->slice);
    switch (step) {
    case COLL_STAGE_LOCAL:
        if (op->mode == COLL_STAGE_ALONE) {
            scan_alone(plan);
        }
        return;
    case COLL_STAGE_IN:
        if (staged) {
            read_inputs(plan);
        } else {
            fold_runs(plan);
        }
        return;
    case COLL_STAGE_COMBINE:
        fold_runs(plan);
        return;
    case COLL_STAGE_OUT:
        if (stage_scan_gathers(op)) {
            scan_runs(plan);
        } else {
            scan_locals(plan, 0, op->map->local_count, op->map->node_index > 0 ? &before : NULL);
        }
        if (staged) {
            write_outputs(plan);
        }
        return;
    }
}

bool stage_scan_step(struct stage_plan *plan, enum coll_stage_step step)
{
    struct stage_slice *slice = &plan->slice;
    struct coll_stage_cursor *at = plan->at;
    uint64_t places = slice->op->map->local_count * UINT64_C(3);
    while (at->within < slice->count_elements) {
        if (!stage_goes_on(plan)) {
            return false;
        }
        slice->strip_begin = at->within;
        slice->strip_elements = stage_strip(slice->op, slice->count_elements - at->within, places);
        scan_strip(plan, step);
        at->within += slice->strip_elements;
    }
    return true;
}
