#include "tests/sim/sim_comm.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/sim/data.h"

#define SIM_POISON 0xa5
#define SIM_STAGGER_NS (200 * TIME_US) /* between what ranks do "at random times", at most */

enum { TELL_FORMED = 1, TELL_COMPLETED, TELL_ABORTED };

/* --- What members are told --- */

static void on_formed(void *context, struct req_member *member, const struct error *result, uint64_t now_ns)
{
    struct sim_rank *rank = context;
    assert_false(rank->calling);
    assert_true(member == rank->member);
    assert_false(rank->formed);
    rank->formed = true;
    rank->formed_result = *result;
    rank->formed_ns = now_ns;
    cluster_tell(rank->comm->cluster, rank->node->index, TELL_FORMED, rank->rank, result->status);
}

static void on_completed(void *context, struct req_member *member, uint64_t seq, const struct error *result,
                         uint64_t now_ns)
{
    struct sim_rank *rank = context;
    assert_false(rank->calling);
    assert_true(member == rank->member);
    assert_true(rank->formed && rank->formed_result.status == STATUS_OK);
    assert_int_equal(seq, rank->completed_seq + 1);
    assert_true(seq <= rank->posted_seq);
    rank->completed_seq = seq;
    struct sim_op *op = rank->comm->ops;
    while (op != NULL && !(op->seq == seq && op->parts[rank->rank].posted)) {
        op = op->next;
    }
    assert_non_null(op);
    struct sim_part *part = &op->parts[rank->rank];
    assert_false(part->done);
    part->done = true;
    part->result = *result;
    part->done_ns = now_ns;
    cluster_tell(rank->comm->cluster, rank->node->index, TELL_COMPLETED, (uint64_t)rank->rank << 32 | seq,
                 result->status);
}

static void on_aborted(void *context, struct req_member *member, const struct error *cause, uint64_t now_ns)
{
    struct sim_rank *rank = context;
    (void)now_ns;
    assert_false(rank->calling);
    assert_true(member == rank->member);
    assert_false(rank->aborted);
    assert_int_not_equal(cause->status, STATUS_OK);
    assert_int_equal(rank->completed_seq, rank->posted_seq);
    rank->aborted = true;
    rank->abort_cause = *cause;
    cluster_tell(rank->comm->cluster, rank->node->index, TELL_ABORTED, rank->rank, cause->status);
}

/* --- Joining --- */

struct sim_comm *sim_comm_new(struct cluster *cluster, const char *name, uint32_t size,
                              const uint32_t *node_of_rank)
{
    struct sim_comm *comm = calloc(1, sizeof *comm);
    assert_non_null(comm);
    comm->cluster = cluster;
    comm->size = size;
    comm->ranks = calloc(size, sizeof *comm->ranks);
    assert_non_null(comm->ranks);
    (void)snprintf(comm->name, sizeof comm->name, "%s", name);
    for (uint32_t i = 0; i < size; i++) {
        assert_true(node_of_rank[i] < cluster->node_count);
        comm->ranks[i] = (struct sim_rank){.comm = comm, .node = &cluster->nodes[node_of_rank[i]], .rank = i};
        comm->ranks[i].client = (struct req_client){.pid = (pid_t)(1000 + i), .uid = 1000};
    }
    return comm;
}

void sim_comm_join(struct sim_comm *comm, uint32_t rank, uint32_t size, const struct sim_options *options)
{
    struct sim_rank *who = &comm->ranks[rank];
    struct req_terms terms = {
        .name = comm->name, .rank = rank, .size = size == 0 ? comm->size : size, .algorithms = ""};
    if (options != NULL) {
        terms.form_timeout_ms = options->form_timeout_ms;
        terms.op_timeout_ms = options->op_timeout_ms;
        terms.slice_bytes = options->slice_bytes;
        who->client.uid = options->uid == 0 ? who->client.uid : options->uid;
    }
    struct req_member_handler handler = {who, on_formed, on_completed, on_aborted};
    who->calling = true;
    enum status status = req_member_join(who->node->req, &who->client, &terms, &handler,
                                         comm->cluster->now_ns, &who->member, &who->refused);
    who->calling = false;
    if (status == STATUS_OK) {
        assert_non_null(who->member);
        who->refused.status = STATUS_OK;
    } else {
        assert_int_equal(status, who->refused.status);
        who->member = NULL;
    }
    cluster_touch(comm->cluster);
}

/* Ranks in random order. */
static uint32_t *sim_comm_shuffled(struct sim_comm *comm)
{
    uint32_t *order = calloc(comm->size, sizeof *order);
    assert_non_null(order);
    for (uint32_t i = 0; i < comm->size; i++) {
        uint32_t at = (uint32_t)random_below(&comm->cluster->random, i + 1);
        order[i] = order[at];
        order[at] = i;
    }
    return order;
}

static void sim_comm_pause(struct sim_comm *comm)
{
    if (random_below(&comm->cluster->random, 4) == 0) {
        cluster_run(comm->cluster, random_below(&comm->cluster->random, SIM_STAGGER_NS));
    }
}

void sim_comm_join_all(struct sim_comm *comm, const struct sim_options *options)
{
    uint32_t *order = sim_comm_shuffled(comm);
    for (uint32_t i = 0; i < comm->size; i++) {
        if (comm->ranks[order[i]].node->alive) {
            sim_comm_join(comm, order[i], 0, options);
            sim_comm_pause(comm);
        }
    }
    free(order);
}

bool sim_comm_formed(const void *context)
{
    const struct sim_comm *comm = context;
    for (uint32_t i = 0; i < comm->size; i++) {
        if (comm->ranks[i].member != NULL && !comm->ranks[i].formed) {
            return false;
        }
    }
    return true;
}

void sim_comm_form(struct sim_comm *comm, const struct sim_options *options, uint64_t span_ns)
{
    sim_comm_join_all(comm, options);
    bool told = cluster_run_until(comm->cluster, sim_comm_formed, comm, span_ns);
    for (uint32_t i = 0; i < comm->size; i++) {
        const struct sim_rank *rank = &comm->ranks[i];
        if (rank->refused.status != STATUS_OK || !rank->formed || rank->formed_result.status != STATUS_OK) {
            fail_msg("%s rank %u: %s", comm->name, i,
                     rank->refused.status != STATUS_OK ? rank->refused.text
                     : rank->formed                    ? rank->formed_result.text
                                                       : "not formed");
        }
    }
    assert_true(told);
}

/* --- Operations --- */

struct sim_op *sim_op_new(struct sim_comm *comm, const struct sim_call *call)
{
    struct sim_op *op = calloc(1, sizeof *op);
    assert_non_null(op);
    op->parts = calloc(comm->size, sizeof *op->parts);
    assert_non_null(op->parts);
    op->comm = comm;
    op->call = *call;
    op->seq = ++comm->op_count;
    op->posted_ns = TIME_NEVER;
    struct sim_op **last = &comm->ops;
    while (*last != NULL) {
        last = &(*last)->next;
    }
    *last = op;
    return op;
}

static size_t sim_op_bytes(const struct sim_op *op)
{
    return op->call.kind == OP_KIND_BARRIER ? 0 : op->call.count * dtype_size_bytes(op->call.dtype);
}

static void *buffer_new(size_t size, struct dev_memory **memory)
{
    struct error error;
    void *buffer = malloc(size == 0 ? 1 : size);
    assert_non_null(buffer);
    memset(buffer, SIM_POISON, size == 0 ? 1 : size);
    assert_int_equal(dev_memory_wrap(buffer, size == 0 ? 1 : size, memory, &error), STATUS_OK);
    return buffer;
}

/* Buffers of this rank, filled; outputs poisoned. */
static void part_prepare(struct sim_op *op, uint32_t rank)
{
    const struct sim_call *call = &op->call;
    struct sim_part *part = &op->parts[rank];
    size_t size = sim_op_bytes(op);
    if (call->kind == OP_KIND_BARRIER) {
        return;
    }
    bool reads = call->kind == OP_KIND_ALL_REDUCE || call->root == rank;
    if (reads) {
        part->input = buffer_new(size, &part->input_memory);
        data_fill(call->dtype, call->reduce, op->comm->cluster->seed + op->seq, rank, call->count,
                  part->input);
        part->original = malloc(size + 1);
        assert_non_null(part->original);
        memcpy(part->original, part->input, size);
    }
    if (reads && call->in_place) {
        part->output = part->input;
        part->output_memory = dev_memory_ref(part->input_memory);
    } else {
        part->output = buffer_new(size, &part->output_memory);
    }
}

void sim_op_post(struct sim_op *op, uint32_t rank)
{
    struct sim_rank *who = &op->comm->ranks[rank];
    struct sim_part *part = &op->parts[rank];
    part_prepare(op, rank);
    struct req_op request = {
        .kind = op->call.kind,
        .dtype = op->call.dtype,
        .reduce = op->call.reduce,
        .count_elements = op->call.kind == OP_KIND_BARRIER ? 0 : op->call.count,
        .root_rank = op->call.root,
        .factor = 1,
        .timeout_ms = op->call.timeout_ms,
        .input_memory = part->input_memory,
        .output_memory = part->output_memory,
    };
    uint64_t seq = 0;
    who->calling = true;
    enum status status = req_submit(who->member, &request, op->comm->cluster->now_ns, &seq, &part->refused);
    who->calling = false;
    if (status == STATUS_OK) {
        part->refused.status = STATUS_OK;
        part->posted = true;
        assert_int_equal(seq, op->seq);
        assert_int_equal(seq, who->posted_seq + 1);
        who->posted_seq = seq;
        op->posted_ns = time_min(op->posted_ns, op->comm->cluster->now_ns);
    } else {
        assert_int_equal(part->refused.status, status);
    }
    cluster_touch(op->comm->cluster);
}

struct sim_op *sim_comm_post_all(struct sim_comm *comm, const struct sim_call *call)
{
    struct sim_op *op = sim_op_new(comm, call);
    uint32_t *order = sim_comm_shuffled(comm);
    for (uint32_t i = 0; i < comm->size; i++) {
        if (comm->ranks[order[i]].member != NULL) {
            sim_op_post(op, order[i]);
            sim_comm_pause(comm);
        }
    }
    free(order);
    return op;
}

bool sim_op_done(const void *context)
{
    const struct sim_op *op = context;
    for (uint32_t i = 0; i < op->comm->size; i++) {
        if (op->parts[i].posted && !op->parts[i].done && op->comm->ranks[i].member != NULL) {
            return false;
        }
    }
    return true;
}

bool sim_comm_idle(const void *context)
{
    const struct sim_comm *comm = context;
    for (const struct sim_op *op = comm->ops; op != NULL; op = op->next) {
        if (!sim_op_done(op)) {
            return false;
        }
    }
    return true;
}

static uint32_t sim_comm_node_count(const struct sim_comm *comm)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < comm->size; i++) {
        uint32_t before = 0;
        while (comm->ranks[before].node != comm->ranks[i].node) {
            before++;
        }
        count += before == i;
    }
    return count;
}

static bool part_succeeded(const struct sim_part *part)
{
    return part->posted && part->done && part->result.status == STATUS_OK;
}

/* Nobody can be through with a reduction or barrier before everybody has come. */
static void check_all_posted(const struct sim_op *op)
{
    for (uint32_t i = 0; i < op->comm->size; i++) {
        if (!op->parts[i].posted) {
            fail_msg("%s operation %llu (%s): done, and rank %u has not posted it", op->comm->name,
                     (unsigned long long)op->seq, op_kind_text(op->call.kind), i);
        }
    }
}

void sim_op_check(const struct sim_op *op)
{
    struct sim_comm *comm = op->comm;
    const struct sim_call *call = &op->call;
    size_t size = sim_op_bytes(op);
    const void **inputs = calloc(comm->size, sizeof *inputs);
    assert_non_null(inputs);
    const struct sim_part *first = NULL;
    for (uint32_t i = 0; i < comm->size; i++) {
        const struct sim_part *part = &op->parts[i];
        inputs[i] = part->original;
        if (part->input != NULL && part->input != part->output) {
            assert_memory_equal(part->input, part->original, size);
        }
        if (!part_succeeded(part)) {
            continue;
        }
        first = first == NULL ? part : first;
        if (size > 0 && memcmp(part->output, first->output, size) != 0) {
            fail_msg("%s operation %llu (%s %s %s of %llu): rank %u has other bits than those before it",
                     comm->name, (unsigned long long)op->seq, op_kind_text(call->kind),
                     dtype_text(call->dtype), reduce_text(call->reduce), (unsigned long long)call->count, i);
        }
    }
    if (first != NULL && (size > 0 || call->kind == OP_KIND_BARRIER) && call->kind != OP_KIND_BROADCAST) {
        check_all_posted(op);
    }
    if (first != NULL && size > 0 && call->kind == OP_KIND_BROADCAST) {
        assert_memory_equal(first->output, inputs[call->root], size);
    } else if (first != NULL && size > 0) {
        bool is_short = dtype_size_bytes(call->dtype) < 4;
        data_check_reduced(call->dtype, call->reduce, comm->size, inputs,
                           is_short ? sim_comm_node_count(comm) : comm->size, call->count, first->output);
    }
    free(inputs);
}

void sim_op_finish(struct sim_op *op, uint64_t span_ns)
{
    bool done = cluster_run_until(op->comm->cluster, sim_op_done, op, span_ns);
    for (uint32_t i = 0; i < op->comm->size; i++) {
        const struct sim_part *part = &op->parts[i];
        if (!part->posted || !part->done || part->result.status != STATUS_OK) {
            fail_msg("%s operation %llu (%s of %llu), rank %u: %s", op->comm->name,
                     (unsigned long long)op->seq, op_kind_text(op->call.kind),
                     (unsigned long long)op->call.count, i,
                     !part->posted ? part->refused.text
                     : part->done  ? part->result.text
                                   : "not done");
        }
    }
    assert_true(done);
    sim_op_check(op);
}

void sim_op_free(struct sim_op *op)
{
    struct sim_op **at = &op->comm->ops;
    while (*at != op) {
        at = &(*at)->next;
    }
    *at = op->next;
    for (uint32_t i = 0; i < op->comm->size; i++) {
        struct sim_part *part = &op->parts[i];
        assert_true(!part->posted || part->done || op->comm->ranks[i].member == NULL);
        dev_memory_unref(part->input_memory);
        dev_memory_unref(part->output_memory);
        if (part->output != part->input) {
            free(part->output);
        }
        free(part->input);
        free(part->original);
    }
    free(op->parts);
    free(op);
}

void sim_comm_run(struct sim_comm *comm, const struct sim_call *call)
{
    struct sim_op *op = sim_comm_post_all(comm, call);
    sim_op_finish(op, 60 * TIME_S);
    sim_op_free(op);
}

/* --- Leaving --- */

void sim_comm_leave(struct sim_comm *comm, uint32_t rank, enum req_leave how)
{
    struct sim_rank *who = &comm->ranks[rank];
    if (who->member != NULL) {
        struct req_member *member = who->member;
        who->member = NULL;
        who->calling = true;
        req_member_leave(member, how, comm->cluster->now_ns);
        who->calling = false;
        cluster_touch(comm->cluster);
    }
}

void sim_comm_forget_node(struct sim_comm *comm, uint32_t node)
{
    for (uint32_t i = 0; i < comm->size; i++) {
        if (comm->ranks[i].node->index == node) {
            sim_comm_leave(comm, i, REQ_LEAVE_LOST);
        }
    }
}

void sim_comm_free(struct sim_comm *comm)
{
    for (uint32_t i = 0; i < comm->size; i++) {
        sim_comm_leave(comm, i, REQ_LEAVE_ORDERLY);
    }
    /* Buffers are still in use until exec and network have let go. */
    cluster_run(comm->cluster, TIME_MS);
    while (comm->ops != NULL) {
        sim_op_free(comm->ops);
    }
    free(comm->ranks);
    free(comm);
}
