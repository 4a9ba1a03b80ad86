#ifndef TESTS_GPU_BURN_H
#define TESTS_GPU_BURN_H

#include "tests/gpu/gpu_device.h"

/* Keeps a GPU at work, as a program that computes does: with kernels one after the other, of which some
 * are always queued. */
struct burn {
    const struct gpu *gpu;
    cuda_stream stream;
    cuda_function kernel;
    cuda_pointer input, output;
    size_t bytes; /* size of each kernel's buffers */
    _Atomic uint64_t *done;
    cuda_pointer done_at;
    uint64_t launched;
};

void burn_open(struct burn *burn, const struct gpu *gpu, size_t bytes);
/* Queues kernels until there are enough, without waiting. The calling thread must have the context. */
void burn_step(struct burn *burn);
/* Returns how many kernels have ended. */
uint64_t burn_count(const struct burn *burn);
/* Waits until all queued kernels have ended. */
void burn_rest(struct burn *burn);
void burn_close(struct burn *burn);

/* Runs that many kernels and waits for them. Returns how long that took. */
double burn_for(struct burn *burn, uint32_t kernels);

/* Does the same in a thread of its own, until burn_thread_stop. */
struct burn_thread;
struct burn_thread *burn_thread_start(const struct gpu *gpu, size_t bytes);
void burn_thread_stop(struct burn_thread *thread);

#endif
