#ifndef DAEMON_NET_QUIC_SOCKET_H
#define DAEMON_NET_QUIC_SOCKET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/base/error.h"
#include "daemon/net/quic_address.h"

/*
 * One unconnected UDP socket, non-blocking: batches by UDP_SEGMENT (GSO) and UDP_GRO where the kernel has
 * them, explicit congestion notification, never fragmented, ICMP errors by IP_RECVERR.
 */

#define QUIC_DATAGRAM_MAX_BYTES 65507u   /* what UDP over IPv4 carries at most */
#define QUIC_BATCH_MAX_BYTES 65507u      /* of one GSO batch */
#define QUIC_BATCH_MAX_DATAGRAMS 64u     /* UDP_MAX_SEGMENTS of kernels before 6.9 */
#define QUIC_RECEIVE_MESSAGES_MAX 8u     /* of one recvmmsg, each perhaps many datagrams joined by GRO */
#define QUIC_RECEIVE_BUFFER_BYTES 65536u /* of each */
#define QUIC_SOCKET_ERRORS_MAX 64u       /* ICMP errors read at a time; more wait */

struct quic_socket {
    int fd;
    bool wildcard;   /* bound to no address: datagrams carry the local one */
    bool gso;        /* cleared when a device refuses it */
    bool has_errors; /* ICMP errors wait to be read */
    struct quic_address local;
    uint8_t *receive_buffers;
    uint32_t granted_receive_bytes;
    uint32_t granted_send_bytes;
};

/* Datagrams of equal size but for the last, which may be shorter, to one address. */
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
    QUIC_SEND_DONE,   /* or dropped by this host, as a network might: too large, no route, no buffer */
    QUIC_SEND_BLOCKED /* nothing was sent: again when the socket is writable */
};

typedef void quic_datagram_function(void *context, const struct quic_datagram *datagram);
typedef void quic_unreachable_function(void *context, const struct quic_address *remote);

/* Binds; buffer_bytes is what is asked of the kernel for each direction. INVALID_ARGUMENT, SYSTEM. */
enum status quic_socket_open(const char *bind_address, uint32_t buffer_bytes, struct quic_socket *out,
                             struct error *error) COMM_MUST_USE;
void quic_socket_close(struct quic_socket *socket);

/* Part of the batch may have been sent before it blocked: *sent_bytes, then, is what need not be sent again.
 */
enum quic_send_result quic_socket_send(struct quic_socket *socket, const struct quic_batch *batch,
                                       size_t *sent_bytes);

/*
 * Hands out what one recvmmsg gives. Returns how many datagrams there were, empty and cut ones among them;
 * *more is whether others may wait.
 */
size_t quic_socket_receive(struct quic_socket *socket, quic_datagram_function *function, void *context,
                           bool *more);

/*
 * Reads ICMP errors; calls function for each that says that nobody listens at a port or that a host is not
 * there.
 */
void quic_socket_read_errors(struct quic_socket *socket, quic_unreachable_function *function, void *context);

/* The local address that datagrams to remote leave from. False when there is no route. */
bool quic_socket_local_address(const struct quic_socket *socket, const struct quic_address *remote,
                               struct quic_address *out);

#endif
