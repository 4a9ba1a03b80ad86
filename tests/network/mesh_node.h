#ifndef TESTS_NETWORK_MESH_NODE_H
#define TESTS_NETWORK_MESH_NODE_H

#include <string.h>

#include "daemon/mesh/mesh.h"
#include "tests/network/network.h"

/* What nodes of unit tests have in common: a mesh of the nodes "a", "b", and so on, and a user who may not be
 * on all of them. Include it after cmocka.h. */

struct user_limit {
    uint32_t uid;
    const char *nodes; /* where that user may be: one letter each. Null: everywhere */
};

/* As user_may of the mesh's options; `context` is a user_limit. */
static inline bool user_limit_allows(void *context, uint32_t uid, const char *node_name)
{
    const struct user_limit *limit = context;
    return limit->nodes == NULL || uid != limit->uid || strchr(limit->nodes, node_name[0]) != NULL;
}

/* Adds node `index` to the network, and makes its mesh, which knows no other node yet. Writes its name to
 * `name`; the caller frees *net and *mesh. The limit, which it keeps, may be null. */
static inline void mesh_node_new(struct network *network, unsigned index, uint64_t instance, uint64_t now_ns,
                                 struct user_limit *limit, char name[2], struct net **net, struct mesh **mesh)
{
    struct mesh_options options;
    struct error error;
    name[0] = (char)('a' + index);
    name[1] = '\0';
    *net = network_add(network, name);
    mesh_options_default(&options);
    options.node_name = name;
    options.cluster_name = "test";
    options.version_text = "9.9";
    options.instance = instance;
    options.seed = instance;
    options.now_ns = now_ns;
    options.user_may = limit != NULL ? user_limit_allows : NULL;
    options.user_may_context = limit;
    assert_int_equal(mesh_new(*net, &options, mesh, &error), STATUS_OK);
}

/* Adds the first `count` nodes to the mesh of node `index`. */
static inline void mesh_node_add_others(struct mesh *mesh, unsigned index, unsigned count)
{
    for (unsigned i = 0; i < count; i++) {
        char name[2] = {(char)('a' + i), '\0'};
        struct error error;
        uint32_t peer;
        if (i != index) {
            assert_int_equal(mesh_add_node(mesh, name, "127.0.0.1:1", &peer, &error), STATUS_OK);
        }
    }
}

#endif
