#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "daemon/base/closer_process.h"
#include "daemon/base/descriptor.h"
#include "daemon/base/log.h"

#define SLOTS (CLOSER_TOTAL_MAX + CLOSER_SOCKETS_MAX + CLOSER_SESSIONS_MAX)
#define NO_SLOT UINT32_MAX

struct slot {
    int fd;
    uint32_t uid;
    bool is_socket;
    uint32_t next; /* of the free ones, or of the user's that wait */
};

/* Users with descriptors here; their sockets apart, for what is left in those waits for less. */
struct user {
    uint32_t uid;
    bool sockets;
    uint32_t count;
    bool busy; /* one of them is being closed; the others wait */
    uint32_t wait_first, wait_last;
};

struct closer {
    struct closer_pipes pipes;
    struct loop_watch *watch;
    int process; /* readable once it has ended */
    struct loop_watch *process_watch;
    pid_t pid;
    uint32_t count, busy, socket_count;
    uint32_t free_first;
    uint32_t users_used;
    struct user users[SLOTS];
    struct slot slots[SLOTS];
};

/* --- Who waits --- */

static struct user *user_of(struct closer *closer, uint32_t uid, bool is_socket)
{
    for (uint32_t i = 0; i < closer->users_used; i++) {
        if (closer->users[i].uid == uid && closer->users[i].sockets == is_socket) {
            return &closer->users[i];
        }
    }
    return NULL;
}

static void user_forget(struct closer *closer, struct user *user)
{
    *user = closer->users[--closer->users_used];
}

/* Hands over the user's next one, unless that has to wait. */
static void user_go_on(struct closer *closer, struct user *user)
{
    uint32_t at = user->wait_first;
    if (at == NO_SLOT || user->busy || closer->busy >= CLOSER_BUSY_MAX) {
        return;
    }
    struct closer_request request = {.slot = at, .fd = closer->slots[at].fd};
    if (write(closer->pipes.requests[1], &request, sizeof request) != (ssize_t)sizeof request) {
        return; /* the next answer tries again */
    }
    user->busy = true;
    closer->busy++;
    user->wait_first = closer->slots[at].next;
    if (user->wait_first == NO_SLOT) {
        user->wait_last = NO_SLOT;
    }
}

static void closer_answered(void *context, unsigned events, uint64_t now_ns)
{
    struct closer *closer = context;
    uint32_t slots[CLOSER_BUSY_MAX];
    (void)events;
    (void)now_ns;
    ssize_t size_bytes = read(closer->pipes.answers[0], slots, sizeof slots);
    for (size_t i = 0; size_bytes > 0 && i < (size_t)size_bytes / sizeof slots[0]; i++) {
        struct slot *slot = &closer->slots[slots[i]];
        struct user *user = user_of(closer, slot->uid, slot->is_socket);
        user->busy = false;
        if (--user->count == 0) {
            user_forget(closer, user);
        }
        closer->busy--;
        closer->count--;
        closer->socket_count -= slot->is_socket;
        slot->next = closer->free_first;
        closer->free_first = slots[i];
    }
    for (uint32_t i = 0; size_bytes > 0 && i < closer->users_used; i++) {
        user_go_on(closer, &closer->users[i]);
    }
}

static void closer_queue(struct closer *closer, uint32_t uid, int fd, bool is_socket)
{
    uint32_t slot = closer->free_first;
    if (slot == NO_SLOT) { /* more than sessions and takes_more allow */
        log_error("descriptor %d of user %u stays open: %d wait to be closed", fd, (unsigned)uid, SLOTS);
        return;
    }
    struct user *user = user_of(closer, uid, is_socket);
    if (user == NULL) {
        user = &closer->users[closer->users_used++];
        *user = (struct user){.uid = uid, .sockets = is_socket, .wait_first = NO_SLOT, .wait_last = NO_SLOT};
    }
    user->count++;
    closer->count++;
    closer->socket_count += is_socket;
    closer->free_first = closer->slots[slot].next;
    closer->slots[slot] = (struct slot){.fd = fd, .uid = uid, .is_socket = is_socket, .next = NO_SLOT};
    *(user->wait_last == NO_SLOT ? &user->wait_first : &closer->slots[user->wait_last].next) = slot;
    user->wait_last = slot;
    user_go_on(closer, user);
}

void closer_put(struct closer *closer, uint32_t uid, int fd)
{
    if (closer == NULL || descriptor_closes_at_once(fd)) {
        (void)close(fd);
    } else {
        closer_queue(closer, uid, fd, false);
    }
}

/* Of a socket that was shut down. A packet may be empty, as its end is, and still have descriptors: but with
 * credentials asked for, every packet has what there is no room for here. */
static bool is_empty(int fd)
{
    const int yes = 1;
    struct msghdr message = {.msg_iov = NULL};
    return setsockopt(fd, SOL_SOCKET, SO_PASSCRED, &yes, sizeof yes) == 0 &&
           recvmsg(fd, &message, MSG_PEEK | MSG_DONTWAIT) == 0 && (message.msg_flags & MSG_CTRUNC) == 0;
}

void closer_put_socket(struct closer *closer, uint32_t uid, int fd)
{
    (void)shutdown(fd, SHUT_RDWR); /* what has not come by now does not come any more */
    if (closer == NULL || is_empty(fd)) {
        (void)close(fd);
    } else {
        closer_queue(closer, uid, fd, true);
    }
}

bool closer_takes_more(const struct closer *closer, uint32_t uid)
{
    if (closer == NULL || closer->count == 0) {
        return true;
    }
    const struct user *user = user_of((struct closer *)(uintptr_t)closer, uid, false);
    return closer->count - closer->socket_count + CLOSER_PACKET_FDS_MAX <= CLOSER_TOTAL_MAX &&
           (user == NULL || user->count < CLOSER_USER_MAX);
}

bool closer_takes_sockets(const struct closer *closer)
{
    return closer == NULL || closer->socket_count < CLOSER_SOCKETS_MAX;
}

uint32_t closer_count(const struct closer *closer)
{
    return closer == NULL ? 0 : closer->count;
}

/* --- Its life --- */

static void process_ended(void *context, unsigned events, uint64_t now_ns)
{
    struct closer *closer = context;
    (void)events;
    (void)now_ns;
    log_error(
        "the process that closes descriptors of clients was ended: they stay open until commd is started "
        "again");
    loop_watch_set(closer->process_watch, 0);
}

static enum status start_process(struct closer *closer, closer_close_function *function, struct error *error)
{
    sigset_t all, before;
    sigfillset(&all);
    (void)pthread_sigmask(SIG_BLOCK, &all, &before); /* SIGTERM to all of a service is not for it */
    long pid = syscall(SYS_clone, CLONE_FILES, NULL, NULL, NULL, NULL);
    int clone_errno = errno;
    if (pid == 0) {
        closer_process(&closer->pipes, function);
    }
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    closer->pid = (pid_t)pid;
    return pid > 0 ? STATUS_OK : error_set_errno(error, clone_errno, "a process that closes descriptors");
}

enum status closer_new(struct loop *loop, closer_close_function *function, struct closer **out,
                       struct error *error)
{
    struct closer *closer = calloc(1, sizeof *closer);
    if (closer == NULL) {
        return error_set(error, STATUS_NO_MEMORY, "no memory for descriptors that wait to be closed");
    }
    closer->pipes = (struct closer_pipes){.requests = {-1, -1}, .answers = {-1, -1}, .parent = -1};
    closer->process = -1;
    for (uint32_t i = 0; i < SLOTS; i++) {
        closer->slots[i].next = i + 1 < SLOTS ? i + 1 : NO_SLOT;
    }
    closer->pipes.parent = (int)syscall(SYS_pidfd_open, getpid(), 0);
    enum status status = STATUS_OK;
    if (closer->pipes.parent < 0 || pipe2(closer->pipes.requests, O_CLOEXEC) != 0 ||
        pipe2(closer->pipes.answers, O_CLOEXEC) != 0 ||
        fcntl(closer->pipes.answers[0], F_SETFL, O_NONBLOCK) != 0) {
        status = error_set_errno(error, errno, "pipes to a process that closes descriptors");
    }
    if (status == STATUS_OK) {
        status = loop_watch_new(loop, closer->pipes.answers[0], LOOP_READ, closer_answered, closer,
                                &closer->watch, error);
    }
    if (status == STATUS_OK) {
        status = start_process(closer, function, error);
    }
    if (status == STATUS_OK) {
        closer->process = (int)syscall(SYS_pidfd_open, closer->pid, 0);
        status = closer->process < 0 ? error_set_errno(error, errno, "a process that closes descriptors")
                                     : loop_watch_new(loop, closer->process, LOOP_READ, process_ended, closer,
                                                      &closer->process_watch, error);
    }
    if (status != STATUS_OK) {
        closer_free(closer);
        return status;
    }
    *out = closer;
    return STATUS_OK;
}

void closer_free(struct closer *closer)
{
    if (closer == NULL) {
        return;
    }
    loop_watch_free(closer->watch);
    loop_watch_free(closer->process_watch);
    if (closer->pipes.requests[1] >= 0) {
        (void)close(closer->pipes.requests[1]);
    }
    if (closer->pid > 0) {
        (void)waitpid(closer->pid, NULL, __WALL); /* it itself waits for requests alone */
    }
    /* Those that still close answer some day, by the number of this end. */
    int fds[] = {closer->pipes.requests[0], closer->pipes.answers[0], closer->pipes.parent, closer->process,
                 closer->busy == 0 ? closer->pipes.answers[1] : -1};
    for (size_t i = 0; i < sizeof fds / sizeof fds[0]; i++) {
        if (fds[i] >= 0) {
            (void)close(fds[i]);
        }
    }
    free(closer);
}
