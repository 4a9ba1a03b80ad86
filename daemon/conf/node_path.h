#ifndef DAEMON_CONF_NODE_PATH_H
#define DAEMON_CONF_NODE_PATH_H

#include "daemon/base/error.h"

/*
 * Paths with the node's name in them, so that all nodes can have the same file: "%n" is the node's name, "%%"
 * a percent sign. *path is a string from malloc, which is replaced. CONFIG, naming `source` and `key`, for
 * another letter after "%"; NO_MEMORY.
 */
enum status conf_expand_node_path(char **path, const char *node_name, const char *source, const char *key,
                                  struct error *error) COMM_MUST_USE;

#endif
