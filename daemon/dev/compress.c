#include "daemon/dev/compress.h"

#include <math.h>
#include <string.h>

#include "daemon/dev/convert.h"
#include "proto/little_endian.h"

#define F8_LARGEST 448.0f
#define TOP_K_PAIR_BYTES 6

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static uint32_t float_bits(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static float bits_float(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static float wanted(const float *values, const float *residual, uint64_t i)
{
    return residual == NULL ? values[i] : values[i] + residual[i];
}

/* What is left of x when `sent` of it was sent. */
static float left_over(float x, float sent)
{
    float left = x - sent;
    return isfinite(left) ? left : 0.0f;
}

static void put_value(float *out, float value, bool add)
{
    *out = add ? *out + value : value;
}

static enum status malformed(struct error *error, const char *what)
{
    return error_set(error, STATUS_PROTOCOL, "a compressed payload with %s", what);
}

/* --- bf16 --- */

static uint64_t compress_bf16(const float *values, float *residual, uint64_t count, unsigned char *out)
{
    for (uint64_t i = 0; i < count; i++) {
        float x = wanted(values, residual, i);
        uint16_t half = convert_f32_to_bf16(x);
        out[2 * i] = (unsigned char)(half & 0xff);
        out[2 * i + 1] = (unsigned char)(half >> 8);
        if (residual != NULL) {
            residual[i] = left_over(x, convert_bf16_to_f32(half));
        }
    }
    return 2 * count;
}

static enum status decompress_bf16(const unsigned char *in, uint64_t size_bytes, uint64_t count, float *out,
                                   bool add, struct error *error)
{
    if (size_bytes != 2 * count) {
        return malformed(error, "another number of bf16 than agreed");
    }
    for (uint64_t i = 0; i < count; i++) {
        uint16_t half = (uint16_t)(in[2 * i] | in[2 * i + 1] << 8);
        put_value(&out[i], convert_bf16_to_f32(half), add);
    }
    return STATUS_OK;
}

/* --- f8 --- */

/* The power of two by which the block is divided. */
static float f8_scale(const float *values, const float *residual, uint64_t count)
{
    float largest = 0;
    int exponent;
    for (uint64_t i = 0; i < count; i++) {
        float magnitude = fabsf(wanted(values, residual, i));
        largest = isfinite(magnitude) && magnitude > largest ? magnitude : largest;
    }
    if (largest == 0) {
        return 1;
    }
    (void)frexpf(largest / F8_LARGEST, &exponent); /* in [1/2, 1) times 2^exponent: at most that */
    exponent = exponent < -126 ? -126 : exponent;  /* a normal number, so that its inverse is one as well */
    return ldexpf(1, exponent);
}

static uint64_t compress_f8(const float *values, float *residual, uint64_t count, unsigned char *out)
{
    unsigned char *at = out;
    for (uint64_t begin = 0; begin < count; begin += DEV_COMPRESS_F8_BLOCK) {
        uint64_t block = least(count - begin, DEV_COMPRESS_F8_BLOCK);
        const float *part = values + begin;
        float *rest = residual == NULL ? NULL : residual + begin;
        float scale = f8_scale(part, rest, block);
        put_u32_le(at, float_bits(scale));
        at += 4;
        for (uint64_t i = 0; i < block; i++) {
            float x = wanted(part, rest, i);
            uint8_t byte = convert_f32_to_f8e4m3(isfinite(x) ? x / scale : NAN);
            *at++ = byte;
            if (rest != NULL) {
                rest[i] = left_over(x, convert_f8e4m3_to_f32(byte) * scale);
            }
        }
    }
    return (uint64_t)(at - out);
}

static enum status decompress_f8(const unsigned char *in, uint64_t size_bytes, uint64_t count, float *out,
                                 bool add, struct error *error)
{
    if (size_bytes != dev_compress_max_bytes(COMPRESSION_F8, 0, count)) {
        return malformed(error, "another number of f8 than agreed");
    }
    for (uint64_t begin = 0; begin < count; begin += DEV_COMPRESS_F8_BLOCK) {
        uint64_t block = least(count - begin, DEV_COMPRESS_F8_BLOCK);
        float scale = bits_float(get_u32_le(in));
        in += 4;
        if (!(isfinite(scale) && scale > 0)) {
            return malformed(error, "a scale that is none");
        }
        for (uint64_t i = 0; i < block; i++) {
            put_value(&out[begin + i], convert_f8e4m3_to_f32(*in++) * scale, add);
        }
    }
    return STATUS_OK;
}

/* --- top k --- */

static uint64_t top_k_of(uint32_t permille, uint64_t block)
{
    uint64_t kept = (permille * block + 999) / 1000;
    return kept < 1 ? 1 : least(kept, block);
}

/* Orders by magnitude: NaN largest. */
static uint32_t magnitude_key(float value)
{
    return float_bits(value) & 0x7fffffffu;
}

/* The key of the k-th largest, by its bits from the highest on; *beyond gets how many have a larger one. */
static uint32_t find_threshold(const uint32_t *keys, uint64_t count, uint64_t kept, uint64_t *beyond)
{
    uint32_t prefix = 0;
    uint64_t above = 0;
    for (int shift = 24; shift >= 0; shift -= 8) {
        uint32_t buckets[256] = {0};
        uint32_t mask = shift == 24 ? 0 : UINT32_MAX << (shift + 8);
        for (uint64_t i = 0; i < count; i++) {
            if ((keys[i] & mask) == prefix) {
                buckets[keys[i] >> shift & 0xff]++;
            }
        }
        uint32_t digit = 255;
        while (above + buckets[digit] < kept) {
            above += buckets[digit--];
        }
        prefix |= digit << shift;
    }
    *beyond = above;
    return prefix;
}

static unsigned char *compress_top_k_block(const float *values, float *residual, uint64_t block,
                                           uint64_t kept, unsigned char *at)
{
    uint32_t keys[DEV_COMPRESS_TOP_K_BLOCK];
    uint64_t beyond;
    for (uint64_t i = 0; i < block; i++) {
        keys[i] = magnitude_key(wanted(values, residual, i));
    }
    uint32_t threshold = find_threshold(keys, block, kept, &beyond);
    uint64_t equal = kept - beyond; /* of those at the threshold, the first */
    at[0] = (unsigned char)(kept & 0xff);
    at[1] = (unsigned char)(kept >> 8);
    at += 2;
    for (uint64_t i = 0; i < block; i++) {
        float x = wanted(values, residual, i);
        bool taken = keys[i] > threshold || (keys[i] == threshold && equal > 0);
        equal -= keys[i] == threshold && equal > 0;
        if (taken) {
            at[0] = (unsigned char)(i & 0xff);
            at[1] = (unsigned char)(i >> 8);
            put_u32_le(at + 2, float_bits(x));
            at += TOP_K_PAIR_BYTES;
        }
        if (residual != NULL) {
            residual[i] = taken || !isfinite(x) ? 0 : x;
        }
    }
    return at;
}

static uint64_t compress_top_k(uint32_t permille, const float *values, float *residual, uint64_t count,
                               unsigned char *out)
{
    unsigned char *at = out;
    for (uint64_t begin = 0; begin < count; begin += DEV_COMPRESS_TOP_K_BLOCK) {
        uint64_t block = least(count - begin, DEV_COMPRESS_TOP_K_BLOCK);
        at = compress_top_k_block(values + begin, residual == NULL ? NULL : residual + begin, block,
                                  top_k_of(permille, block), at);
    }
    return (uint64_t)(at - out);
}

static enum status decompress_top_k(const unsigned char *in, uint64_t size_bytes, uint64_t count, float *out,
                                    bool add, struct error *error)
{
    uint64_t left = size_bytes;
    for (uint64_t begin = 0; begin < count; begin += DEV_COMPRESS_TOP_K_BLOCK) {
        uint64_t block = least(count - begin, DEV_COMPRESS_TOP_K_BLOCK);
        if (left < 2) {
            return malformed(error, "fewer blocks than agreed");
        }
        uint64_t kept = (uint64_t)(in[0] | in[1] << 8);
        in += 2;
        left -= 2;
        if (kept > block || left < kept * TOP_K_PAIR_BYTES) {
            return malformed(error, "a block that is cut short");
        }
        memset(&out[begin], 0, add ? 0 : (size_t)block * sizeof *out);
        uint64_t next = 0;
        for (uint64_t k = 0; k < kept; k++, in += TOP_K_PAIR_BYTES) {
            uint64_t index = (uint64_t)(in[0] | in[1] << 8);
            if (index < next || index >= block) {
                return malformed(error, "an index out of its place");
            }
            next = index + 1;
            put_value(&out[begin + index], bits_float(get_u32_le(in + 2)), add);
        }
        left -= kept * TOP_K_PAIR_BYTES;
    }
    return left == 0 ? STATUS_OK : malformed(error, "bytes behind its end");
}

/* --- */

uint64_t dev_compress_max_bytes(enum compression compression, uint32_t top_k_permille,
                                uint64_t count_elements)
{
    uint64_t whole, rest;
    switch (compression) {
    case COMPRESSION_NONE:
        return 0;
    case COMPRESSION_BF16:
        return 2 * count_elements;
    case COMPRESSION_F8:
        return count_elements + (count_elements + DEV_COMPRESS_F8_BLOCK - 1) / DEV_COMPRESS_F8_BLOCK * 4;
    case COMPRESSION_TOP_K:
        whole = count_elements / DEV_COMPRESS_TOP_K_BLOCK;
        rest = count_elements % DEV_COMPRESS_TOP_K_BLOCK;
        return whole * (2 + TOP_K_PAIR_BYTES * top_k_of(top_k_permille, DEV_COMPRESS_TOP_K_BLOCK)) +
               (rest > 0 ? 2 + TOP_K_PAIR_BYTES * top_k_of(top_k_permille, rest) : 0);
    }
    return 0;
}

uint64_t dev_compress(enum compression compression, uint32_t top_k_permille, const float *values,
                      float *residual, uint64_t count_elements, unsigned char *out)
{
    switch (compression) {
    case COMPRESSION_NONE:
        return 0;
    case COMPRESSION_BF16:
        return compress_bf16(values, residual, count_elements, out);
    case COMPRESSION_F8:
        return compress_f8(values, residual, count_elements, out);
    case COMPRESSION_TOP_K:
        return compress_top_k(top_k_permille, values, residual, count_elements, out);
    }
    return 0;
}

enum status dev_decompress(enum compression compression, const unsigned char *in, uint64_t size_bytes,
                           uint64_t count_elements, float *out, bool add, struct error *error)
{
    switch (compression) {
    case COMPRESSION_NONE:
        break;
    case COMPRESSION_BF16:
        return decompress_bf16(in, size_bytes, count_elements, out, add, error);
    case COMPRESSION_F8:
        return decompress_f8(in, size_bytes, count_elements, out, add, error);
    case COMPRESSION_TOP_K:
        return decompress_top_k(in, size_bytes, count_elements, out, add, error);
    }
    return error_set(error, STATUS_INTERNAL, "no compression %d", (int)compression);
}
