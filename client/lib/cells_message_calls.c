#include "client/lib/cells_messages_internal.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "client/lib/submit.h"

/* Calls that send and receive short messages. */

#define TIMEOUT_LEAST_MS 100u /* a receive with a shorter one is commd's at once */
#define LOOKS 60u             /* of a receive within its call, with a pause of some 10 ns between two */
#define SKIPPED_MAX 64u       /* receives that do not look after one whose looks found nothing */
#define ROOM_WAIT_NS 100000u  /* of a sender whose ring is full, */
#define ROOM_PAUSES 10u       /* with so many pauses between two looks, or a yield */

static bool is_simple(const struct client_entry *entry)
{
    const struct comm_comm *comm = entry->comm;
    return entry->op == NULL && entry->order.slot == NULL && comm->wait_count == 0 &&
           entry->call->options.queue == NULL && cells_may_open(comm) && comm->failure == COMM_OK &&
           comm->client->lost == COMM_OK && !comm->leaving;
}

static size_t bytes_of(const struct client_call *call)
{
    size_t size_bytes;
    bool fits_in = !__builtin_mul_overflow((size_t)call->terms.count_elements,
                                           dtype_size_bytes(call->terms.dtype), &size_bytes);
    return fits_in ? size_bytes : SIZE_MAX;
}

/* The operation has ended within its call. */
static void end_at_once(const struct client_entry *entry, const comm_received_t *received)
{
    struct comm_request *request = entry->request;
    entry->comm->last_ticket++;
    if (request != NULL) {
        request->received = *received;
        request_end(request, COMM_OK, NULL, "");
        request->at_once = entry->alone;
    }
}

/*
 * A sender that is ahead waits for a moment until its receiver has made room. Otherwise commd gets its
 * messages until they are received, which costs both ranks twenty times as much. Releases the lock if it
 * gives up the processor. Returns false if the message cannot go into the ring any more.
 */
static bool await_room(struct comm_comm *comm)
{
    struct comm_client *client = comm->client;
    for (uint32_t i = 0; i < ROOM_PAUSES && !comm->cells->crowded; i++) {
        cells_pause();
    }
    if (comm->cells->crowded) {
        comm->copying++; /* it must not be left meanwhile */
        pthread_mutex_unlock(&client->lock);
        (void)sched_yield();
        pthread_mutex_lock(&client->lock);
        comm->copying--;
        pthread_cond_broadcast(&client->changed);
    }
    (void)cells_receive_ready(comm, false); /* the receiver may wait for this rank in the same way */
    return comm->failure == COMM_OK;
}

static bool send_message(const struct client_entry *entry)
{
    struct comm_comm *comm = entry->comm;
    const struct client_call *call = entry->call;
    const struct client_cells *cells = comm->cells;
    const comm_received_t nothing = {0};
    size_t size_bytes = bytes_of(call);
    struct cell_message_said said = {
        .count_elements = call->terms.count_elements, .tag = call->tag, .dtype = (uint32_t)call->terms.dtype};
    struct cell_messages_out *out = &cells->messages->peers[call->peer].out;
    if (!is_simple(entry) || call->peer == comm->rank ||
        size_bytes > cell_message_max_bytes(out->data_bytes)) {
        return false;
    }
    enum cell_message_fate fate = cell_messages_put(out, &said, call->input.at, size_bytes);
    uint64_t until_ns = fate == CELL_MESSAGE_FULL ? clock_ns() + ROOM_WAIT_NS : 0;
    while (fate == CELL_MESSAGE_FULL && clock_ns() < until_ns && await_room(comm)) {
        fate = cell_messages_put(out, &said, call->input.at, size_bytes);
    }
    if (fate != CELL_MESSAGE_SENT) {
        return false;
    }
    cells_wake_receiver(cells->shared, call->peer);
    cells_count_message(cells, OP_KIND_SEND, size_bytes);
    end_at_once(entry, &nothing);
    return true;
}

bool cells_send_at_once(struct comm_comm *comm, const struct client_call *call)
{
    struct client_entry entry = {.comm = comm, .call = call, .alone = true};
    if (client_enter(comm->client) != COMM_OK) {
        return false;
    }
    bool sent = cells_messages_of(comm) != NULL && send_message(&entry);
    client_leave(comm->client);
    return sent;
}

/* The receive ends within its call, with this message. */
static void receive_at_once(const struct client_entry *entry, uint32_t source,
                            const struct cell_message_said *said, const void *data, size_t size_bytes)
{
    comm_received_t received = {.source = source, .count = (size_t)said->count_elements};
    cells_copy_message(entry->call, data, size_bytes);
    cells_count_message(entry->comm->cells, OP_KIND_RECEIVE, size_bytes);
    end_at_once(entry, &received);
}

/* The same of the next message in the ring, which is copied once then. */
static bool take_from_ring(const struct client_entry *entry)
{
    struct cells_messages *messages = cells_messages_of(entry->comm);
    const struct client_call *call = entry->call;
    struct cell_message_found found;
    uint32_t source;
    if (call->peer == COMM_ANY_SOURCE || messages->receives != NULL || !is_simple(entry) ||
        cells_find_letter(messages, call, &source) != NULL) {
        return false;
    }
    struct cell_messages_in *in = &messages->peers[call->peer].in;
    if (cell_messages_look(in, &found) != CELL_MESSAGE_THERE || found.said.tag != call->tag ||
        !cells_message_fits(call, &found.said)) {
        return false;
    }
    receive_at_once(entry, call->peer, &found.said, found.data, found.size_bytes);
    cell_messages_take(in, &found);
    cells_free_taken(&messages->peers[call->peer]);
    return true;
}

/* Takes a message that has come, if the receive can end within its call. */
static bool take_at_once(const struct client_entry *entry)
{
    struct comm_comm *comm = entry->comm;
    struct cells_messages *messages = cells_messages_of(comm);
    uint32_t source;
    struct cells_letter *letter = cells_find_letter(messages, entry->call, &source);
    if (letter == NULL || !is_simple(entry) || !cells_message_fits(entry->call, &letter->said)) {
        return false;
    }
    cells_take_letter(&messages->peers[source], letter);
    receive_at_once(entry, source, &letter->said, letter->data, letter->size_bytes);
    free(letter);
    return true;
}

/* Whether its message can come only through the rings. */
static bool may_wait_here(const struct client_entry *entry, uint32_t timeout_ms)
{
    const struct comm_comm *comm = entry->comm;
    const struct cells_messages *messages = cells_messages_of(comm);
    uint32_t sources = cells_sources_of(messages, entry->call);
    if (!is_simple(entry) || timeout_ms < TIMEOUT_LEAST_MS ||
        bytes_of(entry->call) > cell_message_max_bytes(messages->peers[0].in.data_bytes) ||
        entry->call->peer == comm->rank) {
        return false;
    }
    for (uint32_t rank = 0; rank < messages->rank_count; rank++) {
        const struct cell_messages_in *in = &messages->peers[rank].in;
        if (cells_is_source(sources, rank) &&
            ((rank != comm->rank && !in->open) || cell_messages_commd_has_any(in))) {
            return false;
        }
    }
    return true;
}

/* Whether there is news of the sender within a moment. */
static bool comes_soon(struct comm_comm *comm, const struct client_call *call)
{
    struct cells_messages *messages = cells_messages_of(comm);
    if (call->peer == COMM_ANY_SOURCE || messages->receives != NULL || comm->cells->crowded) {
        return false;
    }
    if (messages->skips > 0) {
        messages->skips--;
        return false;
    }
    const struct cell_messages_in *in = &messages->peers[call->peer].in;
    for (uint32_t looks = 0; looks < LOOKS; looks++) {
        if (cell_messages_have_news(in->ring, in->taken, in->from_commd)) {
            messages->skipped_last = 0;
            return true;
        }
        cells_pause();
    }
    uint32_t more = 2 * messages->skipped_last + 1;
    messages->skips = messages->skipped_last = more < SKIPPED_MAX ? more : SKIPPED_MAX;
    return false;
}

bool cells_submit_message(struct client_entry *entry, uint32_t timeout_ms)
{
    struct comm_comm *comm = entry->comm;
    const struct client_call *call = entry->call;
    if (cells_messages_of(comm) == NULL || !op_kind_is_message(call->terms.kind)) {
        return false;
    }
    if (call->terms.kind == OP_KIND_SEND) {
        if (call->peer == comm->rank) { /* a receive from any rank may wait here */
            (void)cells_hand_over_receives(comm);
        }
        return cells_messages_of(comm) != NULL && send_message(entry);
    }
    cells_await_handing(comm);
    if (cells_messages_of(comm) == NULL) {
        return false;
    }
    if (take_from_ring(entry)) {
        return true;
    }
    cells_drain_all(comm, cells_sources_of(cells_messages_of(comm), call));
    uint32_t source;
    if (take_at_once(entry)) {
        return true;
    }
    if (cells_find_letter(cells_messages_of(comm), call, &source) != NULL) {
        return false; /* cells_pass_message ends it with this message */
    }
    if (may_wait_here(entry, timeout_ms)) {
        if (comes_soon(comm, call) && take_from_ring(entry)) {
            return true;
        }
        struct client_op *op = submit_append(entry, timeout_ms);
        if (op != NULL && cells_wait_here(comm, op, call)) {
            return true;
        }
        if (op != NULL) {
            ops_end_badly(comm, op, COMM_NO_MEMORY, "no memory for a receive");
            return true;
        }
    }
    cells_settle_receives(comm);
    return false;
}
