#ifndef TESTS_UNIT_NET_STREAM_CASES_H
#define TESTS_UNIT_NET_STREAM_CASES_H

#include <malloc.h>

#include "tests/unit/net/stream_sources.h"

/*
 * What streams do on every kind of link, between the nodes a and b: the contract of net.h.
 * test_quic_streams.c and test_tls_streams.c run these cases, and add what is peculiar to their links.
 */

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
    free_sources(list, 2);
}

static void sizes_around_every_boundary(void **state)
{
    (void)state;
    static const size_t sizes[] = {0,      1,      2,      1162,   1163,   1199,   1200,   1201,   1451,
                                   1452,   1453,   4095,   4096,   16335,  16336,  16337,  16383,  16384,
                                   16385,  32767,  32768,  65535,  65536,  65537,  131071, 131072, 131073,
                                   262095, 262096, 262097, 262144, 262145, 524288, 1000003};
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

/* The cases, for an array of CMUnitTest. */
/*
 * Many times: 20 streams of that many bytes are given up on both sides while they run. run_ms: for how long,
 * in the round. No stream ends wrong, or keeps memory. Afterwards a whole stream gets through.
 */
static inline void reset_many_streams(uint64_t size_bytes, unsigned (*run_ms)(unsigned round))
{
    enum { COUNT = 20, ROUNDS = 40, SETTLED = 10, GROWTH_BYTES = 2 << 20 };
    size_t before = 0;
    for (unsigned round = 0; round < ROUNDS; round++) {
        struct quic_source *list[COUNT];
        unsigned closed = sinks_closed(b), seen = b->sink_count;
        for (unsigned i = 0; i < COUNT; i++) {
            list[i] = quic_source_new(a, 0, i, size_bytes, 1u << 17, false);
        }
        quic_run_for(loop, run_ms(round));
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
        if (round == SETTLED) {
            before = mallinfo2().uordblks + mallinfo2().hblkhd;
        }
    }
    assert_true(mallinfo2().uordblks + mallinfo2().hblkhd < before + GROWTH_BYTES);
    b->hold = false;
    struct quic_source *source = quic_source_new(a, 0, 5, 8u << 20, 1u << 20, true);
    unsigned closed = sinks_closed(b);
    assert_true(quic_run_until(loop, source_done, source, 5000));
    assert_closed(b, closed + 1);
    assert_true(quic_sink_complete(b->sinks));
    quic_source_free(source);
}

#define STREAM_CASES(setup, teardown)                                                                        \
    cmocka_unit_test_setup_teardown(both_directions_at_odd_sizes, setup, teardown),                          \
        cmocka_unit_test_setup_teardown(sizes_around_every_boundary, setup, teardown),                       \
        cmocka_unit_test_setup_teardown(a_thousand_streams_at_once, setup, teardown),                        \
        cmocka_unit_test_setup_teardown(streams_take_turns, setup, teardown),                                \
        cmocka_unit_test_setup_teardown(a_receiver_that_refuses_holds_the_sender_back, setup, teardown),     \
        cmocka_unit_test_setup_teardown(a_stream_reset_before_it_was_sent_is_never_seen, setup, teardown),   \
        cmocka_unit_test_setup_teardown(the_receiver_gives_a_stream_up, setup, teardown)

#endif
