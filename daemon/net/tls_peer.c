#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/net/tls_internal.h"

/* A link's session, its epochs, and what incoming frames mean. */

bool tls_peer_flows(const struct tls_peer *peer)
{
    return peer->is_up && !peer->failed && peer->epoch > 0 && peer->greeted;
}

bool tls_peer_is_connected(const struct tls_peer *peer)
{
    return tls_peer_flows(peer) && peer->connection != NULL && peer->connection->state == TLS_STATE_OPEN;
}

void tls_peer_fail(struct tls_peer *peer, enum status status, const char *text)
{
    if (!peer->failed) {
        struct error cause;
        peer->failed = true;
        error_set(&cause, status, "%s", text);
        net_disconnect(peer->endpoint->base.net, peer->index, &cause);
    }
}

void tls_peer_offends(struct tls_peer *peer, const char *what)
{
    char text[256];
    (void)snprintf(text, sizeof text, "node %s sent %s", peer->name, what);
    tls_peer_fail(peer, STATUS_PROTOCOL, text);
}

void tls_peer_give_up(struct tls_peer *peer)
{
    if (HASH_COUNT(peer->senders) + HASH_COUNT(peer->receivers) > 0) {
        tls_peer_fail(peer, STATUS_NODE_LOST, "its bulk link has no carrier any more");
    }
    peer->failed = true;
}

/* --- Epochs --- */

void tls_peer_switch(struct tls_peer *peer, struct tls_connection *connection, uint64_t epoch)
{
    struct tls_connection *old = peer->connection;
    size_t size = 0;
    peer->connection = connection;
    peer->attempt = peer->attempt == connection ? NULL : peer->attempt;
    peer->epoch = epoch;
    peer->greeted = false;
    peer->told_way = peer->asked_way = TLS_WAY_NONE;
    peer->way_due = false;
    if (old != NULL) {
        struct tls_endpoint *endpoint = peer->endpoint;
        tls_connection_fail(old, "another carrier takes its place");
        /* Whichever side gave it up: it is not dialled again at once. */
        backoff_failed(&peer->dial, TLS_DIAL_MIN_NS, TLS_DIAL_MAX_NS, &endpoint->random, endpoint->now_ns);
        peer->lost_count++;
        tls_choice_forget(&peer->choice);
    }
    uint8_t *bytes = tls_greeting_make(peer, &size);
    if (bytes == NULL) {
        tls_peer_fail(peer, STATUS_NO_MEMORY, "no memory for a greeting of a bulk link");
    } else if (connection != NULL) {
        tls_connection_greet(connection, bytes, size);
    } else if (!tls_tunnel_greet(peer, bytes, size)) {
        tls_peer_give_up(peer);
    }
}

void tls_peer_begin(struct tls_peer *peer)
{
    if (peer->is_up && !peer->failed && peer->epoch == 0) {
        tls_peer_switch(peer, NULL, 1);
    }
}

void tls_peer_abandon(struct tls_peer *peer, const char *why)
{
    struct tls_endpoint *endpoint = peer->endpoint;
    if (peer->connection == NULL || peer->failed) {
        return;
    }
    (void)snprintf(peer->why, sizeof peer->why, "%.127s", why);
    if (log_limit_pass(&endpoint->loss_limit, endpoint->now_ns, NULL)) {
        log_info("network: bulk link to node %s: %s; its streams go on over QUIC", peer->name, why);
    }
    tls_peer_switch(peer, NULL, peer->epoch + 1);
}

/* The peer's greeting is complete. Returns whether to read on. */
static bool take_greeting(struct tls_reader *reader, const struct tls_frame *frame)
{
    struct tls_peer *peer = reader->peer;
    struct tls_connection *connection = reader->connection;
    if (frame->number < peer->epoch || (frame->number == peer->epoch && peer->greeted)) {
        if (connection != NULL) {
            tls_connection_fail(connection, "its greeting is of an epoch that is over");
        }
        return connection == NULL; /* the tunnel has greetings of epochs that a connection has replaced */
    }
    if (frame->number - peer->epoch > TLS_EPOCH_STEPS_MAX ||
        (frame->number == peer->epoch && connection != peer->connection)) {
        tls_peer_offends(peer, "a greeting of a bulk link that is out of order");
        return false;
    }
    if (connection != NULL && !tls_greeting_is_ours(peer, reader->body, frame->body_bytes)) {
        tls_connection_fail(connection, "its greeting is of another session");
        return false;
    }
    if (frame->number > peer->epoch && !log_limit_pass(&peer->epochs, peer->endpoint->now_ns, NULL)) {
        tls_peer_offends(peer, "too many greetings of a bulk link");
        return false;
    }
    if (frame->number > peer->epoch) {
        if (connection == NULL && peer->connection != NULL) {
            (void)snprintf(peer->why, sizeof peer->why, "node %s gave it up", peer->name);
        }
        tls_peer_switch(peer, connection, frame->number);
    }
    if (peer->failed || !tls_greeting_take(peer, reader->body, frame->body_bytes)) {
        return false;
    }
    peer->greeted = true;
    peer->slow_since_ns = 0;
    if (connection != NULL) {
        connection->greeted = true;
        tls_connection_in_time(connection);
        peer->connected_count++;
        peer->dial = (struct backoff){0};
        peer->why[0] = '\0';
        tls_choice_forget(&peer->choice);
    }
    tls_work_flush(peer);
    return true;
}

/* --- Frames --- */

/* Whether frames on this carrier count now. */
static bool is_current(const struct tls_reader *reader)
{
    return tls_peer_flows(reader->peer) && reader->peer->connection == reader->connection;
}

static bool check(struct tls_peer *peer, const char *wrong)
{
    if (wrong != NULL) {
        tls_peer_offends(peer, wrong);
    }
    return wrong == NULL && !peer->failed;
}

static bool frame_begins(void *context, const struct tls_frame *frame)
{
    struct tls_reader *reader = context;
    if (reader->peer->failed) {
        return false;
    }
    if (frame->type == TLS_FRAME_GREETING) {
        free(reader->body);
        reader->body = malloc((size_t)frame->body_bytes + 1);
        if (reader->body == NULL) {
            tls_peer_fail(reader->peer, STATUS_NO_MEMORY, "no memory for a greeting of a bulk link");
        }
        return reader->body != NULL;
    }
    if (reader->connection != NULL && !is_current(reader)) {
        tls_peer_offends(reader->peer, "frames on a bulk link before a greeting");
        return false;
    }
    return frame->type != TLS_FRAME_DATA || !is_current(reader) ||
           check(reader->peer, tls_receiver_check(reader->peer, frame));
}

static bool frame_body(void *context, const struct tls_frame *frame, uint64_t at, const uint8_t *bytes,
                       size_t size)
{
    struct tls_reader *reader = context;
    if (frame->type == TLS_FRAME_GREETING) {
        memcpy(reader->body + at, bytes, size);
        return true;
    }
    return !is_current(reader) ||
           check(reader->peer, tls_receiver_bytes(reader->peer, frame, frame->offset + at, bytes, size));
}

static bool for_sender(struct tls_peer *peer, const struct tls_frame *frame)
{
    struct tls_sender *sender = NULL;
    HASH_FIND(hh, peer->senders, &frame->number, sizeof frame->number, sender);
    if (sender == NULL) {
        return check(peer, frame->number < peer->session.next_number
                               ? NULL
                               : "a frame about a stream that was never opened");
    }
    if (frame->type == TLS_FRAME_CREDIT) {
        tls_sender_credit(sender, frame->offset);
        return true;
    }
    if (frame->type == TLS_FRAME_RECEIPT) {
        return check(peer, tls_sender_receipt(sender, frame->offset, frame->end)
                               ? NULL
                               : "a receipt for bytes that were never sent");
    }
    tls_sender_lose(sender, STATUS_ABORTED);
    if (!tls_compose_reset(peer, frame->number)) {
        tls_peer_fail(peer, STATUS_NO_MEMORY, "no memory to give a stream up");
    }
    tls_work_flush(peer);
    return !peer->failed;
}

static bool frame_ends(void *context, const struct tls_frame *frame)
{
    struct tls_reader *reader = context;
    struct tls_peer *peer = reader->peer;
    if (frame->type != TLS_FRAME_GREETING && !is_current(reader)) {
        return !peer->failed;
    }
    switch (frame->type) {
    case TLS_FRAME_DATA:
        return !frame->end || check(peer, tls_receiver_end(peer, frame, frame->offset + frame->body_bytes));
    case TLS_FRAME_CREDIT:
    case TLS_FRAME_RECEIPT:
    case TLS_FRAME_STOP:
        return for_sender(peer, frame);
    case TLS_FRAME_RESET:
        return check(peer, tls_receiver_reset(peer, frame->number));
    case TLS_FRAME_WAY:
        peer->asked_way = (unsigned)(frame->number & 1);
        return check(peer, !peer->leads && frame->number <= 1 ? NULL : "a choice that is not its own");
    case TLS_FRAME_GREETING:
        return take_greeting(reader, frame);
    }
    return false;
}

static void frame_wrong(void *context, const char *what)
{
    const struct tls_reader *reader = context;
    tls_peer_offends(reader->peer, what);
}

bool tls_reader_take(struct tls_reader *reader, const uint8_t *bytes, size_t size)
{
    struct tls_frame_handler handler = {.context = reader,
                                        .begin = frame_begins,
                                        .body = frame_body,
                                        .end = frame_ends,
                                        .wrong = frame_wrong};
    return !reader->peer->failed && tls_frame_read(&reader->frames, &handler, bytes, size);
}

void tls_reader_clear(struct tls_reader *reader)
{
    free(reader->body);
    reader->body = NULL;
    reader->frames = (struct tls_frame_reader){.left = 0};
}

/* --- The end --- */

void tls_peer_down(struct tls_peer *peer, const struct error *cause, bool quiet, uint64_t now_ns)
{
    struct tls_receiver *receiver, *next_receiver;
    struct tls_sender *sender, *next_sender;
    struct tls_connection *connection = peer->connection;
    peer->is_up = false;
    peer->connection = NULL;
    HASH_ITER (hh, peer->receivers, receiver, next_receiver) {
        tls_receiver_close(receiver, cause, quiet, now_ns);
    }
    HASH_ITER (hh, peer->senders, sender, next_sender) {
        tls_sender_lose(sender, cause->status);
    }
    if (connection != NULL) {
        tls_connection_fail(connection, "the node is not connected any more");
    }
    if (peer->attempt != NULL) {
        tls_connection_fail(peer->attempt, "the node is not connected any more");
        peer->attempt = NULL;
    }
    work_list_remove(&peer->endpoint->flushes, &peer->flush);
    work_list_remove(&peer->endpoint->receipts, &peer->receipt);
    tls_tunnel_close(peer);
    tls_reader_clear(&peer->tunnel_reader);
    quic_numbers_clear(&peer->session.seen);
    peer->session = (struct tls_session){.own_id = 0};
    free(peer->resets);
    peer->resets = NULL;
    peer->reset_count = peer->reset_capacity = 0;
    peer->epoch = 0;
    peer->greeted = peer->failed = false;
    tls_choice_forget(&peer->choice);
    stream_done_dispatch(&peer->endpoint->done, now_ns);
}
