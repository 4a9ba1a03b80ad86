#include "daemon/host/compress_top_k.h"

#include <inttypes.h>
#include <string.h>

#include "kernels/codec_bits.h"
#include "proto/little_endian.h"

#define BLOCK HOST_COMPRESS_TOP_K_BLOCK
#define DIGIT_VALUES 256

static void put_u16(unsigned char *out, size_t value)
{
    out[0] = (unsigned char)(value & 0xffu);
    out[1] = (unsigned char)(value >> 8);
}

static size_t get_u16(const unsigned char *in)
{
    return (size_t)in[0] | (size_t)in[1] << 8;
}

size_t compress_top_k_kept(uint32_t permille, size_t count)
{
    return codec_top_k_kept(permille, (uint32_t)count);
}

/*
 * Returns the rank-th largest of the magnitudes (rank 1 is the largest; rank is at most count). Sets *rank to
 * the number of equal values that belong to the rank largest. Selects by digits, from the highest. Each step
 * keeps the magnitudes that have the wanted digit, so even the worst case is one pass over all for each
 * digit.
 */
static uint32_t select_largest(const uint32_t *magnitudes, size_t count, size_t *rank)
{
    static const unsigned shifts[] = {23, 15, 7, 0}; /* of 31 bits: the exponent first */
    uint32_t left[BLOCK];
    uint32_t found = 0;
    for (size_t digit = 0; digit < sizeof shifts / sizeof shifts[0]; digit++) {
        const uint32_t *from = digit == 0 ? magnitudes : left;
        unsigned mask = digit == 3 ? 0x7fu : 0xffu;
        uint16_t histogram[DIGIT_VALUES] = {0};
        for (size_t i = 0; i < count; i++) {
            histogram[(from[i] >> shifts[digit]) & mask]++;
        }
        unsigned value = mask;
        while (histogram[value] < *rank) {
            *rank -= histogram[value];
            value--;
        }
        found |= (uint32_t)value << shifts[digit];
        size_t kept = 0;
        for (size_t i = 0; i < count; i++) {
            uint32_t magnitude = from[i];
            left[kept] = magnitude;
            kept += ((magnitude >> shifts[digit]) & mask) == value;
        }
        count = kept;
    }
    return found;
}

size_t compress_top_k_encode(const struct compress_kernels *kernels, uint32_t permille, const float *values,
                             float *residual, size_t count, unsigned char *out)
{
    float x[BLOCK];
    uint32_t magnitudes[BLOCK];
    kernels->gather(x, magnitudes, values, residual, count);
    size_t equal_left = compress_top_k_kept(permille, count);
    uint32_t threshold = select_largest(magnitudes, count, &equal_left);
    equal_left = threshold == 0 ? 0 : equal_left;
    unsigned char *at = out + COMPRESS_TOP_K_COUNT_BYTES;
    size_t kept = 0;
    for (size_t i = 0; i < count; i++) {
        if (magnitudes[i] < threshold || (magnitudes[i] == threshold && equal_left == 0)) {
            continue;
        }
        equal_left -= magnitudes[i] == threshold;
        put_u16(at, i);
        put_u32_le(at + 2, bits_of_f32(x[i]));
        at += COMPRESS_TOP_K_ELEMENT_BYTES;
        kept++;
        if (residual != NULL) {
            residual[i] = 0;
        }
    }
    put_u16(out, kept);
    return (size_t)(at - out);
}

enum status compress_top_k_check(const unsigned char *in, uint64_t bytes, uint64_t count_elements,
                                 uint32_t *offsets, struct error *error)
{
    uint64_t at = 0;
    for (uint64_t done = 0; done < count_elements; done += BLOCK) {
        size_t count = count_elements - done < BLOCK ? (size_t)(count_elements - done) : BLOCK;
        if (bytes - at < COMPRESS_TOP_K_COUNT_BYTES) {
            return error_set(error, STATUS_PROTOCOL,
                             "compressed payload (top_k): its %" PRIu64
                             " bytes end before the block of element %" PRIu64 " of %" PRIu64,
                             bytes, done, count_elements);
        }
        if (offsets != NULL) {
            offsets[done / BLOCK] = (uint32_t)at;
        }
        size_t kept = get_u16(in + at);
        at += COMPRESS_TOP_K_COUNT_BYTES;
        if (kept > count || bytes - at < kept * COMPRESS_TOP_K_ELEMENT_BYTES) {
            return error_set(error, STATUS_PROTOCOL,
                             "compressed payload (top_k): the block of element %" PRIu64
                             ", of %zu, says %zu; %" PRIu64 " bytes are left",
                             done, count, kept, bytes - at);
        }
        size_t next = 0;
        for (size_t k = 0; k < kept; k++) {
            size_t index = get_u16(in + at);
            at += COMPRESS_TOP_K_ELEMENT_BYTES;
            if (index < next || index >= count) {
                return error_set(error, STATUS_PROTOCOL,
                                 "compressed payload (top_k): the block of element %" PRIu64
                                 " has index %zu where %zu..%zu may be",
                                 done, index, next, count - 1);
            }
            next = index + 1;
        }
    }
    if (at != bytes) {
        return error_set(error, STATUS_PROTOCOL,
                         "compressed payload (top_k): %" PRIu64 " bytes after the last of %" PRIu64
                         " elements",
                         bytes - at, count_elements);
    }
    return STATUS_OK;
}

size_t compress_top_k_decode(const unsigned char *in, float *out, size_t count, bool add)
{
    size_t kept = get_u16(in);
    const unsigned char *at = in + COMPRESS_TOP_K_COUNT_BYTES;
    if (!add) {
        memset(out, 0, count * sizeof(float));
    }
    for (size_t k = 0; k < kept; k++) {
        float value = bits_to_f32(get_u32_le(at + 2));
        size_t index = get_u16(at);
        out[index] = add ? out[index] + value : value;
        at += COMPRESS_TOP_K_ELEMENT_BYTES;
    }
    return (size_t)(at - in);
}

uint64_t compress_top_k_pack(uint32_t permille, const unsigned char *in, uint64_t count_elements,
                             unsigned char *out)
{
    unsigned char *at = out;
    for (uint64_t done = 0; done < count_elements; done += BLOCK, in += codec_top_k_stride(permille)) {
        size_t bytes = COMPRESS_TOP_K_COUNT_BYTES + COMPRESS_TOP_K_ELEMENT_BYTES * get_u16(in);
        memcpy(at, in, bytes);
        at += bytes;
    }
    return (uint64_t)(at - out);
}
