#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "daemon/coll/overrides.h"
#include "daemon/coll/registry.h"

/* Predicted times, and the choices that follow from them. */

#define KIB UINT64_C(1024)
#define MIB (1024 * KIB)
#define GIB (1024 * MIB)

static const uint32_t node_counts[] = {1, 2, 3, 4, 5, 8, 9, 16, 17, 64, 100, 512, COLL_NODES_MAX};
#define NODE_COUNTS (sizeof node_counts / sizeof node_counts[0])
static const uint64_t sizes_bytes[] = {0,         1,       8,        4 * KIB,   64 * KIB,
                                       256 * KIB, MIB - 4, MIB,      MIB + 4,   8 * MIB,
                                       64 * MIB,  GIB,     64 * GIB, INT64_MAX, UINT64_MAX};
#define SIZES (sizeof sizes_bytes / sizeof sizes_bytes[0])

static struct coll_choice choice_of(enum op_kind kind, uint32_t nodes, uint64_t size_bytes)
{
    return (struct coll_choice){.kind = kind,
                                .node_count = nodes,
                                .size_bytes = kind == OP_KIND_BARRIER ? 0 : size_bytes,
                                .element_bytes = 4,
                                .slice_bytes = MIB,
                                .blocks_are_equal = true};
}

static const struct coll_algorithm *chosen(enum op_kind kind, uint32_t nodes, uint64_t size_bytes)
{
    struct coll_choice choice = choice_of(kind, nodes, size_bytes);
    const struct coll_algorithm *one = coll_select(&choice, NULL, NULL);
    assert_non_null(one);
    assert_int_equal(one->kind, kind);
    return one;
}

/* --- Predictions --- */

static void assert_seconds(double seconds, double expected)
{
    assert_true(seconds > expected * 0.999999 && seconds < expected * 1.000001);
}

/* Compares with figures worked out by hand from the formula. */
static void test_predictions(void **state)
{
    (void)state;
    struct coll_network network = {.latency_s = 1e-3, .bandwidth_bytes_per_s = 1e6, .message_s = 1e-4};
    struct coll_choice choice = choice_of(OP_KIND_ALL_REDUCE, 4, 400000);
    choice.slice_bytes = 0;
    /* Six rounds and messages, 1.5 times the bytes. */
    assert_seconds(coll_predict(&coll_ring_all_reduce, &choice, &network), 6e-3 + 6e-4 + 0.6);
    /* Two rounds, six messages. The bytes beyond 256 KiB of 600,000 count twice, because three nodes send to
     * one. */
    assert_seconds(coll_predict(&coll_direct_all_reduce, &choice, &network),
                   2e-3 + 6e-4 + 0.6 + (0.6 - 0.262144));
    /* Two rounds of all bytes, which are copied. */
    assert_seconds(coll_predict(&coll_recursive_doubling_all_reduce, &choice, &network),
                   2e-3 + 2e-4 + 0.8 + 800000 / 5e9);
    /* Ten slices of a chain: the first goes through three hops; then the others arrive, one after
     * the other. */
    choice = choice_of(OP_KIND_BROADCAST, 4, 400000);
    choice.slice_bytes = 40000;
    assert_seconds(coll_predict(&coll_chain_broadcast, &choice, &network),
                   3e-3 + 1e-4 + 0.12 + 9 * (1e-4 + 0.04));
    /* Along a hundred nodes, eight lanes are too few to keep all busy. */
    choice.node_count = 101;
    assert_seconds(coll_predict(&coll_chain_broadcast, &choice, &network),
                   (0.1 + 1e-4 + 4) * (1 + 9.0 / COLL_LANES));
    /* Ten slices, of three messages each. */
    choice = choice_of(OP_KIND_ALL_TO_ALL, 4, 400000);
    choice.slice_bytes = 40000;
    assert_seconds(coll_predict(&coll_pairwise_all_to_all, &choice, &network), 3e-3 + 10 * (3e-4 + 0.03));
    /* If nothing was measured. */
    choice.slice_bytes = 0;
    assert_seconds(coll_predict(&coll_pairwise_all_to_all, &choice, NULL),
                   3 * 50e-6 + 3 * 5e-6 + 300000 / 1.25e9);
    choice = choice_of(OP_KIND_BARRIER, 5, 0);
    choice.element_bytes = 0;
    assert_seconds(coll_predict(&coll_dissemination_barrier, &choice, &network), 3e-3 + 3e-4);
}

/* More bytes or a worse network never take less time. */
static void test_predictions_are_monotone(void **state)
{
    (void)state;
    uint32_t count;
    const struct coll_algorithm *const *all = coll_registry(&count);
    static const struct coll_network networks[] = {
        {50e-6, 1.25e9, 5e-6}, {51e-6, 1.25e9, 5e-6}, {51e-6, 1.2e9, 5e-6}, {51e-6, 1.2e9, 6e-6}, {1, 1, 1}};
    for (uint32_t i = 0; i < count; i++) {
        for (size_t n = 0; n < NODE_COUNTS; n++) {
            double before = 0;
            for (size_t s = 0; s < SIZES; s++) {
                struct coll_choice choice = choice_of(all[i]->kind, node_counts[n], sizes_bytes[s]);
                double predicted = coll_predict(all[i], &choice, NULL);
                assert_true(predicted >= before * 0.999999);
                assert_true(node_counts[n] == 1 ? predicted == 0 : predicted > 0);
                before = predicted;
                for (size_t k = 1; k < 5; k++) {
                    assert_true(coll_predict(all[i], &choice, &networks[k]) >=
                                coll_predict(all[i], &choice, &networks[k - 1]));
                }
            }
        }
    }
}

/* --- Choices --- */

/* No other algorithm that serves is predicted to take clearly less time. None that takes about as long has a
 * lower id. */
static void assert_is_best(const struct coll_choice *choice, const struct coll_network *network)
{
    const struct coll_algorithm *best = coll_select(choice, network, NULL);
    assert_non_null(best);
    assert_true(coll_serves(best, choice));
    double time = coll_predict(best, choice, network);
    uint32_t count;
    const struct coll_algorithm *const *all = coll_registry(&count);
    for (uint32_t i = 0; i < count; i++) {
        if (coll_serves(all[i], choice)) {
            double other = coll_predict(all[i], choice, network);
            assert_true(time <= other * 1.0101);
            assert_true(all[i]->id >= best->id || other > time * 0.9999);
        }
    }
}

static void test_the_best_is_chosen(void **state)
{
    (void)state;
    static const struct coll_network networks[] = {
        {50e-6, 1.25e9, 5e-6}, {1e-6, 5e10, 1e-6}, {20e-3, 1e7, 5e-6}};
    for (unsigned kind = 0; kind <= OP_KIND_EXCLUSIVE_SCAN; kind++) {
        for (size_t n = 0; n < NODE_COUNTS; n++) {
            for (size_t s = 0; s < SIZES; s++) {
                for (unsigned more = 0; more < 2 * 3; more++) {
                    struct coll_choice choice = choice_of((enum op_kind)kind, node_counts[n], sizes_bytes[s]);
                    choice.blocks_are_equal = more % 2 == 0;
                    assert_is_best(&choice, &networks[more / 2]);
                }
            }
        }
    }
}

/* coll_select gets no node's index. So nodes that agree on the arguments agree on the choice. This test
 * checks that it has no memory. */
static void test_selection_is_a_pure_function(void **state)
{
    (void)state;
    for (unsigned kind = 0; kind <= OP_KIND_EXCLUSIVE_SCAN; kind++) {
        const struct coll_algorithm *first[NODE_COUNTS][SIZES];
        for (size_t n = 0; n < NODE_COUNTS; n++) {
            for (size_t s = 0; s < SIZES; s++) {
                first[n][s] = chosen((enum op_kind)kind, node_counts[n], sizes_bytes[s]);
            }
        }
        for (size_t n = NODE_COUNTS; n-- > 0;) {
            for (size_t s = SIZES; s-- > 0;) {
                assert_ptr_equal(chosen((enum op_kind)kind, node_counts[n], sizes_bytes[s]), first[n][s]);
            }
        }
    }
}

/* Small operations get an algorithm of few rounds: about log2(n) at most. */
static void test_small_ones_have_few_rounds(void **state)
{
    (void)state;
    for (unsigned kind = 0; kind <= OP_KIND_EXCLUSIVE_SCAN; kind++) {
        for (size_t n = 1; n < NODE_COUNTS; n++) {
            struct coll_call call = {.kind = (enum op_kind)kind, .node_count = node_counts[n]};
            uint32_t log2 = 0;
            while (UINT32_C(1) << log2 < node_counts[n]) {
                log2++;
            }
            const struct coll_algorithm *one = chosen((enum op_kind)kind, node_counts[n], 8);
            assert_true(one->round_count(&call) <= log2 + 2);
        }
    }
    assert_ptr_equal(chosen(OP_KIND_ALL_REDUCE, 8, 8), &coll_recursive_doubling_all_reduce);
    assert_ptr_equal(chosen(OP_KIND_ALL_REDUCE, 3, 8), &coll_direct_all_reduce);
    assert_ptr_equal(chosen(OP_KIND_BROADCAST, 8, 8), &coll_tree_broadcast);
    assert_ptr_equal(chosen(OP_KIND_REDUCE, 64, 8), &coll_tree_reduce);
    assert_ptr_equal(chosen(OP_KIND_ALL_GATHER, 64, 8), &coll_bruck_all_gather);
    assert_ptr_equal(chosen(OP_KIND_REDUCE_SCATTER, 64, 8), &coll_halving_reduce_scatter);
    assert_ptr_equal(chosen(OP_KIND_GATHER, 64, 8), &coll_tree_gather);
    assert_ptr_equal(chosen(OP_KIND_SCATTER, 64, 8), &coll_tree_scatter);
    assert_ptr_equal(chosen(OP_KIND_ALL_TO_ALL, 8, 8), &coll_direct_all_to_all);
    assert_ptr_equal(chosen(OP_KIND_SCAN, 8, 8), &coll_hillis_steele_scan);
    assert_ptr_equal(chosen(OP_KIND_EXCLUSIVE_SCAN, 8, 8), &coll_hillis_steele_exclusive_scan);
}

/* Large operations need bandwidth: with the chosen algorithm, the busiest node moves about as few bytes as
 * with any. */
static void test_large_ones_move_few_bytes(void **state)
{
    (void)state;
    uint32_t count;
    const struct coll_algorithm *const *all = coll_registry(&count);
    for (unsigned kind = 0; kind <= OP_KIND_EXCLUSIVE_SCAN; kind++) {
        for (uint32_t nodes = 2; nodes <= 8; nodes++) {
            struct coll_call call = {
                .kind = (enum op_kind)kind, .node_count = nodes, .count_elements = 840 * MIB};
            struct coll_estimate own;
            chosen((enum op_kind)kind, nodes, 64 * GIB)->estimate(&call, &own);
            for (uint32_t i = 0; i < count; i++) {
                struct coll_estimate other = {.busy_elements = own.busy_elements};
                if (all[i]->kind == call.kind) {
                    all[i]->estimate(&call, &other);
                }
                assert_true(own.busy_elements <= other.busy_elements * 1.02);
            }
        }
    }
    assert_ptr_equal(chosen(OP_KIND_ALL_REDUCE, 2, GIB), &coll_ring_all_reduce);
    assert_ptr_equal(chosen(OP_KIND_ALL_REDUCE, 3, GIB), &coll_ring_all_reduce);
    assert_ptr_equal(chosen(OP_KIND_ALL_REDUCE, 9, GIB), &coll_ring_all_reduce);
    assert_ptr_equal(chosen(OP_KIND_ALL_REDUCE, 64, MIB), &coll_halving_doubling_all_reduce);
    assert_ptr_equal(chosen(OP_KIND_BROADCAST, 8, GIB), &coll_chain_broadcast);
    assert_ptr_equal(chosen(OP_KIND_BROADCAST, 8, MIB), &coll_scatter_all_gather_broadcast);
    assert_ptr_equal(chosen(OP_KIND_REDUCE, 8, GIB), &coll_chain_reduce);
    assert_ptr_equal(chosen(OP_KIND_REDUCE, 16, MIB), &coll_scatter_gather_reduce);
    assert_ptr_equal(chosen(OP_KIND_REDUCE_SCATTER, 9, GIB), &coll_ring_reduce_scatter);
    assert_ptr_equal(chosen(OP_KIND_ALL_TO_ALL, 8, GIB), &coll_pairwise_all_to_all);
    assert_ptr_equal(chosen(OP_KIND_SCAN, 8, GIB), &coll_chain_scan);
}

/* More bytes take longer. The best algorithm for the smallest size is not chosen again after another one.
 * Gathers and scatters are an exception: two algorithms take about as long at any size. */
static void test_selection_is_monotone(void **state)
{
    (void)state;
    for (unsigned kind = 0; kind <= OP_KIND_EXCLUSIVE_SCAN; kind++) {
        for (uint32_t nodes = 4; nodes <= 70; nodes++) {
            const struct coll_algorithm *smallest = chosen((enum op_kind)kind, nodes, 1);
            bool left = false;
            double before = 0;
            for (uint64_t size = 1; size <= 64 * GIB; size *= 2) {
                const struct coll_algorithm *one = chosen((enum op_kind)kind, nodes, size);
                struct coll_choice choice = choice_of((enum op_kind)kind, nodes, size);
                double time = coll_predict(one, &choice, NULL);
                assert_true(one != smallest || !left || kind == OP_KIND_GATHER || kind == OP_KIND_SCATTER);
                assert_true(time >= before * 0.99);
                left = one != smallest;
                before = time;
            }
        }
    }
}

static void test_far_wants_few_rounds_and_slow_few_bytes(void **state)
{
    (void)state;
    struct coll_choice choice = choice_of(OP_KIND_ALL_REDUCE, 64, 256 * KIB);
    const struct coll_network far = {.latency_s = 20e-3, .bandwidth_bytes_per_s = 1e9, .message_s = 5e-6};
    const struct coll_network slow = {.latency_s = 1e-6, .bandwidth_bytes_per_s = 1e6, .message_s = 1e-6};
    struct coll_call call = {.kind = OP_KIND_ALL_REDUCE, .node_count = 64, .count_elements = 64 * KIB};
    assert_true(coll_select(&choice, &far, NULL)->round_count(&call) <= 6);
    assert_ptr_equal(coll_select(&choice, &slow, NULL), &coll_ring_all_reduce);
}

static void test_what_does_not_serve_is_not_chosen(void **state)
{
    (void)state;
    struct coll_choice choice = choice_of(OP_KIND_ALL_TO_ALL, 8, 64);
    assert_true(coll_serves(&coll_bruck_all_to_all, &choice));
    assert_false(coll_serves(&coll_ring_all_reduce, &choice));
    choice.blocks_are_equal = false;
    assert_false(coll_serves(&coll_bruck_all_to_all, &choice));
    choice.kind = OP_KIND_SEND;
    assert_null(coll_select(&choice, NULL, NULL));
    choice.kind = OP_KIND_RECEIVE;
    assert_null(coll_select(&choice, NULL, NULL));
}

static void test_overrides_go_first(void **state)
{
    (void)state;
    struct coll_overrides overrides;
    assert_int_equal(
        coll_overrides_parse("all_reduce:0-4k=tree,4k-8k=direct;all_to_all=bruck", &overrides, NULL),
        STATUS_OK);
    struct coll_choice choice = choice_of(OP_KIND_ALL_REDUCE, 64, 4 * KIB - 1);
    assert_ptr_equal(coll_select(&choice, NULL, &overrides), &coll_tree_all_reduce);
    choice.size_bytes = 4 * KIB;
    assert_ptr_equal(coll_select(&choice, NULL, &overrides), &coll_direct_all_reduce);
    choice.size_bytes = 8 * KIB;
    assert_ptr_equal(coll_select(&choice, NULL, &overrides), coll_select(&choice, NULL, NULL));
    choice = choice_of(OP_KIND_ALL_TO_ALL, 64, 4 * KIB);
    assert_ptr_equal(coll_select(&choice, NULL, &overrides), &coll_bruck_all_to_all);
    choice.blocks_are_equal = false; /* bruck does not serve that */
    assert_ptr_equal(coll_select(&choice, NULL, &overrides), &coll_direct_all_to_all);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_predictions),
        cmocka_unit_test(test_predictions_are_monotone),
        cmocka_unit_test(test_the_best_is_chosen),
        cmocka_unit_test(test_selection_is_a_pure_function),
        cmocka_unit_test(test_small_ones_have_few_rounds),
        cmocka_unit_test(test_large_ones_move_few_bytes),
        cmocka_unit_test(test_selection_is_monotone),
        cmocka_unit_test(test_far_wants_few_rounds_and_slow_few_bytes),
        cmocka_unit_test(test_what_does_not_serve_is_not_chosen),
        cmocka_unit_test(test_overrides_go_first),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
