#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <libgen.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "daemon/api/session.h"

/* Listening sockets: bound here, or passed by the process that started commd. */

#define MODE_BITS 0777u

/* Whether a process answers on the socket file. Then commd must not replace the file. */
static bool socket_answers(const struct sockaddr_un *address)
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
    for (int waited_ms = 0; waited_ms < API_PREDECESSOR_WAIT_MS && socket_answers(&address);
         waited_ms += API_PREDECESSOR_LOOK_MS) {
        (void)nanosleep(&pause, NULL);
    }
}

static bool has_group(const struct api_listener_options *options)
{
    return options->group != NULL && options->group[0] != '\0';
}

static enum status find_group(const struct api_listener_options *options, const char *path, gid_t *gid,
                              struct error *error)
{
    const struct group *group = getgrnam(options->group);
    if (group == NULL) {
        return error_set(error, STATUS_CONFIG, "%s: there is no group \"%s\" (%s)", path, options->group,
                         options->group_setting);
    }
    *gid = group->gr_gid;
    return STATUS_OK;
}

/* Sets the group first. Otherwise the mode would let another group in for a moment. */
static enum status permit_bound(const struct api_listener_options *options, struct error *error)
{
    if (has_group(options)) {
        gid_t gid = (gid_t)-1;
        enum status status = find_group(options, options->path, &gid, error);
        if (status != STATUS_OK) {
            return status;
        }
        if (chown(options->path, (uid_t)-1, gid) < 0) {
            return error_set_errno(error, errno,
                                   "%s: chown to group %s (%s), of which commd must be a member "
                                   "(SupplementaryGroups= in its unit)",
                                   options->path, options->group, options->group_setting);
        }
    }
    if (chmod(options->path, options->mode) < 0) {
        return error_set_errno(error, errno, "%s: chmod", options->path);
    }
    return STATUS_OK;
}

/* Creates the last part of the folder. If that fails, bind reports the reason. */
static void make_folder(const char *path)
{
    char *copy = strdup(path);
    if (copy != NULL) {
        (void)mkdir(dirname(copy), 0755);
        free(copy);
    }
}

/* Reports what kept commd from creating the file, and what the administrator can do. */
static enum status refuse_path(const struct api_listener_options *options, const char *call, int why_errno,
                               struct error *error)
{
    struct error why;
    char *copy = strdup(options->path);
    const char *folder = copy != NULL ? dirname(copy) : "of the socket";
    (void)error_set_errno(&why, why_errno, "%s: %s", options->path, call);
    enum status status = why.status;
    if (why_errno == ENOENT) {
        error_set(error, status, "%s: make the folder %s, or give another path (%s)", why.text, folder,
                  options->path_setting);
    } else if (why_errno == EACCES || why_errno == EPERM) {
        error_set(error, status, "%s: let uid %u write to the folder %s, or give another path (%s)", why.text,
                  (unsigned)geteuid(), folder, options->path_setting);
    } else {
        error_set(error, status, "%s: give another path (%s)", why.text, options->path_setting);
    }
    free(copy);
    return status;
}

static enum status bind_socket(struct api_listener *listener, const struct api_listener_options *options,
                               struct error *error)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (strlen(options->path) >= sizeof address.sun_path) {
        return error_set(error, STATUS_CONFIG,
                         "%s: a socket's path has at most %zu bytes: give a shorter one (%s)", options->path,
                         sizeof address.sun_path - 1, options->path_setting);
    }
    strcpy(address.sun_path, options->path);
    struct stat file;
    if (lstat(options->path, &file) == 0) {
        if (!S_ISSOCK(file.st_mode)) {
            return error_set(error, STATUS_CONFIG,
                             "%s: exists and is no socket: remove it, or give another path (%s)",
                             options->path, options->path_setting);
        }
        if (socket_answers(&address)) {
            return error_set(error, STATUS_ALREADY_EXISTS,
                             "%s: another commd is running: stop it, or give another path (%s)",
                             options->path, options->path_setting);
        }
        if (unlink(options->path) != 0) {
            return refuse_path(options, "unlink", errno, error);
        }
    }
    listener->fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (listener->fd < 0) {
        return error_set_errno(error, errno, "socket");
    }
    if (listener->role == API_ROLE_ADMIN) {
        make_folder(options->path);
    }
    mode_t mask = umask(0177); /* nobody can connect before mode and group are right */
    int bound = bind(listener->fd, (struct sockaddr *)&address, sizeof address);
    int bind_errno = errno;
    umask(mask);
    if (bound < 0) {
        return refuse_path(options, "bind", bind_errno, error);
    }
    listener->owns_file = true;
    enum status status = permit_bound(options, error);
    if (status != STATUS_OK) {
        return status;
    }
    if (lstat(options->path, &file) != 0) {
        return error_set_errno(error, errno, "%s", options->path);
    }
    listener->device = file.st_dev;
    listener->inode = file.st_ino;
    if (listen(listener->fd, SOMAXCONN) < 0) {
        return error_set_errno(error, errno, "%s: listen", options->path);
    }
    return STATUS_OK;
}

/* --- Sockets that were passed --- */

static enum status check_kind(int fd, struct error *error)
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
    return STATUS_OK;
}

/* Finds the file of a passed socket. Returns CONFIG if it has none: then neither mode nor group can take
 * effect. */
static enum status find_file(int fd, struct sockaddr_un *address, struct stat *file, struct error *error)
{
    socklen_t size = sizeof *address;
    memset(address, 0, sizeof *address);
    if (getsockname(fd, (struct sockaddr *)address, &size) != 0) {
        return error_set_errno(error, errno, "the socket that was passed");
    }
    if (address->sun_family != AF_UNIX || size <= offsetof(struct sockaddr_un, sun_path) ||
        address->sun_path[0] == '\0') {
        return error_set(error, STATUS_CONFIG, "the socket that was passed has no file");
    }
    address->sun_path[sizeof address->sun_path - 1] = '\0';
    if (lstat(address->sun_path, file) != 0) {
        return error_set_errno(error, errno, "%s, of the socket that was passed", address->sun_path);
    }
    if (!S_ISSOCK(file->st_mode)) {
        return error_set(error, STATUS_CONFIG, "%s, of the socket that was passed, is no socket",
                         address->sun_path);
    }
    return STATUS_OK;
}

/* Applies mode and group to a passed socket, whoever created it. If that fails, the start fails. */
static enum status permit_passed(int fd, const struct api_listener_options *options, struct error *error)
{
    struct sockaddr_un address;
    struct stat file;
    struct error why;
    gid_t gid = (gid_t)-1;
    if (!options->mode_given && !has_group(options)) {
        return STATUS_OK;
    }
    if (find_file(fd, &address, &file, &why) != STATUS_OK) {
        return error_set(error, STATUS_CONFIG, "%s and %s cannot be applied: %s", options->mode_setting,
                         options->group_setting, why.text);
    }
    const char *path = address.sun_path;
    if (has_group(options)) {
        enum status status = find_group(options, path, &gid, error);
        if (status != STATUS_OK) {
            return status;
        }
    }
    if (gid != (gid_t)-1 && gid != file.st_gid && chown(path, (uid_t)-1, gid) != 0) {
        return error_set(error, STATUS_CONFIG,
                         "%s: its group is %u, %s says \"%s\", and commd cannot change it (%s): have the "
                         "socket's unit say SocketGroup=%s, or commd's SupplementaryGroups=%s",
                         path, (unsigned)file.st_gid, options->group_setting, options->group, strerror(errno),
                         options->group, options->group);
    }
    if (options->mode_given && (file.st_mode & MODE_BITS) != options->mode &&
        chmod(path, options->mode) != 0) {
        return error_set(error, STATUS_CONFIG,
                         "%s: its mode is %04o, %s says %04o, and commd cannot change it (%s): have the "
                         "socket's unit say SocketMode=%04o",
                         path, (unsigned)(file.st_mode & MODE_BITS), options->mode_setting,
                         (unsigned)options->mode, strerror(errno), (unsigned)options->mode);
    }
    return STATUS_OK;
}

/* Adopts a socket from the process that started commd: checks its kind, sets its permissions, makes it
 * non-blocking. */
static enum status adopt_socket(int fd, const struct api_listener_options *options, struct error *error)
{
    enum status status = check_kind(fd, error);
    if (status == STATUS_OK) {
        status = permit_passed(fd, options, error);
    }
    if (status != STATUS_OK) {
        return status;
    }
    int flags = fcntl(fd, F_GETFL);
    if (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) != 0) {
        return error_set_errno(error, errno, "the socket that was passed");
    }
    return STATUS_OK;
}

enum status api_listener_open(struct api_listener *listener, const struct api_listener_options *options,
                              struct error *error)
{
    listener->fd = options->fd;
    listener->path = strdup(options->path);
    listener->group = strdup(options->group != NULL ? options->group : "");
    if (listener->path == NULL || listener->group == NULL) {
        return error_set(error, STATUS_NO_MEMORY, "no memory for a socket");
    }
    listener->options = *options;
    listener->options.path = listener->path;
    listener->options.group = listener->group;
    return listener->fd < 0 ? bind_socket(listener, options, error)
                            : adopt_socket(listener->fd, options, error);
}

void api_listener_close(struct api_listener *listener)
{
    if (listener->owns_file && !api_listener_has_lost_file(listener)) {
        unlink(listener->path);
    }
    if (listener->fd >= 0) {
        close(listener->fd);
    }
    free(listener->path);
    free(listener->group);
}

bool api_listener_has_lost_file(const struct api_listener *listener)
{
    struct stat file;
    bool has_place = listener->inode != 0; /* otherwise opening it failed */
    return listener->owns_file && has_place &&
           (lstat(listener->path, &file) != 0 || file.st_dev != listener->device ||
            file.st_ino != listener->inode);
}

enum status api_listener_bind_again(struct api_listener *listener, struct error *error)
{
    struct api_listener next = {.role = listener->role, .fd = -1};
    enum status status = bind_socket(&next, &listener->options, error);
    if (status != STATUS_OK) {
        if (next.owns_file) {
            unlink(listener->path);
        }
        if (next.fd >= 0) {
            close(next.fd);
        }
        return status;
    }
    listener->fd = next.fd;
    listener->device = next.device;
    listener->inode = next.inode;
    return STATUS_OK;
}
