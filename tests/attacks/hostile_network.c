#include <stdint.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <ngtcp2/ngtcp2.h>

#include "tests/attacks/hostile.h"

/* The lies of a hostile_commd below its streams: in frames, windows and datagrams (the linker's --wrap). */

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

/* a type of ngtcp2: one frame of a packet */
union ngtcp2_frame;
ngtcp2_ssize __real_ngtcp2_pkt_encode_frame(uint8_t *out, size_t size, union ngtcp2_frame *frame);
ngtcp2_ssize __wrap_ngtcp2_pkt_encode_frame(uint8_t *out, size_t size, union ngtcp2_frame *frame);

#define FRAME_PADDING 0x00
#define FRAME_ACK 0x02
#define FRAME_ACK_ECN 0x03
#define FRAME_PATH_CHALLENGE 0x1a
#define FRAME_STREAM 0x08 /* the lowest type; stream frames are 0x08 to 0x0f */
#define FRAME_STREAM_HAS_OFFSET 0x04
#define CONTROL_STREAMS 4u /* stream identifiers below this are control streams, which are opened first */
#define CHALLENGE_BYTES 9u
#define CHALLENGES_MAX 64u
/* RFC 9000, 16: the two highest bits of the first byte are the logarithm of the length in bytes. */
#define NUMBER_BYTES(first) ((size_t)1 << ((first) >> 6))

/* Changes an ACK frame: acknowledges the largest packet number that fits into the field. Nobody ever sent
 * that packet. */
static void forge_largest(uint8_t *ack)
{
    size_t bytes = NUMBER_BYTES(ack[1]);
    ack[1] |= 0x3f;
    memset(ack + 2, 0xff, bytes - 1);
}

/* Changes an ACK frame: makes the first range reach below packet 0. The fields after the type: largest,
 * delay, number of ranges, first range. */
static void forge_range(uint8_t *ack, size_t size)
{
    size_t at = 1;
    for (int field = 0; field < 3 && at < size; field++) {
        at += NUMBER_BYTES(ack[at]);
    }
    if (at < size && at + NUMBER_BYTES(ack[at]) <= size) {
        size_t bytes = NUMBER_BYTES(ack[at]);
        ack[at] |= 0x3f;
        memset(ack + at + 1, 0xff, bytes - 1);
    }
}

static uint64_t get_number(const uint8_t *bytes)
{
    uint64_t value = bytes[0] & 0x3f;
    for (size_t i = 1; i < NUMBER_BYTES(bytes[0]); i++) {
        value = value << 8 | bytes[i];
    }
    return value;
}

/* For a STREAM frame of one byte: returns whether to leave it out. Every other byte of a stream is left
 * out, beginning with its first. */
static bool is_hole(const uint8_t *frame)
{
    const uint8_t *offset = frame + 1 + NUMBER_BYTES(frame[1]);
    bool is_control = get_number(frame + 1) < CONTROL_STREAMS;
    return !is_control && ((frame[0] & FRAME_STREAM_HAS_OFFSET) == 0 || get_number(offset) % 2 == 0);
}

ngtcp2_ssize __wrap_ngtcp2_pkt_encode_frame(uint8_t *out, size_t size, union ngtcp2_frame *frame)
{
    ngtcp2_ssize written = __real_ngtcp2_pkt_encode_frame(out, size, frame);
    if (written > 2 && (out[0] & ~0x07) == FRAME_STREAM && hostile_mode_is("stream_holes") && is_hole(out)) {
        /* the peer acknowledges the packet, so ngtcp2 does not send the byte again */
        memset(out, FRAME_PADDING, (size_t)written);
        return written;
    }
    if (written < 1 || (out[0] != FRAME_ACK && out[0] != FRAME_ACK_ECN)) {
        return written;
    }
    if (hostile_mode_is("ack_unsent")) {
        forge_largest(out);
    } else if (hostile_mode_is("ack_range")) {
        forge_range(out, (size_t)written);
    } else if (hostile_mode_is("ack_never")) {
        out[0] = FRAME_PADDING;
        return 1;
    } else if (hostile_mode_is("challenge_flood")) {
        size_t at = (size_t)written;
        for (unsigned i = 0; i < CHALLENGES_MAX && at + CHALLENGE_BYTES <= size; i++, at += CHALLENGE_BYTES) {
            uint64_t data = hostile_draw();
            out[at] = FRAME_PATH_CHALLENGE;
            memcpy(out + at + 1, &data, sizeof data);
        }
        return (ngtcp2_ssize)at;
    }
    return written;
}

/* The peer gets no room for more data, however much this node has received. */
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

/* Makes each stream frame carry one byte. */
ngtcp2_ssize __wrap_ngtcp2_conn_writev_stream_versioned(ngtcp2_conn *conn, ngtcp2_path *path, int version,
                                                        ngtcp2_pkt_info *info, uint8_t *out, size_t size,
                                                        ngtcp2_ssize *accepted, uint32_t flags,
                                                        int64_t stream_id, const ngtcp2_vec *parts,
                                                        size_t part_count, ngtcp2_tstamp now)
{
    ngtcp2_vec byte;
    bool one_byte = hostile_mode_is("one_byte_frames") || hostile_mode_is("stream_holes");
    if (one_byte && part_count > 0 && parts[0].len > 0) {
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

/* Sends from another port each time, so the peer has to find out whether the node has moved. */
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

/* Sends a datagram REPLAYS times more: unchanged for datagram_replay, with more and more changed bits for
 * datagram_noise. */
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
        /* the socket of a client, or of something else that is no network */
        return __real_sendmsg(fd, message, flags);
    }
    if (hostile_mode_is("moving") && hostile_draw() % 2 == 0) {
        return send_from_elsewhere(message, flags);
    }
    if (hostile_mode_is("datagram_noise") || hostile_mode_is("datagram_replay")) {
        send_noise(fd, message, flags);
    }
    return __real_sendmsg(fd, message, flags);
}
