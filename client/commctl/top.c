#include "client/commctl/top.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define LOOKS_MAX 1000000
#define FIRST_LOOK_S 0.2 /* text and JSON: rates need two looks, and the first one is not printed */

static void top_init(struct top *top)
{
    *top = (struct top){.looked_s = 0};
    for (unsigned i = 0; i < TOP_TABLES; i++) {
        top->tables[i] = (struct top_rows){.table = &top_tables[i],
                                           .sort_column = top_tables[i].sort_column,
                                           .descending = top_tables[i].descending};
    }
}

static void top_free(struct top *top)
{
    for (unsigned i = 0; i < TOP_TABLES; i++) {
        top_rows_free(&top->tables[i]);
    }
    json_decref(top->status);
    top->status = NULL;
}

static json_int_t sum(const json_t *rows, const char *key)
{
    json_int_t total = 0;
    size_t index;
    json_t *row;
    json_array_foreach(rows, index, row)
    {
        total += json_integer_value(json_object_get(row, key));
    }
    return total;
}

static void take_status(struct top *top, json_t *status, double now_s)
{
    uint64_t completed = (uint64_t)json_integer_value(json_object_get(status, "ops_completed"));
    bool counts = top->looked_s > 0 && now_s > top->looked_s && completed >= top->ops_completed;
    double rate = counts ? (double)(completed - top->ops_completed) / (now_s - top->looked_s) : 0;
    const json_t *links = top->tables[TOP_LINKS].rows;
    json_object_set_new(status, "ops_per_s", json_integer((json_int_t)(rate + 0.5)));
    json_object_set_new(status, "sent_bytes_per_s", json_integer(sum(links, "sent_bytes_per_s")));
    json_object_set_new(status, "received_bytes_per_s", json_integer(sum(links, "received_bytes_per_s")));
    json_decref(top->status);
    top->status = status;
    top->ops_completed = completed;
    top->looked_s = now_s;
}

static enum exit_code look(struct top *top, struct commctl *commctl, double now_s)
{
    json_t *status = NULL;
    enum exit_code code = status_fetch(commctl, &status);
    for (unsigned i = 0; i < TOP_TABLES && code == EXIT_CODE_OK; i++) {
        json_t *rows = json_array();
        code = list_fetch(commctl, top_tables[i].list, rows, &top->tables[i].others);
        if (code == EXIT_CODE_OK) {
            top_rows_take(&top->tables[i], rows, now_s);
        } else {
            json_decref(rows);
        }
    }
    if (code == EXIT_CODE_OK) {
        take_status(top, status, now_s);
    } else {
        json_decref(status);
    }
    return code;
}

/* Failures are printed into the message, and not over the screen. */
enum exit_code top_look(struct top *top, struct commctl *commctl, double now_s)
{
    FILE *messages = commctl->messages;
    FILE *buffer = fmemopen(top->message, sizeof top->message, "w");
    top->message[0] = '\0';
    commctl->messages = buffer != NULL ? buffer : messages;
    enum exit_code code = look(top, commctl, now_s);
    commctl->messages = messages;
    if (buffer != NULL) {
        fclose(buffer);
    }
    top->message[strcspn(top->message, "\n")] = '\0';
    return code;
}

static const char *shown(const json_t *object, const char *key, enum column_format format, char text[64])
{
    table_format(json_object_get(object, key), format, text, 64);
    return text;
}

void top_header(const struct top *top, const struct commctl *commctl, unsigned line, char *text, size_t size)
{
    const json_t *status = top->status;
    char a[64], b[64], c[64], d[64];
    bool standalone = json_is_true(json_object_get(status, "standalone"));
    if (status == NULL) {
        snprintf(text, size, "%s", line == 0 ? commctl->socket_path : "");
    } else if (line == 0) {
        snprintf(text, size, "node %s%s%s, up %s, commd %s%s", shown(status, "node_name", COLUMN_TEXT, a),
                 standalone ? " (standalone)" : " of cluster ",
                 standalone ? "" : shown(status, "cluster_name", COLUMN_TEXT, b),
                 shown(status, "uptime_ms", COLUMN_MS, c), shown(status, "version_text", COLUMN_TEXT, d),
                 json_is_true(json_object_get(status, "draining")) ? ", draining" : "");
    } else if (line == 1) {
        snprintf(text, size, "%s operations/s, %s pending, %s failed; %s processes",
                 shown(status, "ops_per_s", COLUMN_NUMBER, a), shown(status, "ops_pending", COLUMN_NUMBER, b),
                 shown(status, "ops_failed", COLUMN_NUMBER, c), shown(status, "clients", COLUMN_NUMBER, d));
    } else {
        snprintf(text, size, "sent %s/s, received %s/s; other nodes up: %s of %s",
                 shown(status, "sent_bytes_per_s", COLUMN_BYTES, a),
                 shown(status, "received_bytes_per_s", COLUMN_BYTES, b),
                 shown(status, "nodes_up", COLUMN_NUMBER, c),
                 shown(status, "nodes_configured", COLUMN_NUMBER, d));
    }
}

/* --- Without a screen --- */

static void print_text(const struct top *top, const struct commctl *commctl, unsigned table)
{
    char text[512];
    for (unsigned line = 0; line < TOP_HEADER_LINES; line++) {
        top_header(top, commctl, line, text, sizeof text);
        puts(text);
    }
    for (unsigned i = 0; i < TOP_TABLES; i++) {
        const struct top_rows *rows = &top->tables[i];
        if (table != TOP_TABLES && table != i) {
            continue;
        }
        printf("\n%s:\n", rows->table->name);
        table_print(rows->rows, rows->table->columns, rows->table->column_count);
        print_others(rows->others, rows->table->list->singular, rows->table->list->plural);
    }
    putchar('\n');
}

/* One object on one line for each look, so that programs can read it line by line. */
static void print_json(const struct top *top)
{
    json_t *object = json_pack("{sO,si}", "status", top->status, "schema_version", COMMCTL_SCHEMA_VERSION);
    for (unsigned i = 0; i < TOP_TABLES; i++) {
        json_object_set(object, top_tables[i].name, top->tables[i].rows);
    }
    json_dumpf(object, stdout, JSON_COMPACT | JSON_SORT_KEYS);
    putchar('\n');
    json_decref(object);
}

static void wait_s(double seconds)
{
    struct timespec time = {.tv_sec = (time_t)seconds,
                            .tv_nsec = (long)((seconds - (double)(time_t)seconds) * 1e9)};
    nanosleep(&time, NULL);
}

static enum exit_code print_looks(struct top *top, struct commctl *commctl, unsigned table, double interval_s,
                                  long count)
{
    enum exit_code code = top_look(top, commctl, now_s());
    wait_s(code == EXIT_CODE_OK ? (interval_s < FIRST_LOOK_S ? interval_s : FIRST_LOOK_S) : 0);
    for (long i = 0; (count == 0 || i < count) && code == EXIT_CODE_OK && !ferror(stdout); i++) {
        if (i > 0) {
            wait_s(interval_s);
        }
        code = top_look(top, commctl, now_s());
        if (code == EXIT_CODE_OK && commctl->json) {
            print_json(top);
        } else if (code == EXIT_CODE_OK) {
            print_text(top, commctl, table);
        }
        fflush(stdout);
    }
    if (code != EXIT_CODE_OK) {
        fprintf(stderr, "%s\n", top->message);
    }
    return code;
}

/* --- The verb --- */

struct top_options {
    double interval_s;
    long count;     /* 0: until it is stopped */
    unsigned table; /* TOP_TABLES: none was chosen */
    bool text;
};

static const char usage[] = "usage: commctl top [-d SECONDS] [-n COUNT] [--table NAME] [--text]\n";

static bool find_table(const char *name, unsigned *table)
{
    for (*table = 0; *table < TOP_TABLES; ++*table) {
        if (strcmp(name, top_tables[*table].name) == 0) {
            return true;
        }
    }
    return false;
}

static enum exit_code parse_option(struct top_options *top, int option)
{
    char *end = optarg;
    switch (option) {
    case 'd':
        top->interval_s = strtod(optarg, &end);
        return end != optarg && *end == '\0' && top->interval_s >= 0.1 && top->interval_s <= 3600
                   ? EXIT_CODE_OK
                   : usage_wrong("top", "-d", optarg, "seconds between looks, 0.1 to 3600", usage);
    case 'n':
        top->count = strtol(optarg, &end, 10);
        return end != optarg && *end == '\0' && top->count >= 1 && top->count <= LOOKS_MAX
                   ? EXIT_CODE_OK
                   : usage_wrong("top", "-n", optarg, "how many looks, 1 to 1000000", usage);
    case 'T':
        return find_table(optarg, &top->table)
                   ? EXIT_CODE_OK
                   : usage_wrong("top", "--table", optarg, "communicators, operations, links or processes",
                                 usage);
    case 'x':
        top->text = true;
        return EXIT_CODE_OK;
    default:
        fputs(usage, stderr);
        return EXIT_CODE_USAGE;
    }
}

static enum exit_code parse(int argc, char **argv, struct top_options *top)
{
    static const struct option options[] = {{"interval", required_argument, NULL, 'd'},
                                            {"count", required_argument, NULL, 'n'},
                                            {"table", required_argument, NULL, 'T'},
                                            {"text", no_argument, NULL, 'x'},
                                            {NULL, 0, NULL, 0}};
    optind = 0;
    for (int option; (option = getopt_long(argc, argv, "d:n:", options, NULL)) != -1;) {
        enum exit_code code = parse_option(top, option);
        if (code != EXIT_CODE_OK) {
            return code;
        }
    }
    return optind == argc ? EXIT_CODE_OK : usage_wrong("top", argv[optind], NULL, "options alone", usage);
}

enum exit_code verb_top(struct commctl *commctl, int argc, char **argv)
{
    struct top_options options = {.interval_s = 1, .table = TOP_TABLES};
    enum exit_code code = parse(argc, argv, &options);
    if (code != EXIT_CODE_OK) {
        return code;
    }
    struct top top;
    top_init(&top);
    bool screen = !options.text && options.count == 0 && !commctl->json && isatty(STDIN_FILENO) &&
                  isatty(STDOUT_FILENO);
    unsigned first = options.table == TOP_TABLES ? TOP_COMMS : options.table;
    if (!screen || !top_screen_run(&top, commctl, first, options.interval_s, &code)) {
        code = print_looks(&top, commctl, options.table, options.interval_s, options.count);
    }
    top_free(&top);
    return code;
}
