#include "daemon/p2p/message_pipe.h"

#include <assert.h>
#include <stdlib.h>

/* gpu_pinned_begin allocates no less. */
#define PIPE_MEMORY_MIN_BYTES UINT64_C(4096)

/*
 * The counters count chunks of the whole message, from 0: fill_begun >= filled >= drain_begun >= drained, and
 * fill_begun - drained is at most slot_count. A direct pipe has one chunk, the whole message, and no slot.
 */
struct message_pipe {
    struct gpu_devices *gpus;
    struct message_pipe_end source, sink;
    bool direct;
    struct message_nccl *nccl; /* moves a direct message; null: a copy does */
    bool given_up;
    uint64_t total_bytes;
    uint64_t chunk_bytes;
    uint64_t chunk_count;
    uint32_t slot_count;
    struct gpu_pinned pinned; /* not direct: no slot before it is there */
    size_t stored_bytes;      /* by the caller, of the incomplete chunk */
    uint64_t fill_begun, filled, drain_begun, drained;
    uint64_t fill_marks[MESSAGE_PIPE_CHUNKS_MAX], drain_marks[MESSAGE_PIPE_CHUNKS_MAX]; /* by slot */
};

_Static_assert((MESSAGE_PIPE_CHUNKS_MAX & (MESSAGE_PIPE_CHUNKS_MAX - 1)) == 0, "rings are powers of two");

uint64_t message_pipe_memory_bytes(uint64_t total_bytes)
{
    uint64_t bytes = PIPE_MEMORY_MIN_BYTES;
    while (bytes < total_bytes && bytes < MESSAGE_PIPE_CHUNK_BYTES * MESSAGE_PIPE_CHUNKS_MAX) {
        bytes *= 2;
    }
    return bytes;
}

enum status message_pipe_new(struct gpu_devices *gpus, const struct message_pipe_end *source,
                             const struct message_pipe_end *sink, bool direct, uint64_t total_bytes,
                             struct message_pipe **out, struct error *error)
{
    assert(total_bytes > 0 && (!direct || (source->queue != NULL && sink->queue != NULL)));
    struct message_pipe *pipe = calloc(1, sizeof *pipe);
    if (pipe == NULL) {
        return error_set(error, STATUS_NO_MEMORY, "no memory for a message");
    }
    pipe->gpus = gpus;
    pipe->source = *source;
    pipe->sink = *sink;
    pipe->direct = direct;
    pipe->total_bytes = total_bytes;
    pipe->chunk_bytes = direct ? total_bytes : MESSAGE_PIPE_CHUNK_BYTES;
    pipe->chunk_count = (total_bytes - 1) / pipe->chunk_bytes + 1;
    if (!direct) {
        enum status status =
            gpu_pinned_begin(gpus, message_pipe_memory_bytes(total_bytes), &pipe->pinned, error);
        if (status != STATUS_OK) {
            free(pipe);
            return status;
        }
    }
    *out = pipe;
    return STATUS_OK;
}

enum status message_pipe_prepare(struct message_pipe *pipe, bool *ready, struct error *error)
{
    enum status status = STATUS_OK;
    if (!pipe->direct && pipe->slot_count == 0 && !pipe->given_up) {
        uint64_t memory_bytes = message_pipe_memory_bytes(pipe->total_bytes);
        status = gpu_pinned_poll(pipe->gpus, &pipe->pinned, error);
        pipe->given_up = status != STATUS_OK;
        if (pipe->pinned.memory != NULL) {
            pipe->slot_count =
                memory_bytes > pipe->chunk_bytes ? (uint32_t)(memory_bytes / pipe->chunk_bytes) : 1;
        }
    }
    *ready = message_pipe_has_memory(pipe);
    return status;
}

bool message_pipe_has_memory(const struct message_pipe *pipe)
{
    return pipe->direct || pipe->slot_count > 0;
}

enum status message_pipe_new_by_nccl(struct message_nccl *nccl, const struct message_pipe_end *source,
                                     const struct message_pipe_end *sink, uint64_t total_bytes,
                                     struct message_pipe **out, struct error *error)
{
    enum status status = message_pipe_new(NULL, source, sink, true, total_bytes, out, error);
    if (status == STATUS_OK) {
        (*out)->nccl = nccl;
    } else {
        message_nccl_free(nccl);
    }
    return status;
}

void message_pipe_free(struct message_pipe *pipe)
{
    if (pipe != NULL && pipe->nccl != NULL) {
        message_nccl_free(pipe->nccl);
        free(pipe);
    } else if (pipe != NULL) {
        gpu_pinned_drop(pipe->gpus, &pipe->pinned);
        free(pipe);
    }
}

static uint64_t bytes_of_chunk(const struct message_pipe *pipe, uint64_t chunk)
{
    uint64_t left = pipe->total_bytes - chunk * pipe->chunk_bytes;
    return left < pipe->chunk_bytes ? left : pipe->chunk_bytes;
}

static unsigned char *memory_of_chunk(const struct message_pipe *pipe, uint64_t chunk)
{
    return (unsigned char *)pipe->pinned.memory + chunk % pipe->slot_count * pipe->chunk_bytes;
}

static unsigned char *place_at(const struct message_pipe_end *end, const struct message_pipe *pipe,
                               uint64_t chunk)
{
    return (unsigned char *)end->buffer + chunk * pipe->chunk_bytes;
}

static bool has_room(const struct message_pipe *pipe)
{
    return pipe->fill_begun < pipe->chunk_count && pipe->fill_begun - pipe->drained < pipe->slot_count;
}

/* --- GPUs --- */

/* Queues a copy and a mark behind it; counts *begun up once the copy is queued. If the mark fails, it tries
 * once more, so that the copy's end can be waited for. */
static enum status put_copy(struct gpu_queue *queue, void *target, const void *source, uint64_t bytes,
                            uint64_t *mark, uint64_t *begun, struct error *error)
{
    enum status status = gpu_queue_copy(queue, target, source, bytes, error);
    if (status != STATUS_OK) {
        return status;
    }
    *begun += 1;
    *mark = 0;
    status = gpu_queue_mark(queue, mark, error);
    if (status != STATUS_OK && gpu_queue_mark(queue, mark, NULL) != STATUS_OK) {
        *mark = 0;
    }
    return status;
}

/* Counts *done up for each chunk whose mark is reached, in order. */
static enum status look(struct gpu_queue *queue, const uint64_t *marks, uint32_t slot_count, uint64_t begun,
                        uint64_t *done, uint64_t now_ns, struct error *error)
{
    enum status status = STATUS_OK;
    while (status == STATUS_OK && *done < begun &&
           gpu_queue_is_done(queue, marks[*done % slot_count], now_ns, &status, error)) {
        *done += status == STATUS_OK ? 1 : 0;
    }
    return status;
}

static enum status step_direct(struct message_pipe *pipe, uint64_t now_ns, struct error *error)
{
    struct gpu_queue *queue = pipe->source.queue;
    enum status status = STATUS_OK;
    if (pipe->fill_begun == 0 && !pipe->given_up) {
        status = put_copy(queue, pipe->sink.buffer, pipe->source.buffer, pipe->total_bytes,
                          &pipe->fill_marks[0], &pipe->fill_begun, error);
    }
    if (status == STATUS_OK) {
        status = look(queue, pipe->fill_marks, 1, pipe->fill_begun, &pipe->filled, now_ns, error);
    }
    pipe->drain_begun = pipe->drained = pipe->filled;
    return status;
}

static enum status step_nccl(struct message_pipe *pipe, uint64_t now_ns, struct error *error)
{
    bool done = false;
    if (pipe->given_up) {
        return STATUS_OK;
    }
    enum status status = message_nccl_step(pipe->nccl, now_ns, &done, error);
    pipe->fill_begun = 1;
    pipe->filled = pipe->drain_begun = pipe->drained = done ? 1 : 0;
    return status;
}

static enum status step_source(struct message_pipe *pipe, uint64_t now_ns, struct error *error)
{
    struct gpu_queue *queue = pipe->source.queue;
    enum status status =
        look(queue, pipe->fill_marks, pipe->slot_count, pipe->fill_begun, &pipe->filled, now_ns, error);
    while (status == STATUS_OK && has_room(pipe) && !pipe->given_up) {
        uint64_t chunk = pipe->fill_begun;
        status = put_copy(queue, memory_of_chunk(pipe, chunk), place_at(&pipe->source, pipe, chunk),
                          bytes_of_chunk(pipe, chunk), &pipe->fill_marks[chunk % pipe->slot_count],
                          &pipe->fill_begun, error);
    }
    return status;
}

static enum status step_sink(struct message_pipe *pipe, uint64_t now_ns, struct error *error)
{
    struct gpu_queue *queue = pipe->sink.queue;
    enum status status = STATUS_OK;
    while (status == STATUS_OK && pipe->drain_begun < pipe->filled && !pipe->given_up) {
        uint64_t chunk = pipe->drain_begun;
        status = put_copy(queue, place_at(&pipe->sink, pipe, chunk), memory_of_chunk(pipe, chunk),
                          bytes_of_chunk(pipe, chunk), &pipe->drain_marks[chunk % pipe->slot_count],
                          &pipe->drain_begun, error);
    }
    return status == STATUS_OK ? look(queue, pipe->drain_marks, pipe->slot_count, pipe->drain_begun,
                                      &pipe->drained, now_ns, error)
                               : status;
}

enum status message_pipe_step(struct message_pipe *pipe, uint64_t now_ns, bool *advanced, struct error *error)
{
    uint64_t before = pipe->filled + pipe->drained;
    enum status status = STATUS_OK;
    if (pipe->nccl != NULL) {
        status = step_nccl(pipe, now_ns, error);
    } else if (pipe->direct) {
        status = step_direct(pipe, now_ns, error);
    } else {
        bool ready;
        status = message_pipe_prepare(pipe, &ready, error);
        /* First the sink: drained chunks are room for the source. */
        if (pipe->sink.queue != NULL && status == STATUS_OK) {
            status = step_sink(pipe, now_ns, error);
        }
        if (pipe->source.queue != NULL && status == STATUS_OK) {
            status = step_source(pipe, now_ns, error);
        }
    }
    pipe->given_up = pipe->given_up || status != STATUS_OK;
    *advanced = *advanced || pipe->filled + pipe->drained != before;
    return status;
}

bool message_pipe_waits(const struct message_pipe *pipe)
{
    return pipe->pinned.pinning != NULL || (pipe->source.queue != NULL && pipe->filled < pipe->fill_begun) ||
           (pipe->sink.queue != NULL && pipe->drained < (pipe->given_up ? pipe->drain_begun : pipe->filled));
}

bool message_pipe_is_through(const struct message_pipe *pipe)
{
    return pipe->drained == pipe->chunk_count;
}

uint64_t message_pipe_drained_bytes(const struct message_pipe *pipe)
{
    return message_pipe_is_through(pipe) ? pipe->total_bytes : pipe->drained * pipe->chunk_bytes;
}

/* Whether the GPU has reached all marks. A GPU that failed accesses no memory any more. */
static bool has_let_go(struct gpu_queue *queue, const uint64_t *marks, uint32_t slot_count, uint64_t begun,
                       uint64_t *done, uint64_t now_ns)
{
    while (*done < begun) {
        enum status status;
        if (!gpu_queue_is_done(queue, marks[*done % slot_count], now_ns, &status, NULL)) {
            return false;
        }
        *done += 1;
    }
    return true;
}

bool message_pipe_is_idle(struct message_pipe *pipe, uint64_t now_ns)
{
    uint32_t slot_count = pipe->direct ? 1 : pipe->slot_count;
    bool idle = true;
    pipe->given_up = true;
    if (pipe->nccl != NULL) {
        idle = message_nccl_is_idle(pipe->nccl, now_ns);
        pipe->filled = idle ? pipe->fill_begun : pipe->filled;
        return idle;
    }
    if (pipe->source.queue != NULL) {
        idle = has_let_go(pipe->source.queue, pipe->fill_marks, slot_count, pipe->fill_begun, &pipe->filled,
                          now_ns);
    }
    if (pipe->direct) {
        return idle;
    }
    if (pipe->sink.queue != NULL) {
        return has_let_go(pipe->sink.queue, pipe->drain_marks, slot_count, pipe->drain_begun, &pipe->drained,
                          now_ns) &&
               idle;
    }
    return idle && pipe->drained == pipe->drain_begun;
}

/* --- The caller --- */

void *message_pipe_room(const struct message_pipe *pipe, size_t *room_bytes)
{
    if (!has_room(pipe) || pipe->given_up) {
        return NULL;
    }
    *room_bytes = (size_t)bytes_of_chunk(pipe, pipe->fill_begun) - pipe->stored_bytes;
    return memory_of_chunk(pipe, pipe->fill_begun) + pipe->stored_bytes;
}

void message_pipe_stored(struct message_pipe *pipe, size_t bytes)
{
    pipe->stored_bytes += bytes;
    assert(pipe->stored_bytes <= bytes_of_chunk(pipe, pipe->fill_begun));
    if (pipe->stored_bytes == bytes_of_chunk(pipe, pipe->fill_begun)) {
        pipe->stored_bytes = 0;
        pipe->filled = ++pipe->fill_begun;
    }
}

const void *message_pipe_next(const struct message_pipe *pipe, size_t *bytes)
{
    if (pipe->drain_begun == pipe->filled || pipe->given_up) {
        return NULL;
    }
    *bytes = (size_t)bytes_of_chunk(pipe, pipe->drain_begun);
    return memory_of_chunk(pipe, pipe->drain_begun);
}

void message_pipe_take(struct message_pipe *pipe)
{
    assert(pipe->drain_begun < pipe->filled);
    pipe->drain_begun++;
}

void message_pipe_drained(struct message_pipe *pipe)
{
    assert(pipe->drained < pipe->drain_begun);
    pipe->drained++;
}
