#include "tests/unit/net/quic_nodes.h"

#include <arpa/inet.h>
#include <unistd.h>

#include "daemon/base/random.h"
#include "daemon/net/quic_internal.h"
#include "tests/lib/udp_relay.h"

/* Bad networks, and strangers who send what they like. */

static struct udp_relay *relay; /* from a to b */

static void make_relay(uint64_t seed)
{
    char target[32];
    struct error error;
    snprintf(target, sizeof target, "127.0.0.1:%u", b->port);
    assert_int_equal(udp_relay_new(loop, "127.0.0.1:0", target, seed, &relay, &error), STATUS_OK);
}

/* a knows b by the relay's address. */
static void make_nodes(uint64_t seed, uint32_t datagram_max_bytes)
{
    struct quic_options options;
    quic_node_options(pki, "a", &options);
    options.datagram_max_bytes = datagram_max_bytes;
    a = quic_node_new(loop, pki, "a", &options);
    quic_node_options(pki, "b", &options);
    options.datagram_max_bytes = datagram_max_bytes;
    b = quic_node_new(loop, pki, "b", &options);
    make_relay(seed);
    quic_node_add_peer(a, "b", udp_relay_port(relay));
    quic_node_add_peer(b, "a", a->port);
}

static void free_network(void)
{
    free_nodes();
    udp_relay_free(relay);
    relay = NULL;
}

static int teardown(void **state)
{
    (void)state;
    free_network();
    loop_free(loop);
    return 0;
}

static void connect_nodes(void)
{
    quic_node_connect(a, 0);
    assert_true(quic_run_until(loop, both_up, NULL, 10000));
}

struct exchange {
    struct quic_source *forth;
    struct quic_source *back;
};

static struct exchange begin_exchange(size_t size)
{
    return (struct exchange){quic_source_new(a, 0, 1, size, 1u << 18, true),
                             quic_source_new(b, 0, 2, size, 1u << 18, true)};
}

static bool exchanged(const void *context)
{
    const struct exchange *exchange = context;
    return quic_source_done(exchange->forth) && quic_source_done(exchange->back) && a->sinks != NULL &&
           b->sinks != NULL && a->sinks->closed && b->sinks->closed;
}

static void end_exchange(struct exchange *exchange, uint64_t timeout_ms)
{
    assert_true(quic_run_until(loop, exchanged, exchange, timeout_ms));
    if (a->down_calls[0] + b->down_calls[0] > 0) {
        fail_msg("the connection is lost: %s; %s", a->down_cause.text, b->down_cause.text);
    }
    assert_true(quic_sink_complete(a->sinks));
    assert_true(quic_sink_complete(b->sinks));
    assert_int_equal(exchange->forth->failed + exchange->back->failed, 0);
    quic_source_free(exchange->forth);
    quic_source_free(exchange->back);
}

/* --- Bad networks --- */

static void loss_and_damage_change_no_byte(void **state)
{
    (void)state;
    make_nodes(1, 1452);
    struct udp_relay_conditions bad = {.loss = 0.02, .corruption = 0.02, .delay_ns = 200 * TIME_US};
    connect_nodes();
    udp_relay_set(relay, &bad, &bad);
    struct exchange exchange = begin_exchange(8u << 20);
    end_exchange(&exchange, 30000);
    struct udp_relay_counters counters;
    udp_relay_counters(relay, &counters);
    assert_true(counters.lost > 100 && counters.damaged > 100);
    struct net_peer_statistics statistics;
    net_peer_statistics(a->net, 0, &statistics);
    assert_true(statistics.lost_packets > 50);
}

static void reordering_and_duplicates_change_no_byte(void **state)
{
    (void)state;
    make_nodes(2, 1452);
    struct udp_relay_conditions bad = {.duplication = 0.1, .delay_ns = 500 * TIME_US, .jitter_ns = TIME_MS};
    connect_nodes();
    udp_relay_set(relay, &bad, &bad);
    struct exchange exchange = begin_exchange(8u << 20);
    end_exchange(&exchange, 30000);
}

static void handshakes_survive_a_third_lost(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 12; seed++) {
        make_nodes(seed, 0);
        struct udp_relay_conditions bad = {.loss = 0.3, .delay_ns = TIME_MS};
        udp_relay_set(relay, &bad, &bad);
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
    make_nodes(3, 0);
    struct udp_relay_conditions dead = {.blackhole = true};
    struct udp_relay_conditions fine = {.delay_ns = 100 * TIME_US};
    connect_nodes();
    udp_relay_set(relay, &fine, &fine);
    struct exchange exchange = begin_exchange(64u << 20);
    quic_run_for(loop, 50);
    assert_false(exchanged(&exchange));
    udp_relay_set(relay, &dead, &dead);
    quic_run_for(loop, 2000);
    udp_relay_set(relay, &fine, &fine);
    end_exchange(&exchange, 20000);
}

static void a_one_way_path_is_noticed_by_both(void **state)
{
    (void)state;
    struct quic_options options;
    make_nodes(4, 0);
    quic_node_free(a);
    quic_node_options(pki, "a", &options);
    options.idle_timeout_ns = TIME_S;
    a = quic_node_new(loop, pki, "a", &options);
    quic_node_add_peer(a, "b", udp_relay_port(relay));
    connect_nodes();
    struct quic_source *source = quic_source_new(a, 0, 1, 100000, 10000, true);
    struct udp_relay_conditions dead = {.blackhole = true};
    udp_relay_set(relay, NULL, &dead);
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
    make_nodes(5, 0);
    struct udp_relay_conditions slow = {.delay_ns = TIME_MS, .jitter_ns = 50 * TIME_US};
    connect_nodes();
    udp_relay_set(relay, &slow, &slow);
    struct exchange exchange = begin_exchange(16u << 20);
    for (unsigned i = 0; i < 5; i++) {
        struct error error;
        quic_run_for(loop, 100);
        assert_int_equal(udp_relay_rebind(relay, &error), STATUS_OK);
    }
    end_exchange(&exchange, 20000);
    struct exchange next = begin_exchange(100000); /* and when idle */
    quic_run_for(loop, 50);
    end_exchange(&next, 5000);
}

static void a_path_that_shrinks_stalls_nothing_for_long(void **state)
{
    (void)state;
    make_nodes(6, 0);
    struct udp_relay_conditions wide = {.delay_ns = 200 * TIME_US};
    struct udp_relay_conditions narrow = {.delay_ns = 200 * TIME_US, .datagram_max_bytes = 1472};
    connect_nodes();
    udp_relay_set(relay, &wide, &wide);
    struct exchange first = begin_exchange(4u << 20);
    end_exchange(&first, 5000);
    struct net_peer_statistics statistics;
    net_peer_statistics(a->net, 0, &statistics);
    assert_int_equal(statistics.datagram_bytes, QUIC_DATAGRAM_LOOPBACK_BYTES);
    udp_relay_set(relay, &narrow, &narrow);
    struct exchange second = begin_exchange(4u << 20);
    uint64_t start_ns = loop_now_ns();
    end_exchange(&second, 15000);
    print_message("4 MiB both ways after the path shrank: %llu ms\n",
                  (unsigned long long)((loop_now_ns() - start_ns) / TIME_MS));
    assert_true(loop_now_ns() - start_ns < 5 * TIME_S);
}

static void keys_are_updated_under_load(void **state)
{
    (void)state;
    make_nodes(7, 0);
    struct udp_relay_conditions slow = {.loss = 0.005, .delay_ns = 300 * TIME_US};
    connect_nodes();
    udp_relay_set(relay, &slow, &slow);
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

/* --- Strangers --- */

struct stranger {
    int fd;
    struct sockaddr_in to;
    struct random random;
};

static struct stranger make_stranger(uint16_t port)
{
    struct stranger stranger = {.fd = socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK, 0),
                                .to = {.sin_family = AF_INET, .sin_port = htons(port)}};
    stranger.to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    random_seed(&stranger.random, port);
    assert_true(stranger.fd >= 0);
    return stranger;
}

static void stranger_sends(const struct stranger *stranger, const void *bytes, size_t size)
{
    (void)sendto(stranger->fd, bytes, size, 0, (const struct sockaddr *)&stranger->to, sizeof stranger->to);
}

static void garbage(struct stranger *stranger, const struct quic_cid *cid)
{
    uint8_t bytes[4096];
    size_t size = random_below(&stranger->random, 1500);
    for (size_t i = 0; i < sizeof bytes; i++) {
        bytes[i] = (uint8_t)random_u64(&stranger->random);
    }
    switch (random_below(&stranger->random, 6)) {
    case 0:
        size = 0;
        break;
    case 1: /* to a connection that there is */
        bytes[0] = 0x40;
        memcpy(bytes + 1, cid->bytes, cid->size);
        break;
    case 2: /* an Initial, full size, of nonsense */
        memcpy(bytes, "\xc0\x00\x00\x00\x01\x08", 6);
        size = 1200;
        break;
    case 3: /* a Handshake packet to a connection that there is */
        memcpy(bytes, "\xe0\x00\x00\x00\x01\x08", 6);
        memcpy(bytes + 6, cid->bytes, cid->size);
        break;
    case 4:
        size = sizeof bytes;
        break;
    default:
        break;
    }
    stranger_sends(stranger, bytes, size);
}

static void garbage_disturbs_nothing(void **state)
{
    (void)state;
    make_nodes(8, 0);
    struct udp_relay_conditions replayed = {
        .duplication = 0.5, .delay_ns = 100 * TIME_US, .jitter_ns = 50 * TIME_MS};
    connect_nodes();
    struct stranger stranger = make_stranger(b->port);
    const struct quic_endpoint *endpoint = (const struct quic_endpoint *)b->net;
    struct exchange exchange = begin_exchange(16u << 20);
    struct net_statistics before;
    net_statistics(b->net, &before);
    unsigned sent = 0;
    while (sent < 20000) {
        for (unsigned i = 0; i < 100; i++, sent++) {
            garbage(&stranger, endpoint->peers[0]->up->cids);
        }
        quic_run_for(loop, 1);
        if (sent == 10000) {
            udp_relay_set(relay, &replayed, &replayed);
        }
    }
    struct udp_relay_conditions fine = {0};
    udp_relay_set(relay, &fine, &fine);
    end_exchange(&exchange, 20000);
    struct net_statistics after;
    net_statistics(b->net, &after);
    assert_true(after.dropped_datagrams - before.dropped_datagrams > sent / 4);
    assert_true(endpoint->admission.half_open <= QUIC_HALF_OPEN_ADDRESS_RETRY);
    close(stranger.fd);
}

static size_t answer(const struct stranger *stranger, void *bytes, size_t size)
{
    quic_run_for(loop, 20);
    ssize_t received = recv(stranger->fd, bytes, size, 0);
    return received < 0 ? 0 : (size_t)received;
}

static void strangers_get_what_the_protocol_says(void **state)
{
    (void)state;
    make_nodes(9, 0);
    struct stranger stranger = make_stranger(b->port);
    uint8_t sent[1200];
    uint8_t got[2000];
    memset(sent, 0x5a, sizeof sent);
    memcpy(sent,
           "\xc0\x1a\x2a\x3a\x4a\x08"
           "destinat"
           "\x04"
           "srce",
           19); /* a version that nobody speaks */
    stranger_sends(&stranger, sent, 1199);
    assert_int_equal(answer(&stranger, got, sizeof got), 0); /* too small to be answered */
    stranger_sends(&stranger, sent, 1200);
    size_t size = answer(&stranger, got, sizeof got);
    assert_true(size >= 23);
    assert_true((got[0] & 0x80) != 0);
    assert_memory_equal(got + 1,
                        "\0\0\0\0\x04"
                        "srce"
                        "\x08"
                        "destinat",
                        18);
    bool offered = false;
    for (size_t i = 19; i + 4 <= size; i += 4) {
        offered = offered || memcmp(got + i, "\0\0\0\x01", 4) == 0;
    }
    assert_true(offered);

    memcpy(sent, "\x45unknownn", 9); /* a short header, of no connection */
    stranger_sends(&stranger, sent, 100);
    size = answer(&stranger, got, sizeof got);
    assert_in_range(size, 21, 99);
    assert_true((got[0] & 0xc0) == 0x40);
    uint8_t again[2000];
    stranger_sends(&stranger, sent, 100);
    assert_int_equal(answer(&stranger, again, sizeof again), size);
    assert_memory_equal(got + size - 16, again + size - 16,
                        16); /* the same token for the same connection ID */
    stranger_sends(&stranger, sent, 20);
    assert_int_equal(answer(&stranger, got, sizeof got), 0);
    for (unsigned i = 0; i < 1000; i++) { /* a limit holds */
        stranger_sends(&stranger, sent, 100);
    }
    unsigned answers = 0;
    for (quic_run_for(loop, 30); recv(stranger.fd, got, sizeof got, 0) > 0; answers++) {
    }
    assert_in_range(answers, 1, 100);
    close(stranger.fd);
}

/* Handshakes whose answers never arrive, as of spoofed addresses. */
static void floods_of_handshakes_are_bounded(void **state)
{
    (void)state;
    make_nodes(10, 0);
    struct udp_relay_conditions dead = {.blackhole = true};
    struct udp_relay_conditions fine = {0};
    udp_relay_set(relay, &fine, &dead);
    struct quic_endpoint *attacker = (struct quic_endpoint *)a->net;
    const struct quic_endpoint *endpoint = (const struct quic_endpoint *)b->net;
    for (unsigned i = 0; i < 300; i++) {
        struct error error;
        assert_int_equal(quic_connection_dial(attacker, attacker->peers[0], &error), STATUS_OK);
        if (i % 10 == 0) {
            quic_run_for(loop, 1);
        }
    }
    quic_run_until_count(loop, &endpoint->admission.half_open, QUIC_HALF_OPEN_ADDRESS_RETRY, 3000);
    quic_run_for(loop, 200);
    assert_int_equal(endpoint->admission.half_open, QUIC_HALF_OPEN_ADDRESS_RETRY);

    struct quic_node *c =
        quic_node_new(loop, pki, "c", NULL); /* whoever has the address that he claims gets through */
    quic_node_add_peer(c, "b", b->port);
    uint32_t index = quic_node_add_peer(b, "c", c->port);
    quic_node_connect(c, 0);
    for (unsigned i = 0; i < 200 && !c->up[0]; i++) {
        quic_run_for(loop, 10);
    }
    assert_true(c->up[0]);
    assert_true(b->up[index]);
    assert_int_equal(endpoint->admission.half_open, QUIC_HALF_OPEN_ADDRESS_RETRY);
    quic_run_for(loop, 5500); /* the handshake's time-out */
    assert_int_equal(endpoint->admission.half_open, 0);
    assert_true(c->up[0]);
    quic_node_free(c);
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
        cmocka_unit_test_setup_teardown(garbage_disturbs_nothing, setup_loop, teardown),
        cmocka_unit_test_setup_teardown(strangers_get_what_the_protocol_says, setup_loop, teardown),
        cmocka_unit_test_setup_teardown(floods_of_handshakes_are_bounded, setup_loop, teardown),
    };
    log_set_level(LOG_LEVEL_ERROR);
    return cmocka_run_group_tests_name("quic_network", tests, setup_files, teardown_files);
}
