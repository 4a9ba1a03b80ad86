#include "sweep.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Enough for a median; more only takes longer. */
#define ITERATIONS_MAX 20000
#define ITERATIONS_MIN 3
/* Sums of values below this, times any number of ranks of a bench, are exact in f32. */
#define PATTERN_PERIOD 61

static const char *const operation_names[SWEEP_OPERATIONS] = {
    "all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all", "send_recv", "barrier",
};

struct sweep {
    const struct sweep_library *library;
    bool wanted[SWEEP_OPERATIONS];
    size_t min_bytes;
    size_t max_bytes;
    size_t step_factor;
    double seconds_per_size;
    float *send;
    float *receive;
    double *times_us;
};

static double now_us(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e6 + (double)now.tv_nsec / 1e3;
}

static int by_value(const void *left, const void *right)
{
    double a = *(const double *)left;
    double b = *(const double *)right;
    return (a > b) - (a < b);
}

static bool has_blocks(enum sweep_operation operation)
{
    return operation == SWEEP_ALL_GATHER || operation == SWEEP_REDUCE_SCATTER ||
           operation == SWEEP_ALL_TO_ALL;
}

/* Whole blocks, at least one element each. */
static size_t count_of(const struct sweep *sweep, enum sweep_operation operation, size_t bytes)
{
    size_t count = bytes / sizeof(float);
    size_t ranks = sweep->library->ranks;
    if (has_blocks(operation)) {
        count = count < ranks ? ranks : count / ranks * ranks;
    }
    return count;
}

static float input(unsigned rank, size_t index)
{
    return (float)(index % PATTERN_PERIOD + rank);
}

static float expected(const struct sweep_library *library, enum sweep_operation operation, size_t index,
                      size_t block)
{
    unsigned ranks = library->ranks;
    switch (operation) {
    case SWEEP_ALL_REDUCE:
        return (float)(ranks * (index % PATTERN_PERIOD) + ranks * (ranks - 1) / 2);
    case SWEEP_REDUCE_SCATTER:
        return (float)(ranks * ((library->rank * block + index) % PATTERN_PERIOD) + ranks * (ranks - 1) / 2);
    case SWEEP_ALL_GATHER:
        return input((unsigned)(index / block), index % block);
    case SWEEP_ALL_TO_ALL:
        return input((unsigned)(index / block), library->rank * block + index % block);
    case SWEEP_SEND_RECV:
        return input((library->rank + ranks - 1) % ranks, index);
    case SWEEP_BROADCAST:
    case SWEEP_BARRIER:
    case SWEEP_OPERATIONS:
        break;
    }
    return input(0, index);
}

/* Elements of the result that are not what they must be, on this rank. */
static size_t count_wrong(const struct sweep *sweep, enum sweep_operation operation, size_t count)
{
    const struct sweep_library *library = sweep->library;
    size_t block = count / library->ranks;
    size_t results = operation == SWEEP_REDUCE_SCATTER ? block : count;
    size_t wrong = 0;
    if (operation == SWEEP_BARRIER || (operation == SWEEP_BROADCAST && library->rank == 0)) {
        return 0;
    }
    for (size_t i = 0; i < results; i++) {
        wrong += sweep->receive[i] != expected(library, operation, i, block);
    }
    return wrong;
}

static void prepare(const struct sweep *sweep, enum sweep_operation operation, size_t count)
{
    memset(sweep->receive, 0xff, count * sizeof(float)); /* not a number: what is not written is wrong */
    if (sweep->library->prepare != NULL) {
        sweep->library->prepare(sweep->library->context, operation, sweep->send, sweep->receive, count);
    }
}

static double operate(const struct sweep *sweep, enum sweep_operation operation, size_t count)
{
    double start_us = now_us();
    sweep->library->operate(sweep->library->context, operation, sweep->send, sweep->receive, count);
    return now_us() - start_us;
}

static void measure(const struct sweep *sweep, enum sweep_operation operation, size_t bytes)
{
    const struct sweep_library *library = sweep->library;
    size_t count = count_of(sweep, operation, bytes);
    prepare(sweep, operation, count);
    operate(sweep, operation, count);
    double wrong = library->maximum(library->context, (double)count_wrong(sweep, operation, count));
    double estimate_us = library->maximum(library->context, operate(sweep, operation, count));
    if (estimate_us < 10000) { /* the first after a pause is slow: the second says more */
        operate(sweep, operation, count);
        estimate_us = library->maximum(library->context, operate(sweep, operation, count));
    }
    double wanted = sweep->seconds_per_size * 1e6 / (estimate_us > 0.1 ? estimate_us : 0.1);
    size_t iterations = wanted < ITERATIONS_MIN   ? ITERATIONS_MIN
                        : wanted > ITERATIONS_MAX ? ITERATIONS_MAX
                                                  : (size_t)wanted;
    for (size_t i = 0; i < iterations; i++) {
        sweep->times_us[i] = operate(sweep, operation, count);
    }
    qsort(sweep->times_us, iterations, sizeof *sweep->times_us, by_value);
    double median_us = library->maximum(library->context, sweep->times_us[iterations / 2]);
    double least_us = library->maximum(library->context, sweep->times_us[0]);
    if (library->rank == 0) {
        printf("{\"operation\": \"%s\", \"size_bytes\": %zu, \"time_us\": %.3f, \"time_min_us\": %.3f, "
               "\"wrong\": %.0f, \"iterations\": %zu}\n",
               operation_names[operation], operation == SWEEP_BARRIER ? 0 : count * sizeof(float), median_us,
               least_us, wrong, iterations);
        fflush(stdout);
    }
}

static bool want_operations(struct sweep *sweep, const char *names)
{
    char *copy = strdup(names);
    char *rest = copy;
    bool known = true;
    for (char *name = strsep(&rest, ","); name != NULL && known; name = strsep(&rest, ",")) {
        known = false;
        for (size_t i = 0; i < SWEEP_OPERATIONS; i++) {
            if (strcmp(name, operation_names[i]) == 0) {
                sweep->wanted[i] = known = true;
            }
        }
    }
    free(copy);
    return known;
}

static bool read_arguments(struct sweep *sweep, int argc, char **argv)
{
    for (int i = 1; i + 1 < argc; i += 2) {
        const char *value = argv[i + 1];
        if (strcmp(argv[i], "--operation") == 0) {
            if (!want_operations(sweep, value)) {
                return false;
            }
        } else if (strcmp(argv[i], "--min-bytes") == 0) {
            sweep->min_bytes = strtoul(value, NULL, 10);
        } else if (strcmp(argv[i], "--max-bytes") == 0) {
            sweep->max_bytes = strtoul(value, NULL, 10);
        } else if (strcmp(argv[i], "--step-factor") == 0) {
            sweep->step_factor = strtoul(value, NULL, 10);
        } else if (strcmp(argv[i], "--seconds-per-size") == 0) {
            sweep->seconds_per_size = strtod(value, NULL);
        }
    }
    return sweep->min_bytes >= sizeof(float) && sweep->max_bytes >= sweep->min_bytes &&
           sweep->step_factor >= 2;
}

static float *allocate(const struct sweep_library *library, size_t bytes)
{
    void *memory =
        library->allocate != NULL ? library->allocate(library->context, bytes) : aligned_alloc(4096, bytes);
    if (memory == NULL) {
        fprintf(stderr, "no memory: %zu bytes\n", bytes);
        exit(1);
    }
    return memory;
}

int sweep_run(const struct sweep_library *library, int argc, char **argv)
{
    struct sweep sweep = {.library = library,
                          .min_bytes = 8,
                          .max_bytes = (size_t)1 << 20,
                          .step_factor = 4,
                          .seconds_per_size = 0.1};
    if (!read_arguments(&sweep, argc, argv)) {
        fprintf(stderr, "usage: see sweep.h\n");
        return 2;
    }
    size_t bytes = (sweep.max_bytes + library->ranks * sizeof(float) + 4095) / 4096 * 4096;
    sweep.send = allocate(library, bytes);
    sweep.receive = allocate(library, bytes);
    sweep.times_us = malloc(ITERATIONS_MAX * sizeof *sweep.times_us);
    for (size_t i = 0; i < bytes / sizeof(float); i++) {
        sweep.send[i] = input(library->rank, i);
    }
    for (int operation = 0; operation < SWEEP_OPERATIONS; operation++) {
        if (!sweep.wanted[operation]) {
            continue;
        }
        if (operation == SWEEP_BARRIER) {
            measure(&sweep, SWEEP_BARRIER, sizeof(float));
            continue;
        }
        for (size_t size = sweep.min_bytes; size <= sweep.max_bytes; size *= sweep.step_factor) {
            measure(&sweep, (enum sweep_operation)operation, size);
        }
    }
    free(sweep.times_us);
    return 0;
}
