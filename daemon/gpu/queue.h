#ifndef DAEMON_GPU_QUEUE_H
#define DAEMON_GPU_QUEUE_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/base/error.h"
#include "daemon/gpu/devices.h"
#include "daemon/host/reduce.h"

/*
 * Work for one GPU, done in the order in which it was put: a CUDA stream, and a word in host memory that
 * shows its progress. Nothing here blocks: put a mark behind the work, and ask until the mark is reached. If
 * the GPU has failed, functions that put work return DEVICE, with GPU and call in the text; the queue is
 * unusable then. Only one thread at a time may use a queue. Addresses are device addresses, or host memory
 * from gpu_pinned_begin.
 */
struct gpu_queue;
struct budget_account;

/* Host memory of a queue, of which the driver's stream takes most. */
#define GPU_QUEUE_COST_BYTES 8192u
/* account: charged for the queue until it is freed (BUDGET_COMMUNICATOR_BYTES); null: no account. Errors:
 * LIMIT, NO_MEMORY, or the driver's. */
enum status gpu_queue_new(struct gpu_devices *gpus, uint32_t gpu, struct budget_account *account,
                          struct gpu_queue **out, struct error *error) COMM_MUST_USE;
/* Call it when all marks of the queue are reached, or its GPU failed; otherwise it blocks. Accepts null. */
void gpu_queue_free(struct gpu_queue *queue);

cuda_stream gpu_queue_stream(const struct gpu_queue *queue);

/* Copies between any memory: of this GPU, of another one, of the host (pinned). No overlap. */
enum status gpu_queue_copy(struct gpu_queue *queue, void *target, const void *source, uint64_t size_bytes,
                           struct error *error) COMM_MUST_USE;

struct host_copy_range {
    const void *source;
    void *target;
    uint64_t bytes;
};
/*
 * Which memory a kernel works on: GPU memory alone; or also pinned host memory. For the latter a few threads
 * fill the link to the host, and leave the rest of the GPU to other work.
 */
enum gpu_queue_path { GPU_QUEUE_GPUS, GPU_QUEUE_LINK };

/* Copies many ranges in one kernel. They must be reachable for it: memory of its GPU, of peer GPUs, or of the
 * host. */
enum status gpu_queue_copy_ranges(struct gpu_queue *queue, const struct host_copy_range *ranges,
                                  uint32_t range_count, enum gpu_queue_path path,
                                  struct error *error) COMM_MUST_USE;

/* As host_reduce, on memory that the GPU's kernels reach. */
#define GPU_QUEUE_BUFFERS_MAX 256 /* inputs, and outputs; more: LIMIT */
enum status gpu_queue_reduce(struct gpu_queue *queue, const struct host_reduction *reduction,
                             enum gpu_queue_path path, struct error *error) COMM_MUST_USE;

/*
 * The codec of compressed all-reduces (daemon/host/compress.h) on the GPU. The values lie on GPUs; encoded
 * bytes lie in pinned memory, each part's at a multiple of GPU_CODE_ALIGN_BYTES. No ranges overlap.
 */
#define GPU_CODE_ALIGN_BYTES 16u
struct gpu_code_part {
    float *values;
    float *residual; /* encoding: null, or as many elements */
    unsigned char *encoded;
    const uint32_t *offsets; /* decoding of top_k: see host_compress_check */
    uint64_t count_elements;
};
struct gpu_coding {
    enum compression compression;
    uint32_t top_k_permille;
    bool in_place; /* encoding: replaces the values by what others decode. Decoding: adds to them */
    uint32_t part_count;
    const struct gpu_code_part *parts;
};
/* The bytes that encoding may write for so many elements. host_compress_pack turns them into a payload. */
uint64_t gpu_code_room_bytes(enum compression compression, uint32_t top_k_permille, uint64_t count_elements);
enum status gpu_queue_encode(struct gpu_queue *queue, const struct gpu_coding *coding,
                             struct error *error) COMM_MUST_USE;
/* The payloads must have passed host_compress_check. */
enum status gpu_queue_decode(struct gpu_queue *queue, const struct gpu_coding *coding,
                             struct error *error) COMM_MUST_USE;

/* Waits until a word is `value` or above, by signed difference, or writes it. word: a device address of
 * gpu_words_find. Someone must make sure that a wait ends. */
enum status gpu_queue_wait_word(struct gpu_queue *queue, uint64_t word, uint64_t value,
                                struct error *error) COMM_MUST_USE;
enum status gpu_queue_write_word(struct gpu_queue *queue, uint64_t word, uint64_t value,
                                 struct error *error) COMM_MUST_USE;

/* Puts a mark: it is reached when all earlier work is done and visible to the host. Marks ascend from 1. On
 * failure it waits for the work, unless the GPU failed: a failed GPU no longer accesses memory. */
enum status gpu_queue_mark(struct gpu_queue *queue, uint64_t *mark, struct error *error) COMM_MUST_USE;
bool gpu_queue_reached(const struct gpu_queue *queue, uint64_t mark);
/* STATUS_OK while the work may still complete; otherwise the GPU's failure. Costs a driver call, so use it
 * only for long waits. */
enum status gpu_queue_check(struct gpu_queue *queue, struct error *error) COMM_MUST_USE;

/* Whether the queue is done with the work before the mark (0: no work). That is so if the mark is reached or
 * the GPU failed; *status tells which. Asks the driver once a millisecond. */
bool gpu_queue_is_done(struct gpu_queue *queue, uint64_t mark, uint64_t now_ns, enum status *status,
                       struct error *error);

#endif
