#include "daemon/mesh/mesh_internal.h"
#include "tests/unit/mesh/mesh_nodes.h"

/* --- Up and down --- */

static void test_all_come_up(void **state)
{
    (void)state;
    struct world world;
    for (uint64_t seed = 1; seed <= 5; seed++) {
        struct network_conditions rough = {.delay_ns = TIME_MS, .jitter_ns = TIME_MS, .packet_bytes = 7};
        world_start(&world, NODES_MAX, seed == 1 ? &calm : &rough, seed);
        run(&world, 3 * TIME_S);
        for (unsigned i = 0; i < NODES_MAX; i++) {
            assert_string_equal(mesh_own_name(world.nodes[i].mesh), names[i]);
            assert_int_equal(mesh_node_count(world.nodes[i].mesh), NODES_MAX - 1);
            for (uint32_t j = 0; j + 1 < NODES_MAX; j++) {
                struct mesh_node_info info;
                mesh_node_info(world.nodes[i].mesh, j, &info);
                assert_int_equal(world.nodes[i].ups[j], 1);
                assert_int_equal(world.nodes[i].downs[j], 0);
                assert_int_equal(info.state, MESH_NODE_UP);
                assert_string_equal(info.version_text, "9.9");
                assert_int_equal(info.instance, seed * 100 + (j < i ? j : j + 1) + 1);
                assert_true(info.heartbeat_round_trip_ns > 0);
                assert_true(info.net.up);
            }
        }
        world_stop(&world);
    }
}

static void test_bad_arguments(void **state)
{
    (void)state;
    struct world world;
    struct error error;
    uint32_t peer;
    world_start(&world, 2, &calm, 1);
    assert_int_equal(mesh_add_node(world.nodes[0].mesh, "a", "x:1", &peer, &error), STATUS_INVALID_ARGUMENT);
    assert_int_equal(mesh_add_node(world.nodes[0].mesh, "", "x:1", &peer, &error), STATUS_INVALID_ARGUMENT);
    assert_int_equal(mesh_add_node(world.nodes[0].mesh, "b", "x:1", &peer, &error), STATUS_ALREADY_EXISTS);
    assert_false(mesh_find_node(world.nodes[0].mesh, "z", &peer));
    struct mesh_options options;
    struct mesh *mesh;
    mesh_options_default(&options);
    options.node_name = "x"; /* instance 0 */
    assert_int_equal(mesh_new(world.nodes[0].net, &options, &mesh, &error), STATUS_INVALID_ARGUMENT);
    Commd__Mesh__Message message = COMMD__MESH__MESSAGE__INIT;
    assert_int_equal(mesh_send(world.nodes[0].mesh, 0, &message), STATUS_UNREACHABLE);
    world_stop(&world);
}

static void test_messages_arrive_in_order(void **state)
{
    (void)state;
    struct world world;
    struct network_conditions rough = {.delay_ns = TIME_MS, .jitter_ns = TIME_MS, .packet_bytes = 50};
    world_start(&world, 3, &rough, 7);
    run(&world, 2 * TIME_S);
    for (unsigned i = 0; i < 300; i++) {
        char text[32];
        snprintf(text, sizeof text, "message %u", i);
        Commd__Mesh__Withdraw body = COMMD__MESH__WITHDRAW__INIT;
        body.text = text;
        Commd__Mesh__Message message = COMMD__MESH__MESSAGE__INIT;
        message.body_case = COMMD__MESH__MESSAGE__BODY_WITHDRAW;
        message.withdraw = &body;
        mesh_broadcast(world.nodes[1].mesh, 0, &message);
        assert_int_equal(mesh_send(world.nodes[1].mesh, 0, &message), STATUS_OK);
    }
    run(&world, 2 * TIME_S);
    assert_int_equal(world.nodes[0].messages, 600);
    assert_int_equal(world.nodes[1].messages, 0);
    assert_int_equal(world.nodes[2].messages, 300);
    assert_string_equal(world.nodes[2].text, "message 299");
    world_stop(&world);
}

/* --- Silence --- */

static void test_silent_host_is_noticed(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 20; seed++) {
        struct world world;
        world_start(&world, 3, &calm, seed);
        run(&world, 2 * TIME_S + seed * 41 * TIME_MS);
        uint64_t killed_ns = world.now_ns;
        network_kill(world.network, "b");
        run(&world, 5 * TIME_S);
        assert_int_equal(world.nodes[0].downs[0], 1);
        assert_int_equal(world.nodes[2].downs[1], 1);
        assert_int_equal(world.nodes[0].cause.status, STATUS_NODE_LOST);
        assert_non_null(strstr(world.nodes[0].cause.text, "node b: no heartbeat answered for "));
        for (unsigned i = 0; i < 3; i += 2) {
            uint64_t took_ns = world.nodes[i].changed_ns[i == 0 ? 0 : 1] - killed_ns;
            assert_true(took_ns > 3500 * TIME_MS);
            assert_true(took_ns <= 4500 * TIME_MS);
        }
        assert_true(is_up(&world, 0, 2));
        world_stop(&world);
    }
}

/* The second of two heartbeats travels with the answer to the first, whenever the nodes began. */
static void test_heartbeats_of_two_nodes_meet(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 20; seed++) {
        struct world world;
        world_start(&world, 2, &calm, seed);
        run(&world, 4 * TIME_S);
        for (unsigned i = 0; i < 20; i++) {
            run(&world, 523 * TIME_MS);
            while (network_next_ns(world.network) != TIME_NEVER) {
                run(&world, TIME_MS); /* between two exchanges */
            }
            uint64_t a_ns = mesh_peer_at(world.nodes[0].mesh, 0)->contact->heartbeat.sent_ns;
            uint64_t b_ns = mesh_peer_at(world.nodes[1].mesh, 0)->contact->heartbeat.sent_ns;
            assert_true(a_ns < b_ns + TIME_MS && b_ns < a_ns + TIME_MS);
            assert_true(world.now_ns - a_ns <= 510 * TIME_MS);
        }
        world_stop(&world);
    }
}

/* A node that did not run for a while blames nobody: the answers wait for it. */
static void test_a_node_that_stalls_blames_nobody(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 20; seed++) {
        struct world world;
        world_start(&world, 2, &calm, seed);
        run(&world, 2 * TIME_S + seed * 41 * TIME_MS);
        /* It has just asked. */
        while (network_next_ns(world.network) == TIME_NEVER) {
            run(&world, TIME_MS);
        }
        world.now_ns += 10 * TIME_S;
        mesh_tick(world.nodes[0].mesh, world.now_ns);
        run(&world, 10 * TIME_S);
        assert_int_equal(world.nodes[0].downs[0], 0);
        assert_true(is_up(&world, 0, 1));
        /* Its patience is the same as before. */
        uint64_t killed_ns = world.now_ns;
        network_kill(world.network, "b");
        run(&world, 5 * TIME_S);
        assert_int_equal(world.nodes[0].downs[0], 1);
        assert_in_range(world.nodes[0].changed_ns[0] - killed_ns, 3500 * TIME_MS, 4500 * TIME_MS);
        world_stop(&world);
    }
}

static void on_no_answer(void *context, enum status result, uint64_t round_trip_ns, uint64_t now_ns)
{
    (void)context;
    (void)result;
    (void)round_trip_ns;
    (void)now_ns;
}

/* A node that is busy all the time, and late with everything, still notices that another one is dead. */
static void test_a_busy_node_notices_silence(void **state)
{
    (void)state;
    for (uint64_t turn_ns = 15 * TIME_MS; turn_ns <= 405 * TIME_MS; turn_ns += 130 * TIME_MS) {
        struct world world;
        world_start(&world, 2, &calm, turn_ns);
        run(&world, 2 * TIME_S);
        network_kill(world.network, "b");
        uint64_t killed_ns = world.now_ns;
        while (world.nodes[0].downs[0] == 0 && world.now_ns - killed_ns < 100 * TIME_S) {
            struct error error;
            world.now_ns += turn_ns;
            network_advance(world.network, world.now_ns);
            /* Something is always due. */
            enum status status =
                mesh_ping(world.nodes[0].mesh, 0, 1, on_no_answer, NULL, world.now_ns, &error);
            assert_true(status == STATUS_OK || !is_up(&world, 0, 1));
            mesh_tick(world.nodes[0].mesh, world.now_ns);
        }
        assert_in_range(world.now_ns - killed_ns, 3500 * TIME_MS, 10 * TIME_S);
        world_stop(&world);
    }
}

static void test_one_way_cut_has_one_verdict(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 10; seed++) {
        struct world world;
        world_start(&world, 3, &calm, seed);
        run(&world, 2 * TIME_S + seed * 77 * TIME_MS);
        network_cut(world.network, seed % 2 == 0 ? "a" : "b", seed % 2 == 0 ? "b" : "a", true);
        uint64_t cut_ns = world.now_ns;
        run(&world, 5 * TIME_S);
        assert_int_equal(world.nodes[0].downs[0], 1);
        assert_int_equal(world.nodes[1].downs[0], 1);
        assert_true(world.nodes[0].changed_ns[0] - cut_ns <= 4500 * TIME_MS);
        assert_true(world.nodes[1].changed_ns[0] - cut_ns <= 4500 * TIME_MS);
        assert_true(is_up(&world, 0, 2));
        assert_true(is_up(&world, 1, 2));
        network_cut(world.network, seed % 2 == 0 ? "a" : "b", seed % 2 == 0 ? "b" : "a", false);
        run(&world, 15 * TIME_S);
        assert_true(is_up(&world, 0, 1));
        assert_true(is_up(&world, 1, 0));
        assert_int_equal(world.nodes[0].ups[0], 2);
        world_stop(&world);
    }
}

/* A daemon stands still for a little less than the patience, at any time. What it was sent meanwhile waits,
 * and is answered then. */
static void test_a_daemon_that_stands_still_is_not_lost(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 60; seed++) {
        struct world world;
        world_start(&world, 2, &calm, seed);
        run(&world, 3 * TIME_S + seed * 17 * TIME_MS);
        network_cut(world.network, "a", "b", true);
        network_cut(world.network, "b", "a", true);
        run(&world, (3500 + seed % 5 * 100) * TIME_MS);
        network_cut(world.network, "a", "b", false);
        network_cut(world.network, "b", "a", false);
        run(&world, 5 * TIME_S);
        assert_int_equal(world.nodes[0].downs[0], 0);
        assert_int_equal(world.nodes[1].downs[0], 0);
        world_stop(&world);
    }
}

static void test_blackhole_of_2_seconds_loses_nobody(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 25; seed++) {
        struct world world;
        struct network_conditions slow = {.delay_ns = 10 * TIME_MS, .jitter_ns = 5 * TIME_MS};
        world_start(&world, 2, seed % 2 == 0 ? &calm : &slow, seed);
        run(&world, 3 * TIME_S + seed * 37 * TIME_MS);
        network_cut(world.network, "a", "b", true);
        network_cut(world.network, "b", "a", true);
        run(&world, 2 * TIME_S);
        network_cut(world.network, "a", "b", false);
        network_cut(world.network, "b", "a", false);
        run(&world, 5 * TIME_S);
        assert_int_equal(world.nodes[0].downs[0], 0);
        assert_int_equal(world.nodes[1].downs[0], 0);
        assert_true(is_up(&world, 0, 1));
        world_stop(&world);
    }
}

/* The daemon of node b dies, but its host lives: the host answers that nobody listens. */
static void test_suspicion_shortens_the_wait(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 10; seed++) {
        struct world world;
        world_start(&world, 3, &calm, seed);
        run(&world, 2 * TIME_S + seed * 53 * TIME_MS);
        network_cut(world.network, "b", "a", true); /* the farewell of node b is lost */
        network_cut(world.network, "b", "c", true);
        uint64_t gone_ns = world.now_ns;
        assert_int_equal(world.nodes[0].suspicions[0], 0);
        node_stop(&world.nodes[1]);
        network_cut(world.network, "b", "a", false);
        network_cut(world.network, "b", "c", false);
        run(&world, 1300 * TIME_MS);
        assert_int_equal(world.nodes[0].downs[0], 1);
        assert_int_equal(world.nodes[2].downs[1], 1);
        assert_int_equal(world.nodes[0].suspicions[0], 1);
        assert_false(mesh_node_is_suspect(world.nodes[0].mesh, 0));
        assert_true(world.nodes[0].changed_ns[0] - gone_ns <= 1150 * TIME_MS);
        assert_int_equal(world.nodes[0].cause.status, STATUS_NODE_LOST);
        world_stop(&world);
    }
}

/* Node a does not dial node b, which is gone. It asks, and the host of b refuses. */
static void test_a_host_refuses_when_asked(void **state)
{
    struct world world;
    (void)state;
    world_start(&world, 2, &calm, 1);
    node_stop(&world.nodes[1]);
    struct mesh *mesh = world.nodes[0].mesh;
    mesh_peer_at(mesh, 0)->dial.next_ns = 100 * TIME_S;
    mesh_peer_arm(mesh_peer_at(mesh, 0));
    for (unsigned asks = 0; asks < 4; asks++) { /* one each 0.25 s; 0.45 s is the default */
        assert_int_equal(mesh_node_refuses(mesh, 0, world.now_ns), asks >= 2);
        assert_true(mesh_ask(mesh, 0));
        run(&world, 1);
        assert_false(asks < 2 && mesh_node_refuses(mesh, 0, world.now_ns));
        run(&world, 250 * TIME_MS - 1);
    }
    run(&world, TIME_S); /* that was too long ago */
    assert_false(mesh_node_refuses(mesh, 0, world.now_ns));
    for (unsigned asks = 0; asks < 3; asks++) {
        assert_true(mesh_ask(mesh, 0));
        run(&world, 250 * TIME_MS);
    }
    assert_true(mesh_node_refuses(mesh, 0, world.now_ns));
    node_start(&world, 1, "b", "test", 4711);
    assert_true(mesh_ask(mesh, 0));
    run(&world, TIME_MS);
    assert_false(mesh_node_refuses(mesh, 0, world.now_ns)); /* the new process answers */
    world_stop(&world);
}

/* --- Coming back --- */

static void test_restarted_node_is_another_instance(void **state)
{
    (void)state;
    for (unsigned which = 0; which < 3; which++) {
        struct world world;
        world_start(&world, 3, &calm, 5 + which);
        run(&world, 2 * TIME_S);
        node_stop(&world.nodes[which]);
        node_start(&world, which, names[which], "test", 4711);
        for (unsigned j = 0; j < 3; j++) {
            if (j != which) {
                knows(&world.nodes[which], names[j]);
            }
        }
        run(&world, 10 * TIME_S);
        for (unsigned i = 0; i < 3; i++) {
            uint32_t peer;
            struct mesh_node_info info;
            if (i == which) {
                continue;
            }
            assert_true(mesh_find_node(world.nodes[i].mesh, names[which], &peer));
            mesh_node_info(world.nodes[i].mesh, peer, &info);
            assert_int_equal(info.instance, 4711);
            assert_int_equal(world.nodes[i].ups[peer], 2);
            assert_int_equal(world.nodes[i].downs[peer], 1);
            assert_true(is_up(&world, i, which) && is_up(&world, which, i));
        }
        world_stop(&world);
    }
}

static void test_back_off_is_bounded(void **state)
{
    (void)state;
    struct world world;
    world_start(&world, 2, &calm, 9);
    node_stop(&world.nodes[1]);
    run(&world, 60 * TIME_S);
    struct network_counters before, after;
    network_counters(world.network, &before);
    run(&world, 60 * TIME_S);
    network_counters(world.network, &after);
    /* There is an attempt every 2.5 to 5 s. Each counts two packets: a dial and an answer. */
    assert_in_range(after.packets - before.packets, 20, 60);
    struct mesh_node_info info;
    mesh_node_info(world.nodes[0].mesh, 0, &info);
    assert_int_equal(info.state, MESH_NODE_DOWN);
    assert_non_null(strstr(info.last_error, "nobody listens at node b"));
    node_start(&world, 1, "b", "test", 3);
    knows(&world.nodes[1], "a");
    run(&world, 6 * TIME_S);
    assert_true(is_up(&world, 0, 1));
    world_stop(&world);
}

/* --- Pings --- */

struct ping {
    unsigned done;
    enum status result;
    uint64_t round_trip_ns, done_ns;
};

static void on_ping(void *context, enum status result, uint64_t round_trip_ns, uint64_t now_ns)
{
    struct ping *ping = context;
    ping->done++;
    ping->result = result;
    ping->round_trip_ns = round_trip_ns;
    ping->done_ns = now_ns;
}

static void test_pings(void **state)
{
    (void)state;
    struct world world;
    struct error error;
    struct network_conditions steady = {.delay_ns = 5 * TIME_MS};
    world_start(&world, 2, &steady, 4);
    struct ping pings[5] = {0};
    assert_int_equal(mesh_ping(world.nodes[0].mesh, 0, TIME_S, on_ping, &pings[0], world.now_ns, &error),
                     STATUS_UNREACHABLE);
    assert_non_null(strstr(error.text, "node b is not up"));
    run(&world, TIME_S);
    assert_int_equal(mesh_ping(world.nodes[0].mesh, 0, TIME_S, on_ping, &pings[0], world.now_ns, &error),
                     STATUS_OK);
    assert_int_equal(mesh_ping(world.nodes[0].mesh, 0, TIME_MS, on_ping, &pings[1], world.now_ns, &error),
                     STATUS_OK);
    assert_int_equal(mesh_ping(world.nodes[0].mesh, 0, TIME_S, on_ping, &pings[2], world.now_ns, &error),
                     STATUS_OK);
    mesh_ping_forget(world.nodes[0].mesh, &pings[2]);
    assert_int_equal(pings[0].done, 0);
    uint64_t begin_ns = world.now_ns;
    run(&world, 50 * TIME_MS);
    assert_int_equal(pings[0].done, 1);
    assert_int_equal(pings[0].result, STATUS_OK);
    assert_int_equal(pings[0].round_trip_ns, 10 * TIME_MS);
    assert_int_equal(pings[1].done, 1);
    assert_int_equal(pings[1].result, STATUS_TIMED_OUT);
    assert_int_equal(pings[1].done_ns, begin_ns + TIME_MS);
    assert_int_equal(pings[2].done, 0);
    /* Pings to a node fail when the node is lost. No more than MESH_PINGS_MAX may wait at once. */
    network_kill(world.network, "b");
    for (unsigned i = 0; i < MESH_PINGS_MAX; i++) {
        assert_int_equal(
            mesh_ping(world.nodes[0].mesh, 0, 10 * TIME_S, on_ping, &pings[3], world.now_ns, &error),
            STATUS_OK);
    }
    assert_int_equal(mesh_ping(world.nodes[0].mesh, 0, TIME_S, on_ping, &pings[4], world.now_ns, &error),
                     STATUS_LIMIT);
    run(&world, 4500 * TIME_MS);
    assert_int_equal(pings[3].done, MESH_PINGS_MAX);
    assert_int_equal(pings[3].result, STATUS_NODE_LOST);
    assert_int_equal(pings[4].done, 0);
    world_stop(&world);
}

int main(void)
{
    log_set_level(LOG_LEVEL_WARNING);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_come_up),
        cmocka_unit_test(test_bad_arguments),
        cmocka_unit_test(test_messages_arrive_in_order),
        cmocka_unit_test(test_silent_host_is_noticed),
        cmocka_unit_test(test_heartbeats_of_two_nodes_meet),
        cmocka_unit_test(test_a_node_that_stalls_blames_nobody),
        cmocka_unit_test(test_a_busy_node_notices_silence),
        cmocka_unit_test(test_one_way_cut_has_one_verdict),
        cmocka_unit_test(test_a_daemon_that_stands_still_is_not_lost),
        cmocka_unit_test(test_blackhole_of_2_seconds_loses_nobody),
        cmocka_unit_test(test_suspicion_shortens_the_wait),
        cmocka_unit_test(test_a_host_refuses_when_asked),
        cmocka_unit_test(test_restarted_node_is_another_instance),
        cmocka_unit_test(test_back_off_is_bounded),
        cmocka_unit_test(test_pings),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
