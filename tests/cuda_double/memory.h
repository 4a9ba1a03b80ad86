#ifndef TESTS_CUDA_DOUBLE_MEMORY_H
#define TESTS_CUDA_DOUBLE_MEMORY_H

#include "tests/cuda_double/double.h"
#include "tests/cuda_double/machine.h"

/*
 * The addresses of this process that CUDA knows. Device memory has addresses in an arena that the CPU cannot
 * touch. The double itself sees the byte of address a at arena_memory(a). So a range of several mappings is
 * contiguous there as well. Callers of all functions hold the lock.
 */
bool arena_make(void);
bool arena_contains(uint64_t address);
/* Reserves the lowest free range. Sizes and addresses are multiples of BLOCK_BYTES. Returns 0 if there is
 * none. */
uint64_t arena_reserve(uint64_t bytes, uint64_t alignment, uint64_t wish);
void arena_free(uint64_t address, uint64_t bytes);
unsigned char *arena_memory(uint64_t address);
bool arena_map(uint64_t address, uint64_t bytes, int fd, uint64_t offset);
void arena_unmap(uint64_t address, uint64_t bytes);

enum allocation_kind {
    ALLOCATION_DEVICE,        /* cuMemAlloc */
    ALLOCATION_POOL,          /* cuMemAllocAsync, cuMemAllocFromPoolAsync */
    ALLOCATION_GRAPH,         /* the same on a stream that is captured */
    ALLOCATION_IMPORTED,      /* cuIpcOpenMemHandle; covers the whole block */
    ALLOCATION_POOL_IMPORTED, /* cuMemPoolImportPointer */
    ALLOCATION_MAPPED,        /* cuMemMap */
    ALLOCATION_MANAGED,
    ALLOCATION_HOST,      /* cuMemHostAlloc */
    ALLOCATION_REGISTERED /* cuMemHostRegister */
};

/* A block that this process uses: from cuMemAlloc, an import or virtual memory. */
struct block {
    struct machine_block of;
    uint64_t number; /* a number in this process, for BLOCK_ID */
    uint64_t address;
    unsigned references;
    struct block *next;      /* in the list of blocks for small allocations, or of virtual memory */
    cuda_context context;    /* whose small allocations it holds; null: not shared */
    const struct pool *pool; /* of these allocations, or null */
    unsigned char *units;    /* one for each SMALL_UNIT_BYTES: 1 if taken */
    int fd;                  /* -1 if no longer needed */
    cuda_allocation handle;  /* virtual memory: its handle, and how often it was given */
    unsigned handle_references;
};

struct pool;

struct allocation {
    uint64_t address; /* the range that may be touched: [address, address + bytes) */
    uint64_t bytes;
    enum allocation_kind kind;
    int ordinal;           /* the device where it lies; for host memory, the context's device */
    cuda_context context;  /* the context that made it; null: virtual memory */
    uint32_t access;       /* virtual memory: a bit for each device that may touch it */
    unsigned flags;        /* host: CUDA_HOST_* */
    unsigned char *memory; /* as the double sees it */
    struct block *block;
    uint64_t block_offset;
    uint64_t buffer_id;
    uint64_t base; /* what cuMemGetAddressRange returns */
    uint64_t base_bytes;
    unsigned references; /* imports: how often it was opened */
    struct pool *pool;   /* or null */
    bool ready;          /* in a pool: the stream has come to the allocation */
    bool freeing;        /* in a pool: cuMemFreeAsync has returned */
    uint64_t serial;     /* in a pool: a number that its process never gave before */
    uint64_t exporter;   /* imports: the process that exports it, and the block's address there */
    uint64_t exporter_address;
    unsigned pins; /* how many pieces of work touch it now */
    bool leaves;
};

/* Returns the allocation in which the address lies, or null. */
struct allocation *allocation_find(uint64_t address);
struct allocation *allocation_first(void); /* the lowest address; allocation_next goes on */
struct allocation *allocation_next(const struct allocation *after);
bool allocation_overlaps(uint64_t address, uint64_t bytes);
/* Adds a copy with a new buffer id. Returns null if there is no memory. */
struct allocation *allocation_add(const struct allocation *allocation);
uint64_t allocation_number(void); /* returns a number that was never given */
/* The reservation of virtual memory in which the address lies. There must be one. */
struct reserved {
    uint64_t address;
    uint64_t bytes;
    uint64_t number; /* never given twice */
};
struct reserved reservation_of(uint64_t address);
/* Waits until no work touches the allocation. Then frees the entry, but not the memory. May release the
 * lock meanwhile. */
void allocation_remove(struct allocation *allocation);

/* The same, and frees the memory as well. */
void allocation_forget(struct allocation *allocation);

/* Returns null if there is no memory. The block has one reference, and owns the descriptor. */
struct block *block_new(const struct machine_block *of);
void block_release(struct block *block);
/* ipc.c: opens another process's block. The caller closes its descriptor. */
cuda_result block_open(uint64_t id, struct block **out);
/* memory.c: device memory in the current context, which nobody can open yet. */
cuda_result memory_alloc(uint64_t bytes, enum allocation_kind kind, struct pool *pool,
                         struct allocation **out);

/* Frees all that a context has, when it ends. */
void memory_forget_context(cuda_context context);

/*
 * How work touches memory. memory_resolve gives the bytes as the double sees them, and pins them until
 * memory_unpin. Otherwise it returns ILLEGAL_ADDRESS or MISALIGNED_ADDRESS. TOUCH_COPY may touch memory of
 * any device, and pageable host memory.
 */
enum touch { TOUCH_COPY, TOUCH_KERNEL };
struct pin {
    uint64_t address;
    uint64_t bytes;
};
cuda_result memory_resolve(cuda_context context, uint64_t address, uint64_t bytes, unsigned alignment,
                           enum touch touch, unsigned char **memory, struct pin *pin);
void memory_unpin(const struct pin *pin);

/* Whether copies or kernels in that context may touch the allocation. */
bool memory_may_touch(cuda_context context, const struct allocation *allocation, enum touch touch);

/* Whether the address is host memory that CUDA does not know. */
bool memory_is_pageable(uint64_t address);

#endif
