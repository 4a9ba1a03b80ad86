#include "tests/gpu/burn.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>

#include "kernels/kernels.h"
#include "tests/gpu/figures.h"

#define IN_LINE 8u
#define NAP_NS 20000

struct burn_thread {
    pthread_t thread;
    struct burn burn;
    const struct gpu *gpu;
    size_t bytes;
    _Atomic bool stop;
    _Atomic uint64_t ready;
};

void burn_open(struct burn *burn, const struct gpu *gpu, size_t bytes)
{
    void *word;
    *burn = (struct burn){.gpu = gpu, .bytes = bytes};
    GPU_MUST(gpu, stream_create, &burn->stream, CUDA_STREAM_NON_BLOCKING, 0);
    GPU_MUST(gpu, host_alloc, &word, sizeof *burn->done, CUDA_HOST_PORTABLE | CUDA_HOST_DEVICE_MAP);
    burn->done = word;
    atomic_store(burn->done, 0);
    GPU_MUST(gpu, host_device_pointer, &burn->done_at, word, 0);
    burn->input = gpu_alloc(gpu, bytes);
    burn->output = gpu_alloc(gpu, bytes);
    GPU_MUST(gpu, set_bytes, burn->input, 0, bytes, burn->stream);
    if (!gpu_function(gpu, "commd_reduce_f32_sum", &burn->kernel)) {
        exit(1);
    }
}

static void launch(struct burn *burn)
{
    struct kernels_reduce_few arguments = {.count_elements = burn->bytes / 4,
                                           .input_count = 1,
                                           .output_count = 1,
                                           .inputs = {(const void *)(uintptr_t)burn->input},
                                           .outputs = {(void *)(uintptr_t)burn->output}};
    void *parameters[] = {&arguments};
    GPU_MUST(burn->gpu, launch, burn->kernel, burn->gpu->multiprocessors * 4, 1, 1, KERNELS_BLOCK_THREADS, 1,
             1, 0, burn->stream, parameters, NULL);
    burn->launched++;
    GPU_MUST(burn->gpu, stream_write_value, burn->stream, burn->done_at, burn->launched, 0);
}

uint64_t burn_count(const struct burn *burn)
{
    return atomic_load_explicit(burn->done, memory_order_acquire);
}

void burn_step(struct burn *burn)
{
    while (burn->launched - burn_count(burn) < IN_LINE) {
        launch(burn);
    }
}

void burn_rest(struct burn *burn)
{
    GPU_MUST(burn->gpu, stream_synchronize, burn->stream);
}

void burn_close(struct burn *burn)
{
    burn_rest(burn);
    GPU_MUST(burn->gpu, memory_free, burn->input);
    GPU_MUST(burn->gpu, memory_free, burn->output);
    GPU_MUST(burn->gpu, stream_destroy, burn->stream);
    GPU_MUST(burn->gpu, host_free, (void *)(uintptr_t)burn->done);
}

double burn_for(struct burn *burn, uint32_t kernels)
{
    double began_s = figures_now_s();
    for (uint32_t i = 0; i < kernels; i++) {
        launch(burn);
    }
    burn_rest(burn);
    return figures_now_s() - began_s;
}

static void *run(void *argument)
{
    struct burn_thread *thread = argument;
    const struct timespec nap = {.tv_nsec = NAP_NS};
    GPU_MUST(thread->gpu, context_set, thread->gpu->context);
    burn_open(&thread->burn, thread->gpu, thread->bytes);
    while (!atomic_load(&thread->stop)) {
        burn_step(&thread->burn);
        atomic_store(&thread->ready, 1);
        nanosleep(&nap, NULL);
    }
    burn_close(&thread->burn);
    return NULL;
}

struct burn_thread *burn_thread_start(const struct gpu *gpu, size_t bytes)
{
    struct burn_thread *thread = calloc(1, sizeof *thread);
    if (thread == NULL) {
        abort();
    }
    thread->gpu = gpu;
    thread->bytes = bytes;
    if (pthread_create(&thread->thread, NULL, run, thread) != 0 || !figures_wait(&thread->ready, 1, 30)) {
        abort();
    }
    return thread;
}

void burn_thread_stop(struct burn_thread *thread)
{
    if (thread != NULL) {
        atomic_store(&thread->stop, true);
        (void)pthread_join(thread->thread, NULL);
        free(thread);
    }
}
