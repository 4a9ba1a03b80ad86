#ifndef DAEMON_CONF_RAIL_ADDRESSES_H
#define DAEMON_CONF_RAIL_ADDRESSES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/conf/conf.h"

/*
 * The IP addresses of a node's further network cards, as a text: "10.1.0.1, 10.2.0.1, [2001:db8::1]". Rail 0
 * uses the node's address, rail 1 the first of these, and so on, round and round. Nothing here asks a name
 * server. Any thread may call these functions.
 */
#define CONF_RAIL_ADDRESSES_MAX 15

/* Returns null if the text is such a list, or empty; otherwise what was expected. */
const char *conf_rail_addresses_expected(const char *text);

/* Of a text that conf_rail_addresses_expected accepts. */
uint32_t conf_rail_addresses_count(const char *text);

/* Writes "host:port" of a rail of a node: its port is that of `address` + rail. rail_addresses may be null:
 * none. Returns false if `address` has no port, the rail's would be too large, or the text does not fit. */
bool conf_rail_address(const char *address, const char *rail_addresses, uint32_t rail, char *out,
                       size_t size);
/* The same with the host of the next rail: the rail is reached there if its own network card fails. Returns
 * false also if the node has no rail_addresses. */
bool conf_rail_spare(const char *address, const char *rail_addresses, uint32_t rail, char *out, size_t size);
/* Writes "host:port" that rail 0 listens on: `address`; with rail_addresses, all addresses of the machine. */
bool conf_rail_listen(const char *address, const char *rail_addresses, char *out, size_t size);

/* Whether two nodes, or two rails of one node, have the same address, and whether rails that will be
 * connected are of one family. CONFIG, with the place of the node. */
enum status conf_rail_addresses_check(const struct conf *conf, struct error *error) COMM_MUST_USE;

#endif
