#include "daemon/conf/user_list.h"

#include <errno.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXPECTED "expected { name = \"...\"; nodes = [ \"...\", ... ]; }"

static enum status no_memory(struct error *error)
{
    return error_set(error, STATUS_NO_MEMORY, "no memory for the configuration");
}

static void describe_place(const char *path, const config_setting_t *setting, char *text, size_t size)
{
    snprintf(text, size, "%s:%u", path, config_setting_source_line(setting));
}

static enum status find_uid(const char *name, const char *where, uint32_t *uid, struct error *error)
{
    char *end;
    errno = 0;
    unsigned long long number = strtoull(name, &end, 10);
    if (name[0] >= '0' && name[0] <= '9' && *end == '\0') {
        if (errno != 0 || number >= UINT32_MAX) { /* the highest number is no user: (uid_t)-1 */
            return error_set(error, STATUS_CONFIG,
                             "%s: users: name = \"%s\": expected a user's number or name", where, name);
        }
        *uid = (uint32_t)number;
        return STATUS_OK;
    }
    const struct passwd *user = getpwnam(name);
    if (user == NULL) {
        return error_set(error, STATUS_CONFIG, "%s: users: there is no user \"%s\" on this node", where,
                         name);
    }
    *uid = user->pw_uid;
    return STATUS_OK;
}

static enum status read_nodes(struct conf_user *user, const config_setting_t *list, const char *where,
                              struct error *error)
{
    int length = config_setting_length(list);
    if (!(config_setting_is_array(list) || config_setting_is_list(list)) || length > CONF_NODES_MAX) {
        return error_set(error, STATUS_CONFIG, "%s: users: nodes: expected a list of at most %d names", where,
                         CONF_NODES_MAX);
    }
    user->nodes = calloc((size_t)length + 1, sizeof *user->nodes);
    if (user->nodes == NULL) {
        return no_memory(error);
    }
    for (int i = 0; i < length; i++) {
        const char *name = config_setting_get_string_elem(list, i);
        if (name == NULL) {
            return error_set(error, STATUS_CONFIG, "%s: users: nodes: expected names in double quotes",
                             where);
        }
        user->nodes[user->node_count] = strdup(name);
        if (user->nodes[user->node_count++] == NULL) {
            return no_memory(error);
        }
    }
    return STATUS_OK;
}

static enum status read_user(struct conf_user *user, const config_setting_t *entry, const char *path,
                             struct error *error)
{
    char where[512];
    describe_place(path, entry, where, sizeof where);
    if (!config_setting_is_group(entry)) {
        return error_set(error, STATUS_CONFIG, "%s: users: " EXPECTED, where);
    }
    user->source = strdup(where);
    const config_setting_t *nodes = NULL;
    const char *name = NULL;
    for (unsigned i = 0; i < (unsigned)config_setting_length(entry); i++) {
        const config_setting_t *field = config_setting_get_elem(entry, i);
        const char *key = config_setting_name(field);
        describe_place(path, field, where, sizeof where);
        if (strcmp(key, "name") == 0) {
            name = config_setting_get_string(field);
        } else if (strcmp(key, "nodes") == 0) {
            nodes = field;
        } else {
            return error_set(error, STATUS_CONFIG, "%s: users: %s: unknown key (name and nodes are known)",
                             where, key);
        }
    }
    describe_place(path, entry, where, sizeof where);
    if (name == NULL || name[0] == '\0' || nodes == NULL) {
        return error_set(error, STATUS_CONFIG, "%s: users: " EXPECTED, where);
    }
    user->name = strdup(name);
    if (user->source == NULL || user->name == NULL) {
        return no_memory(error);
    }
    enum status status = find_uid(name, where, &user->uid, error);
    return status == STATUS_OK ? read_nodes(user, nodes, where, error) : status;
}

static int uid_order(const void *a, const void *b)
{
    const struct conf_user *left = a;
    const struct conf_user *right = b;
    return left->uid < right->uid ? -1 : left->uid > right->uid;
}

static int name_order(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

enum status conf_users_read(struct conf *conf, const config_setting_t *list, const char *path,
                            struct error *error)
{
    char where[512];
    int length = config_setting_length(list);
    describe_place(path, list, where, sizeof where);
    if (!config_setting_is_list(list) || length > CONF_USERS_MAX) {
        return error_set(error, STATUS_CONFIG,
                         "%s: users: expected a list of at most %d: ( { name = ...; nodes = ...; }, ... )",
                         where, CONF_USERS_MAX);
    }
    conf->users = calloc((size_t)length + 1, sizeof *conf->users);
    if (conf->users == NULL) {
        return no_memory(error);
    }
    for (unsigned i = 0; i < (unsigned)length; i++) {
        enum status status =
            read_user(&conf->users[conf->user_count++], config_setting_get_elem(list, i), path, error);
        if (status != STATUS_OK) {
            return status;
        }
    }
    return STATUS_OK;
}

/* Nodes that come from elsewhere may come later. */
static bool is_known_node(const struct conf *conf, const char *name)
{
    if (conf->nodes_file[0] != '\0' || conf->nodes_dns[0] != '\0' || strcmp(conf->node_name, name) == 0) {
        return true;
    }
    for (size_t i = 0; i < conf->node_count; i++) {
        if (strcmp(conf->nodes[i].name, name) == 0) {
            return true;
        }
    }
    return false;
}

enum status conf_users_check(struct conf *conf, struct error *error)
{
    for (size_t i = 0; i < conf->user_count; i++) {
        struct conf_user *user = &conf->users[i];
        for (size_t k = 0; k < user->node_count; k++) {
            if (!is_known_node(conf, user->nodes[k])) {
                return error_set(error, STATUS_CONFIG, "%s: users: nodes: there is no node \"%s\"",
                                 user->source, user->nodes[k]);
            }
        }
        if (user->node_count > 0) {
            qsort(user->nodes, user->node_count, sizeof *user->nodes, name_order);
        }
    }
    if (conf->user_count > 0) {
        qsort(conf->users, conf->user_count, sizeof *conf->users, uid_order);
    }
    for (size_t i = 1; i < conf->user_count; i++) {
        const struct conf_user *user = &conf->users[i];
        if (user->uid == user[-1].uid) {
            return error_set(error, STATUS_CONFIG, "%s: users: uid %u (\"%s\") is listed twice, also at %s",
                             user->source, user->uid, user->name, user[-1].source);
        }
    }
    return STATUS_OK;
}

bool conf_user_may(const struct conf *conf, uint32_t uid, const char *node)
{
    struct conf_user wanted = {.uid = uid};
    if (conf->user_count == 0) {
        return true;
    }
    const struct conf_user *user =
        bsearch(&wanted, conf->users, conf->user_count, sizeof *conf->users, uid_order);
    return user == NULL || (user->node_count > 0 && bsearch(&node, user->nodes, user->node_count,
                                                            sizeof *user->nodes, name_order) != NULL);
}

void conf_users_visit(const struct conf *conf, conf_visit_function *visit, void *context)
{
    for (size_t i = 0; i < conf->user_count; i++) {
        const struct conf_user *user = &conf->users[i];
        char key[96];
        char nodes[1024] = "";
        size_t used = 0;
        for (size_t k = 0; k < user->node_count && used < sizeof nodes; k++) {
            int length =
                snprintf(nodes + used, sizeof nodes - used, "%s%s", k > 0 ? ", " : "", user->nodes[k]);
            used += length > 0 ? (size_t)length : 0;
        }
        snprintf(key, sizeof key, "users.%.80s", user->name);
        visit(context, key, nodes, user->source, &(struct conf_waiting){NULL, NULL});
    }
}

static bool user_equal(const struct conf_user *one, const struct conf_user *other)
{
    bool equal = one->uid == other->uid && one->node_count == other->node_count;
    for (size_t i = 0; i < one->node_count && equal; i++) {
        equal = strcmp(one->nodes[i], other->nodes[i]) == 0;
    }
    return equal;
}

bool conf_users_equal(const struct conf *one, const struct conf *other)
{
    bool equal = one->user_count == other->user_count;
    for (size_t i = 0; i < one->user_count && equal; i++) {
        equal = user_equal(&one->users[i], &other->users[i]);
    }
    return equal;
}

void conf_users_free(struct conf *conf)
{
    for (size_t i = 0; i < conf->user_count; i++) {
        for (size_t k = 0; k < conf->users[i].node_count; k++) {
            free(conf->users[i].nodes[k]);
        }
        free(conf->users[i].nodes);
        free(conf->users[i].name);
        free(conf->users[i].source);
    }
    free(conf->users);
}
