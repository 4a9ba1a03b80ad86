#ifndef DAEMON_CONF_CREDENTIAL_H
#define DAEMON_CONF_CREDENTIAL_H

#include <stdbool.h>

#include "daemon/base/error.h"

/*
 * Files that systemd passes to the service, and to nobody else (LoadCredential= in the unit,
 * systemd.exec(5)): a path that begins with CONF_CREDENTIALS lies in the folder that the variable names.
 */
#define CONF_CREDENTIALS "$CREDENTIALS_DIRECTORY/"

/* Replaces *path, a string of malloc, if it is such a one. CONFIG, naming `source` and `key`, where systemd
 * has passed nothing; NO_MEMORY. */
enum status conf_expand_credential(char **path, const char *source, const char *key,
                                   struct error *error) COMM_MUST_USE;

/* Whether a path that was expanded lies there: its access rules are systemd's. */
bool conf_is_credential(const char *path);

#endif
