#ifndef DAEMON_HOST_COMPRESS_TOP_K_H
#define DAEMON_HOST_COMPRESS_TOP_K_H

#include <stddef.h>
#include <stdint.h>

#include "daemon/base/error.h"
#include "daemon/host/compress.h"
#include "daemon/host/compress_level.h"
#include "kernels/codec_bits.h"

#define COMPRESS_TOP_K_COUNT_BYTES CODEC_TOP_K_COUNT_BYTES
#define COMPRESS_TOP_K_ELEMENT_BYTES CODEC_TOP_K_ELEMENT_BYTES

/* The most elements that are kept of a block of `count` elements: 1..count. */
size_t compress_top_k_kept(uint32_t permille, size_t count);

/* Encodes one block of 1..HOST_COMPRESS_TOP_K_BLOCK elements; returns the bytes written. */
size_t compress_top_k_encode(const struct compress_kernels *kernels, uint32_t permille, const float *values,
                             float *residual, size_t count, unsigned char *out);

/* Checks a whole payload, so compress_top_k_decode need not check it. Returns STATUS_PROTOCOL if it is
 * invalid. offsets: null, or where each block begins. */
enum status compress_top_k_check(const unsigned char *in, uint64_t bytes, uint64_t count_elements,
                                 uint32_t *offsets, struct error *error) COMM_MUST_USE;

/* Copies blocks, each of which begins at a multiple of the room of a full one, to where they follow each
 * other. Returns their bytes. */
uint64_t compress_top_k_pack(uint32_t permille, const unsigned char *in, uint64_t count_elements,
                             unsigned char *out);

/* Decodes one block. With `add` it adds the kept elements to out; otherwise it writes them, and 0 for the
 * rest. Returns the bytes read. */
size_t compress_top_k_decode(const unsigned char *in, float *out, size_t count, bool add);

#endif
