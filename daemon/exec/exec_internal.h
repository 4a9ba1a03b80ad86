#ifndef DAEMON_EXEC_EXEC_INTERNAL_H
#define DAEMON_EXEC_EXEC_INTERNAL_H

#include <uthash.h>

#include "daemon/coll/registry.h"
#include "daemon/coll/slice.h"
#include "daemon/exec/exec.h"
#include "proto/data_header.h"

/* What the files of daemon/exec share. */

struct exec_incoming;

/* One operation, queued or running. */
struct exec_op {
    struct exec_op *next;
    struct exec_call call;
    struct exec_rank *ranks;
    const struct coll_algorithm *algorithm;
    uint64_t element_bytes;
    uint64_t slice_count;
    uint64_t next_slice;
    uint64_t slices_done;
    uint64_t unacknowledged; /* sends whose payload the network still holds */
    struct error result;
};

enum lane_state {
    LANE_IDLE,
    LANE_ROUNDS, /* rounds under way */
    LANE_DRAIN   /* rounds done; the output is divided in place once the network holds none of it any more */
};

/* The rounds of one slice. */
struct exec_lane {
    struct exec_comm *comm;
    enum lane_state state;
    uint64_t slice;
    uint64_t offset_elements;
    uint64_t count_elements;
    uint32_t round;
    uint32_t round_count;
    struct coll_round transfers;
    uint32_t receives_done;
    uint64_t unacknowledged;
    struct net_stream **streams; /* outgoing, by node; opened on first use */
};

struct exec_comm {
    struct exec *exec;
    uint64_t comm_id;
    struct exec_comm_options options;
    uint32_t *peers;
    struct exec_op *first_op; /* the first one runs */
    struct exec_op **last_op;
    uint32_t op_count;
    bool running;
    struct exec_lane lanes[EXEC_LANES_MAX];
    struct coll_transfer *transfer_space; /* 2 × (node_count - 1) for each lane */
    uint64_t last_seq;                    /* of the last operation that was started */
    bool failed;                          /* no op advances any more */
    bool aborted;
    struct error cause;
    bool resuming; /* receive_resume walks the list */
    bool resume_again;
    struct exec_incoming *incoming; /* streams of this communicator */
    UT_hash_handle hh;
};

struct exec {
    struct net *net;
    exec_wake_function *wake;
    void *wake_context;
    struct exec_comm *comms;
    struct exec_incoming *parked;
    uint64_t now_ns; /* of the call under way: parked streams expire by it */
};

/* A stream that another node opened to us. */
struct exec_incoming {
    struct exec *exec;
    struct net_stream *stream;
    struct exec_comm *comm; /* null: parked */
    struct exec_incoming *previous, *next;
    uint32_t node; /* index in comm */
    uint8_t header_bytes[DATA_HEADER_BYTES];
    uint32_t header_have;
    bool in_message; /* the header is whole */
    struct data_header header;
    struct exec_lane *lane; /* once matched, until the payload is whole */
    uint64_t taken_bytes;
    uint8_t partial[DTYPE_SIZE_MAX_BYTES]; /* of an element that the last piece ended in */
    uint32_t partial_have;
    bool stalled;
    bool resetting;
    uint64_t expires_ns; /* while parked */
};

#define EXEC_PARKED_NS (60ull * 1000000000ull)

/* exec_comm.c */
void exec_comm_fail(struct exec_comm *comm, const struct error *cause, uint64_t now_ns);
bool exec_comm_step(struct exec_comm *comm, uint64_t now_ns);
void exec_wake(struct exec *exec);

/* lane.c */
enum status lane_start(struct exec_lane *lane, uint64_t slice, struct error *error) COMM_MUST_USE;
/* After a receive or at the start: goes through rounds as far as it can. */
void lane_advance(struct exec_lane *lane, uint64_t now_ns);
/* The next receive that the lane waits for; null when none. */
const struct coll_transfer *lane_next_receive(const struct exec_lane *lane);
void lane_reset_streams(struct exec_lane *lane, bool give_up);
struct exec_op *lane_op(const struct exec_lane *lane);

/* local_stage.c: pointers into the ranks' buffers, in elements of the operation. */
unsigned char *stage_work(const struct exec_op *op, uint64_t offset_elements);
void stage_in(const struct exec_op *op, bool at_root, uint64_t offset_elements, uint64_t count_elements);
void stage_out(const struct exec_op *op, uint64_t offset_elements, uint64_t count_elements);
void stage_local_only(const struct exec_op *op, uint64_t offset_elements, uint64_t count_elements);

/* receive.c */
void receive_register(struct exec *exec);
void receive_resume(struct exec_comm *comm);
void receive_claim_parked(struct exec_comm *comm);
void receive_detach(struct exec_comm *comm);
void receive_expire(struct exec *exec, uint64_t now_ns);

#endif
