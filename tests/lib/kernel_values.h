#ifndef TESTS_LIB_KERNEL_VALUES_H
#define TESTS_LIB_KERNEL_VALUES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/types.h"

/* Data for kernel_check: what to put into buffers, and when two elements are the same. */

uint64_t kernel_random(uint64_t *state);

/* The numbers that an element consists of: 1, or 2 for complex; and the bytes of each. */
size_t kernel_parts(enum dtype dtype);
size_t kernel_part_bytes(enum dtype dtype);

/*
 * A value of the type where arithmetic has an edge, as bits of one part: zeros, denormals, ties, the largest,
 * infinities, NaN. Those of `index` repeat after kernel_edge_count.
 */
size_t kernel_edge_count(enum dtype dtype);
uint64_t kernel_edge(enum dtype dtype, size_t index);

enum kernel_fill { KERNEL_FILL_BITS, KERNEL_FILL_MODERATE, KERNEL_FILL_EDGES, KERNEL_FILL_COUNT };
void kernel_fill(enum dtype dtype, enum kernel_fill fill, void *buffer, size_t elements, uint64_t *random);

/* The same bits, or both NaN, in every part. */
bool kernel_element_is(enum dtype dtype, const void *got, const void *expected);

#endif
