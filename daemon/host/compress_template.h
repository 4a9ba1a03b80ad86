/*
 * The kernels of one vector width, as in reduce_template.h: plain loops without branches. The compiler
 * vectorises them for the flags of the including file, which defines COMPRESS_KERNELS as the name of its
 * table.
 */
#include <endian.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "daemon/host/compress.h"
#include "daemon/host/compress_level.h"
#include "kernels/convert_bits.h"
#include "proto/little_endian.h"

#if defined(__clang__)
#define EACH _Pragma("clang loop vectorize(assume_safety)") for (size_t i = 0; i < count; i++)
#else
#define EACH _Pragma("GCC ivdep") for (size_t i = 0; i < count; i++)
#endif

#define SIGN 0x80000000u
#define INFINITE 0x7f800000u /* a magnitude from here on is not finite; above it, not a number */
#define QUIET_NAN 0x7fc00000u
#define BF16_LARGEST 0x7f7f0000u
#define BF16_NAN 0x7fc0u
/* 240 * 2^120: a larger value would round to 256 * 2^120, which f32 cannot represent. */
#define F8_LARGEST 0x7f700000u
#define F8_NAN 0x7fu
#define F8_EXPONENT_MIN (-140) /* e4m3 ends at 2^-9, f32 at 2^-149: below, decoding would round */

typedef uint16_t any_u16 __attribute__((aligned(1), may_alias));

static inline uint32_t magnitude_of(float x)
{
    return bits_of_f32(x) & ~SIGN;
}

/* A finite x, limited in magnitude to the value with the bits `limit`; others unchanged. */
static inline float limited(float x, uint32_t limit)
{
    uint32_t magnitude = magnitude_of(x);
    uint32_t cut = magnitude > limit ? limit : magnitude;
    return bits_to_f32((bits_of_f32(x) & SIGN) | (magnitude < INFINITE ? cut : magnitude));
}

/* Uses a mask, not a choice: gcc does not vectorise a loop in which a subtraction becomes conditional. */
static inline float residual_of(float x, float decoded)
{
    uint32_t finite = magnitude_of(x) < INFINITE ? UINT32_MAX : 0;
    return bits_to_f32(bits_of_f32(x - decoded) & finite);
}

static inline uint16_t bf16_code(float x)
{
    uint16_t code = bits_f32_to_bf16(limited(x, BF16_LARGEST));
    return magnitude_of(x) > INFINITE ? (uint16_t)BF16_NAN : code;
}

static void bf16_encode(unsigned char *out, const float *values, float *residual, size_t count)
{
    any_u16 *codes = (any_u16 *)out;
    if (residual == NULL) {
        EACH
        {
            codes[i] = htole16(bf16_code(values[i]));
        }
        return;
    }
    EACH
    {
        float x = values[i] + residual[i];
        uint16_t code = bf16_code(x);
        codes[i] = htole16(code);
        residual[i] = residual_of(x, bits_bf16_to_f32(code));
    }
}

static void bf16_decode(float *out, const unsigned char *in, size_t count, bool add)
{
    const any_u16 *codes = (const any_u16 *)in;
    if (add) {
        EACH
        {
            out[i] += bits_bf16_to_f32(le16toh(codes[i]));
        }
        return;
    }
    EACH
    {
        out[i] = bits_bf16_to_f32(le16toh(codes[i]));
    }
}

static inline float power_of_two(int exponent)
{
    uint32_t bits = exponent >= -126 ? (uint32_t)(exponent + 127) << 23 : 1u << (exponent + 149);
    return bits_to_f32(bits);
}

/* The least exponent, at least F8_EXPONENT_MIN, with largest <= 448 * 2^exponent. largest > 0. */
static int f8_exponent(uint32_t largest)
{
    int exponent = -127;
    if (largest < 0x00800000u) {
        largest = bits_of_f32(bits_to_f32(largest) * 0x1p32f);
        exponent -= 32;
    }
    exponent +=
        (int)(largest >> 23) - ((largest & 0x007fffffu) <= 0x00600000u ? 8 : 7); /* 448 is 1.75 * 2^8 */
    return exponent < F8_EXPONENT_MIN ? F8_EXPONENT_MIN : exponent;
}

static void f8_encode(unsigned char *out, const float *values, float *residual, size_t count)
{
    float x[HOST_COMPRESS_F8_BLOCK];
    int32_t largest = 0; /* signed: the oldest vector unit has no unsigned comparison */
    if (residual == NULL) {
        memcpy(x, values, count * sizeof(float));
    } else {
        EACH
        {
            x[i] = values[i] + residual[i];
        }
    }
    EACH
    {
        int32_t magnitude = (int32_t)magnitude_of(x[i]);
        magnitude = magnitude < (int32_t)INFINITE ? magnitude : 0;
        largest = magnitude > largest ? magnitude : largest;
    }
    int exponent = largest == 0 ? 0 : f8_exponent((uint32_t)largest);
    float scale = largest == 0 ? 0.0f : power_of_two(exponent);
    /* Multiplies by 1 / scale in two exact steps, because as one number it may be infinite. */
    float shrink = power_of_two(-exponent / 2);
    float shrink_rest = power_of_two(-exponent - -exponent / 2);
    unsigned char *codes = out + sizeof(uint32_t);
    put_u32_le(out, bits_of_f32(scale));
    EACH
    {
        uint8_t code = bits_f32_to_f8e4m3(limited(x[i], F8_LARGEST) * shrink * shrink_rest);
        codes[i] = magnitude_of(x[i]) < INFINITE ? code : (uint8_t)F8_NAN;
    }
    if (residual != NULL) {
        EACH
        {
            residual[i] = residual_of(x[i], bits_f8e4m3_to_f32(codes[i]) * scale);
        }
    }
}

static void f8_decode(float *out, const unsigned char *codes, float scale, size_t count, bool add)
{
    if (add) {
        EACH
        {
            out[i] += bits_f8e4m3_to_f32(codes[i]) * scale;
        }
        return;
    }
    EACH
    {
        out[i] = bits_f8e4m3_to_f32(codes[i]) * scale;
    }
}

static void gather(float *x, uint32_t *magnitudes, const float *values, float *residual, size_t count)
{
    EACH
    {
        float sum = residual == NULL ? values[i] : values[i] + residual[i];
        uint32_t magnitude = magnitude_of(sum);
        bool is_nan = magnitude > INFINITE;
        magnitudes[i] = is_nan ? QUIET_NAN : magnitude;
        x[i] = bits_to_f32(is_nan ? QUIET_NAN : bits_of_f32(sum));
    }
    if (residual != NULL) {
        EACH
        {
            residual[i] = residual_of(x[i], 0.0f);
        }
    }
}

const struct compress_kernels COMPRESS_KERNELS = {.bf16_encode = bf16_encode,
                                                  .bf16_decode = bf16_decode,
                                                  .f8_encode = f8_encode,
                                                  .f8_decode = f8_decode,
                                                  .gather = gather};
