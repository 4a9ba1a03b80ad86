#ifndef COMMCLIENT_RECOVERY_H
#define COMMCLIENT_RECOVERY_H

/*
 * Going on after a rank or node is lost. Included by commclient.h; do not include it alone.
 *
 * When a communicator fails, the nodes of its surviving ranks agree on the result, the text, the lost ranks
 * and the last collective that ended on all of them, before any rank is told. So all survivors are told the
 * same. They may then form the next communicator with comm_shrink, and go on.
 *
 * If nodes cannot reach each other, at most one group of them may go on: the majority of those that are not
 * proven dead, or, of exactly half, the half with the lowest node. The others' operations and comm_shrink
 * fail with COMM_ABORTED, and a text that says "minority". A daemon is proven dead if its host says so, if it
 * was started again, or if it said goodbye; silence proves nothing.
 */

typedef struct comm_shrink_options {
    size_t struct_size;  /* COMM_SHRINK_OPTIONS_INIT sets it */
    uint32_t timeout_ms; /* for each of two waits: for the failure, and for all survivors; 0: 60,000 */
} comm_shrink_options_t;
#define COMM_SHRINK_OPTIONS_INIT                                                                             \
    {                                                                                                        \
        sizeof(struct comm_shrink_options), 0                                                                \
    }

/*
 * Makes a communicator of the surviving ranks of `comm`, which has failed: the same order, contiguous ranks,
 * the same options. Every surviving rank must call it. It waits until `comm` has failed everywhere, and until
 * all survivors have called. A rank or node that is lost meanwhile is left out as well. `comm` stays until
 * comm_destroy; only then its name and memory are free. A healthy communicator must be ended first, with
 * comm_abort. options: may be null.
 *
 * It is refused in a group. Call it from one thread at a time for each communicator. *next belongs to the
 * caller (comm_destroy).
 *
 * Errors: COMM_ABORTED (these nodes are a minority), COMM_RANK_LOST (the survivors count this rank as lost),
 * COMM_TIMED_OUT (`comm` has not failed, or survivors did not call in time; calling again is allowed),
 * COMM_UNSUPPORTED (a commd is older), COMM_ALREADY_EXISTS (this rank has shrunk `comm` before), COMM_LIMIT,
 * COMM_NO_MEMORY, COMM_DAEMON_LOST.
 */
COMM_API COMM_CHECK comm_result_t comm_shrink(comm_t *comm, const comm_shrink_options_t *options,
                                              comm_t **next);

/*
 * Opens a connection to commd in the place of *client, whose connection is lost (COMM_DAEMON_LOST): commd was
 * restarted, for example. Memory of comm_mem_alloc, comm_pool_alloc and comm_mem_register stays where it is,
 * with its contents, and is registered with the new commd. So programs that were restarted with commd need
 * not copy their data. Pools go on. *client is a new pointer afterwards, and the old one is invalid.
 *
 * Communicators, queues, events and stores of the lost connection must be destroyed first; the program makes
 * them again. As long as the connection is not lost, the call does nothing. options: as for comm_client_open,
 * above all wait_ms; null, or without a socket_path: the path of *client. After a failure *client and its
 * memory stay as they are, and the call may be repeated.
 *
 * Until it returns, no thread may use *client, its pools, or its memory: the library moves memory of its own
 * on the host to another file, at the same addresses. A child of fork, which shared the memory, shares it no
 * more. It copies at some GB/s, and needs room for 64 MiB more (or one huge page), not for a second copy. Of
 * memory of comm_mem_register on the host, the library keeps the first 256 files. Memory on GPUs that the
 * program made is registered at its next use. Memory of CUDA memory pools is registered at once; pools that
 * are destroyed meanwhile cannot be passed again (COMM_UNSUPPORTED): deregister their memory first.
 *
 * Errors: COMM_BUSY (something of the lost connection is not destroyed; or commd's process stands still, and
 * may still write to the memory), COMM_LIMIT (more registered memory than files), COMM_NO_MEMORY,
 * COMM_INVALID_ARGUMENT; those of comm_client_open.
 */
COMM_API COMM_CHECK comm_result_t comm_client_reopen(comm_client_t **client,
                                                     const comm_open_options_t *options);

typedef struct comm_lost {
    uint32_t count;    /* of lost ranks; those that left with comm_destroy count, too */
    int may_shrink;    /* 1 if this rank may call comm_shrink */
    uint64_t last_seq; /* every collective up to this number has ended on all survivors; a later one may have
                          ended well on some of them */
} comm_lost_t;

/*
 * Which ranks a failed communicator has lost, as its nodes have agreed. At most `max` of them, ascending, are
 * written to `ranks`; lost->count may be greater. Waits up to a few seconds for the agreement, if an
 * operation has failed. Of a communicator that has not failed, none is lost. The descriptor of any completion
 * queue of the client (comm_queue_fd) becomes readable when a communicator fails, also if nothing is under
 * way in it. Refused in a group. Any thread may call it. Errors: COMM_TIMED_OUT, COMM_UNSUPPORTED or
 * COMM_ABORTED (there is no agreement), COMM_DAEMON_LOST.
 */
COMM_API COMM_CHECK comm_result_t comm_lost(comm_t *comm, uint32_t *ranks, uint32_t max, comm_lost_t *lost);

/*
 * comm_shrink, which puts the next communicator in the place of *comm, and destroys that. After a failure
 * *comm stays. Memory, events and queues of the client stay valid; persistent handles of *comm do not.
 */
COMM_API COMM_CHECK comm_result_t comm_recover(comm_t **comm, const comm_shrink_options_t *options);

/*
 * Agrees on *flags: every surviving rank gets the bitwise AND of what the ranks passed that are alive, or
 * were alive when they called. All survivors get the same result, whoever is lost meanwhile, and also if
 * `comm` has failed already (MPI's ULFM: MPI_Comm_agree). Every surviving rank must call it, in the same
 * order among the collectives; no other thread may start a collective of `comm` meanwhile. After it,
 * comm_lost or the next operation says whether ranks were lost. If they were, comm_shrink returns at once.
 *
 * timeout_ms: how long to wait for the other ranks, each time that ranks are lost; 0: 60,000. If a rank does
 * not call in time, `comm` ends with COMM_ABORTED, and ranks get COMM_TIMED_OUT or COMM_ABORTED.
 *
 * Errors: COMM_TIMED_OUT, COMM_ABORTED (also of a minority), COMM_MISMATCH (another rank calls another
 * collective), COMM_RANK_LOST (the survivors count this rank as lost), COMM_UNSUPPORTED (a commd is older),
 * COMM_INVALID_ARGUMENT, COMM_DAEMON_LOST; COMM_NO_MEMORY or COMM_LIMIT (this process has no room; the other
 * ranks wait until it calls again).
 */
COMM_API COMM_CHECK comm_result_t comm_agree(comm_t *comm, uint64_t *flags, uint32_t timeout_ms);

#endif
