#include "client/nccl/communicator.h"

#include <limits.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* An abort waits so often for the thread that makes the communicator: a second. */
#define CANCEL_TRIES 5000
#define CANCEL_PAUSE_NS 200000
#define LOOK_MS 1u /* how long a look at the asynchronous error may wait */

/* Numbers repeat after millions of communicators. */
static int next_first_op(void)
{
    static atomic_uint count;
    unsigned room = ((unsigned)INT_MAX - NCCL_FIRST_OWN_OP) / COMMUNICATOR_FACTORS_MAX;
    return NCCL_FIRST_OWN_OP + (int)(atomic_fetch_add(&count, 1) % room) * COMMUNICATOR_FACTORS_MAX;
}

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
    comm->first_op = next_first_op();
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
    comm->joins[0] = '\0';
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

bool communicator_joins(struct ncclComm *comm, const char *name)
{
    (void)pthread_mutex_lock(&comm->lock);
    bool wanted = !comm->abandoned;
    (void)snprintf(comm->joins, sizeof comm->joins, "%s", wanted ? name : "");
    (void)pthread_mutex_unlock(&comm->lock);
    return wanted;
}

static void use_begins(struct ncclComm *comm, int *uses)
{
    (void)pthread_mutex_lock(&comm->lock);
    comm->references++;
    ++*uses;
    (void)pthread_mutex_unlock(&comm->lock);
}

/* With the lock. Returns what the caller is to destroy: nobody uses it any more, and the program has left it.
 */
static comm_t *take_unused(struct ncclComm *comm)
{
    comm_t *unused = comm->abandoned && comm->splits == 0 && comm->calls == 0 ? comm->comm : NULL;
    comm->comm = unused != NULL ? NULL : comm->comm;
    return unused;
}

static void use_ended(struct ncclComm *comm, int *uses, bool alone)
{
    (void)pthread_mutex_lock(&comm->lock);
    comm->alone -= alone ? 1 : 0;
    --*uses;
    comm_t *unused = take_unused(comm);
    (void)pthread_mutex_unlock(&comm->lock);
    comm_destroy(unused);
    communicator_drop(comm);
}

void communicator_split_begins(struct ncclComm *comm)
{
    use_begins(comm, &comm->splits);
}

void communicator_split_alone(struct ncclComm *comm)
{
    (void)pthread_mutex_lock(&comm->lock);
    comm->alone++;
    (void)pthread_mutex_unlock(&comm->lock);
}

void communicator_split_ended(struct ncclComm *comm, bool alone)
{
    use_ended(comm, &comm->splits, alone);
}

void communicator_call_begins(struct ncclComm *comm)
{
    use_begins(comm, &comm->calls);
}

void communicator_call_ended(struct ncclComm *comm)
{
    use_ended(comm, &comm->calls, false);
}

bool communicator_is_left(struct ncclComm *comm)
{
    (void)pthread_mutex_lock(&comm->lock);
    bool left = comm->abandoned;
    (void)pthread_mutex_unlock(&comm->lock);
    return left;
}

/* Keeps the first failure for later calls. Its text is this thread's last error. */
static void note(struct ncclComm *comm, ncclResult_t result)
{
    (void)pthread_mutex_lock(&comm->lock);
    if (comm->state == NCCL_SUCCESS) {
        comm->state = result;
        (void)snprintf(comm->text, sizeof comm->text, "%s", failure_text());
    }
    (void)pthread_mutex_unlock(&comm->lock);
}

static ncclResult_t state_of(struct ncclComm *comm)
{
    (void)pthread_mutex_lock(&comm->lock);
    ncclResult_t state = comm->state == NCCL_SUCCESS && comm->alone > 0 ? NCCL_IN_PROGRESS : comm->state;
    (void)pthread_mutex_unlock(&comm->lock);
    return state;
}

static bool is_finalized(struct ncclComm *comm)
{
    (void)pthread_mutex_lock(&comm->lock);
    bool finalized = comm->finalized;
    (void)pthread_mutex_unlock(&comm->lock);
    return finalized;
}

static bool is_revoked(struct ncclComm *comm)
{
    (void)pthread_mutex_lock(&comm->lock);
    bool revoked = comm->revoked;
    (void)pthread_mutex_unlock(&comm->lock);
    return revoked;
}

/* Returns SUCCESS if it is made and has not failed. `call` is for the text. */
static ncclResult_t communicator_ready(struct ncclComm *comm, const char *call)
{
    if (comm == NULL) {
        return failure_set(NCCL_INVALID_ARGUMENT, "%s: the communicator is a null pointer", call);
    }
    ncclResult_t state = state_of(comm);
    if (state == NCCL_IN_PROGRESS) {
        return failure_set(
            NCCL_INVALID_ARGUMENT,
            "%s: the communicator is being made or split: wait until ncclCommGetAsyncError says success",
            call);
    }
    if (state != NCCL_SUCCESS) {
        (void)pthread_mutex_lock(&comm->lock);
        state = failure_set(state, "%s: %s", call, comm->text);
        (void)pthread_mutex_unlock(&comm->lock);
        return state;
    }
    return NCCL_SUCCESS;
}

ncclResult_t communicator_check(struct ncclComm *comm, const char *call)
{
    if (comm != NULL && is_revoked(comm)) {
        return failure_set(NCCL_INVALID_USAGE, "%s: the communicator is revoked", call);
    }
    ncclResult_t result = communicator_ready(comm, call);
    return result == NCCL_SUCCESS && is_finalized(comm)
               ? failure_set(NCCL_INVALID_USAGE, "%s: the communicator is finalized", call)
               : result;
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
    note(comm, failure_from_library(result));
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
        *error = *error == NCCL_SUCCESS && busy && is_finalized(comm) ? NCCL_IN_PROGRESS : *error;
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

static ncclResult_t get_number(struct ncclComm *comm, const int *number, int *out, const char *call)
{
    ncclResult_t result = communicator_ready(comm, call);
    if (result == NCCL_SUCCESS && out == NULL) {
        result = failure_set(NCCL_INVALID_ARGUMENT, "%s: a null pointer", call);
    }
    if (result == NCCL_SUCCESS) {
        *out = *number;
    }
    return result;
}

NCCL_EXPORT(ncclResult_t, ncclCommCount, ncclComm_t comm, int *count)
{
    return get_number(comm, comm != NULL ? &comm->size : NULL, count, "ncclCommCount");
}

NCCL_EXPORT(ncclResult_t, ncclCommCuDevice, ncclComm_t comm, int *device)
{
    return get_number(comm, comm != NULL ? &comm->device : NULL, device, "ncclCommCuDevice");
}

NCCL_EXPORT(ncclResult_t, ncclCommUserRank, ncclComm_t comm, int *rank)
{
    return get_number(comm, comm != NULL ? &comm->rank : NULL, rank, "ncclCommUserRank");
}

/* The name that a thread has joined, or is about to join; "": it is over. */
static bool joins(struct ncclComm *comm, char name[sizeof comm->joins])
{
    (void)pthread_mutex_lock(&comm->lock);
    memcpy(name, comm->joins, sizeof comm->joins);
    (void)pthread_mutex_unlock(&comm->lock);
    return name[0] != '\0';
}

/* The thread that makes the communicator would wait for the other ranks, perhaps for minutes. It may be about
 * to begin, and comm_cancel ends only waits that have begun. So this is repeated until the wait is over, or
 * commd does not answer. */
static void cancel(struct ncclComm *comm)
{
    static const struct timespec pause = {.tv_nsec = CANCEL_PAUSE_NS};
    char name[sizeof comm->joins];
    comm_client_t *client;
    for (int tries = 0; tries < CANCEL_TRIES && joins(comm, name); tries++) {
        if (process_take_client(&client) != NCCL_SUCCESS || comm_cancel(client, name) != COMM_OK) {
            return;
        }
        if (joins(comm, name)) {
            (void)nanosleep(&pause, NULL);
        }
    }
}

/* Leaves the communicator. If it is being made or split, or a call is being made on it, the thread that does
 * that leaves it. */
static void leave(struct ncclComm *comm)
{
    group_forget(comm);
    (void)pthread_mutex_lock(&comm->lock);
    comm->abandoned = true;
    comm_t *unused = take_unused(comm);
    (void)pthread_mutex_unlock(&comm->lock);
    cancel(comm);
    comm_destroy(unused);
    communicator_drop(comm);
}

NCCL_EXPORT(ncclResult_t, ncclCommFinalize, ncclComm_t comm)
{
    const char *call = "ncclCommFinalize";
    if (comm == NULL) {
        return NCCL_SUCCESS;
    }
    ncclResult_t result = communicator_ready(comm, call);
    if (result != NCCL_SUCCESS) {
        return result;
    }
    if (is_finalized(comm)) {
        return failure_set(NCCL_INVALID_ARGUMENT, "%s: the communicator is finalized", call);
    }
    (void)pthread_mutex_lock(&comm->lock);
    comm->finalized = true;
    (void)pthread_mutex_unlock(&comm->lock);
    if (comm->config.blocking) {
        result = failure_from_library(comm_sync(comm->comm, 0));
        note(comm, result);
    }
    return result;
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

/* A split that is under way counts as an operation: without the abort, it would wait for the other ranks. So
 * does a call of another thread. */
static bool has_work(struct ncclComm *comm)
{
    (void)pthread_mutex_lock(&comm->lock);
    bool used = comm->splits > 0 || comm->calls > 0;
    (void)pthread_mutex_unlock(&comm->lock);
    return used || (state_of(comm) == NCCL_SUCCESS && look(comm));
}

NCCL_EXPORT(ncclResult_t, ncclCommAbort, ncclComm_t comm)
{
    if (comm == NULL) {
        return NCCL_SUCCESS;
    }
    group_forget(comm);
    if (has_work(comm)) {
        (void)failure_from_library(comm_abort(comm->comm, "ncclCommAbort"));
    }
    leave(comm);
    return NCCL_SUCCESS;
}
