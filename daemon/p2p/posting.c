#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include <utlist.h>

#include "daemon/p2p/p2p_internal.h"

/* Posting, arrival, and matching of messages. */

_Static_assert(sizeof(struct p2p_message) <= 176, "10^5 of them fit the default budget of a user");

/* --- Stored messages --- */

/*
 * Gives the pair its credit back. A remote sender's node is notified each time that half of the credit was
 * taken.
 */
static void return_credit(const struct p2p_arrival *arrival)
{
    struct p2p_comm *comm = arrival->comm;
    uint32_t bytes = credit_of(arrival->payload_bytes);
    if (comm->failed) {
        return;
    }
    if (arrival->link == NULL) {
        pair_find(comm, arrival->source_rank, arrival->to_rank)->sent_bytes -= bytes;
        return;
    }
    struct p2p_pair *pair = pair_find(comm, arrival->to_rank, arrival->source_rank);
    pair->taken_bytes += bytes;
    if (pair->taken_bytes >= comm->credit_bytes / 2) {
        struct message_header header = {.kind = MESSAGE_CREDIT,
                                        .dtype = DTYPE_U8,
                                        .comm_id = comm->map->comm_id,
                                        .source_rank = arrival->source_rank,
                                        .to_rank = arrival->to_rank,
                                        .count_elements = pair->taken_bytes};
        pair->kept_bytes -= pair->taken_bytes;
        pair->taken_bytes = 0;
        link_reply(arrival->link, &header);
    }
}

void arrival_free(struct p2p_arrival *arrival)
{
    struct p2p_comm *comm = arrival->comm;
    match_remove_arrival(comm, arrival);
    if (arrival->cut_ns != 0) {
        DL_DELETE(comm->p2p->cut, arrival);
    }
    if (arrival->link != NULL && !arrival->eager) {
        id_table_remove(&arrival->link->arrivals, &arrival->by_id);
    }
    if (arrival->charged_bytes > 0) {
        budget_release(comm->locals[comm->map->ranks.local_of_rank[arrival->to_rank]].account, BUDGET_EARLY,
                       arrival->charged_bytes);
    }
    if (arrival->eager) {
        return_credit(arrival);
    }
    free(arrival->payload);
    free(arrival);
}

/*
 * Refuses a message and tells its sender. The sender of an eager message is not notified, as its send has
 * ended.
 */
static void arrival_refuse(struct p2p_arrival *arrival, const struct error *why)
{
    struct p2p_message *send = arrival->send;
    if (send != NULL) {
        arrival->send = NULL;
        send->arrival = NULL;
        message_end(send, why);
    } else if (!arrival->eager) {
        link_answer(arrival, MESSAGE_REFUSE, why->status, (enum dtype)arrival->dtype, 0);
    }
    arrival_free(arrival);
}

/* Stores an unexpected message. */
static void arrival_store(struct p2p_comm *comm, struct p2p_arrival *arrival)
{
    const struct p2p_local *local = &comm->locals[comm->map->ranks.local_of_rank[arrival->to_rank]];
    uint64_t bytes = P2P_ENVELOPE_COST_BYTES + (arrival->eager ? arrival->payload_bytes : 0);
    struct error why, error;
    if (local->has_left) {
        message_set_left(comm, &error, arrival->to_rank);
        arrival_refuse(arrival, &error);
        return;
    }
    if (arrival->charged_bytes == 0) {
        if (budget_charge(local->account, BUDGET_EARLY, bytes, &why) == STATUS_OK) {
            arrival->charged_bytes = bytes;
        } else if (!arrival->eager) {
            error_set(&error, why.status, "\"%s\": rank %u has no room for another message: %s",
                      comm->map->name, arrival->to_rank, why.text);
            arrival_refuse(arrival, &error);
            return;
        } else { /* its receive ends with LIMIT; the credit limits how many there are */
            arrival->lost = true;
            free(arrival->payload);
            arrival->payload = NULL;
        }
    }
    if (!match_add_arrival(comm, arrival)) {
        bool is_lost = arrival->eager;
        arrival_refuse(arrival, &p2p_no_memory);
        if (is_lost) {
            p2p_comm_fail(comm, &p2p_no_memory);
        }
    }
}

/* --- Matching --- */

static void copy_now(struct p2p_message *receive)
{
    struct p2p_arrival *arrival = receive->arrival;
    struct p2p_message *send = arrival->send;
    size_t bytes = (size_t)message_bytes(receive, receive->received_elements);
    if (bytes > 0) {
        memmove(receive->buffer, send->buffer, bytes);
    }
    arrival->send = NULL;
    message_end(send, &p2p_fine);
    message_end(receive, &p2p_fine);
}

static void start_eager(struct p2p_message *receive)
{
    const struct p2p_arrival *arrival = receive->arrival;
    struct message_pipe *pipe = receive->transfer != NULL ? receive->transfer->pipe : NULL;
    if (pipe != NULL) {
        size_t room_bytes;
        memcpy(message_pipe_room(pipe, &room_bytes), arrival->payload, arrival->payload_bytes);
        message_pipe_stored(pipe, arrival->payload_bytes);
        receive->state = MESSAGE_COPYING;
        message_activate(receive);
        return;
    }
    if (arrival->payload_bytes > 0) {
        memcpy(receive->buffer, arrival->payload, arrival->payload_bytes);
    }
    message_end(receive, &p2p_fine);
}

void message_start_receive(struct p2p_message *receive)
{
    const struct p2p_arrival *arrival = receive->arrival;
    bool has_pipe = receive->transfer != NULL && receive->transfer->pipe != NULL;
    if (arrival->eager) {
        start_eager(receive);
    } else if (arrival->send == NULL) {
        receive->state = MESSAGE_AWAITED;
        link_answer(arrival, MESSAGE_ACCEPT, STATUS_OK, (enum dtype)receive->dtype, receive->count_elements);
    } else if (!has_pipe && message_is_eager(arrival->send)) {
        copy_now(receive);
    } else {
        receive->state = MESSAGE_COPYING;
        receive->moved_bytes = 0;
        message_activate(receive);
    }
}

static void refuse(struct p2p_message *receive)
{
    struct p2p_arrival *arrival = receive->arrival;
    struct p2p_message *send = arrival->send;
    struct error error;
    message_set_mismatch(receive->comm, &error, arrival, (enum dtype)receive->dtype, receive->count_elements);
    if (send != NULL) {
        arrival->send = NULL;
        message_end(send, message_is_eager(send) ? &p2p_fine : &error);
    } else if (!arrival->eager) {
        link_answer(arrival, MESSAGE_REFUSE, STATUS_MISMATCH, (enum dtype)receive->dtype,
                    receive->count_elements);
    }
    message_end(receive, &error);
}

/* The receive takes the message. Neither may be in a list of waiting ones any more. */
static void take(struct p2p_message *receive, struct p2p_arrival *arrival)
{
    struct p2p_comm *comm = receive->comm;
    receive->state = MESSAGE_MATCHED;
    receive->source_rank = arrival->source_rank;
    trace_message_matched(comm->map->comm_id, 0, OP_KIND_RECEIVE, receive->rank, receive->tag,
                          arrival->source_rank);
    receive->arrival = arrival;
    arrival->receive = receive;
    if (arrival->send != NULL) {
        arrival->send->state = MESSAGE_TAKEN;
    }
    if (arrival->lost) {
        struct error error;
        error_set(&error, STATUS_LIMIT, "\"%s\": there was no room for what rank %u sent to rank %u, tag %u",
                  comm->map->name, arrival->source_rank, arrival->to_rank, arrival->tag);
        message_end(receive, &error);
        return;
    }
    if (arrival->dtype != receive->dtype || arrival->count_elements > receive->count_elements) {
        refuse(receive);
        return;
    }
    receive->received_elements = arrival->count_elements;
    if (!staging_needs_pipe(receive) && message_may_touch(receive)) {
        message_start_receive(receive);
    } else {
        message_activate(receive);
    }
}

void message_arrive(struct p2p_comm *comm, struct p2p_arrival *arrival)
{
    struct p2p_message *receive = match_receive(comm, arrival);
    if (receive != NULL) {
        match_remove_receive(comm, receive);
        take(receive, arrival);
    } else {
        arrival_store(comm, arrival);
    }
}

/* --- Sends --- */

static struct p2p_arrival arrival_of(const struct p2p_message *send)
{
    return (struct p2p_arrival){.comm = send->comm,
                                .source_rank = send->rank,
                                .to_rank = send->peer_rank,
                                .tag = send->tag,
                                .dtype = send->dtype,
                                .count_elements = send->count_elements};
}

/*
 * Within this node: copies the payload, so that the send ends. Returns false without credit, memory or room.
 */
static bool send_eagerly(struct p2p_message *send, struct p2p_arrival *arrival)
{
    struct p2p_comm *comm = send->comm;
    uint32_t bytes = (uint32_t)message_bytes(send, send->count_elements);
    struct budget_account *account = comm->locals[comm->map->ranks.local_of_rank[send->peer_rank]].account;
    uint64_t cost_bytes = P2P_ENVELOPE_COST_BYTES + bytes;
    struct error why;
    if (send->pair->sent_bytes + credit_of(bytes) > comm->credit_bytes ||
        budget_charge(account, BUDGET_EARLY, cost_bytes, &why) != STATUS_OK) {
        return false;
    }
    arrival->payload = malloc(bytes > 0 ? bytes : 1);
    if (arrival->payload == NULL) {
        budget_release(account, BUDGET_EARLY, cost_bytes);
        return false;
    }
    if (bytes > 0) {
        memcpy(arrival->payload, send->buffer, bytes);
    }
    arrival->eager = true;
    arrival->payload_bytes = bytes;
    arrival->charged_bytes = cost_bytes;
    send->pair->sent_bytes += credit_of(bytes);
    message_end(send, &p2p_fine);
    message_arrive(comm, arrival);
    return true;
}

static enum status post_local_send(struct p2p_message *send, struct error *error)
{
    struct p2p_comm *comm = send->comm;
    struct p2p_arrival *arrival = malloc(sizeof *arrival);
    if (arrival == NULL) {
        return error_set(error, STATUS_NO_MEMORY, "\"%s\": no memory for a message", comm->map->name);
    }
    *arrival = arrival_of(send);
    const struct p2p_message *receive = match_receive(comm, arrival);
    bool now = receive != NULL && !receive->on_gpu && message_may_touch(receive);
    if (!now && !send->on_gpu && message_is_eager(send) && send_eagerly(send, arrival)) {
        return STATUS_OK;
    }
    arrival->send = send;
    send->arrival = arrival;
    message_arrive(comm, arrival);
    return STATUS_OK;
}

/* The send's buffer may be accessed now. It is on the host if the payload goes with the envelope. */
static enum status post_send(struct p2p_message *send, struct error *error)
{
    struct p2p_comm *comm = send->comm;
    send->state = MESSAGE_ARRIVED;
    if (comm->map->ranks.local_of_rank[send->peer_rank] != UINT32_MAX) {
        return post_local_send(send, error);
    }
    link_queue_send(comm->links[comm->map->node_of_rank[send->peer_rank]], send);
    return STATUS_OK;
}

void message_post_held(struct p2p_message *send)
{
    struct error error;
    message_unhold(send);
    if (post_send(send, &error) != STATUS_OK) {
        message_end(send, &error);
    }
}

void message_post_failed(struct p2p_message *send, const struct error *why)
{
    message_set_result(send, why);
    message_post_held(send);
    if (send->state != MESSAGE_QUEUED) { /* the link gives it up behind its envelope */
        message_give_up(send, send->result, true);
    }
}

/* Whether a send must be copied from its GPU before it is posted. */
static bool is_copied_first(const struct p2p_message *send)
{
    struct p2p_arrival key = arrival_of(send);
    bool is_here = send->comm->map->ranks.local_of_rank[send->peer_rank] != UINT32_MAX;
    return staging_is_small(send) && !(is_here && match_receive(send->comm, &key) != NULL);
}

/* --- Posting --- */

static bool is_gone(const struct p2p_comm *comm, const struct p2p_message *message)
{
    if (message->peer_rank == COMM_ANY_SOURCE_RANK) {
        return comm->gone_count > 0 && comm->gone_count == comm->map->ranks.size - 1;
    }
    return comm->gone[message->peer_rank];
}

static enum status post_receive(struct p2p_message *receive, struct error *error)
{
    struct p2p_comm *comm = receive->comm;
    struct p2p_arrival *arrival = match_take_arrival(comm, receive);
    if (arrival != NULL) {
        take(receive, arrival);
        return STATUS_OK;
    }
    if (is_gone(comm, receive)) {
        message_set_left(comm, error, receive->peer_rank);
        return STATUS_RANK_LOST;
    }
    if (!match_add_receive(comm, receive)) {
        return error_set(error, STATUS_NO_MEMORY, "\"%s\": no memory for a message", comm->map->name);
    }
    receive->state = MESSAGE_POSTED;
    return STATUS_OK;
}

static enum status post(struct p2p_message *message, struct error *error)
{
    struct p2p_comm *comm = message->comm;
    struct p2p_pair *pair = message->pair;
    if (!message->sends) {
        return post_receive(message, error);
    }
    if (is_gone(comm, message)) {
        message_set_left(comm, error, message->peer_rank);
        return STATUS_RANK_LOST;
    }
    if (pair->held == NULL && message_may_touch(message) && !is_copied_first(message)) {
        return post_send(message, error);
    }
    message->state = MESSAGE_HELD;
    DL_APPEND2(pair->held, message, wait_prev, wait_next);
    if (pair->held == message) {
        message_activate(message);
    }
    return STATUS_OK;
}

static void message_init(struct p2p_message *message, struct p2p_comm *comm, const struct p2p_call *call)
{
    *message = (struct p2p_message){.comm = comm,
                                    .buffer = call->buffer,
                                    .count_elements = call->count_elements,
                                    .waits = call->waits,
                                    .memory = call->memory,
                                    .rank = call->rank,
                                    .peer_rank = call->peer_rank,
                                    .tag = call->tag,
                                    .gpu = call->gpu,
                                    .state = MESSAGE_ARRIVED,
                                    .dtype = (uint8_t)call->dtype,
                                    .wait_count = (uint8_t)call->wait_count,
                                    .sends = call->sends,
                                    .on_gpu = call->on_gpu};
}

enum status p2p_post(struct p2p_comm *comm, const struct p2p_call *call, struct p2p_message *message,
                     struct error *error)
{
    struct error why;
    assert(call->wait_count <= UINT8_MAX);
    if (comm->failed) {
        return error_set(error, comm->cause.status, "%s", comm->cause.text);
    }
    struct p2p_pair *pair = pair_make(comm, call->rank, call->peer_rank, false, &why);
    if (pair == NULL) {
        return error_set(error, why.status, "\"%s\", rank %u: %s", comm->map->name, call->rank, why.text);
    }
    message_init(message, comm, call);
    message->pair = pair;
    if (pair->messages == NULL) {
        DL_APPEND(comm->busy_pairs, pair);
    }
    DL_APPEND(pair->messages, message);
    comm->count++;
    enum status status = post(message, error);
    if (status != STATUS_OK) {
        DL_DELETE(pair->messages, message);
        if (pair->messages == NULL) {
            DL_DELETE(comm->busy_pairs, pair);
        }
        comm->count--;
        return status;
    }
    p2p_comm_set_busy(comm);
    return STATUS_OK;
}

uint32_t p2p_message_source(const struct p2p_message *message)
{
    return message->source_rank;
}

uint64_t p2p_message_count(const struct p2p_message *message)
{
    return message->received_elements;
}
