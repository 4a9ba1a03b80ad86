#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "daemon/base/time.h"
#include "daemon/comm/cells_tally.h"

/* Ranks keep counts in the segment of cells. This checks which of these counts commd believes. */

enum { RANKS = 3, LOOKS = 2000, WORDS = sizeof(struct cell_counts) / sizeof(uint64_t) };
#define BEGAN_NS (5 * TIME_S)

struct node {
    struct cells_shared *shared;
    struct cells_tally *tally;
    struct op_counts counts;
    uint64_t now_ns;
};

static int begin(void **state)
{
    struct node *node = calloc(1, sizeof *node);
    assert_non_null(node);
    node->shared = aligned_alloc(CELLS_PAGE_BYTES, cells_control_bytes(RANKS));
    node->tally = cells_tally_new(RANKS, BEGAN_NS);
    assert_non_null(node->shared);
    assert_non_null(node->tally);
    memset(node->shared, 0, cells_control_bytes(RANKS));
    node->now_ns = BEGAN_NS + TIME_S;
    *state = node;
    return 0;
}

static int end(void **state)
{
    struct node *node = *state;
    free(node->tally);
    free(node->shared);
    free(node);
    return 0;
}

static void read_all(struct node *node)
{
    node->now_ns += TIME_MS;
    cells_tally_read(node->tally, node->shared, node->now_ns, &node->counts);
}

/* The rank ends so many operations; each takes this long. */
static void work(struct node *node, uint32_t rank, enum op_kind kind, uint64_t size_bytes, unsigned ops,
                 uint64_t latency_ns)
{
    struct cell_counts *counts = &node->shared->ranks[rank].counts;
    struct cell_count *count = cell_counts_of(counts, kind, size_bytes);
    for (unsigned i = 0; i < ops; i++) {
        cell_counts_raise(&counts->published, 1);
        if (cell_counts_times_next(count, 0)) {
            cell_counts_time(count, latency_ns);
        }
        cell_counts_add(count, size_bytes);
    }
}

static void work_all(struct node *node, enum op_kind kind, uint64_t size_bytes, unsigned ops)
{
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        work(node, rank, kind, size_bytes, ops, 2 * TIME_US);
    }
}

static void test_honest_ranks(void **state)
{
    struct node *node = *state;
    work_all(node, OP_KIND_ALL_REDUCE, 8, 610);
    work_all(node, OP_KIND_ALL_GATHER, 9000, 61);
    read_all(node);
    work_all(node, OP_KIND_ALL_REDUCE, 8, 122);
    read_all(node);
    read_all(node);
    const struct op_counts_cell *reduced = &node->counts.cells[OP_KIND_ALL_REDUCE][0];
    const struct op_counts_cell *gathered = &node->counts.cells[OP_KIND_ALL_GATHER][1];
    assert_int_equal(reduced->results[STATUS_OK], 732);
    assert_int_equal(reduced->bytes, 732 * 8);
    assert_int_equal(histogram_count(&reduced->latency_ns), 12 * CELL_COUNTS_TIMED_EVERY);
    assert_int_equal(reduced->latency_ns.counts[1], 12 * CELL_COUNTS_TIMED_EVERY); /* up to 3 us */
    assert_int_equal(reduced->latency_ns.sum, 12 * CELL_COUNTS_TIMED_EVERY * 2 * TIME_US);
    assert_int_equal(gathered->results[STATUS_OK], 61);
    assert_int_equal(gathered->bytes, 61 * 9000);
    assert_int_equal(histogram_count(&gathered->latency_ns), CELL_COUNTS_TIMED_EVERY);
    assert_int_equal(cells_tally_ops(node->tally), 793);
    assert_int_equal(cells_tally_bytes(node->tally), 732 * 8 + 61 * 9000 / RANKS);
}

/* An operation counts once all ranks have ended it; a rank's own row has it before. */
static void test_ranks_at_different_places(void **state)
{
    struct node *node = *state;
    work(node, 0, OP_KIND_BARRIER, 0, 10, TIME_US);
    work(node, 1, OP_KIND_BARRIER, 0, 8, TIME_US);
    work(node, 2, OP_KIND_BARRIER, 0, 7, TIME_US);
    cell_counts_raise(&node->shared->ranks[2].counts.published, 2); /* not ended */
    read_all(node);
    assert_int_equal(node->counts.cells[OP_KIND_BARRIER][0].results[STATUS_OK], 7);
    assert_int_equal(cells_tally_completed(node->tally, 0), 10);
    assert_int_equal(cells_tally_submitted(node->tally, 0), 10);
    assert_int_equal(cells_tally_completed(node->tally, 2), 7);
    assert_int_equal(cells_tally_submitted(node->tally, 2), 9);
}

static void test_lies(void **state)
{
    struct node *node = *state;
    struct cell_count *count = &node->shared->ranks[1].counts.counts[OP_KIND_ALL_REDUCE][0];
    work_all(node, OP_KIND_ALL_REDUCE, 8, 100);
    read_all(node);
    atomic_store(&count->ops, UINT64_MAX); /* more than there was time for */
    atomic_store(&count->bytes, UINT64_MAX);
    read_all(node);
    atomic_store(&count->ops, 3); /* less than before */
    read_all(node);
    assert_int_equal(cells_tally_completed(node->tally, 1), 100);
    assert_int_equal(cells_tally_ops(node->tally), 100);
    assert_int_equal(node->counts.cells[OP_KIND_ALL_REDUCE][0].bytes, 800);
    for (uint32_t rank = 0; rank < RANKS; rank++) { /* all of them lie */
        count = &node->shared->ranks[rank].counts.counts[OP_KIND_ALL_REDUCE][0];
        atomic_store(&count->ops, 110);
        atomic_store(&count->bytes, UINT64_MAX);
        atomic_store(&count->timed_ns, UINT64_MAX);
        atomic_store(&count->timed[0], UINT64_MAX);
        atomic_store(&count->timed[16], 6);
    }
    node->shared->ranks[0].counts.published = UINT64_MAX;
    read_all(node);
    assert_int_equal(cells_tally_ops(node->tally), 110);
    assert_int_equal(node->counts.cells[OP_KIND_ALL_REDUCE][0].bytes, 800 + 10 * 4096);
    assert_true(histogram_count(&node->counts.cells[OP_KIND_ALL_REDUCE][0].latency_ns) <=
                110 + CELL_COUNTS_TIMED_EVERY);
    assert_int_equal(cells_tally_submitted(node->tally, 0), 110);
}

static uint64_t next_random(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return *state >> 11;
}

/* Any words, while time goes on: what commd counts grows, and no faster than operations can end. */
static void test_any_words(void **state)
{
    struct node *node = *state;
    uint64_t random = 7, ops = 0, bytes = 0;
    for (unsigned look = 0; look < LOOKS; look++) {
        for (unsigned i = 0; i < 50; i++) {
            _Atomic uint64_t *words = (_Atomic uint64_t *)(void *)&node->shared->ranks[i % RANKS].counts;
            unsigned shift = (unsigned)(next_random(&random) % 53);
            atomic_store(&words[next_random(&random) % WORDS], next_random(&random) >> shift);
        }
        read_all(node);
        uint64_t most = (node->now_ns - BEGAN_NS) / CELLS_TALLY_OP_LEAST_NS;
        assert_true(cells_tally_ops(node->tally) >= ops && cells_tally_bytes(node->tally) >= bytes);
        ops = cells_tally_ops(node->tally);
        bytes = cells_tally_bytes(node->tally);
        assert_true(ops <= most && bytes <= most * op_bounds_class_bytes[OP_BOUNDS_CLASSES - 1]);
        for (uint32_t rank = 0; rank < RANKS; rank++) {
            uint64_t completed = cells_tally_completed(node->tally, rank);
            uint64_t submitted = cells_tally_submitted(node->tally, rank);
            assert_true(completed <= most && submitted >= completed && submitted <= completed + CELLS_WINDOW);
        }
    }
    assert_true(ops > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_honest_ranks, begin, end),
        cmocka_unit_test_setup_teardown(test_ranks_at_different_places, begin, end),
        cmocka_unit_test_setup_teardown(test_lies, begin, end),
        cmocka_unit_test_setup_teardown(test_any_words, begin, end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
