#ifndef DAEMON_COMM_NODE_CELLS_H
#define DAEMON_COMM_NODE_CELLS_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/comm/comms.h"

/*
 * commd's part in the cells of a communicator of several nodes (proto/node_cells.h): it takes operations that
 * all local ranks have published, and answers them. Private to daemon/comm. Main thread.
 *
 * A post that was taken from a cell is owed to its rank like any other. If the operation ends well, and all
 * local ranks have published it, the answer in the cells is what the rank is told. Otherwise the answer is
 * that the ranks must submit it, and such a post waits for that: then it gets its ticket, and the rank is
 * told by a completion.
 */
struct comms_cell_place;
struct communicator;
struct communicator_op;
struct comms_member;

/* Looks for operations to take, and for sleepers, as long as the communicator is used. */
void comms_node_cells_begin(struct communicator *comm, uint64_t now_ns);
/* No operation is taken any more. Those that were taken go on. */
void comms_node_cells_close(struct communicator *comm);
/* The cells are about to be freed. */
void comms_node_cells_free(struct communicator *comm);
/* For struct exec_comm_handler: offers the root's data to the local ranks, which have not published yet. */
bool comms_node_cells_early(void *context, uint64_t seq, const struct op_terms *terms, const uint8_t *payload,
                            uint64_t payload_bytes);
/* The same: offers the results of an operation that has not ended. */
void comms_node_cells_closing(void *context, uint64_t seq);
/* A rank has submitted the operation. */
void comms_node_cells_submitted(struct communicator *comm, uint64_t seq);
/* The rank submits an operation that was taken from its cell. Returns false if that was not so: the
 * submission is one of its own. */
bool comms_node_cells_claim(struct comms_member *member, const struct comms_op *op, uint64_t now_ns);
/* The operation has ended, or its ranks are told although it has not. Call it before its buffers are freed.
 */
void comms_node_cells_answer(struct communicator_op *op, bool ended_well);

/* submit.c, for node_cells.c */
/* As comms_submit, of an operation that was published in the member's cell, where its buffers are. On an
 * error nothing was done. */
enum status comms_submit_cell(struct comms_member *member, const struct comms_op *op,
                              const struct comms_cell_place *place, uint64_t now_ns,
                              struct error *error) COMM_MUST_USE;
/* The rank has submitted an operation that is pending already: its time runs as this call says. */
void comms_submit_deadline(struct communicator_op *op, const struct comms_op *call, uint64_t now_ns);

#endif
