#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <utlist.h>

#include "daemon/base/log.h"
#include "daemon/req/req_internal.h"

/* A cause that came from another node: its status and text, nothing added. */
static void cause_from_wire(const struct req *req, uint32_t node, uint32_t status, const char *text,
                            struct error *out)
{
    out->status = status_from_wire(status);
    if (out->status == STATUS_OK || out->status == STATUS_IN_PROGRESS) {
        out->status = STATUS_PROTOCOL;
    }
    req_text_from_wire(text, out->text, sizeof out->text);
    if (out->text[0] == '\0') {
        error_set(out, out->status, "node %s says no more than: %s", mesh_node_name(req->mesh, node),
                  status_text(out->status));
    }
}

/*
 * A node that may have ranks of the user refuses us for a fact that contradicts what we hold: its terms are
 * not ours, or it holds ranks of ours. *cause gets the fact's status.
 */
static bool refusal_counts(struct req *req, const struct req_comm *comm, uint32_t node,
                           const Commd__Mesh__Refuse *refuse, struct error *cause, uint64_t now_ns)
{
    struct req_comm_terms held;
    char asks[96];
    char has[96];
    if (!req_user_may_say(req, comm->terms.owner_uid, node, comm->name, now_ns)) {
        return false;
    }
    if (refuse->terms == NULL || refuse->terms->owner_uid != comm->terms.owner_uid ||
        !req_terms_are_sound(refuse->terms)) {
        mesh_violation(req->mesh, node, "a refusal that shows no terms");
        return false;
    }
    req_terms_from_wire(refuse->terms, &held);
    bool differs = req_terms_differ(&comm->terms, &held, asks, has, sizeof asks);
    if (!differs && refuse->n_ranks == 0) {
        mesh_violation(req->mesh, node, "a refusal for terms that are the same");
        return false;
    }
    cause->status = differs ? STATUS_MISMATCH : STATUS_ALREADY_EXISTS;
    return true;
}

static void on_refuse(struct req *req, uint32_t node, const Commd__Mesh__Refuse *refuse, uint64_t now_ns)
{
    struct req_comm *comm = req_comm_find(req, refuse->owner_uid, refuse->name);
    struct error cause;
    if (comm == NULL || comm->state != REQ_COMM_FORMING || comm->nonce != refuse->nonce) {
        return;
    }
    cause_from_wire(req, node, refuse->status, refuse->text, &cause);
    if (!refusal_counts(req, comm, node, refuse, &cause, now_ns)) {
        return;
    }
    struct req_member *member;
    DL_FOREACH(comm->members, member)
    {
        bool named = refuse->n_ranks == 0;
        for (size_t i = 0; i < refuse->n_ranks; i++) {
            named = named || refuse->ranks[i] == member->rank;
        }
        if (named && !member->refused && !member->refusal_waits) {
            member->refusal_waits = true;
            member->refusal = cause;
            comm->refusal_ns = time_min(comm->refusal_ns, time_after(now_ns, REQ_REFUSAL_WAIT_NS));
        }
    }
    req_comm_arm(comm);
    req_comm_queue(comm);
}

static void on_withdraw(struct req *req, uint32_t node, const Commd__Mesh__Withdraw *withdraw,
                        uint64_t now_ns)
{
    struct req_comm *comm = req_comm_find(req, withdraw->owner_uid, withdraw->name);
    struct error cause;
    if (comm == NULL) {
        return;
    }
    cause_from_wire(req, node, withdraw->status, withdraw->text, &cause);
    if (comm->state == REQ_COMM_FORMING) {
        struct req_claim *claim = req_formation_claim(comm, node);
        if (claim != NULL && claim->nonce == withdraw->nonce) {
            char why[REQ_LIST_TEXT_MAX_BYTES];
            (void)snprintf(why, sizeof why, "node %s gave up: %.80s", mesh_node_name(req->mesh, node),
                           req_text_without_name(comm->name, cause.text));
            req_formation_drop_claim(comm, claim, why);
        }
        return;
    }
    uint32_t index = req_comm_node_index(comm, node);
    if (comm->state == REQ_COMM_FORMED && index < comm->node_count &&
        comm->nodes[index].nonce == withdraw->nonce) {
        req_comm_fail(comm, &cause, REQ_TELL_NODES, now_ns);
    }
}

/* The communicator of an id, if it is known here. Only its nodes can know the id: another one guesses. */
static struct req_comm *find_by_id(struct req *req, uint64_t comm_id, uint32_t node)
{
    struct req_comm *comm = req_comm_find_id(req, comm_id);
    if (comm != NULL && req_comm_node_index(comm, node) == comm->node_count) {
        mesh_violation(req->mesh, node, "a message of a communicator that it has no part in");
        return NULL;
    }
    return comm;
}

/* The communicator of an id; also one that took its promise of it back, while others have formed it. */
static struct req_comm *find_promised(struct req *req, uint64_t comm_id, uint32_t node)
{
    struct req_comm *comm = req_comm_find_id(req, comm_id);
    if (comm != NULL) {
        return find_by_id(req, comm_id, node);
    }
    HASH_FIND(hh_promise, req->by_promise, &comm_id, sizeof comm_id, comm);
    bool counts = comm != NULL && comm->state == REQ_COMM_FORMING && req_formation_claim(comm, node) != NULL;
    return counts ? comm : NULL;
}

static void on_abort(struct req *req, uint32_t node, const Commd__Mesh__Abort *abort_message, uint64_t now_ns)
{
    struct req_comm *comm = find_promised(req, abort_message->comm_id, node);
    struct error cause;
    if (comm != NULL) {
        cause_from_wire(req, node, abort_message->status, abort_message->text, &cause);
        /* The origin tells everybody; but that our part of what is still being formed is no more, only we can
         * say. */
        req_comm_fail(comm, &cause, comm->state == REQ_COMM_FORMING ? REQ_TELL_NODES : REQ_TELL_NOBODY,
                      now_ns);
    }
}

static void on_leave(struct req *req, uint32_t node, const Commd__Mesh__Leave *leave, uint64_t now_ns)
{
    struct req_comm *comm = find_by_id(req, leave->comm_id, node);
    if (comm == NULL || comm->state == REQ_COMM_FAILED) {
        return;
    }
    uint32_t index = req_comm_node_index(comm, node);
    for (size_t i = 0; i < leave->n_ranks; i++) {
        if (leave->ranks[i] >= comm->terms.size || comm->node_of_rank[leave->ranks[i]] != index) {
            mesh_violation(req->mesh, node, "that a rank leaves which it does not have");
            return;
        }
    }
    for (size_t i = 0; i < leave->n_ranks; i++) {
        req_comm_rank_left(comm, leave->ranks[i], leave->last_seq);
    }
    req_op_check_left(comm, now_ns);
}

static void on_dispute(struct req *req, uint32_t node, const Commd__Mesh__Dispute *dispute, uint64_t now_ns)
{
    struct req_comm *comm = find_by_id(req, dispute->comm_id, node);
    if (dispute->ops < 1 || dispute->ops > REQ_BUCKET_OPS_MAX || dispute->seq < 1 ||
        dispute->seq > UINT64_MAX - dispute->ops) {
        mesh_violation(req->mesh, node, "a dispute on operations that cannot be");
    } else if (comm != NULL) {
        req_dispute_received(comm, dispute, now_ns);
    }
}

static void on_verdict(struct req *req, uint32_t node, const Commd__Mesh__Verdict *verdict, uint64_t now_ns)
{
    struct req_comm *comm = find_by_id(req, verdict->comm_id, node);
    uint32_t index = comm == NULL ? 0 : req_comm_node_index(comm, node);
    if (verdict->ops < 1 || verdict->ops > REQ_BUCKET_OPS_MAX || verdict->seq < 1 ||
        verdict->seq > UINT64_MAX - verdict->ops) {
        mesh_violation(req->mesh, node, "a verdict on operations that cannot be");
    } else if (comm != NULL && (verdict->final ? index != 0 : comm->own_index != 0)) {
        mesh_violation(req->mesh, node, "a verdict that is not its to say, or not ours");
    } else if (comm != NULL) {
        req_verdict_received(comm, verdict, now_ns);
    }
}

void req_message_received(void *context, uint32_t node, const Commd__Mesh__Message *message, uint64_t now_ns)
{
    struct req *req = context;
    req->now_ns = now_ns;
    if (message->body_case == COMMD__MESH__MESSAGE__BODY_ANNOUNCE) {
        req_message_announce(req, node, message->announce, now_ns);
    } else if (message->body_case == COMMD__MESH__MESSAGE__BODY_REFUSE) {
        on_refuse(req, node, message->refuse, now_ns);
    } else if (message->body_case == COMMD__MESH__MESSAGE__BODY_WITHDRAW) {
        on_withdraw(req, node, message->withdraw, now_ns);
    } else if (message->body_case == COMMD__MESH__MESSAGE__BODY_ABORT) {
        on_abort(req, node, message->abort, now_ns);
    } else if (message->body_case == COMMD__MESH__MESSAGE__BODY_LEAVE) {
        on_leave(req, node, message->leave, now_ns);
    } else if (message->body_case == COMMD__MESH__MESSAGE__BODY_DISPUTE) {
        on_dispute(req, node, message->dispute, now_ns);
    } else if (message->body_case == COMMD__MESH__MESSAGE__BODY_VERDICT) {
        on_verdict(req, node, message->verdict, now_ns);
    }
}

/* --- Nodes --- */

/* Fresh, not an answer: who does not fit with the ranks that the node has meanwhile is to be found out, and
 * answered. */
void req_message_node_up(void *context, uint32_t node, uint64_t now_ns)
{
    struct req *req = context;
    struct req_comm *comm;
    exec_node_up(req->exec, node, now_ns);
    DL_FOREACH(req->comms, comm)
    {
        if (comm->state == REQ_COMM_FORMING && comm->rank_count > 0 &&
            req_user_may(req, comm->terms.owner_uid, node)) {
            req_formation_announce_to(comm, node);
        }
    }
}

static void lost_text(const struct req *req, uint32_t node, const struct error *cause, struct error *out)
{
    const char *name = mesh_node_name(req->mesh, node);
    char prefix[NODE_NAME_MAX_BYTES + 16];
    int length = snprintf(prefix, sizeof prefix, "node %s: ", name);
    bool repeats = length > 0 && strncmp(cause->text, prefix, (size_t)length) == 0;
    error_set(out, STATUS_NODE_LOST, "node %s lost: %s", name, repeats ? cause->text + length : cause->text);
}

void req_message_node_down(void *context, uint32_t node, const struct error *cause, uint64_t now_ns)
{
    struct req *req = context;
    struct req_comm *comm;
    struct error lost;
    lost_text(req, node, cause, &lost);
    exec_node_down(req->exec, node, &lost);
    DL_FOREACH(req->comms, comm)
    {
        if (comm->state == REQ_COMM_FORMING) {
            struct req_claim *claim = req_formation_claim(comm, node);
            if (req_comm_node_index(comm, node) < comm->node_count) {
                req_comm_fail(comm, &lost, REQ_TELL_NODES,
                              now_ns); /* others may count on our promise already */
            } else if (claim != NULL) {
                req_formation_drop_claim(comm, claim, lost.text);
                HASH_DEL(comm->claims, claim);
                free(claim);
            }
        } else if (comm->state == REQ_COMM_FORMED) {
            uint32_t index = req_comm_node_index(comm, node);
            if (index == comm->node_count ||
                (comm->nodes[index].left_count == comm->nodes[index].rank_count &&
                 !req_op_any_pending(comm))) {
                continue; /* not needed, or not any more */
            }
            req_comm_fail(comm, &lost, REQ_TELL_NODES, now_ns);
        }
    }
}
