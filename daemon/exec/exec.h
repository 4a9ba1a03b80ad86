#ifndef DAEMON_EXEC_EXEC_H
#define DAEMON_EXEC_EXEC_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/base/error.h"
#include "daemon/base/fence.h"
#include "daemon/coll/registry.h"
#include "daemon/coll/stage.h"
#include "daemon/gpu/devices.h"
#include "daemon/host/memory.h"
#include "daemon/net/net.h"
#include "proto/op_terms.h"

/*
 * Schedules at work. An exec runs operations: the local stage in (what this node's ranks contribute), the
 * rounds of each slice over the network, the local stage out. Operations of one communicator run one after
 * the other, in the order submitted; slices of one operation run in lanes, concurrently; communicators run
 * independently.
 *
 * The net stage works on a vector of each slice (coll_call says what it holds), in node order: the blocks of
 * the first node's ranks, in rank order, then those of the next. It lies in the ranks' own buffers where the
 * operation has a buffer for all of it (the first local rank's output, the root's buffer), in pieces where
 * ranks are not contiguous; otherwise in memory of the lane, of about one slice. Received bytes are stored or
 * reduced there straight from the packet; large sends leave from there.
 *
 * Wire: a lane (slice modulo EXEC_LANES_MAX) of a communicator has one stream to each node that it sends to,
 * opened on first use, kind NET_STREAM_DATA: messages of one data header (proto/data_header.h) and the
 * payload. A message that this node is not ready for stays in the net, which holds its sender back. A lane
 * takes from one stream of each node; a node that opens a second one for it, or sends anything else that no
 * correct node sends, loses its connection with STATUS_PROTOCOL (net_disconnect).
 *
 * Agreement. Every header repeats the call; before a byte is taken it is compared with this node's. Where a
 * node could end an operation without having heard, directly or through others, of every other node (a
 * broadcast's root, say), a barrier of empty messages runs beside the data, and the operation ends after
 * both: so no node ends an operation in which two nodes disagree. A disagreement is reported
 * (exec_comm_options.disagreed), and the operation waits for exec_cancel; what comes for it afterwards is
 * dropped, and the next ones go on.
 *
 * Single-threaded, on the loop's thread. The exec never blocks: it works in bounded pieces from exec_run.
 */
struct exec;
struct exec_comm;
struct budget_account;

#define EXEC_LANES_MAX 8
#define EXEC_OPS_MAX 4096 /* operations that one communicator has queued; beyond: STATUS_LIMIT */
#define EXEC_COPY_MAX_BYTES                                                                                  \
    16384 /* payloads up to this are copied on send, and need no acknowledgement to end an operation */
#define EXEC_CANCELLED_MAX 256 /* ranges of operations that were given up, and that are remembered */
#define EXEC_OP_COST_BYTES                                                                                   \
    1024u /* of commd's memory for an operation that is queued, ranks' entries aside                         \
           */
#define EXEC_SLICE_BYTES_DEFAULT (1u << 20)
#define EXEC_LOCAL_SLICE_BYTES (256u << 10) /* of communicators on one node: in the cache of a core */

/* Called when the exec has work: exec_run is wanted soon (the daemon posts a task, a simulation loops). */
typedef void exec_wake_function(void *context);

/* Registers itself as the handler of NET_STREAM_DATA and NET_STREAM_MESSAGE. net outlives the exec; null for
 * a node that is alone. */
enum status exec_new(struct net *net, exec_wake_function *wake, void *wake_context, struct exec **out,
                     struct error *error) COMM_MUST_USE;
/*
 * The mesh has lost a node: rails' connections to it end, too, for that cause. They might only notice much
 * later that nobody is there. Rails have none to it, whoever dials, until exec_node_up: a node that is held
 * off is so on all rails. Nothing happens without rails.
 */
void exec_node_down(struct exec *exec, uint32_t peer, const struct error *cause);
void exec_node_up(struct exec *exec, uint32_t peer, uint64_t now_ns);

/* GPUs that ranks may have their buffers on; null for none. They outlive the exec. Before any communicator.
 */
void exec_set_gpus(struct exec *exec, struct gpu_devices *gpus);
/* What the clock says its turns take is charged to their users (commctl users); null, at first: nothing is.
 */
void exec_set_clock(struct exec *exec, uint64_t (*clock)(void));
/* After every exec_comm was freed. */
void exec_free(struct exec *exec);

/*
 * Does a bounded amount of work: one turn of at most EXEC_RUN_STEPS communicators, and for about EXEC_RUN_NS
 * by the clock of exec_set_clock. Users take turns, so nobody waits longer for one who has many
 * communicators. Returns whether more is waiting.
 */
#define EXEC_RUN_STEPS 16u
#define EXEC_RUN_NS 200000u  /* then the network is looked at */
#define EXEC_RUN_LOOKS 1024u /* at communicators that could do nothing */
bool exec_run(struct exec *exec, uint64_t now_ns);

/* Parked streams of unknown communicators are reset when they expire. */
uint64_t exec_next_deadline_ns(const struct exec *exec);
void exec_tick(struct exec *exec, uint64_t now_ns);

/* One communicator, as this node takes part in it. What these point to is copied. */
struct exec_comm_options {
    uint64_t comm_id; /* the same on all nodes, and never that of another communicator */
    uint32_t generation;
    uint32_t owner_uid;            /* whose turns it takes */
    uint32_t size;                 /* ranks */
    const uint32_t *node_of_rank;  /* size. Nodes are ordered by their lowest rank */
    uint32_t node_count;           /* 1..COLL_NODES_MAX */
    uint32_t node_index;           /* ours */
    const uint32_t *peers;         /* node_count: net's peer index of each node; ignored for ourselves */
    const char *const *node_names; /* node_count, for messages */
    uint64_t slice_bytes;          /* agreed by all nodes */
    const char *name;              /* for messages */
    /* Its owner's: what other nodes send for calls that are not posted is charged to it, on any thread. Null:
     * nothing is. The exec keeps a reference. */
    struct budget_account *account;
    /*
     * The net stage failed: a stream or peer lost, a contradicting or malformed message. Called once, from
     * exec_run or a network callback, never from within exec_submit; the caller is expected to call
     * exec_comm_abort (now or later). No op of the communicator advances any more.
     */
    void (*failed)(void *context, const struct error *cause, uint64_t now_ns);
    /*
     * Another node's call of operation `seq` is not ours: once an operation, from a network callback or
     * exec_run. `how` says what differs when the calls themselves may look alike, else it is empty.
     */
    void (*disagreed)(void *context, uint64_t seq, uint32_t node, const char *how, uint64_t now_ns);
    void *context;
    uint32_t rail_count;         /* agreed by all nodes; 0 and 1: the exec's own alone. On one node ignored */
    bool rails_wait;             /* operations of several slices wait for exec_comm_use_rails */
    struct coll_network network; /* agreed by all nodes: what algorithms are chosen by */
    const struct coll_overrides *overrides; /* agreed by all nodes; null for none */
};
enum status exec_comm_new(struct exec *exec, const struct exec_comm_options *options, struct exec_comm **out,
                          struct error *error) COMM_MUST_USE;

/* The communicator's rails, as bits, on which this node has connections to all of its nodes: 0's always. And
 * all that it has. */
uint32_t exec_comm_reached_rails(const struct exec_comm *comm);
uint32_t exec_comm_all_rails(const struct exec_comm *comm);
/* All nodes have agreed that they use these alone, rail 0 among them. Once. */
void exec_comm_use_rails(struct exec_comm *comm, uint32_t rails);

/* One rank of this node in an operation. Everything stays valid until the operation is done. */
struct exec_rank {
    const void *input;       /* null where the operation reads nothing from this rank */
    void *output;            /* null where it writes nothing */
    double factor;           /* premul_sum */
    uint64_t count_elements; /* gather, scatter: of this rank's own block, when there are layouts */
    struct coll_layout input_layout;
    struct coll_layout output_layout;
    float *residual; /* compression: null, or of count elements; the first local rank's is used */
    bool on_gpu;     /* buffers are on a GPU, and which: addresses are the GPU's; of the others: */
    uint32_t gpu;
    bool input_on_host, output_on_host, residual_on_host;
    uint64_t input_bytes, output_bytes, residual_bytes; /* of those on a GPU: as far as blocks reach */
    const struct fence *waits; /* the operation begins when all of all local ranks are reached */
    uint32_t wait_count;
    /* What the buffers lie in, where a client's: one that breaks meanwhile (memory_check) fails it. */
    const struct memory *input_memory, *output_memory, *residual_memory;
};

/*
 * What an operation is. The buffers of each kind are those of client/include/commclient.h; one buffer may
 * be another only where that says `in place`.
 */
struct exec_call {
    struct op_terms
        terms;    /* not a message's. bucket_ops all_reduces run as one: the first's, with a hash of all */
    uint64_t seq; /* of the operation in its communicator, from 1, ascending; gaps are those cancelled before
                     they were submitted */
    const uint64_t *part_counts;   /* bucket_ops: elements of each; copied. Null when there is one */
    uint32_t rank_count;           /* local ranks, at least 1, ascending */
    const struct exec_rank *ranks; /* bucket_ops × rank_count, part by part; copied */
    /*
     * Exactly once, never from within exec_submit: STATUS_OK when every output is final and every buffer is
     * the caller's again; otherwise the cause given to exec_comm_abort or exec_cancel, when the network and
     * the exec touch the buffers no more.
     */
    void (*done)(void *context, const struct error *result, uint64_t now_ns);
    void *context;
};

/* Queues an operation. LIMIT beyond EXEC_OPS_MAX; the cause after the communicator failed. */
enum status exec_submit(struct exec_comm *comm, const struct exec_call *call,
                        struct error *error) COMM_MUST_USE;

/*
 * Gives `count` operations up, from seq on, on this node, submitted or not; every other node does the same.
 * done of those submitted follows with `cause`, possibly only after the network has let go of their buffers.
 * At most EXEC_CANCELLED_MAX ranges are remembered: messages of older ones fail the communicator.
 */
void exec_cancel(struct exec_comm *comm, uint64_t seq, uint64_t count, const struct error *cause,
                 uint64_t now_ns);

/*
 * Gives up everything queued: streams are reset, and every op's done follows with `cause`, some possibly only
 * after the network has let go of its buffers. Later calls change nothing.
 */
void exec_comm_abort(struct exec_comm *comm, const struct error *cause);

/* Frees a communicator; its ops must all be done (true of exec_comm_idle). What was sent is still delivered.
 */
bool exec_comm_idle(const struct exec_comm *comm);
void exec_comm_free(struct exec_comm *comm);
/* Waits for the steps of stages that other threads carry out: before communicators are freed while operations
 * run, at the end of the daemon. Each takes milliseconds. */
void exec_await_loans(struct exec *exec, uint64_t now_ns);

/*
 * For people: what the current operation waits for ("round 3 of slice 2: nothing from node b yet"), empty
 * when nothing. Writes at most size bytes, terminated.
 */
void exec_comm_describe_wait(const struct exec_comm *comm, char *text, size_t size);

#endif
