#include <stdlib.h>
#include <string.h>

#include <utlist.h>

#include "client/lib/buffers.h"
#include "client/lib/internal.h"
#include "client/lib/submit.h"

/*
 * commd takes a limited number of collectives of a communicator at a time, with limited staging. Further
 * collectives are held here, in order, with copies of their calls. So no call has to wait. Otherwise a
 * program could block before it submits a message that the operations in flight need to end. Messages
 * overtake held collectives. Held collectives are not staged yet, so they take little memory.
 *
 * When an operation has ended, a thread that waits in the library sends held collectives. While the program
 * does not call the library, the feeder thread does so, because another rank may wait for the collective. It
 * also goes on with operations in slices for which nobody waits (cells_slices.c).
 */

#define NS_PER_MS 1000000u

/* Collectives that stage at most this much share a packet. Before a larger one is copied, which takes time,
 * the packet is sent. */
#define FED_TOGETHER_MAX_BYTES ((size_t)64 << 10)

/* --- The queue --- */

bool held_is_fed(const struct comm_comm *comm)
{
    return comm->held != NULL || comm->client->feeder.at == comm;
}

/* Whether one more collective, with `staged_bytes` of staging, may be in flight. */
static bool has_room(const struct comm_comm *comm, size_t staged_bytes)
{
    /* A single operation may be of any size. */
    bool too_much = staged_bytes > 0 && comm->staged_bytes > 0 &&
                    (comm->staged_bytes >= STAGING_FLIGHT_MAX_BYTES ||
                     staged_bytes > STAGING_FLIGHT_MAX_BYTES - comm->staged_bytes);
    return comm->collectives_in_flight < comm->client->pending_ops_max && !too_much;
}

static bool waits_for_cells(const struct comm_comm *comm)
{
    return comm->cells != NULL && cells_must_wait(comm);
}

bool held_must_wait(struct comm_comm *comm, enum op_kind kind, size_t staged_bytes)
{
    return !op_kind_is_message(kind) &&
           (held_is_fed(comm) || waits_for_cells(comm) || !has_room(comm, staged_bytes));
}

bool held_record_must_wait(struct comm_comm *comm)
{
    return held_is_fed(comm) || waits_for_cells(comm) || !records_have_room(comm) ||
           cells_record_must_wait(comm, comm->last_ticket);
}

static struct client_held *held_alloc(struct comm_comm *comm, const struct stream_order *order)
{
    struct fence_mark waits[CLIENT_FENCES_MAX];
    uint32_t wait_count = member_collect_waits(comm, order, waits);
    struct client_held *held = calloc(1, sizeof *held + wait_count * sizeof *waits);
    if (held != NULL) {
        held->wait_count = wait_count;
        memcpy(held->waits, waits, wait_count * sizeof *waits);
    }
    return held;
}

static comm_result_t check_room(struct comm_comm *comm)
{
    const struct client_feeder *feeder = &comm->client->feeder;
    if (comm->held_count >= feeder->many) {
        client_progress(comm->client, clock_ns() + HELD_PAUSE_NS);
    }
    return comm->held_count < feeder->max
               ? COMM_OK
               : error_report(COMM_LIMIT,
                              "\"%s\": %u submitted operations wait until commd has a place for them, which "
                              "is the limit: wait for some of them first",
                              comm->name, comm->held_count);
}

comm_result_t held_new(struct comm_comm *comm, const struct client_call *call, size_t staged_bytes,
                       const struct stream_order *order, struct client_op *op)
{
    comm_result_t result = check_room(comm);
    if (result != COMM_OK) {
        return result;
    }
    op->held = held_alloc(comm, order);
    if (op->held == NULL || (op->held->call = call_copy(call, comm->size)) == NULL) {
        return error_report(COMM_NO_MEMORY, "%s on \"%s\": no memory for an operation", call->name,
                            comm->name);
    }
    op->held->op = op;
    op->held->staged_bytes = staged_bytes;
    return COMM_OK;
}

static void start_feeder(struct comm_client *client);

void held_push(struct comm_comm *comm, struct client_held *held)
{
    DL_APPEND(comm->held, held);
    comm->held_count++;
    comm->client->feeder.held_count++;
    start_feeder(comm->client);
}

bool held_return(struct comm_comm *comm, const struct client_call *call, struct client_op *op)
{
    struct client_held *held = calloc(1, sizeof *held);
    struct client_held *later = comm->held;
    if (held == NULL || (held->call = call_copy(call, comm->size)) == NULL) {
        free(held);
        return false;
    }
    held->op = op;
    held->returned = true;
    op->held = held;
    /* Memory that commd has mapped is used in place, as by the operations behind it: a result that is copied
     * out later would overwrite theirs. It fails for memory of GPUs alone, which is not in cells. */
    comm_result_t found = buffers_find(comm, held->call, op, &held->staged_bytes);
    (void)found;
    while (later != NULL && later->op != NULL && later->op->ticket < op->ticket) {
        later = later->next;
    }
    if (later != NULL) {
        DL_PREPEND_ELEM(comm->held, later, held);
    } else {
        DL_APPEND(comm->held, held);
    }
    comm->held_count++;
    comm->client->feeder.held_count++;
    start_feeder(comm->client);
    return true;
}

void held_watch(struct comm_client *client)
{
    start_feeder(client);
}

void held_wake(struct comm_client *client)
{
    start_feeder(client);
    pthread_cond_signal(&client->feeder.wake);
}

comm_result_t held_push_record(struct comm_comm *comm, const struct fence_mark *mark)
{
    uint64_t ticket = comm->last_ticket;
    comm_result_t result = check_room(comm);
    if (result != COMM_OK) {
        return result;
    }
    struct client_held *held = held_alloc(comm, NULL);
    if (held == NULL) {
        return error_report(COMM_NO_MEMORY, "\"%s\": no memory for a record", comm->name);
    }
    held->mark = *mark;
    held->ticket = ticket;
    held_push(comm, held);
    return COMM_OK;
}

static void take_out(struct comm_comm *comm, struct client_held *held)
{
    if (held->prev == NULL) {
        return; /* it is in no list */
    }
    DL_DELETE(comm->held, held);
    held->prev = held->next = NULL;
    comm->held_count--;
    comm->client->feeder.held_count--;
}

void held_free(struct comm_comm *comm, struct client_held *held)
{
    if (held != NULL) {
        take_out(comm, held);
        free(held->call);
        free(held);
    }
}

void held_forget_records(struct comm_comm *comm)
{
    struct client_held *held, *next;
    DL_FOREACH_SAFE(comm->held, held, next)
    {
        if (held->op == NULL) {
            fence_reach(&held->mark);
            held_free(comm, held);
        }
    }
}

/* --- Feeding --- */

static bool can_feed(struct comm_comm *comm)
{
    const struct client_held *held = comm->held;
    if (held == NULL || comm->leaving) {
        return false;
    }
    if (comm->failure != COMM_OK) {
        return true; /* feeding ends the held operations */
    }
    if (!cells_may_feed(comm, held)) {
        return false;
    }
    if (held->op == NULL) {
        return records_have_room(comm) && !cells_record_must_wait(comm, held->ticket);
    }
    return has_room(comm, held->staged_bytes) && (held->failed_ns == 0 || clock_ns() >= comm->held_retry_ns);
}

static void end_all(struct comm_comm *comm)
{
    while (comm->held != NULL) {
        if (comm->held->op != NULL) {
            ops_drop(comm, comm->held->op);
        } else {
            held_forget_records(comm);
        }
    }
}

/* There is no memory to stage the collective: it is tried again, until its timeout. It cannot be left out,
 * because the next collective would then get its number. */
static void put_back(struct comm_comm *comm, struct client_held *held, uint32_t timeout_ms,
                     comm_result_t result)
{
    uint64_t now_ns = clock_ns();
    held->failed_ns = held->failed_ns != 0 ? held->failed_ns : now_ns;
    comm->held_retry_ns = now_ns + HELD_RETRY_NS;
    DL_PREPEND(comm->held, held);
    comm->held_count++;
    comm->client->feeder.held_count++;
    if (now_ns - held->failed_ns >= (uint64_t)timeout_ms * NS_PER_MS) {
        member_fail(comm, result, "%s on \"%s\": its buffers could not be staged for %u ms: %s",
                    held->call->name, comm->name, timeout_ms, comm_last_error());
    }
}

/* Copies the first slice of a long operation, if it may go in slices. Releases the lock meanwhile. */
static bool write_first_slice(struct comm_comm *comm, const struct client_held *held)
{
    if (!held->in_slices || !cells_may_publish_slices(comm, held->call, false)) {
        return false;
    }
    held->op->staging = true;
    cells_write_first(comm, held->call);
    held->op->staging = false;
    return !held->op->dropped && cells_may_publish_slices(comm, held->call, false);
}

/* Publishes the operation in the ranks' cells, if it may go there. May release the lock. */
static bool feed_cell(struct comm_comm *comm, struct client_held *held, uint32_t timeout_ms)
{
    struct client_op *op = held->op;
    if (held->returned || held->wait_count > 0 ||
        !(cells_may_publish(comm, held->call, false) || write_first_slice(comm, held))) {
        return false;
    }
    /* In cells it works on the caller's memory. If it goes to commd after all, its buffers may be others. */
    op_release(comm->client, op, true);
    op->copy_count = 0;
    op->staged_bytes = 0;
    op->held = NULL;
    op->deadline_ns = clock_after_ms(timeout_ms);
    cells_reserve(comm, held->call, op);
    cells_put(comm, op);
    cells_attend_to(comm, op);
    held_free(comm, held);
    return true;
}

static void feed_op(struct comm_comm *comm, struct client_held *held, struct submit_packet *packet)
{
    struct client_op *op = held->op;
    const struct client_call *call = held->call;
    uint32_t timeout_ms = call->options.timeout_ms != 0 ? call->options.timeout_ms : comm->op_timeout_ms;
    if (feed_cell(comm, held, timeout_ms)) {
        return;
    }
    take_out(comm, held);
    op->staging = true;
    if (held->staged_bytes > FED_TOGETHER_MAX_BYTES) {
        packet_send(comm->client, packet);
    }
    comm_result_t result = op->dropped ? COMM_OK : buffers_stage(comm, call, op);
    op->staging = false;
    if (op->dropped) {
        ops_drop(comm, op);
        return;
    }
    if (result != COMM_OK) {
        put_back(comm, held, timeout_ms, result);
        return;
    }
    struct submit_record record;
    submit_make_record(comm, call, op, held->waits, held->wait_count, &record);
    record.ticket = op->ticket;
    ops_release(comm, op, timeout_ms);
    cells_pass(comm, op, &record);
    packet_add(comm->client, packet, comm, &record);
    held_free(comm, held);
}

static void feed_record(struct comm_comm *comm, struct client_held *held, struct submit_packet *packet)
{
    struct submit_record record;
    records_take_room(comm, &held->mark);
    record_make(comm, &held->mark, held->ticket, held->waits, held->wait_count, &record);
    take_out(comm, held);
    packet_add(comm->client, packet, comm, &record);
    held_free(comm, held);
}

static void feed(struct comm_comm *comm)
{
    struct submit_packet packet;
    packet.size_bytes = packet.timeout_ms = 0;
    while (can_feed(comm)) {
        if (comm->failure != COMM_OK) {
            end_all(comm);
        } else if (comm->held->op != NULL) {
            feed_op(comm, comm->held, &packet);
        } else {
            feed_record(comm, comm->held, &packet);
        }
    }
    packet_send(comm->client, &packet);
}

static struct comm_comm *find_hungry(struct comm_client *client)
{
    struct comm_comm *comm = client->comms;
    while (comm != NULL && !can_feed(comm)) {
        comm = comm->next;
    }
    return comm;
}

void held_feed(struct comm_client *client)
{
    struct comm_comm *comm;
    cells_progress(client);
    while (client->feeder.held_count > 0 && client->feeder.at == NULL && client->lost == COMM_OK &&
           (comm = find_hungry(client)) != NULL) {
        client->feeder.at = comm;
        feed(comm);
        client->feeder.at = NULL;
        pthread_cond_broadcast(&client->changed);
    }
}

void held_await(struct comm_comm *comm)
{
    struct comm_client *client = comm->client;
    while (client->feeder.at == comm || comm->copying > 0) {
        (void)pthread_cond_wait(&client->changed, &client->lock);
    }
}

bool held_await_cells(struct comm_comm *comm, uint64_t deadline_ns)
{
    struct comm_client *client = comm->client;
    bool may_come = comm->cells != NULL && held_is_fed(comm) && comm->collectives_in_flight == 0 &&
                    client->lost == COMM_OK;
    if (!may_come || cells_must_wait(comm)) {
        return false;
    }
    uint64_t soon_ns = clock_ns() + HELD_LOOK_NS;
    soon_ns = soon_ns < deadline_ns ? soon_ns : deadline_ns;
    if (client->feeder.at == NULL) {
        client_progress(client, soon_ns);
        return true;
    }
    struct timespec until = {.tv_sec = (time_t)(soon_ns / 1000000000u),
                             .tv_nsec = (long)(soon_ns % 1000000000u)};
    (void)pthread_cond_timedwait(&client->changed, &client->lock, &until);
    return true;
}

void held_leave(struct comm_comm *comm)
{
    comm->leaving = true;
    held_await(comm);
}

/* --- The feeder --- */

static bool has_nothing(const struct comm_client *client)
{
    return client->feeder.held_count == 0 && client->cells.receives == 0;
}

static void *feed_on(void *argument)
{
    struct comm_client *client = argument;
    struct client_feeder *feeder = &client->feeder;
    bool idle = false;
    pthread_mutex_lock(&client->lock);
    while (!feeder->closing && !(idle && has_nothing(client))) {
        feeder->rests = !cells_are_busy(client) && has_nothing(client);
        uint64_t until_ns = clock_ns() + (feeder->rests ? HELD_LINGER_NS : HELD_LOOK_NS);
        struct timespec until = {.tv_sec = (time_t)(until_ns / 1000000000u),
                                 .tv_nsec = (long)(until_ns % 1000000000u)};
        int waited = pthread_cond_timedwait(&feeder->wake, &client->lock, &until);
        idle = feeder->rests && waited != 0;
        feeder->rests = false;
        if (client->lost == COMM_OK) {
            cells_look_at_commd(client);
        }
        if (!(has_nothing(client) && client->cells.open == 0) && client->lost == COMM_OK) {
            client_take_events(client);
            held_feed(client);
            cells_receive_all_ready(client, true);
        }
        cells_attend(client);
    }
    feeder->runs = false;
    pthread_mutex_unlock(&client->lock);
    return NULL;
}

/* If no thread can be started, held collectives are sent when the program calls the library. */
static void start_feeder(struct comm_client *client)
{
    struct client_feeder *feeder = &client->feeder;
    if (feeder->runs || feeder->closing) {
        if (feeder->rests) {
            feeder->rests = false;
            pthread_cond_signal(&feeder->wake);
        }
        return;
    }
    if (feeder->has_thread) {
        pthread_join(feeder->thread, NULL); /* it is about to return */
    }
    feeder->has_thread = client_thread_start(client, feed_on, &feeder->thread) == 0;
    feeder->runs = feeder->has_thread;
}

void held_init(struct client_feeder *feeder)
{
    pthread_condattr_t attributes;
    feeder->max = HELD_MAX;
    feeder->many = HELD_MANY;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&feeder->wake, &attributes);
    pthread_condattr_destroy(&attributes);
}

void held_close(struct comm_client *client)
{
    struct client_feeder *feeder = &client->feeder;
    pthread_mutex_lock(&client->lock);
    feeder->closing = true;
    pthread_cond_signal(&feeder->wake);
    pthread_mutex_unlock(&client->lock);
    if (feeder->has_thread) {
        pthread_join(feeder->thread, NULL);
    }
    pthread_cond_destroy(&feeder->wake);
}
