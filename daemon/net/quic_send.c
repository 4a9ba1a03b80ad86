#include <assert.h>
#include <stdlib.h>

#include <utlist.h>

#include "daemon/net/quic_internal.h"
#include "proto/little_endian.h"

/* --- Ready streams --- */

static struct quic_sender **quic_ready_list(struct quic_sender *sender)
{
    struct quic_connection *connection = sender->connection;
    return sender->stream.kind == NET_STREAM_CONTROL ? &connection->ready_control : &connection->ready_data;
}

static bool quic_sender_has_more(const struct quic_sender *sender)
{
    return sender->resumption_sent < sender->resumption_bytes ||
           sender->queue.sent_end < sender->queue.queued_end || (sender->finishing && !sender->fin_sent);
}

static void quic_sender_line_up(struct quic_sender *sender)
{
    if (!sender->ready) {
        struct quic_sender **list = quic_ready_list(sender);
        sender->ready = true;
        sender->turn_bytes = 0;
        DL_APPEND2(*list, sender, ready_prev, ready_next);
    }
}

void quic_sender_ready(struct quic_sender *sender)
{
    const struct quic_connection *connection = sender->connection;
    if (connection != NULL && (connection->greeting_arrived || sender->number == QUIC_NO_NUMBER) &&
        !sender->shut && !sender->blocked && quic_sender_has_more(sender)) {
        quic_sender_line_up(sender);
        quic_work_flush(sender->connection);
    }
}

void quic_sender_unready(struct quic_sender *sender)
{
    if (sender->ready) {
        struct quic_sender **list = quic_ready_list(sender);
        sender->ready = false;
        DL_DELETE2(*list, sender, ready_prev, ready_next);
    }
}

/* --- Sending --- */

size_t quic_sender_offer(const struct quic_sender *sender, uint64_t max_bytes,
                         ngtcp2_vec vectors[QUIC_VECTORS_MAX], size_t *total, bool *fin)
{
    size_t count = 0;
    uint64_t offset = sender->queue.sent_end;
    size_t resumption = (size_t)(sender->resumption_bytes - sender->resumption_sent);
    resumption = resumption < max_bytes ? resumption : (size_t)max_bytes;
    if (resumption > 0) {
        uint8_t *bytes = (uint8_t *)(uintptr_t)sender->resumption; /* ngtcp2 only reads it */
        vectors[count++] = (ngtcp2_vec){.base = bytes + sender->resumption_sent, .len = resumption};
        max_bytes -= resumption;
    }
    uint64_t limit =
        max_bytes < sender->queue.queued_end - offset ? offset + max_bytes : sender->queue.queued_end;
    for (struct stream_message *message = sender->queue.unsent; message != NULL && offset < limit;
         message = message->next) {
        uint64_t payload_offset = message->end_offset - message->payload_bytes;
        if (offset < payload_offset && count < QUIC_VECTORS_MAX) {
            uint64_t end = payload_offset < limit ? payload_offset : limit;
            size_t skipped = (size_t)(offset - (payload_offset - message->header_bytes));
            vectors[count++] = (ngtcp2_vec){.base = message->bytes + skipped, .len = (size_t)(end - offset)};
            offset = end;
        }
        if (offset >= payload_offset && offset < message->end_offset && offset < limit &&
            count < QUIC_VECTORS_MAX) {
            uint64_t end = message->end_offset < limit ? message->end_offset : limit;
            /* ngtcp2 only reads the payload. */
            uint8_t *payload = (uint8_t *)(uintptr_t)message->payload;
            vectors[count++] =
                (ngtcp2_vec){.base = payload + (offset - payload_offset), .len = (size_t)(end - offset)};
            offset = end;
        }
        if (count == QUIC_VECTORS_MAX) {
            break;
        }
    }
    *total = resumption + (size_t)(offset - sender->queue.sent_end);
    *fin = sender->finishing && offset == sender->queue.queued_end;
    return count;
}

void quic_sender_sent(struct quic_sender *sender, size_t size, bool fin)
{
    size_t resumption = (size_t)(sender->resumption_bytes - sender->resumption_sent);
    resumption = resumption < size ? resumption : size;
    sender->resumption_sent = (uint8_t)(sender->resumption_sent + resumption);
    stream_queue_sent(&sender->queue, size - resumption, sender->endpoint->now_ns);
    sender->turn_bytes += size;
    net_stream_carried(&sender->stream, size, sender->endpoint->now_ns);
    sender->fin_sent = sender->fin_sent || fin;
    if (!quic_sender_has_more(sender)) {
        quic_sender_unready(sender);
    } else if (sender->turn_bytes >= QUIC_STREAM_QUANTUM_BYTES) {
        quic_sender_unready(sender);
        quic_sender_line_up(sender);
    }
}

void quic_sender_acknowledged(struct quic_sender *sender, uint64_t offset)
{
    if (offset >= sender->resumption_bytes) {
        stream_queue_received(&sender->queue, sender->base + (offset - sender->resumption_bytes),
                              sender->endpoint->now_ns);
    }
}

/* --- Ending streams --- */

/* Takes the stream off its connection's lists. */
static void quic_sender_leave(struct quic_sender *sender)
{
    quic_sender_unready(sender);
    DL_DELETE(sender->connection->senders, sender);
    if (sender->number != QUIC_NO_NUMBER) {
        sender->connection->session.sender_count--;
    }
}

void quic_sender_free(struct quic_sender *sender)
{
    stream_queue_end(&sender->queue, STATUS_ABORTED);
    work_list_remove(&sender->endpoint->sender_work, &sender->work);
    if (sender->connection != NULL) {
        quic_sender_leave(sender);
    } else {
        DL_DELETE(sender->endpoint->lost_senders, sender);
    }
    net_stream_charge(&sender->stream, NULL);
    free(sender);
}

void quic_sender_lose(struct quic_sender *sender, enum status status)
{
    struct quic_connection *connection = sender->connection;
    quic_sender_leave(sender);
    if (connection->transport != NULL && sender->id >= 0) {
        ngtcp2_conn_set_stream_user_data(connection->transport, sender->id, NULL);
    }
    sender->connection = NULL;
    DL_APPEND(sender->endpoint->lost_senders, sender);
    stream_queue_end(&sender->queue, status == STATUS_OK ? STATUS_NODE_LOST : status);
    if (sender->finishing) {
        quic_sender_free(sender);
    }
}

/* The peer has our greeting. */
static void quic_sender_greeted(struct quic_connection *connection)
{
    struct quic_sender *sender;
    connection->greeting_arrived = true;
    DL_FOREACH(connection->senders, sender)
    {
        quic_sender_ready(sender);
    }
}

void quic_sender_closed(struct quic_sender *sender)
{
    struct quic_connection *connection = sender->connection;
    bool is_greeting = sender->number == QUIC_NO_NUMBER && sender->fin_sent && sender->queue.messages == NULL;
    if (sender->fin_sent && sender->queue.messages == NULL) {
        quic_sender_free(sender);
    } else {
        quic_sender_lose(sender, STATUS_ABORTED); /* stopped by the receiver */
    }
    if (is_greeting) {
        quic_sender_greeted(connection);
    }
}

void quic_sender_work(struct quic_sender *sender)
{
    /* Ends messages without bytes. */
    stream_queue_received(&sender->queue, sender->queue.received_end, sender->endpoint->now_ns);
}

void quic_sender_reset(struct quic_sender *sender)
{
    assert(!sender->finishing);
    struct quic_connection *connection = sender->connection;
    if (connection != NULL && connection->transport != NULL && sender->id >= 0) {
        /*
         * From here on ngtcp2 does not read the memory that it was given for this stream. It does not
         * retransmit lost packets of a stream that was reset (ngtcp2_rtb.c), and drops data that waited for
         * retransmission. Packets hold copies. The beginning may be dropped, too.
         */
        uint64_t code =
            sender->resumption_bytes > 0 ? QUIC_RESET_NUMBERED + sender->number : (uint64_t)STATUS_ABORTED;
        (void)ngtcp2_conn_shutdown_stream_write(connection->transport, 0, sender->id, code);
        ngtcp2_conn_set_stream_user_data(connection->transport, sender->id, NULL);
        quic_work_flush(connection);
    }
    quic_sender_free(sender);
}

/* --- From one connection to the next --- */

void quic_sender_suspend(struct quic_sender *sender)
{
    quic_sender_unready(sender);
    sender->id = -1;
    sender->blocked = false;
}

void quic_sender_complete(struct quic_sender *sender)
{
    stream_queue_end(&sender->queue, STATUS_OK);
    quic_sender_free(sender);
}

bool quic_sender_resume(struct quic_sender *sender, struct quic_connection *connection, uint64_t offset)
{
    quic_sender_unready(sender);
    if (ngtcp2_conn_open_uni_stream(connection->transport, &sender->id, sender) != 0) {
        sender->id = -1;
        return false;
    }
    sender->connection = connection;
    sender->shut = sender->fin_sent = false;
    sender->resumption_bytes = sender->resumption_sent = 0;
    if (offset > 0) {
        sender->resumption[0] = (uint8_t)(sender->stream.kind | QUIC_KIND_RESUMED);
        put_u64_le(sender->resumption + 1, sender->number);
        put_u64_le(sender->resumption + QUIC_BEGINNING_BYTES, offset);
        sender->resumption_bytes = QUIC_RESUMPTION_BYTES;
    }
    sender->base = offset;
    stream_queue_rewind(&sender->queue, offset, sender->endpoint->now_ns);
    quic_sender_ready(sender);
    return true;
}

/* --- Opening --- */

/* Makes a stream with its beginning, and with bytes behind that. Returns null when out of memory. */
static struct quic_sender *quic_sender_new(struct quic_connection *connection, const struct net_stream *base,
                                           uint64_t number, const void *beginning, size_t beginning_bytes,
                                           const void *bytes, size_t size)
{
    struct quic_sender *sender = calloc(1, sizeof *sender);
    if (sender == NULL) {
        return NULL;
    }
    sender->stream = *base;
    sender->endpoint = connection->endpoint;
    sender->connection = connection;
    sender->number = number;
    sender->id = -1;
    sender->stream.queue = &sender->queue;
    sender->queue.done = &connection->endpoint->done;
    if (stream_queue_add(&sender->queue, beginning, beginning_bytes, bytes, size, NULL, NULL) != STATUS_OK) {
        free(sender);
        return NULL;
    }
    return sender;
}

/* Frees a sender that is in no list. */
static void quic_sender_discard(struct quic_sender *sender)
{
    if (sender != NULL) {
        stream_queue_end(&sender->queue, STATUS_ABORTED);
        free(sender);
    }
}

bool quic_sender_greet(struct quic_connection *connection, const uint8_t *bytes, size_t size)
{
    struct net_stream base = {
        .net = &connection->endpoint->base, .peer = connection->peer->index, .kind = NET_STREAM_CONTROL};
    uint8_t kind = QUIC_KIND_GREETING;
    struct quic_sender *sender = quic_sender_new(connection, &base, QUIC_NO_NUMBER, &kind, 1, bytes, size);
    if (sender == NULL || ngtcp2_conn_open_uni_stream(connection->transport, &sender->id, sender) != 0) {
        quic_sender_discard(sender);
        return false;
    }
    DL_APPEND(connection->senders, sender);
    sender->finishing = true;
    quic_sender_ready(sender);
    return true;
}

/* --- The interface --- */

enum status quic_stream_open(struct net *net, uint32_t index, enum net_stream_kind kind,
                             struct net_stream **out, struct error *error)
{
    struct quic_endpoint *endpoint = quic_endpoint_of(net);
    struct quic_peer *peer = quic_peer_of(endpoint, index);
    assert(peer != NULL);
    struct quic_connection *connection = peer->up;
    if (connection == NULL || connection->failed) {
        return error_set(error, STATUS_UNREACHABLE, "no connection to node %s", peer->name);
    }
    struct quic_session *session = &connection->session;
    if (session->sender_count >= NET_STREAMS_MAX) {
        return error_set(error, STATUS_LIMIT, "node %s allows no further stream at present", peer->name);
    }
    struct net_stream base = {.net = net, .peer = index, .kind = kind};
    uint8_t beginning[QUIC_BEGINNING_BYTES] = {(uint8_t)kind};
    put_u64_le(beginning + 1, session->next_number);
    struct quic_sender *sender =
        quic_sender_new(connection, &base, session->next_number, beginning, sizeof beginning, NULL, 0);
    int failure = sender == NULL ? NGTCP2_ERR_NOMEM : 0;
    if (failure == 0 && connection->transport != NULL) {
        failure = ngtcp2_conn_open_uni_stream(connection->transport, &sender->id, sender);
    }
    if (failure != 0) {
        quic_sender_discard(sender);
        return failure == NGTCP2_ERR_STREAM_ID_BLOCKED
                   ? error_set(error, STATUS_LIMIT, "node %s allows no further stream at present", peer->name)
                   : error_set(error, STATUS_NO_MEMORY, "no memory for a stream to node %s", peer->name);
    }
    session->next_number++;
    session->sender_count++;
    DL_APPEND(connection->senders, sender);
    quic_sender_ready(sender);
    *out = &sender->stream;
    return STATUS_OK;
}

enum status quic_stream_send(struct net_stream *stream, const void *header, size_t header_bytes,
                             const void *payload, size_t payload_bytes, net_sent_function *sent,
                             void *context)
{
    struct quic_sender *sender = (struct quic_sender *)stream;
    assert(!sender->stream.incoming && !sender->finishing);
    if (sender->connection == NULL || sender->connection->failed) {
        return STATUS_UNREACHABLE;
    }
    enum status status =
        stream_queue_add(&sender->queue, header, header_bytes, payload, payload_bytes, sent, context);
    if (status != STATUS_OK) {
        return status;
    }
    if (header_bytes + payload_bytes == 0) {
        quic_work_sender(sender); /* all earlier bytes may be acknowledged already */
    } else {
        quic_sender_ready(sender);
    }
    return STATUS_OK;
}

void quic_stream_finish(struct net_stream *stream)
{
    struct quic_sender *sender = (struct quic_sender *)stream;
    assert(!sender->stream.incoming && !sender->finishing);
    sender->finishing = true;
    if (sender->connection == NULL) {
        quic_sender_free(sender);
    } else {
        quic_sender_ready(sender);
    }
}
