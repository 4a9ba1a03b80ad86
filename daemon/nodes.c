#include "daemon/nodes.h"

#include <stdlib.h>
#include <string.h>

#include "daemon/base/array.h"
#include "daemon/base/backoff.h"
#include "daemon/base/log.h"
#include "daemon/base/time.h"
#include "daemon/conf/address.h"
#include "daemon/mesh/rail_links.h"

/* A node whose address has a name, or had one. */
struct named {
    uint32_t node;
    bool has_name;
    bool asked;
    struct backoff again;
};

struct nodes {
    struct mesh *mesh;
    struct resolver *resolver; /* null until the first name */
    struct resolver_options resolver_options;
    uint64_t retry_min_ns, retry_max_ns;
    struct random random;
    struct named *named;
    uint32_t named_count, named_capacity;
    uint64_t look_ns; /* TIME_NEVER without names */
};

static void on_answer(void *context, uint32_t node, const char *asked, const char *address,
                      const struct error *why, uint64_t now_ns);

enum status nodes_new(const struct nodes_options *options, struct nodes **out, struct error *error)
{
    struct nodes *nodes = calloc(1, sizeof *nodes);
    if (nodes == NULL) {
        return error_set(error, STATUS_NO_MEMORY, "no memory for the nodes");
    }
    nodes->mesh = options->mesh;
    nodes->resolver_options = (struct resolver_options){.loop = options->loop,
                                                        .family = options->family,
                                                        .lookup = options->lookup,
                                                        .done = on_answer,
                                                        .context = nodes};
    nodes->retry_min_ns = options->retry_min_ns;
    nodes->retry_max_ns = options->retry_max_ns;
    random_seed(&nodes->random, options->seed);
    nodes->look_ns = TIME_NEVER;
    *out = nodes;
    return STATUS_OK;
}

void nodes_free(struct nodes *nodes)
{
    if (nodes != NULL) {
        resolver_free(nodes->resolver);
        free(nodes->named);
        free(nodes);
    }
}

/* --- Names --- */

static struct named *find_named(const struct nodes *nodes, uint32_t node)
{
    for (uint32_t i = 0; i < nodes->named_count; i++) {
        if (nodes->named[i].node == node) {
            return &nodes->named[i];
        }
    }
    return NULL;
}

/* The node has a new address. */
static enum status note_address(struct nodes *nodes, uint32_t node, const char *address, struct error *error)
{
    bool has_name = conf_address_is_name(address);
    struct named *named = find_named(nodes, node);
    if (named == NULL && !has_name) {
        return STATUS_OK;
    }
    if (named == NULL) {
        struct named *larger =
            array_reserve(nodes->named, &nodes->named_capacity, sizeof *larger, nodes->named_count + 1);
        if (larger == NULL) {
            return error_set(error, STATUS_NO_MEMORY, "no memory for the address \"%s\"", address);
        }
        nodes->named = larger;
        named = &nodes->named[nodes->named_count++];
        *named = (struct named){.node = node};
    }
    named->has_name = has_name;
    named->again = (struct backoff){0};
    nodes->look_ns = 0;
    return STATUS_OK;
}

static void resolved(struct nodes *nodes, uint32_t node, const char *address, uint64_t now_ns)
{
    struct error error;
    struct mesh_node_info info;
    mesh_node_info(nodes->mesh, node, &info);
    if (strcmp(info.resolved_address, address) == 0) {
        return;
    }
    if (mesh_resolve_node(nodes->mesh, node, address, now_ns, &error) != STATUS_OK) {
        log_error("%s", error.text);
    }
}

static void on_answer(void *context, uint32_t node, const char *asked, const char *address,
                      const struct error *why, uint64_t now_ns)
{
    struct nodes *nodes = context;
    struct named *named = find_named(nodes, node);
    struct mesh_node_info info;
    if (named == NULL) {
        return;
    }
    named->asked = false;
    mesh_node_info(nodes->mesh, node, &info);
    if (!named->has_name || mesh_node_is_removed(nodes->mesh, node) || strcmp(info.address, asked) != 0) {
        return; /* the node has moved meanwhile: its new name is asked for next */
    }
    if (address != NULL) {
        resolved(nodes, node, address, now_ns);
    } else {
        mesh_unresolved(nodes->mesh, node, why);
    }
}

static void ask(struct nodes *nodes, struct named *named, uint64_t now_ns)
{
    struct error error;
    struct mesh_node_info info;
    enum status status = STATUS_OK;
    mesh_node_info(nodes->mesh, named->node, &info);
    if (nodes->resolver == NULL) {
        status = resolver_new(&nodes->resolver_options, &nodes->resolver, &error);
    }
    if (status == STATUS_OK) {
        status = resolver_ask(nodes->resolver, named->node, info.address, &error);
    }
    named->asked = status == STATUS_OK;
    backoff_failed(&named->again, nodes->retry_min_ns, nodes->retry_max_ns, &nodes->random, now_ns);
    if (status != STATUS_OK) {
        mesh_unresolved(nodes->mesh, named->node, &error);
    }
}

uint64_t nodes_next_deadline_ns(const struct nodes *nodes)
{
    return nodes->look_ns;
}

void nodes_tick(struct nodes *nodes, uint64_t now_ns)
{
    if (now_ns < nodes->look_ns) {
        return;
    }
    nodes->look_ns = TIME_NEVER;
    for (uint32_t i = 0; i < nodes->named_count; i++) {
        struct named *named = &nodes->named[i];
        if (!named->has_name || mesh_node_is_removed(nodes->mesh, named->node)) {
            continue;
        }
        nodes->look_ns = time_after(now_ns, NODES_LOOK_NS);
        if (!mesh_wants_address(nodes->mesh, named->node)) {
            named->again = (struct backoff){0};
        } else if (!named->asked && named->again.next_ns <= now_ns) {
            ask(nodes, named, now_ns);
        }
    }
}

/* --- The configuration --- */

enum status nodes_add(struct nodes *nodes, const struct conf_node *node, struct error *error)
{
    uint32_t index;
    enum status status = mesh_add_node(nodes->mesh, node->name, node->address, &index, error);
    if (status == STATUS_OK) {
        status = mesh_set_rail_addresses(nodes->mesh, index, node->rail_addresses, error);
    }
    return status == STATUS_OK ? note_address(nodes, index, node->address, error) : status;
}

/* *next: where to look first, because both lists mostly have the same order. */
static const struct conf_node *node_of_conf(const struct conf *conf, const char *name, size_t *next)
{
    for (size_t i = 0; i < conf->node_count; i++) {
        size_t at = (*next + i) % conf->node_count;
        if (strcmp(conf->nodes[at].name, name) == 0) {
            *next = at + 1;
            return &conf->nodes[at];
        }
    }
    return NULL;
}

static void node_remove(struct nodes *nodes, uint32_t node, struct conf_changes *changes, uint64_t now_ns)
{
    struct error cause;
    const char *name = mesh_node_name(nodes->mesh, node);
    error_set(&cause, STATUS_PERMISSION, "node %s: the configuration of node %s does not name it any more",
              name, mesh_own_name(nodes->mesh));
    mesh_remove_node(nodes->mesh, node, &cause, now_ns);
    conf_changes_add(&changes->applied, "node %s: removed", name);
}

static void node_move(struct nodes *nodes, const struct mesh_node_info *from, uint32_t node,
                      const struct conf_node *to, struct conf_changes *changes, uint64_t now_ns)
{
    struct error error;
    struct conf_change_list one = {0};
    conf_changes_add(&one, "node %s: moved from %s to %s", from->name, from->address, to->address);
    enum status status = mesh_move_node(nodes->mesh, node, to->address, now_ns, &error);
    if (status == STATUS_OK) {
        status = mesh_set_rail_addresses(nodes->mesh, node, to->rail_addresses, &error);
    }
    if (status == STATUS_OK) {
        status = note_address(nodes, node, to->address, &error);
    }
    if (status != STATUS_OK) {
        conf_changes_add(&changes->failed, "%s: nodes: %s", to->source, error.text);
    } else if (one.count > 0) {
        conf_changes_add(&changes->applied, "%s", one.texts[0]);
    }
    conf_change_list_free(&one);
}

/* The rails' addresses alone have changed. They are used from the next dial on. */
static void node_move_rails(struct nodes *nodes, uint32_t node, const struct conf_node *to,
                            struct conf_changes *changes)
{
    struct error error;
    if (mesh_set_rail_addresses(nodes->mesh, node, to->rail_addresses, &error) == STATUS_OK) {
        conf_changes_add(&changes->applied, "node %s: rail_addresses = \"%s\"", to->name, to->rail_addresses);
    } else {
        conf_changes_add(&changes->failed, "%s: nodes: %s", to->source, error.text);
    }
}

static void update_known(struct nodes *nodes, const struct conf *conf, struct conf_changes *changes,
                         uint64_t now_ns)
{
    size_t next = 0;
    for (uint32_t node = 0; node < mesh_node_count(nodes->mesh); node++) {
        struct mesh_node_info info;
        mesh_node_info(nodes->mesh, node, &info);
        const struct conf_node *wanted = node_of_conf(conf, info.name, &next);
        if (mesh_node_is_removed(nodes->mesh, node)) {
            continue;
        }
        if (wanted == NULL) {
            node_remove(nodes, node, changes, now_ns);
        } else if (strcmp(wanted->address, info.address) != 0) {
            node_move(nodes, &info, node, wanted, changes, now_ns);
        } else if (strcmp(wanted->rail_addresses, mesh_rail_addresses(nodes->mesh, node)) != 0) {
            node_move_rails(nodes, node, wanted, changes);
        }
    }
}

void nodes_update(struct nodes *nodes, const struct conf *conf, struct conf_changes *changes, uint64_t now_ns)
{
    update_known(nodes, conf, changes, now_ns);
    mesh_end_hold_offs(nodes->mesh, now_ns);
    for (uint32_t i = 0; i < nodes->named_count; i++) {
        nodes->named[i].again = (struct backoff){0}; /* names are asked for at once */
        nodes->look_ns = 0;
    }
    for (size_t i = 0; i < conf->node_count; i++) {
        const struct conf_node *wanted = &conf->nodes[i];
        uint32_t node;
        struct error error;
        if (mesh_find_node(nodes->mesh, wanted->name, &node)) {
            continue;
        }
        if (nodes_add(nodes, wanted, &error) == STATUS_OK) {
            conf_changes_add(&changes->applied, "node %s: added at %s", wanted->name, wanted->address);
        } else {
            conf_changes_add(&changes->failed, "%s: nodes: %s", wanted->source, error.text);
        }
    }
}
