#include <stdio.h>

#include "tests/cuda_double/memory.h"
#include "tests/cuda_double/nccl.h"

/*
 * Windows of NCCL 2.27.3 and later, with NCCL_WIN_COLL_SYMMETRIC. Stricter than NCCL, which notices some of
 * this late or not at all:
 *   - All ranks register a window, as one operation of the communicator, with the same number of bytes. Its
 *     handle is there when the call is over: in a group, or on a non-blocking communicator, not before.
 *   - Memory as for ncclCommRegister, 4096 bytes aligned in its mapping. Anything else fails the whole
 *     communicator, because the other ranks are already in the call.
 *   - NCCL gives each rank's windows places of its own, one after the other. So if some ranks have ended a
 *     window that others still have, the next one fails the communicator.
 *   - If the buffers of an all_reduce, all_gather or reduce_scatter are in windows, then those that a device
 *     reaches at its peers must be at the same place of the same window. Otherwise the results are garbage.
 */

#define WINDOW_ALIGNMENT 4096u

struct place window_place(const struct communicator *communicator, const void *address, uint64_t bytes)
{
    const struct registration *one = bytes > 0 ? registration_of(communicator, address, bytes) : NULL;
    return one != NULL && one->window != 0
               ? (struct place){.window = one->window, .offset = (uint64_t)(uintptr_t)address - one->address}
               : (struct place){.window = 0};
}

static bool side_agrees(const struct operation *operation, int side)
{
    const struct place *first = &operation->parts[0].places[side];
    for (int i = 1; i < operation->expected; i++) {
        const struct place *other = &operation->parts[i].places[side];
        if (other->window != first->window || other->offset != first->offset) {
            return false;
        }
    }
    return true;
}

bool operation_misses_windows(const struct operation *operation)
{
    bool in_windows[2] = {false, false};
    enum collective kind = operation->parts[0].call.kind;
    if (kind != COLLECTIVE_ALL_REDUCE && kind != COLLECTIVE_ALL_GATHER && kind != COLLECTIVE_REDUCE_SCATTER) {
        return false;
    }
    for (int i = 0; i < operation->expected; i++) {
        in_windows[0] |= operation->parts[i].places[0].window != 0;
        in_windows[1] |= operation->parts[i].places[1].window != 0;
    }
    return (in_windows[0] && kind != COLLECTIVE_ALL_GATHER && !side_agrees(operation, 0)) ||
           (in_windows[1] && kind != COLLECTIVE_REDUCE_SCATTER && !side_agrees(operation, 1));
}

static bool has_window(const struct communicator *communicator, uint64_t window)
{
    const struct registration *one = communicator->registrations;
    while (one != NULL && one->window != window) {
        one = one->next;
    }
    return one != NULL;
}

/* Whether the other rank has all windows of this one, but for those that are being formed. */
static bool has_all(const struct communicator *communicator, const struct communicator *other)
{
    for (const struct registration *one = communicator->registrations; one != NULL; one = one->next) {
        if (one->window != 0 && one->formed_by->arrived == one->formed_by->expected &&
            !has_window(other, one->window)) {
            return false;
        }
    }
    return true;
}

static bool ranks_agree(const struct communicator *communicator)
{
    const struct clique *clique = communicator->clique;
    for (int i = 0; i < clique->size; i++) {
        const struct communicator *other = clique->ranks[i];
        if (other != NULL && (!has_all(communicator, other) || !has_all(other, communicator))) {
            return false;
        }
    }
    return true;
}

static nccl_result form(struct communicator *communicator, struct operation *operation)
{
    const struct call *call = &operation->parts[communicator->rank].call;
    uint64_t address = (uint64_t)(uintptr_t)call->send;
    const struct allocation *allocation = allocation_find(address);
    if (!ranks_agree(communicator)) {
        return clique_fail(communicator->clique, NCCL_RESULT_INTERNAL_ERROR,
                           "rank %d: the ranks have different windows", communicator->rank);
    }
    if (allocation != NULL && (address - allocation->address) % WINDOW_ALIGNMENT != 0) {
        return clique_fail(communicator->clique, NCCL_RESULT_INVALID_ARGUMENT,
                           "Window address must be suitably aligned.");
    }
    void *handle = NULL;
    nccl_result result = registration_add(communicator, address, call->count, operation->number + 1, &handle);
    if (result != NCCL_RESULT_OK) {
        return clique_fail(communicator->clique, result, "rank %d: cuMemRetainAllocationHandle failed",
                           communicator->rank);
    }
    communicator->registrations->formed_by = operation; /* it is the first in the list */
    operation->references++;
    operation->arrived++;
    *call->window = handle;
    return NCCL_RESULT_OK;
}

nccl_result window_form(struct communicator *communicator, struct operation *operation)
{
    nccl_result result = settings()->nccl_windows ? form(communicator, operation) : NCCL_RESULT_OK;
    operation_unref(operation);
    return result;
}

static nccl_result register_window(nccl_comm comm, void *memory, size_t bytes, nccl_window_handle *window,
                                   int flags)
{
    struct communicator *communicator;
    *window = NULL;
    nccl_result result = nccl_begin("ncclCommWindowRegister", comm, &communicator);
    if (result != NCCL_RESULT_OK) {
        return group_note(result);
    }
    if (memory == NULL || bytes == 0 || (flags != 0 && flags != NCCL_WINDOW_SYMMETRIC)) {
        result = group_note(
            nccl_fail(NCCL_RESULT_INVALID_ARGUMENT, "rank %d: window, or its flags", communicator->rank));
    } else {
        result = group_add_call(communicator, &(struct call){.kind = WINDOW,
                                                             .count = bytes,
                                                             .type = NCCL_TYPE_U8,
                                                             .reduce = -1,
                                                             .root = -1,
                                                             .send = memory,
                                                             .window = window,
                                                             .flags = flags});
    }
    double_unlock();
    return result;
}
NCCL_SINCE(22703, ncclCommWindowRegister, register_window)

static nccl_result deregister_window(nccl_comm comm, nccl_window_handle window)
{
    struct communicator *communicator;
    nccl_result result = nccl_begin("ncclCommWindowDeregister", comm, &communicator);
    if (result == NCCL_RESULT_OK) {
        result = window == NULL ? NCCL_RESULT_OK : registration_remove(communicator, (uintptr_t)window, true);
        double_unlock();
    }
    return result;
}
NCCL_SINCE(22703, ncclCommWindowDeregister, deregister_window)
