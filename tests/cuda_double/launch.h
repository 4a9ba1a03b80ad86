#ifndef TESTS_CUDA_DOUBLE_LAUNCH_H
#define TESTS_CUDA_DOUBLE_LAUNCH_H

#include "kernels/kernels.h"
#include "tests/cuda_double/memory.h"

/* Memory that a kernel works on. It cannot be freed meanwhile. */
struct touched {
    unsigned char *memory[2 * KERNELS_MANY_MAX];
    struct pin pins[2 * KERNELS_MANY_MAX];
    size_t count;
};

/* Finds one more range of the kernel's memory, with the result of an access to it. Locked. */
cuda_result touch(struct touched *touched, cuda_context context, const void *address, uint64_t bytes,
                  unsigned alignment, bool writes);

/* launch_code.c: the kernels of the codec. Locked. */
cuda_result code_run(const struct kernels_code *code, enum compression compression, bool encodes,
                     cuda_context context, struct touched *touched);

#endif
