#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "daemon/coll/registry.h"
#include "daemon/coll/slice.h"
#include "tests/checker/check.h"

#define NODES_MAX 64
#define COUNT_CASES 7

/* The counts for which every algorithm is proved. A count that does not exist for one node is 0 again. */
static void counts_for(uint32_t nodes, uint64_t counts[COUNT_CASES])
{
    const uint64_t all[COUNT_CASES] = {0, 1, nodes - 1, nodes, nodes + 1, 2 * (uint64_t)nodes + 1, 1000};
    memcpy(counts, all, sizeof all);
}

static struct coll_cost prove(const struct coll_algorithm *algorithm, uint32_t nodes, uint32_t root,
                              uint64_t count)
{
    struct coll_call call = {
        .kind = algorithm->kind, .node_count = nodes, .root_node = root, .count_elements = count};
    struct coll_cost cost;
    memset(&cost, 0xa5, sizeof cost);
    struct error error = {.status = STATUS_OK};
    if (coll_check(algorithm, &call, &cost, &error) != STATUS_OK) {
        fail_msg("%s", error.text);
    }
    return cost;
}

/* Smallest r with 2^r >= nodes, written down rather than computed as the schedules do. */
static uint32_t log2_rounded_up(uint32_t nodes)
{
    static const uint32_t reach[] = {1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024};
    uint32_t rounds = 0;
    while (reach[rounds] < nodes) {
        rounds++;
    }
    return rounds;
}

static void prove_all_reduce(const struct coll_algorithm *algorithm, uint32_t nodes, uint64_t count,
                             uint32_t rounds)
{
    struct coll_cost cost = prove(algorithm, nodes, 0, count);
    uint64_t part = (count + nodes - 1) / nodes;
    assert_int_equal(cost.rounds, rounds);
    assert_true(cost.sent_elements_max <= 2 * (uint64_t)(nodes - 1) * part);
    assert_true(cost.sent_elements_total == 2 * (uint64_t)(nodes - 1) * count);
    assert_true(cost.messages_total == 2 * (uint64_t)(nodes - 1) * (count < nodes ? count : nodes));
    if (count % nodes == 0) { /* evenly spread: 2(n-1)/n of the elements, at each node */
        assert_true(cost.sent_elements_max == 2 * (uint64_t)(nodes - 1) * (count / nodes));
    }
}

static void test_ring(void **state)
{
    (void)state;
    for (uint32_t nodes = 1; nodes <= NODES_MAX; nodes++) {
        uint64_t counts[COUNT_CASES];
        counts_for(nodes, counts);
        for (size_t c = 0; c < COUNT_CASES; c++) {
            prove_all_reduce(&coll_ring_all_reduce, nodes, counts[c], 2 * (nodes - 1));
        }
    }
}

static void test_direct(void **state)
{
    (void)state;
    for (uint32_t nodes = 1; nodes <= NODES_MAX; nodes++) {
        uint64_t counts[COUNT_CASES];
        counts_for(nodes, counts);
        for (size_t c = 0; c < COUNT_CASES; c++) {
            prove_all_reduce(&coll_direct_all_reduce, nodes, counts[c], nodes == 1 ? 0 : 2);
        }
    }
}

static void test_tree(void **state)
{
    (void)state;
    for (uint32_t nodes = 1; nodes <= NODES_MAX; nodes++) {
        uint64_t counts[COUNT_CASES];
        counts_for(nodes, counts);
        for (size_t c = 0; c < COUNT_CASES; c++) {
            for (uint32_t root = 0; root < nodes; root++) {
                struct coll_cost cost = prove(&coll_tree_broadcast, nodes, root, counts[c]);
                assert_int_equal(cost.rounds, log2_rounded_up(nodes));
                assert_true(cost.sent_elements_total == (nodes - 1) * counts[c]);
                assert_true(cost.sent_elements_max == log2_rounded_up(nodes) * counts[c]); /* the root's */
                assert_true(cost.messages_total == (counts[c] > 0 ? nodes - 1 : 0));
            }
        }
    }
}

static void test_dissemination(void **state)
{
    (void)state;
    for (uint32_t nodes = 1; nodes <= NODES_MAX; nodes++) {
        struct coll_cost cost = prove(&coll_dissemination_barrier, nodes, 0, 0);
        assert_int_equal(cost.rounds, log2_rounded_up(nodes));
        assert_true(cost.sent_elements_total == 0 && cost.sent_elements_max == 0);
        assert_true(cost.messages_total == (uint64_t)nodes * log2_rounded_up(nodes));
    }
}

/* The check works on parts. So it can prove counts that no buffer has. */
static void test_more_nodes_and_elements(void **state)
{
    (void)state;
    prove_all_reduce(&coll_ring_all_reduce, 200, 12345, 398);
    prove_all_reduce(&coll_direct_all_reduce, 200, 12345, 2);
    prove_all_reduce(&coll_ring_all_reduce, 48, UINT64_C(1) << 56, 94);
    prove_all_reduce(&coll_direct_all_reduce, 48, (UINT64_C(1) << 56) + 1, 2);
    assert_true(prove(&coll_tree_broadcast, 1024, 1023, 9).sent_elements_total == UINT64_C(1023) * 9);
    assert_true(prove(&coll_dissemination_barrier, 1000, 0, 0).rounds == 10);
}

/* Elements whose parts are not equal: 25 MiB of f32 and 6,291,457 elements, which an earlier program got
 * wrong, in slices of 2 MiB. */
static void test_slices_that_do_not_divide(void **state)
{
    (void)state;
    static const uint64_t counts[] = {6553600, 6291457, 524288, 262144, 1, 524287};
    for (uint32_t nodes = 2; nodes <= 5; nodes++) {
        for (size_t c = 0; c < 6; c++) {
            prove_all_reduce(&coll_ring_all_reduce, nodes, counts[c], 2 * (nodes - 1));
            prove_all_reduce(&coll_direct_all_reduce, nodes, counts[c], 2);
        }
    }
}

/* --- What the rounds are, spelled out --- */

static void assert_transfer(const struct coll_transfer *transfer, uint32_t node, enum coll_action action,
                            uint64_t offset, uint64_t count)
{
    assert_int_equal(transfer->node, node);
    assert_int_equal(transfer->action, action);
    assert_true(transfer->offset_elements == offset);
    assert_true(transfer->count_elements == count);
}

/* Seven elements on three nodes are parts of 3, 2, 2. Node 1 starts part 0 on its way and ends part 1. */
static void test_ring_of_three(void **state)
{
    (void)state;
    struct coll_call call = {
        .kind = OP_KIND_ALL_REDUCE, .node_count = 3, .node_index = 1, .root_node = 0, .count_elements = 7};
    struct coll_transfer send;
    struct coll_transfer receive;
    struct coll_round out = {.sends = &send, .receives = &receive};
    static const struct {
        enum coll_action action;
        uint64_t send_offset, send_count, receive_offset, receive_count;
    } expected[4] = {{COLL_REDUCE, 0, 3, 5, 2},
                     {COLL_REDUCE, 5, 2, 3, 2},
                     {COLL_STORE, 3, 2, 0, 3},
                     {COLL_STORE, 0, 3, 5, 2}};
    assert_int_equal(coll_ring_all_reduce.round_count(&call), 4);
    assert_int_equal(coll_ring_all_reduce.transfers_max(&call), 1);
    for (uint32_t round = 0; round < 4; round++) {
        coll_ring_all_reduce.round(&call, round, &out);
        assert_int_equal(out.send_count, 1);
        assert_int_equal(out.receive_count, 1);
        assert_transfer(&send, 2, expected[round].action, expected[round].send_offset,
                        expected[round].send_count);
        assert_transfer(&receive, 0, expected[round].action, expected[round].receive_offset,
                        expected[round].receive_count);
    }
}

/* The owner folds its own contribution first, then those of the nodes after it in the ring. */
static void test_direct_reduces_in_listed_order(void **state)
{
    (void)state;
    struct coll_call call = {
        .kind = OP_KIND_ALL_REDUCE, .node_count = 4, .node_index = 2, .root_node = 0, .count_elements = 9};
    struct coll_transfer sends[3];
    struct coll_transfer receives[3];
    struct coll_round out = {.sends = sends, .receives = receives};
    assert_int_equal(coll_direct_all_reduce.transfers_max(&call), 3);
    coll_direct_all_reduce.round(&call, 0, &out); /* parts: 0..2, 3..4, 5..6, 7..8 */
    assert_int_equal(out.send_count, 3);
    assert_transfer(&sends[0], 1, COLL_REDUCE, 3, 2);
    assert_transfer(&sends[1], 0, COLL_REDUCE, 0, 3);
    assert_transfer(&sends[2], 3, COLL_REDUCE, 7, 2);
    assert_int_equal(out.receive_count, 3);
    assert_transfer(&receives[0], 3, COLL_REDUCE, 5, 2);
    assert_transfer(&receives[1], 0, COLL_REDUCE, 5, 2);
    assert_transfer(&receives[2], 1, COLL_REDUCE, 5, 2);
    coll_direct_all_reduce.round(&call, 1, &out);
    assert_int_equal(out.send_count, 3);
    assert_transfer(&sends[0], 1, COLL_STORE, 5, 2);
    assert_transfer(&sends[1], 0, COLL_STORE, 5, 2);
    assert_transfer(&sends[2], 3, COLL_STORE, 5, 2);
    assert_int_equal(out.receive_count, 3);
    assert_transfer(&receives[0], 3, COLL_STORE, 7, 2);
    assert_transfer(&receives[1], 0, COLL_STORE, 0, 3);
    assert_transfer(&receives[2], 1, COLL_STORE, 3, 2);
}

/* With two nodes, both all-reduces are the same. */
static void test_ring_and_direct_of_two_are_one(void **state)
{
    (void)state;
    for (uint32_t node = 0; node < 2; node++) {
        for (uint64_t count = 0; count <= 5; count++) {
            struct coll_call call = {
                .kind = OP_KIND_ALL_REDUCE, .node_count = 2, .node_index = node, .count_elements = count};
            assert_int_equal(coll_ring_all_reduce.round_count(&call),
                             coll_direct_all_reduce.round_count(&call));
            for (uint32_t round = 0; round < 2; round++) {
                struct coll_transfer transfers[4];
                struct coll_round ring = {.sends = &transfers[0], .receives = &transfers[1]};
                struct coll_round direct = {.sends = &transfers[2], .receives = &transfers[3]};
                coll_ring_all_reduce.round(&call, round, &ring);
                coll_direct_all_reduce.round(&call, round, &direct);
                assert_int_equal(ring.send_count, direct.send_count);
                assert_int_equal(ring.receive_count, direct.receive_count);
                if (ring.send_count > 0) {
                    assert_transfer(&transfers[0], transfers[2].node, transfers[2].action,
                                    transfers[2].offset_elements, transfers[2].count_elements);
                }
                if (ring.receive_count > 0) {
                    assert_transfer(&transfers[1], transfers[3].node, transfers[3].action,
                                    transfers[3].offset_elements, transfers[3].count_elements);
                }
            }
        }
    }
}

/* --- The far end of the arguments --- */

static void assert_in_bounds(const struct coll_algorithm *algorithm, const struct coll_call *call,
                             const struct coll_transfer *transfers, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        uint64_t elements = call->count_elements;
        if (transfers[i].space == COLL_SCRATCH) {
            elements = algorithm->scratch_elements(call);
        }
        assert_true(transfers[i].node < call->node_count && transfers[i].node != call->node_index);
        assert_true(transfers[i].count_elements > 0 || call->kind == OP_KIND_BARRIER);
        assert_true(transfers[i].offset_elements <= elements);
        assert_true(transfers[i].count_elements <= elements - transfers[i].offset_elements);
    }
}

static void walk(const struct coll_algorithm *algorithm, const struct coll_call *call)
{
    uint32_t rounds = algorithm->round_count(call);
    uint32_t max = algorithm->transfers_max(call);
    struct coll_round out = {.sends = calloc(max, sizeof *out.sends),
                             .receives = calloc(max, sizeof *out.receives)};
    assert_non_null(out.sends);
    assert_non_null(out.receives);
    for (uint32_t round = 0; round<rounds; round += rounds> 100 ? 97 : 1) {
        algorithm->round(call, round, &out);
        assert_true(out.send_count <= max && out.receive_count <= max);
        assert_in_bounds(algorithm, call, out.sends, out.send_count);
        assert_in_bounds(algorithm, call, out.receives, out.receive_count);
    }
    struct coll_estimate estimate;
    algorithm->estimate(call, &estimate);
    assert_int_equal(estimate.rounds, rounds);
    assert_true(estimate.busy_elements <= estimate.path_elements * 1.0001);
    free(out.sends);
    free(out.receives);
}

static void walk_largest(const struct coll_algorithm *algorithm, uint32_t node, uint64_t count)
{
    static uint64_t offsets[COLL_NODES_MAX + 1];
    struct coll_call call = {.kind = algorithm->kind,
                             .node_count = COLL_NODES_MAX - node % 2,
                             .node_index = node,
                             .count_elements = algorithm->kind == OP_KIND_BARRIER ? 0 : count,
                             .blocks_are_equal = true};
    call.root_node = op_kind_has_root(algorithm->kind) ? call.node_count - 1 : 0;
    if (algorithm->kind == OP_KIND_ALL_TO_ALL) {
        call.count_elements -= count % call.node_count;
    }
    for (uint32_t block = 0; block < call.node_count; block++) {
        uint64_t begin;
        uint64_t elements;
        coll_part_range(call.count_elements, call.node_count, block, &begin, &elements);
        offsets[block + 1] = begin + elements;
    }
    call.block_offsets = op_kind_has_blocks(algorithm->kind) ? offsets : NULL;
    call.send_offsets = algorithm->kind == OP_KIND_ALL_TO_ALL ? offsets : NULL;
    walk(algorithm, &call);
}

static void test_most_nodes_and_elements(void **state)
{
    (void)state;
    static const uint32_t nodes[] = {0, 1, 8191, 8192, COLL_NODES_MAX - 3, COLL_NODES_MAX - 2};
    uint32_t count;
    const struct coll_algorithm *const *all = coll_registry(&count);
    for (uint32_t i = 0; i < count; i++) {
        for (size_t node = 0; node < sizeof nodes / sizeof nodes[0]; node++) {
            walk_largest(all[i], nodes[node], UINT64_MAX);
            walk_largest(all[i], nodes[node], INT64_MAX);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ring),
        cmocka_unit_test(test_direct),
        cmocka_unit_test(test_tree),
        cmocka_unit_test(test_dissemination),
        cmocka_unit_test(test_more_nodes_and_elements),
        cmocka_unit_test(test_slices_that_do_not_divide),
        cmocka_unit_test(test_ring_of_three),
        cmocka_unit_test(test_direct_reduces_in_listed_order),
        cmocka_unit_test(test_ring_and_direct_of_two_are_one),
        cmocka_unit_test(test_most_nodes_and_elements),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
