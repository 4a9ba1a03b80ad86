#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/sim/cases.h"
#include "tests/sim/sim_comm.h"

/*
 * Any operation, of any size, type, operator, root and layout, on any set of nodes and ranks, by any
 * algorithm, over any network.
 */
#define CASES_DEFAULT 1200
#define CASE_NODES_MAX 9
#define CASE_RANKS_MAX 24
#define CASE_DATAGRAM_NODES_MAX 4

/* All that a case consists of, as numbers that can be made smaller one by one. */
enum {
    CASE_SEED,
    CASE_KIND,
    CASE_DTYPE,
    CASE_REDUCE,
    CASE_COUNT,
    CASE_ROOT,
    CASE_NODES,
    CASE_RANKS,
    CASE_SCATTERED, /* the ranks of a node are not contiguous */
    CASE_IN_PLACE,
    CASE_LAYOUTS,
    CASE_ALGORITHM, /* 0: chosen by commd; else the n-th of the kind */
    CASE_SLICE_ELEMENTS,
    CASE_LOSS_PERMILLE,
    CASE_DUPLICATION_PERMILLE,
    CASE_JITTER_US,
    CASE_OPS,       /* operations, one after the other, all posted at once */
    CASE_RAILS,     /* rails besides the first */
    CASE_DATAGRAMS, /* 1: over QUIC; loss and duplication apply only there */
    CASE_FIELDS
};
static const char *const field_names[CASE_FIELDS] = {
    "seed",        "kind",      "dtype",    "reduce",  "count",     "root",  "nodes",
    "ranks",       "scattered", "in_place", "layouts", "algorithm", "slice", "loss",
    "duplication", "jitter",    "ops",      "rails",   "datagrams"};

static bool kind_is_tested(enum op_kind kind)
{
    return !op_kind_is_message(kind);
}

static bool reduce_is_tested(enum op_kind kind, enum dtype dtype, enum reduce reduce)
{
    bool is_scan = kind == OP_KIND_SCAN || kind == OP_KIND_EXCLUSIVE_SCAN;
    bool is_complex = dtype == DTYPE_C64 || dtype == DTYPE_C128;
    if (!op_kind_reduces(kind)) {
        return reduce == REDUCE_SUM;
    }
    return reduce_is_defined(dtype, reduce) && !(is_scan && reduce == REDUCE_AVG) &&
           (!is_complex || reduce == REDUCE_SUM || reduce == REDUCE_AVG);
}

static void case_draw(uint64_t seed, uint64_t number, uint64_t *fields)
{
    struct random random;
    random_seed(&random, seed * 0x9e3779b97f4a7c15u + number);
    static const uint64_t counts[] = {0, 1, 2, 3, 7, 8, 9, 63, 64, 65, 1000, 4095, 4096, 4097, 20011};
    static const uint64_t slices[] = {1, 16, 100, 1024, 65536};
    do {
        fields[CASE_KIND] = random_below(&random, OP_KIND_COUNT);
    } while (!kind_is_tested((enum op_kind)fields[CASE_KIND]));
    do {
        fields[CASE_DTYPE] = random_below(&random, DTYPE_COUNT);
        fields[CASE_REDUCE] = random_below(&random, REDUCE_COUNT);
    } while (!reduce_is_tested((enum op_kind)fields[CASE_KIND], (enum dtype)fields[CASE_DTYPE],
                               (enum reduce)fields[CASE_REDUCE]));
    fields[CASE_SEED] = random_u64(&random) % 1000000;
    fields[CASE_COUNT] =
        random_below(&random, 3) == 0 ? random_below(&random, 30000) : counts[random_below(&random, 15)];
    fields[CASE_NODES] = 1 + random_below(&random, CASE_NODES_MAX);
    fields[CASE_RANKS] = fields[CASE_NODES] + random_below(&random, CASE_RANKS_MAX - fields[CASE_NODES] + 1);
    if (op_kind_has_blocks((enum op_kind)fields[CASE_KIND])) {
        fields[CASE_COUNT] = fields[CASE_COUNT] > 4100 ? fields[CASE_COUNT] / 16 : fields[CASE_COUNT];
    }
    fields[CASE_ROOT] = random_below(&random, fields[CASE_RANKS]);
    fields[CASE_SCATTERED] = random_below(&random, 2);
    fields[CASE_IN_PLACE] = random_below(&random, 2);
    fields[CASE_LAYOUTS] = random_below(&random, 2);
    fields[CASE_ALGORITHM] = random_below(&random, 8);
    fields[CASE_SLICE_ELEMENTS] = slices[random_below(&random, 5)];
    if (fields[CASE_COUNT] / fields[CASE_SLICE_ELEMENTS] > 300) {
        fields[CASE_SLICE_ELEMENTS] = fields[CASE_COUNT] / 300 + 1;
    }
    fields[CASE_DATAGRAMS] = fields[CASE_NODES] > 1 && fields[CASE_NODES] <= CASE_DATAGRAM_NODES_MAX &&
                             random_below(&random, 4) == 0;
    bool loses = fields[CASE_DATAGRAMS] != 0;
    fields[CASE_LOSS_PERMILLE] = loses ? random_below(&random, 20) : 0;
    fields[CASE_DUPLICATION_PERMILLE] = loses ? random_below(&random, 100) : 0;
    fields[CASE_JITTER_US] = random_below(&random, 2) * random_below(&random, 500);
    fields[CASE_OPS] = 1 + random_below(&random, 3);
    fields[CASE_RAILS] = random_below(&random, 2) * random_below(&random, CLUSTER_RAILS_MAX);
}

/* Places the ranks: every node has at least one, the others are placed at random. */
static void case_place(const uint64_t *fields, struct random *random, uint32_t *node_of_rank)
{
    uint32_t nodes = (uint32_t)fields[CASE_NODES], ranks = (uint32_t)fields[CASE_RANKS];
    uint32_t next = 0;
    for (uint32_t node = 0; node < nodes; node++) {
        uint32_t more = node + 1 == nodes ? ranks - next - 1
                                          : (uint32_t)random_below(random, ranks - next - (nodes - node) + 1);
        for (uint32_t i = 0; i <= more; i++) {
            node_of_rank[next++] = node;
        }
    }
    for (uint32_t i = ranks; fields[CASE_SCATTERED] != 0 && i > 1; i--) {
        uint32_t at = (uint32_t)random_below(random, i);
        uint32_t moved = node_of_rank[at];
        node_of_rank[at] = node_of_rank[i - 1];
        node_of_rank[i - 1] = moved;
    }
}

/* Writes the case's algorithm, such as "all_reduce=ring", or an empty text. */
static void case_algorithm(const uint64_t *fields, char *out, size_t size)
{
    uint32_t count, of_kind = 0;
    const struct coll_algorithm *const *all = coll_registry(&count);
    out[0] = '\0';
    for (uint32_t i = 0; i < count; i++) {
        if (all[i]->kind == (enum op_kind)fields[CASE_KIND] && ++of_kind == fields[CASE_ALGORITHM]) {
            (void)snprintf(out, size, "%s=%s", op_kind_text(all[i]->kind), all[i]->name);
        }
    }
}

static void case_run(const uint64_t *fields)
{
    enum dtype dtype = (enum dtype)fields[CASE_DTYPE];
    struct network_conditions conditions = {.loss = (double)fields[CASE_LOSS_PERMILLE] / 1000,
                                            .duplication = (double)fields[CASE_DUPLICATION_PERMILLE] / 1000,
                                            .delay_ns = 20 * TIME_US,
                                            .jitter_ns = fields[CASE_JITTER_US] * TIME_US,
                                            .packet_bytes = 4096};
    struct cluster *cluster =
        cluster_new(&(struct cluster_options){.seed = fields[CASE_SEED],
                                              .node_count = (uint32_t)fields[CASE_NODES],
                                              .conditions = conditions,
                                              .rail_count = 1 + (uint32_t)fields[CASE_RAILS],
                                              .datagrams = fields[CASE_DATAGRAMS] != 0});
    uint32_t node_of_rank[CASE_RANKS_MAX];
    char algorithms[64];
    case_place(fields, &cluster->random, node_of_rank);
    case_algorithm(fields, algorithms, sizeof algorithms);
    struct sim_comm *comm = sim_comm_new(cluster, "case", (uint32_t)fields[CASE_RANKS], node_of_rank);
    sim_comm_form(comm,
                  &(struct sim_options){.slice_bytes = fields[CASE_SLICE_ELEMENTS] * dtype_size_bytes(dtype),
                                        .algorithms = algorithms},
                  60 * TIME_S);
    struct sim_op *ops[4];
    for (uint32_t i = 0; i < fields[CASE_OPS]; i++) {
        ops[i] = sim_comm_post_all(
            comm, &(struct sim_call){.kind = (enum op_kind)fields[CASE_KIND],
                                     .dtype = dtype,
                                     .reduce = (enum reduce)fields[CASE_REDUCE],
                                     .count = fields[CASE_COUNT],
                                     .root = (uint32_t)(fields[CASE_ROOT] % fields[CASE_RANKS]),
                                     .in_place = fields[CASE_IN_PLACE] != 0,
                                     .has_layouts = fields[CASE_LAYOUTS] != 0,
                                     .layout_seed = fields[CASE_SEED] + i});
    }
    for (uint32_t i = 0; i < fields[CASE_OPS]; i++) {
        sim_op_finish(ops[i], 120 * TIME_S);
        sim_op_free(ops[i]);
    }
    sim_comm_free(comm);
    cluster_free(cluster);
}

static bool case_is_valid(const uint64_t *fields)
{
    return fields[CASE_NODES] >= 1 && fields[CASE_RANKS] >= fields[CASE_NODES] && fields[CASE_OPS] >= 1 &&
           fields[CASE_SLICE_ELEMENTS] >= 1 && fields[CASE_RAILS] < CLUSTER_RAILS_MAX &&
           fields[CASE_DATAGRAMS] <= 1 && kind_is_tested((enum op_kind)fields[CASE_KIND]) &&
           reduce_is_tested((enum op_kind)fields[CASE_KIND], (enum dtype)fields[CASE_DTYPE],
                            (enum reduce)fields[CASE_REDUCE]);
}

static void case_describe(const uint64_t *fields, char *text, size_t size)
{
    (void)snprintf(text, size, "%s of %llu %s", op_kind_text((enum op_kind)fields[CASE_KIND]),
                   (unsigned long long)fields[CASE_COUNT], dtype_text((enum dtype)fields[CASE_DTYPE]));
}

int main(void)
{
    return cases_main(&(struct cases){.count = CASES_DEFAULT,
                                      .which = 100,
                                      .field_count = CASE_FIELDS,
                                      .first_shrunk = CASE_COUNT,
                                      .field_names = field_names,
                                      .draw = case_draw,
                                      .is_valid = case_is_valid,
                                      .run = case_run,
                                      .describe = case_describe});
}
