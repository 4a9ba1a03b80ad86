#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "daemon/comm/meeting_choice.h"
#include "tests/sim/large_cluster.h"
#include "tests/sim/sim_text.h"

/*
 * Relays (daemon/comm/meeting.h): nodes of large communicators report through them to the place. The ranks
 * are on the first nodes of the cluster, so some relays and places have none.
 */
#define NODES 110u
#define SIZE 72u
#define UID 1000u

static struct cluster *cluster_of(uint32_t which, uint32_t old_every)
{
    struct cluster *cluster = cluster_new(&(struct cluster_options){
        .seed = cluster_seed(which), .node_count = NODES, .conditions = calm, .old_every = old_every});
    cluster_connect(cluster);
    return cluster;
}

static struct sim_comm *comm_of(struct cluster *cluster, const char *name)
{
    uint32_t node_of_rank[SIZE];
    for (uint32_t i = 0; i < SIZE; i++) {
        node_of_rank[i] = SIZE - 1 - i;
    }
    return sim_comm_new(cluster, name, SIZE, node_of_rank);
}

/* What all nodes choose while they see the same cluster: the first relay of a node, or the place. */
static uint32_t choose(const struct cluster *cluster, const char *name, const char *guest)
{
    struct owned_name key;
    uint32_t node = 0;
    (void)owned_name_make(&key, UID, name);
    const struct cluster_node *at = &cluster->nodes[0];
    const struct meeting_chooser chooser = {
        .comms = at->comms,
        .key = &key,
        .relay = guest != NULL,
        .group = guest != NULL ? meeting_group_of(guest, meeting_groups(SIZE, NODES)) : 0};
    assert_true(meeting_choose(&chooser, &node));
    const char *chosen = node == COMMS_NODE_OWN ? at->name : mesh_node_name(at->mesh, node);
    for (uint32_t i = 0; i < NODES; i++) {
        if (strcmp(cluster->nodes[i].name, chosen) == 0) {
            return i;
        }
    }
    fail();
    return 0;
}

/* A name whose place, or the relay of some guest, has no ranks. *node gets it. */
static void name_with_spare(const struct cluster *cluster, bool relay, char *name, size_t size,
                            uint32_t *node)
{
    for (unsigned i = 0;; i++) {
        (void)snprintf(name, size, "job%u", i);
        for (uint32_t guest = 0; guest < (relay ? SIZE : 1u); guest++) {
            *node = choose(cluster, name, relay ? cluster->nodes[guest].name : NULL);
            if (*node >= SIZE) {
                return;
            }
        }
    }
}

static void join_but_last(struct sim_comm *comm)
{
    for (uint32_t rank = 0; rank < SIZE - 1; rank++) {
        sim_comm_join(comm, rank, 0, NULL);
    }
}

/* The last rank comes, and it forms. */
static void form_in(struct sim_comm *comm, uint64_t span_ns)
{
    sim_comm_join(comm, SIZE - 1, 0, NULL);
    assert_true(cluster_run_until(comm->cluster, sim_comm_formed, comm, span_ns));
    for (uint32_t rank = 0; rank < SIZE; rank++) {
        assert_int_equal(comm->ranks[rank].formed_result.status, STATUS_OK);
    }
    sim_comm_run(comm, &sum);
}

/* No node gets many connections. */
static void test_connections(void **state)
{
    (void)state;
    struct cluster *cluster = cluster_of(500, 0);
    for (unsigned turn = 0; turn < 4; turn++) {
        char name[16];
        uint32_t most = 0;
        (void)snprintf(name, sizeof name, "few%u", turn);
        struct sim_comm *comm = comm_of(cluster, name);
        sim_comm_form(comm, NULL, TIME_S);
        for (uint32_t node = 0; node < NODES; node++) {
            uint32_t links = links_of(cluster, node);
            most = links > most ? links : most;
        }
        /* Its neighbours, its parent and children, its guests or their relays, and its relay. */
        assert_in_range(most, 10, 8 + 9 + 3 * 9 + 1);
        sim_comm_free(comm);
        cluster_run(cluster, 30 * TIME_S);
    }
    cluster_free(cluster);
}

/* A relay or a place without ranks is lost at any time before, during and after its work: it forms all the
 * same. */
static void run_lost(uint32_t which, bool relay, bool host, uint64_t after_ns)
{
    struct cluster *cluster = cluster_of(which, 0);
    char name[16];
    uint32_t node;
    name_with_spare(cluster, relay, name, sizeof name, &node);
    struct sim_comm *comm = comm_of(cluster, name);
    join_but_last(comm);
    cluster_run(cluster, after_ns);
    (host ? cluster_kill : cluster_crash)(cluster, node);
    cluster_bury(cluster, node);
    bool noticed = which % 2 == 1;
    cluster_run(cluster, noticed ? 1700 * TIME_MS : 5 * TIME_MS);
    form_in(comm, host ? 6 * TIME_S : noticed ? 200 * TIME_MS : 1500 * TIME_MS);
    sim_comm_free(comm);
    cluster_free(cluster);
}

static void test_a_relay_is_lost(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < 8; i++) {
        run_lost(510 + i, true, i % 3 == 0, i * TIME_MS * 2);
    }
    run_lost(519, true, false, 1050 * TIME_MS);
}

static void test_a_place_is_lost(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < 8; i++) {
        run_lost(520 + i, false, i % 3 == 0, i * TIME_MS * 2);
    }
    run_lost(529, false, false, 1050 * TIME_MS);
}

/* A relay that takes all and says nothing: its guests turn to another one, and the texts name both. */
static void test_a_relay_that_is_silent(void **state)
{
    (void)state;
    struct cluster *cluster = cluster_of(530, 0);
    char name[16];
    uint32_t node;
    name_with_spare(cluster, true, name, sizeof name, &node);
    mesh_set_handler(cluster->nodes[node].mesh, MESH_ROOM_COMM, &(struct mesh_handler){0});
    struct sim_comm *comm = comm_of(cluster, name);
    join_but_last(comm);
    form_in(comm, 4 * TIME_S);
    sim_comm_free(comm);
    comm = comm_of(cluster, name);
    for (uint32_t rank = 0; rank < SIZE - 1; rank++) {
        sim_comm_join(comm, rank, 0, &(struct sim_options){.form_timeout_ms = 2000 + rank});
    }
    cluster_run(cluster, 5 * TIME_S);
    uint32_t named = 0;
    for (uint32_t rank = 0; rank < SIZE - 1; rank++) {
        assert_int_equal(verdict_of(comm, rank)->status, STATUS_TIMED_OUT);
        named += strstr(verdict_of(comm, rank)->text, cluster->nodes[node].name) != NULL;
    }
    assert_true(named > 0);
    sim_comm_free(comm);
    cluster_free(cluster);
}

/* The place is cut off from some nodes, among them relays, and then heals. */
static void test_a_partition(void **state)
{
    (void)state;
    for (uint32_t turn = 0; turn < 4; turn++) {
        struct cluster *cluster = cluster_of(540 + turn, 0);
        uint32_t place = choose(cluster, "cut", NULL);
        struct sim_comm *comm = comm_of(cluster, "cut");
        for (uint32_t node = turn % 2; node < NODES; node += 2) {
            if (node != place) {
                cluster_cut(cluster, node, place, true);
                cluster_cut(cluster, place, node, turn < 2);
            }
        }
        join_but_last(comm);
        cluster_run(cluster, 2 * TIME_S);
        for (uint32_t node = 0; node < NODES; node++) {
            if (node != place) {
                cluster_cut(cluster, node, place, false);
                cluster_cut(cluster, place, node, false);
            }
        }
        form_in(comm, 7 * TIME_S);
        sim_comm_free(comm);
        cluster_free(cluster);
    }
}

/* Some nodes, or all, are of an older version. */
static void test_older_nodes(void **state)
{
    (void)state;
    for (uint32_t every = 1; every < 6; every += 2) {
        struct cluster *cluster = cluster_of(550 + every, every);
        for (unsigned turn = 0; turn < 3; turn++) {
            char name[16];
            (void)snprintf(name, sizeof name, "old%u", turn);
            struct sim_comm *comm = comm_of(cluster, name);
            join_but_last(comm);
            cluster_run(cluster, 50 * TIME_MS);
            form_in(comm, TIME_S);
            sim_comm_free(comm);
        }
        cluster_free(cluster);
    }
}

/* A node that is no relay of a group reports false ranks for all of its guests, again and again. */
static void test_a_node_that_was_not_chosen(void **state)
{
    (void)state;
    struct cluster *cluster = cluster_of(560, 0);
    struct owned_name key;
    uint32_t place = choose(cluster, "lied", NULL), liars = 0;
    (void)owned_name_make(&key, UID, "lied");
    struct sim_comm *comm = comm_of(cluster, "lied");
    join_but_last(comm);
    cluster_run(cluster, 100 * TIME_MS);
    for (uint32_t liar = 0; liar < NODES; liar++) {
        struct mesh *mesh = cluster->nodes[liar].mesh;
        uint32_t peer, at_place, groups = meeting_groups(SIZE, NODES);
        if (liar == place || !mesh_find_node(mesh, cluster->nodes[place].name, &peer) ||
            !mesh_node_is_up(mesh, peer)) {
            continue;
        }
        assert_true(mesh_find_node(cluster->nodes[place].mesh, cluster->nodes[liar].name, &at_place));
        for (uint32_t guest = 0; guest < SIZE; guest++) {
            const char *name = cluster->nodes[guest].name;
            if (guest == liar || meeting_trusts_relay(cluster->nodes[place].comms, &key,
                                                      meeting_group_of(name, groups), at_place)) {
                continue;
            }
            Commd__Mesh__CommTerms terms = COMMD__MESH__COMM_TERMS__INIT;
            Commd__Mesh__Announce report = COMMD__MESH__ANNOUNCE__INIT;
            Commd__Mesh__MeetEntry entry = COMMD__MESH__MEET_ENTRY__INIT, *entries = &entry;
            Commd__Mesh__MeetMany body = COMMD__MESH__MEET_MANY__INIT;
            terms.size = SIZE;
            terms.owner_uid = UID;
            report.terms = &terms;
            report.nonce = 1 + guest;
            report.tree = true;
            report.ranks = &guest;
            report.n_ranks = 1;
            entry.node = (char *)(uintptr_t)name;
            entry.report = &report;
            body.name = "lied";
            body.owner_uid = UID;
            body.entries = &entries;
            body.n_entries = 1;
            Commd__Mesh__Message message = MESH_MESSAGE(MEET_MANY, meet_many, &body);
            assert_int_equal(mesh_send(mesh, peer, &message), STATUS_OK);
            liars++;
        }
    }
    assert_true(liars > 0);
    cluster_touch(cluster);
    cluster_run(cluster, 100 * TIME_MS);
    form_in(comm, TIME_S);
    sim_comm_free(comm);
    cluster_free(cluster);
}

/* The same name again and again, while others of its kind form: also right after the last one. */
static void test_names_again(void **state)
{
    (void)state;
    struct cluster *cluster = cluster_of(570, 0);
    for (uint32_t round = 0; round < 6; round++) {
        uint32_t node_of_rank[SIZE];
        for (uint32_t i = 0; i < SIZE; i++) {
            node_of_rank[i] = (i * 7 + round * 13) % NODES;
        }
        struct sim_comm *first = sim_comm_new(cluster, "again", SIZE, node_of_rank);
        struct sim_comm *other = comm_of(cluster, "other");
        sim_comm_join_all(first, NULL);
        sim_comm_join_all(other, NULL);
        assert_true(cluster_run_until(cluster, sim_comm_formed, first, 4 * TIME_S));
        assert_true(cluster_run_until(cluster, sim_comm_formed, other, 4 * TIME_S));
        sim_comm_run(first, &sum);
        sim_comm_run(other, &sum);
        sim_comm_free(first);
        sim_comm_free(other);
        cluster_run(cluster, random_below(&cluster->random, 100) * TIME_MS);
    }
    cluster_free(cluster);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_connections),
        cmocka_unit_test(test_a_relay_is_lost),
        cmocka_unit_test(test_a_place_is_lost),
        cmocka_unit_test(test_a_relay_that_is_silent),
        cmocka_unit_test(test_a_partition),
        cmocka_unit_test(test_older_nodes),
        cmocka_unit_test(test_a_node_that_was_not_chosen),
        cmocka_unit_test(test_names_again),
    };
    return cluster_report(cmocka_run_group_tests(tests, NULL, NULL));
}
