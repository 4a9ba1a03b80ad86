#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <utlist.h>

#include "daemon/base/hash.h"
#include "daemon/net/quic.h"
#include "daemon/net/quic_tls.h"
#include "daemon/net/tls_internal.h"

/* --- Peers --- */

struct tls_peer *tls_peer_at(const struct tls_endpoint *endpoint, uint32_t index)
{
    return sparse_at(&endpoint->peers, index);
}

/* Returns the peer, which is made if it is missing. Null without memory. */
static struct tls_peer *peer_place(struct tls_endpoint *endpoint, uint32_t index)
{
    struct tls_peer *peer = tls_peer_at(endpoint, index);
    if (peer != NULL) {
        return peer;
    }
    peer = calloc(1, sizeof *peer);
    if (peer == NULL || !sparse_set(&endpoint->peers, index, peer)) {
        free(peer);
        return NULL;
    }
    const char *name = net_quic_peer_name(endpoint->base.net, index);
    (void)strncpy(peer->name, name, NODE_NAME_MAX_BYTES);
    peer->endpoint = endpoint;
    peer->index = index;
    peer->leads = strcmp(endpoint->node_name, name) < 0;
    peer->tunnel_reader.peer = peer;
    peer->epochs = (struct log_limit){.burst = TLS_EPOCHS_MAX, .interval_ns = TLS_EPOCH_NS};
    peer->choice.processors = endpoint->processors;
    peer->told_way = peer->asked_way = TLS_WAY_NONE;
    return peer;
}

/* The peer of a net; null if it has no bulk links, or was never connected. */
static struct tls_peer *peer_of(const struct net *net, uint32_t index)
{
    return net != NULL && net->bulk != NULL ? tls_peer_at(tls_endpoint_of(net->bulk), index) : NULL;
}

void net_bulk_peer_up(struct net *net, uint32_t index)
{
    struct tls_peer *peer = net->bulk != NULL ? peer_place(tls_endpoint_of(net->bulk), index) : NULL;
    if (peer != NULL) {
        peer->is_up = true;
    }
}

void net_bulk_peer_down(struct net *net, uint32_t index, const struct error *cause, uint64_t now_ns)
{
    struct tls_peer *peer = peer_of(net, index);
    if (peer != NULL && peer->is_up) {
        struct tls_endpoint *endpoint = peer->endpoint;
        bool outer = endpoint->in_event;
        endpoint->in_event = true;
        endpoint->now_ns = now_ns;
        tls_peer_down(peer, cause, false, now_ns);
        endpoint->in_event = outer;
        tls_wake(endpoint);
    }
}

void net_bulk_allow(struct net *net, uint32_t index, bool allowed)
{
    bool has_links = net != NULL && net->bulk != NULL;
    struct tls_peer *peer = has_links ? peer_place(tls_endpoint_of(net->bulk), index) : NULL;
    if (peer != NULL) {
        peer->allowed = allowed;
    }
}

/* --- Choosing --- */

static uint64_t cpu_now_ns(void)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (uint64_t)now.tv_sec * TIME_S + (uint64_t)now.tv_nsec;
}

/*
 * Which way bulk data take. The node that dials decides for both, so that its measurements are of one way
 * alone: data that come by the other one would cost this thread time as well. If it has no bulk data, this
 * node decides.
 */
static unsigned way_now(struct tls_peer *peer, uint64_t now_ns)
{
    bool is_fixed = peer->endpoint->mode == NET_BULK_TLS;
    if (!peer->leads && !is_fixed && peer->asked_way != TLS_WAY_NONE) {
        return peer->asked_way;
    }
    unsigned way = is_fixed ? 1 : tls_choice_way(&peer->choice, now_ns);
    if (peer->leads && way != peer->told_way) {
        peer->told_way = way;
        peer->way_due = true;
        tls_work_flush(peer);
    }
    return way;
}

/* Whether the peer has a link. If it may have one, and has none, one is made. */
static bool is_linked(struct tls_peer *peer, uint64_t now_ns)
{
    if (peer == NULL || !peer->allowed || !peer->is_up || peer->failed) {
        return false;
    }
    tls_peer_begin(peer);
    if (!tls_peer_is_connected(peer)) {
        tls_dial(peer, now_ns);
        return false;
    }
    return true;
}

bool net_bulk_choose(struct net *net, uint32_t index, uint64_t now_ns)
{
    struct tls_peer *peer = peer_of(net, index);
    return is_linked(peer, now_ns) && way_now(peer, now_ns) == 1;
}

/* Measured with transfers of 16 to 64 KiB: with datagrams of 1452 bytes the link took less time, with 8952
 * bytes it took more. */
static bool has_small_datagrams(const struct net *net, uint32_t index)
{
    struct net_peer_statistics statistics = {0};
    net->operations->peer_statistics(net, index, &statistics);
    return statistics.datagram_bytes < TLS_SMALL_DATAGRAM_BYTES;
}

bool net_bulk_choose_small(struct net *net, uint32_t index, uint64_t now_ns)
{
    struct tls_peer *peer = peer_of(net, index);
    if (peer == NULL) {
        return false;
    }
    peer->small_asked += peer->small_asked < TLS_SMALL_FIRST;
    return peer->small_asked == TLS_SMALL_FIRST && has_small_datagrams(net, index) && is_linked(peer, now_ns);
}

void net_bulk_began(struct net *net, uint32_t index, bool on_bulk, uint64_t now_ns)
{
    struct tls_peer *peer = peer_of(net, index);
    if (peer != NULL) {
        tls_choice_began(&peer->choice, on_bulk, now_ns, cpu_now_ns());
    }
}

void net_bulk_ended(struct net *net, uint32_t index, bool on_bulk, uint64_t bytes, uint64_t now_ns)
{
    struct tls_peer *peer = peer_of(net, index);
    if (peer != NULL) {
        tls_choice_ended(&peer->choice, on_bulk, bytes, now_ns, cpu_now_ns());
    }
}

void net_bulk_statistics(const struct net *net, uint32_t index, struct net_bulk_statistics *out)
{
    const struct tls_peer *peer = peer_of(net, index);
    *out = (struct net_bulk_statistics){.allowed = false};
    if (peer == NULL) {
        return;
    }
    out->allowed = peer->allowed;
    out->connected = tls_peer_is_connected(peer);
    unsigned present = peer->asked_way != TLS_WAY_NONE ? peer->asked_way : peer->choice.present;
    out->chosen = out->connected && (peer->endpoint->mode == NET_BULK_TLS || present == 1);
    for (unsigned way = 0; way < 2; way++) {
        const struct tls_way *at = &peer->choice.ways[way];
        out->ways[way] = (struct net_bulk_way){.rate = at->rate, .bytes = at->bytes, .cost_ns = at->cost_ns};
    }
    out->sent_bytes = peer->sent_bytes;
    out->received_bytes = peer->received_bytes;
    out->connected_count = peer->connected_count;
    out->lost_count = peer->lost_count;
    memcpy(out->why, out->connected ? "" : peer->why, out->connected ? 1 : sizeof out->why);
}

/* --- Certificates --- */

void net_bulk_certificates_changed(struct net *net)
{
    struct tls_connection *connection;
    DL_FOREACH(net->bulk != NULL ? tls_endpoint_of(net->bulk)->connections : NULL, connection)
    {
        struct error refusal;
        if (connection->state == TLS_STATE_OPEN &&
            quic_tls_check_again(net_quic_certificates(net), connection->tls, connection->dialled,
                                 &refusal) != STATUS_OK) {
            tls_connection_fail(connection, "%s", refusal.text);
        }
    }
}

/* --- Streams --- */

static void tls_stream_reset(struct net_stream *stream)
{
    if (stream->incoming) {
        tls_receiver_stop((struct tls_receiver *)stream);
    } else {
        tls_sender_reset((struct tls_sender *)stream);
    }
}

/* --- The endpoint --- */

static void endpoint_free(struct tls_endpoint *endpoint)
{
    tls_listen_close(endpoint);
    loop_timer_free(endpoint->wake);
    loop_timer_free(endpoint->tick);
    free(endpoint->read_buffer);
    sparse_free(&endpoint->peers);
    free(endpoint);
}

void net_bulk_free(struct net *net)
{
    if (net->bulk == NULL) {
        return;
    }
    struct tls_endpoint *endpoint = tls_endpoint_of(net->bulk);
    struct tls_peer *peer;
    struct error cause;
    error_set(&cause, STATUS_SHUTTING_DOWN, "node %s is shutting down", endpoint->node_name);
    endpoint->freeing = true;
    for (uint32_t at = 0; (peer = sparse_next(&endpoint->peers, &at)) != NULL;) {
        tls_peer_down(peer, &cause, true, endpoint->now_ns);
    }
    tls_tunnel_unregister(endpoint);
    while (endpoint->connections != NULL) {
        tls_connection_free(endpoint->connections);
    }
    while (endpoint->lost_senders != NULL) {
        tls_sender_free(endpoint->lost_senders);
    }
    for (uint32_t at = 0; (peer = sparse_next(&endpoint->peers, &at)) != NULL;) {
        free(peer);
    }
    net->bulk = NULL;
    endpoint_free(endpoint);
}

static const struct net_stream_operations tls_streams = {
    .send = tls_stream_send,
    .finish = tls_stream_finish,
    .reset = tls_stream_reset,
    .resume = tls_stream_resume,
    .expect = tls_stream_expect,
};

enum status net_tls_attach(struct net *net, struct loop *loop, const struct tls_options *options,
                           struct error *error)
{
    struct tls_endpoint *endpoint = calloc(1, sizeof *endpoint);
    if (endpoint == NULL) {
        return error_set(error, STATUS_NO_MEMORY, "no memory for bulk links");
    }
    endpoint->base = (struct net_bulk){.streams = &tls_streams, .net = net};
    endpoint->loop = loop;
    endpoint->done = (struct stream_done){.wake = tls_wake, .context = endpoint};
    endpoint->mode = options->mode;
    endpoint->processors = options->processors;
    endpoint->node_name = net_quic_node_name(net);
    endpoint->listener = -1;
    endpoint->tick_ns = endpoint->redial_ns = endpoint->receipts_ns = TIME_NEVER;
    endpoint->refusal_limit = (struct log_limit){.burst = 8, .interval_ns = 5 * TIME_S};
    endpoint->loss_limit = (struct log_limit){.burst = 8, .interval_ns = 5 * TIME_S};
    random_seed(&endpoint->random, hash_bytes(0, endpoint->node_name, strlen(endpoint->node_name)));
    endpoint->read_buffer = malloc(TLS_RECORD_BYTES);
    enum status status = endpoint->read_buffer != NULL
                             ? loop_timer_new(loop, tls_woken, endpoint, &endpoint->wake, error)
                             : error_set(error, STATUS_NO_MEMORY, "no memory for bulk links");
    if (status == STATUS_OK) {
        status = loop_timer_new(loop, tls_ticked, endpoint, &endpoint->tick, error);
    }
    if (status != STATUS_OK) {
        endpoint_free(endpoint);
        return status;
    }
    net->bulk = &endpoint->base;
    tls_tunnel_register(endpoint);
    tls_listen(endpoint);
    return STATUS_OK;
}
