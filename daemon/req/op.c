#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/base/checked.h"
#include "daemon/req/req_internal.h"

struct req_comm_op *req_op_at(const struct req_comm *comm, uint64_t seq)
{
    if (comm->ops == NULL) {
        return NULL; /* not formed yet */
    }
    struct req_comm_op *op = comm->ops[seq % REQ_PENDING_OPS_MAX];
    return op != NULL && op->seq == seq ? op : NULL;
}

bool req_op_any_pending(const struct req_comm *comm)
{
    return comm->ops != NULL && comm->oldest_seq <= comm->highest_seq;
}

/* Null is accepted. */
static void part_free(struct req_comm_part *part)
{
    if (part != NULL) {
        req_buffers_release(&part->buffers);
        budget_release(part->account, BUDGET_OPERATIONS, part->charged_bytes);
        free(part);
    }
}

static void part_release(struct req_comm_post *post)
{
    struct req_comm_part *part = post->part;
    post->part = NULL;
    part_free(part);
}

static void op_release(struct req_comm_op *op)
{
    for (uint32_t i = 0; i < op->comm->local_count; i++) {
        part_release(&op->posts[i]);
    }
}

static void op_free(struct req_comm_op *op)
{
    struct req_comm *comm = op->comm;
    op_release(op);
    budget_release(op->account, BUDGET_OPERATIONS, op->charged_bytes);
    comm->ops[op->seq % REQ_PENDING_OPS_MAX] = NULL;
    free(op->cause);
    free(op);
}

void req_op_settle(struct req_comm_op *op, uint32_t local_index)
{
    if (op->posts[local_index].owed) {
        op->posts[local_index].owed = false;
        op->owed_count--;
    }
    if (op->finished && op->owed_count == 0) {
        op_free(op);
    }
}

void req_op_free_all(struct req_comm *comm)
{
    for (uint32_t i = 0; comm->ops != NULL && i < REQ_PENDING_OPS_MAX; i++) {
        if (comm->ops[i] != NULL) {
            op_free(comm->ops[i]);
        }
    }
    free(comm->ops);
    comm->ops = NULL;
}

/* --- The end --- */

static void op_set_cause(struct req_comm_op *op, const struct error *cause)
{
    if (op->cause == NULL) {
        op->cause = malloc(sizeof *op->cause); /* without memory the communicator's cause has to do */
        if (op->cause != NULL) {
            *op->cause = *cause;
        }
    }
}

static void op_finish(struct req_comm_op *op, bool succeeded)
{
    struct req_comm *comm = op->comm;
    op->running = false;
    op->finished = true;
    op->succeeded = succeeded;
    op_release(op);
    if (succeeded) {
        comm->completed_count++;
        comm->bytes_reduced += op->call.count_elements * dtype_size_bytes(op->call.dtype);
    }
    if (op->owed_count == 0) {
        op_free(op);
    }
    while (comm->oldest_seq <= comm->highest_seq) {
        const struct req_comm_op *oldest = req_op_at(comm, comm->oldest_seq);
        if (oldest != NULL && !oldest->finished) {
            break;
        }
        comm->oldest_seq++;
    }
    req_comm_queue(comm);
}

static uint64_t op_bucket_first(const struct req_comm_op *op)
{
    return op->seq - op->call.bucket_index;
}

/* `context` is the first of its bucket. */
void req_op_done(void *context, const struct error *result, uint64_t now_ns)
{
    struct req_comm_op *first = context;
    struct req_comm *comm = first->comm;
    uint64_t seq = first->seq;
    uint32_t ops = first->call.bucket_ops;
    (void)now_ns;
    for (uint32_t i = 0; i < ops; i++) {
        struct req_comm_op *op = req_op_at(comm, seq + i);
        if (result->status != STATUS_OK && comm->state != REQ_COMM_FAILED) {
            op_set_cause(op, result);
        }
        op_finish(op, result->status == STATUS_OK);
    }
}

void req_op_end(struct req_comm_op *op, const struct error *cause, uint64_t now_ns)
{
    if (op->finished) {
        return;
    }
    if (op->running) {
        exec_cancel(op->comm->exec, op_bucket_first(op), cause, now_ns);
        return;
    }
    op_set_cause(op, cause);
    op_finish(op, false);
}

void req_op_fail_waiting(struct req_comm *comm)
{
    for (uint64_t seq = comm->oldest_seq; seq <= comm->highest_seq; seq++) {
        struct req_comm_op *op = req_op_at(comm, seq);
        if (op != NULL && !op->finished && !op->running) {
            op_finish(op, false);
        }
    }
}

void req_op_overdue(struct req_comm *comm)
{
    for (uint64_t seq = comm->oldest_seq; seq <= comm->highest_seq; seq++) {
        struct req_comm_op *op = req_op_at(comm, seq);
        if (op == NULL || op->finished) {
            continue;
        }
        op->overdue = true;
        for (uint32_t i = 0; i < comm->local_count; i++) {
            const struct req_comm_part *part = op->posts[i].part;
            req_fences_signal(part != NULL ? part->buffers.fences : NULL);
        }
    }
}

static void op_fail_comm(struct req_comm *comm, const struct error *cause, uint64_t now_ns)
{
    req_comm_fail(comm, cause, REQ_TELL_NODES, now_ns);
}

void req_op_check_left(struct req_comm *comm, uint64_t now_ns)
{
    if (comm->state == REQ_COMM_FORMED && req_op_any_pending(comm) && comm->highest_seq > comm->left_seq) {
        struct error cause;
        error_set(&cause, STATUS_RANK_LOST, "communicator \"%s\": rank %u (node %s) has left after op %llu",
                  comm->name, comm->left_rank, comm->node_names[comm->node_of_rank[comm->left_rank]],
                  (unsigned long long)comm->left_seq);
        op_fail_comm(comm, &cause, now_ns);
    }
}

/* --- Deadlines --- */

uint64_t req_op_deadline_ns(const struct req_comm_op *op)
{
    uint64_t timeout_ns;
    if (!checked_mul_u64(op->timeout_ms, TIME_MS, &timeout_ns)) {
        return TIME_NEVER;
    }
    return time_after(op->first_post_ns, timeout_ns);
}

/* When this node speaks: at once when it knows a rank that is late, else a little later. */
static uint64_t op_speak_ns(const struct req_comm_op *op)
{
    const struct req_comm *comm = op->comm;
    if (op->posted_count < comm->local_count || comm->node_count == 1) {
        return req_op_deadline_ns(op);
    }
    uint32_t steps = comm->own_index < REQ_DEADLINE_STEPS_MAX ? comm->own_index : REQ_DEADLINE_STEPS_MAX;
    return time_after(req_op_deadline_ns(op), REQ_DEADLINE_GRACE_NS + steps * REQ_DEADLINE_STEP_NS);
}

static void add_late_ranks(const struct req_comm_op *op, struct req_text *text)
{
    const struct req_comm *comm = op->comm;
    uint32_t late = comm->local_count - op->posted_count;
    const char *separator = late == 1 ? "rank " : "ranks ";
    for (uint32_t i = 0; i < comm->local_count; i++) {
        if (!op->posts[i].posted && comm->locals[i] != NULL) {
            req_text_add(text, "%s%u (pid %d)", separator, comm->locals[i]->rank,
                         (int)comm->locals[i]->client.pid);
            separator = ", ";
        }
    }
    req_text_add(text, " of node %s %s not posted it", req_comm_own_name(comm), late == 1 ? "has" : "have");
}

static void op_late(const struct req_comm_op *op, struct error *cause)
{
    const struct req_comm *comm = op->comm;
    const struct req_comm_op *oldest = req_op_at(comm, comm->oldest_seq);
    oldest = oldest != NULL ? oldest : op;
    char why[256];
    char waits[192] = "";
    struct req_text text;
    req_text_begin(&text, why, sizeof why);
    if (oldest != op) {
        req_text_add(&text, "it comes after op %llu: ", (unsigned long long)oldest->seq);
    }
    if (oldest->posted_count < comm->local_count) {
        add_late_ranks(oldest, &text);
    } else {
        exec_comm_describe_wait(comm->exec, waits, sizeof waits);
        req_text_add(&text, "node %s: %s", req_comm_own_name(comm),
                     waits[0] != '\0' ? waits : "about to begin");
    }
    error_set(cause, STATUS_TIMED_OUT, "op %llu %s on \"%s\": not done within %llu ms; %s",
              (unsigned long long)op->seq, op_kind_text(op->call.kind), comm->name,
              (unsigned long long)op->timeout_ms, why);
}

void req_op_deadlines(struct req_comm *comm, uint64_t now_ns)
{
    const struct req_comm_op *late = NULL;
    uint64_t next_ns = TIME_NEVER;
    for (uint64_t seq = comm->oldest_seq; seq <= comm->highest_seq; seq++) {
        const struct req_comm_op *op = req_op_at(comm, seq);
        if (op == NULL || op->finished) {
            continue;
        }
        uint64_t speak_ns = op_speak_ns(op);
        next_ns = time_min(next_ns, speak_ns);
        if (now_ns >= speak_ns && late == NULL) {
            late = op;
        }
    }
    struct error cause = {.status = STATUS_OK};
    if (late != NULL) {
        op_late(late, &cause);
    }
    comm->op_deadline_ns = time_min(next_ns, req_point_deadlines(comm, now_ns, &cause));
    if (cause.status != STATUS_OK) {
        op_fail_comm(comm, &cause, now_ns);
    }
}

/* --- Submission --- */

static enum status submit_refused(const struct req_member *member, struct error *error)
{
    const struct req_comm *comm = member->comm;
    if (member->refused) {
        return error_set(error, member->refusal.status, "%s", member->refusal.text);
    }
    switch (comm->state) {
    case REQ_COMM_FORMING:
        return error_set(error, STATUS_IN_PROGRESS, "communicator \"%s\" is not formed yet", comm->name);
    case REQ_COMM_FAILED:
        return error_set(error, comm->cause.status, "%s", comm->cause.text);
    case REQ_COMM_FORMED:
        break;
    }
    return STATUS_OK;
}

static enum status too_many(const struct req_member *member, struct error *error)
{
    const struct req_comm *comm = member->comm;
    if (member->posted_seq - member->completed_seq >= REQ_PENDING_OPS_MAX ||
        (comm->ops[(member->posted_seq + 1) % REQ_PENDING_OPS_MAX] != NULL &&
         req_op_at(comm, member->posted_seq + 1) == NULL)) {
        return error_set(error, STATUS_LIMIT, "communicator \"%s\": rank %u has %d operations pending",
                         comm->name, member->rank, REQ_PENDING_OPS_MAX);
    }
    return STATUS_OK;
}

/* The operations of a bucket follow each other, with nothing between them. */
static enum status check_bucket(const struct req_member *member, const struct req_call *call,
                                struct error *error)
{
    bool begins = call->bucket_index == 0;
    if (member->bucket_left == 0 ? begins
                                 : !begins && call->bucket_ops - call->bucket_index == member->bucket_left) {
        return STATUS_OK;
    }
    return error_set(
        error, STATUS_INVALID_ARGUMENT,
        "communicator \"%s\", rank %u: operation %u of %u of a bucket, where %u of it are to come",
        member->comm->name, member->rank, call->bucket_index + 1, call->bucket_ops, member->bucket_left);
}

static struct req_comm_op *op_new(struct req_member *member, const struct req_call *call, uint64_t seq,
                                  uint64_t now_ns)
{
    struct req_comm *comm = member->comm;
    struct req_comm_op *op = calloc(1, sizeof *op + comm->local_count * sizeof op->posts[0]);
    if (op != NULL) {
        op->comm = comm;
        op->seq = seq;
        op->call = *call;
        op->first_rank = member->rank;
        op->first_pid = member->client.pid;
        op->first_post_ns = now_ns;
        op->timeout_ms = UINT64_MAX;
        assert(comm->ops[seq % REQ_PENDING_OPS_MAX] == NULL);
        comm->ops[seq % REQ_PENDING_OPS_MAX] = op;
        comm->highest_seq = seq > comm->highest_seq ? seq : comm->highest_seq;
    }
    return op;
}

/* The operations that run as one with this one, it included; null unless all are posted and none is in
 * doubt. */
static struct req_comm_op *bucket_ready(struct req_comm_op *op)
{
    struct req_comm *comm = op->comm;
    uint64_t first = op_bucket_first(op);
    for (uint32_t i = 0; i < op->call.bucket_ops; i++) {
        const struct req_comm_op *each = op->call.bucket_index >= op->seq ? NULL : req_op_at(comm, first + i);
        if (each == NULL || each->finished || each->disputed || each->posted_count < comm->local_count ||
            each->call.bucket_ops != op->call.bucket_ops || each->call.bucket_index != i) {
            return NULL;
        }
    }
    return req_op_at(comm, first);
}

/* What the calls of a bucket agree on, together. */
static uint32_t bucket_detail(const struct req_comm_op *first)
{
    uint32_t detail = 0;
    for (uint32_t i = 0; i < first->call.bucket_ops; i++) {
        detail = detail * 2654435761u + req_call_detail(&req_op_at(first->comm, first->seq + i)->call);
    }
    return detail;
}

/* Every local rank has posted it, and all before it. */
static enum status op_start(struct req_comm_op *first, struct error *error)
{
    struct req_comm *comm = first->comm;
    uint32_t ops = first->call.bucket_ops;
    struct exec_rank *ranks = calloc((size_t)ops * comm->local_count, sizeof *ranks);
    uint64_t *counts = calloc(ops, sizeof *counts);
    enum status status = STATUS_NO_MEMORY;
    if (ranks == NULL || counts == NULL) {
        status =
            error_set(error, STATUS_NO_MEMORY, "communicator \"%s\": no memory for an operation", comm->name);
        goto cleanup;
    }
    for (uint32_t part = 0; part < ops; part++) {
        const struct req_comm_op *op = req_op_at(comm, first->seq + part);
        counts[part] = op->call.count_elements;
        for (uint32_t i = 0; i < comm->local_count; i++) {
            ranks[(size_t)part * comm->local_count + i] = op->posts[i].part->buffers.exec;
        }
    }
    struct exec_call call = {
        .kind = first->call.kind,
        .dtype = first->call.dtype,
        .reduce = first->call.reduce,
        .seq = first->seq,
        .count_elements = first->call.count_elements,
        .root_rank = first->call.root_rank,
        .divisor =
            op_kind_reduces(first->call.kind) && first->call.reduce == REDUCE_AVG ? comm->terms.size : 0,
        .has_layouts = first->call.has_layouts,
        .detail = bucket_detail(first),
        .compression = first->call.compression,
        .top_k_permille = first->call.top_k_permille,
        .part_count = ops,
        .part_counts = counts,
        .rank_count = comm->local_count,
        .ranks = ranks,
        .done = req_op_done,
        .context = first,
    };
    status = exec_submit(comm->exec, &call, error);
    for (uint32_t part = 0; part < ops && status == STATUS_OK; part++) {
        req_op_at(comm, first->seq + part)->running = true;
    }
cleanup:
    free(counts);
    free(ranks);
    return status;
}

void req_op_start_ready(struct req_comm *comm, uint64_t now_ns)
{
    struct error cause;
    while (comm->state == REQ_COMM_FORMED && !comm->exec_failed && comm->start_seq <= comm->highest_seq) {
        struct req_comm_op *op = req_op_at(comm, comm->start_seq);
        if (op == NULL || op->finished) {
            comm->start_seq++; /* by a verdict, before it began */
            continue;
        }
        struct req_comm_op *first = bucket_ready(op);
        if (first != op) {
            return;
        }
        comm->start_seq += op->call.bucket_ops;
        if (op_start(op, &cause) != STATUS_OK) {
            op_fail_comm(comm, &cause, now_ns);
        }
    }
}

static void op_post(struct req_comm_op *op, struct req_member *member, const struct req_op *call,
                    struct req_comm_part *part)
{
    struct req_comm *comm = op->comm;
    struct req_comm_post *post = &op->posts[member->local_index];
    uint64_t timeout_ms = call->timeout_ms != 0 ? call->timeout_ms : comm->terms.op_timeout_ms;
    post->posted = true;
    post->owed = true;
    post->rank = member->rank;
    post->ticket = call->ticket;
    post->part = part;
    op->posted_count++;
    op->owed_count++;
    member->posted_seq = op->seq;
    op->timeout_ms = timeout_ms < op->timeout_ms ? timeout_ms : op->timeout_ms;
    comm->op_deadline_ns = time_min(comm->op_deadline_ns, req_op_deadline_ns(op));
}

static void op_contradiction(struct req_comm_op *op, const struct req_member *member,
                             const struct req_call *call, uint64_t now_ns)
{
    char first[REQ_CALL_TEXT_MAX_BYTES];
    char second[REQ_CALL_TEXT_MAX_BYTES];
    struct error cause;
    req_call_describe(&op->call, first, sizeof first);
    req_call_describe(call, second, sizeof second);
    error_set(&cause, STATUS_MISMATCH, "op %llu on \"%s\": rank %u (pid %d): %s; rank %u (pid %d): %s",
              (unsigned long long)op->seq, op->comm->name, op->first_rank, (int)op->first_pid, first,
              member->rank, (int)member->client.pid, second);
    req_dispute_local(op, &cause, now_ns);
}

/* An operation with its places for all local ranks, which who posts it first pays, and its queue entry in
 * exec.
 */
static uint64_t op_cost_bytes(const struct req_comm *comm)
{
    return sizeof(struct req_comm_op) + comm->local_count * sizeof(struct req_comm_post) + EXEC_OP_COST_BYTES;
}

/* One rank's part: its entries here and in exec, and copies of layouts. */
static uint64_t part_cost_bytes(const struct req_comm *comm, const struct req_op *asked)
{
    uint64_t layouts =
        (asked->input_layout.memory != NULL ? 1u : 0u) + (asked->output_layout.memory != NULL ? 1u : 0u);
    bool fenced = asked->wait_count > 0 || asked->ended.word.memory != NULL;
    return sizeof(struct req_comm_part) + sizeof(struct exec_rank) +
           layouts * 2 * comm->terms.size * sizeof(uint64_t) + (fenced ? sizeof(struct req_fences) : 0);
}

/* Without buffers, and not charged: all ranks hear why, and go on with the next one. */
static enum status op_refuse(struct req_member *member, const struct req_op *asked,
                             const struct req_call *call, const struct error *why, uint64_t now_ns,
                             struct error *error)
{
    struct req_comm *comm = member->comm;
    uint64_t seq = member->posted_seq + 1;
    struct req_comm_op *op = req_op_at(comm, seq);
    struct error cause;
    op = op != NULL ? op : op_new(member, call, seq, now_ns);
    if (op == NULL) {
        return error_set(error, STATUS_NO_MEMORY, "communicator \"%s\": no memory for an operation",
                         comm->name);
    }
    op_post(op, member, asked, NULL);
    member->bucket_left = call->bucket_ops - call->bucket_index - 1;
    const struct error *verdict = req_verdict_on(comm, seq);
    if (verdict == NULL) {
        error_set(&cause, STATUS_LIMIT, "op %llu on \"%s\": rank %u (pid %d, node %s): %s",
                  (unsigned long long)seq, comm->name, member->rank, (int)member->client.pid,
                  req_comm_own_name(comm), why->text);
        req_dispute_refused(op, &cause, now_ns);
    } else if (!op->finished) {
        req_op_end(op, verdict, now_ns);
    } else {
        req_comm_queue(comm);
    }
    req_fence_set(&asked->ended);
    req_comm_arm(comm);
    return STATUS_OK;
}

/* op_bytes are charged for the operation, if this is its first post. Takes the part. */
static enum status post_op(struct req_member *member, const struct req_op *asked, const struct req_call *call,
                           struct req_comm_part *part, uint64_t op_bytes, uint64_t now_ns,
                           struct error *error)
{
    struct req_comm *comm = member->comm;
    uint64_t seq = member->posted_seq + 1;
    struct req_comm_op *op = req_op_at(comm, seq);
    if (op == NULL) {
        op = op_new(member, call, seq, now_ns);
        if (op == NULL) {
            budget_release(part->account, BUDGET_OPERATIONS, op_bytes);
            part_free(part);
            return error_set(error, STATUS_NO_MEMORY, "communicator \"%s\": no memory for an operation",
                             comm->name);
        }
        op->account = part->account;
        op->charged_bytes = op_bytes;
    }
    op_post(op, member, asked, part);
    member->bucket_left = call->bucket_ops - call->bucket_index - 1;
    const struct error *verdict = req_verdict_on(comm, seq);
    if (verdict != NULL) {
        if (op->finished) {
            part_release(&op->posts[member->local_index]); /* it ended before this rank came */
            req_comm_queue(comm);
        } else {
            req_op_end(op, verdict, now_ns);
        }
    } else if (!req_calls_agree(&op->call, call)) {
        op_contradiction(op, member, call, now_ns);
    } else if (!op->disputed && op->posted_count == comm->local_count) {
        req_dispute_layouts(op, now_ns);
    }
    req_op_check_left(comm, now_ns);
    req_op_start_ready(comm, now_ns);
    req_comm_arm(comm);
    return STATUS_OK;
}

enum status req_submit(struct req_member *member, const struct req_op *op, uint64_t now_ns,
                       struct error *error)
{
    struct req_call call;
    struct req_buffers buffers;
    struct error why;
    enum status status = submit_refused(member, error);
    if (status != STATUS_OK) {
        return status;
    }
    if (op_kind_is_message(op->kind)) {
        return req_point_submit(member, op, now_ns, error);
    }
    status = too_many(member, error);
    if (status != STATUS_OK) {
        return status;
    }
    if (req_call_check(op, member->rank, member->comm->terms.size, &call, &buffers, &why) != STATUS_OK) {
        return error_set(error, why.status, "communicator \"%s\", rank %u: %s", member->comm->name,
                         member->rank, why.text);
    }
    status = check_bucket(member, &call, error);
    if (status != STATUS_OK) {
        req_buffers_release(&buffers);
        return status;
    }
    uint64_t op_bytes =
        req_op_at(member->comm, member->posted_seq + 1) == NULL ? op_cost_bytes(member->comm) : 0;
    uint64_t part_bytes = part_cost_bytes(member->comm, op);
    if (budget_charge(member->client.account, BUDGET_OPERATIONS, op_bytes + part_bytes, &why) != STATUS_OK) {
        req_buffers_release(&buffers);
        return op_refuse(member, op, &call, &why, now_ns, error);
    }
    struct req_comm_part *part = malloc(sizeof *part);
    if (part == NULL) {
        req_buffers_release(&buffers);
        budget_release(member->client.account, BUDGET_OPERATIONS, op_bytes + part_bytes);
        return error_set(error, STATUS_NO_MEMORY, "communicator \"%s\": no memory for an operation",
                         member->comm->name);
    }
    *part = (struct req_comm_part){buffers, member->client.account, part_bytes};
    return post_op(member, op, &call, part, op_bytes, now_ns, error);
}
