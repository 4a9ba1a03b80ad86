#include "daemon/net/tls_frame.h"

#include <string.h>

#include "daemon/net/net.h"
#include "daemon/net/quic_greeting.h"
#include "proto/little_endian.h"

#define KIND_AT 2
#define BODY_AT 4
#define NUMBER_AT 8
#define OFFSET_AT 16
#define ZERO_AT 24

/* Offsets stay far from the end of 64 bits, so that sums with sizes do not overflow. */
#define OFFSET_MAX (UINT64_MAX / 4)

void tls_frame_encode(const struct tls_frame *frame, uint8_t out[TLS_FRAME_HEADER_BYTES])
{
    out[0] = (uint8_t)frame->type;
    out[1] = frame->end ? TLS_FRAME_END : 0;
    put_u16_le(out + KIND_AT, frame->kind);
    put_u32_le(out + BODY_AT, frame->body_bytes);
    put_u64_le(out + NUMBER_AT, frame->number);
    put_u64_le(out + OFFSET_AT, frame->offset);
    put_u64_le(out + ZERO_AT, 0);
}

static uint32_t body_max(unsigned type)
{
    return type == TLS_FRAME_DATA       ? TLS_FRAME_DATA_MAX_BYTES - TLS_FRAME_HEADER_BYTES
           : type == TLS_FRAME_GREETING ? QUIC_GREETING_MAX_BYTES
                                        : 0;
}

/* Returns null, or what is wrong with the header, which no correct peer sends. */
static const char *tls_frame_decode(const uint8_t bytes[TLS_FRAME_HEADER_BYTES], struct tls_frame *out)
{
    unsigned type = bytes[0];
    bool takes_end = type == TLS_FRAME_DATA || type == TLS_FRAME_RECEIPT;
    out->kind = get_u16_le(bytes + KIND_AT);
    out->body_bytes = get_u32_le(bytes + BODY_AT);
    out->number = get_u64_le(bytes + NUMBER_AT);
    out->offset = get_u64_le(bytes + OFFSET_AT);
    out->end = (bytes[1] & TLS_FRAME_END) != 0;
    if (type < TLS_FRAME_DATA || type > TLS_FRAME_WAY) {
        return "a frame of no known type";
    }
    out->type = (enum tls_frame_type)type;
    if ((bytes[1] & ~TLS_FRAME_END) != 0 || (out->end && !takes_end) || get_u64_le(bytes + ZERO_AT) != 0) {
        return "a frame with unknown flags";
    }
    if (out->body_bytes > body_max(type)) {
        return "a frame that is too large";
    }
    if (out->number > OFFSET_MAX || out->offset > OFFSET_MAX) {
        return "a frame with an impossible number or offset";
    }
    if ((type == TLS_FRAME_DATA) != (out->kind != 0) ||
        (type == TLS_FRAME_DATA && out->kind != NET_STREAM_DATA)) {
        return "a frame of a wrong kind of stream";
    }
    if (type == TLS_FRAME_DATA && out->body_bytes == 0 && !out->end) {
        return "a frame of data without data";
    }
    return NULL;
}

static bool begin(struct tls_frame_reader *reader, const struct tls_frame_handler *handler)
{
    const char *wrong = tls_frame_decode(reader->header, &reader->frame);
    if (wrong != NULL) {
        handler->wrong(handler->context, wrong);
        return false;
    }
    reader->in_frame = true;
    reader->left = reader->frame.body_bytes;
    return handler->begin(handler->context, &reader->frame);
}

bool tls_frame_read(struct tls_frame_reader *reader, const struct tls_frame_handler *handler,
                    const uint8_t *bytes, size_t size)
{
    while (size > 0) {
        size_t part;
        if (!reader->in_frame) {
            size_t missing = TLS_FRAME_HEADER_BYTES - reader->header_have;
            part = size < missing ? size : missing;
            memcpy(reader->header + reader->header_have, bytes, part);
            reader->header_have += (uint32_t)part;
            if (reader->header_have == TLS_FRAME_HEADER_BYTES && !begin(reader, handler)) {
                return false;
            }
        } else {
            uint64_t at = reader->frame.body_bytes - reader->left;
            part = size < reader->left ? size : reader->left;
            reader->left -= (uint32_t)part;
            if (!handler->body(handler->context, &reader->frame, at, bytes, part)) {
                return false;
            }
        }
        bytes += part;
        size -= part;
        if (reader->in_frame && reader->left == 0) {
            reader->in_frame = false;
            reader->header_have = 0;
            if (!handler->end(handler->context, &reader->frame)) {
                return false;
            }
        }
    }
    return true;
}
