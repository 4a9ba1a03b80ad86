#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utlist.h>

#include "client/lib/internal.h"
#include "client/lib/submit.h"

/*
 * Groups of a thread: the operations called within a group are collected, and submitted together.
 *
 * Another thread may leave a communicator meanwhile, and takes its operations out of all open groups. So a
 * lock guards what groups have collected. A thread that holds it may take the fences' lock, but not a
 * client's. A group that ends leaves the list first: then it is its thread's alone.
 */

/* A communicator whose operations in the group have streams. */
struct streams {
    const struct comm_comm *comm;
    uint64_t comm_id;
    uint64_t capture_id; /* of its streams; 0: none is captured */
};

struct group {
    struct group *prev, *next; /* the open groups of all threads */
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
    struct kept_error left; /* why operations are missing: another thread has left their communicator */
};

static _Thread_local struct group *group; /* null: this thread has none open */

static struct {
    pthread_mutex_t lock;
    pthread_once_t once;
    struct group *open; /* a thread that ends with an open group leaves it here */
} groups = {.lock = PTHREAD_MUTEX_INITIALIZER, .once = PTHREAD_ONCE_INIT};

static void groups_lock(void)
{
    (void)pthread_mutex_lock(&groups.lock);
}

static void groups_unlock(void)
{
    (void)pthread_mutex_unlock(&groups.lock);
}

/* A child of fork has groups of its own: no other thread may hold the lock when it is copied. */
static void groups_init(void)
{
    (void)pthread_atfork(groups_lock, groups_unlock, groups_unlock);
}

/* Returns null if memory is short. */
static struct group *group_open(void)
{
    struct group *opened = calloc(1, sizeof *opened);
    if (opened != NULL) {
        (void)pthread_once(&groups.once, groups_init);
        groups_lock();
        DL_APPEND(groups.open, opened);
        groups_unlock();
    }
    return opened;
}

/* Ends this thread's group, which other threads cannot reach any more. The caller frees it. */
static struct group *group_take(void)
{
    struct group *taken = group;
    groups_lock();
    DL_DELETE(groups.open, taken);
    groups_unlock();
    group = NULL;
    return taken;
}

bool group_is_open(void)
{
    return group != NULL;
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
    if (group == NULL) {
        group = group_open();
    }
    if (group == NULL) {
        return error_report(COMM_NO_MEMORY, "comm_group_begin: no memory for a group");
    }
    if (group->depth == UINT32_MAX) {
        return error_report(COMM_LIMIT, "comm_group_begin: groups are nested too deep");
    }
    group->depth++;
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
        with_room(group->streams, group->stream_count, &group->stream_capacity, sizeof *grown);
    if (grown == NULL) {
        return error_report(COMM_NO_MEMORY, "no memory for a group");
    }
    group->streams = grown;
    group->streams[group->stream_count++] =
        (struct streams){.comm = comm, .comm_id = comm->comm_id, .capture_id = capture_id};
    return COMM_OK;
}

/* Groups often call for the same communicators in turn: the search goes on where it last ended. Returns null
 * if it is not there. */
static const struct streams *find_streams(const struct comm_comm *comm)
{
    for (size_t i = 1; i <= group->stream_count; i++) {
        size_t at = (group->stream_found + i) % group->stream_count;
        if (group->streams[at].comm == comm) {
            group->stream_found = at;
            return &group->streams[at];
        }
    }
    return NULL;
}

/* With the groups' lock. */
static comm_result_t check_capture(const struct comm_comm *comm, const struct client_call *call,
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
    for (size_t i = 0; i < group->stream_count; i++) {
        const struct streams *other = &group->streams[i];
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

comm_result_t group_check_capture(const struct comm_comm *comm, const struct client_call *call,
                                  uint64_t capture_id)
{
    groups_lock();
    comm_result_t result = check_capture(comm, call, capture_id);
    groups_unlock();
    return result;
}

comm_result_t group_add_captured(const struct capture_entry *entry)
{
    struct client_call *copy = call_copy(entry->call, entry->comm->size);
    groups_lock();
    struct capture_entry *grown = copy != NULL ? with_room(group->captured, group->captured_count,
                                                           &group->captured_capacity, sizeof *grown)
                                               : NULL;
    if (grown != NULL) {
        group->captured = grown;
        group->captured[group->captured_count] = *entry;
        group->captured[group->captured_count++].call = copy;
    }
    groups_unlock();
    if (grown == NULL) {
        free(copy);
        return error_report(COMM_NO_MEMORY, "no memory for a group");
    }
    return COMM_OK;
}

/* A group's calls are copies of its own. */
static void call_free(const struct client_call *call)
{
    free((struct client_call *)(uintptr_t)call);
}

/* How a call's operation ends that is not submitted, because its communicator was left. */
static void describe_left(const struct comm_comm *comm, const struct client_call *call,
                          struct kept_error *out)
{
    out->data = failure_data(COMM_ABORTED, op_kind_text(call->terms.kind));
    (void)snprintf(out->text, sizeof out->text,
                   "%s on \"%s\": this rank left the communicator before the group ended", call->name,
                   comm->name);
}

/* A thread that leaves the communicator itself knows that. Another one learns it when its group ends. */
static void note_left(struct group *of, const struct kept_error *left)
{
    if (of != group && of->left.data.result == COMM_OK) {
        of->left = *left;
    }
}

/* Takes a captured call of this communicator out of any group. Returns false if there is none. */
static bool take_captured(const struct comm_comm *comm, struct capture_entry *out)
{
    bool found = false;
    groups_lock();
    for (struct group *of = groups.open; of != NULL && !found; of = of->next) {
        size_t at = 0;
        while (at < of->captured_count && of->captured[at].comm != comm) {
            at++;
        }
        if (at < of->captured_count) {
            struct kept_error left;
            found = true;
            *out = of->captured[at];
            describe_left(comm, out->call, &left);
            note_left(of, &left);
            of->captured_count--;
            memmove(&of->captured[at], &of->captured[at + 1],
                    (of->captured_count - at) * sizeof of->captured[0]);
        }
    }
    groups_unlock();
    return found;
}

/* With the client's lock. To release memory may call the driver, so that is without the groups' lock. */
static void forget_captured(const struct comm_comm *comm)
{
    struct capture_entry entry;
    while (take_captured(comm, &entry)) {
        capture_release(&entry);
        call_free(entry.call);
    }
}

/* With the groups' lock. */
static void forget_streams(struct group *of, const struct comm_comm *comm)
{
    size_t kept = 0;
    for (size_t i = 0; i < of->stream_count; i++) {
        if (of->streams[i].comm != comm) {
            of->streams[kept++] = of->streams[i];
        }
    }
    of->stream_count = kept;
}

comm_result_t group_add(struct comm_comm *comm, const struct client_call *call, struct comm_request *request,
                        const struct stream_order *order)
{
    struct client_call *copy = call_copy(call, comm->size);
    bool has_queue = call->options.queue != NULL;
    struct client_op *op = copy != NULL && has_queue ? op_new(comm, copy) : NULL;
    bool made = copy != NULL && (op != NULL || !has_queue);
    groups_lock();
    struct client_entry *grown =
        made ? with_room(group->entries, group->count, &group->capacity, sizeof *grown) : NULL;
    if (grown != NULL) {
        group->entries = grown;
        group->entries[group->count++] =
            (struct client_entry){.comm = comm, .call = copy, .request = request, .order = *order, .op = op};
    }
    groups_unlock();
    if (grown == NULL) {
        free(op);
        free(copy);
        return error_report(COMM_NO_MEMORY, "%s on \"%s\": no memory for a group", call->name, comm->name);
    }
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

/* Frees the group, but not what its entries hold. */
static void group_free(struct group *taken)
{
    free(taken->entries);
    free(taken->captured);
    free(taken->streams);
    free(taken);
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
    if (group == NULL) {
        return;
    }
    struct group *dropped = group_take();
    for (size_t i = 0; i < dropped->count; i++) {
        stream_abandon(dropped->entries[i].comm, &dropped->entries[i].order);
        (void)request_leave_group(dropped->entries[i].request);
        entry_free(&dropped->entries[i]);
    }
    for (size_t i = 0; i < dropped->captured_count; i++) {
        capture_drop(&dropped->captured[i]);
        call_free(dropped->captured[i].call);
    }
    group_free(dropped);
}

/* With the locks of the client and of the groups, like the next one. */
static void forget_entry(struct group *of, struct client_entry *entry)
{
    struct kept_error left;
    describe_left(entry->comm, entry->call, &left);
    note_left(of, &left);
    entry->request = request_leave_group(entry->request);
    if (entry->call->options.queue != NULL) {
        tell_queue(entry, &left.data, left.text);
    } else if (entry->request != NULL) {
        request_end(entry->request, COMM_ABORTED, &left.data, left.text);
    }
    stream_abandon(entry->comm, &entry->order);
    entry_free(entry);
}

static void forget_entries(struct group *of, const struct comm_comm *comm)
{
    size_t kept = 0;
    for (size_t i = 0; i < of->count; i++) {
        if (of->entries[i].comm != comm) {
            of->entries[kept++] = of->entries[i];
        } else {
            forget_entry(of, &of->entries[i]);
        }
    }
    of->count = kept;
}

void group_forget(struct comm_comm *comm)
{
    struct group *each;
    forget_captured(comm);
    groups_lock();
    DL_FOREACH(groups.open, each)
    {
        forget_streams(each, comm);
        forget_entries(each, comm);
    }
    groups_unlock();
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
 * with others must find the same ones as ranks that do not. So may messages, which only some ranks send or
 * receive. Larger buckets gain nothing.
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
        if (entries[i].comm != entries[first].comm || op_kind_is_message(entries[i].call->terms.kind)) {
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

/* Submits what the group has collected. The first failure is kept. */
static comm_result_t submit_all(const struct group *ended, struct kept_error *kept)
{
    comm_result_t first_failure = ended->left.data.result;
    *kept = ended->left;
    make_buckets(ended->entries, ended->count);
    for (size_t begin = 0, end; begin < ended->count; begin = end) {
        const struct comm_client *client = ended->entries[begin].comm->client;
        for (end = begin; end < ended->count && ended->entries[end].comm->client == client;) {
            end++;
        }
        comm_result_t result = submit_part(&ended->entries[begin], end - begin);
        if (first_failure == COMM_OK && result != COMM_OK) {
            first_failure = result;
            error_keep(kept);
        }
    }
    return first_failure;
}

comm_result_t comm_group_end(void)
{
    struct kept_error kept;
    if (group == NULL) {
        return error_report(COMM_INVALID_ARGUMENT, "comm_group_end: there is no group");
    }
    if (--group->depth > 0) {
        return COMM_OK;
    }
    struct group *ended = group_take();
    comm_result_t first_failure = submit_all(ended, &kept);
    comm_result_t ordered = end_in_streams(ended->entries, ended->count);
    comm_result_t captured = end_captured(ended);
    ordered = ordered == COMM_OK ? captured : ordered;
    for (size_t i = 0; i < ended->count; i++) {
        entry_free(&ended->entries[i]);
    }
    group_free(ended);
    return first_failure != COMM_OK ? error_report_kept(&kept) : ordered;
}
