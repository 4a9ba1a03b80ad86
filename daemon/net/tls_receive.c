#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include <utlist.h>

#include "daemon/net/tls_internal.h"

/* Incoming streams. What a receiver does with its handler is as in quic_receive.c. */

#define BUFFER_MIN_BYTES 512u

static const struct net_stream_handler *handler_of(const struct tls_receiver *receiver)
{
    return &receiver->stream.base.net->stream_handlers[receiver->stream.base.kind];
}

static void buffer_drop(struct tls_receiver *receiver)
{
    free(receiver->buffer);
    receiver->buffer = NULL;
    receiver->buffer_first = receiver->buffer_bytes = receiver->buffer_capacity = 0;
}

uint64_t tls_receiver_received(const struct tls_receiver *receiver)
{
    return receiver->consumed_end + receiver->buffer_bytes;
}

void tls_receiver_due(struct tls_receiver *receiver)
{
    if (!receiver->is_due) {
        receiver->is_due = true;
        DL_APPEND2(receiver->peer->due, receiver, due_prev, due_next);
    }
    tls_work_flush(receiver->peer);
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
    uint64_t limit = net_stream_limit(&receiver->stream.base, receiver->consumed_end, receiver->expected_end);
    uint64_t step = (limit - receiver->consumed_end) / 4;
    if (receiver->stopped || receiver->reset || receiver->ended || limit < receiver->granted_end + step ||
        limit <= receiver->granted_end) {
        return;
    }
    receiver->granted_end = limit;
    receiver->owes_credit = true;
    tls_receiver_due(receiver);
}

static void consumed(struct tls_receiver *receiver, size_t size)
{
    receiver->consumed_end += size;
    grant(receiver);
}

/* Calls made by the handler have no effect any more. */
static void tell_closed(struct tls_receiver *receiver, const struct error *cause, bool quiet, uint64_t now_ns)
{
    const struct net_stream_handler *handler = handler_of(receiver);
    bool tell = !quiet && receiver->announced && handler->closed != NULL;
    receiver->closing = true;
    receiver->announced = false;
    if (tell) {
        handler->closed(handler->context, &receiver->stream.base, cause, now_ns);
    }
    buffer_drop(receiver);
}

void tls_receiver_close(struct tls_receiver *receiver, const struct error *cause, bool quiet, uint64_t now_ns)
{
    tell_closed(receiver, cause, quiet, now_ns);
    tls_receiver_not_due(receiver);
    tls_forget_receiver(receiver);
    HASH_DEL(receiver->peer->receivers, receiver);
    net_stream_charge(&receiver->stream.base, NULL);
    free(receiver);
}

/* --- Bytes --- */

/* Keeps bytes that were not consumed: at most a window of them, as no more is granted. Returns false when out
 * of memory. */
static bool keep(struct tls_receiver *receiver, const uint8_t *bytes, size_t size)
{
    if (receiver->buffer_first + receiver->buffer_bytes + size > receiver->buffer_capacity) {
        size_t needed = receiver->buffer_bytes + size;
        size_t most = (size_t)(receiver->granted_end - receiver->consumed_end);
        size_t capacity = needed < BUFFER_MIN_BYTES ? BUFFER_MIN_BYTES : needed + needed / 2;
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
static size_t call(struct tls_receiver *receiver, const uint8_t *bytes, size_t size, uint64_t now_ns)
{
    const struct net_stream_handler *handler = handler_of(receiver);
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
    consumed(receiver, used);
    return used;
}

static void tell_kept(const struct tls_receiver *receiver, size_t size)
{
    const struct net_stream_handler *handler = handler_of(receiver);
    if (handler->kept != NULL) {
        struct net_stream *stream = (struct net_stream *)(uintptr_t)&receiver->stream.base;
        handler->kept(handler->context, stream, size, receiver->endpoint->now_ns);
    }
}

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
    receiver->stream.incoming = true;
    receiver->stream.base = (struct net_stream){.net = peer->endpoint->base.net,
                                                .peer = peer->index,
                                                .kind = (enum net_stream_kind)frame->kind,
                                                .on_bulk = true};
    receiver->endpoint = peer->endpoint;
    receiver->peer = peer;
    receiver->granted_end = NET_STREAM_FIRST_WINDOW_BYTES;
    if (handler_of(receiver)->receive == NULL) {
        tls_receiver_stop(receiver); /* no handler takes streams of this kind */
    }
    return receiver;
}

/* Takes bytes that may be taken, or the stream's end. */
static void take(struct tls_receiver *receiver, const uint8_t *bytes, size_t size)
{
    struct tls_endpoint *endpoint = receiver->endpoint;
    bool behind = receiver->held;
    size_t used = behind ? 0 : call(receiver, bytes, size, endpoint->now_ns);
    net_stream_carried(&receiver->stream.base, size, endpoint->now_ns);
    if (receiver->stopped) {
        receiver->consumed_end += size - used; /* its receiver wants no more */
    } else if (used < size && !keep(receiver, bytes + used, size - used)) {
        tls_peer_fail(receiver->peer, STATUS_NO_MEMORY, "no memory for what a stream holds back");
    } else if (behind && receiver->announced && size > 0) {
        tell_kept(receiver, size);
    }
    if (receiver->ended && !receiver->held) {
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
    if (receiver->stream.base.kind != (enum net_stream_kind)frame->kind) {
        return "a stream of two kinds";
    }
    if (frame->offset != tls_receiver_received(receiver) || (receiver->ended && frame->body_bytes > 0)) {
        return "bytes of a stream from the wrong place";
    }
    if (frame->body_bytes > receiver->granted_end - frame->offset) {
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
    if (offset != tls_receiver_received(receiver)) {
        return "bytes of a stream from the wrong place";
    }
    receiver->owes_receipt = true;
    tls_receiver_due(receiver);
    if (receiver->stopped || receiver->reset) {
        receiver->consumed_end += size;
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
    if (offset != tls_receiver_received(receiver)) {
        return "the end of a stream from the wrong place";
    }
    bool first = !receiver->ended;
    receiver->ended = receiver->gone = true;
    receiver->owes_receipt = true;
    tls_receiver_due(receiver);
    if (first && !receiver->stopped && !receiver->reset) {
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
    receiver->reset = receiver->reset || !receiver->ended;
    receiver->owes_receipt = receiver->owes_credit = receiver->owes_stop = false;
    tls_work_receiver(receiver);
    return NULL;
}

/* --- Calls from and to the handler --- */

void tls_receiver_stop(struct tls_receiver *receiver)
{
    if (receiver->stopped || receiver->closing) {
        return;
    }
    receiver->stopped = true;
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
    uint64_t end = receiver->consumed_end + size;
    if (!receiver->closing && end > receiver->expected_end) {
        receiver->expected_end = end;
        grant(receiver);
    }
}

void tls_stream_resume(struct net_stream *stream)
{
    struct tls_receiver *receiver = (struct tls_receiver *)stream;
    assert(receiver->stream.incoming);
    if ((receiver->held || receiver->calling) && !receiver->stopped && !receiver->closing) {
        receiver->resumed = true;
        tls_work_receiver(receiver);
    }
}

/* Hands out again what was left, directly from the buffer: nothing arrives during the call. */
static void again(struct tls_receiver *receiver, uint64_t now_ns)
{
    static const uint8_t nothing[1];
    const uint8_t *bytes = receiver->buffer == NULL ? nothing : receiver->buffer + receiver->buffer_first;
    /* While the handler runs, the bytes still count as kept. */
    size_t used = call(receiver, bytes, receiver->buffer_bytes, now_ns);
    net_stream_carried(&receiver->stream.base, used, now_ns);
    receiver->buffer_first += used;
    receiver->buffer_bytes -= used;
    if (receiver->buffer_bytes == 0) {
        buffer_drop(receiver);
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
        receiver->consumed_end += receiver->buffer_bytes;
        tell_closed(receiver, &cause, false, now_ns);
    }
}

void tls_receiver_work(struct tls_receiver *receiver, uint64_t now_ns)
{
    struct error cause;
    if (receiver->resumed && receiver->held && !receiver->stopped && !receiver->reset) {
        again(receiver, now_ns);
    }
    if (receiver->stopped) {
        given_up(receiver, now_ns);
    } else if (receiver->reset) {
        error_set(&cause, STATUS_ABORTED, "node %s gave the stream up", receiver->peer->name);
        tls_receiver_close(receiver, &cause, false, now_ns);
    } else if (receiver->ended && !receiver->held && !receiver->owes_receipt) {
        tls_receiver_close(receiver, NULL, false, now_ns); /* the receipt is on its way */
    }
}
