#include "tests/unit/net/stream_cases.h"
#include "tests/unit/net/tls_nodes.h"

/* Streams on bulk links over TCP: the contract of net.h. */

/* A stream may be given up while a frame of it is half written: the link goes on. */
static void resets_leave_nothing_behind(void **state)
{
    (void)state;
    size_t before = 0;
    for (unsigned round = 0; round < 40; round++) {
        enum { COUNT = 20 };
        struct quic_source *list[COUNT];
        unsigned closed = sinks_closed(b);
        unsigned seen = b->sink_count;
        for (unsigned i = 0; i < COUNT; i++) {
            list[i] = quic_source_new(a, 0, i, 1u << 21, 1u << 17, false);
        }
        quic_run_for(loop, round % 5);
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
        quic_run_for(loop, 20);
        assert_closed(b, closed + (b->sink_count - seen));
        for (const struct quic_sink *sink = b->sinks; sink != NULL; sink = sink->next) {
            assert_false(sink->wrong);
        }
        for (unsigned i = 0; i < COUNT; i++) {
            quic_source_free(list[i]);
        }
        if (round == 10) {
            before = mallinfo2().uordblks + mallinfo2().hblkhd;
        }
    }
    assert_true(mallinfo2().uordblks + mallinfo2().hblkhd < before + (2u << 20));
    assert_int_equal(peer_of(a)->lost_count, 0);
    assert_int_equal(HASH_COUNT(peer_of(a)->senders) + HASH_COUNT(peer_of(b)->receivers), 0);
    struct quic_source *source = quic_source_new(a, 0, 5, 8u << 20, 1u << 20, true);
    unsigned closed = sinks_closed(b);
    assert_true(quic_run_until(loop, source_done, source, 5000));
    assert_closed(b, closed + 1);
    assert_true(quic_sink_complete(b->sinks));
    quic_source_free(source);
}

/* When the net's connection ends, so do the streams of the bulk link: before peer_down. */
static void streams_end_before_the_node_is_down(void **state)
{
    struct error error;
    (void)state;
    b->hold = true;
    struct quic_source *source = quic_source_new(a, 0, 1, 20u << 20, 1u << 20, false);
    assert_true(quic_run_until_count(loop, &b->sink_count, 1, 5000));
    error_set(&error, STATUS_SHUTTING_DOWN, "enough");
    net_disconnect(a->net, 0, &error);
    assert_true(quic_run_until_count(loop, &b->down_calls[0], 1, 5000));
    assert_true(quic_source_done(source));
    assert_true(source->failed > 0);
    assert_true(b->sinks->closed);
    assert_int_equal(net_stream_send(source->stream, NULL, 0, "x", 1, NULL, NULL), STATUS_UNREACHABLE);
    net_stream_reset(source->stream);
    quic_source_free(source);
    quic_node_connect(a, 0); /* the next connection has a link of its own */
    assert_true(quic_run_until_count(loop, &b->up_calls[0], 2, 5000));
    b->hold = false;
    link_both();
    source = quic_source_new(a, 0, 2, 1u << 20, 1u << 20, true);
    assert_true(quic_run_until(loop, source_done, source, 5000));
    assert_closed(b, 2);
    assert_true(quic_sink_complete(b->sinks));
    quic_source_free(source);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        STREAM_CASES(setup_linked, teardown_nodes),
        cmocka_unit_test_setup_teardown(resets_leave_nothing_behind, setup_linked, teardown_nodes),
        cmocka_unit_test_setup_teardown(streams_end_before_the_node_is_down, setup_linked, teardown_nodes),
    };
    return cmocka_run_group_tests(tests, setup_files, teardown_files);
}
