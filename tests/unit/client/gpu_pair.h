#ifndef TESTS_UNIT_CLIENT_GPU_PAIR_H
#define TESTS_UNIT_CLIENT_GPU_PAIR_H

#include "tests/unit/client/client_pair.h"

#include <dlfcn.h>
#include <libgen.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "tests/cuda_double/cuda_double.h"

/* The double of the CUDA driver, used as an application would use the driver while it also uses the library.
 * The application has its own table of functions, and uses the primary contexts. */
#define GPU_DEVICES 2
#define MIB ((size_t)1 << 20)
#define GPU_OK(call) assert_int_equal(call, CUDA_RESULT_OK)

static const struct cuda_driver *cuda;
static char gpu_folder[64];

static struct {
#define GPU_MEMBER(name, symbol, parameters) cuda_result(*name) parameters;
    CUDA_DOUBLE_FUNCTIONS(GPU_MEMBER)
#undef GPU_MEMBER
    void (*inject)(const char *rules);
    void (*conditional)(cuda_stream stream, int is_conditional);
} beyond;

static inline void gpu_library(char path[PATH_MAX])
{
    char self[PATH_MAX - 64];
    ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
    assert_true(length > 0);
    self[length] = '\0';
    (void)snprintf(path, PATH_MAX, "%s/../../libcuda_double.so", dirname(self));
}

static inline void gpu_look_up(void *library, void *slot, const char *symbol)
{
    void *address = dlsym(library, symbol);
    assert_non_null(address);
    memcpy(slot, &address, sizeof address);
}

/* Runs before the first case. The double's machine belongs to this process alone. */
static inline int gpu_setup(void **state)
{
    char path[PATH_MAX], why[256] = "", devices[16];
    (void)state;
    gpu_library(path);
    (void)snprintf(gpu_folder, sizeof gpu_folder, "/dev/shm/cuda_double_test-XXXXXX");
    assert_non_null(mkdtemp(gpu_folder));
    (void)snprintf(devices, sizeof devices, "%d", GPU_DEVICES);
    assert_int_equal(setenv("CUDA_DOUBLE_FOLDER", gpu_folder, 1), 0);
    assert_int_equal(setenv("CUDA_DOUBLE_DEVICES", devices, 1), 0);
    assert_int_equal(setenv("COMMD_CUDA_LIBRARY", path, 1), 0);
    if (!cuda_driver_load(&cuda, why, sizeof why)) {
        fail_msg("%s", why);
    }
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    assert_non_null(library);
#define GPU_LOOK_UP(name, symbol, parameters) gpu_look_up(library, &beyond.name, #symbol);
    CUDA_DOUBLE_FUNCTIONS(GPU_LOOK_UP)
#undef GPU_LOOK_UP
    gpu_look_up(library, &beyond.inject, "cuda_double_fail");
    gpu_look_up(library, &beyond.conditional, "cuda_double_conditional");
    for (int i = GPU_DEVICES - 1; i >= 0; i--) { /* an application's runtime keeps them, too */
        cuda_context context;
        GPU_OK(cuda->context_retain(&context, i));
        GPU_OK(cuda->context_set(context));
    }
    return 0;
}

static inline int gpu_teardown(void **state)
{
    char command[128];
    (void)state;
    (void)snprintf(command, sizeof command, "rm -rf %s", gpu_folder);
    return system(command);
}

static inline comm_t *gpu_comm(const struct pair *pair, const char *name, int device)
{
    comm_t *comm = NULL;
    if (comm_init(pair->client, name, 0, 1, device, NULL, &comm) != COMM_OK) {
        fail_msg("comm_init: %s", comm_last_error());
    }
    return comm;
}

static inline void *gpu_address(cuda_pointer pointer)
{
    return (void *)(uintptr_t)pointer;
}

static inline cuda_pointer gpu_alloc(size_t bytes)
{
    cuda_pointer pointer = 0;
    GPU_OK(cuda->memory_alloc(&pointer, bytes));
    return pointer;
}

static inline cuda_stream gpu_stream(void)
{
    cuda_stream stream;
    GPU_OK(cuda->stream_create(&stream, CUDA_STREAM_NON_BLOCKING, 0));
    return stream;
}

static inline void expect_ok(comm_result_t result)
{
    if (result != COMM_OK) {
        fail_msg("%s: %s", comm_result_text(result), comm_last_error());
    }
}

/* An all_reduce that is ordered against no stream. */
static inline comm_result_t reduce_now(comm_t *comm, void *send, void *receive, size_t count)
{
    comm_call_options_t options = COMM_CALL_OPTIONS_INIT;
    options.stream = COMM_STREAM_NONE;
    return comm_all_reduce(comm, send, receive, count, COMM_U8, COMM_SUM, &options);
}

static inline comm_result_t reduce_on(comm_t *comm, void *buffer, size_t count, void *stream)
{
    comm_call_options_t options = COMM_CALL_OPTIONS_INIT;
    options.stream = stream;
    return comm_all_reduce(comm, buffer, buffer, count, COMM_U8, COMM_SUM, &options);
}

/* For conditions without an event to wait for, such as the end of a stream or a request. The calls that check
 * a condition only ask, and do not wait. The callers limit the time. */
static inline void sleep_ms(long ms)
{
    struct timespec pause = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000};
    (void)nanosleep(&pause, NULL);
}

/* Holds up a stream: the stream waits until the gate is opened. */
struct gate {
    _Atomic uint64_t *word;
    cuda_pointer address;
};

static inline struct gate gate_on(cuda_stream stream)
{
    struct gate gate = {0};
    void *memory;
    GPU_OK(cuda->host_alloc(&memory, 4096, CUDA_HOST_PORTABLE | CUDA_HOST_DEVICE_MAP));
    memset(memory, 0, 4096);
    gate.word = memory;
    GPU_OK(cuda->host_device_pointer(&gate.address, memory, 0));
    GPU_OK(cuda->stream_wait_value(stream, gate.address, 1, CUDA_WAIT_VALUE_GEQ));
    return gate;
}

static inline void gate_open(const struct gate *gate)
{
    __atomic_store_n((uint64_t *)(uintptr_t)gate->word, 1, __ATOMIC_RELEASE);
}

/* Whether the stream ends its work within so many looks, which are a millisecond apart. Tests use it to show
 * that a stream does not end. */
static inline int stream_ends(cuda_stream stream, long ms)
{
    cuda_result result = CUDA_RESULT_NOT_READY;
    for (long waited = 0; waited <= ms && result == CUDA_RESULT_NOT_READY; waited++) {
        result = cuda->stream_query(stream);
        if (result == CUDA_RESULT_NOT_READY) {
            sleep_ms(1);
        }
    }
    return result == CUDA_RESULT_OK;
}

/* Waits for as long as it takes: a busy machine fails no test. If the stream never ends, the test is out of
 * time. */
static inline void expect_stream_ends(cuda_stream stream)
{
    cuda_result result;
    while ((result = cuda->stream_query(stream)) == CUDA_RESULT_NOT_READY) {
        sleep_ms(1);
    }
    assert_int_equal(result, CUDA_RESULT_OK);
}

/* The same for a request. */
static inline int request_ends(comm_request_t **request, long ms)
{
    int done = 0;
    for (long waited = 0; waited <= ms && !done; waited++) {
        expect_ok(comm_test(request, &done, NULL));
        if (!done) {
            sleep_ms(1);
        }
    }
    return done;
}

static inline void expect_request_ends(comm_request_t **request)
{
    while (!request_ends(request, 1)) {
    }
}

#endif
