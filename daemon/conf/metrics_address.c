#include "daemon/conf/metrics_address.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/un.h>

#define HOST_MAX_BYTES 45
#define LOOPBACK_NET 127u /* the first byte of IPv4's loopback addresses */

static bool parse_path(const char *text, struct sockaddr_un *out)
{
    if (strlen(text) >= sizeof out->sun_path) {
        return false;
    }
    out->sun_family = AF_UNIX;
    strcpy(out->sun_path, text);
    return true;
}

static bool parse_port(const char *text, uint16_t *port)
{
    char *end;
    size_t digits = strspn(text, "0123456789");
    if (digits == 0 || digits > 5 || text[digits] != '\0') {
        return false;
    }
    unsigned long number = strtoul(text, &end, 10);
    *port = (uint16_t)number;
    return number >= 1 && number <= UINT16_MAX;
}

static bool parse_v4(const char *host, uint16_t port, struct sockaddr_in *out)
{
    out->sin_family = AF_INET;
    out->sin_port = htons(port);
    return inet_pton(AF_INET, strcmp(host, "localhost") == 0 ? "127.0.0.1" : host, &out->sin_addr) == 1 &&
           ntohl(out->sin_addr.s_addr) >> 24 == LOOPBACK_NET;
}

static bool parse_v6(const char *host, uint16_t port, struct sockaddr_in6 *out)
{
    out->sin6_family = AF_INET6;
    out->sin6_port = htons(port);
    return inet_pton(AF_INET6, host, &out->sin6_addr) == 1 && IN6_IS_ADDR_LOOPBACK(&out->sin6_addr);
}

/* Splits "host:port" and "[host]:port". */
static bool split(const char *text, char host[HOST_MAX_BYTES + 1], bool *is_v6, uint16_t *port)
{
    *is_v6 = text[0] == '[';
    const char *begin = *is_v6 ? text + 1 : text;
    const char *end = *is_v6 ? strchr(text, ']') : strrchr(text, ':');
    if (end == NULL || end - begin > HOST_MAX_BYTES || (*is_v6 && end[1] != ':')) {
        return false;
    }
    snprintf(host, HOST_MAX_BYTES + 1, "%.*s", (int)(end - begin), begin);
    return parse_port(end + (*is_v6 ? 2 : 1), port);
}

bool conf_metrics_address(const char *text, struct sockaddr_storage *out, socklen_t *size_bytes)
{
    char host[HOST_MAX_BYTES + 1];
    bool is_v6;
    uint16_t port;
    memset(out, 0, sizeof *out);
    if (text[0] == '/') {
        *size_bytes = sizeof(struct sockaddr_un);
        return parse_path(text, (struct sockaddr_un *)out);
    }
    if (!split(text, host, &is_v6, &port)) {
        return false;
    }
    *size_bytes = is_v6 ? sizeof(struct sockaddr_in6) : sizeof(struct sockaddr_in);
    return is_v6 ? parse_v6(host, port, (struct sockaddr_in6 *)out)
                 : parse_v4(host, port, (struct sockaddr_in *)out);
}

const char *conf_metrics_expected(const char *text)
{
    struct sockaddr_storage address;
    socklen_t size_bytes;
    if (text[0] == '\0' || conf_metrics_address(text, &address, &size_bytes)) {
        return NULL;
    }
    return text[0] == '/'
               ? "a socket's path of at most 107 bytes"
               : "a port of this machine alone, as \"127.0.0.1:9464\" or \"[::1]:9464\", or the path of a "
                 "Unix socket";
}
