#ifndef DAEMON_EXEC_EXEC_DEVICE_H
#define DAEMON_EXEC_EXEC_DEVICE_H

#include "daemon/exec/exec_internal.h"

/* The GPUs' part of operations and lanes. Used only in daemon/exec. */

/* device.c: operations that have buffers on GPUs, or that wait for streams. */
enum device_step {
    DEVICE_STEP_GO,
    DEVICE_STEP_WAITS,
    DEVICE_STEP_ENDED, /* the whole operation is over */
    DEVICE_STEP_FAILED
};
bool device_is_needed(const struct exec_call *call);
enum status device_new(const struct exec_comm *comm, struct exec_op *op, struct error *error) COMM_MUST_USE;
void device_release(struct exec_comm *comm, struct exec_op *op);
/* GO: the operation may begin, and its ranks' buffers are host buffers now. */
enum device_step device_before(struct exec_comm *comm, struct exec_op *op, uint64_t now_ns,
                               struct error *error);
/* Call it after the operation's end. GO: the outputs are in the ranks' buffers. */
enum device_step device_after(struct exec_comm *comm, struct exec_op *op, uint64_t now_ns,
                              struct error *error);
/*
 * Operations behind the first one, while that runs on a GPU by kernels: puts as many as the setting allows in
 * the same stream, behind waits for their words.
 */
void device_run_ahead(struct exec_comm *comm, uint64_t now_ns);
/* Whether the operation was put so, and has not ended. */
bool device_is_ahead(const struct exec_op *op);
/* For a cancelled operation: whether GPUs have released its buffers. */
bool device_is_idle(struct exec_comm *comm, struct exec_op *op, uint64_t now_ns);
/* For a cancelled operation that has not ended: ends NCCL's group of its slices if that has failed or hangs.
 */
void device_end_group(struct exec_comm *comm, const struct exec_op *op, uint64_t now_ns);
/* Describes what the operation waits for. Returns false if that has nothing to do with GPUs. */
bool device_describe(const struct exec_comm *comm, const struct exec_op *op, char *text, size_t size);
enum status device_queue(struct exec_comm *comm, uint32_t gpu, struct gpu_queue **out,
                         struct error *error) COMM_MUST_USE;
void device_free_queues(struct exec_comm *comm);

/* Whether the reader's input and the writer's output share bytes. */
bool device_overlaps(const struct exec_rank *reader, const struct exec_rank *writer);

/* The engine that the operation is to use, before any measurement counts. */
static inline enum exec_gpu_engine device_engine(const struct exec_comm *comm, const struct exec_op *op)
{
    return op->call.engine != EXEC_GPU_AUTO ? op->call.engine : comm->exec->gpu_engine;
}

/* engine.c */
/* Whether NCCL is to carry out the operation, of one node: it is preferred, it is faster, or kernels do not
 * reach all buffers. If its GPUs were not measured yet, they will be. */
bool engine_is_nccl(const struct exec_comm *comm, const struct exec_op *op, uint64_t now_ns);
/* Whether NCCL can carry out the GPUs' part of slices, and is chosen for that. On the main thread. */
bool engine_of_slices_is_nccl(const struct exec_comm *comm, const struct exec_op *op, uint64_t now_ns);

/* gpu_direct.c */
/* Whether all buffers are on GPUs, and a kernel of any of these GPUs can access all of them. */
bool device_reach_each_other(const struct exec_comm *comm, const struct exec_op *op);
/* Returns false if some buffers overlap other than in place. */
bool device_buffers_are_apart(const struct exec_op *op);
/* Marks in `used` the GPUs that have buffers. Returns false if some are on the host, or some overlap. */
bool device_buffers_serve(const struct exec_op *op, bool used[GPU_DEVICES_MAX]);
/* Measures the operation as one slice: GPUs do it from start to end. */
enum status device_measure_alone(struct exec_comm *comm, struct exec_op *op,
                                 struct error *error) COMM_MUST_USE;
bool gpu_direct_serves(const struct exec_comm *comm, const struct exec_op *op);
enum status gpu_direct_put(struct exec_comm *comm, struct exec_op *op, struct error *error) COMM_MUST_USE;

/* gpu_copies.c */
/* Lists the GPUs on which the operation has buffers, ascending. Returns how many. */
uint32_t device_gpus(const struct exec_op *op, uint32_t gpus[GPU_DEVICES_MAX]);
/* The bytes of the larger one of a rank's two buffers, of the rank that has most. */
uint64_t device_bytes(const struct exec_op *op);
#define DEVICE_COPIES_MAX 64 /* put in a queue together */
struct device_copies {
    uint32_t gpus[GPU_DEVICES_MAX]; /* those of device_gpus */
    uint32_t gpu_count;
    struct host_copy_range (*ranges)[DEVICE_COPIES_MAX]; /* one array per GPU of `gpus` */
    uint32_t counts[GPU_DEVICES_MAX];
};
enum status device_copies_init(struct device_copies *copies, const struct exec_op *op,
                               struct error *error) COMM_MUST_USE;
void device_copies_release(struct device_copies *copies);
/* Collects a copy that this GPU, one of `gpus`, is to make. */
enum status device_copies_add(struct exec_comm *comm, struct device_copies *copies, uint32_t gpu,
                              const struct host_copy_range *range, struct error *error) COMM_MUST_USE;
/* Puts all collected copies in the queues. */
enum status device_copies_flush(struct exec_comm *comm, struct device_copies *copies,
                                struct error *error) COMM_MUST_USE;

/* gpu_staging.c: slices from and to buffers, some of which are on GPUs. Functions that return void keep the
 * first failure for lane_device_end. */
void exec_find_cliques(struct exec *exec);
bool lane_device_serves(const struct exec_comm *comm, const struct exec_op *op);
/* Whether the slice may begin. If not, other slices have all memory that it needs on GPUs: ask again. */
bool lane_device_may_begin(struct exec_lane *lane, const struct exec_op *op);
/* Call it before anything else for a slice. */
enum status lane_device_begin(struct exec_lane *lane, const struct exec_op *op,
                              struct error *error) COMM_MUST_USE;
/* Reserves at least `bytes` of pinned memory for the lane's vectors; earlier contents are lost. It does not
 * wait: lane_device_poll_memory says when the memory is there. */
enum status lane_device_reserve(struct exec_lane *lane, uint64_t bytes, struct error *error) COMM_MUST_USE;
enum status lane_device_poll_memory(struct exec_lane *lane, bool *ready, struct error *error) COMM_MUST_USE;
unsigned char *lane_device_memory(const struct exec_lane *lane);
void lane_device_release(struct exec_lane *lane);
/* Returns the lane's pinned memory. No GPU may use it any more. */
void lane_device_return_memory(struct exec_lane *lane);
/* Queues a piece whose domain is not the host's. */
void lane_device_put(const struct exec_lane *lane, const struct exec_op *op,
                     const struct coll_stage_piece *piece);
/* Compression with a residual on a GPU: queues the copy of the slice's part to the lane's memory, or back. */
void lane_device_copy_residual(const struct exec_lane *lane, const struct exec_op *op, bool in);
/* Queues encoding or decoding on the GPU that works on the slice, behind all earlier work of the slice, and
 * marks its end for lane_device_reached. */
enum status lane_device_code(const struct exec_lane *lane, const struct gpu_coding *coding, bool encodes,
                             struct error *error) COMM_MUST_USE;
/* Whether NCCL carries out the present slice, so that its thread puts work in the queues. */
bool lane_device_is_by_nccl(const struct exec_lane *lane);
/* The domain in which a rank's buffers are. */
uint32_t lane_device_domain(const struct exec *exec, const struct exec_op *op, const struct exec_rank *rank,
                            bool on_host);
/* Call it after all puts for a slice's way in, or out. */
enum status lane_device_end(struct exec_lane *lane, struct error *error) COMM_MUST_USE;
/* Whether the GPUs are done. *status says whether a GPU, or NCCL, failed, also before all are done. A failed
 * GPU uses no buffers any more. */
bool lane_device_reached(struct exec_lane *lane, uint64_t now_ns, enum status *status, struct error *error);
/* For a cancelled operation: whether GPUs have released all slices. */
bool lanes_are_off_devices(struct exec_comm *comm, uint64_t now_ns);

#endif
