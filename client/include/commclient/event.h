#ifndef COMMCLIENT_EVENT_H
#define COMMCLIENT_EVENT_H

/*
 * Included by commclient.h.
 *
 * Events are points in CUDA streams or communicators that other streams and communicators can wait for. With
 * them, computing and communication overlap. These calls neither wait nor ask commd anything, unless stated.
 * A complete example, in which the host never waits:
 *
 *   comm_event_create(client, &event);
 *   comm_event_record(event, compute);      (the communicator waits for
 *   comm_event_wait_comm(event, comm);       the work now on the compute stream)
 *   comm_all_reduce(comm, ..., &options);   (options.stream = COMM_STREAM_NONE)
 *   comm_event_record_comm(event, comm);    (the compute stream waits for
 *   comm_event_wait(event, compute);         the all-reduce)
 *   comm_event_destroy(event);
 *
 * stream: a CUDA stream of a GPU on which the client has, or had, a communicator. Null is the legacy default
 * stream of the current context's GPU, if the client uses that GPU, else of the client's first GPU.
 * COMM_STREAM_NONE means the calling thread, and so does null while the client has used no GPU. An event that
 * the thread records is reached at once, and a wait blocks the thread. So a program also runs without a GPU.
 *
 * An event that was never recorded counts as reached. If it is recorded again, later waits use the new
 * record; earlier waits do not change. An event belongs to its client, and works with that client's
 * communicators. Several threads may use it at once. It may be destroyed while others wait for it. Events
 * that are not destroyed are freed with the client.
 *
 * Errors: COMM_UNSUPPORTED (the client has no GPU, or the stream is being captured), COMM_DAEMON_LOST,
 * COMM_DEVICE, COMM_INVALID_ARGUMENT, COMM_LIMIT.
 */
COMM_API COMM_CHECK comm_result_t comm_event_create(comm_client_t *client, comm_event_t **event);
/* Null is accepted. */
COMM_API void comm_event_destroy(comm_event_t *event);

/* The event is reached when the stream has done all work that is in it now. */
COMM_API COMM_CHECK comm_result_t comm_event_record(comm_event_t *event, void *stream);
/*
 * The event is reached when two things are true: every operation submitted so far on this rank of the
 * communicator has ended, and all events given to comm_event_wait_comm are reached. It is also reached when
 * the communicator fails. The call is refused in a group, because the group's operations are not submitted
 * yet. If 1,024 records of a communicator are not reached, further records are held, as collectives are.
 */
COMM_API COMM_CHECK comm_result_t comm_event_record_comm(comm_event_t *event, comm_t *comm);

/* Work that is put on the stream from now on begins after the event. If `stream` means the calling thread, it
 * waits, bounded by the deadlines of the operations: COMM_TIMED_OUT. */
COMM_API COMM_CHECK comm_result_t comm_event_wait(comm_event_t *event, void *stream);
/*
 * Operations submitted on this rank of the communicator from now on, including messages, begin after the
 * event. If more than 15 such events are not reached, they also begin after all earlier operations.
 */
COMM_API COMM_CHECK comm_result_t comm_event_wait_comm(comm_event_t *event, comm_t *comm);

/*
 * Blocks the calling thread until all operations of the communicator have ended, and all events that it was
 * to wait for are reached. Result and timeout_ms: as in comm_sync.
 */
COMM_API COMM_CHECK comm_result_t comm_sync_stream(comm_t *comm, uint32_t timeout_ms);

#endif
