#include "tests/network/mem_internal.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include <utlist.h>

static uint64_t mem_min(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* --- The queue of messages --- */

static struct mem_message *mem_message_at(const struct mem_sender *sender, uint32_t index)
{
    assert(index < sender->message_count);
    return &sender->messages[(sender->message_first + index) % sender->message_capacity];
}

static enum status mem_messages_grow(struct mem_sender *sender)
{
    if (sender->message_count < sender->message_capacity) {
        return STATUS_OK;
    }
    uint32_t capacity = sender->message_capacity == 0 ? 4 : sender->message_capacity * 2;
    struct mem_message *messages = malloc(capacity * sizeof *messages);
    if (messages == NULL) {
        return STATUS_NO_MEMORY;
    }
    for (uint32_t i = 0; i < sender->message_count; i++) {
        messages[i] = *mem_message_at(sender, i);
    }
    free(sender->messages);
    sender->messages = messages;
    sender->message_first = 0;
    sender->message_capacity = capacity;
    return STATUS_OK;
}

static struct mem_message mem_message_pop(struct mem_sender *sender)
{
    struct mem_message message = *mem_message_at(sender, 0);
    sender->message_first = (sender->message_first + 1) % sender->message_capacity;
    sender->message_count--;
    sender->copied_bytes -= message.header_bytes + (message.copy == NULL ? 0 : message.payload_bytes);
    free(message.copy);
    return message;
}

/* The message that holds the stream's byte `offset`. */
static uint32_t mem_message_find(const struct mem_sender *sender, uint64_t offset)
{
    uint32_t low = 0;
    uint32_t high = sender->message_count;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (mem_message_at(sender, middle)->end_offset > offset) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    return low;
}

/* Copies what [offset, offset + size) has in common with a part of a message. */
static void mem_part_copy(const uint8_t *part, uint64_t part_offset, uint64_t part_bytes, uint64_t offset,
                          uint8_t *out, uint32_t size)
{
    uint64_t first = part_offset > offset ? part_offset : offset;
    uint64_t last = mem_min(part_offset + part_bytes, offset + size);
    if (first < last) {
        memcpy(out + (first - offset), part + (first - part_offset), last - first);
    }
}

void mem_sender_read(const struct mem_sender *sender, uint64_t offset, uint8_t *out, uint32_t size)
{
    uint32_t index = mem_message_find(sender, offset);
    uint64_t reached = offset;
    while (reached < offset + size) {
        const struct mem_message *message = mem_message_at(sender, index++);
        uint64_t payload_offset = message->end_offset - message->payload_bytes;
        mem_part_copy(message->header, payload_offset - message->header_bytes, message->header_bytes, offset,
                      out, size);
        mem_part_copy(message->payload, payload_offset, message->payload_bytes, offset, out, size);
        reached = message->end_offset;
    }
}

/* --- Sending --- */

static struct mem_network *mem_sender_network(const struct mem_sender *sender)
{
    return sender->net->network;
}

static void mem_sender_later(struct mem_sender *sender, uint64_t delay_ns)
{
    struct mem_network *network = mem_sender_network(sender);
    mem_event_schedule(&network->events, &sender->deferred, network->now_ns + delay_ns);
}

/* Packets end anywhere: their size varies a little always, and a lot now and then. */
static uint32_t mem_segment_bytes(const struct mem_sender *sender, uint64_t available)
{
    struct random *random = &mem_sender_network(sender)->random;
    const struct mem_link *link = mem_link_between(sender->end->host, sender->end->remote);
    uint32_t most = link == NULL ? MEM_PACKET_BYTES_DEFAULT : mem_link_packet_bytes(link);
    uint32_t size = most - (uint32_t)random_below(random, most < 16 ? most : 16);
    if (random_below(random, 16) == 0) {
        size = 1 + (uint32_t)random_below(random, most);
    }
    return available < size ? (uint32_t)available : size;
}

/* Sends what the windows allow. Never calls a handler. */
static void mem_sender_push(struct mem_sender *sender)
{
    while (!sender->lost && !sender->reset && sender->end->state == MEM_END_UP && !sender->fin_sent &&
           sender->segment_count < MEM_SEGMENTS_MAX) {
        uint64_t available = mem_min(sender->queued_end, sender->limit) - sender->sent_end;
        bool empty_fin = sender->finishing && sender->sent_end == sender->queued_end;
        if (available == 0 && !empty_fin) {
            return;
        }
        struct mem_flight *flight = mem_flight_new(MEM_PACKET_SEGMENT, sender->channel);
        if (flight == NULL) {
            mem_sender_later(sender, MEM_RESERVE_RETRY_NS);
            return;
        }
        flight->offset = sender->sent_end;
        flight->size = available == 0 ? 0 : mem_segment_bytes(sender, available);
        sender->sent_end += flight->size;
        flight->fin = sender->finishing && sender->sent_end == sender->queued_end;
        sender->fin_sent = flight->fin;
        mem_flight_ref(flight);
        DL_APPEND2(sender->segments, flight, segment_prev, segment_next);
        sender->segment_count++;
        mem_flight_launch(sender->end, flight);
    }
}

static void mem_segment_drop(struct mem_sender *sender, struct mem_flight *flight)
{
    DL_DELETE2(sender->segments, flight, segment_prev, segment_next);
    sender->segment_count--;
    mem_flight_give_up(flight);
    mem_flight_unref(flight);
}

static void mem_segments_drop(struct mem_sender *sender)
{
    while (sender->segments != NULL) {
        mem_segment_drop(sender, sender->segments);
    }
}

/* --- The end of sends and of the stream --- */

/* Frees a stream that nobody needs any more. Only who holds no other claim on it may call this. */
static void mem_sender_settle(struct mem_sender *sender)
{
    bool delivered = sender->finishing && sender->fin_sent && sender->segments == NULL;
    bool over = sender->reset || (sender->lost && sender->finishing) || delivered;
    if (!over || sender->busy > 0 || sender->message_count > 0) {
        return;
    }
    if (sender->end != NULL) {
        DL_DELETE(sender->end->senders, sender);
        sender->end->sender_count--;
        mem_end_unref(sender->end);
    } else {
        DL_DELETE(sender->net->lost_senders, sender);
    }
    mem_event_release(&mem_sender_network(sender)->events, &sender->deferred);
    mem_segments_drop(sender);
    sender->channel->sender = NULL;
    mem_channel_unref(sender->channel);
    free(sender->messages);
    free(sender);
}

/* Ends every send that is queued. Callbacks may reset or finish the stream, and see it closed when they send.
 */
static void mem_sender_flush(struct mem_sender *sender, enum status status, uint64_t now_ns)
{
    sender->busy++;
    while (sender->message_count > 0) {
        struct mem_message message = mem_message_pop(sender);
        if (message.sent != NULL) {
            message.sent(message.context, status, now_ns);
        }
    }
    sender->busy--;
}

/* Ends the sends that are acknowledged, in order. */
static void mem_sender_complete(struct mem_sender *sender, uint64_t now_ns)
{
    sender->busy++;
    while (!sender->reset && !sender->lost && sender->message_count > 0 &&
           mem_message_at(sender, 0)->end_offset <= sender->acknowledged_end) {
        struct mem_message message = mem_message_pop(sender);
        if (message.sent != NULL) {
            message.sent(message.context, STATUS_OK, now_ns);
        }
    }
    sender->busy--;
}

static void mem_sender_deferred(struct mem_event *event, uint64_t now_ns)
{
    struct mem_sender *sender = (struct mem_sender *)((char *)event - offsetof(struct mem_sender, deferred));
    if (sender->reset) {
        mem_sender_flush(sender, STATUS_ABORTED, now_ns);
    } else {
        mem_sender_complete(sender, now_ns);
        mem_sender_push(sender);
    }
    mem_sender_settle(sender);
}

void mem_sender_acknowledged(struct mem_sender *sender, uint64_t now_ns)
{
    while (sender->segments != NULL && sender->segments->acknowledged) {
        sender->acknowledged_end = sender->segments->offset + sender->segments->size;
        mem_segment_drop(sender, sender->segments);
    }
    mem_sender_complete(sender, now_ns);
    mem_sender_push(sender);
    mem_sender_settle(sender);
}

void mem_sender_window(struct mem_sender *sender, uint64_t limit)
{
    if (limit > sender->limit) {
        sender->limit = limit;
        mem_sender_push(sender);
    }
}

void mem_sender_lose(struct mem_sender *sender, enum status status, uint64_t now_ns)
{
    assert(!sender->lost && status != STATUS_OK);
    struct mem_end *end = sender->end;
    sender->lost = true;
    sender->end = NULL;
    sender->channel->sender = NULL;
    DL_DELETE(end->senders, sender);
    end->sender_count--;
    DL_APPEND(sender->net->lost_senders, sender);
    mem_event_cancel(&mem_sender_network(sender)->events, &sender->deferred);
    mem_segments_drop(sender);
    mem_end_unref(end);
    mem_sender_flush(sender, sender->reset ? STATUS_ABORTED : status, now_ns);
    mem_sender_settle(sender);
}

void mem_sender_destroy(struct mem_sender *sender, uint64_t now_ns)
{
    sender->busy++;
    if (!sender->lost) {
        mem_sender_lose(sender, STATUS_SHUTTING_DOWN, now_ns);
    }
    sender->reset = true;
    sender->busy--;
    mem_sender_settle(sender);
}

/* --- The interface --- */

static struct mem_sender *mem_sender_new(struct mem_net *net, uint32_t peer, enum net_stream_kind kind)
{
    struct mem_sender *sender = calloc(1, sizeof *sender);
    struct mem_channel *channel = calloc(1, sizeof *channel);
    if (sender == NULL || channel == NULL ||
        mem_event_claim(&net->network->events, &sender->deferred, mem_sender_deferred) != STATUS_OK) {
        free(channel);
        free(sender);
        return NULL;
    }
    channel->references = 1;
    channel->kind = kind;
    channel->sender = sender;
    sender->stream.base = (struct net_stream){.net = &net->base, .peer = peer, .kind = kind};
    sender->net = net;
    sender->channel = channel;
    sender->limit = net_stream_limit(&sender->stream.base, 0, 0);
    return sender;
}

enum status mem_stream_open(struct net *base, uint32_t index, enum net_stream_kind kind,
                            struct net_stream **out, struct error *error)
{
    struct mem_net *net = (struct mem_net *)base;
    assert(index < net->peer_count);
    struct mem_peer *peer = net->peers[index];
    struct mem_end *end = peer->end;
    if (end == NULL || end->state != MEM_END_UP) {
        return error_set(error, STATUS_UNREACHABLE, "no connection to node %s", peer->host->name);
    }
    if (end->sender_count >= MEM_STREAMS_MAX) {
        return error_set(error, STATUS_LIMIT, "node %s allows no more than %d streams at a time",
                         peer->host->name, MEM_STREAMS_MAX);
    }
    struct mem_sender *sender = mem_sender_new(net, index, kind);
    if (sender == NULL) {
        return error_set(error, STATUS_NO_MEMORY, "no memory for a stream to node %s", peer->host->name);
    }
    sender->end = mem_end_ref(end);
    DL_APPEND(end->senders, sender);
    end->sender_count++;
    *out = &sender->stream.base;
    return STATUS_OK;
}

uint32_t mem_stream_queued(const struct net_stream *stream)
{
    return ((const struct mem_sender *)stream)->message_count;
}

enum status mem_stream_send(struct net_stream *stream, const void *header, size_t header_bytes,
                            const void *payload, size_t payload_bytes, net_sent_function *sent, void *context)
{
    struct mem_sender *sender = (struct mem_sender *)stream;
    assert(!sender->stream.incoming && !sender->finishing && !sender->reset);
    assert(header_bytes <= NET_STREAM_HEADER_MAX_BYTES);
    if (sender->lost || sender->end->state != MEM_END_UP) {
        return STATUS_UNREACHABLE;
    }
    size_t copied = sent == NULL ? payload_bytes : 0;
    if (sender->message_count >= NET_STREAM_QUEUE_MAX || copied > NET_STREAM_COPY_MAX_BYTES ||
        sender->copied_bytes + header_bytes + copied > NET_STREAM_COPY_MAX_BYTES) {
        return STATUS_LIMIT;
    }
    if (mem_messages_grow(sender) != STATUS_OK) {
        return STATUS_NO_MEMORY;
    }
    uint8_t *copy = NULL;
    if (copied > 0) {
        copy = malloc(copied);
        if (copy == NULL) {
            return STATUS_NO_MEMORY;
        }
        memcpy(copy, payload, copied);
    }
    sender->net->network->counters.copied_bytes += copied;
    sender->message_count++;
    sender->copied_bytes += header_bytes + copied;
    sender->queued_end += header_bytes + payload_bytes;
    struct mem_message *message = mem_message_at(sender, sender->message_count - 1);
    *message = (struct mem_message){
        .end_offset = sender->queued_end,
        .payload = copy == NULL ? payload : copy,
        .copy = copy,
        .payload_bytes = payload_bytes,
        .header_bytes = (uint32_t)header_bytes,
        .sent = sent,
        .context = context,
    };
    if (header_bytes > 0) {
        memcpy(message->header, header, header_bytes);
    }
    if (sender->queued_end == sender->acknowledged_end) {
        mem_sender_later(sender, 0); /* an empty message behind nothing: no acknowledgement will come */
    }
    mem_sender_push(sender);
    return STATUS_OK;
}

void mem_stream_finish(struct net_stream *stream)
{
    struct mem_sender *sender = (struct mem_sender *)stream;
    assert(!sender->stream.incoming && !sender->finishing && !sender->reset);
    sender->finishing = true;
    mem_sender_push(sender);
    mem_sender_settle(sender);
}

void mem_sender_reset(struct mem_sender *sender)
{
    assert(!sender->finishing && !sender->reset);
    sender->reset = true;
    if (!sender->lost) {
        mem_segments_drop(sender);
        sender->channel->sender = NULL;
        if (sender->end->state == MEM_END_UP) {
            mem_flight_signal(sender->end, MEM_PACKET_RESET, sender->channel, sender->sent_end);
            if (sender->message_count > 0) {
                mem_sender_later(sender, 0);
            }
        }
    }
    mem_sender_settle(sender);
}
