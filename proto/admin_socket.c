#include "proto/admin_socket.h"

#include <stdio.h>
#include <string.h>

#include "proto/version.h"

bool admin_socket_path(const char *client_socket_path, char *out, size_t size)
{
    bool is_default = strcmp(client_socket_path, CLIENT_SOCKET_DEFAULT) == 0;
    int length = snprintf(out, size, "%s%s", is_default ? ADMIN_SOCKET_DEFAULT : client_socket_path,
                          is_default ? "" : ADMIN_SOCKET_SUFFIX);
    return length >= 0 && (size_t)length < size;
}
