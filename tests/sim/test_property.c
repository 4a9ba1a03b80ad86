#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/sim/sim_comm.h"

/*
 * Any operation, of any size, type, operator, root and layout, on any set of nodes and ranks, by any
 * algorithm, over any network: right, or the smallest case like it that is wrong is printed. COMMD_CASES says
 * how many (2,000), COMMD_SEED where to begin; COMMD_CASE="..." runs the one that was printed.
 */
#define CASES_DEFAULT 2000
#define CASES_A_PROCESS 100
#define CASE_NODES_MAX 9
#define CASE_RANKS_MAX 24
#define CASE_DATAGRAM_NODES_MAX 4
#define BATCH_CPU_S 180 /* not by the clock: other work on the machine makes nothing wrong */
#define SHRINK_TRIES_MAX 400

/* All that there is to a case, as numbers that can be made smaller one by one. */
enum {
    CASE_SEED,
    CASE_KIND,
    CASE_DTYPE,
    CASE_REDUCE,
    CASE_COUNT,
    CASE_ROOT,
    CASE_NODES,
    CASE_RANKS,
    CASE_SCATTERED, /* ranks are not contiguous */
    CASE_IN_PLACE,
    CASE_LAYOUTS,
    CASE_ALGORITHM, /* 0: what is chosen; else the n-th of its kind */
    CASE_SLICE_ELEMENTS,
    CASE_LOSS_PERMILLE,
    CASE_DUPLICATION_PERMILLE,
    CASE_JITTER_US,
    CASE_OPS,       /* one after the other, posted ahead */
    CASE_RAILS,     /* beyond the first */
    CASE_DATAGRAMS, /* 1: over QUIC; loss and duplication are for it alone */
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

/* Every node has a rank; the others anywhere. */
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

/* "all_reduce=ring", or nothing. */
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

/* --- Cases in processes of their own, so that a failure is a result --- */

static uint64_t batch_fields[CASES_A_PROCESS][CASE_FIELDS];
static uint32_t batch_count;
static volatile uint32_t *batch_at; /* shared: which one is under way */

static void run_batch(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < batch_count; i++) {
        *batch_at = i;
        case_run(batch_fields[i]);
    }
}

/* Whether all are right; quiet: without a word. */
static bool batch_passes(bool quiet)
{
    (void)fflush(stdout);
    (void)fflush(stderr);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        if (quiet &&
            (freopen("/dev/null", "w", stdout) == NULL || freopen("/dev/null", "w", stderr) == NULL)) {
            _exit(2);
        }
        (void)setitimer(ITIMER_PROF, &(struct itimerval){.it_value = {.tv_sec = BATCH_CPU_S}}, NULL);
        const struct CMUnitTest test[] = {cmocka_unit_test(run_batch)};
        int failed = cmocka_run_group_tests_name("cases", test, NULL, NULL);
        (void)fflush(stdout);
        _exit(failed == 0 ? 0 : 1);
    }
    int status = 0;
    assert_true(waitpid(child, &status, 0) == child);
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

static bool one_passes(const uint64_t *fields, bool quiet)
{
    memcpy(batch_fields[0], fields, sizeof batch_fields[0]);
    batch_count = 1;
    return batch_passes(quiet);
}

static bool case_is_valid(const uint64_t *fields)
{
    return fields[CASE_NODES] >= 1 && fields[CASE_RANKS] >= fields[CASE_NODES] && fields[CASE_OPS] >= 1 &&
           fields[CASE_SLICE_ELEMENTS] >= 1 && fields[CASE_RAILS] < CLUSTER_RAILS_MAX &&
           fields[CASE_DATAGRAMS] <= 1 && kind_is_tested((enum op_kind)fields[CASE_KIND]) &&
           reduce_is_tested((enum op_kind)fields[CASE_KIND], (enum dtype)fields[CASE_DTYPE],
                            (enum reduce)fields[CASE_REDUCE]);
}

/* Makes one number after the other smaller as long as the case stays wrong. */
static void case_shrink(uint64_t *fields)
{
    bool smaller = true;
    for (uint32_t tries = 0; smaller && tries < SHRINK_TRIES_MAX;) {
        smaller = false;
        for (uint32_t field = CASE_COUNT; field < CASE_FIELDS; field++) {
            uint64_t was = fields[field];
            const uint64_t candidates[] = {0, 1, was / 2, was == 0 ? 0 : was - 1};
            for (uint32_t i = 0; i < 4 && fields[field] == was && tries < SHRINK_TRIES_MAX; i++) {
                if (candidates[i] >= was) {
                    continue;
                }
                fields[field] = candidates[i];
                tries++;
                if (!case_is_valid(fields) || one_passes(fields, true)) {
                    fields[field] = was;
                }
            }
            smaller = smaller || fields[field] != was;
        }
    }
}

static void case_print(const uint64_t *fields)
{
    (void)fprintf(stderr, "# the smallest case like it: %s of %llu %s\n# COMMD_CASE=\"",
                  op_kind_text((enum op_kind)fields[CASE_KIND]), (unsigned long long)fields[CASE_COUNT],
                  dtype_text((enum dtype)fields[CASE_DTYPE]));
    for (uint32_t i = 0; i < CASE_FIELDS; i++) {
        (void)fprintf(stderr, "%s%llu", i == 0 ? "" : " ", (unsigned long long)fields[i]);
    }
    (void)fprintf(stderr, "\"  (");
    for (uint32_t i = 0; i < CASE_FIELDS; i++) {
        (void)fprintf(stderr, "%s%s", i == 0 ? "" : " ", field_names[i]);
    }
    (void)fprintf(stderr, ")\n");
}

static uint64_t number_from(const char *name, uint64_t otherwise)
{
    const char *text = getenv(name);
    return text == NULL || text[0] == '\0' ? otherwise : strtoull(text, NULL, 0);
}

static void test_random_operations(void **state)
{
    (void)state;
    uint64_t cases = number_from("COMMD_CASES", CASES_DEFAULT);
    uint64_t seed = cluster_seed(100);
    for (uint64_t begin = 0; begin < cases; begin += CASES_A_PROCESS) {
        uint64_t left = cases - begin;
        batch_count = left < CASES_A_PROCESS ? (uint32_t)left : CASES_A_PROCESS;
        for (uint32_t i = 0; i < batch_count; i++) {
            case_draw(seed, begin + i, batch_fields[i]);
        }
        if (batch_passes(true)) {
            continue;
        }
        uint64_t fields[CASE_FIELDS];
        memcpy(fields, batch_fields[*batch_at], sizeof fields);
        case_print(fields);
        case_shrink(fields);
        case_print(fields);
        (void)one_passes(fields, false);
        fail_msg("case %llu of %llu is wrong", (unsigned long long)begin + *batch_at,
                 (unsigned long long)cases);
    }
}

static void test_the_case_given(void **state)
{
    const char *text = getenv("COMMD_CASE");
    uint64_t fields[CASE_FIELDS];
    char *end = NULL;
    (void)state;
    for (uint32_t i = 0; i < CASE_FIELDS; i++) {
        fields[i] = strtoull(text, &end, 10);
        text = end;
    }
    assert_true(case_is_valid(fields));
    case_run(fields);
}

int main(void)
{
    batch_at = mmap(NULL, sizeof *batch_at, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (batch_at == MAP_FAILED) {
        return 1;
    }
    const struct CMUnitTest all[] = {cmocka_unit_test(test_random_operations)};
    const struct CMUnitTest given[] = {cmocka_unit_test(test_the_case_given)};
    return cluster_report(getenv("COMMD_CASE") == NULL ? cmocka_run_group_tests(all, NULL, NULL)
                                                       : cmocka_run_group_tests(given, NULL, NULL));
}
