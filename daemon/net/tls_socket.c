#include <errno.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include "daemon/net/tls_internal.h"

#define BACKLOG 64
#define KEEP_IDLE_S 10
#define KEEP_EVERY_S 5
#define KEEP_COUNT 3

/* The kernel's own limits and growth of socket buffers are kept: they follow the path's rate and delay. */
static void set(int fd, int level, int name, int value)
{
    (void)setsockopt(fd, level, name, &value, sizeof value);
}

static void set_options(int fd)
{
    set(fd, IPPROTO_TCP, TCP_NODELAY, 1);
    set(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, (int)TLS_NOT_SENT_BYTES);
    set(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
    set(fd, IPPROTO_TCP, TCP_KEEPIDLE, KEEP_IDLE_S);
    set(fd, IPPROTO_TCP, TCP_KEEPINTVL, KEEP_EVERY_S);
    set(fd, IPPROTO_TCP, TCP_KEEPCNT, KEEP_COUNT);
    /* Whatever is sent must arrive in time. What tls_event.c watches are data alone: lost credit would leave
     * both sides waiting. */
    set(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, (int)(TLS_STUCK_NS / TIME_MS));
}

/* Closes the descriptor and keeps errno. Returns -1. */
static int give_up(int fd)
{
    int saved = errno;
    (void)close(fd);
    errno = saved;
    return -1;
}

static int socket_new(const struct quic_address *local)
{
    int fd = socket(local->base.sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd >= 0 && local->base.sa_family == AF_INET6) {
        set(fd, IPPROTO_IPV6, IPV6_V6ONLY, 0);
    }
    return fd;
}

int tls_socket_listen(const struct quic_address *local)
{
    int fd = socket_new(local);
    if (fd < 0) {
        return -1;
    }
    set(fd, SOL_SOCKET, SO_REUSEADDR, 1);
    return bind(fd, &local->base, local->size) == 0 && listen(fd, BACKLOG) == 0 ? fd : give_up(fd);
}

int tls_socket_dial(const struct quic_address *local, const struct quic_address *remote)
{
    struct quic_address from = *local;
    int fd = socket_new(local);
    if (fd < 0) {
        return -1;
    }
    set_options(fd);
    quic_address_set_port(&from, 0);
    if (!quic_address_is_wildcard(&from) && bind(fd, &from.base, from.size) != 0) {
        return give_up(fd);
    }
    return connect(fd, &remote->base, remote->size) == 0 || errno == EINPROGRESS ? fd : give_up(fd);
}

int tls_socket_accept(int listener, struct quic_address *remote)
{
    struct sockaddr_storage address;
    socklen_t size = sizeof address;
    int fd = accept4(listener, (struct sockaddr *)&address, &size, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd < 0) {
        return -1;
    }
    if (!quic_address_set(remote, (const struct sockaddr *)&address, size)) {
        errno = EAFNOSUPPORT;
        return give_up(fd);
    }
    set_options(fd);
    return fd;
}

int tls_socket_error(int fd)
{
    int error = 0;
    socklen_t size = sizeof error;
    return getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size) == 0 ? error : errno;
}
