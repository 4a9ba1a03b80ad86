#ifndef DAEMON_CONF_USER_LIST_H
#define DAEMON_CONF_USER_LIST_H

#include <libconfig.h>

#include "daemon/conf/conf.h"

/* The setting `users`: on which nodes a user may have ranks. Used only in daemon/conf. */

/* Reads the list into conf->users. CONFIG with "file:line: users: ...": unknown users and keys; NO_MEMORY. */
enum status conf_users_read(struct conf *conf, const config_setting_t *list, const char *path,
                            struct error *error) COMM_MUST_USE;
/* Call it once the nodes are known; this node may or may not be in their list. Finds unknown nodes and users
 * listed twice. Sorts. */
enum status conf_users_check(struct conf *conf, struct error *error) COMM_MUST_USE;
void conf_users_visit(const struct conf *conf, conf_visit_function *visit, void *context);
/* Whether both allow the same users the same nodes. */
bool conf_users_equal(const struct conf *one, const struct conf *other);
void conf_users_free(struct conf *conf);

#endif
