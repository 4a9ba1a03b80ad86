#ifndef CLIENT_COMMCTL_BENCH_TIMES_H
#define CLIENT_COMMCTL_BENCH_TIMES_H

#include <stdint.h>

/*
 * The times of one measurement of `commctl bench`. Any number of iterations fits: once BENCH_TIMES_MAX times
 * are kept, every second one is dropped, and from then on half as many are kept. No allocation; one thread at
 * a time.
 */

#define BENCH_TIMES_MAX 65536           /* even; the median is that of the times that are kept */
#define BENCH_ITERATIONS_MAX 1000000000 /* of one size; an hour, the longest time, has fewer */

struct bench_times {
    double values_s[BENCH_TIMES_MAX];
    uint32_t kept;
    uint32_t count;               /* all that were added */
    uint32_t stride;              /* one time of so many is kept */
    double shortest_s, longest_s; /* of all that were added */
};

void bench_times_clear(struct bench_times *times);
void bench_times_add(struct bench_times *times, double time_s);

/* Returns the median of the times that are kept, and sorts them: add no more times then. At least one was
 * added. */
double bench_times_median_s(struct bench_times *times);

/*
 * Returns how many iterations to make before the ranks next agree on the time, or 0 at the end. done:
 * iterations so far, which took elapsed_s. At least 3 are made, however long they take. A batch at most
 * doubles `done`, so that the first, slow or lucky iterations cannot decide how long the measurement lasts.
 * All ranks pass the same values.
 */
uint32_t bench_times_next_batch(uint32_t done, double elapsed_s, double wanted_s);

#endif
