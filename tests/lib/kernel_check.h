#ifndef TESTS_LIB_KERNEL_CHECK_H
#define TESTS_LIB_KERNEL_CHECK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/types.h"

/*
 * Compares the kernels of kernels/kernels.h with host_reduce and memcpy, wherever the kernels run: on a GPU,
 * or compiled for the host. All bits must be the same, except for the payload of NaN. All buffers of a case
 * lie in one arena, with bytes between them. All of the arena is compared, so a write beside the outputs is
 * noticed.
 */
#define KERNEL_ARENA_BYTES (4u << 20)

struct kernel_runner {
    void *context;
    uint64_t arena;             /* address of the arena for the kernels, a multiple of 256 */
    uint32_t grid_threads_most; /* of a launch; 0: no limit */
    /* Copy the first `size` bytes of the arena from the host, and to it. */
    bool (*upload)(void *context, const void *bytes, size_t size);
    bool (*download)(void *context, void *bytes, size_t size);
    /* Runs a kernel. If there is no such kernel, or it fails, prints why and returns false. */
    bool (*run)(void *context, const char *name, void *arguments, size_t arguments_bytes, uint32_t blocks,
                uint32_t threads);
};

struct kernel_check {
    const struct kernel_runner *runner;
    uint64_t cases;
    uint64_t random;
    unsigned char *before; /* three copies of the arena, on the host */
    unsigned char *expected;
    unsigned char *got;
};

void kernel_check_open(struct kernel_check *check, const struct kernel_runner *runner);
void kernel_check_close(struct kernel_check *check);

/* Each of these stops at the first difference, prints it on standard output, and returns false. */

/*
 * Checks every interesting number of inputs, with several random shapes each. Shapes vary in the number of
 * outputs (1 up to as many as inputs), in place or not, equal or different alignments, counts near the edges
 * of packs, small and large grids, and both structs.
 */
bool kernel_check_shapes(struct kernel_check *check, enum dtype dtype, enum reduce reduce);

/* Checks two inputs. For types of 8 bits: every pair; of 16 bits: every value with chosen ones; of more
 * bits: pairs of chosen values. */
bool kernel_check_values(struct kernel_check *check, enum dtype dtype, enum reduce reduce);

/* Checks copies of all alignments and many sizes, one or many in a launch. */
bool kernel_check_copies(struct kernel_check *check);

/* Runs all checks above. */
bool kernel_check_all(struct kernel_check *check);

#endif
