#include <assert.h>
#include <stdlib.h>

#include <utlist.h>

#include "daemon/comm/comms_internal.h"
#include "daemon/comm/node_cells.h"

/* Submits of ranks: they are checked, charged, and combined into operations. */

static enum status submit_refused(const struct comms_member *member, struct error *error)
{
    const struct communicator *comm = member->comm;
    if (member->refused) {
        return error_set(error, member->refusal.status, "%s", member->refusal.text);
    }
    switch (comm->state) {
    case COMMS_COMM_FORMING:
        return error_set(error, STATUS_IN_PROGRESS, "communicator \"%s\" is not formed yet", comm->name);
    case COMMS_COMM_FAILED:
        return error_set(error, comm->cause.status, "%s", comm->cause.text);
    case COMMS_COMM_FORMED:
        break;
    }
    return STATUS_OK;
}

/* Whether the member's next operation has no place in the ring, because an older one still uses it. An
 * operation is over only when all owners were notified. */
static bool too_many(const struct comms_member *member, struct error *why)
{
    const struct communicator *comm = member->comm;
    uint64_t seq = member->posted_seq + 1;
    const struct communicator_op *there = comm->ops[seq % COMMS_PENDING_OPS_MAX];
    if (there == NULL || there->seq == seq) {
        return false;
    }
    error_set(why, STATUS_LIMIT,
              "a communicator has at most %d operations pending, and op %llu has not ended",
              COMMS_PENDING_OPS_MAX, (unsigned long long)there->seq);
    return true;
}

/* The operations of a bucket are consecutive, have the same kind, dtype and operator, and run as one. */
static enum status check_bucket(const struct comms_member *member, const struct op_terms *terms,
                                struct error *error)
{
    bool begins = terms->bucket_index == 0;
    uint32_t left = (uint32_t)terms->bucket_ops - terms->bucket_index;
    bool goes_on = !begins && left == member->bucket_left && terms->kind == member->bucket_kind &&
                   terms->dtype == member->bucket_dtype && terms->reduce == member->bucket_reduce;
    if (member->bucket_left == 0 ? begins : goes_on) {
        return STATUS_OK;
    }
    return error_set(error, STATUS_INVALID_ARGUMENT,
                     "communicator \"%s\", rank %u: operation %u of %u of a bucket does not continue the "
                     "open bucket, which lacks %u operations",
                     member->comm->name, member->rank, terms->bucket_index + 1, terms->bucket_ops,
                     member->bucket_left);
}

/* Inserts the operation by seq. Higher ones may be there already, posted by ranks to which this one was
 * refused. */
static void op_queue(struct communicator_op *op)
{
    struct communicator *comm = op->comm;
    struct communicator_op *before = comm->pending != NULL ? comm->pending->prev : NULL;
    while (before != NULL && before->seq > op->seq) {
        before = before == comm->pending ? NULL : before->prev;
    }
    if (before != NULL) {
        DL_APPEND_ELEM(comm->pending, before, op);
    } else {
        DL_PREPEND(comm->pending, op);
    }
    if (comm->start == NULL || op->seq < comm->start->seq) {
        comm->start = op;
    }
}

static struct communicator_op *op_new(struct comms_member *member, const struct op_terms *terms, uint64_t seq,
                                      uint64_t now_ns)
{
    struct communicator *comm = member->comm;
    struct communicator_op *op = calloc(1, sizeof *op + comm->local_count * sizeof op->posts[0]);
    if (op != NULL) {
        op->comm = comm;
        op->seq = seq;
        op->terms = *terms;
        op->first_rank = member->rank;
        op->first_pid = member->client.pid;
        op->first_post_ns = now_ns;
        op->timeout_ms = UINT64_MAX;
        comm->comms->totals.ops_pending++;
        assert(comm->ops[seq % COMMS_PENDING_OPS_MAX] == NULL);
        comm->ops[seq % COMMS_PENDING_OPS_MAX] = op;
        op_queue(op);
    }
    return op;
}

static void number_use(struct comms_member *member, const struct op_terms *terms)
{
    struct communicator *comm = member->comm;
    member->posted_seq++;
    member->bucket_left = terms->bucket_ops - terms->bucket_index - 1u;
    member->bucket_kind = terms->kind;
    member->bucket_dtype = terms->dtype;
    member->bucket_reduce = terms->reduce;
    comm->highest_seq = member->posted_seq > comm->highest_seq ? member->posted_seq : comm->highest_seq;
    comms_cells_resume(comm);
}

/* Leaves out the numbers of operations that went through cells. A number that makes no sense is the next one:
 * the rank then contradicts the others. A rank uses cells only while commd has none of its operations. So no
 * gap is ever among those that it is owed, and nobody walks through it. */
static void number_skip_to(struct comms_member *member, uint64_t number)
{
    uint64_t next = member->posted_seq + 1;
    if (member->comm->cells == NULL || comms_cells_are_between_nodes(member->comm) || number <= next ||
        number - next > COMMS_SKIPPED_MAX || number > COMMS_NUMBER_MAX || member->bucket_left > 0 ||
        member->owed_ops > 0) {
        return;
    }
    member->posted_seq = member->completed_seq = number - 1;
}

static uint64_t call_ns(const struct comms_op *call, uint64_t now_ns)
{
    uint64_t waited_ms = call->waited_ms < COMMS_WAITED_MAX_MS ? call->waited_ms : COMMS_WAITED_MAX_MS;
    return now_ns > waited_ms * TIME_MS ? now_ns - waited_ms * TIME_MS : now_ns;
}

static void op_post(struct communicator_op *op, struct comms_member *member, const struct comms_op *call,
                    struct comms_buffers *buffers, uint64_t called_ns)
{
    struct communicator *comm = op->comm;
    struct communicator_post *post = &op->posts[member->local_index];
    uint64_t timeout_ms = call->timeout_ms != 0 ? call->timeout_ms : comm->terms.op_timeout_ms;
    op->first_post_ns = time_min(op->first_post_ns, called_ns);
    post->posted = true;
    post->owed = true;
    post->rank = member->rank;
    post->ticket = call->ticket;
    post->in_cell = call->in_cell;
    op->in_cells |= call->in_cell;
    post->buffers = buffers;
    op->posted_count++;
    trace_op_posted(comm->comm_id, op->seq, op->terms.kind, member->rank, 0,
                    op->terms.count_elements * dtype_size_bytes(op->terms.dtype));
    op->owed_count++;
    member->owed_ops++;
    op->timeout_ms = timeout_ms < op->timeout_ms ? timeout_ms : op->timeout_ms;
    comm->op_deadline_ns = time_min(comm->op_deadline_ns, comms_op_deadline_ns(op));
    if (op == comm->pending) {
        comm->op_deadline_ns = time_min(comm->op_deadline_ns, comms_missing_step(comm, op->first_post_ns));
    }
}

void comms_submit_deadline(struct communicator_op *op, const struct comms_op *call, uint64_t now_ns)
{
    struct communicator *comm = op->comm;
    uint64_t timeout_ms = call->timeout_ms != 0 ? call->timeout_ms : comm->terms.op_timeout_ms;
    op->first_post_ns = time_min(op->first_post_ns, call_ns(call, now_ns));
    op->timeout_ms = timeout_ms < op->timeout_ms ? timeout_ms : op->timeout_ms;
    comm->op_deadline_ns = time_min(comm->op_deadline_ns, comms_op_deadline_ns(op));
}

static void op_contradiction(struct communicator_op *op, const struct comms_member *member,
                             const struct op_terms *terms, const char *field, uint64_t now_ns)
{
    char first[OP_TERMS_TEXT_MAX_BYTES];
    char second[OP_TERMS_TEXT_MAX_BYTES];
    struct error cause;
    struct comms_detail detail = {.seq = op->seq};
    comms_detail_add(&detail, op->comm, op->first_rank, (int32_t)op->first_pid);
    comms_detail_add_member(&detail, member);
    op_terms_describe(&op->terms, first, sizeof first);
    op_terms_describe(terms, second, sizeof second);
    error_set(&cause, STATUS_MISMATCH,
              "op %llu on \"%s\": rank %u (pid %d): %s; rank %u (pid %d): %s: they differ in: %s",
              (unsigned long long)op->seq, op->comm->name, op->first_rank, (int)op->first_pid, first,
              member->rank, (int)member->client.pid, second, field);
    comms_dispute_local(op, &cause, &detail, now_ns);
}

/* Cost of an operation with its entries for all local ranks, and its queue entry in exec. The rank that posts
 * it first is charged. */
static uint64_t op_cost_bytes(const struct communicator *comm)
{
    return sizeof(struct communicator_op) + comm->local_count * sizeof(struct communicator_post) +
           EXEC_OP_COST_BYTES;
}

/* Cost of one rank's part: its buffers here and in exec, and copies of layouts. */
static uint64_t part_cost_bytes(const struct communicator *comm, const struct comms_op *asked)
{
    uint64_t layouts =
        (asked->input_layout.memory != NULL ? 1u : 0u) + (asked->output_layout.memory != NULL ? 1u : 0u);
    bool fenced = asked->wait_count > 0 || asked->ended.word.memory != NULL;
    return sizeof(struct comms_buffers) + sizeof(struct exec_rank) +
           layouts * 2 * comm->terms.size * sizeof(uint64_t) + (fenced ? sizeof(struct comms_fences) : 0);
}

/*
 * Refuses an operation, which uses up its number. The caller gets the error at once, and nothing is kept for
 * it. The other ranks get the reason, and all continue with the next operation.
 */
static enum status op_refuse(struct comms_member *member, const struct comms_op *asked,
                             const struct op_terms *terms, const struct error *why, uint64_t now_ns,
                             struct error *error)
{
    struct communicator *comm = member->comm;
    number_use(member, terms);
    uint64_t seq = member->posted_seq;
    comms_node_cells_submitted(comm, seq);
    trace_op_told(comm->comm_id, seq, terms->kind, member->rank, 0, why->status);
    if (member->owed_ops == 0) {
        member->completed_seq = seq;
    }
    comms_fence_set(&asked->ended);
    if (!comms_verdict_find(comm, seq, error)) {
        uint32_t before = terms->bucket_index < seq ? terms->bucket_index : 0; /* the bucket ends as one */
        uint32_t ops = terms->bucket_ops > before ? terms->bucket_ops : before + 1;
        comms_verdict_refusal_text(member, seq, 1, why, error);
        comms_verdict_refuse(member, seq - before, ops, why, now_ns);
    }
    communicator_arm(comm);
    return error->status;
}

/* op_bytes were charged for the operation, if this is its first post. Takes ownership of the buffers. */
static enum status post_op(struct comms_member *member, const struct comms_op *asked,
                           const struct op_terms *terms, struct comms_buffers *buffers, uint64_t op_bytes,
                           uint64_t now_ns, struct error *error)
{
    struct communicator *comm = member->comm;
    uint64_t seq = member->posted_seq + 1;
    struct communicator_op *op = comms_op_at(comm, seq);
    const char *field;
    struct error verdict;
    if (op == NULL) {
        op = op_new(member, terms, seq, now_ns);
        if (op == NULL) {
            budget_release(buffers->account, BUDGET_OPERATIONS, op_bytes);
            comms_buffers_free(buffers);
            error_set(&verdict, STATUS_LIMIT, "no memory for an operation");
            return op_refuse(member, asked, terms, &verdict, now_ns, error);
        }
        op->account = buffers->account;
        op->charged_bytes = op_bytes;
    }
    number_use(member, terms);
    if (!asked->in_cell) {
        comms_node_cells_submitted(comm, seq);
    }
    op_post(op, member, asked, buffers, call_ns(asked, now_ns));
    if (op->finished) { /* before this rank came */
        op->posts[member->local_index].buffers = NULL;
        comms_buffers_free(buffers);
        communicator_queue(comm);
    } else if (comms_verdict_find(comm, seq, &verdict)) {
        comms_op_end(op, &verdict, comms_verdict_detail(comm, seq), now_ns);
    } else if ((field = op_terms_difference(&op->terms, terms)) != NULL) {
        op_contradiction(op, member, terms, field, now_ns);
    } else if (!op->disputed) {
        comms_dispute_layouts(op, member->local_index, now_ns);
    }
    comms_op_check_left(comm, now_ns);
    comms_op_start_ready(comm, now_ns);
    communicator_arm(comm);
    return STATUS_OK;
}

/* Charges the operation, if it is new, and the rank's part. Takes ownership of the buffers. */
static enum status hold_buffers(struct comms_member *member, const struct comms_op *op,
                                struct comms_buffers *buffers, struct comms_buffers **out, uint64_t *op_bytes,
                                struct error *error)
{
    struct communicator *comm = member->comm;
    *op_bytes = comms_op_at(comm, member->posted_seq + 1) == NULL ? op_cost_bytes(comm) : 0;
    uint64_t part_bytes = part_cost_bytes(comm, op);
    enum status status =
        budget_charge(member->client.account, BUDGET_OPERATIONS, *op_bytes + part_bytes, error);
    if (status != STATUS_OK) {
        comms_buffers_release(buffers);
        return status;
    }
    struct comms_buffers *held = malloc(sizeof *held);
    if (held == NULL) {
        comms_buffers_release(buffers);
        budget_release(member->client.account, BUDGET_OPERATIONS, *op_bytes + part_bytes);
        return error_set(error, STATUS_LIMIT, "no memory for an operation");
    }
    *held = *buffers;
    held->account = member->client.account;
    held->charged_bytes = part_bytes;
    *out = held;
    return STATUS_OK;
}

enum status comms_submit(struct comms_member *member, const struct comms_op *op, uint64_t now_ns,
                         struct error *error)
{
    struct op_terms terms;
    struct comms_buffers buffers;
    struct error why;
    if (op->number != 0 && comms_node_cells_claim(member, op, now_ns)) {
        return STATUS_OK;
    }
    enum status status = submit_refused(member, error);
    if (status != STATUS_OK) {
        return status;
    }
    if (op_kind_is_message(op->terms.kind)) {
        return comms_p2p_submit(member, op, now_ns, error);
    }
    if (comms_call_check(op, member->rank, member->comm->terms.size, &terms, &buffers, &why) != STATUS_OK) {
        if (member->comm->cells != NULL && check_bucket(member, &op->terms, error) == STATUS_OK) {
            number_skip_to(member, op->number); /* the rank has told the others that it takes part */
            return op_refuse(member, op, &op->terms, &why, now_ns, error);
        }
        return error_set(error, why.status, "communicator \"%s\", rank %u: %s", member->comm->name,
                         member->rank, why.text);
    }
    status = check_bucket(member, &terms, error);
    if (status != STATUS_OK) {
        comms_buffers_release(&buffers);
        return status;
    }
    number_skip_to(member, op->number);
    trace_op_taken(member->comm->comm_id, member->posted_seq + 1, op->terms.kind, member->rank, 0,
                   op->ticket);
    if (too_many(member, &why)) {
        comms_buffers_release(&buffers);
        return op_refuse(member, op, &terms, &why, now_ns, error);
    }
    struct comms_buffers *held = NULL;
    uint64_t op_bytes;
    if (hold_buffers(member, op, &buffers, &held, &op_bytes, &why) != STATUS_OK) {
        return op_refuse(member, op, &terms, &why, now_ns, error);
    }
    return post_op(member, op, &terms, held, op_bytes, now_ns, error);
}

enum status comms_submit_cell(struct comms_member *member, const struct comms_op *asked,
                              const struct comms_cell_place *place, uint64_t now_ns, struct error *error)
{
    struct op_terms terms;
    struct comms_buffers buffers;
    struct comms_buffers *held = NULL;
    struct comms_op op = *asked;
    uint64_t op_bytes;
    enum status status = submit_refused(member, error);
    if (status == STATUS_OK) {
        status = comms_call_check_placed(&op, member->comm->terms.size, place, &terms, &buffers, error);
    }
    if (status == STATUS_OK) {
        status = check_bucket(member, &terms, error);
    }
    if (status == STATUS_OK && too_many(member, error)) {
        status = error->status;
    }
    if (status == STATUS_OK) {
        status = hold_buffers(member, &op, &buffers, &held, &op_bytes, error);
    }
    if (status != STATUS_OK) {
        return status;
    }
    op.in_cell = true;
    trace_op_taken(member->comm->comm_id, member->posted_seq + 1, terms.kind, member->rank, 0, op.ticket);
    return post_op(member, &op, &terms, held, op_bytes, now_ns, error);
}
