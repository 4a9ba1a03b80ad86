#include <stdlib.h>
#include <string.h>

#include "daemon/base/checked.h"
#include "daemon/exec/exec_device.h"
#include "daemon/exec/exec_internal.h"
#include "daemon/exec/gpu_coding.h"
#include "daemon/host/copy.h"
#include "daemon/host/guard.h"

_Static_assert(EXEC_LANES_MAX == COLL_LANES, "predictions are for the lanes that there are");

/* The input to stage plans, as far as it follows from the call. */
static void op_describe(const struct exec_comm *comm, struct exec_op *op)
{
    for (uint32_t i = 0; i < op->call.rank_count * op->call.terms.bucket_ops; i++) {
        const struct exec_rank *rank = &op->ranks[i];
        op->stage_ranks[i] = (struct coll_stage_rank){.input_layout = rank->input_layout,
                                                      .output_layout = rank->output_layout,
                                                      .count_elements = rank->count_elements,
                                                      .has_output = rank->output != NULL};
    }
    op->stage = (struct coll_stage_op){.map = &comm->map->ranks,
                                       .terms = &op->call.terms,
                                       .mode = comm->map->ranks.node_count == 1 ? COLL_STAGE_ALONE
                                                                                : COLL_STAGE_UNSTAGED,
                                       .has_memory = true,
                                       .divides = op->divisor > 1,
                                       .part_counts = op->call.part_counts,
                                       .ranks = op->stage_ranks,
                                       .element_bytes = dtype_size_bytes(op->call.terms.dtype),
                                       .many_blocks = COLL_STAGE_MANY_BLOCKS,
                                       .strip_bytes = COLL_STAGE_STRIP_BYTES};
}

enum status exec_op_new(struct exec_comm *comm, const struct exec_call *call, struct exec_op **out,
                        struct error *error)
{
    size_t rank_count = (size_t)call->rank_count * call->terms.bucket_ops;
    size_t rank_bytes = sizeof(struct coll_stage_rank) + sizeof(struct exec_rank);
    struct exec_op *op =
        calloc(1, sizeof *op + rank_count * rank_bytes + call->terms.bucket_ops * sizeof(uint64_t));
    if (op == NULL) {
        return error_set(error, STATUS_NO_MEMORY, "\"%s\": no memory for an operation", comm->map->name);
    }
    struct exec_rank *ranks = (struct exec_rank *)(op->stage_ranks + rank_count);
    uint64_t *part_counts = (uint64_t *)(ranks + rank_count);
    memcpy(ranks, call->ranks, rank_count * sizeof *ranks);
    if (call->part_counts != NULL) {
        memcpy(part_counts, call->part_counts, call->terms.bucket_ops * sizeof *part_counts);
    } else {
        part_counts[0] = call->terms.count_elements;
    }
    op->call = *call;
    op->ranks = ranks;
    op->call.ranks = ranks;
    op->call.part_counts = part_counts;
    op->divisor =
        op_kind_reduces(call->terms.kind) && call->terms.reduce == REDUCE_AVG ? comm->map->ranks.size : 0;
    op->result.status = STATUS_OK;
    op_describe(comm, op);
    if (device_is_needed(&op->call) && device_new(comm, op, error) != STATUS_OK) {
        free(op);
        return STATUS_NO_MEMORY;
    }
    *out = op;
    return STATUS_OK;
}

enum status exec_op_check_memories(const struct exec_comm *comm, struct exec_op *op, struct error *error)
{
    uint64_t holes = guard_hole_count();
    if (holes == op->holes_seen) {
        return STATUS_OK;
    }
    const uint32_t *local_ranks =
        comm->map->ranks.order + comm->map->ranks.node_first[comm->map->ranks.node_index];
    for (uint32_t i = 0; i < op->call.rank_count * op->call.terms.bucket_ops; i++) {
        const struct exec_rank *rank = &op->ranks[i];
        const struct memory *memories[] = {rank->input_memory, rank->output_memory, rank->residual_memory};
        for (size_t k = 0; k < sizeof memories / sizeof memories[0]; k++) {
            enum status status = memories[k] == NULL ? STATUS_OK : memory_check(memories[k], error);
            if (status != STATUS_OK) {
                (void)error_prefix(error, "op %llu %s on \"%s\": rank %u, node %s",
                                   (unsigned long long)op->call.seq, op_kind_text(op->call.terms.kind),
                                   comm->map->name, local_ranks[i % op->call.rank_count],
                                   comm->map->node_names[comm->map->ranks.node_index]);
                return status;
            }
        }
    }
    op->holes_seen = holes;
    return STATUS_OK;
}

static bool blocks_are_equal(const struct exec_comm *comm, const struct exec_op *op)
{
    uint32_t nodes = comm->map->ranks.node_count;
    uint32_t each = comm->map->ranks.size / nodes;
    for (uint32_t node = 0; node < nodes; node++) {
        if (comm->map->ranks.node_first[node + 1] - comm->map->ranks.node_first[node] != each) {
            return false;
        }
    }
    return !op->call.terms.has_layouts;
}

/* Between nodes, a slice's elements, and its rail, are a pure function of values that all nodes agree on. */
static uint64_t op_slice_bytes(const struct exec_comm *comm, const struct exec_op *op)
{
    bool gathers = op->schedule_kind != op->call.terms.kind;
    bool for_caches = op->stage.mode == COLL_STAGE_ALONE;
    uint64_t slice_bytes = comm->map->slice_bytes / (gathers ? comm->map->ranks.run_count : 1);
    if (for_caches) {
        slice_bytes = slice_bytes < EXEC_LOCAL_SLICE_BYTES ? slice_bytes : EXEC_LOCAL_SLICE_BYTES;
        slice_bytes = coll_stage_alone_slice_bytes(&op->stage, slice_bytes, EXEC_TURN_BYTES);
    }
    if (op->call.terms.kind == OP_KIND_ALL_TO_ALL) {
        slice_bytes =
            coll_exchange_slice_bytes(slice_bytes, comm->map->ranks.size, comm->map->ranks.node_count);
    }
    return slice_bytes > op->stage.element_bytes ? slice_bytes : op->stage.element_bytes;
}

/* The data that stays on this node has slices of its own. */
static void op_measure_exchange(const struct exec_comm *comm, struct exec_op *op)
{
    uint64_t slice_bytes = comm->map->slice_bytes;
    slice_bytes = slice_bytes > EXEC_LOCAL_SLICE_BYTES ? EXEC_LOCAL_SLICE_BYTES : slice_bytes;
    op->stage.local_slice_elements =
        coll_stage_local_slice_elements(&op->stage, slice_bytes * COLL_EXCHANGE_SLICES);
    op->local_slices = coll_stage_local_slices(&op->stage);
}

/* If only the ranks know their sizes, nodes cannot agree on several slices. A single node need not agree. */
static uint64_t op_slice_count(const struct exec_op *op)
{
    const struct coll_stage_op *stage = &op->stage;
    bool alone = stage->mode == COLL_STAGE_ALONE;
    if (alone && op->local_slices > 0) {
        return op->local_slices;
    }
    if (!alone && coll_stage_sizes_are_private(stage)) {
        return 1;
    }
    return coll_slice_count(stage->total_elements, op->stage.element_bytes, stage->slice_bytes);
}

/* Prepares slices from and to GPUs: sets the domain of each buffer. */
static void op_stage(const struct exec_comm *comm, struct exec_op *op)
{
    op->stage.mode = COLL_STAGE_STAGED;
    for (uint32_t i = 0; i < op->call.rank_count * op->call.terms.bucket_ops; i++) {
        const struct exec_rank *rank = &op->ranks[i];
        op->stage_ranks[i].input_domain = lane_device_domain(comm->exec, op, rank, rank->input_on_host);
        op->stage_ranks[i].output_domain = lane_device_domain(comm->exec, op, rank, rank->output_on_host);
    }
    op->stage.vector_ranks = gpu_coding_vector_ranks(comm, op);
}

enum status exec_op_measure(const struct exec_comm *comm, struct exec_op *op, struct error *error)
{
    const struct comm_map *map = comm->map;
    struct coll_stage_op *stage = &op->stage;
    uint64_t bytes;
    if (op_kind_has_root(op->call.terms.kind)) {
        op->root_node = map->node_of_rank[op->call.terms.root_rank];
    }
    if (op->is_staged) {
        op_stage(comm, op);
    }
    op->schedule_kind = coll_stage_schedule_kind(op->call.terms.kind, &comm->map->ranks);
    if (!coll_stage_total(stage, &stage->total_elements) ||
        !checked_mul_u64(stage->total_elements, op->stage.element_bytes, &bytes)) {
        return error_set(error, STATUS_LIMIT, "op %llu %s on \"%s\": too many elements",
                         (unsigned long long)op->call.seq, op_kind_text(op->call.terms.kind), map->name);
    }
    stage->slice_bytes = op_slice_bytes(comm, op);
    op_measure_exchange(comm, op);
    stage->slice_count = op_slice_count(op);
    if (stage->slice_count >= EXEC_AGREEMENT_SLICE) {
        return error_set(error, STATUS_LIMIT, "\"%s\": more than %u slices of %llu bytes", map->name,
                         EXEC_AGREEMENT_SLICE - 1, (unsigned long long)stage->slice_bytes);
    }
    return STATUS_OK;
}

static void op_choose(const struct exec_comm *comm, struct exec_op *op)
{
    const struct comm_map *map = comm->map;
    bool private_sizes = coll_stage_sizes_are_private(&op->stage);
    struct coll_choice choice = {
        .few_links = comm->map->few_links,
        .kind = op->schedule_kind,
        .node_count = map->ranks.node_count,
        .root_node = op->root_node,
        .size_bytes = private_sizes ? 0 : op->stage.total_elements * op->stage.element_bytes,
        .element_bytes = op->stage.element_bytes,
        .slice_bytes = op->stage.slice_bytes,
        .blocks_are_equal = op->blocks_are_equal,
    };
    if (op->call.terms.compression != COMPRESSION_NONE) {
        op->algorithm = coll_registry_by_name(OP_KIND_ALL_REDUCE, "direct");
    } else if (private_sizes) {
        /* Only in these algorithms is each transfer between the two nodes that know its size. */
        bool exchanges = op->call.terms.kind == OP_KIND_ALL_TO_ALL;
        op->algorithm = coll_registry_by_name(op->schedule_kind, exchanges ? "pairwise" : "direct");
    } else {
        op->algorithm = coll_select(&choice, &map->network, map->overrides);
    }
}

/* Whether the reduction of a single input is a plain copy; see host_reduce. */
static bool reducing_one_copies(const struct exec_op *op)
{
    return op->call.terms.reduce != REDUCE_PREMUL_SUM && op->call.terms.reduce != REDUCE_LAND &&
           op->call.terms.reduce != REDUCE_LOR && op->call.terms.dtype != DTYPE_BOOL;
}

void exec_op_begin(const struct exec_comm *comm, struct exec_op *op)
{
    bool one_node = comm->map->ranks.node_count == 1;
    if (one_node) { /* any thread takes slices */
        op->own_slices = op->stage.slice_count;
    } else {
        op->own_slices = spread_slices(comm, comm->share_index, op->stage.slice_count);
        op->next_slice = spread_next_slice(comm, 0, op->stage.slice_count);
    }
    op->agrees = !one_node && comm->share_index == 0 && coll_stage_needs_agreement(&op->stage);
    if (one_node || comm->share_index > 0) {
        op->local_slices = 0; /* on one node they are the slices; between nodes rail 0 has them */
    }
    op->blocks_are_equal = blocks_are_equal(comm, op);
    op->stage.keeps_input = op->call.terms.compression == COMPRESSION_NONE && reducing_one_copies(op);
    if (one_node) {
        op->streams = !op->is_staged &&
                      host_copy_streams(coll_stage_touched_elements(&op->stage) * op->stage.element_bytes);
    } else {
        op_choose(comm, op);
    }
    op->begun = true;
    comm->exec->between_nodes += one_node ? 0 : 1;
}
