#include <stdio.h>
#include <string.h>

#include "daemon/comm/comms_internal.h"

/*
 * Operations that two ranks called differently. The node that finds this tells the node that it disagrees
 * with. That node puts both calls in one text and asks for a verdict (verdict.c).
 */

void comms_dispute_local(struct communicator_op *op, const struct error *cause,
                         const struct comms_detail *detail, uint64_t now_ns)
{
    op->disputed = true;
    comms_verdict_ask(op->comm, op->seq, 1, cause, detail, now_ns);
}

/* Adds a local rank. */
static void add_local(struct comms_detail *detail, const struct communicator *comm, uint32_t rank)
{
    for (uint32_t i = 0; i < comm->local_count; i++) {
        if (comm->locals[i] != NULL && comm->locals[i]->rank == rank) {
            comms_detail_add_member(detail, comm->locals[i]);
        }
    }
}

/*
 * In an operation with layouts: how many elements one local rank sends to another, and how many that one
 * expects. Returns false if the first sends nothing to the other, or in operations in which all ranks must
 * have the same counts.
 */
static bool counts_between(const struct communicator_op *op, const struct communicator_post *from,
                           const struct communicator_post *to, uint64_t *sent, uint64_t *expected)
{
    const struct exec_rank *sender = &from->buffers->exec, *receiver = &to->buffers->exec;
    enum op_kind kind = op->terms.kind;
    *sent = op_kind_has_input_blocks(kind) && sender->input_layout.counts != NULL
                ? sender->input_layout.counts[to->rank]
                : sender->count_elements;
    *expected = op_kind_has_output_blocks(kind) && receiver->output_layout.counts != NULL
                    ? receiver->output_layout.counts[from->rank]
                    : receiver->count_elements;
    return op_kind_has_private_counts(kind) && op_kind_reads(kind, from->rank == op->terms.root_rank) &&
           op_kind_writes(kind, to->rank == op->terms.root_rank);
}

/*
 * Whether two ranks' counts are equal, in operations in which they must be. The digests in the terms are not
 * enough: a client can craft different counts with the same digest.
 */
static bool counts_equal(const struct communicator_op *op, const struct communicator_post *one,
                         const struct communicator_post *other)
{
    bool gathers = op->terms.kind == OP_KIND_ALL_GATHER;
    const struct exec_rank *a = &one->buffers->exec, *b = &other->buffers->exec;
    return memcmp(gathers ? a->output_layout.counts : a->input_layout.counts,
                  gathers ? b->output_layout.counts : b->input_layout.counts,
                  op->comm->terms.size * sizeof(uint64_t)) == 0;
}

static bool posts_fit(const struct communicator_op *op, const struct communicator_post *from,
                      const struct communicator_post *to, struct error *cause)
{
    uint64_t sent, expected;
    if (counts_between(op, from, to, &sent, &expected) && sent != expected) {
        error_set(cause, STATUS_MISMATCH,
                  "op %llu on \"%s\": %s_v: rank %u has %llu elements for rank %u, which expects %llu",
                  (unsigned long long)op->seq, op->comm->name, op_kind_text(op->terms.kind), from->rank,
                  (unsigned long long)sent, to->rank, (unsigned long long)expected);
        return false;
    }
    return true;
}

/* All earlier posts have equal counts, so it is enough to compare with one of them. */
static bool post_agrees(const struct communicator_op *op, const struct communicator_post *post,
                        uint32_t *other_rank, struct error *cause)
{
    const struct communicator_post *other = op->posts;
    while (other < op->posts + op->comm->local_count && (other == post || other->buffers == NULL)) {
        other++;
    }
    if (other == op->posts + op->comm->local_count || counts_equal(op, other, post)) {
        return true;
    }
    *other_rank = other->rank;
    uint32_t low = other->rank < post->rank ? other->rank : post->rank;
    error_set(cause, STATUS_MISMATCH, "op %llu on \"%s\": %s_v: ranks %u and %u have different counts",
              (unsigned long long)op->seq, op->comm->name, op_kind_text(op->terms.kind), low,
              low == post->rank ? other->rank : post->rank);
    return false;
}

void comms_dispute_layouts(struct communicator_op *op, uint32_t local_index, uint64_t now_ns)
{
    struct error cause;
    const struct communicator_post *post = &op->posts[local_index];
    uint32_t other_rank = post->rank;
    bool agrees = true;
    if (!op->terms.has_layouts) {
        return;
    }
    if (op->terms.kind == OP_KIND_ALL_GATHER || op->terms.kind == OP_KIND_REDUCE_SCATTER) {
        agrees = post_agrees(op, post, &other_rank, &cause);
    } else {
        for (uint32_t i = 0; i < op->comm->local_count && agrees; i++) { /* with itself, too */
            const struct communicator_post *other = &op->posts[i];
            other_rank = other->rank;
            agrees = other->buffers == NULL ||
                     (posts_fit(op, post, other, &cause) && posts_fit(op, other, post, &cause));
        }
    }
    if (!agrees) {
        struct comms_detail detail = {.seq = op->seq};
        add_local(&detail, op->comm, other_rank);
        if (other_rank != post->rank) {
            add_local(&detail, op->comm, post->rank);
        }
        comms_dispute_local(op, &cause, &detail, now_ns);
    }
}

static void describe_post(const struct communicator_op *op, char *out, size_t size)
{
    char call[OP_TERMS_TEXT_MAX_BYTES];
    op_terms_describe(&op->terms, call, sizeof call);
    (void)snprintf(out, size, "rank %u (pid %d, node %s): %s", op->first_rank, (int)op->first_pid,
                   communicator_own_name(op->comm), call);
}

void comms_dispute_found(void *context, uint64_t seq, uint32_t node, const char *how, uint64_t now_ns)
{
    struct communicator *comm = context;
    struct communicator_op *op = comms_op_at(comm, seq);
    char call[OP_TERMS_TEXT_MAX_BYTES + NODE_NAME_MAX_BYTES + 48];
    (void)now_ns;
    if (op == NULL || comms_verdict_find(comm, seq, NULL)) {
        return;
    }
    op->disputed = true;
    describe_post(op, call, sizeof call);
    Commd__Mesh__Dispute body = COMMD__MESH__DISPUTE__INIT;
    body.comm_id = comm->comm_id;
    body.seq = seq;
    body.ops = op->terms.bucket_ops;
    body.call = call;
    body.how = (char *)how;
    body.rank = op->first_rank + 1;
    body.pid = (int32_t)op->first_pid;
    Commd__Mesh__Message message = MESH_MESSAGE(DISPUTE, dispute, &body);
    communicator_send(comm, comm->nodes[node].node, &message);
}

void comms_dispute_received(struct communicator *comm, const Commd__Mesh__Dispute *dispute, uint64_t now_ns)
{
    char theirs[OP_TERMS_TEXT_MAX_BYTES + NODE_NAME_MAX_BYTES + 48];
    char ours[sizeof theirs];
    char how[128];
    struct error cause;
    struct comms_detail detail = {.seq = dispute->seq};
    if (comm->state != COMMS_COMM_FORMED || comms_verdict_find(comm, dispute->seq, NULL)) {
        return;
    }
    printable_copy(dispute->call, theirs, sizeof theirs);
    printable_copy(dispute->how, how, sizeof how);
    uint32_t ops = dispute->ops;
    if (dispute->rank > 0) {
        comms_detail_add(&detail, comm, dispute->rank - 1, dispute->pid);
    }
    const struct communicator_op *op = comms_op_at(comm, dispute->seq);
    if (op != NULL) {
        describe_post(op, ours, sizeof ours);
        comms_detail_add(&detail, comm, op->first_rank, (int32_t)op->first_pid);
        ops = op->terms.bucket_ops > ops ? op->terms.bucket_ops : ops;
    } else {
        (void)snprintf(ours, sizeof ours, "node %s has ended it already", communicator_own_name(comm));
    }
    error_set(&cause, STATUS_MISMATCH, "op %llu on \"%s\": %s; %s%s%s", (unsigned long long)dispute->seq,
              comm->name, theirs, ours, how[0] != '\0' ? ": " : "", how);
    comms_verdict_ask(comm, dispute->seq, ops, &cause, &detail, now_ns);
}
