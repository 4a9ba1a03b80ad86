#include "tests/unit/host/reduce_buffers.h"

#include <math.h>

#include "kernels/convert_bits.h"

/* host_reduce against a reference of higher precision, at every level. test_reduce_into.c checks
 * host_reduce_into. */

/* Reduces real number i of all inputs in a wider type. *magnitude bounds the rounding errors: for a sum, it
 * is the sum of the inputs' magnitudes. */
static void reduce_real(const struct host_reduction *reduction, const void *const *originals, size_t i,
                        long double *value, long double *magnitude)
{
    enum dtype dtype = reduction->dtype;
    *value = 0;
    *magnitude = 0;
    if (element_parts(dtype) == 2 && reduction->reduce == REDUCE_PROD) {
        long double real = 1, imaginary = 0;
        for (uint32_t k = 0; k < reduction->input_count; k++) {
            long double a = (long double)element_real(dtype, originals[k], i & ~(size_t)1);
            long double b = (long double)element_real(dtype, originals[k], i | 1);
            long double next = real * a - imaginary * b;
            imaginary = real * b + imaginary * a;
            real = next;
        }
        *value = (i & 1) != 0 ? imaginary : real;
        *magnitude = fabsl(real) + fabsl(imaginary);
    } else {
        for (uint32_t k = 0; k < reduction->input_count; k++) {
            long double x = (long double)element_real(dtype, originals[k], i);
            x *= reduction->factors != NULL ? (long double)reduction->factors[k] : 1;
            bool first = k == 0;
            switch (reduction->reduce) {
            case REDUCE_PROD:
                *value = first ? x : *value * x;
                *magnitude = fabsl(*value);
                break;
            case REDUCE_MIN:
                *value = first || x < *value ? x : *value;
                break;
            case REDUCE_MAX:
                *value = first || x > *value ? x : *value;
                break;
            case REDUCE_SUM:
            case REDUCE_AVG:
            case REDUCE_PREMUL_SUM:
            case REDUCE_BAND:
            case REDUCE_BOR:
            case REDUCE_BXOR:
            case REDUCE_LAND:
            case REDUCE_LOR:
                *value += x;
                *magnitude += fabsl(x);
                break;
            }
        }
    }
}

static void check_reals(const struct host_reduction *reduction, const void *const *originals,
                        const unsigned char *output)
{
    enum dtype dtype = reduction->dtype;
    size_t reals = (size_t)reduction->count_elements * element_parts(dtype);
    for (size_t i = 0; i < reals; i++) {
        long double value, magnitude;
        reduce_real(reduction, originals, i, &value, &magnitude);
        if (reduction->divisor > 1) {
            value /= (long double)reduction->divisor;
            magnitude /= (long double)reduction->divisor;
        }
        double wide = dtype == DTYPE_F64 || dtype == DTYPE_C128 ? 0x1p-53 : 0x1p-24;
        long double bound = magnitude * (long double)(wide * 4 * (reduction->input_count + 2)) +
                            fabsl(value) * (long double)element_unit_roundoff(dtype) * 1.001L +
                            0x1p-16L * (dtype >= DTYPE_F8E4M3 && dtype <= DTYPE_F8E5M2 ? 64 : 0);
        double top = dtype == DTYPE_F8E4M3 ? 448 : dtype == DTYPE_F8E5M2 ? 57344 : INFINITY;
        value = fabsl(value) > (long double)top ? copysignl((long double)top, value) : value;
        double got = element_real(dtype, output, i);
        if (fabsl((long double)got - value) > bound) {
            fail_msg("%s %s, %u inputs, element %zu: got %.9g, expected %.9Lg", dtype_text(dtype),
                     reduce_text(reduction->reduce), reduction->input_count, i, got, value);
        }
    }
}

static void check_integers(const struct host_reduction *reduction, const void *const *originals,
                           const unsigned char *output)
{
    enum dtype dtype = reduction->dtype;
    for (size_t i = 0; i < reduction->count_elements; i++) {
        uint64_t products[INPUTS_MAX];
        const void *scaled[INPUTS_MAX];
        for (uint32_t k = 0; k < reduction->input_count && reduction->factors != NULL; k++) {
            products[k] = element_integer(dtype, originals[k], i) * (uint64_t)(int64_t)reduction->factors[k];
            scaled[k] = &products[k];
        }
        bool scales = reduction->factors != NULL;
        uint64_t value =
            element_reduce_integers(dtype, reduction->reduce, reduction->input_count,
                                    scales ? scaled : originals, scales ? 0 : i, reduction->divisor);
        if (element_integer(dtype, output, i) != value) {
            fail_msg("%s %s, %u inputs, element %zu: got %llx, expected %llx", dtype_text(dtype),
                     reduce_text(reduction->reduce), reduction->input_count, i,
                     (unsigned long long)element_integer(dtype, output, i), (unsigned long long)value);
        }
    }
}

/* Checks one case at every level. The result is right, all outputs are equal, all levels give the same bits,
 * and the guards are untouched. */
static void check_case(enum dtype dtype, enum reduce reduce, uint32_t input_count, size_t count, size_t shift,
                       bool in_place)
{
    static const double factors[INPUTS_MAX] = {0.5, -2, 1.25, 3, 0.75, -1, 2, 0.1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
    size_t bytes = count * dtype_size_bytes(dtype);
    const void *originals[INPUTS_MAX], *in[INPUTS_MAX];
    void *out[3];
    bool have_first = false;
    for (uint32_t k = 0; k < input_count; k++) {
        fill(dtype, inputs[k], count, k);
        originals[k] = inputs[k];
    }
    for (size_t level = 0; level < 3; level++) {
        if (host_reduce_force_level(levels[level], NULL) != STATUS_OK) {
            continue;
        }
        for (int o = 0; o < 3; o++) {
            memset(outputs[o], POISON, bytes + 2 * GUARD + 64);
            out[o] = outputs[o] + GUARD + shift;
        }
        memcpy(in, originals, input_count * sizeof *in);
        if (in_place) { /* the last input is the first output; the first input is the second output */
            memcpy(out[0], inputs[input_count - 1], bytes);
            in[input_count - 1] = out[0];
            if (input_count > 1) {
                memcpy(out[1], inputs[0], bytes);
                in[0] = out[1];
            }
        }
        struct host_reduction reduction = {.dtype = dtype,
                                           .reduce = reduce,
                                           .count_elements = count,
                                           .input_count = input_count,
                                           .output_count = 3,
                                           .inputs = in,
                                           .outputs = out,
                                           .factors = reduce == REDUCE_PREMUL_SUM ? factors : NULL,
                                           .divisor = reduce == REDUCE_AVG ? input_count : 0};
        host_reduce(&reduction);
        for (int o = 0; o < 3; o++) {
            assert_memory_equal(out[o], out[0], bytes);
            for (size_t g = 0; g < GUARD; g++) {
                assert_int_equal(outputs[o][g + shift], POISON);
                assert_int_equal(outputs[o][GUARD + shift + bytes + g], POISON);
            }
        }
        if (element_is_real(dtype)) {
            check_reals(&reduction, originals, out[0]);
        } else {
            check_integers(&reduction, originals, out[0]);
        }
        if (have_first && memcmp(out[0], first_level, bytes) != 0) {
            fail_msg("%s %s, %u inputs, %zu elements: %s differs in bits from the level before",
                     dtype_text(dtype), reduce_text(reduce), input_count, count, levels[level]);
        }
        memcpy(first_level, out[0], bytes);
        have_first = true;
    }
}

static void test_everything(void **state)
{
    (void)state;
    static const uint32_t input_counts[] = {1, 2, 3, 4, 5, 8, 17};
    static const size_t counts[] = {0,  1,  2,  3,  7,   8,   15,   16,   17,  31,
                                    33, 63, 64, 65, 127, 129, 1000, 1023, 1025};
    for (unsigned dtype = 0; dtype < DTYPE_COUNT; dtype++) {
        for (unsigned reduce = 0; reduce < REDUCE_COUNT; reduce++) {
            if (!reduce_is_defined((enum dtype)dtype, (enum reduce)reduce)) {
                continue;
            }
            for (size_t k = 0; k < sizeof input_counts / sizeof input_counts[0]; k++) {
                for (size_t c = 0; c < sizeof counts / sizeof counts[0]; c++) {
                    check_case((enum dtype)dtype, (enum reduce)reduce, input_counts[k], counts[c],
                               (k + c) % 5, (k + c) % 2 == 0);
                }
            }
        }
    }
}

/* Counts around the inner block of every width. */
static void test_blocks(void **state)
{
    (void)state;
    static const size_t counts[] = {511, 512, 513, 2047, 2048, 2049, 4096, 4097, 8191, 8192, 8193, COUNT_MAX};
    for (unsigned dtype = 0; dtype < DTYPE_COUNT; dtype++) {
        for (size_t c = 0; c < sizeof counts / sizeof counts[0]; c++) {
            check_case((enum dtype)dtype, REDUCE_SUM, 2, counts[c], 1, false);
            check_case((enum dtype)dtype, REDUCE_PROD, 3, counts[c], 3, true);
        }
    }
}

static void check_order(enum reduce reduce, double a, double b, double expected)
{
    for (size_t level = 0; level < 3; level++) {
        if (host_reduce_force_level(levels[level], NULL) != STATUS_OK) {
            continue;
        }
        for (size_t count = 1; count < 40; count += 6) {
            double left[40], right[40];
            float left_f32[40], right_f32[40];
            for (size_t i = 0; i < count; i++) {
                left[i] = a;
                right[i] = b;
                left_f32[i] = (float)a;
                right_f32[i] = (float)b;
            }
            host_reduce_into(DTYPE_F64, reduce, left, right, count);
            host_reduce_into(DTYPE_F32, reduce, left_f32, right_f32, count);
            for (size_t i = 0; i < count; i++) {
                assert_true(isnan(expected) ? isnan(left[i]) && isnan(left_f32[i])
                                            : left[i] == expected && (double)left_f32[i] == expected);
                assert_true(isnan(expected) || !signbit(left[i]) == !signbit(expected));
                assert_true(isnan(expected) || !signbit(left_f32[i]) == !signbit(expected));
            }
        }
    }
}

static void test_nan_infinity_zero(void **state)
{
    (void)state;
    const double infinity = (double)INFINITY;
    const double nan_value = (double)NAN;
    check_order(REDUCE_MIN, nan_value, 1, nan_value);
    check_order(REDUCE_MIN, 1, nan_value, nan_value);
    check_order(REDUCE_MAX, nan_value, infinity, nan_value);
    check_order(REDUCE_MAX, infinity, nan_value, nan_value);
    check_order(REDUCE_MIN, 0.0, -0.0, -0.0);
    check_order(REDUCE_MIN, -0.0, 0.0, -0.0);
    check_order(REDUCE_MAX, 0.0, -0.0, 0.0);
    check_order(REDUCE_MAX, -0.0, 0.0, 0.0);
    check_order(REDUCE_MIN, -infinity, 5, -infinity);
    check_order(REDUCE_SUM, infinity, -infinity, nan_value);
    check_order(REDUCE_SUM, infinity, 1, infinity);
}

static void test_short_floats_accumulate_in_f32(void **state)
{
    (void)state;
    /* 2048 + 1 + 1 + ... : in f16 each 1 would be lost; summed in f32 and rounded once it is not. */
    uint16_t values[9];
    const void *in[9];
    uint16_t result = 0;
    void *out[1] = {&result};
    for (int k = 0; k < 9; k++) {
        values[k] = bits_f32_to_f16(k == 0 ? 2048.0f : 1.0f);
        in[k] = &values[k];
    }
    struct host_reduction reduction = {.dtype = DTYPE_F16,
                                       .reduce = REDUCE_SUM,
                                       .count_elements = 1,
                                       .input_count = 9,
                                       .output_count = 1,
                                       .inputs = in,
                                       .outputs = out};
    host_reduce(&reduction);
    assert_int_equal(result, bits_f32_to_f16(2056.0f));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_everything),
        cmocka_unit_test(test_blocks),
        cmocka_unit_test(test_nan_infinity_zero),
        cmocka_unit_test(test_short_floats_accumulate_in_f32),
    };
    return cmocka_run_group_tests(tests, make_buffers, free_buffers);
}
