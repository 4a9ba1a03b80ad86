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

static void assert_node(const struct world *world, unsigned from, enum mesh_node_state state,
                        const char *resolved, const char *error)
{
    struct mesh_node_info info;
    mesh_node_info(world->nodes[from].mesh, 0, &info);
    assert_string_equal(mesh_node_state_text(info.state), mesh_node_state_text(state));
    assert_string_equal(info.resolved_address, resolved);
    assert_non_null(strstr(info.last_error, error));
}

/* a dials b, whose name is not resolved: nothing is dialled, and nothing fails, until it is. */
static void test_a_name_that_is_resolved_later(void **state)
{
    (void)state;
    struct world world;
    struct error why;
    uint32_t peer;
    memset(&world, 0, sizeof world);
    world.network = network_new_pipes(50, &calm);
    world.count = 2;
    node_start(&world, 0, "a", "test", 1);
    node_start(&world, 1, "b", "test", 2);
    struct mesh *mesh = world.nodes[0].mesh;
    assert_int_equal(mesh_add_node(mesh, "b", "name:1", &peer, &why), STATUS_OK);
    (void)knows(&world.nodes[1], "a");
    assert_node(&world, 0, MESH_NODE_UNRESOLVED, "", "");
    run(&world, 10 * TIME_S);
    assert_int_equal(world.nodes[0].changed_ns[0], 0);
    error_set(&why, STATUS_UNREACHABLE, "address \"name:1\": nobody knows it");
    mesh_unresolved(mesh, 0, &why);
    assert_node(&world, 0, MESH_NODE_UNRESOLVED, "", "nobody knows it");
    assert_int_equal(mesh_resolve_node(mesh, 0, "127.0.0.1:1", world.now_ns, &why), STATUS_OK);
    run(&world, 10 * TIME_MS);
    assert_true(is_up(&world, 0, 1));
    assert_node(&world, 0, MESH_NODE_UP, "127.0.0.1:1", "");
    /* The peer gets another address, and then none. An existing connection stays up. */
    assert_int_equal(mesh_resolve_node(mesh, 0, "127.0.0.2:1", world.now_ns, &why), STATUS_OK);
    mesh_unresolved(mesh, 0, &why);
    run(&world, 5 * TIME_S);
    assert_node(&world, 0, MESH_NODE_UP, "127.0.0.2:1", "nobody knows it");
    assert_int_equal(world.nodes[0].downs[0], 0);
    /* The configuration gives it another name. */
    assert_int_equal(mesh_move_node(mesh, 0, "name:2", world.now_ns, &why), STATUS_OK);
    node_stop(&world.nodes[1]);
    run(&world, 10 * TIME_S);
    assert_node(&world, 0, MESH_NODE_UNRESOLVED, "", "");
    world_stop(&world);
}

/* b is the side that is dialled: it needs no address of a to come up. */
static void test_a_name_that_is_never_resolved(void **state)
{
    (void)state;
    struct world world;
    struct error error;
    uint32_t peer;
    memset(&world, 0, sizeof world);
    world.network = network_new_pipes(51, &calm);
    world.count = 2;
    node_start(&world, 0, "a", "test", 1);
    node_start(&world, 1, "b", "test", 2);
    assert_int_equal(mesh_add_node(world.nodes[1].mesh, "a", "name:1", &peer, &error), STATUS_OK);
    assert_node(&world, 1, MESH_NODE_UNRESOLVED, "", "");
    (void)knows(&world.nodes[0], "b");
    run(&world, TIME_S);
    assert_true(is_up(&world, 0, 1));
    assert_true(is_up(&world, 1, 0));
    world_stop(&world);
}

static void assert_differs(const struct world *world, unsigned from, const char *text)
{
    struct mesh_node_info info;
    mesh_node_info(world->nodes[from].mesh, 0, &info);
    assert_string_equal(info.differs, text);
}

/* The greeting compares settings that must be the same. A node that states no settings is not compared. */
static void test_settings_that_differ(void **state)
{
    (void)state;
    static const struct {
        uint64_t slice_bytes[2];
        const char *algorithms[2];
        const char *differs[2];
    } cases[] = {
        {{4096, 4096}, {"", ""}, {"", ""}},
        {{4096, 8192},
         {"", "x"},
         {"slice_bytes is 8192 there, 4096 here", "slice_bytes is 4096 there, 8192 here"}},
        {{4096, 4096},
         {"", "x"},
         {"algorithms is \"x\" there, \"\" here", "algorithms is \"\" there, \"x\" here"}},
        {{4096, 0}, {"y", ""}, {"", ""}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct world world;
        memset(&world, 0, sizeof world);
        world.network = network_new_pipes(60 + i, &calm);
        world.count = 2;
        for (unsigned node = 0; node < 2; node++) {
            settings_slice_bytes = cases[i].slice_bytes[node];
            settings_algorithms = cases[i].algorithms[node];
            node_start(&world, node, names[node], "test", node + 1);
            (void)knows(&world.nodes[node], names[1 - node]);
        }
        run(&world, TIME_S);
        assert_true(is_up(&world, 0, 1));
        assert_differs(&world, 0, cases[i].differs[0]);
        assert_differs(&world, 1, cases[i].differs[1]);
        world_stop(&world);
    }
    settings_slice_bytes = 0;
    settings_algorithms = "";
}

int main(void)
{
    log_set_level(LOG_LEVEL_ERROR);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_removed_and_named_again),
        cmocka_unit_test(test_named_again_at_once),
        cmocka_unit_test(test_moved),
        cmocka_unit_test(test_a_name_that_is_resolved_later),
        cmocka_unit_test(test_a_name_that_is_never_resolved),
        cmocka_unit_test(test_settings_that_differ),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
