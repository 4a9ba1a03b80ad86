#include <stdlib.h>
#include <string.h>

#include "daemon/exec/exec_internal.h"

/* Where the vectors of a slice lie: in the ranks' buffers, or in the lane's memory. */

static uint64_t bytes_of(const struct exec_op *op, uint64_t elements)
{
    return elements * op->element_bytes;
}

static const unsigned char *at(const struct exec_op *op, const void *buffer, uint64_t elements)
{
    return buffer == NULL ? NULL : (const unsigned char *)buffer + bytes_of(op, elements);
}

void lane_block_part(const struct exec_lane *lane, const struct exec_op *op, uint64_t count_elements,
                     uint64_t *offset_elements, uint64_t *part_elements)
{
    if (op->slice_count == 1) {
        *offset_elements = 0;
        *part_elements = count_elements;
        return;
    }
    coll_part_range(count_elements, (uint32_t)op->slice_count, (uint32_t)lane->slice, offset_elements,
                    part_elements);
}

unsigned char *lane_memory(const struct exec_lane *lane)
{
    return lane->staged ? lane_device_memory(lane) : lane->memory;
}

static enum status lane_no_memory(const struct exec_lane *lane, struct error *error)
{
    return error_set(error, STATUS_NO_MEMORY, "\"%s\": no memory for a slice", lane->comm->options.name);
}

/* The lane's own memory, at least so large; what it held is gone. */
static bool lane_reserve(struct exec_lane *lane, const struct exec_op *op, uint64_t elements)
{
    size_t wanted = (size_t)bytes_of(op, elements);
    if (lane->staged) {
        return lane_device_reserve(lane, wanted, NULL) == STATUS_OK;
    }
    if (wanted > lane->memory_bytes) {
        free(lane->memory);
        lane->memory = malloc(wanted);
        lane->memory_bytes = lane->memory == NULL ? 0 : wanted;
    }
    return wanted == 0 || lane->memory != NULL;
}

/* --- Vectors without blocks --- */

/* The slice's range of the buffers of one rank, which are several in a bucket. */
static void add_outputs(struct exec_lane *lane, const struct exec_op *op, uint32_t local)
{
    struct exec_vector *work = &lane->vectors[COLL_WORK];
    uint64_t begin = lane->offset_elements;
    uint64_t end = begin + lane->call.count_elements;
    uint64_t part_begin = 0;
    for (uint32_t part = 0; part < op->call.part_count; part++) {
        uint64_t part_end = part_begin + op->part_counts[part];
        uint64_t from = begin > part_begin ? begin : part_begin;
        uint64_t to = end < part_end ? end : part_end;
        if (from < to) {
            const struct exec_rank *rank = &op->ranks[(size_t)part * op->call.rank_count + local];
            vector_add(work, at(op, rank->output, from - part_begin), to - from);
        }
        part_begin = part_end;
    }
}

static enum status lay_out_vector(struct exec_lane *lane, const struct exec_op *op, struct error *error)
{
    struct exec_vector *work = &lane->vectors[COLL_WORK];
    bool is_root = op->root_node == lane->comm->options.node_index;
    uint64_t slice_elements = op->slice_count == 1 ? op->total_elements : 0;
    if (op->slice_count > 1) {
        coll_slice_range(op->total_elements, op->element_bytes, op->slice_bytes, lane->slice,
                         &lane->offset_elements, &slice_elements);
    } else {
        lane->offset_elements = 0;
    }
    lane->call.count_elements = slice_elements;
    if (!vector_begin(work, op->element_bytes, op->call.part_count)) {
        return lane_no_memory(lane, error);
    }
    if (lane->staged) {
        if (!lane_reserve(lane, op, slice_elements)) {
            return lane_no_memory(lane, error);
        }
        vector_add(work, lane_memory(lane), slice_elements);
    } else if (op->call.kind == OP_KIND_BROADCAST && is_root) {
        vector_add(work, at(op, op->ranks[op->root_local].input, lane->offset_elements), slice_elements);
    } else if (op->call.kind == OP_KIND_REDUCE && is_root) {
        vector_add(work, at(op, op->ranks[op->root_local].output, lane->offset_elements), slice_elements);
    } else if (op->call.kind == OP_KIND_REDUCE) {
        if (!lane_reserve(lane, op, slice_elements)) {
            return lane_no_memory(lane, error);
        }
        vector_add(work, lane->memory, slice_elements);
    } else {
        add_outputs(lane, op, 0);
    }
    return STATUS_OK;
}

/*
 * Scans: running value, prefix, and room for a local rank's; or, where ranks are not contiguous, a block for
 * each run of them, and the room. Staged: and what each local rank has.
 */
static enum status lay_out_scan(struct exec_lane *lane, const struct exec_op *op, struct error *error)
{
    const struct exec_comm *comm = lane->comm;
    bool gathers = op->schedule_kind == OP_KIND_ALL_GATHER;
    uint64_t slice_elements;
    coll_slice_range(op->total_elements, op->element_bytes, op->slice_bytes, lane->slice,
                     &lane->offset_elements, &slice_elements);
    uint64_t values = gathers ? comm->run_count : 2;
    uint64_t ranks = lane->staged ? op->call.rank_count : 0;
    if (!vector_begin(&lane->vectors[COLL_WORK], op->element_bytes, 1) ||
        !lane_reserve(lane, op, (values + 2 + ranks) * slice_elements)) {
        return lane_no_memory(lane, error);
    }
    vector_add(&lane->vectors[COLL_WORK], lane_memory(lane), values * slice_elements);
    lane->call.count_elements = gathers ? values * slice_elements : slice_elements;
    for (uint32_t node = 0; gathers && node <= comm->options.node_count; node++) {
        lane->offsets[node] = comm->run_first[node] * slice_elements;
    }
    lane->call.block_offsets = gathers ? lane->offsets : NULL;
    return STATUS_OK;
}

/* --- Blocks --- */

/* Where the block of the rank at this position lies, if in a rank's buffer; null: in the lane's memory. */
static const void *block_in_buffer(const struct exec_lane *lane, const struct exec_op *op, uint32_t position,
                                   uint64_t part_offset)
{
    const struct exec_comm *comm = lane->comm;
    bool is_root = op->root_node == comm->options.node_index;
    uint32_t rank = comm->order[position];
    uint32_t local = comm->local_of_rank[rank];
    if (op->call.kind == OP_KIND_ALL_GATHER) {
        const struct exec_rank *first = &op->ranks[0];
        return at(op, first->output, op_block_begin(op, &first->output_layout, rank) + part_offset);
    }
    if (op->call.kind == OP_KIND_GATHER && is_root) {
        const struct exec_rank *root = &op->ranks[op->root_local];
        return at(op, root->output, op_block_begin(op, &root->output_layout, rank) + part_offset);
    }
    if (op->call.kind == OP_KIND_SCATTER && is_root) {
        const struct exec_rank *root = &op->ranks[op->root_local];
        return at(op, root->input, op_block_begin(op, &root->input_layout, rank) + part_offset);
    }
    if (op->call.kind == OP_KIND_GATHER && local != UINT32_MAX) {
        return at(op, op->ranks[local].input, part_offset);
    }
    if (op->call.kind == OP_KIND_SCATTER && local != UINT32_MAX) {
        return at(op, op->ranks[local].output, part_offset);
    }
    return NULL;
}

static enum status lay_out_blocks(struct exec_lane *lane, const struct exec_op *op, struct error *error)
{
    const struct exec_comm *comm = lane->comm;
    struct exec_vector *work = &lane->vectors[COLL_WORK];
    uint64_t total = 0;
    uint64_t part_offset, part;
    for (uint32_t node = 0; node < comm->options.node_count; node++) {
        lane->offsets[node] = total;
        for (uint32_t k = comm->node_first[node]; k < comm->node_first[node + 1]; k++) {
            lane_block_part(lane, op, op_block_count(comm, op, k), &part_offset, &part);
            total += part;
        }
    }
    lane->offsets[comm->options.node_count] = total;
    lane->call.count_elements = total;
    lane->call.block_offsets = lane->offsets;
    bool is_root = op_kind_has_root(op->call.kind) && op->root_node == comm->options.node_index;
    bool all_in_buffers = !lane->staged && (op->call.kind == OP_KIND_ALL_GATHER || is_root);
    if (!vector_begin(work, op->element_bytes, comm->options.size) ||
        (!all_in_buffers && !lane_reserve(lane, op, total))) {
        return lane_no_memory(lane, error);
    }
    uint64_t begin = 0;
    for (uint32_t k = 0; k < comm->options.size; k++) {
        lane_block_part(lane, op, op_block_count(comm, op, k), &part_offset, &part);
        const void *block = lane->staged ? NULL : block_in_buffer(lane, op, k, part_offset);
        if (part > 0) {
            vector_add(work, block != NULL ? block : lane_memory(lane) + bytes_of(op, begin), part);
        }
        begin += part;
    }
    return STATUS_OK;
}

/* --- All to all: blocks by (sending rank, receiving rank), in node order of the other side --- */

static uint64_t pair_part(const struct exec_lane *lane, const struct exec_op *op,
                          const struct exec_layout *layout, uint32_t other, uint64_t *part_offset)
{
    uint64_t part;
    lane_block_part(lane, op, op_pair_count(op, layout, other), part_offset, &part);
    return part;
}

/* Where the blocks of each node begin in what this one sends, and in what it receives. */
static void measure_pairs(struct exec_lane *lane, const struct exec_op *op, uint64_t *sent)
{
    const struct exec_comm *comm = lane->comm;
    uint64_t out = 0, in = 0, ignored;
    for (uint32_t node = 0; node < comm->options.node_count; node++) {
        sent[node] = out;
        lane->offsets[node] = in;
        for (uint32_t k = comm->node_first[node]; k < comm->node_first[node + 1]; k++) {
            for (uint32_t a = 0; a < comm->local_count; a++) {
                out += pair_part(lane, op, &op->ranks[a].input_layout, comm->order[k], &ignored);
                in += pair_part(lane, op, &op->ranks[a].output_layout, comm->order[k], &ignored);
            }
        }
    }
    sent[comm->options.node_count] = out;
    lane->offsets[comm->options.node_count] = in;
}

/* A block's share: in the rank's buffer, or, staged, behind the others in the memory there. */
static void add_pair(struct exec_vector *vector, const struct exec_lane *lane, const struct exec_op *op,
                     const struct exec_layout *layout, const void *buffer, uint32_t other,
                     const unsigned char *staged)
{
    uint64_t part_offset;
    uint64_t part = pair_part(lane, op, layout, other, &part_offset);
    vector_add(vector,
               lane->staged ? at(op, staged, vector_count(vector))
                            : at(op, buffer, op_block_begin(op, layout, other) + part_offset),
               part);
}

/* Of all nodes, one after the other: by sending rank, then receiving rank. */
static void add_pairs(struct exec_lane *lane, const struct exec_op *op, const unsigned char *staged_input,
                      const unsigned char *staged_work)
{
    const struct exec_comm *comm = lane->comm;
    for (uint32_t node = 0; node < comm->options.node_count; node++) {
        uint32_t first = comm->node_first[node], end = comm->node_first[node + 1];
        for (uint32_t a = 0; a < comm->local_count; a++) {
            for (uint32_t k = first; k < end; k++) {
                const struct exec_rank *rank = &op->ranks[a];
                add_pair(&lane->vectors[COLL_INPUT], lane, op, &rank->input_layout, rank->input,
                         comm->order[k], staged_input);
            }
        }
        for (uint32_t k = first; k < end; k++) {
            for (uint32_t b = 0; b < comm->local_count; b++) {
                const struct exec_rank *rank = &op->ranks[b];
                add_pair(&lane->vectors[COLL_WORK], lane, op, &rank->output_layout, rank->output,
                         comm->order[k], staged_work);
            }
        }
    }
}

static enum status lay_out_pairs(struct exec_lane *lane, const struct exec_op *op, struct error *error)
{
    const struct exec_comm *comm = lane->comm;
    uint32_t nodes = comm->options.node_count;
    uint32_t pieces = comm->local_count * comm->options.size;
    uint64_t *sent = lane->offsets + nodes + 1;
    measure_pairs(lane, op, sent);
    lane->call.count_elements = lane->offsets[nodes];
    lane->call.block_offsets = lane->offsets;
    lane->call.send_offsets = sent;
    lane->call.blocks_are_equal = op->blocks_are_equal;
    uint64_t scratch = nodes > 1 && op->algorithm->scratch_elements != NULL
                           ? op->algorithm->scratch_elements(&lane->call)
                           : 0;
    uint64_t staged = lane->staged ? sent[nodes] + lane->offsets[nodes] : 0;
    if (!vector_begin(&lane->vectors[COLL_INPUT], op->element_bytes, pieces) ||
        !vector_begin(&lane->vectors[COLL_WORK], op->element_bytes, pieces) ||
        !vector_begin(&lane->vectors[COLL_SCRATCH], op->element_bytes, 1) ||
        !lane_reserve(lane, op, staged + scratch)) {
        return lane_no_memory(lane, error);
    }
    const unsigned char *memory = lane_memory(lane);
    add_pairs(lane, op, memory, at(op, memory, lane->staged ? sent[nodes] : 0));
    vector_add(&lane->vectors[COLL_SCRATCH], at(op, memory, staged), scratch);
    return STATUS_OK;
}

/* --- */

static enum status lay_out_scratch(struct exec_lane *lane, const struct exec_op *op, struct error *error)
{
    /* Only an all_to_all's algorithms ask for it, and no vector of theirs is in the lane's memory. */
    if (op->algorithm != NULL && lane->comm->options.node_count > 1 &&
        op->algorithm->scratch_elements != NULL && op->algorithm->scratch_elements(&lane->call) > 0) {
        return error_set(error, STATUS_INTERNAL, "\"%s\": %s wants memory of its own",
                         lane->comm->options.name, op->algorithm->name);
    }
    return STATUS_OK;
}

enum status lane_lay_out(struct exec_lane *lane, struct exec_op *op, struct error *error)
{
    const struct exec_comm_options *options = &lane->comm->options;
    enum status status = STATUS_OK;
    lane->call = (struct coll_call){.kind = op->schedule_kind,
                                    .node_count = options->node_count,
                                    .node_index = options->node_index,
                                    .root_node = op_kind_has_root(op->call.kind) ? op->root_node : 0,
                                    .keeps_empty = op_sizes_are_private(op)};
    switch (op->call.kind) {
    case OP_KIND_ALL_REDUCE:
    case OP_KIND_BROADCAST:
    case OP_KIND_BARRIER:
    case OP_KIND_REDUCE:
        status = lay_out_vector(lane, op, error);
        break;
    case OP_KIND_SCAN:
    case OP_KIND_EXCLUSIVE_SCAN:
        status = lay_out_scan(lane, op, error);
        break;
    case OP_KIND_ALL_GATHER:
    case OP_KIND_REDUCE_SCATTER:
    case OP_KIND_GATHER:
    case OP_KIND_SCATTER:
        status = lay_out_blocks(lane, op, error);
        break;
    case OP_KIND_ALL_TO_ALL:
        return lay_out_pairs(lane, op, error);
    case OP_KIND_SEND:
    case OP_KIND_RECEIVE:
        break;
    }
    return status == STATUS_OK ? lay_out_scratch(lane, op, error) : status;
}
