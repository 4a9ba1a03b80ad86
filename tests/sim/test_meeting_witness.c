#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "daemon/comm/doubt.h"
#include "daemon/comm/meeting_choice.h"
#include "daemon/comm/witness.h"
#include "tests/sim/large_cluster.h"
#include "tests/sim/sim_text.h"

/*
 * Places and relays that lie to very large communicators, and witnesses (daemon/comm/witness.h). The ranks
 * are on the first nodes of the cluster. So some places, relays and witnesses have none.
 */
#define NODES 300u
#define SIZE 270u /* more than COMMS_DOUBT_NODES_MAX */
#define FEW_NODES 110u
#define FEW 72u
#define UID 1000u

struct world {
    struct cluster *cluster;
    struct sim_comm *comm;
    uint32_t place, relay; /* without ranks; relay: of the group of `guest` */
    uint32_t guest;
    uint32_t named; /* the node of which others say that it ended */
};

static uint32_t index_of(const struct cluster *cluster, const struct cluster_node *at, uint32_t node)
{
    const char *name = node == MESH_NODE_OWN ? at->name : mesh_node_name(at->mesh, node);
    for (uint32_t i = 0; i < cluster->node_count; i++) {
        if (strcmp(cluster->nodes[i].name, name) == 0) {
            return i;
        }
    }
    fail();
    return 0;
}

/* The place, or the relay of that group: as all nodes choose while they see the same cluster. */
static uint32_t choose(const struct cluster *cluster, const char *name, const uint32_t *group)
{
    struct owned_name key;
    uint32_t node = 0;
    const struct cluster_node *at = &cluster->nodes[0];
    (void)owned_name_make(&key, UID, name);
    const struct meeting_chooser chooser = {
        .comms = at->comms, .key = &key, .relay = group != NULL, .group = group != NULL ? *group : 0};
    assert_true(meeting_choose(&chooser, &node));
    return index_of(cluster, at, node);
}

/* The relay of that node's group. */
static uint32_t relay_of(const struct cluster *cluster, const char *name, uint32_t node, uint32_t size)
{
    uint32_t group = meeting_group_of(cluster->nodes[node].name, meeting_groups(size, cluster->node_count));
    return choose(cluster, name, &group);
}

/* A name with a place and a relay that have no ranks. All ranks but the last have come; the relay is not
 * that one's. */
static struct world world_of(uint32_t which, uint32_t nodes, uint32_t size, uint32_t old_every)
{
    struct world world = {.named = 7};
    uint32_t node_of_rank[SIZE];
    char name[16];
    world.cluster = cluster_new(&(struct cluster_options){
        .seed = cluster_seed(which), .node_count = nodes, .conditions = calm, .old_every = old_every});
    cluster_run(world.cluster, 5 * TIME_S);
    for (uint32_t i = 0; i < size; i++) {
        node_of_rank[i] = i;
    }
    for (unsigned turn = 0; world.comm == NULL; turn++) {
        (void)snprintf(name, sizeof name, "job%u", turn);
        world.place = choose(world.cluster, name, NULL);
        for (world.guest = 0; world.guest < size && world.place >= size; world.guest++) {
            world.relay = relay_of(world.cluster, name, world.guest, size);
            if (world.relay >= size && world.relay != world.place &&
                world.relay != relay_of(world.cluster, name, size - 1, size)) {
                world.comm = sim_comm_new(world.cluster, name, size, node_of_rank);
                break;
            }
        }
    }
    for (uint32_t rank = 0; rank < size - 1; rank++) {
        sim_comm_join(world.comm, rank, 0, NULL);
    }
    cluster_run(world.cluster, 300 * TIME_MS);
    return world;
}

static void world_free(struct world *world)
{
    sim_comm_free(world->comm);
    cluster_free(world->cluster);
}

static void last_comes(struct world *world, uint64_t span_ns)
{
    sim_comm_join(world->comm, world->comm->size - 1, 0, NULL);
    assert_true(cluster_run_until(world->cluster, sim_comm_formed, world->comm, span_ns));
    for (uint32_t rank = 0; rank < world->comm->size; rank++) {
        assert_text(verdict_of(world->comm, rank), STATUS_OK, "", "");
    }
}

static struct mesh *mesh_of(const struct world *world, uint32_t node)
{
    return world->cluster->nodes[node].mesh;
}

static char *name_of(const struct world *world, uint32_t node)
{
    return world->cluster->nodes[node].name;
}

static uint32_t say_to_all(const struct world *world, uint32_t liar, const Commd__Mesh__Message *message)
{
    struct mesh *mesh = mesh_of(world, liar);
    uint32_t sent = 0;
    for (uint32_t peer = 0; peer < mesh_node_count(mesh); peer++) {
        sent += mesh_node_is_up(mesh, peer) && mesh_send(mesh, peer, message) == STATUS_OK;
    }
    cluster_touch(world->cluster);
    return sent;
}

static void end_of(const struct world *world, enum status status, Commd__Mesh__Withdraw *out)
{
    commd__mesh__withdraw__init(out);
    out->name = world->comm->name;
    out->owner_uid = UID;
    out->status = status;
    out->text = "a lie";
    out->failed = true;
}

/* Nobody has asked that node. */
static void answer(const struct world *world, uint32_t liar, bool denies)
{
    Commd__Mesh__Withdraw end;
    Commd__Mesh__EndAnswer body = COMMD__MESH__END_ANSWER__INIT;
    end_of(world, STATUS_RANK_LOST, &end);
    body.name = world->comm->name;
    body.owner_uid = UID;
    body.node = name_of(world, world->named);
    body.denies = denies;
    body.end = denies ? NULL : &end;
    Commd__Mesh__Message message = MESH_MESSAGE(END_ANSWER, end_answer, &body);
    assert_true(say_to_all(world, liar, &message) > 0);
}

/* The liar says that the named node has ended the communicator: as a relay to its guests, and as a place to
 * relays. */
static void lie(const struct world *world, uint32_t liar, enum status status)
{
    Commd__Mesh__Withdraw end;
    Commd__Mesh__Roster body = COMMD__MESH__ROSTER__INIT;
    Commd__Mesh__MetMany many = COMMD__MESH__MET_MANY__INIT;
    char *names[SIZE];
    uint8_t packed[1024];
    end_of(world, status, &end);
    body.name = many.name = world->comm->name;
    body.owner_uid = many.owner_uid = UID;
    body.ended_by = name_of(world, world->named);
    body.end = &end;
    Commd__Mesh__Message message = MESH_MESSAGE(ROSTER, roster, &body);
    many.message.len = commd__mesh__message__pack(&message, packed);
    many.message.data = packed;
    for (uint32_t i = 0; i < world->comm->size; i++) {
        names[many.n_nodes++] = name_of(world, i);
    }
    many.nodes = names;
    Commd__Mesh__Message handed = MESH_MESSAGE(MET_MANY, met_many, &many);
    assert_true(say_to_all(world, liar, &message) > 0);
    assert_true(say_to_all(world, liar, &handed) > 0);
    answer(world, liar, false); /* as if it were the witness */
}

/* A relay tells the place that its guest has ended. The place, which is honest, tells all. */
static void lie_to_place(const struct world *world, uint32_t guest)
{
    Commd__Mesh__Withdraw end;
    Commd__Mesh__MeetMany body = COMMD__MESH__MEET_MANY__INIT;
    Commd__Mesh__MeetEntry entry = COMMD__MESH__MEET_ENTRY__INIT, *entries = &entry;
    end_of(world, STATUS_RANK_LOST, &end);
    entry.node = name_of(world, guest);
    entry.end = &end;
    body.name = world->comm->name;
    body.owner_uid = UID;
    body.entries = &entries;
    body.n_entries = 1;
    Commd__Mesh__Message message = MESH_MESSAGE(MEET_MANY, meet_many, &body);
    assert_true(say_to_all(world, world->relay, &message) > 0);
}

static uint32_t told_of(const struct sim_comm *comm, const char *text)
{
    uint32_t count = 0;
    for (uint32_t rank = 0; rank < comm->size; rank++) {
        count += comm->ranks[rank].formed && strstr(comm->ranks[rank].formed_result.text, text) != NULL;
    }
    return count;
}

/* --- Liars --- */

static void run_lie(uint32_t which, bool by_relay, uint32_t nodes, uint32_t size, enum status status)
{
    struct world world = world_of(which, nodes, size, 0);
    uint32_t before = links_of(world.cluster, world.named);
    for (unsigned turn = 0; turn < 3; turn++) {
        lie(&world, by_relay ? world.relay : world.place, status);
        cluster_run(world.cluster, 500 * TIME_MS);
        assert_int_equal(told_of(world.comm, "a lie"), 0);
    }
    if (size > COMMS_DOUBT_NODES_MAX) {
        assert_in_range(links_of(world.cluster, world.named) - before, 0, 2 * meeting_groups(size, nodes));
    }
    last_comes(&world, 2 * TIME_S);
    sim_comm_run(world.comm, &sum);
    world_free(&world);
}

static void test_a_place_lies(void **state)
{
    (void)state;
    run_lie(700, false, NODES, SIZE, STATUS_RANK_LOST);
    run_lie(701, false, NODES, SIZE, STATUS_NODE_LOST);
    run_lie(702, false, FEW_NODES, FEW, STATUS_RANK_LOST);
}

static void test_a_relay_lies(void **state)
{
    (void)state;
    run_lie(710, true, NODES, SIZE, STATUS_RANK_LOST);
    run_lie(711, true, NODES, SIZE, STATUS_NODE_LOST);
    run_lie(712, true, FEW_NODES, FEW, STATUS_RANK_LOST);
}

static void test_a_relay_lies_to_the_place(void **state)
{
    (void)state;
    struct world world = world_of(720, NODES, SIZE, 0);
    lie_to_place(&world, world.guest);
    cluster_run(world.cluster, 500 * TIME_MS);
    assert_int_equal(told_of(world.comm, "a lie"), 0);
    last_comes(&world, 8 * TIME_S); /* the place has forgotten the guest, which turns to a further relay */
    world_free(&world);
}

/* The liar says so, and then nothing any more: nodes get on by others. */
static void run_lie_and_silence(uint32_t which, bool by_relay, uint32_t nodes, uint32_t size,
                                uint64_t span_ns)
{
    struct world world = world_of(which, nodes, size, 0);
    uint32_t liar = by_relay ? world.relay : world.place;
    lie(&world, liar, STATUS_RANK_LOST);
    mesh_set_handler(mesh_of(&world, liar), MESH_ROOM_COMM, &(struct mesh_handler){0});
    cluster_run(world.cluster, 50 * TIME_MS);
    last_comes(&world, span_ns);
    world_free(&world);
}

static void test_a_liar_is_silent(void **state)
{
    (void)state;
    run_lie_and_silence(730, false, NODES, SIZE, 4 * TIME_S);
    run_lie_and_silence(731, true, NODES, SIZE, TIME_S);
    run_lie_and_silence(732, false, FEW_NODES, FEW, 4 * TIME_S);
    run_lie_and_silence(733, true, FEW_NODES, FEW, TIME_S);
}

static void say_complete(void *context, uint32_t node, const Commd__Mesh__Message *message, uint64_t now_ns)
{
    (void)now_ns;
    if (message->body_case == COMMD__MESH__MESSAGE__BODY_MEET_MANY) {
        Commd__Mesh__MetMany body = COMMD__MESH__MET_MANY__INIT;
        body.name = message->meet_many->name;
        body.owner_uid = message->meet_many->owner_uid;
        body.complete = true;
        Commd__Mesh__Message answer = MESH_MESSAGE(MET_MANY, met_many, &body);
        assert_int_equal(mesh_send(context, node, &answer), STATUS_OK);
    }
}

/* A place says to all relays at once that every rank is there, and does nothing. The next relays of all
 * groups turn to another place, too. */
static void test_a_place_is_done_too_early(void **state)
{
    (void)state;
    struct world world = world_of(735, FEW_NODES, FEW, 0);
    struct mesh *mesh = mesh_of(&world, world.place);
    mesh_set_handler(mesh, MESH_ROOM_COMM, &(struct mesh_handler){.context = mesh, .message = say_complete});
    sim_comm_free(world.comm);
    cluster_run(world.cluster, 12 * TIME_S);
    uint32_t node_of_rank[FEW];
    char name[16];
    for (unsigned turn = 0;; turn++) {
        (void)snprintf(name, sizeof name, "job%u", turn);
        if (choose(world.cluster, name, NULL) == world.place) {
            break;
        }
    }
    for (uint32_t i = 0; i < FEW; i++) {
        node_of_rank[i] = i;
    }
    world.comm = sim_comm_new(world.cluster, name, FEW, node_of_rank);
    for (uint32_t rank = 0; rank < FEW - 1; rank++) {
        sim_comm_join(world.comm, rank, 0, NULL);
    }
    last_comes(&world, 4 * TIME_S);
    world_free(&world);
}

/* --- What is true --- */

static uint32_t waiting_of(const struct world *world)
{
    uint32_t count = 0;
    for (uint32_t rank = 0; rank < world->comm->size - 1; rank++) {
        count += rank != world->named && !world->comm->ranks[rank].formed;
    }
    return count;
}

static bool all_told(const void *context)
{
    return waiting_of(context) == 0;
}

/* The named node's process dies: all are told what that node says. */
static void end_named(struct world *world, uint64_t span_ns)
{
    const char *text = name_of(world, world->named);
    sim_comm_leave(world->comm, world->named, COMMS_LEAVE_LOST);
    assert_true(cluster_run_until(world->cluster, all_told, world, span_ns));
    for (uint32_t rank = 0; rank < world->comm->size - 1; rank++) {
        if (rank != world->named) {
            assert_text(verdict_of(world->comm, rank), STATUS_RANK_LOST, text, "");
        }
    }
}

static void test_a_true_end(void **state)
{
    (void)state;
    for (uint32_t which = 740; which < 743; which++) {
        struct world world = world_of(which, NODES, SIZE, 0);
        uint32_t before = links_of(world.cluster, world.named);
        end_named(&world, TIME_S);
        assert_in_range(links_of(world.cluster, world.named) - before, 1, 2 * meeting_groups(SIZE, NODES));
        world_free(&world);
    }
}

static void run_dead(uint32_t which, bool host, uint64_t span_ns)
{
    struct world world = world_of(which, NODES, SIZE, 0);
    (host ? cluster_kill : cluster_crash)(world.cluster, world.named);
    sim_comm_forget_node(world.comm, world.named);
    cluster_bury(world.cluster, world.named);
    assert_true(cluster_run_until(world.cluster, all_told, &world, span_ns));
    for (uint32_t rank = 0; rank < SIZE - 1; rank++) {
        if (rank != world.named) {
            assert_text(verdict_of(world.comm, rank), STATUS_NODE_LOST, name_of(&world, world.named), "");
        }
    }
    world_free(&world);
}

static void test_a_dead_node(void **state)
{
    (void)state;
    run_dead(750, true, 5 * TIME_S);
    run_dead(751, false, 3 * TIME_S);
}

/* --- Witnesses --- */

/* The first witness of that rank's node, where the place, or the relay, tells it of the named node. */
static uint32_t witness_of(const struct world *world, uint32_t rank)
{
    const struct cluster_node *at = &world->cluster->nodes[rank];
    struct communicator *comm = communicator_find(at->comms, UID, world->comm->name);
    uint32_t about, witness = 0;
    assert_true(mesh_find_node(at->mesh, name_of(world, world->named), &about));
    assert_true(comms_witness_choose(
        &(struct comms_witness_wish){.comm = comm, .about = about, .teller = about, .except = about},
        &witness));
    return index_of(world->cluster, at, witness);
}

/* Makes a node the named one, so that some rank's node has a witness without ranks, and is not connected to
 * the named one. */
static uint32_t rank_with_witness(struct world *world, uint32_t *witness)
{
    for (world->named = 1; world->named < SIZE - 1; world->named++) {
        for (uint32_t rank = 0; rank < SIZE - 1; rank++) {
            uint32_t peer = 0;
            bool up = rank == world->named ||
                      (mesh_find_node(mesh_of(world, rank), name_of(world, world->named), &peer) &&
                       mesh_node_is_up(mesh_of(world, rank), peer));
            *witness = up ? 0 : witness_of(world, rank);
            if (*witness >= SIZE && *witness != world->place && *witness != world->relay) {
                return rank;
            }
        }
    }
    fail();
    return 0;
}

/* Nodes say that the named node has ended, or that it denies that, to all whom they know. Nobody has asked
 * them. */
static void test_answers_that_nobody_asked_for(void **state)
{
    (void)state;
    struct world world = world_of(760, NODES, SIZE, 0);
    for (uint32_t liar = SIZE; liar < NODES; liar++) {
        answer(&world, liar, false);
        answer(&world, liar, true);
    }
    cluster_run(world.cluster, 500 * TIME_MS);
    last_comes(&world, TIME_S);
    world_free(&world);
}

/* A witness that was killed, or one that is silent: the second one is asked. true_end: what the place says is
 * true. */
static void run_lost_witness(uint32_t which, bool killed, bool true_end)
{
    struct world world = world_of(which, NODES, SIZE, 0);
    uint32_t witness, rank = rank_with_witness(&world, &witness);
    if (killed) {
        cluster_crash(world.cluster, witness);
        cluster_bury(world.cluster, witness);
    } else {
        mesh_set_handler(mesh_of(&world, witness), MESH_ROOM_COMM, &(struct mesh_handler){0});
    }
    if (true_end) {
        end_named(&world, 2500 * TIME_MS);
        assert_text(verdict_of(world.comm, rank), STATUS_RANK_LOST, name_of(&world, world.named), "");
    } else {
        lie(&world, world.place, STATUS_RANK_LOST);
        cluster_run(world.cluster, 4 * TIME_S);
        assert_int_equal(told_of(world.comm, "a lie"), 0);
        last_comes(&world, 2 * TIME_S);
    }
    world_free(&world);
}

static void test_a_witness_is_lost(void **state)
{
    (void)state;
    run_lost_witness(770, true, true);
    run_lost_witness(771, false, true);
    run_lost_witness(772, true, false);
    run_lost_witness(773, false, false);
}

static uint32_t denials;

static void deny(void *context, uint32_t node, const Commd__Mesh__Message *message, uint64_t now_ns)
{
    (void)now_ns;
    if (message->body_case == COMMD__MESH__MESSAGE__BODY_END_ASK) {
        Commd__Mesh__EndAnswer body = COMMD__MESH__END_ANSWER__INIT;
        body.name = message->end_ask->name;
        body.owner_uid = message->end_ask->owner_uid;
        body.node = message->end_ask->node;
        body.denies = true;
        Commd__Mesh__Message answer = MESH_MESSAGE(END_ANSWER, end_answer, &body);
        denials += mesh_send(context, node, &answer) == STATUS_OK;
    }
}

/* A witness denies what is true: the second one says so. */
static void test_a_witness_denies_a_true_end(void **state)
{
    (void)state;
    struct world world = world_of(780, NODES, SIZE, 0);
    uint32_t witness;
    (void)rank_with_witness(&world, &witness);
    struct mesh *mesh = mesh_of(&world, witness);
    mesh_set_handler(mesh, MESH_ROOM_COMM, &(struct mesh_handler){.context = mesh, .message = deny});
    denials = 0;
    end_named(&world, TIME_S);
    assert_true(denials > 0);
    world_free(&world);
}

/* A node asks a witness about all nodes and many names: the witness dials few of them. */
static void test_many_questions(void **state)
{
    (void)state;
    struct world world = world_of(790, NODES, SIZE, 0);
    uint32_t witness, liar = SIZE, peer = 0;
    (void)rank_with_witness(&world, &witness);
    while (liar == witness || liar == world.place || liar == world.relay) {
        liar++;
    }
    assert_true(liar < NODES && mesh_find_node(mesh_of(&world, liar), name_of(&world, witness), &peer));
    mesh_need(mesh_of(&world, liar), peer, MESH_NEED_CALL);
    cluster_touch(world.cluster);
    cluster_run(world.cluster, 100 * TIME_MS);
    uint32_t before = links_of(world.cluster, witness), most = 0;
    for (uint32_t i = 0; i < 20 * NODES; i++) {
        Commd__Mesh__EndAsk body = COMMD__MESH__END_ASK__INIT;
        char name[16];
        (void)snprintf(name, sizeof name, "flood%u", i / NODES);
        body.name = name;
        body.owner_uid = UID;
        body.node = name_of(&world, i % NODES);
        Commd__Mesh__Message message = MESH_MESSAGE(END_ASK, end_ask, &body);
        assert_int_equal(mesh_send(mesh_of(&world, liar), peer, &message), STATUS_OK);
        if (i % 50 == 49) {
            cluster_touch(world.cluster);
            cluster_run(world.cluster, 50 * TIME_MS);
            uint32_t links = links_of(world.cluster, witness);
            most = links > most ? links : most;
        }
    }
    assert_in_range(most, before + 1, before + 2 * COMMS_QUESTIONS_NODE_MAX);
    end_named(&world, TIME_S); /* which that witness is asked about, too */
    world_free(&world);
}

/* Some nodes are of an older version. The named one is not, and then is. */
static void test_older_nodes(void **state)
{
    (void)state;
    for (uint32_t every = 2; every < 8; every += 3) {
        struct world world = world_of(795 + every, NODES, SIZE, every);
        end_named(&world, 4 * TIME_S);
        world_free(&world);
    }
    struct world world = world_of(794, NODES, SIZE, 7);
    lie(&world, world.place, STATUS_RANK_LOST); /* an older node is not asked: the place is believed */
    cluster_run(world.cluster, 4 * TIME_S);
    assert_true(told_of(world.comm, "a lie") > 0);
    world_free(&world);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_place_lies),
        cmocka_unit_test(test_a_relay_lies),
        cmocka_unit_test(test_a_relay_lies_to_the_place),
        cmocka_unit_test(test_a_liar_is_silent),
        cmocka_unit_test(test_a_place_is_done_too_early),
        cmocka_unit_test(test_a_true_end),
        cmocka_unit_test(test_a_dead_node),
        cmocka_unit_test(test_answers_that_nobody_asked_for),
        cmocka_unit_test(test_a_witness_is_lost),
        cmocka_unit_test(test_a_witness_denies_a_true_end),
        cmocka_unit_test(test_many_questions),
        cmocka_unit_test(test_older_nodes),
    };
    return cluster_report(cmocka_run_group_tests(tests, NULL, NULL));
}
