#ifndef CLIENT_LIB_GPU_H
#define CLIENT_LIB_GPU_H

#include <commclient.h>

#include <stdbool.h>
#include <stddef.h>

#include "client/lib/fence.h"
#include "proto/cuda_driver.h"

/*
 * The GPUs that a client uses, through the CUDA driver, which is loaded with the first of them. The driver's
 * calls work on a thread's current context: each use of them is between gpu_scope_enter and gpu_scope_leave.
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
};

/* The table; a GPU has been opened. */
const struct cuda_driver *gpu_driver(void);
/* Finds or opens a GPU, for the client's life. With the client's lock. UNSUPPORTED: there is no driver, or no
 * such GPU. Reported. */
comm_result_t gpu_open(struct comm_client *client, int ordinal, struct client_gpu **out);
/* Whether it has opened one. Any thread. */
bool gpu_is_used(struct comm_client *client);
/* Lets go of all of them. */
void gpus_close(struct comm_client *client);
/* Makes its context the thread's. Reported. */
comm_result_t gpu_scope_enter(const struct client_gpu *gpu, struct gpu_scope *scope);
/* Makes the context that a stream is of the thread's; of a handle that means one in every context, null too,
 * the GPU's. Reported. */
comm_result_t gpu_scope_enter_stream(const struct client_gpu *gpu, cuda_stream stream,
                                     struct gpu_scope *scope);
void gpu_scope_leave(const struct gpu_scope *scope);
/* Reports what the driver said, "cuMemAlloc_v2: out of memory", and returns its code here. */
comm_result_t gpu_report(cuda_result result, const char *symbol);
/* Whether the driver refused a call because a stream is being captured. */
bool gpu_is_capture(cuda_result result);
#define CAPTURE_ADVICE                                                                                       \
    "what this library does cannot be part of a CUDA graph; end the capture before the call and begin "      \
    "another one after it"

/* --- gpu_allocation.c: within the GPU's scope, without the client's lock --- */

struct gpu_allocation {
    cuda_pointer base;
    size_t size_bytes;
    /*
     * Of virtual memory: addresses before and after it that stay unused. What lies side by side is passed to
     * commd as one, and of this memory nobody else's may be a part. 0: it is of cuMemAlloc.
     */
    size_t guard_bytes;
};

/* At least size_bytes, which is at most PTRDIFF_MAX. Reported. */
comm_result_t gpu_allocation_make(const struct client_gpu *gpu, size_t size_bytes,
                                  struct gpu_allocation *out);
/*
 * Waits for the GPU's work, which may touch it; before it is freed. UNSUPPORTED: a stream is being captured,
 * so that it cannot be waited for, and nothing may be freed. Reported.
 */
comm_result_t gpu_allocation_await(const struct gpu_allocation *allocation);
void gpu_allocation_free(const struct gpu_allocation *allocation);

/* --- gpu_chunks.c: within the GPU's scope --- */

struct client_chunk;

/* One allocation of cuMemAlloc; or chunks of virtual memory, in order, without holes between them. */
struct gpu_chunks {
    struct client_chunk *list; /* to be freed */
    uint32_t count;
    uint32_t capacity;
    bool are_virtual;
};

/* What CUDA says of an address: an attribute, or one that is a truth value. */
cuda_result gpu_ask(void *value, int attribute, const void *address);
bool gpu_says(int attribute, const void *address);
/*
 * Sets what tells the memory at the address from what was there before. CUDA never gives a BUFFER_ID twice,
 * but does not say that what is mapped into one reservation, one after the other, has different ones; the
 * physical block's BLOCK_ID is another for another block by definition, and small allocations share blocks.
 */
cuda_result chunk_identify(struct client_chunk *chunk, const void *address, bool is_virtual);
/* Whether these addresses of the memory still are what they were when commd was told of it. */
bool chunks_are_current(const struct client_memory *memory, const unsigned char *begin,
                        const unsigned char *end);
/* False: no memory. */
bool chunks_add(struct gpu_chunks *chunks, const struct client_chunk *chunk);
/* What there is around the range, whole, and can be passed on. Reported. */
comm_result_t chunks_find(const struct client_gpu *gpu, const unsigned char *at, size_t size_bytes,
                          struct gpu_chunks *chunks);
/*
 * Chunks of virtual memory without a hole from the address on, up to `until` at most, and no more than there
 * is room for among `count` others. False: no memory.
 */
bool chunks_find_next(const struct client_gpu *gpu, const unsigned char *at, const unsigned char *until,
                      uint32_t count, struct gpu_chunks *chunks);
/* How many bytes were reserved around the address, from it on; 0: CUDA does not say. */
size_t chunk_reserved_bytes(const unsigned char *at);
/* A descriptor of it. Reported. */
comm_result_t chunk_export(const struct client_chunk *chunk, int *out);

/* --- gpu_memory.c: with the client's lock --- */

/*
 * Of a client that uses GPUs: the memory that commd has mapped and holds all of the range, registered now if
 * it was not; null for memory of the host that is in none. May let go of the lock. Refuses memory of another
 * device than the communicator's. Reported.
 */
comm_result_t gpu_memory_locate(struct comm_comm *comm, const struct client_call *call, const void *at,
                                size_t size_bytes, struct client_memory **out);
/* comm_mem_alloc on a GPU; without the lock. Reported. */
comm_result_t gpu_memory_make(struct comm_client *client, size_t size_bytes, int ordinal, void **out);
/* Waits for the GPU's work, before gpu_memory_free; without the lock. UNSUPPORTED: a stream is being
 * captured, and the memory stays. Reported. */
comm_result_t gpu_memory_await(const struct client_memory *memory);
/* Frees what gpu_memory_make made. */
void gpu_memory_free(const struct client_memory *memory);
/* comm_mem_register of memory on a GPU. May let go of the lock. Reported. */
comm_result_t gpu_memory_register(struct comm_client *client, const void *at, size_t size_bytes);

/* --- stream.c: an operation's place in a stream; without the client's lock --- */

struct stream_order {
    struct fence_slot *slot; /* the operation's once it is submitted; null: it has no place */
    struct fence_mark ready;
    struct fence_mark ended;
};

/* The stream says when it has come to the operation. Reported. */
comm_result_t stream_begin(struct comm_comm *comm, const struct client_call *call,
                           struct stream_order *order);
/* The operation was submitted, and may have ended: the stream goes on when it has. Reported. */
comm_result_t stream_end(struct comm_comm *comm, const struct client_call *call,
                         const struct stream_order *order);
/* It was not, and is not going to be. */
void stream_abandon(struct comm_comm *comm, struct stream_order *order);

/*
 * Puts on the stream, which may be any GPU's, that a word of the slot becomes *mark; nothing is put there
 * when it fails. gpu: whose default stream one of CUDA's special handles means. Reported.
 */
comm_result_t stream_write(const struct client_gpu *gpu, cuda_stream stream, struct client_fences *fences,
                           struct fence_slot *slot, struct fence_mark *mark);
/* Puts on the stream that it waits for the mark. Reported. */
comm_result_t stream_wait(const struct client_gpu *gpu, cuda_stream stream, const struct fence_mark *mark);

#endif
