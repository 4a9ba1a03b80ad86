#ifndef DAEMON_HOST_COMPRESS_H
#define DAEMON_HOST_COMPRESS_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/base/error.h"
#include "kernels/codec_bits.h"
#include "proto/types.h"

/*
 * The codec of compressed all-reduces: f32 elements to bytes and back. x is a finite element (its residual
 * added), d(x) what it decodes to. Little-endian, at any alignment; counts are not in the payload.
 *
 *   none   f32, 4 bytes an element: d(x) = x.
 *
 *   bf16   2 bytes an element, rounded to nearest even: |x - d(x)| <= 2^-8 |x|, and 2^-134 below 2^-126.
 *          What would round to infinity becomes the largest finite bf16, within the same bound.
 *
 *   f8     For each 256 elements (the last block has the rest): an f32 scale, then a byte an element, e4m3
 *          (OCP 8-bit Floating Point 1.0) to nearest even; d(x) = scale e4m3. The scale is the least power
 *          of two, 2^-140 or above, with M <= 448 scale, where M is the largest |x| of the block; 0 where
 *          that is 0. |x - d(x)| <= max(2^-4 |x|, 2^-17 M), so 2^-4 M at most. A power of two costs nothing
 *          of that relative error, and makes d(x) and x - d(x) exact, where M / 448 itself would round.
 *          |x| above 240 * 2^120 is cut to that, within the same bound.
 *
 *   top_k  For each 1,024 elements (the last block has the rest): a u16, how many follow, then those, as u16
 *          index in the block (ascending) and f32 value. They are the k = max(1, ceil(permille n / 1000))
 *          largest in magnitude of the block's n, of equals the first; zeros are left out. d(x) is x for
 *          these and 0 for the others.
 *
 * NaN and infinity: d(NaN) is NaN, quiet and positive. Infinity stays infinity. f8 has no infinity: there it
 * becomes NaN. f8 ignores both when it computes M. In top_k, NaN is the largest value, then infinity. If a
 * block has more than k of these, the later ones decode to 0. The sum of a finite value and its residual may
 * overflow to infinity.
 *
 * Error feedback (Seide et al. 2014, Karimireddy et al. 2019): with a residual, x is the f32 sum of value and
 * residual, and the residual becomes x - d(x), exactly: d(x) + residual = x without rounding. It becomes 0
 * where x is not finite, so that a residual is always finite.
 *
 * The bits are the same on every machine and at every vector level, except payloads of NaN where a decoded
 * NaN is added. host_reduce_force_level sets the level of reductions and of this codec. All functions are
 * thread-safe and allocate no memory.
 */

#define HOST_COMPRESS_F8_BLOCK CODEC_F8_BLOCK
#define HOST_COMPRESS_TOP_K_BLOCK CODEC_TOP_K_BLOCK /* in elements, like HOST_COMPRESS_F8_BLOCK */

/*
 * The most bytes that host_compress writes. It writes exactly as many, except for top_k. top_k_permille is
 * used only for top_k: 0 keeps one element a block, values above 1000 keep all. Returns UINT64_MAX if the
 * number does not fit.
 */
uint64_t host_compress_max_bytes(enum compression compression, uint32_t top_k_permille,
                                 uint64_t count_elements);

/*
 * Encodes `count_elements` values into out, which must have room for host_compress_max_bytes. Returns the
 * bytes written. residual: null, or as many elements, which are read and written. The buffers must not
 * overlap.
 */
uint64_t host_compress(enum compression compression, uint32_t top_k_permille, const float *values,
                       float *residual, uint64_t count_elements, unsigned char *out);

/*
 * Decodes a peer's payload into count_elements of out. With `add` it adds to the present values, otherwise it
 * replaces them (top_k: with zero where no element was kept). in and out must not overlap. Values come from
 * the peer: any number, NaN and infinity are accepted.
 *
 * Returns STATUS_PROTOCOL and leaves out untouched if the payload is not valid for that many elements. That
 * is: a wrong length; a scale that is neither 0 nor a power of two in 2^-140..2^120; an index outside the
 * block, or not above the previous one.
 */
enum status host_decompress(enum compression compression, const unsigned char *in, uint64_t bytes,
                            uint64_t count_elements, float *out, bool add, struct error *error) COMM_MUST_USE;

/*
 * For GPUs that decode: whether host_decompress would accept the payload, with its errors. offsets: null, or
 * for top_k one entry for each block, which becomes where the block begins. The payload is below 4 GiB then.
 */
enum status host_compress_check(enum compression compression, const unsigned char *in, uint64_t bytes,
                                uint64_t count_elements, uint32_t *offsets,
                                struct error *error) COMM_MUST_USE;

/*
 * For GPUs that encode: copies what they wrote for count_elements to out, as host_compress would have written
 * it. GPUs leave gaps between the blocks of top_k (codec_top_k_stride). Returns the bytes written.
 */
uint64_t host_compress_pack(enum compression compression, uint32_t top_k_permille, const unsigned char *in,
                            uint64_t count_elements, unsigned char *out);

#endif
