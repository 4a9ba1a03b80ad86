#ifndef PROTO_NODE_CELLS_H
#define PROTO_NODE_CELLS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/cells.h"

/*
 * Small operations of a communicator of several nodes. On each node, cells are the way from the local ranks
 * to commd and back. The segment is that of cells.h, for the local ranks and commd, which comes last.
 *
 * Every operation takes a number, from 1 on. A rank publishes its part in its cell. Whoever sees that all
 * local ranks have done so wakes commd, if it sleeps. commd takes the operation then: it carries it out as if
 * the ranks had submitted it. It writes what each local rank gets into its own cell, and then the answer. All
 * local ranks look for that answer alone.
 *
 * A rank may submit the operation to commd instead. commd then tells the others to do the same. A rank also
 * submits an operation if the answer says so, because the operation did not end well: commd tells it why. It
 * does so, too, if its deadline has passed, or if commd has closed the segment and takes no more operations.
 *
 * A rank submits an operation only when all earlier ones have ended for it. So commd has answered all that it
 * has taken before it tells ranks to submit one. A rank that sees that it must submit looks once more for the
 * answer.
 *
 * Data of up to NODE_CELLS_MIDDLE_MAX_BYTES have places of their own, one for each cell. A rank publishes an
 * operation when it has ended the one that is NODE_CELLS_WINDOW before, or CELLS_LONG_WINDOW, if it or any
 * open one has more data. So when commd takes it, all local ranks have ended the one that is twice as far
 * before. commd overwrites its answer and results.
 *
 * In an operation from a root, the root's data may be on a node before its ranks have published, or long
 * before all nodes take part. Then commd offers them: it writes them to the place of the results, with the
 * root's terms. A rank that finds its own terms there has what it needs. The operation ends as any other.
 *
 * Nobody trusts the segment: see cells.h.
 */
#define NODE_CELLS_DATA_MAX_BYTES 32768u /* of a rank's input, and of its output */
#define NODE_CELLS_MIDDLE_MAX_BYTES 8192u
#define NODE_CELLS_WINDOW 16u /* in place of CELLS_WINDOW: their places are larger, */
#define NODE_CELLS_DEPTH 32u  /* and are for so many cells */
#define NODE_CELLS_RANKS_MAX (CELLS_RANKS_MAX - 1u)

_Static_assert(NODE_CELLS_DEPTH == 2 * NODE_CELLS_WINDOW, "as in cells.h");

/* One process's view of a communicator's segment. */
struct node_cells {
    struct cells_shared *shared;
    uint32_t local_count; /* ranks of this node; commd has the place behind them */
    uint32_t rank_count;  /* of the communicator */
};

/* The whole segment. */
static inline size_t node_cells_bytes(uint32_t local_count)
{
    return cells_short_bytes(local_count + 1) +
           (local_count + (size_t)1) * NODE_CELLS_DEPTH * NODE_CELLS_MIDDLE_MAX_BYTES;
}

/* The operation may go through cells. Every local rank that has the same terms says so. */
bool node_cells_take(const struct node_cells *cells, const struct op_terms *terms);
/* What the rank gets of an operation that may go through cells; 0: nothing. */
size_t node_cells_output_bytes(const struct node_cells *cells, const struct op_terms *terms, uint32_t rank);
/* Whether neither the ranks nor commd have more than NODE_CELLS_MIDDLE_MAX_BYTES: then
 * NODE_CELLS_WINDOW operations may be open. */
bool node_cells_are_short(const struct node_cells *cells, const struct op_terms *terms);
/* Where a local rank's input lies; where commd writes its output. */
unsigned char *node_cells_input(const struct node_cells *cells, const struct op_terms *terms, uint32_t rank,
                                uint32_t local_index, uint64_t seq);
unsigned char *node_cells_output(const struct node_cells *cells, const struct op_terms *terms,
                                 uint32_t local_index, uint64_t seq);

/* --- A rank --- */

/* The cell is complete. Returns whether the caller must wake commd. */
bool node_cells_publish(const struct node_cells *cells, uint32_t local_index, uint64_t seq);
/* CELLS_DIRECT: the output is there. CELLS_BY_COMMD: the rank must submit the operation. */
enum cells_way node_cells_look(const struct node_cells *cells, uint64_t seq);
/* As cells_lie_down and cells_get_up, with cells_sleep between them. Of several answers, only that to `seq`
 * wakes the rank, unless it must submit an operation. */
uint32_t node_cells_rank_lies_down(const struct node_cells *cells, uint32_t local_index, uint64_t seq);
void node_cells_rank_gets_up(const struct node_cells *cells, uint32_t local_index);
/* Whether the output is there, also if the operation has not ended. These are the rank's own terms. */
bool node_cells_root_is_there(const struct node_cells *cells, uint64_t seq, const struct op_terms *terms);

/* --- commd --- */

/* Whether all local ranks have published the operation. */
bool node_cells_are_published(const struct node_cells *cells, uint64_t seq);
/* Whether the places for the results of that operation are free: no rank reads an earlier one's there. */
bool node_cells_may_offer(const struct node_cells *cells, uint64_t seq, const struct op_terms *terms);
/* The outputs of all local ranks were written. Before the answer. */
void node_cells_offer(const struct node_cells *cells, uint64_t seq, const struct op_terms *terms);
/* The answer to an operation that commd has taken. Call node_cells_wake soon, once for several answers. */
void node_cells_answer(const struct node_cells *cells, uint64_t seq, bool ended_well);
/* Wakes ranks that sleep, and await this operation or an earlier one. */
void node_cells_wake(const struct node_cells *cells, uint64_t seq);
/* A rank has submitted this operation: the others must do so, too. */
void node_cells_pass(const struct node_cells *cells, uint64_t seq);
/* commd takes no operation after this one. */
void node_cells_close(const struct node_cells *cells, uint64_t last_seq);
/* commd is about to sleep: ranks wake it. Look at the next operation afterwards. */
void node_cells_lie_down(const struct node_cells *cells);
void node_cells_get_up(const struct node_cells *cells);

#endif
