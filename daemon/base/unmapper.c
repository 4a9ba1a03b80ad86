#include "daemon/base/unmapper.h"

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <utlist.h>

#include "daemon/base/descriptor.h"
#include "daemon/base/thread.h"

struct unmapper {
    pthread_t thread;
    bool has_thread;
    int done_fd;
    struct loop_watch *watch;
    pthread_mutex_t mutex;
    pthread_cond_t more;
    /* Protected by the mutex. */
    bool stopping;
    struct unmapping *waiting, *done;
};

/* --- The thread --- */

static bool is_stopping(struct unmapper *unmapper)
{
    pthread_mutex_lock(&unmapper->mutex);
    bool stopping = unmapper->stopping;
    pthread_mutex_unlock(&unmapper->mutex);
    return stopping;
}

static void rest(uint64_t time_ns)
{
    struct timespec pause = {.tv_nsec =
                                 (long)(time_ns < UNMAPPER_REST_MAX_NS ? time_ns : UNMAPPER_REST_MAX_NS)};
    (void)nanosleep(&pause, NULL);
}

static void unmap_in_pieces(struct unmapper *unmapper, const struct unmapping *unmapping)
{
    uint64_t piece_bytes = UNMAPPER_PIECE_BYTES;
    uint64_t at = 0;
    while (at < unmapping->size_bytes && !is_stopping(unmapper)) {
        uint64_t left_bytes = unmapping->size_bytes - at;
        uint64_t begun_ns = loop_now_ns();
        piece_bytes = piece_bytes > unmapping->unit_bytes ? piece_bytes : unmapping->unit_bytes;
        piece_bytes = left_bytes < piece_bytes ? left_bytes : piece_bytes;
        (void)munmap((unsigned char *)unmapping->base + at, piece_bytes);
        at += piece_bytes;
        uint64_t took_ns = loop_now_ns() - begun_ns;
        bool is_quick = took_ns < UNMAPPER_QUICK_NS;
        if (!is_quick && at < unmapping->size_bytes) {
            rest(took_ns);
        }
        piece_bytes = is_quick ? 2 * piece_bytes : UNMAPPER_PIECE_BYTES;
        piece_bytes = piece_bytes < UNMAPPER_PIECE_MAX_BYTES ? piece_bytes : UNMAPPER_PIECE_MAX_BYTES;
    }
}

static void say_done(struct unmapper *unmapper, struct unmapping *unmapping)
{
    uint64_t one = 1;
    pthread_mutex_lock(&unmapper->mutex);
    DL_APPEND(unmapper->done, unmapping);
    pthread_mutex_unlock(&unmapper->mutex);
    (void)!write(unmapper->done_fd, &one, sizeof one);
}

static void *unmapper_main(void *context)
{
    struct unmapper *unmapper = context;
    pthread_mutex_lock(&unmapper->mutex);
    while (!unmapper->stopping) {
        struct unmapping *unmapping = unmapper->waiting;
        if (unmapping == NULL) {
            pthread_cond_wait(&unmapper->more, &unmapper->mutex);
            continue;
        }
        DL_DELETE(unmapper->waiting, unmapping);
        pthread_mutex_unlock(&unmapper->mutex);
        unmap_in_pieces(unmapper, unmapping);
        say_done(unmapper, unmapping);
        pthread_mutex_lock(&unmapper->mutex);
    }
    pthread_mutex_unlock(&unmapper->mutex);
    return NULL;
}

/* --- The loop's thread --- */

static void tell(struct unmapping *unmapping)
{
    while (unmapping != NULL) {
        struct unmapping *next = unmapping->next;
        unmapping->done(unmapping->context);
        unmapping = next;
    }
}

static void on_done(void *context, unsigned events, uint64_t now_ns)
{
    struct unmapper *unmapper = context;
    uint64_t count;
    (void)events;
    (void)now_ns;
    (void)!read(unmapper->done_fd, &count, sizeof count);
    pthread_mutex_lock(&unmapper->mutex);
    struct unmapping *done = unmapper->done;
    unmapper->done = NULL;
    pthread_mutex_unlock(&unmapper->mutex);
    tell(done);
}

static enum status start_thread(struct unmapper *unmapper, struct error *error)
{
    int failed = thread_start(&unmapper->thread, NULL, unmapper_main, unmapper);
    if (failed != 0) {
        return error_set(error, STATUS_SYSTEM, "a thread cannot be started: %s", strerror(failed));
    }
    unmapper->has_thread = true;
    (void)pthread_setname_np(unmapper->thread, "commd-unmap");
    return STATUS_OK;
}

enum status unmapper_new(struct loop *loop, struct unmapper **out, struct error *error)
{
    struct unmapper *unmapper = calloc(1, sizeof *unmapper);
    if (unmapper == NULL) {
        return error_set(error, STATUS_NO_MEMORY, "no memory for a thread");
    }
    (void)pthread_mutex_init(&unmapper->mutex, NULL);
    (void)pthread_cond_init(&unmapper->more, NULL);
    unmapper->done_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    enum status status = STATUS_OK;
    if (unmapper->done_fd < 0) {
        status = error_set_errno(error, errno, "eventfd");
    }
    if (status == STATUS_OK) {
        status =
            loop_watch_new(loop, unmapper->done_fd, LOOP_READ, on_done, unmapper, &unmapper->watch, error);
    }
    if (status == STATUS_OK) {
        status = start_thread(unmapper, error);
    }
    if (status != STATUS_OK) {
        unmapper_free(unmapper);
        return status;
    }
    *out = unmapper;
    return STATUS_OK;
}

void unmapper_free(struct unmapper *unmapper)
{
    if (unmapper == NULL) {
        return;
    }
    if (unmapper->has_thread) {
        pthread_mutex_lock(&unmapper->mutex);
        unmapper->stopping = true;
        pthread_cond_signal(&unmapper->more);
        pthread_mutex_unlock(&unmapper->mutex);
        (void)pthread_join(unmapper->thread, NULL);
    }
    tell(unmapper->done);
    tell(unmapper->waiting);
    loop_watch_free(unmapper->watch);
    descriptor_close(unmapper->done_fd);
    (void)pthread_cond_destroy(&unmapper->more);
    (void)pthread_mutex_destroy(&unmapper->mutex);
    free(unmapper);
}

void unmapper_put(struct unmapper *unmapper, struct unmapping *unmapping)
{
    if (unmapper == NULL || unmapping->size_bytes <= UNMAPPER_IN_PLACE_MAX_BYTES) {
        (void)munmap(unmapping->base, unmapping->size_bytes);
        unmapping->done(unmapping->context);
        return;
    }
    pthread_mutex_lock(&unmapper->mutex);
    DL_APPEND(unmapper->waiting, unmapping);
    pthread_cond_signal(&unmapper->more);
    pthread_mutex_unlock(&unmapper->mutex);
}
