#include "daemon/net/quic.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include <utlist.h>

#include "daemon/base/random.h"
#include "daemon/net/bulk.h"
#include "daemon/net/quic_internal.h"

#define QUIC_SOCKET_BUFFER_BYTES (4u << 20)

/* --- Construction --- */

static enum status quic_options_copy(struct quic_endpoint *endpoint, const struct quic_options *options,
                                     struct error *error)
{
    if (options->node_name == NULL || options->node_name[0] == '\0' ||
        strlen(options->node_name) > NODE_NAME_MAX_BYTES) {
        return error_set(error, STATUS_CONFIG, "node name \"%s\": expected 1 to %d characters",
                         options->node_name == NULL ? "" : options->node_name, NODE_NAME_MAX_BYTES);
    }
    if (options->datagram_max_bytes != 0 && (options->datagram_max_bytes < NGTCP2_MAX_UDP_PAYLOAD_SIZE ||
                                             options->datagram_max_bytes > QUIC_DATAGRAM_LOOPBACK_BYTES)) {
        return error_set(error, STATUS_CONFIG, "datagrams of at most %u bytes: expected 0, or %u to %u",
                         options->datagram_max_bytes, (unsigned)NGTCP2_MAX_UDP_PAYLOAD_SIZE,
                         QUIC_DATAGRAM_LOOPBACK_BYTES);
    }
    memcpy(endpoint->node_name, options->node_name, strlen(options->node_name) + 1);
    endpoint->datagram_max_bytes = options->datagram_max_bytes;
    endpoint->handshake_timeout_ns =
        options->handshake_timeout_ns != 0 ? options->handshake_timeout_ns : QUIC_HANDSHAKE_TIMEOUT_NS;
    endpoint->idle_timeout_ns =
        options->idle_timeout_ns != 0 ? options->idle_timeout_ns : QUIC_IDLE_TIMEOUT_NS;
    endpoint->patience_ns = options->patience_ns != 0 ? options->patience_ns : QUIC_PATIENCE_NS;
    return STATUS_OK;
}

static void quic_endpoint_free(struct quic_endpoint *endpoint)
{
    loop_watch_free(endpoint->watch);
    loop_timer_free(endpoint->wake);
    quic_socket_close(&endpoint->socket);
    quic_tls_free(endpoint->tls);
    free(endpoint->send_buffer);
    OPENSSL_cleanse(endpoint->reset_secret, sizeof endpoint->reset_secret);
    OPENSSL_cleanse(endpoint->retry_secret, sizeof endpoint->retry_secret);
    free(endpoint);
}

static enum status quic_endpoint_open(struct quic_endpoint *endpoint, const struct quic_options *options,
                                      struct error *error)
{
    uint32_t buffer_bytes =
        options->socket_buffer_bytes != 0 ? options->socket_buffer_bytes : QUIC_SOCKET_BUFFER_BYTES;
    enum status status = quic_socket_open(options->bind_address, buffer_bytes, &endpoint->socket, error);
    if (status != STATUS_OK) {
        return status;
    }
    uint32_t granted = endpoint->socket.granted_receive_bytes < endpoint->socket.granted_send_bytes
                           ? endpoint->socket.granted_receive_bytes
                           : endpoint->socket.granted_send_bytes;
    if (granted < buffer_bytes) {
        log_warning(
            "UDP socket %s: buffers of %u bytes granted, %u wanted (see net.core.rmem_max and wmem_max)",
            options->bind_address, granted, buffer_bytes);
    }
    endpoint->send_buffer = malloc(QUIC_BATCH_MAX_BYTES);
    if (endpoint->send_buffer == NULL) {
        return error_set(error, STATUS_NO_MEMORY, "no memory for the network's buffers");
    }
    status = loop_timer_new(endpoint->loop, quic_woken, endpoint, &endpoint->wake, error);
    if (status != STATUS_OK) {
        return status;
    }
    return loop_watch_new(endpoint->loop, endpoint->socket.fd, LOOP_READ, quic_socket_ready, endpoint,
                          &endpoint->watch, error);
}

static const struct net_operations quic_operations;

enum status net_quic_new(struct loop *loop, const struct quic_options *options, struct net **out,
                         struct error *error)
{
    struct quic_endpoint *endpoint = calloc(1, sizeof *endpoint);
    if (endpoint == NULL) {
        return error_set(error, STATUS_NO_MEMORY, "no memory for the network");
    }
    endpoint->base.operations = &quic_operations;
    endpoint->loop = loop;
    endpoint->done = (struct stream_done){.wake = quic_wake, .context = endpoint};
    endpoint->socket.fd = -1;
    endpoint->now_ns = loop_now_ns();
    quic_inbox_init(&endpoint->inbox, quic_datagram_received, endpoint);
    endpoint->connection_window_bytes = QUIC_CONNECTION_WINDOW_BYTES;
    endpoint->refusal_limit = (struct log_limit){.burst = 8, .interval_ns = 5 * TIME_S};
    endpoint->garbage_limit = (struct log_limit){.burst = 1, .interval_ns = 60 * TIME_S};
    endpoint->loss_limit = (struct log_limit){.burst = 64, .interval_ns = 1 * TIME_S};
    endpoint->reset_limit = (struct log_limit){.burst = 64, .interval_ns = 10 * TIME_MS};
    enum status status = quic_options_copy(endpoint, options, error);
    if (status == STATUS_OK && options->certificates != NULL) {
        endpoint->tls = quic_tls_share(options->certificates);
    } else if (status == STATUS_OK) {
        status = quic_tls_new(options, &endpoint->tls, error);
    }
    if (status == STATUS_OK) {
        status = random_secure(endpoint->retry_secret, sizeof endpoint->retry_secret, error);
    }
    if (status == STATUS_OK) {
        status = random_secure(&endpoint->process_id, sizeof endpoint->process_id, error);
    }
    if (status == STATUS_OK) {
        status = random_secure(&endpoint->probe_secret, sizeof endpoint->probe_secret, error);
    }
    if (status == STATUS_OK) {
        status = quic_endpoint_open(endpoint, options, error);
    }
    if (status == STATUS_OK) { /* the port is known only now */
        status = quic_tls_reset_secret(endpoint->tls, endpoint->node_name, &endpoint->socket.local,
                                       endpoint->reset_secret, error);
    }
    if (status != STATUS_OK) {
        quic_endpoint_free(endpoint);
        return status;
    }
    *out = &endpoint->base;
    return STATUS_OK;
}

const char *net_quic_node_name(const struct net *net)
{
    return ((const struct quic_endpoint *)net)->node_name;
}

const char *net_quic_peer_name(const struct net *net, uint32_t peer)
{
    return quic_peer_of((const struct quic_endpoint *)net, peer)->name;
}

void net_quic_local(const struct net *net, struct quic_address *out)
{
    *out = ((const struct quic_endpoint *)net)->socket.local;
}

bool net_quic_remote(const struct net *net, uint32_t peer, struct quic_address *out)
{
    const struct quic_connection *up = quic_peer_of((const struct quic_endpoint *)net, peer)->up;
    if (up == NULL || up->transport == NULL) {
        return false;
    }
    const ngtcp2_path *path = ngtcp2_conn_get_path2(up->transport);
    return quic_address_set(out, path->remote.addr, path->remote.addrlen);
}

/* --- Certificates --- */

enum status net_quic_load(const struct quic_options *options, struct quic_tls **out, struct error *error)
{
    return quic_tls_new(options, out, error);
}

struct quic_tls *net_quic_certificates(const struct net *net)
{
    return ((const struct quic_endpoint *)net)->tls;
}

struct quic_tls *net_quic_share(struct quic_tls *tls)
{
    return quic_tls_share(tls);
}

void net_quic_unload(struct quic_tls *tls)
{
    quic_tls_free(tls);
}

/* Handshakes under way are checked when they end: see quic_peer_identify. */
void net_quic_use(struct net *net, struct quic_tls *tls)
{
    struct quic_endpoint *endpoint = quic_endpoint_of(net);
    struct quic_connection *connection;
    quic_tls_free(endpoint->tls);
    endpoint->tls = quic_tls_share(tls);
    DL_FOREACH(endpoint->connections, connection)
    {
        struct error refusal;
        if (connection->transport != NULL && !connection->failed &&
            (connection->state == QUIC_STATE_UP || connection->state == QUIC_STATE_GREETING ||
             connection->authenticated) &&
            quic_tls_check_again(endpoint->tls, connection->tls, connection->dialled, &refusal) !=
                STATUS_OK) {
            char who[QUIC_CONNECTION_TEXT_MAX_BYTES];
            struct error cause;
            error_set(&cause, refusal.status, "%s: %s", quic_connection_text(connection, who), refusal.text);
            quic_connection_abort(connection, cause.status, cause.text);
        }
    }
    net_bulk_certificates_changed(net);
}

/* --- Freeing --- */

static void quic_free(struct net *net)
{
    struct quic_endpoint *endpoint = quic_endpoint_of(net);
    assert(!endpoint->in_event);
    struct error cause;
    error_set(&cause, STATUS_SHUTTING_DOWN, "node %s is shutting down", endpoint->node_name);
    if (net->farewell != NULL) {
        error_set(&cause, STATUS_SHUTTING_DOWN, "%s", net->farewell);
    }
    endpoint->freeing = true;
    while (endpoint->connections != NULL) {
        struct quic_connection *connection = endpoint->connections;
        quic_peer_lose_streams(connection, &cause, true, endpoint->now_ns);
        if (connection->transport != NULL) {
            quic_connection_abort(connection, cause.status, cause.text);
            quic_connection_close(connection, endpoint->now_ns);
        }
        quic_connection_free(connection);
    }
    stream_done_dispatch(&endpoint->done, endpoint->now_ns);
    while (endpoint->lost_senders != NULL) {
        quic_sender_free(endpoint->lost_senders);
    }
    quic_directory_free(endpoint);
    quic_inbox_clear(&endpoint->strangers);
    quic_memory_join(&endpoint->deletions, true);
    quic_endpoint_free(endpoint);
}

/* --- Peers --- */

/* Cancels an attempt to connect. No handler is called for it. */
static void quic_dial_call_off(struct quic_endpoint *endpoint, struct quic_peer *peer,
                               const struct error *cause)
{
    work_list_remove(&endpoint->dials, &peer->dialling);
    peer->outcome_due = false;
    if (peer->dial != NULL) {
        struct quic_connection *dial = peer->dial;
        peer->dial = NULL;
        quic_connection_abort(dial, cause->status, cause->text);
    }
}

/* Reads an address. *known: its host is no name. INVALID_ARGUMENT. */
static enum status quic_read_address(const struct quic_endpoint *endpoint, const char *address,
                                     struct quic_address *out, bool *known, struct error *error)
{
    struct error why;
    *out = (struct quic_address){0};
    enum status status = quic_address_parse(address, endpoint->socket.local.base.sa_family, out, &why);
    *known = status == STATUS_OK;
    return status == STATUS_OK || status == STATUS_UNREACHABLE ? STATUS_OK
                                                               : error_set(error, status, "%s", why.text);
}

static enum status quic_move_peer(struct net *net, uint32_t index, const char *address, struct error *error)
{
    struct quic_endpoint *endpoint = quic_endpoint_of(net);
    struct quic_peer *peer = quic_peer_of(endpoint, index);
    assert(peer != NULL);
    struct quic_address there;
    struct error cause;
    bool known;
    enum status status = quic_read_address(endpoint, address, &there, &known, error);
    if (status != STATUS_OK) {
        return error_prefix(error, "peer %s", peer->name);
    }
    if (peer->contact != NULL) {
        peer->contact->seen = (struct quic_address){0};
    }
    error_set(&cause, STATUS_UNREACHABLE, "node %s has moved to %s", peer->name, address);
    quic_dial_call_off(endpoint, peer, &cause);
    return quic_directory_move(endpoint, peer, known ? &there : NULL, error);
}

static void quic_set_spare(struct net *net, uint32_t index, const char *address)
{
    struct quic_endpoint *endpoint = quic_endpoint_of(net);
    struct quic_address spare;
    struct error why;
    bool known;
    struct quic_peer *peer = quic_peer_of(endpoint, index);
    assert(peer != NULL);
    bool has_one = quic_read_address(endpoint, address, &spare, &known, &why) == STATUS_OK && known;
    struct quic_contact *contact = has_one ? quic_contact_of(peer) : peer->contact;
    if (contact != NULL) { /* without memory for a spare address, there is none */
        contact->spare = spare;
    }
}

static enum status quic_add_peer(struct net *net, const char *name, const char *address, uint32_t *index,
                                 struct error *error)
{
    struct quic_endpoint *endpoint = quic_endpoint_of(net);
    struct quic_peer *known = quic_peer_find(endpoint, name);
    if (known != NULL && known->removed) {
        enum status status = quic_move_peer(net, known->index, address, error);
        known->removed = status != STATUS_OK;
        *index = known->index;
        return status;
    }
    if (known != NULL) {
        return error_set(error, STATUS_ALREADY_EXISTS, "peer %s is known already", name);
    }
    if (*index == NET_PEER_ANY && endpoint->peer_count >= NET_PEERS_MAX) {
        return error_set(error, STATUS_LIMIT, "peer %s: no more than %d peers", name, NET_PEERS_MAX);
    }
    if (name[0] == '\0' || strlen(name) > NODE_NAME_MAX_BYTES || strcmp(name, endpoint->node_name) == 0) {
        return error_set(error, STATUS_INVALID_ARGUMENT,
                         "peer \"%s\": expected 1 to %d characters, and not our own name", name,
                         NODE_NAME_MAX_BYTES);
    }
    size_t name_bytes = strlen(name) + 1;
    struct quic_peer *peer = calloc(1, sizeof *peer + name_bytes);
    if (peer == NULL) {
        return error_set(error, STATUS_NO_MEMORY, "no memory for peer %s", name);
    }
    memcpy(peer->name, name, name_bytes);
    peer->index = *index != NET_PEER_ANY ? *index : endpoint->peer_count;
    enum status status = quic_read_address(endpoint, address, &peer->address, &peer->has_address, error);
    if (status == STATUS_OK) {
        status = quic_directory_add(endpoint, peer, error);
    } else {
        error_prefix(error, "peer %s", name);
    }
    if (status != STATUS_OK) {
        free(peer);
        return status;
    }
    *index = peer->index;
    return STATUS_OK;
}

static enum status quic_connect(struct net *net, uint32_t index, struct error *error)
{
    struct quic_endpoint *endpoint = quic_endpoint_of(net);
    struct quic_peer *peer = quic_peer_of(endpoint, index);
    assert(peer != NULL);
    if (endpoint->freeing) {
        return error_set(error, STATUS_SHUTTING_DOWN, "node %s is shutting down", endpoint->node_name);
    }
    if (peer->removed) {
        return error_set(error, STATUS_PERMISSION, "node %s is no peer of node %s any more", peer->name,
                         endpoint->node_name);
    }
    if (!peer->has_address) {
        return error_set(error, STATUS_UNREACHABLE, "node %s: its name is not resolved yet", peer->name);
    }
    bool connected = peer->up != NULL && !peer->up->failed;
    bool connecting = peer->dial != NULL && !peer->dial->failed;
    if (quic_contact_of(peer) == NULL) {
        return error_set(error, STATUS_NO_MEMORY, "no memory for a connection to node %s", peer->name);
    }
    if (!connected && !connecting) {
        peer->outcome_due = true;
        peer->contact->process_ended = false;
        quic_work_dial(endpoint, peer);
    }
    return STATUS_OK;
}

static void quic_keep_alive(struct net *net, uint32_t index, bool keep)
{
    struct quic_endpoint *endpoint = quic_endpoint_of(net);
    struct quic_peer *peer = quic_peer_of(endpoint, index);
    if (peer != NULL) {
        peer->keep_alive = keep;
        quic_peer_keep_alive(peer);
    }
}

static void quic_disconnect(struct net *net, uint32_t index, const struct error *cause)
{
    struct quic_endpoint *endpoint = quic_endpoint_of(net);
    struct quic_peer *peer = quic_peer_of(endpoint, index);
    assert(peer != NULL);
    quic_dial_call_off(endpoint, peer, cause);
    if (peer->greeting != NULL) {
        struct quic_connection *greeting = peer->greeting;
        peer->greeting = NULL;
        quic_connection_abort(greeting, cause->status, cause->text);
    }
    if (peer->up != NULL) {
        quic_connection_abort(peer->up, cause->status, cause->text);
    }
}

static void quic_remove_peer(struct net *net, uint32_t index, const struct error *cause)
{
    const struct quic_endpoint *endpoint = quic_endpoint_of(net);
    struct quic_peer *peer = quic_peer_of(endpoint, index);
    assert(peer != NULL);
    peer->removed = true;
    quic_disconnect(net, index, cause);
    for (struct quic_connection *connection = endpoint->connections; connection != NULL;
         connection = connection->next) { /* also one that was authenticated in this turn */
        if (connection->peer == peer && connection->authenticated) {
            quic_connection_abort(connection, cause->status, cause->text);
        }
    }
}

/* --- Streams --- */

static void quic_stream_reset(struct net_stream *stream)
{
    if (stream->incoming) {
        quic_receiver_stop((struct quic_receiver *)stream);
    } else {
        quic_sender_reset((struct quic_sender *)stream);
    }
}

/* --- Statistics --- */

static void quic_peer_statistics(const struct net *net, uint32_t index, struct net_peer_statistics *out)
{
    const struct quic_endpoint *endpoint = (const struct quic_endpoint *)net;
    const struct quic_peer *peer = quic_peer_of(endpoint, index);
    assert(peer != NULL);
    const struct quic_contact *contact = peer->contact;
    *out = contact != NULL ? contact->past : (struct net_peer_statistics){0};
    out->up = peer->up != NULL && !peer->up->failed;
    out->waits = out->up && peer->up->state == QUIC_STATE_SUSPENDED;
    out->connected_count = contact != NULL ? contact->connected_count : 0;
    out->closed_by_peer = contact != NULL && contact->closed_by_peer;
    out->process_ended = contact != NULL && contact->process_ended;
    out->unresolved = !peer->has_address;
    out->certificate_ends_s = contact != NULL ? contact->certificate_ends_s : 0;
    out->round_trip_ns = 0;
    out->datagram_bytes = 0;
    if (peer->up != NULL && peer->up->transport != NULL) {
        ngtcp2_conn_info info;
        ngtcp2_conn_get_conn_info2(peer->up->transport, &info);
        out->round_trip_ns = info.smoothed_rtt;
        quic_connection_account(peer->up, out);
        out->datagram_bytes =
            quic_write_small(peer->up)
                ? (uint32_t)NGTCP2_MAX_UDP_PAYLOAD_SIZE
                : (uint32_t)ngtcp2_conn_get_path_max_tx_udp_payload_size2(peer->up->transport);
    }
}

static void quic_statistics(const struct net *net, struct net_statistics *out)
{
    const struct quic_endpoint *endpoint = (const struct quic_endpoint *)net;
    *out = endpoint->statistics;
    out->dropped_datagrams += endpoint->inbox.dropped;
    out->certificate_ends_s = quic_tls_certificate_ends_s(endpoint->tls);
}

static const struct net_operations quic_operations = {
    .free = quic_free,
    .add_peer = quic_add_peer,
    .remove_peer = quic_remove_peer,
    .move_peer = quic_move_peer,
    .set_spare = quic_set_spare,
    .connect = quic_connect,
    .disconnect = quic_disconnect,
    .keep_alive = quic_keep_alive,
    .probe = quic_probe,
    .stream_open = quic_stream_open,
    .streams.send = quic_stream_send,
    .streams.finish = quic_stream_finish,
    .streams.reset = quic_stream_reset,
    .streams.resume = quic_stream_resume,
    .streams.expect = quic_stream_expect,
    .peer_statistics = quic_peer_statistics,
    .statistics = quic_statistics,
};
