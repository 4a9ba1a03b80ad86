#include <stdlib.h>

#include "daemon/base/long_call.h"
#include "daemon/base/table.h"
#include "daemon/gpu/cuda_internal.h"

/* Pinned memory in sizes that are powers of two. Freed memory is kept for reuse, up to a limit. */

#define PINNED_CLASS_MIN 12 /* 4 KiB */

struct cuda_pinned_block {
    void *memory;
    unsigned size_class;
    struct cuda_pinned_block *next; /* among the free ones of its class */
    UT_hash_handle hh;
};

static unsigned class_of(uint64_t size_bytes)
{
    unsigned size_class = PINNED_CLASS_MIN;
    while (size_class < CUDA_PINNED_CLASSES && (UINT64_C(1) << size_class) < size_bytes) {
        size_class++;
    }
    return size_class;
}

uint64_t gpu_pinned_size(uint64_t size_bytes)
{
    return UINT64_C(1) << class_of(size_bytes);
}

/* Uses any GPU's context: all GPUs can use the memory. */
static enum status block_new(struct gpu_devices *gpus, unsigned size_class, struct cuda_pinned_block **out,
                             struct error *error)
{
    struct cuda_pinned_block *block = calloc(1, sizeof *block);
    if (block == NULL) {
        return error_set(error, STATUS_NO_MEMORY, "no memory for pinned memory");
    }
    block->size_class = size_class;
    enum status status = STATUS_DEVICE;
    long_call_begin();
    for (uint32_t gpu = 0; gpu < gpus->count && status == STATUS_DEVICE; gpu++) {
        status = cuda_enter(gpus, gpu, error);
        if (status == STATUS_OK) {
            status = CUDA_CALL(gpus, gpu, error, host_alloc, &block->memory, (size_t)1 << size_class,
                               CUDA_HOST_PORTABLE | CUDA_HOST_DEVICE_MAP);
        }
    }
    long_call_end();
    if (status != STATUS_OK) {
        free(block);
        return status;
    }
    *out = block;
    return STATUS_OK;
}

enum status gpu_pinned_alloc(struct gpu_devices *gpus, uint64_t size_bytes, void **out, struct error *error)
{
    unsigned size_class = class_of(size_bytes);
    if (size_class >= CUDA_PINNED_CLASSES) {
        return error_set(error, STATUS_LIMIT, "%llu bytes of pinned memory", (unsigned long long)size_bytes);
    }
    pthread_mutex_lock(&gpus->lock);
    struct cuda_pinned_block *block = gpus->pinned[size_class];
    enum status status = STATUS_OK;
    if (block != NULL) {
        gpus->pinned[size_class] = block->next;
        gpus->pinned_kept_bytes -= UINT64_C(1) << size_class;
    } else {
        pthread_mutex_unlock(&gpus->lock); /* pinning takes long */
        status = block_new(gpus, size_class, &block, error);
        pthread_mutex_lock(&gpus->lock);
        gpus->pinned_bytes += status == STATUS_OK ? UINT64_C(1) << size_class : 0;
    }
    if (status == STATUS_OK) {
        HASH_ADD_PTR(gpus->blocks, memory, block);
        if (table_has(block, hh)) {
            *out = block->memory;
        } else { /* kept for the next allocation */
            block->next = gpus->pinned[size_class];
            gpus->pinned[size_class] = block;
            gpus->pinned_kept_bytes += UINT64_C(1) << size_class;
            status = error_set(error, STATUS_NO_MEMORY, "no memory for pinned memory");
        }
    }
    pthread_mutex_unlock(&gpus->lock);
    return status;
}

static void block_free(struct gpu_devices *gpus, struct cuda_pinned_block *block)
{
    for (uint32_t gpu = 0; gpu < gpus->count; gpu++) {
        if (cuda_enter(gpus, gpu, NULL) == STATUS_OK) {
            (void)gpus->driver->host_free(block->memory);
            break;
        }
    }
    free(block);
}

void gpu_pinned_free(struct gpu_devices *gpus, void *memory)
{
    if (memory == NULL) {
        return;
    }
    struct cuda_pinned_block *block;
    pthread_mutex_lock(&gpus->lock);
    HASH_FIND_PTR(gpus->blocks, &memory, block);
    uint64_t bytes = UINT64_C(1) << block->size_class;
    HASH_DEL(gpus->blocks, block);
    bool keep = gpus->pinned_kept_bytes + bytes <= GPU_PINNED_KEEP_BYTES;
    if (keep) {
        block->next = gpus->pinned[block->size_class];
        gpus->pinned[block->size_class] = block;
        gpus->pinned_kept_bytes += bytes;
    } else {
        gpus->pinned_bytes -= bytes;
    }
    pthread_mutex_unlock(&gpus->lock);
    if (!keep) {
        block_free(gpus, block);
    }
}

uint64_t gpu_pinned_bytes(const struct gpu_devices *gpus)
{
    pthread_mutex_t *lock = (pthread_mutex_t *)(uintptr_t)&gpus->lock;
    pthread_mutex_lock(lock);
    uint64_t bytes = gpus->pinned_bytes;
    pthread_mutex_unlock(lock);
    return bytes;
}

void cuda_pinned_close(struct gpu_devices *gpus)
{
    for (unsigned size_class = 0; size_class < CUDA_PINNED_CLASSES; size_class++) {
        while (gpus->pinned[size_class] != NULL) {
            struct cuda_pinned_block *block = gpus->pinned[size_class];
            gpus->pinned[size_class] = block->next;
            block_free(gpus, block);
        }
    }
}
