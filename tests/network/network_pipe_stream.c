#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include <utlist.h>

#include "daemon/net/stream_queue.h"
#include "tests/network/pipe_internal.h"

#define PIPE_PIECES_MAX 128u /* most pieces of one stream that are under way */
#define PIPE_PIECE_BYTES_DEFAULT 1200u

struct pipe_sender {
    struct net_stream stream;
    struct pipe_net *net;
    struct pipe_end *end;            /* reference; null once lost */
    struct pipe_sender *prev, *next; /* in the list of the end, or of the net's lost senders */
    struct pipe_channel *channel;
    struct pipe_event deferred; /* ends sends for which no acknowledgement will come */
    struct stream_queue queue;
    struct stream_done done;
    uint32_t pieces; /* how many are under way */
    uint64_t limit;  /* offset up to which the receiver allows bytes */
    bool finishing;  /* finish was called */
    bool fin_sent;
    bool reset; /* reset was called */
    bool lost;  /* the connection is gone, or the receiver asked to stop */
    /* how many functions of this sender are on the stack; the last one frees a sender that is over */
    uint32_t busy;
};

struct pipe_receiver {
    struct net_stream stream;
    struct pipe_end *end; /* no reference, because the end closes its receivers */
    struct pipe_receiver *prev, *next;
    struct pipe_channel *channel;
    struct pipe_event deferred; /* fires after resume, or to call closed after reset */
    uint8_t *buffer;            /* bytes received and not consumed */
    size_t buffer_first, buffer_size;
    uint64_t consumed_end;
    uint64_t expected_end; /* offset that the handler expects: see net_stream_expect */
    uint64_t announced_limit;
    bool ended;     /* the last byte has arrived */
    bool announced; /* receive was called for this stream */
    bool held;      /* bytes were left unconsumed, so receive is not called before resume */
    bool calling;   /* receive is on the stack now */
    bool stopped;   /* this side reset the stream; closed follows */
};

void pipe_channel_unref(struct pipe_channel *channel)
{
    if (channel != NULL && --channel->references == 0) {
        free(channel);
    }
}

/* --- Sending --- */

/* Chooses the size of a piece. Packets may end anywhere: the size always varies a little, and now and then
 * a lot. */
static uint32_t pipe_piece_bytes(const struct pipe_sender *sender, uint64_t available)
{
    struct random *random = &sender->net->network->random;
    uint32_t most = pipe_link_between(sender->end->host, sender->end->remote)->conditions.packet_bytes;
    most = most == 0 ? PIPE_PIECE_BYTES_DEFAULT : most;
    uint32_t size = most - (uint32_t)random_below(random, most < 16 ? most : 16);
    if (random_below(random, 16) == 0) {
        size = 1 + (uint32_t)random_below(random, most);
    }
    return available < size ? (uint32_t)available : size;
}

/* Accounts for one packet; each packet is an event of its own. */
static void pipe_carried(struct net_stream *stream, uint32_t size, uint64_t now_ns)
{
    net_stream_carried(stream, size, now_ns);
    spending_shares_end(&stream->net->spending);
}

/* Sends what the window allows. Never calls a handler. */
static void pipe_sender_push(struct pipe_sender *sender)
{
    while (!sender->lost && !sender->reset && sender->end->state == PIPE_END_UP && !sender->fin_sent &&
           sender->pieces < PIPE_PIECES_MAX) {
        struct stream_queue *queue = &sender->queue;
        uint64_t end = queue->queued_end < sender->limit ? queue->queued_end : sender->limit;
        if (queue->sent_end == end && !(sender->finishing && end == queue->queued_end)) {
            return;
        }
        struct pipe_packet *packet = pipe_packet_new(sender->end->host, sender->end->remote, PIPE_BYTES);
        packet->from = pipe_end_ref(sender->end);
        packet->to = pipe_end_ref(sender->end->other);
        packet->channel = sender->channel;
        packet->channel->references++;
        packet->offset = queue->sent_end;
        packet->size = end == queue->sent_end ? 0 : pipe_piece_bytes(sender, end - queue->sent_end);
        stream_queue_sent(queue, packet->size, sender->net->network->now_ns);
        sender->pieces++;
        packet->fin = sender->finishing && queue->sent_end == queue->queued_end;
        sender->fin_sent = packet->fin;
        pipe_end_asks(sender->end);
        pipe_carried(&sender->stream, packet->size, sender->net->network->now_ns);
        pipe_packet_send(packet);
    }
}

/* Copies the bytes that [offset, offset + size) shares with a part of a message. */
static void part_copy(const uint8_t *part, uint64_t part_offset, uint64_t part_bytes, uint64_t offset,
                      uint8_t *out, uint32_t size)
{
    uint64_t first = part_offset > offset ? part_offset : offset;
    uint64_t last = part_offset + part_bytes < offset + size ? part_offset + part_bytes : offset + size;
    if (first < last) {
        memcpy(out + (first - offset), part + (first - part_offset), last - first);
    }
}

/* Reads bytes [offset, offset + size) of the stream, as they are in the sender's buffers now. */
static void pipe_sender_read(const struct pipe_sender *sender, uint64_t offset, uint8_t *out, uint32_t size)
{
    for (const struct stream_message *message = sender->queue.messages; message != NULL;
         message = message->next) {
        uint64_t payload_offset = message->end_offset - message->payload_bytes;
        part_copy(message->bytes, payload_offset - message->header_bytes, message->header_bytes, offset, out,
                  size);
        part_copy(message->payload, payload_offset, message->payload_bytes, offset, out, size);
        if (message->end_offset >= offset + size) {
            return;
        }
    }
}

/* --- The end of sends and of the stream --- */

/* The functions below ask for what is over, as soon as it can be. */
static void pipe_sender_wake(void *context)
{
    (void)context;
}

/* Calls `sent` for what is over. Callbacks may reset or finish the stream. */
static void pipe_sender_dispatch(struct pipe_sender *sender, uint64_t now_ns)
{
    sender->busy++;
    stream_done_dispatch(&sender->done, now_ns);
    sender->busy--;
}

/* Frees a stream that nobody needs any more. The caller must not use the stream afterwards. */
static void pipe_sender_settle(struct pipe_sender *sender)
{
    bool delivered = sender->fin_sent && sender->pieces == 0;
    bool over = sender->reset || (sender->lost && sender->finishing) || delivered;
    if (!over || sender->busy > 0 || sender->queue.message_count > 0) {
        return;
    }
    if (sender->end != NULL) {
        DL_DELETE(sender->end->senders, sender);
        sender->end->sender_count--;
        pipe_end_unref(sender->end);
    } else {
        DL_DELETE(sender->net->lost_senders, sender);
    }
    pipe_event_cancel(sender->net->network, &sender->deferred);
    sender->channel->sender = NULL;
    pipe_channel_unref(sender->channel);
    net_stream_charge(&sender->stream, NULL);
    free(sender);
}

/* Ends every send that is queued. */
static void pipe_sender_flush(struct pipe_sender *sender, enum status status, uint64_t now_ns)
{
    stream_queue_end(&sender->queue, status);
    pipe_sender_dispatch(sender, now_ns);
}

/* Ends the sends that are acknowledged, in order. Then sends more. */
static void pipe_sender_complete(struct pipe_sender *sender, uint64_t offset, uint64_t now_ns)
{
    stream_queue_received(&sender->queue, offset, now_ns);
    pipe_sender_dispatch(sender, now_ns);
    pipe_sender_push(sender);
    pipe_sender_settle(sender);
}

static void pipe_sender_deferred(struct pipe_event *event, uint64_t now_ns)
{
    struct pipe_sender *sender =
        (struct pipe_sender *)((char *)event - offsetof(struct pipe_sender, deferred));
    if (sender->reset) {
        pipe_sender_flush(sender, STATUS_ABORTED, now_ns);
        pipe_sender_settle(sender);
    } else {
        pipe_sender_complete(sender, sender->queue.received_end, now_ns);
    }
}

static void pipe_sender_later(struct pipe_sender *sender)
{
    pipe_event_set(sender->net->network, &sender->deferred, sender->net->network->now_ns);
}

/* The connection is gone, or the receiver wants no more bytes. Ends every send with the status. */
static void pipe_sender_lose(struct pipe_sender *sender, enum status status, uint64_t now_ns)
{
    assert(!sender->lost && status != STATUS_OK);
    struct pipe_end *end = sender->end;
    sender->lost = true;
    sender->end = NULL;
    sender->channel->sender = NULL;
    DL_DELETE(end->senders, sender);
    end->sender_count--;
    DL_APPEND(sender->net->lost_senders, sender);
    pipe_event_cancel(sender->net->network, &sender->deferred);
    pipe_end_unref(end);
    pipe_sender_flush(sender, sender->reset ? STATUS_ABORTED : status, now_ns);
    pipe_sender_settle(sender);
}

void pipe_lost_free(struct pipe_net *net, uint64_t now_ns)
{
    while (net->lost_senders != NULL) {
        net->lost_senders->reset = true;
        pipe_sender_flush(net->lost_senders, STATUS_SHUTTING_DOWN, now_ns);
        pipe_sender_settle(net->lost_senders);
    }
}

/* --- Incoming streams --- */

static const struct net_stream_handler *pipe_receiver_handler(const struct pipe_receiver *receiver)
{
    return &receiver->stream.net->stream_handlers[receiver->stream.kind];
}

static void pipe_receiver_close(struct pipe_receiver *receiver, const struct error *cause, bool quiet,
                                uint64_t now_ns)
{
    DL_DELETE(receiver->end->receivers, receiver);
    pipe_event_cancel(receiver->end->host->network, &receiver->deferred);
    receiver->channel->receiver = NULL;
    receiver->channel->over = true;
    receiver->stopped = true; /* later requests of the handler for this stream have no effect */
    const struct net_stream_handler *handler = pipe_receiver_handler(receiver);
    if (!quiet && receiver->announced && handler->closed != NULL) {
        handler->closed(handler->context, &receiver->stream, cause, now_ns);
    }
    pipe_channel_unref(receiver->channel);
    net_stream_charge(&receiver->stream, NULL);
    free(receiver->buffer);
    free(receiver);
}

/* Closes a stream of which everything was consumed. */
static void pipe_receiver_settle(struct pipe_receiver *receiver, uint64_t now_ns)
{
    if (receiver->ended && !receiver->stopped && !receiver->held && receiver->end->state == PIPE_END_UP) {
        pipe_receiver_close(receiver, NULL, false, now_ns);
    }
}

/* Tells the sender when the window has grown by a quarter, not for each byte. */
static void pipe_receiver_announce(struct pipe_receiver *receiver)
{
    uint64_t limit = net_stream_limit(&receiver->stream, receiver->consumed_end, receiver->expected_end);
    uint64_t step = (limit - receiver->consumed_end) / 4;
    if (!receiver->ended && receiver->end->state == PIPE_END_UP && limit > receiver->announced_limit &&
        limit - receiver->announced_limit >= step) {
        receiver->announced_limit = limit;
        pipe_tell(receiver->end, PIPE_WINDOW, receiver->channel, limit);
    }
}

/* Calls receive. Returns how many bytes it consumed. */
static size_t pipe_receiver_call(struct pipe_receiver *receiver, const uint8_t *bytes, size_t size,
                                 uint64_t now_ns)
{
    const struct net_stream_handler *handler = pipe_receiver_handler(receiver);
    receiver->announced = true;
    receiver->calling = true;
    size_t used = handler->receive(handler->context, &receiver->stream, bytes, size, receiver->ended, now_ns);
    receiver->calling = false;
    assert(used <= size);
    receiver->held = used < size;
    if (!receiver->held && !receiver->stopped) {
        /* receive need not be called again */
        pipe_event_cancel(receiver->end->host->network, &receiver->deferred);
    }
    receiver->consumed_end += used;
    pipe_carried(&receiver->stream, (uint32_t)used, now_ns);
    pipe_receiver_announce(receiver);
    return used;
}

static void pipe_receiver_keep(struct pipe_receiver *receiver, const uint8_t *bytes, size_t size)
{
    if (size == 0) {
        return;
    }
    uint8_t *buffer = pipe_alloc(1, receiver->buffer_size + size);
    if (receiver->buffer_size > 0) {
        memcpy(buffer, receiver->buffer + receiver->buffer_first, receiver->buffer_size);
    }
    memcpy(buffer + receiver->buffer_size, bytes, size);
    free(receiver->buffer);
    receiver->buffer = buffer;
    receiver->buffer_first = 0;
    receiver->buffer_size += size;
    assert(receiver->buffer_size <= receiver->announced_limit - receiver->consumed_end);
}

/* Runs after resume, or after a reset by this side. */
static void pipe_receiver_deferred(struct pipe_event *event, uint64_t now_ns)
{
    struct pipe_receiver *receiver =
        (struct pipe_receiver *)((char *)event - offsetof(struct pipe_receiver, deferred));
    if (receiver->end->state != PIPE_END_UP) {
        return;
    }
    if (receiver->stopped) {
        struct error cause;
        error_set(&cause, STATUS_ABORTED, "stream of node %s given up by node %s",
                  receiver->end->remote->name, receiver->end->host->name);
        pipe_receiver_close(receiver, &cause, false, now_ns);
    } else if (receiver->held) {
        /* The handler gets the buffer itself: nothing can arrive during the call. */
        size_t used = pipe_receiver_call(receiver, receiver->buffer + receiver->buffer_first,
                                         receiver->buffer_size, now_ns);
        receiver->buffer_first += used;
        receiver->buffer_size -= used;
        pipe_receiver_settle(receiver, now_ns);
    }
}

static struct pipe_receiver *pipe_receiver_new(struct pipe_end *end, struct pipe_channel *channel)
{
    struct pipe_receiver *receiver = pipe_alloc(1, sizeof *receiver);
    receiver->stream = (struct net_stream){.net = &end->net->base, .peer = end->peer, .kind = channel->kind};
    receiver->stream.incoming = true;
    receiver->end = end;
    receiver->channel = channel;
    receiver->announced_limit = net_stream_limit(&receiver->stream, 0, 0);
    receiver->deferred =
        (struct pipe_event){.node.index = TIMER_NODE_DISARMED, .fire = pipe_receiver_deferred};
    channel->references++;
    channel->receiver = receiver;
    DL_APPEND(end->receivers, receiver);
    return receiver;
}

static void pipe_receive_bytes(struct pipe_end *end, const struct pipe_packet *packet, uint64_t now_ns)
{
    struct pipe_channel *channel = packet->channel;
    if (channel->over || channel->sender == NULL) {
        return; /* one side gave the stream up, and the other side learns it soon */
    }
    if (end->net->base.stream_handlers[channel->kind].receive == NULL) {
        channel->over = true;
        pipe_tell(end, PIPE_STOP, channel, 0);
        return;
    }
    struct pipe_receiver *receiver =
        channel->receiver == NULL ? pipe_receiver_new(end, channel) : channel->receiver;
    receiver->ended = packet->fin;
    if (receiver->stopped) {
        return;
    }
    /* a block of its own, so that sanitizers notice reads beyond it */
    uint8_t *bytes = pipe_alloc(1, packet->size + (packet->size == 0));
    pipe_sender_read(channel->sender, packet->offset, bytes, packet->size);
    if (receiver->held) {
        const struct net_stream_handler *handler = pipe_receiver_handler(receiver);
        pipe_receiver_keep(receiver, bytes, packet->size);
        if (packet->size > 0 && handler->kept != NULL) {
            handler->kept(handler->context, &receiver->stream, receiver->buffer + receiver->buffer_first,
                          receiver->buffer_size, now_ns);
        }
    } else {
        size_t used = pipe_receiver_call(receiver, bytes, packet->size, now_ns);
        pipe_receiver_keep(receiver, bytes + used, packet->size - used);
        pipe_receiver_settle(receiver, now_ns);
    }
    free(bytes);
}

static void pipe_receive_reset(const struct pipe_end *end, struct pipe_channel *channel, uint64_t now_ns)
{
    struct pipe_receiver *receiver = channel->receiver;
    channel->over = true;
    if (receiver != NULL && !receiver->stopped) {
        struct error cause;
        error_set(&cause, STATUS_ABORTED, "node %s gave the stream up", end->remote->name);
        pipe_receiver_close(receiver, &cause, false, now_ns);
    }
}

/* --- Both ends --- */

void pipe_stream_receive(struct pipe_end *end, const struct pipe_packet *packet, uint64_t now_ns)
{
    struct pipe_sender *sender = packet->channel->sender;
    if (packet->kind == PIPE_BYTES) {
        pipe_receive_bytes(end, packet, now_ns);
    } else if (packet->kind == PIPE_RESET) {
        pipe_receive_reset(end, packet->channel, now_ns);
    } else if (sender == NULL) {
        return;
    } else if (packet->kind == PIPE_STOP) {
        pipe_sender_lose(sender, STATUS_ABORTED, now_ns);
    } else if (packet->kind == PIPE_WINDOW) {
        sender->limit = packet->offset;
        pipe_sender_push(sender);
    } else if (packet->kind == PIPE_ACKNOWLEDGE) {
        sender->pieces--;
        pipe_sender_complete(sender, packet->offset, now_ns);
    }
}

void pipe_streams_lose(struct pipe_end *end, const struct error *cause, bool quiet, uint64_t now_ns)
{
    while (end->receivers != NULL) {
        pipe_receiver_close(end->receivers, cause, quiet, now_ns);
    }
    while (end->senders != NULL) {
        pipe_sender_lose(end->senders, cause->status, now_ns);
    }
}

/* --- The interface --- */

enum status pipe_stream_open(struct net *base, uint32_t index, enum net_stream_kind kind,
                             struct net_stream **out, struct error *error)
{
    struct pipe_net *net = (struct pipe_net *)base;
    assert(index < net->peer_count);
    struct pipe_end *end = net->peers[index].end;
    if (end == NULL || end->state != PIPE_END_UP) {
        return error_set(error, STATUS_UNREACHABLE, "no connection to node %s", net->peers[index].host->name);
    }
    if (end->sender_count >= PIPE_STREAMS_MAX) {
        return error_set(error, STATUS_LIMIT, "node %s allows no more than %d streams at a time",
                         end->remote->name, PIPE_STREAMS_MAX);
    }
    struct pipe_sender *sender = pipe_alloc(1, sizeof *sender);
    sender->stream = (struct net_stream){.net = base, .peer = index, .kind = kind};
    sender->net = net;
    sender->channel = pipe_alloc(1, sizeof *sender->channel);
    *sender->channel = (struct pipe_channel){.references = 1, .kind = kind, .sender = sender};
    sender->deferred = (struct pipe_event){.node.index = TIMER_NODE_DISARMED, .fire = pipe_sender_deferred};
    sender->stream.queue = &sender->queue;
    sender->queue.done = &sender->done;
    sender->done.wake = pipe_sender_wake;
    sender->limit = net_stream_limit(&sender->stream, 0, 0);
    sender->end = pipe_end_ref(end);
    DL_APPEND(end->senders, sender);
    end->sender_count++;
    *out = &sender->stream;
    return STATUS_OK;
}

enum status pipe_stream_send(struct net_stream *stream, const void *header, size_t header_bytes,
                             const void *payload, size_t payload_bytes, net_sent_function *sent,
                             void *context)
{
    struct pipe_sender *sender = (struct pipe_sender *)stream;
    assert(!sender->stream.incoming && !sender->finishing && !sender->reset);
    if (sender->lost || sender->end->state != PIPE_END_UP) {
        return STATUS_UNREACHABLE;
    }
    enum status status =
        stream_queue_add(&sender->queue, header, header_bytes, payload, payload_bytes, sent, context);
    if (status != STATUS_OK) {
        return status;
    }
    sender->net->network->base.counters.copied_bytes += sent == NULL ? payload_bytes : 0;
    if (sender->queue.queued_end == sender->queue.received_end) {
        /* an empty message behind acknowledged ones: no acknowledgement will come for it */
        pipe_sender_later(sender);
    }
    pipe_sender_push(sender);
    return STATUS_OK;
}

void pipe_stream_finish(struct net_stream *stream)
{
    struct pipe_sender *sender = (struct pipe_sender *)stream;
    assert(!sender->stream.incoming && !sender->finishing && !sender->reset);
    sender->finishing = true;
    pipe_sender_push(sender);
    pipe_sender_settle(sender);
}

static void pipe_sender_reset(struct pipe_sender *sender)
{
    assert(!sender->finishing && !sender->reset);
    sender->reset = true;
    if (!sender->lost) {
        sender->channel->sender = NULL;
        if (sender->end->state == PIPE_END_UP) {
            pipe_tell(sender->end, PIPE_RESET, sender->channel, sender->queue.sent_end);
            pipe_sender_later(sender);
            return;
        }
    }
    pipe_sender_settle(sender);
}

static void pipe_receiver_reset(struct pipe_receiver *receiver)
{
    if (receiver->stopped) {
        return;
    }
    receiver->stopped = true;
    if (receiver->end->state == PIPE_END_UP) {
        pipe_tell(receiver->end, PIPE_STOP, receiver->channel, 0);
        pipe_event_set(receiver->end->host->network, &receiver->deferred,
                       receiver->end->host->network->now_ns);
    }
}

void pipe_stream_reset(struct net_stream *stream)
{
    if (stream->incoming) {
        pipe_receiver_reset((struct pipe_receiver *)stream);
    } else {
        pipe_sender_reset((struct pipe_sender *)stream);
    }
}

void pipe_stream_expect(struct net_stream *stream, uint64_t size)
{
    struct pipe_receiver *receiver = (struct pipe_receiver *)stream;
    assert(receiver->stream.incoming);
    uint64_t end = receiver->consumed_end + size;
    if (!receiver->stopped && end > receiver->expected_end) {
        receiver->expected_end = end;
        pipe_receiver_announce(receiver);
    }
}

void pipe_stream_resume(struct net_stream *stream)
{
    struct pipe_receiver *receiver = (struct pipe_receiver *)stream;
    assert(receiver->stream.incoming);
    if ((receiver->held || receiver->calling) && !receiver->stopped && receiver->end->state == PIPE_END_UP) {
        pipe_event_set(receiver->end->host->network, &receiver->deferred,
                       receiver->end->host->network->now_ns);
    }
}
