#ifndef DAEMON_COMM_CALL_H
#define DAEMON_COMM_CALL_H

#include "daemon/comm/comms.h"
#include "daemon/comm/fence.h"

/* One rank's call of an operation: its terms, checked, and its own buffers. Private to
 * daemon/comm.
 */

/* Of the rank at hand, from its post until nothing uses them any more. Layouts are its own copies. */
struct comms_buffers {
    struct memory *input_memory, *output_memory, *residual_memory; /* references, where needed */
    uint64_t *input_layout, *output_layout; /* 2 × size: counts, displacements; null for none */
    struct comms_fences *fences;            /* null: none */
    struct exec_rank exec;
    struct budget_account *account; /* of a collective's: charged as long as these are held */
    uint64_t charged_bytes;
};

/*
 * Checks what one rank asks for, alone: INVALID_ARGUMENT, UNSUPPORTED, LIMIT, NO_MEMORY. On success *terms is
 * what the other ranks must agree with, and *buffers holds references and memory, for comms_buffers_release.
 */
enum status comms_call_check(const struct comms_op *op, uint32_t rank, uint32_t size, struct op_terms *terms,
                             struct comms_buffers *buffers, struct error *error) COMM_MUST_USE;
void comms_buffers_release(struct comms_buffers *buffers);
/* The same of what an operation holds, and what is charged for it. Null is accepted. */
void comms_buffers_free(struct comms_buffers *buffers);

#endif
