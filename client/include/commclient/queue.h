#ifndef COMMCLIENT_QUEUE_H
#define COMMCLIENT_QUEUE_H

/*
 * Completion queues: operations end without a thread that waits for each. Included by commclient.h; do not
 * include it alone.
 *
 * An operation ends into a queue if its call has `queue` in comm_call_options_t. A call that returns COMM_OK
 * gives the queue exactly one completion, whatever the operation's result. A call that fails gives none. In a
 * group, this is said of each call: if comm_group_end fails, the operations that could not be submitted have
 * completions with that failure. comm_sync and comm_barrier wait for these operations, too, but do not return
 * their failures.
 *
 * A queue is like comm_wait_any on a set of operations to which other threads may add.
 */

/* An operation that has ended. */
typedef struct comm_completion {
    void *cookie; /* of the call's options */
    comm_result_t result;
    comm_received_t received; /* of a receive */
    /* Of a failure: what is known of it, valid until the thread's next call of comm_queue_next on this queue.
     * Null if the operation ended well. */
    const comm_failure_t *failure;
} comm_completion_t;

/*
 * Makes a queue. Operations of any communicator of the client may end into it. A queue takes three
 * descriptors. Errors: COMM_NO_MEMORY, COMM_LIMIT (descriptors), COMM_DAEMON_LOST.
 */
COMM_API COMM_CHECK comm_result_t comm_queue_create(comm_client_t *client, comm_queue_t **queue);

/*
 * A descriptor for poll, epoll or an event loop. It is readable while there may be something for
 * comm_queue_next: completions, the end of commd, or comm_queue_wake. It may be readable without a
 * completion. It belongs to the queue: do not read or close it. Call comm_queue_next with timeout 0 until it
 * returns no completion, and then poll: that call arms the descriptor. (A queue at which threads wait with
 * other timeouts is faster if its descriptor is never armed.) While operations are to end into the queue, the
 * descriptor also becomes readable a few times a second, so that comm_queue_next notices if commd stands
 * still.
 */
COMM_API int comm_queue_fd(const comm_queue_t *queue);

/*
 * Takes up to `most` completions, in the order in which the operations ended, and sets *count. Waits up to
 * timeout_ms for the first one (0: does not wait; COMM_NO_TIMEOUT: as long as it takes). Outputs of the
 * returned operations are valid then, as after comm_wait. Several threads may call it; each completion goes
 * to one of them. Returns COMM_OK also if *count is 0 because of comm_queue_wake; COMM_TIMED_OUT if the time
 * passed; COMM_DAEMON_LOST once all operations of the queue were returned and commd is lost. Refused in a
 * group, like every call that waits.
 */
#define COMM_NO_TIMEOUT UINT32_MAX
COMM_API COMM_CHECK comm_result_t comm_queue_next(comm_queue_t *queue, comm_completion_t *completions,
                                                  size_t most, size_t *count, uint32_t timeout_ms);

/* Makes one waiting, or the next, comm_queue_next return at once. May be called from any thread and from a
 * signal handler. Several wakes before a return count as one. */
COMM_API void comm_queue_wake(comm_queue_t *queue);

/*
 * Null is accepted. Operations that were to end into the queue go on, and end as if they had neither queue
 * nor handle. Completions that were not taken are dropped: outputs of these operations are undefined. No
 * other thread may use the queue. comm_client_close destroys the queues that are left.
 */
COMM_API void comm_queue_destroy(comm_queue_t *queue);

/*
 * As comm_wait, but waits at most timeout_ms (COMM_NO_TIMEOUT: as comm_wait). Returns COMM_TIMED_OUT if the
 * operation has not ended: then *request is still valid. (An operation whose own deadline passed returns
 * COMM_TIMED_OUT as well, and *request is null, or is a persistent handle that can be started again.)
 */
COMM_API COMM_CHECK comm_result_t comm_wait_for(comm_request_t **request, uint32_t timeout_ms,
                                                comm_received_t *received);

/*
 * Ends the communicator on all its ranks, from any thread. `reason`: up to 255 bytes of text, which all ranks
 * get; may be null. Pending and later operations end with COMM_ABORTED. Threads that wait wake up.
 * comm_destroy does not wait afterwards. Returns COMM_OK also if the communicator has failed already. Errors:
 * COMM_UNSUPPORTED (commd is older than this library), COMM_DAEMON_LOST, COMM_INVALID_ARGUMENT (the reason is
 * too long, or not printable).
 */
COMM_API COMM_CHECK comm_result_t comm_abort(comm_t *comm, const char *reason);

#endif
