#include "tests/failures/fail_calls.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/timerfd.h>
#include <sys/types.h>
#include <unistd.h>

static struct fail_state *armed;

void fail_calls_arm(struct fail_state *state)
{
    armed = state;
}

/* Which of two errnos: each call's numbers have both in turn. 0: it does not fail. */
static int fails(const char *call, int errnum, int other, void *caller)
{
    struct fail_state *state = armed;
    if (state == NULL || atomic_load_explicit(&state->paused, memory_order_relaxed)) {
        return 0;
    }
    uint64_t number = atomic_fetch_add(&state->count, 1) + 1;
    if (number != state->fail_at) {
        return 0;
    }
    state->errnum = number % 2 == 0 ? errnum : other;
    state->caller = caller;
    snprintf(state->call, sizeof state->call, "%s", call);
    atomic_store(&state->failed, true);
    return state->errnum;
}

/* X(type of the result, what a failure returns, name, parameters, arguments, errno, another one) */
#define CALL_LIST(X)                                                                                         \
    X(void *, NULL, malloc, (size_t size), (size), ENOMEM, ENOMEM)                                           \
    X(void *, NULL, calloc, (size_t count, size_t size), (count, size), ENOMEM, ENOMEM)                      \
    X(void *, NULL, realloc, (void *old, size_t size), (old, size), ENOMEM, ENOMEM)                          \
    X(void *, NULL, reallocarray, (void *old, size_t count, size_t size), (old, count, size), ENOMEM,        \
      ENOMEM)                                                                                                \
    X(void *, NULL, aligned_alloc, (size_t alignment, size_t size), (alignment, size), ENOMEM, ENOMEM)       \
    X(char *, NULL, strdup, (const char *text), (text), ENOMEM, ENOMEM)                                      \
    X(char *, NULL, strndup, (const char *text, size_t size), (text, size), ENOMEM, ENOMEM)                  \
    X(void *, MAP_FAILED, mmap, (void *at, size_t size, int protection, int flags, int fd, off_t offset),    \
      (at, size, protection, flags, fd, offset), ENOMEM, EAGAIN)                                             \
    X(int, -1, socket, (int domain, int type, int protocol), (domain, type, protocol), EMFILE, ENOBUFS)      \
    X(int, -1, bind, (int fd, const struct sockaddr *address, socklen_t size), (fd, address, size),          \
      EADDRINUSE, ENOMEM)                                                                                    \
    X(int, -1, listen, (int fd, int backlog), (fd, backlog), EADDRINUSE, ENOBUFS)                            \
    X(int, -1, connect, (int fd, const struct sockaddr *address, socklen_t size), (fd, address, size),       \
      EAGAIN, ECONNREFUSED)                                                                                  \
    X(int, -1, accept4, (int fd, struct sockaddr *address, socklen_t *size, int flags),                      \
      (fd, address, size, flags), EMFILE, ECONNABORTED)                                                      \
    X(int, -1, getsockopt, (int fd, int level, int name, void *value, socklen_t *size),                      \
      (fd, level, name, value, size), ENOBUFS, ENOPROTOOPT)                                                  \
    X(int, -1, setsockopt, (int fd, int level, int name, const void *value, socklen_t size),                 \
      (fd, level, name, value, size), ENOMEM, ENOPROTOOPT)                                                   \
    X(int, -1, getsockname, (int fd, struct sockaddr *address, socklen_t *size), (fd, address, size),        \
      ENOBUFS, ENOBUFS)                                                                                      \
    X(ssize_t, -1, send, (int fd, const void *bytes, size_t size, int flags), (fd, bytes, size, flags),      \
      EINTR, ENOBUFS)                                                                                        \
    X(ssize_t, -1, sendmsg, (int fd, const struct msghdr *message, int flags), (fd, message, flags), EINTR,  \
      ENOBUFS)                                                                                               \
    X(ssize_t, -1, recv, (int fd, void *bytes, size_t size, int flags), (fd, bytes, size, flags), EINTR,     \
      ENOMEM)                                                                                                \
    X(ssize_t, -1, recvmsg, (int fd, struct msghdr *message, int flags), (fd, message, flags), EINTR,        \
      ENOMEM)                                                                                                \
    X(int, -1, sendmmsg, (int fd, struct mmsghdr *messages, unsigned count, int flags),                      \
      (fd, messages, count, flags), EINTR, ENOBUFS)                                                          \
    X(int, -1, recvmmsg,                                                                                     \
      (int fd, struct mmsghdr *messages, unsigned count, int flags, struct timespec *limit),                 \
      (fd, messages, count, flags, limit), EINTR, ENOMEM)                                                    \
    X(ssize_t, -1, read, (int fd, void *bytes, size_t size), (fd, bytes, size), EINTR, EIO)                  \
    X(ssize_t, -1, write, (int fd, const void *bytes, size_t size), (fd, bytes, size), EINTR, EINTR)         \
    X(int, -1, poll, (struct pollfd * fds, nfds_t count, int timeout_ms), (fds, count, timeout_ms), EINTR,   \
      ENOMEM)                                                                                                \
    X(int, -1, pipe2, (int fds[2], int flags), (fds, flags), EMFILE, ENFILE)                                 \
    X(int, -1, eventfd, (unsigned value, int flags), (value, flags), EMFILE, ENOMEM)                         \
    X(int, -1, memfd_create, (const char *name, unsigned flags), (name, flags), EMFILE, ENOMEM)              \
    X(int, -1, ftruncate, (int fd, off_t size), (fd, size), ENOSPC, EINTR)                                   \
    X(int, -1, fstat, (int fd, struct stat *file), (fd, file), ENOMEM, EOVERFLOW)                            \
    X(int, -1, chmod, (const char *path, mode_t mode), (path, mode), EPERM, EROFS)                           \
    X(int, -1, timerfd_create, (int clock, int flags), (clock, flags), EMFILE, ENOMEM)                       \
    X(int, -1, timerfd_settime, (int fd, int flags, const struct itimerspec *at, struct itimerspec *old),    \
      (fd, flags, at, old), ECANCELED, EINVAL)                                                               \
    X(ssize_t, -1, getrandom, (void *bytes, size_t size, unsigned flags), (bytes, size, flags), EINTR, ENOSYS)

#define DEFINE_CALL(type, failure, name, parameters, arguments, errnum, other)                               \
    type __real_##name parameters;                                                                           \
    type __wrap_##name parameters;                                                                           \
    type __wrap_##name parameters                                                                            \
    {                                                                                                        \
        int why = fails(#name, errnum, other, __builtin_return_address(0));                                  \
        if (why != 0) {                                                                                      \
            errno = why;                                                                                     \
            return failure;                                                                                  \
        }                                                                                                    \
        return __real_##name arguments;                                                                      \
    }
CALL_LIST(DEFINE_CALL)

/* --- Those with a signature, or a way to fail, of their own --- */

int __real_open(const char *path, int flags, ...);
int __wrap_open(const char *path, int flags, ...);
int __wrap_open(const char *path, int flags, ...)
{
    va_list arguments;
    va_start(arguments, flags);
    mode_t mode = (flags & O_CREAT) != 0 ? va_arg(arguments, mode_t) : 0;
    va_end(arguments);
    int why = fails("open", EMFILE, EACCES, __builtin_return_address(0));
    if (why != 0) {
        errno = why;
        return -1;
    }
    return __real_open(path, flags, mode);
}

int __real_fcntl(int fd, int command, ...);
int __wrap_fcntl(int fd, int command, ...);
int __wrap_fcntl(int fd, int command, ...)
{
    va_list arguments;
    va_start(arguments, command);
    long argument = va_arg(arguments, long);
    va_end(arguments);
    int why = fails("fcntl", ENOLCK, EBUSY, __builtin_return_address(0));
    if (why != 0) {
        errno = why;
        return -1;
    }
    return __real_fcntl(fd, command, argument);
}

int __real_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *),
                          void *context);
int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *),
                          void *context);
int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *),
                          void *context)
{
    int why = fails("pthread_create", EAGAIN, EPERM, __builtin_return_address(0));
    return why != 0 ? why : __real_pthread_create(thread, attributes, run, context);
}

/* What shared libraries allocate for these. */
struct event;
struct timeval;
int __real_event_add(struct event *event, const struct timeval *limit);
int __wrap_event_add(struct event *event, const struct timeval *limit);
int __wrap_event_add(struct event *event, const struct timeval *limit)
{
    int why = fails("event_add", ENOMEM, ENOSPC, __builtin_return_address(0));
    if (why != 0) {
        errno = why;
        return -1;
    }
    return __real_event_add(event, limit);
}

struct event_config;
struct event_base;
struct event_base *__real_event_base_new_with_config(const struct event_config *config);
struct event_base *__wrap_event_base_new_with_config(const struct event_config *config);
struct event_base *__wrap_event_base_new_with_config(const struct event_config *config)
{
    int why = fails("event_base_new", ENOMEM, EMFILE, __builtin_return_address(0));
    if (why != 0) {
        errno = why;
        return NULL;
    }
    return __real_event_base_new_with_config(config);
}

void *__real_protobuf_c_message_unpack(const void *descriptor, void *allocator, size_t size,
                                       const uint8_t *bytes);
void *__wrap_protobuf_c_message_unpack(const void *descriptor, void *allocator, size_t size,
                                       const uint8_t *bytes);
void *__wrap_protobuf_c_message_unpack(const void *descriptor, void *allocator, size_t size,
                                       const uint8_t *bytes)
{
    return fails("unpack", ENOMEM, ENOMEM, __builtin_return_address(0)) != 0
               ? NULL
               : __real_protobuf_c_message_unpack(descriptor, allocator, size, bytes);
}
