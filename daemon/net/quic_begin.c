#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <utlist.h>

#include "daemon/net/quic_internal.h"
#include "proto/little_endian.h"

static void offend(struct quic_connection *connection, const char *what)
{
    char who[QUIC_CONNECTION_TEXT_MAX_BYTES];
    char reason[QUIC_CONNECTION_TEXT_MAX_BYTES + 96];
    snprintf(reason, sizeof reason, "%s sent %.90s", quic_connection_text(connection, who), what);
    quic_connection_abort(connection, STATUS_PROTOCOL, reason);
}

/* --- New streams --- */

static bool take_number(struct quic_receiver *receiver)
{
    struct quic_connection *connection = receiver->connection;
    receiver->number = get_u64_le(receiver->beginning + 1);
    enum status status = quic_numbers_add(&connection->session.seen, receiver->number);
    if (status == STATUS_NO_MEMORY) {
        quic_connection_abort(connection, status, "no memory for another stream");
    } else if (status != STATUS_OK) {
        offend(connection, "two streams of one number, or a number out of order");
    }
    return status == STATUS_OK;
}

static bool begin_new(struct quic_receiver *receiver, unsigned kind)
{
    struct quic_connection *connection = receiver->connection;
    if (!take_number(receiver)) {
        return false;
    }
    receiver->kind_known = true;
    receiver->stream.kind = (enum net_stream_kind)kind;
    receiver->stream.peer = connection->peer->index;
    quic_receiver_consumed(receiver, QUIC_BEGINNING_BYTES);
    if (receiver->stream.net->stream_handlers[kind].receive == NULL) {
        quic_receiver_stop(receiver); /* no handler takes streams of this kind */
    }
    return true;
}

/* --- Streams that go on --- */

/* Forgets the receiver that ngtcp2 knows; ngtcp2 knows the other one in its place. */
static void replace_receiver(struct quic_receiver *by, struct quic_receiver *old)
{
    struct quic_connection *connection = old->connection;
    by->id = old->id;
    by->transport_over = old->transport_over;
    by->intake.granted_end =
        stream_intake_received(&by->intake) + NET_STREAM_FIRST_WINDOW_BYTES - QUIC_RESUMPTION_BYTES;
    ngtcp2_conn_set_stream_user_data(connection->transport, by->id, by);
    if (old->intake.reset && !by->intake.stopped && !by->intake.reset) {
        by->intake.reset = true;
        quic_work_receiver(by);
    }
    work_list_remove(&old->endpoint->receiver_work, &old->work);
    DL_DELETE(connection->receivers, old);
    free(old->intake.buffer);
    free(old);
}

/* The stream is over here, so the sender has all that it needs to know from our greeting. */
static bool begin_unwanted(struct quic_receiver *receiver)
{
    receiver->number = get_u64_le(receiver->beginning + 1);
    if (!quic_numbers_have(&receiver->connection->session.seen, receiver->number)) {
        offend(receiver->connection, "the rest of a stream that it never began");
        return false;
    }
    receiver->kind_known = true;
    quic_receiver_stop(receiver);
    return true;
}

static bool begin_resumed(struct quic_receiver **receiver, unsigned kind)
{
    struct quic_connection *connection = (*receiver)->connection;
    uint64_t number = get_u64_le((*receiver)->beginning + 1);
    uint64_t offset = get_u64_le((*receiver)->beginning + QUIC_BEGINNING_BYTES);
    struct quic_receiver *known = quic_session_take_unresumed(connection, number);
    if (known == NULL) {
        return begin_unwanted(*receiver);
    }
    if (known->stream.kind != (enum net_stream_kind)kind ||
        offset != stream_intake_received(&known->intake)) {
        offend(connection, "the rest of a stream from the wrong place");
        return false;
    }
    replace_receiver(known, *receiver);
    if (known->intake.stopped) {
        (void)ngtcp2_conn_shutdown_stream_read(connection->transport, 0, known->id, STATUS_ABORTED);
    }
    *receiver = known;
    quic_receiver_consumed(known, 0); /* the sender may get more room */
    return true;
}

/* --- The beginning --- */

/* Returns how many bytes a beginning with that first byte has; 0: there is none. */
static unsigned beginning_bytes(uint8_t first)
{
    if (first == QUIC_KIND_GREETING) {
        return 1;
    }
    unsigned kind = first & ~QUIC_KIND_RESUMED;
    if (kind == 0 || kind >= NET_STREAM_KIND_COUNT) {
        return 0;
    }
    return (first & QUIC_KIND_RESUMED) != 0 ? QUIC_RESUMPTION_BYTES : QUIC_BEGINNING_BYTES;
}

static bool begin_greeting(struct quic_receiver *receiver)
{
    if (receiver->connection->state != QUIC_STATE_GREETING || receiver->connection->greeted) {
        offend(receiver->connection, "a second greeting");
        return false;
    }
    receiver->kind_known = true;
    receiver->greeting = true;
    receiver->stream.kind = NET_STREAM_CONTROL;
    quic_receiver_consumed(receiver, 1);
    return true;
}

static bool begin(struct quic_receiver **receiver)
{
    uint8_t first = (*receiver)->beginning[0];
    if (first == QUIC_KIND_GREETING) {
        return begin_greeting(*receiver);
    }
    if ((first & QUIC_KIND_RESUMED) != 0) {
        return begin_resumed(receiver, first & ~QUIC_KIND_RESUMED);
    }
    return begin_new(*receiver, first);
}

ptrdiff_t quic_begin_take(struct quic_receiver **receiver, const uint8_t *bytes, size_t size)
{
    struct quic_receiver *stream = *receiver;
    unsigned needed = beginning_bytes(stream->beginning_bytes > 0 ? stream->beginning[0] : bytes[0]);
    if (needed == 0) {
        char what[64];
        snprintf(what, sizeof what, "a stream of unknown kind %u", bytes[0]);
        offend(stream->connection, what);
        return -1;
    }
    size_t taken = needed - stream->beginning_bytes < size ? needed - stream->beginning_bytes : size;
    memcpy(stream->beginning + stream->beginning_bytes, bytes, taken);
    stream->beginning_bytes = (uint8_t)(stream->beginning_bytes + taken);
    if (stream->beginning_bytes == needed && !begin(receiver)) {
        return -1;
    }
    return (ptrdiff_t)taken;
}

bool quic_begin_early(struct quic_connection *connection, size_t size)
{
    connection->early_bytes += size;
    if (connection->early_bytes <= QUIC_EARLY_MAX_BYTES) {
        return true;
    }
    offend(connection, "streams, but no greeting");
    return false;
}

/* --- The greeting --- */

/* The whole greeting is in the stream's buffer. */
static bool read_greeting(struct quic_receiver *receiver, const uint8_t *bytes, size_t size)
{
    struct quic_connection *connection = receiver->connection;
    struct error error;
    enum status status = quic_greeting_decode(bytes, size, &connection->greeting, &error);
    if (status == STATUS_PROTOCOL) {
        offend(connection, error.text);
    } else if (status != STATUS_OK) {
        quic_connection_abort(connection, status, error.text);
    }
    connection->greeted = status == STATUS_OK;
    quic_work_connection(connection);
    return status == STATUS_OK;
}

bool quic_begin_greeting(struct quic_receiver *receiver, const uint8_t *bytes, size_t size)
{
    struct quic_connection *connection = receiver->connection;
    size_t before = receiver->intake.buffer_bytes, total = before + size;
    if (total > QUIC_GREETING_MAX_BYTES) {
        offend(connection, "a greeting that is too large");
        return false;
    }
    if (before == 0 && receiver->intake.ended) {
        return read_greeting(receiver, bytes, size);
    }
    uint8_t *grown = realloc(receiver->intake.buffer, total + 1);
    if (grown == NULL) {
        quic_connection_abort(connection, STATUS_NO_MEMORY, "no memory for a greeting");
        return false;
    }
    if (size > 0) {
        memcpy(grown + before, bytes, size);
    }
    receiver->intake.buffer = grown;
    receiver->intake.buffer_bytes = total;
    quic_receiver_consumed(receiver, size);
    return !receiver->intake.ended || read_greeting(receiver, grown, total);
}
