#ifndef TESTS_CUDA_DOUBLE_MEMORY_H
#define TESTS_CUDA_DOUBLE_MEMORY_H

#include "tests/cuda_double/double.h"
#include "tests/cuda_double/machine.h"

/*
 * The addresses of this process that CUDA knows. Device memory has addresses in an arena that the CPU cannot
 * touch; the double itself sees the byte at address a at arena_memory(a), so that ranges which several
 * mappings make up are contiguous there as well. All locked.
 */
bool arena_make(void);
bool arena_contains(uint64_t address);
/* Multiples of BLOCK_BYTES; the lowest free range. 0: there is none. */
uint64_t arena_reserve(uint64_t bytes, uint64_t alignment, uint64_t wish);
void arena_free(uint64_t address, uint64_t bytes);
unsigned char *arena_memory(uint64_t address);
bool arena_map(uint64_t address, uint64_t bytes, int fd, uint64_t offset);
void arena_unmap(uint64_t address, uint64_t bytes);

enum allocation_kind {
    ALLOCATION_DEVICE,   /* cuMemAlloc */
    ALLOCATION_POOL,     /* cuMemAllocAsync */
    ALLOCATION_IMPORTED, /* cuIpcOpenMemHandle: the whole block */
    ALLOCATION_MAPPED,   /* cuMemMap */
    ALLOCATION_MANAGED,
    ALLOCATION_HOST,      /* cuMemHostAlloc */
    ALLOCATION_REGISTERED /* cuMemHostRegister */
};

/* A block of this process: of cuMemAlloc, an import or virtual memory. */
struct block {
    struct machine_block of;
    uint64_t number; /* in this process */
    uint64_t address;
    unsigned references;
    struct block *next;     /* of those that small allocations share, or of virtual memory */
    cuda_context context;   /* whose small allocations; null: not shared */
    unsigned char *units;   /* of SMALL_UNIT_BYTES: taken or not */
    int fd;                 /* -1 where it is no longer needed */
    cuda_allocation handle; /* virtual memory: its handle, and how often it was given */
    unsigned handle_references;
};

struct allocation {
    uint64_t address; /* what may be touched: [address, address + bytes) */
    uint64_t bytes;
    enum allocation_kind kind;
    int ordinal;           /* of the device where it lies; of host memory, of the context */
    cuda_context context;  /* that made it; null: virtual memory */
    uint32_t access;       /* virtual memory: ordinals that may touch it */
    unsigned flags;        /* host: CUDA_HOST_* */
    unsigned char *memory; /* as the double sees it */
    struct block *block;
    uint64_t block_offset;
    uint64_t buffer_id;
    uint64_t base; /* what cuMemGetAddressRange says */
    uint64_t base_bytes;
    unsigned references; /* imports: times opened */
    uint64_t exporter;   /* imports: the process that it is of, and where the block is there */
    uint64_t exporter_address;
    unsigned pins; /* work that touches it now */
    bool leaves;
};

/* The one that the address lies in, or null. */
struct allocation *allocation_find(uint64_t address);
struct allocation *allocation_first(void); /* by address; then next_of */
struct allocation *allocation_next(const struct allocation *after);
bool allocation_overlaps(uint64_t address, uint64_t bytes);
/* Takes a copy, gives it a buffer id. Null: no memory. */
struct allocation *allocation_add(const struct allocation *allocation);
uint64_t allocation_number(void); /* one that was never given */
/* The reservation of virtual memory that the address is in: there is one. */
struct reserved {
    uint64_t address;
    uint64_t bytes;
    uint64_t number; /* never given twice */
};
struct reserved reservation_of(uint64_t address);
/* Waits until no work touches it, and frees the entry, not the memory. May let go of the lock meanwhile. */
void allocation_remove(struct allocation *allocation);

/* The same, with the memory that it has. */
void allocation_forget(struct allocation *allocation);

/* Null: no memory. The block has one reference, and its descriptor. */
struct block *block_new(const struct machine_block *of);
void block_release(struct block *block);

/* All that a context has, as it ends. */
void memory_forget_context(cuda_context context);

/*
 * What work touches. resolve: the bytes as the double sees them, pinned until unpin; ILLEGAL_ADDRESS or
 * MISALIGNED_ADDRESS otherwise. TOUCH_COPY takes any device's memory and pageable host memory.
 */
enum touch { TOUCH_COPY, TOUCH_KERNEL };
struct pin {
    uint64_t address;
    uint64_t bytes;
};
cuda_result memory_resolve(cuda_context context, uint64_t address, uint64_t bytes, unsigned alignment,
                           enum touch touch, unsigned char **memory, struct pin *pin);
void memory_unpin(const struct pin *pin);

/* Whether copies, or kernels, in that context may. */
bool memory_may_touch(cuda_context context, const struct allocation *allocation, enum touch touch);

/* Whether it is host memory that CUDA does not know. */
bool memory_is_pageable(uint64_t address);

#endif
