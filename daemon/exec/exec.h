#ifndef DAEMON_EXEC_EXEC_H
#define DAEMON_EXEC_EXEC_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/base/error.h"
#include "daemon/base/fence.h"
#include "daemon/coll/comm_map.h"
#include "daemon/coll/stage.h"
#include "daemon/gpu/devices.h"
#include "daemon/gpu/tuning.h"
#include "daemon/host/memory.h"
#include "daemon/net/net.h"
#include "proto/op_terms.h"

/*
 * Execution of schedules. An exec runs operations in three steps: the local stage in, the rounds of each
 * slice over the network, and the local stage out. The local stage in combines what this node's ranks
 * contribute. Operations of one communicator run one after the other, in the order of submission. But the
 * next one runs while the nodes still agree on those before it (below). They end in the order of submission.
 * Slices of one operation run concurrently, in lanes. Communicators run independently.
 *
 * The net stage works on one vector per slice (coll_call says what it holds), in node order. The blocks of
 * the first node's ranks come first, in rank order, then those of the next node. If the operation has a
 * buffer for the whole vector (the first local rank's output, the root's buffer), the vector lies in the
 * ranks' own buffers. It lies in several pieces if ranks are not contiguous. Otherwise it lies in the lane's
 * memory, which is about one slice. Received bytes are stored or reduced there straight from the packet, and
 * large sends are sent from there.
 *
 * Wire: a lane (slice modulo EXEC_LANES_MAX) of a communicator has one stream of kind NET_STREAM_DATA to each
 * node that it sends to, opened on first use. It carries messages of one data header (proto/data_header.h)
 * and the payload. A message that this node is not ready for stays in the net, whose flow control then stops
 * the sender. A lane takes data from one stream of each node. If a node opens a second stream for the lane,
 * or sends anything else that no correct node sends, it is disconnected with STATUS_PROTOCOL
 * (net_disconnect).
 *
 * Agreement. Every header repeats the call, and this node compares it with its own call before it takes a
 * byte. In some operations a node could end without having heard, directly or through others, from every
 * other node (a broadcast's root, for example). There a barrier of empty messages runs beside the data, and
 * the operation ends after both, so no node ends an operation on which two nodes disagree. Meanwhile the next
 * ones run: up to EXEC_CLOSING_MAX operations may be waiting for nothing but their barriers. A disagreement
 * is reported (exec_comm_handler.disagreed), and the operation waits for exec_cancel. Messages that arrive
 * for it afterwards are dropped, and the next operations run.
 *
 * Single-threaded, on the loop's thread. The exec never blocks: it works in bounded pieces from exec_run.
 */
struct exec;
struct exec_comm;

#define EXEC_LANES_MAX 8
#define EXEC_OPS_MAX 4096 /* that one communicator can have queued; one more fails with LIMIT */
/* Payloads up to this are copied on send, and need no acknowledgement to end an operation. Copying 64 KiB
 * takes less time than waiting for one. */
#define EXEC_COPY_MAX_BYTES (64u << 10)
#define EXEC_CANCELLED_MAX 256   /* ranges of cancelled operations that are remembered */
#define EXEC_OP_COST_BYTES 1024u /* of commd's memory for a queued operation, without its ranks' entries */
#define EXEC_SLICE_BYTES_DEFAULT (1u << 20)
#define EXEC_LOCAL_SLICE_BYTES (256u << 10) /* of communicators on one node: fits in the cache of a core */

/* Registers itself as the handler of NET_STREAM_DATA and NET_STREAM_MESSAGE. net must outlive the exec; null
 * for a node without peers. */
enum status exec_new(struct net *net, struct exec **out, struct error *error) COMM_MUST_USE;
/*
 * Links on other rails than rail 0 (rails.h), for communicators that share their slices with them. Whoever
 * owns the links dials them, and judges whether they are up. Called on the main thread.
 */
struct exec_links {
    void *context;
    /* A communicator needs the links of the first rail_count rails to that node; one call undoes the other.
     */
    void (*need)(void *context, uint32_t peer, uint32_t rail_count);
    void (*unneed)(void *context, uint32_t peer, uint32_t rail_count);
    /* Null: the link is up. Otherwise the last reason why it is not; "" if there is none. Valid until a link
     * changes. */
    const char *(*missing)(void *context, uint32_t peer, uint32_t rail);
};
/* Call it before any communicator of several rails is made. */
void exec_set_links(struct exec *exec, const struct exec_links *links);
/* A link of some rail is up, rail 0 included: operations that wait for it go on. */
void exec_link_up(struct exec *exec);
/* A link of a rail other than 0 is lost, with that cause. */
void exec_link_lost(struct exec *exec, uint32_t rail, uint32_t peer, const struct error *cause,
                    uint64_t now_ns);
/* The same, earlier, on the rail's thread, but with the main exec: before the rail's net has a next link to
 * the peer. */
void exec_link_streams_lost(struct exec *main_exec, uint32_t rail, uint32_t peer);

/* GPUs on which ranks may have buffers; null for none. They must outlive the exec. Call it before any
 * communicator is made. */
void exec_set_gpus(struct exec *exec, struct gpu_devices *gpus);
/*
 * Which engine runs the operations of several GPUs of one node. AUTO, the default: the faster one, by the
 * table of exec_set_tuning; without a table, kernels where the GPUs reach each other's memory, otherwise
 * NCCL. NCCL: NCCL wherever it has the operation, otherwise as AUTO. KERNELS: never NCCL. Call it before any
 * communicator is made.
 */
enum exec_gpu_engine { EXEC_GPU_AUTO, EXEC_GPU_NCCL, EXEC_GPU_KERNELS };
void exec_set_gpu_engine(struct exec *exec, enum exec_gpu_engine engine);
/* AUTO goes by this table, and adds GPUs to it that it measures. The table must outlive the exec. Call it
 * after exec_set_gpus and exec_set_clock, before any communicator is made. NO_MEMORY. */
enum status exec_set_tuning(struct exec *exec, struct gpu_tuning *table, struct error *error) COMM_MUST_USE;
/* Ends a measurement under way, and begins no more. Waits at most a second for GPUs. Call it before other
 * threads that share the exec's work are gone. */
void exec_stop_tuning(struct exec *exec);
/* How many sets of GPUs wait to be measured, or are being measured. */
uint32_t exec_tuning_count(const struct exec *exec);
/*
 * Which engine an operation of one node would have that sums f32 among these GPUs, at least two; bytes: of
 * the larger one of a GPU's two buffers. set: what was measured of these GPUs, or null. *why: static storage.
 */
enum gpu_engine exec_engine(const struct exec *exec, const struct gpu_tuning_set *set, const uint32_t *list,
                            uint32_t count, enum op_kind kind, uint64_t bytes, const char **why);
/* Whether NCCL is to move a message of `bytes` between two GPUs of this node: as the operations of their
 * node, by what a broadcast from one to the other takes. context: the exec. For p2p_set_by_nccl. */
bool exec_message_by_nccl(void *context, uint32_t from_gpu, uint32_t to_gpu, uint64_t bytes, uint64_t now_ns);
/* Each turn's time by this clock is charged to its user (commctl users). Null, the default: no time is
 * charged. */
void exec_set_clock(struct exec *exec, uint64_t (*clock)(void));
/* Call it after every exec_comm was freed. */
void exec_free(struct exec *exec);

/*
 * Does a bounded amount of work: one turn each of at most EXEC_RUN_STEPS communicators, for about EXEC_RUN_NS
 * by the clock of exec_set_clock. Users take turns, so a user with many communicators does not delay the
 * others more. Returns exec_has_work.
 */
#define EXEC_RUN_STEPS 16u
#define EXEC_RUN_NS 200000u  /* then the caller polls the network */
#define EXEC_RUN_LOOKS 1024u /* communicators that one call looks at, with or without work */
bool exec_run(struct exec *exec, uint64_t now_ns);
/* Whether exec_run has something to do. Any other call, and any callback of the network, may change that, so
 * ask before you wait. */
bool exec_has_work(const struct exec *exec);

/* Whether an operation of several nodes runs, so data may arrive for it at any moment. */
bool exec_awaits_nodes(const struct exec *exec);

/* Deadline and timer: parked streams of unknown communicators are reset when they expire. */
uint64_t exec_next_deadline_ns(const struct exec *exec);
void exec_tick(struct exec *exec, uint64_t now_ns);

/* What a communicator tells its owner. */
#define EXEC_ALL_NODES UINT32_MAX
struct exec_comm_handler {
    void *context;
    /*
     * The net stage failed: a stream or peer was lost, or a message was malformed or contradictory. Called
     * once, from exec_run or a network callback, never from within exec_submit. The caller is expected to
     * call exec_comm_abort (now or later). No operation of the communicator advances any more.
     */
    void (*failed)(void *context, const struct error *cause, uint64_t now_ns);
    /*
     * Another node's call of operation `seq` differs from ours. Called once per operation, from a network
     * callback or exec_run. If the calls themselves may look alike, `how` says what differs; otherwise it is
     * empty.
     */
    void (*disagreed)(void *context, uint64_t seq, uint32_t node, const char *how, uint64_t now_ns);
    /*
     * Null: the node has connections to all nodes of the communicator. Otherwise they may be missing: an
     * operation that sends to such a node waits, and asks for the connection. EXEC_ALL_NODES: for those to
     * all nodes, because slices are spread over rails. mutual: the other node will ask for it as well.
     * Called from exec_run, repeatedly. Returns whether the connection is there. If not, the callee fails the
     * communicator if it is not there in time, and calls exec_link_up when it is.
     */
    bool (*need)(void *context, uint32_t node, bool mutual, uint64_t now_ns);
    /*
     * Null, or gets the root's data for an operation that was not submitted here yet: all that this node gets
     * of it. The terms are those of the root's node, which may be wrong, and `payload` is valid only during
     * the call. The operation gets the same data again. Returns false to be asked again.
     */
    bool (*early)(void *context, uint64_t seq, const struct op_terms *terms, const uint8_t *payload,
                  uint64_t payload_bytes);
    /* Null, or called when the operation's outputs are final here, and the nodes still agree on it. */
    void (*closing)(void *context, uint64_t seq);
};
/* Makes this node's part of one communicator. It keeps a reference to the map, which is charged for it.
 * LIMIT, NO_MEMORY. */
enum status exec_comm_new(struct exec *exec, struct comm_map *map, const struct exec_comm_handler *handler,
                          struct exec_comm **out, struct error *error) COMM_MUST_USE;

/* Both return rails of the communicator as bits. The first: those on which this node is connected to all of
 * its nodes, which always include rail 0. The second: all of its rails. */
uint32_t exec_comm_reached_rails(const struct exec_comm *comm);
uint32_t exec_comm_all_rails(const struct exec_comm *comm);
/* All nodes have agreed to use only these rails; rail 0 is one of them. Call it once. */
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
    bool on_gpu;     /* the rank's addresses are in memory of GPU `gpu`, except these: */
    uint32_t gpu;
    bool input_on_host, output_on_host, residual_on_host;
    uint64_t input_bytes, output_bytes, residual_bytes; /* of buffers on a GPU: to the last block's end */
    const struct fence *waits; /* the operation begins when all fences of all local ranks are reached */
    uint32_t wait_count;
    /* A word that the stream of the GPU writes when the rank's outputs are there, if it can. *ended_by_gpu is
     * set when that write is put in the stream. It is valid until the operation is done. */
    struct gpu_word ended_gpu_word;
    uint64_t ended_value;
    bool *ended_by_gpu;
    /* The client memory in which each buffer lies, if any. The operation fails if such memory breaks
     * meanwhile (memory_check). */
    struct memory *input_memory, *output_memory, *residual_memory;
};

/*
 * One operation. client/include/commclient.h defines the buffers of each kind. Buffers may be the same only
 * where that header says `in place`.
 */
struct exec_call {
    /* Never those of a message. If bucket_ops all_reduces run as one, these are the first one's, with a hash
     * of all. */
    struct op_terms terms;
    /* Number of the operation in its communicator: from 1, ascending. Numbers are skipped for operations that
     * were cancelled before they were submitted. */
    uint64_t seq;
    const uint64_t *part_counts;   /* bucket_ops: elements of each; copied. Null when there is one */
    uint32_t rank_count;           /* local ranks, at least 1, ascending */
    const struct exec_rank *ranks; /* bucket_ops × rank_count, part by part; copied */
    /* AUTO for operations of users. Otherwise this engine instead of that of exec_set_gpu_engine, for a
     * measurement, which is not counted. */
    enum exec_gpu_engine engine;
    struct gpu_group
        *group; /* null; the exec sets it in its copy if NCCL carries out the GPUs' part of slices */
    /*
     * Called exactly once, never from within exec_submit. STATUS_OK: every output is final, and every buffer
     * is the caller's again. Otherwise the result is the cause given to exec_comm_abort or exec_cancel, and
     * the network and the exec no longer touch the buffers.
     */
    void (*done)(void *context, const struct error *result, uint64_t now_ns);
    void *context;
};

/* Queues an operation. LIMIT if EXEC_OPS_MAX are queued; the cause if the communicator has failed. */
enum status exec_submit(struct exec_comm *comm, const struct exec_call *call,
                        struct error *error) COMM_MUST_USE;

/*
 * Cancels `count` operations on this node, from seq on, submitted or not. Every other node must cancel the
 * same ones. `done` of the submitted ones is called later with `cause`, possibly only after the network has
 * released their buffers. At most EXEC_CANCELLED_MAX ranges are remembered: a message for an older one fails
 * the communicator.
 */
void exec_cancel(struct exec_comm *comm, uint64_t seq, uint64_t count, const struct error *cause,
                 uint64_t now_ns);

/*
 * Cancels everything queued. Streams are reset, and `done` of every operation is called later with `cause`,
 * possibly only after the network has released its buffers. Later calls change nothing.
 */
void exec_comm_abort(struct exec_comm *comm, const struct error *cause);

/* exec_comm_free frees a communicator. All its operations must be done, that is, exec_comm_idle returns true.
 * What was sent is still delivered. */
bool exec_comm_idle(const struct exec_comm *comm);
void exec_comm_free(struct exec_comm *comm);
/* Blocks until other threads have finished the stage steps that they were lent. Call it at the end of the
 * daemon, before communicators are freed while operations run. Each step takes milliseconds. */
void exec_await_loans(struct exec *exec, uint64_t now_ns);

/*
 * Describes for people what the current operation waits for ("round 3 of slice 2: nothing from node b yet").
 * The text is empty if it waits for nothing. Writes at most size bytes, terminated.
 */
void exec_comm_describe_wait(const struct exec_comm *comm, char *text, size_t size);

#endif
