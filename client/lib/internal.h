#ifndef CLIENT_LIB_INTERNAL_H
#define CLIENT_LIB_INTERNAL_H

#include <commclient.h>

#include <poll.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>
#include <time.h>

#include "client/lib/capture.h"
#include "client/lib/cells.h"
#include "client/lib/debug.h"
#include "client/lib/failure.h"
#include "client/lib/fence.h"
#include "client/lib/gpu/devices.h"
#include "client/lib/graph.h"
#include "client/lib/group.h"
#include "client/lib/habit.h"
#include "client/lib/held.h"
#include "client/lib/memory.h"
#include "client/lib/op.h"
#include "client/lib/queue.h"
#include "client/lib/rings.h"
#include "proto/client.pb-c.h"
#include "proto/heartbeat.h"
#include "proto/records.h"
#include "proto/status.h"
#include "proto/trace_event.h"
#include "proto/types.h"
#include "proto/version.h"

/*
 * What the library's files share. Each client has one lock, which guards all its state. Threads that wait
 * take turns: one of them reads the socket and hands out what arrives, the others wait for it. The library
 * starts a thread only when needed: for a client whose operations are ordered by CUDA streams (watchdog.c),
 * that holds collectives (held.c) or publishes in cells (cells.c), or that keeps memory for staging
 * (staging.c).
 *
 * A function that takes a client or a communicator expects the caller to hold the client's lock, unless its
 * comment says otherwise. Functions that may send or wait release the lock meanwhile; their comments say so.
 * After such a call, read again all state that another thread may change.
 */

#define OPS_IN_FLIGHT_MAX 1024u /* Of one communicator. commd may allow fewer. */
#define OPEN_TIMEOUT_DEFAULT_MS 10000u
#define FORM_TIMEOUT_DEFAULT_MS 60000u
#define OP_TIMEOUT_DEFAULT_MS 60000u
#define REQUEST_TIMEOUT_MS 10000u /* For requests that commd answers at once. */
#define DAEMON_MARGIN_MS 5000u    /* After commd's own deadline. Then it counts as frozen. */
#define BUSY_TIMEOUT_MS                                                                                      \
    5000u /* how long commd may still use memory that is being freed, or was replaced by other memory */
#define FINISH_TIMEOUT_MS 1000u /* how long destroy and close try to finish, and how long to try a notice */
#define REQUEST_MAX_BYTES 16384 /* buffer for a packed request; only the texts of comm_init are long */
#define ALGORITHMS_MAX_BYTES 1024
#define TRACE_ROWS_MAX 64u     /* rows for a rank's overlapping operations; further ones share the last row */
#define OPTIONS_MAX_BYTES 4096 /* a larger struct_size is garbage, not a newer library's struct */

#define COMM_WAITS_MAX (CLIENT_FENCES_MAX - 1u) /* one is for the operation's stream */
#define RECORDS_MAX 1024u                       /* of a communicator, that commd has not carried out yet */

/*
 * A handle of one operation, or of a persistent call. The caller owns it. While its operation is in flight,
 * the operation points to it.
 */
struct comm_request {
    struct comm_comm *comm;
    struct client_call *call; /* the call of a persistent handle; null otherwise */
    struct client_op *op;     /* the operation in flight; null: none */
    bool ended;               /* the operation has ended, and was not waited for yet */
    bool at_once;             /* within the call that began it; nobody else knows the handle */
    bool collected;           /* a group that has not ended has collected it, and points to it */
    bool awaited;             /* a thread waits for it */
    bool freed;               /* the caller freed it while it was collected: the group frees it */
    comm_result_t result;
    comm_received_t received;
    struct client_failure *failure; /* null: none, or there was no memory for it */
};

/* The records that commd was told to make and has not made yet: a ring, oldest first. */
struct member_records {
    struct fence_mark *marks; /* RECORDS_MAX elements; null before the first record */
    uint32_t first;
    uint32_t count;
};

/* What the nodes of a communicator that has failed agreed on. */
struct member_verdict {
    bool known; /* false: commd has told the end, but there is no agreement */
    bool minority;
    uint64_t last_seq;
    uint32_t generation;
    uint8_t lost[]; /* a bit for each rank */
};

struct comm_comm {
    struct comm_client *client;
    struct comm_comm *next;
    struct client_gpu *gpu; /* null: the host */
    int device;             /* the argument of comm_init */
    uint32_t handle;
    uint32_t rank;
    uint32_t size;
    uint32_t local_rank;
    uint32_t local_size;
    uint32_t op_timeout_ms;
    uint32_t node_count;
    uint32_t *node_of_rank;
    char **node_names;
    char *name;
    bool offers_cells;          /* commd has made cells, which are not open yet */
    struct client_cells *cells; /* for small operations; null: it has none */
    struct client_op *ops;      /* in flight or held, oldest first */
    struct client_op **buckets; /* the same by ticket */
    struct client_op *spare;    /* for an operation without a list of counts: see op_has_spare; null: none */
    uint32_t bucket_count;      /* a power of two */
    struct member_records records;
    struct fence_mark
        waits[COMM_WAITS_MAX]; /* from comm_event_wait_comm: each op waits for those not reached yet */
    uint32_t wait_count;
    uint32_t op_count;              /* in flight or held */
    uint32_t collectives_in_flight; /* part of op_count */
    uint64_t collective_count;      /* so far, in streams or not */
    struct stream_tail tail;
    size_t staged_bytes;      /* of the collectives in flight */
    struct client_held *held; /* oldest first; see held.c */
    uint32_t held_count;
    struct wait_habit habit;
    uint32_t copying;       /* threads that copy a slice of an operation */
    uint32_t waiters;       /* threads of the program that wait for the end of operations */
    uint64_t held_retry_ns; /* staging of held collectives is not retried before */
    bool leaving;           /* held operations are not sent any more */
    uint64_t last_ticket;
    uint64_t heard_ns;     /* when commd last sent an event of this communicator */
    comm_result_t failure; /* the communicator's first failure; stays */
    comm_failure_t failure_data;
    char failure_text[ERROR_TEXT_BYTES];
    struct member_verdict *verdict; /* from commd, some time after the failure; null before */
    bool verdict_is_due;            /* an operation has failed as they do when a rank or node is lost */
    /* Of an operation without handle or queue: for the next call that waits for all. */
    comm_result_t op_failure;
    comm_failure_t op_failure_data;
    char op_failure_text[ERROR_TEXT_BYTES];
    uint64_t comm_id;
    uint32_t split_count;
    struct client_graph *graph; /* what it serves, if it is part of another communicator; null otherwise */
    struct comm_comm *parent;   /* that other communicator */
    uint32_t graph_count;       /* of captures so far */
    bool captures;              /* a thread is adding an operation to a CUDA graph */
    uint32_t trace_row_count;   /* trace.c: rows of bars, and when the last bar of each row ends */
    uint64_t trace_row_ends_ns[TRACE_ROWS_MAX];
    bool cancelled, aborting;    /* comm_cancel has ended its forming; comm_abort ends it */
    struct client_join *join;    /* the job that it is a generation of; null: none */
    struct comm_comm *successor; /* made by comm_agree, and not yet returned by comm_shrink; null: none */
    comm_init_options_t options; /* the options of comm_init; its algorithms points to the copy below */
    char *algorithms;
};

/* A request to commd that a thread waits for; it is that thread's. */
struct client_request {
    struct client_request *next;
    uint64_t id;
    Commd__Client__Event *event; /* the reply; null until it has arrived */
    uint64_t began_ns;
    comm_result_t sent; /* what sending it returned */
};

/* commd's heartbeat; page is null if commd offers none. Does not change while the connection lasts. */
struct client_heart {
    const struct client_heartbeat *page;
    int daemon_fd;     /* a pidfd */
    uint32_t still_ms; /* without a beat, after which commd counts as lost; HEART_STILL_MS if that is more */
};

/* What one observer of the heartbeat has seen. */
struct heart_watch {
    uint64_t beats;
    uint64_t looked_ns;
    uint64_t still_ns; /* of this process, without a new beat */
};

#define CLIENT_HELLO_FDS (CLIENT_RING_FDS + CLIENT_HEARTBEAT_FDS)

/* What commd has told of its node's end. */
struct client_draining {
    bool active;
    bool has_deadline;
    uint64_t deadline_ns;
    char reason[COMM_DRAINING_REASON_BYTES];
};

struct comm_client {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    pid_t pid;
    const _Atomic pid_t *process; /* `pid`, in memory that fork clears for the child; null: there is none */
    int fd;
    struct client_rings *rings; /* null: only the socket is used */
    struct client_heart heart;
    struct heart_watch heart_watch;
    bool frozen;    /* lost because commd stood still, or says that it ends: its process may still live */
    uint32_t looks; /* at the ring, without waiting */
    char *path;
    bool reading;              /* a thread waits at the socket: only this thread takes events */
    struct comm_queue *queues; /* see queue.h */
    struct comm_queue *served; /* the queue of the thread that now handles events; null: none */
    comm_result_t lost;        /* COMM_OK while connected */
    char lost_text[ERROR_TEXT_BYTES];
    uint64_t last_request_id;
    uint32_t last_handle;
    uint32_t last_memory_id;
    uint32_t pending_ops_max;
    struct client_request *requests;
    struct comm_comm *comms;
    struct client_join *joins;
    struct client_draining draining;
    struct client_gpu *gpus; /* of its communicators and memories; changes need the fences' lock, too */
    struct client_fences fences;
    struct comm_event *events;       /* under the fences' lock */
    struct client_memory **memories; /* the caller's, by address */
    struct comm_pool *pools;
    int hello_fds[CLIENT_HELLO_FDS]; /* descriptors that came with Hello's reply, until they are taken */
    size_t hello_fd_count;
    size_t memory_count;
    uint64_t withdrawn_quietly_bytes; /* since commd was last woken for withdrawn memory */
    size_t memory_capacity;
    struct client_trace *trace; /* null: no trace is written */
    struct staging_pool staging;
    struct client_feeder feeder;
    struct cells_use cells;
    uint32_t stores;        /* that are open */
    bool aborts;            /* commd takes comm_abort */
    bool shrinks;           /* commd takes comm_shrink */
    bool takes_graphs;      /* commd takes operations of CUDA graphs */
    bool offers_stores;     /* commd keeps stores of keys and values */
    bool gathers;           /* commd takes comm_join, and tells the numbers of collectives */
    bool takes_pools;       /* commd takes memory of CUDA memory pools */
    bool joins_blocks;      /* commd runs all_gathers and reduce_scatters of a group as one, too */
    bool records_by_ticket; /* commd takes with an event record the last operation that it covers */
    unsigned char packet[CLIENT_PACKET_MAX_BYTES];
};

/* --- result.c: any thread, no lock --- */

/* Stores the long text for comm_last_error of this thread; returns `result`. */
comm_result_t error_report(comm_result_t result, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
comm_result_t error_repeat(comm_result_t result, const char *text);
/* As error_repeat, with the data for comm_last_failure; its result is the result. */
comm_result_t error_repeat_failure(const comm_failure_t *data, const char *text);
/* What this thread has reported last, text and data: kept while it makes other calls, then reported again. */
struct kept_error {
    comm_failure_t data;
    char text[ERROR_TEXT_BYTES];
};
void error_keep(struct kept_error *out);
comm_result_t error_report_kept(const struct kept_error *kept);
/* Prefixes the text of the failure that was just reported with the place where it happened. */
comm_result_t error_within(comm_result_t result, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* Converts a failure's code from the wire; never returns COMM_OK or COMM_IN_PROGRESS. */
comm_result_t failure_from_wire(uint32_t number);
/*
 * Copies an options struct of any known size over the defaults in `target`. If source is null, the defaults
 * stay. `call` and `initializer` are for the message. Fails with COMM_INVALID_ARGUMENT.
 */
comm_result_t options_copy(void *target, size_t known_size, const void *source, const char *call,
                           const char *initializer);

/* --- trace.c: writes the program's operations to a file for Perfetto --- */

/* Begins a trace if COMMD_TRACE asks for one. If memory is short or the file cannot be written, there is no
 * trace. */
void trace_open(struct comm_client *client, const char *node_name);
void trace_close(struct client_trace *trace);
void trace_write_op(struct client_trace *trace, struct comm_comm *comm, const struct client_op *op,
                    comm_result_t result);
/* To be called when the library has seen the end of an operation. */
static inline void trace_op_seen(struct client_trace *trace, struct comm_comm *comm,
                                 const struct client_op *op, comm_result_t result)
{
    TRACE_PROBE(op_seen, comm->comm_id, op->ticket, op->kind, comm->rank, 0, result);
    if (__builtin_expect(trace != NULL, 0)) {
        trace_write_op(trace, comm, op, result);
    }
}

/* --- draining.c --- */

void draining_handle(struct comm_client *client, const Commd__Client__Draining *event);

/* --- join.c: elastic jobs. With the lock. --- */

struct client_join;
/* The communicator is part of the job, or was: the process leaves it with the last one. Null is accepted. */
struct client_join *join_hold(struct client_join *join);
void join_release(struct client_join *join);
void join_handle_waiting(struct comm_client *client, const Commd__Client__Waiting *event);
/* Ends calls of comm_join for this name, or, if it is null, all. May release the lock. */
void joins_cancel(struct comm_client *client, const char *name);
/* Frees all jobs, of a client that ends. */
void joins_free_all(struct comm_client *client);

/* --- connection.c --- */

/* CLOCK_MONOTONIC */
static inline uint64_t clock_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}
/* CLOCK_MONOTONIC_COARSE: behind by at most CLOCK_COARSE_TICK_NS, and read in a quarter of the time. */
#define CLOCK_COARSE_TICK_NS 10000000u
static inline uint64_t clock_coarse_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}
uint64_t clock_after_ms(uint64_t ms);
/* Starts a thread of the library; its argument is the client. It blocks all signals, which are for the
 * program, except those of its own faults. Returns 0 or an errno value. */
int client_thread_start(struct comm_client *client, void *(*function)(void *), pthread_t *out);
/* The timeout for poll: until the deadline, but at most a fixed maximum. */
int poll_timeout_ms(uint64_t deadline_ns);

/* Reports a null pointer, or a process that has not opened the client (a child of fork). */
comm_result_t client_check(const struct comm_client *client);
/* As client_check; then takes the lock. */
comm_result_t client_enter(struct comm_client *client);
void client_leave(struct comm_client *client);

/* Ends the connection: all operations and all waiting calls end with this result. */
void client_lose(struct comm_client *client, comm_result_t result, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Waits for events and handles them, then sends held operations. Releases the lock meanwhile. Returns at the
 * deadline at the latest, plus the time to send. */
void client_progress(struct comm_client *client, uint64_t deadline_ns);
/* As client_progress, for a thread that waits for a completion of this queue. It also wakes when another
 * thread has one, and by comm_queue_wake. */
void client_progress_queue(struct comm_client *client, struct comm_queue *queue, uint64_t deadline_ns);
/* Makes sure that the doorbell or the socket shows what comes next, unless another thread reads. Handles what
 * has come meanwhile. */
void client_arm(struct comm_client *client);
/* Handles events that have already arrived, unless another thread reads. Does not release the lock. */
void client_take_events(struct comm_client *client);
/* As client_take_events, but always looks at the socket, too, and so notices the end of the connection. */
void client_take_all(struct comm_client *client);

/*
 * Sends one packet, and with it `fd` unless negative. The caller keeps fd. May release the lock. Returns
 * COMM_TIMED_OUT (nothing was sent) or client->lost, without reporting it.
 */
comm_result_t client_send_packet(struct comm_client *client, const void *packet, size_t size_bytes, int fd,
                                 uint64_t deadline_ns);

/* --- question.c --- */

/* How to send one request, and which reply is expected. */
struct client_question {
    const char *what; /* for messages: "joining a communicator" */
    Commd__Client__Reply__BodyCase expected;
    int fd; /* -1: none */
    uint64_t deadline_ns;
    const struct comm_comm *needs; /* null, or a communicator: if it fails, nobody waits for the answer */
};
/*
 * Sends a request and waits for its reply; releases the lock meanwhile. On success *event holds the expected
 * body, and the caller frees it. Failures are reported. After COMM_TIMED_OUT, the loss of the connection or
 * the failure of the communicator that the question needs, it is unknown whether commd carried out the
 * request. Only then *unanswered is set (it may be null).
 */
comm_result_t client_ask(struct comm_client *client, Commd__Client__Request *request,
                         const struct client_question *question, Commd__Client__Event **event,
                         bool *unanswered);
/* client_ask in two steps, so that a thread can wait for the replies to several requests. After the first
 * step, the caller must call the second one, with the same question. `waiting` must not move meanwhile. */
void client_ask_begin(struct comm_client *client, Commd__Client__Request *request,
                      const struct client_question *question, struct client_request *waiting);
comm_result_t client_ask_end(struct comm_client *client, const struct client_question *question,
                             struct client_request *waiting, Commd__Client__Event **event, bool *unanswered);
/* Sends a request without waiting for the reply. Failures are not reported. May release the lock. */
void client_tell(struct comm_client *client, Commd__Client__Request *request);
/* As client_tell, but does not wake commd: a sleeping commd sees the request with the next packet. */
void client_tell_quietly(struct comm_client *client, Commd__Client__Request *request);

/* --- heart.c --- */

/*
 * A waiting thread looks at commd's heartbeat at least every HEART_LOOK_NS. After enough time without a new
 * beat, commd counts as lost. That is the nodes' patience, which commd tells, and one beat: a commd that goes
 * on at the end of the patience has yet to beat. So clients know it at most two looks later than that. Time
 * in which this process itself did not run counts for HEART_STEP_MAX_NS only. So stopping both processes and
 * continuing both causes no loss.
 */
#define HEART_LOOK_NS 100000000u
#define HEART_STEP_MAX_NS 400000000u
/* The least of that time. It is the time for a commd that does not tell the patience. */
#define HEART_STILL_MS 2400u
#define HEART_PATIENCE_MAX_MS 600000u /* the configuration's largest */
#define HEART_LONG_MS 60000u          /* the least while a call of commd may take long */

/* Takes ownership of the descriptors. Returns false if they cannot be used. */
bool heart_open(struct client_heart *heart, const int fds[CLIENT_HEARTBEAT_FDS]);
void heart_close(struct client_heart *heart);
/* What commd's Hello says of the nodes' patience; 0: nothing. Before the first look. */
void heart_set_patience(struct client_heart *heart, uint32_t patience_ms);
/* How long commd may stand still before it counts as lost. */
uint32_t heart_still_ms(const struct client_heart *heart);
/* May be called from any thread. Each thread needs its own watch, initially zero. */
bool heart_stands_still(const struct client_heart *heart, struct heart_watch *watch, uint64_t now_ns);
/* Ends the connection with COMM_DAEMON_LOST because commd stands still. */
void client_lose_frozen(struct comm_client *client);
/* After client_lose_frozen: whether commd's process lives, and so may still write to registered buffers. */
bool client_daemon_may_write(const struct comm_client *client);
/* After client_lose_frozen: waits for the end of commd's process; releases the lock meanwhile. */
void client_await_daemon_end(struct comm_client *client, uint64_t deadline_ns);
/* Reads COMMD_WAIT_MS; 0 if it is not set. No lock. Failures are reported. client.c */
comm_result_t client_wait_from_environment(uint32_t *out);

/* --- comm.c --- */

struct comm_comm *member_by_handle(const struct comm_client *client, uint32_t handle);
/* Leaves without waiting for the answer; a communicator that is forming ends. May release the lock. */
void member_tell_destroyed(struct comm_client *client, uint32_t handle);
/* Joins the generation after a communicator that has failed (comm_shrink). */
comm_result_t member_next(struct comm_comm *failed, uint64_t timeout_ms, struct comm_comm **out);
/* Keeps what the nodes agreed on; null: nothing. shrink.c */
void member_take_verdict(struct comm_comm *comm, const Commd__Client__Verdict *verdict);
/* Joins a communicator with some of the communicator's ranks, or with all and more. As comm_init, but it also
 * fails when `comm` fails. */
comm_result_t member_split_off(struct comm_comm *comm, const char *name, uint32_t rank, uint32_t size,
                               const comm_init_options_t *options, struct comm_comm **out);
/* A communicator that a thread joins, between the request and the reply. It must not move meanwhile. */
struct member_forming {
    struct client_request request;
    struct client_question question;
    char what[COMM_NAME_MAX_BYTES + 64];
};
/* Begins to join, with the communicator's ranks, another one of that name, which is part of it. If it
 * succeeds, the caller must call member_join_part_end. May release the lock. Failures are reported. */
comm_result_t member_join_part_begin(struct comm_comm *comm, const char *name, struct client_graph *graph,
                                     struct member_forming *forming, struct comm_comm **out);
/* Waits for all ranks of the part; releases the lock meanwhile. Frees the part if that fails. Failures are
 * reported. */
comm_result_t member_join_part_end(struct comm_comm *part, struct member_forming *forming);
/* Leaves a part at once, without waiting for commd, and frees it. */
void member_leave_part(struct comm_comm *part);
/* Leaves the communicator and frees it. Pending operations may end until the deadline. May release the lock.
 */
void member_drop(struct comm_comm *comm, uint64_t deadline_ns);
/* Marks the communicator as failed. Later failures do not replace the first. */
void member_fail(struct comm_comm *comm, comm_result_t failure, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* Returns COMM_OK, or reports why the communicator has failed. */
static inline comm_result_t member_check(const struct comm_comm *comm)
{
    return comm->failure == COMM_OK ? COMM_OK : error_repeat_failure(&comm->failure_data, comm->failure_text);
}

/* --- call.c: checks the arguments of a call; without the lock --- */

#define CALL_BUCKET_MAX_BYTES ((size_t)64 << 20)

/*
 * One buffer of a call. With a layout it has a block for each rank; otherwise it is one piece. The blocks of
 * a list are anywhere.
 */
struct call_buffer {
    void *at;        /* null: the operation has no such buffer on this rank. Of a list: the lowest address */
    size_t elements; /* from the first to the last that is touched; of a list: of all blocks */
    const size_t *counts;        /* null: no layout */
    const size_t *displacements; /* null: the blocks follow each other */
    void *const *list;           /* null, or where each rank's block is; then displacements is null */
};

struct client_call {
    const char *name;
    struct op_terms terms;
    uint32_t peer;
    uint32_t tag;
    bool stages_input; /* host input is copied even if commd has mapped it */
    bool keeps_output; /* the output must not be copied out: it stays as it is */
    struct call_buffer input;
    struct call_buffer output;
    comm_call_options_t options;
};

/* Starts to fill a call: kind, dtype, count and options. Failures are reported. */
comm_result_t call_begin(struct client_call *call, const char *name, enum op_kind kind,
                         const struct comm_comm *comm, comm_dtype_t dtype, size_t count,
                         const comm_call_options_t *options);
comm_result_t call_set_reduce(struct client_call *call, const struct comm_comm *comm, comm_op_t op);
comm_result_t call_set_root(struct client_call *call, const struct comm_comm *comm, uint32_t root);
/* A buffer of `blocks` blocks of the call's count. */
comm_result_t call_set_buffer(const struct client_call *call, const struct comm_comm *comm,
                              struct call_buffer *buffer, const void *at, size_t blocks, const char *which);
/* A buffer of one block for each rank. */
comm_result_t call_set_layout(const struct client_call *call, const struct comm_comm *comm,
                              struct call_buffer *buffer, const void *at, const size_t *counts,
                              const size_t *displacements, const char *which);
/* A list with one block for each rank. */
comm_result_t call_set_list(const struct client_call *call, const struct comm_comm *comm,
                            struct call_buffer *buffer, void *const *list, const size_t *counts,
                            const char *which);
/* On the root: checks that its own entry in counts equals the count of its own block. */
comm_result_t call_check_own_count(const struct client_call *call, const struct comm_comm *comm,
                                   const size_t *counts);
/* Checks that the buffers do not overlap, or that one is at element `own_block` of the other (SIZE_MAX: both
 * begin at the same address). */
comm_result_t call_check_overlap(const struct client_call *call, const struct comm_comm *comm,
                                 size_t own_block);
/* Copies a call with its layouts. Returns null if memory is short. Free the copy with free(). */
struct client_call *call_copy(const struct client_call *call, uint32_t size);
size_t call_block_begin(const struct call_buffer *buffer, uint32_t rank);
size_t call_buffer_bytes(const struct client_call *call, const struct call_buffer *buffer);
/* Whether its input overlaps the output of the other call, which may be the same call. */
bool call_reads_output_of(const struct client_call *call, const struct client_call *other);
/* Whether one of its buffers overlaps these bytes. size: of the communicator. */
bool call_works_on(const struct client_call *call, uint32_t size, const void *at, size_t size_bytes);

/* --- request.c --- */

/* Returns null if memory is short. Without the lock. */
struct comm_request *request_new(struct comm_comm *comm);
/* Frees the handle, its text and its call. No operation may point to it. Null is accepted. */
void request_free(struct comm_request *request);
/* Sets the handle's result. data: of a failure; null: only the result is known. */
void request_end(struct comm_request *request, comm_result_t result, const comm_failure_t *data,
                 const char *text);
/* A group releases the handle. Returns it, or null if the caller has freed it meanwhile. Null is accepted. */
struct comm_request *request_leave_group(struct comm_request *request);

/* --- event.c --- */

/* When a client is closed: frees the events that were not destroyed. Without the client's lock. */
void events_free_all(struct comm_client *client);
/* Marks all records of the communicator as reached, because commd will not carry them out any more. */
void records_forget(struct comm_comm *comm);
/* Collects the marks that an operation or a record submitted now waits for, including its stream's word.
 * Returns their number. order may be null. */
uint32_t member_collect_waits(struct comm_comm *comm, const struct stream_order *order,
                              struct fence_mark out[CLIENT_FENCES_MAX]);
/* commd keeps RECORDS_MAX records of a rank. The first function says whether there is room for one more, the
 * second takes the room. */
bool records_have_room(struct comm_comm *comm);
void records_take_room(struct comm_comm *comm, const struct fence_mark *mark);
/* waits: the marks that must be reached before the record. */
void record_make(const struct comm_comm *comm, const struct fence_mark *mark, uint64_t ticket,
                 const struct fence_mark *waits, uint32_t wait_count, struct submit_record *out);

/* --- pool.c --- */

/* When a client is closed: frees its pools, but not their memory. Without the client's lock. */
void pools_free_all(struct comm_client *client);
/* The pools of `from` are the client's then, as their memory is already. With the client's lock. */
void pools_move(struct comm_client *client, struct comm_client *from);

#endif
