#include "tests/sim/data.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "daemon/base/random.h"
#include "daemon/dev/convert.h"

/* --- Kinds of types --- */

/* Bits of the significand, the hidden one included; 0 for what is no float. Complex: of a component. */
static int data_precision_bits(enum dtype dtype)
{
    switch (dtype) {
    case DTYPE_F64:
    case DTYPE_C128:
        return 53;
    case DTYPE_F32:
    case DTYPE_C64:
        return 24;
    case DTYPE_F16:
        return 11;
    case DTYPE_BF16:
        return 8;
    case DTYPE_F8E4M3:
        return 4;
    case DTYPE_F8E5M2:
        return 3;
    case DTYPE_I64:
    case DTYPE_I32:
    case DTYPE_I16:
    case DTYPE_I8:
    case DTYPE_U64:
    case DTYPE_U32:
    case DTYPE_U16:
    case DTYPE_U8:
    case DTYPE_BOOL:
        return 0;
    }
    return 0;
}

/* Half the distance between the smallest numbers of the short types: what rounding may be off by near zero.
 */
static double data_smallest_step(enum dtype dtype)
{
    if (dtype == DTYPE_F8E4M3) {
        return 0x1p-10;
    }
    if (dtype == DTYPE_F8E5M2) {
        return 0x1p-17;
    }
    return dtype == DTYPE_F16 ? 0x1p-25 : 0;
}

static bool data_is_signed(enum dtype dtype)
{
    return dtype == DTYPE_I64 || dtype == DTYPE_I32 || dtype == DTYPE_I16 || dtype == DTYPE_I8;
}

static uint32_t data_components(enum dtype dtype)
{
    return dtype == DTYPE_C64 || dtype == DTYPE_C128 ? 2 : 1;
}

/* Component `index` of an array of floating-point elements. */
static double data_real(enum dtype dtype, const void *array, uint64_t index)
{
    const uint8_t *at = (const uint8_t *)array + index * (dtype_size_bytes(dtype) / data_components(dtype));
    double f64;
    float f32;
    uint16_t bits;
    switch (dtype_size_bytes(dtype) / data_components(dtype)) {
    case 8:
        memcpy(&f64, at, sizeof f64);
        return f64;
    case 4:
        memcpy(&f32, at, sizeof f32);
        return (double)f32;
    case 2:
        memcpy(&bits, at, sizeof bits);
        return (double)(dtype == DTYPE_F16 ? convert_f16_to_f32(bits) : convert_bf16_to_f32(bits));
    default:
        return (double)(dtype == DTYPE_F8E4M3 ? convert_f8e4m3_to_f32(*at) : convert_f8e5m2_to_f32(*at));
    }
}

static void data_put_real(enum dtype dtype, void *array, uint64_t index, double value)
{
    uint8_t *at = (uint8_t *)array + index * (dtype_size_bytes(dtype) / data_components(dtype));
    float f32 = (float)value;
    uint16_t bits;
    switch (dtype_size_bytes(dtype) / data_components(dtype)) {
    case 8:
        memcpy(at, &value, sizeof value);
        return;
    case 4:
        memcpy(at, &f32, sizeof f32);
        return;
    case 2:
        bits = dtype == DTYPE_F16 ? convert_f32_to_f16(f32) : convert_f32_to_bf16(f32);
        memcpy(at, &bits, sizeof bits);
        return;
    default:
        *at = dtype == DTYPE_F8E4M3 ? convert_f32_to_f8e4m3(f32) : convert_f32_to_f8e5m2(f32);
        return;
    }
}

/* An integer element, extended to 64 bits as its type says. Little-endian machines only, as the data is. */
static uint64_t data_integer(enum dtype dtype, const void *array, uint64_t index)
{
    size_t size = dtype_size_bytes(dtype);
    uint64_t value = 0;
    memcpy(&value, (const uint8_t *)array + index * size, size);
    if (data_is_signed(dtype) && size < 8 && (value >> (8 * size - 1) & 1) != 0) {
        value |= UINT64_MAX << (8 * size);
    }
    return value;
}

/* --- Operands --- */

void data_fill(enum dtype dtype, enum reduce reduce, uint64_t seed, uint32_t rank, uint64_t count, void *out)
{
    struct random random;
    random_seed(&random, seed * 1000003 + rank);
    if (data_precision_bits(dtype) > 0) {
        for (uint64_t i = 0; i < count * data_components(dtype); i++) {
            double unit = (double)(random_u64(&random) >> 11) * 0x1p-52 - 1; /* [-1, 1) */
            data_put_real(dtype, out, i, reduce == REDUCE_PROD ? 1 + unit / 64 : unit);
        }
        return;
    }
    size_t size = dtype_size_bytes(dtype);
    for (uint64_t i = 0; i < count; i++) {
        uint64_t value = random_u64(&random);
        value = dtype == DTYPE_BOOL ? value % 2 : value;
        value |= reduce == REDUCE_PROD
                     ? 1
                     : 0; /* an even factor of each of many ranks would leave nothing but zero */
        memcpy((uint8_t *)out + i * size, &value, size);
    }
}

/* --- References --- */

static uint64_t data_fold(enum dtype dtype, enum reduce reduce, uint64_t a, uint64_t b)
{
    bool smaller = data_is_signed(dtype) ? (int64_t)a < (int64_t)b : a < b;
    switch (reduce) {
    case REDUCE_SUM:
    case REDUCE_AVG:
    case REDUCE_PREMUL_SUM:
        return dtype == DTYPE_BOOL ? (a | b) : a + b;
    case REDUCE_PROD:
        return dtype == DTYPE_BOOL ? (a & b) : a * b;
    case REDUCE_MIN:
        return smaller ? a : b;
    case REDUCE_MAX:
        return smaller ? b : a;
    case REDUCE_BAND:
        return a & b;
    case REDUCE_BOR:
        return a | b;
    case REDUCE_BXOR:
        return a ^ b;
    case REDUCE_LAND:
        return a != 0 && b != 0;
    case REDUCE_LOR:
        return a != 0 || b != 0;
    }
    return 0;
}

static void data_check_integer(enum dtype dtype, enum reduce reduce, uint32_t input_count,
                               const void *const *inputs, uint64_t index, const void *output)
{
    uint64_t expected = data_integer(dtype, inputs[0], index);
    for (uint32_t rank = 1; rank < input_count; rank++) {
        expected = data_fold(dtype, reduce, expected, data_integer(dtype, inputs[rank], index));
    }
    if (input_count == 1 && (reduce == REDUCE_LAND || reduce == REDUCE_LOR)) {
        expected = expected != 0;
    }
    expected = data_integer(dtype, &expected, 0); /* wraps as the type does */
    if (reduce == REDUCE_AVG) {
        expected = data_is_signed(dtype) ? (uint64_t)((int64_t)expected / (int64_t)input_count)
                                         : expected / input_count;
    }
    uint64_t got = data_integer(dtype, output, index);
    if (got != expected) {
        fail_msg("%s %s of %u, element %llu: %llx instead of %llx", dtype_text(dtype), reduce_text(reduce),
                 input_count, (unsigned long long)index, (unsigned long long)got,
                 (unsigned long long)expected);
    }
}

static void data_check_real(enum dtype dtype, enum reduce reduce, uint32_t input_count,
                            const void *const *inputs, uint32_t steps, uint64_t index, const void *output)
{
    double expected = data_real(dtype, inputs[0], index);
    double magnitude = expected < 0 ? -expected : expected;
    for (uint32_t rank = 1; rank < input_count; rank++) {
        double value = data_real(dtype, inputs[rank], index);
        if (reduce == REDUCE_MIN || reduce == REDUCE_MAX) {
            expected = (value < expected) == (reduce == REDUCE_MIN) ? value : expected;
        } else if (reduce == REDUCE_PROD) {
            expected *= value;
            magnitude = magnitude > expected ? magnitude : expected;
        } else {
            expected += value;
            magnitude += value < 0 ? -value : value;
        }
    }
    double bound = 0;
    if (reduce != REDUCE_MIN && reduce != REDUCE_MAX) {
        double epsilon = 1.0 / (double)(1ull << data_precision_bits(dtype));
        bound = (steps + 1.0) * magnitude * epsilon + 1e-6 * magnitude * (data_precision_bits(dtype) < 24);
        bound += steps * data_smallest_step(dtype);
    }
    if (reduce == REDUCE_AVG) {
        expected /= input_count;
        bound = bound / input_count + data_smallest_step(dtype);
    }
    double got = data_real(dtype, output, index);
    double off = got > expected ? got - expected : expected - got;
    if (!(off <= bound)) {
        fail_msg("%s %s of %u, element %llu: %.17g instead of %.17g, off by %g, allowed %g",
                 dtype_text(dtype), reduce_text(reduce), input_count, (unsigned long long)index, got,
                 expected, off, bound);
    }
}

void data_check_reduced(enum dtype dtype, enum reduce reduce, uint32_t input_count, const void *const *inputs,
                        uint32_t steps, uint64_t count, const void *output)
{
    assert_true(data_components(dtype) == 1 || reduce == REDUCE_SUM || reduce == REDUCE_AVG);
    for (uint64_t i = 0; i < count * data_components(dtype); i++) {
        if (data_precision_bits(dtype) > 0) {
            data_check_real(dtype, reduce, input_count, inputs, steps, i, output);
        } else {
            data_check_integer(dtype, reduce, input_count, inputs, i, output);
        }
    }
}
