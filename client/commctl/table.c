#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "client/commctl/commctl.h"

#define CELL_MAX_BYTES 256

static void format_bytes(long long bytes, char *text, size_t size)
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    double value = (double)bytes;
    size_t unit = 0;
    while (value >= 1024 && unit + 1 < sizeof units / sizeof units[0]) {
        value /= 1024;
        unit++;
    }
    snprintf(text, size, unit == 0 ? "%.0f %s" : "%.1f %s", value, units[unit]);
}

bool size_parse(const char *text, uint64_t *bytes)
{
    char *end;
    double value = strtod(text, &end);
    double unit = 1;
    if (end == text || !(value >= 0)) {
        return false;
    }
    switch (*end) {
    case 'k':
    case 'K':
        unit = 1024;
        end++;
        break;
    case 'm':
    case 'M':
        unit = 1024.0 * 1024;
        end++;
        break;
    case 'g':
    case 'G':
        unit = 1024.0 * 1024 * 1024;
        end++;
        break;
    default:
        break;
    }
    if (*end != '\0' || value * unit > 0x1p60) {
        return false;
    }
    *bytes = (uint64_t)(value * unit);
    return true;
}

static void format_ms(long long ms, char *text, size_t size)
{
    if (ms < 1000) {
        snprintf(text, size, "%lld ms", ms);
    } else if (ms < 120000) {
        snprintf(text, size, "%.1f s", (double)ms / 1000);
    } else if (ms < 7200000) {
        snprintf(text, size, "%lld min", ms / 60000);
    } else {
        snprintf(text, size, "%lld h %lld min", ms / 3600000, ms / 60000 % 60);
    }
}

static void format_date(long long seconds, char *text, size_t size)
{
    time_t when = (time_t)seconds;
    struct tm parts;
    if (seconds == 0 || gmtime_r(&when, &parts) == NULL || strftime(text, size, "%Y-%m-%d", &parts) == 0) {
        snprintf(text, size, "-");
    }
}

/* Of texts and numbers. */
static void format_list(const json_t *list, char *text, size_t size)
{
    size_t used = 0;
    size_t index;
    json_t *value;
    text[0] = '\0';
    json_array_foreach(list, index, value)
    {
        char element[CELL_MAX_BYTES];
        table_format(value, json_is_string(value) ? COLUMN_TEXT : COLUMN_NUMBER, element, sizeof element);
        int length = snprintf(text + used, size - used, "%s%s", used > 0 ? "," : "", element);
        if (length < 0 || (size_t)length >= size - used) {
            return;
        }
        used += (size_t)length;
    }
}

void table_format(const json_t *value, enum column_format format, char *text, size_t size)
{
    long long number = json_integer_value(value);
    switch (format) {
    case COLUMN_TEXT:
        snprintf(text, size, "%s",
                 json_is_string(value) && json_string_length(value) > 0 ? json_string_value(value) : "-");
        return;
    case COLUMN_NUMBER:
        snprintf(text, size, "%lld", number);
        return;
    case COLUMN_BYTES:
        format_bytes(number, text, size);
        return;
    case COLUMN_MS:
        format_ms(number, text, size);
        return;
    case COLUMN_NS:
        if (number == 0) {
            snprintf(text, size, "-");
        } else {
            snprintf(text, size, "%.3f ms", (double)number / 1e6);
        }
        return;
    case COLUMN_DATE:
        format_date(number, text, size);
        return;
    case COLUMN_LIST:
        format_list(value, text, size);
        return;
    case COLUMN_SHARE: /* of a row alone */
        snprintf(text, size, "-");
        return;
    }
}

void table_cell(const json_t *row, const struct column *column, char *text, size_t size)
{
    if (column->format != COLUMN_SHARE) {
        table_format(json_object_get(row, column->key), column->format, text, size);
        return;
    }
    const char *slash = strchr(column->key, '/');
    long long part = json_integer_value(json_object_getn(row, column->key, (size_t)(slash - column->key)));
    long long whole = json_integer_value(json_object_get(row, slash + 1));
    if (whole == 0) {
        snprintf(text, size, "-");
    } else {
        snprintf(text, size, "%lld/%lld", part, whole);
    }
}

static void print_row(const json_t *row, const struct column *columns, size_t count, const size_t *widths)
{
    for (size_t i = 0; i < count; i++) {
        char cell[CELL_MAX_BYTES];
        if (row == NULL) {
            snprintf(cell, sizeof cell, "%s", columns[i].title);
        } else {
            table_cell(row, &columns[i], cell, sizeof cell);
        }
        bool last = i + 1 == count;
        printf("%-*s%s", last || widths == NULL ? 0 : (int)widths[i], cell, last ? "\n" : "  ");
    }
}

void table_print(const json_t *rows, const struct column *columns, size_t column_count)
{
    size_t *widths = calloc(column_count, sizeof *widths); /* without memory: columns are not aligned */
    size_t index;
    json_t *row;
    for (size_t i = 0; i < column_count && widths != NULL; i++) {
        widths[i] = strlen(columns[i].title);
        json_array_foreach(rows, index, row)
        {
            char cell[CELL_MAX_BYTES];
            table_cell(row, &columns[i], cell, sizeof cell);
            widths[i] = strlen(cell) > widths[i] ? strlen(cell) : widths[i];
        }
    }
    print_row(NULL, columns, column_count, widths);
    json_array_foreach(rows, index, row)
    {
        print_row(row, columns, column_count, widths);
    }
    free(widths);
}
