#include "daemon/gpu/registrations.h"

#include <stdlib.h>

#include "daemon/base/log.h"
#include "daemon/gpu/cuda_internal.h"
#include "daemon/gpu/nccl_types.h"
#include "daemon/gpu/registrations_internal.h"
#include "daemon/gpu/windows.h"

void nccl_registrations_count(struct nccl_ranks *ranks, int64_t change)
{
    atomic_fetch_add_explicit(&ranks->gpus->registered, (uint64_t)change, memory_order_relaxed);
    if (change > 0) {
        atomic_fetch_add_explicit(&ranks->gpus->registered_ever, (uint64_t)change, memory_order_relaxed);
    }
    ranks->registered_count += (uint32_t)change;
}

/* --- The memory of a call --- */

/* One buffer of a transfer. Returns whether to go on. */
typedef bool (*buffer_visitor)(struct nccl_ranks *ranks, uint32_t rank, struct gpu_registrable *memory);

uint64_t nccl_transfer_bytes(const struct nccl_ranks *ranks, const struct gpu_transfers *transfers,
                             const struct gpu_transfer *transfer, bool is_input)
{
    switch (transfer->kind) {
    case GPU_TRANSFER_ALL_REDUCE:
    case GPU_TRANSFER_REDUCE:
        return transfer->count * dtype_size_bytes(transfers->dtype);
    case GPU_TRANSFER_REDUCE_SCATTER:
        return transfer->count * dtype_size_bytes(transfers->dtype) * (is_input ? ranks->count : 1);
    case GPU_TRANSFER_ALL_GATHER:
        return transfer->count * (is_input ? 1 : ranks->count);
    case GPU_TRANSFER_BROADCAST:
    case GPU_TRANSFER_SEND:
        return transfer->count;
    }
    return 0;
}

static bool visit_buffer(struct nccl_ranks *ranks, uint32_t rank, const void *address, uint64_t bytes,
                         buffer_visitor visit)
{
    return address == NULL || bytes == 0 ||
           visit(ranks, rank, nccl_registry_find(ranks->gpus->registry, ranks->list[rank], address, bytes));
}

/* Visits all buffers of a call, with the memory that each lies in, or null. Returns whether it came to the
 * end. */
static bool visit_buffers(struct nccl_ranks *ranks, const struct gpu_transfers *transfers,
                          buffer_visitor visit)
{
    for (uint32_t i = 0; i < transfers->count; i++) {
        const struct gpu_transfer *transfer = &transfers->list[i];
        for (uint32_t rank = 0; rank < ranks->count; rank++) {
            if (!visit_buffer(ranks, rank, transfer->inputs[rank],
                              nccl_transfer_bytes(ranks, transfers, transfer, true), visit) ||
                !visit_buffer(ranks, rank, transfer->outputs[rank],
                              nccl_transfer_bytes(ranks, transfers, transfer, false), visit)) {
                return false;
            }
        }
    }
    return true;
}

struct nccl_registration *nccl_registration_find(const struct nccl_ranks *ranks,
                                                 struct gpu_registrable *memory)
{
    struct nccl_registration *found = NULL;
    if (memory != NULL) {
        HASH_FIND_PTR(ranks->registrations, &memory, found);
    }
    return found;
}

/* --- Registering --- */

static void drop(struct nccl_ranks *ranks, struct nccl_registration *registration)
{
    HASH_DEL(ranks->registrations, registration);
    nccl_registry_drop(ranks->gpus->registry, registration->memory);
    free(registration);
}

/* Adds a place for memory that the communicator does not know. Null: there is no room. */
static struct nccl_registration *add(struct nccl_ranks *ranks, uint32_t rank, struct gpu_registrable *memory)
{
    struct nccl_registration *made =
        HASH_COUNT(ranks->registrations) < GPU_REGISTRATIONS_MAX ? calloc(1, sizeof *made) : NULL;
    if (made == NULL) {
        return NULL;
    }
    *made = (struct nccl_registration){.memory = memory, .rank = rank};
    HASH_ADD_PTR(ranks->registrations, memory, made);
    if (!table_has(made, hh)) {
        free(made);
        return NULL;
    }
    nccl_registry_hold(ranks->gpus->registry, memory);
    return made;
}

struct nccl_registration *nccl_registration_of(struct nccl_ranks *ranks, uint32_t rank,
                                               struct gpu_registrable *memory)
{
    struct nccl_registration *found = nccl_registration_find(ranks, memory);
    return found != NULL ? found : add(ranks, rank, memory);
}

static bool has_event(struct nccl_ranks *ranks, uint32_t rank)
{
    return ranks->events[rank] != NULL ||
           CUDA_CALL(ranks->gpus, ranks->list[rank], NULL, event_create, &ranks->events[rank],
                     CUDA_EVENT_DISABLE_TIMING) == STATUS_OK;
}

bool nccl_registrations_have_events(struct nccl_ranks *ranks)
{
    for (uint32_t rank = 0; rank < ranks->count; rank++) {
        if (ranks->events[rank] == NULL &&
            (cuda_enter(ranks->gpus, ranks->list[rank], NULL) != STATUS_OK || !has_event(ranks, rank))) {
            return false;
        }
    }
    return true;
}

static bool can_be_registered(struct nccl_ranks *ranks, uint32_t rank, struct gpu_registrable *memory)
{
    const struct nccl_registration *registration = nccl_registration_find(ranks, memory);
    (void)rank;
    return memory != NULL && (registration == NULL || !registration->refused);
}

static bool register_memory(struct nccl_ranks *ranks, uint32_t rank, struct gpu_registrable *memory)
{
    struct nccl_registration *registration =
        memory != NULL ? nccl_registration_of(ranks, rank, memory) : NULL;
    if (registration == NULL || registration->handle != NULL || registration->refused) {
        return registration != NULL && registration->handle != NULL;
    }
    registration->refused = true;
    if (cuda_enter(ranks->gpus, ranks->list[rank], NULL) != STATUS_OK || !has_event(ranks, rank)) {
        return false;
    }
    nccl_result result = ranks->nccl->register_memory(ranks->comms[rank], (void *)(uintptr_t)memory->base,
                                                      (size_t)memory->size_bytes, &registration->handle);
    if (result != NCCL_RESULT_OK) { /* an error means that it is not registered, and no more */
        log_debug("GPU %u: ncclCommRegister: %s", ranks->list[rank], ranks->nccl->error_text(result));
        registration->handle = NULL;
        return false;
    }
    registration->refused = false;
    nccl_registrations_count(ranks, 1);
    return true;
}

/* --- Deregistering --- */

static void deregister(struct nccl_ranks *ranks, struct nccl_registration *registration)
{
    uint32_t rank = registration->rank;
    if (registration->window != NULL) {
        nccl_window_end(ranks, registration->window, false);
    }
    if (registration->handle == NULL) {
        return;
    }
    if (cuda_enter(ranks->gpus, ranks->list[rank], NULL) == STATUS_OK) {
        (void)ranks->nccl->deregister_memory(ranks->comms[rank], registration->handle);
    }
    registration->handle = NULL;
    nccl_registrations_count(ranks, -1);
}

static bool is_not_registered(struct nccl_ranks *ranks, uint32_t rank, struct gpu_registrable *memory)
{
    const struct nccl_registration *registration = nccl_registration_find(ranks, memory);
    (void)rank;
    return registration == NULL || registration->handle == NULL;
}

static bool deregister_memory(struct nccl_ranks *ranks, uint32_t rank, struct gpu_registrable *memory)
{
    struct nccl_registration *registration = nccl_registration_find(ranks, memory);
    (void)rank;
    if (registration != NULL) {
        deregister(ranks, registration);
        registration->refused = true;
    }
    return true;
}

bool nccl_registrations_in_use(const struct nccl_ranks *ranks)
{
    for (uint32_t i = 0; i < ranks->count; i++) {
        if (ranks->last[i] != NULL && cuda_enter(ranks->gpus, ranks->list[i], NULL) == STATUS_OK &&
            ranks->gpus->driver->event_query(ranks->events[i]) == CUDA_RESULT_NOT_READY) {
            return true;
        }
    }
    return false;
}

/* --- Around a call --- */

/* Makes the streams wait for the earlier work, so that one event for each GPU tells when all has ended. NCCL
 * orders the work of a communicator itself. */
static void put_behind(const struct nccl_ranks *ranks, const cuda_stream *streams)
{
    for (uint32_t i = 0; i < ranks->count; i++) {
        if (ranks->last[i] != NULL && streams[i] != NULL && ranks->last[i] != streams[i] &&
            cuda_enter(ranks->gpus, ranks->list[i], NULL) == STATUS_OK) {
            (void)ranks->gpus->driver->stream_wait_event(streams[i], ranks->events[i], 0);
        }
    }
}

enum status nccl_registrations_prepare(struct nccl_ranks *ranks, const struct gpu_transfers *transfers,
                                       const cuda_stream *streams, bool *waits, struct error *error)
{
    *waits = false;
    if (!nccl_registry_is_on(ranks->gpus->registry)) {
        return STATUS_OK;
    }
    enum status status = nccl_windows_prepare(ranks, transfers, waits, error);
    if (status != STATUS_OK || *waits) {
        return status;
    }
    bool all = visit_buffers(ranks, transfers, can_be_registered) &&
               visit_buffers(ranks, transfers, register_memory);
    if (!all && !visit_buffers(ranks, transfers, is_not_registered)) {
        *waits = nccl_registrations_in_use(ranks);
        if (*waits) {
            return STATUS_OK;
        }
        (void)visit_buffers(ranks, transfers, deregister_memory);
    }
    put_behind(ranks, streams);
    return STATUS_OK;
}

void nccl_registrations_called(struct nccl_ranks *ranks, const cuda_stream *streams)
{
    for (uint32_t i = 0; i < ranks->count && ranks->registered_count > 0; i++) {
        if (ranks->events[i] != NULL && streams[i] != NULL &&
            cuda_enter(ranks->gpus, ranks->list[i], NULL) == STATUS_OK &&
            ranks->gpus->driver->event_record(ranks->events[i], streams[i]) == CUDA_RESULT_OK) {
            ranks->last[i] = streams[i];
        }
    }
}

bool nccl_registrations_sweep(struct nccl_ranks *ranks)
{
    struct nccl_registration *registration, *next;
    bool all = ranks->forming == NULL;
    HASH_ITER (hh, ranks->registrations, registration, next) {
        if (ranks->forming != NULL ||
            !nccl_registry_is_retired(ranks->gpus->registry, registration->memory)) {
            continue;
        }
        if (registration->window != NULL && nccl_registrations_in_use(ranks)) {
            all = false; /* the memory of other GPUs in the window */
            continue;
        }
        deregister(ranks, registration);
        drop(ranks, registration);
    }
    return all;
}

void nccl_registrations_end(struct nccl_ranks *ranks)
{
    struct nccl_registration *registration, *next;
    nccl_windows_end(ranks);
    nccl_registrations_count(ranks, -(int64_t)ranks->registered_count);
    HASH_ITER (hh, ranks->registrations, registration, next) {
        drop(ranks, registration);
    }
    for (uint32_t i = 0; i < ranks->count; i++) {
        if (ranks->events[i] != NULL && cuda_enter(ranks->gpus, ranks->list[i], NULL) == STATUS_OK) {
            (void)ranks->gpus->driver->event_destroy(ranks->events[i]);
        }
        ranks->events[i] = NULL;
        ranks->last[i] = NULL;
    }
}
