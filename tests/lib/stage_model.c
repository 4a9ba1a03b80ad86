#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/coll/slice.h"
#include "tests/lib/chance.h"
#include "tests/lib/stage_model_internal.h"

uint64_t stage_mix(uint64_t a, uint64_t b)
{
    uint64_t x = a * UINT64_C(0x9e3779b97f4a7c15) ^ (b + UINT64_C(0x7f4a7c159e3779b9));
    x ^= x >> 31;
    x *= UINT64_C(0xd6e8feb86659fd93);
    return x ^ x >> 29;
}

static struct value leaf(uint32_t rank, uint32_t block, uint64_t offset)
{
    return (struct value){.kind = VALUE_RAW,
                          .ordered = true,
                          .block = block,
                          .offset = offset,
                          .ranks = UINT64_C(1) << rank,
                          .hash = stage_mix(stage_mix(rank + 1, block), offset)};
}

void stage_wrong(struct world *world, const char *format, ...)
{
    va_list arguments;
    if (!world->failed) {
        va_start(arguments, format);
        (void)vsnprintf(world->why, STAGE_TEXT_BYTES, format, arguments);
        va_end(arguments);
        world->failed = true;
    }
}

void *stage_need(size_t count, size_t size)
{
    void *memory = calloc(count + 1, size);
    if (memory == NULL) {
        abort();
    }
    return memory;
}

/* --- Buffers --- */

uint64_t stage_heap_add(struct node *node, uint64_t elements)
{
    uint64_t at = node->heap_elements;
    node->heap = realloc(node->heap, (at + elements + 1) * sizeof *node->heap);
    if (node->heap == NULL) {
        abort();
    }
    memset(&node->heap[at], 0, elements * sizeof *node->heap);
    for (uint64_t i = 0; i < elements; i++) {
        node->heap[at + i].value.hash = stage_mix(at, i);
    }
    node->heap_elements = at + elements;
    return at;
}

static uint64_t reach(const struct stage_case *drawn, const uint64_t *counts, const uint64_t *displacements)
{
    uint64_t end = 0;
    for (uint32_t rank = 0; rank < drawn->size; rank++) {
        uint64_t block_end = displacements[rank] + counts[rank];
        end = block_end > end ? block_end : end;
    }
    return end;
}

struct stage_block stage_input_block(const struct stage_case *drawn, uint32_t rank, uint32_t part,
                                     uint32_t other)
{
    uint64_t each = drawn->part_counts[part];
    return drawn->has_layouts ? (struct stage_block){drawn->ranks[rank].input_displacements[other],
                                                     drawn->ranks[rank].input_counts[other]}
                              : (struct stage_block){other * each, each};
}

struct stage_block stage_output_block(const struct stage_case *drawn, uint32_t rank, uint32_t part,
                                      uint32_t other)
{
    uint64_t each = drawn->part_counts[part];
    return drawn->has_layouts ? (struct stage_block){drawn->ranks[rank].output_displacements[other],
                                                     drawn->ranks[rank].output_counts[other]}
                              : (struct stage_block){other * each, each};
}

/* Computes how many elements of input and output a rank gave. */
static void measure_buffers(const struct stage_case *drawn, uint32_t rank, uint32_t part, uint64_t *input,
                            uint64_t *output)
{
    uint64_t all_in = reach(drawn, drawn->ranks[rank].input_counts, drawn->ranks[rank].input_displacements);
    uint64_t all_out =
        reach(drawn, drawn->ranks[rank].output_counts, drawn->ranks[rank].output_displacements);
    bool root = rank == drawn->root_rank;
    *input = *output = drawn->part_counts[part];
    if (!drawn->has_layouts) {
        all_in = all_out = drawn->size * drawn->part_counts[part];
    }
    switch (drawn->kind) {
    case OP_KIND_ALL_GATHER:
        *input = stage_output_block(drawn, rank, part, rank).count;
        *output = all_out;
        return;
    case OP_KIND_REDUCE_SCATTER:
        *input = all_in;
        *output = stage_input_block(drawn, rank, part, rank).count;
        return;
    case OP_KIND_GATHER:
        *input = drawn->ranks[rank].count_elements;
        *output = root ? all_out : 0;
        return;
    case OP_KIND_SCATTER:
        *input = root ? all_in : 0;
        *output = drawn->ranks[rank].count_elements;
        return;
    case OP_KIND_ALL_TO_ALL:
        *input = all_in;
        *output = all_out;
        return;
    case OP_KIND_REDUCE:
        *output = root ? *output : 0;
        return;
    case OP_KIND_BROADCAST:
        *input = root ? *input : 0;
        *output = drawn->ranks[rank].has_output ? *output : 0;
        return;
    case OP_KIND_ALL_REDUCE:
    case OP_KIND_SCAN:
    case OP_KIND_EXCLUSIVE_SCAN:
    case OP_KIND_BARRIER:
    case OP_KIND_SEND:
    case OP_KIND_RECEIVE:
        return;
    }
}

/* Places a rank's buffers. In place, one buffer lies in the other, as far as the library's header allows
 * that. */
static void place_buffers(struct node *node, const struct stage_case *drawn, uint32_t rank, uint32_t part,
                          uint32_t entry)
{
    uint64_t in = node->input_elements[entry], out = node->output_elements[entry];
    const uint64_t own_in = stage_input_block(drawn, rank, part, rank).begin;
    const uint64_t own_out = stage_output_block(drawn, rank, part, rank).begin;
    bool in_place = drawn->ranks[rank].in_place && in > 0 && out > 0;
    bool gathers = drawn->kind == OP_KIND_ALL_GATHER || drawn->kind == OP_KIND_GATHER;
    bool scatters = drawn->kind == OP_KIND_REDUCE_SCATTER || drawn->kind == OP_KIND_SCATTER;
    if (in_place && gathers && own_out + in <= out) {
        node->output[entry] = stage_heap_add(node, out);
        node->input[entry] = node->output[entry] + own_out;
        return;
    }
    node->input[entry] = stage_heap_add(node, in);
    node->output[entry] = node->input[entry];
    if (in_place && scatters && own_in + out <= in) {
        node->output[entry] += own_in;
    } else if (!in_place || scatters || gathers) {
        node->output[entry] = stage_heap_add(node, out);
    }
}

static void fill_block(struct node *node, uint32_t entry, uint64_t begin, uint64_t count, struct value first)
{
    for (uint64_t i = 0; i < count; i++) {
        uint32_t rank = (uint32_t)__builtin_ctzll(first.ranks);
        node->heap[node->input[entry] + begin + i].value = leaf(rank, first.block, i);
    }
}

static void fill_input(struct node *node, const struct stage_case *drawn, uint32_t rank, uint32_t part,
                       uint32_t entry)
{
    bool by_block = drawn->kind == OP_KIND_REDUCE_SCATTER || drawn->kind == OP_KIND_SCATTER ||
                    drawn->kind == OP_KIND_ALL_TO_ALL;
    for (uint32_t to = 0; by_block && node->input_elements[entry] > 0 && to < drawn->size; to++) {
        struct stage_block block = stage_input_block(drawn, rank, part, to);
        fill_block(node, entry, block.begin, block.count, leaf(rank, part * drawn->size + to, 0));
    }
    if (!by_block) {
        fill_block(node, entry, 0, node->input_elements[entry], leaf(rank, part, 0));
    }
}

/* Protects what may not be written: inputs that are not also outputs. */
static void protect_inputs(struct node *node)
{
    uint32_t entries = node->op.terms->bucket_ops * node->map.local_count;
    for (uint32_t entry = 0; entry < entries; entry++) {
        for (uint64_t i = 0; i < node->input_elements[entry]; i++) {
            node->heap[node->input[entry] + i].read_only = true;
        }
    }
    for (uint32_t entry = 0; entry < entries; entry++) {
        for (uint64_t i = 0; i < node->output_elements[entry]; i++) {
            node->heap[node->output[entry] + i].read_only = false;
        }
    }
}

static void init_ranks(struct node *node, const struct stage_case *drawn)
{
    for (uint32_t part = 0; part < drawn->part_count; part++) {
        for (uint32_t local = 0; local < node->map.local_count; local++) {
            uint32_t entry = part * node->map.local_count + local;
            uint32_t rank = coll_map_local_rank(&node->map, local);
            struct coll_stage_rank *to = &node->ranks[entry];
            if (drawn->has_layouts) {
                to->input_layout = (struct coll_layout){drawn->ranks[rank].input_counts,
                                                        drawn->ranks[rank].input_displacements};
                to->output_layout = (struct coll_layout){drawn->ranks[rank].output_counts,
                                                         drawn->ranks[rank].output_displacements};
            }
            to->count_elements = drawn->ranks[rank].count_elements;
            to->has_output = drawn->ranks[rank].has_output;
            to->input_domain = drawn->ranks[rank].input_domain;
            to->output_domain = drawn->ranks[rank].output_domain;
            measure_buffers(drawn, rank, part, &node->input_elements[entry], &node->output_elements[entry]);
            place_buffers(node, drawn, rank, part, entry);
            fill_input(node, drawn, rank, part, entry);
        }
    }
}

/* Returns the number of slices. All nodes agree on it, except for operations that a node cuts by itself. */
static uint64_t slices_of(const struct coll_stage_op *op)
{
    if (op->mode == COLL_STAGE_ALONE && op->terms->kind == OP_KIND_ALL_TO_ALL) {
        return coll_stage_local_slices(op);
    }
    bool private_sizes = coll_stage_sizes_are_private(op) && op->map->node_count > 1;
    return private_sizes ? 1 : coll_slice_count(op->total_elements, 1, op->slice_bytes);
}

void stage_node_init(struct world *world, uint32_t index)
{
    const struct stage_case *drawn = world->drawn;
    struct node *node = &world->nodes[index];
    if (!coll_map_init(&node->map, drawn->node_of_rank, drawn->size, drawn->node_count, index)) {
        abort();
    }
    node->terms = (struct op_terms){.kind = drawn->kind,
                                    .has_layouts = drawn->has_layouts,
                                    .root_rank = drawn->root_rank,
                                    .bucket_ops = (uint16_t)drawn->part_count,
                                    .count_elements = drawn->count_elements};
    node->op = (struct coll_stage_op){.map = &node->map,
                                      .terms = &node->terms,
                                      .mode = drawn->modes[index],
                                      .has_memory = drawn->has_memory,
                                      .divides = drawn->divides,
                                      .keeps_input = drawn->keeps_input,
                                      .part_counts = drawn->part_counts,
                                      .ranks = node->ranks,
                                      .element_bytes = 1,
                                      .slice_bytes = drawn->slice_bytes,
                                      .local_slice_elements = drawn->local_slice_elements,
                                      .many_blocks = drawn->has_many_blocks[index] ? 0 : UINT64_MAX,
                                      .strip_bytes = drawn->strip_bytes[index]};
    if (drawn->vectors_in_outputs && node->op.mode == COLL_STAGE_STAGED) {
        node->op.vector_ranks = 1 + drawn->size % node->map.local_count;
    }
    init_ranks(node, drawn);
    protect_inputs(node);
    if (!coll_stage_total(&node->op, &node->op.total_elements)) {
        abort();
    }
    node->op.slice_count = slices_of(&node->op);
    node->slices = stage_need(node->op.slice_count, sizeof *node->slices);
}

void stage_node_free(struct node *node)
{
    for (uint64_t slice = 0; slice < node->op.slice_count; slice++) {
        struct slice_state *state = &node->slices[slice];
        for (uint32_t space = 0; space < SPACES; space++) {
            free(state->maps[space]);
        }
        free(state->origin);
        free(state->fresh);
    }
    free(node->slices);
    free(node->heap);
    coll_map_free(&node->map);
}

/* --- Places --- */

bool stage_place_is_wrong(struct world *world, const struct coll_stage_place *place, uint64_t count)
{
    const struct node *node = world->node;
    uint64_t all = place->buffer == COLL_STAGE_MEMORY  ? node->slices[world->slice].memory_elements
                   : place->buffer == COLL_STAGE_INPUT ? node->input_elements[place->rank]
                                                       : node->output_elements[place->rank];
    if (place->offset_elements > all || count > all - place->offset_elements) {
        stage_wrong(
            world, "step %d of slice %llu: elements %llu and %llu more of buffer %d of %u, which has %llu",
            (int)world->step, (unsigned long long)world->slice, (unsigned long long)place->offset_elements,
            (unsigned long long)count, (int)place->buffer, place->rank, (unsigned long long)all);
    }
    return world->failed;
}

uint64_t stage_heap_place(const struct world *world, const struct coll_stage_place *place)
{
    const struct node *node = world->node;
    uint64_t base = place->buffer == COLL_STAGE_MEMORY  ? node->slices[world->slice].memory
                    : place->buffer == COLL_STAGE_INPUT ? node->input[place->rank]
                                                        : node->output[place->rank];
    return base + place->offset_elements;
}

/* left (op) right. A null operand means that there is nothing yet. */
struct value stage_fold(struct world *world, const struct value *left, const struct value *right)
{
    if (left == NULL || right == NULL) {
        return left == NULL ? *right : *left;
    }
    struct value out = *left;
    if (left->kind != VALUE_SUM || right->kind != VALUE_SUM || left->ranks == 0 || right->ranks == 0) {
        stage_wrong(world, "slice %llu: what is no contribution is reduced",
                    (unsigned long long)world->slice);
    } else if (left->block != right->block || left->offset != right->offset) {
        stage_wrong(world, "elements %llu and %llu of blocks %u and %u are reduced",
                    (unsigned long long)left->offset, (unsigned long long)right->offset, left->block,
                    right->block);
    } else if ((left->ranks & right->ranks) != 0) {
        stage_wrong(world, "a rank contributes twice to element %llu", (unsigned long long)left->offset);
    } else {
        bool ascends = 63 - __builtin_clzll(left->ranks) < __builtin_ctzll(right->ranks);
        out.ordered = left->ordered && right->ordered && ascends;
        out.ranks |= right->ranks;
        out.hash = stage_mix(left->hash, right->hash);
    }
    return out;
}

/* --- Vectors --- */

struct map_context {
    struct world *world;
    uint64_t *map;
    uint64_t count;
    uint32_t extents;
};

static void map_extent(void *context, const struct coll_stage_place *place, uint64_t count)
{
    struct map_context *to = context;
    to->extents++;
    if (stage_place_is_wrong(to->world, place, count)) {
        return;
    }
    to->map = realloc(to->map, (to->count + count + 1) * sizeof *to->map);
    if (to->map == NULL) {
        abort();
    }
    for (uint64_t i = 0; i < count; i++) {
        to->map[to->count++] = stage_heap_place(to->world, place) + i;
    }
}

static void lay_out(struct world *world, uint32_t index, uint64_t slice)
{
    struct node *node = &world->nodes[index];
    struct slice_state *state = &node->slices[slice];
    world->node = node;
    world->slice = slice;
    struct coll_stage_cursor at = {0};
    while (!coll_stage_measure(&node->op, slice, &at, state->offsets)) {
    }
    state->call = coll_stage_call(&node->op, slice, state->offsets);
    state->memory_elements = coll_stage_memory_elements(&node->op, slice);
    state->memory = stage_heap_add(node, state->memory_elements);
    if (node->op.mode == COLL_STAGE_ALONE) {
        return;
    }
    uint32_t each = world->drawn->size / world->drawn->node_count;
    state->call.root_node =
        op_kind_has_root(world->drawn->kind) ? world->drawn->node_of_rank[world->drawn->root_rank] : 0;
    state->call.blocks_are_equal = !world->drawn->has_layouts;
    for (uint32_t other = 0; other < world->drawn->node_count; other++) {
        state->call.blocks_are_equal = state->call.blocks_are_equal &&
                                       node->map.node_first[other + 1] - node->map.node_first[other] == each;
    }
    for (enum coll_space space = COLL_WORK; space <= COLL_INPUT; space++) {
        struct map_context to = {.world = world};
        at = (struct coll_stage_cursor){0};
        while (!coll_stage_lay_out(&node->op, slice, space, &at, map_extent, &to)) {
        }
        state->maps[space] = to.map;
        state->counts[space] = to.count;
        if (to.extents > coll_stage_extents_max(&node->op, space)) {
            stage_wrong(world, "more extents than coll_stage_extents_max");
        }
    }
    if (coll_stage_lends_input(&node->op)) {
        struct map_context to = {.world = world};
        coll_stage_lay_out_input(&node->op, slice, map_extent, &to);
        state->origin = to.map;
        state->fresh = stage_need(to.count, sizeof *state->fresh);
        memset(state->fresh, 1, to.count);
        if (to.count != state->counts[COLL_WORK]) {
            stage_wrong(world, "the lent input has %llu elements, not %llu", (unsigned long long)to.count,
                        (unsigned long long)state->counts[COLL_WORK]);
        }
    }
}

/* --- Runs --- */

static void run_local(struct world *world, uint32_t node)
{
    const struct coll_stage_op *op = &world->nodes[node].op;
    uint64_t slices = op->mode == COLL_STAGE_ALONE ? op->slice_count : coll_stage_local_slices(op);
    uint64_t first = slices > 0 ? random_below(world->random, slices) : 0;
    for (uint64_t i = 0; i < slices; i++) {
        uint64_t slice = (first + i) % slices;
        world->slice = op->mode == COLL_STAGE_ALONE ? slice : 0;
        stage_run_step(world, node, slice, COLL_STAGE_LOCAL);
    }
}

/* Whether the node has this slice. If tables contradict each other, nodes may have different numbers of
 * slices. */
static bool has_slice(const struct world *world, uint32_t node, uint64_t slice)
{
    return slice < world->nodes[node].op.slice_count;
}

static void run_in(struct world *world, uint64_t slice)
{
    for (uint32_t node = 0; node < world->drawn->node_count && has_slice(world, node, slice); node++) {
        stage_run_step(world, node, slice, COLL_STAGE_IN);
        stage_run_step(world, node, slice, COLL_STAGE_COMBINE);
    }
}

static void run_out(struct world *world, uint64_t slice)
{
    for (uint32_t node = 0; node < world->drawn->node_count && has_slice(world, node, slice); node++) {
        stage_run_step(world, node, slice, COLL_STAGE_OUT);
    }
}

/* Runs the slices: one after the other, or each step for all slices before the next step. The first slice
 * is drawn at random. */
static void run_slices(struct world *world)
{
    uint64_t slices = world->nodes[0].op.slice_count;
    bool together = random_chance(world->random, 0.5);
    uint64_t first = random_below(world->random, slices);
    bool with_net = !world->only_bounds;
    for (uint64_t i = 0; i < slices; i++) {
        uint64_t slice = (first + i) % slices;
        run_in(world, slice);
        if (!together && with_net) {
            stage_net(world, slice);
        }
        if (!together) {
            run_out(world, slice);
        }
    }
    for (uint64_t i = 0; i < slices && together && with_net; i++) {
        stage_net(world, i);
    }
    for (uint64_t i = slices; i > 0 && together; i--) {
        run_out(world, i - 1);
    }
}

static void run_all(struct world *world)
{
    bool local_first = random_chance(world->random, 0.5);
    uint32_t nodes = world->drawn->node_count;
    for (uint32_t node = 0; node < nodes; node++) {
        const struct coll_stage_op *op = &world->nodes[node].op;
        for (uint64_t slice = 0; slice < op->slice_count; slice++) {
            lay_out(world, node, slice);
        }
        if (op->mode == COLL_STAGE_ALONE || local_first) {
            run_local(world, node);
        }
    }
    if (world->nodes[0].op.mode != COLL_STAGE_ALONE) {
        run_slices(world);
    }
    for (uint32_t node = 0; node < nodes; node++) {
        if (world->nodes[node].op.mode != COLL_STAGE_ALONE && !local_first) {
            run_local(world, node);
        }
    }
}

bool stage_case_run(const struct stage_case *drawn, struct random *random, bool only_bounds,
                    struct stage_fault *fault, char why[STAGE_TEXT_BYTES])
{
    struct world *world = stage_need(1, sizeof *world);
    world->drawn = drawn;
    world->random = random;
    world->only_bounds = only_bounds;
    world->fault = fault;
    world->why = why;
    fault->pieces = 0;
    fault->is_harmless = true;
    for (uint32_t node = 0; node < drawn->node_count; node++) {
        stage_node_init(world, node);
    }
    run_all(world);
    if (!only_bounds && !world->failed) {
        stage_check_end(world);
    }
    for (uint32_t node = 0; node < drawn->node_count; node++) {
        stage_node_free(&world->nodes[node]);
    }
    bool right = !world->failed;
    free(world);
    return right;
}
