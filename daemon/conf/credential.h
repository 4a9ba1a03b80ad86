#ifndef DAEMON_CONF_CREDENTIAL_H
#define DAEMON_CONF_CREDENTIAL_H

#include <stdbool.h>

#include "daemon/base/error.h"

/*
 * Files that systemd passes to the service, and to no one else (LoadCredential= in the unit,
 * systemd.exec(5)). A path that begins with CONF_CREDENTIALS lies in the folder that this variable names.
 */
#define CONF_CREDENTIALS "$CREDENTIALS_DIRECTORY/"

/* Expands *path, a string from malloc, if it begins with CONF_CREDENTIALS. CONFIG, naming `source` and `key`,
 * if systemd has passed no credentials; NO_MEMORY. */
enum status conf_expand_credential(char **path, const char *source, const char *key,
                                   struct error *error) COMM_MUST_USE;

/* Whether an expanded path lies in that folder: systemd then sets its access rules. */
bool conf_is_credential(const char *path);

#endif
