#include "daemon/dev/reduce.h"
#include "daemon/exec/exec_internal.h"

struct exec_op *lane_op(const struct exec_lane *lane)
{
    return lane->comm->first_op;
}

static struct coll_call lane_call(const struct exec_lane *lane)
{
    const struct exec_comm_options *options = &lane->comm->options;
    const struct exec_op *op = lane_op(lane);
    return (struct coll_call){.kind = op->call.kind,
                              .node_count = options->node_count,
                              .node_index = options->node_index,
                              .root_node = op->call.kind == OP_KIND_BROADCAST ? op->call.root_node : 0,
                              .count_elements = lane->count_elements};
}

/* A send that was given up is no news from here: see receive_closed. */
static void lane_sent(void *context, enum status result, uint64_t now_ns)
{
    (void)result;
    (void)now_ns;
    struct exec_lane *lane = context;
    struct exec_op *op = lane_op(lane);
    lane->unacknowledged--;
    op->unacknowledged--;
    exec_wake(lane->comm->exec);
}

static enum status lane_stream(struct exec_lane *lane, uint32_t node, struct net_stream **out,
                               struct error *error)
{
    struct exec_comm *comm = lane->comm;
    if (lane->streams[node] == NULL) {
        enum status status =
            net_stream_open(comm->exec->net, comm->peers[node], NET_STREAM_DATA, &lane->streams[node], error);
        if (status != STATUS_OK) {
            return error_set(error, STATUS_NODE_LOST, "\"%s\": node %s cannot be reached", comm->options.name,
                             comm->options.node_names[node]);
        }
    }
    *out = lane->streams[node];
    return STATUS_OK;
}

static enum status lane_send(struct exec_lane *lane, const struct coll_transfer *transfer,
                             struct error *error)
{
    struct exec_comm *comm = lane->comm;
    struct exec_op *op = lane_op(lane);
    uint64_t payload_bytes = transfer->count_elements * op->element_bytes;
    struct data_header header = {.kind = op->call.kind,
                                 .dtype = op->call.dtype,
                                 .reduce = op->call.reduce,
                                 .generation = comm->options.generation,
                                 .comm_id = comm->comm_id,
                                 .seq = op->call.seq,
                                 .slice = (uint32_t)lane->slice,
                                 .round = lane->round,
                                 .root = op->call.root_rank,
                                 .algorithm = op->algorithm->id,
                                 .count_elements = op->call.count_elements,
                                 .payload_bytes = payload_bytes};
    uint8_t header_bytes[DATA_HEADER_BYTES];
    data_header_encode(&header, header_bytes);
    const void *payload =
        payload_bytes > 0 ? stage_work(op, lane->offset_elements + transfer->offset_elements) : NULL;
    bool copied = payload_bytes <= EXEC_COPY_MAX_BYTES;
    struct net_stream *stream = NULL;
    enum status status = lane_stream(lane, transfer->node, &stream, error);
    if (status != STATUS_OK) {
        return status;
    }
    status = net_stream_send(stream, header_bytes, sizeof header_bytes, payload, (size_t)payload_bytes,
                             copied ? NULL : lane_sent, lane);
    if (status != STATUS_OK) {
        return error_set(error, STATUS_NODE_LOST, "\"%s\": sending to node %s failed: %s", comm->options.name,
                         comm->options.node_names[transfer->node], status_text(status));
    }
    if (!copied) {
        lane->unacknowledged++;
        op->unacknowledged++;
    }
    return STATUS_OK;
}

static enum status lane_begin_round(struct exec_lane *lane, struct error *error)
{
    struct coll_call call = lane_call(lane);
    lane->transfers.send_count = 0;
    lane->transfers.receive_count = 0;
    lane->receives_done = 0;
    lane_op(lane)->algorithm->round(&call, lane->round, &lane->transfers);
    for (uint32_t i = 0; i < lane->transfers.send_count; i++) {
        enum status status = lane_send(lane, &lane->transfers.sends[i], error);
        if (status != STATUS_OK) {
            return status;
        }
    }
    return STATUS_OK;
}

enum status lane_start(struct exec_lane *lane, uint64_t slice, struct error *error)
{
    struct exec_op *op = lane_op(lane);
    const struct exec_comm_options *options = &lane->comm->options;
    lane->state = LANE_ROUNDS;
    lane->slice = slice;
    lane->round = 0;
    coll_slice_range(op->call.count_elements, op->element_bytes, options->slice_bytes, slice,
                     &lane->offset_elements, &lane->count_elements);
    stage_in(op, op->call.root_node == options->node_index, lane->offset_elements, lane->count_elements);
    struct coll_call call = lane_call(lane);
    lane->round_count = op->algorithm->round_count(&call);
    lane->transfers.send_count = 0;
    lane->transfers.receive_count = 0;
    lane->receives_done = 0;
    return lane->round_count > 0 ? lane_begin_round(lane, error) : STATUS_OK;
}

/* Hands the slice to the other ranks; a division in place has to wait for the network to let go of the
 * buffer. */
static void lane_finish(struct exec_lane *lane)
{
    struct exec_op *op = lane_op(lane);
    if (op->call.divisor > 1 && lane->unacknowledged > 0) {
        lane->state = LANE_DRAIN;
        return;
    }
    stage_out(op, lane->offset_elements, lane->count_elements);
    lane->state = LANE_IDLE;
    op->slices_done++;
    exec_wake(lane->comm->exec);
}

void lane_advance(struct exec_lane *lane, uint64_t now_ns)
{
    struct error error;
    if (lane->comm->failed) {
        return;
    }
    switch (lane->state) {
    case LANE_IDLE:
        return;
    case LANE_DRAIN:
        lane_finish(lane);
        return;
    case LANE_ROUNDS:
        break;
    }
    while (lane->receives_done == lane->transfers.receive_count) {
        if (lane->round_count == 0 || ++lane->round == lane->round_count) {
            lane_finish(lane);
            return;
        }
        if (lane_begin_round(lane, &error) != STATUS_OK) {
            exec_comm_fail(lane->comm, &error, now_ns);
            return;
        }
    }
}

const struct coll_transfer *lane_next_receive(const struct exec_lane *lane)
{
    return lane->state == LANE_ROUNDS && lane->receives_done < lane->transfers.receive_count
               ? &lane->transfers.receives[lane->receives_done]
               : NULL;
}

void lane_reset_streams(struct exec_lane *lane, bool give_up)
{
    for (uint32_t node = 0; lane->streams != NULL && node < lane->comm->options.node_count; node++) {
        if (lane->streams[node] != NULL && give_up) {
            net_stream_reset(lane->streams[node]);
        } else if (lane->streams[node] != NULL) {
            net_stream_finish(lane->streams[node]);
        }
        lane->streams[node] = NULL;
    }
}
