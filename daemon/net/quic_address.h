#ifndef DAEMON_NET_QUIC_ADDRESS_H
#define DAEMON_NET_QUIC_ADDRESS_H

#include <netinet/in.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

#include "daemon/base/error.h"

/* An IPv4 or IPv6 address and UDP port. Unused bytes of the union are zero. */
struct quic_address {
    union {
        struct sockaddr base;
        struct sockaddr_in v4;
        struct sockaddr_in6 v6;
    };
    socklen_t size;
};

/* A lookup key: equal for the same address and port, whether written as IPv4 or as IPv6-mapped IPv4. */
struct quic_address_key {
    uint8_t bytes[16];
    uint16_t port;
};

#define QUIC_ADDRESS_TEXT_MAX_BYTES 64

/*
 * Resolves "host:port" or "[v6]:port", the port a number. With family AF_INET or AF_INET6, finds an address
 * that a socket of that family can send to (IPv4 becomes IPv6-mapped). AF_UNSPEC takes the first address
 * found. INVALID_ARGUMENT with a text that says what was expected; UNREACHABLE if the name is not known, or
 * no name server answers. It may block for many seconds.
 */
enum status quic_address_resolve(const char *text, int family, struct quic_address *out,
                                 struct error *error) COMM_MUST_USE;

/* As quic_address_resolve, but asks no name server and never blocks. UNREACHABLE if the host is a name. */
enum status quic_address_parse(const char *text, int family, struct quic_address *out,
                               struct error *error) COMM_MUST_USE;

/* Returns false, with *out empty, for a family that is neither IPv4 nor IPv6. */
bool quic_address_set(struct quic_address *out, const struct sockaddr *address, socklen_t size);

/* "127.0.0.1:4242", "[::1]:4242"; IPv6-mapped IPv4 as IPv4. Returns text. */
const char *quic_address_text(const struct quic_address *address, char text[QUIC_ADDRESS_TEXT_MAX_BYTES]);

void quic_address_key(const struct quic_address *address, struct quic_address_key *out);
uint16_t quic_address_port(const struct quic_address *address);
void quic_address_set_port(struct quic_address *address, uint16_t port);
bool quic_address_is_wildcard(const struct quic_address *address);
bool quic_address_is_loopback(const struct quic_address *address);
/* Whether a socket of this machine can be bound to the host. */
bool quic_address_is_local(const struct quic_address *address);
/* IPv4, also when IPv6-mapped. */
bool quic_address_is_v4(const struct quic_address *address);

#endif
