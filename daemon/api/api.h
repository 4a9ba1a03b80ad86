#ifndef DAEMON_API_API_H
#define DAEMON_API_API_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "daemon/base/fd_reaper.h"
#include "daemon/base/loop.h"
#include "daemon/base/time.h"
#include "daemon/comm/comms.h"
#include "daemon/exec/rails.h"

/*
 * The Unix sockets: sessions of clients, and of administrators (commctl). Turns packets (proto/client.proto)
 * into checked requests to comms and mesh, and what they answer into packets. A client that lies, stalls or
 * dies loses its own session alone. A session ends with its socket, and with the process that connected, even
 * if another one has the socket as well.
 *
 * On the clients' socket every user sees and ends what is his own, root as well: uid 0 may be that of a
 * container. Administrators have a socket of their own, on which they see and end everything and hold nothing
 * (no communicators, no memory), with places that clients cannot take.
 */
struct api;

/* What users hold is bounded by daemon/base/budget.h; the rest here. */
#define API_HELLO_WAIT_NS (5 * TIME_S) /* from a client's connection to its Hello; beyond: it is closed */
#define API_ADMIN_SESSIONS_MAX 64 /* on the administrators' socket; beyond: accepted, told LIMIT, closed */
#define API_ADMIN_SESSIONS_OF_ROOT 16  /* of them, for root and commd's own user alone */
#define API_SESSION_COMMS_MAX 1024     /* communicators (ranks) of one client; beyond: LIMIT */
#define API_SESSION_MEMORIES_MAX 16384 /* registered memories of one client; beyond: LIMIT */
#define API_SESSION_RESERVED_SHARE 2   /* memories of one client, times a GPU's memory; beyond: LIMIT */
#define API_SESSION_PACKETS_MAX 65536  /* packets that wait for a client to read; beyond: it is dropped */
#define API_SENDS_MAX 64               /* packets that go to a client's socket one after the other */
#define API_SESSION_PAUSE_PACKETS 256  /* from here on, no more requests of it are read */
#define API_SESSION_PAUSE_BYTES 131072 /* and from here on */
#define API_SESSION_FDS 2              /* of one session: its socket, a pidfd; those of rings besides */
#define API_ACCEPTS_PER_WAKE 16        /* then the others get their turn */
#define API_DISCARDS_MAX 64            /* packets of a client that is refused, which it had sent by then */

/* One configuration setting, for commctl. */
typedef void api_setting_function(void *context, const char *key, const char *value, const char *source);

/* Whether memory on GPUs may come by legacy CUDA IPC handle. */
enum api_ipc_handles {
    API_IPC_HANDLES_AUTO, /* from a user while no other has registered memory on the node's GPUs */
    API_IPC_HANDLES_ACCEPT,
    API_IPC_HANDLES_REFUSE
};

struct api_options {
    const char *socket_path; /* bound, unless listen_fd is given */
    int listen_fd;           /* from socket activation, owned by the api from then on; -1: none */
    mode_t socket_mode;
    bool socket_mode_given;   /* else a socket that was passed keeps the mode that it has */
    const char *socket_group; /* "" leaves the group alone */
    /*
     * Administration: root, commd's own user and members of admin_group. Null: none; then admin_listen_fd is
     * not looked at. Of its folder the last part is made where it is missing.
     */
    const char *admin_socket_path;
    int admin_listen_fd;     /* as listen_fd */
    const char *admin_group; /* "" or null: nobody else */
    struct comms *comms;
    struct mesh *mesh;
    struct net *net;     /* for statistics; null when standalone */
    struct rails *rails; /* likewise; null when there are none. Outlives the api */
    struct fd_reaper
        *fd_reaper; /* of what clients pass; null: closed in place, whoever is waited for. Outlives it */
    struct gpu_devices *gpus; /* null: none, and why */
    const char *gpus_absent;
    enum api_ipc_handles ipc_handles; /* api_set_ipc_handles */
    struct unmapper *unmapper;        /* of clients' memory; null: unmapped in place. Outlives it */
    const char *cluster_name;
    const char *network_address; /* "" when standalone */
    bool standalone;
    uint64_t started_ns;
    void (*visit_settings)(void *context, api_setting_function *visit, void *visit_context);
    void *settings_context;
};

#define API_PREDECESSOR_WAIT_MS 1000
#define API_PREDECESSOR_LOOK_MS 20

/*
 * Before sockets are made: a commd that was killed a moment ago leaves its to the fd_reaper's process, which
 * lets go of them at once, of this one last (daemon/base/fd_reaper.h). Returns when nobody answers there, or
 * in vain.
 */
void api_await_predecessor(const char *socket_path);

/* Texts are copied. ALREADY_EXISTS when another commd answers on the socket; SYSTEM. A dead socket file is
 * replaced. */
enum status api_new(struct loop *loop, const struct api_options *options, uint64_t now_ns, struct api **out,
                    struct error *error) COMM_MUST_USE;
/* Drops every session and removes the socket file if we made it. */
void api_free(struct api *api);

/*
 * Sessions' work, between the loop's turns: users take turns in it (daemon/base/turns.h). api_poll does some,
 * for about TURNS_SERVE_NS, and returns whether rings held requests, which come in rows: another may follow
 * at once. api_ring_bells then tells clients that sleep. Before the loop waits, api_sleep makes clients ring
 * from now on; false: poll first.
 */
bool api_poll(struct api *api, uint64_t now_ns);
void api_ring_bells(struct api *api);
bool api_is_awake(const struct api *api);
bool api_sleep(struct api *api);

/* What one user may hold of a kind, from now on; 0: the kind's own (daemon/base/budget.h). */
void api_set_user_limit(struct api *api, enum budget_kind kind, uint64_t limit);

/* Whether memory on GPUs may be registered by legacy IPC handle from now on. What is registered stays. */
void api_set_ipc_handles(struct api *api, enum api_ipc_handles ipc_handles);

/* No new session is accepted, and status says draining. */
void api_drain(struct api *api);

#endif
