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
    struct ncclComm *comm = formation->comm;
    comm_result_t joined = COMM_DAEMON_LOST;
    options.timeout_ms = FORM_TIMEOUT_MS;
    options.op_timeout_ms = OP_TIMEOUT_MS;
    for (int tries = 0; tries < 2 && joined == COMM_DAEMON_LOST;
         tries++) { /* commd may have been restarted */
        ncclResult_t result = process_take_client(&client);
        if (result != NCCL_SUCCESS) {
            return result;
        }
        if (!communicator_joins(comm, formation->name)) {
            return failure_set(NCCL_REMOTE_ERROR, "this rank has left the communicator");
        }
        joined = comm_init(client, formation->name, (uint32_t)comm->rank, (uint32_t)comm->size, comm->device,
                           &options, made);
        if (joined == COMM_DAEMON_LOST) {
            process_forget_client(client);
        }
    }
    return failure_from_library(joined);
}

/* Ends a formation, whose result and text are set. */
static void conclude(struct formation *formation, comm_t *made)
{
    if (formation->parent != NULL) { /* first: who sees the new communicator may use its parent */
        communicator_split_ended(formation->parent, formation->alone);
    }
    if (formation->comm != NULL) {
        communicator_made(formation->comm, made, formation->result);
        communicator_drop(formation->comm);
    }
}

static void form(struct formation *formation)
{
    comm_t *made = NULL;
    formation->result =
        formation->parent != NULL && formation->grows ? formation_find_name(formation) : NCCL_SUCCESS;
    if (formation->result == NCCL_SUCCESS) {
        formation->result = formation->parent == NULL || formation->grows
                                ? join(formation, &made)
                                : failure_from_library(comm_split(formation->parent->comm, formation->color,
                                                                  formation->key, &made));
    }
    if (formation->result == NCCL_SUCCESS && formation->comm != NULL) {
        (void)snprintf(formation->comm->name, sizeof formation->comm->name, "%s", formation->name);
    }
    (void)snprintf(formation->text, sizeof formation->text, "%s", failure_text());
    conclude(formation, made);
}

/* It was not run. */
static void fail(struct formation *formation, ncclResult_t result)
{
    formation->result = result;
    (void)snprintf(formation->text, sizeof formation->text, "%s", failure_text());
    conclude(formation, NULL);
}

/* The program gets no handle from a blocking formation that failed. */
static void release(struct formation *formation)
{
    if (formation->blocking && formation->result != NCCL_SUCCESS && formation->comm != NULL) {
        *formation->out = NULL;
        communicator_drop(formation->comm);
    }
    free(formation);
}

static void *run_blocking(void *argument)
{
    for (struct formation *each = argument; each != NULL; each = each->after) {
        form(each);
    }
    return NULL;
}

static void *run_alone(void *argument)
{
    for (struct formation *each = argument, *after; each != NULL; each = after) {
        after = each->after;
        form(each);
        release(each);
    }
    return NULL;
}

/* A thread that is not waited for frees the chain, perhaps before this returns. */
static ncclResult_t start(struct formation *chain)
{
    pthread_t thread;
    bool blocking = chain->blocking;
    chain->started = true;
    for (struct formation *each = chain; each != NULL; each = each->after) {
        each->alone = !blocking && each->parent != NULL;
        if (each->alone) {
            communicator_split_alone(each->parent);
        }
    }
    int error = pthread_create(&thread, NULL, blocking ? run_blocking : run_alone, chain);
    if (error == 0 && blocking) {
        chain->thread = thread;
        return NCCL_SUCCESS;
    }
    if (error == 0) {
        (void)pthread_detach(thread);
        return NCCL_IN_PROGRESS;
    }
    ncclResult_t result =
        failure_set(NCCL_SYSTEM_ERROR, "no thread to make a communicator: %s", strerror(error));
    chain->started = false;
    for (struct formation *each = chain, *after; each != NULL; each = after) {
        after = each->after;
        fail(each, result);
        if (!blocking) {
            release(each);
        }
    }
    return result;
}

/* Takes the splits of one communicator out of the list, behind its first one. If one of them is blocking, all
 * are waited for. */
static void chain_splits(struct formation *list)
{
    for (struct formation *first = list; first != NULL; first = first->next) {
        struct formation **tail = &first->after;
        for (struct formation **link = &first->next; first->parent != NULL && *link != NULL;) {
            struct formation *each = *link;
            if (each->parent != first->parent) {
                link = &each->next;
                continue;
            }
            *link = each->next;
            *tail = each;
            tail = &each->after;
            first->blocking = first->blocking || each->blocking;
        }
        for (struct formation *each = first->after; each != NULL; each = each->after) {
            each->blocking = first->blocking;
        }
    }
}

/* Waits for a chain, and frees it. Returns its first failure, or `before` if that was one. */
static ncclResult_t finish(struct formation *chain, ncclResult_t before)
{
    ncclResult_t first = before;
    if (chain->started) {
        (void)pthread_join(chain->thread, NULL);
    }
    for (struct formation *each = chain, *after; each != NULL; each = after) {
        after = each->after;
        if (each->result != NCCL_SUCCESS && (first == NCCL_SUCCESS || first == NCCL_IN_PROGRESS)) {
            first = failure_set(each->result, "%s", each->text);
        }
        release(each);
    }
    return first;
}

ncclResult_t formation_run_all(struct formation *list)
{
    ncclResult_t first = NCCL_SUCCESS;
    struct formation *waited = NULL, **tail = &waited;
    chain_splits(list);
    for (struct formation *each = list, *next; each != NULL; each = next) {
        next = each->next;
        if (each->blocking) {
            each->next = NULL;
            *tail = each;
            tail = &each->next;
        }
        ncclResult_t started = start(each);
        first = first == NCCL_SUCCESS ? started : first;
    }
    for (struct formation *each = waited, *next; each != NULL; each = next) {
        next = each->next;
        first = finish(each, first);
    }
    return first;
}

void formation_drop_all(struct formation *list, ncclResult_t result)
{
    for (struct formation *each = list, *next; each != NULL; each = next) {
        next = each->next;
        fail(each, result);
        release(each);
    }
}

ncclResult_t formation_add(const struct formation *model, struct ncclComm *comm)
{
    struct formation *formation = malloc(sizeof *formation);
    *model->out = comm;
    if (formation == NULL || (comm == NULL && model->color != NCCL_SPLIT_NO_COLOR)) {
        *model->out = NULL;
        free(formation);
        if (comm != NULL) {
            communicator_drop(comm);
        }
        return group_note(failure_set(NCCL_SYSTEM_ERROR, "no memory for a communicator"));
    }
    *formation = *model;
    formation->comm = comm;
    if (comm != NULL) {
        comm->references++;
    }
    if (formation->parent != NULL) {
        communicator_split_begins(formation->parent);
    }
    return group_add_formation(formation);
}

static ncclResult_t init(const char *call, ncclComm_t *out, int size, const ncclUniqueId *id, int rank,
                         const ncclConfig_t *source, int device)
{
    struct nccl_config config = {.blocking = true};
    struct formation model = {.out = out};
    char why[128];
    if (out == NULL) {
        return group_note(failure_set(NCCL_INVALID_ARGUMENT,
                                      "%s: the argument for the communicator is a null pointer", call));
    }
    if (size < 1 || rank < 0 || rank >= size) {
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
    model.blocking = config.blocking;
    return formation_add(&model, communicator_new(rank, size, device, config));
}

static ncclResult_t init_here(const char *call, ncclComm_t *out, int size, const ncclUniqueId *id, int rank,
                              const ncclConfig_t *config)
{
    int device;
    ncclResult_t result = process_device(&device);
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
    if (ids == NULL || id_count < 1 || id_count > size) {
        return group_note(failure_set(NCCL_INVALID_ARGUMENT, "ncclCommInitRankScalable: %d ids of %d ranks",
                                      ids != NULL ? id_count : 0, size));
    }
    return init_here("ncclCommInitRankScalable", comm, size, &ids[0], rank, config);
}

/* Of which GPUs ncclCommInitAll makes a communicator: `devices`, or the first ones. */
static ncclResult_t check_devices(int count, const int *devices)
{
    const struct cuda_driver *driver = process_driver();
    int visible = 0;
    if (driver == NULL || driver->device_count(&visible) != CUDA_RESULT_OK) {
        return NCCL_UNHANDLED_CUDA_ERROR;
    }
    for (int i = 0; i < count; i++) {
        int device = devices != NULL ? devices[i] : i;
        if (device < 0 || device >= visible) {
            return failure_set(NCCL_INVALID_ARGUMENT, "ncclCommInitAll: device %d: this process sees %d GPUs",
                               device, visible);
        }
    }
    return NCCL_SUCCESS;
}

NCCL_EXPORT(ncclResult_t, ncclCommInitAll, ncclComm_t *comms, int count, const int *devices)
{
    ncclUniqueId id;
    ncclResult_t result = NCCL_SUCCESS;
    if (comms == NULL || count < 1) {
        return group_note(failure_set(NCCL_INVALID_ARGUMENT, "ncclCommInitAll: %d devices", count));
    }
    if (!id_make(&id)) {
        return group_note(failure_set(NCCL_SYSTEM_ERROR, "ncclCommInitAll: the system gave no random bytes"));
    }
    result = check_devices(count, devices);
    if (result != NCCL_SUCCESS) {
        return group_note(result);
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
    struct nccl_config config = {.blocking = true};
    ncclResult_t result = communicator_check(comm, "ncclCommSplit");
    if (result != NCCL_SUCCESS) {
        return group_note(result);
    }
    if (out == NULL || color < NCCL_SPLIT_NO_COLOR) {
        return group_note(failure_set(NCCL_INVALID_ARGUMENT, "ncclCommSplit: color %d", color));
    }
    if (!config_read(source, &config, why, sizeof why)) {
        return group_note(failure_set(NCCL_INVALID_ARGUMENT, "ncclCommSplit: %s", why));
    }
    config = source != NULL ? config : comm->config;
    struct formation model = {
        .out = out, .parent = comm, .color = color, .key = key, .blocking = config.blocking};
    communicator_name_part(comm, &color, sizeof color, model.name);
    return formation_add(&model,
                         color != NCCL_SPLIT_NO_COLOR ? communicator_new(0, 1, comm->device, config) : NULL);
}
