#include <assert.h>
#include <stdlib.h>

#include <utlist.h>

#include "daemon/net/tls_internal.h"

/* Incoming streams. What a receiver does with its handler is as in quic_receive.c. */

/* Whether the sender may soon use up what it was granted before: then the credit does not wait for data. */
static bool is_needed_soon(const struct tls_receiver *receiver)
{
    const struct stream_intake *intake = &receiver->intake;
    uint64_t received = stream_intake_received(intake);
    uint64_t left = receiver->told_end > received ? receiver->told_end - received : 0;
    return left < TLS_CREDIT_LEAST_BYTES || received + left < intake->expected_end;
}

void tls_receiver_due(struct tls_receiver *receiver)
{
    if (!receiver->is_due) {
        receiver->is_due = true;
        DL_APPEND2(receiver->peer->due, receiver, due_prev, due_next);
    }
    if ((receiver->owes_credit && is_needed_soon(receiver)) || receiver->owes_stop) {
        tls_work_flush(receiver->peer);
    } else {
        tls_work_receipt(receiver->peer);
    }
}

void tls_receiver_not_due(struct tls_receiver *receiver)
{
    if (receiver->is_due) {
        receiver->is_due = false;
        DL_DELETE2(receiver->peer->due, receiver, due_prev, due_next);
    }
}

/* Grants the sender more bytes, as far as consumed and expected bytes allow; not byte by byte. */
static void grant(struct tls_receiver *receiver)
{
    uint64_t limit = stream_intake_grant(&receiver->intake, &receiver->stream);
    if (limit == 0) {
        return;
    }
    receiver->intake.granted_end = limit;
    receiver->owes_credit = true;
    tls_receiver_due(receiver);
}

void tls_receiver_close(struct tls_receiver *receiver, const struct error *cause, bool quiet, uint64_t now_ns)
{
    stream_intake_close(&receiver->intake, &receiver->stream, cause, quiet, now_ns);
    tls_receiver_not_due(receiver);
    work_list_remove(&receiver->endpoint->receiver_work, &receiver->work);
    HASH_DEL(receiver->peer->receivers, receiver);
    net_stream_charge(&receiver->stream, NULL);
    free(receiver);
}

/* --- Bytes --- */

/* Finds the receiver of that stream, or makes it. Null: the stream is over, or *wrong is set. */
static struct tls_receiver *receiver_for(struct tls_peer *peer, const struct tls_frame *frame,
                                         const char **wrong)
{
    struct tls_receiver *receiver = NULL;
    *wrong = NULL;
    HASH_FIND(hh, peer->receivers, &frame->number, sizeof frame->number, receiver);
    if (receiver != NULL || quic_numbers_have(&peer->session.seen, frame->number)) {
        return receiver;
    }
    if (HASH_COUNT(peer->receivers) >= TLS_STREAMS_MAX) {
        *wrong = "too many streams at once";
        return NULL;
    }
    enum status status = quic_numbers_add(&peer->session.seen, frame->number);
    if (status == STATUS_OK) {
        receiver = calloc(1, sizeof *receiver);
    } else if (status != STATUS_NO_MEMORY) {
        *wrong = "a number of a stream that is out of order";
        return NULL;
    }
    if (receiver != NULL) {
        receiver->number = frame->number;
        HASH_ADD(hh, peer->receivers, number, sizeof receiver->number, receiver);
    }
    if (receiver == NULL || !table_has(receiver, hh)) {
        free(receiver);
        tls_peer_fail(peer, STATUS_NO_MEMORY, "no memory for another stream");
        return NULL;
    }
    receiver->stream = (struct net_stream){.net = peer->endpoint->base.net,
                                           .peer = peer->index,
                                           .kind = (enum net_stream_kind)frame->kind,
                                           .incoming = true,
                                           .on_bulk = true};
    receiver->endpoint = peer->endpoint;
    receiver->peer = peer;
    receiver->intake.granted_end = receiver->told_end = NET_STREAM_FIRST_WINDOW_BYTES;
    if (stream_handler(&receiver->stream)->receive == NULL) {
        tls_receiver_stop(receiver); /* no handler takes streams of this kind */
    }
    return receiver;
}

/* Takes bytes that may be taken, or the stream's end. */
static void take(struct tls_receiver *receiver, const uint8_t *bytes, size_t size)
{
    struct stream_intake *intake = &receiver->intake;
    if (!stream_intake_take(intake, &receiver->stream, bytes, size, receiver->endpoint->now_ns)) {
        tls_peer_fail(receiver->peer, STATUS_NO_MEMORY, "no memory for what a stream holds back");
        return;
    }
    grant(receiver);
    if (intake->ended && !intake->held) {
        tls_work_receiver(receiver);
    }
}

const char *tls_receiver_check(struct tls_peer *peer, const struct tls_frame *frame)
{
    const char *wrong;
    const struct tls_receiver *receiver = receiver_for(peer, frame, &wrong);
    if (receiver == NULL) {
        return wrong;
    }
    if (receiver->stream.kind != (enum net_stream_kind)frame->kind) {
        return "a stream of two kinds";
    }
    if (frame->offset != stream_intake_received(&receiver->intake) ||
        (receiver->intake.ended && frame->body_bytes > 0)) {
        return "bytes of a stream from the wrong place";
    }
    if (frame->body_bytes > receiver->intake.granted_end - frame->offset) {
        return "more of a stream than it may";
    }
    return NULL;
}

const char *tls_receiver_bytes(struct tls_peer *peer, const struct tls_frame *frame, uint64_t offset,
                               const uint8_t *bytes, size_t size)
{
    const char *wrong;
    struct tls_receiver *receiver = receiver_for(peer, frame, &wrong);
    if (receiver == NULL) {
        return wrong;
    }
    if (offset != stream_intake_received(&receiver->intake)) {
        return "bytes of a stream from the wrong place";
    }
    receiver->owes_receipt = true;
    peer->unreceipted_bytes += size;
    tls_receiver_due(receiver);
    if (receiver->intake.stopped || receiver->intake.reset) {
        receiver->intake.consumed_end += size;
    } else {
        take(receiver, bytes, size);
    }
    return NULL;
}

const char *tls_receiver_end(struct tls_peer *peer, const struct tls_frame *frame, uint64_t offset)
{
    static const uint8_t nothing[1];
    const char *wrong;
    struct tls_receiver *receiver = receiver_for(peer, frame, &wrong);
    if (receiver == NULL) {
        return wrong;
    }
    if (offset != stream_intake_received(&receiver->intake)) {
        return "the end of a stream from the wrong place";
    }
    bool first = !receiver->intake.ended;
    receiver->intake.ended = receiver->gone = true;
    receiver->owes_receipt = true;
    tls_receiver_due(receiver);
    if (first && !receiver->intake.stopped && !receiver->intake.reset) {
        take(receiver, nothing, 0);
    } else if (receiver->over) {
        tls_work_receiver(receiver);
    }
    return NULL;
}

const char *tls_receiver_reset(struct tls_peer *peer, uint64_t number)
{
    struct tls_receiver *receiver = NULL;
    HASH_FIND(hh, peer->receivers, &number, sizeof number, receiver);
    if (receiver == NULL) {
        enum status status = quic_numbers_have(&peer->session.seen, number)
                                 ? STATUS_OK
                                 : quic_numbers_add(&peer->session.seen, number);
        return status == STATUS_OK || status == STATUS_NO_MEMORY ? NULL : "a reset that is out of order";
    }
    receiver->gone = true;
    receiver->intake.reset = receiver->intake.reset || !receiver->intake.ended;
    receiver->owes_receipt = receiver->owes_credit = receiver->owes_stop = false;
    tls_work_receiver(receiver);
    return NULL;
}

/* --- Calls from and to the handler --- */

void tls_receiver_stop(struct tls_receiver *receiver)
{
    if (receiver->intake.stopped || receiver->intake.closing) {
        return;
    }
    receiver->intake.stopped = true;
    if (!receiver->gone) {
        receiver->owes_stop = true;
        tls_receiver_due(receiver);
    }
    tls_work_receiver(receiver);
}

void tls_stream_expect(struct net_stream *stream, uint64_t size)
{
    struct tls_receiver *receiver = (struct tls_receiver *)stream;
    assert(receiver->stream.incoming);
    if (stream_intake_expect(&receiver->intake, size)) {
        grant(receiver);
    }
}

void tls_stream_resume(struct net_stream *stream)
{
    struct tls_receiver *receiver = (struct tls_receiver *)stream;
    assert(receiver->stream.incoming);
    if (stream_intake_resume(&receiver->intake)) {
        tls_work_receiver(receiver);
    }
}

/* The handler is told that the stream is over. If the sender does not know yet, the receiver stays. */
static void given_up(struct tls_receiver *receiver, uint64_t now_ns)
{
    struct error cause;
    error_set(&cause, STATUS_ABORTED, "stream of node %s given up by node %s", receiver->peer->name,
              receiver->endpoint->node_name);
    if (receiver->gone && !receiver->owes_receipt) {
        tls_receiver_close(receiver, &cause, receiver->over, now_ns);
    } else if (!receiver->over) {
        receiver->over = true;
        stream_intake_close(&receiver->intake, &receiver->stream, &cause, false, now_ns);
    }
}

void tls_receiver_work(struct tls_receiver *receiver, uint64_t now_ns)
{
    struct error cause;
    if (receiver->intake.resumed && receiver->intake.held && !receiver->intake.stopped &&
        !receiver->intake.reset) {
        stream_intake_again(&receiver->intake, &receiver->stream, now_ns);
        grant(receiver);
    }
    if (receiver->intake.stopped) {
        given_up(receiver, now_ns);
    } else if (receiver->intake.reset) {
        error_set(&cause, STATUS_ABORTED, "node %s gave the stream up", receiver->peer->name);
        tls_receiver_close(receiver, &cause, false, now_ns);
    } else if (receiver->intake.ended && !receiver->intake.held && !receiver->owes_receipt) {
        tls_receiver_close(receiver, NULL, false, now_ns); /* the receipt is on its way */
    }
}
