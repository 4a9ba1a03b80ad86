#include "daemon/conf/node_list.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/conf/address.h"
#include "daemon/conf/rail_addresses.h"
#include "proto/types.h"

bool conf_node_name_is_valid(const char *text)
{
    size_t length = strlen(text);
    if (length == 0 || length > NODE_NAME_MAX_BYTES || text[0] == '-' || text[length - 1] == '-') {
        return false;
    }
    for (size_t i = 0; i < length; i++) {
        if (!isalnum((unsigned char)text[i]) && text[i] != '-') {
            return false;
        }
    }
    return true;
}

const char *conf_node_name_expected(const char *text)
{
    return conf_node_name_is_valid(text) ? NULL : "a node's name: letters, digits and hyphens, at most 63";
}

static void describe_place(const char *path, const config_setting_t *setting, char *text, size_t size)
{
    snprintf(text, size, "%s:%u", path, config_setting_source_line(setting));
}

static enum status read_node(struct conf_node_list *list, const config_setting_t *entry, const char *path,
                             struct error *error)
{
    char where[512];
    describe_place(path, entry, where, sizeof where);
    const char *name = NULL;
    const char *address = NULL;
    const char *rail_addresses = "";
    if (!config_setting_is_group(entry)) {
        return error_set(error, STATUS_CONFIG,
                         "%s: nodes: expected { name = \"...\"; address = \"host:port\"; }", where);
    }
    for (unsigned i = 0; i < (unsigned)config_setting_length(entry); i++) {
        const config_setting_t *field = config_setting_get_elem(entry, i);
        const char *key = config_setting_name(field);
        const char *text = config_setting_get_string(field);
        describe_place(path, field, where, sizeof where);
        const char *expected = CONF_TEXT_EXPECTED;
        if (strcmp(key, "name") == 0) {
            name = text;
            expected = text != NULL ? conf_node_name_expected(text) : expected;
        } else if (strcmp(key, "address") == 0) {
            address = text;
            expected = text != NULL ? conf_address_expected(text) : expected;
        } else if (strcmp(key, "rail_addresses") == 0) {
            rail_addresses = text;
            expected = text != NULL ? conf_rail_addresses_expected(text) : expected;
        } else {
            return error_set(error, STATUS_CONFIG,
                             "%s: nodes: %s: unknown key (name, address and rail_addresses are known)", where,
                             key);
        }
        if (expected != NULL) {
            return error_set(error, STATUS_CONFIG, "%s: nodes: %s = \"%s\": expected %s", where, key,
                             text != NULL ? text : "", expected);
        }
    }
    if (name == NULL || address == NULL) {
        return error_set(error, STATUS_CONFIG, "%s: nodes: a node needs a name and an address", where);
    }
    return conf_node_list_add(list, name, address, rail_addresses, where, error);
}

static int name_order(const void *a, const void *b)
{
    const struct conf_node *one = *(struct conf_node *const *)a, *other = *(struct conf_node *const *)b;
    int order = strcmp(one->name, other->name);
    return order != 0 ? order : one < other ? -1 : one > other;
}

static int address_order(const void *a, const void *b)
{
    const struct conf_node *one = *(struct conf_node *const *)a, *other = *(struct conf_node *const *)b;
    int order = conf_address_order(one->address, other->address);
    return order != 0 ? order : one < other ? -1 : one > other;
}

enum status conf_nodes_check_doubles(const struct conf_node_list *list, struct error *error)
{
    enum status status = STATUS_OK;
    struct conf_node **sorted = calloc(list->count + 1, sizeof *sorted);
    if (sorted == NULL) {
        return error_set(error, STATUS_NO_MEMORY, "no memory for the configuration");
    }
    for (size_t i = 0; i < list->count; i++) {
        sorted[i] = &list->nodes[i];
    }
    qsort(sorted, list->count, sizeof *sorted, name_order);
    for (size_t i = 1; i < list->count && status == STATUS_OK; i++) {
        if (strcmp(sorted[i - 1]->name, sorted[i]->name) == 0) {
            status = error_set(error, STATUS_CONFIG, "%s: nodes: \"%s\" is listed twice, first at %s",
                               sorted[i]->source, sorted[i]->name, sorted[i - 1]->source);
        }
    }
    qsort(sorted, list->count, sizeof *sorted, address_order);
    for (size_t i = 1; i < list->count && status == STATUS_OK; i++) {
        if (conf_address_order(sorted[i - 1]->address, sorted[i]->address) == 0) {
            status =
                error_set(error, STATUS_CONFIG,
                          "%s: nodes: address = \"%s\": node \"%s\" at %s has it already; expected an "
                          "address of its own for each node",
                          sorted[i]->source, sorted[i]->address, sorted[i - 1]->name, sorted[i - 1]->source);
        }
    }
    free(sorted);
    return status;
}

enum status conf_nodes_read(struct conf *conf, const config_setting_t *setting, const char *path,
                            struct error *error)
{
    char where[512];
    describe_place(path, setting, where, sizeof where);
    int length = config_setting_length(setting);
    if (!config_setting_is_list(setting)) {
        return error_set(error, STATUS_CONFIG,
                         "%s: nodes: expected a list: ( { name = ...; address = ...; }, ... )", where);
    }
    if (length > CONF_NODES_MAX) {
        return error_set(error, STATUS_CONFIG, "%s: nodes: %d of them; expected at most %d", where, length,
                         CONF_NODES_MAX);
    }
    struct conf_node_list list = {.nodes = calloc((size_t)length + 1, sizeof *list.nodes),
                                  .capacity = (size_t)length + 1};
    if (list.nodes == NULL) {
        return error_set(error, STATUS_NO_MEMORY, "no memory for the configuration");
    }
    enum status status = STATUS_OK;
    for (unsigned i = 0; i < (unsigned)length && status == STATUS_OK; i++) {
        status = read_node(&list, config_setting_get_elem(setting, i), path, error);
    }
    status = status == STATUS_OK ? conf_nodes_check_doubles(&list, error) : status;
    conf->nodes = list.nodes;
    conf->node_count = list.count;
    return status;
}

/* The setting takes a value of our entry in the list if it is not set itself; otherwise the value is freed.
 * Returns false without memory. */
static bool take_over(char **setting, char **source, char *value, const char *where)
{
    bool takes = (*setting)[0] == '\0' && value[0] != '\0';
    char *copy = takes ? strdup(where) : NULL;
    if (copy == NULL) {
        free(value);
        return !takes;
    }
    free(*setting);
    free(*source);
    *setting = value;
    *source = copy;
    return true;
}

/* Moves the entry's texts into the settings, and takes it out of the list. */
static enum status take_own(struct conf *conf, size_t index, struct error *error)
{
    struct conf_node *own = &conf->nodes[index];
    bool was_empty = conf->listen[0] == '\0';
    bool listens = take_over(&conf->listen, conf_source_slot(conf, "listen"), own->address, own->source);
    bool has_rails = take_over(&conf->rail_addresses, conf_source_slot(conf, "rail_addresses"),
                               own->rail_addresses, own->source);
    conf->is_listed = conf->is_listed || was_empty;
    free(own->source);
    free(own->name);
    memmove(own, own + 1, (conf->node_count - index - 1) * sizeof *own);
    conf->node_count--;
    return listens && has_rails ? STATUS_OK
                                : error_set(error, STATUS_NO_MEMORY, "no memory for the configuration");
}

static enum status find_own(struct conf *conf, const char *where, struct error *error)
{
    for (size_t i = 0; i < conf->node_count; i++) {
        if (strcmp(conf->nodes[i].name, conf->node_name) == 0) {
            return take_own(conf, i, error);
        }
    }
    if (conf->standalone || (conf->listen[0] != '\0' && !conf->is_listed)) {
        return STATUS_OK;
    }
    return error_set(error, STATUS_CONFIG,
                     "%s: nodes: this node, \"%s\", is not among them (node_name is %s)", where,
                     conf->node_name, *conf_source_slot(conf, "node_name"));
}

enum status conf_nodes_find_own(struct conf *conf, struct error *error)
{
    bool has_file = conf->nodes_file[0] != '\0';
    if (conf->node_count == 0 && conf->listen[0] == '\0' && !has_file) {
        conf->standalone = true; /* no node is listed: this machine serves only its own ranks */
    }
    return find_own(conf, has_file ? conf->nodes_file : conf->path, error);
}

/* --- Lists --- */

enum status conf_node_list_add(struct conf_node_list *list, const char *name, const char *address,
                               const char *rail_addresses, const char *source, struct error *error)
{
    if (list->count == CONF_NODES_MAX) {
        return error_set(error, STATUS_LIMIT, "%s: more than %d nodes, which is the limit", source,
                         CONF_NODES_MAX);
    }
    if (list->count == list->capacity) {
        size_t capacity = 2 * list->capacity + 16;
        struct conf_node *larger = reallocarray(list->nodes, capacity, sizeof *larger);
        if (larger == NULL) {
            return error_set(error, STATUS_NO_MEMORY, "no memory for the configuration");
        }
        list->nodes = larger;
        list->capacity = capacity;
    }
    struct conf_node *node = &list->nodes[list->count++];
    *node = (struct conf_node){.name = strdup(name),
                               .address = strdup(address),
                               .rail_addresses = strdup(rail_addresses),
                               .source = strdup(source)};
    if (node->name == NULL || node->address == NULL || node->rail_addresses == NULL || node->source == NULL) {
        return error_set(error, STATUS_NO_MEMORY, "no memory for the configuration");
    }
    return STATUS_OK;
}

static void free_nodes(struct conf_node *nodes, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        free(nodes[i].name);
        free(nodes[i].address);
        free(nodes[i].rail_addresses);
        free(nodes[i].source);
    }
    free(nodes);
}

void conf_node_list_free(struct conf_node_list *list)
{
    free_nodes(list->nodes, list->count);
    *list = (struct conf_node_list){0};
}

static int list_order(const void *a, const void *b)
{
    const struct conf_node *one = a, *other = b;
    return strcmp(one->name, other->name);
}

void conf_node_list_sort(struct conf_node_list *list)
{
    if (list->count > 0) {
        qsort(list->nodes, list->count, sizeof *list->nodes, list_order);
    }
}

void conf_swap_nodes(struct conf *conf, struct conf_node_list *list)
{
    struct conf_node_list kept = {
        .nodes = conf->nodes, .count = conf->node_count, .capacity = conf->node_count};
    conf->nodes = list->nodes;
    conf->node_count = list->count;
    *list = kept;
}

enum status conf_take_nodes(struct conf *conf, struct conf_node_list *list, const char *where,
                            struct error *error)
{
    enum status status = conf_nodes_check_doubles(list, error);
    if (status != STATUS_OK) {
        return status;
    }
    conf_swap_nodes(conf, list);
    status = find_own(conf, where, error);
    if (status != STATUS_OK) {
        conf_swap_nodes(conf, list);
    }
    return status;
}

enum status conf_inherit_nodes(struct conf *conf, const struct conf *present, struct error *error)
{
    struct conf_node_list list = {0};
    enum status status = STATUS_OK;
    for (size_t i = 0; i < present->node_count && status == STATUS_OK; i++) {
        const struct conf_node *node = &present->nodes[i];
        status =
            conf_node_list_add(&list, node->name, node->address, node->rail_addresses, node->source, error);
    }
    if (status == STATUS_OK && conf->listen[0] == '\0') {
        status =
            conf_set_text(conf, "listen", present->listen, present->is_listed ? "nodes" : "default", error);
        conf->is_listed = true;
    }
    if (status == STATUS_OK && conf->rail_addresses[0] == '\0') {
        status = conf_set_text(conf, "rail_addresses", present->rail_addresses, "nodes", error);
    }
    if (status == STATUS_OK) {
        conf_swap_nodes(conf, &list);
    }
    conf_node_list_free(&list);
    return status;
}

bool conf_has_nodes(const struct conf *conf, const struct conf_node_list *list)
{
    size_t known = 0;
    bool lists_own = false;
    for (size_t i = 0; i < list->count; i++) {
        const struct conf_node *node = &list->nodes[i];
        if (strcmp(node->name, conf->node_name) == 0) {
            lists_own = true;
            continue;
        }
        if (known == conf->node_count || strcmp(node->name, conf->nodes[known].name) != 0 ||
            strcmp(node->address, conf->nodes[known].address) != 0 ||
            strcmp(node->rail_addresses, conf->nodes[known].rail_addresses) != 0) {
            return false;
        }
        known++;
    }
    return known == conf->node_count && (lists_own || !conf->is_listed);
}

void conf_nodes_free(struct conf *conf)
{
    free_nodes(conf->nodes, conf->node_count);
}
