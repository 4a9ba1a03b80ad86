#ifndef CLIENT_LIB_CELLS_MESSAGES_INTERNAL_H
#define CLIENT_LIB_CELLS_MESSAGES_INTERNAL_H

#include "client/lib/cells_internal.h"

/*
 * What the files of short messages share: cells_messages.c has messages that have come, cells_receives.c
 * receives that wait, and cells_message_calls.c the calls.
 */

/* A message that came before a receive took it. */
struct cells_letter {
    struct cells_letter *prev, *next;
    struct cell_message_said said;
    size_t size_bytes;
    unsigned char data[];
};

/* A receive that waits here. */
struct cells_receive {
    struct cells_receive *prev, *next;
    struct client_op *op;
    struct client_call call;
    uint64_t since_ns;
    struct cells_letter *letter; /* its message, which `waits` keep from its buffer; null: none has come */
    uint32_t source;             /* of the letter */
    uint32_t wait_count;
    struct fence_mark *waits;
};

/* Another rank; or this one, whose messages to itself go through commd. */
struct cells_peer {
    struct cell_messages_in in;
    struct cell_messages_out out;
    struct cells_letter *letters; /* oldest first */
    uint32_t letter_count;
    size_t letter_bytes;
    uint32_t waiting; /* receives from this rank alone that wait here, */
    uint32_t asked;   /* and that commd has */
};

struct cells_messages {
    uint32_t rank_count;
    uint32_t waiting_any; /* receives from any rank that wait here, */
    uint32_t asked_any;   /* and that commd has */
    uint32_t first;       /* whose message a receive from any rank takes next: all get their turn */
    bool handing;         /* a thread gives receives to commd */
    bool ended;
    uint32_t skips, skipped_last;
    struct cells_receive *receives; /* oldest first */
    uint32_t receive_count;
    struct cells_receive *spare;
    struct cells_peer peers[];
};

static inline struct cells_messages *cells_messages_of(const struct comm_comm *comm)
{
    return comm->cells != NULL ? comm->cells->messages : NULL;
}

/* Whether rings may be used: nothing needs to know of each message, and no buffer is on a GPU. */
static inline bool cells_may_open(const struct comm_comm *comm)
{
    return comm->client->gpus == NULL && comm->client->trace == NULL;
}

static inline bool cells_message_fits(const struct client_call *call, const struct cell_message_said *said)
{
    return said->dtype == (uint32_t)call->terms.dtype && said->count_elements <= call->terms.count_elements;
}

static inline void cells_copy_message(const struct client_call *call, const void *data, size_t size_bytes)
{
    if (size_bytes > 0) {
        memcpy(call->output.at, data, size_bytes);
    }
}

static inline void cells_count_message(const struct client_cells *cells, enum op_kind kind, size_t size_bytes)
{
    cell_counts_raise(&cells->counts->published, 1);
    cell_counts_add(cell_counts_of(cells->counts, kind, size_bytes), size_bytes);
}

/* The bits of the ranks from which the call may receive. */
static inline uint32_t cells_sources_of(const struct cells_messages *messages, const struct client_call *call)
{
    return call->peer != COMM_ANY_SOURCE ? 1u << call->peer
                                         : (uint32_t)((UINT64_C(1) << messages->rank_count) - 1);
}

static inline bool cells_is_source(uint32_t sources, uint32_t rank)
{
    return (sources >> rank & 1) != 0;
}

/* --- cells_messages.c --- */

/* Takes all messages out of the rank's ring, for receives that wait or come later. */
void cells_drain(struct comm_comm *comm, uint32_t rank);
void cells_drain_all(struct comm_comm *comm, uint32_t sources);
/* The oldest message that the receive takes; null: none has come. Sets *source. */
struct cells_letter *cells_find_letter(struct cells_messages *messages, const struct client_call *call,
                                       uint32_t *source);
/* The letter is the caller's then. */
void cells_take_letter(struct cells_peer *peer, struct cells_letter *letter);
/* Lets the sender go on, unless too many of its messages wait for their receives. */
void cells_free_taken(struct cells_peer *peer);
/* Ends a receive of the list with this message, well or badly. */
void cells_end_receive(struct comm_comm *comm, struct client_op *op, const struct client_call *call,
                       uint32_t source, const struct cell_message_said *said, const void *data,
                       size_t size_bytes);

/* --- cells_receives.c --- */

void cells_free_receive(struct cells_receive *receive);
/* Makes a receive of the list wait here. Returns false if memory is short. */
bool cells_wait_here(struct comm_comm *comm, struct client_op *op, const struct client_call *call);
/* Waits until no thread gives receives to commd. Releases the lock meanwhile. */
void cells_await_handing(struct comm_comm *comm);

#endif
