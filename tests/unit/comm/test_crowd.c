#include "tests/unit/comm/comm_ops.h"

/* Clients can cause any number of messages to another node. While that node has too much to read, this node
 * holds them back. Neither node loses the other, and all messages are sent once the node reads again. */

enum { COMMS = NET_STREAM_QUEUE_MAX + 1000, AT_ONCE = 100 };

struct crowd {
    struct comms_member *members[2][COMMS];
    unsigned formed[2];
};
static struct crowd crowd; /* large */

static void count_formed(void *context, struct comms_member *member, const struct error *result,
                         uint64_t now_ns)
{
    (void)member;
    (void)now_ns;
    assert_int_equal(result->status, STATUS_OK);
    ++*(unsigned *)context;
}

static void crowd_join(unsigned node, unsigned index)
{
    char name[16];
    struct error error;
    (void)snprintf(name, sizeof name, "crowd-%u", index);
    struct comms_client client = {.pid = 7, .uid = 1000};
    struct comms_terms terms = {.name = name, .rank = node, .size = 2};
    struct comms_member_handler handler = {.context = &crowd.formed[node], .formed = count_formed};
    assert_int_equal(comms_member_join(world.nodes[node].comms, &client, &terms, &handler, world.now_ns,
                                       &crowd.members[node][index], &error),
                     STATUS_OK);
}

static void assert_up(void)
{
    for (unsigned node = 0; node < 2; node++) {
        assert_true(mesh_node_is_up(world.nodes[node].mesh, 0));
    }
}

/* Node a forms more communicators than its control stream to node b can hold, while node b reads nothing. */
static void crowd_begin(void)
{
    memset(&crowd, 0, sizeof crowd);
    assert_false(comms_is_crowded(world.nodes[0].comms));
    network_cut(world.network, "a", "b", true);
    for (unsigned i = 0; i < COMMS; i++) {
        crowd_join(0, i);
        if (i % AT_ONCE == AT_ONCE - 1) {
            run(&world, TIME_MS);
        }
    }
    assert_true(comms_is_crowded(world.nodes[0].comms));
    assert_up();
}

static void crowd_pass(void)
{
    network_cut(world.network, "a", "b", false);
    run(&world, TIME_S);
    assert_false(comms_is_crowded(world.nodes[0].comms));
    assert_up();
}

static void crowd_stop(void)
{
    for (unsigned i = 0; i < COMMS; i++) {
        for (unsigned node = 0; node < 2; node++) {
            if (crowd.members[node][i] != NULL) {
                comms_member_leave(crowd.members[node][i], COMMS_LEAVE_ORDERLY, world.now_ns);
            }
        }
        if (i % AT_ONCE == AT_ONCE - 1) {
            run(&world, TIME_MS);
        }
    }
    run(&world, 100 * TIME_MS);
    world_stop(&world);
}

static void test_announcements_wait(void **state)
{
    (void)state;
    world_start(&world, 2, 1, NULL);
    connect_all(&world);
    crowd_begin();
    crowd_pass();
    for (unsigned i = 0; i < COMMS; i++) {
        crowd_join(1, i);
        if (i % AT_ONCE == AT_ONCE - 1) {
            run(&world, TIME_MS);
        }
    }
    run(&world, 2 * TIME_S);
    assert_int_equal(crowd.formed[0], COMMS);
    assert_int_equal(crowd.formed[1], COMMS);
    assert_up();
    crowd_stop();
}

/* One message has many refusals, and refusals wait as well. */
static void test_refusals_wait(void **state)
{
    (void)state;
    enum { REFUSED = OPS_MAX };
    struct member *members[2];
    struct error error;
    world_start(&world, 2, 1, NULL);
    connect_all(&world);
    form_ops(members, 2, 2, 0, "refused");
    crowd_begin();
    for (unsigned i = 0; i < COMMS_PENDING_OPS_MAX; i++) {
        assert_int_equal(post_barrier(members[0], 0, &error), STATUS_OK);
    }
    for (unsigned i = 0; i < REFUSED; i++) {
        assert_int_equal(post_barrier(members[0], 0, &error), STATUS_LIMIT);
        run(&world, TIME_MS);
    }
    assert_true(comms_is_crowded(world.nodes[0].comms));
    assert_up();
    crowd_pass();
    for (unsigned i = 0; i < COMMS_PENDING_OPS_MAX; i++) {
        assert_int_equal(post_barrier(members[1], 0, &error), STATUS_OK);
    }
    run(&world, TIME_S);
    assert_int_equal(members[1]->completed, COMMS_PENDING_OPS_MAX);
    members[1]->posted = members[1]->completed = 0;
    for (unsigned i = 0; i < REFUSED; i++) {
        assert_int_equal(post_barrier(members[1], 0, &error), STATUS_OK);
    }
    run(&world, 10 * TIME_MS);
    assert_int_equal(members[1]->completed, REFUSED);
    for (unsigned i = 1; i <= REFUSED; i++) {
        assert_error(&members[1]->results[i], STATUS_LIMIT, "rank 0 (pid 100, node a)");
    }
    crowd_stop();
}

int main(void)
{
    log_set_level(LOG_LEVEL_ERROR);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_announcements_wait),
        cmocka_unit_test(test_refusals_wait),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
