#include "tests/unit/comm/comm_nodes.h"

/* A communicator is known by its owner's uid and its name. */

static struct world world; /* large */

#define OWNER_UID 1000
#define OTHER_UID 2000

static struct member *join_user(unsigned node, const char *name, uint32_t rank, uint32_t size, uid_t uid)
{
    return join_as(&world, node, &(struct comms_terms){.name = name, .rank = rank, .size = size}, uid);
}

static uint32_t generation_of(const struct member *member)
{
    struct communicator_view view;
    comms_member_view(member->handle, &view);
    return view.generation;
}

static void test_two_users_use_one_name_on_the_same_nodes(void **state)
{
    (void)state;
    world_start(&world, 2, 1, NULL);
    connect_all(&world);
    struct member *owner[2], *other[3];
    owner[0] = join_user(0, "train", 0, 2, OWNER_UID);
    other[0] = join_user(0, "train", 0, 3, OTHER_UID); /* the same rank, another size */
    run(&world, 10 * TIME_MS);
    other[1] = join_user(1, "train", 1, 3, OTHER_UID);
    owner[1] = join_user(1, "train", 1, 2, OWNER_UID);
    other[2] = join_user(1, "train", 2, 3, OTHER_UID);
    run(&world, 100 * TIME_MS);
    struct communicator_view view, other_view;
    for (unsigned i = 0; i < 2; i++) {
        assert_formed(owner[i]);
    }
    for (unsigned i = 0; i < 3; i++) {
        assert_formed(other[i]);
    }
    comms_member_view(owner[0]->handle, &view);
    comms_member_view(other[0]->handle, &other_view);
    assert_int_equal(view.size, 2);
    assert_int_equal(other_view.size, 3);
    assert_int_not_equal(view.comm_id, other_view.comm_id);
    /* An event that ends one of them does nothing to the other. */
    struct error cause = {.status = STATUS_ABORTED, .text = "by hand"};
    assert_int_equal(comms_abort(world.nodes[1].comms, OTHER_UID, "train", &cause, world.now_ns), STATUS_OK);
    run(&world, 10 * TIME_MS);
    assert_int_equal(other[0]->aborted_count, 1);
    assert_int_equal(owner[0]->aborted_count, 0);
    assert_int_equal(owner[1]->aborted_count, 0);
    world_stop(&world);
}

static void test_two_users_use_one_name_on_different_nodes(void **state)
{
    (void)state;
    world_start(&world, 4, 2, NULL);
    connect_all(&world);
    struct member *members[4];
    members[0] = join_user(0, "train", 0, 2, OWNER_UID);
    members[1] = join_user(2, "train", 0, 2, OTHER_UID);
    members[2] = join_user(1, "train", 1, 2, OWNER_UID);
    members[3] = join_user(3, "train", 1, 2, OTHER_UID);
    run(&world, 100 * TIME_MS);
    for (unsigned i = 0; i < 4; i++) {
        struct communicator_view view;
        assert_formed(members[i]);
        comms_member_view(members[i]->handle, &view);
        assert_string_equal(view.node_names[0], i % 2 == 0 ? "a" : "c");
        assert_string_equal(view.node_names[1], i % 2 == 0 ? "b" : "d");
    }
    world_stop(&world);
}

static void test_one_users_deadline_leaves_the_other_alone(void **state)
{
    (void)state;
    world_start(&world, 2, 3, NULL);
    connect_all(&world);
    struct comms_terms short_terms = {.name = "train", .rank = 0, .size = 2, .form_timeout_ms = 50};
    struct member *hasty = join_as(&world, 0, &short_terms, OTHER_UID);
    struct member *first = join_user(0, "train", 0, 2, OWNER_UID);
    run(&world, 200 * TIME_MS);
    assert_error(&hasty->formed, STATUS_TIMED_OUT, "missing rank 1 of 2");
    assert_int_equal(first->formed_count, 0);
    struct member *second = join_user(1, "train", 1, 2, OWNER_UID);
    run(&world, 100 * TIME_MS);
    assert_formed(first);
    assert_formed(second);
    world_stop(&world);
}

static uint32_t use_name(const char *name, uid_t uid)
{
    struct member *member = join_user(0, name, 0, 1, uid);
    run(&world, TIME_MS);
    assert_formed(member);
    uint32_t generation = generation_of(member);
    leave(member, COMMS_LEAVE_ORDERLY);
    run(&world, TIME_MS);
    world.member_count = 0;
    return generation;
}

static void test_generations_count_for_each_user(void **state)
{
    (void)state;
    world_start(&world, 1, 4, NULL);
    assert_int_equal(use_name("train", OWNER_UID), 1);
    assert_int_equal(use_name("train", OTHER_UID), 1);
    assert_int_equal(use_name("train", OWNER_UID), 2);
    assert_int_equal(use_name("train", OWNER_UID), 3);
    assert_int_equal(use_name("train", OTHER_UID), 2);
    world_stop(&world);
}

/* However many names one user uses, commd remembers the names of other users. It also remembers the names
 * that this user used last. */
static void test_one_users_names_crowd_out_nobody_else(void **state)
{
    (void)state;
    char name[16];
    world_start(&world, 1, 5, NULL);
    assert_int_equal(use_name("train", OWNER_UID), 1);
    for (unsigned i = 0; i < 5000; i++) {
        snprintf(name, sizeof name, "n%u", i);
        assert_int_equal(use_name(name, OTHER_UID), 1);
    }
    assert_int_equal(use_name("train", OWNER_UID), 2);
    assert_int_equal(use_name("n4999", OTHER_UID), 2);
    assert_int_equal(use_name("n0", OTHER_UID), 1);
    world_stop(&world);
}

/* The same with many users: the user with the most names loses the oldest of them. */
static void test_many_users_of_many_names(void **state)
{
    (void)state;
    char name[16];
    world_start(&world, 1, 6, NULL);
    assert_int_equal(use_name("train", OWNER_UID), 1);
    for (unsigned i = 0; i < 20000; i++) {
        snprintf(name, sizeof name, "n%u", i / 20);
        use_name(name, OTHER_UID + i % 20);
    }
    assert_int_equal(use_name("train", OWNER_UID), 2);
    world_stop(&world);
}

int main(void)
{
    log_set_level(LOG_LEVEL_ERROR);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_two_users_use_one_name_on_the_same_nodes),
        cmocka_unit_test(test_two_users_use_one_name_on_different_nodes),
        cmocka_unit_test(test_one_users_deadline_leaves_the_other_alone),
        cmocka_unit_test(test_generations_count_for_each_user),
        cmocka_unit_test(test_one_users_names_crowd_out_nobody_else),
        cmocka_unit_test(test_many_users_of_many_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
