#ifndef TESTS_LIB_ELEMENTS_H
#define TESTS_LIB_ELEMENTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/types.h"

/*
 * Elements of every type, and what their reductions must be. An element consists of parts: 2 where it is
 * complex, else 1. Little-endian machines only, as the data is.
 */
size_t element_parts(enum dtype dtype);
size_t element_part_bytes(enum dtype dtype);

/* Of a floating-point type: bits of the fraction and of the exponent; 0 of both where it is none. */
struct element_layout {
    unsigned fraction;
    unsigned exponent;
};
struct element_layout element_layout(enum dtype dtype);
/* Complex ones are, too. */
bool element_is_real(enum dtype dtype);
/* Of a floating-point type: half the distance between 1 and the next larger number. */
double element_unit_roundoff(enum dtype dtype);

/* A part of an array of floating-point elements. */
double element_real(enum dtype dtype, const void *array, size_t part);
void element_put_real(enum dtype dtype, void *array, size_t part, double value);

/* The same bits, or both NaN, in every part. */
bool element_is_same(enum dtype dtype, const void *got, const void *expected);

bool element_is_signed(enum dtype dtype);
/* An integer or a truth value, extended to 64 bits as its type says. */
uint64_t element_integer(enum dtype dtype, const void *array, size_t index);
/* The reduction of such elements at one index, extended likewise; divided at the end by divisor, where that
 * is more than 1. */
uint64_t element_reduce_integers(enum dtype dtype, enum reduce reduce, uint32_t input_count,
                                 const void *const *inputs, size_t index, uint64_t divisor);

#endif
