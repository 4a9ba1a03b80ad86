#include "tests/unit/net/tls_nodes.h"

#include <malloc.h>

/* Streams on bulk links over TCP: the contract of net.h. */

static void free_sources(struct quic_source **list, unsigned count)
{
    for (unsigned i = 0; i < count; i++) {
        assert_int_equal(list[i]->failed, 0);
        quic_source_free(list[i]);
    }
}

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
    assert_complete(a);
    assert_complete(b);
    assert_true(a->sinks->stream == NULL && peer_of(a)->connection != NULL);
    free_sources(list, 2);
}

static void sizes_around_every_boundary(void **state)
{
    (void)state;
    static const size_t sizes[] = {0,      1,      2,      4095,   4096,   16335,  16336,
                                   16337,  16383,  16384,  16385,  32767,  32768,  262095,
                                   262096, 262097, 262144, 262145, 524288, 1000003};
    enum { COUNT = sizeof sizes / sizeof sizes[0] };
    struct quic_source *list[COUNT];
    for (unsigned i = 0; i < COUNT; i++) {
        list[i] = quic_source_new(a, 0, 100 + i, sizes[i], i % 2 == 0 ? 100000 : 1021, true);
    }
    struct sources sources = {list, COUNT};
    assert_true(quic_run_until(loop, sources_done, &sources, 10000));
    assert_closed(b, COUNT);
    assert_complete(b);
    free_sources(list, COUNT);
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
        free_sources(list, 2 * COUNT);
    }
    assert_complete(a);
    assert_complete(b);
    assert_int_equal(HASH_COUNT(peer_of(a)->senders) + HASH_COUNT(peer_of(a)->receivers), 0);
    assert_int_equal(HASH_COUNT(peer_of(b)->senders) + HASH_COUNT(peer_of(b)->receivers), 0);
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
        cmocka_unit_test_setup_teardown(both_directions_at_odd_sizes, setup_linked, teardown_nodes),
        cmocka_unit_test_setup_teardown(sizes_around_every_boundary, setup_linked, teardown_nodes),
        cmocka_unit_test_setup_teardown(a_thousand_streams_at_once, setup_linked, teardown_nodes),
        cmocka_unit_test_setup_teardown(streams_take_turns, setup_linked, teardown_nodes),
        cmocka_unit_test_setup_teardown(a_receiver_that_refuses_holds_the_sender_back, setup_linked,
                                        teardown_nodes),
        cmocka_unit_test_setup_teardown(a_stream_reset_before_it_was_sent_is_never_seen, setup_linked,
                                        teardown_nodes),
        cmocka_unit_test_setup_teardown(the_receiver_gives_a_stream_up, setup_linked, teardown_nodes),
        cmocka_unit_test_setup_teardown(resets_leave_nothing_behind, setup_linked, teardown_nodes),
        cmocka_unit_test_setup_teardown(streams_end_before_the_node_is_down, setup_linked, teardown_nodes),
    };
    return cmocka_run_group_tests(tests, setup_files, teardown_files);
}
