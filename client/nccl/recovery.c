#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/nccl/communicator.h"
#include "client/nccl/unique_id.h"

/*
 * How a job goes on after a loss, and takes in ranks: ncclCommRevoke, ncclCommShrink and ncclCommGrow, as
 * NCCL 2.27 to 2.29 have introduced them. A shrunk communicator is a new one of a name that all its ranks
 * compute, so its parent may have failed.
 */

#define NCCL_SHRINK_ABORT 1 /* the parent's operations are ended first */

/* --- Names --- */

/* FNV-1a */
static uint64_t digest(uint64_t hash, const void *bytes, size_t size)
{
    for (size_t i = 0; i < size; i++) {
        hash = (hash ^ ((const unsigned char *)bytes)[i]) * UINT64_C(0x100000001b3);
    }
    return hash;
}

void communicator_name_part(struct ncclComm *comm, const void *bytes, size_t size, char out[68])
{
    uint64_t hash = digest(UINT64_C(0xcbf29ce484222325), comm->name, strlen(comm->name));
    (void)pthread_mutex_lock(&comm->lock);
    uint32_t number = comm->part_count++;
    (void)pthread_mutex_unlock(&comm->lock);
    hash = digest(digest(hash, &number, sizeof number), bytes, size);
    int length = (int)strcspn(comm->name, "~"); /* of the id that the first of them was made with */
    (void)snprintf(out, 68, "%.*s~%016" PRIx64, length, comm->name, hash);
}

/* --- Revoking --- */

NCCL_EXPORT(ncclResult_t, ncclCommRevoke, ncclComm_t comm, int flags)
{
    if (comm == NULL) {
        return NCCL_SUCCESS;
    }
    if (flags != 0) {
        return failure_set(NCCL_INVALID_ARGUMENT, "ncclCommRevoke: flags %d: only 0 is there", flags);
    }
    (void)pthread_mutex_lock(&comm->lock);
    bool is_made = comm->state != NCCL_IN_PROGRESS && comm->comm != NULL, was_revoked = comm->revoked;
    comm->revoked = comm->revoked || is_made;
    (void)pthread_mutex_unlock(&comm->lock);
    if (!is_made || was_revoked) {
        return failure_set(NCCL_INVALID_ARGUMENT, "ncclCommRevoke: the communicator %s",
                           was_revoked ? "is revoked already" : "is being made");
    }
    return failure_from_library(comm_abort(comm->comm, "ncclCommRevoke"));
}

/* --- Shrinking --- */

static bool is_excluded(int rank, const int *excluded, int count)
{
    for (int i = 0; i < count; i++) {
        if (excluded[i] == rank) {
            return true;
        }
    }
    return false;
}

static ncclResult_t check_shrink(struct ncclComm *comm, const int *excluded, int count, ncclComm_t *out)
{
    if (comm == NULL || out == NULL || (excluded == NULL && count > 0) || count < 0 || count >= comm->size) {
        return failure_set(NCCL_INVALID_ARGUMENT, "ncclCommShrink: %d excluded ranks", count);
    }
    for (int i = 0; i < count; i++) {
        if (excluded[i] < 0 || excluded[i] >= comm->size || is_excluded(excluded[i], excluded, i)) {
            return failure_set(NCCL_INVALID_ARGUMENT, "ncclCommShrink: excluded rank %d of %d", excluded[i],
                               comm->size);
        }
    }
    if (is_excluded(comm->rank, excluded, count)) {
        return failure_set(NCCL_INVALID_ARGUMENT, "ncclCommShrink: rank %d excludes itself", comm->rank);
    }
    (void)pthread_mutex_lock(&comm->lock);
    bool is_made = comm->state != NCCL_IN_PROGRESS && comm->comm != NULL;
    (void)pthread_mutex_unlock(&comm->lock);
    return is_made ? NCCL_SUCCESS
                   : failure_set(NCCL_INVALID_ARGUMENT, "ncclCommShrink: the communicator is being made");
}

/* A bit for each excluded rank: the lists may be in any order. */
static unsigned char *bits_of(const struct ncclComm *comm, const int *excluded, int count, size_t *bytes)
{
    *bytes = (size_t)comm->size / 8 + 1;
    unsigned char *bits = calloc(1, *bytes);
    for (int i = 0; bits != NULL && i < count; i++) {
        bits[excluded[i] / 8] |= (unsigned char)(1u << (excluded[i] % 8));
    }
    return bits;
}

static int rank_without(const struct ncclComm *comm, const int *excluded, int count)
{
    int rank = 0;
    for (int i = 0; i < comm->rank; i++) {
        rank += !is_excluded(i, excluded, count);
    }
    return rank;
}

NCCL_EXPORT(ncclResult_t, ncclCommShrink, ncclComm_t comm, int *excluded, int count, ncclComm_t *out,
            ncclConfig_t *source, int flags)
{
    char why[128];
    struct nccl_config config = {.blocking = true};
    ncclResult_t result = check_shrink(comm, excluded, count, out);
    if (result != NCCL_SUCCESS) {
        return group_note(result);
    }
    if (!config_read(source, &config, why, sizeof why)) {
        return group_note(failure_set(NCCL_INVALID_ARGUMENT, "ncclCommShrink: %s", why));
    }
    config = source != NULL ? config : comm->config;
    size_t bytes;
    unsigned char *bits = bits_of(comm, excluded, count, &bytes);
    if (bits == NULL) {
        return group_note(failure_set(NCCL_SYSTEM_ERROR, "ncclCommShrink: no memory"));
    }
    if ((flags & NCCL_SHRINK_ABORT) != 0) {
        (void)failure_from_library(comm_abort(comm->comm, "ncclCommShrink"));
    }
    struct formation model = {.out = out, .blocking = config.blocking};
    communicator_name_part(comm, bits, bytes, model.name);
    free(bits);
    return formation_add(&model, communicator_new(rank_without(comm, excluded, count), comm->size - count,
                                                  comm->device, config));
}

/* --- Growing --- */

NCCL_EXPORT(ncclResult_t, ncclCommGetUniqueId, ncclComm_t comm, ncclUniqueId *out)
{
    ncclResult_t result = communicator_check(comm, "ncclCommGetUniqueId");
    if (result != NCCL_SUCCESS) {
        return result;
    }
    if (out == NULL) {
        return failure_set(NCCL_INVALID_ARGUMENT, "ncclCommGetUniqueId: the argument is a null pointer");
    }
    return id_make(out)
               ? NCCL_SUCCESS
               : failure_set(NCCL_SYSTEM_ERROR, "ncclCommGetUniqueId: the system gave no random bytes");
}

ncclResult_t formation_find_name(struct formation *formation)
{
    unsigned char all[sizeof formation->name];
    comm_request_t *request = NULL;
    comm_call_options_t options = COMM_CALL_OPTIONS_INIT;
    options.request = &request;
    options.stream = COMM_STREAM_NONE;
    comm_result_t reduced = comm_all_reduce(formation->parent->comm, formation->name, all, sizeof all,
                                            COMM_U8, COMM_BOR, &options);
    reduced = reduced == COMM_OK ? comm_wait(&request, NULL) : reduced;
    if (reduced != COMM_OK) {
        return failure_from_library(reduced);
    }
    if (all[0] == 0 || (formation->name[0] != '\0' && memcmp(all, formation->name, sizeof all) != 0)) {
        return failure_set(NCCL_INVALID_ARGUMENT, "ncclCommGrow: %s",
                           all[0] == 0 ? "none of the present ranks has the id" : "several ids were given");
    }
    memcpy(formation->name, all, sizeof all);
    formation->name[sizeof all - 1] = '\0';
    return NCCL_SUCCESS;
}

static ncclResult_t check_grow(struct ncclComm *comm, int size, const ncclUniqueId *id, int rank,
                               const ncclComm_t *out)
{
    if (out == NULL || size < 1 || (comm == NULL && (id == NULL || rank < 0 || rank >= size)) ||
        (comm != NULL && (rank != -1 || size <= comm->size))) {
        return failure_set(
            NCCL_INVALID_ARGUMENT,
            "ncclCommGrow: rank %d of %d ranks: a present rank gives its communicator and -1, a "
            "new one its rank and the id, and there are more ranks than before",
            rank, size);
    }
    return comm != NULL ? communicator_check(comm, "ncclCommGrow") : NCCL_SUCCESS;
}

NCCL_EXPORT(ncclResult_t, ncclCommGrow, ncclComm_t comm, int size, const ncclUniqueId *id, int rank,
            ncclComm_t *out, ncclConfig_t *source)
{
    char why[128];
    int device = 0;
    struct nccl_config config = {.blocking = true};
    struct formation model = {.out = out, .parent = comm, .grows = true};
    ncclResult_t result = check_grow(comm, size, id, rank, out);
    if (result == NCCL_SUCCESS && comm == NULL) {
        result = process_device(&device);
    }
    if (result != NCCL_SUCCESS) {
        return group_note(result);
    }
    if (!config_read(source, &config, why, sizeof why)) {
        return group_note(failure_set(NCCL_INVALID_ARGUMENT, "ncclCommGrow: %s", why));
    }
    if (id != NULL && !id_name(id, model.name)) {
        return group_note(
            failure_set(NCCL_INVALID_ARGUMENT, "ncclCommGrow: ncclCommGetUniqueId has not made this id"));
    }
    if (comm != NULL) {
        config = source != NULL ? config : comm->config;
        device = comm->device;
        rank = comm->rank;
    }
    model.blocking = config.blocking;
    return formation_add(&model, communicator_new(rank, size, device, config));
}
