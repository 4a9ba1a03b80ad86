#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "daemon/comm/meeting_choice.h"
#include "daemon/comm/meeting_relay_internal.h"
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
    const char *chosen = node == MESH_NODE_OWN ? at->name : mesh_node_name(at->mesh, node);
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

/* --- Messages of any kind --- */

#define GARBAGE_NODES 12u    /* that send it */
#define GARBAGE_MESSAGES 60u /* of each, to each node to which it is connected */

struct garbage {
    struct cluster *cluster;
    Commd__Mesh__CommTerms terms;
    Commd__Mesh__Announce report;
    Commd__Mesh__Failure failure;
    Commd__Mesh__Withdraw end;
    Commd__Mesh__MeetEntry entry[3], *entries[3];
    uint32_t ranks[3];
    uint64_t nonces[3];
    char *names[3];
    uint8_t bytes[64];
};

static uint32_t draw(const struct garbage *garbage, uint64_t below)
{
    return (uint32_t)random_below(&garbage->cluster->random, below);
}

static char *draw_text(const struct garbage *garbage, const char *common)
{
    static const char *const odd[] = {"", "nobody", "other", "two words", "\x01"};
    uint32_t which = draw(garbage, 12);
    return (char *)(uintptr_t)(which < 5   ? odd[which]
                               : which < 9 ? common
                                           : garbage->cluster->nodes[draw(garbage, NODES)].name);
}

static void draw_report(struct garbage *garbage)
{
    garbage->terms = (Commd__Mesh__CommTerms)COMMD__MESH__COMM_TERMS__INIT;
    garbage->report = (Commd__Mesh__Announce)COMMD__MESH__ANNOUNCE__INIT;
    garbage->failure = (Commd__Mesh__Failure)COMMD__MESH__FAILURE__INIT;
    garbage->end = (Commd__Mesh__Withdraw)COMMD__MESH__WITHDRAW__INIT;
    garbage->terms.size = draw(garbage, 3) > 0 ? SIZE : draw(garbage, UINT32_MAX);
    garbage->terms.owner_uid = draw(garbage, 4) > 0 ? UID : draw(garbage, UINT32_MAX);
    garbage->report.terms = draw(garbage, 8) > 0 ? &garbage->terms : NULL;
    garbage->report.nonce = draw(garbage, 4);
    garbage->report.tree = draw(garbage, 8) > 0;
    garbage->report.answer = draw(garbage, 8) == 0;
    garbage->report.n_ranks = draw(garbage, 4);
    garbage->report.ranks = garbage->ranks;
    garbage->failure.node = draw_text(garbage, "nobody");
    garbage->failure.n_ranks = draw(garbage, 4);
    garbage->failure.ranks = garbage->ranks;
    garbage->failure.rank_count = draw(garbage, UINT32_MAX);
    garbage->end.name = draw_text(garbage, "lied");
    garbage->end.owner_uid = UID;
    garbage->end.nonce = draw(garbage, 4);
    garbage->end.failed = draw(garbage, 2) == 0;
    garbage->end.status = draw(garbage, 40);
    garbage->end.text = draw_text(garbage, "lied");
    garbage->end.failure = draw(garbage, 2) == 0 ? &garbage->failure : NULL;
    for (unsigned i = 0; i < 3; i++) {
        garbage->ranks[i] = draw(garbage, SIZE + 4);
        garbage->nonces[i] = draw(garbage, 4);
        garbage->names[i] = draw_text(garbage, garbage->cluster->nodes[draw(garbage, SIZE)].name);
        garbage->entry[i] = (Commd__Mesh__MeetEntry)COMMD__MESH__MEET_ENTRY__INIT;
        garbage->entry[i].node = garbage->names[i];
        garbage->entry[i].report = draw(garbage, 3) > 0 ? &garbage->report : NULL;
        garbage->entry[i].end = draw(garbage, 3) == 0 ? &garbage->end : NULL;
        garbage->entries[i] = &garbage->entry[i];
    }
}

static enum status send_meet_many(struct garbage *garbage, struct mesh *mesh, uint32_t peer)
{
    Commd__Mesh__MeetMany body = COMMD__MESH__MEET_MANY__INIT;
    body.name = draw_text(garbage, "lied");
    body.owner_uid = UID;
    body.n_entries = draw(garbage, 4);
    body.entries = garbage->entries;
    Commd__Mesh__Message message = MESH_MESSAGE(MEET_MANY, meet_many, &body);
    return mesh_send(mesh, peer, &message);
}

/* The inner message is a roster that ends the communicator, or bytes. */
static enum status send_met_many(struct garbage *garbage, struct mesh *mesh, uint32_t peer)
{
    Commd__Mesh__Roster roster = COMMD__MESH__ROSTER__INIT;
    Commd__Mesh__MetMany body = COMMD__MESH__MET_MANY__INIT;
    uint8_t packed[1024];
    roster.name = draw_text(garbage, "lied");
    roster.owner_uid = UID;
    roster.first = draw(garbage, 2) == 0;
    roster.last = draw(garbage, 2) == 0;
    roster.ended_by = draw_text(garbage, "nobody");
    Commd__Mesh__Message inner = MESH_MESSAGE(ROSTER, roster, &roster);
    size_t size_bytes = commd__mesh__message__pack(&inner, packed);
    for (unsigned i = 0; i < sizeof garbage->bytes; i++) {
        garbage->bytes[i] = (uint8_t)draw(garbage, 256);
    }
    bool sound = draw(garbage, 2) == 0;
    body.name = draw_text(garbage, "lied");
    body.owner_uid = UID;
    body.n_nodes = draw(garbage, 4);
    body.nodes = garbage->names;
    body.n_nonces = draw(garbage, 4);
    body.nonces = garbage->nonces;
    body.complete = draw(garbage, 4) == 0;
    body.message.data = sound ? packed : garbage->bytes;
    body.message.len = sound ? size_bytes : draw(garbage, sizeof garbage->bytes + 1);
    Commd__Mesh__Message message = MESH_MESSAGE(MET_MANY, met_many, &body);
    return mesh_send(mesh, peer, &message);
}

/* Whether the place takes reports of other nodes from this one. */
static bool is_trusted_anywhere(struct cluster *cluster, uint32_t place, uint32_t node, const char *name)
{
    struct owned_name key;
    uint32_t at_place, groups = meeting_groups(SIZE, NODES);
    (void)owned_name_make(&key, UID, name);
    assert_true(mesh_find_node(cluster->nodes[place].mesh, cluster->nodes[node].name, &at_place));
    for (uint32_t group = 0; group < groups; group++) {
        if (meeting_trusts_relay(cluster->nodes[place].comms, &key, group, at_place)) {
            return true;
        }
    }
    return false;
}

/* Of nodes without ranks, to all whom they know. chosen: of relays and the place, too. */
static void send_garbage(struct cluster *cluster, bool chosen)
{
    struct garbage garbage = {.cluster = cluster};
    uint32_t place = choose(cluster, "lied", NULL), liars = 0, sent = 0;
    for (uint32_t liar = SIZE; liar < NODES && liars < GARBAGE_NODES; liar++) {
        struct mesh *mesh = cluster->nodes[liar].mesh;
        if (!chosen && (liar == place || is_trusted_anywhere(cluster, place, liar, "lied"))) {
            continue;
        }
        liars++;
        for (uint32_t i = 0; i < NODES * GARBAGE_MESSAGES; i++) {
            uint32_t peer = i % NODES;
            if (peer >= mesh_configured_count(mesh) || !mesh_node_is_up(mesh, peer)) {
                continue;
            }
            draw_report(&garbage);
            sent += (draw(&garbage, 2) == 0 ? send_meet_many(&garbage, mesh, peer)
                                            : send_met_many(&garbage, mesh, peer)) == STATUS_OK;
            if (peer == 0) {
                cluster_touch(cluster);
                cluster_run(cluster, TIME_MS);
            }
        }
    }
    assert_true(liars >= 3 && sent > 100);
}

/* Nodes that are no relays send all that the format allows. The communicator forms all the same. */
static void test_messages_of_any_kind(void **state)
{
    (void)state;
    struct cluster *cluster = cluster_of(580, 0);
    struct sim_comm *comm = comm_of(cluster, "lied");
    join_but_last(comm);
    send_garbage(cluster, false);
    form_in(comm, 4 * TIME_S);
    sim_comm_free(comm);
    cluster_free(cluster);
}

/* The chosen ones do so. The communicator may fail, and another one forms on the other nodes. */
static void test_messages_of_chosen_nodes(void **state)
{
    (void)state;
    struct cluster *cluster = cluster_of(590, 0);
    struct sim_comm *comm = comm_of(cluster, "lied");
    join_but_last(comm);
    send_garbage(cluster, true);
    cluster_run(cluster, TIME_S);
    sim_comm_free(comm);
    cluster_run(cluster, 30 * TIME_S);
    struct sim_comm *next = comm_of(cluster, "honest");
    join_but_last(next);
    form_in(next, 4 * TIME_S);
    sim_comm_free(next);
    cluster_free(cluster);
}

/* --- Budgets --- */

/* The node is a guest with `count` names, or no guest any more. */
static void visit(struct cluster *cluster, uint32_t node, uint32_t relay, uint32_t count, bool over)
{
    struct mesh *mesh = cluster->nodes[node].mesh;
    uint32_t peer, rank = 0;
    assert_true(mesh_find_node(mesh, cluster->nodes[relay].name, &peer));
    for (uint32_t i = 0; i < count; i++) {
        char name[32];
        Commd__Mesh__CommTerms terms = COMMD__MESH__COMM_TERMS__INIT;
        Commd__Mesh__Announce report = COMMD__MESH__ANNOUNCE__INIT;
        Commd__Mesh__Meet body = COMMD__MESH__MEET__INIT;
        (void)snprintf(name, sizeof name, "flood%u.%u", node, i);
        terms.size = SIZE;
        terms.owner_uid = report.owner_uid = body.owner_uid = UID;
        report.name = body.name = name;
        report.terms = &terms;
        report.nonce = 1 + i;
        report.tree = true;
        report.ranks = &rank;
        report.n_ranks = 1;
        body.relay = !over;
        body.over = over;
        body.report = over ? NULL : &report;
        Commd__Mesh__Message message = MESH_MESSAGE(MEET, meet, &body);
        assert_int_equal(mesh_send(mesh, peer, &message), STATUS_OK);
        if (i % 100 == 99) {
            cluster_touch(cluster);
            cluster_run(cluster, TIME_MS);
        }
    }
}

/* Some node beside the relay that is connected to it; UINT32_MAX: there is none from `from` on. */
static uint32_t neighbour(const struct cluster *cluster, uint32_t relay, uint32_t from)
{
    const struct mesh *mesh = cluster->nodes[relay].mesh;
    for (uint32_t node = from, peer; node < NODES; node++) {
        if (mesh_find_node(mesh, cluster->nodes[node].name, &peer) && mesh_node_is_up(mesh, peer)) {
            return node;
        }
    }
    return UINT32_MAX;
}

/* Two nodes are guests of one relay with more names than it keeps for a node. A communicator forms through it
 * meanwhile. Then they are no guests any more, and it keeps nothing. If all that it may keep is taken, guests
 * turn to places themselves. */
static void test_budgets_of_a_relay(void **state)
{
    (void)state;
    enum { NAMES = 1500 };
    struct cluster *cluster = cluster_of(600, 0);
    char name[16];
    uint32_t relay, full = 0;
    name_with_spare(cluster, true, name, sizeof name, &relay);
    const uint32_t first = neighbour(cluster, relay, 0), second = neighbour(cluster, relay, first + 1);
    struct comms *comms = cluster->nodes[relay].comms;
    struct sim_comm *comm = comm_of(cluster, name);
    join_but_last(comm);
    visit(cluster, first, relay, NAMES, false);
    visit(cluster, second, relay, NAMES, false);
    const struct relay_visitor *visitor, *next;
    HASH_ITER (hh, comms->relays->visitors, visitor, next) {
        assert_true(visitor->size_bytes <= MEETING_RELAY_NODE_MAX_BYTES);
        full += visitor->size_bytes > MEETING_RELAY_NODE_MAX_BYTES / 2;
    }
    assert_int_equal(full, 2);
    form_in(comm, TIME_S);
    sim_comm_free(comm);
    visit(cluster, first, relay, NAMES, true);
    visit(cluster, second, relay, NAMES, true);
    cluster_run(cluster, TIME_S);
    assert_int_equal(comms->relays->size_bytes, 0);
    comms->relays->size_bytes = MEETING_RELAY_MAX_BYTES; /* as if others had taken it */
    comm = comm_of(cluster, name);
    join_but_last(comm);
    form_in(comm, TIME_S);
    assert_null(comms->relays->by_key);
    sim_comm_free(comm);
    comms->relays->size_bytes -= MEETING_RELAY_MAX_BYTES;
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
        cmocka_unit_test(test_messages_of_any_kind),
        cmocka_unit_test(test_messages_of_chosen_nodes),
        cmocka_unit_test(test_budgets_of_a_relay),
        cmocka_unit_test(test_names_again),
    };
    return cluster_report(cmocka_run_group_tests(tests, NULL, NULL));
}
