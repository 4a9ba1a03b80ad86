#ifndef DAEMON_API_SESSION_H
#define DAEMON_API_SESSION_H

#include "daemon/api/api.h"
#include "daemon/api/listener.h"
#include "daemon/base/control_group.h"
#include "daemon/base/dying.h"
#include "daemon/base/history.h"
#include "daemon/base/log.h"
#include "daemon/base/pacer.h"
#include "daemon/base/table.h"
#include "daemon/base/time.h"
#include "daemon/gpu/devices.h"
#include "proto/client.pb-c.h"
#include "proto/heartbeat.h"
#include "proto/records.h"
#include "proto/ring.h"
#include "proto/version.h"

/* What the files of daemon/api share: the server, its sessions, and what a session holds. */

#define API_RING_AWAKE_NS (1 * TIME_MS) /* a ring that is empty for so long is no longer polled */

struct api_packet {
    struct api_packet *next;
    bool on_socket; /* sent on the socket even if there are rings: it carries descriptors */
    int fd;         /* one that it carries, and owns; -1: none, or those of Hello's reply */
    size_t size_bytes;
    uint8_t bytes[];
};

struct api_graph;

/* One rank of the session. */
struct api_comm {
    uint32_t handle;
    struct api_session *session;
    struct comms_member *member;
    uint64_t init_request_id;
    char name[COMM_NAME_MAX_BYTES + 1];
    int gpu; /* GPU of the rank, or MEMORY_OF_HOST */
    bool formed;
    bool messages_wait; /* until the session takes completions of messages again */
    uint64_t op_timeout_ms;
    struct api_graph *graph; /* its captured operations; null: none */
    UT_hash_handle hh;
};

/* One store that the session has open. */
struct api_store {
    uint32_t handle;
    struct api_session *session;
    struct stores_handle *opened;
    UT_hash_handle hh;
};

/* A process of an elastic job. */
struct api_join {
    uint32_t handle;
    struct api_session *session;
    struct gathers_entry *entry;
    uint64_t request_id; /* its request that has no answer yet; 0: none */
    UT_hash_handle hh;
};

struct api_memory {
    uint32_t id;
    struct memory *memory;
    UT_hash_handle hh;
};

/* rings.c */
struct api_rings {
    unsigned char *memory;
    int memory_fd;
    bool charged;
    /*
     * The doorbells are Unix sockets, used with MSG_DONTWAIT. A client could change the flags of an eventfd.
     * It could keep a pipe locked by reading into memory whose page never comes. commd also keeps the
     * clients' ends open, so a client that closes its ends causes no event here.
     */
    int bell[2];        /* the client writes, commd reads */
    int client_bell[2]; /* commd writes, the client reads */
    struct loop_watch *bell_watch;
    struct loop_timer *bell_rest; /* null: it never rang too often without a reason */
    uint32_t bells_for_nothing;   /* rings without a reason, in a row */
    struct ring in, out;
    uint32_t last_taken; /* packets since its client disconnected */
    uint32_t taken;      /* packets since commd last checked whether to ring the client's bell */
    bool awake;          /* in api->awake: polled */
    bool rings_bell;     /* in api->bells: packets were put since the last ring */
    uint64_t busy_ns;
};

struct api_session {
    struct api *api;
    enum api_role role;
    struct api_rings *rings; /* null: it uses only the socket */
    struct api_session *awake_prev, *awake_next;
    struct api_session *bell_prev, *bell_next;
    uint64_t id;
    int fd;
    struct loop_watch *watch;
    int death_fd; /* a pidfd of the process that connected; -1: the kernel offers none */
    struct loop_watch *death_watch;
    struct dying_process *dying; /* from its first rank on; may be null */
    struct comms_client client;
    struct budget_account *account; /* charged for what the session holds */
    gid_t gid;
    char program[64];
    bool greeted;
    bool wants_failures; /* its client has CLIENT_FEATURE_FAILURES */
    bool wants_draining; /* its client has CLIENT_FEATURE_DRAINING */
    bool closing;        /* nothing more is read; it is freed once its queue is sent */
    bool broken;         /* nothing more is done, except to give back what it held */
    struct turn turn;
    uint64_t connected_ns;
    struct api_comm *comms;
    struct api_store *stores;
    struct api_join *joins;
    struct api_memory *memories;
    struct api_late *lates; /* requests whose answer comes when a GPU's thread is done */
    uint32_t late_count;
    uint64_t memory_bytes;
    uint32_t gpu_memory_count; /* memories that are on GPUs */
    uint64_t ops_submitted;
    uint64_t ops_completed;
    struct api_packet *out_first;
    struct api_packet **out_last;
    uint32_t out_count;
    uint64_t out_bytes;         /* of the packets that wait */
    uint64_t out_charged_bytes; /* charged to the account */
    bool charged;               /* its place is charged to the account; never for administrators */
    bool unheard;               /* it has not sent Hello */
    struct api_session *unheard_prev, *unheard_next;
    bool offers_fds;   /* the next packet carries the descriptors of rings and heartbeat */
    bool listens;      /* it reads the heartbeat */
    unsigned watched;  /* events that `watch` waits for */
    bool readable;     /* the socket may have data */
    bool socket_first; /* the last turn served the socket before the ring */
    bool dead; /* the process that connected has ended: what is on its socket is done, then `ending` is set */
    uint32_t last_packets; /* packets from its socket since `dead` was set */
    bool ending;           /* its client disconnected: what is in its ring is done, then it is broken */
    char *expelled;        /* not null: somebody ended the session; the text for its ranks' communicators */
    bool releasing;        /* it is broken, and gives back what it held piece by piece */
    struct {
        uint8_t *bytes; /* null: there is no list */
        size_t size, at;
    } list;                    /* submissions that wait for their turn; nothing else is read before */
    bool messages_wait;        /* some communicator has messages_wait */
    bool unread_waits;         /* the socket has data, but the session is not being read now */
    uint64_t ping_request_id;  /* 0: no ping under way */
    struct api_reload *reload; /* its reload that has no answer yet; null: none */
    bool traces;               /* it asked to record everything */
    struct {
        char *bytes; /* null: none */
        size_t size_bytes;
    } metrics; /* an administrator's: the text of which pages are being fetched */
    UT_hash_handle hh;
};

/* CUDA graphs that hold operations: graphs.c. */
struct api_graphs {
    struct api_graph *all; /* the one not looked at for longest is first */
    uint32_t count;
    struct api_graph *active; /* those that were replayed lately */
    struct loop_timer *timer; /* when to look next */
    struct pacer pacer;       /* how often the active ones are polled */
    uint64_t sweep_ns;        /* when all are looked at next */
    bool polls;               /* to be polled again at once */
};

struct api {
    struct loop *loop;
    struct comms *comms;
    struct stores *stores;   /* null: none */
    struct gathers *gathers; /* null: none */
    struct mesh *mesh;
    struct net *net;
    struct api_listener listeners[API_ROLE_COUNT];
    bool has_admin_group;
    gid_t admin_gid;
    struct fd_reaper *fd_reaper;
    struct gpu_devices *gpus;
    char *gpus_absent;
    const struct gpu_tuning *tuning;
    const struct exec *exec;
    enum api_ipc_handles ipc_handles;
    struct unmapper *unmapper;
    struct dying *dying;
    struct budget *budget; /* of all users */
    struct control_groups control_groups;
    struct api_heart *heart;
    char *cluster_name;
    char *network_address;
    char *rail_addresses;
    bool standalone;
    struct api_drain drain;
    uint64_t started_ns;
    struct api_owner owner;
    uint32_t reloads_under_way;   /* sessions whose reload has no answer yet */
    struct api_session *sessions; /* all sessions, by id */
    struct api_session *unheard;  /* sessions without a Hello, oldest first */
    struct loop_timer *crowd;     /* when to look whether other nodes have read */
    bool ending;                  /* api_free was called: everything is released at once */
    struct loop_timer *greetings; /* when the Hello of the oldest unheard session is due */
    struct turns turns;           /* users whose sessions have work */
    struct api_session *gone;     /* released in their turns: see api_sessions_free_gone */
    struct api_session *awake;    /* sessions whose rings are polled */
    struct api_session *bells;    /* sessions whose client's doorbell must be rung */
    struct api_graphs graphs;
    uint64_t last_session_id;
    bool took_requests;  /* from rings, in this api_poll */
    uint64_t now_ns;     /* time of the last api_poll, for callbacks that are given no time */
    uint32_t sends_left; /* packets that may still go directly to sockets, until the next api_poll */
    uint64_t ops_completed;
    uint64_t ops_failed;
    uint64_t calls_refused[STATUS_COUNT]; /* by result */
    struct metrics_http *metrics_http;    /* null: off */
    uint32_t tracing_sessions;            /* sessions that asked to record everything */
    unsigned traced_before;               /* TRACE_AREA_*: what is recorded without them */
};

#define API_ACCEPT_PAUSE_NS (100 * TIME_MS) /* then commd tries again */
#define API_SOCKET_LOOK_NS (5 * TIME_S)     /* whether the sockets' files are still there */

/* graphs.c */

#define API_GRAPH_OPS_MAX 4096u /* captured operations of one communicator; more: LIMIT */
#define API_GRAPH_SWEEP_NS (1 * TIME_MS)
#define API_GRAPH_LOOKS_MAX 256             /* graphs that are looked at in one turn of the loop */
#define API_GRAPH_ACTIVE_NS (100 * TIME_MS) /* since its last operation: it is polled more often */

enum status api_graphs_new(struct api *api, struct error *error) COMM_MUST_USE;
void api_graphs_free(struct api *api);
/* Keeps a captured operation; takes references to its memories. Errors: INVALID_ARGUMENT, LIMIT, NO_MEMORY.
 */
enum status api_graph_add(struct api_comm *comm, const struct comms_op *op, const struct comms_fence *ready,
                          struct error *error) COMM_MUST_USE;
/* A run of a captured operation has ended. Returns false if the communicator has none. */
bool api_graph_ended(struct api_comm *comm, const struct comms_completion *completion, uint64_t now_ns);
/* The communicator has failed: replays go on, and their operations end at once. */
void api_graph_failed(struct api_comm *comm);
/* The communicator is left: forgets its captured operations. */
void api_graph_free(struct api_comm *comm);
/* Starts operations whose turn has come in a replay. Returns whether there were any. There must be a graph.
 */
bool api_graphs_poll(struct api *api, uint64_t now_ns);
/* How many captured operations the communicator's graph holds, and how often all of them were replayed, on
 * the local rank with the most of them. 0: it serves no graph. */
void api_graphs_counts(const struct api *api, const struct communicator_info *info, uint32_t *ops,
                       uint64_t *replays);

/* server.c */
/* Sets the error LIMIT: this process has as many descriptors open as it may. The text ends with the
 * consequence. */
void api_lacks_fds(struct error *error, const char *consequence);
/* Accepts clients again if too many sockets had waited to be closed, and there is room. */
void api_accept_again(struct api *api);

/* packet.c */
/* A packet from a socket. */
struct api_packet_in {
    ssize_t size_bytes; /* -1 on failure, with errno */
    int flags;          /* MSG_TRUNC, MSG_CTRUNC */
    unsigned fds;       /* how many descriptors came with it */
    int fd;             /* the first one, or -1 */
};

/* Receives one packet. The caller owns the descriptor, and gives it to the fd_reaper. */
struct api_packet_in api_packet_receive(struct api *api, uint32_t uid, int socket_fd, void *bytes,
                                        size_t size);
/* Whether the next packet cannot be taken: it has descriptors, and too many of its user's descriptors wait to
 * be closed. */
bool api_packet_has_too_much(const struct api *api, uint32_t uid, int socket_fd);
/* Reads and drops packets that a client sent. A socket that is closed with unread data would lose what commd
 * has sent to the client. */
void api_packets_discard(struct api *api, uint32_t uid, int fd);
/* Sends a failure that answers no request, if the socket has room. The session must end. */
void api_packet_send_error(int fd, const struct error *error);
/* Sets whether clients may pass descriptors there, if the kernel can refuse them (Linux 6.16). */
void api_pass_fds(int fd, bool may);

/* session.c */
/* Whether more requests of the session may be read now. */
static inline bool api_session_reads(const struct api_session *session)
{
    return !session->closing && !session->broken && session->out_count < API_SESSION_PAUSE_PACKETS &&
           session->out_bytes < API_SESSION_PAUSE_BYTES;
}
/*
 * Whether completions of messages are put into the queue. A client may have any number of messages under way,
 * and they may all end while it reads nothing. So those that end wait in their communicator.
 */
static inline bool api_session_takes_messages(const struct api_session *session)
{
    return session->broken || (session->out_count < API_SESSION_PAUSE_PACKETS / 2 &&
                               session->out_bytes < API_SESSION_PAUSE_BYTES / 2);
}
/* requests.c: the session takes completions of messages again. */
void api_session_tell_messages(struct api_session *session);
/* Sends queued packets until the socket or the ring is full. */
void api_session_flush(struct api_session *session);
enum status api_session_new(struct api *api, enum api_role role, int fd, uint64_t now_ns,
                            struct error *error) COMM_MUST_USE;
/* Tells a client that there is no session for it, and closes the connection. */
void api_session_refuse(struct api *api, enum api_role role, int fd, const struct error *error);
/* Closes the descriptor that api_session_new was given. */
void api_session_close_socket(struct api *api, enum api_role role, uid_t uid, int fd);
/* Frees the session at once, with all that it holds. For api_free. */
void api_session_free(struct api_session *session, uint64_t now_ns);
/* Frees the session later, in its turns: callers up the stack may still use it. */
void api_session_break(struct api_session *session);
/* Sets the watch to the events that the session needs now. */
void api_session_watch(struct api_session *session);
/*
 * Handles one packet. The caller keeps its descriptor. Returns true if the packet holds submissions that the
 * client may make: the caller must carry them out.
 */
bool api_session_take(struct api_session *session, const uint8_t *bytes, const struct api_packet_in *packet,
                      uint64_t now_ns);
void api_session_has_too_much(struct api_session *session, uint64_t request_id);
void api_session_drop_packets(struct api_session *session, unsigned count);
/* Queues an event. Drops the session if the event cannot be queued. */
void api_session_send(struct api_session *session, const Commd__Client__Event *event);
/* Queues a completion, like api_session_send. If the ring has room, writes it there at once. size_bytes:
 * completion_record_bytes. */
void api_session_send_record(struct api_session *session, const struct completion_record *record,
                             size_t size_bytes);
/* A reply of one kind, with its body: API_REPLY(request_id, STATUS, status, &answer). */
#define API_REPLY(request_id, KIND, member, body_at)                                                         \
    {                                                                                                        \
        .base = PROTOBUF_C_MESSAGE_INIT(&commd__client__reply__descriptor), .id = (request_id),              \
        .body_case = COMMD__CLIENT__REPLY__BODY_##KIND, .member = (body_at)                                  \
    }
void api_session_reply(struct api_session *session, Commd__Client__Reply *reply);
void api_session_reply_done(struct api_session *session, uint64_t request_id);
/* Sends the event on the socket, with a descriptor, which it closes. While it waits for the client to read,
 * the descriptor is charged to the user. Returns false if the session ends, or the user has no more. */
bool api_session_send_fd(struct api_session *session, const Commd__Client__Event *event, int fd);
void api_session_reply_error(struct api_session *session, uint64_t request_id, const struct error *error);
/* As api_session_reply_error, with what else is known of the failure; null: nothing. */
void api_session_reply_detailed(struct api_session *session, uint64_t request_id, const struct error *error,
                                Commd__Client__Failure *failure);
/* Like api_session_reply_error, with a formatted text. */
void api_session_reply_failure(struct api_session *session, uint64_t request_id, enum status status,
                               const char *format, ...) __attribute__((format(printf, 4, 5)));
/* Like api_session_reply_failure, and ends the session: no client may make such a request. */
void api_session_reply_end(struct api_session *session, uint64_t request_id, enum status status,
                           const char *format, ...) __attribute__((format(printf, 4, 5)));
/* Ends the session once what is queued is sent. Call it after the reply that gives the reason. Writes one log
 * line. */
void api_session_end(struct api_session *session, const char *why);

/* session_budget.c */
/* Opens the account, and charges the session's place to it. Errors: LIMIT, NO_MEMORY. */
enum status api_session_charge(struct api_session *session, struct error *error) COMM_MUST_USE;
void api_session_discharge(struct api_session *session);
/* Charges the packets that wait. Returns false, with the budget's text, if they are too much. */
bool api_session_charge_queued(struct api_session *session, struct error *error);
void api_session_await_hello(struct api_session *session);
void api_session_heard(struct api_session *session);
/* Ends the sessions whose Hello is late: a loop_timer_function of the api. */
void api_greetings_due(void *context, uint64_t now_ns);

/* session_log.c */
/* Writes a line with the client's name, unless the user caused too many lines lately. */
void api_session_log(struct api_session *session, enum log_level level, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Adds an event about the client, which its user may see. */
void api_session_happened(const struct api_session *session, enum history_kind kind, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* hello.c */
/* Whether it is commctl, which comes and goes: that is no event. */
bool api_session_is_visitor(const struct api_session *session);
void api_hello(struct api_session *session, uint64_t request_id, const Commd__Client__Hello *hello,
               uint64_t now_ns);

/* drain.c */
void api_drain(struct api_session *session, uint64_t request_id, const Commd__Client__Drain *request,
               uint64_t now_ns);
void api_undrain(struct api_session *session, uint64_t request_id, uint64_t now_ns);

/* session_turn.c */
#define API_LIST_PIECE 8 /* submissions of one packet per turn */
/* Continues releases that waited for other nodes to read: a loop_timer_function of the api. */
void api_crowd_due(void *context, uint64_t now_ns);
#define API_CROWD_WAIT_NS (10 * TIME_MS)
#define API_RELEASE_PIECE 256 /* packets that nobody reads, dropped per turn */
enum turn_result api_session_turn(void *context, uint64_t now_ns);
/*
 * Frees released sessions; call it after turns_serve. The last session of a user frees the account, and the
 * account holds the queue from which a turn is served.
 */
void api_sessions_free_gone(struct api *api);

/* heart.c */
enum status api_heart_new(struct api *api, struct error *error) COMM_MUST_USE;
/* Accepts a null heart: an api that could not be completed. */
void api_heart_free(struct api *api);
/* From now on the session's client reads the heartbeat. */
void api_heart_listen(struct api_session *session, uint64_t now_ns);
void api_heart_forget(struct api_session *session);
/* The descriptors that a client gets; the api keeps them. */
void api_heart_fds(const struct api *api, int fds[CLIENT_HEARTBEAT_FDS]);

/* death.c */
/* The most packets that are read of a dead client: its socket holds fewer, but another process may still
 * send. */
#define API_LAST_PACKETS_MAX 512
/* Errors: LIMIT if there is no free descriptor; ABORTED if the process has ended already. */
enum status api_death_open(struct api_session *session, struct error *error) COMM_MUST_USE;
/* Call it after api_death_open. */
enum status api_death_watch(struct api_session *session, struct error *error) COMM_MUST_USE;
/* Others may wait for the process from now on: its death is to be known before its memory is unmapped. */
void api_death_foresee(struct api_session *session);
void api_death_forget(struct api_session *session);

/* doorbells.c: wake a process that sleeps at a ring. After a failure, api_bells_free frees what was made. */
#define API_BELL_FDS 4
enum status api_bells_new(struct api_session *session, struct error *error) COMM_MUST_USE;
void api_bells_free(struct api_session *session);
/* Wakes the client. */
void api_bell_ring(const struct api_rings *rings);

/* rings.c. The next packet with on_socket carries the descriptors. */
enum status api_rings_new(struct api_session *session, struct error *error) COMM_MUST_USE;
/*
 * Gives the client's descriptors. Once they are sent, api_rings_sent closes the memory's descriptor.
 */
void api_rings_fds(const struct api_session *session, int fds[CLIENT_RING_FDS]);
void api_rings_sent(struct api_session *session);
void api_rings_free(struct api_session *session);
/* Polls the session's ring again from now on, because something may have changed. */
void api_rings_awake(struct api_session *session, uint64_t now_ns);
/*
 * Takes one packet. Returns false if there is none. *size_bytes is 0 if the ring is corrupt; then the session
 * ends.
 */
bool api_rings_take(struct api_session *session, uint8_t *bytes, size_t room_bytes, size_t *size_bytes,
                    uint64_t now_ns);
/*
 * Call it after each packet. It wakes a client that waits for room: after some packets, and when the ring is
 * empty.
 */
void api_rings_taken(struct api_session *session);
/* FULL: try again when the client rings. api_ring_bells rings the client's bell. */
enum ring_result api_rings_put(struct api_session *session, const void *packet, size_t size_bytes);

/* memories.c: memory that clients register. fd: as in requests.c. */
/* Returns null if there is no such memory. */
struct api_memory *api_session_memory(struct api_session *session, uint32_t id);
void api_memory_forget(struct api_session *session, struct api_memory *memory);
/* Finds the GPU that a client means by its UUID, because each client numbers GPUs in its own way. No UUID:
 * the host. */
enum status api_session_gpu(const struct api_session *session, const ProtobufCBinaryData *uuid, int number,
                            int *gpu, struct error *error) COMM_MUST_USE;
void api_memory_register(struct api_session *session, uint64_t request_id,
                         const Commd__Client__MemRegister *request, int fd);
void api_memory_map(struct api_session *session, uint64_t request_id, const Commd__Client__MemMap *request,
                    int fd);
void api_memory_deregister(struct api_session *session, uint64_t request_id,
                           const Commd__Client__MemDeregister *request);
/* The session ends: no answer comes later any more. */
void api_lates_forget(struct api_session *session);

/* stores.c */
void api_store(struct api_session *session, uint64_t request_id, const Commd__Client__StoreAsk *request,
               uint64_t now_ns);
/* Closes the store, if it is open. */
void api_store_forget(struct api_store *store, uint64_t now_ns);

/* drain.c: whether the node drains. */
/* Returns whether the session's client wants to know. The message points into the api. */
bool api_drain_fill(const struct api_session *session, Commd__Client__Draining *out, uint64_t now_ns);
void api_drain_tell_all(const struct api *api, uint64_t now_ns);

/* joins.c */
void api_join(struct api_session *session, uint64_t request_id, const Commd__Client__CommJoin *request,
              uint64_t now_ns);
void api_grow(struct api_session *session, uint64_t request_id, const Commd__Client__CommGrow *request,
              uint64_t now_ns);
void api_settle(struct api_session *session, uint64_t request_id, const Commd__Client__CommSettle *request);
void api_leave(struct api_session *session, uint64_t request_id, const Commd__Client__CommLeave *request);
/* The process leaves its job. */
void api_join_forget(struct api_join *join);

/* requests.c, submissions.c: communicators, operations. fd: -1 or a descriptor that the caller keeps. */
/* Null if the session has no communicator of that handle. */
struct api_comm *api_session_comm(struct api_session *session, uint32_t handle);
void api_comm_init(struct api_session *session, uint64_t request_id, const Commd__Client__CommInit *request,
                   uint64_t now_ns);
void api_comm_shrink(struct api_session *session, uint64_t request_id,
                     const Commd__Client__CommShrink *request, uint64_t now_ns);
void api_comm_table(struct api_session *session, uint64_t request_id,
                    const Commd__Client__CommTable *request);
void api_cells_retire(struct api_session *session, uint64_t request_id,
                      const Commd__Client__CellsRetire *request);
void api_comm_destroy(struct api_session *session, uint64_t request_id,
                      const Commd__Client__CommDestroy *request, uint64_t now_ns);
void api_abort(struct api_session *session, uint64_t request_id, const Commd__Client__Abort *request,
               uint64_t now_ns);
void api_submit(struct api_session *session, const struct submit_record *record, uint64_t now_ns);
/* Tells the client the end of an operation. */
void api_comm_send_complete(struct api_session *session, uint32_t handle,
                            const struct comms_completion *completion);
/* Removes what is to be reported to the session: a ping, a reload, a trace. */
void api_session_forget(struct api_session *session);
/* Gives back one communicator, one store or one memory. Returns false if the session holds none. */
bool api_session_release_one(struct api_session *session, uint64_t now_ns);

/* control.c: ends communicators and clients on request. */
void api_comm_abort(struct api_session *session, uint64_t request_id, const Commd__Client__CommAbort *request,
                    uint64_t now_ns);
void api_disconnect(struct api_session *session, uint64_t request_id,
                    const Commd__Client__Disconnect *request);

/* admin.c: the queries of commctl. */
/*
 * Whether the session may see what belongs to that user: true for an administrator and for the user himself.
 */
bool api_session_sees(const struct api_session *session, uid_t owner_uid);
/* Whether a session on the administrators' socket may make this request: it must not make the session hold
 * anything. */
bool api_admin_may_ask(Commd__Client__Request__BodyCase kind);
void api_admin_status(struct api_session *session, uint64_t request_id, uint64_t now_ns);
void api_admin_nodes(struct api_session *session, uint64_t request_id, uint64_t after, uint64_t now_ns);
void api_admin_comms(struct api_session *session, uint64_t request_id, uint64_t after, uint64_t now_ns);
void api_admin_clients(struct api_session *session, uint64_t request_id, uint64_t after, uint64_t now_ns);
void api_admin_ops(struct api_session *session, uint64_t request_id, uint64_t after, uint64_t now_ns);
void api_admin_ping(struct api_session *session, uint64_t request_id, const Commd__Client__Ping *request,
                    uint64_t now_ns);
void api_algorithms(struct api_session *session, uint64_t request_id,
                    const Commd__Client__AlgorithmsQuery *request);
void api_gpus(struct api_session *session, uint64_t request_id, const Commd__Client__GpusQuery *request);
/* engines.c: adds which engine operations among GPUs have. At most API_ENGINES_MAX rows. */
#define API_ENGINES_MAX 256
struct api_engines {
    Commd__Client__EngineInfo rows[API_ENGINES_MAX];
    Commd__Client__EngineInfo *pointers[API_ENGINES_MAX];
    uint32_t gpus[GPU_DEVICES_MAX]; /* all of the node */
};
void api_engines_fill(const struct api *api, const Commd__Client__AlgorithmsQuery *request,
                      struct api_engines *engines, Commd__Client__AlgorithmsReply *answer);
void api_users(struct api_session *session, uint64_t request_id, uint64_t after);
void api_admin_config(struct api_session *session, uint64_t request_id, uint64_t after);

/* metrics_private.c */
void api_metrics(struct api_session *session, uint64_t request_id, const Commd__Client__MetricsQuery *request,
                 uint64_t now_ns);
/* Drops the text that the session has not fetched. */
void api_metrics_forget(struct api_session *session);

/* event_pages.c */
void api_events(struct api_session *session, uint64_t request_id, const Commd__Client__EventsQuery *request);

/* health.c. name: of one check; "": all. */
void api_health(struct api_session *session, uint64_t request_id, const char *name, uint64_t now_ns);

/* configuration.c: how many settings wait for a restart; then requests of administrators */
uint32_t api_settings_waiting(const struct api *api);
void api_reload(struct api_session *session, uint64_t request_id, uint64_t now_ns);
/* Answers the reloads that all threads use by now. */
void api_reloads_poll(struct api *api);
/* Call it when the session ends. */
void api_reload_forget(struct api_session *session);
void api_log_level(struct api_session *session, uint64_t request_id, const Commd__Client__LogLevel *request);

/* trace_pages.c */
void api_trace(struct api_session *session, uint64_t request_id, const Commd__Client__TraceQuery *request);
/* Call it when the session ends. Stops the recording that it asked for, unless another session wants it. */
void api_trace_forget(struct api_session *session);

#endif
