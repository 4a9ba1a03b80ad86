#include "daemon/conf/rail_addresses.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "daemon/conf/address.h"

#define HOST_MAX_BYTES 64 /* of an IP address in brackets, with a scope */

/* Takes the next host of the text. Returns how many bytes it has, 0 at the end; *text then stands behind it.
 */
static size_t next_host(const char **text, const char **host)
{
    *text += strspn(*text, " ,");
    *host = *text;
    size_t size = strcspn(*text, " ,");
    *text += size;
    return size;
}

static bool is_ip_address(const char *host, size_t size)
{
    char address[HOST_MAX_BYTES + 8];
    if (size > HOST_MAX_BYTES) {
        return false;
    }
    (void)snprintf(address, sizeof address, "%.*s:1", (int)size, host);
    return conf_address_expected(address) == NULL && !conf_address_is_name(address);
}

const char *conf_rail_addresses_expected(const char *text)
{
    static const char expected[] = "at most 15 IP addresses without ports, as \"10.1.0.1, [2001:db8::1]\"";
    for (uint32_t count = 1; *text != '\0' && count <= CONF_RAIL_ADDRESSES_MAX; count++) {
        text += strspn(text, " ");
        size_t size = strcspn(text, " ,");
        if (!is_ip_address(text, size)) {
            return expected;
        }
        text += size;
        text += strspn(text, " ");
        if (*text == '\0') {
            return NULL;
        }
        if (*text != ',' || text[1] == '\0') {
            return expected;
        }
        text++;
    }
    return *text == '\0' ? NULL : expected;
}

uint32_t conf_rail_addresses_count(const char *text)
{
    const char *host;
    uint32_t count = 0;
    while (next_host(&text, &host) > 0) {
        count++;
    }
    return count;
}

/* place: whose host it is, 0 that of the address, 1 the first of rail_addresses. */
static bool write_address(const char *address, const char *rail_addresses, uint32_t place, uint32_t rail,
                          char *out, size_t size)
{
    const char *colon = strrchr(address, ':'), *host = address;
    char *end = NULL;
    unsigned long port = colon == NULL ? 0 : strtoul(colon + 1, &end, 10);
    if (colon == NULL || end == colon + 1 || *end != '\0' || port + rail > UINT16_MAX) {
        return false;
    }
    size_t host_bytes = (size_t)(colon - address);
    for (uint32_t i = 0; i < place; i++) {
        host_bytes = next_host(&rail_addresses, &host);
    }
    int length = snprintf(out, size, "%.*s:%lu", (int)host_bytes, host, port + rail);
    return length > 0 && (size_t)length < size;
}

bool conf_rail_address(const char *address, const char *rail_addresses, uint32_t rail, char *out, size_t size)
{
    const char *text = rail_addresses != NULL ? rail_addresses : "";
    return write_address(address, text, rail % (conf_rail_addresses_count(text) + 1), rail, out, size);
}

bool conf_rail_spare(const char *address, const char *rail_addresses, uint32_t rail, char *out, size_t size)
{
    uint32_t count = rail_addresses != NULL ? conf_rail_addresses_count(rail_addresses) : 0;
    return count > 0 && write_address(address, rail_addresses, (rail + 1) % (count + 1), rail, out, size);
}

bool conf_rail_listen(const char *address, const char *rail_addresses, char *out, size_t size)
{
    const char *any = rail_addresses[strspn(rail_addresses, " ,")] == '[' ? "[::]" : "0.0.0.0";
    return write_address(address, any, rail_addresses[0] != '\0' ? 1 : 0, 0, out, size);
}

/* ---- checks ---- */

/* One address of one node; its host is in the node's texts. */
struct owned {
    const char *host;
    size_t host_bytes;
    uint16_t port; /* of the node's address: all its rails count from there */
    const struct conf_node *node;
};

static int host_order(const void *a, const void *b)
{
    const struct owned *one = a, *other = b;
    size_t common = one->host_bytes < other->host_bytes ? one->host_bytes : other->host_bytes;
    int order = strncasecmp(one->host, other->host, common);
    if (order == 0 && one->host_bytes != other->host_bytes) {
        return one->host_bytes < other->host_bytes ? -1 : 1;
    }
    return order != 0 ? order : (int)one->port - (int)other->port;
}

static size_t list_node(const struct conf_node *node, struct owned *list)
{
    const char *text = node->rail_addresses, *host;
    uint16_t port = conf_address_port(node->address);
    size_t count = 1;
    list[0] = (struct owned){node->address, conf_address_host_bytes(node->address), port, node};
    for (size_t size; (size = next_host(&text, &host)) > 0;) {
        list[count++] = (struct owned){host, size, port, node};
    }
    return count;
}

static enum status check_doubles(struct owned *list, size_t count, struct error *error)
{
    qsort(list, count, sizeof *list, host_order);
    for (size_t i = 1; i < count; i++) {
        const struct owned *one = &list[i - 1], *other = &list[i];
        bool is_one_node = one->node == other->node;
        if (host_order(one, other) == 0 &&
            (one->node->rail_addresses[0] != '\0' || other->node->rail_addresses[0] != '\0')) {
            return error_set(
                error, STATUS_CONFIG,
                "%s: nodes: rail_addresses: node \"%s\" has %.*s%s%s%s; expected an address of its "
                "own for each network card",
                other->node->source, other->node->name, (int)other->host_bytes, other->host,
                is_one_node ? " twice" : ", and so has node \"", is_one_node ? "" : one->node->name,
                is_one_node ? "" : "\"");
        }
    }
    return STATUS_OK;
}

/* Rail r of one node is connected to rail r of another one. */
static enum status check_families(const struct conf *conf, const struct conf_node *own, struct error *error)
{
    for (size_t i = 0; i < conf->node_count; i++) {
        const struct conf_node *node = &conf->nodes[i];
        const char *ours = own->rail_addresses, *theirs = node->rail_addresses, *our_host, *their_host;
        for (uint32_t rail = 1; next_host(&ours, &our_host) > 0 && next_host(&theirs, &their_host) > 0;
             rail++) {
            if ((*our_host == '[') != (*their_host == '[')) {
                return error_set(
                    error, STATUS_CONFIG,
                    "%s: nodes: rail_addresses: rail %u of node \"%s\" has an IPv%d address, and that "
                    "of node \"%s\" an IPv%d address; expected the same",
                    node->source, rail, node->name, *their_host == '[' ? 6 : 4, own->name,
                    *our_host == '[' ? 6 : 4);
            }
        }
    }
    return STATUS_OK;
}

enum status conf_rail_addresses_check(const struct conf *conf, struct error *error)
{
    char own_source[] = "";
    const struct conf_node own = {conf->node_name, conf->listen, conf->rail_addresses,
                                  conf->path[0] != '\0' ? (char *)conf_source(conf, "rail_addresses")
                                                        : own_source};
    size_t count = 0, most = conf->node_count + 1 + conf_rail_addresses_count(conf->rail_addresses);
    for (size_t i = 0; i < conf->node_count; i++) {
        most += conf_rail_addresses_count(conf->nodes[i].rail_addresses);
    }
    struct owned *list = calloc(most, sizeof *list);
    if (list == NULL) {
        return error_set(error, STATUS_NO_MEMORY, "no memory for the configuration");
    }
    count += list_node(&own, list);
    for (size_t i = 0; i < conf->node_count; i++) {
        count += list_node(&conf->nodes[i], list + count);
    }
    enum status status = check_doubles(list, count, error);
    free(list);
    return status == STATUS_OK ? check_families(conf, &own, error) : status;
}
