#include "tests/cuda_double/stream.h"

#include <assert.h>
#include <signal.h>
#include <stdlib.h>

static __thread struct stream *own_streams[DEVICES_MAX];

void work_release(struct work *work)
{
    assert(work->references > 0);
    if (--work->references == 0) {
        work->destroy(work);
    }
}

void stream_unref(struct stream *stream)
{
    assert(stream->references > 0);
    if (--stream->references == 0) {
        pthread_cond_destroy(&stream->arrived);
        free(stream);
    }
}

bool stream_gives_up(const struct stream *stream)
{
    return stream->forgotten || stream->context->failure != CUDA_RESULT_OK;
}

static void run_first(struct stream *stream)
{
    struct task *task = stream->first;
    cuda_result result = CUDA_RESULT_OK;
    if (!stream_gives_up(stream)) {
        double_unlock();
        settings_delay();
        result = task->work->run(task->work, stream);
        double_lock();
    }
    if (result != CUDA_RESULT_OK && !stream->forgotten) {
        context_fail(stream->context, result);
    }
    stream->first = task->next;
    if (stream->first == NULL) {
        stream->last = &stream->first;
    }
    stream->completed++;
    if (stream->connection != NULL) {
        stream->connection->done++;
    }
    work_release(task->work);
    free(task);
    double_progress();
}

static bool is_its_turn(const struct stream *stream)
{
    return stream->connection == NULL || stream->connection->done == stream->first->turn;
}

static void *stream_thread(void *argument)
{
    struct stream *stream = argument;
    double_lock();
    while (!stream->closed || stream->first != NULL) {
        if (stream->first == NULL) {
            double_wait_on(&stream->arrived);
        } else if (is_its_turn(stream)) {
            run_first(stream);
        } else {
            double_wait(0);
        }
    }
    struct stream **link = &stream->context->streams;
    while (*link != stream) {
        link = &(*link)->next;
    }
    *link = stream->next;
    stream_unref(stream);
    double_progress();
    double_unlock();
    return NULL;
}

/* Starts the stream's thread with all signals blocked: the program does not know this thread, so it must
 * not get the program's signals. */
static bool thread_start(struct stream *stream)
{
    sigset_t all;
    sigset_t before;
    pthread_t thread;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    bool started = pthread_create(&thread, NULL, stream_thread, stream) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (started) {
        pthread_detach(thread);
    }
    return started;
}

static struct stream *stream_new(cuda_context context, bool blocking)
{
    struct stream *stream = calloc(1, sizeof *stream);
    if (stream == NULL) {
        return NULL;
    }
    stream->context = context;
    stream->blocking = blocking;
    stream->last = &stream->first;
    stream->references = 2;
    pthread_cond_init(&stream->arrived, NULL);
    if (!thread_start(stream)) {
        pthread_cond_destroy(&stream->arrived);
        free(stream);
        return NULL;
    }
    unsigned connections = settings()->connections;
    stream->connection =
        connections > 0 ? &context->connections[context->streams_made++ % connections] : NULL;
    stream->next = context->streams; /* safe here: the new thread still waits for the lock */
    context->streams = stream;
    return stream;
}

/* Closes a stream. Its thread ends, and leaves the context, when it has done all its work. */
static void stream_close(struct stream *stream)
{
    stream->closed = true;
    pthread_cond_signal(&stream->arrived);
    stream_unref(stream);
}

void streams_forget_context(cuda_context context)
{
    for (struct stream *stream = context->streams; stream != NULL; stream = stream->next) {
        stream->forgotten = true;
        if (!stream->closed) {
            (void)object_remove(OBJECT_STREAM, (uintptr_t)stream->handle);
            stream_close(stream);
        }
    }
    context->legacy = NULL;
    double_progress();
    while (context->streams != NULL) {
        double_wait(0);
    }
}

static struct stream *own_stream(cuda_context context)
{
    struct stream **own = &own_streams[context->ordinal];
    if (*own != NULL && (*own)->closed) {
        stream_unref(*own);
        *own = NULL;
    }
    if (*own == NULL) {
        *own = stream_new(context, true);
        if (*own != NULL) {
            (*own)->references++;
        }
    }
    return *own;
}

static bool is_special(cuda_stream handle)
{
    return (uintptr_t)handle <= CUDA_STREAM_PER_THREAD;
}

cuda_result stream_find(cuda_stream handle, struct stream **out)
{
    return stream_find_of(context_now(), handle, out);
}

cuda_result stream_find_of(cuda_context context, cuda_stream handle, struct stream **out)
{
    if (is_special(handle)) {
        if (context == NULL || !context->active) {
            return CUDA_RESULT_INVALID_CONTEXT;
        }
        if ((uintptr_t)handle == CUDA_STREAM_PER_THREAD) {
            *out = own_stream(context);
        } else {
            context->legacy = context->legacy != NULL ? context->legacy : stream_new(context, false);
            *out = context->legacy;
        }
        return *out != NULL ? CUDA_RESULT_OK : CUDA_RESULT_OUT_OF_MEMORY;
    }
    *out = object_get(OBJECT_STREAM, (uintptr_t)handle);
    return *out == NULL ? CUDA_RESULT_INVALID_HANDLE : (*out)->context->failure;
}

cuda_result stream_find_here(cuda_stream handle, struct stream **out)
{
    cuda_result result = stream_find(handle, out);
    if (result == CUDA_RESULT_OK && (*out)->context != context_now()) {
        result = CUDA_RESULT_INVALID_HANDLE;
    }
    return result;
}

/* ---- queues */

static cuda_result append(struct stream *stream, struct work *work, uint64_t *number)
{
    struct task *task = malloc(sizeof *task);
    if (task == NULL) {
        work_release(work);
        return CUDA_RESULT_OUT_OF_MEMORY;
    }
    *task = (struct task){.work = work};
    if (stream->connection != NULL) {
        task->turn = stream->connection->given++;
    }
    *stream->last = task;
    stream->last = &task->next;
    stream->submitted++;
    if (number != NULL) {
        *number = stream->submitted;
    }
    pthread_cond_signal(&stream->arrived);
    return CUDA_RESULT_OK;
}

struct wait_work {
    struct work work;
    struct stream *other;
    uint64_t number;
};

static cuda_result wait_run(struct work *work, struct stream *stream)
{
    struct wait_work *wait = (struct wait_work *)work;
    double_lock();
    while (wait->other->completed < wait->number && !stream_gives_up(stream)) {
        double_wait(0);
    }
    double_unlock();
    return CUDA_RESULT_OK;
}

static void wait_destroy(struct work *work)
{
    stream_unref(((struct wait_work *)work)->other);
    free(work);
}

cuda_result stream_enqueue_wait(struct stream *stream, struct stream *other, uint64_t number)
{
    if (other == stream || other->completed >= number) {
        return CUDA_RESULT_OK;
    }
    struct wait_work *wait = malloc(sizeof *wait);
    if (wait == NULL) {
        return CUDA_RESULT_OUT_OF_MEMORY;
    }
    *wait = (struct wait_work){.work = {.references = 1, .run = wait_run, .destroy = wait_destroy},
                               .other = other,
                               .number = number};
    other->references++;
    return append(stream, &wait->work, NULL);
}

/* Work of the legacy stream waits for all earlier work of blocking streams. Work of a blocking stream
 * waits for all earlier work of the legacy stream. */
static cuda_result join_legacy(struct stream *stream)
{
    struct stream *legacy = stream->context->legacy;
    cuda_result result = CUDA_RESULT_OK;
    if (stream == legacy) {
        for (struct stream *other = stream->context->streams; other != NULL; other = other->next) {
            if (other->blocking && result == CUDA_RESULT_OK) {
                result = stream_enqueue_wait(stream, other, other->submitted);
            }
        }
    } else if (stream->blocking && legacy != NULL && stream->awaited_legacy < legacy->submitted) {
        stream->awaited_legacy = legacy->submitted;
        result = stream_enqueue_wait(stream, legacy, legacy->submitted);
    }
    return result;
}

cuda_result stream_enqueue(struct stream *stream, struct work *work, uint64_t *number)
{
    cuda_result result = join_legacy(stream);
    if (result != CUDA_RESULT_OK) {
        work_release(work);
        return result;
    }
    return append(stream, work, number);
}

cuda_result stream_submit(struct stream *stream, struct work *work, uint64_t *number)
{
    if (number != NULL) {
        *number = 0;
    }
    if (stream->capture != NULL) {
        return capture_take(stream, work);
    }
    if (stream == stream->context->legacy && capture_blocks_legacy(stream->context)) {
        work_release(work);
        return CUDA_RESULT_STREAM_CAPTURE_IMPLICIT;
    }
    return stream_enqueue(stream, work, number);
}

cuda_result stream_await(struct stream *stream, uint64_t number)
{
    stream->references++;
    while (stream->completed < number && !stream_gives_up(stream)) {
        double_wait(0);
    }
    cuda_result result = stream->forgotten ? CUDA_RESULT_INVALID_CONTEXT : stream->context->failure;
    stream_unref(stream);
    return result;
}

cuda_result context_await(cuda_context context)
{
    struct mark {
        struct stream *stream;
        uint64_t number;
    };
    size_t count = 0;
    for (struct stream *stream = context->streams; stream != NULL; stream = stream->next) {
        count++;
    }
    /* a copy of the list, because streams come and go during the wait */
    struct mark *marks = calloc(count + 1, sizeof *marks);
    if (marks == NULL) {
        return CUDA_RESULT_OUT_OF_MEMORY;
    }
    count = 0;
    for (struct stream *stream = context->streams; stream != NULL; stream = stream->next) {
        marks[count++] = (struct mark){.stream = stream, .number = stream->submitted};
        stream->references++;
    }
    for (size_t i = 0; i < count; i++) {
        (void)stream_await(marks[i].stream, marks[i].number);
        stream_unref(marks[i].stream);
    }
    free(marks);
    return context->failure;
}

/* ---- what is exported */

cuda_result cuStreamCreateWithPriority(cuda_stream *stream, unsigned flags, int priority)
{
    cuda_result result = double_enter(__func__, ENTER_CONTEXT);
    (void)priority; /* as in CUDA, a priority that does not exist is no error */
    if (result != CUDA_RESULT_OK) {
        return result;
    }
    if (flags > CUDA_STREAM_NON_BLOCKING) {
        return CUDA_RESULT_INVALID_VALUE;
    }
    double_lock();
    struct stream *made = stream_new(context_now(), flags != CUDA_STREAM_NON_BLOCKING);
    if (made == NULL) {
        result = CUDA_RESULT_OUT_OF_MEMORY;
    } else {
        made->handle = (cuda_stream)object_add(OBJECT_STREAM, made);
        *stream = made->handle;
    }
    return double_end(result);
}

cuda_result cuStreamDestroy_v2(cuda_stream handle)
{
    cuda_result result = double_begin(__func__, ENTER_CONTEXT);
    if (result != CUDA_RESULT_OK) {
        return result;
    }
    struct stream *stream = object_get(OBJECT_STREAM, (uintptr_t)handle);
    if (stream == NULL) {
        result = CUDA_RESULT_INVALID_HANDLE;
    } else if (stream->capture != NULL) {
        result = capture_refuse(stream);
    } else {
        (void)object_remove(OBJECT_STREAM, (uintptr_t)handle);
        stream_close(stream);
    }
    return double_end(result);
}

cuda_result cuStreamQuery(cuda_stream handle)
{
    cuda_result result = double_begin(__func__, ENTER_CONTEXT);
    if (result != CUDA_RESULT_OK) {
        return result;
    }
    struct stream *stream;
    result = stream_find(handle, &stream);
    if (result == CUDA_RESULT_OK && stream->capture != NULL) {
        result = capture_refuse(stream);
    } else if (result == CUDA_RESULT_OK && stream->completed < stream->submitted) {
        result = CUDA_RESULT_NOT_READY;
    }
    return double_end(result);
}

cuda_result cuStreamSynchronize(cuda_stream handle)
{
    cuda_result result = double_begin(__func__, ENTER_CONTEXT);
    if (result != CUDA_RESULT_OK) {
        return result;
    }
    struct stream *stream;
    result = stream_find(handle, &stream);
    if (result == CUDA_RESULT_OK) {
        result = stream->capture != NULL ? capture_refuse(stream) : stream_await(stream, stream->submitted);
    }
    return double_end(result);
}

cuda_result cuStreamGetCtx(cuda_stream handle, cuda_context *context)
{
    cuda_result result = double_begin(__func__, 0);
    if (result != CUDA_RESULT_OK) {
        return result;
    }
    struct stream *stream;
    result = stream_find(handle, &stream);
    if (result == CUDA_RESULT_OK) {
        *context = stream->context;
    }
    return double_end(result);
}

cuda_result cuCtxSynchronize(void)
{
    cuda_result result = double_begin(__func__, ENTER_BOTH);
    if (result != CUDA_RESULT_OK) {
        return result;
    }
    result = capture_blocks_context(context_now()) ? CUDA_RESULT_STREAM_CAPTURE_UNSUPPORTED
                                                   : context_await(context_now());
    return double_end(result);
}
