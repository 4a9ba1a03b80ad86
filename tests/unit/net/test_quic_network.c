#include "tests/unit/net/quic_nodes.h"

#include <arpa/inet.h>
#include <unistd.h>

#include "daemon/base/random.h"
#include "daemon/net/quic_internal.h"
#include "tests/lib/udp_relay.h"

/* Strangers who send what they like. */

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
        cmocka_unit_test_setup_teardown(garbage_disturbs_nothing, setup_loop, teardown),
        cmocka_unit_test_setup_teardown(strangers_get_what_the_protocol_says, setup_loop, teardown),
        cmocka_unit_test_setup_teardown(floods_of_handshakes_are_bounded, setup_loop, teardown),
    };
    log_set_level(LOG_LEVEL_ERROR);
    return cmocka_run_group_tests_name("quic_network", tests, setup_files, teardown_files);
}
