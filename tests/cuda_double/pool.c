#include "tests/cuda_double/pool.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/cuda_double/stream.h"

#define POOLS_MAX 1024
#define HANDLE_FIRST 0x1000u
#define HANDLE_STEP 16u

/* A handle is the place here, so it comes back when its pool has ended. */
static struct pool *pools[POOLS_MAX];
static struct pool *default_pools[DEVICES_MAX];

/* ---- pools */

struct pool *pool_new(int ordinal, int handle_types)
{
    for (unsigned i = 0; i < POOLS_MAX; i++) {
        if (pools[i] == NULL) {
            pools[i] = calloc(1, sizeof *pools[i]);
            if (pools[i] != NULL) {
                *pools[i] = (struct pool){.ordinal = ordinal,
                                          .handle_types = handle_types,
                                          .access = 1u << ordinal,
                                          .references = 1};
            }
            return pools[i];
        }
    }
    return NULL;
}

void pool_unref(struct pool *pool)
{
    if (--pool->references > 0) {
        return;
    }
    for (unsigned i = 0; i < POOLS_MAX; i++) {
        if (pools[i] == pool) {
            pools[i] = NULL;
        }
    }
    free(pool);
}

struct pool *pool_find(cuda_pool handle)
{
    uintptr_t number = (uintptr_t)handle;
    if (number < HANDLE_FIRST || (number - HANDLE_FIRST) % HANDLE_STEP != 0 ||
        (number - HANDLE_FIRST) / HANDLE_STEP >= POOLS_MAX) {
        return NULL;
    }
    struct pool *pool = pools[(number - HANDLE_FIRST) / HANDLE_STEP];
    return pool != NULL && !pool->destroyed ? pool : NULL;
}

cuda_pool pool_handle(const struct pool *pool)
{
    unsigned i = 0;
    while (pools[i] != pool) {
        i++;
    }
    return (cuda_pool)(HANDLE_FIRST + HANDLE_STEP * (uintptr_t)i);
}

bool pool_allows(const struct pool *pool, int ordinal)
{
    return (pool->access & 1u << ordinal) != 0;
}

static struct pool *pool_of_device(int ordinal)
{
    if (default_pools[ordinal] == NULL) {
        default_pools[ordinal] = pool_new(ordinal, 0);
        if (default_pools[ordinal] != NULL) {
            default_pools[ordinal]->is_default = true;
        }
    }
    return default_pools[ordinal];
}

cuda_result cuDeviceGetDefaultMemPool(cuda_pool *out, cuda_device device)
{
    cuda_result result = double_enter(__func__, 0);
    if (result != CUDA_RESULT_OK) {
        return result;
    }
    if (device < 0 || device >= device_count()) {
        return CUDA_RESULT_INVALID_DEVICE;
    }
    double_lock();
    struct pool *pool = pool_of_device(device);
    if (pool != NULL) {
        *out = pool_handle(pool);
    } else {
        result = CUDA_RESULT_OUT_OF_MEMORY;
    }
    return double_end(result);
}

cuda_result cuMemPoolCreate(cuda_pool *out, const struct cuda_pool_properties *properties)
{
    cuda_result result = double_enter(__func__, ENTER_NOT_CAPTURING);
    if (result != CUDA_RESULT_OK) {
        return result;
    }
    if (properties->type != CUDA_ALLOCATION_PINNED || properties->location.type != CUDA_LOCATION_DEVICE ||
        properties->location.id < 0 || properties->location.id >= device_count() ||
        (properties->handle_types & ~CUDA_HANDLE_POSIX_FD) != 0) {
        return CUDA_RESULT_INVALID_VALUE;
    }
    double_lock();
    struct pool *pool = pool_new(properties->location.id, properties->handle_types);
    if (pool != NULL) {
        *out = pool_handle(pool);
    } else {
        result = CUDA_RESULT_OUT_OF_MEMORY;
    }
    return double_end(result);
}

cuda_result cuMemPoolDestroy(cuda_pool handle)
{
    cuda_result result = double_begin(__func__, ENTER_NOT_CAPTURING);
    if (result != CUDA_RESULT_OK) {
        return result;
    }
    struct pool *pool = pool_find(handle);
    if (pool == NULL || pool->is_default) {
        result = CUDA_RESULT_INVALID_VALUE;
    } else {
        pool->destroyed = true;
        pool_unref(pool);
    }
    return double_end(result);
}

/* The device of a pool always has access. */
static cuda_result set_access(struct pool *pool, const struct cuda_access *access)
{
    int device = access->location.id;
    bool allowed = access->flags == CUDA_ACCESS_READ_WRITE;
    if (access->location.type != CUDA_LOCATION_DEVICE || device < 0 || device >= device_count() ||
        (!allowed && (access->flags != 0 || device == pool->ordinal))) {
        return CUDA_RESULT_INVALID_VALUE;
    }
    if (device != pool->ordinal && !settings()->peer) {
        return CUDA_RESULT_INVALID_DEVICE;
    }
    pool->access = allowed ? pool->access | 1u << device : pool->access & ~(1u << device);
    return CUDA_RESULT_OK;
}

cuda_result cuMemPoolSetAccess(cuda_pool handle, const struct cuda_access *access, size_t count)
{
    cuda_result result = double_begin(__func__, ENTER_NOT_CAPTURING);
    if (result != CUDA_RESULT_OK) {
        return result;
    }
    struct pool *pool = pool_find(handle);
    result = pool != NULL && count > 0 ? CUDA_RESULT_OK : CUDA_RESULT_INVALID_VALUE;
    for (size_t i = 0; i < count && result == CUDA_RESULT_OK; i++) {
        result = set_access(pool, &access[i]);
    }
    return double_end(result);
}

/* ---- memory, in the order of streams */

struct pool_work {
    struct work work;
    uint64_t buffer_id;
    cuda_pointer pointer;
};

struct allocation *pool_find_memory(cuda_pointer pointer)
{
    struct allocation *allocation = allocation_find(pointer);
    bool found = allocation != NULL && allocation->pool != NULL && allocation->address == pointer;
    return found ? allocation : NULL;
}

static struct allocation *find_of_work(const struct work *work)
{
    const struct pool_work *wanted = (const struct pool_work *)work;
    struct allocation *allocation = pool_find_memory(wanted->pointer);
    return allocation != NULL && allocation->buffer_id == wanted->buffer_id ? allocation : NULL;
}

static cuda_result alloc_run(struct work *work, struct stream *stream)
{
    (void)stream;
    double_lock();
    struct allocation *allocation = find_of_work(work);
    if (allocation != NULL) {
        allocation->ready = true;
        machine_set_ready(allocation->address);
    }
    double_unlock();
    return CUDA_RESULT_OK;
}

static cuda_result free_run(struct work *work, struct stream *stream)
{
    (void)stream;
    double_lock();
    struct allocation *allocation = find_of_work(work);
    if (allocation != NULL) {
        allocation_forget(allocation);
    }
    double_unlock();
    return allocation != NULL ? CUDA_RESULT_OK : CUDA_RESULT_ILLEGAL_ADDRESS;
}

static void pool_work_destroy(struct work *work)
{
    free(work);
}

static cuda_result submit(struct stream *stream, const struct allocation *allocation,
                          cuda_result (*run)(struct work *work, struct stream *stream))
{
    struct pool_work *work = malloc(sizeof *work);
    if (work == NULL) {
        return CUDA_RESULT_OUT_OF_MEMORY;
    }
    *work = (struct pool_work){.work = {.references = 1, .run = run, .destroy = pool_work_destroy},
                               .buffer_id = allocation->buffer_id,
                               .pointer = allocation->address};
    return stream_submit(stream, &work->work, NULL);
}

static cuda_result publish(struct allocation *allocation)
{
    allocation->serial = allocation->buffer_id;
    struct machine_export row = {.address = allocation->address,
                                 .bytes = allocation->bytes,
                                 .block_id = allocation->block->of.id,
                                 .offset = allocation->block_offset,
                                 .serial = allocation->serial};
    return machine_publish(&row) ? CUDA_RESULT_OK : CUDA_RESULT_OUT_OF_MEMORY;
}

/* Memory of a graph: nobody can export it, and it is of no pool. The double keeps it until its context ends.
 */
static cuda_result alloc_in_graph(cuda_pointer *pointer, uint64_t bytes)
{
    struct allocation *allocation;
    cuda_result result = memory_alloc(bytes, ALLOCATION_GRAPH, NULL, &allocation);
    *pointer = result == CUDA_RESULT_OK ? allocation->address : 0;
    return result;
}

/* The addresses are there at once, the memory when the stream comes to it. A free that is submitted but has
 * not run gives no memory back yet. */
static cuda_result alloc_in(struct pool *pool, cuda_pointer *pointer, uint64_t bytes, cuda_stream handle)
{
    struct stream *stream;
    struct allocation *allocation;
    if (pool == NULL || pool->imported || pool->ordinal != context_now()->ordinal) {
        return CUDA_RESULT_INVALID_VALUE;
    }
    cuda_result result = stream_find_here(handle, &stream);
    if (result == CUDA_RESULT_OK && stream->capture != NULL) {
        return alloc_in_graph(pointer, bytes);
    }
    if (result == CUDA_RESULT_OK) {
        result = memory_alloc(bytes, ALLOCATION_POOL, pool, &allocation);
    }
    if (result != CUDA_RESULT_OK) {
        return result;
    }
    pool->references++;
    result = publish(allocation);
    if (result == CUDA_RESULT_OK) {
        result = submit(stream, allocation, alloc_run);
    }
    if (result != CUDA_RESULT_OK) {
        allocation_forget(allocation);
        return result;
    }
    *pointer = allocation->address;
    return CUDA_RESULT_OK;
}

cuda_result cuMemAllocAsync(cuda_pointer *pointer, size_t bytes, cuda_stream handle)
{
    cuda_result result = double_enter(__func__, ENTER_CONTEXT);
    if (result != CUDA_RESULT_OK || pointer == NULL || bytes == 0) {
        return result != CUDA_RESULT_OK ? result : CUDA_RESULT_INVALID_VALUE;
    }
    double_lock();
    result = alloc_in(pool_of_device(context_now()->ordinal), pointer, bytes, handle);
    return double_end(result);
}

cuda_result cuMemAllocFromPoolAsync(cuda_pointer *pointer, size_t bytes, cuda_pool pool, cuda_stream handle)
{
    cuda_result result = double_enter(__func__, ENTER_CONTEXT);
    if (result != CUDA_RESULT_OK || pointer == NULL || bytes == 0) {
        return result != CUDA_RESULT_OK ? result : CUDA_RESULT_INVALID_VALUE;
    }
    double_lock();
    result = alloc_in(pool_find(pool), pointer, bytes, handle);
    return double_end(result);
}

cuda_result cuMemFreeAsync(cuda_pointer pointer, cuda_stream handle)
{
    cuda_result result = double_begin(__func__, ENTER_BOTH);
    if (result != CUDA_RESULT_OK) {
        return result;
    }
    struct stream *stream;
    struct allocation *allocation = pool_find_memory(pointer);
    bool found = allocation != NULL && !allocation->freeing;
    result = found ? stream_find_here(handle, &stream) : CUDA_RESULT_INVALID_VALUE;
    if (result == CUDA_RESULT_OK) {
        result = submit(stream, allocation, free_run);
        allocation->freeing = result == CUDA_RESULT_OK;
    }
    return double_end(result);
}

bool pool_is_ready(struct allocation *allocation)
{
    if (!allocation->ready && allocation->kind == ALLOCATION_POOL_IMPORTED) {
        allocation->ready =
            machine_is_ready(allocation->exporter, allocation->exporter_address, allocation->serial);
    }
    return allocation->ready;
}

/* CUDA leaves it undefined what another process sees that still has the memory open. Here it is poison. */
void pool_end(const struct allocation *was)
{
    if (machine_retract(was->address)) {
        memset(was->memory, POISON, was->bytes);
        (void)fprintf(stderr, "cuda_double: memory of a pool freed while another process has it open\n");
    }
    pool_unref(was->pool);
}
