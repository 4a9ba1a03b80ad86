#include "daemon/conf/address.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <net/if.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define HOST_NAME_MAX_BYTES 253 /* of DNS */

size_t conf_address_host_bytes(const char *text)
{
    const char *colon = strrchr(text, ':');
    return colon == NULL ? 0 : (size_t)(colon - text);
}

uint16_t conf_address_port(const char *text)
{
    return (uint16_t)strtoul(text + conf_address_host_bytes(text) + 1, NULL, 10);
}

static bool port_is_valid(const char *text)
{
    size_t digits = strspn(text, "0123456789");
    unsigned long port = strtoul(text, NULL, 10);
    return digits > 0 && digits <= 5 && text[digits] == '\0' && port > 0 && port <= UINT16_MAX;
}

/* Of "[fe80::1%eth0]" what is between the brackets. */
static bool is_ipv6(const char *text, size_t size)
{
    char host[INET6_ADDRSTRLEN + IF_NAMESIZE + 1];
    struct in6_addr address;
    if (size >= sizeof host) {
        return false;
    }
    snprintf(host, sizeof host, "%.*s", (int)size, text);
    host[strcspn(host, "%")] = '\0';
    return inet_pton(AF_INET6, host, &address) == 1;
}

static bool is_ipv4(const char *text, size_t size)
{
    char host[INET_ADDRSTRLEN];
    struct in_addr address;
    if (size >= sizeof host) {
        return false;
    }
    snprintf(host, sizeof host, "%.*s", (int)size, text);
    return inet_pton(AF_INET, host, &address) == 1;
}

/* Names of DNS and of /etc/hosts. What ends in a number is meant to be an IPv4 address (RFC 1123, 2.1). */
static bool is_name(const char *text, size_t size)
{
    size_t last = size;
    for (size_t i = 0; i < size; i++) {
        if (!isalnum((unsigned char)text[i]) && text[i] != '-' && text[i] != '.' && text[i] != '_') {
            return false;
        }
    }
    while (last > 0 && isdigit((unsigned char)text[last - 1])) {
        last--;
    }
    bool ends_in_number = last < size && (last == 0 || text[last - 1] == '.');
    return size > 0 && size <= HOST_NAME_MAX_BYTES && !ends_in_number && text[0] != '.' && text[0] != '-';
}

bool conf_service_name_is_valid(const char *text)
{
    return is_name(text, strlen(text)) && strstr(text, "..") == NULL;
}

const char *conf_address_expected(const char *text)
{
    size_t size = conf_address_host_bytes(text);
    if (size == 0 || strchr(text, ':') == NULL) {
        return "an address: \"host:port\" or \"[IPv6]:port\"";
    }
    if (text[0] == '[' ? text[size - 1] != ']' || !is_ipv6(text + 1, size - 2)
                       : !is_ipv4(text, size) && !is_name(text, size)) {
        return "an address: \"host:port\" or \"[IPv6]:port\", the host an IP address or a name";
    }
    return port_is_valid(text + size + 1)
               ? NULL
               : "an address: \"host:port\" or \"[IPv6]:port\", the port from 1 to 65535";
}

bool conf_address_is_name(const char *text)
{
    return text[0] != '[' && !is_ipv4(text, conf_address_host_bytes(text));
}

int conf_address_order(const char *one, const char *other)
{
    size_t one_bytes = conf_address_host_bytes(one), other_bytes = conf_address_host_bytes(other);
    int order = strncasecmp(one, other, one_bytes < other_bytes ? one_bytes : other_bytes);
    if (order == 0 && one_bytes != other_bytes) {
        return one_bytes < other_bytes ? -1 : 1;
    }
    return order != 0 ? order : (int)conf_address_port(one) - (int)conf_address_port(other);
}
