#ifndef COMMCLIENT_WAITING_H
#define COMMCLIENT_WAITING_H

/*
 * Waiting for operations, and handles of operations. Included by commclient.h; do not include it alone.
 *
 * A handle belongs to one thread at a time. While a thread waits for it, another thread that waits for it, or
 * tests it, gets COMM_INVALID_ARGUMENT; it must not free or start it. An array holds each handle only once.
 * Handles that are not freed, and were not waited for, take memory until the process ends.
 */

/*
 * Waits until the operation has ended, and returns its result. received may be null. Then the handle is freed
 * and *request becomes null. A persistent handle is kept instead, and can be started again. A null handle
 * counts as ended well.
 */
COMM_API COMM_CHECK comm_result_t comm_wait(comm_request_t **request, comm_received_t *received);
/* If the operation has ended, sets *done to 1 and does the same as comm_wait. Otherwise sets *done to 0 and
 * returns COMM_OK. */
COMM_API COMM_CHECK comm_result_t comm_test(comm_request_t **request, int *done, comm_received_t *received);
/* Waits for all handles; returns the failure with the lowest index. received: null, or `count` elements. */
COMM_API COMM_CHECK comm_result_t comm_wait_all(comm_request_t **requests, size_t count,
                                                comm_received_t *received);
/* Waits until one operation has ended, sets *index to its index, and returns its result. Null handles, and
 * persistent ones that are not started, are ignored. If no other handle is given, *index becomes `count`. All
 * handles must belong to one client. */
COMM_API COMM_CHECK comm_result_t comm_wait_any(comm_request_t **requests, size_t count, size_t *index,
                                                comm_received_t *received);
/* Starts a persistent operation. Returns COMM_IN_PROGRESS if its last start has not been waited for. */
COMM_API COMM_CHECK comm_result_t comm_start(comm_request_t *request);
/* Frees a handle without waiting. Its operation goes on, and comm_sync reports its failure. Null is accepted.
 */
COMM_API void comm_request_free(comm_request_t *request);

/*
 * Waits until every operation that was submitted on the communicator has ended. Then outputs are valid and
 * inputs may be changed (outputs of operations with a queue: when their completions were taken). Returns the
 * communicator's failure, or the first failure of an operation with neither handle nor queue. If timeout_ms
 * is 0, the operations' own deadlines bound the wait. Otherwise the call returns COMM_TIMED_OUT after
 * timeout_ms, and the operations go on.
 */
COMM_API COMM_CHECK comm_result_t comm_sync(comm_t *comm, uint32_t timeout_ms);

#endif
