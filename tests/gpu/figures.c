#include "tests/gpu/figures.h"

#include <sched.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define LOOKS_BEFORE_YIELD 20000u

double figures_now_s(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

bool figures_wait(const _Atomic uint64_t *word, uint64_t value, double timeout_s)
{
    double end_s = figures_now_s() + timeout_s;
    for (unsigned looks = 1; atomic_load_explicit(word, memory_order_acquire) < value; looks++) {
        if (looks % LOOKS_BEFORE_YIELD == 0) {
            sched_yield(); /* on few processors, the writer of the word may need this one */
        }
        if (looks % 64 == 0 && figures_now_s() > end_s) {
            return false;
        }
    }
    return true;
}

static int compare(const void *left, const void *right)
{
    double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

double figures_median(double *values, size_t count)
{
    qsort(values, count, sizeof *values, compare);
    return values[count / 2];
}

void figures_print(double value, const char *unit, const char *name, ...)
{
    char text[160];
    va_list arguments;
    va_start(arguments, name);
    (void)vsnprintf(text, sizeof text, name, arguments);
    va_end(arguments);
    printf("figure\t%s\t%.10g\t%s\n", text, value, unit);
}

void figures_print_times(double *seconds, size_t count, const char *name, ...)
{
    char text[160];
    va_list arguments;
    va_start(arguments, name);
    (void)vsnprintf(text, sizeof text, name, arguments);
    va_end(arguments);
    figures_print(1e6 * figures_median(seconds, count), "us", "%s/median", text);
    figures_print(1e6 * seconds[count - 1 - count / 100], "us", "%s/p99", text);
}
