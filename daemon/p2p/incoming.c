#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <utlist.h>

#include "daemon/p2p/p2p_internal.h"

/* Receiving from other nodes: envelopes, replies and payloads. Every field of a header is checked. */

_Static_assert(MESSAGE_HEADER_BYTES <= STREAM_HEADER_MAX_BYTES, "a reader has room for it");

/* The flow of a stream, which its first header decides. A node has one stream each of ENVELOPES and REPLIES,
 * and one PAYLOAD stream per message. */
#define FLOW_BYTES (UINT64_C(1) << 62)
enum message_flow { MESSAGE_FLOW_ENVELOPES, MESSAGE_FLOW_REPLIES, MESSAGE_FLOW_PAYLOAD };

struct message_reader {
    struct stream_reader reader;
    enum message_flow flow; /* set once it has a communicator */
    bool is_over;           /* PAYLOAD: its message is complete */
    struct message_header header;
    struct p2p_arrival *coming; /* EAGER and ENVELOPE, until it is complete */
    struct p2p_arrival *taken;  /* DATA: the arrival whose receive gets the payload */
};

static struct message_reader *message_of(struct stream_reader *reader)
{
    return (struct message_reader *)reader;
}

static struct p2p_comm *comm_of(const struct stream_reader *reader)
{
    return (struct p2p_comm *)((char *)reader->group - offsetof(struct p2p_comm, streams));
}

static struct p2p_link *link_of(const struct stream_reader *reader)
{
    return comm_of(reader)->links[reader->node];
}

/* --- Flows --- */

static struct stream_group *find_group(void *owner, uint64_t comm_id)
{
    const struct p2p *p2p = owner;
    struct p2p_comm *comm;
    HASH_FIND(hh, p2p->comms, &comm_id, sizeof comm_id, comm);
    return comm != NULL ? &comm->streams : NULL;
}

/* Where the node's only stream of this flow is kept; null for payloads. */
static struct stream_reader **place_of(const struct message_reader *incoming)
{
    struct p2p_link *link = link_of(&incoming->reader);
    switch (incoming->flow) {
    case MESSAGE_FLOW_ENVELOPES:
        return &link->envelopes_in;
    case MESSAGE_FLOW_REPLIES:
        return &link->replies_in;
    case MESSAGE_FLOW_PAYLOAD:
        break;
    }
    return NULL;
}

static enum message_flow flow_of(enum message_kind kind)
{
    switch (kind) {
    case MESSAGE_EAGER:
    case MESSAGE_ENVELOPE:
    case MESSAGE_WITHDRAW:
        return MESSAGE_FLOW_ENVELOPES;
    case MESSAGE_ACCEPT:
    case MESSAGE_REFUSE:
    case MESSAGE_CREDIT:
        return MESSAGE_FLOW_REPLIES;
    case MESSAGE_DATA:
        break;
    }
    return MESSAGE_FLOW_PAYLOAD;
}

/* The first header decides the stream's flow for good. */
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
    if (place != NULL && reader->stream != NULL) { /* its data is never left waiting */
        net_stream_expect(reader->stream, FLOW_BYTES);
    }
    return NULL;
}

static const char *message_check_next(const struct stream_reader *reader)
{
    const struct message_reader *incoming = (const struct message_reader *)reader;
    bool same = flow_of(incoming->header.kind) == incoming->flow && !incoming->is_over;
    return same ? NULL : "on one stream messages that belong on two";
}

static const char *message_decode(struct stream_reader *reader)
{
    struct message_reader *incoming = message_of(reader);
    const char *what = NULL;
    if (message_header_decode(reader->header, &incoming->header, &what) != STATUS_OK) {
        return what;
    }
    reader->comm_id = incoming->header.comm_id;
    reader->payload_bytes = incoming->header.payload_bytes;
    return NULL;
}

static void message_violated(struct stream_reader *reader, const char *what)
{
    struct p2p_comm *comm = comm_of(reader);
    struct error error;
    error_set(&error, STATUS_PROTOCOL, "\"%s\": node %s sent %s", comm->map->name,
              comm->map->node_names[reader->node], what);
    p2p_comm_fail(comm, &error);
}

/* The sender sends the cause on its stream of envelopes. */
static void message_cut(struct stream_reader *reader, uint64_t now_ns)
{
    struct p2p_arrival *arrival = message_of(reader)->taken;
    if (arrival != NULL && arrival->cut_ns == 0) {
        arrival->cut_ns = time_after(now_ns, STREAM_CUT_NS);
        DL_APPEND(comm_of(reader)->p2p->cut, arrival);
    }
}

void incoming_end_cut(struct p2p *p2p, uint64_t now_ns)
{
    struct p2p_arrival *arrival;
    while ((arrival = p2p->cut) != NULL && arrival->cut_ns <= now_ns) {
        const struct p2p_comm *comm = arrival->comm;
        struct error error;
        error_set(&error, STATUS_PROTOCOL,
                  "\"%s\": node %s reset the payload of rank %u's send, tag %u, and gave no reason",
                  comm->map->name, comm->map->node_names[arrival->link->node], arrival->source_rank,
                  arrival->tag);
        arrival->cut_ns = 0;
        DL_DELETE(p2p->cut, arrival);
        message_give_up(arrival->receive, &error, true);
    }
}

/* The account has no room for data that waits on a stream. Only payloads wait, for the pipe of a receive. */
static void message_crowded(struct stream_reader *reader, const struct error *why)
{
    struct p2p_comm *comm = comm_of(reader);
    struct error error;
    error_set(&error, STATUS_LIMIT, "\"%s\": no room for what node %s sends: %s", comm->map->name,
              comm->map->node_names[reader->node], why->text);
    p2p_comm_fail(comm, &error);
}

/* Drops a message that has arrived in part. */
static void message_let_go(struct stream_reader *reader)
{
    struct message_reader *incoming = message_of(reader);
    struct stream_reader **place = place_of(incoming);
    if (place != NULL && *place == reader) {
        *place = NULL;
    }
    if (incoming->coming != NULL) {
        free(incoming->coming->payload);
        free(incoming->coming);
        incoming->coming = NULL;
    }
    if (incoming->taken != NULL) {
        incoming->taken->reader = NULL;
        incoming->taken = NULL;
    }
}

void incoming_drop(struct stream_reader *reader)
{
    struct message_reader *incoming = message_of(reader);
    incoming->taken->reader = NULL;
    incoming->taken = NULL;
    stream_reader_reset(reader);
}

/* --- Headers --- */

/* Whether one rank of the header is on the sender's node, and the other one on this node. */
static bool ranks_are_right(const struct message_reader *incoming)
{
    const struct p2p_comm *comm = comm_of(&incoming->reader);
    const struct message_header *header = &incoming->header;
    bool is_reply = flow_of(header->kind) == MESSAGE_FLOW_REPLIES;
    uint32_t there = is_reply ? header->to_rank : header->source_rank;
    uint32_t here = is_reply ? header->source_rank : header->to_rank;
    return there < comm->map->ranks.size && here < comm->map->ranks.size &&
           comm->map->node_of_rank[there] == incoming->reader.node &&
           comm->map->ranks.local_of_rank[here] != UINT32_MAX;
}

/* The message of an envelope that arrived and is not over; null if it is over. */
static struct p2p_arrival *find_arrival(const struct p2p_link *link, const struct message_header *header)
{
    struct p2p_id *id = id_table_find(&link->arrivals, header->id);
    return id == NULL ? NULL : (struct p2p_arrival *)((char *)id - offsetof(struct p2p_arrival, by_id));
}

static struct p2p_message *find_send(const struct p2p_link *link, const struct message_header *header)
{
    struct p2p_id *id = id_table_find(&link->sends, header->id);
    return id == NULL ? NULL : (struct p2p_message *)((char *)id - offsetof(struct p2p_message, by_id));
}

/* Eager data counts against the credit of its pair until it is reported as taken. */
static const char *keep_credit(struct p2p_comm *comm, const struct message_header *header)
{
    struct error error;
    struct p2p_pair *pair = pair_make(comm, header->to_rank, header->source_rank, true, &error);
    if (pair == NULL) {
        p2p_comm_fail(comm, &p2p_no_memory);
        return NULL;
    }
    uint32_t bytes = credit_of(header->payload_bytes);
    if (pair->kept_bytes + bytes > comm->credit_bytes) {
        return "more eager data than it has credit for";
    }
    pair->kept_bytes += bytes;
    return NULL;
}

static enum stream_ready begin_arrival(struct message_reader *incoming)
{
    const struct message_header *header = &incoming->header;
    struct p2p_link *link = link_of(&incoming->reader);
    bool eager = header->kind == MESSAGE_EAGER;
    const char *wrong = header->id != link->came_count + 1 ? "a message out of order"
                        : eager                            ? keep_credit(link->comm, header)
                                                           : NULL;
    if (wrong != NULL) {
        stream_reader_violates(&incoming->reader, wrong);
        return STREAM_WAIT;
    }
    struct p2p_arrival *arrival = calloc(1, sizeof *arrival);
    unsigned char *payload = eager ? malloc((size_t)header->payload_bytes + 1) : NULL;
    bool complete = arrival != NULL && (!eager || payload != NULL) && !link->comm->failed;
    if (complete && !eager) {
        arrival->by_id.id = header->id;
        complete = id_table_add(&link->arrivals, &arrival->by_id);
    }
    if (!complete) {
        free(payload);
        free(arrival);
        p2p_comm_fail(link->comm, &p2p_no_memory);
        return STREAM_WAIT;
    }
    arrival->by_id.id = header->id;
    arrival->comm = link->comm;
    arrival->link = link;
    arrival->eager = eager;
    arrival->payload = payload;
    arrival->source_rank = header->source_rank;
    arrival->to_rank = header->to_rank;
    arrival->tag = header->tag;
    arrival->dtype = (uint8_t)header->dtype;
    arrival->count_elements = header->count_elements;
    arrival->payload_bytes = (uint32_t)header->payload_bytes;
    incoming->coming = arrival;
    return STREAM_READY;
}

/* Returns null, or what is wrong. */
static const char *on_withdraw(struct p2p_link *link, const struct message_header *header)
{
    struct p2p_arrival *arrival = find_arrival(link, header);
    struct error ended;
    if (header->id == 0 || header->id > link->came_count) {
        return "the end of a message that it never sent";
    }
    if (arrival == NULL) {
        return NULL; /* it was refused, or has ended, meanwhile */
    }
    if (arrival->source_rank != header->source_rank || arrival->to_rank != header->to_rank) {
        return "the end of a message of other ranks";
    }
    if (arrival->receive == NULL) {
        arrival_free(arrival);
        return NULL;
    }
    message_set_peer_ended(link->comm, &ended, header->status, true, header->source_rank, header->tag);
    message_give_up(arrival->receive, &ended, false);
    return NULL;
}

static void set_refused(const struct p2p_message *send, const struct message_header *header,
                        struct error *error)
{
    const struct p2p_arrival sent = {.source_rank = send->rank,
                                     .to_rank = send->peer_rank,
                                     .tag = send->tag,
                                     .dtype = send->dtype,
                                     .count_elements = send->count_elements};
    if (header->status == STATUS_MISMATCH) {
        message_set_mismatch(send->comm, error, &sent, header->dtype, header->count_elements);
    } else if (header->status == STATUS_LIMIT) {
        error_set(error, STATUS_LIMIT,
                  "\"%s\": rank %u (node %s) has no room for another message that no recv has taken",
                  send->comm->map->name, send->peer_rank, p2p_node_name(send->comm, send->peer_rank));
    } else if (header->status == STATUS_RANK_LOST) {
        message_set_left(send->comm, error, send->peer_rank);
    } else {
        message_set_peer_ended(send->comm, error, header->status, false, send->peer_rank, send->tag);
    }
}

/* Handles ACCEPT and REFUSE. Returns null, or what is wrong. */
static const char *on_reply(struct p2p_link *link, const struct message_header *header)
{
    struct p2p_message *send = find_send(link, header);
    struct error refused;
    if (header->id == 0 || header->id > link->sent_count) {
        return "a reply to a message that was not sent";
    }
    if (send == NULL) {
        return NULL; /* it was withdrawn meanwhile */
    }
    if (send->rank != header->source_rank || send->peer_rank != header->to_rank) {
        return "a reply to a message of other ranks";
    }
    if (header->kind == MESSAGE_REFUSE) {
        set_refused(send, header, &refused);
        message_give_up(send, &refused, false);
    } else if (send->state == MESSAGE_OFFERED) {
        link_accepted(send);
    } else {
        return "a second reply to a message";
    }
    return NULL;
}

static const char *on_credit(struct p2p_comm *comm, const struct message_header *header)
{
    struct p2p_pair *pair = pair_find(comm, header->source_rank, header->to_rank);
    if (pair == NULL || header->count_elements > pair->sent_bytes) {
        return "credit for more bytes than it received";
    }
    pair->sent_bytes -= (uint32_t)header->count_elements;
    return NULL;
}

static enum stream_ready begin_payload(struct message_reader *incoming)
{
    const struct message_header *header = &incoming->header;
    struct p2p_link *link = link_of(&incoming->reader);
    struct p2p_arrival *arrival = incoming->taken != NULL ? incoming->taken : find_arrival(link, header);
    if (arrival == NULL && header->id > 0 && header->id <= link->came_count) {
        stream_reader_reset(&incoming->reader); /* its receive has ended meanwhile */
        return STREAM_WAIT;
    }
    struct p2p_message *receive = arrival != NULL ? arrival->receive : NULL;
    bool expected = receive != NULL && (arrival == incoming->taken || receive->state == MESSAGE_AWAITED);
    if (!expected || arrival->count_elements != header->count_elements || arrival->dtype != header->dtype ||
        arrival->source_rank != header->source_rank || arrival->to_rank != header->to_rank) {
        stream_reader_violates(&incoming->reader, "a payload that no receive waits for");
        return STREAM_WAIT;
    }
    if (incoming->taken == NULL) {
        incoming->taken = arrival;
        arrival->reader = &incoming->reader;
        receive->state = MESSAGE_RECEIVING;
        if (receive->transfer != NULL) {
            message_activate(receive);
        }
    }
    return STREAM_READY;
}

/* Begins what the header asks for; without a payload, does all of it. */
static enum stream_ready message_begin(struct stream_reader *reader, uint64_t now_ns)
{
    struct message_reader *incoming = message_of(reader);
    struct p2p_comm *comm = comm_of(reader);
    struct p2p_link *link = link_of(reader);
    const struct message_header *header = &incoming->header;
    const char *wrong = NULL;
    (void)now_ns;
    if (comm->aborted) { /* so that the sender need not wait until the communicator is freed here */
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
        if (incoming->coming != NULL) {
            return STREAM_READY;
        }
        return link->replies.note_count < P2P_REPLIES_MAX ? begin_arrival(incoming) : STREAM_WAIT;
    case MESSAGE_WITHDRAW:
        wrong = on_withdraw(link, header);
        break;
    case MESSAGE_ACCEPT:
    case MESSAGE_REFUSE:
        wrong = on_reply(link, header);
        break;
    case MESSAGE_CREDIT:
        wrong = on_credit(comm, header);
        break;
    case MESSAGE_DATA:
        return begin_payload(incoming);
    }
    if (wrong != NULL) {
        stream_reader_violates(reader, wrong);
    }
    return wrong == NULL ? STREAM_READY : STREAM_WAIT;
}

/* --- Payloads --- */

static void message_done(struct stream_reader *reader, uint64_t now_ns)
{
    struct message_reader *incoming = message_of(reader);
    struct p2p_link *link = link_of(reader);
    struct p2p_arrival *coming = incoming->coming, *taken = incoming->taken;
    (void)now_ns;
    stream_reader_next_message(reader);
    incoming->coming = NULL;
    incoming->taken = NULL;
    incoming->is_over = incoming->flow == MESSAGE_FLOW_PAYLOAD;
    if (coming != NULL) {
        link->came_count++;
        message_arrive(link->comm, coming);
        if (link->departures != NULL) {
            link_departures(link, link->came_count);
        }
        return;
    }
    if (taken != NULL) {
        struct p2p_message *receive = taken->receive;
        taken->reader = NULL;
        if (receive->transfer != NULL && receive->transfer->pipe != NULL) {
            receive->state = MESSAGE_COPYING;
            message_activate(receive);
        } else {
            message_end(receive, &p2p_fine);
        }
    }
}

/* Stores in the receive's pipe as many bytes as there is room for. Returns how many. */
static size_t take_to_pipe(struct p2p_message *receive, const uint8_t *bytes, size_t size)
{
    struct message_pipe *pipe = receive->transfer->pipe;
    size_t used = 0, room_bytes;
    for (void *room; used < size && (room = message_pipe_room(pipe, &room_bytes)) != NULL;) {
        size_t now = size - used < room_bytes ? size - used : room_bytes;
        memcpy(room, bytes + used, now);
        message_pipe_stored(pipe, now);
        used += now;
    }
    if (message_pipe_waits(pipe)) { /* a complete chunk waits to be copied to the GPU */
        p2p_wake(receive->comm->p2p);
    }
    return used;
}

static size_t message_take(struct stream_reader *reader, const uint8_t *bytes, size_t size)
{
    struct message_reader *incoming = message_of(reader);
    struct p2p_message *receive = incoming->taken != NULL ? incoming->taken->receive : NULL;
    if (receive != NULL && receive->transfer != NULL && receive->transfer->pipe != NULL) {
        return take_to_pipe(receive, bytes, size);
    }
    unsigned char *target = receive == NULL ? incoming->coming->payload : receive->buffer;
    uint64_t room_bytes =
        receive == NULL ? incoming->coming->payload_bytes : message_bytes(receive, receive->count_elements);
    if (reader->taken_bytes > room_bytes || size > room_bytes - reader->taken_bytes) {
        stream_reader_violates(reader, "a payload that is larger than its receive");
        return 0;
    }
    memcpy(target + reader->taken_bytes, bytes, size);
    return size;
}

const struct stream_reader_kind message_reader_kind = {
    .stream_kind = NET_STREAM_MESSAGE,
    .reader_bytes = sizeof(struct message_reader),
    .header_bytes = MESSAGE_HEADER_BYTES,
    .header_text = "a header of a message",
    .find = find_group,
    .decode = message_decode,
    .claim = message_claim,
    .check_next = message_check_next,
    .begin = message_begin,
    .take = message_take,
    .done = message_done,
    .let_go = message_let_go,
    .violated = message_violated,
    .cut = message_cut,
    .crowded = message_crowded,
};

void incoming_resume(struct p2p_comm *comm)
{
    struct stream_reader *reader, *next;
    if (comm->streams.stalled_count == 0) {
        return;
    }
    DL_FOREACH_SAFE(comm->streams.readers, reader, next)
    {
        stream_reader_resume(reader, comm->p2p->now_ns);
    }
}
