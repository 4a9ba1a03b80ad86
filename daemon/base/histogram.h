#ifndef DAEMON_BASE_HISTOGRAM_H
#define DAEMON_BASE_HISTOGRAM_H

#include <stddef.h>
#include <stdint.h>

/*
 * Counts of values by size, for metrics. Bucket i has the values that are at most bounds[i] and above
 * bounds[i - 1]. The last bucket, HISTOGRAM_BUCKETS_MAX, has those above every bound. All zero is empty. One
 * thread; it allocates nothing.
 */
#define HISTOGRAM_BUCKETS_MAX 16

struct histogram {
    uint64_t counts[HISTOGRAM_BUCKETS_MAX + 1];
    uint64_t sum; /* wraps round at 2^64 */
};

/* bounds: ascending, at most HISTOGRAM_BUCKETS_MAX; of every call for one histogram the same. */
static inline void histogram_add(struct histogram *histogram, const uint64_t *bounds, size_t bound_count,
                                 uint64_t value)
{
    size_t bucket = 0;
    while (bucket < bound_count && value > bounds[bucket]) {
        bucket++;
    }
    histogram->counts[bucket < bound_count ? bucket : HISTOGRAM_BUCKETS_MAX]++;
    histogram->sum += value;
}

/* The number of all values. */
static inline uint64_t histogram_count(const struct histogram *histogram)
{
    uint64_t count = 0;
    for (size_t i = 0; i <= HISTOGRAM_BUCKETS_MAX; i++) {
        count += histogram->counts[i];
    }
    return count;
}

#endif
