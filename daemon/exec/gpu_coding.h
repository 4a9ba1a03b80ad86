#ifndef DAEMON_EXEC_GPU_CODING_H
#define DAEMON_EXEC_GPU_CODING_H

#include "daemon/exec/exec_internal.h"

/*
 * Compressed all-reduces between nodes whose local buffers are all on GPUs. The vector of a slice stays in
 * GPU memory: in the output of one local rank, which the slice's end overwrites anyway. That rank's GPU
 * encodes what the node sends into pinned memory, and decodes from there what it receives. So only compressed
 * bytes cross the GPUs' links to the host. The slices take turns at the local ranks, and so at their GPUs.
 *
 * The host checks each payload before a GPU decodes it. Bits and wire format are those of the host's codec,
 * so nodes need not agree on who encodes. On the thread of the lane's exec.
 */

/* How many local ranks the slices take turns at (coll_stage_op.vector_ranks); 0: the host encodes, because a
 * buffer is on the host, or GPUs do not reach what they need. The operation's domains must be set. */
uint32_t gpu_coding_vector_ranks(const struct exec_comm *comm, const struct exec_op *op);

/* Whether a GPU encodes and decodes the lane's slice. */
static inline bool gpu_coding_applies(const struct exec_lane *lane)
{
    return lane_op(lane)->stage.vector_ranks > 0;
}

/* Whether encoding may be queued at once behind what the slice's way in has queued. */
bool gpu_coding_follows(const struct exec_lane *lane);

/* Before the slice begins: reserves pinned memory for all rounds, as lane_device_reserve does. LIMIT,
 * NO_MEMORY. */
enum status gpu_coding_begin(struct exec_lane *lane, struct error *error) COMM_MUST_USE;
/* Queues the encoding of what the round sends, and sets LANE_DEVICE_CODE. Before the last round, it is this
 * node's part of the sum, which becomes what other nodes decode. DEVICE, NO_MEMORY. */
enum status gpu_coding_begin_round(struct exec_lane *lane, struct error *error) COMM_MUST_USE;
/* Copies the payload of the round's next send to out, which has room for compressed_max_bytes. Returns its
 * bytes. */
uint64_t gpu_coding_payload(const struct exec_lane *lane, unsigned char *out);
/* Checks a whole payload, copies it, and queues its decoding. PROTOCOL, DEVICE. */
enum status gpu_coding_take(struct exec_lane *lane, const struct coll_transfer *receive,
                            const unsigned char *payload, uint64_t payload_bytes,
                            struct error *error) COMM_MUST_USE;
void gpu_coding_release(struct exec_lane *lane);

#endif
