#ifndef TESTS_SYSTEM_GPU_RANK_H
#define TESTS_SYSTEM_GPU_RANK_H

#include <commclient.h>

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "proto/cuda_driver.h"

/* For test programs that are one rank on a GPU and also call CUDA themselves. The first call that fails is
 * printed, and ends the process. */

static const struct cuda_driver *driver;
static uint32_t rank, size;
static unsigned long operations; /* how far the program is, for messages about failures */

static void expect_ok(comm_result_t result, const char *what)
{
    if (result != COMM_OK) {
        fprintf(stderr, "rank %u, operation %lu: %s: %s: %s\n", rank, operations, what,
                comm_result_text(result), comm_last_error());
        exit(EXIT_FAILURE);
    }
}

static void check(cuda_result result, const char *what)
{
    if (result != CUDA_RESULT_OK) {
        char text[256];
        cuda_driver_text(driver, what, result, text, sizeof text);
        fprintf(stderr, "rank %u, operation %lu: the test's own: %s\n", rank, operations, text);
        exit(EXIT_FAILURE);
    }
}

/* Loads the driver, and makes the GPU's context current in this thread. */
static cuda_device open_gpu(int device)
{
    char why[256];
    cuda_device handle;
    cuda_context context;
    if (!cuda_driver_load(&driver, why, sizeof why)) {
        fprintf(stderr, "%s\n", why);
        exit(EXIT_FAILURE);
    }
    check(driver->device_get(&handle, device), "device_get");
    check(driver->context_retain(&context, handle), "context_retain");
    check(driver->context_set(context), "context_set");
    return handle;
}

#endif
