#include <assert.h>
#include <stdlib.h>

#include <utlist.h>

#include "daemon/net/quic_internal.h"

#define GRANT_TRIES 3

struct quic_receiver *quic_receiver_new(struct quic_connection *connection, int64_t id)
{
    struct quic_receiver *receiver = calloc(1, sizeof *receiver);
    if (receiver == NULL) {
        return NULL;
    }
    receiver->stream.net = &connection->endpoint->base;
    receiver->stream.incoming = true;
    receiver->endpoint = connection->endpoint;
    receiver->connection = connection;
    receiver->id = id;
    receiver->intake.granted_end = NET_STREAM_FIRST_WINDOW_BYTES;
    DL_APPEND(connection->receivers, receiver);
    ngtcp2_conn_set_stream_user_data(connection->transport, id, receiver);
    return receiver;
}

/* Grants the sender more bytes, as far as consumed and expected bytes allow; not byte by byte. */
static void quic_receiver_grant(struct quic_receiver *receiver)
{
    struct quic_connection *connection = receiver->connection;
    uint64_t limit = stream_intake_grant(&receiver->intake, &receiver->stream);
    if (limit == 0 || receiver->id < 0 || receiver->transport_over || connection->transport == NULL) {
        return;
    }
    /* After a failure ngtcp2 counts the bytes as granted, but does not send that. A sender without room would
     * wait for ever, and the heartbeats behind it too. So it is asked again, without more bytes. */
    uint64_t more_bytes = limit - receiver->intake.granted_end;
    for (int tries = 0; tries < GRANT_TRIES; tries++) {
        if (ngtcp2_conn_extend_max_stream_offset(connection->transport, receiver->id, more_bytes) == 0) {
            break;
        }
        more_bytes = 0;
    }
    receiver->intake.granted_end = limit;
    quic_connection_hold(connection);
}

void quic_receiver_consumed(struct quic_receiver *receiver, size_t size)
{
    receiver->intake.consumed_end += size;
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

void quic_receiver_close(struct quic_receiver *receiver, const struct error *cause, bool quiet,
                         uint64_t now_ns)
{
    struct quic_connection *connection = receiver->connection;
    DL_DELETE(connection->receivers, receiver);
    work_list_remove(&receiver->endpoint->receiver_work, &receiver->work);
    if (receiver->id < 0) {
        (void)quic_session_take_unresumed(connection, receiver->number);
    }
    stream_intake_close(&receiver->intake, &receiver->stream, cause, quiet, now_ns);
    if (connection->transport != NULL && receiver->id >= 0) {
        if (receiver->transport_over) {
            ngtcp2_conn_extend_max_streams_uni(connection->transport, 1);
            quic_work_flush(connection);
        } else {
            ngtcp2_conn_set_stream_user_data(connection->transport, receiver->id, NULL);
        }
    }
    net_stream_charge(&receiver->stream, NULL);
    free(receiver);
}

/* --- Bytes --- */

/* Keeps what comes before the connection is in use. */
static int quic_receiver_early(struct quic_receiver *receiver, const uint8_t *bytes, size_t size, bool end)
{
    receiver->early = true;
    receiver->early_end = receiver->early_end || end;
    if (!quic_begin_early(receiver->connection, size)) {
        return NGTCP2_ERR_CALLBACK_FAILURE;
    }
    if (size > 0 && !stream_intake_keep(&receiver->intake, bytes, size)) {
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
    struct stream_intake *intake = &receiver->intake;
    if ((size > 0 || intake->ended) &&
        !stream_intake_take(intake, &receiver->stream, bytes, size, connection->endpoint->now_ns)) {
        quic_connection_abort(connection, STATUS_NO_MEMORY, "no memory for what a stream holds back");
        return NGTCP2_ERR_CALLBACK_FAILURE;
    }
    quic_receiver_grant(receiver);
    if (intake->ended && !intake->held) {
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
    receiver->intake.ended = receiver->intake.ended || end;
    if (receiver->greeting) {
        return quic_begin_greeting(receiver, bytes, size) ? 0 : NGTCP2_ERR_CALLBACK_FAILURE;
    }
    if (receiver->kind_known) {
        return quic_receiver_take(receiver, bytes, size);
    }
    if (receiver->intake.ended) { /* before its beginning had come: nothing to hand out */
        quic_work_receiver(receiver);
    }
    return 0;
}

void quic_receiver_take_early(struct quic_receiver *receiver)
{
    uint8_t *buffer = receiver->intake.buffer;
    const uint8_t *bytes = buffer != NULL ? buffer + receiver->intake.buffer_first : NULL;
    size_t size = receiver->intake.buffer_bytes;
    if (receiver->early) {
        receiver->early = false;
        receiver->intake.buffer = NULL;
        stream_intake_drop(&receiver->intake);
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
    if (!receiver->intake.stopped && !receiver->intake.reset) {
        receiver->intake.reset = true;
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
    if (receiver->intake.stopped || receiver->intake.closing) {
        return;
    }
    receiver->intake.stopped = true;
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
    if (stream_intake_expect(&receiver->intake, size)) {
        quic_receiver_grant(receiver);
    }
}

void quic_stream_resume(struct net_stream *stream)
{
    struct quic_receiver *receiver = (struct quic_receiver *)stream;
    assert(receiver->stream.incoming);
    if (stream_intake_resume(&receiver->intake)) {
        quic_work_receiver(receiver);
    }
}

/* The handler is told that the stream is over. If the sender does not know yet, the receiver stays, because
 * the next connection's greeting has to name it. */
static void quic_receiver_given_up(struct quic_receiver *receiver, uint64_t now_ns)
{
    struct error cause;
    error_set(&cause, STATUS_ABORTED, "stream of node %s given up by node %s",
              receiver->connection->peer->name, receiver->endpoint->node_name);
    if (receiver->transport_over || receiver->intake.ended || !receiver->kind_known) {
        quic_receiver_close(receiver, &cause, receiver->over, now_ns);
    } else if (!receiver->over) {
        receiver->over = true;
        stream_intake_close(&receiver->intake, &receiver->stream, &cause, false, now_ns);
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
    if (known != NULL && !known->intake.stopped) {
        known->intake.reset = true;
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
    if (receiver->intake.resumed && receiver->intake.held && !receiver->intake.stopped &&
        !receiver->intake.reset) {
        stream_intake_again(&receiver->intake, &receiver->stream, now_ns);
        quic_receiver_grant(receiver);
        if (connection->failed) {
            return;
        }
    }
    if (receiver->intake.stopped) {
        quic_receiver_given_up(receiver, now_ns);
    } else if (receiver->intake.reset) {
        quic_receiver_reset_unbegun(receiver);
        error_set(&cause, STATUS_ABORTED, "node %s gave the stream up", connection->peer->name);
        quic_receiver_close(receiver, &cause, false, now_ns);
    } else if (receiver->intake.ended && !receiver->intake.held) {
        quic_receiver_close(receiver, NULL, false, now_ns);
    }
}
