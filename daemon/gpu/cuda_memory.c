#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include "daemon/base/checked.h"
#include "daemon/base/descriptor.h"
#include "daemon/gpu/cuda_internal.h"
#include "daemon/gpu/cuda_memory.h"
#include "daemon/host/memory_internal.h"

/* GPU memory of clients. */

enum status cuda_check_size(uint64_t size_bytes, struct error *error)
{
    if (size_bytes == 0 || size_bytes > MEMORY_MAX_BYTES) {
        return error_set(error, size_bytes == 0 ? STATUS_INVALID_ARGUMENT : STATUS_LIMIT,
                         "%llu bytes; expected 1 to %llu", (unsigned long long)size_bytes,
                         (unsigned long long)MEMORY_MAX_BYTES);
    }
    return STATUS_OK;
}

enum status cuda_blame_client(const struct gpu_devices *gpus, uint32_t gpu, enum status status,
                              struct error *error)
{
    if (status != STATUS_DEVICE || gpu_devices_check(gpus, gpu, NULL) != STATUS_OK) {
        return status;
    }
    if (error != NULL) {
        error->status = STATUS_INVALID_ARGUMENT;
    }
    return STATUS_INVALID_ARGUMENT;
}

/* --- Closing --- */

struct releasing {
    struct gpu_call call;
    struct memory *memory;
};

static void release_run(struct gpu_call *call)
{
    struct memory *memory = ((struct releasing *)call)->memory;
    memory->release(memory);
}

static void release_done(struct gpu_call *call)
{
    memory_end(((struct releasing *)call)->memory);
    free(call);
}

static void release_later(struct memory *memory)
{
    struct releasing *releasing = memory->releasing;
    releasing->call = (struct gpu_call){.run = release_run, .done = release_done};
    gpu_calls_put(memory->gpus, (uint32_t)memory->gpu, GPU_CALLS_MEMORY, &releasing->call);
}

enum status cuda_release_later(struct memory *memory, struct error *error)
{
    struct releasing *releasing = calloc(1, sizeof *releasing);
    if (releasing == NULL) {
        return error_set(error, STATUS_NO_MEMORY, "no memory for a registration");
    }
    releasing->memory = memory;
    memory->releasing = releasing;
    memory->release_later = release_later;
    return STATUS_OK;
}

/* --- Memory of cuMemAlloc --- */

static void memory_close_ipc(struct memory *memory)
{
    if (cuda_enter(memory->gpus, (uint32_t)memory->gpu, NULL) == STATUS_OK) {
        (void)memory->gpus->driver->ipc_close((cuda_pointer)(uintptr_t)memory->base);
    }
}

static enum status check_allocation(struct gpu_devices *gpus, uint32_t gpu, cuda_pointer base,
                                    uint64_t size_bytes, size_t *allocated_bytes, struct error *error)
{
    cuda_pointer begin = 0;
    int device = -1;
    enum status status = CUDA_CALL(gpus, gpu, error, memory_range, &begin, allocated_bytes, base);
    if (status == STATUS_OK) {
        status = CUDA_CALL(gpus, gpu, error, pointer_attribute, &device, CUDA_POINTER_DEVICE, base);
    }
    if (status == STATUS_OK && (device != gpus->gpus[gpu].device || begin > base)) {
        return error_set(error, STATUS_INVALID_ARGUMENT, "the IPC handle is not of GPU %u", gpu);
    }
    /* The driver may report the range of the block that small allocations share. */
    if (status == STATUS_OK &&
        (base - begin > *allocated_bytes || *allocated_bytes - (base - begin) < size_bytes)) {
        return error_set(error, STATUS_INVALID_ARGUMENT, "%llu bytes, but the allocation has %zu",
                         (unsigned long long)size_bytes, *allocated_bytes - (size_t)(base - begin));
    }
    return status;
}

/*
 * CUDA promises that a GPU reaches another GPU's memory if that was allocated in the other's context. For
 * memory that was only opened there, it promises nothing.
 */
static enum status check_peers(struct gpu_devices *gpus, uint32_t gpu, cuda_pointer base, struct error *error)
{
    enum status status = STATUS_OK;
    for (uint32_t other = 0; other < gpus->count && status == STATUS_OK; other++) {
        unsigned long long access = CUDA_ACCESS_READ_WRITE;
        if (other == gpu || !gpus->gpus[other].reaches[gpu] || cuda_enter(gpus, other, NULL) != STATUS_OK) {
            continue; /* a GPU that failed does not work on anything */
        }
        if (gpus->driver->pointer_attribute(&access, CUDA_POINTER_ACCESS, base) == CUDA_RESULT_OK &&
            access != CUDA_ACCESS_READ_WRITE) {
            status = error_set(error, STATUS_UNSUPPORTED,
                               "GPU %u does not reach memory of GPU %u that comes by an IPC handle: use "
                               "memory of comm_mem_alloc, or start commd with gpu_peer_access = \"off\"",
                               other, gpu);
        }
    }
    return status;
}

static enum status open_handle(struct gpu_devices *gpus, uint32_t gpu, const struct cuda_ipc_handle *handle,
                               cuda_pointer *base, struct error *error)
{
    cuda_result result = gpus->driver->ipc_open(base, *handle, CUDA_IPC_LAZY_PEER_ACCESS);
    enum status status = cuda_result_status(gpus, gpu, cuda_symbol_of_ipc_open(), result, error);
    if (result == CUDA_RESULT_ALREADY_MAPPED) {
        return error_set(error, STATUS_BUSY,
                         "GPU %u (%s): freed memory that was at the same address is still in use", gpu,
                         gpus->gpus[gpu].info.name);
    }
    return cuda_blame_client(gpus, gpu, status, error);
}

/*
 * Opens a client's GPU allocation (cuMemAlloc, cudaMalloc) by its IPC handle. The allocation belongs to the
 * client's process, and must have at least size_bytes. Errors: INVALID_ARGUMENT if the handle is not (or no
 * longer) of such an allocation, or is of another GPU. BUSY if an earlier allocation at the same place, which
 * the client has freed, is still open here (memory_was_at): CUDA does not open both. NO_MEMORY; DEVICE.
 */
static enum status import_ipc(struct gpu_devices *gpus, uint32_t gpu, const struct cuda_ipc_handle *handle,
                              uint64_t size_bytes, const struct memory_origin *origin, struct memory **out,
                              struct error *error)
{
    cuda_pointer base = 0;
    size_t allocated_bytes = 0;
    enum status status = cuda_check_size(size_bytes, error);
    if (status == STATUS_OK) {
        status = cuda_enter(gpus, gpu, error);
    }
    if (status != STATUS_OK) {
        return status;
    }
    status = open_handle(gpus, gpu, handle, &base, error);
    if (status != STATUS_OK) {
        return status;
    }
    status = check_allocation(gpus, gpu, base, size_bytes, &allocated_bytes, error);
    if (status == STATUS_OK) {
        status = check_peers(gpus, gpu, base, error);
    }
    struct memory *memory = NULL;
    if (status == STATUS_OK) {
        status = memory_new((void *)(uintptr_t)base, size_bytes, memory_close_ipc, &memory, error);
    }
    if (status == STATUS_OK) {
        status = cuda_release_later(memory, error);
    }
    if (status != STATUS_OK) {
        free(memory);
        if (cuda_enter(gpus, gpu, NULL) == STATUS_OK) {
            (void)gpus->driver->ipc_close(base);
        }
        return status;
    }
    *out = memory;
    (*out)->address_bytes = allocated_bytes; /* all of it is mapped, whatever size the client gives */
    (*out)->by_ipc = true;
    (*out)->origin = *origin;
    (*out)->gpus = gpus;
    (*out)->gpu = (int)gpu;
    return STATUS_OK;
}

/* CUDA opens whole blocks, which several allocations may share. */
#define BLOCK_BYTES (UINT64_C(2) << 20)

bool memory_was_at(const struct memory *memory, const struct memory_origin *origin, uint64_t size_bytes)
{
    const struct memory_origin *had = &memory->origin;
    uint64_t begin = origin->address / BLOCK_BYTES, had_begin = had->address / BLOCK_BYTES, end, had_end;
    if (!memory->by_ipc || origin->process == 0 || origin->address == 0 || had->process != origin->process ||
        had->uid != origin->uid || had->address == 0 ||
        !checked_add_u64(origin->address, size_bytes + BLOCK_BYTES - 1, &end) ||
        !checked_add_u64(had->address, memory->size_bytes + BLOCK_BYTES - 1, &had_end)) {
        return false;
    }
    return begin < had_end / BLOCK_BYTES && had_begin < end / BLOCK_BYTES;
}

/* --- Virtual memory --- */

static void memory_unmap_chunks(struct memory *memory)
{
    cuda_pointer base = (cuda_pointer)(uintptr_t)memory->base;
    const struct cuda_driver *driver = memory->gpus->driver;
    cuda_pointer at = base;
    if (cuda_enter(memory->gpus, (uint32_t)memory->gpu, NULL) == STATUS_OK) {
        for (uint32_t i = 0; i < memory->chunk_count; i++) {
            (void)driver->address_unmap(at, (size_t)memory->chunk_bytes[i]);
            at += memory->chunk_bytes[i];
        }
        (void)driver->address_free(base, (size_t)memory->size_bytes);
    }
    free(memory->chunk_bytes);
}

/* NCCL's thread has to deregister it first. */
static bool memory_stays(struct memory *memory)
{
    bool stays = nccl_registry_retire(memory->gpus->registry, memory);
    if (stays) {
        memory_say_ended(memory);
        gpu_groups_sweep(memory->gpus);
    }
    return stays;
}

enum status gpu_memory_reserve(struct gpu_devices *gpus, uint32_t gpu, uint64_t size_bytes,
                               struct memory **out, struct error *error)
{
    cuda_pointer base = 0;
    enum status status = cuda_check_size(size_bytes, error);
    if (status == STATUS_OK) {
        status = cuda_enter(gpus, gpu, error);
    }
    if (status == STATUS_OK) {
        status = CUDA_CALL(gpus, gpu, error, address_reserve, &base, (size_t)size_bytes, 0, 0, 0);
        status =
            cuda_blame_client(gpus, gpu, status, error); /* the size is not a multiple of the granularity */
    }
    if (status != STATUS_OK) {
        return status;
    }
    struct memory *memory = NULL;
    status = memory_new((void *)(uintptr_t)base, size_bytes, memory_unmap_chunks, &memory, error);
    if (status == STATUS_OK) {
        status = cuda_release_later(memory, error);
    }
    if (status != STATUS_OK) {
        free(memory);
        (void)gpus->driver->address_free(base, (size_t)size_bytes);
        return status;
    }
    *out = memory;
    (*out)->gpus = gpus;
    (*out)->gpu = (int)gpu;
    (*out)->mapped_bytes = 0;
    (*out)->stays = memory_stays;
    return STATUS_OK;
}

/* Allows access from its GPU, and from GPUs whose kernels reach it: slices are done by these GPUs in turn. */
static enum status allow_access(struct gpu_devices *gpus, uint32_t gpu, cuda_pointer at, uint64_t size_bytes,
                                struct error *error)
{
    struct cuda_access access[GPU_DEVICES_MAX];
    size_t count = 0;
    for (uint32_t other = 0; other < gpus->count; other++) {
        if (gpus->gpus[other].reaches[gpu]) {
            access[count++] = (struct cuda_access){
                .location = {.type = CUDA_LOCATION_DEVICE, .id = gpus->gpus[other].device},
                .flags = CUDA_ACCESS_READ_WRITE};
        }
    }
    return CUDA_CALL(gpus, gpu, error, address_set_access, at, (size_t)size_bytes, access, count);
}

/* A descriptor may be of host memory, or of another GPU's memory. */
static enum status check_place(struct gpu_devices *gpus, uint32_t gpu, cuda_pointer at, struct error *error)
{
    unsigned type = CUDA_MEMORY_HOST;
    int device = -1;
    enum status status = CUDA_CALL(gpus, gpu, error, pointer_attribute, &type, CUDA_POINTER_MEMORY_TYPE, at);
    if (status == STATUS_OK) {
        status = CUDA_CALL(gpus, gpu, error, pointer_attribute, &device, CUDA_POINTER_DEVICE, at);
    }
    bool there = type == CUDA_MEMORY_DEVICE && device == gpus->gpus[gpu].device;
    return status != STATUS_OK || there ? status
                                        : error_set(error, STATUS_INVALID_ARGUMENT,
                                                    "the descriptor does not refer to memory of GPU %u", gpu);
}

/* Maps it behind the chunks that are mapped already. */
static enum status map_chunk(const struct memory *memory, cuda_allocation allocation, uint64_t size_bytes,
                             struct error *error)
{
    struct gpu_devices *gpus = memory->gpus;
    uint32_t gpu = (uint32_t)memory->gpu;
    cuda_pointer at = (cuda_pointer)(uintptr_t)memory->base + memory->mapped_bytes;
    enum status status = CUDA_CALL(gpus, gpu, error, address_map, at, (size_t)size_bytes, 0, allocation, 0);
    if (status != STATUS_OK) {
        return status;
    }
    status = allow_access(gpus, gpu, at, size_bytes, error);
    if (status == STATUS_OK) {
        status = check_place(gpus, gpu, at, error);
    }
    if (status != STATUS_OK) {
        (void)gpus->driver->address_unmap(at, (size_t)size_bytes);
    }
    return status;
}

static enum status map_fd(const struct memory *memory, int fd, uint64_t size_bytes, struct error *error)
{
    struct gpu_devices *gpus = memory->gpus;
    cuda_allocation allocation = 0;
    enum status status = cuda_enter(gpus, (uint32_t)memory->gpu, error);
    if (status == STATUS_OK) {
        status = CUDA_CALL(gpus, (uint32_t)memory->gpu, error, allocation_import, &allocation,
                           (void *)(intptr_t)fd, CUDA_HANDLE_POSIX_FD);
    }
    if (status == STATUS_OK) {
        status = map_chunk(memory, allocation, size_bytes, error);
        (void)gpus->driver->allocation_release(allocation); /* the mapping keeps it alive */
    }
    return status;
}

/* Charges the chunk, and makes room in the list of chunks. */
static enum status map_begin(struct memory *memory, int fd, uint64_t size_bytes, struct error *error)
{
    struct gpu_devices *gpus = memory->gpus;
    if (gpus == NULL || size_bytes == 0 || size_bytes > memory->size_bytes - memory->mapped_bytes) {
        return error_set(error, STATUS_INVALID_ARGUMENT, "%llu bytes more than are reserved",
                         (unsigned long long)size_bytes);
    }
    if (memory->maps) {
        return error_set(error, STATUS_BUSY, "another chunk of the memory is being mapped");
    }
    if (!descriptor_may_be_asked(fd)) { /* the driver queries it immediately */
        return error_set(error, STATUS_INVALID_ARGUMENT, "the descriptor does not refer to memory of GPU %d",
                         memory->gpu);
    }
    enum status status = gpu_devices_check(gpus, (uint32_t)memory->gpu, error);
    if (status != STATUS_OK) {
        return status;
    }
    uint64_t *chunk_bytes =
        realloc(memory->chunk_bytes, (memory->chunk_count + 1) * sizeof *memory->chunk_bytes);
    if (chunk_bytes == NULL) {
        return error_set(error, STATUS_NO_MEMORY, "no memory for a registration");
    }
    memory->chunk_bytes = chunk_bytes;
    status = budget_charge(memory->charged, BUDGET_CHUNKS, 1, error);
    memory->maps = status == STATUS_OK;
    return status;
}

static enum status map_end(struct memory *memory, uint64_t size_bytes, enum status status,
                           struct error *error)
{
    struct gpu_devices *gpus = memory->gpus;
    memory->maps = false;
    if (status != STATUS_OK) {
        budget_release(memory->charged, BUDGET_CHUNKS, 1);
        return cuda_blame_client(gpus, (uint32_t)memory->gpu, status, error);
    }
    memory->chunk_bytes[memory->chunk_count++] = size_bytes;
    memory->mapped_bytes += size_bytes;
    if (memory->chunk_count == 1) { /* NCCL registers one allocation, so later chunks do not count */
        nccl_registry_add(gpus->registry, memory, size_bytes);
    }
    return STATUS_OK;
}

static void mapping_run(struct gpu_call *call)
{
    struct gpu_mapping *mapping = (struct gpu_mapping *)call;
    mapping->status = map_fd(mapping->memory, mapping->fd, mapping->size_bytes, &mapping->error);
}

static void mapping_done(struct gpu_call *call)
{
    struct gpu_mapping *mapping = (struct gpu_mapping *)call;
    struct memory *memory = mapping->memory;
    (void)close(mapping->fd);
    mapping->status = map_end(memory, mapping->size_bytes, mapping->status, &mapping->error);
    mapping->done(mapping);
    memory_unref(memory);
}

enum status gpu_memory_map(struct gpu_mapping *mapping, int fd, struct error *error)
{
    struct memory *memory = mapping->memory;
    enum status status = map_begin(memory, fd, mapping->size_bytes, error);
    if (status != STATUS_OK) {
        return status;
    }
    mapping->fd = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    if (mapping->fd < 0) {
        status = error_set_errno(error, errno, "a copy of a descriptor");
        return map_end(memory, mapping->size_bytes, status, error);
    }
    (void)memory_ref(memory);
    mapping->call = (struct gpu_call){.run = mapping_run, .done = mapping_done};
    gpu_calls_put(memory->gpus, (uint32_t)memory->gpu, GPU_CALLS_MEMORY, &mapping->call);
    return STATUS_OK;
}

/* --- Opening by the GPU's thread --- */

/* Gives up the reference and the descriptor, too: the last reference may make calls of the driver. */
static enum status open_pooled(struct gpu_opening *opening, struct memory **out, struct error *error)
{
    enum status status = STATUS_OK;
    if (opening->pool == NULL) {
        status = gpu_pool_import(opening->gpus, opening->gpu, opening->pool_fd, &opening->pool, error);
    }
    if (status == STATUS_OK) {
        status = gpu_pool_open(opening->pool, &opening->pointer, opening->size_bytes, out, error);
    }
    gpu_pool_unref(opening->pool);
    opening->pool = NULL;
    descriptor_close(opening->pool_fd);
    opening->pool_fd = -1;
    return status;
}

static enum status open_any(struct gpu_opening *opening, struct memory **out, struct error *error)
{
    switch (opening->kind) {
    case GPU_OPENING_HANDLE:
        return import_ipc(opening->gpus, opening->gpu, &opening->handle, opening->size_bytes,
                          &opening->origin, out, error);
    case GPU_OPENING_POOLED:
        return open_pooled(opening, out, error);
    case GPU_OPENING_ROOM:
        return gpu_memory_reserve(opening->gpus, opening->gpu, opening->size_bytes, out, error);
    }
    return error_set(error, STATUS_INTERNAL, "unknown kind of memory");
}

static void opening_run(struct gpu_call *call)
{
    struct gpu_opening *opening = (struct gpu_opening *)call;
    if (open_any(opening, &opening->memory, &opening->error) != STATUS_OK) {
        opening->memory = NULL;
    }
}

static void opening_done(struct gpu_call *call)
{
    struct gpu_opening *opening = (struct gpu_opening *)call;
    opening->done(opening);
}

void gpu_memory_open(struct gpu_opening *opening)
{
    opening->memory = NULL;
    opening->call = (struct gpu_call){.run = opening_run, .done = opening_done};
    gpu_calls_put(opening->gpus, opening->gpu, GPU_CALLS_MEMORY, &opening->call);
}
