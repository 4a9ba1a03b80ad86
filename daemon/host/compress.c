#include "daemon/host/compress.h"

#include <inttypes.h>
#include <stddef.h>
#include <string.h>

#include "daemon/host/compress_level.h"
#include "daemon/host/compress_top_k.h"
#include "daemon/host/reduce.h"
#include "kernels/convert_bits.h"
#include "proto/little_endian.h"

#define F8_BLOCK HOST_COMPRESS_F8_BLOCK
#define F8_SCALE_BYTES 4
#define F8_SCALE_MIN 0x00000200u /* 2^-140 */
#define F8_SCALE_MAX 0x7b800000u /* 2^120 */
#define TOP_K_BLOCK HOST_COMPRESS_TOP_K_BLOCK

/* The reductions and this codec use the same vector width. */
static const struct compress_kernels *kernels_now(void)
{
#if defined(__x86_64__)
    const char *level = host_reduce_level_text();
    if (strcmp(level, "avx512") == 0) {
        return &compress_kernels_avx512;
    }
    if (strcmp(level, "avx2") == 0) {
        return &compress_kernels_avx2;
    }
#endif
    return &compress_kernels_portable;
}

static size_t block_count(uint64_t count_elements, uint64_t done, size_t block)
{
    return count_elements - done < block ? (size_t)(count_elements - done) : block;
}

uint64_t host_compress_max_bytes(enum compression compression, uint32_t top_k_permille,
                                 uint64_t count_elements)
{
    if (count_elements > UINT64_MAX / 8) { /* no format needs more bytes for an element */
        return UINT64_MAX;
    }
    switch (compression) {
    case COMPRESSION_NONE:
        break;
    case COMPRESSION_BF16:
        return count_elements * 2;
    case COMPRESSION_F8:
        return count_elements + (count_elements + F8_BLOCK - 1) / F8_BLOCK * F8_SCALE_BYTES;
    case COMPRESSION_TOP_K: {
        size_t rest = (size_t)(count_elements % TOP_K_BLOCK);
        uint64_t kept = count_elements / TOP_K_BLOCK * compress_top_k_kept(top_k_permille, TOP_K_BLOCK);
        kept += rest > 0 ? compress_top_k_kept(top_k_permille, rest) : 0;
        return (count_elements + TOP_K_BLOCK - 1) / TOP_K_BLOCK * COMPRESS_TOP_K_COUNT_BYTES +
               kept * COMPRESS_TOP_K_ELEMENT_BYTES;
    }
    }
    return count_elements * sizeof(float);
}

static uint64_t f8_compress(const float *values, float *residual, uint64_t count_elements, unsigned char *out)
{
    const struct compress_kernels *kernels = kernels_now();
    unsigned char *at = out;
    for (uint64_t done = 0; done < count_elements; done += F8_BLOCK) {
        size_t count = block_count(count_elements, done, F8_BLOCK);
        kernels->f8_encode(at, values + done, residual == NULL ? NULL : residual + done, count);
        at += F8_SCALE_BYTES + count;
    }
    return (uint64_t)(at - out);
}

static uint64_t top_k_compress(uint32_t permille, const float *values, float *residual,
                               uint64_t count_elements, unsigned char *out)
{
    const struct compress_kernels *kernels = kernels_now();
    unsigned char *at = out;
    for (uint64_t done = 0; done < count_elements; done += TOP_K_BLOCK) {
        size_t count = block_count(count_elements, done, TOP_K_BLOCK);
        at += compress_top_k_encode(kernels, permille, values + done,
                                    residual == NULL ? NULL : residual + done, count, at);
    }
    return (uint64_t)(at - out);
}

static uint64_t f32_compress(const float *values, float *residual, uint64_t count_elements,
                             unsigned char *out)
{
    const struct compress_kernels *kernels = kernels_now();
    float x[F8_BLOCK];
    uint32_t magnitudes[F8_BLOCK];
    for (uint64_t done = 0; done < count_elements; done += F8_BLOCK) {
        size_t count = block_count(count_elements, done, F8_BLOCK);
        float *rest = residual == NULL ? NULL : residual + done;
        kernels->gather(x, magnitudes, values + done, rest, count);
        for (size_t i = 0; i < count; i++) {
            put_u32_le(out + (done + i) * sizeof(float), bits_of_f32(x[i]));
        }
        if (rest != NULL) {
            memset(rest, 0, count * sizeof(float));
        }
    }
    return count_elements * sizeof(float);
}

uint64_t host_compress(enum compression compression, uint32_t top_k_permille, const float *values,
                       float *residual, uint64_t count_elements, unsigned char *out)
{
    switch (compression) {
    case COMPRESSION_NONE:
        break;
    case COMPRESSION_BF16:
        kernels_now()->bf16_encode(out, values, residual, (size_t)count_elements);
        return count_elements * 2;
    case COMPRESSION_F8:
        return f8_compress(values, residual, count_elements, out);
    case COMPRESSION_TOP_K:
        return top_k_compress(top_k_permille, values, residual, count_elements, out);
    }
    return f32_compress(values, residual, count_elements, out);
}

static bool f8_scale_is_valid(uint32_t bits)
{
    bool in_range = bits >= F8_SCALE_MIN && bits <= F8_SCALE_MAX;
    /* A power of two has only exponent bits or, below the normal numbers, only one bit. */
    bool is_power = bits < 0x00800000u ? (bits & (bits - 1)) == 0 : (bits & 0x007fffffu) == 0;
    return bits == 0 || (in_range && is_power);
}

static enum status f8_check(const unsigned char *in, uint64_t count_elements, struct error *error)
{
    const unsigned char *at = in;
    for (uint64_t done = 0; done < count_elements; done += F8_BLOCK) {
        uint32_t scale = get_u32_le(at);
        if (!f8_scale_is_valid(scale)) {
            return error_set(error, STATUS_PROTOCOL,
                             "compressed payload (f8): the scale of element %" PRIu64
                             " has the bits 0x%08" PRIx32 ", not of a power of two in 2^-140..2^120",
                             done, scale);
        }
        at += F8_SCALE_BYTES + block_count(count_elements, done, F8_BLOCK);
    }
    return STATUS_OK;
}

enum status host_compress_check(enum compression compression, const unsigned char *in, uint64_t bytes,
                                uint64_t count_elements, uint32_t *offsets, struct error *error)
{
    if (compression == COMPRESSION_TOP_K) {
        return compress_top_k_check(in, bytes, count_elements, offsets, error);
    }
    uint64_t expected = host_compress_max_bytes(compression, 0, count_elements);
    if (bytes != expected || expected == UINT64_MAX) {
        return error_set(error, STATUS_PROTOCOL,
                         "compressed payload (%s): %" PRIu64 " bytes for %" PRIu64 " elements, not %" PRIu64,
                         compression_text(compression), bytes, count_elements, expected);
    }
    return compression == COMPRESSION_F8 ? f8_check(in, count_elements, error) : STATUS_OK;
}

static void f8_decompress(const unsigned char *in, uint64_t count_elements, float *out, bool add)
{
    const struct compress_kernels *kernels = kernels_now();
    for (uint64_t done = 0; done < count_elements; done += F8_BLOCK) {
        size_t count = block_count(count_elements, done, F8_BLOCK);
        kernels->f8_decode(out + done, in + F8_SCALE_BYTES, bits_to_f32(get_u32_le(in)), count, add);
        in += F8_SCALE_BYTES + count;
    }
}

static void top_k_decompress(const unsigned char *in, uint64_t count_elements, float *out, bool add)
{
    for (uint64_t done = 0; done < count_elements; done += TOP_K_BLOCK) {
        in += compress_top_k_decode(in, out + done, block_count(count_elements, done, TOP_K_BLOCK), add);
    }
}

static void f32_decompress(const unsigned char *in, uint64_t count_elements, float *out, bool add)
{
    for (uint64_t i = 0; i < count_elements; i++) {
        float value = bits_to_f32(get_u32_le(in + i * sizeof(float)));
        out[i] = add ? out[i] + value : value;
    }
}

enum status host_decompress(enum compression compression, const unsigned char *in, uint64_t bytes,
                            uint64_t count_elements, float *out, bool add, struct error *error)
{
    enum status status = host_compress_check(compression, in, bytes, count_elements, NULL, error);
    if (status != STATUS_OK) {
        return status;
    }
    switch (compression) {
    case COMPRESSION_NONE:
        f32_decompress(in, count_elements, out, add);
        break;
    case COMPRESSION_BF16:
        kernels_now()->bf16_decode(out, in, (size_t)count_elements, add);
        break;
    case COMPRESSION_F8:
        f8_decompress(in, count_elements, out, add);
        break;
    case COMPRESSION_TOP_K:
        top_k_decompress(in, count_elements, out, add);
        break;
    }
    return STATUS_OK;
}

uint64_t host_compress_pack(enum compression compression, uint32_t top_k_permille, const unsigned char *in,
                            uint64_t count_elements, unsigned char *out)
{
    uint64_t bytes = host_compress_max_bytes(compression, top_k_permille, count_elements);
    if (compression == COMPRESSION_TOP_K) {
        return compress_top_k_pack(top_k_permille, in, count_elements, out);
    }
    memcpy(out, in, (size_t)bytes);
    return bytes;
}
