#include <stdio.h>
#include <stdlib.h>

#include <utlist.h>

#include "daemon/comm/comms_internal.h"
#include "daemon/comm/formation.h"
#include "daemon/comm/meeting.h"

/* How formation fails: ranks that leave, nodes that are lost, deadlines. */

void comms_formation_node_down(struct communicator *comm, uint32_t node, const struct error *lost, bool idle,
                               uint64_t now_ns)
{
    struct comms_claim *claim = comms_formation_claim(comm, node);
    struct comms_detail detail = {0};
    if (claim == NULL || (idle && claim->by_roster)) {
        return;
    }
    if (claim->rank_count == 0 || idle) {
        comms_formation_drop_claim(comm, claim, lost->text);
        claim->acknowledged_revision = 0; /* it may be started again, and know nothing */
        return;
    }
    (void)snprintf(detail.node, sizeof detail.node, "%s", communicator_node_name(comm, node));
    for (uint32_t i = 0; i < claim->rank_count; i++) {
        comms_detail_add(&detail, comm, claim->ranks[i], 0);
    }
    communicator_fail_with(comm, lost, &detail, COMMS_TELL_NODES, now_ns);
}

void comms_formation_drop_member(struct comms_member *member, const struct error *cause, uint64_t now_ns)
{
    struct communicator *comm = member->comm;
    if (comm->comm_id != 0) {
        /* Other nodes may rely on the promise already, so this node's whole part fails. */
        communicator_fail(comm, cause, COMMS_TELL_NODES, now_ns);
        return;
    }
    if (comm->rank_count == 1) {
        comms_formation_withdraw(comm, cause, NULL, false);
        comm->announced = false;
    } else {
        comm->announce_wanted = comm->announce_wanted || member->announced_revision != 0;
    }
    member->refused = true;
    member->refusal = *cause;
    comm->rank_count--;
    if (comm->rank_count == 0) {
        communicator_unname(comm);
        comm->cause = *cause;
        communicator_set_state(comm, COMMS_COMM_FAILED, now_ns);
    }
    communicator_arm(comm);
    communicator_queue(comm);
}

static void add_known_nodes(const struct communicator *comm, struct comms_text *text)
{
    const struct comms_claim *claim, *next;
    comms_text_add(text, "%s", communicator_own_name(comm));
    HASH_ITER (hh, comm->claims, claim, next) {
        if (claim->rank_count > 0) {
            comms_text_add(text, ", %s", communicator_node_name(comm, claim->node));
        }
    }
}

/* Describes what is wrong although no rank is missing. */
static void describe_stuck(const struct communicator *comm, struct comms_text *text)
{
    const struct comms_claim *claim, *next, *other;
    HASH_ITER (hh, comm->claims, claim, next) {
        if (comm->comm_id != 0 && claim->rank_count > 0 && claim->comm_id != comm->comm_id) {
            comms_text_add(text, "node %s has not confirmed", communicator_node_name(comm, claim->node));
            return;
        }
        for (uint32_t i = 0; i < claim->rank_count; i++) {
            other = comms_formation_claimant(comm, claim->ranks[i]);
            const struct comms_member *member;
            DL_FOREACH(comm->members, member)
            {
                if (!member->refused && member->rank == claim->ranks[i]) {
                    comms_text_add(text, "rank %u is claimed by nodes %s and %s", claim->ranks[i],
                                   communicator_own_name(comm), communicator_node_name(comm, claim->node));
                    return;
                }
            }
            if (other != NULL && other != claim) {
                comms_text_add(text, "rank %u is claimed by nodes %s and %s", claim->ranks[i],
                               communicator_node_name(comm, other->node),
                               communicator_node_name(comm, claim->node));
                return;
            }
        }
    }
    comms_text_add(text, "the nodes have not agreed");
}

void comms_formation_deadline(struct communicator *comm, uint64_t now_ns)
{
    const struct comms_member *member, *late = NULL;
    DL_FOREACH(comm->members, member)
    {
        if (!member->refused && now_ns >= member->form_deadline_ns) {
            late = member;
        }
    }
    if (late == NULL) {
        return;
    }
    char why[COMMS_LIST_TEXT_MAX_BYTES];
    char nodes[COMMS_LIST_TEXT_MAX_BYTES / 2];
    struct comms_text text;
    uint32_t known = 0;
    uint8_t *bits = comms_formation_known(comm, &known);
    struct comms_detail detail = {0};
    for (uint32_t rank = 0; bits != NULL && rank < comm->terms.size; rank++) {
        if ((bits[rank / 8] >> (rank % 8) & 1) == 0) {
            comms_detail_add(&detail, comm, rank, 0);
        }
    }
    comms_text_begin(&text, why, sizeof why);
    if (bits != NULL && known < comm->terms.size) {
        comms_text_add(&text, "missing %s ", comm->terms.size - known == 1 ? "rank" : "ranks");
        comms_text_add_ranks(&text, bits, comm->terms.size, false);
        comms_text_add(&text, " of %u", comm->terms.size);
    } else {
        describe_stuck(comm, &text);
    }
    free(bits);
    comms_text_begin(&text, nodes, sizeof nodes);
    add_known_nodes(comm, &text);
    struct error cause;
    char relays[COMMS_LIST_TEXT_MAX_BYTES / 2] = ""; /* one that lies may be at fault */
    comms_text_begin(&text, relays, sizeof relays);
    comms_guest_describe(comm->guest, &text);
    error_set(&cause, STATUS_TIMED_OUT,
              "communicator \"%s\" did not form within %llu ms: %s; nodes with ranks: %s%s%s%.120s",
              comm->name, (unsigned long long)late->form_timeout_ms, why, nodes, relays,
              comm->last_loss[0] != '\0' ? "; " : "", comm->last_loss);
    communicator_fail_with(comm, &cause, &detail, COMMS_TELL_NODES, now_ns);
}
