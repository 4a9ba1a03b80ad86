#ifndef DAEMON_GPU_DEVICES_H
#define DAEMON_GPU_DEVICES_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/base/error.h"
#include "proto/cuda_driver.h"

/*
 * The GPUs of this node. They are found once, at the start, by the CUDA driver that is loaded then. Without a
 * driver or a GPU the list is empty, and everything else works the same.
 *
 * A GPU whose context failed (an illegal address in a kernel, a bus error) stays failed until commd restarts:
 * CUDA calls this a sticky error. gpu_devices_check reports it.
 */
struct gpu_devices;

#define GPU_DEVICES_MAX 64
#define GPU_DEVICE_NAME_MAX_BYTES 127
#define GPU_DEVICE_BUS_MAX_BYTES 31

struct gpu_device_info {
    char name[GPU_DEVICE_NAME_MAX_BYTES + 1];
    char bus[GPU_DEVICE_BUS_MAX_BYTES + 1]; /* PCI */
    struct cuda_uuid uuid;
    uint64_t memory_bytes;
    uint32_t multiprocessors;
    int capability_major, capability_minor;
    bool mps; /* clients share it through CUDA's Multi-Process Service */
};

/*
 * Loads the driver and takes the primary context of every GPU that the driver shows (CUDA_VISIBLE_DEVICES).
 * For each GPU this takes some tenths of a second and some hundred MB of device memory. Errors: UNSUPPORTED
 * if there is no driver or no GPU; the text says which. DEVICE if they are there but do not work. Without
 * peer_access, no GPU reaches the memory of another one. Sets environment variables, so call it before other
 * threads start.
 */
enum status gpu_devices_open(bool peer_access, struct gpu_devices **out, struct error *error) COMM_MUST_USE;
/* Call it after everything that was made with the GPUs is freed. Accepts null. */
void gpu_devices_close(struct gpu_devices *gpus);

/* 0 for null. Any thread may call the functions below. */
uint32_t gpu_devices_count(const struct gpu_devices *gpus);
const struct gpu_device_info *gpu_devices_info(const struct gpu_devices *gpus, uint32_t gpu);
/* Applications may see other GPUs, in another order, so they name GPUs by UUID. */
bool gpu_devices_find(const struct gpu_devices *gpus, const struct cuda_uuid *uuid, uint32_t *gpu);
int gpu_devices_driver_version(const struct gpu_devices *gpus); /* 13000 for 13.0 */
/* Memory of the GPU that all processes together use, and its total. Returns false if the driver does not
 * tell. */
bool gpu_devices_memory(const struct gpu_devices *gpus, uint32_t gpu, uint64_t *used_bytes,
                        uint64_t *total_bytes);

/* Whether kernels on one GPU can access the memory of the other. */
bool gpu_devices_reaches(const struct gpu_devices *gpus, uint32_t gpu, uint32_t other);

/* STATUS_OK, or the failure that made the GPU unusable. Call it for an operation that waits too long. */
enum status gpu_devices_check(const struct gpu_devices *gpus, uint32_t gpu,
                              struct error *error) COMM_MUST_USE;

/*
 * Host memory from and to which GPUs copy at full rate, in all contexts. It comes from a pool, because
 * pinning is slow (about 0.4 ms per MB), and the driver may wait for a GPU that hangs. Freed memory stays
 * pinned for reuse, up to GPU_PINNED_KEEP_BYTES. Any thread.
 */
#define GPU_PINNED_KEEP_BYTES (UINT64_C(256) << 20) /* size of all users' lanes (BUDGET_LANES) */

/* Memory that a thread pins, if none is kept. All zero at first, and after gpu_pinned_drop. */
struct gpu_pinned {
    void *memory;                /* null: not there yet */
    struct gpu_pinning *pinning; /* under way */
};
/* Neither waits. The memory may be there at once; if not, poll until it is. Errors: NO_MEMORY; LIMIT; DEVICE
 * if the driver does not return within two seconds, and 2 ms for each MiB more. After a failure, there is
 * nothing to drop. */
enum status gpu_pinned_begin(struct gpu_devices *gpus, uint64_t size_bytes, struct gpu_pinned *out,
                             struct error *error) COMM_MUST_USE;
enum status gpu_pinned_poll(struct gpu_devices *gpus, struct gpu_pinned *pinned,
                            struct error *error) COMM_MUST_USE;
/* Frees the memory, also memory that is not there yet. Does not wait for the driver. */
void gpu_pinned_drop(struct gpu_devices *gpus, struct gpu_pinned *pinned);

/* The bytes that an allocation of size_bytes takes. */
uint64_t gpu_pinned_size(uint64_t size_bytes);
uint64_t gpu_pinned_bytes(const struct gpu_devices *gpus); /* including kept ones */

#endif
