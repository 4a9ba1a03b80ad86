#ifndef CLIENT_LIB_CELLS_INTERNAL_H
#define CLIENT_LIB_CELLS_INTERNAL_H

#include "client/lib/internal.h"

/* Shared by cells.c, which publishes and takes results, and cells_wait.c, which waits for them. */

/* An operation that was published and has not ended. */
struct cells_slot {
    struct client_op *op; /* null: it was dropped */
    uint64_t seq;
    struct client_call call;
    size_t counts[4][CELLS_RANKS_MAX]; /* of the call: the caller may change its own */
};

struct client_cells {
    struct cells_shared *shared;
    size_t size_bytes;
    uint32_t rank_count; /* of the segment; between nodes, commd is the last one */
    uint32_t rank;
    struct node_cells node; /* between nodes; its shared is null on one node */
    uint64_t seq;           /* the last number that was used */
    _Atomic uint64_t gone;  /* the last published operation that has ended; read without the lock */
    uint64_t asked_seq;     /* the last operation at whose deadline commd was told */
    bool crowded;           /* more ranks than processors */
    _Atomic uint64_t crowded_until_ns;
    uint32_t first, count;      /* of the slots, a ring */
    struct cell_counts *counts; /* this rank's */
    struct cells_slot slots[CELLS_WINDOW];
};

static inline bool cells_is_between_nodes(const struct client_cells *cells)
{
    return cells->node.shared != NULL;
}

/* Whether all earlier collectives have ended. */
bool cells_is_oldest(const struct comm_comm *comm, const struct client_op *op);
/* Ends operations that are complete. Returns whether there were any. */
bool cells_take_ready(struct comm_comm *comm);

#endif
