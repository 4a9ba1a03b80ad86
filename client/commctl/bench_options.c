#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/commctl/bench.h"
#include "client/commctl/bench_times.h"

enum {
    OPTION_COMMUNICATOR = 1000,
    OPTION_SIZE,
    OPTION_FIRST_RANK,
    OPTION_RANKS,
    OPTION_OPERATION,
    OPTION_DTYPE,
    OPTION_REDUCE,
    OPTION_ROOT,
    OPTION_MIN_BYTES,
    OPTION_MAX_BYTES,
    OPTION_STEP_FACTOR,
    OPTION_SECONDS,
    OPTION_ITERATIONS,
    OPTION_IN_PLACE,
    OPTION_OUT_OF_PLACE,
    OPTION_UNREGISTERED,
    OPTION_NO_CHECK
};

static const struct option long_options[] = {
    {"communicator", required_argument, NULL, OPTION_COMMUNICATOR},
    {"size", required_argument, NULL, OPTION_SIZE},
    {"first-rank", required_argument, NULL, OPTION_FIRST_RANK},
    {"ranks", required_argument, NULL, OPTION_RANKS},
    {"operation", required_argument, NULL, OPTION_OPERATION},
    {"dtype", required_argument, NULL, OPTION_DTYPE},
    {"reduce", required_argument, NULL, OPTION_REDUCE},
    {"root", required_argument, NULL, OPTION_ROOT},
    {"min-bytes", required_argument, NULL, OPTION_MIN_BYTES},
    {"max-bytes", required_argument, NULL, OPTION_MAX_BYTES},
    {"step-factor", required_argument, NULL, OPTION_STEP_FACTOR},
    {"seconds-per-size", required_argument, NULL, OPTION_SECONDS},
    {"iterations", required_argument, NULL, OPTION_ITERATIONS},
    {"in-place", no_argument, NULL, OPTION_IN_PLACE},
    {"out-of-place", no_argument, NULL, OPTION_OUT_OF_PLACE},
    {"unregistered", no_argument, NULL, OPTION_UNREGISTERED},
    {"no-check", no_argument, NULL, OPTION_NO_CHECK},
    {"format", required_argument, NULL, 'f'},
    {NULL, 0, NULL, 0},
};

static enum exit_code wrong(const char *what, const char *expected)
{
    return usage_wrong("bench", what, NULL, expected, "");
}

static bool parse_u32(const char *text, uint32_t low, uint32_t high, uint32_t *out)
{
    char *end;
    errno = 0;
    unsigned long long value = strtoull(text, &end, 10);
    if (*text < '0' || *text > '9' || *end != '\0' || errno != 0 || value < low || value > high) {
        return false;
    }
    *out = (uint32_t)value;
    return true;
}

static bool parse_dtype(const char *text, enum dtype *out)
{
    for (unsigned i = 0; i < DTYPE_COUNT; i++) {
        if (strcmp(dtype_text((enum dtype)i), text) == 0) {
            *out = (enum dtype)i;
            return true;
        }
    }
    return false;
}

static bool parse_reduce(const char *text, enum reduce *out)
{
    static const enum reduce allowed[] = {REDUCE_SUM, REDUCE_MIN, REDUCE_MAX};
    for (size_t i = 0; i < sizeof allowed / sizeof allowed[0]; i++) {
        if (strcmp(reduce_text(allowed[i]), text) == 0) {
            *out = allowed[i];
            return true;
        }
    }
    return false;
}

static bool operations_are_known(const char *list)
{
    if (strcmp(list, "all") == 0) {
        return true;
    }
    while (*list != '\0') {
        char name[64];
        size_t length = strcspn(list, ",");
        snprintf(name, sizeof name, "%.*s", (int)length, list);
        if (bench_operation_find(name) == NULL) {
            return false;
        }
        list += length + (list[length] == ',' ? 1 : 0);
    }
    return true;
}

static bool parse_seconds(const char *text, double *out)
{
    char *end;
    *out = strtod(text, &end);
    return end != text && *end == '\0' && *out >= 0 && *out <= 3600;
}

/* As take_option(), for options that are numbers. */
static const char *take_number(int option, struct bench_options *options)
{
    const struct {
        int option;
        uint32_t low, high, *out;
        const char *expected;
    } numbers[] = {
        {OPTION_SIZE, 1, 65536, &options->size, "how many ranks in all, 1 to 65536"},
        {OPTION_FIRST_RANK, 0, 65535, &options->first_rank, "a rank"},
        {OPTION_RANKS, 1, BENCH_RANKS_MAX, &options->ranks, "how many ranks here, 1 to 256"},
        {OPTION_ROOT, 0, 65535, &options->root, "a rank"},
        {OPTION_STEP_FACTOR, 2, 1024, &options->step_factor, "2 to 1024"},
        {OPTION_ITERATIONS, 1, BENCH_ITERATIONS_MAX, &options->iterations, "1 to 1000000000"},
    };
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        if (numbers[i].option == option) {
            bool fine = parse_u32(optarg, numbers[i].low, numbers[i].high, numbers[i].out);
            return fine ? NULL : numbers[i].expected;
        }
    }
    return "see commctl(1)";
}

/* Returns null if the option's argument is valid, else what was expected. */
static const char *take_option(int option, struct bench_options *options)
{
    switch (option) {
    case OPTION_COMMUNICATOR:
        options->communicator = optarg;
        return *optarg != '\0' ? NULL : "a name";
    case OPTION_OPERATION:
        options->operations = optarg;
        return operations_are_known(optarg)
                   ? NULL
                   : "all, or some of all_reduce,all_gather,reduce_scatter,all_to_all,"
                     "broadcast,reduce,send_recv,barrier";
    case OPTION_DTYPE:
        return parse_dtype(optarg, &options->dtype) ? NULL
                                                    : "f64, f32, f16, bf16, f8e4m3, f8e5m2, i64, i32, i16, "
                                                      "i8, u64, u32, u16, u8, bool, complex64 or complex128";
    case OPTION_REDUCE:
        return parse_reduce(optarg, &options->reduce) ? NULL : "sum, min or max";
    case OPTION_MIN_BYTES:
        return size_parse(optarg, &options->min_bytes) && options->min_bytes > 0 ? NULL
                                                                                 : "a size like 8 or 64k";
    case OPTION_MAX_BYTES:
        return size_parse(optarg, &options->max_bytes) && options->max_bytes > 0 ? NULL
                                                                                 : "a size like 64k or 256m";
    case OPTION_SECONDS:
        return parse_seconds(optarg, &options->seconds_per_size) ? NULL : "seconds, 0 to 3600";
    case OPTION_IN_PLACE:
        options->out_of_place = false;
        return NULL;
    case OPTION_OUT_OF_PLACE:
        options->in_place = false;
        return NULL;
    case OPTION_UNREGISTERED:
        options->registered = false;
        return NULL;
    case OPTION_NO_CHECK:
        options->check = false;
        return NULL;
    case 'f':
        options->json = strcmp(optarg, "json") == 0;
        return options->json || strcmp(optarg, "text") == 0 ? NULL : "text or json";
    default:
        return take_number(option, options);
    }
}

void bench_options_default(struct bench_options *options)
{
    *options = (struct bench_options){.ranks = 2,
                                      .operations = "all_reduce",
                                      .dtype = DTYPE_F32,
                                      .reduce = REDUCE_SUM,
                                      .min_bytes = 8,
                                      .max_bytes = 256u << 20,
                                      .step_factor = 2,
                                      .seconds_per_size = 0.2,
                                      .in_place = true,
                                      .out_of_place = true,
                                      .registered = true,
                                      .check = true};
}

enum exit_code bench_options_parse(int argc, char **argv, struct bench_options *options)
{
    bool ranks_given = false;
    optind = 0; /* main has parsed the options before the verb */
    for (int option; (option = getopt_long(argc, argv, "f:", long_options, NULL)) != -1;) {
        if (option == '?') {
            return EXIT_CODE_USAGE;
        }
        ranks_given = ranks_given || option == OPTION_RANKS;
        const char *expected = take_option(option, options);
        if (expected != NULL) {
            char name[32];
            return usage_wrong("bench", usage_option_name(long_options, option, name), optarg, expected, "");
        }
    }
    if (optind < argc) {
        return wrong(argv[optind], "no argument without an option");
    }
    if (!ranks_given && options->size != 0 && options->first_rank == 0) {
        options->ranks = options->size < BENCH_RANKS_MAX ? options->size : BENCH_RANKS_MAX;
    }
    options->size = options->size != 0 ? options->size : options->first_rank + options->ranks;
    if (options->first_rank + options->ranks > options->size) {
        return wrong("--first-rank and --ranks", "ranks below --size");
    }
    if (!reduce_is_defined(options->dtype, options->reduce)) {
        return wrong("--reduce", "sum: complex numbers have no order");
    }
    if (*options->operations == '\0') {
        return wrong("--operation", "a name");
    }
    if (options->root >= options->size) {
        return wrong("--root", "a rank below --size");
    }
    if (options->min_bytes > options->max_bytes) {
        return wrong("--min-bytes", "at most --max-bytes");
    }
    if (!options->in_place && !options->out_of_place) {
        return wrong("--in-place and --out-of-place", "one of them, or none for both");
    }
    return EXIT_CODE_OK;
}

uint64_t bench_next_size(const struct bench_options *options, uint64_t bytes)
{
    return bytes > options->max_bytes / options->step_factor ? 0 : bytes * options->step_factor;
}
