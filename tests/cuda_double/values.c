#include <stdlib.h>
#include <time.h>

#include "tests/cuda_double/memory.h"
#include "tests/cuda_double/stream.h"

#define WAIT_EQUAL 1u
#define WAIT_AND 2u
#define WAIT_NOR 3u
#define WRITE_WITHOUT_BARRIER 1u

#define POLL_NS_FIRST 10000u
#define POLL_NS_LAST 200000u

struct value_work {
    struct work work;
    uint64_t address;
    uint64_t value;
    unsigned flags;
};

static void value_destroy(struct work *work)
{
    free(work);
}

static bool is_met(uint64_t found, uint64_t value, unsigned flags)
{
    switch (flags) {
    case CUDA_WAIT_VALUE_GEQ:
        return (int64_t)(found - value) >= 0;
    case WAIT_EQUAL:
        return found == value;
    case WAIT_AND:
        return (found & value) != 0;
    default:
        return ~(found | value) != 0;
    }
}

/* Looks up the memory before each poll. The memory may be gone meanwhile; then the program is wrong. */
static cuda_result wait_value_run(struct work *work, struct stream *stream)
{
    const struct value_work *wait = (const struct value_work *)work;
    struct timespec pause = {.tv_nsec = POLL_NS_FIRST};
    for (;;) {
        unsigned char *memory;
        struct pin pin;
        bool met = false;
        double_lock();
        bool gives_up = stream_gives_up(stream);
        cuda_result result = memory_resolve(stream->context, wait->address, sizeof(uint64_t),
                                            sizeof(uint64_t), TOUCH_KERNEL, &memory, &pin);
        if (result == CUDA_RESULT_OK) {
            met = is_met(__atomic_load_n((uint64_t *)(void *)memory, __ATOMIC_ACQUIRE), wait->value,
                         wait->flags);
            memory_unpin(&pin);
        }
        double_unlock();
        if (gives_up || met || result != CUDA_RESULT_OK) {
            return gives_up ? CUDA_RESULT_OK : result;
        }
        /* another process may write the word, and it would not wake this thread */
        (void)nanosleep(&pause, NULL);
        pause.tv_nsec = pause.tv_nsec < POLL_NS_LAST ? pause.tv_nsec * 2 : POLL_NS_LAST;
    }
}

static cuda_result write_value_run(struct work *work, struct stream *stream)
{
    const struct value_work *write = (const struct value_work *)work;
    unsigned char *memory;
    struct pin pin;
    double_lock();
    cuda_result result = memory_resolve(stream->context, write->address, sizeof(uint64_t), sizeof(uint64_t),
                                        TOUCH_KERNEL, &memory, &pin);
    if (result == CUDA_RESULT_OK) {
        __atomic_store_n((uint64_t *)(void *)memory, write->value, __ATOMIC_RELEASE);
        memory_unpin(&pin);
    }
    return double_end(result);
}

/* Whether work may touch the word. */
static cuda_result check_word(const struct stream *stream, uint64_t address)
{
    unsigned char *memory;
    struct pin pin;
    const struct allocation *allocation = allocation_find(address);
    if (stream->capture != NULL && allocation != NULL && allocation->kind == ALLOCATION_MANAGED) {
        return CUDA_RESULT_NOT_SUPPORTED;
    }
    if (memory_resolve(stream->context, address, sizeof(uint64_t), sizeof(uint64_t), TOUCH_KERNEL, &memory,
                       &pin) != CUDA_RESULT_OK) {
        return CUDA_RESULT_INVALID_VALUE;
    }
    memory_unpin(&pin);
    return CUDA_RESULT_OK;
}

static cuda_result submit(cuda_stream handle, const struct value_work *model)
{
    struct stream *stream;
    cuda_result result = stream_find_here(handle, &stream);
    if (result == CUDA_RESULT_OK && stream->capture != NULL && stream->conditional) {
        result = CUDA_RESULT_NOT_SUPPORTED;
    }
    result = result == CUDA_RESULT_OK ? check_word(stream, model->address) : result;
    if (result != CUDA_RESULT_OK) {
        return result;
    }
    struct value_work *work = malloc(sizeof *work);
    if (work == NULL) {
        return CUDA_RESULT_OUT_OF_MEMORY;
    }
    *work = *model;
    return stream_submit(stream, &work->work, NULL);
}

cuda_result cuStreamWaitValue64_v2(cuda_stream stream, cuda_pointer address, uint64_t value, unsigned flags)
{
    cuda_result result = double_enter(__func__, ENTER_CONTEXT);
    if (result != CUDA_RESULT_OK) {
        return result;
    }
    if (flags > WAIT_NOR) { /* only devices that say so can flush remote writes; the double's do not */
        return CUDA_RESULT_INVALID_VALUE;
    }
    struct value_work model = {.work = {.references = 1, .run = wait_value_run, .destroy = value_destroy},
                               .address = address,
                               .value = value,
                               .flags = flags};
    double_lock();
    result = submit(stream, &model);
    return double_end(result);
}

cuda_result cuStreamWriteValue64_v2(cuda_stream stream, cuda_pointer address, uint64_t value, unsigned flags)
{
    cuda_result result = double_enter(__func__, ENTER_CONTEXT);
    if (result != CUDA_RESULT_OK) {
        return result;
    }
    if (flags > WRITE_WITHOUT_BARRIER) {
        return CUDA_RESULT_INVALID_VALUE;
    }
    struct value_work model = {.work = {.references = 1, .run = write_value_run, .destroy = value_destroy},
                               .address = address,
                               .value = value};
    double_lock();
    result = submit(stream, &model);
    return double_end(result);
}

/* ---- several at once */

struct batch_work {
    struct work work;
    unsigned count;
    struct value_work values[];
};

static cuda_result batch_run(struct work *work, struct stream *stream)
{
    struct batch_work *batch = (struct batch_work *)work;
    cuda_result result = CUDA_RESULT_OK;
    for (unsigned i = 0; i < batch->count && result == CUDA_RESULT_OK; i++) {
        result = batch->values[i].work.run(&batch->values[i].work, stream);
    }
    return result;
}

static bool memop_is_known(const struct cuda_memop *memop)
{
    return (memop->operation == CUDA_MEMOP_WAIT_64 && memop->flags <= WAIT_NOR) ||
           (memop->operation == CUDA_MEMOP_WRITE_64 && memop->flags <= WRITE_WITHOUT_BARRIER);
}

static cuda_result submit_batch(cuda_stream handle, unsigned count, const struct cuda_memop *memops)
{
    struct stream *stream;
    cuda_result result = stream_find_here(handle, &stream);
    if (result == CUDA_RESULT_OK && stream->capture != NULL && stream->conditional) {
        result = CUDA_RESULT_NOT_SUPPORTED;
    }
    for (unsigned i = 0; i < count && result == CUDA_RESULT_OK; i++) {
        result =
            memop_is_known(&memops[i]) ? check_word(stream, memops[i].address) : CUDA_RESULT_INVALID_VALUE;
    }
    if (result != CUDA_RESULT_OK) {
        return result;
    }
    struct batch_work *batch = malloc(sizeof *batch + count * sizeof batch->values[0]);
    if (batch == NULL) {
        return CUDA_RESULT_OUT_OF_MEMORY;
    }
    *batch = (struct batch_work){.work = {.references = 1, .run = batch_run, .destroy = value_destroy},
                                 .count = count};
    for (unsigned i = 0; i < count; i++) {
        bool waits = memops[i].operation == CUDA_MEMOP_WAIT_64;
        batch->values[i] = (struct value_work){.work = {.run = waits ? wait_value_run : write_value_run},
                                               .address = memops[i].address,
                                               .value = memops[i].value,
                                               .flags = memops[i].flags};
    }
    return stream_submit(stream, &batch->work, NULL);
}

cuda_result cuStreamBatchMemOp_v2(cuda_stream stream, unsigned count, struct cuda_memop *memops,
                                  unsigned flags)
{
    cuda_result result = double_enter(__func__, ENTER_CONTEXT);
    if (result != CUDA_RESULT_OK) {
        return result;
    }
    if (flags != 0 || count == 0 || count > CUDA_MEMOPS_MAX) {
        return CUDA_RESULT_INVALID_VALUE;
    }
    double_lock();
    result = submit_batch(stream, count, memops);
    return double_end(result);
}
