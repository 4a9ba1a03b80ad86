#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/lib/internal.h"
#include "client/lib/submit.h"

/* Handles, to wait for single operations. */

struct comm_request *request_new(struct comm_comm *comm)
{
    struct comm_request *request = malloc(sizeof *request); /* see op_new */
    if (request != NULL) {
        *request = (struct comm_request){.comm = comm};
    }
    return request;
}

void request_free(struct comm_request *request)
{
    if (request != NULL) {
        free(request->failure);
        free(request->call);
        free(request);
    }
}

void request_end(struct comm_request *request, comm_result_t result, const comm_failure_t *data,
                 const char *text)
{
    request->ended = true;
    request->result = result;
    free(request->failure);
    request->failure =
        result != COMM_OK ? failure_new(data != NULL ? data : failure_plain(result), text) : NULL;
}

static bool is_started(const struct comm_request *request)
{
    return request->op != NULL || request->ended || request->collected;
}

struct comm_request *request_leave_group(struct comm_request *request)
{
    if (request == NULL) {
        return NULL;
    }
    request->collected = false;
    if (request->freed) {
        request_free(request);
        return NULL;
    }
    return request;
}

/* Refuses a handle that a group of another thread has collected, or that another thread waits for, and would
 * free; and one whose operation ends into a queue. Callers check this thread's group before. */
static comm_result_t check_submitted(const char *name, const struct comm_request *request)
{
    if (request != NULL && request->call != NULL && request->call->options.queue != NULL) {
        return error_report(COMM_INVALID_ARGUMENT,
                            "%s on \"%s\": the operation ends into a queue: comm_queue_next waits for it",
                            name, request->comm->name);
    }
    if (request != NULL && request->awaited) {
        return error_report(COMM_INVALID_ARGUMENT, "%s on \"%s\": another thread waits for this handle", name,
                            request->comm->name);
    }
    return request == NULL || !request->collected
               ? COMM_OK
               : error_report(COMM_INVALID_ARGUMENT,
                              "%s on \"%s\": the operation is in a group that has not ended", name,
                              request->comm->name);
}

/* Returns the result. Frees the handle, or makes it ready to be started again. */
static comm_result_t request_take(comm_request_t **handle, comm_received_t *received)
{
    struct comm_request *request = *handle;
    comm_result_t result = request->ended ? request->result : COMM_OK;
    if (result != COMM_OK) {
        const comm_failure_t *data =
            request->failure != NULL ? &request->failure->data : failure_plain(result);
        (void)error_repeat_failure(data, data->text);
    }
    if (received != NULL) {
        *received = request->received;
    }
    request->ended = request->at_once = false;
    request->result = COMM_OK;
    if (request->call == NULL) {
        request_free(request);
        *handle = NULL;
    }
    return result;
}

static comm_result_t check_waiting(const char *name, const void *handle)
{
    if (handle == NULL) {
        return error_report(COMM_INVALID_ARGUMENT, "%s: the argument for the handle is a null pointer", name);
    }
    if (group_is_open()) {
        return error_report(COMM_INVALID_ARGUMENT,
                            "%s: a group is open: a call cannot wait before comm_group_end", name);
    }
    return COMM_OK;
}

/* Waits for the end of a handle that no other thread waits for. */
static bool finish(struct comm_request *request, uint64_t deadline_ns)
{
    request->awaited = true;
    bool finished = ops_finish_request(request, deadline_ns);
    request->awaited = false;
    return finished;
}

/* deadline_ns: UINT64_MAX: the operation's own deadline bounds the wait. */
static comm_result_t wait_until(const char *name, comm_request_t **handle, uint64_t deadline_ns,
                                comm_received_t *received)
{
    comm_result_t result = check_waiting(name, handle);
    if (result != COMM_OK || *handle == NULL) {
        return result;
    }
    if ((*handle)->at_once) {
        return request_take(handle, received);
    }
    struct comm_client *client = (*handle)->comm->client;
    result = client_enter(client);
    if (result == COMM_OK) {
        result = check_submitted(name, *handle);
        if (result == COMM_OK && !finish(*handle, deadline_ns)) {
            result = error_report(COMM_TIMED_OUT, "%s on \"%s\": %s has not ended yet", name,
                                  (*handle)->comm->name, op_kind_text((*handle)->op->kind));
        } else if (result == COMM_OK) {
            result = request_take(handle, received);
        }
        client_leave(client);
    }
    return result;
}

comm_result_t comm_wait(comm_request_t **handle, comm_received_t *received)
{
    return wait_until("comm_wait", handle, UINT64_MAX, received);
}

comm_result_t comm_wait_for(comm_request_t **handle, uint32_t timeout_ms, comm_received_t *received)
{
    uint64_t deadline_ns = timeout_ms == COMM_NO_TIMEOUT ? UINT64_MAX : clock_after_ms(timeout_ms);
    return wait_until("comm_wait_for", handle, deadline_ns, received);
}

comm_result_t comm_test(comm_request_t **handle, int *done, comm_received_t *received)
{
    comm_result_t result = check_waiting("comm_test", handle);
    if (result != COMM_OK) {
        return result;
    }
    if (done == NULL) {
        return error_report(COMM_INVALID_ARGUMENT,
                            "comm_test: the argument for the answer is a null pointer");
    }
    *done = 1;
    if (*handle == NULL) {
        return COMM_OK;
    }
    struct comm_client *client = (*handle)->comm->client;
    result = client_enter(client);
    if (result != COMM_OK) {
        return result;
    }
    if ((*handle)->op != NULL) {
        client_take_events(client);
        held_feed(client);
    }
    result = check_submitted("comm_test", *handle);
    if ((*handle)->op != NULL || result != COMM_OK) {
        *done = 0;
    } else {
        result = request_take(handle, received);
    }
    client_leave(client);
    return result;
}

comm_result_t comm_wait_all(comm_request_t **handles, size_t count, comm_received_t *received)
{
    comm_result_t first = count > 0 ? check_waiting("comm_wait_all", handles) : COMM_OK;
    struct kept_error kept;
    for (size_t i = 0; i < count && handles != NULL && !group_is_open(); i++) {
        comm_result_t result = comm_wait(&handles[i], received != NULL ? &received[i] : NULL);
        if (result != COMM_OK && first == COMM_OK) {
            first = result;
            error_keep(&kept);
        }
    }
    return first != COMM_OK && handles != NULL && !group_is_open() ? error_report_kept(&kept) : first;
}

/* Returns the index of a handle that has ended, or `count`. *waiting gets one that has not ended. */
static size_t find_ended(comm_request_t *const *handles, size_t count, const struct comm_request **waiting)
{
    *waiting = NULL;
    for (size_t i = 0; i < count; i++) {
        if (handles[i] != NULL && handles[i]->op == NULL && handles[i]->ended) {
            return i;
        }
        if (handles[i] != NULL && handles[i]->op != NULL) {
            *waiting = handles[i];
        }
    }
    return count;
}

static void mark_awaited(comm_request_t *const *handles, size_t count, bool awaited)
{
    for (size_t i = 0; i < count; i++) {
        if (handles[i] != NULL) {
            handles[i]->awaited = awaited;
        }
    }
}

/* Waits until one of the handles has ended, and returns its index; `count` if none is started. */
static size_t finish_any(comm_request_t *const *handles, size_t count)
{
    const struct comm_request *waiting;
    uint64_t began_ns = 0;
    size_t index = find_ended(handles, count, &waiting);
    if (index < count || waiting == NULL) {
        return index;
    }
    mark_awaited(handles, count, true);
    while (index == count && waiting != NULL) {
        ops_progress(waiting, &began_ns, UINT64_MAX);
        index = find_ended(handles, count, &waiting);
    }
    mark_awaited(handles, count, false);
    return index;
}

/*
 * The client of the handles that are started; *out becomes null if there is none. Each look at a handle is
 * with its client's lock: another thread may end the operation meanwhile, and the handle would then look as
 * if it was not started.
 */
static comm_result_t client_of_started(comm_request_t *const *handles, size_t count, struct comm_client **out)
{
    struct comm_client *entered = NULL;
    comm_result_t result = COMM_OK;
    *out = NULL;
    for (size_t i = 0; i < count && result == COMM_OK; i++) {
        struct comm_client *client = handles[i] != NULL ? handles[i]->comm->client : NULL;
        if (client != NULL && client != entered) {
            if (entered != NULL) {
                client_leave(entered);
            }
            result = client_enter(client);
            entered = result == COMM_OK ? client : NULL;
        }
        if (client == NULL || result != COMM_OK || !is_started(handles[i])) {
            continue;
        }
        if (*out != NULL && *out != client) {
            result =
                error_report(COMM_INVALID_ARGUMENT, "comm_wait_any: the handles belong to several clients");
        }
        *out = client;
    }
    if (entered != NULL) {
        client_leave(entered);
    }
    return result;
}

comm_result_t comm_wait_any(comm_request_t **handles, size_t count, size_t *index, comm_received_t *received)
{
    comm_result_t result = count > 0 ? check_waiting("comm_wait_any", handles) : COMM_OK;
    if (result != COMM_OK) {
        return result;
    }
    if (index == NULL) {
        return error_report(COMM_INVALID_ARGUMENT,
                            "comm_wait_any: the argument for the answer is a null pointer");
    }
    *index = count;
    struct comm_client *client = NULL;
    result = client_of_started(handles, count, &client);
    if (result != COMM_OK || client == NULL) {
        return result;
    }
    result = client_enter(client);
    if (result != COMM_OK) {
        return result;
    }
    for (size_t i = 0; i < count && result == COMM_OK; i++) {
        result = check_submitted("comm_wait_any", handles[i]);
    }
    if (result == COMM_OK) {
        *index = finish_any(handles, count);
    }
    if (*index < count) {
        result = request_take(&handles[*index], received);
    }
    client_leave(client);
    return result;
}

static comm_result_t check_rests(const struct comm_request *request)
{
    return !is_started(request)
               ? COMM_OK
               : error_report(COMM_IN_PROGRESS,
                              "comm_start: %s on \"%s\" was started, and no call has waited for it yet",
                              request->call->name, request->comm->name);
}

/* Collects the start like any other call, in the order of the calls. */
static comm_result_t start_in_group(struct comm_request *request)
{
    struct comm_client *client = request->comm->client;
    struct stream_order order;
    comm_result_t result = client_enter(client);
    if (result != COMM_OK) {
        return result;
    }
    result = check_rests(request);
    request->collected |= result == COMM_OK;
    client_leave(client);
    if (result != COMM_OK) {
        return result;
    }
    result = stream_begin(request->comm, request->call, &order);
    result = result == COMM_OK
                 ? capture_refuse(request->comm, request->call, &order.capture, CAPTURE_PERSISTENT)
                 : result;
    if (result == COMM_OK) {
        result = group_add(request->comm, request->call, request, &order);
        if (result != COMM_OK) {
            stream_abandon(request->comm, &order);
        }
    }
    if (result != COMM_OK && client_enter(client) == COMM_OK) {
        (void)request_leave_group(request);
        client_leave(client);
    }
    return result;
}

/* Makes the handle ready to be started again. Its operation, if any, loses its handle. */
static void request_rest(struct comm_request *request)
{
    if (request->op != NULL) {
        request->op->request = NULL;
        request->op = NULL;
    }
    request->ended = false;
    request->result = COMM_OK;
}

comm_result_t comm_start(comm_request_t *request)
{
    if (request == NULL || request->call == NULL) {
        return error_report(COMM_INVALID_ARGUMENT,
                            "comm_start: this is not the handle of a persistent operation");
    }
    if (group_is_open()) {
        return start_in_group(request);
    }
    struct comm_client *client = request->comm->client;
    struct client_entry entry = {
        .comm = request->comm, .call = request->call, .request = request, .returns = true};
    comm_result_t result = stream_begin(request->comm, request->call, &entry.order);
    result = result == COMM_OK
                 ? capture_refuse(request->comm, request->call, &entry.order.capture, CAPTURE_PERSISTENT)
                 : result;
    if (result != COMM_OK) {
        return result;
    }
    result = client_enter(client);
    if (result != COMM_OK) {
        stream_abandon(request->comm, &entry.order);
        return result;
    }
    result = check_rests(request);
    if (result != COMM_OK) {
        stream_abandon(request->comm, &entry.order);
    } else {
        result = call_submit_entries(client, &entry, 1);
        if (result != COMM_OK) {
            request_rest(request);
            free(entry.op); /* it was not submitted */
        }
    }
    client_leave(client);
    return result == COMM_OK ? submit_end(&entry) : result;
}

void comm_request_free(comm_request_t *request)
{
    if (request == NULL || client_enter(request->comm->client) != COMM_OK) {
        return;
    }
    struct comm_client *client = request->comm->client;
    if (request->op != NULL) {
        request->op->request = NULL;
    }
    if (request->collected) {
        request->freed = true;
    } else {
        request_free(request);
    }
    client_leave(client);
}
