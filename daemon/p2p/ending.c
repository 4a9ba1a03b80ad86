#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <utlist.h>

#include "daemon/p2p/p2p_internal.h"

/* How messages end, early or not, and how the other side is notified. */

/* --- Lists of messages that have work, or wait for memory --- */

static struct p2p_message **list_of(struct p2p_message *message)
{
    switch ((enum message_list)message->list) {
    case LIST_ACTIVE:
        return &message->comm->active;
    case LIST_CROWDED_OUT:
        return &message->comm->crowded[MESSAGE_WAY_OUT];
    case LIST_CROWDED_IN:
        return &message->comm->crowded[MESSAGE_WAY_IN];
    case LIST_NONE:
        break;
    }
    return NULL;
}

void message_rest(struct p2p_message *message)
{
    struct p2p_comm *comm = message->comm;
    struct p2p_message **list = list_of(message);
    if (list != NULL) {
        if (comm->cursor == message) {
            comm->cursor = message->active_next;
        }
        DL_DELETE2(*list, message, active_prev, active_next);
        message->list = LIST_NONE;
    }
}

void message_activate(struct p2p_message *message)
{
    if (message->list != LIST_ACTIVE) {
        message_rest(message);
        message->list = LIST_ACTIVE;
        DL_APPEND2(message->comm->active, message, active_prev, active_next);
    }
    p2p_comm_set_busy(message->comm);
}

void message_crowd(struct p2p_message *message, enum message_way way)
{
    message_rest(message);
    message->list = way == MESSAGE_WAY_OUT ? LIST_CROWDED_OUT : LIST_CROWDED_IN;
    if (message->is_next) {
        DL_PREPEND2(message->comm->crowded[way], message, active_prev, active_next);
    } else {
        DL_APPEND2(message->comm->crowded[way], message, active_prev, active_next);
    }
    message->is_next = false;
}

/* --- Results --- */

void p2p_result_drop(struct p2p_result *result)
{
    if (result != NULL && --result->uses == 0) {
        free(result);
    }
}

/* The communicator's last result, if it is the same; otherwise a new one. Null without memory. */
static struct p2p_result *result_get(struct p2p_comm *comm, const struct error *error)
{
    struct p2p_result *last = comm->last_result;
    if (last != NULL && last->error.status == error->status && strcmp(last->error.text, error->text) == 0) {
        last->uses++;
        return last;
    }
    struct p2p_result *result = malloc(sizeof *result);
    if (result != NULL) {
        p2p_result_drop(last);
        result->error = *error;
        result->uses = 2; /* the message's, and last_result's */
        comm->last_result = result;
    }
    return result;
}

/* Error texts are large, so equal results share one. */
void message_set_result(struct p2p_message *message, const struct error *result)
{
    struct p2p_comm *comm = message->comm;
    if (message->result != NULL) {
        return;
    }
    if (result->status == STATUS_OK) {
        message->result = &p2p_fine;
    } else if (result == &comm->cause) {
        message->result = result;
    } else {
        const struct p2p_result *own = result_get(comm, result);
        message->own_result = own != NULL;
        message->result = own != NULL ? &own->error : &p2p_no_memory;
    }
}

static const char *name_of(bool sends)
{
    return sends ? "send" : "recv";
}

/* Call it after the last use of the message's buffer. Only this message fails: the other rank got what the
 * memory held. */
static bool memory_failed(const struct p2p_message *message, struct error *error)
{
    if (message->memory == NULL || memory_check(message->memory, error) == STATUS_OK) {
        return false;
    }
    (void)error_prefix(error, "%s on \"%s\": rank %u", name_of(message->sends), message->comm->map->name,
                       message->rank);
    return true;
}

void message_set_peer_ended(const struct p2p_comm *comm, struct error *error, enum status status, bool sends,
                            uint32_t rank, uint32_t tag)
{
    error_set(error, status, "\"%s\": the %s of rank %u (node %s), tag %u, ended first: %s", comm->map->name,
              name_of(sends), rank, p2p_node_name(comm, rank), tag, status_text(status));
}

void message_set_left(const struct p2p_comm *comm, struct error *error, uint32_t peer_rank)
{
    char pid[24] = "";
    if (peer_rank == COMM_ANY_SOURCE_RANK) {
        error_set(error, STATUS_RANK_LOST, "recv from any rank on \"%s\": every other rank has left",
                  comm->map->name);
        return;
    }
    if (comm->pids[peer_rank] != 0) {
        (void)snprintf(pid, sizeof pid, " (pid %d)", (int)comm->pids[peer_rank]);
    }
    error_set(error, STATUS_RANK_LOST, "\"%s\": rank %u%s of node %s has left", comm->map->name, peer_rank,
              pid, p2p_node_name(comm, peer_rank));
}

void message_set_mismatch(const struct p2p_comm *comm, struct error *error, const struct p2p_arrival *sent,
                          enum dtype dtype, uint64_t count_elements)
{
    error_set(error, STATUS_MISMATCH,
              "\"%s\": rank %u sent %llu %s to rank %u, tag %u; its recv has room for %llu %s",
              comm->map->name, sent->source_rank, (unsigned long long)sent->count_elements,
              dtype_text((enum dtype)sent->dtype), sent->to_rank, sent->tag,
              (unsigned long long)count_elements, dtype_text(dtype));
}

/* --- The end --- */

struct p2p_transfer *message_transfer(struct p2p_message *message)
{
    if (message->transfer == NULL) {
        message->transfer = calloc(1, sizeof *message->transfer);
    }
    return message->transfer;
}

static void transfer_free(struct p2p_message *message)
{
    struct p2p_transfer *transfer = message->transfer;
    if (transfer != NULL) {
        staging_free_pipe(message);
        free(transfer->copy);
        free(transfer);
        message->transfer = NULL;
    }
}

void message_unhold(struct p2p_message *send)
{
    struct p2p_pair *pair = send->pair;
    bool first = pair->held == send;
    DL_DELETE2(pair->held, send, wait_prev, wait_next);
    if (first && pair->held != NULL) {
        message_activate(pair->held);
    }
}

static struct p2p_link *link_of(const struct p2p_message *send)
{
    return send->comm->links[send->comm->map->node_of_rank[send->peer_rank]];
}

/* Removes the message from the lists of waiting messages. */
static void unlist(struct p2p_message *message)
{
    switch ((enum message_state)message->state) {
    case MESSAGE_HELD:
        message_unhold(message);
        break;
    case MESSAGE_QUEUED:
        DL_DELETE2(link_of(message)->queued, message, wait_prev, wait_next);
        break;
    case MESSAGE_ACCEPTED:
        DL_DELETE2(link_of(message)->accepted, message, wait_prev, wait_next);
        id_table_remove(&link_of(message)->sends, &message->by_id);
        break;
    case MESSAGE_OFFERED:
    case MESSAGE_SENDING:
        id_table_remove(&link_of(message)->sends, &message->by_id);
        break;
    case MESSAGE_POSTED:
        match_remove_receive(message->comm, message);
        break;
    case MESSAGE_ARRIVED:
    case MESSAGE_MATCHED:
    case MESSAGE_AWAITED:
    case MESSAGE_RECEIVING:
    case MESSAGE_COPYING:
    case MESSAGE_TAKEN:
    case MESSAGE_LEAVING:
    case MESSAGE_ENDED:
        break;
    }
}

static void leave_pair(struct p2p_message *message)
{
    struct p2p_pair *pair = message->pair;
    DL_DELETE(pair->messages, message);
    if (pair->messages == NULL) {
        DL_DELETE(message->comm->busy_pairs, pair);
    }
}

static bool is_over(const struct p2p_message *message)
{
    return message->state == MESSAGE_LEAVING || message->state == MESSAGE_ENDED;
}

void message_end(struct p2p_message *message, const struct error *result)
{
    struct p2p_comm *comm = message->comm;
    struct error fault;
    if (message->state == MESSAGE_ENDED) {
        return;
    }
    if (message->state == MESSAGE_LEAVING) {
        DL_DELETE(comm->leaving, message);
    } else {
        unlist(message);
        leave_pair(message);
    }
    message_rest(message);
    if (message->is_next) {
        staging_wake_next(comm, message->sends ? MESSAGE_WAY_OUT : MESSAGE_WAY_IN);
    }
    message->state = MESSAGE_ENDED;
    bool failed = result->status == STATUS_OK && memory_failed(message, &fault);
    message_set_result(message, failed ? &fault : result);
    transfer_free(message);
    if (message->arrival != NULL && !message->sends) {
        arrival_free(message->arrival);
    }
    message->arrival = NULL;
    DL_APPEND(comm->ended, message);
    p2p_comm_set_busy(comm);
}

/* Whether a GPU or the network still uses its buffer. */
static bool is_in_use(const struct p2p_message *message)
{
    return message->transfer != NULL && (message->transfer->in_network || message->transfer->pipe != NULL);
}

/* The message has its result, but stays while its buffer is in use. */
static void set_leaving(struct p2p_message *message, const struct error *result)
{
    unlist(message);
    leave_pair(message);
    message->state = MESSAGE_LEAVING;
    message_set_result(message, result);
    DL_APPEND(message->comm->leaving, message);
    message_rest(message);
    if (message->transfer != NULL && message->transfer->pipe != NULL) {
        message_activate(message);
    }
}

static void leave(struct p2p_message *message, const struct error *result)
{
    if (is_in_use(message)) {
        set_leaving(message, result);
    } else {
        message_end(message, result);
    }
}

void message_leaving_step(struct p2p_message *message, uint64_t now_ns)
{
    if (message->transfer != NULL && message->transfer->pipe != NULL && staging_is_idle(message, now_ns)) {
        staging_free_pipe(message);
    }
    if (is_in_use(message)) {
        return;
    }
    struct p2p_message *send = message->arrival != NULL ? message->arrival->send : NULL;
    if (!message->sends && send != NULL) {
        message->arrival->send = NULL;
        message_end(send, send->result);
    }
    message_end(message, message->result);
}

static void give_up_send(struct p2p_message *send, const struct error *result, bool tells)
{
    bool offered =
        send->state == MESSAGE_OFFERED || send->state == MESSAGE_ACCEPTED || send->state == MESSAGE_SENDING;
    if (offered && tells) {
        link_withdraw(link_of(send), send, result->status);
    }
    if (send->state == MESSAGE_SENDING) {
        link_payload_over(send, false);
    }
    if (send->state == MESSAGE_ARRIVED && send->arrival != NULL) {
        match_remove_arrival(send->comm, send->arrival);
        arrival_free(send->arrival);
        send->arrival = NULL;
    }
    leave(send, result);
}

/* Ends a receive early, and its send, if that is within this node. */
static void give_up_receive(struct p2p_message *receive, const struct error *result, bool tells)
{
    const struct p2p_comm *comm = receive->comm;
    struct p2p_arrival *arrival = receive->arrival;
    struct p2p_message *send = arrival != NULL ? arrival->send : NULL;
    struct error ended;
    if (arrival != NULL && arrival->reader != NULL) {
        incoming_drop(arrival->reader);
    }
    if (arrival != NULL && arrival->link != NULL) { /* bytes that still arrive for it are dropped */
        id_table_remove(&arrival->link->arrivals, &arrival->by_id);
    }
    if (arrival != NULL && arrival->link != NULL && !arrival->eager && tells) {
        link_answer(arrival, MESSAGE_REFUSE, result->status, (enum dtype)receive->dtype, 0);
    }
    if (send != NULL && tells) {
        message_set_peer_ended(comm, &ended, result->status, false, receive->rank, receive->tag);
        message_set_result(send, &ended);
    } else if (send != NULL) {
        message_set_result(send, result);
    }
    if (send != NULL && is_in_use(receive)) { /* GPUs may still read the send's buffer */
        set_leaving(send, send->result);
    } else if (send != NULL) {
        arrival->send = NULL;
        message_end(send, send->result);
    }
    leave(receive, result);
}

void message_give_up(struct p2p_message *message, const struct error *result, bool tells)
{
    if (is_over(message)) {
        return;
    }
    if (!message->sends) {
        give_up_receive(message, result, tells);
    } else if (message->state == MESSAGE_TAKEN) { /* it ends together with its receive */
        struct p2p_message *receive = message->arrival->receive;
        struct error ended;
        if (is_over(receive)) {
            return;
        }
        message_set_result(message, result);
        message_set_peer_ended(message->comm, &ended, result->status, true, message->rank, message->tag);
        give_up_receive(receive, tells ? &ended : result, tells);
    } else {
        give_up_send(message, result, tells);
    }
}

void p2p_cancel(struct p2p_message *message, const struct error *why, uint64_t now_ns)
{
    message->comm->p2p->now_ns = now_ns;
    message_give_up(message, why, true);
}
