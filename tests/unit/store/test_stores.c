#include "daemon/base/log.h"
#include "daemon/mesh/mesh_internal.h"
#include "tests/unit/store/store_nodes.h"

/* Stores that several nodes use. */

static struct world world; /* large */

static void start(unsigned count)
{
    world_start(&world, count);
    run(&world, 2 * TIME_S);
}

static void test_all_nodes_choose_the_same_keeper(void **state)
{
    unsigned kept[3] = {0};
    (void)state;
    start(3);
    for (unsigned i = 0; i < 300; i++) {
        char name[32];
        snprintf(name, sizeof name, "job-%u", i);
        const char *keeper = stores_keeper_name(world.nodes[0].stores, 1000, name);
        kept[keeper[0] - 'a']++;
        for (unsigned node = 1; node < 3; node++) {
            assert_string_equal(stores_keeper_name(world.nodes[node].stores, 1000, name), keeper);
        }
    }
    for (unsigned node = 0; node < 3; node++) {
        assert_in_range(kept[node], 70, 130);
        assert_string_equal(stores_keeper_name(world.nodes[node].stores, 1000, "job@b"), "b");
        assert_string_equal(stores_keeper_name(world.nodes[node].stores, 1000, "x@a@c"), "c");
        assert_string_equal(stores_keeper_name(world.nodes[node].stores, 1000, "job@nobody"),
                            stores_keeper_name(world.nodes[0].stores, 1000, "job@nobody"));
    }
    world_stop(&world);
}

/* This is part of the protocol between releases. */
static void test_the_choice_never_changes(void **state)
{
    static const char keepers[] = "bcaddaadbaabcccaaadabacc";
    (void)state;
    start(4);
    for (unsigned i = 0; keepers[i] != '\0'; i++) {
        char name[32];
        snprintf(name, sizeof name, "job-%u", i);
        const char *keeper = stores_keeper_name(world.nodes[0].stores, 1000 + i % 3, name);
        assert_int_equal(keeper[0], keepers[i]);
    }
    world_stop(&world);
}

static void test_requests_from_all_nodes(void **state)
{
    (void)state;
    start(3);
    struct process *processes[3];
    for (unsigned i = 0; i < 3; i++) {
        processes[i] = open_store(&world, i, "job@b");
        assert_int_equal(add(&world, processes[i], "n", (int64_t)i * 10 - 5), i == 0 ? -5 : i == 1 ? 0 : 15);
    }
    const struct answer *waits[3];
    for (unsigned i = 0; i < 3; i++) {
        waits[i] = get(&world, processes[i], "later", TIME_S);
    }
    run(&world, 10 * TIME_MS);
    for (unsigned i = 0; i < 3; i++) {
        assert_false(waits[i]->came);
    }
    (void)set(&world, processes[2], "later", "now");
    run(&world, 10 * TIME_MS);
    for (unsigned i = 0; i < 3; i++) {
        assert_value(waits[i], "now");
    }
    world_stop(&world);
}

static void test_a_wait_times_out_when_its_time_has_passed(void **state)
{
    (void)state;
    start(2);
    struct process *near = open_store(&world, 1, "job@b"), *far = open_store(&world, 0, "job@b");
    const struct answer *waits[] = {get(&world, near, "never", 100 * TIME_MS),
                                    get(&world, far, "never", 100 * TIME_MS)};
    run(&world, 99 * TIME_MS);
    assert_false(waits[0]->came);
    assert_false(waits[1]->came);
    run(&world, 2 * TIME_MS);
    for (unsigned i = 0; i < 2; i++) {
        assert_fails(waits[i], STATUS_TIMED_OUT, "store \"job@b\": key \"never\" was not set within 100 ms");
    }
    const struct answer *look = get(&world, far, "never", 0);
    run(&world, TIME_MS);
    assert_fails(look, STATUS_TIMED_OUT, "key \"never\" does not exist");
    world_stop(&world);
}

/* A thousand requests at once: only a few are in flight, and each is answered. */
static void test_many_requests_at_once(void **state)
{
    (void)state;
    start(2);
    struct process *processes[] = {open_store(&world, 0, "job@b"), open_store(&world, 0, "job@b")};
    for (unsigned i = 0; i < 1000; i++) {
        for (unsigned which = 0; which < 2; which++) {
            (void)ask(&world, processes[which], STORE_KIND_ADD, "n", NULL, (int64_t)i, TIME_S);
        }
    }
    assert_true(mesh_node_queued(world.nodes[0].mesh, 0) <= STORES_QUEUED_MAX);
    run(&world, TIME_S);
    for (unsigned i = 1; i <= 1000; i++) {
        assert_true(processes[0]->answers[i].came && processes[1]->answers[i].came);
        assert_int_equal(processes[1]->answers[i].result.status, STATUS_OK);
    }
    assert_int_equal(add(&world, processes[0], "n", 0), 999000);
    world_stop(&world);
}

/* A process that reads no answers delays nobody, and gets them later. */
static void test_a_process_without_room(void **state)
{
    (void)state;
    start(1);
    struct process *full = open_store(&world, 0, "job"), *other = open_store(&world, 0, "job");
    full->is_full = true;
    const struct answer *waits[] = {get(&world, full, "k", TIME_S), get(&world, other, "k", TIME_S)};
    (void)set(&world, other, "k", "v");
    const struct answer *again = get(&world, full, "k", TIME_S);
    run(&world, 10 * TIME_MS);
    assert_false(waits[0]->came);
    assert_false(again->came);
    assert_value(waits[1], "v");
    (void)ask(&world, other, STORE_KIND_DELETE, "k", NULL, 0, TIME_S);
    full->is_full = false;
    run(&world, 10 * TIME_MS);
    assert_false(waits[0]->came); /* the key is missing again */
    (void)set(&world, other, "k", "newer");
    run(&world, 10 * TIME_MS);
    assert_value(waits[0], "newer");
    assert_value(again, "newer");
    world_stop(&world);
}

static void test_the_end_of_a_store(void **state)
{
    (void)state;
    start(2);
    struct process *first = open_store(&world, 0, "job@b"), *second = open_store(&world, 1, "job@b");
    (void)set(&world, first, "k", "v");
    (void)get(&world, first, "never", 10 * TIME_S); /* it ends with its process */
    run(&world, TIME_MS);
    close_store(&world, first);
    run(&world, STORES_LINGER_NS);
    assert_value(get(&world, second, "k", 0), "v");
    close_store(&world, second);
    run(&world, STORES_LINGER_NS - TIME_S);
    struct process *third = open_store(&world, 0, "job@b");
    const struct answer *found = get(&world, third, "k", 0);
    run(&world, TIME_MS);
    assert_value(found, "v");
    close_store(&world, third);
    run(&world, TIME_MS);
    assert_true(used(&world.nodes[1]) > 0);
    run(&world, STORES_LINGER_NS);
    assert_int_equal(used(&world.nodes[0]), 0);
    assert_int_equal(used(&world.nodes[1]), 0);
    struct process *fourth = open_store(&world, 0, "job@b");
    assert_int_equal(add(&world, fourth, "k", 3), 3);
    world_stop(&world);
}

static void test_the_keeper_is_lost(void **state)
{
    (void)state;
    start(3);
    struct process *waiting = open_store(&world, 0, "job@c"), *other = open_store(&world, 0, "job@b");
    (void)set(&world, other, "k", "v");
    const struct answer *wait = get(&world, waiting, "never", 60 * TIME_S);
    run(&world, TIME_MS);
    node_stop(&world.nodes[2]);
    run(&world, 5 * TIME_S);
    assert_fails(wait, STATUS_NODE_LOST, "store \"job@c\" is lost with node c, which kept it: ");
    assert_fails(set(&world, waiting, "k", "v"), STATUS_NODE_LOST, "is lost with node c");
    const struct answer *kept = get(&world, other, "k", 0);
    run(&world, TIME_MS);
    assert_value(kept, "v");
    struct process *early = open_as(&world, 1, "job@c", 200 * TIME_MS, 1000);
    struct process *patient = open_as(&world, 1, "job@c", 60 * TIME_S, 1000);
    run(&world, 199 * TIME_MS);
    assert_false(early->answers[0].came);
    run(&world, 2 * TIME_MS);
    assert_fails(&early->answers[0], STATUS_UNREACHABLE,
                 "store \"job@c\" is kept by node c, which was not connected within 200 ms");
    assert_false(patient->answers[0].came);
    node_start(&world, 2, 999);
    run(&world, 20 * TIME_S);
    assert_int_equal(patient->answers[0].result.status, STATUS_OK);
    assert_true(patient->answers[0].came);
    assert_int_equal(add(&world, patient, "k", 1), 1);
    assert_fails(set(&world, waiting, "k", "v"), STATUS_NODE_LOST, "is lost with node c");
    world_stop(&world);
}

/* The keeper loses a process's node: what that process had there is gone. */
static void test_the_node_of_a_process_is_lost(void **state)
{
    (void)state;
    start(2);
    struct process *far = open_store(&world, 0, "job@b");
    (void)get(&world, far, "never", 60 * TIME_S);
    run(&world, TIME_MS);
    close_store(&world, far);
    node_stop(&world.nodes[0]);
    run(&world, 5 * TIME_S);
    run(&world, STORES_LINGER_NS);
    assert_int_equal(used(&world.nodes[1]), 0);
    world_stop(&world);
}

static void test_a_keeper_of_an_older_release(void **state)
{
    (void)state;
    start(2);
    mesh_peer_at(world.nodes[0].mesh, 0)->contact->offers = 0;
    struct process *process = open_as(&world, 0, "job@b", TIME_S, 1000);
    run(&world, TIME_MS);
    assert_fails(&process->answers[0], STATUS_UNSUPPORTED,
                 "store \"job@b\" would be kept by node b, whose commd (9.9) keeps no stores");
    world_stop(&world);
}

static void test_drain(void **state)
{
    (void)state;
    start(2);
    struct process *before = open_store(&world, 0, "job@b");
    stores_drain(world.nodes[1].stores, "node b is draining: new kernel");
    struct process *late = open_as(&world, 0, "late@b", TIME_S, 1000);
    run(&world, TIME_MS);
    assert_fails(&late->answers[0], STATUS_SHUTTING_DOWN, "node b is draining: new kernel");
    assert_int_equal(add(&world, before, "n", 1), 1);
    (void)open_store(&world, 1, "job@b");
    stores_drain(world.nodes[1].stores, NULL);
    (void)open_store(&world, 0, "late@b");
    world_stop(&world);
}

/* --- Users --- */

static void limit(const char *nodes, const char *allowed)
{
    for (; *nodes != '\0'; nodes++) {
        world.nodes[*nodes - 'a'].limit.uid = 2000;
        world.nodes[*nodes - 'a'].limit.nodes = allowed;
    }
}

static void test_users_have_stores_of_their_own(void **state)
{
    (void)state;
    start(2);
    struct process *owner = open_store(&world, 0, "job@b");
    struct process *other = open_as(&world, 0, "job@b", TIME_S, 2000);
    run(&world, TIME_MS);
    assert_int_equal(add(&world, owner, "n", 1), 1);
    assert_int_equal(add(&world, other, "n", 10), 10);
    assert_int_equal(add(&world, owner, "n", 1), 2);
    world_stop(&world);
}

static void test_a_users_stores_are_where_the_user_may_be(void **state)
{
    (void)state;
    start(3);
    limit("abc", "ab");
    for (unsigned i = 0; i < 50; i++) {
        char name[32];
        snprintf(name, sizeof name, "job-%u", i);
        const char *keeper = stores_keeper_name(world.nodes[0].stores, 2000, name);
        assert_string_equal(stores_keeper_name(world.nodes[1].stores, 2000, name), keeper);
        assert_true(keeper[0] == 'a' || keeper[0] == 'b');
    }
    struct process *outside = open_as(&world, 2, "job", TIME_S, 2000);
    assert_fails(&outside->answers[0], STATUS_PERMISSION,
                 "uid 2000 may not be on node c (users in commd.conf)");
    world_stop(&world);
}

static void test_a_node_that_speaks_for_a_user(void **state)
{
    (void)state;
    start(3);
    limit("ab", "ab");
    struct process *owner = open_as(&world, 0, "job@b", TIME_S, 2000);
    run(&world, TIME_MS);
    (void)set(&world, owner, "secret", "s");
    struct process *liar = open_as(&world, 2, "job@b", TIME_S, 2000); /* node c's users allow it */
    run(&world, TIME_MS);
    assert_fails(&liar->answers[0], STATUS_PERMISSION,
                 "node b does not allow uid 2000 on node c (users in commd.conf)");
    world_stop(&world);
}

static void test_users_change(void **state)
{
    (void)state;
    start(2);
    struct process *process = open_as(&world, 0, "job@b", TIME_S, 2000);
    struct process *local = open_as(&world, 0, "job@a", TIME_S, 2000);
    run(&world, TIME_MS);
    const struct answer *waits[] = {get(&world, process, "never", 60 * TIME_S),
                                    get(&world, local, "never", 60 * TIME_S)};
    run(&world, TIME_MS);
    limit("b", "b");
    stores_recheck_users(world.nodes[1].stores, world.now_ns);
    run(&world, TIME_MS);
    assert_fails(waits[0], STATUS_PERMISSION, "uid 2000 may not be on node b or a any more");
    const struct answer *late = set(&world, process, "k", "v");
    run(&world, TIME_MS);
    assert_fails(late, STATUS_NOT_FOUND, "node b keeps no such store any more");
    limit("a", "b");
    stores_recheck_users(world.nodes[0].stores, world.now_ns);
    assert_fails(waits[1], STATUS_PERMISSION, "uid 2000 may not be on node a any more");
    assert_fails(set(&world, local, "k", "v"), STATUS_PERMISSION, "uid 2000 may not be on node a any more");
    world_stop(&world);
}

static void test_nodes_whose_configurations_differ(void **state)
{
    struct error error, cause;
    (void)state;
    start(3);
    error_set(&cause, STATUS_CONFIG, "removed");
    /* Only node a does not know node c any more. */
    for (unsigned i = 0; i < 50; i++) {
        char name[32];
        snprintf(name, sizeof name, "job-%u", i);
        if (stores_keeper_name(world.nodes[0].stores, 1000, name)[0] != 'c') {
            continue;
        }
        mesh_remove_node(world.nodes[0].mesh, 1, &cause, world.now_ns);
        if (stores_keeper_name(world.nodes[0].stores, 1000, name)[0] == 'b') {
            struct process *process = open_as(&world, 0, name, TIME_S, 1000);
            run(&world, TIME_MS);
            assert_fails(&process->answers[0], STATUS_CONFIG, "node b says that node c keeps it");
            world_stop(&world);
            return;
        }
        uint32_t node;
        assert_int_equal(mesh_add_node(world.nodes[0].mesh, "c", "127.0.0.1:1", &node, &error), STATUS_OK);
    }
    fail_msg("no name shows it");
}

/* A process opens a store at the moment when the keeper, or its own node, ends the idle connection. */
static void test_opening_when_the_connection_ends(void **state)
{
    (void)state;
    for (unsigned low = 0; low < 2; low++) {
        start(16);
        unsigned opener = low == 0 ? 0 : 15, keeper = opener;
        uint32_t peer = 0;
        do {
            keeper = low == 0 ? keeper + 1 : keeper - 1;
            assert_true(mesh_find_node(world.nodes[opener].mesh, world.nodes[keeper].name, &peer));
        } while (mesh_node_is_up(world.nodes[opener].mesh, peer));
        char name[32];
        (void)snprintf(name, sizeof name, "job@%s", world.nodes[keeper].name);
        for (unsigned turn = 0; turn < 200; turn++) {
            struct process *process = open_as(&world, opener, name, TIME_S, 1000);
            run(&world, 500 * TIME_MS);
            assert_true(process->answers[0].came);
            assert_string_equal(process->answers[0].result.text, "");
            assert_int_equal(process->answers[0].result.status, STATUS_OK);
            const struct answer *answer = set(&world, process, "key", "value");
            run(&world, TIME_S);
            assert_true(answer->came && answer->result.status == STATUS_OK);
            close_store(&world, process);
            world.process_count = 0;
            run(&world, 9999500 * TIME_US + turn * 10 * TIME_US);
        }
        world_stop(&world);
    }
}

int main(void)
{
    log_set_level(LOG_LEVEL_ERROR);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_nodes_choose_the_same_keeper),
        cmocka_unit_test(test_the_choice_never_changes),
        cmocka_unit_test(test_requests_from_all_nodes),
        cmocka_unit_test(test_a_wait_times_out_when_its_time_has_passed),
        cmocka_unit_test(test_many_requests_at_once),
        cmocka_unit_test(test_a_process_without_room),
        cmocka_unit_test(test_the_end_of_a_store),
        cmocka_unit_test(test_the_keeper_is_lost),
        cmocka_unit_test(test_opening_when_the_connection_ends),
        cmocka_unit_test(test_the_node_of_a_process_is_lost),
        cmocka_unit_test(test_a_keeper_of_an_older_release),
        cmocka_unit_test(test_drain),
        cmocka_unit_test(test_users_have_stores_of_their_own),
        cmocka_unit_test(test_a_users_stores_are_where_the_user_may_be),
        cmocka_unit_test(test_a_node_that_speaks_for_a_user),
        cmocka_unit_test(test_users_change),
        cmocka_unit_test(test_nodes_whose_configurations_differ),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
