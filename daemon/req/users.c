#include <stdlib.h>

#include <utlist.h>

#include "daemon/req/req_internal.h"

/*
 * A node speaks only for ranks that it can hold: what it says for a user who may have none there does not
 * count, and of such a user it is told nothing.
 */

static const char *node_name(const struct req *req, uint32_t node)
{
    return node == REQ_NODE_OWN ? mesh_own_name(req->mesh) : mesh_node_name(req->mesh, node);
}

bool req_user_may(const struct req *req, uid_t uid, uint32_t node)
{
    return req->user_may == NULL || req->user_may(req->user_may_context, uid, node_name(req, node));
}

bool req_user_may_say(struct req *req, uid_t uid, uint32_t node, const char *name, uint64_t now_ns)
{
    uint64_t suppressed;
    if (req_user_may(req, uid, node)) {
        return true;
    }
    if (log_limit_pass(&req->node_limit, now_ns, &suppressed)) {
        log_warning(
            "node %s: what it says of communicator \"%s\" of uid %u is ignored: users lets that user have "
            "no ranks there",
            node_name(req, node), name, (unsigned)uid);
    }
    return false;
}

void req_users_broadcast(const struct req_comm *comm, const Commd__Mesh__Message *message)
{
    struct req *req = comm->req;
    if (req->user_may == NULL) {
        mesh_broadcast(req->mesh, message);
        return;
    }
    for (uint32_t node = 0; node < mesh_node_count(req->mesh); node++) {
        if (mesh_node_is_up(req->mesh, node) && req_user_may(req, comm->terms.owner_uid, node)) {
            enum status status = mesh_send(req->mesh, node, message);
            (void)status; /* a node that cannot be told is lost, and node_down follows or was */
        }
    }
}

static void fail_for_node(struct req_comm *comm, uint32_t node, uint64_t now_ns)
{
    struct error cause;
    error_set(&cause, STATUS_PERMISSION,
              "communicator \"%s\": uid %u may have no ranks on node %s any more (users in commd.conf)",
              comm->name, (unsigned)comm->terms.owner_uid, node_name(comm->req, node));
    req_comm_fail(comm, &cause, REQ_TELL_NODES, now_ns);
}

static void recheck_forming(struct req_comm *comm)
{
    struct req_claim *claim, *next;
    HASH_ITER (hh, comm->claims, claim, next) {
        if (claim->rank_count > 0 && !req_user_may(comm->req, comm->terms.owner_uid, claim->node)) {
            req_formation_drop_claim(comm, claim, NULL);
        }
    }
}

static void recheck(struct req_comm *comm, uint64_t now_ns)
{
    uid_t uid = comm->terms.owner_uid;
    if (!req_user_may(comm->req, uid, REQ_NODE_OWN)) {
        fail_for_node(comm, REQ_NODE_OWN, now_ns);
        return;
    }
    for (uint32_t i = 0; i < comm->node_count; i++) {
        if (!req_user_may(comm->req, uid, comm->nodes[i].node)) {
            fail_for_node(comm, comm->nodes[i].node, now_ns);
            return;
        }
    }
    if (comm->state == REQ_COMM_FORMING) {
        recheck_forming(comm);
    }
}

void req_recheck_users(struct req *req, uint64_t now_ns)
{
    struct req_comm *comm;
    DL_FOREACH(req->comms, comm)
    {
        if (comm->state != REQ_COMM_FAILED) {
            recheck(comm, now_ns);
        }
    }
}
