#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "kernels/kernels.h"
#include "tests/gpu/burn.h"
#include "tests/gpu/figures.h"
#include "tests/gpu/nccl_alone.h"
#include "tests/gpu/peer.h"

/*
 * Measures what commd relies on, on the first GPU, together with a second process: whether and how fast words
 * wake streams, what sharing the GPU costs, how fast copies are, what handles and contexts cost.
 *
 *   bench_device [MEBIBYTES [TIMES]]
 *
 * MEBIBYTES is the size of large buffers, by default 256. TIMES is how often it repeats small measurements,
 * by default 2000.
 *
 * Prints figures as figures.h says. Exit code 77: there is no GPU.
 */
#define WAKE_TIMEOUT_S 2.0
#define RATE_COPIES 8u
#define COPIES_S 0.1 /* long enough for the GPU to switch often between two processes */
#define HANDLE_TIMES 20u
#define TIMES_MAX 100000u
#define SMALL_BYTES 65536u
#define PATTERN_BYTES 8192u

struct bench {
    struct gpu gpu;
    struct peer peer;
    cuda_pointer words_at;
    cuda_stream other; /* a second stream */
    size_t bytes;
    size_t times;
    uint64_t value;
    double *seconds;
};

static _Atomic uint64_t *word(struct bench *bench, enum peer_word which)
{
    return &bench->peer.shared->words[which].word;
}

static cuda_pointer word_at(const struct bench *bench, enum peer_word which)
{
    return bench->words_at + which * sizeof(struct peer_line);
}

/* --- Words --- */

enum waker { WAKER_PROCESSOR, WAKER_OTHER_PROCESSOR, WAKER_STREAM, WAKER_OTHER_STREAM };

static void wake(struct bench *bench, enum waker waker)
{
    switch (waker) {
    case WAKER_PROCESSOR:
        atomic_store(word(bench, PEER_WORD_GO), bench->value);
        break;
    case WAKER_OTHER_PROCESSOR:
        peer_ask(&bench->peer, PEER_STORE, bench->value);
        break;
    case WAKER_STREAM:
        GPU_MUST(&bench->gpu, stream_write_value, bench->other, word_at(bench, PEER_WORD_GO), bench->value,
                 0);
        break;
    case WAKER_OTHER_STREAM:
        peer_ask(&bench->peer, PEER_WRITE, bench->value);
        break;
    }
}

/* Measures the time from writing a word until this process sees that the stream that waited for it goes on.
 */
static bool wake_once(struct bench *bench, enum waker waker, double *seconds)
{
    const struct gpu *gpu = &bench->gpu;
    const struct timespec pending = {.tv_nsec = 30000};
    bench->value++;
    GPU_MUST(gpu, stream_wait_value, gpu->stream, word_at(bench, PEER_WORD_GO), bench->value,
             CUDA_WAIT_VALUE_GEQ);
    GPU_MUST(gpu, stream_write_value, gpu->stream, word_at(bench, PEER_WORD_DONE), bench->value, 0);
    nanosleep(&pending, NULL);
    double began_s = figures_now_s();
    wake(bench, waker);
    bool woken = figures_wait(word(bench, PEER_WORD_DONE), bench->value, WAKE_TIMEOUT_S);
    *seconds = figures_now_s() - began_s;
    peer_wait(&bench->peer);
    return woken;
}

static void bench_waker(struct bench *bench, enum waker waker, const char *name)
{
    for (size_t i = 0; i < bench->times; i++) {
        if (!wake_once(bench, waker, &bench->seconds[i])) {
            figures_print(0, "bool", "wake/%s/works", name);
            wake(bench, WAKER_STREAM); /* a way that works on any GPU */
            if (!figures_wait(word(bench, PEER_WORD_DONE), bench->value, WAKE_TIMEOUT_S)) {
                fprintf(stderr, "nothing wakes the stream: %s\n", name);
                exit(1);
            }
            return;
        }
    }
    figures_print(1, "bool", "wake/%s/works", name);
    figures_print_times(bench->seconds, bench->times, "wake/%s", name);
}

/* Measures the time from the call until the processor sees the word, and the time of the calls alone. */
static void bench_words(struct bench *bench)
{
    const struct gpu *gpu = &bench->gpu;
    bench_waker(bench, WAKER_PROCESSOR, "this process's processor");
    bench_waker(bench, WAKER_OTHER_PROCESSOR, "other process's processor");
    bench_waker(bench, WAKER_STREAM, "this process's other stream");
    bench_waker(bench, WAKER_OTHER_STREAM, "other process's stream");
    for (size_t i = 0; i < bench->times; i++) {
        double began_s = figures_now_s();
        GPU_MUST(gpu, stream_write_value, gpu->stream, word_at(bench, PEER_WORD_DONE), ++bench->value, 0);
        if (!figures_wait(word(bench, PEER_WORD_DONE), bench->value, WAKE_TIMEOUT_S)) {
            fprintf(stderr, "a written value is never seen\n");
            exit(1);
        }
        bench->seconds[i] = figures_now_s() - began_s;
    }
    figures_print_times(bench->seconds, bench->times, "written value seen");
    for (size_t i = 0; i < bench->times; i++) {
        double began_s = figures_now_s();
        GPU_MUST(gpu, stream_write_value, gpu->stream, word_at(bench, PEER_WORD_DONE), ++bench->value, 0);
        bench->seconds[i] = figures_now_s() - began_s;
        gpu_synchronize(gpu);
    }
    figures_print_times(bench->seconds, bench->times, "call of cuStreamWriteValue64");
}

/* Measures a small kernel of the other process, from the request to the answer. waits: meanwhile a stream of
 * this process waits. */
static void bench_other_kernel(struct bench *bench, bool waits)
{
    const struct gpu *gpu = &bench->gpu;
    size_t times = bench->times / 4 + HANDLE_TIMES;
    times = times < bench->times ? times : bench->times;
    if (waits) {
        GPU_MUST(gpu, stream_wait_value, gpu->stream, word_at(bench, PEER_WORD_GO), ++bench->value,
                 CUDA_WAIT_VALUE_GEQ);
    }
    bool answers = true;
    for (size_t i = 0; i < times && answers; i++) {
        double began_s = figures_now_s();
        peer_ask(&bench->peer, PEER_KERNEL, 0);
        answers = peer_answers(&bench->peer, WAKE_TIMEOUT_S);
        bench->seconds[i] = figures_now_s() - began_s;
    }
    if (waits) {
        wake(bench, WAKER_PROCESSOR);
        wake(bench, WAKER_STREAM);
        gpu_synchronize(gpu);
        figures_print(answers, "bool", "kernel of the other process/runs while a stream waits here");
    }
    peer_wait(&bench->peer);
    if (answers) {
        figures_print_times(bench->seconds, times, "kernel of the other process/%s",
                            waits ? "a stream waits here" : "alone");
    }
}

/* --- Copies and kernels beside another process --- */

struct buffers {
    cuda_pointer gpu[2];
    void *host[2];
};

/* Returns GB/s of copies. to: 0 to the host, 1 to the GPU, 2 both at once (the sum). */
static double copy_rate(struct bench *bench, const struct buffers *buffers, size_t bytes, int to)
{
    const struct gpu *gpu = &bench->gpu;
    double began_s = figures_now_s();
    for (unsigned i = 0; i < RATE_COPIES; i++) {
        if (to != 1) {
            GPU_MUST(gpu, copy_to_host, buffers->host[0], buffers->gpu[0], bytes, gpu->stream);
        }
        if (to != 0) {
            GPU_MUST(gpu, copy_from_host, buffers->gpu[1], buffers->host[1], bytes, bench->other);
        }
    }
    gpu_synchronize(gpu);
    GPU_MUST(gpu, stream_synchronize, bench->other);
    return (to == 2 ? 2 : 1) * RATE_COPIES * (double)bytes / (figures_now_s() - began_s) / 1e9;
}

static double burned_rate(struct bench *bench, uint64_t before, double began_s)
{
    double took_s = figures_now_s() - began_s;
    return (double)(atomic_load(&bench->peer.shared->burned.word) - before) / took_s;
}

static void bench_copies(struct bench *bench, const struct buffers *buffers, size_t bytes, const char *beside)
{
    static const char *const names[] = {"to the host", "to the GPU", "both ways"};
    for (int to = 0; to < 3; to++) {
        (void)copy_rate(bench, buffers, bytes, to);
        uint64_t before = atomic_load(&bench->peer.shared->burned.word);
        double began_s = figures_now_s();
        size_t count = 0;
        while (count < bench->times && (count < 3 || figures_now_s() - began_s < COPIES_S)) {
            bench->seconds[count++] = copy_rate(bench, buffers, bytes, to);
        }
        double kernels = burned_rate(bench, before, began_s);
        figures_print(figures_median(bench->seconds, count), "GB/s", "copy %s/%zu KiB/%s", names[to],
                      bytes >> 10, beside);
        if (strcmp(beside, "alone") != 0) {
            figures_print(kernels, "1/s", "kernels of the other process/copy %s/%zu KiB", names[to],
                          bytes >> 10);
        }
    }
}

static void bench_kernel(struct bench *bench, const struct buffers *buffers, const char *beside)
{
    const struct gpu *gpu = &bench->gpu;
    struct kernels_reduce_few arguments = {.count_elements = SMALL_BYTES / 4,
                                           .input_count = 1,
                                           .output_count = 1,
                                           .inputs = {(const void *)(uintptr_t)buffers->gpu[0]},
                                           .outputs = {(void *)(uintptr_t)buffers->gpu[1]}};
    cuda_function function;
    size_t times = bench->times / 10 + 10;
    if (!gpu_function(gpu, "commd_reduce_f32_sum", &function)) {
        exit(1);
    }
    for (size_t i = 0; i < times; i++) {
        double began_s = figures_now_s();
        gpu_launch(gpu, function, &arguments, 8, KERNELS_BLOCK_THREADS);
        gpu_synchronize(gpu);
        bench->seconds[i] = figures_now_s() - began_s;
    }
    figures_print_times(bench->seconds, times, "kernel of 64 KiB/%s", beside);
}

static void bench_sharing(struct bench *bench)
{
    const struct gpu *gpu = &bench->gpu;
    struct buffers buffers;
    const size_t sizes[] = {bench->bytes / 256, bench->bytes / 4};
    for (int i = 0; i < 2; i++) {
        buffers.gpu[i] = gpu_alloc(gpu, bench->bytes / 4);
        GPU_MUST(gpu, host_alloc, &buffers.host[i], bench->bytes / 4, CUDA_HOST_PORTABLE);
        memset(buffers.host[i], i, bench->bytes / 4);
    }
    bench_kernel(bench, &buffers, "alone");
    for (int i = 0; i < 2; i++) {
        bench_copies(bench, &buffers, sizes[i], "alone");
    }
    peer_do(&bench->peer, PEER_BURN, 0);
    uint64_t before = atomic_load(&bench->peer.shared->burned.word);
    double began_s = figures_now_s();
    const struct timespec moment = {.tv_nsec = 200000000};
    nanosleep(&moment, NULL);
    figures_print(burned_rate(bench, before, began_s), "1/s", "kernels of the other process/alone");
    bench_kernel(bench, &buffers, "beside another process's");
    for (int i = 0; i < 2; i++) {
        bench_copies(bench, &buffers, sizes[i], "beside another process's kernels");
    }
    peer_do(&bench->peer, PEER_REST, 0);
    for (int i = 0; i < 2; i++) {
        GPU_MUST(gpu, memory_free, buffers.gpu[i]);
        GPU_MUST(gpu, host_free, buffers.host[i]);
    }
}

/* --- Handles --- */

static bool are_ones(struct bench *bench, cuda_pointer at)
{
    static float values[PATTERN_BYTES / sizeof(float)];
    memset(values, 0, sizeof values);
    GPU_MUST(&bench->gpu, copy_to_host, values, at, sizeof values, bench->gpu.stream);
    gpu_synchronize(&bench->gpu);
    for (size_t i = 0; i < sizeof values / sizeof values[0]; i++) {
        if (!(values[i] == 1)) {
            return false;
        }
    }
    return true;
}

/* With one rank, NCCL's all-reduce is a copy by the driver: no kernel of NCCL touches the memory. */
static void bench_nccl(struct bench *bench, cuda_pointer opened)
{
    const struct gpu *gpu = &bench->gpu;
    struct nccl_alone nccl;
    char why[256];
    if (!nccl_alone_open(&nccl, why, sizeof why)) {
        printf("left out: %s\n", why);
        return;
    }
    cuda_pointer own = gpu_alloc(gpu, PATTERN_BYTES);
    GPU_MUST(gpu, set_bytes, own, 0, PATTERN_BYTES, gpu->stream);
    nccl_alone_reduce(&nccl, gpu, opened, own, PATTERN_BYTES);
    figures_print(are_ones(bench, own), "bool", "NCCL, one rank/copies from what was opened");
    GPU_MUST(gpu, set_bytes, opened, 0, PATTERN_BYTES, gpu->stream);
    nccl_alone_reduce(&nccl, gpu, own, opened, PATTERN_BYTES);
    figures_print(are_ones(bench, opened), "bool", "NCCL, one rank/copies to what was opened");
    figures_print(nccl.version, "version", "NCCL/version");
    nccl_alone_close(&nccl);
    GPU_MUST(gpu, memory_free, own);
}

static void bench_handle(struct bench *bench, size_t bytes)
{
    const struct gpu *gpu = &bench->gpu;
    cuda_pointer opened, base = 0;
    size_t range_bytes = 0;
    peer_do(&bench->peer, PEER_EXPORT, bytes);
    for (size_t i = 0; i < HANDLE_TIMES; i++) {
        double began_s = figures_now_s();
        GPU_MUST(gpu, ipc_open, &opened, bench->peer.shared->handle, CUDA_IPC_LAZY_PEER_ACCESS);
        bench->seconds[i] = figures_now_s() - began_s;
        if (i + 1 < HANDLE_TIMES) {
            GPU_MUST(gpu, ipc_close, opened);
        }
    }
    figures_print(1e6 * bench->seconds[0], "us", "handle/%zu KiB/first opened", bytes >> 10);
    figures_print_times(bench->seconds, HANDLE_TIMES, "handle/%zu KiB/opened", bytes >> 10);
    figures_print(are_ones(bench, opened), "bool", "handle/%zu KiB/opens at the allocation", bytes >> 10);
    cuda_result result = gpu->driver->memory_range(&base, &range_bytes, opened);
    figures_print(result == CUDA_RESULT_OK && base == opened, "bool",
                  "handle/%zu KiB/cuMemGetAddressRange begins there", bytes >> 10);
    figures_print((double)range_bytes, "B", "handle/%zu KiB/cuMemGetAddressRange", bytes >> 10);
    bench_nccl(bench, opened);
    GPU_MUST(gpu, ipc_close, opened);
    peer_do(&bench->peer, PEER_WITHDRAW, 0);
}

/* --- What things cost --- */

static void bench_pinning(struct bench *bench)
{
    const struct gpu *gpu = &bench->gpu;
    void *memory;
    double began_s = figures_now_s();
    GPU_MUST(gpu, host_alloc, &memory, bench->bytes, CUDA_HOST_PORTABLE | CUDA_HOST_DEVICE_MAP);
    figures_print(1e3 * (figures_now_s() - began_s), "ms", "cuMemHostAlloc of %zu MiB", bench->bytes >> 20);
    began_s = figures_now_s();
    GPU_MUST(gpu, host_free, memory);
    figures_print(1e3 * (figures_now_s() - began_s), "ms", "cuMemFreeHost of %zu MiB", bench->bytes >> 20);
    int file = memfd_create("pinned", MFD_CLOEXEC);
    memory = MAP_FAILED;
    if (file >= 0 && ftruncate(file, (off_t)bench->bytes) == 0) {
        memory = mmap(NULL, bench->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    }
    if (memory == MAP_FAILED) {
        perror("memory to pin");
        exit(1);
    }
    memset(memory, 1, bench->bytes);
    began_s = figures_now_s();
    GPU_MUST(gpu, host_register, memory, bench->bytes, CUDA_HOST_PORTABLE);
    figures_print(1e3 * (figures_now_s() - began_s), "ms", "cuMemHostRegister of a memfd of %zu MiB",
                  bench->bytes >> 20);
    GPU_MUST(gpu, host_unregister, memory);
    (void)munmap(memory, bench->bytes);
    (void)close(file);
}

static uint64_t free_bytes(const struct gpu *gpu)
{
    size_t left, all;
    GPU_MUST(gpu, memory_info, &left, &all);
    return left;
}

int main(int argc, char **argv)
{
    static struct bench bench;
    setvbuf(stdout, NULL, _IOLBF, 0);
    unsigned long mebibytes = argc > 1 ? strtoul(argv[1], NULL, 10) : 256;
    bench.times = argc > 2 ? strtoul(argv[2], NULL, 10) : 2000;
    if (mebibytes < 4 || mebibytes > 65536 || bench.times < HANDLE_TIMES || bench.times > TIMES_MAX) {
        fprintf(stderr, "usage: bench_device [MEBIBYTES [TIMES]], of 4 to 65536 and of %u to %u\n",
                HANDLE_TIMES, TIMES_MAX);
        return 2;
    }
    bench.bytes = (size_t)mebibytes << 20;
    bench.seconds = calloc(bench.times + HANDLE_TIMES, sizeof *bench.seconds);
    if (bench.seconds == NULL) {
        abort();
    }
    peer_start(&bench.peer, bench.bytes / 4);
    double began_s = figures_now_s();
    gpu_device_open(&bench.gpu);
    figures_print(1e3 * (figures_now_s() - began_s), "ms", "driver, context and kernels loaded");
    GPU_MUST(&bench.gpu, stream_create, &bench.other, CUDA_STREAM_NON_BLOCKING, 0);
    bench.words_at = peer_map(&bench.gpu, bench.peer.shared);
    uint64_t before = free_bytes(&bench.gpu);
    peer_do(&bench.peer, PEER_OPEN, 0);
    figures_print(((double)before - (double)free_bytes(&bench.gpu)) / (1 << 20), "MiB",
                  "memory of a context with kernels");
    bench_words(&bench);
    bench_other_kernel(&bench, false);
    bench_other_kernel(&bench, true);
    bench_sharing(&bench);
    bench_pinning(&bench);
    bench_handle(&bench, bench.bytes / 4);
    bench_handle(&bench, PATTERN_BYTES);
    peer_end(&bench.peer);
    free(bench.seconds);
    return 0;
}
