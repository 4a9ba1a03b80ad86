#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "daemon/comm/comms_tree.h"
#include "daemon/comm/formation.h"
#include "daemon/comm/meeting_choice.h"
#include "tests/sim/large_cluster.h"
#include "tests/sim/sim_text.h"

/*
 * False rosters with all ranks (daemon/comm/roster.h), as often as each millisecond. They come from a node
 * without ranks that is no place and no relay, or from a place. The ranks are on the first nodes of the
 * cluster, one on each.
 */
#define SIZE_MAX_HERE 270u
#define UID 1000u
#define PACKED_MAX_BYTES 60000u

struct world {
    struct cluster *cluster;
    struct sim_comm *comm;
    uint32_t size;
    uint32_t place; /* without ranks */
    uint32_t liar;
    uint32_t told; /* the node that has told the liar its nonce */
    unsigned turn;
    uint64_t pause_ns; /* between two lies */
};

static uint32_t index_of(const struct cluster *cluster, const char *name)
{
    for (uint32_t i = 0; i < cluster->node_count; i++) {
        if (strcmp(cluster->nodes[i].name, name) == 0) {
            return i;
        }
    }
    fail();
    return 0;
}

/* The place, or the relay of that group: as all nodes choose while they see the same cluster. */
static uint32_t choose(const struct cluster *cluster, const char *name, bool relay, uint32_t group)
{
    struct owned_name key;
    uint32_t node = 0;
    const struct cluster_node *at = &cluster->nodes[0];
    (void)owned_name_make(&key, UID, name);
    const struct meeting_chooser chooser = {.comms = at->comms, .key = &key, .relay = relay, .group = group};
    assert_true(meeting_choose(&chooser, &node));
    return index_of(cluster, node == MESH_NODE_OWN ? at->name : mesh_node_name(at->mesh, node));
}

static bool is_relay(const struct world *world, const char *name, uint32_t node)
{
    uint32_t groups = meeting_groups(world->size, world->cluster->node_count);
    for (uint32_t group = 0; group < groups; group++) {
        if (choose(world->cluster, name, true, group) == node) {
            return true;
        }
    }
    return false;
}

/* Nobody has joined yet. The first place has no ranks. */
static struct world world_of(uint32_t which, uint32_t nodes, uint32_t size)
{
    struct world world = {.size = size, .pause_ns = TIME_MS};
    uint32_t node_of_rank[SIZE_MAX_HERE];
    char name[16];
    world.cluster = cluster_new(
        &(struct cluster_options){.seed = cluster_seed(which), .node_count = nodes, .conditions = calm});
    cluster_run(world.cluster, 5 * TIME_S);
    for (uint32_t i = 0; i < size; i++) {
        node_of_rank[i] = i;
    }
    unsigned turn = 0;
    do {
        (void)snprintf(name, sizeof name, "job%u", turn++);
        world.place = choose(world.cluster, name, false, 0);
    } while (world.place < size);
    for (world.liar = size; world.liar == world.place || is_relay(&world, name, world.liar); world.liar++) {
        assert_true(world.liar + 1 < nodes);
    }
    world.comm = sim_comm_new(world.cluster, name, size, node_of_rank);
    return world;
}

static void world_free(struct world *world)
{
    sim_comm_free(world->comm);
    cluster_free(world->cluster);
}

static void connect(const struct world *world, uint32_t node)
{
    struct mesh *mesh = world->cluster->nodes[node].mesh;
    uint32_t peer;
    for (uint32_t i = 0; i < world->size; i++) {
        assert_true(mesh_find_node(mesh, world->cluster->nodes[i].name, &peer));
        mesh_need(mesh, peer, MESH_NEED_CALL);
    }
    cluster_touch(world->cluster);
    cluster_run(world->cluster, 2 * TIME_S);
}

/* --- False rosters --- */

struct roster {
    Commd__Mesh__Roster body;
    Commd__Mesh__RosterEntry entries[SIZE_MAX_HERE], *list[SIZE_MAX_HERE];
    Commd__Mesh__Announce reports[SIZE_MAX_HERE];
    uint32_t ranks[SIZE_MAX_HERE];
};

/* Every rank is on its node; all nonces are wrong. */
static void roster_make(const struct world *world, struct roster *out)
{
    commd__mesh__roster__init(&out->body);
    for (uint32_t i = 0; i < world->size; i++) {
        out->ranks[i] = i;
        commd__mesh__announce__init(&out->reports[i]);
        commd__mesh__roster_entry__init(&out->entries[i]);
        out->reports[i].n_ranks = 1;
        out->reports[i].ranks = &out->ranks[i];
        out->reports[i].nonce = 1 + i;
        out->reports[i].revision = 1;
        out->reports[i].tree = true;
        out->entries[i].node = world->cluster->nodes[i].name;
        out->entries[i].report = &out->reports[i];
        out->list[i] = &out->entries[i];
    }
    out->body.name = world->comm->name;
    out->body.owner_uid = UID;
    out->body.n_entries = world->size;
    out->body.entries = out->list;
    out->body.first = out->body.last = out->body.complete = true;
}

static const struct communicator *comm_of(const struct world *world, uint32_t node)
{
    return communicator_find(world->cluster->nodes[node].comms, UID, world->comm->name);
}

static void set_nonce(const struct world *world, struct roster *roster, uint32_t node)
{
    const struct communicator *comm = comm_of(world, node);
    if (comm != NULL && comm->nonce != 0) {
        roster->reports[node].nonce = comm->nonce;
        roster->reports[node].revision = comm->revision;
    }
}

static uint32_t say_to_all(const struct world *world, uint32_t liar, const Commd__Mesh__Message *message)
{
    struct mesh *mesh = world->cluster->nodes[liar].mesh;
    uint32_t sent = 0;
    for (uint32_t peer = 0; peer < mesh_node_count(mesh); peer++) {
        sent += mesh_node_is_up(mesh, peer) && mesh_send(mesh, peer, message) == STATUS_OK;
    }
    cluster_touch(world->cluster);
    return sent;
}

/* In turns: the liar has all ranks; it has rank 0, and others are not there; every tenth one has the right
 * names and wrong nonces. A part without an end follows at times. */
static void lie(struct world *world)
{
    struct roster *roster = malloc(sizeof *roster);
    assert_non_null(roster);
    roster_make(world, roster);
    Commd__Mesh__Message message = MESH_MESSAGE(ROSTER, roster, &roster->body);
    if (world->turn % 10 != 0) {
        roster->body.n_entries = 1;
        roster->entries[0].node = world->cluster->nodes[world->liar].name;
        roster->reports[0].n_ranks = world->turn % 2 == 0 ? world->size : 1;
        roster->reports[0].n_ranks = roster->reports[0].n_ranks < 64 ? roster->reports[0].n_ranks : 64;
        roster->reports[0].ranks = roster->ranks;
        roster->body.last = world->turn % 7 != 0;
    }
    world->turn++;
    (void)say_to_all(world, world->liar, &message);
    free(roster);
}

/* Runs for that long, or until the communicator has formed. */
static void run_lies(struct world *world, uint64_t span_ns, void (*tell)(struct world *world))
{
    for (uint64_t ran_ns = 0; ran_ns < span_ns && !sim_comm_formed(world->comm); ran_ns += world->pause_ns) {
        tell(world);
        cluster_run(world->cluster, world->pause_ns);
    }
}

static void all_but_the_last_come(const struct world *world)
{
    for (uint32_t rank = 0; rank < world->size - 1; rank++) {
        sim_comm_join(world->comm, rank, 0, NULL);
    }
}

/* Ends the world. */
static void last_comes(struct world *world, uint64_t span_ns, void (*tell)(struct world *world))
{
    uint64_t before_ns = world->cluster->now_ns;
    sim_comm_join(world->comm, world->size - 1, 0, NULL);
    run_lies(world, span_ns, tell);
    assert_true(sim_comm_formed(world->comm));
    for (uint32_t rank = 0; rank < world->size; rank++) {
        assert_text(verdict_of(world->comm, rank), STATUS_OK, "", "");
    }
    print_message("# %u ranks: formed after %llu ms\n", world->size,
                  (unsigned long long)((world->cluster->now_ns - before_ns) / TIME_MS));
    sim_comm_run(world->comm, &sum);
    world_free(world);
}

static void run_flood(uint32_t which, uint32_t nodes, uint32_t size)
{
    struct world world = world_of(which, nodes, size);
    connect(&world, world.liar);
    run_lies(&world, 20 * TIME_MS, lie);
    all_but_the_last_come(&world);
    run_lies(&world, 200 * TIME_MS, lie);
    last_comes(&world, TIME_S, lie);
}

static void test_a_node_without_ranks_floods(void **state)
{
    (void)state;
    run_flood(850, 64, 40);
    run_flood(851, 110, 72);
    run_flood(852, 300, 270);
}

/* --- Ranks of others --- */

/* It says itself that it has a rank that another node has. Nobody but that node can refuse it. */
static void announce_ranks_of_others(struct world *world)
{
    const struct communicator *comm = comm_of(world, 0);
    uint32_t rank = world->turn % world->size;
    Commd__Mesh__CommTerms terms;
    Commd__Mesh__Announce body = COMMD__MESH__ANNOUNCE__INIT;
    if (comm == NULL) {
        return;
    }
    comms_terms_to_wire(comm, &terms);
    body.name = world->comm->name;
    body.owner_uid = UID;
    body.terms = &terms;
    body.n_ranks = 1;
    body.ranks = &rank;
    body.nonce = 7;
    body.revision = 1 + world->turn;
    body.tree = true;
    Commd__Mesh__Message message = MESH_MESSAGE(ANNOUNCE, announce, &body);
    world->turn++;
    (void)say_to_all(world, world->liar, &message);
}

static void run_ranks_of_others(uint32_t which, uint32_t nodes, uint32_t size)
{
    struct world world = world_of(which, nodes, size);
    connect(&world, world.liar);
    all_but_the_last_come(&world);
    cluster_run(world.cluster, 20 * TIME_MS); /* their ranks are announced */
    run_lies(&world, 100 * TIME_MS, announce_ranks_of_others);
    last_comes(&world, TIME_S, announce_ranks_of_others);
}

static void test_a_node_announces_the_ranks_of_others(void **state)
{
    (void)state;
    run_ranks_of_others(858, 64, 40);
    run_ranks_of_others(859, 110, 72);
}

/* --- A node that was told a nonce --- */

static void say_meet(const struct world *world)
{
    struct mesh *mesh = world->cluster->nodes[world->liar].mesh;
    Commd__Mesh__Meet body = COMMD__MESH__MEET__INIT;
    uint32_t peer;
    body.name = world->comm->name;
    body.owner_uid = UID;
    Commd__Mesh__Message message = MESH_MESSAGE(MEET, meet, &body);
    assert_true(mesh_find_node(mesh, world->cluster->nodes[world->place].name, &peer));
    mesh_need(mesh, peer, MESH_NEED_CALL);
    cluster_touch(world->cluster);
    cluster_run(world->cluster, 200 * TIME_MS);
    assert_int_equal(mesh_send(mesh, peer, &message), STATUS_OK);
    cluster_touch(world->cluster);
    cluster_run(world->cluster, 200 * TIME_MS);
}

/* A node, not the one of rank 0, that needs the connection to the liar: the place has told it of that. */
static bool find_told(struct world *world)
{
    for (world->told = 1; world->told < world->size - 1; world->told++) {
        const struct cluster_node *at = &world->cluster->nodes[world->told];
        const struct communicator *comm = comm_of(world, world->told);
        uint32_t peer;
        assert_true(mesh_find_node(at->mesh, world->cluster->nodes[world->liar].name, &peer));
        const struct comms_claim *claim = comm != NULL ? comms_formation_claim(comm, peer) : NULL;
        if (claim != NULL && claim->needed) {
            return true;
        }
    }
    return false;
}

/* The liar takes the place of that node's parent. */
static void parent_lies(struct world *world)
{
    struct roster *roster = malloc(sizeof *roster);
    assert_non_null(roster);
    roster_make(world, roster);
    set_nonce(world, roster, world->told);
    roster->entries[comms_tree_parent(world->told)].node = world->cluster->nodes[world->liar].name;
    Commd__Mesh__Message message = MESH_MESSAGE(ROSTER, roster, &roster->body);
    world->turn++;
    (void)say_to_all(world, world->liar, &message);
    free(roster);
}

/* It says Meet without ranks, so the place tells it of one node, and that node announces its ranks to it. */
static void test_a_node_that_was_met_floods(void **state)
{
    (void)state;
    struct world world = world_of(855, 64, 40);
    connect(&world, world.liar);
    for (uint32_t rank = world.size - 1; rank > 0; rank--) {
        sim_comm_join(world.comm, rank - 1, 0, NULL);
        cluster_run(world.cluster, rank == world.size - 1 ? 100 * TIME_MS : 0);
    }
    cluster_run(world.cluster, 100 * TIME_MS);
    say_meet(&world);
    assert_true(find_told(&world));
    run_lies(&world, 50 * TIME_MS, parent_lies);
    last_comes(&world, TIME_S, parent_lies);
}

/* --- Places --- */

/* The nonces are right, but for one node's. So other nodes take part, and the formation does not end. */
static void place_lies(struct world *world)
{
    static uint8_t packed[PACKED_MAX_BYTES];
    struct roster *roster = malloc(sizeof *roster);
    assert_non_null(roster);
    roster_make(world, roster);
    for (uint32_t i = 0; i < world->size; i++) {
        set_nonce(world, roster, i);
    }
    roster->reports[5 + world->turn % 30].nonce ^= 1;
    world->turn++;
    Commd__Mesh__Message message = MESH_MESSAGE(ROSTER, roster, &roster->body);
    (void)say_to_all(world, world->place, &message);
    char *root = world->cluster->nodes[0].name;
    Commd__Mesh__MetMany many = COMMD__MESH__MET_MANY__INIT;
    many.name = world->comm->name;
    many.owner_uid = UID;
    many.n_nodes = 1;
    many.nodes = &root;
    many.message.len = commd__mesh__message__get_packed_size(&message);
    many.message.data = packed;
    assert_true(many.message.len <= sizeof packed);
    commd__mesh__message__pack(&message, packed);
    Commd__Mesh__Message handed = MESH_MESSAGE(MET_MANY, met_many, &many);
    (void)say_to_all(world, world->place, &handed);
    free(roster);
}

/* The place floods, and does nothing else. */
static void run_place(uint32_t which, uint32_t nodes, uint32_t size, uint64_t span_ns)
{
    struct world world = world_of(which, nodes, size);
    world.pause_ns = 200 * TIME_US;
    all_but_the_last_come(&world);
    cluster_run(world.cluster, 200 * TIME_MS);
    mesh_set_handler(world.cluster->nodes[world.place].mesh, MESH_ROOM_COMM, &(struct mesh_handler){0});
    run_lies(&world, 50 * TIME_MS, place_lies);
    last_comes(&world, span_ns, place_lies);
}

/* Nodes turn to a further place after three seconds. */
static void test_a_place_floods(void **state)
{
    (void)state;
    run_place(860, 64, 40, 4 * TIME_S);
    run_place(861, 110, 72, 4 * TIME_S);
}

/* The relay of the node of rank 0. It knows the nonces of its group. */
static void relay_lies(struct world *world)
{
    struct roster *roster = malloc(sizeof *roster);
    assert_non_null(roster);
    roster_make(world, roster);
    uint32_t groups = meeting_groups(world->size, world->cluster->node_count);
    uint32_t group = meeting_group_of(world->cluster->nodes[0].name, groups);
    for (uint32_t i = 0; i < world->size; i++) {
        if (meeting_group_of(world->cluster->nodes[i].name, groups) == group) {
            set_nonce(world, roster, i);
        }
    }
    world->turn++;
    Commd__Mesh__Message message = MESH_MESSAGE(ROSTER, roster, &roster->body);
    (void)say_to_all(world, world->liar, &message);
    free(roster);
}

static void test_a_relay_floods(void **state)
{
    (void)state;
    struct world world = world_of(865, 110, 72);
    uint32_t group =
        meeting_group_of(world.cluster->nodes[0].name, meeting_groups(world.size, world.cluster->node_count));
    unsigned turn = 100;
    char name[16];
    do {
        (void)snprintf(name, sizeof name, "job%u", turn++);
        world.liar = choose(world.cluster, name, true, group);
    } while (world.liar < world.size);
    sim_comm_free(world.comm);
    uint32_t node_of_rank[SIZE_MAX_HERE];
    for (uint32_t i = 0; i < world.size; i++) {
        node_of_rank[i] = i;
    }
    world.comm = sim_comm_new(world.cluster, name, world.size, node_of_rank);
    all_but_the_last_come(&world);
    cluster_run(world.cluster, 200 * TIME_MS);
    run_lies(&world, 50 * TIME_MS, relay_lies);
    last_comes(&world, 4 * TIME_S, relay_lies);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_node_without_ranks_floods),
        cmocka_unit_test(test_a_node_announces_the_ranks_of_others),
        cmocka_unit_test(test_a_node_that_was_met_floods),
        cmocka_unit_test(test_a_place_floods),
        cmocka_unit_test(test_a_relay_floods),
    };
    return cluster_report(cmocka_run_group_tests(tests, NULL, NULL));
}
