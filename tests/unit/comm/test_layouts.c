#include "tests/unit/comm/comm_ops.h"

/* Operations whose layouts contradict each other: local ranks give different sizes for one block. */

enum { RANKS = 2, BLOCK = 3, ELEMENTS = 8, FILL = 77 };

struct layouts {
    struct member *members[RANKS];
    struct buffer input[RANKS], output[RANKS];
    uint64_t counts[RANKS][2 * 2 * RANKS]; /* counts and displacements of the input, then of the output */
    struct memory *memory[RANKS];
};

static void layouts_start(struct layouts *layouts)
{
    world_start(&world, 1, 1, NULL);
    form_ops(layouts->members, 1, RANKS, 0, "blocks");
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        layouts->input[rank] = buffer_new(ELEMENTS, 100 * (int32_t)rank, 1);
        layouts->output[rank] = buffer_new(ELEMENTS, FILL, 0);
        uint64_t *numbers = layouts->counts[rank];
        for (uint32_t i = 0; i < RANKS; i++) {
            numbers[i] = numbers[2 * RANKS + i] = BLOCK;
            numbers[RANKS + i] = numbers[3 * RANKS + i] = BLOCK * i;
        }
        assert_int_equal(memory_wrap(numbers, sizeof layouts->counts[rank], &layouts->memory[rank], NULL),
                         STATUS_OK);
    }
}

/* Posts the operation on all ranks. counts[rank] is the count of the rank's own block; the tables stay as
 * they are. */
static void layouts_post(struct layouts *layouts, enum op_kind kind, const uint64_t counts[RANKS])
{
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        struct comms_op op = {.terms.kind = kind,
                              .terms.dtype = DTYPE_I32,
                              .terms.count_elements = counts[rank],
                              .terms.has_layouts = true,
                              .input = {layouts->input[rank].memory, 0},
                              .output = {layouts->output[rank].memory, 0},
                              .input_layout = {layouts->memory[rank], 0},
                              .output_layout = {layouts->memory[rank], 2 * RANKS * sizeof(uint64_t)}};
        post_well(layouts->members[rank], &op);
    }
    run(&world, 20 * TIME_MS);
}

/* The operation fails on both ranks, and nothing is written. The communicator goes on. */
static void layouts_expect_mismatch(struct layouts *layouts, const char *text)
{
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        struct member *member = layouts->members[rank];
        assert_int_equal(member->completed, member->posted);
        assert_error(&member->results[member->posted], STATUS_MISMATCH, text);
        for (uint32_t i = 0; i < ELEMENTS; i++) {
            assert_int_equal(layouts->output[rank].elements[i], FILL);
        }
        post_well(member, &(struct comms_op){.terms.kind = OP_KIND_BARRIER});
    }
    run(&world, 20 * TIME_MS);
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        const struct member *member = layouts->members[rank];
        assert_int_equal(member->completed, member->posted);
        assert_int_equal(member->results[member->posted].status, STATUS_OK);
    }
}

static void layouts_stop(struct layouts *layouts)
{
    leave_all(&world);
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        buffer_free(&layouts->input[rank]);
        buffer_free(&layouts->output[rank]);
        memory_unref(layouts->memory[rank]);
    }
    world_stop(&world);
}

/* A rank has more elements for a rank than that one expects. */
static void test_all_to_all(void **state)
{
    (void)state;
    struct layouts layouts;
    layouts_start(&layouts);
    layouts.counts[0][1] = BLOCK + 2; /* from rank 0 to rank 1: up to the end of rank 0's input */
    layouts_post(&layouts, OP_KIND_ALL_TO_ALL, (uint64_t[]){0, 0});
    layouts_expect_mismatch(&layouts, "all_to_all_v: rank 0 has 5 elements for rank 1, which expects 3");
    layouts.counts[0][1] = BLOCK;
    layouts.counts[1][2 * RANKS + 1] = 0; /* from rank 1 to itself */
    layouts_post(&layouts, OP_KIND_ALL_TO_ALL, (uint64_t[]){0, 0});
    layouts_expect_mismatch(&layouts, "rank 1 has 3 elements for rank 1, which expects 0");
    layouts_stop(&layouts);
}

/* Where these are counted: by their result, and with the size that the first local rank's blocks have. */
static void test_counted(void **state)
{
    (void)state;
    struct layouts layouts;
    layouts_start(&layouts);
    const struct comms_totals *totals = comms_totals(world.nodes[0].comms);
    const struct op_counts_cell *cell = &totals->ops.cells[OP_KIND_ALL_TO_ALL][0];
    layouts_post(&layouts, OP_KIND_ALL_TO_ALL, (uint64_t[]){0, 0});
    assert_int_equal(cell->results[STATUS_OK], 1);
    assert_int_equal(cell->bytes, RANKS * BLOCK * sizeof(int32_t));
    assert_int_equal(histogram_count(&cell->latency_ns), 1);
    layouts.counts[1][2 * RANKS + 1] = 0;
    layouts_post(&layouts, OP_KIND_ALL_TO_ALL, (uint64_t[]){0, 0});
    assert_int_equal(cell->results[STATUS_MISMATCH], 1);
    assert_int_equal(cell->results[STATUS_OK], 1);
    assert_int_equal(histogram_count(&cell->latency_ns), 1);
    assert_int_equal(totals->ops_pending, 0);
    assert_int_equal(totals->formed, 1);
    assert_int_equal(totals->communicators[COMMS_COMM_FORMED], 1);
    layouts_stop(&layouts);
}

/* The root would read beyond another rank's block. */
static void test_gather(void **state)
{
    (void)state;
    struct layouts layouts;
    layouts_start(&layouts);
    layouts_post(&layouts, OP_KIND_GATHER, (uint64_t[]){BLOCK, 1});
    layouts_expect_mismatch(&layouts, "gather_v: rank 1 has 1 elements for rank 0, which expects 3");
    layouts_stop(&layouts);
}

/* The root would write beyond another rank's block. */
static void test_scatter(void **state)
{
    (void)state;
    struct layouts layouts;
    layouts_start(&layouts);
    layouts_post(&layouts, OP_KIND_SCATTER, (uint64_t[]){BLOCK, 0});
    layouts_expect_mismatch(&layouts, "scatter_v: rank 0 has 3 elements for rank 1, which expects 0");
    layouts_stop(&layouts);
}

/* commd compares each rank when it posts. Two ranks that contradict each other do not wait for a third. */
static void test_found_early(void **state)
{
    (void)state;
    enum { SIZE = 3 };
    struct member *members[SIZE];
    struct memory *memory[SIZE];
    uint64_t numbers[SIZE][2 * SIZE];
    world_start(&world, 1, 1, NULL);
    form_ops(members, 1, SIZE, 0, "three");
    struct buffer input = buffer_new(SIZE * BLOCK, 0, 1), output = buffer_new(SIZE * BLOCK, FILL, 0);
    for (uint32_t rank = 0; rank < SIZE; rank++) {
        for (uint32_t i = 0; i < SIZE; i++) {
            numbers[rank][i] = rank == 2 && i == 1 ? 1 : BLOCK;
            numbers[rank][SIZE + i] = BLOCK * i;
        }
        assert_int_equal(memory_wrap(numbers[rank], sizeof numbers[rank], &memory[rank], NULL), STATUS_OK);
    }
    for (uint32_t rank = SIZE; rank-- > 0;) {
        if (rank == 0) {
            run(&world, 10 * TIME_MS);
            assert_int_equal(members[1]->completed, 1);
            assert_int_equal(members[2]->completed, 1);
        }
        post_well(members[rank], &(struct comms_op){.terms.kind = OP_KIND_ALL_TO_ALL,
                                                    .terms.dtype = DTYPE_I32,
                                                    .terms.has_layouts = true,
                                                    .input = {input.memory, 0},
                                                    .output = {output.memory, 0},
                                                    .input_layout = {memory[rank], 0},
                                                    .output_layout = {memory[rank], 0}});
    }
    run(&world, 10 * TIME_MS);
    for (uint32_t rank = 0; rank < SIZE; rank++) {
        assert_error(&members[rank]->results[1], STATUS_MISMATCH,
                     "rank 1 has 3 elements for rank 2, which expects 1");
    }
    leave_all(&world);
    for (uint32_t rank = 0; rank < SIZE; rank++) {
        memory_unref(memory[rank]);
    }
    buffer_free(&input);
    buffer_free(&output);
    world_stop(&world);
}

/* Layouts that fit: each block comes to its place. */
static void test_fitting(void **state)
{
    (void)state;
    struct layouts layouts;
    layouts_start(&layouts);
    layouts_post(&layouts, OP_KIND_ALL_TO_ALL, (uint64_t[]){0, 0});
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        assert_int_equal(layouts.members[rank]->completed, 1);
        assert_int_equal(layouts.members[rank]->results[1].status, STATUS_OK);
        for (uint32_t i = 0; i < RANKS * BLOCK; i++) {
            int32_t from = (int32_t)(i / BLOCK), place = (int32_t)(rank * BLOCK + i % BLOCK);
            assert_int_equal(layouts.output[rank].elements[i], 100 * from + place);
        }
    }
    layouts_stop(&layouts);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_to_all), cmocka_unit_test(test_counted),     cmocka_unit_test(test_gather),
        cmocka_unit_test(test_scatter),    cmocka_unit_test(test_found_early), cmocka_unit_test(test_fitting),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
