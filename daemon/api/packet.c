#include <errno.h>
#include <string.h>
#include <sys/socket.h>

#include "daemon/api/session.h"
#include "daemon/base/log.h"

/* Packets from clients' sockets, and their descriptors. */

#define PASS_RIGHTS 83 /* SO_PASSRIGHTS, which older headers lack */

void api_pass_fds(int fd, bool may)
{
    const int value = may;
    (void)setsockopt(fd, SOL_SOCKET, PASS_RIGHTS, &value, sizeof value);
}

/* Takes the first descriptor out of a packet's control data and closes the others. */
static void packet_take_fds(struct api *api, uint32_t uid, struct msghdr *message,
                            struct api_packet_in *packet)
{
    for (struct cmsghdr *control = CMSG_FIRSTHDR(message); control != NULL;
         control = CMSG_NXTHDR(message, control)) {
        if (control->cmsg_level != SOL_SOCKET || control->cmsg_type != SCM_RIGHTS) {
            continue;
        }
        size_t fds = (control->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t i = 0; i < fds; i++) {
            int fd;
            memcpy(&fd, CMSG_DATA(control) + i * sizeof fd, sizeof fd);
            if (packet->fds++ == 0) {
                packet->fd = fd;
            } else {
                fd_reaper_put(api->fd_reaper, uid, fd);
            }
        }
    }
}

/* The buffer has room for all descriptors that may come. The kernel would close any others at once, which may
 * block. */
struct api_packet_in api_packet_receive(struct api *api, uint32_t uid, int socket_fd, void *bytes,
                                        size_t size)
{
    union {
        struct cmsghdr header;
        char space[CMSG_SPACE(CLOSER_PACKET_FDS_MAX * sizeof(int))];
    } control;
    struct api_packet_in packet = {.fd = -1};
    struct iovec part = {.iov_base = bytes, .iov_len = size};
    struct msghdr message = {
        .msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
    packet.size_bytes = recvmsg(socket_fd, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (packet.size_bytes >= 0) {
        packet.flags = message.msg_flags;
        packet_take_fds(api, uid, &message, &packet);
    }
    return packet;
}

bool api_packet_has_too_much(const struct api *api, uint32_t uid, int socket_fd)
{
    struct msghdr message = {.msg_iov = NULL};
    return !fd_reaper_takes_more(api->fd_reaper, uid) &&
           recvmsg(socket_fd, &message, MSG_PEEK | MSG_DONTWAIT) >= 0 &&
           (message.msg_flags & MSG_CTRUNC) != 0;
}

void api_packets_discard(struct api *api, uint32_t uid, int fd)
{
    char byte;
    for (int i = 0; i < API_DISCARDS_MAX && !api_packet_has_too_much(api, uid, fd); i++) {
        struct api_packet_in packet = api_packet_receive(api, uid, fd, &byte, sizeof byte);
        if (packet.fds > 0) {
            fd_reaper_put(api->fd_reaper, uid, packet.fd);
        }
        if (packet.size_bytes <= 0) {
            return;
        }
    }
}

void api_packet_send_error(int fd, const struct error *error)
{
    Commd__Client__Error message = COMMD__CLIENT__ERROR__INIT;
    message.status = error->status;
    message.text = (char *)error->text;
    Commd__Client__Reply reply = COMMD__CLIENT__REPLY__INIT;
    reply.body_case = COMMD__CLIENT__REPLY__BODY_ERROR;
    reply.error = &message;
    Commd__Client__Event event = COMMD__CLIENT__EVENT__INIT;
    event.body_case = COMMD__CLIENT__EVENT__BODY_REPLY;
    event.reply = &reply;
    uint8_t bytes[2 * ERROR_TEXT_MAX_BYTES];
    size_t size_bytes = commd__client__event__pack(&event, bytes);
    if (send(fd, bytes, size_bytes, MSG_NOSIGNAL | MSG_DONTWAIT) < 0) {
        log_debug("commd cannot tell a client why its session ends: %s", strerror(errno));
    }
}

void api_session_refuse(struct api *api, enum api_role role, int fd, const struct error *error)
{
    struct ucred credentials = {.uid = (uid_t)-1};
    socklen_t credentials_size = sizeof credentials;
    (void)getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &credentials, &credentials_size);
    api_packets_discard(api, credentials.uid, fd);
    api_packet_send_error(fd, error);
    api_session_close_socket(api, role, credentials.uid, fd);
}
