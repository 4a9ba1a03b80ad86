#ifndef TESTS_UNIT_NET_DATAGRAM_NODES_H
#define TESTS_UNIT_NET_DATAGRAM_NODES_H

#include "daemon/net/quic_internal.h"
#include "tests/network/network.h"
#include "tests/unit/net/quic_nodes.h"

/* The two endpoints of quic_nodes.h in virtual time, on a network of datagrams. */

static struct network *network;

static const struct network_conditions fine = {.delay_ns = 100 * TIME_US};

/* host: the node's place on the network; name: the node whose certificate it has. */
static inline struct quic_node *make_node(const char *host, const char *name, uint32_t datagram_max_bytes,
                                          uint64_t idle_timeout_ns)
{
    char address[NETWORK_ADDRESS_MAX_BYTES];
    struct quic_options options;
    quic_node_options(pki, name, &options);
    network_address(network, host, address);
    options.bind_address = address;
    options.datagram_max_bytes = datagram_max_bytes;
    options.idle_timeout_ns = idle_timeout_ns;
    options.patience_ns = idle_timeout_ns;
    return quic_node_new(loop, pki, name, &options);
}

static inline uint32_t add_peer(struct quic_node *node, const char *name)
{
    char address[NETWORK_ADDRESS_MAX_BYTES];
    uint32_t peer = 0;
    network_address(network, name, address);
    assert_int_equal(net_add_peer(node->net, name, address, &peer, NULL), STATUS_OK);
    return peer;
}

static inline void make_nodes(uint64_t seed, uint32_t datagram_max_bytes, uint64_t idle_timeout_ns)
{
    network = network_new_datagrams(seed, &fine, 4700);
    a = make_node("a", "a", datagram_max_bytes, idle_timeout_ns);
    b = make_node("b", "b", datagram_max_bytes, idle_timeout_ns);
    (void)add_peer(a, "b");
    (void)add_peer(b, "a");
}

static inline void set_network(const struct network_conditions *conditions)
{
    network_set_link(network, "a", "b", conditions);
    network_set_link(network, "b", "a", conditions);
}

static inline void cut_network(bool cut)
{
    network_cut(network, "a", "b", cut);
    network_cut(network, "b", "a", cut);
}

static inline void free_network(void)
{
    free_nodes();
    network_free(network);
    network = NULL;
}

static inline int teardown(void **state)
{
    (void)state;
    free_network();
    loop_free(loop);
    return 0;
}

static inline void connect_nodes(void)
{
    quic_node_connect(a, 0);
    assert_true(quic_run_until(loop, both_up, NULL, 10000));
}

struct exchange {
    struct quic_source *forth;
    struct quic_source *back;
};

static inline struct exchange begin_exchange(size_t size)
{
    return (struct exchange){quic_source_new(a, 0, 1, size, 1u << 18, true),
                             quic_source_new(b, 0, 2, size, 1u << 18, true)};
}

static inline bool exchanged(const void *context)
{
    const struct exchange *exchange = context;
    return quic_source_done(exchange->forth) && quic_source_done(exchange->back) && a->sinks != NULL &&
           b->sinks != NULL && a->sinks->closed && b->sinks->closed;
}

static inline void end_exchange(struct exchange *exchange, uint64_t timeout_ms)
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

#endif
