#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "client/lib/cells_trial.h"

/* Two ways to read other ranks' data: which one the ranks of a communicator choose. */

#define RANKS 3
#define SIZE_BYTES (UINT64_C(1) << 20)
#define TRIAL (CELLS_WAYS_OF_DATA * CELLS_TRIAL_OPERATIONS)

static struct cells_trials *ranks;
static bool share_processors;

static int make(void **state)
{
    (void)state;
    share_processors = false;
    ranks = calloc(RANKS, sizeof *ranks);
    return ranks != NULL ? 0 : -1;
}

static int unmake(void **state)
{
    (void)state;
    free(ranks);
    return 0;
}

static struct op_terms terms_of(enum op_kind kind)
{
    return (struct op_terms){.kind = kind};
}

/* One operation of all ranks. Each takes that time for each KiB, by rank and way. Returns the way. */
static enum cells_way_of_data run(const struct op_terms *terms, uint64_t size_bytes,
                                  uint64_t times_ns[RANKS][CELLS_WAYS_OF_DATA])
{
    struct cells_note notes[RANKS];
    bool by_process[RANKS];
    for (int rank = 0; rank < RANKS; rank++) {
        memset(&notes[rank], 0, sizeof notes[rank]);
        by_process[rank] = cells_trial_begin(&ranks[rank], terms, size_bytes, &notes[rank]);
        assert_int_equal(by_process[rank], by_process[0]); /* all choose the same way */
    }
    enum cells_way_of_data way = by_process[0] ? CELLS_BY_PROCESS : CELLS_BY_PLACE;
    for (int rank = 0; rank < RANKS; rank++) {
        cells_trial_listen(&ranks[rank], share_processors);
        for (int other = 0; other < RANKS; other++) {
            cells_trial_hear(&ranks[rank], &notes[other]);
        }
        cells_trial_count(&ranks[rank]);
        ranks[rank].busy_ns = times_ns[rank][way] * (size_bytes / 1024);
        cells_trial_end(&ranks[rank], way);
    }
    return way;
}

static void run_trial(const struct op_terms *terms, uint64_t times_ns[RANKS][CELLS_WAYS_OF_DATA])
{
    for (uint32_t i = 0; i < TRIAL; i++) {
        enum cells_way_of_data way = run(terms, SIZE_BYTES, times_ns);
        assert_int_equal(way, i < CELLS_TRIAL_OPERATIONS ? CELLS_BY_PROCESS : CELLS_BY_PLACE);
    }
}

static void test_the_way_that_takes_less_of_all_ranks_together(void **state)
{
    (void)state;
    share_processors = true;
    /* The root of a broadcast does almost nothing if the others read its process. */
    uint64_t place[RANKS][CELLS_WAYS_OF_DATA] = {{1, 20}, {50, 20}, {50, 20}};
    uint64_t process[RANKS][CELLS_WAYS_OF_DATA] = {{1, 25}, {35, 30}, {30, 20}};
    const struct op_terms broadcast = terms_of(OP_KIND_BROADCAST), gather = terms_of(OP_KIND_ALL_GATHER);
    run_trial(&broadcast, place);
    run_trial(&gather, process); /* each kind has its own trial */
    for (int i = 0; i < 100; i++) {
        assert_int_equal(run(&broadcast, SIZE_BYTES, place), CELLS_BY_PLACE);
        assert_int_equal(run(&gather, SIZE_BYTES, process), CELLS_BY_PROCESS);
    }
}

/* One rank receives most of the data. With a processor of its own, it need not wait longer because the others
 * help it. */
static void test_the_way_that_takes_less_of_the_slowest_rank(void **state)
{
    (void)state;
    uint64_t place[RANKS][CELLS_WAYS_OF_DATA] = {{40, 30}, {10, 30}, {10, 30}};
    uint64_t process[RANKS][CELLS_WAYS_OF_DATA] = {{40, 50}, {30, 10}, {30, 10}};
    const struct op_terms all_to_all = terms_of(OP_KIND_ALL_TO_ALL), gather = terms_of(OP_KIND_ALL_GATHER);
    run_trial(&all_to_all, place);
    run_trial(&gather, process);
    for (int i = 0; i < 100; i++) {
        assert_int_equal(run(&all_to_all, SIZE_BYTES, place), CELLS_BY_PLACE);
        assert_int_equal(run(&gather, SIZE_BYTES, process), CELLS_BY_PROCESS);
    }
}

static void test_the_least_time_counts(void **state)
{
    (void)state;
    const struct op_terms terms = terms_of(OP_KIND_ALL_TO_ALL);
    uint64_t slow[RANKS][CELLS_WAYS_OF_DATA] = {{40, 900}, {40, 900}, {40, 900}};
    uint64_t usual[RANKS][CELLS_WAYS_OF_DATA] = {{40, 20}, {40, 20}, {40, 20}};
    for (uint32_t i = 0; i < TRIAL; i++) {
        (void)run(&terms, SIZE_BYTES, i % CELLS_TRIAL_OPERATIONS == 1 ? usual : slow);
    }
    assert_int_equal(run(&terms, SIZE_BYTES, usual), CELLS_BY_PLACE);
}

static void test_the_ranks_try_again(void **state)
{
    (void)state;
    const struct op_terms terms = terms_of(OP_KIND_REDUCE_SCATTER);
    uint64_t before[RANKS][CELLS_WAYS_OF_DATA] = {{40, 20}, {40, 20}, {40, 20}};
    uint64_t after[RANKS][CELLS_WAYS_OF_DATA] = {{40, 60}, {40, 60}, {40, 60}};
    run_trial(&terms, before);
    for (uint32_t i = TRIAL; i < CELLS_TRIAL_PERIOD; i++) {
        assert_int_equal(run(&terms, SIZE_BYTES, after), CELLS_BY_PLACE);
    }
    run_trial(&terms, after);
    for (uint32_t i = TRIAL; i < CELLS_TRIAL_PERIOD; i++) {
        assert_int_equal(run(&terms, SIZE_BYTES, after), CELLS_BY_PROCESS);
    }
}

static void test_sizes_have_trials_of_their_own(void **state)
{
    (void)state;
    uint64_t times_ns[RANKS][CELLS_WAYS_OF_DATA] = {{40, 20}, {40, 20}, {40, 20}};
    const struct op_terms terms = terms_of(OP_KIND_ALL_GATHER);
    run_trial(&terms, times_ns);
    assert_int_equal(run(&terms, SIZE_BYTES / 2 + 1, times_ns), CELLS_BY_PLACE);
    for (uint64_t size_bytes = SIZE_BYTES + 1; size_bytes <= UINT64_C(32) << 20; size_bytes *= 2) {
        for (uint32_t i = 0; i < CELLS_TRIAL_OPERATIONS; i++) {
            assert_int_equal(run(&terms, size_bytes, times_ns), CELLS_BY_PROCESS);
        }
        assert_int_equal(run(&terms, size_bytes, times_ns), CELLS_BY_PLACE);
    }
    struct op_terms counted = terms;
    counted.has_layouts = 1;
    for (uint32_t i = 0; i < TRIAL; i++) { /* one trial for all sizes */
        enum cells_way_of_data way = run(&counted, SIZE_BYTES << i, times_ns);
        assert_int_equal(way, i < CELLS_TRIAL_OPERATIONS ? CELLS_BY_PROCESS : CELLS_BY_PLACE);
    }
    assert_int_equal(run(&counted, 1, times_ns), CELLS_BY_PLACE);
}

/* A rank of an older library says nothing, and a rank on registered memory measures nothing. */
static void test_a_rank_that_knows_nothing(void **state)
{
    (void)state;
    const struct op_terms terms = terms_of(OP_KIND_ALL_GATHER);
    uint64_t times_ns[RANKS][CELLS_WAYS_OF_DATA] = {{40, 20}, {0, 0}, {40, 20}};
    run_trial(&terms, times_ns);
    for (int i = 0; i < 100; i++) {
        assert_int_equal(run(&terms, SIZE_BYTES, times_ns), CELLS_BY_PROCESS);
    }
}

/* Whether work is timed, by what the rank says after the trial. */
static void test_work_is_timed_during_a_trial(void **state)
{
    (void)state;
    struct cells_trials *trials = &ranks[0];
    const struct op_terms terms = terms_of(OP_KIND_ALL_GATHER);
    struct cells_note note = {0};
    assert_int_equal(cells_trial_start(trials), 0); /* nothing is open */
    for (uint32_t i = 0; i <= TRIAL; i++) {
        bool by_process = cells_trial_begin(trials, &terms, SIZE_BYTES, &note);
        uint64_t started_ns = cells_trial_start(trials);
        volatile uint64_t work = 0;
        for (int turn = 0; turn < 100000; turn++) {
            work += (uint64_t)turn;
        }
        cells_trial_stop(trials, started_ns);
        cells_trial_listen(trials, false);
        cells_trial_hear(trials, &note);
        cells_trial_count(trials);
        assert_int_equal(cells_trial_start(trials) != 0, i < TRIAL);
        cells_trial_end(trials, by_process ? CELLS_BY_PROCESS : CELLS_BY_PLACE);
    }
    assert_true(note.place_time > 1);
    assert_true(note.process_time > 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_the_way_that_takes_less_of_all_ranks_together, make, unmake),
        cmocka_unit_test_setup_teardown(test_the_way_that_takes_less_of_the_slowest_rank, make, unmake),
        cmocka_unit_test_setup_teardown(test_the_least_time_counts, make, unmake),
        cmocka_unit_test_setup_teardown(test_the_ranks_try_again, make, unmake),
        cmocka_unit_test_setup_teardown(test_sizes_have_trials_of_their_own, make, unmake),
        cmocka_unit_test_setup_teardown(test_a_rank_that_knows_nothing, make, unmake),
        cmocka_unit_test_setup_teardown(test_work_is_timed_during_a_trial, make, unmake),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
