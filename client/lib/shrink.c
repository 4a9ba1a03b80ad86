#include <stdlib.h>
#include <string.h>

#include "client/lib/internal.h"

/* How a program goes on after a rank or node is lost: commclient/recovery.h. */

void member_take_verdict(struct comm_comm *comm, const Commd__Client__Verdict *verdict)
{
    size_t bytes = comm->size / 8 + 1;
    if (comm->verdict != NULL) {
        return;
    }
    comm->verdict = calloc(1, sizeof *comm->verdict + bytes); /* without memory it is waited for in vain */
    if (comm->verdict != NULL && verdict != NULL && verdict->lost.len == bytes) {
        comm->verdict->known = true;
        comm->verdict->minority = verdict->minority;
        comm->verdict->last_seq = verdict->last_seq;
        comm->verdict->generation = verdict->generation;
        memcpy(comm->verdict->lost, verdict->lost.data, bytes);
    }
}

static bool has_lost(const struct comm_comm *comm, uint32_t rank)
{
    return (comm->verdict->lost[rank / 8] >> (rank % 8) & 1) != 0;
}

/* Waits until commd has told what the nodes agreed on. Releases the lock while it waits. */
static comm_result_t await_verdict(struct comm_comm *comm, uint64_t deadline_ns, const char *call)
{
    struct comm_client *client = comm->client;
    while (comm->verdict == NULL && client->lost == COMM_OK && clock_ns() < deadline_ns) {
        client_progress(client, deadline_ns);
    }
    if (comm->verdict == NULL && client->lost != COMM_OK) {
        return error_repeat(client->lost, client->lost_text);
    }
    if (comm->verdict == NULL) {
        return error_report(COMM_TIMED_OUT, "%s on \"%s\": the communicator has not failed%s", call,
                            comm->name, comm->failure != COMM_OK ? " on all nodes" : "");
    }
    if (!comm->verdict->known) {
        return error_report(comm->failure == COMM_ABORTED ? COMM_ABORTED : COMM_UNSUPPORTED,
                            "%s on \"%s\": its nodes have not agreed on who is lost: %.300s", call,
                            comm->name, comm->failure_text);
    }
    return COMM_OK;
}

/* What comm_agree has made: the newest. May release the lock. */
static struct comm_comm *take_successor(struct comm_comm *comm)
{
    struct comm_comm *next = comm->successor;
    comm->successor = NULL;
    while (next->successor != NULL) {
        struct comm_comm *failed = next;
        next = failed->successor;
        failed->successor = NULL;
        member_drop(failed, clock_after_ms(FINISH_TIMEOUT_MS));
    }
    return next;
}

comm_result_t comm_shrink(comm_t *comm, const comm_shrink_options_t *options, comm_t **out)
{
    comm_shrink_options_t given = COMM_SHRINK_OPTIONS_INIT;
    if (comm == NULL || out == NULL) {
        return error_report(COMM_INVALID_ARGUMENT, "comm_shrink: a communicator is a null pointer");
    }
    *out = NULL;
    comm_result_t result =
        options_copy(&given, sizeof given, options, "comm_shrink", "COMM_SHRINK_OPTIONS_INIT");
    result = result == COMM_OK ? group_allows_wait("comm_shrink", comm->name) : result;
    if (result == COMM_OK) {
        result = client_enter(comm->client);
    }
    if (result != COMM_OK) {
        return result;
    }
    struct comm_client *client = comm->client;
    if (comm->successor != NULL) {
        *out = take_successor(comm);
        client_leave(client);
        return COMM_OK;
    }
    uint64_t timeout_ms = given.timeout_ms != 0 ? given.timeout_ms : FORM_TIMEOUT_DEFAULT_MS;
    if (!client->shrinks) {
        result =
            error_report(COMM_UNSUPPORTED,
                         "comm_shrink on \"%s\": commd at %s is older than this library, and cannot do it",
                         comm->name, client->path);
    } else {
        result = await_verdict(comm, clock_after_ms(timeout_ms), "comm_shrink");
    }
    if (result == COMM_OK) {
        result = member_next(comm, timeout_ms, out);
    }
    client_leave(client);
    return result;
}

comm_result_t comm_recover(comm_t **comm, const comm_shrink_options_t *options)
{
    comm_t *next = NULL;
    if (comm == NULL) {
        return error_report(COMM_INVALID_ARGUMENT, "comm_recover: a communicator is a null pointer");
    }
    comm_result_t result = comm_shrink(*comm, options, &next);
    if (result == COMM_OK) {
        comm_destroy(*comm);
        *comm = next;
    }
    return result;
}

comm_result_t comm_lost(comm_t *comm, uint32_t *ranks, uint32_t max, comm_lost_t *lost)
{
    if (comm == NULL || lost == NULL || (ranks == NULL && max > 0)) {
        return error_report(COMM_INVALID_ARGUMENT, "comm_lost: an argument is a null pointer");
    }
    comm_result_t result = group_allows_wait("comm_lost", comm->name);
    result = result == COMM_OK ? client_enter(comm->client) : result;
    if (result != COMM_OK) {
        return result;
    }
    struct comm_client *client = comm->client;
    comm_lost_t found = {0};
    if (comm->failure != COMM_OK || comm->verdict_is_due) {
        result = await_verdict(comm, clock_after_ms(REQUEST_TIMEOUT_MS), "comm_lost");
        for (uint32_t rank = 0; result == COMM_OK && rank < comm->size; rank++) {
            if (has_lost(comm, rank) && found.count++ < max) {
                ranks[found.count - 1] = rank;
            }
        }
        found.last_seq = result == COMM_OK ? comm->verdict->last_seq : 0;
        found.may_shrink = result == COMM_OK && !comm->verdict->minority && !has_lost(comm, comm->rank);
    }
    *lost = found;
    client_leave(client);
    return result;
}
