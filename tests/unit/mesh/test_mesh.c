#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "daemon/base/log.h"
#include "daemon/base/time.h"
#include "daemon/mesh/mesh.h"
#include "daemon/net/mem.h"
#include "proto/frame.h"
#include "proto/version.h"

/* Meshes on the in-memory network; node_up and node_down are checked to alternate. */

enum { NODES_MAX = 6 };

struct node {
    const char *name;
    struct net *net;
    struct mesh *mesh;
    unsigned ups[NODES_MAX], downs[NODES_MAX], messages;
    uint64_t changed_ns[NODES_MAX];
    struct error cause; /* of the last node_down */
    char text[64];      /* of the last message */
};

struct world {
    struct mem_network *network;
    uint64_t now_ns;
    struct node nodes[NODES_MAX];
    unsigned count;
};

static const struct mem_conditions calm = {.delay_ns = 50 * TIME_US, .jitter_ns = 50 * TIME_US};

static void on_up(void *context, uint32_t peer, uint64_t now_ns)
{
    struct node *node = context;
    assert_int_equal(node->ups[peer], node->downs[peer]);
    assert_true(mesh_node_is_up(node->mesh, peer));
    node->ups[peer]++;
    node->changed_ns[peer] = now_ns;
}

static void on_down(void *context, uint32_t peer, const struct error *cause, uint64_t now_ns)
{
    struct node *node = context;
    assert_int_equal(node->ups[peer], node->downs[peer] + 1);
    assert_false(mesh_node_is_up(node->mesh, peer));
    assert_int_not_equal(cause->status, STATUS_OK);
    node->downs[peer]++;
    node->changed_ns[peer] = now_ns;
    node->cause = *cause;
}

static void on_message(void *context, uint32_t peer, const Commd__Mesh__Message *message, uint64_t now_ns)
{
    struct node *node = context;
    (void)now_ns;
    assert_true(mesh_node_is_up(node->mesh, peer));
    assert_int_equal(message->body_case, COMMD__MESH__MESSAGE__BODY_WITHDRAW);
    node->messages++;
    snprintf(node->text, sizeof node->text, "%s", message->withdraw->text);
}

static void node_start(struct world *world, unsigned index, const char *name, const char *cluster,
                       uint64_t instance)
{
    struct node *node = &world->nodes[index];
    struct mesh_options options;
    struct error error;
    memset(node, 0, sizeof *node);
    node->name = name;
    assert_int_equal(mem_network_add(world->network, name, &node->net, &error), STATUS_OK);
    mesh_options_default(&options);
    options.node_name = name;
    options.cluster_name = cluster;
    options.version_text = "9.9";
    options.instance = instance;
    options.seed = instance;
    assert_int_equal(mesh_new(node->net, &options, &node->mesh, &error), STATUS_OK);
    mesh_set_handler(node->mesh, &(struct mesh_handler){node, on_up, on_down, on_message});
}

static void node_stop(struct node *node)
{
    if (node->net != NULL) {
        mesh_free(node->mesh);
        net_free(node->net);
        node->mesh = NULL;
        node->net = NULL;
    }
}

static uint32_t knows(struct node *node, const char *name)
{
    uint32_t peer = UINT32_MAX;
    struct error error;
    assert_int_equal(mesh_add_node(node->mesh, name, "127.0.0.1:1", &peer, &error), STATUS_OK);
    return peer;
}

static void run(struct world *world, uint64_t span_ns)
{
    uint64_t until_ns = world->now_ns + span_ns;
    for (;;) {
        uint64_t next_ns = mem_network_next_ns(world->network);
        for (unsigned i = 0; i < world->count; i++) {
            if (world->nodes[i].mesh != NULL) {
                next_ns = time_min(next_ns, mesh_next_deadline_ns(world->nodes[i].mesh));
            }
        }
        if (next_ns > until_ns) {
            break;
        }
        world->now_ns = next_ns > world->now_ns ? next_ns : world->now_ns;
        mem_network_advance(world->network, world->now_ns);
        for (unsigned i = 0; i < world->count; i++) {
            if (world->nodes[i].mesh != NULL) {
                mesh_tick(world->nodes[i].mesh, world->now_ns);
            }
        }
    }
    world->now_ns = until_ns;
    mem_network_advance(world->network, until_ns);
}

static const char *const names[NODES_MAX] = {"a", "b", "c", "d", "e", "f"};

static void world_start(struct world *world, unsigned count, const struct mem_conditions *conditions,
                        uint64_t seed)
{
    struct error error;
    memset(world, 0, sizeof *world);
    assert_int_equal(mem_network_new(seed, conditions, &world->network, &error), STATUS_OK);
    world->count = count;
    for (unsigned i = 0; i < count; i++) {
        node_start(world, i, names[i], "test", seed * 100 + i + 1);
    }
    for (unsigned i = 0; i < count; i++) {
        for (unsigned j = 0; j < count; j++) {
            if (i != j) {
                assert_int_equal(knows(&world->nodes[i], names[j]), j < i ? j : j - 1);
            }
        }
    }
}

static void world_stop(struct world *world)
{
    for (unsigned i = 0; i < world->count; i++) {
        node_stop(&world->nodes[i]);
    }
    mem_network_free(world->network);
}

static bool is_up(const struct world *world, unsigned from, unsigned to)
{
    uint32_t peer;
    assert_true(mesh_find_node(world->nodes[from].mesh, names[to], &peer));
    return mesh_node_is_up(world->nodes[from].mesh, peer);
}

static enum log_level logged_level;
static unsigned logged_count;
static char logged_text[512];

static void keep_log(void *context, enum log_level level, const char *line)
{
    const char *wanted = context;
    if (strstr(line, wanted) != NULL && level != LOG_LEVEL_DEBUG) {
        logged_level = level;
        logged_count++;
        snprintf(logged_text, sizeof logged_text, "%s", line);
    }
}

/* --- Up and down --- */

static void test_all_come_up(void **state)
{
    (void)state;
    struct world world;
    for (uint64_t seed = 1; seed <= 5; seed++) {
        struct mem_conditions rough = {
            .loss = 0.1, .duplication = 0.05, .delay_ns = TIME_MS, .jitter_ns = TIME_MS, .packet_bytes = 7};
        world_start(&world, NODES_MAX, seed == 1 ? &calm : &rough, seed);
        run(&world, 3 * TIME_S);
        for (unsigned i = 0; i < NODES_MAX; i++) {
            assert_string_equal(mesh_own_name(world.nodes[i].mesh), names[i]);
            assert_int_equal(mesh_node_count(world.nodes[i].mesh), NODES_MAX - 1);
            for (uint32_t j = 0; j + 1 < NODES_MAX; j++) {
                struct mesh_node_info info;
                mesh_node_info(world.nodes[i].mesh, j, &info);
                assert_int_equal(world.nodes[i].ups[j], 1);
                assert_int_equal(world.nodes[i].downs[j], 0);
                assert_int_equal(info.state, MESH_NODE_UP);
                assert_string_equal(info.version_text, "9.9");
                assert_int_equal(info.instance, seed * 100 + (j < i ? j : j + 1) + 1);
                assert_true(info.heartbeat_round_trip_ns > 0);
                assert_true(info.net.up);
            }
        }
        world_stop(&world);
    }
}

static void test_bad_arguments(void **state)
{
    (void)state;
    struct world world;
    struct error error;
    uint32_t peer;
    world_start(&world, 2, &calm, 1);
    assert_int_equal(mesh_add_node(world.nodes[0].mesh, "a", "x:1", &peer, &error), STATUS_INVALID_ARGUMENT);
    assert_int_equal(mesh_add_node(world.nodes[0].mesh, "", "x:1", &peer, &error), STATUS_INVALID_ARGUMENT);
    assert_int_equal(mesh_add_node(world.nodes[0].mesh, "b", "x:1", &peer, &error), STATUS_ALREADY_EXISTS);
    assert_false(mesh_find_node(world.nodes[0].mesh, "z", &peer));
    struct mesh_options options;
    struct mesh *mesh;
    mesh_options_default(&options);
    options.node_name = "x"; /* instance 0 */
    assert_int_equal(mesh_new(world.nodes[0].net, &options, &mesh, &error), STATUS_INVALID_ARGUMENT);
    Commd__Mesh__Message message = COMMD__MESH__MESSAGE__INIT;
    assert_int_equal(mesh_send(world.nodes[0].mesh, 0, &message), STATUS_UNREACHABLE);
    world_stop(&world);
}

static void test_messages_arrive_in_order(void **state)
{
    (void)state;
    struct world world;
    struct mem_conditions rough = {
        .loss = 0.05, .delay_ns = TIME_MS, .jitter_ns = TIME_MS, .packet_bytes = 50};
    world_start(&world, 3, &rough, 7);
    run(&world, 2 * TIME_S);
    for (unsigned i = 0; i < 300; i++) {
        char text[32];
        snprintf(text, sizeof text, "message %u", i);
        Commd__Mesh__Withdraw body = COMMD__MESH__WITHDRAW__INIT;
        body.text = text;
        Commd__Mesh__Message message = COMMD__MESH__MESSAGE__INIT;
        message.body_case = COMMD__MESH__MESSAGE__BODY_WITHDRAW;
        message.withdraw = &body;
        mesh_broadcast(world.nodes[1].mesh, &message);
        assert_int_equal(mesh_send(world.nodes[1].mesh, 0, &message), STATUS_OK);
    }
    run(&world, 2 * TIME_S);
    assert_int_equal(world.nodes[0].messages, 600);
    assert_int_equal(world.nodes[1].messages, 0);
    assert_int_equal(world.nodes[2].messages, 300);
    assert_string_equal(world.nodes[2].text, "message 299");
    world_stop(&world);
}

/* --- Silence --- */

static void test_silent_host_is_noticed(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 20; seed++) {
        struct world world;
        world_start(&world, 3, &calm, seed);
        run(&world, 2 * TIME_S + seed * 41 * TIME_MS);
        uint64_t killed_ns = world.now_ns;
        mem_network_kill(world.network, "b");
        run(&world, 4 * TIME_S);
        assert_int_equal(world.nodes[0].downs[0], 1);
        assert_int_equal(world.nodes[2].downs[1], 1);
        assert_int_equal(world.nodes[0].cause.status, STATUS_NODE_LOST);
        assert_non_null(strstr(world.nodes[0].cause.text, "node b: no heartbeat answered for 2"));
        for (unsigned i = 0; i < 3; i += 2) {
            uint64_t took_ns = world.nodes[i].changed_ns[i == 0 ? 0 : 1] - killed_ns;
            assert_true(took_ns > 2 * TIME_S);
            assert_true(took_ns <= 2800 * TIME_MS);
        }
        assert_true(is_up(&world, 0, 2));
        world_stop(&world);
    }
}

static void test_one_way_cut_has_one_verdict(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 10; seed++) {
        struct world world;
        world_start(&world, 3, &calm, seed);
        run(&world, 2 * TIME_S + seed * 77 * TIME_MS);
        mem_network_cut(world.network, seed % 2 == 0 ? "a" : "b", seed % 2 == 0 ? "b" : "a", true);
        uint64_t cut_ns = world.now_ns;
        run(&world, 4 * TIME_S);
        assert_int_equal(world.nodes[0].downs[0], 1);
        assert_int_equal(world.nodes[1].downs[0], 1);
        assert_true(world.nodes[0].changed_ns[0] - cut_ns <= 2900 * TIME_MS);
        assert_true(world.nodes[1].changed_ns[0] - cut_ns <= 2900 * TIME_MS);
        assert_true(is_up(&world, 0, 2));
        assert_true(is_up(&world, 1, 2));
        mem_network_cut(world.network, seed % 2 == 0 ? "a" : "b", seed % 2 == 0 ? "b" : "a", false);
        run(&world, 15 * TIME_S);
        assert_true(is_up(&world, 0, 1));
        assert_true(is_up(&world, 1, 0));
        assert_int_equal(world.nodes[0].ups[0], 2);
        world_stop(&world);
    }
}

static void test_blackhole_of_2_seconds_loses_nobody(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 25; seed++) {
        struct world world;
        struct mem_conditions slow = {
            .delay_ns = 10 * TIME_MS, .jitter_ns = 5 * TIME_MS, .retransmission_ns = 100 * TIME_MS};
        world_start(&world, 2, seed % 2 == 0 ? &calm : &slow, seed);
        run(&world, 3 * TIME_S + seed * 37 * TIME_MS);
        mem_network_cut(world.network, "a", "b", true);
        mem_network_cut(world.network, "b", "a", true);
        run(&world, 2 * TIME_S);
        mem_network_cut(world.network, "a", "b", false);
        mem_network_cut(world.network, "b", "a", false);
        run(&world, 5 * TIME_S);
        assert_int_equal(world.nodes[0].downs[0], 0);
        assert_int_equal(world.nodes[1].downs[0], 0);
        assert_true(is_up(&world, 0, 1));
        world_stop(&world);
    }
}

/* The daemon dies, its host lives: it says that nobody listens. */
static void test_suspicion_shortens_the_wait(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 10; seed++) {
        struct world world;
        world_start(&world, 3, &calm, seed);
        run(&world, 2 * TIME_S + seed * 53 * TIME_MS);
        mem_network_cut(world.network, "b", "a", true); /* nobody hears that it goes */
        mem_network_cut(world.network, "b", "c", true);
        uint64_t gone_ns = world.now_ns;
        node_stop(&world.nodes[1]);
        mem_network_cut(world.network, "b", "a", false);
        mem_network_cut(world.network, "b", "c", false);
        run(&world, 1300 * TIME_MS);
        assert_int_equal(world.nodes[0].downs[0], 1);
        assert_int_equal(world.nodes[2].downs[1], 1);
        assert_true(world.nodes[0].changed_ns[0] - gone_ns <= 1150 * TIME_MS);
        assert_int_equal(world.nodes[0].cause.status, STATUS_NODE_LOST);
        world_stop(&world);
    }
}

/* --- Coming back --- */

static void test_restarted_node_is_another_instance(void **state)
{
    (void)state;
    for (unsigned which = 0; which < 3; which++) {
        struct world world;
        world_start(&world, 3, &calm, 5 + which);
        run(&world, 2 * TIME_S);
        node_stop(&world.nodes[which]);
        node_start(&world, which, names[which], "test", 4711);
        for (unsigned j = 0; j < 3; j++) {
            if (j != which) {
                knows(&world.nodes[which], names[j]);
            }
        }
        run(&world, 10 * TIME_S);
        for (unsigned i = 0; i < 3; i++) {
            uint32_t peer;
            struct mesh_node_info info;
            if (i == which) {
                continue;
            }
            assert_true(mesh_find_node(world.nodes[i].mesh, names[which], &peer));
            mesh_node_info(world.nodes[i].mesh, peer, &info);
            assert_int_equal(info.instance, 4711);
            assert_int_equal(world.nodes[i].ups[peer], 2);
            assert_int_equal(world.nodes[i].downs[peer], 1);
            assert_true(is_up(&world, i, which) && is_up(&world, which, i));
        }
        world_stop(&world);
    }
}

static void test_back_off_is_bounded(void **state)
{
    (void)state;
    struct world world;
    world_start(&world, 2, &calm, 9);
    node_stop(&world.nodes[1]);
    run(&world, 60 * TIME_S);
    struct mem_network_counters before, after;
    mem_network_counters(world.network, &before);
    run(&world, 60 * TIME_S);
    mem_network_counters(world.network, &after);
    /* An attempt each 2.5 to 5 s, of a dial and an answer, both counted. */
    assert_in_range(after.packets - before.packets, 20, 60);
    struct mesh_node_info info;
    mesh_node_info(world.nodes[0].mesh, 0, &info);
    assert_int_equal(info.state, MESH_NODE_DOWN);
    assert_non_null(strstr(info.last_error, "nobody listens at node b"));
    node_start(&world, 1, "b", "test", 3);
    knows(&world.nodes[1], "a");
    run(&world, 6 * TIME_S);
    assert_true(is_up(&world, 0, 1));
    world_stop(&world);
}

/* --- Greetings --- */

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
    assert_in_range(logged_count, 1, 4); /* not one an attempt */
    log_set_sink(NULL, NULL);
    world_stop(&world);
}

/* A node below the mesh: says what it likes on its control stream. */
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

static void liar_hello(struct liar *liar, const char *name, const char *cluster, uint32_t version,
                       uint64_t instance)
{
    Commd__Mesh__Hello hello = COMMD__MESH__HELLO__INIT;
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

static void liar_start(struct world *world, struct liar *liar)
{
    struct error error;
    uint32_t peer;
    world_start(world, 1, &calm, 11);
    knows(&world->nodes[0], "liar");
    memset(liar, 0, sizeof *liar);
    assert_int_equal(mem_network_add(world->network, "liar", &liar->net, &error), STATUS_OK);
    net_set_peer_handler(liar->net, &(struct net_peer_handler){liar, liar_up, liar_down, liar_failed, NULL});
    net_set_stream_handler(liar->net, NET_STREAM_CONTROL,
                           &(struct net_stream_handler){liar, liar_receive, liar_closed});
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
        {LIE_VERSION, STATUS_VERSION, "node liar speaks mesh protocol 2, node a speaks 1", 50},
        {LIE_CLUSTER, STATUS_CONFIG, "node liar is of cluster \"toast?[2J\", node a of cluster \"test\"", 50},
        {LIE_NAME, STATUS_CERTIFICATE, "node liar by its certificate calls itself \"a\"", 50},
        {LIE_INSTANCE, STATUS_PROTOCOL, "instance 0", 50},
        {LIE_NO_HELLO, STATUS_PROTOCOL, "did not greet first", 50},
        {LIE_TWO_HELLOS, STATUS_PROTOCOL, "greets a second time", 50},
        {LIE_GARBAGE, STATUS_PROTOCOL, "a message of 5 bytes that cannot be understood", 50},
        {LIE_LENGTH_0, STATUS_PROTOCOL, "0 bytes or more than the maximum", 50},
        {LIE_LENGTH_HUGE, STATUS_PROTOCOL, "0 bytes or more than the maximum", 50},
        {LIE_FINISH, STATUS_PROTOCOL, "closed its control stream", 50},
        {LIE_RESET, STATUS_PROTOCOL, "closed its control stream", 50},
        {LIE_SECOND_STREAM, STATUS_PROTOCOL, "second control stream", 50},
        {LIE_SILENCE, STATUS_NODE_LOST, "no heartbeat answered", 3000},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct world world;
        struct liar liar;
        liar_start(&world, &liar);
        unsigned downs = liar.downs;
        logged_count = 0;
        log_set_sink(keep_log, "liar");
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
        } else {
            assert_int_equal(logged_count, 1);
            assert_int_equal(logged_level, LOG_LEVEL_WARNING);
        }
        net_free(liar.net);
        world_stop(&world);
    }
}

/* Never greets at all. */
static void test_no_greeting(void **state)
{
    (void)state;
    struct world world;
    struct liar liar;
    liar_start(&world, &liar);
    run(&world, 2600 * TIME_MS);
    assert_int_equal(liar.downs, 1);
    assert_non_null(strstr(liar.cause.text, "did not greet within 2500 ms"));
    assert_int_equal(world.nodes[0].ups[0], 0);
    net_free(liar.net);
    world_stop(&world);
}

/* --- Pings --- */

struct ping {
    unsigned done;
    enum status result;
    uint64_t round_trip_ns, done_ns;
};

static void on_ping(void *context, enum status result, uint64_t round_trip_ns, uint64_t now_ns)
{
    struct ping *ping = context;
    ping->done++;
    ping->result = result;
    ping->round_trip_ns = round_trip_ns;
    ping->done_ns = now_ns;
}

static void test_pings(void **state)
{
    (void)state;
    struct world world;
    struct error error;
    struct mem_conditions steady = {.delay_ns = 5 * TIME_MS};
    world_start(&world, 2, &steady, 4);
    struct ping pings[5] = {0};
    assert_int_equal(mesh_ping(world.nodes[0].mesh, 0, TIME_S, on_ping, &pings[0], world.now_ns, &error),
                     STATUS_UNREACHABLE);
    assert_non_null(strstr(error.text, "node b is not up"));
    run(&world, TIME_S);
    assert_int_equal(mesh_ping(world.nodes[0].mesh, 0, TIME_S, on_ping, &pings[0], world.now_ns, &error),
                     STATUS_OK);
    assert_int_equal(mesh_ping(world.nodes[0].mesh, 0, TIME_MS, on_ping, &pings[1], world.now_ns, &error),
                     STATUS_OK);
    assert_int_equal(mesh_ping(world.nodes[0].mesh, 0, TIME_S, on_ping, &pings[2], world.now_ns, &error),
                     STATUS_OK);
    mesh_ping_forget(world.nodes[0].mesh, &pings[2]);
    assert_int_equal(pings[0].done, 0);
    uint64_t begin_ns = world.now_ns;
    run(&world, 50 * TIME_MS);
    assert_int_equal(pings[0].done, 1);
    assert_int_equal(pings[0].result, STATUS_OK);
    assert_int_equal(pings[0].round_trip_ns, 10 * TIME_MS);
    assert_int_equal(pings[1].done, 1);
    assert_int_equal(pings[1].result, STATUS_TIMED_OUT);
    assert_int_equal(pings[1].done_ns, begin_ns + TIME_MS);
    assert_int_equal(pings[2].done, 0);
    /* Lost with the node; and as many as there may be. */
    mem_network_kill(world.network, "b");
    for (unsigned i = 0; i < MESH_PINGS_MAX; i++) {
        assert_int_equal(
            mesh_ping(world.nodes[0].mesh, 0, 10 * TIME_S, on_ping, &pings[3], world.now_ns, &error),
            STATUS_OK);
    }
    assert_int_equal(mesh_ping(world.nodes[0].mesh, 0, TIME_S, on_ping, &pings[4], world.now_ns, &error),
                     STATUS_LIMIT);
    run(&world, 4 * TIME_S);
    assert_int_equal(pings[3].done, MESH_PINGS_MAX);
    assert_int_equal(pings[3].result, STATUS_NODE_LOST);
    assert_int_equal(pings[4].done, 0);
    world_stop(&world);
}

int main(void)
{
    log_set_level(LOG_LEVEL_WARNING);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_come_up),
        cmocka_unit_test(test_bad_arguments),
        cmocka_unit_test(test_messages_arrive_in_order),
        cmocka_unit_test(test_silent_host_is_noticed),
        cmocka_unit_test(test_one_way_cut_has_one_verdict),
        cmocka_unit_test(test_blackhole_of_2_seconds_loses_nobody),
        cmocka_unit_test(test_suspicion_shortens_the_wait),
        cmocka_unit_test(test_restarted_node_is_another_instance),
        cmocka_unit_test(test_back_off_is_bounded),
        cmocka_unit_test(test_another_cluster_is_refused),
        cmocka_unit_test(test_lies),
        cmocka_unit_test(test_no_greeting),
        cmocka_unit_test(test_pings),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
