#include "tests/unit/net/network_nodes.h"

/* Checks net.h's promises about the ends of streams, on both networks of tests/network. */

static void test_empty_messages_and_empty_ends(void **state)
{
    (void)state;
    struct pair pair;
    pair_start(&pair, 60, &bad, true);
    struct sending sendings[4] = {{0}, {0}, {0}, {0}};
    struct net_stream *stream = pair_open(pair.a);
    uint8_t bytes[5];
    pattern_fill(4, 0, bytes, 5);
    assert_int_equal(node_send(pair.a, stream, NULL, 0, NULL, 0, &sendings[0]), STATUS_OK);
    assert_int_equal(node_send(pair.a, stream, NULL, 0, bytes, 5, &sendings[1]), STATUS_OK);
    assert_int_equal(node_send(pair.a, stream, NULL, 0, NULL, 0, &sendings[2]), STATUS_OK);
    pair_run(&pair, TIME_S);
    assert_int_equal(sendings[2].done, 1);
    assert_true(sendings[0].done_ns <= sendings[1].done_ns);
    assert_true(sendings[1].done_ns == sendings[2].done_ns);
    assert_int_equal(node_send(pair.a, stream, NULL, 0, NULL, 0, &sendings[3]), STATUS_OK);
    assert_int_equal(sendings[3].done, 0);
    net_stream_finish(stream);
    pair_run(&pair, TIME_S);
    assert_int_equal(sendings[3].status, STATUS_OK);
    assert_int_equal(sendings[3].done, 1);
    assert_int_equal(pair.b->incoming[0].seen, 5);
    assert_true(pair.b->incoming[0].end);
    assert_null(pair.b->incoming[0].stream);
    /* Nothing but an end. */
    net_stream_finish(pair_open(pair.a));
    pair_run(&pair, TIME_S);
    assert_int_equal(pair.b->incoming_count, 2);
    assert_int_equal(pair.b->incoming[1].pieces, 1);
    assert_true(pair.b->incoming[1].end);
    assert_null(pair.b->incoming[1].stream);
    pair_stop(&pair);
}

static void test_end_behind_unconsumed_bytes(void **state)
{
    (void)state;
    struct pair pair;
    pair_start(&pair, 61, &good, true);
    pair.b->hold_all = true;
    uint8_t bytes[100];
    pattern_fill(4, 0, bytes, sizeof bytes);
    struct net_stream *stream = pair_open(pair.a);
    struct sending sending = {0};
    assert_int_equal(node_send(pair.a, stream, NULL, 0, bytes, sizeof bytes, &sending), STATUS_OK);
    pair_run(&pair, TIME_S);
    net_stream_finish(stream);
    pair_run(&pair, TIME_S);
    assert_int_equal(sending.done, 1);
    assert_int_equal(pair.b->incoming[0].pieces, 1);
    assert_int_equal(pair.b->open_from[0], 1);
    pair.b->hold_all = false;
    node_resume_all(pair.b);
    pair_run(&pair, TIME_S);
    assert_int_equal(pair.b->incoming[0].pieces, 2);
    assert_true(pair.b->incoming[0].end);
    assert_null(pair.b->incoming[0].stream);
    pair_stop(&pair);
}

static void test_reset_by_the_sender(void **state)
{
    (void)state;
    for (uint64_t seed = 70; seed < 90; seed++) {
        struct pair pair;
        pair_start(&pair, seed, &bad, true);
        pair.b->hold_chance = 0.1;
        struct sending sendings[2] = {{0}, {0}};
        static uint8_t bytes[1000000];
        pattern_fill(4, 0, bytes, sizeof bytes);
        struct net_stream *stream = pair_open(pair.a);
        assert_int_equal(node_send(pair.a, stream, NULL, 0, bytes, 1000, &sendings[0]), STATUS_OK);
        assert_int_equal(node_send(pair.a, stream, NULL, 0, bytes + 1000, 999000, &sendings[1]), STATUS_OK);
        pair_run(&pair, (seed - 70) * 200 * TIME_US);
        node_call(pair.a, net_stream_reset, stream);
        pair_run(&pair, 0);
        assert_int_equal(sendings[0].done, 1);
        assert_int_equal(sendings[1].done, 1);
        assert_int_equal(sendings[1].status, STATUS_ABORTED);
        memset(bytes, 0, sizeof bytes); /* the network must not read the buffer any more */
        pair_run(&pair, 5 * TIME_S);
        assert_int_equal(pair.b->open_from[0], 0);
        assert_true(pair.b->incoming_count <= 1);
        if (pair.b->incoming_count == 1) {
            assert_int_equal(pair.b->incoming[0].status, STATUS_ABORTED);
        }
        pair_check_quiet(&pair);
        pair_stop(&pair);
    }
}

static void reset_incoming(struct node *node, struct incoming *incoming)
{
    node_call(node, net_stream_reset, incoming->stream);
    node_call(node, net_stream_resume, incoming->stream); /* has no effect */
}

static void test_reset_by_the_receiver(void **state)
{
    (void)state;
    for (uint64_t seed = 90; seed < 110; seed++) {
        struct pair pair;
        pair_start(&pair, seed, &bad, true);
        pair.b->hold_chance = 0.5;
        pair.b->on_receive = seed % 2 == 0 ? reset_incoming : NULL;
        struct sending sendings[2] = {{0}, {0}};
        size_t size = NET_STREAM_WINDOW_BYTES;
        uint8_t *bytes = malloc(2 * size);
        assert_non_null(bytes);
        pattern_fill(4, 0, bytes, 2 * size);
        struct net_stream *stream = pair_open(pair.a);
        assert_int_equal(node_send(pair.a, stream, NULL, 0, bytes, size, &sendings[0]), STATUS_OK);
        assert_int_equal(node_send(pair.a, stream, NULL, 0, bytes + size, size, &sendings[1]), STATUS_OK);
        for (unsigned i = 0; i < 100 && pair.b->incoming_count == 0; i++) {
            pair_run(&pair, TIME_MS);
        }
        assert_int_equal(pair.b->incoming_count, 1);
        if (seed % 2 == 1) {
            assert_int_equal(pair.b->open_from[0], 1);
            reset_incoming(pair.b, &pair.b->incoming[0]);
            assert_int_equal(pair.b->open_from[0], 1);
            pair_run(&pair, 0);
        }
        assert_int_equal(pair.b->open_from[0], 0);
        assert_int_equal(pair.b->incoming[0].status, STATUS_ABORTED);
        pair_run(&pair, TIME_S);
        assert_int_equal(sendings[0].status, STATUS_ABORTED);
        assert_int_equal(sendings[1].status, STATUS_ABORTED);
        /* The sender's pointer stays valid until the sender finishes or resets the stream. */
        assert_int_equal(node_send(pair.a, stream, NULL, 0, bytes, 1, NULL), STATUS_UNREACHABLE);
        node_call(pair.a, seed % 4 < 2 ? net_stream_finish : net_stream_reset, stream);
        pair_run(&pair, TIME_S);
        assert_int_equal(pair.b->incoming_count, 1);
        assert_int_equal(pair.a->down[0], 0);
        free(bytes);
        pair_stop(&pair);
    }
}

static void test_streams_of_a_kind_without_handler(void **state)
{
    (void)state;
    struct pair pair;
    pair_start(&pair, 110, &good, true);
    struct net_stream *stream = NULL;
    struct sending sending = {0};
    uint8_t byte = 1;
    assert_int_equal(net_stream_open(pair.a->net, 0, NET_STREAM_CONTROL, &stream, NULL), STATUS_OK);
    assert_int_equal(node_send(pair.a, stream, NULL, 0, &byte, 1, &sending), STATUS_OK);
    pair_run(&pair, TIME_S);
    assert_int_equal(sending.done, 1);
    assert_int_equal(node_send(pair.a, stream, NULL, 0, &byte, 1, NULL), STATUS_UNREACHABLE);
    net_stream_finish(stream);
    assert_true(node_is_up(pair.a, 0));
    pair_stop(&pair);
}

/* One user cannot open all streams: some are left for others. A stream that ends is free again. */
static void test_users_share_the_streams(void **state)
{
    (void)state;
    enum { FIRST = NET_STREAMS_MAX / 4 * 3 };
    static const uint32_t uids[] = {1000, 1001};
    static struct net_stream *streams[FIRST];
    struct net_stream *seconds[8] = {NULL}, *more = NULL;
    struct pair pair;
    struct error error;
    pair_start(&pair, 111, &good, true);
    for (uint32_t i = 0; i < FIRST; i++) {
        assert_int_equal(
            net_stream_open_for(pair.a->net, 0, NET_STREAM_DATA, uids[0], NULL, &streams[i], &error),
            STATUS_OK);
    }
    assert_int_equal(net_stream_open_for(pair.a->net, 0, NET_STREAM_DATA, uids[0], NULL, &more, &error),
                     STATUS_LIMIT);
    assert_non_null(strstr(error.text, "user 1000 has 49152 streams open"));
    for (uint32_t i = 0; i < 8; i++) { /* another user still finds some */
        assert_int_equal(
            net_stream_open_for(pair.a->net, 0, NET_STREAM_DATA, uids[1], NULL, &seconds[i], &error),
            STATUS_OK);
    }
    assert_int_equal(net_stream_open_for(pair.a->net, 0, NET_STREAM_DATA, uids[0], NULL, &more, &error),
                     STATUS_LIMIT);
    for (uint32_t i = 0; i < FIRST; i++) {
        i % 2 == 0 ? net_stream_reset(streams[i]) : net_stream_finish(streams[i]);
    }
    assert_int_equal(net_stream_open_for(pair.a->net, 0, NET_STREAM_DATA, uids[0], NULL, &more, &error),
                     STATUS_OK);
    net_stream_reset(more);
    for (uint32_t i = 0; i < 8; i++) {
        net_stream_reset(seconds[i]);
    }
    pair_stop(&pair);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_empty_messages_and_empty_ends),
        cmocka_unit_test(test_end_behind_unconsumed_bytes),
        cmocka_unit_test(test_reset_by_the_sender),
        cmocka_unit_test(test_reset_by_the_receiver),
        cmocka_unit_test(test_streams_of_a_kind_without_handler),
        cmocka_unit_test(test_users_share_the_streams),
    };
    return cmocka_run_group_tests_name("pipes", tests, use_pipes, NULL) |
           cmocka_run_group_tests_name("datagrams", tests, use_datagrams, NULL);
}
