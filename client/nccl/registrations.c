#include <stdint.h>
#include <stdlib.h>

#include "client/nccl/communicator.h"

/*
 * ncclCommRegister. The first operation registers its buffers with commd, so nothing is to be done before,
 * with one exception: commd takes memory of CUDA memory pools only between a registration and its end. Such
 * an allocation is registered once in a process, for all communicators, until its last registration ends.
 */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct registration {
    struct registration *next;
    comm_client_t *client; /* the connection: after a restart of commd there is another one */
    void *base;            /* of the allocation */
    unsigned uses;
} * registrations;

/* Memory of another GPU is not for this communicator. Host memory, and what CUDA does not know, is not looked
 * at. */
static ncclResult_t check_device(const struct ncclComm *comm, const void *buffer)
{
    const struct cuda_driver *driver = process_driver();
    unsigned type = 0;
    int device = comm->device;
    bool known =
        driver != NULL &&
        driver->pointer_attribute(&type, CUDA_POINTER_MEMORY_TYPE, (uintptr_t)buffer) == CUDA_RESULT_OK &&
        type == CUDA_MEMORY_DEVICE &&
        driver->pointer_attribute(&device, CUDA_POINTER_DEVICE, (uintptr_t)buffer) == CUDA_RESULT_OK;
    return !known || device == comm->device
               ? NCCL_SUCCESS
               : failure_set(
                     NCCL_INVALID_ARGUMENT,
                     "ncclCommRegister: %p is on CUDA device %d, and the communicator's rank %d is on "
                     "device %d",
                     buffer, device, comm->rank, comm->device);
}

static bool is_of_pool(const void *buffer)
{
    const struct cuda_driver *driver = process_driver();
    cuda_pool pool = NULL;
    return driver != NULL &&
           driver->pointer_attribute(&pool, CUDA_POINTER_POOL, (uintptr_t)buffer) == CUDA_RESULT_OK &&
           pool != NULL;
}

static struct registration *find(const comm_client_t *client, const void *base)
{
    struct registration *one = registrations;
    while (one != NULL && (one->client != client || one->base != base)) {
        one = one->next;
    }
    return one;
}

/* Registers the whole allocation, or counts one more registration of it. With the lock. */
static ncclResult_t add(comm_client_t *client, void *buffer, size_t size, struct registration **out)
{
    cuda_pointer base = 0;
    if (process_driver()->memory_range(&base, NULL, (uintptr_t)buffer) != CUDA_RESULT_OK) {
        return failure_set(NCCL_UNHANDLED_CUDA_ERROR, "ncclCommRegister: CUDA does not know %p", buffer);
    }
    struct registration *one = find(client, (void *)(uintptr_t)base);
    comm_result_t registered = comm_mem_register(client, buffer, size, -1, 0);
    if (registered != COMM_OK) {
        return failure_from_library(registered);
    }
    if (one == NULL) {
        one = calloc(1, sizeof *one);
        if (one == NULL) {
            (void)comm_mem_deregister(client, buffer);
            return failure_set(NCCL_SYSTEM_ERROR, "ncclCommRegister: no memory");
        }
        *one =
            (struct registration){.next = registrations, .client = client, .base = (void *)(uintptr_t)base};
        registrations = one;
    }
    one->uses++;
    *out = one;
    return NCCL_SUCCESS;
}

NCCL_EXPORT(ncclResult_t, ncclCommRegister, ncclComm_t comm, void *buffer, size_t size, void **handle)
{
    comm_client_t *client;
    struct registration *made = NULL;
    ncclResult_t result = communicator_check(comm, "ncclCommRegister");
    if (result != NCCL_SUCCESS) {
        return result;
    }
    if (buffer == NULL || size == 0 || handle == NULL) {
        return failure_set(NCCL_INVALID_ARGUMENT, "ncclCommRegister: %zu bytes at %p", size, buffer);
    }
    *handle = NULL;
    result = check_device(comm, buffer);
    if (result != NCCL_SUCCESS) {
        return result;
    }
    if (!is_of_pool(buffer)) {
        return NCCL_SUCCESS;
    }
    result = process_take_client(&client);
    if (result == NCCL_SUCCESS) {
        (void)pthread_mutex_lock(&lock);
        result = add(client, buffer, size, &made);
        (void)pthread_mutex_unlock(&lock);
    }
    *handle = made;
    return result;
}

/* Takes the registration out of the list if its last use ends. With the lock. Null: the handle is none. */
static struct registration *drop(const void *handle)
{
    struct registration **link = &registrations;
    while (*link != NULL && *link != handle) {
        link = &(*link)->next;
    }
    struct registration *one = *link;
    if (one != NULL && --one->uses == 0) {
        *link = one->next;
    }
    return one;
}

NCCL_EXPORT(ncclResult_t, ncclCommDeregister, ncclComm_t comm, void *handle)
{
    comm_result_t ended = COMM_OK;
    if (comm == NULL) {
        return failure_set(NCCL_INVALID_ARGUMENT, "ncclCommDeregister: a null communicator");
    }
    if (handle == NULL) {
        return NCCL_SUCCESS;
    }
    (void)pthread_mutex_lock(&lock);
    struct registration *one = drop(handle);
    if (one != NULL && one->uses == 0) {
        ended = comm_mem_deregister(one->client, one->base); /* waits until commd has closed the memory */
        free(one);
    }
    (void)pthread_mutex_unlock(&lock);
    return one == NULL
               ? failure_set(NCCL_INVALID_ARGUMENT, "ncclCommDeregister: %p is no registration", handle)
               : failure_from_library(ended);
}
