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
        net_stream_reset(incoming->stream);
    }
}

static void describe_call(char *text, size_t size, enum op_kind kind, enum dtype dtype, enum reduce reduce,
                          uint64_t count_elements, uint32_t root)
{
    switch (kind) {
    case OP_KIND_ALL_REDUCE:
        snprintf(text, size, "all_reduce of %llu %s, %s", (unsigned long long)count_elements,
                 dtype_text(dtype), reduce_text(reduce));
        return;
    case OP_KIND_BROADCAST:
        snprintf(text, size, "broadcast of %llu %s from rank %u", (unsigned long long)count_elements,
                 dtype_text(dtype), root);
        return;
    case OP_KIND_BARRIER:
        snprintf(text, size, "barrier");
        return;
    }
}

static bool calls_agree(const struct data_header *header, const struct exec_op *op)
{
    return header->kind == op->call.kind && header->dtype == op->call.dtype &&
           header->reduce == op->call.reduce && header->root == op->call.root_rank &&
           header->count_elements == op->call.count_elements && header->algorithm == op->algorithm->id;
}

static void set_mismatch(const struct exec_incoming *incoming, const struct exec_op *op, struct error *error)
{
    char theirs[128] = "", ours[128] = "";
    const struct data_header *header = &incoming->header;
    const struct exec_comm_options *options = &incoming->comm->options;
    describe_call(theirs, sizeof theirs, header->kind, header->dtype, header->reduce, header->count_elements,
                  header->root);
    describe_call(ours, sizeof ours, op->call.kind, op->call.dtype, op->call.reduce, op->call.count_elements,
                  op->call.root_rank);
    error_set(error, STATUS_MISMATCH, "\"%s\", operation %llu: node %s called %s; node %s called %s",
              options->name, (unsigned long long)header->seq, options->node_names[options->node_index], ours,
              options->node_names[incoming->node], theirs);
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

static enum match match_lane(struct exec_incoming *incoming, const struct exec_op *op, struct error *error)
{
    const struct data_header *header = &incoming->header;
    if (header->slice >= op->slice_count) {
        return set_fault(incoming, "a slice that the operation does not have", error);
    }
    struct exec_lane *lane = &incoming->comm->lanes[header->slice % EXEC_LANES_MAX];
    if (header->slice >= op->next_slice) {
        return MATCH_WAIT;
    }
    if (lane->state == LANE_IDLE || lane->slice > header->slice) {
        return set_fault(incoming, "data of a slice that is done", error);
    }
    if (lane->slice < header->slice || header->round > lane->round) {
        return MATCH_WAIT;
    }
    const struct coll_transfer *receive = lane_next_receive(lane);
    if (header->round < lane->round || receive == NULL || !expected_later(lane, incoming->node)) {
        return set_fault(incoming, "data that nothing waits for", error);
    }
    if (receive->node != incoming->node) {
        return MATCH_WAIT;
    }
    if (header->payload_bytes != receive->count_elements * op->element_bytes) {
        return set_fault(incoming, "a message of another size than agreed", error);
    }
    incoming->lane = lane;
    return MATCH_READY;
}

static enum match match(struct exec_incoming *incoming, struct error *error)
{
    const struct exec_comm *comm = incoming->comm;
    const struct exec_op *op = comm->first_op;
    const struct data_header *header = &incoming->header;
    if (incoming->lane != NULL) {
        return MATCH_READY;
    }
    if (comm->failed) {
        return MATCH_WAIT;
    }
    if (header->seq <= comm->last_seq && (op == NULL || !comm->running || header->seq < op->call.seq)) {
        error_set(
            error, STATUS_MISMATCH,
            "\"%s\", operation %llu: node %s sends data of it, but it is over here: the ranks' calls differ",
            comm->options.name, (unsigned long long)header->seq, comm->options.node_names[incoming->node]);
        return MATCH_FAULT;
    }
    if (op == NULL || !comm->running || header->seq > op->call.seq) {
        return MATCH_WAIT;
    }
    if (!calls_agree(header, op)) {
        set_mismatch(incoming, op, error);
        return MATCH_FAULT;
    }
    return match_lane(incoming, op, error);
}

static void message_done(struct exec_incoming *incoming, uint64_t now_ns)
{
    struct exec_lane *lane = incoming->lane;
    incoming->in_message = false;
    incoming->header_have = 0;
    incoming->lane = NULL;
    lane->receives_done++;
    lane_advance(lane, now_ns);
    receive_resume(incoming->comm);
}

/* Elements that lie whole in the piece are reduced from there; one that a piece ends in is put together
 * first. */
static size_t reduce_bytes(struct exec_incoming *incoming, const struct coll_transfer *receive,
                           const uint8_t *bytes, size_t size)
{
    const struct exec_op *op = lane_op(incoming->lane);
    size_t element = (size_t)op->element_bytes;
    unsigned char *work = stage_work(op, incoming->lane->offset_elements + receive->offset_elements);
    unsigned char *target = work + (incoming->taken_bytes - incoming->partial_have);
    size_t used = 0;
    if (incoming->partial_have > 0 || size < element) {
        size_t wanted = element - incoming->partial_have;
        used = size < wanted ? size : wanted;
        memcpy(incoming->partial + incoming->partial_have, bytes, used);
        incoming->partial_have += (uint32_t)used;
        if (incoming->partial_have == element) {
            dev_reduce_into(op->call.dtype, op->call.reduce, target, incoming->partial, 1);
            incoming->partial_have = 0;
        }
        return used;
    }
    size_t whole = size / element;
    dev_reduce_into(op->call.dtype, op->call.reduce, target, bytes, whole);
    return whole * element;
}

static size_t take_payload(struct exec_incoming *incoming, const uint8_t *bytes, size_t size)
{
    const struct coll_transfer *receive = lane_next_receive(incoming->lane);
    uint64_t left = incoming->header.payload_bytes - incoming->taken_bytes;
    size = size < left ? size : (size_t)left;
    size_t used = size;
    if (receive->action == COLL_STORE && size > 0) { /* a barrier has no work buffer */
        const struct exec_op *op = lane_op(incoming->lane);
        unsigned char *work = stage_work(op, incoming->lane->offset_elements + receive->offset_elements);
        memcpy(work + incoming->taken_bytes, bytes, size);
    } else if (size > 0) {
        used = reduce_bytes(incoming, receive, bytes, size);
    }
    incoming->taken_bytes += used;
    return used;
}

static bool find_comm(struct exec_incoming *incoming)
{
    struct exec_comm *comm;
    HASH_FIND(hh, incoming->exec->comms, &incoming->header.comm_id, sizeof incoming->header.comm_id, comm);
    if (comm == NULL) {
        return false;
    }
    for (uint32_t node = 0; node < comm->options.node_count; node++) {
        if (node != comm->options.node_index && comm->peers[node] == incoming->stream->peer) {
            list_remove(&incoming->exec->parked, incoming);
            incoming->comm = comm;
            incoming->node = node;
            list_add(&comm->incoming, incoming);
            return true;
        }
    }
    log_warning("a node that has no part in communicator \"%s\" sends data to it", comm->options.name);
    incoming_reset(incoming);
    return false;
}

static size_t take_header(struct exec_incoming *incoming, const uint8_t *bytes, size_t size)
{
    size_t wanted = DATA_HEADER_BYTES - incoming->header_have;
    size_t used = size < wanted ? size : wanted;
    memcpy(incoming->header_bytes + incoming->header_have, bytes, used);
    incoming->header_have += (uint32_t)used;
    if (incoming->header_have == DATA_HEADER_BYTES) {
        const char *what = NULL;
        uint64_t comm_id = incoming->header.comm_id;
        enum status status = data_header_decode(incoming->header_bytes, &incoming->header, &what);
        if (status != STATUS_OK || (incoming->comm != NULL && incoming->header.comm_id != comm_id)) {
            log_warning("a data stream is reset: %s",
                        status != STATUS_OK ? what : "it changes its communicator");
            incoming_reset(incoming);
        }
        incoming->in_message = true;
        incoming->taken_bytes = 0;
        incoming->partial_have = 0;
    }
    return used;
}

static size_t receive_bytes(void *context, struct net_stream *stream, const uint8_t *bytes, size_t size,
                            bool end, uint64_t now_ns)
{
    (void)end;
    struct exec *exec = context;
    struct exec_incoming *incoming = stream->user;
    exec->now_ns = now_ns;
    if (incoming == NULL) {
        incoming = calloc(1, sizeof *incoming);
        if (incoming == NULL) {
            net_stream_reset(stream);
            return size;
        }
        incoming->exec = exec;
        incoming->stream = stream;
        incoming->expires_ns = time_after(now_ns, EXEC_PARKED_NS);
        stream->user = incoming;
        list_add(&exec->parked, incoming);
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
            incoming->comm != NULL || find_comm(incoming) ? match(incoming, &error) : MATCH_WAIT;
        if (ready == MATCH_FAULT) {
            incoming->stalled = true;
            exec_comm_fail(incoming->comm, &error, now_ns);
            return used;
        }
        if (ready == MATCH_WAIT) {
            incoming->stalled = true;
            return incoming->resetting ? size : used;
        }
        used += take_payload(incoming, bytes + used, size - used);
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
    if (cause == NULL && incoming->comm != NULL && incoming->header_have > 0 && !incoming->resetting) {
        struct error error;
        set_fault(incoming, "half a message", &error);
        exec_comm_fail(incoming->comm, &error, now_ns);
    }
    stream->user = NULL;
    list_remove(list_of(incoming), incoming);
    free(incoming);
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
            enum match ready = match(incoming, &error);
            if (ready == MATCH_FAULT) {
                exec_comm_fail(comm, &error, comm->exec->now_ns);
            } else if (ready == MATCH_READY && incoming->header.payload_bytes == 0) {
                incoming->stalled = false;
                message_done(incoming, comm->exec->now_ns);
                net_stream_resume(incoming->stream);
            } else if (ready == MATCH_READY) {
                incoming->stalled = false;
                net_stream_resume(incoming->stream);
            }
        }
    } while (comm->resume_again && !comm->failed);
    comm->resuming = false;
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
        list_remove(&comm->incoming, incoming);
        incoming->comm = NULL;
        incoming->lane = NULL;
        list_add(&comm->exec->parked, incoming);
        incoming_reset(incoming);
    }
}

void receive_expire(struct exec *exec, uint64_t now_ns)
{
    for (struct exec_incoming *incoming = exec->parked; incoming != NULL; incoming = incoming->next) {
        if (incoming->expires_ns <= now_ns) {
            incoming->expires_ns = TIME_NEVER;
            incoming_reset(incoming);
        }
    }
}
