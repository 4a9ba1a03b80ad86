#include <openssl/rand.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/net/quic_greeting.h"
#include "daemon/net/tls_internal.h"
#include "proto/little_endian.h"

/*
 * Greetings, in the format of quic_greeting.h: what a node remembers of the link's streams when an epoch
 * begins. The sender of a stream goes on from where its receiver says that it is.
 */

static int compare_streams(const void *left, const void *right)
{
    uint64_t a = ((const struct quic_greeting_stream *)left)->number;
    uint64_t b = ((const struct quic_greeting_stream *)right)->number;
    return a < b ? -1 : a > b;
}

static int compare_numbers(const void *left, const void *right)
{
    uint64_t a = *(const uint64_t *)left, b = *(const uint64_t *)right;
    return a < b ? -1 : a > b;
}

/* Lists the streams. Returns false when out of memory. */
static bool describe(const struct tls_peer *peer, struct quic_greeting *greeting)
{
    const struct tls_receiver *receiver;
    const struct tls_sender *sender;
    greeting->incoming = calloc((size_t)HASH_COUNT(peer->receivers) + 1, sizeof *greeting->incoming);
    greeting->outgoing = calloc((size_t)HASH_COUNT(peer->senders) + 1, sizeof *greeting->outgoing);
    if (greeting->incoming == NULL || greeting->outgoing == NULL) {
        return false;
    }
    for (receiver = peer->receivers; receiver != NULL; receiver = receiver->hh.next) {
        struct quic_greeting_stream *stream = &greeting->incoming[greeting->incoming_count++];
        stream->number = receiver->number;
        stream->received =
            receiver->intake.stopped ? QUIC_GREETING_STOPPED : stream_intake_received(&receiver->intake);
    }
    for (sender = peer->senders; sender != NULL; sender = sender->hh.next) {
        greeting->outgoing[greeting->outgoing_count++] = sender->number;
    }
    qsort(greeting->incoming, greeting->incoming_count, sizeof *greeting->incoming, compare_streams);
    qsort(greeting->outgoing, greeting->outgoing_count, sizeof *greeting->outgoing, compare_numbers);
    return true;
}

uint8_t *tls_greeting_make(struct tls_peer *peer, size_t *size)
{
    struct quic_greeting greeting = {0};
    uint8_t *bytes = NULL;
    peer->reset_count = 0; /* the list of outgoing streams tells of them */
    if (peer->session.own_id == 0) {
        (void)RAND_bytes((uint8_t *)&peer->session.own_id, sizeof peer->session.own_id);
        peer->session.own_id |= 1; /* never 0 */
    }
    greeting.own_id = peer->session.own_id;
    greeting.peer_id = peer->session.peer_id;
    if (describe(peer, &greeting)) {
        greeting.seen = peer->session.seen; /* not copied */
        size_t body_bytes = quic_greeting_size(&greeting);
        struct tls_frame frame = {
            .type = TLS_FRAME_GREETING, .number = peer->epoch, .body_bytes = (uint32_t)body_bytes};
        *size = TLS_FRAME_HEADER_BYTES + body_bytes;
        bytes = body_bytes <= QUIC_GREETING_MAX_BYTES ? malloc(*size) : NULL;
        if (bytes != NULL) {
            tls_frame_encode(&frame, bytes);
            quic_greeting_encode(&greeting, bytes + TLS_FRAME_HEADER_BYTES);
        }
    }
    greeting.seen = (struct quic_numbers){0};
    quic_greeting_clear(&greeting);
    return bytes;
}

/* --- Taking over --- */

/* The peer does not list the stream: it has all of it, or nothing. Returns whether the peer can be right. */
static bool resume_unlisted(const struct quic_greeting *greeting, struct tls_sender *sender)
{
    if (!quic_numbers_have(&greeting->seen, sender->number)) {
        if (sender->queue.received_end == 0) {
            tls_sender_resume(sender, 0);
        }
        return sender->queue.received_end == 0;
    }
    if (!sender->finishing) {
        return false;
    }
    tls_sender_complete(sender);
    return true;
}

static bool resume_sender(const struct quic_greeting *greeting, struct tls_sender *sender)
{
    const struct quic_greeting_stream *listed = quic_greeting_find(greeting, sender->number);
    if (listed == NULL) {
        return resume_unlisted(greeting, sender);
    }
    if (listed->received == QUIC_GREETING_STOPPED) {
        struct tls_peer *peer = sender->peer;
        uint64_t number = sender->number;
        tls_sender_lose(sender, STATUS_ABORTED);
        return tls_compose_reset(peer, number);
    }
    if (listed->received < sender->queue.received_end || listed->received > sender->queue.sent_end) {
        return false;
    }
    tls_sender_resume(sender, listed->received);
    return true;
}

/* A stream that the sender does not have any more was reset, unless all of it has come. */
static void resume_receiver(const struct quic_greeting *greeting, struct tls_receiver *receiver)
{
    if (!quic_greeting_sends(greeting, receiver->number)) {
        receiver->gone = true;
        receiver->intake.reset = receiver->intake.reset || !receiver->intake.ended;
        receiver->owes_receipt = receiver->owes_credit = receiver->owes_stop = false;
        tls_work_receiver(receiver);
        return;
    }
    receiver->owes_credit = !receiver->intake.stopped && !receiver->intake.ended;
    receiver->told_end = stream_intake_received(&receiver->intake); /* what was told later may be lost */
    tls_receiver_due(receiver);
}

static bool resume(struct tls_peer *peer, const struct quic_greeting *greeting)
{
    struct tls_sender *sender, *next_sender;
    struct tls_receiver *receiver, *next;
    HASH_ITER (hh, peer->senders, sender, next_sender) {
        if (!resume_sender(greeting, sender)) {
            return false;
        }
    }
    HASH_ITER (hh, peer->receivers, receiver, next) {
        resume_receiver(greeting, receiver);
    }
    return true;
}

bool tls_greeting_is_ours(const struct tls_peer *peer, const uint8_t *bytes, size_t size)
{
    const struct tls_session *session = &peer->session;
    if (size < QUIC_GREETING_IDS_END) {
        return true; /* it is no greeting: decoding it says so */
    }
    return get_u64_le(bytes + QUIC_GREETING_IDS_END - 8) == session->own_id &&
           (session->peer_id == 0 || get_u64_le(bytes + QUIC_GREETING_IDS_END - 16) == session->peer_id);
}

bool tls_greeting_take(struct tls_peer *peer, const uint8_t *bytes, size_t size)
{
    struct quic_greeting greeting = {0};
    struct error error;
    bool first = peer->session.peer_id == 0;
    if (quic_greeting_decode(bytes, size, &greeting, &error) != STATUS_OK) {
        tls_peer_fail(peer, error.status, error.text);
        return false;
    }
    bool right = first ? greeting.peer_id == 0 || greeting.peer_id == peer->session.own_id
                       : greeting.own_id == peer->session.peer_id && greeting.peer_id == peer->session.own_id;
    peer->session.peer_id = greeting.own_id;
    right = right && resume(peer, &greeting);
    if (!right) {
        tls_peer_offends(peer, "a greeting of a bulk link that is wrong about its streams");
    }
    quic_greeting_clear(&greeting);
    return right;
}
