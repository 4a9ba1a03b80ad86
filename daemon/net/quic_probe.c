#include <assert.h>
#include <string.h>

#include "daemon/base/hash.h"
#include "daemon/net/quic_internal.h"
#include "proto/little_endian.h"

/*
 * Asks whether a commd listens at a peer's address, without a handshake and without state. The question is a
 * long-header packet of a version that is reserved for this (RFC 9000, 6.3 and 15). Its connection IDs are a
 * number that only this endpoint can make. A server answers with a Version Negotiation packet that repeats
 * them (17.2.1).
 */

#define PROBE_VERSION 0x0a1a2a3au
#define PROBE_ID_BYTES 8u
#define PROBE_LONG_HEADER 0xc0u

bool quic_probe_is_reserved(uint32_t version)
{
    return (version & 0x0f0f0f0fu) == 0x0a0a0a0au;
}

static void probe_id(const struct quic_endpoint *endpoint, uint32_t index, uint8_t out[PROBE_ID_BYTES])
{
    put_u64_le(out, hash_bytes(endpoint->probe_secret, &index, sizeof index));
}

bool quic_probe(struct net *net, uint32_t index)
{
    struct quic_endpoint *endpoint = quic_endpoint_of(net);
    const struct quic_peer *peer = quic_peer_of(endpoint, index);
    assert(peer != NULL);
    uint8_t packet[NGTCP2_MAX_UDP_PAYLOAD_SIZE] = {PROBE_LONG_HEADER, PROBE_VERSION >> 24,
                                                   PROBE_VERSION >> 16 & 0xff, PROBE_VERSION >> 8 & 0xff,
                                                   PROBE_VERSION & 0xff};
    uint8_t *at = packet + 5;
    if (!peer->has_address || peer->removed) {
        return false;
    }
    for (unsigned i = 0; i < 2; i++) { /* the destination's connection ID, and the source's */
        *at++ = PROBE_ID_BYTES;
        probe_id(endpoint, index, at);
        at += PROBE_ID_BYTES;
    }
    quic_write_single(endpoint, &endpoint->socket.local, &peer->address, packet, sizeof packet);
    return true;
}

bool quic_probe_answered(struct quic_endpoint *endpoint, const struct quic_datagram *datagram,
                         const ngtcp2_version_cid *ids)
{
    const struct net_peer_handler *handler = &endpoint->base.peer_handler;
    const struct quic_peer *peer = quic_peer_at(endpoint, datagram->remote);
    uint8_t id[PROBE_ID_BYTES];
    if (peer == NULL || ids->dcidlen != sizeof id || ids->scidlen != sizeof id) {
        return false;
    }
    probe_id(endpoint, peer->index, id);
    if (memcmp(ids->dcid, id, sizeof id) != 0 || memcmp(ids->scid, id, sizeof id) != 0) {
        return false;
    }
    if (handler->peer_answers != NULL) {
        handler->peer_answers(handler->context, peer->index, endpoint->now_ns);
    }
    return true;
}
