#include "daemon/comm/node_cells.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <utlist.h>

#include "daemon/comm/cells_internal.h"
#include "daemon/comm/comms_internal.h"

/* A communicator without operations for so long is not looked at. */
#define NODE_CELLS_AWAKE_NS (1 * TIME_MS)
#define LOOKS_MAX 64u /* of communicators, in one turn of the main loop; the rest come next */

/* --- Being looked at --- */

static void set_asleep(struct communicator *comm)
{
    struct comms_cells *cells = comm->cells;
    if (cells->awake) {
        cells->awake = false;
        fair_remove(&comm->comms->cells_awake, &comm->cells_turn);
    }
}

static void set_awake(struct communicator *comm, uint64_t now_ns)
{
    struct comms_cells *cells = comm->cells;
    cells->used_ns = now_ns;
    if (!cells->awake && !cells->retired) {
        cells->awake = true;
        node_cells_get_up(&cells->node);
        fair_put(&comm->comms->cells_awake, &comm->cells_turn, comm->terms.owner_uid);
    }
}

void comms_node_cells_begin(struct communicator *comm, uint64_t now_ns)
{
    set_awake(comm, now_ns);
}

static bool has_bell(const struct comms_cells *cells)
{
    return cells->bell_prev != NULL;
}

/* Ranks that await this operation are woken soon. */
static void set_bell(struct communicator *comm, uint64_t seq)
{
    struct comms_cells *cells = comm->cells;
    cells->bell_seq = seq > cells->bell_seq ? seq : cells->bell_seq;
    if (!has_bell(cells)) {
        DL_APPEND2(comm->comms->bells, cells, bell_prev, bell_next);
    }
}

static void ring(struct comms *comms, struct comms_cells *cells)
{
    DL_DELETE2(comms->bells, cells, bell_prev, bell_next);
    cells->bell_prev = NULL;
    node_cells_wake(&cells->node, cells->bell_seq);
    cells->bell_seq = 0;
}

void comms_cells_ring(struct comms *comms)
{
    while (comms->bells != NULL) {
        ring(comms, comms->bells);
    }
}

void comms_node_cells_free(struct communicator *comm)
{
    if (has_bell(comm->cells)) {
        ring(comm->comms, comm->cells);
    }
}

void comms_node_cells_close(struct communicator *comm)
{
    set_asleep(comm);
    node_cells_close(&comm->cells->node, comm->cells->taken_seq);
}

/* The next operation to be taken; 0: the local ranks are not at the same one. */
static uint64_t next_seq(const struct communicator *comm)
{
    uint64_t seq = 0;
    for (uint32_t i = 0; i < comm->local_count; i++) {
        const struct comms_member *member = comm->locals[i];
        if (member == NULL || member->bucket_left > 0 || (i > 0 && member->posted_seq + 1 != seq)) {
            return 0;
        }
        seq = member->posted_seq + 1;
    }
    return seq;
}

static bool has_next(const struct communicator *comm, uint64_t *seq)
{
    *seq = comm->state == COMMS_COMM_FORMED && !comm->cells->retired ? next_seq(comm) : 0;
    return *seq != 0 && node_cells_are_published(&comm->cells->node, *seq);
}

bool comms_member_wake_cells(struct comms_member *member, uint64_t now_ns)
{
    struct communicator *comm = member->comm;
    uint64_t seq;
    if (member->refused || comm->cells == NULL || !comm->cells->between_nodes || comm->cells->retired) {
        return false;
    }
    set_awake(comm, now_ns);
    return has_next(comm, &seq);
}

bool comms_cells_are_awake(const struct comms *comms)
{
    return comms->cells_awake.count > 0;
}

/* Returns whether commd may stop to look: no operation has come meanwhile. */
static bool lie_down(struct communicator *comm)
{
    uint64_t seq;
    node_cells_lie_down(&comm->cells->node);
    if (has_next(comm, &seq)) {
        node_cells_get_up(&comm->cells->node);
        return false;
    }
    set_asleep(comm);
    return true;
}

/* Takes the next one of those that are looked at, and puts it last. */
static struct communicator *next_awake(struct comms *comms)
{
    struct fair_entry *turn = fair_take(&comms->cells_awake);
    if (turn == NULL) {
        return NULL;
    }
    struct communicator *comm =
        (struct communicator *)((char *)turn - offsetof(struct communicator, cells_turn));
    fair_put(&comms->cells_awake, turn, comm->terms.owner_uid);
    return comm;
}

bool comms_cells_sleep(struct comms *comms)
{
    struct communicator *comm;
    comms_cells_ring(comms);
    while ((comm = next_awake(comms)) != NULL) {
        if (!lie_down(comm)) {
            return false;
        }
    }
    return true;
}

/* --- Taking operations --- */

/* Posts the member's part. Returns false if it must be submitted. */
static bool take_part(struct comms_member *member, uint64_t seq, uint64_t now_ns)
{
    const struct node_cells *cells = &member->comm->cells->node;
    const char *what;
    struct cell_terms said;
    struct error error;
    memcpy(&said, &cells_header(cells->shared, member->local_index, seq)->said, sizeof said);
    if (!op_terms_are_valid(&said.terms, &what) || !node_cells_take(cells, &said.terms)) {
        return false;
    }
    const volatile uint64_t *ticket = &cells->shared->ranks[member->local_index].tickets[seq % CELLS_DEPTH];
    struct comms_op op = {.ticket = *ticket, .terms = said.terms, .factor = said.factor};
    struct comms_cell_place place = {0};
    if (cells_published_bytes(&said.terms, cells->rank_count, member->rank) > 0) {
        place.input = node_cells_input(cells, &said.terms, member->rank, member->local_index, seq);
    }
    if (node_cells_output_bytes(cells, &said.terms, member->rank) > 0 ||
        said.terms.kind == OP_KIND_EXCLUSIVE_SCAN) {
        place.output = node_cells_output(cells, &said.terms, member->local_index, seq);
    }
    return comms_submit_cell(member, &op, &place, now_ns, &error) == STATUS_OK;
}

static void take(struct communicator *comm, uint64_t seq, uint64_t now_ns)
{
    bool all = true;
    comm->cells->taken_seq = seq;
    for (uint32_t i = 0; i < comm->local_count && comm->locals[i] != NULL; i++) {
        all = take_part(comm->locals[i], seq, now_ns) && all;
    }
    if (!all) {
        node_cells_pass(&comm->cells->node, seq); /* the usual way says what is wrong with it */
    }
}

static bool look(struct communicator *comm, uint64_t now_ns)
{
    uint64_t seq;
    uint32_t taken = 0;
    while (taken < NODE_CELLS_WINDOW && has_next(comm, &seq)) {
        take(comm, seq, now_ns);
        taken++;
    }
    if (taken > 0) {
        comm->cells->used_ns = now_ns;
    } else if (now_ns - comm->cells->used_ns > NODE_CELLS_AWAKE_NS) {
        (void)lie_down(comm);
    }
    return taken > 0;
}

bool comms_cells_poll(struct comms *comms, uint64_t now_ns)
{
    uint32_t looks = comms->cells_awake.count < LOOKS_MAX ? comms->cells_awake.count : LOOKS_MAX;
    bool any = false;
    while (looks-- > 0 && comms->cells_awake.count > 0) {
        any |= look(next_awake(comms), now_ns);
    }
    return any;
}

/* --- Data that come before their operation --- */

/* Whether the payload is all that this node gets: the same for all local ranks, or a scatter's block for
 * each, in the order of the ranks. */
static bool has_all(const struct communicator *comm, const struct op_terms *terms, uint64_t payload_bytes)
{
    uint64_t blocks = terms->kind == OP_KIND_SCATTER ? comm->local_count : 1;
    return (terms->kind == OP_KIND_SCATTER || terms->kind == OP_KIND_BROADCAST) &&
           payload_bytes == blocks * terms->count_elements * dtype_size_bytes(terms->dtype);
}

bool comms_node_cells_early(void *context, uint64_t seq, const struct op_terms *terms, const uint8_t *payload,
                            uint64_t payload_bytes)
{
    struct communicator *comm = context;
    if (!comms_cells_are_between_nodes(comm) || comm->state != COMMS_COMM_FORMED || comm->cells->retired ||
        seq <= comm->cells->taken_seq) {
        return true;
    }
    const struct node_cells *cells = &comm->cells->node;
    if (!node_cells_take(cells, terms) || !has_all(comm, terms, payload_bytes) ||
        !node_cells_may_offer(cells, seq, terms)) {
        return false;
    }
    size_t each_bytes = (size_t)terms->count_elements * dtype_size_bytes(terms->dtype);
    size_t stride_bytes = terms->kind == OP_KIND_SCATTER ? each_bytes : 0;
    for (uint32_t i = 0; i < comm->local_count; i++) {
        memcpy(node_cells_output(cells, terms, i, seq), payload + i * stride_bytes, each_bytes);
    }
    node_cells_offer(cells, seq, terms);
    set_bell(comm, seq);
    return true;
}

/* Whether all local ranks wait for the answer in the cells. */
static bool is_whole(const struct communicator_op *op)
{
    bool all = op->in_cells && !op->must_submit;
    for (uint32_t i = 0; all && i < op->comm->local_count; i++) {
        all = op->posts[i].in_cell;
    }
    return all;
}

void comms_node_cells_closing(void *context, uint64_t seq)
{
    struct communicator *comm = context;
    const struct communicator_op *op = comms_op_at(comm, seq);
    if (op != NULL && op_kind_is_from_root(op->terms.kind) && is_whole(op)) {
        node_cells_offer(&comm->cells->node, seq, &op->terms);
        set_bell(comm, seq);
    }
}

/* --- Answers --- */

void comms_node_cells_submitted(struct communicator *comm, uint64_t seq)
{
    if (comm->cells != NULL && comm->cells->between_nodes) {
        node_cells_pass(&comm->cells->node, seq);
    }
}

/* Copies the result to where the rank wants it, which submitted the operation after it was taken. */
static void copy_result(const struct communicator_op *op, uint32_t local_index,
                        const struct comms_buffers *buffers)
{
    const struct node_cells *cells = &op->comm->cells->node;
    size_t size_bytes = node_cells_output_bytes(cells, &op->terms, op->posts[local_index].rank);
    if (buffers != NULL && buffers->exec.output != NULL && size_bytes > 0) {
        memcpy(buffers->exec.output, node_cells_output(cells, &op->terms, local_index, op->seq), size_bytes);
    }
}

void comms_node_cells_answer(struct communicator_op *op, bool ended_well)
{
    const struct communicator *comm = op->comm;
    bool all = true;
    if (!op->in_cells) {
        return;
    }
    for (uint32_t i = 0; i < comm->local_count; i++) {
        struct communicator_post *post = &op->posts[i];
        all = all && post->in_cell;
        if (ended_well) {
            copy_result(op, i, post->claimed);
        }
        comms_buffers_free(post->claimed);
        post->claimed = NULL;
    }
    op->answered_well = ended_well && all && !op->must_submit;
    op->must_submit = !op->answered_well;
    comm->comms->totals.ops_in_cells += op->answered_well;
    node_cells_answer(&comm->cells->node, op->seq, op->answered_well);
    set_bell(op->comm, op->answered_well ? op->seq : UINT64_MAX);
}

/* The rank's buffers, as its submission names them; null: they cannot be used. */
static struct comms_buffers *claimed_buffers(const struct comms_member *member, const struct comms_op *op,
                                             struct op_terms *terms)
{
    struct error error;
    struct comms_buffers *buffers = malloc(sizeof *buffers);
    if (buffers == NULL ||
        comms_call_check(op, member->rank, member->comm->terms.size, terms, buffers, &error) != STATUS_OK) {
        free(buffers);
        return NULL;
    }
    buffers->account = NULL;
    if (buffers->exec.on_gpu) {
        comms_buffers_free(buffers);
        return NULL;
    }
    return buffers;
}

static void claim(struct communicator_op *op, struct comms_member *member, const struct comms_op *asked,
                  uint64_t now_ns)
{
    struct communicator_post *post = &op->posts[member->local_index];
    struct op_terms terms;
    struct comms_buffers *buffers = claimed_buffers(member, asked, &terms);
    post->in_cell = false;
    post->ticket = asked->ticket;
    if (op->finished) {
        if (op->succeeded) {
            copy_result(op, member->local_index, buffers);
        }
        comms_buffers_free(buffers);
    } else {
        post->claimed = buffers;
        comms_submit_deadline(op, asked, now_ns);
        communicator_arm(op->comm);
    }
    communicator_queue(op->comm);
}

/* The answer and the submission have met: the outputs are in commd's cell. */
static void tell_answered(struct comms_member *member, const struct comms_op *asked, uint64_t now_ns)
{
    const struct node_cells *cells = &member->comm->cells->node;
    struct op_terms terms;
    struct error result = {.status = STATUS_OK};
    struct comms_buffers *buffers = claimed_buffers(member, asked, &terms);
    bool is_there = buffers != NULL && node_cells_take(cells, &terms) &&
                    node_cells_look(cells, asked->number) == CELLS_DIRECT;
    if (!is_there) {
        error_set(&result, STATUS_PROTOCOL, "communicator \"%s\", rank %u: operation %llu came twice",
                  member->comm->name, member->rank, (unsigned long long)asked->number);
    } else if (buffers->exec.output != NULL) {
        memcpy(buffers->exec.output, node_cells_output(cells, &terms, member->local_index, asked->number),
               node_cells_output_bytes(cells, &terms, member->rank));
    }
    comms_buffers_free(buffers);
    struct comms_completion completion = {.ticket = asked->ticket, .result = &result};
    member->handler.completed(member->handler.context, member, &completion, now_ns);
}

bool comms_node_cells_claim(struct comms_member *member, const struct comms_op *asked, uint64_t now_ns)
{
    const struct communicator *comm = member->comm;
    if (!comms_cells_are_between_nodes(comm) || member->refused || op_kind_is_message(asked->terms.kind) ||
        asked->number > member->posted_seq) {
        return false;
    }
    struct communicator_op *op = comms_op_at(comm, asked->number);
    const struct communicator_post *post = op != NULL ? &op->posts[member->local_index] : NULL;
    if (post != NULL && post->in_cell && post->owed && !op->answered_well) {
        claim(op, member, asked, now_ns);
    } else if (comm->state == COMMS_COMM_FORMED ||
               node_cells_look(&comm->cells->node, asked->number) == CELLS_DIRECT) {
        tell_answered(member, asked, now_ns);
    } else {
        return false; /* refused, like all operations of a communicator that has failed */
    }
    return true;
}
