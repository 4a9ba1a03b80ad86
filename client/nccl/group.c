#include <stdlib.h>
#include <string.h>

#include "client/nccl/communicator.h"

/* Groups of a thread. They nest; the outermost end runs what they have collected. */

#define GROUP_CALLS_MAX (1u << 20)

static _Thread_local struct {
    unsigned depth;
    ncclResult_t failure; /* the first one within the group */
    struct nccl_call *calls;
    size_t count;
    size_t capacity;
    struct formation *first;
    struct formation **last;
} group;

ncclResult_t group_note(ncclResult_t result)
{
    if (group.depth > 0 && group.failure == NCCL_SUCCESS) {
        group.failure = result;
    }
    return result;
}

ncclResult_t group_add_call(const struct nccl_call *call)
{
    communicator_call_begins(call->comm);
    if (group.depth == 0) {
        ncclResult_t result = call_submit(call);
        communicator_call_ended(call->comm);
        return result;
    }
    if (group.count == group.capacity) {
        size_t capacity = group.capacity != 0 ? 2 * group.capacity : 64;
        struct nccl_call *grown =
            capacity <= GROUP_CALLS_MAX ? reallocarray(group.calls, capacity, sizeof *grown) : NULL;
        if (grown == NULL) {
            communicator_call_ended(call->comm);
            return group_note(failure_set(NCCL_SYSTEM_ERROR, "%s: no memory for a group", call->name));
        }
        group.calls = grown;
        group.capacity = capacity;
    }
    group.calls[group.count++] = *call;
    return NCCL_SUCCESS;
}

ncclResult_t group_add_formation(struct formation *formation)
{
    formation->next = NULL;
    if (group.depth == 0) {
        return formation_run_all(formation);
    }
    if (group.first == NULL) {
        group.last = &group.first;
    }
    *group.last = formation;
    group.last = &formation->next;
    return NCCL_SUCCESS;
}

void group_forget(struct ncclComm *comm)
{
    size_t kept = 0;
    for (size_t i = 0; i < group.count; i++) {
        if (group.calls[i].comm != comm) {
            group.calls[kept++] = group.calls[i];
        } else {
            communicator_call_ended(comm);
        }
    }
    group.count = kept;
}

NCCL_EXPORT(ncclResult_t, ncclGroupStart, void)
{
    group.depth++;
    return NCCL_SUCCESS;
}

/* The capture of the call's stream; 0: it is not captured. */
static unsigned long long capture_of(const struct nccl_call *call)
{
    const struct cuda_driver *driver = process_driver();
    int status = CUDA_CAPTURE_NONE;
    uint64_t id = 0;
    cuda_graph graph;
    bool asked = driver != NULL && driver->stream_capture_info((cuda_stream)call->stream, &status, &id,
                                                               &graph, NULL, NULL) == CUDA_RESULT_OK;
    return asked && status != CUDA_CAPTURE_NONE ? id : 0;
}

/* A communicator of the group, and the capture of its streams. */
struct captured {
    const struct ncclComm *comm;
    unsigned long long id;
};

/* As NCCL has it: one graph captures all streams of a communicator's rank, and the ranks of one communicator
 * are all captured, by one graph or several, or none is. */
static ncclResult_t check_capture(const struct nccl_call *call, struct captured *found, size_t *count,
                                  size_t *last)
{
    unsigned long long id = capture_of(call);
    for (size_t i = 1; i <= *count; i++) { /* groups often call for the same communicators in turn */
        size_t at = (*last + i) % *count;
        if (found[at].comm == call->comm) {
            *last = at;
            return found[at].id == id
                       ? NCCL_SUCCESS
                       : failure_set(NCCL_INVALID_USAGE,
                                     "ncclGroupEnd: %s: one CUDA graph must capture all streams of a "
                                     "communicator in a group, or none of them",
                                     call->name);
        }
    }
    for (size_t i = 0; i < *count; i++) {
        if (strcmp(found[i].comm->name, call->comm->name) == 0 && (found[i].id == 0) != (id == 0)) {
            return failure_set(
                NCCL_INVALID_USAGE,
                "ncclGroupEnd: %s: either all ranks of a communicator in a group are captured, "
                "or none is: rank %d is%s",
                call->name, found[i].comm->rank, found[i].id == 0 ? " not" : "");
        }
    }
    found[(*count)++] = (struct captured){.comm = call->comm, .id = id};
    return NCCL_SUCCESS;
}

/* Found before anything is submitted: half a group would leave streams that wait for the other half. */
static ncclResult_t check_captures(const struct nccl_call *calls, size_t count)
{
    size_t found_count = 0, last = 0;
    ncclResult_t result = NCCL_SUCCESS;
    struct captured *found = calloc(count, sizeof *found);
    if (found == NULL) {
        return failure_set(NCCL_SYSTEM_ERROR, "ncclGroupEnd: no memory for a group");
    }
    for (size_t i = 0; i < count && result == NCCL_SUCCESS; i++) {
        result = check_capture(&calls[i], found, &found_count, &last);
    }
    free(found);
    return result;
}

static ncclResult_t submit_calls(const struct nccl_call *calls, size_t count)
{
    ncclResult_t first = check_captures(calls, count);
    first = first == NCCL_SUCCESS ? failure_from_library(comm_group_begin()) : first;
    if (first != NCCL_SUCCESS) {
        return first;
    }
    for (size_t i = 0; i < count && first == NCCL_SUCCESS; i++) {
        first = communicator_is_left(calls[i].comm)
                    ? failure_set(NCCL_INVALID_USAGE,
                                  "ncclGroupEnd: %s: another thread has left the communicator", calls[i].name)
                    : call_submit(&calls[i]);
    }
    comm_result_t ended = comm_group_end();
    return first == NCCL_SUCCESS && ended != COMM_OK ? failure_from_library(ended) : first;
}

/* Empties the group, and runs what it has collected if `run`. */
static ncclResult_t end(bool run)
{
    struct nccl_call *calls = group.calls;
    struct formation *formations = group.first;
    size_t count = group.count;
    ncclResult_t result = group.failure;
    group.depth = 0;
    group.failure = NCCL_SUCCESS;
    group.calls = NULL;
    group.count = group.capacity = 0;
    group.first = NULL;
    if (result != NCCL_SUCCESS || !run) {
        formation_drop_all(formations, result != NCCL_SUCCESS ? result : NCCL_INVALID_USAGE);
    } else if (formations != NULL && count > 0) {
        result = failure_set(NCCL_INVALID_USAGE, "ncclGroupEnd: the group makes communicators and also has "
                                                 "operations");
        formation_drop_all(formations, result);
    } else if (formations != NULL) {
        result = formation_run_all(formations);
    } else if (count > 0) {
        result = submit_calls(calls, count);
    }
    for (size_t i = 0; i < count; i++) {
        communicator_call_ended(calls[i].comm);
    }
    free(calls);
    return result;
}

NCCL_EXPORT(ncclResult_t, ncclGroupEnd, void)
{
    if (group.depth == 0) {
        return failure_set(NCCL_INVALID_USAGE, "ncclGroupEnd: no group is open");
    }
    if (group.depth > 1) {
        group.depth--;
        return NCCL_SUCCESS;
    }
    return end(true);
}

NCCL_EXPORT(ncclResult_t, ncclGroupSimulateEnd, ncclSimInfo_t *info)
{
    (void)info;
    if (group.depth == 1) {
        (void)end(false);
    } else if (group.depth > 1) {
        group.depth--;
    }
    return failure_set(NCCL_INVALID_USAGE, "ncclGroupSimulateEnd: commd's libnccl cannot simulate a group");
}
