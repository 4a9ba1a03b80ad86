#include <stdio.h>
#include <string.h>

#include <utlist.h>

#include "daemon/p2p/p2p_internal.h"

/* The work of a communicator's messages in one turn. */

/* Whether a turn can advance the message. If not, the event that it waits for activates it. */
static bool message_has_steps(const struct p2p_message *message)
{
    switch ((enum message_state)message->state) {
    case MESSAGE_HELD:
    case MESSAGE_MATCHED:
    case MESSAGE_COPYING:
        return true;
    case MESSAGE_ACCEPTED:
    case MESSAGE_SENDING:
    case MESSAGE_RECEIVING:
    case MESSAGE_LEAVING:
        return message->transfer != NULL && message->transfer->pipe != NULL;
    case MESSAGE_QUEUED:
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

/* Sends of a pair keep their order: the first held send delays those behind it. */
static void held_step(struct p2p_message *send, struct message_pass *pass)
{
    struct p2p_comm *comm = send->comm;
    if (!message_may_touch(send)) {
        comm->p2p->pacer.waits = true;
    } else if (!staging_is_small(send) || staging_copy_small(send, pass)) {
        comm->p2p->pacer.advanced = true;
        message_post_held(send);
    }
}

static void matched_step(struct p2p_message *receive, struct message_pass *pass)
{
    struct p2p_comm *comm = receive->comm;
    if (!message_may_touch(receive)) {
        comm->p2p->pacer.waits = true;
    } else if (!staging_needs_pipe(receive) || staging_receives(receive, pass)) {
        comm->p2p->pacer.advanced = true;
        message_start_receive(receive);
    }
}

/* Copies from a local send as much as the turn has left. Returns whether that was all. */
static bool copy_step(struct p2p_message *receive, struct message_pass *pass)
{
    const struct p2p_message *send = receive->arrival->send;
    uint64_t left = message_bytes(receive, receive->received_elements) - receive->moved_bytes;
    size_t now = (size_t)(left < pass->left_bytes ? left : pass->left_bytes);
    if (now > 0) {
        memmove((unsigned char *)receive->buffer + receive->moved_bytes,
                (const unsigned char *)send->buffer + receive->moved_bytes, now);
    }
    receive->moved_bytes += now;
    pass->left_bytes -= now;
    if (now < left) {
        pass->more = true;
        pass->cut = now > 0 ? receive : pass->cut;
    }
    return now == left;
}

/* Advances a receive from a local send, or one whose remaining bytes are in its pipe. */
static void copying_step(struct p2p_message *receive, struct message_pass *pass)
{
    bool has_pipe = receive->transfer != NULL && receive->transfer->pipe != NULL;
    if (has_pipe ? !staging_receive_step(receive, pass) : !copy_step(receive, pass)) {
        return;
    }
    struct p2p_message *send = receive->arrival->send;
    if (send != NULL) {
        receive->arrival->send = NULL;
        message_end(send, &p2p_fine);
    }
    message_end(receive, &p2p_fine);
}

static void message_step(struct p2p_message *message, struct message_pass *pass)
{
    if (message->state == MESSAGE_HELD) {
        held_step(message, pass);
    } else if (message->state == MESSAGE_MATCHED) {
        matched_step(message, pass);
    }
    switch ((enum message_state)message->state) {
    case MESSAGE_ACCEPTED:
    case MESSAGE_SENDING:
        staging_send_step(message, pass);
        break;
    case MESSAGE_RECEIVING:
        (void)staging_receive_step(message, pass);
        break;
    case MESSAGE_COPYING:
        copying_step(message, pass);
        break;
    case MESSAGE_LEAVING:
        message_leaving_step(message, pass->now_ns);
        break;
    case MESSAGE_HELD:
    case MESSAGE_QUEUED:
    case MESSAGE_OFFERED:
    case MESSAGE_ARRIVED:
    case MESSAGE_POSTED:
    case MESSAGE_MATCHED:
    case MESSAGE_AWAITED:
    case MESSAGE_TAKEN:
    case MESSAGE_ENDED:
        break;
    }
}

/* Steps the active messages. Each step may end any message, or remove it from the list. */
static void active_step(struct p2p_comm *comm, struct message_pass *pass)
{
    struct p2p_message *message;
    comm->cursor = comm->active;
    while ((message = comm->cursor) != NULL) {
        comm->cursor = message->active_next;
        if (message->state == MESSAGE_LEAVING || !comm->failed) {
            message_step(message, pass);
        }
        if (message->list == LIST_ACTIVE && !message_has_steps(message)) {
            message_rest(message);
        }
    }
    if (pass->cut != NULL) { /* to the end of the list, so that others go first */
        message_rest(pass->cut);
        message_activate(pass->cut);
    }
}

static uint32_t end_pair(struct p2p_comm *comm, struct p2p_pair *pair, uint32_t left)
{
    struct p2p_message *message, *next;
    struct error error;
    message_set_left(comm, &error, pair->key.peer);
    DL_FOREACH_SAFE(pair->messages, message, next)
    {
        bool waits = message->state == MESSAGE_POSTED || message->state == MESSAGE_HELD ||
                     message->state == MESSAGE_QUEUED || message->state == MESSAGE_OFFERED;
        if (left == 0) {
            return 0;
        }
        if (waits) {
            left--;
            message_give_up(message, &error, true);
        }
    }
    pair->ending = false;
    DL_DELETE2(comm->ending, pair, end_prev, end_next);
    return left;
}

/* Ends receives from ranks that are gone, and sends to them, unless they are already matched. */
static void ending_step(struct p2p_comm *comm, struct message_pass *pass)
{
    uint32_t left = P2P_TURN_MAX;
    while (comm->ending != NULL && left > 0) {
        left = end_pair(comm, comm->ending, left);
    }
    pass->more |= comm->ending != NULL;
}

static void aborted_step(struct p2p_comm *comm, struct message_pass *pass)
{
    for (uint32_t left = P2P_TURN_MAX; left > 0 && comm->busy_pairs != NULL; left--) {
        message_give_up(comm->busy_pairs->messages, &comm->cause, false);
    }
    pass->more |= comm->busy_pairs != NULL;
}

/* Calls `done` of messages that have ended; `done` may post more messages. */
static void messages_tell(struct p2p_comm *comm, uint64_t now_ns)
{
    for (uint32_t left = P2P_TURN_MAX; left > 0 && comm->ended != NULL; left--) {
        struct p2p_message *message = comm->ended;
        struct p2p_result *own = message->own_result ? (struct p2p_result *)(uintptr_t)message->result : NULL;
        DL_DELETE(comm->ended, message);
        comm->count--;
        comm->handler.done(comm->handler.context, message, message->result, now_ns);
        p2p_result_drop(own);
    }
}

bool messages_step(struct p2p_comm *comm, uint64_t now_ns)
{
    struct message_pass pass = {.now_ns = now_ns, .left_bytes = P2P_STEP_BYTES};
    links_flush(comm);
    if (comm->aborted) {
        aborted_step(comm, &pass);
    } else if (!comm->failed) {
        ending_step(comm, &pass);
    }
    active_step(comm, &pass);
    if (pass.resumes && !comm->failed) {
        incoming_resume(comm);
    }
    messages_tell(comm, now_ns);
    return pass.more || comm->ended != NULL;
}

/* --- For people --- */

static void describe_state(const struct p2p_message *message, char *text, size_t size)
{
    const struct message_pipe *pipe = message->transfer != NULL ? message->transfer->pipe : NULL;
    const char *what = "on its way";
    uint64_t bytes =
        message_bytes(message, message->sends ? message->count_elements : message->received_elements);
    switch ((enum message_state)message->state) {
    case MESSAGE_HELD:
    case MESSAGE_MATCHED:
        what = !message_may_touch(message)                      ? "waiting for its stream"
               : pipe != NULL && !message_pipe_has_memory(pipe) ? "waiting for pinned memory"
               : pipe != NULL                                   ? "being copied from its GPU"
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
        if (pipe != NULL) {
            (void)snprintf(text, size, "on its way, %llu of %llu bytes are there",
                           (unsigned long long)message_pipe_drained_bytes(pipe), (unsigned long long)bytes);
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

void p2p_describe(const struct p2p_message *message, char *text, size_t size)
{
    char peer[24 + NODE_NAME_MAX_BYTES] = "any rank", state[80];
    if (message->peer_rank != COMM_ANY_SOURCE_RANK) {
        (void)snprintf(peer, sizeof peer, "rank %u (node %s)", message->peer_rank,
                       p2p_node_name(message->comm, message->peer_rank));
    }
    describe_state(message, state, sizeof state);
    (void)snprintf(text, size, "%s %s %s, tag %u: %s", message->sends ? "send" : "recv",
                   message->sends ? "to" : "from", peer, message->tag, state);
}
