#include "daemon/conf/conf.h"

#include <errno.h>
#include <libconfig.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/base/log.h"
#include "daemon/conf/consistency.h"
#include "daemon/conf/credential.h"
#include "daemon/conf/node_list.h"
#include "daemon/conf/node_path.h"
#include "daemon/conf/nodes_file.h"
#include "daemon/conf/setting_type.h"
#include "daemon/conf/source.h"
#include "daemon/conf/user_list.h"
#include "proto/types.h"
#include "proto/version.h"

#ifndef COMMD_SYSCONFDIR
#define COMMD_SYSCONFDIR "/etc"
#endif
#define REVOCATION_LIST_DEFAULT COMMD_SYSCONFDIR "/commd/pki/ca.crl" /* if it is there */

struct setting {
    const char *key;
    enum setting_type type;
    size_t offset;
    const char *text_default;
    uint64_t number_default;
    uint64_t number_min;
    uint64_t number_max;
    bool reloadable;
};

#define TEXT(name, type, value, reloadable)                                                                  \
    {                                                                                                        \
#name, type, offsetof(struct conf, name), value, 0, 0, 0, reloadable                                 \
    }
#define NUMBER(name, value, low, high, reloadable)                                                           \
    {                                                                                                        \
#name, SETTING_NUMBER, offsetof(struct conf, name), NULL, value, low, high, reloadable               \
    }

static const struct setting schema[] = {
    TEXT(node_name, SETTING_NODE_NAME, "", false),
    TEXT(cluster_name, SETTING_TEXT, "", false),
    TEXT(nodes_file, SETTING_OPTIONAL_PATH, "", true),
    TEXT(nodes_dns, SETTING_SERVICE, "", true),
    TEXT(listen, SETTING_ADDRESS, "", false),
    TEXT(rail_addresses, SETTING_RAIL_ADDRESSES, "", false),
    TEXT(certificate, SETTING_PATH, COMMD_SYSCONFDIR "/commd/pki/%n.crt", true),
    TEXT(key, SETTING_PATH, COMMD_SYSCONFDIR "/commd/pki/%n.key", true),
    TEXT(authority, SETTING_PATH, COMMD_SYSCONFDIR "/commd/pki/ca.crt", true),
    TEXT(revocation_list, SETTING_OPTIONAL_PATH, "", true),
    TEXT(socket_path, SETTING_PATH, CLIENT_SOCKET_DEFAULT, false),
    TEXT(socket_mode, SETTING_MODE, "0666", false),
    TEXT(socket_group, SETTING_GROUP, "", false),
    TEXT(admin_socket_path, SETTING_OPTIONAL_PATH, "", false),
    TEXT(admin_group, SETTING_GROUP, "", false),
    TEXT(metrics, SETTING_METRICS, "", false),
    TEXT(log_level, SETTING_LEVEL, "info", true),
    NUMBER(heartbeat_interval_ms, 500, 10, 60000, false),
    NUMBER(heartbeat_timeout_ms, 4000, 50, 600000, false),
    NUMBER(suspect_timeout_ms, 450, 20, 600000, false),
    NUMBER(reconnect_min_ms, 100, 10, 60000, false),
    NUMBER(reconnect_max_ms, 5000, 10, 600000, false),
    NUMBER(handshake_timeout_ms, 5000, 100, 60000, false),
    NUMBER(probe_interval_ms, 1000, 0, 3600000, false),
    TEXT(algorithms, SETTING_TEXT, "", false),
    TEXT(gpus, SETTING_GPUS, "auto", false),
    TEXT(gpu_peer_access, SETTING_GPUS, "auto", false),
    TEXT(gpu_engine, SETTING_GPU_ENGINE, "auto", false),
    TEXT(gpu_tuning, SETTING_GPU_TUNING, "auto", false),
    NUMBER(gpu_nccl_ctas, 16, 0, 64, false),
    TEXT(gpu_nccl_register, SETTING_NCCL_REGISTER, "off", false),
    NUMBER(gpu_ahead, 0, 0, 16, false),
    TEXT(cuda_ipc_handles, SETTING_IPC_HANDLES, "auto", true),
    NUMBER(slice_bytes, 1u << 20, 4096, 1u << 28, false),
    NUMBER(rails, 0, 0, 16, false),
    NUMBER(worker_threads, 0, 0, 16, false),
    TEXT(numa_placement, SETTING_SWITCH, "on", false),
    TEXT(bulk_links, SETTING_BULK_LINKS, "auto", false),
    NUMBER(datagram_bytes, 0, 0, 65527, false),
    NUMBER(socket_buffer_bytes, 0, 0, 1u << 30, false),
    NUMBER(drain_timeout_ms, 10000, 0, 600000, true),
#define USER_LIMIT(name, key, text, all, user)                                                               \
    {"user_limit_" key,                                                                                      \
     SETTING_NUMBER,                                                                                         \
     offsetof(struct conf, user_limits[BUDGET_##name]),                                                      \
     NULL,                                                                                                   \
     0,                                                                                                      \
     0,                                                                                                      \
     INT64_MAX,                                                                                              \
     true},
    BUDGET_KIND_LIST(USER_LIMIT)
#undef USER_LIMIT
};
#define SETTING_COUNT (sizeof schema / sizeof schema[0])

static char **text_field(const struct conf *conf, const struct setting *setting)
{
    return (char **)((char *)conf + setting->offset);
}

static uint64_t *number_field(const struct conf *conf, const struct setting *setting)
{
    return (uint64_t *)((char *)conf + setting->offset);
}

static const char *type_expectation(enum setting_type type)
{
    return type == SETTING_NUMBER ? "a whole number" : CONF_TEXT_EXPECTED;
}

static enum status set_text(struct conf *conf, const struct setting *setting, const char *text,
                            const char *where, struct error *error)
{
    const char *expected = conf_setting_expected(setting->type, text);
    if (expected != NULL) {
        return error_set(error, STATUS_CONFIG, "%s: %s = \"%s\": expected %s", where, setting->key, text,
                         expected);
    }
    char *copy = strdup(text);
    if (copy == NULL) {
        return error_set(error, STATUS_NO_MEMORY, "no memory for the configuration");
    }
    free(*text_field(conf, setting));
    *text_field(conf, setting) = copy;
    return STATUS_OK;
}

static enum status set_number(struct conf *conf, const struct setting *setting, long long number,
                              const char *where, struct error *error)
{
    if (number < 0 || (uint64_t)number < setting->number_min || (uint64_t)number > setting->number_max) {
        return error_set(error, STATUS_CONFIG, "%s: %s = %lld: expected a number from %llu to %llu", where,
                         setting->key, number, (unsigned long long)setting->number_min,
                         (unsigned long long)setting->number_max);
    }
    *number_field(conf, setting) = (uint64_t)number;
    return STATUS_OK;
}

static enum status set_source(struct conf *conf, size_t index, const char *where, struct error *error)
{
    char *copy = strdup(where);
    if (copy == NULL) {
        return error_set(error, STATUS_NO_MEMORY, "no memory for the configuration");
    }
    free(conf->sources[index]);
    conf->sources[index] = copy;
    return STATUS_OK;
}

static const struct setting *find_setting(const char *key, size_t *index)
{
    for (size_t i = 0; i < SETTING_COUNT; i++) {
        if (strcmp(schema[i].key, key) == 0) {
            *index = i;
            return &schema[i];
        }
    }
    return NULL;
}

static void describe_place(const char *path, const config_setting_t *setting, char *text, size_t size)
{
    snprintf(text, size, "%s:%u", path, config_setting_source_line(setting));
}

static enum status read_scalar(struct conf *conf, const config_setting_t *entry, const char *where,
                               struct error *error)
{
    size_t index;
    const char *key = config_setting_name(entry);
    const struct setting *setting = find_setting(key, &index);
    if (setting == NULL) {
        return error_set(error, STATUS_CONFIG, "%s: %s: unknown key", where, key);
    }
    int type = config_setting_type(entry);
    bool is_number = type == CONFIG_TYPE_INT || type == CONFIG_TYPE_INT64;
    enum status status;
    if (setting->type == SETTING_NUMBER && is_number) {
        status = set_number(conf, setting, config_setting_get_int64(entry), where, error);
    } else if (setting->type != SETTING_NUMBER && type == CONFIG_TYPE_STRING) {
        status = set_text(conf, setting, config_setting_get_string(entry), where, error);
    } else {
        status = error_set(error, STATUS_CONFIG, "%s: %s: expected %s", where, key,
                           type_expectation(setting->type));
    }
    return status == STATUS_OK ? set_source(conf, index, where, error) : status;
}

static enum status check_source(const char *path, const char *text, struct error *error)
{
    struct conf_source_place place;
    size_t size_bytes;
    const char *fault = conf_source_find_fault(text, &place, &size_bytes);
    if (fault == NULL) {
        return STATUS_OK;
    }
    if (*fault == '@') {
        return error_set(error, STATUS_CONFIG, "%s:%u: %.*s: expected the whole configuration in this file",
                         path, place.line, (int)(size_bytes < 64 ? size_bytes : 64), fault);
    }
    return error_set(error, STATUS_CONFIG, "%s:%u: %.*s = %.*s: expected a smaller number", path, place.line,
                     (int)(place.key_bytes < 64 ? place.key_bytes : 64), place.key,
                     (int)(size_bytes < 64 ? size_bytes : 64), fault);
}

static enum status read_settings(struct conf *conf, const config_t *parsed, const char *path,
                                 struct error *error)
{
    const config_setting_t *root = config_root_setting(parsed);
    enum status status = STATUS_OK;
    for (unsigned i = 0; status == STATUS_OK && i < (unsigned)config_setting_length(root); i++) {
        const config_setting_t *entry = config_setting_get_elem(root, i);
        char where[512];
        describe_place(path, entry, where, sizeof where);
        if (strcmp(config_setting_name(entry), "nodes") == 0) {
            status = conf_nodes_read(conf, entry, path, error);
        } else if (strcmp(config_setting_name(entry), "users") == 0) {
            status = conf_users_read(conf, entry, path, error);
        } else {
            status = read_scalar(conf, entry, where, error);
        }
    }
    return status;
}

static enum status read_file(struct conf *conf, const char *path, struct error *error)
{
    char *text;
    struct error why;
    enum status status = conf_source_read(path, &text, &why);
    if (status != STATUS_OK) { /* a missing file is mended as a fault in it is; no restart helps */
        return error_set(error, status == STATUS_SYSTEM ? STATUS_CONFIG : status, "%s", why.text);
    }
    config_t parsed;
    config_init(&parsed);
    status = check_source(path, text, error);
    if (status == STATUS_OK && config_read_string(&parsed, text) != CONFIG_TRUE) {
        size_t size_bytes = 0;
        bool is_duplicate = strstr(config_error_text(&parsed), "duplicate") != NULL;
        const char *name = is_duplicate ? conf_source_find_duplicate(text, &size_bytes) : NULL;
        status = error_set(error, STATUS_CONFIG, "%s:%d: %.*s%s%s", path, config_error_line(&parsed),
                           (int)(size_bytes < 64 ? size_bytes : 64), name != NULL ? name : "",
                           name != NULL ? ": " : "", config_error_text(&parsed));
    }
    if (status == STATUS_OK) {
        status = read_settings(conf, &parsed, path, error);
    }
    config_destroy(&parsed);
    free(text);
    return status;
}

static enum status apply_override(struct conf *conf, const char *text, struct error *error)
{
    char key[64];
    const char *equals = strchr(text, '=');
    size_t index;
    if (equals == NULL) {
        return error_set(error, STATUS_CONFIG, "option %s: expected KEY=VALUE", text);
    }
    snprintf(key, sizeof key, "%.*s", (int)(equals - text), text);
    const struct setting *setting = find_setting(key, &index);
    if (setting == NULL) {
        return error_set(error, STATUS_CONFIG, "option %s: unknown key", key);
    }
    enum status status;
    if (setting->type == SETTING_NUMBER) {
        char *end;
        errno = 0;
        long long number = strtoll(equals + 1, &end, 10);
        if (equals[1] == '\0' || *end != '\0' || errno != 0) {
            return error_set(error, STATUS_CONFIG, "option %s: expected a whole number, not \"%s\"", key,
                             equals + 1);
        }
        status = set_number(conf, setting, number, "option", error);
    } else {
        status = set_text(conf, setting, equals + 1, "option", error);
    }
    return status == STATUS_OK ? set_source(conf, index, "option", error) : status;
}

static enum status set_defaults(struct conf *conf, struct error *error)
{
    for (size_t i = 0; i < SETTING_COUNT; i++) {
        const struct setting *setting = &schema[i];
        if (setting->type == SETTING_NUMBER) {
            *number_field(conf, setting) = setting->number_default;
        } else if ((*text_field(conf, setting) = strdup(setting->text_default)) == NULL) {
            return error_set(error, STATUS_NO_MEMORY, "no memory for the configuration");
        }
        if (set_source(conf, i, "default", error) != STATUS_OK) {
            return STATUS_NO_MEMORY;
        }
    }
    return STATUS_OK;
}

static enum status default_node_name(struct conf *conf, struct error *error)
{
    char host[256] = "";
    if (conf->node_name[0] != '\0') {
        return STATUS_OK;
    }
    if (gethostname(host, sizeof host - 1) < 0) {
        return error_set_errno(error, errno, "gethostname");
    }
    host[strcspn(host, ".")] = '\0';
    return set_text(conf, &schema[0], host, "node_name is not set, and the host's name cannot replace it",
                    error);
}

const char *conf_source(const struct conf *conf, const char *key)
{
    size_t index;
    bool known = find_setting(key, &index) != NULL;
    return known && (conf_is_given(conf, key) || conf->path[0] == '\0') ? conf->sources[index] : conf->path;
}

char **conf_source_slot(struct conf *conf, const char *key)
{
    size_t index = 0;
    (void)find_setting(key, &index);
    return &conf->sources[index];
}

static enum status expand_paths(struct conf *conf, struct error *error)
{
    enum status status = STATUS_OK;
    for (size_t i = 0; i < SETTING_COUNT && status == STATUS_OK; i++) {
        if (schema[i].type == SETTING_PATH || schema[i].type == SETTING_OPTIONAL_PATH) {
            status = conf_expand_node_path(text_field(conf, &schema[i]), conf->node_name, conf->sources[i],
                                           schema[i].key, error);
        }
        if (status == STATUS_OK && conf_is_private(schema[i].key)) {
            status =
                conf_expand_credential(text_field(conf, &schema[i]), conf->sources[i], schema[i].key, error);
        }
    }
    return status;
}

/* Reads nodes_file. The nodes come from one place. */
static enum status gather_nodes(struct conf *conf, struct error *error)
{
    const char *key = conf->nodes_dns[0] != '\0' ? "nodes_dns" : "nodes_file";
    if (conf->nodes_file[0] == '\0' && conf->nodes_dns[0] == '\0') {
        return STATUS_OK;
    }
    if (conf->nodes != NULL || (conf->nodes_file[0] != '\0' && conf->nodes_dns[0] != '\0')) {
        return error_set(
            error, STATUS_CONFIG,
            "%s: %s: the nodes come from another setting, too; expected one of nodes, nodes_file "
            "and nodes_dns",
            conf_source(conf, key), key);
    }
    if (conf->nodes_dns[0] != '\0') {
        return STATUS_OK; /* the caller asks */
    }
    struct conf_node_list list = {0};
    enum status status = conf_nodes_file_read(conf->nodes_file, &list, error);
    status = status == STATUS_OK ? conf_nodes_check_doubles(&list, error) : status;
    conf->nodes = list.nodes;
    conf->node_count = list.count;
    return status;
}

/* With the default authority, its revocation list is used once it is there. */
static enum status default_revocation_list(struct conf *conf, struct error *error)
{
    if (conf->standalone || conf_is_given(conf, "revocation_list") || conf_is_given(conf, "authority") ||
        (access(REVOCATION_LIST_DEFAULT, F_OK) != 0 && errno == ENOENT)) {
        return STATUS_OK;
    }
    size_t index;
    const struct setting *setting = find_setting("revocation_list", &index);
    return set_text(conf, setting, REVOCATION_LIST_DEFAULT, "default", error);
}

enum status conf_load(const struct conf_options *options, struct conf **out, struct error *error)
{
    struct conf *conf = calloc(1, sizeof *conf);
    if (conf == NULL) {
        return error_set(error, STATUS_NO_MEMORY, "no memory for the configuration");
    }
    conf->standalone = options->standalone;
    conf->path = strdup(options->path != NULL ? options->path : "");
    conf->sources = calloc(SETTING_COUNT, sizeof *conf->sources);
    enum status status = STATUS_OK;
    if (conf->path == NULL || conf->sources == NULL) {
        status = error_set(error, STATUS_NO_MEMORY, "no memory for the configuration");
        goto failed;
    }
    status = set_defaults(conf, error);
    if (status == STATUS_OK && options->path != NULL) {
        status = read_file(conf, options->path, error);
    }
    for (size_t i = 0; i < options->override_count && status == STATUS_OK; i++) {
        status = apply_override(conf, options->overrides[i], error);
    }
    if (status == STATUS_OK) {
        status = default_node_name(conf, error);
    }
    if (status == STATUS_OK) {
        status = expand_paths(conf, error);
    }
    if (status == STATUS_OK) {
        status = gather_nodes(conf, error);
    }
    if (status == STATUS_OK) {
        status = conf_users_check(conf, error);
    }
    if (status == STATUS_OK && conf->nodes_dns[0] == '\0') {
        status = conf_nodes_find_own(conf, error);
    }
    if (status == STATUS_OK) {
        status = default_revocation_list(conf, error);
    }
    if (status == STATUS_OK) {
        status = conf_check_consistency(conf, error);
    }
    if (status != STATUS_OK) {
        goto failed;
    }
    *out = conf;
    return STATUS_OK;
failed:
    conf_free(conf);
    return status;
}

void conf_free(struct conf *conf)
{
    if (conf == NULL) {
        return;
    }
    conf_nodes_free(conf);
    conf_users_free(conf);
    for (size_t i = 0; i < SETTING_COUNT; i++) {
        if (schema[i].type != SETTING_NUMBER) {
            free(*text_field(conf, &schema[i]));
        }
        if (conf->sources != NULL) {
            free(conf->sources[i]);
        }
    }
    conf_free(conf->file);
    free(conf->sources);
    free(conf->path);
    free(conf);
}

/* The value as text, in `number` if it is one. */
static const char *setting_text(const struct conf *conf, const struct setting *setting, char number[32])
{
    if (setting->type != SETTING_NUMBER) {
        return *text_field(conf, setting);
    }
    snprintf(number, 32, "%llu", (unsigned long long)*number_field(conf, setting));
    return number;
}

void conf_visit(const struct conf *conf, conf_visit_function *visit, void *context)
{
    for (size_t i = 0; i < SETTING_COUNT; i++) {
        char number[32], file_number[32];
        struct conf_waiting waiting = {NULL, NULL};
        const char *value = setting_text(conf, &schema[i], number);
        if (conf->file != NULL && !schema[i].reloadable) {
            waiting.value = setting_text(conf->file, &schema[i], file_number);
            waiting.source = conf->file->sources[i];
        }
        if (waiting.value != NULL && strcmp(waiting.value, value) == 0) {
            waiting = (struct conf_waiting){NULL, NULL};
        }
        visit(context, schema[i].key, value, conf->sources[i], &waiting);
    }
    for (size_t i = 0; i < conf->node_count; i++) {
        const struct conf_node *node = &conf->nodes[i];
        char key[NODE_NAME_MAX_BYTES + 16];
        snprintf(key, sizeof key, "nodes.%s", node->name);
        visit(context, key, node->address, node->source, &(struct conf_waiting){NULL, NULL});
        if (node->rail_addresses[0] != '\0') {
            snprintf(key, sizeof key, "nodes.%s.rails", node->name);
            visit(context, key, node->rail_addresses, node->source, &(struct conf_waiting){NULL, NULL});
        }
    }
    conf_users_visit(conf, visit, context);
}

bool conf_is_given(const struct conf *conf, const char *key)
{
    size_t index;
    return find_setting(key, &index) != NULL && strcmp(conf->sources[index], "default") != 0;
}

bool conf_is_private(const char *key)
{
    static const char *const private_keys[] = {"certificate", "key", "authority", "revocation_list"};
    for (size_t i = 0; i < sizeof private_keys / sizeof *private_keys; i++) {
        if (strcmp(key, private_keys[i]) == 0) {
            return true;
        }
    }
    return strncmp(key, "users.", strlen("users.")) == 0;
}

void conf_compare(const struct conf *present, const struct conf *next, conf_differs_function *differs,
                  void *context)
{
    for (size_t i = 0; i < SETTING_COUNT; i++) {
        char present_number[32], next_number[32];
        const char *value = setting_text(next, &schema[i], next_number);
        if (strcmp(setting_text(present, &schema[i], present_number), value) != 0) {
            differs(context, schema[i].key, value, schema[i].reloadable);
        }
    }
}

static void swap_texts(char **one, char **other)
{
    char *kept = *one;
    *one = *other;
    *other = kept;
}

void conf_keep_until_restart(struct conf *next, struct conf *present)
{
    for (size_t i = 0; i < SETTING_COUNT; i++) {
        if (schema[i].reloadable) {
            continue;
        }
        swap_texts(&next->sources[i], &present->sources[i]);
        if (schema[i].type == SETTING_NUMBER) {
            uint64_t kept = *number_field(next, &schema[i]);
            *number_field(next, &schema[i]) = *number_field(present, &schema[i]);
            *number_field(present, &schema[i]) = kept;
        } else {
            swap_texts(text_field(next, &schema[i]), text_field(present, &schema[i]));
        }
    }
    conf_free(present->file);
    present->file = NULL;
    next->file = present;
}

enum status conf_set_text(struct conf *conf, const char *key, const char *text, const char *source,
                          struct error *error)
{
    size_t index;
    const struct setting *setting = find_setting(key, &index);
    if (setting == NULL || setting->type == SETTING_NUMBER) {
        return error_set(error, STATUS_INVALID_ARGUMENT, "%s is no setting with a text", key);
    }
    enum status status = set_text(conf, setting, text, source, error);
    if (status == STATUS_CONFIG) {
        return error_set(error, STATUS_INVALID_ARGUMENT, "%s = \"%.64s\": expected %s", key, text,
                         conf_setting_expected(setting->type, text));
    }
    return status == STATUS_OK ? set_source(conf, index, source, error) : status;
}
