#ifndef TESTS_LIB_ELEMENTS_H
#define TESTS_LIB_ELEMENTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/types.h"

/*
 * Elements of every type, and what their reductions must be. An element consists of parts: 2 for complex
 * types, else 1. For little-endian machines only, because the data is little-endian.
 */
size_t element_parts(enum dtype dtype);
size_t element_part_bytes(enum dtype dtype);

/* For floating-point types: the bits of the fraction and of the exponent. Both are 0 for other types. */
struct element_layout {
    unsigned fraction;
    unsigned exponent;
};
struct element_layout element_layout(enum dtype dtype);
/* Whether the type is floating-point; complex types are, too. */
bool element_is_real(enum dtype dtype);
/* For a floating-point type: half the distance between 1 and the next larger number. */
double element_unit_roundoff(enum dtype dtype);

/* Returns one part of an array of floating-point elements. */
double element_real(enum dtype dtype, const void *array, size_t part);
void element_put_real(enum dtype dtype, void *array, size_t part, double value);

/* Whether these bits of one part are NaN; false for types that are not floating-point. */
bool element_is_nan(enum dtype dtype, uint64_t bits);
/* Whether in every part both have the same bits, or both are NaN. */
bool element_is_same(enum dtype dtype, const void *got, const void *expected);

bool element_is_signed(enum dtype dtype);
/* Returns an integer or a truth value, extended to 64 bits as its type says. */
uint64_t element_integer(enum dtype dtype, const void *array, size_t index);
/* Returns the reduction of such elements at one index, extended in the same way. If `divisor` is more than
 * 1, the result is divided by it at the end. */
uint64_t element_reduce_integers(enum dtype dtype, enum reduce reduce, uint32_t input_count,
                                 const void *const *inputs, size_t index, uint64_t divisor);

#endif
