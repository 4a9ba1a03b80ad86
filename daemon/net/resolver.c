#include "daemon/net/resolver.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <utlist.h>

#include "daemon/base/descriptor.h"
#include "daemon/base/thread.h"

struct question {
    struct question *prev, *next;
    uint32_t id;
    bool is_service;
    bool found;
    struct srv_answer services; /* if is_service */
    char address[QUIC_ADDRESS_TEXT_MAX_BYTES];
    struct error why;
    char text[];
};

/* Shared with the threads, of which each holds a reference: a lookup cannot be interrupted. */
struct desk {
    pthread_mutex_t mutex;
    pthread_cond_t more;
    int family;
    resolver_lookup *lookup;
    resolver_lookup_services *lookup_services;
    int done_fd;
    /* Protected by the mutex. */
    unsigned references;
    bool stopping;
    unsigned threads, idle_threads;
    uint32_t count; /* of questions that have no answer yet */
    struct question *waiting, *done;
};

struct resolver {
    struct desk *desk;
    struct loop_watch *watch;
    resolver_function *done;
    resolver_services_function *services_done;
    void *context;
};

static void question_free(struct question *question)
{
    srv_answer_free(&question->services);
    free(question);
}

static void questions_free(struct question *questions)
{
    for (struct question *next, *each = questions; each != NULL; each = next) {
        next = each->next;
        question_free(each);
    }
}

static enum status look_up(const char *text, int family, char out[QUIC_ADDRESS_TEXT_MAX_BYTES],
                           struct error *error)
{
    struct quic_address address;
    enum status status = quic_address_resolve(text, family, &address, error);
    if (status == STATUS_OK) {
        (void)quic_address_text(&address, out);
    }
    return status;
}

/* --- The threads --- */

/* Call it with the mutex held, which it releases. */
static void desk_leave(struct desk *desk)
{
    bool last = --desk->references == 0;
    pthread_mutex_unlock(&desk->mutex);
    if (last) {
        questions_free(desk->waiting);
        questions_free(desk->done);
        descriptor_close(desk->done_fd);
        (void)pthread_cond_destroy(&desk->more);
        (void)pthread_mutex_destroy(&desk->mutex);
        free(desk);
    }
}

static void question_look_up(const struct desk *desk, struct question *question)
{
    enum status status = question->is_service
                             ? desk->lookup_services(question->text, &question->services, &question->why)
                             : desk->lookup(question->text, desk->family, question->address, &question->why);
    question->found = status == STATUS_OK;
}

static void *resolver_main(void *context)
{
    struct desk *desk = context;
    uint64_t one = 1;
    pthread_mutex_lock(&desk->mutex);
    while (!desk->stopping) {
        struct question *question = desk->waiting;
        if (question == NULL) {
            desk->idle_threads++;
            pthread_cond_wait(&desk->more, &desk->mutex);
            desk->idle_threads--;
            continue;
        }
        DL_DELETE(desk->waiting, question);
        pthread_mutex_unlock(&desk->mutex);
        question_look_up(desk, question);
        pthread_mutex_lock(&desk->mutex);
        DL_APPEND(desk->done, question);
        (void)!write(desk->done_fd, &one, sizeof one);
    }
    desk_leave(desk);
    return NULL;
}

/* Call it with the mutex held. */
static enum status start_thread(struct desk *desk, struct error *error)
{
    pthread_t thread;
    int failed = thread_start(&thread, NULL, resolver_main, desk);
    if (failed != 0) {
        return error_set(error, STATUS_SYSTEM, "a thread cannot be started: %s", strerror(failed));
    }
    (void)pthread_setname_np(thread, "commd-resolve");
    (void)pthread_detach(thread);
    desk->threads++;
    desk->references++;
    return STATUS_OK;
}

/* --- The loop's thread --- */

static void on_done(void *context, unsigned events, uint64_t now_ns)
{
    struct resolver *resolver = context;
    struct desk *desk = resolver->desk;
    uint64_t count;
    (void)events;
    (void)!read(desk->done_fd, &count, sizeof count);
    pthread_mutex_lock(&desk->mutex);
    struct question *next, *done = desk->done;
    desk->done = NULL;
    for (const struct question *each = done; each != NULL; each = each->next) {
        desk->count--;
    }
    pthread_mutex_unlock(&desk->mutex);
    for (; done != NULL; done = next) {
        next = done->next;
        if (done->is_service) {
            resolver->services_done(resolver->context, done->text, done->found ? &done->services : NULL,
                                    &done->why, now_ns);
        } else {
            resolver->done(resolver->context, done->id, done->text, done->found ? done->address : NULL,
                           &done->why, now_ns);
        }
        question_free(done);
    }
}

static struct desk *desk_new(const struct resolver_options *options)
{
    struct desk *desk = calloc(1, sizeof *desk);
    if (desk != NULL) {
        desk->family = options->family;
        desk->lookup = options->lookup != NULL ? options->lookup : look_up;
        desk->lookup_services = options->lookup_services != NULL ? options->lookup_services : srv_lookup;
        desk->references = 1;
        (void)pthread_mutex_init(&desk->mutex, NULL);
        (void)pthread_cond_init(&desk->more, NULL);
        desk->done_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    }
    return desk;
}

enum status resolver_new(const struct resolver_options *options, struct resolver **out, struct error *error)
{
    struct resolver *resolver = calloc(1, sizeof *resolver);
    struct desk *desk = desk_new(options);
    enum status status = STATUS_OK;
    if (resolver == NULL || desk == NULL) {
        status = error_set(error, STATUS_NO_MEMORY, "no memory for finding addresses");
    } else if (desk->done_fd < 0) {
        status = error_set_errno(error, errno, "eventfd");
    } else {
        resolver->done = options->done;
        resolver->services_done = options->services_done;
        resolver->context = options->context;
        status = loop_watch_new(options->loop, desk->done_fd, LOOP_READ, on_done, resolver, &resolver->watch,
                                error);
    }
    if (status != STATUS_OK) {
        free(resolver);
        if (desk != NULL) {
            pthread_mutex_lock(&desk->mutex);
            desk_leave(desk);
        }
        return status;
    }
    resolver->desk = desk;
    *out = resolver;
    return STATUS_OK;
}

void resolver_free(struct resolver *resolver)
{
    if (resolver == NULL) {
        return;
    }
    struct desk *desk = resolver->desk;
    loop_watch_free(resolver->watch);
    pthread_mutex_lock(&desk->mutex);
    desk->stopping = true;
    pthread_cond_broadcast(&desk->more);
    desk_leave(desk);
    free(resolver);
}

static enum status ask(struct resolver *resolver, uint32_t id, const char *text, bool is_service,
                       struct error *error)
{
    struct desk *desk = resolver->desk;
    size_t size = strlen(text) + 1;
    struct question *question = calloc(1, sizeof *question + size);
    if (question == NULL) {
        return error_set(error, STATUS_NO_MEMORY, "no memory for finding the address \"%s\"", text);
    }
    question->id = id;
    question->is_service = is_service;
    memcpy(question->text, text, size);
    enum status status = STATUS_OK;
    pthread_mutex_lock(&desk->mutex);
    if (desk->count >= RESOLVER_QUESTIONS_MAX) {
        status =
            error_set(error, STATUS_LIMIT, "%u names are being resolved, which is the limit", desk->count);
    } else if (desk->idle_threads == 0 && desk->threads < RESOLVER_THREADS_MAX) {
        struct error why;
        status = start_thread(desk, &why);
        if (status != STATUS_OK && desk->threads == 0) {
            error_set(error, status, "%s", why.text);
        } else {
            status = STATUS_OK; /* an earlier thread answers */
        }
    }
    if (status == STATUS_OK) {
        desk->count++;
        DL_APPEND(desk->waiting, question);
        pthread_cond_signal(&desk->more);
    }
    pthread_mutex_unlock(&desk->mutex);
    if (status != STATUS_OK) {
        free(question);
    }
    return status;
}

enum status resolver_ask(struct resolver *resolver, uint32_t id, const char *text, struct error *error)
{
    return ask(resolver, id, text, false, error);
}

enum status resolver_ask_services(struct resolver *resolver, const char *name, struct error *error)
{
    return ask(resolver, 0, name, true, error);
}
