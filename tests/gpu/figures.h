#ifndef TESTS_GPU_FIGURES_H
#define TESTS_GPU_FIGURES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * What the measuring programs share: the time, waiting for a word of memory, and how they print figures. A
 * figure is a line "figure<TAB>name<TAB>value<TAB>unit", which bench_gpu.py reads.
 */

double figures_now_s(void);

/* Polls until *word has reached the value. Returns false if that takes longer than timeout_s. */
bool figures_wait(const _Atomic uint64_t *word, uint64_t value, double timeout_s);

void figures_print(double value, const char *unit, const char *name, ...)
    __attribute__((format(printf, 3, 4)));

/* Prints two figures in microseconds, name/median and name/p99. Sorts the times. */
void figures_print_times(double *seconds, size_t count, const char *name, ...)
    __attribute__((format(printf, 3, 4)));

/* Sorts the values, and returns their median. */
double figures_median(double *values, size_t count);

#endif
