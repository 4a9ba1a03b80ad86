#include "daemon/conf/changes.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "daemon/conf/user_list.h"

void conf_changes_add(struct conf_change_list *list, const char *format, ...)
{
    char *text = NULL;
    va_list arguments;
    va_start(arguments, format);
    if (list->count == CONF_CHANGES_MAX || vasprintf(&text, format, arguments) < 0) {
        text = NULL;
    }
    va_end(arguments);
    if (text == NULL) {
        list->left_out++;
    } else {
        list->texts[list->count++] = text;
    }
}

static void add_setting(void *context, const char *key, const char *value, bool reloadable)
{
    struct conf_changes *changes = context;
    conf_changes_add(reloadable ? &changes->applied : &changes->waiting, "%s = %s", key,
                     value[0] != '\0' ? value : "\"\"");
}

void conf_changes_of_settings(struct conf_changes *changes, const struct conf *present,
                              const struct conf *next)
{
    conf_compare(present, next, add_setting, changes);
    if (!conf_users_equal(present, next)) {
        conf_changes_add(&changes->applied, "users: %zu listed", next->user_count);
    }
}

void conf_change_list_free(struct conf_change_list *list)
{
    for (size_t i = 0; i < list->count; i++) {
        free(list->texts[i]);
    }
    list->count = 0;
}

void conf_changes_free(struct conf_changes *changes)
{
    conf_change_list_free(&changes->applied);
    conf_change_list_free(&changes->waiting);
    conf_change_list_free(&changes->failed);
}
