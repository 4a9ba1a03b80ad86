#include "tests/unit/net/datagram_nodes.h"

#include "daemon/base/random.h"
#include "tests/datagrams/stranger.h"

/* What an attacker without a certificate can do to connections and handshakes of others. The tests run in
 * virtual time. */

static void garbage(struct random *random, const struct quic_cid *cid)
{
    uint8_t bytes[4096];
    size_t size = random_below(random, 1500);
    for (size_t i = 0; i < sizeof bytes; i++) {
        bytes[i] = (uint8_t)random_u64(random);
    }
    switch (random_below(random, 6)) {
    case 0:
        size = 0;
        break;
    case 1: /* to an existing connection */
        bytes[0] = 0x40;
        memcpy(bytes + 1, cid->bytes, cid->size);
        break;
    case 2: /* an Initial, full size, of nonsense */
        memcpy(bytes, "\xc0\x00\x00\x00\x01\x08", 6);
        size = 1200;
        break;
    case 3: /* a Handshake packet to an existing connection */
        memcpy(bytes, "\xe0\x00\x00\x00\x01\x08", 6);
        memcpy(bytes + 6, cid->bytes, cid->size);
        break;
    case 4:
        size = sizeof bytes;
        break;
    default:
        break;
    }
    stranger_sends(network, "stranger", "b", bytes, size);
}

static void garbage_disturbs_nothing(void **state)
{
    (void)state;
    make_nodes(8, 0, 10 * TIME_S);
    struct random random;
    struct network_conditions narrow = fine, replayed = {.duplication = 0.5,
                                                         .delay_ns = 100 * TIME_US,
                                                         .jitter_ns = 50 * TIME_MS};
    connect_nodes();
    random_seed(&random, 8);
    narrow.bandwidth_bytes_s = replayed.bandwidth_bytes_s = 100000000;
    set_network(&narrow);
    const struct quic_endpoint *endpoint = (const struct quic_endpoint *)b->net;
    struct exchange exchange = begin_exchange(16u << 20);
    struct net_statistics before;
    net_statistics(b->net, &before);
    unsigned sent = 0;
    while (sent < 20000) {
        for (unsigned i = 0; i < 100; i++, sent++) {
            garbage(&random, quic_peer_of(endpoint, 0)->up->cids);
        }
        quic_run_for(loop, 1);
        if (sent == 10000) {
            set_network(&replayed);
        }
    }
    set_network(&fine);
    end_exchange(&exchange, 20000);
    struct net_statistics after;
    net_statistics(b->net, &after);
    assert_true(after.dropped_datagrams - before.dropped_datagrams > sent / 4);
    assert_true(endpoint->admission.half_open <= QUIC_HALF_OPEN_ADDRESS_RETRY);
}

static size_t answer(void *bytes, size_t size)
{
    size_t received = 0;
    quic_run_for(loop, 20);
    (void)stranger_receives(network, "stranger", bytes, size, &received);
    return received;
}

static void strangers_get_what_the_protocol_says(void **state)
{
    (void)state;
    make_nodes(9, 0, 10 * TIME_S);
    uint8_t sent[1200];
    uint8_t got[2000];
    memset(sent, 0x5a, sizeof sent);
    memcpy(sent,
           "\xc0\x1a\x2a\x3a\x4a\x08"
           "destinat"
           "\x04"
           "srce",
           19); /* a version that nobody speaks */
    stranger_sends(network, "stranger", "b", sent, 1199);
    assert_int_equal(answer(got, sizeof got), 0); /* too small to be answered */
    stranger_sends(network, "stranger", "b", sent, 1200);
    size_t size = answer(got, sizeof got);
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
    stranger_sends(network, "stranger", "b", sent, 100);
    size = answer(got, sizeof got);
    assert_in_range(size, 21, 99);
    assert_true((got[0] & 0xc0) == 0x40);
    uint8_t again[2000];
    stranger_sends(network, "stranger", "b", sent, 100);
    assert_int_equal(answer(again, sizeof again), size);
    assert_memory_equal(got + size - 16, again + size - 16,
                        16); /* the same token for the same connection ID */
    stranger_sends(network, "stranger", "b", sent, 20);
    assert_int_equal(answer(got, sizeof got), 0);
    for (unsigned i = 0; i < 1000; i++) { /* a limit holds */
        stranger_sends(network, "stranger", "b", sent, 100);
    }
    unsigned answers = 0;
    for (quic_run_for(loop, 30); stranger_receives(network, "stranger", got, sizeof got, &size); answers++) {
    }
    assert_in_range(answers, 1, 100);
}

/* The answers to these handshakes never arrive, as if their addresses were forged. */
static void floods_of_handshakes_are_bounded(void **state)
{
    (void)state;
    make_nodes(10, 0, 10 * TIME_S);
    network_cut(network, "b", "a", true);
    struct quic_endpoint *attacker = (struct quic_endpoint *)a->net;
    const struct quic_endpoint *endpoint = (const struct quic_endpoint *)b->net;
    for (unsigned i = 0; i < 300; i++) {
        struct error error;
        assert_int_equal(quic_connection_dial(attacker, quic_peer_of(attacker, 0),
                                              &quic_peer_of(attacker, 0)->address, &error),
                         STATUS_OK);
        if (i % 10 == 0) {
            quic_run_for(loop, 1);
        }
    }
    quic_run_until_count(loop, &endpoint->admission.half_open, QUIC_HALF_OPEN_ADDRESS_RETRY, 3000);
    quic_run_for(loop, 200);
    assert_int_equal(endpoint->admission.half_open, QUIC_HALF_OPEN_ADDRESS_RETRY);

    struct quic_node *c =
        make_node("c", "c", 0, 10 * TIME_S); /* a node that really is at its address gets through */
    (void)add_peer(c, "b");
    uint32_t index = add_peer(b, "c");
    net_keep_alive(c->net, 0, true);
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

/* --- One rail and the next --- */

static struct quic_node *b2; /* another endpoint of b: its next rail */

static int setup_rails(void **state)
{
    int failed = setup_loop(state);
    make_nodes(11, 0, 10 * TIME_S);
    b2 = make_node("b2", "b", 0, 10 * TIME_S);
    return failed;
}

static int teardown_rails(void **state)
{
    quic_node_free(b2);
    b2 = NULL;
    return teardown(state);
}

/* Sends the host a packet with this connection ID, and returns the size of the answer. */
static size_t ask_about_connection(const char *host, const ngtcp2_cid *cid, uint8_t *bytes, size_t size)
{
    uint8_t packet[64] = {0x40}; /* a short header: RFC 9000, 17.3.1 */
    memcpy(packet + 1, cid->data, cid->datalen);
    stranger_sends(network, "stranger", host, packet, sizeof packet);
    size_t received = answer(bytes, size);
    assert_true(received >= NGTCP2_STATELESS_RESET_TOKENLEN);
    return received;
}

/* RFC 9000, 21.11. Otherwise somebody who sees a packet of a connection could ask another port for its reset
 * token, and end the connection with it. */
static void one_rail_tells_nothing_of_another_rails_tokens(void **state)
{
    (void)state;
    uint8_t token[256];
    connect_nodes();
    struct quic_endpoint *endpoint = quic_endpoint_of(a->net);
    const ngtcp2_cid *seen = ngtcp2_conn_get_dcid(quic_peer_of(endpoint, 0)->up->transport);
    size_t size = ask_about_connection("b2", seen, token, sizeof token);
    assert_null(quic_connection_find(endpoint, true, token + size - NGTCP2_STATELESS_RESET_TOKENLEN,
                                     NGTCP2_STATELESS_RESET_TOKENLEN));
    /* The same bytes as if b's host had sent them. */
    stranger_sends(network, "b", "a", token, size);
    quic_run_for(loop, 100);
    assert_true(both_up(NULL));
    assert_int_equal(a->down_calls[0], 0);
}

static void make_reset_token(const struct quic_node *node, const ngtcp2_cid *cid,
                             uint8_t token[NGTCP2_STATELESS_RESET_TOKENLEN])
{
    const struct quic_endpoint *endpoint = quic_endpoint_of(node->net);
    assert_int_equal(ngtcp2_crypto_generate_stateless_reset_token(token, endpoint->reset_secret,
                                                                  sizeof endpoint->reset_secret, cid),
                     0);
}

static void every_endpoint_has_secrets_of_its_own(void **state)
{
    (void)state;
    ngtcp2_cid cid;
    uint8_t of_first[NGTCP2_STATELESS_RESET_TOKENLEN];
    uint8_t of_second[NGTCP2_STATELESS_RESET_TOKENLEN];
    const struct quic_endpoint *first = quic_endpoint_of(b->net);
    const struct quic_endpoint *second = quic_endpoint_of(b2->net);
    ngtcp2_cid_init(&cid, (const uint8_t *)"01234567", QUIC_CID_BYTES);
    make_reset_token(b, &cid, of_first);
    make_reset_token(b2, &cid, of_second);
    assert_memory_not_equal(of_first, of_second, sizeof of_first);
    assert_memory_not_equal(first->retry_secret, second->retry_secret, QUIC_SECRET_BYTES);
    assert_memory_not_equal(first->reset_secret, first->retry_secret, QUIC_SECRET_BYTES);
    /* The node's name is part of the secret, because two nodes may have the same key. */
    uint8_t of_name[QUIC_SECRET_BYTES];
    struct error error;
    assert_int_equal(quic_tls_reset_secret(first->tls, "b", &first->socket.local, of_name, &error),
                     STATUS_OK);
    assert_memory_equal(of_name, first->reset_secret, QUIC_SECRET_BYTES);
    assert_int_equal(quic_tls_reset_secret(first->tls, "c", &first->socket.local, of_name, &error),
                     STATUS_OK);
    assert_memory_not_equal(of_name, first->reset_secret, QUIC_SECRET_BYTES);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(garbage_disturbs_nothing, setup_loop, teardown),
        cmocka_unit_test_setup_teardown(strangers_get_what_the_protocol_says, setup_loop, teardown),
        cmocka_unit_test_setup_teardown(floods_of_handshakes_are_bounded, setup_loop, teardown),
        cmocka_unit_test_setup_teardown(one_rail_tells_nothing_of_another_rails_tokens, setup_rails,
                                        teardown_rails),
        cmocka_unit_test_setup_teardown(every_endpoint_has_secrets_of_its_own, setup_rails, teardown_rails),
    };
    log_set_level(LOG_LEVEL_ERROR);
    return cmocka_run_group_tests_name("quic_strangers", tests, setup_files, teardown_files);
}
