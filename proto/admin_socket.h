#ifndef PROTO_ADMIN_SOCKET_H
#define PROTO_ADMIN_SOCKET_H

#include <stdbool.h>
#include <stddef.h>

/*
 * Where the administrators' socket is, when nobody says so: ADMIN_SOCKET_DEFAULT for the default clients'
 * socket, else the clients' socket with ADMIN_SOCKET_SUFFIX. False when that does not fit into `size` bytes.
 */
bool admin_socket_path(const char *client_socket_path, char *out, size_t size);

#endif
