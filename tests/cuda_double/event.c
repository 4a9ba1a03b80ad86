#include <stdlib.h>

#include "tests/cuda_double/stream.h"

#define EVENT_FLAGS_ALL 7u /* blocking synchronisation, no timing, between processes */

struct event {
    cuda_context context;
    unsigned references; /* held by the handle and by records under way */
    bool timed;
    uint64_t capture_id;     /* of the last record; 0: it was in none */
    uint64_t captured_works; /* of its stream then */
    struct stream *stream;   /* the stream of the last record; null: never recorded */
    uint64_t number;
    uint64_t completed_ns;
};

static void event_unref(struct event *event)
{
    if (--event->references > 0) {
        return;
    }
    if (event->stream != NULL) {
        stream_unref(event->stream);
    }
    free(event);
}

struct record_work {
    struct work work;
    struct event *event;
    uint64_t number;
};

static cuda_result record_run(struct work *work, struct stream *stream)
{
    struct record_work *record = (struct record_work *)work;
    double_lock();
    if (record->event->stream == stream && record->event->number == record->number) {
        record->event->completed_ns = now_ns();
    }
    double_unlock();
    return CUDA_RESULT_OK;
}

static void record_destroy(struct work *work)
{
    event_unref(((struct record_work *)work)->event);
    free(work);
}

static bool is_done(const struct event *event)
{
    return event->stream == NULL || event->stream->completed >= event->number;
}

cuda_result cuEventCreate(cuda_event *event, unsigned flags)
{
    cuda_result result = double_enter(__func__, ENTER_CONTEXT);
    if (result != CUDA_RESULT_OK) {
        return result;
    }
    if ((flags & ~EVENT_FLAGS_ALL) != 0) {
        return CUDA_RESULT_INVALID_VALUE;
    }
    struct event *made = calloc(1, sizeof *made);
    if (made == NULL) {
        return CUDA_RESULT_OUT_OF_MEMORY;
    }
    double_lock();
    *made = (struct event){
        .context = context_now(), .references = 1, .timed = (flags & CUDA_EVENT_DISABLE_TIMING) == 0};
    *event = (cuda_event)object_add(OBJECT_EVENT, made);
    double_unlock();
    return CUDA_RESULT_OK;
}

cuda_result cuEventDestroy_v2(cuda_event handle)
{
    cuda_result result = double_begin(__func__, ENTER_CONTEXT);
    if (result != CUDA_RESULT_OK) {
        return result;
    }
    struct event *event = object_remove(OBJECT_EVENT, (uintptr_t)handle);
    if (event == NULL) {
        result = CUDA_RESULT_INVALID_HANDLE;
    } else {
        event_unref(event);
    }
    return double_end(result);
}

static cuda_result record(struct event *event, struct stream *stream)
{
    if (event->context != stream->context) {
        return CUDA_RESULT_INVALID_HANDLE;
    }
    struct record_work *work = malloc(sizeof *work);
    if (work == NULL) {
        return CUDA_RESULT_OUT_OF_MEMORY;
    }
    uint64_t id = capture_id(stream);
    *work = (struct record_work){.work = {.references = 2, .run = record_run, .destroy = record_destroy},
                                 .event = event};
    event->references++;
    cuda_result result = stream_submit(stream, &work->work, &work->number);
    if (result == CUDA_RESULT_OK) {
        struct stream *before = event->stream;
        stream->references++;
        event->stream = stream;
        event->number = work->number;
        event->capture_id = id;
        event->captured_works = stream->captured_works;
        if (before != NULL) {
            stream_unref(before);
        }
    }
    work_release(&work->work);
    return result;
}

cuda_result cuEventRecord(cuda_event handle, cuda_stream stream_handle)
{
    cuda_result result = double_begin(__func__, ENTER_CONTEXT);
    if (result != CUDA_RESULT_OK) {
        return result;
    }
    struct stream *stream;
    struct event *event = object_get(OBJECT_EVENT, (uintptr_t)handle);
    result = event != NULL ? stream_find(stream_handle, &stream) : CUDA_RESULT_INVALID_HANDLE;
    if (result == CUDA_RESULT_OK) {
        result = record(event, stream);
    }
    return double_end(result);
}

cuda_result cuStreamWaitEvent(cuda_stream stream_handle, cuda_event handle, unsigned flags)
{
    cuda_result result = double_enter(__func__, ENTER_CONTEXT);
    if (result != CUDA_RESULT_OK) {
        return result;
    }
    if (flags != 0) {
        return CUDA_RESULT_INVALID_VALUE;
    }
    struct stream *stream;
    double_lock();
    const struct event *event = object_get(OBJECT_EVENT, (uintptr_t)handle);
    result = event != NULL ? stream_find(stream_handle, &stream) : CUDA_RESULT_INVALID_HANDLE;
    if (result == CUDA_RESULT_OK && (stream->capture != NULL || event->capture_id != 0)) {
        result = capture_wait(stream, event->stream, event->capture_id, event->captured_works);
    } else if (result == CUDA_RESULT_OK && event->stream != NULL) {
        result = stream_enqueue_wait(stream, event->stream, event->number);
    }
    return double_end(result);
}

cuda_result cuEventQuery(cuda_event handle)
{
    cuda_result result = double_begin(__func__, 0);
    if (result != CUDA_RESULT_OK) {
        return result;
    }
    const struct event *event = object_get(OBJECT_EVENT, (uintptr_t)handle);
    if (event == NULL) {
        result = CUDA_RESULT_INVALID_HANDLE;
    } else if (event->capture_id != 0) {
        result = CUDA_RESULT_CAPTURED_EVENT;
    } else if (event->context->failure != CUDA_RESULT_OK) {
        result = event->context->failure;
    } else {
        result = is_done(event) ? CUDA_RESULT_OK : CUDA_RESULT_NOT_READY;
    }
    return double_end(result);
}

cuda_result cuEventSynchronize(cuda_event handle)
{
    cuda_result result = double_begin(__func__, ENTER_CONTEXT);
    if (result != CUDA_RESULT_OK) {
        return result;
    }
    const struct event *event = object_get(OBJECT_EVENT, (uintptr_t)handle);
    if (event == NULL) {
        result = CUDA_RESULT_INVALID_HANDLE;
    } else if (event->capture_id != 0) {
        result = CUDA_RESULT_CAPTURED_EVENT;
    } else if (event->stream != NULL) {
        result = stream_await(event->stream, event->number);
    }
    return double_end(result);
}

cuda_result cuEventElapsedTime(float *milliseconds, cuda_event begin_handle, cuda_event end_handle)
{
    cuda_result result = double_begin(__func__, 0);
    if (result != CUDA_RESULT_OK) {
        return result;
    }
    const struct event *begin = object_get(OBJECT_EVENT, (uintptr_t)begin_handle);
    const struct event *end = object_get(OBJECT_EVENT, (uintptr_t)end_handle);
    if (begin == NULL || end == NULL || begin->context != end->context || !begin->timed || !end->timed ||
        begin->stream == NULL || end->stream == NULL) {
        result = CUDA_RESULT_INVALID_HANDLE;
    } else if (!is_done(begin) || !is_done(end)) {
        result = CUDA_RESULT_NOT_READY;
    } else {
        *milliseconds = (float)((double)(int64_t)(end->completed_ns - begin->completed_ns) / 1e6);
    }
    return double_end(result);
}
