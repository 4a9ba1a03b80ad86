#ifndef DAEMON_CONF_NODES_FILE_H
#define DAEMON_CONF_NODES_FILE_H

#include "daemon/conf/conf.h"

/*
 * The file that the setting nodes_file names: the nodes of the cluster, one a line.
 *
 *   # name  address        the addresses of further network cards
 *   alpha   10.0.0.1:7400
 *   beta    10.0.0.2:7400  10.1.0.2, 10.2.0.2
 *
 * A "#" begins a comment. Spaces and tabs separate the fields. Lines may end with CR LF.
 */
#define CONF_NODES_FILE_LINE_MAX_BYTES 1024u

/*
 * Appends the nodes of a text to the list. path: for messages. CONFIG with "path:line: what was expected",
 * also if no node is listed; LIMIT beyond CONF_NODES_MAX; NO_MEMORY. The list may then have some of the
 * nodes.
 */
enum status conf_nodes_file_parse(const char *text, const char *path, struct conf_node_list *list,
                                  struct error *error) COMM_MUST_USE;

/*
 * Reads the file into the list, which is empty at first; the caller frees it, also after an error. Errors as
 * of conf_nodes_file_parse, CONFIG if it is no regular file, has a zero byte or more than
 * CONF_FILE_MAX_BYTES, SYSTEM if it cannot be read.
 */
enum status conf_nodes_file_read(const char *path, struct conf_node_list *list,
                                 struct error *error) COMM_MUST_USE;

#endif
