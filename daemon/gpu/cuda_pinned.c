#include <stdlib.h>
#include <time.h>
#include <utlist.h>

#include "daemon/base/table.h"
#include "daemon/base/thread.h"
#include "daemon/base/time.h"
#include "daemon/gpu/cuda_internal.h"

/*
 * Pinned memory in sizes that are powers of two. Freed memory is kept for reuse, up to a limit.
 *
 * To pin or to free memory, the driver may wait for all work of a GPU, also for work that hangs. So threads
 * make these calls. Who needs memory asks until it is there, for a bounded time. If it is not there then, the
 * thread keeps it for the next one. Until then, everybody is refused.
 */

#define PINNED_CLASS_MIN 12       /* 4 KiB */
#define PIN_LEAST_NS (2 * TIME_S) /* less than the other nodes' patience */
#define PIN_MIB_NS (2 * TIME_MS)  /* five times what it takes */
#define PIN_POLL_NS (100 * TIME_MS)
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

struct gpu_pinning {
    struct gpu_pinning *prev, *next; /* under way */
    struct gpu_devices *gpus;
    struct cuda_pinned_block *block;
    enum status status;
    struct error error;
    uint64_t entered_ns; /* 0: its thread does not run yet */
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

static uint64_t clock_ns(void)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * TIME_S + (uint64_t)now.tv_nsec;
}

/* With the lock. Returns the block if nobody wants it. */
static struct cuda_pinned_block *pinning_end(struct gpu_pinning *pinning)
{
    struct gpu_devices *gpus = pinning->gpus;
    uint64_t bytes = UINT64_C(1) << pinning->block->size_class;
    bool kept = false;
    pinning->done = true;
    DL_DELETE(gpus->pinnings, pinning);
    if (pinning->status == STATUS_OK) {
        kept = !pinning->abandoned || keep_block(gpus, pinning->block);
        gpus->pinned_bytes += kept ? bytes : 0;
    }
    return kept || !pinning->abandoned ? NULL : pinning->block;
}

/* Pins a block, and gives it to who polls. */
static void *serve_pinning(void *context)
{
    struct gpu_pinning *pinning = context;
    struct gpu_devices *gpus = pinning->gpus;
    pthread_mutex_lock(&gpus->lock);
    pinning->entered_ns = clock_ns();
    pthread_mutex_unlock(&gpus->lock);
    pinning->status = pin(gpus, pinning->block, &pinning->error);
    pthread_mutex_lock(&gpus->lock);
    bool abandoned = pinning->abandoned; /* if not, it is the poller's */
    struct cuda_pinned_block *unwanted = pinning_end(pinning);
    pthread_cond_broadcast(&gpus->pin_changed);
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

/* With the lock. A thread that waits for a processor only is not late. */
static bool is_late(const struct gpu_pinning *pinning)
{
    uint64_t mib = (UINT64_C(1) << pinning->block->size_class) >> 20;
    return pinning->entered_ns != 0 && clock_ns() - pinning->entered_ns > PIN_LEAST_NS + mib * PIN_MIB_NS;
}

/* With the lock. */
static enum status pinning_begin(struct gpu_devices *gpus, unsigned size_class, struct gpu_pinning **out,
                                 struct error *error)
{
    for (const struct gpu_pinning *each = gpus->pinnings; each != NULL; each = each->next) {
        if (is_late(each)) {
            return error_set(error, STATUS_DEVICE,
                             "no pinned memory: an earlier cuMemHostAlloc has not returned, because a GPU's "
                             "work does not end");
        }
    }
    struct cuda_pinned_block *block = calloc(1, sizeof *block);
    struct gpu_pinning *pinning = calloc(1, sizeof *pinning);
    if (block != NULL && pinning != NULL) {
        block->size_class = size_class;
        *pinning = (struct gpu_pinning){.gpus = gpus, .block = block};
        if (start(gpus, serve_pinning, pinning)) {
            DL_APPEND(gpus->pinnings, pinning);
            *out = pinning;
            return STATUS_OK;
        }
    }
    free(block);
    free(pinning);
    return error_set(error, STATUS_NO_MEMORY, "no memory or thread for pinned memory");
}

/* --- Memory --- */

/* With the lock. The block is in use, or kept for the next one. */
static enum status block_use(struct gpu_devices *gpus, struct cuda_pinned_block *block, void **out,
                             struct error *error)
{
    HASH_ADD_PTR(gpus->blocks, memory, block);
    if (table_has(block, hh)) {
        *out = block->memory;
        return STATUS_OK;
    }
    block->next = gpus->pinned[block->size_class];
    gpus->pinned[block->size_class] = block;
    gpus->pinned_kept_bytes += UINT64_C(1) << block->size_class;
    return error_set(error, STATUS_NO_MEMORY, "no memory for pinned memory");
}

enum status gpu_pinned_begin(struct gpu_devices *gpus, uint64_t size_bytes, struct gpu_pinned *out,
                             struct error *error)
{
    unsigned size_class = class_of(size_bytes);
    enum status status;
    *out = (struct gpu_pinned){.memory = NULL};
    if (size_class >= CUDA_PINNED_CLASSES) {
        return error_set(error, STATUS_LIMIT, "%llu bytes of pinned memory", (unsigned long long)size_bytes);
    }
    pthread_mutex_lock(&gpus->lock);
    struct cuda_pinned_block *block = gpus->pinned[size_class];
    if (block != NULL) {
        gpus->pinned[size_class] = block->next;
        gpus->pinned_kept_bytes -= UINT64_C(1) << size_class;
        status = block_use(gpus, block, &out->memory, error);
    } else {
        status = pinning_begin(gpus, size_class, &out->pinning, error);
    }
    pthread_mutex_unlock(&gpus->lock);
    return status;
}

/* With the lock, when it is done. */
static enum status pinning_take(struct gpu_pinning *pinning, void **out, struct error *error)
{
    enum status status = pinning->status;
    if (status == STATUS_OK) {
        status = block_use(pinning->gpus, pinning->block, out, error);
    } else {
        (void)error_set(error, status, "%s", pinning->error.text);
        free(pinning->block);
    }
    free(pinning);
    return status;
}

enum status gpu_pinned_poll(struct gpu_devices *gpus, struct gpu_pinned *pinned, struct error *error)
{
    struct gpu_pinning *pinning = pinned->pinning;
    enum status status = STATUS_OK;
    if (pinning == NULL) {
        return status;
    }
    pthread_mutex_lock(&gpus->lock);
    if (pinning->done) {
        pinned->pinning = NULL;
        status = pinning_take(pinning, &pinned->memory, error);
    } else if (is_late(pinning)) {
        pinned->pinning = NULL;
        pinning->abandoned = true;
        status =
            error_set(error, STATUS_DEVICE,
                      "no pinned memory: cuMemHostAlloc does not return, because a GPU's work does not end");
    }
    pthread_mutex_unlock(&gpus->lock);
    return status;
}

/* Does not wait for the driver. */
static void free_block(struct gpu_devices *gpus, void *memory)
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

void gpu_pinned_drop(struct gpu_devices *gpus, struct gpu_pinned *pinned)
{
    struct gpu_pinning *pinning = pinned->pinning;
    if (pinning != NULL) {
        pthread_mutex_lock(&gpus->lock);
        pinned->pinning = NULL;
        if (!pinning->done) {
            pinning->abandoned = true;
        } else if (pinning_take(pinning, &pinned->memory, NULL) != STATUS_OK) {
            pinned->memory = NULL;
        }
        pthread_mutex_unlock(&gpus->lock);
    }
    free_block(gpus, pinned->memory);
    pinned->memory = NULL;
}

enum status cuda_pinned_await(struct gpu_devices *gpus, struct gpu_pinned *pinned, struct error *error)
{
    enum status status = STATUS_OK;
    while (status == STATUS_OK && pinned->memory == NULL) {
        struct timespec until = time_in(PIN_POLL_NS);
        pthread_mutex_lock(&gpus->lock);
        if (!pinned->pinning->done) {
            (void)await(gpus, &until);
        }
        pthread_mutex_unlock(&gpus->lock);
        status = gpu_pinned_poll(gpus, pinned, error);
    }
    return status;
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
