#ifndef TESTS_FUZZ_QUIC_INITIAL_H
#define TESTS_FUZZ_QUIC_INITIAL_H

#include <stddef.h>
#include <stdint.h>

/*
 * Makes Initial packets of QUIC version 1 that a server can decrypt. Their keys follow from the destination
 * connection ID, so anybody can make them (RFC 9001, 5.2). The caller chooses what is in them.
 */
#define QUIC_INITIAL_ID_BYTES 20u
#define QUIC_INITIAL_TOKEN_MAX_BYTES 256u
#define QUIC_INITIAL_PAYLOAD_MAX_BYTES 1100u
#define QUIC_INITIAL_DATAGRAM_MAX_BYTES 1500u

struct quic_initial {
    uint8_t destination[QUIC_INITIAL_ID_BYTES], source[QUIC_INITIAL_ID_BYTES];
    uint8_t destination_bytes, source_bytes;
    uint8_t token[QUIC_INITIAL_TOKEN_MAX_BYTES];
    size_t token_bytes;
    uint8_t key_id[QUIC_INITIAL_ID_BYTES]; /* the keys are derived from this: the first destination */
    uint8_t key_id_bytes;
    uint32_t number;
};

/* Writes a datagram with one packet, padded to at least 1200 bytes. Returns its size, or 0 if something
 * does not fit. */
size_t quic_initial_make(const struct quic_initial *initial, const uint8_t *payload, size_t payload_bytes,
                         uint8_t out[QUIC_INITIAL_DATAGRAM_MAX_BYTES]);

#endif
