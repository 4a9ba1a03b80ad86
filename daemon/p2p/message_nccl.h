#ifndef DAEMON_P2P_MESSAGE_NCCL_H
#define DAEMON_P2P_MESSAGE_NCCL_H

#include "daemon/gpu/groups.h"
#include "daemon/gpu/queue.h"

/*
 * One message's bytes from a GPU to another one of this node, by NCCL's ncclSend and ncclRecv, as one group.
 * Only the main thread may use it. No function blocks.
 */
struct message_nccl;

/* Bounds how long a message that was given up waits for NCCL. Then NCCL's communicator is ended. */
#define MESSAGE_NCCL_PATIENCE_NS (UINT64_C(5) * 1000000000)

/* One end: a buffer on the queue's GPU, which has that place in the group. */
struct message_nccl_end {
    struct gpu_queue *queue;
    void *buffer;
    uint32_t index;
};

/* Takes over a reference to the group, which is formed, also if it fails. NO_MEMORY. */
enum status message_nccl_new(struct gpu_group *group, const struct message_nccl_end *source,
                             const struct message_nccl_end *sink, uint64_t size_bytes, uint64_t now_ns,
                             struct message_nccl **out, struct error *error) COMM_MUST_USE;
/* Call it when it is done, or idle. Null is accepted. */
void message_nccl_free(struct message_nccl *nccl);

/* Begins, and looks for the end. *done: the bytes are there. DEVICE: NCCL or a GPU failed. */
enum status message_nccl_step(struct message_nccl *nccl, uint64_t now_ns, bool *done,
                              struct error *error) COMM_MUST_USE;
/* After a failure, or when the message is given up: whether NCCL and the GPUs have released both buffers. */
bool message_nccl_is_idle(struct message_nccl *nccl, uint64_t now_ns);

#endif
