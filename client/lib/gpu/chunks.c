#include <stdlib.h>

#include "client/lib/internal.h"

/*
 * Finds the memory at an address of a GPU that can be passed to commd: whole allocations, or chunks of
 * virtual memory. Also checks whether it is still the same memory.
 */

#define CHUNKS_MAX 4096u /* of virtual memory, in one registration */

/* What CUDA says of an address. */
cuda_result gpu_ask(void *value, int attribute, const void *address)
{
    return gpu_driver()->pointer_attribute(value, attribute, (cuda_pointer)(uintptr_t)address);
}

bool gpu_says(int attribute, const void *address)
{
    int value = 0;
    return gpu_ask(&value, attribute, address) == CUDA_RESULT_OK && value != 0;
}

cuda_result chunk_identify(struct client_chunk *chunk, const void *address, bool is_virtual)
{
    chunk->buffer_id = 0;
    chunk->block_id = 0;
    cuda_result result = gpu_ask(&chunk->buffer_id, CUDA_POINTER_BUFFER_ID, address);
    if (!is_virtual) {
        return result;
    }
    cuda_result block = gpu_ask(&chunk->block_id, CUDA_POINTER_BLOCK_ID, address);
    bool known = (result == CUDA_RESULT_OK && chunk->buffer_id != 0) ||
                 (block == CUDA_RESULT_OK && chunk->block_id != 0);
    return known ? CUDA_RESULT_OK : block != CUDA_RESULT_OK ? block : CUDA_RESULT_INVALID_VALUE;
}

/* Whether the addresses still hold the same memory as when they were registered with commd. */
bool chunks_are_current(const struct client_memory *memory, const unsigned char *begin,
                        const unsigned char *end)
{
    for (uint32_t i = 0; i < memory->chunk_count; i++) {
        const struct client_chunk *chunk = &memory->chunks[i];
        struct client_chunk now;
        if (chunk->base + chunk->size_bytes <= begin || chunk->base >= end) {
            continue;
        }
        const unsigned char *at = chunk->base > begin ? chunk->base : begin;
        if (chunk_identify(&now, at, memory->is_virtual) != CUDA_RESULT_OK ||
            now.buffer_id != chunk->buffer_id || now.block_id != chunk->block_id) {
            return false;
        }
    }
    return true;
}

static comm_result_t refuse(const void *at, const char *what)
{
    return error_report(COMM_UNSUPPORTED,
                        "the memory at %p is %s, which cannot be passed to commd: use memory of "
                        "comm_mem_alloc or cudaMalloc",
                        at, what);
}

/* Finds the GPU's chunk of virtual memory at the address, if commd can get it. Returns false otherwise. */
static bool find_chunk(const struct client_gpu *gpu, const unsigned char *at, struct client_chunk *out)
{
    unsigned long long types = 0;
    cuda_pointer base = 0;
    size_t size_bytes = 0;
    int ordinal = -1;
    if (gpu_ask(&types, CUDA_POINTER_HANDLE_TYPES, at) != CUDA_RESULT_OK ||
        (types & CUDA_HANDLE_POSIX_FD) == 0 || gpu_says(CUDA_POINTER_LEGACY_IPC, at) ||
        gpu_ask(&ordinal, CUDA_POINTER_DEVICE, at) != CUDA_RESULT_OK || ordinal != gpu->ordinal ||
        chunk_identify(out, at, true) != CUDA_RESULT_OK ||
        gpu_ask(&base, CUDA_POINTER_MAPPING_BASE, at) != CUDA_RESULT_OK ||
        gpu_ask(&size_bytes, CUDA_POINTER_MAPPING_BYTES, at) != CUDA_RESULT_OK || size_bytes == 0) {
        return false;
    }
    out->base = (unsigned char *)(uintptr_t)base;
    out->size_bytes = size_bytes;
    return true;
}

bool chunks_add(struct gpu_chunks *chunks, const struct client_chunk *chunk)
{
    if (chunks->count == chunks->capacity) {
        uint32_t capacity = chunks->capacity != 0 ? 2 * chunks->capacity : 16;
        struct client_chunk *grown = reallocarray(chunks->list, capacity, sizeof *grown);
        if (grown == NULL) {
            return false;
        }
        chunks->list = grown;
        chunks->capacity = capacity;
    }
    chunks->list[chunks->count++] = *chunk;
    return true;
}

/*
 * Finds all chunks around the range, up to the next holes. Otherwise a segment that grows chunk by chunk, and
 * is used in overlapping pieces, would be registered again and again.
 */
static comm_result_t find_chunks(const struct client_gpu *gpu, const unsigned char *at, size_t size_bytes,
                                 struct gpu_chunks *chunks)
{
    struct client_chunk chunk;
    const unsigned char *next = at;
    if (!find_chunk(gpu, at, &chunk)) {
        return refuse(at, "virtual memory without a handle type of its own");
    }
    while (chunks->count < CHUNKS_MAX / 2 && find_chunk(gpu, chunk.base - 1, &chunk)) {
        if (!chunks_add(chunks, &chunk)) {
            goto no_memory;
        }
    }
    for (uint32_t i = 0; i < chunks->count / 2; i++) { /* they were found from the last to the first */
        struct client_chunk *other = &chunks->list[chunks->count - 1 - i];
        chunk = chunks->list[i];
        chunks->list[i] = *other;
        *other = chunk;
    }
    while (chunks->count < CHUNKS_MAX && find_chunk(gpu, next, &chunk)) {
        if (!chunks_add(chunks, &chunk)) {
            goto no_memory;
        }
        next = chunk.base + chunk.size_bytes;
    }
    if (next < at + size_bytes) {
        return chunks->count == CHUNKS_MAX
                   ? error_report(COMM_LIMIT,
                                  "the memory at %p has more than %u parts that were mapped one by one", at,
                                  CHUNKS_MAX / 2)
                   : error_report(COMM_INVALID_ARGUMENT,
                                  "of %zu bytes at %p, those from %p on are not memory of GPU %d that can be "
                                  "passed to commd",
                                  size_bytes, at, next, gpu->ordinal);
    }
    return COMM_OK;
no_memory:
    return error_report(COMM_NO_MEMORY, "no memory for a registration");
}

bool chunks_find_next(const struct client_gpu *gpu, const unsigned char *at, const unsigned char *until,
                      uint32_t count, struct gpu_chunks *chunks)
{
    struct client_chunk chunk;
    chunks->are_virtual = true;
    while (at < until && chunks->count + count < CHUNKS_MAX && find_chunk(gpu, at, &chunk) &&
           chunk.base == at && chunk.size_bytes <= (size_t)(until - at)) {
        if (!chunks_add(chunks, &chunk)) {
            return false;
        }
        at += chunk.size_bytes;
    }
    return true;
}

size_t chunk_reserved_bytes(const unsigned char *at)
{
    cuda_pointer begin = 0;
    size_t size_bytes = 0;
    cuda_pointer here = (cuda_pointer)(uintptr_t)at;
    if (gpu_ask(&begin, CUDA_POINTER_RANGE_START, at) != CUDA_RESULT_OK ||
        gpu_ask(&size_bytes, CUDA_POINTER_RANGE_BYTES, at) != CUDA_RESULT_OK || begin > here ||
        size_bytes < here - begin) {
        return 0;
    }
    return size_bytes - (size_t)(here - begin);
}

/* Finds the whole allocation of cuMemAlloc, or of a memory pool, that holds the range. */
static comm_result_t find_allocation(const unsigned char *at, size_t size_bytes, struct gpu_chunks *chunks)
{
    cuda_pointer base;
    struct client_chunk chunk;
    cuda_result result = gpu_driver()->memory_range(&base, &chunk.size_bytes, (cuda_pointer)(uintptr_t)at);
    if (result != CUDA_RESULT_OK) {
        return gpu_report(result, "cuMemGetAddressRange_v2");
    }
    chunk.base = (unsigned char *)(uintptr_t)base;
    if (size_bytes > chunk.size_bytes - (size_t)(at - chunk.base)) {
        return error_report(COMM_INVALID_ARGUMENT,
                            "%zu bytes at %p exceed the allocation, of %zu bytes at %p", size_bytes, at,
                            chunk.size_bytes, chunk.base);
    }
    result = chunk_identify(&chunk, at, false);
    if (result != CUDA_RESULT_OK) {
        return gpu_report(result, "cuPointerGetAttribute");
    }
    return chunks_add(chunks, &chunk) ? COMM_OK
                                      : error_report(COMM_NO_MEMORY, "no memory for a registration");
}

static bool is_virtual(const void *at)
{
    cuda_allocation allocation;
    bool found = gpu_driver()->allocation_retain(&allocation, (void *)(uintptr_t)at) == CUDA_RESULT_OK;
    if (found) {
        (void)gpu_driver()->allocation_release(allocation);
    }
    return found;
}

/* Refuses memory that has neither a legacy handle nor a descriptor. */
static comm_result_t refuse_by_types(const void *at, unsigned long long types)
{
    if (!is_virtual(at)) {
        return refuse(at, "memory that has no handle, as memory allocated by a CUDA graph");
    }
    if ((types & CUDA_HANDLE_FABRIC) == 0) {
        return refuse(at, "virtual memory that was made without a handle type to pass it by");
    }
    return error_report(COMM_UNSUPPORTED,
                        "the memory at %p is virtual memory exportable by fabric handle alone, as that of "
                        "PyTorch's expandable segments where the GPU has access to a fabric; commd takes "
                        "descriptors and legacy IPC handles: use memory of comm_mem_alloc, or of cudaMalloc "
                        "(PYTORCH_CUDA_ALLOC_CONF=expandable_segments:False)",
                        at);
}

comm_result_t chunks_find(const struct client_gpu *gpu, const unsigned char *at, size_t size_bytes,
                          struct gpu_chunks *chunks)
{
    unsigned long long types = 0;
    int ordinal = -1;
    if (gpu_says(CUDA_POINTER_IS_MANAGED, at)) {
        return refuse(at, "managed (cudaMallocManaged)");
    }
    if (gpu_ask(&ordinal, CUDA_POINTER_DEVICE, at) == CUDA_RESULT_OK && ordinal != gpu->ordinal) {
        return error_report(COMM_UNSUPPORTED,
                            "the memory at %p is of GPU %d, and the communicator's rank is on GPU %d", at,
                            ordinal, gpu->ordinal);
    }
    if (gpu_ask(&chunks->pool, CUDA_POINTER_POOL, at) != CUDA_RESULT_OK) {
        chunks->pool = NULL;
    }
    if (chunks->pool != NULL || gpu_says(CUDA_POINTER_LEGACY_IPC, at)) {
        return find_allocation(at, size_bytes, chunks);
    }
    if (gpu_ask(&types, CUDA_POINTER_HANDLE_TYPES, at) == CUDA_RESULT_OK &&
        (types & CUDA_HANDLE_POSIX_FD) != 0) {
        chunks->are_virtual = true;
        return find_chunks(gpu, at, size_bytes, chunks);
    }
    return refuse_by_types(at, types);
}

comm_result_t chunk_export(const struct client_chunk *chunk, int *out)
{
    cuda_allocation allocation;
    cuda_result result = gpu_driver()->allocation_retain(&allocation, chunk->base);
    if (result != CUDA_RESULT_OK) {
        return gpu_report(result, "cuMemRetainAllocationHandle");
    }
    result = gpu_driver()->allocation_export(out, allocation, CUDA_HANDLE_POSIX_FD, 0);
    (void)gpu_driver()->allocation_release(allocation);
    return result == CUDA_RESULT_OK ? COMM_OK : gpu_report(result, "cuMemExportToShareableHandle");
}
