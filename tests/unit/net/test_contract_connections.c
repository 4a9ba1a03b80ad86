#include "tests/unit/net/network_nodes.h"

/* Checks net.h's promises about connections on both networks of tests/network: how they begin,
 * break and end. */

static void test_connect(void **state)
{
    (void)state;
    struct pair pair;
    pair_start(&pair, 2, &good, false);
    pair_check_quiet(&pair);
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
    pair_check_quiet(&pair);
    pair_stop(&pair);
}

static void test_connect_under_loss(void **state)
{
    (void)state;
    struct network_conditions conditions = {
        .loss = 0.1, .duplication = 0.1, .delay_ns = TIME_MS, .jitter_ns = TIME_MS};
    for (uint64_t seed = 100; seed < 130; seed++) {
        struct pair pair;
        pair_start(&pair, seed, &conditions, false);
        node_connect(pair.a, 0);
        pair_run(&pair, 5 * TIME_S);
        assert_int_equal(pair.a->failed[0], 0);
        assert_int_equal(pair.a->up[0], 1);
        assert_int_equal(pair.b->up[0], 1);
        pair_run(&pair, 60 * TIME_S);
        assert_int_equal(pair.a->down[0] + pair.b->down[0], 0);
        pair_check_quiet(&pair);
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
    /* No node has that name; its host answers so. */
    node_connect(pair.a, nobody);
    pair_run(&pair, TIME_S);
    assert_int_equal(pair.a->failed[nobody], 1);
    assert_int_equal(pair.a->cause.status, STATUS_UNREACHABLE);
    assert_non_null(strstr(pair.a->cause.text, "nobody"));
    assert_int_equal(pair.a->suspect[nobody], 0);
    /* The stranger does not know node a. */
    node_connect(pair.a, known);
    pair_run(&pair, TIME_S);
    assert_int_equal(pair.a->failed[known], 1);
    assert_int_equal(pair.a->cause.status, STATUS_CERTIFICATE);
    assert_non_null(strstr(pair.a->cause.text, "stranger"));
    struct net_statistics statistics;
    net_statistics(stranger->net, &statistics);
    assert_int_equal(statistics.refused_handshakes, 1);
    assert_int_equal(stranger->up[0], 0);
    /* The network loses all packets, first from a to b, then from b to a. */
    for (unsigned i = 0; i < 2; i++) {
        network_cut(pair.network, i == 0 ? "a" : "b", i == 0 ? "b" : "a", true);
        uint64_t begin_ns = pair.now_ns;
        node_connect(pair.a, 0);
        pair_run(&pair, 20 * TIME_S);
        assert_int_equal(pair.a->failed[0], i + 1);
        assert_int_equal(pair.a->cause.status, STATUS_TIMED_OUT);
        assert_true(pair.a->changed_ns == begin_ns + NETWORK_CONNECT_TIMEOUT_NS);
        network_cut(pair.network, i == 0 ? "a" : "b", i == 0 ? "b" : "a", false);
    }
    assert_int_equal(pair.b->up[0], 0);
    pair_check_quiet(&pair);
    /* And again, with success. */
    node_connect(pair.a, 0);
    pair_run(&pair, TIME_S);
    assert_true(node_is_up(pair.a, 0));
    node_stop(stranger);
    free(stranger);
    pair_stop(&pair);
}

/* Both nodes dial at once. One connection stays, both nodes agree on it, and data pass. */
static void test_simultaneous_dials(void **state)
{
    (void)state;
    struct network_conditions conditions = {.loss = 0.05, .delay_ns = TIME_MS, .jitter_ns = 2 * TIME_MS};
    unsigned quiet = 0;
    for (uint64_t seed = 300; seed < (on_datagrams ? 330u : 500u); seed++) {
        struct pair pair;
        pair_start(&pair, seed, &conditions, false);
        node_connect(seed % 2 == 0 ? pair.a : pair.b, 0);
        pair_run(&pair, (seed % 10) * 300 * TIME_US);
        node_connect(seed % 2 == 0 ? pair.b : pair.a, 0);
        pair_run(&pair, 30 * TIME_S);
        assert_true(node_is_up(pair.a, 0));
        assert_true(node_is_up(pair.b, 0));
        if (pair.a->failed[0] + pair.b->failed[0] > 0) { /* QUIC's dial, refused for the other one */
            assert_true(on_datagrams);
            assert_non_null(strstr(pair.a->failed[0] > 0 ? pair.a->cause.text : pair.b->cause.text,
                                   "have another connection"));
        }
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
    assert_true(quiet > 10);
}

/* --- Endings --- */

enum ending {
    ENDING_DISCONNECT_A,
    ENDING_DISCONNECT_B,
    ENDING_FREE_B,
    ENDING_FREE_A,
    ENDING_KILL_B,
    ENDING_CUT_BOTH,
    ENDING_CUT_FORTH,
    ENDING_CUT_BACK,
    ENDING_RESTART_B,
    ENDING_COUNT
};

#define ENDING_STREAMS 4
#define ENDING_SENDS 8

/* Whether the process of the last connection is known to have ended. */
static bool other_ended(const struct node *node)
{
    struct net_peer_statistics statistics;
    net_peer_statistics(node->net, 0, &statistics);
    return statistics.process_ended;
}

static void end_by_disconnect(struct pair *pair, struct node *node, struct node *other)
{
    struct error cause;
    error_set(&cause, STATUS_PROTOCOL, "enough is enough");
    node->calling = true;
    net_disconnect(node->net, 0, &cause);
    net_disconnect(node->net, 0, &cause);
    node->calling = false;
    assert_int_equal(node->down[0], 0);
    struct net_stream *stream = NULL;
    assert_int_equal(net_stream_open(node->net, 0, NET_STREAM_DATA, &stream, NULL), STATUS_UNREACHABLE);
    pair_run(pair, 0);
    assert_int_equal(node->down[0], 1);
    assert_int_equal(node->cause.status, STATUS_PROTOCOL);
    assert_string_equal(node->cause.text, "enough is enough");
    pair_run(pair, 10 * TIME_MS);
    assert_int_equal(other->down[0], 1);
    assert_int_equal(other->cause.status, STATUS_PROTOCOL);
    assert_non_null(strstr(other->cause.text, "enough is enough"));
    assert_false(other_ended(node) || other_ended(other));
}

static void end_by_free(struct pair *pair, struct node *node, struct node *other)
{
    node_stop(node);
    assert_int_equal(node->down[0], 0);
    pair_run(pair, 10 * TIME_MS);
    assert_int_equal(other->down[0], 1);
    assert_int_equal(other->cause.status, STATUS_SHUTTING_DOWN);
    assert_true(other_ended(other));
    node_start(node, pair->network, node == pair->a ? "a" : "b", 1);
}

static void end_by_kill(struct pair *pair)
{
    network_kill(pair->network, "b");
    pair_run(pair, NETWORK_IDLE_TIMEOUT_NS - TIME_S);
    assert_int_equal(pair->a->down[0] + pair->b->down[0], 0); /* nobody tells them */
    pair_run(pair, 2 * TIME_S);
    assert_int_equal(pair->a->down[0], 1);
    assert_int_equal(pair->b->down[0], 1);
    assert_int_equal(pair->a->cause.status, STATUS_NODE_LOST);
    assert_int_equal(pair->b->cause.status, STATUS_NODE_LOST);
    assert_int_equal(pair->a->suspect[0], 0);
    assert_false(other_ended(pair->a) || other_ended(pair->b));
}

static void end_by_cut(struct pair *pair, bool forth, bool back)
{
    network_cut(pair->network, "a", "b", forth);
    network_cut(pair->network, "b", "a", back);
    pair_run(pair, NETWORK_IDLE_TIMEOUT_NS - TIME_S);
    assert_int_equal(pair->a->down[0] + pair->b->down[0], 0);
    pair_run(pair, 2 * NETWORK_IDLE_TIMEOUT_NS + TIME_S);
    assert_int_equal(pair->a->down[0], 1);
    assert_int_equal(pair->b->down[0], 1);
    assert_false(other_ended(pair->a) || other_ended(pair->b));
    network_cut(pair->network, "a", "b", false);
    network_cut(pair->network, "b", "a", false);
}

/* Node b dies without a word, and is back within the idle time-out. Its host then tells node a. */
static void end_by_restart(struct pair *pair)
{
    network_kill(pair->network, "b");
    node_stop(pair->b);
    node_start(pair->b, pair->network, "b", 1);
    assert_int_equal(node_knows(pair->b, "a"), 0);
    pair_run(pair, TIME_S);
    assert_int_equal(pair->a->down[0], 1);
    assert_int_equal(pair->a->cause.status, STATUS_NODE_LOST);
}

static void make_ending(struct pair *pair, enum ending ending)
{
    switch (ending) {
    case ENDING_DISCONNECT_A:
        end_by_disconnect(pair, pair->a, pair->b);
        return;
    case ENDING_DISCONNECT_B:
        end_by_disconnect(pair, pair->b, pair->a);
        return;
    case ENDING_FREE_A:
        end_by_free(pair, pair->a, pair->b);
        return;
    case ENDING_FREE_B:
        end_by_free(pair, pair->b, pair->a);
        return;
    case ENDING_KILL_B:
        end_by_kill(pair);
        return;
    case ENDING_CUT_BOTH:
    case ENDING_CUT_FORTH:
    case ENDING_CUT_BACK:
        end_by_cut(pair, ending != ENDING_CUT_BACK, ending != ENDING_CUT_FORTH);
        return;
    case ENDING_RESTART_B:
        end_by_restart(pair);
        return;
    case ENDING_COUNT:
        return;
    }
}

/* Node a connects again after the connection was lost. A killed node b must first come back as a new node. */
static void connect_again(struct pair *pair, enum ending ending)
{
    if (ending == ENDING_DISCONNECT_A || ending >= ENDING_CUT_BOTH) {
        node_connect(pair->a, 0);
        pair_run(pair, TIME_S);
        assert_true(node_is_up(pair->a, 0));
        assert_true(node_is_up(pair->b, 0));
    }
    if (ending == ENDING_KILL_B) {
        node_connect(pair->a, 0);
        pair_run(pair, 10 * TIME_S);
        assert_int_equal(pair->a->cause.status, STATUS_TIMED_OUT);
        node_connect(pair->b, 0);
        pair_run(pair, 10 * TIME_S);
        assert_int_equal(pair->b->cause.status, STATUS_TIMED_OUT);
        node_stop(pair->b);
        node_start(pair->b, pair->network, "b", 3);
        assert_int_equal(node_knows(pair->b, "a"), 0);
        node_connect(pair->b, 0);
        pair_run(pair, TIME_S);
        assert_true(node_is_up(pair->b, 0));
    }
}

/* The connection ends in the middle of transfers in both directions. The nodes check every promise. */
static void run_ending(uint64_t seed, enum ending ending)
{
    struct pair pair;
    pair_start(&pair, seed, &good, true);
    pair.b->hold_chance = 0.1;
    size_t size = 300000;
    uint8_t *bytes = malloc(size * ENDING_SENDS);
    assert_non_null(bytes);
    pattern_fill(0x55, 0, bytes, size * ENDING_SENDS);
    struct sending sendings[2][ENDING_STREAMS][ENDING_SENDS];
    struct net_stream *streams[2][ENDING_STREAMS];
    uint64_t orders[2][ENDING_STREAMS];
    memset(sendings, 0, sizeof sendings);
    memset(orders, 0, sizeof orders);
    for (unsigned side = 0; side < 2; side++) {
        for (unsigned i = 0; i < ENDING_STREAMS; i++) {
            struct node *node = side == 0 ? pair.a : pair.b;
            streams[side][i] = pair_open(node);
            for (unsigned j = 0; j < ENDING_SENDS; j++) {
                struct sending *sending = &sendings[side][i][j];
                sending->order = &orders[side][i];
                sending->number = j;
                assert_int_equal(node_send(node, streams[side][i], NULL, 0, bytes + j * size, size, sending),
                                 STATUS_OK);
            }
        }
        net_stream_finish(streams[side][0]);
    }
    pair_run(&pair, TIME_MS);
    assert_true(pair.a->open_from[0] > 0 && pair.b->open_from[0] > 0);
    assert_int_equal(sendings[0][0][ENDING_SENDS - 1].done, 0);
    make_ending(&pair, ending);
    for (unsigned side = 0; side < 2; side++) {
        struct node *node = side == 0 ? pair.a : pair.b;
        bool freed = (ending == ENDING_FREE_A && side == 0) || (ending == ENDING_FREE_B && side == 1) ||
                     (ending == ENDING_RESTART_B && side == 1);
        unsigned aborted = 0;
        for (unsigned i = 0; i < ENDING_STREAMS; i++) {
            for (unsigned j = 0; j < ENDING_SENDS; j++) {
                assert_int_equal(sendings[side][i][j].done, 1);
                aborted += sendings[side][i][j].status != STATUS_OK;
            }
            if (i > 0 && !freed) {
                /* The streams of a lost connection are closed, but still belong to their owner. */
                assert_int_equal(node_send(node, streams[side][i], NULL, 0, bytes, 1, NULL),
                                 STATUS_UNREACHABLE);
                node_call(node, i == 1 ? net_stream_finish : net_stream_reset, streams[side][i]);
            }
        }
        assert_true(aborted > 0);
        assert_int_equal(node->open_from[0], 0);
    }
    /* The network no longer uses the buffers. */
    memset(bytes, 0, size * ENDING_SENDS);
    free(bytes);
    pair_run(&pair, 100 * TIME_S);
    connect_again(&pair, ending);
    pair_stop(&pair);
}

static void test_every_ending_keeps_the_promises(void **state)
{
    (void)state;
    for (unsigned ending = 0; ending < ENDING_COUNT; ending++) {
        for (uint64_t seed = 1000; seed < (on_datagrams ? 1001u : 1003u); seed++) {
            run_ending(seed, (enum ending)ending);
        }
    }
}

static void test_a_dropped_attempt_has_no_outcome(void **state)
{
    (void)state;
    struct pair pair;
    pair_start(&pair, 4, &good, false);
    struct error cause;
    error_set(&cause, STATUS_ABORTED, "changed our mind");
    node_connect(pair.a, 0);
    net_disconnect(pair.a->net, 0, &cause);
    node_connect(pair.a, 0);
    pair_run(&pair, 150 * TIME_US); /* the peer has answered */
    net_disconnect(pair.a->net, 0, &cause);
    pair_run(&pair, 60 * TIME_S);
    assert_int_equal(pair.a->up[0] + pair.a->failed[0] + pair.b->up[0] + pair.b->failed[0], 0);
    pair_check_quiet(&pair);
    pair_stop(&pair);
}

static void test_a_short_blackhole_loses_nothing(void **state)
{
    (void)state;
    struct pair pair;
    struct network_conditions slow = bad;
    slow.bandwidth_bytes_s = 20000000;
    pair_start(&pair, 5, &slow, true);
    size_t size = 3000000;
    uint8_t *bytes = malloc(size);
    assert_non_null(bytes);
    pattern_fill(8, 0, bytes, size);
    struct sending sending = {0};
    struct net_stream *stream = pair_open(pair.a);
    assert_int_equal(node_send(pair.a, stream, NULL, 0, bytes, size, &sending), STATUS_OK);
    net_stream_finish(stream);
    for (unsigned i = 0; i < 4; i++) {
        pair_run(&pair, 5 * TIME_MS);
        if (i != 1) {
            network_cut(pair.network, "a", "b", true);
        }
        if (i != 2) {
            network_cut(pair.network, "b", "a", true);
        }
        pair_run(&pair, 2 * TIME_S);
        assert_int_equal(sending.done, 0);
        network_cut(pair.network, "a", "b", false);
        network_cut(pair.network, "b", "a", false);
    }
    pair_run(&pair, 10 * TIME_S);
    assert_int_equal(sending.status, STATUS_OK);
    assert_int_equal(sending.done, 1);
    assert_int_equal(pair.b->incoming[0].seen, size);
    assert_int_equal(pair.a->down[0] + pair.b->down[0], 0);
    free(bytes);
    pair_stop(&pair);
}

static void test_a_freed_net_makes_its_peers_suspicious(void **state)
{
    (void)state;
    struct pair pair;
    pair_start(&pair, 7, &good, true);
    uint8_t byte = 1;
    struct sending sending = {0};
    struct net_stream *stream = pair_open(pair.a);
    network_cut(pair.network, "b", "a", true);
    node_stop(pair.b); /* its farewell is lost */
    network_cut(pair.network, "b", "a", false);
    assert_int_equal(node_send(pair.a, stream, NULL, 0, &byte, 1, &sending), STATUS_OK);
    pair_run(&pair, TIME_S);
    assert_int_equal(pair.a->down[0], 0);
    assert_true(pair.a->suspect[0] > 0);
    pair_run(&pair, 31 * TIME_S);
    assert_int_equal(pair.a->down[0], 1);
    net_stream_reset(stream);
    node_start(pair.b, pair.network, "b", 1);
    pair_stop(&pair);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_connect),
        cmocka_unit_test(test_connect_under_loss),
        cmocka_unit_test(test_connect_failures),
        cmocka_unit_test(test_simultaneous_dials),
        cmocka_unit_test(test_every_ending_keeps_the_promises),
        cmocka_unit_test(test_a_dropped_attempt_has_no_outcome),
        cmocka_unit_test(test_a_short_blackhole_loses_nothing),
        cmocka_unit_test(test_a_freed_net_makes_its_peers_suspicious),
    };
    return cmocka_run_group_tests_name("pipes", tests, use_pipes, NULL) |
           cmocka_run_group_tests_name("datagrams", tests, use_datagrams, NULL);
}
