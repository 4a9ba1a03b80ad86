#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <utlist.h>

#include "daemon/base/budget.h"
#include "daemon/exec/exec_internal.h"
#include "proto/message_header.h"

/*
 * The streams that carry messages between nodes. Of each communicator and node: one of envelopes, with small
 * payloads; one of replies, which nothing holds back; and one for each large payload.
 */

/* What a stream carries, by its first header: a node has one of each of the first two, and others of DATA,
 * one message each. */
enum message_flow { MESSAGE_FLOW_ENVELOPES, MESSAGE_FLOW_REPLIES, MESSAGE_FLOW_PAYLOAD };

/* A stream of messages. */
struct message_reader {
    struct stream_reader reader;
    enum message_flow flow; /* once it has a communicator */
    bool is_over;           /* PAYLOAD: its message is whole */
    struct message_header header;
    struct exec_arrival *arrival; /* EAGER, until its payload is whole */
    struct exec_posted *receive;  /* DATA */
};

static struct message_reader *message_of(struct stream_reader *reader)
{
    return (struct message_reader *)reader;
}

/* --- Sending --- */

static uint64_t bytes_of(const struct exec_posted *send)
{
    return send->call.count_elements * dtype_size_bytes(send->call.dtype);
}

static bool open_stream(struct exec_comm *comm, uint32_t node, struct net_stream **stream)
{
    struct error error;
    return *stream != NULL || net_stream_open(comm->exec->net, comm->peers[node], NET_STREAM_MESSAGE, stream,
                                              &error) == STATUS_OK;
}

static void fill_header(const struct exec_comm *comm, const struct exec_posted *send, enum message_kind kind,
                        uint64_t payload_bytes, uint8_t out[MESSAGE_HEADER_BYTES])
{
    const struct exec_message *call = &send->call;
    struct message_header header = {.kind = kind,
                                    .dtype = call->dtype,
                                    .comm_id = comm->comm_id,
                                    .id = send->id,
                                    .source_rank = call->rank,
                                    .to_rank = call->peer_rank,
                                    .tag = call->tag,
                                    .count_elements = call->count_elements,
                                    .payload_bytes = payload_bytes};
    message_header_encode(&header, out);
}

/* Whether an earlier one to the same node is still queued: none overtakes. */
static bool is_behind(const struct exec_comm *comm, const struct exec_posted *send)
{
    return messages_find(comm, MESSAGE_QUEUED, send->node, send->id - 1) != NULL;
}

bool message_send_envelope(struct exec_comm *comm, struct exec_posted *send)
{
    static const struct error fine = {.status = STATUS_OK};
    struct exec_message_node *node = &comm->messages.nodes[send->node];
    uint64_t bytes = bytes_of(send);
    bool eager = bytes <= MESSAGE_EAGER_MAX_BYTES;
    uint8_t header[MESSAGE_HEADER_BYTES];
    if (is_behind(comm, send) || !open_stream(comm, send->node, &node->envelopes)) {
        return false;
    }
    fill_header(comm, send, eager ? MESSAGE_EAGER : MESSAGE_ENVELOPE, eager ? bytes : 0, header);
    if (net_stream_send(node->envelopes, header, sizeof header, eager && bytes > 0 ? send->call.buffer : NULL,
                        eager ? (size_t)bytes : 0, NULL, NULL) != STATUS_OK) {
        return false; /* full: tried again; or lost: the mesh says so */
    }
    send->state = MESSAGE_OFFERED;
    if (eager) {
        message_end(comm, send, &fine);
    }
    return true;
}

struct net_stream *message_open_payload(struct exec_comm *comm, struct exec_posted *send, const void *payload,
                                        uint64_t payload_bytes, net_sent_function *sent)
{
    struct net_stream *stream = NULL;
    uint8_t header[MESSAGE_HEADER_BYTES];
    if (!open_stream(comm, send->node, &stream)) {
        return NULL;
    }
    fill_header(comm, send, MESSAGE_DATA, bytes_of(send), header);
    if (net_stream_send(stream, header, sizeof header, payload, (size_t)payload_bytes, sent, send) !=
        STATUS_OK) {
        net_stream_reset(stream);
        return NULL;
    }
    return stream;
}

void message_close_payload(struct exec_posted *send, bool delivered)
{
    if (send->stream != NULL && delivered) {
        net_stream_finish(send->stream);
    } else if (send->stream != NULL) {
        net_stream_reset(send->stream);
    }
    send->stream = NULL;
}

static void payload_sent(void *context, enum status result, uint64_t now_ns)
{
    static const struct error fine = {.status = STATUS_OK};
    struct exec_posted *send = context;
    struct exec_comm *comm = send->comm;
    (void)now_ns;
    comm->messages.nodes[send->node].payloads--;
    message_close_payload(send, result == STATUS_OK);
    if (comm->aborted) {
        message_end(comm, send, &comm->cause);
    } else if (result == STATUS_OK) {
        message_end(comm, send, &fine);
    } else {
        send->state = MESSAGE_LEAVING; /* the connection is lost: the communicator's end follows */
        message_activate(send);
    }
    exec_wake(comm->exec);
}

bool message_send_payload(struct exec_comm *comm, struct exec_posted *send)
{
    struct exec_message_node *node = &comm->messages.nodes[send->node];
    if (node->payloads >= EXEC_PAYLOADS_MAX) {
        return false;
    }
    send->stream = message_open_payload(comm, send, send->call.buffer, bytes_of(send), payload_sent);
    if (send->stream == NULL) {
        return false;
    }
    node->payloads++;
    send->state = MESSAGE_SENDING;
    return true;
}

void message_send_reply(struct exec_comm *comm, bool accepted, uint32_t node, uint64_t id,
                        const struct exec_message *receive, uint32_t source_rank)
{
    struct exec_message_node *at = &comm->messages.nodes[node];
    struct message_header header = {.kind = accepted ? MESSAGE_ACCEPT : MESSAGE_REFUSE,
                                    .dtype = receive->dtype,
                                    .comm_id = comm->comm_id,
                                    .id = id,
                                    .source_rank = source_rank,
                                    .to_rank = receive->rank,
                                    .tag = receive->tag,
                                    .count_elements = receive->count_elements};
    uint8_t bytes[MESSAGE_HEADER_BYTES];
    message_header_encode(&header, bytes);
    if (!open_stream(comm, node, &at->replies) ||
        net_stream_send(at->replies, bytes, sizeof bytes, NULL, 0, NULL, NULL) != STATUS_OK) {
        struct error error; /* as many as envelopes can be: more is no honest node */
        error_set(&error, STATUS_NODE_LOST, "\"%s\": node %s does not take replies to its messages",
                  comm->options.name, comm->options.node_names[node]);
        exec_comm_fail(comm, &error, comm->exec->now_ns);
    }
}

void message_streams_reset(struct exec_comm *comm, bool give_up)
{
    for (uint32_t node = 0; comm->messages.nodes != NULL && node < comm->options.node_count; node++) {
        struct net_stream **streams[] = {&comm->messages.nodes[node].envelopes,
                                         &comm->messages.nodes[node].replies};
        for (int i = 0; i < 2; i++) {
            if (*streams[i] != NULL && give_up) {
                net_stream_reset(*streams[i]);
            } else if (*streams[i] != NULL) {
                net_stream_finish(*streams[i]);
            }
            *streams[i] = NULL;
        }
    }
}

/* --- Receiving --- */

/* What the node may have one stream of; null for payloads. */
static struct stream_reader **place_of(const struct message_reader *incoming)
{
    struct exec_message_node *node = &incoming->reader.comm->messages.nodes[incoming->reader.node];
    switch (incoming->flow) {
    case MESSAGE_FLOW_ENVELOPES:
        return &node->envelopes_in;
    case MESSAGE_FLOW_REPLIES:
        return &node->replies_in;
    case MESSAGE_FLOW_PAYLOAD:
        break;
    }
    return NULL;
}

/* What came of a message is dropped. */
static void message_let_go(struct stream_reader *reader)
{
    struct message_reader *incoming = message_of(reader);
    struct stream_reader **place = place_of(incoming);
    if (place != NULL && *place == reader) {
        *place = NULL;
    }
    if (incoming->arrival != NULL) {
        message_arrival_uncount(incoming->reader.comm, incoming->arrival);
        free(incoming->arrival);
        incoming->arrival = NULL;
    }
    incoming->receive = NULL;
}

static enum message_flow flow_of(enum message_kind kind)
{
    switch (kind) {
    case MESSAGE_EAGER:
    case MESSAGE_ENVELOPE:
        return MESSAGE_FLOW_ENVELOPES;
    case MESSAGE_ACCEPT:
    case MESSAGE_REFUSE:
        return MESSAGE_FLOW_REPLIES;
    case MESSAGE_DATA:
        break;
    }
    return MESSAGE_FLOW_PAYLOAD;
}

/* The stream keeps to what its first header says. */
static const char *message_claim(struct stream_reader *reader)
{
    struct message_reader *incoming = message_of(reader);
    incoming->flow = flow_of(incoming->header.kind);
    struct stream_reader **place = place_of(incoming);
    if (place != NULL && *place != NULL) {
        return "a second stream of envelopes, or of replies";
    }
    if (place != NULL) {
        *place = reader;
    }
    return NULL;
}

static const char *message_check_next(const struct stream_reader *reader)
{
    const struct message_reader *incoming = (const struct message_reader *)reader;
    bool same = flow_of(incoming->header.kind) == incoming->flow && !incoming->is_over;
    return same ? NULL : "messages on one stream that belong on two";
}

static const char *message_decode(struct stream_reader *reader)
{
    struct message_reader *incoming = message_of(reader);
    const char *what = NULL;
    if (message_header_decode(reader->header_bytes, &incoming->header, &what) != STATUS_OK) {
        return what;
    }
    reader->comm_id = incoming->header.comm_id;
    reader->payload_bytes = incoming->header.payload_bytes;
    return NULL;
}

/* The ranks are where the header says: the one there, the other here. */
static bool ranks_are_right(const struct message_reader *incoming)
{
    const struct exec_comm *comm = incoming->reader.comm;
    const struct message_header *header = &incoming->header;
    bool is_reply = header->kind == MESSAGE_ACCEPT || header->kind == MESSAGE_REFUSE;
    uint32_t there = is_reply ? header->to_rank : header->source_rank;
    uint32_t here = is_reply ? header->source_rank : header->to_rank;
    return there < comm->options.size && here < comm->options.size &&
           comm->node_of_rank[there] == incoming->reader.node && comm->local_of_rank[here] != UINT32_MAX;
}

static enum stream_ready begin_arrival(struct message_reader *incoming)
{
    const struct message_header *header = &incoming->header;
    struct exec_message_node *node = &incoming->reader.comm->messages.nodes[incoming->reader.node];
    if (node->arrivals >= EXEC_ARRIVALS_MAX || node->arrival_bytes >= EXEC_ARRIVALS_MAX_BYTES) {
        return STREAM_WAIT;
    }
    struct exec_comm *comm = incoming->reader.comm;
    struct error why;
    size_t size = sizeof(struct exec_arrival) + (size_t)header->payload_bytes;
    if (budget_charge(comm->options.account, BUDGET_EARLY, size, &why) != STATUS_OK) {
        struct error error;
        error_set(&error, STATUS_LIMIT, "\"%s\": node %s keeps messages that no recv has taken: %s",
                  comm->options.name, comm->options.node_names[comm->options.node_index], why.text);
        exec_comm_fail(comm, &error, comm->exec->now_ns);
        return STREAM_WAIT;
    }
    struct exec_arrival *arrival = calloc(1, size);
    if (arrival == NULL) {
        budget_release(comm->options.account, BUDGET_EARLY, size);
        return STREAM_WAIT;
    }
    arrival->node = incoming->reader.node;
    arrival->id = header->id;
    arrival->eager = header->kind == MESSAGE_EAGER;
    arrival->source_rank = header->source_rank;
    arrival->to_rank = header->to_rank;
    arrival->tag = header->tag;
    arrival->dtype = header->dtype;
    arrival->count_elements = header->count_elements;
    arrival->payload_bytes = header->payload_bytes;
    node->arrivals++;
    node->arrival_bytes += header->payload_bytes;
    incoming->arrival = arrival;
    return STREAM_READY;
}

/* What the header asks for is begun; of replies, done. */
static enum stream_ready message_begin(struct stream_reader *reader, uint64_t now_ns)
{
    struct message_reader *incoming = message_of(reader);
    struct exec_comm *comm = incoming->reader.comm;
    const struct message_header *header = &incoming->header;
    struct exec_posted *posted;
    (void)now_ns;
    if (comm->aborted) { /* its sender need not wait for the end of the communicator here */
        stream_reader_reset(reader);
        return STREAM_WAIT;
    }
    if (comm->failed) {
        return STREAM_WAIT;
    }
    if (!ranks_are_right(incoming)) {
        stream_reader_violates(reader, "a message of ranks that are elsewhere");
        return STREAM_WAIT;
    }
    switch (header->kind) {
    case MESSAGE_EAGER:
    case MESSAGE_ENVELOPE:
        return incoming->arrival != NULL ? STREAM_READY : begin_arrival(incoming);
    case MESSAGE_ACCEPT:
    case MESSAGE_REFUSE:
        posted = messages_find(comm, MESSAGE_OFFERED, incoming->reader.node, header->id);
        if (posted == NULL || posted->call.rank != header->source_rank) {
            stream_reader_violates(reader, "a reply to a message that was not sent");
            return STREAM_WAIT;
        }
        if (header->kind == MESSAGE_REFUSE) {
            messages_refused(comm, posted, header->dtype, header->count_elements);
        } else {
            posted->state = MESSAGE_ACCEPTED;
            message_activate(posted);
        }
        return STREAM_READY;
    case MESSAGE_DATA:
        posted = incoming->receive != NULL
                     ? incoming->receive
                     : messages_find(comm, MESSAGE_AWAITED, incoming->reader.node, header->id);
        if (posted == NULL || posted->received_elements != header->count_elements ||
            posted->call.dtype != header->dtype) {
            stream_reader_violates(reader, "a payload that no receive waits for");
            return STREAM_WAIT;
        }
        incoming->receive = posted;
        posted->state = MESSAGE_RECEIVING;
        message_activate(posted);
        return STREAM_READY;
    }
    return STREAM_WAIT;
}

static void message_done(struct stream_reader *reader, uint64_t now_ns)
{
    static const struct error fine = {.status = STATUS_OK};
    struct message_reader *incoming = message_of(reader);
    struct exec_arrival *arrival = incoming->arrival;
    struct exec_posted *receive = incoming->receive;
    (void)now_ns;
    stream_reader_next_message(reader);
    incoming->arrival = NULL;
    incoming->receive = NULL;
    incoming->is_over = incoming->flow == MESSAGE_FLOW_PAYLOAD;
    if (arrival != NULL) {
        messages_arrive(incoming->reader.comm, arrival);
    } else if (receive != NULL && receive->pipe != NULL) {
        receive->state = MESSAGE_COPYING;
        message_activate(receive);
    } else if (receive != NULL) {
        message_end(incoming->reader.comm, receive, &fine);
    }
}

/* Into the receive's pipe, as much as there is room for. */
static size_t take_to_pipe(const struct message_reader *incoming, const uint8_t *bytes, size_t size)
{
    struct message_pipe *pipe = incoming->receive->pipe;
    size_t used = 0, room_bytes;
    for (void *room; used < size && (room = message_pipe_room(pipe, &room_bytes)) != NULL;) {
        size_t now = size - used < room_bytes ? size - used : room_bytes;
        memcpy(room, bytes + used, now);
        message_pipe_stored(pipe, now);
        used += now;
    }
    if (message_pipe_waits(pipe)) { /* for a chunk that is whole to be put */
        exec_wake(incoming->reader.exec);
    }
    return used;
}

static size_t message_take(struct stream_reader *reader, const uint8_t *bytes, size_t size)
{
    struct message_reader *incoming = message_of(reader);
    const struct exec_posted *receive = incoming->receive;
    if (receive != NULL && receive->pipe != NULL) {
        return take_to_pipe(incoming, bytes, size);
    }
    unsigned char *target = receive == NULL ? incoming->arrival->payload : receive->call.buffer;
    uint64_t room_bytes = receive == NULL
                              ? incoming->arrival->payload_bytes
                              : receive->call.count_elements * dtype_size_bytes(receive->call.dtype);
    if (reader->taken_bytes > room_bytes || size > room_bytes - reader->taken_bytes) {
        stream_reader_violates(reader, "a payload that is larger than its receive");
        return 0;
    }
    memcpy(target + reader->taken_bytes, bytes, size);
    return size;
}

const struct stream_reader_kind message_reader_kind = {
    .index = STREAM_READER_MESSAGES,
    .reader_bytes = sizeof(struct message_reader),
    .header_text = "a header of a message",
    .decode = message_decode,
    .claim = message_claim,
    .check_next = message_check_next,
    .begin = message_begin,
    .take = message_take,
    .done = message_done,
    .let_go = message_let_go,
};

void message_streams_resume(struct exec_comm *comm)
{
    struct stream_reader *reader, *next;
    DL_FOREACH_SAFE(comm->readers[STREAM_READER_MESSAGES], reader, next)
    {
        stream_reader_resume(reader, comm->exec->now_ns);
    }
}
