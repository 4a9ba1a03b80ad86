#include "tests/unit/comm/comm_nodes.h"

#include "daemon/comm/meeting.h"
#include "daemon/comm/meeting_choice.h"

/*
 * Node a is a place where nodes meet (daemon/comm/meeting.h). Nodes b and c are guests whose messages the
 * test writes. The cluster is complete, so nothing else is said of meetings.
 */
static struct world world;

struct heard {
    unsigned count;
    char names[256]; /* of all Met so far */
    /* Of the Rosters: */
    unsigned rosters, additions, ends;
    char ended_by[8], entry[8], text[64]; /* the last end's node, the last first entry's node */
    uint64_t ended_nonce;
    uint32_t ended_ranks;
};
static struct heard heard[NODES_MAX];

static void on_roster(struct heard *of, const Commd__Mesh__Roster *roster)
{
    assert_string_equal(roster->name, "job");
    if (roster->end == NULL) {
        of->rosters++;
        of->additions += roster->adds ? 1 : 0;
        assert_true(roster->n_entries >= 1);
        (void)snprintf(of->entry, sizeof of->entry, "%s", roster->entries[0]->node);
        return;
    }
    of->ends++;
    assert_true(roster->end->failed);
    of->ended_nonce = roster->nonce;
    of->ended_ranks = roster->end->failure != NULL ? roster->end->failure->rank_count : 0;
    (void)snprintf(of->ended_by, sizeof of->ended_by, "%s", roster->ended_by);
    (void)snprintf(of->text, sizeof of->text, "%s", roster->end->text);
}

static void on_message(void *context, uint32_t node, const Commd__Mesh__Message *message, uint64_t now_ns)
{
    struct heard *of = context;
    (void)now_ns;
    if (message->body_case == COMMD__MESH__MESSAGE__BODY_ROSTER) {
        on_roster(of, message->roster);
    }
    if (message->body_case != COMMD__MESH__MESSAGE__BODY_MET) {
        return;
    }
    assert_int_equal(node, 0);
    assert_int_equal(message->met->owner_uid, 1000);
    of->count++;
    for (size_t i = 0; i < message->met->n_nodes; i++) {
        size_t length = strlen(of->names);
        snprintf(of->names + length, sizeof of->names - length, "%s:%s ", message->met->name,
                 message->met->nodes[i]);
    }
}

static void start(void)
{
    memset(heard, 0, sizeof heard);
    world_start(&world, 3, 1, NULL);
    connect_all(&world);
    for (unsigned i = 1; i < 3; i++) {
        mesh_set_handler(world.nodes[i].mesh, MESH_ROOM_COMM,
                         &(struct mesh_handler){.context = &heard[i], .message = on_message});
    }
}

static void say(unsigned node, const char *name, bool over)
{
    Commd__Mesh__Meet body = COMMD__MESH__MEET__INIT;
    body.name = (char *)(uintptr_t)name;
    body.owner_uid = 1000;
    body.over = over;
    Commd__Mesh__Message message = MESH_MESSAGE(MEET, meet, &body);
    assert_int_equal(mesh_send(world.nodes[node].mesh, 0, &message), STATUS_OK);
}

/* Reports a rank of "job", of 64; end: it is over, and why. */
static void report(unsigned node, uint32_t rank, uint64_t nonce, Commd__Mesh__Withdraw *end)
{
    Commd__Mesh__Meet body = COMMD__MESH__MEET__INIT;
    Commd__Mesh__Announce announce = COMMD__MESH__ANNOUNCE__INIT;
    Commd__Mesh__CommTerms terms = COMMD__MESH__COMM_TERMS__INIT;
    terms.size = 64;
    terms.owner_uid = 1000;
    announce.name = "job";
    announce.owner_uid = 1000;
    announce.terms = &terms;
    announce.nonce = nonce;
    announce.n_ranks = 1;
    announce.ranks = &rank;
    announce.tree = true;
    body.name = "job";
    body.owner_uid = 1000;
    body.report = end == NULL ? &announce : NULL;
    body.over = end != NULL;
    body.end = end;
    Commd__Mesh__Message message = MESH_MESSAGE(MEET, meet, &body);
    assert_int_equal(mesh_send(world.nodes[node].mesh, 0, &message), STATUS_OK);
    run(&world, 20 * TIME_MS);
}

static void assert_heard(unsigned node, const char *names)
{
    assert_string_equal(heard[node].names, names);
    heard[node].names[0] = '\0';
}

static void test_guests_hear_of_each_other(void **state)
{
    (void)state;
    start();
    say(1, "job", false);
    run(&world, 100 * TIME_MS);
    assert_heard(1, "");
    say(2, "other", false);
    run(&world, 100 * TIME_MS);
    assert_heard(2, "");
    say(2, "job", false);
    run(&world, 100 * TIME_MS);
    assert_heard(1, "job:c ");
    assert_heard(2, "job:b ");
    /* Who asks again hears all again. */
    say(1, "job", false);
    run(&world, 100 * TIME_MS);
    assert_heard(1, "job:c ");
    say(1, "job", true);
    say(2, "job", false);
    run(&world, 100 * TIME_MS);
    assert_heard(1, "");
    assert_heard(2, "job:b "); /* of the second time that b came */
    world_stop(&world);
}

/* Many guests at once cost each of them one message. */
static void test_guests_at_once(void **state)
{
    (void)state;
    start();
    say(1, "job", false);
    say(2, "job", false);
    say(2, "job", false);
    say(1, "job", false);
    run(&world, 100 * TIME_MS);
    assert_heard(1, "job:c ");
    assert_heard(2, "job:b ");
    assert_int_equal(heard[1].count + heard[2].count, 2);
    world_stop(&world);
}

static void test_a_guest_is_lost(void **state)
{
    (void)state;
    start();
    say(1, "job", false);
    run(&world, 100 * TIME_MS);
    node_kill(&world, 1);
    run(&world, 10 * TIME_S);
    say(2, "job", false);
    run(&world, 100 * TIME_MS);
    assert_heard(2, "");
    world_stop(&world);
}

/* A node asks for more names than the place keeps: its oldest ones are forgotten, and others' are not. */
static void test_a_guest_with_too_many_names(void **state)
{
    (void)state;
    start();
    say(2, "job", false);
    say(1, "job", false);
    for (unsigned i = 0; i < 5000; i++) {
        char name[16];
        snprintf(name, sizeof name, "n%u", i);
        say(1, name, false);
        if (i % 500 == 0) {
            run(&world, 20 * TIME_MS);
        }
    }
    run(&world, 100 * TIME_MS);
    assert_heard(2, "job:b ");
    say(2, "n0", false);
    say(2, "n4999", false);
    run(&world, 100 * TIME_MS);
    assert_heard(2, "n4999:b ");
    world_stop(&world);
}

static void test_names_that_cannot_be(void **state)
{
    (void)state;
    static const char *const names[] = {"", "two words", "\x01"};
    for (unsigned i = 0; i < 3; i++) {
        start();
        say(1, names[i], false);
        run(&world, 20 * TIME_MS);
        assert_false(mesh_node_is_up(world.nodes[0].mesh, 0));
        world_stop(&world);
    }
}

/* Guests that have reported are told when another one is lost, or cannot form the communicator. */
static void test_a_guest_that_has_reported_is_lost(void **state)
{
    (void)state;
    start();
    report(1, 5, 500, NULL);
    report(2, 6, 600, NULL);
    assert_int_equal(heard[2].ends, 0);
    node_kill(&world, 1);
    run(&world, 5 * TIME_S);
    assert_int_equal(heard[2].ends, 1);
    assert_string_equal(heard[2].ended_by, "b");
    assert_memory_equal(heard[2].text, "node b lost: ", 13);
    assert_int_equal(heard[2].ended_nonce, 600);
    assert_int_equal(heard[2].ended_ranks, 1);
    world_stop(&world);
}

static void test_a_guest_that_gives_up(void **state)
{
    (void)state;
    start();
    report(1, 5, 500, NULL);
    report(2, 6, 600, NULL);
    Commd__Mesh__Withdraw end = COMMD__MESH__WITHDRAW__INIT;
    end.name = "job";
    end.nonce = 500;
    end.status = STATUS_TIMED_OUT;
    end.text = "its time is over";
    report(1, 5, 500, &end);
    assert_int_equal(heard[2].ends, 0);
    report(1, 5, 501, NULL);
    end.failed = true;
    end.status = STATUS_RANK_LOST;
    end.text = "rank 5 is lost";
    report(1, 5, 501, &end);
    assert_int_equal(heard[2].ends, 1);
    assert_string_equal(heard[2].ended_by, "b");
    assert_string_equal(heard[2].text, "rank 5 is lost");
    world_stop(&world);
}

/* The place itself reports rank 3 of "job". */
static void report_own(const struct owned_name *key)
{
    uint32_t rank = 3;
    Commd__Mesh__Announce own = COMMD__MESH__ANNOUNCE__INIT;
    Commd__Mesh__CommTerms terms = COMMD__MESH__COMM_TERMS__INIT;
    terms.size = 64;
    terms.owner_uid = 1000;
    own.name = "job";
    own.owner_uid = 1000;
    own.terms = &terms;
    own.nonce = 300;
    own.n_ranks = 1;
    own.ranks = &rank;
    own.tree = true;
    comms_meeting_join(world.nodes[0].comms, MESH_NODE_OWN, key, &own, world.now_ns);
}

/* A place that has ranks says so to each new guest, once, and to all when its first rank comes. */
static void test_a_place_with_ranks(void **state)
{
    (void)state;
    start();
    struct owned_name key = {.owner_uid = 1000, .name = "job"};
    report(2, 6, 600, NULL);
    assert_int_equal(heard[2].rosters, 0);
    report_own(&key);
    run(&world, TIME_MS); /* before anybody is told which ranks are missing */
    assert_int_equal(heard[2].rosters, 1);
    assert_int_equal(heard[2].additions, 1);
    assert_string_equal(heard[2].entry, "a");
    report(1, 5, 500, NULL);
    assert_int_equal(heard[1].rosters, 1);
    assert_int_equal(heard[1].additions, 1);
    assert_string_equal(heard[1].entry, "a");
    report(1, 5, 501, NULL);
    report_own(&key);
    run(&world, TIME_MS);
    assert_int_equal(heard[1].rosters, 1);
    assert_int_equal(heard[2].rosters, 1);
    comms_meeting_leave(world.nodes[0].comms, MESH_NODE_OWN, MESH_NODE_OWN, &key);
    world_stop(&world);
}

/* The place's rank was another node's before: guests are not told of the one that came later. */
static void test_a_place_whose_rank_is_taken(void **state)
{
    (void)state;
    start();
    struct owned_name key = {.owner_uid = 1000, .name = "job"};
    report(1, 3, 500, NULL);
    report(2, 6, 600, NULL);
    report_own(&key);
    run(&world, TIME_MS);
    assert_int_equal(heard[1].additions, 0);
    assert_int_equal(heard[2].additions, 0);
    assert_heard(1, "job:a "); /* the two settle it */
    comms_meeting_leave(world.nodes[0].comms, MESH_NODE_OWN, MESH_NODE_OWN, &key);
    world_stop(&world);
}

/* Who was not asked says Met: nothing happens. */
static void test_a_place_that_was_not_asked(void **state)
{
    (void)state;
    start();
    struct member *member = join(&world, 0, "job", 0, 2);
    run(&world, 20 * TIME_MS);
    char *nodes[] = {"c", "b", "nobody", ""};
    Commd__Mesh__Met body = COMMD__MESH__MET__INIT;
    body.name = "job";
    body.owner_uid = 1000;
    body.nodes = nodes;
    body.n_nodes = 4;
    Commd__Mesh__Message message = MESH_MESSAGE(MET, met, &body);
    assert_int_equal(mesh_send(world.nodes[1].mesh, 0, &message), STATUS_OK);
    run(&world, 20 * TIME_MS);
    assert_true(mesh_node_is_up(world.nodes[0].mesh, 0));
    assert_int_equal(member->formed_count, 0);
    leave_all(&world);
    world_stop(&world);
}

/* --- The choice of relays --- */

/* The largest or smallest of the groups that names of nodes make. */
static uint32_t group_extreme(uint32_t nodes, uint32_t groups, bool largest)
{
    uint32_t counts[128] = {0}, found = 0;
    assert_true(groups <= 128);
    for (uint32_t i = 0; i < nodes; i++) {
        char name[16];
        (void)snprintf(name, sizeof name, "node%u", i);
        counts[meeting_group_of(name, groups)]++;
    }
    for (uint32_t i = 1; i < groups; i++) {
        found = (counts[i] > counts[found]) == largest ? i : found;
    }
    return counts[found];
}

static void test_groups(void **state)
{
    (void)state;
    assert_int_equal(meeting_groups(MEETING_RELAYED_RANKS_LEAST - 1, 10000), 0);
    assert_int_equal(meeting_groups(64, 10000), 8);
    assert_int_equal(meeting_groups(65, 10000), 9);
    assert_int_equal(meeting_groups(10000, 10000), 100);
    assert_int_equal(meeting_groups(10000, 250), 16);
    assert_int_equal(meeting_groups(UINT32_MAX, UINT32_MAX), 65536);
    assert_in_range(group_extreme(10000, 100, true), 100, 140);
    assert_in_range(group_extreme(10000, 100, false), 65, 100);
    assert_in_range(group_extreme(128, 12, true), 11, 22);
    /* A part of the protocol: all nodes must find the same. */
    assert_int_equal(meeting_group_of("n000", 100), 36);
    assert_int_equal(meeting_group_of("node-17.example", 100), 32);
}

struct taken {
    uint32_t nodes[8];
    uint32_t count;
};

static bool is_taken(const void *context, uint32_t node)
{
    const struct taken *taken = context;
    for (uint32_t i = 0; i < taken->count; i++) {
        if (taken->nodes[i] == node) {
            return true;
        }
    }
    return false;
}

static const char *name_at(unsigned node, uint32_t chosen)
{
    struct mesh *mesh = world.nodes[node].mesh;
    return chosen == MESH_NODE_OWN ? mesh_own_name(mesh) : mesh_node_name(mesh, chosen);
}

/* All nodes choose the same ones in the same order: each node once. Groups choose differently. */
static void test_all_choose_the_same(void **state)
{
    (void)state;
    start();
    struct owned_name key = {.owner_uid = 1000, .name = "job"};
    char orders[8][8] = {{0}};
    for (uint32_t group = 0; group < 8; group++) {
        for (unsigned node = 0; node < 3; node++) {
            struct taken taken = {0};
            struct meeting_chooser chooser = {.comms = world.nodes[node].comms,
                                              .key = &key,
                                              .relay = true,
                                              .group = group,
                                              .is_taken = is_taken,
                                              .context = &taken};
            char order[8] = "";
            uint32_t chosen;
            while (meeting_choose(&chooser, &chosen)) {
                strcat(order, name_at(node, chosen));
                taken.nodes[taken.count++] = chosen;
                assert_true(meeting_trusts_relay(chooser.comms, &key, group, chosen));
            }
            assert_int_equal(strlen(order), 3);
            assert_string_equal(order, node == 0 ? order : orders[group]);
            memcpy(orders[group], order, sizeof order);
        }
    }
    unsigned others = 0;
    for (uint32_t group = 1; group < 8; group++) {
        others += strcmp(orders[group], orders[0]) != 0;
    }
    assert_true(others > 0);
    world_stop(&world);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_guests_hear_of_each_other),
        cmocka_unit_test(test_guests_at_once),
        cmocka_unit_test(test_a_guest_is_lost),
        cmocka_unit_test(test_a_guest_with_too_many_names),
        cmocka_unit_test(test_a_guest_that_has_reported_is_lost),
        cmocka_unit_test(test_a_guest_that_gives_up),
        cmocka_unit_test(test_a_place_with_ranks),
        cmocka_unit_test(test_a_place_whose_rank_is_taken),
        cmocka_unit_test(test_names_that_cannot_be),
        cmocka_unit_test(test_a_place_that_was_not_asked),
        cmocka_unit_test(test_groups),
        cmocka_unit_test(test_all_choose_the_same),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
