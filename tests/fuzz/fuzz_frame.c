#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "proto/frame.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(int truth)
{
    if (!truth) {
        abort();
    }
}

/* What the decoder makes of a stream: a hash over each message's length and bytes, and how the stream
 * ended. */
struct outcome {
    uint64_t messages_hash;
    size_t message_count;
    enum status end;
};

static void feed(struct frame_decoder *decoder, const uint8_t *bytes, size_t size, struct outcome *outcome)
{
    /* a block of its own, so that the sanitizers notice reads beyond its ends */
    uint8_t *piece = malloc(size > 0 ? size : 1);
    require(piece != NULL);
    memcpy(piece, bytes, size);
    const uint8_t *at = piece;
    size_t left = size;
    for (;;) {
        const uint8_t *message = NULL;
        size_t message_bytes = 0;
        outcome->end = frame_decoder_next(decoder, &at, &left, &message, &message_bytes);
        require(at == piece + (size - left));
        if (outcome->end != STATUS_OK) {
            require(outcome->end == STATUS_PROTOCOL || (outcome->end == STATUS_IN_PROGRESS && left == 0));
            break;
        }
        require(message_bytes >= 1 && message_bytes <= FRAME_MAX_BYTES);
        outcome->message_count++;
        outcome->messages_hash = (outcome->messages_hash ^ message_bytes) * 0x100000001b3u;
        for (size_t i = 0; i < message_bytes; i++) {
            outcome->messages_hash = (outcome->messages_hash ^ message[i]) * 0x100000001b3u;
        }
    }
    free(piece);
}

/*
 * The first byte chooses the size of the pieces in which the rest arrives. Whatever the pieces, the same
 * messages must come out, and the stream must end the same way.
 */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 1) {
        return 0;
    }
    size_t piece_bytes = (size_t)data[0] + 1;
    data++;
    size--;
    struct frame_decoder whole = {0};
    struct frame_decoder cut = {0};
    struct outcome outcome_whole = {.end = STATUS_IN_PROGRESS};
    struct outcome outcome_cut = {.end = STATUS_IN_PROGRESS};
    feed(&whole, data, size, &outcome_whole);
    for (size_t at = 0; at < size && outcome_cut.end == STATUS_IN_PROGRESS; at += piece_bytes) {
        size_t left = size - at;
        feed(&cut, data + at, piece_bytes < left ? piece_bytes : left, &outcome_cut);
    }
    require(outcome_whole.messages_hash == outcome_cut.messages_hash);
    require(outcome_whole.message_count == outcome_cut.message_count);
    require(outcome_whole.end == outcome_cut.end);
    require(frame_decoder_at_boundary(&whole) == frame_decoder_at_boundary(&cut));
    require(cut.capacity_bytes <= FRAME_MAX_BYTES);
    frame_decoder_free(&whole);
    frame_decoder_free(&cut);
    return 0;
}
