#ifndef DAEMON_COMM_CELLS_H
#define DAEMON_COMM_CELLS_H

#include <stdbool.h>
#include <stdint.h>

#include "proto/op_terms.h"

/*
 * Cells, for the small operations of a communicator. If all ranks are on this node (proto/cells.h), commd
 * makes the segment and hands it to the ranks. It only looks at the segment, and ends its use: when the
 * communicator fails, when a rank leaves, or when a rank asks for it. If a deadline was the reason, the ranks
 * use it again later. Operations that the ranks then give to
 * commd end as if there had never been cells. Private to daemon/comm.
 */
struct communicator;
struct communicator_op;
struct comms_member;

/* Call it once the communicator has formed. It may go on without cells. */
void comms_cells_make(struct communicator *comm);
/* Ends their use: operations in which not every rank has taken part go through commd. */
void comms_cells_end(struct communicator *comm);
/* A rank has given commd an operation: after a deadline, later ones may go through cells again. */
void comms_cells_resume(struct communicator *comm);
/* Whether the communicator has cells, and is on several nodes (node_cells.h). */
bool comms_cells_are_between_nodes(const struct communicator *comm);
/* The last operation in which the member has taken part, through cells or not. */
uint64_t comms_cells_head(const struct comms_member *member);
/* Whether it has taken part in an operation in which another rank has not. After comms_cells_end such
 * operations are commd's, and do not count here. */
bool comms_cells_are_pending(const struct comms_member *member);
/* The same of any rank. */
bool comms_cells_any_pending(const struct communicator *comm);
/* Whether the local rank has taken part in the operation neither here nor in cells. If all have, those are
 * missing that have not given it to commd: their processes do not run. */
bool comms_cells_is_missing(const struct communicator_op *op, uint32_t local_index);
/* An operation that ranks have published, and for which they wait. */
struct comms_cells_wait {
    uint64_t seq;
    struct op_terms terms;
    uint64_t age_ns; /* since commd first looked */
};
/* Returns false if there is none. */
bool comms_cells_waiting(const struct communicator *comm, uint64_t now_ns, struct comms_cells_wait *out);
/* How many operations went through cells, and their bytes, as comms_read_cells last saw it. */
uint64_t comms_cells_count(const struct communicator *comm);
uint64_t comms_cells_bytes(const struct communicator *comm);
void comms_cells_free(struct communicator *comm);

#endif
