#include "trace.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Replays a trace. The first time of each way is the warm-up, and checks all results. */

#define STEPS_MAX 1000

enum way { WAY_BLOCKING, WAY_STARTING };
static const char *const way_names[] = {"blocking", "nonblocking"};

struct replay {
    const struct contest *contest;
    struct trace trace;
    float *send, *receive;
    size_t (*own)[CONTEST_RANKS_MAX]; /* all_to_all_v, for each step: this rank's part, once for each rank */
    struct contest_call started[CONTEST_STARTED_MAX];
    int started_count;
    bool checks;
    double wrong;
};

static struct contest_call call_of(const struct replay *replay, unsigned number)
{
    const struct trace_step *step = &replay->trace.steps[number];
    return (struct contest_call){.kind = step->kind,
                                 .send = replay->send + step->at,
                                 .receive = replay->receive + step->at,
                                 .count = step->count,
                                 .send_counts = step->goes_back ? replay->own[number] : step->parts,
                                 .receive_counts = step->goes_back ? step->parts : replay->own[number],
                                 .goes_back = step->goes_back};
}

/* Poisons the output before an operation that is checked. */
static void poison(const struct replay *replay, const struct contest_call *call)
{
    bool is_root = call->kind == CONTEST_BROADCAST && replay->contest->rank == 0;
    size_t count = call->count;
    for (int from = 0; call->kind == CONTEST_ALL_TO_ALL_V && from < replay->contest->size; from++) {
        count = from == 0 ? call->receive_counts[0] : count + call->receive_counts[from];
    }
    for (size_t i = 0; replay->checks && i < count; i++) {
        call->receive[i] = is_root ? contest_value(i, 0) : -1;
    }
}

static void check(struct replay *replay, const struct contest_call *call)
{
    replay->wrong += replay->checks ? (double)contest_count_wrong(replay->contest, call) : 0;
}

static void finish_started(struct replay *replay, enum way way)
{
    for (int i = 0; i < replay->started_count; i++) {
        if (way == WAY_STARTING) {
            contestant_finish(i);
        }
        check(replay, &replay->started[i]);
    }
    replay->started_count = 0;
}

static void run_step(struct replay *replay, unsigned number, enum way way)
{
    const struct trace_step *step = &replay->trace.steps[number];
    if (step->action == TRACE_COMPUTE) {
        contest_compute(step->compute_us);
        return;
    }
    if (step->action == TRACE_WAIT) {
        finish_started(replay, way);
        return;
    }
    struct contest_call call = call_of(replay, number);
    poison(replay, &call);
    if (step->action == TRACE_RUN) {
        contestant_run(&call);
        check(replay, &call);
        return;
    }
    replay->started[step->index] = call;
    replay->started_count = step->index + 1;
    if (way == WAY_STARTING) {
        contestant_start(&replay->started[step->index], step->index);
    } else {
        contestant_run(&call);
    }
}

static void run_all(struct replay *replay, enum way way, bool checks)
{
    replay->checks = checks && replay->contest->options.check;
    for (unsigned number = 0; number < replay->trace.step_count; number++) {
        run_step(replay, number, way);
    }
}

/* The file's name without its folder and its ending. */
static void name_of(const char *path, char *name, size_t size)
{
    const char *slash = strrchr(path, '/');
    snprintf(name, size, "%s", slash != NULL ? slash + 1 : path);
    name[strcspn(name, ".")] = '\0';
}

static double computing_us(const struct trace *trace)
{
    double sum_us = 0;
    for (unsigned i = 0; i < trace->step_count; i++) {
        sum_us += trace->steps[i].compute_us;
    }
    return sum_us;
}

static void measure(struct replay *replay, enum way way)
{
    const struct contest *contest = replay->contest;
    double times_s[STEPS_MAX], compute_us = computing_us(&replay->trace);
    int steps = contest->options.trace_steps < STEPS_MAX ? contest->options.trace_steps : STEPS_MAX;
    replay->wrong = 0;
    run_all(replay, way, true);
    double wrong = contestant_sum(replay->wrong);
    double began_cpu_s = contest_cpu_s();
    for (int i = 0; i < steps; i++) {
        double began_s = contest_now_s();
        run_all(replay, way, false);
        times_s[i] = contest_now_s() - began_s;
    }
    double cpu_us = contestant_sum(contest_cpu_s() - began_cpu_s) / steps * 1e6;
    double median_s = contestant_largest(contest_median(times_s, steps));
    replay->wrong = wrong;
    if (contest->rank == 0) {
        char name[64];
        name_of(contest->options.trace, name, sizeof name);
        printf("{\"operation\": \"trace %s\", \"size_bytes\": 0, \"way\": \"%s\", \"compute_us\": %.0f, "
               "\"time_us\": %.3f, \"cpu_us\": %.3f, \"iterations\": %d, \"wrong\": %.0f}\n",
               name, way_names[way], compute_us, median_s * 1e6, cpu_us, steps, wrong);
        fflush(stdout);
    }
}

static bool prepare(struct replay *replay)
{
    const struct contest *contest = replay->contest;
    replay->own = calloc(replay->trace.step_count, sizeof *replay->own);
    if (replay->own == NULL) {
        return false;
    }
    for (unsigned number = 0; number < replay->trace.step_count; number++) {
        for (int other = 0; other < contest->size; other++) {
            replay->own[number][other] = replay->trace.steps[number].parts[contest->rank];
        }
    }
    replay->send = contestant_memory(replay->trace.elements + 16, contest->options.plain);
    replay->receive = contestant_memory(replay->trace.elements + 16, contest->options.plain);
    for (size_t i = 0; i < replay->trace.elements; i++) {
        replay->send[i] = contest_value(i, contest->rank);
        replay->receive[i] = -1;
    }
    return true;
}

static bool can_all(const struct trace *trace)
{
    for (unsigned i = 0; i < trace->step_count; i++) {
        bool has_kind = trace->steps[i].action == TRACE_RUN || trace->steps[i].action == TRACE_START;
        if (has_kind && !contestant_can(trace->steps[i].kind)) {
            return false;
        }
    }
    return true;
}

int contest_replay(const struct contest *contest)
{
    struct replay replay = {.contest = contest};
    double wrong = 0;
    if (!trace_read(contest->options.trace, contest->size, contest->options.trace_scale, &replay.trace)) {
        return 2;
    }
    bool possible = can_all(&replay.trace), fine = !possible || prepare(&replay);
    for (int way = WAY_BLOCKING; possible && fine && way <= WAY_STARTING; way++) {
        if (way == WAY_STARTING || contestant_has_two_ways()) {
            measure(&replay, (enum way)way);
            wrong += replay.wrong;
        }
    }
    free(replay.own);
    trace_free(&replay.trace);
    return fine && wrong == 0 ? 0 : 1;
}

int contest_describe(const char *path, int size, double scale)
{
    struct trace trace;
    double bytes[CONTEST_KINDS] = {0};
    int calls[CONTEST_KINDS] = {0}, started = 0;
    if (!trace_read(path, size, scale, &trace)) {
        return 2;
    }
    for (unsigned i = 0; i < trace.step_count; i++) {
        const struct trace_step *step = &trace.steps[i];
        if (step->action == TRACE_RUN || step->action == TRACE_START) {
            calls[step->kind]++;
            bytes[step->kind] += (double)(step->count * sizeof(float));
            started += step->action == TRACE_START;
        }
    }
    printf("{\"compute_us\": %.0f, \"buffer_bytes\": %zu, \"started\": %d, \"operations\": {",
           computing_us(&trace), trace.elements * sizeof(float), started);
    const char *comma = "";
    for (int kind = 0; kind < CONTEST_KINDS; kind++) {
        if (calls[kind] > 0) {
            printf("%s\"%s\": [%d, %.0f]", comma, contest_kind_name((enum contest_kind)kind), calls[kind],
                   bytes[kind]);
            comma = ", ";
        }
    }
    printf("}}\n");
    trace_free(&trace);
    return 0;
}
