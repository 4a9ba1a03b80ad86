#include <stdlib.h>
#include <unistd.h>

#include "client/nccl/communicator.h"

/* The process's connection to commd. All communicators and all memory of the process share it. */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct {
    comm_client_t *client;
    pid_t pid;
} process;

const struct cuda_driver *process_driver(void)
{
    const struct cuda_driver *driver;
    char why[256];
    if (!cuda_driver_load(&driver, why, sizeof why)) {
        (void)failure_set(NCCL_UNHANDLED_CUDA_ERROR, "%s", why);
        return NULL;
    }
    return driver;
}

ncclResult_t process_device(int *out)
{
    const struct cuda_driver *driver = process_driver();
    cuda_context context = NULL;
    cuda_device current, each;
    int count = 0;
    *out = 0;
    if (driver == NULL) {
        return NCCL_UNHANDLED_CUDA_ERROR;
    }
    if (driver->context_get(&context) != CUDA_RESULT_OK || context == NULL) {
        return NCCL_SUCCESS; /* CUDA's default */
    }
    if (driver->context_device(&current) != CUDA_RESULT_OK ||
        driver->device_count(&count) != CUDA_RESULT_OK) {
        return failure_set(NCCL_UNHANDLED_CUDA_ERROR, "CUDA does not tell the current device");
    }
    for (int ordinal = 0; ordinal < count; ordinal++) {
        if (driver->device_get(&each, ordinal) == CUDA_RESULT_OK && each == current) {
            *out = ordinal;
            return NCCL_SUCCESS;
        }
    }
    return failure_set(NCCL_UNHANDLED_CUDA_ERROR, "this process does not see the current CUDA device");
}

ncclResult_t process_take_client(comm_client_t **out)
{
    ncclResult_t result = NCCL_SUCCESS;
    (void)pthread_mutex_lock(&lock);
    if (process.client != NULL && process.pid != getpid()) {
        process.client = NULL; /* the parent's: a child of fork opens its own */
    }
    if (process.client == NULL) {
        process.pid = getpid();
        result = failure_from_library(comm_client_open(NULL, &process.client));
    }
    if (result == NCCL_SUCCESS) {
        *out = process.client;
    }
    (void)pthread_mutex_unlock(&lock);
    return result;
}

void process_forget_client(comm_client_t *client)
{
    (void)pthread_mutex_lock(&lock);
    if (client == process.client) {
        process.client = NULL;
    }
    (void)pthread_mutex_unlock(&lock);
}
