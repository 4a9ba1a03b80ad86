#ifndef TESTS_BENCH_TIMING_H
#define TESTS_BENCH_TIMING_H

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include <commclient.h>

/* What the small measuring programs of the library share. */

static inline double now_us(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e6 + (double)now.tv_nsec * 1e-3;
}

static inline int compare_doubles(const void *left, const void *right)
{
    double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

static inline void sort_doubles(double *values, size_t count)
{
    qsort(values, count, sizeof values[0], compare_doubles);
}

/* Ends the program if the call failed. */
static inline void must(comm_result_t result, const char *what)
{
    if (result != COMM_OK) {
        fprintf(stderr, "%s: %s: %s\n", program_invocation_short_name, what, comm_last_error());
        exit(1);
    }
}

#endif
