#ifndef DAEMON_CONF_NODES_H
#define DAEMON_CONF_NODES_H

#include <libconfig.h>

#include "daemon/conf/conf.h"

/* The setting `nodes`: which nodes are in the cluster. Used only in daemon/conf. */

#define CONF_TEXT_EXPECTED "a text in double quotes"

/* Returns null if the text is a node's name, otherwise what was expected. */
const char *conf_node_name_expected(const char *text);

/* Reads the list into conf->nodes. CONFIG with "file:line: nodes: ..."; NO_MEMORY. */
enum status conf_nodes_read(struct conf *conf, const config_setting_t *list, const char *path,
                            struct error *error) COMM_MUST_USE;
/*
 * Removes this node from the list. Its address there is what we listen on, unless `listen` is set; its
 * rail_addresses there are ours, unless that is set. name_source: where our name comes from. *listen_source
 * and *rails_source get the source of `listen` and `rail_addresses` if they come from the list. CONFIG if
 * this node is not in the list.
 */
enum status conf_nodes_find_own(struct conf *conf, const char *name_source, char **listen_source,
                                char **rails_source, struct error *error) COMM_MUST_USE;
void conf_nodes_free(struct conf *conf);

#endif
