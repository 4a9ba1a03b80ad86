#include "daemon/base/dying.h"

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <utlist.h>

#include "daemon/base/descriptor.h"
#include "daemon/base/log.h"
#include "daemon/base/thread.h"
#include "daemon/base/time.h"

#ifndef SYS_process_mrelease
#define SYS_process_mrelease 448 /* on every architecture; older headers lack it */
#endif

struct dying_process {
    struct dying_process *prev, *next;
    struct dying *dying;
    int pidfd;
    void (*seen)(void *context, uint64_t now_ns);
    void *context;
    /* Protected by the mutex. */
    bool looked_at; /* the thread looks at it, and frees it if it is forgotten meanwhile */
    bool forgotten;
    bool is_dying; /* it is in `seen`, not in `watched` */
};

struct dying {
    pthread_t thread;
    bool has_thread;
    int seen_fd;
    struct loop_watch *watch;
    pthread_mutex_t mutex;
    pthread_cond_t more;
    /* Protected by the mutex. */
    bool stopping;
    bool useless; /* the kernel does not tell */
    struct dying_process *watched, *seen;
};

/* --- The thread --- */

enum answer { LIVES, DIES, UNKNOWN };

static enum answer ask(int pidfd)
{
    if (syscall(SYS_process_mrelease, pidfd, 0) == 0) {
        return DIES;
    }
    switch (errno) {
    case ESRCH:  /* it has no memory left to give back */
    case EAGAIN: /* what it has could not be given back now */
        return DIES;
    case EINVAL: /* it lives */
    case EBADF:  /* it was forgotten before the call */
    case EINTR:  /* commd itself is being killed */
        return LIVES;
    default: /* ENOSYS, or the errno of a filter of system calls */
        return UNKNOWN;
    }
}

/* Looks at the first process, and puts it behind the others. The mutex is held, but not during the look. */
static void look(struct dying *dying)
{
    struct dying_process *process = dying->watched;
    uint64_t one = 1;
    DL_DELETE(dying->watched, process);
    DL_APPEND(dying->watched, process);
    process->looked_at = true;
    pthread_mutex_unlock(&dying->mutex);
    enum answer answer = ask(process->pidfd);
    pthread_mutex_lock(&dying->mutex);
    process->looked_at = false;
    if (process->forgotten) {
        free(process);
    } else if (answer == DIES) {
        DL_DELETE(dying->watched, process);
        DL_APPEND(dying->seen, process);
        process->is_dying = true;
        (void)!write(dying->seen_fd, &one, sizeof one);
    }
    dying->useless = dying->useless || answer == UNKNOWN;
}

static void *dying_main(void *context)
{
    struct dying *dying = context;
    pthread_mutex_lock(&dying->mutex);
    while (!dying->stopping && !dying->useless) {
        const struct dying_process *process;
        size_t count;
        uint64_t begun_ns = loop_now_ns();
        DL_COUNT(dying->watched, process, count);
        if (count == 0) {
            pthread_cond_wait(&dying->more, &dying->mutex);
            continue;
        }
        for (; count > 0 && dying->watched != NULL && !dying->stopping && !dying->useless; count--) {
            look(dying);
        }
        uint64_t now_ns = loop_now_ns();
        uint64_t rest_ns = DYING_REST_FACTOR * (now_ns - begun_ns);
        rest_ns = rest_ns > DYING_LOOK_NS ? rest_ns : DYING_LOOK_NS;
        uint64_t until_ns = now_ns + (rest_ns < TIME_S ? rest_ns : TIME_S);
        struct timespec until = {.tv_sec = (time_t)(until_ns / TIME_S), .tv_nsec = (long)(until_ns % TIME_S)};
        while (!dying->stopping && pthread_cond_timedwait(&dying->more, &dying->mutex, &until) == 0) {
        }
    }
    pthread_mutex_unlock(&dying->mutex);
    return NULL;
}

/* --- The loop's thread --- */

static void on_seen(void *context, unsigned events, uint64_t now_ns)
{
    struct dying *dying = context;
    uint64_t count;
    (void)events;
    (void)!read(dying->seen_fd, &count, sizeof count);
    for (;;) {
        pthread_mutex_lock(&dying->mutex);
        struct dying_process *process = dying->seen;
        if (process != NULL) {
            DL_DELETE(dying->seen, process);
        }
        pthread_mutex_unlock(&dying->mutex);
        if (process == NULL) {
            return;
        }
        process->prev = NULL; /* it is in no list */
        process->seen(process->context, now_ns);
    }
}

static enum status make(struct loop *loop, struct dying *dying, struct error *error)
{
    (void)pthread_mutex_init(&dying->mutex, NULL);
    thread_cond_init(&dying->more);
    dying->seen_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    return dying->seen_fd < 0
               ? error_set_errno(error, errno, "eventfd")
               : loop_watch_new(loop, dying->seen_fd, LOOP_READ, on_seen, dying, &dying->watch, error);
}

enum status dying_new(struct loop *loop, struct dying **out, struct error *error)
{
    struct dying *dying = calloc(1, sizeof *dying);
    if (dying == NULL) {
        return error_set(error, STATUS_NO_MEMORY, "no memory for a thread");
    }
    enum status status = make(loop, dying, error);
    if (status != STATUS_OK) {
        dying_free(dying);
        return status;
    }
    *out = dying;
    return STATUS_OK;
}

void dying_free(struct dying *dying)
{
    if (dying == NULL) {
        return;
    }
    if (dying->has_thread) {
        pthread_mutex_lock(&dying->mutex);
        dying->stopping = true;
        pthread_cond_signal(&dying->more);
        pthread_mutex_unlock(&dying->mutex);
        (void)pthread_join(dying->thread, NULL);
    }
    loop_watch_free(dying->watch);
    descriptor_close(dying->seen_fd);
    (void)pthread_cond_destroy(&dying->more);
    (void)pthread_mutex_destroy(&dying->mutex);
    free(dying);
}

static bool start_thread(struct dying *dying)
{
    if (!dying->has_thread) {
        int failed = thread_start(&dying->thread, NULL, dying_main, dying);
        if (failed != 0) {
            log_debug("no thread looks for dying processes: %s", strerror(failed));
            return false;
        }
        dying->has_thread = true;
        (void)pthread_setname_np(dying->thread, "commd-dying");
    }
    return true;
}

struct dying_process *dying_watch(struct dying *dying, int pidfd,
                                  void (*seen)(void *context, uint64_t now_ns), void *context)
{
    struct dying_process *process = dying == NULL || pidfd < 0 ? NULL : calloc(1, sizeof *process);
    if (process == NULL || !start_thread(dying)) {
        free(process);
        return NULL;
    }
    *process = (struct dying_process){.dying = dying, .pidfd = pidfd, .seen = seen, .context = context};
    pthread_mutex_lock(&dying->mutex);
    bool wakes = dying->watched == NULL;
    DL_APPEND(dying->watched, process);
    if (wakes) {
        pthread_cond_signal(&dying->more);
    }
    pthread_mutex_unlock(&dying->mutex);
    return process;
}

void dying_forget(struct dying_process *process)
{
    if (process == NULL) {
        return;
    }
    struct dying *dying = process->dying;
    pthread_mutex_lock(&dying->mutex);
    if (!process->is_dying) {
        DL_DELETE(dying->watched, process);
    } else if (process->prev != NULL) {
        DL_DELETE(dying->seen, process);
    }
    process->forgotten = true;
    bool is_mine = !process->looked_at;
    pthread_mutex_unlock(&dying->mutex);
    if (is_mine) {
        free(process);
    }
}
