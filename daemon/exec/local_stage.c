#include <string.h>

#include "daemon/exec/exec_internal.h"
#include "daemon/host/copy.h"
#include "daemon/host/reduce.h"

/* The local stage: among this node's ranks, between their buffers and the lane's vectors. */

static unsigned char *at(const struct exec_op *op, const void *buffer, uint64_t elements)
{
    return (unsigned char *)(uintptr_t)buffer + elements * op->element_bytes;
}

/* Whether outputs are written as soon as inputs are read: no other node, and no GPU, comes between. */
static bool is_alone(const struct exec_lane *lane)
{
    return lane->comm->options.node_count == 1 && !lane->staged;
}

static void targets_add(struct exec_targets *targets, const struct exec_rank *owner, void *at)
{
    targets->at[targets->count] = at;
    targets->owners[targets->count++] = owner;
}

/* From a rank's input to the slice. */
static void read_input(const struct exec_lane *lane, const struct exec_op *op, const struct exec_rank *owner,
                       void *target, const void *source, uint64_t count_elements)
{
    uint64_t bytes = count_elements * op->element_bytes;
    if (lane->staged) {
        lane_device_read(lane, owner, target, source, bytes);
    } else if (bytes > 0) {
        host_copy_to_all(&target, 1, source, (size_t)bytes, op->streams);
    }
}

/* To outputs of ranks; staged, the source is in the slice. */
static void write_outputs(const struct exec_lane *lane, const struct exec_op *op,
                          const struct exec_targets *targets, const void *source, uint64_t count_elements)
{
    uint64_t bytes = count_elements * op->element_bytes;
    if (lane->staged) {
        lane_device_write(lane, targets, source, bytes, NULL);
    } else if (bytes > 0) {
        host_copy_to_all(targets->at, targets->count, source, (size_t)bytes, op->streams);
    }
}

/* Likewise, divided on the way where the operation asks for it. */
static void write_results(const struct exec_lane *lane, const struct exec_op *op,
                          const struct exec_targets *targets, const void *value, uint64_t count_elements)
{
    if (op->call.divisor <= 1) {
        write_outputs(lane, op, targets, value, count_elements);
        return;
    }
    struct host_reduction division = {.dtype = op->call.dtype,
                                      .reduce = op->call.reduce,
                                      .count_elements = count_elements,
                                      .input_count = 1,
                                      .output_count = targets->count,
                                      .inputs = &value,
                                      .outputs = targets->at,
                                      .divisor = op->call.divisor};
    if (lane->staged) {
        lane_device_write(lane, targets, value, count_elements * op->element_bytes, &division);
    } else {
        host_reduce(&division);
    }
}

/* --- Vectors without blocks: all_reduce, reduce, broadcast --- */

/*
 * Calls `work` for each part of the operation that the slice has a share of: from which element of the part,
 * how many, and where the slice's vector has them.
 */
typedef void stage_part(const struct exec_lane *lane, const struct exec_op *op, const struct exec_rank *ranks,
                        uint64_t from, uint64_t count, uint64_t offset_in_slice);

static void stage_parts(const struct exec_lane *lane, const struct exec_op *op, stage_part *work)
{
    uint64_t begin = lane->offset_elements;
    uint64_t end = begin + lane->call.count_elements;
    uint64_t part_begin = 0;
    for (uint32_t part = 0; part < op->call.part_count; part++) {
        uint64_t part_end = part_begin + op->part_counts[part];
        uint64_t from = begin > part_begin ? begin : part_begin;
        uint64_t to = end < part_end ? end : part_end;
        if (from < to) {
            work(lane, op, &op->ranks[(size_t)part * op->call.rank_count], from - part_begin, to - from,
                 from - begin);
        }
        part_begin = part_end;
    }
}

/* Reduces inputs[i] of this node's ranks into `outputs`. */
static void reduce_inputs(const struct exec_lane *lane, const struct exec_op *op,
                          const struct exec_rank *ranks, const void *const *inputs, uint64_t count,
                          void *const *outputs, uint32_t output_count, uint64_t divisor)
{
    double factors[HOST_REDUCE_BUFFERS_MAX];
    for (uint32_t i = 0; i < op->call.rank_count; i++) {
        factors[i] = ranks[i].factor;
    }
    struct host_reduction reduction = {.dtype = op->call.dtype,
                                       .reduce = op->call.reduce,
                                       .count_elements = count,
                                       .input_count = op->call.rank_count,
                                       .output_count = output_count,
                                       .inputs = inputs,
                                       .outputs = outputs,
                                       .factors = op->call.reduce == REDUCE_PREMUL_SUM ? factors : NULL,
                                       .divisor = divisor,
                                       .streams = op->streams};
    if (lane->staged) {
        lane_device_reduce(lane, ranks, &reduction);
    } else {
        host_reduce(&reduction);
    }
}

static void reduce_part(const struct exec_lane *lane, const struct exec_op *op, const struct exec_rank *ranks,
                        uint64_t from, uint64_t count, uint64_t offset_in_slice)
{
    const void *inputs[HOST_REDUCE_BUFFERS_MAX];
    void *outputs[HOST_REDUCE_BUFFERS_MAX];
    bool alone = is_alone(lane);
    bool to_all = alone && op->call.kind == OP_KIND_ALL_REDUCE;
    uint64_t together;
    for (uint32_t i = 0; i < op->call.rank_count; i++) {
        inputs[i] = at(op, ranks[i].input, from);
        outputs[i] = to_all ? at(op, ranks[i].output, from) : NULL;
    }
    if (!to_all) {
        outputs[0] = vector_at(&lane->vectors[COLL_WORK], offset_in_slice, &together);
    }
    reduce_inputs(lane, op, ranks, inputs, count, outputs, to_all ? op->call.rank_count : 1,
                  alone ? op->call.divisor : 0);
}

static void spread_part(const struct exec_lane *lane, const struct exec_op *op, const struct exec_rank *ranks,
                        uint64_t from, uint64_t count, uint64_t offset_in_slice)
{
    struct exec_targets outputs;
    uint64_t together;
    outputs.count = 0;
    for (uint32_t i = 0; i < op->call.rank_count; i++) {
        if (ranks[i].output != NULL) {
            targets_add(&outputs, &ranks[i], at(op, ranks[i].output, from));
        }
    }
    write_results(lane, op, &outputs, vector_at(&lane->vectors[COLL_WORK], offset_in_slice, &together),
                  count);
}

/* Staged: what the root has, or gets. */
static void root_to_slice(const struct exec_lane *lane, const struct exec_op *op,
                          const struct exec_rank *ranks, uint64_t from, uint64_t count,
                          uint64_t offset_in_slice)
{
    const struct exec_rank *root = &ranks[op->root_local];
    uint64_t together;
    read_input(lane, op, root, vector_at(&lane->vectors[COLL_WORK], offset_in_slice, &together),
               at(op, root->input, from), count);
}

static void slice_to_root(const struct exec_lane *lane, const struct exec_op *op,
                          const struct exec_rank *ranks, uint64_t from, uint64_t count,
                          uint64_t offset_in_slice)
{
    const struct exec_rank *root = &ranks[op->root_local];
    struct exec_targets output;
    uint64_t together;
    output.count = 0;
    targets_add(&output, root, at(op, root->output, from));
    write_results(lane, op, &output, vector_at(&lane->vectors[COLL_WORK], offset_in_slice, &together), count);
}

/* Not staged: where it lies. */
static void divide_part(const struct exec_lane *lane, const struct exec_op *op, const struct exec_rank *ranks,
                        uint64_t from, uint64_t count, uint64_t offset_in_slice)
{
    struct exec_targets output;
    uint64_t together;
    (void)from;
    output.count = 0;
    targets_add(&output, ranks, vector_at(&lane->vectors[COLL_WORK], offset_in_slice, &together));
    write_results(lane, op, &output, output.at[0], count);
}

/* --- Blocks --- */

typedef void stage_block(const struct exec_lane *lane, const struct exec_op *op, uint32_t rank,
                         uint64_t part_offset, uint64_t part, void *in_slice);

/* Calls `work` for the slice's share of the blocks of the ranks at positions first .. end - 1. */
static void stage_blocks(const struct exec_lane *lane, const struct exec_op *op, uint32_t first, uint32_t end,
                         stage_block *work)
{
    const struct exec_comm *comm = lane->comm;
    uint32_t node = 0;
    while (comm->node_first[node + 1] <= first) {
        node++;
    }
    uint64_t begin = lane->offsets[node];
    for (uint32_t k = first; k < end; k++) {
        uint64_t part_offset, part, together;
        lane_block_part(lane, op, op_block_count(comm, op, k), &part_offset, &part);
        if (part > 0) {
            work(lane, op, comm->order[k], part_offset, part,
                 vector_at(&lane->vectors[COLL_WORK], begin, &together));
        }
        begin += part;
    }
}

static void block_from_input(const struct exec_lane *lane, const struct exec_op *op, uint32_t rank,
                             uint64_t part_offset, uint64_t part, void *in_slice)
{
    const struct exec_rank *owner = &op->ranks[lane->comm->local_of_rank[rank]];
    read_input(lane, op, owner, in_slice, at(op, owner->input, part_offset), part);
}

static void block_to_output(const struct exec_lane *lane, const struct exec_op *op, uint32_t rank,
                            uint64_t part_offset, uint64_t part, void *in_slice)
{
    const struct exec_rank *owner = &op->ranks[lane->comm->local_of_rank[rank]];
    struct exec_targets output;
    output.count = 0;
    targets_add(&output, owner, at(op, owner->output, part_offset));
    write_results(lane, op, &output, in_slice, part);
}

/* Staged: the root's buffer has all blocks. */
static void block_from_root(const struct exec_lane *lane, const struct exec_op *op, uint32_t rank,
                            uint64_t part_offset, uint64_t part, void *in_slice)
{
    const struct exec_rank *root = &op->ranks[op->root_local];
    uint64_t begin = op_block_begin(op, &root->input_layout, rank) + part_offset;
    read_input(lane, op, root, in_slice, at(op, root->input, begin), part);
}

static void block_to_root(const struct exec_lane *lane, const struct exec_op *op, uint32_t rank,
                          uint64_t part_offset, uint64_t part, void *in_slice)
{
    const struct exec_rank *root = &op->ranks[op->root_local];
    struct exec_targets output;
    output.count = 0;
    targets_add(&output, root,
                at(op, root->output, op_block_begin(op, &root->output_layout, rank) + part_offset));
    write_outputs(lane, op, &output, in_slice, part);
}

/* To the ranks of this node from the one at `first` on. */
static void block_to_ranks(const struct exec_lane *lane, const struct exec_op *op, uint32_t rank,
                           uint64_t part_offset, uint64_t part, const void *block, uint32_t first)
{
    struct exec_targets outputs;
    outputs.count = 0;
    for (uint32_t i = first; i < op->call.rank_count; i++) {
        const struct exec_rank *receiver = &op->ranks[i];
        uint64_t begin = op_block_begin(op, &receiver->output_layout, rank) + part_offset;
        targets_add(&outputs, receiver, at(op, receiver->output, begin));
    }
    write_outputs(lane, op, &outputs, block, part);
}

/* Without other nodes nothing is to be waited for: the first rank's output, in_slice, is one of all. */
static void block_from_input_to_all(const struct exec_lane *lane, const struct exec_op *op, uint32_t rank,
                                    uint64_t part_offset, uint64_t part, void *in_slice)
{
    const struct exec_rank *owner = &op->ranks[lane->comm->local_of_rank[rank]];
    (void)in_slice;
    block_to_ranks(lane, op, rank, part_offset, part, at(op, owner->input, part_offset), 0);
}

static void block_to_all(const struct exec_lane *lane, const struct exec_op *op, uint32_t rank,
                         uint64_t part_offset, uint64_t part, void *in_slice)
{
    /* The first rank's output is where the block is; staged, it is not. */
    block_to_ranks(lane, op, rank, part_offset, part, in_slice, lane->staged ? 0 : 1);
}

static void block_reduced(const struct exec_lane *lane, const struct exec_op *op, uint32_t rank,
                          uint64_t part_offset, uint64_t part, void *in_slice)
{
    const void *inputs[HOST_REDUCE_BUFFERS_MAX];
    for (uint32_t i = 0; i < op->call.rank_count; i++) {
        uint64_t begin = op_block_begin(op, &op->ranks[i].input_layout, rank) + part_offset;
        inputs[i] = at(op, op->ranks[i].input, begin);
    }
    reduce_inputs(lane, op, op->ranks, inputs, part, &in_slice, 1, 0);
}

static void stage_own_blocks(const struct exec_lane *lane, const struct exec_op *op, stage_block *work)
{
    const struct exec_comm *comm = lane->comm;
    uint32_t node = comm->options.node_index;
    stage_blocks(lane, op, comm->node_first[node], comm->node_first[node + 1], work);
}

static void stage_all_blocks(const struct exec_lane *lane, const struct exec_op *op, stage_block *work)
{
    stage_blocks(lane, op, 0, lane->comm->options.size, work);
}

/* --- */

static bool is_root_node(const struct exec_lane *lane, const struct exec_op *op)
{
    return op->root_node == lane->comm->options.node_index;
}

void stage_in(struct exec_lane *lane, struct exec_op *op)
{
    bool alone = is_alone(lane);
    switch (op->call.kind) {
    case OP_KIND_ALL_REDUCE:
    case OP_KIND_REDUCE:
        stage_parts(lane, op, reduce_part);
        return;
    case OP_KIND_ALL_GATHER:
        stage_own_blocks(lane, op, alone ? block_from_input_to_all : block_from_input);
        return;
    case OP_KIND_REDUCE_SCATTER:
        stage_all_blocks(lane, op, block_reduced);
        return;
    case OP_KIND_GATHER:
        if (lane->staged || is_root_node(lane, op)) {
            stage_own_blocks(lane, op, block_from_input);
        }
        return;
    case OP_KIND_SCAN:
    case OP_KIND_EXCLUSIVE_SCAN:
        if (lane->staged) {
            stage_scan_read(lane, op);
        } else {
            stage_scan_in(lane, op);
        }
        return;
    case OP_KIND_BROADCAST:
        if (lane->staged && is_root_node(lane, op)) {
            stage_parts(lane, op, root_to_slice);
        }
        return;
    case OP_KIND_SCATTER:
        if (lane->staged && is_root_node(lane, op)) {
            stage_all_blocks(lane, op, block_from_root);
        }
        return;
    case OP_KIND_ALL_TO_ALL:
        if (lane->staged) {
            stage_exchange_in(lane, op);
        }
        return;
    case OP_KIND_BARRIER:
    case OP_KIND_SEND:
    case OP_KIND_RECEIVE:
        return;
    }
}

void stage_out(struct exec_lane *lane, struct exec_op *op)
{
    bool alone = is_alone(lane);
    switch (op->call.kind) {
    case OP_KIND_ALL_REDUCE:
        if (!alone) {
            stage_parts(lane, op, spread_part);
        }
        return;
    case OP_KIND_BROADCAST:
        stage_parts(lane, op, spread_part);
        return;
    case OP_KIND_REDUCE:
        if (lane->staged && is_root_node(lane, op)) {
            stage_parts(lane, op, slice_to_root);
        } else if (!alone && is_root_node(lane, op) && op->call.divisor > 1) {
            stage_parts(lane, op, divide_part);
        }
        return;
    case OP_KIND_ALL_GATHER:
        if (!alone) {
            stage_all_blocks(lane, op, block_to_all);
        }
        return;
    case OP_KIND_REDUCE_SCATTER:
        stage_own_blocks(lane, op, block_to_output);
        return;
    case OP_KIND_SCATTER:
        if (lane->staged || is_root_node(lane, op)) {
            stage_own_blocks(lane, op, block_to_output);
        }
        return;
    case OP_KIND_GATHER:
        if (lane->staged && is_root_node(lane, op)) {
            stage_all_blocks(lane, op, block_to_root);
        }
        return;
    case OP_KIND_SCAN:
    case OP_KIND_EXCLUSIVE_SCAN:
        stage_scan_out(lane, op);
        return;
    case OP_KIND_ALL_TO_ALL:
        if (lane->staged) {
            stage_exchange_out(lane, op);
        }
        return;
    case OP_KIND_BARRIER:
    case OP_KIND_SEND:
    case OP_KIND_RECEIVE:
        return;
    }
}
