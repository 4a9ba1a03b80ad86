#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/exec/exec_device.h"
#include "daemon/exec/exec_internal.h"
#include "daemon/exec/gpu_coding.h"

struct exec_op *lane_op(const struct exec_lane *lane)
{
    return lane->comm->first_op;
}

/* --- Rounds --- */

/* Lets other nodes send the round's data without waiting until its first bytes have arrived. */
static void lane_expect(const struct exec_lane *lane)
{
    const struct exec_op *op = lane_op(lane);
    for (uint32_t i = 0; i < lane->transfers.receive_count; i++) {
        const struct coll_transfer *receive = &lane->transfers.receives[i];
        uint64_t bytes = receive->count_elements * op->stage.element_bytes;
        for (uint32_t bulk = 0; bulk < 2 && bytes > NET_STREAM_FIRST_WINDOW_BYTES / 2; bulk++) {
            struct stream_reader *source =
                lane->sources[receive->node + bulk * lane->comm->map->ranks.node_count];
            if (source != NULL) {
                stream_reader_expect(source, bytes);
            }
        }
    }
}

/* Whether the rest of a large transfer must wait for acknowledgements. Not if the algorithm copies its sends:
 * then nothing of a round is received before all its sends are done. */
static bool lane_is_far_ahead(const struct exec_lane *lane)
{
    return lane->sent_elements > 0 && lane->unacknowledged >= EXEC_SENDS_AHEAD_MAX &&
           !lane->algorithm->copies_sends;
}

/* Sends as much as the turn allows. */
static enum status lane_go_on_sending(struct exec_lane *lane, struct error *error)
{
    struct exec_comm *comm = lane->comm;
    while (lane_is_sending(lane)) {
        if (lane_is_far_ahead(lane)) {
            return STATUS_OK; /* lane_sent wakes it */
        }
        if (!lane_may_send(lane)) {
            return STATUS_OK;
        }
        if (comm->turn_left_bytes == 0) {
            exec_wake(comm->exec);
            return STATUS_OK;
        }
        enum status status = lane_send(lane, error);
        if (status != STATUS_OK) {
            return status;
        }
    }
    trace_round_sent(comm->map->comm_id, lane_op(lane)->call.seq, lane_op(lane)->call.terms.kind,
                     lane_row(lane), (uint32_t)lane->slice, lane->round);
    return STATUS_OK;
}

static void lane_clear_round(struct exec_lane *lane)
{
    lane->transfers.send_count = 0;
    lane->transfers.receive_count = 0;
    lane->sends_done = 0;
    lane->sent_elements = 0;
    lane->receives_done = 0;
    lane->received_elements = 0;
}

/* Begins a round. It first checks that no client memory broke, as the round sends from it. */
static enum status lane_begin_round(struct exec_lane *lane, struct error *error)
{
    enum status memories = exec_op_check_memories(lane->comm, lane_op(lane), error);
    if (memories != STATUS_OK) {
        return memories;
    }
    lane_clear_round(lane);
    lane->algorithm->round(&lane->call, lane->round, &lane->transfers);
    if (compressed_applies(lane_op(lane))) {
        enum status status = compressed_begin_round(lane, error);
        if (status != STATUS_OK || lane->state == LANE_DEVICE_CODE) {
            return status;
        }
    }
    lane_expect(lane);
    return lane_go_on_sending(lane, error);
}

/* The GPU has encoded what the round sends. */
static enum status lane_go_round(struct exec_lane *lane, struct error *error)
{
    lane->state = LANE_ROUNDS;
    lane_expect(lane);
    return lane_go_on_sending(lane, error);
}

/* Makes room for the transfers of a round. */
static enum status lane_make_room(struct exec_lane *lane, struct error *error)
{
    uint32_t wanted = lane->algorithm->transfers_max(&lane->call);
    if (wanted > lane->transfers_capacity) {
        struct coll_transfer *space = realloc(lane->transfers.sends, 2 * (size_t)wanted * sizeof *space);
        if (space == NULL) {
            return error_set(error, STATUS_NO_MEMORY, "\"%s\": no memory for a round", lane->comm->map->name);
        }
        lane->transfers.sends = space;
        lane->transfers_capacity = wanted;
    }
    lane->transfers.receives = lane->transfers.sends + lane->transfers_capacity;
    return STATUS_OK;
}

static enum status lane_begin(struct exec_lane *lane, struct error *error)
{
    trace_stage_in_done(lane->comm->map->comm_id, lane_op(lane)->call.seq, lane_op(lane)->call.terms.kind,
                        lane_row(lane), (uint32_t)lane->slice, 0);
    lane->state = LANE_ROUNDS;
    lane->round = 0;
    lane->prefix_begun = false;
    lane->round_count = 0;
    lane_clear_round(lane);
    if (lane->comm->map->ranks.node_count == 1) {
        return STATUS_OK;
    }
    memset(lane->routes, LANE_ROUTE_NOT, lane->comm->map->ranks.node_count);
    lane->round_count = lane->algorithm->round_count(&lane->call);
    enum status status = lane_make_room(lane, error);
    return status == STATUS_OK && lane->round_count > 0 ? lane_begin_round(lane, error) : status;
}

static void lane_stage(struct exec_lane *lane, enum lane_state state)
{
    lane->state = state;
    lane->cursor = (struct coll_stage_cursor){0};
}

enum status lane_start(struct exec_lane *lane, struct exec_op *op, uint64_t slice, struct error *error)
{
    lane->slice = slice;
    lane->loan.is_done = false; /* left by a cancelled operation */
    trace_slice_started(lane->comm->map->comm_id, op->call.seq, op->call.terms.kind, lane_row(lane),
                        (uint32_t)slice, op->stage.slice_bytes);
    lane->algorithm = op->algorithm;
    lane->staged = op->is_staged;
    lane_stage(lane, LANE_MEASURE);
    return lane->staged ? lane_device_begin(lane, op, error) : STATUS_OK;
}

/* Whether the slice's end writes to memory that the network may still be sending from. */
static bool lane_end_writes(const struct exec_lane *lane, const struct exec_op *op)
{
    bool from_vector = !compressed_applies(op); /* encoded data are sent from copies */
    return lane->unacknowledged > 0 && from_vector && coll_stage_out_writes_vector(&op->stage);
}

static void lane_trace_done(const struct exec_lane *lane)
{
    trace_slice_done(lane->comm->map->comm_id, lane_op(lane)->call.seq, lane_op(lane)->call.terms.kind,
                     lane_row(lane), (uint32_t)lane->slice, 0);
}

static void lane_end(struct exec_lane *lane)
{
    lane_trace_done(lane);
    lane->state = LANE_IDLE;
    lane_op(lane)->slices_done++;
    exec_wake(lane->comm->exec);
}

/* Call it after the last round. */
static void lane_finish(struct exec_lane *lane)
{
    if (lane_end_writes(lane, lane_op(lane))) {
        lane->state = LANE_DRAIN;
    } else {
        lane_stage(lane, LANE_STAGE_OUT);
    }
}

/* Subtracts the cost of a step over many blocks from the turn. If it is not over, the rest is for another
 * turn. */
static bool lane_looked(struct exec_lane *lane, bool over)
{
    uint64_t cost = over ? EXEC_PLACE_BYTES : EXEC_TURN_BYTES / 2;
    uint64_t *left = &lane->comm->turn_left_bytes;
    *left -= cost < *left ? cost : *left;
    if (!over) {
        exec_wake(lane->comm->exec);
    }
    return over;
}

static enum status lane_measure(struct exec_lane *lane, bool *moved, struct error *error)
{
    struct exec_op *op = lane_op(lane);
    *moved = lane_looked(lane, lane->comm->turn_left_bytes > 0 &&
                                   coll_stage_measure(&op->stage, lane->slice, &lane->cursor, lane->offsets));
    if (!*moved) {
        return STATUS_OK;
    }
    lane_stage(lane, LANE_RESERVE);
    enum status status = lane_prepare(lane, op, error);
    if (status == STATUS_OK && gpu_coding_applies(lane)) {
        lane->round_count = lane->algorithm->round_count(&lane->call);
        status = lane_make_room(lane, error);
        status = status == STATUS_OK ? gpu_coding_begin(lane, error) : status;
    }
    return status;
}

/* *moved is false while pinned memory is not there. */
static enum status lane_await_memory(struct exec_lane *lane, bool *moved, struct error *error)
{
    *moved = true;
    enum status status = lane->staged ? lane_device_poll_memory(lane, moved, error) : STATUS_OK;
    if (status != STATUS_OK || !*moved) {
        lane->comm->exec->pacer.waits = true;
        return status;
    }
    lane->comm->exec->pacer.advanced |= lane->staged;
    lane_stage(lane, LANE_LAY_OUT);
    lane->space = COLL_WORK;
    return lane_begin_lay_out(lane, lane_op(lane), error);
}

/* Continues the pieces of that step. Returns false if the rest is for another turn. */
static bool lane_run_stage(struct exec_lane *lane, enum coll_stage_step step)
{
    return loan_run_stage(&lane->loan, lane, step, lane->slice, &lane->cursor, &lane->comm->turn_left_bytes);
}

/* Whether the GPUs are done with the slice. If a GPU failed, the communicator fails. */
static bool lane_is_off_device(struct exec_lane *lane, uint64_t now_ns)
{
    enum status status;
    struct error error;
    bool reached = lane_device_reached(lane, now_ns, &status, &error);
    lane->comm->exec->pacer.waits |= !reached;
    lane->comm->exec->pacer.advanced |= reached;
    if (status != STATUS_OK) {
        (void)error_prefix(&error, "\"%s\"", lane->comm->map->name);
        exec_comm_fail(lane->comm, &error, now_ns);
    }
    return reached && status == STATUS_OK;
}

/* All pieces of IN are done, or queued on GPUs. */
static enum status lane_staged_in(struct exec_lane *lane, struct error *error)
{
    enum status status = exec_op_check_memories(lane->comm, lane_op(lane), error);
    if (status != STATUS_OK || !lane->staged) {
        return status == STATUS_OK ? lane_begin(lane, error) : status;
    }
    lane->state = LANE_DEVICE_IN;
    lane->comm->exec->pacer.waits = true;
    lane_device_copy_residual(lane, lane_op(lane), true);
    return lane_device_end(lane, error);
}

/* All pieces of OUT are done, or queued on GPUs. */
static enum status lane_staged_out(struct exec_lane *lane, struct error *error)
{
    if (!lane->staged) {
        lane_end(lane);
        return STATUS_OK;
    }
    lane->state = LANE_DEVICE_OUT;
    exec_wake(lane->comm->exec);
    lane_device_copy_residual(lane, lane_op(lane), false);
    return lane_device_end(lane, error);
}

/* Begins the next round, or ends the slice. *moved is false while a receive is missing, or a send is not
 * done. */
static enum status lane_next_round(struct exec_lane *lane, bool *moved, struct error *error)
{
    enum status status = lane_is_sending(lane) ? lane_go_on_sending(lane, error) : STATUS_OK;
    *moved =
        status == STATUS_OK && !lane_is_sending(lane) && lane->receives_done == lane->transfers.receive_count;
    if (!*moved) {
        return status;
    }
    if (lane->round_count > 0) {
        trace_round_received(lane->comm->map->comm_id, lane_op(lane)->call.seq,
                             lane_op(lane)->call.terms.kind, lane_row(lane), (uint32_t)lane->slice,
                             lane->round);
    }
    if (lane->round_count > 0 && ++lane->round < lane->round_count) {
        return lane_begin_round(lane, error);
    }
    lane_finish(lane);
    return STATUS_OK;
}

/* Moves to the next state. *moved is false if something must happen first. */
static enum status lane_move(struct exec_lane *lane, uint64_t now_ns, bool *moved, struct error *error)
{
    *moved = false;
    switch (lane->state) {
    case LANE_IDLE:
        break;
    case LANE_MEASURE:
        return lane_measure(lane, moved, error);
    case LANE_RESERVE:
        return lane_await_memory(lane, moved, error);
    case LANE_LAY_OUT:
        *moved = lane_looked(lane, lane->comm->turn_left_bytes > 0 && lane_lay_out(lane, lane_op(lane)));
        if (*moved) {
            lane_stage(lane, LANE_STAGE_IN);
        }
        break;
    case LANE_STAGE_IN:
        *moved = lane_run_stage(lane, COLL_STAGE_IN);
        return *moved ? lane_staged_in(lane, error) : STATUS_OK;
    case LANE_DEVICE_IN: /* what a GPU encodes follows in the same queue */
        *moved = gpu_coding_follows(lane) || lane_is_off_device(lane, now_ns);
        if (*moved) {
            lane_stage(lane, LANE_COMBINE);
        }
        break;
    case LANE_COMBINE:
        *moved = lane_run_stage(lane, COLL_STAGE_COMBINE);
        return *moved ? lane_begin(lane, error) : STATUS_OK;
    case LANE_DEVICE_CODE:
        *moved = lane_is_off_device(lane, now_ns);
        return *moved ? lane_go_round(lane, error) : STATUS_OK;
    case LANE_ROUNDS:
        return lane_next_round(lane, moved, error);
    case LANE_DRAIN:
        *moved = lane->unacknowledged == 0;
        if (*moved) {
            lane_stage(lane, LANE_STAGE_OUT);
        }
        break;
    case LANE_STAGE_OUT:
        *moved = lane_run_stage(lane, COLL_STAGE_OUT);
        return *moved ? lane_staged_out(lane, error) : STATUS_OK;
    case LANE_DEVICE_OUT:
        if (lane_is_off_device(lane, now_ns)) {
            lane_end(lane);
        }
        break;
    }
    return STATUS_OK;
}

void lane_advance(struct exec_lane *lane, uint64_t now_ns)
{
    struct error error;
    bool moved = true;
    while (moved && !lane->comm->failed) {
        if (lane_move(lane, now_ns, &moved, &error) != STATUS_OK) {
            exec_comm_fail(lane->comm, &error, now_ns);
        }
    }
}

const struct coll_transfer *lane_next_receive(const struct exec_lane *lane)
{
    return lane->state == LANE_ROUNDS && lane->receives_done < lane->transfers.receive_count
               ? &lane->transfers.receives[lane->receives_done]
               : NULL;
}

uint64_t lane_message_elements(const struct exec_lane *lane, const struct coll_transfer *receive)
{
    uint64_t left = receive->count_elements - lane->received_elements;
    return left < lane_message_max_elements(lane) ? left : lane_message_max_elements(lane);
}

void lane_received(struct exec_lane *lane, uint64_t elements)
{
    const struct coll_transfer *receive = lane_next_receive(lane);
    lane->received_elements += elements;
    if (lane->received_elements < receive->count_elements) {
        return;
    }
    lane->prefix_begun |= receive->action == COLL_PREFIX;
    lane->received_elements = 0;
    lane->receives_done++;
}

struct exec_lane *lane_of_header(struct exec_comm *comm, const struct data_header *header)
{
    return header->slice == EXEC_AGREEMENT_SLICE
               ? NULL
               : &comm->lanes[header->slice / comm->share_count % EXEC_LANES_MAX];
}

bool lane_takes(const struct exec_lane *lane, uint32_t node, const struct data_header *header)
{
    const struct coll_transfer *receive = lane_next_receive(lane);
    const struct exec_op *op = lane_op(lane);
    return receive != NULL && receive->node == node && op != NULL && op->call.seq == header->seq &&
           lane->slice == header->slice && lane->round == header->round;
}

void lane_stop(struct exec_lane *lane)
{
    lane->state = LANE_IDLE;
}

static void reset_streams(struct net_stream **streams, uint32_t count, bool give_up)
{
    for (uint32_t i = 0; i < count; i++) {
        if (streams[i] != NULL && give_up) {
            net_stream_reset(streams[i]);
        } else if (streams[i] != NULL) {
            net_stream_finish(streams[i]);
        }
        streams[i] = NULL;
    }
}

void comm_reset_streams(struct exec_comm *comm, bool give_up)
{
    uint32_t nodes = comm->map->ranks.node_count;
    for (uint32_t i = 0; i < EXEC_LANES_MAX; i++) {
        reset_streams(comm->lanes[i].streams, 2 * nodes, give_up);
    }
    reset_streams(comm->agreement_streams, 2 * nodes, give_up);
}

void lane_release(struct exec_lane *lane)
{
    lane_device_release(lane);
    gpu_coding_release(lane);
    lane_return_memory(lane);
    for (uint32_t space = 0; space < 3; space++) {
        vector_free(&lane->vectors[space]);
    }
    vector_free(&lane->lent.from);
    free(lane->offsets);
    free(lane->transfers.sends);
    free(lane->streams);
    free(lane->sources);
    free(lane->routes);
}
