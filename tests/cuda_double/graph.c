#include "tests/cuda_double/graph.h"

#include <signal.h>
#include <stdlib.h>

#define INSTANTIATE_FLAGS 1ull /* AUTO_FREE_ON_LAUNCH: nothing here is allocated by graphs */

struct graph_exec {
    struct graph *graph;   /* a copy of what was instantiated */
    struct stream *stream; /* the stream of its last launch; null: never launched */
    uint64_t number;
};

static __thread bool calls_back;

bool graph_calls_back(void)
{
    return calls_back;
}

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

/* ---- user objects */

static void *destructor(void *argument)
{
    struct user_object *object = argument;
    calls_back = true;
    object->destroy(object->pointer);
    free(object);
    return NULL;
}

/* CUDA runs destructors in a thread of its own, asynchronously. */
static void object_unref(struct user_object *object, unsigned count)
{
    pthread_t thread;
    sigset_t all;
    sigset_t before;
    object->references -= count;
    if (object->references > 0) {
        return;
    }
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    if (pthread_create(&thread, NULL, destructor, object) == 0) {
        pthread_detach(thread);
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

cuda_result cuUserObjectCreate(cuda_user_object *handle, void *pointer, void (*destroy)(void *pointer),
                               unsigned references, unsigned flags)
{
    cuda_result result = double_enter(__func__, 0);
    if (result != CUDA_RESULT_OK) {
        return result;
    }
    if (destroy == NULL || references == 0 || flags != CUDA_USER_OBJECT_NO_SYNC) {
        return CUDA_RESULT_INVALID_VALUE;
    }
    struct user_object *object = malloc(sizeof *object);
    if (object == NULL) {
        return CUDA_RESULT_OUT_OF_MEMORY;
    }
    *object = (struct user_object){.references = references, .pointer = pointer, .destroy = destroy};
    double_lock();
    *handle = (cuda_user_object)object_add(OBJECT_USER, object);
    double_unlock();
    return CUDA_RESULT_OK;
}

cuda_result cuUserObjectRelease(cuda_user_object handle, unsigned count)
{
    cuda_result result = double_begin(__func__, 0);
    if (result != CUDA_RESULT_OK) {
        return result;
    }
    struct user_object *object = object_get(OBJECT_USER, (uintptr_t)handle);
    if (object == NULL || count == 0 || count > object->references) {
        result = CUDA_RESULT_INVALID_VALUE;
    } else {
        if (count == object->references) {
            (void)object_remove(OBJECT_USER, (uintptr_t)handle);
        }
        object_unref(object, count);
    }
    return double_end(result);
}

cuda_result cuGraphRetainUserObject(cuda_graph graph_handle, cuda_user_object handle, unsigned count,
                                    unsigned flags)
{
    cuda_result result = double_begin(__func__, 0);
    if (result != CUDA_RESULT_OK) {
        return result;
    }
    struct graph *graph = object_get(OBJECT_GRAPH, (uintptr_t)graph_handle);
    struct user_object *object = object_get(OBJECT_USER, (uintptr_t)handle);
    if (graph == NULL || object == NULL || count != 1 || flags > CUDA_GRAPH_USER_OBJECT_MOVE) {
        result = CUDA_RESULT_INVALID_VALUE;
    } else if (graph->object_count == GRAPH_OBJECTS_MAX) {
        result = CUDA_RESULT_OUT_OF_MEMORY;
    } else {
        graph->objects[graph->object_count++] = object;
        object->references += flags == 0 ? 1 : 0;
    }
    return double_end(result);
}

/* ---- graphs */

struct graph *graph_new(void)
{
    struct graph *graph = calloc(1, sizeof *graph);
    if (graph != NULL) {
        graph->handle = (cuda_graph)object_add(OBJECT_GRAPH, graph);
    }
    return graph;
}

bool graph_add(struct graph *graph, struct work *work)
{
    return works_add(&graph->works, work);
}

void graph_free(struct graph *graph)
{
    if (graph->handle != NULL) {
        (void)object_remove(OBJECT_GRAPH, (uintptr_t)graph->handle);
    }
    for (size_t i = 0; i < graph->works.count; i++) {
        work_release(graph->works.list[i]);
    }
    for (size_t i = 0; i < graph->object_count; i++) {
        object_unref(graph->objects[i], 1);
    }
    free(graph->works.list);
    free(graph);
}

/* Returns null if there is no memory. The copy has no handle. */
static struct graph *graph_copy(const struct graph *graph)
{
    struct graph *copy = calloc(1, sizeof *copy);
    for (size_t i = 0; copy != NULL && i < graph->works.count; i++) {
        if (!works_add(&copy->works, graph->works.list[i])) {
            graph_free(copy);
            return NULL;
        }
        graph->works.list[i]->references++;
    }
    for (size_t i = 0; copy != NULL && i < graph->object_count; i++) {
        copy->objects[copy->object_count++] = graph->objects[i];
        graph->objects[i]->references++;
    }
    return copy;
}

cuda_result cuGraphInstantiateWithFlags(cuda_graph_exec *handle, cuda_graph graph_handle,
                                        unsigned long long flags)
{
    cuda_result result = double_enter(__func__, ENTER_CONTEXT);
    if (result != CUDA_RESULT_OK) {
        return result;
    }
    if ((flags & ~INSTANTIATE_FLAGS) != 0) {
        return CUDA_RESULT_INVALID_VALUE;
    }
    double_lock();
    const struct graph *graph = object_get(OBJECT_GRAPH, (uintptr_t)graph_handle);
    bool usable = graph != NULL && !graph->captures;
    struct graph_exec *exec = usable ? calloc(1, sizeof *exec) : NULL;
    if (exec != NULL && (exec->graph = graph_copy(graph)) == NULL) {
        free(exec);
        exec = NULL;
    }
    if (exec == NULL) {
        result = usable ? CUDA_RESULT_OUT_OF_MEMORY : CUDA_RESULT_INVALID_VALUE;
    } else {
        *handle = (cuda_graph_exec)object_add(OBJECT_GRAPH_EXEC, exec);
    }
    return double_end(result);
}

/* Launches a graph. Each launch of an executable waits for its launch before, even on another stream. */
static cuda_result launch(struct graph_exec *exec, struct stream *stream)
{
    cuda_result result = CUDA_RESULT_OK;
    const struct works *works = &exec->graph->works;
    if (stream->capture != NULL) {
        return capture_refuse(stream);
    }
    if (exec->stream != NULL) {
        result = stream_enqueue_wait(stream, exec->stream, exec->number);
        stream_unref(exec->stream);
        exec->stream = NULL;
    }
    for (size_t i = 0; i < works->count && result == CUDA_RESULT_OK; i++) {
        works->list[i]->references++;
        result = stream_submit(stream, works->list[i], &exec->number);
    }
    if (works->count > 0) {
        exec->stream = stream;
        stream->references++;
    }
    return result;
}

cuda_result cuGraphLaunch(cuda_graph_exec handle, cuda_stream stream_handle)
{
    cuda_result result = double_begin(__func__, ENTER_CONTEXT);
    if (result != CUDA_RESULT_OK) {
        return result;
    }
    struct stream *stream;
    struct graph_exec *exec = object_get(OBJECT_GRAPH_EXEC, (uintptr_t)handle);
    result = exec != NULL ? stream_find(stream_handle, &stream) : CUDA_RESULT_INVALID_VALUE;
    if (result == CUDA_RESULT_OK) {
        result = launch(exec, stream);
    }
    return double_end(result);
}

/* The last piece of work of an executable that was destroyed while it ran. The executable lives until then.
 */
struct end_work {
    struct work work;
    struct graph *graph;
};

static cuda_result end_run(struct work *work, struct stream *stream)
{
    (void)work;
    (void)stream;
    return CUDA_RESULT_OK;
}

static void end_destroy(struct work *work)
{
    graph_free(((struct end_work *)work)->graph);
    free(work);
}

/* If the executable runs, it is freed after all work that is in its stream now. */
static void exec_free(struct graph_exec *exec)
{
    bool runs = exec->stream != NULL && exec->stream->completed < exec->number;
    struct end_work *end = runs && !exec->stream->closed ? malloc(sizeof *end) : NULL;
    if (end != NULL) {
        *end = (struct end_work){.work = {.references = 1, .run = end_run, .destroy = end_destroy},
                                 .graph = exec->graph};
        (void)stream_enqueue(exec->stream, &end->work, NULL);
    } else {
        graph_free(exec->graph);
    }
    if (exec->stream != NULL) {
        stream_unref(exec->stream);
    }
    free(exec);
}

cuda_result cuGraphExecDestroy(cuda_graph_exec handle)
{
    cuda_result result = double_begin(__func__, 0);
    if (result != CUDA_RESULT_OK) {
        return result;
    }
    struct graph_exec *exec = object_remove(OBJECT_GRAPH_EXEC, (uintptr_t)handle);
    if (exec == NULL) {
        result = CUDA_RESULT_INVALID_VALUE;
    } else {
        exec_free(exec);
    }
    return double_end(result);
}

cuda_result cuGraphDestroy(cuda_graph handle)
{
    cuda_result result = double_begin(__func__, 0);
    if (result != CUDA_RESULT_OK) {
        return result;
    }
    struct graph *graph = object_get(OBJECT_GRAPH, (uintptr_t)handle);
    if (graph == NULL || graph->captures) {
        result = CUDA_RESULT_INVALID_VALUE;
    } else {
        graph_free(graph);
    }
    return double_end(result);
}
