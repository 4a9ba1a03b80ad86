#ifndef TESTS_UNIT_NET_TLS_NODES_H
#define TESTS_UNIT_NET_TLS_NODES_H

#include <signal.h>
#include <sys/socket.h>

#include "daemon/net/bulk.h"
#include "daemon/net/tls.h"
#include "daemon/net/tls_internal.h"
#include "tests/unit/net/stream_sources.h"

/* The nodes a and b of quic_nodes.h, with bulk links over TCP. a dials. */

static inline void attach(const struct quic_node *node)
{
    struct error error;
    struct tls_options options = {.mode = NET_BULK_TLS, .processors = 2};
    assert_int_equal(net_tls_attach(node->net, loop, &options, &error), STATUS_OK);
}

static inline struct tls_endpoint *tls_of(const struct quic_node *node)
{
    return (struct tls_endpoint *)node->net->bulk;
}

static inline struct tls_peer *peer_of(const struct quic_node *node)
{
    return tls_peer_at(tls_of(node), 0);
}

/* Whether both nodes have the link; asks for it. */
static inline bool both_linked(const void *context)
{
    (void)context;
    bool from_a = net_bulk_choose(a->net, 0, loop_now_ns());
    bool from_b = net_bulk_choose(b->net, 0, loop_now_ns());
    return from_a && from_b;
}

/* Neither has it, and their streams flow. */
static inline bool both_tunnel(const void *context)
{
    (void)context;
    return tls_peer_flows(peer_of(a)) && tls_peer_flows(peer_of(b)) && peer_of(a)->connection == NULL &&
           peer_of(b)->connection == NULL;
}

/* The kernel chose b's UDP port; somebody may have the TCP port of that number. Then other nodes take their
 * place. */
static inline void attach_both(void)
{
    attach(b);
    for (unsigned tries = 0; tls_of(b)->listener < 0 && tries < 20; tries++) {
        free_nodes();
        a = quic_node_new(loop, pki, "a", NULL);
        b = quic_node_new(loop, pki, "b", NULL);
        attach(b);
    }
    attach(a);
    quic_nodes_connect(a, b);
    net_bulk_allow(a->net, 0, true);
    net_bulk_allow(b->net, 0, true);
}

/* TCP may be faster than the first greeting over QUIC. Then the node closes the connection, and the other one
 * dials again: that is no loss that tests count. */
static inline void link_both(void)
{
    assert_true(quic_run_until(loop, both_linked, NULL, 5000));
    peer_of(a)->lost_count = peer_of(b)->lost_count = 0;
    a->bulk = b->bulk = true;
}

static inline int setup_linked(void **state)
{
    (void)signal(SIGPIPE, SIG_IGN); /* as commd does */
    if (setup_nodes(state) != 0) {
        return -1;
    }
    attach_both();
    link_both();
    return 0;
}

/* Cuts the TCP connection, as a firewall does that sends a reset. */
static inline void cut(const struct quic_node *node)
{
    assert_non_null(peer_of(node)->connection);
    assert_int_equal(shutdown(peer_of(node)->connection->fd, SHUT_RDWR), 0);
}

#endif
