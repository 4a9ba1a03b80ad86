#include "daemon/exec/exec_internal.h"

/* Slices that need no other node: those of a communicator on one node, and an all_to_all's exchange within
 * its node. */

/* The row in a trace. */
static uint32_t local_row(const struct exec_comm *comm)
{
    bool alone = comm->map->ranks.node_count == 1;
    return alone ? lane_row(&comm->lanes[0]) : TRACE_LANE_ROW(comm->share_index, TRACE_LANE_LOCAL);
}

/* Call it after work on the current slice. over: the slice is done. */
static enum status local_ran(struct exec_comm *comm, bool over, struct error *error)
{
    struct exec_op *op = comm->first_op;
    op->is_within_slice = !over;
    if (over) {
        trace_slice_done(comm->map->comm_id, op->call.seq, op->call.terms.kind, local_row(comm),
                         (uint32_t)op->slice, 0);
    }
    return exec_op_check_memories(comm, op, error);
}

static void local_begin(struct exec_comm *comm, uint64_t slice)
{
    struct exec_op *op = comm->first_op;
    op->is_within_slice = true;
    op->slice = slice;
    op->cursor = (struct coll_stage_cursor){0};
    trace_slice_started(comm->map->comm_id, op->call.seq, op->call.terms.kind, local_row(comm),
                        (uint32_t)slice, op->stage.slice_bytes);
}

/* Takes the next slice. Returns false if other threads have taken the remaining ones, or must take them. */
static bool local_take_slice(struct exec_comm *comm, enum status *status, struct error *error)
{
    struct exec_op *op = comm->first_op;
    struct exec_lane *lane = &comm->lanes[0];
    uint64_t slice = op->next_slice;
    bool others_do = comm->share_index == 0 && exec_lends(comm);
    if (op->claims != NULL && (others_do || !spread_claim(op, &slice))) {
        return false;
    }
    op->next_slice++;
    local_begin(comm, slice);
    lane->staged = false;
    *status =
        lane_reserve(lane, coll_stage_memory_elements(&op->stage, slice) * op->stage.element_bytes, error);
    return true;
}

/* Runs one slice after the other. */
bool local_step(struct exec_comm *comm, uint64_t now_ns)
{
    struct exec_op *op = comm->first_op;
    uint64_t left_bytes = EXEC_TURN_BYTES;
    while (left_bytes > 0 && op->slices_done < op->own_slices) {
        struct error error;
        enum status status = STATUS_OK;
        bool over = false;
        if (!op->is_within_slice && !local_take_slice(comm, &status, &error)) {
            op->slices_done = op->own_slices;
            return false;
        }
        if (status == STATUS_OK) {
            over = stage_run(&comm->lanes[0], op, COLL_STAGE_LOCAL, op->slice, &op->cursor, &left_bytes);
            status = local_ran(comm, over, &error);
        }
        if (status != STATUS_OK) {
            exec_comm_fail(comm, &error, now_ns);
            return false;
        }
        op->slices_done += over ? 1 : 0;
        if (over && op->claims != NULL) {
            spread_claim_done(comm, op);
        }
    }
    return op->slices_done < op->own_slices;
}

void local_exchange(struct exec_comm *comm, uint64_t now_ns)
{
    struct exec_op *op = comm->first_op;
    struct error error;
    if (comm->turn_left_bytes == 0) {
        return;
    }
    if (!op->is_within_slice) {
        comm->exchange_loan.is_done = false; /* left by a cancelled operation */
        local_begin(comm, op->local_slices_done);
    }
    bool over = loan_run_stage(&comm->exchange_loan, &comm->lanes[0], COLL_STAGE_LOCAL, op->slice,
                               &op->cursor, &comm->turn_left_bytes);
    if (local_ran(comm, over, &error) != STATUS_OK) {
        exec_comm_fail(comm, &error, now_ns);
    }
    op->local_slices_done += over ? 1 : 0;
}
