#include "tests/unit/net/stream_cases.h"
#include "tests/unit/net/tls_nodes.h"

/* Streams on bulk links over TCP: the contract of net.h. */

static unsigned some_ms(unsigned round)
{
    return round % 5;
}

/* A stream may be given up while a frame of it is half written: the link goes on. */
static void resets_leave_nothing_behind(void **state)
{
    (void)state;
    reset_many_streams(1u << 21, some_ms);
    assert_int_equal(peer_of(a)->lost_count, 0);
    assert_int_equal(HASH_COUNT(peer_of(a)->senders) + HASH_COUNT(peer_of(b)->receivers), 0);
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
