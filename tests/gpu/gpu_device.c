#include "tests/gpu/gpu_device.h"

#include <stdio.h>
#include <stdlib.h>

#include "kernels/kernels.h"
#include "tests/lib/kernel_values.h"

#define FILL_BYTES (16u << 20)

void gpu_must(const struct gpu *gpu, const char *function, cuda_result result, const char *file, int line)
{
    if (result != CUDA_RESULT_OK) {
        char text[256];
        cuda_driver_text(gpu->driver, function, result, text, sizeof text);
        fprintf(stderr, "%s:%d: %s\n", file, line, text);
        exit(1);
    }
}

void gpu_device_open(struct gpu *gpu)
{
    char why[256];
    cuda_device device;
    int multiprocessors, major, minor;
    *gpu = (struct gpu){0};
    if (!cuda_driver_load(&gpu->driver, why, sizeof why)) {
        printf("skipped: %s\n", why);
        exit(GPU_SKIPPED);
    }
    if (kernels_image_bytes == 0) {
        printf("skipped: built without a CUDA toolkit, so without kernels\n");
        exit(GPU_SKIPPED);
    }
    GPU_MUST(gpu, device_get, &device, 0);
    GPU_MUST(gpu, device_name, gpu->name, (int)sizeof gpu->name, device);
    GPU_MUST(gpu, device_attribute, &multiprocessors, CUDA_DEVICE_MULTIPROCESSORS, device);
    GPU_MUST(gpu, device_attribute, &major, CUDA_DEVICE_CAPABILITY_MAJOR, device);
    GPU_MUST(gpu, device_attribute, &minor, CUDA_DEVICE_CAPABILITY_MINOR, device);
    gpu->multiprocessors = (uint32_t)multiprocessors;
    GPU_MUST(gpu, context_retain, &gpu->context, device);
    GPU_MUST(gpu, context_set, gpu->context);
    GPU_MUST(gpu, stream_create, &gpu->stream, CUDA_STREAM_NON_BLOCKING, 0);
    GPU_MUST(gpu, module_load, &gpu->module, kernels_image);
    printf("%s, sm_%d%d, %d multiprocessors, kernels of %llu bytes\n", gpu->name, major, minor,
           multiprocessors, (unsigned long long)kernels_image_bytes);
}

cuda_pointer gpu_alloc(const struct gpu *gpu, size_t bytes)
{
    cuda_pointer pointer;
    GPU_MUST(gpu, memory_alloc, &pointer, bytes);
    return pointer;
}

void gpu_synchronize(const struct gpu *gpu)
{
    GPU_MUST(gpu, stream_synchronize, gpu->stream);
}

void gpu_fill(const struct gpu *gpu, cuda_pointer target, size_t bytes, uint64_t seed)
{
    size_t first = bytes < FILL_BYTES ? bytes : FILL_BYTES;
    uint64_t *random = malloc(FILL_BYTES);
    if (random == NULL) {
        abort();
    }
    for (size_t i = 0; i < FILL_BYTES / sizeof *random; i++) {
        random[i] = kernel_random(&seed);
    }
    GPU_MUST(gpu, copy_from_host, target, random, first, gpu->stream);
    gpu_synchronize(gpu);
    free(random);
    for (size_t done = first; done < bytes; done *= 2) {
        GPU_MUST(gpu, copy, target + done, target, done < bytes - done ? done : bytes - done, gpu->stream);
    }
    gpu_synchronize(gpu);
}

bool gpu_function(const struct gpu *gpu, const char *name, cuda_function *out)
{
    cuda_result result = gpu->driver->module_function(out, gpu->module, name);
    if (result == CUDA_RESULT_NOT_FOUND) {
        printf("the image has no %s\n", name);
        return false;
    }
    gpu_must(gpu, name, result, __FILE__, __LINE__);
    return true;
}

void gpu_launch(const struct gpu *gpu, cuda_function function, void *arguments, uint32_t blocks,
                uint32_t threads)
{
    void *parameters[] = {arguments};
    GPU_MUST(gpu, launch, function, blocks, 1, 1, threads, 1, 1, 0, gpu->stream, parameters, NULL);
}
