#include <stdio.h>
#include <stdlib.h>

#include <utlist.h>

#include "daemon/base/budget.h"
#include "daemon/exec/exec_device.h"
#include "daemon/exec/exec_internal.h"
#include "daemon/exec/rails_internal.h"

/* --- Making one --- */

static void comm_release(struct exec_comm *comm)
{
    for (uint32_t i = 0; i < EXEC_LANES_MAX; i++) {
        lane_release(&comm->lanes[i]);
    }
    free(comm->agreement_streams);
    free(comm->agreement_sources);
    ranges_free(&comm->cancelled);
    device_free_queues(comm);
    gpu_group_release(comm->group, comm->exec->now_ns);
    comm_map_release(comm->map);
    free(comm);
}

static bool comm_allocate(struct exec_comm *comm)
{
    size_t nodes = comm->map->ranks.node_count;
    comm->agreement_streams = calloc(2 * nodes, sizeof(struct net_stream *));
    comm->agreement_sources = calloc(2 * nodes, sizeof(struct stream_reader *));
    bool complete = comm->agreement_streams != NULL && comm->agreement_sources != NULL;
    for (uint32_t i = 0; i < EXEC_LANES_MAX && complete; i++) {
        struct exec_lane *lane = &comm->lanes[i];
        lane->comm = comm;
        lane->index = i;
        lane->streams = calloc(2 * nodes, sizeof(struct net_stream *));
        lane->sources = calloc(2 * nodes, sizeof(struct stream_reader *));
        lane->routes = calloc(nodes, sizeof *lane->routes);
        lane->offsets = calloc(2 * (nodes + 1), sizeof *lane->offsets);
        complete =
            lane->streams != NULL && lane->sources != NULL && lane->routes != NULL && lane->offsets != NULL;
    }
    return complete;
}

/* Memory for the shares of all rails. In a large cluster most of it is per node. */
static uint64_t comm_shares_bytes(const struct exec *exec, const struct comm_map *map)
{
    uint64_t nodes = map->ranks.node_count, shares = map->rail_count;
    uint64_t of_lane = nodes * (2 * sizeof(struct net_stream *) + 2 * sizeof(struct stream_reader *) + 1) +
                       2 * (nodes + 1) * sizeof(uint64_t) + EXEC_TABLES_KEPT_BYTES;
    if (exec->rails != NULL && nodes == 1) {
        shares = exec->rails->count;
    }
    uint64_t of_agreements = 2 * nodes * (sizeof(struct net_stream *) + sizeof(struct stream_reader *));
    return (sizeof(struct exec_comm) + EXEC_LANES_MAX * of_lane + of_agreements) * (shares > 1 ? shares : 1);
}

enum status exec_comm_new(struct exec *exec, struct comm_map *map, const struct exec_comm_handler *handler,
                          struct exec_comm **out, struct error *error)
{
    enum status status = comm_map_charge(map, comm_shares_bytes(exec, map), error);
    return status == STATUS_OK ? comm_new_part(exec, map, handler, 0, 1, out, error) : status;
}

enum status comm_new_part(struct exec *exec, struct comm_map *map, const struct exec_comm_handler *handler,
                          uint32_t share_index, uint32_t share_count, struct exec_comm **out,
                          struct error *error)
{
    struct exec_comm *comm = calloc(1, sizeof *comm);
    if (comm == NULL) {
        return error_set(error, STATUS_NO_MEMORY, "no memory for communicator \"%s\"", map->name);
    }
    comm->exec = exec;
    comm->map = comm_map_ref(map);
    comm->handler = *handler;
    comm->last_op = &comm->first_op;
    comm->share_index = share_index;
    comm->share_count = map->ranks.node_count == 1 ? 1 : share_count;
    comm_use_rails(comm, rails_of(comm->share_count), !map->rails_wait);
    bool complete = comm_allocate(comm);
    if (complete) {
        HASH_ADD_KEYPTR(hh, exec->comms, &map->comm_id, sizeof map->comm_id, comm);
        complete = table_has(comm, hh);
    }
    if (!complete) {
        comm_release(comm);
        return error_set(error, STATUS_NO_MEMORY, "no memory for communicator \"%s\"", map->name);
    }
    enum status status = shared_new(comm, error);
    if (status != STATUS_OK) {
        HASH_DEL(exec->comms, comm);
        comm_release(comm);
        return status;
    }
    comm->streams = (struct stream_group){.comm_id = map->comm_id,
                                          .peers = map->peers,
                                          .node_count = map->ranks.node_count,
                                          .node_index = map->ranks.node_index,
                                          .account = map->account};
    stream_readers_claim(&exec->readers, &comm->streams);
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
    comm->handler.failed(comm->handler.context, cause, now_ns);
}

/* --- Operations --- */

enum status exec_submit(struct exec_comm *comm, const struct exec_call *call, struct error *error)
{
    struct exec_op *op = NULL;
    return comm_queue_op(comm, call, &op, error);
}

enum status comm_queue_op(struct exec_comm *comm, const struct exec_call *call, struct exec_op **out,
                          struct error *error)
{
    struct exec_op *op = NULL;
    if (comm->failed || comm->aborted) {
        return error_set(error, comm->cause.status, "%s", comm->cause.text);
    }
    if (comm->op_count >= EXEC_OPS_MAX) {
        return error_set(error, STATUS_LIMIT, "\"%s\": %d operations are queued", comm->map->name,
                         EXEC_OPS_MAX);
    }
    enum status status = exec_op_new(comm, call, &op, error);
    if (status != STATUS_OK) {
        return status;
    }
    *comm->last_op = op;
    comm->last_op = &op->next;
    comm->op_count++;
    comm->queued_seq = call->seq;
    rounds_put(&comm->exec->rounds, &comm->turn, comm->map->owner_uid);
    *out = op;
    exec_wake(comm->exec);
    return STATUS_OK;
}

static const struct error fine = {.status = STATUS_OK};

static void comm_finish(struct exec_comm *comm, struct exec_op **link, const struct error *result,
                        uint64_t now_ns)
{
    struct exec_op *op = *link;
    *link = op->next;
    if (comm->last_op == &op->next) {
        comm->last_op = link;
    }
    if (comm->first_op == NULL) {
        for (int l = 0; l < EXEC_LANES_MAX; l++) {
            lane_return_memory(&comm->lanes[l]);
        }
    }
    comm->op_count--;
    struct exec_call call = op->call;
    exec_agreement_stop(comm, op);
    comm->exec->between_nodes -= op->begun && comm->map->ranks.node_count > 1 ? 1 : 0;
    device_release(comm, op);
    spread_release(op);
    free(op);
    call.done(call.context, result, now_ns);
}

static void comm_finish_first(struct exec_comm *comm, const struct error *result, uint64_t now_ns)
{
    comm_finish(comm, &comm->first_op, result, now_ns);
}

/* Ends cancelled operations behind the first. They have not begun, so they need not wait for it. */
static void comm_finish_cancelled(struct exec_comm *comm, uint64_t now_ns)
{
    struct exec_op **link = &comm->first_op->next;
    comm->cancelled_behind = false;
    while (*link != NULL) {
        struct exec_op *op = *link;
        if (op->cancelled && !device_is_ahead(op)) { /* that one waits for its turn on the GPU */
            struct error cause = op->result;
            comm_finish(comm, link, &cause, now_ns);
        } else {
            link = &op->next;
        }
    }
}

bool exec_is_cancelled(const struct exec_comm *comm, uint64_t seq)
{
    return ranges_find(&comm->cancelled, seq, NULL);
}

struct exec_op *comm_find_op(const struct exec_comm *comm, uint64_t seq)
{
    for (struct exec_op *op = comm->closing; op != NULL; op = op->next) {
        if (op->call.seq == seq) {
            return op;
        }
    }
    struct exec_op *first = comm->first_op;
    return first != NULL && first->begun && first->call.seq == seq ? first : NULL;
}

/* Marks operations of the range in that list, which is in the order of numbers. */
static bool cancel_in(struct exec_op *op, uint64_t seq, uint64_t count, const struct error *cause)
{
    bool any = false;
    for (; op != NULL && op->call.seq < seq + count; op = op->next) {
        if (op->call.seq >= seq && !op->cancelled) {
            any = op->cancelled = true;
            op->result = *cause;
        }
    }
    return any;
}

/* Marks queued operations of the range as cancelled. */
static void comm_cancel_ops(struct exec_comm *comm, uint64_t seq, uint64_t count, const struct error *cause)
{
    if (seq > comm->queued_seq) {
        return; /* none is queued; avoids a walk through a long queue */
    }
    cancel_in(comm->closing, seq, count, cause);
    bool any = cancel_in(comm->first_op, seq, count, cause);
    comm->cancelled_behind |= any && comm->first_op->next != NULL;
    if (comm->first_op != NULL && comm->first_op->begun && comm->first_op->cancelled) {
        for (uint32_t i = 0; i < EXEC_LANES_MAX; i++) {
            lane_stop(&comm->lanes[i]);
        }
    }
}

void exec_cancel(struct exec_comm *comm, uint64_t seq, uint64_t count, const struct error *cause,
                 uint64_t now_ns)
{
    uint64_t first = seq;
    if (comm->aborted || ranges_gap(&comm->cancelled, &first, seq + count) == 0) {
        return;
    }
    comm->exec->now_ns = now_ns;
    if (!ranges_add(&comm->cancelled, seq, count, 0, EXEC_CANCELLED_MAX)) {
        struct error error;
        error_set(&error, STATUS_NO_MEMORY, "no memory for communicator \"%s\"", comm->map->name);
        exec_comm_fail(comm, &error, now_ns);
    }
    comm_cancel_ops(comm, seq, count, cause);
    receive_drop(comm, seq, count);
    shared_cancel(comm, seq, count, cause);
    exec_wake(comm->exec);
}

/* --- Steps --- */

static bool lane_is_free(const struct exec_lane *lane)
{
    return lane->state == LANE_IDLE && lane->unacknowledged == 0;
}

/* Whether the next slice must wait. If a user's operations use much memory, each runs its slices one after
 * the other. */
static bool slice_waits(struct exec_comm *comm)
{
    bool runs = false;
    if (!budget_is_scarce(comm->map->account, BUDGET_LANES)) {
        return false;
    }
    for (int l = 0; l < EXEC_LANES_MAX; l++) {
        if (lane_is_free(&comm->lanes[l])) {
            lane_return_memory(&comm->lanes[l]);
        } else {
            runs = true;
        }
    }
    return runs;
}

static bool comm_start_slice(struct exec_comm *comm, uint64_t now_ns)
{
    struct exec_op *op = comm->first_op;
    struct exec_lane *lane = &comm->lanes[op->next_slice / comm->share_count % EXEC_LANES_MAX];
    struct error error;
    if (op->next_slice >= op->stage.slice_count || !lane_is_free(lane) || slice_waits(comm)) {
        return false;
    }
    if (op->is_staged && !lane_device_may_begin(lane, op)) {
        comm->exec->pacer.waits = true;
        return false;
    }
    uint64_t slice = op->next_slice;
    op->next_slice = spread_next_slice(comm, slice + 1, op->stage.slice_count);
    if (lane_start(lane, op, slice, &error) != STATUS_OK) {
        exec_comm_fail(comm, &error, now_ns);
        return false;
    }
    lane_advance(lane, now_ns);
    if (!lane_comes_in(lane)) {
        receive_resume(comm);
    }
    return true;
}

/* Advances the lanes of the running operation, and starts at most one slice. Returns whether more can be done
 * at once. */
static bool comm_step_lanes(struct exec_comm *comm, uint64_t now_ns)
{
    struct exec_op *op = comm->first_op;
    bool arrived = false;
    comm->turn_left_bytes = EXEC_TURN_BYTES;
    for (int l = 0; l < EXEC_LANES_MAX && !comm->failed; l++) {
        struct exec_lane *lane = &comm->lanes[l];
        bool waited = lane_comes_in(lane) || lane_is_sending(lane) || lane->state == LANE_DEVICE_CODE;
        if (waited || (lane->state != LANE_IDLE && lane->state != LANE_ROUNDS)) { /* receives move these */
            lane_advance(lane, now_ns);
        }
        arrived |= waited && !lane_comes_in(lane);
    }
    if (arrived) {
        receive_resume(comm); /* data that has arrived for them can be taken now */
    }
    if (comm->failed) {
        return false;
    }
    bool started = comm_start_slice(comm, now_ns);
    if (!comm->failed && op->local_slices_done < op->local_slices) {
        local_exchange(comm, now_ns);
        return !comm->exchange_loan.is_out;
    }
    return comm->turn_left_bytes == 0 || (started && op->next_slice < op->stage.slice_count);
}

static bool comm_begin(struct exec_comm *comm, uint64_t now_ns)
{
    struct exec_op *op = comm->first_op;
    struct error error;
    bool measured = exec_op_measure(comm, op, &error) == STATUS_OK;
    enum spread_state spread = measured ? spread_begin(comm, op, &error) : SPREAD_FAILED;
    if (spread == SPREAD_WAITS) {
        return false;
    }
    comm->last_seq = op->call.seq;
    if (spread == SPREAD_FAILED) {
        exec_comm_fail(comm, &error, now_ns);
        return false;
    }
    exec_op_begin(comm, op);
    trace_op_started(comm->map->comm_id, op->call.seq, op->call.terms.kind, comm->share_index, 0,
                     op->stage.slice_count);
    if (op->agrees && !coll_stage_sizes_are_private(&op->stage)) {
        exec_agreement_begin(comm, op, now_ns);
    }
    if (op->stage.total_elements == 0 && op->agrees && !op->call.terms.has_layouts) {
        op->slices_done = op->own_slices; /* nothing to do but the agreement */
        op->next_slice = op->stage.slice_count;
    }
    receive_resume(comm);
    return !comm->failed;
}

static enum device_step comm_device_step(struct exec_comm *comm, uint64_t now_ns,
                                         enum device_step (*step)(struct exec_comm *comm, struct exec_op *op,
                                                                  uint64_t now_ns, struct error *error))
{
    struct error error;
    enum device_step result = step(comm, comm->first_op, now_ns, &error);
    if (result == DEVICE_STEP_FAILED) {
        exec_comm_fail(comm, &error, now_ns);
    }
    return result;
}

/*
 * Call it after the last use of the first operation's buffers. If their memory broke, the communicator fails.
 */
static bool comm_memories_are_whole(struct exec_comm *comm, uint64_t now_ns)
{
    struct error error;
    struct exec_op *op = comm->first_op;
    /* If threads share the slices, only the main thread checks: for the others the buffers may be gone. */
    bool is_shared_part = comm->share_index > 0 && op->claims != NULL;
    if (is_shared_part || exec_op_check_memories(comm, op, &error) == STATUS_OK) {
        return true;
    }
    exec_comm_fail(comm, &error, now_ns);
    return false;
}

/*
 * The first operation's data are done, and its agreement is open, or that of an earlier one. Lets the next
 * one run, if it can. Operations on GPUs and on several rails end before the next one runs.
 */
static bool comm_step_aside(struct exec_comm *comm, uint64_t now_ns)
{
    struct exec_op *op = comm->first_op;
    struct exec_op **link = &comm->closing;
    if (op->device != NULL || op->spread != NULL || op->disputed || comm->closing_count >= EXEC_CLOSING_MAX ||
        !comm_memories_are_whole(comm, now_ns)) {
        return false;
    }
    comm->first_op = op->next;
    if (op->next == NULL) {
        comm->last_op = &comm->first_op;
    }
    op->next = NULL;
    while (*link != NULL) {
        link = &(*link)->next;
    }
    *link = op;
    comm->closing_count++;
    if (comm->handler.closing != NULL) {
        comm->handler.closing(comm->handler.context, op->call.seq);
    }
    return comm->first_op != NULL;
}

/* Ends closing operations, each after those before it, unless it was cancelled. Returns whether none is left
 * of the communicator, which may be gone then. */
static bool comm_end_closing(struct exec_comm *comm, uint64_t now_ns)
{
    struct exec_op **link = &comm->closing;
    while (*link != NULL) {
        struct exec_op *op = *link;
        bool well = !comm->failed && link == &comm->closing && op->agrees == op->agreement.done;
        if (!comm->aborted && !op->cancelled && !well) {
            link = &op->next;
            continue;
        }
        struct error result = comm->aborted ? comm->cause : op->cancelled ? op->result : fine;
        bool is_last = comm->op_count == 1;
        comm->closing_count--;
        comm_finish(comm, link, &result, now_ns);
        if (is_last) {
            return true;
        }
    }
    return false;
}

/* Returns whether the first operation runs. *more: it does not, and the next one can be started. */
static bool comm_start_op(struct exec_comm *comm, uint64_t now_ns, bool *more)
{
    struct exec_op *op = comm->first_op;
    *more = false;
    switch (comm_device_step(comm, now_ns, device_before)) {
    case DEVICE_STEP_GO:
        return comm_begin(comm, now_ns);
    case DEVICE_STEP_ENDED:
        if (!comm_memories_are_whole(comm, now_ns)) {
            return false;
        }
        *more = op->next != NULL;
        comm->last_seq = op->call.seq;
        comm_finish_first(comm, &fine, now_ns); /* may free the communicator, if that was the last */
        return false;
    case DEVICE_STEP_WAITS:
        device_run_ahead(comm, now_ns);
        break;
    case DEVICE_STEP_FAILED:
        break;
    }
    return false;
}

/* Ends the first operation, of an aborted communicator or cancelled. Returns whether more can be done. */
static bool comm_give_up_first(struct exec_comm *comm, uint64_t now_ns)
{
    struct exec_op *op = comm->first_op;
    if (op->unacknowledged > 0 || !spread_is_done(op, true) || !device_is_idle(comm, op, now_ns) ||
        !lanes_are_off_devices(comm, now_ns) || !loans_are_back(comm)) {
        device_end_group(comm, op, now_ns);
        return false; /* the network, another thread or a GPU still holds its buffers */
    }
    struct error cause = comm->aborted ? comm->cause : op->result;
    bool more = op->next != NULL;
    comm->last_seq = op->call.seq;
    comm_finish_first(comm, &cause, now_ns); /* may free the communicator, if that was the last */
    return more;
}

/* Ends the first operation, whose results are there. Returns whether more can be done. */
static bool comm_complete_first(struct exec_comm *comm, uint64_t now_ns)
{
    struct exec_op *op = comm->first_op;
    if (comm_device_step(comm, now_ns, device_after) != DEVICE_STEP_GO ||
        !comm_memories_are_whole(comm, now_ns)) {
        return false;
    }
    struct error result = fine;
    spread_result(op, &result);
    bool more = op->next != NULL;
    comm_finish_first(comm, &result, now_ns);
    return more;
}

bool exec_comm_step(struct exec_comm *comm, uint64_t now_ns)
{
    exec_agreements_advance(comm, now_ns);
    if (comm_end_closing(comm, now_ns) || comm->first_op == NULL) {
        return false;
    }
    struct exec_op *op = comm->first_op;
    if (comm->cancelled_behind && !comm->aborted) {
        comm_finish_cancelled(comm, now_ns);
    }
    if (comm->aborted || op->cancelled) {
        return comm_give_up_first(comm, now_ns);
    }
    bool more = false;
    if (comm->failed || (!op->begun && !comm_start_op(comm, now_ns, &more))) {
        return more;
    }
    more = comm->map->ranks.node_count == 1 && !op->is_staged ? local_step(comm, now_ns)
                                                              : comm_step_lanes(comm, now_ns);
    if (!comm->failed && op->agrees && !op->agreement.begun && op->slices_done == op->own_slices) {
        exec_agreement_begin(comm, op, now_ns); /* only now it is known whether sizes agree */
        receive_resume(comm);
    }
    bool data_are_done = op->slices_done == op->own_slices && op->local_slices_done == op->local_slices &&
                         op->unacknowledged == 0 && spread_is_done(op, false);
    if (comm->failed || !data_are_done) {
        return more;
    }
    bool may_end = comm->closing == NULL && op->agrees == op->agreement.done;
    return may_end ? comm_complete_first(comm, now_ns) : comm_step_aside(comm, now_ns);
}

void exec_comm_rest(struct exec_comm *comm)
{
    rounds_remove(&comm->exec->rounds, &comm->turn);
}

/* --- The end --- */

void exec_comm_abort(struct exec_comm *comm, const struct error *cause)
{
    if (comm->aborted) {
        return;
    }
    comm->failed = true;
    comm->aborted = true;
    comm->cause = *cause;
    exec_forget_cut(comm);
    /* Without an operation streams are finished, not reset: last bytes may still be needed by other nodes. */
    comm_reset_streams(comm, !exec_comm_idle(comm));
    stream_readers_detach(&comm->exec->readers, &comm->streams);
    shared_abort(comm, cause);
    exec_wake(comm->exec);
}

bool exec_comm_idle(const struct exec_comm *comm)
{
    return comm->op_count == 0;
}

void exec_comm_free(struct exec_comm *comm)
{
    if (comm != NULL) {
        shared_leave(comm);
        comm_free_now(comm);
    }
}

void comm_free_now(struct exec_comm *comm)
{
    comm_reset_streams(comm, false);
    stream_readers_detach(&comm->exec->readers, &comm->streams);
    exec_forget_cut(comm);
    exec_comm_rest(comm);
    HASH_DEL(comm->exec->comms, comm);
    comm_release(comm);
}
