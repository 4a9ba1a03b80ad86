#include <stdlib.h>

#include "tests/cuda_double/graph.h"

/*
 * Captures. A capture begins on one stream. A stream that waits for an event of the capture joins it. Before
 * the end, the first stream must wait for all that joined.
 */
struct capture {
    struct capture *next;
    struct stream *stream; /* the first one */
    pthread_t thread;
    uint64_t id;
    int mode;
    bool invalid;
    struct graph *graph;
};

static struct capture *captures;
static uint64_t last_id;
static __thread int own_mode = CUDA_CAPTURE_MODE_GLOBAL;

static struct capture *capture_of(uint64_t id)
{
    struct capture *one = captures;
    while (one != NULL && one->id != id) {
        one = one->next;
    }
    return one;
}

/* Applies the rules of the thread's mode: GLOBAL is also bound by a global capture of another thread, RELAXED
 * by none. */
bool capture_forbids(void)
{
    bool forbids = false;
    for (struct capture *one = captures; one != NULL; one = one->next) {
        bool own = pthread_equal(one->thread, pthread_self()) != 0 && one->mode != CUDA_CAPTURE_MODE_RELAXED;
        bool others = one->mode == CUDA_CAPTURE_MODE_GLOBAL && own_mode == CUDA_CAPTURE_MODE_GLOBAL;
        if (own_mode != CUDA_CAPTURE_MODE_RELAXED && (own || others)) {
            one->invalid = true;
            forbids = true;
        }
    }
    return forbids;
}

cuda_result cuThreadExchangeStreamCaptureMode(int *mode)
{
    cuda_result result = double_enter(__func__, 0);
    if (result != CUDA_RESULT_OK) {
        return result;
    }
    if (*mode < CUDA_CAPTURE_MODE_GLOBAL || *mode > CUDA_CAPTURE_MODE_RELAXED) {
        return CUDA_RESULT_INVALID_VALUE;
    }
    int before = own_mode;
    own_mode = *mode;
    *mode = before;
    return CUDA_RESULT_OK;
}

cuda_result capture_refuse(struct stream *stream)
{
    stream->capture->invalid = true;
    return CUDA_RESULT_STREAM_CAPTURE_UNSUPPORTED;
}

bool capture_blocks_context(cuda_context context)
{
    bool blocks = false;
    for (struct stream *stream = context->streams; stream != NULL; stream = stream->next) {
        if (stream->capture != NULL) {
            stream->capture->invalid = true;
            blocks = true;
        }
    }
    return blocks;
}

static bool legacy_is_unusable(cuda_context context)
{
    bool unusable = false;
    for (struct stream *stream = context->streams; stream != NULL; stream = stream->next) {
        unusable = unusable || (stream->capture != NULL && stream->blocking);
    }
    return unusable;
}

bool capture_blocks_legacy(cuda_context context)
{
    bool blocks = false;
    for (struct stream *stream = context->streams; stream != NULL; stream = stream->next) {
        if (stream->capture != NULL && stream->blocking) {
            stream->capture->invalid = true;
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
    } else if (!graph_add(stream->capture->graph, work)) {
        result = CUDA_RESULT_OUT_OF_MEMORY;
    }
    if (result != CUDA_RESULT_OK) {
        work_release(work);
    } else {
        stream->captured_works++;
        stream->unjoined = stream != stream->capture->stream;
    }
    return result;
}

uint64_t capture_id(const struct stream *stream)
{
    return stream->capture != NULL ? stream->capture->id : 0;
}

cuda_result capture_wait(struct stream *stream, struct stream *recorded, uint64_t id, uint64_t works)
{
    struct capture *capture = id != 0 ? capture_of(id) : NULL;
    if (capture == NULL || (stream->capture != NULL && stream->capture != capture)) {
        return stream->capture != NULL ? capture_refuse(stream) : CUDA_RESULT_STREAM_CAPTURE_UNSUPPORTED;
    }
    if (stream->capture == NULL) {
        if (stream == stream->context->legacy) {
            capture->invalid = true;
            return CUDA_RESULT_STREAM_CAPTURE_UNSUPPORTED;
        }
        stream->capture = capture;
        stream->unjoined = true;
    } else if (stream != recorded && recorded->captured_works == works) {
        recorded->unjoined = false;
        stream->unjoined = stream != capture->stream;
    }
    return CUDA_RESULT_OK;
}

static cuda_result status_of(const struct stream *stream, int *status)
{
    if (stream == stream->context->legacy && legacy_is_unusable(stream->context)) {
        return CUDA_RESULT_STREAM_CAPTURE_IMPLICIT;
    }
    *status = stream->capture == NULL    ? CUDA_CAPTURE_NONE
              : stream->capture->invalid ? CUDA_CAPTURE_INVALIDATED
                                         : CUDA_CAPTURE_ACTIVE;
    return CUDA_RESULT_OK;
}

cuda_result cuStreamIsCapturing(cuda_stream handle, int *status)
{
    cuda_result result = double_begin(__func__, 0);
    if (result != CUDA_RESULT_OK) {
        return result;
    }
    struct stream *stream;
    result = stream_find(handle, &stream);
    result = result == CUDA_RESULT_OK ? status_of(stream, status) : result;
    return double_end(result);
}

cuda_result cuStreamGetCaptureInfo_v2(cuda_stream handle, int *status, uint64_t *id, cuda_graph *graph,
                                      const cuda_node **dependencies, size_t *dependency_count)
{
    cuda_result result = double_enter(__func__, 0);
    if (result != CUDA_RESULT_OK) {
        return result;
    }
    if (dependencies != NULL || dependency_count != NULL) {
        return CUDA_RESULT_NOT_SUPPORTED; /* nobody asks for them */
    }
    struct stream *stream;
    double_lock();
    result = stream_find(handle, &stream);
    result = result == CUDA_RESULT_OK ? status_of(stream, status) : result;
    if (result == CUDA_RESULT_OK && *status == CUDA_CAPTURE_ACTIVE) {
        *id = stream->capture->id;
        *graph = stream->capture->graph->handle;
    }
    return double_end(result);
}

void cuda_double_conditional(cuda_stream handle, int is_conditional)
{
    struct stream *stream;
    double_lock();
    if (stream_find(handle, &stream) == CUDA_RESULT_OK) {
        stream->conditional = is_conditional != 0;
    }
    double_unlock();
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
    struct graph *graph = graph_new();
    if (capture == NULL || graph == NULL) {
        free(capture);
        if (graph != NULL) {
            graph_free(graph);
        }
        return CUDA_RESULT_OUT_OF_MEMORY;
    }
    graph->captures = true;
    *capture = (struct capture){.next = captures,
                                .stream = stream,
                                .thread = pthread_self(),
                                .id = ++last_id,
                                .mode = mode,
                                .graph = graph};
    captures = capture;
    stream->capture = capture;
    stream->unjoined = false;
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
    return double_end(result);
}

/* Ends the capture on all its streams. Returns whether the first stream had waited for all others. */
static bool leave_streams(const struct capture *capture)
{
    bool joined = true;
    for (int i = 0; i < DEVICES_MAX; i++) {
        for (struct stream *stream = contexts[i].streams; stream != NULL; stream = stream->next) {
            if (stream->capture == capture) {
                joined = joined && !stream->unjoined;
                stream->capture = NULL;
                stream->conditional = false;
            }
        }
    }
    return joined;
}

static cuda_result end(const struct stream *stream, cuda_graph *out)
{
    struct capture *capture = stream->capture;
    if (capture == NULL) {
        return CUDA_RESULT_ILLEGAL_STATE;
    }
    if (capture->stream != stream) {
        return CUDA_RESULT_STREAM_CAPTURE_UNMATCHED;
    }
    if (capture->mode != CUDA_CAPTURE_MODE_RELAXED && pthread_equal(capture->thread, pthread_self()) == 0) {
        return CUDA_RESULT_STREAM_CAPTURE_WRONG_THREAD;
    }
    struct capture **link = &captures;
    while (*link != capture) {
        link = &(*link)->next;
    }
    *link = capture->next;
    bool joined = leave_streams(capture);
    cuda_result result = capture->invalid ? CUDA_RESULT_STREAM_CAPTURE_INVALIDATED
                         : joined         ? CUDA_RESULT_OK
                                          : CUDA_RESULT_STREAM_CAPTURE_UNJOINED;
    capture->graph->captures = false;
    *out = result == CUDA_RESULT_OK ? capture->graph->handle : NULL;
    if (result != CUDA_RESULT_OK) {
        graph_free(capture->graph);
    }
    free(capture);
    return result;
}

cuda_result cuStreamEndCapture(cuda_stream handle, cuda_graph *graph)
{
    cuda_result result = double_begin(__func__, ENTER_CONTEXT);
    if (result != CUDA_RESULT_OK) {
        return result;
    }
    struct stream *stream;
    result = stream_find(handle, &stream);
    if (result == CUDA_RESULT_OK) {
        result = end(stream, graph);
    }
    return double_end(result);
}
