#ifndef DAEMON_EXEC_EXEC_H
#define DAEMON_EXEC_EXEC_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/base/error.h"
#include "daemon/coll/schedule.h"
#include "daemon/net/net.h"
#include "proto/types.h"

/*
 * Schedules at work. An exec runs operations: the local stage in (reduce the inputs of this node's ranks),
 * the rounds of each slice over the network, the local stage out. Operations of one communicator run one
 * after the other, in the order submitted; slices of one operation run in lanes, concurrently; communicators
 * run independently.
 *
 * The work buffer of the net stage is the first local rank's output itself: nothing is staged or copied on
 * the way. Received bytes are stored or reduced there straight from the packet.
 *
 * Wire: a lane (slice modulo EXEC_LANES_MAX) of a communicator has one stream to each node that it sends to,
 * opened on first use, kind NET_STREAM_DATA: messages of one data header (proto/data_header.h) and the
 * payload. A message that this node is not ready for stays in the net, which holds its sender back. A message
 * whose header contradicts this node's operation of the same seq aborts the communicator with STATUS_MISMATCH
 * and both nodes' calls in the text.
 *
 * Single-threaded, on the loop's thread. The exec never blocks: it works in bounded pieces from exec_run.
 */
struct exec;
struct exec_comm;

#define EXEC_LANES_MAX 8
#define EXEC_OPS_MAX 4096 /* operations that one communicator has queued; beyond: STATUS_LIMIT */
#define EXEC_PARKED_STREAMS_MAX                                                                              \
    4096 /* incoming streams whose communicator is not known here yet, per peer; beyond: reset */
#define EXEC_COPY_MAX_BYTES                                                                                  \
    16384 /* payloads up to this are copied on send, and need no acknowledgement to end an operation */
#define EXEC_SLICE_BYTES_DEFAULT (1u << 20)

/* Called when the exec has work: exec_run is wanted soon (the daemon posts a task, a simulation loops). */
typedef void exec_wake_function(void *context);

/* Registers itself as the handler of NET_STREAM_DATA. net outlives the exec. */
enum status exec_new(struct net *net, exec_wake_function *wake, void *wake_context, struct exec **out,
                     struct error *error) COMM_MUST_USE;
/* After every exec_comm was freed. */
void exec_free(struct exec *exec);

/* Does a bounded amount of work (about one slice a communicator). Returns whether more is waiting. */
bool exec_run(struct exec *exec, uint64_t now_ns);

/* Parked streams of unknown communicators are reset when they expire. */
uint64_t exec_next_deadline_ns(const struct exec *exec);
void exec_tick(struct exec *exec, uint64_t now_ns);

/* One communicator, as this node takes part in it. */
struct exec_comm_options {
    uint64_t comm_id; /* the same on all nodes, and never that of another communicator */
    uint32_t generation;
    uint32_t node_count;   /* 1..COLL_NODES_MAX */
    uint32_t node_index;   /* ours */
    const uint32_t *peers; /* node_count: net's peer index of each node; ignored for ourselves. Copied. */
    const char *const *node_names; /* node_count, for messages; outlive the exec_comm */
    uint64_t slice_bytes;          /* agreed by all nodes */
    const char *name;              /* for messages; outlives the exec_comm */
    /*
     * The net stage failed: a stream or peer lost, a contradicting or malformed message. Called once, from
     * exec_run or a network callback, never from within exec_submit; the caller is expected to call
     * exec_comm_abort (now or later). No op of the communicator advances any more.
     */
    void (*failed)(void *context, const struct error *cause, uint64_t now_ns);
    void *context;
};
enum status exec_comm_new(struct exec *exec, const struct exec_comm_options *options, struct exec_comm **out,
                          struct error *error) COMM_MUST_USE;

/* One rank of this node in an operation. Addresses stay valid until the operation is done. */
struct exec_rank {
    const void *input; /* count elements; null where the operation reads nothing from this rank */
    void *output;      /* count elements; may equal input; null where it writes nothing */
    double factor;     /* premul_sum */
};

struct exec_call {
    enum op_kind kind;
    enum dtype dtype;
    enum reduce reduce;
    uint64_t seq;                  /* of the operation in its communicator, from 1, without gaps */
    uint64_t count_elements;       /* 0 for a barrier */
    uint32_t root_rank;            /* goes into the header, for the comparison */
    uint32_t root_node;            /* broadcast */
    uint32_t root_local;           /* broadcast: index into ranks, when root_node is this node */
    uint64_t divisor;              /* avg: ranks of the communicator; otherwise 0 */
    uint32_t rank_count;           /* local ranks, at least 1 */
    const struct exec_rank *ranks; /* copied */
    /*
     * Exactly once, never from within exec_submit: STATUS_OK when every output is final and every buffer is
     * the caller's again; otherwise the cause given to exec_comm_abort, when the network and the exec touch
     * the buffers no more.
     */
    void (*done)(void *context, const struct error *result, uint64_t now_ns);
    void *context;
};

/* Queues an operation. LIMIT beyond EXEC_OPS_MAX; the cause after the communicator failed. */
enum status exec_submit(struct exec_comm *comm, const struct exec_call *call,
                        struct error *error) COMM_MUST_USE;

/*
 * Gives up everything queued: streams are reset, and every op's done follows with `cause`, some possibly only
 * after the network has let go of its buffers. Later calls change nothing.
 */
void exec_comm_abort(struct exec_comm *comm, const struct error *cause, uint64_t now_ns);

/* Frees a communicator; its ops must all be done (true of exec_comm_idle). What was sent is still delivered.
 */
bool exec_comm_idle(const struct exec_comm *comm);
void exec_comm_free(struct exec_comm *comm);

/*
 * For people: what the current operation waits for ("round 3 of slice 2: nothing from node b yet"), empty
 * when nothing. Writes at most size bytes, terminated.
 */
void exec_comm_describe_wait(const struct exec_comm *comm, char *text, size_t size);

/* Nodes (indices) from which the current operation still waits for data: at most max are written; returns how
 * many. */
uint32_t exec_comm_waiting_for(const struct exec_comm *comm, uint32_t *nodes, uint32_t max);

#endif
