#ifndef TESTS_UNIT_CUDA_DOUBLE_CASE_H
#define TESTS_UNIT_CUDA_DOUBLE_CASE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <dlfcn.h>
#include <errno.h>
#include <libgen.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "tests/cuda_double/cuda_double.h"
#include "tests/lib/send_fds.h"

/*
 * Each case runs in a process of its own, because a process loads a driver only once. All processes of a case
 * share a folder, which is their machine. If a check fails in such a process, it ends the process with a
 * message, and the case fails.
 */
#define CHECK(condition)                                                                                     \
    do {                                                                                                     \
        if (!(condition)) {                                                                                  \
            (void)fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition);                    \
            _exit(1);                                                                                        \
        }                                                                                                    \
    } while (0)
#define CHECK_RESULT(call, expected)                                                                         \
    do {                                                                                                     \
        int found_ = (int)(call);                                                                            \
        if (found_ != (int)(expected)) {                                                                     \
            (void)fprintf(stderr, "%s:%d: %d, not %d: %s\n", __FILE__, __LINE__, found_, (int)(expected),    \
                          #call);                                                                            \
            _exit(1);                                                                                        \
        }                                                                                                    \
    } while (0)
#define OK(call) CHECK_RESULT(call, CUDA_RESULT_OK)

#define MIB (1ull << 20)

static char case_folder[PATH_MAX];
static const struct cuda_driver *cuda;

/* The functions that the double has beyond the table of proto/cuda_driver.h. */
static struct {
#define CASE_MEMBER(name, symbol, parameters) cuda_result(*name) parameters;
    CUDA_DOUBLE_FUNCTIONS(CASE_MEMBER)
#undef CASE_MEMBER
    void (*inject)(const char *rules);
    void (*conditional)(cuda_stream stream, int is_conditional);
    unsigned long long (*calls)(void);
} beyond;

__attribute__((unused)) static void case_library(char path[PATH_MAX], const char *name)
{
    char self[PATH_MAX - 64];
    ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
    assert_true(length > 0);
    self[length] = '\0';
    (void)snprintf(path, PATH_MAX, "%s/../../%s", dirname(self), name);
}

__attribute__((unused)) static void case_look_up(void *slot, const char *symbol)
{
    void *library = dlopen(getenv("COMMD_CUDA_LIBRARY"), RTLD_NOW | RTLD_LOCAL);
    CHECK(library != NULL);
    void *address = dlsym(library, symbol);
    CHECK(address != NULL);
    memcpy(slot, &address, sizeof address);
}

/* Every process of a case begins with this, after it has set its environment. */
__attribute__((unused)) static void case_load(void)
{
    char why[256] = "";
    if (!cuda_driver_load(&cuda, why, sizeof why)) {
        (void)fprintf(stderr, "%s\n", why);
        _exit(1);
    }
#define CASE_LOOK_UP(name, symbol, parameters) case_look_up(&beyond.name, #symbol);
    CUDA_DOUBLE_FUNCTIONS(CASE_LOOK_UP)
#undef CASE_LOOK_UP
    case_look_up(&beyond.inject, "cuda_double_fail");
    case_look_up(&beyond.conditional, "cuda_double_conditional");
    case_look_up(&beyond.calls, "cuda_double_calls");
}

__attribute__((unused)) static cuda_context case_context(int ordinal)
{
    cuda_context context;
    OK(cuda->context_retain(&context, ordinal));
    OK(cuda->context_set(context));
    return context;
}

__attribute__((unused)) static cuda_stream case_stream(void)
{
    cuda_stream stream;
    OK(cuda->stream_create(&stream, CUDA_STREAM_NON_BLOCKING, 0));
    return stream;
}

__attribute__((unused)) static cuda_pointer case_alloc(size_t bytes)
{
    cuda_pointer pointer;
    OK(cuda->memory_alloc(&pointer, bytes));
    return pointer;
}

/* Lets the double's threads, or other processes, go on for a while, so that forbidden actions would show. No
 * result depends on the length of that time. On a busy machine less shows, but no test fails. */
__attribute__((unused)) static void case_sleep_ms(long ms)
{
    struct timespec pause = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000};
    (void)nanosleep(&pause, NULL);
}

/* Returns the byte at a device's address. */
__attribute__((unused)) static unsigned char case_byte(cuda_pointer pointer)
{
    unsigned char byte = 0;
    OK(beyond.copy_to_host_now(&byte, pointer, 1));
    return byte;
}

/* Runs `body` in a process that does not outlive the test. */
__attribute__((unused)) static pid_t case_fork(void (*body)(int), int argument)
{
    pid_t pid = fork();
    if (pid == 0) {
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        body(argument);
        exit(0);
    }
    return pid;
}

__attribute__((unused)) static void case_join(pid_t pid)
{
    int status = 0;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
}

__attribute__((unused)) static void case_run_with(void (*body)(int), int argument)
{
    char library[PATH_MAX];
    case_library(library, "libcuda_double.so");
    assert_int_equal(setenv("COMMD_CUDA_LIBRARY", library, 1), 0);
    case_library(library, "libnccl_double.so"); /* the same one */
    assert_int_equal(setenv("COMMD_NCCL_LIBRARY", library, 1), 0);
    (void)snprintf(case_folder, sizeof case_folder, "/dev/shm/cuda_double_test-XXXXXX");
    assert_non_null(mkdtemp(case_folder));
    assert_int_equal(setenv("CUDA_DOUBLE_FOLDER", case_folder, 1), 0);
    pid_t pid = case_fork(body, argument);
    int status = 0;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    char remove[PATH_MAX + 16];
    (void)snprintf(remove, sizeof remove, "rm -rf %s", case_folder);
    assert_int_equal(system(remove), 0);
    assert_int_equal(status, 0);
}

__attribute__((unused)) static void case_run(void (*body)(int))
{
    case_run_with(body, 0);
}

/* Sends to the other process of a pair on a socket, with a descriptor if fd is not negative. */
__attribute__((unused)) static void case_send(int socket_fd, const void *bytes, size_t size, int fd)
{
    CHECK(send_with_fds(socket_fd, bytes, size, &fd, fd >= 0 ? 1 : 0, 0) == (ssize_t)size);
}

__attribute__((unused)) static int case_receive(int socket_fd, void *bytes, size_t size)
{
    union {
        struct cmsghdr header;
        char room[CMSG_SPACE(sizeof(int))];
    } control = {0};
    struct iovec part = {.iov_base = bytes, .iov_len = size};
    struct msghdr message = {.msg_iov = &part,
                             .msg_iovlen = 1,
                             .msg_control = control.room,
                             .msg_controllen = sizeof control.room};
    CHECK(recvmsg(socket_fd, &message, 0) == (ssize_t)size);
    int fd = -1;
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    if (header != NULL) {
        memcpy(&fd, CMSG_DATA(header), sizeof fd);
    }
    return fd;
}

/* Memory of a device as a client shares it: a descriptor, which the caller closes. The memory lives as long.
 */
__attribute__((unused)) static int case_shared_memory(int device, size_t size_bytes)
{
    struct cuda_allocation_properties properties = {.type = CUDA_ALLOCATION_PINNED,
                                                    .handle_types = CUDA_HANDLE_POSIX_FD,
                                                    .location = {.type = CUDA_LOCATION_DEVICE, .id = device}};
    cuda_allocation allocation;
    int fd = -1;
    OK(cuda->allocation_create(&allocation, size_bytes, &properties, 0));
    OK(cuda->allocation_export(&fd, allocation, CUDA_HANDLE_POSIX_FD, 0));
    OK(cuda->allocation_release(allocation));
    return fd;
}

#define CASE(body)                                                                                           \
    static void test_##body(void **unused)                                                                   \
    {                                                                                                        \
        (void)unused;                                                                                        \
        case_run(body);                                                                                      \
    }

#endif
