#include "daemon/api/metrics_text.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/base/time.h"

#define FIRST_CAPACITY_BYTES (64u << 10)
#define NUMBER_MAX_DIGITS 20
#define FRACTION_DIGITS 9 /* of seconds, in nanoseconds */

void metrics_text_begin(struct metrics_text *text, enum metrics_format format, size_t max_bytes)
{
    *text = (struct metrics_text){.format = format, .max_bytes = max_bytes};
}

void metrics_text_free(struct metrics_text *text)
{
    free(text->bytes);
    text->bytes = NULL;
}

/* --- Pieces. A scrape writes thousands of them, so none is formatted by printf. --- */

static bool reserve(struct metrics_text *text, size_t size)
{
    if (text->failed || size > text->max_bytes - text->used_bytes) {
        text->failed = true;
        return false;
    }
    size_t wanted = text->capacity_bytes == 0 ? FIRST_CAPACITY_BYTES : text->capacity_bytes;
    while (wanted < text->used_bytes + size) {
        wanted *= 2;
    }
    if (wanted > text->capacity_bytes) {
        char *bytes = realloc(text->bytes, wanted);
        if (bytes == NULL) {
            text->failed = true;
            return false;
        }
        text->bytes = bytes;
        text->capacity_bytes = wanted;
    }
    return true;
}

static void add_bytes(struct metrics_text *text, const char *bytes, size_t size)
{
    if (reserve(text, size)) {
        memcpy(text->bytes + text->used_bytes, bytes, size);
        text->used_bytes += size;
    }
}

static void add(struct metrics_text *text, const char *string)
{
    add_bytes(text, string, strlen(string));
}

/* At least `digits` digits. */
static void add_number(struct metrics_text *text, uint64_t number, unsigned digits)
{
    char out[NUMBER_MAX_DIGITS];
    size_t at = sizeof out;
    while (number > 0 || sizeof out - at < digits) {
        out[--at] = (char)('0' + number % 10);
        number /= 10;
    }
    add_bytes(text, out + at, sizeof out - at);
}

static void add_seconds(struct metrics_text *text, uint64_t value_ns)
{
    uint64_t fraction = value_ns % TIME_S;
    unsigned digits = FRACTION_DIGITS;
    add_number(text, value_ns / TIME_S, 1);
    if (fraction == 0) {
        return;
    }
    while (fraction % 10 == 0) {
        fraction /= 10;
        digits--;
    }
    add(text, ".");
    add_number(text, fraction, digits);
}

static void add_label_value(struct metrics_text *text, const char *value)
{
    for (const char *byte = value; *byte != '\0'; byte++) {
        if (*byte == '"' || *byte == '\\') {
            add_bytes(text, "\\", 1);
        }
        add_bytes(text, *byte < ' ' || *byte > '~' ? "?" : byte, 1);
    }
}

static void add_label(struct metrics_text *text, const char *name, const char *value, bool is_first)
{
    add(text, is_first ? "{" : ",");
    add(text, name);
    add(text, "=\"");
    add_label_value(text, value);
    add(text, "\"");
}

/* --- Families --- */

static const char *type_text(enum metrics_type type, enum metrics_format format)
{
    switch (type) {
    case METRICS_COUNTER:
        return "counter";
    case METRICS_GAUGE:
        return "gauge";
    case METRICS_HISTOGRAM:
        return "histogram";
    case METRICS_INFO:
        return format == METRICS_OPENMETRICS ? "info" : "gauge";
    }
    return "unknown";
}

/* What follows the family's name in each sample's name. */
static const char *suffix_text(enum metrics_type type)
{
    switch (type) {
    case METRICS_COUNTER:
        return "_total";
    case METRICS_INFO:
        return "_info";
    case METRICS_GAUGE:
    case METRICS_HISTOGRAM:
        break;
    }
    return "";
}

/* OpenMetrics names the family; the older format, its samples. */
static void add_head_line(struct metrics_text *text, const char *what, const char *value)
{
    const struct metrics_family *family = text->family;
    add(text, "# ");
    add(text, what);
    add(text, " ");
    add(text, family->name);
    if (text->format == METRICS_PROMETHEUS) {
        add(text, suffix_text(family->type));
    }
    add(text, " ");
    add(text, value);
    add(text, "\n");
}

void metrics_begin(struct metrics_text *text, const struct metrics_family *family)
{
    text->family = family;
    text->has_head = false;
}

/* Writes the sample's name; before the family's first sample, its head. */
static void add_name(struct metrics_text *text, const char *suffix)
{
    const struct metrics_family *family = text->family;
    if (!text->has_head) {
        text->has_head = true;
        add_head_line(text, "HELP", family->help);
        add_head_line(text, "TYPE", type_text(family->type, text->format));
        if (text->format == METRICS_OPENMETRICS && family->unit[0] != '\0') {
            add_head_line(text, "UNIT", family->unit);
        }
    }
    add(text, family->name);
    add(text, suffix);
}

static void add_labels(struct metrics_text *text, const struct metrics_label *labels, size_t label_count)
{
    assert(label_count <= METRICS_LABELS_MAX);
    for (size_t i = 0; i < label_count; i++) {
        add_label(text, labels[i].name, labels[i].value, i == 0);
    }
    add(text, label_count > 0 ? "} " : " ");
}

void metrics_put(struct metrics_text *text, const struct metrics_label *labels, size_t label_count,
                 uint64_t value)
{
    add_name(text, suffix_text(text->family->type));
    add_labels(text, labels, label_count);
    add_number(text, value, 1);
    add(text, "\n");
}

void metrics_put_ns(struct metrics_text *text, const struct metrics_label *labels, size_t label_count,
                    uint64_t value_ns)
{
    add_name(text, suffix_text(text->family->type));
    add_labels(text, labels, label_count);
    add_seconds(text, value_ns);
    add(text, "\n");
}

/* --- Histograms --- */

static void add_scaled(struct metrics_text *text, uint64_t value, enum metrics_scale scale)
{
    switch (scale) {
    case METRICS_SCALE_ONE:
        add_number(text, value, 1);
        break;
    case METRICS_SCALE_NS_TO_SECONDS:
        add_seconds(text, value);
        break;
    }
}

/* bound: null for the last bucket. */
static void add_bucket(struct metrics_text *text, const struct metrics_label *labels, size_t label_count,
                       const uint64_t *bound, uint64_t count, enum metrics_scale scale)
{
    add_name(text, "_bucket");
    for (size_t i = 0; i < label_count; i++) {
        add_label(text, labels[i].name, labels[i].value, i == 0);
    }
    add(text, label_count > 0 ? ",le=\"" : "{le=\"");
    if (bound != NULL) {
        add_scaled(text, *bound, scale);
    } else {
        add(text, "+Inf");
    }
    add(text, "\"} ");
    add_number(text, count, 1);
    add(text, "\n");
}

void metrics_put_histogram(struct metrics_text *text, const struct metrics_label *labels, size_t label_count,
                           const struct histogram *histogram, const uint64_t *bounds, size_t bound_count,
                           enum metrics_scale scale)
{
    uint64_t count = 0, all = histogram_count(histogram);
    if (all == 0) {
        return;
    }
    for (size_t i = 0; i < bound_count; i++) {
        count += histogram->counts[i];
        add_bucket(text, labels, label_count, &bounds[i], count, scale);
    }
    add_bucket(text, labels, label_count, NULL, all, scale);
    add_name(text, "_sum");
    add_labels(text, labels, label_count);
    add_scaled(text, histogram->sum, scale);
    add(text, "\n");
    add_name(text, "_count");
    add_labels(text, labels, label_count);
    add_number(text, all, 1);
    add(text, "\n");
}

void metrics_text_end(struct metrics_text *text)
{
    if (text->format == METRICS_OPENMETRICS) {
        add(text, "# EOF\n");
    }
}
