/*
 * Measures what a trace point costs in nanoseconds of processor time, with recording off and on, in turn.
 * Each figure is the least of many batches, because other work on the machine can only add time.
 */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "daemon/base/trace.h"

enum { BATCHES = 2000, POINTS = 2000 };

static double now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (double)now.tv_sec * 1e9 + (double)now.tv_nsec;
}

/* The loop is the same with and without the point, and the compiler must keep it. */
static double batch_ns(bool has_point)
{
    double began_ns = now_ns();
    for (uint64_t i = 0; i < POINTS; i++) {
        __asm__ volatile("" : "+r"(i));
        if (has_point) {
            trace_round_sent(1, i, 2, 3, 4, i);
        }
    }
    return (now_ns() - began_ns) / POINTS;
}

static void least(double *of, double value)
{
    *of = value < *of ? value : *of;
}

int main(void)
{
    double loop_ns = 1e9, off_ns = 1e9, on_ns = 1e9;
    struct error error;
    for (int i = 0; i < BATCHES; i++) {
        least(&loop_ns, batch_ns(false));
        least(&off_ns, batch_ns(true));
        if (trace_begin(TRACE_AREA_OP, &error) != STATUS_OK) {
            fprintf(stderr, "bench_trace: %s\n", error.text);
            return EXIT_FAILURE;
        }
        least(&on_ns, batch_ns(true));
        if (trace_begin(0, &error) != STATUS_OK) {
            return EXIT_FAILURE;
        }
    }
    printf("a point of the trace: off %.2f ns, recorded %.1f ns\n", off_ns - loop_ns, on_ns - loop_ns);
    return EXIT_SUCCESS;
}
