#include <stdio.h>
#include <stdlib.h>

#include "tests/cuda_double/memory.h"
#include "tests/cuda_double/nccl.h"

/*
 * ncclCommRegister. Stricter than NCCL, which notices some of this late or not at all:
 *   - Only whole or part of one mapping of virtual memory on the rank's device. NCCL retains the allocation's
 *     handle, which fails for memory of cuMemAlloc, of legacy IPC handles and of pools.
 *   - A range that overlaps a registered one, and any handle that is not registered, are refused.
 *   - If some ranks of an operation pass registered memory and others do not, the results are garbage.
 *   - Memory that is deregistered while work in a stream uses it, or unmapped before it is deregistered,
 *     breaks the context.
 */

static struct communicator *holders; /* communicators with registrations */

struct registration *registration_of(const struct communicator *communicator, const void *address,
                                     uint64_t bytes)
{
    uint64_t begin = (uint64_t)(uintptr_t)address;
    for (struct registration *one = communicator->registrations; one != NULL; one = one->next) {
        if (begin >= one->address && bytes <= one->bytes && begin - one->address <= one->bytes - bytes) {
            return one;
        }
    }
    return NULL;
}

/* Work that was in a stream before the registration ends without having been counted. */
static void count_use(struct registration *registration, int change)
{
    if (registration != NULL && (change > 0 || registration->uses > 0)) {
        registration->uses += (unsigned)change;
    }
}

void registrations_use(const struct communicator *communicator, const struct call *call, int change)
{
    int size = communicator->clique->size, rank = communicator->rank;
    uint64_t sent = call_send_bytes(call, size, rank), received = call_receive_bytes(call, size, rank);
    struct registration *send = sent > 0 ? registration_of(communicator, call->send, sent) : NULL;
    struct registration *receive =
        received > 0 ? registration_of(communicator, call->receive, received) : NULL;
    count_use(send, change);
    count_use(receive, change);
}

bool operation_is_mixed(const struct operation *operation)
{
    int registered[2] = {0, 0}, passed[2] = {0, 0};
    for (int i = 0; i < operation->expected; i++) {
        const struct part *part = &operation->parts[i];
        int size = part->communicator->clique->size, rank = part->communicator->rank;
        uint64_t bytes[] = {call_send_bytes(&part->call, size, rank),
                            call_receive_bytes(&part->call, size, rank)};
        for (int k = 0; k < 2; k++) {
            passed[k] += bytes[k] > 0;
            registered[k] += bytes[k] > 0 && part->registered[k];
        }
    }
    int together = registered[0] + registered[1];
    return operation->sender >= 0 ? together != 0 && together != passed[0] + passed[1]
                                  : (registered[0] != 0 && registered[0] != passed[0]) ||
                                        (registered[1] != 0 && registered[1] != passed[1]);
}

static void registration_free(struct registration *registration)
{
    if (registration->formed_by != NULL) {
        operation_unref(registration->formed_by);
    }
    free(registration);
}

static void forget_holder(struct communicator *communicator)
{
    struct communicator **link = &holders;
    while (*link != NULL && *link != communicator) {
        link = &(*link)->next;
    }
    if (*link != NULL) {
        *link = communicator->next;
    }
}

void registrations_end(struct communicator *communicator)
{
    while (communicator->registrations != NULL) {
        struct registration *first = communicator->registrations;
        communicator->registrations = first->next;
        registration_free(first);
    }
    forget_holder(communicator);
}

void registrations_unmapped(uint64_t address, uint64_t bytes)
{
    for (const struct communicator *holder = holders; holder != NULL; holder = holder->next) {
        for (const struct registration *one = holder->registrations; one != NULL; one = one->next) {
            if (address < one->address + one->bytes && one->address < address + bytes) {
                (void)fprintf(stderr, "cuda_double: memory is unmapped that NCCL still has registered\n");
                context_fail(holder->context, CUDA_RESULT_ILLEGAL_ADDRESS);
            }
        }
    }
}

static bool overlaps_registered(const struct communicator *communicator, uint64_t address, uint64_t bytes)
{
    for (const struct registration *one = communicator->registrations; one != NULL; one = one->next) {
        if (address < one->address + one->bytes && one->address < address + bytes) {
            return true;
        }
    }
    return false;
}

nccl_result registration_add(struct communicator *communicator, uint64_t address, uint64_t bytes,
                             uint64_t window, void **handle)
{
    static uintptr_t given; /* never twice */
    const struct allocation *allocation = allocation_find(address);
    if (bytes == 0 || overlaps_registered(communicator, address, bytes)) {
        return nccl_fail(NCCL_RESULT_INVALID_USAGE, "rank %d: the memory is registered already",
                         communicator->rank);
    }
    if (allocation == NULL || allocation->kind != ALLOCATION_MAPPED ||
        address - allocation->address > allocation->bytes ||
        bytes > allocation->bytes - (address - allocation->address) ||
        allocation->ordinal != communicator->context->ordinal) {
        return nccl_fail(NCCL_RESULT_UNHANDLED_CUDA_ERROR,
                         "rank %d: cuMemRetainAllocationHandle: invalid argument", communicator->rank);
    }
    struct registration *made = calloc(1, sizeof *made);
    if (made == NULL) {
        return nccl_fail(NCCL_RESULT_SYSTEM_ERROR, "no memory");
    }
    *made = (struct registration){.next = communicator->registrations,
                                  .handle = ++given,
                                  .address = address,
                                  .bytes = bytes,
                                  .window = window};
    if (communicator->registrations == NULL) {
        communicator->next = holders;
        holders = communicator;
    }
    communicator->registrations = made;
    *handle = (void *)made->handle;
    return NCCL_RESULT_OK;
}

nccl_result nccl_begin(const char *function, nccl_comm comm, struct communicator **communicator)
{
    nccl_result result = nccl_enter(function);
    if (result != NCCL_RESULT_OK) {
        return result;
    }
    double_lock();
    *communicator = object_get(OBJECT_COMMUNICATOR, (uintptr_t)comm);
    result = communicator_check(*communicator);
    if (result != NCCL_RESULT_OK) {
        double_unlock();
    }
    return result;
}

static nccl_result register_memory(nccl_comm comm, void *memory, size_t bytes, void **handle)
{
    struct communicator *communicator;
    *handle = NULL;
    nccl_result result = nccl_begin("ncclCommRegister", comm, &communicator);
    if (result == NCCL_RESULT_OK) {
        result = registration_add(communicator, (uint64_t)(uintptr_t)memory, bytes, 0, handle);
        double_unlock();
    }
    return result;
}
NCCL_SINCE(21900, ncclCommRegister, register_memory)

nccl_result registration_remove(struct communicator *communicator, uintptr_t handle, bool of_window)
{
    struct registration **link = &communicator->registrations;
    while (*link != NULL && ((*link)->handle != handle || ((*link)->window != 0) != of_window)) {
        link = &(*link)->next;
    }
    if (*link == NULL) {
        return nccl_fail(NCCL_RESULT_INVALID_ARGUMENT, "rank %d: no such registration", communicator->rank);
    }
    struct registration *gone = *link;
    *link = gone->next;
    if (gone->uses > 0) {
        (void)fprintf(stderr, "cuda_double: memory is deregistered while NCCL's work uses it\n");
        context_fail(communicator->context, CUDA_RESULT_ILLEGAL_ADDRESS);
    }
    registration_free(gone);
    if (communicator->registrations == NULL) {
        forget_holder(communicator);
    }
    return NCCL_RESULT_OK;
}

static nccl_result deregister_memory(nccl_comm comm, void *handle)
{
    struct communicator *communicator;
    nccl_result result = nccl_begin("ncclCommDeregister", comm, &communicator);
    if (result == NCCL_RESULT_OK) {
        result = registration_remove(communicator, (uintptr_t)handle, false);
        double_unlock();
    }
    return result;
}
NCCL_SINCE(21900, ncclCommDeregister, deregister_memory)
