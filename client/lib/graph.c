#include <assert.h>
#include <inttypes.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client/lib/internal.h"

/*
 * A graph lives until the program has destroyed it and everything that was instantiated from it. CUDA then
 * calls a destructor, which may make no call of CUDA, and holds locks of CUDA. So it only notes that, and the
 * keeper does the rest: one thread for the process. The keeper also lets streams go on whose commd is gone.
 * It outlives the clients, because graphs may do so.
 */

#define ANSWER_NS 1000000 /* between the keeper's looks at words that commd does not serve any more */

static struct {
    pthread_mutex_t lock; /* never held during a wait, or a call of CUDA */
    pthread_cond_t changed;
    pthread_once_t once;
    struct client_graph *graphs;
    struct comm_client *served; /* whose lock the keeper's thread takes now; null: nobody's */
    pid_t pid;                  /* the process in which the thread runs; 0: nowhere */
} keeper = {.lock = PTHREAD_MUTEX_INITIALIZER, .once = PTHREAD_ONCE_INIT};

/* --- The keeper --- */

static void keeper_init(void)
{
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&keeper.changed, &attributes);
    pthread_condattr_destroy(&attributes);
}

/* Lets go on what waits now. */
static void graph_let_go(const struct client_graph *graph)
{
    for (uint32_t i = 0; i < graph->op_count; i++) {
        atomic_store_explicit(fence_word(graph->ops[i].slot, FENCE_ENDED), 1, memory_order_release);
    }
}

static void graph_answer(const struct client_graph *graph)
{
    for (uint32_t i = 0; i < graph->op_count; i++) {
        const struct fence_slot *slot = graph->ops[i].slot;
        if (atomic_exchange_explicit(fence_word(slot, FENCE_READY), 0, memory_order_acquire) != 0) {
            atomic_store_explicit(fence_word(slot, FENCE_ENDED), 1, memory_order_release);
        }
    }
}

/* With the client's lock: no replay of the graph can come any more. */
static void graph_end_in(struct comm_client *client, struct client_graph *graph)
{
    bool clean = graph->part != NULL && graph->part->failure == COMM_OK;
    if (graph->part != NULL) {
        member_leave_part(graph->part);
    }
    for (uint32_t i = 0; i < graph->op_count; i++) {
        struct graph_op *op = &graph->ops[i];
        if (op->op != NULL) {
            op_free(client, op->op, clean);
        }
        fence_take_back(op->slot);
        fence_give(&client->fences, op->slot, !clean);
    }
    graph->op_count = 0;
}

/* With the keeper's lock, which it releases meanwhile. */
static void graph_end(struct client_graph *graph)
{
    struct client_graph **link = &keeper.graphs;
    while (*link != graph) {
        link = &(*link)->next;
    }
    *link = graph->next;
    struct comm_client *client = graph->client;
    keeper.served = client;
    pthread_mutex_unlock(&keeper.lock);
    if (client != NULL) {
        pthread_mutex_lock(&client->lock);
        graph_end_in(client, graph);
        pthread_mutex_unlock(&client->lock);
    }
    for (uint32_t i = 0; i < graph->op_count; i++) {
        free(graph->ops[i].op); /* its memory went with the client */
    }
    free(graph->ops);
    free(graph);
    pthread_mutex_lock(&keeper.lock);
    keeper.served = NULL;
    pthread_cond_broadcast(&keeper.changed);
}

static void *keep(void *argument)
{
    (void)argument;
    pthread_mutex_lock(&keeper.lock);
    for (;;) {
        struct client_graph *graph = keeper.graphs;
        bool answers = false;
        while (graph != NULL && !graph->released) {
            if (graph->lost) {
                graph_answer(graph);
                answers = true;
            }
            graph = graph->next;
        }
        if (graph != NULL) {
            graph_end(graph);
        } else if (answers) {
            uint64_t at_ns = clock_ns() + ANSWER_NS;
            struct timespec at = {.tv_sec = (time_t)(at_ns / 1000000000u),
                                  .tv_nsec = (long)(at_ns % 1000000000u)};
            (void)pthread_cond_timedwait(&keeper.changed, &keeper.lock, &at);
        } else {
            pthread_cond_wait(&keeper.changed, &keeper.lock);
        }
    }
    return NULL;
}

comm_result_t graph_keeper_start(struct comm_client *client)
{
    pthread_t thread;
    int reason = 0;
    (void)pthread_once(&keeper.once, keeper_init);
    pthread_mutex_lock(&keeper.lock);
    if (keeper.pid != getpid()) {
        keeper.graphs = NULL; /* after a fork, those of the parent are none of ours */
        reason = client_thread_start(client, keep, &thread);
        if (reason == 0) {
            pthread_detach(thread);
            keeper.pid = getpid();
        }
    }
    pthread_mutex_unlock(&keeper.lock);
    return reason == 0 ? COMM_OK
                       : error_report(COMM_SYSTEM, "starting a thread that looks after CUDA graphs: %s",
                                      strerror(reason));
}

struct client_graph *graph_make(struct comm_client *client, uint64_t capture_id)
{
    struct client_graph *graph = calloc(1, sizeof *graph);
    if (graph != NULL) {
        graph->client = client;
        graph->capture_id = capture_id;
        pthread_mutex_lock(&keeper.lock);
        graph->next = keeper.graphs;
        keeper.graphs = graph;
        pthread_mutex_unlock(&keeper.lock);
    }
    return graph;
}

void graph_released(void *argument)
{
    struct client_graph *graph = argument;
    pthread_mutex_lock(&keeper.lock);
    graph->released = true;
    pthread_cond_broadcast(&keeper.changed);
    pthread_mutex_unlock(&keeper.lock);
}

bool graph_add(struct client_graph *graph, const struct graph_op *op)
{
    pthread_mutex_lock(&keeper.lock);
    bool added = graph->op_count < graph->op_capacity;
    if (!added) {
        uint32_t capacity = graph->op_capacity != 0 ? 2 * graph->op_capacity : 8;
        struct graph_op *grown = reallocarray(graph->ops, capacity, sizeof *grown);
        if (grown != NULL) {
            graph->ops = grown;
            graph->op_capacity = capacity;
            added = true;
        }
    }
    if (added) {
        graph->ops[graph->op_count++] = *op;
    }
    pthread_mutex_unlock(&keeper.lock);
    return added;
}

/* With the keeper's lock. */
static void graph_lose(struct client_graph *graph)
{
    graph->lost = true;
    graph_let_go(graph);
    pthread_cond_broadcast(&keeper.changed);
}

void graph_part_lost(struct client_graph *graph)
{
    pthread_mutex_lock(&keeper.lock);
    graph_lose(graph);
    pthread_mutex_unlock(&keeper.lock);
}

void graph_part_left(struct client_graph *graph)
{
    graph->part = NULL;
    graph_part_lost(graph);
}

void graphs_lose(const struct client_fences *fences)
{
    pthread_mutex_lock(&keeper.lock);
    for (struct client_graph *graph = keeper.graphs; graph != NULL; graph = graph->next) {
        if (graph->client != NULL && &graph->client->fences == fences) {
            graph_lose(graph);
        }
    }
    pthread_mutex_unlock(&keeper.lock);
}

void graphs_close(struct comm_client *client)
{
    pthread_mutex_lock(&keeper.lock);
    while (keeper.served == client) {
        pthread_cond_wait(&keeper.changed, &keeper.lock);
    }
    for (struct client_graph *graph = keeper.graphs; graph != NULL; graph = graph->next) {
        if (graph->client != client) {
            continue;
        }
        graph->client = NULL;
        graph_lose(graph);
        for (uint32_t i = 0; i < graph->op_count; i++) {
            fence_give(&client->fences, graph->ops[i].slot, true); /* for ever: the graph may outlive this */
            free(graph->ops[i].op);
            graph->ops[i].op = NULL;
        }
    }
    pthread_mutex_unlock(&keeper.lock);
}
