#ifndef DAEMON_HOST_REDUCE_LEVEL_H
#define DAEMON_HOST_REDUCE_LEVEL_H

#include <stddef.h>

#include "proto/types.h"

/*
 * The kernels of one vector width. During a reduction, values are held in a wide type: f32 for the short
 * floating-point types, otherwise the stored type itself. Complex numbers are held as pairs; load and store
 * are then null, and count is in real numbers. All pointers may be unaligned; out may equal a or b.
 */
typedef void reduce_pair_function(void *out, const void *a, const void *b, size_t count);

struct reduce_kernels {
    void (*load)(void *wide, const void *stored, size_t count);
    void (*store)(void *stored, const void *wide, size_t count);
    void (*scale)(void *wide, size_t count, double factor);
    void (*divide)(void *wide, size_t count, uint64_t divisor);
    reduce_pair_function *pair[REDUCE_COUNT]; /* null where the operator has no meaning */
};

extern const struct reduce_kernels reduce_kernels_portable[DTYPE_COUNT];
extern const struct reduce_kernels reduce_kernels_avx2[DTYPE_COUNT];
extern const struct reduce_kernels reduce_kernels_avx512[DTYPE_COUNT];

#endif
