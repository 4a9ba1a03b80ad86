#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <utlist.h>

#include "daemon/base/budget.h"
#include "daemon/exec/exec_internal.h"
#include "proto/message_header.h"

/* Messages from rank to rank: which receive takes which, in what order. message_streams.c carries them. */

/* What is allocated for one: itself, its arrival within this node, and its queues. */
_Static_assert(sizeof(struct exec_posted) + sizeof(struct exec_arrival) + 64 <= EXEC_MESSAGE_COST_BYTES,
               "a message costs no more than is charged for it");

bool messages_new(struct exec_comm *comm)
{
    comm->messages.nodes = calloc(comm->options.node_count, sizeof *comm->messages.nodes);
    return comm->messages.nodes != NULL;
}

void message_arrival_uncount(struct exec_comm *comm, const struct exec_arrival *arrival)
{
    if (arrival->local == NULL) {
        struct exec_message_node *node = &comm->messages.nodes[arrival->node];
        node->arrivals--;
        node->arrival_bytes -= arrival->payload_bytes;
        budget_release(comm->options.account, BUDGET_EARLY, sizeof *arrival + arrival->payload_bytes);
    }
}

void messages_release(struct exec_comm *comm)
{
    struct exec_arrival *arrival, *next;
    DL_FOREACH_SAFE(comm->messages.arrivals, arrival, next)
    {
        message_arrival_uncount(comm, arrival);
        free(arrival);
    }
    message_match_release(comm);
    free(comm->messages.nodes);
    device_messages_release(comm);
}

bool messages_idle(const struct exec_comm *comm)
{
    return comm->messages.count == 0;
}

static const struct error fine = {.status = STATUS_OK};
static const struct error no_memory = {.status = STATUS_NO_MEMORY, .text = "no memory for a message"};

/* --- Which have something to do --- */

void message_activate(struct exec_posted *posted)
{
    struct exec_comm *comm = posted->comm;
    if (!posted->active) {
        posted->active = true;
        DL_APPEND2(comm->messages.active, posted, active_prev, active_next);
    }
    exec_wake(comm->exec);
}

static void message_rest(struct exec_posted *posted)
{
    struct exec_messages *messages = &posted->comm->messages;
    if (posted->active) {
        posted->active = false;
        if (messages->cursor == posted) {
            messages->cursor = posted->active_next;
        }
        DL_DELETE2(messages->active, posted, active_prev, active_next);
    }
}

/* Whether a step can get it on; otherwise what it waits for activates it. */
static bool message_has_steps(const struct exec_posted *posted)
{
    switch (posted->state) {
    case MESSAGE_HELD:
    case MESSAGE_QUEUED:
    case MESSAGE_ACCEPTED:
    case MESSAGE_SENDING:
    case MESSAGE_MATCHED:
    case MESSAGE_RECEIVING:
    case MESSAGE_COPYING:
    case MESSAGE_LEAVING:
        return true;
    case MESSAGE_OFFERED:
    case MESSAGE_ARRIVED:
    case MESSAGE_POSTED:
    case MESSAGE_AWAITED:
    case MESSAGE_TAKEN:
    case MESSAGE_ENDED:
        break;
    }
    return false;
}

/* False without memory. */
static bool message_take_id(struct exec_posted *posted)
{
    posted->by_id = (struct message_id){.id = posted->id, .node = posted->node, .sends = posted->call.sends};
    HASH_ADD(hh_id, posted->comm->messages.by_id, by_id, sizeof posted->by_id, posted);
    posted->has_id = table_has(posted, hh_id);
    return posted->has_id;
}

/* Texts are large: most results share one. */
static void message_set_result(struct exec_comm *comm, struct exec_posted *posted, const struct error *result)
{
    if (result->status == STATUS_OK) {
        posted->result = &fine;
    } else if (result == &comm->cause) {
        posted->result = result;
    } else {
        posted->own_result = malloc(sizeof *posted->own_result);
        if (posted->own_result != NULL) {
            *posted->own_result = *result;
        }
        posted->result = posted->own_result != NULL ? posted->own_result : &no_memory;
    }
}

/* After the last use of its buffer. It alone fails: what the other rank got is what the memory held. */
static bool memory_failed(const struct exec_comm *comm, const struct exec_posted *posted, struct error *error)
{
    const struct exec_message *call = &posted->call;
    if (call->memory == NULL || memory_check(call->memory, error) == STATUS_OK) {
        return false;
    }
    (void)error_prefix(error, "%s on \"%s\": rank %u", call->sends ? "send" : "recv", comm->options.name,
                       call->rank);
    return true;
}

void message_end(struct exec_comm *comm, struct exec_posted *posted, const struct error *result)
{
    if (posted->state == MESSAGE_ENDED) {
        return;
    }
    if (posted->state == MESSAGE_HELD) {
        comm->messages.held--;
    }
    message_match_remove_receive(comm, posted);
    message_rest(posted);
    if (posted->has_id) {
        posted->has_id = false;
        HASH_DELETE(hh_id, comm->messages.by_id, posted);
    }
    posted->state = MESSAGE_ENDED;
    struct error fault;
    bool failed = result->status == STATUS_OK && memory_failed(comm, posted, &fault);
    message_set_result(comm, posted, failed ? &fault : result);
    device_message_free_pipe(posted);
    free(posted->arrival);
    free(posted->copy);
    posted->arrival = NULL;
    posted->copy = NULL;
    if (comm->messages.giving_up == posted) {
        comm->messages.giving_up = posted->next;
    }
    DL_DELETE(comm->messages.posted, posted);
    DL_APPEND(comm->messages.ended, posted);
    exec_wake(comm->exec);
}

/* --- Which takes which --- */

static void set_contradiction(const struct exec_comm *comm, struct error *error, uint32_t source, uint32_t to,
                              uint32_t tag, uint64_t sent, enum dtype sent_dtype, uint64_t room,
                              enum dtype room_dtype)
{
    error_set(error, STATUS_MISMATCH,
              "\"%s\": rank %u sent %llu %s to rank %u, tag %u; its recv has room for %llu %s",
              comm->options.name, source, (unsigned long long)sent, dtype_text(sent_dtype), to, tag,
              (unsigned long long)room, dtype_text(room_dtype));
}

void messages_refused(struct exec_comm *comm, struct exec_posted *send, enum dtype dtype, uint64_t room)
{
    const struct exec_message *call = &send->call;
    struct error error;
    set_contradiction(comm, &error, call->rank, call->peer_rank, call->tag, call->count_elements, call->dtype,
                      room, dtype);
    message_end(comm, send, &error);
}

static bool may_touch(const struct exec_posted *posted)
{
    return exec_fences_are_reached(posted->call.waits, posted->call.wait_count);
}

/* What it has taken is brought to its buffer, which may be touched; through its pipe, if it needs one. */
static void start_receive(struct exec_comm *comm, struct exec_posted *receive)
{
    struct exec_arrival *arrival = receive->arrival;
    receive->arrival = NULL;
    if (receive->partner != NULL) {
        receive->state = MESSAGE_COPYING;
        message_activate(receive);
        return;
    }
    if (!arrival->eager) {
        receive->state = MESSAGE_AWAITED;
        receive->node = arrival->node;
        receive->id = arrival->id;
        if (message_take_id(receive)) {
            message_send_reply(comm, true, arrival->node, arrival->id, &receive->call, arrival->source_rank);
        } else {
            exec_comm_fail(comm, &no_memory, comm->exec->now_ns);
        }
    } else if (receive->pipe != NULL) {
        size_t room_bytes;
        memcpy(message_pipe_room(receive->pipe, &room_bytes), arrival->payload,
               (size_t)arrival->payload_bytes);
        message_pipe_stored(receive->pipe, (size_t)arrival->payload_bytes);
        receive->state = MESSAGE_COPYING;
        message_activate(receive);
    } else {
        if (arrival->payload_bytes > 0) {
            memcpy(receive->call.buffer, arrival->payload, (size_t)arrival->payload_bytes);
        }
        message_end(comm, receive, &fine);
    }
    free(arrival);
}

static void refuse(struct exec_comm *comm, struct exec_posted *receive, struct exec_arrival *arrival)
{
    const struct exec_message *call = &receive->call;
    struct error error;
    set_contradiction(comm, &error, arrival->source_rank, arrival->to_rank, arrival->tag,
                      arrival->count_elements, arrival->dtype, call->count_elements, call->dtype);
    if (arrival->local != NULL) {
        message_end(comm, arrival->local, &error);
    } else if (!arrival->eager) {
        message_send_reply(comm, false, arrival->node, arrival->id, call, arrival->source_rank);
    }
    message_end(comm, receive, &error);
    free(arrival);
}

/* The receive takes the message, which is in no list any more. */
static void take(struct exec_comm *comm, struct exec_posted *receive, struct exec_arrival *arrival)
{
    const struct exec_message *call = &receive->call;
    message_match_remove_receive(comm, receive);
    receive->source_rank = arrival->source_rank;
    message_arrival_uncount(comm, arrival); /* from here on it counts as the receive */
    if (arrival->dtype != call->dtype || arrival->count_elements > call->count_elements) {
        refuse(comm, receive, arrival);
        return;
    }
    receive->received_elements = arrival->count_elements;
    receive->state = MESSAGE_MATCHED;
    if (arrival->local != NULL) {
        receive->partner = arrival->local;
        receive->partner->partner = receive;
        receive->partner->state = MESSAGE_TAKEN;
        free(arrival);
    } else {
        receive->arrival = arrival;
    }
    if (!device_message_needs_pipe(receive) && may_touch(receive)) {
        start_receive(comm, receive);
    } else {
        message_activate(receive);
    }
}

void messages_arrive(struct exec_comm *comm, struct exec_arrival *arrival)
{
    struct exec_posted *receive = message_match_receive(comm, arrival);
    if (receive != NULL) {
        take(comm, receive, arrival);
    } else if (!message_match_add_arrival(comm, arrival)) {
        message_arrival_uncount(comm, arrival);
        free(arrival);
        exec_comm_fail(comm, &no_memory, comm->exec->now_ns);
    }
}

struct exec_posted *messages_find(const struct exec_comm *comm, enum message_state state, uint32_t node,
                                  uint64_t id)
{
    const struct message_id key = {.id = id, .node = node, .sends = state != MESSAGE_AWAITED};
    struct exec_posted *posted;
    HASH_FIND(hh_id, comm->messages.by_id, &key, sizeof key, posted);
    return posted != NULL && posted->state == state ? posted : NULL;
}

/* --- Posting --- */

static enum status post_receive(struct exec_comm *comm, struct exec_posted *receive, struct error *error)
{
    struct exec_arrival *arrival = message_match_take_arrival(comm, receive);
    receive->state = MESSAGE_POSTED;
    if (arrival != NULL) {
        take(comm, receive, arrival);
        message_streams_resume(comm);
    } else if (!message_match_add_receive(comm, receive)) {
        return error_set(error, STATUS_NO_MEMORY, "\"%s\": no memory for a message", comm->options.name);
    }
    return STATUS_OK;
}

static enum status post_local_send(struct exec_comm *comm, struct exec_posted *send, struct error *error)
{
    const struct exec_message *call = &send->call;
    struct exec_arrival *arrival = calloc(1, sizeof *arrival);
    if (arrival == NULL) {
        return error_set(error, STATUS_NO_MEMORY, "\"%s\": no memory for a message", comm->options.name);
    }
    send->state = MESSAGE_ARRIVED;
    arrival->local = send;
    arrival->source_rank = call->rank;
    arrival->to_rank = call->peer_rank;
    arrival->tag = call->tag;
    arrival->dtype = call->dtype;
    arrival->count_elements = call->count_elements;
    messages_arrive(comm, arrival);
    return STATUS_OK;
}

/* It may be touched, and is on the host if it is to go with its envelope. */
static enum status post_send(struct exec_comm *comm, struct exec_posted *send, struct error *error)
{
    if (comm->local_of_rank[send->call.peer_rank] != UINT32_MAX) {
        return post_local_send(comm, send, error);
    }
    send->state = MESSAGE_QUEUED;
    send->node = comm->node_of_rank[send->call.peer_rank];
    send->id = comm->messages.nodes[send->node].last_id + 1;
    if (!message_take_id(send)) {
        return error_set(error, STATUS_NO_MEMORY, "\"%s\": no memory for a message", comm->options.name);
    }
    comm->messages.nodes[send->node].last_id++;
    message_activate(send);
    return STATUS_OK;
}

enum status exec_post_message(struct exec_comm *comm, const struct exec_message *message, struct error *error)
{
    struct exec_messages *messages = &comm->messages;
    if (comm->failed || comm->aborted) {
        return error_set(error, comm->cause.status, "%s", comm->cause.text);
    }
    if (messages->count >= EXEC_MESSAGES_MAX) {
        return error_set(error, STATUS_LIMIT, "\"%s\": %d messages are under way", comm->options.name,
                         EXEC_MESSAGES_MAX);
    }
    struct exec_posted *posted = calloc(1, sizeof *posted);
    if (posted == NULL) {
        return error_set(error, STATUS_NO_MEMORY, "\"%s\": no memory for a message", comm->options.name);
    }
    posted->comm = comm;
    posted->call = *message;
    messages->count++;
    exec_comm_set_busy(comm);
    DL_APPEND(messages->posted, posted);
    enum status status = STATUS_OK;
    if (!message->sends) {
        status = post_receive(comm, posted, error);
    } else if (messages->held > 0 || !may_touch(posted) || device_message_is_small(posted)) {
        posted->state = MESSAGE_HELD;
        messages->held++;
        message_activate(posted);
    } else {
        status = post_send(comm, posted, error);
    }
    if (status != STATUS_OK) {
        DL_DELETE(messages->posted, posted);
        messages->count--;
        free(posted);
    }
    return status;
}

/* --- Steps --- */

/* Sends keep their order: one that has not come to its turn holds back those behind it. */
static void held_step(struct exec_comm *comm, struct exec_posted *send, struct message_pass *pass)
{
    struct error error;
    if (pass->held) {
        return;
    }
    if (!may_touch(send)) {
        pass->held = true;
        comm->exec->waits_for_devices = true;
        return;
    }
    bool copied = !device_message_is_small(send) || device_message_copy_small(send, pass);
    if (!copied || pass->copying) {
        pass->copying = true;
        return;
    }
    comm->messages.held--;
    comm->exec->devices_advanced = true;
    if (post_send(comm, send, &error) != STATUS_OK) {
        send->state = MESSAGE_QUEUED; /* no longer held */
        message_end(comm, send, &error);
    }
}

static void matched_step(struct exec_comm *comm, struct exec_posted *receive, struct message_pass *pass)
{
    if (!may_touch(receive)) {
        comm->exec->waits_for_devices = true;
    } else if (!device_message_needs_pipe(receive) || device_message_receives(receive, pass)) {
        comm->exec->devices_advanced = true;
        start_receive(comm, receive);
    }
}

/* What comes from a send of this node, or is in the pipe already. */
static void copying_step(struct exec_comm *comm, struct exec_posted *receive, struct message_pass *pass)
{
    struct exec_posted *send = receive->partner;
    if (receive->pipe == NULL) {
        uint64_t total = receive->received_elements * dtype_size_bytes(receive->call.dtype);
        uint64_t left = total - receive->moved_bytes;
        size_t now = (size_t)(left < EXEC_LOCAL_STEP_BYTES ? left : EXEC_LOCAL_STEP_BYTES);
        if (now > 0) {
            memmove((unsigned char *)receive->call.buffer + receive->moved_bytes,
                    (const unsigned char *)send->call.buffer + receive->moved_bytes, now);
        }
        receive->moved_bytes += now;
        if (receive->moved_bytes < total) {
            pass->more = true;
            return;
        }
    } else if (!device_message_receive_step(receive, pass)) {
        return;
    }
    if (send != NULL) {
        message_end(comm, send, &fine);
    }
    message_end(comm, receive, &fine);
}

static void leaving_step(struct exec_comm *comm, struct exec_posted *posted, struct message_pass *pass)
{
    struct exec_posted *send = posted->call.sends ? NULL : posted->partner;
    if (!comm->aborted || !device_message_is_idle(posted, pass->now_ns)) {
        return;
    }
    if (send != NULL) {
        message_end(comm, send, &comm->cause);
    }
    message_end(comm, posted, &comm->cause);
}

static void message_step(struct exec_comm *comm, struct exec_posted *posted, struct message_pass *pass)
{
    if (posted->state == MESSAGE_HELD) {
        held_step(comm, posted, pass);
    } else if (posted->state == MESSAGE_MATCHED) {
        matched_step(comm, posted, pass);
    }
    switch (posted->state) {
    case MESSAGE_QUEUED:
        (void)message_send_envelope(comm, posted);
        break;
    case MESSAGE_ACCEPTED:
    case MESSAGE_SENDING:
        if (posted->call.on_gpu) {
            device_message_send_step(posted, pass);
        } else if (posted->state == MESSAGE_ACCEPTED) {
            (void)message_send_payload(comm, posted);
        }
        break;
    case MESSAGE_RECEIVING:
        if (posted->pipe != NULL) {
            (void)device_message_receive_step(posted, pass);
        }
        break;
    case MESSAGE_COPYING:
        copying_step(comm, posted, pass);
        break;
    case MESSAGE_HELD:
    case MESSAGE_OFFERED:
    case MESSAGE_ARRIVED:
    case MESSAGE_POSTED:
    case MESSAGE_MATCHED:
    case MESSAGE_AWAITED:
    case MESSAGE_TAKEN:
    case MESSAGE_LEAVING:
    case MESSAGE_ENDED:
        break;
    }
}

/* After an abort, piece by piece. Returns whether there are more. */
static bool messages_give_up(struct exec_comm *comm)
{
    struct exec_posted *posted;
    uint32_t left = EXEC_ARRIVALS_MAX; /* as many as are told */
    while ((posted = comm->messages.giving_up) != NULL && left-- > 0) {
        comm->messages.giving_up = posted->next;
        if (posted->state == MESSAGE_SENDING && posted->pipe == NULL) {
            message_close_payload(posted, false);    /* and ends when the network says so */
        } else if (posted->state != MESSAGE_TAKEN) { /* which ends with its receive */
            device_message_give_up(posted);
        }
    }
    return comm->messages.giving_up != NULL;
}

/* Those that have ended are told; their owners may post more. */
static void messages_tell(struct exec_comm *comm, uint64_t now_ns)
{
    uint32_t budget = EXEC_ARRIVALS_MAX; /* the rest has its turn later */
    while (comm->messages.ended != NULL && budget-- > 0) {
        struct exec_posted *posted = comm->messages.ended;
        DL_DELETE(comm->messages.ended, posted);
        comm->messages.count--;
        posted->call.done(posted->call.context, posted->result, posted->source_rank,
                          posted->received_elements, now_ns);
        free(posted->own_result);
        free(posted);
    }
}

bool messages_step(struct exec_comm *comm, uint64_t now_ns)
{
    struct message_pass pass = {.now_ns = now_ns};
    struct exec_posted *posted;
    uint32_t leaving = EXEC_ARRIVALS_MAX; /* as many as are told */
    if (comm->messages.count == 0) {
        return false;
    }
    pass.more = messages_give_up(comm);
    comm->messages.cursor = comm->messages.active;
    while ((posted = comm->messages.cursor) != NULL) { /* any of them may end, or rest, meanwhile */
        comm->messages.cursor = posted->active_next;
        if (posted->state == MESSAGE_LEAVING) {
            leaving_step(comm, posted, &pass);
            if (posted->state == MESSAGE_ENDED && --leaving == 0) {
                comm->messages.cursor = NULL;
                pass.more = true;
            }
        } else if (!comm->failed) {
            message_step(comm, posted, &pass);
        }
        if (!message_has_steps(posted)) {
            message_rest(posted);
        }
    }
    if (pass.fault.status != STATUS_OK) {
        exec_comm_fail(comm, &pass.fault, now_ns);
    }
    if (pass.resumes) {
        message_streams_resume(comm);
    }
    messages_tell(comm, now_ns);
    return pass.more || comm->messages.ended != NULL;
}

/* What GPUs and network still hold is told once they do not. */
void messages_abort(struct exec_comm *comm)
{
    message_streams_reset(comm, true);
    stream_readers_detach(comm, &message_reader_kind);
    comm->messages.giving_up = comm->messages.posted;
    exec_wake(comm->exec);
}

static void describe_state(const struct exec_posted *posted, char *text, size_t size)
{
    const char *what = "on its way";
    uint64_t bytes = posted->call.sends ? posted->call.count_elements : posted->received_elements;
    bytes *= dtype_size_bytes(posted->call.dtype);
    switch (posted->state) {
    case MESSAGE_HELD:
    case MESSAGE_MATCHED:
        what = !may_touch(posted)     ? "waiting for its stream"
               : posted->pipe != NULL ? "being copied from its GPU"
                                      : "waiting for its turn";
        break;
    case MESSAGE_OFFERED:
    case MESSAGE_ARRIVED:
        what = "no recv has taken it";
        break;
    case MESSAGE_POSTED:
        what = "nothing has come";
        break;
    case MESSAGE_SENDING:
    case MESSAGE_RECEIVING:
    case MESSAGE_COPYING:
        if (posted->pipe != NULL) {
            (void)snprintf(text, size, "on its way, %llu of %llu bytes are there",
                           (unsigned long long)message_pipe_drained_bytes(posted->pipe),
                           (unsigned long long)bytes);
            return;
        }
        break;
    case MESSAGE_QUEUED:
    case MESSAGE_ACCEPTED:
    case MESSAGE_AWAITED:
    case MESSAGE_TAKEN:
    case MESSAGE_LEAVING:
    case MESSAGE_ENDED:
        break;
    }
    (void)snprintf(text, size, "%s", what);
}

void exec_describe_message(const struct exec_comm *comm, const void *context, char *text, size_t size)
{
    const struct exec_posted *posted;
    text[0] = '\0';
    DL_FOREACH(comm->messages.posted, posted)
    {
        if (posted->call.context == context) {
            char peer[24] = "any rank", state[80];
            if (posted->call.peer_rank != COMM_ANY_SOURCE_RANK) {
                (void)snprintf(peer, sizeof peer, "rank %u", posted->call.peer_rank);
            }
            describe_state(posted, state, sizeof state);
            (void)snprintf(text, size, "%s %s %s, tag %u: %s", posted->call.sends ? "send" : "recv",
                           posted->call.sends ? "to" : "from", peer, posted->call.tag, state);
            return;
        }
    }
}
