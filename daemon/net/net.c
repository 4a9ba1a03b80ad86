#include "daemon/net/net.h"

#include "daemon/base/array.h"
#include "daemon/net/bulk.h"
#include "daemon/net/stream_queue.h"

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

void net_set_clock(struct net *net, uint64_t (*clock)(void))
{
    if (net != NULL) {
        net->spending.clock = clock;
    }
}

void net_set_parking(struct net *net, struct stream_parking *parking)
{
    if (net != NULL) {
        net->parking = parking;
    }
}

void net_set_farewell(struct net *net, const char *text)
{
    if (net != NULL) {
        net->farewell = text;
    }
}

void net_free(struct net *net)
{
    if (net != NULL) {
        struct net_users_streams **users_streams = net->users_streams;
        uint32_t users_peers = net->users_peers;
        net_bulk_free(net);
        net->operations->free(net);
        for (uint32_t i = 0; i < users_peers; i++) {
            free(users_streams[i]);
        }
        free(users_streams);
    }
}

enum status net_add_peer(struct net *net, const char *name, const char *address, uint32_t *peer,
                         struct error *error)
{
    if (net == NULL) {
        return error_set(error, STATUS_UNREACHABLE, "node %s: this node has no network", name);
    }
    *peer = NET_PEER_ANY;
    return net->operations->add_peer(net, name, address, peer, error);
}

enum status net_add_peer_at(struct net *net, const char *name, const char *address, uint32_t peer,
                            struct error *error)
{
    uint32_t got = peer;
    if (peer >= NET_PEERS_MAX) {
        return error_set(error, STATUS_LIMIT, "node %s: no more than %d nodes", name, NET_PEERS_MAX);
    }
    enum status status = net->operations->add_peer(net, name, address, &got, error);
    return status == STATUS_OK && got != peer
               ? error_set(error, STATUS_INTERNAL, "the network calls node %s peer %u, not %u", name, got,
                           peer)
               : status;
}

void net_remove_peer(struct net *net, uint32_t peer, const struct error *cause)
{
    net->operations->remove_peer(net, peer, cause);
}

enum status net_move_peer(struct net *net, uint32_t peer, const char *address, struct error *error)
{
    return net->operations->move_peer(net, peer, address, error);
}

void net_set_spare(struct net *net, uint32_t peer, const char *address)
{
    if (net != NULL && net->operations->set_spare != NULL) {
        net->operations->set_spare(net, peer, address);
    }
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

bool net_probe(struct net *net, uint32_t peer)
{
    return net->operations->probe != NULL && net->operations->probe(net, peer);
}

enum status net_stream_open(struct net *net, uint32_t peer, enum net_stream_kind kind,
                            struct net_stream **out, struct error *error)
{
    return net->operations->stream_open(net, peer, kind, out, error);
}

/* Returns null when out of memory. */
static struct net_users_streams *users_streams_of(struct net *net, uint32_t peer)
{
    /* The peer's index is less than NET_PEERS_MAX. */
    struct net_users_streams **all =
        array_reserve(net->users_streams, &net->users_peers, sizeof *all, peer + 1);
    if (all == NULL) {
        return NULL;
    }
    net->users_streams = all;
    if (all[peer] == NULL) {
        all[peer] = calloc(1, sizeof(struct net_users_streams));
    }
    return all[peer];
}

typedef enum status open_function(struct net *net, uint32_t peer, enum net_stream_kind kind,
                                  struct net_stream **out, struct error *error);

/* Opens a stream within the user's share. */
static enum status open_for(open_function *open, struct net *net, uint32_t peer, enum net_stream_kind kind,
                            uint32_t uid, struct budget_account *account, struct net_stream **out,
                            struct error *error)
{
    uint32_t line = fair_line_of(uid);
    struct net_users_streams *users = users_streams_of(net, peer);
    if (users == NULL) {
        return error_set(error, STATUS_NO_MEMORY, "no memory for a stream");
    }
    uint32_t free_count = users->count < NET_STREAMS_MAX ? NET_STREAMS_MAX - users->count : 0;
    if (users->of_line[line] >= NET_STREAMS_SHARE * free_count) {
        return error_set(
            error, STATUS_LIMIT,
            "user %u has %u streams open on the connection between the two nodes, all users together "
            "%u of its %u, and the rest is kept for others. End communicators that are not needed",
            uid, users->of_line[line], users->count, NET_STREAMS_MAX);
    }
    enum status status = open(net, peer, kind, out, error);
    if (status == STATUS_OK) {
        (*out)->users_line = line + 1;
        net_stream_charge(*out, account);
        users->count++;
        users->of_line[line]++;
    }
    return status;
}

enum status net_stream_open_for(struct net *net, uint32_t peer, enum net_stream_kind kind, uint32_t uid,
                                struct budget_account *account, struct net_stream **out, struct error *error)
{
    return open_for(net_stream_open, net, peer, kind, uid, account, out, error);
}

enum status net_stream_open_bulk(struct net *net, uint32_t peer, enum net_stream_kind kind, uint32_t uid,
                                 struct budget_account *account, struct net_stream **out, struct error *error)
{
    if (net->bulk == NULL) {
        return error_set(error, STATUS_UNREACHABLE, "this node has no bulk links");
    }
    return open_for(net_bulk_open, net, peer, kind, uid, account, out, error);
}

void net_stream_charge(struct net_stream *stream, struct budget_account *account)
{
    struct budget_account *before = stream->account;
    stream->account = account != NULL ? budget_ref(account) : NULL;
    budget_close(before);
}

static void users_stream_over(struct net_stream *stream)
{
    if (stream->users_line > 0) {
        struct net_users_streams *users = stream->net->users_streams[stream->peer];
        users->count--;
        users->of_line[stream->users_line - 1]--;
        stream->users_line = 0;
    }
}

static const struct net_stream_operations *operations_of(const struct net_stream *stream)
{
    return stream->on_bulk ? stream->net->bulk->streams : &stream->net->operations->streams;
}

enum status net_stream_send(struct net_stream *stream, const void *header, size_t header_bytes,
                            const void *payload, size_t payload_bytes, net_sent_function *sent, void *context)
{
    return operations_of(stream)->send(stream, header, header_bytes, payload, payload_bytes, sent, context);
}

void net_stream_finish(struct net_stream *stream)
{
    users_stream_over(stream);
    operations_of(stream)->finish(stream);
}

void net_stream_reset(struct net_stream *stream)
{
    users_stream_over(stream);
    operations_of(stream)->reset(stream);
}

uint32_t net_stream_queued(const struct net_stream *stream)
{
    return stream->queue->message_count;
}

size_t net_stream_copied(const struct net_stream *stream)
{
    return stream->queue->copied_bytes;
}

void net_stream_expect(struct net_stream *stream, uint64_t size)
{
    operations_of(stream)->expect(stream, size);
}

void net_stream_resume(struct net_stream *stream)
{
    operations_of(stream)->resume(stream);
}

void net_peer_statistics(const struct net *net, uint32_t peer, struct net_peer_statistics *out)
{
    struct net_bulk_statistics bulk;
    net->operations->peer_statistics(net, peer, out);
    net_bulk_statistics(net, peer, &bulk);
    out->sent_bytes += bulk.sent_bytes;
    out->received_bytes += bulk.received_bytes;
}

void net_statistics(const struct net *net, struct net_statistics *out)
{
    *out = (struct net_statistics){0};
    if (net != NULL) {
        net->operations->statistics(net, out);
    }
}
