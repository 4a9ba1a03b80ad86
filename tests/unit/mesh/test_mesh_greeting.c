#include "tests/unit/mesh/mesh_nodes.h"

#include "proto/frame.h"
#include "proto/version.h"

/* How nodes greet each other, and what happens to a node that lies. */

static unsigned logged_count;

static void keep_log(void *context, enum log_level level, const char *line)
{
    const char *wanted = context;
    if (strstr(line, wanted) != NULL && level != LOG_LEVEL_DEBUG) {
        logged_count++;
    }
}

/* Why a node lacks the only other one. */
static const char *reason_of(const struct node *node)
{
    static struct mesh_node_info info;
    mesh_node_info(node->mesh, 0, &info);
    return info.last_error;
}

/* The clock of node "b" is two days ahead. Both nodes are told so. */
static void test_a_wrong_clock_is_refused(void **state)
{
    (void)state;
    struct world world;
    world_start(&world, 2, &calm, 3);
    node_stop(&world.nodes[1]);
    settings_incarnation = (world.now_ns + 2 * 86400 * TIME_S) / TIME_US;
    node_start(&world, 1, "b", "test", 77);
    settings_incarnation = 0;
    knows(&world.nodes[1], "a");
    run(&world, 30 * TIME_S);
    assert_false(is_up(&world, 0, 1) || is_up(&world, 1, 0));
    assert_int_equal(world.nodes[0].ups[0], 0); /* node "b" cannot know before it is told */
    for (unsigned i = 0; i < 2; i++) {
        assert_non_null(strstr(reason_of(&world.nodes[i]),
                               "node b was started more than a day from now, by the clock of node a"));
    }
    world_stop(&world);
}

static void test_another_cluster_is_refused(void **state)
{
    (void)state;
    struct world world;
    world_start(&world, 2, &calm, 3);
    node_stop(&world.nodes[1]);
    node_start(&world, 1, "b", "other", 77);
    knows(&world.nodes[1], "a");
    logged_count = 0;
    log_set_sink(keep_log, "cluster");
    run(&world, 30 * TIME_S);
    assert_false(is_up(&world, 0, 1));
    assert_int_equal(world.nodes[0].ups[0], 0);
    assert_int_equal(world.nodes[1].ups[0], 0);
    struct mesh_node_info info;
    mesh_node_info(world.nodes[1].mesh, 0, &info);
    assert_non_null(strstr(info.last_error, "\"test\""));
    assert_non_null(strstr(info.last_error, "\"other\""));
    assert_in_range(logged_count, 1, 4); /* fewer lines than attempts */
    log_set_sink(NULL, NULL);
    world_stop(&world);
}

/* A node that has a net but no mesh. It can send anything on its control stream. */
struct liar {
    struct net *net;
    struct net_stream *stream;
    bool up;
    unsigned downs;
    struct error cause;
};

static void liar_up(void *context, uint32_t peer, uint64_t now_ns)
{
    struct liar *liar = context;
    (void)now_ns;
    liar->up = true;
    assert_int_equal(net_stream_open(liar->net, peer, NET_STREAM_CONTROL, &liar->stream, NULL), STATUS_OK);
}

static void liar_down(void *context, uint32_t peer, const struct error *cause, uint64_t now_ns)
{
    struct liar *liar = context;
    (void)peer;
    (void)now_ns;
    liar->up = false;
    liar->downs++;
    liar->cause = *cause;
    if (liar->stream != NULL) {
        net_stream_reset(liar->stream);
        liar->stream = NULL;
    }
}

static void liar_failed(void *context, uint32_t peer, const struct error *cause, uint64_t now_ns)
{
    (void)context, (void)peer, (void)cause, (void)now_ns;
}

static size_t liar_receive(void *context, struct net_stream *stream, const uint8_t *bytes, size_t size,
                           bool end, uint64_t now_ns)
{
    (void)context, (void)stream, (void)bytes, (void)end, (void)now_ns;
    return size;
}

static void liar_closed(void *context, struct net_stream *stream, const struct error *cause, uint64_t now_ns)
{
    (void)context, (void)stream, (void)cause, (void)now_ns;
}

static void liar_send(struct liar *liar, const Commd__Mesh__Message *message)
{
    uint8_t packed[4096];
    uint8_t header[FRAME_HEADER_BYTES];
    size_t size = commd__mesh__message__get_packed_size(message);
    assert_true(size <= sizeof packed);
    commd__mesh__message__pack(message, packed);
    frame_put_header(header, size);
    assert_int_equal(net_stream_send(liar->stream, header, sizeof header, packed, size, NULL, NULL),
                     STATUS_OK);
}

static void liar_hello_range(struct liar *liar, const char *name, const char *cluster, uint32_t oldest,
                             uint32_t version, uint64_t instance)
{
    Commd__Mesh__Hello hello = COMMD__MESH__HELLO__INIT;
    hello.oldest_version = oldest;
    hello.node_name = (char *)name;
    hello.cluster_name = (char *)cluster;
    hello.protocol_version = version;
    hello.instance = instance;
    hello.version_text = "1\n2";
    Commd__Mesh__Message message = COMMD__MESH__MESSAGE__INIT;
    message.body_case = COMMD__MESH__MESSAGE__BODY_HELLO;
    message.hello = &hello;
    liar_send(liar, &message);
}

static void liar_hello(struct liar *liar, const char *name, const char *cluster, uint32_t version,
                       uint64_t instance)
{
    liar_hello_range(liar, name, cluster, 0, version, instance);
}

static void liar_start(struct world *world, struct liar *liar)
{
    struct error error;
    uint32_t peer;
    world_start(world, 1, &calm, 11);
    knows(&world->nodes[0], "liar");
    memset(liar, 0, sizeof *liar);
    liar->net = network_add(world->network, "liar");
    net_set_peer_handler(liar->net,
                         &(struct net_peer_handler){liar, liar_up, liar_down, liar_failed, NULL, NULL, NULL});
    net_set_stream_handler(liar->net, NET_STREAM_CONTROL,
                           &(struct net_stream_handler){liar, liar_receive, liar_closed, NULL});
    assert_int_equal(net_add_peer(liar->net, "a", NULL, &peer, &error), STATUS_OK);
    run(world, 100 * TIME_MS);
    assert_true(liar->up);
}

enum lie {
    LIE_VERSION,
    LIE_CLUSTER,
    LIE_NAME,
    LIE_INSTANCE,
    LIE_NO_HELLO,
    LIE_TWO_HELLOS,
    LIE_GARBAGE,
    LIE_LENGTH_0,
    LIE_LENGTH_HUGE,
    LIE_FINISH,
    LIE_RESET,
    LIE_SECOND_STREAM,
    LIE_SILENCE,
};

static void lie_tell(struct liar *liar, enum lie lie)
{
    static const uint8_t garbage[] = {5, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0xff};
    static const uint8_t length_0[] = {0, 0, 0, 0};
    static const uint8_t length_huge[] = {1, 0, 1, 0};
    Commd__Mesh__Heartbeat heartbeat = COMMD__MESH__HEARTBEAT__INIT;
    Commd__Mesh__Message message = COMMD__MESH__MESSAGE__INIT;
    struct net_stream *second;
    message.body_case = COMMD__MESH__MESSAGE__BODY_HEARTBEAT;
    message.heartbeat = &heartbeat;
    switch (lie) {
    case LIE_VERSION:
        liar_hello(liar, "liar", "test", MESH_PROTOCOL_VERSION + 1, 1);
        return;
    case LIE_CLUSTER:
        liar_hello(liar, "liar", "toast\x1b[2J", MESH_PROTOCOL_VERSION, 1);
        return;
    case LIE_NAME:
        liar_hello(liar, "a", "test", MESH_PROTOCOL_VERSION, 1);
        return;
    case LIE_INSTANCE:
        liar_hello(liar, "liar", "test", MESH_PROTOCOL_VERSION, 0);
        return;
    case LIE_NO_HELLO:
        liar_send(liar, &message);
        return;
    case LIE_TWO_HELLOS:
        liar_hello(liar, "liar", "test", MESH_PROTOCOL_VERSION, 1);
        return;
    case LIE_GARBAGE:
        assert_int_equal(net_stream_send(liar->stream, NULL, 0, garbage, sizeof garbage, NULL, NULL),
                         STATUS_OK);
        return;
    case LIE_LENGTH_0:
        assert_int_equal(net_stream_send(liar->stream, NULL, 0, length_0, sizeof length_0, NULL, NULL),
                         STATUS_OK);
        return;
    case LIE_LENGTH_HUGE:
        assert_int_equal(net_stream_send(liar->stream, NULL, 0, length_huge, sizeof length_huge, NULL, NULL),
                         STATUS_OK);
        return;
    case LIE_FINISH:
        net_stream_finish(liar->stream);
        liar->stream = NULL;
        return;
    case LIE_RESET:
        net_stream_reset(liar->stream);
        liar->stream = NULL;
        return;
    case LIE_SECOND_STREAM:
        assert_int_equal(net_stream_open(liar->net, 0, NET_STREAM_CONTROL, &second, NULL), STATUS_OK);
        assert_int_equal(net_stream_send(second, NULL, 0, "x", 1, NULL, NULL), STATUS_OK);
        net_stream_finish(second);
        return;
    case LIE_SILENCE:
        return;
    }
}

static void test_lies(void **state)
{
    (void)state;
    static const struct {
        enum lie lie;
        enum status status;
        const char *text;
        uint64_t within_ms;
    } cases[] = {
        {LIE_VERSION, STATUS_VERSION, "node liar speaks version ", 50},
        {LIE_CLUSTER, STATUS_CONFIG, "node liar is of cluster \"toast?[2J\", node a of cluster \"test\"", 50},
        {LIE_NAME, STATUS_CERTIFICATE, "node liar has a certificate of that name, but calls itself \"a\"",
         50},
        {LIE_INSTANCE, STATUS_PROTOCOL, "instance 0", 50},
        {LIE_NO_HELLO, STATUS_PROTOCOL, "did not greet first", 50},
        {LIE_TWO_HELLOS, STATUS_PROTOCOL, "greets a second time", 50},
        {LIE_GARBAGE, STATUS_PROTOCOL, "a message of 5 bytes that cannot be understood", 50},
        {LIE_LENGTH_0, STATUS_PROTOCOL, "0 bytes or more than the maximum", 50},
        {LIE_LENGTH_HUGE, STATUS_PROTOCOL, "0 bytes or more than the maximum", 50},
        {LIE_FINISH, STATUS_PROTOCOL, "closed its control stream", 50},
        {LIE_RESET, STATUS_PROTOCOL, "closed its control stream", 50},
        {LIE_SECOND_STREAM, STATUS_PROTOCOL, "second control stream", 50},
        {LIE_SILENCE, STATUS_NODE_LOST, "no heartbeat answered", 4500},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct world world;
        struct liar liar;
        liar_start(&world, &liar);
        unsigned downs = liar.downs;
        logged_count = 0;
        log_set_sink(keep_log, "node liar is d"); /* down, disconnected */
        if (cases[i].lie >= LIE_TWO_HELLOS) {
            liar_hello(&liar, "liar", "test", MESH_PROTOCOL_VERSION, 1);
            run(&world, 20 * TIME_MS);
        }
        lie_tell(&liar, cases[i].lie);
        run(&world, cases[i].within_ms * TIME_MS);
        log_set_sink(NULL, NULL);
        assert_int_equal(liar.downs, downs + 1);
        if (liar.cause.status != cases[i].status || strstr(liar.cause.text, cases[i].text) == NULL) {
            fail_msg("case %zu: %s \"%s\"", i, status_name(liar.cause.status), liar.cause.text);
        }
        bool was_up = cases[i].lie >= LIE_TWO_HELLOS;
        assert_int_equal(world.nodes[0].ups[0], was_up);
        assert_int_equal(world.nodes[0].downs[0], was_up);
        struct mesh_node_info info;
        mesh_node_info(world.nodes[0].mesh, 0, &info);
        assert_non_null(strstr(info.last_error, cases[i].text));
        if (was_up) {
            assert_non_null(strstr(world.nodes[0].cause.text, cases[i].text));
            assert_string_equal(info.version_text, "1?2");
        }
        assert_int_equal(logged_count, cases[i].status != STATUS_NODE_LOST); /* a silent node has not lied */
        net_free(liar.net);
        world_stop(&world);
    }
}

/* The other node never greets. */
static void test_no_greeting(void **state)
{
    (void)state;
    struct world world;
    struct liar liar;
    liar_start(&world, &liar);
    run(&world, 8100 * TIME_MS);
    assert_int_equal(liar.downs, 1);
    assert_non_null(strstr(liar.cause.text, "did not greet within 8000 ms"));
    assert_int_equal(world.nodes[0].ups[0], 0);
    net_free(liar.net);
    world_stop(&world);
}

/* A node that breaks the protocol is held off longer each time, whichever side dials. Once it behaves for
 * long enough, the next violation is held off briefly again. */
static void test_violations_are_held_off(void **state)
{
    (void)state;
    struct world world;
    struct liar liar;
    struct mesh_node_info info;
    uint64_t hold_ns = MESH_HOLD_OFF_MIN_NS;
    liar_start(&world, &liar);
    logged_count = 0;
    log_set_sink(keep_log, "greets a second time");
    for (unsigned violation = 1; violation <= 10; violation++) {
        liar_hello(&liar, "liar", "test", MESH_PROTOCOL_VERSION, 1);
        liar_hello(&liar, "liar", "test", MESH_PROTOCOL_VERSION, 1);
        run(&world, 10 * TIME_MS);
        assert_false(liar.up);
        assert_int_equal(world.nodes[0].downs[0], violation);
        mesh_node_info(world.nodes[0].mesh, 0, &info);
        uint64_t again_ns = info.since_ns + hold_ns;
        unsigned downs = liar.downs;
        assert_int_equal(net_connect(liar.net, 0, NULL), STATUS_OK);
        run(&world, 100 * TIME_MS);
        assert_false(liar.up);
        assert_int_equal(liar.downs, downs + 1);
        assert_int_equal(liar.cause.status, STATUS_UNREACHABLE);
        assert_non_null(strstr(liar.cause.text, "node a accepts no connection from node liar for "));
        assert_int_equal(world.nodes[0].ups[0], violation);
        run(&world, again_ns - world.now_ns - 10 * TIME_MS);
        assert_false(liar.up); /* node a has not dialled either */
        run(&world, 20 * TIME_MS);
        assert_true(liar.up);
        hold_ns = time_min(2 * hold_ns, MESH_HOLD_OFF_MAX_NS);
        assert_int_equal(logged_count, violation); /* one line for each violation */
    }
    assert_int_equal(hold_ns, MESH_HOLD_OFF_MAX_NS);
    run(&world, MESH_HOLD_OFF_FORGIVEN_NS); /* a missing greeting is no violation */
    for (unsigned i = 0; !liar.up; i++) {
        assert_true(i < 1000);
        run(&world, 10 * TIME_MS);
    }
    liar_hello(&liar, "liar", "test", MESH_PROTOCOL_VERSION, 0);
    run(&world, 10 * TIME_MS);
    assert_false(liar.up);
    run(&world, MESH_HOLD_OFF_MIN_NS);
    assert_int_equal(net_connect(liar.net, 0, NULL), STATUS_OK);
    run(&world, 10 * TIME_MS);
    assert_true(liar.up);
    log_set_sink(NULL, NULL);
    net_free(liar.net);
    world_stop(&world);
}

/* An accused node logs the accusation. It does not accuse the other node. */
static void test_an_accused_node_logs_that_it_is(void **state)
{
    (void)state;
    struct world world;
    struct liar liar;
    struct error cause;
    liar_start(&world, &liar);
    logged_count = 0;
    log_set_sink(keep_log, "says that this node broke the protocol");
    liar_hello(&liar, "liar", "test", MESH_PROTOCOL_VERSION, 1);
    run(&world, 10 * TIME_MS);
    error_set(&cause, STATUS_PROTOCOL, "it sent something else");
    net_disconnect(liar.net, 0, &cause);
    run(&world, 10 * TIME_MS);
    assert_false(liar.up);
    assert_int_equal(logged_count, 1);
    log_set_sink(NULL, NULL);
    net_free(liar.net);
    world_stop(&world);
}

static void test_hold_offs_are_ended(void **state)
{
    (void)state;
    struct world world;
    struct liar liar;
    liar_start(&world, &liar);
    for (unsigned violation = 1; violation <= 4; violation++) {
        liar_hello(&liar, "liar", "test", MESH_PROTOCOL_VERSION, 0);
        run(&world, 10 * TIME_MS);
        assert_false(liar.up);
        run(&world, MESH_HOLD_OFF_MIN_NS / 2);
        assert_false(liar.up);
        mesh_end_hold_offs(world.nodes[0].mesh, world.now_ns);
        run(&world, 10 * TIME_MS);
        assert_true(liar.up);
    }
    net_free(liar.net);
    world_stop(&world);
}

/* A node of another version or cluster is not held off: an administrator may correct it at any moment. */
static void test_another_version_is_not_held_off(void **state)
{
    (void)state;
    struct world world;
    struct liar liar;
    liar_start(&world, &liar);
    liar_hello(&liar, "liar", "test", MESH_PROTOCOL_VERSION + 1, 1);
    run(&world, 10 * TIME_MS);
    assert_false(liar.up);
    assert_int_equal(net_connect(liar.net, 0, NULL), STATUS_OK);
    run(&world, 10 * TIME_MS);
    assert_true(liar.up);
    /* A node that speaks newer versions besides this one is accepted. */
    liar_hello_range(&liar, "liar", "test", MESH_PROTOCOL_VERSION, MESH_PROTOCOL_VERSION + 3, 1);
    run(&world, 10 * TIME_MS);
    assert_int_equal(world.nodes[0].ups[0], 1);
    net_free(liar.net);
    world_stop(&world);
}

int main(void)
{
    log_set_level(LOG_LEVEL_WARNING);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_wrong_clock_is_refused),
        cmocka_unit_test(test_another_cluster_is_refused),
        cmocka_unit_test(test_lies),
        cmocka_unit_test(test_no_greeting),
        cmocka_unit_test(test_violations_are_held_off),
        cmocka_unit_test(test_an_accused_node_logs_that_it_is),
        cmocka_unit_test(test_hold_offs_are_ended),
        cmocka_unit_test(test_another_version_is_not_held_off),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
