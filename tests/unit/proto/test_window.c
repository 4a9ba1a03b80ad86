#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

#include "proto/window.h"

static struct op_terms terms_of(enum op_kind kind, enum dtype dtype, uint64_t count)
{
    return (struct op_terms){.kind = kind, .dtype = dtype, .bucket_ops = 1, .count_elements = count};
}

/* The slices' parts lie end to end and cover a block, and each fits its slot. */
static void expect_parts(const struct window_shape *shape)
{
    uint64_t end = 0;
    for (uint64_t slice = 0; slice < shape->slice_count; slice++) {
        uint64_t offset, part;
        window_part(shape, slice, &offset, &part);
        assert_true(offset == end && part > 0 && part <= shape->slot_elements);
        end += part;
    }
    assert_true(end == shape->count_elements);
}

/* Slices that are in the window at the same time, and the blocks of one slice, share no element. */
static void expect_places(const struct window_shape *shape, uint32_t blocks)
{
    uint64_t end = window_elements(shape, blocks);
    for (uint64_t slice = 0; slice < 2 * WINDOW_SLOTS + 1; slice++) {
        for (uint32_t block = 0; block < blocks; block++) {
            uint64_t place = window_place(shape, blocks, slice, block);
            uint64_t number = slice % WINDOW_SLOTS * blocks + block;
            assert_true(place == number * shape->slot_elements);
            assert_true(place + shape->slot_elements <= end);
        }
    }
}

static void test_shapes(void **state)
{
    static const enum op_kind kinds[] = {OP_KIND_ALL_REDUCE, OP_KIND_REDUCE,         OP_KIND_BROADCAST,
                                         OP_KIND_ALL_GATHER, OP_KIND_REDUCE_SCATTER, OP_KIND_ALL_TO_ALL};
    static const enum dtype dtypes[] = {DTYPE_U8, DTYPE_F32, DTYPE_C128};
    (void)state;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        for (uint64_t k = 0; k < 3 * 8 * 9; k++) {
            enum dtype dtype = dtypes[k % 3];
            uint32_t ranks = (uint32_t)(1 + k / 3 % 8);
            uint64_t slot = WINDOW_SLICE_BYTES / dtype_size_bytes(dtype);
            uint64_t count = 40 * slot + k / 24 - 4; /* around a multiple of every slot */
            struct op_terms terms = terms_of(kinds[i], dtype, count);
            struct window_shape shape;
            assert_true(window_shape_of(&terms, ranks, &shape));
            assert_true(shape.count_elements == count);
            expect_parts(&shape);
            expect_places(&shape, shape.input_blocks);
            expect_places(&shape, shape.output_blocks);
            uint32_t blocks =
                shape.input_blocks > shape.output_blocks ? shape.input_blocks : shape.output_blocks;
            assert_true(blocks * shape.slot_elements * dtype_size_bytes(dtype) <= WINDOW_SLICE_BYTES);
        }
    }
}

static void test_the_smallest(void **state)
{
    (void)state;
    uint64_t slot = WINDOW_SLICE_BYTES / sizeof(float);
    for (uint32_t ranks = 1; ranks <= 8; ranks++) {
        uint64_t slices = WINDOW_RANK_SLICES_MIN / ranks;
        slices = slices > WINDOW_SLICES_MIN ? slices : WINDOW_SLICES_MIN;
        struct op_terms least = terms_of(OP_KIND_ALL_REDUCE, DTYPE_F32, (slices - 1) * slot + 1);
        struct op_terms less = terms_of(OP_KIND_ALL_REDUCE, DTYPE_F32, (slices - 1) * slot);
        struct window_shape shape;
        assert_true(window_shape_of(&least, ranks, &shape));
        assert_true(shape.slice_count == slices);
        assert_false(window_shape_of(&less, ranks, &shape));
    }
}

static void test_none(void **state)
{
    (void)state;
    struct window_shape shape;
    const struct op_terms good = terms_of(OP_KIND_ALL_REDUCE, DTYPE_F32, UINT64_C(1) << 30);
    struct op_terms terms = good;
    assert_true(window_shape_of(&terms, 2, &shape));
    terms.has_layouts = 1;
    assert_false(window_shape_of(&terms, 2, &shape));
    terms = good;
    terms.bucket_ops = 2;
    assert_false(window_shape_of(&terms, 2, &shape));
    terms = good;
    terms.compression = COMPRESSION_BF16;
    assert_false(window_shape_of(&terms, 2, &shape));
    terms = good;
    terms.count_elements = UINT64_MAX; /* too many slices */
    assert_false(window_shape_of(&terms, 2, &shape));
    terms = good;
    terms.kind = OP_KIND_ALL_TO_ALL; /* the parts of its blocks would be too small */
    assert_true(window_shape_of(&terms, 8, &shape));
    assert_false(window_shape_of(&terms, 9, &shape));
    assert_false(window_shape_of(&terms, UINT32_MAX, &shape));
    static const enum op_kind others[] = {OP_KIND_BARRIER, OP_KIND_GATHER, OP_KIND_SCATTER,
                                          OP_KIND_SCAN,    OP_KIND_SEND,   OP_KIND_EXCLUSIVE_SCAN,
                                          OP_KIND_RECEIVE};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        terms = good;
        terms.kind = others[i];
        assert_false(window_shape_of(&terms, 2, &shape));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shapes),
        cmocka_unit_test(test_the_smallest),
        cmocka_unit_test(test_none),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
