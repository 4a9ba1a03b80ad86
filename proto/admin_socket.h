#ifndef PROTO_ADMIN_SOCKET_H
#define PROTO_ADMIN_SOCKET_H

#include <stdbool.h>
#include <stddef.h>

/*
 * The default path of the administrators' socket: ADMIN_SOCKET_DEFAULT for the default clients' socket,
 * otherwise the clients' socket path with ADMIN_SOCKET_SUFFIX. Returns false if that does not fit into `size`
 * bytes.
 */
bool admin_socket_path(const char *client_socket_path, char *out, size_t size);

#endif
