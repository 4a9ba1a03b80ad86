#include "tests/network/mem_internal.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include <utlist.h>

#define MEM_SIZE_UNKNOWN UINT64_MAX

static struct mem_network *mem_receiver_network(const struct mem_receiver *receiver)
{
    return ((struct mem_net *)receiver->stream.base.net)->network;
}

static const struct net_stream_handler *mem_receiver_handler(const struct mem_receiver *receiver)
{
    return &receiver->stream.base.net->stream_handlers[receiver->stream.base.kind];
}

static void mem_receiver_deferred(struct mem_event *event, uint64_t now_ns);

static struct mem_receiver *mem_receiver_new(struct mem_end *end, struct mem_channel *channel)
{
    struct mem_receiver *receiver = calloc(1, sizeof *receiver);
    if (receiver == NULL) {
        return NULL;
    }
    if (mem_event_claim(&end->host->network->events, &receiver->deferred, mem_receiver_deferred) !=
        STATUS_OK) {
        free(receiver);
        return NULL;
    }
    receiver->stream.base =
        (struct net_stream){.net = &end->net->base, .peer = end->peer, .kind = channel->kind};
    receiver->stream.incoming = true;
    receiver->end = end;
    receiver->channel = mem_channel_ref(channel);
    receiver->announced_limit = net_stream_limit(&receiver->stream.base, 0, 0);
    receiver->final_size = MEM_SIZE_UNKNOWN;
    channel->receiver = receiver;
    DL_APPEND(end->receivers, receiver);
    return receiver;
}

void mem_receiver_close(struct mem_receiver *receiver, const struct error *cause, bool quiet, uint64_t now_ns)
{
    DL_DELETE(receiver->end->receivers, receiver);
    mem_event_release(&mem_receiver_network(receiver)->events, &receiver->deferred);
    receiver->channel->receiver = NULL;
    receiver->channel->over = true;
    receiver->stopped = true; /* what the handler still asks of it is in vain */
    const struct net_stream_handler *handler = mem_receiver_handler(receiver);
    if (!quiet && receiver->announced && handler->closed != NULL) {
        handler->closed(handler->context, &receiver->stream.base, cause, now_ns);
    }
    while (receiver->pieces != NULL) {
        struct mem_piece *piece = receiver->pieces;
        LL_DELETE(receiver->pieces, piece);
        free(piece);
    }
    mem_channel_unref(receiver->channel);
    free(receiver->buffer);
    free(receiver);
}

/* --- The receiver's side of flow control --- */

static uint64_t mem_receiver_limit(const struct mem_receiver *receiver)
{
    return net_stream_limit(&receiver->stream.base, receiver->consumed_end, receiver->expected_end);
}

/* Tells the sender of a window that has grown, not byte by byte. */
static void mem_receiver_announce(struct mem_receiver *receiver)
{
    uint64_t limit = mem_receiver_limit(receiver);
    uint64_t step = (limit - receiver->consumed_end) / 4;
    if (receiver->final_size == MEM_SIZE_UNKNOWN && receiver->end->state == MEM_END_UP &&
        limit > receiver->announced_limit && limit - receiver->announced_limit >= step) {
        receiver->announced_limit = limit;
        mem_flight_signal(receiver->end, MEM_PACKET_WINDOW, receiver->channel, limit);
    }
}

static void mem_receiver_consumed(struct mem_receiver *receiver, size_t size)
{
    receiver->consumed_end += size;
    mem_receiver_announce(receiver);
}

/* --- Bytes in order --- */

static void mem_receiver_no_memory(struct mem_receiver *receiver)
{
    struct error cause;
    error_set(&cause, STATUS_NO_MEMORY, "no memory for what node %s sends", receiver->end->remote->name);
    mem_end_fail(receiver->end, &cause);
}

/* Keeps bytes that the handler has not consumed. */
static void mem_receiver_keep(struct mem_receiver *receiver, const uint8_t *bytes, size_t size)
{
    size_t end = receiver->buffer_first + receiver->buffer_size;
    if (receiver->buffer_capacity - end < size) {
        size_t capacity = receiver->buffer_size + size;
        capacity = capacity < 4096 ? 4096 : capacity + capacity / 2;
        uint8_t *buffer = malloc(capacity);
        if (buffer == NULL) {
            mem_receiver_no_memory(receiver);
            return;
        }
        if (receiver->buffer_size > 0) {
            memcpy(buffer, receiver->buffer + receiver->buffer_first, receiver->buffer_size);
        }
        free(receiver->buffer);
        receiver->buffer = buffer;
        receiver->buffer_capacity = capacity;
        receiver->buffer_first = 0;
        end = receiver->buffer_size;
    }
    memcpy(receiver->buffer + end, bytes, size);
    receiver->buffer_size += size;
    assert(receiver->buffer_size <= NET_STREAM_WINDOW_BYTES);
}

static size_t mem_receiver_call(struct mem_receiver *receiver, const uint8_t *bytes, size_t size,
                                uint64_t now_ns)
{
    const struct net_stream_handler *handler = mem_receiver_handler(receiver);
    bool end = receiver->received_end == receiver->final_size;
    receiver->announced = true;
    receiver->calling = true;
    size_t used = handler->receive(handler->context, &receiver->stream.base, bytes, size, end, now_ns);
    receiver->calling = false;
    assert(used <= size);
    if (used == size && !receiver->stopped) {
        mem_event_cancel(&mem_receiver_network(receiver)->events,
                         &receiver->deferred); /* nothing to come again */
    }
    mem_receiver_consumed(receiver, used);
    return used;
}

/* The next bytes of the stream. */
static void mem_receiver_hand(struct mem_receiver *receiver, const uint8_t *bytes, size_t size,
                              uint64_t now_ns)
{
    receiver->received_end += size;
    if (receiver->stopped || receiver->end->state != MEM_END_UP) {
        return;
    }
    size_t used = 0;
    if (!receiver->held) {
        used = mem_receiver_call(receiver, bytes, size, now_ns);
        receiver->held = used < size;
    }
    if (used < size) {
        bool behind = used == 0 && receiver->buffer_size > 0;
        mem_receiver_keep(receiver, bytes + used, size - used);
        const struct net_stream_handler *handler = mem_receiver_handler(receiver);
        if (behind && handler->kept != NULL) {
            handler->kept(handler->context, &receiver->stream.base, size, now_ns);
        }
    }
}

/* Closes a stream of which everything was consumed. */
static void mem_receiver_settle(struct mem_receiver *receiver, uint64_t now_ns)
{
    if (receiver->announced && !receiver->stopped && !receiver->held && receiver->end->state == MEM_END_UP &&
        receiver->consumed_end == receiver->final_size) {
        mem_receiver_close(receiver, NULL, false, now_ns);
    }
}

/* After resume, or reset by our side. */
static void mem_receiver_deferred(struct mem_event *event, uint64_t now_ns)
{
    struct mem_receiver *receiver =
        (struct mem_receiver *)((char *)event - offsetof(struct mem_receiver, deferred));
    if (receiver->end->state != MEM_END_UP) {
        return;
    }
    if (receiver->stopped) {
        struct error cause;
        error_set(&cause, STATUS_ABORTED, "stream of node %s given up by node %s",
                  receiver->end->remote->name, receiver->end->host->name);
        mem_receiver_close(receiver, &cause, false, now_ns);
        return;
    }
    if (!receiver->held) {
        return;
    }
    /* The buffer is handed out in place: nothing arrives during the call. */
    size_t used =
        mem_receiver_call(receiver, receiver->buffer + receiver->buffer_first, receiver->buffer_size, now_ns);
    receiver->buffer_first += used;
    receiver->buffer_size -= used;
    receiver->held = receiver->buffer_size > 0;
    if (!receiver->held) {
        free(receiver->buffer);
        receiver->buffer = NULL;
        receiver->buffer_first = 0;
        receiver->buffer_capacity = 0;
    }
    mem_receiver_settle(receiver, now_ns);
}

/* --- What arrives --- */

static void mem_acknowledge(struct mem_end *end, const struct mem_packet *packet)
{
    struct mem_packet *answer = mem_packet_new(end->host, end->remote, MEM_PACKET_ACKNOWLEDGE, 0);
    if (answer != NULL) {
        mem_packet_between(answer, end, packet->from);
        answer->flight = mem_flight_ref(packet->flight);
        mem_packet_send(answer);
    }
}

/* Puts a segment that came too early in its place. Returns whether it is there. */
static bool mem_piece_keep(struct mem_receiver *receiver, const struct mem_packet *packet)
{
    struct mem_piece **at = &receiver->pieces;
    while (*at != NULL && (*at)->offset < packet->offset) {
        at = &(*at)->next;
    }
    if (*at != NULL && (*at)->offset == packet->offset) {
        return true;
    }
    struct mem_piece *piece = malloc(sizeof *piece + packet->size);
    if (piece == NULL) {
        return false;
    }
    piece->offset = packet->offset;
    piece->size = packet->size;
    memcpy(piece->bytes, packet->bytes, packet->size);
    piece->next = *at;
    *at = piece;
    return true;
}

/* No handler takes streams of this kind: the sender is told to stop. */
static void mem_receive_unwanted(struct mem_end *end, struct mem_packet *packet)
{
    packet->channel->over = true;
    mem_acknowledge(end, packet);
    mem_flight_signal(end, MEM_PACKET_STOP, packet->channel, 0);
}

void mem_receive_segment(struct mem_end *end, struct mem_packet *packet, uint64_t now_ns)
{
    struct mem_channel *channel = packet->channel;
    if (channel->over) {
        mem_acknowledge(end, packet);
        return;
    }
    if (end->net->base.stream_handlers[channel->kind].receive == NULL) {
        mem_receive_unwanted(end, packet);
        return;
    }
    struct mem_receiver *receiver = channel->receiver;
    if (receiver == NULL) {
        receiver = mem_receiver_new(end, channel);
        if (receiver == NULL) {
            return; /* as if lost */
        }
    }
    assert(packet->offset + packet->size <= receiver->announced_limit);
    /* A segment is sent again with the same bounds: it is either new as a whole or known as a whole. */
    bool early = packet->offset > receiver->received_end;
    bool known = packet->offset < receiver->received_end || receiver->received_end == receiver->final_size;
    if (early && !receiver->stopped && !mem_piece_keep(receiver, packet)) {
        return;
    }
    if (packet->fin) {
        receiver->final_size = packet->offset + packet->size;
    }
    mem_acknowledge(end, packet);
    if (early || known) {
        return;
    }
    mem_receiver_hand(receiver, packet->bytes, packet->size, now_ns);
    while (receiver->pieces != NULL && receiver->pieces->offset == receiver->received_end) {
        struct mem_piece *piece = receiver->pieces;
        LL_DELETE(receiver->pieces, piece);
        mem_receiver_hand(receiver, piece->bytes, piece->size, now_ns);
        free(piece);
    }
    mem_receiver_settle(receiver, now_ns);
}

void mem_receive_reset(struct mem_end *end, struct mem_channel *channel, uint64_t now_ns)
{
    struct mem_receiver *receiver = channel->receiver;
    channel->over = true;
    if (receiver == NULL || receiver->stopped || receiver->received_end == receiver->final_size) {
        return;
    }
    struct error cause;
    error_set(&cause, STATUS_ABORTED, "node %s gave the stream up", end->remote->name);
    mem_receiver_close(receiver, &cause, false, now_ns);
}

/* --- The interface --- */

void mem_receiver_reset(struct mem_receiver *receiver)
{
    if (receiver->stopped) {
        return;
    }
    receiver->stopped = true;
    if (receiver->end->state == MEM_END_UP) {
        struct mem_network *network = mem_receiver_network(receiver);
        mem_flight_signal(receiver->end, MEM_PACKET_STOP, receiver->channel, 0);
        mem_event_schedule(&network->events, &receiver->deferred, network->now_ns);
    }
}

void mem_stream_expect(struct net_stream *stream, uint64_t size)
{
    struct mem_receiver *receiver = (struct mem_receiver *)stream;
    assert(receiver->stream.incoming);
    uint64_t end = receiver->consumed_end + size;
    if (!receiver->stopped && end > receiver->expected_end) {
        receiver->expected_end = end;
        mem_receiver_announce(receiver);
    }
}

void mem_stream_resume(struct net_stream *stream)
{
    struct mem_receiver *receiver = (struct mem_receiver *)stream;
    assert(receiver->stream.incoming);
    if ((receiver->held || receiver->calling) && !receiver->stopped && receiver->end->state == MEM_END_UP) {
        struct mem_network *network = mem_receiver_network(receiver);
        mem_event_schedule(&network->events, &receiver->deferred, network->now_ns);
    }
}
