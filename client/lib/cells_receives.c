#include "client/lib/cells_messages_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <utlist.h>

#include "client/lib/buffers.h"
#include "client/lib/submit.h"

/* Receives that wait for short messages, and how commd gets them. */

#define NS_PER_MS 1000000u
#define HAND_OVER_NS 20000000u      /* after so long, commd gets a receive for which a thread waits, */
#define HAND_OVER_ALONE_NS 2000000u /* and one for which nobody waits */

_Static_assert(CELLS_WATCHED_MAX >= CELLS_RANKS_MAX - 1, "all rings can be watched");

const struct client_call *cells_receive_call(const struct cells_receive *receive)
{
    return &receive->call;
}

uint32_t cells_receive_count(const struct comm_comm *comm)
{
    const struct cells_messages *messages = cells_messages_of(comm);
    return messages != NULL ? messages->receive_count : 0;
}

void cells_free_receive(struct cells_receive *receive)
{
    if (receive != NULL) {
        free(receive->letter);
        free(receive->waits);
        free(receive);
    }
}

/* --- Receives --- */

/* Whether commd has a receive that a message of this rank could end. */
static bool cells_is_asked(const struct cells_messages *messages, uint32_t rank)
{
    return messages->asked_any > 0 || messages->peers[rank].asked > 0;
}

/* No receive for this rank's messages is with commd any more. */
static void open_again(const struct comm_comm *comm, uint32_t rank)
{
    struct cells_messages *messages = cells_messages_of(comm);
    if (rank != comm->cells->rank && !messages->ended && cells_may_open(comm) &&
        !cells_is_asked(messages, rank)) {
        cell_messages_open(&messages->peers[rank].in);
    }
}

void cells_count_received(struct comm_comm *comm, const struct client_op *op,
                          const struct completion_record *completion)
{
    struct cells_messages *messages = cells_messages_of(comm);
    uint32_t source = UINT32_MAX;
    if (completion->status == STATUS_OK) {
        source = completion->source_rank;
    } else if (completion->status == STATUS_MISMATCH && op->asks != CELLS_ASKS_ANY) {
        source = op->asks - 1; /* its message is gone, too */
    }
    if (messages != NULL && source < messages->rank_count) {
        cell_messages_count_received(&messages->peers[source].in);
    }
}

static void free_asked(struct comm_comm *comm, struct client_op *op)
{
    struct cells_messages *messages = cells_messages_of(comm);
    if (op->asks == CELLS_ASKS_ANY) {
        messages->asked_any--;
        for (uint32_t rank = 0; rank < messages->rank_count; rank++) {
            open_again(comm, rank);
        }
    } else {
        messages->peers[op->asks - 1].asked--;
        open_again(comm, op->asks - 1);
    }
    op->asks = 0;
}

/* How many receives wait here for messages from the same rank, or from any. */
static uint32_t *waiting_of(struct cells_messages *messages, const struct cells_receive *receive)
{
    uint32_t peer = receive->call.peer;
    return peer == COMM_ANY_SOURCE ? &messages->waiting_any : &messages->peers[peer].waiting;
}

/* The bits of the ranks for whose messages receives wait here. */
static uint32_t sources_of_all(const struct cells_messages *messages)
{
    uint32_t sources = 0;
    for (uint32_t rank = 0; rank < messages->rank_count; rank++) {
        bool is_awaited = messages->waiting_any > 0 || messages->peers[rank].waiting > 0;
        sources |= is_awaited ? 1u << rank : 0;
    }
    return sources;
}

/* Takes the receive out of the list of those that wait here. */
static void take_out(struct comm_comm *comm, struct cells_receive *receive)
{
    struct cells_messages *messages = cells_messages_of(comm);
    DL_DELETE(messages->receives, receive);
    if (receive->letter == NULL) {
        --*waiting_of(messages, receive);
    }
    messages->receive_count--;
    comm->client->cells.receives--;
    receive->op->receive = NULL;
}

static void keep_spare(struct cells_messages *messages, struct cells_receive *receive)
{
    if (messages->spare != NULL || receive->letter != NULL || receive->waits != NULL) {
        cells_free_receive(receive);
    } else {
        messages->spare = receive;
    }
}

void cells_forget_receive(struct comm_comm *comm, struct client_op *op)
{
    struct cells_messages *messages = cells_messages_of(comm);
    if (messages != NULL && op->receive != NULL) {
        struct cells_receive *receive = op->receive;
        take_out(comm, receive);
        keep_spare(messages, receive);
    }
    if (messages != NULL && op->asks != 0) {
        free_asked(comm, op);
    }
}

/* Makes a receive of the list wait here. Returns false if memory is short. */
bool cells_wait_here(struct comm_comm *comm, struct client_op *op, const struct client_call *call)
{
    struct cells_messages *messages = cells_messages_of(comm);
    struct cells_receive *receive = messages->spare != NULL ? messages->spare : malloc(sizeof *receive);
    if (receive == NULL) {
        return false;
    }
    messages->spare = NULL;
    *receive = (struct cells_receive){.op = op, .call = *call, .since_ns = op->submitted_ns};
    DL_APPEND(messages->receives, receive);
    ++*waiting_of(messages, receive);
    messages->receive_count++;
    comm->client->cells.receives++;
    op->receive = receive;
    held_watch(comm->client);
    return true;
}

/* Of a receive in the list, which waits for events: its message has come. */
static void keep_letter(struct comm_comm *comm, struct client_op *op, const struct client_call *call,
                        struct cells_letter *letter, uint32_t source, const struct fence_mark *waits,
                        uint32_t wait_count)
{
    struct fence_mark *kept = calloc(wait_count, sizeof *kept);
    if (kept == NULL || !cells_wait_here(comm, op, call)) {
        free(kept);
        free(letter);
        ops_end_badly(comm, op, COMM_NO_MEMORY, "no memory for a message");
        return;
    }
    memcpy(kept, waits, wait_count * sizeof *kept);
    --*waiting_of(cells_messages_of(comm), op->receive);
    op->receive->letter = letter;
    op->receive->source = source;
    op->receive->waits = kept;
    op->receive->wait_count = wait_count;
}

static bool all_reached(const struct fence_mark *waits, uint32_t wait_count)
{
    for (uint32_t i = 0; i < wait_count; i++) {
        if (!fence_is_reached(&waits[i])) {
            return false;
        }
    }
    return true;
}

static void end_late(struct comm_comm *comm, struct cells_receive *receive)
{
    char text[ERROR_TEXT_BYTES];
    (void)snprintf(
        text, sizeof text,
        "\"%s\": recv from rank %u, tag %u: its message has come, but not an event that it waits for",
        comm->name, receive->source, receive->call.tag);
    ops_end_badly(comm, receive->op, COMM_TIMED_OUT, text);
}

/* Ends receives whose messages have come, and whose events have happened since, or did not in time. */
static void end_kept(struct comm_comm *comm)
{
    struct cells_receive *receive, *next;
    uint64_t now_ns = 0;
    DL_FOREACH_SAFE(cells_messages_of(comm)->receives, receive, next)
    {
        const struct cells_letter *letter = receive->letter;
        if (letter == NULL) {
            continue;
        }
        now_ns = now_ns != 0 ? now_ns : clock_ns();
        if (all_reached(receive->waits, receive->wait_count)) {
            cells_end_receive(comm, receive->op, &receive->call, receive->source, &letter->said, letter->data,
                              letter->size_bytes);
        } else if (now_ns >= receive->op->deadline_ns) {
            end_late(comm, receive);
        }
    }
}

bool cells_record_must_wait(const struct comm_comm *comm, uint64_t ticket)
{
    const struct cells_messages *messages = cells_messages_of(comm);
    const struct cells_receive *receive = messages != NULL ? messages->receives : NULL;
    while (receive != NULL && (receive->letter == NULL || receive->op->ticket > ticket)) {
        receive = receive->next;
    }
    return receive != NULL;
}

/* --- Giving to commd --- */

static void drop_all(struct comm_comm *comm)
{
    struct cells_receive *receive, *next;
    DL_FOREACH_SAFE(cells_messages_of(comm)->receives, receive, next)
    {
        ops_drop(comm, receive->op);
    }
}

/* Closes the rings of all sources. Returns false if a message has come meanwhile; then look for it. */
static bool close_sources(struct comm_comm *comm, uint32_t sources)
{
    struct cells_messages *messages = cells_messages_of(comm);
    for (uint32_t rank = 0; rank < messages->rank_count && comm->failure == COMM_OK; rank++) {
        if (cells_is_source(sources, rank) && !cell_messages_close(&messages->peers[rank].in)) {
            cells_drain(comm, rank);
            return false;
        }
    }
    return true;
}

static void ask(struct cells_messages *messages, struct client_op *op, const struct client_call *call)
{
    if (call->peer == COMM_ANY_SOURCE) {
        messages->asked_any++;
        op->asks = CELLS_ASKS_ANY;
    } else {
        messages->peers[call->peer].asked++;
        op->asks = 1 + call->peer;
    }
}

bool cells_pass_message(struct comm_comm *comm, struct client_op *op, const struct client_call *call,
                        const struct fence_mark *waits, uint32_t wait_count)
{
    struct cells_messages *messages = cells_messages_of(comm);
    struct cells_letter *letter;
    uint32_t source;
    if (messages == NULL || !op_kind_is_message(op->kind)) {
        return true;
    }
    if (op->kind == OP_KIND_SEND) {
        cell_messages_count_sent(&messages->peers[call->peer].out);
        return true;
    }
    while ((letter = cells_find_letter(messages, call, &source)) == NULL) {
        if (close_sources(comm, cells_sources_of(messages, call))) {
            ask(messages, op, call);
            return true;
        }
    }
    cells_take_letter(&messages->peers[source], letter);
    if (!all_reached(waits, wait_count)) {
        keep_letter(comm, op, call, letter, source, waits, wait_count);
        return false;
    }
    cells_end_receive(comm, op, call, source, &letter->said, letter->data, letter->size_bytes);
    free(letter);
    return false;
}

/* The oldest receive without a message. */
static struct cells_receive *oldest_waiting(const struct cells_messages *messages)
{
    struct cells_receive *receive = messages->receives;
    while (receive != NULL && receive->letter != NULL) {
        receive = receive->next;
    }
    return receive;
}

static uint32_t left_ms(const struct client_op *op)
{
    uint64_t now_ns = clock_ns();
    return op->deadline_ns > now_ns + NS_PER_MS ? (uint32_t)((op->deadline_ns - now_ns) / NS_PER_MS) : 1;
}

/* Gives one receive, for which no message has come, to commd. May release the lock. */
static void hand_over(struct comm_comm *comm, struct cells_receive *receive, struct submit_packet *packet)
{
    struct client_op *op = receive->op;
    size_t staged_bytes = 0;
    struct submit_record record;
    ask(cells_messages_of(comm), op, &receive->call);
    take_out(comm, receive);
    op->staging = true;
    comm_result_t result = buffers_find(comm, &receive->call, op, &staged_bytes);
    result = result == COMM_OK && staged_bytes > 0 ? buffers_stage(comm, &receive->call, op) : result;
    op->staging = false;
    if (op->dropped) {
        ops_drop(comm, op);
    } else if (result != COMM_OK) {
        ops_end_badly(comm, op, result, comm_last_error());
    } else {
        receive->call.options.timeout_ms = left_ms(op);
        submit_make_record(comm, &receive->call, op, NULL, 0, &record);
        record.ticket = op->ticket;
        packet_add(comm->client, packet, comm, &record);
    }
    cells_free_receive(receive);
}

bool cells_hand_over_receives(struct comm_comm *comm)
{
    struct cells_messages *messages = cells_messages_of(comm);
    struct cells_receive *receive;
    struct submit_packet packet;
    if (messages == NULL || messages->handing || oldest_waiting(messages) == NULL) {
        return false;
    }
    if (comm->failure != COMM_OK) {
        drop_all(comm);
        return true;
    }
    packet.size_bytes = packet.timeout_ms = 0;
    messages->handing = true;
    comm->copying++; /* it must not be left meanwhile */
    while ((receive = oldest_waiting(messages)) != NULL && comm->failure == COMM_OK) {
        if (close_sources(comm, cells_sources_of(messages, &receive->call))) {
            hand_over(comm, receive, &packet);
        }
    }
    packet_send(comm->client, &packet);
    comm->copying--;
    messages->handing = false;
    pthread_cond_broadcast(&comm->client->changed);
    return true;
}

void cells_await_handing(struct comm_comm *comm)
{
    while (cells_messages_of(comm) != NULL && cells_messages_of(comm)->handing) {
        (void)pthread_cond_wait(&comm->client->changed, &comm->client->lock);
    }
}

void cells_settle_receives(struct comm_comm *comm)
{
    (void)cells_hand_over_receives(comm);
    cells_await_handing(comm);
}

bool cells_hand_over_all_receives(struct comm_client *client, uint64_t *until_ns)
{
    struct comm_comm *comm = client->cells.receives > 0 ? client->comms : NULL;
    bool others_do = false;
    while (comm != NULL && !cells_hand_over_receives(comm)) {
        others_do = others_do || cells_receives_are_handed(comm);
        comm = comm->next;
    }
    uint64_t soon_ns = others_do ? clock_ns() + NS_PER_MS : UINT64_MAX;
    *until_ns = soon_ns < *until_ns ? soon_ns : *until_ns;
    return comm != NULL; /* there may be more */
}

/* --- Progress --- */

/* Whether receives that wait here should be commd's. */
static bool is_time(const struct comm_comm *comm, bool is_feeder)
{
    const struct cells_messages *messages = cells_messages_of(comm);
    const struct cells_receive *oldest = oldest_waiting(messages);
    uint32_t sources = sources_of_all(messages);
    if (oldest == NULL) {
        return false;
    }
    for (uint32_t rank = 0; rank < messages->rank_count; rank++) {
        if (cells_is_source(sources, rank) && cell_messages_commd_has_any(&messages->peers[rank].in)) {
            return true;
        }
    }
    bool alone = is_feeder && comm->waiters == 0;
    return clock_ns() >= oldest->since_ns + (alone ? HAND_OVER_ALONE_NS : HAND_OVER_NS);
}

bool cells_receive_ready(struct comm_comm *comm, bool is_feeder)
{
    struct cells_messages *messages = cells_messages_of(comm);
    if (messages == NULL || messages->receives == NULL) {
        return false;
    }
    uint32_t before = messages->receive_count;
    if (comm->failure == COMM_OK) {
        cells_drain_all(comm, sources_of_all(messages));
    }
    if (comm->failure != COMM_OK) {
        drop_all(comm);
    } else {
        end_kept(comm);
    }
    bool ended = messages->receive_count != before;
    return (messages->receives != NULL && is_time(comm, is_feeder) && cells_hand_over_receives(comm)) ||
           ended;
}

void cells_receive_all_ready(struct comm_client *client, bool is_feeder)
{
    struct comm_comm *comm = client->cells.receives > 0 ? client->comms : NULL;
    bool any = false;
    while (comm != NULL && client->cells.receives > 0) {
        bool here = cells_receive_ready(comm, is_feeder);
        any = any || here;
        comm = here ? NULL : comm->next; /* the list may be another one now */
    }
    if (any) {
        pthread_cond_broadcast(&client->changed);
    }
}

/* --- For waiting threads --- */

bool cells_receives_are_handed(const struct comm_comm *comm)
{
    return cells_messages_of(comm) != NULL && cells_messages_of(comm)->handing;
}

static void watch_rings(struct comm_comm *comm, struct cells_messages_watch *out)
{
    const struct cells_messages *messages = cells_messages_of(comm);
    const struct cells_receive *oldest = messages != NULL && !comm->leaving ? oldest_waiting(messages) : NULL;
    uint32_t sources = oldest != NULL ? sources_of_all(messages) : 0;
    if (oldest != NULL && oldest->since_ns + HAND_OVER_NS < out->until_ns) {
        out->until_ns = oldest->since_ns + HAND_OVER_NS;
    }
    for (uint32_t rank = 0; sources != 0 && rank < messages->rank_count; rank++) {
        const struct cell_messages_in *in = &messages->peers[rank].in;
        if (cells_is_source(sources, rank) && rank != comm->rank && out->count < CELLS_WATCHED_MAX) {
            out->rings[out->count].comm = comm;
            out->rings[out->count].ring = in->ring;
            out->rings[out->count].taken = in->taken;
            out->rings[out->count++].from_commd = in->from_commd;
        }
    }
}

void cells_messages_watch(struct comm_client *client, struct cells_messages_watch *out)
{
    out->count = 0;
    out->until_ns = UINT64_MAX;
    for (struct comm_comm *comm = client->cells.receives > 0 ? client->comms : NULL; comm != NULL;
         comm = comm->next) {
        watch_rings(comm, out);
    }
}

void cells_messages_hold(const struct cells_messages_watch *watch)
{
    for (uint32_t i = 0; i < watch->count; i++) {
        watch->rings[i].comm->copying++;
    }
}

void cells_messages_release(struct comm_client *client, const struct cells_messages_watch *watch)
{
    for (uint32_t i = 0; i < watch->count; i++) {
        watch->rings[i].comm->copying--;
    }
    if (watch->count > 0) {
        pthread_cond_broadcast(&client->changed);
    }
}

bool cells_messages_came(const struct cells_messages_watch *watch)
{
    for (uint32_t i = 0; i < watch->count; i++) {
        if (cell_messages_have_news(watch->rings[i].ring, watch->rings[i].taken,
                                    watch->rings[i].from_commd)) {
            return true;
        }
    }
    return false;
}
