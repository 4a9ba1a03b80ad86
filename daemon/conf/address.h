#ifndef DAEMON_CONF_ADDRESS_H
#define DAEMON_CONF_ADDRESS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * The form of addresses in the configuration: "192.0.2.1:7400", "[2001:db8::1]:7400", "alpha.example:7400".
 * Nothing here asks a name server.
 */

/* Returns null if the text is an address, otherwise what was expected. */
const char *conf_address_expected(const char *text);

/* Of an address that conf_address_expected accepts: where its host ends, without the colon; and its port. */
size_t conf_address_host_bytes(const char *text);
uint16_t conf_address_port(const char *text);

/* Whether the host is a name, which must be resolved before anything can be sent to it. */
bool conf_address_is_name(const char *text);

/* Whether the text is a name that DNS can be asked for: labels with dots between them, no IP address. */
bool conf_service_name_is_valid(const char *text);

/* Orders addresses by host, without regard to case, and then by port; 0: they are the same. */
int conf_address_order(const char *one, const char *other);

#endif
