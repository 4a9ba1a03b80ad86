#ifndef DAEMON_GPU_QUEUE_H
#define DAEMON_GPU_QUEUE_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/base/error.h"
#include "daemon/gpu/devices.h"
#include "daemon/host/reduce.h"

/*
 * Work for one GPU, done in the order in which it was put: a CUDA stream, and a word in host memory that says
 * how far it is. Nothing here waits: a mark is put behind work, and asked about until it is reached.
 * Functions that put work fail with DEVICE, naming GPU and call, when the GPU has failed; the queue is of no
 * use then. One thread at a time a queue. Addresses are device addresses, or host memory from
 * gpu_pinned_alloc.
 */
struct gpu_queue;
struct budget_account;

/* Of the host's memory: what is pinned for its word, and as much again for the driver's stream. */
#define GPU_QUEUE_COST_BYTES 8192u
/* account: charged for the queue until it is freed (BUDGET_COMMUNICATOR_BYTES); null: nobody is. LIMIT,
 * NO_MEMORY, or what the driver said. */
enum status gpu_queue_new(struct gpu_devices *gpus, uint32_t gpu, struct budget_account *account,
                          struct gpu_queue **out, struct error *error) COMM_MUST_USE;
/* Once every mark of it is reached, or its GPU failed: otherwise it waits. Null is accepted. */
void gpu_queue_free(struct gpu_queue *queue);

cuda_stream gpu_queue_stream(const struct gpu_queue *queue);

/* From anywhere to anywhere: of this GPU, of another one, of the host (pinned). No overlap. */
enum status gpu_queue_copy(struct gpu_queue *queue, void *target, const void *source, uint64_t size_bytes,
                           struct error *error) COMM_MUST_USE;

struct host_copy_range {
    const void *source;
    void *target;
    uint64_t bytes;
};
/*
 * Which memory a kernel works on: that of GPUs; or some of the host's (pinned) as well: a few threads fill
 * the link to it, and leave the rest of the GPU to others.
 */
enum gpu_queue_path { GPU_QUEUE_GPUS, GPU_QUEUE_LINK };

/* Many at once, within what the GPU's kernels reach: its own memory, that of its peers, and the host's. */
enum status gpu_queue_copy_ranges(struct gpu_queue *queue, const struct host_copy_range *ranges,
                                  uint32_t range_count, enum gpu_queue_path path,
                                  struct error *error) COMM_MUST_USE;

/* As host_reduce, on such memory. */
#define GPU_QUEUE_BUFFERS_MAX 256 /* inputs, and outputs; beyond: LIMIT */
enum status gpu_queue_reduce(struct gpu_queue *queue, const struct host_reduction *reduction,
                             enum gpu_queue_path path, struct error *error) COMM_MUST_USE;

/* Reached when all work put before is done and visible to the host. Marks ascend from 1. On failure waits for
 * that work, unless the GPU failed, which then touches nothing any more. */
enum status gpu_queue_mark(struct gpu_queue *queue, uint64_t *mark, struct error *error) COMM_MUST_USE;
bool gpu_queue_reached(const struct gpu_queue *queue, uint64_t mark);
/* STATUS_OK while work may still come to its end; what the GPU failed with, else. Costs a call of the driver:
 * for waits that have become long. */
enum status gpu_queue_check(struct gpu_queue *queue, struct error *error) COMM_MUST_USE;

/* Whether the queue is done with what the mark (0: nothing) is behind: it is reached, or its GPU failed,
 * which *status says. Asks the driver once a millisecond. */
bool gpu_queue_is_done(struct gpu_queue *queue, uint64_t mark, uint64_t now_ns, enum status *status,
                       struct error *error);

#endif
