#ifndef DAEMON_DEV_COMPRESS_H
#define DAEMON_DEV_COMPRESS_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/base/error.h"
#include "proto/types.h"

/*
 * The codec of compressed all-reduces: f32 values become fewer bytes, with what is lost kept in a residual.
 * Formats, little-endian, without alignment:
 *
 *   bf16    2 bytes a value, rounded to nearest even. Error of a value x: at most |x| / 2^8 (2^-9 for normal
 *           numbers); beyond the largest bf16, infinity.
 *   f8      blocks of DEV_COMPRESS_F8_BLOCK values: an f32 scale, then a byte a value, e4m3 of x / scale. The
 * scale is the power of two that brings the largest magnitude of the block to at most 448, so that nothing
 * but the rounding of e4m3 is lost. Error: at most |x| / 2^4, or scale / 2^10 near zero. Values of a block
 * with an infinity or NaN are NaN where those were; the others' scale is that of the finite ones. top_k
 * blocks of DEV_COMPRESS_TOP_K_BLOCK values: a u16 count, then that many pairs of u16 index, ascending, and
 * f32 value: of the permille * block / 1000 (at least 1) of largest magnitude, of equal ones the lowest
 *           index, NaN before all. What is left out is in the residual.
 *
 * The same bits on every machine. Thread-safe, no memory of their own.
 */
#define DEV_COMPRESS_F8_BLOCK 256
#define DEV_COMPRESS_TOP_K_BLOCK 1024

/* The most that dev_compress writes; 0 for COMPRESSION_NONE. */
uint64_t dev_compress_max_bytes(enum compression compression, uint32_t top_k_permille,
                                uint64_t count_elements);

/*
 * Encodes `count` values and returns how many bytes that took. With a residual (null, or `count` values):
 * values + residual are encoded, and residual becomes what of that was lost; 0 where something is not finite
 * (error feedback: Seide et al. 2014).
 */
uint64_t dev_compress(enum compression compression, uint32_t top_k_permille, const float *values,
                      float *residual, uint64_t count_elements, unsigned char *out);

/*
 * Decodes what dev_compress wrote for `count` values; `add` adds to `out`, otherwise it is replaced.
 * Everything is checked, as it comes from another node: PROTOCOL, and then *out may have changed in part.
 */
enum status dev_decompress(enum compression compression, const unsigned char *in, uint64_t size_bytes,
                           uint64_t count_elements, float *out, bool add, struct error *error) COMM_MUST_USE;

#endif
