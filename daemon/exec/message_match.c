#include <stdlib.h>

#include <utlist.h>

#include "daemon/exec/exec_internal.h"

/*
 * Which receive takes which message, in constant time however many wait: a queue for each (receiver, source,
 * tag), and one more of the messages of all sources for receives that take any. In each of them the oldest is
 * the first.
 */

struct message_queue {
    struct message_queue_key {
        uint32_t rank, source, tag;
    } key;
    struct exec_posted *receives;
    struct exec_arrival *arrivals; /* linked by of_source, or of_any where the source is any */
    UT_hash_handle hh;
};

static struct message_queue *queue_find(const struct exec_comm *comm, uint32_t rank, uint32_t source,
                                        uint32_t tag)
{
    const struct message_queue_key key = {.rank = rank, .source = source, .tag = tag};
    struct message_queue *queue;
    HASH_FIND(hh, comm->messages.queues_by_key, &key, sizeof key, queue);
    return queue;
}

/* Null without memory. */
static struct message_queue *queue_make(struct exec_comm *comm, uint32_t rank, uint32_t source, uint32_t tag)
{
    struct message_queue *queue = queue_find(comm, rank, source, tag);
    if (queue == NULL) {
        queue = calloc(1, sizeof *queue);
        if (queue != NULL) {
            queue->key = (struct message_queue_key){.rank = rank, .source = source, .tag = tag};
            HASH_ADD(hh, comm->messages.queues_by_key, key, sizeof queue->key, queue);
        }
        if (queue != NULL && !table_has(queue, hh)) {
            free(queue);
            queue = NULL;
        }
    }
    return queue;
}

static void queue_free_if_empty(struct exec_comm *comm, struct message_queue *queue)
{
    if (queue->receives == NULL && queue->arrivals == NULL) {
        HASH_DEL(comm->messages.queues_by_key, queue);
        free(queue);
    }
}

bool message_match_add_receive(struct exec_comm *comm, struct exec_posted *receive)
{
    const struct exec_message *call = &receive->call;
    struct message_queue *queue = queue_make(comm, call->rank, call->peer_rank, call->tag);
    if (queue == NULL) {
        return false;
    }
    receive->queue = queue;
    receive->number = ++comm->messages.last_number;
    DL_APPEND2(queue->receives, receive, match_prev, match_next);
    return true;
}

void message_match_remove_receive(struct exec_comm *comm, struct exec_posted *receive)
{
    struct message_queue *queue = receive->queue;
    if (queue != NULL) {
        receive->queue = NULL;
        DL_DELETE2(queue->receives, receive, match_prev, match_next);
        queue_free_if_empty(comm, queue);
    }
}

struct exec_posted *message_match_receive(const struct exec_comm *comm, const struct exec_arrival *arrival)
{
    const struct message_queue *exact =
        queue_find(comm, arrival->to_rank, arrival->source_rank, arrival->tag);
    const struct message_queue *any = queue_find(comm, arrival->to_rank, COMM_ANY_SOURCE_RANK, arrival->tag);
    struct exec_posted *one = exact != NULL ? exact->receives : NULL;
    struct exec_posted *other = any != NULL ? any->receives : NULL;
    struct exec_posted *oldest = one == NULL || (other != NULL && other->number < one->number) ? other : one;
    return oldest != NULL && oldest->state == MESSAGE_POSTED ? oldest : NULL;
}

bool message_match_add_arrival(struct exec_comm *comm, struct exec_arrival *arrival)
{
    struct message_queue *exact = queue_make(comm, arrival->to_rank, arrival->source_rank, arrival->tag);
    struct message_queue *any = queue_make(comm, arrival->to_rank, COMM_ANY_SOURCE_RANK, arrival->tag);
    if (exact == NULL || any == NULL) {
        if (exact != NULL) {
            queue_free_if_empty(comm, exact);
        }
        if (any != NULL) {
            queue_free_if_empty(comm, any);
        }
        return false;
    }
    DL_APPEND2(exact->arrivals, arrival, of_source_prev, of_source_next);
    DL_APPEND2(any->arrivals, arrival, of_any_prev, of_any_next);
    DL_APPEND(comm->messages.arrivals, arrival);
    return true;
}

struct exec_arrival *message_match_take_arrival(struct exec_comm *comm, const struct exec_posted *receive)
{
    const struct exec_message *call = &receive->call;
    const struct message_queue *queue = queue_find(comm, call->rank, call->peer_rank, call->tag);
    struct exec_arrival *arrival = queue != NULL ? queue->arrivals : NULL;
    if (arrival != NULL) {
        struct message_queue *exact = queue_find(comm, arrival->to_rank, arrival->source_rank, arrival->tag);
        struct message_queue *any = queue_find(comm, arrival->to_rank, COMM_ANY_SOURCE_RANK, arrival->tag);
        DL_DELETE2(exact->arrivals, arrival, of_source_prev, of_source_next);
        DL_DELETE2(any->arrivals, arrival, of_any_prev, of_any_next);
        DL_DELETE(comm->messages.arrivals, arrival);
        queue_free_if_empty(comm, exact);
        queue_free_if_empty(comm, any);
    }
    return arrival;
}

void message_match_release(struct exec_comm *comm)
{
    struct message_queue *queue, *next;
    HASH_ITER (hh, comm->messages.queues_by_key, queue, next) {
        HASH_DEL(comm->messages.queues_by_key, queue);
        free(queue);
    }
}
