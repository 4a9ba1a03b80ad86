#include <stdlib.h>

#include <utlist.h>

#include "daemon/base/history.h"
#include "daemon/base/log.h"
#include "daemon/comm/comms_internal.h"
#include "daemon/comm/comms_tree.h"
#include "daemon/comm/doubt.h"
#include "daemon/comm/formation.h"
#include "daemon/comm/loss.h"
#include "daemon/comm/meeting.h"
#include "daemon/comm/meeting_relay.h"
#include "daemon/comm/node_cells.h"
#include "daemon/comm/roster.h"

/*
 * A node announces its ranks to all nodes that may have ranks of the user (users.c), as far as it is
 * connected to them; in a cluster that is not complete, it meets the others (meeting.h). Once it knows all
 * ranks, it makes the communicator's id of all nodes' nonces and promises it to those nodes. The communicator
 * is formed once every one of its nodes has promised the same id. A node that takes its promise back, or
 * withdraws, tells all of them. A node that has formed the communicator by then aborts it. So no node stays
 * in a communicator that another node is not part of.
 */

/* --- Claims --- */

struct comms_claim *comms_formation_claim(const struct communicator *comm, uint32_t node)
{
    struct comms_claim *claim;
    HASH_FIND(hh, comm->claims, &node, sizeof node, claim);
    return claim;
}

enum status comms_formation_claim_make(struct communicator *comm, uint32_t node, struct comms_claim **out,
                                       struct error *error)
{
    struct comms_claim *claim = comms_formation_claim(comm, node);
    *out = claim;
    if (claim != NULL) {
        return STATUS_OK;
    }
    enum status status = communicator_charge(comm, COMMS_NODE_COST_BYTES, error);
    if (status != STATUS_OK) {
        return status;
    }
    claim = calloc(1, sizeof *claim);
    if (claim != NULL) {
        claim->node = node;
        HASH_ADD(hh, comm->claims, node, sizeof claim->node, claim);
    }
    if (claim == NULL || !table_has(claim, hh)) {
        free(claim);
        return error_set(error, STATUS_NO_MEMORY, "communicator \"%s\": no memory", comm->name);
    }
    *out = claim;
    return STATUS_OK;
}

void comms_formation_need(struct communicator *comm, struct comms_claim *claim)
{
    if (!claim->needed) {
        claim->needed = true;
        mesh_need(comm->comms->mesh, claim->node, MESH_NEED_BOTH);
    }
}

static void claim_unneed(const struct communicator *comm, struct comms_claim *claim)
{
    if (claim->needed) {
        claim->needed = false;
        mesh_unneed(comm->comms->mesh, claim->node, MESH_NEED_BOTH);
    }
}

static bool claim_has(const struct comms_claim *claim, uint32_t rank)
{
    for (uint32_t i = 0; i < claim->rank_count; i++) {
        if (claim->ranks[i] == rank) {
            return true;
        }
    }
    return false;
}

const struct comms_claim *comms_formation_claimant(const struct communicator *comm, uint32_t rank)
{
    const struct comms_claim *claim, *next;
    HASH_ITER (hh, comm->claims, claim, next) {
        if (claim_has(claim, rank)) {
            return claim;
        }
    }
    return NULL;
}

void comms_formation_drop_claim(struct communicator *comm, struct comms_claim *claim, const char *why)
{
    if (claim->rank_count > 0 && why != NULL) {
        struct comms_text text;
        comms_text_begin(&text, comm->last_loss, sizeof comm->last_loss);
        comms_text_add(&text, "%s", why);
    }
    if (communicator_node_index(comm, claim->node) < comm->node_count) {
        comms_promise_take_back(comm);
    }
    free(claim->ranks);
    claim->ranks = NULL;
    claim->rank_count = 0;
    claim->nonce = 0;
    claim->comm_id = 0;
    communicator_queue(comm);
}

/* --- Announcements --- */

void comms_formation_fill(const struct communicator *comm, struct comms_announcement *out)
{
    commd__mesh__message__init(&out->message);
    commd__mesh__announce__init(&out->body);
    commd__mesh__comm_terms__init(&out->terms);
    comms_terms_to_wire(comm, &out->terms);
    const struct comms_member *member;
    DL_FOREACH(comm->members, member)
    {
        if (!member->refused && member->announced_revision != 0) {
            out->ranks[out->body.n_ranks++] = member->rank;
        }
    }
    out->body.name = (char *)comm->name;
    out->body.owner_uid = comm->terms.owner_uid;
    out->body.terms = &out->terms;
    out->body.nonce = comm->nonce;
    out->body.ranks = out->ranks;
    out->body.revision = comm->revision;
    out->body.latency_ns = comm->latency_ns;
    out->body.bytes_per_s = comm->bytes_per_s;
    out->body.rails = comm->comms->rail_count;
    out->body.says_reach = true;
    out->body.agrees = true;
    out->body.tree = comm->by_tree;
    out->body.comm_id = comm->comm_id;
    out->message.body_case = COMMD__MESH__MESSAGE__BODY_ANNOUNCE;
    out->message.announce = &out->body;
}

void comms_formation_announce_to(struct communicator *comm, uint32_t node)
{
    if (comm->announced) {
        struct comms_announcement announcement;
        comms_formation_fill(comm, &announcement);
        communicator_send(comm, node, &announcement.message);
    }
}

void comms_formation_answer(struct communicator *comm, const Commd__Mesh__Announce *announced, uint32_t node)
{
    struct comms_announcement announcement;
    comms_formation_fill(comm, &announcement);
    announcement.body.answer = true;
    announcement.body.answered_nonce = announced->nonce;
    announcement.body.answered_revision = announced->revision;
    communicator_send(comm, node, &announcement.message);
}

static void announce(struct communicator *comm, uint64_t now_ns)
{
    struct comms_announcement announcement;
    struct comms_member *member;
    comm->revision++;
    DL_FOREACH(comm->members, member)
    {
        if (!member->refused && member->announced_revision == 0) {
            member->announced_revision = comm->revision;
        }
    }
    comm->by_tree = comm->by_tree || comms_makes_few_links(comm->comms, comm->terms.size);
    comm->announced = true;
    if (comm->by_tree) {
        comms_guest_report(comm, now_ns);
        comms_relay_own_report(comm);
        return;
    }
    comms_formation_fill(comm, &announcement);
    mesh_broadcast(comm->comms->mesh, comm->terms.owner_uid, &announcement.message);
}

/* Announces a change of the promise. The ranks are the same, so other nodes need not answer. */
static void update(struct communicator *comm)
{
    struct comms_announcement announcement;
    comms_formation_fill(comm, &announcement);
    announcement.body.answer = true;
    const struct comms_claim *claim, *next;
    HASH_ITER (hh, comm->claims, claim, next) {
        if (claim->rank_count > 0) {
            communicator_send(comm, claim->node, &announcement.message);
        }
    }
}

/* To the nodes to which this node has announced its ranks itself. */
static void withdraw_directly(struct communicator *comm, const Commd__Mesh__Message *message)
{
    const struct comms_claim *claim, *next;
    HASH_ITER (hh, comm->claims, claim, next) {
        if (claim->needed) {
            communicator_send(comm, claim->node, message);
        }
    }
}

void comms_formation_withdraw(struct communicator *comm, const struct error *cause,
                              const struct comms_detail *detail, bool failed)
{
    Commd__Mesh__Failure failure;
    if (!comm->announced) {
        return;
    }
    Commd__Mesh__Withdraw body = COMMD__MESH__WITHDRAW__INIT;
    body.name = (char *)comm->name;
    body.owner_uid = comm->terms.owner_uid;
    body.nonce = comm->nonce;
    body.status = cause->status;
    body.text = (char *)cause->text;
    body.failed = failed;
    if (detail != NULL) {
        comms_detail_to_wire(detail, &failure);
        body.failure = &failure;
    }
    Commd__Mesh__Message message = MESH_MESSAGE(WITHDRAW, withdraw, &body);
    if (comm->state == COMMS_COMM_FORMED || comm->sparse) {
        communicator_broadcast(comm, &message);
    } else if (comm->by_tree) {
        withdraw_directly(comm, &message);
    } else {
        mesh_broadcast(comm->comms->mesh, comm->terms.owner_uid, &message);
    }
    if (comm->by_tree && failed) {
        comms_ends_keep(comm->comms, &comm->key, &body);
    }
    if (comm->by_tree) {
        comms_guest_withdraw(comm, &body);
    }
}

/* --- Which ranks are known --- */

uint8_t *comms_formation_known(const struct communicator *comm, uint32_t *known)
{
    uint8_t *bits = calloc(comm->terms.size / 8 + 1, 1);
    const struct comms_claim *claim, *next;
    const struct comms_member *member;
    uint32_t count = 0;
    if (bits == NULL) {
        return NULL;
    }
    DL_FOREACH(comm->members, member)
    {
        if (!member->refused) {
            bits[member->rank / 8] |= (uint8_t)(1u << member->rank % 8);
            count++;
        }
    }
    HASH_ITER (hh, comm->claims, claim, next) {
        for (uint32_t i = 0; i < claim->rank_count; i++) {
            uint8_t mask = (uint8_t)(1u << claim->ranks[i] % 8);
            count += (bits[claim->ranks[i] / 8] & mask) == 0;
            bits[claim->ranks[i] / 8] |= mask;
        }
    }
    *known = count;
    return bits;
}

/* Whether every rank is claimed exactly once, and all nodes have the same list: each has heard of each other
 * from itself, or all from one roster. */
static bool is_complete(const struct communicator *comm)
{
    uint64_t claimed = comm->rank_count;
    bool heard = true;
    const struct comms_claim *claim, *next;
    HASH_ITER (hh, comm->claims, claim, next) {
        claimed += claim->rank_count;
        heard = heard && (claim->rank_count == 0 || !claim->by_roster);
    }
    if (claimed != comm->terms.size || (!heard && !comm->roster_is_whole)) {
        return false;
    }
    uint32_t known = 0;
    uint8_t *bits = comms_formation_known(comm, &known);
    free(bits);
    return bits != NULL && known == comm->terms.size;
}

void comms_formation_free(struct communicator *comm)
{
    struct comms_claim *claim, *next;
    HASH_ITER (hh, comm->claims, claim, next) {
        HASH_DEL(comm->claims, claim);
        claim_unneed(comm, claim);
        free(claim->ranks);
        comms_doubt_free(comm, claim);
        free(claim);
    }
    comms_promise_free(comm);
}

/* --- Formed --- */

/* The net stage failed with `cause`. If that is only the end of a stream or connection, a better cause may
 * arrive soon. */
static void on_exec_failed(void *context, const struct error *cause, uint64_t now_ns)
{
    struct communicator *comm = context;
    if (comm->exec_failed) {
        return;
    }
    comm->exec_failed = true;
    comm->exec_cause = *cause;
    bool ended = cause->status == STATUS_ABORTED || cause->status == STATUS_NODE_LOST ||
                 cause->status == STATUS_UNREACHABLE;
    comm->exec_cause_ns = ended ? time_after(now_ns, COMMS_BETTER_CAUSE_WAIT_NS) : now_ns;
    communicator_arm(comm);
    communicator_queue(comm);
}

static double worse_latency_s(uint64_t latency_ns, double than_s)
{
    double latency_s = (double)latency_ns * 1e-9;
    return latency_s > than_s ? latency_s : than_s;
}

static double worse_rate(uint64_t bytes_per_s, double than)
{
    return bytes_per_s != 0 && (than == 0 || (double)bytes_per_s < than) ? (double)bytes_per_s : than;
}

/* The worst values that any node measured. All nodes know the same ones, as each node measures once per
 * nonce. */
static struct coll_network agreed_network(const struct communicator *comm)
{
    struct coll_network network = coll_network_default;
    double latency_s = worse_latency_s(comm->latency_ns, 0);
    double rate = worse_rate(comm->bytes_per_s, 0);
    for (uint32_t i = 0; i < comm->node_count; i++) {
        const struct comms_claim *claim = comms_formation_claim(comm, comm->nodes[i].node);
        if (claim != NULL) {
            latency_s = worse_latency_s(claim->latency_ns, latency_s);
            rate = worse_rate(claim->bytes_per_s, rate);
        }
    }
    network.latency_s = latency_s > 0 ? latency_s : network.latency_s;
    network.bandwidth_bytes_per_s = rate > 0 ? rate : network.bandwidth_bytes_per_s;
    return network;
}

static uint32_t agreed_rails(const struct communicator *comm)
{
    uint32_t rails = comm->comms->rail_count;
    for (uint32_t i = 0; i < comm->node_count; i++) {
        const struct comms_claim *claim = comms_formation_claim(comm, comm->nodes[i].node);
        if (claim != NULL && claim->rails < rails) {
            rails = claim->rails;
        }
    }
    return rails > 0 ? rails : 1;
}

/* The mesh's index of each of the communicator's nodes; 0 for this node. The caller frees it. Null without
 * memory. */
static uint32_t *peers_of(const struct communicator *comm)
{
    uint32_t *peers = calloc(comm->node_count, sizeof *peers);
    for (uint32_t i = 0; i < comm->node_count && peers != NULL; i++) {
        peers[i] = i == comm->own_index ? 0 : comm->nodes[i].node;
    }
    return peers;
}

/* What exec and p2p share. */
static enum status make_map(const struct communicator *comm, struct comm_map **out, struct error *error)
{
    uint32_t *peers = peers_of(comm);
    if (peers == NULL) {
        return error_set(error, STATUS_NO_MEMORY, "communicator \"%s\": no memory", comm->name);
    }
    struct comm_map facts = {
        .comm_id = comm->comm_id,
        .owner_uid = comm->terms.owner_uid,
        .name = comm->name,
        .ranks = {.size = comm->terms.size, .node_count = comm->node_count, .node_index = comm->own_index},
        .node_of_rank = comm->node_of_rank,
        .peers = peers,
        .node_names = comm->node_names,
        .account = comm->account,
        .slice_bytes = comm->terms.slice_bytes,
        .rail_count = agreed_rails(comm),
        .few_links = comm->sparse,
        .rails_wait = comm->agrees_rails,
        .network = agreed_network(comm),
        .overrides = &comm->terms.overrides,
    };
    enum status status = comm_map_new(&facts, out, error);
    free(peers);
    return status;
}

static enum status make_exec(struct communicator *comm, struct comm_map *map, struct error *error)
{
    const struct exec_comm_handler handler = {.context = comm,
                                              .failed = on_exec_failed,
                                              .disagreed = comms_dispute_found,
                                              .need = comm->sparse ? comms_links_wanted : NULL,
                                              .early = comms_node_cells_early,
                                              .closing = comms_node_cells_closing};
    return exec_comm_new(comm->comms->exec, map, &handler, &comm->exec, error);
}

static enum status make_p2p(struct communicator *comm, struct comm_map *map, struct error *error)
{
    const struct p2p_comm_handler handler = {
        .context = comm,
        .done = comms_p2p_done,
        .failed = on_exec_failed,
        .need = comm->sparse ? comms_links_wanted : NULL,
    };
    struct budget_account **accounts = calloc((size_t)comm->local_count + 1, sizeof(struct budget_account *));
    if (accounts == NULL) {
        return error_set(error, STATUS_NO_MEMORY, "communicator \"%s\": no memory", comm->name);
    }
    for (uint32_t i = 0; i < comm->local_count; i++) {
        accounts[i] = comm->locals[i] != NULL ? comm->locals[i]->client.account : NULL;
    }
    enum status status = p2p_comm_new(comm->comms->p2p, map, accounts, &handler, &comm->p2p, error);
    free(accounts);
    return status;
}

/* Makes all that carries out operations and messages; if it fails, nothing of it. */
static enum status make_engines(struct communicator *comm, uint64_t now_ns, struct error *error)
{
    struct comm_map *map = NULL;
    comm->agrees_rails = comms_reach_is_agreed(comm);
    comm->ops = calloc(COMMS_PENDING_OPS_MAX, sizeof(struct communicator_op *));
    enum status status =
        comm->ops != NULL ? make_map(comm, &map, error)
                          : error_set(error, STATUS_NO_MEMORY, "communicator \"%s\": no memory", comm->name);
    if (status == STATUS_OK) {
        status = make_exec(comm, map, error);
    }
    if (status == STATUS_OK) {
        status = make_p2p(comm, map, error);
    }
    comm_map_release(map);
    if (status != STATUS_OK) {
        if (comm->exec != NULL) {
            exec_comm_free(comm->exec);
        }
        comm->exec = NULL;
        free(comm->ops);
        comm->ops = NULL;
        return status;
    }
    for (uint32_t rank = 0; rank < comm->terms.size; rank++) {
        if (comm->has_left[rank]) { /* its node had formed the communicator earlier */
            p2p_rank_left(comm->p2p, rank, comm->left_pids[rank], comm->left_messages[rank], now_ns);
        }
    }
    return STATUS_OK;
}

/*
 * Refuses ranks of nodes that came too late. Each node of the communicator refuses the numbers of its own
 * ranks. Together these are all ranks. The connections to nodes without ranks, of which a place told, are not
 * needed any more.
 */
static void refuse_others(struct communicator *comm)
{
    struct comms_claim *claim, *next;
    HASH_ITER (hh, comm->claims, claim, next) {
        comms_doubt_free(comm, claim);
        if (communicator_node_index(comm, claim->node) < comm->node_count) {
            continue;
        }
        comms_refuse_late_ranks(comm, claim);
        claim_unneed(comm, claim);
    }
}

void comms_formation_formed(struct communicator *comm, uint64_t now_ns)
{
    struct error error;
    if (make_engines(comm, now_ns, &error) != STATUS_OK) {
        communicator_fail(comm, &error, COMMS_TELL_NODES, now_ns);
        return;
    }
    refuse_others(comm);
    comms_guest_rest(comm->guest);
    communicator_set_state(comm, COMMS_COMM_FORMED, now_ns);
    comm->comms->totals.formed++;
    struct history_about about = {.kind = HISTORY_COMMUNICATOR_FORMED,
                                  .audience = HISTORY_FOR_USER,
                                  .uid = comm->terms.owner_uid,
                                  .subject = comm->name,
                                  .now_ns = now_ns};
    history_add(&about, "%u ranks, %u here, on %u nodes", comm->terms.size, comm->local_count,
                comm->node_count);
    trace_comm(comm->comm_id, comm->terms.owner_uid, comm->name);
    trace_comm_formed(comm->comm_id, 0, 0, 0, 0, comm->terms.size);
    comms_verdicts_begin(comm, now_ns);
    if (!comm->sparse) {
        comms_reach_begin(comm, now_ns);
    }
    comms_cells_make(comm);
    char left_out[COMMS_LEFT_OUT_BYTES];
    if (communicator_may_log(comm, &comm->comms->formed_log, now_ns, left_out)) {
        log_info("communicator \"%s\" of uid %u formed: %u ranks, %u here, on %u nodes, id %016llx%s",
                 comm->name, comm->terms.owner_uid, comm->terms.size, comm->local_count, comm->node_count,
                 (unsigned long long)comm->comm_id, left_out);
    }
}

void comms_formation_hold_refusals(struct communicator *comm, uint64_t now_ns)
{
    struct comms_member *member, *next;
    comm->refusal_ns = TIME_NEVER;
    comms_promise_take_back(comm);
    DL_FOREACH_SAFE(comm->members, member, next)
    {
        if (member->refusal_waits && !member->refused) {
            struct error cause = member->refusal;
            comms_formation_drop_member(member, &cause, now_ns);
        }
    }
}

/* The promise is made. */
static void promised(struct communicator *comm, uint64_t now_ns)
{
    comm->sparse = comm->roster_is_whole;
    if (comm->sparse) {
        comms_tree_begin(comm, now_ns);
        comms_roster_pass(comm);
    }
}

static void fail_broken(struct communicator *comm, uint64_t now_ns)
{
    struct error error;
    error_set(&error, STATUS_ABORTED, "communicator \"%s\": its nodes had agreed to form it, but %s",
              comm->name, comm->last_loss[0] != '\0' ? comm->last_loss : "one of them cannot any more");
    communicator_fail(comm, &error, COMMS_TELL_NODES, now_ns);
}

void comms_formation_work(struct communicator *comm, uint64_t now_ns)
{
    struct error error;
    if (comm->is_broken) {
        fail_broken(comm, now_ns);
        return;
    }
    if (comm->comm_id == 0 && comm->refusal_ns != TIME_NEVER) {
        comms_formation_hold_refusals(comm, now_ns);
        if (comm->state != COMMS_COMM_FORMING) {
            return;
        }
    }
    if (comm->announce_wanted && mesh_is_crowded(comm->comms->mesh)) { /* formation waits, not the network */
        comm->announce_ns = time_after(now_ns, COMMS_CROWD_WAIT_NS);
        return;
    }
    if (comm->announce_wanted) {
        comm->announce_wanted = false;
        announce(comm, now_ns);
    }
    comms_guest_announce(comm, now_ns);
    if (comm->state != COMMS_COMM_FORMING) {
        return;
    }
    if (comm->comm_id == 0 && is_complete(comm)) {
        if (comms_promise_make(comm, &error) != STATUS_OK) {
            communicator_fail(comm, &error, COMMS_TELL_NODES, now_ns);
            return;
        }
        promised(comm, now_ns);
    }
    if (comm->update_wanted) {
        comm->update_wanted = false;
        if (!comm->sparse) {
            update(comm);
        }
    }
    if (comm->state == COMMS_COMM_FORMING && comm->comm_id != 0 &&
        (comm->sparse ? comms_tree_is_ready(comm) : comms_promise_is_mutual(comm))) {
        comms_loss_set_agrees(comm);
        comms_formation_formed(comm, now_ns);
    }
}
