#ifndef DAEMON_COMM_CALL_H
#define DAEMON_COMM_CALL_H

#include "daemon/comm/comms.h"
#include "daemon/comm/comms_fence.h"

/* One rank's call of an operation: its checked terms, and its own buffers. Private to daemon/comm. */

/* Buffers of one rank, from its post until nothing uses them any more. Layouts are private copies. The memory
 * in `exec` is referenced. */
struct comms_buffers {
    uint64_t *input_layout, *output_layout; /* 2 × size: counts, displacements; null for none */
    struct comms_fences *fences;            /* null: none */
    struct exec_rank exec;
    struct budget_account *account; /* of a collective: charged until the buffers are freed */
    uint64_t charged_bytes;
};

/* Where buffers lie that are in no memory of the client. Null: there is none. */
struct comms_cell_place {
    const void *input;
    void *output;
};

/* As comms_call_check, for such buffers, which are large enough. */
enum status comms_call_check_placed(const struct comms_op *op, uint32_t size,
                                    const struct comms_cell_place *place, struct op_terms *terms,
                                    struct comms_buffers *buffers, struct error *error) COMM_MUST_USE;

/*
 * Checks one rank's request by itself: INVALID_ARGUMENT, UNSUPPORTED, LIMIT, NO_MEMORY. On success the other
 * ranks must agree with *terms, and *buffers holds references and memory, to be released by
 * comms_buffers_release.
 */
enum status comms_call_check(const struct comms_op *op, uint32_t rank, uint32_t size, struct op_terms *terms,
                             struct comms_buffers *buffers, struct error *error) COMM_MUST_USE;
void comms_buffers_release(struct comms_buffers *buffers);
/* Releases and frees allocated buffers, and their charge. Null is accepted. */
void comms_buffers_free(struct comms_buffers *buffers);

#endif
