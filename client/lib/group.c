#include <stdio.h>
#include <stdlib.h>

#include "client/lib/internal.h"
#include "client/lib/submit.h"

/* Groups of a thread: the operations called within a group are collected, and submitted together. */

/* A communicator whose operations in the group have streams. */
struct streams {
    const struct comm_comm *comm;
    uint64_t comm_id;
    uint64_t capture_id; /* of its streams; 0: none is captured */
};

struct group {
    uint32_t depth;
    struct streams *streams;
    size_t stream_count;
    size_t stream_capacity;
    size_t stream_found;            /* where the last search ended */
    struct capture_entry *captured; /* the calls are copies of its own */
    size_t captured_count;
    size_t captured_capacity;
    struct client_entry *entries;
    size_t count;
    size_t capacity;
};

static _Thread_local struct group group;

bool group_is_open(void)
{
    return group.depth > 0;
}

comm_result_t group_allows_wait(const char *call, const char *name)
{
    return !group_is_open()
               ? COMM_OK
               : error_report(COMM_INVALID_ARGUMENT,
                              "%s on \"%s\": a group is open: a call cannot wait before comm_group_end", call,
                              name);
}

comm_result_t comm_group_begin(void)
{
    if (group.depth == UINT32_MAX) {
        return error_report(COMM_LIMIT, "comm_group_begin: groups are nested too deep");
    }
    group.depth++;
    return COMM_OK;
}

/* Returns the array, with room for one more element; null if memory is short: then it is as it was. */
static void *with_room(void *array, size_t count, size_t *capacity, size_t element_bytes)
{
    if (count < *capacity) {
        return array;
    }
    size_t larger = *capacity != 0 ? 2 * *capacity : 16;
    void *grown = reallocarray(array, larger, element_bytes);
    *capacity = grown != NULL ? larger : *capacity;
    return grown;
}

/* Adds the communicator to those with streams. */
static comm_result_t add_streams(const struct comm_comm *comm, uint64_t capture_id)
{
    struct streams *grown =
        with_room(group.streams, group.stream_count, &group.stream_capacity, sizeof *grown);
    if (grown == NULL) {
        return error_report(COMM_NO_MEMORY, "no memory for a group");
    }
    group.streams = grown;
    group.streams[group.stream_count++] =
        (struct streams){.comm = comm, .comm_id = comm->comm_id, .capture_id = capture_id};
    return COMM_OK;
}

/* Groups often call for the same communicators in turn: the search goes on where it last ended. Returns null
 * if it is not there. */
static const struct streams *find_streams(const struct comm_comm *comm)
{
    for (size_t i = 1; i <= group.stream_count; i++) {
        size_t at = (group.stream_found + i) % group.stream_count;
        if (group.streams[at].comm == comm) {
            group.stream_found = at;
            return &group.streams[at];
        }
    }
    return NULL;
}

comm_result_t group_check_capture(const struct comm_comm *comm, const struct client_call *call,
                                  uint64_t capture_id)
{
    if (call->options.stream == COMM_STREAM_NONE || comm->gpu == NULL) {
        return COMM_OK;
    }
    const struct streams *own = find_streams(comm);
    if (own != NULL) {
        return own->capture_id == capture_id
                   ? COMM_OK
                   : error_report(COMM_INVALID_ARGUMENT,
                                  "%s on \"%s\": in a group, one CUDA graph captures all streams of a rank, "
                                  "or none does",
                                  call->name, comm->name);
    }
    for (size_t i = 0; i < group.stream_count; i++) {
        const struct streams *other = &group.streams[i];
        if (other->comm_id == comm->comm_id && (other->capture_id == 0) != (capture_id == 0)) {
            return error_report(COMM_INVALID_ARGUMENT,
                                "%s on \"%s\": in a group, the streams of all ranks of a communicator are "
                                "captured, or none is: that of rank %u is%s",
                                call->name, comm->name, other->comm->rank,
                                other->capture_id == 0 ? " not" : "");
        }
    }
    return add_streams(comm, capture_id);
}

comm_result_t group_add_captured(const struct capture_entry *entry)
{
    struct capture_entry *grown =
        with_room(group.captured, group.captured_count, &group.captured_capacity, sizeof *grown);
    if (grown == NULL) {
        return error_report(COMM_NO_MEMORY, "no memory for a group");
    }
    group.captured = grown;
    struct client_call *copy = call_copy(entry->call, entry->comm->size);
    if (copy == NULL) {
        return error_report(COMM_NO_MEMORY, "no memory for a group");
    }
    group.captured[group.captured_count] = *entry;
    group.captured[group.captured_count++].call = copy;
    return COMM_OK;
}

/* A group's calls are copies of its own. */
static void call_free(const struct client_call *call)
{
    free((struct client_call *)(uintptr_t)call);
}

/* With the client's lock. */
static void forget_captured(const struct comm_comm *comm)
{
    size_t kept = 0;
    for (size_t i = 0; i < group.captured_count; i++) {
        struct capture_entry *entry = &group.captured[i];
        if (entry->comm != comm) {
            group.captured[kept++] = *entry;
            continue;
        }
        capture_release(entry);
        call_free(entry->call);
    }
    group.captured_count = kept;
}

static void forget_streams(const struct comm_comm *comm)
{
    size_t kept = 0;
    for (size_t i = 0; i < group.stream_count; i++) {
        if (group.streams[i].comm != comm) {
            group.streams[kept++] = group.streams[i];
        }
    }
    group.stream_count = kept;
}

comm_result_t group_add(struct comm_comm *comm, const struct client_call *call, struct comm_request *request,
                        const struct stream_order *order)
{
    struct client_entry *grown = with_room(group.entries, group.count, &group.capacity, sizeof *grown);
    if (grown == NULL) {
        return error_report(COMM_NO_MEMORY, "%s on \"%s\": no memory for a group", call->name, comm->name);
    }
    group.entries = grown;
    struct client_call *copy = call_copy(call, comm->size);
    bool has_queue = call->options.queue != NULL;
    struct client_op *op = copy != NULL && has_queue ? op_new(comm, copy) : NULL;
    if (copy == NULL || (has_queue && op == NULL)) {
        free(copy);
        return error_report(COMM_NO_MEMORY, "%s on \"%s\": no memory for a group", call->name, comm->name);
    }
    group.entries[group.count++] =
        (struct client_entry){.comm = comm, .call = copy, .request = request, .order = *order, .op = op};
    return COMM_OK;
}

/* A group's calls are copies of its own. */
static struct client_call *call_of(const struct client_entry *entry)
{
    return (struct client_call *)(uintptr_t)entry->call;
}

static void entry_free(struct client_entry *entry)
{
    free(entry->op);
    free(call_of(entry));
}

/* The queue of an operation that was not submitted gets its completion. */
static void tell_queue(struct client_entry *entry, const comm_failure_t *data, const char *text)
{
    struct client_op *op = entry->op;
    if (op == NULL || queue_check(entry->comm, entry->call) != COMM_OK) {
        return; /* it was submitted; or the queue was destroyed */
    }
    entry->op = NULL;
    op->request = entry->request;
    if (op->request != NULL) {
        op->request->op = op;
    }
    queue_expect(op, entry->call);
    op_fail_unsent(entry->comm, op, data, text);
}

void group_drop(void)
{
    for (size_t i = 0; i < group.count; i++) {
        stream_abandon(group.entries[i].comm, &group.entries[i].order);
        (void)request_leave_group(group.entries[i].request);
        entry_free(&group.entries[i]);
    }
    free(group.entries);
    for (size_t i = 0; i < group.captured_count; i++) {
        capture_drop(&group.captured[i]);
        call_free(group.captured[i].call);
    }
    free(group.captured);
    free(group.streams);
    group = (struct group){0};
}

void group_forget(struct comm_comm *comm)
{
    size_t kept = 0;
    forget_captured(comm);
    forget_streams(comm);
    for (size_t i = 0; i < group.count; i++) {
        struct client_entry *entry = &group.entries[i];
        if (entry->comm != comm) {
            group.entries[kept++] = *entry;
            continue;
        }
        char text[ERROR_TEXT_BYTES];
        (void)snprintf(text, sizeof text,
                       "%s on \"%s\": this rank left the communicator before the group ended",
                       entry->call->name, comm->name);
        comm_failure_t aborted = failure_data(COMM_ABORTED, op_kind_text(entry->call->terms.kind));
        entry->request = request_leave_group(entry->request);
        if (entry->call->options.queue != NULL) {
            tell_queue(entry, &aborted, text);
        } else if (entry->request != NULL) {
            request_end(entry->request, COMM_ABORTED, &aborted, text);
        }
        stream_abandon(comm, &entry->order);
        entry_free(entry);
    }
    group.count = kept;
}

/* Whether operations of this call's kind may run as one. */
static bool may_join(const struct client_entry *entry)
{
    const struct op_terms *terms = &entry->call->terms;
    bool has_blocks = op_kind_has_blocks(terms->kind);
    return op_kind_is_in_buckets(terms->kind) &&
           (!has_blocks || (entry->comm->client->joins_blocks && terms->has_layouts == 0));
}

/* Whether the two operations may run as one. */
static bool goes_with(const struct client_entry *entry, const struct client_entry *first)
{
    return entry->comm == first->comm && may_join(entry) && may_join(first) &&
           entry->call->terms.kind == first->call->terms.kind &&
           entry->call->terms.dtype == first->call->terms.dtype &&
           entry->call->terms.reduce == first->call->terms.reduce &&
           entry->call->terms.compression == COMPRESSION_NONE &&
           first->call->terms.compression == COMPRESSION_NONE &&
           entry->call->options.timeout_ms == first->call->options.timeout_ms;
}

/* The elements that all ranks together contribute to a result. The size counts only up to the limit. */
static size_t joined_bytes(const struct client_entry *entry)
{
    const struct op_terms *terms = &entry->call->terms;
    size_t blocks = op_kind_has_blocks(terms->kind) ? entry->comm->size : 1;
    size_t each = dtype_size_bytes(terms->dtype) * blocks;
    return terms->count_elements < CALL_BUCKET_MAX_BYTES / each ? terms->count_elements * each
                                                                : CALL_BUCKET_MAX_BYTES;
}

/*
 * Finds the operations that run as one with the first one: those of the same communicator behind it, up to
 * one of another kind. Operations of other communicators may stand between them: ranks that share a process
 * with others must find the same ones as ranks that do not. Larger buckets gain nothing.
 */
static size_t find_bucket(const struct client_entry *entries, size_t first, size_t count,
                          size_t out[OP_BUCKET_OPS_MAX])
{
    size_t found = 0, size_bytes = 0;
    out[found++] = first;
    if (!may_join(&entries[first])) {
        return found;
    }
    size_bytes = joined_bytes(&entries[first]);
    for (size_t i = first + 1; i < count && found < OP_BUCKET_OPS_MAX; i++) {
        if (entries[i].comm != entries[first].comm) {
            continue;
        }
        size_t more = joined_bytes(&entries[i]);
        if (!goes_with(&entries[i], &entries[first]) || size_bytes > CALL_BUCKET_MAX_BYTES ||
            more > CALL_BUCKET_MAX_BYTES - size_bytes) {
            break;
        }
        size_bytes += more;
        out[found++] = i;
    }
    return found;
}

static void make_buckets(const struct client_entry *entries, size_t count)
{
    size_t bucket[OP_BUCKET_OPS_MAX];
    for (size_t first = 0; first < count; first++) {
        if (call_of(&entries[first])->terms.bucket_index > 0) {
            continue; /* of an earlier bucket */
        }
        size_t found = find_bucket(entries, first, count, bucket);
        for (size_t i = 0; i < found; i++) {
            struct op_terms *terms = &call_of(&entries[bucket[i]])->terms;
            terms->bucket_ops = (uint16_t)found;
            terms->bucket_index = (uint16_t)i;
        }
    }
}

/* After a failure to submit: handles and queues of operations that were not submitted get this failure. */
static void fail_handles(struct client_entry *entries, size_t count)
{
    struct kept_error kept;
    error_keep(&kept);
    for (size_t i = 0; i < count; i++) {
        struct comm_request *request = entries[i].request;
        comm_failure_t data = kept.data;
        data.operation = op_kind_text(entries[i].call->terms.kind);
        if (entries[i].call->options.queue != NULL) {
            tell_queue(&entries[i], &data, kept.text);
        } else if (request != NULL && request->op == NULL && !request->ended) {
            request_end(request, data.result, &data, kept.text);
        }
    }
    (void)error_report_kept(&kept);
}

/* Submits successive entries of one client. */
static comm_result_t submit_part(struct client_entry *entries, size_t count)
{
    struct comm_client *client = entries[0].comm->client;
    comm_result_t result = client_enter(client);
    if (result != COMM_OK) {
        return result;
    }
    for (size_t i = 0; i < count; i++) {
        entries[i].request = request_leave_group(entries[i].request);
    }
    result = call_submit_entries(client, entries, count);
    if (result != COMM_OK) {
        fail_handles(entries, count);
    }
    client_leave(client);
    return result;
}

static comm_result_t end_captured(const struct group *ended)
{
    comm_result_t result = captures_commit(ended->captured, ended->captured_count);
    for (size_t i = 0; i < ended->captured_count; i++) {
        call_free(ended->captured[i].call);
    }
    free(ended->captured);
    return result;
}

/* Called after all were submitted: a stream that waits for one operation would block the others. */
static comm_result_t end_in_streams(struct client_entry *entries, size_t count)
{
    comm_result_t first_failure = COMM_OK;
    for (size_t i = 0; i < count; i++) {
        comm_result_t result = stream_end(entries[i].comm, entries[i].call, &entries[i].order);
        first_failure = first_failure == COMM_OK ? result : first_failure;
    }
    return first_failure;
}

comm_result_t comm_group_end(void)
{
    comm_result_t first_failure = COMM_OK;
    struct kept_error kept;
    if (group.depth == 0) {
        return error_report(COMM_INVALID_ARGUMENT, "comm_group_end: there is no group");
    }
    if (--group.depth > 0) {
        return COMM_OK;
    }
    struct group ended = group;
    group = (struct group){0};
    make_buckets(ended.entries, ended.count);
    for (size_t begin = 0, end; begin < ended.count; begin = end) {
        const struct comm_client *client = ended.entries[begin].comm->client;
        for (end = begin; end < ended.count && ended.entries[end].comm->client == client;) {
            end++;
        }
        comm_result_t result = submit_part(&ended.entries[begin], end - begin);
        if (first_failure == COMM_OK && result != COMM_OK) {
            first_failure = result;
            error_keep(&kept);
        }
    }
    comm_result_t ordered = end_in_streams(ended.entries, ended.count);
    comm_result_t captured = end_captured(&ended);
    ordered = ordered == COMM_OK ? captured : ordered;
    free(ended.streams);
    for (size_t i = 0; i < ended.count; i++) {
        entry_free(&ended.entries[i]);
    }
    free(ended.entries);
    return first_failure != COMM_OK ? error_report_kept(&kept) : ordered;
}
