#include "tests/failures/fail_calls.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/timerfd.h>
#include <sys/types.h>
#include <unistd.h>

/* A call, and the errnos that it may fail with; 0 ends them. */
struct fail_call {
    const char *name;
    int errnos[FAIL_ERRNOS_MAX];
};

static struct fail_state *armed;

void fail_calls_arm(struct fail_state *state)
{
    armed = state;
}

/* --- Call sites --- */

/* the bounds of this program's code, defined by the linker */
extern const char __executable_start[], etext[];

/*
 * Finds the frames above the one at `frame`, by frame pointers. A library that calls back may keep no frame
 * pointers. So the walk follows a frame pointer only a little way up the same stack, and ends at an address
 * outside this program.
 */
#define FRAME_MAX_BYTES 65536u
__attribute__((no_sanitize("address"))) static void find_frames(const uintptr_t *frame,
                                                                uint64_t frames[FAIL_FRAMES])
{
    for (int i = 0; i < FAIL_FRAMES; i++) {
        uintptr_t address = frame[1];
        if (address < (uintptr_t)__executable_start || address >= (uintptr_t)etext) {
            return;
        }
        frames[i] = address - (uintptr_t)__executable_start;
        uintptr_t next = frame[0];
        if (next <= (uintptr_t)frame || next - (uintptr_t)frame > FRAME_MAX_BYTES ||
            next % sizeof(uintptr_t) != 0) {
            return;
        }
        frame = (const uintptr_t *)next;
    }
}

/* Hashes with FNV-1a. Never returns 0. */
static uint64_t site_id(const char *call, const uint64_t frames[FAIL_FRAMES])
{
    uint64_t id = 0xcbf29ce484222325u;
    for (const char *at = call; *at != '\0'; at++) {
        id = (id ^ (unsigned char)*at) * 0x100000001b3u;
    }
    for (int i = 0; i < FAIL_FRAMES; i++) {
        for (unsigned shift = 0; shift < 32; shift += 8) { /* no program has 4 GiB of text */
            id = (id ^ (frames[i] >> shift & 0xff)) * 0x100000001b3u;
        }
    }
    return id != 0 ? id : 1;
}

/* Returns null if the table is full. */
static struct fail_site *find_site(struct fail_state *state, const struct fail_call *call,
                                   const uint64_t frames[FAIL_FRAMES])
{
    uint64_t id = site_id(call->name, frames);
    for (uint64_t i = 0; i < FAIL_SITES_MAX; i++) {
        struct fail_site *site = &state->sites[(id + i) % FAIL_SITES_MAX];
        uint64_t here = 0;
        if (atomic_compare_exchange_strong(&site->id, &here, id)) {
            snprintf(site->call, sizeof site->call, "%s", call->name);
            memcpy(site->frames, frames, sizeof site->frames);
            while (site->errnos < FAIL_ERRNOS_MAX && call->errnos[site->errnos] != 0) {
                site->errnos++;
            }
            atomic_store(&site->complete, true);
            return site;
        }
        if (here == id) {
            return site;
        }
    }
    return NULL;
}

/* Returns the errno to fail with, or 0 if the call must not fail. `frame` is the wrapper's frame. */
static int fails(const struct fail_call *call, const void *frame)
{
    struct fail_state *state = armed;
    if (state == NULL || atomic_load_explicit(&state->paused, memory_order_relaxed)) {
        return 0;
    }
    uint64_t frames[FAIL_FRAMES] = {0};
    find_frames(frame, frames);
    struct fail_site *site = find_site(state, call, frames);
    if (site == NULL) {
        atomic_fetch_add(&state->sites_left_out, 1);
        return 0;
    }
    uint64_t occurrence = atomic_fetch_add(&site->count, 1) + 1;
    if (atomic_load(&site->id) != state->fail_site || occurrence != state->fail_occurrence) {
        return 0;
    }
    uint32_t count = 0;
    while (count < FAIL_ERRNOS_MAX && call->errnos[count] != 0) {
        count++;
    }
    state->errnum = call->errnos[state->fail_errno % count];
    snprintf(state->call, sizeof state->call, "%s", call->name);
    atomic_store(&state->failed, true);
    return state->errnum;
}

/* X(type of the result, what a failure returns, name, parameters, arguments, the errnos that it may have) */
#define CALL_LIST(X)                                                                                         \
    X(void *, NULL, malloc, (size_t size), (size), ENOMEM)                                                   \
    X(void *, NULL, calloc, (size_t count, size_t size), (count, size), ENOMEM)                              \
    X(void *, NULL, realloc, (void *old, size_t size), (old, size), ENOMEM)                                  \
    X(void *, NULL, reallocarray, (void *old, size_t count, size_t size), (old, count, size), ENOMEM)        \
    X(void *, NULL, aligned_alloc, (size_t alignment, size_t size), (alignment, size), ENOMEM)               \
    X(char *, NULL, strdup, (const char *text), (text), ENOMEM)                                              \
    X(char *, NULL, strndup, (const char *text, size_t size), (text, size), ENOMEM)                          \
    X(void *, MAP_FAILED, mmap, (void *at, size_t size, int protection, int flags, int fd, off_t offset),    \
      (at, size, protection, flags, fd, offset), ENOMEM, EAGAIN)                                             \
    X(int, -1, socket, (int domain, int type, int protocol), (domain, type, protocol), EMFILE, ENOBUFS)      \
    X(int, -1, socketpair, (int domain, int type, int protocol, int fds[2]), (domain, type, protocol, fds),  \
      EMFILE, ENFILE)                                                                                        \
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
      ENOBUFS)                                                                                               \
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

#define DEFINE_CALL(type, failure, name, parameters, arguments, ...)                                         \
    type __real_##name parameters;                                                                           \
    type __wrap_##name parameters;                                                                           \
    type __wrap_##name parameters                                                                            \
    {                                                                                                        \
        static const struct fail_call call = {#name, {__VA_ARGS__}};                                         \
        int why = fails(&call, __builtin_frame_address(0));                                                  \
        if (why != 0) {                                                                                      \
            errno = why;                                                                                     \
            return failure;                                                                                  \
        }                                                                                                    \
        return __real_##name arguments;                                                                      \
    }
CALL_LIST(DEFINE_CALL)

/* --- Calls with a signature, or a way to fail, of their own --- */

int __real_open(const char *path, int flags, ...);
int __wrap_open(const char *path, int flags, ...);
int __wrap_open(const char *path, int flags, ...)
{
    va_list arguments;
    va_start(arguments, flags);
    mode_t mode = (flags & O_CREAT) != 0 ? va_arg(arguments, mode_t) : 0;
    va_end(arguments);
    static const struct fail_call call = {"open", {EMFILE, EACCES}};
    int why = fails(&call, __builtin_frame_address(0));
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
    static const struct fail_call call = {"fcntl", {ENOLCK, EBUSY}};
    int why = fails(&call, __builtin_frame_address(0));
    if (why != 0) {
        errno = why;
        return -1;
    }
    return __real_fcntl(fd, command, argument);
}

ssize_t __real_write(int fd, const void *bytes, size_t size);
ssize_t __wrap_write(int fd, const void *bytes, size_t size);
ssize_t __wrap_write(int fd, const void *bytes, size_t size)
{
    static const struct fail_call to_pipe = {"write", {EINTR, EPIPE}},
                                  to_file = {"write", {EINTR, EIO, ENOSPC}},
                                  to_counter = {"write", {EINTR}}; /* eventfd(2) */
    struct stat what = {0};
    const struct fail_call *call = armed == NULL || __real_fstat(fd, &what) != 0      ? &to_counter
                                   : S_ISFIFO(what.st_mode) || S_ISSOCK(what.st_mode) ? &to_pipe
                                   : S_ISREG(what.st_mode) || S_ISCHR(what.st_mode)   ? &to_file
                                                                                      : &to_counter;
    int why = fails(call, __builtin_frame_address(0));
    if (why != 0) {
        errno = why;
        return -1;
    }
    return __real_write(fd, bytes, size);
}

int __real_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *),
                          void *context);
int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *),
                          void *context);
int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *),
                          void *context)
{
    static const struct fail_call call = {"pthread_create", {EAGAIN, EPERM}};
    int why = fails(&call, __builtin_frame_address(0));
    return why != 0 ? why : __real_pthread_create(thread, attributes, run, context);
}

/* Calls by which this project makes shared libraries allocate memory. */
struct event;
struct timeval;
int __real_event_add(struct event *event, const struct timeval *limit);
/* Visible, because libevent's HTTP library, a shared one, calls event_add, too: that call is not wrapped. */
__attribute__((visibility("default"))) int __wrap_event_add(struct event *event, const struct timeval *limit);
int __wrap_event_add(struct event *event, const struct timeval *limit)
{
    static const struct fail_call call = {"event_add", {ENOMEM, ENOSPC}};
    int why = fails(&call, __builtin_frame_address(0));
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
    static const struct fail_call call = {"event_base_new", {ENOMEM, EMFILE}};
    int why = fails(&call, __builtin_frame_address(0));
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
    static const struct fail_call call = {"unpack", {ENOMEM}};
    return fails(&call, __builtin_frame_address(0)) != 0
               ? NULL
               : __real_protobuf_c_message_unpack(descriptor, allocator, size, bytes);
}
