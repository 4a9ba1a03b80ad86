#include <string.h>

#include "daemon/exec/exec_internal.h"
#include "daemon/host/reduce.h"

/*
 * The local stage of scans. A slice's memory: running value, prefix (or, where ranks are not contiguous, the
 * value of each run of ranks), then room for the value so far and for one more. All folds go from lower to
 * higher ranks.
 */

static unsigned char *place(const struct exec_lane *lane, const struct exec_op *op, uint64_t index,
                            uint64_t elements)
{
    return lane_memory(lane) + index * elements * op->element_bytes;
}

static uint64_t slice_elements(const struct exec_lane *lane, const struct exec_op *op)
{
    return op->schedule_kind == OP_KIND_ALL_GATHER ? lane->call.count_elements / lane->comm->run_count
                                                   : lane->call.count_elements;
}

/* Staged: the local rank's place in the slice, of its input, then of its output. */
static unsigned char *staged_place(const struct exec_lane *lane, const struct exec_op *op, uint32_t local)
{
    uint32_t values = op->schedule_kind == OP_KIND_ALL_GATHER ? lane->comm->run_count : 2;
    return place(lane, op, values + 2 + local, slice_elements(lane, op));
}

static const unsigned char *input_of(const struct exec_lane *lane, const struct exec_op *op, uint32_t local)
{
    if (lane->staged) {
        return staged_place(lane, op, local);
    }
    return (const unsigned char *)op->ranks[local].input + lane->offset_elements * op->element_bytes;
}

static void write_output(const struct exec_lane *lane, const struct exec_op *op, uint32_t local,
                         const void *value, uint64_t elements)
{
    const struct exec_rank *rank = &op->ranks[local];
    unsigned char *output = (unsigned char *)rank->output + lane->offset_elements * op->element_bytes;
    size_t bytes = (size_t)(elements * op->element_bytes);
    if (!lane->staged) {
        memcpy(output, value, bytes);
        return;
    }
    struct exec_targets target = {.count = 1};
    unsigned char *staged = staged_place(lane, op, local);
    target.at[0] = output;
    target.owners[0] = rank;
    memcpy(staged, value, bytes); /* value changes before a GPU takes it */
    lane_device_write(lane, &target, staged, bytes, NULL);
}

/* out = the reduction of `count` inputs; each is multiplied by its factor where the operator wants that. */
static void fold(const struct exec_op *op, const void *const *inputs, const double *factors, uint32_t count,
                 uint64_t elements, void *out)
{
    struct host_reduction reduction = {.dtype = op->call.dtype,
                                       .reduce = op->call.reduce,
                                       .count_elements = elements,
                                       .input_count = count,
                                       .output_count = 1,
                                       .inputs = inputs,
                                       .outputs = &out,
                                       .factors = op->call.reduce == REDUCE_PREMUL_SUM ? factors : NULL};
    host_reduce(&reduction);
}

static void fold_locals(const struct exec_lane *lane, const struct exec_op *op, uint32_t first,
                        uint32_t count, uint64_t elements, void *out)
{
    const void *inputs[HOST_REDUCE_BUFFERS_MAX];
    double factors[HOST_REDUCE_BUFFERS_MAX];
    for (uint32_t i = 0; i < count; i++) {
        inputs[i] = input_of(lane, op, first + i);
        factors[i] = op->ranks[first + i].factor;
    }
    fold(op, inputs, factors, count, elements, out);
}

void stage_scan_read(struct exec_lane *lane, const struct exec_op *op)
{
    uint64_t elements = slice_elements(lane, op);
    for (uint32_t i = 0; i < op->call.rank_count; i++) {
        const struct exec_rank *rank = &op->ranks[i];
        lane_device_read(lane, rank, staged_place(lane, op, i),
                         (const unsigned char *)rank->input + lane->offset_elements * op->element_bytes,
                         elements * op->element_bytes);
    }
}

void stage_scan_in(struct exec_lane *lane, const struct exec_op *op)
{
    const struct exec_comm *comm = lane->comm;
    uint64_t elements = slice_elements(lane, op);
    if (elements == 0) {
        return;
    }
    if (op->schedule_kind != OP_KIND_ALL_GATHER) {
        fold_locals(lane, op, 0, op->call.rank_count, elements, lane_memory(lane));
        return;
    }
    for (uint32_t r = 0; r < comm->run_count; r++) {
        const struct exec_run *run = &comm->runs[r];
        if (run->node == comm->options.node_index) {
            fold_locals(lane, op, run->first_local, run->rank_count, elements,
                        place(lane, op, run->slot, elements));
        }
    }
}

/*
 * The ranks first .. first + count - 1 of this node, before which `value` stands (null: nothing does). value
 * may be changed; `spare` is another place of the slice's size.
 */
static void scan_locals(const struct exec_lane *lane, const struct exec_op *op, uint32_t first,
                        uint32_t count, uint64_t elements, unsigned char *value, bool value_holds,
                        unsigned char *spare)
{
    bool exclusive = op->call.kind == OP_KIND_EXCLUSIVE_SCAN;
    for (uint32_t i = first; i < first + count; i++) {
        const void *inputs[2] = {value, input_of(lane, op, i)};
        double factors[2] = {1.0, op->ranks[i].factor};
        uint32_t skipped = value_holds ? 0 : 1;
        fold(op, inputs + skipped, factors + skipped, 2 - skipped, elements, spare);
        if (!exclusive) {
            write_output(lane, op, i, spare, elements);
        } else if (value_holds) {
            write_output(lane, op, i, value, elements);
        }
        unsigned char *was = value;
        value = spare;
        spare = was;
        value_holds = true;
    }
}

/* Every run of this node, after what all runs before it hold together. */
static void scan_runs(const struct exec_lane *lane, const struct exec_op *op, uint64_t elements)
{
    const struct exec_comm *comm = lane->comm;
    unsigned char *before = place(lane, op, comm->run_count, elements);
    unsigned char *spare = place(lane, op, comm->run_count + 1, elements);
    for (uint32_t r = 0; r < comm->run_count; r++) {
        const struct exec_run *run = &comm->runs[r];
        bool holds = r > 0;
        if (run->node != comm->options.node_index) {
            continue;
        }
        for (uint32_t earlier = 0; earlier < r; earlier++) {
            const unsigned char *value = place(lane, op, comm->runs[earlier].slot, elements);
            if (earlier == 0) {
                memcpy(before, value, (size_t)(elements * op->element_bytes));
            } else {
                host_reduce_into(op->call.dtype, op->call.reduce, before, value, elements);
            }
        }
        scan_locals(lane, op, run->first_local, run->rank_count, elements, before, holds, spare);
    }
}

void stage_scan_out(struct exec_lane *lane, const struct exec_op *op)
{
    uint64_t elements = slice_elements(lane, op);
    if (elements == 0) {
        return;
    }
    if (op->schedule_kind == OP_KIND_ALL_GATHER) {
        scan_runs(lane, op, elements);
        return;
    }
    scan_locals(lane, op, 0, op->call.rank_count, elements, place(lane, op, 1, elements), lane->prefix_begun,
                place(lane, op, 2, elements));
}
