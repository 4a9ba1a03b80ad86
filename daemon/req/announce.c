#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <utlist.h>

#include "daemon/base/log.h"
#include "daemon/req/req_internal.h"

/*
 * Announcements of other nodes. Who was there first stays: a fresh announcement that does not fit is refused
 * by a node whose own ranks the sender knew of (it has acknowledged them) when it spoke. When neither knew of
 * the other, the node with the lower name stays.
 */

bool req_terms_differ(const struct req_comm_terms *asked, const struct req_comm_terms *held, char *asks,
                      char *has, size_t size)
{
    struct {
        const char *name;
        unsigned long long asked, held;
    } numbers[] = {
        {"size", asked->size, held->size},
        {"op_timeout_ms", asked->op_timeout_ms, held->op_timeout_ms},
        {"slice_bytes", asked->slice_bytes, held->slice_bytes},
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

bool req_terms_are_sound(const Commd__Mesh__CommTerms *terms)
{
    return terms->size >= 1 && terms->size <= COMM_SIZE_MAX &&
           (terms->algorithms[0] == '\0' || req_text_is_name(terms->algorithms, REQ_ALGORITHMS_MAX_BYTES));
}

/* An announcement without terms is an acknowledgement: it has no ranks. */
static bool announce_is_sound(const Commd__Mesh__Announce *announce)
{
    if (!req_text_is_name(announce->name, COMM_NAME_MAX_BYTES)) {
        return false;
    }
    const Commd__Mesh__CommTerms *terms = announce->terms;
    if (terms == NULL) {
        return announce->answer && announce->n_ranks == 0;
    }
    return terms->owner_uid == announce->owner_uid && req_terms_are_sound(terms) && announce->nonce != 0 &&
           announce->n_ranks >= 1 && announce->n_ranks <= REQ_LOCAL_RANKS_MAX &&
           ranks_are_sound(announce->ranks, announce->n_ranks, terms->size);
}

void req_terms_from_wire(const Commd__Mesh__CommTerms *from, struct req_comm_terms *out)
{
    *out = (struct req_comm_terms){.size = from->size,
                                   .owner_uid = from->owner_uid,
                                   .op_timeout_ms = from->op_timeout_ms,
                                   .slice_bytes = from->slice_bytes};
    (void)snprintf(out->algorithms, sizeof out->algorithms, "%s", from->algorithms);
}

void req_terms_to_wire(const struct req_comm *comm, Commd__Mesh__CommTerms *out)
{
    commd__mesh__comm_terms__init(out);
    out->size = comm->terms.size;
    out->owner_uid = comm->terms.owner_uid;
    out->op_timeout_ms = comm->terms.op_timeout_ms;
    out->slice_bytes = comm->terms.slice_bytes;
    out->algorithms = (char *)comm->terms.algorithms;
}

/* --- Answers --- */

static void send_to(struct req *req, uint32_t node, const Commd__Mesh__Message *message)
{
    enum status status = mesh_send(req->mesh, node, message);
    (void)status; /* a node that cannot be told is lost, and node_down follows or was */
}

static void acknowledge(struct req *req, uint32_t node, const Commd__Mesh__Announce *announce)
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
    Commd__Mesh__Message message = COMMD__MESH__MESSAGE__INIT;
    message.body_case = COMMD__MESH__MESSAGE__BODY_ANNOUNCE;
    message.announce = &body;
    send_to(req, node, &message);
}

/* The fact that it shows: our terms, and of `ranks` that we hold them; none: all of the part is refused. */
static void send_refusal(const struct req_comm *comm, uint32_t node, uint64_t nonce, uint32_t *ranks,
                         uint32_t rank_count, struct error *error)
{
    Commd__Mesh__Refuse body = COMMD__MESH__REFUSE__INIT;
    Commd__Mesh__CommTerms terms;
    req_terms_to_wire(comm, &terms);
    body.name = (char *)comm->name;
    body.owner_uid = comm->terms.owner_uid;
    body.nonce = nonce;
    body.status = error->status;
    body.text = error->text;
    body.n_ranks = rank_count;
    body.ranks = ranks;
    body.terms = &terms;
    Commd__Mesh__Message message = COMMD__MESH__MESSAGE__INIT;
    message.body_case = COMMD__MESH__MESSAGE__BODY_REFUSE;
    message.refuse = &body;
    if (log_limit_pass(&comm->req->refusal_limit, comm->req->now_ns, NULL)) {
        log_info("communicator \"%s\": node %s refused: %s", comm->name, req_comm_node_name(comm, node),
                 error->text);
    }
    send_to(comm->req, node, &message);
}

/* rank: null for all of them. */
static void refuse(const struct req_comm *comm, uint32_t node, const Commd__Mesh__Announce *announce,
                   uint32_t *rank, struct error *error)
{
    send_refusal(comm, node, announce->nonce, rank, rank != NULL ? 1 : 0, error);
}

/* Whether the terms of a node do not fit ours, with a text that names both sides. */
static bool terms_contradict(const struct req_comm *comm, uint32_t node, const struct req_comm_terms *asked,
                             struct error *error)
{
    const char *asker = req_comm_node_name(comm, node);
    char asks[96];
    char has[96];
    if (req_terms_differ(asked, &comm->terms, asks, has, sizeof asks)) {
        error_set(error, STATUS_MISMATCH, "communicator \"%s\": node %s asks for %s, node %s has %s",
                  comm->name, asker, asks, req_comm_own_name(comm), has);
        return true;
    }
    return false;
}

static void rank_taken(const struct req_member *member, uint32_t node, struct error *error)
{
    const struct req_comm *comm = member->comm;
    error_set(error, STATUS_ALREADY_EXISTS,
              "communicator \"%s\": rank %u is taken by pid %d of node %s; node %s asks for it", comm->name,
              member->rank, (int)member->client.pid, req_comm_own_name(comm), req_comm_node_name(comm, node));
}

static struct req_member *member_of(const struct req_comm *comm, uint32_t rank)
{
    struct req_member *member;
    DL_FOREACH(comm->members, member)
    {
        if (!member->refused && member->rank == rank) {
            return member;
        }
    }
    return NULL;
}

void req_refuse_late_ranks(struct req_comm *comm, const struct req_claim *claim)
{
    struct error error;
    uint32_t ranks[REQ_LOCAL_RANKS_MAX];
    uint32_t count = 0;
    for (uint32_t i = 0; i < claim->rank_count && count < REQ_LOCAL_RANKS_MAX; i++) {
        if (comm->node_of_rank[claim->ranks[i]] == comm->own_index) {
            ranks[count++] = claim->ranks[i];
        }
    }
    if (count > 0) {
        error_set(&error, STATUS_ALREADY_EXISTS,
                  "communicator \"%s\": formed without node %s, rank %u is on node %s", comm->name,
                  req_comm_node_name(comm, claim->node), ranks[0], req_comm_own_name(comm));
        send_refusal(comm, claim->node, claim->nonce, ranks, count, &error);
    }
}

/* --- A communicator that is formed here --- */

/* Ranks that have left this one form the next of the name, which ours will join in their time. */
static bool have_left(const struct req_comm *comm, const Commd__Mesh__Announce *announce)
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

static void announce_to_formed(struct req_comm *comm, uint32_t node, const Commd__Mesh__Announce *announce,
                               uint64_t now_ns)
{
    struct req_comm_terms asked;
    struct error error;
    uint32_t index = req_comm_node_index(comm, node);
    if (index < comm->node_count && comm->nodes[index].nonce == announce->nonce) {
        if (announce->comm_id != comm->comm_id) {
            error_set(&error, STATUS_ABORTED,
                      "communicator \"%s\": node %s took its part back while it was being formed", comm->name,
                      req_comm_node_name(comm, node));
            req_comm_fail(comm, &error, REQ_TELL_NODES, now_ns);
        }
        return;
    }
    if (announce->answer) {
        return;
    }
    req_terms_from_wire(announce->terms, &asked);
    bool is_next = have_left(comm, announce);
    if (!is_next && terms_contradict(comm, node, &asked, &error)) {
        refuse(comm, node, announce, NULL, &error);
        return;
    }
    for (size_t i = 0; i < announce->n_ranks && !is_next; i++) {
        const struct req_member *member = member_of(comm, announce->ranks[i]);
        if (member != NULL) {
            rank_taken(member, node, &error);
            refuse(comm, node, announce, &announce->ranks[i], &error);
        }
    }
    acknowledge(comm->req, node, announce);
}

/* --- One that is being formed --- */

/* Whether this node's ranks of that revision were there before the sender's, or win for our name. */
static bool prevails(const struct req_comm *comm, const struct req_claim *claim, uint64_t revision)
{
    return revision != 0 && (revision <= claim->acknowledged_revision ||
                             strcmp(req_comm_own_name(comm), req_comm_node_name(comm, claim->node)) < 0);
}

static void contradiction(struct req_comm *comm, struct req_claim *claim,
                          const Commd__Mesh__Announce *announce, struct error *error, uint64_t now_ns)
{
    if (claim->nonce != announce->nonce) {
        req_formation_drop_claim(comm, claim, NULL);
    }
    if (announce->answer) {
        return; /* to ours: it will refuse us, or be refused */
    }
    if (prevails(comm, claim, comm->announced ? 1 : 0)) {
        refuse(comm, claim->node, announce, NULL, error);
        return;
    }
    acknowledge(comm->req, claim->node, announce);
    if (!comm->announced) {
        req_comm_fail(comm, error, REQ_TELL_NOBODY, now_ns);
    }
}

static void settle_ranks(struct req_comm *comm, const struct req_claim *claim,
                         const Commd__Mesh__Announce *announce, uint64_t now_ns)
{
    struct error error;
    for (size_t i = 0; i < announce->n_ranks; i++) {
        struct req_member *member = member_of(comm, announce->ranks[i]);
        if (member == NULL) {
            continue;
        }
        if (prevails(comm, claim, member->announced_revision)) {
            rank_taken(member, claim->node, &error);
            refuse(comm, claim->node, announce, &announce->ranks[i], &error);
        } else if (member->announced_revision == 0) {
            error_set(&error, STATUS_ALREADY_EXISTS,
                      "communicator \"%s\": rank %u is taken by node %s; pid %d of node %s asks for it",
                      comm->name, member->rank, req_comm_node_name(comm, claim->node),
                      (int)member->client.pid, req_comm_own_name(comm));
            req_formation_drop_member(member, &error, now_ns);
            if (comm->state != REQ_COMM_FORMING) {
                return;
            }
        }
    }
}

static bool claim_is_same(const struct req_claim *claim, const Commd__Mesh__Announce *announce)
{
    return claim->nonce == announce->nonce && claim->rank_count == announce->n_ranks &&
           memcmp(claim->ranks, announce->ranks, announce->n_ranks * sizeof *announce->ranks) == 0;
}

/* Keeps what the node says. False without memory: the node is then as if it had said nothing. */
static bool claim_store(struct req_comm *comm, struct req_claim *claim, const Commd__Mesh__Announce *announce)
{
    if (!claim_is_same(claim, announce)) {
        req_formation_drop_claim(comm, claim, NULL);
        claim->ranks = malloc(announce->n_ranks * sizeof *claim->ranks);
        if (claim->ranks == NULL) {
            return false;
        }
        memcpy(claim->ranks, announce->ranks, announce->n_ranks * sizeof *claim->ranks);
        claim->rank_count = (uint32_t)announce->n_ranks;
        claim->nonce = announce->nonce;
    }
    claim->revision = announce->revision;
    claim->comm_id = announce->comm_id;
    claim->latency_ns = announce->latency_ns;
    claim->bytes_per_s = announce->bytes_per_s;
    claim->rails = announce->rails;
    return true;
}

static void announce_to_forming(struct req_comm *comm, uint32_t node, const Commd__Mesh__Announce *announce,
                                uint64_t now_ns)
{
    struct req_comm_terms asked;
    struct error error;
    struct req_claim *claim = req_formation_claim_make(comm, node);
    if (claim == NULL) {
        return;
    }
    if (announce->answered_nonce == comm->nonce && announce->answered_revision <= comm->revision &&
        announce->answered_revision > claim->acknowledged_revision) {
        claim->acknowledged_revision = announce->answered_revision;
    }
    if (announce->terms == NULL) {
        return;
    }
    req_terms_from_wire(announce->terms, &asked);
    if (terms_contradict(comm, node, &asked, &error)) {
        contradiction(comm, claim, announce, &error, now_ns);
        return;
    }
    if (claim->nonce == announce->nonce && announce->revision < claim->revision) {
        return;
    }
    if (!claim_store(comm, claim, announce)) {
        return;
    }
    if (!announce->answer) {
        settle_ranks(comm, claim, announce, now_ns);
        if (comm->state != REQ_COMM_FORMING || !comm->announced) {
            acknowledge(comm->req, node, announce); /* our ranks, if any, are announced in the next tick */
        } else {
            req_formation_answer(comm, announce, node);
        }
    }
    req_comm_queue(comm);
}

void req_message_announce(struct req *req, uint32_t node, const Commd__Mesh__Announce *announce,
                          uint64_t now_ns)
{
    if (announce->terms != NULL && announce->n_ranks == 0) {
        return; /* a node's first ranks have left while its others are not announced yet */
    }
    if (!announce_is_sound(announce)) {
        mesh_violation(req->mesh, node, "a malformed announcement of ranks");
        return;
    }
    if (!req_user_may_say(req, announce->owner_uid, node, announce->name, now_ns)) {
        return;
    }
    struct req_comm *comm = req_comm_find(req, announce->owner_uid, announce->name);
    if (comm == NULL) {
        acknowledge(req, node, announce);
        return;
    }
    switch (comm->state) {
    case REQ_COMM_FORMING:
        announce_to_forming(comm, node, announce, now_ns);
        return;
    case REQ_COMM_FORMED:
        announce_to_formed(comm, node, announce, now_ns);
        return;
    case REQ_COMM_FAILED: /* has no name any more */
        acknowledge(req, node, announce);
        return;
    }
}
