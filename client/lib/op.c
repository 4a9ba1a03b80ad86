#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "client/lib/internal.h"

#define NS_PER_MS 1000000u

static void memory_unuse(struct comm_client *client, struct client_memory *memory, bool clean)
{
    if (memory != NULL && --memory->uses == 0 && memory->staging) {
        staging_give(client, memory, clean);
    }
}

void op_free(struct comm_client *client, struct client_op *op, bool clean)
{
    /* Of a block that serves as both, the second one counts. */
    memory_unuse(client, op->input, clean);
    memory_unuse(client, op->output, clean);
    free(op);
}

/* --- The list of what is in flight --- */

static void list_append(struct comm_comm *comm, struct client_op *op)
{
    *comm->last_op = op;
    comm->last_op = &op->next;
    comm->in_flight++;
    comm->staged_bytes += op->staged_bytes;
}

/* Takes the operation out; null when it is not there. commd completes in order, so that it mostly is the
 * first. */
static struct client_op *list_take(struct comm_comm *comm, uint64_t ticket)
{
    struct client_op **link = &comm->first_op;
    while (*link != NULL && (*link)->ticket != ticket) {
        link = &(*link)->next;
    }
    struct client_op *op = *link;
    if (op == NULL) {
        return NULL;
    }
    *link = op->next;
    if (op->next == NULL) {
        comm->last_op = link;
    }
    comm->in_flight--;
    comm->staged_bytes -= op->staged_bytes;
    return op;
}

void ops_forget(struct comm_comm *comm)
{
    while (comm->first_op != NULL) {
        struct client_op *op = list_take(comm, comm->first_op->ticket);
        op_free(comm->client, op, false);
    }
}

/* --- What commd says --- */

/* The communicator of an event; null for one that was destroyed meanwhile. */
static struct comm_comm *event_comm(struct comm_client *client, uint32_t handle, const char *what)
{
    struct comm_comm *comm = member_by_handle(client, handle);
    if (comm != NULL) {
        comm->heard_ns = clock_ns();
    } else if (handle == 0 || handle > client->last_handle) {
        client_lose(client, COMM_PROTOCOL, "%s: commd sent %s for communicator %u, which never was",
                    client->path, what, handle);
    }
    return comm;
}

void ops_handle_complete(struct comm_client *client, const Commd__Client__Complete *complete)
{
    struct comm_comm *comm = event_comm(client, complete->handle, "a completion");
    if (comm == NULL) {
        return;
    }
    struct client_op *op = list_take(comm, complete->ticket);
    if (op == NULL) {
        client_lose(client, COMM_PROTOCOL,
                    "%s: \"%s\": commd completed operation %" PRIu64 ", which is not in flight", client->path,
                    comm->name, complete->ticket);
        return;
    }
    bool succeeded = complete->status == STATUS_OK;
    if (!succeeded) {
        comm_result_t failure = failure_from_wire(complete->status);
        member_fail(comm, failure, "%s",
                    complete->text[0] != '\0' ? complete->text : comm_result_text(failure));
    } else if (op->copy_to != NULL) {
        memcpy(op->copy_to, op->copy_from, op->copy_bytes);
    }
    op_free(client, op, succeeded);
}

void ops_handle_aborted(struct comm_client *client, const Commd__Client__Aborted *aborted)
{
    struct comm_comm *comm = event_comm(client, aborted->handle, "an abort");
    if (comm != NULL) {
        comm_result_t failure = failure_from_wire(aborted->status);
        member_fail(comm, failure, "%s",
                    aborted->text[0] != '\0' ? aborted->text : comm_result_text(failure));
    }
}

/* --- Waiting --- */

/*
 * When commd counts as frozen: it ends every operation at its deadline, but what it said may have waited for
 * us to read it, and comes in portions.
 */
static uint64_t frozen_ns(const struct comm_comm *comm, const struct client_op *op, uint64_t began_ns)
{
    uint64_t latest_ns = op->deadline_ns > began_ns ? op->deadline_ns : began_ns;
    latest_ns = latest_ns > comm->heard_ns ? latest_ns : comm->heard_ns;
    return latest_ns + (uint64_t)DAEMON_MARGIN_MS * NS_PER_MS;
}

uint64_t ops_deadline_ns(const struct comm_client *client, const struct client_memory *memory)
{
    uint64_t latest_ns = 0;
    for (const struct comm_comm *comm = client->comms; comm != NULL; comm = comm->next) {
        for (const struct client_op *op = comm->first_op; op != NULL; op = op->next) {
            uint64_t op_ns = op->input == memory || op->output == memory ? frozen_ns(comm, op, 0) : 0;
            latest_ns = op_ns > latest_ns ? op_ns : latest_ns;
        }
    }
    return latest_ns;
}

static bool is_pending(const struct comm_comm *comm, uint64_t ticket)
{
    return comm->first_op != NULL && comm->first_op->ticket <= ticket;
}

comm_result_t ops_finish(struct comm_comm *comm, uint64_t ticket, uint64_t deadline_ns)
{
    uint64_t began_ns = clock_ns();
    while (is_pending(comm, ticket)) {
        uint64_t late_ns = frozen_ns(comm, comm->first_op, began_ns);
        client_progress(comm->client, deadline_ns < late_ns ? deadline_ns : late_ns);
        const struct client_op *op = comm->first_op;
        uint64_t now_ns = clock_ns();
        if (!is_pending(comm, ticket)) {
            break;
        }
        if (now_ns >= deadline_ns) {
            return error_report(COMM_TIMED_OUT,
                                "\"%s\": %u operations have not ended yet; the oldest is operation %" PRIu64
                                ", %s, submitted %" PRIu64 " ms ago",
                                comm->name, comm->in_flight, op->ticket, op_kind_text(op->kind),
                                (now_ns - op->submitted_ns) / NS_PER_MS);
        }
        if (now_ns >= frozen_ns(comm, op, began_ns)) {
            member_fail(comm, COMM_TIMED_OUT,
                        "%s: commd does not answer: operation %" PRIu64 " on \"%s\", %s, is %" PRIu64
                        " ms past its deadline, and commd has not said so",
                        comm->client->path, op->ticket, comm->name, op_kind_text(op->kind),
                        (now_ns - op->deadline_ns) / NS_PER_MS);
            break;
        }
    }
    return member_check(comm);
}

comm_result_t ops_make_room(struct comm_comm *comm, size_t staged_bytes)
{
    while (comm->failure == COMM_OK && comm->first_op != NULL) {
        bool full = comm->in_flight >= comm->client->pending_ops_max;
        /* One operation is let through however large it is. */
        bool too_much = staged_bytes > 0 && comm->staged_bytes > 0 &&
                        (comm->staged_bytes >= STAGING_FLIGHT_MAX_BYTES ||
                         staged_bytes > STAGING_FLIGHT_MAX_BYTES - comm->staged_bytes);
        if (!full && !too_much) {
            break;
        }
        comm_result_t result = ops_finish(comm, comm->first_op->ticket, UINT64_MAX);
        if (result != COMM_OK) {
            return result;
        }
    }
    return member_check(comm);
}

comm_result_t ops_submit(struct comm_comm *comm, struct client_op *op, Commd__Client__Submit *submit,
                         uint32_t timeout_ms, uint64_t *ticket)
{
    struct comm_client *client = comm->client;
    *ticket = ++comm->last_ticket;
    op->ticket = *ticket;
    op->submitted_ns = clock_ns();
    op->deadline_ns = op->submitted_ns + (uint64_t)timeout_ms * NS_PER_MS;
    uint64_t send_by_ns = frozen_ns(comm, op, 0);
    /* In the list before it is sent: it may be complete, and gone, before the call that sends it returns. */
    list_append(comm, op);
    submit->handle = comm->handle;
    submit->ticket = *ticket;
    Commd__Client__Request request = COMMD__CLIENT__REQUEST__INIT;
    request.body_case = COMMD__CLIENT__REQUEST__BODY_SUBMIT;
    request.submit = submit;
    comm_result_t result = client_send(client, &request, -1, send_by_ns);
    if (result == COMM_OK) {
        return COMM_OK;
    }
    member_fail(comm, result,
                "%s: commd does not read its socket: operation %" PRIu64 " on \"%s\" could not be sent",
                client->path, *ticket, comm->name);
    struct client_op *unsent = list_take(comm, *ticket);
    if (unsent != NULL) {
        op_free(client, unsent, true);
    }
    return member_check(comm);
}

comm_result_t comm_sync(comm_t *comm, uint32_t timeout_ms)
{
    if (comm == NULL) {
        return error_report(COMM_INVALID_ARGUMENT, "comm_sync: the communicator is a null pointer");
    }
    struct comm_client *client = comm->client;
    comm_result_t result = client_enter(client);
    if (result == COMM_OK) {
        result =
            ops_finish(comm, comm->last_ticket, timeout_ms != 0 ? clock_after_ms(timeout_ms) : UINT64_MAX);
        client_leave(client);
    }
    return result;
}
