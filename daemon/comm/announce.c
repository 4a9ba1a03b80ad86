#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <utlist.h>

#include "daemon/base/log.h"
#include "daemon/comm/comms_internal.h"
#include "daemon/comm/doubt.h"
#include "daemon/comm/formation.h"

/*
 * Announcements of other nodes. If two nodes conflict, the one that was first stays. A node refuses a new
 * announcement if the sender had acknowledged this node's ranks before it sent the announcement. If neither
 * node knew of the other, the one whose name sorts first stays.
 */

bool comms_terms_differ(const struct communicator_terms *asked, const struct communicator_terms *held,
                        char *asks, char *has, size_t size)
{
    struct {
        const char *name;
        unsigned long long asked, held;
    } numbers[] = {
        {"size", asked->size, held->size},
        {"op_timeout_ms", asked->op_timeout_ms, held->op_timeout_ms},
        {"slice_bytes", asked->slice_bytes, held->slice_bytes},
        {"minority_continues", asked->minority_continues, held->minority_continues},
    };
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        if (numbers[i].asked != numbers[i].held) {
            (void)snprintf(asks, size, "%s %llu", numbers[i].name, numbers[i].asked);
            (void)snprintf(has, size, "%s %llu", numbers[i].name, numbers[i].held);
            return true;
        }
    }
    if (strcmp(asked->algorithms, held->algorithms) != 0) {
        (void)snprintf(asks, size, "algorithms \"%.60s\"", asked->algorithms);
        (void)snprintf(has, size, "algorithms \"%.60s\"", held->algorithms);
        return true;
    }
    return false;
}

/*
 * Whether two nodes' parts differ only because their configurations do. No rank asked for anything wrong, so
 * it does not matter which one was first: neither part can form the communicator with the other.
 */
static bool settings_differ(const struct communicator_terms *one, const struct communicator_terms *other)
{
    bool slices = one->slice_bytes != other->slice_bytes;
    bool algorithms = strcmp(one->algorithms, other->algorithms) != 0;
    return one->size == other->size && one->op_timeout_ms == other->op_timeout_ms && (slices || algorithms) &&
           (!slices || (one->slice_bytes_of_node && other->slice_bytes_of_node)) &&
           (!algorithms || (one->algorithms_of_node && other->algorithms_of_node));
}

/* --- Checks --- */

static bool ranks_are_sound(const uint32_t *ranks, size_t count, uint32_t size)
{
    for (size_t i = 0; i < count; i++) {
        if (ranks[i] >= size || (i > 0 && ranks[i] <= ranks[i - 1])) {
            return false;
        }
    }
    return true;
}

bool comms_terms_are_sound(const Commd__Mesh__CommTerms *terms)
{
    return terms->size >= 1 && terms->size <= COMM_SIZE_MAX &&
           (terms->algorithms[0] == '\0' || printable_is_name(terms->algorithms, COMMS_ALGORITHMS_MAX_BYTES));
}

/* An announcement without terms is an acknowledgement, and has no ranks. */
bool comms_announce_is_sound(const Commd__Mesh__Announce *announce)
{
    if (!printable_is_name(announce->name, COMM_NAME_MAX_BYTES)) {
        return false;
    }
    const Commd__Mesh__CommTerms *terms = announce->terms;
    if (terms == NULL) {
        return announce->answer && announce->n_ranks == 0;
    }
    return terms->owner_uid == announce->owner_uid && comms_terms_are_sound(terms) && announce->nonce != 0 &&
           announce->n_ranks >= 1 && announce->n_ranks <= COMMS_LOCAL_RANKS_MAX &&
           ranks_are_sound(announce->ranks, announce->n_ranks, terms->size);
}

void comms_terms_from_wire(const Commd__Mesh__CommTerms *from, struct communicator_terms *out)
{
    *out = (struct communicator_terms){.size = from->size,
                                       .owner_uid = from->owner_uid,
                                       .op_timeout_ms = from->op_timeout_ms,
                                       .slice_bytes = from->slice_bytes,
                                       .slice_bytes_of_node = from->slice_bytes_of_node,
                                       .algorithms_of_node = from->algorithms_of_node,
                                       .minority_continues = from->minority_continues};
    (void)snprintf(out->algorithms, sizeof out->algorithms, "%s", from->algorithms);
}

void comms_terms_to_wire(const struct communicator *comm, Commd__Mesh__CommTerms *out)
{
    commd__mesh__comm_terms__init(out);
    out->size = comm->terms.size;
    out->owner_uid = comm->terms.owner_uid;
    out->op_timeout_ms = comm->terms.op_timeout_ms;
    out->slice_bytes = comm->terms.slice_bytes;
    out->algorithms = (char *)comm->terms.algorithms;
    out->slice_bytes_of_node = comm->terms.slice_bytes_of_node;
    out->algorithms_of_node = comm->terms.algorithms_of_node;
    out->minority_continues = comm->terms.minority_continues;
}

/* --- Answers --- */

static void acknowledge(struct comms *comms, uint32_t node, const Commd__Mesh__Announce *announce)
{
    if (announce->answer) {
        return;
    }
    Commd__Mesh__Announce body = COMMD__MESH__ANNOUNCE__INIT;
    body.name = announce->name;
    body.owner_uid = announce->owner_uid;
    body.answer = true;
    body.answered_nonce = announce->nonce;
    body.answered_revision = announce->revision;
    Commd__Mesh__Message message = MESH_MESSAGE(ANNOUNCE, announce, &body);
    mesh_tell(comms->mesh, node, &message);
}

/* A refusal contains its proof: our terms, and in `ranks` those numbers that our ranks have. Without ranks
 * the node's whole part is refused. */
static void send_refusal(const struct communicator *comm, uint32_t node, uint64_t nonce, uint32_t *ranks,
                         uint32_t rank_count, struct error *error)
{
    Commd__Mesh__Refuse body = COMMD__MESH__REFUSE__INIT;
    Commd__Mesh__CommTerms terms;
    comms_terms_to_wire(comm, &terms);
    body.name = (char *)comm->name;
    body.owner_uid = comm->terms.owner_uid;
    body.nonce = nonce;
    body.status = error->status;
    body.text = error->text;
    body.n_ranks = rank_count;
    body.ranks = ranks;
    body.terms = &terms;
    Commd__Mesh__Message message = MESH_MESSAGE(REFUSE, refuse, &body);
    if (log_limit_pass(&comm->comms->refusal_limit, comm->comms->now_ns, NULL)) {
        log_info("communicator \"%s\": node %s refused: %s", comm->name, communicator_node_name(comm, node),
                 error->text);
    }
    mesh_tell(comm->comms->mesh, node, &message);
}

/* rank: null to refuse all ranks of the announcement. */
static void refuse(const struct communicator *comm, uint32_t node, const Commd__Mesh__Announce *announce,
                   uint32_t *rank, struct error *error)
{
    send_refusal(comm, node, announce->nonce, rank, rank != NULL ? 1 : 0, error);
}

/* Whether a node's terms differ from ours. *error gets a text that names both sides. */
static bool terms_contradict(const struct communicator *comm, uint32_t node,
                             const struct communicator_terms *asked, struct error *error)
{
    const char *asker = communicator_node_name(comm, node);
    char asks[96];
    char has[96];
    if (comms_terms_differ(asked, &comm->terms, asks, has, sizeof asks)) {
        error_set(error, STATUS_MISMATCH, "communicator \"%s\": node %s asks for %s, node %s has %s%s",
                  comm->name, asker, asks, communicator_own_name(comm), has,
                  settings_differ(asked, &comm->terms) ? " (commd.conf of the two nodes differs)" : "");
        return true;
    }
    return false;
}

static void rank_taken(const struct comms_member *member, uint32_t node, struct error *error)
{
    const struct communicator *comm = member->comm;
    error_set(error, STATUS_ALREADY_EXISTS,
              "communicator \"%s\": rank %u is taken by pid %d of node %s; node %s asks for it", comm->name,
              member->rank, (int)member->client.pid, communicator_own_name(comm),
              communicator_node_name(comm, node));
}

static struct comms_member *member_of(const struct communicator *comm, uint32_t rank)
{
    struct comms_member *member;
    DL_FOREACH(comm->members, member)
    {
        if (!member->refused && member->rank == rank) {
            return member;
        }
    }
    return NULL;
}

void comms_refuse_late_ranks(struct communicator *comm, const struct comms_claim *claim)
{
    struct error error;
    uint32_t ranks[COMMS_LOCAL_RANKS_MAX];
    uint32_t count = 0;
    for (uint32_t i = 0; i < claim->rank_count && count < COMMS_LOCAL_RANKS_MAX; i++) {
        if (comm->node_of_rank[claim->ranks[i]] == comm->own_index) {
            ranks[count++] = claim->ranks[i];
        }
    }
    if (count > 0) {
        error_set(&error, STATUS_ALREADY_EXISTS,
                  "communicator \"%s\": formed without node %s, rank %u is on node %s", comm->name,
                  communicator_node_name(comm, claim->node), ranks[0], communicator_own_name(comm));
        send_refusal(comm, claim->node, claim->nonce, ranks, count, &error);
    }
}

/* --- A communicator that is formed here --- */

/* Whether all announced ranks have left this communicator. They form the next one of the name, which our
 * ranks may join later. */
static bool have_left(const struct communicator *comm, const Commd__Mesh__Announce *announce)
{
    bool any = false;
    for (size_t i = 0; i < announce->n_ranks && announce->ranks[i] < comm->terms.size; i++) {
        if (!comm->has_left[announce->ranks[i]]) {
            return false;
        }
        any = true;
    }
    return any;
}

static void announce_to_formed(struct communicator *comm, uint32_t node,
                               const Commd__Mesh__Announce *announce, uint64_t now_ns)
{
    struct communicator_terms asked;
    struct error error;
    uint32_t index = communicator_node_index(comm, node);
    if (index < comm->node_count && comm->nodes[index].nonce == announce->nonce) {
        if (announce->comm_id != comm->comm_id) {
            error_set(&error, STATUS_ABORTED,
                      "communicator \"%s\": node %s withdrew while the communicator was being formed",
                      comm->name, communicator_node_name(comm, node));
            communicator_fail(comm, &error, COMMS_TELL_NODES, now_ns);
        }
        return;
    }
    if (announce->answer) {
        return;
    }
    comms_terms_from_wire(announce->terms, &asked);
    bool is_next = have_left(comm, announce);
    if (!is_next && terms_contradict(comm, node, &asked, &error)) {
        refuse(comm, node, announce, NULL, &error);
        return;
    }
    for (size_t i = 0; i < announce->n_ranks && !is_next; i++) {
        const struct comms_member *member = member_of(comm, announce->ranks[i]);
        if (member != NULL) {
            rank_taken(member, node, &error);
            refuse(comm, node, announce, &announce->ranks[i], &error);
        }
    }
    acknowledge(comm->comms, node, announce);
}

/* --- A communicator that is forming here --- */

/*
 * Whether this node's ranks of that revision prevail: the sender knew them before, or our name sorts first.
 */
static bool prevails(const struct communicator *comm, const struct comms_claim *claim, uint64_t revision)
{
    return revision != 0 &&
           (revision <= claim->acknowledged_revision ||
            strcmp(communicator_own_name(comm), communicator_node_name(comm, claim->node)) < 0);
}

static void contradiction(struct communicator *comm, struct comms_claim *claim,
                          const struct communicator_terms *asked, const Commd__Mesh__Announce *announce,
                          struct error *error, uint64_t now_ns)
{
    if (settings_differ(asked, &comm->terms)) {
        refuse(comm, claim->node, announce, NULL, error);
        communicator_fail(comm, error, COMMS_TELL_NODES, now_ns);
        return;
    }
    if (claim->nonce != announce->nonce) {
        comms_formation_drop_claim(comm, claim, NULL);
    }
    if (announce->answer) {
        return; /* an answer to our announcement: one of us will refuse the other */
    }
    if (prevails(comm, claim, comm->announced ? 1 : 0)) {
        refuse(comm, claim->node, announce, NULL, error);
        return;
    }
    acknowledge(comm->comms, claim->node, announce);
    if (!comm->announced) {
        communicator_fail(comm, error, COMMS_TELL_NOBODY, now_ns);
    }
}

static void settle_ranks(struct communicator *comm, const struct comms_claim *claim,
                         const Commd__Mesh__Announce *announce, uint64_t now_ns)
{
    struct error error;
    for (size_t i = 0; i < announce->n_ranks; i++) {
        struct comms_member *member = member_of(comm, announce->ranks[i]);
        if (member == NULL) {
            continue;
        }
        if (prevails(comm, claim, member->announced_revision)) {
            rank_taken(member, claim->node, &error);
            refuse(comm, claim->node, announce, &announce->ranks[i], &error);
        } else if (member->announced_revision == 0) {
            error_set(&error, STATUS_ALREADY_EXISTS,
                      "communicator \"%s\": rank %u is taken by node %s; pid %d of node %s asks for it",
                      comm->name, member->rank, communicator_node_name(comm, claim->node),
                      (int)member->client.pid, communicator_own_name(comm));
            comms_formation_drop_member(member, &error, now_ns);
            if (comm->state != COMMS_COMM_FORMING) {
                return;
            }
        }
    }
}

static bool claim_is_same(const struct comms_claim *claim, const Commd__Mesh__Announce *announce)
{
    return claim->nonce == announce->nonce && claim->rank_count == announce->n_ranks &&
           memcmp(claim->ranks, announce->ranks, announce->n_ranks * sizeof *announce->ranks) == 0;
}

bool comms_formation_claim_store(struct communicator *comm, struct comms_claim *claim,
                                 const Commd__Mesh__Announce *announce, bool by_roster)
{
    if (!claim_is_same(claim, announce)) {
        comms_formation_drop_claim(comm, claim, NULL);
        claim->ranks = malloc(announce->n_ranks * sizeof *claim->ranks);
        if (claim->ranks == NULL) {
            return false;
        }
        memcpy(claim->ranks, announce->ranks, announce->n_ranks * sizeof *claim->ranks);
        claim->rank_count = (uint32_t)announce->n_ranks;
        claim->nonce = announce->nonce;
    }
    if (!by_roster) {
        comms_formation_need(comm, claim);
        claim->by_roster = false;
    }
    claim->revision = announce->revision;
    claim->comm_id = announce->comm_id;
    claim->latency_ns = announce->latency_ns;
    claim->bytes_per_s = announce->bytes_per_s;
    claim->rails = announce->rails;
    claim->says_reach = announce->says_reach;
    claim->agrees = announce->agrees;
    claim->tree = announce->tree;
    return true;
}

static void announce_to_forming(struct communicator *comm, uint32_t node,
                                const Commd__Mesh__Announce *announce, uint64_t now_ns)
{
    struct communicator_terms asked;
    struct error error;
    struct comms_claim *claim;
    if (comms_formation_claim_make(comm, node, &claim, &error) != STATUS_OK) {
        communicator_fail(comm, &error, COMMS_TELL_NODES, now_ns);
        return;
    }
    if (announce->answered_nonce == comm->nonce && announce->answered_revision <= comm->revision &&
        announce->answered_revision > claim->acknowledged_revision) {
        claim->acknowledged_revision = announce->answered_revision;
    }
    if (announce->answer && announce->answered_nonce == comm->nonce) {
        comms_doubt_answered(comm, claim, announce->terms != NULL, now_ns);
    }
    if (announce->terms == NULL || comm->state != COMMS_COMM_FORMING) {
        return;
    }
    comms_terms_from_wire(announce->terms, &asked);
    if (terms_contradict(comm, node, &asked, &error)) {
        contradiction(comm, claim, &asked, announce, &error, now_ns);
        return;
    }
    if (claim->nonce == announce->nonce && announce->revision < claim->revision) {
        return;
    }
    /* With a complete roster, a node that is not in it has a rank that another one has, or the roster is
     * older, and another one follows. */
    bool counts = !comm->roster_is_whole || claim->in_roster;
    if (counts && !comms_formation_claim_store(comm, claim, announce, false)) {
        return;
    }
    if (!announce->answer) {
        settle_ranks(comm, claim, announce, now_ns);
        if (comm->state != COMMS_COMM_FORMING || !comm->announced) {
            acknowledge(comm->comms, node, announce); /* the next tick announces our ranks, if any */
        } else {
            comms_formation_answer(comm, announce, node);
        }
    }
    communicator_queue(comm);
}

void comms_control_announce(struct comms *comms, uint32_t node, const Commd__Mesh__Announce *announce,
                            uint64_t now_ns)
{
    if (announce->terms != NULL && announce->n_ranks == 0) {
        return; /* the node's announced ranks have left, and its others are not announced yet */
    }
    if (!comms_announce_is_sound(announce)) {
        mesh_violation(comms->mesh, node, "a malformed announcement of ranks");
        return;
    }
    if (!comms_user_may_say(comms, announce->owner_uid, node, announce->name, now_ns)) {
        return;
    }
    struct communicator *comm = communicator_find(comms, announce->owner_uid, announce->name);
    if (comm == NULL) {
        comms_ends_answer(comms, node, announce, now_ns); /* before the answer: see doubt.h */
        acknowledge(comms, node, announce);
        comms_drain_answer(comms, node, announce, now_ns);
        return;
    }
    switch (comm->state) {
    case COMMS_COMM_FORMING:
        announce_to_forming(comm, node, announce, now_ns);
        return;
    case COMMS_COMM_FORMED:
        announce_to_formed(comm, node, announce, now_ns);
        return;
    case COMMS_COMM_FAILED: /* not reached: a failed one has no name */
        acknowledge(comms, node, announce);
        return;
    }
}
