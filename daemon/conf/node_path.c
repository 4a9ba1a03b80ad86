#include "daemon/conf/node_path.h"

#include <stdlib.h>
#include <string.h>

enum status conf_expand_node_path(char **path, const char *node_name, const char *source, const char *key,
                                  struct error *error)
{
    size_t size = strlen(*path) + 1;
    for (const char *at = *path; *at != '\0'; at++) {
        if (*at == '%' && at[1] != 'n' && at[1] != '%') {
            return error_set(
                error, STATUS_CONFIG,
                "%s: %s = \"%s\": expected %%n (the node's name) or %%%% after the text before it", source,
                key, *path);
        }
        size += *at == '%' ? strlen(node_name) : 0;
        at += *at == '%';
    }
    char *expanded = malloc(size);
    if (expanded == NULL) {
        return error_set(error, STATUS_NO_MEMORY, "no memory for the configuration");
    }
    char *to = expanded;
    for (const char *at = *path; *at != '\0'; at++) {
        if (at[0] == '%' && at[1] == 'n') {
            to = stpcpy(to, node_name);
        } else {
            *to++ = *at;
        }
        at += *at == '%';
    }
    *to = '\0';
    free(*path);
    *path = expanded;
    return STATUS_OK;
}
