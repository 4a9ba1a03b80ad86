#include <stdint.h>

#include "client/nccl/communicator.h"

/* Memory that commd works on without a copy, and registrations. */

/* Taken at the first allocation and kept, because memory ends with its connection. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static comm_client_t *owner;

NCCL_EXPORT(ncclResult_t, ncclMemAlloc, void **out, size_t size)
{
    int device;
    if (out == NULL || size == 0) {
        return failure_set(NCCL_INVALID_ARGUMENT, "ncclMemAlloc: %zu bytes at %p", size, (void *)out);
    }
    ncclResult_t result = session_device(&device);
    (void)pthread_mutex_lock(&lock);
    if (result == NCCL_SUCCESS && owner == NULL) {
        result = session_take(&owner);
    }
    (void)pthread_mutex_unlock(&lock);
    return result == NCCL_SUCCESS ? failure_from_library(comm_mem_alloc(owner, size, device, out)) : result;
}

NCCL_EXPORT(ncclResult_t, ncclMemFree, void *memory)
{
    if (memory == NULL) {
        return NCCL_SUCCESS;
    }
    return owner != NULL
               ? failure_from_library(comm_mem_free(owner, memory))
               : failure_set(NCCL_INVALID_ARGUMENT, "ncclMemFree: %p is not from ncclMemAlloc", memory);
}

/* The first operation that uses the memory registers it: nothing is to be done before. */
NCCL_EXPORT(ncclResult_t, ncclCommRegister, ncclComm_t comm, void *buffer, size_t size, void **handle)
{
    ncclResult_t result = communicator_check(comm, "ncclCommRegister");
    if (result != NCCL_SUCCESS) {
        return result;
    }
    if (buffer == NULL || size == 0 || handle == NULL) {
        return failure_set(NCCL_INVALID_ARGUMENT, "ncclCommRegister: %zu bytes at %p", size, buffer);
    }
    *handle = NULL;
    return NCCL_SUCCESS;
}

NCCL_EXPORT(ncclResult_t, ncclCommDeregister, ncclComm_t comm, void *handle)
{
    (void)handle;
    return comm != NULL ? NCCL_SUCCESS
                        : failure_set(NCCL_INVALID_ARGUMENT, "ncclCommDeregister: a null communicator");
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
