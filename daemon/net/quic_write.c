#include <assert.h>
#include <utlist.h>

#include "daemon/net/quic_internal.h"

bool quic_write_small(const struct quic_connection *connection)
{
    return connection->endpoint->now_ns < connection->small_until_ns;
}

/* --- Streams in turn --- */

/*
 * Returns the stream to send next, and how many bytes it may send. Control streams go first, and a part of
 * the connection's window is kept for them. So heartbeats and aborts get through even if the receiver holds
 * back many data streams. Returns null when no stream may send.
 */
static struct quic_sender *quic_write_next(const struct quic_connection *connection, uint64_t *max_bytes)
{
    uint64_t left = ngtcp2_conn_get_max_data_left2(connection->transport);
    if (connection->ready_control != NULL && left > 0) {
        *max_bytes = left;
        return connection->ready_control;
    }
    if (connection->ready_data != NULL && left > QUIC_CONTROL_RESERVE_BYTES &&
        !quic_write_pauses(connection)) {
        *max_bytes = left - QUIC_CONTROL_RESERVE_BYTES;
        return connection->ready_data;
    }
    return NULL;
}

/* For ngtcp2_write_pkt: writes one packet of whatever there is to send. */
static ngtcp2_ssize quic_write_packet(ngtcp2_conn *transport, ngtcp2_path *path, ngtcp2_pkt_info *info,
                                      uint8_t *out, size_t size, ngtcp2_tstamp now_ns, void *context)
{
    struct quic_connection *connection = context;
    if (size > NGTCP2_MAX_UDP_PAYLOAD_SIZE && quic_write_small(connection)) {
        size = NGTCP2_MAX_UDP_PAYLOAD_SIZE;
    }
    for (;;) {
        ngtcp2_vec vectors[QUIC_VECTORS_MAX];
        uint64_t max_bytes = 0;
        size_t total = 0;
        size_t count = 0;
        bool fin = false;
        ngtcp2_ssize accepted = -1;
        int64_t id = -1;
        uint32_t flags = NGTCP2_WRITE_STREAM_FLAG_NONE;
        struct quic_sender *sender = quic_write_next(connection, &max_bytes);
        if (sender != NULL) {
            max_bytes = max_bytes < size ? max_bytes : size; /* a packet holds no more */
            count = quic_sender_offer(sender, max_bytes, vectors, &total, &fin);
            id = sender->id;
            flags = NGTCP2_WRITE_STREAM_FLAG_MORE | (fin ? NGTCP2_WRITE_STREAM_FLAG_FIN : 0u);
        }
        ngtcp2_ssize written = ngtcp2_conn_writev_stream(transport, path, info, out, size, &accepted, flags,
                                                         id, vectors, count, now_ns);
        if (sender == NULL) {
            return written;
        }
        if (accepted >= 0) {
            quic_sender_sent(sender, (size_t)accepted, fin && (size_t)accepted == total);
        }
        switch (written) {
        case NGTCP2_ERR_WRITE_MORE:
            break;
        case NGTCP2_ERR_STREAM_DATA_BLOCKED:
            sender->blocked = true;
            quic_sender_unready(sender);
            break;
        case NGTCP2_ERR_STREAM_SHUT_WR:
        case NGTCP2_ERR_STREAM_NOT_FOUND:
            sender->shut = true;
            quic_sender_unready(sender);
            break;
        default:
            return written;
        }
    }
}

/* --- Batches --- */

static void quic_batch_send(struct quic_endpoint *endpoint, const struct quic_batch *batch)
{
    endpoint->blocked_sent_bytes = 0;
    if (quic_socket_send(&endpoint->socket, batch, &endpoint->blocked_sent_bytes) == QUIC_SEND_BLOCKED) {
        endpoint->blocked = *batch;
        loop_watch_set(endpoint->watch, LOOP_READ | LOOP_WRITE);
    }
}

void quic_flush_blocked(struct quic_endpoint *endpoint)
{
    if (endpoint->blocked.size > 0 && quic_socket_send(&endpoint->socket, &endpoint->blocked,
                                                       &endpoint->blocked_sent_bytes) == QUIC_SEND_BLOCKED) {
        return;
    }
    endpoint->blocked.size = 0;
    loop_watch_set(endpoint->watch, LOOP_READ);
}

/*
 * Spreads packets over the round-trip time (RFC 9002, 7.7): data streams make a pause. Not while the nodes
 * connect, as they wait for each other. A pause makes up for all bytes since the last one. If it begins late,
 * as timers do, it is shorter. ngtcp2 can make such pauses, too, but computes them with the smoothed
 * round-trip time, and lets control streams wait as well.
 */
static void pace(struct quic_connection *connection, const ngtcp2_conn_info *info, uint64_t now_ns)
{
    double round_trips = QUIC_PACE_PART * (double)connection->unpaced_bytes / (double)info->cwnd;
    double pause_ns = round_trips * (double)quic_round_trip_ns(info);
    connection->unpaced_bytes = 0;
    if (connection->state != QUIC_STATE_UP) {
        return;
    }
    uint64_t whole_ns = time_min((uint64_t)pause_ns, QUIC_PACE_PAUSE_MAX_NS);
    uint64_t least_ns = now_ns + whole_ns / 2;
    uint64_t paused_ns = connection->paused_until_ns + whole_ns;
    connection->paused_until_ns = paused_ns > least_ns ? paused_ns : least_ns;
}

bool quic_write_pauses(const struct quic_connection *connection)
{
    return connection->endpoint->now_ns < connection->paused_until_ns;
}

static bool quic_write_more(const struct quic_connection *connection)
{
    return connection->ready_control != NULL ||
           (connection->ready_data != NULL && !quic_write_pauses(connection));
}

/* Returns whether there may be more to write. */
static bool quic_write_batch(struct quic_connection *connection, uint64_t now_ns)
{
    struct quic_endpoint *endpoint = connection->endpoint;
    ngtcp2_path_storage path;
    ngtcp2_pkt_info info = {.ecn = 0};
    size_t datagram_bytes = 0;
    ngtcp2_path_storage_zero(&path);
    ngtcp2_ssize size = ngtcp2_conn_write_aggregate_pkt2(
        connection->transport, &path.path, &info, endpoint->send_buffer, QUIC_BATCH_MAX_BYTES,
        &datagram_bytes, quic_write_packet, QUIC_BATCH_MAX_DATAGRAMS, quic_transport_ns(connection, now_ns));
    if (size < 0) {
        quic_connection_fail(connection, (int)size);
        return false;
    }
    if (size == 0) {
        return false;
    }
    ngtcp2_conn_info under_way;
    ngtcp2_conn_get_conn_info2(connection->transport, &under_way);
    if (connection->unanswered_ns == 0) {
        connection->unanswered_ns = under_way.bytes_in_flight > 0 ? now_ns : 0;
    }
    struct quic_batch batch = {
        .bytes = endpoint->send_buffer,
        .size = (size_t)size,
        .datagram_bytes = datagram_bytes,
        .ecn = (uint8_t)info.ecn,
    };
    if (quic_address_set(&batch.local, path.path.local.addr, path.path.local.addrlen) &&
        quic_address_set(&batch.remote, path.path.remote.addr, path.path.remote.addrlen)) {
        quic_batch_send(endpoint, &batch);
    }
    connection->unpaced_bytes += (size_t)size;
    connection->row_bytes += (size_t)size;
    if (under_way.bytes_in_flight < QUIC_PACE_BYTES && connection->row_bytes < QUIC_PACE_BYTES) {
        return quic_write_more(connection);
    }
    connection->row_bytes = 0;
    pace(connection, &under_way, now_ns);
    return quic_write_more(connection);
}

void quic_flush(struct quic_endpoint *endpoint, uint64_t now_ns)
{
    unsigned batches = 0;
    while (endpoint->flushes.count > 0 && endpoint->blocked.size == 0 && batches < QUIC_FLUSH_BATCHES) {
        uint32_t left = 1;
        struct quic_connection *connection = work_list_take(&endpoint->flushes, &left);
        connection->holding = false;
        connection->unflushed = 0;
        if (connection->failed) {
            continue; /* it only has to be closed */
        }
        batches++;
        if (quic_write_batch(connection, now_ns)) {
            quic_work_flush(connection);
        } else if (!connection->failed) {
            quic_connection_arm(connection);
        }
    }
}

void quic_write_single(struct quic_endpoint *endpoint, const struct quic_address *local,
                       const struct quic_address *remote, const uint8_t *bytes, size_t size)
{
    struct quic_batch batch = {
        .bytes = bytes, .size = size, .datagram_bytes = size, .local = *local, .remote = *remote};
    size_t sent_bytes = 0;
    assert(size > 0);
    if (endpoint->blocked.size == 0) {
        (void)quic_socket_send(&endpoint->socket, &batch, &sent_bytes);
    }
}
