#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include <utlist.h>

#include "daemon/net/quic_internal.h"

#define QUIC_BUFFER_MIN_BYTES 512u
#define GRANT_TRIES 3

static const struct net_stream_handler *quic_receiver_handler(const struct quic_receiver *receiver)
{
    return &receiver->stream.base.net->stream_handlers[receiver->stream.base.kind];
}

struct quic_receiver *quic_receiver_new(struct quic_connection *connection, int64_t id)
{
    struct quic_receiver *receiver = calloc(1, sizeof *receiver);
    if (receiver == NULL) {
        return NULL;
    }
    receiver->stream.base.net = &connection->endpoint->base;
    receiver->stream.incoming = true;
    receiver->endpoint = connection->endpoint;
    receiver->connection = connection;
    receiver->id = id;
    receiver->granted_end = NET_STREAM_FIRST_WINDOW_BYTES;
    DL_APPEND(connection->receivers, receiver);
    ngtcp2_conn_set_stream_user_data(connection->transport, id, receiver);
    return receiver;
}

static void quic_buffer_drop(struct quic_receiver *receiver)
{
    free(receiver->buffer);
    receiver->buffer = NULL;
    receiver->buffer_first = 0;
    receiver->buffer_bytes = 0;
    receiver->buffer_capacity = 0;
}

/* Grants the sender more bytes, as far as consumed and expected bytes allow; not byte by byte. */
static void quic_receiver_grant(struct quic_receiver *receiver)
{
    struct quic_connection *connection = receiver->connection;
    uint64_t limit = net_stream_limit(&receiver->stream.base, receiver->consumed_end, receiver->expected_end);
    uint64_t step = (limit - receiver->consumed_end) / 4;
    if (receiver->id < 0 || receiver->transport_over || receiver->stopped || receiver->reset ||
        receiver->ended || connection->transport == NULL || limit < receiver->granted_end + step ||
        limit == receiver->granted_end) {
        return;
    }
    /* After a failure ngtcp2 counts the bytes as granted, but does not send that. A sender without room would
     * wait for ever, and the heartbeats behind it too. So it is asked again, without more bytes. */
    uint64_t more_bytes = limit - receiver->granted_end;
    for (int tries = 0; tries < GRANT_TRIES; tries++) {
        if (ngtcp2_conn_extend_max_stream_offset(connection->transport, receiver->id, more_bytes) == 0) {
            break;
        }
        more_bytes = 0;
    }
    receiver->granted_end = limit;
    quic_connection_hold(connection);
}

uint64_t quic_receiver_received(const struct quic_receiver *receiver)
{
    return receiver->consumed_end + receiver->buffer_bytes;
}

void quic_receiver_consumed(struct quic_receiver *receiver, size_t size)
{
    receiver->consumed_end += size;
    quic_receiver_grant(receiver);
}

/*
 * The connection's window only limits bytes under way. Bytes that have arrived are credited back at once,
 * even if a stream keeps them. So a stream that is held back does not delay others. The streams' windows
 * limit what is kept.
 */
static void quic_connection_credit(struct quic_connection *connection, size_t size)
{
    if (size > 0 && connection->transport != NULL) {
        ngtcp2_conn_extend_max_offset(connection->transport, size);
        quic_connection_hold(connection);
    }
}

/* Calls made by the handler have no effect any more. */
static void quic_receiver_tell_closed(struct quic_receiver *receiver, const struct error *cause, bool quiet,
                                      uint64_t now_ns)
{
    const struct net_stream_handler *handler = quic_receiver_handler(receiver);
    bool tell = !quiet && receiver->announced && handler->closed != NULL;
    receiver->closing = true;
    receiver->announced = false;
    if (tell) {
        handler->closed(handler->context, &receiver->stream.base, cause, now_ns);
    }
    quic_buffer_drop(receiver);
}

void quic_receiver_close(struct quic_receiver *receiver, const struct error *cause, bool quiet,
                         uint64_t now_ns)
{
    struct quic_connection *connection = receiver->connection;
    DL_DELETE(connection->receivers, receiver);
    quic_work_forget_receiver(receiver);
    if (receiver->id < 0) {
        (void)quic_session_take_unresumed(connection, receiver->number);
    }
    quic_receiver_tell_closed(receiver, cause, quiet, now_ns);
    if (connection->transport != NULL && receiver->id >= 0) {
        if (receiver->transport_over) {
            ngtcp2_conn_extend_max_streams_uni(connection->transport, 1);
            quic_work_flush(connection);
        } else {
            ngtcp2_conn_set_stream_user_data(connection->transport, receiver->id, NULL);
        }
    }
    net_stream_charge(&receiver->stream.base, NULL);
    free(receiver);
}

/* --- Bytes --- */

/* Keeps bytes that were not consumed: at most a window of them, as no more is granted. Returns false when out
 * of memory. */
static bool quic_receiver_keep(struct quic_receiver *receiver, const uint8_t *bytes, size_t size)
{
    assert(size > 0 && receiver->buffer_bytes + size <= receiver->granted_end - receiver->consumed_end);
    if (receiver->buffer_first + receiver->buffer_bytes + size > receiver->buffer_capacity) {
        size_t needed = receiver->buffer_bytes + size;
        size_t most = (size_t)(receiver->granted_end - receiver->consumed_end);
        size_t capacity = needed < QUIC_BUFFER_MIN_BYTES ? QUIC_BUFFER_MIN_BYTES : needed + needed / 2;
        capacity = capacity < most || needed > most ? capacity : most;
        uint8_t *buffer = malloc(capacity);
        if (buffer == NULL) {
            return false;
        }
        if (receiver->buffer_bytes > 0) {
            memcpy(buffer, receiver->buffer + receiver->buffer_first, receiver->buffer_bytes);
        }
        free(receiver->buffer);
        receiver->buffer = buffer;
        receiver->buffer_first = 0;
        receiver->buffer_capacity = capacity;
    }
    memcpy(receiver->buffer + receiver->buffer_first + receiver->buffer_bytes, bytes, size);
    receiver->buffer_bytes += size;
    return true;
}

/* Returns how many bytes the handler consumed. */
static size_t quic_receiver_call(struct quic_receiver *receiver, const uint8_t *bytes, size_t size,
                                 uint64_t now_ns)
{
    const struct net_stream_handler *handler = quic_receiver_handler(receiver);
    receiver->announced = true;
    receiver->calling = true;
    receiver->resumed = false;
    size_t used =
        handler->receive(handler->context, &receiver->stream.base, bytes, size, receiver->ended, now_ns);
    receiver->calling = false;
    assert(used <= size);
    receiver->held = used < size;
    if (!receiver->held) {
        receiver->resumed = false; /* nothing is left to hand out again */
    }
    quic_receiver_consumed(receiver, used);
    return used;
}

static void quic_receiver_tell_kept(struct quic_receiver *receiver, size_t size)
{
    const struct net_stream_handler *handler = quic_receiver_handler(receiver);
    if (size > 0 && handler->kept != NULL) {
        handler->kept(handler->context, &receiver->stream.base, size, receiver->endpoint->now_ns);
    }
}

/* Keeps what comes before the connection is in use. */
static int quic_receiver_early(struct quic_receiver *receiver, const uint8_t *bytes, size_t size, bool end)
{
    receiver->early = true;
    receiver->early_end = receiver->early_end || end;
    if (!quic_begin_early(receiver->connection, size)) {
        return NGTCP2_ERR_CALLBACK_FAILURE;
    }
    if (size > 0 && !quic_receiver_keep(receiver, bytes, size)) {
        quic_connection_abort(receiver->connection, STATUS_NO_MEMORY,
                              "no memory for what a stream holds back");
        return NGTCP2_ERR_CALLBACK_FAILURE;
    }
    return 0;
}

/* Takes bytes of a stream whose beginning is known. */
static int quic_receiver_take(struct quic_receiver *receiver, const uint8_t *bytes, size_t size)
{
    struct quic_connection *connection = receiver->connection;
    size_t used = size;
    bool wanted = !receiver->stopped && (size > 0 || receiver->ended);
    bool behind = receiver->held;
    if (wanted && behind) {
        used = 0;
    } else if (wanted) {
        used = quic_receiver_call(receiver, bytes, size, connection->endpoint->now_ns);
    }
    net_stream_carried(&receiver->stream.base, size, connection->endpoint->now_ns);
    /* A frame that only ends the stream has no bytes, and perhaps no address. */
    if (!receiver->stopped && used < size && !quic_receiver_keep(receiver, bytes + used, size - used)) {
        quic_connection_abort(connection, STATUS_NO_MEMORY, "no memory for what a stream holds back");
        return NGTCP2_ERR_CALLBACK_FAILURE;
    }
    if (wanted && behind && receiver->announced) {
        quic_receiver_tell_kept(receiver, size);
    }
    if (receiver->ended && !receiver->held) {
        quic_work_receiver(receiver);
    }
    return 0;
}

/* Takes any bytes of a stream of a connection that is in use, or of the peer's greeting. */
static int quic_receiver_route(struct quic_receiver *receiver, const uint8_t *bytes, size_t size, bool end)
{
    if (!receiver->kind_known && size > 0) {
        ptrdiff_t taken = quic_begin_take(&receiver, bytes, size);
        if (taken < 0) {
            return NGTCP2_ERR_CALLBACK_FAILURE;
        }
        bytes += taken;
        size -= (size_t)taken;
    }
    receiver->ended = receiver->ended || end;
    if (receiver->greeting) {
        return quic_begin_greeting(receiver, bytes, size) ? 0 : NGTCP2_ERR_CALLBACK_FAILURE;
    }
    if (receiver->kind_known) {
        return quic_receiver_take(receiver, bytes, size);
    }
    if (receiver->ended) { /* before its beginning had come: nothing to hand out */
        quic_work_receiver(receiver);
    }
    return 0;
}

void quic_receiver_take_early(struct quic_receiver *receiver)
{
    uint8_t *buffer = receiver->buffer;
    const uint8_t *bytes = buffer != NULL ? buffer + receiver->buffer_first : NULL;
    size_t size = receiver->buffer_bytes;
    if (receiver->early) {
        receiver->early = false;
        receiver->buffer = NULL;
        quic_buffer_drop(receiver);
        (void)quic_receiver_route(receiver, bytes, size, receiver->early_end);
        free(buffer);
    }
}

int quic_receiver_bytes(struct quic_connection *connection, struct quic_receiver *receiver, int64_t id,
                        const uint8_t *bytes, size_t size, bool end)
{
    if (connection->failed) {
        return 0; /* it is closed before the event ends; handlers get nothing more */
    }
    if (receiver == NULL) {
        receiver = quic_receiver_new(connection, id);
        if (receiver == NULL) {
            quic_connection_abort(connection, STATUS_NO_MEMORY, "no memory for another stream");
            return NGTCP2_ERR_CALLBACK_FAILURE;
        }
    }
    quic_connection_credit(connection, size);
    bool greets = receiver->greeting || (!receiver->early && size > 0 && receiver->beginning_bytes == 0 &&
                                         bytes[0] == QUIC_KIND_GREETING);
    bool is_early =
        connection->state == QUIC_STATE_HANDSHAKE || (connection->state == QUIC_STATE_GREETING && !greets);
    return is_early ? quic_receiver_early(receiver, bytes, size, end)
                    : quic_receiver_route(receiver, bytes, size, end);
}

/* --- Calls from ngtcp2, and to the handler --- */

void quic_receiver_reset_received(struct quic_receiver *receiver, uint64_t code)
{
    if (!receiver->stopped && !receiver->reset) {
        receiver->reset = true;
        receiver->reset_code = code;
        quic_work_receiver(receiver);
    }
}

void quic_receiver_transport_over(struct quic_receiver *receiver)
{
    receiver->transport_over = true;
    if (receiver->over) {
        quic_work_receiver(receiver);
    }
}

void quic_receiver_stop(struct quic_receiver *receiver)
{
    struct quic_connection *connection = receiver->connection;
    if (receiver->stopped || receiver->closing) {
        return;
    }
    receiver->stopped = true;
    if (connection->transport != NULL && receiver->id >= 0 && !receiver->transport_over) {
        (void)ngtcp2_conn_shutdown_stream_read(connection->transport, 0, receiver->id, STATUS_ABORTED);
        quic_work_flush(connection);
    }
    quic_work_receiver(receiver);
}

void quic_stream_expect(struct net_stream *stream, uint64_t size)
{
    struct quic_receiver *receiver = (struct quic_receiver *)stream;
    assert(receiver->stream.incoming);
    uint64_t end = receiver->consumed_end + size;
    if (!receiver->closing && end > receiver->expected_end) {
        receiver->expected_end = end;
        quic_receiver_grant(receiver);
    }
}

void quic_stream_resume(struct net_stream *stream)
{
    struct quic_receiver *receiver = (struct quic_receiver *)stream;
    assert(receiver->stream.incoming);
    if ((receiver->held || receiver->calling) && !receiver->stopped && !receiver->closing) {
        receiver->resumed = true;
        quic_work_receiver(receiver);
    }
}

/* Hands out again what was left, directly from the buffer: nothing arrives during the call. */
static void quic_receiver_again(struct quic_receiver *receiver, uint64_t now_ns)
{
    static const uint8_t nothing[1];
    const uint8_t *bytes = receiver->buffer == NULL ? nothing : receiver->buffer + receiver->buffer_first;
    size_t used = quic_receiver_call(receiver, bytes, receiver->buffer_bytes, now_ns);
    net_stream_carried(&receiver->stream.base, used, now_ns);
    receiver->buffer_first += used;
    receiver->buffer_bytes -= used;
    if (receiver->buffer_bytes == 0) {
        quic_buffer_drop(receiver);
    }
}

/* The handler is told that the stream is over. If the sender does not know yet, the receiver stays, because
 * the next connection's greeting has to name it. */
static void quic_receiver_given_up(struct quic_receiver *receiver, uint64_t now_ns)
{
    struct error cause;
    error_set(&cause, STATUS_ABORTED, "stream of node %s given up by node %s",
              receiver->connection->peer->name, receiver->endpoint->node_name);
    if (receiver->transport_over || receiver->ended || !receiver->kind_known) {
        quic_receiver_close(receiver, &cause, receiver->over, now_ns);
    } else if (!receiver->over) {
        receiver->over = true;
        quic_receiver_tell_closed(receiver, &cause, false, now_ns);
    }
}

/* A stream was reset before its beginning had come. If it went on from another connection, its number is in
 * the code. */
static void quic_receiver_reset_unbegun(const struct quic_receiver *receiver)
{
    struct quic_connection *connection = receiver->connection;
    struct quic_receiver *known =
        !receiver->kind_known && receiver->reset_code >= QUIC_RESET_NUMBERED
            ? quic_session_take_unresumed(connection, receiver->reset_code - QUIC_RESET_NUMBERED)
            : NULL;
    if (known != NULL && !known->stopped) {
        known->reset = true;
        quic_work_receiver(known);
    } else if (known != NULL) {
        quic_receiver_close(known, NULL, true, connection->endpoint->now_ns);
    }
}

void quic_receiver_work(struct quic_receiver *receiver, uint64_t now_ns)
{
    struct quic_connection *connection = receiver->connection;
    struct error cause;
    if (connection->failed ||
        (connection->state != QUIC_STATE_UP && connection->state != QUIC_STATE_SUSPENDED)) {
        return; /* it is closed with the connection, or taken when the connection is in use */
    }
    if (receiver->resumed && receiver->held && !receiver->stopped && !receiver->reset) {
        quic_receiver_again(receiver, now_ns);
        if (connection->failed) {
            return;
        }
    }
    if (receiver->stopped) {
        quic_receiver_given_up(receiver, now_ns);
    } else if (receiver->reset) {
        quic_receiver_reset_unbegun(receiver);
        error_set(&cause, STATUS_ABORTED, "node %s gave the stream up", connection->peer->name);
        quic_receiver_close(receiver, &cause, false, now_ns);
    } else if (receiver->ended && !receiver->held) {
        quic_receiver_close(receiver, NULL, false, now_ns);
    }
}
