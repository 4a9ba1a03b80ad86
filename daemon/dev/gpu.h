#ifndef DAEMON_DEV_GPU_H
#define DAEMON_DEV_GPU_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/base/error.h"
#include "proto/cuda_driver.h"

/*
 * The GPUs of this node: found once, at the start, by the CUDA driver that is loaded then. Without a driver
 * or a GPU there are none, and everything else works the same.
 *
 * A GPU whose context failed (an illegal address in a kernel, a bus error) stays failed until commd is
 * started again: what CUDA calls a sticky error. dev_gpus_check tells.
 */
struct dev_gpus;

#define DEV_GPU_HOST (-1) /* in place of a GPU's index: memory of the host */
#define DEV_GPUS_MAX 64
#define DEV_GPU_NAME_MAX_BYTES 127
#define DEV_GPU_BUS_MAX_BYTES 31

struct dev_gpu_info {
    char name[DEV_GPU_NAME_MAX_BYTES + 1];
    char bus[DEV_GPU_BUS_MAX_BYTES + 1]; /* PCI */
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
enum status dev_gpus_open(bool peer_access, struct dev_gpus **out, struct error *error) COMM_MUST_USE;
/* After everything that was made with it is freed. Null is accepted. */
void dev_gpus_close(struct dev_gpus *gpus);

/* 0 for null. What follows may be called from any thread. */
uint32_t dev_gpus_count(const struct dev_gpus *gpus);
const struct dev_gpu_info *dev_gpus_info(const struct dev_gpus *gpus, uint32_t gpu);
/* Applications may see other GPUs, in another order: they name them by UUID. */
bool dev_gpus_find(const struct dev_gpus *gpus, const struct cuda_uuid *uuid, uint32_t *gpu);
int dev_gpus_driver_version(const struct dev_gpus *gpus); /* 13000 for 13.0 */
/* Memory in use on the GPU by whomever, and all of it. False when the driver does not say. */
bool dev_gpus_memory(const struct dev_gpus *gpus, uint32_t gpu, uint64_t *used_bytes, uint64_t *total_bytes);

/* Whether kernels of one work on the memory of the other. */
bool dev_gpus_reaches(const struct dev_gpus *gpus, uint32_t gpu, uint32_t other);

/* STATUS_OK, or what made the GPU unusable. Once an operation that waits should be asked about. */
enum status dev_gpus_check(const struct dev_gpus *gpus, uint32_t gpu, struct error *error) COMM_MUST_USE;

/*
 * Host memory that GPUs copy from and to at full rate, of all contexts. From a pool: pinning is slow (about
 * 0.4 ms per MB). NO_MEMORY. Freed memory stays pinned for the next one, up to DEV_PINNED_KEEP_BYTES.
 */
#define DEV_PINNED_KEEP_BYTES (UINT64_C(64) << 20)
enum status dev_pinned_alloc(struct dev_gpus *gpus, uint64_t size_bytes, void **out,
                             struct error *error) COMM_MUST_USE;
void dev_pinned_free(struct dev_gpus *gpus, void *memory);
uint64_t dev_pinned_bytes(const struct dev_gpus *gpus); /* kept ones too */

#endif
