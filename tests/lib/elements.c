#include "tests/lib/elements.h"

#include <string.h>

#include "kernels/convert_bits.h"

size_t element_parts(enum dtype dtype)
{
    return dtype == DTYPE_C64 || dtype == DTYPE_C128 ? 2 : 1;
}

size_t element_part_bytes(enum dtype dtype)
{
    return dtype_size_bytes(dtype) / element_parts(dtype);
}

/* --- Floating point --- */

struct element_layout element_layout(enum dtype dtype)
{
    switch (dtype) {
    case DTYPE_F64:
    case DTYPE_C128:
        return (struct element_layout){52, 11};
    case DTYPE_F32:
    case DTYPE_C64:
        return (struct element_layout){23, 8};
    case DTYPE_F16:
        return (struct element_layout){10, 5};
    case DTYPE_BF16:
        return (struct element_layout){7, 8};
    case DTYPE_F8E4M3:
        return (struct element_layout){3, 4};
    case DTYPE_F8E5M2:
        return (struct element_layout){2, 5};
    case DTYPE_I64:
    case DTYPE_I32:
    case DTYPE_I16:
    case DTYPE_I8:
    case DTYPE_U64:
    case DTYPE_U32:
    case DTYPE_U16:
    case DTYPE_U8:
    case DTYPE_BOOL:
        break;
    }
    return (struct element_layout){0, 0};
}

bool element_is_real(enum dtype dtype)
{
    return element_layout(dtype).fraction != 0;
}

double element_unit_roundoff(enum dtype dtype)
{
    return 0.5 / (double)(1ull << element_layout(dtype).fraction);
}

double element_real(enum dtype dtype, const void *array, size_t part)
{
    const uint8_t *at = (const uint8_t *)array + part * element_part_bytes(dtype);
    double f64;
    float f32;
    uint16_t bits;
    switch (element_part_bytes(dtype)) {
    case 8:
        memcpy(&f64, at, sizeof f64);
        return f64;
    case 4:
        memcpy(&f32, at, sizeof f32);
        return (double)f32;
    case 2:
        memcpy(&bits, at, sizeof bits);
        return (double)(dtype == DTYPE_F16 ? bits_f16_to_f32(bits) : bits_bf16_to_f32(bits));
    default:
        return (double)(dtype == DTYPE_F8E4M3 ? bits_f8e4m3_to_f32(*at) : bits_f8e5m2_to_f32(*at));
    }
}

void element_put_real(enum dtype dtype, void *array, size_t part, double value)
{
    uint8_t *at = (uint8_t *)array + part * element_part_bytes(dtype);
    float f32 = (float)value;
    uint16_t bits;
    switch (element_part_bytes(dtype)) {
    case 8:
        memcpy(at, &value, sizeof value);
        return;
    case 4:
        memcpy(at, &f32, sizeof f32);
        return;
    case 2:
        bits = dtype == DTYPE_F16 ? bits_f32_to_f16(f32) : bits_f32_to_bf16(f32);
        memcpy(at, &bits, sizeof bits);
        return;
    default:
        *at = dtype == DTYPE_F8E4M3 ? bits_f32_to_f8e4m3(f32) : bits_f32_to_f8e5m2(f32);
        return;
    }
}

bool element_is_nan(enum dtype dtype, uint64_t bits)
{
    struct element_layout layout = element_layout(dtype);
    uint64_t one = 1;
    if (layout.fraction == 0) {
        return false;
    }
    uint64_t magnitude = bits & ((one << (layout.fraction + layout.exponent)) - 1);
    uint64_t infinity = ((one << layout.exponent) - 1) << layout.fraction;
    return dtype == DTYPE_F8E4M3 ? magnitude == 0x7f : magnitude > infinity;
}

bool element_is_same(enum dtype dtype, const void *got, const void *expected)
{
    size_t size = element_part_bytes(dtype);
    for (size_t part = 0; part < element_parts(dtype); part++) {
        uint64_t a = 0, b = 0;
        memcpy(&a, (const unsigned char *)got + part * size, size);
        memcpy(&b, (const unsigned char *)expected + part * size, size);
        if (a != b && !(element_is_nan(dtype, a) && element_is_nan(dtype, b))) {
            return false;
        }
    }
    return true;
}

/* --- Integers --- */

bool element_is_signed(enum dtype dtype)
{
    return dtype == DTYPE_I64 || dtype == DTYPE_I32 || dtype == DTYPE_I16 || dtype == DTYPE_I8;
}

uint64_t element_integer(enum dtype dtype, const void *array, size_t index)
{
    size_t size = dtype_size_bytes(dtype);
    const uint8_t *at = (const uint8_t *)array + index * size;
    uint64_t value = 0;
    /* Sizes that the compiler knows: this is where tests spend much of their time. */
    switch (size) {
    case 1:
        value = *at;
        break;
    case 2:
        memcpy(&value, at, 2);
        break;
    case 4:
        memcpy(&value, at, 4);
        break;
    default:
        memcpy(&value, at, 8);
        break;
    }
    unsigned unused_bits = 64 - 8 * (unsigned)size;
    return element_is_signed(dtype) ? (uint64_t)((int64_t)(value << unused_bits) >> unused_bits) : value;
}

/* Returns a result that may still be wider than the type. */
static uint64_t fold_integers(enum dtype dtype, enum reduce reduce, uint64_t a, uint64_t b)
{
    bool smaller = element_is_signed(dtype) ? (int64_t)a < (int64_t)b : a < b;
    switch (reduce) {
    case REDUCE_SUM:
    case REDUCE_AVG:
    case REDUCE_PREMUL_SUM:
        return a + b;
    case REDUCE_PROD:
        return a * b;
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

/* For truth values, 0 and 1. */
static uint64_t fold_bools(enum reduce reduce, uint64_t a, uint64_t b)
{
    switch (reduce) {
    case REDUCE_PROD:
    case REDUCE_MIN:
    case REDUCE_BAND:
    case REDUCE_LAND:
        return a & b;
    case REDUCE_BXOR:
        return a ^ b;
    case REDUCE_SUM:
    case REDUCE_MAX:
    case REDUCE_AVG:
    case REDUCE_PREMUL_SUM:
    case REDUCE_BOR:
    case REDUCE_LOR:
        break;
    }
    return a | b;
}

uint64_t element_reduce_integers(enum dtype dtype, enum reduce reduce, uint32_t input_count,
                                 const void *const *inputs, size_t index, uint64_t divisor)
{
    bool is_bool = dtype == DTYPE_BOOL;
    bool is_logical = is_bool || reduce == REDUCE_LAND || reduce == REDUCE_LOR;
    uint64_t value = 0;
    for (uint32_t k = 0; k < input_count; k++) {
        uint64_t next = element_integer(dtype, inputs[k], index);
        next = is_logical ? next != 0 : next;
        value = k == 0    ? next
                : is_bool ? fold_bools(reduce, value, next)
                          : fold_integers(dtype, reduce, value, next);
    }
    value = element_integer(dtype, &value, 0); /* wraps around as the type does */
    if (divisor > 1) {
        value = element_is_signed(dtype) ? (uint64_t)((int64_t)value / (int64_t)divisor) : value / divisor;
    }
    return value;
}
