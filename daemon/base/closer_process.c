#include "daemon/base/closer_process.h"

#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

/*
 * By syscall() throughout: sanitizers put locks around the C library's functions, and another thread may have
 * held them when this process was made.
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

/* Each close is a process's own: that it waits keeps nobody from closing the next one. */
static void close_apart(const struct closer_pipes *pipes, const struct closer_request *request,
                        closer_close_function *close)
{
    long pid = syscall(SYS_clone, CLONE_FILES | SIGCHLD, NULL, NULL, NULL, NULL);
    if (pid > 0) {
        return;
    }
    if (pid == 0) {
        (close != NULL ? close : close_in_place)(request->fd);
    } /* else: no process is to be had; it stays open, and its slot is free again */
    (void)!syscall(SYS_write, pipes->answers[1], &request->slot, sizeof request->slot);
    if (pid == 0) {
        process_end();
    }
}

/*
 * commd is gone, and its table is shared with processes that may wait for ever: nobody is to take its sockets
 * for alive. Those of the network are free for the next commd.
 */
static void release_table(const struct closer_pipes *pipes)
{
    struct rlimit limit = {.rlim_cur = 0};
    (void)syscall(SYS_prlimit64, 0, RLIMIT_NOFILE, NULL, &limit);
    for (int fd = 0; fd < (int)(limit.rlim_cur < 1048576 ? limit.rlim_cur : 1048576); fd++) {
        int domain = 0;
        socklen_t size = sizeof domain;
        if (syscall(SYS_getsockopt, fd, SOL_SOCKET, SO_DOMAIN, &domain, &size) == 0) {
            (void)syscall(SYS_shutdown, fd, SHUT_RDWR);
            if (domain != AF_UNIX) {
                struct linger none = {.l_onoff = 0};
                (void)syscall(SYS_setsockopt, fd, SOL_SOCKET, SO_LINGER, &none, sizeof none);
                close_in_place(fd);
            }
        } else if (fd != pipes->parent && fd != pipes->requests[0] && closer_is_harmless(fd)) {
            close_in_place(fd);
        }
    }
}

_Noreturn void closer_process(const struct closer_pipes *pipes, closer_close_function *close)
{
    struct sigaction ignore = {.sa_handler = SIG_IGN};
    (void)sigaction(SIGCHLD, &ignore, NULL); /* nobody waits for them */
    (void)syscall(SYS_prctl, PR_SET_NAME, "commd-closer", 0, 0, 0);
    for (;;) {
        struct pollfd wait[] = {{.fd = pipes->requests[0], .events = POLLIN},
                                {.fd = pipes->parent, .events = POLLIN}};
        if (syscall(SYS_ppoll, wait, 2, NULL, NULL, 0) <= 0) {
            continue;
        }
        if (wait[1].revents != 0) {
            release_table(pipes);
            process_end();
        }
        struct closer_request request;
        if (syscall(SYS_read, pipes->requests[0], &request, sizeof request) != (long)sizeof request) {
            process_end();
        }
        close_apart(pipes, &request, close);
    }
}
