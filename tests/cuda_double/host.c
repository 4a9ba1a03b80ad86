#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/cuda_double/memory.h"
#include "tests/cuda_double/stream.h"

#define HOST_ALLOC_FLAGS_ALL 7u /* portable, mapped, write-combined: flags of cuMemHostAlloc */
/* portable, mapped, memory of a device, read only: flags of cuMemHostRegister */
#define HOST_REGISTER_FLAGS_ALL 15u

/* Rounds up to whole blocks, so that no other memory lies directly behind the end. */
static uint64_t whole(uint64_t bytes)
{
    return (bytes + BLOCK_BYTES - 1) / BLOCK_BYTES * BLOCK_BYTES;
}

static cuda_result host_make(void **memory, uint64_t bytes, unsigned flags, enum allocation_kind kind)
{
    void *made =
        mmap(NULL, whole(bytes), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (made == MAP_FAILED) {
        return CUDA_RESULT_OUT_OF_MEMORY;
    }
    memset(made, POISON, bytes);
    uint64_t address = (uint64_t)(uintptr_t)made;
    if (allocation_add(&(struct allocation){.address = address,
                                            .bytes = bytes,
                                            .kind = kind,
                                            .ordinal = context_now()->ordinal,
                                            .context = context_now(),
                                            .flags = flags,
                                            .memory = made,
                                            .base = address,
                                            .base_bytes = bytes}) == NULL) {
        munmap(made, whole(bytes));
        return CUDA_RESULT_OUT_OF_MEMORY;
    }
    *memory = made;
    return CUDA_RESULT_OK;
}

cuda_result cuMemHostAlloc(void **memory, size_t bytes, unsigned flags)
{
    cuda_result result = double_enter(__func__, ENTER_BOTH);
    if (result != CUDA_RESULT_OK) {
        return result;
    }
    if (bytes == 0 || (flags & ~HOST_ALLOC_FLAGS_ALL) != 0) {
        return CUDA_RESULT_INVALID_VALUE;
    }
    double_lock();
    result = settings()->blocking_allocation ? context_await(context_now()) : CUDA_RESULT_OK;
    if (result == CUDA_RESULT_OK) {
        result = host_make(memory, bytes, flags, ALLOCATION_HOST);
    }
    return double_end(result);
}

/* The CPU may touch this memory as well. It need not lie on the device, so the device is not charged. */
cuda_result cuMemAllocManaged(cuda_pointer *pointer, size_t bytes, unsigned flags)
{
    cuda_result result = double_enter(__func__, ENTER_BOTH);
    if (result != CUDA_RESULT_OK) {
        return result;
    }
    if (bytes == 0 || flags != CUDA_ATTACH_GLOBAL) {
        return CUDA_RESULT_INVALID_VALUE;
    }
    void *memory = NULL;
    double_lock();
    result = host_make(&memory, bytes, 0, ALLOCATION_MANAGED);
    double_unlock();
    *pointer = (cuda_pointer)(uintptr_t)memory;
    return result;
}

static cuda_result await_all(void)
{
    cuda_result result = CUDA_RESULT_OK;
    for (int i = 0; i < device_count() && result == CUDA_RESULT_OK; i++) {
        result = contexts[i].active ? context_await(&contexts[i]) : CUDA_RESULT_OK;
    }
    return result;
}

static struct allocation *host_find(const void *memory, enum allocation_kind kind)
{
    uint64_t address = (uint64_t)(uintptr_t)memory;
    struct allocation *allocation = allocation_find(address);
    bool found = allocation != NULL && allocation->kind == kind && allocation->address == address;
    return found ? allocation : NULL;
}

cuda_result cuMemFreeHost(void *memory)
{
    cuda_result result = double_begin(__func__, ENTER_BOTH);
    if (result != CUDA_RESULT_OK) {
        return result;
    }
    result = host_find(memory, ALLOCATION_HOST) != NULL ? await_all() : CUDA_RESULT_INVALID_VALUE;
    struct allocation *allocation = host_find(memory, ALLOCATION_HOST);
    if (result == CUDA_RESULT_OK && allocation != NULL) {
        allocation_forget(allocation);
    }
    return double_end(result);
}

static bool is_mapped(uint64_t address, uint64_t bytes)
{
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    uint64_t begin = address / page * page;
    uint64_t end = (address + bytes + page - 1) / page * page;
    return msync((void *)(uintptr_t)begin, end - begin, MS_ASYNC) == 0;
}

cuda_result cuMemHostRegister_v2(void *memory, size_t bytes, unsigned flags)
{
    uint64_t address = (uint64_t)(uintptr_t)memory;
    cuda_result result = double_enter(__func__, ENTER_BOTH);
    if (result != CUDA_RESULT_OK) {
        return result;
    }
    if (memory == NULL || bytes == 0 || (flags & ~HOST_REGISTER_FLAGS_ALL) != 0 || arena_contains(address) ||
        !is_mapped(address, bytes)) {
        return CUDA_RESULT_INVALID_VALUE;
    }
    double_lock();
    result = settings()->blocking_allocation ? context_await(context_now()) : CUDA_RESULT_OK;
    if (result == CUDA_RESULT_OK && allocation_overlaps(address, bytes)) {
        result = CUDA_RESULT_HOST_MEMORY_ALREADY_REGISTERED;
    } else if (result == CUDA_RESULT_OK &&
               allocation_add(&(struct allocation){.address = address,
                                                   .bytes = bytes,
                                                   .kind = ALLOCATION_REGISTERED,
                                                   .ordinal = context_now()->ordinal,
                                                   .context = context_now(),
                                                   .flags = flags,
                                                   .memory = memory,
                                                   .base = address,
                                                   .base_bytes = bytes}) == NULL) {
        result = CUDA_RESULT_OUT_OF_MEMORY;
    }
    return double_end(result);
}

cuda_result cuMemHostUnregister(void *memory)
{
    cuda_result result = double_begin(__func__, ENTER_BOTH);
    if (result != CUDA_RESULT_OK) {
        return result;
    }
    struct allocation *allocation = host_find(memory, ALLOCATION_REGISTERED);
    if (allocation != NULL) {
        allocation_forget(allocation);
    } else {
        result = CUDA_RESULT_HOST_MEMORY_NOT_REGISTERED;
    }
    return double_end(result);
}

cuda_result cuMemHostGetDevicePointer_v2(cuda_pointer *pointer, void *memory, unsigned flags)
{
    uint64_t address = (uint64_t)(uintptr_t)memory;
    cuda_result result = double_begin(__func__, ENTER_CONTEXT);
    if (result != CUDA_RESULT_OK) {
        return result;
    }
    const struct allocation *allocation = allocation_find(address);
    bool usable =
        allocation != NULL && flags == 0 &&
        (allocation->kind == ALLOCATION_HOST ||
         (allocation->kind == ALLOCATION_REGISTERED && (allocation->flags & CUDA_HOST_DEVICE_MAP) != 0 &&
          (allocation->context == context_now() || (allocation->flags & CUDA_HOST_PORTABLE) != 0)));
    *pointer = usable ? address : 0;
    double_unlock();
    return usable ? CUDA_RESULT_OK : CUDA_RESULT_INVALID_VALUE;
}
