#include <stdlib.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "client/lib/internal.h"

/* How completions are taken out of a queue, and how a thread waits for them. */

/* Its address tells threads apart. */
static _Thread_local char this_thread;

static comm_result_t check_arguments(const struct comm_queue *queue, const comm_completion_t *completions,
                                     size_t most, const size_t *count)
{
    const char *missing = queue == NULL         ? "queue"
                          : completions == NULL ? "argument for the completions"
                          : count == NULL       ? "argument for their number"
                                                : NULL;
    if (missing != NULL) {
        return error_report(COMM_INVALID_ARGUMENT, "comm_queue_next: the %s is a null pointer", missing);
    }
    if (most == 0) {
        return error_report(COMM_INVALID_ARGUMENT, "comm_queue_next: there is no room for a completion");
    }
    if (group_is_open()) {
        return error_report(COMM_INVALID_ARGUMENT,
                            "comm_queue_next: a group is open: a call cannot wait before comm_group_end");
    }
    return COMM_OK;
}

/* --- Waiting --- */

/* Wakes for which no other thread waits count as one. */
static bool take_wake(struct comm_queue *queue)
{
    uint32_t wakes = atomic_load(&queue->wakes);
    while (wakes > 0 &&
           !atomic_compare_exchange_weak(&queue->wakes, &wakes, queue->sleepers > 0 ? wakes - 1 : 0)) {
    }
    if (wakes > 0) {
        queue_quiet(queue);
    }
    return wakes > 0;
}

static void check_late(struct comm_queue *queue)
{
    if (queue->first != NULL || queue->pending == 0) {
        return;
    }
    uint64_t now_ns = clock_ns();
    if (queue->idle_since_ns == 0) {
        queue->idle_since_ns = queue->looked_late_ns = now_ns;
    } else if (now_ns - queue->looked_late_ns >= QUEUE_LOOK_LATE_NS) {
        queue->looked_late_ns = now_ns;
        ops_check_late(queue->client, queue, queue->idle_since_ns);
    }
}

/* While operations are pending, a program that polls must come back to look at commd's heartbeat. */
static void set_timer(struct comm_queue *queue)
{
    uint64_t now_ns = clock_ns();
    uint64_t expirations;
    if (now_ns < queue->timer_ends_ns) {
        return;
    }
    if (queue->timer_ends_ns != 0) {
        (void)!read(queue->timer_fd, &expirations, sizeof expirations);
        queue->timer_ends_ns = 0;
    }
    if (queue->pending > 0) {
        struct itimerspec in = {.it_value = {.tv_nsec = (long)HEART_LOOK_NS}};
        (void)timerfd_settime(queue->timer_fd, 0, &in, NULL);
        queue->timer_ends_ns = now_ns + HEART_LOOK_NS;
    }
}

/* Looks for what has come. If there is nothing, looks once more; `arms`: and arms the descriptor before. */
static void look(struct comm_queue *queue, bool arms)
{
    struct comm_client *client = queue->client;
    client_take_events(client);
    held_feed(client);
    if (queue->first != NULL) {
        return;
    }
    queue->armed = queue->armed || arms;
    client_take_all(client);
    if (queue->armed) {
        client_arm(client);
        set_timer(queue);
    }
    check_late(queue);
}

/* Waits for a completion, or another reason to return. May release the lock. */
static comm_result_t await(struct comm_queue *queue, uint32_t timeout_ms)
{
    struct comm_client *client = queue->client;
    uint64_t deadline_ns = timeout_ms == 0                 ? 0
                           : timeout_ms == COMM_NO_TIMEOUT ? UINT64_MAX
                                                           : clock_after_ms(timeout_ms);
    for (bool looked = false;;) {
        bool woken = take_wake(queue);
        if (queue->first != NULL || woken) {
            return COMM_OK;
        }
        if (client->lost != COMM_OK && queue->pending == 0) {
            return error_repeat(client->lost, client->lost_text);
        }
        if (looked) {
            return error_repeat(COMM_TIMED_OUT, "comm_queue_next: no operation has ended in this time");
        }
        if (timeout_ms == 0 || (timeout_ms != COMM_NO_TIMEOUT && clock_ns() >= deadline_ns)) {
            look(queue, timeout_ms == 0);
            looked = true;
        } else {
            client_progress_queue(client, queue, deadline_ns);
            check_late(queue);
        }
    }
}

/* --- Taking --- */

/* Frees the failures that this thread was given by its last call. */
static void forget_told(struct comm_queue *queue)
{
    for (struct client_failure **link = &queue->told; *link != NULL;) {
        struct client_failure *failure = *link;
        if (failure->owner == &this_thread) {
            *link = failure->next;
            free(failure);
        } else {
            link = &failure->next;
        }
    }
}

static void fill(struct comm_queue *queue, const struct client_op *op, comm_completion_t *completion)
{
    const struct queue_place *place = &op->place;
    *completion =
        (comm_completion_t){.cookie = place->cookie, .result = place->result, .received = place->received};
    if (place->result == COMM_OK) {
        return;
    }
    completion->failure = failure_plain(place->result);
    if (place->failure != NULL) {
        place->failure->owner = &this_thread;
        place->failure->next = queue->told;
        queue->told = place->failure;
        completion->failure = &place->failure->data;
    }
    (void)error_repeat_failure(completion->failure, completion->failure->text);
}

/* The handle of a persistent operation can be started again. */
static void rest_handle(struct client_op *op)
{
    if (op->request != NULL) {
        op->request->op = NULL;
        op->request = NULL;
    }
}

/* Takes operations out, and fills their completions. Returns those whose outputs must still be copied. */
static struct client_op *take(struct comm_queue *queue, comm_completion_t *completions, size_t most,
                              size_t *count)
{
    struct client_op *copied = NULL;
    while (queue->first != NULL && *count < most) {
        struct client_op *op = queue->first;
        queue->first = op->place.next;
        fill(queue, op, &completions[(*count)++]);
        if (op->copy_count > 0) {
            op->place.next = copied;
            copied = op;
        } else {
            rest_handle(op);
            free(op);
        }
    }
    return copied;
}

/* Releases the lock while it copies: no other thread knows these operations. */
static void copy_out(struct comm_client *client, struct client_op *copied)
{
    if (copied == NULL) {
        return;
    }
    client_leave(client);
    for (const struct client_op *op = copied; op != NULL; op = op->place.next) {
        op_copy_out(op);
    }
    pthread_mutex_lock(&client->lock);
    while (copied != NULL) {
        struct client_op *op = copied;
        copied = op->place.next;
        rest_handle(op);
        op_free(client, op, true);
    }
}

comm_result_t comm_queue_next(comm_queue_t *queue, comm_completion_t *completions, size_t most, size_t *count,
                              uint32_t timeout_ms)
{
    comm_result_t result = check_arguments(queue, completions, most, count);
    if (result != COMM_OK) {
        return result;
    }
    *count = 0;
    struct comm_client *client = queue->client;
    result = client_enter(client);
    if (result != COMM_OK) {
        return result;
    }
    forget_told(queue);
    result = await(queue, timeout_ms);
    struct client_op *copied = take(queue, completions, most, count);
    if (queue->first != NULL || (queue->sleepers > 0 && !client->reading)) {
        queue_signal(queue);
    } else if (queue->signalled) {
        queue_quiet(queue);
    }
    copy_out(client, copied);
    client_leave(client);
    return result;
}
