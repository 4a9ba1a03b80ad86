#ifndef DAEMON_NET_QUIC_H
#define DAEMON_NET_QUIC_H

#include <stdint.h>

#include "daemon/base/loop.h"
#include "daemon/net/net.h"

/*
 * The QUIC implementation of net.h (RFC 9000, 9001, 9002): ngtcp2 with OpenSSL, mutual TLS 1.3, in libevent's
 * loop. No early data, no tickets. ALPN "commd/2". The dialling side checks that the certificate's subject
 * alternative name (DNS) is the name of the peer it dialled. The accepting side looks up the peer by that
 * name, and refuses one it does not know.
 */
#define QUIC_DATAGRAM_LEAST_BYTES 1200u /* RFC 9000, 14: every path carries that */
#define QUIC_DATAGRAM_LOOPBACK_BYTES 65000u

struct quic_options {
    const char *node_name;         /* ours: must be in our certificate, checked at start */
    const char *bind_address;      /* "host:port", "[v6]:port"; port 0 picks one: net_quic_local */
    const char *certificate_path;  /* PEM, chain */
    const char *key_path;          /* PEM; refused when others than its owner may read it */
    bool key_is_credential;        /* systemd passed it; its access list shows up as group access */
    const char *authority_path;    /* PEM: the cluster's CA certificates */
    const char *revocation_path;   /* PEM CRL, or null */
    struct quic_tls *certificates; /* loaded before: the files are not read. Shared; null: they are */
    uint32_t datagram_max_bytes;   /* limit of path MTU discovery; 0: 8952 (9000-byte frames), 65000 on
                                        loopback */
    uint32_t socket_buffer_bytes;  /* 0: 4 MiB; if the kernel grants less, that is logged */
    uint64_t handshake_timeout_ns; /* 0: 10 s */
    uint64_t idle_timeout_ns;      /* of the transport, 0: 30 s; lost peers are found by mesh's heartbeats */
    uint64_t patience_ns; /* how long streams wait for a new connection when theirs is lost; 0: 4 s */
};

/*
 * Binds and loads the certificates. CONFIG or CERTIFICATE with a text that names the file and what is wrong;
 * INVALID_ARGUMENT for a bind address that does not parse; SYSTEM, NO_MEMORY.
 */
enum status net_quic_new(struct loop *loop, const struct quic_options *options, struct net **out,
                         struct error *error) COMM_MUST_USE;

/*
 * Does at once what the next turn of the loop would do: sends what waits to be sent. With `reads`, it also
 * reads the socket. For a caller that spins: a turn of the loop takes longer. Returns whether a datagram was
 * read. A null net is accepted.
 */
bool net_quic_poll(struct net *net, bool reads, uint64_t now_ns);
/* Gives streams' handlers what net_stream_resume asked for. Sends nothing: net_quic_poll does that later. So
 * what follows from several messages that have come leaves together. Returns whether there was anything. */
bool net_quic_hand_out(struct net *net, uint64_t now_ns);

/* For bulk links (tls.h). Our name and a peer's; both belong to the net. */
const char *net_quic_node_name(const struct net *net);
const char *net_quic_peer_name(const struct net *net, uint32_t peer);
/* The address that was bound, and where the peer's connection is now. Returns false if there is none. */
struct quic_address;
void net_quic_local(const struct net *net, struct quic_address *out);
bool net_quic_remote(const struct net *net, uint32_t peer, struct quic_address *out);

/*
 * A node's certificate, key, CAs and revocations, as loaded from their files. Several endpoints, each on a
 * thread of its own, may share them.
 */
struct quic_tls;

/*
 * Reads and checks the files that options names, as net_quic_new does. Besides the files, it uses only
 * node_name of the options. The caller frees *out.
 */
enum status net_quic_load(const struct quic_options *options, struct quic_tls **out,
                          struct error *error) COMM_MUST_USE;
/* Those that the endpoint uses now. */
struct quic_tls *net_quic_certificates(const struct net *net);
/* Takes another reference, to be released by net_quic_unload, which any thread may call. */
struct quic_tls *net_quic_share(struct quic_tls *tls);
/* Releases a reference. Endpoints that use the certificates keep them. Null is accepted. */
void net_quic_unload(struct quic_tls *tls);

/*
 * Handshakes use these certificates from now on. Each present connection is checked against them. It stays if
 * they accept its peer's certificate. It ends with CERTIFICATE if they refuse it (revoked, or of an authority
 * that is gone). Dates count only in handshakes. A connection may outlive its certificate, so that renewing
 * one ends no operation.
 */
void net_quic_use(struct net *net, struct quic_tls *tls);

#endif
