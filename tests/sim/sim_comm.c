#include "tests/sim/sim_comm.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "tests/sim/sim_buffers.h"
#include "tests/sim/sim_messages.h"

/* The longest pause between two actions of ranks "at random times". */
#define SIM_STAGGER_NS (200 * TIME_US)

enum { TELL_FORMED = 1, TELL_COMPLETED, TELL_ABORTED };

/* --- What members are told --- */

static void on_formed(void *context, struct comms_member *member, const struct error *result, uint64_t now_ns)
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

static void on_completed(void *context, struct comms_member *member,
                         const struct comms_completion *completion, uint64_t now_ns)
{
    struct sim_rank *rank = context;
    uint64_t seq = completion->ticket;
    assert_false(rank->calling);
    assert_true(member == rank->member);
    assert_true(rank->formed && rank->formed_result.status == STATUS_OK);
    if (seq >= SIM_MESSAGE_TICKETS) {
        sim_message_completed(rank, completion);
        return;
    }
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
    part->result = *completion->result;
    part->done_ns = now_ns;
    cluster_tell(rank->comm->cluster, rank->node->index, TELL_COMPLETED, (uint64_t)rank->rank << 32 | seq,
                 completion->result->status);
}

static void on_aborted(void *context, struct comms_member *member, const struct error *cause, uint64_t now_ns)
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
        comm->ranks[i].client = (struct comms_client){.pid = (pid_t)(1000 + i), .uid = 1000};
    }
    return comm;
}

void sim_comm_join(struct sim_comm *comm, uint32_t rank, uint32_t size, const struct sim_options *options)
{
    struct sim_rank *who = &comm->ranks[rank];
    struct comms_terms terms = {
        .name = comm->name, .rank = rank, .size = size == 0 ? comm->size : size, .algorithms = ""};
    if (options != NULL) {
        terms.form_timeout_ms = options->form_timeout_ms;
        terms.op_timeout_ms = options->op_timeout_ms;
        terms.slice_bytes = options->slice_bytes;
        terms.algorithms = options->algorithms;
        who->client.uid = options->uid == 0 ? who->client.uid : options->uid;
    }
    struct comms_member_handler handler = {
        .context = who, .formed = on_formed, .completed = on_completed, .aborted = on_aborted};
    who->formed = false; /* it may have failed to form before */
    who->calling = true;
    enum status status = comms_member_join(who->node->comms, &who->client, &terms, &handler,
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

/* Returns the ranks in random order. */
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

void sim_op_post(struct sim_op *op, uint32_t rank)
{
    struct sim_rank *who = &op->comm->ranks[rank];
    struct sim_part *part = &op->parts[rank];
    const struct sim_call *call = &op->call;
    sim_part_prepare(op, rank);
    struct comms_op request = {
        .ticket = op->seq,
        .terms.kind = call->kind,
        .terms.dtype = call->dtype,
        .terms.reduce = call->reduce,
        .terms.count_elements = sim_own_count(op, rank),
        .terms.root_rank = call->root,
        .factor = 1,
        .timeout_ms = call->timeout_ms,
        .terms.has_layouts = call->has_layouts && op_kind_has_blocks(call->kind),
        .input = {part->input.memory, part->input.offset_bytes},
        .output = {part->output.memory, part->output.offset_bytes},
        .input_layout = {part->input.layout_memory, 0},
        .output_layout = {part->output.layout_memory, 0},
        .terms.bucket_ops = (uint16_t)call->bucket_ops,
        .terms.bucket_index = (uint16_t)call->bucket_index,
        .terms.compression = call->compression,
        .residual = {part->residual_memory, 0},
    };
    who->calling = true;
    enum status status = comms_submit(who->member, &request, op->comm->cluster->now_ns, &part->refused);
    who->calling = false;
    if (status == STATUS_OK) {
        part->refused.status = STATUS_OK;
        part->posted = true;
        assert_int_equal(op->seq, who->posted_seq + 1);
        who->posted_seq = op->seq;
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

bool sim_comm_aborted(const void *context)
{
    const struct sim_comm *comm = context;
    for (uint32_t i = 0; i < comm->size; i++) {
        if (comm->ranks[i].member != NULL && !comm->ranks[i].aborted) {
            return false;
        }
    }
    return true;
}

void sim_next_completed(void *context, struct comms_member *member, const struct comms_completion *completion,
                        uint64_t now_ns)
{
    (void)context;
    (void)member;
    (void)completion;
    (void)now_ns;
}

void sim_next_aborted(void *context, struct comms_member *member, const struct error *cause, uint64_t now_ns)
{
    (void)context;
    (void)member;
    (void)now_ns;
    fail_msg("the next generation failed: %s", cause->text);
}

bool sim_comm_idle(const void *context)
{
    const struct sim_comm *comm = context;
    for (const struct sim_op *op = comm->ops; op != NULL; op = op->next) {
        if (!sim_op_done(op)) {
            return false;
        }
    }
    return sim_messages_done(comm);
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
        sim_part_release(part);
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

void sim_comm_leave(struct sim_comm *comm, uint32_t rank, enum comms_leave how)
{
    struct sim_rank *who = &comm->ranks[rank];
    if (who->member != NULL) {
        struct comms_member *member = who->member;
        who->member = NULL;
        who->calling = true;
        comms_member_leave(member, how, comm->cluster->now_ns);
        who->calling = false;
        cluster_touch(comm->cluster);
    }
}

void sim_comm_forget_node(struct sim_comm *comm, uint32_t node)
{
    for (uint32_t i = 0; i < comm->size; i++) {
        if (comm->ranks[i].node->index == node) {
            sim_comm_leave(comm, i, COMMS_LEAVE_LOST);
        }
    }
}

static bool part_is_used(const struct sim_part *part)
{
    const struct memory *all[] = {part->input.memory, part->output.memory, part->input.layout_memory,
                                  part->output.layout_memory};
    /* in place, both buffers refer to one memory, so only the layouts are checked */
    for (uint32_t i = part->in_place ? 2 : 0; i < 4; i++) {
        if (all[i] != NULL && memory_is_used(all[i])) {
            return true;
        }
    }
    return false;
}

bool sim_comm_memory_is_used(const struct sim_comm *comm)
{
    for (const struct sim_op *op = comm->ops; op != NULL; op = op->next) {
        for (uint32_t rank = 0; rank < comm->size; rank++) {
            if (part_is_used(&op->parts[rank])) {
                return true;
            }
        }
    }
    return sim_messages_use_memory(comm);
}

void sim_comm_free(struct sim_comm *comm)
{
    for (uint32_t i = 0; i < comm->size; i++) {
        sim_comm_leave(comm, i, COMMS_LEAVE_ORDERLY);
    }
    /* Buffers stay in use until exec and the network have released them. */
    cluster_run(comm->cluster, TIME_MS);
    while (comm->ops != NULL) {
        sim_op_free(comm->ops);
    }
    sim_messages_free(comm);
    free(comm->ranks);
    free(comm);
}

bool sim_comm_all_told(const void *context)
{
    const struct sim_comm *comm = context;
    for (uint32_t i = 0; i < comm->size; i++) {
        const struct sim_rank *rank = &comm->ranks[i];
        if (rank->member != NULL && !rank->aborted &&
            (!rank->formed || rank->formed_result.status == STATUS_OK)) {
            return false;
        }
    }
    return true;
}
