#include "daemon/gpu/cuda_pool.h"

#include <stdlib.h>

#include "daemon/gpu/cuda_internal.h"
#include "daemon/host/memory_internal.h"

struct gpu_pool {
    struct gpu_devices *gpus;
    uint32_t gpu;
    _Atomic uint32_t references; /* of openings, and of memories */
    cuda_pool pool;
    cuda_stream stream; /* for frees alone: cuMemFree would wait for all work of the GPU */
};

/* The pool's own GPU has access anyway. An importer does not inherit what the exporter has allowed. */
static enum status allow_access(const struct gpu_pool *pool, struct error *error)
{
    struct gpu_devices *gpus = pool->gpus;
    struct cuda_access access[GPU_DEVICES_MAX];
    size_t count = 0;
    for (uint32_t other = 0; other < gpus->count; other++) {
        if (other != pool->gpu && gpus->gpus[other].reaches[pool->gpu]) {
            access[count++] = (struct cuda_access){
                .location = {.type = CUDA_LOCATION_DEVICE, .id = gpus->gpus[other].device},
                .flags = CUDA_ACCESS_READ_WRITE};
        }
    }
    return count == 0 ? STATUS_OK
                      : CUDA_CALL(gpus, pool->gpu, error, pool_set_access, pool->pool, access, count);
}

static enum status import(struct gpu_pool *pool, int fd, struct error *error)
{
    struct gpu_devices *gpus = pool->gpus;
    enum status status = CUDA_CALL(gpus, pool->gpu, error, pool_import, &pool->pool, (void *)(intptr_t)fd,
                                   CUDA_HANDLE_POSIX_FD, 0);
    if (status == STATUS_OK) {
        status = allow_access(pool, error);
    }
    return cuda_blame_client(gpus, pool->gpu, status, error);
}

enum status gpu_pool_import(struct gpu_devices *gpus, uint32_t gpu, int fd, struct gpu_pool **out,
                            struct error *error)
{
    enum status status = cuda_enter(gpus, gpu, error);
    if (status != STATUS_OK) {
        return status;
    }
    struct gpu_pool *pool = calloc(1, sizeof *pool);
    if (pool == NULL) {
        return error_set(error, STATUS_NO_MEMORY, "no memory for a memory pool");
    }
    *pool = (struct gpu_pool){.gpus = gpus, .gpu = gpu, .references = 1};
    status = import(pool, fd, error);
    if (status == STATUS_OK) {
        status = CUDA_CALL(gpus, gpu, error, stream_create, &pool->stream, CUDA_STREAM_NON_BLOCKING, 0);
    }
    if (status != STATUS_OK) {
        gpu_pool_unref(pool);
        return status;
    }
    *out = pool;
    return STATUS_OK;
}

struct gpu_pool *gpu_pool_ref(struct gpu_pool *pool)
{
    (void)atomic_fetch_add(&pool->references, 1);
    return pool;
}

void gpu_pool_unref(struct gpu_pool *pool)
{
    if (pool == NULL || atomic_fetch_sub(&pool->references, 1) > 1) {
        return;
    }
    const struct cuda_driver *driver = pool->gpus->driver;
    if (cuda_enter(pool->gpus, pool->gpu, NULL) == STATUS_OK) {
        if (pool->stream != NULL) {
            (void)driver->stream_destroy(pool->stream);
        }
        if (pool->pool != NULL) {
            (void)driver->pool_destroy(pool->pool);
        }
    }
    free(pool);
}

/* The client may free its memory when this returns, so the free must have ended. Nothing else is in the
 * stream, and no work uses the memory. */
static void pool_free(const struct gpu_pool *pool, cuda_pointer pointer)
{
    const struct cuda_driver *driver = pool->gpus->driver;
    if (cuda_enter(pool->gpus, pool->gpu, NULL) != STATUS_OK) {
        return;
    }
    if (driver->memory_free_async(pointer, pool->stream) == CUDA_RESULT_OK) {
        (void)driver->stream_synchronize(pool->stream);
    } else { /* which may take long, but leaks nothing */
        (void)driver->memory_free(pointer);
    }
}

static void memory_close(struct memory *memory)
{
    pool_free(memory->pool, (cuda_pointer)(uintptr_t)memory->base);
    gpu_pool_unref(memory->pool);
}

/* The client says what it exports, and may lie. */
static enum status check_allocation(const struct gpu_pool *pool, cuda_pointer pointer, uint64_t size_bytes,
                                    struct error *error)
{
    cuda_pointer begin = 0;
    size_t allocated_bytes = 0;
    int device = -1;
    struct gpu_devices *gpus = pool->gpus;
    enum status status =
        CUDA_CALL(gpus, pool->gpu, error, pointer_attribute, &device, CUDA_POINTER_DEVICE, pointer);
    if (status == STATUS_OK) {
        status = CUDA_CALL(gpus, pool->gpu, error, memory_range, &begin, &allocated_bytes, pointer);
    }
    if (status == STATUS_OK && device != gpus->gpus[pool->gpu].device) {
        return error_set(error, STATUS_INVALID_ARGUMENT, "the memory pool is not of GPU %u", pool->gpu);
    }
    if (status == STATUS_OK && (begin > pointer || pointer - begin > allocated_bytes ||
                                allocated_bytes - (pointer - begin) < size_bytes)) {
        return error_set(error, STATUS_INVALID_ARGUMENT,
                         "%llu bytes, but the allocation of the memory pool has %zu",
                         (unsigned long long)size_bytes, allocated_bytes);
    }
    return status;
}

static enum status import_pointer(const struct gpu_pool *pool, const struct cuda_pool_pointer *data,
                                  cuda_pointer *pointer, struct error *error)
{
    struct gpu_devices *gpus = pool->gpus;
    struct cuda_pool_pointer copy = *data; /* CUDA's parameter is not const */
    cuda_result result = gpus->driver->pool_import_pointer(pointer, pool->pool, &copy);
    if (result == CUDA_RESULT_ALREADY_MAPPED) {
        return error_set(
            error, STATUS_BUSY,
            "GPU %u (%s): freed memory of a memory pool that was at the same address is still in use",
            pool->gpu, gpus->gpus[pool->gpu].info.name);
    }
    return cuda_result_status(gpus, pool->gpu, cuda_symbol_of_pool_import_pointer(), result, error);
}

enum status gpu_pool_open(struct gpu_pool *pool, const struct cuda_pool_pointer *data, uint64_t size_bytes,
                          struct memory **out, struct error *error)
{
    cuda_pointer pointer = 0;
    enum status status = cuda_check_size(size_bytes, error);
    if (status == STATUS_OK) {
        status = cuda_enter(pool->gpus, pool->gpu, error);
    }
    if (status == STATUS_OK) {
        status = import_pointer(pool, data, &pointer, error);
        status = cuda_blame_client(pool->gpus, pool->gpu, status, error);
    }
    if (status != STATUS_OK) {
        return status;
    }
    status = check_allocation(pool, pointer, size_bytes, error);
    struct memory *memory = NULL;
    if (status == STATUS_OK) {
        status = memory_new((void *)(uintptr_t)pointer, size_bytes, memory_close, &memory, error);
    }
    if (status == STATUS_OK) {
        status = cuda_release_later(memory, error);
    }
    if (status != STATUS_OK) {
        free(memory);
        pool_free(pool, pointer);
        return status;
    }
    *out = memory;
    (*out)->pool = gpu_pool_ref(pool);
    (*out)->gpus = pool->gpus;
    (*out)->gpu = (int)pool->gpu;
    return STATUS_OK;
}

struct gpu_pool *gpu_pool_of(const struct memory *memory)
{
    return memory->pool;
}
