#include <stdlib.h>
#include <string.h>

#include "daemon/p2p/p2p_internal.h"

/*
 * Messages whose buffers are on GPUs. Between nodes, and where a GPU does not reach the other buffer, the
 * bytes go through a pipe, chunk by chunk. Otherwise one copy within the node is enough. Between two GPUs of
 * the node, NCCL may do either. A payload that is sent with its envelope is first copied to the host.
 *
 * A failure here is one of a GPU, or of memory for it. It ends the message, and the other side is notified.
 */

_Static_assert(MESSAGE_PIPE_CHUNK_BYTES *MESSAGE_PIPE_CHUNKS_MAX <= P2P_PIPES_MAX_BYTES,
               "every pipe has its turn");
_Static_assert(MESSAGE_EAGER_MAX_BYTES <= MESSAGE_PIPE_CHUNK_BYTES, "what is small is one chunk");

static void fail(struct p2p_message *message, struct error *error)
{
    (void)error_prefix(error, "\"%s\"", message->comm->map->name);
    if (message->state == MESSAGE_HELD) {
        message_post_failed(message, error);
    } else {
        message_give_up(message, error, true);
    }
}

/* --- Pipes --- */

/* Each direction has its own queue, separate from the queue of operations, because a GPU can copy both ways
 * at once. */
static enum status queue_of(struct p2p_comm *comm, uint32_t gpu, enum message_way way, struct gpu_queue **out,
                            struct error *error)
{
    if (comm->gpu_queues == NULL) {
        comm->gpu_queues = calloc((size_t)GPU_DEVICES_MAX * MESSAGE_WAYS, sizeof(struct gpu_queue *));
        if (comm->gpu_queues == NULL) {
            return error_set(error, STATUS_NO_MEMORY, "no memory for queues");
        }
    }
    struct gpu_queue **queue = &comm->gpu_queues[gpu * MESSAGE_WAYS + (uint32_t)way];
    enum status status =
        *queue == NULL ? gpu_queue_new(comm->p2p->gpus, gpu, comm->map->account, queue, error) : STATUS_OK;
    *out = *queue;
    return status;
}

void staging_release(struct p2p_comm *comm)
{
    for (uint32_t i = 0; comm->gpu_queues != NULL && i < GPU_DEVICES_MAX * MESSAGE_WAYS; i++) {
        gpu_queue_free(comm->gpu_queues[i]);
    }
    free(comm->gpu_queues);
    gpu_group_release(comm->group, comm->p2p->now_ns);
}

/* The pipe's end for a message's buffer. If message is null, or its buffer is on the host, the end is the
 * pipe's caller. */
static enum status pipe_end(const struct p2p_message *message, enum message_way way,
                            struct message_pipe_end *end, struct error *error)
{
    *end = (struct message_pipe_end){.queue = NULL};
    if (message == NULL || !message->on_gpu) {
        return STATUS_OK;
    }
    end->buffer = message->buffer;
    return queue_of(message->comm, message->gpu, way, &end->queue, error);
}

static bool is_direct(const struct p2p_message *source, const struct p2p_message *sink)
{
    if (source == NULL || sink == NULL || !source->on_gpu || !sink->on_gpu) {
        return false;
    }
    return source->gpu == sink->gpu || gpu_devices_reaches(source->comm->p2p->gpus, source->gpu, sink->gpu);
}

/* --- NCCL --- */

/* Holds a group with both GPUs, and those of earlier messages. Null: NCCL does without them. */
static struct gpu_group *group_with(struct p2p_comm *comm, uint32_t one, uint32_t other, uint64_t now_ns)
{
    uint32_t list[GPU_DEVICES_MAX], count = 0;
    struct gpu_group *wider = NULL;
    struct error why;
    if (comm->group != NULL && gpu_group_index(comm->group, one) != UINT32_MAX &&
        gpu_group_index(comm->group, other) != UINT32_MAX) {
        return comm->group;
    }
    for (uint32_t gpu = 0; gpu < gpu_devices_count(comm->p2p->gpus); gpu++) {
        if (gpu == one || gpu == other ||
            (comm->group != NULL && gpu_group_index(comm->group, gpu) != UINT32_MAX)) {
            list[count++] = gpu;
        }
    }
    if (gpu_group_hold_with(comm->p2p->gpus, list, count, now_ns, &wider, &why) != STATUS_OK) {
        return NULL;
    }
    if (comm->group != NULL) { /* the wider one does for all */
        gpu_group_discard(comm->group);
    }
    gpu_group_release(comm->group, now_ns);
    comm->group = wider;
    return wider;
}

static void drop_group(struct p2p_comm *comm, uint64_t now_ns)
{
    gpu_group_release(comm->group, now_ns);
    comm->group = NULL;
}

/*
 * The group that moves the message, with a reference; null: others move it. While the group forms, messages
 * do not wait for it.
 */
static struct gpu_group *take_group(const struct p2p_message *source, const struct p2p_message *sink,
                                    uint64_t bytes)
{
    struct p2p_comm *comm = sink != NULL ? sink->comm : NULL;
    struct error why;
    if (source == NULL || comm == NULL || comm->p2p->by_nccl == NULL || !source->on_gpu || !sink->on_gpu ||
        source->gpu == sink->gpu) {
        return NULL;
    }
    uint64_t now_ns = comm->p2p->now_ns;
    if (!comm->p2p->by_nccl(comm->p2p->by_nccl_context, source->gpu, sink->gpu, bytes, now_ns)) {
        return NULL;
    }
    struct gpu_group *group = group_with(comm, source->gpu, sink->gpu, now_ns);
    if (group == NULL) {
        return NULL;
    }
    switch (gpu_group_poll(group, now_ns, &why)) {
    case GPU_GROUP_FORMS:
        return NULL;
    case GPU_GROUP_READY:
    case GPU_GROUP_CALLS:
        gpu_group_share(group);
        return group;
    case GPU_GROUP_FAILED: /* the next message gets a new group */
        gpu_group_give_up(group, &why, now_ns);
        drop_group(comm, now_ns);
        return NULL;
    case GPU_GROUP_REFUSED:
        drop_group(comm, now_ns);
        return NULL;
    }
    return NULL;
}

/* Takes over the reference. */
static enum status pipe_by_nccl(struct gpu_group *group, const struct p2p_message *source,
                                const struct p2p_message *sink, const struct message_pipe_end *from,
                                const struct message_pipe_end *to, uint64_t bytes, struct error *error)
{
    struct message_nccl_end ends[] = {
        {.queue = from->queue, .buffer = from->buffer, .index = gpu_group_index(group, source->gpu)},
        {.queue = to->queue, .buffer = to->buffer, .index = gpu_group_index(group, sink->gpu)}};
    struct message_nccl *nccl = NULL;
    enum status status =
        message_nccl_new(group, &ends[0], &ends[1], bytes, sink->comm->p2p->now_ns, &nccl, error);
    return status == STATUS_OK ? message_pipe_new_by_nccl(nccl, from, to, bytes, &sink->transfer->pipe, error)
                               : status;
}

/* The send of a receive, if it is of this node. */
static struct p2p_message *send_of(const struct p2p_message *receive)
{
    return receive->arrival != NULL ? receive->arrival->send : NULL;
}

/*
 * Charges a pipe's pinned memory to the communicator's user. WAIT: the message waits until another pipe of
 * the same communicator and direction is over. So no message waits for another communicator, or for
 * operations. If those use all that the user may have, the message ends with LIMIT.
 */
enum room { ROOM_HAS, ROOM_WAIT, ROOM_REFUSED };

static enum room take_room(struct p2p_message *owner, enum message_way way, uint64_t bytes,
                           struct error *error)
{
    struct p2p_comm *comm = owner->comm;
    struct budget_account *account = comm->map->account;
    uint64_t held_bytes = comm->pipe_bytes[way];
    bool is_first = comm->crowded[way] == NULL || owner->is_next;
    if (bytes == 0) {
        return ROOM_HAS;
    }
    if (!is_first || held_bytes + bytes > P2P_PIPES_MAX_BYTES ||
        (held_bytes > 0 && budget_is_scarce(account, BUDGET_LANES))) {
        return ROOM_WAIT;
    }
    if (budget_charge(account, BUDGET_LANES, bytes, error) == STATUS_OK) {
        comm->pipe_bytes[way] += bytes;
        return ROOM_HAS;
    }
    return held_bytes > 0 ? ROOM_WAIT : ROOM_REFUSED;
}

static void give_room_back(struct p2p_comm *comm, enum message_way way, uint64_t bytes)
{
    comm->pipe_bytes[way] -= bytes;
    budget_release(comm->map->account, BUDGET_LANES, bytes);
}

/*
 * Makes a pipe for `owner`, which is source or sink. A side on another node is null. Returns false if the
 * owner must wait for memory, in whose queue it is then, or if it has ended.
 */
static bool begin_pipe(struct p2p_message *owner, enum message_way way, const struct p2p_message *source,
                       const struct p2p_message *sink, uint64_t bytes)
{
    struct p2p_comm *comm = owner->comm;
    bool direct = is_direct(source, sink);
    struct gpu_group *group = take_group(source, sink, bytes);
    uint64_t memory_bytes = direct || group != NULL ? 0 : message_pipe_memory_bytes(bytes);
    struct p2p_transfer *transfer = message_transfer(owner);
    struct message_pipe_end from, to;
    struct error error;
    switch (take_room(owner, way, memory_bytes, &error)) {
    case ROOM_HAS:
        break;
    case ROOM_WAIT:
        message_crowd(owner, way);
        return false;
    case ROOM_REFUSED:
        fail(owner, &error);
        return false;
    }
    enum status status = transfer != NULL ? pipe_end(source, MESSAGE_WAY_OUT, &from, &error)
                                          : error_set(&error, STATUS_NO_MEMORY, "no memory for a message");
    if (status == STATUS_OK) {
        status = pipe_end(sink, MESSAGE_WAY_IN, &to, &error);
    }
    if (status == STATUS_OK && group != NULL) {
        status = pipe_by_nccl(group, source, sink, &from, &to, bytes, &error);
    } else if (status == STATUS_OK) {
        status = message_pipe_new(comm->p2p->gpus, &from, &to, direct, bytes, &transfer->pipe, &error);
    } else {
        gpu_group_release(group, comm->p2p->now_ns);
    }
    if (status != STATUS_OK) {
        give_room_back(comm, way, memory_bytes);
        fail(owner, &error);
        return false;
    }
    if (source != NULL && sink != NULL && source->on_gpu && sink->on_gpu && source->gpu != sink->gpu) {
        gpu_message_count(comm->p2p->gpus, group != NULL);
    }
    transfer->pipe_bytes = memory_bytes;
    if (owner->is_next) {
        owner->is_next = false;
        staging_wake_next(comm, way);
    }
    return true;
}

void staging_wake_next(struct p2p_comm *comm, enum message_way way)
{
    struct p2p_message *next = comm->crowded[way];
    if (next != NULL && !comm->failed) {
        next->is_next = true;
        message_activate(next);
    }
}

void staging_free_pipe(struct p2p_message *message)
{
    struct p2p_comm *comm = message->comm;
    struct p2p_transfer *transfer = message->transfer;
    enum message_way way = message->sends ? MESSAGE_WAY_OUT : MESSAGE_WAY_IN;
    give_room_back(comm, way, transfer->pipe_bytes);
    if (transfer->pipe_bytes > 0) {
        staging_wake_next(comm, way);
    }
    message_pipe_free(transfer->pipe);
    transfer->pipe = NULL;
    transfer->pipe_bytes = 0;
}

/* Returns whether the pipe advanced. *ended: the pipe failed, and ended the message. */
static bool step_pipe(struct p2p_message *message, uint64_t now_ns, bool *ended)
{
    struct pacer *pacer = &message->comm->p2p->pacer;
    struct message_pipe *pipe = message->transfer->pipe;
    struct error error;
    bool advanced = false;
    *ended = message_pipe_step(pipe, now_ns, &advanced, &error) != STATUS_OK;
    pacer->advanced |= advanced;
    pacer->waits |= message_pipe_waits(pipe);
    if (*ended) {
        fail(message, &error);
    }
    return advanced;
}

bool staging_is_idle(struct p2p_message *message, uint64_t now_ns)
{
    struct message_pipe *pipe = message->transfer->pipe;
    if (message_pipe_is_idle(pipe, now_ns)) {
        return true;
    }
    message->comm->p2p->pacer.waits |= message_pipe_waits(pipe);
    return false;
}

/* --- Sends --- */

bool staging_is_small(const struct p2p_message *send)
{
    return send->on_gpu && send->count_elements > 0 && message_is_eager(send);
}

/* Pinned memory is only for running GPU copies. While the envelope waits for the network, the payload is kept
 * in ordinary memory. */
bool staging_copy_small(struct p2p_message *send, struct message_pass *pass)
{
    uint64_t bytes = message_bytes(send, send->count_elements);
    size_t chunk_bytes;
    bool ended;
    if ((send->transfer == NULL || send->transfer->pipe == NULL) &&
        !begin_pipe(send, MESSAGE_WAY_OUT, send, NULL, bytes)) {
        return false;
    }
    (void)step_pipe(send, pass->now_ns, &ended);
    if (ended) {
        return false;
    }
    struct p2p_transfer *transfer = send->transfer;
    const void *chunk = message_pipe_next(transfer->pipe, &chunk_bytes);
    if (chunk == NULL) {
        return false;
    }
    transfer->copy = malloc(chunk_bytes);
    if (transfer->copy == NULL) {
        struct error error = p2p_no_memory;
        fail(send, &error);
        return false;
    }
    memcpy(transfer->copy, chunk, chunk_bytes);
    message_pipe_take(transfer->pipe);
    message_pipe_drained(transfer->pipe);
    staging_free_pipe(send);
    send->buffer = transfer->copy;
    send->on_gpu = false;
    return true;
}

static void chunk_sent(void *context, enum status result, uint64_t now_ns)
{
    struct p2p_message *send = context;
    message_pipe_drained(send->transfer->pipe);
    if (send->state == MESSAGE_LEAVING) {
        message_leaving_step(send, now_ns);
    } else if (result != STATUS_OK) {
        link_payload_over(send, false); /* the cause arrives elsewhere */
    } else if (message_pipe_is_through(send->transfer->pipe)) {
        link_payload_over(send, true);
        message_end(send, &p2p_fine);
    } else {
        message_activate(send);
    }
}

static void send_chunks(struct p2p_message *send)
{
    struct p2p_transfer *transfer = send->transfer;
    size_t bytes;
    for (const void *chunk; (chunk = message_pipe_next(transfer->pipe, &bytes)) != NULL;) {
        enum status status = net_stream_send(transfer->stream, NULL, 0, chunk, bytes, chunk_sent, send);
        if (status == STATUS_UNREACHABLE) {
            link_payload_over(send, false); /* the communicator will be aborted */
            return;
        }
        if (status != STATUS_OK) {
            p2p_retry(send->comm->p2p);
            return;
        }
        message_pipe_take(transfer->pipe);
    }
}

void staging_send_step(struct p2p_message *send, struct message_pass *pass)
{
    bool ended;
    if (!send->transfer->has_slot) {
        return; /* the stream is lost */
    }
    if (send->transfer->pipe == NULL &&
        !begin_pipe(send, MESSAGE_WAY_OUT, send, NULL, message_bytes(send, send->count_elements))) {
        return;
    }
    if (send->transfer->stream == NULL && link_open_payload(send, NULL, 0, NULL) != STATUS_OK) {
        p2p_retry(send->comm->p2p);
        return;
    }
    (void)step_pipe(send, pass->now_ns, &ended);
    if (!ended) {
        send_chunks(send);
    }
}

/* --- Receives --- */

bool staging_needs_pipe(const struct p2p_message *receive)
{
    const struct p2p_message *send = send_of(receive);
    bool on_gpu = receive->on_gpu || (send != NULL && send->on_gpu);
    return on_gpu && receive->received_elements > 0;
}

bool staging_receives(struct p2p_message *receive, struct message_pass *pass)
{
    struct error error;
    bool ready;
    (void)pass;
    if ((receive->transfer == NULL || receive->transfer->pipe == NULL) &&
        !begin_pipe(receive, MESSAGE_WAY_IN, send_of(receive), receive,
                    message_bytes(receive, receive->received_elements))) {
        return false;
    }
    if (message_pipe_prepare(receive->transfer->pipe, &ready, &error) != STATUS_OK) {
        fail(receive, &error);
        return false;
    }
    receive->comm->p2p->pacer.waits |= !ready;
    return ready;
}

/* Stores bytes from a local send's buffer on the host. Returns whether the turn has no bytes left. */
static bool store_from(const struct p2p_message *send, struct p2p_message *receive, struct message_pass *pass)
{
    struct message_pipe *pipe = receive->transfer->pipe;
    size_t room_bytes;
    for (void *room; (room = message_pipe_room(pipe, &room_bytes)) != NULL;) {
        if (pass->left_bytes == 0) {
            return true;
        }
        room_bytes = room_bytes < pass->left_bytes ? room_bytes : (size_t)pass->left_bytes;
        memcpy(room, (const unsigned char *)send->buffer + receive->moved_bytes, room_bytes);
        message_pipe_stored(pipe, room_bytes);
        receive->moved_bytes += room_bytes;
        pass->left_bytes -= room_bytes;
    }
    return false;
}

/* Copies chunks to the receive's own buffer on the host. Returns whether the pipe has room again. */
static bool take_to(struct p2p_message *receive)
{
    struct message_pipe *pipe = receive->transfer->pipe;
    bool taken = false;
    size_t bytes;
    for (const void *chunk; (chunk = message_pipe_next(pipe, &bytes)) != NULL;) {
        memcpy((unsigned char *)receive->buffer + receive->moved_bytes, chunk, bytes);
        message_pipe_take(pipe);
        message_pipe_drained(pipe);
        receive->moved_bytes += bytes;
        taken = true;
    }
    return taken;
}

bool staging_receive_step(struct p2p_message *receive, struct message_pass *pass)
{
    const struct p2p_message *send = send_of(receive);
    bool ended;
    if (send != NULL && !send->on_gpu) {
        pass->more |= store_from(send, receive, pass);
    }
    bool advanced = step_pipe(receive, pass->now_ns, &ended);
    if (!ended && !receive->on_gpu && take_to(receive)) {
        (void)step_pipe(receive, pass->now_ns, &ended);
        pass->more = true;
    }
    if (ended) {
        return false;
    }
    bool through = message_pipe_is_through(receive->transfer->pipe);
    pass->resumes |= advanced && receive->state == MESSAGE_RECEIVING;
    pass->more |= advanced && !through && send != NULL && !send->on_gpu;
    return through;
}
