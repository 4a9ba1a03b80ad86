#include <stdlib.h>
#include <time.h>

#include "daemon/base/long_call.h"
#include "daemon/base/table.h"
#include "daemon/base/thread.h"
#include "daemon/base/time.h"
#include "daemon/gpu/cuda_internal.h"

/*
 * Pinned memory in sizes that are powers of two. Freed memory is kept for reuse, up to a limit.
 *
 * To pin or to free memory, the driver may wait for all work of a GPU, also for work that hangs. So threads
 * make these calls. Who needs memory waits for a bounded time. If it is not there then, the thread keeps it
 * for the next one, and until then nobody waits again.
 */

#define PINNED_CLASS_MIN 12       /* 4 KiB */
#define PIN_LEAST_NS (2 * TIME_S) /* less than the other nodes' patience */
#define PIN_MIB_NS (2 * TIME_MS)  /* five times what it takes */
#define CLOSE_NS (3 * TIME_S)

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

/* --- Threads --- */

struct pinning {
    struct gpu_devices *gpus;
    struct cuda_pinned_block *block;
    enum status status;
    struct error error;
    bool entered; /* its thread runs */
    bool done;
    bool abandoned; /* nobody waits for it */
};

/* With the lock. Returns whether there is room among the free ones. */
static bool keep_block(struct gpu_devices *gpus, struct cuda_pinned_block *block)
{
    uint64_t bytes = UINT64_C(1) << block->size_class;
    if (gpus->pinned_kept_bytes + bytes > GPU_PINNED_KEEP_BYTES) {
        return false;
    }
    block->next = gpus->pinned[block->size_class];
    gpus->pinned[block->size_class] = block;
    gpus->pinned_kept_bytes += bytes;
    return true;
}

static void block_free(struct gpu_devices *gpus, struct cuda_pinned_block *block)
{
    for (uint32_t gpu = 0; block->memory != NULL && gpu < gpus->count; gpu++) {
        if (cuda_enter(gpus, gpu, NULL) == STATUS_OK) {
            (void)gpus->driver->host_free(block->memory);
            break;
        }
    }
    free(block);
}

/* Uses any GPU's context: all GPUs can use the memory. */
static enum status pin(struct gpu_devices *gpus, struct cuda_pinned_block *block, struct error *error)
{
    enum status status = STATUS_DEVICE;
    for (uint32_t gpu = 0; gpu < gpus->count && status == STATUS_DEVICE; gpu++) {
        status = cuda_enter(gpus, gpu, error);
        if (status == STATUS_OK) {
            status = CUDA_CALL(gpus, gpu, error, host_alloc, &block->memory, (size_t)1 << block->size_class,
                               CUDA_HOST_PORTABLE | CUDA_HOST_DEVICE_MAP);
        }
    }
    return status;
}

/* Pins a block, and gives it to who waits. */
static void *serve_pinning(void *context)
{
    struct pinning *pinning = context;
    struct gpu_devices *gpus = pinning->gpus;
    struct cuda_pinned_block *unwanted = NULL;
    pthread_mutex_lock(&gpus->lock);
    pinning->entered = true;
    pthread_cond_broadcast(&gpus->pin_changed);
    pthread_mutex_unlock(&gpus->lock);
    pinning->status = pin(gpus, pinning->block, &pinning->error);
    pthread_mutex_lock(&gpus->lock);
    pinning->done = true;
    bool abandoned = pinning->abandoned;
    if (abandoned) {
        gpus->pins_late--;
        if (pinning->status == STATUS_OK && keep_block(gpus, pinning->block)) {
            gpus->pinned_bytes += UINT64_C(1) << pinning->block->size_class;
        } else {
            unwanted = pinning->block;
        }
    }
    pthread_mutex_unlock(&gpus->lock);
    if (unwanted != NULL) {
        block_free(gpus, unwanted);
    }
    if (abandoned) {
        free(pinning);
    }
    pthread_mutex_lock(&gpus->lock);
    gpus->pin_threads--;
    pthread_cond_broadcast(&gpus->pin_changed);
    pthread_mutex_unlock(&gpus->lock);
    return NULL;
}

/* Frees all blocks in the list. */
static void *serve_frees(void *context)
{
    struct gpu_devices *gpus = context;
    pthread_mutex_lock(&gpus->lock);
    while (gpus->unpins != NULL) {
        struct cuda_pinned_block *block = gpus->unpins;
        gpus->unpins = block->next;
        pthread_mutex_unlock(&gpus->lock);
        block_free(gpus, block);
        pthread_mutex_lock(&gpus->lock);
    }
    gpus->unpin_runs = false;
    gpus->pin_threads--;
    pthread_cond_broadcast(&gpus->pin_changed);
    pthread_mutex_unlock(&gpus->lock);
    return NULL;
}

/* With the lock. Counts a thread that it starts. */
static bool start(struct gpu_devices *gpus, void *(*serve)(void *context), void *context)
{
    pthread_t thread;
    if (thread_start(&thread, NULL, serve, context) != 0) {
        return false;
    }
    (void)pthread_detach(thread);
    gpus->pin_threads++;
    return true;
}

/* With the lock. Returns false after that time. */
static bool await(struct gpu_devices *gpus, const struct timespec *until)
{
    return pthread_cond_timedwait(&gpus->pin_changed, &gpus->lock, until) == 0;
}

static struct timespec time_in(uint64_t ns)
{
    struct timespec until;
    (void)clock_gettime(CLOCK_MONOTONIC, &until);
    uint64_t end_ns = (uint64_t)until.tv_nsec + ns;
    until.tv_sec += (time_t)(end_ns / TIME_S);
    until.tv_nsec = (long)(end_ns % TIME_S);
    return until;
}

/* With the lock. Frees the request, unless its thread does. */
static enum status await_pinning(struct gpu_devices *gpus, struct pinning *pinning,
                                 struct cuda_pinned_block **out, struct error *error)
{
    uint64_t mib = (UINT64_C(1) << pinning->block->size_class) >> 20;
    while (!pinning->entered) { /* without a limit: it waits for a processor only */
        (void)pthread_cond_wait(&gpus->pin_changed, &gpus->lock);
    }
    struct timespec until = time_in(PIN_LEAST_NS + mib * PIN_MIB_NS);
    while (!pinning->done && await(gpus, &until)) {
    }
    if (!pinning->done) {
        pinning->abandoned = true;
        gpus->pins_late++;
        return error_set(
            error, STATUS_DEVICE,
            "no pinned memory: cuMemHostAlloc does not return, because a GPU's work does not end");
    }
    enum status status = pinning->status;
    if (status == STATUS_OK) {
        *out = pinning->block;
    } else {
        (void)error_set(error, status, "%s", pinning->error.text);
        free(pinning->block);
    }
    free(pinning);
    return status;
}

static enum status block_new(struct gpu_devices *gpus, unsigned size_class, struct cuda_pinned_block **out,
                             struct error *error)
{
    struct cuda_pinned_block *block = calloc(1, sizeof *block);
    struct pinning *pinning = calloc(1, sizeof *pinning);
    if (block == NULL || pinning == NULL) {
        free(block);
        free(pinning);
        return error_set(error, STATUS_NO_MEMORY, "no memory for pinned memory");
    }
    block->size_class = size_class;
    *pinning = (struct pinning){.gpus = gpus, .block = block};
    enum status status;
    long_call_begin();
    pthread_mutex_lock(&gpus->lock);
    if (gpus->pins_late > 0) {
        status =
            error_set(error, STATUS_DEVICE,
                      "no pinned memory: an earlier cuMemHostAlloc has not returned, because a GPU's work "
                      "does not end");
    } else if (!start(gpus, serve_pinning, pinning)) {
        status = error_set(error, STATUS_NO_MEMORY, "no thread for pinned memory");
    } else {
        status = await_pinning(gpus, pinning, out, error);
        pinning = NULL;
        block = NULL;
    }
    pthread_mutex_unlock(&gpus->lock);
    long_call_end();
    free(pinning);
    free(block);
    return status;
}

/* --- Memory --- */

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
    if (!keep_block(gpus, block)) {
        gpus->pinned_bytes -= bytes;
        block->next = gpus->unpins;
        gpus->unpins = block;
        gpus->unpin_runs =
            gpus->unpin_runs || start(gpus, serve_frees, gpus); /* or the next one, or at the end */
    }
    pthread_mutex_unlock(&gpus->lock);
}

uint64_t gpu_pinned_bytes(const struct gpu_devices *gpus)
{
    pthread_mutex_t *lock = (pthread_mutex_t *)(uintptr_t)&gpus->lock;
    pthread_mutex_lock(lock);
    uint64_t bytes = gpus->pinned_bytes;
    pthread_mutex_unlock(lock);
    return bytes;
}

bool cuda_pinned_settle(struct gpu_devices *gpus)
{
    struct timespec until = time_in(CLOSE_NS);
    pthread_mutex_lock(&gpus->lock);
    while (gpus->pin_threads > 0 && await(gpus, &until)) {
    }
    bool settled = gpus->pin_threads == 0;
    pthread_mutex_unlock(&gpus->lock);
    return settled;
}

void cuda_pinned_close(struct gpu_devices *gpus)
{
    while (gpus->unpins != NULL) {
        struct cuda_pinned_block *block = gpus->unpins;
        gpus->unpins = block->next;
        block_free(gpus, block);
    }
    for (unsigned size_class = 0; size_class < CUDA_PINNED_CLASSES; size_class++) {
        while (gpus->pinned[size_class] != NULL) {
            struct cuda_pinned_block *block = gpus->pinned[size_class];
            gpus->pinned[size_class] = block->next;
            block_free(gpus, block);
        }
    }
}
