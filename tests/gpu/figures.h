#ifndef TESTS_GPU_FIGURES_H
#define TESTS_GPU_FIGURES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * What the programs that measure have in common: time, waiting for a word of memory, and how figures are
 * printed: a line "figure<TAB>name<TAB>value<TAB>unit" each, which bench_gpu.py reads.
 */

double figures_now_s(void);

/* Until *word has reached the value; false when that takes longer. Looks all the time. */
bool figures_wait(const _Atomic uint64_t *word, uint64_t value, double timeout_s);

void figures_print(double value, const char *unit, const char *name, ...)
    __attribute__((format(printf, 3, 4)));

/* Two figures, name/median and name/p99, in microseconds. Sorts the times. */
void figures_print_times(double *seconds, size_t count, const char *name, ...)
    __attribute__((format(printf, 3, 4)));

/* Sorts. */
double figures_median(double *values, size_t count);

#endif
