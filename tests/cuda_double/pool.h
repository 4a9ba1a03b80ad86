#ifndef TESTS_CUDA_DOUBLE_POOL_H
#define TESTS_CUDA_DOUBLE_POOL_H

#include "tests/cuda_double/memory.h"

/* Memory pools: those of devices, those that the program makes, and those of other processes that it has
 * imported. Callers of all functions hold the lock. */
struct pool {
    int ordinal;
    int handle_types;
    uint32_t access; /* a bit for each device that may touch its memory */
    uint64_t id;     /* of the machine; 0: it was never exported */
    bool imported;
    bool is_default;
    bool destroyed;
    unsigned references; /* of its handle, and of its allocations */
};

/* Returns null if there is no memory. */
struct pool *pool_new(int ordinal, int handle_types);
void pool_unref(struct pool *pool);
/* Returns null if there is no such pool, or it is destroyed. */
struct pool *pool_find(cuda_pool handle);
/* The memory of a pool that begins at the address, or null. */
struct allocation *pool_find_memory(cuda_pointer pointer);

/* The handle, also of a pool that is destroyed but has allocations. */
cuda_pool pool_handle(const struct pool *pool);
/* Whether the pool lets that device touch its memory. */
bool pool_allows(const struct pool *pool, int ordinal);
/* Whether the stream of the exporting process has come to the allocation. */
bool pool_is_ready(struct allocation *allocation);
/* The allocation is gone: frees what is left of it. `was` is a copy of it. */
void pool_end(const struct allocation *was);
void pool_end_import(const struct allocation *was);

#endif
