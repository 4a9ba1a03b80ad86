#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <utlist.h>

#include "daemon/base/log.h"
#include "daemon/base/time.h"
#include "daemon/exec/exec_internal.h"
#include "proto/message_header.h"

/*
 * The streams that carry messages between nodes. Of each communicator and node: one of envelopes, with small
 * payloads; one of replies, which nothing holds back; and one for each large payload.
 */

/* What a stream carries, by its first header: a node has one of each of the first two, and others of DATA,
 * one message each. */
enum message_flow { MESSAGE_FLOW_ENVELOPES, MESSAGE_FLOW_REPLIES, MESSAGE_FLOW_PAYLOAD };

struct message_incoming {
    struct message_incoming *prev, *next;
    struct exec *exec;
    struct net_stream *stream; /* null: it ended behind a message without payload, which still waits */
    uint32_t peer;             /* the net's */
    struct exec_comm *comm;    /* null: parked */
    uint32_t node;
    enum message_flow flow; /* once it has a communicator */
    bool is_over;           /* PAYLOAD: its message is whole */
    uint8_t header_bytes[MESSAGE_HEADER_BYTES];
    uint32_t header_have;
    bool in_message;
    struct message_header header;
    struct exec_arrival *arrival; /* EAGER, until its payload is whole */
    struct exec_posted *receive;  /* DATA */
    uint64_t taken_bytes;
    bool stalled;
    bool resetting;
    uint64_t expires_ns; /* while parked */
};

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

static struct message_incoming **list_of(struct message_incoming *incoming)
{
    return incoming->comm != NULL ? &incoming->comm->messages.incoming : &incoming->exec->parked_messages;
}

/* What the node may have one stream of; null for payloads. */
static struct message_incoming **place_of(const struct message_incoming *incoming)
{
    struct exec_message_node *node = &incoming->comm->messages.nodes[incoming->node];
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

/* Ends what the stream has of its communicator; what came of a message is dropped. */
static void incoming_let_go(struct message_incoming *incoming)
{
    struct message_incoming **place = place_of(incoming);
    if (place != NULL && *place == incoming) {
        *place = NULL;
    }
    if (incoming->arrival != NULL) {
        struct exec_message_node *node = &incoming->comm->messages.nodes[incoming->node];
        node->arrivals--;
        node->arrival_bytes -= incoming->arrival->payload_bytes;
        free(incoming->arrival);
        incoming->arrival = NULL;
    }
    incoming->receive = NULL;
}

/* Takes it out of its list. */
static void incoming_free(struct message_incoming *incoming)
{
    DL_DELETE(*list_of(incoming), incoming);
    if (incoming->comm != NULL) {
        incoming_let_go(incoming);
    } else {
        exec_unpark(incoming->exec, incoming->peer);
    }
    free(incoming);
}

static void incoming_reset(struct message_incoming *incoming)
{
    if (!incoming->resetting) {
        incoming->resetting = true;
        if (incoming->stream != NULL) {
            net_stream_reset(incoming->stream);
        }
    }
}

/* See exec_peer_violates. The communicator, if the stream has one, hears of it first. */
static void incoming_violates(struct message_incoming *incoming, const char *what)
{
    struct exec_comm *comm = incoming->comm;
    struct error error;
    if (incoming->resetting) {
        return;
    }
    if (comm != NULL) {
        error_set(&error, STATUS_PROTOCOL, "\"%s\": node %s sent %s", comm->options.name,
                  comm->options.node_names[incoming->node], what);
        exec_comm_fail(comm, &error, comm->exec->now_ns);
    }
    incoming_reset(incoming);
    exec_peer_violates(incoming->exec, incoming->peer, what);
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
static void claim_flow(struct message_incoming *incoming)
{
    incoming->flow = flow_of(incoming->header.kind);
    struct message_incoming **place = place_of(incoming);
    if (place != NULL && *place != NULL) {
        incoming_violates(incoming, "a second stream of envelopes, or of replies");
    } else if (place != NULL) {
        *place = incoming;
    }
}

static void check_next_header(struct message_incoming *incoming)
{
    if (incoming->header.comm_id != incoming->comm->comm_id) {
        incoming_violates(incoming, "messages of two communicators on one stream");
    } else if (flow_of(incoming->header.kind) != incoming->flow || incoming->is_over) {
        incoming_violates(incoming, "messages on one stream that belong on two");
    }
}

static bool find_comm(struct message_incoming *incoming)
{
    struct exec_comm *comm;
    HASH_FIND(hh, incoming->exec->comms, &incoming->header.comm_id, sizeof incoming->header.comm_id, comm);
    for (uint32_t node = 0; comm != NULL && node < comm->options.node_count; node++) {
        if (node != comm->options.node_index && comm->peers[node] == incoming->peer) {
            DL_DELETE(incoming->exec->parked_messages, incoming);
            exec_unpark(incoming->exec, incoming->peer);
            incoming->comm = comm;
            incoming->node = node;
            DL_APPEND(comm->messages.incoming, incoming);
            claim_flow(incoming);
            return !incoming->resetting;
        }
    }
    if (comm != NULL) {
        incoming_violates(incoming, "messages of a communicator that it has no part in");
    }
    return false;
}

/* The ranks are where the header says: the one there, the other here. */
static bool ranks_are_right(const struct message_incoming *incoming)
{
    const struct exec_comm *comm = incoming->comm;
    const struct message_header *header = &incoming->header;
    bool is_reply = header->kind == MESSAGE_ACCEPT || header->kind == MESSAGE_REFUSE;
    uint32_t there = is_reply ? header->to_rank : header->source_rank;
    uint32_t here = is_reply ? header->source_rank : header->to_rank;
    return there < comm->options.size && here < comm->options.size &&
           comm->node_of_rank[there] == incoming->node && comm->local_of_rank[here] != UINT32_MAX;
}

enum begun { BEGUN, BEGIN_LATER, BEGIN_FAULT };

static enum begun begin_arrival(struct message_incoming *incoming)
{
    const struct message_header *header = &incoming->header;
    struct exec_message_node *node = &incoming->comm->messages.nodes[incoming->node];
    if (node->arrivals >= EXEC_ARRIVALS_MAX || node->arrival_bytes >= EXEC_ARRIVALS_MAX_BYTES) {
        return BEGIN_LATER;
    }
    struct exec_arrival *arrival = calloc(1, sizeof *arrival + (size_t)header->payload_bytes);
    if (arrival == NULL) {
        return BEGIN_LATER;
    }
    arrival->node = incoming->node;
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
    return BEGUN;
}

/* What the header asks for is begun; of replies, done. */
static enum begun begin_message(struct message_incoming *incoming)
{
    struct exec_comm *comm = incoming->comm;
    const struct message_header *header = &incoming->header;
    struct exec_posted *posted;
    if (comm->aborted) { /* its sender need not wait for the end of the communicator here */
        incoming_reset(incoming);
        return BEGIN_FAULT;
    }
    if (comm->failed) {
        return BEGIN_LATER;
    }
    if (!ranks_are_right(incoming)) {
        incoming_violates(incoming, "a message of ranks that are elsewhere");
        return BEGIN_FAULT;
    }
    switch (header->kind) {
    case MESSAGE_EAGER:
    case MESSAGE_ENVELOPE:
        return incoming->arrival != NULL ? BEGUN : begin_arrival(incoming);
    case MESSAGE_ACCEPT:
    case MESSAGE_REFUSE:
        posted = messages_find(comm, MESSAGE_OFFERED, incoming->node, header->id);
        if (posted == NULL || posted->call.rank != header->source_rank) {
            incoming_violates(incoming, "a reply to a message that was not sent");
            return BEGIN_FAULT;
        }
        if (header->kind == MESSAGE_REFUSE) {
            messages_refused(comm, posted, header->dtype, header->count_elements);
        } else {
            posted->state = MESSAGE_ACCEPTED;
            exec_wake(comm->exec);
        }
        return BEGUN;
    case MESSAGE_DATA:
        posted = incoming->receive != NULL ? incoming->receive
                                           : messages_find(comm, MESSAGE_AWAITED, incoming->node, header->id);
        if (posted == NULL || posted->received_elements != header->count_elements ||
            posted->call.dtype != header->dtype) {
            incoming_violates(incoming, "a payload that no receive waits for");
            return BEGIN_FAULT;
        }
        incoming->receive = posted;
        posted->state = MESSAGE_RECEIVING;
        return BEGUN;
    }
    return BEGIN_FAULT;
}

static void end_message(struct message_incoming *incoming)
{
    static const struct error fine = {.status = STATUS_OK};
    struct exec_arrival *arrival = incoming->arrival;
    struct exec_posted *receive = incoming->receive;
    incoming->in_message = false;
    incoming->header_have = 0;
    incoming->taken_bytes = 0;
    incoming->arrival = NULL;
    incoming->receive = NULL;
    incoming->is_over = incoming->flow == MESSAGE_FLOW_PAYLOAD;
    if (arrival != NULL) {
        messages_arrive(incoming->comm, arrival);
    } else if (receive != NULL && receive->pipe != NULL) {
        receive->state = MESSAGE_COPYING;
        exec_wake(incoming->exec);
    } else if (receive != NULL) {
        message_end(incoming->comm, receive, &fine);
    }
}

static size_t take_header(struct message_incoming *incoming, const uint8_t *bytes, size_t size)
{
    size_t wanted = MESSAGE_HEADER_BYTES - incoming->header_have;
    size_t used = size < wanted ? size : wanted;
    memcpy(incoming->header_bytes + incoming->header_have, bytes, used);
    incoming->header_have += (uint32_t)used;
    if (incoming->header_have == MESSAGE_HEADER_BYTES) {
        const char *what = NULL;
        if (message_header_decode(incoming->header_bytes, &incoming->header, &what) != STATUS_OK) {
            char text[96];
            (void)snprintf(text, sizeof text, "a header of a message that is malformed: %s", what);
            incoming_violates(incoming, text);
        } else if (incoming->comm != NULL) {
            check_next_header(incoming);
        }
        incoming->in_message = true;
    }
    return used;
}

/* Into the receive's pipe, as much as there is room for. */
static size_t take_to_pipe(const struct message_incoming *incoming, const uint8_t *bytes, size_t size)
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
        exec_wake(incoming->exec);
    }
    return used;
}

/* Returns how many bytes were taken; 0: there is no room now. */
static size_t take_payload(struct message_incoming *incoming, const uint8_t *bytes, size_t size)
{
    uint64_t left = incoming->header.payload_bytes - incoming->taken_bytes;
    size_t used = size < left ? size : (size_t)left;
    if (incoming->receive != NULL && incoming->receive->pipe != NULL) {
        used = take_to_pipe(incoming, bytes, used);
    } else {
        const struct exec_posted *receive = incoming->receive;
        unsigned char *target = incoming->arrival != NULL ? incoming->arrival->payload : receive->call.buffer;
        uint64_t room_bytes = incoming->arrival != NULL
                                  ? incoming->arrival->payload_bytes
                                  : receive->call.count_elements * dtype_size_bytes(receive->call.dtype);
        if (incoming->taken_bytes > room_bytes || used > room_bytes - incoming->taken_bytes) {
            incoming_violates(incoming, "a payload that is larger than its receive");
            return 0;
        }
        memcpy(target + incoming->taken_bytes, bytes, used);
    }
    incoming->taken_bytes += used;
    return used;
}

static struct message_incoming *incoming_new(struct exec *exec, struct net_stream *stream, uint64_t now_ns)
{
    struct message_incoming *incoming =
        exec_may_park(exec, stream->peer) ? calloc(1, sizeof *incoming) : NULL;
    if (incoming != NULL) {
        exec_park(exec, stream->peer);
        incoming->exec = exec;
        incoming->stream = stream;
        incoming->peer = stream->peer;
        incoming->expires_ns = time_after(now_ns, EXEC_PARKED_NS);
        stream->user = incoming;
        DL_APPEND(exec->parked_messages, incoming);
    }
    return incoming;
}

static size_t receive_bytes(void *context, struct net_stream *stream, const uint8_t *bytes, size_t size,
                            bool end, uint64_t now_ns)
{
    struct exec *exec = context;
    struct message_incoming *incoming = stream->user;
    size_t used = 0;
    (void)end;
    exec->now_ns = now_ns;
    if (incoming == NULL) {
        incoming = incoming_new(exec, stream, now_ns);
    }
    if (incoming == NULL) {
        net_stream_reset(stream);
        return size;
    }
    incoming->stalled = false;
    while (!incoming->resetting) {
        if (!incoming->in_message) {
            if (used == size) {
                return used;
            }
            used += take_header(incoming, bytes + used, size - used);
            continue;
        }
        bool known = incoming->comm != NULL || find_comm(incoming);
        enum begun begun = known ? begin_message(incoming) : BEGIN_LATER;
        if (begun != BEGUN) {
            incoming->stalled = true;
            return incoming->resetting ? size : used;
        }
        if (incoming->header.payload_bytes > incoming->taken_bytes) {
            if (used == size) {
                return used;
            }
            size_t taken = take_payload(incoming, bytes + used, size - used);
            used += taken;
            incoming->stalled = taken == 0;
            if (incoming->stalled) {
                return incoming->resetting ? size : used;
            }
        }
        if (incoming->taken_bytes == incoming->header.payload_bytes) {
            end_message(incoming);
        }
    }
    return size;
}

/* As with data: that a stream is reset or lost is no cause in itself. */
static void receive_closed(void *context, struct net_stream *stream, const struct error *cause,
                           uint64_t now_ns)
{
    struct message_incoming *incoming = stream->user;
    (void)context;
    if (incoming == NULL) {
        return;
    }
    stream->user = NULL;
    incoming->stream = NULL;
    if (cause == NULL && incoming->in_message && incoming->header.payload_bytes == 0 &&
        !incoming->resetting) {
        return; /* all of it is here, and its time has not come */
    }
    if (cause == NULL && incoming->header_have > 0) {
        incoming->exec->now_ns = now_ns;
        incoming_violates(incoming, "half a message, and the end of its stream");
    }
    incoming_free(incoming);
}

void message_streams_register(struct exec *exec)
{
    struct net_stream_handler handler = {.context = exec, .receive = receive_bytes, .closed = receive_closed};
    net_set_stream_handler(exec->net, NET_STREAM_MESSAGE, &handler);
}

void message_streams_free(struct exec *exec)
{
    static const struct net_stream_handler nobody;
    struct message_incoming *incoming, *next;
    net_set_stream_handler(exec->net, NET_STREAM_MESSAGE, &nobody);
    DL_FOREACH_SAFE(exec->parked_messages, incoming, next)
    {
        free(incoming);
    }
}

/* A message that has all it needs in the header has nothing left with the network to be delivered again. */
void message_streams_resume(struct exec_comm *comm)
{
    struct message_incoming *incoming, *next;
    DL_FOREACH_SAFE(comm->messages.incoming, incoming, next)
    {
        if (!incoming->stalled || incoming->resetting) {
            continue;
        }
        bool begun = incoming->in_message && begin_message(incoming) == BEGUN;
        if (begun && incoming->header.payload_bytes == incoming->taken_bytes) {
            end_message(incoming);
        }
        if (incoming->resetting) {
            continue; /* closed follows; it is freed there */
        }
        if (incoming->stream != NULL) {
            incoming->stalled = false;
            net_stream_resume(incoming->stream);
        } else if (begun) {
            incoming_free(incoming);
        }
    }
}

void message_streams_claim(struct exec_comm *comm)
{
    struct message_incoming *incoming, *next;
    DL_FOREACH_SAFE(comm->exec->parked_messages, incoming, next)
    {
        if (incoming->in_message && incoming->header.comm_id == comm->comm_id) {
            (void)find_comm(incoming);
        }
    }
    message_streams_resume(comm);
}

void message_streams_detach(struct exec_comm *comm)
{
    while (comm->messages.incoming != NULL) {
        struct message_incoming *incoming = comm->messages.incoming;
        if (incoming->stream == NULL) {
            incoming_free(incoming);
            continue;
        }
        incoming_let_go(incoming);
        DL_DELETE(comm->messages.incoming, incoming);
        incoming->comm = NULL;
        DL_APPEND(comm->exec->parked_messages, incoming); /* until the network says that it is closed */
        exec_park(comm->exec, incoming->peer);
        incoming_reset(incoming);
    }
}

void message_streams_expire(struct exec *exec, uint64_t now_ns)
{
    struct message_incoming *incoming, *next;
    DL_FOREACH_SAFE(exec->parked_messages, incoming, next)
    {
        if (incoming->expires_ns > now_ns) {
            continue;
        }
        incoming->expires_ns = TIME_NEVER;
        if (incoming->stream == NULL) {
            incoming_free(incoming);
        } else {
            incoming_reset(incoming);
        }
    }
}

uint64_t message_streams_deadline_ns(const struct exec *exec)
{
    uint64_t earliest_ns = TIME_NEVER;
    const struct message_incoming *incoming;
    DL_FOREACH(exec->parked_messages, incoming)
    {
        earliest_ns = incoming->expires_ns < earliest_ns ? incoming->expires_ns : earliest_ns;
    }
    return earliest_ns;
}
