#ifndef DAEMON_CONF_CHANGES_H
#define DAEMON_CONF_CHANGES_H

#include <stddef.h>
#include <stdint.h>

#include "daemon/conf/conf.h"

/* What a reload changes, as texts for people: one text a change. */
#define CONF_CHANGES_MAX 64 /* texts of each list; further ones are only counted */

struct conf_change_list {
    char *texts[CONF_CHANGES_MAX];
    size_t count;
    uint32_t left_out;
};

/* All zero: no changes. */
struct conf_changes {
    struct conf_change_list applied;
    struct conf_change_list waiting; /* for a restart */
    struct conf_change_list failed;
};

/* Adds a text. Without memory, or if the list is full, it is counted in left_out. */
void conf_changes_add(struct conf_change_list *list, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/*
 * Compares the settings of two configurations and their `users`; adds what differs. Call it before
 * conf_keep_until_restart. Nodes are not compared.
 */
void conf_changes_of_settings(struct conf_changes *changes, const struct conf *present,
                              const struct conf *next);

/* Frees the texts. */
void conf_change_list_free(struct conf_change_list *list);
void conf_changes_free(struct conf_changes *changes);

#endif
