#include <stdio.h>
#include <string.h>

#include "kernels/kernels.h"
#include "tests/gpu/gpu_device.h"
#include "tests/lib/codec_check.h"
#include "tests/lib/kernel_check.h"

/*
 * Checks every kernel on the first GPU against the host's reductions and codec. All bits must be the same,
 * except for the payload of NaN. Also checks one reduction with more than 4 GiB a buffer, if there is enough
 * memory.
 *
 *   check_kernels
 *
 * Exit code 0: all are right; 1: the output says which is wrong; 77: there is no GPU.
 */
struct device {
    struct gpu gpu;
    cuda_pointer arena;
    void *pinned;
};

static bool device_upload(void *context, const void *bytes, size_t size)
{
    struct device *device = context;
    memcpy(device->pinned, bytes, size);
    GPU_MUST(&device->gpu, copy_from_host, device->arena, device->pinned, size, device->gpu.stream);
    return true;
}

static bool device_download(void *context, void *bytes, size_t size)
{
    struct device *device = context;
    GPU_MUST(&device->gpu, copy_to_host, device->pinned, device->arena, size, device->gpu.stream);
    gpu_synchronize(&device->gpu);
    memcpy(bytes, device->pinned, size);
    return true;
}

static bool device_run(void *context, const char *name, void *arguments, size_t arguments_bytes,
                       uint32_t blocks, uint32_t threads)
{
    struct device *device = context;
    cuda_function function;
    (void)arguments_bytes;
    if (!gpu_function(&device->gpu, name, &function)) {
        return false;
    }
    /* Waits for the upload, because the next one overwrites the pinned memory from which it reads. */
    gpu_synchronize(&device->gpu);
    gpu_launch(&device->gpu, function, arguments, blocks, threads);
    return true;
}

#define HUGE_BYTES ((4ull << 30) + (64u << 20) + 5)
#define SAMPLE_BYTES 4096u

static bool samples_are(const struct gpu *gpu, cuda_pointer at, unsigned char expected)
{
    static unsigned char sample[SAMPLE_BYTES];
    const uint64_t offsets[] = {0, (4ull << 30) - SAMPLE_BYTES, 4ull << 30, HUGE_BYTES - SAMPLE_BYTES};
    for (size_t i = 0; i < sizeof offsets / sizeof offsets[0]; i++) {
        GPU_MUST(gpu, copy_to_host, sample, at + offsets[i], sizeof sample, gpu->stream);
        gpu_synchronize(gpu);
        for (size_t b = 0; b < sizeof sample; b++) {
            if (sample[b] != expected) {
                printf("byte %llu of %llu is %02x, expected %02x\n", (unsigned long long)(offsets[i] + b),
                       (unsigned long long)HUGE_BYTES, sample[b], expected);
                return false;
            }
        }
    }
    return true;
}

/* Checks a sum and a copy of more bytes than 32 bits can count. */
static bool check_huge(const struct gpu *gpu)
{
    size_t free_bytes, total_bytes;
    cuda_function sum, copy;
    GPU_MUST(gpu, memory_info, &free_bytes, &total_bytes);
    if (free_bytes < 3 * HUGE_BYTES + (1u << 30)) {
        printf("left out: buffers of more than 4 GiB, with %zu MiB free\n", free_bytes >> 20);
        return true;
    }
    cuda_pointer buffers[3];
    for (int i = 0; i < 3; i++) {
        buffers[i] = gpu_alloc(gpu, HUGE_BYTES);
        GPU_MUST(gpu, set_bytes, buffers[i], (unsigned char)(0x11 << i), HUGE_BYTES, gpu->stream);
    }
    struct kernels_reduce_few arguments = {
        .count_elements = HUGE_BYTES,
        .input_count = 2,
        .output_count = 1,
        .inputs = {(const void *)(uintptr_t)buffers[0], (const void *)(uintptr_t)buffers[1]},
        .outputs = {(void *)(uintptr_t)buffers[2]}};
    struct kernels_copy copies = {.count = 1};
    copies.copies[0].source = (const void *)(uintptr_t)buffers[2];
    copies.copies[0].target = (void *)(uintptr_t)buffers[0];
    copies.copies[0].bytes = HUGE_BYTES;
    bool good = gpu_function(gpu, "commd_reduce_u8_sum", &sum) && gpu_function(gpu, KERNELS_COPY, &copy);
    if (good) {
        gpu_launch(gpu, sum, &arguments, gpu->multiprocessors * 2, KERNELS_BLOCK_THREADS);
        gpu_launch(gpu, copy, &copies, gpu->multiprocessors * 2, KERNELS_BLOCK_THREADS);
        good = samples_are(gpu, buffers[2], 0x33) && samples_are(gpu, buffers[0], 0x33);
    }
    for (int i = 0; i < 3; i++) {
        GPU_MUST(gpu, memory_free, buffers[i]);
    }
    return good;
}

int main(void)
{
    static struct device device;
    struct kernel_check check;
    setvbuf(stdout, NULL, _IOLBF, 0);
    gpu_device_open(&device.gpu);
    device.arena = gpu_alloc(&device.gpu, KERNEL_ARENA_BYTES);
    GPU_MUST(&device.gpu, host_alloc, &device.pinned, KERNEL_ARENA_BYTES, 0);
    struct kernel_runner runner = {.context = &device,
                                   .arena = device.arena,
                                   .upload = device_upload,
                                   .download = device_download,
                                   .run = device_run};
    kernel_check_open(&check, &runner);
    bool good = kernel_check_all(&check);
    good = codec_check(&check) && good;
    good = check_huge(&device.gpu) && good;
    printf("check_kernels: %s, %llu cases\n", good ? "all right" : "FAILED", (unsigned long long)check.cases);
    kernel_check_close(&check);
    return good ? 0 : 1;
}
