#include "daemon/comm/op_counts.h"

#include "daemon/base/time.h"

_Static_assert(OP_COUNTS_LATENCIES <= HISTOGRAM_BUCKETS_MAX && OP_COUNTS_BANDWIDTHS <= HISTOGRAM_BUCKETS_MAX,
               "every bound has a bucket");

const uint64_t op_counts_class_bytes[OP_COUNTS_CLASSES] = {4096, 65536, 1048576, 16777216, UINT64_MAX};

const uint64_t op_counts_latencies_ns[OP_COUNTS_LATENCIES] = {
    1 * TIME_US, 3 * TIME_US, 10 * TIME_US, 30 * TIME_US, 100 * TIME_US, 300 * TIME_US,
    1 * TIME_MS, 3 * TIME_MS, 10 * TIME_MS, 30 * TIME_MS, 100 * TIME_MS, 300 * TIME_MS,
    1 * TIME_S,  3 * TIME_S,  10 * TIME_S,  30 * TIME_S};

const uint64_t op_counts_bandwidths[OP_COUNTS_BANDWIDTHS] = {
    1000000,    3000000,    10000000,    30000000,    100000000,    300000000,
    1000000000, 3000000000, 10000000000, 30000000000, 100000000000, 300000000000};

static unsigned class_of(uint64_t size_bytes)
{
    unsigned class = 0;
    while (size_bytes > op_counts_class_bytes[class]) {
        class ++;
    }
    return class;
}

static uint64_t bandwidth_of(uint64_t size_bytes, uint64_t run_ns)
{
    double bandwidth = (double)size_bytes * (double)TIME_S / (double)run_ns;
    return bandwidth < (double)(UINT64_MAX / 2) ? (uint64_t)bandwidth : UINT64_MAX / 2;
}

void op_counts_add(struct op_counts *counts, const struct op_end *end)
{
    struct op_counts_cell *cell = &counts->cells[end->kind][class_of(end->size_bytes)];
    cell->results[(unsigned)end->result < STATUS_COUNT ? end->result : STATUS_INTERNAL]++;
    if (end->result != STATUS_OK) {
        return;
    }
    cell->bytes += end->size_bytes;
    histogram_add(&cell->latency_ns, op_counts_latencies_ns, OP_COUNTS_LATENCIES, end->latency_ns);
    if (end->size_bytes > 0 && end->run_ns > 0) {
        histogram_add(&cell->bandwidth, op_counts_bandwidths, OP_COUNTS_BANDWIDTHS,
                      bandwidth_of(end->size_bytes, end->run_ns));
    }
}
