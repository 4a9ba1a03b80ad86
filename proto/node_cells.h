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
 * A rank publishes an operation when it has ended the one that is CELLS_LONG_WINDOW before. So when commd
 * takes it, all local ranks have ended the one that is CELLS_LONG_DEPTH before. commd overwrites its answer
 * and results.
 *
 * Nobody trusts the segment: see cells.h.
 */
#define NODE_CELLS_DATA_MAX_BYTES 32768u /* of a rank's input, and of its output */
#define NODE_CELLS_RANKS_MAX (CELLS_RANKS_MAX - 1u)

/* One process's view of a communicator's segment. */
struct node_cells {
    struct cells_shared *shared;
    uint32_t local_count; /* ranks of this node; commd has the place behind them */
    uint32_t rank_count;  /* of the communicator */
};

/* The whole segment. */
static inline size_t node_cells_bytes(uint32_t local_count)
{
    return cells_short_bytes(local_count + 1);
}

/* The operation may go through cells. Every local rank that has the same terms says so. */
bool node_cells_take(const struct node_cells *cells, const struct op_terms *terms);
/* What the rank gets of an operation that may go through cells; 0: nothing. */
size_t node_cells_output_bytes(const struct node_cells *cells, const struct op_terms *terms, uint32_t rank);
/* Where a local rank's input lies; where commd writes its output. */
unsigned char *node_cells_input(const struct node_cells *cells, const struct op_terms *terms, uint32_t rank,
                                uint32_t local_index, uint64_t seq);
unsigned char *node_cells_output(const struct node_cells *cells, const struct op_terms *terms,
                                 uint32_t local_index, uint64_t seq);

/* --- A rank. It sleeps by cells_lie_down, cells_sleep and cells_get_up. --- */

/* The cell is complete. Returns whether the caller must wake commd. */
bool node_cells_publish(const struct node_cells *cells, uint32_t local_index, uint64_t seq);
/* CELLS_DIRECT: the output is there. CELLS_BY_COMMD: the rank must submit the operation. */
enum cells_way node_cells_look(const struct node_cells *cells, uint64_t seq);

/* --- commd --- */

/* Whether all local ranks have published the operation. */
bool node_cells_are_published(const struct node_cells *cells, uint64_t seq);
/* The answer to an operation that commd has taken; wakes ranks. */
void node_cells_answer(const struct node_cells *cells, uint64_t seq, bool ended_well);
/* A rank has submitted this operation: the others must do so, too. */
void node_cells_pass(const struct node_cells *cells, uint64_t seq);
/* commd takes no operation after this one. */
void node_cells_close(const struct node_cells *cells, uint64_t last_seq);
/* commd is about to sleep: ranks wake it. Look at the next operation afterwards. */
void node_cells_lie_down(const struct node_cells *cells);
void node_cells_get_up(const struct node_cells *cells);

#endif
