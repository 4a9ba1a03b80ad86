#include "tests/unit/coll/check_script.h"

/* What coll_check refuses, and how it says so. It accepts a few right schedules of other shapes than those of
 * the registry. test_check_order.c: waits, barriers and overwriting. */

/* --- Right ones --- */

/* All nodes send everything to node 0, one after the other. Node 0 sends the result back. */
static void test_star_is_right(void **state)
{
    (void)state;
    begin();
    for (uint32_t node = 1; node < 4; node++) {
        move(node, 0, 0, 0, REDUCE, 0, 10);
        move(0, 1, node, 1, STORE, 0, 10);
    }
    struct coll_cost cost = assert_accepted(OP_KIND_ALL_REDUCE, 4, 10);
    assert_int_equal(cost.rounds, 2);
    assert_true(cost.sent_elements_max == 30);
    assert_true(cost.sent_elements_total == 60);
    assert_true(cost.messages_total == 6);
}

/* A chain in pieces that overlap. The ranges of its transfers intersect, and its rounds have other numbers on
 * each node. */
static void test_chain_in_overlapping_pieces_is_right(void **state)
{
    (void)state;
    begin();
    move(2, 0, 1, 0, REDUCE, 0, 4);
    move(2, 0, 1, 0, REDUCE, 4, 3);
    move(1, 1, 0, 0, REDUCE, 0, 6);
    move(1, 1, 0, 0, REDUCE, 6, 1);
    move(0, 1, 1, 2, STORE, 0, 2);
    move(0, 1, 1, 2, STORE, 2, 5);
    move(1, 3, 2, 1, STORE, 0, 7);
    struct coll_cost cost = assert_accepted(OP_KIND_ALL_REDUCE, 3, 7);
    assert_int_equal(cost.rounds, 4);
    assert_true(cost.sent_elements_max == 14);
    assert_true(cost.sent_elements_total == 28);
    assert_true(cost.messages_total == 7);
}

/* A node may send elements on and receive them again, once it is certain that the first transfer arrived. */
static void test_overwrite_after_the_answer_is_right(void **state)
{
    (void)state;
    begin();
    script_root = 2;
    move(2, 0, 0, 0, STORE, 0, 5);
    move(0, 1, 1, 0, STORE, 0, 5); /* a first time */
    move(1, 1, 0, 2, STORE, 0, 1); /* an answer */
    move(0, 3, 1, 2, STORE, 0, 5); /* and again, over the element that node 1 sent */
    assert_accepted(OP_KIND_BROADCAST, 3, 5);
}

static void test_central_barrier_is_right(void **state)
{
    (void)state;
    begin();
    for (uint32_t node = 1; node < 5; node++) {
        move(node, 0, 0, 0, STORE, 0, 0);
        move(0, 1, node, 1, STORE, 0, 0);
    }
    struct coll_cost cost = assert_accepted(OP_KIND_BARRIER, 5, 0);
    assert_true(cost.messages_total == 8 && cost.sent_elements_total == 0);
}

static void test_no_rounds_are_right_for_one_node_or_nothing(void **state)
{
    (void)state;
    begin();
    assert_true(assert_accepted(OP_KIND_ALL_REDUCE, 1, 9).messages_total == 0);
    assert_true(assert_accepted(OP_KIND_BROADCAST, 1, 9).messages_total == 0);
    assert_true(assert_accepted(OP_KIND_BARRIER, 1, 0).messages_total == 0);
    assert_true(assert_accepted(OP_KIND_ALL_REDUCE, 5, 0).messages_total == 0);
    assert_refused(OP_KIND_ALL_REDUCE, 2, 9, "node 0, round 0:", "without the contribution of node 1");
    assert_refused(OP_KIND_BARRIER, 2, 0, "node 0, round 0:", "without knowing that node 1 has entered");
}

/* --- Ranges --- */

/* Both sides use a slice that is off by one. */
static void test_slice_off_by_one(void **state)
{
    (void)state;
    begin();
    move(1, 0, 0, 0, REDUCE, 0, 5);
    move(1, 0, 0, 0, REDUCE, 4, 6);
    move(0, 1, 1, 1, STORE, 0, 10);
    assert_refused(OP_KIND_ALL_REDUCE, 2, 10,
                   "node 0, round 0:", "the contribution of node 1 a second time into elements 4 to 4");
    begin();
    move(1, 0, 0, 0, REDUCE, 0, 5);
    move(1, 0, 0, 0, REDUCE, 6, 4);
    move(0, 1, 1, 1, STORE, 0, 10);
    assert_refused(OP_KIND_ALL_REDUCE, 2, 10, "node 0, round 1:",
                   "elements 5 to 5 (never written) end without the contribution of node 1");
    /* The same in the ring, where the next part is on its way at the same time. */
    begin_with(&coll_ring_all_reduce, 4, 16);
    assert_accepted(OP_KIND_ALL_REDUCE, 4, 16);
    line_of(2, 1, SCRIPT_SEND)->transfer.offset_elements++;
    line_of(3, 1, SCRIPT_RECEIVE)->transfer.offset_elements++;
    assert_refused(OP_KIND_ALL_REDUCE, 4, 16,
                   "node 3, round 1:", "writes elements 4 to 4, which it sends to node 0 in round 1");
}

static void test_receive_off_by_one(void **state)
{
    (void)state;
    begin_with(&coll_ring_all_reduce, 4, 16);
    line_of(3, 1, SCRIPT_RECEIVE)->transfer.offset_elements++;
    assert_refused(OP_KIND_ALL_REDUCE, 4, 16, "node 3, round 1:",
                   "receives at element 1 what node 2 sends from element 0 (its round 1)");
}

/* Both sides leave out the last element of one part, as an algorithm does that cuts by bytes. */
static void test_last_element_left_out(void **state)
{
    (void)state;
    begin_with(&coll_ring_all_reduce, 3, 7);
    line_of(1, 1, SCRIPT_SEND)->transfer.count_elements--;
    line_of(2, 1, SCRIPT_RECEIVE)->transfer.count_elements--;
    assert_refused(OP_KIND_ALL_REDUCE, 3, 7, "node 0, round ",
                   "elements 6 to 6 (written here for the last time) end without the contribution of node 0");
}

static void test_unequal_counts(void **state)
{
    (void)state;
    begin_with(&coll_direct_all_reduce, 3, 9);
    line_of(1, 1, SCRIPT_SEND)->transfer.count_elements = 2; /* to node 0 */
    assert_refused(OP_KIND_ALL_REDUCE, 3, 9,
                   "node 0, round 1:", "receives 3 elements from node 1, which sends 2 (its round 1)");
}

static void test_range_out_of_the_slice(void **state)
{
    (void)state;
    begin();
    move(0, 0, 1, 0, STORE, 3, 3);
    assert_refused(OP_KIND_BROADCAST, 2, 5,
                   "node 0, round 0:", "send with node 1: 3 elements at 3 reach out of the slice");
    begin();
    move(0, 0, 1, 0, STORE, 0, 5);
    line_of(1, 0, SCRIPT_RECEIVE)->transfer.offset_elements = 1;
    assert_refused(OP_KIND_BROADCAST, 2, 5,
                   "node 1, round 0:", "receive with node 0: 5 elements at 1 reach out");
    begin();
    move(0, 0, 1, 0, STORE, UINT64_MAX, 2); /* the end wraps to 1 */
    assert_refused(OP_KIND_BROADCAST, 2, 5, "node 0, round 0:", "reach out of the slice");
    begin();
    move(0, 0, 1, 0, STORE, 6, 0);
    assert_refused(OP_KIND_BROADCAST, 2, 5, "node 0, round 0:", "reach out of the slice");
    begin();
    move(0, 0, 1, 0, STORE, 0, 1);
    assert_refused(OP_KIND_BARRIER, 2, 0, "node 0, round 0:", "reach out of the slice");
}

static void test_empty_transfer_of_data(void **state)
{
    (void)state;
    begin_with(&coll_tree_broadcast, 2, 5);
    move(0, 1, 1, 1, STORE, 2, 0);
    assert_refused(OP_KIND_BROADCAST, 2, 5, "node 0, round 1:", "an empty transfer of data");
}

/* --- Sends and receives --- */

static void test_missing_send(void **state)
{
    (void)state;
    begin_with(&coll_ring_all_reduce, 4, 8);
    remove_line(line_of(1, 5, SCRIPT_SEND));
    assert_refused(OP_KIND_ALL_REDUCE, 4, 8, "node 2, round 5:", "from node 1, which sends nothing for it");
}

static void test_missing_receive(void **state)
{
    (void)state;
    begin_with(&coll_dissemination_barrier, 5, 0);
    remove_line(line_of(4, 2, SCRIPT_RECEIVE));
    assert_refused(OP_KIND_BARRIER, 5, 0, "node 0, round 2:", "to node 4, which does not receive them");
}

/* Without the first send, the second takes its place, and has other elements. */
static void test_missing_send_with_another_behind_it(void **state)
{
    (void)state;
    begin_with(&coll_ring_all_reduce, 3, 6);
    remove_line(line_of(0, 1, SCRIPT_SEND));
    assert_refused(OP_KIND_ALL_REDUCE, 3, 6, "node 1, round 1:", "elements keep their places");
}

static void test_transfer_with_nobody(void **state)
{
    (void)state;
    begin();
    move(0, 0, 0, 0, STORE, 0, 5);
    assert_refused(OP_KIND_BROADCAST, 2, 5, "node 0, round 0:", "send with node 0: not another node");
    begin();
    add(0, 0, SCRIPT_SEND, 2, STORE, 0, 5);
    assert_refused(OP_KIND_BROADCAST, 2, 5, "node 0, round 0:", "send with node 2: not another node");
    begin();
    add(1, 0, SCRIPT_RECEIVE, UINT32_MAX, STORE, 0, 5);
    assert_refused(OP_KIND_BROADCAST, 2, 5,
                   "node 1, round 0:", "receive with node 4294967295: not another node");
}

static void test_actions_differ(void **state)
{
    (void)state;
    begin_with(&coll_direct_all_reduce, 2, 4);
    line_of(1, 0, SCRIPT_RECEIVE)->transfer.action = STORE;
    assert_refused(OP_KIND_ALL_REDUCE, 2, 4,
                   "node 1, round 0:", "stores what node 0 sends to be reduced (its round 0)");
    begin_with(&coll_direct_all_reduce, 2, 4);
    line_of(0, 1, SCRIPT_SEND)->transfer.action = (enum coll_action)7;
    assert_refused(OP_KIND_ALL_REDUCE, 2, 4, "node 0, round 1:", "action 7 is none");
}

static void test_more_transfers_than_announced(void **state)
{
    (void)state;
    begin_with(&coll_direct_all_reduce, 4, 8);
    script.transfers_max = 2;
    assert_refused(OP_KIND_ALL_REDUCE, 4, 8,
                   "node 0, round 0:", "3 transfers (send), where transfers_max announced 2");
}

/* --- What the elements come to --- */

static void test_double_contribution(void **state)
{
    (void)state;
    begin();
    move(1, 0, 0, 0, REDUCE, 0, 6);
    move(1, 1, 0, 1, REDUCE, 2, 2);
    move(0, 2, 1, 2, STORE, 0, 6);
    assert_refused(OP_KIND_ALL_REDUCE, 2, 6, "node 0, round 1:",
                   "reduces the contribution of node 1 a second time into elements 2 to 3");
    begin(); /* a high node: sets of contributors have more than one word */
    move(69, 0, 0, 0, REDUCE, 0, 6);
    move(69, 1, 0, 1, REDUCE, 5, 1);
    assert_refused(OP_KIND_ALL_REDUCE, 70, 6, "node 0, round 1:",
                   "reduces the contribution of node 69 a second time into elements 5 to 5");
}

/* In the last step of the ring's first phase, a node stores instead: earlier contributions are lost. */
static void test_lost_contribution(void **state)
{
    (void)state;
    begin_with(&coll_ring_all_reduce, 3, 3);
    line_of(0, 1, SCRIPT_SEND)->transfer.action = STORE;
    line_of(1, 1, SCRIPT_RECEIVE)->transfer.action = STORE;
    assert_refused(OP_KIND_ALL_REDUCE, 3, 3, "node 0, round 3:",
                   "elements 1 to 1 (written here for the last time) end without the contribution of node 1");
}

static void test_reduction_left_at_one_node(void **state)
{
    (void)state;
    begin();
    move(1, 0, 0, 0, REDUCE, 0, 4);
    move(0, 1, 1, 1, STORE, 0, 3);
    assert_refused(OP_KIND_ALL_REDUCE, 2, 4, "node 1, round 1:",
                   "elements 3 to 3 (never written) end without the contribution of node 0");
}

/*
 * Four nodes; the test is about element 0. Nodes 0 and 1 reduce what nodes 2 and 3 contribute. Node 0's sum
 * comes to node 1 through node 2, and node 1's sum to node 0 through node 3. The results are (0 + 2) + (1 +
 * 3) at node 0, and (1 + 3) + (0 + 2) at node 1. They have every contribution once, and nothing is
 * overwritten too early. Nodes 3 and 2 reduce elements 1 and 2, and send them round as proofs of consumption.
 */
static void test_other_order_at_two_nodes(void **state)
{
    (void)state;
    begin();
    move(0, 0, 3, 0, REDUCE, 1, 1);
    move(1, 0, 3, 0, REDUCE, 1, 1);
    move(2, 0, 3, 0, REDUCE, 1, 1);
    move(0, 0, 2, 0, REDUCE, 2, 1);
    move(1, 0, 2, 0, REDUCE, 2, 1);
    move(3, 0, 2, 0, REDUCE, 2, 1);
    move(2, 0, 0, 0, REDUCE, 0, 1);
    move(3, 0, 1, 0, REDUCE, 0, 1);
    move(0, 1, 2, 1, STORE, 0, 1);
    move(1, 1, 3, 1, STORE, 0, 1);
    move(2, 2, 3, 2, STORE, 2, 1);
    move(3, 2, 2, 2, STORE, 1, 1);
    for (uint32_t node = 0; node < 2; node++) {
        move(2, 3, node, 3, STORE, 1, 2);
    }
    move(2, 3, 1, 3, REDUCE, 0, 1);
    move(3, 3, 0, 3, REDUCE, 0, 1);
    move(1, 4, 2, 4, STORE, 0, 1);
    move(0, 4, 3, 4, STORE, 0, 1);
    assert_refused(
        OP_KIND_ALL_REDUCE, 4, 3, "node 1, round 3:",
        "elements 0 to 0 (written here for the last time) are reduced in another order than at node 0");
    /* Only the order is wrong: if nodes 1 and 2 get node 0's result, the schedule is right. */
    script.line_count -= 8;
    move(3, 3, 0, 3, REDUCE, 0, 1);
    move(0, 4, 3, 4, STORE, 0, 1);
    move(3, 5, 1, 3, STORE, 0, 1);
    move(3, 5, 2, 3, STORE, 0, 1);
    assert_accepted(OP_KIND_ALL_REDUCE, 4, 3);
}

static void test_send_without_having(void **state)
{
    (void)state;
    begin();
    move(1, 0, 2, 0, STORE, 0, 5);
    move(0, 0, 1, 0, STORE, 0, 5);
    assert_refused(OP_KIND_BROADCAST, 3, 5,
                   "node 1, round 0:", "sends elements 0 to 4 to node 2 without having them");
    begin();
    move(0, 0, 1, 0, STORE, 0, 3);
    move(1, 1, 2, 0, STORE, 0, 5);
    assert_refused(OP_KIND_BROADCAST, 3, 5,
                   "node 1, round 1:", "sends elements 3 to 4 to node 2 without having them");
}

static void test_broadcast_that_forgets_one(void **state)
{
    (void)state;
    begin_with(&coll_tree_broadcast, 6, 5);
    remove_line(line_of(1, 2, SCRIPT_SEND));
    remove_line(line_of(5, 2, SCRIPT_RECEIVE));
    assert_refused(OP_KIND_BROADCAST, 6, 5,
                   "node 5, round 2:", "ends without elements 0 to 4 of node 0 (never written)");
}

static void test_broadcast_that_reduces(void **state)
{
    (void)state;
    begin();
    move(0, 0, 1, 0, REDUCE, 0, 5);
    assert_refused(OP_KIND_BROADCAST, 2, 5,
                   "node 1, round 0:", "reduces into elements 0 to 4 without having them");
    begin();
    move(0, 0, 1, 0, STORE, 0, 5);
    move(0, 0, 2, 0, STORE, 0, 5);
    move(1, 1, 2, 1, REDUCE, 1, 2);
    assert_refused(OP_KIND_BROADCAST, 3, 5,
                   "node 2, round 1:", "the contribution of node 0 a second time into elements 1 to 2");
}

/* --- Calls and limits --- */

static void assert_status(const struct coll_algorithm *algorithm, struct coll_call call, enum status expected,
                          const char *text)
{
    struct coll_cost cost = {.rounds = 4711};
    struct error error = {.status = STATUS_OK};
    assert_int_equal(coll_check(algorithm, &call, &cost, &error), expected);
    assert_int_equal(error.status, expected);
    assert_contains(error.text, text);
    assert_int_equal(cost.rounds, 4711);
}

static void test_calls_that_are_none(void **state)
{
    (void)state;
    const struct coll_call good = {
        .kind = OP_KIND_BROADCAST, .node_count = 4, .root_node = 3, .count_elements = 5};
    struct coll_call call = good;
    assert_int_equal(coll_check(&coll_tree_broadcast, &call, NULL, NULL), STATUS_OK);
    call.node_count = 0;
    assert_status(&coll_tree_broadcast, call, STATUS_INVALID_ARGUMENT, "0 nodes");
    call.node_count = COLL_NODES_MAX + 1;
    assert_status(&coll_tree_broadcast, call, STATUS_INVALID_ARGUMENT, "16385 nodes");
    call = good;
    call.root_node = 4;
    assert_status(&coll_tree_broadcast, call, STATUS_INVALID_ARGUMENT, "root node 4");
    call = good;
    assert_status(&coll_ring_all_reduce, call, STATUS_INVALID_ARGUMENT, "the algorithm serves all_reduce");
    call.kind = OP_KIND_BARRIER;
    call.root_node = 0;
    assert_status(&coll_dissemination_barrier, call, STATUS_INVALID_ARGUMENT, "a barrier has no elements");
}

static void test_limits(void **state)
{
    (void)state;
    struct coll_call call = {
        .kind = OP_KIND_ALL_REDUCE, .node_count = COLL_CHECK_NODES_MAX + 1, .count_elements = 5};
    assert_status(&coll_ring_all_reduce, call, STATUS_LIMIT, "at most 4096 nodes are checked");
    call.node_count = 3;
    call.count_elements = UINT64_MAX; /* four times as many are sent in all */
    assert_status(&coll_ring_all_reduce, call, STATUS_LIMIT, "do not fit in 64 bits");
    assert_int_equal(coll_check(&coll_ring_all_reduce, &call, NULL, NULL), STATUS_OK); /* without the cost */
    begin();
    script.round_count = UINT32_MAX;
    struct coll_algorithm algorithm = script_algorithm(&script, OP_KIND_ALL_REDUCE);
    assert_status(&algorithm, call, STATUS_LIMIT, "node 0 announces 4294967295 rounds (at most 65536)");
    script.round_count = 1;
    script.transfers_max = UINT32_MAX;
    assert_status(&algorithm, call, STATUS_LIMIT, "of up to 4294967295 transfers (at most 65536)");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_star_is_right),
        cmocka_unit_test(test_chain_in_overlapping_pieces_is_right),
        cmocka_unit_test(test_overwrite_after_the_answer_is_right),
        cmocka_unit_test(test_central_barrier_is_right),
        cmocka_unit_test(test_no_rounds_are_right_for_one_node_or_nothing),
        cmocka_unit_test(test_slice_off_by_one),
        cmocka_unit_test(test_receive_off_by_one),
        cmocka_unit_test(test_last_element_left_out),
        cmocka_unit_test(test_unequal_counts),
        cmocka_unit_test(test_range_out_of_the_slice),
        cmocka_unit_test(test_empty_transfer_of_data),
        cmocka_unit_test(test_missing_send),
        cmocka_unit_test(test_missing_receive),
        cmocka_unit_test(test_missing_send_with_another_behind_it),
        cmocka_unit_test(test_transfer_with_nobody),
        cmocka_unit_test(test_actions_differ),
        cmocka_unit_test(test_more_transfers_than_announced),
        cmocka_unit_test(test_double_contribution),
        cmocka_unit_test(test_lost_contribution),
        cmocka_unit_test(test_reduction_left_at_one_node),
        cmocka_unit_test(test_other_order_at_two_nodes),
        cmocka_unit_test(test_send_without_having),
        cmocka_unit_test(test_broadcast_that_forgets_one),
        cmocka_unit_test(test_broadcast_that_reduces),
        cmocka_unit_test(test_calls_that_are_none),
        cmocka_unit_test(test_limits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
