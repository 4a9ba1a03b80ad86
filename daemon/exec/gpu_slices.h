#ifndef DAEMON_EXEC_GPU_SLICES_H
#define DAEMON_EXEC_GPU_SLICES_H

#include "daemon/exec/exec_internal.h"

/*
 * The GPUs' part of a slice of an operation between nodes, by NCCL (the 2D decomposition). On the way in,
 * NCCL reduces and scatters over the node's GPUs, and each GPU copies its shard to the lane's pinned memory
 * over its own link. On the way out, each GPU copies its shard from there, and NCCL gathers all shards on all
 * GPUs. The GPUs need not reach each other's memory.
 *
 * The operation holds the group (exec_call.group), from its beginning on the main thread. The slices may be
 * on any rail's thread.
 */
struct gpu_slice;

/* Reductions other than all_reduce: at most so many ranks and operations in a bucket, so that a slice fits a
 * slot of the group's scratch memory. */
#define GPU_SLICE_PIECES_MAX 16384u

/* A lane's state, for slices of operations with the same group. NO_MEMORY. */
enum status gpu_slice_new(const struct exec_op *op, struct gpu_slice **out,
                          struct error *error) COMM_MUST_USE;
/* No job of it may be posted. Accepts null. */
void gpu_slice_free(struct gpu_slice *slice);
/* Whether it is for the operation's group and GPUs. */
bool gpu_slice_fits(const struct gpu_slice *slice, const struct exec_op *op);

/* Call it before the slice begins. Returns false while other slices have all memory that it needs on GPUs. */
bool gpu_slice_take_room(struct gpu_slice *slice, const struct exec_op *op);

/* Puts a piece that is not the host's. Kernels and copies before the transfers enter the queues. */
enum status gpu_slice_put(struct gpu_slice *slice, const struct exec_lane *lane, const struct exec_op *op,
                          const struct coll_stage_piece *piece, struct error *error) COMM_MUST_USE;
/* Puts a copy from or to memory of that GPU, one of the operation's. */
enum status gpu_slice_copy(struct gpu_slice *slice, const struct exec_lane *lane, uint32_t gpu, void *target,
                           const void *source, uint64_t bytes, struct error *error) COMM_MUST_USE;
/* Something failed: forgets what is put behind the transfers, and the transfers. */
void gpu_slice_drop(struct gpu_slice *slice);
/* All pieces of the step are put: begins the transfers. */
enum status gpu_slice_end(struct gpu_slice *slice, const struct exec_lane *lane,
                          struct error *error) COMM_MUST_USE;
/* Goes on. Returns whether the GPUs are done; *status says whether something failed, also before they are. */
bool gpu_slice_is_done(struct gpu_slice *slice, const struct exec_lane *lane, uint64_t now_ns,
                       enum status *status, struct error *error);

#endif
