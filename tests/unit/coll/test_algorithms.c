#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "daemon/coll/registry.h"
#include "tests/checker/check.h"
#include "tests/unit/coll/layouts.h"

/* Proves every algorithm of the registry for every number of nodes, with many layouts and roots. Compares its
 * costs with the figures of the literature, and with its own estimates. */

#define NODES_MAX 128
#define NODES_WITH_ALL_LAYOUTS 20

static struct coll_cost prove(const struct coll_algorithm *algorithm, const struct layout_call *made)
{
    struct coll_cost cost;
    memset(&cost, 0xa5, sizeof cost);
    struct error error = {.status = STATUS_OK};
    if (layout_check(algorithm, made, &cost, &error) != STATUS_OK) {
        fail_msg("root %u: %s", made->call.root_node, error.text);
    }
    return cost;
}

static void prove_layout(const struct coll_algorithm *algorithm, uint32_t nodes, uint32_t root,
                         enum layout layout)
{
    if (!layout_exists(algorithm->kind, layout)) {
        return;
    }
    struct layout_call made = layout_call(algorithm->kind, nodes, root, layout);
    if (algorithm->serves == NULL || algorithm->serves(&made.call)) {
        prove(algorithm, &made);
    }
    layout_free(&made);
}

static void prove_nodes(const struct coll_algorithm *algorithm, uint32_t nodes, uint32_t root)
{
    if (nodes <= NODES_WITH_ALL_LAYOUTS) {
        for (enum layout layout = 0; layout < LAYOUT_COUNT; layout++) {
            prove_layout(algorithm, nodes, root, layout);
        }
        return;
    }
    /* With more nodes, each call has two of the layouts only, in turn. */
    prove_layout(algorithm, nodes, root, (nodes + root) % 2 == 0 ? LAYOUT_ODD : LAYOUT_ONE_FEWER);
    prove_layout(algorithm, nodes, root, (enum layout)((nodes + root) / 2 % LAYOUT_COUNT));
}

/* Roots 0, 1, n - 1, and a few others. */
static void prove_roots(const struct coll_algorithm *algorithm, uint32_t nodes)
{
    prove_nodes(algorithm, nodes, 0);
    if (!op_kind_has_root(algorithm->kind)) {
        return;
    }
    const uint32_t roots[] = {1, nodes - 1, nodes / 2, nodes / 3 + 1, nodes - nodes / 4};
    for (size_t i = 0; i < sizeof roots / sizeof roots[0]; i++) {
        if (roots[i] > 0 && roots[i] < nodes && (nodes <= NODES_WITH_ALL_LAYOUTS || i < 3)) {
            prove_nodes(algorithm, nodes, roots[i]);
        }
    }
}

static void test_every_algorithm_is_right(void **state)
{
    (void)state;
    uint32_t count;
    const struct coll_algorithm *const *all = coll_registry(&count);
    for (uint32_t i = 0; i < count; i++) {
        for (uint32_t nodes = 1; nodes <= NODES_MAX; nodes++) {
            prove_roots(all[i], nodes);
        }
    }
}

/* If only the two sides of a transfer know its size, an empty transfer is a message, too. */
static void test_empty_transfers_are_kept(void **state)
{
    (void)state;
    static const struct coll_algorithm *const straight[] = {
        &coll_direct_gather, &coll_direct_scatter, &coll_direct_all_to_all, &coll_pairwise_all_to_all};
    for (size_t i = 0; i < sizeof straight / sizeof straight[0]; i++) {
        bool all_pairs = straight[i]->kind == OP_KIND_ALL_TO_ALL;
        for (uint32_t nodes = 1; nodes <= 33; nodes += nodes < 9 ? 1 : 8) {
            for (enum layout layout = 0; layout < LAYOUT_COUNT; layout++) {
                struct layout_call made =
                    layout_call(straight[i]->kind, nodes, all_pairs ? 0 : nodes / 2, layout);
                made.call.keeps_empty = true;
                struct coll_cost cost = prove(straight[i], &made);
                assert_int_equal(cost.messages_max, nodes - 1);
                assert_true(cost.messages_total == (nodes - 1) * (all_pairs ? (uint64_t)nodes : 1));
                layout_free(&made);
            }
        }
    }
}

/* --- Costs --- */

/* A call in which the block of each node has `each` elements. */
static struct layout_call equal_call(const struct coll_algorithm *algorithm, uint32_t nodes, uint32_t root,
                                     uint64_t each)
{
    struct layout_call made = layout_call(algorithm->kind, nodes, root, LAYOUT_NODES);
    for (uint32_t node = 0; made.offsets != NULL && node <= nodes; node++) {
        made.offsets[node] = node * each;
    }
    made.call.count_elements = algorithm->kind == OP_KIND_BARRIER ? 0 : nodes * each;
    return made;
}

static void assert_near(double estimated, uint64_t counted, const struct coll_algorithm *algorithm,
                        const struct coll_call *call, const char *what)
{
    double difference = estimated - (double)counted;
    if (difference > 1e-6 * estimated + 1e-6 || difference < -1e-6 * estimated - 1e-6) {
        fail_msg("%s=%s, %u nodes, root %u: estimates %g %s, and has %llu", op_kind_text(call->kind),
                 algorithm->name, call->node_count, call->root_node, estimated, what,
                 (unsigned long long)counted);
    }
}

static void compare_estimate(const struct coll_algorithm *algorithm, uint32_t nodes, uint32_t root)
{
    struct layout_call made = equal_call(algorithm, nodes, root, 256);
    struct coll_cost cost = prove(algorithm, &made);
    struct coll_estimate estimate;
    memset(&estimate, 0xa5, sizeof estimate);
    algorithm->estimate(&made.call, &estimate);
    const struct coll_call *call = &made.call;
    assert_near((double)estimate.rounds, cost.rounds, algorithm, call, "rounds");
    assert_near((double)estimate.messages, cost.messages_max, algorithm, call, "messages");
    assert_near((double)estimate.senders, cost.senders_max, algorithm, call, "senders");
    assert_near(estimate.path_elements, cost.path_elements, algorithm, call, "path elements");
    assert_near(estimate.busy_elements, cost.busy_elements, algorithm, call, "busy elements");
    assert_near(estimate.scratch_elements, cost.scratch_elements, algorithm, call, "scratch elements");
    layout_free(&made);
}

static void test_estimates_are_what_is_counted(void **state)
{
    (void)state;
    uint32_t count;
    const struct coll_algorithm *const *all = coll_registry(&count);
    for (uint32_t i = 0; i < count; i++) {
        bool has_root = op_kind_has_root(all[i]->kind);
        for (uint32_t nodes = 1; nodes <= NODES_MAX; nodes += nodes < 40 ? 1 : 11) {
            for (uint32_t root = 0; root < (has_root ? nodes : 1); root += nodes < 20 ? 1 : nodes / 4) {
                compare_estimate(all[i], nodes, root);
            }
        }
    }
}

/* Smallest r with 2^r >= nodes, written down rather than computed as the schedules do. */
static uint32_t log2_rounded_up(uint32_t nodes)
{
    static const uint32_t reach[] = {1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096};
    uint32_t rounds = 0;
    while (reach[rounds] < nodes) {
        rounds++;
    }
    return rounds;
}

static bool is_power(uint32_t nodes)
{
    return nodes == UINT32_C(1) << log2_rounded_up(nodes);
}

/* The cost of one call with 256 elements for each node. */
static struct coll_cost cost_of(const struct coll_algorithm *algorithm, uint32_t nodes)
{
    struct layout_call made = equal_call(algorithm, nodes, 0, 256);
    struct coll_cost cost = prove(algorithm, &made);
    layout_free(&made);
    return cost;
}

static void assert_cost(const struct coll_algorithm *algorithm, uint32_t nodes, uint32_t rounds,
                        uint64_t sent_max, uint64_t sent_total)
{
    struct coll_cost cost = cost_of(algorithm, nodes);
    if (cost.rounds != rounds || cost.sent_elements_max != sent_max ||
        cost.sent_elements_total != sent_total) {
        fail_msg("%s=%s, %u nodes: %u rounds, %llu elements, %llu in all", op_kind_text(algorithm->kind),
                 algorithm->name, nodes, cost.rounds, (unsigned long long)cost.sent_elements_max,
                 (unsigned long long)cost.sent_elements_total);
    }
}

static void test_costs_of_all_reduces(void **state)
{
    (void)state;
    for (uint32_t nodes = 2; nodes <= 70; nodes++) {
        uint64_t all = 256 * (uint64_t)nodes;
        uint64_t others = 2 * (all - 256); /* 2(n-1)/n of it */
        uint32_t log2 = log2_rounded_up(nodes);
        assert_cost(&coll_ring_all_reduce, nodes, 2 * (nodes - 1), others, nodes * others);
        assert_cost(&coll_direct_all_reduce, nodes, 2, others, nodes * others);
        assert_cost(&coll_tree_all_reduce, nodes, 2 * log2, all * log2, 2 * (nodes - 1) * all);
        uint32_t surplus = is_power(nodes) ? 0 : nodes - (UINT32_C(1) << (log2 - 1));
        uint32_t power = nodes - surplus;
        uint32_t steps = log2_rounded_up(power);
        uint32_t more = surplus > 0;
        assert_cost(&coll_recursive_doubling_all_reduce, nodes, steps + 2 * more, all * (steps + more),
                    power * all * steps + 2 * surplus * all);
        assert_int_equal(cost_of(&coll_halving_doubling_all_reduce, nodes).rounds, 2 * log2);
        if (more == 0) {
            assert_cost(&coll_halving_doubling_all_reduce, nodes, 2 * log2, others, nodes * others);
        }
    }
}

static void test_costs_of_rooted_ones(void **state)
{
    (void)state;
    for (uint32_t nodes = 2; nodes <= 70; nodes++) {
        uint64_t all = 256 * (uint64_t)nodes;
        uint64_t passed = (nodes - 1) * all; /* each other node gets everything from some node */
        uint32_t log2 = log2_rounded_up(nodes);
        assert_cost(&coll_tree_broadcast, nodes, log2, all * log2, passed);
        assert_cost(&coll_chain_broadcast, nodes, nodes - 1, all, passed);
        assert_cost(&coll_scatter_all_gather_broadcast, nodes, log2 + nodes - 1, 2 * (all - 256), passed);
        assert_cost(&coll_tree_reduce, nodes, log2, all, passed);
        assert_cost(&coll_chain_reduce, nodes, nodes - 1, all, passed);
        assert_int_equal(cost_of(&coll_scatter_gather_reduce, nodes).rounds,
                         is_power(nodes) ? 2 * log2 : 2 * log2 - 1);
        assert_cost(&coll_direct_gather, nodes, 1, 256, all - 256);
        assert_cost(&coll_direct_scatter, nodes, 1, all - 256, all - 256);
        assert_int_equal(cost_of(&coll_tree_gather, nodes).rounds, log2);
        assert_int_equal(cost_of(&coll_tree_scatter, nodes).rounds, log2);
        assert_true(cost_of(&coll_tree_scatter, nodes).sent_elements_max == all - 256);
    }
}

static void test_costs_of_the_others(void **state)
{
    (void)state;
    for (uint32_t nodes = 2; nodes <= 70; nodes++) {
        uint64_t all = 256 * (uint64_t)nodes;
        uint64_t others = all - 256;
        uint32_t log2 = log2_rounded_up(nodes);
        assert_cost(&coll_dissemination_barrier, nodes, log2, 0, 0);
        assert_cost(&coll_ring_all_gather, nodes, nodes - 1, others, nodes * others);
        assert_cost(&coll_direct_all_gather, nodes, 1, others, nodes * others);
        assert_cost(&coll_bruck_all_gather, nodes, log2, others, nodes * others);
        assert_cost(&coll_ring_reduce_scatter, nodes, nodes - 1, others, nodes * others);
        assert_cost(&coll_direct_reduce_scatter, nodes, 1, others, nodes * others);
        assert_int_equal(cost_of(&coll_halving_reduce_scatter, nodes).rounds,
                         is_power(nodes) ? log2 : log2 + 1);
        if (is_power(nodes)) {
            assert_cost(&coll_halving_reduce_scatter, nodes, log2, others, nodes * others);
        }
        assert_cost(&coll_direct_all_to_all, nodes, 1, others, nodes * others);
        assert_cost(&coll_pairwise_all_to_all, nodes, nodes - 1, others, nodes * others);
        uint64_t hops = 0; /* a block for the node at distance d is sent once for each bit of d */
        for (uint32_t distance = 1; distance < nodes; distance++) {
            hops += (uint64_t)__builtin_popcount(distance);
        }
        assert_cost(&coll_bruck_all_to_all, nodes, log2, 256 * hops, nodes * 256 * hops);
        uint64_t steps = 0;
        for (uint32_t distance = 1; distance < nodes; distance *= 2) {
            steps += nodes - distance;
        }
        assert_cost(&coll_hillis_steele_scan, nodes, log2, all * log2, all * steps);
        assert_cost(&coll_chain_scan, nodes, nodes - 1, all, (nodes - 1) * all);
        assert_cost(&coll_hillis_steele_exclusive_scan, nodes, log2, all * log2, all * steps);
        assert_cost(&coll_chain_exclusive_scan, nodes, nodes - 1, all, (nodes - 1) * all);
    }
}

/* --- Many nodes --- */

static void prove_many(const struct coll_algorithm *algorithm, uint32_t nodes, uint32_t root, uint64_t count)
{
    struct layout_call made = {
        .call = {.kind = algorithm->kind, .node_count = nodes, .root_node = root, .count_elements = count}};
    if (op_kind_has_blocks(algorithm->kind)) { /* count blocks of one element, spread over the nodes */
        made.offsets = calloc((size_t)nodes + 1, sizeof *made.offsets);
        assert_non_null(made.offsets);
        for (uint32_t node = 0; node <= nodes; node++) {
            made.offsets[node] = count * node / nodes;
        }
        made.call.block_offsets = made.offsets;
    }
    prove(algorithm, &made);
    layout_free(&made);
}

static void test_many_nodes(void **state)
{
    (void)state;
    static const uint32_t nodes[] = {256, 1000, 1024, 4096};
    for (size_t i = 0; i < 4; i++) {
        uint32_t n = nodes[i];
        prove_many(&coll_recursive_doubling_all_reduce, n, 0, 5);
        prove_many(&coll_halving_doubling_all_reduce, n, 0, 9);
        prove_many(&coll_tree_all_reduce, n, 0, 5);
        prove_many(&coll_tree_broadcast, n, n - 1, 5);
        prove_many(&coll_tree_reduce, n, n / 3, 5);
        prove_many(&coll_scatter_gather_reduce, n, n - 1, 9);
        prove_many(&coll_dissemination_barrier, n, 0, 0);
        prove_many(&coll_bruck_all_gather, n, 0, 20);
        prove_many(&coll_halving_reduce_scatter, n, 0, 9);
        prove_many(&coll_tree_gather, n, n / 2, 20);
        prove_many(&coll_tree_scatter, n, 1, 20);
        prove_many(&coll_hillis_steele_scan, n, 0, 5);
        prove_many(&coll_direct_gather, n, 3, 20);
    }
    for (size_t i = 0; i < 3; i++) {
        uint32_t n = nodes[i];
        prove_many(&coll_chain_broadcast, n, 1, 5);
        prove_many(&coll_chain_reduce, n, 1, 5);
        prove_many(&coll_chain_scan, n, 0, 5);
        prove_many(&coll_ring_all_reduce, n, 0, 20);
        prove_many(&coll_ring_all_gather, n, 0, 20);
        prove_many(&coll_ring_reduce_scatter, n, 0, 20);
        prove_many(&coll_direct_all_reduce, n, 0, 20);
        prove_many(&coll_scatter_all_gather_broadcast, n, 7, 20);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_algorithm_is_right),
        cmocka_unit_test(test_empty_transfers_are_kept),
        cmocka_unit_test(test_estimates_are_what_is_counted),
        cmocka_unit_test(test_costs_of_all_reduces),
        cmocka_unit_test(test_costs_of_rooted_ones),
        cmocka_unit_test(test_costs_of_the_others),
        cmocka_unit_test(test_many_nodes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
