#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/sim/large_cluster.h"
#include "tests/sim/sim_text.h"

/*
 * What strains the choice of connections: jobs of one name on changing nodes, claims at the same moment, many
 * nodes that are needed at once, and places that lie.
 */

/* Jobs of one name, one after the other, on other nodes each time. */
static void test_the_same_name_on_other_nodes(void **state)
{
    (void)state;
    enum { NODES = 64 };
    struct cluster *cluster = large_cluster(300, NODES);
    uint32_t most = 0;
    for (uint32_t job = 0; job < 16; job++) {
        uint32_t node_of_rank[4];
        for (uint32_t i = 0; i < 4; i++) {
            node_of_rank[i] = job * 4 + i;
        }
        struct sim_comm *comm = sim_comm_new(cluster, "train", 4, node_of_rank);
        sim_comm_form(comm, NULL, 3 * TIME_S);
        cluster_run(cluster, 60 * TIME_S);
        sim_comm_run(comm, &sum);
        uint32_t links = links_of(cluster, job * 4);
        most = links > most ? links : most;
        sim_comm_free(comm);
        cluster_run(cluster, 30 * TIME_S);
    }
    assert_in_range(most, 1, 8 + 3);
    cluster_free(cluster);
}

/* Two nodes claim the same rank at the same moment: one is refused at once, and the other one's job forms. */
static void test_duplicates_at_once(void **state)
{
    (void)state;
    for (uint32_t which = 0; which < 12; which++) {
        struct cluster *cluster = large_cluster(310 + which, 24);
        uint32_t first = which * 2; /* four nodes, each six after the one before */
        uint32_t stranger = (first + 18) % 24;
        struct sim_comm *one =
            sim_comm_new(cluster, "dup", 3, (uint32_t[]){first, (first + 6) % 24, (first + 12) % 24});
        struct sim_comm *two = sim_comm_new(cluster, "dup", 3, (uint32_t[]){stranger, stranger, stranger});
        sim_comm_join(one, 0, 0, NULL);
        sim_comm_join(one, 1, 0, NULL);
        sim_comm_join(two, 1, 0, NULL);
        cluster_run(cluster, 3 * TIME_S);
        assert_int_equal(two->ranks[1].formed + one->ranks[1].formed, 1);
        struct sim_rank *refused = two->ranks[1].formed ? &two->ranks[1] : &one->ranks[1];
        assert_int_equal(refused->formed_result.status, STATUS_ALREADY_EXISTS);
        sim_comm_join(one, 2, 0, NULL);
        cluster_run(cluster, 3 * TIME_S);
        assert_true(one->ranks[0].formed && one->ranks[2].formed);
        assert_int_equal(one->ranks[0].formed_result.status, STATUS_OK);
        sim_comm_free(one);
        sim_comm_free(two);
        cluster_free(cluster);
    }
}

static uint32_t connecting_of(const struct cluster *cluster, uint32_t node)
{
    const struct mesh *mesh = cluster->nodes[node].mesh;
    uint32_t count = 0;
    for (uint32_t i = 0; i < mesh_node_count(mesh); i++) {
        struct mesh_node_info info;
        mesh_node_info(mesh, i, &info);
        count += info.state == MESH_NODE_CONNECTING || info.state == MESH_NODE_GREETING;
    }
    return count;
}

/* How many are dialled at once, when nodes are needed the first time and again. */
static void test_dials_at_once(void **state)
{
    (void)state;
    enum { NODES = 64 };
    struct cluster *cluster = large_cluster(330, NODES);
    struct mesh *mesh = cluster->nodes[0].mesh;
    for (unsigned again = 0; again < 3; again++) {
        uint32_t most = 0;
        for (uint32_t i = 0; i < mesh_node_count(mesh); i++) {
            mesh_need(mesh, i, MESH_NEED_CALL);
        }
        cluster_touch(cluster);
        for (unsigned step = 0; step < 20000 && links_of(cluster, 0) < NODES - 1; step++) {
            cluster_run(cluster, 50 * TIME_US);
            uint32_t now = connecting_of(cluster, 0);
            most = now > most ? now : most;
        }
        assert_int_equal(links_of(cluster, 0), NODES - 1);
        for (uint32_t i = 0; i < mesh_node_count(mesh); i++) {
            mesh_unneed(mesh, i, MESH_NEED_CALL);
        }
        cluster_touch(cluster);
        cluster_run(cluster, 30 * TIME_S);
        assert_in_range(most, 1, 8);
    }
    cluster_free(cluster);
}

/* A communicator forms at the moment when its nodes let go of their connections. */
static void test_forms_when_connections_end(void **state)
{
    (void)state;
    struct cluster *cluster = large_cluster(331, 24);
    static const uint32_t node_of_rank[] = {3, 9, 17, 21};
    for (unsigned turn = 0; turn < 150; turn++) {
        char name[16];
        (void)snprintf(name, sizeof name, "job%u", turn);
        struct sim_comm *comm = sim_comm_new(cluster, name, 4, node_of_rank);
        sim_comm_form(comm, NULL, 3 * TIME_S);
        sim_comm_run(comm, &sum);
        sim_comm_free(comm);
        uint64_t ends_ns = 9990 * TIME_MS + turn * 100 * TIME_US;
        cluster_run(cluster, ends_ns);
    }
    cluster_free(cluster);
}

/* Places that lie: they name everybody, thousands of times. */
static void test_places_that_lie(void **state)
{
    (void)state;
    enum { NODES = 64 };
    struct cluster *cluster = large_cluster(332, NODES);
    static const uint32_t node_of_rank[] = {3, 9, 17};
    struct sim_comm *comm = sim_comm_new(cluster, "lied", 3, node_of_rank);
    char *names[600];
    for (uint32_t i = 0; i < 600; i++) {
        names[i] = i % 3 == 0 ? (char *)"nobody" : cluster->nodes[i % NODES].name;
    }
    sim_comm_join(comm, 0, 0, NULL);
    sim_comm_join(comm, 1, 0, NULL);
    cluster_run(cluster, 200 * TIME_MS);
    for (unsigned turn = 0; turn < 50; turn++) {
        for (uint32_t liar = 0; liar < NODES; liar++) {
            Commd__Mesh__Met body = COMMD__MESH__MET__INIT;
            body.name = "lied";
            body.owner_uid = comm->ranks[0].client.uid;
            body.nodes = names;
            body.n_nodes = 600;
            Commd__Mesh__Message message = MESH_MESSAGE(MET, met, &body);
            uint32_t peer;
            if (liar != 3 && liar != 9 && mesh_find_node(cluster->nodes[liar].mesh, "n003", &peer)) {
                enum status status = mesh_send(cluster->nodes[liar].mesh, peer, &message);
                (void)status;
            }
        }
        cluster_run(cluster, 10 * TIME_MS);
    }
    sim_comm_join(comm, 2, 0, NULL);
    assert_true(cluster_run_until(cluster, sim_comm_formed, comm, 5 * TIME_S));
    sim_comm_run(comm, &sum);
    cluster_run(cluster, 30 * TIME_S);
    assert_in_range(links_of(cluster, 3), 1, 12);
    sim_comm_free(comm);
    cluster_free(cluster);
}

/* Names are resolved for nodes that are needed and not up, not for all those that are not connected. */
static void test_whose_names_are_resolved(void **state)
{
    (void)state;
    struct cluster *cluster = large_cluster(333, 24);
    const struct mesh *mesh = cluster->nodes[0].mesh;
    uint32_t wanted = 0, dead, stranger = 0;
    cluster_run(cluster, 30 * TIME_S);
    for (uint32_t i = 0; i < mesh_node_count(mesh); i++) {
        wanted += mesh_wants_address(mesh, i);
        stranger = mesh_node_is_up(mesh, i) ? stranger : i;
    }
    assert_int_equal(wanted, 0);
    assert_true(mesh_find_node(mesh, mesh_node_name(mesh, stranger), &dead));
    cluster_kill(cluster, stranger + 1);
    cluster_bury(cluster, stranger + 1);
    cluster_run(cluster, 10 * TIME_S);
    assert_false(mesh_wants_address(mesh, dead));
    mesh_need(cluster->nodes[0].mesh, dead, MESH_NEED_CALL);
    cluster_touch(cluster);
    cluster_run(cluster, 5 * TIME_S);
    assert_true(mesh_wants_address(mesh, dead));
    mesh_unneed(cluster->nodes[0].mesh, dead, MESH_NEED_CALL);
    cluster_touch(cluster);
    assert_false(mesh_wants_address(mesh, dead));
    cluster_free(cluster);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_same_name_on_other_nodes),
        cmocka_unit_test(test_duplicates_at_once),
        cmocka_unit_test(test_dials_at_once),
        cmocka_unit_test(test_forms_when_connections_end),
        cmocka_unit_test(test_places_that_lie),
        cmocka_unit_test(test_whose_names_are_resolved),
    };
    return cluster_report(cmocka_run_group_tests(tests, NULL, NULL));
}
