#include <stdlib.h>
#include <string.h>

#include "tests/lib/chance.h"
#include "tests/lib/stage_model_internal.h"

/* Carries out pieces on symbolic values. */

static struct value as_source(struct world *world, const struct value *value, bool scaled)
{
    struct value out = *value;
    if (value->kind != (scaled ? VALUE_RAW : VALUE_SUM)) {
        stage_wrong(world, "step %d of slice %llu: a source of a sum is %s", (int)world->step,
                    (unsigned long long)world->slice, scaled ? "no input" : "not scaled, or no sum");
    }
    out.kind = VALUE_SUM;
    return out;
}

static void write_cell(struct world *world, uint64_t at, const struct value *value)
{
    struct cell *cell = &world->node->heap[at];
    bool may_write_sent = world->step == COLL_STAGE_OUT && coll_stage_out_writes_vector(&world->node->op);
    if (cell->read_only) {
        stage_wrong(world, "an input is written");
    } else if (cell->sent && !may_write_sent) {
        stage_wrong(world, "step %d of slice %llu writes what may be being sent", (int)world->step,
                    (unsigned long long)world->slice);
    }
    cell->value = *value;
    cell->writes++;
}

static void run_piece(struct world *world, const struct coll_stage_piece *piece)
{
    struct cell *heap = world->node->heap;
    for (uint64_t i = 0; i < piece->count_elements && !world->failed; i++) {
        struct value value = heap[stage_heap_place(world, &piece->sources[0]) + i].value;
        for (uint32_t k = 0; k < piece->source_count && piece->action != COLL_STAGE_COPY; k++) {
            const struct value *at = &heap[stage_heap_place(world, &piece->sources[k]) + i].value;
            struct value source = as_source(world, at, piece->sources[k].scaled);
            value = k == 0 ? source : stage_fold(world, &value, &source);
        }
        value.kind = piece->action == COLL_STAGE_DIVIDE ? VALUE_RESULT : value.kind;
        if (value.kind == VALUE_JUNK) {
            stage_wrong(world, "step %d of slice %llu: what nobody wrote is copied", (int)world->step,
                        (unsigned long long)world->slice);
        }
        for (uint32_t k = 0; k < piece->target_count; k++) {
            uint64_t target = stage_heap_place(world, &piece->targets[k]) + i;
            if (piece->action != COLL_STAGE_COPY ||
                target != stage_heap_place(world, &piece->sources[0]) + i) {
                write_cell(world, target, &value);
            }
        }
    }
}

static bool overlap(const struct world *world, const struct coll_stage_place *a,
                    const struct coll_stage_place *b, uint64_t count)
{
    uint64_t first = stage_heap_place(world, a), second = stage_heap_place(world, b);
    return first < second + count && second < first + count;
}

static void check_piece(struct world *world, const struct coll_stage_piece *piece)
{
    uint32_t entries = world->node->map.local_count * world->node->op.terms->bucket_ops;
    bool unsound = piece->count_elements == 0 || piece->source_count == 0 || piece->target_count == 0 ||
                   (piece->action == COLL_STAGE_COPY && piece->source_count != 1) ||
                   (piece->near != COLL_STAGE_ALL && piece->near >= entries);
    for (uint32_t k = 0; k < piece->source_count + piece->target_count; k++) {
        const struct coll_stage_place *place =
            k < piece->source_count ? &piece->sources[k] : &piece->targets[k - piece->source_count];
        if (stage_place_is_wrong(world, place, piece->count_elements)) {
            return;
        }
        bool of_domain = world->node->op.mode != COLL_STAGE_STAGED || place->buffer == COLL_STAGE_MEMORY ||
                         piece->domain == (place->buffer == COLL_STAGE_INPUT
                                               ? world->node->ranks[place->rank].input_domain
                                               : world->node->ranks[place->rank].output_domain);
        unsound = unsound || !of_domain || (k >= piece->source_count && place->buffer == COLL_STAGE_INPUT);
        bool is_input = k > 0 && k < piece->source_count && place->buffer == COLL_STAGE_INPUT &&
                        piece->sources[k - 1].buffer == COLL_STAGE_INPUT;
        bool is_slot =
            k > 0 && k < piece->source_count && world->step == COLL_STAGE_COMBINE && !place->scaled;
        unsound = unsound || (is_slot && place->offset_elements <= piece->sources[k - 1].offset_elements);
        unsound = unsound || (is_input && place->rank <= piece->sources[k - 1].rank);
    }
    for (uint32_t t = 0; t < piece->target_count && !world->only_bounds; t++) {
        for (uint32_t s = 0; s < piece->source_count; s++) {
            bool one =
                stage_heap_place(world, &piece->sources[s]) == stage_heap_place(world, &piece->targets[t]);
            unsound = unsound ||
                      (!one && overlap(world, &piece->sources[s], &piece->targets[t], piece->count_elements));
        }
        for (uint32_t other = 0; other < t; other++) {
            unsound =
                unsound || overlap(world, &piece->targets[t], &piece->targets[other], piece->count_elements);
        }
    }
    if (unsound) {
        stage_wrong(world, "step %d of slice %llu: an unsound piece", (int)world->step,
                    (unsigned long long)world->slice);
    }
}

/* Runs a random deferred piece. Earlier pieces of its domain come first. */
static void run_deferred(struct world *world)
{
    uint32_t at = (uint32_t)random_below(world->random, world->deferred_count);
    for (uint32_t before = 0; before < at; before++) {
        if (world->deferred[before]->domain == world->deferred[at]->domain) {
            at = before;
        }
    }
    struct coll_stage_piece *piece = world->deferred[at];
    run_piece(world, piece);
    free(piece);
    world->deferred_count--;
    memmove(&world->deferred[at], &world->deferred[at + 1],
            (world->deferred_count - at) * sizeof world->deferred[0]);
}

/* Whether the piece copies what is there already, as may happen in place. */
static bool changes_nothing(const struct world *world, const struct coll_stage_piece *piece)
{
    const struct cell *heap = world->node->heap;
    bool same = piece->action == COLL_STAGE_COPY;
    for (uint32_t k = 0; k < piece->target_count && same; k++) {
        for (uint64_t i = 0; i < piece->count_elements && same; i++) {
            same = heap[stage_heap_place(world, &piece->sources[0]) + i].value.hash ==
                   heap[stage_heap_place(world, &piece->targets[k]) + i].value.hash;
        }
    }
    return same;
}

/* Changes a piece as the fault says. Returns false if the piece is dropped. */
static bool change_piece(struct world *world, struct coll_stage_piece *piece)
{
    struct stage_fault *fault = world->fault;
    fault->is_harmless = changes_nothing(world, piece);
    fault->step = world->step;
    switch (fault->kind) {
    case STAGE_FAULT_NONE:
        break;
    case STAGE_FAULT_DROP:
        return false;
    case STAGE_FAULT_SHIFT:
        if (random_chance(world->random, 0.5)) {
            piece->sources[0].offset_elements++;
        } else {
            piece->targets[piece->target_count - 1].offset_elements++;
        }
        break;
    case STAGE_FAULT_SWAP:
        fault->is_harmless = fault->is_harmless || piece->source_count < 2;
        if (piece->source_count > 1) {
            struct coll_stage_place first = piece->sources[0];
            piece->sources[0] = piece->sources[1];
            piece->sources[1] = first;
        }
        break;
    }
    return true;
}

static void take_one(struct world *world, const struct coll_stage_piece *emitted)
{
    if (world->failed) {
        return;
    }
    struct coll_stage_piece *piece = stage_need(1, sizeof *piece);
    memcpy(piece, emitted, offsetof(struct coll_stage_piece, sources));
    memcpy(piece->sources, emitted->sources, emitted->source_count * sizeof piece->sources[0]);
    memcpy(piece->targets, emitted->targets, emitted->target_count * sizeof piece->targets[0]);
    bool kept = world->fault->pieces++ != world->fault->at || change_piece(world, piece);
    if (kept) {
        check_piece(world, piece);
    }
    bool defers = piece->domain != COLL_STAGE_HOST && !world->only_bounds;
    if (!kept || world->failed || world->only_bounds || !defers) {
        if (kept && !world->failed && !world->only_bounds) {
            run_piece(world, piece);
        }
        free(piece);
    } else if (world->deferred_count == DEFERRED_MAX) {
        abort();
    } else {
        world->deferred[world->deferred_count++] = piece;
    }
    while (world->deferred_count > 0 && !world->failed && random_chance(world->random, 0.3)) {
        run_deferred(world);
    }
}

/* Takes a piece of several copies as that many pieces, each with one source and one target. */
static void take_each(struct world *world, const struct coll_stage_piece *emitted)
{
    static struct coll_stage_piece piece;
    if (emitted->source_count != emitted->target_count || world->node->op.mode == COLL_STAGE_STAGED) {
        stage_wrong(world, "step %d of slice %llu: an unsound piece", (int)world->step,
                    (unsigned long long)world->slice);
    }
    memcpy(&piece, emitted, offsetof(struct coll_stage_piece, sources));
    piece.action = COLL_STAGE_COPY;
    piece.source_count = piece.target_count = 1;
    for (uint32_t i = 0; i < emitted->source_count; i++) {
        piece.sources[0] = emitted->sources[i];
        piece.targets[0] = emitted->targets[i];
        take_one(world, &piece);
    }
}

/* Takes a row of blocks as that many pieces. */
static void take_scatter(struct world *world, const struct coll_stage_piece *emitted)
{
    static struct coll_stage_piece piece;
    const struct node *node = world->node;
    if (emitted->source_count != 1 || emitted->target_count != 1 || emitted->rank_count == 0 ||
        emitted->targets[0].buffer != COLL_STAGE_OUTPUT || node->op.mode == COLL_STAGE_STAGED) {
        stage_wrong(world, "step %d of slice %llu: an unsound piece", (int)world->step,
                    (unsigned long long)world->slice);
    }
    memcpy(&piece, emitted, offsetof(struct coll_stage_piece, sources));
    piece.action = COLL_STAGE_COPY;
    piece.sources[0] = emitted->sources[0];
    piece.targets[0] = emitted->targets[0];
    for (uint32_t i = 0; i < emitted->rank_count; i++) {
        take_one(world, &piece);
        piece.sources[0].offset_elements += piece.count_elements;
        piece.targets[0].rank++;
    }
}

/* Takes a piece. Sometimes returns false; then the plan must continue from there later. */
static bool take_piece(void *context, const struct coll_stage_piece *emitted)
{
    struct world *world = context;
    if (emitted->action == COLL_STAGE_COPY_EACH) {
        take_each(world, emitted);
    } else if (emitted->action == COLL_STAGE_SCATTER) {
        take_scatter(world, emitted);
    } else {
        take_one(world, emitted);
    }
    return random_chance(world->random, 0.7);
}

void stage_run_step(struct world *world, uint32_t node, uint64_t slice, enum coll_stage_step step)
{
    if (world->failed) {
        return;
    }
    world->node = &world->nodes[node];
    world->slice = slice;
    world->step = step;
    struct coll_stage_cursor cursor = {0};
    while (!coll_stage_plan(&world->node->op, step, slice, &cursor, take_piece, world)) {
    }
    while (world->deferred_count > 0 && !world->failed) {
        run_deferred(world);
    }
    while (world->deferred_count > 0) {
        free(world->deferred[--world->deferred_count]);
    }
}
