#include <assert.h>
#include <stdlib.h>

#include <utlist.h>

#include "daemon/net/tls_internal.h"

/* --- Ready streams --- */

static bool has_more(const struct tls_sender *sender)
{
    uint64_t limit =
        sender->granted_end < sender->queue.queued_end ? sender->granted_end : sender->queue.queued_end;
    return sender->queue.sent_end < limit ||
           (sender->finishing && !sender->fin_sent && sender->queue.sent_end == sender->queue.queued_end);
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
    uint64_t limit =
        sender->granted_end < sender->queue.queued_end ? sender->granted_end : sender->queue.queued_end;
    uint64_t size = limit > sender->queue.sent_end ? limit - sender->queue.sent_end : 0;
    size = size < max_bytes ? size : max_bytes;
    *out = (struct tls_frame){.type = TLS_FRAME_DATA,
                              .kind = (uint16_t)sender->stream.kind,
                              .number = sender->number,
                              .offset = sender->queue.sent_end,
                              .body_bytes = (uint32_t)size,
                              .end = sender->finishing &&
                                     sender->queue.sent_end + size == sender->queue.queued_end};
    return size > 0 || (out->end && !sender->fin_sent);
}

void tls_sender_sent(struct tls_sender *sender, size_t size)
{
    stream_queue_sent(&sender->queue, size, sender->endpoint->now_ns);
    sender->endpoint->watched += size > 0 && sender->peer->under_way_bytes == 0;
    sender->peer->under_way_bytes += size;
    net_stream_carried(&sender->stream, size, sender->endpoint->now_ns);
}

void tls_sender_turn_over(struct tls_sender *sender, bool end)
{
    sender->fin_sent = sender->fin_sent || end;
    sender->fin_was_sent = sender->fin_was_sent || end;
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
    uint64_t bytes = offset - sender->queue.received_end;
    sender->peer->receipted_bytes += bytes;
    arrived(sender->peer, bytes);
    stream_queue_received(&sender->queue, offset, sender->endpoint->now_ns);
}

bool tls_sender_receipt(struct tls_sender *sender, uint64_t offset, bool end)
{
    if (offset > sender->queue.sent_end ||
        (end && (!sender->fin_was_sent || offset != sender->queue.queued_end))) {
        return false;
    }
    if (offset > sender->queue.received_end) {
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
    if (sender->queue.sent_end > sender->queue.received_end) {
        arrived(peer, sender->queue.sent_end - sender->queue.received_end);
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
    stream_queue_end(&sender->queue, STATUS_ABORTED);
    work_list_remove(&sender->endpoint->sender_work, &sender->work);
    net_stream_charge(&sender->stream, NULL);
    free(sender);
}

void tls_sender_lose(struct tls_sender *sender, enum status status)
{
    leave(sender);
    DL_APPEND(sender->endpoint->lost_senders, sender);
    stream_queue_end(&sender->queue, status == STATUS_OK ? STATUS_NODE_LOST : status);
    if (sender->finishing) {
        tls_sender_free(sender);
    }
}

void tls_sender_complete(struct tls_sender *sender)
{
    leave(sender);
    DL_APPEND(sender->endpoint->lost_senders, sender);
    stream_queue_end(&sender->queue, STATUS_OK);
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
        received(sender, sender->queue.received_end); /* ends messages without bytes */
    }
}

void tls_sender_resume(struct tls_sender *sender, uint64_t offset)
{
    unready(sender);
    received(sender, offset);
    arrived(sender->peer, sender->queue.sent_end - offset);
    stream_queue_rewind(&sender->queue, offset, sender->endpoint->now_ns);
    sender->fin_sent = false;
    make_ready(sender);
}

/* --- The interface --- */

enum status net_bulk_open(struct net *net, uint32_t index, enum net_stream_kind kind, struct net_stream **out,
                          struct error *error)
{
    struct tls_endpoint *endpoint = tls_endpoint_of(net->bulk);
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
    sender->stream = (struct net_stream){.net = net, .peer = index, .kind = kind, .on_bulk = true};
    sender->endpoint = endpoint;
    sender->stream.queue = &sender->queue;
    sender->queue.done = &endpoint->done;
    sender->peer = peer;
    sender->granted_end = NET_STREAM_FIRST_WINDOW_BYTES;
    *out = &sender->stream;
    return STATUS_OK;
}

enum status tls_stream_send(struct net_stream *stream, const void *header, size_t header_bytes,
                            const void *payload, size_t payload_bytes, net_sent_function *sent, void *context)
{
    struct tls_sender *sender = (struct tls_sender *)stream;
    assert(!sender->stream.incoming && !sender->finishing);
    if (sender->peer == NULL) {
        return STATUS_UNREACHABLE;
    }
    enum status status =
        stream_queue_add(&sender->queue, header, header_bytes, payload, payload_bytes, sent, context);
    if (status != STATUS_OK) {
        return status;
    }
    if (header_bytes + payload_bytes == 0) {
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
