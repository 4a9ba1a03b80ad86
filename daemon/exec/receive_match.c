#include <stdio.h>

#include "daemon/exec/receive_internal.h"

/* Compares the headers of messages with this node's operations. */

/* In which field the sender's call differs from ours; null if it does not. */
static const char *header_difference(const struct data_header *header, const struct exec_op *op)
{
    const char *field = op_terms_difference(&header->terms, &op->call.terms);
    return field != NULL ? field : header->algorithm != op->algorithm->id ? "algorithm" : NULL;
}

/* Reports the disagreement once. The operation waits for exec_cancel, and its data waits in the net until
 * then. */
static enum match set_disagreement(const struct data_reader *incoming, struct exec_op *op, const char *how,
                                   uint64_t now_ns)
{
    struct exec_comm *comm = comm_of(&incoming->reader);
    if (!op->disputed) {
        op->disputed = true;
        comm->handler.disagreed(comm->handler.context, op->call.seq, incoming->reader.node, how, now_ns);
    }
    return MATCH_WAIT;
}

enum match data_set_fault(const struct data_reader *incoming, const char *what, struct error *error)
{
    const struct comm_map *map = comm_of(&incoming->reader)->map;
    error_set(error, STATUS_PROTOCOL, "\"%s\", operation %llu: node %s sent %s", map->name,
              (unsigned long long)incoming->header.seq, map->node_names[incoming->reader.node], what);
    return MATCH_FAULT;
}

/* Whether the current round still expects data from that node. */
static bool expected_later(const struct exec_lane *lane, uint32_t node)
{
    for (uint32_t i = lane->receives_done; i < lane->transfers.receive_count; i++) {
        if (lane->transfers.receives[i].node == node) {
            return true;
        }
    }
    return false;
}

/* Whether a payload of the same node comes on another stream at this moment. A correct node sends all of a
 * slice on one stream. */
static bool comes_elsewhere(const struct data_reader *incoming, const struct exec_lane *lane)
{
    uint32_t nodes = lane->comm->map->ranks.node_count;
    uint32_t other = incoming->source < nodes ? incoming->source + nodes : incoming->source - nodes;
    struct stream_reader *reader = lane->sources[other];
    return reader != NULL && data_of(reader)->lane != NULL;
}

/*
 * Whether the payload's size is the one that the next receive expects. If compressed: whether it is possible.
 */
static bool size_agrees(const struct exec_lane *lane, const struct exec_op *op,
                        const struct coll_transfer *receive, uint64_t payload_bytes)
{
    if (compressed_applies(op)) {
        return payload_bytes <= compressed_max_bytes(lane, receive);
    }
    return payload_bytes == lane_message_elements(lane, receive) * op->stage.element_bytes;
}

/* Whether the lane runs the message's slice and round now. If it never will, *fault gets what is wrong. */
static enum match match_progress(const struct exec_lane *lane, const struct exec_op *op,
                                 const struct data_header *header, const char **fault)
{
    if (lane->is_cut || header->slice >= op->next_slice) {
        return MATCH_WAIT; /* cut: until the communicator ends */
    }
    if ((lane_comes_in(lane) || lane->state == LANE_DEVICE_CODE) && lane->slice == header->slice) {
        return MATCH_WAIT; /* our part of the slice is not ready yet */
    }
    if (lane->state != LANE_ROUNDS || lane->slice > header->slice) {
        *fault = "data of a slice that has ended";
        return MATCH_WAIT;
    }
    bool later = lane->slice < header->slice || header->round > lane->round;
    /* the receive overwrites memory that is still to be copied for sends */
    bool copies = lane_is_sending(lane) && lane->algorithm->copies_sends;
    return later || copies ? MATCH_WAIT : MATCH_READY;
}

static enum match wrong_size(struct data_reader *incoming, struct exec_op *op, uint64_t elements,
                             uint64_t now_ns, struct error *error)
{
    char how[128];
    unsigned long long expected = elements * op->stage.element_bytes;
    (void)snprintf(how, sizeof how, "%llu bytes are sent where %llu are expected",
                   (unsigned long long)incoming->header.payload_bytes, expected);
    return coll_stage_sizes_are_private(&op->stage)
               ? set_disagreement(incoming, op, how, now_ns)
               : data_set_fault(incoming, "a message of another size than agreed", error);
}

static enum match match_lane(struct data_reader *incoming, struct exec_op *op, uint64_t now_ns,
                             struct error *error)
{
    const struct data_header *header = &incoming->header;
    const struct exec_comm *comm = comm_of(&incoming->reader);
    if (header->slice >= op->stage.slice_count || slice_rail(comm, header->slice) != comm->share_index) {
        return data_set_fault(incoming, "a slice that the operation does not have", error);
    }
    struct exec_lane *lane = incoming->feeds;
    const char *fault = NULL;
    enum match progress = match_progress(lane, op, header, &fault);
    if (fault != NULL) {
        return data_set_fault(incoming, fault, error);
    }
    if (progress != MATCH_READY) {
        return progress;
    }
    const struct coll_transfer *receive = lane_next_receive(lane);
    if (header->round < lane->round || receive == NULL || !expected_later(lane, incoming->reader.node)) {
        return data_set_fault(incoming, "data that nothing waits for", error);
    }
    if (receive->node != incoming->reader.node) {
        return MATCH_WAIT;
    }
    if (comes_elsewhere(incoming, lane)) {
        return data_set_fault(incoming, "a slice on two streams at once", error);
    }
    if (!size_agrees(lane, op, receive, header->payload_bytes)) {
        return wrong_size(incoming, op, lane_message_elements(lane, receive), now_ns, error);
    }
    incoming->lane = lane;
    return MATCH_READY;
}

static enum match match_agreement(const struct data_reader *incoming, const struct exec_op *op,
                                  struct error *error)
{
    const struct data_header *header = &incoming->header;
    const struct exec_agreement *agreement = &op->agreement;
    if (!op->agrees) {
        return data_set_fault(incoming, "a slice that the operation does not have", error);
    }
    if (!agreement->begun || (!agreement->done && header->round > agreement->round)) {
        return MATCH_WAIT;
    }
    if (agreement->done || agreement->received || header->round < agreement->round ||
        incoming->reader.node != agreement->from) {
        return data_set_fault(incoming, "data that nothing waits for", error);
    }
    if (header->payload_bytes != 0) {
        return data_set_fault(incoming, "a message of another size than agreed", error);
    }
    return MATCH_READY;
}

enum match data_match(struct data_reader *incoming, uint64_t now_ns, struct error *error)
{
    const struct exec_comm *comm = comm_of(&incoming->reader);
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
    struct exec_op *op = comm_find_op(comm, header->seq);
    if (op == NULL && header->seq <= comm->last_seq) {
        if (comm->share_index > 0) {
            return MATCH_WAIT; /* an operation with more slices than ours: rail 0 finds the difference */
        }
        return data_set_fault(incoming, "data of it although it has ended", error);
    }
    if (op == NULL) {
        return MATCH_WAIT;
    }
    const char *field = header_difference(header, op);
    if (field != NULL) {
        char how[128];
        (void)snprintf(how, sizeof how, "they differ in: %s", field);
        return set_disagreement(incoming, op, how, now_ns);
    }
    if (incoming->is_agreement) {
        return match_agreement(incoming, op, error);
    }
    return op == comm->first_op ? match_lane(incoming, op, now_ns, error)
                                : data_set_fault(incoming, "data of it although its data are done", error);
}

/* --- Data that wait --- */

/* Whether the message is the only one that this node gets of the operation, and comes from the root's node.
 */
static bool is_of_root(const struct data_reader *incoming, const struct data_header *header)
{
    const struct exec_comm *comm = comm_of(&incoming->reader);
    const struct op_terms *terms = &header->terms;
    return op_kind_is_from_root(terms->kind) && header->comm_id == comm->map->comm_id && header->slice == 0 &&
           !terms->has_layouts && terms->root_rank < comm->map->ranks.size &&
           comm->map->node_of_rank[terms->root_rank] == incoming->reader.node;
}

/* Returns whether the next message may be looked at. */
static bool tell_early(struct data_reader *incoming, const struct data_header *header, const uint8_t *payload)
{
    const struct exec_comm *comm = comm_of(&incoming->reader);
    bool over = header->seq <= comm->queued_seq || header->seq <= incoming->early_seq;
    if (over || !is_of_root(incoming, header)) {
        return over;
    }
    if (!comm->handler.early(comm->handler.context, header->seq, &header->terms, payload,
                             header->payload_bytes)) {
        return false;
    }
    incoming->early_seq = header->seq;
    return true;
}

void data_waits(struct stream_reader *reader, const uint8_t *bytes, size_t size)
{
    struct data_reader *incoming = data_of(reader);
    const struct exec_comm *comm = comm_of(reader);
    struct data_header header = incoming->header;
    const char *what;
    bool may = comm->handler.early != NULL && !comm->failed && !incoming->is_agreement &&
               reader->in_message && reader->taken_bytes == 0;
    while (may && size >= header.payload_bytes && tell_early(incoming, &header, bytes)) {
        bytes += header.payload_bytes;
        size -= (size_t)header.payload_bytes;
        may = size >= DATA_HEADER_BYTES && data_header_decode(bytes, &header, &what) == STATUS_OK;
        bytes += may ? DATA_HEADER_BYTES : 0;
        size -= may ? DATA_HEADER_BYTES : 0;
    }
}
