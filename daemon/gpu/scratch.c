#include "daemon/gpu/scratch.h"

#include <stdlib.h>
#include <string.h>

#include "daemon/base/thread.h"
#include "daemon/gpu/cuda_internal.h"

struct gpu_scratch {
    struct gpu_devices *gpus;
    uint32_t count;
    uint32_t list[GPU_DEVICES_MAX];
    uint64_t bytes, least_bytes;
    cuda_pointer at[GPU_DEVICES_MAX]; /* 0: not allocated */
    pthread_t thread;
    pthread_mutex_t lock; /* protects the fields below */
    pthread_cond_t changed;
    enum gpu_scratch_state state;
    bool ends;
    struct error why;
};

static enum status choose_size(struct gpu_scratch *scratch, struct error *error)
{
    for (uint32_t i = 0; i < scratch->count; i++) {
        uint64_t used_bytes, total_bytes;
        if (!gpu_devices_memory(scratch->gpus, scratch->list[i], &used_bytes, &total_bytes)) {
            return error_set(error, STATUS_DEVICE, "GPU %u: its free memory is not known", scratch->list[i]);
        }
        while (scratch->bytes > (total_bytes - used_bytes) / GPU_SCRATCH_SHARE) {
            scratch->bytes /= 2;
        }
        if (scratch->bytes < scratch->least_bytes) {
            return error_set(error, STATUS_NO_MEMORY, "GPU %u: less than %llu MiB are free", scratch->list[i],
                             (unsigned long long)(scratch->least_bytes * GPU_SCRATCH_SHARE >> 20));
        }
    }
    return STATUS_OK;
}

static enum status allocate(struct gpu_scratch *scratch, struct error *error)
{
    enum status status = choose_size(scratch, error);
    for (uint32_t i = 0; i < scratch->count && status == STATUS_OK; i++) {
        status = cuda_enter(scratch->gpus, scratch->list[i], error);
        if (status == STATUS_OK) {
            status = CUDA_CALL(scratch->gpus, scratch->list[i], error, memory_alloc, &scratch->at[i],
                               scratch->bytes);
        }
    }
    return status;
}

static void *serve(void *context)
{
    struct gpu_scratch *scratch = context;
    struct error error = {.status = STATUS_OK};
    enum status status = allocate(scratch, &error);
    pthread_mutex_lock(&scratch->lock);
    scratch->why = error;
    scratch->state = status == STATUS_OK ? GPU_SCRATCH_READY : GPU_SCRATCH_FAILED;
    while (!scratch->ends) {
        (void)pthread_cond_wait(&scratch->changed, &scratch->lock);
    }
    pthread_mutex_unlock(&scratch->lock);
    for (uint32_t i = 0; i < scratch->count; i++) {
        if (scratch->at[i] != 0 && cuda_enter(scratch->gpus, scratch->list[i], NULL) == STATUS_OK) {
            (void)scratch->gpus->driver->memory_free(scratch->at[i]);
        }
    }
    pthread_mutex_lock(&scratch->lock);
    scratch->state = GPU_SCRATCH_ENDED;
    pthread_mutex_unlock(&scratch->lock);
    return NULL;
}

enum status gpu_scratch_new(struct gpu_devices *gpus, const uint32_t *list, uint32_t count,
                            uint64_t most_bytes, uint64_t least_bytes, struct gpu_scratch **out,
                            struct error *error)
{
    struct gpu_scratch *scratch = calloc(1, sizeof *scratch);
    if (scratch == NULL) {
        return error_set(error, STATUS_NO_MEMORY, "no memory for GPUs' memory");
    }
    scratch->gpus = gpus;
    scratch->count = count;
    scratch->bytes = most_bytes;
    scratch->least_bytes = least_bytes;
    memcpy(scratch->list, list, count * sizeof *list);
    pthread_mutex_init(&scratch->lock, NULL);
    pthread_cond_init(&scratch->changed, NULL);
    if (thread_start(&scratch->thread, NULL, serve, scratch) != 0) {
        pthread_cond_destroy(&scratch->changed);
        pthread_mutex_destroy(&scratch->lock);
        free(scratch);
        return error_set(error, STATUS_NO_MEMORY, "no thread for GPUs' memory");
    }
    *out = scratch;
    return STATUS_OK;
}

enum gpu_scratch_state gpu_scratch_poll(struct gpu_scratch *scratch, struct error *error)
{
    pthread_mutex_lock(&scratch->lock);
    enum gpu_scratch_state state = scratch->state;
    if (state == GPU_SCRATCH_FAILED) {
        (void)error_set(error, scratch->why.status, "%s", scratch->why.text);
    }
    pthread_mutex_unlock(&scratch->lock);
    return state;
}

uint64_t gpu_scratch_bytes(const struct gpu_scratch *scratch)
{
    return scratch->bytes;
}

unsigned char *gpu_scratch_at(const struct gpu_scratch *scratch, uint32_t index)
{
    return (unsigned char *)(uintptr_t)scratch->at[index];
}

void gpu_scratch_end(struct gpu_scratch *scratch)
{
    pthread_mutex_lock(&scratch->lock);
    scratch->ends = true;
    pthread_cond_signal(&scratch->changed);
    pthread_mutex_unlock(&scratch->lock);
}

void gpu_scratch_free(struct gpu_scratch *scratch)
{
    if (scratch != NULL) {
        gpu_scratch_end(scratch);
        (void)pthread_join(scratch->thread, NULL);
        pthread_cond_destroy(&scratch->changed);
        pthread_mutex_destroy(&scratch->lock);
        free(scratch);
    }
}
