#ifndef DAEMON_NET_STREAM_QUEUE_H
#define DAEMON_NET_STREAM_QUEUE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/net/net.h"

/*
 * The messages of an outgoing stream, from net_stream_send until `sent` is called. Both kinds of link use it:
 * QUIC (quic_send.c) and the bulk links (tls_send.c). A link takes bytes from the queue in order, and tells
 * it how much was sent, and how much the peer has received. Single-threaded.
 */

/* One net_stream_send. `bytes` holds the header and, if copied, the payload. */
struct stream_message {
    struct stream_message *next;
    net_sent_function *sent; /* null: no caller to notify */
    void *context;
    enum status result;
    const uint8_t *payload;
    size_t payload_bytes;
    uint64_t end_offset; /* of the stream */
    uint32_t header_bytes;
    uint32_t copied_bytes;
    uint8_t bytes[];
};

/* Messages that are over. Their `sent` is called when the event ends, which `wake` asks for. */
struct stream_done {
    struct stream_message *first, *last;
    void (*wake)(void *context);
    void *context;
};

/* Zero at first, but for `done`, which is the link's. */
struct stream_queue {
    struct stream_done *done;
    struct stream_message *messages; /* that the peer has not received yet, in order */
    struct stream_message *last;
    struct stream_message *unsent; /* the first one that is not sent completely; null: none */
    uint64_t queued_end;           /* offsets of the stream, each at most the one before */
    uint64_t sent_end;
    uint64_t received_end;
    uint64_t waits_since_ns; /* if bytes are under way: since when none of them was received */
    size_t copied_bytes;
    uint32_t message_count;
};

/*
 * Adds a message. The header is copied, and the payload if `sent` is null; otherwise the caller keeps the
 * payload until `sent` is called. Returns STATUS_LIMIT beyond what net_stream_send allows, or
 * STATUS_NO_MEMORY.
 */
enum status stream_queue_add(struct stream_queue *queue, const void *header, size_t header_bytes,
                             const void *payload, size_t payload_bytes, net_sent_function *sent,
                             void *context) COMM_MUST_USE;
/* Returns the unsent bytes from sent_end on that lie in one piece. There is at least one. */
const uint8_t *stream_queue_piece(const struct stream_queue *queue, size_t *size);
void stream_queue_sent(struct stream_queue *queue, size_t size, uint64_t now_ns);
/* The peer has the stream to that offset, which is at most sent_end. */
void stream_queue_received(struct stream_queue *queue, uint64_t offset, uint64_t now_ns);
/* What the peer has not received is sent again from that offset on, which is at least received_end. */
void stream_queue_rewind(struct stream_queue *queue, uint64_t offset, uint64_t now_ns);
/* Ends all messages with that result. */
void stream_queue_end(struct stream_queue *queue, enum status result);

/* Calls `sent` for every message that is over. */
void stream_done_dispatch(struct stream_done *done, uint64_t now_ns);

#endif
