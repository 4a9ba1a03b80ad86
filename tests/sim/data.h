#ifndef TESTS_SIM_DATA_H
#define TESTS_SIM_DATA_H

#include <stdint.h>

#include "proto/types.h"

/*
 * Operands, and the results that they must give. Values differ by rank, element and operation. A result must
 * be an exact integer, or a double within the error that the type's rounding allows.
 */
void data_fill(enum dtype dtype, enum reduce reduce, uint64_t seed, uint32_t rank, uint64_t count, void *out);

/* Fails the test at the first element of `output` that is not the reduction of the inputs. steps: the most
 * often that a partial result is rounded. */
void data_check_reduced(enum dtype dtype, enum reduce reduce, uint32_t input_count, const void *const *inputs,
                        uint32_t steps, uint64_t count, const void *output);

#endif
