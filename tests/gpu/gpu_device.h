#ifndef TESTS_GPU_GPU_DEVICE_H
#define TESTS_GPU_GPU_DEVICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/cuda_driver.h"

/*
 * The first GPU with commd's kernels on it, for programs that need one. They run where there is neither a
 * toolkit nor a compiler. Whatever fails ends the process and says what: code 77 where there is no GPU or
 * these programs were built without kernels.
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

/* Random bytes, the same each time. */
void gpu_fill(const struct gpu *gpu, cuda_pointer target, size_t bytes, uint64_t seed);

/* False where there is none of that name. */
bool gpu_function(const struct gpu *gpu, const char *name, cuda_function *out);
void gpu_launch(const struct gpu *gpu, cuda_function function, void *arguments, uint32_t blocks,
                uint32_t threads);
void gpu_synchronize(const struct gpu *gpu);

#endif
