#include "proto/cells.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* What goes through cells and in slices, and how it is cut. */

/* --- Terms --- */

static void test_what_goes_through_cells(void **state)
{
    (void)state;
    struct op_terms terms = {.kind = OP_KIND_ALL_REDUCE, .dtype = DTYPE_F32, .bucket_ops = 1};
    terms.count_elements = CELLS_DATA_MAX_BYTES / 4;
    assert_true(cells_take(&terms, 2));
    assert_false(cells_take(&terms, 3));
    assert_int_equal(cells_published_bytes(&terms, 4, 1), CELLS_DATA_MAX_BYTES);
    terms.count_elements = CELLS_SUMMED_MAX_BYTES / 4;
    assert_true(cells_take(&terms, 3));
    terms.count_elements++;
    assert_false(cells_take(&terms, 3));
    terms.kind = OP_KIND_ALL_TO_ALL;
    terms.count_elements = CELLS_DATA_MAX_BYTES / 16;
    assert_true(cells_take(&terms, 4));
    assert_false(cells_take(&terms, 5));
    terms.count_elements = UINT64_MAX;
    assert_false(cells_take(&terms, 4));
    terms.count_elements = 1;
    terms.bucket_ops = 2;
    assert_false(cells_take(&terms, 4));
    terms.bucket_ops = 1;
    terms.has_layouts = 1;
    assert_true(cells_take(&terms, 4));
    terms.has_layouts = 0;
    terms.compression = COMPRESSION_BF16;
    assert_false(cells_take(&terms, 4));
    terms.compression = COMPRESSION_NONE;
    terms.kind = OP_KIND_SEND;
    assert_false(cells_take(&terms, 4));
    terms.kind = OP_KIND_BROADCAST;
    terms.root_rank = 2;
    assert_int_equal(cells_published_bytes(&terms, 4, 2), 4);
    assert_int_equal(cells_published_bytes(&terms, 4, 3), 0);
    terms.kind = OP_KIND_SCATTER;
    assert_int_equal(cells_published_bytes(&terms, 4, 2), 16);
}

/* --- Slices --- */

static const uint32_t slice_ranks[] = {2, 3, 4, 8, 32};
static const enum dtype slice_dtypes[] = {DTYPE_U8, DTYPE_C128};
enum { SLICE_RANKS = sizeof slice_ranks / sizeof *slice_ranks };

static struct op_terms slice_terms(enum op_kind kind, enum dtype dtype, uint64_t count_elements)
{
    return (struct op_terms){.kind = kind, .dtype = dtype, .bucket_ops = 1, .count_elements = count_elements};
}

/* What does not fit into a cell goes in slices. */
static void expect_slices_of(enum op_kind kind, enum dtype dtype, uint32_t ranks)
{
    uint64_t blocks = op_kind_has_input_blocks(kind) ? ranks : 1, each = blocks * dtype_size_bytes(dtype);
    bool summed = kind == OP_KIND_ALL_REDUCE && ranks >= CELLS_TWO_STEPS_RANKS;
    uint64_t most = (summed ? CELLS_SUMMED_MAX_BYTES : CELLS_DATA_MAX_BYTES) / each;
    bool goes = !op_kind_is_message(kind),
         cuts = goes && kind != OP_KIND_SCAN && kind != OP_KIND_EXCLUSIVE_SCAN;
    const uint64_t counts[] = {0, 1, most, most + 1, UINT64_MAX};
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        struct op_terms terms = slice_terms(kind, dtype, counts[i]);
        assert_int_equal(cells_take_slices(&terms, ranks), cuts && counts[i] > most);
        assert_int_equal(cells_take(&terms, ranks), goes && counts[i] <= most);
        assert_int_equal(cells_most_published_bytes(&terms, ranks),
                         counts[i] == UINT64_MAX ? UINT64_MAX : counts[i] * each);
        terms.has_layouts = 1;
        assert_false(cells_take_slices(&terms, ranks));
        terms.has_layouts = 0;
        terms.bucket_ops = 2;
        assert_false(cells_take_slices(&terms, ranks));
        terms.bucket_ops = 1;
        terms.compression = COMPRESSION_BF16;
        assert_false(cells_take_slices(&terms, ranks));
    }
}

/* The slices are the elements of the vector, each once, and fit into their places. */
static void expect_cut(enum op_kind kind, enum dtype dtype, uint32_t ranks, uint64_t most_bytes)
{
    uint64_t whole = most_bytes / dtype_size_bytes(dtype),
             blocks = op_kind_has_input_blocks(kind) ? ranks : 1;
    const uint64_t counts[][2] = {{0, 0},
                                  {whole - 1, 1},
                                  {whole, 1},
                                  {whole + 1, 2},
                                  {7 * whole, 7},
                                  {7 * whole + 1, 8},
                                  {UINT64_MAX, UINT64_MAX / whole + (UINT64_MAX % whole != 0)}};
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        struct op_terms terms = slice_terms(kind, dtype, counts[i][0]);
        struct cells_cut cut = cells_cut(&terms, ranks);
        assert_int_equal(cut.slice_elements, whole);
        assert_int_equal(cut.slice_count, counts[i][1]);
        assert_int_equal(cut.steps, kind == OP_KIND_ALL_REDUCE && ranks >= CELLS_TWO_STEPS_RANKS ? 2 : 1);
        assert_true(whole * dtype_size_bytes(dtype) * blocks <= CELLS_SLICE_MAX_BYTES);
    }
}

static void test_what_goes_in_slices(void **state)
{
    (void)state;
    for (unsigned i = 0; i < 2 * SLICE_RANKS; i++) {
        for (unsigned kind = 0; kind < OP_KIND_COUNT; kind++) {
            expect_slices_of((enum op_kind)kind, slice_dtypes[i % 2], slice_ranks[i / 2]);
        }
    }
}

static void test_cuts(void **state)
{
    (void)state;
    static const enum op_kind with_blocks[] = {OP_KIND_ALL_GATHER, OP_KIND_REDUCE_SCATTER, OP_KIND_ALL_TO_ALL,
                                               OP_KIND_SCATTER, OP_KIND_GATHER};
    for (unsigned i = 0; i < 2 * SLICE_RANKS; i++) {
        enum dtype dtype = slice_dtypes[i % 2];
        uint32_t ranks = slice_ranks[i / 2];
        uint64_t slice_bytes = ranks == 2 ? 1 << 20 : 1 << 18;
        expect_cut(OP_KIND_ALL_REDUCE, dtype, ranks, slice_bytes);
        expect_cut(OP_KIND_REDUCE, dtype, ranks, slice_bytes);
        expect_cut(OP_KIND_BROADCAST, dtype, ranks, slice_bytes);
        for (size_t k = 0; k < sizeof with_blocks / sizeof *with_blocks; k++) {
            expect_cut(with_blocks[k], dtype, ranks, slice_bytes / ranks);
        }
    }
}

/* --- A count for each rank --- */

#define BLOCK_RANKS 4u

static void *make_segment(void)
{
    void *segment = aligned_alloc(CELLS_PAGE_BYTES, cells_bytes(BLOCK_RANKS));
    assert_non_null(segment);
    memset(segment, 0, cells_bytes(BLOCK_RANKS));
    return segment;
}

/* counts[from][to]. Of a kind without input blocks, a rank sends the same to all. */
static uint64_t slices_of(enum op_kind kind, enum dtype dtype, uint64_t counts[BLOCK_RANKS][BLOCK_RANKS])
{
    struct cells_shared *shared = make_segment();
    struct op_terms terms = slice_terms(kind, dtype, 0);
    terms.has_layouts = 1;
    for (uint32_t from = 0; from < BLOCK_RANKS; from++) {
        memcpy(cells_table(shared, BLOCK_RANKS, from, 7), counts[from], sizeof counts[from]);
    }
    uint64_t slices = cells_slices_of_blocks(shared, BLOCK_RANKS, 7, &terms, CELLS_SLICE_MAX_BYTES);
    free(shared);
    return slices;
}

/* The elements that fit into a cell behind the table, and those of a slice, where each part may be rounded
 * up. */
static void test_slices_of_blocks(void **state)
{
    (void)state;
    uint64_t fit = (CELLS_DATA_MAX_BYTES - cells_table_bytes(BLOCK_RANKS)) / 4;
    uint64_t each = (CELLS_SLICE_MAX_BYTES - CELLS_OFFSETS_BYTES) / 4 - BLOCK_RANKS;
    const struct {
        uint64_t row[BLOCK_RANKS]; /* of rank 2; the others send nothing */
        uint64_t slices;
    } cases[] = {
        {{0, 0, 0, 0}, 0},
        {{fit, 0, 0, 0}, 0},
        {{fit - 5, 1, 1, 3}, 0},
        {{fit - 5, 1, 1, 4}, 1},
        {{0, 0, fit + 1, 0}, 1}, /* its own block, which it need not send */
        {{each, 0, 5, 0}, 1},
        {{each / 2, each - each / 2, 5, 0}, 1},
        {{each, 1, 5, 0}, 2},
        {{7 * each, 0, each, 0}, 7},
        {{UINT64_MAX, 0, 0, 0}, UINT64_MAX / each + (UINT64_MAX % each != 0)},
        {{UINT64_MAX, 1, 0, 0}, UINT64_MAX / each + (UINT64_MAX % each != 0)}, /* saturated */
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        uint64_t counts[BLOCK_RANKS][BLOCK_RANKS] = {{0}};
        memcpy(counts[2], cases[i].row, sizeof counts[2]);
        assert_int_equal(slices_of(OP_KIND_ALL_TO_ALL, DTYPE_F32, counts), cases[i].slices);
    }
}

static void test_slices_of_one_block_for_all(void **state)
{
    (void)state;
    uint64_t each = (CELLS_SLICE_MAX_BYTES - CELLS_OFFSETS_BYTES) / 16 - BLOCK_RANKS;
    uint64_t counts[BLOCK_RANKS][BLOCK_RANKS] = {{3, 3, 3, 3}, {0, 0, 0, 0}, {1, 1, 1, 1}, {0, 0, 0, 0}};
    assert_int_equal(slices_of(OP_KIND_ALL_GATHER, DTYPE_C128, counts), 0);
    for (uint32_t to = 0; to < BLOCK_RANKS; to++) {
        counts[3][to] = 2 * each + 1;
    }
    assert_int_equal(slices_of(OP_KIND_ALL_GATHER, DTYPE_C128, counts), 3);
    memset(counts, 0, sizeof counts);
    counts[1][2] = 2 * each; /* to the root alone */
    assert_int_equal(slices_of(OP_KIND_GATHER, DTYPE_C128, counts), 2);
}

/* The parts of a block follow each other, and differ by an element at most. */
static void test_parts(void **state)
{
    (void)state;
    static const uint64_t elements[] = {0, 1, 2, 6, 7, 8, 1000, UINT64_MAX};
    static const uint64_t slices[] = {1, 2, 3, 7, 1000};
    for (size_t i = 0; i < sizeof elements / sizeof *elements; i++) {
        for (size_t k = 0; k < sizeof slices / sizeof *slices; k++) {
            uint64_t least = elements[i] / slices[k];
            assert_int_equal(cells_part_begin(elements[i], 0, slices[k]), 0);
            assert_int_equal(cells_part_begin(elements[i], slices[k], slices[k]), elements[i]);
            for (uint64_t index = 0; index < slices[k]; index++) {
                uint64_t part = cells_part_begin(elements[i], index + 1, slices[k]) -
                                cells_part_begin(elements[i], index, slices[k]);
                assert_in_range(part, least, least + (elements[i] % slices[k] != 0));
            }
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_goes_through_cells),
        cmocka_unit_test(test_what_goes_in_slices),
        cmocka_unit_test(test_cuts),
        cmocka_unit_test(test_slices_of_blocks),
        cmocka_unit_test(test_slices_of_one_block_for_all),
        cmocka_unit_test(test_parts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
