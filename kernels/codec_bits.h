#ifndef KERNELS_CODEC_BITS_H
#define KERNELS_CODEC_BITS_H

#include <stdint.h>

#include "kernels/convert_bits.h"

/*
 * The arithmetic of the codec in daemon/host/compress.h, for one element or one block. The host and the GPUs
 * compile the same functions, so their bits are the same. No branches, as in convert_bits.h.
 */
#define CODEC_SIGN 0x80000000u
#define CODEC_INFINITE 0x7f800000u /* a magnitude from here on is not finite; above it, not a number */
#define CODEC_QUIET_NAN 0x7fc00000u
#define CODEC_BF16_LARGEST 0x7f7f0000u
#define CODEC_BF16_NAN 0x7fc0u
/* 240 * 2^120: a larger value would round to 256 * 2^120, which f32 cannot represent. */
#define CODEC_F8_LARGEST 0x7f700000u
#define CODEC_F8_NAN 0x7fu
#define CODEC_F8_EXPONENT_MIN (-140) /* e4m3 ends at 2^-9, f32 at 2^-149: below, decoding would round */

#define CODEC_F8_BLOCK 256
#define CODEC_F8_SCALE_BYTES 4
#define CODEC_TOP_K_BLOCK 1024
#define CODEC_TOP_K_COUNT_BYTES 2
#define CODEC_TOP_K_ELEMENT_BYTES 6

BITS_FUNCTION uint32_t codec_magnitude(float x)
{
    return bits_of_f32(x) & ~CODEC_SIGN;
}

/* A finite x, limited in magnitude to the value with the bits `limit`; others unchanged. */
BITS_FUNCTION float codec_limited(float x, uint32_t limit)
{
    uint32_t magnitude = codec_magnitude(x);
    uint32_t cut = magnitude > limit ? limit : magnitude;
    return bits_to_f32((bits_of_f32(x) & CODEC_SIGN) | (magnitude < CODEC_INFINITE ? cut : magnitude));
}

/* Uses a mask, not a choice: gcc does not vectorise a loop in which a subtraction becomes conditional. */
BITS_FUNCTION float codec_residual(float x, float decoded)
{
    uint32_t finite = codec_magnitude(x) < CODEC_INFINITE ? UINT32_MAX : 0;
    return bits_to_f32(bits_of_f32(x - decoded) & finite);
}

BITS_FUNCTION uint16_t codec_bf16(float x)
{
    uint16_t code = bits_f32_to_bf16(codec_limited(x, CODEC_BF16_LARGEST));
    return codec_magnitude(x) > CODEC_INFINITE ? (uint16_t)CODEC_BF16_NAN : code;
}

BITS_FUNCTION float codec_power_of_two(int exponent)
{
    uint32_t bits = exponent >= -126 ? (uint32_t)(exponent + 127) << 23 : 1u << (exponent + 149);
    return bits_to_f32(bits);
}

/* How the elements of a block are scaled. largest: the bits of its largest finite magnitude. */
struct codec_f8_scale {
    float scale;
    float shrink, shrink_rest; /* together 1 / scale: as one number it may be infinite */
};

BITS_FUNCTION struct codec_f8_scale codec_f8_scale_of(uint32_t largest)
{
    uint32_t is_small = largest < 0x00800000u;
    uint32_t bits = is_small ? bits_of_f32(bits_to_f32(largest) * 0x1p32f) : largest;
    /* The least exponent with largest <= 448 * 2^exponent; 448 is 1.75 * 2^8. */
    int exponent =
        (int)(bits >> 23) - ((bits & 0x007fffffu) <= 0x00600000u ? 8 : 7) - (is_small ? 127 + 32 : 127);
    exponent = exponent < CODEC_F8_EXPONENT_MIN ? CODEC_F8_EXPONENT_MIN : exponent;
    exponent = largest == 0 ? 0 : exponent;
    struct codec_f8_scale scale;
    scale.scale = largest == 0 ? 0.0f : codec_power_of_two(exponent);
    scale.shrink = codec_power_of_two(-exponent / 2);
    scale.shrink_rest = codec_power_of_two(-exponent - -exponent / 2);
    return scale;
}

BITS_FUNCTION uint8_t codec_f8(float x, float shrink, float shrink_rest)
{
    uint8_t code = bits_f32_to_f8e4m3(codec_limited(x, CODEC_F8_LARGEST) * shrink * shrink_rest);
    return codec_magnitude(x) < CODEC_INFINITE ? code : (uint8_t)CODEC_F8_NAN;
}

/* NaN is one of the two that multiplication on the host gives: GPUs have a NaN of their own. */
BITS_FUNCTION float codec_f8_value(uint8_t code, float scale)
{
    float finite = bits_f8e4m3_to_f32(code) * scale;
    uint32_t nan = (uint32_t)(code & 0x80u) << 24 | CODEC_QUIET_NAN;
    return bits_to_f32((code & 0x7fu) == CODEC_F8_NAN ? nan : bits_of_f32(finite));
}

/* top_k: x, but every NaN becomes one NaN value. */
BITS_FUNCTION uint32_t codec_one_nan(float x)
{
    return codec_magnitude(x) > CODEC_INFINITE ? CODEC_QUIET_NAN : bits_of_f32(x);
}

/* top_k: the most elements that are kept of a block of `count` elements: 1..count. */
BITS_FUNCTION uint32_t codec_top_k_kept(uint32_t permille, uint32_t count)
{
    uint32_t share = permille < 1000 ? permille : 1000;
    uint32_t kept = (count * share + 999) / 1000;
    return kept > 0 ? kept : 1;
}

/* top_k: the room for a full block, in bytes. */
BITS_FUNCTION uint32_t codec_top_k_stride(uint32_t permille)
{
    return CODEC_TOP_K_COUNT_BYTES +
           CODEC_TOP_K_ELEMENT_BYTES * codec_top_k_kept(permille, CODEC_TOP_K_BLOCK);
}

#endif
