#include <stdlib.h>
#include <string.h>

#include "daemon/base/checked.h"
#include "daemon/exec/exec_internal.h"
#include "daemon/host/copy.h"

_Static_assert(EXEC_LANES_MAX == COLL_LANES, "predictions are for the lanes that there are");

enum status op_new(struct exec_comm *comm, const struct exec_call *call, struct exec_op **out,
                   struct error *error)
{
    struct exec_op *op = calloc(1, sizeof *op);
    size_t rank_count = (size_t)call->rank_count * call->part_count;
    struct exec_rank *ranks = calloc(rank_count, sizeof *ranks);
    uint64_t *part_counts = calloc(call->part_count, sizeof *part_counts);
    if (op == NULL || ranks == NULL || part_counts == NULL) {
        free(op);
        free(ranks);
        free(part_counts);
        return error_set(error, STATUS_NO_MEMORY, "\"%s\": no memory for an operation", comm->options.name);
    }
    memcpy(ranks, call->ranks, rank_count * sizeof *ranks);
    if (call->part_counts != NULL) {
        memcpy(part_counts, call->part_counts, call->part_count * sizeof *part_counts);
    } else {
        part_counts[0] = call->count_elements;
    }
    op->call = *call;
    op->ranks = ranks;
    op->part_counts = part_counts;
    op->call.ranks = ranks;
    op->call.part_counts = part_counts;
    op->element_bytes = dtype_size_bytes(call->dtype);
    op->result.status = STATUS_OK;
    if (device_is_needed(&op->call) && device_new(comm, op, error) != STATUS_OK) {
        op_free(op);
        return STATUS_NO_MEMORY;
    }
    *out = op;
    return STATUS_OK;
}

void op_free(struct exec_op *op)
{
    free(op->part_counts);
    free(op->ranks);
    free(op);
}

enum status op_check_memories(const struct exec_comm *comm, struct exec_op *op, struct error *error)
{
    uint64_t holes = memory_hole_count();
    if (holes == op->holes_seen) {
        return STATUS_OK;
    }
    const uint32_t *local_ranks = comm->order + comm->node_first[comm->options.node_index];
    for (uint32_t i = 0; i < op->call.rank_count * op->call.part_count; i++) {
        const struct exec_rank *rank = &op->ranks[i];
        const struct memory *memories[] = {rank->input_memory, rank->output_memory, rank->residual_memory};
        for (size_t k = 0; k < sizeof memories / sizeof memories[0]; k++) {
            enum status status = memories[k] == NULL ? STATUS_OK : memory_check(memories[k], error);
            if (status != STATUS_OK) {
                (void)error_prefix(error, "op %llu %s on \"%s\": rank %u, node %s",
                                   (unsigned long long)op->call.seq, op_kind_text(op->call.kind),
                                   comm->options.name, local_ranks[i % op->call.rank_count],
                                   comm->options.node_names[comm->options.node_index]);
                return status;
            }
        }
    }
    op->holes_seen = holes;
    return STATUS_OK;
}

static const struct exec_layout *known_layout(const struct exec_comm *comm, const struct exec_op *op)
{
    bool is_root_node = op->root_node == comm->options.node_index;
    switch (op->call.kind) {
    case OP_KIND_ALL_GATHER:
        return &op->ranks[0].output_layout;
    case OP_KIND_REDUCE_SCATTER:
        return &op->ranks[0].input_layout;
    case OP_KIND_GATHER:
        return is_root_node ? &op->ranks[op->root_local].output_layout : NULL;
    case OP_KIND_SCATTER:
        return is_root_node ? &op->ranks[op->root_local].input_layout : NULL;
    case OP_KIND_ALL_REDUCE:
    case OP_KIND_BROADCAST:
    case OP_KIND_BARRIER:
    case OP_KIND_REDUCE:
    case OP_KIND_ALL_TO_ALL:
    case OP_KIND_SCAN:
    case OP_KIND_EXCLUSIVE_SCAN:
    case OP_KIND_SEND:
    case OP_KIND_RECEIVE:
        return NULL;
    }
    return NULL;
}

uint64_t op_block_count(const struct exec_comm *comm, const struct exec_op *op, uint32_t position)
{
    if (!op->call.has_layouts) {
        return op->call.count_elements;
    }
    const struct exec_layout *layout = known_layout(comm, op);
    uint32_t rank = comm->order[position];
    if (layout != NULL) {
        return layout->counts[rank];
    }
    uint32_t local = comm->local_of_rank[rank];
    return local == UINT32_MAX ? 0 : op->ranks[local].count_elements;
}

uint64_t op_block_begin(const struct exec_op *op, const struct exec_layout *layout, uint32_t rank)
{
    return layout->displacements != NULL ? layout->displacements[rank] : rank * op->call.count_elements;
}

static enum status op_count_total(const struct exec_comm *comm, struct exec_op *op, struct error *error)
{
    uint64_t total = 0;
    bool fits = true;
    if (op->call.kind == OP_KIND_ALL_TO_ALL) {
        fits = checked_mul_u64(op->call.count_elements, comm->options.size, &total); /* with layouts: 0 */
    } else if (op_kind_has_blocks(op->call.kind)) {
        for (uint32_t position = 0; position < comm->options.size; position++) {
            fits = fits && checked_add_u64(total, op_block_count(comm, op, position), &total);
        }
    } else {
        for (uint32_t part = 0; part < op->call.part_count; part++) {
            fits = fits && checked_add_u64(total, op->part_counts[part], &total);
        }
    }
    uint64_t bytes;
    if (!fits || !checked_mul_u64(total, op->element_bytes, &bytes)) {
        return error_set(error, STATUS_LIMIT, "op %llu %s on \"%s\": too many elements",
                         (unsigned long long)op->call.seq, op_kind_text(op->call.kind), comm->options.name);
    }
    op->total_elements = total;
    return STATUS_OK;
}

/*
 * Whether a node may come to the end of the data without word of every other node: then the agreement lane
 * runs too.
 */
static bool op_needs_agreement(const struct exec_op *op)
{
    if (op->call.kind == OP_KIND_BARRIER) {
        return false;
    }
    if (op->total_elements == 0 || op->call.has_layouts) {
        return true;
    }
    switch (op->call.kind) {
    case OP_KIND_ALL_REDUCE:
    case OP_KIND_ALL_GATHER:
    case OP_KIND_REDUCE_SCATTER:
    case OP_KIND_ALL_TO_ALL:
        return false;
    case OP_KIND_BARRIER:
    case OP_KIND_BROADCAST:
    case OP_KIND_REDUCE:
    case OP_KIND_GATHER:
    case OP_KIND_SCATTER:
    case OP_KIND_SCAN:
    case OP_KIND_EXCLUSIVE_SCAN:
    case OP_KIND_SEND:
    case OP_KIND_RECEIVE:
        return true;
    }
    return true;
}

bool op_sizes_are_private(const struct exec_op *op)
{
    return op->call.has_layouts && (op->call.kind == OP_KIND_ALL_TO_ALL || op->call.kind == OP_KIND_GATHER ||
                                    op->call.kind == OP_KIND_SCATTER);
}

/* Without the sizes of all, slices cannot be agreed on. */
static bool op_is_sliced(const struct exec_comm *comm, const struct exec_op *op)
{
    bool goes_straight =
        op->call.kind == OP_KIND_ALL_TO_ALL && comm->options.node_count == 1 && !op->is_staged;
    return !goes_straight && !op_sizes_are_private(op);
}

static bool blocks_are_equal(const struct exec_comm *comm, const struct exec_op *op)
{
    uint32_t nodes = comm->options.node_count;
    uint32_t each = comm->options.size / nodes;
    for (uint32_t node = 0; node < nodes; node++) {
        if (comm->node_first[node + 1] - comm->node_first[node] != each) {
            return false;
        }
    }
    return !op->call.has_layouts;
}

/* Between nodes, elements of a slice are a pure function of what all agree on; so is which rail has it. */
static uint64_t op_slice_bytes(const struct exec_comm *comm, const struct exec_op *op)
{
    bool gathers = op->schedule_kind != op->call.kind;
    bool for_caches = comm->options.node_count == 1 && !op->is_staged;
    uint64_t slice_bytes = comm->options.slice_bytes / (gathers ? comm->run_count : 1);
    slice_bytes = for_caches && slice_bytes > EXEC_LOCAL_SLICE_BYTES ? EXEC_LOCAL_SLICE_BYTES : slice_bytes;
    if (op->call.kind == OP_KIND_ALL_TO_ALL) {
        slice_bytes = coll_exchange_slice_bytes(slice_bytes, comm->options.size, comm->options.node_count);
    }
    return slice_bytes > op->element_bytes ? slice_bytes : op->element_bytes;
}

enum status op_measure(const struct exec_comm *comm, struct exec_op *op, struct error *error)
{
    const struct exec_comm_options *options = &comm->options;
    enum op_kind kind = op->call.kind;
    if (op_kind_has_root(kind)) {
        op->root_node = options->node_of_rank[op->call.root_rank];
        op->root_local = comm->local_of_rank[op->call.root_rank];
    }
    enum status status = op_count_total(comm, op, error);
    if (status != STATUS_OK) {
        return status;
    }
    bool is_scan = kind == OP_KIND_SCAN || kind == OP_KIND_EXCLUSIVE_SCAN;
    bool gathers = is_scan && comm->run_count != options->node_count;
    op->schedule_kind = gathers ? OP_KIND_ALL_GATHER : kind;
    op->slice_bytes = op_slice_bytes(comm, op);
    op->slice_count =
        op_is_sliced(comm, op) ? coll_slice_count(op->total_elements, op->element_bytes, op->slice_bytes) : 1;
    if (op->slice_count >= EXEC_AGREEMENT_SLICE) {
        return error_set(error, STATUS_LIMIT, "\"%s\": more than %u slices of %llu bytes", options->name,
                         EXEC_AGREEMENT_SLICE - 1, (unsigned long long)op->slice_bytes);
    }
    return STATUS_OK;
}

/* Of this node's ranks' memory, by an operation that has no other nodes. 0: part of it goes through the
 * lane's memory, which is read again at once. */
static uint64_t op_touched_bytes(const struct exec_op *op, uint64_t size_bytes)
{
    uint64_t ranks = op->call.rank_count;
    switch (op->call.kind) {
    case OP_KIND_ALL_REDUCE:
    case OP_KIND_ALL_TO_ALL:
        return 2 * ranks * size_bytes;
    case OP_KIND_REDUCE:
    case OP_KIND_BROADCAST:
    case OP_KIND_ALL_GATHER:
        return (ranks + 1) * size_bytes;
    case OP_KIND_GATHER:
    case OP_KIND_SCATTER:
        return 2 * size_bytes;
    case OP_KIND_REDUCE_SCATTER:
    case OP_KIND_SCAN:
    case OP_KIND_EXCLUSIVE_SCAN:
    case OP_KIND_BARRIER:
    case OP_KIND_SEND:
    case OP_KIND_RECEIVE:
        break;
    }
    return 0;
}

enum status op_begin(struct exec_comm *comm, struct exec_op *op, struct error *error)
{
    const struct exec_comm_options *options = &comm->options;
    enum op_kind kind = op->call.kind;
    enum status status = op_measure(comm, op, error);
    if (status != STATUS_OK) {
        return status;
    }
    uint32_t first = comm->share_count == 1 ? 0 : comm->share_index;
    op->own_slices = (op->slice_count + comm->share_count - 1 - first) / comm->share_count;
    op->next_slice = first;
    op->agrees = options->node_count > 1 && comm->share_index == 0 && op_needs_agreement(op);
    op->local_done = kind != OP_KIND_ALL_TO_ALL || comm->share_index > 0 || op->is_staged;
    uint64_t size_bytes = op->total_elements * op->element_bytes;
    op->blocks_are_equal = blocks_are_equal(comm, op);
    op->streams = options->node_count == 1 && host_copy_streams(op_touched_bytes(op, size_bytes));
    struct coll_choice choice = {
        .kind = op->schedule_kind,
        .node_count = options->node_count,
        .root_node = op_kind_has_root(kind) ? op->root_node : 0,
        .size_bytes = op_sizes_are_private(op) ? 0 : size_bytes,
        .element_bytes = op->element_bytes,
        .slice_bytes = op->slice_bytes,
        .blocks_are_equal = op->blocks_are_equal,
    };
    if (op->call.compression != COMPRESSION_NONE) {
        op->algorithm = coll_registry_by_name(OP_KIND_ALL_REDUCE, "direct");
    } else if (op_sizes_are_private(op)) {
        /* The only ones whose transfers are between the two that know their size. */
        op->algorithm =
            coll_registry_by_name(op->schedule_kind, kind == OP_KIND_ALL_TO_ALL ? "pairwise" : "direct");
    } else {
        op->algorithm = coll_select(&choice, &options->network, options->overrides);
    }
    op->begun = true;
    return STATUS_OK;
}
