#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "client/lib/internal.h"

/* Completion queues: see queue.h. Here is how a queue is made and ended, and how operations come into it;
 * queue_next.c takes them out. */

/* --- Making and ending --- */

static void queue_free(struct comm_queue *queue)
{
    int fds[] = {queue->epoll_fd, queue->event_fd, queue->timer_fd};
    for (size_t i = 0; i < sizeof fds / sizeof *fds; i++) {
        if (fds[i] >= 0) {
            close(fds[i]);
        }
    }
    while (queue->told != NULL) {
        struct client_failure *next = queue->told->next;
        free(queue->told);
        queue->told = next;
    }
    free(queue);
}

static bool watch(const struct comm_queue *queue, int fd)
{
    struct epoll_event event = {.events = EPOLLIN};
    return epoll_ctl(queue->epoll_fd, EPOLL_CTL_ADD, fd, &event) == 0;
}

/* Returns null, with errno set. */
static struct comm_queue *queue_new(struct comm_client *client)
{
    struct comm_queue *queue = calloc(1, sizeof *queue);
    if (queue == NULL) {
        return NULL;
    }
    queue->client = client;
    queue->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    queue->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    queue->timer_fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    if (queue->epoll_fd < 0 || queue->event_fd < 0 || queue->timer_fd < 0 || !watch(queue, client->fd) ||
        !watch(queue, queue->event_fd) || !watch(queue, queue->timer_fd) ||
        (client->rings != NULL && !watch(queue, client->rings->bell_fd))) {
        int reason = errno;
        queue_free(queue);
        errno = reason;
        return NULL;
    }
    return queue;
}

comm_result_t comm_queue_create(comm_client_t *client, comm_queue_t **out)
{
    if (out == NULL) {
        return error_report(COMM_INVALID_ARGUMENT,
                            "comm_queue_create: the argument for the queue is a null pointer");
    }
    *out = NULL;
    comm_result_t result = client_enter(client);
    if (result != COMM_OK) {
        return result;
    }
    struct comm_queue *queue = NULL;
    if (client->lost != COMM_OK) {
        result = error_repeat(client->lost, client->lost_text);
    } else if ((queue = queue_new(client)) == NULL) {
        int reason = errno;
        bool full = reason == EMFILE || reason == ENFILE || reason == ENOSPC;
        result = error_report(full               ? COMM_LIMIT
                              : reason == ENOMEM ? COMM_NO_MEMORY
                                                 : COMM_SYSTEM,
                              "comm_queue_create: a queue needs three descriptors: %s", strerror(reason));
    } else {
        queue->next = client->queues;
        client->queues = queue;
    }
    client_leave(client);
    *out = queue;
    return result;
}

int comm_queue_fd(const comm_queue_t *queue)
{
    return queue != NULL ? queue->epoll_fd : -1;
}

/* Lets go of all operations, those that have ended included. */
static void queue_empty(struct comm_queue *queue)
{
    struct comm_client *client = queue->client;
    for (struct comm_comm *comm = client->comms; comm != NULL; comm = comm->next) {
        for (struct client_op *op = comm->ops; op != NULL; op = op->next) {
            if (op->place.queue == queue) {
                queue_detach(op);
            }
        }
    }
    while (queue->first != NULL) {
        struct client_op *op = queue->first;
        queue->first = op->place.next;
        queue_detach(op);
        free(op->place.failure);
        op_free(client, op, true);
    }
    queue->last = NULL;
}

static void queue_end(struct comm_queue *queue)
{
    struct comm_queue **link = &queue->client->queues;
    while (*link != queue) {
        link = &(*link)->next;
    }
    *link = queue->next;
    queue_empty(queue);
    queue_free(queue);
}

void comm_queue_destroy(comm_queue_t *queue)
{
    if (queue == NULL || client_enter(queue->client) != COMM_OK) {
        return;
    }
    struct comm_client *client = queue->client;
    queue_end(queue);
    client_leave(client);
}

void queues_free_all(struct comm_client *client)
{
    while (client->queues != NULL) {
        queue_end(client->queues);
    }
}

/* --- Operations that come in --- */

comm_result_t queue_check(const struct comm_comm *comm, const struct client_call *call)
{
    const struct comm_queue *wanted = call->options.queue;
    const struct comm_queue *queue = comm->client->queues;
    while (queue != NULL && queue != wanted) {
        queue = queue->next;
    }
    return wanted == NULL || queue != NULL
               ? COMM_OK
               : error_report(COMM_INVALID_ARGUMENT,
                              "%s on \"%s\": the queue was destroyed, or belongs to another client",
                              call->name, comm->name);
}

void queue_expect(struct client_op *op, const struct client_call *call)
{
    op->place.queue = call->options.queue;
    op->place.cookie = call->options.cookie;
    if (op->place.queue != NULL) {
        op->place.queue->pending++;
    }
}

static void show(struct comm_queue *queue, struct client_op *op)
{
    op->place.next = NULL;
    if (queue->first == NULL) {
        queue->first = op;
    } else {
        queue->last->place.next = op;
    }
    queue->last = op;
    if (queue != queue->client->served) {
        queue_signal(queue);
    }
}

void queue_add(struct client_op *op)
{
    struct comm_queue *queue = op->place.queue;
    queue->idle_since_ns = 0;
    op->place.ended = true;
    if (!op->place.withheld) {
        queue->pending--;
        show(queue, op);
    }
}

void queue_detach(struct client_op *op)
{
    op->place.queue->pending -= !op->place.ended;
    op->place.queue = NULL;
    if (op->request != NULL) {
        op->request->op = NULL;
        op->request = NULL;
    }
}

void queue_settle(struct client_op *op, bool kept)
{
    struct comm_queue *queue = op->place.queue;
    if (queue == NULL) {
        return; /* it was destroyed */
    }
    op->place.withheld = false;
    if (op->place.ended) {
        queue->pending--;
    }
    if (kept && op->place.ended) {
        show(queue, op);
    } else if (!kept) {
        bool ended = op->place.ended;
        queue_detach(op);
        if (ended) {
            free(op->place.failure);
            op_free(queue->client, op, true);
        }
    }
}

/* --- Who waits --- */

void queue_signal(struct comm_queue *queue)
{
    uint64_t one = 1;
    if (!queue->signalled && (queue->armed || queue->sleepers > 0)) {
        queue->signalled = true;
        (void)!write(queue->event_fd, &one, sizeof one); /* if it is full, it is readable anyway */
    }
}

void queue_quiet(struct comm_queue *queue)
{
    uint64_t count;
    (void)!read(queue->event_fd, &count, sizeof count);
    queue->signalled = false;
    if (atomic_load(&queue->wakes) > 0) {
        queue_signal(queue);
    }
}

void comm_queue_wake(comm_queue_t *queue)
{
    uint64_t one = 1;
    int reason = errno;
    if (queue != NULL) {
        atomic_fetch_add(&queue->wakes, 1);
        (void)!write(queue->event_fd, &one, sizeof one);
    }
    errno = reason; /* a signal handler must not change it */
}

void queues_reading_ended(struct comm_client *client)
{
    bool armed = false;
    for (struct comm_queue *queue = client->queues; queue != NULL; queue = queue->next) {
        if (queue->sleepers > 0) {
            queue_signal(queue);
        }
        armed = armed || queue->armed;
    }
    if (armed) {
        client_arm(client);
    }
}
