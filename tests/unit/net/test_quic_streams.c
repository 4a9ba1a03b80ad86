#include "tests/unit/net/stream_cases.h"

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

/* --- Sending --- */

static void count_sent(void *context, enum status result, uint64_t now_ns)
{
    (void)now_ns;
    unsigned *counts = context;
    counts[result == STATUS_OK ? 0 : 1]++;
}

/* --- Back-pressure --- */

/* Control messages are not held up. */
static void check_heartbeats(void)
{
    struct error error;
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

    check_heartbeats();
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

static unsigned ten_ms(unsigned round)
{
    (void)round;
    return 10;
}

/* However a stream ends, the connection gets back the stream's window and its credit for streams. */
static void resets_leak_neither_window_nor_streams(void **state)
{
    (void)state;
    b->hold = true; /* until the last, whole stream */
    reset_many_streams(1u << 19, ten_ms);
    assert_true(a->up[0] && b->up[0]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        STREAM_CASES(setup, teardown_nodes),
        cmocka_unit_test_setup_teardown(held_streams_block_no_others, setup, teardown_nodes),
        cmocka_unit_test_setup_teardown(streams_have_their_limit, setup, teardown_nodes),
        cmocka_unit_test_setup_teardown(an_unknown_kind_ends_the_connection, setup, teardown_nodes),
        cmocka_unit_test_setup_teardown(resets_leak_neither_window_nor_streams, setup, teardown_nodes),
    };
    log_set_level(LOG_LEVEL_ERROR);
    return cmocka_run_group_tests_name("quic_streams", tests, setup_files, teardown_files);
}
