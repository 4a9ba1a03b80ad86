/*
 * The kernels of one vector width: plain loops. The compiler vectorises them for the flags of the including
 * file, which defines REDUCE_KERNELS as the name of its table. All widths use this source, so they give the
 * same bits.
 */
#include <stdint.h>

#include "daemon/host/reduce_level.h"
#include "kernels/convert_bits.h"

#if defined(__clang__)
#define EACH _Pragma("clang loop vectorize(assume_safety)") for (size_t i = 0; i < count; i++)
#else
#define EACH _Pragma("GCC ivdep") for (size_t i = 0; i < count; i++)
#endif

/* gcc (12) makes complex products of vectors with fused multiply-add even under -ffp-contract=off: other
 * bits. */
#if defined(__clang__)
#define UNFUSED
#else
#define UNFUSED __attribute__((optimize("no-tree-vectorize", "no-tree-slp-vectorize")))
#endif

#define UNALIGNED(type, name) typedef type name __attribute__((aligned(1), may_alias))
UNALIGNED(float, any_f32);
UNALIGNED(double, any_f64);
UNALIGNED(int64_t, any_i64);
UNALIGNED(int32_t, any_i32);
UNALIGNED(int16_t, any_i16);
UNALIGNED(int8_t, any_i8);
UNALIGNED(uint64_t, any_u64);
UNALIGNED(uint32_t, any_u32);
UNALIGNED(uint16_t, any_u16);
UNALIGNED(uint8_t, any_u8);

#define PAIR(name, type, expression)                                                                         \
    static void name(void *out, const void *left, const void *right, size_t count)                           \
    {                                                                                                        \
        type *target = out;                                                                                  \
        const type *first = left;                                                                            \
        const type *second = right;                                                                          \
        EACH                                                                                                 \
        {                                                                                                    \
            type a = first[i];                                                                               \
            type b = second[i];                                                                              \
            target[i] = (type)(expression);                                                                  \
        }                                                                                                    \
    }

/*
 * Of two NaN, a sum keeps the one that the compiler names first. Vectors name the left one
 * (test_reduce_into.c holds them to it). Other instructions may name either. Data arrive in pieces, so it
 * would depend on where a piece ends. So all NaN get the same bits there: in the whole portable level, and in
 * complex products.
 */
#define SETTLED(prefix, real, bits_type, nan_bits)                                                           \
    static inline real prefix##_settled(real value)                                                          \
    {                                                                                                        \
        bits_type bits;                                                                                      \
        memcpy(&bits, &value, sizeof value);                                                                 \
        bits = value != value ? nan_bits : bits;                                                             \
        memcpy(&value, &bits, sizeof value);                                                                 \
        return value;                                                                                        \
    }

SETTLED(f32, float, uint32_t, UINT32_C(0x7fc00000))
SETTLED(f64, double, uint64_t, UINT64_C(0x7ff8000000000000))

#if defined(REDUCE_SETTLES_NAN)
#define FLOAT_RESULT(prefix, value) prefix##_settled(value)
#else
#define FLOAT_RESULT(prefix, value) (value)
#endif

/* min and max of floating point: NaN wins, the first if both are; of two zeros the negative one is less. */
#define FLOAT_ORDER(name, type, bits_type, compare, join)                                                    \
    static inline type name##_value(type a, type b)                                                          \
    {                                                                                                        \
        bits_type a_bits, b_bits, equal_bits;                                                                \
        memcpy(&a_bits, &a, sizeof a);                                                                       \
        memcpy(&b_bits, &b, sizeof b);                                                                       \
        equal_bits = a_bits join b_bits;                                                                     \
        bits_type ordered = a compare b ? a_bits : b_bits;                                                   \
        ordered = a == b ? equal_bits : ordered;                                                             \
        ordered = b != b ? b_bits : ordered;                                                                 \
        ordered = a != a ? a_bits : ordered;                                                                 \
        type result;                                                                                         \
        memcpy(&result, &ordered, sizeof result);                                                            \
        return result;                                                                                       \
    }                                                                                                        \
    PAIR(name, any_##type##_alias, name##_value(a, b))

typedef any_f32 any_float_alias;
typedef any_f64 any_double_alias;

#define FLOATS(prefix, real, any, bits_type)                                                                 \
    PAIR(prefix##_sum, any, FLOAT_RESULT(prefix, a + b))                                                     \
    PAIR(prefix##_prod, any, FLOAT_RESULT(prefix, a *b))                                                     \
    FLOAT_ORDER(prefix##_min, real, bits_type, <, |)                                                         \
    FLOAT_ORDER(prefix##_max, real, bits_type, >, &)                                                         \
    UNFUSED static void prefix##_complex_prod(void *out, const void *left, const void *right, size_t count)  \
    {                                                                                                        \
        any *target = out;                                                                                   \
        const any *first = left;                                                                             \
        const any *second = right;                                                                           \
        for (size_t i = 0; i + 1 < count; i += 2) {                                                          \
            real a = first[i], b = first[i + 1], c = second[i], d = second[i + 1];                           \
            target[i] = prefix##_settled(a * c - b * d);                                                     \
            target[i + 1] = prefix##_settled(a * d + b * c);                                                 \
        }                                                                                                    \
    }                                                                                                        \
    static void prefix##_scale(void *wide, size_t count, double factor)                                      \
    {                                                                                                        \
        any *values = wide;                                                                                  \
        real by = (real)factor;                                                                              \
        EACH                                                                                                 \
        {                                                                                                    \
            values[i] *= by;                                                                                 \
        }                                                                                                    \
    }                                                                                                        \
    static void prefix##_divide(void *wide, size_t count, uint64_t divisor)                                  \
    {                                                                                                        \
        any *values = wide;                                                                                  \
        real by = (real)divisor;                                                                             \
        EACH                                                                                                 \
        {                                                                                                    \
            values[i] /= by;                                                                                 \
        }                                                                                                    \
    }

FLOATS(f32, float, any_f32, uint32_t)
FLOATS(f64, double, any_f64, uint64_t)

/* The factor of an integer, without its fraction. A client may pass any number, and a conversion beyond the
 * range is undefined. */
static uint64_t whole_factor(double factor)
{
    return factor >= -REDUCE_WHOLE_FACTOR_MAX && factor <= REDUCE_WHOLE_FACTOR_MAX ? (uint64_t)(int64_t)factor
                                                                                   : 0;
}

/* Sums and products wrap: in the unsigned type of the same width, 16 bits and below without promotion to a
 * signed int's overflow. */
#define INTEGERS(prefix, any, unsigned_type, wide_type)                                                      \
    PAIR(prefix##_sum, any, (unsigned_type)((unsigned_type)a + (unsigned_type)b))                            \
    PAIR(prefix##_prod, any, (unsigned_type)(1u * (unsigned_type)a * (unsigned_type)b))                      \
    PAIR(prefix##_min, any, a < b ? a : b)                                                                   \
    PAIR(prefix##_max, any, a > b ? a : b)                                                                   \
    PAIR(prefix##_band, any, a &b)                                                                           \
    PAIR(prefix##_bor, any, a | b)                                                                           \
    PAIR(prefix##_bxor, any, a ^ b)                                                                          \
    PAIR(prefix##_land, any, (a != 0) & (b != 0))                                                            \
    PAIR(prefix##_lor, any, (a != 0) | (b != 0))                                                             \
    static void prefix##_scale(void *wide, size_t count, double factor)                                      \
    {                                                                                                        \
        any *values = wide;                                                                                  \
        unsigned_type by = (unsigned_type)whole_factor(factor);                                              \
        for (size_t i = 0; i < count; i++) {                                                                 \
            values[i] = (any)(unsigned_type)(1u * (unsigned_type)values[i] * by);                            \
        }                                                                                                    \
    }                                                                                                        \
    static void prefix##_divide(void *wide, size_t count, uint64_t divisor)                                  \
    {                                                                                                        \
        any *values = wide;                                                                                  \
        wide_type by = (wide_type)divisor;                                                                   \
        for (size_t i = 0; i < count; i++) {                                                                 \
            values[i] = (any)((wide_type)values[i] / by);                                                    \
        }                                                                                                    \
    }

INTEGERS(i64, any_i64, uint64_t, int64_t)
INTEGERS(i32, any_i32, uint32_t, int64_t)
INTEGERS(i16, any_i16, uint16_t, int64_t)
INTEGERS(i8, any_i8, uint8_t, int64_t)
INTEGERS(u64, any_u64, uint64_t, uint64_t)
INTEGERS(u32, any_u32, uint32_t, uint64_t)
INTEGERS(u16, any_u16, uint16_t, uint64_t)
INTEGERS(u8, any_u8, uint8_t, uint64_t)

PAIR(bool_and, any_u8, (a != 0) & (b != 0))
PAIR(bool_or, any_u8, (a != 0) | (b != 0))
PAIR(bool_xor, any_u8, (a != 0) ^ (b != 0))

#define SHORT_FLOAT(prefix, any)                                                                             \
    static void prefix##_load(void *wide, const void *stored, size_t count)                                  \
    {                                                                                                        \
        any_f32 *values = wide;                                                                              \
        const any *bits = stored;                                                                            \
        EACH                                                                                                 \
        {                                                                                                    \
            values[i] = bits_##prefix##_to_f32(bits[i]);                                                     \
        }                                                                                                    \
    }                                                                                                        \
    static void prefix##_store(void *stored, const void *wide, size_t count)                                 \
    {                                                                                                        \
        any *bits = stored;                                                                                  \
        const any_f32 *values = wide;                                                                        \
        EACH                                                                                                 \
        {                                                                                                    \
            bits[i] = bits_f32_to_##prefix(values[i]);                                                       \
        }                                                                                                    \
    }

SHORT_FLOAT(f16, any_u16)
SHORT_FLOAT(bf16, any_u16)
SHORT_FLOAT(f8e4m3, any_u8)
SHORT_FLOAT(f8e5m2, any_u8)

static void bool_load(void *wide, const void *stored, size_t count)
{
    any_u8 *values = wide;
    const any_u8 *bytes = stored;
    EACH
    {
        values[i] = bytes[i] != 0;
    }
}

#define FLOAT_PAIRS(prefix)                                                                                  \
    {                                                                                                        \
        [REDUCE_SUM] = prefix##_sum, [REDUCE_PROD] = prefix##_prod, [REDUCE_MIN] = prefix##_min,             \
        [REDUCE_MAX] = prefix##_max, [REDUCE_AVG] = prefix##_sum, [REDUCE_PREMUL_SUM] = prefix##_sum         \
    }
#define COMPLEX_PAIRS(prefix)                                                                                \
    {                                                                                                        \
        [REDUCE_SUM] = prefix##_sum, [REDUCE_PROD] = prefix##_complex_prod, [REDUCE_AVG] = prefix##_sum,     \
        [REDUCE_PREMUL_SUM] = prefix##_sum                                                                   \
    }
#define INTEGER_KERNELS(prefix)                                                                              \
    {                                                                                                        \
        .scale = prefix##_scale, .divide = prefix##_divide, .pair = {                                        \
            [REDUCE_SUM] = prefix##_sum,                                                                     \
            [REDUCE_PREMUL_SUM] = prefix##_sum,                                                              \
            [REDUCE_PROD] = prefix##_prod,                                                                   \
            [REDUCE_MIN] = prefix##_min,                                                                     \
            [REDUCE_MAX] = prefix##_max,                                                                     \
            [REDUCE_AVG] = prefix##_sum,                                                                     \
            [REDUCE_BAND] = prefix##_band,                                                                   \
            [REDUCE_BOR] = prefix##_bor,                                                                     \
            [REDUCE_BXOR] = prefix##_bxor,                                                                   \
            [REDUCE_LAND] = prefix##_land,                                                                   \
            [REDUCE_LOR] = prefix##_lor                                                                      \
        }                                                                                                    \
    }
#define SHORT_KERNELS(prefix)                                                                                \
    {                                                                                                        \
        .load = prefix##_load, .store = prefix##_store, .scale = f32_scale, .divide = f32_divide,            \
        .pair = FLOAT_PAIRS(f32)                                                                             \
    }

const struct reduce_kernels REDUCE_KERNELS[DTYPE_COUNT] = {
    [DTYPE_F64] = {.scale = f64_scale, .divide = f64_divide, .pair = FLOAT_PAIRS(f64)},
    [DTYPE_F32] = {.scale = f32_scale, .divide = f32_divide, .pair = FLOAT_PAIRS(f32)},
    [DTYPE_F16] = SHORT_KERNELS(f16),
    [DTYPE_BF16] = SHORT_KERNELS(bf16),
    [DTYPE_F8E4M3] = SHORT_KERNELS(f8e4m3),
    [DTYPE_F8E5M2] = SHORT_KERNELS(f8e5m2),
    [DTYPE_I64] = INTEGER_KERNELS(i64),
    [DTYPE_I32] = INTEGER_KERNELS(i32),
    [DTYPE_I16] = INTEGER_KERNELS(i16),
    [DTYPE_I8] = INTEGER_KERNELS(i8),
    [DTYPE_U64] = INTEGER_KERNELS(u64),
    [DTYPE_U32] = INTEGER_KERNELS(u32),
    [DTYPE_U16] = INTEGER_KERNELS(u16),
    [DTYPE_U8] = INTEGER_KERNELS(u8),
    [DTYPE_BOOL] = {.load = bool_load,
                    .store = bool_load,
                    .pair = {[REDUCE_SUM] = bool_or,
                             [REDUCE_PROD] = bool_and,
                             [REDUCE_MIN] = bool_and,
                             [REDUCE_MAX] = bool_or,
                             [REDUCE_BAND] = bool_and,
                             [REDUCE_BOR] = bool_or,
                             [REDUCE_BXOR] = bool_xor,
                             [REDUCE_LAND] = bool_and,
                             [REDUCE_LOR] = bool_or}},
    [DTYPE_C64] = {.scale = f32_scale, .divide = f32_divide, .pair = COMPLEX_PAIRS(f32)},
    [DTYPE_C128] = {.scale = f64_scale, .divide = f64_divide, .pair = COMPLEX_PAIRS(f64)},
};
