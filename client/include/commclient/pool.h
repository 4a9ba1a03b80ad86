#ifndef COMMCLIENT_POOL_H
#define COMMCLIENT_POOL_H

/*
 * Memory pools: many buffers in few registrations. Included by commclient.h.
 *
 * A pool gets large chunks of memory as comm_mem_alloc does, and divides them itself. An allocation from a
 * pool that has room makes no system call and asks commd nothing. What a pool keeps about its memory lies
 * elsewhere, in the process's own memory.
 *
 * Threads: every function may be called from any thread, except that no thread may use a pool while another
 * one destroys it. Errors of commd, such as COMM_LIMIT and COMM_NO_MEMORY, are returned with commd's text.
 *
 * After fork, the child must not use the parent's pools: the functions return COMM_INVALID_ARGUMENT, or do
 * nothing. The memory stays shared with the child, as with comm_mem_alloc. So a child can read buffers that
 * the parent made, and what the child writes there changes the parent's buffers.
 */

typedef struct comm_pool comm_pool_t;

/*
 * Pages of host memory. With huge pages, operations on large buffers are faster, but the pool may grow more
 * slowly. The pools of GPUs ignore this.
 */
enum comm_huge_pages {
    COMM_HUGE_PAGES_AUTO = 0, /* transparent ones, where the kernel allows them for shared memory
                                 (/sys/kernel/mm/transparent_hugepage/shmem_enabled) */
    COMM_HUGE_PAGES_NONE = 1, /* does not ask for them; the kernel may use them anyway */
    /* From the reserve of the system (vm.nr_hugepages). If too few are free, calls fail with COMM_NO_MEMORY.
       A commd that cannot use such memory refuses it with COMM_INVALID_ARGUMENT. */
    COMM_HUGE_PAGES_2M = 2,
    COMM_HUGE_PAGES_1G = 3
};

typedef struct comm_pool_options {
    size_t struct_size; /* COMM_POOL_OPTIONS_INIT sets it */
    int device;         /* as in comm_init */
    enum comm_huge_pages huge_pages;
    size_t chunk_bytes; /* by how much the pool grows at least; 0: 32 MiB. Rounded up to whole huge pages */
    size_t most_bytes;  /* the pool's limit; 0: none of its own */
} comm_pool_options_t;
#define COMM_POOL_OPTIONS_INIT                                                                               \
    {                                                                                                        \
        sizeof(struct comm_pool_options), COMM_DEVICE_HOST, COMM_HUGE_PAGES_AUTO, 0, 0                       \
    }

/*
 * Makes an empty pool. options: may be null. The pool belongs to the client, and is freed with it at the
 * latest. Errors: COMM_INVALID_ARGUMENT, COMM_NO_MEMORY.
 */
COMM_API COMM_CHECK comm_result_t comm_pool_create(comm_client_t *client, const comm_pool_options_t *options,
                                                   comm_pool_t **pool);
/* Gives all memory of the pool back, also what was not freed. Waits as comm_mem_free. Null is accepted. */
COMM_API void comm_pool_destroy(comm_pool_t *pool);
/*
 * Makes sure that `size` bytes more can be allocated without asking commd, in one piece or several. Sizes
 * count as they are rounded: to 64 bytes, from 4 KiB on to 4 KiB (on a GPU to 512 bytes). Errors: those of
 * comm_pool_alloc.
 */
COMM_API COMM_CHECK comm_result_t comm_pool_reserve(comm_pool_t *pool, size_t size);
/*
 * Allocates memory that commd works on directly. It is aligned to 64 bytes, from 4 KiB on to 4 KiB, and on a
 * GPU to 512 bytes. It is not zeroed if it was used before. size 0 counts as 1. Takes less than a microsecond
 * if the pool has room; otherwise the pool grows, which takes as long as comm_mem_alloc.
 *
 * Errors: COMM_LIMIT (the pool's limit, or one of commd), COMM_NO_MEMORY, COMM_UNSUPPORTED (the device),
 * COMM_DAEMON_LOST, COMM_INVALID_ARGUMENT.
 */
COMM_API COMM_CHECK comm_result_t comm_pool_alloc(comm_pool_t *pool, size_t size, void **memory);
/*
 * Gives memory back to the pool. Never waits, and asks commd nothing. An operation that still uses the memory
 * may write to it, so free buffers after their operations have ended. Null is accepted. Returns
 * COMM_NOT_FOUND if the pool has not allocated it, or it is freed already.
 */
COMM_API comm_result_t comm_pool_free(comm_pool_t *pool, void *memory);
/* Gives chunks in which nothing is allocated back to the system, except those that an operation still uses.
 * Returns how many bytes that were. */
COMM_API size_t comm_pool_trim(comm_pool_t *pool);
/*
 * Returns 1 if commd works directly on all of this memory: if it lies in one chunk of a pool, in one memory
 * of comm_mem_alloc, or in one registration. Otherwise returns 0.
 */
COMM_API int comm_mem_is_shared(comm_client_t *client, const void *memory, size_t size);

#endif
