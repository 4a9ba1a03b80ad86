#ifndef DAEMON_NODES_H
#define DAEMON_NODES_H

#include "daemon/conf/conf.h"
#include "daemon/exec/rails.h"
#include "daemon/mesh/mesh.h"

/*
 * The other nodes of the configuration, as the mesh and the rails' threads know them. Main's thread calls
 * everything here.
 */

/* Makes a node known to both. As mesh_add_node and rails_add_peer. */
enum status nodes_add(struct mesh *mesh, struct rails *rails, const struct conf_node *node,
                      struct error *error) COMM_MUST_USE;

/*
 * What is known becomes what conf names: nodes that it has not are removed, those with another address are
 * moved, new ones are added. A node with which that fails stays as it was, and the log says why.
 */
void nodes_update(struct mesh *mesh, struct rails *rails, const struct conf *conf, uint64_t now_ns);

#endif
