#ifndef DAEMON_REQ_CALL_H
#define DAEMON_REQ_CALL_H

#include "daemon/req/fence.h"
#include "daemon/req/req.h"

/* One rank's call of an operation: what all ranks must say alike, and its own buffers. Private to daemon/req.
 */

#define REQ_CALL_TEXT_MAX_BYTES 160

/* What all ranks must agree on. What the kind has no use for is zero. */
struct req_call {
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
struct req_buffers {
    struct dev_memory *input_memory, *output_memory, *residual_memory; /* references, where needed */
    uint64_t *input_layout, *output_layout; /* 2 × size: counts, displacements; null for none */
    struct req_fences *fences;              /* null: none */
    struct exec_rank exec;
};

/*
 * Checks what one rank asks for, alone: INVALID_ARGUMENT, UNSUPPORTED, LIMIT, NO_MEMORY. On success *buffers
 * holds references and memory, for req_buffers_release.
 */
enum status req_call_check(const struct req_op *op, uint32_t rank, uint32_t size, struct req_call *call,
                           struct req_buffers *buffers, struct error *error) COMM_MUST_USE;
void req_buffers_release(struct req_buffers *buffers);

bool req_calls_agree(const struct req_call *one, const struct req_call *other);
/* A digest of what goes beyond a data header's own fields. */
uint32_t req_call_detail(const struct req_call *call);
/* "all_reduce of 5 f32, sum". */
void req_call_describe(const struct req_call *call, char *out, size_t size);

#endif
