#ifndef PROTO_FRAME_H
#define PROTO_FRAME_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/status.h"

/*
 * Messages on a byte stream: a u32 little-endian length, then that many bytes of message. A length of 0 or
 * beyond FRAME_MAX_BYTES is a protocol error: then the frame boundaries are lost, and the stream must be
 * given up. (proto3 would allow an empty message, but none here has a meaning.)
 *
 * Pure: no I/O, no clock. Only one thread at a time may use a decoder.
 */
#define FRAME_HEADER_BYTES 4
#define FRAME_MAX_BYTES 65536 /* of the message, without its length */

/* Writes the length that goes before a message of 1..FRAME_MAX_BYTES bytes. */
void frame_put_header(uint8_t out[FRAME_HEADER_BYTES], size_t message_bytes);

/* All zero is a decoder at the start of a stream. frame_decoder_free frees what it owns. */
struct frame_decoder {
    uint8_t *buffer; /* the message so far, if it did not arrive in one piece */
    size_t capacity_bytes;
    size_t message_bytes; /* of the current frame, once its length is complete */
    size_t received_bytes;
    uint8_t header[FRAME_HEADER_BYTES];
    size_t header_received_bytes;
    bool failed;
};

/*
 * Takes bytes of the stream from *bytes, up to the end of the next frame, and advances *bytes and *size.
 * Returns
 * - OK: *message and *message_bytes are the frame's message. There may be more in *bytes, so call again;
 * - IN_PROGRESS: all bytes were taken, and no frame is complete;
 * - PROTOCOL: a length of 0 or beyond FRAME_MAX_BYTES. Every later call returns the same;
 * - NO_MEMORY: the bytes that are left in *bytes were not taken. The caller may try again.
 *
 * *message points into the given bytes or into the decoder. It is valid until the next call on the decoder,
 * and as long as the given bytes. It has no alignment. The decoder keeps at most FRAME_MAX_BYTES.
 */
enum status frame_decoder_next(struct frame_decoder *decoder, const uint8_t **bytes, size_t *size,
                               const uint8_t **message, size_t *message_bytes) COMM_MUST_USE;

/* Whether the stream may end here: no frame has begun. */
bool frame_decoder_at_boundary(const struct frame_decoder *decoder);

/* Frees the buffer. The decoder is then at the start of a stream again. */
void frame_decoder_free(struct frame_decoder *decoder);

#endif
