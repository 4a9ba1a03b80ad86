#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include "tests/cuda_double/memory.h"
#include "tests/cuda_double/nccl.h"

/* Virtual memory: reservations of addresses, and blocks without addresses of their own, which are mapped
 * into reservations. */

#define GRANULARITY BLOCK_BYTES
#define ACCESS_NONE 0
#define ACCESS_READ 1

struct reservation {
    struct reservation *next;
    struct reserved of;
};

static struct reservation *reservations;
static struct block *blocks; /* blocks of virtual memory; a process has one struct for each */

static cuda_result vmm_enter(const char *symbol, unsigned needs)
{
    cuda_result result = double_enter(symbol, needs);
    return result == CUDA_RESULT_OK && !settings()->virtual_memory ? CUDA_RESULT_NOT_SUPPORTED : result;
}

static struct block *find_block(uint64_t id)
{
    struct block *block = blocks;
    while (block != NULL && block->of.id != id) {
        block = block->next;
    }
    return block;
}

/* Drops the reference of a handle or a mapping. */
static void vmm_release(struct block *block)
{
    if (block->references == 1) {
        struct block **link = &blocks;
        while (*link != block) {
            link = &(*link)->next;
        }
        *link = block->next;
    }
    block_release(block);
}

/* Returns the block's handle. A block has one handle, which is counted, as long as anybody holds it. Takes
 * over a reference to the block. */
static cuda_allocation give_handle(struct block *block)
{
    if (block->handle_references++ == 0) {
        block->handle = object_add(OBJECT_ALLOCATION, block);
    }
    return block->handle;
}

static bool properties_are_sound(const struct cuda_allocation_properties *properties)
{
    return properties != NULL && properties->type == CUDA_ALLOCATION_PINNED &&
           properties->location.type == CUDA_LOCATION_DEVICE && properties->location.id >= 0 &&
           properties->location.id < device_count();
}

cuda_result cuMemGetAllocationGranularity(size_t *bytes, const struct cuda_allocation_properties *properties,
                                          int option)
{
    cuda_result result = vmm_enter(__func__, 0);
    if (result != CUDA_RESULT_OK) {
        return result;
    }
    if (!properties_are_sound(properties) || option < 0 || option > 1) {
        return CUDA_RESULT_INVALID_VALUE;
    }
    *bytes = GRANULARITY;
    return CUDA_RESULT_OK;
}

static cuda_result enter_block(const struct machine_block *of, cuda_allocation *allocation)
{
    struct block *block = block_new(of);
    if (block == NULL) {
        close(of->fd);
        machine_leave(of->id);
        return CUDA_RESULT_OUT_OF_MEMORY;
    }
    block->next = blocks;
    blocks = block;
    *allocation = give_handle(block);
    return CUDA_RESULT_OK;
}

cuda_result cuMemCreate(cuda_allocation *allocation, size_t bytes,
                        const struct cuda_allocation_properties *properties, unsigned long long flags)
{
    cuda_result result = vmm_enter(__func__, ENTER_NOT_CAPTURING);
    if (result != CUDA_RESULT_OK) {
        return result;
    }
    if (!properties_are_sound(properties) || bytes == 0 || bytes % GRANULARITY != 0 || flags != 0) {
        return CUDA_RESULT_INVALID_VALUE;
    }
    if ((properties->handle_types & ~(CUDA_HANDLE_POSIX_FD | CUDA_HANDLE_FABRIC)) != 0) {
        return CUDA_RESULT_NOT_SUPPORTED;
    }
    double_lock();
    struct machine_block of = {.bytes = bytes,
                               .physical = device_physical(properties->location.id),
                               .handle_types = properties->handle_types};
    result = machine_create(&of, false);
    if (result == CUDA_RESULT_OK) {
        result = enter_block(&of, allocation);
    }
    return double_end(result);
}

cuda_result cuMemRelease(cuda_allocation handle)
{
    cuda_result result = vmm_enter(__func__, 0);
    if (result != CUDA_RESULT_OK) {
        return result;
    }
    double_lock();
    struct block *block = object_get(OBJECT_ALLOCATION, (uintptr_t)handle);
    if (block == NULL) {
        result = CUDA_RESULT_INVALID_VALUE;
    } else {
        if (--block->handle_references == 0) {
            (void)object_remove(OBJECT_ALLOCATION, (uintptr_t)handle);
        }
        vmm_release(block);
    }
    return double_end(result);
}

cuda_result cuMemRetainAllocationHandle(cuda_allocation *handle, void *address)
{
    cuda_result result = vmm_enter(__func__, 0);
    if (result != CUDA_RESULT_OK) {
        return result;
    }
    double_lock();
    const struct allocation *allocation = allocation_find((uint64_t)(uintptr_t)address);
    if (allocation == NULL || allocation->kind != ALLOCATION_MAPPED) {
        result = CUDA_RESULT_INVALID_VALUE;
    } else {
        allocation->block->references++;
        *handle = give_handle(allocation->block);
    }
    return double_end(result);
}

cuda_result cuMemExportToShareableHandle(void *fd, cuda_allocation handle, int handle_type,
                                         unsigned long long flags)
{
    cuda_result result = vmm_enter(__func__, 0);
    if (result != CUDA_RESULT_OK) {
        return result;
    }
    double_lock();
    const struct block *block = object_get(OBJECT_ALLOCATION, (uintptr_t)handle);
    if (block == NULL || flags != 0 || handle_type != CUDA_HANDLE_POSIX_FD ||
        (block->of.handle_types & handle_type) == 0) {
        result = CUDA_RESULT_INVALID_VALUE;
    } else {
        *(int *)fd = fcntl(block->fd, F_DUPFD_CLOEXEC, 0);
        result = *(int *)fd >= 0 ? CUDA_RESULT_OK : CUDA_RESULT_OUT_OF_MEMORY;
    }
    return double_end(result);
}

static cuda_result import_fd(int fd, cuda_allocation *allocation)
{
    struct machine_block of = {.fd = -1};
    cuda_result result = machine_open_fd(fd, &of);
    if (result != CUDA_RESULT_OK) {
        return result;
    }
    struct block *block = find_block(of.id);
    if (block != NULL) { /* this process has it already */
        close(of.fd);
        block->references++;
        *allocation = give_handle(block);
        return CUDA_RESULT_OK;
    }
    if (device_ordinal_of(of.physical) < 0 || (of.handle_types & CUDA_HANDLE_POSIX_FD) == 0) {
        close(of.fd);
        machine_leave(of.id);
        return CUDA_RESULT_INVALID_DEVICE;
    }
    return enter_block(&of, allocation);
}

/* The descriptor still belongs to the caller. */
cuda_result cuMemImportFromShareableHandle(cuda_allocation *allocation, void *fd_as_pointer, int handle_type)
{
    cuda_result result = vmm_enter(__func__, ENTER_NOT_CAPTURING);
    if (result != CUDA_RESULT_OK) {
        return result;
    }
    if (handle_type != CUDA_HANDLE_POSIX_FD) {
        return CUDA_RESULT_INVALID_VALUE;
    }
    double_lock();
    result = import_fd((int)(intptr_t)fd_as_pointer, allocation);
    return double_end(result);
}

/* ---- addresses */

cuda_result cuMemAddressReserve(cuda_pointer *pointer, size_t bytes, size_t alignment, cuda_pointer wish,
                                unsigned long long flags)
{
    cuda_result result = vmm_enter(__func__, 0);
    if (result != CUDA_RESULT_OK) {
        return result;
    }
    if (bytes == 0 || bytes % GRANULARITY != 0 || (alignment & (alignment - 1)) != 0 || flags != 0) {
        return CUDA_RESULT_INVALID_VALUE;
    }
    double_lock();
    struct reservation *made = malloc(sizeof *made);
    uint64_t address = made != NULL ? arena_reserve(bytes, alignment, wish) : 0;
    if (address == 0) {
        free(made);
        result = CUDA_RESULT_OUT_OF_MEMORY;
    } else {
        *made = (struct reservation){
            .next = reservations, .of = {.address = address, .bytes = bytes, .number = allocation_number()}};
        reservations = made;
        *pointer = address;
    }
    return double_end(result);
}

cuda_result cuMemAddressFree(cuda_pointer pointer, size_t bytes)
{
    cuda_result result = vmm_enter(__func__, 0);
    if (result != CUDA_RESULT_OK) {
        return result;
    }
    double_lock();
    struct reservation **link = &reservations;
    while (*link != NULL && ((*link)->of.address != pointer || (*link)->of.bytes != bytes)) {
        link = &(*link)->next;
    }
    if (*link == NULL || allocation_overlaps(pointer, bytes)) {
        result = CUDA_RESULT_INVALID_VALUE;
    } else {
        struct reservation *gone = *link;
        *link = gone->next;
        arena_free(pointer, bytes);
        free(gone);
    }
    return double_end(result);
}

static const struct reservation *find_reservation(uint64_t pointer, uint64_t bytes)
{
    for (const struct reservation *one = reservations; one != NULL; one = one->next) {
        if (pointer >= one->of.address && bytes <= one->of.bytes &&
            pointer - one->of.address <= one->of.bytes - bytes) {
            return one;
        }
    }
    return NULL;
}

struct reserved reservation_of(uint64_t address)
{
    return find_reservation(address, 1)->of;
}

static cuda_result map(uint64_t pointer, uint64_t bytes, struct block *block)
{
    if (bytes > block->of.bytes || find_reservation(pointer, bytes) == NULL ||
        allocation_overlaps(pointer, bytes)) {
        return CUDA_RESULT_INVALID_VALUE;
    }
    if (!arena_map(pointer, bytes, block->fd, 0)) {
        return CUDA_RESULT_OUT_OF_MEMORY;
    }
    if (allocation_add(&(struct allocation){.address = pointer,
                                            .bytes = bytes,
                                            .kind = ALLOCATION_MAPPED,
                                            .ordinal = device_ordinal_of(block->of.physical),
                                            .memory = arena_memory(pointer),
                                            .block = block,
                                            .base = pointer,
                                            .base_bytes = bytes}) == NULL) {
        arena_unmap(pointer, bytes);
        return CUDA_RESULT_OUT_OF_MEMORY;
    }
    block->references++;
    return CUDA_RESULT_OK;
}

cuda_result cuMemMap(cuda_pointer pointer, size_t bytes, size_t offset, cuda_allocation handle,
                     unsigned long long flags)
{
    cuda_result result = vmm_enter(__func__, 0);
    if (result != CUDA_RESULT_OK) {
        return result;
    }
    if (bytes == 0 || bytes % GRANULARITY != 0 || pointer % GRANULARITY != 0 || offset != 0 || flags != 0) {
        return CUDA_RESULT_INVALID_VALUE;
    }
    double_lock();
    struct block *block = object_get(OBJECT_ALLOCATION, (uintptr_t)handle);
    result = block != NULL ? map(pointer, bytes, block) : CUDA_RESULT_INVALID_VALUE;
    return double_end(result);
}

/* Whether the range consists of whole mappings. */
static bool covers(uint64_t pointer, uint64_t bytes)
{
    uint64_t at = pointer;
    while (at - pointer < bytes) {
        const struct allocation *allocation = allocation_find(at);
        if (allocation == NULL || allocation->kind != ALLOCATION_MAPPED || allocation->address != at) {
            return false;
        }
        at += allocation->bytes;
    }
    return at - pointer == bytes;
}

cuda_result cuMemUnmap(cuda_pointer pointer, size_t bytes)
{
    cuda_result result = vmm_enter(__func__, ENTER_NOT_CAPTURING);
    if (result != CUDA_RESULT_OK) {
        return result;
    }
    double_lock();
    if (bytes == 0 || !covers(pointer, bytes)) {
        result = CUDA_RESULT_INVALID_VALUE;
    }
    for (uint64_t at = pointer; result == CUDA_RESULT_OK && at - pointer < bytes;) {
        struct allocation *allocation = allocation_find(at);
        struct block *block = allocation->block;
        uint64_t mapped = allocation->bytes;
        registrations_unmapped(at, mapped);
        allocation_remove(allocation);
        arena_unmap(at, mapped);
        vmm_release(block);
        at += mapped;
    }
    return double_end(result);
}

static cuda_result check_access(const struct cuda_access *access, const struct allocation *allocation)
{
    int id = access->location.id;
    if (access->location.type != CUDA_LOCATION_DEVICE || id < 0 || id >= device_count()) {
        return CUDA_RESULT_INVALID_DEVICE;
    }
    if (access->flags != ACCESS_NONE && access->flags != ACCESS_READ &&
        access->flags != CUDA_ACCESS_READ_WRITE) {
        return CUDA_RESULT_INVALID_VALUE;
    }
    return id == allocation->ordinal || settings()->peer ? CUDA_RESULT_OK : CUDA_RESULT_INVALID_DEVICE;
}

static cuda_result set_access(struct allocation *allocation, const struct cuda_access *access, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        cuda_result result = check_access(&access[i], allocation);
        if (result != CUDA_RESULT_OK) {
            return result;
        }
    }
    for (size_t i = 0; i < count; i++) {
        uint32_t bit = 1u << access[i].location.id;
        /* the double has no use for access that only reads */
        bool may = access[i].flags == CUDA_ACCESS_READ_WRITE;
        allocation->access = may ? allocation->access | bit : allocation->access & ~bit;
    }
    return CUDA_RESULT_OK;
}

cuda_result cuMemSetAccess(cuda_pointer pointer, size_t bytes, const struct cuda_access *access, size_t count)
{
    cuda_result result = vmm_enter(__func__, ENTER_NOT_CAPTURING);
    if (result != CUDA_RESULT_OK) {
        return result;
    }
    double_lock();
    if (bytes == 0 || access == NULL || count == 0 || !covers(pointer, bytes)) {
        result = CUDA_RESULT_INVALID_VALUE;
    }
    for (uint64_t at = pointer; result == CUDA_RESULT_OK && at - pointer < bytes;) {
        struct allocation *allocation = allocation_find(at);
        result = set_access(allocation, access, count);
        at += allocation->bytes;
    }
    return double_end(result);
}
