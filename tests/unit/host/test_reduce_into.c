#include "tests/unit/host/reduce_buffers.h"

/* Compares host_reduce_into and host_reduce_into_before with host_reduce, which test_reduce.c checks. */

/* Bits of NaN (quiet, signalling, two payloads, both signs), zeros, infinities, ordinary and random numbers.
 */
static void fill_special(enum dtype dtype, unsigned char *buffer, size_t count, unsigned rank)
{
    size_t reals = count * element_parts(dtype);
    fill(dtype, buffer, count, rank);
    if (!element_is_real(dtype)) {
        return;
    }
    size_t size = element_part_bytes(dtype);
    unsigned fraction_bits = element_layout(dtype).fraction;
    uint64_t sign = 1ull << (8 * size - 1);
    uint64_t infinite = (sign - 1) >> fraction_bits << fraction_bits;
    const uint64_t specials[] = {
        0, sign, infinite | 1, infinite | 3, sign | infinite | 2, infinite, sign | infinite, sign - 1};
    for (size_t i = 0; i < reals; i++) {
        size_t which = (rank == 0 ? i : i / 9) % 9; /* every pair of them */
        if (which < 8) {
            memcpy(buffer + i * size, &specials[which], size);
        }
    }
}

/* Compares the bits, those of NaN too. */
static void check_same(enum dtype dtype, enum reduce reduce, const char *what, const unsigned char *got,
                       const unsigned char *expected, size_t count)
{
    size_t size = dtype_size_bytes(dtype);
    for (size_t i = 0; i < count; i++) {
        if (memcmp(got + i * size, expected + i * size, size) != 0) {
            fail_msg("%s %s, element %zu of %zu: %s is not host_reduce", dtype_text(dtype),
                     reduce_text(reduce), i, count, what);
        }
    }
}

/* Compares host_reduce_into and host_reduce_into_before with host_reduce of two inputs. The source is at an
 * odd address. */
static void check_into(enum dtype dtype, enum reduce reduce, size_t count)
{
    size_t bytes = count * dtype_size_bytes(dtype);
    unsigned char *target = inputs[0], *source = inputs[1] + 1, *work = outputs[1] + GUARD;
    fill_special(dtype, target, count, 0);
    fill_special(dtype, inputs[2], count, 1);
    memcpy(source, inputs[2], bytes);
    for (int before = 0; before < 2; before++) {
        const void *in[2] = {before ? source : target, before ? target : source};
        void *out[1] = {outputs[0]};
        memset(outputs[0], POISON, bytes);
        memset(outputs[1], POISON, bytes + 2 * GUARD);
        memcpy(work, target, bytes);
        struct host_reduction reduction = {.dtype = dtype,
                                           .reduce = reduce,
                                           .count_elements = count,
                                           .input_count = 2,
                                           .output_count = 1,
                                           .inputs = in,
                                           .outputs = out};
        host_reduce(&reduction);
        if (before) {
            host_reduce_into_before(dtype, reduce, work, source, count);
        } else {
            host_reduce_into(dtype, reduce, work, source, count);
            memcpy(first_level, work, bytes);
        }
        check_same(dtype, reduce, before ? "before" : "into", work, outputs[0], count);
        assert_memory_equal(source, inputs[2], bytes);
        for (size_t g = 0; g < GUARD; g++) {
            assert_int_equal(outputs[1][g], POISON);
            assert_int_equal(work[bytes + g], POISON);
        }
    }
    for (size_t i = 0; i < count; i++) {
        size_t at = i * dtype_size_bytes(dtype);
        if (!element_is_same(dtype, first_level + at, work + at)) {
            fail_msg("%s %s, element %zu: the order of the operands changes more than NaN", dtype_text(dtype),
                     reduce_text(reduce), i);
        }
    }
}

static void test_into_and_before(void **state)
{
    (void)state;
    static const size_t counts[] = {0, 1, 3, 17, 83, 1025, 8193};
    for (size_t level = 0; level < 3; level++) {
        if (host_reduce_force_level(levels[level], NULL) != STATUS_OK) {
            continue;
        }
        for (unsigned dtype = 0; dtype < DTYPE_COUNT; dtype++) {
            for (unsigned reduce = 0; reduce < REDUCE_COUNT; reduce++) {
                for (size_t c = 0; c < sizeof counts / sizeof counts[0]; c++) {
                    if (reduce_is_defined((enum dtype)dtype, (enum reduce)reduce)) {
                        check_into((enum dtype)dtype, (enum reduce)reduce, counts[c]);
                    }
                }
            }
        }
    }
}

/* Of two NaN, min and max keep the left operand. For host_reduce_into_before, that is the source. */
static void test_before_is_the_left_operand(void **state)
{
    (void)state;
    const uint32_t nan_a = 0x7fc00001u, nan_b = 0xffc00002u;
    for (int reduce = REDUCE_MIN; reduce <= REDUCE_MAX; reduce++) {
        uint32_t target = nan_a;
        host_reduce_into(DTYPE_F32, (enum reduce)reduce, &target, &nan_b, 1);
        assert_int_equal(target, nan_a);
        host_reduce_into_before(DTYPE_F32, (enum reduce)reduce, &target, &nan_b, 1);
        assert_int_equal(target, nan_b);
    }
}

/* Data come in pieces of any size. So which of two NaN a result has must not depend on where a piece ends. */
static void check_place(enum dtype dtype, enum reduce reduce)
{
    enum { MOST = 150 };
    size_t size = element_part_bytes(dtype), parts = element_parts(dtype);
    uint64_t sign = UINT64_C(1) << (8 * size - 1), expected = 0;
    for (size_t i = 0; i < MOST * parts; i++) {
        uint64_t quiet = sign - 1, other = quiet | sign;
        quiet -= dtype == DTYPE_F8E4M3 ? 0 : 1;
        memcpy(inputs[0] + i * size, &quiet, size);
        memcpy(inputs[1] + 1 + i * size, &other, size);
    }
    for (size_t count = 1; count <= MOST; count++) {
        unsigned char *work = outputs[0];
        memcpy(work, inputs[0], count * parts * size);
        host_reduce_into(dtype, reduce, work, inputs[1] + 1, count);
        if (count == 1) {
            memcpy(&expected, work, size);
            assert_true(element_is_nan(dtype, expected));
        }
        for (size_t i = 0; i < count * parts; i++) {
            if (memcmp(work + i * size, &expected, size) != 0) {
                fail_msg("%s %s at level %s: the NaN of part %zu of %zu is another one", dtype_text(dtype),
                         reduce_text(reduce), host_reduce_level_text(), i, count * parts);
            }
        }
    }
}

static void test_nan_does_not_depend_on_place(void **state)
{
    (void)state;
    for (size_t level = 0; level < 3; level++) {
        if (host_reduce_force_level(levels[level], NULL) != STATUS_OK) {
            continue;
        }
        for (unsigned dtype = 0; dtype < DTYPE_COUNT; dtype++) {
            for (unsigned reduce = 0; reduce < REDUCE_COUNT; reduce++) {
                if (element_is_real((enum dtype)dtype) &&
                    reduce_is_defined((enum dtype)dtype, (enum reduce)reduce)) {
                    check_place((enum dtype)dtype, (enum reduce)reduce);
                }
            }
        }
    }
}

/* Of all special values, only NaN change, and all of a type become the same. */
static void test_settled_nan(void **state)
{
    (void)state;
    enum { COUNT = 200 };
    for (unsigned each = 0; each < DTYPE_COUNT; each++) {
        enum dtype dtype = (enum dtype)each;
        size_t bytes = COUNT * dtype_size_bytes(dtype), size = element_part_bytes(dtype), nans = 0;
        unsigned char *values = inputs[1] + 1, *before = inputs[2], nan[8];
        fill_special(dtype, before, COUNT, 1);
        memcpy(values, before, bytes);
        values[bytes] = POISON;
        host_settle_nan(dtype, values, COUNT);
        assert_int_equal(values[bytes], POISON);
        for (size_t i = 0; i < bytes; i += size) {
            uint64_t bits = 0;
            memcpy(&bits, before + i, size);
            if (!element_is_nan(dtype, bits)) {
                assert_memory_equal(values + i, before + i, size);
                continue;
            }
            if (nans++ == 0) {
                memcpy(nan, values + i, size);
                bits = 0;
                memcpy(&bits, nan, size);
                assert_true(element_is_nan(dtype, bits) && bits >> (8 * size - 1) == 0);
            }
            assert_memory_equal(values + i, nan, size);
        }
        assert_true(element_is_real(dtype) ? nans > 1 : nans == 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_into_and_before),
        cmocka_unit_test(test_before_is_the_left_operand),
        cmocka_unit_test(test_nan_does_not_depend_on_place),
        cmocka_unit_test(test_settled_nan),
    };
    return cmocka_run_group_tests(tests, make_buffers, free_buffers);
}
