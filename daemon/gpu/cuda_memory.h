#ifndef DAEMON_GPU_CUDA_MEMORY_H
#define DAEMON_GPU_CUDA_MEMORY_H

#include "daemon/gpu/devices.h"
#include "daemon/host/memory.h"

/* Clients' GPU memory. It becomes the same kind of object as clients' host memory. */
struct cuda_ipc_handle;

/*
 * Opens a client's GPU allocation (cuMemAlloc, cudaMalloc) by its IPC handle. The allocation belongs to the
 * client's process, and must have at least size_bytes. Errors: INVALID_ARGUMENT if the handle is not (or no
 * longer) of such an allocation, or is of another GPU. BUSY if an earlier allocation at the same place, which
 * the client has freed, is still open here (memory_was_at): CUDA does not open both. NO_MEMORY; DEVICE.
 */
enum status gpu_memory_import_ipc(struct gpu_devices *gpus, uint32_t gpu,
                                  const struct cuda_ipc_handle *handle, uint64_t size_bytes,
                                  const struct memory_origin *origin, struct memory **out,
                                  struct error *error) COMM_MUST_USE;

/*
 * Virtual memory of a client on a GPU. It may consist of several allocations (like PyTorch's expandable
 * segments). gpu_memory_reserve reserves the addresses. Each gpu_memory_map maps one whole allocation by its
 * descriptor, which the caller keeps. Chunks come in order, without gaps; filled addresses can be used. Later
 * chunks do not change them, so a growing segment stays the same memory as long as there is room. Errors as
 * above.
 */
enum status gpu_memory_reserve(struct gpu_devices *gpus, uint32_t gpu, uint64_t size_bytes,
                               struct memory **out, struct error *error) COMM_MUST_USE;
enum status gpu_memory_map(struct memory *memory, int fd, uint64_t size_bytes,
                           struct error *error) COMM_MUST_USE;

#endif
