#include <utlist.h>

#include "daemon/comm/comms_internal.h"
#include "daemon/comm/formation.h"

/*
 * A node may speak only for users who may have ranks there. Its messages for other users are ignored, and it
 * gets none about them.
 */

bool comms_user_may_say(struct comms *comms, uid_t uid, uint32_t node, const char *name, uint64_t now_ns)
{
    uint64_t suppressed;
    if (mesh_user_may(comms->mesh, uid, node)) {
        return true;
    }
    if (log_limit_pass(&comms->node_limit, now_ns, &suppressed)) {
        log_warning("node %s: commd ignores what it says of communicator \"%s\" of uid %u: users in "
                    "commd.conf allows that user no ranks there",
                    mesh_node_name(comms->mesh, node), name, (unsigned)uid);
    }
    return false;
}

static void fail_for_node(struct communicator *comm, uint32_t node, uint64_t now_ns)
{
    struct error cause;
    error_set(&cause, STATUS_PERMISSION,
              "communicator \"%s\": uid %u may have no ranks on node %s any more (users in commd.conf)",
              comm->name, (unsigned)comm->terms.owner_uid, mesh_node_name(comm->comms->mesh, node));
    communicator_fail(comm, &cause, COMMS_TELL_NODES, now_ns);
}

static void recheck_forming(struct communicator *comm)
{
    struct comms_claim *claim, *next;
    HASH_ITER (hh, comm->claims, claim, next) {
        if (claim->rank_count > 0 && !mesh_user_may(comm->comms->mesh, comm->terms.owner_uid, claim->node)) {
            comms_formation_drop_claim(comm, claim, NULL);
        }
    }
}

static void recheck(struct communicator *comm, uint64_t now_ns)
{
    uid_t uid = comm->terms.owner_uid;
    if (!mesh_user_may(comm->comms->mesh, uid, MESH_NODE_OWN)) {
        fail_for_node(comm, MESH_NODE_OWN, now_ns);
        return;
    }
    for (uint32_t i = 0; i < comm->node_count; i++) {
        if (!mesh_user_may(comm->comms->mesh, uid, comm->nodes[i].node)) {
            fail_for_node(comm, comm->nodes[i].node, now_ns);
            return;
        }
    }
    if (comm->state == COMMS_COMM_FORMING) {
        recheck_forming(comm);
        communicator_queue(comm); /* the cluster may not be complete any more: see comms_guest_announce */
    }
}

void comms_recheck_users(struct comms *comms, uint64_t now_ns)
{
    struct communicator *comm;
    DL_FOREACH(comms->comms, comm)
    {
        if (comm->state != COMMS_COMM_FAILED) {
            recheck(comm, now_ns);
        }
    }
}
