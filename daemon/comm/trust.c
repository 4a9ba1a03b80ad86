#include <utlist.h>

#include "daemon/comm/comms_internal.h"
#include "daemon/comm/formation.h"

/*
 * A node may speak only for users who may have ranks there. Its messages for other users are ignored, and it
 * gets none about them.
 */

static const char *node_name(const struct comms *comms, uint32_t node)
{
    return node == COMMS_NODE_OWN ? mesh_own_name(comms->mesh) : mesh_node_name(comms->mesh, node);
}

bool comms_user_may(const struct comms *comms, uid_t uid, uint32_t node)
{
    return comms->user_may == NULL || comms->user_may(comms->user_may_context, uid, node_name(comms, node));
}

bool comms_user_may_say(struct comms *comms, uid_t uid, uint32_t node, const char *name, uint64_t now_ns)
{
    uint64_t suppressed;
    if (comms_user_may(comms, uid, node)) {
        return true;
    }
    if (log_limit_pass(&comms->node_limit, now_ns, &suppressed)) {
        log_warning("node %s: commd ignores what it says of communicator \"%s\" of uid %u: users in "
                    "commd.conf allows that user no ranks there",
                    node_name(comms, node), name, (unsigned)uid);
    }
    return false;
}

void comms_users_broadcast(const struct communicator *comm, const Commd__Mesh__Message *message)
{
    struct comms *comms = comm->comms;
    if (comms->user_may == NULL) {
        mesh_broadcast(comms->mesh, message);
        return;
    }
    for (uint32_t node = 0; node < mesh_node_count(comms->mesh); node++) {
        if (mesh_node_is_up(comms->mesh, node) && comms_user_may(comms, comm->terms.owner_uid, node)) {
            enum status status = mesh_send(comms->mesh, node, message);
            (void)status; /* if this fails the node is lost: node_down has come, or will */
        }
    }
}

static void fail_for_node(struct communicator *comm, uint32_t node, uint64_t now_ns)
{
    struct error cause;
    error_set(&cause, STATUS_PERMISSION,
              "communicator \"%s\": uid %u may have no ranks on node %s any more (users in commd.conf)",
              comm->name, (unsigned)comm->terms.owner_uid, node_name(comm->comms, node));
    communicator_fail(comm, &cause, COMMS_TELL_NODES, now_ns);
}

static void recheck_forming(struct communicator *comm)
{
    struct comms_claim *claim, *next;
    HASH_ITER (hh, comm->claims, claim, next) {
        if (claim->rank_count > 0 && !comms_user_may(comm->comms, comm->terms.owner_uid, claim->node)) {
            comms_formation_drop_claim(comm, claim, NULL);
        }
    }
}

static void recheck(struct communicator *comm, uint64_t now_ns)
{
    uid_t uid = comm->terms.owner_uid;
    if (!comms_user_may(comm->comms, uid, COMMS_NODE_OWN)) {
        fail_for_node(comm, COMMS_NODE_OWN, now_ns);
        return;
    }
    for (uint32_t i = 0; i < comm->node_count; i++) {
        if (!comms_user_may(comm->comms, uid, comm->nodes[i].node)) {
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
