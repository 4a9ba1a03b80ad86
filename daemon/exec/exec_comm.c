#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/exec/exec_internal.h"

static void comm_release(struct exec_comm *comm)
{
    for (int l = 0; l < EXEC_LANES_MAX; l++) {
        free(comm->lanes[l].streams);
    }
    free(comm->transfer_space);
    free(comm->peers);
    free(comm);
}

enum status exec_comm_new(struct exec *exec, const struct exec_comm_options *options, struct exec_comm **out,
                          struct error *error)
{
    struct exec_comm *comm = calloc(1, sizeof *comm);
    if (comm == NULL) {
        return error_set(error, STATUS_NO_MEMORY, "no memory for communicator \"%s\"", options->name);
    }
    size_t nodes = options->node_count;
    comm->exec = exec;
    comm->options = *options;
    comm->comm_id = options->comm_id;
    comm->last_op = &comm->first_op;
    comm->peers = calloc(nodes, sizeof *comm->peers);
    comm->transfer_space = calloc(2 * nodes * EXEC_LANES_MAX, sizeof *comm->transfer_space);
    bool complete = comm->peers != NULL && comm->transfer_space != NULL;
    for (int l = 0; l < EXEC_LANES_MAX && complete; l++) {
        struct exec_lane *lane = &comm->lanes[l];
        lane->comm = comm;
        lane->streams = calloc(nodes, sizeof(struct net_stream *));
        lane->transfers.sends = comm->transfer_space + (size_t)l * 2 * nodes;
        lane->transfers.receives = lane->transfers.sends + nodes;
        complete = lane->streams != NULL;
    }
    if (!complete) {
        comm_release(comm);
        return error_set(error, STATUS_NO_MEMORY, "no memory for communicator \"%s\"", options->name);
    }
    memcpy(comm->peers, options->peers, nodes * sizeof *comm->peers);
    HASH_ADD(hh, exec->comms, comm_id, sizeof comm->comm_id, comm);
    receive_claim_parked(comm);
    *out = comm;
    return STATUS_OK;
}

void exec_comm_fail(struct exec_comm *comm, const struct error *cause, uint64_t now_ns)
{
    if (comm->failed) {
        return;
    }
    comm->failed = true;
    comm->cause = *cause;
    comm->options.failed(comm->options.context, cause, now_ns);
}

enum status exec_submit(struct exec_comm *comm, const struct exec_call *call, struct error *error)
{
    if (comm->failed || comm->aborted) {
        return error_set(error, comm->cause.status, "%s", comm->cause.text);
    }
    if (comm->op_count >= EXEC_OPS_MAX) {
        return error_set(error, STATUS_LIMIT, "\"%s\": %d operations are queued", comm->options.name,
                         EXEC_OPS_MAX);
    }
    struct exec_op *op = calloc(1, sizeof *op);
    struct exec_rank *ranks = calloc(call->rank_count, sizeof *ranks);
    if (op == NULL || ranks == NULL) {
        free(op);
        free(ranks);
        return error_set(error, STATUS_NO_MEMORY, "\"%s\": no memory for an operation", comm->options.name);
    }
    memcpy(ranks, call->ranks, call->rank_count * sizeof *ranks);
    op->call = *call;
    op->ranks = ranks;
    op->call.ranks = ranks;
    op->element_bytes = dtype_size_bytes(call->dtype);
    op->slice_count = coll_slice_count(call->count_elements, op->element_bytes, comm->options.slice_bytes);
    op->algorithm =
        coll_select(call->kind, comm->options.node_count, call->count_elements * op->element_bytes);
    op->result.status = STATUS_OK;
    if (op->slice_count > UINT32_MAX) {
        free(ranks);
        free(op);
        return error_set(error, STATUS_LIMIT, "\"%s\": more than %u slices of %llu bytes", comm->options.name,
                         UINT32_MAX, (unsigned long long)comm->options.slice_bytes);
    }
    *comm->last_op = op;
    comm->last_op = &op->next;
    comm->op_count++;
    exec_wake(comm->exec);
    return STATUS_OK;
}

static void comm_finish_first(struct exec_comm *comm, const struct error *result, uint64_t now_ns)
{
    struct exec_op *op = comm->first_op;
    comm->first_op = op->next;
    if (comm->first_op == NULL) {
        comm->last_op = &comm->first_op;
    }
    comm->op_count--;
    comm->running = false;
    struct exec_call call = op->call;
    free(op->ranks);
    free(op);
    call.done(call.context, result, now_ns);
}

/* One slice after the other, one a step. Returns whether it is done. */
static bool comm_step_local(struct exec_comm *comm)
{
    struct exec_op *op = comm->first_op;
    uint64_t offset_elements, count_elements;
    coll_slice_range(op->call.count_elements, op->element_bytes, comm->options.slice_bytes, op->next_slice,
                     &offset_elements, &count_elements);
    stage_local_only(op, offset_elements, count_elements);
    return ++op->next_slice == op->slice_count;
}

/* Moves the lanes of the running operation; starts at most one slice. Returns whether more can be done at
 * once. */
static bool comm_step_lanes(struct exec_comm *comm, uint64_t now_ns)
{
    struct exec_op *op = comm->first_op;
    bool started = false;
    for (int l = 0; l < EXEC_LANES_MAX && !comm->failed; l++) {
        if (comm->lanes[l].state == LANE_DRAIN && comm->lanes[l].unacknowledged == 0) {
            lane_advance(&comm->lanes[l], now_ns);
        }
    }
    if (op->next_slice < op->slice_count && !comm->failed) {
        struct exec_lane *lane = &comm->lanes[op->next_slice % EXEC_LANES_MAX];
        if (lane->state == LANE_IDLE) {
            struct error error;
            if (lane_start(lane, op->next_slice++, &error) != STATUS_OK) {
                exec_comm_fail(comm, &error, now_ns);
                return false;
            }
            lane_advance(lane, now_ns);
            receive_resume(comm);
            started = true;
        }
    }
    return started && op->next_slice < op->slice_count;
}

static bool comm_is_local(const struct exec_comm *comm, const struct exec_op *op)
{
    return comm->options.node_count == 1 ||
           (op->call.count_elements == 0 && op->call.kind != OP_KIND_BARRIER);
}

bool exec_comm_step(struct exec_comm *comm, uint64_t now_ns)
{
    struct exec_op *op = comm->first_op;
    static const struct error fine = {.status = STATUS_OK};
    if (op == NULL) {
        return false;
    }
    if (comm->aborted) {
        if (op->unacknowledged > 0) {
            return false; /* the network still holds its buffers */
        }
        struct error cause = comm->cause;
        bool more = op->next != NULL;
        comm_finish_first(comm, &cause, now_ns); /* may free the communicator, if that was the last */
        return more;
    }
    if (comm->failed) {
        return false;
    }
    if (!comm->running) {
        comm->running = true;
        comm->last_seq = op->call.seq;
    }
    bool more;
    bool done;
    if (comm_is_local(comm, op)) {
        done = comm_step_local(comm);
        more = !done;
    } else {
        more = comm_step_lanes(comm, now_ns);
        done = !comm->failed && op->slices_done == op->slice_count && op->unacknowledged == 0;
    }
    if (done) {
        more = op->next != NULL;
        comm_finish_first(comm, &fine, now_ns);
    }
    return more;
}

void exec_comm_abort(struct exec_comm *comm, const struct error *cause, uint64_t now_ns)
{
    (void)now_ns;
    if (comm->aborted) {
        return;
    }
    comm->failed = true;
    comm->aborted = true;
    comm->cause = *cause;
    for (int l = 0; l < EXEC_LANES_MAX; l++) {
        lane_reset_streams(&comm->lanes[l], true);
    }
    receive_detach(comm);
    exec_wake(comm->exec);
}

bool exec_comm_idle(const struct exec_comm *comm)
{
    return comm->first_op == NULL;
}

void exec_comm_free(struct exec_comm *comm)
{
    if (comm == NULL) {
        return;
    }
    for (int l = 0; l < EXEC_LANES_MAX; l++) {
        lane_reset_streams(&comm->lanes[l], false);
    }
    receive_detach(comm);
    HASH_DEL(comm->exec->comms, comm);
    comm_release(comm);
}

void exec_comm_describe_wait(const struct exec_comm *comm, char *text, size_t size)
{
    text[0] = '\0';
    if (comm->first_op == NULL || !comm->running) {
        return;
    }
    for (int l = 0; l < EXEC_LANES_MAX; l++) {
        const struct coll_transfer *receive = lane_next_receive(&comm->lanes[l]);
        if (receive != NULL) {
            snprintf(text, size, "round %u of slice %llu: waiting for data from node %s",
                     comm->lanes[l].round, (unsigned long long)comm->lanes[l].slice,
                     comm->options.node_names[receive->node]);
            return;
        }
    }
    if (comm->first_op->unacknowledged > 0) {
        snprintf(text, size, "%llu sends are not acknowledged yet",
                 (unsigned long long)comm->first_op->unacknowledged);
    }
}

uint32_t exec_comm_waiting_for(const struct exec_comm *comm, uint32_t *nodes, uint32_t max)
{
    uint32_t count = 0;
    for (int l = 0; l < EXEC_LANES_MAX && comm->running; l++) {
        const struct coll_transfer *receive = lane_next_receive(&comm->lanes[l]);
        bool known = receive == NULL;
        for (uint32_t i = 0; i < count && !known; i++) {
            known = nodes[i] == receive->node;
        }
        if (!known && count < max) {
            nodes[count++] = receive->node;
        }
    }
    return count;
}
