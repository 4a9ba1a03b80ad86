#include "daemon/gpu/windows_trial.h"

#include <stdlib.h>
#include <unistd.h>

#include "daemon/base/log.h"
#include "daemon/gpu/cuda_internal.h"
#include "daemon/gpu/windows.h"

#define TRIAL_BYTES ((size_t)2 << 20) /* what the driver maps at once, at least */

struct nccl_windows_trial {
    cuda_pointer at[GPU_DEVICES_MAX]; /* 0: not reserved */
    bool mapped[GPU_DEVICES_MAX];
    nccl_window_handle handles[GPU_DEVICES_MAX];
};

/* Creates memory on the GPU, and imports it by its descriptor, as commd does with that of a client. */
static enum status import_own(const struct gpu_devices *gpus, uint32_t gpu, cuda_allocation *out,
                              struct error *error)
{
    struct cuda_allocation_properties of = {
        .type = CUDA_ALLOCATION_PINNED,
        .handle_types = CUDA_HANDLE_POSIX_FD,
        .location = {.type = CUDA_LOCATION_DEVICE, .id = gpus->gpus[gpu].device}};
    cuda_allocation made;
    int fd = -1;
    enum status status = CUDA_CALL(gpus, gpu, error, allocation_create, &made, TRIAL_BYTES, &of, 0);
    if (status != STATUS_OK) {
        return status;
    }
    status = CUDA_CALL(gpus, gpu, error, allocation_export, &fd, made, CUDA_HANDLE_POSIX_FD, 0);
    if (status == STATUS_OK) {
        status = CUDA_CALL(gpus, gpu, error, allocation_import, out, (void *)(intptr_t)fd, /* NOLINT */
                           CUDA_HANDLE_POSIX_FD);
        (void)close(fd);
    }
    (void)gpus->driver->allocation_release(made);
    return status;
}

static enum status map_own(const struct nccl_ranks *ranks, struct nccl_windows_trial *trial, uint32_t rank,
                           struct error *error)
{
    const struct gpu_devices *gpus = ranks->gpus;
    uint32_t gpu = ranks->list[rank];
    struct cuda_access access = {.location = {.type = CUDA_LOCATION_DEVICE, .id = gpus->gpus[gpu].device},
                                 .flags = CUDA_ACCESS_READ_WRITE};
    cuda_allocation allocation;
    enum status status = cuda_enter(gpus, gpu, error);
    if (status == STATUS_OK) {
        status = CUDA_CALL(gpus, gpu, error, address_reserve, &trial->at[rank], TRIAL_BYTES, 0, 0, 0);
    }
    if (status == STATUS_OK) {
        status = import_own(gpus, gpu, &allocation, error);
    }
    if (status != STATUS_OK) {
        return status;
    }
    status = CUDA_CALL(gpus, gpu, error, address_map, trial->at[rank], TRIAL_BYTES, 0, allocation, 0);
    trial->mapped[rank] = status == STATUS_OK;
    (void)gpus->driver->allocation_release(allocation); /* the mapping keeps it alive */
    return status == STATUS_OK
               ? CUDA_CALL(gpus, gpu, error, address_set_access, trial->at[rank], TRIAL_BYTES, &access, 1)
               : status;
}

void nccl_windows_trial_free(struct nccl_ranks *ranks)
{
    struct nccl_windows_trial *trial = ranks->trial;
    for (uint32_t rank = 0; rank < ranks->count && trial != NULL; rank++) {
        if (trial->at[rank] == 0 || cuda_enter(ranks->gpus, ranks->list[rank], NULL) != STATUS_OK) {
            continue;
        }
        if (trial->mapped[rank]) {
            (void)ranks->gpus->driver->address_unmap(trial->at[rank], TRIAL_BYTES);
        }
        (void)ranks->gpus->driver->address_free(trial->at[rank], TRIAL_BYTES);
    }
    free(trial);
    ranks->trial = NULL;
}

static enum status trial_begin(struct nccl_ranks *ranks, struct error *error)
{
    struct nccl_windows_trial *trial = ranks->trial;
    enum status status = nccl_ranks_status(ranks, 0, "ncclGroupStart", ranks->nccl->group_start(), error);
    if (status != STATUS_OK) {
        return status;
    }
    for (uint32_t rank = 0; rank < ranks->count && status == STATUS_OK; rank++) {
        status = cuda_enter(ranks->gpus, ranks->list[rank], error);
        if (status == STATUS_OK) {
            status = nccl_ranks_status(
                ranks, rank, "ncclCommWindowRegister",
                ranks->nccl->register_window(ranks->comms[rank], (void *)(uintptr_t)trial->at[rank],
                                             TRIAL_BYTES, &trial->handles[rank], NCCL_WINDOW_SYMMETRIC),
                error);
        }
    }
    nccl_result ended = ranks->nccl->group_end();
    return status == STATUS_OK ? nccl_ranks_status(ranks, 0, "ncclGroupEnd", ended, error) : status;
}

/* Success without a handle means that NCCL has no windows among these GPUs. */
static void trial_end(struct nccl_ranks *ranks)
{
    struct nccl_windows_trial *trial = ranks->trial;
    ranks->windows = true;
    for (uint32_t rank = 0; rank < ranks->count; rank++) {
        ranks->windows &= trial->handles[rank] != NULL;
        if (trial->handles[rank] != NULL && cuda_enter(ranks->gpus, ranks->list[rank], NULL) == STATUS_OK) {
            (void)ranks->nccl->deregister_window(ranks->comms[rank], trial->handles[rank]);
        }
    }
    nccl_windows_trial_free(ranks);
    log_debug("GPU %u, NCCL among %u GPUs: %s windows", ranks->list[0], ranks->count,
              ranks->windows ? "with" : "without");
}

enum status nccl_windows_try(struct nccl_ranks *ranks, bool *busy, struct error *error)
{
    *busy = false;
    if (ranks->trial != NULL) {
        trial_end(ranks);
        return STATUS_OK;
    }
    if (!ranks->gpus->windows_wanted || atomic_load(&ranks->gpus->windows_refused) ||
        ranks->nccl->register_window == NULL || ranks->nccl->deregister_window == NULL) {
        return STATUS_OK;
    }
    ranks->trial = calloc(1, sizeof *ranks->trial);
    for (uint32_t rank = 0; rank < ranks->count && ranks->trial != NULL; rank++) {
        if (map_own(ranks, ranks->trial, rank, error) != STATUS_OK) {
            nccl_windows_trial_free(ranks); /* no memory for a trial: no windows */
        }
    }
    *busy = ranks->trial != NULL;
    return *busy ? trial_begin(ranks, error) : STATUS_OK;
}
