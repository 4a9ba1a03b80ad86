#ifndef DAEMON_GPU_CUDA_POOL_H
#define DAEMON_GPU_CUDA_POOL_H

#include "daemon/gpu/devices.h"
#include "daemon/host/memory.h"

/*
 * Clients' CUDA memory pools (cudaMemPoolCreate) whose handles are POSIX descriptors. A pool is imported
 * once, then its allocations one by one. These calls of the driver may wait for a GPU's work, so the thread
 * of the pool's GPU makes them (calls.h, gpu_memory_open), and the others only where there is none. A pool is
 * reference-counted; each memory of it holds a reference.
 */
struct gpu_pool;

/*
 * Imports a pool of a client by its descriptor, which the caller keeps, and which must be one that
 * descriptor_may_be_asked allows: the driver queries it immediately. The memory of the pool must be on
 * that GPU: gpu_pool_open checks it. The caller gets a reference. Errors: INVALID_ARGUMENT if the descriptor
 * is not of a pool; NO_MEMORY; DEVICE.
 */
enum status gpu_pool_import(struct gpu_devices *gpus, uint32_t gpu, int fd, struct gpu_pool **out,
                            struct error *error) COMM_MUST_USE;
/* Any thread. */
struct gpu_pool *gpu_pool_ref(struct gpu_pool *pool);
/* Accepts null. */
void gpu_pool_unref(struct gpu_pool *pool);

/*
 * Opens an allocation of the pool by the data that the client exported. The allocation must have at least
 * size_bytes. The client may free it only when the memory's last reference is gone: CUDA wants importers to
 * free first. Errors: INVALID_ARGUMENT if the data are not of an allocation of this pool, or the pool is of
 * another GPU. BUSY if an earlier allocation at the same place, which the client has freed, is still open
 * here. LIMIT; NO_MEMORY; DEVICE.
 */
enum status gpu_pool_open(struct gpu_pool *pool, const struct cuda_pool_pointer *data, uint64_t size_bytes,
                          struct memory **out, struct error *error) COMM_MUST_USE;

/* The pool of the memory, or null. The memory keeps its reference. Any thread. */
struct gpu_pool *gpu_pool_of(const struct memory *memory);

#endif
