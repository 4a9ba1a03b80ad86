#ifndef DAEMON_COMM_OP_COUNTS_H
#define DAEMON_COMM_OP_COUNTS_H

#include <stdint.h>

#include "daemon/base/histogram.h"
#include "proto/op_bounds.h"
#include "proto/status.h"
#include "proto/types.h"

/*
 * How operations and messages of this node ended, for metrics: by kind, size class and result. Fixed arrays,
 * written and read by the main thread alone.
 */
#define OP_COUNTS_BANDWIDTHS 12

/* Bounds of the histogram of bandwidths, in bytes per second. */
extern const uint64_t op_counts_bandwidths[OP_COUNTS_BANDWIDTHS];

struct op_counts_cell {
    uint64_t results[STATUS_COUNT];
    uint64_t bytes; /* of those that succeeded */
    /* Of those that succeeded: */
    struct histogram latency_ns;
    struct histogram bandwidth; /* bytes per second */
};

/* All zero at first. */
struct op_counts {
    struct op_counts_cell cells[OP_KIND_COUNT][OP_BOUNDS_CLASSES];
};

struct op_end {
    enum op_kind kind;
    enum status result;
    uint64_t size_bytes;
    uint64_t latency_ns; /* from the first local rank's call */
    uint64_t run_ns;     /* from the time when all local ranks had called; 0: it never ran */
};

/* Takes constant time. */
void op_counts_add(struct op_counts *counts, const struct op_end *end);

#endif
