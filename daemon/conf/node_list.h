#ifndef DAEMON_CONF_NODE_LIST_H
#define DAEMON_CONF_NODE_LIST_H

#include <libconfig.h>

#include "daemon/conf/conf.h"

/* The setting `nodes`: which nodes are in the cluster. Used only in daemon/conf. */

#define CONF_TEXT_EXPECTED "a text in double quotes"

/* Returns null if the text is a node's name, otherwise what was expected. */
const char *conf_node_name_expected(const char *text);

/* Reads the list into conf->nodes. CONFIG with "file:line: nodes: ..."; NO_MEMORY. */
enum status conf_nodes_read(struct conf *conf, const config_setting_t *list, const char *path,
                            struct error *error) COMM_MUST_USE;
/* CONFIG if two nodes have one name or one address; NO_MEMORY. */
enum status conf_nodes_check_doubles(const struct conf_node_list *list, struct error *error) COMM_MUST_USE;
/*
 * Removes this node from the list. Its address there is what we listen on, unless `listen` is set; its
 * rail_addresses there are ours, unless that is set. CONFIG if this node is not in the list.
 */
enum status conf_nodes_find_own(struct conf *conf, struct error *error) COMM_MUST_USE;
/* Where the source of a setting of the schema is kept. Defined in conf.c. */
char **conf_source_slot(struct conf *conf, const char *key);
void conf_nodes_free(struct conf *conf);

#endif
