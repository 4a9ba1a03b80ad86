#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "daemon/base/descriptor.h"
#include "daemon/base/fd_reaper_process.h"
#include "daemon/base/log.h"

#define SLOTS (CLOSER_TOTAL_MAX + CLOSER_SOCKETS_MAX + CLOSER_SESSIONS_MAX)
#define NO_SLOT UINT32_MAX

struct slot {
    int fd;
    uint32_t uid;
    bool is_socket;
    uint32_t next; /* in the list of free slots, or of the user's slots that wait */
};

/* Users with descriptors here. Sockets have an entry of their own, so that they do not wait for other
 * descriptors. */
struct user {
    uint32_t uid;
    bool sockets;
    uint32_t count;
    bool busy; /* one of them is being closed; the others wait */
    uint32_t wait_first, wait_last;
};

struct fd_reaper {
    struct fd_reaper_pipes pipes;
    struct loop_watch *watch;
    int process; /* readable once the process has ended */
    struct loop_watch *process_watch;
    pid_t pid;
    uint32_t count, busy, socket_count;
    uint32_t free_first;
    uint32_t users_used;
    struct user users[SLOTS];
    struct slot slots[SLOTS];
};

/* --- The queue --- */

static struct user *user_of(struct fd_reaper *fd_reaper, uint32_t uid, bool is_socket)
{
    for (uint32_t i = 0; i < fd_reaper->users_used; i++) {
        if (fd_reaper->users[i].uid == uid && fd_reaper->users[i].sockets == is_socket) {
            return &fd_reaper->users[i];
        }
    }
    return NULL;
}

static void user_forget(struct fd_reaper *fd_reaper, struct user *user)
{
    *user = fd_reaper->users[--fd_reaper->users_used];
}

/* Sends the user's next descriptor to the process, unless it has to wait. */
static void user_go_on(struct fd_reaper *fd_reaper, struct user *user)
{
    uint32_t at = user->wait_first;
    if (at == NO_SLOT || user->busy || fd_reaper->busy >= CLOSER_BUSY_MAX) {
        return;
    }
    struct fd_reaper_request request = {.slot = at, .fd = fd_reaper->slots[at].fd};
    if (write(fd_reaper->pipes.requests[1], &request, sizeof request) != (ssize_t)sizeof request) {
        return; /* the next answer tries again */
    }
    user->busy = true;
    fd_reaper->busy++;
    user->wait_first = fd_reaper->slots[at].next;
    if (user->wait_first == NO_SLOT) {
        user->wait_last = NO_SLOT;
    }
}

static void fd_reaper_answered(void *context, unsigned events, uint64_t now_ns)
{
    struct fd_reaper *fd_reaper = context;
    uint32_t slots[CLOSER_BUSY_MAX];
    (void)events;
    (void)now_ns;
    ssize_t size_bytes = read(fd_reaper->pipes.answers[0], slots, sizeof slots);
    for (size_t i = 0; size_bytes > 0 && i < (size_t)size_bytes / sizeof slots[0]; i++) {
        struct slot *slot = &fd_reaper->slots[slots[i]];
        struct user *user = user_of(fd_reaper, slot->uid, slot->is_socket);
        user->busy = false;
        if (--user->count == 0) {
            user_forget(fd_reaper, user);
        }
        fd_reaper->busy--;
        fd_reaper->count--;
        fd_reaper->socket_count -= slot->is_socket;
        slot->next = fd_reaper->free_first;
        fd_reaper->free_first = slots[i];
    }
    for (uint32_t i = 0; size_bytes > 0 && i < fd_reaper->users_used; i++) {
        user_go_on(fd_reaper, &fd_reaper->users[i]);
    }
}

static void fd_reaper_queue(struct fd_reaper *fd_reaper, uint32_t uid, int fd, bool is_socket)
{
    uint32_t slot = fd_reaper->free_first;
    if (slot == NO_SLOT) { /* more than the limits on sessions and takes_more allow */
        log_error("descriptor %d of user %u stays open: %d wait to be closed", fd, (unsigned)uid, SLOTS);
        return;
    }
    struct user *user = user_of(fd_reaper, uid, is_socket);
    if (user == NULL) {
        user = &fd_reaper->users[fd_reaper->users_used++];
        *user = (struct user){.uid = uid, .sockets = is_socket, .wait_first = NO_SLOT, .wait_last = NO_SLOT};
    }
    user->count++;
    fd_reaper->count++;
    fd_reaper->socket_count += is_socket;
    fd_reaper->free_first = fd_reaper->slots[slot].next;
    fd_reaper->slots[slot] = (struct slot){.fd = fd, .uid = uid, .is_socket = is_socket, .next = NO_SLOT};
    *(user->wait_last == NO_SLOT ? &user->wait_first : &fd_reaper->slots[user->wait_last].next) = slot;
    user->wait_last = slot;
    user_go_on(fd_reaper, user);
}

void fd_reaper_put(struct fd_reaper *fd_reaper, uint32_t uid, int fd)
{
    if (fd_reaper == NULL || descriptor_closes_at_once(fd)) {
        (void)close(fd);
    } else {
        fd_reaper_queue(fd_reaper, uid, fd, false);
    }
}

/*
 * Whether the queue of a socket that was shut down holds no descriptors. In a stream, descriptors come with
 * at least one byte. An empty packet can carry descriptors and looks like the end of the queue. So
 * credentials are asked for: then every packet carries control data that finds no room here, which sets
 * MSG_CTRUNC.
 */
static bool is_empty(int fd)
{
    const int yes = 1;
    int type;
    socklen_t size = sizeof type;
    if (getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &size) == 0 && type == SOCK_STREAM) {
        char byte;
        return recv(fd, &byte, sizeof byte, MSG_PEEK | MSG_DONTWAIT) == 0;
    }
    struct msghdr message = {.msg_iov = NULL};
    return setsockopt(fd, SOL_SOCKET, SO_PASSCRED, &yes, sizeof yes) == 0 &&
           recvmsg(fd, &message, MSG_PEEK | MSG_DONTWAIT) == 0 && (message.msg_flags & MSG_CTRUNC) == 0;
}

void fd_reaper_put_socket(struct fd_reaper *fd_reaper, uint32_t uid, int fd)
{
    (void)shutdown(fd, SHUT_RDWR); /* nothing can arrive after this */
    if (fd_reaper == NULL || is_empty(fd)) {
        (void)close(fd);
    } else {
        fd_reaper_queue(fd_reaper, uid, fd, true);
    }
}

bool fd_reaper_takes_more(const struct fd_reaper *fd_reaper, uint32_t uid)
{
    if (fd_reaper == NULL || fd_reaper->count == 0) {
        return true;
    }
    const struct user *user = user_of((struct fd_reaper *)(uintptr_t)fd_reaper, uid, false);
    return fd_reaper->count - fd_reaper->socket_count + CLOSER_PACKET_FDS_MAX <= CLOSER_TOTAL_MAX &&
           (user == NULL || user->count < CLOSER_USER_MAX);
}

bool fd_reaper_takes_sockets(const struct fd_reaper *fd_reaper)
{
    return fd_reaper == NULL || fd_reaper->socket_count < CLOSER_SOCKETS_MAX;
}

uint32_t fd_reaper_count(const struct fd_reaper *fd_reaper)
{
    return fd_reaper == NULL ? 0 : fd_reaper->count;
}

/* --- Start and end --- */

static void process_ended(void *context, unsigned events, uint64_t now_ns)
{
    struct fd_reaper *fd_reaper = context;
    (void)events;
    (void)now_ns;
    log_error("the process that closes clients' descriptors has ended: these descriptors stay open until "
              "commd is started again");
    loop_watch_set(fd_reaper->process_watch, 0);
}

static enum status start_process(struct fd_reaper *fd_reaper, fd_reaper_close_function *function,
                                 struct error *error)
{
    sigset_t all, before;
    sigfillset(&all);
    (void)pthread_sigmask(SIG_BLOCK, &all, &before); /* SIGTERM to the service must not end it */
    long pid = syscall(SYS_clone, CLONE_FILES, NULL, NULL, NULL, NULL);
    int clone_errno = errno;
    if (pid == 0) {
        fd_reaper_process(&fd_reaper->pipes, function);
    }
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    fd_reaper->pid = (pid_t)pid;
    return pid > 0 ? STATUS_OK
                   : error_set_errno(error, clone_errno, "starting a process that closes descriptors");
}

enum status fd_reaper_new(struct loop *loop, fd_reaper_close_function *function, struct fd_reaper **out,
                          struct error *error)
{
    struct fd_reaper *fd_reaper = calloc(1, sizeof *fd_reaper);
    if (fd_reaper == NULL) {
        return error_set(error, STATUS_NO_MEMORY, "no memory for descriptors that wait to be closed");
    }
    fd_reaper->pipes = (struct fd_reaper_pipes){.requests = {-1, -1}, .answers = {-1, -1}, .parent = -1};
    fd_reaper->process = -1;
    for (uint32_t i = 0; i < SLOTS; i++) {
        fd_reaper->slots[i].next = i + 1 < SLOTS ? i + 1 : NO_SLOT;
    }
    fd_reaper->pipes.parent = (int)syscall(SYS_pidfd_open, getpid(), 0);
    enum status status = STATUS_OK;
    if (fd_reaper->pipes.parent < 0 || pipe2(fd_reaper->pipes.requests, O_CLOEXEC) != 0 ||
        pipe2(fd_reaper->pipes.answers, O_CLOEXEC) != 0 ||
        fcntl(fd_reaper->pipes.answers[0], F_SETFL, O_NONBLOCK) != 0) {
        status = error_set_errno(error, errno, "making pipes to a process that closes descriptors");
    }
    if (status == STATUS_OK) {
        status = loop_watch_new(loop, fd_reaper->pipes.answers[0], LOOP_READ, fd_reaper_answered, fd_reaper,
                                &fd_reaper->watch, error);
    }
    if (status == STATUS_OK) {
        status = start_process(fd_reaper, function, error);
    }
    if (status == STATUS_OK) {
        fd_reaper->process = (int)syscall(SYS_pidfd_open, fd_reaper->pid, 0);
        status = fd_reaper->process < 0
                     ? error_set_errno(error, errno, "starting a process that closes descriptors")
                     : loop_watch_new(loop, fd_reaper->process, LOOP_READ, process_ended, fd_reaper,
                                      &fd_reaper->process_watch, error);
    }
    if (status != STATUS_OK) {
        fd_reaper_free(fd_reaper);
        return status;
    }
    *out = fd_reaper;
    return STATUS_OK;
}

void fd_reaper_free(struct fd_reaper *fd_reaper)
{
    if (fd_reaper == NULL) {
        return;
    }
    loop_watch_free(fd_reaper->watch);
    loop_watch_free(fd_reaper->process_watch);
    descriptor_close(fd_reaper->pipes.requests[1]);
    if (fd_reaper->pid > 0) {
        (void)waitpid(fd_reaper->pid, NULL, __WALL); /* the process itself waits for requests only */
    }
    /* Processes that still close a descriptor will write an answer to this end, by its number, so it stays
     * open. */
    int fds[] = {fd_reaper->pipes.requests[0], fd_reaper->pipes.answers[0], fd_reaper->pipes.parent,
                 fd_reaper->process, fd_reaper->busy == 0 ? fd_reaper->pipes.answers[1] : -1};
    for (size_t i = 0; i < sizeof fds / sizeof fds[0]; i++) {
        descriptor_close(fds[i]);
    }
    free(fd_reaper);
}
