#include "client/nccl/failure.h"

#include <stdarg.h>
#include <stdio.h>

#include "client/nccl/nccl_version.h"

static _Thread_local char last_text[FAILURE_TEXT_BYTES];

ncclResult_t failure_set(ncclResult_t result, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(last_text, sizeof last_text, format, arguments);
    va_end(arguments);
    return result;
}

const char *failure_text(void)
{
    return last_text;
}

/* Returns NCCL's result for the library's. */
static ncclResult_t failure_result(comm_result_t result)
{
    switch (result) {
    case COMM_OK:
        return NCCL_SUCCESS;
    case COMM_IN_PROGRESS:
        return NCCL_IN_PROGRESS;
    case COMM_INVALID_ARGUMENT:
    case COMM_NOT_FOUND:
        return NCCL_INVALID_ARGUMENT;
    case COMM_UNSUPPORTED:
    case COMM_MISMATCH:
    case COMM_ALREADY_EXISTS:
        return NCCL_INVALID_USAGE;
    case COMM_NODE_LOST:
    case COMM_RANK_LOST:
    case COMM_ABORTED:
    case COMM_SHUTTING_DOWN:
    case COMM_UNREACHABLE:
        return NCCL_REMOTE_ERROR;
    case COMM_TIMED_OUT:
        return nccl_version() >= NCCL_VERSION_WITH_TIMEOUT ? NCCL_TIMEOUT : NCCL_REMOTE_ERROR;
    case COMM_DEVICE:
        return NCCL_UNHANDLED_CUDA_ERROR;
    case COMM_PROTOCOL:
    case COMM_INTERNAL:
        return NCCL_INTERNAL_ERROR;
    case COMM_PERMISSION:
    case COMM_LIMIT:
    case COMM_NO_MEMORY:
    case COMM_VERSION:
    case COMM_DAEMON_LOST:
    case COMM_CONFIG:
    case COMM_SYSTEM:
    case COMM_CERTIFICATE:
    case COMM_BUSY:
        return NCCL_SYSTEM_ERROR;
    }
    return NCCL_INTERNAL_ERROR;
}

ncclResult_t failure_from_library(comm_result_t result)
{
    return result == COMM_OK ? NCCL_SUCCESS : failure_set(failure_result(result), "%s", comm_last_error());
}

NCCL_EXPORT(const char *, ncclGetErrorString, ncclResult_t result)
{
    static const char *const texts[NCCL_RESULT_COUNT] = {
        [NCCL_SUCCESS] = "no error",
        [NCCL_UNHANDLED_CUDA_ERROR] = "unhandled cuda error (ncclGetLastError has commd's text)",
        [NCCL_SYSTEM_ERROR] = "unhandled system error (ncclGetLastError has commd's text)",
        [NCCL_INTERNAL_ERROR] = "internal error (ncclGetLastError has commd's text)",
        [NCCL_INVALID_ARGUMENT] = "invalid argument (ncclGetLastError has commd's text)",
        [NCCL_INVALID_USAGE] = "invalid usage (ncclGetLastError has commd's text)",
        [NCCL_REMOTE_ERROR] = "remote process exited or there was a network error",
        [NCCL_IN_PROGRESS] = "operation in progress",
        [NCCL_TIMEOUT] = "operation timed out"};
    return result >= 0 && result < NCCL_RESULT_COUNT ? texts[result] : "unknown result code";
}
