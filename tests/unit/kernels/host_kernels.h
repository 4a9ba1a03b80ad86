#ifndef TESTS_UNIT_KERNELS_HOST_KERNELS_H
#define TESTS_UNIT_KERNELS_HOST_KERNELS_H

#include <stdbool.h>
#include <stdint.h>

/*
 * The kernels' own source, compiled for the host: each thread of the grid after the other, the last first
 * where backwards. False where there is no kernel of that name.
 */
#if defined(__cplusplus)
extern "C"
#endif
    bool
    host_kernel_run(const char *name, const void *arguments, uint32_t blocks, uint32_t threads,
                    bool backwards);

#endif
