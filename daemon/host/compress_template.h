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
#include "kernels/codec_bits.h"
#include "proto/little_endian.h"

#if defined(__clang__)
#define EACH _Pragma("clang loop vectorize(assume_safety)") for (size_t i = 0; i < count; i++)
#else
#define EACH _Pragma("GCC ivdep") for (size_t i = 0; i < count; i++)
#endif

typedef uint16_t any_u16 __attribute__((aligned(1), may_alias));

static void bf16_encode(unsigned char *out, const float *values, float *residual, size_t count)
{
    any_u16 *codes = (any_u16 *)out;
    if (residual == NULL) {
        EACH
        {
            codes[i] = htole16(codec_bf16(values[i]));
        }
        return;
    }
    EACH
    {
        float x = values[i] + residual[i];
        uint16_t code = codec_bf16(x);
        codes[i] = htole16(code);
        residual[i] = codec_residual(x, bits_bf16_to_f32(code));
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
        int32_t magnitude = (int32_t)codec_magnitude(x[i]);
        magnitude = magnitude < (int32_t)CODEC_INFINITE ? magnitude : 0;
        largest = magnitude > largest ? magnitude : largest;
    }
    const struct codec_f8_scale by = codec_f8_scale_of((uint32_t)largest);
    float scale = by.scale, shrink = by.shrink, shrink_rest = by.shrink_rest;
    unsigned char *codes = out + sizeof(uint32_t);
    put_u32_le(out, bits_of_f32(scale));
    EACH
    {
        codes[i] = codec_f8(x[i], shrink, shrink_rest);
    }
    if (residual != NULL) {
        EACH
        {
            residual[i] = codec_residual(x[i], codec_f8_value(codes[i], scale));
        }
    }
}

static void f8_decode(float *out, const unsigned char *codes, float scale, size_t count, bool add)
{
    if (add) {
        EACH
        {
            out[i] += codec_f8_value(codes[i], scale);
        }
        return;
    }
    EACH
    {
        out[i] = codec_f8_value(codes[i], scale);
    }
}

static void gather(float *x, uint32_t *magnitudes, const float *values, float *residual, size_t count)
{
    EACH
    {
        float sum = residual == NULL ? values[i] : values[i] + residual[i];
        uint32_t bits = codec_one_nan(sum);
        magnitudes[i] = bits & ~CODEC_SIGN;
        x[i] = bits_to_f32(bits);
    }
    if (residual != NULL) {
        EACH
        {
            residual[i] = codec_residual(x[i], 0.0f);
        }
    }
}

const struct compress_kernels COMPRESS_KERNELS = {.bf16_encode = bf16_encode,
                                                  .bf16_decode = bf16_decode,
                                                  .f8_encode = f8_encode,
                                                  .f8_decode = f8_decode,
                                                  .gather = gather};
