#include "daemon/base/log.h"
#include "daemon/mesh/mesh_internal.h"
#include "tests/unit/store/store_nodes.h"

/* Node b has a certificate of the cluster, but follows no rule: the test writes its control messages. Node a
 * is real, and keeps "job@a". */

static struct world world; /* large */

static struct {
    unsigned answers;
    uint64_t opener, request;
    uint32_t status;
    size_t value_bytes;
    unsigned asks;
    uint64_t asked_opener, asked_request;
} heard;

static void on_message(void *context, uint32_t node, const Commd__Mesh__Message *message, uint64_t now_ns)
{
    (void)context;
    (void)node;
    (void)now_ns;
    if (message->body_case == COMMD__MESH__MESSAGE__BODY_STORE_ANSWER) {
        heard.answers++;
        heard.opener = message->store_answer->opener;
        heard.request = message->store_answer->request;
        heard.status = message->store_answer->status;
        heard.value_bytes = message->store_answer->value.len;
    } else if (message->body_case == COMMD__MESH__MESSAGE__BODY_STORE_ASK) {
        heard.asks++;
        heard.asked_opener = message->store_ask->opener;
        heard.asked_request = message->store_ask->request;
    }
}

static void start(void)
{
    memset(&heard, 0, sizeof heard);
    world_start(&world, 2);
    struct mesh_handler handler = {.message = on_message};
    mesh_set_handler(world.nodes[1].mesh, MESH_ROOM_STORE, &handler);
    run(&world, 2 * TIME_S);
    assert_true(mesh_node_is_up(world.nodes[0].mesh, 0));
}

static void say(Commd__Mesh__StoreAsk *body)
{
    Commd__Mesh__Message message = MESH_MESSAGE(STORE_ASK, store_ask, body);
    assert_int_equal(mesh_send(world.nodes[1].mesh, 0, &message), STATUS_OK);
    run(&world, TIME_MS);
}

static void say_open(uint64_t opener, const char *name)
{
    Commd__Mesh__StoreAsk body = COMMD__MESH__STORE_ASK__INIT;
    body.opener = opener;
    body.request = 1;
    body.kind = STORE_KIND_OPEN;
    body.name = (char *)(uintptr_t)name;
    body.owner_uid = 1000;
    say(&body);
}

/* A request with `count` keys of `key_bytes` bytes and two values. */
static void say_request(uint64_t opener, uint32_t kind, size_t count, size_t key_bytes, size_t value_bytes,
                        size_t expected_bytes)
{
    static uint8_t data[STORE_VALUE_MAX_BYTES + 1];
    static ProtobufCBinaryData keys[STORE_ASK_KEYS_MAX + 1];
    Commd__Mesh__StoreAsk body = COMMD__MESH__STORE_ASK__INIT;
    for (size_t i = 0; i < count; i++) {
        keys[i] = (ProtobufCBinaryData){.data = data, .len = key_bytes};
    }
    body.opener = opener;
    body.request = 2;
    body.kind = kind;
    body.keys = keys;
    body.n_keys = count;
    body.value = (ProtobufCBinaryData){.data = data, .len = value_bytes};
    body.expected = (ProtobufCBinaryData){.data = data, .len = expected_bytes};
    body.timeout_ms = UINT64_MAX;
    say(&body);
}

static bool is_out(void)
{
    return !mesh_node_is_up(world.nodes[0].mesh, 0);
}

static void assert_out(const char *why)
{
    struct mesh_node_info info;
    assert_true(is_out());
    mesh_node_info(world.nodes[0].mesh, 0, &info);
    if (strstr(info.last_error, why) == NULL) {
        fail_msg("\"%s\" is not in \"%s\"", why, info.last_error);
    }
}

static void test_names_that_cannot_exist(void **state)
{
    static const char *const bad[] = {"", "with space", "new\nline", "\x80"};
    char large[COMM_NAME_MAX_BYTES + 2];
    (void)state;
    memset(large, 'n', sizeof large);
    large[sizeof large - 1] = '\0';
    for (size_t i = 0; i <= sizeof bad / sizeof bad[0]; i++) {
        start();
        say_open(7, i < sizeof bad / sizeof bad[0] ? bad[i] : large);
        assert_out("the name of a store that cannot exist");
        assert_int_equal(used(&world.nodes[0]), 0);
        world_stop(&world);
    }
}

static void test_a_store_opened_twice(void **state)
{
    (void)state;
    start();
    say_open(7, "job@a");
    assert_int_equal(heard.status, STATUS_OK);
    say_open(8, "job@a"); /* another process */
    assert_int_equal(heard.answers, 2);
    say_open(7, "other@a");
    assert_out("a store that it opens a second time");
    run(&world, STORES_LINGER_NS);
    assert_int_equal(used(&world.nodes[0]), 0);
    world_stop(&world);
}

static void test_requests_that_no_commd_sends(void **state)
{
    static const struct {
        uint32_t kind;
        size_t count, key_bytes, value_bytes, expected_bytes;
    } bad[] = {
        {0, 1, 1, 0, 0},
        {STORE_KIND_COUNT + 1, 1, 1, 0, 0},
        {UINT32_MAX, 1, 1, 0, 0},
        {STORE_KIND_SET, 0, 0, 1, 0},
        {STORE_KIND_SET, 2, 1, 1, 0},
        {STORE_KIND_GET, 1, 0, 0, 0},
        {STORE_KIND_GET, 1, STORE_KEY_MAX_BYTES + 1, 0, 0},
        {STORE_KIND_SET, 1, 1, STORE_VALUE_MAX_BYTES + 1, 0},
        {STORE_KIND_COMPARE_SET, 1, 1, STORE_VALUE_MAX_BYTES / 2 + 1, STORE_VALUE_MAX_BYTES / 2},
        {STORE_KIND_WAIT, 0, 0, 0, 0},
        {STORE_KIND_WAIT, STORE_ASK_KEYS_MAX + 1, 1, 0, 0},
        {STORE_KIND_CHECK, 200, 250, 0, 0},
        {STORE_KIND_COUNT, 1, 1, 0, 0},
    };
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        start();
        say_open(7, "job@a");
        say_request(7, bad[i].kind, bad[i].count, bad[i].key_bytes, bad[i].value_bytes,
                    bad[i].expected_bytes);
        assert_out("a request to a store that no commd sends");
        world_stop(&world);
    }
}

static void test_requests_at_the_limits(void **state)
{
    (void)state;
    start();
    say_open(7, "job@a");
    say_request(7, STORE_KIND_SET, 1, STORE_KEY_MAX_BYTES, STORE_VALUE_MAX_BYTES, 0);
    assert_int_equal(heard.status, STATUS_OK);
    say_request(7, STORE_KIND_GET, 1, STORE_KEY_MAX_BYTES, 0, 0);
    assert_int_equal(heard.value_bytes, STORE_VALUE_MAX_BYTES);
    say_request(7, STORE_KIND_CHECK, STORE_ASK_KEYS_MAX, STORE_ASK_KEYS_MAX_BYTES / STORE_ASK_KEYS_MAX, 0, 0);
    assert_int_equal(heard.status, STATUS_OK);
    assert_int_equal(heard.answers, 4);
    say_request(7, STORE_KIND_WAIT, STORE_ASK_KEYS_MAX, 1, 0, 0); /* for as long as it may */
    assert_int_equal(heard.answers, 4);
    assert_false(is_out());
    world_stop(&world);
}

/* After its store has ended here, an honest node may still ask. */
static void test_a_store_that_is_not_open(void **state)
{
    Commd__Mesh__StoreAsk body = COMMD__MESH__STORE_ASK__INIT;
    (void)state;
    start();
    struct process *near = open_store(&world, 0, "job@a");
    say_request(1, STORE_KIND_SET, 1, 1, 1, 0); /* the number of the near process */
    assert_int_equal(heard.status, STATUS_NOT_FOUND);
    body.opener = 1;
    body.kind = STORE_KIND_CLOSE;
    say(&body);
    assert_int_equal(add(&world, near, "n", 1), 1);
    assert_false(is_out());
    world_stop(&world);
}

/* Node b keeps a store of a process of node a, and lies to it. */
static void test_answers_that_nobody_asked_for(void **state)
{
    static uint8_t large[STORE_VALUE_MAX_BYTES + 1];
    Commd__Mesh__StoreAnswer body = COMMD__MESH__STORE_ANSWER__INIT;
    Commd__Mesh__Message message = MESH_MESSAGE(STORE_ANSWER, store_answer, &body);
    (void)state;
    start();
    struct process *near = open_store(&world, 0, "near@a");
    struct process *far = open_as(&world, 0, "far@b", 60 * TIME_S, 1000);
    run(&world, TIME_MS);
    assert_int_equal(heard.asks, 1);
    const struct answer *wait = get(&world, near, "k", 60 * TIME_S);
    for (uint64_t opener = 0; opener < 5; opener++) {
        for (uint64_t request = 0; request < 5; request++) {
            if (opener != heard.asked_opener || request != heard.asked_request) {
                body.opener = opener;
                body.request = request;
                assert_int_equal(mesh_send(world.nodes[1].mesh, 0, &message), STATUS_OK);
            }
        }
    }
    run(&world, TIME_MS);
    assert_false(wait->came);
    assert_false(far->answers[0].came);
    body.opener = heard.asked_opener;
    body.request = heard.asked_request;
    body.status = 12345;
    body.text = "\x1b[31mred\n";
    assert_int_equal(mesh_send(world.nodes[1].mesh, 0, &message), STATUS_OK);
    run(&world, TIME_MS);
    assert_fails(&far->answers[0], STATUS_PROTOCOL, "?[31mred?");
    assert_false(is_out());
    body.value = (ProtobufCBinaryData){.data = large, .len = sizeof large};
    assert_int_equal(mesh_send(world.nodes[1].mesh, 0, &message), STATUS_OK);
    run(&world, TIME_MS);
    assert_out("a value larger than a store's values may be");
    world_stop(&world);
}

/* If a keeper never answers, only its own stores wait until their deadlines. */
static void test_a_keeper_that_does_not_answer(void **state)
{
    (void)state;
    start();
    struct process *silent = open_as(&world, 0, "silent@b", 500 * TIME_MS, 1000);
    struct process *near = open_store(&world, 0, "near@a");
    run(&world, 400 * TIME_MS);
    assert_int_equal(add(&world, near, "n", 1), 1);
    assert_false(silent->answers[0].came);
    run(&world, 200 * TIME_MS);
    assert_fails(&silent->answers[0], STATUS_TIMED_OUT,
                 "node b, which keeps it, did not answer within 500 ms");
    world_stop(&world);
}

/* On the keeper, a user is charged for the requests of his processes on node b. */
static void test_many_openers(void **state)
{
    (void)state;
    start();
    uint32_t status = STATUS_OK;
    uint64_t opener = 100;
    budget_set_ceiling(world.nodes[0].budget, BUDGET_STORES, 2 << 20);
    for (; status == STATUS_OK && opener < 100000; opener++) {
        char name[32];
        snprintf(name, sizeof name, "%llu@a", (unsigned long long)opener);
        say_open(opener, name);
        status = heard.status;
    }
    assert_int_equal(status, STATUS_LIMIT);
    assert_true(used(&world.nodes[0]) <= 2 << 20);
    struct process *other = open_as(&world, 0, "other@a", TIME_S, 3000);
    assert_int_equal(other->answers[0].result.status, STATUS_OK);
    assert_false(is_out());
    world_stop(&world);
}

int main(void)
{
    log_set_level(LOG_LEVEL_ERROR);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_names_that_cannot_exist),
        cmocka_unit_test(test_a_store_opened_twice),
        cmocka_unit_test(test_requests_that_no_commd_sends),
        cmocka_unit_test(test_requests_at_the_limits),
        cmocka_unit_test(test_a_store_that_is_not_open),
        cmocka_unit_test(test_answers_that_nobody_asked_for),
        cmocka_unit_test(test_a_keeper_that_does_not_answer),
        cmocka_unit_test(test_many_openers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
