#ifndef DAEMON_NET_QUIC_SOCKET_H
#define DAEMON_NET_QUIC_SOCKET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/base/error.h"
#include "daemon/net/quic_address.h"

/*
 * One unconnected, non-blocking UDP socket. It sends batches by UDP_SEGMENT (GSO) and receives them by
 * UDP_GRO if the kernel has them. It uses explicit congestion notification, never fragments, and reads ICMP
 * errors by IP_RECVERR.
 */

struct sock_extended_err;

#define QUIC_BATCH_MAX_BYTES 65507u      /* of one GSO batch */
#define QUIC_BATCH_MAX_DATAGRAMS 64u     /* UDP_MAX_SEGMENTS of kernels before 6.9 */
#define QUIC_RECEIVE_MESSAGES_MAX 8u     /* of one recvmmsg; GRO may join many datagrams in each */
#define QUIC_RECEIVE_BUFFER_BYTES 65536u /* of each */
#define QUIC_SOCKET_ERRORS_MAX 64u       /* ICMP errors read at a time; the rest wait */

struct quic_socket {
    int fd;
    bool wildcard;   /* bound to no address: datagrams carry the local address */
    bool gso;        /* cleared when a device refuses it */
    bool has_errors; /* ICMP errors wait to be read */
    struct quic_address local;
    uint8_t *receive_buffers;
    uint32_t granted_receive_bytes;
    uint32_t granted_send_bytes;
};

/* Datagrams to one address. All have the same size, except that the last may be shorter. */
struct quic_batch {
    const uint8_t *bytes;
    size_t size;
    size_t datagram_bytes;
    struct quic_address local;
    struct quic_address remote;
    uint8_t ecn; /* the two bits of RFC 3168 */
};

struct quic_datagram {
    const uint8_t *bytes;
    size_t size; /* may be 0 */
    const struct quic_address *local;
    const struct quic_address *remote;
    uint8_t ecn;
};

enum quic_send_result {
    QUIC_SEND_DONE,   /* or dropped by this host: too large, no route, no buffer */
    QUIC_SEND_BLOCKED /* the rest was not sent: try again when the socket is writable */
};

typedef void quic_datagram_function(void *context, const struct quic_datagram *datagram);

/* What an ICMP error says. */
enum quic_unreachable {
    QUIC_UNREACHABLE_NOT,  /* something else */
    QUIC_UNREACHABLE_HOST, /* datagrams do not get there: a router says so, or this host, when ARP gets no
                              answer */
    QUIC_UNREACHABLE_PORT, /* the host itself says that no process listens */
};
typedef void quic_unreachable_function(void *context, const struct quic_address *remote,
                                       enum quic_unreachable kind);

/*
 * Binds the socket. buffer_bytes is requested from the kernel for each direction. INVALID_ARGUMENT, SYSTEM.
 */
enum status quic_socket_open(const char *bind_address, uint32_t buffer_bytes, struct quic_socket *out,
                             struct error *error) COMM_MUST_USE;
void quic_socket_close(struct quic_socket *socket);

/* If it blocks, part of the batch may have been sent: *sent_bytes need not be sent again. */
enum quic_send_result quic_socket_send(struct quic_socket *socket, const struct quic_batch *batch,
                                       size_t *sent_bytes);

/*
 * Calls function for each datagram of one recvmmsg. Returns how many there were, empty and truncated ones
 * included. *more is whether others may wait.
 */
size_t quic_socket_receive(struct quic_socket *socket, quic_datagram_function *function, void *context,
                           bool *more);

/* Reads ICMP errors. Calls function for each one that says that a port is closed or a host is unreachable. */
void quic_socket_read_errors(struct quic_socket *socket, quic_unreachable_function *function, void *context);

/* What an error says about `remote`. offender: who has sent it. Pure. */
enum quic_unreachable quic_icmp_says(const struct sock_extended_err *error,
                                     const struct quic_address *offender, const struct quic_address *remote);

/* Finds the local address from which datagrams to remote leave. Returns false when there is no route. */
bool quic_socket_local_address(const struct quic_socket *socket, const struct quic_address *remote,
                               struct quic_address *out);

#endif
