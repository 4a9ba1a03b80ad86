#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

#include <cmocka.h>

#include "tests/sim/large_cluster.h"
#include "tests/sim/sim_text.h"

/*
 * Clusters in which not every node is connected to every other: nodes with ranks of one communicator meet
 * (daemon/comm/meeting.h), and connections end when nobody needs them.
 */

static const struct sim_call barrier = {.kind = OP_KIND_BARRIER};
static void assert_few_links(const struct cluster *cluster)
{
    for (uint32_t node = 0; node < cluster->node_count; node++) {
        if (cluster->nodes[node].alive) {
            assert_in_range(links_of(cluster, node), 1, 8);
        }
    }
}

/* Each of `size` ranks gets a node of its own, of those from `first` on. */
static void draw_nodes(struct cluster *cluster, uint32_t first, uint32_t *node_of_rank, uint32_t size)
{
    for (uint32_t rank = 0; rank < size; rank++) {
        bool taken = true;
        while (taken) {
            node_of_rank[rank] =
                first + (uint32_t)random_below(&cluster->random, cluster->node_count - first);
            taken = false;
            for (uint32_t i = 0; i < rank; i++) {
                taken = taken || node_of_rank[i] == node_of_rank[rank];
            }
        }
    }
}

/* Two nodes without a connection; *there is the second one's index at the first one. */
static void draw_strangers(const struct cluster *cluster, uint32_t *low, uint32_t *high, uint32_t *there)
{
    for (*low = 0; *low < cluster->node_count; ++*low) {
        for (*high = *low + 1; *high < cluster->node_count; ++*high) {
            const struct mesh *mesh = cluster->nodes[*low].mesh;
            assert_true(mesh_find_node(mesh, cluster->nodes[*high].name, there));
            if (!mesh_node_is_up(mesh, *there)) {
                return;
            }
        }
    }
    fail_msg("everybody is everybody's neighbour");
}

static bool are_linked(const struct cluster *cluster, uint32_t low, uint32_t high)
{
    uint32_t there, here;
    assert_true(mesh_find_node(cluster->nodes[low].mesh, cluster->nodes[high].name, &there));
    assert_true(mesh_find_node(cluster->nodes[high].mesh, cluster->nodes[low].name, &here));
    bool up = mesh_node_is_up(cluster->nodes[low].mesh, there);
    assert_int_equal(up, mesh_node_is_up(cluster->nodes[high].mesh, here));
    return up;
}

/* One node of two needs the connection: `high` says whether it is the one with the higher name. */
static void run_need(uint32_t which, bool high, enum mesh_need how, uint64_t within_ns)
{
    struct cluster *cluster = large_cluster(which, 24);
    uint32_t nodes[2], peer;
    draw_strangers(cluster, &nodes[0], &nodes[1], &peer);
    struct mesh *mesh = cluster->nodes[nodes[high]].mesh;
    assert_true(mesh_find_node(mesh, cluster->nodes[nodes[!high]].name, &peer));
    for (unsigned again = 0; again < 2; again++) {
        struct mesh_node_info info;
        mesh_node_info(mesh, peer, &info);
        assert_string_equal(mesh_node_state_text(info.state), "alive");
        mesh_need(mesh, peer, how);
        cluster_touch(cluster);
        if (within_ns > TIME_S) {
            cluster_run(cluster, 900 * TIME_MS);
            assert_false(are_linked(cluster, nodes[0], nodes[1]));
        }
        cluster_run(cluster, within_ns);
        assert_true(are_linked(cluster, nodes[0], nodes[1]));
        cluster_run(cluster, 60 * TIME_S);
        assert_true(are_linked(cluster, nodes[0], nodes[1]));
        mesh_unneed(mesh, peer, how);
        cluster_touch(cluster);
        cluster_run(cluster, 8 * TIME_S);
        assert_true(are_linked(cluster, nodes[0], nodes[1]));
        cluster_run(cluster, 8 * TIME_S);
        assert_false(are_linked(cluster, nodes[0], nodes[1]));
    }
    cluster_free(cluster);
}

static void test_one_node_needs_a_connection(void **state)
{
    (void)state;
    run_need(100, false, MESH_NEED_BOTH, 100 * TIME_MS);
    run_need(101, false, MESH_NEED_CALL, 100 * TIME_MS);
    run_need(102, true, MESH_NEED_CALL, 100 * TIME_MS);
    run_need(103, true, MESH_NEED_BOTH, 1100 * TIME_MS);
}

/* Each of two nodes needs the connection for some time: it lasts as long as one of them does. */
static void test_both_nodes_need_a_connection(void **state)
{
    (void)state;
    struct cluster *cluster = large_cluster(104, 24);
    uint32_t low, high, there, here;
    draw_strangers(cluster, &low, &high, &there);
    assert_true(mesh_find_node(cluster->nodes[high].mesh, cluster->nodes[low].name, &here));
    mesh_need(cluster->nodes[low].mesh, there, MESH_NEED_CALL);
    mesh_need(cluster->nodes[high].mesh, here, MESH_NEED_CALL);
    cluster_touch(cluster);
    cluster_run(cluster, TIME_S);
    assert_true(are_linked(cluster, low, high));
    mesh_unneed(cluster->nodes[low].mesh, there, MESH_NEED_CALL);
    cluster_touch(cluster);
    cluster_run(cluster, 60 * TIME_S);
    assert_true(are_linked(cluster, low, high));
    mesh_need(cluster->nodes[low].mesh, there, MESH_NEED_BOTH);
    mesh_unneed(cluster->nodes[high].mesh, here, MESH_NEED_CALL);
    cluster_touch(cluster);
    cluster_run(cluster, 60 * TIME_S);
    assert_true(are_linked(cluster, low, high));
    mesh_unneed(cluster->nodes[low].mesh, there, MESH_NEED_BOTH);
    cluster_touch(cluster);
    cluster_run(cluster, 20 * TIME_S);
    assert_false(are_linked(cluster, low, high));
    cluster_free(cluster);
}

static void test_connections_come_and_go_with_jobs(void **state)
{
    (void)state;
    struct cluster *cluster = large_cluster(90, 40);
    uint32_t node_of_rank[6];
    cluster_run(cluster, 60 * TIME_S);
    assert_few_links(cluster);
    for (unsigned job = 0; job < 8; job++) {
        draw_nodes(cluster, 0, node_of_rank, 6);
        struct sim_comm *comm = sim_comm_new(cluster, job % 2 == 0 ? "same" : "other", 6, node_of_rank);
        sim_comm_form(comm, NULL, 3 * TIME_S);
        sim_comm_run(comm, &sum);
        cluster_run(cluster, 30 * TIME_S); /* connections that a communicator needs stay */
        sim_comm_run(comm, &sum);
        sim_comm_free(comm);
    }
    cluster_run(cluster, 30 * TIME_S);
    assert_few_links(cluster);
    cluster_free(cluster);
}

static void test_jobs_at_once(void **state)
{
    (void)state;
    enum { JOBS = 12 };
    struct cluster *cluster = large_cluster(91, 32);
    struct sim_comm *comms[JOBS];
    uint32_t node_of_rank[8];
    for (unsigned job = 0; job < JOBS; job++) {
        char name[16];
        (void)snprintf(name, sizeof name, "job%u", job);
        draw_nodes(cluster, 0, node_of_rank, 8);
        comms[job] = sim_comm_new(cluster, name, 8, node_of_rank);
        sim_comm_join_all(comms[job], NULL);
    }
    for (unsigned job = 0; job < JOBS; job++) {
        assert_true(cluster_run_until(cluster, sim_comm_formed, comms[job], 5 * TIME_S));
        sim_comm_run(comms[job], &sum);
    }
    for (unsigned job = 0; job < JOBS; job++) {
        sim_comm_free(comms[job]);
    }
    cluster_free(cluster);
}

static void test_a_job_on_all_nodes(void **state)
{
    (void)state;
    enum { NODES = 64 };
    struct cluster *cluster = large_cluster(92, NODES);
    uint32_t node_of_rank[NODES];
    for (uint32_t i = 0; i < NODES; i++) {
        node_of_rank[i] = NODES - 1 - i;
    }
    struct sim_comm *comm = sim_comm_new(cluster, "all", NODES, node_of_rank);
    sim_comm_form(comm, NULL, 5 * TIME_S);
    sim_comm_run(comm, &barrier);
    sim_comm_run(comm, &sum);
    sim_comm_free(comm);
    cluster_free(cluster);
}

/* Most nodes are dead: those that live know it, or not yet. */
static void run_places_that_are_dead(uint32_t which, uint64_t known_after_ns)
{
    enum { NODES = 40, DEAD = 25 };
    struct cluster *cluster = large_cluster(which, NODES);
    uint32_t node_of_rank[5];
    for (uint32_t node = 0; node < DEAD; node++) {
        cluster_kill(cluster, node);
        cluster_bury(cluster, node);
    }
    cluster_run(cluster, known_after_ns);
    for (unsigned job = 0; job < 10; job++) {
        char name[16];
        (void)snprintf(name, sizeof name, "job%u", job);
        draw_nodes(cluster, DEAD, node_of_rank, 5);
        struct sim_comm *comm = sim_comm_new(cluster, name, 5, node_of_rank);
        sim_comm_form(comm, NULL, 12 * TIME_S);
        sim_comm_run(comm, &sum);
        sim_comm_free(comm);
    }
    cluster_free(cluster);
}

static void test_places_that_are_known_to_be_dead(void **state)
{
    (void)state;
    run_places_that_are_dead(93, 20 * TIME_S);
}

static void test_places_that_have_just_died(void **state)
{
    (void)state;
    run_places_that_are_dead(94, 0);
}

/* A rank that comes after the communicator has formed is refused, also when the places are long disconnected.
 */
static void run_late_rank(uint32_t which, uint64_t later_ns)
{
    struct cluster *cluster = large_cluster(which, 24);
    static const uint32_t node_of_rank[] = {3, 9, 17};
    static const uint32_t node_of_stranger[] = {20, 20, 20};
    struct sim_comm *comm = sim_comm_new(cluster, "fit", 3, node_of_rank);
    struct sim_comm *stranger = sim_comm_new(cluster, "fit", 3, node_of_stranger);
    sim_comm_form(comm, NULL, 3 * TIME_S);
    cluster_run(cluster, later_ns);
    sim_comm_join(stranger, 1, 0, NULL);
    cluster_run(cluster, 4 * TIME_S);
    assert_text(verdict_of(stranger, 1), STATUS_ALREADY_EXISTS, "rank 1", "n009");
    sim_comm_run(comm, &sum);
    sim_comm_free(stranger);
    sim_comm_free(comm);
    cluster_free(cluster);
}

static void test_a_rank_that_comes_late(void **state)
{
    (void)state;
    run_late_rank(95, 0);
    run_late_rank(96, 60 * TIME_S);
}

static void test_another_size(void **state)
{
    (void)state;
    struct cluster *cluster = large_cluster(97, 24);
    static const uint32_t node_of_rank[] = {3, 9, 17};
    static const uint32_t node_of_stranger[] = {20, 20, 20};
    struct sim_comm *comm = sim_comm_new(cluster, "fit", 3, node_of_rank);
    struct sim_comm *stranger = sim_comm_new(cluster, "fit", 3, node_of_stranger);
    sim_comm_join(comm, 0, 0, NULL);
    sim_comm_join(comm, 1, 0, NULL);
    cluster_run(cluster, 100 * TIME_MS);
    sim_comm_join(stranger, 2, 5, NULL);
    cluster_run(cluster, 4 * TIME_S);
    assert_text(verdict_of(stranger, 2), STATUS_MISMATCH, "size 5", "size 3");
    sim_comm_join(comm, 2, 0, NULL);
    assert_true(cluster_run_until(cluster, sim_comm_formed, comm, 10 * TIME_S));
    sim_comm_run(comm, &sum);
    sim_comm_free(stranger);
    sim_comm_free(comm);
    cluster_free(cluster);
}

/* A node dies and comes back while a communicator with it forms: that ends it. All may come again. */
static void test_a_node_that_restarts_while_it_forms(void **state)
{
    (void)state;
    struct cluster *cluster = large_cluster(98, 24);
    static const uint32_t node_of_rank[] = {3, 9, 17};
    struct sim_comm *comm = sim_comm_new(cluster, "again", 3, node_of_rank);
    sim_comm_join(comm, 0, 0, NULL);
    sim_comm_join(comm, 1, 0, NULL);
    cluster_run(cluster, TIME_S);
    cluster_crash(cluster, 9);
    sim_comm_forget_node(comm, 9);
    cluster_bury(cluster, 9);
    cluster_run(cluster, 200 * TIME_MS);
    cluster_restart(cluster, 9);
    sim_comm_join(comm, 1, 0, NULL); /* at once: node 3 has not noticed yet that the first one is gone */
    cluster_run(cluster, 6 * TIME_S);
    assert_text(verdict_of(comm, 0), STATUS_NODE_LOST, "n009", "lost");
    sim_comm_leave(comm, 0, COMMS_LEAVE_ORDERLY);
    assert_false(comm->ranks[1].formed);
    sim_comm_join(comm, 0, 0, NULL);
    sim_comm_join(comm, 2, 0, NULL);
    assert_true(cluster_run_until(cluster, sim_comm_formed, comm, 20 * TIME_S));
    assert_int_equal(verdict_of(comm, 0)->status, STATUS_OK);
    sim_comm_run(comm, &sum);
    sim_comm_free(comm);
    cluster_free(cluster);
}

/* Adds the nodes from `first` on to all configurations, or removes them. */
static void configure(struct cluster *cluster, uint32_t first, bool add)
{
    for (uint32_t node = 0; node < cluster->node_count; node++) {
        for (uint32_t other = first; other < cluster->node_count; other++) {
            struct mesh *mesh = cluster->nodes[node].mesh;
            char address[NETWORK_ADDRESS_MAX_BYTES];
            struct error error;
            uint32_t peer;
            if (other == node) {
                continue;
            }
            if (add) {
                network_address(cluster->network, cluster->nodes[other].name, address);
                assert_int_equal(mesh_add_node(mesh, cluster->nodes[other].name, address, &peer, &error),
                                 STATUS_OK);
            } else {
                error_set(&error, STATUS_NODE_LOST, "it is not in the configuration");
                assert_true(mesh_find_node(mesh, cluster->nodes[other].name, &peer));
                mesh_remove_node(mesh, peer, &error, cluster->now_ns);
            }
        }
        comms_recheck_users(cluster->nodes[node].comms, cluster->now_ns);
    }
    cluster_touch(cluster);
}

/* A cluster grows beyond what is complete, and shrinks again, while communicators run and form. */
static void test_a_cluster_that_grows(void **state)
{
    (void)state;
    struct cluster *cluster = large_cluster(105, 24);
    static const uint32_t old_nodes[] = {0, 4, 8}, both_nodes[] = {0, 4, 20};
    configure(cluster, 9, false);
    cluster_run(cluster, 10 * TIME_S);
    struct sim_comm *old = sim_comm_new(cluster, "old", 3, old_nodes);
    struct sim_comm *both = sim_comm_new(cluster, "both", 3, both_nodes);
    sim_comm_form(old, NULL, 3 * TIME_S);
    sim_comm_join(both, 0, 0, NULL);
    sim_comm_join(both, 1, 0, NULL);
    cluster_run(cluster, TIME_S);
    configure(cluster, 9, true);
    cluster_run(cluster, 30 * TIME_S);
    sim_comm_run(old, &sum);
    sim_comm_join(both, 2, 0, NULL);
    assert_true(cluster_run_until(cluster, sim_comm_formed, both, 5 * TIME_S));
    sim_comm_run(both, &sum);
    sim_comm_free(both);
    configure(cluster, 9, false);
    cluster_run(cluster, 30 * TIME_S);
    sim_comm_run(old, &sum);
    sim_comm_free(old);
    cluster_free(cluster);
}

/* The places know only some of the nodes: their configurations are older. */
static void test_configurations_that_differ(void **state)
{
    (void)state;
    struct cluster *cluster = large_cluster(106, 24);
    static const uint32_t node_of_rank[] = {2, 11, 20};
    for (uint32_t node = 0; node < 24; node++) {
        struct error error;
        uint32_t peer;
        error_set(&error, STATUS_NODE_LOST, "it is not in the configuration");
        for (uint32_t other = 21; node < 10 && node != 2 && other < 24; other++) {
            assert_true(mesh_find_node(cluster->nodes[node].mesh, cluster->nodes[other].name, &peer));
            mesh_remove_node(cluster->nodes[node].mesh, peer, &error, cluster->now_ns);
        }
    }
    cluster_touch(cluster);
    for (unsigned job = 0; job < 10; job++) {
        char name[16];
        (void)snprintf(name, sizeof name, "job%u", job);
        struct sim_comm *comm = sim_comm_new(cluster, name, 3, node_of_rank);
        sim_comm_form(comm, NULL, 12 * TIME_S);
        sim_comm_run(comm, &sum);
        sim_comm_free(comm);
    }
    cluster_free(cluster);
}

static void test_a_node_that_drains(void **state)
{
    (void)state;
    struct cluster *cluster = large_cluster(99, 24);
    static const uint32_t node_of_rank[] = {3, 9, 17};
    for (unsigned late = 0; late < 2; late++) {
        struct sim_comm *comm = sim_comm_new(cluster, late == 0 ? "first" : "second", 3, node_of_rank);
        comms_drain(cluster->nodes[17].comms, "node n017 drains", cluster->now_ns);
        if (late == 1) {
            sim_comm_join(comm, 2, 0, NULL);
            cluster_run(cluster, 500 * TIME_MS);
        }
        sim_comm_join(comm, 0, 0, NULL);
        sim_comm_join(comm, 1, 0, NULL);
        cluster_run(cluster, 500 * TIME_MS);
        if (late == 0) {
            sim_comm_join(comm, 2, 0, NULL);
        }
        assert_int_equal(comm->ranks[2].refused.status, STATUS_SHUTTING_DOWN);
        cluster_run(cluster, 4 * TIME_S);
        for (uint32_t rank = 0; rank < 2; rank++) {
            assert_text(verdict_of(comm, rank), STATUS_SHUTTING_DOWN, "n017", "drains");
        }
        sim_comm_free(comm);
    }
    cluster_free(cluster);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_node_needs_a_connection),
        cmocka_unit_test(test_both_nodes_need_a_connection),
        cmocka_unit_test(test_connections_come_and_go_with_jobs),
        cmocka_unit_test(test_jobs_at_once),
        cmocka_unit_test(test_a_job_on_all_nodes),
        cmocka_unit_test(test_places_that_are_known_to_be_dead),
        cmocka_unit_test(test_places_that_have_just_died),
        cmocka_unit_test(test_a_rank_that_comes_late),
        cmocka_unit_test(test_another_size),
        cmocka_unit_test(test_a_node_that_restarts_while_it_forms),
        cmocka_unit_test(test_a_node_that_drains),
        cmocka_unit_test(test_a_cluster_that_grows),
        cmocka_unit_test(test_configurations_that_differ),
    };
    return cluster_report(cmocka_run_group_tests(tests, NULL, NULL));
}
