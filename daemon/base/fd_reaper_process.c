#include "daemon/base/fd_reaper_process.h"

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "daemon/base/descriptor.h"

#define FDS_MAX 1048576
#define LISTENING_MAX 8 /* listening sockets: commd has two, for clients and for administrators */

/*
 * All calls use syscall(). Sanitizers put locks around the functions of the C library, and another thread may
 * have held them when this process was made.
 */

static _Noreturn void process_end(void)
{
    for (;;) {
        (void)syscall(SYS_exit_group, 0);
    }
}

static void close_in_place(int fd)
{
    (void)syscall(SYS_close, fd);
}

/* Each descriptor is closed by a process of its own, so that a close() that waits does not delay the next
 * one. */
static void close_apart(const struct fd_reaper_pipes *pipes, const struct fd_reaper_request *request,
                        fd_reaper_close_function *close)
{
    long pid = syscall(SYS_clone, CLONE_FILES | SIGCHLD, NULL, NULL, NULL, NULL);
    if (pid > 0) {
        return;
    }
    if (pid == 0) {
        (close != NULL ? close : close_in_place)(request->fd);
    } /* else: no process can be made; the descriptor stays open, and its slot is free again */
    (void)!syscall(SYS_write, pipes->answers[1], &request->slot, sizeof request->slot);
    if (pid == 0) {
        process_end();
    }
}

static int socket_option(int fd, int option)
{
    int value = -1;
    socklen_t size = sizeof value;
    return syscall(SYS_getsockopt, fd, SOL_SOCKET, option, &value, &size) == 0 ? value : -1;
}

/* Whether the descriptor needs no more work. False for a listening socket. */
static bool release_fd(int fd)
{
    int domain = socket_option(fd, SO_DOMAIN);
    if (domain < 0) {
        if (descriptor_closes_at_once(fd)) {
            close_in_place(fd);
        }
        return true;
    }
    if (socket_option(fd, SO_ACCEPTCONN) > 0) {
        return false;
    }
    if (domain == AF_UNIX) {
        (void)syscall(SYS_shutdown, fd, SHUT_RDWR);
    } else {
        struct linger none = {.l_onoff = 0};
        (void)syscall(SYS_setsockopt, fd, SOL_SOCKET, SO_LINGER, &none, sizeof none);
        close_in_place(fd);
    }
    return true;
}

/*
 * commd is gone, and its table is shared with processes that may wait for ever. No client may take its
 * sockets for alive, and the next commd needs the network sockets' ports. A listening socket may be systemd's
 * as well, so it is not shut down. Closing it may wait, so that comes last, in a process each.
 */
static void release_table(void)
{
    struct rlimit limit = {.rlim_cur = 0};
    (void)syscall(SYS_prlimit64, 0, RLIMIT_NOFILE, NULL, &limit);
    int end = limit.rlim_cur < FDS_MAX ? (int)limit.rlim_cur : FDS_MAX;
    int listening[LISTENING_MAX];
    int count = 0;
    for (int fd = STDERR_FILENO + 1; fd < end; fd++) {
        if (syscall(SYS_fcntl, fd, F_GETFD) >= 0 && !release_fd(fd) && count < LISTENING_MAX) {
            listening[count++] = fd;
        }
    }
    for (int i = 0; i < count; i++) {
        long pid = syscall(SYS_clone, CLONE_FILES | SIGCHLD, NULL, NULL, NULL, NULL);
        if (pid <= 0) {
            close_in_place(listening[i]);
        }
        if (pid == 0) {
            process_end();
        }
    }
}

_Noreturn void fd_reaper_process(const struct fd_reaper_pipes *pipes, fd_reaper_close_function *close)
{
    struct sigaction ignore = {.sa_handler = SIG_IGN};
    (void)sigaction(SIGCHLD, &ignore, NULL); /* nobody waits for the child processes */
    (void)syscall(SYS_prctl, PR_SET_NAME, "commd-fd_reaper", 0, 0, 0);
    for (;;) {
        struct pollfd wait[] = {{.fd = pipes->requests[0], .events = POLLIN},
                                {.fd = pipes->parent, .events = POLLIN}};
        if (syscall(SYS_ppoll, wait, 2, NULL, NULL, 0) <= 0) {
            continue;
        }
        if (wait[1].revents != 0) {
            release_table();
            process_end();
        }
        struct fd_reaper_request request;
        if (syscall(SYS_read, pipes->requests[0], &request, sizeof request) != (long)sizeof request) {
            process_end();
        }
        close_apart(pipes, &request, close);
    }
}
