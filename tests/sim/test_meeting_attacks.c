#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "daemon/comm/doubt.h"
#include "daemon/comm/meeting_choice.h"
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

#define TREE_NODES 64u
#define TREE_SIZE 40u
#define MANY_RANKS (COMMS_DOUBT_NODES_MAX + 1)
#define TREE_UID 1000u

/* The place of a name that all nodes choose, while they see the same cluster. */
static uint32_t place_of(const struct cluster *cluster, const char *name)
{
    struct owned_name key;
    uint32_t node = 0;
    const struct cluster_node *at = &cluster->nodes[0];
    (void)owned_name_make(&key, TREE_UID, name);
    assert_true(meeting_choose(&(struct meeting_chooser){.comms = at->comms, .key = &key}, &node));
    const char *chosen = node == MESH_NODE_OWN ? at->name : mesh_node_name(at->mesh, node);
    for (uint32_t i = 0; i < cluster->node_count; i++) {
        if (strcmp(cluster->nodes[i].name, chosen) == 0) {
            return i;
        }
    }
    fail();
    return 0;
}

/* Ranks are on the first nodes, and all but the last have come. The name's place has none. */
static struct sim_comm *waiting_comm_of(struct cluster *cluster, uint32_t size, uint32_t *place)
{
    char name[16];
    uint32_t node_of_rank[MANY_RANKS];
    assert_true(size <= MANY_RANKS);
    for (uint32_t i = 0; i < size; i++) {
        node_of_rank[i] = i % TREE_SIZE;
    }
    unsigned turn = 0;
    do {
        (void)snprintf(name, sizeof name, "job%u", turn++);
        *place = place_of(cluster, name);
    } while (*place < TREE_SIZE);
    struct sim_comm *comm = sim_comm_new(cluster, name, size, node_of_rank);
    for (uint32_t rank = 0; rank < size - 1; rank++) {
        sim_comm_join(comm, rank, 0, NULL);
    }
    cluster_run(cluster, 100 * TIME_MS);
    return comm;
}

static struct sim_comm *waiting_comm(struct cluster *cluster, uint32_t *place)
{
    return waiting_comm_of(cluster, TREE_SIZE, place);
}

static void last_comes(struct sim_comm *comm, uint64_t span_ns)
{
    sim_comm_join(comm, comm->size - 1, 0, NULL);
    assert_true(cluster_run_until(comm->cluster, sim_comm_formed, comm, span_ns));
    for (uint32_t rank = 0; rank < comm->size; rank++) {
        assert_int_equal(comm->ranks[rank].formed_result.status, STATUS_OK);
    }
    sim_comm_run(comm, &sum);
}

static void say_to_all(struct cluster *cluster, uint32_t liar, const Commd__Mesh__Message *message)
{
    struct mesh *mesh = cluster->nodes[liar].mesh;
    for (uint32_t peer = 0; peer < mesh_node_count(mesh); peer++) {
        if (mesh_node_is_up(mesh, peer)) {
            assert_int_equal(mesh_send(mesh, peer, message), STATUS_OK);
        }
    }
    cluster_touch(cluster);
}

static void say_that_it_ended(const struct sim_comm *comm, uint32_t liar, const char *ended_by,
                              enum status status)
{
    Commd__Mesh__Withdraw end = COMMD__MESH__WITHDRAW__INIT;
    Commd__Mesh__Roster body = COMMD__MESH__ROSTER__INIT;
    end.name = body.name = (char *)(uintptr_t)comm->name;
    end.owner_uid = body.owner_uid = TREE_UID;
    end.status = status;
    end.text = "it was me";
    end.failed = true;
    body.ended_by = (char *)(uintptr_t)ended_by;
    body.end = &end;
    Commd__Mesh__Message message = MESH_MESSAGE(ROSTER, roster, &body);
    say_to_all(comm->cluster, liar, &message);
}

/* A place says that the communicator has ended because of a node that takes part, or of one without ranks, or
 * of the receiver, or of nobody. All of them deny it, so the communicator forms. */
static void run_false_end(uint32_t which, uint32_t size, const char *ended_by, enum status status)
{
    struct cluster *cluster = large_cluster(which, TREE_NODES);
    uint32_t place;
    struct sim_comm *comm = waiting_comm_of(cluster, size, &place);
    for (unsigned turn = 0; turn < 3; turn++) {
        say_that_it_ended(comm, place, ended_by, status);
        cluster_run(cluster, 500 * TIME_MS);
    }
    last_comes(comm, TIME_S);
    sim_comm_free(comm);
    cluster_free(cluster);
}

static void test_a_place_ends_formations_of_others(void **state)
{
    (void)state;
    run_false_end(340, TREE_SIZE, "n007", STATUS_RANK_LOST);
    run_false_end(341, TREE_SIZE, "n007", STATUS_NODE_LOST);
    run_false_end(342, TREE_SIZE, "n063", STATUS_RANK_LOST);
    run_false_end(343, MANY_RANKS, "nobody", STATUS_NODE_LOST);
    run_false_end(344, MANY_RANKS, "n007", STATUS_RANK_LOST);
}

/* In a very large communicator, nodes ask witnesses: test_meeting_witness.c. All nodes without ranks, among
 * them all witnesses, say that it ended. But they answer what the named node says. */
static void test_a_very_large_communicator(void **state)
{
    (void)state;
    struct cluster *cluster = large_cluster(345, MANY_RANKS);
    uint32_t place;
    struct sim_comm *comm = waiting_comm_of(cluster, MANY_RANKS, &place);
    for (uint32_t liar = TREE_SIZE; liar < MANY_RANKS; liar++) {
        say_that_it_ended(comm, liar, "n007", STATUS_RANK_LOST);
    }
    cluster_run(cluster, 100 * TIME_MS);
    last_comes(comm, TIME_S);
    sim_comm_free(comm);
    cluster_free(cluster);
}

/* A place sends rosters with all ranks to the node of rank 0. In those, some node has another nonce, or its
 * rank is a third node's. The communicator forms once its nodes have turned to another place. */
static void run_false_roster(uint32_t which, bool other_node)
{
    struct cluster *cluster = large_cluster(which, TREE_NODES);
    Commd__Mesh__RosterEntry entries[TREE_SIZE], *list[TREE_SIZE];
    Commd__Mesh__Announce reports[TREE_SIZE];
    Commd__Mesh__Roster body = COMMD__MESH__ROSTER__INIT;
    uint32_t place, ranks[TREE_SIZE];
    struct sim_comm *comm = waiting_comm(cluster, &place);
    for (uint32_t i = 0; i < TREE_SIZE; i++) {
        ranks[i] = i;
        commd__mesh__announce__init(&reports[i]);
        commd__mesh__roster_entry__init(&entries[i]);
        reports[i].n_ranks = 1;
        reports[i].ranks = &ranks[i];
        reports[i].nonce = 1 + i;
        reports[i].revision = 1;
        reports[i].tree = true;
        entries[i].node = cluster->nodes[other_node && i == 7 ? TREE_NODES - 1 : i].name;
        entries[i].report = &reports[i];
        list[i] = &entries[i];
    }
    body.name = comm->name;
    body.owner_uid = TREE_UID;
    body.n_entries = TREE_SIZE;
    body.entries = list;
    body.first = body.last = true;
    Commd__Mesh__Message message = MESH_MESSAGE(ROSTER, roster, &body);
    for (unsigned turn = 0; turn < 2; turn++) {
        body.complete = turn == 1;
        say_to_all(cluster, place, &message);
        cluster_run(cluster, 100 * TIME_MS);
    }
    mesh_set_handler(cluster->nodes[place].mesh, MESH_ROOM_COMM, &(struct mesh_handler){0});
    last_comes(comm, 8 * TIME_S);
    sim_comm_free(comm);
    cluster_free(cluster);
}

static void test_a_place_tells_false_ranks(void **state)
{
    (void)state;
    run_false_roster(350, false);
    run_false_roster(351, true);
}

/* Nodes without ranks say Meet, and report none. The place does not tell all of all: it names them, and one
 * of the others, to each other. */
static void test_guests_without_a_report(void **state)
{
    (void)state;
    struct cluster *cluster = large_cluster(360, TREE_NODES);
    uint32_t place, peer, liars = 0, many = 0;
    struct sim_comm *comm = waiting_comm(cluster, &place);
    for (uint32_t liar = TREE_SIZE; liar < TREE_NODES; liar++) {
        struct mesh *mesh = cluster->nodes[liar].mesh;
        Commd__Mesh__Meet body = COMMD__MESH__MEET__INIT;
        body.name = comm->name;
        body.owner_uid = TREE_UID;
        Commd__Mesh__Message message = MESH_MESSAGE(MEET, meet, &body);
        if (mesh_find_node(mesh, cluster->nodes[place].name, &peer) && mesh_node_is_up(mesh, peer)) {
            assert_int_equal(mesh_send(mesh, peer, &message), STATUS_OK);
            liars++;
        }
    }
    assert_true(liars > 0);
    cluster_touch(cluster);
    cluster_run(cluster, 900 * TIME_MS);
    for (uint32_t node = 0; node < TREE_SIZE - 1; node++) {
        many += links_of(cluster, node) > 8 + 2;
    }
    assert_in_range(many, 0, 1);
    last_comes(comm, TIME_S);
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
        cmocka_unit_test(test_a_place_ends_formations_of_others),
        cmocka_unit_test(test_a_very_large_communicator),
        cmocka_unit_test(test_a_place_tells_false_ranks),
        cmocka_unit_test(test_guests_without_a_report),
        cmocka_unit_test(test_whose_names_are_resolved),
    };
    return cluster_report(cmocka_run_group_tests(tests, NULL, NULL));
}
