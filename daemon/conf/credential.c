#include "daemon/conf/credential.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CREDENTIALS_VARIABLE "CREDENTIALS_DIRECTORY"

enum status conf_expand_credential(char **path, const char *source, const char *key, struct error *error)
{
    size_t prefix = strlen(CONF_CREDENTIALS);
    if (strncmp(*path, CONF_CREDENTIALS, prefix) != 0) {
        return STATUS_OK;
    }
    const char *folder = getenv(CREDENTIALS_VARIABLE);
    if (folder == NULL || folder[0] != '/') {
        return error_set(error, STATUS_CONFIG,
                         "%s: %s = \"%s\": $" CREDENTIALS_VARIABLE
                         " is not set: systemd sets it for a unit with "
                         "LoadCredential=; give a path where commd is started otherwise",
                         source, key, *path);
    }
    char *expanded;
    if (asprintf(&expanded, "%s/%s", folder, *path + prefix) < 0) {
        return error_set(error, STATUS_NO_MEMORY, "no memory for the configuration");
    }
    free(*path);
    *path = expanded;
    return STATUS_OK;
}

bool conf_is_credential(const char *path)
{
    const char *folder = getenv(CREDENTIALS_VARIABLE);
    size_t length = folder == NULL ? 0 : strlen(folder);
    return length > 0 && strncmp(path, folder, length) == 0 && path[length] == '/' &&
           strstr(path + length, "/../") == NULL;
}
