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

static void tls_peer_is_up(struct net_bulk *bulk, uint32_t index, uint64_t now_ns)
{
    struct tls_peer *peer = peer_place(tls_endpoint_of(bulk), index);
    (void)now_ns;
    if (peer != NULL) {
        peer->is_up = true;
    }
}

static void tls_peer_is_down(struct net_bulk *bulk, uint32_t index, const struct error *cause,
                             uint64_t now_ns)
{
    struct tls_endpoint *endpoint = tls_endpoint_of(bulk);
    struct tls_peer *peer = tls_peer_at(endpoint, index);
    if (peer != NULL && peer->is_up) {
        bool outer = endpoint->in_event;
        endpoint->in_event = true;
        endpoint->now_ns = now_ns;
        tls_peer_down(peer, cause, false, now_ns);
        endpoint->in_event = outer;
        tls_wake(endpoint);
    }
}

static void tls_allow(struct net_bulk *bulk, uint32_t index, bool allowed)
{
    struct tls_peer *peer = peer_place(tls_endpoint_of(bulk), index);
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

static bool tls_choose(struct net_bulk *bulk, uint32_t index, uint64_t now_ns)
{
    struct tls_peer *peer = tls_peer_at(tls_endpoint_of(bulk), index);
    return is_linked(peer, now_ns) && way_now(peer, now_ns) == 1;
}

/* Measured with transfers of 16 to 64 KiB: with datagrams of 1452 bytes the link took less time, with 8952
 * bytes it took more. */
static bool has_small_datagrams(const struct net_bulk *bulk, uint32_t index)
{
    struct net_peer_statistics statistics = {0};
    bulk->net->operations->peer_statistics(bulk->net, index, &statistics);
    return statistics.datagram_bytes < TLS_SMALL_DATAGRAM_BYTES;
}

static bool tls_choose_small(struct net_bulk *bulk, uint32_t index, uint64_t now_ns)
{
    struct tls_peer *peer = tls_peer_at(tls_endpoint_of(bulk), index);
    if (peer == NULL) {
        return false;
    }
    peer->small_asked += peer->small_asked < TLS_SMALL_FIRST;
    return peer->small_asked == TLS_SMALL_FIRST && has_small_datagrams(bulk, index) &&
           is_linked(peer, now_ns);
}

static void tls_began(struct net_bulk *bulk, uint32_t index, bool on_bulk, uint64_t now_ns)
{
    struct tls_peer *peer = tls_peer_at(tls_endpoint_of(bulk), index);
    if (peer != NULL) {
        tls_choice_began(&peer->choice, on_bulk, now_ns, cpu_now_ns());
    }
}

static void tls_ended(struct net_bulk *bulk, uint32_t index, bool on_bulk, uint64_t bytes, uint64_t now_ns)
{
    struct tls_peer *peer = tls_peer_at(tls_endpoint_of(bulk), index);
    if (peer != NULL) {
        tls_choice_ended(&peer->choice, on_bulk, bytes, now_ns, cpu_now_ns());
    }
}

static void tls_statistics(const struct net_bulk *bulk, uint32_t index, struct net_bulk_statistics *out)
{
    const struct tls_endpoint *endpoint = (const struct tls_endpoint *)bulk;
    const struct tls_peer *peer = tls_peer_at(endpoint, index);
    if (peer == NULL) {
        return;
    }
    out->allowed = peer->allowed;
    out->connected = tls_peer_is_connected(peer);
    unsigned present = peer->asked_way != TLS_WAY_NONE ? peer->asked_way : peer->choice.present;
    out->chosen = out->connected && (endpoint->mode == NET_BULK_TLS || present == 1);
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

static void tls_certificates_changed(struct net_bulk *bulk)
{
    struct tls_endpoint *endpoint = tls_endpoint_of(bulk);
    struct tls_connection *connection;
    DL_FOREACH(endpoint->connections, connection)
    {
        struct error refusal;
        if (connection->state == TLS_STATE_OPEN &&
            quic_tls_check_again(net_quic_certificates(bulk->net), connection->tls, connection->dialled,
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

static void tls_free(struct net_bulk *bulk)
{
    struct tls_endpoint *endpoint = tls_endpoint_of(bulk);
    struct net *net = bulk->net;
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
    net->peer_handler = bulk->peer_handler;
    net->bulk = NULL;
    endpoint_free(endpoint);
}

static const struct net_bulk_operations tls_operations = {
    .free = tls_free,
    .peer_up = tls_peer_is_up,
    .peer_down = tls_peer_is_down,
    .allow = tls_allow,
    .choose = tls_choose,
    .choose_small = tls_choose_small,
    .began = tls_began,
    .ended = tls_ended,
    .statistics = tls_statistics,
    .certificates_changed = tls_certificates_changed,
    .poll = tls_poll,
    .stream_open = tls_stream_open,
    .streams = {.send = tls_stream_send,
                .finish = tls_stream_finish,
                .reset = tls_stream_reset,
                .resume = tls_stream_resume,
                .expect = tls_stream_expect},
};

enum status net_tls_attach(struct net *net, struct loop *loop, const struct tls_options *options,
                           struct error *error)
{
    struct tls_endpoint *endpoint = calloc(1, sizeof *endpoint);
    if (endpoint == NULL) {
        return error_set(error, STATUS_NO_MEMORY, "no memory for bulk links");
    }
    endpoint->base.operations = &tls_operations;
    endpoint->base.net = net;
    endpoint->loop = loop;
    endpoint->done = (struct stream_done){.wake = tls_wake, .context = endpoint};
    endpoint->mode = options->mode;
    endpoint->processors = options->processors;
    endpoint->node_name = net_quic_node_name(net);
    endpoint->listener = -1;
    endpoint->tick_ns = endpoint->redial_ns = TIME_NEVER;
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
    net_bulk_attach(net, &endpoint->base);
    tls_tunnel_register(endpoint);
    tls_listen(endpoint);
    return STATUS_OK;
}
