#ifndef DAEMON_BASE_CHECKED_H
#define DAEMON_BASE_CHECKED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/status.h"

/*
 * Checked arithmetic for sizes that come from outside. Returns false on overflow; *out must not be used then.
 */

COMM_MUST_USE static inline bool checked_add_size(size_t a, size_t b, size_t *out)
{
    return !__builtin_add_overflow(a, b, out);
}

COMM_MUST_USE static inline bool checked_add_u64(uint64_t a, uint64_t b, uint64_t *out)
{
    return !__builtin_add_overflow(a, b, out);
}

COMM_MUST_USE static inline bool checked_mul_u64(uint64_t a, uint64_t b, uint64_t *out)
{
    return !__builtin_mul_overflow(a, b, out);
}

/* Whether [offset, offset + size) lies within [0, limit). An empty range at the limit does. */
COMM_MUST_USE static inline bool checked_range(uint64_t offset, uint64_t size, uint64_t limit)
{
    return offset <= limit && size <= limit - offset;
}

#endif
