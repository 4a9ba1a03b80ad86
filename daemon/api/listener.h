#ifndef DAEMON_API_LISTENER_H
#define DAEMON_API_LISTENER_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "daemon/base/error.h"
#include "daemon/base/log.h"
#include "daemon/base/loop.h"
#include "proto/status.h"

/* The sockets at which clients and administrators connect. Used only in daemon/api. */
struct api;

enum api_role { API_ROLE_CLIENT, API_ROLE_ADMIN };
#define API_ROLE_COUNT 2

/* How to open a listening socket. */
struct api_listener_options {
    const char *path; /* the path to bind, unless fd is given */
    int fd;           /* a socket that was passed; -1: none */
    mode_t mode;
    bool mode_given;   /* otherwise a socket that was passed keeps its mode */
    const char *group; /* "" or null: not changed */
    /* The settings' names, for messages; static. */
    const char *path_setting, *mode_setting, *group_setting;
};

/* A socket that accepts sessions of one role. */
struct api_listener {
    struct api *api;
    enum api_role role;
    int fd;                              /* -1: none */
    char *path;                          /* null: none */
    char *group;                         /* null: none */
    struct api_listener_options options; /* to bind again; its path and group are those above */
    bool owns_file;
    dev_t device; /* of the file that it owns */
    ino_t inode;
    bool file_is_gone; /* the log says so */
    struct loop_timer *look;
    bool rests;  /* accepts nobody: too many sockets wait to be closed */
    bool pauses; /* accepts nobody for API_ACCEPT_PAUSE_NS: the process has no free descriptor */
    struct loop_watch *watch;
    struct loop_timer *pause;
    int spare_fd; /* closed when the process has no other descriptor: to tell a client so, or to serve an
                     administrator; -1: none */
    uint32_t session_count;
    uint64_t refused_count; /* connections, since the start */
    struct log_limit refused_limit;
};

/*
 * Opens a listening socket with the mode and the group; fills listener->fd, path and owns_file. Returns
 * CONFIG if a socket that was passed cannot get them. After an error, call api_listener_close.
 */
enum status api_listener_open(struct api_listener *listener, const struct api_listener_options *options,
                              struct error *error) COMM_MUST_USE;
/* Closes the socket. Removes the file if commd created it, and nobody has replaced it. */
void api_listener_close(struct api_listener *listener);
/* Whether somebody has removed or replaced the file that commd created: nobody can connect any more. */
bool api_listener_has_lost_file(const struct api_listener *listener);
/* Opens another socket at the path; the caller watches listener->fd anew, and closes the old one. After a
 * failure, the listener is as it was. */
enum status api_listener_bind_again(struct api_listener *listener, struct error *error) COMM_MUST_USE;
/* Opens the spare descriptor again if it was used and a descriptor is free. */
void api_listener_keep_spare(struct api_listener *listener);

#endif
