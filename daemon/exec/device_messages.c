#include <stdlib.h>
#include <string.h>

#include "daemon/exec/exec_internal.h"
#include "proto/message_header.h"

/*
 * Messages whose buffers are on GPUs. Between nodes, and where a GPU does not reach the other's memory, their
 * bytes go through a pipe, chunk by chunk; within a node otherwise in one copy. What goes with its envelope
 * is copied to the host first.
 *
 * A failure here is one of a GPU, or of memory for it, in the middle of a message of two ranks: it ends the
 * communicator, as in an operation.
 */

_Static_assert(MESSAGE_PIPE_CHUNK_BYTES *MESSAGE_PIPE_CHUNKS_MAX <= EXEC_PIPES_MAX_BYTES,
               "every pipe has its turn");
_Static_assert(MESSAGE_EAGER_MAX_BYTES <= MESSAGE_PIPE_CHUNK_BYTES, "what is small is one chunk");

static uint64_t bytes_of(const struct exec_posted *posted, uint64_t count_elements)
{
    return count_elements * dtype_size_bytes(posted->call.dtype);
}

static void fail(const struct exec_posted *posted, struct error *error, struct message_pass *pass)
{
    if (pass->fault.status == STATUS_OK) {
        (void)error_prefix(error, "\"%s\"", posted->comm->options.name);
        pass->fault = *error;
    }
}

/* --- Pipes --- */

/* Each way has a queue of its own, beside that of operations: a GPU copies both ways at once. */
static enum status message_queue(struct exec_comm *comm, uint32_t gpu, enum message_way way,
                                 struct gpu_queue **out, struct error *error)
{
    struct exec_messages *messages = &comm->messages;
    if (messages->queues == NULL) {
        messages->queues = calloc((size_t)GPU_DEVICES_MAX * MESSAGE_WAYS, sizeof(struct gpu_queue *));
        if (messages->queues == NULL) {
            return error_set(error, STATUS_NO_MEMORY, "no memory for queues");
        }
    }
    struct gpu_queue **queue = &messages->queues[gpu * MESSAGE_WAYS + (uint32_t)way];
    enum status status = *queue == NULL ? gpu_queue_new(comm->exec->gpus, gpu, queue, error) : STATUS_OK;
    *out = *queue;
    return status;
}

void device_messages_release(struct exec_comm *comm)
{
    struct gpu_queue **queues = comm->messages.queues;
    for (uint32_t i = 0; queues != NULL && i < GPU_DEVICES_MAX * MESSAGE_WAYS; i++) {
        gpu_queue_free(queues[i]);
    }
    free(queues);
}

/* The end of a pipe that `posted`'s buffer is; null, or on the host: the caller's. */
static enum status pipe_end(const struct exec_posted *posted, enum message_way way,
                            struct message_pipe_end *end, struct error *error)
{
    *end = (struct message_pipe_end){.queue = NULL};
    if (posted == NULL || !posted->call.on_gpu) {
        return STATUS_OK;
    }
    end->buffer = posted->call.buffer;
    return message_queue(posted->comm, posted->call.gpu, way, &end->queue, error);
}

static bool is_direct(const struct exec_posted *source, const struct exec_posted *sink)
{
    if (source == NULL || sink == NULL || !source->call.on_gpu || !sink->call.on_gpu) {
        return false;
    }
    return source->call.gpu == sink->call.gpu ||
           gpu_devices_reaches(source->comm->exec->gpus, source->call.gpu, sink->call.gpu);
}

/* Of `owner`, one of the two; the one that is of another node is null. False: not now, or never. */
static bool begin_pipe(struct exec_posted *owner, enum message_way way, const struct exec_posted *source,
                       const struct exec_posted *sink, uint64_t bytes, struct message_pass *pass)
{
    struct exec_comm *comm = owner->comm;
    bool direct = is_direct(source, sink);
    uint64_t memory_bytes = direct ? 0 : message_pipe_memory_bytes(bytes);
    if (memory_bytes > 0 &&
        (pass->crowded[way] || comm->messages.pipe_bytes[way] + memory_bytes > EXEC_PIPES_MAX_BYTES)) {
        pass->crowded[way] = true;
        return false;
    }
    struct message_pipe_end from, to;
    struct error error;
    enum status status = pipe_end(source, MESSAGE_WAY_OUT, &from, &error);
    if (status == STATUS_OK) {
        status = pipe_end(sink, MESSAGE_WAY_IN, &to, &error);
    }
    if (status == STATUS_OK) {
        status = message_pipe_new(comm->exec->gpus, &from, &to, direct, bytes, &owner->pipe, &error);
    }
    if (status != STATUS_OK) {
        fail(owner, &error, pass);
        return false;
    }
    owner->pipe_bytes = memory_bytes;
    comm->messages.pipe_bytes[way] += memory_bytes;
    return true;
}

void device_message_free_pipe(struct exec_posted *posted)
{
    enum message_way way = posted->call.sends ? MESSAGE_WAY_OUT : MESSAGE_WAY_IN;
    if (posted->pipe_bytes > 0) {
        posted->comm->messages.pipe_bytes[way] -= posted->pipe_bytes;
        exec_wake(posted->comm->exec); /* others may wait for it */
    }
    message_pipe_free(posted->pipe);
    posted->pipe = NULL;
    posted->pipe_bytes = 0;
}

/* Returns whether chunks came to their end. */
static bool step_pipe(struct exec_posted *posted, struct message_pass *pass)
{
    struct exec *exec = posted->comm->exec;
    struct error error;
    bool advanced = false;
    if (message_pipe_step(posted->pipe, pass->now_ns, &advanced, &error) != STATUS_OK) {
        fail(posted, &error, pass);
    }
    exec->devices_advanced |= advanced;
    exec->waits_for_devices |= message_pipe_waits(posted->pipe);
    return advanced;
}

bool device_message_is_idle(struct exec_posted *posted, uint64_t now_ns)
{
    if (posted->pipe == NULL || message_pipe_is_idle(posted->pipe, now_ns)) {
        return true;
    }
    posted->comm->exec->waits_for_devices |= message_pipe_waits(posted->pipe);
    return false;
}

/* --- Sends to other nodes --- */

bool device_message_is_small(const struct exec_posted *send)
{
    uint64_t bytes = bytes_of(send, send->call.count_elements);
    return send->call.on_gpu && bytes > 0 && bytes <= MESSAGE_EAGER_MAX_BYTES &&
           send->comm->local_of_rank[send->call.peer_rank] == UINT32_MAX;
}

/* Pinned memory is for what GPUs are at: where the envelope waits for the network, the payload is elsewhere.
 */
bool device_message_copy_small(struct exec_posted *send, struct message_pass *pass)
{
    uint64_t bytes = bytes_of(send, send->call.count_elements);
    size_t chunk_bytes;
    if (send->copy != NULL) {
        return true;
    }
    if (send->pipe == NULL && !begin_pipe(send, MESSAGE_WAY_OUT, send, NULL, bytes, pass)) {
        pass->held = true;
        return false;
    }
    (void)step_pipe(send, pass);
    const void *chunk = message_pipe_next(send->pipe, &chunk_bytes);
    if (chunk == NULL) {
        return false;
    }
    send->copy = malloc(chunk_bytes);
    if (send->copy == NULL) {
        struct error error;
        error_set(&error, STATUS_NO_MEMORY, "no memory for a message");
        fail(send, &error, pass);
        return false;
    }
    memcpy(send->copy, chunk, chunk_bytes);
    message_pipe_take(send->pipe);
    message_pipe_drained(send->pipe);
    device_message_free_pipe(send);
    send->call.buffer = send->copy;
    send->call.on_gpu = false;
    return true;
}

void device_message_give_up(struct exec_posted *posted)
{
    if (posted->state == MESSAGE_SENDING && posted->pipe != NULL) {
        posted->comm->messages.nodes[posted->node].payloads--;
    }
    message_close_payload(posted, false);
    posted->state = MESSAGE_LEAVING;
    message_activate(posted);
}

/* Where the connection is lost, the communicator's end follows. */
static void chunk_sent(void *context, enum status result, uint64_t now_ns)
{
    static const struct error fine = {.status = STATUS_OK};
    struct exec_posted *send = context;
    (void)now_ns;
    message_pipe_drained(send->pipe);
    exec_wake(send->comm->exec);
    if (send->state == MESSAGE_SENDING && result != STATUS_OK) {
        device_message_give_up(send);
    } else if (send->state == MESSAGE_SENDING && message_pipe_is_through(send->pipe)) {
        send->comm->messages.nodes[send->node].payloads--;
        message_close_payload(send, true);
        message_end(send->comm, send, &fine);
    }
}

static void send_chunks(struct exec_posted *send, struct message_pass *pass)
{
    size_t bytes;
    for (const void *chunk; (chunk = message_pipe_next(send->pipe, &bytes)) != NULL;) {
        enum status status = net_stream_send(send->stream, NULL, 0, chunk, bytes, chunk_sent, send);
        if (status == STATUS_UNREACHABLE) {
            device_message_give_up(send);
            return;
        }
        if (status != STATUS_OK) {
            pass->more = true; /* no memory: again */
            return;
        }
        message_pipe_take(send->pipe);
    }
}

void device_message_send_step(struct exec_posted *send, struct message_pass *pass)
{
    struct exec_comm *comm = send->comm;
    struct exec_message_node *node = &comm->messages.nodes[send->node];
    if (send->state == MESSAGE_ACCEPTED) {
        uint64_t bytes = bytes_of(send, send->call.count_elements);
        if (node->payloads >= EXEC_PAYLOADS_MAX ||
            (send->pipe == NULL && !begin_pipe(send, MESSAGE_WAY_OUT, send, NULL, bytes, pass))) {
            return;
        }
        send->stream = message_open_payload(comm, send, NULL, 0, NULL);
        if (send->stream == NULL) {
            return;
        }
        node->payloads++;
        send->state = MESSAGE_SENDING;
    }
    (void)step_pipe(send, pass);
    send_chunks(send, pass);
}

/* --- Receives --- */

bool device_message_needs_pipe(const struct exec_posted *receive)
{
    bool on_gpu = receive->call.on_gpu || (receive->partner != NULL && receive->partner->call.on_gpu);
    return on_gpu && receive->pipe == NULL && receive->received_elements > 0;
}

bool device_message_receives(struct exec_posted *receive, struct message_pass *pass)
{
    return begin_pipe(receive, MESSAGE_WAY_IN, receive->partner, receive,
                      bytes_of(receive, receive->received_elements), pass);
}

/* From a sender's buffer on the host of this node. Returns whether the step is full. */
static bool store_from(const struct exec_posted *send, struct exec_posted *receive)
{
    uint64_t stored_bytes = 0;
    size_t room_bytes;
    for (void *room; (room = message_pipe_room(receive->pipe, &room_bytes)) != NULL;) {
        if (stored_bytes >= EXEC_LOCAL_STEP_BYTES) {
            return true;
        }
        memcpy(room, (const unsigned char *)send->call.buffer + receive->moved_bytes, room_bytes);
        message_pipe_stored(receive->pipe, room_bytes);
        receive->moved_bytes += room_bytes;
        stored_bytes += room_bytes;
    }
    return false;
}

/* To its own buffer on the host. Returns whether there is room again. */
static bool take_to(struct exec_posted *receive)
{
    bool taken = false;
    size_t bytes;
    for (const void *chunk; (chunk = message_pipe_next(receive->pipe, &bytes)) != NULL;) {
        memcpy((unsigned char *)receive->call.buffer + receive->moved_bytes, chunk, bytes);
        message_pipe_take(receive->pipe);
        message_pipe_drained(receive->pipe);
        receive->moved_bytes += bytes;
        taken = true;
    }
    return taken;
}

bool device_message_receive_step(struct exec_posted *receive, struct message_pass *pass)
{
    const struct exec_posted *send = receive->partner;
    if (send != NULL && !send->call.on_gpu) {
        pass->more |= store_from(send, receive);
    }
    bool advanced = step_pipe(receive, pass);
    if (!receive->call.on_gpu && take_to(receive)) {
        (void)step_pipe(receive, pass);
        pass->more = true;
    }
    bool through = message_pipe_is_through(receive->pipe);
    pass->resumes |= advanced && receive->state == MESSAGE_RECEIVING;
    pass->more |= advanced && !through && send != NULL && !send->call.on_gpu;
    return through;
}
