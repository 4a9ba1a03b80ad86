#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "client/commctl/top.h"

#define COLUMNS(columns) (columns), sizeof(columns) / sizeof(columns)[0]

static const struct column comm_columns[] = {
    {"name", "COMMUNICATOR", COLUMN_TEXT},     {"owner_uid", "UID", COLUMN_NUMBER},
    {"state", "STATE", COLUMN_TEXT},           {"ops_per_s", "OPS/S", COLUMN_NUMBER},
    {"bytes_per_s", "BYTES/S", COLUMN_BYTES},  {"size", "RANKS", COLUMN_NUMBER},
    {"local_size", "LOCAL", COLUMN_NUMBER},    {"ops_completed", "DONE", COLUMN_NUMBER},
    {"since_ms", "SINCE", COLUMN_MS},          {"node_names", "NODES", COLUMN_LIST},
    {"missing_ranks", "MISSING", COLUMN_TEXT}, {"error", "ERROR", COLUMN_TEXT},
};
static const struct column op_columns[] = {
    {"comm_name", "COMMUNICATOR", COLUMN_TEXT},
    {"owner_uid", "UID", COLUMN_NUMBER},
    {"seq", "SEQ", COLUMN_NUMBER},
    {"kind", "OPERATION", COLUMN_TEXT},
    {"dtype", "TYPE", COLUMN_TEXT},
    {"count_elements", "COUNT", COLUMN_NUMBER},
    {"age_ms", "AGE", COLUMN_MS},
    {"deadline_in_ms", "DEADLINE IN", COLUMN_MS},
    {"missing_ranks", "LATE RANKS", COLUMN_TEXT},
    {"waiting_for", "WAITING FOR", COLUMN_TEXT},
};
static const struct column link_columns[] = {
    {"name", "NODE", COLUMN_TEXT},
    {"state", "STATE", COLUMN_TEXT},
    {"sent_bytes_per_s", "SENT/S", COLUMN_BYTES},
    {"received_bytes_per_s", "RECEIVED/S", COLUMN_BYTES},
    {"lost_packets_per_s", "LOST/S", COLUMN_NUMBER},
    {"heartbeat_round_trip_ns", "HEARTBEAT", COLUMN_NS},
    {"rails_connected/rails_needed", "RAILS", COLUMN_SHARE},
    {"since_ms", "SINCE", COLUMN_MS},
    {"address", "ADDRESS", COLUMN_TEXT},
    {"last_error", "LAST ERROR", COLUMN_TEXT},
};
static const struct column process_columns[] = {
    {"pid", "PID", COLUMN_NUMBER},
    {"uid", "UID", COLUMN_NUMBER},
    {"ops_per_s", "OPS/S", COLUMN_NUMBER},
    {"comms", "RANKS", COLUMN_NUMBER},
    {"memory_bytes", "REGISTERED", COLUMN_BYTES},
    {"ops_submitted", "SUBMITTED", COLUMN_NUMBER},
    {"ops_completed", "DONE", COLUMN_NUMBER},
    {"connected_ms", "SINCE", COLUMN_MS},
    {"program", "PROGRAM", COLUMN_TEXT},
};

const struct top_table top_tables[TOP_TABLES] = {
    [TOP_COMMS] = {"communicators",
                   &list_comms,
                   COLUMNS(comm_columns),
                   "comm_id",
                   {{"ops_completed", "ops_per_s"}, {"bytes_reduced", "bytes_per_s"}},
                   4,
                   true},
    [TOP_OPS] = {"operations", &list_ops, COLUMNS(op_columns), NULL, {{NULL, NULL}}, 6, true},
    [TOP_LINKS] = {"links",
                   &list_nodes,
                   COLUMNS(link_columns),
                   "name",
                   {{"sent_bytes", "sent_bytes_per_s"},
                    {"received_bytes", "received_bytes_per_s"},
                    {"lost_packets", "lost_packets_per_s"}},
                   2,
                   true},
    [TOP_PROCESSES] = {"processes",
                       &list_clients,
                       COLUMNS(process_columns),
                       "id",
                       {{"ops_completed", "ops_per_s"}},
                       2,
                       true},
};

/* The text by which a row is recognised: the value of its id, which is a text or a number. */
static const char *row_id(const struct top_table *table, const json_t *row, char *text, size_t size)
{
    const json_t *id = json_object_get(row, table->id);
    if (json_is_string(id)) {
        return json_string_value(id);
    }
    snprintf(text, size, "%lld", (long long)json_integer_value(id));
    return text;
}

static json_int_t per_s(json_int_t now, json_int_t before, double seconds)
{
    /* A total that shrinks was counted from zero again, by another commd or another connection. */
    return now < before || seconds <= 0 ? 0 : (json_int_t)((double)(now - before) / seconds + 0.5);
}

static void add_rates(struct top_rows *top, double now_s)
{
    json_t *totals = json_object();
    size_t index;
    json_t *row;
    json_array_foreach(top->rows, index, row)
    {
        char text[32];
        const char *id = row_id(top->table, row, text, sizeof text);
        const json_t *before = json_object_get(top->totals, id);
        json_t *now = json_object();
        for (const struct top_rate *rate = top->table->rates; rate->total != NULL; rate++) {
            json_t *total = json_object_get(row, rate->total);
            const json_t *old = json_object_get(before, rate->total);
            json_int_t value = old == NULL ? 0
                                           : per_s(json_integer_value(total), json_integer_value(old),
                                                   now_s - top->looked_s);
            json_object_set_new(row, rate->rate, json_integer(value));
            json_object_set(now, rate->total, total);
        }
        json_object_set_new(totals, id, now);
    }
    json_decref(top->totals);
    top->totals = totals;
}

struct sort_entry {
    json_t *row;
    size_t place; /* before the sort */
    const struct column *column;
    bool descending;
};

static int compare_numbers(long long a, long long b)
{
    return (a > b) - (a < b);
}

static int compare_values(const struct column *column, const json_t *a, const json_t *b)
{
    if (column->format == COLUMN_TEXT || column->format == COLUMN_LIST) {
        char text_a[256], text_b[256];
        table_cell(a, column, text_a, sizeof text_a);
        table_cell(b, column, text_b, sizeof text_b);
        return strcasecmp(text_a, text_b);
    }
    size_t length = strcspn(column->key, "/"); /* of a share, its part */
    return compare_numbers(json_integer_value(json_object_getn(a, column->key, length)),
                           json_integer_value(json_object_getn(b, column->key, length)));
}

static int compare_entries(const void *left, const void *right)
{
    const struct sort_entry *a = left, *b = right;
    int order = compare_values(a->column, a->row, b->row);
    if (order == 0) {
        return (a->place > b->place) - (a->place < b->place);
    }
    return a->descending ? -order : order;
}

void top_rows_sort(struct top_rows *top)
{
    size_t count = json_array_size(top->rows);
    struct sort_entry *entries = count > 1 ? calloc(count, sizeof *entries) : NULL;
    if (entries == NULL) {
        return; /* nothing to sort, or no memory: the order stays */
    }
    for (size_t i = 0; i < count; i++) {
        entries[i] = (struct sort_entry){json_incref(json_array_get(top->rows, i)), i,
                                         &top->table->columns[top->sort_column], top->descending};
    }
    qsort(entries, count, sizeof *entries, compare_entries);
    for (size_t i = 0; i < count; i++) {
        json_array_set_new(top->rows, i, entries[i].row);
    }
    free(entries);
}

void top_rows_take(struct top_rows *top, json_t *rows, double now_s)
{
    json_decref(top->rows);
    top->rows = rows;
    if (top->table->id != NULL) {
        add_rates(top, now_s);
    }
    top->looked_s = now_s;
    top_rows_sort(top);
}

void top_rows_free(struct top_rows *top)
{
    json_decref(top->rows);
    json_decref(top->totals);
    top->rows = top->totals = NULL;
}
