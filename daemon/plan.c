#include "daemon/plan.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/coll/forecast.h"
#include "daemon/coll/overrides.h"

enum { PLAN_OPERATION, PLAN_NODES, PLAN_LATENCY, PLAN_RATE, PLAN_SLICE, PLAN_OVERRIDES, PLAN_SIZES };

static bool parse_number(const char *what, const char *text, uint64_t low, uint64_t high, uint64_t *out)
{
    char *end;
    errno = 0;
    unsigned long long number = strtoull(text, &end, 10);
    if (errno != 0 || end == text || *end != '\0' || text[0] == '-' || number < low || number > high) {
        (void)fprintf(stderr, "plan: %s: \"%s\": expected a number from %llu to %llu\n", what, text,
                      (unsigned long long)low, (unsigned long long)high);
        return false;
    }
    *out = number;
    return true;
}

static void print_forecast(const struct coll_algorithm *algorithm, const struct coll_choice *choice,
                           const struct coll_network *network, bool picked)
{
    struct coll_forecast forecast;
    coll_forecast(algorithm, choice, network, &forecast);
    (void)printf(
        "{\"kind\":\"%s\",\"name\":\"%s\",\"size_bytes\":%llu,\"predicted_ns\":%.0f,\"slices\":%llu,"
        "\"rounds\":%llu,\"messages\":%.0f,\"sent_bytes\":%.0f,\"memory_bytes\":%.0f,\"picked\":%s}\n",
        op_kind_text(algorithm->kind), algorithm->name, (unsigned long long)choice->size_bytes,
        forecast.seconds * 1e9, (unsigned long long)forecast.slices, (unsigned long long)forecast.rounds,
        forecast.messages, forecast.sent_bytes, forecast.memory_bytes, picked ? "true" : "false");
}

int plan_run(int argument_count, char **arguments)
{
    struct coll_network network = coll_network_default;
    struct coll_overrides overrides;
    struct error error;
    uint64_t nodes, latency_ns, bytes_per_s, slice_bytes;
    uint32_t count;
    uint32_t served = 0;
    if (argument_count <= PLAN_SIZES) {
        (void)fputs("plan: OPERATION NODES LATENCY_NS BYTES_PER_S SLICE_BYTES OVERRIDES SIZE_BYTES...\n",
                    stderr);
        return 2;
    }
    if (!parse_number("nodes", arguments[PLAN_NODES], 1, COLL_NODES_MAX, &nodes) ||
        !parse_number("latency", arguments[PLAN_LATENCY], 1, 1000000000000, &latency_ns) ||
        !parse_number("bandwidth", arguments[PLAN_RATE], 1, 1000000000000000, &bytes_per_s) ||
        !parse_number("slice", arguments[PLAN_SLICE], 1, 1ull << 40, &slice_bytes)) {
        return 2;
    }
    if (coll_overrides_parse(arguments[PLAN_OVERRIDES], &overrides, &error) != STATUS_OK) {
        (void)fprintf(stderr, "plan: algorithms: %s\n", error.text);
        return 2;
    }
    network.latency_s = (double)latency_ns * 1e-9;
    network.bandwidth_bytes_per_s = (double)bytes_per_s;
    const struct coll_algorithm *const *all = coll_registry(&count);
    for (uint32_t i = 0; i < count; i++) {
        for (int size = PLAN_SIZES; size < argument_count; size++) {
            struct coll_choice choice = {.kind = all[i]->kind,
                                         .node_count = (uint32_t)nodes,
                                         .element_bytes = 1,
                                         .slice_bytes = slice_bytes,
                                         .blocks_are_equal = true};
            if (strcmp(arguments[PLAN_OPERATION], op_kind_text(all[i]->kind)) != 0) {
                continue;
            }
            if (!parse_number("size", arguments[size], 0, 1ull << 50, &choice.size_bytes)) {
                return 2;
            }
            if (coll_serves(all[i], &choice)) {
                print_forecast(all[i], &choice, &network,
                               coll_select(&choice, &network, &overrides) == all[i]);
                served++;
            }
        }
    }
    if (served == 0) {
        (void)fprintf(stderr, "plan: no operation is called \"%s\"\n", arguments[PLAN_OPERATION]);
        return 4;
    }
    return 0;
}
