#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include <utlist.h>

#include "daemon/base/checked.h"
#include "daemon/net/tls_internal.h"

/* --- Messages --- */

/* Copies the header, and the payload if `copied`. Returns null when out of memory. */
static struct tls_message *message_new(const void *header, size_t header_bytes, const void *payload,
                                       size_t payload_bytes, bool copied)
{
    size_t copied_bytes = copied ? payload_bytes : 0;
    struct tls_message *message = malloc(sizeof *message + header_bytes + copied_bytes);
    if (message == NULL) {
        return NULL;
    }
    *message = (struct tls_message){.payload = payload,
                                    .payload_bytes = payload_bytes,
                                    .header_bytes = (uint32_t)header_bytes,
                                    .copied_bytes = (uint32_t)copied_bytes};
    if (header_bytes > 0) {
        memcpy(message->bytes, header, header_bytes);
    }
    if (copied_bytes > 0) {
        memcpy(message->bytes + header_bytes, payload, copied_bytes);
        message->payload = message->bytes + header_bytes;
    }
    return message;
}

static void message_append(struct tls_sender *sender, struct tls_message *message)
{
    sender->queued_end += message->header_bytes + message->payload_bytes;
    message->end_offset = sender->queued_end;
    if (sender->messages == NULL) {
        sender->messages = message;
    } else {
        sender->messages_last->next = message;
    }
    sender->messages_last = message;
    sender->unsent = sender->unsent == NULL ? message : sender->unsent;
    sender->message_count++;
    sender->copied_bytes += message->header_bytes + message->copied_bytes;
}

/* Removes the first message from the stream. Its `sent` is called when the event ends. */
static void message_end(struct tls_sender *sender, enum status result)
{
    struct tls_message *message = sender->messages;
    sender->messages = message->next;
    if (sender->unsent == message) {
        sender->unsent = message->next;
    }
    sender->message_count--;
    sender->copied_bytes -= message->header_bytes + message->copied_bytes;
    if (message->sent == NULL) {
        free(message);
    } else {
        tls_done_append(sender->endpoint, message, result);
    }
}

static void messages_end(struct tls_sender *sender, enum status result)
{
    while (sender->messages != NULL) {
        message_end(sender, result);
    }
}

/* --- Ready streams --- */

static bool has_more(const struct tls_sender *sender)
{
    uint64_t limit = sender->granted_end < sender->queued_end ? sender->granted_end : sender->queued_end;
    return sender->sent_end < limit ||
           (sender->finishing && !sender->fin_sent && sender->sent_end == sender->queued_end);
}

static void unready(struct tls_sender *sender)
{
    if (sender->ready) {
        sender->ready = false;
        DL_DELETE2(sender->peer->ready, sender, ready_prev, ready_next);
    }
}

static void make_ready(struct tls_sender *sender)
{
    if (sender->peer != NULL && !sender->ready && has_more(sender)) {
        sender->ready = true;
        DL_APPEND2(sender->peer->ready, sender, ready_prev, ready_next);
    }
    if (sender->ready) {
        tls_work_flush(sender->peer);
    }
}

/* --- Sending --- */

bool tls_sender_frame(const struct tls_sender *sender, size_t max_bytes, struct tls_frame *out)
{
    uint64_t limit = sender->granted_end < sender->queued_end ? sender->granted_end : sender->queued_end;
    uint64_t size = limit > sender->sent_end ? limit - sender->sent_end : 0;
    size = size < max_bytes ? size : max_bytes;
    *out = (struct tls_frame){.type = TLS_FRAME_DATA,
                              .kind = (uint16_t)sender->stream.base.kind,
                              .number = sender->number,
                              .offset = sender->sent_end,
                              .body_bytes = (uint32_t)size,
                              .end = sender->finishing && sender->sent_end + size == sender->queued_end};
    return size > 0 || (out->end && !sender->fin_sent);
}

const uint8_t *tls_sender_piece(const struct tls_sender *sender, size_t *size)
{
    const struct tls_message *message = sender->unsent;
    assert(sender->sent_end < sender->queued_end);
    while (message->end_offset <= sender->sent_end) { /* messages without bytes */
        message = message->next;
    }
    uint64_t payload_offset = message->end_offset - message->payload_bytes;
    if (sender->sent_end < payload_offset) {
        *size = (size_t)(payload_offset - sender->sent_end);
        return message->bytes + (message->header_bytes - *size);
    }
    *size = (size_t)(message->end_offset - sender->sent_end);
    return message->payload + (message->payload_bytes - *size);
}

void tls_sender_sent(struct tls_sender *sender, size_t size)
{
    if (sender->sent_end == sender->receipted_end) {
        sender->waits_since_ns = sender->endpoint->now_ns;
    }
    sender->sent_end += size;
    sender->endpoint->watched += size > 0 && sender->peer->under_way_bytes == 0;
    sender->peer->under_way_bytes += size;
    net_stream_carried(&sender->stream.base, size, sender->endpoint->now_ns);
    while (sender->unsent != NULL && sender->unsent->end_offset <= sender->sent_end) {
        sender->unsent = sender->unsent->next;
    }
}

void tls_sender_turn_over(struct tls_sender *sender, bool end)
{
    sender->fin_sent = sender->fin_sent || end;
    unready(sender);
    make_ready(sender);
}

void tls_sender_credit(struct tls_sender *sender, uint64_t limit)
{
    if (limit > sender->granted_end) {
        sender->granted_end = limit;
        make_ready(sender);
    }
}

/* Bytes are not under way any more. */
static void arrived(struct tls_peer *peer, uint64_t bytes)
{
    peer->under_way_bytes -= bytes;
    if (bytes > 0 && peer->under_way_bytes == 0) {
        peer->slow_since_ns = 0;
        peer->endpoint->watched--;
    }
}

/* The peer has the stream to that offset. */
static void received(struct tls_sender *sender, uint64_t offset)
{
    sender->peer->receipted_bytes += offset - sender->receipted_end;
    arrived(sender->peer, offset - sender->receipted_end);
    sender->receipted_end = offset;
    sender->waits_since_ns = sender->endpoint->now_ns;
    while (sender->messages != NULL && sender->messages->end_offset <= offset) {
        message_end(sender, STATUS_OK);
    }
}

bool tls_sender_receipt(struct tls_sender *sender, uint64_t offset, bool end)
{
    if (offset > sender->sent_end || (end && (!sender->fin_sent || offset != sender->queued_end))) {
        return false;
    }
    if (offset > sender->receipted_end) {
        received(sender, offset);
    }
    if (end) {
        tls_sender_complete(sender);
    }
    return true;
}

/* --- Ending streams --- */

/* Takes the stream off its peer's lists. */
static void leave(struct tls_sender *sender)
{
    struct tls_peer *peer = sender->peer;
    unready(sender);
    if (sender->sent_end > sender->receipted_end) {
        arrived(peer, sender->sent_end - sender->receipted_end);
        peer->slow_since_ns = 0; /* what is given up would count as slow */
    }
    if (peer->connection != NULL) {
        tls_connection_forget(peer->connection, sender);
    }
    HASH_DEL(peer->senders, sender);
    sender->peer = NULL;
}

void tls_sender_free(struct tls_sender *sender)
{
    if (sender->peer != NULL) {
        leave(sender);
    } else {
        DL_DELETE(sender->endpoint->lost_senders, sender);
    }
    messages_end(sender, STATUS_ABORTED);
    tls_forget_sender(sender);
    net_stream_charge(&sender->stream.base, NULL);
    free(sender);
}

void tls_sender_lose(struct tls_sender *sender, enum status status)
{
    leave(sender);
    DL_APPEND(sender->endpoint->lost_senders, sender);
    messages_end(sender, status == STATUS_OK ? STATUS_NODE_LOST : status);
    if (sender->finishing) {
        tls_sender_free(sender);
    }
}

void tls_sender_complete(struct tls_sender *sender)
{
    leave(sender);
    DL_APPEND(sender->endpoint->lost_senders, sender);
    messages_end(sender, STATUS_OK);
    tls_sender_free(sender);
}

void tls_sender_reset(struct tls_sender *sender)
{
    assert(!sender->finishing);
    struct tls_peer *peer = sender->peer;
    if (peer != NULL && !tls_compose_reset(peer, sender->number)) {
        tls_peer_fail(peer, STATUS_NO_MEMORY, "no memory to give a stream up");
    } else if (peer != NULL) {
        tls_work_flush(peer);
    }
    tls_sender_free(sender);
}

void tls_sender_work(struct tls_sender *sender)
{
    if (sender->peer != NULL) {
        received(sender, sender->receipted_end); /* ends messages without bytes */
    }
}

void tls_sender_resume(struct tls_sender *sender, uint64_t offset)
{
    unready(sender);
    received(sender, offset);
    arrived(sender->peer, sender->sent_end - offset);
    sender->sent_end = offset;
    sender->fin_sent = false;
    sender->unsent = sender->messages;
    while (sender->unsent != NULL && sender->unsent->end_offset <= offset) {
        sender->unsent = sender->unsent->next;
    }
    make_ready(sender);
}

/* --- The interface --- */

enum status tls_stream_open(struct net_bulk *bulk, uint32_t index, enum net_stream_kind kind,
                            struct net_stream **out, struct error *error)
{
    struct tls_endpoint *endpoint = tls_endpoint_of(bulk);
    struct tls_peer *peer = tls_peer_at(endpoint, index);
    if (peer == NULL || !tls_peer_is_connected(peer)) {
        return error_set(error, STATUS_UNREACHABLE, "no bulk link to that node");
    }
    if (HASH_COUNT(peer->senders) >= TLS_STREAMS_MAX) {
        return error_set(error, STATUS_LIMIT, "node %s allows no further stream at present", peer->name);
    }
    struct tls_sender *sender = calloc(1, sizeof *sender);
    if (sender != NULL) {
        sender->number = peer->session.next_number;
        HASH_ADD(hh, peer->senders, number, sizeof sender->number, sender);
    }
    if (sender == NULL || !table_has(sender, hh)) {
        free(sender);
        return error_set(error, STATUS_NO_MEMORY, "no memory for a stream to node %s", peer->name);
    }
    peer->session.next_number++;
    sender->stream.base = (struct net_stream){.net = bulk->net, .peer = index, .kind = kind, .on_bulk = true};
    sender->endpoint = endpoint;
    sender->peer = peer;
    sender->granted_end = NET_STREAM_FIRST_WINDOW_BYTES;
    *out = &sender->stream.base;
    return STATUS_OK;
}

uint32_t tls_stream_queued(const struct net_stream *stream)
{
    return ((const struct tls_sender *)stream)->message_count;
}

enum status tls_stream_send(struct net_stream *stream, const void *header, size_t header_bytes,
                            const void *payload, size_t payload_bytes, net_sent_function *sent, void *context)
{
    struct tls_sender *sender = (struct tls_sender *)stream;
    assert(!sender->stream.incoming && !sender->finishing);
    assert(header_bytes <= NET_STREAM_HEADER_MAX_BYTES);
    if (sender->peer == NULL) {
        return STATUS_UNREACHABLE;
    }
    size_t copied_bytes = sent == NULL ? payload_bytes : 0;
    size_t kept_bytes;
    size_t total_bytes;
    if (sender->message_count >= NET_STREAM_QUEUE_MAX || copied_bytes > NET_STREAM_COPY_MAX_BYTES ||
        !checked_add_size(sender->copied_bytes, header_bytes + copied_bytes, &kept_bytes) ||
        kept_bytes > NET_STREAM_COPY_MAX_BYTES ||
        !checked_add_size(header_bytes, payload_bytes, &total_bytes)) {
        return STATUS_LIMIT;
    }
    struct tls_message *message = message_new(header, header_bytes, payload, payload_bytes, sent == NULL);
    if (message == NULL) {
        return STATUS_NO_MEMORY;
    }
    message->sent = sent;
    message->context = context;
    message_append(sender, message);
    if (total_bytes == 0) {
        tls_work_sender(sender); /* all earlier bytes may be receipted already */
    } else {
        make_ready(sender);
    }
    return STATUS_OK;
}

void tls_stream_finish(struct net_stream *stream)
{
    struct tls_sender *sender = (struct tls_sender *)stream;
    assert(!sender->stream.incoming && !sender->finishing);
    sender->finishing = true;
    if (sender->peer == NULL) {
        tls_sender_free(sender);
    } else {
        make_ready(sender);
    }
}
