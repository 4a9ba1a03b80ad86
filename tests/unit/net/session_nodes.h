#ifndef TESTS_UNIT_NET_SESSION_NODES_H
#define TESTS_UNIT_NET_SESSION_NODES_H

#include "tests/unit/net/datagram_nodes.h"

/* Two connected nodes that transfer data. Their link is so slow that an outage comes in the middle of a
 * transfer. */

static const struct network_conditions narrow = {.delay_ns = 100 * TIME_US, .bandwidth_bytes_s = 4000000};

static inline void start_nodes(uint64_t seed, const struct network_conditions *conditions)
{
    make_nodes(seed, 0, 0);
    connect_nodes();
    net_keep_alive(a->net, 0, true);
    net_keep_alive(b->net, 0, true);
    set_network(conditions);
}

#endif
