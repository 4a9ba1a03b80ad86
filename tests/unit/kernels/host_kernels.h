#ifndef TESTS_UNIT_KERNELS_HOST_KERNELS_H
#define TESTS_UNIT_KERNELS_HOST_KERNELS_H

#include <stdbool.h>
#include <stdint.h>

/* Runs a kernel's own source, compiled for the host. The threads of the grid run one after the other;
 * backwards: the last one first. Returns false if no kernel has that name. */
#if defined(__cplusplus)
extern "C"
#endif
    bool
    host_kernel_run(const char *name, const void *arguments, uint32_t blocks, uint32_t threads,
                    bool backwards);

#endif
