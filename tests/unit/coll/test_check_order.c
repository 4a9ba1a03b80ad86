#include "tests/unit/coll/check_script.h"

/* What coll_check refuses for the order of events: circular waits, barriers that leak, buffers overwritten
 * too early. */

/* --- Waits --- */

static void test_deadlock_by_order(void **state)
{
    (void)state;
    begin();
    move(1, 1, 0, 0, STORE, 0, 0);
    move(0, 1, 1, 0, STORE, 0, 0);
    assert_refused(OP_KIND_BARRIER, 2, 0, "node 0, round 0:",
                   "circular wait: node 0 (round 0) waits for node 1 to send, node 1 (round 0) waits for "
                   "node 0 to send");
}

/* All nodes send in the first round and receive in the second. That would need a buffer on the way. */
static void test_deadlock_without_buffers(void **state)
{
    (void)state;
    begin();
    for (uint32_t node = 0; node < 3; node++) {
        move(node, 0, (node + 1) % 3, 1, STORE, 0, 0);
    }
    assert_refused(OP_KIND_BARRIER, 3, 0, ", round 0:", "waits for node 1 to receive");
}

/* Node 3 only waits for nodes of the circle. The error names the circle, not node 3. */
static void test_deadlock_names_the_circle(void **state)
{
    (void)state;
    begin();
    move(1, 0, 0, 0, STORE, 0, 0); /* listed first, sent in time */
    move(2, 1, 1, 1, STORE, 0, 0);
    move(3, 1, 2, 0, STORE, 0, 0);
    move(1, 2, 3, 0, STORE, 0, 0);
    assert_refused(OP_KIND_BARRIER, 4, 0, ", round ", "node 3 (round 0) waits for node 1 to send");
    struct error error;
    assert_int_equal(check(OP_KIND_BARRIER, 4, 0, NULL, &error), STATUS_INTERNAL);
    assert_contains(error.text, "node 1 (round 1) waits for node 2 to send");
    assert_contains(error.text, "node 2 (round 0) waits for node 3 to send");
    assert_null(strstr(error.text, "node 0"));
}

/* A circle that is too long for the message is cut, and the message still says that it is a circle. */
static void test_long_circle(void **state)
{
    (void)state;
    begin();
    for (uint32_t node = 0; node < 60; node++) {
        move((node + 1) % 60, 1, node, 0, STORE, 0, 0);
    }
    struct error error;
    assert_int_equal(check(OP_KIND_BARRIER, 60, 0, NULL, &error), STATUS_INTERNAL);
    assert_contains(error.text, "circular wait: node ");
    assert_contains(error.text, "and so on, back to node ");
}

static void test_barrier_that_lets_one_through_early(void **state)
{
    (void)state;
    begin();
    for (uint32_t node = 1; node < 4; node++) {
        move(node, 0, 0, 0, STORE, 0, 0);
        move(0, 1, node, 1, STORE, 0, 0);
    }
    line_of(0, 1, SCRIPT_SEND)->round = 0; /* node 1 may go on at once */
    assert_refused(OP_KIND_BARRIER, 4, 0,
                   "node 1, round 1:", "passes the barrier without knowing that node 2 has entered it");
    begin_with(&coll_dissemination_barrier, 5, 0); /* without the last of its three rounds */
    for (uint32_t i = script.line_count; i-- > 0;) {
        if (script.lines[i].round == 2) {
            remove_line(&script.lines[i]);
        }
    }
    script.round_count = 2;
    assert_refused(OP_KIND_BARRIER, 5, 0,
                   "node 0, round 1:", "passes the barrier without knowing that node 1 has entered it");
}

/* --- Overwriting --- */

/* Two nodes exchange in place in one round. What arrives is written while the node's own contribution may
 * still be on its way. */
static void test_overwrite_in_the_same_round(void **state)
{
    (void)state;
    begin();
    move(0, 0, 1, 0, REDUCE, 0, 4);
    move(1, 0, 0, 0, REDUCE, 3, 1);
    assert_refused(OP_KIND_ALL_REDUCE, 2, 4, ", round 0:",
                   "writes elements 3 to 3, which it sends to node 1 in round 0, before it can know");
}

/* A later round is no proof. Node 2's message says nothing about node 1, which may still have to ask for a
 * lost packet. */
static void test_overwrite_in_a_later_round(void **state)
{
    (void)state;
    begin();
    move(0, 0, 1, 0, REDUCE, 0, 4);
    move(2, 0, 0, 1, REDUCE, 0, 4);
    assert_refused(OP_KIND_ALL_REDUCE, 3, 4, "node 0, round 1:",
                   "writes elements 0 to 3, which it sends to node 1 in round 0, before it can know that "
                   "they are consumed");
}

/* An answer in the same round as the receive may have been sent before the receive. */
static void test_overwrite_after_an_answer_of_the_same_round(void **state)
{
    (void)state;
    begin();
    move(0, 0, 1, 0, REDUCE, 0, 2);
    move(1, 0, 0, 1, REDUCE, 2, 2); /* of other elements; proves nothing */
    move(1, 1, 0, 2, STORE, 0, 2);  /* proves it */
    move(0, 2, 1, 2, STORE, 2, 2);
    assert_accepted(OP_KIND_ALL_REDUCE, 2, 4);
    begin();
    move(0, 0, 1, 0, REDUCE, 0, 2);
    move(2, 0, 0, 1, REDUCE, 0, 2);
    move(1, 0, 2, 0, REDUCE, 2, 2); /* an answer through node 2, sent before the receive: no proof */
    assert_refused(OP_KIND_ALL_REDUCE, 3, 4,
                   "node 0, round 1:", "writes elements 0 to 1, which it sends to node 1 in round 0");
}

/* The proof may come through other nodes, which need not know what it proves. */
static void test_overwrite_after_an_answer_through_others(void **state)
{
    (void)state;
    begin();
    script_root = 4;
    move(4, 0, 0, 0, STORE, 0, 3);
    move(0, 1, 1, 0, STORE, 0, 3);
    move(1, 1, 2, 0, STORE, 0, 3);
    move(2, 1, 3, 0, STORE, 0, 3);
    move(3, 1, 0, 2, STORE, 0,
         3); /* the same elements come back: node 1 has consumed them, or node 3 would not have them */
    assert_accepted(OP_KIND_BROADCAST, 5, 3);
    begin();
    script_root = 4;
    move(4, 0, 0, 0, STORE, 0, 3);
    move(0, 1, 1, 0, STORE, 0, 3);
    move(0, 1, 2, 0, STORE, 0, 3);
    move(2, 1, 3, 0, STORE, 0, 3);
    move(3, 1, 0, 2, STORE, 0, 3); /* the same, but not through node 1 */
    assert_refused(OP_KIND_BROADCAST, 5, 3,
                   "node 0, round 2:", "writes elements 0 to 2, which it sends to node 1 in round 1");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_deadlock_by_order),
        cmocka_unit_test(test_deadlock_without_buffers),
        cmocka_unit_test(test_deadlock_names_the_circle),
        cmocka_unit_test(test_long_circle),
        cmocka_unit_test(test_barrier_that_lets_one_through_early),
        cmocka_unit_test(test_overwrite_in_the_same_round),
        cmocka_unit_test(test_overwrite_in_a_later_round),
        cmocka_unit_test(test_overwrite_after_an_answer_of_the_same_round),
        cmocka_unit_test(test_overwrite_after_an_answer_through_others),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
