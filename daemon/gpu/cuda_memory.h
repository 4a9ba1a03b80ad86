#ifndef DAEMON_GPU_CUDA_MEMORY_H
#define DAEMON_GPU_CUDA_MEMORY_H

#include "daemon/gpu/calls.h"
#include "daemon/gpu/cuda_pool.h"
#include "daemon/host/memory.h"
#include "proto/cuda_driver.h"

/* Clients' GPU memory. It becomes the same kind of object as clients' host memory. */

/*
 * Virtual memory of a client on a GPU. It may consist of several allocations (like PyTorch's expandable
 * segments). gpu_memory_reserve reserves the addresses. Each gpu_memory_map maps one whole allocation by its
 * descriptor, which the caller keeps. Chunks come in order, without gaps; filled addresses can be used. Later
 * chunks do not change them, so a growing segment stays the same memory as long as there is room. Errors:
 * INVALID_ARGUMENT or LIMIT for such a size; NO_MEMORY; DEVICE.
 */
enum status gpu_memory_reserve(struct gpu_devices *gpus, uint32_t gpu, uint64_t size_bytes,
                               struct memory **out, struct error *error) COMM_MUST_USE;

/*
 * The GPU's thread maps the chunk. The caller sets memory, size_bytes and done, and keeps the struct until
 * `done`, which is called on the loop's thread: perhaps within this call. This keeps a reference to the
 * memory, and a copy of the descriptor. BUSY if another chunk of the memory is being mapped. Only on success,
 * `done` is called.
 */
struct gpu_mapping {
    struct gpu_call call; /* first */
    struct memory *memory;
    uint64_t size_bytes;
    void (*done)(struct gpu_mapping *mapping); /* status: of the mapping; error: why it failed */
    void *context;                             /* the caller's */
    int fd;
    enum status status;
    struct error error;
};
enum status gpu_memory_map(struct gpu_mapping *mapping, int fd, struct error *error) COMM_MUST_USE;

/*
 * Opening by the GPU's thread (calls.h): an allocation by its IPC handle, one of a memory pool (cuda_pool.h),
 * or addresses that are filled later. The caller fills in the first part, and keeps the struct until `done`,
 * which is called on the loop's thread: perhaps within this call. Then `memory` is the caller's, or null, and
 * `error` says why. It may be called again for the same handle then.
 */
enum gpu_opening_kind { GPU_OPENING_HANDLE, GPU_OPENING_POOLED, GPU_OPENING_ROOM };
struct gpu_opening {
    struct gpu_call call; /* first */
    struct gpu_devices *gpus;
    uint32_t gpu;
    enum gpu_opening_kind kind;
    uint64_t size_bytes;
    struct cuda_ipc_handle handle; /* HANDLE: and where the memory comes from */
    struct memory_origin origin;
    struct cuda_pool_pointer pointer; /* POOLED: and its pool */
    struct gpu_pool *pool;            /* a reference, which this takes over; null: import it */
    int pool_fd;                      /* to import the pool by; this closes it. -1: none */
    void (*done)(struct gpu_opening *opening);
    void *context; /* the caller's */
    struct memory *memory;
    struct error error;
};
void gpu_memory_open(struct gpu_opening *opening);

#endif
