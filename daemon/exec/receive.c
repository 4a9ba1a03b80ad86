#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/base/log.h"
#include "daemon/base/time.h"
#include "daemon/dev/reduce.h"
#include "daemon/exec/exec_internal.h"

/* What comes from other nodes: headers are compared with this node's operation, payloads go straight to where
 * they belong. */

enum match { MATCH_READY, MATCH_WAIT, MATCH_FAULT };

static void list_add(struct exec_incoming **list, struct exec_incoming *incoming)
{
    incoming->previous = NULL;
    incoming->next = *list;
    if (*list != NULL) {
        (*list)->previous = incoming;
    }
    *list = incoming;
}

static void list_remove(struct exec_incoming **list, struct exec_incoming *incoming)
{
    if (incoming->previous != NULL) {
        incoming->previous->next = incoming->next;
    } else {
        *list = incoming->next;
    }
    if (incoming->next != NULL) {
        incoming->next->previous = incoming->previous;
    }
}

static struct exec_incoming **list_of(struct exec_incoming *incoming)
{
    return incoming->comm != NULL ? &incoming->comm->incoming : &incoming->exec->parked;
}

static void incoming_reset(struct exec_incoming *incoming)
{
    if (!incoming->resetting) {
        incoming->resetting = true;
        if (incoming->stream != NULL) {
            net_stream_reset(incoming->stream);
        }
    }
}

/* Ends the stream's hold on its lane. A payload that was taken in part cannot be completed by another. */
static void incoming_let_go(struct exec_incoming *incoming)
{
    if (incoming->feeds != NULL) {
        incoming->feeds->is_cut |= incoming->lane != NULL;
        incoming->feeds->sources[incoming->node] = NULL;
    }
    incoming->feeds = NULL;
    incoming->lane = NULL;
    incoming->dropping = false;
}

static void incoming_free(struct exec_incoming *incoming)
{
    incoming_let_go(incoming);
    list_remove(list_of(incoming), incoming);
    if (incoming->comm == NULL) {
        exec_unpark(incoming->exec, incoming->peer);
    }
    free(incoming->encoded);
    free(incoming);
}

/* See exec_peer_violates. The communicator, if the stream has one, hears of it first. */
static void incoming_violates(struct exec_incoming *incoming, const char *what)
{
    struct exec_comm *comm = incoming->comm;
    struct error error;
    if (incoming->resetting) {
        return;
    }
    if (comm != NULL) {
        error_set(&error, STATUS_PROTOCOL, "\"%s\": node %s sent %s", comm->options.name,
                  comm->options.node_names[incoming->node], what);
        exec_comm_fail(comm, &error, incoming->exec->now_ns);
    }
    incoming_reset(incoming);
    exec_peer_violates(incoming->exec, incoming->peer, what);
}

static bool calls_agree(const struct data_header *header, const struct exec_op *op)
{
    return header->kind == op->call.kind && header->dtype == op->call.dtype &&
           header->reduce == op->call.reduce && header->root == op->call.root_rank &&
           header->count_elements == op->call.count_elements && header->detail == op->call.detail &&
           header->algorithm == op->algorithm->id;
}

/* The operation waits for exec_cancel; what has come of it stays where it is until then. */
static enum match set_disagreement(const struct exec_incoming *incoming, struct exec_op *op, const char *how,
                                   uint64_t now_ns)
{
    struct exec_comm *comm = incoming->comm;
    if (!op->disputed) {
        op->disputed = true;
        comm->options.disagreed(comm->options.context, op->call.seq, incoming->node, how, now_ns);
    }
    return MATCH_WAIT;
}

static enum match set_fault(const struct exec_incoming *incoming, const char *what, struct error *error)
{
    const struct exec_comm_options *options = &incoming->comm->options;
    error_set(error, STATUS_PROTOCOL, "\"%s\", operation %llu: node %s sent %s", options->name,
              (unsigned long long)incoming->header.seq, options->node_names[incoming->node], what);
    return MATCH_FAULT;
}

/* Whether the round at hand expects something of this node later. */
static bool expected_later(const struct exec_lane *lane, uint32_t node)
{
    for (uint32_t i = lane->receives_done; i < lane->transfers.receive_count; i++) {
        if (lane->transfers.receives[i].node == node) {
            return true;
        }
    }
    return false;
}

/* The header's payload is what the next receive expects; or, compressed, not more than that can be. */
static bool size_agrees(const struct exec_lane *lane, const struct exec_op *op,
                        const struct coll_transfer *receive, uint64_t payload_bytes)
{
    if (compressed_applies(lane, op)) {
        return payload_bytes <= compressed_max_bytes(lane, receive);
    }
    return payload_bytes == lane_message_elements(lane, receive) * op->element_bytes;
}

static enum match match_lane(struct exec_incoming *incoming, struct exec_op *op, uint64_t now_ns,
                             struct error *error)
{
    const struct data_header *header = &incoming->header;
    bool agreement = header->slice == EXEC_AGREEMENT_SLICE;
    uint32_t share_count = incoming->comm->share_count;
    if (agreement ? !op->agrees
                  : header->slice >= op->slice_count ||
                        header->slice % share_count != incoming->comm->share_index) {
        return set_fault(incoming, "a slice that the operation does not have", error);
    }
    struct exec_lane *lane = incoming->feeds;
    if (lane->is_cut) {
        return MATCH_WAIT; /* for the end of the communicator */
    }
    if (!agreement && header->slice >= op->next_slice) {
        return MATCH_WAIT;
    }
    if (agreement && !op->agreeing) {
        return MATCH_WAIT;
    }
    if (lane->state == LANE_STAGE_IN && lane->slice == header->slice) {
        return MATCH_WAIT; /* ours is on its way from a GPU */
    }
    if (lane->state != LANE_ROUNDS || (!agreement && lane->slice > header->slice)) {
        return set_fault(incoming, "data of a slice that is done", error);
    }
    if ((!agreement && lane->slice < header->slice) || header->round > lane->round) {
        return MATCH_WAIT;
    }
    const struct coll_transfer *receive = lane_next_receive(lane);
    if (header->round < lane->round || receive == NULL || !expected_later(lane, incoming->node)) {
        return set_fault(incoming, "data that nothing waits for", error);
    }
    if (receive->node != incoming->node) {
        return MATCH_WAIT;
    }
    if (!size_agrees(lane, op, receive, header->payload_bytes)) {
        char how[128];
        unsigned long long expected = lane_message_elements(lane, receive) * op->element_bytes;
        (void)snprintf(how, sizeof how, "%llu bytes are sent where %llu are expected",
                       (unsigned long long)header->payload_bytes, expected);
        return op_sizes_are_private(op) ? set_disagreement(incoming, op, how, now_ns)
                                        : set_fault(incoming, "a message of another size than agreed", error);
    }
    incoming->lane = lane;
    return MATCH_READY;
}

static enum match match(struct exec_incoming *incoming, uint64_t now_ns, struct error *error)
{
    const struct exec_comm *comm = incoming->comm;
    struct exec_op *op = comm->first_op;
    const struct data_header *header = &incoming->header;
    if (incoming->lane != NULL || incoming->dropping) {
        return MATCH_READY;
    }
    if (comm->failed) {
        return MATCH_WAIT;
    }
    if (exec_is_cancelled(comm, header->seq)) {
        incoming->dropping = true;
        return MATCH_READY;
    }
    bool running = op != NULL && op->begun;
    if (header->seq <= comm->last_seq && (!running || header->seq < op->call.seq)) {
        if (comm->share_index > 0) {
            return MATCH_WAIT; /* an operation of more slices than ours: the first rail hears of the
                                  difference */
        }
        return set_fault(incoming, "data of it although it is over", error);
    }
    if (!running || header->seq > op->call.seq) {
        return MATCH_WAIT;
    }
    if (!calls_agree(header, op)) {
        return set_disagreement(incoming, op, "", now_ns);
    }
    return match_lane(incoming, op, now_ns, error);
}

/* --- Payloads --- */

static void message_over(struct exec_incoming *incoming)
{
    incoming->in_message = false;
    incoming->header_have = 0;
    incoming->lane = NULL;
    incoming->dropping = false;
    free(incoming->encoded);
    incoming->encoded = NULL;
}

static void message_done(struct exec_incoming *incoming, uint64_t now_ns)
{
    struct exec_lane *lane = incoming->lane;
    if (incoming->dropping) {
        message_over(incoming);
        return;
    }
    const struct coll_transfer *receive = lane_next_receive(lane);
    struct exec_op *op = lane_op(lane);
    uint64_t elements = lane_message_elements(lane, receive);
    if (compressed_applies(lane, op)) {
        struct error error;
        elements = receive->count_elements;
        if (compressed_take(lane, receive, incoming->encoded, incoming->header.payload_bytes, &error) !=
            STATUS_OK) {
            struct error fault;
            (void)set_fault(incoming, error.text, &fault);
            message_over(incoming);
            exec_comm_fail(lane->comm, &fault, now_ns);
            return;
        }
    }
    message_over(incoming);
    lane_received(lane, elements);
    lane_advance(lane, now_ns);
    receive_resume(incoming->comm);
}

/* Whole elements, to where they lie together: within the receive's part of the slice. */
static void apply(const struct exec_lane *lane, const struct exec_op *op, enum coll_action action,
                  unsigned char *target, unsigned char *prefix, const uint8_t *bytes, uint64_t count)
{
    enum dtype dtype = op->call.dtype;
    enum reduce reduce = op->call.reduce;
    switch (action) {
    case COLL_STORE:
        memcpy(target, bytes, (size_t)(count * op->element_bytes));
        return;
    case COLL_REDUCE:
        dev_reduce_into(dtype, reduce, target, bytes, count);
        return;
    case COLL_REDUCE_BEFORE:
        dev_reduce_into_before(dtype, reduce, target, bytes, count);
        return;
    case COLL_PREFIX:
        dev_reduce_into_before(dtype, reduce, target, bytes, count);
        if (lane->prefix_begun) {
            dev_reduce_into_before(dtype, reduce, prefix, bytes, count);
        } else {
            memcpy(prefix, bytes, (size_t)(count * op->element_bytes));
        }
        return;
    }
}

/* Whether so many elements of the payload, from `first` on, are what the receive takes, and have a place. */
static bool elements_fit(const struct exec_lane *lane, const struct coll_transfer *receive, uint64_t first,
                         uint64_t count)
{
    const struct exec_vector *vector = &lane->vectors[receive->space];
    uint64_t expected = lane_message_elements(lane, receive);
    uint64_t offset = receive->offset_elements + lane->received_elements + first;
    uint64_t behind = receive->action == COLL_PREFIX ? lane->call.count_elements : 0;
    return first <= expected && count <= expected - first && vector_holds(vector, offset, count) &&
           vector_holds(vector, offset + behind, count);
}

/* The next whole elements of the payload; they fit. */
static void apply_elements(const struct exec_incoming *incoming, const struct coll_transfer *receive,
                           uint64_t first, const uint8_t *bytes, uint64_t count)
{
    const struct exec_lane *lane = incoming->lane;
    const struct exec_op *op = lane_op(lane);
    const struct exec_vector *vector = &lane->vectors[receive->space];
    uint64_t offset = receive->offset_elements + lane->received_elements + first;
    while (count > 0) {
        uint64_t together, behind;
        unsigned char *target = vector_at(vector, offset, &together);
        unsigned char *prefix = receive->action == COLL_PREFIX
                                    ? vector_at(vector, offset + lane->call.count_elements, &behind)
                                    : NULL;
        together = together < count ? together : count;
        together = prefix != NULL && behind < together ? behind : together;
        apply(lane, op, receive->action, target, prefix, bytes, together);
        bytes += together * op->element_bytes;
        offset += together;
        count -= together;
    }
}

/*
 * Elements that lie whole in the piece are taken from there; one that a piece ends in is put together first.
 * Returns 0 when they have no place in what the lane takes now.
 */
static size_t take_elements(struct exec_incoming *incoming, const struct coll_transfer *receive,
                            const uint8_t *bytes, size_t size)
{
    size_t element = (size_t)lane_op(incoming->lane)->element_bytes;
    uint64_t first = incoming->taken_bytes / element;
    size_t used = 0;
    uint64_t whole = size / element > 0 ? size / element : 1;
    if (!elements_fit(incoming->lane, receive, first, whole)) {
        return 0;
    }
    if (incoming->partial_have > 0 || size < element) {
        size_t wanted = element - incoming->partial_have;
        used = size < wanted ? size : wanted;
        memcpy(incoming->partial + incoming->partial_have, bytes, used);
        incoming->partial_have += (uint32_t)used;
        if (incoming->partial_have == element) {
            apply_elements(incoming, receive, first, incoming->partial, 1);
            incoming->partial_have = 0;
        }
        return used;
    }
    apply_elements(incoming, receive, first, bytes, whole);
    return (size_t)whole * element;
}

/*
 * Returns how much was taken. 0 where there was something to take: the payload is not what the lane takes
 * now. A stream that owns its lane cannot get there; the check costs little, and nothing else stands between
 * a mistake here and other memory.
 */
static size_t take_payload(struct exec_incoming *incoming, const uint8_t *bytes, size_t size)
{
    uint64_t left = incoming->header.payload_bytes - incoming->taken_bytes;
    size_t used = size < left ? size : (size_t)left;
    if (used > 0 && !incoming->dropping) {
        const struct exec_lane *lane = incoming->lane;
        if (!lane_takes(lane, incoming->node, &incoming->header)) {
            return 0;
        }
        if (compressed_applies(lane, lane_op(lane))) {
            memcpy(incoming->encoded + incoming->taken_bytes, bytes, used);
        } else {
            used = take_elements(incoming, lane_next_receive(lane), bytes, used);
        }
    }
    incoming->taken_bytes += used;
    return used;
}

/* A compressed payload is decoded once it is whole. */
static bool payload_has_room(struct exec_incoming *incoming)
{
    if (incoming->dropping || incoming->encoded != NULL || incoming->header.payload_bytes == 0 ||
        !compressed_applies(incoming->lane, lane_op(incoming->lane))) {
        return true;
    }
    incoming->encoded = malloc((size_t)incoming->header.payload_bytes);
    return incoming->encoded != NULL;
}

/* --- Streams --- */

/* From here on the stream is that lane's, and the lane takes from no other of this node. */
static void claim_lane(struct exec_incoming *incoming)
{
    struct exec_lane *lane = lane_of_header(incoming->comm, &incoming->header);
    if (lane->sources[incoming->node] != NULL) {
        incoming_violates(incoming, "a second stream of data for one lane of slices");
        return;
    }
    lane->sources[incoming->node] = incoming;
    incoming->feeds = lane;
}

static bool header_is_of_communicator(const struct exec_incoming *incoming)
{
    return incoming->header.generation == incoming->comm->options.generation;
}

static bool find_comm(struct exec_incoming *incoming)
{
    struct exec_comm *comm;
    HASH_FIND(hh, incoming->exec->comms, &incoming->header.comm_id, sizeof incoming->header.comm_id, comm);
    if (comm == NULL) {
        return false;
    }
    for (uint32_t node = 0; node < comm->options.node_count; node++) {
        if (node != comm->options.node_index && comm->peers[node] == incoming->peer) {
            list_remove(&incoming->exec->parked, incoming);
            exec_unpark(incoming->exec, incoming->peer);
            incoming->comm = comm;
            incoming->node = node;
            list_add(&comm->incoming, incoming);
            if (!header_is_of_communicator(incoming)) {
                incoming_violates(incoming, "a data header of another generation");
            } else {
                claim_lane(incoming);
            }
            return !incoming->resetting;
        }
    }
    incoming_violates(incoming, "data for a communicator that it has no part in");
    return false;
}

/* A stream stays with the communicator and the lane of its first header. */
static void check_next_header(struct exec_incoming *incoming)
{
    if (incoming->header.comm_id != incoming->comm->comm_id || !header_is_of_communicator(incoming)) {
        incoming_violates(incoming, "data of two communicators on one stream");
    } else if (lane_of_header(incoming->comm, &incoming->header) != incoming->feeds) {
        incoming_violates(incoming, "data of two lanes of slices on one stream");
    }
}

static size_t take_header(struct exec_incoming *incoming, const uint8_t *bytes, size_t size)
{
    size_t wanted = DATA_HEADER_BYTES - incoming->header_have;
    size_t used = size < wanted ? size : wanted;
    memcpy(incoming->header_bytes + incoming->header_have, bytes, used);
    incoming->header_have += (uint32_t)used;
    if (incoming->header_have == DATA_HEADER_BYTES) {
        const char *what = NULL;
        if (data_header_decode(incoming->header_bytes, &incoming->header, &what) != STATUS_OK) {
            char text[96];
            (void)snprintf(text, sizeof text, "a data header that is malformed: %s", what);
            incoming_violates(incoming, text);
        } else if (incoming->comm != NULL) {
            check_next_header(incoming);
        }
        incoming->in_message = true;
        incoming->taken_bytes = 0;
        incoming->partial_have = 0;
        incoming->dropping = false;
    }
    return used;
}

/* Null without memory, or when that peer has too many streams parked. */
static struct exec_incoming *incoming_new(struct exec *exec, struct net_stream *stream, uint64_t now_ns)
{
    struct exec_incoming *incoming = exec_may_park(exec, stream->peer) ? calloc(1, sizeof *incoming) : NULL;
    if (incoming == NULL) {
        return NULL;
    }
    exec_park(exec, stream->peer);
    incoming->exec = exec;
    incoming->stream = stream;
    incoming->peer = stream->peer;
    incoming->expires_ns = time_after(now_ns, EXEC_PARKED_NS);
    stream->user = incoming;
    list_add(&exec->parked, incoming);
    return incoming;
}

static size_t receive_bytes(void *context, struct net_stream *stream, const uint8_t *bytes, size_t size,
                            bool end, uint64_t now_ns)
{
    (void)end;
    struct exec *exec = context;
    struct exec_incoming *incoming = stream->user;
    exec->now_ns = now_ns;
    incoming = incoming != NULL ? incoming : incoming_new(exec, stream, now_ns);
    if (incoming == NULL) {
        net_stream_reset(stream);
        return size;
    }
    size_t used = 0;
    incoming->stalled = false;
    for (;;) {
        if (incoming->resetting) {
            return size;
        }
        if (!incoming->in_message) {
            if (used == size) {
                return used;
            }
            used += take_header(incoming, bytes + used, size - used);
            continue;
        }
        struct error error;
        enum match ready =
            incoming->comm != NULL || find_comm(incoming) ? match(incoming, now_ns, &error) : MATCH_WAIT;
        if (ready == MATCH_READY && !payload_has_room(incoming)) {
            error_set(&error, STATUS_NO_MEMORY, "\"%s\": no memory for what node %s sends",
                      incoming->comm->options.name, incoming->comm->options.node_names[incoming->node]);
            ready = MATCH_FAULT;
        }
        if (ready == MATCH_FAULT) {
            incoming->stalled = true;
            exec_comm_fail(incoming->comm, &error, now_ns);
            return used;
        }
        if (ready == MATCH_WAIT) {
            incoming->stalled = true;
            return incoming->resetting ? size : used;
        }
        size_t taken = take_payload(incoming, bytes + used, size - used);
        if (taken == 0 && used < size && incoming->taken_bytes < incoming->header.payload_bytes) {
            incoming_violates(incoming, "a payload that is not what its header said");
            return size;
        }
        used += taken;
        if (incoming->taken_bytes == incoming->header.payload_bytes) {
            message_done(incoming, now_ns);
        } else if (used == size) {
            return used;
        }
    }
}

/*
 * A stream that is reset or lost is not reported from here: the mesh learns of a lost node, and a node that
 * gives up a communicator says why in its Abort, so that all ranks get that cause and not "a stream was
 * reset".
 */
static void receive_closed(void *context, struct net_stream *stream, const struct error *cause,
                           uint64_t now_ns)
{
    (void)context;
    struct exec_incoming *incoming = stream->user;
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
        incoming_violates(incoming, "half a message of data, and the end of its stream");
    }
    incoming_free(incoming);
}

void receive_register(struct exec *exec)
{
    struct net_stream_handler handler = {.context = exec, .receive = receive_bytes, .closed = receive_closed};
    net_set_stream_handler(exec->net, NET_STREAM_DATA, &handler);
}

/*
 * Lets go on what waited and now matches. A message without payload has nothing left with the network to be
 * delivered again, so it is done from here; that may let others go on, so the list is walked until nothing
 * moves.
 */
void receive_resume(struct exec_comm *comm)
{
    if (comm->resuming) {
        comm->resume_again = true;
        return;
    }
    comm->resuming = true;
    do {
        comm->resume_again = false;
        struct exec_incoming *next;
        for (struct exec_incoming *incoming = comm->incoming; incoming != NULL && !comm->failed;
             incoming = next) {
            struct error error;
            next = incoming->next;
            if (!incoming->stalled || incoming->resetting) {
                continue;
            }
            enum match ready = match(incoming, comm->exec->now_ns, &error);
            if (ready == MATCH_FAULT) {
                exec_comm_fail(comm, &error, comm->exec->now_ns);
            } else if (ready == MATCH_READY && incoming->header.payload_bytes == 0) {
                incoming->stalled = false;
                message_done(incoming, comm->exec->now_ns);
                if (incoming->stream != NULL) {
                    net_stream_resume(incoming->stream);
                } else {
                    incoming_free(incoming);
                }
            } else if (ready == MATCH_READY) {
                incoming->stalled = false;
                net_stream_resume(incoming->stream);
            }
        }
    } while (comm->resume_again && !comm->failed);
    comm->resuming = false;
}

void receive_drop(struct exec_comm *comm, uint64_t seq)
{
    for (struct exec_incoming *incoming = comm->incoming; incoming != NULL; incoming = incoming->next) {
        if (incoming->in_message && incoming->header.seq == seq) {
            incoming->lane = NULL; /* what is left of the payload goes nowhere */
            incoming->dropping = true;
        }
    }
    receive_resume(comm);
}

void receive_claim_parked(struct exec_comm *comm)
{
    struct exec_incoming *next;
    for (struct exec_incoming *incoming = comm->exec->parked; incoming != NULL; incoming = next) {
        next = incoming->next;
        if (incoming->in_message && incoming->header.comm_id == comm->comm_id) {
            (void)find_comm(incoming); /* stays stalled until the operation runs */
        }
    }
}

void receive_detach(struct exec_comm *comm)
{
    while (comm->incoming != NULL) {
        struct exec_incoming *incoming = comm->incoming;
        if (incoming->stream == NULL) {
            incoming_free(incoming);
            continue;
        }
        incoming_let_go(incoming);
        list_remove(&comm->incoming, incoming);
        incoming->comm = NULL;
        list_add(&comm->exec->parked, incoming); /* until the network says that it is closed */
        exec_park(comm->exec, incoming->peer);
        incoming_reset(incoming);
    }
}

void receive_expire(struct exec *exec, uint64_t now_ns)
{
    struct exec_incoming *next;
    for (struct exec_incoming *incoming = exec->parked; incoming != NULL; incoming = next) {
        next = incoming->next;
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
