#include <stdlib.h>
#include <string.h>

#include <utlist.h>

#include "daemon/net/tls_internal.h"

/*
 * The tunnel: frames travel on two streams of the net's connection, one each way. It serves to agree on a
 * session, and to end what had begun when a connection was lost. It copies, and nothing new is sent on it.
 */

static void chunk_sent(void *context, enum status result, uint64_t now_ns)
{
    struct tls_chunk *chunk = context;
    (void)result; /* the end of the stream is reported by peer_down */
    (void)now_ns;
    if (chunk->endpoint != NULL) {
        DL_DELETE(chunk->endpoint->chunks, chunk);
        chunk->peer->tunnel_bytes -= chunk->size;
        tls_work_flush(chunk->peer);
    }
    free(chunk);
}

static struct tls_chunk *chunk_new(struct tls_peer *peer, size_t room)
{
    struct tls_chunk *chunk = malloc(sizeof *chunk + room);
    if (chunk != NULL) {
        *chunk = (struct tls_chunk){.endpoint = peer->endpoint, .peer = peer};
    }
    return chunk;
}

/* Sends the chunk, which belongs to the tunnel then. Returns false if that is not possible. */
static bool chunk_send(struct tls_chunk *chunk)
{
    struct tls_peer *peer = chunk->peer;
    if (peer->tunnel == NULL ||
        net_stream_send(peer->tunnel, NULL, 0, chunk->bytes, chunk->size, chunk_sent, chunk) != STATUS_OK) {
        free(chunk);
        return false;
    }
    DL_APPEND(peer->endpoint->chunks, chunk);
    peer->tunnel_bytes += chunk->size;
    return true;
}

void tls_tunnel_write(struct tls_peer *peer)
{
    while (tls_peer_flows(peer) && peer->connection == NULL && peer->tunnel_bytes < TLS_TUNNEL_AHEAD_BYTES &&
           (peer->due != NULL || peer->reset_count > 0 || peer->ready != NULL)) {
        struct tls_chunk *chunk = chunk_new(peer, TLS_TUNNEL_CHUNK_BYTES);
        if (chunk == NULL) {
            tls_peer_fail(peer, STATUS_NO_MEMORY, "no memory for what a bulk link sends");
            return;
        }
        chunk->size = tls_compose(peer, chunk->bytes, TLS_TUNNEL_CHUNK_BYTES);
        if (chunk->size == 0) {
            free(chunk);
            return;
        }
        if (!chunk_send(chunk)) {
            tls_peer_give_up(peer);
        }
    }
}

bool tls_tunnel_greet(struct tls_peer *peer, uint8_t *bytes, size_t size)
{
    struct error error;
    struct tls_chunk *chunk = NULL;
    if (peer->tunnel == NULL && net_stream_open(peer->endpoint->base.net, peer->index, NET_STREAM_TUNNEL,
                                                &peer->tunnel, &error) != STATUS_OK) {
        peer->tunnel = NULL;
    }
    chunk = peer->tunnel != NULL && peer->tunnel_bytes < TLS_TUNNEL_MAX_BYTES ? chunk_new(peer, size) : NULL;
    if (chunk != NULL) {
        memcpy(chunk->bytes, bytes, size);
        chunk->size = size;
    }
    free(bytes);
    return chunk != NULL && chunk_send(chunk);
}

void tls_tunnel_close(struct tls_peer *peer)
{
    if (peer->tunnel != NULL) {
        net_stream_reset(peer->tunnel);
    }
    peer->tunnel = peer->tunnel_in = NULL;
}

/* --- Incoming --- */

static size_t tunnel_receive(void *context, struct net_stream *stream, const uint8_t *bytes, size_t size,
                             bool end, uint64_t now_ns)
{
    struct tls_endpoint *endpoint = context;
    struct tls_peer *peer = tls_peer_at(endpoint, stream->peer);
    bool outer = endpoint->in_event;
    (void)end;
    if (peer == NULL || !peer->is_up || (peer->tunnel_in != NULL && peer->tunnel_in != stream)) {
        net_stream_reset(stream); /* a correct peer has one tunnel */
        return size;
    }
    peer->tunnel_in = stream;
    net_stream_expect(stream, NET_STREAM_WINDOW_BYTES);
    endpoint->now_ns = now_ns;
    endpoint->in_event = true;
    if (!tls_reader_take(&peer->tunnel_reader, bytes, size)) {
        net_stream_reset(stream);
    }
    endpoint->in_event = outer;
    tls_wake(endpoint);
    return size;
}

static void tunnel_closed(void *context, struct net_stream *stream, const struct error *cause,
                          uint64_t now_ns)
{
    struct tls_peer *peer = tls_peer_at(context, stream->peer);
    (void)cause;
    (void)now_ns;
    if (peer != NULL && peer->tunnel_in == stream) {
        peer->tunnel_in = NULL;
        tls_reader_clear(&peer->tunnel_reader);
    }
}

void tls_tunnel_register(struct tls_endpoint *endpoint)
{
    struct net_stream_handler handler = {endpoint, tunnel_receive, tunnel_closed, NULL};
    net_set_stream_handler(endpoint->base.net, NET_STREAM_TUNNEL, &handler);
}

void tls_tunnel_unregister(struct tls_endpoint *endpoint)
{
    static const struct net_stream_handler nobody;
    struct tls_chunk *chunk;
    net_set_stream_handler(endpoint->base.net, NET_STREAM_TUNNEL, &nobody);
    DL_FOREACH(endpoint->chunks, chunk)
    {
        chunk->endpoint = NULL;
        chunk->peer = NULL;
    }
    endpoint->chunks = NULL;
}
