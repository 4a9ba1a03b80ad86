#include "daemon/net/stream_queue.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/base/checked.h"

/* Copies the header, and the payload if `copied`. Returns null when out of memory. */
static struct stream_message *message_new(const void *header, size_t header_bytes, const void *payload,
                                          size_t payload_bytes, bool copied)
{
    size_t copied_bytes = copied ? payload_bytes : 0;
    struct stream_message *message = malloc(sizeof *message + header_bytes + copied_bytes);
    if (message == NULL) {
        return NULL;
    }
    *message = (struct stream_message){.payload = payload,
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

enum status stream_queue_add(struct stream_queue *queue, const void *header, size_t header_bytes,
                             const void *payload, size_t payload_bytes, net_sent_function *sent,
                             void *context)
{
    size_t copied_bytes = sent == NULL ? payload_bytes : 0;
    size_t kept_bytes, total_bytes;
    assert(header_bytes <= NET_STREAM_HEADER_MAX_BYTES);
    if (queue->message_count >= NET_STREAM_QUEUE_MAX || copied_bytes > NET_STREAM_COPY_MAX_BYTES ||
        !checked_add_size(queue->copied_bytes, header_bytes + copied_bytes, &kept_bytes) ||
        kept_bytes > NET_STREAM_COPY_MAX_BYTES ||
        !checked_add_size(header_bytes, payload_bytes, &total_bytes)) {
        return STATUS_LIMIT;
    }
    struct stream_message *message = message_new(header, header_bytes, payload, payload_bytes, sent == NULL);
    if (message == NULL) {
        return STATUS_NO_MEMORY;
    }
    message->sent = sent;
    message->context = context;
    queue->queued_end += total_bytes;
    message->end_offset = queue->queued_end;
    if (queue->messages == NULL) {
        queue->messages = message;
    } else {
        queue->last->next = message;
    }
    queue->last = message;
    queue->unsent = queue->unsent == NULL ? message : queue->unsent;
    queue->message_count++;
    queue->copied_bytes = kept_bytes;
    return STATUS_OK;
}

const uint8_t *stream_queue_piece(const struct stream_queue *queue, size_t *size)
{
    const struct stream_message *message = queue->unsent;
    assert(queue->sent_end < queue->queued_end);
    while (message->end_offset <= queue->sent_end) { /* messages without bytes */
        message = message->next;
    }
    uint64_t payload_offset = message->end_offset - message->payload_bytes;
    if (queue->sent_end < payload_offset) {
        *size = (size_t)(payload_offset - queue->sent_end);
        return message->bytes + (message->header_bytes - *size);
    }
    *size = (size_t)(message->end_offset - queue->sent_end);
    return message->payload + (message->payload_bytes - *size);
}

static void skip_sent(struct stream_queue *queue)
{
    while (queue->unsent != NULL && queue->unsent->end_offset <= queue->sent_end) {
        queue->unsent = queue->unsent->next;
    }
}

void stream_queue_sent(struct stream_queue *queue, size_t size, uint64_t now_ns)
{
    if (queue->sent_end == queue->received_end) {
        queue->waits_since_ns = now_ns;
    }
    queue->sent_end += size;
    skip_sent(queue);
}

/* Removes the first message. */
static void message_end(struct stream_queue *queue, enum status result)
{
    struct stream_message *message = queue->messages;
    struct stream_done *done = queue->done;
    queue->messages = message->next;
    if (queue->unsent == message) {
        queue->unsent = message->next;
    }
    queue->message_count--;
    queue->copied_bytes -= message->header_bytes + message->copied_bytes;
    if (message->sent == NULL) {
        free(message);
        return;
    }
    message->next = NULL;
    message->result = result;
    if (done->first == NULL) {
        done->first = message;
    } else {
        done->last->next = message;
    }
    done->last = message;
    done->wake(done->context);
}

void stream_queue_received(struct stream_queue *queue, uint64_t offset, uint64_t now_ns)
{
    queue->received_end = offset;
    queue->waits_since_ns = now_ns;
    while (queue->messages != NULL && queue->messages->end_offset <= offset) {
        message_end(queue, STATUS_OK);
    }
}

void stream_queue_rewind(struct stream_queue *queue, uint64_t offset, uint64_t now_ns)
{
    queue->sent_end = offset;
    stream_queue_received(queue, offset, now_ns);
    queue->unsent = queue->messages;
    skip_sent(queue);
}

void stream_queue_end(struct stream_queue *queue, enum status result)
{
    while (queue->messages != NULL) {
        message_end(queue, result);
    }
}

void stream_done_dispatch(struct stream_done *done, uint64_t now_ns)
{
    while (done->first != NULL) {
        struct stream_message *message = done->first;
        done->first = message->next;
        message->sent(message->context, message->result, now_ns);
        free(message);
    }
}
