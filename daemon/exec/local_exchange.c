#include "daemon/exec/exec_internal.h"
#include "daemon/host/copy.h"

/* The local stage of all_to_all: among the ranks of this node, and between staged buffers and the slice. */

static unsigned char *at(const struct exec_op *op, const void *buffer, uint64_t elements)
{
    return (unsigned char *)(uintptr_t)buffer + elements * op->element_bytes;
}

uint64_t op_pair_count(const struct exec_op *op, const struct exec_layout *layout, uint32_t other)
{
    return layout->counts != NULL ? layout->counts[other] : op->call.count_elements;
}

/* --- Buffers of the host: not in slices --- */

bool stage_local_step(const struct exec_comm *comm, struct exec_op *op)
{
    uint32_t locals = op->call.rank_count;
    uint64_t budget = EXEC_LOCAL_STEP_BYTES / op->element_bytes;
    while (op->local_pair < locals * locals && budget > 0) {
        const struct exec_rank *sender = &op->ranks[op->local_pair / locals];
        const struct exec_rank *receiver = &op->ranks[op->local_pair % locals];
        uint32_t first = comm->node_first[comm->options.node_index];
        uint32_t from = comm->order[first + op->local_pair / locals];
        uint32_t to = comm->order[first + op->local_pair % locals];
        uint64_t count = op_pair_count(op, &sender->input_layout, to);
        uint64_t left = count - op->local_offset;
        uint64_t now = left < budget ? left : budget;
        if (now > 0) {
            void *target = at(op, receiver->output,
                              op_block_begin(op, &receiver->output_layout, from) + op->local_offset);
            host_copy_to_all(
                &target, 1,
                at(op, sender->input, op_block_begin(op, &sender->input_layout, to) + op->local_offset),
                (size_t)(now * op->element_bytes), op->streams);
        }
        budget -= now;
        op->local_offset += now;
        if (op->local_offset == count) {
            op->local_pair++;
            op->local_offset = 0;
        }
    }
    op->local_done = op->local_pair == locals * locals;
    return op->local_done;
}

/* --- Staged --- */

/* A block's share of the slice, between two ranks of which one or both are this node's. */
struct exchange_part {
    uint64_t offset_elements;
    uint64_t count_elements;
};

static struct exchange_part part_of(const struct exec_lane *lane, const struct exec_op *op,
                                    const struct exec_layout *layout, uint32_t other)
{
    struct exchange_part part;
    lane_block_part(lane, op, op_pair_count(op, layout, other), &part.offset_elements, &part.count_elements);
    return part;
}

/* What local rank `from` has for local rank `to`, at `in_slice` unless it goes straight. Returns whether it
 * does. */
static bool pass_on(const struct exec_lane *lane, const struct exec_op *op, uint32_t from, uint32_t to,
                    struct exchange_part part, bool only_ask)
{
    const struct exec_comm *comm = lane->comm;
    uint32_t first = comm->node_first[comm->options.node_index];
    const struct exec_rank *sender = &op->ranks[from], *receiver = &op->ranks[to];
    uint64_t source =
        op_block_begin(op, &sender->input_layout, comm->order[first + to]) + part.offset_elements;
    uint64_t target =
        op_block_begin(op, &receiver->output_layout, comm->order[first + from]) + part.offset_elements;
    return lane_device_pass(lane, sender, receiver, at(op, receiver->output, target),
                            at(op, sender->input, source),
                            only_ask ? 0 : part.count_elements * op->element_bytes);
}

/*
 * What is sent lies in the slice by (node, sending rank, receiving rank): see lay_out_pairs. Blocks between
 * ranks of this node go straight where a GPU, or the host, works on both buffers; else through their place.
 */
void stage_exchange_in(struct exec_lane *lane, const struct exec_op *op)
{
    const struct exec_comm *comm = lane->comm;
    uint64_t offset = 0;
    for (uint32_t node = 0; node < comm->options.node_count; node++) {
        for (uint32_t a = 0; a < op->call.rank_count; a++) {
            for (uint32_t k = comm->node_first[node]; k < comm->node_first[node + 1]; k++) {
                const struct exec_rank *sender = &op->ranks[a];
                uint32_t to = comm->order[k];
                struct exchange_part part = part_of(lane, op, &sender->input_layout, to);
                bool local = node == comm->options.node_index;
                uint64_t together;
                if (part.count_elements == 0) {
                    continue;
                }
                if (!local || !pass_on(lane, op, a, k - comm->node_first[node], part, false)) {
                    uint64_t begin = op_block_begin(op, &sender->input_layout, to) + part.offset_elements;
                    lane_device_read(lane, sender, vector_at(&lane->vectors[COLL_INPUT], offset, &together),
                                     at(op, sender->input, begin), part.count_elements * op->element_bytes);
                }
                offset += part.count_elements;
            }
        }
    }
}

static void write_block(const struct exec_lane *lane, const struct exec_op *op, uint32_t local, uint32_t from,
                        struct exchange_part part, const void *in_slice)
{
    const struct exec_rank *receiver = &op->ranks[local];
    uint64_t begin = op_block_begin(op, &receiver->output_layout, from) + part.offset_elements;
    struct exec_targets target;
    target.count = 1;
    target.at[0] = at(op, receiver->output, begin);
    target.owners[0] = receiver;
    lane_device_write(lane, &target, in_slice, part.count_elements * op->element_bytes, NULL);
}

/* Blocks between ranks of this node that did not go straight: from where they were read to. */
static void write_local_blocks(const struct exec_lane *lane, const struct exec_op *op)
{
    const struct exec_comm *comm = lane->comm;
    uint32_t first = comm->node_first[comm->options.node_index];
    uint64_t offset = lane->call.send_offsets[comm->options.node_index];
    for (uint32_t a = 0; a < op->call.rank_count; a++) {
        for (uint32_t b = 0; b < op->call.rank_count; b++) {
            struct exchange_part part = part_of(lane, op, &op->ranks[a].input_layout, comm->order[first + b]);
            uint64_t together;
            if (part.count_elements > 0 && !pass_on(lane, op, a, b, part, true)) {
                write_block(lane, op, b, comm->order[first + a], part,
                            vector_at(&lane->vectors[COLL_INPUT], offset, &together));
            }
            offset += part.count_elements;
        }
    }
}

/* What was received lies by (node, sending rank, receiving rank). */
void stage_exchange_out(struct exec_lane *lane, const struct exec_op *op)
{
    const struct exec_comm *comm = lane->comm;
    uint64_t offset = 0;
    write_local_blocks(lane, op);
    for (uint32_t node = 0; node < comm->options.node_count; node++) {
        for (uint32_t k = comm->node_first[node]; k < comm->node_first[node + 1]; k++) {
            for (uint32_t b = 0; b < op->call.rank_count; b++) {
                uint32_t from = comm->order[k];
                struct exchange_part part = part_of(lane, op, &op->ranks[b].output_layout, from);
                uint64_t together;
                if (part.count_elements > 0 && node != comm->options.node_index) {
                    write_block(lane, op, b, from, part,
                                vector_at(&lane->vectors[COLL_WORK], offset, &together));
                }
                offset += part.count_elements;
            }
        }
    }
}
