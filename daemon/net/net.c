#include "daemon/net/net.h"

void net_set_peer_handler(struct net *net, const struct net_peer_handler *handler)
{
    if (net != NULL) {
        net->peer_handler = *handler;
    }
}

void net_set_stream_handler(struct net *net, enum net_stream_kind kind,
                            const struct net_stream_handler *handler)
{
    if (net != NULL) {
        net->stream_handlers[kind] = *handler;
    }
}

void net_free(struct net *net)
{
    if (net != NULL) {
        net->operations->free(net);
    }
}

enum status net_add_peer(struct net *net, const char *name, const char *address, uint32_t *peer,
                         struct error *error)
{
    if (net == NULL) {
        return error_set(error, STATUS_UNREACHABLE, "node %s: this node has no network", name);
    }
    return net->operations->add_peer(net, name, address, peer, error);
}

void net_remove_peer(struct net *net, uint32_t peer, const struct error *cause)
{
    net->operations->remove_peer(net, peer, cause);
}

enum status net_move_peer(struct net *net, uint32_t peer, const char *address, struct error *error)
{
    return net->operations->move_peer(net, peer, address, error);
}

enum status net_connect(struct net *net, uint32_t peer, struct error *error)
{
    return net->operations->connect(net, peer, error);
}

void net_disconnect(struct net *net, uint32_t peer, const struct error *cause)
{
    net->operations->disconnect(net, peer, cause);
}

void net_keep_alive(struct net *net, uint32_t peer, bool keep)
{
    if (net->operations->keep_alive != NULL) {
        net->operations->keep_alive(net, peer, keep);
    }
}

enum status net_stream_open(struct net *net, uint32_t peer, enum net_stream_kind kind,
                            struct net_stream **out, struct error *error)
{
    return net->operations->stream_open(net, peer, kind, out, error);
}

enum status net_stream_send(struct net_stream *stream, const void *header, size_t header_bytes,
                            const void *payload, size_t payload_bytes, net_sent_function *sent, void *context)
{
    return stream->net->operations->stream_send(stream, header, header_bytes, payload, payload_bytes, sent,
                                                context);
}

void net_stream_finish(struct net_stream *stream)
{
    stream->net->operations->stream_finish(stream);
}

void net_stream_reset(struct net_stream *stream)
{
    stream->net->operations->stream_reset(stream);
}

uint32_t net_stream_queued(const struct net_stream *stream)
{
    return stream->net->operations->stream_queued(stream);
}

void net_stream_expect(struct net_stream *stream, uint64_t size)
{
    stream->net->operations->stream_expect(stream, size);
}

void net_stream_resume(struct net_stream *stream)
{
    stream->net->operations->stream_resume(stream);
}

void net_peer_statistics(const struct net *net, uint32_t peer, struct net_peer_statistics *out)
{
    net->operations->peer_statistics(net, peer, out);
}

void net_statistics(const struct net *net, struct net_statistics *out)
{
    *out = (struct net_statistics){0};
    if (net != NULL) {
        net->operations->statistics(net, out);
    }
}
