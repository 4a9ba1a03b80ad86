#include "tests/unit/net/mem_nodes.h"

/* Connections over the in-memory network: how they begin. test_mem_ending.c: how they end. */

/* --- Names --- */

static void test_names(void **state)
{
    (void)state;
    struct pair pair;
    pair_start(&pair, 1, &good, false);
    uint32_t peer = 77;
    struct error error = {0};
    assert_int_equal(net_add_peer(pair.a->net, "b", "ignored", &peer, &error), STATUS_ALREADY_EXISTS);
    assert_non_null(strstr(error.text, "b"));
    assert_int_equal(net_add_peer(pair.a->net, "a", NULL, &peer, &error), STATUS_INVALID_ARGUMENT);
    assert_int_equal(net_add_peer(pair.a->net, "", NULL, &peer, &error), STATUS_INVALID_ARGUMENT);
    char name[NODE_NAME_MAX_BYTES + 2];
    memset(name, 'x', sizeof name);
    name[NODE_NAME_MAX_BYTES + 1] = '\0';
    assert_int_equal(net_add_peer(pair.a->net, name, NULL, &peer, &error), STATUS_INVALID_ARGUMENT);
    struct net *net = NULL;
    assert_int_equal(mem_network_add(pair.network, name, &net, &error), STATUS_INVALID_ARGUMENT);
    name[NODE_NAME_MAX_BYTES] = '\0';
    assert_int_equal(net_add_peer(pair.a->net, name, NULL, &peer, &error), STATUS_OK);
    assert_int_equal(peer, 1);
    assert_int_equal(mem_network_add(pair.network, "a", &net, &error), STATUS_ALREADY_EXISTS);
    struct net_stream *stream = NULL;
    assert_int_equal(net_stream_open(pair.a->net, 0, NET_STREAM_DATA, &stream, &error), STATUS_UNREACHABLE);
    assert_non_null(strstr(error.text, "b"));
    pair_stop(&pair);
    struct mem_network *network = NULL;
    struct mem_conditions wrong = {.loss = 1.5};
    assert_int_equal(mem_network_new(1, &wrong, &network, &error), STATUS_INVALID_ARGUMENT);
}

/* Finds its peers whatever their number. */
static void test_many_peers(void **state)
{
    (void)state;
    struct mem_network *network = NULL;
    assert_int_equal(mem_network_new(1, &good, &network, NULL), STATUS_OK);
    struct net *net = NULL;
    assert_int_equal(mem_network_add(network, "center", &net, NULL), STATUS_OK);
    for (uint32_t i = 0; i <= NET_PEERS_MAX; i++) {
        char name[16];
        (void)snprintf(name, sizeof name, "n%u", i);
        uint32_t peer = 0;
        enum status status = net_add_peer(net, name, NULL, &peer, NULL);
        assert_int_equal(status, i < NET_PEERS_MAX ? STATUS_OK : STATUS_LIMIT);
        assert_int_equal(peer, i < NET_PEERS_MAX ? i : 0);
    }
    net_free(net);
    mem_network_free(network);
}

/* --- Connecting --- */

static void test_connect(void **state)
{
    (void)state;
    struct pair pair;
    pair_start(&pair, 2, &good, false);
    assert_true(mem_network_next_ns(pair.network) == TIME_NEVER);
    node_connect(pair.a, 0);
    node_connect(pair.a, 0); /* does nothing */
    assert_int_equal(pair.a->up[0], 0);
    pair_run(&pair, TIME_S);
    assert_int_equal(pair.a->up[0], 1);
    assert_int_equal(pair.b->up[0], 1);
    node_connect(pair.a, 0);
    node_connect(pair.b, 0);
    pair_run(&pair, 100 * TIME_S);
    assert_true(node_is_up(pair.a, 0));
    assert_true(node_is_up(pair.b, 0));
    assert_int_equal(pair.a->up[0] + pair.b->up[0], 2);
    assert_true(mem_network_next_ns(pair.network) == TIME_NEVER);
    pair_stop(&pair);
}

static void test_connect_under_loss(void **state)
{
    (void)state;
    struct mem_conditions conditions = {
        .loss = 0.3, .duplication = 0.1, .delay_ns = TIME_MS, .jitter_ns = TIME_MS};
    for (uint64_t seed = 100; seed < 300; seed++) {
        struct pair pair;
        pair_start(&pair, seed, &conditions, false);
        node_connect(pair.a, 0);
        pair_run(&pair, 5 * TIME_S);
        assert_int_equal(pair.a->failed[0], 0);
        assert_int_equal(pair.a->up[0], 1);
        assert_int_equal(pair.b->up[0], 1);
        pair_run(&pair, 60 * TIME_S);
        assert_int_equal(pair.a->down[0] + pair.b->down[0], 0);
        assert_true(mem_network_next_ns(pair.network) == TIME_NEVER);
        pair_stop(&pair);
    }
}

static void test_connect_failures(void **state)
{
    (void)state;
    struct pair pair;
    pair_start(&pair, 3, &good, false);
    uint32_t nobody = node_knows(pair.a, "nobody");
    struct node *stranger = malloc(sizeof *stranger);
    assert_non_null(stranger);
    node_start(stranger, pair.network, "stranger", 9);
    uint32_t known = node_knows(pair.a, "stranger");
    /* Nobody of that name: its host says so. */
    node_connect(pair.a, nobody);
    pair_run(&pair, TIME_S);
    assert_int_equal(pair.a->failed[nobody], 1);
    assert_int_equal(pair.a->cause.status, STATUS_UNREACHABLE);
    assert_non_null(strstr(pair.a->cause.text, "nobody"));
    assert_int_equal(pair.a->suspect[nobody], 0);
    /* The other does not know us. */
    node_connect(pair.a, known);
    pair_run(&pair, TIME_S);
    assert_int_equal(pair.a->failed[known], 1);
    assert_int_equal(pair.a->cause.status, STATUS_CERTIFICATE);
    assert_non_null(strstr(pair.a->cause.text, "stranger does not know node a"));
    struct net_statistics statistics;
    net_statistics(stranger->net, &statistics);
    assert_int_equal(statistics.refused_handshakes, 1);
    assert_int_equal(stranger->up[0], 0);
    /* Silence, either way. */
    for (unsigned i = 0; i < 2; i++) {
        mem_network_cut(pair.network, i == 0 ? "a" : "b", i == 0 ? "b" : "a", true);
        uint64_t begin_ns = pair.now_ns;
        node_connect(pair.a, 0);
        pair_run(&pair, 20 * TIME_S);
        assert_int_equal(pair.a->failed[0], i + 1);
        assert_int_equal(pair.a->cause.status, STATUS_TIMED_OUT);
        assert_true(pair.a->changed_ns == begin_ns + MEM_CONNECT_TIMEOUT_NS);
        mem_network_cut(pair.network, i == 0 ? "a" : "b", i == 0 ? "b" : "a", false);
    }
    assert_int_equal(pair.b->up[0], 0);
    assert_true(mem_network_next_ns(pair.network) == TIME_NEVER);
    /* And again, with success. */
    node_connect(pair.a, 0);
    pair_run(&pair, TIME_S);
    assert_true(node_is_up(pair.a, 0));
    node_stop(stranger);
    free(stranger);
    pair_stop(&pair);
}

/* Both dial at once: one connection stays, both sides agree, and data pass. */
static void test_simultaneous_dials(void **state)
{
    (void)state;
    struct mem_conditions conditions = {.loss = 0.05, .delay_ns = TIME_MS, .jitter_ns = 2 * TIME_MS};
    unsigned quiet = 0;
    for (uint64_t seed = 300; seed < 1300; seed++) {
        struct pair pair;
        pair_start(&pair, seed, &conditions, false);
        node_connect(seed % 2 == 0 ? pair.a : pair.b, 0);
        pair_run(&pair, (seed % 10) * 300 * TIME_US);
        node_connect(seed % 2 == 0 ? pair.b : pair.a, 0);
        pair_run(&pair, 30 * TIME_S);
        assert_true(node_is_up(pair.a, 0));
        assert_true(node_is_up(pair.b, 0));
        assert_int_equal(pair.a->failed[0] + pair.b->failed[0], 0);
        quiet += pair.a->up[0] + pair.b->up[0] == 2;
        for (unsigned side = 0; side < 2; side++) {
            struct node *node = side == 0 ? pair.a : pair.b;
            uint8_t byte = 1;
            struct sending sending = {0};
            struct net_stream *stream = pair_open(node);
            assert_int_equal(node_send(node, stream, NULL, 0, &byte, 1, &sending), STATUS_OK);
            pair_run(&pair, TIME_S);
            assert_int_equal(sending.status, STATUS_OK);
            assert_int_equal(sending.done, 1);
            net_stream_finish(stream);
        }
        pair_stop(&pair);
    }
    assert_true(quiet > 300);
}

/* --- Links --- */

static void test_conditions_of_one_link(void **state)
{
    (void)state;
    struct pair pair;
    pair_start(&pair, 8, &good, true);
    struct mem_conditions slow = {.delay_ns = 50 * TIME_MS};
    mem_network_set_link(pair.network, "a", "b", &slow);
    uint8_t byte = 1;
    struct sending sendings[2] = {{0}, {0}};
    struct net_stream *streams[2] = {pair_open(pair.a), pair_open(pair.b)};
    uint64_t begin_ns = pair.now_ns;
    assert_int_equal(node_send(pair.a, streams[0], NULL, 0, &byte, 1, &sendings[0]), STATUS_OK);
    assert_int_equal(node_send(pair.b, streams[1], NULL, 0, &byte, 1, &sendings[1]), STATUS_OK);
    pair_run(&pair, TIME_MS);
    assert_int_equal(pair.a->incoming_count, 1);
    assert_int_equal(pair.b->incoming_count, 0);
    pair_run(&pair, TIME_S);
    assert_int_equal(pair.b->incoming_count, 1);
    for (unsigned i = 0; i < 2; i++) {
        assert_true(sendings[i].done_ns - begin_ns >= 50 * TIME_MS &&
                    sendings[i].done_ns - begin_ns < 51 * TIME_MS);
        net_stream_finish(streams[i]);
    }
    struct mem_network_counters counters;
    mem_network_counters(pair.network, &counters);
    assert_int_equal(counters.retransmitted_bytes, 0);
    pair_stop(&pair);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_many_peers),
        cmocka_unit_test(test_connect),
        cmocka_unit_test(test_connect_under_loss),
        cmocka_unit_test(test_connect_failures),
        cmocka_unit_test(test_simultaneous_dials),
        cmocka_unit_test(test_conditions_of_one_link),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
