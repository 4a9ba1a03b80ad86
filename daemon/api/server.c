#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "daemon/api/metrics.h"
#include "daemon/api/metrics_http.h"
#include "daemon/base/descriptor.h"

_Static_assert(2 * BUDGET_SESSIONS_MAX <= CLOSER_SESSIONS_MAX,
               "every session's socket and doorbell finds a place");

#define PEER_GROUPS_MAX 1024 /* supplementary groups of an administrator that are checked */

/* Whether a user may administer: root, commd's own user, or a member of admin_group by any of his groups. */
static bool peer_is_admin(const struct api *api, int fd, const struct ucred *peer)
{
    gid_t groups[PEER_GROUPS_MAX];
    socklen_t size = sizeof groups;
    if (peer->uid == 0 || peer->uid == geteuid()) {
        return true;
    }
    if (!api->has_admin_group) {
        return false;
    }
    if (peer->gid == api->admin_gid) {
        return true;
    }
    if (getsockopt(fd, SOL_SOCKET, SO_PEERGROUPS, groups, &size) != 0) {
        return false;
    }
    for (size_t i = 0; i < size / sizeof *groups; i++) {
        if (groups[i] == api->admin_gid) {
            return true;
        }
    }
    return false;
}

static enum status server_admit_admin(const struct api_listener *listener, int fd, struct error *error)
{
    struct ucred peer;
    socklen_t size = sizeof peer;
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) {
        return error_set_errno(error, errno, "SO_PEERCRED");
    }
    if (!peer_is_admin(listener->api, fd, &peer)) {
        return error_set(error, STATUS_PERMISSION,
                         "uid %u (pid %d) may not administer commd: root, commd's own user and members of "
                         "admin_group may",
                         (unsigned)peer.uid, (int)peer.pid);
    }
    bool is_first = peer.uid == 0 || peer.uid == geteuid();
    uint32_t limit = is_first ? API_ADMIN_SESSIONS_MAX : API_ADMIN_SESSIONS_MAX - API_ADMIN_SESSIONS_OF_ROOT;
    if (listener->session_count >= limit) {
        return error_set(error, STATUS_LIMIT, "%u administrators are connected, which is the limit",
                         listener->session_count);
    }
    return STATUS_OK;
}

static enum status server_admit(const struct api_listener *listener, int fd, struct error *error)
{
    if (listener->role == API_ROLE_ADMIN) {
        return server_admit_admin(listener, fd, error);
    }
    return STATUS_OK; /* the user's account is charged for each session */
}

static void listener_watch(struct api_listener *listener)
{
    bool drains = listener->api->drain.stops &&
                  listener->role == API_ROLE_CLIENT; /* administrators may still connect */
    bool accepts = !listener->rests && !listener->pauses && !drains;
    loop_watch_set(listener->watch, accepts ? LOOP_READ : 0);
}

static void listener_go_on(void *context, uint64_t now_ns)
{
    struct api_listener *listener = context;
    (void)now_ns;
    listener->pauses = false;
    listener_watch(listener);
}

void api_lacks_fds(struct error *error, const char *consequence)
{
    struct rlimit limit = {.rlim_cur = 0};
    (void)getrlimit(RLIMIT_NOFILE, &limit);
    error_set(error, STATUS_LIMIT,
              "commd has all %llu file descriptors open that it may have (LimitNOFILE= of its unit): %s",
              (unsigned long long)limit.rlim_cur, consequence);
}

static void listener_refuse(struct api_listener *listener, int fd, const struct error *error, uint64_t now_ns)
{
    struct ucred who = {.uid = (uid_t)-1};
    socklen_t size = sizeof who;
    (void)getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &size);
    listener->refused_count++;
    struct history_about about = {.kind = HISTORY_REFUSED,
                                  .audience = HISTORY_FOR_USER,
                                  .uid = who.uid,
                                  .pid = (uint32_t)who.pid,
                                  .now_ns = now_ns};
    history_add(&about, "%s: %s", listener->role == API_ROLE_ADMIN ? "an administrator" : "a client",
                error->text);
    if (budget_may_log(listener->api->budget, who.uid, now_ns, NULL)) {
        log_warning("%s, process %d of uid %u, is refused: %s",
                    listener->role == API_ROLE_ADMIN ? "an administrator" : "a client", (int)who.pid,
                    (unsigned)who.uid, error->text);
    }
    api_session_refuse(listener->api, listener->role, fd, error);
}

static int listener_take(const struct api_listener *listener)
{
    return accept4(listener->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
}

static void listener_admit(struct api_listener *listener, int fd, uint64_t now_ns)
{
    struct error error;
    enum status status = server_admit(listener, fd, &error);
    if (status == STATUS_OK) {
        status = api_session_new(listener->api, listener->role, fd, now_ns, &error);
    }
    if (status != STATUS_OK) {
        listener_refuse(listener, fd, &error, now_ns);
    }
}

void api_listener_keep_spare(struct api_listener *listener)
{
    if (listener->spare_fd < 0) {
        listener->spare_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    }
}

/*
 * There is no descriptor for the next connection. The spare one is used: to send a client the reason, or to
 * let an administrator look for it. Returns false if there is not even a spare one. Then none is accepted for
 * a while, because the socket would be ready all the time.
 */
static bool listener_use_spare(struct api_listener *listener, uint64_t now_ns)
{
    struct error error;
    int fd = -1;
    if (listener->spare_fd >= 0) {
        (void)close(listener->spare_fd);
        listener->spare_fd = -1;
        fd = listener_take(listener);
    }
    if (fd >= 0 && listener->role == API_ROLE_ADMIN) {
        listener_admit(listener, fd, now_ns);
    } else if (fd >= 0) {
        api_lacks_fds(&error, "it takes no more clients");
        listener_refuse(listener, fd, &error, now_ns);
    }
    api_listener_keep_spare(listener);
    if (fd < 0) {
        uint64_t suppressed;
        if (log_limit_pass(&listener->refused_limit, now_ns, &suppressed)) {
            log_warning("%s cannot be accepted: no file descriptor, or no memory, is left",
                        listener->role == API_ROLE_ADMIN ? "administrators" : "clients");
        }
        listener->pauses = true;
        loop_timer_set(listener->pause, time_after(now_ns, API_ACCEPT_PAUSE_NS));
        listener_watch(listener);
    }
    return fd >= 0;
}

/* Without a free descriptor, accept4 fails whether a connection waits or not. */
static bool listener_has_client(const struct api_listener *listener)
{
    struct pollfd waiting = {.fd = listener->fd, .events = POLLIN};
    return poll(&waiting, 1, 0) != 0;
}

static void server_accept(void *context, unsigned events, uint64_t now_ns)
{
    (void)events;
    struct api_listener *listener = context;
    api_listener_keep_spare(listener);
    for (int i = 0; i < API_ACCEPTS_PER_WAKE; i++) {
        if (listener->role == API_ROLE_CLIENT && !fd_reaper_takes_sockets(listener->api->fd_reaper)) {
            listener->rests = true;
            listener_watch(listener);
            return;
        }
        int fd = listener_take(listener);
        if (fd >= 0) {
            listener_admit(listener, fd, now_ns);
            continue;
        }
        bool lacks = errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS;
        if (!lacks || !listener_has_client(listener) || !listener_use_spare(listener, now_ns)) {
            return;
        }
    }
}

/* Connections that were accepted go on at the old socket. */
static enum status listener_renew(struct api_listener *listener, struct error *error)
{
    struct loop_watch *watch;
    int old_fd = listener->fd;
    enum status status = api_listener_bind_again(listener, error);
    if (status != STATUS_OK) {
        return status;
    }
    api_pass_fds(listener->fd, false);
    status =
        loop_watch_new(listener->api->loop, listener->fd, LOOP_READ, server_accept, listener, &watch, error);
    if (status != STATUS_OK) { /* the next look tries again */
        close(listener->fd);
        listener->fd = old_fd;
        (void)unlink(listener->path);
        return status;
    }
    loop_watch_free(listener->watch);
    close(old_fd);
    listener->watch = watch;
    listener_watch(listener);
    return STATUS_OK;
}

/* If somebody has removed the socket's file, for example with its folder, nobody could connect any more. */
static void listener_look(void *context, uint64_t now_ns)
{
    struct api_listener *listener = context;
    struct error error;
    loop_timer_set(listener->look, time_after(now_ns, API_SOCKET_LOOK_NS));
    if (!api_listener_has_lost_file(listener)) {
        listener->file_is_gone = false;
        return;
    }
    if (listener_renew(listener, &error) == STATUS_OK) {
        log_warning("%s was removed, and is there again", listener->path);
        listener->file_is_gone = false;
    } else if (!listener->file_is_gone) {
        log_error("%s was removed, so nobody can connect to it: %s", listener->path, error.text);
        listener->file_is_gone = true;
    }
}

static enum status server_find_admins(struct api *api, const struct api_options *options, struct error *error)
{
    if (options->admin_group == NULL || options->admin_group[0] == '\0') {
        return STATUS_OK;
    }
    const struct group *group = getgrnam(options->admin_group);
    if (group == NULL) {
        return error_set(error, STATUS_CONFIG, "admin_group: there is no group \"%s\"", options->admin_group);
    }
    api->has_admin_group = true;
    api->admin_gid = group->gr_gid;
    return STATUS_OK;
}

static enum status server_listen(struct api *api, const struct api_options *options, enum api_role role,
                                 struct error *error)
{
    struct api_listener *listener = &api->listeners[role];
    struct api_listener_options listener_options = {.path = options->socket_path,
                                                    .fd = options->listen_fd,
                                                    .mode = options->socket_mode,
                                                    .mode_given = options->socket_mode_given,
                                                    .group = options->socket_group,
                                                    .path_setting = "socket_path, --socket",
                                                    .mode_setting = "socket_mode",
                                                    .group_setting = "socket_group"};
    if (role == API_ROLE_ADMIN) {
        listener_options = (struct api_listener_options){.path = options->admin_socket_path,
                                                         .fd = options->admin_listen_fd,
                                                         .mode = api->has_admin_group ? 0660 : 0600,
                                                         .mode_given = true,
                                                         .group = options->admin_group,
                                                         .path_setting = "admin_socket_path",
                                                         .mode_setting = "the administrators' mode",
                                                         .group_setting = "admin_group"};
    }
    enum status status = api_listener_open(listener, &listener_options, error);
    if (status == STATUS_OK) {
        api_listener_keep_spare(listener);
        status = loop_timer_new(api->loop, listener_go_on, listener, &listener->pause, error);
    }
    if (status == STATUS_OK) {
        status = loop_timer_new(api->loop, listener_look, listener, &listener->look, error);
    }
    if (status == STATUS_OK) {
        api_pass_fds(listener->fd, false); /* nor may new connections pass them before their Hello */
        status = loop_watch_new(api->loop, listener->fd, LOOP_READ, server_accept, listener, &listener->watch,
                                error);
    }
    if (status == STATUS_OK && listener->owns_file) {
        loop_timer_set(listener->look, time_after(loop_now_ns(), API_SOCKET_LOOK_NS));
    }
    return status;
}

/* For everybody on this machine. */
static void write_metrics(void *context, struct metrics_text *text, uint64_t now_ns)
{
    metrics_write(context, text, now_ns);
    metrics_text_end(text);
}

/* Does what may fail. After a failure, api_free frees what was made. */
static enum status server_make(struct api *api, const struct api_options *options, struct error *error)
{
    enum status status = budget_new(NULL, &api->budget, error);
    if (status == STATUS_OK && (api->cluster_name == NULL || api->network_address == NULL ||
                                api->rail_addresses == NULL || api->gpus_absent == NULL)) {
        status = error_set(error, STATUS_NO_MEMORY, "no memory for the client socket");
    }
    if (status == STATUS_OK) {
        status = server_find_admins(api, options, error);
    }
    if (status == STATUS_OK) {
        status = loop_timer_new(api->loop, api_greetings_due, api, &api->greetings, error);
    }
    if (status == STATUS_OK) {
        status = loop_timer_new(api->loop, api_crowd_due, api, &api->crowd, error);
    }
    if (status == STATUS_OK) {
        status = api_graphs_new(api, error);
    }
    if (status == STATUS_OK) {
        status = api_heart_new(api, error);
    }
    if (status == STATUS_OK) {
        status = dying_new(api->loop, &api->dying, error);
    }
    if (status == STATUS_OK) {
        status = server_listen(api, options, API_ROLE_CLIENT, error);
    }
    if (status == STATUS_OK && options->admin_socket_path != NULL) {
        status = server_listen(api, options, API_ROLE_ADMIN, error);
    }
    if (status == STATUS_OK && options->metrics != NULL && options->metrics[0] != '\0') {
        status = metrics_http_new(api->loop, options->metrics, write_metrics, api, &api->metrics_http, error);
    }
    return status;
}

static void api_take_options(struct api *api, const struct api_options *options)
{
    api->comms = options->comms;
    api->stores = options->stores;
    api->gathers = options->gathers;
    api->mesh = options->mesh;
    api->net = options->net;
    api->standalone = options->standalone;
    api->started_ns = options->started_ns;
    api->owner = options->owner;
    api->fd_reaper = options->fd_reaper;
    api->gpus = options->gpus;
    api->ipc_handles = options->ipc_handles;
    api->tuning = options->tuning;
    api->exec = options->exec;
    api->unmapper = options->unmapper;
}

/* commd must close them, even after a failure. */
static void api_take_sockets(struct api *api, const struct api_options *options)
{
    for (unsigned role = 0; role < API_ROLE_COUNT; role++) {
        api->listeners[role] =
            (struct api_listener){.api = api,
                                  .role = (enum api_role)role,
                                  .fd = -1,
                                  .spare_fd = -1,
                                  .refused_limit = {.burst = 5, .interval_ns = 10 * TIME_S}};
    }
    api->listeners[API_ROLE_CLIENT].fd = options->listen_fd;
    if (options->admin_socket_path != NULL) {
        api->listeners[API_ROLE_ADMIN].fd = options->admin_listen_fd;
    }
}

enum status api_new(struct loop *loop, const struct api_options *options, uint64_t now_ns, struct api **out,
                    struct error *error)
{
    struct api *api = calloc(1, sizeof *api);
    if (api == NULL) {
        return error_set(error, STATUS_NO_MEMORY, "no memory for the client socket");
    }
    api->loop = loop;
    api->turns.clock = loop_now_ns;
    api->now_ns = now_ns;
    api->drain.deadline_ns = TIME_NEVER;
    api_take_options(api, options);
    api_take_sockets(api, options);
    api->cluster_name = strdup(options->cluster_name);
    api->network_address = strdup(options->network_address);
    api->rail_addresses = strdup(options->rail_addresses != NULL ? options->rail_addresses : "");
    api->gpus_absent = strdup(options->gpus_absent == NULL ? "" : options->gpus_absent);
    enum status status = server_make(api, options, error);
    if (status != STATUS_OK) {
        api_free(api);
        return status;
    }
    if (api->stores != NULL) {
        stores_set_budget(api->stores, api->budget);
    }
    if (api->gathers != NULL) {
        gathers_set_budget(api->gathers, api->budget);
    }
    *out = api;
    return STATUS_OK;
}

void api_free(struct api *api)
{
    if (api == NULL) {
        return;
    }
    struct api_session *session, *next;
    api->ending = true;
    HASH_ITER (hh, api->sessions, session, next) {
        api_session_free(session, loop_now_ns());
    }
    metrics_http_free(api->metrics_http);
    loop_timer_free(api->greetings);
    loop_timer_free(api->crowd);
    api_graphs_free(api);
    for (unsigned role = 0; role < API_ROLE_COUNT; role++) {
        struct api_listener *listener = &api->listeners[role];
        loop_watch_free(listener->watch);
        loop_timer_free(listener->pause);
        loop_timer_free(listener->look);
        descriptor_close(listener->spare_fd);
        api_listener_close(listener);
    }
    api_heart_free(api);
    dying_free(api->dying);
    if (api->stores != NULL) {
        stores_set_budget(api->stores, NULL);
    }
    if (api->gathers != NULL) {
        gathers_set_budget(api->gathers, NULL);
    }
    budget_free(api->budget);
    free(api->network_address);
    free(api->rail_addresses);
    free(api->gpus_absent);
    free(api->cluster_name);
    free(api);
}

void api_set_user_limit(struct api *api, enum budget_kind kind, uint64_t limit)
{
    budget_set_ceiling(api->budget, kind, limit);
}

void api_set_ipc_handles(struct api *api, enum api_ipc_handles ipc_handles)
{
    api->ipc_handles = ipc_handles;
}

void api_accept_again(struct api *api)
{
    struct api_listener *listener = &api->listeners[API_ROLE_CLIENT];
    if (listener->rests && !api->drain.stops && fd_reaper_takes_sockets(api->fd_reaper)) {
        listener->rests = false;
        listener_watch(listener);
    }
}

void api_set_drain(struct api *api, const struct api_drain *drain, uint64_t now_ns)
{
    api->drain = *drain;
    api_drain_tell_all(api, now_ns);
    listener_watch(&api->listeners[API_ROLE_CLIENT]);
}
