#include "kernels/codec.cuh"
#include "kernels/copy.cuh"
#include "kernels/reduce.cuh"

/* X(dtype, reduce, type, fold, whether it has separate code for some numbers of inputs) */
#define REAL_KERNELS(X, dtype, type, special)                                                                \
    X(dtype, sum, type, fold_sum, special)                                                                   \
    X(dtype, prod, type, fold_prod, false)                                                                   \
    X(dtype, min, type, fold_min, false)                                                                     \
    X(dtype, max, type, fold_max, false)
#define COMPLEX_KERNELS(X, dtype, type)                                                                      \
    X(dtype, sum, type, fold_sum, false)                                                                     \
    X(dtype, prod, type, fold_prod, false)
#define INTEGER_KERNELS(X, dtype, type, bits)                                                                \
    REAL_KERNELS(X, dtype, type, false)                                                                      \
    X(dtype, band, bits_type<bits>, fold_and, false)                                                         \
    X(dtype, bor, bits_type<bits>, fold_or, false)                                                           \
    X(dtype, bxor, bits_type<bits>, fold_xor, false)                                                         \
    X(dtype, land, truth_type<bits>, fold_and, false)                                                        \
    X(dtype, lor, truth_type<bits>, fold_or, false)
#define BOOL_KERNELS(X)                                                                                      \
    X(bool, sum, truth_type<uint8_t>, fold_or, false)                                                        \
    X(bool, prod, truth_type<uint8_t>, fold_and, false)                                                      \
    X(bool, min, truth_type<uint8_t>, fold_and, false)                                                       \
    X(bool, max, truth_type<uint8_t>, fold_or, false)                                                        \
    X(bool, band, truth_type<uint8_t>, fold_and, false)                                                      \
    X(bool, bor, truth_type<uint8_t>, fold_or, false)                                                        \
    X(bool, bxor, truth_type<uint8_t>, fold_xor, false)                                                      \
    X(bool, land, truth_type<uint8_t>, fold_and, false)                                                      \
    X(bool, lor, truth_type<uint8_t>, fold_or, false)

using i64_type = integer_type<int64_t, uint64_t>;
using i32_type = integer_type<int32_t, uint32_t>;
using i16_type = integer_type<int16_t, uint16_t>;
using i8_type = integer_type<int8_t, uint8_t>;
using u64_type = integer_type<uint64_t, uint64_t>;
using u32_type = integer_type<uint32_t, uint32_t>;
using u16_type = integer_type<uint16_t, uint16_t>;
using u8_type = integer_type<uint8_t, uint8_t>;

#define REDUCE_KERNELS(X)                                                                                    \
    REAL_KERNELS(X, f64, real_type<double>, true)                                                            \
    REAL_KERNELS(X, f32, real_type<float>, true)                                                             \
    REAL_KERNELS(X, f16, short_float_type<f16_bits>, true)                                                   \
    REAL_KERNELS(X, bf16, short_float_type<bf16_bits>, true)                                                 \
    REAL_KERNELS(X, f8e4m3, short_float_type<byte_float_bits<f8e4m3_bits>>, false)                           \
    REAL_KERNELS(X, f8e5m2, short_float_type<byte_float_bits<f8e5m2_bits>>, false)                           \
    INTEGER_KERNELS(X, i64, i64_type, uint64_t)                                                              \
    INTEGER_KERNELS(X, i32, i32_type, uint32_t)                                                              \
    INTEGER_KERNELS(X, i16, i16_type, uint16_t)                                                              \
    INTEGER_KERNELS(X, i8, i8_type, uint8_t)                                                                 \
    INTEGER_KERNELS(X, u64, u64_type, uint64_t)                                                              \
    INTEGER_KERNELS(X, u32, u32_type, uint32_t)                                                              \
    INTEGER_KERNELS(X, u16, u16_type, uint16_t)                                                              \
    INTEGER_KERNELS(X, u8, u8_type, uint8_t)                                                                 \
    BOOL_KERNELS(X)                                                                                          \
    COMPLEX_KERNELS(X, complex64, complex_type<float>)                                                       \
    COMPLEX_KERNELS(X, complex128, complex_type<double>)

#define REDUCE_ENTRY(dtype, operator_name, type, fold, special)                                              \
    KERNEL_ENTRY(commd_reduce_##dtype##_##operator_name, kernels_reduce_few)                                 \
    {                                                                                                        \
        reduce<type, fold, special>(KERNEL_ARGUMENTS(kernels_reduce_few), KERNEL_PLACE);                     \
    }                                                                                                        \
    KERNEL_ENTRY(commd_reduce_##dtype##_##operator_name##_many, kernels_reduce_many)                         \
    {                                                                                                        \
        reduce<type, fold, false>(KERNEL_ARGUMENTS(kernels_reduce_many), KERNEL_PLACE);                      \
    }
REDUCE_KERNELS(REDUCE_ENTRY)

KERNEL_ENTRY(commd_copy, kernels_copy)
{
    copy_all(KERNEL_ARGUMENTS(kernels_copy), KERNEL_PLACE);
}

#define CODE_KERNELS(X) X(bf16) X(f8) X(top_k)
#define CODE_ENTRY(compression)                                                                              \
    KERNEL_ENTRY(commd_encode_##compression, kernels_code)                                                   \
    {                                                                                                        \
        code_all<encode_##compression>(KERNEL_ARGUMENTS(kernels_code), KERNEL_PLACE);                        \
    }                                                                                                        \
    KERNEL_ENTRY(commd_decode_##compression, kernels_code)                                                   \
    {                                                                                                        \
        code_all<decode_##compression>(KERNEL_ARGUMENTS(kernels_code), KERNEL_PLACE);                        \
    }
CODE_KERNELS(CODE_ENTRY)
