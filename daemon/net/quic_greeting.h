#ifndef DAEMON_NET_QUIC_GREETING_H
#define DAEMON_NET_QUIC_GREETING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/base/error.h"
#include "daemon/net/quic_numbers.h"

/*
 * The first stream of every connection, in each direction: what the sender remembers of earlier connections
 * between the two nodes. If both remember the same session, its streams go on; otherwise a new session begins
 * (quic_session.c). Wire format, little-endian:
 *
 *   u32 format (1), u32 incoming count, u32 hole count, u32 outgoing count,
 *   u64 session of the sender, u64 session of the receiver as the sender remembers it (0: none),
 *   u64 the end of the incoming streams' numbers,
 *   holes: u64 first, u64 end each,
 *   incoming streams that are not over: u64 number, u64 bytes received each, ascending by number,
 *   outgoing streams that are not over: u64 number each, ascending.
 */
#define QUIC_GREETING_STOPPED UINT64_MAX /* bytes received: the receiver wants no more of the stream */
#define QUIC_GREETING_STREAMS_MAX 65536u
#define QUIC_GREETING_MAX_BYTES (2u << 20)
#define QUIC_GREETING_IDS_END 32u /* behind the two sessions */

struct quic_greeting_stream {
    uint64_t number;
    uint64_t received; /* bytes of the stream that the receiver has, or QUIC_GREETING_STOPPED */
};

struct quic_greeting {
    uint64_t own_id;  /* of the session, chosen by the sender; never 0 */
    uint64_t peer_id; /* chosen by the receiver; 0: the sender remembers none */
    struct quic_numbers seen;
    struct quic_greeting_stream *incoming;
    uint32_t incoming_count;
    uint64_t *outgoing;
    uint32_t outgoing_count;
};

/* Returns the size of the encoded greeting. */
size_t quic_greeting_size(const struct quic_greeting *greeting);
/* Writes quic_greeting_size bytes. */
void quic_greeting_encode(const struct quic_greeting *greeting, uint8_t *out);
/* Reads what a peer sent. PROTOCOL with what is wrong, or NO_MEMORY; then *out is empty. */
enum status quic_greeting_decode(const uint8_t *bytes, size_t size, struct quic_greeting *out,
                                 struct error *error) COMM_MUST_USE;
void quic_greeting_clear(struct quic_greeting *greeting);

/* Returns the entry of an incoming stream, or null. */
const struct quic_greeting_stream *quic_greeting_find(const struct quic_greeting *greeting, uint64_t number);
/* Returns whether the sender still has that outgoing stream. */
bool quic_greeting_sends(const struct quic_greeting *greeting, uint64_t number);

#endif
