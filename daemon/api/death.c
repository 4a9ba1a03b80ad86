#include <errno.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "daemon/api/session.h"

/*
 * A session ends with the process that connected. The socket reports that only if no other process has it. A
 * forked process, such as a data loader's worker, keeps the socket open. The pidfd reports it in any case.
 * Both do so when the kernel has unmapped the process's memory. If it has a rank, others may wait for it, so
 * commd also asks whether it is dying (daemon/base/dying.h).
 */

#define PEER_PIDFD 77 /* SO_PEERPIDFD (Linux 6.5), which older headers lack */

/* Returns a pidfd of the process that connected, or -1 with errno. ESRCH: the process has ended. */
static int death_open(int socket_fd, pid_t pid)
{
    int pidfd = -1;
    socklen_t size = sizeof pidfd;
    if (getsockopt(socket_fd, SOL_SOCKET, PEER_PIDFD, &pidfd, &size) == 0) {
        return pidfd;
    }
    if (errno == EINVAL) { /* pidfd_prepare of a process without a task */
        errno = ESRCH;
    }
    if (errno != ENOPROTOOPT) {
        return -1;
    }
    /*
     * An older kernel. The pid may belong to another process by now. Then the process that connected has
     * ended. Its session ends with the socket, or when that other process ends.
     */
    return (int)syscall(SYS_pidfd_open, pid, 0);
}

/* The earlier requests of the process are still carried out, as far as they have arrived. */
static void death_seen(void *context, uint64_t now_ns)
{
    struct api_session *session = context;
    (void)now_ns;
    loop_watch_set(session->death_watch, 0);
    if (session->dead) {
        return;
    }
    log_debug("client %d (%s): its process has ended", (int)session->client.pid, session->program);
    session->dead = true;
    session->readable = true; /* no event will report that the socket is empty */
    turn_queue(&session->api->turns, &session->turn);
}

static void death_reported(void *context, unsigned events, uint64_t now_ns)
{
    (void)events;
    death_seen(context, now_ns);
}

enum status api_death_open(struct api_session *session, struct error *error)
{
    session->death_fd = death_open(session->fd, session->client.pid);
    if (session->death_fd >= 0) {
        return STATUS_OK;
    }
    if (errno == EMFILE || errno == ENFILE) {
        api_lacks_fds(error, "it takes no more clients");
        return error->status;
    }
    if (errno == ESRCH) {
        return error_set(error, STATUS_ABORTED, "process %d, which connected, has ended",
                         (int)session->client.pid);
    }
    log_debug("client %d: it has no pidfd: commd sees its end only by its socket", (int)session->client.pid);
    return STATUS_OK;
}

enum status api_death_watch(struct api_session *session, struct error *error)
{
    return session->death_fd < 0 ? STATUS_OK
                                 : loop_watch_new(session->api->loop, session->death_fd, LOOP_READ,
                                                  death_reported, session, &session->death_watch, error);
}

void api_death_foresee(struct api_session *session)
{
    if (session->dying == NULL && !session->dead) {
        session->dying = dying_watch(session->api->dying, session->death_fd, death_seen, session);
    }
}

void api_death_forget(struct api_session *session)
{
    dying_forget(session->dying);
    session->dying = NULL;
    loop_watch_free(session->death_watch);
    session->death_watch = NULL;
    if (session->death_fd >= 0) {
        (void)close(session->death_fd);
        session->death_fd = -1;
    }
}
