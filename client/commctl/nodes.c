#include <getopt.h>
#include <stdio.h>
#include <string.h>

#include "client/commctl/commctl.h"

/* The verb "nodes". */

static const struct column columns[] = {
    {"name", "NODE", COLUMN_TEXT},
    {"state", "STATE", COLUMN_TEXT},
    {"since_ms", "SINCE", COLUMN_MS},
    {"address", "ADDRESS", COLUMN_TEXT},
    {"heartbeat_round_trip_ns", "HEARTBEAT", COLUMN_NS},
    {"estimated_round_trip_ns", "ESTIMATED", COLUMN_NS},
    {"rails_connected/rails_needed", "RAILS", COLUMN_SHARE},
    {"rail_addresses", "RAILS AT", COLUMN_TEXT},
    {"sent_bytes", "SENT", COLUMN_BYTES},
    {"received_bytes", "RECEIVED", COLUMN_BYTES},
    {"lost_packets", "LOST", COLUMN_NUMBER},
    {"resumed_count", "RESUMED", COLUMN_NUMBER},
    {"datagram_bytes", "DATAGRAM", COLUMN_NUMBER},
    {"bulk_link", "BULK", COLUMN_TEXT},
    {"bulk_quic_rate", "BY QUIC/S", COLUMN_BYTES},
    {"bulk_tls_rate", "BY TLS/S", COLUMN_BYTES},
    {"version_text", "VERSION", COLUMN_TEXT},
    {"certificate_ends_s", "CERTIFICATE UNTIL", COLUMN_DATE},
    {"last_error", "LAST ERROR", COLUMN_TEXT},
};

static const char *text_of(const json_t *row, const char *key)
{
    const char *text = json_string_value(json_object_get(row, key));
    return text != NULL ? text : "";
}

static bool is_other(const json_t *row)
{
    return text_of(row, "settings_differ")[0] != '\0';
}

static bool runs(const json_t *row)
{
    return strcmp(text_of(row, "state"), "up") == 0 || strcmp(text_of(row, "state"), "alive") == 0;
}

/* The rows that need attention, as a new array. */
static json_t *rows_in_trouble(const json_t *rows)
{
    json_t *bad = json_array();
    size_t index;
    json_t *row;
    json_array_foreach(rows, index, row)
    {
        if (!runs(row) || is_other(row)) {
            json_array_append(bad, row);
        }
    }
    return bad;
}

/* How many nodes are in each state, as a new object; also {"settings_differ": N, "draining": N}. */
static json_t *summary_of(const json_t *rows)
{
    json_t *states = json_object();
    json_int_t others = 0, drain = 0;
    size_t index;
    json_t *row;
    json_array_foreach(rows, index, row)
    {
        const char *state = text_of(row, "state");
        json_int_t count = json_integer_value(json_object_get(states, state));
        json_object_set_new(states, state, json_integer(count + 1));
        others += is_other(row);
        drain += json_is_true(json_object_get(row, "draining"));
    }
    return json_pack("{sI,so,sI,sI}", "nodes", (json_int_t)json_array_size(rows), "states", states,
                     "settings_differ", others, "draining", drain);
}

static void print_summary(const json_t *summary)
{
    const char *state;
    json_t *count;
    printf("%-12s%lld\n", "nodes", (long long)json_integer_value(json_object_get(summary, "nodes")));
    json_object_foreach(json_object_get(summary, "states"), state, count)
    {
        printf("%-12s%lld\n", state, (long long)json_integer_value(count));
    }
    long long others = (long long)json_integer_value(json_object_get(summary, "settings_differ"));
    long long drain = (long long)json_integer_value(json_object_get(summary, "draining"));
    if (drain > 0) {
        printf("%lld of them draining\n", drain);
    }
    if (others > 0) {
        printf("%lld with other settings than this node\n", others);
    }
}

static void print_rows(const json_t *rows)
{
    size_t index;
    json_t *row;
    json_array_foreach(rows, index, row)
    {
        if (json_is_true(json_object_get(row, "draining"))) {
            json_object_set_new(row, "state", json_sprintf("%s (draining)", text_of(row, "state")));
        }
    }
    table_print(rows, columns, sizeof columns / sizeof columns[0]);
    json_array_foreach(rows, index, row)
    {
        if (is_other(row)) {
            printf("node %s: %s: no communicator forms with that node, unless its program sets that itself\n",
                   text_of(row, "name"), text_of(row, "settings_differ"));
        }
    }
}

static void show(struct commctl *commctl, const json_t *rows, bool summary)
{
    if (summary) {
        json_t *object = summary_of(rows);
        if (commctl->json) {
            output_object(commctl, object, NULL);
            return;
        }
        print_summary(object);
        json_decref(object);
    } else if (commctl->json) {
        output_object(commctl, json_pack("{sO,sI}", "nodes", rows, "others", (json_int_t)0), NULL);
    } else {
        print_rows(rows);
    }
}

enum exit_code verb_nodes(struct commctl *commctl, int argc, char **argv)
{
    static const char usage[] = "usage: commctl nodes [--down | --summary]\n";
    static const struct option options[] = {
        {"down", no_argument, NULL, 'd'}, {"summary", no_argument, NULL, 's'}, {NULL, 0, NULL, 0}};
    bool down = false, summary = false;
    long long others;
    optind = 0; /* main has parsed the options before the verb */
    for (int option; (option = getopt_long(argc, argv, "", options, NULL)) != -1;) {
        if (option == '?') {
            fputs(usage, stderr);
            return EXIT_CODE_USAGE;
        }
        down = down || option == 'd';
        summary = summary || option == 's';
    }
    if (optind < argc || (down && summary)) {
        return usage_wrong("nodes", optind < argc ? argv[optind] : "--summary", NULL,
                           "no argument, --down or --summary", usage);
    }
    json_t *rows = json_array();
    enum exit_code code = list_fetch(commctl, &list_nodes, rows, &others);
    if (code == EXIT_CODE_OK) {
        json_t *bad = rows_in_trouble(rows);
        show(commctl, down ? bad : rows, summary);
        code = json_array_size(bad) > 0 ? EXIT_CODE_DEGRADED : EXIT_CODE_OK;
        json_decref(bad);
    }
    json_decref(rows);
    return code;
}
