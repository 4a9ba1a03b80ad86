#ifndef DAEMON_API_API_H
#define DAEMON_API_API_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "daemon/base/fd_reaper.h"
#include "daemon/base/loop.h"
#include "daemon/base/time.h"
#include "daemon/comm/comms.h"
#include "daemon/conf/changes.h"
#include "daemon/exec/exec.h"
#include "daemon/gather/gathers.h"
#include "daemon/store/stores.h"

/*
 * The Unix sockets: sessions of clients and of administrators (commctl). The api turns packets
 * (proto/client.proto) into checked requests to comms and mesh, and their answers into packets. A client that
 * sends wrong data, stalls or dies loses only its own session. A session ends with its socket. It also ends
 * with the process that connected, even if another process has the socket as well.
 *
 * On the clients' socket, each user sees and ends only what is his own. That includes root, because uid 0 may
 * be that of a container. Administrators have a socket of their own, on which they see and end everything.
 * They hold nothing (no communicators, no memory), and clients cannot take their places.
 */
struct api;

/* daemon/base/budget.h limits what users hold; other limits are here. */
#define API_HELLO_WAIT_NS (5 * TIME_S) /* from connection to Hello; then commd closes */
#define API_ADMIN_SESSIONS_MAX 64      /* on the administrators' socket; more: LIMIT, closed */
#define API_ADMIN_SESSIONS_OF_ROOT 16  /* of these, only for root and commd's own user */
#define API_SESSION_COMMS_MAX 1024     /* communicators (ranks) of one client; more: LIMIT */
#define API_SESSION_STORES_MAX 1024    /* stores that one client has open; more: LIMIT */
#define API_SESSION_JOINS_MAX 256 /* ranks of elastic jobs that one client has or waits for; more: LIMIT */
#define API_SESSION_MEMORIES_MAX 16384 /* registered memories of one client; more: LIMIT */
#define API_SESSION_LATE_MAX 256     /* requests of one client that a GPU's thread carries out; more: LIMIT */
#define API_SESSION_RESERVED_SHARE 2 /* memories of one client, times a GPU's memory; more: LIMIT */
/*
 * Unread packets of one client; more, or more bytes than its budget (queued_bytes), and it is dropped. So all
 * collectives that a client may have under way can end unread. Messages wait in their communicator.
 */
#define API_SESSION_PACKETS_MAX (API_SESSION_COMMS_MAX * COMMS_PENDING_OPS_MAX)
#define API_SENDS_MAX 64               /* packets in a row to clients' sockets */
#define API_SESSION_PAUSE_PACKETS 256  /* with so many waiting answers, no requests of the client are read */
#define API_SESSION_PAUSE_BYTES 131072 /* likewise, in bytes */
#define API_SESSION_FDS 2              /* of one session: its socket, a pidfd; rings need more */
#define API_ACCEPTS_PER_WAKE 16        /* then other work gets its turn */
#define API_DISCARDS_MAX 64            /* packets that are read and dropped when a client is refused */

/* Whether GPU memory may be registered by legacy CUDA IPC handles. */
enum api_ipc_handles {
    API_IPC_HANDLES_AUTO, /* from a user as long as no other user has registered memory on the node's GPUs */
    API_IPC_HANDLES_ACCEPT,
    API_IPC_HANDLES_REFUSE
};

/* How a node ends its work; also what commctl asks for. */
#define API_DRAIN_REASON_MAX_BYTES 160
struct api_drain {
    bool draining;        /* new communicators are refused */
    bool stops;           /* new clients, too */
    uint64_t deadline_ns; /* TIME_NEVER: none */
    char reason[API_DRAIN_REASON_MAX_BYTES + 1];
};

/* What the configuration's owner does for commctl. */
struct api_owner {
    void *context; /* of the functions that follow */
    void (*visit_settings)(void *context, conf_visit_function *visit, void *visit_context);
    /* Reads the configuration again. *changes, empty at first, gets what was done, also if it fails. Null:
     * UNSUPPORTED. */
    enum status (*reload)(void *context, struct conf_changes *changes, uint64_t now_ns, struct error *error);
    /* Whether all threads use what the last reload loaded: its answer waits for that. Null: they do at once.
     */
    bool (*reload_is_used)(void *context);
    /* Until the next reload. INVALID_ARGUMENT. Null: UNSUPPORTED. */
    enum status (*set_log_level)(void *context, const char *level, struct error *error);
    /* An administrator asks for a drain, or (draining false) for its end. Null: refused. */
    enum status (*ask_drain)(void *context, const struct api_drain *asked, uint64_t now_ns,
                             struct error *error);
    void *drain_context;
};

struct api_options {
    const char *socket_path; /* the socket to bind, unless listen_fd is given */
    int listen_fd;           /* from socket activation; the api takes ownership; -1: none */
    mode_t socket_mode;
    bool socket_mode_given;   /* otherwise a socket that was passed keeps its mode */
    const char *socket_group; /* "" leaves the group alone */
    /*
     * Administration: for root, commd's own user and members of admin_group. Null: no such socket;
     * admin_listen_fd is then ignored. The last part of the path's folder is created if it is missing.
     */
    const char *admin_socket_path;
    int admin_listen_fd;     /* like listen_fd */
    const char *admin_group; /* "" or null: no group */
    struct comms *comms;
    struct stores *stores;   /* null: clients cannot use stores. Charged to the api's budget */
    struct gathers *gathers; /* null: clients cannot join elastic jobs. Likewise */
    struct mesh *mesh;
    struct net *net;             /* for statistics; null if standalone */
    struct fd_reaper *fd_reaper; /* closes descriptors of clients; null: closed in place, which may block.
                                    Must outlive the api */
    struct gpu_devices *gpus;    /* null: none, for the reason in gpus_absent */
    const char *gpus_absent;
    const struct gpu_tuning *tuning;  /* null: nothing is measured among GPUs */
    const struct exec *exec;          /* may be null without GPUs */
    enum api_ipc_handles ipc_handles; /* see api_set_ipc_handles */
    struct unmapper *unmapper; /* unmaps clients' memory; null: unmapped in place. Must outlive the api */
    const char *cluster_name;
    const char *network_address; /* "" if standalone */
    const char *rail_addresses;  /* of this node; null: none */
    bool standalone;
    const char *metrics; /* where HTTP serves the metrics (metrics_http.h); null or "": nowhere */
    uint64_t started_ns;
    struct api_owner owner;
};

#define API_PREDECESSOR_WAIT_MS 1000
#define API_PREDECESSOR_LOOK_MS 20

/*
 * Waits for a predecessor; call it before sockets are created. A commd that was just killed leaves its
 * sockets to the fd_reaper's process. That process closes them at once, the one at socket_path last
 * (daemon/base/fd_reaper.h). Returns when nobody answers on that socket, or after API_PREDECESSOR_WAIT_MS.
 */
void api_await_predecessor(const char *socket_path);

/* Copies the texts. Replaces a dead socket file. Errors: ALREADY_EXISTS if another commd answers on the
 * socket; SYSTEM. */
enum status api_new(struct loop *loop, const struct api_options *options, uint64_t now_ns, struct api **out,
                    struct error *error) COMM_MUST_USE;
/* Drops every session. Removes the socket file if the api created it. */
void api_free(struct api *api);

/*
 * The work of sessions, between the loop's turns. Users take turns in it (daemon/base/turns.h). api_poll
 * works for about TURNS_SERVE_NS. It returns whether rings held requests: requests come in series, so another
 * may follow at once. api_ring_bells then wakes clients that sleep. Call api_sleep before the loop waits:
 * clients then ring the doorbell for new requests. If api_sleep returns false, call api_poll first.
 */
bool api_poll(struct api *api, uint64_t now_ns);
void api_ring_bells(struct api *api);
bool api_is_awake(const struct api *api);
bool api_sleep(struct api *api);

/*
 * Sets what one user may hold of a kind, from now on. 0 restores the kind's default (daemon/base/budget.h).
 */
void api_set_user_limit(struct api *api, enum budget_kind kind, uint64_t limit);

/* Sets whether GPU memory may be registered by legacy IPC handle from now on. Registered memory stays. */
void api_set_ipc_handles(struct api *api, enum api_ipc_handles ipc_handles);

/* What the status shows from now on. If it stops, no new client is accepted. Copied. */
void api_set_drain(struct api *api, const struct api_drain *drain, uint64_t now_ns);
/* Tells all clients that commd ends, as the last message before api_free: they get DAEMON_LOST with the text.
 */
void api_say_goodbye(struct api *api, const char *text);

#endif
