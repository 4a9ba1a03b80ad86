#include <stdio.h>
#include <stdlib.h>

#include <utlist.h>

#include "daemon/base/checked.h"
#include "daemon/base/hash.h"
#include "daemon/comm/comms_internal.h"
#include "daemon/comm/loss.h"
#include "daemon/comm/node_cells.h"

bool comms_op_any_pending(const struct communicator *comm)
{
    return comm->pending != NULL;
}

static void op_release(struct communicator_op *op)
{
    for (uint32_t i = 0; i < op->comm->local_count; i++) {
        comms_buffers_free(op->posts[i].buffers);
        comms_buffers_free(op->posts[i].claimed);
        op->posts[i].buffers = op->posts[i].claimed = NULL;
    }
}

static void op_free(struct communicator_op *op)
{
    struct communicator *comm = op->comm;
    op_release(op);
    budget_release(op->account, BUDGET_OPERATIONS, op->charged_bytes);
    comm->ops[op->seq % COMMS_PENDING_OPS_MAX] = NULL;
    free(op->cause);
    free(op->detail);
    free(op);
}

void comms_op_settle(struct communicator_op *op, struct comms_member *member)
{
    struct communicator_post *post = &op->posts[member->local_index];
    if (post->owed) {
        post->owed = false;
        member->owed_ops--;
        op->owed_count--;
    }
    if (op->finished && op->owed_count == 0) {
        op_free(op);
    }
}

void comms_op_settle_all(struct comms_member *member)
{
    const struct communicator *comm = member->comm;
    uint64_t left = member->posted_seq - member->completed_seq;
    for (uint64_t i = 1; i <= COMMS_PENDING_OPS_MAX && member->owed_ops > 0; i++) {
        struct communicator_op *op =
            left <= COMMS_PENDING_OPS_MAX ? comms_op_at(comm, member->completed_seq + i) : comm->ops[i - 1];
        if (op != NULL && op->posts[member->local_index].owed) {
            comms_op_settle(op, member);
        }
    }
}

void comms_op_free_all(struct communicator *comm)
{
    for (uint32_t i = 0; comm->ops != NULL && i < COMMS_PENDING_OPS_MAX; i++) {
        if (comm->ops[i] != NULL) {
            op_free(comm->ops[i]);
        }
    }
    free(comm->ops);
    comm->ops = NULL;
    comm->pending = NULL;
    comm->start = NULL;
}

/* --- The end --- */

static void op_set_cause(struct communicator_op *op, const struct error *cause)
{
    if (op->cause == NULL) {
        op->cause = malloc(sizeof *op->cause); /* without memory it gets the communicator's cause */
        if (op->cause != NULL) {
            *op->cause = *cause;
        }
    }
}

/* Moves `start` to the next operation that has not begun. */
static void start_next(struct communicator *comm)
{
    do {
        comm->start = comm->start->next;
    } while (comm->start != NULL && comm->start->running);
}

/* The whole vector's size; of an operation with layouts, of the first local rank's blocks. */
static uint64_t op_size_bytes(const struct communicator_op *op)
{
    const struct communicator *comm = op->comm;
    const struct comms_buffers *buffers = op->posts[0].buffers;
    uint64_t elements = op->terms.count_elements;
    if (op_kind_has_blocks(op->terms.kind)) {
        elements *= comm->terms.size;
    }
    if (op->terms.has_layouts && buffers != NULL) {
        const uint64_t *layout =
            buffers->input_layout != NULL ? buffers->input_layout : buffers->output_layout;
        for (uint32_t i = 0; layout != NULL && i < comm->terms.size; i++) {
            elements += layout[i];
        }
    }
    return elements * dtype_size_bytes(op->terms.dtype);
}

static void op_count(const struct communicator_op *op, bool succeeded, uint64_t now_ns)
{
    const struct communicator *comm = op->comm;
    struct comms_totals *totals = &comm->comms->totals;
    enum status result = succeeded                          ? STATUS_OK
                         : op->cause != NULL                ? op->cause->status
                         : comm->state == COMMS_COMM_FAILED ? comm->cause.status
                                                            : STATUS_INTERNAL;
    struct op_end end = {.kind = op->terms.kind,
                         .result = result,
                         .size_bytes = op_size_bytes(op),
                         .latency_ns = now_ns > op->first_post_ns ? now_ns - op->first_post_ns : 0,
                         .run_ns =
                             op->started_ns != 0 && now_ns > op->started_ns ? now_ns - op->started_ns : 0};
    op_counts_add(&totals->ops, &end);
    totals->ops_pending--;
}

static void op_finish(struct communicator_op *op, bool succeeded, uint64_t now_ns)
{
    struct communicator *comm = op->comm;
    op_count(op, succeeded, now_ns);
    if (comm->start == op) {
        start_next(comm);
    }
    DL_DELETE(comm->pending, op);
    op->running = false;
    op->finished = true;
    op->succeeded = succeeded;
    comms_node_cells_answer(op, succeeded);
    trace_op_done(comm->comm_id, op->seq, op->terms.kind, 0, 0, succeeded);
    op_release(op);
    if (succeeded) {
        comm->completed_count++;
        comm->bytes_reduced += op->terms.count_elements * dtype_size_bytes(op->terms.dtype);
    }
    if (op->owed_count == 0) {
        op_free(op);
    }
}

static uint64_t op_bucket_first(const struct communicator_op *op)
{
    return op->seq - op->terms.bucket_index;
}

/* `context` is the first operation of its bucket. The ranks are notified at once. */
static void comms_op_done(void *context, const struct error *result, uint64_t now_ns)
{
    struct communicator_op *first = context;
    struct communicator *comm = first->comm;
    uint64_t seq = first->seq;
    uint32_t ops = first->terms.bucket_ops;
    uint64_t end_ns = comm->comms->clock != NULL ? comm->comms->clock() : now_ns;
    for (uint32_t i = 0; i < ops; i++) {
        struct communicator_op *op = comms_op_at(comm, seq + i);
        if (comms_loss_is_frozen(comm)) {
            op->running = false; /* it ends with what the nodes agree on */
            continue;
        }
        if (result->status != STATUS_OK && comm->state != COMMS_COMM_FAILED) {
            op_set_cause(op, result);
        }
        op_finish(op, result->status == STATUS_OK, end_ns);
    }
    comm->comms->now_ns = now_ns;
    comm->comms->tells_left = COMMS_TICK_TELLS;
    communicator_work(comm, now_ns); /* may free it */
}

void comms_op_end(struct communicator_op *op, const struct error *cause, const struct comms_detail *detail,
                  uint64_t now_ns)
{
    struct communicator *comm = op->comm;
    if (op->finished) {
        return;
    }
    if (op->cause == NULL) {
        op->detail = comms_detail_copy(detail); /* without memory it has none */
    }
    op_set_cause(op, cause);
    if (op->running) {
        exec_cancel(comm->exec, op_bucket_first(op), 1, cause, now_ns);
    } else {
        op_finish(op, false, now_ns);
        communicator_queue(comm);
    }
}

void comms_op_fail_waiting(struct communicator *comm, uint64_t now_ns)
{
    struct communicator_op *op, *next;
    DL_FOREACH_SAFE(comm->pending, op, next)
    {
        if (!op->running) {
            op_finish(op, false, now_ns);
        }
    }
}

static void op_set_overdue(struct communicator_op *op)
{
    op->overdue = true;
    comms_node_cells_answer(op, false);
    for (uint32_t i = 0; i < op->comm->local_count; i++) {
        const struct comms_buffers *buffers = op->posts[i].buffers;
        comms_fences_signal(buffers != NULL ? buffers->fences : NULL);
    }
}

void comms_op_overdue(struct communicator *comm, uint64_t late_before_ns)
{
    struct communicator_op *op;
    DL_FOREACH(comm->pending, op)
    {
        if (late_before_ns == TIME_NEVER || (op->late_ns != 0 && op->late_ns <= late_before_ns)) {
            op_set_overdue(op);
        }
    }
}

static void op_fail_comm(struct communicator *comm, const struct error *cause, uint64_t now_ns)
{
    communicator_fail(comm, cause, COMMS_TELL_NODES, now_ns);
}

static void set_left(const struct communicator *comm, struct error *cause)
{
    char pid[24] = "";
    if (comm->left_pid != 0) {
        (void)snprintf(pid, sizeof pid, " (pid %d)", (int)comm->left_pid);
    }
    error_set(cause, STATUS_RANK_LOST, "communicator \"%s\": rank %u%s of node %s has left after op %llu",
              comm->name, comm->left_rank, pid, comm->node_names[comm->node_of_rank[comm->left_rank]],
              (unsigned long long)comm->left_seq);
}

void comms_op_check_left(struct communicator *comm, uint64_t now_ns)
{
    bool fails = comm->left_is_needed || !comms_op_any_pending(comm);
    if (comm->state == COMMS_COMM_FORMED && fails && comm->left_why[0] != '\0') {
        struct error cause;
        struct comms_detail detail = {0};
        comms_detail_add(&detail, comm, comm->left_rank, comm->left_pid);
        error_set(&cause, STATUS_RANK_LOST, "%s", comm->left_why);
        /* Otherwise each node does so itself, after operations that can end. */
        communicator_fail_with(comm, &cause, &detail,
                               comm->left_is_needed ? COMMS_TELL_NODES : COMMS_TELL_NOBODY, now_ns);
        return;
    }
    if (comm->state == COMMS_COMM_FORMED && comm->pending != NULL &&
        comm->pending->prev->seq > comm->left_seq) {
        struct error cause;
        struct comms_detail detail = {0};
        comms_detail_add(&detail, comm, comm->left_rank, comm->left_pid);
        set_left(comm, &cause);
        if (comm->left_why[0] != '\0') {
            error_set(&cause, STATUS_RANK_LOST, "%s", comm->left_why);
        }
        communicator_fail_with(comm, &cause, &detail, COMMS_TELL_NODES, now_ns);
    }
}

/* --- Deadlines --- */

uint64_t comms_op_deadline_ns(const struct communicator_op *op)
{
    uint64_t timeout_ns;
    if (!checked_mul_u64(op->timeout_ms, TIME_MS, &timeout_ns)) {
        return TIME_NEVER;
    }
    return time_after(op->first_post_ns, timeout_ns);
}

/* When this node asks for a verdict: at the deadline if it knows a late rank, otherwise a little later. */
static uint64_t op_speak_ns(const struct communicator_op *op)
{
    const struct communicator *comm = op->comm;
    if (op->posted_count < comm->local_count || comm->node_count == 1) {
        return comms_op_deadline_ns(op);
    }
    uint32_t steps = comm->own_index < COMMS_DEADLINE_STEPS_MAX ? comm->own_index : COMMS_DEADLINE_STEPS_MAX;
    return time_after(comms_op_deadline_ns(op), COMMS_DEADLINE_GRACE_NS + steps * COMMS_DEADLINE_STEP_NS);
}

static void add_late_ranks(const struct communicator_op *op, struct comms_text *text)
{
    const struct communicator *comm = op->comm;
    uint32_t late = 0;
    for (uint32_t i = 0; i < comm->local_count; i++) {
        late += comms_cells_is_missing(op, i);
    }
    const char *separator = late == 1 ? "rank " : "ranks ";
    for (uint32_t i = 0; i < comm->local_count; i++) {
        if (comms_cells_is_missing(op, i) && comm->locals[i] != NULL) {
            comms_text_add(text, "%s%u (pid %d)", separator, comm->locals[i]->rank,
                           (int)comm->locals[i]->client.pid);
            separator = ", ";
        }
    }
    comms_text_add(text, " of node %s %s not posted it", communicator_own_name(comm),
                   late == 1 ? "has" : "have");
}

static void op_late(const struct communicator_op *op, uint64_t now_ns, struct error *cause,
                    struct comms_detail *detail)
{
    const struct communicator *comm = op->comm;
    const struct communicator_op *oldest = comm->pending;
    const struct comms_missing *missing = comms_missing_of(comm, oldest->seq, now_ns);
    char why[256];
    char waits[192] = "";
    struct comms_text text;
    *detail = (struct comms_detail){.kind = (uint32_t)op->terms.kind + 1, .seq = op->seq};
    comms_detail_add_missing(detail, comm, oldest->seq, missing);
    comms_text_begin(&text, why, sizeof why);
    if (oldest != op) {
        comms_text_add(&text, "it comes after op %llu: ", (unsigned long long)oldest->seq);
    }
    if (missing != NULL) {
        comms_text_add(&text, "%s %s not posted it", missing->text, missing->count == 1 ? "has" : "have");
    } else if (oldest->posted_count < comm->local_count) {
        add_late_ranks(oldest, &text);
    } else {
        exec_comm_describe_wait(comm->exec, waits, sizeof waits);
        comms_text_add(&text, "node %s: %s", communicator_own_name(comm),
                       waits[0] != '\0' ? waits : "about to begin");
    }
    error_set(cause, STATUS_TIMED_OUT, "op %llu %s on \"%s\": not done within %llu ms; %s",
              (unsigned long long)op->seq, op_kind_text(op->terms.kind), comm->name,
              (unsigned long long)op->timeout_ms, why);
}

/*
 * When the operation's deadline must be handled next. A late operation ends by a verdict, without affecting
 * others: all ranks on which it has not ended get the same result. If a GPU or a link does not release its
 * buffers, or the first node sends no verdict, the communicator fails COMMS_OVERDUE_NS later. The reason: an
 * operation that has ended must not access buffers.
 */
static uint64_t op_next_ns(const struct communicator_op *op)
{
    return op->late_ns != 0 ? time_after(op->late_ns, COMMS_OVERDUE_NS) : op_speak_ns(op);
}

/* The oldest operation that is due, or null. *next_ns gets the earliest deadline of all. */
static struct communicator_op *find_due(const struct communicator *comm, uint64_t now_ns, uint64_t *next_ns)
{
    struct communicator_op *op, *due = NULL;
    *next_ns = TIME_NEVER;
    DL_FOREACH(comm->pending, op)
    {
        uint64_t op_ns = op_next_ns(op);
        if (now_ns >= op_ns && due == NULL) {
            due = op;
        }
        *next_ns = time_min(*next_ns, op_ns);
    }
    return due;
}

static void op_give_up(struct communicator_op *op, uint64_t now_ns)
{
    struct communicator *comm = op->comm;
    struct error cause;
    struct comms_detail detail;
    uint64_t first = op->terms.bucket_index < op->seq ? op_bucket_first(op) : op->seq;
    uint32_t ops = op->terms.bucket_ops;
    op_late(op, now_ns, &cause, &detail);
    for (uint32_t i = 0; i < ops; i++) {
        struct communicator_op *each = comms_op_at(comm, first + i);
        if (each != NULL) {
            each->late_ns = now_ns;
        }
    }
    comms_verdict_ask(comm, first, ops, &cause, &detail, now_ns);
}

void comms_op_deadlines(struct communicator *comm, uint64_t now_ns)
{
    struct communicator_op *due;
    uint64_t next_ns = TIME_NEVER;
    if (now_ns < comm->op_deadline_ns) {
        return; /* walk through all pending ones only if a deadline may have passed */
    }
    while (comm->state == COMMS_COMM_FORMED && !comms_loss_is_frozen(comm) &&
           (due = find_due(comm, now_ns, &next_ns)) != NULL) {
        if (due->late_ns == 0) {
            op_give_up(due, now_ns);
        } else {
            struct error cause;
            struct comms_detail detail = {0};
            if (due->cause != NULL) {
                cause = *due->cause;
                detail = due->detail != NULL ? *due->detail : detail;
            } else {
                op_late(due, now_ns, &cause, &detail);
            }
            communicator_fail_with(comm, &cause, &detail, COMMS_TELL_NODES, now_ns);
        }
    }
    next_ns = time_min(next_ns, comms_missing_step(comm, now_ns));
    comm->op_deadline_ns = time_min(next_ns, comms_p2p_deadlines(comm, now_ns));
}

/* --- Beginning --- */

/* The first operation of this one's bucket. Null unless all operations of the bucket are posted and none is
 * disputed. */
static struct communicator_op *bucket_ready(struct communicator_op *op)
{
    struct communicator *comm = op->comm;
    uint64_t first = op_bucket_first(op);
    for (uint32_t i = 0; i < op->terms.bucket_ops; i++) {
        const struct communicator_op *each =
            op->terms.bucket_index >= op->seq ? NULL : comms_op_at(comm, first + i);
        if (each == NULL || each->finished || each->disputed || each->posted_count < comm->local_count ||
            each->terms.bucket_ops != op->terms.bucket_ops || each->terms.bucket_index != i) {
            return NULL;
        }
    }
    return comms_op_at(comm, first);
}

/* Terms of a bucket: those of its first operation, with a hash of the terms of all. */
static struct op_terms run_terms(const struct communicator_op *first)
{
    struct op_terms terms = first->terms;
    for (uint32_t i = 0; terms.bucket_ops > 1 && i < terms.bucket_ops; i++) {
        uint8_t bytes[OP_TERMS_BYTES];
        op_terms_encode(&comms_op_at(first->comm, first->seq + i)->terms, bytes);
        terms.hash = hash_bytes(terms.hash, bytes, sizeof bytes);
    }
    return terms;
}

/* Hands a bucket to exec. Every local rank has posted it, and all operations before it. */
static enum status op_start(struct communicator_op *first, uint64_t now_ns, struct error *error)
{
    struct communicator *comm = first->comm;
    uint32_t ops = first->terms.bucket_ops;
    struct exec_rank *ranks = calloc((size_t)ops * comm->local_count, sizeof *ranks);
    uint64_t *counts = calloc(ops, sizeof *counts);
    enum status status = STATUS_NO_MEMORY;
    if (ranks == NULL || counts == NULL) {
        status =
            error_set(error, STATUS_NO_MEMORY, "communicator \"%s\": no memory for an operation", comm->name);
        goto cleanup;
    }
    for (uint32_t part = 0; part < ops; part++) {
        const struct communicator_op *op = comms_op_at(comm, first->seq + part);
        counts[part] = op->terms.count_elements;
        for (uint32_t i = 0; i < comm->local_count; i++) {
            ranks[(size_t)part * comm->local_count + i] = op->posts[i].buffers->exec;
        }
    }
    struct exec_call call = {
        .terms = run_terms(first),
        .seq = first->seq,
        .part_counts = counts,
        .rank_count = comm->local_count,
        .ranks = ranks,
        .done = comms_op_done,
        .context = first,
    };
    status = exec_submit(comm->exec, &call, error);
    for (uint32_t part = 0; part < ops && status == STATUS_OK; part++) {
        struct communicator_op *op = comms_op_at(comm, first->seq + part);
        op->running = true;
        op->started_ns = now_ns;
        trace_op_matched(comm->comm_id, first->seq + part, first->terms.kind, 0, 0, counts[part]);
    }
cleanup:
    free(counts);
    free(ranks);
    return status;
}

void comms_op_start_ready(struct communicator *comm, uint64_t now_ns)
{
    struct error cause;
    while (comm->state == COMMS_COMM_FORMED && !comm->exec_failed && comm->refusing_count == 0 &&
           comm->start != NULL && !comms_loss_is_frozen(comm)) {
        struct communicator_op *op = comm->start;
        if (bucket_ready(op) != op) {
            return;
        }
        if (op_start(op, now_ns, &cause) == STATUS_OK) {
            start_next(comm);
        } else {
            op_fail_comm(comm, &cause, now_ns);
        }
    }
}
