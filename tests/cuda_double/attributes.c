#include <string.h>

#include "tests/cuda_double/pool.h"

/* Values of CUpointer_attribute that proto/cuda_driver.h lacks. */
#define POINTER_CONTEXT 1
#define POINTER_DEVICE_POINTER 3
#define POINTER_HOST_POINTER 4

static bool is_host(const struct allocation *allocation)
{
    return allocation->kind == ALLOCATION_HOST || allocation->kind == ALLOCATION_REGISTERED;
}

static cuda_result give(void *value, const void *found, size_t bytes)
{
    memcpy(value, found, bytes);
    return CUDA_RESULT_OK;
}

static cuda_result give_int(void *value, int found)
{
    return give(value, &found, sizeof found);
}

static cuda_result give_u64(void *value, uint64_t found)
{
    return give(value, &found, sizeof found);
}

/* Gives the range of addresses that has the same physical memory behind it: the block, or the part of a
 * block that is mapped there. */
static cuda_result give_mapping(void *value, int attribute, const struct allocation *allocation)
{
    bool small = allocation->kind == ALLOCATION_DEVICE || allocation->kind == ALLOCATION_GRAPH ||
                 allocation->pool != NULL;
    if (attribute == CUDA_POINTER_MAPPING_BASE) {
        return give_u64(value, small ? allocation->address - allocation->block_offset : allocation->address);
    }
    return give_u64(value, small ? allocation->block->of.bytes : allocation->bytes);
}

/* Gives the range of the allocation. For virtual memory this is the whole reservation, whatever part of it
 * is mapped. */
static cuda_result give_range(void *value, int attribute, const struct allocation *allocation)
{
    struct reserved range = {.address = allocation->base, .bytes = allocation->base_bytes};
    if (allocation->kind == ALLOCATION_MAPPED) {
        range = reservation_of(allocation->address);
    }
    return give_u64(value, attribute == CUDA_POINTER_RANGE_START ? range.address : range.bytes);
}

static cuda_result give_attribute(void *value, int attribute, const struct allocation *allocation,
                                  cuda_pointer pointer)
{
    switch (attribute) {
    case POINTER_CONTEXT:
        return allocation->kind == ALLOCATION_MAPPED
                   ? CUDA_RESULT_INVALID_VALUE
                   : give(value, &allocation->context, sizeof(cuda_context));
    case CUDA_POINTER_MEMORY_TYPE: {
        unsigned type = is_host(allocation) ? CUDA_MEMORY_HOST : CUDA_MEMORY_DEVICE;
        return give(value, &type, sizeof type);
    }
    case POINTER_DEVICE_POINTER:
        return give_u64(value, pointer);
    case POINTER_HOST_POINTER:
        return is_host(allocation) || allocation->kind == ALLOCATION_MANAGED ? give_u64(value, pointer)
                                                                             : CUDA_RESULT_INVALID_VALUE;
    case CUDA_POINTER_BUFFER_ID:
        return give_u64(value, allocation->kind == ALLOCATION_MAPPED && !settings()->mappings_numbered
                                   ? reservation_of(allocation->address).number
                                   : allocation->buffer_id);
    case CUDA_POINTER_IS_MANAGED:
        return give_int(value, allocation->kind == ALLOCATION_MANAGED);
    case CUDA_POINTER_DEVICE:
        return give_int(value, allocation->ordinal);
    case CUDA_POINTER_LEGACY_IPC:
        return give_int(value, allocation->kind == ALLOCATION_DEVICE);
    case CUDA_POINTER_MAPPED:
        return give_int(value, allocation->kind != ALLOCATION_MAPPED || allocation->access != 0);
    case CUDA_POINTER_HANDLE_TYPES:
        return give_u64(value, allocation->kind == ALLOCATION_MAPPED
                                   ? (uint64_t)allocation->block->of.handle_types
                               : allocation->pool != NULL ? (uint64_t)allocation->pool->handle_types
                                                          : 0);
    case CUDA_POINTER_POOL: {
        cuda_pool pool = allocation->pool != NULL ? pool_handle(allocation->pool) : NULL;
        return give(value, &pool, sizeof pool);
    }
    case CUDA_POINTER_RANGE_START:
    case CUDA_POINTER_RANGE_BYTES:
        return give_range(value, attribute, allocation);
    case CUDA_POINTER_ACCESS:
        return context_now() == NULL
                   ? CUDA_RESULT_INVALID_CONTEXT
                   : give_u64(value, memory_may_touch(context_now(), allocation, TOUCH_KERNEL)
                                         ? CUDA_ACCESS_READ_WRITE
                                         : 0);
    case CUDA_POINTER_MAPPING_BYTES:
    case CUDA_POINTER_MAPPING_BASE:
        return give_mapping(value, attribute, allocation);
    case CUDA_POINTER_BLOCK_ID:
        return allocation->block != NULL ? give_u64(value, allocation->block->number)
                                         : CUDA_RESULT_INVALID_VALUE;
    default:
        return CUDA_RESULT_INVALID_VALUE;
    }
}

cuda_result cuPointerGetAttribute(void *value, int attribute, cuda_pointer pointer)
{
    cuda_result result = double_begin(__func__, 0);
    if (result != CUDA_RESULT_OK) {
        return result;
    }
    const struct allocation *allocation = allocation_find(pointer);
    result = allocation != NULL && !allocation->freeing
                 ? give_attribute(value, attribute, allocation, pointer)
                 : CUDA_RESULT_INVALID_VALUE;
    return double_end(result);
}
