#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/nccl/communicator.h"
#include "client/nccl/unique_id.h"

/* How communicators are made. Each waits for its other ranks, so each has a thread of its own. */

#define FORM_TIMEOUT_MS 600000u
#define OP_TIMEOUT_MS 1800000u /* NCCL has no deadline */

static ncclResult_t join(struct formation *formation, comm_t **made)
{
    comm_client_t *client;
    comm_init_options_t options = COMM_INIT_OPTIONS_INIT;
    const struct ncclComm *comm = formation->comm;
    comm_result_t joined = COMM_DAEMON_LOST;
    options.timeout_ms = FORM_TIMEOUT_MS;
    options.op_timeout_ms = OP_TIMEOUT_MS;
    for (int tries = 0; tries < 2 && joined == COMM_DAEMON_LOST;
         tries++) { /* commd may have been restarted */
        ncclResult_t result = session_take(&client);
        if (result != NCCL_SUCCESS) {
            return result;
        }
        joined = comm_init(client, formation->name, (uint32_t)comm->rank, (uint32_t)comm->size, comm->device,
                           &options, made);
        if (joined == COMM_DAEMON_LOST) {
            session_forget(client);
        }
    }
    return failure_from_library(joined);
}

static void form(struct formation *formation)
{
    comm_t *made = NULL;
    formation->result = formation->parent == NULL
                            ? join(formation, &made)
                            : failure_from_library(comm_split(formation->parent->comm, formation->color,
                                                              formation->key, &made));
    (void)snprintf(formation->text, sizeof formation->text, "%s", failure_text());
    if (formation->comm != NULL) {
        communicator_made(formation->comm, made, formation->result);
        communicator_drop(formation->comm);
    }
}

static void *run_blocking(void *argument)
{
    form(argument);
    return NULL;
}

static void *run_alone(void *argument)
{
    form(argument);
    free(argument);
    return NULL;
}

static bool is_blocking(const struct formation *formation)
{
    return formation->comm != NULL ? formation->comm->config.blocking : formation->parent->config.blocking;
}

/* A thread that is not waited for frees the formation, perhaps before this returns. */
static void start(struct formation *formation, bool blocking)
{
    pthread_t thread;
    formation->started = true;
    int error = pthread_create(&thread, NULL, blocking ? run_blocking : run_alone, formation);
    if (error == 0 && blocking) {
        formation->thread = thread;
    } else if (error == 0) {
        (void)pthread_detach(thread);
    } else {
        formation->started = false;
        formation->result =
            failure_set(NCCL_SYSTEM_ERROR, "no thread to make a communicator: %s", strerror(error));
        (void)snprintf(formation->text, sizeof formation->text, "%s", failure_text());
        if (formation->comm != NULL) {
            communicator_made(formation->comm, NULL, formation->result);
            communicator_drop(formation->comm);
        }
        if (!blocking) {
            free(formation);
        }
    }
}

ncclResult_t formation_run_all(struct formation *list)
{
    ncclResult_t first = NCCL_SUCCESS;
    struct formation *waited = NULL;
    for (struct formation *each = list, *next; each != NULL; each = next) {
        bool blocking = is_blocking(each);
        next = each->next;
        if (blocking) {
            each->next = waited;
            waited = each;
        } else if (first == NCCL_SUCCESS) {
            first = NCCL_IN_PROGRESS;
        }
        start(each, blocking);
    }
    for (struct formation *each = waited, *next; each != NULL; each = next) {
        next = each->next;
        if (each->started) {
            (void)pthread_join(each->thread, NULL);
        }
        if (each->result != NCCL_SUCCESS) {
            first = failure_set(each->result, "%s", each->text);
        }
        free(each);
    }
    return first;
}

/* Adds a formation of a new communicator, whose handle the program gets at once. */
static ncclResult_t add(struct formation model, ncclComm_t *out, int rank, int size, int device,
                        struct nccl_config config)
{
    struct formation *formation = malloc(sizeof *formation);
    *out = formation != NULL ? communicator_new(rank, size, device, config) : NULL;
    if (*out == NULL) {
        free(formation);
        return group_note(failure_set(NCCL_SYSTEM_ERROR, "no memory for a communicator"));
    }
    *formation = model;
    formation->comm = *out;
    (*out)->references++;
    return group_add_formation(formation);
}

static ncclResult_t init(const char *call, ncclComm_t *out, int size, const ncclUniqueId *id, int rank,
                         const ncclConfig_t *source, int device)
{
    struct nccl_config config = {.blocking = true};
    struct formation model = {0};
    char why[128];
    if (out == NULL || size < 1 || rank < 0 || rank >= size) {
        return group_note(failure_set(NCCL_INVALID_ARGUMENT, "%s: rank %d of %d ranks", call, rank, size));
    }
    if (!config_read(source, &config, why, sizeof why)) {
        return group_note(failure_set(NCCL_INVALID_ARGUMENT, "%s: %s", call, why));
    }
    if (!id_name(id, model.name)) {
        return group_note(failure_set(NCCL_INVALID_ARGUMENT,
                                      "%s: commd's ncclGetUniqueId has not made this id: do all ranks load "
                                      "commd's libnccl.so.2?",
                                      call));
    }
    return add(model, out, rank, size, device, config);
}

static ncclResult_t init_here(const char *call, ncclComm_t *out, int size, const ncclUniqueId *id, int rank,
                              const ncclConfig_t *config)
{
    int device;
    ncclResult_t result = session_device(&device);
    return result == NCCL_SUCCESS ? init(call, out, size, id, rank, config, device) : group_note(result);
}

NCCL_EXPORT(ncclResult_t, ncclCommInitRank, ncclComm_t *comm, int size, ncclUniqueId id, int rank)
{
    return init_here("ncclCommInitRank", comm, size, &id, rank, NULL);
}

NCCL_EXPORT(ncclResult_t, ncclCommInitRankConfig, ncclComm_t *comm, int size, ncclUniqueId id, int rank,
            ncclConfig_t *config)
{
    return init_here("ncclCommInitRankConfig", comm, size, &id, rank, config);
}

NCCL_EXPORT(ncclResult_t, ncclCommInitRankScalable, ncclComm_t *comm, int size, int rank, int id_count,
            ncclUniqueId *ids, ncclConfig_t *config)
{
    if (ids == NULL || id_count < 1) {
        return group_note(failure_set(NCCL_INVALID_ARGUMENT, "ncclCommInitRankScalable: no id"));
    }
    return init_here("ncclCommInitRankScalable", comm, size, &ids[0], rank, config);
}

ncclResult_t ncclGroupStart(void);
ncclResult_t ncclGroupEnd(void);

NCCL_EXPORT(ncclResult_t, ncclCommInitAll, ncclComm_t *comms, int count, const int *devices)
{
    ncclUniqueId id;
    if (comms == NULL || count < 1 || !id_make(&id)) {
        return failure_set(NCCL_INVALID_ARGUMENT, "ncclCommInitAll: %d devices", count);
    }
    (void)ncclGroupStart();
    for (int i = 0; i < count; i++) {
        (void)init("ncclCommInitAll", &comms[i], count, &id, i, NULL, devices != NULL ? devices[i] : i);
    }
    return ncclGroupEnd();
}

NCCL_EXPORT(ncclResult_t, ncclCommSplit, ncclComm_t comm, int color, int key, ncclComm_t *out,
            ncclConfig_t *source)
{
    char why[128];
    ncclResult_t result = communicator_check(comm, "ncclCommSplit");
    if (result != NCCL_SUCCESS) {
        return group_note(result);
    }
    struct formation model = {.parent = comm, .color = color, .key = key};
    struct nccl_config config = comm->config;
    if (out == NULL || color < NCCL_SPLIT_NO_COLOR) {
        return group_note(failure_set(NCCL_INVALID_ARGUMENT, "ncclCommSplit: color %d", color));
    }
    if (!config_read(source, &config, why, sizeof why)) {
        return group_note(failure_set(NCCL_INVALID_ARGUMENT, "ncclCommSplit: %s", why));
    }
    if (color != NCCL_SPLIT_NO_COLOR) {
        return add(model, out, 0, 1, comm->device, config);
    }
    *out = NULL;
    struct formation *formation = malloc(sizeof *formation);
    if (formation == NULL) {
        return group_note(failure_set(NCCL_SYSTEM_ERROR, "ncclCommSplit: no memory"));
    }
    *formation = model;
    return group_add_formation(formation);
}
