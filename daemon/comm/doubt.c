#include "daemon/comm/doubt.h"

#include <stdlib.h>
#include <string.h>

#include "daemon/base/log.h"
#include "daemon/comm/formation.h"
#include "daemon/comm/meeting.h"

/* --- What places say --- */

/* In the claim of the named node. */
struct comms_doubt {
    struct error cause;
    bool has_detail;
    struct comms_detail detail;
    uint32_t teller;
    uint64_t until_ns;
};

static void believe(struct communicator *comm, const struct comms_doubt *doubt, uint64_t now_ns)
{
    communicator_fail_with(comm, &doubt->cause, doubt->has_detail ? &doubt->detail : NULL, COMMS_TELL_NOBODY,
                           now_ns);
}

static bool is_lost(const struct comms *comms, uint32_t node)
{
    return !mesh_node_is_up(comms->mesh, node) &&
           (mesh_node_process_ended(comms->mesh, node) || mesh_node_is_out_of_reach(comms->mesh, node));
}

static uint32_t doubts_of(const struct communicator *comm)
{
    const struct comms_claim *claim, *next;
    uint32_t count = 0;
    HASH_ITER (hh, comm->claims, claim, next) {
        count += claim->doubt != NULL;
    }
    return count;
}

/* Asks the named node. */
static void ask(struct communicator *comm, uint32_t node, const struct comms_doubt *doubt, uint64_t now_ns)
{
    struct comms_claim *claim;
    struct error error;
    if (comms_formation_claim_make(comm, node, &claim, &error) != STATUS_OK) {
        communicator_fail(comm, &error, COMMS_TELL_NODES, now_ns);
        return;
    }
    if (claim->doubt != NULL || doubts_of(comm) >= COMMS_DOUBTS_MAX) {
        return;
    }
    claim->doubt = malloc(sizeof *claim->doubt);
    if (claim->doubt == NULL) {
        believe(comm, doubt, now_ns);
        return;
    }
    *claim->doubt = *doubt;
    mesh_need(comm->comms->mesh, node, MESH_NEED_CALL); /* the node may need no connection to this one */
    comms_formation_announce_to(comm, node);
    comm->doubt_ns = time_min(comm->doubt_ns, time_after(now_ns, COMMS_DOUBT_LOOK_NS));
    communicator_arm(comm);
}

/* Each node with ranks would connect to the named one. Returns how many these are at most. */
static uint32_t nodes_most(const struct communicator *comm)
{
    uint32_t nodes = mesh_configured_count(comm->comms->mesh) + 1;
    return comm->terms.size < nodes ? comm->terms.size : nodes;
}

void comms_doubt_begin(struct communicator *comm, uint32_t teller, const Commd__Mesh__Roster *said,
                       uint64_t now_ns)
{
    struct comms *comms = comm->comms;
    struct comms_doubt doubt = {.teller = teller};
    doubt.cause.status = status_from_wire(said->end->status);
    if (doubt.cause.status == STATUS_OK || doubt.cause.status == STATUS_IN_PROGRESS) {
        doubt.cause.status = STATUS_PROTOCOL;
    }
    printable_copy(said->end->text, doubt.cause.text, sizeof doubt.cause.text);
    doubt.has_detail = comms_detail_from_wire(said->end->failure, comm, &doubt.detail) != NULL;
    bool says_lost = doubt.cause.status == STATUS_NODE_LOST || doubt.cause.status == STATUS_UNREACHABLE;
    doubt.until_ns = time_after(now_ns, says_lost ? COMMS_DOUBT_LOST_NS : COMMS_DOUBT_NS);
    uint32_t node;
    bool is_own = strcmp(said->ended_by, mesh_node_name(comms->mesh, teller)) == 0;
    if (is_own || nodes_most(comm) > COMMS_DOUBT_NODES_MAX) {
        believe(comm, &doubt, now_ns);
    } else if (mesh_find_node(comms->mesh, said->ended_by, &node) &&
               mesh_user_may(comms->mesh, comm->terms.owner_uid, node)) {
        ask(comm, node, &doubt, now_ns);
    } /* else: this node, or one that can have no part */
}

void comms_doubt_step(struct communicator *comm, uint64_t now_ns)
{
    const struct comms_claim *claim, *next;
    if (now_ns < comm->doubt_ns) {
        return;
    }
    comm->doubt_ns = TIME_NEVER;
    HASH_ITER (hh, comm->claims, claim, next) {
        if (claim->doubt != NULL && (now_ns >= claim->doubt->until_ns || is_lost(comm->comms, claim->node))) {
            believe(comm, claim->doubt, now_ns);
            return;
        }
        if (claim->doubt != NULL) {
            comm->doubt_ns = time_after(now_ns, COMMS_DOUBT_LOOK_NS);
        }
    }
}

void comms_doubt_answered(struct communicator *comm, struct comms_claim *claim, bool has_ranks,
                          uint64_t now_ns)
{
    struct comms *comms = comm->comms;
    const struct comms_doubt *doubt = claim->doubt;
    if (doubt == NULL) {
        return;
    }
    if (!has_ranks && !mesh_node_offers(comms->mesh, claim->node, MESH_OFFERS_ENDS)) {
        believe(comm, doubt, now_ns); /* it is of an older version, and does not say whether it had any */
        return;
    }
    if (log_limit_pass(&comms->node_limit, now_ns, NULL)) {
        log_warning("communicator \"%s\": node %s says that it ended because of node %s, which denies that",
                    comm->name, mesh_node_name(comms->mesh, doubt->teller),
                    mesh_node_name(comms->mesh, claim->node));
    }
    comms_doubt_free(comm, claim);
    comms_guest_turn(comm->guest, now_ns);
}

bool comms_doubt_confirmed(struct communicator *comm, const struct comms_claim *claim,
                           const struct error *cause, const struct comms_detail *detail, uint64_t now_ns)
{
    if (claim->doubt == NULL) {
        return false;
    }
    communicator_fail_with(comm, cause, detail, COMMS_TELL_NOBODY, now_ns);
    return true;
}

void comms_doubt_free(const struct communicator *comm, struct comms_claim *claim)
{
    if (claim->doubt != NULL) {
        mesh_unneed(comm->comms->mesh, claim->node, MESH_NEED_CALL);
        free(claim->doubt);
        claim->doubt = NULL;
    }
}

/* --- This node's own parts --- */

struct kept_end {
    uint64_t until_ns; /* 0: none */
    struct owned_name key;
    uint64_t nonce;
    struct error cause;
    bool has_detail;
    struct comms_detail detail;
};

struct comms_ends {
    struct kept_end kept[COMMS_ENDS_MAX];
};

static void keep_failure(struct kept_end *kept, const Commd__Mesh__Failure *failure)
{
    struct comms_detail *detail = &kept->detail;
    kept->has_detail = failure != NULL;
    if (failure != NULL) {
        detail->kind = failure->kind;
        detail->seq = failure->seq;
        detail->rank_count = failure->rank_count;
        memcpy(detail->ranks, failure->ranks, failure->n_ranks * sizeof *failure->ranks);
        memcpy(detail->pids, failure->pids, failure->n_pids * sizeof *failure->pids);
        printable_copy(failure->node, detail->node, sizeof detail->node);
    }
}

/* The place for another end of that user: the user's oldest, if it has many, or else the oldest of all. So
 * one user's ends leave room for others. */
static struct kept_end *place_for(struct comms_ends *ends, uint32_t uid)
{
    struct kept_end *oldest = &ends->kept[0], *own = NULL;
    uint32_t own_count = 0;
    for (uint32_t i = 0; i < COMMS_ENDS_MAX; i++) {
        struct kept_end *kept = &ends->kept[i];
        oldest = kept->until_ns < oldest->until_ns ? kept : oldest;
        if (kept->until_ns != 0 && kept->key.owner_uid == uid) {
            own_count++;
            own = own == NULL || kept->until_ns < own->until_ns ? kept : own;
        }
    }
    return own_count >= COMMS_ENDS_USER_MAX ? own : oldest;
}

void comms_ends_keep(struct comms *comms, const struct owned_name *key, const Commd__Mesh__Withdraw *end)
{
    if (comms->ends == NULL) {
        comms->ends = calloc(1, sizeof *comms->ends);
    }
    if (comms->ends == NULL) {
        return; /* without memory, others believe that this node denies it, until their time is over */
    }
    struct kept_end *kept = place_for(comms->ends, key->owner_uid);
    *kept = (struct kept_end){
        .until_ns = time_after(comms->now_ns, COMMS_ENDS_KEPT_NS), .key = *key, .nonce = end->nonce};
    error_set(&kept->cause, (enum status)end->status, "%s", end->text);
    keep_failure(kept, end->failure);
}

static const struct kept_end *find_end(const struct comms *comms, const Commd__Mesh__Announce *announce,
                                       uint64_t now_ns)
{
    const struct kept_end *latest = NULL;
    for (uint32_t i = 0; comms->ends != NULL && i < COMMS_ENDS_MAX; i++) {
        const struct kept_end *kept = &comms->ends->kept[i];
        if (kept->until_ns > now_ns && kept->key.owner_uid == announce->owner_uid &&
            strcmp(kept->key.name, announce->name) == 0 &&
            (latest == NULL || kept->until_ns >= latest->until_ns)) {
            latest = kept;
        }
    }
    return latest;
}

void comms_ends_answer(struct comms *comms, uint32_t node, const Commd__Mesh__Announce *announce,
                       uint64_t now_ns)
{
    const struct kept_end *kept = announce->answer ? NULL : find_end(comms, announce, now_ns);
    Commd__Mesh__Withdraw body = COMMD__MESH__WITHDRAW__INIT;
    Commd__Mesh__Failure failure;
    if (kept == NULL) {
        return;
    }
    body.name = announce->name;
    body.owner_uid = announce->owner_uid;
    body.nonce = kept->nonce;
    body.status = kept->cause.status;
    body.text = (char *)(uintptr_t)kept->cause.text;
    body.failed = true;
    if (kept->has_detail) {
        comms_detail_to_wire(&kept->detail, &failure);
        body.failure = &failure;
    }
    Commd__Mesh__Message message = MESH_MESSAGE(WITHDRAW, withdraw, &body);
    mesh_tell(comms->mesh, node, &message);
}

void comms_ends_free(struct comms *comms)
{
    free(comms->ends);
    comms->ends = NULL;
}
