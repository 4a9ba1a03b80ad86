#include <stdio.h>

#include "client/lib/internal.h"

/* How a program ends a communicator on all its ranks. */

static comm_result_t check_reason(const struct comm_comm *comm, const char *reason)
{
    for (const char *byte = reason; *byte != '\0'; byte++) {
        if (byte - reason >= CLIENT_ABORT_REASON_MAX_BYTES) {
            return error_report(COMM_INVALID_ARGUMENT, "comm_abort on \"%s\": a reason of more than %d bytes",
                                comm->name, CLIENT_ABORT_REASON_MAX_BYTES);
        }
        if ((unsigned char)*byte < ' ' || *byte == 127) {
            return error_report(COMM_INVALID_ARGUMENT,
                                "comm_abort on \"%s\": the reason holds byte %u, which is not printable",
                                comm->name, (unsigned char)*byte);
        }
    }
    return COMM_OK;
}

/* Releases the lock while it waits. */
static comm_result_t tell_abort(struct comm_comm *comm, const char *reason)
{
    Commd__Client__Abort body = COMMD__CLIENT__ABORT__INIT;
    body.handle = comm->handle;
    body.reason = (char *)(uintptr_t)reason;
    Commd__Client__Request request = COMMD__CLIENT__REQUEST__INIT;
    request.body_case = COMMD__CLIENT__REQUEST__BODY_ABORT;
    request.abort = &body;
    struct client_question question = {.what = "aborting a communicator",
                                       .expected = COMMD__CLIENT__REPLY__BODY_DONE,
                                       .fd = -1,
                                       .deadline_ns = clock_after_ms(REQUEST_TIMEOUT_MS)};
    Commd__Client__Event *event;
    comm_result_t result = client_ask(comm->client, &request, &question, &event, NULL);
    if (result == COMM_OK) {
        commd__client__event__free_unpacked(event, NULL);
    }
    return result;
}

/* Later calls fail at once. commd says the same, soon; operations that end before know as much. */
static void fail_aborted(struct comm_comm *comm, const char *reason)
{
    if (comm->failure != COMM_OK) {
        return;
    }
    const char *node = comm_node_of(comm, comm->rank);
    int32_t pid = (int32_t)comm->client->pid;
    member_fail(comm, COMM_ABORTED, "communicator \"%s\": aborted by rank %u (pid %d) on node %s%s%s",
                comm->name, comm->rank, (int)pid, node, reason[0] != '\0' ? ": " : "", reason);
    comm->failure_data.rank_count = 1;
    comm->failure_data.ranks[0] = comm->rank;
    comm->failure_data.pids[0] = pid;
    (void)snprintf(comm->failure_data.node, sizeof comm->failure_data.node, "%s", node);
}

comm_result_t comm_abort(comm_t *comm, const char *reason)
{
    if (comm == NULL) {
        return error_report(COMM_INVALID_ARGUMENT, "comm_abort: the communicator is a null pointer");
    }
    reason = reason != NULL ? reason : "";
    comm_result_t result = check_reason(comm, reason);
    if (result == COMM_OK) {
        result = client_enter(comm->client);
    }
    if (result != COMM_OK) {
        return result;
    }
    struct comm_client *client = comm->client;
    if (comm->failure != COMM_OK) {
        result = COMM_OK; /* it has ended already */
    } else if (!client->aborts) {
        result =
            error_report(COMM_UNSUPPORTED,
                         "comm_abort on \"%s\": commd at %s is older than this library, and cannot do it",
                         comm->name, client->path);
    } else {
        comm->aborting = true;
        result = tell_abort(comm, reason);
        if (result == COMM_OK) {
            fail_aborted(comm, reason);
        }
    }
    held_feed(client); /* ends what is held */
    client_leave(client);
    return result;
}
