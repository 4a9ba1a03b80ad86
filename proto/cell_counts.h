#ifndef PROTO_CELL_COUNTS_H
#define PROTO_CELL_COUNTS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/op_bounds.h"
#include "proto/types.h"

/*
 * What a rank has carried out through cells (proto/cells.h). The counts lie in the segment, in lines that no
 * other rank reads, so counting costs a rank a few stores into its own cache. commd reads them when somebody
 * asks, and does not trust them.
 */
#define CELL_COUNTS_TIMED_EVERY 61 /* of that many operations of a kind and class, the rank times one */

struct cell_count {
    _Atomic uint64_t ops; /* written after `bytes` */
    _Atomic uint64_t bytes;
    _Atomic uint64_t timed_ns;                       /* the sum of the operations that were timed, */
    _Atomic uint64_t timed[OP_BOUNDS_LATENCIES + 1]; /* and their number, by op_bounds_latencies_ns */
};

/* Of one rank. All zero at first. One writer. */
struct cell_counts {
    _Alignas(128) _Atomic uint64_t published; /* operations: in cells, and not handed to commd since */
    struct cell_count counts[OP_KIND_COUNT][OP_BOUNDS_CLASSES];
};

static inline void cell_counts_raise(_Atomic uint64_t *count, uint64_t by)
{
    uint64_t before = atomic_load_explicit(count, memory_order_relaxed);
    atomic_store_explicit(count, before + by, memory_order_relaxed);
}

static inline struct cell_count *cell_counts_of(struct cell_counts *counts, enum op_kind kind,
                                                uint64_t size_bytes)
{
    unsigned class = size_bytes <= op_bounds_class_bytes[0] ? 0 : op_bounds_class(size_bytes);
    return &counts->counts[kind][class];
}

/* Whether the next operation that is counted there, after so many that are open, is to be timed. */
static inline bool cell_counts_times_next(const struct cell_count *count, uint64_t open)
{
    uint64_t before = atomic_load_explicit(&count->ops, memory_order_relaxed) + open;
    return before % CELL_COUNTS_TIMED_EVERY == CELL_COUNTS_TIMED_EVERY / 2;
}

/* Counts an operation that ended well. */
static inline void cell_counts_add(struct cell_count *count, uint64_t size_bytes)
{
    cell_counts_raise(&count->bytes, size_bytes);
    uint64_t before = atomic_load_explicit(&count->ops, memory_order_relaxed);
    atomic_store_explicit(&count->ops, before + 1, memory_order_release);
}

static inline void cell_counts_time(struct cell_count *count, uint64_t latency_ns)
{
    cell_counts_raise(&count->timed_ns, latency_ns);
    cell_counts_raise(&count->timed[op_bounds_latency(latency_ns)], 1);
}

#endif
