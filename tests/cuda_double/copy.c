#include <stdlib.h>
#include <string.h>

#include "tests/cuda_double/memory.h"
#include "tests/cuda_double/stream.h"
#include "tests/cuda_double/traffic.h"

struct copy_work {
    struct work work;
    uint64_t target;
    uint64_t source;
    uint64_t bytes;
    unsigned char *staged; /* a copy of a pageable source, made when the copy was submitted; or null */
};

struct set_work {
    struct work work;
    uint64_t target;
    uint64_t bytes;
    unsigned char value;
};

static void copy_destroy(struct work *work)
{
    free(((struct copy_work *)work)->staged);
    free(work);
}

static void set_destroy(struct work *work)
{
    free(work);
}

static cuda_result copy_run(struct work *work, struct stream *stream)
{
    const struct copy_work *copy = (const struct copy_work *)work;
    unsigned char *target = NULL;
    unsigned char *source = copy->staged;
    struct pin target_pin;
    struct pin source_pin = {.bytes = 0};
    double_lock();
    cuda_result result =
        memory_resolve(stream->context, copy->target, copy->bytes, 1, TOUCH_COPY, &target, &target_pin);
    if (result == CUDA_RESULT_OK && copy->staged == NULL) {
        result =
            memory_resolve(stream->context, copy->source, copy->bytes, 1, TOUCH_COPY, &source, &source_pin);
    }
    if (result == CUDA_RESULT_OK) {
        traffic_count(stream->context, copy->target, copy->bytes, true);
        traffic_count(stream->context, copy->source, copy->bytes, false);
        double_unlock();
        memmove(target, source, copy->bytes);
        double_lock();
    }
    memory_unpin(&source_pin);
    memory_unpin(&target_pin);
    return double_end(result);
}

static cuda_result set_run(struct work *work, struct stream *stream)
{
    const struct set_work *set = (const struct set_work *)work;
    unsigned char *target = NULL;
    struct pin pin;
    double_lock();
    cuda_result result =
        memory_resolve(stream->context, set->target, set->bytes, 1, TOUCH_KERNEL, &target, &pin);
    if (result == CUDA_RESULT_OK) {
        double_unlock();
        memset(target, set->value, set->bytes);
        double_lock();
    }
    memory_unpin(&pin);
    return double_end(result);
}

/* CUDA reads pageable memory before the call returns. In a graph, it reads that memory when the graph
 * runs. */
static bool stage(struct copy_work *copy)
{
    copy->staged = malloc(copy->bytes);
    if (copy->staged != NULL) {
        memcpy(copy->staged, (const void *)(uintptr_t)copy->source, copy->bytes);
    }
    return copy->staged != NULL;
}

/* Submits a copy. If the target is pageable memory, returns only when the copy is done. Locked. */
static cuda_result copy_submit(cuda_stream handle, uint64_t target, uint64_t source, uint64_t bytes)
{
    struct stream *stream;
    uint64_t number = 0;
    cuda_result result = stream_find(handle, &stream);
    if (result != CUDA_RESULT_OK || bytes == 0) {
        return result;
    }
    struct copy_work *copy = malloc(sizeof *copy);
    if (copy == NULL) {
        return CUDA_RESULT_OUT_OF_MEMORY;
    }
    *copy = (struct copy_work){.work = {.references = 1, .run = copy_run, .destroy = copy_destroy},
                               .target = target,
                               .source = source,
                               .bytes = bytes};
    if (memory_is_pageable(source) && stream->capture == NULL && !stage(copy)) {
        free(copy);
        return CUDA_RESULT_OUT_OF_MEMORY;
    }
    bool waits = memory_is_pageable(target);
    result = stream_submit(stream, &copy->work, &number);
    return result == CUDA_RESULT_OK && waits && number > 0 ? stream_await(stream, number) : result;
}

static bool is_device_memory(uint64_t address)
{
    const struct allocation *allocation = allocation_find(address);
    return arena_contains(address) || (allocation != NULL && allocation->kind == ALLOCATION_MANAGED);
}

/* With one address space for all, pinned host memory may stand where a device address is expected. */
static bool may_be_device(uint64_t address)
{
    return !memory_is_pageable(address);
}

cuda_result cuMemcpyAsync(cuda_pointer target, cuda_pointer source, size_t bytes, cuda_stream stream)
{
    cuda_result result = double_begin(__func__, ENTER_CONTEXT);
    if (result != CUDA_RESULT_OK) {
        return result;
    }
    result = copy_submit(stream, target, source, bytes);
    return double_end(result);
}

cuda_result cuMemcpyDtoHAsync_v2(void *target, cuda_pointer source, size_t bytes, cuda_stream stream)
{
    uint64_t address = (uint64_t)(uintptr_t)target;
    cuda_result result = double_begin(__func__, ENTER_CONTEXT);
    if (result != CUDA_RESULT_OK) {
        return result;
    }
    result = !may_be_device(source) || is_device_memory(address)
                 ? CUDA_RESULT_INVALID_VALUE
                 : copy_submit(stream, address, source, bytes);
    return double_end(result);
}

cuda_result cuMemcpyHtoDAsync_v2(cuda_pointer target, const void *source, size_t bytes, cuda_stream stream)
{
    uint64_t address = (uint64_t)(uintptr_t)source;
    cuda_result result = double_begin(__func__, ENTER_CONTEXT);
    if (result != CUDA_RESULT_OK) {
        return result;
    }
    result = !may_be_device(target) || is_device_memory(address)
                 ? CUDA_RESULT_INVALID_VALUE
                 : copy_submit(stream, target, address, bytes);
    return double_end(result);
}

static cuda_result synchronize(cuda_result result)
{
    struct stream *legacy;
    if (result == CUDA_RESULT_OK) {
        double_lock();
        result = stream_find(NULL, &legacy);
        if (result == CUDA_RESULT_OK) {
            result = stream_await(legacy, legacy->submitted);
        }
        double_unlock();
    }
    return result;
}

cuda_result cuMemcpyHtoD_v2(cuda_pointer target, const void *source, size_t bytes)
{
    return synchronize(cuMemcpyHtoDAsync_v2(target, source, bytes, NULL));
}

cuda_result cuMemcpyDtoH_v2(void *target, cuda_pointer source, size_t bytes)
{
    return synchronize(cuMemcpyDtoHAsync_v2(target, source, bytes, NULL));
}

cuda_result cuMemsetD8Async(cuda_pointer target, unsigned char value, size_t bytes, cuda_stream handle)
{
    cuda_result result = double_begin(__func__, ENTER_CONTEXT);
    if (result != CUDA_RESULT_OK) {
        return result;
    }
    struct stream *stream;
    result = may_be_device(target) ? stream_find_here(handle, &stream) : CUDA_RESULT_INVALID_VALUE;
    struct set_work *set = result == CUDA_RESULT_OK ? malloc(sizeof *set) : NULL;
    if (result == CUDA_RESULT_OK && set == NULL) {
        result = CUDA_RESULT_OUT_OF_MEMORY;
    } else if (result == CUDA_RESULT_OK) {
        *set = (struct set_work){.work = {.references = 1, .run = set_run, .destroy = set_destroy},
                                 .target = target,
                                 .bytes = bytes,
                                 .value = value};
        result = stream_submit(stream, &set->work, NULL);
    }
    return double_end(result);
}
