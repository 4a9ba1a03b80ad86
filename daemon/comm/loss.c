#include "daemon/comm/loss.h"
#include "daemon/comm/formation.h"

#include "daemon/comm/comms_tree.h"
#include "daemon/comm/silence.h"

#include <stdlib.h>
#include <string.h>

#include <utlist.h>

/*
 * Of several causes the verdict tells one. What ended a stream is the weakest, because another cause stands
 * behind it. A lost rank is named before a lost node, as its text is the most precise.
 */
enum { WEIGHT_RANK = 1, WEIGHT_OTHER, WEIGHT_NODE, WEIGHT_STREAM };

static uint32_t weight_of(const struct communicator *comm, const struct error *cause)
{
    if (cause == &comm->exec_cause) {
        return WEIGHT_STREAM;
    }
    return cause->status == STATUS_RANK_LOST   ? WEIGHT_RANK
           : cause->status == STATUS_NODE_LOST ? WEIGHT_NODE
                                               : WEIGHT_OTHER;
}

/* --- Decisions of communicators that are gone --- */

struct comms_past {
    uint32_t next;
    struct {
        uint64_t comm_id;
        uint32_t rank_count, node_count;
        struct agreement *agreement;
    } items[COMMS_PAST_MAX];
};

/* Takes the agreement over, if there is memory. */
static void past_keep(struct communicator *comm)
{
    struct comms *comms = comm->comms;
    if (comms->past == NULL) {
        comms->past = calloc(1, sizeof *comms->past);
    }
    if (comms->past == NULL) {
        comms->forgot_decisions = true;
        return;
    }
    uint32_t at = comms->past->next++ % COMMS_PAST_MAX;
    comms->forgot_decisions = comms->forgot_decisions || comms->past->items[at].agreement != NULL;
    agreement_free(comms->past->items[at].agreement);
    comms->past->items[at].comm_id = comm->comm_id;
    comms->past->items[at].rank_count = comm->terms.size;
    comms->past->items[at].node_count = comm->node_count;
    comms->past->items[at].agreement = comm->loss->agreement;
    comm->loss->agreement = NULL;
}

void comms_past_free(struct comms *comms)
{
    for (uint32_t i = 0; comms->past != NULL && i < COMMS_PAST_MAX; i++) {
        agreement_free(comms->past->items[i].agreement);
    }
    free(comms->past);
    comms->past = NULL;
}

/*
 * Answers for a communicator that is not here (any more), or has no part. If its decision may be one of those
 * that are forgotten, this node may have gone on with others. So the answer says that it proves nothing.
 */
static void past_answer(struct comms *comms, uint32_t node, bool is_here, const Commd__Mesh__Agree *said)
{
    struct comms_loss_address to = {
        .comms = comms, .node = node, .comm_id = said->comm_id, .previous_id = said->previous_id};
    struct agreement_message message = {.step = AGREEMENT_GONE,
                                        .forgot = !is_here && comms->forgot_decisions};
    if (said->step != COMMD__MESH__AGREE__STEP__REPORT && said->step != COMMD__MESH__AGREE__STEP__PREPARE &&
        said->step != COMMD__MESH__AGREE__STEP__PROMISE && said->step != COMMD__MESH__AGREE__STEP__ACCEPT) {
        return;
    }
    for (uint32_t i = 0; comms->past != NULL && i < COMMS_PAST_MAX; i++) {
        if (comms->past->items[i].agreement != NULL && comms->past->items[i].comm_id == said->comm_id) {
            message.step = AGREEMENT_DECIDED;
            message.value = agreement_decision(comms->past->items[i].agreement);
            to.rank_count = comms->past->items[i].rank_count;
            to.node_count = comms->past->items[i].node_count;
        }
    }
    comms_loss_send(&to, &message);
}

/* --- Construction --- */

bool comms_loss_new(struct communicator *comm)
{
    struct comms_loss *loss = calloc(1, sizeof *loss);
    if (loss == NULL) {
        return false;
    }
    comm->loss = loss;
    loss->freeze_ns = TIME_NEVER;
    loss->gone = calloc(1, agreement_bits_bytes(comm->terms.size));
    loss->nodes = calloc(comm->node_count, sizeof *loss->nodes);
    return loss->gone != NULL && loss->nodes != NULL;
}

void comms_loss_free(struct communicator *comm)
{
    struct comms_loss *loss = comm->loss;
    if (loss == NULL) {
        return;
    }
    agreement_free(loss->agreement);
    agreement_value_free(&loss->own);
    free(loss->reason);
    free(loss->gone);
    free(loss->nodes);
    free(loss);
    comm->loss = NULL;
}

void comms_loss_set_agrees(struct communicator *comm)
{
    bool all = comm->node_count > 1;
    for (uint32_t i = 0; i < comm->node_count; i++) {
        const struct comms_claim *claim = comms_formation_claim(comm, comm->nodes[i].node);
        all = all && (i == comm->own_index || (claim != NULL && claim->agrees));
    }
    comm->loss->agrees = all;
}

bool comms_loss_is_agreed(const struct communicator *comm)
{
    return comm->loss != NULL && comm->loss->agrees;
}

bool comms_loss_rank_is_gone(const struct communicator *comm, uint32_t rank)
{
    return comm->has_left[rank] || agreement_bit(comm->loss->gone, rank);
}

/* Whether a local rank is there: it can have a part in the agreement, and in the next generation. */
static bool comms_loss_has_locals(const struct communicator *comm)
{
    for (uint32_t rank = 0; rank < comm->terms.size; rank++) {
        if (comm->node_of_rank[rank] == comm->own_index && !comms_loss_rank_is_gone(comm, rank)) {
            return true;
        }
    }
    return false;
}

/* --- The agreement --- */

static struct comms_loss_address address_of(const struct communicator *comm, uint32_t index)
{
    return (struct comms_loss_address){.comms = comm->comms,
                                       .node = comm->nodes[index].node,
                                       .comm_id = comm->comm_id,
                                       .previous_id = comm->loss->previous_id,
                                       .rank_count = comm->terms.size,
                                       .node_count = comm->node_count,
                                       .dials = comm->sparse};
}

static void on_send(void *context, uint32_t node, const struct agreement_message *message)
{
    struct communicator *comm = context;
    struct comms_loss_address to = address_of(comm, node);
    if (comm->sparse) {
        comms_link_need(comm, node, MESH_NEED_CALL, comm->comms->now_ns);
    }
    comms_loss_send(&to, message);
}

/* Up to which operation all have ended here. */
static uint64_t ended_up_to(const struct communicator *comm)
{
    uint64_t seq = comm->highest_seq;
    if (comm->node_count == 1 && comm->cells != NULL) {
        seq = UINT64_MAX;
        for (uint32_t i = 0; i < comm->local_count; i++) {
            uint64_t head = comm->locals[i] != NULL ? comms_cells_head(comm->locals[i]) : UINT64_MAX;
            seq = head < seq ? head : seq;
        }
        seq = seq == UINT64_MAX ? comm->highest_seq : seq;
    }
    return comm->pending != NULL && comm->pending->seq <= seq ? comm->pending->seq - 1 : seq;
}

/* Also local ranks of nodes that are down. */
static void add_lost(const struct communicator *comm, struct agreement_value *value)
{
    for (uint32_t rank = 0; rank < comm->terms.size; rank++) {
        uint32_t index = comm->node_of_rank[rank];
        if (comms_loss_rank_is_gone(comm, rank) || agreement_bit(value->down, index)) {
            agreement_bit_set(value->lost, rank);
        }
    }
}

static void part_fill(const struct communicator *comm, const struct error *cause, uint32_t weight,
                      const struct comms_detail *detail, struct agreement_value *part)
{
    part->cause = *cause;
    part->cause_weight = weight;
    if (cause->status == STATUS_OK || cause->status == STATUS_IN_PROGRESS) {
        part->cause.status = STATUS_INTERNAL;
    }
    part->has_detail = detail != NULL;
    if (detail != NULL) {
        part->detail = *detail;
    }
    part->last = ended_up_to(comm);
    part->keep = comm->left_seq != UINT64_MAX ? comm->left_seq : 0;
    part->generation = comm->generation;
    add_lost(comm, part);
}

static void on_conclude(void *context, struct agreement_value *value)
{
    const struct communicator *comm = context;
    uint8_t *dead = calloc(1, agreement_bits_bytes(comm->node_count));
    uint32_t here = 0;
    add_lost(comm, value);
    for (uint32_t i = 0; i < comm->node_count; i++) {
        bool left = comm->nodes[i].left_count == comm->nodes[i].rank_count;
        here += !agreement_bit(value->down, i);
        if (dead != NULL && (comm->loss->nodes[i].dead || left)) {
            agreement_bit_set(dead, i);
        }
    }
    if (dead == NULL ||
        (!agreement_may_go_on(value->down, dead, comm->node_count) && !comm->terms.minority_continues)) {
        struct error why = value->cause;
        value->minority = true;
        error_set(&value->cause, STATUS_ABORTED,
                  "communicator \"%s\": minority: only %u of its %u nodes reach each other; %.300s",
                  comm->name, here, comm->node_count, comms_text_without_name(comm->name, why.text));
    }
    free(dead);
}

static void on_decided(void *context, const struct agreement_value *value, uint64_t now_ns)
{
    struct communicator *comm = context;
    comm->loss->verdict = value;
    comm->loss->frozen = false;
    communicator_end(comm, &value->cause, value->has_detail ? &value->detail : NULL, COMMS_TELL_NOBODY,
                     now_ns);
}

static void on_gave_up(void *context, uint64_t now_ns)
{
    struct communicator *comm = context;
    struct error cause;
    comm->loss->frozen = false;
    comm->loss->gave_up = true;
    error_set(&cause, STATUS_ABORTED,
              "communicator \"%s\": its nodes did not agree within %llu s on what is lost", comm->name,
              (unsigned long long)(AGREEMENT_LIMIT_NS / TIME_S));
    communicator_end(comm, &cause, NULL, COMMS_TELL_NOBODY, now_ns);
}

/* Begins the agreement. Returns false if this node has no part in it, and its communicator just ends. */
static bool freeze(struct communicator *comm, const struct error *cause, uint32_t weight,
                   const struct comms_detail *detail, uint64_t now_ns);

/* Whether the oldest operation runs, and needs no lost rank any more. */
static bool may_end(const struct communicator *comm)
{
    const struct communicator_op *op = comm->pending;
    return op != NULL && op->running && op->seq <= comm->loss->keep_seq;
}

/*
 * Another node wants to agree. A rank that is lost has done its part of operations that run here, so they may
 * end.
 */
static void on_wanted(void *context, const struct agreement_value *value, uint64_t now_ns)
{
    struct communicator *comm = context;
    struct comms_loss *loss = comm->loss;
    const struct comms_detail *detail = value->has_detail ? &value->detail : NULL;
    if (comm->state == COMMS_COMM_FAILED || loss->frozen) {
        return;
    }
    loss->keep_seq = value->keep;
    if (may_end(comm) && loss->reason == NULL) {
        loss->reason = malloc(sizeof *loss->reason);
    }
    if (loss->reason == NULL || loss->freeze_ns != TIME_NEVER) {
        (void)freeze(comm, &value->cause, value->cause_weight, detail, now_ns);
        return;
    }
    *loss->reason = value->cause;
    loss->reason_weight = value->cause_weight;
    loss->freeze_ns = time_after(now_ns, COMMS_LOSS_DRAIN_NS);
    communicator_arm(comm);
    communicator_queue(comm);
}

static bool make_agreement(struct communicator *comm, uint64_t now_ns)
{
    struct comms_loss *loss = comm->loss;
    struct agreement_options options = {.node_count = comm->node_count,
                                        .rank_count = comm->terms.size,
                                        .own = comm->own_index,
                                        .context = comm,
                                        .send = on_send,
                                        .wanted = on_wanted,
                                        .conclude = on_conclude,
                                        .decided = on_decided,
                                        .gave_up = on_gave_up};
    if (loss->agreement != NULL) {
        return true;
    }
    loss->agreement = agreement_new(&options);
    for (uint32_t i = 0; loss->agreement != NULL && i < comm->node_count; i++) {
        if (loss->nodes[i].down) {
            agreement_node_down(loss->agreement, i, now_ns);
        }
    }
    return loss->agreement != NULL;
}

/* Of a communicator without a connection for each pair of nodes: to those that are connected, and to the
 * lowest one, which leads. Others hear of it when they ask. */
static void send_gone(const struct communicator *comm, const struct agreement_value *value)
{
    struct agreement_message message = {.step = AGREEMENT_GONE, .value = value};
    bool lowest = true;
    for (uint32_t i = 0; i < comm->node_count; i++) {
        bool there = i != comm->own_index && !comm->loss->nodes[i].down &&
                     (!comm->sparse || comm->nodes[i].left_count < comm->nodes[i].rank_count);
        if (there && (!comm->sparse || lowest || mesh_node_is_up(comm->comms->mesh, comm->nodes[i].node))) {
            on_send((void *)(uintptr_t)comm, i, &message);
        }
        lowest = lowest && !there;
    }
}

/* The agreement begins without nodes that have not answered for long. */
static void drop_silent(struct communicator *comm, uint64_t now_ns)
{
    for (uint32_t i = 0; comm->sparse && i < comm->node_count; i++) {
        if (!comm->loss->nodes[i].down && comms_silence_is_long(comm, i, now_ns)) {
            comms_loss_unreached(comm, i, now_ns);
        }
    }
}

static bool freeze(struct communicator *comm, const struct error *cause, uint32_t weight,
                   const struct comms_detail *detail, uint64_t now_ns)
{
    struct comms_loss *loss = comm->loss;
    struct agreement_value part = {0};
    bool takes_part = comms_loss_has_locals(comm);
    loss->freeze_ns = TIME_NEVER;
    if (!make_agreement(comm, now_ns) || !agreement_value_init(&part, comm->terms.size, comm->node_count)) {
        loss->agrees = false; /* the others get an Abort */
        return false;
    }
    part_fill(comm, cause, weight, detail, &part);
    if (takes_part) {
        drop_silent(comm, now_ns);
        loss->frozen = true;
        comm->link_ns = comm->sparse ? now_ns : comm->link_ns;
        enum status status = agreement_begin(loss->agreement, &part, now_ns);
        (void)status;
        communicator_arm(comm);
    } else {
        loss->gave_up = true;
        send_gone(comm, &part);
    }
    agreement_value_free(&part);
    return takes_part;
}

/* No local rank is left that could be told: this node has no part any more. Returns false if it has one. */
static bool leave_agreement(struct communicator *comm)
{
    struct comms_loss *loss = comm->loss;
    if (!loss->frozen || loss->verdict != NULL || comms_loss_has_locals(comm)) {
        return false;
    }
    loss->frozen = false;
    loss->gave_up = true;
    send_gone(comm, NULL);
    return true;
}

/* Of a communicator of one node. Without memory there is no next generation. */
static void decide_alone(struct communicator *comm, const struct error *cause,
                         const struct comms_detail *detail)
{
    struct comms_loss *loss = comm->loss;
    if (agreement_value_init(&loss->own, comm->terms.size, 1)) {
        part_fill(comm, cause, 0, detail, &loss->own);
        loss->verdict = &loss->own;
    }
}

bool comms_loss_takes(struct communicator *comm, const struct error *cause, const struct comms_detail *detail,
                      uint64_t now_ns)
{
    struct comms_loss *loss = comm->loss;
    if (loss == NULL || (comm->state == COMMS_COMM_FORMING && !loss->is_next)) {
        return false;
    }
    if (comm->node_count == 1) {
        decide_alone(comm, cause, detail);
        return false;
    }
    if (leave_agreement(comm) || loss->gave_up) {
        return false;
    }
    return loss->agrees && (loss->frozen || freeze(comm, cause, weight_of(comm, cause), detail, now_ns));
}

void comms_loss_leave(struct communicator *comm)
{
    struct comms_loss *loss = comm->loss;
    if (loss == NULL) {
        return;
    }
    if (loss->agreement != NULL && loss->verdict == NULL && !loss->gave_up) {
        send_gone(comm, NULL);
    } else if (loss->agreement != NULL && loss->verdict != NULL) {
        past_keep(comm);
    }
    if (loss->next != NULL) {
        loss->next->loss->previous = NULL;
        communicator_queue(loss->next);
    }
    if (loss->previous != NULL) {
        loss->previous->loss->next = NULL;
        loss->previous->loss->next_over = true;
    }
}

/* --- Time --- */

uint64_t comms_loss_deadline_ns(const struct communicator *comm)
{
    const struct comms_loss *loss = comm->loss;
    if (loss == NULL) {
        return TIME_NEVER;
    }
    uint64_t agreement_ns = loss->agreement != NULL ? agreement_deadline_ns(loss->agreement) : TIME_NEVER;
    return time_min(loss->freeze_ns, agreement_ns);
}

void comms_loss_step(struct communicator *comm, uint64_t now_ns)
{
    const struct comms_loss *loss = comm->loss;
    if (loss != NULL && loss->freeze_ns != TIME_NEVER && comm->state != COMMS_COMM_FAILED &&
        (now_ns >= loss->freeze_ns || !may_end(comm))) {
        (void)freeze(comm, loss->reason, loss->reason_weight, NULL, now_ns);
    }
}

void comms_loss_tick(struct communicator *comm, uint64_t now_ns)
{
    const struct comms_loss *loss = comm->loss;
    comms_loss_step(comm, now_ns);
    if (loss != NULL && loss->agreement != NULL && now_ns >= agreement_deadline_ns(loss->agreement)) {
        agreement_tick(loss->agreement, now_ns);
    }
}

/* --- What happens --- */

void comms_loss_rank_gone(struct communicator *comm, uint32_t rank, uint64_t now_ns)
{
    struct comms_loss *loss = comm->loss;
    bool never_formed = comm->ops == NULL;
    if (loss == NULL || (comm->state == COMMS_COMM_FAILED && never_formed)) {
        return; /* the rank may still be in the generation before */
    }
    agreement_bit_set(loss->gone, rank);
    if (leave_agreement(comm)) {
        struct error cause;
        error_set(&cause, STATUS_ABORTED, "communicator \"%s\": all ranks of this node have left",
                  comm->name);
        communicator_end(comm, &cause, NULL, COMMS_TELL_NOBODY, now_ns);
    }
    if (comm->state == COMMS_COMM_FAILED) {
        comms_next_rank_gone(comm, rank, now_ns);
    }
}

void comms_loss_all_gone(struct communicator *comm)
{
    for (uint32_t rank = 0; comm->loss != NULL && rank < comm->terms.size; rank++) {
        if (comm->node_of_rank[rank] == comm->own_index) {
            agreement_bit_set(comm->loss->gone, rank);
        }
    }
}

static void node_is_down(struct communicator *comm, uint32_t index, bool dead, uint64_t now_ns)
{
    struct comms_loss *loss = comm->loss;
    loss->nodes[index].down = true;
    loss->nodes[index].dead = loss->nodes[index].dead || dead;
    if (loss->agreement != NULL && loss->verdict == NULL && !loss->gave_up) {
        agreement_node_down(loss->agreement, index, now_ns);
    }
}

void comms_loss_unreached(struct communicator *comm, uint32_t index, uint64_t now_ns)
{
    const struct mesh *mesh = comm->comms->mesh;
    uint32_t node = comm->nodes[index].node;
    node_is_down(comm, index, mesh_node_process_ended(mesh, node) || mesh_node_refuses(mesh, node, now_ns),
                 now_ns);
}

void comms_loss_node_down(struct communicator *comm, uint32_t node, uint64_t now_ns)
{
    uint32_t index = comm->loss != NULL ? communicator_node_index(comm, node) : comm->node_count;
    if (index < comm->node_count) {
        node_is_down(comm, index, mesh_node_process_ended(comm->comms->mesh, node), now_ns);
        communicator_arm(comm);
    }
}

/* --- Messages --- */

/* The communicator that a message means. A next generation is made if the one before has its verdict. */
static struct communicator *find(struct comms *comms, const Commd__Mesh__Agree *said, uint64_t now_ns)
{
    struct communicator *comm = communicator_find_id(comms, said->comm_id);
    if (comm != NULL || said->previous_id == 0) {
        return comm;
    }
    struct communicator *previous = communicator_find_id(comms, said->previous_id);
    if (previous == NULL || previous->loss == NULL || previous->loss->verdict == NULL) {
        return NULL;
    }
    comm = comms_next_of(previous, now_ns);
    return comm != NULL && comm->comm_id == said->comm_id ? comm : NULL;
}

/* Whether it can agree: it has formed, or is a next generation. Otherwise it has no part. */
static bool can_agree(const struct communicator *comm)
{
    return comm->loss != NULL && comm->loss->agrees && !comm->loss->gave_up &&
           (comm->loss->is_next || comm->state == COMMS_COMM_FORMED || comm->loss->verdict != NULL);
}

/* A node that has formed it already ends it: no rank here has been told anything but that. */
static void end_forming(struct communicator *comm, const Commd__Mesh__Agree *said, uint64_t now_ns)
{
    struct error cause;
    cause.status = said->value != NULL ? status_from_wire(said->value->status) : STATUS_ABORTED;
    if (cause.status == STATUS_OK || cause.status == STATUS_IN_PROGRESS) {
        cause.status = STATUS_PROTOCOL;
    }
    printable_copy(said->value != NULL ? said->value->text : "it failed on other nodes", cause.text,
                   sizeof cause.text);
    communicator_fail(comm, &cause, COMMS_TELL_NODES, now_ns);
}

void comms_loss_received(struct comms *comms, uint32_t node, const Commd__Mesh__Agree *said, uint64_t now_ns)
{
    struct agreement_message message;
    struct agreement_value value;
    struct communicator *comm = find(comms, said, now_ns);
    uint32_t index = comm != NULL ? communicator_node_index(comm, node) : 0;
    if (comm != NULL && index == comm->node_count) {
        mesh_violation(comms->mesh, node, "an agreement about a communicator that it does not belong to");
        return;
    }
    if (comm != NULL && comm->state == COMMS_COMM_FORMING && !comms_is_next(comm)) {
        end_forming(comm, said, now_ns);
    }
    if (comm == NULL || !can_agree(comm) || !make_agreement(comm, now_ns)) {
        past_answer(comms, node, comm != NULL, said);
        return;
    }
    if (!comms_loss_from_wire(said, comm, &message, &value)) {
        mesh_violation(comms->mesh, node, "an agreement that makes no sense");
        return;
    }
    if (message.step == AGREEMENT_GONE) {
        comm->loss->nodes[index].down = true;
        comm->loss->nodes[index].dead = comm->loss->nodes[index].dead || !message.forgot;
        communicator_queue(comm); /* a next generation that waits for the node fails */
    }
    agreement_received(comm->loss->agreement, index, &message, now_ns);
    communicator_arm(comm);
}
