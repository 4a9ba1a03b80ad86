#include "daemon/gpu/windows.h"

#include <stdlib.h>

#include <utlist.h>

#include "daemon/base/log.h"
#include "daemon/gpu/cuda_internal.h"
#include "daemon/gpu/registrations_internal.h"
#include "daemon/gpu/windows_trial.h"

struct nccl_window {
    struct nccl_window *next; /* in the list of those that are being registered */
    struct nccl_registration *of[GPU_DEVICES_MAX];
    nccl_window_handle handles[GPU_DEVICES_MAX]; /* a registration has them, too, as marks */
    bool formed;
};

/* --- The buffers of a call --- */

/* What all ranks pass as input of a transfer, or as output. */
struct side {
    struct gpu_registrable *memories[GPU_DEVICES_MAX]; /* null: none that NCCL can register */
    bool complete;
    bool alike; /* at the same place of memory of the same size */
};

/* NCCL has kernels for windows for these. Other kinds use the memory of windows like other registered
 * memory. */
static bool has_kernels(const struct gpu_transfer *transfer)
{
    return transfer->kind == GPU_TRANSFER_ALL_REDUCE || transfer->kind == GPU_TRANSFER_REDUCE_SCATTER ||
           transfer->kind == GPU_TRANSFER_ALL_GATHER;
}

/* Whether a GPU finds the buffers of the others by the place of its own. */
static bool reaches_peers(const struct gpu_transfer *transfer, bool is_input)
{
    return transfer->kind != (is_input ? GPU_TRANSFER_ALL_GATHER : GPU_TRANSFER_REDUCE_SCATTER);
}

static struct side side_of(const struct nccl_ranks *ranks, const struct gpu_transfers *transfers,
                           const struct gpu_transfer *transfer, bool is_input)
{
    struct side side = {.complete = true, .alike = true};
    uint64_t bytes = nccl_transfer_bytes(ranks, transfers, transfer, is_input), place = 0;
    for (uint32_t rank = 0; rank < ranks->count; rank++) {
        const void *address = is_input ? transfer->inputs[rank] : transfer->outputs[rank];
        struct gpu_registrable *memory =
            address == NULL || bytes == 0
                ? NULL
                : nccl_registry_find(ranks->gpus->registry, ranks->list[rank], address, bytes);
        side.memories[rank] = memory;
        side.complete &= memory != NULL;
        if (side.complete) {
            uint64_t own = (uint64_t)(uintptr_t)address - memory->base;
            place = rank == 0 ? own : place;
            side.alike &= own == place && memory->size_bytes == side.memories[0]->size_bytes;
        }
    }
    return side;
}

static bool is_same_size(const struct nccl_ranks *ranks, const struct side *side)
{
    bool same = side->complete;
    for (uint32_t rank = 0; rank < ranks->count && same; rank++) {
        same = side->memories[rank]->size_bytes == side->memories[0]->size_bytes;
    }
    return same;
}

/* The window that consists of this memory, or null. */
static struct nccl_window *window_of(const struct nccl_ranks *ranks, const struct side *side)
{
    const struct nccl_registration *first = nccl_registration_find(ranks, side->memories[0]);
    struct nccl_window *window = first != NULL && side->complete ? first->window : NULL;
    for (uint32_t rank = 0; rank < ranks->count && window != NULL; rank++) {
        if (window->of[rank] != nccl_registration_find(ranks, side->memories[rank])) {
            return NULL;
        }
    }
    return window;
}

/* --- Windows that do not fit --- */

/* Whether some of the memory is in a window that this use of it does not fit. If `end`, ends such windows. */
static bool misuses(struct nccl_ranks *ranks, const struct side *side, bool reaches, bool end)
{
    bool found = false;
    if (window_of(ranks, side) != NULL && (side->alike || !reaches)) {
        return false;
    }
    for (uint32_t rank = 0; rank < ranks->count; rank++) {
        const struct nccl_registration *registration = nccl_registration_find(ranks, side->memories[rank]);
        if (registration != NULL && registration->window != NULL) {
            found = true;
            if (end) {
                nccl_window_end(ranks, registration->window, true);
            }
        }
    }
    return found;
}

static bool call_misuses(struct nccl_ranks *ranks, const struct gpu_transfers *transfers, bool end)
{
    bool found = false;
    for (uint32_t i = 0; i < transfers->count; i++) {
        const struct gpu_transfer *transfer = &transfers->list[i];
        for (int is_input = 0; is_input < 2 && has_kernels(transfer); is_input++) {
            struct side side = side_of(ranks, transfers, transfer, is_input != 0);
            found |= misuses(ranks, &side, reaches_peers(transfer, is_input != 0), end);
        }
    }
    return found;
}

void nccl_window_end(struct nccl_ranks *ranks, struct nccl_window *window, bool for_good)
{
    for (uint32_t rank = 0; rank < ranks->count; rank++) {
        struct nccl_registration *registration = window->of[rank];
        if (window->handles[rank] != NULL && cuda_enter(ranks->gpus, ranks->list[rank], NULL) == STATUS_OK) {
            (void)ranks->nccl->deregister_window(ranks->comms[rank], window->handles[rank]);
        }
        registration->handle = NULL;
        registration->window = NULL;
        registration->no_window |= for_good;
    }
    if (window->formed) {
        nccl_registrations_count(ranks, -(int64_t)ranks->count);
        atomic_fetch_sub_explicit(&ranks->gpus->windows, 1, memory_order_relaxed);
    }
    free(window);
}

/* --- New windows --- */

static bool can_form(const struct nccl_ranks *ranks, const struct side *side, bool reaches)
{
    if (!is_same_size(ranks, side) || (reaches && !side->alike)) {
        return false;
    }
    if (window_of(ranks, side) != NULL) {
        return true;
    }
    for (uint32_t rank = 0; rank < ranks->count; rank++) {
        const struct nccl_registration *known = nccl_registration_find(ranks, side->memories[rank]);
        if (known != NULL &&
            (known->handle != NULL || known->refused || known->no_window || known->window != NULL)) {
            return false;
        }
    }
    return true;
}

/* Whether there is a new window, which NCCL has yet to register. */
static bool add_window(struct nccl_ranks *ranks, const struct side *side)
{
    struct nccl_window *window = window_of(ranks, side) == NULL ? calloc(1, sizeof *window) : NULL;
    if (window == NULL) {
        return false;
    }
    for (uint32_t rank = 0; rank < ranks->count; rank++) {
        window->of[rank] = nccl_registration_of(ranks, rank, side->memories[rank]);
        if (window->of[rank] == NULL || window->of[rank]->window != NULL) {
            free(window);
            return false;
        }
    }
    for (uint32_t rank = 0; rank < ranks->count; rank++) {
        window->of[rank]->window = window;
    }
    LL_APPEND(ranks->forming, window);
    return true;
}

static bool add_windows(struct nccl_ranks *ranks, const struct gpu_transfers *transfers)
{
    bool added = false;
    for (uint32_t i = 0; i < transfers->count; i++) {
        const struct gpu_transfer *transfer = &transfers->list[i];
        struct side input = side_of(ranks, transfers, transfer, true);
        struct side output = side_of(ranks, transfers, transfer, false);
        if (has_kernels(transfer) && can_form(ranks, &input, reaches_peers(transfer, true)) &&
            can_form(ranks, &output, reaches_peers(transfer, false))) {
            added |= add_window(ranks, &input);
            added |= add_window(ranks, &output);
        }
    }
    return added;
}

/* Begins to register the new windows, in the same order on all ranks. */
static enum status register_windows(struct nccl_ranks *ranks, struct error *error)
{
    struct nccl_window *window;
    enum status status = nccl_ranks_status(ranks, 0, "ncclGroupStart", ranks->nccl->group_start(), error);
    if (status != STATUS_OK) {
        return status;
    }
    LL_FOREACH(ranks->forming, window)
    {
        for (uint32_t rank = 0; rank < ranks->count && status == STATUS_OK; rank++) {
            struct nccl_registration *of = window->of[rank];
            status = cuda_enter(ranks->gpus, ranks->list[rank], error);
            if (status == STATUS_OK) {
                nccl_result result = ranks->nccl->register_window(
                    ranks->comms[rank], (void *)(uintptr_t)of->memory->base, (size_t)of->memory->size_bytes,
                    &window->handles[rank], NCCL_WINDOW_SYMMETRIC);
                status = nccl_ranks_status(ranks, rank, "ncclCommWindowRegister", result, error);
            }
        }
    }
    nccl_result ended = ranks->nccl->group_end();
    return status == STATUS_OK ? nccl_ranks_status(ranks, 0, "ncclGroupEnd", ended, error) : status;
}

/* NCCL is done with them. A window without handles is one that NCCL cannot use here. */
static void take_windows(struct nccl_ranks *ranks)
{
    while (ranks->forming != NULL) {
        struct nccl_window *window = ranks->forming;
        LL_DELETE(ranks->forming, window);
        window->formed = true;
        for (uint32_t rank = 0; rank < ranks->count; rank++) {
            window->of[rank]->handle = window->handles[rank];
            window->formed &= window->handles[rank] != NULL;
        }
        if (window->formed) {
            nccl_registrations_count(ranks, ranks->count);
            atomic_fetch_add_explicit(&ranks->gpus->windows, 1, memory_order_relaxed);
            atomic_fetch_add_explicit(&ranks->gpus->windows_ever, 1, memory_order_relaxed);
        } else {
            nccl_window_end(ranks, window, true);
        }
    }
}

enum status nccl_windows_prepare(struct nccl_ranks *ranks, const struct gpu_transfers *transfers, bool *waits,
                                 struct error *error)
{
    *waits = false;
    if (!ranks->windows) {
        return STATUS_OK;
    }
    if (ranks->forming != NULL) {
        enum status status = nccl_ranks_poll(ranks, waits, error);
        if (status != STATUS_OK || *waits) {
            return status;
        }
        take_windows(ranks);
    }
    if (call_misuses(ranks, transfers, false)) {
        *waits = nccl_registrations_in_use(ranks);
        if (*waits) {
            return STATUS_OK;
        }
        (void)call_misuses(ranks, transfers, true);
    }
    *waits = nccl_registrations_have_events(ranks) && add_windows(ranks, transfers);
    return *waits ? register_windows(ranks, error) : STATUS_OK;
}

void nccl_windows_end(struct nccl_ranks *ranks)
{
    struct nccl_registration *registration, *next;
    if (ranks->trial != NULL || ranks->forming != NULL) {
        atomic_store(&ranks->gpus->windows_refused, true);
        log_info("NCCL's communicator has ended while it registered a window: commd makes no more windows");
    }
    nccl_windows_trial_free(ranks);
    ranks->forming = NULL;
    HASH_ITER (hh, ranks->registrations, registration, next) {
        struct nccl_window *window = registration->window;
        for (uint32_t rank = 0; rank < ranks->count && window != NULL; rank++) {
            window->of[rank]->window = NULL; /* NCCL has ended it */
        }
        if (window != NULL && window->formed) {
            atomic_fetch_sub_explicit(&ranks->gpus->windows, 1, memory_order_relaxed);
        }
        free(window);
    }
    ranks->windows = false;
}
