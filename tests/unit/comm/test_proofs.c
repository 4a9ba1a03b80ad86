#include "daemon/comm/loss.h"
#include "tests/unit/comm/comm_nodes.h"

static struct world world;
#include "tests/unit/comm/comm_ops.h"

/* What proves that a node has no part in a communicator any more, so that it leaves the count of those who
 * decide who may go on. Of two nodes, only "a" goes on without such a proof. */

static struct member *members[4];

static void begin_world(uint64_t seed)
{
    world_start(&world, 2, seed, NULL);
    connect_all(&world);
    form_ops(members, 2, 4, 0, "again");
}

/* Whether node "b" may go on. It was told so. */
static bool goes_on(void)
{
    struct comms_verdict_view view;
    assert_int_equal(members[1]->aborted_count, 1);
    assert_true(comms_member_verdict(members[1]->handle, &view));
    assert_int_equal(view.minority, members[1]->aborted.status == STATUS_ABORTED);
    return !view.minority;
}

/* A node that runs may give any text as its reason to close a connection. */
static void test_a_text_proves_nothing(void **state)
{
    (void)state;
    static const char *const texts[] = {
        "node b: no heartbeat answered for 450 ms; its host says that no commd listens",
        "node b has lost the connection: it was restarted", "node b has no such connection",
        "node b is shutting down"};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        struct error cause;
        begin_world(1 + i);
        error_set(&cause, STATUS_NODE_LOST, "%s", texts[i]);
        net_disconnect(world.nodes[0].net, 0, &cause);
        run(&world, TIME_S);
        assert_false(goes_on());
        assert_int_equal(members[0]->aborted.status, STATUS_NODE_LOST); /* so it goes on */
        world_stop(&world);
    }
}

/* The daemon of node "a" ends. */
static void stop_first_node(bool says_goodbye)
{
    members[0]->handle = members[2]->handle = NULL; /* its processes are told by their connections alone */
    network_cut(world.network, "a", "b", !says_goodbye);
    node_stop(&world.nodes[0]);
    network_cut(world.network, "a", "b", false);
}

static void test_a_goodbye(void **state)
{
    (void)state;
    begin_world(1);
    stop_first_node(true);
    run(&world, 100 * TIME_MS);
    assert_true(goes_on());
    world_stop(&world);
}

static void test_a_host_that_refuses(void **state)
{
    (void)state;
    begin_world(1);
    stop_first_node(false);
    run(&world, 100 * TIME_MS);
    assert_int_equal(members[1]->aborted_count, 0);
    run(&world, 2 * TIME_S);
    assert_true(goes_on());
    world_stop(&world);
}

static void test_silence_proves_nothing(void **state)
{
    (void)state;
    begin_world(1);
    node_kill(&world, 0);
    run(&world, 5 * TIME_S);
    assert_false(goes_on());
    world_stop(&world);
}

/* Node `from` sends an Agree about a communicator to the other node. */
static void say(unsigned from, uint64_t comm_id, Commd__Mesh__Agree__Step step, bool forgot)
{
    Commd__Mesh__Agree body = COMMD__MESH__AGREE__INIT;
    body.comm_id = comm_id;
    body.step = step;
    body.forgot = forgot;
    Commd__Mesh__Message out = MESH_MESSAGE(AGREE, agree, &body);
    assert_int_equal(mesh_send(world.nodes[from].mesh, 0, &out), STATUS_OK);
    run(&world, TIME_MS);
}

/* Node "a" says that it has no part in the communicator. Then a rank of node "b" is lost. */
static void run_gone(bool forgot)
{
    struct communicator_view view;
    begin_world(1);
    comms_member_view(members[1]->handle, &view);
    say(0, view.comm_id, COMMD__MESH__AGREE__STEP__GONE, forgot);
    leave(members[3], COMMS_LEAVE_LOST);
    run(&world, TIME_S);
    assert_int_equal(goes_on(), !forgot);
    world_stop(&world);
}

static void test_a_node_without_a_part(void **state)
{
    (void)state;
    run_gone(false);
}

static void test_a_node_that_forgot(void **state)
{
    (void)state;
    run_gone(true);
}

/* What node "b" has answered. */
static unsigned answers;
static bool answer_forgot;

static void on_answer(void *context, uint32_t node, const Commd__Mesh__Message *message, uint64_t now_ns)
{
    (void)context;
    (void)node;
    (void)now_ns;
    if (message->body_case == COMMD__MESH__MESSAGE__BODY_AGREE) {
        assert_int_equal(message->agree->step, COMMD__MESH__AGREE__STEP__GONE);
        answers++;
        answer_forgot = message->agree->forgot;
    }
}

/* A node asks about a communicator that nobody knows, after `decisions` other ones have ended. */
static bool answer_after(unsigned decisions)
{
    world_start(&world, 2, 1, NULL);
    connect_all(&world);
    for (unsigned i = 0; i < decisions; i++) {
        form_ops(members, 2, 3, 0, "again"); /* both nodes keep the verdict on it */
        leave(members[2], COMMS_LEAVE_LOST);
        run(&world, 5 * TIME_MS);
        leave_all(&world);
    }
    answers = 0;
    mesh_set_handler(world.nodes[0].mesh, MESH_ROOM_COMM, &(struct mesh_handler){.message = on_answer});
    say(0, 4711, COMMD__MESH__AGREE__STEP__REPORT, false);
    assert_int_equal(answers, 1);
    mesh_set_handler(world.nodes[0].mesh, MESH_ROOM_COMM, &(struct mesh_handler){0});
    world_stop(&world);
    return answer_forgot;
}

static void test_what_is_forgotten(void **state)
{
    (void)state;
    assert_false(answer_after(0));
    assert_false(answer_after(COMMS_PAST_MAX));
    assert_true(answer_after(COMMS_PAST_MAX + 1));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_text_proves_nothing), cmocka_unit_test(test_a_goodbye),
        cmocka_unit_test(test_a_host_that_refuses),   cmocka_unit_test(test_silence_proves_nothing),
        cmocka_unit_test(test_a_node_without_a_part), cmocka_unit_test(test_a_node_that_forgot),
        cmocka_unit_test(test_what_is_forgotten),
    };
    log_set_level(LOG_LEVEL_ERROR);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
