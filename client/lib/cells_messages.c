#include "client/lib/cells_messages_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <utlist.h>

/* Short messages: their rings, and messages that no receive has taken yet. */

#define LETTERS_MANY 64u /* of one sender; then its ring fills, and commd gets the rest */
#define LETTERS_MAX (LETTERS_MANY + CELL_MESSAGES_SLOTS) /* more, only if the sender lies */

/* --- Messages that have come --- */

static bool is_from(const struct client_call *call, uint32_t source)
{
    return call->peer == source || call->peer == COMM_ANY_SOURCE;
}

void cells_end_receive(struct comm_comm *comm, struct client_op *op, const struct client_call *call,
                       uint32_t source, const struct cell_message_said *said, const void *data,
                       size_t size_bytes)
{
    char text[ERROR_TEXT_BYTES];
    comm_received_t received = {.source = source, .count = (size_t)said->count_elements};
    op->copy_count = 0; /* the message goes to the caller's memory at once */
    if (!cells_message_fits(call, said)) {
        (void)snprintf(text, sizeof text,
                       "\"%s\": rank %u sent %llu %s to rank %u, tag %u; its recv has room for %llu %s",
                       comm->name, source, (unsigned long long)said->count_elements,
                       dtype_text((enum dtype)said->dtype), comm->rank, said->tag,
                       (unsigned long long)call->terms.count_elements, dtype_text(call->terms.dtype));
        ops_end_badly(comm, op, COMM_MISMATCH, text);
        return;
    }
    if (op->uses[USE_OUTPUT] != NULL && op->uses[USE_OUTPUT]->gpu != NULL) {
        (void)snprintf(
            text, sizeof text,
            "\"%s\": the message from rank %u came before this process used a GPU: receive it into "
            "memory of the host",
            comm->name, source);
        ops_end_badly(comm, op, COMM_UNSUPPORTED, text);
        return;
    }
    cells_copy_message(call, data, size_bytes);
    cells_count_message(comm->cells, OP_KIND_RECEIVE, size_bytes);
    ops_end_receive(comm, op, &received);
}

static void damaged(struct comm_comm *comm, uint32_t rank)
{
    member_fail(comm, COMM_PROTOCOL, "\"%s\": rank %u has damaged the communicator's messages", comm->name,
                rank);
}

void cells_free_taken(struct cells_peer *peer)
{
    if (peer->letter_count < LETTERS_MANY && peer->letter_bytes < peer->in.data_bytes) {
        cell_messages_free_taken(&peer->in);
    }
}

static bool set_aside(struct cells_peer *peer, const struct cell_message_found *found)
{
    struct cells_letter *letter = malloc(sizeof *letter + found->size_bytes);
    if (letter == NULL) {
        return false;
    }
    letter->said = found->said;
    letter->size_bytes = found->size_bytes;
    memcpy(letter->data, found->data, found->size_bytes);
    DL_APPEND(peer->letters, letter);
    peer->letter_count++;
    peer->letter_bytes += letter->size_bytes;
    return true;
}

/* The oldest receive that waits for such a message. */
static struct cells_receive *find_receive(const struct cells_messages *messages, uint32_t source,
                                          uint32_t tag)
{
    struct cells_receive *receive = messages->receives;
    while (receive != NULL &&
           (receive->letter != NULL || receive->call.tag != tag || !is_from(&receive->call, source))) {
        receive = receive->next;
    }
    return receive;
}

void cells_drain(struct comm_comm *comm, uint32_t rank)
{
    struct cells_messages *messages = cells_messages_of(comm);
    struct cells_peer *peer = &messages->peers[rank];
    struct cell_message_found found;
    enum cell_message_look look;
    bool any = false;
    while ((look = cell_messages_look(&peer->in, &found)) == CELL_MESSAGE_THERE) {
        struct cells_receive *receive = find_receive(messages, rank, found.said.tag);
        if (receive != NULL) {
            cells_end_receive(comm, receive->op, &receive->call, rank, &found.said, found.data,
                              found.size_bytes);
        } else if (peer->letter_count >= LETTERS_MAX) {
            damaged(comm, rank); /* it goes on without room */
            return;
        } else if (!set_aside(peer, &found)) {
            member_fail(comm, COMM_NO_MEMORY, "\"%s\": no memory for a message from rank %u", comm->name,
                        rank);
            return;
        }
        cell_messages_take(&peer->in, &found);
        any = true;
    }
    if (any) {
        cells_free_taken(peer);
    }
    if (look == CELL_MESSAGE_NONSENSE) {
        damaged(comm, rank);
    }
}

void cells_drain_all(struct comm_comm *comm, uint32_t sources)
{
    for (uint32_t rank = 0; rank < cells_messages_of(comm)->rank_count && comm->failure == COMM_OK; rank++) {
        if (cells_is_source(sources, rank)) {
            cells_drain(comm, rank);
        }
    }
}

struct cells_letter *cells_find_letter(struct cells_messages *messages, const struct client_call *call,
                                       uint32_t *source)
{
    bool any = call->peer == COMM_ANY_SOURCE;
    for (uint32_t i = 0; i < (any ? messages->rank_count : 1); i++) {
        uint32_t rank = any ? (messages->first + i) % messages->rank_count : call->peer;
        struct cells_letter *letter = messages->peers[rank].letters;
        while (letter != NULL && letter->said.tag != call->tag) {
            letter = letter->next;
        }
        if (letter != NULL) {
            messages->first = any ? rank + 1 : messages->first;
            *source = rank;
            return letter;
        }
    }
    return NULL;
}

void cells_take_letter(struct cells_peer *peer, struct cells_letter *letter)
{
    DL_DELETE(peer->letters, letter);
    peer->letter_count--;
    peer->letter_bytes -= letter->size_bytes;
    cells_free_taken(peer);
}

/* --- Beginning and end --- */

void cells_messages_open(struct comm_comm *comm)
{
    struct client_cells *cells = comm->cells;
    uint32_t count = cells->rank_count;
    struct cells_messages *messages = calloc(1, sizeof *messages + count * sizeof messages->peers[0]);
    if (messages == NULL) {
        return;
    }
    messages->rank_count = count;
    for (uint32_t rank = 0; rank < count; rank++) {
        messages->peers[rank].in.data_bytes = messages->peers[rank].out.data_bytes =
            cell_messages_data_bytes(count);
        messages->peers[rank].in.ring = cells_messages(cells->shared, count, rank, cells->rank);
        messages->peers[rank].out.ring = cells_messages(cells->shared, count, cells->rank, rank);
        if (rank != cells->rank && cells_may_open(comm)) {
            cell_messages_open(&messages->peers[rank].in);
        }
    }
    cells->messages = messages;
}

void cells_messages_close(struct client_cells *cells)
{
    struct cells_messages *messages = cells->messages;
    struct cells_letter *letter, *next;
    for (uint32_t rank = 0; messages != NULL && rank < messages->rank_count; rank++) {
        DL_FOREACH_SAFE(messages->peers[rank].letters, letter, next)
        {
            free(letter);
        }
    }
    if (messages != NULL) {
        cells_free_receive(messages->spare);
        free(messages);
        cells->messages = NULL;
    }
}

void cells_messages_end(struct comm_comm *comm)
{
    struct cells_messages *messages = cells_messages_of(comm);
    if (messages == NULL) {
        return;
    }
    messages->ended = true;
    for (uint32_t rank = 0; rank < messages->rank_count; rank++) {
        while (comm->failure == COMM_OK && !cell_messages_close(&messages->peers[rank].in)) {
            cells_drain(comm, rank);
        }
    }
}
