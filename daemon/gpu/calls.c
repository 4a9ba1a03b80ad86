#include "daemon/gpu/calls.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "daemon/base/long_call.h"
#include "daemon/base/thread.h"
#include "daemon/base/time.h"
#include "daemon/gpu/cuda_internal.h"

#define END_S 3

struct call_queue {
    struct gpu_call *first, **last;
};

/* The calls of one GPU and kind. Guarded by the lock of all. */
struct gpu_line {
    struct gpu_calls *calls;
    struct call_queue waiting;
    uint32_t count;    /* that wait, and the one that runs */
    uint64_t begun_ns; /* of the one that runs; 0: none does */
    bool has_thread;
    pthread_cond_t more;
};

struct gpu_calls {
    int done_fd;
    struct loop_watch *watch;
    pthread_mutex_t lock;
    pthread_cond_t ended; /* a thread has ended. With CLOCK_MONOTONIC */
    struct call_queue done;
    bool stopping;
    uint32_t threads;
    uint32_t line_count;
    struct gpu_line lines[]; /* of each GPU: one for each kind */
};

static struct gpu_line *line_of(struct gpu_calls *calls, uint32_t gpu, enum gpu_calls_kind kind)
{
    return &calls->lines[gpu * GPU_CALLS_KINDS + (uint32_t)kind];
}

static void queue_put(struct call_queue *queue, struct gpu_call *call)
{
    call->next = NULL;
    *queue->last = call;
    queue->last = &call->next;
}

static struct gpu_call *queue_take(struct call_queue *queue)
{
    struct gpu_call *first = queue->first;
    if (first != NULL) {
        queue->first = first->next;
        queue->last = queue->first == NULL ? &queue->first : queue->last;
    }
    return first;
}

/* --- Threads --- */

/* With the lock. */
static void run_one(struct gpu_line *line, struct gpu_call *call)
{
    struct gpu_calls *calls = line->calls;
    uint64_t one = 1;
    line->begun_ns = loop_now_ns();
    pthread_mutex_unlock(&calls->lock);
    call->run(call);
    pthread_mutex_lock(&calls->lock);
    line->begun_ns = 0;
    line->count--;
    queue_put(&calls->done, call);
    (void)!write(calls->done_fd, &one, sizeof one);
}

static void *serve(void *context)
{
    struct gpu_line *line = context;
    struct gpu_calls *calls = line->calls;
    pthread_mutex_lock(&calls->lock);
    for (;;) {
        struct gpu_call *call = queue_take(&line->waiting);
        if (call != NULL) {
            run_one(line, call);
        } else if (calls->stopping) {
            break;
        } else {
            pthread_cond_wait(&line->more, &calls->lock);
        }
    }
    calls->threads--;
    pthread_cond_broadcast(&calls->ended);
    pthread_mutex_unlock(&calls->lock);
    return NULL;
}

/* With the lock. */
static bool start_thread(struct gpu_line *line)
{
    pthread_t thread;
    if (!line->has_thread && thread_start(&thread, NULL, serve, line) == 0) {
        (void)pthread_setname_np(thread, "commd-gpu-calls");
        (void)pthread_detach(thread);
        line->calls->threads++;
        line->has_thread = true;
    }
    return line->has_thread;
}

/* --- The loop's thread --- */

static void tell(struct gpu_calls *calls)
{
    pthread_mutex_lock(&calls->lock);
    struct gpu_call *call = calls->done.first;
    calls->done = (struct call_queue){.last = &calls->done.first};
    pthread_mutex_unlock(&calls->lock);
    while (call != NULL) {
        struct gpu_call *next = call->next;
        call->done(call);
        call = next;
    }
}

static void on_done(void *context, unsigned events, uint64_t now_ns)
{
    struct gpu_calls *calls = context;
    uint64_t count;
    (void)events;
    (void)now_ns;
    (void)!read(calls->done_fd, &count, sizeof count);
    tell(calls);
}

static void calls_free(struct gpu_calls *calls)
{
    loop_watch_free(calls->watch);
    if (calls->done_fd >= 0) {
        (void)close(calls->done_fd);
    }
    for (uint32_t i = 0; i < calls->line_count; i++) {
        (void)pthread_cond_destroy(&calls->lines[i].more);
    }
    (void)pthread_cond_destroy(&calls->ended);
    (void)pthread_mutex_destroy(&calls->lock);
    free(calls);
}

static void calls_init(struct gpu_calls *calls, uint32_t line_count)
{
    thread_cond_init(&calls->ended);
    (void)pthread_mutex_init(&calls->lock, NULL);
    calls->done.last = &calls->done.first;
    calls->line_count = line_count;
    for (uint32_t i = 0; i < line_count; i++) {
        struct gpu_line *line = &calls->lines[i];
        line->calls = calls;
        line->waiting.last = &line->waiting.first;
        (void)pthread_cond_init(&line->more, NULL);
    }
}

enum status gpu_calls_start(struct gpu_devices *gpus, struct loop *loop, struct error *error)
{
    uint32_t line_count = gpus->count * GPU_CALLS_KINDS;
    struct gpu_calls *calls = calloc(1, sizeof *calls + line_count * sizeof calls->lines[0]);
    if (calls == NULL) {
        return error_set(error, STATUS_NO_MEMORY, "no memory for calls of the GPUs' driver");
    }
    calls_init(calls, line_count);
    calls->done_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    enum status status = calls->done_fd < 0 ? error_set_errno(error, errno, "eventfd")
                                            : loop_watch_new(loop, calls->done_fd, LOOP_READ, on_done, calls,
                                                             &calls->watch, error);
    if (status != STATUS_OK) {
        calls_free(calls);
        return status;
    }
    gpus->calls = calls;
    return STATUS_OK;
}

enum status gpu_calls_check(const struct gpu_devices *gpus, uint32_t gpu, enum gpu_calls_kind kind,
                            struct error *error)
{
    struct gpu_calls *calls = gpus->calls;
    if (calls == NULL) {
        return STATUS_OK;
    }
    const struct gpu_line *line = line_of(calls, gpu, kind);
    pthread_mutex_lock(&calls->lock);
    uint64_t begun_ns = line->begun_ns;
    uint32_t count = line->count;
    pthread_mutex_unlock(&calls->lock);
    if (begun_ns != 0 && loop_now_ns() - begun_ns > GPU_CALLS_LATE_NS) {
        return error_set(error, STATUS_DEVICE,
                         "GPU %u (%s): an earlier call of the driver, which opens or closes memory, has not "
                         "returned: perhaps a GPU's work does not end",
                         gpu, gpus->gpus[gpu].info.name);
    }
    return count < GPU_CALLS_MAX
               ? STATUS_OK
               : error_set(error, STATUS_LIMIT, "GPU %u (%s): %u memories wait to be opened or closed", gpu,
                           gpus->gpus[gpu].info.name, count);
}

void gpu_calls_put(struct gpu_devices *gpus, uint32_t gpu, enum gpu_calls_kind kind, struct gpu_call *call)
{
    struct gpu_calls *calls = gpus->calls;
    bool queued = false;
    if (calls != NULL) {
        struct gpu_line *line = line_of(calls, gpu, kind);
        pthread_mutex_lock(&calls->lock);
        queued = start_thread(line);
        if (queued) {
            line->count++;
            queue_put(&line->waiting, call);
            pthread_cond_signal(&line->more);
        }
        pthread_mutex_unlock(&calls->lock);
    }
    if (!queued) {
        long_call_begin();
        call->run(call);
        long_call_end();
        call->done(call);
    }
}

bool gpu_calls_end(struct gpu_devices *gpus)
{
    struct gpu_calls *calls = gpus->calls;
    struct timespec until;
    int waited = 0;
    if (calls == NULL) {
        return true;
    }
    (void)clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += END_S;
    pthread_mutex_lock(&calls->lock);
    calls->stopping = true;
    for (uint32_t i = 0; i < calls->line_count; i++) {
        pthread_cond_signal(&calls->lines[i].more);
    }
    while (calls->threads > 0 && waited == 0) {
        waited = pthread_cond_timedwait(&calls->ended, &calls->lock, &until);
    }
    bool ended = calls->threads == 0;
    pthread_mutex_unlock(&calls->lock);
    loop_watch_free(calls->watch);
    calls->watch = NULL;
    gpus->calls = ended ? NULL : calls; /* what the last calls lead to is done in place */
    tell(calls);
    if (ended) {
        calls_free(calls);
    }
    return ended;
}
