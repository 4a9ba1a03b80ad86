#include <stdlib.h>
#include <string.h>

#include <utlist.h>

#include "daemon/p2p/p2p_internal.h"

/*
 * Sending to another node. A communicator has these streams to each node: one of envelopes, with eager
 * payloads; one of replies; and one for each payload of a rendezvous. Data for which the network has no room
 * waits here, in order. Each acknowledged send makes room.
 */

/* An eager payload, until it is acknowledged. */
struct eager_block {
    struct p2p_out *out;
    uint32_t bytes;
    unsigned char payload[];
};

struct p2p_link *link_new(struct p2p_comm *comm, uint32_t node)
{
    struct p2p_link *link = calloc(1, sizeof *link);
    if (link != NULL) {
        link->comm = comm;
        link->node = node;
        link->envelopes.link = link;
        link->replies.link = link;
    }
    return link;
}

static void free_if_unused(struct p2p_link *link)
{
    if (link->comm == NULL && link->envelopes.in_flight == 0 && link->replies.in_flight == 0) {
        free(link);
    }
}

static void notes_free(struct p2p_out *out)
{
    struct p2p_note *note, *next;
    DL_FOREACH_SAFE(out->notes, note, next)
    {
        free(note);
    }
    out->notes = NULL;
    out->note_count = 0;
}

void link_release(struct p2p_link *link)
{
    struct p2p_departure *departure, *next;
    if (link == NULL) {
        return;
    }
    DL_FOREACH_SAFE(link->departures, departure, next)
    {
        free(departure);
    }
    notes_free(&link->envelopes);
    notes_free(&link->replies);
    id_table_free(&link->sends);
    id_table_free(&link->arrivals);
    link->comm = NULL;
    free_if_unused(link);
}

static void out_reset(struct p2p_out *out, bool give_up)
{
    if (out->stream != NULL && give_up) {
        net_stream_reset(out->stream);
    } else if (out->stream != NULL) {
        net_stream_finish(out->stream);
    }
    out->stream = NULL;
    notes_free(out);
}

void link_reset(struct p2p_link *link, bool give_up)
{
    link->is_lost = true;
    out_reset(&link->envelopes, give_up);
    out_reset(&link->replies, give_up);
    if (link->flushing) {
        link->flushing = false;
        DL_DELETE(link->comm->flushing, link);
    }
}

/* --- The network's room --- */

static bool out_has_room(const struct p2p_out *out)
{
    return !out->link->is_lost && out->in_flight < P2P_IN_FLIGHT_MAX &&
           out->in_flight_bytes < P2P_IN_FLIGHT_MAX_BYTES;
}

/* Whether there is a connection to the node. If it is missing, it is asked for. */
static bool is_linked(const struct p2p_comm *comm, uint32_t node)
{
    return comm->handler.need == NULL ||
           comm->handler.need(comm->handler.context, node, false, comm->p2p->now_ns);
}

/* Returns false if it must be tried again, or if the connection is lost, which the mesh reports. */
static bool out_send(struct p2p_out *out, const struct message_header *header, const void *payload,
                     uint32_t payload_bytes, net_sent_function *sent, void *context)
{
    struct p2p_link *link = out->link;
    const struct p2p_comm *comm = link->comm;
    uint8_t bytes[MESSAGE_HEADER_BYTES];
    struct error error;
    enum status status = STATUS_OK;
    message_header_encode(header, bytes);
    if (out->stream == NULL && !is_linked(comm, link->node)) {
        return false;
    }
    if (out->stream == NULL) {
        status = net_stream_open_for(comm->p2p->net, comm->map->peers[link->node], NET_STREAM_MESSAGE,
                                     comm->map->owner_uid, comm->map->account, &out->stream, &error);
    }
    if (status == STATUS_OK) {
        status = net_stream_send(out->stream, bytes, sizeof bytes, payload, payload_bytes, sent, context);
    }
    if (status == STATUS_OK) {
        out->in_flight++;
        out->in_flight_bytes += payload_bytes;
    } else if (status == STATUS_UNREACHABLE) {
        link->is_lost = true;
    }
    return status == STATUS_OK;
}

static void flush_list_add(struct p2p_link *link)
{
    if (!link->flushing) {
        link->flushing = true;
        DL_APPEND(link->comm->flushing, link);
    }
}

static void link_flush_soon(struct p2p_link *link)
{
    flush_list_add(link);
    p2p_comm_set_busy(link->comm);
}

static void out_sent(struct p2p_out *out, uint32_t payload_bytes)
{
    struct p2p_link *link = out->link;
    out->in_flight--;
    out->in_flight_bytes -= payload_bytes;
    if (link->comm == NULL) {
        free_if_unused(link);
    } else if (out->notes != NULL || link->queued != NULL) {
        link_flush_soon(link);
    }
}

static void note_sent(void *context, enum status result, uint64_t now_ns)
{
    (void)result; /* the loss of a connection ends the communicator */
    (void)now_ns;
    out_sent(context, 0);
}

static void eager_sent(void *context, enum status result, uint64_t now_ns)
{
    struct eager_block *block = context;
    (void)result;
    (void)now_ns;
    out_sent(block->out, block->bytes);
    free(block);
}

/* --- Notes --- */

static void notes_flush(struct p2p_out *out)
{
    bool had_notes = out->notes != NULL;
    while (out->notes != NULL && out_has_room(out) &&
           out_send(out, &out->notes->header, NULL, 0, note_sent, out)) {
        struct p2p_note *note = out->notes;
        DL_DELETE(out->notes, note);
        out->note_count--;
        free(note);
    }
    struct p2p_link *link = out->link;
    if (had_notes && out->notes == NULL && link->envelopes_in != NULL) { /* it may wait for fewer replies */
        (void)stream_reader_resume(link->envelopes_in, link->comm->p2p->now_ns);
    }
}

static void out_say(struct p2p_out *out, const struct message_header *header)
{
    struct p2p_comm *comm = out->link->comm;
    if (comm->failed || out->link->is_lost ||
        (out->notes == NULL && out_has_room(out) && out_send(out, header, NULL, 0, note_sent, out))) {
        return;
    }
    struct p2p_note *note = calloc(1, sizeof *note);
    if (note == NULL) {
        p2p_comm_fail(comm, &p2p_no_memory);
        return;
    }
    note->header = *header;
    DL_APPEND(out->notes, note);
    out->note_count++;
    link_flush_soon(out->link);
}

void link_reply(struct p2p_link *link, const struct message_header *header)
{
    out_say(&link->replies, header);
}

void link_answer(const struct p2p_arrival *arrival, enum message_kind kind, enum status status,
                 enum dtype dtype, uint64_t count_elements)
{
    struct message_header header = {.kind = kind,
                                    .dtype = dtype,
                                    .status = status,
                                    .comm_id = arrival->comm->map->comm_id,
                                    .id = arrival->by_id.id,
                                    .source_rank = arrival->source_rank,
                                    .to_rank = arrival->to_rank,
                                    .tag = arrival->tag,
                                    .count_elements = count_elements};
    out_say(&arrival->link->replies, &header);
}

/* --- Envelopes --- */

static struct message_header header_of(const struct p2p_message *send, enum message_kind kind, uint64_t id,
                                       uint64_t payload_bytes)
{
    return (struct message_header){.kind = kind,
                                   .dtype = (enum dtype)send->dtype,
                                   .comm_id = send->comm->map->comm_id,
                                   .id = id,
                                   .source_rank = send->rank,
                                   .to_rank = send->peer_rank,
                                   .tag = send->tag,
                                   .count_elements = send->count_elements,
                                   .payload_bytes = payload_bytes};
}

void link_withdraw(struct p2p_link *link, const struct p2p_message *send, enum status status)
{
    struct message_header header = header_of(send, MESSAGE_WITHDRAW, send->by_id.id, 0);
    header.status = status;
    out_say(&link->envelopes, &header);
}

static bool send_eager(struct p2p_link *link, struct p2p_message *send)
{
    uint32_t bytes = (uint32_t)message_bytes(send, send->count_elements);
    struct message_header header = header_of(send, MESSAGE_EAGER, link->sent_count + 1, bytes);
    struct eager_block *block = malloc(sizeof *block + bytes);
    if (block == NULL) {
        return false;
    }
    block->out = &link->envelopes;
    block->bytes = bytes;
    if (bytes > 0) {
        memcpy(block->payload, send->buffer, bytes);
    }
    if (!out_send(&link->envelopes, &header, block->payload, bytes, eager_sent, block)) {
        free(block);
        return false;
    }
    link->sent_count++;
    send->pair->sent_bytes += credit_of(bytes);
    message_end(send, &p2p_fine);
    return true;
}

static bool send_envelope(struct p2p_link *link, struct p2p_message *send)
{
    struct message_header header = header_of(send, MESSAGE_ENVELOPE, link->sent_count + 1, 0);
    send->by_id = (struct p2p_id){.id = header.id};
    if (!id_table_add(&link->sends, &send->by_id)) {
        return false;
    }
    if (!out_send(&link->envelopes, &header, NULL, 0, note_sent, &link->envelopes)) {
        id_table_remove(&link->sends, &send->by_id);
        return false;
    }
    link->sent_count++;
    DL_DELETE2(link->queued, send, wait_prev, wait_next);
    send->state = MESSAGE_OFFERED;
    return true;
}

static void queued_flush(struct p2p_link *link)
{
    bool sent = true;
    while (sent && link->queued != NULL && link->envelopes.notes == NULL && out_has_room(&link->envelopes)) {
        struct p2p_message *send = link->queued;
        bool failed = send->result != NULL;
        uint32_t cost =
            message_is_eager(send) && !failed ? credit_of(message_bytes(send, send->count_elements)) : 0;
        bool eager = cost > 0 && send->pair->sent_bytes + cost <= link->comm->credit_bytes;
        sent = eager ? send_eager(link, send) : send_envelope(link, send);
        if (sent && failed) {
            message_give_up(send, send->result, true);
        }
    }
}

void link_queue_send(struct p2p_link *link, struct p2p_message *send)
{
    bool first = link->queued == NULL;
    send->state = MESSAGE_QUEUED;
    DL_APPEND2(link->queued, send, wait_prev, wait_next);
    if (first) {
        queued_flush(link);
    }
    if (link->queued != NULL) {
        link_flush_soon(link);
    }
}

/* --- Payloads --- */

enum status link_open_payload(struct p2p_message *send, const void *payload, uint64_t payload_bytes,
                              net_sent_function *sent)
{
    struct p2p_comm *comm = send->comm;
    uint32_t node = comm->map->node_of_rank[send->peer_rank];
    uint64_t bytes = message_bytes(send, send->count_elements);
    struct message_header header = header_of(send, MESSAGE_DATA, send->by_id.id, bytes);
    uint8_t encoded[MESSAGE_HEADER_BYTES];
    struct net_stream *stream = NULL;
    struct error error;
    message_header_encode(&header, encoded);
    if (!is_linked(comm, node)) {
        return STATUS_IN_PROGRESS;
    }
    enum status status = net_stream_open_for(comm->p2p->net, comm->map->peers[node], NET_STREAM_MESSAGE,
                                             comm->map->owner_uid, comm->map->account, &stream, &error);
    if (status != STATUS_OK) {
        return status;
    }
    status = net_stream_send(stream, encoded, sizeof encoded, payload, (size_t)payload_bytes, sent, send);
    if (status != STATUS_OK) {
        net_stream_reset(stream);
        return status;
    }
    send->transfer->stream = stream;
    return STATUS_OK;
}

void link_payload_over(struct p2p_message *send, bool delivered)
{
    struct p2p_transfer *transfer = send->transfer;
    struct p2p_link *link = send->comm->links[send->comm->map->node_of_rank[send->peer_rank]];
    if (transfer == NULL) {
        return;
    }
    if (transfer->stream != NULL && delivered) {
        net_stream_finish(transfer->stream);
    } else if (transfer->stream != NULL) {
        net_stream_reset(transfer->stream);
    }
    transfer->stream = NULL;
    if (transfer->has_slot) {
        transfer->has_slot = false;
        link->payloads--;
        if (link->accepted != NULL) {
            link_flush_soon(link);
        }
    }
}

/* If the stream was lost or stopped, the cause arrives elsewhere: from the mesh, or as a reply. */
static void payload_sent(void *context, enum status result, uint64_t now_ns)
{
    struct p2p_message *send = context;
    send->transfer->in_network = false;
    if (send->state == MESSAGE_LEAVING) {
        message_leaving_step(send, now_ns);
        return;
    }
    link_payload_over(send, result == STATUS_OK);
    if (result == STATUS_OK) {
        message_end(send, &p2p_fine);
    }
}

/* Starts a payload whose turn has come. Returns false if the network has no stream for it now. */
static bool start_payload(struct p2p_link *link, struct p2p_message *send)
{
    struct p2p_transfer *transfer = message_transfer(send);
    if (transfer == NULL) {
        return false;
    }
    if (!send->on_gpu) {
        enum status status =
            link_open_payload(send, send->buffer, message_bytes(send, send->count_elements), payload_sent);
        if (status != STATUS_OK) {
            link->is_lost |= status == STATUS_UNREACHABLE;
            return false;
        }
        transfer->in_network = true;
    }
    DL_DELETE2(link->accepted, send, wait_prev, wait_next);
    transfer->has_slot = true;
    link->payloads++;
    send->state = MESSAGE_SENDING;
    if (send->on_gpu) {
        message_activate(send);
    }
    return true;
}

static void accepted_flush(struct p2p_link *link)
{
    while (link->accepted != NULL && !link->is_lost && link->payloads < P2P_PAYLOADS_MAX &&
           start_payload(link, link->accepted)) {
    }
}

void link_accepted(struct p2p_message *send)
{
    struct p2p_link *link = send->comm->links[send->comm->map->node_of_rank[send->peer_rank]];
    send->state = MESSAGE_ACCEPTED;
    DL_APPEND2(link->accepted, send, wait_prev, wait_next);
    link_flush_soon(link);
}

/* --- Flushing --- */

/* Whether something waits, and no acknowledgement will wake it. */
static bool is_stuck(const struct p2p_link *link)
{
    bool envelopes = link->envelopes.notes != NULL || link->queued != NULL;
    return !link->is_lost && ((envelopes && link->envelopes.in_flight == 0) ||
                              (link->replies.notes != NULL && link->replies.in_flight == 0) ||
                              (link->accepted != NULL && link->payloads < P2P_PAYLOADS_MAX));
}

void link_flush(struct p2p_link *link)
{
    struct p2p_comm *comm = link->comm;
    if (link->flushing) {
        link->flushing = false;
        DL_DELETE(comm->flushing, link);
    }
    notes_flush(&link->replies);
    notes_flush(&link->envelopes);
    if (comm->failed) {
        return;
    }
    queued_flush(link);
    accepted_flush(link);
    if (is_stuck(link)) {
        flush_list_add(link);
        p2p_retry(comm->p2p);
    }
}

void links_flush(struct p2p_comm *comm)
{
    for (uint32_t i = 0; i < comm->map->ranks.node_count && comm->flushing != NULL; i++) {
        link_flush(comm->flushing);
    }
}
