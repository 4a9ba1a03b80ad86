#ifndef COMMCLIENT_ELASTIC_H
#define COMMCLIENT_ELASTIC_H

/*
 * Jobs whose number of ranks is not known before, and changes. Included by commclient.h; do not include it
 * alone.
 *
 * comm_join waits until enough processes have come, and numbers them. After a loss, the survivors go on with
 * comm_shrink. Processes that come later wait in comm_join until the ranks take them in with comm_grow. No
 * process needs an address, or knows how many others there are.
 *
 * A job has one generation at a time. Its ranks keep their order: survivors move up, and newcomers come last.
 * Another generation is formed of those that wait when no rank of the last one is left.
 */

typedef struct comm_join_options {
    size_t struct_size;              /* COMM_JOIN_OPTIONS_INIT sets it */
    int device;                      /* as in comm_init */
    uint32_t timeout_ms;             /* how long to wait for a rank; 0: 600,000 */
    uint32_t last_call_ms;           /* once there are `least`: how long to wait for one more; 0: 1,000 */
    const comm_init_options_t *init; /* may be null. Its timeout_ms is that of one attempt to form */
} comm_join_options_t;
#define COMM_JOIN_OPTIONS_INIT                                                                               \
    {                                                                                                        \
        sizeof(struct comm_join_options), COMM_DEVICE_HOST, 0, 0, NULL                                       \
    }

/*
 * Takes part in the job `name`: waits for a rank in a communicator of `least` to `most` ranks. comm_rank and
 * comm_size say which. If no generation runs, one is formed when `most` processes wait, or when `least` wait
 * and nobody else has come for last_call_ms. If one runs, the call waits until its ranks call comm_grow, or
 * until all have left. If a process is lost while its generation forms, the others wait again.
 *   - name: 1 to 80 printable ASCII characters without space. It belongs to the user, as that of comm_init.
 *   - Ranks of a node follow each other. Of processes that wait, the greatest `least` and the smallest `most`
 *     count.
 *   - options: may be null. All processes pass the same options for comm_init.
 *   - A new generation forms only where most nodes of the cluster are reached; of exactly half, the half with
 *     the lowest name; or anywhere, if all pass minority_continues.
 * The process is part of the job until it has destroyed *comm, and all communicators that comm_shrink and
 * comm_grow made of it.
 *
 * Errors: COMM_TIMED_OUT (the message says what is missing), COMM_INVALID_ARGUMENT, COMM_PERMISSION,
 * COMM_SHUTTING_DOWN (this node drains), COMM_UNSUPPORTED (commd is older), COMM_LIMIT, COMM_NO_MEMORY,
 * COMM_DAEMON_LOST, and those of comm_init. Any thread may call it.
 */
COMM_API COMM_CHECK comm_result_t comm_join(comm_client_t *client, const char *name, uint32_t least,
                                            uint32_t most, const comm_join_options_t *options, comm_t **comm);

/*
 * Ends the calls of comm_init and comm_join of this client that wait for `name`; null: for any. They return
 * COMM_ABORTED. Another process may take a rank that comm_init waited with. Call it from another thread.
 * Errors: COMM_DAEMON_LOST.
 */
COMM_API COMM_CHECK comm_result_t comm_cancel(comm_client_t *client, const char *name);

/*
 * How many processes wait to be taken into the job of `comm`, which comm_join, comm_shrink or comm_grow made.
 * It does not wait, and may be some 100 ms old. The descriptor of any completion queue of the client
 * (comm_queue_fd) becomes readable when the number changes. Errors: COMM_INVALID_ARGUMENT (comm_join made no
 * such communicator), COMM_DAEMON_LOST. Any thread may call it.
 */
COMM_API COMM_CHECK comm_result_t comm_waiting(comm_t *comm, uint32_t *count);

#define COMM_DRAINING_REASON_BYTES 256
typedef struct comm_draining {
    size_t struct_size; /* COMM_DRAINING_INIT sets it */
    int draining;       /* 1: the node takes no new communicators, and those that run end at the deadline */
    uint32_t left_ms;   /* until the deadline; COMM_NO_TIMEOUT: there is none */
    char reason[COMM_DRAINING_REASON_BYTES]; /* of the administrator; "": none was given */
} comm_draining_t;
#define COMM_DRAINING_INIT                                                                                   \
    {                                                                                                        \
        sizeof(struct comm_draining), 0, 0, ""                                                               \
    }

/*
 * Whether this node drains, so that a job can leave it before its communicators end: for example by a
 * checkpoint, or by comm_abort and comm_shrink of the other nodes' ranks. It does not wait. The descriptor of
 * any completion queue of the client becomes readable when this changes. An older commd says nothing. Errors:
 * COMM_INVALID_ARGUMENT, COMM_DAEMON_LOST. Any thread may call it.
 */
COMM_API COMM_CHECK comm_result_t comm_draining(comm_client_t *client, comm_draining_t *draining);

typedef struct comm_grow_options {
    size_t struct_size;  /* COMM_GROW_OPTIONS_INIT sets it */
    uint32_t most;       /* ranks of the next communicator; 0: `most` of comm_join. Only rank 0's counts */
    uint32_t timeout_ms; /* for the newcomers; 0: 60,000 */
} comm_grow_options_t;
#define COMM_GROW_OPTIONS_INIT                                                                               \
    {                                                                                                        \
        sizeof(struct comm_grow_options), 0, 0                                                               \
    }

/*
 * Takes in the processes that wait. All ranks of `comm` call it, in the same order among its collectives. The
 * ranks of *next are those of `comm`, and then the newcomers. `comm` stays until comm_destroy. If nobody
 * waits, *next is null on all ranks, and `comm` goes on; also if a newcomer was lost or did not answer in
 * time. A rank that is lost while the call ends may be found only by the next operation of *next.
 *
 * Errors: COMM_INVALID_ARGUMENT, COMM_UNSUPPORTED, COMM_LIMIT, COMM_NO_MEMORY (`comm` goes on); those of
 * comm_agree (COMM_RANK_LOST, COMM_NODE_LOST: `comm` has failed).
 */
COMM_API COMM_CHECK comm_result_t comm_grow(comm_t *comm, const comm_grow_options_t *options, comm_t **next);

#endif
