#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/lib/buffers.h"
#include "client/lib/internal.h"
#include "client/lib/submit.h"

/*
 * A captured operation is a record that commd keeps, and three steps of the graph, at each replay: set the
 * word `ended` to 0, set the word `ready` to 1, wait until `ended` is 1. commd sees `ready`, runs the
 * operation, and sets `ended`. The library's threads have no part in that.
 */

#define ANSWER_NS 1000000 /* between looks whether another thread's capture on the communicator is done */
#define NAME_PREFIX_MAX_BYTES 96

/* --- The call --- */

static comm_result_t refuse(const struct comm_comm *comm, const struct client_call *call,
                            comm_result_t result, const char *why)
{
    return error_report(result, "%s on \"%s\": the stream is being captured, and %s", call->name, comm->name,
                        why);
}

comm_result_t capture_refuse(const struct comm_comm *comm, const struct client_call *call,
                             const struct stream_capture *at, const char *why)
{
    return at->id == 0 ? COMM_OK : refuse(comm, call, COMM_UNSUPPORTED, why);
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

/* Finds the buffers. With the client's lock, which it releases meanwhile. */
static comm_result_t find_buffers(struct capture_entry *entry)
{
    size_t staged_bytes;
    entry->op = op_new(entry->comm, entry->call);
    if (entry->op == NULL) {
        return error_report(COMM_NO_MEMORY, "\"%s\": no memory for an operation", entry->comm->name);
    }
    comm_result_t result = buffers_find(entry->comm, entry->call, entry->op, &staged_bytes);
    result = result == COMM_OK ? check_buffers(entry->comm, entry->call, entry->op) : result;
    return result == COMM_OK ? buffers_stage(entry->comm, entry->call, entry->op) : result; /* the layouts */
}

void capture_release(struct capture_entry *entry)
{
    struct comm_client *client = entry->comm->client;
    if (entry->op != NULL) {
        op_free(client, entry->op, true);
    }
    if (!entry->kept) {
        fence_give(&client->fences, entry->slot, entry->lent); /* commd may have kept it after all */
    }
    entry->op = NULL;
    entry->slot = NULL;
}

void capture_drop(struct capture_entry *entry)
{
    pthread_mutex_lock(&entry->comm->client->lock);
    capture_release(entry);
    client_leave(entry->comm->client);
}

/* --- The parts of communicators that the graphs need --- */

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

/* A part that forms. Allocated, because it must not move. */
struct forming {
    struct forming *next;
    const struct capture_entry *entry; /* the first of the part */
    struct client_graph *graph;
    struct comm_comm *part;
    struct member_forming member;
};

/* The first operation of a communicator in a capture. With the client's lock, which it may release. */
static comm_result_t part_begin(struct capture_entry *entry, struct forming **list)
{
    char name[COMM_NAME_MAX_BYTES + 1];
    struct comm_comm *comm = entry->comm;
    struct forming *forming = calloc(1, sizeof *forming);
    struct client_graph *graph = forming != NULL ? graph_make(comm->client, entry->at.id) : NULL;
    if (graph == NULL) {
        free(forming);
        return error_report(COMM_NO_MEMORY, "no memory for a CUDA graph's operations");
    }
    part_name(comm, ++comm->graph_count, name, sizeof name);
    comm_result_t result = member_join_part_begin(comm, name, graph, &forming->member, &forming->part);
    if (result != COMM_OK) {
        free(forming);
        graph_released(graph);
        return result;
    }
    entry->graph = graph;
    forming->entry = entry;
    forming->graph = graph;
    forming->next = *list;
    *list = forming;
    return COMM_OK;
}

/* Waits for all ranks. Without the lock. */
static comm_result_t part_end(const struct forming *forming)
{
    struct comm_client *client = forming->entry->comm->client;
    struct comm_comm *part = forming->part;
    pthread_mutex_lock(&client->lock);
    comm_result_t result = member_join_part_end(part, (struct member_forming *)(uintptr_t)&forming->member);
    if (result == COMM_OK) {
        forming->graph->part = part;
    }
    client_leave(client);
    if (result != COMM_OK) {
        graph_released(forming->graph);
        return result;
    }
    return graph_bind(forming->entry->comm->gpu, forming->graph, &forming->entry->at);
}

/* Finds the part of each entry, or asks commd for it. Without the lock. The first failure is reported. */
static comm_result_t parts_begin(struct capture_entry *entries, size_t count, struct forming **list)
{
    comm_result_t first = COMM_OK;
    for (size_t i = 0; i < count && first == COMM_OK; i++) {
        first = client_enter(entries[i].comm->client);
        if (first == COMM_OK) {
            entries[i].graph = graph_find(entries[i].comm, entries[i].at.id);
            first = entries[i].graph != NULL ? COMM_OK : part_begin(&entries[i], list);
            client_leave(entries[i].comm->client);
        }
    }
    return first;
}

/* Entries whose part could not be made have no graph afterwards. */
static comm_result_t parts_end(struct capture_entry *entries, size_t count, struct forming *list)
{
    comm_result_t first = COMM_OK;
    struct kept_error kept;
    while (list != NULL) {
        struct forming *forming = list;
        list = list->next;
        comm_result_t result = part_end(forming);
        for (size_t i = 0; i < count && result != COMM_OK; i++) {
            entries[i].graph = entries[i].graph != forming->graph ? entries[i].graph : NULL;
        }
        if (first == COMM_OK && result != COMM_OK) {
            first = result;
            error_keep(&kept);
        }
        free(forming);
    }
    return first == COMM_OK ? COMM_OK : error_report_kept(&kept);
}

/* Waits for the parts even if one of them failed: all have been asked for. */
static comm_result_t find_parts(struct capture_entry *entries, size_t count)
{
    struct forming *list = NULL;
    struct kept_error kept;
    comm_result_t begun = parts_begin(entries, count, &list);
    if (begun != COMM_OK) {
        error_keep(&kept);
    }
    comm_result_t ended = parts_end(entries, count, list);
    return begun == COMM_OK ? ended : error_report_kept(&kept);
}

/* --- Into the graph --- */

/* What the graph does at each replay. In a group, the stream waits at the group's end. */
static comm_result_t add_words(const struct capture_entry *entry, bool waits)
{
    struct fence_mark ready = {.slot = entry->slot, .word = FENCE_READY};
    struct fence_mark ended = {.slot = entry->slot, .word = FENCE_ENDED};
    struct cuda_memop memops[] = {
        {.operation = CUDA_MEMOP_WRITE_64, .address = fence_address(&ended), .value = 0},
        {.operation = CUDA_MEMOP_WRITE_64, .address = fence_address(&ready), .value = 1},
        {.operation = CUDA_MEMOP_WAIT_64,
         .address = fence_address(&ended),
         .value = 1,
         .flags = CUDA_WAIT_VALUE_GEQ}};
    return stream_add(entry->comm->gpu, entry->call->options.stream, memops, waits ? 3 : 2);
}

static comm_result_t add_wait(const struct capture_entry *entry)
{
    struct fence_mark ended = {.slot = entry->slot, .word = FENCE_ENDED};
    struct cuda_memop memop = {.operation = CUDA_MEMOP_WAIT_64,
                               .address = fence_address(&ended),
                               .value = 1,
                               .flags = CUDA_WAIT_VALUE_GEQ};
    return stream_add(entry->comm->gpu, entry->call->options.stream, &memop, 1);
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

/* Has commd keep the operation. With the client's lock, which it releases meanwhile. */
static comm_result_t keep(struct capture_entry *entry)
{
    struct comm_comm *comm = entry->comm;
    struct client_graph *graph = entry->graph;
    if (graph->part == NULL) {
        return error_report(COMM_ABORTED, "%s on \"%s\": an earlier operation of the capture failed",
                            entry->call->name, comm->name);
    }
    if (graph->op_count >= GRAPH_OPS_MAX) {
        return error_report(COMM_LIMIT, "%s on \"%s\": a CUDA graph holds %u operations of it at most",
                            entry->call->name, comm->name, GRAPH_OPS_MAX);
    }
    fence_lend(entry->slot);
    entry->lent = true;
    comm_result_t result = announce(comm, graph->part, entry->call, entry->op, entry->slot);
    release_memories(comm->client, entry->op);
    struct graph_op added = {.slot = entry->slot, .op = entry->op};
    if (result == COMM_OK && !graph_add(graph, &added)) {
        result = error_report(COMM_NO_MEMORY, "no memory for a CUDA graph's operation");
        if (graph->part != NULL) {
            member_fail(graph->part, result, "%s", comm_last_error());
        }
    } else if (result == COMM_OK) {
        entry->kept = true;
        entry->op = NULL;
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

/* Without the lock. */
static comm_result_t add_to_graph(struct capture_entry *entry, bool waits)
{
    struct comm_client *client = entry->comm->client;
    comm_result_t result = client_enter(client);
    if (result != COMM_OK) {
        return result;
    }
    result = keep(entry);
    client_leave(client);
    if (result == COMM_OK) {
        entry->added = add_words(entry, waits) == COMM_OK;
        result = entry->added ? COMM_OK : graph_spoil(entry->comm, entry->graph);
    }
    return result == COMM_OK ? COMM_OK
                             : error_within(result, "%s on \"%s\"", entry->call->name, entry->comm->name);
}

/* --- Calls of one communicator: one thread after the other, because their order is that of their numbers ---
 */

static comm_result_t begin(struct comm_comm *comm)
{
    comm_result_t result = client_enter(comm->client);
    while (result == COMM_OK && comm->captures && comm->client->lost == COMM_OK) {
        client_progress(comm->client, clock_ns() + ANSWER_NS);
    }
    if (result == COMM_OK) {
        comm->captures = true;
        client_leave(comm->client);
    }
    return result;
}

static void end(struct comm_comm *comm)
{
    if (client_enter(comm->client) == COMM_OK) {
        comm->captures = false;
        client_leave(comm->client);
    }
}

static int by_address(const void *one, const void *other)
{
    uintptr_t a = (uintptr_t) * (struct comm_comm *const *)one,
              b = (uintptr_t) * (struct comm_comm *const *)other;
    return a < b ? -1 : a > b;
}

/* Lists the communicators, each once. All threads begin with them in the same order. */
static size_t list_comms(const struct capture_entry *entries, size_t count, struct comm_comm **out)
{
    size_t found = 0;
    for (size_t i = 0; i < count; i++) {
        out[i] = entries[i].comm;
    }
    qsort(out, count, sizeof(struct comm_comm *), by_address);
    for (size_t i = 0; i < count; i++) {
        if (i == 0 || out[i] != out[found - 1]) {
            out[found++] = out[i];
        }
    }
    return found;
}

/* The program may have ended the capture since the call. */
static comm_result_t check_still_captured(const struct capture_entry *entries, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        struct stream_capture now;
        const struct capture_entry *entry = &entries[i];
        comm_result_t result = stream_find_capture(entry->comm->gpu, entry->call->options.stream, &now);
        if (result != COMM_OK || now.id != entry->at.id) {
            return error_report(COMM_INVALID_ARGUMENT,
                                "%s on \"%s\": the stream's capture ended before the group",
                                entry->call->name, entry->comm->name);
        }
    }
    return COMM_OK;
}

/* Without the lock. All communicators are claimed. */
static comm_result_t add_all(struct capture_entry *entries, size_t count)
{
    bool waits = count == 1; /* of several operations, all are ready before a stream waits for one of them */
    struct kept_error kept;
    comm_result_t first = find_parts(entries, count);
    if (first != COMM_OK) {
        error_keep(&kept);
    }
    for (size_t i = 0; i < count; i++) {
        comm_result_t result = entries[i].graph != NULL ? add_to_graph(&entries[i], waits) : COMM_OK;
        if (first == COMM_OK && result != COMM_OK) {
            first = result;
            error_keep(&kept);
        }
    }
    for (size_t i = 0; i < count && !waits; i++) {
        comm_result_t result = entries[i].added ? add_wait(&entries[i]) : COMM_OK;
        if (first == COMM_OK && result != COMM_OK) {
            first = result;
            error_keep(&kept);
        }
    }
    return first == COMM_OK ? COMM_OK : error_report_kept(&kept);
}

comm_result_t captures_commit(struct capture_entry *entries, size_t count)
{
    size_t comm_count = 0, claimed = 0;
    struct comm_comm **comms = count > 0 ? calloc(count, sizeof(struct comm_comm *)) : NULL;
    comm_result_t result = comms != NULL || count == 0
                               ? check_still_captured(entries, count)
                               : error_report(COMM_NO_MEMORY, "no memory for operations in CUDA graphs");
    if (result == COMM_OK && count > 0) {
        comm_count = list_comms(entries, count, comms);
    }
    while (result == COMM_OK && claimed < comm_count) {
        result = begin(comms[claimed]);
        claimed += result == COMM_OK;
    }
    result = result == COMM_OK ? add_all(entries, count) : result;
    for (size_t i = 0; i < claimed; i++) {
        end(comms[i]);
    }
    free(comms);
    for (size_t i = 0; i < count; i++) {
        capture_drop(&entries[i]);
    }
    return result;
}

comm_result_t capture_submit(struct comm_comm *comm, const struct client_call *call,
                             const struct stream_capture *at)
{
    struct comm_client *client = comm->client;
    struct capture_entry entry = {.comm = comm, .call = call, .at = *at};
    comm_result_t result = check_call(comm, call);
    result = result == COMM_OK ? graph_keeper_start(client) : result;
    result = result == COMM_OK ? fence_take(client, &entry.slot) : result;
    if (result == COMM_OK) {
        result = client_enter(client);
    }
    if (result != COMM_OK) {
        fence_give(&client->fences, entry.slot, false);
        return result;
    }
    result = find_buffers(&entry);
    client_leave(client);
    if (result == COMM_OK && group_is_open()) {
        result = group_add_captured(&entry);
    } else if (result == COMM_OK) {
        return captures_commit(&entry, 1);
    }
    if (result != COMM_OK) {
        capture_drop(&entry);
        result = error_within(result, "%s on \"%s\"", call->name, comm->name);
    }
    return result;
}
