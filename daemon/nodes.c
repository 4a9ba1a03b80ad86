#include "daemon/nodes.h"

#include <string.h>

#include "daemon/base/log.h"

enum status nodes_add(struct mesh *mesh, struct rails *rails, const struct conf_node *node,
                      struct error *error)
{
    uint32_t index;
    enum status status = mesh_add_node(mesh, node->name, node->address, &index, error);
    return status == STATUS_OK ? rails_add_peer(rails, index, node->name, node->address, error) : status;
}

static const struct conf_node *node_of_conf(const struct conf *conf, const char *name)
{
    for (size_t i = 0; i < conf->node_count; i++) {
        if (strcmp(conf->nodes[i].name, name) == 0) {
            return &conf->nodes[i];
        }
    }
    return NULL;
}

static void node_remove(struct mesh *mesh, struct rails *rails, uint32_t node, uint64_t now_ns)
{
    struct error cause;
    error_set(&cause, STATUS_PERMISSION, "node %s: the configuration of node %s does not name it any more",
              mesh_node_name(mesh, node), mesh_own_name(mesh));
    rails_remove_peer(rails, node, &cause);
    mesh_remove_node(mesh, node, &cause, now_ns);
}

static void node_move(struct mesh *mesh, struct rails *rails, uint32_t node, const char *address,
                      uint64_t now_ns)
{
    struct error error;
    enum status status = mesh_move_node(mesh, node, address, now_ns, &error);
    if (status == STATUS_OK) {
        status = rails_move_peer(rails, node, address, &error);
    }
    if (status != STATUS_OK) {
        log_error("reload: %s", error.text);
    }
}

void nodes_update(struct mesh *mesh, struct rails *rails, const struct conf *conf, uint64_t now_ns)
{
    for (uint32_t node = 0; node < mesh_node_count(mesh); node++) {
        struct mesh_node_info info;
        mesh_node_info(mesh, node, &info);
        const struct conf_node *wanted = node_of_conf(conf, info.name);
        if (mesh_node_is_removed(mesh, node)) {
            continue;
        }
        if (wanted == NULL) {
            node_remove(mesh, rails, node, now_ns);
        } else if (strcmp(wanted->address, info.address) != 0) {
            node_move(mesh, rails, node, wanted->address, now_ns);
        }
    }
    mesh_end_hold_offs(mesh, now_ns);
    for (size_t i = 0; i < conf->node_count; i++) {
        uint32_t node;
        struct error error;
        if (!mesh_find_node(mesh, conf->nodes[i].name, &node) &&
            nodes_add(mesh, rails, &conf->nodes[i], &error) != STATUS_OK) {
            log_error("reload: %s", error.text);
        }
    }
}
