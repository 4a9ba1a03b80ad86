#ifndef DAEMON_HOST_COMPRESS_H
#define DAEMON_HOST_COMPRESS_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/base/error.h"
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
 * NaN and infinity: d(NaN) is NaN, quiet and positive. Infinity stays infinity; in f8, which has none, it
 * becomes NaN. Neither counts in f8's M. In top_k NaN is the largest, then infinity; where a block has more
 * of these than k, the later ones decode to 0. Finite value and residual may overflow to infinity.
 *
 * Error feedback (Seide et al. 2014, Karimireddy et al. 2019): with a residual, x is the f32 sum of value and
 * residual, and the residual becomes x - d(x), exactly: d(x) + residual = x without rounding. It becomes 0
 * where x is not finite, so that a residual is always finite.
 *
 * The same bits on every machine and at every vector level (host_reduce_force_level sets that of both),
 * payloads of NaN excepted where a decoded NaN is added. All functions are thread-safe, without memory of
 * their own.
 */

#define HOST_COMPRESS_F8_BLOCK 256
#define HOST_COMPRESS_TOP_K_BLOCK 1024 /* elements, as the one above */

/*
 * What host_compress writes at most: exactly that but for top_k. top_k_permille: top_k alone; 0 is one
 * element a block, above 1000 is all of them. UINT64_MAX where that does not fit.
 */
uint64_t host_compress_max_bytes(enum compression compression, uint32_t top_k_permille,
                                 uint64_t count_elements);

/*
 * Encodes `count_elements` values into out, which has room for host_compress_max_bytes, and returns the bytes
 * written. residual: null, or as many elements, read and written. The buffers do not overlap.
 */
uint64_t host_compress(enum compression compression, uint32_t top_k_permille, const float *values,
                       float *residual, uint64_t count_elements, unsigned char *out);

/*
 * Decodes a payload of a peer into count_elements of out: added to what is there, or in its place (top_k:
 * zero where nothing is kept). in and out do not overlap. STATUS_PROTOCOL, with out untouched, where the
 * payload is not one of that many elements: its length, a scale that is neither 0 nor a power of two in
 * 2^-140..2^120, an index that is not in the block or not above the one before. Values are the peer's: any
 * number, NaN and infinity are accepted.
 */
enum status host_decompress(enum compression compression, const unsigned char *in, uint64_t bytes,
                            uint64_t count_elements, float *out, bool add, struct error *error) COMM_MUST_USE;

#endif
