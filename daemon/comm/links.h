#ifndef DAEMON_COMM_LINKS_H
#define DAEMON_COMM_LINKS_H

#include "daemon/exec/exec.h"
#include "daemon/mesh/rail_links.h"

/*
 * Gives the mesh further rails (mesh_set_rails), and the exec their links. exec: the main thread's, which has
 * its rails before their threads run. `options` need no handler. The exec must outlive the use of the links,
 * and the mesh that of the exec. NO_MEMORY.
 */
enum status links_join(struct mesh *mesh, struct exec *exec, const struct mesh_rails_options *options,
                       struct error *error) COMM_MUST_USE;

#endif
