#ifndef DAEMON_API_SESSION_H
#define DAEMON_API_SESSION_H

#include "daemon/api/api.h"
#include "daemon/base/control_group.h"
#include "daemon/base/log.h"
#include "daemon/base/table.h"
#include "daemon/base/time.h"
#include "daemon/gpu/devices.h"
#include "proto/client.pb-c.h"
#include "proto/heartbeat.h"
#include "proto/records.h"
#include "proto/ring.h"
#include "proto/version.h"

/* What the files of daemon/api share: the server, its sessions, and what a session holds. */

#define API_RING_AWAKE_NS (1 * TIME_MS) /* a ring without a packet for so long is not polled any more */

struct api_packet {
    struct api_packet *next;
    bool on_socket; /* whatever rings there are: it is Hello's reply, and brings descriptors */
    size_t size_bytes;
    uint8_t bytes[];
};

/* One rank that the session holds. */
struct api_comm {
    uint32_t handle;
    struct api_session *session;
    struct comms_member *member;
    uint64_t init_request_id;
    char name[COMM_NAME_MAX_BYTES + 1];
    int gpu; /* MEMORY_OF_HOST, or where the rank is */
    bool formed;
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
     * Unix sockets, with MSG_DONTWAIT for each call: of an eventfd the client could change the flags, and a
     * pipe it could keep locked (it reads into memory whose page never comes). The ends that clients get are
     * kept open here too, so that theirs may go without a sign.
     */
    int bell[2];        /* the client writes, we read */
    int client_bell[2]; /* we write, the client reads */
    struct loop_watch *bell_watch;
    struct loop_timer *bell_rest; /* null: it never rang for nothing too often */
    uint32_t bells_for_nothing;   /* in a row */
    struct ring in, out;
    uint32_t last_taken; /* packets since its client is gone */
    uint32_t taken;      /* packets since the client's bell was looked at */
    bool awake;          /* among api->awake: polled */
    bool rings_bell;     /* among api->bells: something was put since the last time */
    uint64_t busy_ns;
};

enum api_role { API_ROLE_CLIENT, API_ROLE_ADMIN };
#define API_ROLE_COUNT 2

/* A socket that sessions of one role come to. */
struct api_listener {
    struct api *api;
    enum api_role role;
    int fd;     /* -1: none */
    char *path; /* null: none */
    bool owns_file;
    bool rests;  /* accepts nobody: too much waits to be closed */
    bool pauses; /* accepts nobody for API_ACCEPT_PAUSE_NS: there is no descriptor for anybody */
    struct loop_watch *watch;
    struct loop_timer *pause;
    int spare_fd; /* given up when there are no more: to tell a client so, to serve an administrator; -1: none
                   */
    uint32_t session_count;
    struct log_limit refused_limit;
};

struct api_session {
    struct api *api;
    enum api_role role;
    struct api_rings *rings; /* null: the socket alone */
    struct api_session *awake_prev, *awake_next;
    struct api_session *bell_prev, *bell_next;
    uint64_t id;
    int fd;
    struct loop_watch *watch;
    int death_fd; /* a pidfd of the process that connected; -1: the kernel gives none */
    struct loop_watch *death_watch;
    struct comms_client client;
    struct budget_account *account; /* what it holds is charged to it */
    gid_t gid;
    char program[64];
    bool greeted;
    bool closing; /* nothing is read any more; freed when what is queued has been sent */
    bool broken;  /* nothing is done any more but to give back what it held */
    struct turn turn;
    uint64_t connected_ns;
    struct api_comm *comms;
    struct api_memory *memories;
    uint64_t memory_bytes;
    uint32_t gpu_memory_count; /* of the memories, on GPUs */
    uint64_t ops_submitted;
    uint64_t ops_completed;
    struct api_packet *out_first;
    struct api_packet **out_last;
    uint32_t out_count;
    uint64_t out_bytes;         /* of these */
    uint64_t out_charged_bytes; /* to the account */
    bool charged;               /* its place is the account's; administrators' are not */
    bool unheard;               /* no Hello yet */
    struct api_session *unheard_prev, *unheard_next;
    bool offers_fds;   /* the next packet takes those of rings and heartbeat along */
    bool listens;      /* to the heartbeat */
    unsigned watched;  /* events of the watch */
    bool readable;     /* something may be on the socket */
    bool socket_first; /* the last turn looked at the socket before the ring */
    bool dead; /* the process that connected has ended: what is on its socket is done, then it is ending */
    uint32_t last_packets; /* from its socket since then */
    bool ending;           /* its client is gone: what is in its ring is done, then it is broken */
    char *expelled; /* not null: somebody ended it, and this is what its ranks' communicators are told */
    bool releasing; /* broken: what it held is given back, piece by piece */
    struct {
        uint8_t *bytes; /* null: there is none */
        size_t size, at;
    } list;                   /* submissions that have not had their turn; nothing else is read before */
    bool unread_waits;        /* something is on the socket of a session that is not read now */
    uint64_t ping_request_id; /* 0: no ping under way */
    bool traces;              /* it has everything recorded */
    UT_hash_handle hh;
};

struct api {
    struct loop *loop;
    struct comms *comms;
    struct mesh *mesh;
    struct net *net;
    struct rails *rails;
    struct api_listener listeners[API_ROLE_COUNT];
    bool has_admin_group;
    gid_t admin_gid;
    struct fd_reaper *fd_reaper;
    struct gpu_devices *gpus;
    char *gpus_absent;
    enum api_ipc_handles ipc_handles;
    struct unmapper *unmapper;
    struct budget *budget; /* of all users */
    struct control_groups control_groups;
    struct api_heart *heart;
    char *cluster_name;
    char *network_address;
    bool standalone;
    bool draining;
    uint64_t started_ns;
    void (*visit_settings)(void *context, api_setting_function *visit, void *visit_context);
    void *settings_context;
    struct api_session *sessions; /* by id */
    struct api_session *unheard;  /* that have not said Hello, oldest first */
    struct loop_timer *crowd;     /* when to look whether other nodes have read */
    bool ending;                  /* everything goes at once */
    struct loop_timer *greetings; /* when the first of these is due */
    struct turns turns;           /* whose sessions have work */
    struct api_session *gone;  /* released in a turn of theirs, by awake_next: see api_sessions_free_gone */
    struct api_session *awake; /* whose rings are polled */
    struct api_session *bells; /* whose doorbell is to be rung */
    uint64_t last_session_id;
    bool took_requests;  /* from rings, in this api_poll */
    uint64_t now_ns;     /* of the last api_poll: for what tells no time */
    uint32_t sends_left; /* until the next: packets that go to sockets at once */
    uint64_t ops_completed;
    uint64_t ops_failed;
    uint32_t tracing_sessions; /* that have everything recorded */
    unsigned traced_before;    /* TRACE_AREA_*: what is recorded without them */
};

#define API_ACCEPT_PAUSE_NS (100 * TIME_MS) /* then it is tried again */

/* listener.c */
struct api_listener_options {
    const char *path; /* bound, unless fd is given */
    int fd;           /* that was passed; -1: none */
    mode_t mode;
    bool mode_given;   /* else a socket that was passed keeps its mode */
    const char *group; /* "" or null: left alone */
    /* The settings' names, for messages. */
    const char *path_setting, *mode_setting, *group_setting;
};
/*
 * Fills listener->fd, path and owns_file: a listening socket with the mode and the group. CONFIG when a
 * socket that was passed cannot be given those. After an error api_listener_close.
 */
enum status api_listener_open(struct api_listener *listener, const struct api_listener_options *options,
                              struct error *error) COMM_MUST_USE;
/* Removes the file if we made it. */
void api_listener_close(struct api_listener *listener);
/* Opens it again, if it was used and there is room. */
void api_listener_keep_spare(struct api_listener *listener);

/* server.c */
/* LIMIT: this process has as many descriptors open as it may, and what that means. */
void api_lacks_fds(struct error *error, const char *consequence);
/* If none was for a while, and there is room. */
void api_accept_again(struct api *api);

/* packet.c */
/* What came on a socket. */
struct api_packet_in {
    ssize_t size_bytes; /* or -1, errno */
    int flags;          /* MSG_TRUNC, MSG_CTRUNC */
    unsigned fds;       /* how many descriptors came with it */
    int fd;             /* the first one; -1 */
};

/* The descriptor is the caller's, to give to the fd_reaper. */
struct api_packet_in api_packet_receive(struct api *api, uint32_t uid, int socket_fd, void *bytes,
                                        size_t size);
/* Whether a packet is next that cannot be taken: it has descriptors, and too many of its user wait to be
 * closed. */
bool api_packet_has_too_much(const struct api *api, uint32_t uid, int socket_fd);
/* What a client sent and nobody will read: a socket closed with that in it would lose what was told to the
 * client. */
void api_packets_discard(struct api *api, uint32_t uid, int fd);
/* Whether clients may pass descriptors there, where the kernel can refuse them (Linux 6.16). */
void api_pass_fds(int fd, bool may);

/* session.c */
/* Whether more of it may be read now. */
static inline bool api_session_reads(const struct api_session *session)
{
    return !session->closing && !session->broken && session->out_count < API_SESSION_PAUSE_PACKETS &&
           session->out_bytes < API_SESSION_PAUSE_BYTES;
}
/* Sends what waits, as far as it goes. */
void api_session_flush(struct api_session *session);
enum status api_session_new(struct api *api, enum api_role role, int fd, uint64_t now_ns,
                            struct error *error) COMM_MUST_USE;
/* Tells a client that there is no session for it, and closes the connection. */
void api_session_refuse(struct api *api, enum api_role role, int fd, const struct error *error);
/* Closes what api_session_new was given. */
void api_session_close_socket(struct api *api, enum api_role role, uid_t uid, int fd);
/* At once, with all that it holds: api_free's. */
void api_session_free(struct api_session *session, uint64_t now_ns);
/* Frees the session soon, in its turns: callers up the stack may still use it. */
void api_session_break(struct api_session *session);
/* Watches for what it waits for now. */
void api_session_watch(struct api_session *session);
/*
 * One packet. Its descriptor stays the caller's. True: it holds submissions, which the client may make and
 * the caller is to do.
 */
bool api_session_take(struct api_session *session, const uint8_t *bytes, const struct api_packet_in *packet,
                      uint64_t now_ns);
void api_session_has_too_much(struct api_session *session, uint64_t request_id);
void api_session_drop_packets(struct api_session *session, unsigned count);
/* Queues an event; a session that cannot take it is dropped. */
void api_session_send(struct api_session *session, const Commd__Client__Event *event);
/* Likewise; in a ring with room at once. size_bytes: completion_record_bytes. */
void api_session_send_record(struct api_session *session, const struct completion_record *record,
                             size_t size_bytes);
/* A reply of a kind, with its body: API_REPLY(request_id, STATUS, status, &answer). */
#define API_REPLY(request_id, KIND, member, body_at)                                                         \
    {                                                                                                        \
        .base = PROTOBUF_C_MESSAGE_INIT(&commd__client__reply__descriptor), .id = (request_id),              \
        .body_case = COMMD__CLIENT__REPLY__BODY_##KIND, .member = (body_at)                                  \
    }
void api_session_reply(struct api_session *session, Commd__Client__Reply *reply);
void api_session_reply_done(struct api_session *session, uint64_t request_id);
void api_session_reply_error(struct api_session *session, uint64_t request_id, const struct error *error);
/* The same with a text of its own. */
void api_session_reply_failure(struct api_session *session, uint64_t request_id, enum status status,
                               const char *format, ...) __attribute__((format(printf, 4, 5)));
/* The session ends after it: what was asked is none that a client may ask. */
void api_session_reply_end(struct api_session *session, uint64_t request_id, enum status status,
                           const char *format, ...) __attribute__((format(printf, 4, 5)));
/* After the reply that says why: the session ends once that is sent. One log line. */
void api_session_end(struct api_session *session, const char *why);

/* session_budget.c */
/* Opens the account, and charges the session's place to it. LIMIT, NO_MEMORY. */
enum status api_session_charge(struct api_session *session, struct error *error) COMM_MUST_USE;
void api_session_discharge(struct api_session *session);
/* What waits now is charged. False: it is too much. */
bool api_session_charge_queued(struct api_session *session);
void api_session_await_hello(struct api_session *session);
void api_session_heard(struct api_session *session);
/* Ends the sessions that have not said Hello in time: a loop_timer_function of the api. */
void api_greetings_due(void *context, uint64_t now_ns);

/* session_log.c */
/* A line with the client's name, unless its user has caused too many lately. */
void api_session_log(struct api_session *session, enum log_level level, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* hello.c */
void api_hello(struct api_session *session, uint64_t request_id, const Commd__Client__Hello *hello,
               uint64_t now_ns);

/* session_turn.c */
#define API_LIST_PIECE 8 /* submissions of a packet, in a turn */
/* Releases go on that waited for other nodes to read: a loop_timer_function of the api. */
void api_crowd_due(void *context, uint64_t now_ns);
#define API_CROWD_WAIT_NS (10 * TIME_MS)
#define API_RELEASE_PIECE 256 /* packets that nobody reads, in a turn */
enum turn_result api_session_turn(void *context, uint64_t now_ns);
/*
 * After turns_serve: the last session of a user takes the account with it, whose line a turn is served on.
 */
void api_sessions_free_gone(struct api *api);

/* heart.c */
enum status api_heart_new(struct api *api, struct error *error) COMM_MUST_USE;
/* Null is accepted in the api, which may be made in part. */
void api_heart_free(struct api *api);
/* The session's client looks at the heartbeat from now on. */
void api_heart_listen(struct api_session *session, uint64_t now_ns);
void api_heart_forget(struct api_session *session);
/* What it gets; they stay the api's. */
void api_heart_fds(const struct api *api, int fds[CLIENT_HEARTBEAT_FDS]);

/* death.c */
/* How much of what a dead client has sent is read: its socket holds less, but another process may go on. */
#define API_LAST_PACKETS_MAX 512
/* LIMIT: there is no descriptor for it. ABORTED: it has ended already. */
enum status api_death_open(struct api_session *session, struct error *error) COMM_MUST_USE;
/* After api_death_open. */
enum status api_death_watch(struct api_session *session, struct error *error) COMM_MUST_USE;
void api_death_forget(struct api_session *session);

/* doorbells.c: how who sleeps at a ring is woken. What was made before a failure is freed with the rest. */
#define API_BELL_FDS 4
enum status api_bells_new(struct api_session *session, struct error *error) COMM_MUST_USE;
void api_bells_free(struct api_session *session);
/* Wakes the client. */
void api_bell_ring(const struct api_rings *rings);

/* rings.c. The descriptors go with the next packet that is on_socket. */
enum status api_rings_new(struct api_session *session, struct error *error) COMM_MUST_USE;
/* What the client gets of them, and their end of it once it is sent. */
void api_rings_fds(const struct api_session *session, int fds[CLIENT_RING_FDS]);
void api_rings_sent(struct api_session *session);
void api_rings_free(struct api_session *session);
/* Something may have changed: what it holds is looked at. */
void api_rings_awake(struct api_session *session, uint64_t now_ns);
/*
 * Takes one packet. False: there is none. *size_bytes 0: the ring holds what cannot be, and the session ends.
 */
bool api_rings_take(struct api_session *session, uint8_t *bytes, size_t room_bytes, size_t *size_bytes,
                    uint64_t now_ns);
/* After each: a client that waits for room is told, once in a while and when the ring is empty. */
void api_rings_taken(struct api_session *session);
/* FULL: tried again when the client rings. The client's own bell is rung by api_ring_bells. */
enum ring_result api_rings_put(struct api_session *session, const void *packet, size_t size_bytes);

/* memories.c: what clients register. fd: as below. */
/* Null: no such one. */
struct api_memory *api_session_memory(struct api_session *session, uint32_t id);
void api_memory_forget(struct api_session *session, struct api_memory *memory);
/* Which one a client means. Clients number GPUs their own way: the UUID says it; none: the host. */
enum status api_session_gpu(const struct api_session *session, const ProtobufCBinaryData *uuid, int number,
                            int *gpu, struct error *error) COMM_MUST_USE;
void api_memory_register(struct api_session *session, uint64_t request_id,
                         const Commd__Client__MemRegister *request, int fd);
void api_memory_map(struct api_session *session, uint64_t request_id, const Commd__Client__MemMap *request,
                    int fd);
void api_memory_deregister(struct api_session *session, uint64_t request_id,
                           const Commd__Client__MemDeregister *request);

/* requests.c: communicators, operations. fd: -1 or the packet's descriptor, which stays the caller's.
 */
void api_comm_init(struct api_session *session, uint64_t request_id, const Commd__Client__CommInit *request,
                   uint64_t now_ns);
void api_comm_table(struct api_session *session, uint64_t request_id,
                    const Commd__Client__CommTable *request);
void api_comm_destroy(struct api_session *session, uint64_t request_id,
                      const Commd__Client__CommDestroy *request, uint64_t now_ns);
void api_submit(struct api_session *session, const struct submit_record *record, uint64_t now_ns);
/* What others would tell it. */
void api_session_forget(struct api_session *session);
/* Gives back a communicator or a memory. False: it holds none. */
bool api_session_release_one(struct api_session *session, uint64_t now_ns);

/* control.c: communicators and clients that are ended by hand. */
void api_comm_abort(struct api_session *session, uint64_t request_id, const Commd__Client__CommAbort *request,
                    uint64_t now_ns);
void api_disconnect(struct api_session *session, uint64_t request_id,
                    const Commd__Client__Disconnect *request);

/* admin.c: what commctl asks. */
/* Whether what belongs to that user may be shown to the session: an administrator's, or the user's own. */
bool api_session_sees(const struct api_session *session, uid_t owner_uid);
/* Whether a session on the administrators' socket may ask that: nothing by which it would hold anything. */
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
void api_gpus(struct api_session *session, uint64_t request_id);
void api_users(struct api_session *session, uint64_t request_id, uint64_t after);
void api_admin_config(struct api_session *session, uint64_t request_id);

/* trace_pages.c */
void api_trace(struct api_session *session, uint64_t request_id, const Commd__Client__TraceQuery *request);
/* The session ends: what it had recorded for it is recorded no more, unless somebody else wants it. */
void api_trace_forget(struct api_session *session);

#endif
