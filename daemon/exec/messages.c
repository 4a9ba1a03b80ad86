#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <utlist.h>

#include "daemon/exec/exec_internal.h"
#include "proto/message_header.h"

/* Messages from rank to rank: which receive takes which, in what order. message_streams.c carries them. */

bool messages_new(struct exec_comm *comm)
{
    comm->messages.nodes = calloc(comm->options.node_count, sizeof *comm->messages.nodes);
    return comm->messages.nodes != NULL;
}

static void arrival_free(struct exec_comm *comm, struct exec_arrival *arrival)
{
    if (arrival->local == NULL) {
        comm->messages.nodes[arrival->node].arrivals--;
        comm->messages.nodes[arrival->node].arrival_bytes -= arrival->payload_bytes;
    }
    free(arrival);
}

void messages_release(struct exec_comm *comm)
{
    struct exec_arrival *arrival, *next;
    DL_FOREACH_SAFE(comm->messages.arrivals, arrival, next)
    {
        free(arrival);
    }
    free(comm->messages.nodes);
}

bool messages_idle(const struct exec_comm *comm)
{
    return comm->messages.count == 0 && comm->staged == NULL;
}

static const struct error fine = {.status = STATUS_OK};

void message_end(struct exec_comm *comm, struct exec_posted *posted, const struct error *result)
{
    if (posted->state == MESSAGE_ENDED) {
        return;
    }
    posted->state = MESSAGE_ENDED;
    posted->result = *result;
    DL_DELETE(comm->messages.posted, posted);
    DL_APPEND(comm->messages.ended, posted);
    exec_wake(comm->exec);
}

/* --- Which takes which --- */

static bool receive_fits(const struct exec_posted *receive, const struct exec_arrival *arrival)
{
    const struct exec_message *call = &receive->call;
    return receive->state == MESSAGE_POSTED && call->rank == arrival->to_rank && call->tag == arrival->tag &&
           (call->peer_rank == COMM_ANY_SOURCE_RANK || call->peer_rank == arrival->source_rank);
}

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

/* The receive takes the message, which is in no list any more. */
static void take(struct exec_comm *comm, struct exec_posted *receive, struct exec_arrival *arrival)
{
    struct exec_posted *local = arrival->local;
    const struct exec_message *call = &receive->call;
    bool fits = arrival->dtype == call->dtype && arrival->count_elements <= call->count_elements;
    receive->source_rank = arrival->source_rank;
    receive->received_elements = fits ? arrival->count_elements : 0;
    if (!fits) {
        struct error error;
        set_contradiction(comm, &error, arrival->source_rank, arrival->to_rank, arrival->tag,
                          arrival->count_elements, arrival->dtype, call->count_elements, call->dtype);
        if (local != NULL) {
            message_end(comm, local, &error);
        } else if (!arrival->eager) {
            message_send_reply(comm, false, arrival->node, arrival->id, call, arrival->source_rank);
        }
        message_end(comm, receive, &error);
    } else if (local != NULL) {
        receive->state = MESSAGE_COPYING;
        receive->partner = local;
        local->state = MESSAGE_TAKEN;
        exec_wake(comm->exec);
    } else if (arrival->eager) {
        if (arrival->payload_bytes > 0) {
            memcpy(call->buffer, arrival->payload, (size_t)arrival->payload_bytes);
        }
        message_end(comm, receive, &fine);
    } else {
        receive->state = MESSAGE_AWAITED;
        receive->node = arrival->node;
        receive->id = arrival->id;
        message_send_reply(comm, true, arrival->node, arrival->id, call, arrival->source_rank);
    }
    arrival_free(comm, arrival);
}

void messages_arrive(struct exec_comm *comm, struct exec_arrival *arrival)
{
    struct exec_posted *receive;
    DL_FOREACH(comm->messages.posted, receive)
    {
        if (receive_fits(receive, arrival)) {
            take(comm, receive, arrival);
            return;
        }
    }
    DL_APPEND(comm->messages.arrivals, arrival);
}

struct exec_posted *messages_find(const struct exec_comm *comm, enum message_state state, uint32_t node,
                                  uint64_t id)
{
    struct exec_posted *posted;
    DL_FOREACH(comm->messages.posted, posted)
    {
        if (posted->state == state && posted->node == node && posted->id == id) {
            return posted;
        }
    }
    return NULL;
}

/* --- Posting --- */

static void post_receive(struct exec_comm *comm, struct exec_posted *receive)
{
    struct exec_arrival *arrival;
    receive->state = MESSAGE_POSTED;
    DL_FOREACH(comm->messages.arrivals, arrival)
    {
        if (receive_fits(receive, arrival)) {
            DL_DELETE(comm->messages.arrivals, arrival);
            take(comm, receive, arrival);
            message_streams_resume(comm);
            return;
        }
    }
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

enum status exec_post_message(struct exec_comm *comm, const struct exec_message *message, struct error *error)
{
    if (comm->failed || comm->aborted) {
        return error_set(error, comm->cause.status, "%s", comm->cause.text);
    }
    return staged_is_needed(message) || (message->sends && staged_holds_sends(comm))
               ? staged_new(comm, message, error)
               : exec_post_plain(comm, message, error);
}

enum status exec_post_plain(struct exec_comm *comm, const struct exec_message *message, struct error *error)
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
    posted->call = *message;
    messages->count++;
    DL_APPEND(messages->posted, posted);
    if (!message->sends) {
        post_receive(comm, posted);
    } else if (comm->local_of_rank[message->peer_rank] == UINT32_MAX) {
        posted->state = MESSAGE_QUEUED;
        posted->node = comm->node_of_rank[message->peer_rank];
        posted->id = ++messages->nodes[posted->node].last_id;
    } else if (post_local_send(comm, posted, error) != STATUS_OK) {
        DL_DELETE(messages->posted, posted);
        messages->count--;
        free(posted);
        return STATUS_NO_MEMORY;
    }
    exec_wake(comm->exec);
    return STATUS_OK;
}

/* --- Steps --- */

/* Some of what is copied within this node. Returns whether more is left of it. */
static bool copy_step(struct exec_comm *comm, struct exec_posted *receive)
{
    struct exec_posted *send = receive->partner;
    uint64_t total = send->call.count_elements * dtype_size_bytes(send->call.dtype);
    uint64_t left = total - receive->moved_bytes;
    size_t now = (size_t)(left < EXEC_LOCAL_STEP_BYTES ? left : EXEC_LOCAL_STEP_BYTES);
    if (now > 0) {
        memmove((unsigned char *)receive->call.buffer + receive->moved_bytes,
                (const unsigned char *)send->call.buffer + receive->moved_bytes, now);
    }
    receive->moved_bytes += now;
    if (receive->moved_bytes < total) {
        return true;
    }
    message_end(comm, send, &fine);
    message_end(comm, receive, &fine);
    return false;
}

static bool message_step(struct exec_comm *comm, struct exec_posted *posted)
{
    switch (posted->state) {
    case MESSAGE_QUEUED:
        (void)message_send_envelope(comm, posted);
        return false;
    case MESSAGE_ACCEPTED:
        (void)message_send_payload(comm, posted);
        return false;
    case MESSAGE_COPYING:
        return copy_step(comm, posted);
    case MESSAGE_OFFERED:
    case MESSAGE_SENDING:
    case MESSAGE_ARRIVED:
    case MESSAGE_POSTED:
    case MESSAGE_AWAITED:
    case MESSAGE_TAKEN:
    case MESSAGE_ENDED:
        return false;
    }
    return false;
}

/* Those that have ended are told; their owners may post more. */
static void messages_tell(struct exec_comm *comm, uint64_t now_ns)
{
    uint32_t budget = EXEC_ARRIVALS_MAX; /* the rest has its turn later */
    while (comm->messages.ended != NULL && budget-- > 0) {
        struct exec_posted *posted = comm->messages.ended;
        DL_DELETE(comm->messages.ended, posted);
        comm->messages.count--;
        posted->call.done(posted->call.context, &posted->result, posted->source_rank,
                          posted->received_elements, now_ns);
        free(posted);
    }
}

bool messages_step(struct exec_comm *comm, uint64_t now_ns)
{
    struct exec_posted *posted, *next;
    bool more = false;
    if (comm->messages.count == 0) {
        return false;
    }
    DL_FOREACH_SAFE(comm->messages.posted, posted, next)
    {
        /* A copy's end ends its partner too, which may be the next. */
        if (next != NULL && posted->state == MESSAGE_COPYING && next == posted->partner) {
            next = next->next;
        }
        if (!comm->failed) {
            more |= message_step(comm, posted);
        }
    }
    messages_tell(comm, now_ns);
    return more || comm->messages.ended != NULL;
}

void messages_abort(struct exec_comm *comm)
{
    struct exec_posted *posted, *next;
    message_streams_reset(comm, true);
    message_streams_detach(comm);
    DL_FOREACH_SAFE(comm->messages.posted, posted, next)
    {
        if (posted->state != MESSAGE_SENDING) { /* its buffer is still the network's */
            message_end(comm, posted, &comm->cause);
        }
    }
}

void exec_describe_message(const struct exec_comm *comm, const void *context, char *text, size_t size)
{
    const struct exec_posted *posted;
    text[0] = '\0';
    context = staged_describe(comm, context, text, size);
    DL_FOREACH(comm->messages.posted, posted)
    {
        if (posted->call.context != context) {
            continue;
        }
        char peer[24] = "any rank";
        if (posted->call.peer_rank != COMM_ANY_SOURCE_RANK) {
            (void)snprintf(peer, sizeof peer, "rank %u", posted->call.peer_rank);
        }
        bool waits = posted->state == MESSAGE_POSTED || posted->state == MESSAGE_OFFERED ||
                     posted->state == MESSAGE_ARRIVED;
        (void)snprintf(text, size, "%s %s %s, tag %u%s", posted->call.sends ? "send" : "recv",
                       posted->call.sends ? "to" : "from", peer, posted->call.tag,
                       !waits               ? ": on its way"
                       : posted->call.sends ? ": no recv has taken it"
                                            : ": nothing has come");
        return;
    }
}
