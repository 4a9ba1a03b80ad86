#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/base/checked.h"
#include "daemon/req/req_internal.h"

struct req_comm_op *req_op_at(const struct req_comm *comm, uint64_t seq)
{
    struct req_comm_op *op = comm->ops[seq % REQ_PENDING_OPS_MAX];
    return op != NULL && op->seq == seq ? op : NULL;
}

bool req_op_any_pending(const struct req_comm *comm)
{
    return comm->ops != NULL && comm->oldest_seq <= comm->highest_seq;
}

static void op_release(struct req_comm_op *op)
{
    for (uint32_t i = 0; i < op->comm->local_count; i++) {
        dev_memory_unref(op->posts[i].input_memory);
        dev_memory_unref(op->posts[i].output_memory);
        op->posts[i].input_memory = NULL;
        op->posts[i].output_memory = NULL;
    }
}

static void op_free(struct req_comm_op *op)
{
    struct req_comm *comm = op->comm;
    op_release(op);
    comm->ops[op->seq % REQ_PENDING_OPS_MAX] = NULL;
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

static void op_finish(struct req_comm_op *op, bool succeeded)
{
    struct req_comm *comm = op->comm;
    op->running = false;
    op->finished = true;
    op->succeeded = succeeded;
    op_release(op);
    if (succeeded) {
        comm->completed_count++;
        if (op->kind != OP_KIND_BARRIER) {
            comm->bytes_reduced += op->count_elements * dtype_size_bytes(op->dtype);
        }
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

void req_op_done(void *context, const struct error *result, uint64_t now_ns)
{
    struct req_comm_op *op = context;
    (void)now_ns;
    op_finish(op, result->status == STATUS_OK);
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
              (unsigned long long)op->seq, op_kind_text(op->kind), comm->name,
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
    comm->op_deadline_ns = next_ns;
    if (late != NULL) {
        struct error cause;
        op_late(late, &cause);
        op_fail_comm(comm, &cause, now_ns);
    }
}

/* --- Submission --- */

static void describe_call(char *out, size_t size, enum op_kind kind, enum dtype dtype, enum reduce reduce,
                          uint64_t count, uint32_t root)
{
    switch (kind) {
    case OP_KIND_ALL_REDUCE:
        (void)snprintf(out, size, "%s of %llu %s, %s", op_kind_text(kind), (unsigned long long)count,
                       dtype_text(dtype), reduce_text(reduce));
        return;
    case OP_KIND_BROADCAST:
        (void)snprintf(out, size, "%s of %llu %s from rank %u", op_kind_text(kind), (unsigned long long)count,
                       dtype_text(dtype), root);
        return;
    case OP_KIND_BARRIER:
        (void)snprintf(out, size, "%s", op_kind_text(kind));
        return;
    }
}

static bool op_agrees(const struct req_comm_op *op, const struct req_op *call)
{
    if (op->kind != call->kind) {
        return false;
    }
    switch (op->kind) {
    case OP_KIND_ALL_REDUCE:
        return op->count_elements == call->count_elements && op->dtype == call->dtype &&
               op->reduce == call->reduce;
    case OP_KIND_BROADCAST:
        return op->count_elements == call->count_elements && op->dtype == call->dtype &&
               op->root_rank == call->root_rank;
    case OP_KIND_BARRIER:
        return true;
    }
    return false;
}

static void op_contradiction(const struct req_comm_op *op, const struct req_member *member,
                             const struct req_op *call, struct error *cause)
{
    char first[128] = "";
    char second[128] = "";
    describe_call(first, sizeof first, op->kind, op->dtype, op->reduce, op->count_elements, op->root_rank);
    describe_call(second, sizeof second, call->kind, call->dtype, call->reduce, call->count_elements,
                  call->root_rank);
    error_set(cause, STATUS_MISMATCH, "op %llu on \"%s\": rank %u (pid %d): %s; rank %u (pid %d): %s",
              (unsigned long long)op->seq, op->comm->name, op->first_rank, (int)op->first_pid, first,
              member->rank, (int)member->client.pid, second);
}

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
    if (member->posted_seq - member->completed_seq >= REQ_PENDING_OPS_MAX ||
        (comm->ops[(member->posted_seq + 1) % REQ_PENDING_OPS_MAX] != NULL &&
         req_op_at(comm, member->posted_seq + 1) == NULL)) {
        return error_set(error, STATUS_LIMIT, "communicator \"%s\": rank %u has %d operations pending",
                         comm->name, member->rank, REQ_PENDING_OPS_MAX);
    }
    return STATUS_OK;
}

/* One buffer of the call; *out stays null where the operation does not touch it. */
static enum status op_address(const struct req_member *member, const char *what, struct dev_memory *memory,
                              uint64_t offset_bytes, uint64_t size_bytes, bool needed, void **out,
                              struct error *error)
{
    *out = NULL;
    if (memory == NULL) {
        if (needed && size_bytes > 0) {
            return error_set(error, STATUS_INVALID_ARGUMENT, "communicator \"%s\": rank %u gives no %s",
                             member->comm->name, member->rank, what);
        }
        return STATUS_OK;
    }
    *out = dev_memory_range(memory, offset_bytes, size_bytes);
    if (*out == NULL) {
        return error_set(
            error, STATUS_INVALID_ARGUMENT,
            "communicator \"%s\": rank %u: the %s of %llu bytes at %llu is not within its memory",
            member->comm->name, member->rank, what, (unsigned long long)size_bytes,
            (unsigned long long)offset_bytes);
    }
    return STATUS_OK;
}

/* Checks the call alone; *addresses gets its buffers. */
static enum status op_check(const struct req_member *member, const struct req_op *call,
                            struct exec_rank *addresses, struct error *error)
{
    const struct req_comm *comm = member->comm;
    uint64_t size_bytes = 0;
    void *input = NULL;
    void *output = NULL;
    bool is_root = call->root_rank == member->rank;
    *addresses = (struct exec_rank){.factor = call->factor};
    if (call->kind == OP_KIND_BARRIER) {
        return STATUS_OK;
    }
    if (!checked_mul_u64(call->count_elements, dtype_size_bytes(call->dtype), &size_bytes) ||
        size_bytes > DEV_MEMORY_MAX_BYTES) {
        return error_set(error, STATUS_INVALID_ARGUMENT,
                         "communicator \"%s\": %llu elements of %s are too many", comm->name,
                         (unsigned long long)call->count_elements, dtype_text(call->dtype));
    }
    if (call->kind == OP_KIND_ALL_REDUCE && !reduce_is_defined(call->dtype, call->reduce)) {
        return error_set(error, STATUS_UNSUPPORTED, "communicator \"%s\": %s of %s has no meaning",
                         comm->name, reduce_text(call->reduce), dtype_text(call->dtype));
    }
    if (call->kind == OP_KIND_BROADCAST && call->root_rank >= comm->terms.size) {
        return error_set(error, STATUS_INVALID_ARGUMENT, "communicator \"%s\": root %u of %u ranks",
                         comm->name, call->root_rank, comm->terms.size);
    }
    bool reads = call->kind == OP_KIND_ALL_REDUCE || is_root;
    enum status status = STATUS_OK;
    if (reads) {
        status = op_address(member, "input", call->input_memory, call->input_offset_bytes, size_bytes, true,
                            &input, error);
    }
    if (status == STATUS_OK) {
        status = op_address(member, "output", call->output_memory, call->output_offset_bytes, size_bytes,
                            call->kind == OP_KIND_ALL_REDUCE || !is_root, &output, error);
    }
    addresses->input = input;
    addresses->output = output;
    return status;
}

static struct req_comm_op *op_new(struct req_member *member, const struct req_op *call, uint64_t seq,
                                  uint64_t now_ns)
{
    struct req_comm *comm = member->comm;
    struct req_comm_op *op = calloc(1, sizeof *op + comm->local_count * sizeof op->posts[0]);
    if (op != NULL) {
        op->comm = comm;
        op->seq = seq;
        op->kind = call->kind;
        /* What an operation has no use for is not compared either: not here, and not between nodes. */
        op->dtype = call->kind == OP_KIND_BARRIER ? DTYPE_U8 : call->dtype;
        op->reduce = call->kind == OP_KIND_ALL_REDUCE ? call->reduce : REDUCE_SUM;
        op->count_elements = call->kind == OP_KIND_BARRIER ? 0 : call->count_elements;
        op->root_rank = call->kind == OP_KIND_BROADCAST ? call->root_rank : 0;
        op->first_rank = member->rank;
        op->first_pid = member->client.pid;
        op->first_post_ns = now_ns;
        op->timeout_ms = UINT64_MAX;
        assert(comm->ops[seq % REQ_PENDING_OPS_MAX] == NULL);
        comm->ops[seq % REQ_PENDING_OPS_MAX] = op;
        comm->highest_seq = seq;
    }
    return op;
}

/* Every local rank has posted it, and all before it. */
static enum status op_start(struct req_comm_op *op, struct error *error)
{
    struct req_comm *comm = op->comm;
    struct exec_call call = {
        .kind = op->kind,
        .dtype = op->dtype,
        .reduce = op->reduce,
        .seq = op->seq,
        .count_elements = op->count_elements,
        .root_rank = op->root_rank,
        .divisor = op->kind == OP_KIND_ALL_REDUCE && op->reduce == REDUCE_AVG ? comm->terms.size : 0,
        .rank_count = comm->local_count,
        .ranks = comm->exec_ranks,
        .done = req_op_done,
        .context = op,
    };
    if (op->kind == OP_KIND_BROADCAST) {
        call.root_node = comm->node_of_rank[op->root_rank];
    }
    for (uint32_t i = 0; i < comm->local_count; i++) {
        comm->exec_ranks[i] = op->posts[i].addresses;
        if (op->kind == OP_KIND_BROADCAST && comm->locals[i] != NULL &&
            comm->locals[i]->rank == op->root_rank) {
            call.root_local = i;
        }
    }
    enum status status = exec_submit(comm->exec, &call, error);
    op->running = status == STATUS_OK;
    return status;
}

static void op_post(struct req_comm_op *op, struct req_member *member, const struct req_op *call,
                    const struct exec_rank *addresses)
{
    struct req_comm *comm = op->comm;
    struct req_comm_post *post = &op->posts[member->local_index];
    uint64_t timeout_ms = call->timeout_ms != 0 ? call->timeout_ms : comm->terms.op_timeout_ms;
    post->posted = true;
    post->owed = true;
    post->addresses = *addresses;
    if (addresses->input != NULL) {
        post->input_memory = dev_memory_ref(call->input_memory);
    }
    if (addresses->output != NULL) {
        post->output_memory = dev_memory_ref(call->output_memory);
    }
    op->posted_count++;
    op->owed_count++;
    member->posted_seq = op->seq;
    op->timeout_ms = timeout_ms < op->timeout_ms ? timeout_ms : op->timeout_ms;
    comm->op_deadline_ns = time_min(comm->op_deadline_ns, req_op_deadline_ns(op));
}

enum status req_submit(struct req_member *member, const struct req_op *call, uint64_t now_ns, uint64_t *seq,
                       struct error *error)
{
    struct req_comm *comm = member->comm;
    struct exec_rank addresses;
    struct error cause;
    enum status status = submit_refused(member, error);
    if (status == STATUS_OK) {
        status = op_check(member, call, &addresses, error);
    }
    if (status != STATUS_OK) {
        return status;
    }
    uint64_t number = member->posted_seq + 1;
    struct req_comm_op *op = req_op_at(comm, number);
    bool agrees = op == NULL || op_agrees(op, call);
    if (op == NULL) {
        op = op_new(member, call, number, now_ns);
    }
    if (op == NULL) {
        return error_set(error, STATUS_NO_MEMORY, "communicator \"%s\": no memory for an operation",
                         comm->name);
    }
    op_post(op, member, call, &addresses);
    *seq = number;
    if (!agrees) {
        op_contradiction(op, member, call, &cause);
        op_fail_comm(comm, &cause, now_ns);
        return STATUS_OK;
    }
    req_op_check_left(comm, now_ns);
    if (comm->state == REQ_COMM_FORMED && !comm->exec_failed && op->posted_count == comm->local_count &&
        op_start(op, &cause) != STATUS_OK) {
        op_fail_comm(comm, &cause, now_ns);
    }
    req_comm_arm(comm);
    return STATUS_OK;
}
