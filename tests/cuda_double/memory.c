#include "tests/cuda_double/memory.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/cuda_double/pool.h"
#include "tests/cuda_double/stream.h"

#define SMALL_BYTES (1ull << 20)
#define SMALL_UNIT_BYTES 512ull
#define SMALL_UNITS (BLOCK_BYTES / SMALL_UNIT_BYTES)

static struct block *shared_blocks; /* blocks for small allocations */

static uint64_t up_to_blocks(uint64_t bytes)
{
    return (bytes + BLOCK_BYTES - 1) / BLOCK_BYTES * BLOCK_BYTES;
}

/* Makes a block of device memory, and maps it at an address of this process. */
static cuda_result block_make(cuda_context context, uint64_t bytes, struct block **out)
{
    struct machine_block of = {.bytes = bytes, .physical = context->physical};
    cuda_result result = machine_create(&of, true);
    if (result != CUDA_RESULT_OK) {
        return result;
    }
    struct block *block = block_new(&of);
    uint64_t address = block != NULL ? arena_reserve(bytes, 0, 0) : 0;
    if (address == 0 || !arena_map(address, bytes, of.fd, 0)) {
        if (address != 0) {
            arena_free(address, bytes);
        }
        if (block != NULL) {
            block_release(block);
        } else {
            close(of.fd);
            machine_leave(of.id);
        }
        return CUDA_RESULT_OUT_OF_MEMORY;
    }
    close(block->fd); /* others open it by its name */
    block->fd = -1;
    block->address = address;
    block->context = context;
    *out = block;
    return CUDA_RESULT_OK;
}

static void block_leave(struct block *block)
{
    if (block->references == 1) {
        arena_unmap(block->address, block->of.bytes);
        arena_free(block->address, block->of.bytes);
        for (struct block **link = &shared_blocks; *link != NULL; link = &(*link)->next) {
            if (*link == block) {
                *link = block->next;
                break;
            }
        }
    }
    block_release(block);
}

static bool units_find(const struct block *block, uint64_t count, uint64_t *first)
{
    uint64_t run = 0;
    for (uint64_t i = 0; i < SMALL_UNITS; i++) {
        run = block->units[i] != 0 ? 0 : run + 1;
        if (run == count) {
            *first = i + 1 - count;
            return true;
        }
    }
    return false;
}

static cuda_result place_small(cuda_context context, const struct pool *pool, uint64_t units,
                               struct block **out, uint64_t *offset)
{
    uint64_t first = 0;
    for (struct block *block = shared_blocks; block != NULL; block = block->next) {
        if (block->context == context && block->pool == pool && units_find(block, units, &first)) {
            block->references++;
            memset(block->units + first, 1, units);
            *offset = first * SMALL_UNIT_BYTES;
            /* A small allocation is poisoned when it is made, not when it is freed: others that opened it
             * may still read it. */
            memset(arena_memory(block->address + *offset), POISON, units * SMALL_UNIT_BYTES);
            *out = block;
            return CUDA_RESULT_OK;
        }
    }
    cuda_result result = block_make(context, BLOCK_BYTES, out);
    if (result != CUDA_RESULT_OK) {
        return result;
    }
    (*out)->units = calloc(1, SMALL_UNITS);
    if ((*out)->units == NULL) {
        block_leave(*out);
        return CUDA_RESULT_OUT_OF_MEMORY;
    }
    (*out)->pool = pool;
    (*out)->next = shared_blocks;
    shared_blocks = *out;
    memset((*out)->units, 1, units);
    *offset = 0;
    return CUDA_RESULT_OK;
}

static void unplace(struct block *block, uint64_t offset, uint64_t bytes)
{
    if (block->units != NULL) {
        memset(block->units + offset / SMALL_UNIT_BYTES, 0,
               (bytes + SMALL_UNIT_BYTES - 1) / SMALL_UNIT_BYTES);
    }
    block_leave(block);
}

cuda_result memory_alloc(uint64_t bytes, enum allocation_kind kind, struct pool *pool,
                         struct allocation **out)
{
    cuda_context context = context_now();
    struct block *block = NULL;
    uint64_t offset = 0;
    cuda_result result =
        bytes <= SMALL_BYTES
            ? place_small(context, pool, (bytes + SMALL_UNIT_BYTES - 1) / SMALL_UNIT_BYTES, &block, &offset)
            : block_make(context, up_to_blocks(bytes), &block);
    if (result != CUDA_RESULT_OK) {
        return result;
    }
    uint64_t address = block->address + offset;
    *out = allocation_add(&(struct allocation){.address = address,
                                               .bytes = bytes,
                                               .kind = kind,
                                               .ordinal = context->ordinal,
                                               .context = context,
                                               .memory = arena_memory(address),
                                               .block = block,
                                               .block_offset = offset,
                                               .pool = pool,
                                               .base = address,
                                               .base_bytes = bytes});
    if (*out == NULL) {
        unplace(block, offset, bytes);
        return CUDA_RESULT_OUT_OF_MEMORY;
    }
    return CUDA_RESULT_OK;
}

/* Others may open it by its handle from now on. */
static cuda_result alloc_shared(cuda_pointer *pointer, uint64_t bytes)
{
    struct allocation *allocation;
    cuda_result result = memory_alloc(bytes, ALLOCATION_DEVICE, NULL, &allocation);
    if (result != CUDA_RESULT_OK) {
        return result;
    }
    struct machine_export row = {.address = allocation->address,
                                 .bytes = bytes,
                                 .block_id = allocation->block->of.id,
                                 .offset = allocation->block_offset};
    if (!machine_publish(&row)) {
        allocation_forget(allocation);
        return CUDA_RESULT_OUT_OF_MEMORY;
    }
    *pointer = allocation->address;
    return CUDA_RESULT_OK;
}

void allocation_forget(struct allocation *allocation)
{
    struct allocation was = *allocation;
    allocation_remove(allocation);
    switch (was.kind) {
    case ALLOCATION_DEVICE:
        (void)machine_retract(was.address);
        unplace(was.block, was.block_offset, was.bytes);
        break;
    case ALLOCATION_GRAPH:
        unplace(was.block, was.block_offset, was.bytes);
        break;
    case ALLOCATION_POOL:
        pool_end(&was);
        unplace(was.block, was.block_offset, was.bytes);
        break;
    case ALLOCATION_IMPORTED:
        arena_unmap(was.address, was.bytes);
        arena_free(was.address, was.bytes);
        block_release(was.block);
        break;
    case ALLOCATION_POOL_IMPORTED:
        pool_end_import(&was);
        break;
    case ALLOCATION_HOST:
    case ALLOCATION_MANAGED:
        munmap(was.memory, up_to_blocks(was.bytes));
        break;
    case ALLOCATION_REGISTERED:
    case ALLOCATION_MAPPED:
        break;
    }
}

void memory_forget_context(cuda_context context)
{
    struct allocation *allocation = allocation_first();
    while (allocation != NULL) {
        if (allocation->kind != ALLOCATION_MAPPED && allocation->context == context && !allocation->leaves) {
            allocation_forget(allocation);
            allocation = allocation_first(); /* the list may have changed while allocation_forget waited */
        } else {
            allocation = allocation_next(allocation);
        }
    }
}

static cuda_result wait_as_driver_may(void)
{
    return settings()->blocking_allocation ? context_await(context_now()) : CUDA_RESULT_OK;
}

static cuda_result enter_alloc(const char *symbol, const void *out, uint64_t bytes)
{
    cuda_result result = double_enter(symbol, ENTER_BOTH);
    return result == CUDA_RESULT_OK && (out == NULL || bytes == 0) ? CUDA_RESULT_INVALID_VALUE : result;
}

cuda_result cuMemAlloc_v2(cuda_pointer *pointer, size_t bytes)
{
    cuda_result result = enter_alloc(__func__, pointer, bytes);
    if (result != CUDA_RESULT_OK) {
        return result;
    }
    double_lock();
    result = wait_as_driver_may();
    if (result == CUDA_RESULT_OK) {
        result = alloc_shared(pointer, bytes);
    }
    return double_end(result);
}

static bool is_freeable(const struct allocation *allocation, cuda_pointer pointer)
{
    return allocation != NULL && allocation->address == pointer &&
           (allocation->kind == ALLOCATION_DEVICE || allocation->kind == ALLOCATION_MANAGED ||
            (allocation->pool != NULL && !allocation->freeing));
}

cuda_result cuMemFree_v2(cuda_pointer pointer)
{
    cuda_result result = double_enter(__func__, ENTER_BOTH);
    if (result != CUDA_RESULT_OK || pointer == 0) {
        return result;
    }
    double_lock();
    struct allocation *allocation = allocation_find(pointer);
    if (!is_freeable(allocation, pointer)) {
        result = CUDA_RESULT_INVALID_VALUE;
    } else {
        uint64_t id = allocation->buffer_id;
        result = context_await(allocation->context);
        allocation = allocation_find(pointer);
        if (result == CUDA_RESULT_OK && (!is_freeable(allocation, pointer) || allocation->buffer_id != id)) {
            result = CUDA_RESULT_INVALID_VALUE; /* another thread freed it while this one waited */
        }
        if (result == CUDA_RESULT_OK) {
            allocation_forget(allocation);
        }
    }
    return double_end(result);
}

cuda_result cuMemGetInfo_v2(size_t *free_bytes, size_t *total_bytes)
{
    cuda_result result = double_begin(__func__, ENTER_CONTEXT);
    if (result != CUDA_RESULT_OK) {
        return result;
    }
    uint64_t used = machine_used_bytes(context_now()->physical);
    double_unlock();
    *total_bytes = settings()->memory_bytes;
    *free_bytes = used < *total_bytes ? *total_bytes - used : 0;
    return CUDA_RESULT_OK;
}

cuda_result cuMemGetAddressRange_v2(cuda_pointer *base, size_t *bytes, cuda_pointer pointer)
{
    cuda_result result = double_begin(__func__, ENTER_CONTEXT);
    if (result != CUDA_RESULT_OK) {
        return result;
    }
    const struct allocation *allocation = allocation_find(pointer);
    if (allocation == NULL || allocation->kind == ALLOCATION_REGISTERED) {
        result = CUDA_RESULT_NOT_FOUND;
    } else {
        if (base != NULL) {
            *base = allocation->base;
        }
        if (bytes != NULL) {
            *bytes = allocation->base_bytes;
        }
    }
    return double_end(result);
}
