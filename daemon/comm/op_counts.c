#include "daemon/comm/op_counts.h"

#include "daemon/base/time.h"

_Static_assert(OP_BOUNDS_LATENCIES <= HISTOGRAM_BUCKETS_MAX && OP_COUNTS_BANDWIDTHS <= HISTOGRAM_BUCKETS_MAX,
               "every bound has a bucket");

const uint64_t op_counts_bandwidths[OP_COUNTS_BANDWIDTHS] = {
    1000000,    3000000,    10000000,    30000000,    100000000,    300000000,
    1000000000, 3000000000, 10000000000, 30000000000, 100000000000, 300000000000};

static uint64_t bandwidth_of(uint64_t size_bytes, uint64_t run_ns)
{
    double bandwidth = (double)size_bytes * (double)TIME_S / (double)run_ns;
    return bandwidth < (double)(UINT64_MAX / 2) ? (uint64_t)bandwidth : UINT64_MAX / 2;
}

void op_counts_add(struct op_counts *counts, const struct op_end *end)
{
    struct op_counts_cell *cell = &counts->cells[end->kind][op_bounds_class(end->size_bytes)];
    cell->results[(unsigned)end->result < STATUS_COUNT ? end->result : STATUS_INTERNAL]++;
    if (end->result != STATUS_OK) {
        return;
    }
    cell->bytes += end->size_bytes;
    histogram_add(&cell->latency_ns, op_bounds_latencies_ns, OP_BOUNDS_LATENCIES, end->latency_ns);
    if (end->size_bytes > 0 && end->run_ns > 0) {
        histogram_add(&cell->bandwidth, op_counts_bandwidths, OP_COUNTS_BANDWIDTHS,
                      bandwidth_of(end->size_bytes, end->run_ns));
    }
}
