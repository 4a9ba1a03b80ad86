#include <stdlib.h>

#include <utlist.h>

#include "daemon/p2p/p2p_internal.h"

/*
 * Matches receives and messages in constant time, no matter how many wait. There is one queue per (receiver,
 * source, tag), and one per (receiver, tag) with the messages of all sources, for receives from any source.
 * In each queue the oldest is the first.
 */

struct message_queue {
    struct message_queue_key {
        uint32_t rank, source, tag;
    } key;
    struct p2p_message *receives;
    struct p2p_arrival *arrivals; /* linked by of_source, or by of_any if the source is any */
    UT_hash_handle hh;
};

static struct message_queue *queue_find(const struct p2p_comm *comm, uint32_t rank, uint32_t source,
                                        uint32_t tag)
{
    const struct message_queue_key key = {.rank = rank, .source = source, .tag = tag};
    struct message_queue *queue;
    HASH_FIND(hh, comm->queues, &key, sizeof key, queue);
    return queue;
}

/* Null without memory. */
static struct message_queue *queue_make(struct p2p_comm *comm, uint32_t rank, uint32_t source, uint32_t tag)
{
    struct message_queue *queue = queue_find(comm, rank, source, tag);
    if (queue != NULL) {
        return queue;
    }
    queue = calloc(1, sizeof *queue);
    if (queue != NULL) {
        queue->key = (struct message_queue_key){.rank = rank, .source = source, .tag = tag};
        HASH_ADD(hh, comm->queues, key, sizeof queue->key, queue);
        if (!table_has(queue, hh)) {
            free(queue);
            queue = NULL;
        }
    }
    return queue;
}

static void queue_free_if_empty(struct p2p_comm *comm, struct message_queue *queue)
{
    if (queue != NULL && queue->receives == NULL && queue->arrivals == NULL) {
        HASH_DEL(comm->queues, queue);
        free(queue);
    }
}

bool match_add_receive(struct p2p_comm *comm, struct p2p_message *receive)
{
    struct message_queue *queue = queue_make(comm, receive->rank, receive->peer_rank, receive->tag);
    if (queue == NULL) {
        return false;
    }
    receive->receive.queue = queue;
    receive->receive.number = ++comm->last_number;
    DL_APPEND2(queue->receives, receive, wait_prev, wait_next);
    return true;
}

void match_remove_receive(struct p2p_comm *comm, struct p2p_message *receive)
{
    struct message_queue *queue = receive->receive.queue;
    DL_DELETE2(queue->receives, receive, wait_prev, wait_next);
    queue_free_if_empty(comm, queue);
}

struct p2p_message *match_receive(const struct p2p_comm *comm, const struct p2p_arrival *arrival)
{
    const struct message_queue *exact =
        queue_find(comm, arrival->to_rank, arrival->source_rank, arrival->tag);
    const struct message_queue *any = queue_find(comm, arrival->to_rank, COMM_ANY_SOURCE_RANK, arrival->tag);
    struct p2p_message *one = exact != NULL ? exact->receives : NULL;
    struct p2p_message *other = any != NULL ? any->receives : NULL;
    bool other_is_older = other != NULL && (one == NULL || other->receive.number < one->receive.number);
    return other_is_older ? other : one;
}

bool match_add_arrival(struct p2p_comm *comm, struct p2p_arrival *arrival)
{
    struct message_queue *exact = queue_make(comm, arrival->to_rank, arrival->source_rank, arrival->tag);
    struct message_queue *any = queue_make(comm, arrival->to_rank, COMM_ANY_SOURCE_RANK, arrival->tag);
    if (exact == NULL || any == NULL) {
        queue_free_if_empty(comm, exact);
        queue_free_if_empty(comm, any);
        return false;
    }
    DL_APPEND2(exact->arrivals, arrival, of_source_prev, of_source_next);
    DL_APPEND2(any->arrivals, arrival, of_any_prev, of_any_next);
    DL_APPEND(comm->locals[comm->map->ranks.local_of_rank[arrival->to_rank]].arrivals, arrival);
    arrival->queued = true;
    return true;
}

void match_remove_arrival(struct p2p_comm *comm, struct p2p_arrival *arrival)
{
    if (arrival->queued) {
        struct message_queue *exact = queue_find(comm, arrival->to_rank, arrival->source_rank, arrival->tag);
        struct message_queue *any = queue_find(comm, arrival->to_rank, COMM_ANY_SOURCE_RANK, arrival->tag);
        arrival->queued = false;
        DL_DELETE2(exact->arrivals, arrival, of_source_prev, of_source_next);
        DL_DELETE2(any->arrivals, arrival, of_any_prev, of_any_next);
        DL_DELETE(comm->locals[comm->map->ranks.local_of_rank[arrival->to_rank]].arrivals, arrival);
        queue_free_if_empty(comm, exact);
        queue_free_if_empty(comm, any);
    }
}

struct p2p_arrival *match_take_arrival(struct p2p_comm *comm, const struct p2p_message *receive)
{
    if (comm->locals[comm->map->ranks.local_of_rank[receive->rank]].arrivals == NULL) {
        return NULL; /* usual case: receives are early, and a lookup in a large table costs most */
    }
    const struct message_queue *queue = queue_find(comm, receive->rank, receive->peer_rank, receive->tag);
    struct p2p_arrival *arrival = queue != NULL ? queue->arrivals : NULL;
    if (arrival != NULL) {
        match_remove_arrival(comm, arrival);
    }
    return arrival;
}

void match_release(struct p2p_comm *comm)
{
    for (uint32_t i = 0; comm->locals != NULL && i < comm->map->ranks.local_count; i++) {
        while (comm->locals[i].arrivals != NULL) {
            struct p2p_arrival *arrival = comm->locals[i].arrivals;
            match_remove_arrival(comm, arrival);
            arrival_free(arrival);
        }
    }
    struct message_queue *queue, *next;
    HASH_ITER (hh, comm->queues, queue, next) {
        HASH_DEL(comm->queues, queue);
        free(queue);
    }
}
