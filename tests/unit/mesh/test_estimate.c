#include "daemon/mesh/mesh_internal.h"
#include "tests/unit/mesh/mesh_nodes.h"

/* What a neighbour says of the coordinates of a node to which there is no link (daemon/mesh/estimate.c). */

static struct world world;
static uint32_t absent; /* node c, as node a knows it */

static void start(void)
{
    world_start(&world, 2, &calm, 1);
    absent = knows(&world.nodes[0], "c");
    run(&world, 20 * TIME_S);
    assert_true(is_up(&world, 0, 1));
    assert_int_equal(mesh_estimated_round_trip_ns(world.nodes[0].mesh, absent), 0);
    assert_true(world.nodes[0].mesh->coordinate.error_permille < COORDINATE_ERROR_MAX);
}

/* The index of node a, as node b knows it. */
static uint32_t receiver(void)
{
    uint32_t node;
    assert_true(mesh_find_node(world.nodes[1].mesh, "a", &node));
    return node;
}

/* Node b says to node a where node c is. */
static void say(const Commd__Mesh__Coordinate *coordinate)
{
    struct mesh *from = world.nodes[1].mesh;
    Commd__Mesh__Coordinate *list[] = {(Commd__Mesh__Coordinate *)(uintptr_t)coordinate};
    Commd__Mesh__HeartbeatAnswer body = COMMD__MESH__HEARTBEAT_ANSWER__INIT;
    body.number = 1;
    body.n_coordinates = 1;
    body.coordinates = list;
    Commd__Mesh__Message message = MESH_MESSAGE(HEARTBEAT_ANSWER, heartbeat_answer, &body);
    assert_int_equal(mesh_send(from, receiver(), &message), STATUS_OK);
    run(&world, 10 * TIME_MS);
    assert_true(is_up(&world, 0, 1));
}

static Commd__Mesh__Coordinate sound(int32_t at[COORDINATE_AXES])
{
    Commd__Mesh__Coordinate coordinate = COMMD__MESH__COORDINATE__INIT;
    coordinate.n_at = COORDINATE_AXES;
    coordinate.at = at;
    coordinate.height = 100;
    coordinate.error_permille = 100;
    coordinate.as_of_s = 1000;
    coordinate.node_id = members_id(world.nodes[0].mesh->members, absent);
    return coordinate;
}

static uint64_t estimated_ns(void)
{
    return mesh_estimated_round_trip_ns(world.nodes[0].mesh, absent);
}

static void test_what_a_neighbour_says(void **state)
{
    (void)state;
    start();
    int32_t at[COORDINATE_AXES] = {50000, 0};
    Commd__Mesh__Coordinate coordinate = sound(at);
    say(&coordinate);
    assert_in_range(estimated_ns(), 4 * TIME_MS, 6 * TIME_MS); /* 5 ms from the origin */
    uint64_t latency_ns, rate;
    mesh_link_to(world.nodes[0].mesh, absent, &latency_ns, &rate);
    assert_int_equal(latency_ns, estimated_ns() / 2);
    assert_int_equal(rate, 0);
    struct mesh_node_info info;
    mesh_node_info(world.nodes[0].mesh, absent, &info);
    assert_int_equal(info.estimated_round_trip_ns, estimated_ns());
    at[0] = 90000;
    coordinate.as_of_s = 999; /* older than what is known */
    say(&coordinate);
    assert_in_range(estimated_ns(), 4 * TIME_MS, 6 * TIME_MS);
    coordinate.as_of_s = 1001;
    say(&coordinate);
    assert_in_range(estimated_ns(), 8 * TIME_MS, 10 * TIME_MS);
    world_stop(&world);
}

static void test_what_no_node_says(void **state)
{
    (void)state;
    start();
    int32_t at[COORDINATE_AXES] = {50000, 0};
    Commd__Mesh__Coordinate cases[6];
    for (unsigned i = 0; i < 6; i++) {
        cases[i] = sound(at);
    }
    cases[0].n_at = 1;
    cases[1].height = UINT32_MAX;
    cases[2].error_permille = 0;
    cases[3].as_of_s = 2000000000; /* more than a day ahead */
    cases[4].node_id = 77;         /* of no node */
    cases[5].node_id = members_id(world.nodes[1].mesh->members, receiver());
    for (unsigned i = 0; i < 6; i++) {
        say(&cases[i]);
        assert_int_equal(estimated_ns(), 0);
    }
    at[1] = INT32_MIN;
    Commd__Mesh__Coordinate huge = sound(at);
    say(&huge);
    assert_int_equal(estimated_ns(), 0);
    world_stop(&world);
}

int main(void)
{
    log_set_level(LOG_LEVEL_ERROR);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_a_neighbour_says),
        cmocka_unit_test(test_what_no_node_says),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
