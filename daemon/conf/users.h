#ifndef DAEMON_CONF_USERS_H
#define DAEMON_CONF_USERS_H

#include <libconfig.h>

#include "daemon/conf/conf.h"

/* The setting `users`: on which nodes a user may have ranks. Seen by daemon/conf alone. */

/* Reads the list into conf->users. CONFIG with "file:line: users: ...": unknown users and keys; NO_MEMORY. */
enum status conf_users_read(struct conf *conf, const config_setting_t *list, const char *path,
                            struct error *error) COMM_MUST_USE;
/* Once the nodes are known, ourselves among them or not: unknown nodes, users that are there twice. Sorts. */
enum status conf_users_check(struct conf *conf, struct error *error) COMM_MUST_USE;
void conf_users_visit(const struct conf *conf, conf_visit_function *visit, void *context);
void conf_users_free(struct conf *conf);

#endif
