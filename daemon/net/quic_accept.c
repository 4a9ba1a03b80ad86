#include <openssl/rand.h>

#include "daemon/net/quic_internal.h"

/*
 * The shortest packet with a short header that may belong to a connection of ours and is not a stateless
 * reset itself.
 */
#define QUIC_SHORT_PACKET_MIN_BYTES (1u + QUIC_CID_BYTES + 4u + 16u)
#define QUIC_RESET_MIN_BYTES (NGTCP2_MIN_STATELESS_RESET_RANDLEN + NGTCP2_STATELESS_RESET_TOKENLEN)
#define QUIC_RESET_RANDOM_BYTES 24u
#define QUIC_LONG_HEADER 0x80u /* in the first byte */

static void quic_drop(struct quic_endpoint *endpoint, const struct quic_datagram *datagram, const char *what)
{
    uint64_t suppressed = 0;
    endpoint->statistics.dropped_datagrams++;
    if (log_limit_pass(&endpoint->garbage_limit, endpoint->now_ns, &suppressed)) {
        char text[QUIC_ADDRESS_TEXT_MAX_BYTES];
        log_info("network: dropped a datagram of %zu bytes from %s: %s (%llu dropped in all)", datagram->size,
                 quic_address_text(datagram->remote, text), what,
                 (unsigned long long)endpoint->statistics.dropped_datagrams);
    }
}

static void quic_reply(struct quic_endpoint *endpoint, const struct quic_datagram *datagram,
                       const uint8_t *bytes, ngtcp2_ssize size)
{
    if (size > 0) {
        quic_write_single(endpoint, datagram->local, datagram->remote, bytes, (size_t)size);
    }
}

/* RFC 9000, 6.1: answers only packets that a server of that version might have accepted. */
static void quic_negotiate_version(struct quic_endpoint *endpoint, const struct quic_datagram *datagram,
                                   const ngtcp2_version_cid *ids)
{
    static const uint32_t versions[] = {NGTCP2_PROTO_VER_V1};
    uint8_t packet[NGTCP2_MAX_UDP_PAYLOAD_SIZE];
    uint8_t random = 0;
    if (datagram->size < NGTCP2_MAX_UDP_PAYLOAD_SIZE ||
        !log_limit_pass(&endpoint->reset_limit, endpoint->now_ns, NULL)) {
        return;
    }
    (void)RAND_bytes(&random, 1);
    quic_reply(endpoint, datagram, packet,
               ngtcp2_pkt_write_version_negotiation(packet, sizeof packet, random, ids->scid, ids->scidlen,
                                                    ids->dcid, ids->dcidlen, versions, 1));
}

/*
 * RFC 9000, 10.3: tells the peer that the connection is gone, for instance after a restart. The packet is
 * smaller than the one it answers, so that two endpoints cannot answer each other for ever.
 */
static void quic_reset_stateless(struct quic_endpoint *endpoint, const struct quic_datagram *datagram,
                                 const ngtcp2_version_cid *ids)
{
    ngtcp2_cid cid;
    ngtcp2_stateless_reset_token token;
    uint8_t random[QUIC_RESET_RANDOM_BYTES];
    uint8_t packet[QUIC_RESET_RANDOM_BYTES + NGTCP2_STATELESS_RESET_TOKENLEN];
    if (datagram->size <= QUIC_RESET_MIN_BYTES ||
        !log_limit_pass(&endpoint->reset_limit, endpoint->now_ns, NULL)) {
        return;
    }
    size_t size = datagram->size - 1 < sizeof packet ? datagram->size - 1 : sizeof packet;
    ngtcp2_cid_init(&cid, ids->dcid, ids->dcidlen);
    if (RAND_bytes(random, sizeof random) != 1 ||
        ngtcp2_crypto_generate_stateless_reset_token(token.data, endpoint->reset_secret,
                                                     sizeof endpoint->reset_secret, &cid) != 0) {
        return;
    }
    quic_reply(endpoint, datagram, packet,
               ngtcp2_pkt_write_stateless_reset2(packet, size, &token, random,
                                                 size - NGTCP2_STATELESS_RESET_TOKENLEN));
}

/* RFC 9000, 8.1.2: a client that answers a Retry really has the address that it claims. */
static void quic_retry(struct quic_endpoint *endpoint, const struct quic_datagram *datagram,
                       const ngtcp2_pkt_hd *header)
{
    uint8_t token[NGTCP2_CRYPTO_MAX_RETRY_TOKENLEN2];
    uint8_t packet[NGTCP2_MAX_UDP_PAYLOAD_SIZE];
    ngtcp2_cid cid = {.datalen = QUIC_CID_BYTES};
    if (RAND_bytes(cid.data, QUIC_CID_BYTES) != 1) {
        return;
    }
    ngtcp2_ssize size = ngtcp2_crypto_generate_retry_token2(
        token, endpoint->retry_secret, sizeof endpoint->retry_secret, header->version,
        &datagram->remote->base, datagram->remote->size, &cid, &header->dcid, endpoint->now_ns);
    if (size > 0) {
        quic_reply(endpoint, datagram, packet,
                   ngtcp2_crypto_write_retry(packet, sizeof packet, header->version, &header->scid, &cid,
                                             &header->dcid, token, (size_t)size));
    }
}

static void quic_accept(struct quic_endpoint *endpoint, const struct quic_datagram *datagram)
{
    ngtcp2_pkt_hd header;
    if (ngtcp2_accept(&header, datagram->bytes, datagram->size) != 0 ||
        header.dcid.datalen < NGTCP2_MIN_INITIAL_DCIDLEN) {
        quic_drop(endpoint, datagram, "it belongs to no connection, and begins none");
        return;
    }
    ngtcp2_cid original;
    bool validated = false;
    if (header.tokenlen > 0 && header.token[0] == NGTCP2_CRYPTO_TOKEN_MAGIC_RETRY2) {
        validated = ngtcp2_crypto_verify_retry_token2(&original, header.token, header.tokenlen,
                                                      endpoint->retry_secret, sizeof endpoint->retry_secret,
                                                      header.version, &datagram->remote->base,
                                                      datagram->remote->size, &header.dcid,
                                                      QUIC_RETRY_TOKEN_TIMEOUT_NS, endpoint->now_ns) == 0;
        if (!validated) { /* a client accepts only one Retry, so a second would have no effect */
            quic_drop(endpoint, datagram, "its address validation token is invalid or has expired");
            return;
        }
    }
    /* An address that is not validated may be forged: nothing is kept for it. */
    const struct quic_contact *contact =
        validated ? quic_contact_of(quic_peer_at(endpoint, datagram->remote)) : NULL;
    switch (quic_admission_ask(&endpoint->admission, datagram->remote,
                               contact == NULL ? NULL : &contact->slots, validated)) {
    case QUIC_VERDICT_ADMIT:
        break;
    case QUIC_VERDICT_RETRY:
        quic_retry(endpoint, datagram, &header);
        return;
    case QUIC_VERDICT_DROP_ALL:
        endpoint->statistics.refused_handshakes++;
        quic_drop(endpoint, datagram, "too many handshakes are under way");
        return;
    case QUIC_VERDICT_DROP_ADDRESS:
        endpoint->statistics.refused_handshakes++;
        quic_drop(endpoint, datagram, "too many handshakes from its address are under way");
        return;
    }
    struct quic_connection *connection =
        quic_connection_accept(endpoint, &header, validated ? &original : NULL, datagram);
    if (connection == NULL) {
        quic_drop(endpoint, datagram, "no memory for another connection");
        return;
    }
    quic_session_asked(quic_peer_at(endpoint, datagram->remote), endpoint->now_ns);
    /* Only part of the ClientHello has arrived. Nothing is kept for an address that is not validated. */
    if (quic_connection_read(connection, datagram) == NGTCP2_ERR_RETRY) {
        quic_retry(endpoint, datagram, &header);
    }
}

void quic_datagram_arrived(void *context, const struct quic_datagram *datagram)
{
    struct quic_endpoint *endpoint = context;
    if (!quic_inbox_handle(&endpoint->inbox, datagram)) {
        struct quic_contact *contact = quic_contact_of(quic_peer_at(endpoint, datagram->remote));
        quic_inbox_keep(&endpoint->inbox, contact != NULL ? &contact->line : &endpoint->strangers, datagram);
    }
}

void quic_datagram_received(void *context, const struct quic_datagram *datagram)
{
    struct quic_endpoint *endpoint = context;
    ngtcp2_version_cid ids;
    endpoint->statistics.received_datagrams++;
    if (datagram->size == 0) {
        quic_drop(endpoint, datagram, "empty");
        return;
    }
    int decoded = ngtcp2_pkt_decode_version_cid(&ids, datagram->bytes, datagram->size, QUIC_CID_BYTES);
    if (decoded == NGTCP2_ERR_VERSION_NEGOTIATION) {
        quic_negotiate_version(endpoint, datagram, &ids);
        if (quic_probe_is_reserved(ids.version)) {
            return; /* a question: quic_probe.c */
        }
        quic_drop(endpoint, datagram, "this node does not speak its QUIC version");
        return;
    }
    if (decoded != 0) {
        quic_drop(endpoint, datagram, "not QUIC");
        return;
    }
    struct quic_connection *connection = quic_connection_find(endpoint, false, ids.dcid, ids.dcidlen);
    if (connection == NULL && ids.version == 0 && datagram->size >= QUIC_RESET_MIN_BYTES) {
        /* A stateless reset differs from a packet of no connection only in its last bytes. */
        connection = quic_connection_find(endpoint, true,
                                          datagram->bytes + datagram->size - NGTCP2_STATELESS_RESET_TOKENLEN,
                                          NGTCP2_STATELESS_RESET_TOKENLEN);
    }
    if (connection != NULL) {
        (void)quic_connection_read(connection, datagram);
    } else if (ids.version != 0) {
        quic_accept(endpoint, datagram);
    } else if ((datagram->bytes[0] & QUIC_LONG_HEADER) == 0 ||
               !quic_probe_answered(endpoint, datagram, &ids)) {
        quic_drop(endpoint, datagram, "it belongs to no connection");
        if (datagram->size >= QUIC_SHORT_PACKET_MIN_BYTES) {
            quic_reset_stateless(endpoint, datagram, &ids);
        }
    }
}
