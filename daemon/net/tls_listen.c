#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "daemon/net/quic.h"
#include "daemon/net/tls_internal.h"

#define ACCEPTS_PER_TURN 16

/* Whether a connection from that host may be of a node whose link lacks one. */
static bool is_expected(const struct tls_endpoint *endpoint, const struct quic_address *from)
{
    struct quic_address_key theirs, key;
    quic_address_key(from, &theirs);
    const struct tls_peer *peer;
    for (uint32_t at = 0; (peer = sparse_next(&endpoint->peers, &at)) != NULL;) {
        struct quic_address remote;
        if (peer->leads || peer->epoch == 0 || !peer->is_up || endpoint->now_ns < peer->held_ns ||
            !net_quic_remote(endpoint->base.net, peer->index, &remote)) {
            continue;
        }
        quic_address_key(&remote, &key);
        if (memcmp(key.bytes, theirs.bytes, sizeof key.bytes) == 0) {
            return true;
        }
    }
    return false;
}

static void accept_ready(void *context, unsigned events, uint64_t now_ns)
{
    struct tls_endpoint *endpoint = context;
    (void)events;
    endpoint->now_ns = now_ns;
    for (int i = 0; i < ACCEPTS_PER_TURN; i++) {
        struct quic_address from;
        int fd = tls_socket_accept(endpoint->listener, &from);
        if (fd < 0) {
            break;
        }
        if (endpoint->handshakes >= TLS_HANDSHAKES_MAX || !is_expected(endpoint, &from)) {
            (void)close(fd);
        } else {
            (void)tls_connection_new(endpoint, fd, NULL);
        }
    }
    tls_arm(endpoint);
}

void tls_listen(struct tls_endpoint *endpoint)
{
    struct quic_address local;
    char text[QUIC_ADDRESS_TEXT_MAX_BYTES];
    struct error error;
    net_quic_local(endpoint->base.net, &local);
    endpoint->listener = tls_socket_listen(&local);
    if (endpoint->listener < 0) {
        log_warning(
            "network: TCP socket for bulk links at %s: %s; nodes whose names sort before ours use QUIC",
            quic_address_text(&local, text), strerror(errno));
        return;
    }
    if (loop_watch_new(endpoint->loop, endpoint->listener, LOOP_READ, accept_ready, endpoint,
                       &endpoint->listen_watch, &error) != STATUS_OK) {
        log_warning("network: bulk links: %s", error.text);
        tls_listen_close(endpoint);
    }
}

void tls_listen_close(struct tls_endpoint *endpoint)
{
    loop_watch_free(endpoint->listen_watch);
    endpoint->listen_watch = NULL;
    if (endpoint->listener >= 0) {
        (void)close(endpoint->listener);
        endpoint->listener = -1;
    }
}

void tls_dial(struct tls_peer *peer, uint64_t now_ns)
{
    struct tls_endpoint *endpoint = peer->endpoint;
    struct quic_address local, remote;
    uint64_t due_ns = peer->dial.next_ns > peer->held_ns ? peer->dial.next_ns : peer->held_ns;
    if (!peer->leads || !tls_peer_flows(peer) || peer->connection != NULL || peer->attempt != NULL ||
        !net_quic_remote(endpoint->base.net, peer->index, &remote)) {
        return;
    }
    if (now_ns < due_ns) {
        endpoint->redial_ns = time_min(endpoint->redial_ns, due_ns);
        return;
    }
    net_quic_local(endpoint->base.net, &local);
    int fd = tls_socket_dial(&local, &remote);
    endpoint->now_ns = now_ns;
    peer->attempt = fd >= 0 ? tls_connection_new(endpoint, fd, peer) : NULL;
    if (peer->attempt == NULL) {
        backoff_failed(&peer->dial, TLS_DIAL_MIN_NS, TLS_DIAL_MAX_NS, &endpoint->random, now_ns);
    }
    tls_arm(endpoint);
}
