#ifndef CLIENT_LIB_GPU_H
#define CLIENT_LIB_GPU_H

#include <commclient.h>

#include <stdbool.h>
#include <stddef.h>

#include "client/lib/fence.h"
#include "proto/client.pb-c.h"
#include "proto/cuda_driver.h"

/*
 * The GPUs that a client uses, through the CUDA driver. The driver is loaded with the first GPU. Its calls
 * work on the thread's current context, so they are made between gpu_scope_enter and gpu_scope_leave.
 */
struct comm_client;
struct comm_comm;
struct client_call;
struct client_memory;

struct client_gpu {
    struct client_gpu *next;
    int ordinal; /* as this process sees it */
    cuda_device device;
    cuda_context context; /* the primary one, retained */
    struct cuda_uuid uuid;
};

struct gpu_scope {
    cuda_context before;
    bool changed;
    bool relaxed; /* the thread's capture mode was exchanged; `mode` is to be restored */
    int mode;
};

/* Returns the driver's functions. A GPU must have been opened before. */
const struct cuda_driver *gpu_driver(void);
/* Finds or opens a GPU, which stays open as long as the client. With the client's lock. Returns
 * COMM_UNSUPPORTED if there is no driver or no such GPU. Failures are reported. */
comm_result_t gpu_open(struct comm_client *client, int ordinal, struct client_gpu **out);
/* Counts the GPUs that this process sees. Any thread. Failures are reported. */
comm_result_t gpu_count(int *count);
/* Whether the client has opened a GPU. Any thread. */
bool gpu_is_used(struct comm_client *client);
/* Closes all GPUs of the client. */
void gpus_close(struct comm_client *client);
/*
 * Makes the GPU's context the thread's current context. Within the scope, calls that are unsafe during a
 * capture are allowed (CUDA_CAPTURE_MODE_RELAXED), because the library makes none whose effect a graph would
 * need. Failures are reported.
 */
comm_result_t gpu_scope_enter(const struct client_gpu *gpu, struct gpu_scope *scope);
/* Makes the stream's context the thread's current context, and leaves the capture mode. Null and CUDA's
 * special handles exist in every context; for these it is the GPU's context. Failures are reported. */
comm_result_t gpu_scope_enter_stream(const struct client_gpu *gpu, cuda_stream stream,
                                     struct gpu_scope *scope);
void gpu_scope_leave(const struct gpu_scope *scope);
/* Reports a failure of the driver, such as "cuMemAlloc_v2: out of memory". Returns the library's code. */
comm_result_t gpu_report(cuda_result result, const char *symbol);
/* Whether the driver refused a call because a stream is being captured. */
bool gpu_is_capture(cuda_result result);
#define CAPTURE_ADVICE                                                                                       \
    "this call cannot be part of a CUDA graph; end the capture before the call and begin another one after " \
    "it"

/* --- gpu_allocation.c: within the GPU's scope, without the client's lock --- */

struct gpu_allocation {
    cuda_pointer base;
    size_t size_bytes;
    /*
     * For virtual memory: the size of the reserved addresses before and after it that stay unused. Adjacent
     * memory is passed to commd as one, and no other memory may become part of this one. 0: the memory is
     * from cuMemAlloc.
     */
    size_t guard_bytes;
};

/* Allocates at least size_bytes, which must be at most PTRDIFF_MAX. Failures are reported. */
comm_result_t gpu_allocation_make(const struct client_gpu *gpu, size_t size_bytes,
                                  struct gpu_allocation *out);
/*
 * Waits for the GPU's work, which may touch the memory. To be called before it is freed. Returns
 * COMM_UNSUPPORTED if a stream is being captured: then waiting is impossible, and the memory must not be
 * freed. Failures are reported.
 */
comm_result_t gpu_allocation_await(const struct gpu_allocation *allocation);
void gpu_allocation_free(const struct gpu_allocation *allocation);

/* --- gpu_chunks.c: within the GPU's scope --- */

struct client_chunk;

/* One allocation of cuMemAlloc; or chunks of virtual memory, in order, without holes between them. */
struct gpu_chunks {
    struct client_chunk *list; /* the owner of this struct frees it */
    uint32_t count;
    uint32_t capacity;
    bool are_virtual;
    cuda_pool pool; /* the CUDA memory pool that the allocation is from, or null */
};

/* Asks CUDA for an attribute of an address. gpu_says is for attributes that are truth values. */
cuda_result gpu_ask(void *value, int attribute, const void *address);
bool gpu_says(int attribute, const void *address);
/*
 * Sets the ids that tell the memory at the address from earlier memory there. CUDA never gives a BUFFER_ID
 * twice. But it does not promise different ids for memory that is mapped into one reservation at different
 * times. So virtual memory uses the BLOCK_ID of the physical block, too, which differs for each block. Small
 * allocations share blocks.
 */
cuda_result chunk_identify(struct client_chunk *chunk, const void *address, bool is_virtual);
/* Whether these addresses still hold the same memory as when it was registered with commd. */
bool chunks_are_current(const struct client_memory *memory, const unsigned char *begin,
                        const unsigned char *end);
/* Returns false if memory is short. */
bool chunks_add(struct gpu_chunks *chunks, const struct client_chunk *chunk);
/* Finds the whole allocation around the range, and checks that commd can get it. Failures are reported. */
comm_result_t chunks_find(const struct client_gpu *gpu, const unsigned char *at, size_t size_bytes,
                          struct gpu_chunks *chunks);
/*
 * Finds chunks of virtual memory from the address on, up to the first hole or to `until`. `count` chunks are
 * known already and count toward the maximum. Returns false if memory is short.
 */
bool chunks_find_next(const struct client_gpu *gpu, const unsigned char *at, const unsigned char *until,
                      uint32_t count, struct gpu_chunks *chunks);
/* Returns the bytes from the address to the end of its reservation, or 0 if CUDA does not say. */
size_t chunk_reserved_bytes(const unsigned char *at);
/* Makes a descriptor of the chunk. Failures are reported. */
comm_result_t chunk_export(const struct client_chunk *chunk, int *out);

/* --- pools.c: within the GPU's scope, with the client's lock --- */

/* Whether memory of the pool can be registered with the client's commd. is_asked: by comm_mem_register, not
 * by an operation. Failures are reported: COMM_UNSUPPORTED, with the way out. */
comm_result_t pool_check(const struct comm_client *client, const void *at, cuda_pool pool, bool is_asked);
/* Registers memory of a pool with commd, and the pool if commd does not have it. May release the lock.
 * Failures are reported. */
comm_result_t pool_announce(struct comm_client *client, struct client_memory *memory);

/* --- gpu_memory.c: with the client's lock --- */

/*
 * For a client that uses GPUs: finds the registered memory that holds the whole range. GPU memory is
 * registered now if it was not. *out is null for host memory that is not registered. Refuses memory of a GPU
 * that is not the communicator's. May release the lock. Failures are reported.
 */
comm_result_t gpu_memory_locate(struct comm_comm *comm, const struct client_call *call, const void *at,
                                size_t size_bytes, struct client_memory **out);
/* comm_mem_alloc on a GPU. Without the lock. Failures are reported. */
comm_result_t gpu_memory_make(struct comm_client *client, size_t size_bytes, int ordinal, void **out);
/* Fills a request that registers the memory, but for what commd opens it by. */
void gpu_memory_describe(Commd__Client__Request *request, Commd__Client__MemRegister *body,
                         const struct client_memory *memory);
/* Waits for the GPU's work, before gpu_memory_free. Without the lock. Returns COMM_UNSUPPORTED if a stream is
 * being captured; the memory then stays. Failures are reported. */
comm_result_t gpu_memory_await(const struct client_memory *memory);
/* Registers memory of gpu_memory_make with the client's commd. Failures are reported. */
comm_result_t gpu_memory_announce(struct comm_client *client, struct client_memory *memory);
/* Frees memory of gpu_memory_make. */
void gpu_memory_free(const struct client_memory *memory);
/* Whether memory that the caller made is registered with a new commd at once: memory of CUDA memory pools
 * that is still there. */
bool gpu_memory_is_kept(const struct client_memory *memory);
/* comm_mem_register of memory on a GPU. May release the lock. Failures are reported. */
comm_result_t gpu_memory_register(struct comm_client *client, const void *at, size_t size_bytes);

/* --- stream.c: an operation's place in a stream; without the client's lock --- */

/* The capture of a stream. */
struct stream_capture {
    uint64_t id; /* of this process, never given twice; 0: the stream is not captured */
    cuda_graph graph;
};

struct stream_order {
    struct stream_capture capture; /* if the stream is captured, the operation has no place in it yet */
    struct fence_slot *slot;       /* the operation owns it after submission; null: no place in a stream */
    struct fence_mark ready;
    struct fence_mark ended;
    uint64_t number; /* of a collective operation of this rank: its peers have the same; 0: a message */
};

/* The last collective operation of a rank that a stream waits for. Under the fences' lock. */
struct stream_tail {
    cuda_stream stream;
    struct fence_mark ended;
    uint64_t number; /* 0: none so far */
};

/* Makes the stream write a word when it reaches the operation. If the stream is captured, only says so: see
 * capture_submit. Failures are reported. */
comm_result_t stream_begin(struct comm_comm *comm, const struct client_call *call,
                           struct stream_order *order);
/*
 * Before the operation is submitted, with the client's lock. Refuses a collective operation whose stream
 * waits for the same or a later one of another rank of this process: neither could end. Failures are
 * reported.
 */
comm_result_t stream_check(const struct comm_comm *comm, const struct client_call *call,
                           const struct stream_order *order);
/* After the operation was submitted: makes the stream wait until the operation has ended. Failures are
 * reported. */
comm_result_t stream_end(struct comm_comm *comm, const struct client_call *call,
                         const struct stream_order *order);
/* If the operation is not submitted: gives up its place in the stream. */
void stream_abandon(struct comm_comm *comm, struct stream_order *order);

/*
 * Makes the stream write *mark, the next value of the slot's FENCE_READY word. The stream may be of any GPU.
 * gpu: the GPU that CUDA's special stream handles refer to. If the call fails, the stream is unchanged.
 * Failures are reported.
 */
comm_result_t stream_write(const struct client_gpu *gpu, cuda_stream stream, struct client_fences *fences,
                           struct fence_slot *slot, struct fence_mark *mark);
/* Finds the capture of the stream, if any. Failures are reported. */
comm_result_t stream_find_capture(const struct client_gpu *gpu, cuda_stream stream,
                                  struct stream_capture *capture);
/* Adds waits and writes to the stream, or to what it captures. Failures are reported. */
comm_result_t stream_add(const struct client_gpu *gpu, cuda_stream stream, struct cuda_memop *memops,
                         unsigned count);
/* Makes the stream wait for the mark. Failures are reported. */
comm_result_t stream_wait(const struct client_gpu *gpu, cuda_stream stream, const struct fence_mark *mark);

#endif
