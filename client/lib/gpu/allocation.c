#include <unistd.h>

#include "client/lib/internal.h"

/*
 * Memory of comm_mem_alloc on a GPU. If the GPU has virtual memory, that is used, and commd gets a
 * descriptor. Otherwise it is memory of cuMemAlloc, and commd gets a handle, which any process that knows it
 * can open.
 */

/* Memory of cuMemAlloc whose size is not a multiple of this shares its block, and a handle opens the whole
 * block. */
#define ALLOCATION_UNIT ((size_t)2 << 20)

static bool has(const struct client_gpu *gpu, int attribute)
{
    int value = 0;
    return gpu_driver()->device_attribute(&value, attribute, gpu->device) == CUDA_RESULT_OK && value != 0;
}

/* Even if the device supports it, containers and old kernels may forbid it. */
static bool is_missing(cuda_result result)
{
    return result == CUDA_RESULT_NOT_SUPPORTED || result == CUDA_RESULT_NOT_PERMITTED;
}

static struct cuda_allocation_properties properties_on(const struct client_gpu *gpu)
{
    struct cuda_allocation_properties properties = {
        .type = CUDA_ALLOCATION_PINNED,
        .handle_types = CUDA_HANDLE_POSIX_FD,
        .location = {.type = CUDA_LOCATION_DEVICE, .id = gpu->device}};
    properties.flags.rdma_capable = has(gpu, CUDA_DEVICE_RDMA_VIRTUAL_MEMORY); /* as cudaMalloc's is */
    return properties;
}

/* For its GPU; and, as far as that goes, for those that could reach memory of cudaMalloc there. */
static cuda_result allow_access(const struct client_gpu *gpu, cuda_pointer base, size_t size_bytes)
{
    struct cuda_access access = {.location = {.type = CUDA_LOCATION_DEVICE, .id = gpu->device},
                                 .flags = CUDA_ACCESS_READ_WRITE};
    cuda_result result = gpu_driver()->address_set_access(base, size_bytes, &access, 1);
    int count = 0;
    if (result != CUDA_RESULT_OK || gpu_driver()->device_count(&count) != CUDA_RESULT_OK) {
        return result;
    }
    for (int ordinal = 0; ordinal < count; ordinal++) {
        int can = 0;
        if (gpu_driver()->device_get(&access.location.id, ordinal) == CUDA_RESULT_OK &&
            access.location.id != gpu->device &&
            gpu_driver()->device_can_access(&can, access.location.id, gpu->device) == CUDA_RESULT_OK &&
            can != 0) {
            (void)gpu_driver()->address_set_access(base, size_bytes, &access, 1);
        }
    }
    return CUDA_RESULT_OK;
}

/* Maps it with unused addresses around. *symbol: of the call that failed. */
static cuda_result map_guarded(const struct client_gpu *gpu, cuda_allocation memory,
                               struct gpu_allocation *made, const char **symbol)
{
    const struct cuda_driver *driver = gpu_driver();
    size_t reserved_bytes = made->size_bytes + 2 * made->guard_bytes;
    cuda_pointer reserved = 0;
    *symbol = "cuMemAddressReserve";
    cuda_result result = driver->address_reserve(&reserved, reserved_bytes, 0, 0, 0);
    if (result != CUDA_RESULT_OK) {
        return result;
    }
    made->base = reserved + made->guard_bytes;
    *symbol = "cuMemMap";
    result = driver->address_map(made->base, made->size_bytes, 0, memory, 0);
    if (result == CUDA_RESULT_OK) {
        *symbol = "cuMemSetAccess";
        result = allow_access(gpu, made->base, made->size_bytes);
        if (result != CUDA_RESULT_OK) {
            (void)driver->address_unmap(made->base, made->size_bytes);
        }
    }
    if (result != CUDA_RESULT_OK) {
        (void)driver->address_free(reserved, reserved_bytes);
    }
    return result;
}

/* Whether this process can export the memory. */
static cuda_result try_export(cuda_allocation memory)
{
    int fd = -1;
    cuda_result result = gpu_driver()->allocation_export(&fd, memory, CUDA_HANDLE_POSIX_FD, 0);
    if (result == CUDA_RESULT_OK) {
        close(fd);
    }
    return result;
}

static cuda_result make_virtual(const struct client_gpu *gpu, size_t size_bytes, struct gpu_allocation *made,
                                const char **symbol)
{
    const struct cuda_driver *driver = gpu_driver();
    struct cuda_allocation_properties properties = properties_on(gpu);
    cuda_allocation memory = 0;
    size_t unit = 0;
    *symbol = "cuMemGetAllocationGranularity";
    cuda_result result = driver->allocation_granularity(&unit, &properties, CUDA_GRANULARITY_MINIMUM);
    if (result != CUDA_RESULT_OK) {
        return result;
    }
    if (unit == 0 || ALLOCATION_UNIT % unit == 0) {
        unit = ALLOCATION_UNIT;
    }
    *made = (struct gpu_allocation){.size_bytes = (size_bytes + unit - 1) / unit * unit, .guard_bytes = unit};
    *symbol = "cuMemCreate";
    result = driver->allocation_create(&memory, made->size_bytes, &properties, 0);
    if (result != CUDA_RESULT_OK) {
        return result;
    }
    *symbol = "cuMemExportToShareableHandle";
    result = try_export(memory);
    if (result == CUDA_RESULT_OK) {
        result = map_guarded(gpu, memory, made, symbol);
    }
    (void)driver->allocation_release(memory); /* the mapping keeps it */
    return result;
}

comm_result_t gpu_allocation_make(const struct client_gpu *gpu, size_t size_bytes, struct gpu_allocation *out)
{
    const char *symbol;
    if (has(gpu, CUDA_DEVICE_VIRTUAL_MEMORY) && has(gpu, CUDA_DEVICE_POSIX_FD)) {
        cuda_result result = make_virtual(gpu, size_bytes, out, &symbol);
        if (!is_missing(result)) {
            return result == CUDA_RESULT_OK ? COMM_OK : gpu_report(result, symbol);
        }
    }
    *out = (struct gpu_allocation){.size_bytes = (size_bytes + ALLOCATION_UNIT - 1) / ALLOCATION_UNIT *
                                                 ALLOCATION_UNIT};
    cuda_result result = gpu_driver()->memory_alloc(&out->base, out->size_bytes);
    return result == CUDA_RESULT_OK ? COMM_OK : gpu_report(result, "cuMemAlloc_v2");
}

comm_result_t gpu_allocation_await(const struct gpu_allocation *allocation)
{
    if (allocation->guard_bytes == 0) {
        return COMM_OK; /* cuMemFree waits itself */
    }
    cuda_result result = gpu_driver()->context_synchronize();
    /* After any other failure the context runs no more work. */
    return gpu_is_capture(result) ? gpu_report(result, "cuCtxSynchronize") : COMM_OK;
}

void gpu_allocation_free(const struct gpu_allocation *allocation)
{
    const struct cuda_driver *driver = gpu_driver();
    if (allocation->guard_bytes == 0) {
        (void)driver->memory_free(allocation->base);
        return;
    }
    (void)driver->address_unmap(allocation->base, allocation->size_bytes);
    (void)driver->address_free(allocation->base - allocation->guard_bytes,
                               allocation->size_bytes + 2 * allocation->guard_bytes);
}
