#include "daemon/sockets.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <systemd/sd-daemon.h>

#include "daemon/api/api.h"
#include "proto/admin_socket.h"

#define ADMIN_SOCKET_NAME "admin" /* FileDescriptorName= of the administrators' socket */

bool daemon_sockets_admin_path(const struct conf *conf, char *path, size_t size)
{
    if (conf->admin_socket_path[0] == '\0') {
        return admin_socket_path(conf->socket_path, path, size);
    }
    return snprintf(path, size, "%s", conf->admin_socket_path) < (int)size;
}

enum status daemon_sockets_take(const struct conf *conf, struct daemon_sockets *out, struct error *error)
{
    char **names = NULL;
    enum status status = STATUS_OK;
    int count = sd_listen_fds_with_names(1, &names);
    out->client_fd = -1;
    out->admin_fd = -1;
    for (int i = 0; i < count && status == STATUS_OK; i++) {
        bool is_admin = names != NULL && strcmp(names[i], ADMIN_SOCKET_NAME) == 0;
        int *fd = is_admin ? &out->admin_fd : &out->client_fd;
        if (*fd >= 0) {
            status = error_set(error, STATUS_CONFIG,
                               "%d sockets were passed; expected one for clients and one for administrators, "
                               "with FileDescriptorName=" ADMIN_SOCKET_NAME,
                               count);
        }
        *fd = SD_LISTEN_FDS_START + i;
    }
    for (int i = 0; i < count && names != NULL; i++) {
        free(names[i]);
    }
    free(names);
    if (status == STATUS_OK && !daemon_sockets_admin_path(conf, out->admin_path, sizeof out->admin_path)) {
        status = error_set(error, STATUS_CONFIG, "%s: the path of the administrators' socket is too long",
                           conf->admin_socket_path[0] != '\0' ? conf->admin_socket_path : conf->socket_path);
    }
    return status;
}

void daemon_sockets_await_predecessor(const struct conf *conf)
{
    char path[DAEMON_SOCKET_PATH_MAX_BYTES];
    if (sd_listen_fds(0) > 0) {
        return;
    }
    api_await_predecessor(conf->socket_path);
    if (daemon_sockets_admin_path(conf, path, sizeof path)) {
        api_await_predecessor(path);
    }
}
