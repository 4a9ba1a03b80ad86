#include "daemon/net/quic_socket.h"

#include <assert.h>
#include <errno.h>
#include <linux/errqueue.h>
#include <netinet/icmp6.h>
#include <netinet/ip.h>
#include <netinet/ip_icmp.h>
#include <netinet/udp.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/base/log.h"

/* Older headers define neither (Linux 4.18, 5.0). */
#ifndef UDP_SEGMENT
#define UDP_SEGMENT 103
#endif
#ifndef UDP_GRO
#define UDP_GRO 104
#endif

#define QUIC_CONTROL_BYTES 256u

/* --- Opening --- */

static bool quic_option(int fd, int level, int name, int value)
{
    return setsockopt(fd, level, name, &value, sizeof value) == 0;
}

/*
 * Tries to set the size beyond the system's limit first, which needs CAP_NET_ADMIN. Returns what was granted.
 */
static uint32_t quic_buffer(int fd, int name, int name_force, uint32_t wanted)
{
    int granted = 0;
    socklen_t size = sizeof granted;
    int value = wanted > INT32_MAX ? INT32_MAX : (int)wanted;
    if (!quic_option(fd, SOL_SOCKET, name_force, value)) {
        (void)quic_option(fd, SOL_SOCKET, name, value);
    }
    if (getsockopt(fd, SOL_SOCKET, name, &granted, &size) != 0 || granted < 0) {
        return 0;
    }
    return (uint32_t)granted / 2; /* socket(7): the kernel doubles what was set */
}

/* Sets options that a socket can work without: older kernels, and sandboxes, lack some of them. */
static void quic_options_wanted(struct quic_socket *socket, int family)
{
    int fd = socket->fd;
    (void)quic_option(fd, SOL_UDP, UDP_GRO, 1);
    socket->gso = quic_option(fd, SOL_UDP, UDP_SEGMENT, 0);
    (void)quic_option(fd, SOL_IP, IP_RECVERR, 1);
    (void)quic_option(fd, SOL_IP, IP_RECVTOS, 1);
    if (family == AF_INET6) {
        (void)quic_option(fd, SOL_IPV6, IPV6_RECVERR, 1);
        (void)quic_option(fd, SOL_IPV6, IPV6_RECVTCLASS, 1);
    }
}

/* Sets the options that it needs: datagrams that are too large must be dropped, not fragmented. */
static bool quic_options_needed(const struct quic_socket *socket, int family)
{
    int fd = socket->fd;
    bool done = quic_option(fd, SOL_IP, IP_MTU_DISCOVER, IP_PMTUDISC_PROBE);
    if (family == AF_INET6) {
        done = quic_option(fd, SOL_IPV6, IPV6_MTU_DISCOVER, IPV6_PMTUDISC_PROBE) && done;
        if (socket->wildcard) {
            done = quic_option(fd, SOL_IPV6, IPV6_RECVPKTINFO, 1) && done;
        }
    } else if (socket->wildcard) {
        done = quic_option(fd, SOL_IP, IP_PKTINFO, 1) && done;
    }
    return done;
}

enum status quic_socket_open(const char *bind_address, uint32_t buffer_bytes, struct quic_socket *out,
                             struct error *error)
{
    enum status status = quic_address_resolve(bind_address, AF_UNSPEC, &out->local, error);
    if (status != STATUS_OK) {
        return status;
    }
    int family = out->local.base.sa_family;
    out->wildcard = quic_address_is_wildcard(&out->local);
    out->receive_buffers = NULL;
    out->fd = socket(family, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, IPPROTO_UDP);
    if (out->fd < 0) {
        return error_set_errno(error, errno, "UDP socket for %s", bind_address);
    }
    if (family == AF_INET6) {
        (void)quic_option(out->fd, SOL_IPV6, IPV6_V6ONLY, 0);
    }
    if (!quic_options_needed(out, family)) {
        status = error_set_errno(error, errno, "UDP socket for %s: setting its options", bind_address);
        goto fail;
    }
    quic_options_wanted(out, family);
    out->granted_receive_bytes = quic_buffer(out->fd, SO_RCVBUF, SO_RCVBUFFORCE, buffer_bytes);
    out->granted_send_bytes = quic_buffer(out->fd, SO_SNDBUF, SO_SNDBUFFORCE, buffer_bytes);
    if (bind(out->fd, &out->local.base, out->local.size) != 0) {
        status = error_set_errno(error, errno, "UDP socket: binding to %s", bind_address);
        goto fail;
    }
    socklen_t size = sizeof out->local.v6;
    if (getsockname(out->fd, &out->local.base, &size) != 0) {
        status = error_set_errno(error, errno, "UDP socket bound to %s: reading its address", bind_address);
        goto fail;
    }
    out->receive_buffers = malloc((size_t)QUIC_RECEIVE_MESSAGES_MAX * QUIC_RECEIVE_BUFFER_BYTES);
    if (out->receive_buffers == NULL) {
        status =
            error_set(error, STATUS_NO_MEMORY, "UDP socket for %s: no memory for its buffers", bind_address);
        goto fail;
    }
    return STATUS_OK;

fail:
    quic_socket_close(out);
    return status;
}

void quic_socket_close(struct quic_socket *socket)
{
    if (socket->fd >= 0) {
        close(socket->fd);
    }
    socket->fd = -1;
    free(socket->receive_buffers);
    socket->receive_buffers = NULL;
}

bool quic_socket_local_address(const struct quic_socket *bound, const struct quic_address *remote,
                               struct quic_address *out)
{
    *out = bound->local;
    if (!bound->wildcard) {
        return true;
    }
    /* Connecting a UDP socket sends nothing; it only looks up the route. */
    struct quic_address local = {.size = 0};
    socklen_t size = sizeof local.v6;
    int fd = socket(remote->base.sa_family, SOCK_DGRAM | SOCK_CLOEXEC, IPPROTO_UDP);
    bool found = fd >= 0 && connect(fd, &remote->base, remote->size) == 0 &&
                 getsockname(fd, &local.base, &size) == 0 && quic_address_set(out, &local.base, size);
    if (fd >= 0) {
        close(fd);
    }
    quic_address_set_port(out, quic_address_port(&bound->local));
    return found;
}

/* --- Sending --- */

/* Room for the control messages below, with their alignment. */
union quic_control {
    struct cmsghdr header;
    char bytes[QUIC_CONTROL_BYTES];
};

static void quic_control_add(struct msghdr *message, int level, int type, const void *data, size_t size)
{
    struct cmsghdr *header = (struct cmsghdr *)((char *)message->msg_control + message->msg_controllen);
    assert(message->msg_controllen + CMSG_SPACE(size) <= QUIC_CONTROL_BYTES);
    header->cmsg_level = level;
    header->cmsg_type = type;
    header->cmsg_len = CMSG_LEN(size);
    memcpy(CMSG_DATA(header), data, size);
    message->msg_controllen += CMSG_SPACE(size);
}

static void quic_control_source(struct msghdr *message, const struct quic_address *local)
{
    if (local->base.sa_family == AF_INET) {
        struct in_pktinfo info = {.ipi_spec_dst = local->v4.sin_addr};
        quic_control_add(message, SOL_IP, IP_PKTINFO, &info, sizeof info);
    } else {
        struct in6_pktinfo info = {.ipi6_addr = local->v6.sin6_addr};
        quic_control_add(message, SOL_IPV6, IPV6_PKTINFO, &info, sizeof info);
    }
}

/* One sendmsg of size bytes; the kernel cuts them into datagrams if there are several. Returns 0 or errno. */
static int quic_send_once(struct quic_socket *socket, const struct quic_batch *batch, size_t offset,
                          size_t size)
{
    union quic_control control;
    struct iovec vector = {.iov_base = (void *)(uintptr_t)(batch->bytes + offset), .iov_len = size};
    struct msghdr message = {
        .msg_name = (void *)(uintptr_t)&batch->remote.base,
        .msg_namelen = batch->remote.size,
        .msg_iov = &vector,
        .msg_iovlen = 1,
        .msg_control = control.bytes,
    };
    memset(&control, 0, sizeof control);
    if (size > batch->datagram_bytes) {
        uint16_t segment = (uint16_t)batch->datagram_bytes;
        quic_control_add(&message, SOL_UDP, UDP_SEGMENT, &segment, sizeof segment);
    }
    if (batch->ecn != 0) {
        int value = batch->ecn;
        bool v4 = quic_address_is_v4(&batch->remote);
        quic_control_add(&message, v4 ? SOL_IP : SOL_IPV6, v4 ? IP_TOS : IPV6_TCLASS, &value, sizeof value);
    }
    if (socket->wildcard && !quic_address_is_wildcard(&batch->local)) {
        quic_control_source(&message, &batch->local);
    }
    if (message.msg_controllen == 0) {
        message.msg_control = NULL;
    }
    /*
     * Whichever call comes next reports an ICMP error once. The error says nothing about this call, so it
     * tries again.
     */
    for (int attempt = 0;; attempt++) {
        if (sendmsg(socket->fd, &message, MSG_NOSIGNAL) >= 0) {
            return 0;
        }
        bool stale = errno == ECONNREFUSED || errno == EHOSTUNREACH || errno == ENETUNREACH ||
                     errno == EPROTO || errno == EHOSTDOWN;
        socket->has_errors = socket->has_errors || stale;
        if (errno != EINTR && !(stale && attempt == 0)) {
            return errno;
        }
    }
}

static bool quic_errno_blocks(int errnum)
{
    return errnum == EAGAIN || errnum == EWOULDBLOCK;
}

/* Sends datagram by datagram. Sets *refused when one was too large to send. */
static enum quic_send_result quic_send_singly(struct quic_socket *socket, const struct quic_batch *batch,
                                              size_t *sent_bytes, bool *refused)
{
    size_t offset = *sent_bytes;
    while (offset < batch->size) {
        size_t size =
            batch->size - offset < batch->datagram_bytes ? batch->size - offset : batch->datagram_bytes;
        int errnum = quic_send_once(socket, batch, offset, size);
        if (quic_errno_blocks(errnum)) {
            *sent_bytes = offset;
            return QUIC_SEND_BLOCKED;
        }
        *refused = *refused || errnum == EMSGSIZE;
        offset += size;
    }
    *sent_bytes = batch->size;
    return QUIC_SEND_DONE;
}

enum quic_send_result quic_socket_send(struct quic_socket *socket, const struct quic_batch *batch,
                                       size_t *sent_bytes)
{
    bool refused = false;
    size_t left = batch->size - *sent_bytes;
    assert(batch->datagram_bytes > 0 && left > 0);
    if (left <= batch->datagram_bytes || !socket->gso) {
        return quic_send_singly(socket, batch, sent_bytes, &refused);
    }
    int errnum = quic_send_once(socket, batch, *sent_bytes, left);
    if (quic_errno_blocks(errnum)) {
        return QUIC_SEND_BLOCKED;
    }
    if (errnum != EIO && errnum != EINVAL) {
        *sent_bytes = batch->size;
        return QUIC_SEND_DONE;
    }
    /*
     * EIO: the device has no checksum offload. EINVAL: the same, or datagrams exceed the device's MTU.
     * Sending them singly tells which.
     */
    enum quic_send_result result = quic_send_singly(socket, batch, sent_bytes, &refused);
    if (!refused) {
        socket->gso = false;
        log_info("UDP segmentation offload does not work on this path: commd sends datagrams one by one from "
                 "now on");
    }
    return result;
}

/* --- Receiving --- */

struct quic_ancillary {
    size_t segment_bytes; /* 0: a single datagram */
    uint8_t ecn;
    struct quic_address local;
};

static void quic_ancillary_read(const struct quic_socket *socket, struct msghdr *message,
                                struct quic_ancillary *out)
{
    *out = (struct quic_ancillary){.local = socket->local};
    for (struct cmsghdr *header = CMSG_FIRSTHDR(message); header != NULL;
         header = CMSG_NXTHDR(message, header)) {
        size_t size = header->cmsg_len - CMSG_LEN(0);
        int value = 0;
        memcpy(&value, CMSG_DATA(header), size < sizeof value ? size : sizeof value);
        if (header->cmsg_level == SOL_UDP && header->cmsg_type == UDP_GRO) {
            out->segment_bytes = value > 0 ? (size_t)value : 0;
        } else if ((header->cmsg_level == SOL_IP && header->cmsg_type == IP_TOS) ||
                   (header->cmsg_level == SOL_IPV6 && header->cmsg_type == IPV6_TCLASS)) {
            out->ecn = (uint8_t)(value & IPTOS_ECN_MASK);
        } else if (header->cmsg_level == SOL_IP && header->cmsg_type == IP_PKTINFO &&
                   out->local.base.sa_family == AF_INET) {
            struct in_pktinfo info;
            memcpy(&info, CMSG_DATA(header), sizeof info);
            out->local.v4.sin_addr = info.ipi_addr;
        } else if (header->cmsg_level == SOL_IPV6 && header->cmsg_type == IPV6_PKTINFO &&
                   out->local.base.sa_family == AF_INET6) {
            struct in6_pktinfo info;
            memcpy(&info, CMSG_DATA(header), sizeof info);
            out->local.v6.sin6_addr = info.ipi6_addr;
        }
    }
}

/* Splits the datagrams that GRO joined. Returns their number. */
static size_t quic_hand_out(const struct quic_socket *socket, struct mmsghdr *message,
                            quic_datagram_function *function, void *context)
{
    struct quic_ancillary ancillary;
    struct quic_address remote;
    const uint8_t *bytes = message->msg_hdr.msg_iov->iov_base;
    size_t size = message->msg_len;
    quic_ancillary_read(socket, &message->msg_hdr, &ancillary);
    struct quic_datagram datagram = {.local = &ancillary.local, .remote = &remote, .ecn = ancillary.ecn};
    if ((message->msg_hdr.msg_flags & MSG_TRUNC) != 0 ||
        !quic_address_set(&remote, message->msg_hdr.msg_name, message->msg_hdr.msg_namelen)) {
        return 1;
    }
    size_t count = 0;
    do {
        size_t rest = size - count * ancillary.segment_bytes;
        datagram.bytes = bytes + count * ancillary.segment_bytes;
        datagram.size =
            ancillary.segment_bytes > 0 && rest > ancillary.segment_bytes ? ancillary.segment_bytes : rest;
        function(context, &datagram);
        count++;
    } while (ancillary.segment_bytes > 0 && count * ancillary.segment_bytes < size);
    return count;
}

size_t quic_socket_receive(struct quic_socket *socket, quic_datagram_function *function, void *context,
                           bool *more)
{
    struct mmsghdr messages[QUIC_RECEIVE_MESSAGES_MAX];
    struct iovec vectors[QUIC_RECEIVE_MESSAGES_MAX];
    struct sockaddr_in6 names[QUIC_RECEIVE_MESSAGES_MAX];
    union quic_control controls[QUIC_RECEIVE_MESSAGES_MAX];
    memset(messages, 0, sizeof messages);
    for (size_t i = 0; i < QUIC_RECEIVE_MESSAGES_MAX; i++) {
        vectors[i].iov_base = socket->receive_buffers + i * QUIC_RECEIVE_BUFFER_BYTES;
        vectors[i].iov_len = QUIC_RECEIVE_BUFFER_BYTES;
        messages[i].msg_hdr.msg_iov = &vectors[i];
        messages[i].msg_hdr.msg_iovlen = 1;
        messages[i].msg_hdr.msg_name = &names[i];
        messages[i].msg_hdr.msg_namelen = sizeof names[i];
        messages[i].msg_hdr.msg_control = controls[i].bytes;
        messages[i].msg_hdr.msg_controllen = sizeof controls[i].bytes;
    }
    int received = recvmmsg(socket->fd, messages, QUIC_RECEIVE_MESSAGES_MAX, MSG_DONTWAIT, NULL);
    if (received < 0) {
        *more = !quic_errno_blocks(errno); /* an ICMP error, reported once: datagrams may follow */
        socket->has_errors = socket->has_errors || *more;
        return *more ? 1 : 0;
    }
    *more = received == QUIC_RECEIVE_MESSAGES_MAX;
    size_t count = 0;
    for (int i = 0; i < received; i++) {
        count += quic_hand_out(socket, &messages[i], function, context);
    }
    return count;
}

/* --- ICMP errors --- */

static enum quic_unreachable quic_icmp_kind(const struct sock_extended_err *error)
{
    if (error->ee_origin == SO_EE_ORIGIN_ICMP && error->ee_type == ICMP_DEST_UNREACH) {
        return error->ee_code == ICMP_PORT_UNREACH   ? QUIC_UNREACHABLE_PORT
               : error->ee_code == ICMP_HOST_UNREACH ? QUIC_UNREACHABLE_HOST
                                                     : QUIC_UNREACHABLE_NOT;
    }
    if (error->ee_origin == SO_EE_ORIGIN_ICMP6 && error->ee_type == ICMP6_DST_UNREACH) {
        return error->ee_code == ICMP6_DST_UNREACH_NOPORT ? QUIC_UNREACHABLE_PORT
               : error->ee_code == ICMP6_DST_UNREACH_ADDR ? QUIC_UNREACHABLE_HOST
                                                          : QUIC_UNREACHABLE_NOT;
    }
    return QUIC_UNREACHABLE_NOT;
}

enum quic_unreachable quic_icmp_says(const struct sock_extended_err *error,
                                     const struct quic_address *offender, const struct quic_address *remote)
{
    enum quic_unreachable kind = quic_icmp_kind(error);
    struct quic_address_key host, sender;
    quic_address_key(remote, &host);
    quic_address_key(offender, &sender);
    bool from_host = memcmp(host.bytes, sender.bytes, sizeof host.bytes) == 0;
    /* A router that rejects datagrams knows nothing of the host's processes. */
    return kind == QUIC_UNREACHABLE_PORT && !from_host ? QUIC_UNREACHABLE_HOST : kind;
}

static enum quic_unreachable quic_message_says(struct msghdr *message, const struct quic_address *remote)
{
    for (struct cmsghdr *header = CMSG_FIRSTHDR(message); header != NULL;
         header = CMSG_NXTHDR(message, header)) {
        bool v4 = header->cmsg_level == SOL_IP && header->cmsg_type == IP_RECVERR;
        bool v6 = header->cmsg_level == SOL_IPV6 && header->cmsg_type == IPV6_RECVERR;
        struct {
            struct sock_extended_err error;
            struct sockaddr_in6 offender;
        } said = {.offender.sin6_family = AF_UNSPEC};
        size_t bytes = header->cmsg_len - CMSG_LEN(0);
        if ((!v4 && !v6) || header->cmsg_len < CMSG_LEN(sizeof said.error)) {
            continue;
        }
        memcpy(&said, CMSG_DATA(header), bytes < sizeof said ? bytes : sizeof said);
        struct quic_address offender = {.size = 0};
        socklen_t size = v4 ? sizeof(struct sockaddr_in) : sizeof said.offender;
        bool known = quic_address_set(&offender, (struct sockaddr *)&said.offender, size);
        enum quic_unreachable kind =
            known ? quic_icmp_says(&said.error, &offender, remote) : QUIC_UNREACHABLE_NOT;
        if (kind != QUIC_UNREACHABLE_NOT) {
            return kind;
        }
    }
    return QUIC_UNREACHABLE_NOT;
}

void quic_socket_read_errors(struct quic_socket *socket, quic_unreachable_function *function, void *context)
{
    socket->has_errors = false;
    for (unsigned i = 0; i < QUIC_SOCKET_ERRORS_MAX; i++) {
        union quic_control control;
        struct sockaddr_in6 name;
        uint8_t bytes[64];
        struct iovec vector = {.iov_base = bytes, .iov_len = sizeof bytes};
        struct msghdr message = {
            .msg_name = &name,
            .msg_namelen = sizeof name,
            .msg_iov = &vector,
            .msg_iovlen = 1,
            .msg_control = control.bytes,
            .msg_controllen = sizeof control.bytes,
        };
        if (recvmsg(socket->fd, &message, MSG_ERRQUEUE | MSG_DONTWAIT) < 0) {
            return;
        }
        struct quic_address remote;
        if (!quic_address_set(&remote, (struct sockaddr *)&name, message.msg_namelen)) {
            continue;
        }
        enum quic_unreachable kind = quic_message_says(&message, &remote);
        if (kind != QUIC_UNREACHABLE_NOT) {
            function(context, &remote, kind);
        }
    }
}
