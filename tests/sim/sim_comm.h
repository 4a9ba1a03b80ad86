#ifndef TESTS_SIM_SIM_COMM_H
#define TESTS_SIM_SIM_COMM_H

#include <stdbool.h>
#include <stdint.h>

#include "tests/sim/cluster.h"

/*
 * Virtual clients: the ranks of one communicator, wherever they are, each with its own process and buffers,
 * that ask comms as sessions do. What they are told is checked against comms.h's promises (once, in order,
 * not within a call) and recorded.
 */
struct sim_comm;

struct sim_rank {
    struct sim_comm *comm;
    struct cluster_node *node;
    struct comms_client client;
    uint32_t rank;
    struct comms_member *member; /* null: refused, left, or its node is dead */
    bool calling;                /* comms is on the stack for this member */
    struct error refused;        /* STATUS_OK unless the join was refused at once */
    bool formed;                 /* told, whether well or not */
    struct error formed_result;
    uint64_t formed_ns;
    uint64_t posted_seq;
    uint64_t completed_seq;
    bool aborted;
    struct error abort_cause;
};

/*
 * One operation as all ranks post it. With layouts, blocks are of sizes up to `count`, drawn by layout_seed,
 * some of them empty, and lie in the buffers in any order, with gaps.
 */
struct sim_call {
    enum op_kind kind;
    enum dtype dtype;
    enum reduce reduce;
    uint64_t count; /* of the vector, or of each block */
    uint32_t root;
    bool in_place; /* where the operation has such a form */
    uint64_t timeout_ms;
    bool has_layouts; /* for kinds with blocks */
    uint64_t layout_seed;
    uint32_t bucket_ops, bucket_index;
    enum compression compression;
};

/* One rank's buffer of an operation: blocks by rank, or one vector (block_count 1). */
struct sim_buffer {
    bool used;
    uint64_t elements; /* of the whole buffer, gaps included */
    uint32_t block_count;
    uint64_t *counts; /* by block: counts, then displacements, as comms wants them */
    uint64_t *displacements;
    unsigned char *bytes;
    unsigned char *original; /* as it was when posted */
    struct memory *memory, *layout_memory;
    uint64_t offset_bytes; /* of the buffer in `memory`; > 0 only in place */
};

/* One rank's part of it. */
struct sim_part {
    bool posted;
    struct error refused; /* by comms_submit; STATUS_OK otherwise */
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
    uint64_t posted_ns;     /* the first part */
    struct sim_part *parts; /* by rank */
    struct sim_op *next;    /* of the communicator, in the order of seq */
};

struct sim_comm {
    struct cluster *cluster;
    char name[64];
    uint32_t size;
    struct sim_rank *ranks;
    uint64_t op_count;
    struct sim_op *ops; /* not freed yet */
    uint64_t message_count;
    struct sim_message *messages; /* sim_messages.h */
};

struct sim_options {
    uint64_t form_timeout_ms;
    uint64_t op_timeout_ms;
    uint64_t slice_bytes;
    uid_t uid;
    const char *algorithms; /* null: what is best */
};

/* node_of_rank: of the cluster, by rank; copied. No rank has joined yet. options may be null. */
struct sim_comm *sim_comm_new(struct cluster *cluster, const char *name, uint32_t size,
                              const uint32_t *node_of_rank);
/* One rank joins, as part of a communicator of another size, uid, ... when options or size say so; 0 and
 * null: the usual. */
void sim_comm_join(struct sim_comm *comm, uint32_t rank, uint32_t size, const struct sim_options *options);
/* All ranks, in random order and at random times. */
void sim_comm_join_all(struct sim_comm *comm, const struct sim_options *options);
/* Every joined rank was told, one way or the other. */
bool sim_comm_formed(const void *comm);
/* sim_comm_join_all, and every rank formed well, within `span_ns`. */
void sim_comm_form(struct sim_comm *comm, const struct sim_options *options, uint64_t span_ns);

/* Starts an operation and posts one rank's part of it, or all ranks' at random times. */
struct sim_op *sim_op_new(struct sim_comm *comm, const struct sim_call *call);
void sim_op_post(struct sim_op *op, uint32_t rank);
struct sim_op *sim_comm_post_all(struct sim_comm *comm, const struct sim_call *call);
/* Every posted part is done. */
bool sim_op_done(const void *op);
/* Whether every posted part of every operation of the communicator is done, and every message. */
bool sim_comm_idle(const void *comm);
/* Runs until it is done well on every rank, and checks the outputs. */
void sim_op_finish(struct sim_op *op, uint64_t span_ns);
/* What those ranks have for which it ended well: right, and the same bits. What is only read is untouched,
 * and what lies between blocks, also where it failed. */
void sim_op_check(const struct sim_op *op);
/* Its parts must be done. */
void sim_op_free(struct sim_op *op);

/* sim_comm_post_all, sim_op_finish and sim_op_free. */
void sim_comm_run(struct sim_comm *comm, const struct sim_call *call);

void sim_comm_leave(struct sim_comm *comm, uint32_t rank, enum comms_leave how);
/* The processes on this node die with it: after cluster_kill, before cluster_bury. */
void sim_comm_forget_node(struct sim_comm *comm, uint32_t node);
/* Whether anybody else refers to a buffer of its operations and messages. */
bool sim_comm_memory_is_used(const struct sim_comm *comm);
/* Leaves with every member, and frees operations and all. */
void sim_comm_free(struct sim_comm *comm);

#endif
