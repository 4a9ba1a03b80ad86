#ifndef DAEMON_GPU_CUDA_MEMORY_H
#define DAEMON_GPU_CUDA_MEMORY_H

#include "daemon/gpu/devices.h"
#include "daemon/host/memory.h"

/* Memory of clients on GPUs, which becomes the same kind of object as theirs on the host. */
struct cuda_ipc_handle;

/*
 * Opens an allocation of a client on a GPU (cuMemAlloc, cudaMalloc) by its IPC handle. The allocation is the
 * client's process's; it must have size_bytes at least. INVALID_ARGUMENT: the handle is of no such allocation
 * (any more), or of another GPU. BUSY: an allocation that was at its place before, and has been freed there,
 * is still open here (memory_was_at), and CUDA does not open the new one beside it. NO_MEMORY; DEVICE.
 */
enum status gpu_memory_import_ipc(struct gpu_devices *gpus, uint32_t gpu,
                                  const struct cuda_ipc_handle *handle, uint64_t size_bytes,
                                  const struct memory_origin *origin, struct memory **out,
                                  struct error *error) COMM_MUST_USE;

/*
 * Virtual memory of a client on a GPU, which may consist of several allocations (as PyTorch's expandable
 * segments): reserves the addresses; each gpu_memory_map maps one allocation, whole, by its descriptor, which
 * stays the caller's. Chunks come in order, without gaps, and what they have filled can be used: later ones
 * change nothing of that, so that a segment that grows stays the same memory as long as there is room. Errors
 * as above.
 */
enum status gpu_memory_reserve(struct gpu_devices *gpus, uint32_t gpu, uint64_t size_bytes,
                               struct memory **out, struct error *error) COMM_MUST_USE;
enum status gpu_memory_map(struct memory *memory, int fd, uint64_t size_bytes,
                           struct error *error) COMM_MUST_USE;

#endif
