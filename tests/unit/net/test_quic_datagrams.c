#include "tests/unit/net/datagram_nodes.h"

/* Bad networks, in virtual time. */

static void loss_and_damage_change_no_byte(void **state)
{
    (void)state;
    make_nodes(1, 1452, 10 * TIME_S);
    struct network_conditions bad = {.loss = 0.02, .corruption = 0.02, .delay_ns = 200 * TIME_US};
    connect_nodes();
    set_network(&bad);
    struct exchange exchange = begin_exchange(8u << 20);
    end_exchange(&exchange, 30000);
    struct network_counters counters;
    network_counters(network, &counters);
    assert_true(counters.packets_lost > 100);
    struct net_peer_statistics statistics;
    net_peer_statistics(a->net, 0, &statistics);
    assert_true(statistics.lost_packets > 50);
}

static void reordering_and_duplicates_change_no_byte(void **state)
{
    (void)state;
    make_nodes(2, 1452, 10 * TIME_S);
    struct network_conditions bad = {.duplication = 0.1, .delay_ns = 500 * TIME_US, .jitter_ns = TIME_MS};
    connect_nodes();
    set_network(&bad);
    struct exchange exchange = begin_exchange(8u << 20);
    end_exchange(&exchange, 30000);
}

static void handshakes_survive_a_third_lost(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 12; seed++) {
        make_nodes(seed, 0, 10 * TIME_S);
        struct network_conditions bad = {.loss = 0.3, .delay_ns = TIME_MS};
        set_network(&bad);
        quic_node_connect(a, 0);
        bool up = quic_run_until(loop, both_up, NULL, 6000);
        if (!up) {
            fail_msg("seed %llu: %s", (unsigned long long)seed,
                     a->failed_calls[0] > 0 ? a->failed_cause.text : "no outcome");
        }
        free_network();
    }
}

/* A busy machine answers the handshake late. Soon after that, the path is as fast as ever. */
static void a_slow_handshake_slows_no_data(void **state)
{
    (void)state;
    make_nodes(17, 0, 10 * TIME_S);
    struct network_conditions slow = {.delay_ns = 10 * TIME_MS};
    set_network(&slow);
    connect_nodes();
    quic_run_for(loop, 100);
    set_network(&fine);
    struct exchange exchange = begin_exchange(256u << 10);
    end_exchange(&exchange, 15);
}

static void a_blackhole_of_two_seconds_ends_nothing(void **state)
{
    (void)state;
    make_nodes(3, 0, 10 * TIME_S);
    connect_nodes();
    struct network_conditions narrow = fine;
    narrow.bandwidth_bytes_s = 200000000;
    set_network(&narrow);
    struct exchange exchange = begin_exchange(64u << 20);
    quic_run_for(loop, 50);
    assert_false(exchanged(&exchange));
    cut_network(true);
    quic_run_for(loop, 2000);
    cut_network(false);
    end_exchange(&exchange, 20000);
}

static void a_one_way_path_is_noticed_by_both(void **state)
{
    (void)state;
    make_nodes(4, 0, TIME_S);
    connect_nodes();
    struct quic_source *source = quic_source_new(a, 0, 1, 100000, 10000, true);
    network_cut(network, "b", "a", true);
    uint64_t start_ns = loop_now_ns();
    assert_true(quic_run_until(loop, both_down, NULL, 5000));
    assert_true(loop_now_ns() - start_ns < 4 * TIME_S);
    assert_int_equal(a->down_cause.status, STATUS_NODE_LOST);
    assert_non_null(strstr(a->down_cause.text, "nothing was heard"));
    assert_true(quic_source_done(source));
    quic_source_free(source);
}

static void rebinding_fails_nothing(void **state)
{
    (void)state;
    make_nodes(5, 0, 10 * TIME_S);
    struct network_conditions slow = {.delay_ns = TIME_MS, .jitter_ns = 50 * TIME_US};
    connect_nodes();
    set_network(&slow);
    struct exchange exchange = begin_exchange(16u << 20);
    for (unsigned i = 0; i < 5; i++) {
        quic_run_for(loop, 100);
        network_rebind(network, "a");
    }
    end_exchange(&exchange, 20000);
    struct exchange next = begin_exchange(100000); /* a new one after the last rebinding */
    quic_run_for(loop, 50);
    end_exchange(&next, 5000);
}

static void a_path_that_shrinks_stalls_nothing_for_long(void **state)
{
    (void)state;
    make_nodes(6, 0, 10 * TIME_S);
    struct network_conditions wide = {.delay_ns = 200 * TIME_US};
    struct network_conditions narrow = {.delay_ns = 200 * TIME_US, .packet_bytes = 1472};
    connect_nodes();
    set_network(&wide);
    struct exchange first = begin_exchange(4u << 20);
    end_exchange(&first, 5000);
    struct net_peer_statistics statistics;
    net_peer_statistics(a->net, 0, &statistics);
    assert_int_equal(statistics.datagram_bytes, QUIC_DATAGRAM_JUMBO_BYTES);
    set_network(&narrow);
    struct exchange second = begin_exchange(4u << 20);
    uint64_t start_ns = loop_now_ns();
    end_exchange(&second, 15000);
    assert_true(loop_now_ns() - start_ns < 5 * TIME_S);
}

static void keys_are_updated_under_load(void **state)
{
    (void)state;
    make_nodes(7, 0, 10 * TIME_S);
    struct network_conditions slow = {.loss = 0.005, .delay_ns = 300 * TIME_US};
    connect_nodes();
    set_network(&slow);
    struct exchange exchange = begin_exchange(64u << 20);
    struct quic_node *const nodes[] = {a, b};
    unsigned updates = 0;
    for (unsigned i = 0; i < 1000 && !exchanged(&exchange); i++) {
        struct quic_endpoint *endpoint = (struct quic_endpoint *)nodes[i % 2]->net;
        updates +=
            ngtcp2_conn_initiate_key_update(quic_peer_of(endpoint, 0)->up->transport, loop_now_ns()) == 0;
        quic_run_for(loop, 3);
    }
    end_exchange(&exchange, 20000);
    assert_true(updates >= 3);
}

static unsigned looks; /* readings of the clock; several at one time, in one event, count once */

static uint64_t later_ns(void)
{
    static uint64_t last_ns;
    looks += loop_now_ns() != last_ns ? 1 : 0;
    last_ns = loop_now_ns();
    return last_ns + 1000;
}

static uint64_t spent_ns(const struct budget_account *account)
{
    struct budget_info info;
    budget_account_info(account, &info);
    return info.spent_ns;
}

static bool sinks_are_open(const void *context)
{
    (void)context;
    return b->sinks != NULL && b->sinks->next != NULL && b->sinks->stream != NULL &&
           b->sinks->next->stream != NULL;
}

/* Each event that handles bytes takes 1,000 ns here. The accounts of those bytes are charged for it. */
static void time_is_charged_to_whose_bytes_take_it(void **state)
{
    (void)state;
    enum { STREAMS = 2 };
    static const size_t sizes[STREAMS] = {8u << 20, 1u << 20};
    struct budget *budget;
    struct budget_account *senders[STREAMS], *receiver;
    struct quic_source *sources[STREAMS];
    make_nodes(9, 1452, 10 * TIME_S);
    connect_nodes();
    assert_int_equal(budget_new(NULL, &budget, NULL), STATUS_OK);
    assert_int_equal(budget_open(budget, 999, NULL, &receiver, NULL), STATUS_OK);
    looks = 0;
    net_set_clock(a->net, later_ns);
    net_set_clock(b->net, later_ns);
    for (uint32_t i = 0; i < STREAMS; i++) {
        assert_int_equal(budget_open(budget, 1000 + i, NULL, &senders[i], NULL), STATUS_OK);
        sources[i] = quic_source_new(a, 0, i + 1, sizes[i], 1u << 18, false);
        net_stream_charge(sources[i]->stream, senders[i]);
    }
    assert_true(quic_run_until(loop, sinks_are_open, NULL, 5000));
    net_stream_charge(b->sinks->stream, receiver);
    for (uint32_t i = 0; i < STREAMS; i++) {
        net_stream_finish(sources[i]->stream);
    }
    assert_true(quic_run_until_count(loop, &sources[0]->done, sources[0]->sends, 10000));
    assert_true(quic_run_until_count(loop, &sources[1]->done, sources[1]->sends, 10000));
    quic_run_for(loop, 100);
    uint64_t spent[] = {spent_ns(senders[0]), spent_ns(senders[1]), spent_ns(receiver)};
    assert_true(spent[1] >= 500 && spent[0] > 2 * spent[1]);
    assert_true(spent[2] >= 500);
    /* Every event that reads the clock is charged. The bytes of the other sink have no account: nobody is
     * charged for their part. */
    assert_in_range(spent[0] + spent[1] + spent[2], looks * UINT64_C(500), looks * UINT64_C(1000));
    unsigned before = looks;
    quic_run_for(loop, 1000); /* bytes without an account cost no reading of the clock */
    assert_int_equal(looks, before);
    for (uint32_t i = 0; i < STREAMS; i++) {
        quic_source_free(sources[i]);
        budget_close(senders[i]);
    }
    budget_close(receiver);
    budget_free(budget);
}

/* Each side's error names the other side, the broken rule in words, and the error code. */
static void violations_are_told_in_words(void **state)
{
    (void)state;
    static const struct {
        int failure;
        const char *here, *there;
    } cases[] = {
        {NGTCP2_ERR_PROTO, "such as an acknowledgement of a packet that was never sent (ERR_PROTO)",
         "such as an acknowledgement of a packet that was never sent (QUIC error 0xa)"},
        {NGTCP2_ERR_FLOW_CONTROL, "it sent more bytes than it was allowed (ERR_FLOW_CONTROL)",
         "it was sent more bytes than it was allowed (QUIC error 0x3)"},
        {NGTCP2_ERR_STREAM_LIMIT, "it sent more streams than it was allowed (ERR_STREAM_LIMIT)",
         "more streams than it was allowed (QUIC error 0x4)"},
        {NGTCP2_ERR_STREAM_STATE, "it sent a frame for a stream that cannot have it (ERR_STREAM_STATE)",
         "a frame for a stream that cannot have it (QUIC error 0x5)"},
        {NGTCP2_ERR_FINAL_SIZE, "it sent a stream with two different ends (ERR_FINAL_SIZE)",
         "a stream with two different ends (QUIC error 0x6)"},
        {NGTCP2_ERR_FRAME_ENCODING, "it sent a malformed frame (ERR_FRAME_ENCODING)",
         "a malformed frame (QUIC error 0x7)"},
        {NGTCP2_ERR_CONNECTION_ID_LIMIT, "more connection IDs than it was allowed (ERR_CONNECTION_ID_LIMIT)",
         "more connection IDs than it was allowed (QUIC error 0x9)"},
        {NGTCP2_ERR_CRYPTO_BUFFER_EXCEEDED, "it sent more handshake data than there is room for (ERR_CRYPTO",
         "more handshake data than there is room for (QUIC error 0xd)"},
        {NGTCP2_ERR_NO_VIABLE_PATH, "the connection cannot go on (ERR_NO_VIABLE_PATH)",
         "no reason given (QUIC error 0x10)"},
    };
    make_nodes(10, 1452, 10 * TIME_S);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        connect_nodes();
        struct quic_endpoint *endpoint = (struct quic_endpoint *)a->net;
        quic_connection_fail(quic_peer_of(endpoint, 0)->up, cases[i].failure);
        assert_true(quic_run_until(loop, both_down, NULL, 10000));
        assert_int_equal(a->down_cause.status, STATUS_PROTOCOL);
        assert_int_equal(b->down_cause.status, STATUS_PROTOCOL);
        assert_text(a->down_cause.text, "node b (");
        assert_text(a->down_cause.text, cases[i].here);
        assert_text(b->down_cause.text, "node a (");
        assert_text(b->down_cause.text, cases[i].there);
    }
}

static struct quic_connection *connection_of(struct quic_node *node)
{
    return quic_peer_of((struct quic_endpoint *)node->net, 0)->up;
}

/* The first packets of some streams are lost. ngtcp2 sends them again: all streams have begun in the end. */
static void lost_beginnings_come_again(void **state)
{
    (void)state;
    enum { STREAMS = 300 };
    struct network_conditions bad = {.loss = 0.1, .delay_ns = 200 * TIME_US};
    struct quic_source *sources[STREAMS];
    make_nodes(11, 1452, 10 * TIME_S);
    connect_nodes();
    set_network(&bad);
    for (uint32_t i = 0; i < STREAMS; i++) {
        sources[i] = quic_source_new(a, 0, i + 1, 5000, 5000, true);
    }
    for (uint32_t i = 0; i < STREAMS; i++) {
        assert_true(quic_run_until_count(loop, &sources[i]->done, sources[i]->sends, 10000));
        quic_source_free(sources[i]);
    }
    quic_run_for(loop, 100);
    assert_int_equal(connection_of(b)->unbegun, 0);
}

/* ngtcp2 would keep 8 KiB for each of them. */
static void too_many_streams_without_a_beginning_end_the_connection(void **state)
{
    (void)state;
    make_nodes(12, 1452, 10 * TIME_S);
    connect_nodes();
    struct quic_connection *connection = connection_of(a);
    for (int64_t i = 1; i <= QUIC_UNBEGUN_MAX; i++) {
        assert_int_equal(quic_callbacks.stream_open(connection->transport, 1000000 + 4 * i, connection), 0);
    }
    assert_false(connection->failed);
    assert_int_not_equal(quic_callbacks.stream_open(connection->transport, 1000000, connection), 0);
    assert_true(quic_run_until(loop, both_down, NULL, 10000));
    assert_int_equal(a->down_cause.status, STATUS_PROTOCOL);
    assert_text(a->down_cause.text, "node b (");
    assert_text(a->down_cause.text, "left out the beginning of more than 2048 streams");
    assert_text(b->down_cause.text, "left out the beginning of more than 2048 streams");
}

/* The connection has nearly used up its memory, or so the test makes it believe. A thread deletes a
 * connection that large. */
static void a_peer_gets_so_much_memory(void **state)
{
    (void)state;
    make_nodes(13, 1452, 10 * TIME_S);
    connect_nodes();
    struct quic_memory *memory = connection_of(a)->memory;
    assert_in_range(memory->bytes, 1000, 1u << 20);
    struct network_conditions bad = {.loss = 0.1, .delay_ns = 200 * TIME_US};
    set_network(&bad);
    struct exchange exchange = begin_exchange(1u << 20);
    memory->bytes = QUIC_MEMORY_MAX_BYTES - 1000;
    assert_true(quic_run_until(loop, both_down, NULL, 10000));
    assert_int_equal(a->down_cause.status, STATUS_PROTOCOL);
    assert_text(a->down_cause.text, "node b (");
    assert_text(a->down_cause.text, "holds more than 128 MiB in its connection");
    struct quic_endpoint *endpoint = (struct quic_endpoint *)a->net;
    assert_non_null(endpoint->deletions);
    quic_memory_join(&endpoint->deletions, true);
    assert_null(endpoint->deletions);
    quic_source_free(exchange.forth);
    quic_source_free(exchange.back);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(loss_and_damage_change_no_byte, setup_loop, teardown),
        cmocka_unit_test_setup_teardown(reordering_and_duplicates_change_no_byte, setup_loop, teardown),
        cmocka_unit_test_setup_teardown(handshakes_survive_a_third_lost, setup_loop, teardown),
        cmocka_unit_test_setup_teardown(a_slow_handshake_slows_no_data, setup_loop, teardown),
        cmocka_unit_test_setup_teardown(a_blackhole_of_two_seconds_ends_nothing, setup_loop, teardown),
        cmocka_unit_test_setup_teardown(a_one_way_path_is_noticed_by_both, setup_loop, teardown),
        cmocka_unit_test_setup_teardown(rebinding_fails_nothing, setup_loop, teardown),
        cmocka_unit_test_setup_teardown(a_path_that_shrinks_stalls_nothing_for_long, setup_loop, teardown),
        cmocka_unit_test_setup_teardown(keys_are_updated_under_load, setup_loop, teardown),
        cmocka_unit_test_setup_teardown(time_is_charged_to_whose_bytes_take_it, setup_loop, teardown),
        cmocka_unit_test_setup_teardown(lost_beginnings_come_again, setup_loop, teardown),
        cmocka_unit_test_setup_teardown(too_many_streams_without_a_beginning_end_the_connection, setup_loop,
                                        teardown),
        cmocka_unit_test_setup_teardown(a_peer_gets_so_much_memory, setup_loop, teardown),
        cmocka_unit_test_setup_teardown(violations_are_told_in_words, setup_loop, teardown),
    };
    log_set_level(LOG_LEVEL_ERROR);
    return cmocka_run_group_tests_name("quic_datagrams", tests, setup_files, teardown_files);
}
