#include "tests/unit/comm/comm_ops.h"

/* A node that drains: what it refuses, and what other nodes' ranks are told. */

#define WHY "node a is draining: new kernel"
#define SAYS "communicator \"job\": " WHY

/* A rank of another node already waits when the rank of the draining node is refused. */
static void test_ranks_that_wait_are_told(void **state)
{
    (void)state;
    world_start(&world, 3, 1, NULL);
    connect_all(&world);
    comms_drain(world.nodes[0].comms, WHY, world.now_ns);
    struct member *there = join(&world, 1, "job", 1, 3);
    struct member *beyond = join(&world, 2, "job", 2, 3);
    run(&world, 10 * TIME_MS);
    assert_int_equal(there->formed_count, 0);
    struct member *here = join(&world, 0, "job", 0, 3);
    assert_error(&here->join_result, STATUS_SHUTTING_DOWN, SAYS);
    run(&world, 10 * TIME_MS);
    assert_int_equal(there->formed_count, 1);
    assert_error(&there->formed, STATUS_SHUTTING_DOWN, SAYS);
    assert_int_equal(beyond->formed_count, 1);
    assert_error(&beyond->formed, STATUS_SHUTTING_DOWN, SAYS);
    world_stop(&world);
}

/* A rank that comes later is told, too, but only for a while. Other names and other users are not affected.
 */
static void test_ranks_that_come_later_are_told(void **state)
{
    (void)state;
    world_start(&world, 2, 2, NULL);
    connect_all(&world);
    comms_drain(world.nodes[0].comms, WHY, world.now_ns);
    assert_error(&join(&world, 0, "job", 0, 2)->join_result, STATUS_SHUTTING_DOWN, SAYS);
    run(&world, TIME_S);
    struct member *late = join(&world, 1, "job", 1, 2);
    struct member *other = join(&world, 1, "other", 1, 2);
    struct member *foreign =
        join_as(&world, 1, &(struct comms_terms){.name = "job", .rank = 1, .size = 2}, 2000);
    run(&world, 10 * TIME_MS);
    assert_error(&late->formed, STATUS_SHUTTING_DOWN, SAYS);
    assert_int_equal(other->formed_count, 0);
    assert_int_equal(foreign->formed_count, 0);
    run(&world, COMMS_REFUSED_NS);
    struct member *again = join(&world, 1, "job", 1, 2);
    run(&world, TIME_S);
    assert_int_equal(again->formed_count, 0);
    world_stop(&world);
}

/* Communicators that do not need the draining node can form. Communicators that are forming go on. After the
 * drain, all is as before. */
static void test_what_a_drain_leaves_alone(void **state)
{
    (void)state;
    struct member *old[2];
    struct error error;
    world_start(&world, 3, 3, NULL);
    connect_all(&world);
    form_ops(old, 2, 2, 0, "old");
    comms_drain(world.nodes[0].comms, WHY, world.now_ns);
    struct member *elsewhere[2] = {join(&world, 1, "elsewhere", 0, 2), join(&world, 2, "elsewhere", 1, 2)};
    for (unsigned i = 0; i < 2; i++) {
        assert_int_equal(post_barrier(old[i], 0, &error), STATUS_OK);
    }
    run(&world, 20 * TIME_MS);
    for (unsigned i = 0; i < 2; i++) {
        assert_formed(elsewhere[i]);
        assert_int_equal(old[i]->completed, 1);
        assert_int_equal(old[i]->results[1].status, STATUS_OK);
    }
    comms_undrain(world.nodes[0].comms);
    struct member *after[2] = {join(&world, 0, "job", 0, 2), join(&world, 1, "job", 1, 2)};
    run(&world, 20 * TIME_MS);
    assert_formed(after[0]);
    assert_formed(after[1]);
    world_stop(&world);
}

/* What is being formed when the drain begins ends on all nodes. */
static void test_what_is_being_formed(void **state)
{
    (void)state;
    world_start(&world, 3, 4, NULL);
    connect_all(&world);
    struct member *members[2] = {join(&world, 0, "job", 0, 3), join(&world, 1, "job", 1, 3)};
    run(&world, 10 * TIME_MS);
    comms_drain(world.nodes[0].comms, WHY, world.now_ns);
    run(&world, 10 * TIME_MS);
    for (unsigned i = 0; i < 2; i++) {
        assert_int_equal(members[i]->formed_count, 1);
        assert_error(&members[i]->formed, STATUS_SHUTTING_DOWN, SAYS);
    }
    world_stop(&world);
}

/* A node has no say in communicators of users who may have no ranks there. */
static void test_a_node_that_may_not_say_it(void **state)
{
    (void)state;
    world_start(&world, 2, 7, NULL);
    connect_all(&world);
    world.nodes[1].limit.uid = 1000;
    world.nodes[1].limit.nodes = "b";
    comms_drain(world.nodes[0].comms, WHY, world.now_ns);
    struct member *there = join(&world, 1, "job", 1, 2);
    assert_error(&join(&world, 0, "job", 0, 2)->join_result, STATUS_SHUTTING_DOWN, SAYS);
    run(&world, TIME_S);
    assert_int_equal(there->formed_count, 0);
    world_stop(&world);
}

/* At the deadline, all ranks of the existing communicators are told, including idle ranks. */
static void test_the_end(void **state)
{
    (void)state;
    struct member *members[4];
    struct error error;
    world_start(&world, 2, 5, NULL);
    connect_all(&world);
    form_ops(members, 2, 4, 0, "job");
    comms_drain(world.nodes[0].comms, WHY, world.now_ns);
    assert_int_equal(post_barrier(members[0], 0, &error), STATUS_OK);
    comms_drain_end(world.nodes[0].comms, WHY, world.now_ns);
    run(&world, 10 * TIME_MS);
    for (unsigned i = 0; i < 4; i++) {
        assert_ended(members[i], STATUS_SHUTTING_DOWN, SAYS);
    }
    world_stop(&world);
}

/* More names than are kept, and the same one again and again: the newest are kept. */
static void test_many_names(void **state)
{
    (void)state;
    char name[16];
    world_start(&world, 2, 6, NULL);
    connect_all(&world);
    comms_drain(world.nodes[0].comms, WHY, world.now_ns);
    for (unsigned i = 0; i < COMMS_REFUSED_MAX + 1; i++) {
        snprintf(name, sizeof name, "n%u", i);
        world.member_count = 0;
        assert_error(&join(&world, 0, name, 0, 2)->join_result, STATUS_SHUTTING_DOWN, name);
        assert_error(&join(&world, 0, name, 0, 2)->join_result, STATUS_SHUTTING_DOWN, name);
    }
    run(&world, TIME_S); /* the broadcasts have arrived */
    struct member *first = join(&world, 1, "n0", 1, 2);
    struct member *second = join(&world, 1, "n1", 1, 2);
    run(&world, 10 * TIME_MS);
    assert_int_equal(first->formed_count, 0);
    assert_error(&second->formed, STATUS_SHUTTING_DOWN, WHY);
    world_stop(&world);
}

int main(void)
{
    log_set_level(LOG_LEVEL_ERROR);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ranks_that_wait_are_told),
        cmocka_unit_test(test_ranks_that_come_later_are_told),
        cmocka_unit_test(test_what_a_drain_leaves_alone),
        cmocka_unit_test(test_what_is_being_formed),
        cmocka_unit_test(test_a_node_that_may_not_say_it),
        cmocka_unit_test(test_the_end),
        cmocka_unit_test(test_many_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
