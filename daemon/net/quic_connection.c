#include <assert.h>
#include <openssl/err.h>
#include <openssl/rand.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <utlist.h>

#include "daemon/net/quic_internal.h"

#define QUIC_INITIAL_DCID_BYTES 18u /* unpredictable, and never one of ours */

/*
 * How many suspicious but harmless packets a peer may send at once, and per second, before ngtcp2 closes. RFC
 * 9000 allows such packets; duplicates after a burst of loss are an example. The defaults of ngtcp2 suit
 * servers of unknown clients. A blackhole of seconds on a fast link causes more.
 */
#define QUIC_GLITCH_BURST 1000000u
#define QUIC_GLITCHES_PER_S 100000u

/* --- Connection IDs and tokens --- */

struct quic_connection *quic_connection_find(struct quic_endpoint *endpoint, bool is_token,
                                             const uint8_t *bytes, size_t size)
{
    struct quic_cid *cid = NULL;
    if (is_token) {
        HASH_FIND(hh, endpoint->tokens, bytes, size, cid);
    } else if (endpoint->last_cid != NULL && endpoint->last_cid->size == size &&
               memcmp(endpoint->last_cid->bytes, bytes, size) == 0) {
        cid = endpoint->last_cid; /* consecutive datagrams are often of one connection */
    } else {
        HASH_FIND(hh, endpoint->cids, bytes, size, cid);
        endpoint->last_cid = cid;
    }
    return cid == NULL ? NULL : cid->connection;
}

bool quic_cid_add(struct quic_connection *connection, bool is_token, const uint8_t *bytes, size_t size)
{
    struct quic_endpoint *endpoint = connection->endpoint;
    assert(size <= NGTCP2_MAX_CIDLEN);
    if (quic_connection_find(endpoint, is_token, bytes, size) != NULL) {
        return false;
    }
    struct quic_cid *cid = calloc(1, sizeof *cid);
    if (cid == NULL) {
        return false;
    }
    cid->connection = connection;
    cid->is_token = is_token;
    cid->size = (uint8_t)size;
    memcpy(cid->bytes, bytes, size);
    if (is_token) {
        HASH_ADD_KEYPTR(hh, endpoint->tokens, cid->bytes, cid->size, cid);
    } else {
        HASH_ADD_KEYPTR(hh, endpoint->cids, cid->bytes, cid->size, cid);
    }
    if (!table_has(cid, hh)) {
        free(cid);
        return false;
    }
    LL_PREPEND(connection->cids, cid);
    return true;
}

void quic_cid_drop(struct quic_connection *connection, struct quic_cid *cid)
{
    LL_DELETE(connection->cids, cid);
    if (connection->endpoint->last_cid == cid) {
        connection->endpoint->last_cid = NULL;
    }
    if (cid->is_token) {
        HASH_DEL(connection->endpoint->tokens, cid);
    } else {
        HASH_DEL(connection->endpoint->cids, cid);
    }
    free(cid);
}

void quic_cid_remove(struct quic_connection *connection, bool is_token, const uint8_t *bytes, size_t size)
{
    struct quic_cid *cid;
    struct quic_cid *next;
    LL_FOREACH_SAFE(connection->cids, cid, next)
    {
        if (cid->is_token == is_token && cid->size == size && memcmp(cid->bytes, bytes, size) == 0) {
            quic_cid_drop(connection, cid);
        }
    }
}

/* --- Construction --- */

static void quic_path(ngtcp2_path *out, const struct quic_address *local, const struct quic_address *remote)
{
    /* ngtcp2 takes non-const pointers to what it only reads. */
    *out = (ngtcp2_path){
        .local = {.addr = (struct sockaddr *)(uintptr_t)&local->base, .addrlen = local->size},
        .remote = {.addr = (struct sockaddr *)(uintptr_t)&remote->base, .addrlen = remote->size},
    };
}

/* Lists the sizes that path MTU discovery tries, ascending. Returns how many. */
static size_t quic_probes(const struct quic_endpoint *endpoint, const struct quic_address *remote,
                          uint16_t out[3])
{
    uint32_t most = endpoint->datagram_max_bytes;
    if (most == 0) {
        most = quic_address_is_loopback(remote) ? QUIC_DATAGRAM_LOOPBACK_BYTES : QUIC_DATAGRAM_JUMBO_BYTES;
    }
    const uint32_t steps[] = {QUIC_DATAGRAM_BYTES, QUIC_DATAGRAM_JUMBO_BYTES, most};
    size_t count = 0;
    for (size_t i = 0; i < sizeof steps / sizeof steps[0]; i++) {
        bool last = i + 1 == sizeof steps / sizeof steps[0];
        if (steps[i] > NGTCP2_MAX_UDP_PAYLOAD_SIZE && (steps[i] < most || last)) {
            out[count++] = (uint16_t)steps[i];
        }
    }
    return count;
}

static void quic_settings(const struct quic_endpoint *endpoint, const struct quic_address *remote,
                          uint16_t probes[3], ngtcp2_settings *settings, ngtcp2_transport_params *parameters)
{
    ngtcp2_settings_default(settings);
    settings->initial_ts = endpoint->now_ns;
    settings->initial_rtt = QUIC_INITIAL_RTT_NS;
    settings->handshake_timeout = UINT64_MAX; /* see quic_watch: its clock may be ahead of ours */
    settings->cc_algo = NGTCP2_CC_ALGO_CUBIC;
    /* Every packet carries an acknowledgement; quic_connection_hold limits the wait for a packet. */
    settings->ack_thresh = 1;
    settings->pmtud_probeslen = quic_probes(endpoint, remote, probes);
    settings->pmtud_probes = probes;
    settings->max_tx_udp_payload_size = NGTCP2_MAX_UDP_PAYLOAD_SIZE;
    if (settings->pmtud_probeslen > 0) {
        settings->max_tx_udp_payload_size = probes[settings->pmtud_probeslen - 1];
    } else {
        settings->no_pmtud = 1;
    }
    settings->glitch_ratelim_burst = QUIC_GLITCH_BURST;
    settings->glitch_ratelim_rate = QUIC_GLITCHES_PER_S;

    ngtcp2_transport_params_default(parameters);
    parameters->initial_max_stream_data_uni = NET_STREAM_FIRST_WINDOW_BYTES;
    parameters->initial_max_data = endpoint->connection_window_bytes;
    parameters->initial_max_streams_uni = QUIC_STREAMS_MAX + 1; /* and the greeting */
    parameters->initial_max_streams_bidi = 0;
    parameters->max_idle_timeout = endpoint->idle_timeout_ns;
    parameters->max_ack_delay = QUIC_MAX_ACK_DELAY_NS;
    parameters->active_connection_id_limit = 4;
}

static ngtcp2_conn *quic_transport_of(ngtcp2_crypto_conn_ref *reference)
{
    const struct quic_connection *connection = reference->user_data;
    return connection->transport;
}

/* Since when packets are unanswered, or no byte of a stream is acknowledged; TIME_NEVER: neither is so. */
static uint64_t quic_connection_waits_since_ns(const struct quic_connection *connection)
{
    uint64_t unanswered_ns = connection->unanswered_ns, waits_ns = connection->waits_since_ns;
    return time_min(unanswered_ns != 0 ? unanswered_ns : TIME_NEVER, waits_ns != 0 ? waits_ns : TIME_NEVER);
}

/* Whether it is an attempt to go on with a session. Who dials us is not known yet, but where from. */
static bool quic_is_attempt(const struct quic_connection *connection)
{
    const struct quic_peer *peer =
        connection->peer != NULL ? connection->peer : quic_peer_at(connection->endpoint, &connection->remote);
    return peer != NULL && peer->up != NULL && peer->up != connection;
}

/* After how long without an answer large datagrams, and the wait between probes, are suspected. The first
 * round trip of an attempt may contain much that has nothing to do with the path. */
static uint64_t quic_suspicion_ns(const struct quic_connection *connection)
{
    if (connection->state != QUIC_STATE_UP) {
        return connection->answered_ns != 0 ? QUIC_BLACK_HOLE_MIN_NS : QUIC_ATTEMPT_ASK_NS;
    }
    uint64_t limit_ns = QUIC_BLACK_HOLE_TIMEOUTS * ngtcp2_conn_get_pto2(connection->transport);
    return limit_ns > QUIC_BLACK_HOLE_MIN_NS ? limit_ns : QUIC_BLACK_HOLE_MIN_NS;
}

/* How often a probe is sent from then on. */
static uint64_t quic_hurry_every_ns(const struct quic_connection *connection)
{
    return connection->state == QUIC_STATE_UP ? QUIC_HURRY_NS : quic_suspicion_ns(connection);
}

static bool quic_has_under_way(const struct quic_connection *connection)
{
    ngtcp2_conn_info info;
    ngtcp2_conn_get_conn_info2(connection->transport, &info);
    return info.bytes_in_flight > 0;
}

/*
 * ngtcp2 does not notice when a path carries less than before: a link's MTU was lowered, or the route
 * changed. If packets stay unanswered, or no byte of a stream is acknowledged although small packets come,
 * datagrams are kept small for a while. If the path is dead instead, this does no harm.
 */
static void quic_connection_suspect_mtu(struct quic_connection *connection, uint64_t now_ns)
{
    size_t bytes = ngtcp2_conn_get_path_max_tx_udp_payload_size2(connection->transport);
    if (bytes <= NGTCP2_MAX_UDP_PAYLOAD_SIZE || now_ns < connection->small_until_ns) {
        return;
    }
    if (connection->small_until_ns != 0 &&
        now_ns - connection->small_until_ns > QUIC_BLACK_HOLE_HOLD_MAX_NS) {
        connection->small_hold_ns = QUIC_BLACK_HOLE_HOLD_NS;
    }
    char text[QUIC_CONNECTION_TEXT_MAX_BYTES];
    log_info("network: no answer from %s to datagrams of up to %zu bytes: smaller ones for %llu s",
             quic_connection_text(connection, text), bytes,
             (unsigned long long)(connection->small_hold_ns / TIME_S));
    connection->small_until_ns = now_ns + connection->small_hold_ns;
    connection->small_hold_ns = time_min(2 * connection->small_hold_ns, QUIC_BLACK_HOLE_HOLD_MAX_NS);
}

/*
 * ngtcp2's wait for the next probe doubles each time (RFC 9002, 6.2.1), and it has no limit. So by the time
 * that datagrams are small, or a dead path lives again, the next probe may be far. ngtcp2 sends it now if its
 * clock is set ahead. It measures round trips by the newest packet, so it learns nothing wrong.
 */
static void quic_connection_hurry(struct quic_connection *connection, uint64_t now_ns)
{
    uint64_t due_ns = ngtcp2_conn_get_expiry2(connection->transport);
    uint64_t at_ns = quic_transport_ns(connection, now_ns);
    /* ngtcp2's clock also counts idle time. */
    uint64_t idle_ns = connection->endpoint->idle_timeout_ns;
    uint64_t most_ns = connection->state == QUIC_STATE_UP   ? time_min(QUIC_HURRY_MAX_NS, idle_ns / 8)
                       : connection->ahead_ns < idle_ns / 2 ? idle_ns / 2 - connection->ahead_ns
                                                            : 0;
    if (due_ns > at_ns && due_ns - at_ns <= most_ns) {
        connection->ahead_ns += due_ns - at_ns;
    }
    connection->hurried_ns = now_ns;
}

/* When to suspect something, or to send the next probe. */
static uint64_t quic_suspicion_deadline_ns(const struct quic_connection *connection)
{
    uint64_t since_ns = quic_connection_waits_since_ns(connection);
    bool may_hurry = connection->state == QUIC_STATE_UP || quic_is_attempt(connection);
    if (!may_hurry || since_ns == TIME_NEVER || !quic_has_under_way(connection)) {
        return TIME_NEVER;
    }
    uint64_t first_ns = time_after(since_ns, quic_suspicion_ns(connection));
    uint64_t next_ns =
        connection->hurried_ns == 0 ? 0 : time_after(connection->hurried_ns, quic_hurry_every_ns(connection));
    return first_ns > next_ns ? first_ns : next_ns;
}

static void quic_connection_suspect(struct quic_connection *connection, uint64_t now_ns)
{
    if (!connection->failed && now_ns >= quic_suspicion_deadline_ns(connection)) {
        quic_connection_suspect_mtu(connection, now_ns);
        quic_connection_hurry(connection, now_ns);
    }
}

static void quic_connection_timer(void *context, uint64_t now_ns)
{
    struct quic_connection *connection = context;
    struct quic_endpoint *endpoint = connection->endpoint;
    if (connection->state == QUIC_STATE_CLOSED) {
        quic_connection_free(connection);
        return;
    }
    endpoint->in_event = true;
    endpoint->now_ns = now_ns;
    if (connection->state == QUIC_STATE_SUSPENDED) {
        quic_session_tick(connection, now_ns);
        endpoint->in_event = false;
        quic_settle(endpoint, now_ns);
        return;
    }
    quic_watch(connection, now_ns);
    quic_connection_suspect(connection, now_ns);
    int failure = ngtcp2_conn_handle_expiry(connection->transport, quic_transport_ns(connection, now_ns));
    if (failure != 0) {
        quic_connection_fail(connection, failure);
    } else {
        quic_work_flush(connection);
    }
    endpoint->in_event = false;
    quic_settle(endpoint, now_ns);
}

static struct quic_connection *quic_connection_new(struct quic_endpoint *endpoint,
                                                   const struct quic_address *remote)
{
    struct quic_connection *connection = calloc(1, sizeof *connection);
    if (connection == NULL) {
        return NULL;
    }
    connection->memory = quic_memory_new();
    if (connection->memory == NULL || loop_timer_new(endpoint->loop, quic_connection_timer, connection,
                                                     &connection->timer, NULL) != STATUS_OK) {
        free(connection->memory);
        free(connection);
        return NULL;
    }
    connection->endpoint = endpoint;
    connection->remote = *remote;
    connection->created_ns = endpoint->now_ns;
    connection->quick_acks = QUIC_QUICK_ACKS;
    connection->small_hold_ns = QUIC_BLACK_HOLE_HOLD_NS;
    connection->reference = (ngtcp2_crypto_conn_ref){.get_conn = quic_transport_of, .user_data = connection};
    ngtcp2_ccerr_default(&connection->close);
    DL_APPEND(endpoint->connections, connection);
    return connection;
}

/* Connects TLS to the transport. Takes ownership of tls. Returns false when out of memory. */
static bool quic_connection_secure(struct quic_connection *connection, SSL *tls)
{
    connection->tls = tls;
    if (tls == NULL || ngtcp2_crypto_ossl_ctx_new(&connection->crypto, tls) != 0) {
        return false;
    }
    SSL_set_app_data(tls, &connection->reference);
    ngtcp2_conn_set_tls_native_handle(connection->transport, connection->crypto);
    return true;
}

enum status quic_connection_dial(struct quic_endpoint *endpoint, struct quic_peer *peer,
                                 const struct quic_address *address, struct error *error)
{
    struct quic_address local;
    char text[QUIC_ADDRESS_TEXT_MAX_BYTES];
    if (!quic_socket_local_address(&endpoint->socket, address, &local)) {
        return error_set(error, STATUS_UNREACHABLE, "node %s: no route to %s", peer->name,
                         quic_address_text(address, text));
    }
    struct quic_connection *connection = quic_connection_new(endpoint, address);
    if (connection == NULL || quic_contact_of(peer) == NULL) {
        goto no_memory;
    }
    connection->dialled = true;
    ngtcp2_path path;
    ngtcp2_settings settings;
    ngtcp2_transport_params parameters;
    uint16_t probes[3];
    ngtcp2_cid destination = {.datalen = QUIC_INITIAL_DCID_BYTES};
    ngtcp2_cid source;
    quic_path(&path, &local, address);
    quic_settings(endpoint, address, probes, &settings, &parameters);
    if (RAND_bytes(destination.data, QUIC_INITIAL_DCID_BYTES) != 1 ||
        !quic_cid_new(connection, &source, QUIC_CID_BYTES) ||
        ngtcp2_conn_client_new(&connection->transport, &destination, &source, &path, NGTCP2_PROTO_VER_V1,
                               &quic_callbacks, &settings, &parameters, &connection->memory->functions,
                               connection) != 0 ||
        !quic_connection_secure(connection, quic_tls_dial(endpoint->tls, peer->name, &connection->refusal))) {
        goto no_memory;
    }
    connection->peer = peer;
    peer->dial = connection;
    quic_work_flush(connection);
    return STATUS_OK;

no_memory:
    if (connection != NULL) {
        quic_connection_free(connection);
    }
    return error_set(error, STATUS_NO_MEMORY, "no memory for a connection to node %s", peer->name);
}

struct quic_connection *quic_connection_accept(struct quic_endpoint *endpoint, const ngtcp2_pkt_hd *header,
                                               const ngtcp2_cid *original,
                                               const struct quic_datagram *datagram)
{
    struct quic_connection *connection = quic_connection_new(endpoint, datagram->remote);
    if (connection == NULL) {
        return NULL;
    }
    ngtcp2_path path;
    ngtcp2_settings settings;
    ngtcp2_transport_params parameters;
    uint16_t probes[3];
    ngtcp2_cid source;
    struct quic_contact *contact =
        original != NULL ? quic_contact_of(quic_peer_at(endpoint, datagram->remote)) : NULL;
    if (!quic_admission_take(&endpoint->admission, datagram->remote, contact == NULL ? NULL : &contact->slots,
                             original != NULL, &connection->slot)) {
        quic_connection_free(connection);
        return NULL;
    }
    quic_path(&path, datagram->local, datagram->remote);
    quic_settings(endpoint, datagram->remote, probes, &settings, &parameters);
    parameters.original_dcid = original != NULL ? *original : header->dcid;
    parameters.original_dcid_present = 1;
    parameters.stateless_reset_token_present = 1;
    if (original != NULL) {
        parameters.retry_scid = header->dcid;
        parameters.retry_scid_present = 1;
        settings.token = header->token;
        settings.tokenlen = header->tokenlen;
        settings.token_type = NGTCP2_TOKEN_TYPE_RETRY;
    }
    if (!quic_cid_add(connection, false, header->dcid.data, header->dcid.datalen) ||
        !quic_cid_new(connection, &source, QUIC_CID_BYTES) ||
        ngtcp2_crypto_generate_stateless_reset_token(parameters.stateless_reset_token, endpoint->reset_secret,
                                                     sizeof endpoint->reset_secret, &source) != 0 ||
        ngtcp2_conn_server_new(&connection->transport, &header->scid, &source, &path, header->version,
                               &quic_callbacks, &settings, &parameters, &connection->memory->functions,
                               connection) != 0 ||
        !quic_connection_secure(connection, quic_tls_accept(endpoint->tls, &connection->refusal))) {
        quic_connection_free(connection);
        return NULL;
    }
    return connection;
}

void quic_connection_dissolve(struct quic_connection *connection)
{
    quic_admission_give_back(&connection->endpoint->admission, &connection->slot);
    if (connection->tls != NULL) {
        SSL_set_app_data(connection->tls, NULL);
    }
    SSL_free(connection->tls);
    ngtcp2_crypto_ossl_ctx_del(connection->crypto);
    quic_memory_delete(connection->memory, connection->transport, &connection->endpoint->deletions);
    connection->tls = NULL;
    connection->crypto = NULL;
    connection->transport = NULL;
    connection->memory = NULL;
}

void quic_connection_free(struct quic_connection *connection)
{
    assert(connection->senders == NULL && connection->receivers == NULL);
    DL_DELETE(connection->endpoint->connections, connection);
    quic_work_forget_connection(connection);
    quic_connection_dissolve(connection);
    quic_session_clear(connection);
    while (connection->cids != NULL) {
        quic_cid_drop(connection, connection->cids);
    }
    loop_timer_free(connection->timer);
    free(connection->close_packet);
    free(connection);
}

/* --- Reading and time --- */

const char *quic_connection_text(const struct quic_connection *connection,
                                 char text[QUIC_CONNECTION_TEXT_MAX_BYTES])
{
    char address[QUIC_ADDRESS_TEXT_MAX_BYTES];
    quic_address_text(&connection->remote, address);
    if (connection->peer == NULL) {
        snprintf(text, QUIC_CONNECTION_TEXT_MAX_BYTES, "%s", address);
    } else {
        snprintf(text, QUIC_CONNECTION_TEXT_MAX_BYTES, "node %s (%s)", connection->peer->name, address);
    }
    return text;
}

/* RFC 9000, 10.2.1: if packets still arrive, the close packet is sent again, less and less often. */
static void quic_closed_read(struct quic_connection *connection, const struct quic_datagram *datagram)
{
    uint64_t count = ++connection->closed_received;
    if (connection->close_packet != NULL && (count & (count - 1)) == 0) {
        quic_write_single(connection->endpoint, datagram->local, datagram->remote, connection->close_packet,
                          connection->close_packet_bytes);
    }
}

/* Whether the datagram that was just read is acknowledged without waiting for data to send. */
static bool acknowledges_at_once(struct quic_connection *connection)
{
    if (connection->state == QUIC_STATE_UP && connection->quick_acks > 0) {
        connection->quick_acks--;
        return true;
    }
    return connection->state != QUIC_STATE_UP || connection->unflushed >= QUIC_ACK_THRESHOLD;
}

int quic_connection_read(struct quic_connection *connection, const struct quic_datagram *datagram)
{
    if (connection->transport == NULL) {
        quic_closed_read(connection, datagram);
        return 0;
    }
    if (connection->failed) {
        return 0; /* it is closed before the event ends */
    }
    ngtcp2_path path;
    ngtcp2_pkt_info info = {.ecn = datagram->ecn};
    quic_path(&path, datagram->local, datagram->remote);
    if (connection->state == QUIC_STATE_HANDSHAKE) {
        ERR_clear_error(); /* TLS would take errors left by other calls for its own */
    }
    connection->came_alone =
        datagram->size < QUIC_ACK_ALONE_BYTES && connection->read_ns != connection->endpoint->now_ns;
    connection->read_ns = connection->endpoint->now_ns;
    bool from_peer = quic_watch_origin(connection, datagram->remote);
    int failure = ngtcp2_conn_read_pkt(connection->transport, &path, &info, datagram->bytes, datagram->size,
                                       quic_transport_ns(connection, connection->endpoint->now_ns));
    connection->unanswered_ns = from_peer ? 0 : connection->unanswered_ns;
    connection->answered_ns = connection->answered_ns != 0 ? connection->answered_ns : connection->read_ns;
    if (failure != 0) {
        quic_connection_fail(connection, failure);
        return failure;
    }
    connection->unflushed++;
    if (acknowledges_at_once(connection)) {
        quic_work_flush(connection);
    } else {
        quic_connection_hold(connection);
    }
    return 0;
}

void quic_connection_arm(struct quic_connection *connection)
{
    uint64_t due_ns = ngtcp2_conn_get_expiry2(connection->transport);
    due_ns = due_ns > connection->ahead_ns ? due_ns - connection->ahead_ns : 0;
    due_ns = time_min(due_ns, quic_watch_deadline_ns(connection));
    if (connection->ready_data != NULL && quic_write_pauses(connection)) {
        due_ns = time_min(due_ns, connection->paused_until_ns);
    }
    connection->armed_ns = time_min(due_ns, quic_suspicion_deadline_ns(connection));
    loop_timer_set(connection->timer, connection->armed_ns);
}

uint64_t quic_round_trip_ns(const ngtcp2_conn_info *info)
{
    return time_min(info->smoothed_rtt, QUIC_ROUND_TRIP_MOST * info->latest_rtt);
}

void quic_connection_hold(struct quic_connection *connection)
{
    bool shorter = connection->holds_long && !connection->came_alone;
    if (connection->transport == NULL || work_is_listed(&connection->flush) ||
        (connection->holding && !shorter)) {
        return;
    }
    ngtcp2_conn_info info;
    ngtcp2_conn_get_conn_info2(connection->transport, &info);
    uint64_t least_ns = connection->came_alone ? QUIC_ACK_ALONE_NS : QUIC_ACK_HOLD_MIN_NS;
    uint64_t hold_ns = time_min(quic_round_trip_ns(&info) / 8, QUIC_MAX_ACK_DELAY_NS);
    hold_ns = hold_ns > least_ns ? hold_ns : least_ns;
    connection->holding = true;
    connection->holds_long = connection->came_alone;
    connection->armed_ns = time_min(connection->armed_ns, connection->endpoint->now_ns + hold_ns);
    loop_timer_set(connection->timer, connection->armed_ns);
}
