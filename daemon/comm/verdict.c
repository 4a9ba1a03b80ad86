#include <stdio.h>
#include <stdlib.h>

#include <utlist.h>

#include "daemon/base/log.h"
#include "daemon/comm/comms_internal.h"
#include "daemon/comm/loss.h"

/*
 * Operations that end on all ranks with the same result and text: ranks called them differently, one rank was
 * refused, or the deadline passed. Ranks on which such an operation has succeeded already keep that result. A
 * node that wants a verdict asks the communicator's first node, which sends it to all nodes once. The
 * communicator continues with later operations.
 *
 * A rank may post an operation after its verdict. So numbers and status are kept for many verdicts, at a few
 * bytes each. Texts are kept for the last few, and only if a local rank has not posted the operation yet.
 */

bool comms_verdict_find(const struct communicator *comm, uint64_t seq, struct error *cause)
{
    uint32_t status;
    if (!ranges_find(&comm->verdicts, seq, &status)) {
        return false;
    }
    for (uint32_t i = 0; i < COMMS_VERDICT_TEXTS_MAX && cause != NULL; i++) {
        const struct comms_verdict *verdict = comm->verdict_texts[i];
        if (verdict != NULL && seq >= verdict->seq && seq - verdict->seq < verdict->ops) {
            *cause = verdict->cause;
            return true;
        }
    }
    if (cause != NULL) {
        error_set(cause, (enum status)status,
                  "op %llu on \"%s\" ended before this rank posted it; commd no longer has the reason",
                  (unsigned long long)seq, comm->name);
    }
    return true;
}

const struct comms_detail *comms_verdict_detail(const struct communicator *comm, uint64_t seq)
{
    for (uint32_t i = 0; i < COMMS_VERDICT_TEXTS_MAX; i++) {
        const struct comms_verdict *verdict = comm->verdict_texts[i];
        if (verdict != NULL && seq >= verdict->seq && seq - verdict->seq < verdict->ops) {
            return verdict->has_detail ? &verdict->detail : NULL;
        }
    }
    return NULL;
}

/* Up to which operation every local rank has posted. */
static uint64_t posted_by_all(const struct communicator *comm)
{
    uint64_t seq = UINT64_MAX - 1;
    for (uint32_t i = 0; i < comm->local_count; i++) {
        const struct comms_member *member = comm->locals[i];
        if (member != NULL && member->posted_seq < seq) {
            seq = member->posted_seq;
        }
    }
    return seq;
}

#define VERDICTS_COST_BYTES                                                                                  \
    (COMMS_VERDICTS_MAX * sizeof(struct range) + COMMS_VERDICT_TEXTS_MAX * sizeof(struct comms_verdict))

static enum status verdict_keep(struct communicator *comm, uint64_t seq, uint64_t ops,
                                const struct error *cause, const struct comms_detail *detail,
                                struct error *error)
{
    uint64_t posted_seq = posted_by_all(comm);
    if (!comm->verdicts_charged && communicator_charge(comm, VERDICTS_COST_BYTES, error) != STATUS_OK) {
        return STATUS_LIMIT;
    }
    comm->verdicts_charged = true;
    if (comm->verdicts.count == comm->verdicts.capacity) {
        ranges_drop_below(&comm->verdicts, posted_seq + 1);
    }
    if (!ranges_add(&comm->verdicts, seq, ops, (uint32_t)cause->status, COMMS_VERDICTS_MAX)) {
        goto no_memory;
    }
    if (posted_seq >= seq + ops - 1) {
        return STATUS_OK;
    }
    struct comms_verdict **place = &comm->verdict_texts[comm->verdict_text_count % COMMS_VERDICT_TEXTS_MAX];
    if (*place == NULL) { /* the texts are large */
        *place = malloc(sizeof **place);
    }
    if (*place == NULL) {
        goto no_memory;
    }
    **place = (struct comms_verdict){.seq = seq, .ops = ops, .cause = *cause, .has_detail = detail != NULL};
    if (detail != NULL) {
        (*place)->detail = *detail;
    }
    comm->verdict_text_count++;
    return STATUS_OK;

no_memory:
    return error_set(error, STATUS_NO_MEMORY, "communicator \"%s\": no memory", comm->name);
}

void comms_verdicts_free(struct communicator *comm)
{
    for (uint32_t i = 0; i < COMMS_VERDICT_TEXTS_MAX; i++) {
        free(comm->verdict_texts[i]);
        comm->verdict_texts[i] = NULL;
    }
    ranges_free(&comm->verdicts);
}

/* Ends operations here; they had no verdict before. */
static void verdict_apply(struct communicator *comm, uint64_t seq, uint64_t ops, const struct error *cause,
                          const struct comms_detail *detail, uint64_t now_ns)
{
    struct error failure;
    if (log_limit_pass(&comm->comms->verdict_limit, now_ns, NULL)) {
        log_warning("%s", cause->text);
    }
    if (verdict_keep(comm, seq, ops, cause, detail, &failure) != STATUS_OK) {
        communicator_fail(comm, &failure, COMMS_TELL_NODES, now_ns);
        return;
    }
    if (comm->exec != NULL) { /* even if not submitted: other nodes may have done so */
        exec_cancel(comm->exec, seq, ops, cause, now_ns);
    }
    for (uint64_t each = seq; each < seq + ops; each++) {
        struct communicator_op *op = comms_op_at(comm, each);
        if (op != NULL) {
            comms_op_end(op, cause, detail, now_ns);
        }
    }
    comms_op_start_ready(comm, now_ns);
    communicator_arm(comm);
    communicator_queue(comm);
}

static void verdict_send(struct communicator *comm, uint32_t index, uint64_t seq, uint64_t ops,
                         const struct error *cause, const struct comms_detail *detail, bool final)
{
    Commd__Mesh__Failure failure;
    Commd__Mesh__Verdict body = COMMD__MESH__VERDICT__INIT;
    body.comm_id = comm->comm_id;
    body.seq = seq;
    body.ops = (uint32_t)ops;
    body.status = cause->status;
    body.text = (char *)cause->text;
    body.final = final;
    if (detail != NULL) {
        comms_detail_to_wire(detail, &failure);
        body.failure = &failure;
    }
    Commd__Mesh__Message message = MESH_MESSAGE(VERDICT, verdict, &body);
    communicator_send(comm, comm->nodes[index].node, &message);
}

/* Takes a verdict; the first one on each operation counts. The first node sends it to the others. */
static void verdict_take(struct communicator *comm, uint64_t seq, uint32_t ops, const struct error *cause,
                         const struct comms_detail *detail, uint64_t now_ns)
{
    uint64_t end = seq + ops;
    if (comms_loss_is_frozen(comm)) {
        return; /* what has not ended ends with the communicator */
    }
    for (uint64_t count;
         comm->state != COMMS_COMM_FAILED && (count = ranges_gap(&comm->verdicts, &seq, end)) > 0;
         seq += count) {
        for (uint32_t i = 0; comm->own_index == 0 && i < comm->node_count; i++) {
            if (i != comm->own_index) {
                verdict_send(comm, i, seq, count, cause, detail, true);
            }
        }
        verdict_apply(comm, seq, count, cause, detail, now_ns);
    }
}

void comms_verdict_ask(struct communicator *comm, uint64_t seq, uint32_t ops, const struct error *cause,
                       const struct comms_detail *detail, uint64_t now_ns)
{
    if (comm->own_index == 0) {
        verdict_take(comm, seq, ops, cause, detail, now_ns);
    } else {
        verdict_send(comm, 0, seq, ops, cause, detail, false);
    }
}

void comms_verdict_received(struct communicator *comm, const Commd__Mesh__Verdict *verdict, uint64_t now_ns)
{
    struct error cause;
    struct comms_detail detail;
    if (comm->state == COMMS_COMM_FAILED) {
        return;
    }
    cause.status = status_from_wire(verdict->status);
    if (cause.status != STATUS_LIMIT && cause.status != STATUS_TIMED_OUT) {
        cause.status = STATUS_MISMATCH;
    }
    printable_copy(verdict->text, cause.text, sizeof cause.text);
    verdict_take(comm, verdict->seq, verdict->ops, &cause,
                 comms_detail_from_wire(verdict->failure, comm, &detail), now_ns);
}

void comms_verdicts_begin(struct communicator *comm, uint64_t now_ns)
{
    static const struct error cause = {.status = STATUS_LIMIT,
                                       .text = "it ended before a rank of this node posted it"};
    for (uint32_t i = 0; i < comm->verdicts.count; i++) {
        exec_cancel(comm->exec, comm->verdicts.items[i].first, comm->verdicts.items[i].count, &cause, now_ns);
    }
}

/* --- Refusals --- */

void comms_verdict_refusal_text(const struct comms_member *member, uint64_t seq, uint64_t ops,
                                const struct error *why, struct error *out)
{
    const struct communicator *comm = member->comm;
    char last[32] = "";
    if (ops > 1) {
        (void)snprintf(last, sizeof last, " to %llu", (unsigned long long)(seq + ops - 1));
    }
    error_set(out, why->status, "op %llu%s on \"%s\": rank %u (pid %d, node %s): %s", (unsigned long long)seq,
              last, comm->name, member->rank, (int)member->client.pid, communicator_own_name(comm),
              why->text);
}

/* Asks for a verdict on as many of the member's refusals as one verdict can have. */
static void refusals_ask(struct comms_member *member, uint64_t now_ns)
{
    struct comms_refusals *refusals = member->refusals;
    struct communicator *comm = member->comm;
    struct error cause;
    struct comms_detail detail = {.seq = refusals->seq};
    uint64_t seq = refusals->seq;
    uint64_t ops = refusals->ops < OP_BUCKET_OPS_MAX ? refusals->ops : OP_BUCKET_OPS_MAX;
    comms_verdict_refusal_text(member, seq, ops, &refusals->why, &cause);
    comms_detail_add_member(&detail, member);
    refusals->seq += ops;
    refusals->ops -= ops;
    if (refusals->ops == 0) {
        comms_verdict_forget_own(member);
    }
    exec_cancel(comm->exec, seq, ops, &cause,
                now_ns); /* they must not begin here before the verdict arrives */
    comms_verdict_ask(comm, seq, (uint32_t)ops, &cause, &detail, now_ns);
}

void comms_verdict_tell_own(struct comms_member *member, uint64_t now_ns)
{
    while (member->refusals != NULL && member->comm->state == COMMS_COMM_FORMED) {
        refusals_ask(member, now_ns);
    }
}

void comms_verdict_forget_own(struct comms_member *member)
{
    if (member->refusals != NULL) {
        free(member->refusals);
        member->refusals = NULL;
        member->comm->refusing_count--;
    }
}

void comms_verdict_tell_refusals(struct communicator *comm, uint64_t now_ns)
{
    struct comms_member *member;
    comm->refusals_ns = TIME_NEVER;
    if (comm->refusing_count == 0 || comm->state != COMMS_COMM_FORMED) {
        return;
    }
    DL_FOREACH(comm->members, member)
    {
        while (member->refusals != NULL && comm->state == COMMS_COMM_FORMED) {
            if (comm->node_count > 1 && mesh_is_crowded(comm->comms->mesh)) {
                comm->refusals_ns = time_after(now_ns, COMMS_CROWD_WAIT_NS);
                return;
            }
            refusals_ask(member, now_ns);
        }
    }
    comms_op_start_ready(comm, now_ns);
}

void comms_verdict_refuse(struct comms_member *member, uint64_t seq, uint64_t ops, const struct error *why,
                          uint64_t now_ns)
{
    struct communicator *comm = member->comm;
    struct comms_refusals *refusals = member->refusals;
    struct error cause;
    if (refusals != NULL && seq >= refusals->seq && seq - refusals->seq <= refusals->ops) {
        uint64_t together = seq - refusals->seq + ops;
        refusals->ops = together > refusals->ops ? together : refusals->ops;
        return;
    }
    comms_verdict_tell_own(member, now_ns);
    if (comm->state != COMMS_COMM_FORMED) {
        return;
    }
    communicator_queue(comm);
    member->refusals = malloc(sizeof *member->refusals);
    if (member->refusals == NULL) {
        comms_verdict_refusal_text(member, seq, ops, why, &cause);
        exec_cancel(comm->exec, seq, ops, &cause, now_ns);
        comms_verdict_ask(comm, seq, (uint32_t)ops, &cause, NULL, now_ns);
        return;
    }
    *member->refusals = (struct comms_refusals){seq, ops, *why};
    comm->refusing_count++;
}
