#ifndef DAEMON_NET_TLS_H
#define DAEMON_NET_TLS_H

#include <stdint.h>

#include "daemon/base/loop.h"
#include "daemon/net/bulk.h"

/*
 * Bulk links over TCP with TLS 1.3 (RFC 8446), for a net made by net_quic_new. They use the same certificates
 * and checks, and the same port number, on TCP. With packets of 1500 bytes, TLS over TCP costs less processor
 * time for each byte than QUIC, because the kernel cuts and acknowledges packets. But a lost packet holds up
 * all streams of the link.
 *
 * The two nodes agree over QUIC which session a TCP connection belongs to. The node whose name sorts first
 * dials. Only connections from the addresses of nodes that are connected are accepted.
 */
struct tls_options {
    enum net_bulk_mode mode;
    uint32_t processors; /* that commd may use: the fewer, the more processor time counts; at least 1 */
};

/*
 * Gives the net bulk links, which net_free frees. If the TCP port cannot be bound, that is logged, and only
 * connections that this node dials are made. loop: the net's. NO_MEMORY, SYSTEM.
 */
enum status net_tls_attach(struct net *net, struct loop *loop, const struct tls_options *options,
                           struct error *error) COMM_MUST_USE;

#endif
