#ifndef DAEMON_GPU_DEVICES_H
#define DAEMON_GPU_DEVICES_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/base/error.h"
#include "proto/cuda_driver.h"

/*
 * The GPUs of this node: found once, at the start, by the CUDA driver that is loaded then. Without a driver
 * or a GPU there are none, and everything else works the same.
 *
 * A GPU whose context failed (an illegal address in a kernel, a bus error) stays failed until commd is
 * started again: what CUDA calls a sticky error. gpu_devices_check tells.
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
 * Loads the driver and takes the primary context of every GPU that it shows (CUDA_VISIBLE_DEVICES). That
 * takes some tenths of a second and some hundred MB of device memory each. UNSUPPORTED: there is no driver or
 * no GPU, the text says which. DEVICE: they are there and do not work. Without peer_access none reaches the
 * memory of another. Sets variables of the environment: before other threads are started.
 */
enum status gpu_devices_open(bool peer_access, struct gpu_devices **out, struct error *error) COMM_MUST_USE;
/* After everything that was made with it is freed. Null is accepted. */
void gpu_devices_close(struct gpu_devices *gpus);

/* 0 for null. What follows may be called from any thread. */
uint32_t gpu_devices_count(const struct gpu_devices *gpus);
const struct gpu_device_info *gpu_devices_info(const struct gpu_devices *gpus, uint32_t gpu);
/* Applications may see other GPUs, in another order: they name them by UUID. */
bool gpu_devices_find(const struct gpu_devices *gpus, const struct cuda_uuid *uuid, uint32_t *gpu);
int gpu_devices_driver_version(const struct gpu_devices *gpus); /* 13000 for 13.0 */
/* Memory in use on the GPU by whomever, and all of it. False when the driver does not say. */
bool gpu_devices_memory(const struct gpu_devices *gpus, uint32_t gpu, uint64_t *used_bytes,
                        uint64_t *total_bytes);

/* Whether kernels of one work on the memory of the other. */
bool gpu_devices_reaches(const struct gpu_devices *gpus, uint32_t gpu, uint32_t other);

/* STATUS_OK, or what made the GPU unusable. Once an operation that waits should be asked about. */
enum status gpu_devices_check(const struct gpu_devices *gpus, uint32_t gpu,
                              struct error *error) COMM_MUST_USE;

/*
 * Host memory that GPUs copy from and to at full rate, of all contexts. From a pool: pinning is slow (about
 * 0.4 ms per MB). NO_MEMORY. Freed memory stays pinned for the next one, up to GPU_PINNED_KEEP_BYTES.
 */
#define GPU_PINNED_KEEP_BYTES (UINT64_C(256) << 20) /* as much as lanes of all users hold (BUDGET_LANES) */
enum status gpu_pinned_alloc(struct gpu_devices *gpus, uint64_t size_bytes, void **out,
                             struct error *error) COMM_MUST_USE;
/* What an allocation of so many bytes takes. */
uint64_t gpu_pinned_size(uint64_t size_bytes);
void gpu_pinned_free(struct gpu_devices *gpus, void *memory);
uint64_t gpu_pinned_bytes(const struct gpu_devices *gpus); /* kept ones too */

#endif
