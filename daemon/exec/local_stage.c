#include <string.h>

#include "daemon/dev/copy.h"
#include "daemon/dev/reduce.h"
#include "daemon/exec/exec_internal.h"

/* The local stage: among this node's ranks, between their buffers and the lane's vectors. */

static unsigned char *at(const struct exec_op *op, const void *buffer, uint64_t elements)
{
    return (unsigned char *)(uintptr_t)buffer + elements * op->element_bytes;
}

static void copy_to_all(const struct exec_lane *lane, const struct exec_op *op, void *const *targets,
                        uint32_t target_count, const void *source, uint64_t count_elements)
{
    if (lane != NULL && lane->staged) {
        lane_device_copy(lane, targets, target_count, source, count_elements * op->element_bytes);
    } else if (count_elements > 0) {
        dev_copy_to_all(targets, target_count, source, count_elements * op->element_bytes, op->streams);
    }
}

static void copy(const struct exec_lane *lane, const struct exec_op *op, void *target, const void *source,
                 uint64_t count_elements)
{
    copy_to_all(lane, op, &target, 1, source, count_elements);
}

static void run_reduction(const struct exec_lane *lane, const struct dev_reduction *reduction)
{
    if (lane->staged) {
        lane_device_reduce(lane, reduction);
    } else {
        dev_reduce(reduction);
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
    double factors[DEV_REDUCE_BUFFERS_MAX];
    for (uint32_t i = 0; i < op->call.rank_count; i++) {
        factors[i] = ranks[i].factor;
    }
    struct dev_reduction reduction = {.dtype = op->call.dtype,
                                      .reduce = op->call.reduce,
                                      .count_elements = count,
                                      .input_count = op->call.rank_count,
                                      .output_count = output_count,
                                      .inputs = inputs,
                                      .outputs = outputs,
                                      .factors = op->call.reduce == REDUCE_PREMUL_SUM ? factors : NULL,
                                      .divisor = divisor,
                                      .streams = op->streams};
    run_reduction(lane, &reduction);
}

static void reduce_part(const struct exec_lane *lane, const struct exec_op *op, const struct exec_rank *ranks,
                        uint64_t from, uint64_t count, uint64_t offset_in_slice)
{
    const void *inputs[DEV_REDUCE_BUFFERS_MAX];
    void *outputs[DEV_REDUCE_BUFFERS_MAX];
    bool alone = lane->comm->options.node_count == 1;
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

/* One value to several places, divided on the way where the operation asks for it. */
static void spread(const struct exec_lane *lane, const struct exec_op *op, const void *value, uint64_t count,
                   void *const *outputs, uint32_t output_count)
{
    if (op->call.divisor > 1) {
        struct dev_reduction reduction = {.dtype = op->call.dtype,
                                          .reduce = op->call.reduce,
                                          .count_elements = count,
                                          .input_count = 1,
                                          .output_count = output_count,
                                          .inputs = &value,
                                          .outputs = outputs,
                                          .divisor = op->call.divisor};
        run_reduction(lane, &reduction);
        return;
    }
    copy_to_all(lane, op, outputs, output_count, value, count);
}

static void spread_part(const struct exec_lane *lane, const struct exec_op *op, const struct exec_rank *ranks,
                        uint64_t from, uint64_t count, uint64_t offset_in_slice)
{
    void *outputs[DEV_REDUCE_BUFFERS_MAX];
    uint32_t output_count = 0;
    uint64_t together;
    for (uint32_t i = 0; i < op->call.rank_count; i++) {
        if (ranks[i].output != NULL) {
            outputs[output_count++] = at(op, ranks[i].output, from);
        }
    }
    spread(lane, op, vector_at(&lane->vectors[COLL_WORK], offset_in_slice, &together), count, outputs,
           output_count);
}

/* On GPUs: what the root has, or gets. */
static void root_to_slice(const struct exec_lane *lane, const struct exec_op *op,
                          const struct exec_rank *ranks, uint64_t from, uint64_t count,
                          uint64_t offset_in_slice)
{
    uint64_t together;
    copy(lane, op, vector_at(&lane->vectors[COLL_WORK], offset_in_slice, &together),
         at(op, ranks[op->root_local].input, from), count);
}

static void slice_to_root(const struct exec_lane *lane, const struct exec_op *op,
                          const struct exec_rank *ranks, uint64_t from, uint64_t count,
                          uint64_t offset_in_slice)
{
    uint64_t together;
    void *output = at(op, ranks[op->root_local].output, from);
    spread(lane, op, vector_at(&lane->vectors[COLL_WORK], offset_in_slice, &together), count, &output, 1);
}

static void divide_part(const struct exec_lane *lane, const struct exec_op *op, const struct exec_rank *ranks,
                        uint64_t from, uint64_t count, uint64_t offset_in_slice)
{
    uint64_t together;
    void *value = vector_at(&lane->vectors[COLL_WORK], offset_in_slice, &together);
    (void)ranks;
    (void)from;
    spread(lane, op, value, count, &value, 1);
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
    copy(lane, op, in_slice, at(op, owner->input, part_offset), part);
}

static void block_to_output(const struct exec_lane *lane, const struct exec_op *op, uint32_t rank,
                            uint64_t part_offset, uint64_t part, void *in_slice)
{
    const struct exec_rank *owner = &op->ranks[lane->comm->local_of_rank[rank]];
    void *output = at(op, owner->output, part_offset);
    spread(lane, op, in_slice, part, &output, 1);
}

/* To the ranks of this node from the one at `first` on. */
static void block_to_ranks(const struct exec_lane *lane, const struct exec_op *op, uint32_t rank,
                           uint64_t part_offset, uint64_t part, const void *block, uint32_t first)
{
    void *outputs[DEV_REDUCE_BUFFERS_MAX];
    uint32_t output_count = 0;
    for (uint32_t i = first; i < op->call.rank_count; i++) {
        const struct exec_rank *receiver = &op->ranks[i];
        uint64_t begin = op_block_begin(op, &receiver->output_layout, rank) + part_offset;
        outputs[output_count++] = at(op, receiver->output, begin);
    }
    copy_to_all(lane, op, outputs, output_count, block, part);
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
    /* The first rank's output is where the block is; of GPUs, it is not. */
    block_to_ranks(lane, op, rank, part_offset, part, in_slice, lane->staged ? 0 : 1);
}

static void block_reduced(const struct exec_lane *lane, const struct exec_op *op, uint32_t rank,
                          uint64_t part_offset, uint64_t part, void *in_slice)
{
    const void *inputs[DEV_REDUCE_BUFFERS_MAX];
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
    bool alone = lane->comm->options.node_count == 1;
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
        if (is_root_node(lane, op)) {
            stage_own_blocks(lane, op, block_from_input);
        }
        return;
    case OP_KIND_SCAN:
    case OP_KIND_EXCLUSIVE_SCAN:
        stage_scan_in(lane, op);
        return;
    case OP_KIND_BROADCAST:
        if (lane->staged && is_root_node(lane, op)) {
            stage_parts(lane, op, root_to_slice);
        }
        return;
    case OP_KIND_BARRIER:
    case OP_KIND_SCATTER:
    case OP_KIND_ALL_TO_ALL:
    case OP_KIND_SEND:
    case OP_KIND_RECEIVE:
        return;
    }
}

void stage_out(struct exec_lane *lane, struct exec_op *op)
{
    bool alone = lane->comm->options.node_count == 1;
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
        if (is_root_node(lane, op)) {
            stage_own_blocks(lane, op, block_to_output);
        }
        return;
    case OP_KIND_SCAN:
    case OP_KIND_EXCLUSIVE_SCAN:
        stage_scan_out(lane, op);
        return;
    case OP_KIND_BARRIER:
    case OP_KIND_GATHER:
    case OP_KIND_ALL_TO_ALL:
    case OP_KIND_SEND:
    case OP_KIND_RECEIVE:
        return;
    }
}

/* --- all_to_all among the ranks of this node --- */

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
        uint64_t count =
            sender->input_layout.counts != NULL ? sender->input_layout.counts[to] : op->call.count_elements;
        uint64_t left = count - op->local_offset;
        uint64_t now = left < budget ? left : budget;
        if (now > 0) {
            copy(NULL, op,
                 at(op, receiver->output,
                    op_block_begin(op, &receiver->output_layout, from) + op->local_offset),
                 at(op, sender->input, op_block_begin(op, &sender->input_layout, to) + op->local_offset),
                 now);
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
