#ifndef COMMCLIENT_FAILURE_H
#define COMMCLIENT_FAILURE_H

/* Failures as data. Included by commclient.h; do not include it alone. */

#define COMM_FAILURE_RANKS_MAX 64
#define COMM_FAILURE_NODE_BYTES 64

/* What is known of a failure. What is not known is 0 or "". */
typedef struct comm_failure {
    size_t struct_size; /* COMM_FAILURE_INIT sets it */
    comm_result_t result;
    const char
        *operation; /* "all_reduce", "send", "recv" and so on, or "" if no operation failed; static text */
    uint64_t seq;   /* number of the collective in its communicator, from 1; 0: none */
    /*
     * How many ranks the failure is about: ranks that have not called the operation, that are lost, or that
     * contradict each other. May exceed COMM_FAILURE_RANKS_MAX. Then only the first ones are listed.
     */
    uint32_t rank_count;
    uint32_t ranks[COMM_FAILURE_RANKS_MAX];
    int32_t pids[COMM_FAILURE_RANKS_MAX]; /* of these ranks' processes on their nodes; 0: unknown */
    char node[COMM_FAILURE_NODE_BYTES];   /* the node that is lost, or that has the first of the ranks */
    /* The long text, as of comm_last_error. From comm_last_failure, it is valid until this thread calls the
     * library again. From a completion, it is valid as long as the completion's failure. */
    const char *text;
} comm_failure_t;
#define COMM_FAILURE_INIT                                                                                    \
    {                                                                                                        \
        sizeof(struct comm_failure), COMM_OK, "", 0, 0, {0}, {0}, "", NULL                                   \
    }

/*
 * Copies what is known of the last failure that this thread was told of: the one of comm_last_error. Returns
 * 1, or 0 if there was none; then *failure says COMM_OK. failure->struct_size must be set. Any thread may
 * call it at any time.
 */
COMM_API int comm_last_failure(comm_failure_t *failure);

#endif
