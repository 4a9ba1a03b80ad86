#include "daemon/coll/registry.h"

#include <stddef.h>
#include <string.h>

#include "daemon/coll/overrides.h"

static const struct coll_algorithm *const algorithms[] = {
    &coll_ring_all_reduce,
    &coll_direct_all_reduce,
    &coll_tree_broadcast,
    &coll_dissemination_barrier,
    &coll_recursive_doubling_all_reduce,
    &coll_halving_doubling_all_reduce,
    &coll_tree_all_reduce,
    &coll_chain_broadcast,
    &coll_scatter_all_gather_broadcast,
    &coll_tree_reduce,
    &coll_chain_reduce,
    &coll_scatter_gather_reduce,
    &coll_ring_all_gather,
    &coll_bruck_all_gather,
    &coll_direct_all_gather,
    &coll_ring_reduce_scatter,
    &coll_direct_reduce_scatter,
    &coll_halving_reduce_scatter,
    &coll_direct_gather,
    &coll_tree_gather,
    &coll_direct_scatter,
    &coll_tree_scatter,
    &coll_direct_all_to_all,
    &coll_pairwise_all_to_all,
    &coll_bruck_all_to_all,
    &coll_hillis_steele_scan,
    &coll_chain_scan,
    &coll_hillis_steele_exclusive_scan,
    &coll_chain_exclusive_scan,
};
#define ALGORITHM_COUNT (sizeof algorithms / sizeof algorithms[0])

const struct coll_algorithm *const *coll_registry(uint32_t *count)
{
    *count = ALGORITHM_COUNT;
    return algorithms;
}

const struct coll_algorithm *coll_registry_by_id(uint32_t id)
{
    for (size_t i = 0; i < ALGORITHM_COUNT; i++) {
        if (algorithms[i]->id == id) {
            return algorithms[i];
        }
    }
    return NULL;
}

const struct coll_algorithm *coll_registry_by_name(enum op_kind kind, const char *name)
{
    for (size_t i = 0; i < ALGORITHM_COUNT; i++) {
        if (algorithms[i]->kind == kind && strcmp(algorithms[i]->name, name) == 0) {
            return algorithms[i];
        }
    }
    return NULL;
}

/* --- Selection --- */

/*
 * Nodes that send to one node at once should not exceed a switch port's share of its packet buffer: beyond
 * it, losses cost more than the rounds save. The bytes that count are those of the busiest node, for all
 * slices in progress together. Each byte beyond the bound counts twice. The figures are estimates, not
 * measurements.
 */
#define COLL_CROWD_BYTES 262144.0
#define COLL_COPY_BYTES_PER_S 5e9

#define COLL_EQUAL_WITHIN 0.01 /* the model is not more exact */

const struct coll_network coll_network_default = {
    .latency_s = 50e-6, .bandwidth_bytes_per_s = 1.25e9, .message_s = 5e-6};

static uint64_t coll_choice_elements(const struct coll_choice *choice, uint64_t bytes)
{
    return bytes / (choice->element_bytes > 0 ? choice->element_bytes : 1);
}

/* The call of some node for a slice of the operation. */
static struct coll_call coll_choice_call(const struct coll_choice *choice)
{
    uint64_t bytes = choice->size_bytes;
    if (choice->slice_bytes > 0 && choice->slice_bytes < bytes) {
        bytes = choice->slice_bytes;
    }
    return (struct coll_call){.kind = choice->kind,
                              .node_count = choice->node_count,
                              .root_node = choice->root_node,
                              .count_elements = coll_choice_elements(choice, bytes),
                              .blocks_are_equal = choice->blocks_are_equal};
}

bool coll_serves(const struct coll_algorithm *algorithm, const struct coll_choice *choice)
{
    struct coll_call call = coll_choice_call(choice);
    return algorithm->kind == choice->kind && (algorithm->serves == NULL || algorithm->serves(&call));
}

static double coll_larger(double a, double b)
{
    return a > b ? a : b;
}

double coll_predict(const struct coll_algorithm *algorithm, const struct coll_choice *choice,
                    const struct coll_network *network)
{
    const struct coll_network *by = network != NULL ? network : &coll_network_default;
    struct coll_call call = coll_choice_call(choice);
    struct coll_estimate slice;
    algorithm->estimate(&call, &slice);
    double element_bytes = choice->element_bytes > 0 ? (double)choice->element_bytes : 1;
    double slices = 1;
    if (call.count_elements > 0) {
        slices = coll_larger(1, (double)coll_choice_elements(choice, choice->size_bytes) /
                                    (double)call.count_elements);
    }
    double messages = (double)slice.messages * by->message_s;
    double path_bytes = slice.path_elements * element_bytes;
    double busy_bytes = slice.busy_elements * element_bytes;
    double path = (double)slice.rounds * by->latency_s + messages + path_bytes / by->bandwidth_bytes_per_s;
    double busy = messages + busy_bytes / by->bandwidth_bytes_per_s;
    if (algorithm->copies_sends) {
        path += path_bytes / COLL_COPY_BYTES_PER_S;
        busy += busy_bytes / COLL_COPY_BYTES_PER_S;
    }
    double total = path + (slices - 1) * coll_larger(busy, path / COLL_LANES);
    if (slice.senders > 1) {
        total += coll_larger(0, slices * busy_bytes - COLL_CROWD_BYTES) / by->bandwidth_bytes_per_s;
    }
    return total;
}

/* Whether some node sends to all others, or receives from all others, in one round. */
static bool needs_all_links(const struct coll_algorithm *algorithm, const struct coll_choice *choice)
{
    struct coll_call call = coll_choice_call(choice);
    return algorithm->transfers_max(&call) + 1 >= call.node_count;
}

/* The fastest of the algorithms that serve, or null. */
static const struct coll_algorithm *fastest(const struct coll_choice *choice, bool few_links,
                                            const struct coll_network *network)
{
    double predicted[ALGORITHM_COUNT];
    double least = -1;
    for (size_t i = 0; i < ALGORITHM_COUNT; i++) {
        bool counts =
            coll_serves(algorithms[i], choice) && !(few_links && needs_all_links(algorithms[i], choice));
        predicted[i] = counts ? coll_predict(algorithms[i], choice, network) : -1;
        if (predicted[i] >= 0 && (least < 0 || predicted[i] < least)) {
            least = predicted[i];
        }
    }
    for (size_t i = 0; i < ALGORITHM_COUNT; i++) {
        if (predicted[i] >= 0 && predicted[i] <= least * (1 + COLL_EQUAL_WITHIN)) {
            return algorithms[i];
        }
    }
    return NULL;
}

const struct coll_algorithm *coll_select(const struct coll_choice *choice, const struct coll_network *network,
                                         const struct coll_overrides *overrides)
{
    const struct coll_algorithm *named = overrides != NULL ? coll_overrides_find(overrides, choice) : NULL;
    if (named != NULL && coll_serves(named, choice)) {
        return named;
    }
    const struct coll_algorithm *found = choice->few_links ? fastest(choice, true, network) : NULL;
    return found != NULL ? found : fastest(choice, false, network);
}
