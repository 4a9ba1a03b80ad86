#include "client/nccl/communicator.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LOOK_MS 1u /* how long a look at the asynchronous error may wait */

struct ncclComm *communicator_new(int rank, int size, int device, struct nccl_config config)
{
    struct ncclComm *comm = calloc(1, sizeof *comm);
    if (comm == NULL || pthread_mutex_init(&comm->lock, NULL) != 0) {
        free(comm);
        return NULL;
    }
    comm->references = 1;
    comm->state = NCCL_IN_PROGRESS;
    comm->rank = rank;
    comm->size = size;
    comm->device = device;
    comm->config = config;
    return comm;
}

void communicator_drop(struct ncclComm *comm)
{
    (void)pthread_mutex_lock(&comm->lock);
    bool last = --comm->references == 0;
    (void)pthread_mutex_unlock(&comm->lock);
    if (last) {
        (void)pthread_mutex_destroy(&comm->lock);
        free(comm);
    }
}

void communicator_made(struct ncclComm *comm, comm_t *made, ncclResult_t result)
{
    (void)pthread_mutex_lock(&comm->lock);
    bool abandoned = comm->abandoned;
    comm->comm = abandoned ? NULL : made;
    comm->state = result;
    if (result != NCCL_SUCCESS) {
        (void)snprintf(comm->text, sizeof comm->text, "%s", failure_text());
    } else {
        comm->rank = (int)comm_rank(made);
        comm->size = (int)comm_size(made);
    }
    (void)pthread_mutex_unlock(&comm->lock);
    if (abandoned && made != NULL) {
        comm_destroy(made);
    }
}

static ncclResult_t state_of(struct ncclComm *comm)
{
    (void)pthread_mutex_lock(&comm->lock);
    ncclResult_t state = comm->state;
    (void)pthread_mutex_unlock(&comm->lock);
    return state;
}

ncclResult_t communicator_check(struct ncclComm *comm, const char *call)
{
    if (comm == NULL) {
        return failure_set(NCCL_INVALID_ARGUMENT, "%s: the communicator is a null pointer", call);
    }
    ncclResult_t state = state_of(comm);
    if (state == NCCL_IN_PROGRESS) {
        return failure_set(
            NCCL_INVALID_ARGUMENT,
            "%s: the communicator is being made: wait until ncclCommGetAsyncError says success", call);
    }
    if (state != NCCL_SUCCESS) {
        (void)pthread_mutex_lock(&comm->lock);
        state = failure_set(state, "%s: %s", call, comm->text);
        (void)pthread_mutex_unlock(&comm->lock);
        return state;
    }
    return comm->finalized ? failure_set(NCCL_INVALID_USAGE, "%s: the communicator is finalized", call)
                           : NCCL_SUCCESS;
}

/* Notes a failure since the last look. Returns true if operations are still under way. */
static bool look(struct ncclComm *comm)
{
    comm_failure_t failure = COMM_FAILURE_INIT;
    comm_result_t result = comm_sync(comm->comm, LOOK_MS);
    if (result == COMM_OK) {
        return false;
    }
    (void)comm_last_failure(&failure);
    if (result == COMM_TIMED_OUT && failure.operation[0] == '\0') {
        return true;
    }
    (void)pthread_mutex_lock(&comm->lock);
    comm->state = failure_from_library(result);
    (void)snprintf(comm->text, sizeof comm->text, "%s", failure_text());
    (void)pthread_mutex_unlock(&comm->lock);
    return false;
}

NCCL_EXPORT(ncclResult_t, ncclCommGetAsyncError, ncclComm_t comm, ncclResult_t *error)
{
    if (comm == NULL || error == NULL) {
        return failure_set(NCCL_INVALID_ARGUMENT, "ncclCommGetAsyncError: an argument is a null pointer");
    }
    *error = state_of(comm);
    if (*error == NCCL_SUCCESS) {
        bool busy = look(comm);
        *error = state_of(comm);
        *error = *error == NCCL_SUCCESS && busy && comm->finalized ? NCCL_IN_PROGRESS : *error;
    }
    return NCCL_SUCCESS;
}

NCCL_EXPORT(const char *, ncclGetLastError, ncclComm_t comm)
{
    static _Thread_local char text[FAILURE_TEXT_BYTES];
    (void)snprintf(text, sizeof text, "%s", failure_text());
    if (comm != NULL) {
        (void)pthread_mutex_lock(&comm->lock);
        if (comm->text[0] != '\0') {
            (void)snprintf(text, sizeof text, "%s", comm->text);
        }
        (void)pthread_mutex_unlock(&comm->lock);
    }
    return text;
}

static ncclResult_t get_number(struct ncclComm *comm, int *out, const char *call, int number)
{
    ncclResult_t result =
        out == NULL ? failure_set(NCCL_INVALID_ARGUMENT, "%s: a null pointer", call) : NCCL_SUCCESS;
    if (result == NCCL_SUCCESS) {
        *out = number;
    }
    (void)comm;
    return result;
}

NCCL_EXPORT(ncclResult_t, ncclCommCount, ncclComm_t comm, int *count)
{
    ncclResult_t result = communicator_check(comm, "ncclCommCount");
    return result != NCCL_SUCCESS ? result : get_number(comm, count, "ncclCommCount", comm->size);
}

NCCL_EXPORT(ncclResult_t, ncclCommCuDevice, ncclComm_t comm, int *device)
{
    ncclResult_t result = communicator_check(comm, "ncclCommCuDevice");
    return result != NCCL_SUCCESS ? result : get_number(comm, device, "ncclCommCuDevice", comm->device);
}

NCCL_EXPORT(ncclResult_t, ncclCommUserRank, ncclComm_t comm, int *rank)
{
    ncclResult_t result = communicator_check(comm, "ncclCommUserRank");
    return result != NCCL_SUCCESS ? result : get_number(comm, rank, "ncclCommUserRank", comm->rank);
}

/* Leaves the communicator. If it is being made, the thread that makes it does that. */
static void leave(struct ncclComm *comm)
{
    (void)pthread_mutex_lock(&comm->lock);
    comm->abandoned = true;
    comm_t *made = comm->comm;
    comm->comm = NULL;
    (void)pthread_mutex_unlock(&comm->lock);
    comm_destroy(made);
    communicator_drop(comm);
}

NCCL_EXPORT(ncclResult_t, ncclCommFinalize, ncclComm_t comm)
{
    ncclResult_t result = communicator_check(comm, "ncclCommFinalize");
    if (result != NCCL_SUCCESS) {
        return result;
    }
    comm->finalized = true;
    return comm->config.blocking ? failure_from_library(comm_sync(comm->comm, 0)) : NCCL_SUCCESS;
}

NCCL_EXPORT(ncclResult_t, ncclCommDestroy, ncclComm_t comm)
{
    if (comm == NULL) {
        return NCCL_SUCCESS;
    }
    if (state_of(comm) == NCCL_SUCCESS) {
        (void)failure_from_library(comm_sync(comm->comm, 0));
    }
    leave(comm);
    return NCCL_SUCCESS;
}

NCCL_EXPORT(ncclResult_t, ncclCommAbort, ncclComm_t comm)
{
    if (comm == NULL) {
        return NCCL_SUCCESS;
    }
    if (state_of(comm) == NCCL_SUCCESS && look(comm)) {
        (void)failure_from_library(comm_abort(comm->comm, "ncclCommAbort"));
    }
    leave(comm);
    return NCCL_SUCCESS;
}
