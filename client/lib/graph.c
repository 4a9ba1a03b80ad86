#include <assert.h>
#include <inttypes.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client/lib/buffers.h"
#include "client/lib/internal.h"
#include "client/lib/submit.h"

/*
 * A captured operation is a record that commd keeps, and three steps of the graph, at each replay: set the
 * word `ended` to 0, set the word `ready` to 1, wait until `ended` is 1. commd sees `ready`, runs the
 * operation, and sets `ended`. The library's threads have no part in that.
 *
 * A graph lives until the program has destroyed it and everything that was instantiated from it. CUDA then
 * calls a destructor, which may make no call of CUDA, and holds locks of CUDA. So it only notes that, and the
 * keeper does the rest: one thread for the process. The keeper also lets streams go on whose commd is gone.
 * It outlives the clients, because graphs may do so.
 */

#define ANSWER_NS 1000000 /* between the keeper's looks at words that commd does not serve any more */
#define NAME_PREFIX_MAX_BYTES 96

struct graph_op {
    struct fence_slot *slot;
    struct client_op *op; /* holds the staging block of layouts; null: none. Under the client's lock */
};

struct client_graph {
    struct client_graph *next;  /* the keeper's list; this and what follows is under the keeper's lock */
    struct comm_client *client; /* null: it was closed */
    uint64_t capture_id;
    uint32_t op_count, op_capacity;
    struct graph_op *ops;
    bool released;          /* the program has destroyed it */
    bool lost;              /* the keeper answers in commd's place */
    struct comm_comm *part; /* under the client's lock; null: it was left, or has not formed */
};

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

static comm_result_t keeper_start(struct comm_client *client)
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

/* CUDA calls it when nothing refers to the graph any more. */
static void graph_released(void *argument)
{
    struct client_graph *graph = argument;
    pthread_mutex_lock(&keeper.lock);
    graph->released = true;
    pthread_cond_broadcast(&keeper.changed);
    pthread_mutex_unlock(&keeper.lock);
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

/* --- Captures --- */

static comm_result_t refuse(const struct comm_comm *comm, const struct client_call *call,
                            comm_result_t result, const char *why)
{
    return error_report(result, "%s on \"%s\": the stream is being captured, and %s", call->name, comm->name,
                        why);
}

comm_result_t graph_refuse(const struct comm_comm *comm, const struct client_call *call,
                           const struct stream_capture *capture, const char *why)
{
    return capture->id == 0 ? COMM_OK : refuse(comm, call, COMM_UNSUPPORTED, why);
}

static comm_result_t check_call(const struct comm_comm *comm, const struct client_call *call)
{
    const char *why =
        !comm->client->takes_graphs ? "this commd is too old for operations in CUDA graphs"
        : call->options.request != NULL
            ? "there is nothing to wait for: a handle is for operations that run once (options.request)"
        : call->options.queue != NULL
            ? "its completions are not reported: a queue is for operations that run once (options.queue)"
            : NULL;
    return why == NULL ? COMM_OK : refuse(comm, call, COMM_UNSUPPORTED, why);
}

/* FNV-1a, 64 bits. */
static uint64_t digest(uint64_t one, uint64_t other)
{
    uint64_t words[] = {one, other}, hash = 0xcbf29ce484222325u;
    const unsigned char *bytes = (const unsigned char *)words;
    for (size_t i = 0; i < sizeof words; i++) {
        hash = (hash ^ bytes[i]) * 0x100000001b3u;
    }
    return hash;
}

/* The name of the part for this capture: all ranks make the same, and no other communicator has it. */
static void part_name(const struct comm_comm *comm, uint32_t number, char *out, size_t size)
{
    const char *mark = strchr(comm->name, '~');
    size_t length = mark != NULL ? (size_t)(mark - comm->name) : strlen(comm->name);
    length = length < NAME_PREFIX_MAX_BYTES ? length : NAME_PREFIX_MAX_BYTES;
    (void)snprintf(out, size, "%.*s~graph%" PRIu32 ".%016" PRIx64, (int)length, comm->name, number,
                   digest(comm->comm_id, number));
}

/* With the client's lock. */
static struct client_graph *graph_find(const struct comm_comm *comm, uint64_t capture_id)
{
    for (const struct comm_comm *part = comm->client->comms; part != NULL; part = part->next) {
        if (part->parent == comm && part->graph != NULL && part->graph->capture_id == capture_id) {
            return part->graph;
        }
    }
    return NULL;
}

/* From here on CUDA tells when the graph is gone. If the call fails, it is gone at once. Without locks. */
static comm_result_t graph_bind(const struct client_gpu *gpu, struct client_graph *graph,
                                const struct stream_capture *capture)
{
    struct gpu_scope scope;
    cuda_user_object object;
    comm_result_t result = gpu_scope_enter(gpu, &scope);
    if (result != COMM_OK) {
        graph_released(graph);
        return result;
    }
    cuda_result made =
        gpu_driver()->user_object_create(&object, graph, graph_released, 1, CUDA_USER_OBJECT_NO_SYNC);
    if (made != CUDA_RESULT_OK) {
        result = gpu_report(made, "cuUserObjectCreate");
        graph_released(graph);
    } else {
        made = gpu_driver()->graph_retain_object(capture->graph, object, 1, CUDA_GRAPH_USER_OBJECT_MOVE);
        if (made != CUDA_RESULT_OK) {
            result = gpu_report(made, "cuGraphRetainUserObject");
            (void)gpu_driver()->user_object_release(object, 1);
        }
    }
    gpu_scope_leave(&scope);
    return result;
}

/* The first operation of a communicator in a capture. With the client's lock, which it releases. */
static comm_result_t graph_new(struct comm_comm *comm, const struct stream_capture *capture,
                               struct client_graph **out)
{
    char name[COMM_NAME_MAX_BYTES + 1];
    struct client_graph *graph = calloc(1, sizeof *graph);
    if (graph == NULL) {
        return error_report(COMM_NO_MEMORY, "no memory for a CUDA graph's operations");
    }
    graph->client = comm->client;
    graph->capture_id = capture->id;
    pthread_mutex_lock(&keeper.lock);
    graph->next = keeper.graphs;
    keeper.graphs = graph;
    pthread_mutex_unlock(&keeper.lock);
    part_name(comm, ++comm->graph_count, name, sizeof name);
    comm_result_t result = member_join_part(comm, name, graph, &graph->part);
    if (result != COMM_OK) {
        graph_released(graph);
        return result;
    }
    client_leave(comm->client);
    result = graph_bind(comm->gpu, graph, capture);
    pthread_mutex_lock(&comm->client->lock);
    *out = graph;
    return result;
}

/* All buffers must be where commd can reach them at each replay: nobody would copy them. */
static comm_result_t check_buffers(const struct comm_comm *comm, const struct client_call *call,
                                   const struct client_op *op)
{
    const struct call_buffer *buffers[] = {&call->input, &call->output};
    for (int use = USE_INPUT; use <= USE_OUTPUT; use++) {
        if (buffers[use]->at != NULL && op->uses[use] == NULL) {
            return error_report(
                COMM_UNSUPPORTED,
                "%s on \"%s\": the stream is being captured, and the %s buffer at %p would have "
                "to be copied at each replay: use memory of comm_mem_alloc or on the GPU",
                call->name, comm->name, use == USE_INPUT ? "send" : "receive", buffers[use]->at);
        }
    }
    bool residual = call->options.compression != COMM_COMPRESSION_NONE && call->options.residual != NULL;
    if (residual && call->terms.count_elements > 0 && op->uses[USE_RESIDUAL] == NULL) {
        return refuse(
            comm, call, COMM_UNSUPPORTED,
            "the residual would have to be copied at each replay: use memory of comm_mem_alloc or on "
            "the GPU");
    }
    return COMM_OK;
}

/* commd keeps the operation. With the client's lock, which it releases meanwhile. */
static comm_result_t announce(struct comm_comm *comm, struct comm_comm *part, const struct client_call *call,
                              const struct client_op *buffers, const struct fence_slot *slot)
{
    struct submit_record record;
    struct client_op *op = op_new(part, call);
    if (op == NULL) {
        return error_report(COMM_NO_MEMORY, "\"%s\": no memory for an operation", comm->name);
    }
    struct fence_mark ready = {.slot = (struct fence_slot *)(uintptr_t)slot, .word = FENCE_READY, .value = 1};
    struct fence_mark ended = {.slot = ready.slot, .word = FENCE_ENDED, .value = 1};
    submit_make_record(part, call, buffers, NULL, 0, &record);
    fence_add(&record, RECORD_ENDED, &ended);
    fence_add(&record, RECORD_WAIT, &ready);
    record.kind = RECORD_CAPTURED;
    ops_append(part, op, REQUEST_TIMEOUT_MS);
    record.ticket = op->ticket;
    uint64_t ticket = op->ticket;
    ops_send(comm->client, &record, submit_record_bytes(&record), comm->op_timeout_ms);
    return ops_finish(part, ticket, clock_after_ms(REQUEST_TIMEOUT_MS));
}

/* Only staging blocks stay in use: commd keeps references to the memories. */
static void release_memories(struct comm_client *client, struct client_op *op)
{
    struct client_memory *layouts = op->uses[USE_LAYOUTS];
    op->uses[USE_LAYOUTS] = NULL;
    op_release(client, op, true);
    op->uses[USE_LAYOUTS] = layouts;
}

/* Returns false if memory is short. */
static bool graph_add(struct client_graph *graph, const struct graph_op *op)
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

/* Finds the buffers, and the capture's part, and has commd keep the operation. With the client's lock, which
 * it releases meanwhile. The graph owns the slot if it succeeds. */
static comm_result_t capture(struct comm_comm *comm, const struct client_call *call,
                             const struct stream_capture *at, struct fence_slot *slot,
                             struct client_graph **out)
{
    struct client_op *op = op_new(comm, call);
    if (op == NULL) {
        return error_report(COMM_NO_MEMORY, "\"%s\": no memory for an operation", comm->name);
    }
    size_t staged_bytes;
    comm_result_t result = buffers_find(comm, call, op, &staged_bytes);
    result = result == COMM_OK ? check_buffers(comm, call, op) : result;
    result = result == COMM_OK ? buffers_stage(comm, call, op) : result; /* the layouts alone */
    *out = result == COMM_OK ? graph_find(comm, at->id) : NULL;
    if (result == COMM_OK && *out == NULL) {
        result = graph_new(comm, at, out);
    }
    if (result == COMM_OK && (*out)->op_count >= GRAPH_OPS_MAX) {
        result = error_report(COMM_LIMIT, "%s on \"%s\": a CUDA graph holds %u operations of it at most",
                              call->name, comm->name, GRAPH_OPS_MAX);
    }
    if (result == COMM_OK) {
        fence_lend(slot);
        result = announce(comm, (*out)->part, call, op, slot);
    }
    release_memories(comm->client, op);
    struct graph_op added = {.slot = slot, .op = op};
    if (result == COMM_OK && !graph_add(*out, &added)) {
        result = error_report(COMM_NO_MEMORY, "no memory for a CUDA graph's operation");
        member_fail((*out)->part, result, "%s", comm_last_error());
    }
    if (result != COMM_OK) {
        op_free(comm->client, op, true);
    }
    return result;
}

/* What the graph does at each replay. In a group, it waits at the group's end. */
static comm_result_t add_words(struct comm_comm *comm, const struct client_call *call,
                               const struct fence_slot *slot)
{
    struct fence_mark ready = {.slot = (struct fence_slot *)(uintptr_t)slot, .word = FENCE_READY};
    struct fence_mark ended = {.slot = ready.slot, .word = FENCE_ENDED};
    struct cuda_memop memops[] = {
        {.operation = CUDA_MEMOP_WRITE_64, .address = fence_address(&ended), .value = 0},
        {.operation = CUDA_MEMOP_WRITE_64, .address = fence_address(&ready), .value = 1},
        {.operation = CUDA_MEMOP_WAIT_64,
         .address = fence_address(&ended),
         .value = 1,
         .flags = CUDA_WAIT_VALUE_GEQ}};
    comm_result_t result = stream_add(comm->gpu, call->options.stream, memops, group_is_open() ? 2 : 3);
    if (result == COMM_OK && group_is_open()) {
        result = group_add_captured(comm, call->options.stream, slot);
    }
    return result;
}

/* The operation is in commd, but not in the graph. So no replay could run all that commd expects. */
static comm_result_t graph_spoil(struct comm_comm *comm, struct client_graph *graph)
{
    char text[ERROR_TEXT_BYTES];
    (void)snprintf(text, sizeof text, "%s", comm_last_error());
    if (client_enter(comm->client) == COMM_OK) {
        if (graph->part != NULL) {
            member_leave_part(graph->part);
        }
        client_leave(comm->client);
    }
    return error_report(COMM_UNSUPPORTED,
                        "CUDA cannot add to this graph what the operation needs; the body of a conditional "
                        "node cannot hold it, for example: %s",
                        text);
}

/* One thread after the other: the operations' order is that of their numbers. */
static comm_result_t begin(struct comm_comm *comm)
{
    comm_result_t result = client_enter(comm->client);
    while (result == COMM_OK && comm->captures && comm->client->lost == COMM_OK) {
        client_progress(comm->client, clock_ns() + ANSWER_NS);
    }
    comm->captures = result == COMM_OK;
    return result;
}

comm_result_t graph_submit(struct comm_comm *comm, const struct client_call *call,
                           const struct stream_capture *at)
{
    struct comm_client *client = comm->client;
    struct client_graph *graph = NULL;
    struct fence_slot *slot = NULL;
    comm_result_t result = check_call(comm, call);
    result = result == COMM_OK ? keeper_start(client) : result;
    result = result == COMM_OK ? fence_take(client, &slot) : result;
    result = result == COMM_OK ? begin(comm) : result;
    if (result != COMM_OK) {
        fence_give(&client->fences, slot, false);
        return result;
    }
    result = capture(comm, call, at, slot, &graph);
    client_leave(client);
    if (result == COMM_OK) {
        result = add_words(comm, call, slot);
        result = result == COMM_OK ? COMM_OK : graph_spoil(comm, graph);
    } else {
        fence_give(&client->fences, slot, true); /* commd may have kept it after all */
    }
    if (client_enter(client) == COMM_OK) {
        comm->captures = false;
        client_leave(client);
    }
    return result == COMM_OK ? COMM_OK : error_within(result, "%s on \"%s\"", call->name, comm->name);
}
