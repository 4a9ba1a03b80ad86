#include "daemon/conf/nodes.h"

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

static enum status read_node(struct conf *conf, const config_setting_t *entry, const char *path,
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
    struct conf_node *node = &conf->nodes[conf->node_count];
    node->name = strdup(name);
    node->address = strdup(address);
    node->rail_addresses = strdup(rail_addresses);
    node->source = strdup(where);
    conf->node_count++;
    if (node->name == NULL || node->address == NULL || node->rail_addresses == NULL || node->source == NULL) {
        return error_set(error, STATUS_NO_MEMORY, "no memory for the configuration");
    }
    return STATUS_OK;
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

/* Finds two nodes of one name or one address. */
static enum status check_doubles(const struct conf *conf, struct error *error)
{
    enum status status = STATUS_OK;
    struct conf_node **sorted = calloc(conf->node_count + 1, sizeof *sorted);
    if (sorted == NULL) {
        return error_set(error, STATUS_NO_MEMORY, "no memory for the configuration");
    }
    for (size_t i = 0; i < conf->node_count; i++) {
        sorted[i] = &conf->nodes[i];
    }
    qsort(sorted, conf->node_count, sizeof *sorted, name_order);
    for (size_t i = 1; i < conf->node_count && status == STATUS_OK; i++) {
        if (strcmp(sorted[i - 1]->name, sorted[i]->name) == 0) {
            status = error_set(error, STATUS_CONFIG, "%s: nodes: \"%s\" is listed twice, first at %s",
                               sorted[i]->source, sorted[i]->name, sorted[i - 1]->source);
        }
    }
    qsort(sorted, conf->node_count, sizeof *sorted, address_order);
    for (size_t i = 1; i < conf->node_count && status == STATUS_OK; i++) {
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

enum status conf_nodes_read(struct conf *conf, const config_setting_t *list, const char *path,
                            struct error *error)
{
    char where[512];
    describe_place(path, list, where, sizeof where);
    int length = config_setting_length(list);
    if (!config_setting_is_list(list)) {
        return error_set(error, STATUS_CONFIG,
                         "%s: nodes: expected a list: ( { name = ...; address = ...; }, ... )", where);
    }
    if (length > CONF_NODES_MAX) {
        return error_set(error, STATUS_CONFIG, "%s: nodes: %d of them; expected at most %d", where, length,
                         CONF_NODES_MAX);
    }
    conf->nodes = calloc((size_t)length + 1, sizeof *conf->nodes);
    if (conf->nodes == NULL) {
        return error_set(error, STATUS_NO_MEMORY, "no memory for the configuration");
    }
    enum status status = STATUS_OK;
    for (unsigned i = 0; i < (unsigned)length && status == STATUS_OK; i++) {
        status = read_node(conf, config_setting_get_elem(list, i), path, error);
    }
    return status == STATUS_OK ? check_doubles(conf, error) : status;
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

enum status conf_nodes_find_own(struct conf *conf, const char *name_source, char **listen_source,
                                char **rails_source, struct error *error)
{
    for (size_t i = 0; i < conf->node_count; i++) {
        struct conf_node *own = &conf->nodes[i];
        if (strcmp(own->name, conf->node_name) != 0) {
            continue;
        }
        bool listens = take_over(&conf->listen, listen_source, own->address, own->source);
        bool has_rails = take_over(&conf->rail_addresses, rails_source, own->rail_addresses, own->source);
        free(own->source);
        free(own->name);
        memmove(own, own + 1, (conf->node_count - i - 1) * sizeof *own);
        conf->node_count--;
        return listens && has_rails ? STATUS_OK
                                    : error_set(error, STATUS_NO_MEMORY, "no memory for the configuration");
    }
    if (conf->node_count == 0 && conf->listen[0] == '\0') {
        conf->standalone = true; /* no node is listed: this machine serves only its own ranks */
    }
    if (conf->standalone || conf->listen[0] != '\0') {
        return STATUS_OK;
    }
    return error_set(error, STATUS_CONFIG,
                     "%s: nodes: this node, \"%s\", is not among them (node_name is %s)", conf->path,
                     conf->node_name, name_source);
}

void conf_nodes_free(struct conf *conf)
{
    for (size_t i = 0; i < conf->node_count; i++) {
        free(conf->nodes[i].name);
        free(conf->nodes[i].address);
        free(conf->nodes[i].rail_addresses);
        free(conf->nodes[i].source);
    }
    free(conf->nodes);
}
