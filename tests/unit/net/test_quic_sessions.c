#include "tests/lib/chance.h"
#include "tests/unit/net/session_nodes.h"

/* Streams that outlive their connection. There are outages and new addresses, and nodes open and end streams
 * meanwhile. The tests run over ngtcp2, in virtual time. */

#define OUTAGE_MARGIN_MS 1000u /* after an outage, bytes arrive again within this time */
#define NEW_ADDRESS_MARGIN_MS 300u
#define STILL_MARGIN_MS 100u /* the same, after a process stood still */
#define SOME_TIME_LATER_MS 2100u
#define STILL_LATER_MARGIN_MS 300u /* for 1 MiB then */

static uint64_t received_bytes(const struct quic_node *node)
{
    uint64_t received = 0;
    for (const struct quic_sink *sink = node->sinks; sink != NULL; sink = sink->next) {
        received += sink->received;
    }
    return received;
}

struct progress {
    uint64_t a_bytes, b_bytes;
};

static bool both_progress(const void *context)
{
    const struct progress *before = context;
    return received_bytes(a) > before->a_bytes && received_bytes(b) > before->b_bytes;
}

/* Bytes arrive on both sides within that time. */
static void assert_progress(const char *what, uint64_t within_ms)
{
    struct progress before = {received_bytes(a), received_bytes(b)};
    if (!quic_run_until(loop, both_progress, &before, within_ms)) {
        fail_msg("%s: nothing arrives within %llu ms; a: %s; b: %s", what, (unsigned long long)within_ms,
                 a->down_cause.text, b->down_cause.text);
    }
}

static const struct network_conditions lossy = {
    .delay_ns = 300 * TIME_US, .jitter_ns = 100 * TIME_US, .bandwidth_bytes_s = 4000000, .loss = 0.02};

static void outage(uint64_t seed, const struct network_conditions *conditions, uint64_t wait_ms,
                   uint64_t length_ms, bool forth, bool back)
{
    start_nodes(seed, conditions);
    struct exchange exchange = begin_exchange(3u << 20);
    quic_run_for(loop, wait_ms);
    network_cut(network, "a", "b", forth);
    network_cut(network, "b", "a", back);
    quic_run_for(loop, length_ms);
    cut_network(false);
    if (!exchanged(&exchange)) {
        char what[80];
        snprintf(what, sizeof what, "seed %llu, outage of %llu ms after %llu ms", (unsigned long long)seed,
                 (unsigned long long)length_ms, (unsigned long long)wait_ms);
        assert_progress(what, OUTAGE_MARGIN_MS);
    }
    end_exchange(&exchange, 30000);
    free_network();
}

static void outages_end_nothing(void **state)
{
    (void)state;
    struct random random;
    random_seed(&random, 7);
    for (uint64_t seed = 1; seed <= 24; seed++) {
        bool forth = seed % 3 != 1, back = seed % 3 != 2;
        outage(seed, seed % 2 == 0 ? &narrow : &lossy, 1 + random_below(&random, 500),
               100 + random_below(&random, 2900), forth, back);
    }
}

static void outages_in_a_row_end_nothing(void **state)
{
    (void)state;
    start_nodes(40, &lossy);
    struct exchange exchange = begin_exchange(12u << 20);
    for (unsigned i = 0; i < 5; i++) {
        quic_run_for(loop, 40 + 30 * i); /* the second comes while the connection begins anew */
        cut_network(true);
        quic_run_for(loop, 1500);
        cut_network(false);
        assert_progress("outages in a row", OUTAGE_MARGIN_MS);
    }
    end_exchange(&exchange, 30000);
}

/*
 * The process of b stands still. What a sends waits at b, also what belongs to attempts that a has given up.
 * The first round-trip time of the attempt that succeeds contains part of that time. Streams go on at once.
 * Nor are those that begin seconds later spread over that time, although little was measured meanwhile.
 */
static void a_process_that_stands_still_ends_nothing(void **state)
{
    static const struct network_conditions wide = {.delay_ns = 100 * TIME_US};
    (void)state;
    for (uint64_t seed = 1; seed <= 30; seed++) {
        start_nodes(100 + seed, &wide);
        struct exchange exchange = begin_exchange(1u << 20);
        end_exchange(&exchange, 1000);
        exchange = begin_exchange(64u << 10);
        network_hold(network, "b", true);
        quic_run_for(loop, 900 + seed * 90);
        network_hold(network, "b", false);
        assert_progress("a process that stood still", STILL_MARGIN_MS);
        end_exchange(&exchange, 1000);
        quic_run_for(loop, SOME_TIME_LATER_MS);
        exchange = begin_exchange(1u << 20);
        end_exchange(&exchange, STILL_LATER_MARGIN_MS);
        free_network();
    }
}

/* The node's own address changes. Others see it at another port, and its old port is dead. */
static void new_addresses_end_nothing(void **state)
{
    (void)state;
    const char *const names[] = {"a", "b"}; /* a dials */
    for (unsigned i = 0; i < 2; i++) {
        start_nodes(50 + i, &narrow);
        struct exchange exchange = begin_exchange(6u << 20);
        quic_run_for(loop, 100);
        network_rebind(network, names[i]);
        assert_progress(names[i], NEW_ADDRESS_MARGIN_MS);
        end_exchange(&exchange, 30000);
        free_network();
    }
}

static uint64_t resumed_count(void)
{
    struct net_peer_statistics statistics;
    net_peer_statistics(a->net, 0, &statistics);
    return statistics.resumed_count;
}

static bool has_resumed(const void *context)
{
    (void)context;
    return resumed_count() > 0;
}

/* A connection was idle for long before it is to be kept alive. Then b's address changes while b has nothing
 * to send, and a does not know the new one. b must notice. */
static void an_idle_connection_is_kept_alive(void **state)
{
    (void)state;
    make_nodes(55, 0, 0);
    connect_nodes();
    set_network(&narrow);
    quic_run_for(loop, 5000);
    net_keep_alive(a->net, 0, true);
    net_keep_alive(b->net, 0, true);
    quic_run_for(loop, 2000);
    network_rebind(network, "b");
    assert_true(quic_run_until(loop, has_resumed, NULL, 2000));
    assert_int_equal(a->down_calls[0] + b->down_calls[0], 0);
    free_network();
}

static void a_narrower_path_ends_nothing(void **state)
{
    (void)state;
    struct network_conditions small = narrow;
    small.packet_bytes = 1472;
    start_nodes(60, &narrow);
    struct exchange exchange = begin_exchange(6u << 20);
    quic_run_for(loop, 300);
    set_network(&small);
    assert_progress("narrower in both directions", 2500);
    end_exchange(&exchange, 30000);
    free_network();
    start_nodes(61, &narrow); /* small packets of the other direction still come */
    exchange = begin_exchange(6u << 20);
    quic_run_for(loop, 300);
    network_set_link(network, "a", "b", &small);
    assert_progress("narrower in one direction", 2500);
    end_exchange(&exchange, 30000);
}

static bool all_closed(const void *context)
{
    const struct quic_node *node = context;
    for (const struct quic_sink *sink = node->sinks; sink != NULL; sink = sink->next) {
        if (!sink->closed) {
            return false;
        }
    }
    return true;
}

/* During an outage streams are opened, finished, reset by the sender, and given up by the receiver. */
static void streams_change_in_an_outage(void **state)
{
    (void)state;
    enum { STREAMS = 6, SIZE = 400000 };
    struct quic_source *sources[STREAMS];
    start_nodes(70, &narrow);
    for (unsigned i = 0; i < 4; i++) {
        sources[i] = quic_source_new(a, 0, 10 + i, SIZE, 10000, false);
    }
    quic_run_for(loop, 100);
    assert_int_equal(b->sink_count, 4);
    cut_network(true);
    quic_run_for(loop, 900); /* the connection is given up */
    sources[4] = quic_source_new(a, 0, 14, SIZE, 10000, true);
    sources[5] = quic_source_new(a, 0, 15, SIZE, 10000, false);
    net_stream_finish(sources[0]->stream);
    net_stream_reset(sources[1]->stream);
    net_stream_reset(sources[5]->stream); /* of which b never hears */
    struct quic_sink *given_up = b->sinks;
    while (given_up->stream == NULL || given_up->header[0] != 12) {
        given_up = given_up->next;
    }
    net_stream_reset(given_up->stream);
    quic_run_for(loop, 50);
    assert_true(given_up->closed); /* it need not wait for the connection */
    net_stream_finish(sources[3]->stream);
    cut_network(false);
    assert_true(quic_run_until_count(loop, &sources[2]->done, sources[2]->sends, 10000));
    assert_true(sources[2]->failed > 0);
    assert_int_equal(sources[2]->result, STATUS_ABORTED);
    assert_true(quic_run_until(loop, all_closed, b, 10000));
    unsigned complete = 0, aborted = 0;
    for (const struct quic_sink *sink = b->sinks; sink != NULL; sink = sink->next) {
        complete += quic_sink_complete(sink);
        aborted += sink->closed_status == STATUS_ABORTED;
    }
    assert_int_equal(b->sink_count, 5);
    assert_int_equal(complete, 3);
    assert_int_equal(aborted, 2);
    assert_int_equal(sources[0]->failed + sources[3]->failed + sources[4]->failed, 0);
    assert_int_equal(a->down_calls[0] + b->down_calls[0], 0);
    net_stream_finish(sources[2]->stream);
    for (unsigned i = 0; i < STREAMS; i++) {
        assert_true(quic_run_until(loop, source_done, sources[i], 1000));
        quic_source_free(sources[i]);
    }
}

/* Bytes that a receiver holds back when the connection is lost are handed out once, too. */
static void held_bytes_come_once(void **state)
{
    (void)state;
    start_nodes(80, &narrow);
    b->hold = true;
    struct quic_source *source = quic_source_new(a, 0, 3, 30000, 1000, true);
    quic_run_for(loop, 200);
    struct quic_source *longer = quic_source_new(a, 0, 4, 300000, 1000, true);
    quic_run_for(loop, 50);
    cut_network(true);
    quic_run_for(loop, 1200);
    b->hold = false;
    quic_sink_release(b->sinks);
    quic_sink_release(b->sinks->next);
    quic_run_for(loop, 100);
    cut_network(false);
    assert_true(quic_run_until_count(loop, &longer->done, longer->sends, 10000));
    assert_true(quic_run_until(loop, all_closed, b, 5000));
    assert_true(quic_sink_complete(b->sinks));
    assert_true(quic_sink_complete(b->sinks->next));
    assert_int_equal(source->failed + longer->failed, 0);
    assert_int_equal(a->down_calls[0] + b->down_calls[0], 0);
    quic_source_free(source);
    quic_source_free(longer);
}

/* b's greeting has said how much it has of the stream, which a has not resumed yet. */
static bool b_awaits_its_stream(const void *context)
{
    const struct quic_connection *connection = quic_peer_of((struct quic_endpoint *)b->net, 0)->up;
    (void)context;
    return connection != NULL && connection->state == QUIC_STATE_UP && connection->unresumed_count == 1 &&
           connection->unresumed[0].receiver != NULL;
}

/* The stream is given up in the moment before its sender goes on behind what is held. */
static void held_bytes_are_given_up_between_greeting_and_resumption(void **state)
{
    (void)state;
    start_nodes(81, &narrow);
    b->hold = true;
    struct quic_source *source = quic_source_new(a, 0, 3, 600000, 1000, false);
    quic_run_for(loop, 60);
    assert_int_equal(b->sink_count, 1);
    cut_network(true);
    quic_run_for(loop, 1200);
    cut_network(false);
    assert_true(quic_run_until(loop, b_awaits_its_stream, NULL, 3000));
    assert_true(stream_intake_received(&((struct quic_receiver *)b->sinks->stream)->intake) > 1000);
    net_stream_reset(b->sinks->stream);
    assert_true(quic_run_until_count(loop, &source->done, source->sends, 5000));
    assert_true(b->sinks->closed);
    assert_int_equal(source->result, STATUS_ABORTED);
    assert_int_equal(a->down_calls[0] + b->down_calls[0], 0);
    net_stream_finish(source->stream);
    quic_source_free(source);
}

/* --- At random --- */

enum { CALLS = 120, SOURCES_MAX = CALLS };

/* A stream, and what has been done to it. */
struct drawn {
    struct quic_source *source;
    struct quic_node *to;
    bool open, was_reset;
};

static struct drawn drawn[SOURCES_MAX];
static unsigned drawn_count;
static const char *rebound; /* the node whose address changes */

static struct quic_sink *sink_of(const struct drawn *stream)
{
    uint64_t seed = (uint64_t)(stream - drawn) + 1, its;
    for (struct quic_sink *sink = stream->to->sinks; sink != NULL; sink = sink->next) {
        memcpy(&its, sink->header, sizeof its);
        if (its == seed && sink->received >= QUIC_NODE_HEADER_BYTES) {
            return sink;
        }
    }
    return NULL;
}

static void call_at_random(struct random *random)
{
    uint64_t dice = random_below(random, 100);
    struct drawn *stream = &drawn[random_below(random, drawn_count + 1)];
    if (dice < 40 || drawn_count == 0) {
        bool forth = random_chance(random, 0.5);
        size_t size = (size_t)random_below(random, random_chance(random, 0.2) ? 400000 : 3000);
        stream = &drawn[drawn_count++];
        stream->to = forth ? b : a;
        stream->was_reset = false;
        stream->open = random_chance(random, 0.5);
        stream->source =
            quic_source_new(forth ? a : b, 0, drawn_count, size + 1, 1 + size / 7, !stream->open);
    } else if (dice < 60 && stream->open) {
        stream->open = false;
        net_stream_finish(stream->source->stream);
    } else if (dice < 67 && stream->open) {
        stream->open = false;
        stream->was_reset = true;
        net_stream_reset(stream->source->stream);
    } else if (dice < 74 && stream < drawn + drawn_count && sink_of(stream) != NULL) {
        stream->was_reset = true;
        if (sink_of(stream)->stream != NULL) {
            net_stream_reset(sink_of(stream)->stream);
        }
    } else if (dice < 84) {
        network_cut(network, "a", "b", random_chance(random, 0.7));
        network_cut(network, "b", "a", random_chance(random, 0.7));
    } else if (dice < 87) {
        network_rebind(network,
                       rebound); /* if both addresses changed, neither node would know the other's address */
    } else {
        struct quic_node *node = random_chance(random, 0.5) ? a : b;
        node->hold = random_chance(random, 0.3);
        for (struct quic_sink *sink = node->sinks; sink != NULL && !node->hold; sink = sink->next) {
            quic_sink_release(sink);
        }
    }
}

static bool all_sources_done(const void *context)
{
    (void)context;
    for (unsigned i = 0; i < drawn_count; i++) {
        if (!quic_source_done(drawn[i].source)) {
            return false;
        }
    }
    return true;
}

static void check_drawn(uint64_t seed)
{
    for (unsigned i = 0; i < drawn_count; i++) {
        const struct quic_sink *sink = sink_of(&drawn[i]);
        if (!drawn[i].was_reset &&
            (sink == NULL || !quic_sink_complete(sink) || drawn[i].source->failed > 0)) {
            fail_msg("seed %llu: stream %u is not complete: %llu bytes of %zu came, %u sends failed",
                     (unsigned long long)seed, i, sink != NULL ? (unsigned long long)sink->received : 0,
                     drawn[i].source->size, drawn[i].source->failed);
        }
        if (sink != NULL && (!sink->closed || sink->wrong)) {
            fail_msg("seed %llu: stream %u has a wrong byte, or no end", (unsigned long long)seed, i);
        }
        quic_source_free(drawn[i].source);
    }
}

/* Whatever the nodes call and the network does within the patience: each byte arrives once, and nobody is
 * lost. */
static void calls_at_random(void **state)
{
    (void)state;
    uint64_t resumed = 0, complete = 0;
    for (uint64_t seed = 1; seed <= 60; seed++) {
        struct random random;
        uint64_t cut_since_ns = loop_now_ns();
        random_seed(&random, seed);
        rebound = seed % 3 == 0 ? "b" : "a";
        drawn_count = 0;
        memset(drawn, 0, sizeof drawn);
        start_nodes(seed, seed % 2 == 0 ? &narrow : &lossy);
        for (unsigned i = 0; i < CALLS; i++) {
            call_at_random(&random);
            quic_run_for(loop, random_below(&random, 60));
            if (loop_now_ns() - cut_since_ns > 2 * TIME_S) { /* it ends within the patience */
                cut_network(false);
                quic_run_for(loop, 2500);
                cut_since_ns = loop_now_ns();
            }
        }
        cut_network(false);
        a->hold = b->hold = false;
        for (unsigned i = 0; i < drawn_count; i++) {
            if (drawn[i].open) {
                net_stream_finish(drawn[i].source->stream);
            }
        }
        quic_run_for(loop, 2000); /* also those come that a stopped receiver has to see */
        for (unsigned i = 0; i < drawn_count; i++) {
            if (sink_of(&drawn[i]) != NULL) {
                quic_sink_release(sink_of(&drawn[i]));
            }
        }
        struct quic_node *const nodes[] = {a, b};
        for (unsigned i = 0; i < 2; i++) {
            for (struct quic_sink *sink = nodes[i]->sinks; sink != NULL; sink = sink->next) {
                quic_sink_release(sink);
            }
        }
        quic_run_until(loop, all_sources_done, NULL, 20000);
        quic_run_for(loop, 1000);
        if (a->down_calls[0] + b->down_calls[0] > 0) {
            fail_msg("seed %llu: %s; %s", (unsigned long long)seed, a->down_cause.text, b->down_cause.text);
        }
        for (unsigned i = 0; i < drawn_count; i++) {
            complete += !drawn[i].was_reset;
        }
        resumed += resumed_count();
        check_drawn(seed);
        free_network();
    }
    assert_true(resumed >= 100);
    assert_true(complete >= 1000);
}

static void patience_ends(void **state)
{
    (void)state;
    start_nodes(90, &narrow);
    struct quic_source *forth = quic_source_new(a, 0, 1, 3u << 20, 10000, true);
    struct quic_source *back = quic_source_new(b, 0, 2, 3u << 20, 10000, true);
    quic_run_for(loop, 200);
    cut_network(true);
    uint64_t start_ns = loop_now_ns();
    assert_true(quic_run_until(loop, both_down, NULL, 10000));
    assert_in_range(loop_now_ns() - start_ns, 3500 * TIME_MS, 4500 * TIME_MS);
    assert_int_equal(a->down_cause.status, STATUS_NODE_LOST);
    assert_int_equal(b->down_cause.status, STATUS_NODE_LOST);
    assert_true(quic_source_done(forth) && quic_source_done(back));
    quic_source_free(forth);
    quic_source_free(back);
    cut_network(false);
    quic_node_connect(a, 0); /* a new session */
    assert_true(quic_run_until(loop, both_up, NULL, 5000));
    struct quic_source *again = quic_source_new(a, 0, 5, 100000, 10000, true);
    assert_true(quic_run_until_count(loop, &again->done, again->sends, 5000));
    assert_int_equal(again->failed, 0);
    quic_source_free(again);
}

/* Whether a knows that b's process of the last connection has ended. */
static bool other_ended(void)
{
    struct net_peer_statistics statistics;
    net_peer_statistics(a->net, 0, &statistics);
    return statistics.process_ended;
}

/* The patience of one side has ended, that of the other has not. The session is over for both. */
static void one_side_gives_up(void **state)
{
    (void)state;
    struct error cause;
    start_nodes(95, &narrow);
    struct quic_source *source = quic_source_new(a, 0, 1, 3u << 20, 10000, true);
    quic_run_for(loop, 200);
    cut_network(true);
    quic_run_for(loop, 1500);
    error_set(&cause, STATUS_NODE_LOST, "enough");
    net_disconnect(b->net, 0, &cause);
    quic_run_for(loop, 10);
    assert_int_equal(b->down_calls[0], 1);
    assert_int_equal(a->down_calls[0], 0);
    cut_network(false);
    assert_true(quic_run_until(loop, both_up, NULL, 5000));
    assert_int_equal(a->down_calls[0], 1);
    assert_non_null(strstr(a->down_cause.text, "gave this node up"));
    assert_false(other_ended());
    assert_true(quic_source_done(source));
    quic_source_free(source);
}

/* b ends without a word, and another process of b is there before a's patience ends. */
static void a_restart_is_told(void **state)
{
    (void)state;
    start_nodes(96, &narrow);
    struct quic_source *source = quic_source_new(a, 0, 1, 3u << 20, 10000, true);
    quic_run_for(loop, 200);
    cut_network(true);
    quic_node_free(b);
    b = make_node("b", "b", 0, 0);
    (void)add_peer(b, "a");
    cut_network(false);
    assert_true(quic_run_until(loop, both_up, NULL, 5000));
    assert_int_equal(a->down_calls[0], 1);
    assert_non_null(strstr(a->down_cause.text, "it was restarted"));
    assert_true(other_ended());
    assert_true(quic_source_done(source));
    quic_source_free(source);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(outages_end_nothing, setup_loop, teardown),
        cmocka_unit_test_setup_teardown(outages_in_a_row_end_nothing, setup_loop, teardown),
        cmocka_unit_test_setup_teardown(a_process_that_stands_still_ends_nothing, setup_loop, teardown),
        cmocka_unit_test_setup_teardown(new_addresses_end_nothing, setup_loop, teardown),
        cmocka_unit_test_setup_teardown(an_idle_connection_is_kept_alive, setup_loop, teardown),
        cmocka_unit_test_setup_teardown(a_narrower_path_ends_nothing, setup_loop, teardown),
        cmocka_unit_test_setup_teardown(streams_change_in_an_outage, setup_loop, teardown),
        cmocka_unit_test_setup_teardown(held_bytes_are_given_up_between_greeting_and_resumption, setup_loop,
                                        teardown),
        cmocka_unit_test_setup_teardown(held_bytes_come_once, setup_loop, teardown),
        cmocka_unit_test_setup_teardown(calls_at_random, setup_loop, teardown),
        cmocka_unit_test_setup_teardown(patience_ends, setup_loop, teardown),
        cmocka_unit_test_setup_teardown(one_side_gives_up, setup_loop, teardown),
        cmocka_unit_test_setup_teardown(a_restart_is_told, setup_loop, teardown),
    };
    log_set_level(LOG_LEVEL_ERROR);
    return cmocka_run_group_tests_name("quic_sessions", tests, setup_files, teardown_files);
}
