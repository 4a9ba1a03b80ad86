#include <stdio.h>
#include <string.h>

#include "tests/lib/chance.h"
#include "tests/lib/stage_model.h"

/* Random operations for the model. */

static uint32_t pick(struct random *random, uint32_t limit)
{
    return (uint32_t)random_below(random, limit);
}

/* Draws which rank is on which node. Nodes are numbered in the order of their lowest ranks. */
static void draw_nodes(struct stage_case *drawn, struct random *random)
{
    uint32_t wanted = 1 + pick(random, STAGE_CASE_NODES_MAX);
    bool contiguous = random_chance(random, 0.5);
    drawn->size = 1 + pick(random, STAGE_CASE_RANKS_MAX);
    drawn->node_count = 0;
    for (uint32_t rank = 0; rank < drawn->size; rank++) {
        uint32_t last = rank == 0 ? 0 : drawn->node_of_rank[rank - 1];
        uint32_t node = drawn->node_count;
        if (contiguous && drawn->node_count > 0 && (random_chance(random, 0.6) || node == wanted)) {
            node = last;
        } else if (!contiguous && drawn->node_count > 0) {
            node = pick(random, node < wanted ? node + 1 : node);
        }
        drawn->node_of_rank[rank] = node;
        drawn->node_count += node == drawn->node_count;
    }
}

static bool kind_has_tables(enum op_kind kind)
{
    return op_kind_has_blocks(kind);
}

/* Gives blocks of those sizes their places: with gaps, and in a different order on each rank. */
static void place_blocks(const struct stage_case *drawn, struct random *random, const uint64_t *counts,
                         uint64_t *displacements)
{
    uint64_t at = drawn->has_layouts ? pick(random, 3) : 0;
    bool backward = drawn->has_layouts && random_chance(random, 0.5);
    for (uint32_t i = 0; i < drawn->size; i++) {
        uint32_t rank = backward ? drawn->size - 1 - i : i;
        displacements[rank] = at;
        at += counts[rank] + (drawn->has_layouts ? pick(random, 3) : 0);
    }
}

static void draw_tables(struct stage_case *drawn, struct random *random)
{
    uint64_t counts[STAGE_CASE_RANKS_MAX][STAGE_CASE_RANKS_MAX]; /* by sender (or rank), then receiver */
    for (uint32_t from = 0; from < drawn->size; from++) {
        for (uint32_t to = 0; to < drawn->size; to++) {
            bool pairs = drawn->kind == OP_KIND_ALL_TO_ALL;
            uint64_t some = random_chance(random, 0.3) ? 0 : pick(random, 9);
            counts[from][to] = !drawn->has_layouts  ? drawn->count_elements
                               : from == 0 || pairs ? some
                                                    : counts[0][to];
        }
    }
    for (uint32_t rank = 0; rank < drawn->size; rank++) {
        for (uint32_t other = 0; other < drawn->size; other++) {
            drawn->ranks[rank].input_counts[other] = counts[rank][other];
            drawn->ranks[rank].output_counts[other] = counts[other][rank];
            if (drawn->kind != OP_KIND_ALL_TO_ALL) {
                drawn->ranks[rank].output_counts[other] = counts[0][other];
            }
        }
        drawn->ranks[rank].count_elements = counts[0][rank];
        place_blocks(drawn, random, drawn->ranks[rank].input_counts, drawn->ranks[rank].input_displacements);
        place_blocks(drawn, random, drawn->ranks[rank].output_counts,
                     drawn->ranks[rank].output_displacements);
    }
    drawn->count_elements = drawn->has_layouts ? 0 : drawn->count_elements;
}

static void draw_modes(struct stage_case *drawn, struct random *random)
{
    for (uint32_t node = 0; node < drawn->node_count; node++) {
        enum coll_stage_mode direct = drawn->node_count == 1 ? COLL_STAGE_ALONE : COLL_STAGE_UNSTAGED;
        drawn->modes[node] = random_chance(random, 0.5) ? direct : COLL_STAGE_STAGED;
        drawn->has_many_blocks[node] = random_chance(random, 0.5);
        drawn->strip_bytes[node] =
            random_chance(random, 0.5) ? COLL_STAGE_STRIP_BYTES : random_below(random, 200);
    }
    drawn->has_memory = random_chance(random, 0.5);
    uint32_t domains = 1 + pick(random, 4);
    for (uint32_t rank = 0; rank < drawn->size; rank++) {
        drawn->ranks[rank].input_domain = pick(random, domains);
        drawn->ranks[rank].output_domain =
            random_chance(random, 0.7) ? drawn->ranks[rank].input_domain : pick(random, domains);
        drawn->ranks[rank].in_place = drawn->kind != OP_KIND_ALL_TO_ALL && random_chance(random, 0.4);
        drawn->ranks[rank].has_output = rank != drawn->root_rank || random_chance(random, 0.5);
    }
    drawn->vectors_in_outputs = drawn->kind == OP_KIND_ALL_REDUCE && random_chance(random, 0.3);
    for (uint32_t rank = 0; rank < drawn->size && drawn->vectors_in_outputs; rank++) {
        drawn->ranks[rank].input_domain = drawn->ranks[rank].output_domain = 1 + drawn->node_of_rank[rank];
    }
}

/* Whether each node has as many ranks as the others. */
static bool nodes_are_equal(const struct stage_case *drawn)
{
    uint32_t counts[STAGE_CASE_NODES_MAX] = {0};
    for (uint32_t rank = 0; rank < drawn->size; rank++) {
        counts[drawn->node_of_rank[rank]]++;
    }
    for (uint32_t node = 1; node < drawn->node_count; node++) {
        if (counts[node] != counts[0]) {
            return false;
        }
    }
    return true;
}

/* Draws one of the algorithms that serve the operation. If only two nodes know the size of a block, the
 * algorithm must allow for that. */
static void draw_algorithm(struct stage_case *drawn, struct random *random)
{
    uint32_t count;
    const struct coll_algorithm *const *all = coll_registry(&count);
    bool contiguous = true;
    bool seen[STAGE_CASE_NODES_MAX] = {false};
    for (uint32_t rank = 0; rank < drawn->size; rank++) {
        bool same = rank > 0 && drawn->node_of_rank[rank] == drawn->node_of_rank[rank - 1];
        contiguous = contiguous && (same || !seen[drawn->node_of_rank[rank]]);
        seen[drawn->node_of_rank[rank]] = true;
    }
    bool gathers = (drawn->kind == OP_KIND_SCAN || drawn->kind == OP_KIND_EXCLUSIVE_SCAN) && !contiguous;
    enum op_kind kind = gathers ? OP_KIND_ALL_GATHER : drawn->kind;
    bool private_sizes = drawn->has_layouts &&
                         (kind == OP_KIND_ALL_TO_ALL || kind == OP_KIND_GATHER || kind == OP_KIND_SCATTER);
    if (private_sizes) {
        drawn->algorithm = coll_registry_by_name(kind, kind == OP_KIND_ALL_TO_ALL ? "pairwise" : "direct");
        return;
    }
    struct coll_call call = {.kind = kind,
                             .node_count = drawn->node_count,
                             .blocks_are_equal = !drawn->has_layouts && nodes_are_equal(drawn)};
    do {
        drawn->algorithm = all[pick(random, count)];
    } while (drawn->algorithm->kind != kind ||
             (drawn->algorithm->serves != NULL && !drawn->algorithm->serves(&call)));
}

void stage_case_draw(struct stage_case *drawn, struct random *random)
{
    static const enum op_kind kinds[] = {OP_KIND_ALL_REDUCE,     OP_KIND_REDUCE,     OP_KIND_BROADCAST,
                                         OP_KIND_ALL_GATHER,     OP_KIND_GATHER,     OP_KIND_SCATTER,
                                         OP_KIND_REDUCE_SCATTER, OP_KIND_ALL_TO_ALL, OP_KIND_SCAN,
                                         OP_KIND_EXCLUSIVE_SCAN, OP_KIND_BARRIER};
    memset(drawn, 0, sizeof *drawn);
    drawn->kind = kinds[pick(random, sizeof kinds / sizeof kinds[0])];
    draw_nodes(drawn, random);
    drawn->root_rank = op_kind_has_root(drawn->kind) ? pick(random, drawn->size) : 0;
    bool reduces = op_kind_reduces(drawn->kind);
    bool scans = drawn->kind == OP_KIND_SCAN || drawn->kind == OP_KIND_EXCLUSIVE_SCAN;
    drawn->divides = reduces && !scans && random_chance(random, 0.3);
    drawn->keeps_input = reduces && random_chance(random, 0.5);
    drawn->count_elements = drawn->kind == OP_KIND_BARRIER ? 0 : pick(random, 20);
    drawn->has_layouts = kind_has_tables(drawn->kind) && random_chance(random, 0.4);
    bool may_join = op_kind_is_in_buckets(drawn->kind) && !drawn->has_layouts;
    drawn->part_count = may_join ? 1 + pick(random, STAGE_CASE_PARTS_MAX) : 1;
    for (uint32_t part = 0; part < drawn->part_count; part++) {
        drawn->part_counts[part] = part == 0 ? drawn->count_elements : pick(random, 12);
    }
    draw_tables(drawn, random);
    drawn->slice_bytes = 1 + pick(random, random_chance(random, 0.5) ? 12 : 200);
    drawn->local_slice_elements = 1 + pick(random, random_chance(random, 0.5) ? 7 : 100);
    draw_modes(drawn, random);
    draw_algorithm(drawn, random);
}

void stage_case_contradict(struct stage_case *drawn, struct random *random)
{
    uint32_t changes = 1 + pick(random, 6);
    for (uint32_t i = 0; i < changes && drawn->has_layouts; i++) {
        uint32_t rank = pick(random, drawn->size), other = pick(random, drawn->size);
        uint64_t count = pick(random, 14);
        switch (pick(random, 3)) {
        case 0:
            drawn->ranks[rank].input_counts[other] = count;
            break;
        case 1:
            drawn->ranks[rank].output_counts[other] = count;
            break;
        default:
            drawn->ranks[rank].count_elements = count;
            break;
        }
    }
}

void stage_case_describe(const struct stage_case *drawn, char text[STAGE_TEXT_BYTES])
{
    int length =
        snprintf(text, STAGE_TEXT_BYTES,
                 "%s%s, %u in a group, %u ranks, root %u, %llu elements, slices of %llu, algorithm %s, nodes",
                 op_kind_text(drawn->kind), drawn->has_layouts ? "_v" : "", drawn->part_count, drawn->size,
                 drawn->root_rank, (unsigned long long)drawn->count_elements,
                 (unsigned long long)drawn->slice_bytes, drawn->algorithm->name);
    for (uint32_t rank = 0; rank < drawn->size && length > 0 && length < STAGE_TEXT_BYTES; rank++) {
        length +=
            snprintf(text + length, STAGE_TEXT_BYTES - (size_t)length, " %u", drawn->node_of_rank[rank]);
    }
    for (uint32_t node = 0; node < drawn->node_count && length > 0 && length < STAGE_TEXT_BYTES; node++) {
        length += snprintf(text + length, STAGE_TEXT_BYTES - (size_t)length, "%s%s", node == 0 ? ", " : " ",
                           drawn->modes[node] == COLL_STAGE_STAGED ? "staged" : "direct");
    }
}
