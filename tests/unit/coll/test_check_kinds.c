#include "tests/unit/coll/check_script.h"

/* What coll_check refuses in the kinds that have roots, blocks, an input or an order of their own. Also what
 * it says about spaces. test_check.c has what all kinds share. */

#define PREFIX COLL_PREFIX
#define BEFORE COLL_REDUCE_BEFORE

static struct coll_transfer *transfer_of(uint32_t node, uint32_t round, enum script_direction direction)
{
    return &line_of(node, round, direction)->transfer;
}

/* --- Roots --- */

static void test_root_of_a_broadcast_is_written(void **state)
{
    (void)state;
    begin_with(&coll_tree_broadcast, 2, 5);
    move(1, 1, 0, 1, STORE, 2, 2); /* the same elements, back */
    assert_refused(OP_KIND_BROADCAST, 2, 5, "node 0, round 1:",
                   "writes to the root's elements what it receives from node 1 (2 elements at 2)");
}

static void test_root_of_a_scatter_is_written(void **state)
{
    (void)state;
    begin_with(&coll_direct_scatter, 3, 9);
    assert_accepted(OP_KIND_SCATTER, 3, 9);
    move(2, 1, 0, 1, STORE, 6, 3);
    assert_refused(OP_KIND_SCATTER, 3, 9, "node 0, round 1:", "writes to the root's elements");
}

static void test_scatter_of_another_block(void **state)
{
    (void)state;
    begin();
    move(0, 0, 1, 0, STORE, 3, 3);
    move(0, 0, 2, 0, STORE, 5, 3);
    assert_refused(OP_KIND_SCATTER, 3, 9,
                   "node 2, round 0:", "ends without elements 8 to 8 of node 0 (never written)");
}

static void test_gather_that_forgets_one(void **state)
{
    (void)state;
    begin_with(&coll_tree_gather, 4, 8);
    assert_accepted(OP_KIND_GATHER, 4, 8);
    begin();
    move(1, 0, 0, 0, STORE, 2, 2);
    move(3, 0, 0, 0, STORE, 6, 2);
    assert_refused(OP_KIND_GATHER, 4, 8,
                   "node 0, round 0:", "ends without elements 4 to 5 of node 2 (never written)");
}

/* A node's own block may be the caller's input. */
static void test_gather_writes_an_own_block(void **state)
{
    (void)state;
    begin();
    script_root = 2;
    move(0, 0, 2, 0, STORE, 0, 2);
    move(1, 0, 2, 0, STORE, 2, 2);
    assert_accepted(OP_KIND_GATHER, 3, 6);
    move(2, 1, 1, 1, STORE, 2, 1);
    assert_refused(OP_KIND_GATHER, 3, 6, "node 1, round 1:",
                   "writes to its own block what it receives from node 2 (1 elements at 2)");
}

static void test_reduce_ends_at_the_root(void **state)
{
    (void)state;
    begin();
    script_root = 1;
    move(0, 0, 1, 0, REDUCE, 0, 4);
    move(2, 0, 1, 0, BEFORE, 0, 4);
    assert_accepted(OP_KIND_REDUCE, 3, 4); /* the elements at nodes 0 and 2 do not matter */
    script_root = 0;
    assert_refused(OP_KIND_REDUCE, 3, 4, "node 0, round 0:",
                   "elements 0 to 3 (never written) end without the contribution of node 1");
}

static void test_reduce_counts_one_twice(void **state)
{
    (void)state;
    begin_with(&coll_tree_reduce, 4, 4);
    assert_accepted(OP_KIND_REDUCE, 4, 4);
    move(3, 2, 0, 2, REDUCE, 1, 1);
    assert_refused(OP_KIND_REDUCE, 4, 4, "node 0, round 2:",
                   "reduces the contribution of node 3 a second time into elements 1 to 1");
}

/* --- Blocks --- */

static void test_all_gather_that_forgets_a_block(void **state)
{
    (void)state;
    begin_with(&coll_ring_all_gather, 3, 9);
    assert_accepted(OP_KIND_ALL_GATHER, 3, 9);
    remove_line(line_of(0, 1, SCRIPT_SEND));
    remove_line(line_of(1, 1, SCRIPT_RECEIVE));
    assert_refused(OP_KIND_ALL_GATHER, 3, 9,
                   "node 1, round 1:", "ends without elements 6 to 8 of node 2 (never written)");
}

static void test_all_gather_sends_what_it_lacks(void **state)
{
    (void)state;
    begin_with(&coll_bruck_all_gather, 4, 8);
    assert_accepted(OP_KIND_ALL_GATHER, 4, 8);
    transfer_of(1, 0, SCRIPT_SEND)->offset_elements = 4;
    transfer_of(0, 0, SCRIPT_RECEIVE)->offset_elements = 4;
    assert_refused(OP_KIND_ALL_GATHER, 4, 8,
                   "node 1, round 0:", "sends elements 4 to 5 to node 0 without having them");
}

static void test_reduce_scatter_wants_the_own_block(void **state)
{
    (void)state;
    begin_with(&coll_direct_reduce_scatter, 3, 6);
    assert_accepted(OP_KIND_REDUCE_SCATTER, 3, 6);
    remove_line(line_of(0, 0, SCRIPT_SEND)); /* to node 2 */
    for (uint32_t i = 0; i < script.line_count; i++) {
        const struct script_line *line = &script.lines[i];
        if (line->node == 2 && line->direction == SCRIPT_RECEIVE && line->transfer.node == 0) {
            remove_line(line);
            break;
        }
    }
    assert_refused(OP_KIND_REDUCE_SCATTER, 3, 6, "node 2, round 0:",
                   "elements 4 to 5 (written here for the last time) end without the contribution of node 0");
}

/* --- Prefixes --- */

static void test_scan_in_order_however_bracketed(void **state)
{
    (void)state;
    begin();
    move(0, 0, 1, 0, PREFIX, 0, 2);
    move(1, 1, 2, 0, PREFIX, 0, 2);
    move(2, 1, 3, 0, PREFIX, 0, 2);
    assert_accepted(OP_KIND_SCAN, 4, 2);
    assert_accepted(OP_KIND_EXCLUSIVE_SCAN, 4, 2);
    begin();
    move(2, 0, 3, 0, PREFIX, 0, 2); /* node 2's, and then what comes before it: 0 and 1 */
    move(0, 0, 1, 0, PREFIX, 0, 2);
    move(1, 1, 3, 1, PREFIX, 0, 2);
    move(1, 1, 2, 1, PREFIX, 0, 2);
    script.copies_sends = true;
    assert_accepted(OP_KIND_SCAN, 4, 2);
    begin(); /* in pieces */
    move(0, 0, 1, 0, PREFIX, 0, 1);
    move(0, 0, 1, 0, PREFIX, 1, 1);
    assert_accepted(OP_KIND_SCAN, 2, 2);
}

static void test_scan_out_of_order(void **state)
{
    (void)state;
    begin();
    move(0, 0, 2, 0, PREFIX, 0, 3); /* node 0's comes first, and then node 1's before it */
    move(1, 0, 2, 0, PREFIX, 0, 3);
    move(0, 0, 1, 0, PREFIX, 0, 3);
    script.copies_sends = true;
    assert_refused(
        OP_KIND_SCAN, 3, 3, "node 2, round 0:",
        "elements 3 to 5 (written here for the last time) are not the fold of nodes 0 to 1 in order");
}

static void test_scan_counts_one_twice(void **state)
{
    (void)state;
    begin();
    move(0, 0, 2, 0, PREFIX, 0, 3);
    move(0, 0, 1, 0, PREFIX, 0, 3);
    move(1, 1, 2, 1, PREFIX, 0, 3);
    assert_refused(OP_KIND_SCAN, 3, 3, "node 2, round 1:",
                   "reduces the contribution of node 0 a second time into elements 0 to 2");
}

static void test_scan_without_a_node(void **state)
{
    (void)state;
    begin_with(&coll_hillis_steele_scan, 4, 3);
    assert_accepted(OP_KIND_SCAN, 4, 3);
    remove_line(line_of(0, 1, SCRIPT_SEND));
    remove_line(line_of(2, 1, SCRIPT_RECEIVE));
    assert_refused(OP_KIND_SCAN, 4, 3, "node 2, round 0:", "are not the fold of nodes 0 to 1 in order");
    begin();
    assert_refused(OP_KIND_SCAN, 2, 3,
                   "node 1, round 0:", "elements 3 to 5 (never written) end with nothing in them");
}

static void test_prefix_of_what_is_none(void **state)
{
    (void)state;
    begin();
    move(0, 0, 1, 0, PREFIX, 2, 2);
    assert_refused(OP_KIND_SCAN, 2, 3,
                   "node 1, round 0:", "receive with node 0: 2 elements at 2 reach out of the running value");
    begin();
    move(0, 0, 1, 0, PREFIX, 0, 3);
    assert_refused(OP_KIND_ALL_REDUCE, 2, 3, "node 0, round 0:", "action 3 is none");
}

/* Node 1 stores node 0's prefix, but that has no value. */
static void test_prefix_sent_without_having_it(void **state)
{
    (void)state;
    begin();
    move(0, 0, 1, 0, STORE, 3, 3);
    assert_refused(OP_KIND_SCAN, 2, 3,
                   "node 0, round 0:", "sends elements 3 to 5 to node 1 without having them");
}

/* --- Folding on the other side --- */

static void test_partners_that_fold_differently(void **state)
{
    (void)state;
    begin();
    move(0, 0, 1, 0, BEFORE, 0, 4);
    move(1, 0, 0, 0, REDUCE, 0, 4);
    script.copies_sends = true;
    assert_accepted(OP_KIND_ALL_REDUCE, 2, 4);
    transfer_of(0, 0, SCRIPT_SEND)->action = REDUCE;
    transfer_of(1, 0, SCRIPT_RECEIVE)->action = REDUCE; /* both their own first: a + b and b + a */
    assert_refused(OP_KIND_ALL_REDUCE, 2, 4,
                   "node 1, round 0:", "are reduced in another order than at node 0");
    transfer_of(0, 0, SCRIPT_SEND)->action = BEFORE;
    assert_refused(OP_KIND_ALL_REDUCE, 2, 4, "node 1, round 0:",
                   "reduces what node 0 sends to be reduced before what is there (its round 0)");
}

/* The same exchange without copies: the elements that are sent are written in the same round. */
static void test_exchange_needs_copies(void **state)
{
    (void)state;
    begin_with(&coll_recursive_doubling_all_reduce, 4, 4);
    assert_true(script.copies_sends);
    assert_accepted(OP_KIND_ALL_REDUCE, 4, 4);
    script.copies_sends = false;
    assert_refused(OP_KIND_ALL_REDUCE, 4, 4,
                   ", round 0:", "writes elements 0 to 3, which it sends to node 1 in round 0");
    begin_with(&coll_hillis_steele_scan, 3, 4);
    script.copies_sends = false;
    assert_refused(OP_KIND_SCAN, 3, 4, ", round 0:", "which it sends to node 2 in round 0");
}

/* --- All to all, and spaces --- */

static void test_all_to_all_with_one_block_twice(void **state)
{
    (void)state;
    begin_with(&coll_pairwise_all_to_all, 3, 6);
    assert_accepted(OP_KIND_ALL_TO_ALL, 3, 6);
    transfer_of(0, 0, SCRIPT_SEND)->offset_elements = 4; /* node 1 gets node 2's elements */
    assert_refused(OP_KIND_ALL_TO_ALL, 3, 6, "node 1, round 0:",
                   "elements 0 to 1 (written here for the last time) end with elements of another place");
}

static void test_all_to_all_in_another_place(void **state)
{
    (void)state;
    begin_with(&coll_pairwise_all_to_all, 3, 6);
    transfer_of(2, 0, SCRIPT_RECEIVE)->offset_elements = 0; /* node 1's block where node 0's belongs */
    transfer_of(2, 1, SCRIPT_RECEIVE)->offset_elements = 2; /* and the other way round */
    assert_refused(OP_KIND_ALL_TO_ALL, 3, 6, "node 2, round 0:",
                   "elements 0 to 1 (written here for the last time) end with others than those of node 0");
    begin();
    move_between(0, 0, COLL_INPUT, 1, 1, 0, COLL_WORK, 0, 1);
    move_between(1, 0, COLL_INPUT, 0, 0, 0, COLL_WORK, 1, 1);
    assert_accepted(OP_KIND_ALL_TO_ALL, 2, 2);
    begin(); /* two elements in the wrong order */
    move_between(0, 0, COLL_INPUT, 2, 1, 0, COLL_WORK, 1, 1);
    move_between(0, 0, COLL_INPUT, 3, 1, 0, COLL_WORK, 0, 1);
    move_between(1, 0, COLL_INPUT, 0, 0, 0, COLL_WORK, 2, 2);
    assert_refused(OP_KIND_ALL_TO_ALL, 2, 4, "node 1, round 0:", "end with elements of another place");
}

static void test_all_to_all_through_scratch(void **state)
{
    (void)state;
    begin(); /* by way of node 2 */
    script.scratch_elements = 1;
    move_between(0, 0, COLL_INPUT, 1, 2, 0, COLL_SCRATCH, 0, 1);
    move_between(2, 1, COLL_SCRATCH, 0, 1, 0, COLL_WORK, 0, 1);
    move_between(0, 1, COLL_INPUT, 2, 2, 1, COLL_WORK, 0, 1);
    move_between(1, 1, COLL_INPUT, 0, 0, 1, COLL_WORK, 1, 1);
    move_between(1, 1, COLL_INPUT, 2, 2, 1, COLL_WORK, 1, 1);
    move_between(2, 1, COLL_INPUT, 0, 0, 1, COLL_WORK, 2, 1);
    move_between(2, 1, COLL_INPUT, 1, 1, 1, COLL_WORK, 2, 1);
    struct coll_cost cost = assert_accepted(OP_KIND_ALL_TO_ALL, 3, 3);
    assert_true(cost.scratch_elements == 1);
    assert_int_equal(cost.senders_max, 2);
    script.lines[0].round = 2; /* node 2 passes it on before it has come */
    script.lines[1].round = 2;
    assert_refused(OP_KIND_ALL_TO_ALL, 3, 3,
                   "node 2, round 1:", "sends scratch elements 0 to 0 to node 1 without having them");
}

static void test_spaces_that_may_not_be_written(void **state)
{
    (void)state;
    begin();
    move_between(0, 0, COLL_INPUT, 2, 1, 0, COLL_INPUT, 0, 2);
    assert_refused(OP_KIND_ALL_TO_ALL, 2, 4,
                   "node 1, round 0:", "writes to its input what it receives from node 0 (2 elements at 0)");
    begin();
    move_between(0, 0, COLL_INPUT, 2, 1, 0, COLL_WORK, 1, 2);
    assert_refused(OP_KIND_ALL_TO_ALL, 2, 4, "node 1, round 0:", "writes to its own block");
    begin();
    move_between(0, 0, COLL_INPUT, 0, 1, 0, COLL_WORK, 0, 2);
    assert_refused(OP_KIND_ALL_REDUCE, 2, 4,
                   "node 0, round 0:", "send with node 1: 2 elements at 0 reach out of the input");
    begin();
    script.scratch_elements = 2;
    move_between(0, 0, COLL_WORK, 0, 1, 0, COLL_SCRATCH, 1, 2);
    assert_refused(OP_KIND_ALL_REDUCE, 2, 4,
                   "node 1, round 0:", "receive with node 0: 2 elements at 1 reach out of the scratch");
    begin();
    move_between(0, 0, (enum coll_space)9, 0, 1, 0, COLL_WORK, 0, 2);
    assert_refused(OP_KIND_BROADCAST, 2, 4, "node 0, round 0:", "space 9 is none");
}

/* Through scratch, elements can come to another place. They may not be reduced there. */
static void test_reduction_of_other_places(void **state)
{
    (void)state;
    begin();
    script.scratch_elements = 1;
    move_between(0, 0, COLL_WORK, 0, 1, 0, COLL_SCRATCH, 0, 1);
    move_between(1, 1, COLL_SCRATCH, 0, 2, 0, COLL_WORK, 1, 1);
    for (uint32_t i = 2; i < 4; i++) {
        script.lines[i].transfer.action = REDUCE;
    }
    assert_refused(OP_KIND_ALL_REDUCE, 3, 2, "node 2, round 0:",
                   "reduces into elements 1 to 1 those of other places, from element 0 on");
}

/* --- Calls --- */

static void assert_invalid(const struct coll_algorithm *algorithm, const struct coll_call *call,
                           const uint64_t *counts, const char *text)
{
    struct error error = {.status = STATUS_OK};
    assert_int_equal(coll_check_all_to_all(algorithm, call, counts, NULL, &error), STATUS_INVALID_ARGUMENT);
    assert_contains(error.text, text);
}

static void test_calls_that_are_none(void **state)
{
    (void)state;
    static const uint64_t even[] = {0, 2, 4};
    static const uint64_t uneven[] = {0, 1, 4};
    static const uint64_t back[] = {0, 5, 4};
    static const uint64_t counts[] = {1, 2, 3, 4};
    struct coll_call call = {.kind = OP_KIND_ALL_GATHER, .node_count = 2, .count_elements = 4};
    assert_invalid(&coll_ring_all_gather, &call, NULL, "its blocks do not make up the vector");
    call.block_offsets = back;
    assert_invalid(&coll_ring_all_gather, &call, NULL, "its blocks do not make up the vector");
    call.block_offsets = uneven;
    assert_int_equal(coll_check(&coll_ring_all_gather, &call, NULL, NULL), STATUS_OK);
    call.count_elements = 5;
    assert_invalid(&coll_ring_all_gather, &call, NULL, "its blocks do not make up the vector");
    call.count_elements = 4;
    call.send_offsets = even;
    assert_invalid(&coll_ring_all_gather, &call, NULL, "only an all_to_all has an input");
    call.kind = OP_KIND_ALL_REDUCE;
    call.send_offsets = NULL;
    assert_invalid(&coll_ring_all_reduce, &call, NULL, "its vector has no blocks");
    call.kind = OP_KIND_ALL_TO_ALL;
    call.send_offsets = even;
    assert_invalid(&coll_direct_all_to_all, &call, NULL, "must be equal");
    call.block_offsets = even;
    assert_int_equal(coll_check(&coll_direct_all_to_all, &call, NULL, NULL), STATUS_OK);
    assert_int_equal(coll_check_all_to_all(&coll_direct_all_to_all, &call, counts, NULL, NULL), STATUS_OK);
    assert_invalid(&coll_bruck_all_to_all, &call, NULL, "the algorithm does not serve it");
    call.blocks_are_equal = true;
    assert_int_equal(coll_check(&coll_bruck_all_to_all, &call, NULL, NULL), STATUS_OK);
    assert_invalid(&coll_bruck_all_to_all, &call, counts, "its blocks are called equal, and are not");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_root_of_a_broadcast_is_written),
        cmocka_unit_test(test_root_of_a_scatter_is_written),
        cmocka_unit_test(test_scatter_of_another_block),
        cmocka_unit_test(test_gather_that_forgets_one),
        cmocka_unit_test(test_gather_writes_an_own_block),
        cmocka_unit_test(test_reduce_ends_at_the_root),
        cmocka_unit_test(test_reduce_counts_one_twice),
        cmocka_unit_test(test_all_gather_that_forgets_a_block),
        cmocka_unit_test(test_all_gather_sends_what_it_lacks),
        cmocka_unit_test(test_reduce_scatter_wants_the_own_block),
        cmocka_unit_test(test_scan_in_order_however_bracketed),
        cmocka_unit_test(test_scan_out_of_order),
        cmocka_unit_test(test_scan_counts_one_twice),
        cmocka_unit_test(test_scan_without_a_node),
        cmocka_unit_test(test_prefix_of_what_is_none),
        cmocka_unit_test(test_prefix_sent_without_having_it),
        cmocka_unit_test(test_partners_that_fold_differently),
        cmocka_unit_test(test_exchange_needs_copies),
        cmocka_unit_test(test_all_to_all_with_one_block_twice),
        cmocka_unit_test(test_all_to_all_in_another_place),
        cmocka_unit_test(test_all_to_all_through_scratch),
        cmocka_unit_test(test_spaces_that_may_not_be_written),
        cmocka_unit_test(test_reduction_of_other_places),
        cmocka_unit_test(test_calls_that_are_none),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
