#include "tests/unit/comm/comm_nodes.h"

/* How the formation of a communicator ends if it fails: ranks that do not come, nodes that give up or are
 * lost. */

static struct world world; /* large */

static void test_the_deadline_names_missing_ranks(void **state)
{
    (void)state;
    world_start(&world, 3, 5, NULL);
    connect_all(&world);
    struct member *members[6];
    static const uint32_t ranks[] = {0, 1, 2, 4, 8, 9};
    uint64_t begin_ns = world.now_ns;
    for (unsigned i = 0; i < 6; i++) {
        members[i] = join_as(
            &world, i % 2,
            &(struct comms_terms){.name = "late", .rank = ranks[i], .size = 10, .form_timeout_ms = 1500},
            1000);
    }
    run(&world, 1499 * TIME_MS);
    for (unsigned i = 0; i < 6; i++) {
        assert_int_equal(members[i]->formed_count, 0);
    }
    run(&world, 101 * TIME_MS);
    for (unsigned i = 0; i < 6; i++) {
        assert_int_equal(members[i]->formed_count, 1);
        assert_int_equal(members[i]->formed_ns, begin_ns + 1500 * TIME_MS);
        assert_error(&members[i]->formed, STATUS_TIMED_OUT,
                     "\"late\" did not form within 1500 ms: missing ranks 3, 5-7 of 10; nodes with ranks: ");
        assert_non_null(strchr(members[i]->formed.text, i % 2 == 0 ? 'a' : 'b'));
    }
    struct error error;
    assert_int_equal(post_barrier(members[0], 0, &error), STATUS_TIMED_OUT);
    /* The failed communicator is still there when its name is used again. */
    struct member *again[2] = {join(&world, 0, "late", 0, 2), join(&world, 2, "late", 1, 2)};
    run(&world, 10 * TIME_MS);
    assert_formed(again[0]);
    assert_formed(again[1]);
    assert_int_equal(comm_count(&world, 0), 2);
    world_stop(&world);
}

static void test_a_node_that_gives_up_is_named(void **state)
{
    (void)state;
    world_start(&world, 2, 5, NULL);
    connect_all(&world);
    struct comms_terms terms = {.name = "slow", .rank = 0, .size = 3, .form_timeout_ms = 1000};
    struct member *early = join_as(&world, 0, &terms, 1000);
    terms.rank = 1;
    terms.form_timeout_ms = 2000;
    struct member *late = join_as(&world, 1, &terms, 1000);
    run(&world, 3 * TIME_S);
    assert_error(&early->formed, STATUS_TIMED_OUT,
                 "within 1000 ms: missing rank 2 of 3; nodes with ranks: a, b");
    assert_error(&late->formed, STATUS_TIMED_OUT,
                 "within 2000 ms: missing ranks 0, 2 of 3; nodes with ranks: b; node a gave up: ");
    world_stop(&world);
}

/* What ends a forming communicator on one node ends it everywhere at once. */
static void test_a_failure_that_is_known_ends_it_everywhere(void **state)
{
    (void)state;
    world_start(&world, 3, 41, NULL);
    connect_all(&world);
    struct member *members[3];
    for (uint32_t i = 0; i < 3; i++) {
        members[i] = join(&world, i, "ends", i, 4); /* rank 3 does not come */
    }
    run(&world, 100 * TIME_MS);
    struct error cause = {.status = STATUS_ABORTED, .text = "by hand"};
    assert_int_equal(comms_abort(world.nodes[1].comms, 1000, "ends", &cause, world.now_ns), STATUS_OK);
    run(&world, 10 * TIME_MS);
    for (uint32_t i = 0; i < 3; i++) {
        assert_int_equal(members[i]->formed_count, 1);
        assert_error(&members[i]->formed, STATUS_ABORTED, "by hand");
    }
    /* The name is free again. */
    leave_all(&world);
    for (uint32_t i = 0; i < 3; i++) {
        members[i] = join(&world, i, "ends", i, 3);
    }
    run(&world, 100 * TIME_MS);
    for (uint32_t i = 0; i < 3; i++) {
        assert_formed(members[i]);
    }
    leave_all(&world);
    world_stop(&world);
}

/* A rank that gives up leaves its place to another one. */
static void test_a_rank_that_leaves_while_it_forms(void **state)
{
    (void)state;
    world_start(&world, 3, 5, NULL);
    connect_all(&world);
    struct member *a = join(&world, 0, "gap", 0, 4);
    struct member *b = join(&world, 1, "gap", 1, 4);
    struct member *gone = join(&world, 1, "gap", 2, 4);
    run(&world, 10 * TIME_MS);
    leave(gone, COMMS_LEAVE_ORDERLY);
    struct member *c = join(&world, 2, "gap", 3, 4);
    run(&world, 10 * TIME_MS);
    assert_int_equal(a->formed_count, 0);
    struct member *again = join(&world, 2, "gap", 2, 4); /* another node takes the rank */
    run(&world, 10 * TIME_MS);
    assert_formed(a);
    assert_formed(b);
    assert_formed(c);
    assert_formed(again);
    world_stop(&world);
}

/* All are told the same, which names the rank and its process. */
static void test_a_rank_is_lost_while_it_forms(void **state)
{
    (void)state;
    world_start(&world, 3, 5, NULL);
    connect_all(&world);
    for (uint32_t alone = 0; alone < 2; alone++) { /* its node has another rank, or not */
        struct member *members[3] = {join(&world, 0, "gap", 0, 5), join(&world, 2, "gap", 3, 5),
                                     join(&world, 1 + alone, "gap", 1, 5)};
        struct member *gone = join(&world, 1, "gap", 2, 5);
        run(&world, 10 * TIME_MS);
        leave(gone, COMMS_LEAVE_LOST);
        run(&world, 10 * TIME_MS);
        for (uint32_t i = 0; i < 3; i++) {
            assert_int_equal(members[i]->formed_count, 1);
            assert_error(&members[i]->formed, STATUS_RANK_LOST, "the process of rank 2 (pid ");
            assert_error(&members[i]->formed, STATUS_RANK_LOST, " of node b was lost while");
            const struct comms_detail *detail = comms_member_detail(members[i]->handle);
            assert_non_null(detail);
            assert_int_equal(detail->rank_count, 1);
            assert_int_equal(detail->ranks[0], 2);
            assert_int_equal(detail->pids[0], gone->client.pid);
        }
        leave_all(&world);
    }
    /* All may come again, and so may the rank. */
    struct member *a = join(&world, 0, "gap", 0, 2), *b = join(&world, 1, "gap", 1, 2);
    run(&world, 10 * TIME_MS);
    assert_formed(a);
    assert_formed(b);
    world_stop(&world);
}

/* A node whose ranks had come is lost: all others are told which one and why. */
static void test_a_node_is_lost_while_it_forms(void **state)
{
    (void)state;
    world_start(&world, 4, 5, NULL);
    connect_all(&world);
    struct member *a = join(&world, 0, "gap", 0, 5);
    struct member *b = join(&world, 1, "gap", 1, 5);
    struct member *c = join(&world, 2, "gap", 4, 5);
    struct member *other = join(&world, 3, "other", 0, 2);
    join(&world, 0, "gap", 2, 5);
    run(&world, 10 * TIME_MS);
    node_kill(&world, 0);
    (void)a;
    run(&world, 4500 * TIME_MS);
    struct member *members[] = {b, c};
    for (uint32_t i = 0; i < 2; i++) {
        assert_int_equal(members[i]->formed_count, 1);
        assert_error(&members[i]->formed, STATUS_NODE_LOST, "node a lost: ");
        const struct comms_detail *detail = comms_member_detail(members[i]->handle);
        assert_non_null(detail);
        assert_string_equal(detail->node, "a");
        assert_int_equal(detail->rank_count, 2);
        assert_int_equal(detail->ranks[0], 0);
        assert_int_equal(detail->ranks[1], 2);
    }
    assert_string_equal(b->formed.text, c->formed.text);
    assert_int_equal(other->formed_count, 0);
    /* Ranks that come now wait for nobody who is lost. */
    leave_all(&world);
    b = join(&world, 1, "gap", 0, 2);
    c = join(&world, 2, "gap", 1, 2);
    run(&world, 10 * TIME_MS);
    assert_formed(b);
    assert_formed(c);
    world_stop(&world);
}

/* A node without ranks of it is lost: it goes on. */
static void test_another_node_is_lost_while_it_forms(void **state)
{
    (void)state;
    world_start(&world, 3, 5, NULL);
    connect_all(&world);
    struct member *a = join(&world, 0, "gap", 0, 2);
    struct member *left = join(&world, 2, "gap", 1, 2);
    leave(left, COMMS_LEAVE_ORDERLY);
    run(&world, 10 * TIME_MS);
    node_kill(&world, 2);
    run(&world, 6 * TIME_S);
    assert_int_equal(a->formed_count, 0);
    struct member *b = join(&world, 1, "gap", 1, 2);
    run(&world, 10 * TIME_MS);
    assert_formed(a);
    assert_formed(b);
    world_stop(&world);
}

int main(void)
{
    log_set_level(LOG_LEVEL_ERROR);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_deadline_names_missing_ranks),
        cmocka_unit_test(test_a_node_that_gives_up_is_named),
        cmocka_unit_test(test_a_failure_that_is_known_ends_it_everywhere),
        cmocka_unit_test(test_a_rank_that_leaves_while_it_forms),
        cmocka_unit_test(test_a_rank_is_lost_while_it_forms),
        cmocka_unit_test(test_a_node_is_lost_while_it_forms),
        cmocka_unit_test(test_another_node_is_lost_while_it_forms),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
