#include <stdint.h>
#include <stdlib.h>

#include "client/nccl/communicator.h"

/* Memory that commd works on without a copy, and windows. */

/* Each is freed through the connection that made it: after a restart of commd there is another one. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct allocation {
    struct allocation *next;
    comm_client_t *client;
    void *memory;
} * allocations;

static ncclResult_t allocate(struct allocation *allocation, size_t size, int device)
{
    comm_result_t made = COMM_DAEMON_LOST;
    for (int tries = 0; tries < 2 && made == COMM_DAEMON_LOST; tries++) { /* commd may have been restarted */
        ncclResult_t result = process_take_client(&allocation->client);
        if (result != NCCL_SUCCESS) {
            return result;
        }
        made = comm_mem_alloc(allocation->client, size, device, &allocation->memory);
        if (made == COMM_DAEMON_LOST) {
            process_forget_client(allocation->client);
        }
    }
    return failure_from_library(made);
}

static void keep(struct allocation *allocation)
{
    (void)pthread_mutex_lock(&lock);
    allocation->next = allocations;
    allocations = allocation;
    (void)pthread_mutex_unlock(&lock);
}

NCCL_EXPORT(ncclResult_t, ncclMemAlloc, void **out, size_t size)
{
    int device;
    if (out == NULL || size == 0) {
        return failure_set(NCCL_INVALID_ARGUMENT, "ncclMemAlloc: %zu bytes at %p", size, (void *)out);
    }
    *out = NULL;
    struct allocation *allocation = calloc(1, sizeof *allocation);
    ncclResult_t result = allocation != NULL ? process_device(&device)
                                             : failure_set(NCCL_SYSTEM_ERROR, "ncclMemAlloc: no memory");
    result = result == NCCL_SUCCESS ? allocate(allocation, size, device) : result;
    if (result != NCCL_SUCCESS) {
        free(allocation);
        return result;
    }
    *out = allocation->memory;
    keep(allocation);
    return NCCL_SUCCESS;
}

static struct allocation *take_allocation(const void *memory)
{
    struct allocation *found = NULL;
    (void)pthread_mutex_lock(&lock);
    for (struct allocation **link = &allocations; *link != NULL; link = &(*link)->next) {
        if ((*link)->memory == memory) {
            found = *link;
            *link = found->next;
            break;
        }
    }
    (void)pthread_mutex_unlock(&lock);
    return found;
}

NCCL_EXPORT(ncclResult_t, ncclMemFree, void *memory)
{
    struct allocation *allocation = memory != NULL ? take_allocation(memory) : NULL;
    if (memory == NULL) {
        return NCCL_SUCCESS;
    }
    if (allocation == NULL) {
        return failure_set(NCCL_INVALID_ARGUMENT, "ncclMemFree: %p is not from ncclMemAlloc", memory);
    }
    comm_result_t freed = comm_mem_free(allocation->client, memory);
    if (freed == COMM_UNSUPPORTED) { /* a stream is being captured: the memory stays */
        keep(allocation);
    } else {
        free(allocation);
    }
    return failure_from_library(freed);
}

/* As NCCL where windows are not possible: the call succeeds, and the window is null. */
NCCL_EXPORT(ncclResult_t, ncclCommWindowRegister, ncclComm_t comm, void *buffer, size_t size,
            ncclWindow_t *window, int flags)
{
    (void)flags;
    ncclResult_t result = communicator_check(comm, "ncclCommWindowRegister");
    if (result != NCCL_SUCCESS) {
        return result;
    }
    if (window == NULL || buffer == NULL || size == 0) {
        return failure_set(NCCL_INVALID_ARGUMENT, "ncclCommWindowRegister: %zu bytes at %p", size, buffer);
    }
    *window = NULL;
    return NCCL_SUCCESS;
}

NCCL_EXPORT(ncclResult_t, ncclCommWindowDeregister, ncclComm_t comm, ncclWindow_t window)
{
    (void)window;
    return comm != NULL ? NCCL_SUCCESS
                        : failure_set(NCCL_INVALID_ARGUMENT, "ncclCommWindowDeregister: a null communicator");
}
