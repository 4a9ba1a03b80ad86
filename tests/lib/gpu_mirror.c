#include "tests/lib/gpu_mirror.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "proto/cuda_driver.h"

#define MIRRORS_MAX 16

static struct {
    int device;
    const struct cuda_driver *driver;
    cuda_stream stream;
    struct {
        unsigned char *host;
        size_t size_bytes;
        cuda_pointer gpu;
    } mirrors[MIRRORS_MAX];
    size_t count;
} state = {.device = COMM_DEVICE_HOST};

static void check(cuda_result result, const char *what)
{
    if (result != CUDA_RESULT_OK) {
        char text[256];
        cuda_driver_text(state.driver, what, result, text, sizeof text);
        fprintf(stderr, "the test's own GPU memory: %s\n", text);
        exit(EXIT_FAILURE);
    }
}

void gpu_mirror_open(int device)
{
    char why[256];
    cuda_device handle;
    cuda_context context;
    state.device = device;
    if (device == COMM_DEVICE_HOST) {
        return;
    }
    if (!cuda_driver_load(&state.driver, why, sizeof why)) {
        fprintf(stderr, "%s\n", why);
        exit(EXIT_FAILURE);
    }
    check(state.driver->device_get(&handle, device), "device_get");
    check(state.driver->context_retain(&context, handle), "context_retain");
    check(state.driver->context_set(context), "context_set");
    check(state.driver->stream_create(&state.stream, CUDA_STREAM_NON_BLOCKING, 0), "stream_create");
}

void *gpu_mirror_alloc(comm_client_t *client, size_t size_bytes)
{
    void *host = NULL, *gpu = NULL;
    bool on_gpu = state.device != COMM_DEVICE_HOST;
    if (client != NULL && comm_mem_alloc(client, size_bytes, state.device, &gpu) != COMM_OK) {
        fprintf(stderr, "comm_mem_alloc: %s\n", comm_last_error());
        exit(EXIT_FAILURE);
    }
    if (client == NULL && on_gpu) {
        cuda_pointer pointer;
        check(state.driver->memory_alloc(&pointer, size_bytes), "memory_alloc");
        gpu = (void *)(uintptr_t)pointer;
    }
    if (client != NULL && !on_gpu) {
        return gpu;
    }
    host = malloc(size_bytes);
    if (host == NULL || state.count == MIRRORS_MAX) {
        fprintf(stderr, "no memory\n");
        exit(EXIT_FAILURE);
    }
    if (on_gpu) {
        state.mirrors[state.count].host = host;
        state.mirrors[state.count].size_bytes = size_bytes;
        state.mirrors[state.count].gpu = (cuda_pointer)(uintptr_t)gpu;
        state.count++;
    }
    return host;
}

static cuda_pointer find(const void *host, size_t size_bytes)
{
    for (size_t i = 0; i < state.count; i++) {
        size_t offset = (size_t)((const unsigned char *)host - state.mirrors[i].host);
        if ((const unsigned char *)host >= state.mirrors[i].host &&
            offset + size_bytes <= state.mirrors[i].size_bytes) {
            return state.mirrors[i].gpu + offset;
        }
    }
    fprintf(stderr, "%zu bytes at %p are in no mirror\n", size_bytes, host);
    exit(EXIT_FAILURE);
}

void *gpu_mirror_at(const void *host)
{
    bool on_gpu = state.device != COMM_DEVICE_HOST && host != NULL;
    return on_gpu ? (void *)(uintptr_t)find(host, 0) : (void *)(uintptr_t)host;
}

void *gpu_mirror_put(const void *host, size_t size_bytes)
{
    if (state.device == COMM_DEVICE_HOST || host == NULL || size_bytes == 0) {
        return gpu_mirror_at(host);
    }
    cuda_pointer gpu = find(host, size_bytes);
    check(state.driver->copy_from_host(gpu, host, size_bytes, state.stream), "copy_from_host");
    check(state.driver->stream_synchronize(state.stream), "stream_synchronize");
    return (void *)(uintptr_t)gpu;
}

void gpu_mirror_get(void *host, size_t size_bytes)
{
    if (state.device == COMM_DEVICE_HOST || host == NULL || size_bytes == 0) {
        return;
    }
    check(state.driver->copy_to_host(host, find(host, size_bytes), size_bytes, state.stream), "copy_to_host");
    check(state.driver->stream_synchronize(state.stream), "stream_synchronize");
}
