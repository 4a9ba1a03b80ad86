#include <stdio.h>
#include <stdlib.h>

#include <utlist.h>

#include "daemon/comm/comms_internal.h"
#include "daemon/comm/formation.h"

#define VISIT_TEXT_MAX_BYTES 256

const char *communicator_state_text(enum communicator_state state)
{
    switch (state) {
    case COMMS_COMM_FORMING:
        return "forming";
    case COMMS_COMM_FORMED:
        return "formed";
    case COMMS_COMM_FAILED:
        return "failed";
    }
    return "unknown";
}

/* While forming: the known nodes, and the missing ranks. The caller frees *names; null without memory. */
static void visit_forming(const struct communicator *comm, struct communicator_info *info, char *missing,
                          size_t size, const char ***names)
{
    const struct comms_claim *claim, *next;
    struct comms_text text;
    uint8_t *bits = comms_formation_known(comm, &info->known_ranks);
    comms_text_begin(&text, missing, size);
    if (bits != NULL) {
        comms_text_add_ranks(&text, bits, comm->terms.size, false);
    }
    free(bits);
    *names = calloc((size_t)HASH_COUNT(comm->claims) + 1, sizeof **names);
    if (*names == NULL) {
        return;
    }
    if (comm->rank_count > 0) {
        (*names)[info->node_count++] = communicator_own_name(comm);
    }
    HASH_ITER (hh, comm->claims, claim, next) {
        if (claim->rank_count > 0) {
            (*names)[info->node_count++] = communicator_node_name(comm, claim->node);
        }
    }
    info->node_names = *names;
}

static uint64_t ops_posted(const struct communicator *comm)
{
    uint64_t highest_seq = comm->highest_seq;
    for (uint32_t i = 0; comm->cells != NULL && i < comm->local_count; i++) {
        uint64_t head = comm->locals[i] != NULL ? comms_cells_head(comm->locals[i]) : 0;
        highest_seq = head > highest_seq ? head : highest_seq;
    }
    return highest_seq;
}

void comms_visit_comms(const struct comms *comms, communicator_visit *visit, void *context)
{
    const struct communicator *comm;
    bool more = true;
    DL_FOREACH(comms->comms, comm)
    {
        char missing[VISIT_TEXT_MAX_BYTES] = "";
        const char **names = NULL;
        if (!more) {
            return;
        }
        if (comm->member_count == 0) {
            continue; /* it only waits for the release of its last buffers */
        }
        struct communicator_info info = {
            .name = comm->name,
            .comm_id = comm->comm_id,
            .generation = comm->generation,
            .owner_uid = comm->terms.owner_uid,
            .state = comm->state,
            .size = comm->terms.size,
            .local_size = comm->rank_count,
            .missing_ranks = missing,
            .since_ns = comm->since_ns,
            .ops_posted = ops_posted(comm),
            .ops_completed = comm->completed_count + comms_cells_count(comm),
            .bytes_reduced = comm->bytes_reduced + comms_cells_bytes(comm),
            .error = comm->state == COMMS_COMM_FAILED ? comm->cause.text : "",
        };
        if (comm->node_count == 0) {
            visit_forming(comm, &info, missing, sizeof missing, &names);
        } else {
            info.known_ranks = comm->terms.size;
            info.node_count = comm->node_count;
            info.node_names = comm->node_names;
        }
        more = visit(context, &info);
        free(names);
    }
}

/* Local ranks that have posted the operation, or those that have not: "0, 2 (pid 4711)". */
static void visit_ranks(const struct communicator_op *op, bool posted, char *out, size_t size)
{
    const struct communicator *comm = op->comm;
    const char *separator = "";
    struct comms_text text;
    comms_text_begin(&text, out, size);
    for (uint32_t i = 0; i < comm->local_count; i++) {
        if (comm->locals[i] != NULL && comms_cells_is_missing(op, i) != posted) {
            comms_text_add(&text, "%s%u (pid %d)", separator, comm->locals[i]->rank,
                           (int)comm->locals[i]->client.pid);
            separator = ", ";
        }
    }
}

static bool visit_op(const struct communicator_op *op, uint64_t now_ns, comms_op_visit *visit, void *context)
{
    const struct communicator *comm = op->comm;
    char arrived[VISIT_TEXT_MAX_BYTES];
    char missing[VISIT_TEXT_MAX_BYTES];
    char waits[VISIT_TEXT_MAX_BYTES] = "";
    uint64_t deadline_ns = comms_op_deadline_ns(op);
    visit_ranks(op, true, arrived, sizeof arrived);
    visit_ranks(op, false, missing, sizeof missing);
    const struct comms_missing *known = op == comm->pending ? comms_missing_of(comm, op->seq, now_ns) : NULL;
    if (known != NULL) {
        (void)snprintf(missing, sizeof missing, "%s", known->text);
    }
    if (op->running && op == comm->pending) {
        exec_comm_describe_wait(comm->exec, waits, sizeof waits);
    }
    struct comms_op_info info = {
        .comm_name = comm->name,
        .owner_uid = comm->terms.owner_uid,
        .seq = op->seq,
        .terms = op->terms,
        .age_ns = now_ns - op->first_post_ns,
        .deadline_in_ns = deadline_ns > now_ns ? deadline_ns - now_ns : 0,
        .running = op->running,
        .arrived_ranks = arrived,
        .missing_ranks = missing,
        .waiting_for = waits,
    };
    return visit(context, &info);
}

/* The operation for which ranks wait in cells. */
static bool visit_cells(const struct communicator *comm, uint64_t now_ns, comms_op_visit *visit,
                        void *context)
{
    struct comms_cells_wait wait;
    char arrived[VISIT_TEXT_MAX_BYTES], missing[VISIT_TEXT_MAX_BYTES];
    struct comms_text texts[2];
    const char *separators[2] = {"", ""};
    if (!comms_cells_waiting(comm, now_ns, &wait)) {
        return true;
    }
    comms_text_begin(&texts[0], arrived, sizeof arrived);
    comms_text_begin(&texts[1], missing, sizeof missing);
    for (uint32_t i = 0; i < comm->local_count; i++) {
        const struct comms_member *member = comm->locals[i];
        if (member != NULL) {
            int which = comms_cells_head(member) < wait.seq;
            comms_text_add(&texts[which], "%s%u (pid %d)", separators[which], member->rank,
                           (int)member->client.pid);
            separators[which] = ", ";
        }
    }
    uint64_t timeout_ns = comm->terms.op_timeout_ms * TIME_MS;
    struct comms_op_info info = {.comm_name = comm->name,
                                 .owner_uid = comm->terms.owner_uid,
                                 .seq = wait.seq,
                                 .terms = wait.terms,
                                 .age_ns = wait.age_ns,
                                 .deadline_in_ns = timeout_ns > wait.age_ns ? timeout_ns - wait.age_ns : 0,
                                 .arrived_ranks = arrived,
                                 .missing_ranks = missing,
                                 .waiting_for = ""};
    return visit(context, &info);
}

void comms_visit_ops(const struct comms *comms, uint64_t now_ns, comms_op_visit *visit, void *context)
{
    const struct communicator *comm;
    DL_FOREACH(comms->comms, comm)
    {
        const struct communicator_op *op;
        DL_FOREACH(comm->pending, op)
        {
            if (!visit_op(op, now_ns, visit, context)) {
                return;
            }
        }
        if (!visit_cells(comm, now_ns, visit, context) || !comms_p2p_visit(comm, now_ns, visit, context)) {
            return;
        }
    }
}

static bool visit_buffers(const struct communicator *comm, const struct comms_buffers *buffers,
                          comms_use_visit *visit, void *context)
{
    const struct memory *used[] = {buffers->exec.input_memory, buffers->exec.output_memory,
                                   buffers->exec.residual_memory};
    for (size_t i = 0; i < sizeof used / sizeof *used; i++) {
        if (used[i] != NULL && !visit(context, used[i], comm->name)) {
            return false;
        }
    }
    return true;
}

static bool visit_comm_uses(const struct communicator *comm, comms_use_visit *visit, void *context)
{
    const struct communicator_op *op;
    DL_FOREACH(comm->pending, op)
    {
        for (uint32_t i = 0; i < comm->local_count; i++) {
            const struct comms_buffers *buffers = op->posts[i].buffers;
            if (buffers != NULL && !visit_buffers(comm, buffers, visit, context)) {
                return false;
            }
        }
    }
    return comms_p2p_visit_uses(comm, visit, context);
}

void comms_visit_uses(const struct comms *comms, comms_use_visit *visit, void *context)
{
    const struct communicator *comm;
    DL_FOREACH(comms->comms, comm)
    {
        if (!visit_comm_uses(comm, visit, context)) {
            return;
        }
    }
}
