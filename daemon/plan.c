#include "daemon/plan.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/coll/forecast.h"
#include "daemon/coll/overrides.h"
#include "daemon/comm/comms_forecast.h"

enum {
    PLAN_OPERATION,
    PLAN_NODES,
    PLAN_LATENCY,
    PLAN_RATE,
    PLAN_SLICE,
    PLAN_DIAL,
    PLAN_MESSAGE,
    PLAN_SHARE,
    PLAN_OVERRIDES,
    PLAN_SIZES
};

static bool parse_number(const char *what, const char *text, uint64_t low, uint64_t high, uint64_t *out)
{
    char *end;
    errno = 0;
    unsigned long long number = strtoull(text, &end, 10);
    if (errno != 0 || end == text || *end != '\0' || text[0] == '-' || number < low || number > high) {
        (void)fprintf(stderr, "commctl: plan: %s: \"%s\": expected a number from %llu to %llu\n", what, text,
                      (unsigned long long)low, (unsigned long long)high);
        return false;
    }
    *out = number;
    return true;
}

struct planned {
    struct comms_plan plan;
    struct comms_forecast formed;
    struct coll_network network; /* as the nodes have it that share a processor */
    struct coll_overrides overrides;
    uint64_t slice_bytes;
};

static bool parse_planned(char **arguments, struct planned *out)
{
    struct error error;
    uint64_t nodes, latency_ns, bytes_per_s, dial_ns, message_ns, share;
    if (!parse_number("nodes", arguments[PLAN_NODES], 1, COLL_NODES_MAX, &nodes) ||
        !parse_number("latency", arguments[PLAN_LATENCY], 1, 1000000000000, &latency_ns) ||
        !parse_number("bandwidth", arguments[PLAN_RATE], 1, 1000000000000000, &bytes_per_s) ||
        !parse_number("slice", arguments[PLAN_SLICE], 1, 1ull << 40, &out->slice_bytes) ||
        !parse_number("dial", arguments[PLAN_DIAL], 0, 1000000000000, &dial_ns) ||
        !parse_number("message", arguments[PLAN_MESSAGE], 0, 1000000000000, &message_ns) ||
        !parse_number("nodes of a processor", arguments[PLAN_SHARE], 1000, UINT64_C(1000) * COLL_NODES_MAX,
                      &share)) {
        return false;
    }
    if (coll_overrides_parse(arguments[PLAN_OVERRIDES], &out->overrides, &error) != STATUS_OK) {
        (void)fprintf(stderr, "commctl: plan: algorithms: %s\n", error.text);
        return false;
    }
    out->plan = (struct comms_plan){.node_count = (uint32_t)nodes,
                                    .network = coll_network_default,
                                    .dial_s = (double)dial_ns * 1e-9,
                                    .nodes_per_processor = (double)share / 1000};
    out->plan.network.message_s = (double)message_ns * 1e-9;
    out->plan.network.latency_s = (double)latency_ns * 1e-9;
    out->plan.network.bandwidth_bytes_per_s = (double)bytes_per_s;
    out->network = comms_forecast_network(&out->plan);
    comms_forecast(&out->plan, &out->formed);
    return true;
}

static void print_formed(const struct comms_forecast *formed)
{
    (void)printf("{\"by_tree\":%s,\"fresh_ns\":%.0f,\"warm_ns\":%.0f,\"links\":%u,\"memory_bytes\":%.0f}\n",
                 formed->by_tree ? "true" : "false", formed->fresh_s * 1e9, formed->warm_s * 1e9,
                 formed->links, formed->node_bytes);
}

static void print_forecast(const struct coll_algorithm *algorithm, const struct coll_choice *choice,
                           const struct planned *planned)
{
    struct coll_forecast forecast;
    bool picked = coll_select(choice, &planned->network, &planned->overrides) == algorithm;
    uint32_t links = coll_links(algorithm, choice);
    coll_forecast(algorithm, choice, &planned->network, &forecast);
    (void)printf(
        "{\"kind\":\"%s\",\"name\":\"%s\",\"size_bytes\":%llu,\"predicted_ns\":%.0f,\"first_ns\":%.0f,"
        "\"slices\":%llu,\"rounds\":%llu,\"messages\":%.0f,\"sent_bytes\":%.0f,\"memory_bytes\":%.0f,"
        "\"links\":%u,\"picked\":%s}\n",
        op_kind_text(algorithm->kind), algorithm->name, (unsigned long long)choice->size_bytes,
        forecast.seconds * 1e9, comms_forecast_first_s(&planned->plan, &forecast, links) * 1e9,
        (unsigned long long)forecast.slices, (unsigned long long)forecast.rounds, forecast.messages,
        forecast.sent_bytes, forecast.memory_bytes, links, picked ? "true" : "false");
}

/* Returns false for a size that cannot be. */
static bool plan_algorithm(const struct planned *planned, const struct coll_algorithm *algorithm,
                           char *const *sizes, int size_count, uint32_t *served)
{
    for (int i = 0; i < size_count; i++) {
        struct coll_choice choice = {.kind = algorithm->kind,
                                     .node_count = planned->plan.node_count,
                                     .element_bytes = 1,
                                     .slice_bytes = planned->slice_bytes,
                                     .blocks_are_equal = true,
                                     .few_links = planned->formed.by_tree};
        if (!parse_number("size", sizes[i], 0, 1ull << 50, &choice.size_bytes)) {
            return false;
        }
        if (coll_serves(algorithm, &choice)) {
            print_forecast(algorithm, &choice, planned);
            ++*served;
        }
    }
    return true;
}

int plan_run(int argument_count, char **arguments)
{
    struct planned planned;
    uint32_t count, served = 0;
    if (argument_count <= PLAN_SIZES) {
        (void)fputs(
            "commctl: plan: OPERATION NODES LATENCY_NS BYTES_PER_S SLICE_BYTES DIAL_NS MESSAGE_NS MILLINODES "
            "OVERRIDES "
            "SIZE_BYTES...\n",
            stderr);
        return 2;
    }
    if (!parse_planned(arguments, &planned)) {
        return 2;
    }
    print_formed(&planned.formed);
    const struct coll_algorithm *const *all = coll_registry(&count);
    for (uint32_t i = 0; i < count; i++) {
        if (strcmp(arguments[PLAN_OPERATION], op_kind_text(all[i]->kind)) == 0 &&
            !plan_algorithm(&planned, all[i], arguments + PLAN_SIZES, argument_count - PLAN_SIZES, &served)) {
            return 2;
        }
    }
    if (served == 0) {
        (void)fprintf(stderr, "commctl: plan: no operation is called \"%s\"\n", arguments[PLAN_OPERATION]);
        return 4;
    }
    return 0;
}
