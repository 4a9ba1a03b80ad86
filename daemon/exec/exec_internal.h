#ifndef DAEMON_EXEC_EXEC_INTERNAL_H
#define DAEMON_EXEC_EXEC_INTERNAL_H

#include <stdatomic.h>

#include "daemon/base/fair.h"
#include "daemon/base/mailbox.h"
#include "daemon/base/pacer.h"
#include "daemon/base/ranges.h"
#include "daemon/base/spending.h"
#include "daemon/base/table.h"
#include "daemon/base/trace.h"
#include "daemon/coll/slice.h"
#include "daemon/exec/exec.h"
#include "daemon/exec/exec_map.h"
#include "daemon/exec/vector.h"
#include "daemon/gpu/queue.h"
#include "daemon/host/reduce.h"
#include "daemon/net/stream_reader.h"
#include "proto/data_header.h"

/* What the files of daemon/exec share. */

#define EXEC_AGREEMENT_LANE EXEC_LANES_MAX /* its index: the barrier beside the data */
#define EXEC_AGREEMENT_SLICE UINT32_MAX    /* its messages' slice */
/* Sends of a lane that are not acknowledged, before the next message of a transfer. */
#define EXEC_SENDS_AHEAD_MAX 64
#define EXEC_SEND_PIECES_MAX 16 /* a message of more pieces is gathered first */
/* What a communicator does on the host in one turn, before others have theirs: about 100 us. Each place of a
 * piece costs something beside its bytes. */
#define EXEC_TURN_BYTES (UINT64_C(1) << 20)
#define EXEC_PLACE_BYTES 128u
#define EXEC_NODES_SEVERAL UINT32_MAX
/* Users share a thread while each of them had a turn so recently. */
#define EXEC_SHARED_NS (10 * TIME_MS)
/* What a step of a stage does on a thread that users share, before another thread is lent the rest. Tests
 * have less. */
#define EXEC_LEND_AFTER_BYTES (UINT64_C(128) << 10)
/* Of a lane's tables of where a slice lies: kept between operations, and part of what a communicator is
 * charged for. */
#define EXEC_TABLES_KEPT_BYTES 2048u
#define EXEC_SPARES_MAX 32 /* blocks of memory of slices that are kept for the next operation */
#define EXEC_SPARES_MAX_BYTES ((size_t)16 << 20)
/* Of this node's buffers: the host's, and those of GPUs that reach each other's memory. */
#define EXEC_CLIQUE_HOST 0
#define EXEC_CLIQUES_MAX (1 + GPU_DEVICES_MAX)

struct exec_device;
struct exec_spread;
struct exec_shared;

/* Slices of an operation within one node, taken by whoever of the threads is free. */
struct exec_claims {
    _Atomic uint64_t next;
    _Atomic uint64_t left; /* not done yet */
};

/* One operation, queued or running. */
struct exec_op {
    struct exec_op *next;
    struct exec_call call;
    struct exec_rank *ranks;
    uint64_t *part_counts;
    bool begun;
    bool is_staged; /* its slices come from GPUs and go to them */
    bool cancelled;
    bool disputed; /* the owner was told that another node's call differs */
    struct error result;

    /* From its beginning on. */
    const struct coll_algorithm *algorithm;
    enum op_kind schedule_kind; /* the terms'; a scan of ranks that are not contiguous gathers */
    struct coll_stage_op stage; /* what plans are made of */
    uint64_t element_bytes;
    uint64_t divisor; /* of the result: avg; otherwise 0 */
    bool blocks_are_equal;
    bool streams;        /* it touches more than the caches hold */
    uint64_t own_slices; /* of all slices, this exec's: all of them without rails */
    uint64_t next_slice;
    uint64_t slices_done;
    struct exec_spread *spread; /* it runs on several rails */
    struct exec_claims *claims; /* and on one node alone: slices are taken by whoever is free */
    bool holds_slice;           /* of a rail: claimed before the operation was looked at */
    uint64_t held_slice;
    bool agrees;   /* the agreement lane has to come to its end too */
    bool agreeing; /* it has begun */
    bool agreed;
    uint32_t root_node;
    uint64_t local_slices; /* all_to_all: of what stays on this node, beside the slices of the others */
    uint64_t local_slices_done;
    /* Alone, or of these: the one under way, from turn to turn. */
    bool is_within_slice;
    uint64_t slice;
    struct coll_stage_cursor cursor;
    uint64_t unacknowledged;              /* sends whose payload the network still holds */
    uint64_t holes_seen;                  /* guard_hole_count when its memories were last looked at */
    struct exec_device *device;           /* what GPUs and streams have to do with it; null: nothing */
    struct coll_stage_rank stage_ranks[]; /* call.rank_count × terms.bucket_ops */
};

enum lane_state {
    LANE_IDLE,
    LANE_MEASURE,   /* what goes to whom is counted, in as many turns as it takes */
    LANE_LAY_OUT,   /* likewise, where the vectors lie */
    LANE_STAGE_IN,  /* pieces of the stage plan, in as many turns as they take */
    LANE_DEVICE_IN, /* a GPU brings the slice */
    LANE_COMBINE,   /* pieces */
    LANE_ROUNDS,    /* rounds under way */
    LANE_DRAIN,     /* rounds done; buffers are written to once the network holds none of it any more */
    LANE_STAGE_OUT, /* pieces */
    LANE_DEVICE_OUT /* a GPU takes it */
};

/* The rest of one step of a stage, while another thread carries it out (loan.c). Zero at first. */
struct exec_loan {
    struct mail mail; /* there, and back */
    struct fair_entry turn;
    struct exec_lane *lane;
    const struct exec_op *op;
    enum coll_stage_step step;
    uint64_t slice;
    struct coll_stage_cursor cursor;
    struct exec *borrower;
    bool is_out;
    bool is_done; /* it came back, and nobody has asked yet */
};

/* The rounds of one slice. */
struct exec_lane {
    struct exec_comm *comm;
    uint32_t index;
    enum lane_state state;
    const struct coll_algorithm *algorithm;
    struct coll_call call;
    uint64_t slice;
    uint64_t offset_elements; /* of the slice in the operation's vector, where there are no blocks */
    uint32_t round;
    uint32_t round_count;
    struct coll_round transfers;
    uint32_t transfers_capacity;
    uint32_t sends_done;
    uint64_t sent_elements; /* of the send under way, in messages that the network has */
    uint32_t receives_done;
    uint64_t received_elements; /* of the receive under way, in messages that are complete */
    bool prefix_begun;          /* scans: the prefix holds something */
    uint64_t unacknowledged;
    uint32_t unacknowledged_node;  /* all of these went to it, or EXEC_NODES_SEVERAL */
    bool staged;                   /* the slice comes from GPUs and goes to them */
    struct lane_device *device;    /* null: none ever did */
    struct exec_vector vectors[3]; /* by coll_space */
    struct exec_lent lent;         /* of COLL_WORK: what the only local rank's input still has */
    uint64_t table_bytes;          /* of all of these */
    unsigned char *memory;         /* for vectors that lie in no rank's buffer */
    size_t memory_bytes;
    unsigned char *encoded; /* compression: this node's part of the sum */
    uint64_t encoded_bytes, encoded_capacity_bytes;
    uint64_t *offsets;               /* node_count + 1 block offsets, then as many of what is sent */
    struct net_stream **streams;     /* outgoing, by node; opened on first use */
    struct stream_reader **sources;  /* incoming, by node: the one stream that may feed the lane */
    struct coll_stage_cursor cursor; /* of what the state goes through */
    struct exec_loan loan;
    enum coll_space space; /* LAY_OUT: whose vector */
    bool is_cut; /* a source ended within a payload: nothing more is taken, until the communicator ends */
};

struct exec_comm {
    struct exec *exec;
    struct exec_shared *shared; /* null without rails */
    uint32_t share_index; /* the rail that this is: slices with this number modulo share_count are its */
    uint32_t share_count;
    uint32_t rails; /* as bits: those of share_count that are used */
    bool rails_agreed;
    struct fair_entry turn; /* among exec->busy */
    uint32_t round;         /* the last one in which it was stepped */
    uint64_t comm_id;
    struct exec_map *shared_map;      /* which what is const below lies in */
    struct exec_comm_options options; /* the map's, but for a rail's callbacks */
    const uint32_t *peers;
    struct coll_map map;      /* arrays are the shared one's */
    struct exec_op *first_op; /* the first one runs */
    struct exec_op **last_op;
    uint32_t op_count;
    struct exec_lane lanes[EXEC_LANES_MAX + 1];
    struct exec_loan exchange_loan; /* of what an all_to_all exchanges within this node */
    uint64_t turn_left_bytes;       /* what its lanes may still do on the host before its next turn */
    uint64_t last_seq;              /* of the last operation that was begun */
    uint64_t queued_seq;            /* of the operation that was queued last */
    struct ranges cancelled;        /* at most EXEC_CANCELLED_MAX */
    bool cancelled_behind;          /* one behind the first is to be ended */
    bool failed;                    /* no op advances any more */
    bool aborted;
    struct error cause;
    struct exec_comm *cut_prev, *cut_next; /* of exec->cut */
    uint64_t cut_ns; /* a stream ended within a message: the communicator fails then; 0: none did */
    uint32_t cut_node;
    bool resuming; /* receive_resume walks the list */
    bool resume_again;
    struct stream_group streams; /* that other nodes send data on */
    struct gpu_queue **queues;   /* GPU_DEVICES_MAX, made on first use; null until then */
    UT_hash_handle hh;
};

struct exec_spare {
    unsigned char *memory;
    size_t size_bytes;
};

struct exec {
    struct net *net;
    struct rails *rails; /* other threads that share the work of this one; null without */
    exec_wake_function *wake;
    void *wake_context;
    struct exec_comm *comms;
    struct fair busy; /* of these: with operations */
    struct spending spending;
    struct exec_user {
        const struct budget_account *account; /* compared, never looked into */
        uint64_t served_ns;
    } last_user, other_user; /* who had the last turn, and who had it last of all others */
    struct fair loans;       /* of other execs, to this one */
    uint32_t lent;           /* so far */
    uint64_t lend_after_bytes;
    uint32_t round;        /* in which all of these are stepped, some more than once */
    uint32_t unstepped;    /* of these, in this round */
    bool more;             /* another round is wanted */
    struct exec_comm *cut; /* communicators with a cut_ns, in its order */
    struct stream_readers readers;
    uint64_t now_ns; /* of the call under way: parked streams expire by it */
    struct exec_spare spares[EXEC_SPARES_MAX];
    uint32_t spare_count;
    size_t spare_bytes;
    struct gpu_devices *gpus;
    uint32_t cliques[GPU_DEVICES_MAX]; /* by GPU */
    uint32_t clique_count;
    struct exec_group *groups; /* of GPUs, for NCCL */
    struct pacer pacer;        /* of GPUs */
};

/* spread.c: one operation on several rails. */
enum spread_state { SPREAD_NOT, SPREAD_WAITS, SPREAD_BEGUN, SPREAD_FAILED };
/* It is measured. Called until it is not SPREAD_WAITS, which is while a rail has no connection yet. */
enum spread_state spread_begin(struct exec_comm *comm, struct exec_op *op, struct error *error);
/* Whether other rails are done with it; given up: also with its buffers. */
bool spread_is_done(const struct exec_op *op, bool given_up);
void spread_result(const struct exec_op *op, struct error *result);
/* The operation is over here; parts of it may still be on their way. */
void spread_release(struct exec_op *op);
/* Whether that rail has work of the operation left. */
bool spread_needs(const struct exec_op *op, uint32_t rail);
/* Takes the next slice of a local operation. False: there is none left. */
bool spread_claim(struct exec_op *op, uint64_t *slice);
void spread_claim_done(struct exec_comm *comm, struct exec_op *op);
enum status shared_new(struct exec_comm *comm, struct error *error) COMM_MUST_USE;
void shared_cancel(struct exec_comm *comm, uint64_t seq, uint64_t count, const struct error *cause);
void shared_abort(struct exec_comm *comm, const struct error *cause);
void shared_leave(struct exec_comm *comm);

/*
 * Which of share_count rails has a slice: the one of its number. Those of rails that are not used are the
 * others', in turn. What lane it goes through does not depend on them: another node may know earlier.
 */
static inline uint32_t slice_rail(const struct exec_comm *comm, uint64_t slice)
{
    uint32_t rail = (uint32_t)(slice % comm->share_count);
    if ((comm->rails >> rail & 1) != 0) {
        return rail;
    }
    uint32_t before = (uint32_t)(slice / comm->share_count % (uint32_t)__builtin_popcount(comm->rails));
    for (rail = 0; (comm->rails >> rail & 1) == 0 || before-- > 0; rail++) {
    }
    return rail;
}
/* Of so many slices, how many a rail has. */
uint64_t spread_slices(const struct exec_comm *comm, uint32_t rail, uint64_t slice_count);
/* The first slice that the exec has at `slice` or behind it; beyond slice_count when there is none. */
static inline uint64_t spread_next_slice(const struct exec_comm *comm, uint64_t slice, uint64_t slice_count)
{
    while (slice < slice_count && slice_rail(comm, slice) != comm->share_index) {
        slice++;
    }
    return slice;
}

/* All of so many, at most EXEC_RAILS_MAX. */
static inline uint32_t rails_of(uint32_t count)
{
    return (UINT32_C(1) << count) - 1;
}
static inline void comm_use_rails(struct exec_comm *comm, uint32_t rails, bool agreed)
{
    comm->rails = rails;
    comm->rails_agreed = agreed;
}

/* exec_comm.c */
void comm_free_now(struct exec_comm *comm);
/* A rail's share of a communicator. */
enum status comm_new_part(struct exec *exec, struct exec_map *map, const struct exec_comm_options *options,
                          uint32_t share_index, uint32_t share_count, struct exec_comm **out,
                          struct error *error) COMM_MUST_USE;
enum status comm_queue_op(struct exec_comm *comm, const struct exec_call *call, struct exec_op **out,
                          struct error *error) COMM_MUST_USE;
void exec_comm_fail(struct exec_comm *comm, const struct error *cause, uint64_t now_ns);
/* May free the communicator, if its operation was the last. Returns whether more can be done at once. */
bool exec_comm_step(struct exec_comm *comm, uint64_t now_ns);
/* It has an operation now. */
void exec_comm_set_busy(struct exec_comm *comm);
/* Whose turn it is to be stepped, or null. It stays among the busy ones, behind others. */
struct exec_comm *exec_comm_next(struct exec *exec);
void exec_comm_rest(struct exec_comm *comm);
void exec_wake(struct exec *exec);
/*
 * A message will never be whole: its stream was reset. A node that gives a communicator up says why in its
 * Abort, on another stream: it has STREAM_CUT_NS to come, so that all ranks get that cause. Then it fails.
 */
void exec_set_cut(struct exec_comm *comm, uint32_t node, uint64_t now_ns);
/* The communicator ends: nobody waits for the reason any more. */
void exec_forget_cut(struct exec_comm *comm);
bool exec_is_cancelled(const struct exec_comm *comm, uint64_t seq);

/* local.c: slices that need no other node, for one turn. */
/* Of a communicator on one node. Returns whether more can be done at once. */
bool local_step(struct exec_comm *comm, uint64_t now_ns);
/* Of what an all_to_all exchanges within this node, with what the lanes leave of the turn. */
void local_exchange(struct exec_comm *comm, uint64_t now_ns);

/*
 * loan.c: where users share the home's thread, long steps of stages are carried out by threads that have
 * nothing else. A thread that computes all the time is made to wait for its next turn by the system's
 * scheduler; one that mostly waits goes first when it is woken, and so do the operations of the others.
 */
/* That user's turn begins. */
void exec_serve(struct exec *exec, const struct budget_account *account, uint64_t now_ns);
/* Whether other users had turns a moment ago, and threads for long work are there. */
bool exec_lends(const struct exec_comm *comm);
/*
 * Goes on with that step of the slice's plan, as stage_run, or finds that a loan of it is over. Not over:
 * the communicator is woken when it can go on.
 */
bool loan_run_stage(struct exec_loan *loan, struct exec_lane *lane, enum coll_stage_step step, uint64_t slice,
                    struct coll_stage_cursor *cursor, uint64_t *left_bytes) COMM_MUST_USE;
/* Whether other threads are done with the first operation's buffers. */
bool loans_are_back(const struct exec_comm *comm);
/* The borrower's thread: one turn of them. Returns whether there are more. */
bool loans_run(struct exec *exec);

/* op.c: what an operation is made of, once it begins. */
enum status op_new(struct exec_comm *comm, const struct exec_call *call, struct exec_op **out,
                   struct error *error) COMM_MUST_USE;
void op_free(struct exec_op *op);
/* What of it is a pure function of the call: root, size, slices. */
enum status op_measure(const struct exec_comm *comm, struct exec_op *op, struct error *error) COMM_MUST_USE;
/* Chooses algorithm and slices. It is measured. */
void op_begin(const struct exec_comm *comm, struct exec_op *op);
/* INVALID_ARGUMENT: a client's memory that the operation uses has broken (memory_check). */
enum status op_check_memories(const struct exec_comm *comm, struct exec_op *op,
                              struct error *error) COMM_MUST_USE;

/* lane_memory.c: of slices, what is in no rank's buffer. */
unsigned char *lane_memory(const struct exec_lane *lane);
/* At least so much; what it held is gone. LIMIT: its user's operations work in as much as they may;
 * NO_MEMORY. */
enum status lane_reserve(struct exec_lane *lane, uint64_t wanted_bytes, struct error *error) COMM_MUST_USE;
/* Empties the vector, one of the lane's, with room for so many pieces. LIMIT, NO_MEMORY: likewise. */
enum status lane_table(struct exec_lane *lane, struct exec_vector *vector, uint64_t element_bytes,
                       uint32_t pieces, struct error *error) COMM_MUST_USE;
/* Compression: for this node's part of the sum; what it held is gone. LIMIT, NO_MEMORY: likewise. */
enum status lane_reserve_encoded(struct exec_lane *lane, uint64_t bytes, struct error *error) COMM_MUST_USE;
/* Nothing of it is on its way any more. */
void lane_return_memory(struct exec_lane *lane);
void exec_free_spares(struct exec *exec);

/* slice_layout.c: where a slice's vectors lie. */
/* Room for them, and for their tables; the slice is measured. */
enum status lane_prepare(struct exec_lane *lane, struct exec_op *op, struct error *error) COMM_MUST_USE;
/* From the lane's cursor on. Returns whether it is over. */
bool lane_lay_out(struct exec_lane *lane, const struct exec_op *op) COMM_MUST_USE;

/* device.c: operations with buffers on GPUs, or that wait for streams. */
enum device_step {
    DEVICE_STEP_GO,
    DEVICE_STEP_WAITS,
    DEVICE_STEP_ENDED, /* the whole operation */
    DEVICE_STEP_FAILED
};
bool device_is_needed(const struct exec_call *call);
enum status device_new(const struct exec_comm *comm, struct exec_op *op, struct error *error) COMM_MUST_USE;
void device_release(struct exec_comm *comm, struct exec_op *op);
/* GO: the operation may begin, its ranks' buffers are the host's. */
enum device_step device_before(struct exec_comm *comm, struct exec_op *op, uint64_t now_ns,
                               struct error *error);
/* After its end. GO: the outputs are where they belong. */
enum device_step device_after(struct exec_comm *comm, struct exec_op *op, uint64_t now_ns,
                              struct error *error);
/* Given up: whether GPUs have let go of its buffers. */
bool device_is_idle(struct exec_comm *comm, struct exec_op *op, uint64_t now_ns);
/* What it waits for; false when that has nothing to do with GPUs. */
bool device_describe(const struct exec_comm *comm, const struct exec_op *op, char *text, size_t size);
enum status device_queue(struct exec_comm *comm, uint32_t gpu, struct gpu_queue **out,
                         struct error *error) COMM_MUST_USE;
void device_free_queues(struct exec_comm *comm);

/* Whether the one's input and the other's output share bytes. */
bool device_overlaps(const struct exec_rank *reader, const struct exec_rank *writer);

/* gpu_direct.c */
/* All buffers are on GPUs, and a kernel of any of these can work on all. */
bool device_reach_each_other(const struct exec_comm *comm, const struct exec_op *op);
/* False: some overlap otherwise than in place. */
bool device_buffers_are_apart(const struct exec_op *op);
/* Which GPUs buffers are on. False: some are on the host, or they are not apart. */
bool device_buffers_serve(const struct exec_op *op, bool used[GPU_DEVICES_MAX]);
/* The GPUs that ranks of the operation are on, by their first rank. Returns how many. */
uint32_t device_gpus(const struct exec_op *op, uint32_t gpus[GPU_DEVICES_MAX]);
bool gpu_direct_serves(const struct exec_comm *comm, const struct exec_op *op);
enum status gpu_direct_put(struct exec_comm *comm, struct exec_op *op, struct error *error) COMM_MUST_USE;

/* gpu_nccl.c: by NCCL. *begun: false at first. GO: all of it was put in the queues. */
bool gpu_nccl_serves(const struct exec_comm *comm, const struct exec_op *op);
enum device_step gpu_nccl_step(struct exec_comm *comm, struct exec_op *op, bool *begun, struct error *error);
/* Given up: whether its calls, if there are any, have come to their end. Not patient: they are ended. */
bool gpu_nccl_let_go(struct exec *exec, const struct exec_op *op, bool patient);
/* Given up: ends what NCCL has on the GPUs. */
void gpu_nccl_abort(struct exec *exec, const struct exec_op *op);
void exec_free_groups(struct exec *exec);

/* gpu_staging.c: slices from and to buffers of which some are on GPUs. Functions without a result keep the
 * first failure for lane_device_end. */
void exec_find_cliques(struct exec *exec);
bool lane_device_serves(const struct exec_comm *comm, const struct exec_op *op);
/* Before anything else of a slice. */
enum status lane_device_begin(struct exec_lane *lane, const struct exec_op *op,
                              struct error *error) COMM_MUST_USE;
/* Pinned memory for the lane's vectors, at least so large; what it held is gone. */
enum status lane_device_reserve(struct exec_lane *lane, uint64_t bytes, struct error *error) COMM_MUST_USE;
unsigned char *lane_device_memory(const struct exec_lane *lane);
void lane_device_release(struct exec_lane *lane);
/* Its pinned memory: no GPU is at it any more. */
void lane_device_return_memory(struct exec_lane *lane);
/* A piece of another domain than the host's. */
void lane_device_put(const struct exec_lane *lane, const struct exec_op *op,
                     const struct coll_stage_piece *piece);
/* Where the buffers of a rank are, by domain. */
uint32_t lane_device_domain(const struct exec *exec, const struct exec_rank *rank, bool on_host);
/* After what is put for a slice, in or out. */
enum status lane_device_end(struct exec_lane *lane, struct error *error) COMM_MUST_USE;
/* Whether it is done; *status: the GPU failed, and has let go. */
bool lane_device_reached(struct exec_lane *lane, uint64_t now_ns, enum status *status, struct error *error);
/* Given up: whether GPUs have let go of all slices. */
bool lanes_are_off_devices(struct exec_comm *comm, uint64_t now_ns);

/* lane.c */
/* The lane in a trace. */
static inline uint32_t lane_row(const struct exec_lane *lane)
{
    return TRACE_LANE_ROW(lane->comm->share_index,
                          lane->index == EXEC_AGREEMENT_LANE ? TRACE_LANE_AGREEMENT : lane->index);
}
enum status lane_start(struct exec_lane *lane, struct exec_op *op, uint64_t slice,
                       struct error *error) COMM_MUST_USE;
enum status lane_start_agreement(struct exec_lane *lane, struct exec_op *op,
                                 struct error *error) COMM_MUST_USE;
/* After a receive, at the start, and in each of its communicator's turns: goes on as far as it can. */
void lane_advance(struct exec_lane *lane, uint64_t now_ns);
/* A slice of which nothing is taken or sent yet. */
static inline bool lane_comes_in(const struct exec_lane *lane)
{
    return lane->state == LANE_MEASURE || lane->state == LANE_LAY_OUT || lane->state == LANE_STAGE_IN ||
           lane->state == LANE_DEVICE_IN || lane->state == LANE_COMBINE;
}
/* The round has sends that the network does not have yet. */
static inline bool lane_is_sending(const struct exec_lane *lane)
{
    return lane->state == LANE_ROUNDS && lane->sends_done < lane->transfers.send_count;
}
/* The next receive that the lane waits for; null when none. */
const struct coll_transfer *lane_next_receive(const struct exec_lane *lane);
/* Elements of the next message of that receive. */
uint64_t lane_message_elements(const struct exec_lane *lane, const struct coll_transfer *receive);
/* A message of the next receive is complete. */
void lane_received(struct exec_lane *lane, uint64_t elements);
/* The lane whose message the header is, on any stream. */
struct exec_lane *lane_of_header(struct exec_comm *comm, const struct data_header *header);
/* Whether the payload behind that header is what the lane takes now from that node. */
bool lane_takes(const struct exec_lane *lane, uint32_t node, const struct data_header *header);
void lane_stop(struct exec_lane *lane);
void lane_reset_streams(struct exec_lane *lane, bool give_up);
void lane_release(struct exec_lane *lane);
struct exec_op *lane_op(const struct exec_lane *lane);

/*
 * stage_run.c: carries out one step of a slice's plan from the cursor on; staged, GPUs' pieces are put in
 * their queues. What it costs is taken off left_bytes; none left: the rest is for another turn. Returns
 * whether the step is over.
 */
bool stage_run(struct exec_lane *lane, const struct exec_op *op, enum coll_stage_step step, uint64_t slice,
               struct coll_stage_cursor *cursor, uint64_t *left_bytes) COMM_MUST_USE;
/* Where the place lies. */
unsigned char *stage_at(const struct exec_lane *lane, const struct exec_op *op,
                        const struct coll_stage_place *place);
/* The piece as a reduction, whose arrays are the caller's. */
struct stage_buffers {
    const void *inputs[HOST_REDUCE_BUFFERS_MAX];
    void *outputs[HOST_REDUCE_BUFFERS_MAX];
    double factors[HOST_REDUCE_BUFFERS_MAX];
};
struct host_reduction stage_reduction(const struct exec_lane *lane, const struct exec_op *op,
                                      const struct coll_stage_piece *piece, struct stage_buffers *buffers);

/* lane_send.c */
/* The lane's stream to that node, opened on first use. LIMIT, NODE_LOST. */
enum status lane_stream(struct exec_lane *lane, uint32_t node, struct net_stream **out,
                        struct error *error) COMM_MUST_USE;
/* The next message of the round's first send that is not done. What it costs is taken off the turn. */
enum status lane_send(struct exec_lane *lane, struct error *error) COMM_MUST_USE;
/* Of one message: a larger transfer goes in several, of which each is copied, if at all, within one turn. */
static inline uint64_t lane_message_max_elements(const struct exec_lane *lane)
{
    return DATA_MESSAGE_BYTES / lane_op(lane)->element_bytes;
}
/* Memory to send from, its user's; gone once sent, or when sending fails. LIMIT, NO_MEMORY. */
struct lane_copy;
enum status lane_copy_new(struct exec_lane *lane, uint64_t bytes, struct lane_copy **out,
                          struct error *error) COMM_MUST_USE;
unsigned char *lane_copy_bytes(struct lane_copy *copy);
enum status lane_send_copy(struct exec_lane *lane, uint32_t node, struct lane_copy *copy,
                           uint64_t payload_bytes, struct error *error) COMM_MUST_USE;

/* compressed.c: all-reduces whose payloads are encoded on the way. */
bool compressed_applies(const struct exec_lane *lane, const struct exec_op *op);
enum status compressed_begin_round(struct exec_lane *lane, struct error *error) COMM_MUST_USE;
enum status compressed_send(struct exec_lane *lane, const struct coll_transfer *transfer,
                            struct error *error) COMM_MUST_USE;
/* The most that a message of the transfer may have. */
uint64_t compressed_max_bytes(const struct exec_lane *lane, const struct coll_transfer *transfer);
/* A whole payload. */
enum status compressed_take(struct exec_lane *lane, const struct coll_transfer *receive,
                            const unsigned char *payload, uint64_t payload_bytes,
                            struct error *error) COMM_MUST_USE;

/* receive.c */
extern const struct stream_reader_kind data_reader_kind;
void receive_resume(struct exec_comm *comm);
/* Nothing is received for the operation any more. */
void receive_drop(struct exec_comm *comm, uint64_t seq, uint64_t count);

#endif
