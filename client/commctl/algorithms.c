#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/commctl/commctl.h"

#define NODE_NAMES_MAX 256
#define SIZES_MAX 8

static const struct column columns[] = {
    {"kind", "OPERATION", COLUMN_TEXT},    {"size_bytes", "SIZE", COLUMN_BYTES},
    {"name", "ALGORITHM", COLUMN_TEXT},    {"predicted_ns", "PREDICTED", COLUMN_NS},
    {"rounds", "ROUNDS", COLUMN_NUMBER},   {"sent_bytes", "SENT/NODE", COLUMN_BYTES},
    {"reason", "PICKED FOR", COLUMN_TEXT},
};

static const struct column engine_columns[] = {
    {"gpus", "GPUS", COLUMN_LIST},        {"kind", "OPERATION", COLUMN_TEXT},
    {"size_bytes", "SIZE", COLUMN_BYTES}, {"engine", "ENGINE", COLUMN_TEXT},
    {"nccl_ns", "NCCL", COLUMN_NS},       {"without_ns", "WITHOUT", COLUMN_NS},
    {"reason", "BECAUSE", COLUMN_TEXT},
};

/* Which engine has operations among GPUs of the node. */
static void print_engines(const json_t *answer)
{
    const json_t *rows = json_object_get(answer, "engines");
    if (json_array_size(rows) > 0) {
        printf("\namong GPUs of this node; SIZE: of a GPU's larger buffer\n\n");
        table_print(rows, engine_columns, sizeof engine_columns / sizeof engine_columns[0]);
    }
}

static void print_algorithms(const json_t *answer)
{
    json_t *rows = json_array();
    size_t index;
    json_t *row;
    bool several = json_is_true(json_object_get(answer, "several"));
    json_array_foreach(json_object_get(answer, "algorithms"), index, row)
    {
        if (json_is_true(json_object_get(row, "serves")) &&
            (!several || json_is_true(json_object_get(row, "picked")))) {
            json_array_append(rows, row);
        }
    }
    printf("%lld nodes, %.1f us, %.2f Gbit/s (%s)\n\n",
           (long long)json_integer_value(json_object_get(answer, "node_count")),
           (double)json_integer_value(json_object_get(answer, "latency_ns")) / 1e3,
           (double)json_integer_value(json_object_get(answer, "bytes_per_s")) * 8 / 1e9,
           json_is_true(json_object_get(answer, "measured")) ? "measured" : "assumed");
    table_print(rows, columns, sizeof columns / sizeof columns[0]);
    json_decref(rows);
    print_engines(answer);
}

static const char usage[] =
    "usage: commctl algorithms [OPERATION] [-s SIZE[,SIZE...]] [-n NODES | -n NAME,NAME...] [-a OVERRIDES]\n";

/* "8" nodes, or names. */
static bool parse_nodes(char *text, Commd__Client__AlgorithmsQuery *query, char **names)
{
    char *end;
    unsigned long count = strtoul(text, &end, 10);
    if (*end == '\0' && end != text) {
        query->node_count = (uint32_t)count;
        return count >= 1 && count <= 1000000;
    }
    query->node_names = names;
    for (char *name; (name = strsep(&text, ",")) != NULL;) {
        if (query->n_node_names == NODE_NAMES_MAX || *name == '\0') {
            return false;
        }
        names[query->n_node_names++] = name;
    }
    return true;
}

static bool parse_sizes(char *text, Commd__Client__AlgorithmsQuery *query)
{
    query->n_size_bytes = 0;
    for (char *size; (size = strsep(&text, ",")) != NULL;) {
        if (query->n_size_bytes == SIZES_MAX || !size_parse(size, &query->size_bytes[query->n_size_bytes])) {
            return false;
        }
        query->n_size_bytes++;
    }
    return query->n_size_bytes > 0;
}

/* Returns null if the value is valid, else what was expected. */
static const char *take_option(int option, char *text, Commd__Client__AlgorithmsQuery *query, char **names)
{
    switch (option) {
    case 's':
        return parse_sizes(text, query) ? NULL : "1 to 8 sizes like 8 or 64k, with commas between";
    case 'n':
        return parse_nodes(text, query, names) ? NULL : "1 to 1000000 nodes, or names with commas between";
    default:
        query->overrides = text;
        return NULL;
    }
}

static enum exit_code parse(int argc, char **argv, Commd__Client__AlgorithmsQuery *query, char **names)
{
    static const struct option no_names[] = {{NULL, 0, NULL, 0}};
    optind = 0;
    for (int option; (option = getopt(argc, argv, "s:n:a:")) != -1;) {
        char given[64], name[32];
        if (option == '?') {
            fputs(usage, stderr);
            return EXIT_CODE_USAGE;
        }
        snprintf(given, sizeof given, "%s", optarg);
        const char *expected = take_option(option, optarg, query, names);
        if (expected != NULL) {
            return usage_wrong("algorithms", usage_option_name(no_names, option, name), given, expected,
                               usage);
        }
    }
    if (optind + 1 < argc) {
        return usage_wrong("algorithms", argv[optind + 1], NULL, "one operation", usage);
    }
    if (optind < argc) {
        query->kind = argv[optind];
    }
    return EXIT_CODE_OK;
}

enum exit_code verb_algorithms(struct commctl *commctl, int argc, char **argv)
{
    uint64_t sizes[SIZES_MAX] = {8, 4096, 65536, 1u << 20, 16u << 20, 256u << 20};
    char *names[NODE_NAMES_MAX];
    Commd__Client__AlgorithmsQuery query = COMMD__CLIENT__ALGORITHMS_QUERY__INIT;
    query.size_bytes = sizes;
    query.n_size_bytes = 6;
    enum exit_code code = parse(argc, argv, &query, names);
    if (code != EXIT_CODE_OK) {
        return code;
    }
    Commd__Client__Request request = COMMD__CLIENT__REQUEST__INIT;
    request.body_case = COMMD__CLIENT__REQUEST__BODY_ALGORITHMS;
    request.algorithms = &query;
    Commd__Client__Event *event;
    code = connection_request(commctl, &request, &event);
    if (code == EXIT_CODE_OK && event->reply->body_case == COMMD__CLIENT__REPLY__BODY_ALGORITHMS) {
        json_t *object = json_of_message(&event->reply->algorithms->base);
        json_object_set_new(object, "several", json_boolean(query.n_size_bytes > 1));
        output_object(commctl, object, print_algorithms);
    }
    commd__client__event__free_unpacked(event, NULL);
    return code;
}
