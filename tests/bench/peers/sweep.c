#include "contest.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/*
 * One operation after the other, at growing sizes. With two ways to call, both are measured, and printed as
 * lines of their own.
 *
 * The result is a median over a rank's iterations; the largest of all ranks counts. Some calls return before
 * the others take part, until a library holds enough of them: most of them take no time, and few take long.
 * So many iterations are cut into groups, and it is the median of the groups' means.
 *
 * With --overlap, a rank starts each operation, computes for as long as the operation takes alone, and waits
 * for its end. The result is what this takes longer than the computing: 0 if all of the operation is hidden.
 */

#define WARM_UPS 3
#define ITERATIONS_MAX 20000
#define GROUP_ITERATIONS 64 /* four times the most calls that commd lets a rank be ahead */
#define GROUPS_MIN 5        /* otherwise each iteration counts alone */
#define ALONE_ITERATIONS 15 /* that tell how long an operation takes without computing beside it */
#define EXPOSED_MIN_S 1e-7  /* all of the operation was hidden */

enum way { WAY_BLOCKING, WAY_STARTING };
static const char *const way_names[] = {"blocking", "nonblocking"};

struct sweep {
    const struct contest *contest;
    float *send, *receive;
    double *times_s; /* ITERATIONS_MAX */
    bool is_wrong;
};

static double run_once(const struct sweep *sweep, const struct contest_call *call, enum way way)
{
    contest_compute(sweep->contest->options.compute_us);
    double began_s = contest_now_s();
    if (way == WAY_BLOCKING) {
        contestant_run(call);
    } else {
        contestant_start(call, 0);
        contestant_finish(0);
    }
    return contest_now_s() - began_s;
}

static double run_beside_work(const struct contest_call *call, double work_s)
{
    double began_s = contest_now_s();
    contestant_start(call, 0);
    contest_work(work_s * 1e6);
    contestant_finish(0);
    double exposed_s = contest_now_s() - began_s - work_s;
    return exposed_s > EXPOSED_MIN_S ? exposed_s : EXPOSED_MIN_S;
}

/* Returns how long the operation takes without computing beside it. */
static double time_alone(const struct sweep *sweep, const struct contest_call *call, enum way way)
{
    for (int i = 0; i < ALONE_ITERATIONS; i++) {
        sweep->times_s[i] = run_once(sweep, call, way);
    }
    return contest_median(sweep->times_s, ALONE_ITERATIONS);
}

static int iterations_of(const struct sweep *sweep, double once_s)
{
    const struct contest_options *options = &sweep->contest->options;
    double each_s = options->overlap ? 2 * once_s : once_s + options->compute_us * 1e-6;
    double wanted = options->seconds_per_size / (each_s > 1e-7 ? each_s : 1e-7);
    int iterations = options->iterations != 0 ? options->iterations : wanted < 3 ? 3 : (int)wanted;
    return iterations < ITERATIONS_MAX ? iterations : ITERATIONS_MAX;
}

/* Poisons the output first: a buffer that nobody wrote to must not look right. */
static size_t warm_up(const struct sweep *sweep, const struct contest_call *call, enum way way,
                      double *once_s)
{
    const struct contest *contest = sweep->contest;
    size_t wrong = 0;
    for (size_t i = 0; i < call->count; i++) {
        call->receive[i] = call->kind == CONTEST_BROADCAST && contest->rank == 0 ? contest_value(i, 0) : -1;
    }
    for (int i = 0; i < WARM_UPS; i++) {
        *once_s = run_once(sweep, call, way);
        if (i == 0 && contest->options.check) {
            wrong = contest_count_wrong(contest, call);
        }
    }
    return wrong;
}

/* The median of the means of groups. Changes times_s. */
static double grouped_median(double *times_s, int iterations)
{
    int groups = iterations / GROUP_ITERATIONS;
    if (groups < GROUPS_MIN) {
        return contest_median(times_s, iterations);
    }
    for (int i = 0; i < groups; i++) {
        times_s[i] = contest_mean(times_s + (ptrdiff_t)i * GROUP_ITERATIONS, GROUP_ITERATIONS);
    }
    return contest_median(times_s, groups);
}

static void measure(struct sweep *sweep, const struct contest_call *call, enum way way)
{
    const struct contest *contest = sweep->contest;
    double once_s;
    size_t wrong = warm_up(sweep, call, way, &once_s);
    bool overlaps = contest->options.overlap;
    once_s = contestant_largest(overlaps ? time_alone(sweep, call, way) : once_s);
    int iterations = iterations_of(sweep, once_s);
    double began_cpu_s = contest_cpu_s();
    for (int i = 0; i < iterations; i++) {
        sweep->times_s[i] = overlaps ? run_beside_work(call, once_s) : run_once(sweep, call, way);
    }
    double cpu_s = contestant_sum(contest_cpu_s() - began_cpu_s) / iterations;
    double mean_s = contestant_largest(contest_mean(sweep->times_s, iterations));
    double median_s = contestant_largest(grouped_median(sweep->times_s, iterations));
    double all_wrong = contestant_sum((double)wrong);
    sweep->is_wrong = sweep->is_wrong || all_wrong > 0;
    if (contest->rank == 0) {
        printf("{\"operation\": \"%s\", \"size_bytes\": %zu, \"way\": \"%s\", \"compute_us\": %.0f, "
               "\"time_us\": %.3f, \"mean_us\": %.3f, \"cpu_us\": %.3f, \"iterations\": %d, "
               "\"wrong\": %.0f}\n",
               contest_kind_name(call->kind), call->count * sizeof(float), way_names[way],
               contest->options.compute_us, median_s * 1e6, mean_s * 1e6, cpu_s * 1e6, iterations, all_wrong);
        fflush(stdout);
    }
}

static void measure_size(struct sweep *sweep, enum contest_kind kind, size_t size_bytes)
{
    size_t size = (size_t)sweep->contest->size, count = size_bytes / sizeof(float);
    size_t step =
        kind == CONTEST_ALL_REDUCE || kind == CONTEST_BROADCAST || kind == CONTEST_SEND_RECV ? 1 : size;
    struct contest_call call = {
        .kind = kind, .send = sweep->send, .receive = sweep->receive, .count = count / step * step};
    if (call.count == 0 && kind != CONTEST_BARRIER) {
        return; /* less than one element for each rank */
    }
    bool overlaps = sweep->contest->options.overlap;
    enum way last = contestant_has_two_ways() || overlaps ? WAY_STARTING : WAY_BLOCKING;
    for (int way = overlaps ? WAY_STARTING : WAY_BLOCKING; way <= (int)last; way++) {
        measure(sweep, &call, (enum way)way);
    }
}

int contest_sweep(const struct contest *contest)
{
    const struct contest_options *options = &contest->options;
    size_t count = options->max_bytes / sizeof(float) + (size_t)contest->size;
    struct sweep sweep = {.contest = contest,
                          .send = contestant_memory(count, options->plain),
                          .receive = contestant_memory(count, options->plain),
                          .times_s = calloc(ITERATIONS_MAX, sizeof(double))};
    for (size_t i = 0; i < count; i++) {
        sweep.send[i] = contest_value(i, contest->rank);
        sweep.receive[i] = -1;
    }
    for (const char *name = options->operations; *name != '\0' && sweep.times_s != NULL;) {
        size_t length = strcspn(name, ",");
        enum contest_kind kind = contest_kind_find(name, length);
        name += length + (name[length] == ',');
        if (!contestant_can(kind)) {
            continue;
        }
        if (kind == CONTEST_BARRIER) {
            measure_size(&sweep, kind, 0);
            continue;
        }
        for (size_t bytes = options->min_bytes; bytes <= options->max_bytes; bytes *= options->step_factor) {
            measure_size(&sweep, kind, bytes);
        }
    }
    free(sweep.times_s);
    return sweep.is_wrong ? 1 : 0;
}
