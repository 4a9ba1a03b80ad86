#include "tests/unit/net/mem_nodes.h"

/* Connections over the in-memory network: how they break and end, or do not, and what is promised then. */

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
}

static void end_by_free(struct pair *pair, struct node *node, struct node *other)
{
    node_stop(node);
    assert_int_equal(node->down[0], 0);
    pair_run(pair, 10 * TIME_MS);
    assert_int_equal(other->down[0], 1);
    assert_int_equal(other->cause.status, STATUS_SHUTTING_DOWN);
    node_start(node, pair->network, node == pair->a ? "a" : "b", 1);
}

static void end_by_kill(struct pair *pair)
{
    mem_network_kill(pair->network, "b");
    pair_run(pair, MEM_IDLE_TIMEOUT_NS - TIME_S);
    assert_int_equal(pair->a->down[0] + pair->b->down[0], 0); /* nobody is told */
    pair_run(pair, 2 * TIME_S);
    assert_int_equal(pair->a->down[0], 1);
    assert_int_equal(pair->b->down[0], 1);
    assert_int_equal(pair->a->cause.status, STATUS_NODE_LOST);
    assert_int_equal(pair->b->cause.status, STATUS_NODE_LOST);
    assert_int_equal(pair->a->suspect[0], 0);
}

static void end_by_cut(struct pair *pair, bool forth, bool back)
{
    mem_network_cut(pair->network, "a", "b", forth);
    mem_network_cut(pair->network, "b", "a", back);
    pair_run(pair, MEM_IDLE_TIMEOUT_NS - TIME_S);
    assert_int_equal(pair->a->down[0] + pair->b->down[0], 0);
    pair_run(pair, 2 * MEM_IDLE_TIMEOUT_NS + TIME_S);
    assert_int_equal(pair->a->down[0], 1);
    assert_int_equal(pair->b->down[0], 1);
    mem_network_cut(pair->network, "a", "b", false);
    mem_network_cut(pair->network, "b", "a", false);
}

/* Silently gone and back within the idle time-out: its host answers for it. */
static void end_by_restart(struct pair *pair)
{
    mem_network_kill(pair->network, "b");
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

/* A node whose connection was lost connects again, or comes back as another. */
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

/* In the middle of transfers both ways; every promise is checked by the nodes. */
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
    pair_run(&pair, 2 * TIME_MS);
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
                /* The streams of a lost connection are closed, and still their owner's. */
                assert_int_equal(node_send(node, streams[side][i], NULL, 0, bytes, 1, NULL),
                                 STATUS_UNREACHABLE);
                node_call(node, i == 1 ? net_stream_finish : net_stream_reset, streams[side][i]);
            }
        }
        assert_true(aborted > 0);
        assert_int_equal(node->open_from[0], 0);
    }
    /* The buffers are ours again. */
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
        for (uint64_t seed = 1000; seed < 1003; seed++) {
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
    assert_true(mem_network_next_ns(pair.network) == TIME_NEVER);
    pair_stop(&pair);
}

static void test_a_short_blackhole_loses_nothing(void **state)
{
    (void)state;
    struct pair pair;
    pair_start(&pair, 5, &bad, true);
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
            mem_network_cut(pair.network, "a", "b", true);
        }
        if (i != 2) {
            mem_network_cut(pair.network, "b", "a", true);
        }
        pair_run(&pair, 2 * TIME_S);
        assert_int_equal(sending.done, 0);
        mem_network_cut(pair.network, "a", "b", false);
        mem_network_cut(pair.network, "b", "a", false);
    }
    pair_run(&pair, 2 * TIME_S);
    assert_int_equal(sending.status, STATUS_OK);
    assert_int_equal(sending.done, 1);
    assert_int_equal(pair.b->incoming[0].seen, size);
    assert_int_equal(pair.a->down[0] + pair.b->down[0], 0);
    free(bytes);
    pair_stop(&pair);
}

/* A dead peer is probed, not flooded. */
static void test_silence_is_cheap(void **state)
{
    (void)state;
    struct pair pair;
    pair_start(&pair, 6, &good, true);
    uint8_t *bytes = calloc(1, 1000000);
    assert_non_null(bytes);
    struct sending sending = {0};
    struct net_stream *stream = pair_open(pair.a);
    mem_network_kill(pair.network, "b");
    struct mem_network_counters before, after;
    mem_network_counters(pair.network, &before);
    assert_int_equal(node_send(pair.a, stream, NULL, 0, bytes, 1000000, &sending), STATUS_OK);
    pair_run(&pair, 31 * TIME_S);
    mem_network_counters(pair.network, &after);
    assert_int_equal(sending.status, STATUS_NODE_LOST);
    assert_int_equal(pair.a->suspect[0], 0);
    assert_true(after.packets - before.packets < 2000);
    net_stream_reset(stream);
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
    mem_network_cut(pair.network, "b", "a", true);
    node_stop(pair.b); /* its farewell is lost */
    mem_network_cut(pair.network, "b", "a", false);
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
        cmocka_unit_test(test_every_ending_keeps_the_promises),
        cmocka_unit_test(test_a_dropped_attempt_has_no_outcome),
        cmocka_unit_test(test_a_short_blackhole_loses_nothing),
        cmocka_unit_test(test_silence_is_cheap),
        cmocka_unit_test(test_a_freed_net_makes_its_peers_suspicious),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
