#include "client/nccl/nccl_version.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>

#include "client/nccl/failure.h"

static int version = NCCL_VERSION_DEFAULT;

int nccl_version_parse(const char *text)
{
    char *end = NULL;
    long number = text != NULL ? strtol(text, &end, 10) : 0;
    bool whole = end != NULL && end != text && *end == '\0';
    return whole && number >= NCCL_VERSION_LEAST && number <= NCCL_VERSION_MOST ? (int)number
                                                                                : NCCL_VERSION_DEFAULT;
}

static void read_environment(void)
{
    version = nccl_version_parse(getenv("COMMD_NCCL_VERSION"));
}

int nccl_version(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    (void)pthread_once(&once, read_environment);
    return version;
}

NCCL_EXPORT(ncclResult_t, ncclGetVersion, int *out)
{
    if (out == NULL) {
        return failure_set(NCCL_INVALID_ARGUMENT, "ncclGetVersion: the argument is a null pointer");
    }
    *out = nccl_version();
    return NCCL_SUCCESS;
}
