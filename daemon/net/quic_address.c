#include "daemon/net/quic_address.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <errno.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/base/descriptor.h"

#define QUIC_HOST_MAX_BYTES 253 /* a DNS name */

static bool quic_port_parse(const char *text, char out[6])
{
    size_t length = strlen(text);
    if (length == 0 || length > 5 || strspn(text, "0123456789") != length ||
        strtoul(text, NULL, 10) > UINT16_MAX) {
        return false;
    }
    memcpy(out, text, length + 1);
    return true;
}

/* IP addresses, perhaps with the interface ("fe80::1%eth0"), and names. */
static bool quic_host_is_valid(const char *host, size_t length)
{
    for (size_t i = 0; i < length; i++) {
        if (!isalnum((unsigned char)host[i]) && strchr("-._:%", host[i]) == NULL) {
            return false;
        }
    }
    return true;
}

/* Splits the text at the last colon. An IPv6 address must be in brackets. */
static bool quic_address_split(const char *text, char host[QUIC_HOST_MAX_BYTES + 1], char port[6])
{
    const char *colon = strrchr(text, ':');
    if (colon == NULL || !quic_port_parse(colon + 1, port)) {
        return false;
    }
    const char *first = text;
    const char *last = colon;
    if (*first == '[') {
        first++;
        last--;
        if (last <= first || *last != ']') {
            return false;
        }
    } else if (memchr(first, ':', (size_t)(last - first)) != NULL) {
        return false;
    }
    size_t length = (size_t)(last - first);
    if (length == 0 || length > QUIC_HOST_MAX_BYTES || !quic_host_is_valid(first, length)) {
        return false;
    }
    memcpy(host, first, length);
    host[length] = '\0';
    return true;
}

static enum status quic_address_find(const char *text, int family, int flags, struct quic_address *out,
                                     struct error *error)
{
    char host[QUIC_HOST_MAX_BYTES + 1];
    char port[6];
    if (!quic_address_split(text, host, port)) {
        return error_set(error, STATUS_INVALID_ARGUMENT,
                         "address \"%s\": expected \"host:port\" or \"[IPv6 address]:port\", port 0 to 65535",
                         text);
    }
    struct addrinfo hints = {
        .ai_family = family, .ai_socktype = SOCK_DGRAM, .ai_flags = AI_NUMERICSERV | flags};
    if (family == AF_INET6) {
        hints.ai_flags |= AI_V4MAPPED;
    }
    struct addrinfo *found = NULL;
    int failure = getaddrinfo(host, port, &hints, &found);
    if (failure != 0) {
        const char *why = failure == EAI_SYSTEM ? strerror(errno) : gai_strerror(failure);
        return error_set(error, STATUS_UNREACHABLE, "address \"%s\": %s", text,
                         (flags & AI_NUMERICHOST) != 0 ? "its name is not resolved yet" : why);
    }
    bool fits = quic_address_set(out, found->ai_addr, found->ai_addrlen);
    freeaddrinfo(found);
    if (!fits) {
        return error_set(error, STATUS_INVALID_ARGUMENT, "address \"%s\" is neither IPv4 nor IPv6", text);
    }
    return STATUS_OK;
}

enum status quic_address_resolve(const char *text, int family, struct quic_address *out, struct error *error)
{
    return quic_address_find(text, family, 0, out, error);
}

enum status quic_address_parse(const char *text, int family, struct quic_address *out, struct error *error)
{
    return quic_address_find(text, family, AI_NUMERICHOST, out, error);
}

bool quic_address_set(struct quic_address *out, const struct sockaddr *address, socklen_t size)
{
    memset(out, 0, sizeof *out);
    if (size >= sizeof out->v4 && address->sa_family == AF_INET) {
        memcpy(&out->v4, address, sizeof out->v4);
        memset(out->v4.sin_zero, 0, sizeof out->v4.sin_zero);
        out->size = sizeof out->v4;
        return true;
    }
    if (size >= sizeof out->v6 && address->sa_family == AF_INET6) {
        memcpy(&out->v6, address, sizeof out->v6);
        out->v6.sin6_flowinfo = 0;
        out->size = sizeof out->v6;
        return true;
    }
    return false;
}

const char *quic_address_text(const struct quic_address *address, char text[QUIC_ADDRESS_TEXT_MAX_BYTES])
{
    char host[INET6_ADDRSTRLEN] = "?";
    if (address->base.sa_family == AF_INET) {
        inet_ntop(AF_INET, &address->v4.sin_addr, host, sizeof host);
    } else if (quic_address_is_v4(address)) {
        inet_ntop(AF_INET, address->v6.sin6_addr.s6_addr + 12, host, sizeof host);
    } else {
        inet_ntop(AF_INET6, &address->v6.sin6_addr, host, sizeof host);
    }
    snprintf(text, QUIC_ADDRESS_TEXT_MAX_BYTES, quic_address_is_v4(address) ? "%s:%u" : "[%s]:%u", host,
             (unsigned)quic_address_port(address));
    return text;
}

void quic_address_key(const struct quic_address *address, struct quic_address_key *out)
{
    memset(out, 0, sizeof *out);
    if (address->base.sa_family == AF_INET) {
        out->bytes[10] = 0xff;
        out->bytes[11] = 0xff;
        memcpy(out->bytes + 12, &address->v4.sin_addr, 4);
    } else {
        memcpy(out->bytes, &address->v6.sin6_addr, 16);
    }
    out->port = quic_address_port(address);
}

uint16_t quic_address_port(const struct quic_address *address)
{
    return ntohs(address->base.sa_family == AF_INET ? address->v4.sin_port : address->v6.sin6_port);
}

void quic_address_set_port(struct quic_address *address, uint16_t port)
{
    if (address->base.sa_family == AF_INET) {
        address->v4.sin_port = htons(port);
    } else {
        address->v6.sin6_port = htons(port);
    }
}

bool quic_address_is_wildcard(const struct quic_address *address)
{
    if (address->base.sa_family == AF_INET) {
        return address->v4.sin_addr.s_addr == htonl(INADDR_ANY);
    }
    return IN6_IS_ADDR_UNSPECIFIED(&address->v6.sin6_addr);
}

bool quic_address_is_loopback(const struct quic_address *address)
{
    struct quic_address_key key;
    quic_address_key(address, &key);
    return quic_address_is_v4(address) ? key.bytes[12] == 127 : IN6_IS_ADDR_LOOPBACK(&address->v6.sin6_addr);
}

bool quic_address_is_local(const struct quic_address *address)
{
    struct quic_address any_port = *address;
    int fd = socket(address->base.sa_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    quic_address_set_port(&any_port, 0);
    bool is_local = fd >= 0 && bind(fd, &any_port.base, any_port.size) == 0;
    descriptor_close(fd);
    return is_local;
}

bool quic_address_is_v4(const struct quic_address *address)
{
    return address->base.sa_family == AF_INET || IN6_IS_ADDR_V4MAPPED(&address->v6.sin6_addr);
}
