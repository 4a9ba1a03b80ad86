#ifndef DAEMON_CONF_NODES_H
#define DAEMON_CONF_NODES_H

#include <libconfig.h>

#include "daemon/conf/conf.h"

/* The setting `nodes`: who is in the cluster. Seen by daemon/conf alone. */

#define CONF_TEXT_EXPECTED "a text in double quotes"

/* What a text had to be that is no node's name, or no address; null: it is one. Of an address its form alone:
 * whether the host exists is found out when it is needed. */
const char *conf_node_name_expected(const char *text);
const char *conf_address_expected(const char *text);

/* Reads the list into conf->nodes. CONFIG with "file:line: nodes: ..."; NO_MEMORY. */
enum status conf_nodes_read(struct conf *conf, const config_setting_t *list, const char *path,
                            struct error *error) COMM_MUST_USE;
/*
 * Takes ourselves out of the list; our address there is what we listen on, unless `listen` says otherwise.
 * name_source: where our name comes from. CONFIG: we are not in the list.
 */
enum status conf_nodes_find_own(struct conf *conf, const char *name_source,
                                struct error *error) COMM_MUST_USE;
void conf_nodes_free(struct conf *conf);

#endif
