#ifndef TESTS_GPU_GPU_DEVICE_H
#define TESTS_GPU_GPU_DEVICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/cuda_driver.h"

/*
 * The first GPU, with commd's kernels loaded, for programs that need one. These programs run without a
 * toolkit and without a compiler. Any failure ends the process with a message. Exit code 77: there is no GPU,
 * or the programs were built without kernels.
 */
#define GPU_SKIPPED 77

struct gpu {
    const struct cuda_driver *driver;
    cuda_context context;
    cuda_stream stream;
    cuda_module module;
    char name[96];
    uint32_t multiprocessors;
};

void gpu_device_open(struct gpu *gpu);

#define GPU_MUST(gpu, function, ...)                                                                         \
    gpu_must(gpu, #function, (gpu)->driver->function(__VA_ARGS__), __FILE__, __LINE__)
void gpu_must(const struct gpu *gpu, const char *function, cuda_result result, const char *file, int line);

cuda_pointer gpu_alloc(const struct gpu *gpu, size_t bytes);

/* Fills memory with random bytes; the same seed gives the same bytes. */
void gpu_fill(const struct gpu *gpu, cuda_pointer target, size_t bytes, uint64_t seed);

/* Returns false if there is no function of that name. */
bool gpu_function(const struct gpu *gpu, const char *name, cuda_function *out);
void gpu_launch(const struct gpu *gpu, cuda_function function, void *arguments, uint32_t blocks,
                uint32_t threads);
void gpu_synchronize(const struct gpu *gpu);

#endif
