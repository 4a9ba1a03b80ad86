#include "daemon/exec/exec_internal.h"

/*
 * The agreement: a barrier of empty messages beside the data of an operation in which a node need not hear of
 * every other one. Each message is a header, so it repeats the call.
 *
 * Several operations of a communicator may be in their agreement at once. A node begins agreements in the
 * order of the operations. In a dissemination barrier, all messages from one node to another are of the same
 * round. So they arrive in the order of the operations, as long as each node sends them in that order.
 */

_Static_assert(EXEC_CLOSING_MAX + 1 == TRACE_LANE_AGREEMENTS, "as many agreements at once");

static struct coll_call barrier_of(const struct exec_comm *comm)
{
    return (struct coll_call){.kind = OP_KIND_BARRIER,
                              .node_count = comm->map->ranks.node_count,
                              .node_index = comm->map->ranks.node_index};
}

static uint32_t row_of(const struct exec_agreement *agreement)
{
    return TRACE_LANE_ROW(0, TRACE_LANE_AGREEMENT + agreement->row);
}

static void begin_round(const struct exec_comm *comm, struct exec_agreement *agreement)
{
    struct coll_call barrier = barrier_of(comm);
    struct coll_transfer send, receive;
    struct coll_round round = {.sends = &send, .receives = &receive};
    coll_dissemination_barrier.round(&barrier, agreement->round, &round);
    agreement->to = send.node;
    agreement->from = receive.node;
    agreement->sent = agreement->received = false;
}

/*
 * The stream for the message. If data of the operation may use the bulk link, so may the message, which then
 * needs no packet of its own. Behind much data, it would come late. A node takes messages from both streams,
 * each in its order.
 */
static enum status word_stream(struct exec_comm *comm, const struct exec_op *op, struct net_stream **out,
                               struct error *error)
{
    uint32_t node = op->agreement.to;
    struct net_stream **bulk = &comm->agreement_streams[node + comm->map->ranks.node_count];
    uint64_t bytes = op->stage.total_elements * op->stage.element_bytes;
    if (bytes <= EXEC_AGREEMENT_BULK_MAX_BYTES && lane_route_is_bulk(comm_route_of(comm, node, bytes)) &&
        comm_open_bulk(comm, node, bulk)) {
        *out = *bulk;
        return STATUS_OK;
    }
    enum status status = comm_open_stream(comm, op, node, &comm->agreement_streams[node], error);
    *out = comm->agreement_streams[node];
    return status;
}

/* Sends the round's message, if there is a connection. If not, exec_link_up wakes the communicator. */
static enum status send_word(struct exec_comm *comm, struct exec_op *op, struct error *error)
{
    struct exec_agreement *agreement = &op->agreement;
    struct net_stream *stream = comm->agreement_streams[agreement->to];
    uint8_t header[DATA_HEADER_BYTES];
    if (!comm_is_linked(comm, stream, agreement->to, agreement->to == agreement->from)) {
        return STATUS_OK;
    }
    enum status status = word_stream(comm, op, &stream, error);
    if (status != STATUS_OK) {
        return status;
    }
    comm_encode_header(comm, op, EXEC_AGREEMENT_SLICE, agreement->round, 0, header);
    status = net_stream_send(stream, header, sizeof header, NULL, 0, NULL, NULL);
    if (status != STATUS_OK) {
        return comm_send_failed(comm, op, agreement->to, status, error);
    }
    agreement->sent = true;
    trace_round_sent(comm->map->comm_id, op->call.seq, op->call.terms.kind, row_of(agreement),
                     EXEC_AGREEMENT_SLICE, agreement->round);
    return STATUS_OK;
}

static void end(struct exec_comm *comm, struct exec_op *op)
{
    struct exec_agreement *agreement = &op->agreement;
    trace_slice_done(comm->map->comm_id, op->call.seq, op->call.terms.kind, row_of(agreement),
                     EXEC_AGREEMENT_SLICE, 0);
    exec_agreement_stop(comm, op);
    agreement->done = true;
    exec_wake(comm->exec);
}

void exec_agreement_stop(struct exec_comm *comm, struct exec_op *op)
{
    if (op->agreement.begun && !op->agreement.done) {
        comm->agreement_rows &= ~(UINT32_C(1) << op->agreement.row);
    }
}

/* Returns whether a round is over, so messages of the next one can be taken. */
static bool advance(struct exec_comm *comm, struct exec_op *op, uint64_t now_ns)
{
    struct exec_agreement *agreement = &op->agreement;
    bool any = false;
    while (agreement->begun && !agreement->done && !op->cancelled && !comm->failed) {
        struct error error;
        if (!agreement->sent && send_word(comm, op, &error) != STATUS_OK) {
            exec_comm_fail(comm, &error, now_ns);
            break;
        }
        if (!agreement->sent || !agreement->received) {
            break;
        }
        any = true;
        trace_round_received(comm->map->comm_id, op->call.seq, op->call.terms.kind, row_of(agreement),
                             EXEC_AGREEMENT_SLICE, agreement->round);
        if (++agreement->round < agreement->round_count) {
            begin_round(comm, agreement);
        } else {
            end(comm, op);
        }
    }
    return any;
}

static bool advance_all(struct exec_comm *comm, uint64_t now_ns)
{
    bool any = false;
    for (struct exec_op *op = comm->closing; op != NULL; op = op->next) {
        any = advance(comm, op, now_ns) || any;
    }
    return (comm->first_op != NULL && advance(comm, comm->first_op, now_ns)) || any;
}

void exec_agreements_advance(struct exec_comm *comm, uint64_t now_ns)
{
    if (advance_all(comm, now_ns)) {
        receive_resume(comm);
    }
}

void exec_agreement_begin(struct exec_comm *comm, struct exec_op *op, uint64_t now_ns)
{
    struct exec_agreement *agreement = &op->agreement;
    struct coll_call barrier = barrier_of(comm);
    *agreement = (struct exec_agreement){.begun = true,
                                         .round_count = coll_dissemination_barrier.round_count(&barrier),
                                         .row = (uint32_t)__builtin_ctz(~comm->agreement_rows)};
    comm->agreement_rows |= UINT32_C(1) << agreement->row;
    trace_slice_started(comm->map->comm_id, op->call.seq, op->call.terms.kind, row_of(agreement),
                        EXEC_AGREEMENT_SLICE, 0);
    begin_round(comm, agreement);
    (void)advance_all(comm, now_ns); /* messages are taken when the operation has begun */
}

void exec_agreement_received(struct exec_comm *comm, uint64_t seq, uint64_t now_ns)
{
    struct exec_op *op = comm_find_op(comm, seq);
    if (op != NULL) {
        op->agreement.received = true;
        (void)advance_all(comm, now_ns);
    }
}
