#include "daemon/net/quic_greeting.h"

#include <stdlib.h>

#include "proto/little_endian.h"

#define FORMAT 1u
#define HEAD_BYTES 40u
#define PAIR_BYTES ((size_t)16)
#define NUMBER_BYTES 8u

size_t quic_greeting_size(const struct quic_greeting *greeting)
{
    return HEAD_BYTES + PAIR_BYTES * (size_t)greeting->seen.hole_count +
           PAIR_BYTES * (size_t)greeting->incoming_count + NUMBER_BYTES * (size_t)greeting->outgoing_count;
}

static uint8_t *put_pair(uint8_t *out, uint64_t first, uint64_t second)
{
    put_u64_le(out, first);
    put_u64_le(out + NUMBER_BYTES, second);
    return out + PAIR_BYTES;
}

void quic_greeting_encode(const struct quic_greeting *greeting, uint8_t *out)
{
    put_u32_le(out, FORMAT);
    put_u32_le(out + 4, greeting->incoming_count);
    put_u32_le(out + 8, greeting->seen.hole_count);
    put_u32_le(out + 12, greeting->outgoing_count);
    out = put_pair(out + 16, greeting->own_id, greeting->peer_id);
    put_u64_le(out, greeting->seen.end);
    out += NUMBER_BYTES;
    for (uint32_t i = 0; i < greeting->seen.hole_count; i++) {
        out = put_pair(out, greeting->seen.holes[i].first, greeting->seen.holes[i].end);
    }
    for (uint32_t i = 0; i < greeting->incoming_count; i++) {
        out = put_pair(out, greeting->incoming[i].number, greeting->incoming[i].received);
    }
    for (uint32_t i = 0; i < greeting->outgoing_count; i++) {
        put_u64_le(out, greeting->outgoing[i]);
        out += NUMBER_BYTES;
    }
}

/* --- Decoding --- */

static bool counts_are_right(const struct quic_greeting *greeting, size_t size)
{
    return greeting->incoming_count <= QUIC_GREETING_STREAMS_MAX &&
           greeting->outgoing_count <= QUIC_GREETING_STREAMS_MAX &&
           greeting->seen.hole_count <= QUIC_HOLES_MAX && quic_greeting_size(greeting) == size;
}

static bool reserve(struct quic_greeting *greeting)
{
    greeting->seen.hole_capacity = greeting->seen.hole_count;
    greeting->seen.holes = calloc((size_t)greeting->seen.hole_count + 1, sizeof *greeting->seen.holes);
    greeting->incoming = calloc((size_t)greeting->incoming_count + 1, sizeof *greeting->incoming);
    greeting->outgoing = calloc((size_t)greeting->outgoing_count + 1, sizeof *greeting->outgoing);
    return greeting->seen.holes != NULL && greeting->incoming != NULL && greeting->outgoing != NULL;
}

/* Returns what is wrong with the holes, or null. */
static const char *read_holes(struct quic_numbers *seen, const uint8_t *bytes)
{
    uint64_t least = 0;
    for (uint32_t i = 0; i < seen->hole_count; i++) {
        struct quic_hole hole = {get_u64_le(bytes + i * PAIR_BYTES),
                                 get_u64_le(bytes + i * PAIR_BYTES + NUMBER_BYTES)};
        if (hole.first < least || hole.end <= hole.first || hole.end >= seen->end) {
            return "numbers of streams out of order";
        }
        seen->holes[i] = hole;
        least = hole.end + 1;
    }
    return NULL;
}

static const char *read_streams(struct quic_greeting *greeting, const uint8_t *bytes)
{
    for (uint32_t i = 0; i < greeting->incoming_count; i++, bytes += PAIR_BYTES) {
        struct quic_greeting_stream stream = {get_u64_le(bytes), get_u64_le(bytes + NUMBER_BYTES)};
        if (i > 0 && stream.number <= greeting->incoming[i - 1].number) {
            return "incoming streams out of order";
        }
        if (!quic_numbers_have(&greeting->seen, stream.number)) {
            return "an incoming stream that has not come";
        }
        greeting->incoming[i] = stream;
    }
    for (uint32_t i = 0; i < greeting->outgoing_count; i++, bytes += NUMBER_BYTES) {
        greeting->outgoing[i] = get_u64_le(bytes);
        if (i > 0 && greeting->outgoing[i] <= greeting->outgoing[i - 1]) {
            return "outgoing streams out of order";
        }
    }
    return NULL;
}

enum status quic_greeting_decode(const uint8_t *bytes, size_t size, struct quic_greeting *out,
                                 struct error *error)
{
    *out = (struct quic_greeting){0};
    if (size < HEAD_BYTES || get_u32_le(bytes) != FORMAT) {
        return error_set(error, STATUS_PROTOCOL, "a greeting of %zu bytes, or of another format", size);
    }
    struct quic_greeting greeting = {.incoming_count = get_u32_le(bytes + 4),
                                     .seen.hole_count = get_u32_le(bytes + 8),
                                     .outgoing_count = get_u32_le(bytes + 12),
                                     .own_id = get_u64_le(bytes + 16),
                                     .peer_id = get_u64_le(bytes + 24),
                                     .seen.end = get_u64_le(bytes + 32)};
    if (!counts_are_right(&greeting, size) || greeting.own_id == 0) {
        return error_set(error, STATUS_PROTOCOL, "a greeting of %zu bytes with wrong counts", size);
    }
    if (!reserve(&greeting)) {
        quic_greeting_clear(&greeting);
        return error_set(error, STATUS_NO_MEMORY, "no memory for a greeting of %zu bytes", size);
    }
    const char *wrong = read_holes(&greeting.seen, bytes + HEAD_BYTES);
    if (wrong == NULL) {
        wrong = read_streams(&greeting, bytes + HEAD_BYTES + PAIR_BYTES * (size_t)greeting.seen.hole_count);
    }
    if (wrong != NULL) {
        quic_greeting_clear(&greeting);
        return error_set(error, STATUS_PROTOCOL, "a greeting with %s", wrong);
    }
    *out = greeting;
    return STATUS_OK;
}

void quic_greeting_clear(struct quic_greeting *greeting)
{
    quic_numbers_clear(&greeting->seen);
    free(greeting->incoming);
    free(greeting->outgoing);
    *greeting = (struct quic_greeting){0};
}

/* --- Looking up --- */

static int compare_stream(const void *key, const void *entry)
{
    uint64_t number = *(const uint64_t *)key, its = ((const struct quic_greeting_stream *)entry)->number;
    return number < its ? -1 : number > its;
}

static int compare_number(const void *key, const void *entry)
{
    uint64_t number = *(const uint64_t *)key, its = *(const uint64_t *)entry;
    return number < its ? -1 : number > its;
}

const struct quic_greeting_stream *quic_greeting_find(const struct quic_greeting *greeting, uint64_t number)
{
    return greeting->incoming_count == 0 ? NULL
                                         : bsearch(&number, greeting->incoming, greeting->incoming_count,
                                                   sizeof *greeting->incoming, compare_stream);
}

bool quic_greeting_sends(const struct quic_greeting *greeting, uint64_t number)
{
    return greeting->outgoing_count > 0 && bsearch(&number, greeting->outgoing, greeting->outgoing_count,
                                                   sizeof *greeting->outgoing, compare_number) != NULL;
}
