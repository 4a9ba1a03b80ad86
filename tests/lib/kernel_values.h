#ifndef TESTS_LIB_KERNEL_VALUES_H
#define TESTS_LIB_KERNEL_VALUES_H

#include <stddef.h>
#include <stdint.h>

#include "proto/types.h"

/* Data for kernel_check: what to put into buffers. */

uint64_t kernel_random(uint64_t *state);

/*
 * Returns a value at an edge of the type's arithmetic, as the bits of one part: zeros, denormals, ties, the
 * largest numbers, infinities, NaN. The values repeat after kernel_edge_count.
 */
size_t kernel_edge_count(enum dtype dtype);
uint64_t kernel_edge(enum dtype dtype, size_t index);

enum kernel_fill { KERNEL_FILL_BITS, KERNEL_FILL_MODERATE, KERNEL_FILL_EDGES, KERNEL_FILL_COUNT };
void kernel_fill(enum dtype dtype, enum kernel_fill fill, void *buffer, size_t elements, uint64_t *random);

#endif
