#ifndef DAEMON_SOCKETS_H
#define DAEMON_SOCKETS_H

#include "daemon/base/error.h"
#include "daemon/conf/conf.h"

/* The Unix sockets that commd is passed, or binds itself. */

#define DAEMON_SOCKET_PATH_MAX_BYTES 256 /* longer than any socket's path: bind reports longer ones */

struct daemon_sockets {
    int client_fd; /* -1: not passed */
    int admin_fd;  /* likewise */
    char admin_path[DAEMON_SOCKET_PATH_MAX_BYTES];
};

/*
 * Takes the sockets that socket activation passed: at most one with FileDescriptorName=admin, for
 * administrators, and at most one with any other name or none, for clients. CONFIG: more than one for either,
 * or a path that is too long.
 */
enum status daemon_sockets_take(const struct conf *conf, struct daemon_sockets *out,
                                struct error *error) COMM_MUST_USE;

/* Writes the path of the administrators' socket. Returns false if it does not fit into `size` bytes. */
bool daemon_sockets_admin_path(const struct conf *conf, char *path, size_t size);

/* Calls api_await_predecessor for both paths, unless sockets are passed. */
void daemon_sockets_await_predecessor(const struct conf *conf);

#endif
