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
    double_unlock();
    return result;
}

static cuda_result submit(cuda_stream handle, const struct value_work *model)
{
    struct stream *stream;
    unsigned char *memory;
    struct pin pin;
    cuda_result result = stream_find_here(handle, &stream);
    if (result != CUDA_RESULT_OK) {
        return result;
    }
    if (memory_resolve(stream->context, model->address, sizeof(uint64_t), sizeof(uint64_t), TOUCH_KERNEL,
                       &memory, &pin) != CUDA_RESULT_OK) {
        return CUDA_RESULT_INVALID_VALUE;
    }
    memory_unpin(&pin);
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
    double_unlock();
    return result;
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
    double_unlock();
    return result;
}
