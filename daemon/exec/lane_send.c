#include <assert.h>
#include <stdio.h>
#include <stdlib.h>

#include "daemon/exec/exec_internal.h"
#include "daemon/exec/gpu_coding.h"
#include "daemon/net/bulk.h"

/* Sends of lanes: messages of a header and a payload. The payload is sent from its place, or from a copy. */

/* The large data that were under way have arrived. */
static void measure_end(struct exec_lane *lane, uint64_t now_ns)
{
    struct lane_measure *measure = &lane->measure;
    if (measure->is_on) {
        measure->is_on = false;
        net_bulk_ended(lane->comm->exec->net, measure->peer, measure->on_bulk, measure->bytes, now_ns);
    }
}

/* More is under way to that node, of which `bytes` are a payload. */
static void measure_more(struct exec_lane *lane, uint32_t node, uint64_t bytes)
{
    struct lane_measure *measure = &lane->measure;
    struct exec *exec = lane->comm->exec;
    if (lane->routes[node] <= LANE_ROUTE_SMALL_BULK) {
        return;
    }
    if (!measure->is_on && lane->unacknowledged == 0) {
        *measure = (struct lane_measure){.is_on = true,
                                         .on_bulk = lane->routes[node] == LANE_ROUTE_BULK,
                                         .peer = lane->comm->map->peers[node]};
        net_bulk_began(exec->net, measure->peer, measure->on_bulk, exec->now_ns);
    }
    if (measure->is_on && measure->peer == lane->comm->map->peers[node]) {
        measure->bytes += bytes;
    }
}

/* A failure is reported elsewhere: as the end of the stream or connection. */
static void lane_sent(void *context, enum status result, uint64_t now_ns)
{
    struct exec_lane *lane = context;
    lane->unacknowledged--;
    lane->measure.bytes = result == STATUS_OK ? lane->measure.bytes : 0;
    if (lane->unacknowledged == 0) {
        measure_end(lane, now_ns);
    }
    lane_op(lane)->unacknowledged--;
    exec_wake(lane->comm->exec);
}

/* A payload copied for sending. */
struct lane_copy {
    struct exec_lane *lane;
    uint64_t charged_bytes;
    unsigned char bytes[];
};

static void lane_copy_free(struct lane_copy *copy)
{
    budget_release(copy->lane->comm->map->account, BUDGET_LANES, copy->charged_bytes);
    free(copy);
}

static void lane_copy_sent(void *context, enum status result, uint64_t now_ns)
{
    struct lane_copy *copy = context;
    lane_sent(copy->lane, result, now_ns);
    lane_copy_free(copy);
}

/* The connections of other rails are there before an operation uses them (spread.c). */
bool comm_is_linked(const struct exec_comm *comm, const struct net_stream *stream, uint32_t node, bool mutual)
{
    return comm->handler.need == NULL || stream != NULL ||
           comm->handler.need(comm->handler.context, node, mutual, comm->exec->now_ns);
}

bool lane_may_send(const struct exec_lane *lane)
{
    uint32_t node = lane->transfers.sends[lane->sends_done].node;
    bool mutual = false;
    for (uint32_t i = 0; i < lane->transfers.receive_count; i++) {
        mutual = mutual || lane->transfers.receives[i].node == node; /* it sends to us in this round */
    }
    return comm_is_linked(lane->comm, lane->streams[node], node, mutual);
}

enum status comm_send_failed(const struct exec_comm *comm, const struct exec_op *op, uint32_t node,
                             enum status status, struct error *error)
{
    const struct comm_map *map = comm->map;
    char rail[24] = "";
    if (comm->share_count > 1) {
        (void)snprintf(rail, sizeof rail, " on rail %u", comm->share_index);
    }
    return error_set(
        error, STATUS_NODE_LOST, "op %llu %s on \"%s\": node %s: sending to node %s%s failed: %s",
        (unsigned long long)op->call.seq, op_kind_text(op->call.terms.kind), map->name,
        map->node_names[map->ranks.node_index], map->node_names[node], rail, status_text(status));
}

enum lane_route comm_route_of(const struct exec_comm *comm, uint32_t node, uint64_t bytes)
{
    struct exec *exec = comm->exec;
    uint32_t peer = comm->map->peers[node];
    if (bytes < EXEC_BULK_LEAST_BYTES) {
        return LANE_ROUTE_SMALL;
    }
    if (bytes < EXEC_BULK_MEASURED_BYTES) {
        return net_bulk_choose_small(exec->net, peer, exec->now_ns) ? LANE_ROUTE_SMALL_BULK
                                                                    : LANE_ROUTE_SMALL;
    }
    return net_bulk_choose(exec->net, peer, exec->now_ns) ? LANE_ROUTE_BULK : LANE_ROUTE_NET;
}

bool comm_open_bulk(struct exec_comm *comm, uint32_t node, struct net_stream **stream)
{
    if (*stream == NULL &&
        net_stream_open_bulk(comm->exec->net, comm->map->peers[node], NET_STREAM_DATA, comm->map->owner_uid,
                             comm->map->account, stream, NULL) != STATUS_OK) {
        *stream = NULL;
    }
    return *stream != NULL;
}

/* Opens a stream on the bulk link, if the slice goes there. Returns null if it cannot. */
static struct net_stream *bulk_stream(struct exec_lane *lane, uint32_t node)
{
    struct net_stream **stream = &lane->streams[node + lane->comm->map->ranks.node_count];
    if (!comm_open_bulk(lane->comm, node, stream)) {
        lane->routes[node] = lane->routes[node] == LANE_ROUTE_BULK ? LANE_ROUTE_NET : LANE_ROUTE_SMALL;
    }
    return *stream;
}

enum status comm_open_stream(struct exec_comm *comm, const struct exec_op *op, uint32_t node,
                             struct net_stream **stream, struct error *error)
{
    struct error why;
    if (*stream != NULL) {
        return STATUS_OK;
    }
    enum status status = net_stream_open_for(comm->exec->net, comm->map->peers[node], NET_STREAM_DATA,
                                             comm->map->owner_uid, comm->map->account, stream, &why);
    if (status == STATUS_LIMIT) {
        return error_set(error, status, "\"%s\": node %s: %s", comm->map->name, comm->map->node_names[node],
                         why.text);
    }
    return status == STATUS_OK ? status : comm_send_failed(comm, op, node, status, error);
}

/* The lane's stream to that node, opened on first use. LIMIT, NODE_LOST. */
static enum status lane_stream(struct exec_lane *lane, uint32_t node, struct net_stream **out,
                               struct error *error)
{
    if (lane->routes[node] == LANE_ROUTE_NOT) {
        const struct coll_transfer *transfer = &lane->transfers.sends[lane->sends_done];
        lane->routes[node] = (uint8_t)comm_route_of(
            lane->comm, node, transfer->count_elements * lane_op(lane)->stage.element_bytes);
    }
    *out = lane_route_is_bulk(lane->routes[node]) ? bulk_stream(lane, node) : NULL;
    if (*out != NULL) {
        return STATUS_OK;
    }
    enum status status = comm_open_stream(lane->comm, lane_op(lane), node, &lane->streams[node], error);
    *out = lane->streams[node];
    return status;
}

void comm_encode_header(const struct exec_comm *comm, const struct exec_op *op, uint32_t slice,
                        uint32_t round, uint64_t payload_bytes, uint8_t out[DATA_HEADER_BYTES])
{
    struct data_header header = {.comm_id = comm->map->comm_id,
                                 .seq = op->call.seq,
                                 .generation = EXEC_GENERATION,
                                 .slice = slice,
                                 .round = round,
                                 .algorithm = op->algorithm->id,
                                 .payload_bytes = payload_bytes,
                                 .terms = op->call.terms};
    data_header_encode(&header, out);
}

static void lane_header(const struct exec_lane *lane, uint64_t payload_bytes, uint8_t out[DATA_HEADER_BYTES])
{
    comm_encode_header(lane->comm, lane_op(lane), (uint32_t)lane->slice, lane->round, payload_bytes, out);
}

static void lane_holds(struct exec_lane *lane, uint32_t node, uint64_t payload_bytes)
{
    measure_more(lane, node, payload_bytes);
    bool alone = lane->unacknowledged == 0 || lane->unacknowledged_node == node;
    lane->unacknowledged_node = alone ? node : EXEC_NODES_SEVERAL;
    lane->unacknowledged++;
    lane_op(lane)->unacknowledged++;
}

/* Sends a contiguous part of a message; header is null except for the first. `copied`: the net copies the
 * payload. */
static enum status send_bytes(struct exec_lane *lane, uint32_t node, const uint8_t *header,
                              const unsigned char *payload, uint64_t payload_bytes, bool copied,
                              struct error *error)
{
    struct net_stream *stream = NULL;
    enum status status = lane_stream(lane, node, &stream, error);
    if (status != STATUS_OK) {
        return status;
    }
    status = net_stream_send(stream, header, header == NULL ? 0 : DATA_HEADER_BYTES, payload,
                             (size_t)payload_bytes, copied ? NULL : lane_sent, lane);
    if (status != STATUS_OK) {
        return comm_send_failed(lane->comm, lane_op(lane), node, status, error);
    }
    if (!copied) {
        lane_holds(lane, node, payload_bytes);
    }
    return STATUS_OK;
}

enum status lane_send_copy(struct exec_lane *lane, uint32_t node, struct lane_copy *copy,
                           uint64_t payload_bytes, struct error *error)
{
    uint8_t header[DATA_HEADER_BYTES];
    struct net_stream *stream = NULL;
    enum status status = lane_stream(lane, node, &stream, error);
    lane_header(lane, payload_bytes, header);
    if (status == STATUS_OK) {
        status = net_stream_send(stream, header, sizeof header, copy->bytes, (size_t)payload_bytes,
                                 lane_copy_sent, copy);
        status =
            status == STATUS_OK ? status : comm_send_failed(lane->comm, lane_op(lane), node, status, error);
    }
    if (status != STATUS_OK) {
        lane_copy_free(copy);
        return status;
    }
    lane_holds(lane, node, payload_bytes);
    return STATUS_OK;
}

enum status lane_copy_new(struct exec_lane *lane, uint64_t bytes, struct lane_copy **out, struct error *error)
{
    const struct comm_map *map = lane->comm->map;
    struct error why;
    if (budget_charge(map->account, BUDGET_LANES, bytes, &why) != STATUS_OK) {
        return error_set(error, why.status, "\"%s\": %s", map->name, why.text);
    }
    struct lane_copy *copy = malloc(sizeof *copy + (size_t)bytes);
    if (copy == NULL) {
        budget_release(map->account, BUDGET_LANES, bytes);
        return error_set(error, STATUS_NO_MEMORY, "\"%s\": no memory to send from", map->name);
    }
    copy->lane = lane;
    copy->charged_bytes = bytes;
    *out = copy;
    return STATUS_OK;
}

unsigned char *lane_copy_bytes(struct lane_copy *copy)
{
    return copy->bytes;
}

static const struct exec_lent *lane_lent(const struct exec_lane *lane, enum coll_space space)
{
    static const struct exec_lent nothing;
    return space == COLL_WORK ? &lane->lent : &nothing;
}

static void spend(struct exec_lane *lane, uint64_t cost)
{
    uint64_t *left = &lane->comm->turn_left_bytes;
    *left -= cost < *left ? cost : *left;
}

/*
 * Whether the net copies a message of that size: then the slice ends without an acknowledgement. A root that
 * hears of nobody could fill the stream with copies. With half of that, the lane waits for acknowledgements.
 */
static bool is_copied(const struct net_stream *stream, uint64_t bytes)
{
    return bytes <= EXEC_COPY_MAX_BYTES && net_stream_copied(stream) < NET_STREAM_COPY_MAX_BYTES / 2 &&
           net_stream_queued(stream) < NET_STREAM_QUEUE_MAX / 2;
}

static enum status send_gathered(struct exec_lane *lane, const struct coll_transfer *transfer,
                                 uint64_t offset, uint64_t elements, bool small, struct error *error)
{
    uint64_t bytes = elements * lane_op(lane)->stage.element_bytes;
    const struct exec_vector *vector = &lane->vectors[transfer->space];
    const struct exec_lent *lent = lane_lent(lane, transfer->space);
    uint8_t header[DATA_HEADER_BYTES];
    spend(lane, bytes);
    if (small && bytes <= EXEC_GATHER_BYTES) {
        unsigned char together[EXEC_GATHER_BYTES];
        vector_value_gather(vector, lent, offset, elements, together);
        lane_header(lane, bytes, header);
        return send_bytes(lane, transfer->node, header, together, bytes, true, error);
    }
    struct lane_copy *copy = NULL;
    enum status status = lane_copy_new(lane, bytes, &copy, error);
    if (status != STATUS_OK) {
        return status;
    }
    vector_value_gather(vector, lent, offset, elements, copy->bytes);
    return lane_send_copy(lane, transfer->node, copy, bytes, error);
}

/* Sends one message of a transfer. */
static enum status send_message(struct exec_lane *lane, const struct coll_transfer *transfer, uint64_t offset,
                                uint64_t elements, struct error *error)
{
    const struct exec_op *op = lane_op(lane);
    const struct exec_vector *vector = &lane->vectors[transfer->space];
    const struct exec_lent *lent = lane_lent(lane, transfer->space);
    uint64_t bytes = elements * op->stage.element_bytes;
    struct net_stream *stream = NULL;
    enum status status = lane_stream(lane, transfer->node, &stream, error);
    if (status != STATUS_OK) {
        return status;
    }
    bool small = is_copied(stream, bytes);
    uint32_t pieces = vector_value_pieces(vector, lent, offset, elements, EXEC_SEND_PIECES_MAX + 1);
    bool gathered = pieces > 1 && (small || pieces > EXEC_SEND_PIECES_MAX);
    uint8_t header[DATA_HEADER_BYTES];
    const uint8_t *next_header = header;
    assert(vector_holds(vector, offset, elements));
    if (gathered || (lane->algorithm->copies_sends && !small)) {
        return send_gathered(lane, transfer, offset, elements, small, error);
    }
    lane_header(lane, bytes, header);
    if (elements == 0) {
        return send_bytes(lane, transfer->node, header, NULL, 0, true, error);
    }
    while (elements > 0) {
        uint64_t together;
        const unsigned char *from = vector_value_at(vector, lent, offset, &together);
        together = together < elements ? together : elements;
        status = send_bytes(lane, transfer->node, next_header, from, together * op->stage.element_bytes,
                            small, error);
        if (status != STATUS_OK) {
            return status;
        }
        next_header = NULL;
        offset += together;
        elements -= together;
    }
    return STATUS_OK;
}

enum status lane_send(struct exec_lane *lane, struct error *error)
{
    const struct coll_transfer *transfer = &lane->transfers.sends[lane->sends_done];
    uint64_t left = transfer->count_elements - lane->sent_elements;
    uint64_t elements = left < lane_message_max_elements(lane) ? left : lane_message_max_elements(lane);
    enum status status;
    spend(lane, EXEC_PLACE_BYTES);
    if (compressed_applies(lane_op(lane))) {
        elements = left;
        spend(lane, gpu_coding_applies(lane) ? compressed_max_bytes(lane, transfer)
                                             : elements * lane_op(lane)->stage.element_bytes);
        status = compressed_send(lane, transfer, error);
    } else {
        status =
            send_message(lane, transfer, transfer->offset_elements + lane->sent_elements, elements, error);
    }
    lane->sent_elements += elements;
    if (lane->sent_elements == transfer->count_elements) {
        lane->sends_done++;
        lane->sent_elements = 0;
    }
    return status;
}
