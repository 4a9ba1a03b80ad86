#include <stdlib.h>
#include <string.h>

#include <utlist.h>

#include "daemon/base/hash.h"
#include "daemon/comm/comms_tree.h"
#include "daemon/comm/formation.h"
#include "daemon/comm/loss.h"

/* Generations that follow a verdict: loss.h. */

/* --- Construction --- */

static uint32_t survivors_below(const struct communicator *comm, uint32_t rank)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < rank; i++) {
        count += !comms_loss_has_lost(comm, i);
    }
    return count;
}

static uint64_t next_id(const struct communicator *comm)
{
    const struct agreement_value *verdict = comm->loss->verdict;
    uint64_t numbers[3] = {comm->comm_id, verdict->last, verdict->generation};
    uint8_t bytes[sizeof numbers];
    for (unsigned i = 0; i < sizeof bytes; i++) {
        bytes[i] = (uint8_t)(numbers[i / 8] >> (8 * (i % 8)));
    }
    uint64_t id = hash_bytes(0, bytes, sizeof bytes);
    id = hash_bytes(id, verdict->lost, agreement_bits_bytes(comm->terms.size));
    return id != 0 ? id : 1;
}

/* A member that is still there pays for the next generation. */
static struct budget_account *payer(const struct communicator *comm)
{
    const struct comms_member *member;
    DL_FOREACH(comm->members, member)
    {
        if (!member->refused && !comms_loss_has_lost(comm, member->rank)) {
            return member->client.account;
        }
    }
    return comm->account;
}

static bool next_allocate(struct communicator *next, const struct communicator *from)
{
    next->nodes = calloc(from->node_count, sizeof *next->nodes);
    next->node_names = calloc(from->node_count, sizeof *next->node_names);
    next->node_of_rank = calloc(next->terms.size, sizeof *next->node_of_rank);
    next->has_left = calloc(next->terms.size, sizeof *next->has_left);
    next->left_messages = calloc(next->terms.size, sizeof *next->left_messages);
    next->left_pids = calloc(next->terms.size, sizeof *next->left_pids);
    next->locals = calloc(next->terms.size, sizeof(struct comms_member *));
    return next->nodes != NULL && next->node_names != NULL && next->node_of_rank != NULL &&
           next->has_left != NULL && next->left_messages != NULL && next->left_pids != NULL &&
           next->locals != NULL;
}

/* Nodes are ordered by their lowest ranks, as ever. */
static void next_add_rank(struct communicator *next, const struct communicator *from, uint32_t old_rank,
                          uint32_t rank)
{
    const struct communicator_node *was = &from->nodes[from->node_of_rank[old_rank]];
    uint32_t index = communicator_node_index(next, was->node);
    if (index == next->node_count) {
        next->nodes[index] =
            (struct communicator_node){.node = was->node, .nonce = was->nonce, .lowest_rank = rank};
        next->node_names[index] = from->node_names[from->node_of_rank[old_rank]];
        next->own_index = was->node == MESH_NODE_OWN ? index : next->own_index;
        next->node_count++;
    }
    next->nodes[index].rank_count++;
    next->node_of_rank[rank] = index;
    next->local_count += was->node == MESH_NODE_OWN;
}

static bool next_copy_claims(struct communicator *next, const struct communicator *from)
{
    struct error error;
    for (uint32_t i = 0; i < next->node_count; i++) {
        struct comms_claim *claim;
        const struct comms_claim *was = comms_formation_claim(from, next->nodes[i].node);
        if (i == next->own_index || was == NULL) {
            continue;
        }
        if (comms_formation_claim_make(next, next->nodes[i].node, &claim, &error) != STATUS_OK) {
            return false;
        }
        if (!from->sparse) {
            comms_formation_need(next, claim);
        }
        claim->latency_ns = was->latency_ns;
        claim->bytes_per_s = was->bytes_per_s;
        claim->rails = was->rails;
        claim->says_reach = was->says_reach;
        claim->agrees = was->agrees;
    }
    next->latency_ns = from->latency_ns;
    next->bytes_per_s = from->bytes_per_s;
    return true;
}

/* What is known already: nodes that are down, ranks that have left, nodes that are ready. */
static void next_copy_state(struct communicator *next, const struct communicator *from)
{
    for (uint32_t i = 0; i < from->node_count; i++) {
        uint32_t index = communicator_node_index(next, from->nodes[i].node);
        if (index < next->node_count) {
            next->loss->nodes[index].down = from->loss->nodes[i].down;
            next->loss->nodes[index].dead = from->loss->nodes[i].dead;
            next->loss->nodes[index].ready = from->loss->nodes[i].next_id == next->comm_id;
        }
    }
    for (uint32_t rank = 0, at = 0; rank < from->terms.size; rank++) {
        if (comms_loss_has_lost(from, rank)) {
            continue;
        }
        if (agreement_bit(from->loss->gone, rank)) {
            agreement_bit_set(next->loss->gone, at);
        }
        at++;
    }
}

static bool next_fill(struct communicator *next, struct communicator *from)
{
    if (!next_allocate(next, from)) {
        return false;
    }
    for (uint32_t rank = 0, at = 0; rank < from->terms.size; rank++) {
        if (!comms_loss_has_lost(from, rank)) {
            next_add_rank(next, from, rank, at++);
        }
    }
    if (!comms_loss_new(next) || !next_copy_claims(next, from)) {
        return false;
    }
    next->generation = from->loss->verdict->generation + 1;
    next->comm_id = next_id(from);
    next->loss->is_next = true;
    next->loss->agrees = next->node_count > 1;
    next->loss->previous_id = from->comm_id;
    next->sparse = from->sparse;
    if (communicator_find_id(next->comms, next->comm_id) != NULL) {
        return false;
    }
    HASH_ADD(hh_id, next->comms->by_id, comm_id, sizeof next->comm_id, next);
    next->has_id = table_has(next, hh_id);
    return next->has_id;
}

struct communicator *comms_next_of(struct communicator *comm, uint64_t now_ns)
{
    struct comms_loss *loss = comm->loss;
    struct communicator_terms terms = comm->terms;
    struct communicator *next = NULL;
    struct error error;
    if (loss->next != NULL || loss->next_over || loss->verdict == NULL || loss->verdict->minority ||
        agreement_bit(loss->verdict->down, comm->own_index)) {
        return loss->next;
    }
    terms.size = survivors_below(comm, comm->terms.size);
    if (terms.size == 0 || communicator_new(comm->comms, payer(comm), comm->name, &terms, false, now_ns,
                                            &next, &error) != STATUS_OK) {
        return NULL;
    }
    if (!next_fill(next, comm)) {
        communicator_free(next);
        return NULL;
    }
    next_copy_state(next, comm);
    next->loss->previous = comm;
    loss->next = next;
    if (next->sparse) {
        comms_tree_begin(next, now_ns);
    }
    communicator_queue(next);
    return next;
}

bool comms_next_is_needed(const struct communicator *comm)
{
    return comms_is_next(comm) && comm->loss->previous != NULL && comm->ops == NULL;
}

/* --- Joining --- */

static bool has_member(const struct communicator *comm, uint32_t rank)
{
    const struct comms_member *member;
    DL_FOREACH(comm->members, member)
    {
        if (member->rank == rank) {
            return true;
        }
    }
    return false;
}

static void add_member(struct communicator *next, struct comms_member *member, uint32_t rank)
{
    uint32_t local_index = 0;
    for (uint32_t i = 0; i < rank; i++) {
        local_index += next->node_of_rank[i] == next->own_index;
    }
    member->rank = rank;
    member->local_index = local_index;
    next->locals[local_index] = member;
    communicator_add_member(next, member);
}

/* Whether the rank may go on after this verdict; otherwise why not. */
static enum status check_verdict(const struct communicator *comm, uint32_t rank, struct error *error)
{
    const struct comms_loss *loss = comm->loss;
    if (comm->state != COMMS_COMM_FAILED) {
        return error_set(
            error, STATUS_IN_PROGRESS,
            "communicator \"%s\": it has not failed, or its nodes have not agreed yet on who is lost",
            comm->name);
    }
    if (loss != NULL && loss->gave_up) {
        return error_set(error, STATUS_ABORTED, "%s", comm->cause.text);
    }
    if (loss == NULL || loss->verdict == NULL) {
        return error_set(
            error, STATUS_UNSUPPORTED,
            "communicator \"%s\": its nodes have not agreed on who is lost: a node's commd is older, "
            "or memory was short",
            comm->name);
    }
    if (loss->verdict->minority) {
        return error_set(error, STATUS_ABORTED, "%s", comm->cause.text);
    }
    if (comms_loss_has_lost(comm, rank)) {
        return error_set(error, STATUS_RANK_LOST,
                         "communicator \"%s\": its nodes have agreed that rank %u is itself lost: %.300s",
                         comm->name, rank, comms_text_without_name(comm->name, comm->cause.text));
    }
    return STATUS_OK;
}

/* The newest generation, which is forming, and the rank's number there. */
static enum status find_newest(struct communicator *comm, uint32_t rank, uint64_t now_ns,
                               struct communicator **out, uint32_t *out_rank, struct error *error)
{
    struct communicator *next = comm;
    do {
        enum status status = check_verdict(next, rank, error);
        if (status != STATUS_OK) {
            return status;
        }
        rank = survivors_below(next, rank);
        bool over = next->loss->next_over;
        next = comms_next_of(next, now_ns);
        if (next == NULL) {
            return over ? error_set(error, STATUS_NOT_FOUND,
                                    "communicator \"%s\": its next generation has ended already", comm->name)
                        : error_set(error, STATUS_LIMIT,
                                    "communicator \"%s\": no memory or no budget for the next generation",
                                    comm->name);
        }
    } while (next->state == COMMS_COMM_FAILED && next->ops == NULL);
    if (next->state == COMMS_COMM_FAILED || has_member(next, rank)) {
        return error_set(error, STATUS_ALREADY_EXISTS,
                         "communicator \"%s\": this rank is in its next generation already, as rank %u",
                         comm->name, rank);
    }
    if (next->state == COMMS_COMM_FORMED || comms_loss_rank_is_gone(next, rank)) {
        return error_set(error, STATUS_IN_PROGRESS,
                         "communicator \"%s\": its next generation has just failed", comm->name);
    }
    *out = next;
    *out_rank = rank;
    return STATUS_OK;
}

enum status comms_member_shrink(struct comms_member *member, const struct comms_shrink *options,
                                const struct comms_member_handler *handler, uint64_t now_ns,
                                struct comms_member **out, struct error *error)
{
    struct communicator *next = NULL;
    uint32_t rank = 0;
    enum status status = find_newest(member->comm, member->rank, now_ns, &next, &rank, error);
    if (status != STATUS_OK) {
        return status;
    }
    struct comms_terms terms = {.name = next->name,
                                .rank = rank,
                                .size = next->terms.size,
                                .form_timeout_ms = options->form_timeout_ms,
                                .takes_cells = options->takes_cells,
                                .takes_node_cells = options->takes_node_cells};
    status = communicator_member_new(&member->client, &terms, handler, now_ns, out, error);
    if (status == STATUS_OK) {
        add_member(next, *out, rank);
    }
    return status;
}

bool comms_member_verdict(const struct comms_member *member, struct comms_verdict_view *out)
{
    const struct comms_loss *loss = member->comm->loss;
    if (loss == NULL || loss->verdict == NULL) {
        return false;
    }
    *out = (struct comms_verdict_view){.last_seq = loss->verdict->last,
                                       .generation = loss->verdict->generation + 1,
                                       .minority = loss->verdict->minority,
                                       .size = member->comm->terms.size,
                                       .lost = loss->verdict->lost};
    return true;
}

enum status comms_next_refusal(const struct comms_member *member, struct error *error)
{
    const struct communicator *comm = member->comm;
    bool decided = comms_is_next(comm) && comm->state == COMMS_COMM_FAILED && comm->loss->verdict != NULL;
    return decided ? check_verdict(comm, member->rank, error) : STATUS_OK;
}

/* --- Forming --- */

static void lose_rank(struct communicator *next, uint32_t rank, uint64_t now_ns)
{
    struct error cause;
    struct comms_detail detail = {0};
    comms_detail_add(&detail, next, rank, 0);
    error_set(&cause, STATUS_RANK_LOST, "communicator \"%s\": rank %u of node %s left before it was shrunk",
              next->name, rank, communicator_own_name(next));
    communicator_fail_with(next, &cause, &detail, COMMS_TELL_NODES, now_ns);
}

/* Fails it if ranks or nodes were lost before it was made. */
static void fail_for_losses(struct communicator *next, uint64_t now_ns)
{
    for (uint32_t i = 0; i < next->node_count; i++) {
        if (next->loss->nodes[i].down) {
            struct error cause;
            struct comms_detail detail = {0};
            comms_detail_add_node(&detail, next, i);
            error_set(&cause, STATUS_NODE_LOST, "node %s lost before communicator \"%s\" was shrunk",
                      next->node_names[i], next->name);
            communicator_fail_with(next, &cause, &detail, COMMS_TELL_NODES, now_ns);
            return;
        }
    }
    for (uint32_t rank = 0; rank < next->terms.size; rank++) {
        if (agreement_bit(next->loss->gone, rank)) {
            lose_rank(next, rank, now_ns);
            return;
        }
    }
}

static void say_ready(struct communicator *next)
{
    Commd__Mesh__NextReady body = COMMD__MESH__NEXT_READY__INIT;
    body.comm_id = next->comm_id;
    body.previous_id = next->loss->previous_id;
    Commd__Mesh__Message message = MESH_MESSAGE(NEXT_READY, next_ready, &body);
    next->loss->nodes[next->own_index].ready = true;
    for (uint32_t i = 0; i < next->node_count; i++) {
        if (i != next->own_index) {
            communicator_send(next, next->nodes[i].node, &message);
        }
    }
}

static void form(struct communicator *next, uint64_t now_ns)
{
    struct comms_loss *loss = next->loss;
    if (next->sparse) {
        if (next->rank_count == next->local_count && comms_tree_is_ready(next)) {
            comms_formation_formed(next, now_ns);
        }
        return;
    }
    if (next->rank_count == next->local_count && !loss->nodes[next->own_index].ready) {
        say_ready(next);
    }
    for (uint32_t i = 0; i < next->node_count; i++) {
        if (!loss->nodes[i].ready) {
            return;
        }
    }
    comms_formation_formed(next, now_ns);
}

static bool may_follow(const struct communicator *failed, uint32_t rank)
{
    bool is_loss = failed->cause.status == STATUS_RANK_LOST || failed->cause.status == STATUS_NODE_LOST;
    return is_loss && failed->loss->verdict != NULL && !comms_loss_has_lost(failed, rank);
}

/* The first generation after a failed one that may still form, and the rank's number there. Null: none. Ones
 * in between may have failed before they had any member here. */
static struct communicator *find_forming(struct communicator *failed, uint32_t *rank, uint64_t now_ns)
{
    struct communicator *next = failed;
    do {
        if (!may_follow(next, *rank)) {
            return NULL;
        }
        *rank = survivors_below(next, *rank);
        next = comms_next_of(next, now_ns);
    } while (next != NULL && next->state == COMMS_COMM_FAILED);
    return next != NULL && next->state == COMMS_COMM_FORMING ? next : NULL;
}

/* Ranks that waited for a generation which lost others pass on to the one after it. */
static void pass_on(struct communicator *failed, uint64_t now_ns)
{
    struct comms_member *member, *after;
    DL_FOREACH_SAFE(failed->members, member, after)
    {
        uint32_t rank = member->rank;
        struct communicator *next = member->formed_told ? NULL : find_forming(failed, &rank, now_ns);
        if (next == NULL) {
            continue;
        }
        DL_DELETE(failed->members, member);
        failed->member_count--;
        failed->rank_count--;
        failed->locals[member->local_index] = NULL;
        add_member(next, member, rank);
    }
}

void comms_next_step(struct communicator *comm, uint64_t now_ns)
{
    if (!comms_is_next(comm) || comm->ops != NULL || comms_loss_is_frozen(comm)) {
        return;
    }
    if (comm->state == COMMS_COMM_FORMING) {
        fail_for_losses(comm, now_ns);
    }
    if (comm->state == COMMS_COMM_FORMING && !comms_loss_is_frozen(comm)) {
        form(comm, now_ns);
    }
    if (comm->state == COMMS_COMM_FAILED) {
        pass_on(comm, now_ns);
    }
}

void comms_next_deadline(struct communicator *comm, uint64_t now_ns)
{
    const struct comms_member *member, *late = NULL;
    char why[COMMS_LIST_TEXT_MAX_BYTES];
    struct comms_text text;
    struct comms_detail detail = {0};
    DL_FOREACH(comm->members, member)
    {
        late = now_ns >= member->form_deadline_ns ? member : late;
    }
    if (late == NULL) {
        return;
    }
    comms_text_begin(&text, why, sizeof why);
    for (uint32_t i = 0; !comm->sparse && i < comm->node_count; i++) {
        if (!comm->loss->nodes[i].ready) {
            comms_text_add(&text, "%s%s", text.length > 0 ? ", " : "", comm->node_names[i]);
        }
    }
    if (comm->sparse) {
        comms_tree_unready(comm, &text);
    }
    for (uint32_t rank = 0; rank < comm->terms.size; rank++) {
        if (comm->node_of_rank[rank] == comm->own_index && !has_member(comm, rank)) {
            comms_detail_add(&detail, comm, rank, 0);
        }
    }
    struct error cause;
    error_set(
        &cause, STATUS_TIMED_OUT,
        "communicator \"%s\" was not shrunk within %llu ms: not all ranks of these nodes have asked: %s",
        comm->name, (unsigned long long)late->form_timeout_ms, why);
    communicator_fail_with(comm, &cause, &detail, COMMS_TELL_NODES, now_ns);
}

/* --- What happens --- */

void comms_next_rank_gone(struct communicator *comm, uint32_t rank, uint64_t now_ns)
{
    struct communicator *next = comm;
    while (next->loss->next != NULL && next->loss->verdict != NULL && !comms_loss_has_lost(next, rank)) {
        rank = survivors_below(next, rank);
        next = next->loss->next;
        if (next->ops != NULL || has_member(next, rank)) {
            return; /* it has a member of its own there, or had one */
        }
        agreement_bit_set(next->loss->gone, rank);
        if (next->state != COMMS_COMM_FAILED) {
            lose_rank(next, rank, now_ns);
            return;
        }
    }
}

static void answer_gone(struct comms *comms, uint32_t node, const Commd__Mesh__NextReady *said)
{
    struct comms_loss_address to = {
        .comms = comms, .node = node, .comm_id = said->comm_id, .previous_id = said->previous_id};
    struct agreement_message message = {.step = AGREEMENT_GONE};
    comms_loss_send(&to, &message);
}

void comms_next_received(struct comms *comms, uint32_t node, const Commd__Mesh__NextReady *said,
                         uint64_t now_ns)
{
    struct communicator *next = communicator_find_id(comms, said->comm_id);
    struct communicator *from = communicator_find_id(comms, said->previous_id);
    uint32_t index = from != NULL ? communicator_node_index(from, node) : 0;
    if (from != NULL && index == from->node_count) {
        mesh_violation(comms->mesh, node, "a next generation of a communicator that it does not belong to");
        return;
    }
    if (next == NULL && from != NULL && from->loss != NULL && from->loss->verdict == NULL) {
        from->loss->nodes[index].next_id = said->comm_id; /* the verdict is on its way */
        return;
    }
    if (next == NULL && from != NULL && from->loss != NULL) {
        next = comms_next_of(from, now_ns);
    }
    if (next == NULL || next->comm_id != said->comm_id || !comms_is_next(next)) {
        answer_gone(comms, node, said);
        return;
    }
    index = communicator_node_index(next, node);
    if (index < next->node_count) {
        next->loss->nodes[index].ready = true;
        communicator_queue(next);
    }
}
