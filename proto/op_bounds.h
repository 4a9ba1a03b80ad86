#ifndef PROTO_OP_BOUNDS_H
#define PROTO_OP_BOUNDS_H

#include <stdint.h>

/* Into which classes of size, and of duration, operations are counted: by commd and, in cells, by ranks. */
#define OP_BOUNDS_CLASSES 5
#define OP_BOUNDS_LATENCIES 16

/* The largest size of each class, in bytes; the last class has no largest size: UINT64_MAX. */
extern const uint64_t op_bounds_class_bytes[OP_BOUNDS_CLASSES];
/* Bounds of durations, in nanoseconds, ascending. */
extern const uint64_t op_bounds_latencies_ns[OP_BOUNDS_LATENCIES];

/* The class of an operation of this size. */
static inline unsigned op_bounds_class(uint64_t size_bytes)
{
    unsigned class = 0;
    while (size_bytes > op_bounds_class_bytes[class]) {
        class ++;
    }
    return class;
}

/* The first bound that is not below the duration; OP_BOUNDS_LATENCIES: none. */
static inline unsigned op_bounds_latency(uint64_t latency_ns)
{
    unsigned bound = 0;
    while (bound < OP_BOUNDS_LATENCIES && latency_ns > op_bounds_latencies_ns[bound]) {
        bound++;
    }
    return bound;
}

#endif
