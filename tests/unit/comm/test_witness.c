#include "tests/unit/comm/comm_nodes.h"

#include "daemon/comm/doubt.h"
#include "daemon/comm/witness.h"

/*
 * Node a is a witness (daemon/comm/witness.h). Nodes b and c ask it about a part of node d. The test writes
 * what these three say.
 */
enum { A, B, C, D, NODES };
static struct world world;

struct heard {
    unsigned asks, ends, denials, unknown; /* of which it was told */
    char node[8], text[64];                /* of the last one */
};
static struct heard heard[NODES];

static void on_message(void *context, uint32_t node, const Commd__Mesh__Message *message, uint64_t now_ns)
{
    struct heard *of = context;
    (void)now_ns;
    if (message->body_case == COMMD__MESH__MESSAGE__BODY_END_ASK) {
        assert_int_equal(node, 0);
        of->asks++;
        (void)snprintf(of->node, sizeof of->node, "%s", message->end_ask->node);
    } else if (message->body_case == COMMD__MESH__MESSAGE__BODY_END_ANSWER) {
        const Commd__Mesh__EndAnswer *answer = message->end_answer;
        assert_int_equal(answer->owner_uid, 1000);
        of->denials += answer->denies ? 1 : 0;
        of->ends += answer->end != NULL;
        of->unknown += !answer->denies && answer->end == NULL;
        (void)snprintf(of->node, sizeof of->node, "%s", answer->node);
        (void)snprintf(of->text, sizeof of->text, "%s", answer->end != NULL ? answer->end->text : "");
    }
}

static void start(void)
{
    memset(heard, 0, sizeof heard);
    world_start(&world, NODES, 1, NULL);
    connect_all(&world);
    for (unsigned i = B; i < NODES; i++) {
        mesh_set_handler(world.nodes[i].mesh, MESH_ROOM_COMM,
                         &(struct mesh_handler){.context = &heard[i], .message = on_message});
    }
}

static void ask(unsigned node, const char *name, const char *about, bool lost)
{
    Commd__Mesh__EndAsk body = COMMD__MESH__END_ASK__INIT;
    body.name = (char *)(uintptr_t)name;
    body.owner_uid = 1000;
    body.node = (char *)(uintptr_t)about;
    body.lost = lost;
    Commd__Mesh__Message message = MESH_MESSAGE(END_ASK, end_ask, &body);
    assert_int_equal(mesh_send(world.nodes[node].mesh, 0, &message), STATUS_OK);
    run(&world, 5 * TIME_MS);
}

/* text: of the end; null: it denies that. */
static void answer(unsigned node, const char *name, const char *text)
{
    Commd__Mesh__Withdraw end = COMMD__MESH__WITHDRAW__INIT;
    Commd__Mesh__EndAnswer body = COMMD__MESH__END_ANSWER__INIT;
    end.failed = true;
    end.text = (char *)(uintptr_t)text;
    body.name = (char *)(uintptr_t)name;
    body.owner_uid = 1000;
    body.node = "d";
    body.denies = text == NULL;
    body.end = text != NULL ? &end : NULL;
    Commd__Mesh__Message message = MESH_MESSAGE(END_ANSWER, end_answer, &body);
    assert_int_equal(mesh_send(world.nodes[node].mesh, 0, &message), STATUS_OK);
    run(&world, 5 * TIME_MS);
}

static void assert_told(unsigned node, unsigned ends, unsigned denials, unsigned unknown)
{
    assert_int_equal(heard[node].ends, ends);
    assert_int_equal(heard[node].denials, denials);
    assert_int_equal(heard[node].unknown, unknown);
}

/* It asks once for all that wait. Who comes later gets a later answer, as the part may have ended meanwhile.
 */
static void test_many_askers(void **state)
{
    (void)state;
    start();
    ask(B, "job", "d", false);
    ask(B, "job", "d", false);
    ask(C, "job", "d", false);
    assert_int_equal(heard[D].asks, 1);
    assert_string_equal(heard[D].node, "d");
    answer(D, "job", NULL);
    assert_told(B, 0, 1, 0);
    assert_told(C, 0, 0, 0);
    assert_int_equal(heard[D].asks, 2);
    answer(D, "job", "it ended");
    assert_told(B, 0, 1, 0);
    assert_told(C, 1, 0, 0);
    assert_string_equal(heard[C].text, "it ended");
    ask(B, "job", "d", false);
    assert_int_equal(heard[D].asks, 3);
    answer(D, "job", "again");
    assert_told(B, 1, 1, 0);
    world_stop(&world);
}

/* Answers of others, about other names, or that nobody waits for, do nothing. */
static void test_answers_that_do_not_count(void **state)
{
    (void)state;
    start();
    answer(D, "job", "it ended");
    ask(B, "job", "d", false);
    answer(C, "job", "it ended");
    answer(D, "other", "it ended");
    assert_told(B, 0, 0, 0);
    answer(D, "job", NULL);
    assert_told(B, 0, 1, 0);
    assert_told(C, 0, 0, 0);
    world_stop(&world);
}

/* The named node says nothing, or is lost, or cannot be found, or is the asker or the witness itself. */
static void test_what_is_not_known(void **state)
{
    (void)state;
    start();
    ask(B, "job", "d", false);
    ask(C, "job", "d", true);
    run(&world, COMMS_DOUBT_LOST_NS + COMMS_DOUBT_LOOK_NS);
    assert_told(B, 0, 0, 0);
    assert_told(C, 0, 0, 1);
    run(&world, COMMS_DOUBT_NS - COMMS_DOUBT_LOST_NS);
    assert_told(B, 0, 0, 1);
    ask(B, "job", "nobody", false);
    assert_told(B, 0, 0, 2);
    ask(B, "job", "b", false);
    assert_told(B, 0, 0, 3);
    ask(B, "job", "a", false);
    assert_told(B, 0, 1, 3);
    assert_string_equal(heard[B].node, "a");
    world_stop(&world);
}

/* One node asks about too many names. Another one still has room. Later, the first one has room again. */
static void test_a_node_that_asks_too_much(void **state)
{
    (void)state;
    start();
    for (unsigned i = 0; i < 3 * COMMS_QUESTIONS_NODE_MAX; i++) {
        char name[16];
        (void)snprintf(name, sizeof name, "job%u", i);
        ask(B, name, "d", true);
    }
    assert_int_equal(heard[D].asks, COMMS_QUESTIONS_NODE_MAX);
    assert_told(B, 0, 0, 2 * COMMS_QUESTIONS_NODE_MAX);
    ask(C, "job", "d", false);
    assert_int_equal(heard[D].asks, COMMS_QUESTIONS_NODE_MAX + 1);
    answer(D, "job", NULL);
    assert_told(C, 0, 1, 0);
    ask(B, "late", "d", false);
    assert_int_equal(heard[D].asks, COMMS_QUESTIONS_NODE_MAX + 1);
    run(&world, COMMS_DOUBT_NS + COMMS_QUESTION_COUNTS_NS + TIME_S);
    ask(B, "late", "d", false);
    assert_int_equal(heard[D].asks, COMMS_QUESTIONS_NODE_MAX + 2);
    world_stop(&world);
}

/* What no correct node sends costs the connection. */
static void test_what_cannot_be(void **state)
{
    (void)state;
    static const char *const names[] = {"", "two words", "\x01"};
    for (unsigned i = 0; i < 7; i++) {
        static char text[CLIENT_ERROR_TEXT_MAX_BYTES + 2];
        memset(text, 'x', sizeof text - 1);
        start();
        if (i < 3) {
            ask(B, names[i], "d", false);
        } else if (i < 6) {
            answer(B, names[i - 3], NULL);
        } else {
            answer(B, "job", text);
        }
        run(&world, 20 * TIME_MS);
        assert_false(mesh_node_is_up(world.nodes[A].mesh, 0));
        world_stop(&world);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_many_askers),       cmocka_unit_test(test_answers_that_do_not_count),
        cmocka_unit_test(test_what_is_not_known), cmocka_unit_test(test_a_node_that_asks_too_much),
        cmocka_unit_test(test_what_cannot_be),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
