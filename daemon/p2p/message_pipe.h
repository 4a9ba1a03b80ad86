#ifndef DAEMON_P2P_MESSAGE_PIPE_H
#define DAEMON_P2P_MESSAGE_PIPE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/base/error.h"
#include "daemon/gpu/queue.h"

/*
 * The way of one message's bytes from or to a GPU's buffer, or both: a ring of chunks of pinned memory. While
 * one chunk is filled, those before it are drained, in order: so copying from a GPU, what carries the bytes,
 * and copying to a GPU go on at once, in memory that does not grow with the message. An end is a GPU's
 * buffer, whose copies the pipe puts in that GPU's queue; or the caller, who stores or takes chunks.
 *
 * One thread at a time. Nothing here waits: message_pipe_step looks how far the GPUs are.
 */
struct message_pipe;

/* Large enough that a copy takes several times as long (10 to 40 us over PCIe) as putting it and seeing its
 * end; small enough that the first chunk is soon on its way. */
#define MESSAGE_PIPE_CHUNK_BYTES (UINT64_C(512) << 10)
/* With the chunks NET_STREAM_WINDOW_BYTES: a chunk that was sent is free once it is acknowledged, and more
 * than the window is not under way on the payload's stream. */
#define MESSAGE_PIPE_CHUNKS_MAX 8

struct message_pipe_end {
    struct gpu_queue *queue; /* null: the caller is this end */
    void *buffer;            /* on the queue's GPU */
};

/* Pinned memory that a pipe for so many bytes takes: a power of two, as gpu_pinned_alloc gives it. */
uint64_t message_pipe_memory_bytes(uint64_t total_bytes);

/*
 * direct: both ends are GPUs, and the source's reaches the sink's buffer: one copy, without pinned memory.
 * total_bytes: at least 1. The queues and gpus outlive the pipe. NO_MEMORY, or what the driver said.
 */
enum status message_pipe_new(struct gpu_devices *gpus, const struct message_pipe_end *source,
                             const struct message_pipe_end *sink, bool direct, uint64_t total_bytes,
                             struct message_pipe **out, struct error *error) COMM_MUST_USE;
/* Once it is idle, or through. Null is accepted. */
void message_pipe_free(struct message_pipe *pipe);

/*
 * Puts what copies there is room for, and looks which are done; *advanced is set when some were. DEVICE: a
 * GPU failed; nothing is put any more, and the pipe never gets through.
 */
enum status message_pipe_step(struct message_pipe *pipe, uint64_t now_ns, bool *advanced,
                              struct error *error) COMM_MUST_USE;
/* Whether GPUs have copies of it under way: it is to be stepped again. */
bool message_pipe_waits(const struct message_pipe *pipe);
/* Every byte has come to its end, and nobody uses the chunks any more. */
bool message_pipe_is_through(const struct message_pipe *pipe);
/* That have come to their end. */
uint64_t message_pipe_drained_bytes(const struct message_pipe *pipe);
/* Given up, nothing is put any more: whether GPUs, and the caller, have let go of buffers and chunks. */
bool message_pipe_is_idle(struct message_pipe *pipe, uint64_t now_ns);

/* Of a source that is the caller: where the next bytes are to be stored, and how many at most; null: there is
 * no room now. */
void *message_pipe_room(const struct message_pipe *pipe, size_t *room_bytes);
void message_pipe_stored(struct message_pipe *pipe, size_t bytes);

/* Of a sink that is the caller: the next chunk that is filled; null: there is none now. Once taken, it stays
 * the caller's until drained; chunks are drained in the order taken. */
const void *message_pipe_next(const struct message_pipe *pipe, size_t *bytes);
void message_pipe_take(struct message_pipe *pipe);
void message_pipe_drained(struct message_pipe *pipe);

#endif
