#include <stdint.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <ngtcp2/ngtcp2.h>

#include "tests/attacks/hostile.h"

/* Lies below the streams of a hostile_commd: frames, windows and datagrams (the linker's --wrap). */

#define ADDRESSES_MAX 64
#define REPLAYS 16
#define COPY_MAX_BYTES 65536

ssize_t __real_sendmsg(int fd, const struct msghdr *message, int flags);
ssize_t __wrap_sendmsg(int fd, const struct msghdr *message, int flags);
int __real_ngtcp2_conn_extend_max_stream_offset(ngtcp2_conn *conn, int64_t stream_id, uint64_t bytes);
int __wrap_ngtcp2_conn_extend_max_stream_offset(ngtcp2_conn *conn, int64_t stream_id, uint64_t bytes);
void __real_ngtcp2_conn_extend_max_offset(ngtcp2_conn *conn, uint64_t bytes);
void __wrap_ngtcp2_conn_extend_max_offset(ngtcp2_conn *conn, uint64_t bytes);
ngtcp2_ssize __real_ngtcp2_conn_writev_stream_versioned(ngtcp2_conn *conn, ngtcp2_path *path, int version,
                                                        ngtcp2_pkt_info *info, uint8_t *out, size_t size,
                                                        ngtcp2_ssize *accepted, uint32_t flags,
                                                        int64_t stream_id, const ngtcp2_vec *parts,
                                                        size_t part_count, ngtcp2_tstamp now);
ngtcp2_ssize __wrap_ngtcp2_conn_writev_stream_versioned(ngtcp2_conn *conn, ngtcp2_path *path, int version,
                                                        ngtcp2_pkt_info *info, uint8_t *out, size_t size,
                                                        ngtcp2_ssize *accepted, uint32_t flags,
                                                        int64_t stream_id, const ngtcp2_vec *parts,
                                                        size_t part_count, ngtcp2_tstamp now);

/* --- Frames and windows --- */

/* What was received makes no room for more. */
int __wrap_ngtcp2_conn_extend_max_stream_offset(ngtcp2_conn *conn, int64_t stream_id, uint64_t bytes)
{
    return hostile_mode_is("no_window") ? 0
                                        : __real_ngtcp2_conn_extend_max_stream_offset(conn, stream_id, bytes);
}

void __wrap_ngtcp2_conn_extend_max_offset(ngtcp2_conn *conn, uint64_t bytes)
{
    if (!hostile_mode_is("no_window")) {
        __real_ngtcp2_conn_extend_max_offset(conn, bytes);
    }
}

/* A frame of a stream has one byte. */
ngtcp2_ssize __wrap_ngtcp2_conn_writev_stream_versioned(ngtcp2_conn *conn, ngtcp2_path *path, int version,
                                                        ngtcp2_pkt_info *info, uint8_t *out, size_t size,
                                                        ngtcp2_ssize *accepted, uint32_t flags,
                                                        int64_t stream_id, const ngtcp2_vec *parts,
                                                        size_t part_count, ngtcp2_tstamp now)
{
    ngtcp2_vec byte;
    if (hostile_mode_is("one_byte_frames") && part_count > 0 && parts[0].len > 0) {
        bool all = part_count == 1 && parts[0].len == 1;
        byte = (ngtcp2_vec){.base = parts[0].base, .len = 1};
        parts = &byte;
        part_count = 1;
        flags = all ? flags : flags & ~(uint32_t)NGTCP2_WRITE_STREAM_FLAG_FIN;
    }
    return __real_ngtcp2_conn_writev_stream_versioned(conn, path, version, info, out, size, accepted, flags,
                                                      stream_id, parts, part_count, now);
}

/* --- Datagrams --- */

/* Another port each time: the peer has to find out whether the node has moved. */
static ssize_t send_from_elsewhere(const struct msghdr *message, int flags)
{
    static int fds[ADDRESSES_MAX];
    static unsigned count, next;
    const struct sockaddr *to = message->msg_name;
    if (count < ADDRESSES_MAX) {
        int fd = socket(to->sa_family, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        if (fd >= 0) {
            fds[count++] = fd;
        }
    }
    return count == 0 ? -1 : __real_sendmsg(fds[next++ % count], message, flags);
}

/* Once more, and many times with one byte changed. */
static void send_noise(int fd, const struct msghdr *message, int flags)
{
    static uint8_t copy[COPY_MAX_BYTES];
    size_t size = message->msg_iov[0].iov_len;
    if (size == 0 || size > sizeof copy) {
        return;
    }
    memcpy(copy, message->msg_iov[0].iov_base, size);
    struct iovec part = {.iov_base = copy, .iov_len = size};
    struct msghdr changed = *message;
    changed.msg_iov = &part;
    for (unsigned i = 0; i < REPLAYS; i++) {
        uint8_t *byte = &copy[(size_t)hostile_draw() % size];
        *byte ^= hostile_mode_is("datagram_noise") ? (uint8_t)(1u << i % 8) : 0;
        (void)!__real_sendmsg(fd, &changed, flags);
    }
}

ssize_t __wrap_sendmsg(int fd, const struct msghdr *message, int flags)
{
    const struct sockaddr *to = message->msg_name;
    if (to == NULL || (to->sa_family != AF_INET && to->sa_family != AF_INET6) || message->msg_iovlen != 1) {
        return __real_sendmsg(fd, message, flags); /* a client's socket */
    }
    if (hostile_mode_is("moving") && hostile_draw() % 2 == 0) {
        return send_from_elsewhere(message, flags);
    }
    if (hostile_mode_is("datagram_noise") || hostile_mode_is("datagram_replay")) {
        send_noise(fd, message, flags);
    }
    return __real_sendmsg(fd, message, flags);
}
