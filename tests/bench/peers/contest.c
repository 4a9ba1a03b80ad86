#include "contest.h"

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static const char *const kind_names[CONTEST_KINDS] = {
    [CONTEST_ALL_REDUCE] = "all_reduce",         [CONTEST_ALL_GATHER] = "all_gather",
    [CONTEST_REDUCE_SCATTER] = "reduce_scatter", [CONTEST_BROADCAST] = "broadcast",
    [CONTEST_ALL_TO_ALL] = "all_to_all",         [CONTEST_ALL_TO_ALL_V] = "all_to_all_v",
    [CONTEST_SEND_RECV] = "send_recv",           [CONTEST_BARRIER] = "barrier",
};

static double computing_cpu_s; /* what contest_compute has taken so far */

static double clock_s(clockid_t clock)
{
    struct timespec now;
    clock_gettime(clock, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

double contest_now_s(void)
{
    return clock_s(CLOCK_MONOTONIC);
}

double contest_cpu_s(void)
{
    return clock_s(CLOCK_PROCESS_CPUTIME_ID) - computing_cpu_s + contestant_service_cpu_s();
}

/* Computes until that clock has gone on by duration_us. */
static void compute_by(clockid_t clock, double duration_us)
{
    if (!(duration_us > 0)) {
        return;
    }
    double began_cpu_s = clock_s(CLOCK_THREAD_CPUTIME_ID);
    static volatile float sink;
    static float block[4096];
    double until_s = clock_s(clock) + duration_us * 1e-6;
    while (clock_s(clock) < until_s) {
        float sum = sink;
        for (size_t i = 0; i < sizeof block / sizeof block[0]; i++) {
            block[i] = block[i] * 0.5f + (float)i;
            sum += block[i];
        }
        sink = sum * 1e-9f;
    }
    computing_cpu_s += clock_s(CLOCK_THREAD_CPUTIME_ID) - began_cpu_s;
}

void contest_compute(double duration_us)
{
    compute_by(CLOCK_MONOTONIC, duration_us);
}

void contest_work(double duration_us)
{
    compute_by(CLOCK_THREAD_CPUTIME_ID, duration_us);
}

const char *contest_kind_name(enum contest_kind kind)
{
    return kind_names[kind];
}

enum contest_kind contest_kind_find(const char *name, size_t length)
{
    int kind = 0;
    while (kind < CONTEST_KINDS &&
           (strlen(kind_names[kind]) != length || memcmp(kind_names[kind], name, length) != 0)) {
        kind++;
    }
    return (enum contest_kind)kind;
}

float contest_value(size_t index, int rank)
{
    return (float)((index * 7 + (size_t)rank * 3) % 13);
}

/* ---- results ---- */

static float sum_of_ranks(const struct contest *contest, size_t index)
{
    float sum = 0;
    for (int rank = 0; rank < contest->size; rank++) {
        sum += contest_value(index, rank);
    }
    return sum;
}

static float expected(const struct contest *contest, const struct contest_call *call, size_t index)
{
    size_t each = call->count / (size_t)contest->size;
    size_t from = each > 0 ? index / each : 0, within = each > 0 ? index % each : 0;
    switch (call->kind) {
    case CONTEST_ALL_REDUCE:
        return sum_of_ranks(contest, index);
    case CONTEST_ALL_GATHER:
        return contest_value(within, (int)from);
    case CONTEST_REDUCE_SCATTER:
        return sum_of_ranks(contest, (size_t)contest->rank * each + index);
    case CONTEST_BROADCAST:
        return contest_value(index, 0);
    case CONTEST_ALL_TO_ALL:
        return contest_value((size_t)contest->rank * each + within, (int)from);
    case CONTEST_SEND_RECV:
        return contest_value(index, (contest->rank + contest->size - 1) % contest->size);
    case CONTEST_ALL_TO_ALL_V:
    case CONTEST_BARRIER:
    case CONTEST_KINDS:
        break;
    }
    return 0;
}

/* Where a rank's block for this rank begins in its input: behind those for the ranks before this one. If all
 * ranks send alike, these are as long as this rank's own; on the way back, as long as this rank's block. */
static size_t count_wrong_v(const struct contest *contest, const struct contest_call *call)
{
    size_t wrong = 0, at = 0, before = 0;
    for (int to = 0; to < contest->rank; to++) {
        before += call->send_counts[to];
    }
    for (int from = 0; from < contest->size; from++) {
        size_t count = call->receive_counts[from];
        size_t begin = call->goes_back ? (size_t)contest->rank * count : before;
        for (size_t i = 0; i < count; i++) {
            wrong += call->receive[at++] != contest_value(begin + i, from);
        }
    }
    return wrong;
}

size_t contest_count_wrong(const struct contest *contest, const struct contest_call *call)
{
    size_t size = (size_t)contest->size, each = call->count / size, wrong = 0, count = call->count;
    if (call->kind == CONTEST_ALL_TO_ALL_V) {
        return count_wrong_v(contest, call);
    }
    if (call->kind == CONTEST_ALL_GATHER || call->kind == CONTEST_ALL_TO_ALL) {
        count = each * size;
    } else if (call->kind == CONTEST_REDUCE_SCATTER) {
        count = each;
    } else if (call->kind == CONTEST_BARRIER) {
        count = 0;
    }
    for (size_t i = 0; i < count; i++) {
        wrong += call->receive[i] != expected(contest, call, i);
    }
    return wrong;
}

static int compare_values(const void *left, const void *right)
{
    double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

double contest_median(double *values, int count)
{
    qsort(values, (size_t)count, sizeof *values, compare_values);
    return values[count / 2];
}

double contest_mean(const double *values, int count)
{
    double sum = 0;
    for (int i = 0; i < count; i++) {
        sum += values[i];
    }
    return sum / count;
}

/* ---- options ---- */

static const char usage_text[] =
    "usage: %s [--operations NAME,...] [--min-bytes N] [--max-bytes N] [--step-factor N]\n"
    "        [--seconds-per-size S | --iterations N] [--compute-us US | --overlap] [--no-check]\n"
    "        [--plain]\n"
    "        [--trace FILE [--scale X] [--steps N]] [--describe FILE [--scale X] [--ranks N]]\n";

enum option_letter {
    OPTION_OPERATIONS = 'o',
    OPTION_MIN = 'a',
    OPTION_MAX = 'b',
    OPTION_STEP = 'f',
    OPTION_SECONDS = 's',
    OPTION_ITERATIONS = 'i',
    OPTION_COMPUTE = 'c',
    OPTION_OVERLAP = 'v',
    OPTION_NO_CHECK = 'n',
    OPTION_PLAIN = 'p',
    OPTION_TRACE = 't',
    OPTION_SCALE = 'x',
    OPTION_STEPS = 'r',
    OPTION_DESCRIBE = 'd',
    OPTION_RANKS = 'k',
};

static const struct option long_options[] = {
    {"operations", required_argument, NULL, OPTION_OPERATIONS},
    {"min-bytes", required_argument, NULL, OPTION_MIN},
    {"max-bytes", required_argument, NULL, OPTION_MAX},
    {"step-factor", required_argument, NULL, OPTION_STEP},
    {"seconds-per-size", required_argument, NULL, OPTION_SECONDS},
    {"iterations", required_argument, NULL, OPTION_ITERATIONS},
    {"compute-us", required_argument, NULL, OPTION_COMPUTE},
    {"overlap", no_argument, NULL, OPTION_OVERLAP},
    {"no-check", no_argument, NULL, OPTION_NO_CHECK},
    {"plain", no_argument, NULL, OPTION_PLAIN},
    {"trace", required_argument, NULL, OPTION_TRACE},
    {"scale", required_argument, NULL, OPTION_SCALE},
    {"steps", required_argument, NULL, OPTION_STEPS},
    {"describe", required_argument, NULL, OPTION_DESCRIBE},
    {"ranks", required_argument, NULL, OPTION_RANKS},
    {0},
};

struct invocation {
    struct contest_options options;
    const char *describe;
    int ranks;
};

static void take_option(struct invocation *invocation, int letter, const char *text)
{
    struct contest_options *options = &invocation->options;
    switch (letter) {
    case OPTION_OPERATIONS:
        options->operations = text;
        break;
    case OPTION_MIN:
        options->min_bytes = strtoull(text, NULL, 0);
        break;
    case OPTION_MAX:
        options->max_bytes = strtoull(text, NULL, 0);
        break;
    case OPTION_STEP:
        options->step_factor = strtoull(text, NULL, 0);
        break;
    case OPTION_SECONDS:
        options->seconds_per_size = strtod(text, NULL);
        break;
    case OPTION_ITERATIONS:
        options->iterations = (int)strtol(text, NULL, 0);
        break;
    case OPTION_COMPUTE:
        options->compute_us = strtod(text, NULL);
        break;
    case OPTION_OVERLAP:
        options->overlap = true;
        break;
    case OPTION_NO_CHECK:
        options->check = false;
        break;
    case OPTION_PLAIN:
        options->plain = true;
        break;
    case OPTION_TRACE:
        options->trace = text;
        break;
    case OPTION_SCALE:
        options->trace_scale = strtod(text, NULL);
        break;
    case OPTION_STEPS:
        options->trace_steps = (int)strtol(text, NULL, 0);
        break;
    case OPTION_DESCRIBE:
        invocation->describe = text;
        break;
    case OPTION_RANKS:
        invocation->ranks = (int)strtol(text, NULL, 0);
        break;
    default:
        break;
    }
}

static bool parse(int argc, char **argv, struct invocation *invocation)
{
    const struct contest_options *options = &invocation->options;
    bool known = true;
    for (int letter; (letter = getopt_long(argc, argv, "", long_options, NULL)) != -1;) {
        known = known && letter != '?';
        take_option(invocation, letter, optarg);
    }
    for (const char *name = options->operations; known && *name != '\0';) {
        size_t length = strcspn(name, ",");
        enum contest_kind kind = contest_kind_find(name, length);
        known = kind != CONTEST_KINDS && kind != CONTEST_ALL_TO_ALL_V; /* it needs the weights of a trace */
        name += length + (name[length] == ',');
    }
    if (!known || optind != argc || options->min_bytes == 0 || options->max_bytes < options->min_bytes ||
        options->step_factor < 2 || options->trace_steps < 1 || !(options->trace_scale > 0) ||
        invocation->ranks < 1 || invocation->ranks > CONTEST_RANKS_MAX) {
        fprintf(stderr, usage_text, argv[0]);
        return false;
    }
    return true;
}

int main(int argc, char **argv)
{
    struct contest contest = {0};
    struct invocation invocation = {.options = {.operations = "all_reduce",
                                                .min_bytes = 8,
                                                .max_bytes = 1 << 20,
                                                .step_factor = 2,
                                                .seconds_per_size = 0.02,
                                                .check = true,
                                                .trace_scale = 1,
                                                .trace_steps = 3},
                                    .ranks = 2};
    /* An MPI may have arguments of its own, which it takes out. Without a launcher, --describe must work. */
    if (!parse(argc, argv, &invocation)) {
        return 2;
    }
    if (invocation.describe != NULL) {
        return contest_describe(invocation.describe, invocation.ranks, invocation.options.trace_scale);
    }
    contest.options = invocation.options;
    contestant_begin(&argc, &argv, &contest.rank, &contest.size);
    int code = contest.size > CONTEST_RANKS_MAX ? 2
               : contest.options.trace != NULL  ? contest_replay(&contest)
                                                : contest_sweep(&contest);
    contestant_end();
    return code;
}
