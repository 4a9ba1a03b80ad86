#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <utlist.h>

#include "daemon/comm/comms_internal.h"
#include "daemon/comm/comms_tree.h"
#include "daemon/comm/doubt.h"
#include "daemon/comm/formation.h"
#include "daemon/comm/loss.h"
#include "daemon/comm/meeting.h"
#include "daemon/comm/meeting_relay.h"
#include "daemon/comm/roster.h"
#include "daemon/comm/silence.h"
#include "daemon/comm/witness.h"

void comms_violation(struct comms *comms, uint32_t node, const char *what, uint64_t now_ns)
{
    struct error cause;
    if (comms->relaying == NULL) {
        mesh_violation(comms->mesh, node, what);
        return;
    }
    error_set(&cause, STATUS_PROTOCOL, "communicator \"%s\": node %s, as other nodes passed it on, sent %s",
              comms->relaying->name, mesh_node_name(comms->mesh, node), what);
    communicator_fail(comms->relaying, &cause, COMMS_TELL_NODES, now_ns);
}

/* A cause from another node: its status and text, with nothing added. */
static void cause_from_wire(const struct comms *comms, uint32_t node, uint32_t status, const char *text,
                            struct error *out)
{
    out->status = status_from_wire(status);
    if (out->status == STATUS_OK || out->status == STATUS_IN_PROGRESS) {
        out->status = STATUS_PROTOCOL;
    }
    printable_copy(text, out->text, sizeof out->text);
    if (out->text[0] == '\0') {
        error_set(out, out->status, "node %s gives only this reason: %s", mesh_node_name(comms->mesh, node),
                  status_text(out->status));
    }
}

/*
 * Whether a refusal of us is valid: the node may have ranks of the user, and it shows a real conflict. Either
 * its terms differ from ours, or it has ranks with our numbers. *cause gets the conflict's status.
 */
static bool refusal_counts(struct comms *comms, const struct communicator *comm, uint32_t node,
                           const Commd__Mesh__Refuse *refuse, struct error *cause, uint64_t now_ns)
{
    struct communicator_terms held;
    char asks[96];
    char has[96];
    if (!comms_user_may_say(comms, comm->terms.owner_uid, node, comm->name, now_ns)) {
        return false;
    }
    if (refuse->terms == NULL || refuse->terms->owner_uid != comm->terms.owner_uid ||
        !comms_terms_are_sound(refuse->terms)) {
        mesh_violation(comms->mesh, node, "a refusal that shows no terms");
        return false;
    }
    comms_terms_from_wire(refuse->terms, &held);
    bool differs = comms_terms_differ(&comm->terms, &held, asks, has, sizeof asks);
    if (!differs && refuse->n_ranks == 0) {
        mesh_violation(comms->mesh, node, "a refusal for terms that are the same");
        return false;
    }
    cause->status = differs ? STATUS_MISMATCH : STATUS_ALREADY_EXISTS;
    return true;
}

static void on_refuse(struct comms *comms, uint32_t node, const Commd__Mesh__Refuse *refuse, uint64_t now_ns)
{
    struct communicator *comm = communicator_find(comms, refuse->owner_uid, refuse->name);
    struct error cause;
    cause_from_wire(comms, node, refuse->status, refuse->text, &cause);
    if (comms_drain_refused(comm, node, refuse, &cause, now_ns) || comm == NULL ||
        comm->state != COMMS_COMM_FORMING || comm->nonce != refuse->nonce) {
        return;
    }
    if (!refusal_counts(comms, comm, node, refuse, &cause, now_ns)) {
        return;
    }
    struct comms_member *member;
    DL_FOREACH(comm->members, member)
    {
        bool named = refuse->n_ranks == 0;
        for (size_t i = 0; i < refuse->n_ranks; i++) {
            named = named || refuse->ranks[i] == member->rank;
        }
        if (named && !member->refused && !member->refusal_waits) {
            member->refusal_waits = true;
            member->refusal = cause;
            comm->refusal_ns = time_min(comm->refusal_ns, time_after(now_ns, COMMS_REFUSAL_WAIT_NS));
        }
    }
    communicator_arm(comm);
    communicator_queue(comm);
}

static void on_withdraw(struct comms *comms, uint32_t node, const Commd__Mesh__Withdraw *withdraw,
                        uint64_t now_ns)
{
    struct communicator *comm = communicator_find(comms, withdraw->owner_uid, withdraw->name);
    struct error cause;
    if (comm == NULL) {
        return;
    }
    cause_from_wire(comms, node, withdraw->status, withdraw->text, &cause);
    if (comm->state == COMMS_COMM_FORMING) {
        struct comms_claim *claim = comms_formation_claim(comm, node);
        bool ends = withdraw->failed || cause.status == STATUS_SHUTTING_DOWN; /* its ranks do not come back */
        struct comms_detail detail;
        const struct comms_detail *known = comms_detail_from_wire(withdraw->failure, comm, &detail);
        if (claim != NULL && withdraw->failed && comms_doubt_confirmed(comm, claim, &cause, known, now_ns)) {
            return;
        }
        if (claim != NULL && claim->nonce == withdraw->nonce && ends) {
            communicator_fail_with(comm, &cause, known, COMMS_TELL_NODES, now_ns);
        } else if (claim != NULL && claim->nonce == withdraw->nonce) {
            char why[COMMS_LIST_TEXT_MAX_BYTES];
            (void)snprintf(why, sizeof why, "node %s gave up: %.80s", mesh_node_name(comms->mesh, node),
                           comms_text_without_name(comm->name, cause.text));
            comms_formation_drop_claim(comm, claim, why);
        }
        return;
    }
    uint32_t index = communicator_node_index(comm, node);
    if (comm->state == COMMS_COMM_FORMED && index < comm->node_count &&
        comm->nodes[index].nonce == withdraw->nonce) {
        communicator_fail(comm, &cause, COMMS_TELL_NODES, now_ns);
    }
}

/* The communicator of an id, if it is known here. Only its nodes can know the id: another one guesses. */
static struct communicator *find_by_id(struct comms *comms, uint64_t comm_id, uint32_t node)
{
    struct communicator *comm = communicator_find_id(comms, comm_id);
    if (comm != NULL && communicator_node_index(comm, node) == comm->node_count) {
        mesh_violation(comms->mesh, node, "a message about a communicator that it does not belong to");
        return NULL;
    }
    return comm;
}

/* The communicator of an id. Also finds one that has taken its promise of that id back, while other nodes
 * have formed it. */
static struct communicator *find_promised(struct comms *comms, uint64_t comm_id, uint32_t node)
{
    struct communicator *comm = communicator_find_id(comms, comm_id);
    if (comm != NULL) {
        return find_by_id(comms, comm_id, node);
    }
    HASH_FIND(hh_promise, comms->by_promise, &comm_id, sizeof comm_id, comm);
    bool counts =
        comm != NULL && comm->state == COMMS_COMM_FORMING && comms_formation_claim(comm, node) != NULL;
    return counts ? comm : NULL;
}

static void on_abort(struct comms *comms, uint32_t node, const Commd__Mesh__Abort *abort_message,
                     uint64_t now_ns)
{
    struct communicator *comm = find_promised(comms, abort_message->comm_id, node);
    struct error cause;
    struct comms_detail detail;
    if (comm != NULL) {
        cause_from_wire(comms, node, abort_message->status, abort_message->text, &cause);
        /* The origin tells all nodes. But if the communicator is still forming here, only we can withdraw our
         * part. */
        communicator_fail_with(comm, &cause, comms_detail_from_wire(abort_message->failure, comm, &detail),
                               comm->state == COMMS_COMM_FORMING ? COMMS_TELL_NODES : COMMS_TELL_NOBODY,
                               now_ns);
    }
}

static void on_leave(struct comms *comms, uint32_t node, const Commd__Mesh__Leave *leave, uint64_t now_ns)
{
    struct communicator *comm = find_by_id(comms, leave->comm_id, node);
    if (comm == NULL || comm->state == COMMS_COMM_FAILED) {
        return;
    }
    uint32_t index = communicator_node_index(comm, node);
    for (size_t i = 0; i < leave->n_ranks; i++) {
        if (leave->ranks[i] >= comm->terms.size || comm->node_of_rank[leave->ranks[i]] != index) {
            comms_violation(comms, node, "the leave of a rank that it does not have", now_ns);
            return;
        }
    }
    char why[COMMS_LIST_TEXT_MAX_BYTES * 2];
    printable_copy(leave->text, why, sizeof why);
    for (size_t i = 0; i < leave->n_ranks; i++) {
        if (comm->sparse && comm->has_left[leave->ranks[i]]) {
            continue; /* this node has heard how many messages there were: see send_leave */
        }
        comm->left_messages[leave->ranks[i]] = leave->messages;
        int32_t pid = i < leave->n_pids ? leave->pids[i] : 0;
        communicator_rank_left(comm, leave->ranks[i], pid, leave->last_seq,
                               why); /* first: messages that end now fail for that reason */
        if (comm->p2p != NULL) {
            p2p_rank_left(comm->p2p, leave->ranks[i], pid, leave->messages, now_ns);
        }
    }
    comms_op_check_left(comm, now_ns);
    if (comm->member_count == 0) {
        communicator_queue(comm); /* it may not be needed any more */
    }
}

static void on_dispute(struct comms *comms, uint32_t node, const Commd__Mesh__Dispute *dispute,
                       uint64_t now_ns)
{
    struct communicator *comm = find_by_id(comms, dispute->comm_id, node);
    if (dispute->ops < 1 || dispute->ops > OP_BUCKET_OPS_MAX || dispute->seq < 1 ||
        dispute->seq > UINT64_MAX - dispute->ops) {
        comms_violation(comms, node, "a dispute on operations that cannot exist", now_ns);
    } else if (comm != NULL) {
        comms_dispute_received(comm, dispute, now_ns);
    }
}

static void on_verdict(struct comms *comms, uint32_t node, const Commd__Mesh__Verdict *verdict,
                       uint64_t now_ns)
{
    struct communicator *comm = find_by_id(comms, verdict->comm_id, node);
    uint32_t index = comm == NULL ? 0 : communicator_node_index(comm, node);
    if (verdict->ops < 1 || verdict->ops > OP_BUCKET_OPS_MAX || verdict->seq < 1 ||
        verdict->seq > UINT64_MAX - verdict->ops) {
        comms_violation(comms, node, "a verdict on operations that cannot exist", now_ns);
    } else if (comm != NULL && (verdict->final ? index != 0 : comm->own_index != 0)) {
        comms_violation(comms, node, "a verdict that it may not give, or not to this node", now_ns);
    } else if (comm != NULL) {
        comms_verdict_received(comm, verdict, now_ns);
    }
}

static void on_missing(struct comms *comms, uint32_t node, const Commd__Mesh__Missing *missing,
                       uint64_t now_ns)
{
    struct communicator *comm = find_by_id(comms, missing->comm_id, node);
    if (comm != NULL && !comms_missing_received(comm, node, missing, now_ns)) {
        comms_violation(comms, node, "a list of missing ranks that it may not send, or not to this node",
                        now_ns);
    }
}

static void on_reach(struct comms *comms, uint32_t node, const Commd__Mesh__Reach *reach, uint64_t now_ns)
{
    struct communicator *comm = find_by_id(comms, reach->comm_id, node);
    if (comm != NULL && !comms_reach_received(comm, node, reach)) {
        comms_violation(comms, node, "a second list of the rails that it reaches", now_ns);
    }
}

static void on_silence(struct comms *comms, uint32_t node, const Commd__Mesh__Silence *silence,
                       uint64_t now_ns)
{
    struct communicator *comm = find_by_id(comms, silence->comm_id, node);
    if (comm != NULL && !comms_silence_hinted(comm, communicator_node_index(comm, node), now_ns)) {
        comms_violation(comms, node, "a hint that it may not give, or not to this node", now_ns);
    }
}

void comms_control_received(void *context, uint32_t node, const Commd__Mesh__Message *message,
                            uint64_t now_ns)
{
    struct comms *comms = context;
    comms->now_ns = now_ns;
    if (message->body_case == COMMD__MESH__MESSAGE__BODY_ANNOUNCE) {
        comms_control_announce(comms, node, message->announce, now_ns);
    } else if (message->body_case == COMMD__MESH__MESSAGE__BODY_REFUSE) {
        on_refuse(comms, node, message->refuse, now_ns);
    } else if (message->body_case == COMMD__MESH__MESSAGE__BODY_WITHDRAW) {
        on_withdraw(comms, node, message->withdraw, now_ns);
    } else if (message->body_case == COMMD__MESH__MESSAGE__BODY_ABORT) {
        on_abort(comms, node, message->abort, now_ns);
    } else if (message->body_case == COMMD__MESH__MESSAGE__BODY_LEAVE) {
        on_leave(comms, node, message->leave, now_ns);
    } else if (message->body_case == COMMD__MESH__MESSAGE__BODY_DISPUTE) {
        on_dispute(comms, node, message->dispute, now_ns);
    } else if (message->body_case == COMMD__MESH__MESSAGE__BODY_VERDICT) {
        on_verdict(comms, node, message->verdict, now_ns);
    } else if (message->body_case == COMMD__MESH__MESSAGE__BODY_MISSING) {
        on_missing(comms, node, message->missing, now_ns);
    } else if (message->body_case == COMMD__MESH__MESSAGE__BODY_REACH) {
        on_reach(comms, node, message->reach, now_ns);
    } else if (message->body_case == COMMD__MESH__MESSAGE__BODY_AGREE) {
        comms_loss_received(comms, node, message->agree, now_ns);
    } else if (message->body_case == COMMD__MESH__MESSAGE__BODY_NEXT_READY) {
        if (message->next_ready->previous_id == 0) {
            comms_tree_ready_received(comms, node, message->next_ready);
        } else {
            comms_next_received(comms, node, message->next_ready, now_ns);
        }
    } else if (message->body_case == COMMD__MESH__MESSAGE__BODY_SILENCE) {
        on_silence(comms, node, message->silence, now_ns);
    } else if (message->body_case == COMMD__MESH__MESSAGE__BODY_RELAY) {
        comms_tree_received(comms, node, message->relay, now_ns);
    } else if (message->body_case == COMMD__MESH__MESSAGE__BODY_ROSTER) {
        comms_roster_received(comms, node, message->roster, now_ns);
    } else if (message->body_case == COMMD__MESH__MESSAGE__BODY_MEET) {
        comms_meeting_received(comms, node, message->meet, now_ns);
    } else if (message->body_case == COMMD__MESH__MESSAGE__BODY_MET) {
        comms_guest_received(comms, node, message->met, now_ns);
    } else if (message->body_case == COMMD__MESH__MESSAGE__BODY_MEET_MANY) {
        comms_meeting_received_many(comms, node, message->meet_many, now_ns);
    } else if (message->body_case == COMMD__MESH__MESSAGE__BODY_MET_MANY) {
        comms_relay_received(comms, node, message->met_many);
    } else if (message->body_case == COMMD__MESH__MESSAGE__BODY_END_ASK) {
        comms_witness_asked(comms, node, message->end_ask, now_ns);
    } else if (message->body_case == COMMD__MESH__MESSAGE__BODY_END_ANSWER) {
        comms_witness_answered(comms, node, message->end_answer, now_ns);
    }
}

/* --- Nodes --- */

/* Sends a new announcement, not an answer, so that conflicts with the node's current ranks are found, and
 * answered. */
void comms_control_node_up(void *context, uint32_t node, uint64_t now_ns)
{
    struct comms *comms = context;
    struct communicator *comm;
    exec_link_up(comms->exec);
    comms_meeting_node_lost(comms, node, NULL); /* it says Meet again where it still is a guest */
    comms->now_ns = now_ns;
    comms_posts_node_up(comms, node);
    comms_farewells_node_up(comms, node);
    comms_relays_node_up(comms, node);
    comms_witness_node_up(comms, node);
    comms_drain_node_up(comms, node);
    DL_FOREACH(comms->comms, comm)
    {
        comms_guest_node_up(comm->guest, node);
        comms_doubt_node_up(comm, node, now_ns);
        const struct comms_claim *claim = comm->by_tree ? comms_formation_claim(comm, node) : NULL;
        if (comm->state == COMMS_COMM_FORMING && comm->rank_count > 0 &&
            (!comm->by_tree || (claim != NULL && (claim->needed || comms_doubt_announces(claim)))) &&
            mesh_user_may(comms->mesh, comm->terms.owner_uid, node)) {
            comms_formation_announce_to(comm, node);
        }
    }
}

static void lost_text(const struct comms *comms, uint32_t node, const struct error *cause, struct error *out)
{
    const char *name = mesh_node_name(comms->mesh, node);
    char prefix[NODE_NAME_MAX_BYTES + 16];
    int length = snprintf(prefix, sizeof prefix, "node %s: ", name);
    bool repeats = length > 0 && strncmp(cause->text, prefix, (size_t)length) == 0;
    error_set(out, STATUS_NODE_LOST, "node %s lost: %s", name, repeats ? cause->text + length : cause->text);
}

void comms_control_node_down(void *context, uint32_t node, const struct error *cause, uint64_t now_ns)
{
    struct comms *comms = context;
    struct communicator *comm;
    struct error lost;
    comms->now_ns = now_ns;
    lost_text(comms, node, cause, &lost);
    if (cause->status != STATUS_UNREACHABLE) { /* otherwise nobody needed the connection */
        comms_meeting_node_lost(comms, node, &lost);
        comms_relays_node_lost(comms, node, &lost, now_ns);
    }
    DL_FOREACH(comms->comms, comm)
    {
        comms_guest_node_down(comm->guest, node, now_ns);
        if (comm->sparse && cause->status == STATUS_UNREACHABLE && !comms_link_is_needed(comm, node)) {
            continue; /* nobody needed the connection, and the node runs */
        }
        comms_loss_node_down(comm, node, now_ns);
        if (comm->state == COMMS_COMM_FORMING && !comms_is_next(comm)) {
            comms_formation_node_down(comm, node, &lost, cause->status == STATUS_UNREACHABLE, now_ns);
        } else if (comm->state != COMMS_COMM_FAILED) {
            uint32_t index = communicator_node_index(comm, node);
            if (index == comm->node_count ||
                (comm->state == COMMS_COMM_FORMED &&
                 comm->nodes[index].left_count == comm->nodes[index].rank_count &&
                 !comms_tree_passes(comm, index) && !comms_op_any_pending(comm))) {
                if (index < comm->node_count) {
                    p2p_node_lost(comm->p2p, index, now_ns);
                }
                continue; /* the node is not needed, or not any more */
            }
            struct comms_detail detail = {0};
            comms_detail_add_node(&detail, comm, index);
            communicator_fail_with(comm, &lost, &detail, COMMS_TELL_NODES, now_ns);
        }
    }
}
