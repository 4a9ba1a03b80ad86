#include <inttypes.h>

#include <utlist.h>

#include "client/lib/cells.h"
#include "client/lib/held.h"
#include "client/lib/internal.h"

/* Waiting for the end of operations. */

#define NS_PER_MS 1000000u

/*
 * The time at which commd counts as frozen. commd ends every operation at its deadline. But its messages may
 * have waited until we read them, and they arrive in portions. *began_ns: when the wait began; 0: the clock
 * was not read yet.
 */
static uint64_t frozen_ns(const struct comm_comm *comm, const struct client_op *op, uint64_t *began_ns)
{
    if (op->held != NULL || op->cell != NULL || op->receive != NULL) {
        return UINT64_MAX; /* others show whether commd works */
    }
    *began_ns = *began_ns != 0 ? *began_ns : clock_ns();
    uint64_t latest_ns = op->deadline_ns > *began_ns ? op->deadline_ns : *began_ns;
    latest_ns = latest_ns > comm->heard_ns ? latest_ns : comm->heard_ns;
    return latest_ns + (uint64_t)DAEMON_MARGIN_MS * NS_PER_MS;
}

uint64_t ops_latest_ns(const struct comm_comm *comm)
{
    uint64_t latest_ns = clock_after_ms(DAEMON_MARGIN_MS), long_ago_ns = 1;
    for (const struct client_op *op = comm->ops; op != NULL; op = op->next) {
        uint64_t op_ns = frozen_ns(comm, op, &long_ago_ns);
        latest_ns = op_ns > latest_ns ? op_ns : latest_ns;
    }
    return latest_ns;
}

/* While commd does not have the operation, its call says what it works on. */
static bool op_uses(const struct comm_comm *comm, const struct client_op *op,
                    const struct client_memory *memory)
{
    const struct client_call *call = op->held != NULL ? op->held->call : NULL;
    call = op->cell != NULL ? cells_call_of(op->cell) : call;
    call = op->receive != NULL ? cells_receive_call(op->receive) : call;
    for (int use = 0; use < USE_COUNT; use++) {
        if (op->uses[use] == memory) {
            return true;
        }
    }
    for (uint32_t i = 0; i < op->copy_count; i++) {
        uintptr_t to = (uintptr_t)op->copies[i].to, base = (uintptr_t)memory->base;
        if (to < base + memory->size_bytes && base < to + op->copies[i].size_bytes) {
            return true;
        }
    }
    return call != NULL && call_works_on(call, comm->size, memory->base, memory->size_bytes);
}

/* Returns null if there is none. */
static const struct client_op *user_of(const struct comm_comm *comm, const struct client_memory *memory)
{
    const struct client_op *op = comm->ops;
    while (op != NULL && !op_uses(comm, op, memory)) {
        op = op->next;
    }
    return op;
}

bool ops_use(const struct comm_client *client, const struct client_memory *memory)
{
    const struct comm_comm *comm = client->comms;
    while (comm != NULL && user_of(comm, memory) == NULL) {
        comm = comm->next;
    }
    return comm != NULL;
}

uint64_t ops_deadline_ns(const struct comm_client *client, const struct client_memory *memory)
{
    uint64_t latest_ns = 0, long_ago_ns = 1;
    for (const struct comm_comm *comm = client->comms; comm != NULL; comm = comm->next) {
        for (const struct client_op *op = comm->ops; op != NULL; op = op->next) {
            uint64_t op_ns = op_uses(comm, op, memory) ? frozen_ns(comm, op, &long_ago_ns) : 0;
            latest_ns = op_ns > latest_ns ? op_ns : latest_ns;
        }
    }
    return latest_ns;
}

static bool is_pending(const struct comm_comm *comm, uint64_t ticket)
{
    return comm->ops != NULL && comm->ops->ticket <= ticket;
}

/* A thread of the program waits for the end of that operation, or the next end of any (null). Releases the
 * lock meanwhile. */
static void await_end(struct comm_comm *comm, const struct client_op *awaited, uint64_t deadline_ns)
{
    struct comm_client *client = comm->client;
    comm->waiters++;
    if (!cells_wait(comm, awaited, deadline_ns, true) && !held_await_cells(comm, deadline_ns)) {
        if (!cells_hand_over_all_receives(client, &deadline_ns)) { /* their ends would not wake this thread */
            client_progress(client, deadline_ns);
        }
    }
    comm->waiters--;
}

void ops_await_user(struct comm_client *client, const struct client_memory *memory, uint64_t deadline_ns)
{
    struct comm_comm *comm = client->comms;
    while (comm != NULL && user_of(comm, memory) == NULL) {
        comm = comm->next;
    }
    bool waited = false;
    if (comm != NULL && !comm->leaving) {
        comm->copying++; /* it must not be left meanwhile */
        waited = cells_wait(comm, NULL, deadline_ns, true);
        comm->copying--;
        pthread_cond_broadcast(&client->changed);
    }
    if (!waited) {
        client_progress(client, deadline_ns);
    }
}

comm_result_t ops_finish(struct comm_comm *comm, uint64_t ticket, uint64_t deadline_ns)
{
    uint64_t began_ns = 0;
    cells_fetch_behind(comm);
    habit_awaited(comm); /* also if the library's thread has ended the operation already */
    while (is_pending(comm, ticket)) {
        uint64_t late_ns = frozen_ns(comm, comm->ops, &began_ns);
        await_end(comm, NULL, deadline_ns < late_ns ? deadline_ns : late_ns);
        if (!is_pending(comm, ticket)) {
            break;
        }
        const struct client_op *op = comm->ops;
        uint64_t now_ns = clock_ns();
        if (now_ns >= deadline_ns) {
            return error_report(COMM_TIMED_OUT,
                                "\"%s\": %u operations have not ended yet; the oldest is operation %" PRIu64
                                ", %s, submitted %" PRIu64 " ms ago",
                                comm->name, comm->op_count, op->ticket, op_kind_text(op->kind),
                                (now_ns - op->submitted_ns) / NS_PER_MS);
        }
        if (now_ns >= frozen_ns(comm, op, &began_ns)) {
            member_fail(comm, COMM_TIMED_OUT,
                        "%s: commd does not answer: operation %" PRIu64 " on \"%s\", %s, is %" PRIu64
                        " ms past its deadline, and commd has not ended it",
                        comm->client->path, op->ticket, comm->name, op_kind_text(op->kind),
                        (now_ns - op->deadline_ns) / NS_PER_MS);
            break;
        }
    }
    cells_waiter_left(comm);
    if (comm->failure != COMM_OK) {
        held_await(comm); /* afterwards the caller may free buffers that are being copied now */
    }
    comm_result_t result = member_check(comm);
    if (result == COMM_OK && comm->op_failure != COMM_OK) {
        result = error_repeat_failure(&comm->op_failure_data, comm->op_failure_text);
        comm->op_failure = COMM_OK;
    }
    return result;
}

/* Returns the operation that shows whether commd works: for a held operation, the oldest one. */
static const struct client_op *oldest_of(const struct comm_comm *comm, const struct client_op *op)
{
    return op->held != NULL ? comm->ops : op;
}

void ops_progress(const struct comm_request *request, uint64_t *began_ns, uint64_t deadline_ns)
{
    struct comm_comm *comm = request->comm;
    struct client_op *op = request->op;
    uint64_t ticket = op->ticket;
    habit_awaited(comm);
    if (op->dropped) {
        held_await(comm);
        return;
    }
    uint64_t late_ns = frozen_ns(comm, oldest_of(comm, op), began_ns);
    await_end(comm, op, deadline_ns < late_ns ? deadline_ns : late_ns);
    if (request->op != op || op->ticket != ticket ||
        clock_ns() < frozen_ns(comm, oldest_of(comm, op), began_ns)) {
        return;
    }
    member_fail(comm, COMM_TIMED_OUT,
                "%s: commd does not answer: operation %" PRIu64
                " on \"%s\", %s, is past its deadline, and commd has not ended it",
                comm->client->path, ticket, comm->name, op_kind_text(op->kind));
    ops_drop(comm, op);
}

bool ops_finish_request(struct comm_request *request, uint64_t deadline_ns)
{
    uint64_t began_ns = 0;
    bool passed = false, waited = request->op != NULL;
    habit_awaited(request->comm); /* see ops_finish */
    while (request->op != NULL && !passed) {
        ops_progress(request, &began_ns, deadline_ns);
        passed = deadline_ns != UINT64_MAX && clock_ns() >= deadline_ns;
    }
    if (waited) {
        cells_waiter_left(request->comm);
    }
    return request->op == NULL;
}

/* Returns an operation of the queue that commd should have ended; null: none. */
static struct client_op *find_late(const struct comm_comm *comm, const struct comm_queue *queue,
                                   uint64_t began_ns)
{
    uint64_t now_ns = clock_ns();
    for (struct client_op *op = comm->ops; op != NULL; op = op->next) {
        if (op->place.queue == queue && now_ns >= frozen_ns(comm, op, &began_ns)) {
            return op;
        }
    }
    return NULL;
}

void ops_check_late(struct comm_client *client, const struct comm_queue *queue, uint64_t began_ns)
{
    for (struct comm_comm *comm = client->comms; comm != NULL; comm = comm->next) {
        const struct client_op *late = find_late(comm, queue, began_ns);
        if (late == NULL) {
            continue;
        }
        member_fail(comm, COMM_TIMED_OUT,
                    "%s: commd does not answer: operation %" PRIu64
                    " on \"%s\", %s, is past its deadline, and commd has not ended it",
                    client->path, late->ticket, comm->name, op_kind_text(late->kind));
        struct client_op *op, *next;
        DL_FOREACH_SAFE(comm->ops, op, next)
        {
            if (op->place.queue == queue) {
                ops_drop(comm, op);
            }
        }
    }
}

comm_result_t comm_sync(comm_t *comm, uint32_t timeout_ms)
{
    if (comm == NULL) {
        return error_report(COMM_INVALID_ARGUMENT, "comm_sync: the communicator is a null pointer");
    }
    if (group_is_open()) {
        return error_report(COMM_INVALID_ARGUMENT,
                            "comm_sync: a group is open: a call cannot wait before comm_group_end");
    }
    struct comm_client *client = comm->client;
    comm_result_t result = client_enter(client);
    if (result == COMM_OK) {
        if (comm->ops == NULL) { /* nothing to wait for; commd may have said that the communicator failed */
            client_take_all(client);
        }
        result =
            ops_finish(comm, comm->last_ticket, timeout_ms != 0 ? clock_after_ms(timeout_ms) : UINT64_MAX);
        client_leave(client);
    }
    return result;
}
