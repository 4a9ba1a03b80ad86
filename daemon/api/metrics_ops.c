#include <inttypes.h>
#include <stdio.h>

#include "daemon/api/metrics.h"

/* Operations and messages, by kind, size class and result. */

static const struct metrics_family operations = {
    "commd_operations", "", "Operations and messages of this node that ended, by kind, size and result.",
    METRICS_COUNTER};
static const struct metrics_family operation_bytes = {
    "commd_operation_bytes", "bytes",
    "Bytes of operations and messages that succeeded: the whole vector of an operation, once for each node.",
    METRICS_COUNTER};
static const struct metrics_family durations = {
    "commd_operation_duration_seconds", "seconds",
    "Time from the first local call to the end, of operations and messages that succeeded.",
    METRICS_HISTOGRAM};
static const struct metrics_family bandwidths = {
    "commd_operation_bandwidth_bytes_per_second", "bytes_per_second",
    "Bytes over time from the last local call to the end, of operations and messages that succeeded.",
    METRICS_HISTOGRAM};
static const struct metrics_family refused_calls = {
    "commd_calls_refused", "", "Calls of operations that were refused at once, by result.", METRICS_COUNTER};

static const struct metrics_family in_cells = {"commd_operations_in_cells", "",
                                               "Operations that the ranks of this node carried out "
                                               "themselves, in shared memory. The metrics of operations "
                                               "count them, too, except for bandwidth. One of 61 is timed.",
                                               METRICS_COUNTER};

/* A cell of the table, as labels. The class's label is its largest size. */
struct cell_labels {
    char size[24];
    struct metrics_label labels[3]; /* the third: for more */
};

static void cell_label(struct cell_labels *out, unsigned kind, unsigned class)
{
    if (op_bounds_class_bytes[class] == UINT64_MAX) {
        (void)snprintf(out->size, sizeof out->size, "+Inf");
    } else {
        (void)snprintf(out->size, sizeof out->size, "%" PRIu64, op_bounds_class_bytes[class]);
    }
    out->labels[0] = (struct metrics_label){"kind", op_kind_text((enum op_kind)kind)};
    out->labels[1] = (struct metrics_label){"size_max_bytes", out->size};
}

typedef void cell_function(struct metrics_text *text, struct cell_labels *labels,
                           const struct op_counts_cell *cell);

static void each_cell(const struct op_counts *counts, struct metrics_text *text,
                      const struct metrics_family *family, cell_function *function)
{
    metrics_begin(text, family);
    for (unsigned kind = 0; kind < OP_KIND_COUNT; kind++) {
        for (unsigned class = 0; class < OP_BOUNDS_CLASSES; class ++) {
            struct cell_labels labels;
            cell_label(&labels, kind, class);
            function(text, &labels, &counts->cells[kind][class]);
        }
    }
}

static void put_results(struct metrics_text *text, struct cell_labels *labels,
                        const struct op_counts_cell *cell)
{
    for (unsigned status = 0; status < STATUS_COUNT; status++) {
        if (cell->results[status] > 0) {
            labels->labels[2] = (struct metrics_label){"result", status_name((enum status)status)};
            metrics_put(text, labels->labels, 3, cell->results[status]);
        }
    }
}

static void put_bytes(struct metrics_text *text, struct cell_labels *labels,
                      const struct op_counts_cell *cell)
{
    if (cell->bytes > 0) {
        metrics_put(text, labels->labels, 2, cell->bytes);
    }
}

static void put_duration(struct metrics_text *text, struct cell_labels *labels,
                         const struct op_counts_cell *cell)
{
    metrics_put_histogram(text, labels->labels, 2, &cell->latency_ns, op_bounds_latencies_ns,
                          OP_BOUNDS_LATENCIES, METRICS_SCALE_NS_TO_SECONDS);
}

static void put_bandwidth(struct metrics_text *text, struct cell_labels *labels,
                          const struct op_counts_cell *cell)
{
    metrics_put_histogram(text, labels->labels, 2, &cell->bandwidth, op_counts_bandwidths,
                          OP_COUNTS_BANDWIDTHS, METRICS_SCALE_ONE);
}

void metrics_write_ops(const struct api *api, struct metrics_text *text)
{
    const struct op_counts *counts = &comms_totals(api->comms)->ops;
    each_cell(counts, text, &operations, put_results);
    each_cell(counts, text, &operation_bytes, put_bytes);
    each_cell(counts, text, &durations, put_duration);
    each_cell(counts, text, &bandwidths, put_bandwidth);
    metrics_begin(text, &in_cells);
    metrics_put(text, NULL, 0, comms_totals(api->comms)->ops_in_cells);
    metrics_begin(text, &refused_calls);
    for (unsigned status = 0; status < STATUS_COUNT; status++) {
        if (api->calls_refused[status] > 0) {
            struct metrics_label label = {"result", status_name((enum status)status)};
            metrics_put(text, &label, 1, api->calls_refused[status]);
        }
    }
}
