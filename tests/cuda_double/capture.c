#include <stdlib.h>

#include "tests/cuda_double/stream.h"

/* Work in the order of its capture. A graph has the work of one stream, so this order says all that the
 * graph's edges say. */
struct works {
    struct work **list;
    size_t count;
    size_t room;
};

struct capture {
    struct capture *next;
    struct stream *stream;
    pthread_t thread;
    int mode;
    bool invalid;
    struct works works;
};

struct graph {
    struct works works;
};

struct graph_exec {
    struct works works;
    struct stream *stream; /* the stream of its last launch; null: never launched */
    uint64_t number;
};

static struct capture *captures;

static bool works_add(struct works *works, struct work *work)
{
    if (works->count == works->room) {
        size_t room = works->room == 0 ? 16 : works->room * 2;
        struct work **grown = realloc(works->list, room * sizeof(struct work *));
        if (grown == NULL) {
            return false;
        }
        works->list = grown;
        works->room = room;
    }
    works->list[works->count++] = work;
    return true;
}

static void works_clear(struct works *works)
{
    for (size_t i = 0; i < works->count; i++) {
        work_release(works->list[i]);
    }
    free(works->list);
    *works = (struct works){.list = NULL};
}

/* Applies the rules for a thread that has not changed its own capture mode. Such a thread is also bound by
 * any global capture of another thread. */
bool capture_forbids(void)
{
    bool forbids = false;
    for (struct capture *one = captures; one != NULL; one = one->next) {
        bool own = pthread_equal(one->thread, pthread_self()) != 0;
        if (one->mode == CUDA_CAPTURE_MODE_GLOBAL || (own && one->mode == CUDA_CAPTURE_MODE_THREAD_LOCAL)) {
            one->invalid = true;
            forbids = true;
        }
    }
    return forbids;
}

cuda_result capture_refuse(struct stream *stream)
{
    stream->capture->invalid = true;
    return CUDA_RESULT_STREAM_CAPTURE_UNSUPPORTED;
}

bool capture_blocks_context(cuda_context context)
{
    bool blocks = false;
    for (struct capture *one = captures; one != NULL; one = one->next) {
        if (one->stream->context == context) {
            one->invalid = true;
            blocks = true;
        }
    }
    return blocks;
}

bool capture_blocks_legacy(cuda_context context)
{
    bool blocks = false;
    for (struct capture *one = captures; one != NULL; one = one->next) {
        if (one->stream->context == context && one->stream->blocking) {
            one->invalid = true;
            blocks = true;
        }
    }
    return blocks;
}

cuda_result capture_take(struct stream *stream, struct work *work)
{
    cuda_result result = CUDA_RESULT_OK;
    if (stream->capture->invalid) {
        result = CUDA_RESULT_STREAM_CAPTURE_INVALIDATED;
    } else if (!works_add(&stream->capture->works, work)) {
        result = CUDA_RESULT_OUT_OF_MEMORY;
    }
    if (result != CUDA_RESULT_OK) {
        work_release(work);
    }
    return result;
}

cuda_result cuStreamIsCapturing(cuda_stream handle, int *status)
{
    cuda_result result = double_enter(__func__, 0);
    if (result != CUDA_RESULT_OK) {
        return result;
    }
    struct stream *stream;
    double_lock();
    result = stream_find(handle, &stream);
    if (result == CUDA_RESULT_OK && stream == stream->context->legacy &&
        capture_blocks_legacy(stream->context)) {
        result = CUDA_RESULT_STREAM_CAPTURE_IMPLICIT;
    } else if (result == CUDA_RESULT_OK) {
        *status = stream->capture == NULL    ? CUDA_CAPTURE_NONE
                  : stream->capture->invalid ? CUDA_CAPTURE_INVALIDATED
                                             : CUDA_CAPTURE_ACTIVE;
    }
    double_unlock();
    return result;
}

static cuda_result begin(struct stream *stream, int mode)
{
    if (stream == stream->context->legacy) {
        return CUDA_RESULT_STREAM_CAPTURE_UNSUPPORTED;
    }
    if (stream->capture != NULL) {
        return CUDA_RESULT_ILLEGAL_STATE;
    }
    struct capture *capture = malloc(sizeof *capture);
    if (capture == NULL) {
        return CUDA_RESULT_OUT_OF_MEMORY;
    }
    *capture = (struct capture){.next = captures, .stream = stream, .thread = pthread_self(), .mode = mode};
    captures = capture;
    stream->capture = capture;
    return CUDA_RESULT_OK;
}

cuda_result cuStreamBeginCapture_v2(cuda_stream handle, int mode)
{
    cuda_result result = double_enter(__func__, ENTER_CONTEXT);
    if (result != CUDA_RESULT_OK) {
        return result;
    }
    if (mode < CUDA_CAPTURE_MODE_GLOBAL || mode > CUDA_CAPTURE_MODE_RELAXED) {
        return CUDA_RESULT_INVALID_VALUE;
    }
    struct stream *stream;
    double_lock();
    result = stream_find(handle, &stream);
    if (result == CUDA_RESULT_OK) {
        result = begin(stream, mode);
    }
    double_unlock();
    return result;
}

static cuda_result end(struct stream *stream, cuda_graph *out)
{
    struct capture *capture = stream->capture;
    if (capture == NULL) {
        return CUDA_RESULT_ILLEGAL_STATE;
    }
    if (capture->mode != CUDA_CAPTURE_MODE_RELAXED && pthread_equal(capture->thread, pthread_self()) == 0) {
        return CUDA_RESULT_STREAM_CAPTURE_WRONG_THREAD;
    }
    struct capture **link = &captures;
    while (*link != capture) {
        link = &(*link)->next;
    }
    *link = capture->next;
    stream->capture = NULL;
    struct graph *graph = capture->invalid ? NULL : malloc(sizeof *graph);
    cuda_result result = CUDA_RESULT_OK;
    if (graph == NULL) {
        result = capture->invalid ? CUDA_RESULT_STREAM_CAPTURE_INVALIDATED : CUDA_RESULT_OUT_OF_MEMORY;
        works_clear(&capture->works);
        *out = NULL;
    } else {
        graph->works = capture->works;
        *out = (cuda_graph)object_add(OBJECT_GRAPH, graph);
    }
    free(capture);
    return result;
}

cuda_result cuStreamEndCapture(cuda_stream handle, cuda_graph *graph)
{
    cuda_result result = double_enter(__func__, ENTER_CONTEXT);
    if (result != CUDA_RESULT_OK) {
        return result;
    }
    struct stream *stream;
    double_lock();
    result = stream_find(handle, &stream);
    if (result == CUDA_RESULT_OK) {
        result = end(stream, graph);
    }
    double_unlock();
    return result;
}

cuda_result cuGraphInstantiateWithFlags(cuda_graph_exec *handle, cuda_graph graph_handle,
                                        unsigned long long flags)
{
    cuda_result result = double_enter(__func__, ENTER_CONTEXT);
    if (result != CUDA_RESULT_OK) {
        return result;
    }
    if (flags != 0) {
        return CUDA_RESULT_INVALID_VALUE;
    }
    double_lock();
    const struct graph *graph = object_get(OBJECT_GRAPH, (uintptr_t)graph_handle);
    struct graph_exec *exec = graph != NULL ? calloc(1, sizeof *exec) : NULL;
    for (size_t i = 0; exec != NULL && i < graph->works.count; i++) {
        if (!works_add(&exec->works, graph->works.list[i])) {
            works_clear(&exec->works);
            free(exec);
            exec = NULL;
            break;
        }
        graph->works.list[i]->references++;
    }
    if (exec == NULL) {
        result = graph == NULL ? CUDA_RESULT_INVALID_VALUE : CUDA_RESULT_OUT_OF_MEMORY;
    } else {
        *handle = (cuda_graph_exec)object_add(OBJECT_GRAPH_EXEC, exec);
    }
    double_unlock();
    return result;
}

/* Launches a graph. Each launch of a graph waits for the launch before it, even on another stream. */
static cuda_result launch(struct graph_exec *exec, struct stream *stream)
{
    cuda_result result = CUDA_RESULT_OK;
    if (stream->capture != NULL) {
        return capture_refuse(stream);
    }
    if (exec->stream != NULL) {
        result = stream_enqueue_wait(stream, exec->stream, exec->number);
        stream_unref(exec->stream);
        exec->stream = NULL;
    }
    for (size_t i = 0; i < exec->works.count && result == CUDA_RESULT_OK; i++) {
        exec->works.list[i]->references++;
        result = stream_submit(stream, exec->works.list[i], &exec->number);
    }
    if (exec->works.count > 0) {
        exec->stream = stream;
        stream->references++;
    }
    return result;
}

cuda_result cuGraphLaunch(cuda_graph_exec handle, cuda_stream stream_handle)
{
    cuda_result result = double_enter(__func__, ENTER_CONTEXT);
    if (result != CUDA_RESULT_OK) {
        return result;
    }
    struct stream *stream;
    double_lock();
    struct graph_exec *exec = object_get(OBJECT_GRAPH_EXEC, (uintptr_t)handle);
    result = exec != NULL ? stream_find(stream_handle, &stream) : CUDA_RESULT_INVALID_VALUE;
    if (result == CUDA_RESULT_OK) {
        result = launch(exec, stream);
    }
    double_unlock();
    return result;
}

cuda_result cuGraphExecDestroy(cuda_graph_exec handle)
{
    cuda_result result = double_enter(__func__, 0);
    if (result != CUDA_RESULT_OK) {
        return result;
    }
    double_lock();
    struct graph_exec *exec = object_remove(OBJECT_GRAPH_EXEC, (uintptr_t)handle);
    if (exec == NULL) {
        result = CUDA_RESULT_INVALID_VALUE;
    } else {
        works_clear(&exec->works);
        if (exec->stream != NULL) {
            stream_unref(exec->stream);
        }
        free(exec);
    }
    double_unlock();
    return result;
}

cuda_result cuGraphDestroy(cuda_graph handle)
{
    cuda_result result = double_enter(__func__, 0);
    if (result != CUDA_RESULT_OK) {
        return result;
    }
    double_lock();
    struct graph *graph = object_remove(OBJECT_GRAPH, (uintptr_t)handle);
    if (graph == NULL) {
        result = CUDA_RESULT_INVALID_VALUE;
    } else {
        works_clear(&graph->works);
        free(graph);
    }
    double_unlock();
    return result;
}
