#include <stdlib.h>

#include "client/lib/internal.h"

#define DRIVER_TEXT_BYTES 256

static _Atomic(const struct cuda_driver *) driver;

const struct cuda_driver *gpu_driver(void)
{
    return atomic_load_explicit(&driver, memory_order_acquire);
}

static comm_result_t load(void)
{
    const struct cuda_driver *loaded;
    char why[DRIVER_TEXT_BYTES];
    if (!cuda_driver_load(&loaded, why, sizeof why)) {
        return error_report(COMM_UNSUPPORTED, "%s", why);
    }
    atomic_store_explicit(&driver, loaded, memory_order_release);
    return COMM_OK;
}

bool gpu_is_capture(cuda_result result)
{
    return result >= CUDA_RESULT_STREAM_CAPTURE_UNSUPPORTED &&
           result <= CUDA_RESULT_STREAM_CAPTURE_WRONG_THREAD; /* the next one is CUDA_ERROR_TIMEOUT */
}

comm_result_t gpu_report(cuda_result result, const char *symbol)
{
    char text[DRIVER_TEXT_BYTES];
    cuda_driver_text(gpu_driver(), symbol, result, text, sizeof text);
    if (gpu_is_capture(result)) {
        return error_report(COMM_UNSUPPORTED, "a stream is being captured: %s (%s)", CAPTURE_ADVICE, text);
    }
    switch (result) {
    case CUDA_RESULT_OUT_OF_MEMORY:
        return error_report(COMM_NO_MEMORY, "%s", text);
    case CUDA_RESULT_INVALID_VALUE:
    case CUDA_RESULT_INVALID_HANDLE:
        return error_report(COMM_INVALID_ARGUMENT, "%s", text);
    default:
        return error_report(COMM_DEVICE, "%s", text);
    }
}

static comm_result_t scope_enter(cuda_context context, struct gpu_scope *scope)
{
    *scope = (struct gpu_scope){0};
    cuda_result result = gpu_driver()->context_get(&scope->before);
    if (result == CUDA_RESULT_OK && scope->before != context) {
        result = gpu_driver()->context_set(context);
        scope->changed = result == CUDA_RESULT_OK;
    }
    return result == CUDA_RESULT_OK ? COMM_OK : gpu_report(result, "cuCtxSetCurrent");
}

comm_result_t gpu_scope_enter(const struct client_gpu *gpu, struct gpu_scope *scope)
{
    comm_result_t result = scope_enter(gpu->context, scope);
    if (result == COMM_OK) {
        scope->mode = CUDA_CAPTURE_MODE_RELAXED;
        scope->relaxed = gpu_driver()->thread_exchange_mode(&scope->mode) == CUDA_RESULT_OK;
    }
    return result;
}

comm_result_t gpu_scope_enter_stream(const struct client_gpu *gpu, cuda_stream stream,
                                     struct gpu_scope *scope)
{
    cuda_context context = gpu->context;
    if ((uintptr_t)stream > CUDA_STREAM_PER_THREAD) {
        cuda_result result = gpu_driver()->stream_context(stream, &context);
        if (result != CUDA_RESULT_OK) {
            return gpu_report(result, "cuStreamGetCtx");
        }
    }
    return scope_enter(context, scope);
}

void gpu_scope_leave(const struct gpu_scope *scope)
{
    int mode = scope->mode;
    if (scope->relaxed) {
        (void)gpu_driver()->thread_exchange_mode(&mode);
    }
    if (scope->changed) {
        (void)gpu_driver()->context_set(scope->before);
    }
}

static comm_result_t take_device(struct client_gpu *gpu)
{
    int count = 0;
    cuda_result result = gpu_driver()->device_count(&count);
    if (result == CUDA_RESULT_OK && gpu->ordinal >= count) {
        return error_report(COMM_UNSUPPORTED,
                            "this process sees %d GPUs, numbered from 0 (CUDA_VISIBLE_DEVICES)", count);
    }
    if (result == CUDA_RESULT_OK) {
        result = gpu_driver()->device_get(&gpu->device, gpu->ordinal);
    }
    if (result != CUDA_RESULT_OK) {
        return gpu_report(result, "cuDeviceGet");
    }
    result = gpu_driver()->device_uuid(&gpu->uuid, gpu->device);
    if (result != CUDA_RESULT_OK) {
        return gpu_report(result, "cuDeviceGetUuid_v2");
    }
    result = gpu_driver()->context_retain(&gpu->context, gpu->device);
    return result == CUDA_RESULT_OK ? COMM_OK : gpu_report(result, "cuDevicePrimaryCtxRetain");
}

static comm_result_t gpu_new(struct comm_client *client, int ordinal, struct client_gpu **out)
{
    comm_result_t result = load();
    if (result != COMM_OK) {
        return result;
    }
    struct client_gpu *gpu = calloc(1, sizeof *gpu);
    if (gpu == NULL) {
        return error_report(COMM_NO_MEMORY, "no memory for a GPU");
    }
    gpu->ordinal = ordinal;
    result = take_device(gpu);
    if (result == COMM_OK) {
        result = fences_join_gpu(client, gpu);
        if (result != COMM_OK) {
            (void)gpu_driver()->context_release(gpu->device);
        }
    }
    if (result != COMM_OK) {
        free(gpu);
        return result;
    }
    *out = gpu;
    return COMM_OK;
}

comm_result_t gpu_count(int *count)
{
    *count = 0;
    comm_result_t loaded = load();
    if (loaded != COMM_OK) {
        return loaded;
    }
    cuda_result result = gpu_driver()->device_count(count);
    return result == CUDA_RESULT_OK ? COMM_OK : gpu_report(result, "cuDeviceGetCount");
}

bool gpu_is_used(struct comm_client *client)
{
    pthread_mutex_lock(&client->fences.lock);
    bool used = client->gpus != NULL;
    pthread_mutex_unlock(&client->fences.lock);
    return used;
}

comm_result_t gpu_open(struct comm_client *client, int ordinal, struct client_gpu **out)
{
    for (struct client_gpu *gpu = client->gpus; gpu != NULL; gpu = gpu->next) {
        if (gpu->ordinal == ordinal) {
            *out = gpu;
            return COMM_OK;
        }
    }
    comm_result_t result = gpu_new(client, ordinal, out);
    return result == COMM_OK ? COMM_OK : error_within(result, "device %d", ordinal);
}

void gpus_close(struct comm_client *client)
{
    while (client->gpus != NULL) {
        struct client_gpu *gpu = client->gpus;
        client->gpus = gpu->next;
        (void)gpu_driver()->context_release(gpu->device);
        free(gpu);
    }
}
