#include "daemon/gpu/queue.h"

#include <stdlib.h>
#include <string.h>

#include "daemon/base/budget.h"
#include "daemon/gpu/cuda_internal.h"
#include "daemon/gpu/grid.h"
#include "daemon/host/compress.h"

_Static_assert(GPU_QUEUE_BUFFERS_MAX == KERNELS_MANY_MAX, "the room in the kernels' arguments");

struct gpu_queue {
    struct gpu_devices *gpus;
    uint32_t gpu;
    struct budget_account *account; /* holds a reference because of the charge */
    cuda_stream stream;
    struct gpu_mark_word done; /* the last mark that was reached */
    cuda_pointer done_at;      /* its device address */
    uint64_t last_mark;
    bool has_waited;   /* for a word of a client */
    uint64_t asked_ns; /* when the driver was last asked about the GPU */
};

#define QUEUE_ASK_NS 1000000ull /* asking costs a driver call */

/* gpus->driver->name(arguments) in the queue's context. */
#define QUEUE_CALL(queue, error, name, ...) CUDA_CALL((queue)->gpus, (queue)->gpu, error, name, __VA_ARGS__)

static cuda_pointer address_of(const void *at)
{
    return (cuda_pointer)(uintptr_t)at;
}

static enum status queue_enter(const struct gpu_queue *queue, struct error *error)
{
    return cuda_enter(queue->gpus, queue->gpu, error);
}

enum status gpu_queue_new(struct gpu_devices *gpus, uint32_t gpu, struct budget_account *account,
                          struct gpu_queue **out, struct error *error)
{
    enum status status = budget_charge(account, BUDGET_COMMUNICATOR_BYTES, GPU_QUEUE_COST_BYTES, error);
    if (status != STATUS_OK) {
        return status;
    }
    struct gpu_queue *queue = calloc(1, sizeof *queue);
    if (queue == NULL) {
        budget_release(account, BUDGET_COMMUNICATOR_BYTES, GPU_QUEUE_COST_BYTES);
        return error_set(error, STATUS_NO_MEMORY, "no memory for a queue of GPU %u", gpu);
    }
    queue->account = account;
    queue->gpus = gpus;
    queue->gpu = gpu;
    status = gpu_mark_word_take(gpus->mark_words, &queue->done, error);
    if (status == STATUS_OK) {
        status = queue_enter(queue, error);
    }
    if (status == STATUS_OK) {
        status = QUEUE_CALL(queue, error, host_device_pointer, &queue->done_at, queue->done.block, 0);
        queue->done_at +=
            (cuda_pointer)((unsigned char *)(void *)queue->done.at - (unsigned char *)queue->done.block);
    }
    if (status == STATUS_OK) {
        status = QUEUE_CALL(queue, error, stream_create, &queue->stream, CUDA_STREAM_NON_BLOCKING, 0);
    }
    if (status != STATUS_OK) {
        gpu_queue_free(queue);
        return status;
    }
    *out = queue;
    return STATUS_OK;
}

void gpu_queue_free(struct gpu_queue *queue)
{
    if (queue == NULL) {
        return;
    }
    if (queue_enter(queue, NULL) == STATUS_OK) {
        if (queue->stream != NULL) {
            (void)queue->gpus->driver->stream_synchronize(queue->stream);
            (void)queue->gpus->driver->stream_destroy(queue->stream);
        }
    }
    gpu_mark_word_give(queue->gpus->mark_words, &queue->done);
    budget_release(queue->account, BUDGET_COMMUNICATOR_BYTES, GPU_QUEUE_COST_BYTES);
    free(queue);
}

cuda_stream gpu_queue_stream(const struct gpu_queue *queue)
{
    return queue->stream;
}

/* --- Work --- */

enum status gpu_queue_copy(struct gpu_queue *queue, void *target, const void *source, uint64_t size_bytes,
                           struct error *error)
{
    enum status status = queue_enter(queue, error);
    if (status != STATUS_OK || size_bytes == 0 || target == source) {
        return status;
    }
    return QUEUE_CALL(queue, error, copy, address_of(target), address_of(source), (size_t)size_bytes,
                      queue->stream);
}

#define QUEUE_LINK_BLOCKS                                                                                    \
    32 /* A few hundred KB in flight: at 64 GB/s, this is more than the latency of a transfer */

static unsigned block_count(const struct gpu_queue *queue, uint64_t bytes, enum gpu_queue_path path)
{
    uint64_t all =
        (uint64_t)queue->gpus->gpus[queue->gpu].info.multiprocessors * GRID_BLOCKS_A_MULTIPROCESSOR;
    return grid_blocks(bytes, path == GPU_QUEUE_LINK && all > QUEUE_LINK_BLOCKS ? QUEUE_LINK_BLOCKS : all);
}

static enum status queue_launch(struct gpu_queue *queue, cuda_function kernel, uint64_t bytes,
                                enum gpu_queue_path path, void *arguments, struct error *error)
{
    void *parameters[] = {arguments};
    return QUEUE_CALL(queue, error, launch, kernel, block_count(queue, bytes, path), 1, 1,
                      KERNELS_BLOCK_THREADS, 1, 1, 0, queue->stream, parameters, NULL);
}

enum status gpu_queue_copy_ranges(struct gpu_queue *queue, const struct host_copy_range *ranges,
                                  uint32_t range_count, enum gpu_queue_path path, struct error *error)
{
    enum status status = queue_enter(queue, error);
    struct kernels_copy copies = {0};
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < range_count && status == STATUS_OK; i++) {
        if (ranges[i].bytes > 0 && ranges[i].source != ranges[i].target) {
            copies.copies[copies.count].source = ranges[i].source;
            copies.copies[copies.count].target = ranges[i].target;
            copies.copies[copies.count].bytes = ranges[i].bytes;
            copies.count++;
            bytes += ranges[i].bytes;
        }
        if (copies.count == KERNELS_COPIES_MAX || (i + 1 == range_count && copies.count > 0)) {
            status = queue_launch(queue, queue->gpus->gpus[queue->gpu].copy, bytes, path, &copies, error);
            copies.count = 0;
            bytes = 0;
        }
    }
    return status;
}

/* Both argument structs have the same members; the arrays differ in room. */
#define FILL_ARGUMENTS(arguments, reduction)                                                                 \
    do {                                                                                                     \
        (arguments).count_elements = (reduction)->count_elements;                                            \
        (arguments).divisor = (reduction)->divisor;                                                          \
        (arguments).input_count = (reduction)->input_count;                                                  \
        (arguments).output_count = (reduction)->output_count;                                                \
        (arguments).has_factors = (reduction)->factors != NULL;                                              \
        (arguments).reserved = 0;                                                                            \
        memcpy((arguments).inputs, (reduction)->inputs, (reduction)->input_count * sizeof(void *));          \
        memcpy((arguments).outputs, (reduction)->outputs, (reduction)->output_count * sizeof(void *));       \
        if ((reduction)->factors != NULL) {                                                                  \
            memcpy((arguments).factors, (reduction)->factors, (reduction)->input_count * sizeof(double));    \
        }                                                                                                    \
    } while (0)

enum status gpu_queue_reduce(struct gpu_queue *queue, const struct host_reduction *reduction,
                             enum gpu_queue_path path, struct error *error)
{
    uint32_t most =
        reduction->input_count > reduction->output_count ? reduction->input_count : reduction->output_count;
    bool many = most > KERNELS_FEW;
    if (most > GPU_QUEUE_BUFFERS_MAX) {
        return error_set(error, STATUS_LIMIT, "%u ranks of a communicator on GPU %u; at most %u are possible",
                         most, queue->gpu, GPU_QUEUE_BUFFERS_MAX);
    }
    enum status status = queue_enter(queue, error);
    if (status != STATUS_OK || reduction->count_elements == 0) {
        return status;
    }
    cuda_function kernel =
        queue->gpus->gpus[queue->gpu].reduces[reduction->reduce][reduction->dtype][many ? 1 : 0];
    uint64_t bytes = reduction->count_elements * dtype_size_bytes(reduction->dtype);
    union {
        struct kernels_reduce_few few;
        struct kernels_reduce_many many;
    } arguments;
    if (many) {
        FILL_ARGUMENTS(arguments.many, reduction);
    } else {
        FILL_ARGUMENTS(arguments.few, reduction);
    }
    return queue_launch(queue, kernel, bytes, path, &arguments, error);
}

_Static_assert(GPU_CODE_ALIGN_BYTES == KERNELS_CODE_ALIGN_BYTES, "what the kernels need");

uint64_t gpu_code_room_bytes(enum compression compression, uint32_t top_k_permille, uint64_t count_elements)
{
    uint64_t full = count_elements / CODEC_TOP_K_BLOCK, rest = count_elements % CODEC_TOP_K_BLOCK;
    if (compression != COMPRESSION_TOP_K) {
        return host_compress_max_bytes(compression, top_k_permille, count_elements);
    }
    return full * codec_top_k_stride(top_k_permille) +
           host_compress_max_bytes(compression, top_k_permille, rest);
}

static enum status queue_code(struct gpu_queue *queue, const cuda_function *kernels,
                              const struct gpu_coding *coding, bool encodes, struct error *error)
{
    enum status status = queue_enter(queue, error);
    struct kernels_code code = {.top_k_permille = coding->top_k_permille,
                                .replaces = encodes && coding->in_place,
                                .adds = !encodes && coding->in_place};
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < coding->part_count && status == STATUS_OK; i++) {
        const struct gpu_code_part *part = &coding->parts[i];
        if (part->count_elements > 0) {
            code.parts[code.part_count++] =
                (struct kernels_code_part){.values = part->values,
                                           .residual = part->residual,
                                           .encoded = part->encoded,
                                           .offsets = part->offsets,
                                           .count_elements = part->count_elements};
            bytes += part->count_elements * sizeof(float);
        }
        if (code.part_count == KERNELS_CODE_PARTS_MAX || (i + 1 == coding->part_count && bytes > 0)) {
            status = queue_launch(queue, kernels[coding->compression], bytes, GPU_QUEUE_GPUS, &code, error);
            code.part_count = 0;
            bytes = 0;
        }
    }
    return status;
}

enum status gpu_queue_encode(struct gpu_queue *queue, const struct gpu_coding *coding, struct error *error)
{
    return queue_code(queue, queue->gpus->gpus[queue->gpu].encodes, coding, true, error);
}

enum status gpu_queue_decode(struct gpu_queue *queue, const struct gpu_coding *coding, struct error *error)
{
    return queue_code(queue, queue->gpus->gpus[queue->gpu].decodes, coding, false, error);
}

/* --- Marks --- */

/* Writes *word = value after the earlier work of the queue. `word` is the device address of host memory. */
static enum status queue_write(struct gpu_queue *queue, cuda_pointer word, uint64_t value,
                               struct error *error)
{
    enum status status = queue_enter(queue, error);
    return status == STATUS_OK ? QUEUE_CALL(queue, error, stream_write_value, queue->stream, word, value, 0)
                               : status;
}

enum status gpu_queue_write_word(struct gpu_queue *queue, uint64_t word, uint64_t value, struct error *error)
{
    return queue_write(queue, word, value, error);
}

enum status gpu_queue_wait_word(struct gpu_queue *queue, uint64_t word, uint64_t value, struct error *error)
{
    enum status status = queue_enter(queue, error);
    queue->has_waited = true;
    return status == STATUS_OK
               ? QUEUE_CALL(queue, error, stream_wait_value, queue->stream, word, value, CUDA_WAIT_VALUE_GEQ)
               : status;
}

enum status gpu_queue_mark(struct gpu_queue *queue, uint64_t *mark, struct error *error)
{
    enum status status = queue_write(queue, queue->done_at, queue->last_mark + 1, error);
    if (status == STATUS_OK) {
        *mark = ++queue->last_mark;
    } else if (queue->has_waited) { /* waiting for it could take as long as a client likes */
        cuda_mark_failed(queue->gpus, queue->gpu, "it does not tell when work is done");
    } else if (queue_enter(queue, NULL) == STATUS_OK) {
        /* The caller could not know when the earlier work is done, and frees the memory that it uses next. */
        (void)queue->gpus->driver->stream_synchronize(queue->stream);
    }
    return status;
}

bool gpu_queue_reached(const struct gpu_queue *queue, uint64_t mark)
{
    return atomic_load_explicit(queue->done.at, memory_order_acquire) >= mark;
}

enum status gpu_queue_check(struct gpu_queue *queue, struct error *error)
{
    enum status status = queue_enter(queue, error);
    if (status != STATUS_OK) {
        return status;
    }
    return cuda_stream_status(queue->gpus, queue->gpu, queue->gpus->driver->stream_query(queue->stream),
                              error);
}

bool gpu_queue_is_done(struct gpu_queue *queue, uint64_t mark, uint64_t now_ns, enum status *status,
                       struct error *error)
{
    *status = STATUS_OK;
    if (mark == 0 || gpu_queue_reached(queue, mark)) {
        return true;
    }
    if (now_ns - queue->asked_ns > QUEUE_ASK_NS) {
        queue->asked_ns = now_ns;
        *status = gpu_queue_check(queue, error);
    }
    return *status != STATUS_OK;
}
