#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/base/log.h"
#include "daemon/base/thread.h"
#include "daemon/gpu/cuda_internal.h"

/* --- Calls --- */

/* cuda.h says: after these results the context is inconsistent, or the process must be restarted. */
static bool is_sticky(cuda_result result)
{
    switch (result) {
    case CUDA_RESULT_ECC_UNCORRECTABLE:
    case CUDA_RESULT_NVLINK_UNCORRECTABLE:
    case CUDA_RESULT_CONTAINED:
    case CUDA_RESULT_ILLEGAL_ADDRESS:
    case CUDA_RESULT_LAUNCH_TIMEOUT:
    case CUDA_RESULT_CONTEXT_IS_DESTROYED:
    case CUDA_RESULT_ASSERT:
    case CUDA_RESULT_HARDWARE_STACK_ERROR:
    case CUDA_RESULT_ILLEGAL_INSTRUCTION:
    case CUDA_RESULT_MISALIGNED_ADDRESS:
    case CUDA_RESULT_INVALID_ADDRESS_SPACE:
    case CUDA_RESULT_INVALID_PC:
    case CUDA_RESULT_LAUNCH_FAILED:
    case CUDA_RESULT_TENSOR_MEMORY_LEAK:
    case CUDA_RESULT_MPS_CLIENT_TERMINATED:
    case CUDA_RESULT_EXTERNAL_DEVICE:
        return true;
    default: /* the driver has about a hundred results, and newer drivers have more */
        return false;
    }
}

static void keep_failure(const struct gpu_devices *gpus, uint32_t gpu, const struct error *failure)
{
    struct cuda_gpu *at = &gpus->gpus[gpu];
    pthread_mutex_t *lock = (pthread_mutex_t *)(uintptr_t)&gpus->lock;
    pthread_mutex_lock(lock);
    if (!atomic_load(&at->failed)) {
        at->failure = *failure;
        atomic_store(&at->failed, true);
        log_error("%s: commd does not use this GPU again until commd restarts", failure->text);
    }
    pthread_mutex_unlock(lock);
}

void cuda_mark_failed(const struct gpu_devices *gpus, uint32_t gpu, const char *format, ...)
{
    char text[ERROR_TEXT_MAX_BYTES];
    struct error failure;
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    error_set(&failure, STATUS_DEVICE, "GPU %u (%s): %s", gpu, gpus->gpus[gpu].info.name, text);
    keep_failure(gpus, gpu, &failure);
}

static enum status result_status(const struct gpu_devices *gpus, uint32_t gpu, const char *symbol,
                                 cuda_result result, bool sticky, struct error *error)
{
    char text[256];
    cuda_driver_text(gpus->driver, symbol, result, text, sizeof text);
    struct error failure;
    enum status status = result == CUDA_RESULT_OUT_OF_MEMORY ? STATUS_NO_MEMORY : STATUS_DEVICE;
    error_set(&failure, status, "GPU %u (%s): %s", gpu, gpus->gpus[gpu].info.name, text);
    if (sticky) {
        keep_failure(gpus, gpu, &failure);
    }
    return error_set(error, status, "%s", failure.text);
}

enum status cuda_result_status(const struct gpu_devices *gpus, uint32_t gpu, const char *symbol,
                               cuda_result result, struct error *error)
{
    return result == CUDA_RESULT_OK ? STATUS_OK
                                    : result_status(gpus, gpu, symbol, result, is_sticky(result), error);
}

enum status cuda_stream_status(const struct gpu_devices *gpus, uint32_t gpu, cuda_result result,
                               struct error *error)
{
    return result == CUDA_RESULT_OK || result == CUDA_RESULT_NOT_READY
               ? STATUS_OK
               : result_status(gpus, gpu, cuda_symbol_of_stream_query(), result, true, error);
}

enum status gpu_devices_check(const struct gpu_devices *gpus, uint32_t gpu, struct error *error)
{
    const struct cuda_gpu *at = &gpus->gpus[gpu];
    return atomic_load(&at->failed) ? error_set(error, at->failure.status, "%s", at->failure.text)
                                    : STATUS_OK;
}

enum status cuda_enter(const struct gpu_devices *gpus, uint32_t gpu, struct error *error)
{
    enum status status = gpu_devices_check(gpus, gpu, error);
    return status == STATUS_OK ? CUDA_CALL(gpus, gpu, error, context_set, gpus->gpus[gpu].context) : status;
}

/* --- Opening --- */

static enum status gpu_attribute(struct gpu_devices *gpus, uint32_t gpu, int attribute, int *value,
                                 struct error *error)
{
    return CUDA_CALL(gpus, gpu, error, device_attribute, value, attribute, gpus->gpus[gpu].device);
}

static enum status gpu_describe(struct gpu_devices *gpus, uint32_t gpu, struct error *error)
{
    struct cuda_gpu *at = &gpus->gpus[gpu];
    struct gpu_device_info *info = &at->info;
    size_t memory_bytes = 0;
    int multiprocessors = 0, mps = 0;
    snprintf(info->name, sizeof info->name, "?");
    enum status status = CUDA_CALL(gpus, gpu, error, device_get, &at->device, (int)gpu);
    if (status == STATUS_OK) {
        status = CUDA_CALL(gpus, gpu, error, device_name, info->name, sizeof info->name, at->device);
    }
    if (status == STATUS_OK) {
        status = CUDA_CALL(gpus, gpu, error, device_uuid, &info->uuid, at->device);
    }
    if (status == STATUS_OK) {
        status = CUDA_CALL(gpus, gpu, error, device_pci_bus, info->bus, sizeof info->bus, at->device);
    }
    if (status == STATUS_OK) {
        status = CUDA_CALL(gpus, gpu, error, device_memory, &memory_bytes, at->device);
    }
    if (status == STATUS_OK) {
        status = gpu_attribute(gpus, gpu, CUDA_DEVICE_MULTIPROCESSORS, &multiprocessors, error);
    }
    if (status == STATUS_OK) {
        status = gpu_attribute(gpus, gpu, CUDA_DEVICE_CAPABILITY_MAJOR, &info->capability_major, error);
    }
    if (status == STATUS_OK) {
        status = gpu_attribute(gpus, gpu, CUDA_DEVICE_CAPABILITY_MINOR, &info->capability_minor, error);
    }
    if (gpus->driver->device_attribute(&mps, CUDA_DEVICE_MPS_ENABLED, at->device) != CUDA_RESULT_OK) {
        mps = 0; /* a driver before 12.0 does not know this attribute */
    }
    info->memory_bytes = memory_bytes;
    info->multiprocessors = (uint32_t)multiprocessors;
    info->mps = mps != 0;
    return status;
}

static enum status gpu_load_kernel(struct gpu_devices *gpus, uint32_t gpu, const char *name,
                                   cuda_function *out, struct error *error)
{
    enum status status = CUDA_CALL(gpus, gpu, error, module_function, out, gpus->gpus[gpu].kernels, name);
    if (status != STATUS_OK) {
        (void)error_prefix(error, "kernel %s", name);
    }
    return status;
}

static enum status gpu_load_codec(struct gpu_devices *gpus, uint32_t gpu, struct error *error)
{
    struct cuda_gpu *at = &gpus->gpus[gpu];
    enum status status = STATUS_OK;
    for (uint32_t c = COMPRESSION_BF16; c < COMPRESSION_COUNT && status == STATUS_OK; c++) {
        char name[64];
        (void)snprintf(name, sizeof name, KERNELS_ENCODE_FORMAT, compression_text((enum compression)c));
        status = gpu_load_kernel(gpus, gpu, name, &at->encodes[c], error);
        if (status == STATUS_OK) {
            (void)snprintf(name, sizeof name, KERNELS_DECODE_FORMAT, compression_text((enum compression)c));
            status = gpu_load_kernel(gpus, gpu, name, &at->decodes[c], error);
        }
    }
    return status;
}

/* Loads all kernels now: loading one later could wait for a stream that waits for commd. */
static enum status gpu_load_kernels(struct gpu_devices *gpus, uint32_t gpu, struct error *error)
{
    struct cuda_gpu *at = &gpus->gpus[gpu];
    enum status status = CUDA_CALL(gpus, gpu, error, module_load, &at->kernels, kernels_image);
    if (status != STATUS_OK) {
        (void)error_prefix(
            error, "%s",
            kernels_image_bytes == 0
                ? "this commd was built without kernels (CUDA=no, or no CUDA toolkit found)"
                : "the kernels, which need a driver as new as the toolkit that made them (CUDA "
                  "13: 580)");
        return status;
    }
    for (uint32_t r = 0; r < REDUCE_COUNT; r++) {
        for (uint32_t d = 0; d < DTYPE_COUNT; d++) {
            bool alias = r == REDUCE_AVG || r == REDUCE_PREMUL_SUM;
            for (int many = 0; many < 2 && !alias && reduce_is_defined((enum dtype)d, (enum reduce)r);
                 many++) {
                char name[96];
                snprintf(name, sizeof name, KERNELS_REDUCE_FORMAT, dtype_text((enum dtype)d),
                         reduce_text((enum reduce)r), many ? KERNELS_MANY : "");
                status = gpu_load_kernel(gpus, gpu, name, &at->reduces[r][d][many], error);
                if (status != STATUS_OK) {
                    return status;
                }
            }
        }
    }
    memcpy(at->reduces[REDUCE_AVG], at->reduces[REDUCE_SUM], sizeof at->reduces[REDUCE_SUM]);
    memcpy(at->reduces[REDUCE_PREMUL_SUM], at->reduces[REDUCE_SUM], sizeof at->reduces[REDUCE_SUM]);
    status = gpu_load_codec(gpus, gpu, error);
    return status == STATUS_OK ? gpu_load_kernel(gpus, gpu, KERNELS_COPY, &at->copy, error) : status;
}

static enum status gpu_open(struct gpu_devices *gpus, uint32_t gpu, struct error *error)
{
    struct cuda_gpu *at = &gpus->gpus[gpu];
    enum status status = gpu_describe(gpus, gpu, error);
    if (status == STATUS_OK) {
        status = CUDA_CALL(gpus, gpu, error, context_retain, &at->context, at->device);
    }
    if (status == STATUS_OK) {
        status = cuda_enter(gpus, gpu, error);
    }
    return status == STATUS_OK ? gpu_load_kernels(gpus, gpu, error) : status;
}

/* It is no failure if a GPU cannot reach another: copies between the two go through the host. */
static enum status gpu_open_peers(struct gpu_devices *gpus, uint32_t gpu, struct error *error)
{
    struct cuda_gpu *at = &gpus->gpus[gpu];
    enum status status = cuda_enter(gpus, gpu, error);
    for (uint32_t other = 0; other < gpus->count && status == STATUS_OK; other++) {
        int can = 0;
        if (other == gpu) {
            continue;
        }
        status = CUDA_CALL(gpus, gpu, error, device_can_access, &can, at->device, gpus->gpus[other].device);
        if (status == STATUS_OK && can != 0) {
            cuda_result result = gpus->driver->context_enable_peer(gpus->gpus[other].context, 0);
            at->reaches[other] =
                result == CUDA_RESULT_OK || result == CUDA_RESULT_PEER_ACCESS_ALREADY_ENABLED;
        }
    }
    return status;
}

enum status gpu_devices_open(bool peer_access, struct gpu_devices **out, struct error *error)
{
    char why[256];
    int count = 0;
    struct gpu_devices *gpus = calloc(1, sizeof *gpus);
    if (gpus == NULL) {
        return error_set(error, STATUS_NO_MEMORY, "no memory for GPUs");
    }
    pthread_mutex_init(&gpus->lock, NULL);
    thread_cond_init(&gpus->pin_changed);
    /*
     * These are read when a context, or NCCL's first communicator, is created. There is only one thread yet.
     */
    (void)setenv("CUDA_MODULE_LOADING", "EAGER", 0);
    (void)setenv("NCCL_LAUNCH_ORDER_IMPLICIT", "1", 0); /* of several communicators at once on one GPU */
    (void)setenv("NCCL_P2P_DIRECT_DISABLE", "1", 0);    /* other processes' buffers: see NCCL's manual */
    if (!cuda_driver_load(&gpus->driver, why, sizeof why)) {
        gpu_devices_close(gpus);
        return error_set(error, STATUS_UNSUPPORTED, "%s", why);
    }
    (void)gpus->driver->driver_version(&gpus->driver_version);
    (void)gpus->driver->device_count(&count);
    gpus->count = count > GPU_DEVICES_MAX ? GPU_DEVICES_MAX : (uint32_t)count;
    gpus->gpus = calloc(gpus->count, sizeof *gpus->gpus);
    enum status status = STATUS_OK;
    gpus->groups = gpu_groups_new(gpus);
    gpus->registry = nccl_registry_new();
    gpus->mark_words = gpu_mark_words_new(gpus);
    if (gpus->gpus == NULL || gpus->groups == NULL || gpus->registry == NULL || gpus->mark_words == NULL) {
        gpus->count = 0;
        status = error_set(error, STATUS_NO_MEMORY, "no memory for GPUs");
    }
    for (uint32_t gpu = 0; gpu < gpus->count && status == STATUS_OK; gpu++) {
        status = gpu_open(gpus, gpu, error);
    }
    for (uint32_t gpu = 0; gpu < gpus->count && status == STATUS_OK; gpu++) {
        gpus->gpus[gpu].reaches[gpu] = true;
        status = peer_access ? gpu_open_peers(gpus, gpu, error) : STATUS_OK;
    }
    if (status != STATUS_OK) {
        gpu_devices_close(gpus);
        return status;
    }
    gpu_mark_words_prepare(gpus->mark_words);
    *out = gpus;
    return STATUS_OK;
}

void gpu_devices_close(struct gpu_devices *gpus)
{
    static struct gpu_devices *left; /* what threads still use stays reachable */
    if (gpus == NULL) {
        return;
    }
    bool ended = gpu_groups_free(gpus->groups);
    if (ended) {
        gpu_mark_words_free(gpus->mark_words);
        ended = cuda_pinned_settle(gpus);
    }
    if (ended) {
        nccl_registry_free(gpus->registry);
        gpus->registry = NULL;
    }
    if (!gpu_calls_end(gpus) || !ended) {
        left = gpus;
        (void)left;
        return;
    }
    cuda_pinned_close(gpus);
    for (uint32_t gpu = 0; gpu < gpus->count; gpu++) {
        struct cuda_gpu *at = &gpus->gpus[gpu];
        if (at->kernels != NULL && cuda_enter(gpus, gpu, NULL) == STATUS_OK) {
            (void)gpus->driver->module_unload(at->kernels);
        }
        if (at->context != NULL) {
            (void)gpus->driver->context_release(at->device);
        }
    }
    if (gpus->driver != NULL) {
        (void)gpus->driver->context_set(NULL);
    }
    pthread_cond_destroy(&gpus->pin_changed);
    pthread_mutex_destroy(&gpus->lock);
    free(gpus->gpus);
    free(gpus);
}

/* --- Asking --- */

uint32_t gpu_devices_count(const struct gpu_devices *gpus)
{
    return gpus == NULL ? 0 : gpus->count;
}

const struct gpu_device_info *gpu_devices_info(const struct gpu_devices *gpus, uint32_t gpu)
{
    return &gpus->gpus[gpu].info;
}

bool gpu_devices_find(const struct gpu_devices *gpus, const struct cuda_uuid *uuid, uint32_t *gpu)
{
    for (uint32_t i = 0; i < gpu_devices_count(gpus); i++) {
        if (memcmp(&gpus->gpus[i].info.uuid, uuid, sizeof *uuid) == 0) {
            *gpu = i;
            return true;
        }
    }
    return false;
}

bool gpu_devices_reaches(const struct gpu_devices *gpus, uint32_t gpu, uint32_t other)
{
    return gpus->gpus[gpu].reaches[other];
}

int gpu_devices_driver_version(const struct gpu_devices *gpus)
{
    return gpus->driver_version;
}

bool gpu_devices_memory(const struct gpu_devices *gpus, uint32_t gpu, uint64_t *used_bytes,
                        uint64_t *total_bytes)
{
    size_t free_bytes = 0, all_bytes = 0;
    if (cuda_enter(gpus, gpu, NULL) != STATUS_OK ||
        gpus->driver->memory_info(&free_bytes, &all_bytes) != CUDA_RESULT_OK) {
        return false;
    }
    *used_bytes = all_bytes - free_bytes;
    *total_bytes = all_bytes;
    return true;
}
