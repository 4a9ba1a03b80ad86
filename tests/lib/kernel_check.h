#ifndef TESTS_LIB_KERNEL_CHECK_H
#define TESTS_LIB_KERNEL_CHECK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/types.h"

/*
 * Compares the kernels of kernels/kernels.h with host_reduce and memcpy, bit for bit but for the payload of
 * NaN, on whatever runs them: a GPU, or the host that their source was compiled for. All buffers of a case
 * lie in one arena with bytes between them, and all of it is compared: what a kernel writes beside its
 * outputs is seen.
 */
#define KERNEL_ARENA_BYTES (4u << 20)

struct kernel_runner {
    void *context;
    uint64_t arena; /* address of the arena, a multiple of 256, as kernels see it */
    /* The first so many bytes of the arena from and to the host. */
    bool (*upload)(void *context, const void *bytes, size_t size);
    bool (*download)(void *context, void *bytes, size_t size);
    /* False, having said why, where there is no such kernel or it failed. */
    bool (*run)(void *context, const char *name, void *arguments, size_t arguments_bytes, uint32_t blocks,
                uint32_t threads);
};

struct kernel_check {
    const struct kernel_runner *runner;
    uint64_t cases;
    uint64_t random;
    unsigned char *before; /* arenas on the host */
    unsigned char *expected;
    unsigned char *got;
};

void kernel_check_open(struct kernel_check *check, const struct kernel_runner *runner);
void kernel_check_close(struct kernel_check *check);

/* Each is false after the first difference, having said on standard output what differs. */

/*
 * Every number of inputs of interest with several drawn shapes each: 1 to as many outputs, in place and not,
 * alike and unlike alignments, counts about the edges of packs, grids large and small, both structs.
 */
bool kernel_check_shapes(struct kernel_check *check, enum dtype dtype, enum reduce reduce);

/* Two inputs: 8 bits every pair, 16 bits every value beside chosen ones, others chosen values in pairs. */
bool kernel_check_values(struct kernel_check *check, enum dtype dtype, enum reduce reduce);

/* Copies of all alignments and many sizes, one and many in a launch. */
bool kernel_check_copies(struct kernel_check *check);

/* All of the above. */
bool kernel_check_all(struct kernel_check *check);

#endif
