#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "daemon/api/session.h"

_Static_assert(API_SESSIONS_MAX <= CLOSER_SESSIONS_MAX, "every session's socket finds a place");

static void server_watch(struct api *api)
{
    bool accepts = !api->rests && !api->pauses && !api->draining;
    loop_watch_set(api->watch, accepts ? LOOP_READ : 0);
}

static void server_go_on(void *context, uint64_t now_ns)
{
    struct api *api = context;
    (void)now_ns;
    api->pauses = false;
    server_watch(api);
}

void api_lacks_fds(struct error *error, const char *consequence)
{
    struct rlimit limit = {.rlim_cur = 0};
    (void)getrlimit(RLIMIT_NOFILE, &limit);
    error_set(error, STATUS_LIMIT,
              "commd has all %llu file descriptors open that it may have (LimitNOFILE= of its unit): %s",
              (unsigned long long)limit.rlim_cur, consequence);
}

static void server_refuse(struct api *api, int fd, const struct error *error, uint64_t now_ns)
{
    uint64_t suppressed;
    if (log_limit_pass(&api->refused_limit, now_ns, &suppressed)) {
        log_warning("a client is refused: %s", error->text);
    }
    api_session_refuse(api, fd, error);
}

static int server_take(const struct api *api)
{
    return accept4(api->listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
}

/*
 * There is no descriptor for the next client: the spare one serves to tell it so. False: not even that, and
 * none is accepted for a while, since the socket would stay ready all the time.
 */
static bool server_turn_away(struct api *api, uint64_t now_ns)
{
    struct error error;
    int fd = -1;
    if (api->spare_fd >= 0) {
        (void)close(api->spare_fd);
        fd = server_take(api);
    }
    if (fd >= 0) {
        api_lacks_fds(&error, "it takes no more clients");
        server_refuse(api, fd, &error, now_ns);
    }
    api->spare_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        uint64_t suppressed;
        if (log_limit_pass(&api->refused_limit, now_ns, &suppressed)) {
            log_warning("clients cannot be accepted: no file descriptor, or no memory, is left");
        }
        api->pauses = true;
        loop_timer_set(api->pause, time_after(now_ns, API_ACCEPT_PAUSE_NS));
        server_watch(api);
    }
    return fd >= 0;
}

static void server_accept(void *context, unsigned events, uint64_t now_ns)
{
    (void)events;
    struct api *api = context;
    for (int i = 0; i < API_ACCEPTS_PER_WAKE; i++) {
        if (!closer_takes_sockets(api->closer)) {
            api->rests = true;
            server_watch(api);
            return;
        }
        int fd = server_take(api);
        if (fd < 0) {
            bool lacks = errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS;
            if (!lacks || !server_turn_away(api, now_ns)) {
                return;
            }
            continue;
        }
        struct error error;
        if (HASH_COUNT(api->sessions) >= API_SESSIONS_MAX) {
            error_set(&error, STATUS_LIMIT, "%d processes are connected, which is the limit",
                      API_SESSIONS_MAX);
            server_refuse(api, fd, &error, now_ns);
        } else if (api_session_new(api, fd, now_ns, &error) != STATUS_OK) {
            server_refuse(api, fd, &error, now_ns);
        }
    }
}

/* Whether somebody answers on the socket file, which then is not ours to replace. */
static bool server_answers(const struct sockaddr_un *address)
{
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    bool answers =
        fd >= 0 && (connect(fd, (const struct sockaddr *)address, sizeof *address) == 0 || errno == EAGAIN);
    if (fd >= 0) {
        close(fd);
    }
    return answers;
}

void api_await_predecessor(const char *socket_path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (strlen(socket_path) >= sizeof address.sun_path) {
        return;
    }
    strcpy(address.sun_path, socket_path);
    const struct timespec pause = {.tv_nsec = API_PREDECESSOR_LOOK_MS * 1000000L};
    for (int waited_ms = 0; waited_ms < API_PREDECESSOR_WAIT_MS && server_answers(&address);
         waited_ms += API_PREDECESSOR_LOOK_MS) {
        (void)nanosleep(&pause, NULL);
    }
}

static enum status server_permit(const struct api_options *options, struct error *error)
{
    if (chmod(options->socket_path, options->socket_mode) < 0) {
        return error_set_errno(error, errno, "%s: chmod", options->socket_path);
    }
    if (options->socket_group != NULL && options->socket_group[0] != '\0') {
        const struct group *group = getgrnam(options->socket_group);
        if (group == NULL) {
            return error_set(error, STATUS_CONFIG, "%s: there is no group \"%s\"", options->socket_path,
                             options->socket_group);
        }
        if (chown(options->socket_path, (uid_t)-1, group->gr_gid) < 0) {
            return error_set_errno(error, errno, "%s: chown to group %s", options->socket_path,
                                   options->socket_group);
        }
    }
    return STATUS_OK;
}

static enum status server_bind(struct api *api, const struct api_options *options, struct error *error)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (strlen(options->socket_path) >= sizeof address.sun_path) {
        return error_set(error, STATUS_CONFIG, "%s: a socket's path has at most %zu bytes",
                         options->socket_path, sizeof address.sun_path - 1);
    }
    strcpy(address.sun_path, options->socket_path);
    struct stat file;
    if (lstat(options->socket_path, &file) == 0) {
        if (!S_ISSOCK(file.st_mode)) {
            return error_set(error, STATUS_CONFIG, "%s: exists and is no socket", options->socket_path);
        }
        if (server_answers(&address)) {
            return error_set(error, STATUS_ALREADY_EXISTS, "%s: another commd is running",
                             options->socket_path);
        }
        unlink(options->socket_path);
    }
    api->listen_fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (api->listen_fd < 0) {
        return error_set_errno(error, errno, "socket");
    }
    mode_t mask = umask(0177); /* nobody connects before the mode and group are right */
    int bound = bind(api->listen_fd, (struct sockaddr *)&address, sizeof address);
    int bind_errno = errno;
    umask(mask);
    if (bound < 0) {
        return error_set_errno(error, bind_errno, "%s: bind", options->socket_path);
    }
    api->owns_socket_file = true;
    enum status status = server_permit(options, error);
    if (status != STATUS_OK) {
        return status;
    }
    if (listen(api->listen_fd, SOMAXCONN) < 0) {
        return error_set_errno(error, errno, "%s: listen", options->socket_path);
    }
    return STATUS_OK;
}

/* A socket that was made by who started us: of the right kind, and made not to block. */
static enum status server_adopt(int fd, struct error *error)
{
    int type = 0, listens = 0;
    socklen_t size = sizeof type;
    if (getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &size) != 0 ||
        getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &size) != 0) {
        return error_set_errno(error, errno, "the socket that was passed");
    }
    if (type != SOCK_SEQPACKET || listens == 0) {
        return error_set(error, STATUS_CONFIG,
                         "the socket that was passed is no listening SOCK_SEQPACKET socket");
    }
    int flags = fcntl(fd, F_GETFL);
    if (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) != 0) {
        return error_set_errno(error, errno, "the socket that was passed");
    }
    return STATUS_OK;
}

enum status api_new(struct loop *loop, const struct api_options *options, uint64_t now_ns, struct api **out,
                    struct error *error)
{
    (void)now_ns;
    struct api *api = calloc(1, sizeof *api);
    if (api == NULL) {
        return error_set(error, STATUS_NO_MEMORY, "no memory for the client socket");
    }
    api->loop = loop;
    api->spare_fd = -1;
    api->turns.clock = loop_now_ns;
    api->req = options->req;
    api->mesh = options->mesh;
    api->net = options->net;
    api->rails = options->rails;
    api->listen_fd = options->listen_fd;
    api->standalone = options->standalone;
    api->started_ns = options->started_ns;
    api->visit_settings = options->visit_settings;
    api->settings_context = options->settings_context;
    api->refused_limit = (struct log_limit){.burst = 5, .interval_ns = 10 * TIME_S};
    api->socket_path = strdup(options->socket_path);
    api->cluster_name = strdup(options->cluster_name);
    api->network_address = strdup(options->network_address);
    api->closer = options->closer;
    api->gpus = options->gpus;
    api->refuses_ipc_handles = options->refuses_ipc_handles;
    api->gpus_absent = strdup(options->gpus_absent == NULL ? "" : options->gpus_absent);
    enum status status = budget_new(NULL, &api->budget, error);
    if (status != STATUS_OK) {
        goto failed;
    }
    if (api->socket_path == NULL || api->cluster_name == NULL || api->network_address == NULL ||
        api->gpus_absent == NULL) {
        status = error_set(error, STATUS_NO_MEMORY, "no memory for the client socket");
    } else if (api->listen_fd < 0) {
        status = server_bind(api, options, error);
    } else {
        status = server_adopt(api->listen_fd, error);
    }
    if (status == STATUS_OK) {
        api->spare_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
        status = loop_timer_new(loop, server_go_on, api, &api->pause, error);
    }
    if (status == STATUS_OK) {
        api_pass_fds(api->listen_fd, false); /* nor do those that connect: until their Hello */
        status = loop_watch_new(loop, api->listen_fd, LOOP_READ, server_accept, api, &api->watch, error);
    }
    if (status != STATUS_OK) {
        goto failed;
    }
    *out = api;
    return STATUS_OK;
failed:
    api_free(api);
    return status;
}

void api_free(struct api *api)
{
    if (api == NULL) {
        return;
    }
    struct api_session *session, *next;
    HASH_ITER (hh, api->sessions, session, next) {
        api_session_free(session, loop_now_ns());
    }
    loop_watch_free(api->watch);
    loop_timer_free(api->pause);
    if (api->spare_fd >= 0) {
        (void)close(api->spare_fd);
    }
    if (api->owns_socket_file) {
        unlink(api->socket_path);
    }
    if (api->listen_fd >= 0) {
        close(api->listen_fd);
    }
    budget_free(api->budget);
    free(api->network_address);
    free(api->gpus_absent);
    free(api->cluster_name);
    free(api->socket_path);
    free(api);
}

void api_set_ipc_handles(struct api *api, bool refused)
{
    api->refuses_ipc_handles = refused;
}

void api_accept_again(struct api *api)
{
    if (api->rests && !api->draining && closer_takes_sockets(api->closer)) {
        api->rests = false;
        server_watch(api);
    }
}

void api_drain(struct api *api)
{
    api->draining = true;
    server_watch(api);
}
