#ifndef CLIENT_NCCL_FAILURE_H
#define CLIENT_NCCL_FAILURE_H

#include <commclient.h>

#include "client/nccl/nccl_api.h"

/* Results and texts of failures. Any thread, no lock. */

#define FAILURE_TEXT_BYTES 1024

/* Keeps the text as this thread's last error. Returns `result`. */
ncclResult_t failure_set(ncclResult_t result, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Keeps the text of comm_last_error. Returns NCCL's result for the library's. */
ncclResult_t failure_from_library(comm_result_t result);
/* Returns this thread's last error, or "" if there was none. */
const char *failure_text(void);

#endif
