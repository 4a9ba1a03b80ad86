#ifndef DAEMON_GPU_SCRATCH_H
#define DAEMON_GPU_SCRATCH_H

#include "daemon/base/error.h"
#include "daemon/gpu/devices.h"

/*
 * Memory of commd's own, as much on each of some GPUs. A thread allocates and frees it, because the driver
 * may wait for all work of a GPU meanwhile. Only one thread at a time may call these functions.
 */
struct gpu_scratch;

#define GPU_SCRATCH_SHARE 16u /* at most this part of what is free on each GPU */

/* Begins to allocate. list: count GPUs. bytes: most_bytes on each GPU, halved until it fits, at least
 * least_bytes. NO_MEMORY if there is no thread. */
enum status gpu_scratch_new(struct gpu_devices *gpus, const uint32_t *list, uint32_t count,
                            uint64_t most_bytes, uint64_t least_bytes, struct gpu_scratch **out,
                            struct error *error) COMM_MUST_USE;

enum gpu_scratch_state { GPU_SCRATCH_WAITS, GPU_SCRATCH_READY, GPU_SCRATCH_FAILED, GPU_SCRATCH_ENDED };
/* FAILED: the error says why. Does not block. */
enum gpu_scratch_state gpu_scratch_poll(struct gpu_scratch *scratch, struct error *error);

/* READY: the bytes on each GPU, and where they are on the GPU list[index]. */
uint64_t gpu_scratch_bytes(const struct gpu_scratch *scratch);
unsigned char *gpu_scratch_at(const struct gpu_scratch *scratch, uint32_t index);

/* Begins to free the memory, which no GPU may use any more. Then it will be ENDED, also if it has failed. */
void gpu_scratch_end(struct gpu_scratch *scratch);
/* Blocks until it has ended. Accepts null. */
void gpu_scratch_free(struct gpu_scratch *scratch);

#endif
