#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "client/commctl/pki_join.h"

#define PREFIX_BYTES 4u
#define REASON_TIMEOUT_MS 1000

static bool fail(const char *what, const char *why)
{
    fprintf(stderr, "commctl pki: %s: %s\n", what, why);
    return false;
}

/* --- Addresses --- */

static bool port_parse(const char *text, char port[6])
{
    size_t length = strspn(text, "0123456789");
    if (length == 0 || length > 5 || text[length] != '\0' || strtol(text, NULL, 10) > 65535) {
        return false;
    }
    memcpy(port, text, length + 1);
    return true;
}

bool pki_address_split(const char *text, char host[PKI_ADDRESS_MAX_BYTES + 1], char port[6])
{
    const char *colon = strrchr(text, ':');
    const char *end = strchr(text, ']');
    bool bracket = text[0] == '[' && end != NULL && (end[1] == '\0' || end[1] == ':');
    bool bare = !bracket && colon != NULL && strchr(text, ':') != colon; /* several colons: IPv6 */
    const char *begin = bracket ? text + 1 : text;
    if (bracket) {
        colon = end[1] == ':' ? end + 1 : NULL;
    } else {
        end = bare || colon == NULL ? text + strlen(text) : colon;
        colon = bare ? NULL : colon;
    }
    size_t length = (size_t)(end - begin);
    if (length > PKI_ADDRESS_MAX_BYTES || memchr(begin, '[', length) != NULL ||
        memchr(begin, ']', length) != NULL) {
        return false;
    }
    memcpy(host, begin, length);
    host[length] = '\0';
    return port_parse(colon == NULL ? PKI_PORT_DEFAULT : colon + 1, port);
}

static void address_text(const struct sockaddr *address, socklen_t size, char text[80], bool with_port)
{
    char host[64] = "?";
    char port[8] = "?";
    (void)getnameinfo(address, size, host, sizeof host, port, sizeof port, NI_NUMERICHOST | NI_NUMERICSERV);
    bool colons = strchr(host, ':') != NULL;
    if (with_port) {
        snprintf(text, 80, colons ? "[%s]:%s" : "%s:%s", host, port);
    } else {
        snprintf(text, 80, "%s", host);
    }
}

static struct addrinfo *resolve(const char *text, bool listens)
{
    char host[PKI_ADDRESS_MAX_BYTES + 1];
    char port[6];
    struct addrinfo *found = NULL;
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = listens ? AI_PASSIVE : 0};
    if (!pki_address_split(text, host, port)) {
        (void)fail(text, "expected HOST, HOST:PORT or [IPv6]:PORT");
        return NULL;
    }
    int failure = getaddrinfo(host[0] == '\0' ? NULL : host, port, &hints, &found);
    if (failure != 0) {
        (void)fail(text, failure == EAI_SYSTEM ? strerror(errno) : gai_strerror(failure));
        return NULL;
    }
    return found;
}

/* --- Connections --- */

/* Returns 0 or an error number; EINTR: a signal came. */
static int connect_one(const struct addrinfo *address, int *out)
{
    int failure = 0;
    socklen_t size = sizeof failure;
    int fd = socket(address->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, address->ai_protocol);
    if (fd < 0) {
        return errno;
    }
    if (connect(fd, address->ai_addr, address->ai_addrlen) < 0) {
        failure = errno;
    }
    if (failure == EINPROGRESS) {
        struct pollfd writable = {.fd = fd, .events = POLLOUT};
        enum pki_waited waited = pki_wait(&writable, 1, now_ms() + PKI_STEP_TIMEOUT_MS);
        if (waited != PKI_WAITED_READY) {
            failure = waited == PKI_WAITED_INTERRUPTED ? EINTR : ETIMEDOUT;
        } else if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &failure, &size) < 0) {
            failure = errno;
        }
    }
    if (failure != 0) {
        close(fd);
        return failure;
    }
    *out = fd;
    return 0;
}

bool pki_link_connect(const char *text, struct pki_link *out)
{
    int failure = 0;
    *out = (struct pki_link){.fd = -1};
    struct addrinfo *addresses = resolve(text, false);
    if (addresses == NULL) {
        return false;
    }
    pki_signals_catch();
    for (const struct addrinfo *at = addresses; at != NULL && out->fd < 0 && failure != EINTR;
         at = at->ai_next) {
        failure = connect_one(at, &out->fd);
        address_text(at->ai_addr, at->ai_addrlen, out->peer, true);
    }
    freeaddrinfo(addresses);
    if (out->fd < 0 && failure != EINTR) {
        fprintf(stderr, "commctl pki: %s: %s (is 'commctl pki admit' running there?)\n", out->peer,
                strerror(failure));
    }
    return out->fd >= 0;
}

static int listen_one(const struct addrinfo *address)
{
    const int on = 1;
    const int off = 0;
    int fd = socket(address->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, address->ai_protocol);
    if (fd < 0) {
        return -1;
    }
    (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (address->ai_family == AF_INET6) { /* so that "all addresses" includes IPv4 */
        (void)setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
    }
    if (bind(fd, address->ai_addr, address->ai_addrlen) < 0 || listen(fd, PKI_WAITING_MAX) < 0) {
        int failure = errno;
        close(fd);
        errno = failure;
        return -1;
    }
    return fd;
}

int pki_link_listen(const char *text, char bound[80])
{
    int fd = -1;
    int failure = 0;
    struct sockaddr_storage name;
    socklen_t size = sizeof name;
    const char *where = text == NULL ? "" : text;
    struct addrinfo *addresses = resolve(where, true);
    if (addresses == NULL) {
        return -1;
    }
    for (int family = 0; family < 2 && fd < 0; family++) { /* IPv6 first: its socket serves both */
        for (const struct addrinfo *at = addresses; at != NULL && fd < 0; at = at->ai_next) {
            if ((at->ai_family == AF_INET6) == (family == 0)) {
                fd = listen_one(at);
                failure = errno;
            }
        }
    }
    freeaddrinfo(addresses);
    if (fd < 0) {
        (void)fail(where[0] == '\0' ? "port " PKI_PORT_DEFAULT : where, strerror(failure));
        return -1;
    }
    if (getsockname(fd, (struct sockaddr *)&name, &size) == 0) {
        address_text((struct sockaddr *)&name, size, bound, true);
    }
    return fd;
}

bool pki_link_accept(int listener, struct pki_link *out)
{
    struct sockaddr_storage name = {0};
    socklen_t size = sizeof name;
    *out = (struct pki_link){.fd = -1};
    out->fd = accept4(listener, (struct sockaddr *)&name, &size, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (out->fd < 0) {
        return false;
    }
    address_text((struct sockaddr *)&name, size, out->peer, false);
    if (strncmp(out->peer, "::ffff:", 7) == 0) { /* an IPv4 address, as an IPv6 socket shows it */
        memmove(out->peer, out->peer + 7, strlen(out->peer + 7) + 1);
    }
    return true;
}

void pki_link_close(struct pki_link *link)
{
    if (link->fd >= 0) {
        close(link->fd);
        link->fd = -1;
    }
}

/* --- Messages --- */

static bool wait_for(struct pki_link *link, short events, int64_t deadline_ms)
{
    struct pollfd descriptor = {.fd = link->fd, .events = events};
    switch (pki_wait(&descriptor, 1, deadline_ms)) {
    case PKI_WAITED_READY:
        return true;
    case PKI_WAITED_TIMED_OUT:
        link->wrong = "did not answer in time";
        return false;
    case PKI_WAITED_INTERRUPTED:
        link->wrong = "interrupted here";
        return false;
    }
    return false;
}

static bool send_all(struct pki_link *link, const uint8_t *bytes, size_t size, int64_t deadline_ms)
{
    while (size > 0) {
        ssize_t sent = send(link->fd, bytes, size, MSG_NOSIGNAL);
        if (sent > 0) {
            bytes += sent;
            size -= (size_t)sent;
        } else if (sent < 0 && errno != EAGAIN && errno != EINTR) {
            link->wrong = "closed the connection";
            return false;
        } else if (!wait_for(link, POLLOUT, deadline_ms)) {
            return false;
        }
    }
    return true;
}

static bool receive_all(struct pki_link *link, uint8_t *bytes, size_t size, int64_t deadline_ms)
{
    while (size > 0) {
        ssize_t got = recv(link->fd, bytes, size, 0);
        if (got > 0) {
            bytes += got;
            size -= (size_t)got;
        } else if (got == 0 || (errno != EAGAIN && errno != EINTR)) {
            link->wrong = "closed the connection";
            return false;
        } else if (!wait_for(link, POLLIN, deadline_ms)) {
            return false;
        }
    }
    return true;
}

static bool send_within(struct pki_link *link, const struct pki_message *message, int64_t timeout_ms)
{
    size_t size;
    char *text = pki_message_format(message, &size);
    if (text == NULL || size > PKI_CERTIFICATE_MAX_BYTES) {
        link->wrong = text == NULL ? "cannot be answered: no memory" : "cannot be sent a message so large";
        free(text);
        return false;
    }
    const uint8_t prefix[PREFIX_BYTES] = {(uint8_t)(size >> 24), (uint8_t)(size >> 16), (uint8_t)(size >> 8),
                                          (uint8_t)size};
    int64_t deadline_ms = now_ms() + timeout_ms;
    bool sent = send_all(link, prefix, sizeof prefix, deadline_ms) &&
                send_all(link, (const uint8_t *)text, size, deadline_ms);
    free(text);
    return sent;
}

bool pki_link_send(struct pki_link *link, const struct pki_message *message)
{
    return send_within(link, message, PKI_STEP_TIMEOUT_MS);
}

bool pki_link_receive(struct pki_link *link, size_t max_bytes, int64_t timeout_ms, struct pki_message *out)
{
    uint8_t prefix[PREFIX_BYTES];
    *out = (struct pki_message){0};
    if (!wait_for(link, POLLIN, now_ms() + timeout_ms)) {
        return false;
    }
    /* One deadline for the whole message, so that single bytes do not keep it going. */
    int64_t deadline_ms = now_ms() + PKI_STEP_TIMEOUT_MS;
    if (!receive_all(link, prefix, sizeof prefix, deadline_ms)) {
        return false;
    }
    size_t size = (size_t)prefix[0] << 24 | (size_t)prefix[1] << 16 | (size_t)prefix[2] << 8 | prefix[3];
    if (size == 0 || size > max_bytes) {
        link->wrong = "sent no message of 'commctl pki', or too large a one";
        return false;
    }
    uint8_t *bytes = malloc(size);
    if (bytes == NULL) {
        link->wrong = "sent more than there is memory for";
        return false;
    }
    bool received = receive_all(link, bytes, size, deadline_ms);
    if (received && pki_message_parse((const char *)bytes, size, out) != NULL) {
        link->wrong = "sent a message that this commctl does not understand";
        received = false;
    }
    free(bytes);
    return received;
}

bool pki_link_is(const struct pki_link *link, bool received, enum pki_message_kind kind,
                 struct pki_message *message)
{
    if (!received) {
        return pki_signal() != 0 ? fail("interrupted", "nothing was done") : fail(link->peer, link->wrong);
    }
    if (message->kind == kind) {
        return true;
    }
    if (message->kind == PKI_MESSAGE_REFUSE) {
        fprintf(stderr, "commctl pki: %s refuses: %s\n", link->peer, message->texts[PKI_TEXT_REASON]);
    } else {
        (void)fail(link->peer, "sent a message out of turn");
    }
    pki_message_free(message);
    return false;
}

bool pki_link_expect(struct pki_link *link, enum pki_message_kind kind, size_t max_bytes, int64_t timeout_ms,
                     struct pki_message *out)
{
    return pki_link_is(link, pki_link_receive(link, max_bytes, timeout_ms, out), kind, out);
}

/* A socket that is closed with unread bytes resets the connection, and the other side loses what it has not
 * read yet (RFC 9293, section 3.10.4 and RFC 2525, section 2.17). So everything is read first. */
static void read_to_the_end(const struct pki_link *link)
{
    uint8_t ignored[1024];
    int64_t deadline_ms = now_ms() + REASON_TIMEOUT_MS;
    struct pollfd readable = {.fd = link->fd, .events = POLLIN};
    (void)shutdown(link->fd, SHUT_WR);
    for (;;) {
        int64_t left_ms = deadline_ms - now_ms();
        ssize_t got = recv(link->fd, ignored, sizeof ignored, 0);
        bool waits = got > 0 || (got < 0 && (errno == EAGAIN || errno == EINTR));
        if (!waits || left_ms <= 0 || (got < 0 && poll(&readable, 1, (int)left_ms) == 0)) {
            return;
        }
    }
}

void pki_link_refuse(struct pki_link *link, const char *reason)
{
    const struct pki_message message = {.kind = PKI_MESSAGE_REFUSE,
                                        .texts = {[PKI_TEXT_REASON] = (char *)reason}};
    if (link->fd >= 0 && send_within(link, &message, REASON_TIMEOUT_MS)) {
        read_to_the_end(link);
    }
}
