#ifndef DAEMON_NET_QUIC_H
#define DAEMON_NET_QUIC_H

#include <stdint.h>

#include "daemon/base/loop.h"
#include "daemon/net/net.h"

/*
 * The network for real: QUIC (RFC 9000, 9001, 9002) by ngtcp2 with OpenSSL, mutual TLS 1.3, in libevent's
 * loop. No early data, no tickets. ALPN "commd/1". The dialling side checks that the certificate's subject
 * alternative name (DNS) is the name of the peer it dialled; the accepting side looks up the peer by that
 * name, and refuses one it does not know.
 */
struct quic_options {
    const char *node_name;         /* ours: must be in our certificate, checked at start */
    const char *bind_address;      /* "host:port", "[v6]:port"; port 0 picks one, see net_quic_port */
    const char *certificate_path;  /* PEM, chain */
    const char *key_path;          /* PEM; refused when others than its owner may read it */
    bool key_is_credential;        /* systemd passed it, and shows its access list as a group's access */
    const char *authority_path;    /* PEM: the cluster's CA certificates */
    const char *revocation_path;   /* PEM CRL, or null */
    uint32_t datagram_max_bytes;   /* grown into by path MTU discovery; 0: 8952 (9000-byte frames), 65000 on
                                      loopback */
    uint32_t socket_buffer_bytes;  /* 0: 4 MiB; what the kernel granted is logged when it is less */
    uint64_t handshake_timeout_ns; /* 0: 10 s */
    uint64_t idle_timeout_ns;      /* of the transport, 0: 30 s; mesh's heartbeats are the real detector */
};

/*
 * Binds and loads the certificates. CONFIG or CERTIFICATE with a text that names the file and what is wrong;
 * INVALID_ARGUMENT for a bind address that does not parse; SYSTEM, NO_MEMORY.
 */
enum status net_quic_new(struct loop *loop, const struct quic_options *options, struct net **out,
                         struct error *error) COMM_MUST_USE;

/* The UDP port that was bound. */
uint16_t net_quic_port(const struct net *net);

/*
 * A node's certificate, key, CAs and revocations, as they were in their files when they were loaded. Several
 * endpoints, each on a thread of its own, may share them.
 */
struct quic_tls;

/*
 * Reads and checks the files that options names, as net_quic_new does; nothing else of options counts but
 * node_name. The caller frees *out.
 */
enum status net_quic_load(const struct quic_options *options, struct quic_tls **out,
                          struct error *error) COMM_MUST_USE;
/* Another reference, for net_quic_unload, which any thread may call. */
struct quic_tls *net_quic_share(struct quic_tls *tls);
/* Endpoints that use them keep them. Null is accepted. */
void net_quic_unload(struct quic_tls *tls);

/*
 * Handshakes use these from now on. Connections of peers that they accept stay; those of peers whose
 * certificate they refuse (revoked, or of an authority that is gone) end, with CERTIFICATE. Dates count in
 * handshakes alone: a connection may outlive its certificate, so that renewing one ends no operation.
 */
void net_quic_use(struct net *net, struct quic_tls *tls);

#endif
