#ifndef KERNELS_CONVERT_BITS_H
#define KERNELS_CONVERT_BITS_H

#include <stdint.h>
#include <string.h>

#if !defined(BITS_FUNCTION)
#define BITS_FUNCTION static inline
#endif

/*
 * Conversions between f32 and the short floating-point types, given as their bits. To a short type: round to
 * nearest even, keep subnormals, NaN stays NaN (quiet, sign kept). f16 and bf16 overflow to infinity (IEEE
 * 754). f8e4m3 (OCP 8-bit Floating Point 1.0) has no infinity: it saturates to ±448, infinity too. f8e5m2
 * saturates finite values to ±57344 and keeps infinity. To f32: exact.
 *
 * The functions have no branches, so loops over them vectorise at every level and give the same bits. They do
 * so on GPUs, too, where BITS_FUNCTION makes them device functions. Short to f32: the bits are moved into
 * place and multiplied by a power of two, which is exact and normalises subnormals. f32 to short: normal
 * results are rounded in integer arithmetic (half up after adding the lowest kept bit: ties to even).
 * Subnormal results are rounded by adding the number whose unit in the last place is the short type's
 * smallest step.
 */

BITS_FUNCTION float bits_to_f32(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

BITS_FUNCTION uint32_t bits_of_f32(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

BITS_FUNCTION float bits_f16_to_f32(uint16_t half)
{
    uint32_t sign = (uint32_t)(half & 0x8000u) << 16;
    uint32_t magnitude = (uint32_t)(half & 0x7fffu) << 13;
    uint32_t finite = bits_of_f32(bits_to_f32(magnitude) * 0x1p112f);
    uint32_t quiet = magnitude > 0x0f800000u ? 0x00400000u : 0u;
    uint32_t special = magnitude | 0x7f800000u | quiet;
    return bits_to_f32(sign | (magnitude >= 0x0f800000u ? special : finite));
}

BITS_FUNCTION uint16_t bits_f32_to_f16(float value)
{
    uint32_t bits = bits_of_f32(value);
    uint32_t sign = (bits >> 16) & 0x8000u;
    uint32_t magnitude = bits & 0x7fffffffu;
    uint32_t normal = (magnitude - (112u << 23) + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
    uint32_t subnormal = bits_of_f32(bits_to_f32(magnitude) + 0.5f) - 0x3f000000u;
    uint32_t result = magnitude < 0x38800000u ? subnormal : normal;
    result = magnitude >= 0x47800000u ? 0x7c00u : result;
    uint32_t nan = 0x7e00u | ((magnitude >> 13) & 0x3ffu);
    return (uint16_t)(sign | (magnitude > 0x7f800000u ? nan : result));
}

BITS_FUNCTION float bits_bf16_to_f32(uint16_t half)
{
    uint32_t bits = (uint32_t)half << 16;
    return bits_to_f32((bits & 0x7fffffffu) > 0x7f800000u ? bits | 0x00400000u : bits);
}

BITS_FUNCTION uint16_t bits_f32_to_bf16(float value)
{
    uint32_t bits = bits_of_f32(value);
    uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    return (uint16_t)((bits & 0x7fffffffu) > 0x7f800000u ? (bits >> 16) | 0x40u : rounded);
}

BITS_FUNCTION float bits_f8e5m2_to_f32(uint8_t byte)
{
    return bits_f16_to_f32((uint16_t)(byte << 8));
}

BITS_FUNCTION uint8_t bits_f32_to_f8e5m2(float value)
{
    uint32_t bits = bits_of_f32(value);
    uint32_t sign = (bits >> 24) & 0x80u;
    uint32_t magnitude = bits & 0x7fffffffu;
    uint32_t normal = (magnitude - (112u << 23) + 0xfffffu + ((magnitude >> 21) & 1u)) >> 21;
    uint32_t subnormal = bits_of_f32(bits_to_f32(magnitude) + 128.0f) - 0x43000000u;
    uint32_t result = magnitude < 0x38800000u ? subnormal : normal;
    result = magnitude > 0x47600000u ? 0x7bu : result;
    result = magnitude == 0x7f800000u ? 0x7cu : result;
    uint32_t nan = 0x7eu | ((magnitude >> 21) & 3u);
    return (uint8_t)(sign | (magnitude > 0x7f800000u ? nan : result));
}

BITS_FUNCTION float bits_f8e4m3_to_f32(uint8_t byte)
{
    uint32_t sign = (uint32_t)(byte & 0x80u) << 24;
    uint32_t magnitude = (uint32_t)(byte & 0x7fu) << 20;
    uint32_t finite = bits_of_f32(bits_to_f32(magnitude) * 0x1p120f);
    return bits_to_f32(sign | (magnitude == 0x07f00000u ? 0x7fc00000u : finite));
}

BITS_FUNCTION uint8_t bits_f32_to_f8e4m3(float value)
{
    uint32_t bits = bits_of_f32(value);
    uint32_t sign = (bits >> 24) & 0x80u;
    uint32_t magnitude = bits & 0x7fffffffu;
    uint32_t normal = (magnitude - (120u << 23) + 0x7ffffu + ((magnitude >> 20) & 1u)) >> 20;
    uint32_t subnormal = bits_of_f32(bits_to_f32(magnitude) + 16384.0f) - 0x46800000u;
    uint32_t result = magnitude < 0x3c800000u ? subnormal : normal;
    result = magnitude > 0x43e00000u ? 0x7eu : result;
    return (uint8_t)(sign | (magnitude > 0x7f800000u ? 0x7fu : result));
}

#endif
