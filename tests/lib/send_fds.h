#ifndef TESTS_LIB_SEND_FDS_H
#define TESTS_LIB_SEND_FDS_H

#include <stdint.h>
#include <string.h>
#include <sys/socket.h>

/*
 * Sends one packet with at most SEND_FDS_MAX descriptors, which stay the caller's. flags: sendmsg's,
 * besides MSG_NOSIGNAL. Returns what sendmsg returns.
 */
#define SEND_FDS_MAX 64
static inline ssize_t send_with_fds(int socket_fd, const void *bytes, size_t size, const int *fds,
                                    size_t fd_count, int flags)
{
    union {
        struct cmsghdr header;
        char space[CMSG_SPACE(SEND_FDS_MAX * sizeof(int))];
    } control = {0};
    size_t fd_bytes = fd_count * sizeof(int);
    struct iovec part = {.iov_base = (void *)(uintptr_t)bytes, .iov_len = size};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    if (fd_count > 0) {
        message.msg_control = &control;
        message.msg_controllen = CMSG_SPACE(fd_bytes);
        control.header.cmsg_level = SOL_SOCKET;
        control.header.cmsg_type = SCM_RIGHTS;
        control.header.cmsg_len = CMSG_LEN(fd_bytes);
        memcpy(CMSG_DATA(&control.header), fds, fd_bytes);
    }
    return sendmsg(socket_fd, &message, flags | MSG_NOSIGNAL);
}

#endif
