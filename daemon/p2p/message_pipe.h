#ifndef DAEMON_P2P_MESSAGE_PIPE_H
#define DAEMON_P2P_MESSAGE_PIPE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/base/error.h"
#include "daemon/gpu/queue.h"
#include "daemon/p2p/message_nccl.h"

/*
 * Moves one message's bytes from a GPU's buffer, to a GPU's buffer, or both, through a ring of chunks of
 * pinned memory. While one chunk is filled, earlier chunks are drained, in order. So the copy from a GPU, the
 * transport, and the copy to a GPU run at the same time. The memory does not grow with the message. Each end
 * is either a GPU's buffer or the caller. The pipe puts a GPU's copies in that GPU's queue; the caller stores
 * or takes chunks itself.
 *
 * Only one thread at a time may use a pipe. No function blocks: message_pipe_step checks how far the GPUs
 * are.
 */
struct message_pipe;

/* Large enough that a copy (10 to 40 us over PCIe) takes several times as long as queueing it and noticing
 * its end. Small enough that the first chunk is soon sent. */
#define MESSAGE_PIPE_CHUNK_BYTES (UINT64_C(512) << 10)
/* The chunks together hold NET_STREAM_WINDOW_BYTES. A sent chunk is free once it is acknowledged, and the
 * payload's stream never has more than that window in flight. */
#define MESSAGE_PIPE_CHUNKS_MAX 8

struct message_pipe_end {
    struct gpu_queue *queue; /* null: the caller is this end */
    void *buffer;            /* on the queue's GPU */
};

/* How much pinned memory a pipe for total_bytes takes: a power of two, as gpu_pinned_begin allocates it. */
uint64_t message_pipe_memory_bytes(uint64_t total_bytes);

/*
 * direct: both ends are GPUs, and the source's GPU reaches the sink's buffer, so one copy without pinned
 * memory is enough. total_bytes must be at least 1. The queues and gpus must outlive the pipe. NO_MEMORY, or
 * the driver's error.
 */
enum status message_pipe_new(struct gpu_devices *gpus, const struct message_pipe_end *source,
                             const struct message_pipe_end *sink, bool direct, uint64_t total_bytes,
                             struct message_pipe **out, struct error *error) COMM_MUST_USE;
/* Both ends are GPUs, and NCCL moves the message. Takes over `nccl`, also if it fails. NO_MEMORY. */
enum status message_pipe_new_by_nccl(struct message_nccl *nccl, const struct message_pipe_end *source,
                                     const struct message_pipe_end *sink, uint64_t total_bytes,
                                     struct message_pipe **out, struct error *error) COMM_MUST_USE;
/* Whether its pinned memory is there. Until then, it has no room for bytes. message_pipe_step looks, too.
 * NO_MEMORY, DEVICE: it will never be there. */
enum status message_pipe_prepare(struct message_pipe *pipe, bool *ready, struct error *error) COMM_MUST_USE;
bool message_pipe_has_memory(const struct message_pipe *pipe);
/* Call it once the pipe is idle, or through. Null is accepted. */
void message_pipe_free(struct message_pipe *pipe);

/*
 * Queues as many copies as there is room for, and checks which are done; sets *advanced if some were. DEVICE:
 * a GPU failed, no more copies are queued, and the pipe never gets through.
 */
enum status message_pipe_step(struct message_pipe *pipe, uint64_t now_ns, bool *advanced,
                              struct error *error) COMM_MUST_USE;
/* Whether GPUs have copies of the pipe under way, or its memory is not there, so that it must be stepped
 * again. */
bool message_pipe_waits(const struct message_pipe *pipe);
/* Whether every byte has reached the sink, and nothing uses the chunks any more. */
bool message_pipe_is_through(const struct message_pipe *pipe);
/* How many bytes have reached the sink. */
uint64_t message_pipe_drained_bytes(const struct message_pipe *pipe);
/* Gives the pipe up, so that no more copies are queued. Returns whether GPUs, and the caller, have released
 * buffers and chunks. */
bool message_pipe_is_idle(struct message_pipe *pipe, uint64_t now_ns);

/* If the caller is the source: where to store the next bytes, and in *room_bytes how many at most. Null:
 * there is no room now. message_pipe_stored then reports how many were stored. */
void *message_pipe_room(const struct message_pipe *pipe, size_t *room_bytes);
void message_pipe_stored(struct message_pipe *pipe, size_t bytes);

/* If the caller is the sink: the next filled chunk; null if there is none now. A chunk that the caller takes
 * is its own until it reports it drained; chunks must be drained in the order taken. */
const void *message_pipe_next(const struct message_pipe *pipe, size_t *bytes);
void message_pipe_take(struct message_pipe *pipe);
void message_pipe_drained(struct message_pipe *pipe);

#endif
