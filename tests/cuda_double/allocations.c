#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/cuda_double/pool.h"

static struct allocation **sorted; /* in the order of their addresses */
static size_t count;
static size_t room;
static uint64_t next_buffer_id = 1;
static uint64_t next_block_number = 1;

/* Returns the index of the first allocation whose end lies beyond the address. */
static size_t index_beyond(uint64_t address)
{
    size_t low = 0;
    size_t high = count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (sorted[middle]->address + sorted[middle]->bytes > address) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    return low;
}

static struct allocation *find_any(uint64_t address)
{
    size_t index = index_beyond(address);
    return index < count && sorted[index]->address <= address ? sorted[index] : NULL;
}

struct allocation *allocation_find(uint64_t address)
{
    struct allocation *allocation = find_any(address);
    return allocation != NULL && !allocation->leaves ? allocation : NULL;
}

struct allocation *allocation_first(void)
{
    return count > 0 ? sorted[0] : NULL;
}

struct allocation *allocation_next(const struct allocation *after)
{
    size_t index = index_beyond(after->address) + 1;
    return index < count ? sorted[index] : NULL;
}

bool allocation_overlaps(uint64_t address, uint64_t bytes)
{
    size_t index = index_beyond(address);
    return index < count && sorted[index]->address < address + bytes;
}

uint64_t allocation_number(void)
{
    return next_buffer_id++;
}

struct allocation *allocation_add(const struct allocation *allocation)
{
    assert(allocation->bytes > 0);
    if (count == room) {
        size_t more = room == 0 ? 64 : room * 2;
        struct allocation **grown = realloc(sorted, more * sizeof(struct allocation *));
        if (grown == NULL) {
            return NULL;
        }
        sorted = grown;
        room = more;
    }
    struct allocation *added = malloc(sizeof *added);
    if (added == NULL) {
        return NULL;
    }
    *added = *allocation;
    added->buffer_id = allocation_number();
    size_t index = index_beyond(added->address);
    memmove(sorted + index + 1, sorted + index, (count - index) * sizeof(struct allocation *));
    sorted[index] = added;
    count++;
    return added;
}

void allocation_remove(struct allocation *allocation)
{
    allocation->leaves = true; /* from here on, allocation_find does not find it */
    while (allocation->pins > 0) {
        double_wait(0);
    }
    size_t index = index_beyond(allocation->address);
    assert(index < count && sorted[index] == allocation);
    memmove(sorted + index, sorted + index + 1, (count - index - 1) * sizeof(struct allocation *));
    count--;
    free(allocation);
}

struct block *block_new(const struct machine_block *of)
{
    struct block *block = calloc(1, sizeof *block);
    if (block == NULL) {
        return NULL;
    }
    block->of = *of;
    block->fd = of->fd;
    block->number = next_block_number++;
    block->references = 1;
    return block;
}

void block_release(struct block *block)
{
    assert(block->references > 0);
    if (--block->references > 0) {
        return;
    }
    if (block->fd >= 0) {
        close(block->fd);
    }
    machine_leave(block->of.id);
    free(block->units);
    free(block);
}

bool memory_is_pageable(uint64_t address)
{
    return !arena_contains(address) && allocation_find(address) == NULL;
}

bool memory_may_touch(cuda_context context, const struct allocation *allocation, enum touch touch)
{
    switch (allocation->kind) {
    case ALLOCATION_MAPPED:
        return (allocation->access & 1u << context->ordinal) != 0;
    case ALLOCATION_HOST:
        /* with one address space for all devices, pinned memory is mapped and portable, whatever the flags
         * say */
        return true;
    case ALLOCATION_REGISTERED:
        return touch == TOUCH_COPY ||
               ((allocation->flags & CUDA_HOST_DEVICE_MAP) != 0 &&
                (allocation->context == context || (allocation->flags & CUDA_HOST_PORTABLE) != 0));
    case ALLOCATION_MANAGED:
        return true;
    case ALLOCATION_IMPORTED:
        if (touch != TOUCH_COPY && allocation->context != context && !settings()->imports_peer) {
            return false;
        }
        break;
    case ALLOCATION_POOL:
    case ALLOCATION_POOL_IMPORTED:
        return pool_allows(allocation->pool, context->ordinal); /* for copies, too */
    case ALLOCATION_DEVICE:
    case ALLOCATION_GRAPH:
        break;
    }
    return touch == TOUCH_COPY || allocation->context == context ||
           (context->peers & 1u << allocation->context->ordinal) != 0;
}

cuda_result memory_resolve(cuda_context context, uint64_t address, uint64_t bytes, unsigned alignment,
                           enum touch touch, unsigned char **memory, struct pin *pin)
{
    *pin = (struct pin){.address = address, .bytes = 0};
    *memory = NULL;
    if (address % alignment != 0) {
        return CUDA_RESULT_MISALIGNED_ADDRESS;
    }
    if (bytes == 0) {
        return CUDA_RESULT_OK;
    }
    if (touch == TOUCH_COPY && memory_is_pageable(address)) {
        *memory = (unsigned char *)(uintptr_t)address;
        return CUDA_RESULT_OK;
    }
    for (uint64_t at = address; at - address < bytes;) {
        struct allocation *allocation = allocation_find(at);
        bool first = at == address;
        if (allocation == NULL || !memory_may_touch(context, allocation, touch) ||
            (allocation->pool != NULL && !pool_is_ready(allocation)) ||
            (!first && allocation->kind != ALLOCATION_MAPPED)) {
            return CUDA_RESULT_ILLEGAL_ADDRESS;
        }
        if (first) {
            *memory = allocation->memory + (at - allocation->address);
        }
        at = allocation->address + allocation->bytes;
        if (allocation->kind != ALLOCATION_MAPPED && at - address < bytes) {
            return CUDA_RESULT_ILLEGAL_ADDRESS;
        }
    }
    pin->bytes = bytes;
    for (uint64_t at = address; at - address < bytes;) {
        struct allocation *allocation = allocation_find(at);
        allocation->pins++;
        at = allocation->address + allocation->bytes;
    }
    return CUDA_RESULT_OK;
}

void memory_unpin(const struct pin *pin)
{
    for (uint64_t at = pin->address; at - pin->address < pin->bytes;) {
        struct allocation *allocation = find_any(at);
        assert(allocation != NULL && allocation->pins > 0);
        if (--allocation->pins == 0) {
            double_progress();
        }
        at = allocation->address + allocation->bytes;
    }
}
