#ifndef DAEMON_API_METRICS_TEXT_H
#define DAEMON_API_METRICS_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/base/histogram.h"

/*
 * Writes metrics as text: OpenMetrics 1.0, or Prometheus' text format 0.0.4. A family is declared first; its
 * head is written with its first sample, so a family without samples is left out. Counters whose value is 0
 * are written: a reader can then see them rise.
 */
enum metrics_format { METRICS_PROMETHEUS, METRICS_OPENMETRICS };
enum metrics_type { METRICS_COUNTER, METRICS_GAUGE, METRICS_HISTOGRAM, METRICS_INFO };

struct metrics_family {
    const char *name; /* with the unit at its end; without "_total", "_info" and "_bucket" */
    const char *unit; /* "seconds", "bytes", ...; "": none */
    const char *help; /* without line feeds, quotes and backslashes */
    enum metrics_type type;
};

struct metrics_label {
    const char *name;
    const char *value; /* bytes that are not printable ASCII become '?'; quotes and backslashes are escaped */
};
#define METRICS_LABELS_MAX 4

/* A text that is being written. `failed`: memory was short, or the text would have been longer than
 * max_bytes. Then nothing more is written. */
struct metrics_text {
    char *bytes; /* malloc'ed; not terminated */
    size_t used_bytes, capacity_bytes, max_bytes;
    enum metrics_format format;
    bool failed;
    const struct metrics_family *family;
    bool has_head;
};

void metrics_text_begin(struct metrics_text *text, enum metrics_format format, size_t max_bytes);
/* Call it after the last sample. */
void metrics_text_end(struct metrics_text *text);
void metrics_text_free(struct metrics_text *text);

/* The samples that follow belong to this family, which must outlive them. */
void metrics_begin(struct metrics_text *text, const struct metrics_family *family);
void metrics_put(struct metrics_text *text, const struct metrics_label *labels, size_t label_count,
                 uint64_t value);
/* A value in nanoseconds, written in seconds. */
void metrics_put_ns(struct metrics_text *text, const struct metrics_label *labels, size_t label_count,
                    uint64_t value_ns);

/* How a histogram's bounds and sum are written. */
enum metrics_scale { METRICS_SCALE_ONE, METRICS_SCALE_NS_TO_SECONDS };
/* Writes nothing for an empty histogram. */
void metrics_put_histogram(struct metrics_text *text, const struct metrics_label *labels, size_t label_count,
                           const struct histogram *histogram, const uint64_t *bounds, size_t bound_count,
                           enum metrics_scale scale);

#endif
