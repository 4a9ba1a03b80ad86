#include <errno.h>
#include <getopt.h>
#include <libgen.h>
#include <limits.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "client/commctl/commctl.h"
#include "client/commctl/plot.h"

/* Runs the commd program instead of asking a running commd, because a planned cluster need not exist. */

#define SIZES_MAX 32
#define NODES_MAX 16384 /* commd plans for no more */
#define ARGUMENTS_MAX (SIZES_MAX + 13)
#define LINE_MAX_BYTES 4096

extern char **environ;

struct plan {
    const char *operation;
    uint64_t nodes;
    double latency_us;
    double gbit_per_s;
    uint64_t slice_bytes;
    double dial_us;
    double message_us;
    double nodes_per_processor;
    bool measured; /* latency and rate are what a running commd has measured */
    json_t *formed;
    const char *overrides;
    uint64_t sizes[SIZES_MAX];
    size_t size_count;
    const char *svg_path;
};

static const struct column columns[] = {
    {"size_bytes", "SIZE", COLUMN_BYTES},
    {"name", "ALGORITHM", COLUMN_TEXT},
    {"predicted_ns", "PREDICTED", COLUMN_NS},
    {"first_ns", "FIRST", COLUMN_NS},
    {"links", "LINKS", COLUMN_NUMBER},
    {"rounds", "ROUNDS", COLUMN_NUMBER},
    {"messages", "MESSAGES", COLUMN_NUMBER},
    {"sent_bytes", "SENT/NODE", COLUMN_BYTES},
    {"memory_bytes", "MEMORY/NODE", COLUMN_BYTES},
    {"mark", "PICKED", COLUMN_TEXT},
};

static const char usage[] =
    "usage: commctl plan [OPERATION] [-n NODES] [-s SIZE[,SIZE...]] [-l LATENCY_US] [-b GBIT_PER_S]\n"
    "                    [-m] [-d DIAL_US] [-t MESSAGE_US] [-p NODES_PER_PROCESSOR] [--slice SIZE] [-a "
    "OVERRIDES] [--svg "
    "FILE]\n";

static bool parse_sizes(char *text, struct plan *plan)
{
    plan->size_count = 0;
    for (char *size; (size = strsep(&text, ",")) != NULL;) {
        if (plan->size_count == SIZES_MAX || !size_parse(size, &plan->sizes[plan->size_count])) {
            return false;
        }
        plan->size_count++;
    }
    return plan->size_count > 0;
}

static bool parse_positive(const char *text, double *out)
{
    char *end;
    *out = strtod(text, &end);
    return end != text && *end == '\0' && *out > 0 && *out < 1e9;
}

/* Returns null if the value is valid, else what was expected. */
static const char *take_option(int option, char *text, struct plan *plan)
{
    double nodes;
    switch (option) {
    case 'n':
        if (!parse_positive(text, &nodes) || nodes != (double)(uint64_t)nodes || nodes > NODES_MAX) {
            return "a whole number of nodes, 1 to 16384";
        }
        plan->nodes = (uint64_t)nodes;
        return NULL;
    case 's':
        return parse_sizes(text, plan) ? NULL : "1 to 32 sizes like 8 or 64k, with commas between";
    case 'l':
        return parse_positive(text, &plan->latency_us) ? NULL : "microseconds, more than 0 and less than 1e9";
    case 'b':
        return parse_positive(text, &plan->gbit_per_s) ? NULL : "Gbit/s, more than 0 and less than 1e9";
    case 'm':
        plan->measured = true;
        return NULL;
    case 'd':
        return parse_positive(text, &plan->dial_us) ? NULL : "microseconds, more than 0 and less than 1e9";
    case 't':
        return parse_positive(text, &plan->message_us) ? NULL : "microseconds, more than 0 and less than 1e9";
    case 'p':
        return parse_positive(text, &plan->nodes_per_processor) && plan->nodes_per_processor >= 1 &&
                       plan->nodes_per_processor <= NODES_MAX
                   ? NULL
                   : "how many nodes share a processor, 1 to 16384";
    case 'c':
        return size_parse(text, &plan->slice_bytes) && plan->slice_bytes > 0 ? NULL : "a size like 64k or 1m";
    case 'a':
        plan->overrides = text;
        return NULL;
    default:
        plan->svg_path = text;
        return NULL;
    }
}

static enum exit_code parse_plan(int argc, char **argv, struct plan *plan)
{
    static const struct option options[] = {
        {"svg", required_argument, NULL, 'o'}, {"slice", required_argument, NULL, 'c'}, {NULL, 0, NULL, 0}};
    optind = 0;
    for (int option; (option = getopt_long(argc, argv, "n:s:l:b:a:md:t:p:", options, NULL)) != -1;) {
        char given[64], name[32];
        if (option == '?') {
            (void)fputs(usage, stderr);
            return EXIT_CODE_USAGE;
        }
        (void)snprintf(given, sizeof given, "%s", optarg != NULL ? optarg : "");
        const char *expected = take_option(option, optarg, plan);
        if (expected != NULL) {
            return usage_wrong("plan", usage_option_name(options, option, name), given, expected, usage);
        }
    }
    if (optind + 1 < argc) {
        return usage_wrong("plan", argv[optind + 1], NULL, "one operation", usage);
    }
    if (optind < argc) {
        plan->operation = argv[optind];
    }
    return EXIT_CODE_OK;
}

/* Finds commd in this program's folder, or by PATH. */
static void find_commd(char *path, size_t size)
{
    static const char *const places[] = {"commd", "../sbin/commd"};
    char self[PATH_MAX];
    ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
    if (length > 0) {
        self[length] = '\0';
        const char *folder = dirname(self);
        for (size_t i = 0; i < sizeof places / sizeof places[0]; i++) {
            if (snprintf(path, size, "%s/%s", folder, places[i]) < (int)size && access(path, X_OK) == 0) {
                return;
            }
        }
    }
    (void)snprintf(path, size, "commd");
}

/* What forming costs is the first row. */
static enum exit_code read_rows(FILE *from, struct plan *plan, json_t *rows)
{
    char line[LINE_MAX_BYTES];
    while (fgets(line, sizeof line, from) != NULL) {
        json_t *row = json_loads(line, 0, NULL);
        if (row == NULL) {
            (void)fprintf(stderr, "commctl: commd's output cannot be understood: %s", line);
            return EXIT_CODE_FAILURE;
        }
        if (json_object_get(row, "fresh_ns") != NULL) {
            json_decref(plan->formed);
            plan->formed = row;
            continue;
        }
        bool picked = json_is_true(json_object_get(row, "picked"));
        json_object_set_new(row, "mark", json_string(picked ? "*" : ""));
        json_array_append_new(rows, row);
    }
    return EXIT_CODE_OK;
}

static enum exit_code ask_commd(struct plan *plan, json_t *rows)
{
    char texts[ARGUMENTS_MAX][32];
    char *arguments[ARGUMENTS_MAX + 1];
    char path[PATH_MAX];
    int pipe_ends[2];
    size_t count = 0;
    (void)snprintf(texts[0], sizeof texts[0], "%llu", (unsigned long long)plan->nodes);
    (void)snprintf(texts[1], sizeof texts[1], "%.0f", plan->latency_us * 1e3);
    (void)snprintf(texts[2], sizeof texts[2], "%.0f", plan->gbit_per_s * 1e9 / 8);
    (void)snprintf(texts[3], sizeof texts[3], "%llu", (unsigned long long)plan->slice_bytes);
    (void)snprintf(texts[4], sizeof texts[4], "%.0f", plan->dial_us * 1e3);
    (void)snprintf(texts[5], sizeof texts[5], "%.0f", plan->message_us * 1e3);
    (void)snprintf(texts[6], sizeof texts[6], "%.0f", plan->nodes_per_processor * 1e3);
    find_commd(path, sizeof path);
    arguments[count++] = path;
    arguments[count++] = "--plan";
    arguments[count++] = (char *)plan->operation;
    for (size_t i = 0; i < 7; i++) {
        arguments[count++] = texts[i];
    }
    arguments[count++] = (char *)plan->overrides;
    for (size_t i = 0; i < plan->size_count; i++) {
        (void)snprintf(texts[7 + i], sizeof texts[0], "%llu", (unsigned long long)plan->sizes[i]);
        arguments[count++] = texts[7 + i];
    }
    arguments[count] = NULL;
    if (pipe(pipe_ends) != 0) {
        (void)fprintf(stderr, "commctl: pipe: %s\n", strerror(errno));
        return EXIT_CODE_FAILURE;
    }
    posix_spawn_file_actions_t actions;
    pid_t child;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, pipe_ends[1], STDOUT_FILENO);
    posix_spawn_file_actions_addclose(&actions, pipe_ends[0]);
    posix_spawn_file_actions_addclose(&actions, pipe_ends[1]);
    int failure = posix_spawnp(&child, path, &actions, NULL, arguments, environ);
    posix_spawn_file_actions_destroy(&actions);
    (void)close(pipe_ends[1]);
    FILE *from = fdopen(pipe_ends[0], "r");
    if (failure != 0 || from == NULL) {
        (void)fprintf(stderr, "commctl: %s: %s\n", path, strerror(failure != 0 ? failure : errno));
        if (from == NULL) {
            (void)close(pipe_ends[0]);
        } else {
            (void)fclose(from);
        }
        return EXIT_CODE_FAILURE;
    }
    enum exit_code code = read_rows(from, plan, rows);
    int status = 0;
    (void)fclose(from);
    if (waitpid(child, &status, 0) != child || !WIFEXITED(status)) {
        return EXIT_CODE_FAILURE;
    }
    return code == EXIT_CODE_OK ? (enum exit_code)WEXITSTATUS(status) : code;
}

static double formed_number(const json_t *object, const char *key)
{
    return json_number_value(json_object_get(json_object_get(object, "formation"), key));
}

static void print_formation(const json_t *object)
{
    bool by_tree = json_is_true(json_object_get(json_object_get(object, "formation"), "by_tree"));
    (void)printf("comm_init takes %.1f ms, with all connections there %.1f ms. Then a node has %.0f "
                 "connections, and needs %.1f MiB.\n",
                 formed_number(object, "fresh_ns") / 1e6, formed_number(object, "warm_ns") / 1e6,
                 formed_number(object, "links"), formed_number(object, "memory_bytes") / (1 << 20));
    if (by_tree) {
        (void)printf("The first operation (FIRST) makes the connections that it needs (LINKS, of the busiest "
                     "node).\n");
    }
    (void)printf("\n");
}

static void print_plan(const json_t *object)
{
    (void)printf("%s among %lld nodes with a rank each, %.1f us, %.2f Gbit/s (%s)\n\n",
                 json_string_value(json_object_get(object, "operation")),
                 (long long)json_integer_value(json_object_get(object, "nodes")),
                 json_real_value(json_object_get(object, "latency_us")),
                 json_real_value(json_object_get(object, "gbit_per_s")),
                 json_is_true(json_object_get(object, "measured")) ? "measured" : "assumed");
    print_formation(object);
    const json_t *rows = json_object_get(object, "algorithms");
    json_t *by_size = json_array();
    size_t index;
    json_t *size, *row;
    json_array_foreach(json_object_get(object, "sizes"), index, size)
    {
        for (size_t i = 0; i < json_array_size(rows); i++) {
            row = json_array_get(rows, i);
            if (json_equal(json_object_get(row, "size_bytes"), size)) {
                json_array_append(by_size, row);
            }
        }
    }
    table_print(by_size, columns, sizeof columns / sizeof columns[0]);
    json_decref(by_size);
}

/* Asks the running commd for the latency and rate of its links. */
static enum exit_code take_measured(struct commctl *commctl, struct plan *plan)
{
    uint64_t size_bytes = 8;
    Commd__Client__AlgorithmsQuery query = COMMD__CLIENT__ALGORITHMS_QUERY__INIT;
    query.size_bytes = &size_bytes;
    query.n_size_bytes = 1;
    Commd__Client__Request request = COMMD__CLIENT__REQUEST__INIT;
    request.body_case = COMMD__CLIENT__REQUEST__BODY_ALGORITHMS;
    request.algorithms = &query;
    Commd__Client__Event *event;
    enum exit_code code = connection_request(commctl, &request, &event);
    if (code == EXIT_CODE_OK && event->reply->body_case == COMMD__CLIENT__REPLY__BODY_ALGORITHMS) {
        const Commd__Client__AlgorithmsReply *reply = event->reply->algorithms;
        plan->measured = reply->measured;
        plan->latency_us = (double)reply->latency_ns / 1e3;
        plan->gbit_per_s = (double)reply->bytes_per_s * 8 / 1e9;
    }
    commd__client__event__free_unpacked(event, NULL);
    return code;
}

/* Writes the picture: predicted times from 8 bytes to 1 GiB. */
static enum exit_code draw_plan(const struct plan *plan)
{
    char title[160];
    struct plan fine = *plan;
    json_t *points = json_array();
    fine.formed = NULL;
    fine.size_count = 0;
    for (uint64_t size = 8; size <= 1ull << 30; size *= 2) {
        fine.sizes[fine.size_count++] = size;
    }
    (void)snprintf(title, sizeof title, "%.40s among %llu nodes, %.1f us, %.2f Gbit/s: predicted time",
                   plan->operation, (unsigned long long)plan->nodes, plan->latency_us, plan->gbit_per_s);
    enum exit_code code = ask_commd(&fine, points);
    if (code == EXIT_CODE_OK && !plot_write(plan->svg_path, title, points)) {
        (void)fprintf(stderr, "commctl: %s: %s\n", plan->svg_path, strerror(errno));
        code = EXIT_CODE_FAILURE;
    }
    json_decref(points);
    json_decref(fine.formed);
    return code;
}

enum exit_code verb_plan(struct commctl *commctl, int argc, char **argv)
{
    struct plan plan = {.operation = "all_reduce",
                        .nodes = 16,
                        .latency_us = 50,
                        .gbit_per_s = 10,
                        .slice_bytes = 1u << 20,
                        .dial_us = 2500,
                        .message_us = 5,
                        .nodes_per_processor = 1,
                        .overrides = "",
                        .sizes = {8, 4096, 65536, 1u << 20, 16u << 20, 256u << 20},
                        .size_count = 6};
    enum exit_code code = parse_plan(argc, argv, &plan);
    if (code == EXIT_CODE_OK && plan.measured) {
        code = take_measured(commctl, &plan);
    }
    if (code != EXIT_CODE_OK) {
        return code;
    }
    json_t *rows = json_array();
    code = ask_commd(&plan, rows);
    if (code == EXIT_CODE_OK && plan.svg_path != NULL) {
        code = draw_plan(&plan);
    }
    if (code == EXIT_CODE_OK) {
        json_t *sizes = json_array();
        for (size_t i = 0; i < plan.size_count; i++) {
            json_array_append_new(sizes, json_integer((json_int_t)plan.sizes[i]));
        }
        output_object(commctl,
                      json_pack("{ss sI sf sf sb sf sf sf so sO so}", "operation", plan.operation, "nodes",
                                (json_int_t)plan.nodes, "latency_us", plan.latency_us, "gbit_per_s",
                                plan.gbit_per_s, "measured", plan.measured, "dial_us", plan.dial_us,
                                "message_us", plan.message_us, "nodes_per_processor",
                                plan.nodes_per_processor, "sizes", sizes, "algorithms", rows, "formation",
                                plan.formed),
                      print_plan);
    }
    if (code != EXIT_CODE_OK) {
        json_decref(plan.formed);
    }
    json_decref(rows);
    return code;
}
