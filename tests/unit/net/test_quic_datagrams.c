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
    struct exchange next = begin_exchange(100000); /* and when idle */
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
        updates += ngtcp2_conn_initiate_key_update(endpoint->peers[0]->up->transport, loop_now_ns()) == 0;
        quic_run_for(loop, 3);
    }
    end_exchange(&exchange, 20000);
    assert_true(updates >= 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(loss_and_damage_change_no_byte, setup_loop, teardown),
        cmocka_unit_test_setup_teardown(reordering_and_duplicates_change_no_byte, setup_loop, teardown),
        cmocka_unit_test_setup_teardown(handshakes_survive_a_third_lost, setup_loop, teardown),
        cmocka_unit_test_setup_teardown(a_blackhole_of_two_seconds_ends_nothing, setup_loop, teardown),
        cmocka_unit_test_setup_teardown(a_one_way_path_is_noticed_by_both, setup_loop, teardown),
        cmocka_unit_test_setup_teardown(rebinding_fails_nothing, setup_loop, teardown),
        cmocka_unit_test_setup_teardown(a_path_that_shrinks_stalls_nothing_for_long, setup_loop, teardown),
        cmocka_unit_test_setup_teardown(keys_are_updated_under_load, setup_loop, teardown),
    };
    log_set_level(LOG_LEVEL_ERROR);
    return cmocka_run_group_tests_name("quic_datagrams", tests, setup_files, teardown_files);
}
