#ifndef CLIENT_LIB_FAILURE_H
#define CLIENT_LIB_FAILURE_H

#include <commclient.h>

#include "proto/client.pb-c.h"

/* Failures as data: the public comm_failure_t, and its text. No function needs a lock. */

#define ERROR_TEXT_BYTES 768

/* A failure that is kept until somebody takes it. */
struct client_failure {
    struct client_failure *next; /* in a queue's list of failures that were given out */
    const void *owner;           /* there: the thread that has it */
    comm_failure_t data;         /* its text is the one below */
    char text[];
};

/* Only the result and the operation are known. operation: static text. */
comm_failure_t failure_data(comm_result_t result, const char *operation);
/* What commd says; the result is COMM_OK. Excess is cut. */
comm_failure_t failure_from_message(const Commd__Client__Failure *message);
/* Returns null if memory is short. Free it with free(). */
struct client_failure *failure_new(const comm_failure_t *data, const char *text);
/* A failure of which only the result is known, in static storage: for want of memory. */
const comm_failure_t *failure_plain(comm_result_t result);

#endif
