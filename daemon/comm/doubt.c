#include "daemon/comm/doubt.h"

#include <stdlib.h>
#include <string.h>

#include "daemon/base/log.h"
#include "daemon/comm/formation.h"
#include "daemon/comm/meeting.h"
#include "daemon/comm/witness.h"

/* --- What places say --- */

/* In the claim of the named node. */
struct comms_doubt {
    struct error cause;
    bool has_detail;
    struct comms_detail detail;
    uint32_t teller;
    bool says_lost;
    uint64_t until_ns;
    bool by_witness;    /* it asks by EndAsk; otherwise it has announced its ranks to the named node */
    bool needs;         /* then: it needs the connection to `asked` */
    uint32_t asked;     /* then: a witness, or the named node itself */
    uint32_t asked_one; /* then: the first witness; the named node: there was none */
    bool is_second;     /* then: `asked` is the second witness */
    bool was_denied;    /* then: the first witness has said that the named node denies it */
};

static void cause_from_end(const Commd__Mesh__Withdraw *end, struct error *out)
{
    out->status = status_from_wire(end->status);
    if (out->status == STATUS_OK || out->status == STATUS_IN_PROGRESS) {
        out->status = STATUS_PROTOCOL;
    }
    printable_copy(end->text, out->text, sizeof out->text);
}

static void believe(struct communicator *comm, const struct comms_doubt *doubt, uint64_t now_ns)
{
    communicator_fail_with(comm, &doubt->cause, doubt->has_detail ? &doubt->detail : NULL, COMMS_TELL_NOBODY,
                           now_ns);
}

bool comms_doubt_is_lost(const struct comms *comms, uint32_t node)
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

/* Null: nothing is to be asked. Otherwise the doubt is the claim's, and the node is to be asked. */
static struct comms_claim *keep(struct communicator *comm, uint32_t node, const struct comms_doubt *doubt,
                                uint64_t now_ns)
{
    struct comms_claim *claim = comms_formation_claim(comm, node);
    struct error error;
    if ((claim != NULL && claim->doubt != NULL) || doubts_of(comm) >= COMMS_DOUBTS_MAX ||
        (claim == NULL && HASH_COUNT(comm->claims) >= comm->terms.size + COMMS_DOUBTED_MAX)) {
        return NULL;
    }
    if (comms_formation_claim_make(comm, node, &claim, &error) != STATUS_OK) {
        communicator_fail(comm, &error, COMMS_TELL_NODES, now_ns);
        return NULL;
    }
    claim->doubt = malloc(sizeof *claim->doubt);
    if (claim->doubt == NULL) {
        believe(comm, doubt, now_ns);
        return NULL;
    }
    *claim->doubt = *doubt;
    comm->doubt_ns = time_min(comm->doubt_ns, time_after(now_ns, COMMS_DOUBT_LOOK_NS));
    communicator_arm(comm);
    return claim;
}

/* Asks the named node by an announcement. */
static void ask(struct communicator *comm, const struct comms_claim *claim)
{
    mesh_need(comm->comms->mesh, claim->node, MESH_NEED_CALL); /* it may need no connection to this one */
    comms_formation_announce_to(comm, claim->node);
}

/* The named node denies it. */
static void denied(struct communicator *comm, struct comms_claim *claim, uint64_t now_ns)
{
    struct comms *comms = comm->comms;
    if (log_limit_pass(&comms->node_limit, now_ns, NULL)) {
        log_warning("communicator \"%s\": node %s says that it ended because of node %s, which denies that",
                    comm->name, mesh_node_name(comms->mesh, claim->doubt->teller),
                    mesh_node_name(comms->mesh, claim->node));
    }
    comms_doubt_free(comm, claim);
    comms_guest_turn(comm->guest, now_ns);
}

/* --- Asking witnesses --- */

static void let_go(const struct comms *comms, struct comms_doubt *doubt)
{
    if (doubt->needs) {
        mesh_unneed(comms->mesh, doubt->asked, MESH_NEED_CALL);
        doubt->needs = false;
    }
}

/* The node that is asked can tell nothing, or is an older one. Returns true if another one is to be asked;
 * otherwise the doubt is over. */
static bool has_another(struct communicator *comm, struct comms_claim *claim, uint64_t now_ns)
{
    struct comms_doubt *doubt = claim->doubt;
    if (!doubt->is_second && doubt->asked != claim->node) {
        doubt->is_second = true;
        return true;
    }
    if (doubt->was_denied) {
        denied(comm, claim, now_ns);
    } else {
        believe(comm, doubt, now_ns);
    }
    return false;
}

/* The node that is asked is up. Returns false if it is of an older version. */
static bool send_ask(const struct communicator *comm, const struct comms_claim *claim)
{
    const struct comms_doubt *doubt = claim->doubt;
    if (!mesh_node_offers(comm->comms->mesh, doubt->asked, MESH_OFFERS_WITNESS)) {
        return false;
    }
    comms_witness_ask(comm, doubt->asked, claim->node, doubt->says_lost);
    return true;
}

/* Asks the first witness or the second one; the named node itself if it is connected, or if this node is the
 * witness, or if there is none. */
static void ask_witness(struct communicator *comm, struct comms_claim *claim, uint64_t now_ns)
{
    const struct mesh *mesh = comm->comms->mesh;
    struct comms_doubt *doubt = claim->doubt;
    do {
        const struct comms_witness_wish wish = {
            .comm = comm, .about = claim->node, .teller = doubt->teller, .except = doubt->asked_one};
        let_go(comm->comms, doubt);
        if ((mesh_node_is_up(mesh, claim->node) &&
             mesh_node_offers(mesh, claim->node, MESH_OFFERS_WITNESS)) ||
            !comms_witness_choose(&wish, &doubt->asked) || doubt->asked == MESH_NODE_OWN) {
            doubt->asked = claim->node;
        }
        doubt->asked_one = doubt->is_second ? doubt->asked_one : doubt->asked;
        doubt->until_ns = time_after(now_ns, doubt->says_lost ? COMMS_DOUBT_LOST_NS : COMMS_DOUBT_NS);
        if (doubt->asked != claim->node) {
            doubt->until_ns = time_after(doubt->until_ns, COMMS_WITNESS_MORE_NS);
        }
        doubt->needs = true;
        mesh_need(comm->comms->mesh, doubt->asked, MESH_NEED_CALL);
    } while (mesh_node_is_up(mesh, doubt->asked) && !send_ask(comm, claim) &&
             has_another(comm, claim, now_ns));
}

void comms_doubt_node_up(struct communicator *comm, uint32_t node, uint64_t now_ns)
{
    struct comms_claim *claim, *next;
    if (comm->state != COMMS_COMM_FORMING || comm->doubt_ns == TIME_NEVER) {
        return; /* nothing is in doubt */
    }
    HASH_ITER (hh, comm->claims, claim, next) {
        if (claim->doubt != NULL && claim->doubt->by_witness && claim->doubt->asked == node &&
            !send_ask(comm, claim) && has_another(comm, claim, now_ns)) {
            ask_witness(comm, claim, now_ns);
        }
        if (comm->state != COMMS_COMM_FORMING) {
            return; /* the place was believed */
        }
    }
}

/* The node that was asked has answered that the named one denies it. One witness may lie: two must say so. */
static void heard_denial(struct communicator *comm, struct comms_claim *claim, uint64_t now_ns)
{
    struct comms_doubt *doubt = claim->doubt;
    bool is_enough = doubt->is_second || doubt->asked == claim->node;
    doubt->was_denied = true;
    if (is_enough) {
        denied(comm, claim, now_ns);
    } else if (has_another(comm, claim, now_ns)) {
        ask_witness(comm, claim, now_ns);
    }
}

void comms_doubt_heard(struct comms *comms, uint32_t node, uint32_t about,
                       const Commd__Mesh__EndAnswer *answer, uint64_t now_ns)
{
    struct communicator *comm = communicator_find(comms, answer->owner_uid, answer->name);
    struct comms_claim *claim =
        comm != NULL && comm->state == COMMS_COMM_FORMING ? comms_formation_claim(comm, about) : NULL;
    struct comms_doubt *doubt = claim != NULL ? claim->doubt : NULL;
    if (doubt == NULL || !doubt->by_witness || doubt->asked != node) {
        return; /* nobody has asked, or it is over already */
    }
    if (answer->denies) {
        heard_denial(comm, claim, now_ns);
        return;
    }
    if (answer->end != NULL) {
        cause_from_end(answer->end, &doubt->cause);
        doubt->has_detail = comms_detail_from_wire(answer->end->failure, comm, &doubt->detail) != NULL;
    } else if (doubt->was_denied) {
        denied(comm, claim, now_ns);
        return;
    }
    believe(comm, doubt, now_ns);
}

/* --- Places and relays --- */

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
    struct comms_claim *claim;
    struct comms_doubt doubt = {.teller = teller, .by_witness = nodes_most(comm) > COMMS_DOUBT_NODES_MAX};
    cause_from_end(said->end, &doubt.cause);
    doubt.has_detail = comms_detail_from_wire(said->end->failure, comm, &doubt.detail) != NULL;
    doubt.says_lost = doubt.cause.status == STATUS_NODE_LOST || doubt.cause.status == STATUS_UNREACHABLE;
    doubt.until_ns = time_after(now_ns, doubt.says_lost ? COMMS_DOUBT_LOST_NS : COMMS_DOUBT_NS);
    uint32_t node;
    if (strcmp(said->ended_by, mesh_node_name(comms->mesh, teller)) == 0) {
        believe(comm, &doubt, now_ns);
        return;
    }
    if (!mesh_find_node(comms->mesh, said->ended_by, &node) ||
        !mesh_user_may(comms->mesh, comm->terms.owner_uid, node)) {
        return; /* this node, or one that can have no part */
    }
    doubt.asked_one = node;
    claim = keep(comm, node, &doubt, now_ns);
    if (claim != NULL && doubt.by_witness) {
        ask_witness(comm, claim, now_ns);
    } else if (claim != NULL) {
        ask(comm, claim);
    }
}

/* Looks at one doubt. */
static void look(struct communicator *comm, struct comms_claim *claim, uint64_t now_ns)
{
    const struct comms_doubt *doubt = claim->doubt;
    bool is_over = now_ns >= doubt->until_ns;
    if (comms_doubt_is_lost(comm->comms, claim->node) || (is_over && !doubt->by_witness)) {
        believe(comm, doubt, now_ns);
    } else if ((is_over || (doubt->by_witness && comms_doubt_is_lost(comm->comms, doubt->asked))) &&
               has_another(comm, claim, now_ns)) {
        ask_witness(comm, claim, now_ns);
    }
}

void comms_doubt_step(struct communicator *comm, uint64_t now_ns)
{
    struct comms_claim *claim, *next;
    if (now_ns < comm->doubt_ns) {
        return;
    }
    comm->doubt_ns = TIME_NEVER;
    HASH_ITER (hh, comm->claims, claim, next) {
        if (claim->doubt != NULL) {
            look(comm, claim, now_ns);
        }
        if (comm->state != COMMS_COMM_FORMING) {
            return; /* the place was believed */
        }
        if (claim->doubt != NULL) {
            comm->doubt_ns = time_after(now_ns, COMMS_DOUBT_LOOK_NS);
        }
    }
}

bool comms_doubt_announces(const struct comms_claim *claim)
{
    return claim->doubt != NULL && !claim->doubt->by_witness;
}

void comms_doubt_answered(struct communicator *comm, struct comms_claim *claim, bool has_ranks,
                          uint64_t now_ns)
{
    if (claim->doubt == NULL) {
        return;
    }
    if (!has_ranks && !mesh_node_offers(comm->comms->mesh, claim->node, MESH_OFFERS_ENDS)) {
        believe(comm, claim->doubt, now_ns); /* it is older, and does not say whether it had any */
        return;
    }
    denied(comm, claim, now_ns);
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
    struct comms_doubt *doubt = claim->doubt;
    if (doubt == NULL) {
        return;
    }
    if (doubt->by_witness) {
        let_go(comm->comms, doubt);
    } else {
        mesh_unneed(comm->comms->mesh, claim->node, MESH_NEED_CALL);
    }
    free(doubt);
    claim->doubt = NULL;
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

static const struct kept_end *find_end(const struct comms *comms, uint32_t owner_uid, const char *name,
                                       uint64_t now_ns)
{
    const struct kept_end *latest = NULL;
    for (uint32_t i = 0; comms->ends != NULL && i < COMMS_ENDS_MAX; i++) {
        const struct kept_end *kept = &comms->ends->kept[i];
        if (kept->until_ns > now_ns && kept->key.owner_uid == owner_uid &&
            strcmp(kept->key.name, name) == 0 && (latest == NULL || kept->until_ns >= latest->until_ns)) {
            latest = kept;
        }
    }
    return latest;
}

bool comms_ends_fill(const struct comms *comms, uint32_t owner_uid, const char *name, uint64_t now_ns,
                     Commd__Mesh__Withdraw *out, Commd__Mesh__Failure *failure)
{
    const struct kept_end *kept = find_end(comms, owner_uid, name, now_ns);
    if (kept == NULL) {
        return false;
    }
    commd__mesh__withdraw__init(out);
    out->name = (char *)(uintptr_t)kept->key.name;
    out->owner_uid = owner_uid;
    out->nonce = kept->nonce;
    out->status = kept->cause.status;
    out->text = (char *)(uintptr_t)kept->cause.text;
    out->failed = true;
    if (kept->has_detail) {
        comms_detail_to_wire(&kept->detail, failure);
        out->failure = failure;
    }
    return true;
}

void comms_ends_answer(struct comms *comms, uint32_t node, const Commd__Mesh__Announce *announce,
                       uint64_t now_ns)
{
    Commd__Mesh__Withdraw body;
    Commd__Mesh__Failure failure;
    if (!announce->answer &&
        comms_ends_fill(comms, announce->owner_uid, announce->name, now_ns, &body, &failure)) {
        Commd__Mesh__Message message = MESH_MESSAGE(WITHDRAW, withdraw, &body);
        mesh_tell(comms->mesh, node, &message);
    }
}

void comms_ends_free(struct comms *comms)
{
    free(comms->ends);
    comms->ends = NULL;
}
