#ifndef DAEMON_NODES_H
#define DAEMON_NODES_H

#include "daemon/conf/conf.h"
#include "daemon/exec/rails.h"
#include "daemon/mesh/mesh.h"

/*
 * The other nodes of the configuration, as known to the mesh and the rails' threads. Only the main thread
 * calls these functions.
 */

/* Makes a node known to both. Errors as of mesh_add_node and rails_add_peer. */
enum status nodes_add(struct mesh *mesh, struct rails *rails, const struct conf_node *node,
                      struct error *error) COMM_MUST_USE;

/*
 * Updates the known nodes to match conf. Nodes that conf does not name are removed, those with another
 * address are moved, new ones are added. If this fails for a node, the node stays as it was, and the log says
 * why.
 */
void nodes_update(struct mesh *mesh, struct rails *rails, const struct conf *conf, uint64_t now_ns);

#endif
