#include <string.h>

#include "daemon/base/weight.h"
#include "daemon/store/stores_internal.h"

/* Which node keeps a store: a function of what all nodes have in their configurations. */

#define KEEPER_SEED 0x73746f7265733176u /* part of the protocol: all nodes must have the same */

/* Whether the name says its keeper: "job-17@node-a". */
static bool keeper_is_named(const struct stores *stores, uint32_t uid, const char *name, uint32_t *node)
{
    const char *mark = strrchr(name, '@');
    if (mark == NULL) {
        return false;
    }
    if (strcmp(mark + 1, mesh_own_name(stores->mesh)) == 0) {
        *node = MESH_NODE_OWN;
        return true;
    }
    return mesh_find_node(stores->mesh, mark + 1, node) && mesh_user_may(stores->mesh, uid, *node);
}

uint32_t stores_keeper(const struct stores *stores, uint32_t uid, const char *name)
{
    uint32_t named;
    if (keeper_is_named(stores, uid, name, &named)) {
        return named;
    }
    struct weight_choice best = {0};
    weight_choose(&best, KEEPER_SEED, MESH_NODE_OWN, mesh_own_name(stores->mesh), uid, name);
    for (uint32_t node = 0; node < mesh_node_count(stores->mesh); node++) {
        if (!mesh_node_is_removed(stores->mesh, node) && mesh_user_may(stores->mesh, uid, node)) {
            weight_choose(&best, KEEPER_SEED, node, mesh_node_name(stores->mesh, node), uid, name);
        }
    }
    return best.node;
}

const char *stores_keeper_name(const struct stores *stores, uid_t uid, const char *name)
{
    return mesh_node_name(stores->mesh, stores_keeper(stores, uid, name));
}
