#ifndef CLIENT_LIB_INTERNAL_H
#define CLIENT_LIB_INTERNAL_H

#include <commclient.h>

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>
#include <time.h>

#include "client/lib/fence.h"
#include "client/lib/gpu/devices.h"
#include "client/lib/held.h"
#include "client/lib/memory.h"
#include "proto/client.pb-c.h"
#include "proto/heartbeat.h"
#include "proto/records.h"
#include "proto/ring.h"
#include "proto/status.h"
#include "proto/trace_event.h"
#include "proto/types.h"
#include "proto/version.h"

/*
 * What the library's files share. One lock a client guards everything of it. Whoever waits reads the socket,
 * one thread at a time, and hands out what arrives; the others wait for it to do so. The library has threads
 * of its own only while they are needed: for a client whose operations are ordered against CUDA streams
 * (watchdog.c), that holds collectives (held.c), or that keeps memory for staging (staging.c).
 *
 * Functions that take a client or a communicator expect its lock held, unless they say otherwise. Those that
 * may send or wait let go of it meanwhile, and say so: nothing that another thread may change is to be
 * remembered across them.
 */

#define ERROR_TEXT_BYTES 768
#define OPS_IN_FLIGHT_MAX 1024u /* of one communicator; the daemon may say less */
#define OPEN_TIMEOUT_DEFAULT_MS 10000u
#define FORM_TIMEOUT_DEFAULT_MS 60000u
#define OP_TIMEOUT_DEFAULT_MS 60000u
#define REQUEST_TIMEOUT_MS 10000u /* for answers that commd gives at once */
#define DAEMON_MARGIN_MS 5000u    /* beyond commd's own deadline, before it counts as frozen */
#define BUSY_TIMEOUT_MS                                                                                      \
    5000u /* how long commd may use memory that is to be freed, or whose place other memory has */
#define FINISH_TIMEOUT_MS 1000u /* how long destroy and close try to finish, and a notice to be sent */
#define REQUEST_MAX_BYTES                                                                                    \
    16384 /* what a request is packed in; the texts of comm_init are the only long ones */
#define ALGORITHMS_MAX_BYTES 1024
#define TRACE_ROWS_MAX 64u     /* of a rank's operations that overlap; those beyond share the last */
#define OPTIONS_MAX_BYTES 4096 /* a struct_size beyond is garbage, not a newer library's */

#define COMM_WAITS_MAX (CLIENT_FENCES_MAX - 1u) /* one is for the operation's stream */
#define RECORDS_MAX 1024u                       /* of a communicator, that commd has not carried out */

/* What is copied out of a staging block when the operation has ended well. */
struct client_copy {
    void *to;
    const void *from;
    size_t size_bytes;
};

enum client_use { USE_INPUT, USE_OUTPUT, USE_LAYOUTS, USE_RESIDUAL, USE_COUNT };

/* An operation in flight or held, in its communicator's list, oldest first. */
struct client_op {
    struct client_op *prev, *next;
    struct client_held *held;         /* what it waits in; null: commd has it */
    bool staging;                     /* held, and its buffers are being copied: it does not end meanwhile */
    bool dropped;                     /* likewise: then it ends */
    struct client_op *next_in_bucket; /* of the communicator's table by ticket */
    uint64_t ticket;
    uint64_t submitted_ns;
    uint64_t deadline_ns; /* commd's; it has DAEMON_MARGIN_MS more to say so */
    enum op_kind kind;
    enum dtype dtype;
    struct client_memory *uses[USE_COUNT]; /* null where there is none */
    size_t staged_bytes;                   /* of a collective; 0: nothing is staged */
    struct fence_slot *slot;               /* its words; null: no stream is ordered against it */
    struct fence_mark ended;
    struct comm_request *request; /* whoever waits for it by itself; null: nobody */
    uint32_t copy_count;
    struct client_copy copies[];
};

/*
 * A handle: of one operation, or of a call that can be started again. The caller's; while its operation is in
 * flight, the operation points here.
 */
struct comm_request {
    struct comm_comm *comm;
    struct client_call *call; /* persistent: what is started; null otherwise */
    struct client_op *op;     /* in flight; null when there is none */
    bool ended;               /* and not waited for yet */
    bool collected;           /* by a group that has not ended; that group points here */
    bool freed;               /* likewise: the group frees it */
    comm_result_t result;
    comm_received_t received;
    char *text; /* of a failure; null: its short text has to do */
};

/* What commd was told to record and has not yet, oldest first: a ring. */
struct member_records {
    struct fence_mark *marks; /* RECORDS_MAX; null until there is one */
    uint32_t first;
    uint32_t count;
};

struct comm_comm {
    struct comm_client *client;
    struct comm_comm *next;
    struct client_gpu *gpu; /* null: the host */
    int device;             /* as comm_init was told */
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
    struct client_op *ops;      /* in flight or held, oldest first */
    struct client_op **buckets; /* the same by ticket */
    uint32_t bucket_count;      /* a power of two */
    struct member_records records;
    struct fence_mark
        waits[COMM_WAITS_MAX]; /* of comm_event_wait_comm: until they are reached, for every op */
    uint32_t wait_count;
    uint32_t op_count;              /* in flight or held */
    uint32_t collectives_in_flight; /* of these */
    size_t staged_bytes;            /* of the collectives in flight */
    struct client_held *held;       /* oldest first; see held.c */
    uint32_t held_count;
    uint64_t held_retry_ns; /* not to be fed before */
    bool leaving;           /* what is held is not sent any more */
    uint64_t last_ticket;
    uint64_t heard_ns;     /* when commd last said something of this communicator */
    comm_result_t failure; /* the first one; stays */
    char failure_text[ERROR_TEXT_BYTES];
    comm_result_t op_failure; /* of an operation alone, without handle: for the next that waits for all */
    char op_failure_text[ERROR_TEXT_BYTES];
    uint64_t comm_id;
    uint32_t split_count;
    uint32_t trace_row_count; /* trace.c: rows of bars, and when the last bar of each ends */
    uint64_t trace_row_ends_ns[TRACE_ROWS_MAX];
    comm_init_options_t options; /* as it was made with; algorithms is in the copy below */
    char *algorithms;
};

/* A request whose reply somebody waits for; lives on that thread's stack. */
struct client_request {
    struct client_request *next;
    uint64_t id;
    Commd__Client__Event *event; /* null until it arrived */
};

/* What commd shows of itself; page is null where it shows nothing. As it is since the connection was made. */
struct client_heart {
    const struct client_heartbeat *page;
    int daemon_fd; /* a pidfd */
};

/* What one who looks at it has seen. */
struct heart_watch {
    uint64_t beats;
    uint64_t looked_ns;
    uint32_t still; /* looks in a row, HEART_LOOK_NS apart or more, at which it stood still */
};

#define CLIENT_HELLO_FDS (CLIENT_RING_FDS + CLIENT_HEARTBEAT_FDS)

struct comm_client {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    pid_t pid;
    int fd;
    struct client_rings *rings; /* null: the socket alone */
    struct client_heart heart;
    struct heart_watch heart_watch;
    bool frozen;    /* lost because commd stood still: its process may live, and go on */
    uint32_t looks; /* at the ring, without waiting */
    char *path;
    bool reading;       /* a thread waits at the socket: it alone takes events */
    comm_result_t lost; /* COMM_OK while connected */
    char lost_text[ERROR_TEXT_BYTES];
    uint64_t last_request_id;
    uint32_t last_handle;
    uint32_t last_memory_id;
    uint32_t pending_ops_max;
    struct client_request *requests;
    struct comm_comm *comms;
    struct client_gpu *gpus; /* of its communicators and memories; changed under the fences' lock besides */
    struct client_fences fences;
    struct comm_event *events;       /* under the fences' lock */
    struct client_memory **memories; /* the caller's, by address */
    int hello_fds[CLIENT_HELLO_FDS]; /* that came with Hello's reply, until taken */
    size_t hello_fd_count;
    size_t memory_count;
    uint64_t withdrawn_quietly_bytes; /* since commd was last woken for such */
    size_t memory_capacity;
    struct client_trace *trace; /* null: none is written */
    struct staging_pool staging;
    struct client_feeder feeder;
    bool records_by_ticket; /* commd knows up to which operation a record counts */
    unsigned char packet[CLIENT_PACKET_MAX_BYTES];
};

/* --- result.c: any thread, no lock --- */

/* Keeps the long text for comm_last_error of this thread; returns `result`. */
comm_result_t error_report(comm_result_t result, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
comm_result_t error_repeat(comm_result_t result, const char *text);
/* Puts where it happened before the text of the failure that was just reported. */
comm_result_t error_within(comm_result_t result, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* A failure's code off the wire: never COMM_OK or COMM_IN_PROGRESS. */
comm_result_t failure_from_wire(uint32_t number);
/*
 * Copies an options struct of any known size over the defaults in `target`; null leaves those. `call` and
 * `initializer` are for the message. COMM_INVALID_ARGUMENT.
 */
comm_result_t options_copy(void *target, size_t known_size, const void *source, const char *call,
                           const char *initializer);

/* --- trace.c: what the program's operations did, in a file for Perfetto --- */

/* Begins, where COMMD_TRACE asks for it; without memory, or where no file can be written, there is no trace.
 */
void trace_open(struct comm_client *client, const char *node_name);
void trace_close(struct client_trace *trace);
void trace_write_op(struct client_trace *trace, struct comm_comm *comm, const struct client_op *op,
                    comm_result_t result);
/* An operation has ended, and the program can see that. */
static inline void trace_op_seen(struct client_trace *trace, struct comm_comm *comm,
                                 const struct client_op *op, comm_result_t result)
{
    TRACE_PROBE(op_seen, comm->comm_id, op->ticket, op->kind, comm->rank, 0, result);
    if (__builtin_expect(trace != NULL, 0)) {
        trace_write_op(trace, comm, op, result);
    }
}

/* --- connection.c --- */

/* CLOCK_MONOTONIC */
static inline uint64_t clock_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}
uint64_t clock_after_ms(uint64_t ms);
/* Starts a thread of the client's, which gets the client; signals are the program's, it gets none. Returns 0,
 * or the number of the error. */
int client_thread_start(struct comm_client *client, void *(*function)(void *), pthread_t *out);
/* For poll: until the deadline, but not for ever. */
int poll_timeout_ms(uint64_t deadline_ns);

/* Reports a null pointer, or another process than the one that opened it. */
comm_result_t client_check(const struct comm_client *client);
/* Takes the lock; reports a null pointer, or another process than the one that opened it. */
comm_result_t client_enter(struct comm_client *client);
void client_leave(struct comm_client *client);

/* The connection is of no use any more: every operation, and whoever waits, ends with this. */
void client_lose(struct comm_client *client, comm_result_t result, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Lets something happen, with the lock let go, and feeds commd; returns latest at the deadline, or after what
 * feeding takes. */
void client_progress(struct comm_client *client, uint64_t deadline_ns);
/* Takes the events that are there already, unless another thread is at it. Does not let go of the lock. */
void client_take_events(struct comm_client *client);
/* The same, looking everywhere: also for the end of the connection. */
void client_take_all(struct comm_client *client);

/*
 * Sends one packet, with `fd` beside it unless negative, which stays the caller's. May let go of the lock.
 * Not reported: COMM_TIMED_OUT (nothing was sent), or what client->lost says.
 */
comm_result_t client_send(struct comm_client *client, const Commd__Client__Request *request, int fd,
                          uint64_t deadline_ns);
comm_result_t client_send_packet(struct comm_client *client, const void *packet, size_t size_bytes, int fd,
                                 uint64_t deadline_ns);

/* One request and what is expected of its reply. */
struct client_question {
    const char *what; /* for messages: "joining a communicator" */
    Commd__Client__Reply__BodyCase expected;
    int fd; /* -1: none */
    uint64_t deadline_ns;
};
/*
 * Asks and waits, with the lock let go. On success *event is the caller's to free, and holds the expected
 * body. Failures are reported; COMM_TIMED_OUT and the loss of the connection leave open whether commd did it,
 * and then, and only then, *unanswered is set (it may be null).
 */
comm_result_t client_ask(struct comm_client *client, Commd__Client__Request *request,
                         const struct client_question *question, Commd__Client__Event **event,
                         bool *unanswered);
/* Tells without waiting for the answer; whatever comes of it is not reported. May let go of the lock. */
void client_tell(struct comm_client *client, Commd__Client__Request *request);
/* The same where it is early enough that commd hears it with what is sent next. */
void client_tell_quietly(struct comm_client *client, Commd__Client__Request *request);

/* --- heart.c --- */

/*
 * A look at commd's heartbeat each HEART_LOOK_NS, while somebody waits: after so many in a row at which it
 * stood still commd counts as lost, within 3 s. Time in which this process did not run itself is one look, no
 * more: whoever stops both, and lets both go on, causes no loss.
 */
#define HEART_LOOK_NS 400000000u
#define HEART_STILL_LOOKS 6u
#define HEART_LONG_LOOKS                                                                                     \
    150u /* in a row, where commd says that it is in a call that may take long: a minute */

/* Takes the descriptors over. False: they cannot be used. */
bool heart_open(struct client_heart *heart, const int fds[CLIENT_HEARTBEAT_FDS]);
void heart_close(struct client_heart *heart);
/* Any thread, with a watch of its own, all zero at first. */
bool heart_stands_still(const struct client_heart *heart, struct heart_watch *watch, uint64_t now_ns);
/* commd stands still: DAEMON_LOST. */
void client_lose_frozen(struct comm_client *client);
/* After that: whether commd's process lives, and may write to registered buffers when it goes on. */
bool client_daemon_may_write(const struct comm_client *client);
/* After that: waits for the end of commd's process, with the lock let go. */
void client_await_daemon_end(struct comm_client *client, uint64_t deadline_ns);

/* --- rings.c: packets without the socket --- */

#define RING_SPIN_MAX_NS 50000u /* about what it costs to be woken, and to wake */
#define RING_SPIN_MIN_NS 2000u
/* Who gives way for longer shares its processor: it is woken sooner than it gets its turn. */
#define RING_CROWDED_NS 2000000u
#define RING_REST_MIN_NS 10000000u /* no looking for so long then; longer while it stays so */
#define RING_REST_MAX_NS 1000000000u

struct client_rings {
    unsigned char *memory;
    int bell_fd;        /* commd rings it */
    int daemon_bell_fd; /* we do */
    struct ring in, out;
    uint64_t spin_ns; /* how long to look before waiting; adapted */
    uint64_t rest_ns, rest_until_ns;
};

/* Whether the memory behind fd has that many bytes and a seal keeps it from being cut: a touch beyond its end
 * would kill the process. */
bool memory_is_fixed(int fd, size_t least_bytes);
/* Whether commd cannot harm us by them: their memory stays, and their doorbells never block. */
bool rings_are_safe(const int fds[CLIENT_RING_FDS]);
/* Takes the descriptors over. Null when they cannot be used, or without memory. */
struct client_rings *rings_open(const int fds[CLIENT_RING_FDS]);
void rings_close(struct client_rings *rings);
/*
 * Waits for a packet, without the lock: a moment awake, then at socket and bell. events: of the socket.
 * Returns whether it came to that: then the socket may have something, too.
 */
bool rings_wait(struct client_rings *rings, int socket_fd, short events, uint64_t deadline_ns);
/* FULL: commd rings when there is room again. */
enum ring_result rings_send(struct client_rings *rings, const void *packet, size_t size_bytes);
/* The same without a bell: a commd that sleeps takes it with what follows. */
enum ring_result rings_send_quietly(struct client_rings *rings, const void *packet, size_t size_bytes);
/* After packets were taken. */
void rings_taken(struct client_rings *rings);

/* --- comm.c --- */

struct comm_comm *member_by_handle(const struct comm_client *client, uint32_t handle);
/* Leaves the communicator and frees it; what is pending may end until the deadline. May let go of the lock.
 */
void member_drop(struct comm_comm *comm, uint64_t deadline_ns);
/* Keeps the first failure. */
void member_fail(struct comm_comm *comm, comm_result_t failure, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* COMM_OK, or reports why nothing can be submitted any more. */
static inline comm_result_t member_check(const struct comm_comm *comm)
{
    return comm->failure == COMM_OK ? COMM_OK : error_repeat(comm->failure, comm->failure_text);
}

/* --- op.c --- */

/* The communicator's table of operations in flight. False without memory. */
bool ops_init(struct comm_comm *comm);
void ops_handle_completion(struct comm_client *client, const struct completion_record *completion);
void ops_handle_aborted(struct comm_client *client, const Commd__Client__Aborted *aborted);
/* Lets go of the communicator's operations, whatever they were. */
void ops_forget(struct comm_comm *comm);
/*
 * Waits, with the lock let go, until no operation up to `ticket` is in flight, and returns the communicator's
 * failure, or that of an operation that nobody was told of yet. COMM_TIMED_OUT at the deadline. A commd that
 * says nothing beyond the operations' own deadlines is a failure.
 */
comm_result_t ops_finish(struct comm_comm *comm, uint64_t ticket, uint64_t deadline_ns);
/* Until when the communicator's operations in flight may take, as ops_finish sees it; now, without any. */
uint64_t ops_latest_ns(const struct comm_comm *comm);
/* Until when an operation that uses the memory may take, likewise. */
uint64_t ops_deadline_ns(const struct comm_client *client, const struct client_memory *memory);
/* Waits, with the lock let go, until the handle's operation has ended, or is found never to. */
void ops_finish_request(struct comm_request *request);
/* Lets something happen, as ops_finish_request does, once. */
void ops_progress(const struct comm_request *request, uint64_t began_ns);
/* Puts it last in the list, which owns it from then on, and gives it its number and deadline. */
void ops_append(struct comm_comm *comm, struct client_op *op, uint32_t timeout_ms);
/*
 * Sends what was appended: records, in one packet. When it cannot be sent for timeout_ms and
 * DAEMON_MARGIN_MS, the communicators of all of them fail. May let go of the lock. Not reported: see
 * member_check.
 */
void ops_send(struct comm_client *client, const void *packet, size_t size_bytes, uint32_t timeout_ms);
/* Whether one more collective, with `staged_bytes` of staging, may be in flight. */
bool ops_have_room(const struct comm_comm *comm, size_t staged_bytes);
/* One that was held is sent: it counts as in flight, and its deadline from now on. */
void ops_release(struct comm_comm *comm, struct client_op *op, uint32_t timeout_ms);
/* Ends one in the list without commd's word, with the communicator's failure if it has one. */
void ops_drop(struct comm_comm *comm, struct client_op *op);
/* Gives back what an operation uses, lets its stream go on, and frees it; clean: commd is done with it. */
void op_free(struct comm_client *client, struct client_op *op, bool clean);

/* --- call.c: what a call is, checked; no lock --- */

#define CALL_BUCKET_MAX_BYTES ((size_t)64 << 20)

/* One buffer of a call. Blocks by rank where there is a layout; otherwise one piece. */
struct call_buffer {
    void *at;                    /* null: the operation has no such buffer on this rank */
    size_t elements;             /* from the first to the last that is touched */
    const size_t *counts;        /* null: no layout */
    const size_t *displacements; /* null: one block after the other */
};

struct client_call {
    const char *name;
    struct op_terms terms;
    uint32_t peer;
    uint32_t tag;
    bool stages_input; /* the input is copied even where commd has mapped it, on the host */
    bool keeps_output; /* the output holds already what commd would write */
    struct call_buffer input;
    struct call_buffer output;
    comm_call_options_t options;
};

/* Begins a call: its options and type. Reported. */
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
/* They are apart, or one is where the other has its block `own_block` (SIZE_MAX: both begin at the same
 * place). */
comm_result_t call_check_overlap(const struct client_call *call, const struct comm_comm *comm,
                                 size_t own_block);
/* A copy with its layouts; null without memory. To be freed by free(). */
struct client_call *call_copy(const struct client_call *call, uint32_t size);
size_t call_block_begin(const struct call_buffer *buffer, uint32_t rank);

/* --- submit.c --- */

/* Submits, or collects in a group, or makes a persistent handle: whatever the options say. Takes the lock.
 * Reported. */
comm_result_t call_submit(struct comm_comm *comm, const struct client_call *call);
/* As call_submit, and then waits for all that was submitted until then. */
comm_result_t call_submit_and_sync(struct comm_comm *comm, const struct client_call *call);
/* Submits at once, under the lock: several in one packet. requests[i] may be null. Reported; what was
 * submitted before a failure stays, the others' places in streams are abandoned. */
struct client_entry {
    struct comm_comm *comm;
    struct client_call *call;
    struct comm_request *request;
    struct stream_order order;
};
comm_result_t call_submit_entries(struct comm_client *client, struct client_entry *entries, size_t count);

/* Several records, in one packet. */
struct submit_packet {
    size_t size_bytes;
    uint32_t timeout_ms; /* of the first one's communicator */
    unsigned char bytes[REQUEST_MAX_BYTES];
};
/* Sends what is there before where it would be too much; then, and in packet_send, lets go of the lock. */
void packet_add(struct comm_client *client, struct submit_packet *packet, const struct comm_comm *comm,
                const struct submit_record *record);
void packet_send(struct comm_client *client, struct submit_packet *packet);

/* Finds or makes staging for what commd has not mapped, and copies; what is there already stays. May let go
 * of the lock. Reported. */
comm_result_t submit_stage(struct comm_comm *comm, const struct client_call *call, struct client_op *op);
/* All but its ticket, of an operation whose buffers are all where commd finds them. */
void submit_make_record(const struct comm_comm *comm, const struct client_call *call,
                        const struct client_op *op, const struct fence_mark *waits, uint32_t wait_count,
                        struct submit_record *out);

/* --- request.c --- */

/* Null without memory. Without the lock. */
struct comm_request *request_new(struct comm_comm *comm);
/* With its text and call; no operation points to it. Null is accepted. */
void request_free(struct comm_request *request);
/* It ends with this result. */
void request_end(struct comm_request *request, comm_result_t result, const char *text);
/* A group is done with it: returns it, or null when it was freed meanwhile. Null is accepted. */
struct comm_request *request_leave_group(struct comm_request *request);

/* --- event.c --- */

/* At the end of the client: those that were not destroyed. Without its lock. */
void events_free_all(struct comm_client *client);
/* Nobody is going to carry out the communicator's records any more. */
void records_forget(struct comm_comm *comm);
/* Forgets what operations need not wait for any more. */
void member_drop_reached(struct comm_comm *comm);
/* What an operation or a record that is submitted now waits for, besides its stream's word. */
uint32_t member_collect_waits(struct comm_comm *comm, const struct stream_order *order,
                              struct fence_mark out[CLIENT_FENCES_MAX]);
/* commd keeps RECORDS_MAX records of a rank: whether there is room for one, and to take it. */
bool records_have_room(struct comm_comm *comm);
void records_take_room(struct comm_comm *comm, const struct fence_mark *mark);
/* waits: what is to be reached before. */
void record_make(const struct comm_comm *comm, const struct fence_mark *mark, uint64_t ticket,
                 const struct fence_mark *waits, uint32_t wait_count, struct submit_record *out);

/* --- group.c --- */

bool group_is_open(void);
/* The handle is marked as collected by the caller, who leaves the group with it where this fails. */
comm_result_t group_add(struct comm_comm *comm, const struct client_call *call, struct comm_request *request,
                        const struct stream_order *order);
/* The communicator is left: what this thread's group has collected for it is not submitted. Its handles end
 * with COMM_ABORTED. */
void group_forget(struct comm_comm *comm);
/* Ends the thread's groups; nothing of them is submitted. Handles are of no operation then. */
void group_drop(void);

#endif
