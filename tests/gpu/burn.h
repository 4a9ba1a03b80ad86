#ifndef TESTS_GPU_BURN_H
#define TESTS_GPU_BURN_H

#include "tests/gpu/gpu_device.h"

/* A GPU kept at work, as a program that computes does: kernels one after the other, some always in line. */
struct burn {
    const struct gpu *gpu;
    cuda_stream stream;
    cuda_function kernel;
    cuda_pointer input, output;
    size_t bytes; /* of each kernel's buffer */
    _Atomic uint64_t *done;
    cuda_pointer done_at;
    uint64_t launched;
};

void burn_open(struct burn *burn, const struct gpu *gpu, size_t bytes);
/* Puts kernels in line until there are enough; waits for none. In the thread that has the context. */
void burn_step(struct burn *burn);
/* Kernels that have ended. */
uint64_t burn_count(const struct burn *burn);
/* Waits until none is in line. */
void burn_rest(struct burn *burn);
void burn_close(struct burn *burn);

/* As many kernels, waited for. How long that took. */
double burn_for(struct burn *burn, uint32_t kernels);

/* In a thread of its own, until it is stopped. */
struct burn_thread;
struct burn_thread *burn_thread_start(const struct gpu *gpu, size_t bytes);
void burn_thread_stop(struct burn_thread *thread);

#endif
