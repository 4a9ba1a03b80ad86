#ifndef DAEMON_COMM_CALL_H
#define DAEMON_COMM_CALL_H

#include "daemon/comm/comms.h"
#include "daemon/comm/fence.h"

/* One rank's call of an operation: what all ranks must say alike, and its own buffers. Private to
 * daemon/comm.
 */

#define COMMS_CALL_TEXT_MAX_BYTES 160

/* What all ranks must agree on. What the kind has no use for is zero. */
struct comms_call {
    enum op_kind kind;
    enum dtype dtype;
    enum reduce reduce;
    uint64_t count_elements; /* 0 where layouts say it */
    uint32_t root_rank;
    bool has_layouts;
    uint64_t layout_digest; /* of counts that all ranks give */
    enum compression compression;
    uint32_t top_k_permille;
    bool has_residual;
    uint32_t bucket_ops;
    uint32_t bucket_index;
};

/* Of the rank at hand. Layouts are its own copies. */
struct comms_buffers {
    struct memory *input_memory, *output_memory, *residual_memory; /* references, where needed */
    uint64_t *input_layout, *output_layout; /* 2 × size: counts, displacements; null for none */
    struct comms_fences *fences;            /* null: none */
    struct exec_rank exec;
};

/*
 * Checks what one rank asks for, alone: INVALID_ARGUMENT, UNSUPPORTED, LIMIT, NO_MEMORY. On success *buffers
 * holds references and memory, for comms_buffers_release.
 */
enum status comms_call_check(const struct comms_op *op, uint32_t rank, uint32_t size, struct comms_call *call,
                             struct comms_buffers *buffers, struct error *error) COMM_MUST_USE;
void comms_buffers_release(struct comms_buffers *buffers);

bool comms_calls_agree(const struct comms_call *one, const struct comms_call *other);
/* A digest of what goes beyond a data header's own fields. */
uint32_t comms_call_terms_hash(const struct comms_call *call);
/* "all_reduce of 5 f32, sum". */
void comms_call_describe(const struct comms_call *call, char *out, size_t size);

#endif
