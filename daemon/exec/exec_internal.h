#ifndef DAEMON_EXEC_EXEC_INTERNAL_H
#define DAEMON_EXEC_EXEC_INTERNAL_H

#include <stdatomic.h>

#include "daemon/base/fair.h"
#include "daemon/base/mailbox.h"
#include "daemon/base/pacer.h"
#include "daemon/base/ranges.h"
#include "daemon/base/rounds.h"
#include "daemon/base/spending.h"
#include "daemon/base/table.h"
#include "daemon/base/trace.h"
#include "daemon/coll/slice.h"
#include "daemon/exec/exec.h"
#include "daemon/exec/vector.h"
#include "daemon/gpu/groups.h"
#include "daemon/gpu/queue.h"
#include "daemon/host/reduce.h"
#include "daemon/net/stream_reader.h"
#include "proto/data_header.h"

/* What the files of daemon/exec share. */

#define EXEC_GENERATION 1 /* in headers: constant, as each incarnation of a communicator has its own id */
#define EXEC_AGREEMENT_SLICE UINT32_MAX /* slice number in messages of the barrier beside the data */
/* Operations whose data are done here, and on which the nodes still agree, while later ones run. */
#define EXEC_CLOSING_MAX 15u
/* Unacknowledged sends of a lane at which it delays the next message of a transfer. */
#define EXEC_SENDS_AHEAD_MAX 64
/* Transfers of a slice from EXEC_BULK_LEAST_BYTES on may use the bulk link. Those from
 * EXEC_BULK_MEASURED_BYTES on are measured as well. */
#define EXEC_BULK_LEAST_BYTES (16u << 10)
#define EXEC_BULK_MEASURED_BYTES (64u << 10)
/* Data of an operation up to which its agreement may use the bulk link as well. */
#define EXEC_AGREEMENT_BULK_MAX_BYTES (256u << 10)
#define EXEC_AHEAD_MAX_BYTES (512u << 10) /* of the next operation's data: see stream_reader.h */
#define EXEC_GATHER_BYTES                                                                                    \
    (32u << 10)                 /* a message of several pieces up to this is put together on the stack */
#define EXEC_SEND_PIECES_MAX 16 /* a message of more pieces is first copied together */
/* Work of a communicator on the host in one turn, about 100 us. Each place of a piece costs EXEC_PLACE_BYTES
 * besides its bytes. */
#define EXEC_TURN_BYTES (UINT64_C(1) << 20)
#define EXEC_PLACE_BYTES 128u
/* Operations between nodes that a turn may take, as long as each costs little. */
#define EXEC_SMALL_OPS_MAX 16u
#define EXEC_SMALL_OP_BYTES (UINT64_C(64) << 10)
#define EXEC_SCATTER_BYTES 16u /* instead, for each place of a COLL_STAGE_SCATTER */
#define EXEC_NODES_SEVERAL UINT32_MAX
/* Users share a thread if each of them had a turn within this time. */
#define EXEC_SHARED_NS (10 * TIME_MS)
/* Work that a stage step does on a thread that users share, before it lends the rest to another thread. Tests
 * set less. */
#define EXEC_LEND_AFTER_BYTES (UINT64_C(128) << 10)
/* Part of a lane's layout tables that is kept between operations. The communicator's fixed charge includes
 * it. */
#define EXEC_TABLES_KEPT_BYTES 2048u
#define EXEC_SPARES_MAX 32 /* free blocks of slice memory, kept for the next operation */
#define EXEC_SPARES_MAX_BYTES ((size_t)16 << 20)
/* Cliques of this node's buffers: one of all host buffers, and one of each set of GPUs that reach each
 * other's memory. */
#define EXEC_CLIQUE_HOST 0
#define EXEC_CLIQUES_MAX (1 + GPU_DEVICES_MAX)

struct exec_device;
struct gpu_coding_lane;
struct tuner;
struct exec_spread;
struct exec_shared;

/* Slices of an operation within one node; each is taken by the next free thread. */
struct exec_claims {
    _Atomic uint64_t next;
    _Atomic uint64_t left; /* slices that are not done yet */
};

/* The barrier beside the data of one operation (exec_agreement.c). */
struct exec_agreement {
    bool begun, done;
    bool sent, received; /* the messages of the round */
    uint32_t round, round_count;
    uint32_t to, from; /* the round's nodes */
    uint32_t row;      /* in a trace */
};

/* One operation, queued, running, or closing. */
struct exec_op {
    struct exec_op *next;
    struct exec_call call;
    struct exec_rank *ranks; /* those of the call, behind stage_ranks */
    bool begun;
    bool is_staged; /* its slices come from GPUs and go back to GPUs */
    bool cancelled;
    bool disputed; /* the owner was notified of a node whose call differs */
    struct error result;

    /* Set when the operation begins. */
    const struct coll_algorithm *algorithm;
    enum op_kind schedule_kind; /* that of the terms, but a scan of ranks that are not contiguous gathers */
    struct coll_stage_op stage; /* input to the stage plans */
    uint64_t divisor;           /* avg divides the result by it; otherwise 0 */
    bool blocks_are_equal;
    bool streams;        /* it touches more memory than the caches hold */
    uint64_t own_slices; /* number of slices of this exec; without rails, of all */
    uint64_t next_slice;
    uint64_t slices_done;
    struct exec_spread *spread; /* set if it runs on several rails */
    struct exec_claims *claims; /* set if also on one node: any thread takes slices */
    bool holds_slice;           /* on a rail: claimed before the operation was queued */
    uint64_t held_slice;
    bool agrees; /* it ends only after its agreement */
    struct exec_agreement agreement;
    uint32_t root_node;
    uint64_t local_slices; /* all_to_all: of the data that stays on this node; not in own_slices */
    uint64_t local_slices_done;
    /* On one node, or of local_slices: the slice under way, kept from turn to turn. */
    bool is_within_slice;
    uint64_t slice;
    struct coll_stage_cursor cursor;
    uint64_t unacknowledged;              /* sends whose payload the network still uses */
    uint64_t holes_seen;                  /* guard_hole_count when its memories were last checked */
    struct exec_device *device;           /* its state on GPUs and streams; null: uses none */
    struct coll_stage_rank stage_ranks[]; /* call.rank_count × terms.bucket_ops */
};

enum lane_state {
    LANE_IDLE,
    LANE_MEASURE,     /* counts what goes to which rank; may take several turns */
    LANE_RESERVE,     /* for pinned memory, until a thread has pinned it */
    LANE_LAY_OUT,     /* finds where the vectors lie; may take several turns */
    LANE_STAGE_IN,    /* pieces of the stage plan; may take several turns */
    LANE_DEVICE_IN,   /* a GPU copies the slice in */
    LANE_COMBINE,     /* pieces */
    LANE_DEVICE_CODE, /* compression: a GPU encodes what the round sends */
    LANE_ROUNDS,      /* rounds under way */
    LANE_DRAIN, /* rounds are done; waits until the network no longer uses buffers that the slice's end writes
                 */
    LANE_STAGE_OUT, /* pieces */
    LANE_DEVICE_OUT /* a GPU copies the slice out */
};

/* The rest of one stage step while another thread executes it (loan.c). All zero at first. */
struct exec_loan {
    struct mail mail; /* to the borrower, and back */
    struct fair_entry turn;
    struct exec_lane *lane;
    const struct exec_op *op;
    enum coll_stage_step step;
    uint64_t slice;
    struct coll_stage_cursor cursor;
    struct exec *borrower;
    bool is_out;
    bool is_done; /* it came back, and the lane has not noticed yet */
};

/* How a lane's data for one node travel. All messages of a slice go the same way, so that they stay in order.
 */
enum lane_route {
    LANE_ROUTE_NOT, /* nothing of the slice was sent yet */
    LANE_ROUTE_SMALL,
    LANE_ROUTE_SMALL_BULK, /* on the bulk link, but not measured */
    LANE_ROUTE_NET,        /* large enough for the bulk link, but on the net's connection */
    LANE_ROUTE_BULK
};

static inline bool lane_route_is_bulk(enum lane_route route)
{
    return route == LANE_ROUTE_SMALL_BULK || route == LANE_ROUTE_BULK;
}

/* Large data that are under way, from the first one until none is: see net_bulk_began. */
struct lane_measure {
    bool is_on;
    bool on_bulk;
    uint32_t peer;
    uint64_t bytes;
};

/* The rounds of one slice. */
struct exec_lane {
    struct exec_comm *comm;
    uint32_t index;
    enum lane_state state;
    const struct coll_algorithm *algorithm;
    struct coll_call call;
    uint64_t slice;
    uint64_t offset_elements; /* of the slice in the operation's vector, if there are no blocks */
    uint32_t round;
    uint32_t round_count;
    struct coll_round transfers;
    uint32_t transfers_capacity;
    uint32_t sends_done;
    uint64_t sent_elements; /* of the current send, in messages that the network has accepted */
    uint32_t receives_done;
    uint64_t received_elements; /* of the current receive, in complete messages */
    bool prefix_begun;          /* scans: the prefix has a value */
    uint64_t unacknowledged;
    uint32_t unacknowledged_node;   /* where they went to, or EXEC_NODES_SEVERAL */
    bool staged;                    /* the slice comes from GPUs and goes back to GPUs */
    struct lane_device *device;     /* null until the first staged slice */
    struct gpu_coding_lane *coding; /* null until the first slice that a GPU encodes */
    struct exec_vector vectors[3];  /* by coll_space */
    struct exec_lent lent;          /* of COLL_WORK: values still in the only local rank's input */
    uint64_t table_bytes;           /* of the tables of vectors and lent */
    unsigned char *memory;          /* for vectors outside the ranks' buffers */
    size_t memory_bytes;
    unsigned char *encoded; /* compression: this node's part of the sum */
    uint64_t encoded_bytes, encoded_capacity_bytes;
    float *residual; /* compression: the slice's part in the lane's memory; null: in the rank's buffer */
    uint64_t residual_bytes;
    uint64_t *offsets; /* node_count + 1 block offsets, then as many offsets of what is sent */
    /* By node, and behind these node_count entries the same for bulk links: */
    struct net_stream **streams;     /* outgoing; opened on first use */
    struct stream_reader **sources;  /* incoming: the only streams that the lane takes data from */
    uint8_t *routes;                 /* by node: enum lane_route, of the present slice */
    struct lane_measure measure;     /* of bulk data */
    struct coll_stage_cursor cursor; /* progress within the state */
    struct exec_loan loan;
    enum coll_space space; /* LAY_OUT: the current vector */
    bool is_cut;           /* a source ended within a payload: the lane takes nothing more */
};

struct exec_comm {
    struct exec *exec;
    struct exec_shared *shared; /* null without rails */
    uint32_t share_index;       /* this rail: it has the slices with this number modulo share_count */
    uint32_t share_count;
    uint32_t rails; /* bits of the rails in use, out of share_count */
    bool rails_agreed;
    struct rounds_entry turn;
    struct comm_map *map;
    struct exec_comm_handler handler;
    struct exec_op *first_op; /* the first one runs */
    struct exec_op **last_op;
    /* At most EXEC_CLOSING_MAX operations before the first one, oldest first: their data are done. The oldest
     * waits for its agreement. */
    struct exec_op *closing;
    uint32_t closing_count;
    uint32_t op_count; /* of both lists */
    struct exec_lane lanes[EXEC_LANES_MAX];
    /* For agreements, by node, and behind them those on bulk links: outgoing, opened on first use; and the
     * only ones that are read. */
    struct net_stream **agreement_streams;
    struct stream_reader **agreement_sources;
    uint32_t agreement_rows;        /* rows in use, as bits */
    struct exec_loan exchange_loan; /* of an all_to_all's exchange within this node */
    uint64_t turn_left_bytes;       /* work that its lanes may still do on the host in this turn */
    uint64_t last_seq;              /* of the last operation that was begun */
    uint64_t queued_seq;            /* of the operation that was queued last */
    struct ranges cancelled;        /* at most EXEC_CANCELLED_MAX */
    bool cancelled_behind;          /* an operation behind the first must be ended */
    bool failed;                    /* no op advances any more */
    bool aborted;
    struct error cause;
    struct exec_comm *cut_prev, *cut_next; /* in exec->cut */
    uint64_t cut_ns; /* if a stream ended within a message: when the communicator fails; else 0 */
    uint32_t cut_node;
    bool resuming; /* receive_resume is walking the list */
    bool resume_again;
    struct stream_group streams; /* on which other nodes send data */
    struct gpu_release *release; /* ends waits of streams for clients; null until some may wait */
    struct gpu_queue **queues;   /* GPU_DEVICES_MAX entries, each null until its first use */
    struct gpu_group *group;     /* of the last operation by NCCL; null: none */
    enum gpu_engine last_engine; /* that carried out the last operation on GPUs */
    UT_hash_handle hh;
};

struct exec_spare {
    unsigned char *memory;
    size_t size_bytes;
};

struct exec {
    struct net *net;
    struct exec_links links;
    struct rails *rails; /* other threads that share this one's work; null if none */
    struct exec_comm *comms;
    struct rounds rounds; /* of communicators with operations */
    struct spending spending;
    struct exec_user {
        const struct budget_account *account; /* compared, never dereferenced */
        uint64_t served_ns;
    } last_user, other_user; /* the user of the last turn, and the last different user */
    struct fair loans;       /* stage steps that other execs lent to this one */
    uint32_t lent;           /* number of loans so far */
    uint64_t lend_after_bytes;
    uint32_t between_nodes; /* operations of several nodes that have begun and not ended */
    struct exec_comm *cut;  /* communicators with a cut_ns, ordered by it */
    struct stream_readers readers;
    uint64_t now_ns; /* time of the current call; parked streams expire by it */
    struct exec_spare spares[EXEC_SPARES_MAX];
    uint32_t spare_count;
    size_t spare_bytes;
    struct gpu_devices *gpus;
    enum exec_gpu_engine gpu_engine;
    struct tuner *tuner;               /* null: without a table */
    uint32_t cliques[GPU_DEVICES_MAX]; /* by GPU */
    uint32_t clique_count;
    struct gpu_release *releases; /* those with writes that are not known to be done */
    uint64_t releases_look_ns;    /* when to look next, unless there are none */
    bool has_groups;              /* it uses gpu_groups, so it watches their deadlines */
    struct pacer pacer;           /* how often GPUs are polled */
};

/* spread.c: one operation on several rails. */
enum spread_state { SPREAD_NOT, SPREAD_WAITS, SPREAD_BEGUN, SPREAD_FAILED };
/*
 * The operation must be measured. Returns SPREAD_WAITS while a rail has no connection yet: call again later.
 */
enum spread_state spread_begin(struct exec_comm *comm, struct exec_op *op, struct error *error);
/* Whether the other rails are done with the operation. If given_up: also with its buffers. */
bool spread_is_done(const struct exec_op *op, bool given_up);
void spread_result(const struct exec_op *op, struct error *result);
/* The operation is over on the main thread. Mails of its parts may still be under way. */
void spread_release(struct exec_op *op);
/* Whether that rail still has work for the operation. */
bool spread_needs(const struct exec_op *op, uint32_t rail);
/* Takes the next slice of a local operation. Returns false if none is left. */
bool spread_claim(struct exec_op *op, uint64_t *slice);
void spread_claim_done(struct exec_comm *comm, struct exec_op *op);
enum status shared_new(struct exec_comm *comm, struct error *error) COMM_MUST_USE;
void shared_cancel(struct exec_comm *comm, uint64_t seq, uint64_t count, const struct error *cause);
void shared_abort(struct exec_comm *comm, const struct error *cause);
void shared_leave(struct exec_comm *comm);

/*
 * Which of share_count rails has a slice: the rail with its number modulo share_count. If that rail is not
 * used, the used rails take such slices in turn. The slice's lane does not depend on the used rails, because
 * another node may learn earlier which ones they are.
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
/* How many of slice_count slices a rail has. */
uint64_t spread_slices(const struct exec_comm *comm, uint32_t rail, uint64_t slice_count);
/* The first slice of this exec at or after `slice`. The result is at least slice_count if there is none. */
static inline uint64_t spread_next_slice(const struct exec_comm *comm, uint64_t slice, uint64_t slice_count)
{
    while (slice < slice_count && slice_rail(comm, slice) != comm->share_index) {
        slice++;
    }
    return slice;
}

/* Bits of the first `count` rails, at most EXEC_RAILS_MAX. */
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
enum status comm_new_part(struct exec *exec, struct comm_map *map, const struct exec_comm_handler *handler,
                          uint32_t share_index, uint32_t share_count, struct exec_comm **out,
                          struct error *error) COMM_MUST_USE;
enum status comm_queue_op(struct exec_comm *comm, const struct exec_call *call, struct exec_op **out,
                          struct error *error) COMM_MUST_USE;
void exec_comm_fail(struct exec_comm *comm, const struct error *cause, uint64_t now_ns);
/* The operation with that number, if it runs or is closing; otherwise null. */
struct exec_op *comm_find_op(const struct exec_comm *comm, uint64_t seq);
/* May free the communicator, if its operation was the last. Returns whether it can do more at once. */
bool exec_comm_step(struct exec_comm *comm, uint64_t now_ns);
void exec_comm_rest(struct exec_comm *comm);
void exec_wake(struct exec *exec);
/*
 * A stream was reset within a message, which will never be whole. A node that aborts a communicator sends its
 * cause in an Abort, on another stream. The communicator fails only after STREAM_CUT_NS, so that the Abort
 * can arrive first and all ranks get its cause.
 */
void exec_set_cut(struct exec_comm *comm, uint32_t node, uint64_t now_ns);
/* Cancels that wait, as the communicator ends. */
void exec_forget_cut(struct exec_comm *comm);
bool exec_is_cancelled(const struct exec_comm *comm, uint64_t seq);

/* local.c: one turn's work on slices that need no other node. */
/* For a communicator on one node. Returns whether more can be done at once. */
bool local_step(struct exec_comm *comm, uint64_t now_ns);
/* For the part of an all_to_all that stays on this node, with what the lanes leave of the turn. */
void local_exchange(struct exec_comm *comm, uint64_t now_ns);

/*
 * loan.c: if users share the main thread, it lends long stage steps to threads that do nothing else. The
 * system's scheduler delays a thread that computes all the time. A thread that mostly waits runs first when
 * it is woken, and so do the other users' operations on it.
 */
/* Records that the turn of that account's user begins. */
void exec_serve(struct exec *exec, const struct budget_account *account, uint64_t now_ns);
/* Whether other users had turns within EXEC_SHARED_NS, and there are threads for long work. */
bool exec_lends(const struct exec_comm *comm);
/*
 * Continues that step of the slice's plan, as stage_run does, or notices that a loan of it is over. Returns
 * whether the step is over. If not, the communicator is woken when it can continue.
 */
bool loan_run_stage(struct exec_loan *loan, struct exec_lane *lane, enum coll_stage_step step, uint64_t slice,
                    struct coll_stage_cursor *cursor, uint64_t *left_bytes) COMM_MUST_USE;
/* Whether other threads are done with the first operation's buffers. */
bool loans_are_back(const struct exec_comm *comm);
/* On the borrower's thread: gives one loan a turn. Returns whether there are more. */
bool loans_run(struct exec *exec);

/* exec_op.c: an operation's properties, computed when it begins. */
/* One block of memory, for free(). */
enum status exec_op_new(struct exec_comm *comm, const struct exec_call *call, struct exec_op **out,
                        struct error *error) COMM_MUST_USE;
/* Computes what depends on the call alone: root, size, slices. */
enum status exec_op_measure(const struct exec_comm *comm, struct exec_op *op,
                            struct error *error) COMM_MUST_USE;
/* Chooses algorithm and slices. The operation must be measured. */
void exec_op_begin(const struct exec_comm *comm, struct exec_op *op);
/* INVALID_ARGUMENT: a client's memory that the operation uses has broken (memory_check). */
enum status exec_op_check_memories(const struct exec_comm *comm, struct exec_op *op,
                                   struct error *error) COMM_MUST_USE;

/* lane_memory.c: memory for the parts of slices that are in no rank's buffer. */
unsigned char *lane_memory(const struct exec_lane *lane);
/* Reserves at least wanted_bytes; earlier contents are lost. LIMIT: the user's operations use as much working
 * memory as they may. NO_MEMORY. */
enum status lane_reserve(struct exec_lane *lane, uint64_t wanted_bytes, struct error *error) COMM_MUST_USE;
/* Empties one of the lane's vectors and makes room for `pieces` pieces. LIMIT, NO_MEMORY: as lane_reserve. */
enum status lane_table(struct exec_lane *lane, struct exec_vector *vector, uint64_t element_bytes,
                       uint32_t pieces, struct error *error) COMM_MUST_USE;
/* Compression: memory for this node's part of the sum; earlier contents are lost. LIMIT, NO_MEMORY: as
 * lane_reserve. */
enum status lane_reserve_encoded(struct exec_lane *lane, uint64_t bytes, struct error *error) COMM_MUST_USE;
/* Returns the lane's memory. The network must not use it any more. */
void lane_return_memory(struct exec_lane *lane);
void exec_free_spares(struct exec *exec);

/* slice_layout.c: where a slice's vectors lie. */
/* Reserves memory for the vectors. The slice must be measured. */
enum status lane_prepare(struct exec_lane *lane, const struct exec_op *op, struct error *error) COMM_MUST_USE;
/* When the memory is there: makes the vectors' tables. */
enum status lane_begin_lay_out(struct exec_lane *lane, const struct exec_op *op,
                               struct error *error) COMM_MUST_USE;
/* Continues from the lane's cursor. Returns whether the layout is complete. */
bool lane_lay_out(struct exec_lane *lane, const struct exec_op *op) COMM_MUST_USE;

/* lane.c */
/* The lane's row in a trace. */
static inline uint32_t lane_row(const struct exec_lane *lane)
{
    return TRACE_LANE_ROW(lane->comm->share_index, lane->index);
}
enum status lane_start(struct exec_lane *lane, struct exec_op *op, uint64_t slice,
                       struct error *error) COMM_MUST_USE;
/* Advances the lane as far as it can. Call it at the start, after a receive, and in each turn of its
 * communicator. */
void lane_advance(struct exec_lane *lane, uint64_t now_ns);
/* Whether nothing of the lane's slice was received or sent yet. */
static inline bool lane_comes_in(const struct exec_lane *lane)
{
    return lane->state == LANE_MEASURE || lane->state == LANE_RESERVE || lane->state == LANE_LAY_OUT ||
           lane->state == LANE_STAGE_IN || lane->state == LANE_DEVICE_IN || lane->state == LANE_COMBINE;
}
/* Whether the round has sends that the network did not get yet. */
static inline bool lane_is_sending(const struct exec_lane *lane)
{
    return lane->state == LANE_ROUNDS && lane->sends_done < lane->transfers.send_count;
}
/* The next receive that the lane waits for; null if none. */
const struct coll_transfer *lane_next_receive(const struct exec_lane *lane);
/* Number of elements in the next message of that receive. */
uint64_t lane_message_elements(const struct exec_lane *lane, const struct coll_transfer *receive);
/* A message of the next receive is complete. */
void lane_received(struct exec_lane *lane, uint64_t elements);
/* The lane that the header's message belongs to, on any stream; null: an agreement's. */
struct exec_lane *lane_of_header(struct exec_comm *comm, const struct data_header *header);
/* Whether the payload behind that header is the one that the lane expects next from that node. */
bool lane_takes(const struct exec_lane *lane, uint32_t node, const struct data_header *header);
void lane_stop(struct exec_lane *lane);
/* Ends the streams of all lanes and agreements. give_up: at once, also within a message. */
void comm_reset_streams(struct exec_comm *comm, bool give_up);
void lane_release(struct exec_lane *lane);
struct exec_op *lane_op(const struct exec_lane *lane);

/*
 * stage_run.c: executes one step of a slice's plan from the cursor on. If the operation is staged, GPU pieces
 * are put in the GPUs' queues. The cost is subtracted from left_bytes; when it reaches 0, the rest is left
 * for another turn. Returns whether the step is over.
 */
bool stage_run(struct exec_lane *lane, const struct exec_op *op, enum coll_stage_step step, uint64_t slice,
               struct coll_stage_cursor *cursor, uint64_t *left_bytes) COMM_MUST_USE;
/* The address of the place. */
unsigned char *stage_at(const struct exec_lane *lane, const struct exec_op *op,
                        const struct coll_stage_place *place);
/* The piece as a reduction, whose arrays lie in `buffers`, the caller's. */
struct stage_buffers {
    const void *inputs[HOST_REDUCE_BUFFERS_MAX];
    void *outputs[HOST_REDUCE_BUFFERS_MAX];
    double factors[HOST_REDUCE_BUFFERS_MAX];
};
struct host_reduction stage_reduction(const struct exec_lane *lane, const struct exec_op *op,
                                      const struct coll_stage_piece *piece, struct stage_buffers *buffers);

/* exec_agreement.c */
/* The first operation's agreement begins. */
void exec_agreement_begin(struct exec_comm *comm, struct exec_op *op, uint64_t now_ns);
/* Sends what could not be sent before, of the oldest operation first. */
void exec_agreements_advance(struct exec_comm *comm, uint64_t now_ns);
/* The message of that operation's round has come. */
void exec_agreement_received(struct exec_comm *comm, uint64_t seq, uint64_t now_ns);
/* The operation ends, with or without its agreement. */
void exec_agreement_stop(struct exec_comm *comm, struct exec_op *op);

/* lane_send.c */
/*
 * Whether there is a connection to that node, or a stream. If it is missing, it is asked for: on the main
 * thread, where exec_link_up wakes the communicator. mutual: the node sends to us as well.
 */
bool comm_is_linked(const struct exec_comm *comm, const struct net_stream *stream, uint32_t node,
                    bool mutual);
/* Opens the stream to that node if it is null. LIMIT, NODE_LOST. */
enum status comm_open_stream(struct exec_comm *comm, const struct exec_op *op, uint32_t node,
                             struct net_stream **stream, struct error *error) COMM_MUST_USE;
/* How data travel to that node, of which the first transfer has so many bytes. Never LANE_ROUTE_NOT. */
enum lane_route comm_route_of(const struct exec_comm *comm, uint32_t node, uint64_t bytes);
/* Opens a stream on the bulk link to that node if it is null. Returns false, and leaves it null, if it
 * cannot. */
bool comm_open_bulk(struct exec_comm *comm, uint32_t node, struct net_stream **stream);
void comm_encode_header(const struct exec_comm *comm, const struct exec_op *op, uint32_t slice,
                        uint32_t round, uint64_t payload_bytes, uint8_t out[DATA_HEADER_BYTES]);
/* Sets and returns NODE_LOST, with the reason. */
enum status comm_send_failed(const struct exec_comm *comm, const struct exec_op *op, uint32_t node,
                             enum status status, struct error *error);
/* Whether there is a connection for the next send. If not, exec_link_up wakes the lane. */
bool lane_may_send(const struct exec_lane *lane);
/* Sends the next message of the round's first unfinished send. The cost is subtracted from the turn. */
enum status lane_send(struct exec_lane *lane, struct error *error) COMM_MUST_USE;
/* The most elements in one message. A larger transfer takes several; each is copied, if at all, within one
 * turn. */
static inline uint64_t lane_message_max_elements(const struct exec_lane *lane)
{
    return DATA_MESSAGE_BYTES / lane_op(lane)->stage.element_bytes;
}
/* Memory to send from, charged to the user. It is freed once sent, or if sending fails. LIMIT, NO_MEMORY. */
struct lane_copy;
enum status lane_copy_new(struct exec_lane *lane, uint64_t bytes, struct lane_copy **out,
                          struct error *error) COMM_MUST_USE;
unsigned char *lane_copy_bytes(struct lane_copy *copy);
enum status lane_send_copy(struct exec_lane *lane, uint32_t node, struct lane_copy *copy,
                           uint64_t payload_bytes, struct error *error) COMM_MUST_USE;

/* compressed.c: all-reduces whose payloads are compressed on the network. */
/* Whether the operation's residual is on a GPU, so that slices copy their part of it. */
bool compressed_copies_residual(const struct exec_comm *comm, const struct exec_op *op);
bool compressed_applies(const struct exec_op *op);
enum status compressed_begin_round(struct exec_lane *lane, struct error *error) COMM_MUST_USE;
enum status compressed_send(struct exec_lane *lane, const struct coll_transfer *transfer,
                            struct error *error) COMM_MUST_USE;
/* The most bytes that a message of the transfer may have. */
uint64_t compressed_max_bytes(const struct exec_lane *lane, const struct coll_transfer *transfer);
/* Takes a whole payload. */
enum status compressed_take(struct exec_lane *lane, const struct coll_transfer *receive,
                            const unsigned char *payload, uint64_t payload_bytes,
                            struct error *error) COMM_MUST_USE;

/* receive.c */
extern const struct stream_reader_kind data_reader_kind;
void receive_resume(struct exec_comm *comm);
/* Stops receiving for `count` operations from seq on. */
void receive_drop(struct exec_comm *comm, uint64_t seq, uint64_t count);

#endif
