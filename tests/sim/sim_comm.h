#ifndef TESTS_SIM_SIM_COMM_H
#define TESTS_SIM_SIM_COMM_H

#include <stdbool.h>
#include <stdint.h>

#include "tests/sim/cluster.h"

/*
 * Virtual clients: the ranks of one communicator, on any nodes. Each has its own process and buffers, and
 * asks comms as sessions do. What comms tells them is recorded, and compared with the promises of comms.h
 * (once, in order, not within a call).
 */
struct sim_comm;

struct sim_rank {
    struct sim_comm *comm;
    struct cluster_node *node;
    struct comms_client client;
    uint32_t rank;
    struct comms_member *member; /* null: refused, or it left, or its node is dead */
    bool calling;                /* a call of comms for this member is on the stack */
    struct error refused;        /* STATUS_OK unless the join was refused at once */
    bool formed;                 /* the rank was told the result, good or bad */
    struct error formed_result;
    uint64_t formed_ns;
    uint64_t posted_seq;
    uint64_t completed_seq;
    bool aborted;
    struct error abort_cause;
};

/*
 * One operation as all ranks post it. With layouts, layout_seed draws the sizes of blocks, up to `count`;
 * some blocks are empty. They lie in the buffers in any order, with gaps.
 */
struct sim_call {
    enum op_kind kind;
    enum dtype dtype;
    enum reduce reduce;
    uint64_t count; /* elements of the vector, or of each block */
    uint32_t root;
    bool in_place; /* if the operation has such a form */
    uint64_t timeout_ms;
    bool has_layouts; /* only for kinds with blocks */
    uint64_t layout_seed;
    uint32_t bucket_ops, bucket_index;
    enum compression compression;
};

/* One rank's buffer of an operation: blocks by rank, or one vector (block_count 1). */
struct sim_buffer {
    bool used;
    uint64_t elements; /* of the whole buffer, gaps included */
    uint32_t block_count;
    uint64_t *counts; /* by block: the counts, then the displacements, as comms wants them */
    uint64_t *displacements;
    unsigned char *bytes;
    unsigned char *original; /* the contents when it was posted */
    struct memory *memory, *layout_memory;
    uint64_t offset_bytes; /* place of the buffer in `memory`; more than 0 only in place */
};

/* One rank's part of an operation. */
struct sim_part {
    bool posted;
    struct error refused; /* why comms_submit refused it; STATUS_OK if it did not */
    bool done;
    struct error result;
    uint64_t done_ns;
    struct sim_buffer input, output;
    bool in_place; /* the buffers share memory */
    float *residual;
    struct memory *residual_memory;
};

struct sim_op {
    struct sim_comm *comm;
    struct sim_call call;
    uint64_t seq;
    uint64_t posted_ns;     /* when the first part was posted */
    struct sim_part *parts; /* by rank */
    struct sim_op *next;    /* in the communicator's list, in the order of seq */
};

struct sim_comm {
    struct cluster *cluster;
    char name[64];
    uint32_t size;
    struct sim_rank *ranks;
    uint64_t op_count;
    struct sim_op *ops; /* operations that are not freed yet */
    uint64_t message_count;
    struct sim_message *messages; /* see sim_messages.h */
};

struct sim_options {
    uint64_t form_timeout_ms;
    uint64_t op_timeout_ms;
    uint64_t slice_bytes;
    uid_t uid;
    const char *algorithms; /* null: the best one */
};

/* Makes a communicator that no rank has joined yet. node_of_rank: node of the cluster by rank; it is
 * copied. */
struct sim_comm *sim_comm_new(struct cluster *cluster, const char *name, uint32_t size,
                              const uint32_t *node_of_rank);
/* Lets one rank join. `size` and `options` can give it a communicator of another size, uid and so on. 0
 * and null mean the usual values. */
void sim_comm_join(struct sim_comm *comm, uint32_t rank, uint32_t size, const struct sim_options *options);
/* Lets all ranks join, in random order and at random times. */
void sim_comm_join_all(struct sim_comm *comm, const struct sim_options *options);
/* Whether every rank that joined was told the result. */
bool sim_comm_formed(const void *comm);
/* Calls sim_comm_join_all. Every rank must form well within `span_ns`. */
void sim_comm_form(struct sim_comm *comm, const struct sim_options *options, uint64_t span_ns);

/* Starts an operation. Then posts one rank's part of it, or all ranks' parts at random times. */
struct sim_op *sim_op_new(struct sim_comm *comm, const struct sim_call *call);
void sim_op_post(struct sim_op *op, uint32_t rank);
struct sim_op *sim_comm_post_all(struct sim_comm *comm, const struct sim_call *call);
/* Whether every posted part is done. */
bool sim_op_done(const void *op);
/* Whether every member was told that the communicator has ended. */
bool sim_comm_aborted(const void *context);
/* Whether every posted part of every operation of the communicator is done, and every message, too. */
bool sim_comm_idle(const void *comm);
/* Runs until every rank is done well, and checks the outputs. */
void sim_op_finish(struct sim_op *op, uint64_t span_ns);
/* Checks the outputs of the ranks for which the operation ended well: they are right, and have the same
 * bits. Also where it failed, inputs and gaps between blocks must be unchanged. */
void sim_op_check(const struct sim_op *op);
/* Frees an operation. All of its parts must be done. */
void sim_op_free(struct sim_op *op);

/* Runs sim_comm_post_all, sim_op_finish and sim_op_free. */
void sim_comm_run(struct sim_comm *comm, const struct sim_call *call);

void sim_comm_leave(struct sim_comm *comm, uint32_t rank, enum comms_leave how);
/* The processes on this node die with it. Call it after cluster_kill and before cluster_bury. */
void sim_comm_forget_node(struct sim_comm *comm, uint32_t node);
/* Whether anybody else still refers to a buffer of its operations or messages. */
bool sim_comm_memory_is_used(const struct sim_comm *comm);
/* Lets every member leave, and frees everything. */
void sim_comm_free(struct sim_comm *comm);

/* Whether all ranks that are left have been told that the communicator failed, or that it does not form.
 * context: a struct sim_comm. */
bool sim_comm_all_told(const void *context);
/* Handlers for ranks of a next generation, which runs no operation and must not fail. */
void sim_next_completed(void *context, struct comms_member *member, const struct comms_completion *completion,
                        uint64_t now_ns);
void sim_next_aborted(void *context, struct comms_member *member, const struct error *cause, uint64_t now_ns);

#endif
