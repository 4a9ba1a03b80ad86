#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include <utlist.h>

#include "daemon/api/session.h"

/*
 * Operations of CUDA graphs. A graph that is replayed sets the word `ready` of each of its operations, and
 * waits for the word `ended`. No message comes from the client: commd looks at the words.
 *
 * A rank's captured operations belong to a communicator of their own, and a replay runs each of them once.
 * They run in the order of their capture, so only the next one is looked at: the graph may set the words of
 * operations on different branches in any order, but all ranks run them in the same. Communicators are looked
 * at once in API_GRAPH_SWEEP_NS, API_GRAPH_LOOKS_MAX of them at a time; those that were replayed lately, more
 * often.
 *
 * If the communicator has failed, each operation ends at once, so that no stream waits for it.
 */

struct api_captured {
    struct comms_op op; /* with references to its memories */
    struct memory *ready_memory, *ended_memory;
    _Atomic uint64_t *ready, *ended;
    bool runs;
};

struct api_graph {
    struct api_graph *prev, *next;
    struct api_graph *active_prev, *active_next;
    struct api_comm *comm;
    bool active;
    bool failed;          /* the communicator has failed: whatever is ready ends at once, in any order */
    uint64_t advanced_ns; /* when an operation last began */
    uint64_t stuck_ns;    /* since when a later operation than the next is ready; 0: none is */
    uint64_t replays;
    uint32_t at;      /* the next operation */
    uint32_t watched; /* the one that is checked for being ahead of its turn */
    uint32_t count, capacity;
    struct api_captured *ops;
};

#define CAPTURED_COST_BYTES sizeof(struct api_captured)

static void graphs_due(void *context, uint64_t now_ns)
{
    (void)context; /* api_poll comes next in any case */
    (void)now_ns;
}

enum status api_graphs_new(struct api *api, struct error *error)
{
    api->graphs.pacer.next_ns = TIME_NEVER;
    return loop_timer_new(api->loop, graphs_due, api, &api->graphs.timer, error);
}

void api_graphs_free(struct api *api)
{
    loop_timer_free(api->graphs.timer);
    api->graphs.timer = NULL;
}

/* --- Captured operations --- */

/* Null if it is not an aligned word of 64 bits in host memory. */
static _Atomic uint64_t *word_of(const struct comms_fence *fence)
{
    const struct comms_op_range *word = &fence->word;
    bool usable = word->memory != NULL && memory_gpu(word->memory) == MEMORY_OF_HOST &&
                  word->offset_bytes % sizeof(uint64_t) == 0;
    return usable ? memory_range(word->memory, word->offset_bytes, sizeof(uint64_t)) : NULL;
}

static struct memory *ref_or_null(struct memory *memory)
{
    return memory != NULL ? memory_ref(memory) : NULL;
}

static void captured_take(struct api_captured *captured, const struct comms_op *op,
                          const struct comms_fence *ready)
{
    *captured = (struct api_captured){.op = *op, .ready = word_of(ready), .ended = word_of(&op->ended)};
    captured->op.waits = NULL;
    captured->op.wait_count = 0;
    captured->op.ended = (struct comms_fence){.value = 0};
    captured->ready_memory = memory_ref(ready->word.memory);
    captured->ended_memory = memory_ref(op->ended.word.memory);
    (void)ref_or_null(op->input.memory);
    (void)ref_or_null(op->output.memory);
    (void)ref_or_null(op->input_layout.memory);
    (void)ref_or_null(op->output_layout.memory);
    (void)ref_or_null(op->residual.memory);
}

static void captured_release(struct api_captured *captured)
{
    atomic_store_explicit(captured->ended, 1, memory_order_release);
    memory_unref(captured->ready_memory);
    memory_unref(captured->ended_memory);
    memory_unref(captured->op.input.memory);
    memory_unref(captured->op.output.memory);
    memory_unref(captured->op.input_layout.memory);
    memory_unref(captured->op.output_layout.memory);
    memory_unref(captured->op.residual.memory);
}

/* --- Graphs --- */

static struct api_graph *graph_of(struct api_comm *comm)
{
    struct api_graph *graph = comm->graph != NULL ? comm->graph : calloc(1, sizeof *graph);
    if (graph != NULL && comm->graph == NULL) {
        graph->comm = comm;
        comm->graph = graph;
        DL_APPEND(comm->session->api->graphs.all, graph);
        comm->session->api->graphs.count++;
    }
    return graph;
}

static bool graph_grow(struct api_graph *graph)
{
    uint32_t capacity = graph->capacity != 0 ? 2 * graph->capacity : 8;
    struct api_captured *grown = realloc(graph->ops, capacity * sizeof *grown);
    if (grown != NULL) {
        graph->ops = grown;
        graph->capacity = capacity;
    }
    return grown != NULL;
}

enum status api_graph_add(struct api_comm *comm, const struct comms_op *op, const struct comms_fence *ready,
                          struct error *error)
{
    struct error why;
    if (!comm->formed) {
        return error_set(error, STATUS_IN_PROGRESS, "communicator \"%s\" is not formed", comm->name);
    }
    if (word_of(ready) == NULL || word_of(&op->ended) == NULL) {
        return error_set(error, STATUS_INVALID_ARGUMENT,
                         "a captured operation needs two words of 64 bits in registered memory of the host");
    }
    if (comm->graph != NULL && comm->graph->count >= API_GRAPH_OPS_MAX) {
        return error_set(error, STATUS_LIMIT,
                         "communicator \"%s\": a graph holds %u of its operations at most", comm->name,
                         API_GRAPH_OPS_MAX);
    }
    if (budget_charge(comm->session->account, BUDGET_OPERATIONS, CAPTURED_COST_BYTES, &why) != STATUS_OK) {
        return error_set(error, why.status, "communicator \"%s\": a captured operation: %s", comm->name,
                         why.text);
    }
    struct api_graph *graph = graph_of(comm);
    if (graph == NULL || (graph->count == graph->capacity && !graph_grow(graph))) {
        budget_release(comm->session->account, BUDGET_OPERATIONS, CAPTURED_COST_BYTES);
        return error_set(error, STATUS_NO_MEMORY, "no memory for a captured operation");
    }
    captured_take(&graph->ops[graph->count++], op, ready);
    return STATUS_OK;
}

static void graph_rests(struct api_graph *graph)
{
    if (graph->active) {
        graph->active = false;
        DL_DELETE2(graph->comm->session->api->graphs.active, graph, active_prev, active_next);
    }
}

static void graph_wakes(struct api_graph *graph, uint64_t now_ns)
{
    graph->advanced_ns = now_ns;
    graph->stuck_ns = 0;
    if (!graph->active) {
        graph->active = true;
        DL_APPEND2(graph->comm->session->api->graphs.active, graph, active_prev, active_next);
    }
}

void api_graph_free(struct api_comm *comm)
{
    struct api_graph *graph = comm->graph;
    if (graph == NULL) {
        return;
    }
    graph_rests(graph);
    DL_DELETE(comm->session->api->graphs.all, graph);
    comm->session->api->graphs.count--;
    comm->session->api->graphs.polls &= comm->session->api->graphs.all != NULL;
    for (uint32_t i = 0; i < graph->count; i++) {
        captured_release(&graph->ops[i]);
        budget_release(comm->session->account, BUDGET_OPERATIONS, CAPTURED_COST_BYTES);
    }
    free(graph->ops);
    free(graph);
    comm->graph = NULL;
}

void api_graphs_counts(const struct api *api, const struct communicator_info *info, uint32_t *ops,
                       uint64_t *replays)
{
    const struct api_graph *graph;
    *ops = 0;
    *replays = 0;
    DL_FOREACH(api->graphs.all, graph)
    {
        if (graph->comm->session->client.uid == info->owner_uid &&
            strcmp(graph->comm->name, info->name) == 0) {
            *ops = graph->count > *ops ? graph->count : *ops;
            *replays = graph->replays > *replays ? graph->replays : *replays;
        }
    }
}

/* --- Replays --- */

/* Tells the client of a failure, unless it reads nothing: then it has enough of them. */
static void tell_failure(struct api_session *session, uint32_t handle,
                         const struct comms_completion *completion)
{
    if (session->out_count < API_SESSION_PAUSE_PACKETS / 2) {
        api_comm_send_complete(session, handle, completion);
    }
}

static void op_end(struct api_captured *captured)
{
    captured->runs = false;
    atomic_store_explicit(captured->ended, 1, memory_order_release);
}

static void op_begin(struct api_graph *graph, struct api_captured *captured, uint64_t now_ns)
{
    struct error error;
    struct api_comm *comm = graph->comm;
    atomic_store_explicit(captured->ready, 0, memory_order_relaxed);
    captured->runs = true;
    graph->at = graph->at + 1 < graph->count ? graph->at + 1 : 0;
    graph->replays += graph->at == 0;
    comm->session->ops_submitted++;
    if (comms_submit(comm->member, &captured->op, now_ns, &error) != STATUS_OK) {
        struct comms_completion refused = {.ticket = captured->op.ticket, .result = &error};
        op_end(captured);
        comm->session->api->calls_refused[error.status]++;
        tell_failure(comm->session, comm->handle, &refused);
    }
}

static bool graph_answer_all(struct api_graph *graph)
{
    bool any = false;
    for (uint32_t i = 0; i < graph->count; i++) {
        struct api_captured *captured = &graph->ops[i];
        if (!captured->runs && atomic_load_explicit(captured->ready, memory_order_acquire) != 0) {
            atomic_store_explicit(captured->ready, 0, memory_order_relaxed);
            op_end(captured);
            any = true;
        }
    }
    return any;
}

/* Begins the operations whose turn it is. Returns whether there was one. */
static bool graph_step(struct api_graph *graph, uint64_t now_ns)
{
    bool any = graph->failed && graph_answer_all(graph);
    for (uint32_t i = 0; i < graph->count && !graph->failed; i++) {
        struct api_captured *captured = &graph->ops[graph->at];
        if (captured->runs || atomic_load_explicit(captured->ready, memory_order_acquire) == 0) {
            break;
        }
        op_begin(graph, captured, now_ns);
        any = true;
    }
    if (any) {
        graph_wakes(graph, now_ns);
    }
    return any;
}

/* Looks from the one that began last: it usually ends first. */
static struct api_captured *find_captured(struct api_graph *graph, uint64_t ticket)
{
    for (uint32_t i = 0; graph != NULL && i < graph->count; i++) {
        struct api_captured *captured = &graph->ops[(graph->at + graph->count - 1 - i) % graph->count];
        if (captured->op.ticket == ticket) {
            return captured;
        }
    }
    return NULL;
}

void api_graph_failed(struct api_comm *comm)
{
    if (comm->graph != NULL) {
        comm->graph->failed = true;
    }
}

bool api_graph_ended(struct api_comm *comm, const struct comms_completion *completion, uint64_t now_ns)
{
    struct api_graph *graph = comm->graph;
    struct api_captured *captured = find_captured(graph, completion->ticket);
    struct api_session *session = comm->session;
    if (captured == NULL) {
        return false;
    }
    session->ops_completed++;
    if (completion->result->status == STATUS_OK) {
        session->api->ops_completed++;
    } else {
        session->api->ops_failed++;
        tell_failure(session, comm->handle, completion);
    }
    /* The stream that set the word has waited since. So only another one can have set it again. */
    bool twice = atomic_load_explicit(captured->ready, memory_order_acquire) != 0;
    op_end(captured);
    if (twice) {
        struct error cause;
        error_set(
            &cause, STATUS_INVALID_ARGUMENT,
            "communicator \"%s\": a CUDA graph was replayed while another replay of it ran (process %d)",
            comm->name, (int)session->client.pid);
        comms_member_abort(comm->member, &cause, now_ns);
    }
    return true;
}

/* --- Polling --- */

static uint64_t timeout_ns(const struct api_comm *comm)
{
    return (comm->op_timeout_ms != 0 ? comm->op_timeout_ms : COMMS_TIMEOUT_DEFAULT_MS) * TIME_MS;
}

/* Whether a later operation than the next is ready. Looks at one of them at a time. */
static bool is_ahead(struct api_graph *graph)
{
    if (graph->count == 0) {
        return false; /* there was no memory for its first one */
    }
    const struct api_captured *captured = &graph->ops[graph->watched];
    bool ahead = graph->watched != graph->at && !captured->runs &&
                 atomic_load_explicit(captured->ready, memory_order_relaxed) != 0;
    if (!ahead) {
        graph->watched = graph->watched + 1 < graph->count ? graph->watched + 1 : 0;
    }
    return ahead;
}

/* A replay that leaves out an operation would wait for ever. */
static void graph_check_stuck(struct api_graph *graph, uint64_t now_ns)
{
    if (graph->failed || !is_ahead(graph)) {
        graph->stuck_ns = 0;
    } else if (graph->stuck_ns == 0) {
        graph->stuck_ns = now_ns;
    } else if (now_ns - graph->stuck_ns > timeout_ns(graph->comm)) {
        struct error cause;
        graph->stuck_ns = 0;
        error_set(
            &cause, STATUS_TIMED_OUT,
            "communicator \"%s\": a replay of a CUDA graph has not reached its operation %u of %u, but a "
            "later one (process %d)",
            graph->comm->name, graph->at + 1, graph->count, (int)graph->comm->session->client.pid);
        comms_member_abort(graph->comm->member, &cause, now_ns);
    }
}

/* Looks at the graphs that were not looked at for longest. */
static bool sweep(struct api *api, uint64_t now_ns)
{
    bool any = false;
    struct api_graphs *graphs = &api->graphs;
    for (uint32_t i = 0; i < graphs->count && i < API_GRAPH_LOOKS_MAX; i++) {
        struct api_graph *graph = graphs->all;
        any |= graph_step(graph, now_ns);
        graph_check_stuck(graph, now_ns);
        DL_DELETE(graphs->all, graph);
        DL_APPEND(graphs->all, graph);
    }
    graphs->sweep_ns = time_after(now_ns, API_GRAPH_SWEEP_NS);
    return any;
}

static bool poll_active(struct api *api, uint64_t now_ns)
{
    bool any = false;
    struct api_graphs *graphs = &api->graphs;
    const struct api_graph *last = graphs->active != NULL ? graphs->active->active_prev : NULL;
    for (uint32_t i = 0; graphs->active != NULL && i < API_GRAPH_LOOKS_MAX; i++) {
        struct api_graph *graph = graphs->active;
        bool is_last = graph == last;
        DL_DELETE2(graphs->active, graph, active_prev, active_next);
        DL_APPEND2(graphs->active, graph, active_prev, active_next);
        if (graph_step(graph, now_ns)) {
            any = true;
        } else if (now_ns - graph->advanced_ns > API_GRAPH_ACTIVE_NS) {
            graph_rests(graph);
        }
        if (is_last) {
            break;
        }
    }
    return any;
}

bool api_graphs_poll(struct api *api, uint64_t now_ns)
{
    struct api_graphs *graphs = &api->graphs;
    pacer_begin(&graphs->pacer);
    bool any = poll_active(api, now_ns);
    if (now_ns >= graphs->sweep_ns) {
        any |= sweep(api, now_ns);
    }
    graphs->pacer.waits = graphs->active != NULL;
    graphs->pacer.advanced = any;
    graphs->polls = pacer_end(&graphs->pacer, now_ns);
    loop_timer_set(graphs->timer, time_min(graphs->pacer.next_ns, graphs->sweep_ns));
    return any;
}
