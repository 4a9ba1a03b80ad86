#include <stddef.h>
#include <stdlib.h>

#include "client/commctl/bench_times.h"

#define BATCH_FIRST 3

void bench_times_clear(struct bench_times *times)
{
    times->kept = 0;
    times->count = 0;
    times->stride = 1;
    times->shortest_s = 0;
    times->longest_s = 0;
}

/* Makes room: keeps every second time, so those kept are still spread evenly. */
static void thin_out(struct bench_times *times)
{
    for (size_t i = 0; 2 * i < times->kept; i++) {
        times->values_s[i] = times->values_s[2 * i];
    }
    times->kept = (times->kept + 1) / 2;
    times->stride *= 2;
}

void bench_times_add(struct bench_times *times, double time_s)
{
    times->shortest_s = times->count == 0 || time_s < times->shortest_s ? time_s : times->shortest_s;
    times->longest_s = time_s > times->longest_s ? time_s : times->longest_s;
    if (times->count % times->stride == 0) {
        if (times->kept == BENCH_TIMES_MAX) {
            thin_out(times);
        }
        /* BENCH_TIMES_MAX is even, so the count is a multiple of the new stride, too. */
        times->values_s[times->kept++] = time_s;
    }
    times->count++;
}

static int compare_times(const void *left, const void *right)
{
    double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

double bench_times_median_s(struct bench_times *times)
{
    qsort(times->values_s, times->kept, sizeof times->values_s[0], compare_times);
    return times->values_s[times->kept / 2];
}

uint32_t bench_times_next_batch(uint32_t done, double elapsed_s, double wanted_s)
{
    if (done < BATCH_FIRST) {
        return BATCH_FIRST - done;
    }
    if (elapsed_s >= wanted_s || done >= BENCH_ITERATIONS_MAX) {
        return 0;
    }
    uint32_t most = done < BENCH_ITERATIONS_MAX - done ? done : BENCH_ITERATIONS_MAX - done;
    double fitting = (wanted_s - elapsed_s) * done / (elapsed_s > 1e-9 ? elapsed_s : 1e-9);
    return fitting >= most ? most : fitting < 1 ? 1 : (uint32_t)fitting;
}
