#include "daemon/base/user_log.h"
#include "tests/unit/comm/comm_nodes.h"

/* Users who may have ranks on some nodes only. What the other nodes say about the user's ranks does not
 * count. */

static struct world world; /* large */

#define USER_UID 2000

/* In the configuration of those nodes, the user may have ranks on `allowed` alone. */
static void limit(const char *nodes, const char *allowed)
{
    for (; *nodes != '\0'; nodes++) {
        struct node *node = &world.nodes[*nodes - 'a'];
        node->limit.uid = USER_UID;
        node->limit.nodes = allowed;
    }
}

static struct member *join_user(unsigned node, uint32_t rank, uid_t uid)
{
    return join_as(&world, node, &(struct comms_terms){.name = "train", .rank = rank, .size = 2}, uid);
}

static void test_no_ranks_on_a_node(void **state)
{
    (void)state;
    world_start(&world, 1, 1, NULL);
    limit("a", "b");
    assert_error(&join_user(0, 0, USER_UID)->join_result, STATUS_PERMISSION,
                 "uid 2000 may have no ranks on node a (users in commd.conf)");
    assert_int_equal(join_user(0, 0, 1000)->join_result.status, STATUS_OK);
    world_stop(&world);
}

/* Node c's configuration allows the user there. Node c is the first to claim a rank of the user's
 * communicator. */
static void test_a_node_that_speaks_for_a_user(void **state)
{
    (void)state;
    world_start(&world, 3, 2, NULL);
    connect_all(&world);
    limit("ab", "ab");
    struct member *false_rank = join_user(2, 1, USER_UID);
    run(&world, 10 * TIME_MS);
    struct member *first = join_user(0, 0, USER_UID);
    run(&world, 10 * TIME_MS);
    assert_int_equal(first->formed_count, 0);
    struct member *second = join_user(1, 1, USER_UID);
    run(&world, 100 * TIME_MS);
    assert_formed(first);
    assert_formed(second);
    assert_int_equal(false_rank->formed_count, 0);
    struct communicator_view view;
    comms_member_view(first->handle, &view);
    assert_string_equal(view.node_names[view.node_of_rank[1]], "b");
    /* For other users, node c's claims count as before. */
    struct member *other[2] = {join_user(0, 0, 1000), join_user(2, 1, 1000)};
    run(&world, 100 * TIME_MS);
    assert_formed(other[0]);
    assert_formed(other[1]);
    world_stop(&world);
}

struct heard {
    unsigned announcements;
};

static void on_message(void *context, uint32_t node, const Commd__Mesh__Message *message, uint64_t now_ns)
{
    (void)node;
    (void)now_ns;
    ((struct heard *)context)->announcements +=
        message->body_case == COMMD__MESH__MESSAGE__BODY_ANNOUNCE && message->announce->terms != NULL;
}

/* A node on which the user has no ranks is not told what the user does. */
static void test_names_go_to_the_users_nodes_alone(void **state)
{
    (void)state;
    for (unsigned is_limited = 0; is_limited < 2; is_limited++) {
        struct heard heard = {0};
        world_start(&world, 3, 3, NULL);
        struct mesh_handler handler = {.context = &heard, .message = on_message};
        mesh_set_handler(world.nodes[2].mesh, MESH_ROOM_COMM, &handler);
        limit("ab", is_limited != 0 ? "ab" : "abc");
        struct member *first = join_user(0, 0, USER_UID);
        connect_all(&world); /* sent to each node that comes up */
        struct member *second = join_user(1, 1, USER_UID);
        run(&world, 100 * TIME_MS);
        assert_formed(first);
        assert_formed(second);
        if (is_limited != 0) {
            assert_int_equal(heard.announcements, 0);
        } else {
            assert_true(heard.announcements >= 2);
        }
        leave(first, COMMS_LEAVE_ORDERLY);
        leave(second, COMMS_LEAVE_ORDERLY);
        world_stop(&world);
    }
}

/* A new configuration applies to existing communicators, too. */
static void test_a_user_loses_a_node(void **state)
{
    (void)state;
    world_start(&world, 3, 4, NULL);
    connect_all(&world);
    struct member *formed[2] = {join_user(0, 0, USER_UID), join_user(1, 1, USER_UID)};
    struct member *other[2] = {join_user(0, 0, 1000), join_user(1, 1, 1000)};
    run(&world, 100 * TIME_MS);
    limit("a", "abc");
    comms_recheck_users(world.nodes[0].comms, world.now_ns);
    run(&world, 10 * TIME_MS);
    assert_int_equal(formed[0]->aborted_count, 0);
    limit("a", "a");
    comms_recheck_users(world.nodes[0].comms, world.now_ns);
    run(&world, 10 * TIME_MS);
    for (unsigned i = 0; i < 2; i++) {
        assert_formed(other[i]);
        assert_int_equal(other[i]->aborted_count, 0);
        assert_int_equal(formed[i]->aborted_count, 1);
        assert_error(&formed[i]->aborted, STATUS_PERMISSION, "uid 2000 may have no ranks on node b any more");
        leave(formed[i], COMMS_LEAVE_ORDERLY);
    }
    run(&world, 10 * TIME_MS);
    /* While a communicator forms, the other node's ranks count as if it had never announced them. */
    limit("abc", "abc");
    struct comms_terms terms = {.name = "three", .rank = 0, .size = 3};
    struct member *first = join_as(&world, 0, &terms, USER_UID);
    terms.rank = 1;
    (void)join_as(&world, 2, &terms, USER_UID);
    run(&world, 10 * TIME_MS);
    limit("ab", "ab");
    comms_recheck_users(world.nodes[0].comms, world.now_ns);
    terms.rank = 1;
    (void)join_as(&world, 1, &terms, USER_UID);
    terms.rank = 2;
    (void)join_as(&world, 1, &terms, USER_UID);
    run(&world, 100 * TIME_MS);
    assert_formed(first);
    world_stop(&world);
}

static struct {
    unsigned formed, failed, left_out;
} lines;

static void count_lines(void *context, enum log_level level, const char *line)
{
    (void)context;
    (void)level;
    lines.formed += strstr(line, " formed: ") != NULL;
    lines.failed += strstr(line, " failed: ") != NULL;
    lines.left_out += strstr(line, "such lines of this user were left out)") != NULL;
}

static void form_and_fail(uid_t uid, unsigned count)
{
    for (unsigned i = 0; i < count; i++) {
        struct member *kept = join_user(0, 0, uid), *lost = join_user(0, 1, uid);
        run(&world, TIME_MS);
        assert_formed(kept);
        leave(lost, COMMS_LEAVE_LOST);
        run(&world, TIME_MS);
        assert_int_equal(kept->aborted_count, 1);
        leave_all(&world);
    }
}

/* A user who forms communicators and fails them all the time does not fill the log. Lines of other users
 * still appear. */
static void test_a_user_does_not_flood_the_log(void **state)
{
    (void)state;
    world_start(&world, 1, 1, NULL);
    log_set_level(LOG_LEVEL_INFO);
    log_set_sink(count_lines, NULL);
    form_and_fail(USER_UID, 200); /* of 12 ms each */
    assert_in_range(lines.formed, USER_LOG_BURST, 2 * USER_LOG_BURST);
    assert_in_range(lines.failed, USER_LOG_BURST, 2 * USER_LOG_BURST);
    unsigned formed = lines.formed, failed = lines.failed;
    form_and_fail(1000, 1);
    assert_int_equal(lines.formed, formed + 1);
    assert_int_equal(lines.failed, failed + 1);
    run(&world, 2 * TIME_S);
    lines.left_out = 0;
    form_and_fail(USER_UID, 1);
    assert_int_equal(lines.left_out, 2);
    log_set_sink(NULL, NULL);
    log_set_level(LOG_LEVEL_ERROR);
    world_stop(&world);
}

int main(void)
{
    log_set_level(LOG_LEVEL_ERROR);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_no_ranks_on_a_node),
        cmocka_unit_test(test_a_node_that_speaks_for_a_user),
        cmocka_unit_test(test_names_go_to_the_users_nodes_alone),
        cmocka_unit_test(test_a_user_loses_a_node),
        cmocka_unit_test(test_a_user_does_not_flood_the_log),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
