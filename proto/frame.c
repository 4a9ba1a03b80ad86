#include "proto/frame.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "proto/little_endian.h"

static bool frame_length_valid(size_t message_bytes)
{
    return message_bytes >= 1 && message_bytes <= FRAME_MAX_BYTES;
}

void frame_put_header(uint8_t out[FRAME_HEADER_BYTES], size_t message_bytes)
{
    assert(frame_length_valid(message_bytes));
    put_u32_le(out, (uint32_t)message_bytes);
}

static size_t frame_min_size(size_t a, size_t b)
{
    return a < b ? a : b;
}

static enum status frame_take_header(struct frame_decoder *decoder, const uint8_t **bytes, size_t *size)
{
    size_t missing_bytes = FRAME_HEADER_BYTES - decoder->header_received_bytes;
    size_t taken_bytes = frame_min_size(missing_bytes, *size);
    if (taken_bytes > 0) {
        memcpy(decoder->header + decoder->header_received_bytes, *bytes, taken_bytes);
        decoder->header_received_bytes += taken_bytes;
        *bytes += taken_bytes;
        *size -= taken_bytes;
    }
    if (taken_bytes < missing_bytes) {
        return STATUS_IN_PROGRESS;
    }
    decoder->message_bytes = get_u32_le(decoder->header);
    decoder->received_bytes = 0;
    if (!frame_length_valid(decoder->message_bytes)) {
        decoder->failed = true;
        return STATUS_PROTOCOL;
    }
    return STATUS_OK;
}

/*
 * Allocates room for the whole message. Old content need not be copied: none of the message has arrived yet.
 */
static bool frame_reserve(struct frame_decoder *decoder)
{
    if (decoder->capacity_bytes >= decoder->message_bytes) {
        return true;
    }
    uint8_t *buffer = malloc(decoder->message_bytes);
    if (buffer == NULL) {
        return false;
    }
    free(decoder->buffer);
    decoder->buffer = buffer;
    decoder->capacity_bytes = decoder->message_bytes;
    return true;
}

enum status frame_decoder_next(struct frame_decoder *decoder, const uint8_t **bytes, size_t *size,
                               const uint8_t **message, size_t *message_bytes)
{
    if (decoder->failed) {
        return STATUS_PROTOCOL;
    }
    if (decoder->header_received_bytes < FRAME_HEADER_BYTES) {
        enum status status = frame_take_header(decoder, bytes, size);
        if (status != STATUS_OK) {
            return status;
        }
    }
    assert(decoder->received_bytes < decoder->message_bytes);
    if (*size == 0) {
        return STATUS_IN_PROGRESS;
    }
    if (decoder->received_bytes == 0 && *size >= decoder->message_bytes) {
        *message = *bytes;
        *message_bytes = decoder->message_bytes;
        *bytes += decoder->message_bytes;
        *size -= decoder->message_bytes;
        decoder->header_received_bytes = 0;
        return STATUS_OK;
    }
    if (decoder->received_bytes == 0 && !frame_reserve(decoder)) {
        return STATUS_NO_MEMORY;
    }
    size_t taken_bytes = frame_min_size(decoder->message_bytes - decoder->received_bytes, *size);
    memcpy(decoder->buffer + decoder->received_bytes, *bytes, taken_bytes);
    decoder->received_bytes += taken_bytes;
    *bytes += taken_bytes;
    *size -= taken_bytes;
    if (decoder->received_bytes < decoder->message_bytes) {
        return STATUS_IN_PROGRESS;
    }
    *message = decoder->buffer;
    *message_bytes = decoder->message_bytes;
    decoder->header_received_bytes = 0;
    return STATUS_OK;
}

bool frame_decoder_at_boundary(const struct frame_decoder *decoder)
{
    return decoder->header_received_bytes == 0;
}

void frame_decoder_free(struct frame_decoder *decoder)
{
    free(decoder->buffer);
    *decoder = (struct frame_decoder){0};
}
