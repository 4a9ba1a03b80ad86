#include "tests/unit/mesh/mesh_nodes.h"

/* Nodes that a new configuration removes, names again, or moves. */

static enum mesh_node_state state_of(const struct world *world, unsigned from, unsigned to)
{
    struct mesh_node_info info;
    mesh_node_info(world->nodes[from].mesh, to < from ? to : to - 1, &info);
    return info.state;
}

static void remove_node(struct world *world, unsigned from, unsigned to)
{
    struct error cause;
    error_set(&cause, STATUS_PERMISSION, "node %s is not named", names[to]);
    mesh_remove_node(world->nodes[from].mesh, to < from ? to : to - 1, &cause, world->now_ns);
}

/* Node a's configuration removes node b, in whichever state their connection is. Node b is told and stays
 * away. It comes back when the configuration names it again. */
static void test_removed_and_named_again(void **state)
{
    (void)state;
    static const uint64_t after_ns[] = {0, 10 * TIME_US, 150 * TIME_US, 400 * TIME_US, TIME_S};
    for (size_t i = 0; i < sizeof after_ns / sizeof after_ns[0]; i++) {
        struct world world;
        uint32_t peer;
        world_start(&world, 3, &calm, 20 + i);
        struct mesh *mesh = world.nodes[0].mesh;
        run(&world, after_ns[i]);
        unsigned ups = world.nodes[0].ups[0];
        remove_node(&world, 0, 1);
        remove_node(&world, 0, 1); /* a second removal changes nothing */
        assert_false(mesh_find_node(mesh, "b", &peer));
        assert_false(mesh_node_is_up(mesh, 0));
        assert_true(mesh_node_is_removed(mesh, 0));
        assert_int_equal(mesh_configured_count(mesh), 1);
        assert_int_equal(mesh_node_count(mesh), 2);
        run(&world, 20 * TIME_S);
        assert_int_equal(state_of(&world, 0, 1), MESH_NODE_REMOVED);
        assert_int_equal(world.nodes[0].ups[0], ups);
        assert_int_equal(world.nodes[0].downs[0], ups);
        assert_false(is_up(&world, 1, 0));
        assert_true(is_up(&world, 0, 2)); /* others do not notice */
        assert_int_equal(world.nodes[0].downs[1], 0);
        if (ups > 0) {
            assert_int_equal(world.nodes[0].cause.status, STATUS_PERMISSION);
            assert_int_equal(world.nodes[1].cause.status, STATUS_PERMISSION);
            assert_non_null(strstr(world.nodes[1].cause.text, "node b is not named"));
        }
        assert_int_equal(knows(&world.nodes[0], "b"), 0);
        assert_int_equal(mesh_configured_count(mesh), 2);
        run(&world, 10 * TIME_S);
        assert_true(is_up(&world, 0, 1));
        assert_true(is_up(&world, 1, 0));
        world_stop(&world);
    }
}

/* Node b is named again before its old connection has ended. */
static void test_named_again_at_once(void **state)
{
    (void)state;
    struct world world;
    world_start(&world, 2, &calm, 30);
    run(&world, TIME_S);
    remove_node(&world, 0, 1);
    assert_int_equal(knows(&world.nodes[0], "b"), 0);
    run(&world, 10 * TIME_S);
    assert_true(is_up(&world, 0, 1));
    assert_true(is_up(&world, 1, 0));
    assert_int_equal(world.nodes[0].downs[0], 1);
    world_stop(&world);
}

/* A node that moves is dialled at once: its back-off is over. A node that is up stays up. */
static void test_moved(void **state)
{
    (void)state;
    struct world world;
    struct mesh_node_info info;
    struct error error;
    world_start(&world, 2, &calm, 40);
    network_kill(world.network, "b");
    run(&world, 60 * TIME_S);
    assert_false(is_up(&world, 0, 1));
    node_stop(&world.nodes[1]);
    node_start(&world, 1, "b", "test", 77);
    (void)knows(&world.nodes[1], "a");
    assert_int_equal(mesh_move_node(world.nodes[0].mesh, 0, "127.0.0.1:2", world.now_ns, &error), STATUS_OK);
    run(&world, 10 * TIME_MS);
    assert_true(is_up(&world, 0, 1));
    mesh_node_info(world.nodes[0].mesh, 0, &info);
    assert_string_equal(info.address, "127.0.0.1:2");
    assert_int_equal(mesh_move_node(world.nodes[0].mesh, 0, "127.0.0.1:3", world.now_ns, &error), STATUS_OK);
    run(&world, 5 * TIME_S);
    assert_true(is_up(&world, 0, 1));
    assert_int_equal(world.nodes[0].downs[0], 0);
    world_stop(&world);
}

int main(void)
{
    log_set_level(LOG_LEVEL_WARNING);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_removed_and_named_again),
        cmocka_unit_test(test_named_again_at_once),
        cmocka_unit_test(test_moved),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
