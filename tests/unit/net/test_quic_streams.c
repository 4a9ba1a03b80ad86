#include "tests/unit/net/quic_nodes.h"

#include <malloc.h>

#include "daemon/net/quic_internal.h"

/* Streams between two connected endpoints in one process. These tests check what test_contract.c does not. */

static int setup(void **state)
{
    if (setup_nodes(state) != 0) {
        return -1;
    }
    quic_nodes_connect(a, b);
    return 0;
}

struct sources {
    struct quic_source **list;
    unsigned count;
};

static bool sources_done(const void *context)
{
    const struct sources *sources = context;
    for (unsigned i = 0; i < sources->count; i++) {
        if (!quic_source_done(sources->list[i])) {
            return false;
        }
    }
    return true;
}

static unsigned sinks_closed(const struct quic_node *node)
{
    unsigned count = 0;
    for (const struct quic_sink *sink = node->sinks; sink != NULL; sink = sink->next) {
        count += sink->closed;
    }
    return count;
}

struct closings {
    const struct quic_node *node;
    unsigned count;
};

static bool enough_closed(const void *context)
{
    const struct closings *closings = context;
    return sinks_closed(closings->node) >= closings->count;
}

static void assert_closed(struct quic_node *node, unsigned count)
{
    struct closings closings = {node, count};
    assert_true(quic_run_until(loop, enough_closed, &closings, 20000));
}

/* --- Transfers --- */

static void both_directions_at_odd_sizes(void **state)
{
    (void)state;
    enum { SIZE = 64 << 20 };
    a->consume_max = 70001; /* at most so many bytes at a time: the rest is given again */
    b->consume_max = 4093;
    struct quic_source *list[] = {quic_source_new(a, 0, 11, SIZE, (1u << 20) + 13, true),
                                  quic_source_new(b, 0, 12, SIZE + 1, (3u << 20) - 7, true)};
    struct sources sources = {list, 2};
    assert_true(quic_run_until(loop, sources_done, &sources, 40000));
    assert_closed(a, 1);
    assert_closed(b, 1);
    assert_true(quic_sink_complete(a->sinks));
    assert_true(quic_sink_complete(b->sinks));
    for (unsigned i = 0; i < 2; i++) {
        assert_int_equal(list[i]->failed, 0);
        quic_source_free(list[i]);
    }
}

static void sizes_around_every_boundary(void **state)
{
    (void)state;
    static const size_t sizes[] = {0,    1,    2,    1162,  1163,  1199,  1200,   1201,   1451,   1452,
                                   1453, 4095, 4096, 65535, 65536, 65537, 131071, 131072, 131073, 1000003};
    enum { COUNT = sizeof sizes / sizeof sizes[0] };
    struct quic_source *list[COUNT];
    for (unsigned i = 0; i < COUNT; i++) {
        list[i] = quic_source_new(a, 0, 100 + i, sizes[i], i % 2 == 0 ? 100000 : 1021, true);
    }
    struct sources sources = {list, COUNT};
    assert_true(quic_run_until(loop, sources_done, &sources, 10000));
    assert_closed(b, COUNT);
    for (const struct quic_sink *sink = b->sinks; sink != NULL; sink = sink->next) {
        assert_true(quic_sink_complete(sink));
    }
    for (unsigned i = 0; i < COUNT; i++) {
        assert_int_equal(list[i]->failed, 0);
        quic_source_free(list[i]);
    }
}

static void a_thousand_streams_at_once(void **state)
{
    (void)state;
    enum { COUNT = 1000 };
    static struct quic_source *list[2 * COUNT];
    for (unsigned round = 0; round < 3; round++) {
        unsigned before = b->sink_count;
        for (unsigned i = 0; i < COUNT; i++) {
            list[i] = quic_source_new(a, 0, round * COUNT + i, 1 + i * 13, 700, true);
            list[COUNT + i] = quic_source_new(b, 0, ~(uint64_t)i, 1 + i * 7, 900, true);
        }
        struct sources sources = {list, 2 * COUNT};
        assert_true(quic_run_until(loop, sources_done, &sources, 20000));
        assert_closed(b, before + COUNT);
        assert_closed(a, before + COUNT);
        for (unsigned i = 0; i < 2 * COUNT; i++) {
            assert_int_equal(list[i]->failed, 0);
            quic_source_free(list[i]);
        }
    }
    const struct quic_node *const nodes[] = {a, b};
    for (unsigned i = 0; i < 2; i++) {
        for (const struct quic_sink *sink = nodes[i]->sinks; sink != NULL; sink = sink->next) {
            assert_true(quic_sink_complete(sink));
        }
    }
}

static void count_sent(void *context, enum status result, uint64_t now_ns)
{
    (void)now_ns;
    unsigned *counts = context;
    counts[result == STATUS_OK ? 0 : 1]++;
}

/* A large transfer does not hold up a small one that comes after it. */
static void streams_take_turns(void **state)
{
    (void)state;
    struct quic_source *large = quic_source_new(a, 0, 1, 64u << 20, 1u << 20, true);
    assert_true(quic_run_until_count(loop, &b->sink_count, 1, 5000));
    struct quic_source *small = quic_source_new(a, 0, 2, 200000, 1u << 20, true);
    assert_true(quic_run_until(loop, source_done, small, 5000));
    assert_true(large->done < large->sends);
    assert_true(quic_run_until(loop, source_done, large, 20000));
    assert_closed(b, 2);
    quic_source_free(large);
    quic_source_free(small);
}

/* --- Back-pressure --- */

static void a_receiver_that_refuses_holds_the_sender_back(void **state)
{
    (void)state;
    enum { SIZE = 40 << 20 };
    b->hold = true;
    struct quic_source *held = quic_source_new(a, 0, 21, SIZE, 16384, true);
    quic_run_for(loop, 200);
    assert_int_equal(b->sink_count, 1);
    struct quic_sink *sink = b->sinks;
    assert_int_equal(sink->received, 0);
    assert_in_range(held->done, (NET_STREAM_FIRST_WINDOW_BYTES >> 14) - 1,
                    NET_STREAM_FIRST_WINDOW_BYTES >> 14);
    size_t kept = mallinfo2().uordblks + mallinfo2().hblkhd;

    b->hold = false; /* another stream goes on meanwhile */
    struct quic_source *other = quic_source_new(a, 0, 22, SIZE, 1u << 20, true);
    assert_true(quic_run_until(loop, source_done, other, 10000));
    assert_closed(b, 1);
    assert_true(quic_sink_complete(b->sinks));
    assert_false(sink->closed);
    assert_true(held->done <= NET_STREAM_FIRST_WINDOW_BYTES >> 14);
    quic_source_free(other);
    size_t now = mallinfo2().uordblks + mallinfo2().hblkhd;
    assert_true(now < kept + (2u << 20)); /* nothing piles up behind a held stream */

    quic_sink_release(sink);
    assert_true(quic_run_until(loop, source_done, held, 10000));
    assert_closed(b, 2);
    assert_true(quic_sink_complete(sink));
    quic_source_free(held);
}

/* However many streams are held back, other data and control streams get through. The kept bytes have given
 * back their part of the connection's window. The streams' own windows bound how much is kept. */
static void held_streams_block_no_others(void **state)
{
    (void)state;
    enum { COUNT = 200, WINDOW_BYTES = 4 << 20 };
    struct quic_source *list[COUNT];
    struct error error;
    error_set(&error, STATUS_ABORTED, "again, with a smaller window");
    ((struct quic_endpoint *)b->net)->connection_window_bytes = WINDOW_BYTES;
    net_disconnect(a->net, 0, &error);
    assert_true(quic_run_until_count(loop, &b->down_calls[0], 1, 5000));
    quic_node_connect(a, 0);
    assert_true(quic_run_until_count(loop, &a->up_calls[0], 2, 5000));
    b->hold = true;
    for (unsigned i = 0; i < COUNT; i++) {
        list[i] = quic_source_new(a, 0, i, 5u << 20, 1u << 14, true);
    }
    unsigned acknowledged = 0;
    for (unsigned turn = 0; turn < 100 && acknowledged < COUNT * ((NET_STREAM_FIRST_WINDOW_BYTES >> 14) - 1);
         turn++) {
        quic_run_for(loop, 50);
        acknowledged = 0;
        for (unsigned i = 0; i < COUNT; i++) {
            acknowledged += list[i]->done;
        }
    }
    quic_run_for(loop, 300);
    enum {
        WHOLE = NET_STREAM_FIRST_WINDOW_BYTES >> 14
    }; /* sends that fit in a window, with their kind or without */
    assert_in_range(acknowledged, COUNT * (WHOLE - 1), COUNT * WHOLE);
    assert_true((uint64_t)COUNT * NET_STREAM_FIRST_WINDOW_BYTES > WINDOW_BYTES);
    b->hold = false;
    struct quic_source *other = quic_source_new(a, 0, COUNT, 2 * WINDOW_BYTES, 1u << 20, true);
    assert_true(quic_run_until(loop, source_done, other, 10000));
    assert_closed(b, 1);
    quic_source_free(other);

    struct net_stream *stream;
    unsigned counts[2] = {0, 0};
    char bytes[1000] = "heartbeat";
    assert_int_equal(net_stream_open(a->net, 0, NET_STREAM_CONTROL, &stream, &error), STATUS_OK);
    for (unsigned i = 0; i < 100; i++) {
        assert_int_equal(net_stream_send(stream, NULL, 0, bytes, sizeof bytes, count_sent, counts),
                         STATUS_OK);
    }
    assert_true(quic_run_until_count(loop, &counts[0], 100, 5000));
    assert_int_equal(b->control_bytes, 100 * sizeof bytes);
    net_stream_finish(stream);

    for (struct quic_sink *sink = b->sinks; sink != NULL; sink = sink->next) {
        quic_sink_release(sink);
    }
    struct sources sources = {list, COUNT};
    assert_true(quic_run_until(loop, sources_done, &sources, 20000));
    assert_closed(b, COUNT + 1);
    for (const struct quic_sink *sink = b->sinks; sink != NULL; sink = sink->next) {
        assert_true(quic_sink_complete(sink));
    }
    for (unsigned i = 0; i < COUNT; i++) {
        quic_source_free(list[i]);
    }
}

/* --- Limits --- */

static void streams_have_their_limit(void **state)
{
    (void)state;
    enum { MOST = 65536 };
    static struct net_stream *streams[MOST];
    struct net_stream *stream = NULL;
    struct error error;
    for (unsigned i = 0; i < MOST; i++) {
        assert_int_equal(net_stream_open(a->net, 0, NET_STREAM_CONTROL, &streams[i], &error), STATUS_OK);
    }
    assert_int_equal(net_stream_open(a->net, 0, NET_STREAM_CONTROL, &stream, &error), STATUS_LIMIT);
    assert_non_null(strstr(error.text, "node b"));
    quic_run_for(loop, 500);
    for (unsigned i = 0; i < MOST; i++) {
        net_stream_finish(streams[i]);
    }
    for (unsigned turn = 0; turn < 100; turn++) { /* streams that end make room for new ones */
        quic_run_for(loop, 100);
        if (net_stream_open(a->net, 0, NET_STREAM_CONTROL, &stream, &error) == STATUS_OK) {
            break;
        }
        stream = NULL;
    }
    assert_non_null(stream);
    net_stream_reset(stream);
    assert_true(a->up[0]);
}

static void an_unknown_kind_ends_the_connection(void **state)
{
    (void)state;
    struct net_stream *stream;
    struct error error;
    assert_int_equal(net_stream_open(a->net, 0, (enum net_stream_kind)77, &stream, &error), STATUS_OK);
    assert_true(quic_run_until_count(loop, &a->down_calls[0], 1, 5000));
    assert_int_equal(b->down_calls[0], 1);
    assert_int_equal(b->down_cause.status, STATUS_PROTOCOL);
    assert_non_null(strstr(b->down_cause.text, "unknown kind 77"));
    assert_int_equal(a->down_cause.status, STATUS_PROTOCOL);
    assert_int_equal(net_stream_send(stream, NULL, 0, "x", 1, NULL, NULL), STATUS_UNREACHABLE);
    net_stream_reset(stream);
}

/* --- Resets --- */

static void a_stream_reset_before_it_was_sent_is_never_seen(void **state)
{
    (void)state;
    for (unsigned i = 0; i < 100; i++) {
        struct quic_source *source = quic_source_new(a, 0, i, 5000, 1000, false);
        net_stream_reset(source->stream);
        assert_int_equal(source->done, 0);
        assert_true(quic_run_until(loop, source_done, source, 5000));
        assert_int_equal(source->failed, source->sends);
        quic_source_free(source);
    }
    quic_run_for(loop, 50);
    assert_int_equal(b->sink_count, 0);
    assert_true(a->up[0]);
}

static void the_receiver_gives_a_stream_up(void **state)
{
    (void)state;
    b->hold = true;
    struct quic_source *open = quic_source_new(a, 0, 41, 20u << 20, 1u << 20, false);
    struct quic_source *finished = quic_source_new(a, 0, 42, 20u << 20, 1u << 20, true);
    assert_true(quic_run_until_count(loop, &b->sink_count, 2, 5000));
    for (struct quic_sink *sink = b->sinks; sink != NULL; sink = sink->next) {
        net_stream_reset(sink->stream);
        assert_false(sink->closed);      /* not within the call */
        net_stream_resume(sink->stream); /* has no effect */
    }
    struct quic_source *list[] = {open, finished};
    struct sources sources = {list, 2};
    assert_true(quic_run_until(loop, sources_done, &sources, 5000));
    assert_closed(b, 2);
    for (unsigned i = 0; i < 2; i++) {
        assert_true(list[i]->failed > 0);
        assert_int_equal(list[i]->result, STATUS_ABORTED);
    }
    assert_int_equal(net_stream_send(open->stream, NULL, 0, "x", 1, NULL, NULL), STATUS_UNREACHABLE);
    net_stream_finish(open->stream);
    quic_source_free(open);
    quic_source_free(finished);
    assert_true(a->up[0] && b->up[0]);
}

/* However a stream ends, the connection gets back the stream's window and its credit for streams. */
static void resets_leak_neither_window_nor_streams(void **state)
{
    (void)state;
    size_t before = 0;
    for (unsigned round = 0; round < 40; round++) {
        enum { COUNT = 20 };
        struct quic_source *list[COUNT];
        unsigned closed = sinks_closed(b);
        unsigned seen = b->sink_count;
        b->hold = true;
        for (unsigned i = 0; i < COUNT; i++) {
            list[i] = quic_source_new(a, 0, i, 1u << 19, 1u << 17, false);
        }
        quic_run_for(loop, 10);
        for (struct quic_sink *sink = b->sinks; sink != NULL; sink = sink->next) {
            if (sink->stream != NULL && sink->header[0] % 2 == 0) {
                net_stream_reset(sink->stream);
            }
        }
        for (unsigned i = 0; i < COUNT; i++) {
            net_stream_reset(list[i]->stream);
        }
        struct sources sources = {list, COUNT};
        assert_true(quic_run_until(loop, sources_done, &sources, 5000));
        assert_closed(b, closed + (b->sink_count - seen));
        for (unsigned i = 0; i < COUNT; i++) {
            quic_source_free(list[i]);
        }
        quic_run_for(loop, 5);
        if (round == 10) {
            before = mallinfo2().uordblks + mallinfo2().hblkhd;
        }
    }
    size_t after = mallinfo2().uordblks + mallinfo2().hblkhd;
    assert_true(after < before + (1u << 20));
    assert_true(a->up[0] && b->up[0]);
    b->hold = false;
    struct quic_source *source = quic_source_new(a, 0, 5, 8u << 20, 1u << 20, true);
    unsigned closed = sinks_closed(b);
    assert_true(quic_run_until(loop, source_done, source, 5000));
    assert_closed(b, closed + 1);
    assert_true(quic_sink_complete(b->sinks));
    quic_source_free(source);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(both_directions_at_odd_sizes, setup, teardown_nodes),
        cmocka_unit_test_setup_teardown(sizes_around_every_boundary, setup, teardown_nodes),
        cmocka_unit_test_setup_teardown(a_thousand_streams_at_once, setup, teardown_nodes),
        cmocka_unit_test_setup_teardown(streams_take_turns, setup, teardown_nodes),
        cmocka_unit_test_setup_teardown(a_receiver_that_refuses_holds_the_sender_back, setup, teardown_nodes),
        cmocka_unit_test_setup_teardown(held_streams_block_no_others, setup, teardown_nodes),
        cmocka_unit_test_setup_teardown(streams_have_their_limit, setup, teardown_nodes),
        cmocka_unit_test_setup_teardown(an_unknown_kind_ends_the_connection, setup, teardown_nodes),
        cmocka_unit_test_setup_teardown(a_stream_reset_before_it_was_sent_is_never_seen, setup,
                                        teardown_nodes),
        cmocka_unit_test_setup_teardown(the_receiver_gives_a_stream_up, setup, teardown_nodes),
        cmocka_unit_test_setup_teardown(resets_leak_neither_window_nor_streams, setup, teardown_nodes),
    };
    log_set_level(LOG_LEVEL_ERROR);
    return cmocka_run_group_tests_name("quic_streams", tests, setup_files, teardown_files);
}
