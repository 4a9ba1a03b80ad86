#ifndef DAEMON_NODES_H
#define DAEMON_NODES_H

#include "daemon/conf/changes.h"
#include "daemon/mesh/mesh.h"
#include "daemon/net/resolver.h"

/*
 * The other nodes of the configuration, as known to the mesh, and the IP addresses of
 * those that are configured by name. While the mesh wants such a node's address (mesh_wants_address), its
 * name is resolved again and again, with back-off: the name may get an address, or another one. Only the main
 * thread calls these functions.
 */
struct nodes;

#define NODES_LOOK_NS (500 * TIME_MS) /* between looks which named nodes are not up */

struct nodes_options {
    struct loop *loop;
    struct mesh *mesh;
    int family;              /* of the network's socket */
    resolver_lookup *lookup; /* null: the system's */
    uint64_t retry_min_ns, retry_max_ns;
    uint64_t seed; /* for jitter */
};

/* The mesh outlives the nodes. */
enum status nodes_new(const struct nodes_options *options, struct nodes **out,
                      struct error *error) COMM_MUST_USE;
void nodes_free(struct nodes *nodes);

/* Makes a node known. Errors as of mesh_add_node and mesh_set_rail_addresses. */
enum status nodes_add(struct nodes *nodes, const struct conf_node *node, struct error *error) COMM_MUST_USE;

/*
 * Updates the known nodes to match conf. Nodes that conf does not name are removed, those with another
 * address are moved, new ones are added; changes->applied gets what was done. If this fails for a node, the
 * node stays as it was, and changes->failed gets the reason.
 */
void nodes_update(struct nodes *nodes, const struct conf *conf, struct conf_changes *changes,
                  uint64_t now_ns);

/* By when nodes_tick must be called again. It asks for addresses. */
uint64_t nodes_next_deadline_ns(const struct nodes *nodes);
void nodes_tick(struct nodes *nodes, uint64_t now_ns);

#endif
