#ifndef TESTS_BENCH_PEERS_SWEEP_H
#define TESTS_BENCH_PEERS_SWEEP_H

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/*
 * What the peers' programs share with each other and with `commctl bench`: which sizes, how many iterations,
 * what is printed. They run one operation after the other, and wait for each. The result is the median over a
 * rank's iterations; the largest of all ranks counts.
 *
 * usage: PROGRAM OPERATION[,OPERATION...] MIN_BYTES MAX_BYTES STEP_FACTOR SECONDS_PER_SIZE
 */
struct sweep {
    const char *operations;
    size_t min_bytes;
    size_t max_bytes;
    size_t step_factor;
    double seconds_per_size;
};

#define SWEEP_ITERATIONS_MAX 20000

static inline double sweep_now_s(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static inline int sweep_parse(struct sweep *sweep, int argc, char **argv)
{
    if (argc < 6) {
        fprintf(stderr, "usage: %s OPERATIONS MIN_BYTES MAX_BYTES STEP_FACTOR SECONDS_PER_SIZE\n", argv[0]);
        return 2;
    }
    sweep->operations = argv[1];
    sweep->min_bytes = strtoull(argv[2], NULL, 0);
    sweep->max_bytes = strtoull(argv[3], NULL, 0);
    sweep->step_factor = strtoull(argv[4], NULL, 0);
    sweep->seconds_per_size = strtod(argv[5], NULL);
    return sweep->min_bytes == 0 || sweep->step_factor < 2;
}

/* Takes the next name of the list. Returns null at its end. */
static inline const char *sweep_next(const char **list, char *name, size_t size)
{
    size_t length = strcspn(*list, ",");
    if (length == 0) {
        return NULL;
    }
    snprintf(name, size, "%.*s", (int)length, *list);
    *list += length + ((*list)[length] == ',');
    return name;
}

static inline int sweep_iterations(const struct sweep *sweep, double once_s)
{
    double wanted = sweep->seconds_per_size / (once_s > 1e-7 ? once_s : 1e-7);
    return wanted < 3 ? 3 : wanted > SWEEP_ITERATIONS_MAX ? SWEEP_ITERATIONS_MAX : (int)wanted;
}

static inline int sweep_compare(const void *left, const void *right)
{
    double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

static inline double sweep_median(double *times_s, int count)
{
    qsort(times_s, (size_t)count, sizeof *times_s, sweep_compare);
    return times_s[count / 2];
}

static inline void sweep_print(const char *operation, size_t size_bytes, double time_s, int iterations,
                               size_t wrong)
{
    printf("{\"operation\": \"%s\", \"size_bytes\": %zu, \"time_us\": %.3f, \"iterations\": %d, \"wrong\": "
           "%zu}\n",
           operation, size_bytes, time_s * 1e6, iterations, wrong);
    fflush(stdout);
}

/* Small whole numbers: their sums are exact in every order of addition. */
static inline float sweep_value(size_t index, int rank)
{
    return (float)((index * 7 + (size_t)rank * 3) % 13);
}

static inline float sweep_sum(size_t index, int size)
{
    float sum = 0;
    for (int rank = 0; rank < size; rank++) {
        sum += sweep_value(index, rank);
    }
    return sum;
}

#endif
