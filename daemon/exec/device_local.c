#include "daemon/exec/exec_internal.h"

/*
 * Operations among ranks that all have their buffers on one GPU, and no other node to hear: kernels from the
 * ranks' inputs straight to their outputs, in the communicator's queue.
 */

bool device_local_serves(const struct exec_comm *comm, const struct exec_op *op)
{
    if (comm->options.node_count != 1 || op->call.compression != COMPRESSION_NONE) {
        return false;
    }
    for (uint32_t i = 0; i < op->call.part_count * op->call.rank_count; i++) {
        const struct exec_rank *rank = &op->ranks[i];
        bool has_any = rank->input != NULL || rank->output != NULL;
        bool elsewhere = !rank->on_gpu || rank->gpu != op->ranks[0].gpu;
        if ((has_any && elsewhere) || (op->call.kind == OP_KIND_ALL_TO_ALL && device_overlaps(rank))) {
            return false;
        }
    }
    return op->ranks[0].on_gpu;
}

static unsigned char *at(const struct exec_op *op, const void *buffer, uint64_t elements)
{
    return (unsigned char *)(uintptr_t)buffer + elements * op->element_bytes;
}

/* --- Reductions --- */

/* Element `from` on of the first input_count ranks' inputs, to the outputs. */
static enum status reduce(struct dev_queue *queue, const struct exec_op *op, const struct exec_rank *ranks,
                          uint32_t input_count, const uint64_t *from, uint64_t count, void *const *outputs,
                          uint32_t output_count, struct error *error)
{
    const void *inputs[DEV_REDUCE_BUFFERS_MAX];
    double factors[DEV_REDUCE_BUFFERS_MAX];
    for (uint32_t i = 0; i < input_count; i++) {
        inputs[i] = at(op, ranks[i].input, from == NULL ? 0 : from[i]);
        factors[i] = ranks[i].factor;
    }
    struct dev_reduction reduction = {.dtype = op->call.dtype,
                                      .reduce = op->call.reduce,
                                      .count_elements = count,
                                      .input_count = input_count,
                                      .output_count = output_count,
                                      .inputs = inputs,
                                      .outputs = outputs,
                                      .factors = op->call.reduce == REDUCE_PREMUL_SUM ? factors : NULL,
                                      .divisor = op->call.divisor};
    return dev_queue_reduce(queue, &reduction, error);
}

/* all_reduce, and reduce: to whoever has an output. */
static enum status reduce_parts(struct dev_queue *queue, const struct exec_op *op, struct error *error)
{
    enum status status = STATUS_OK;
    for (uint32_t part = 0; part < op->call.part_count && status == STATUS_OK; part++) {
        const struct exec_rank *ranks = &op->ranks[(size_t)part * op->call.rank_count];
        void *outputs[DEV_REDUCE_BUFFERS_MAX];
        uint32_t output_count = 0;
        for (uint32_t i = 0; i < op->call.rank_count; i++) {
            bool receives = op->call.kind == OP_KIND_ALL_REDUCE || i == op->root_local;
            if (receives) {
                outputs[output_count++] = ranks[i].output;
            }
        }
        status = reduce(queue, op, ranks, op->call.rank_count, NULL, op->part_counts[part], outputs,
                        output_count, error);
    }
    return status;
}

static enum status reduce_blocks(struct dev_queue *queue, const struct exec_comm *comm,
                                 const struct exec_op *op, struct error *error)
{
    uint64_t from[DEV_REDUCE_BUFFERS_MAX];
    enum status status = STATUS_OK;
    for (uint32_t owner = 0; owner < op->call.rank_count && status == STATUS_OK; owner++) {
        uint32_t rank = comm->order[owner];
        for (uint32_t i = 0; i < op->call.rank_count; i++) {
            from[i] = op_block_begin(op, &op->ranks[i].input_layout, rank);
        }
        void *output = op->ranks[owner].output;
        status = reduce(queue, op, op->ranks, op->call.rank_count, from, op_block_count(comm, op, owner),
                        &output, 1, error);
    }
    return status;
}

/* From the last rank to the first: in place, an output is an input of those behind it. */
static enum status scan(struct dev_queue *queue, const struct exec_op *op, struct error *error)
{
    uint32_t skipped = op->call.kind == OP_KIND_EXCLUSIVE_SCAN ? 1 : 0;
    enum status status = STATUS_OK;
    for (uint32_t i = op->call.rank_count; i > skipped && status == STATUS_OK; i--) {
        void *output = op->ranks[i - 1].output;
        status = reduce(queue, op, op->ranks, i - skipped, NULL, op->call.count_elements, &output, 1, error);
    }
    return status;
}

/* --- Copies --- */

#define COPIES_MAX 64 /* handed over together */

struct copies {
    struct dev_queue *queue;
    struct dev_copy_range ranges[COPIES_MAX];
    uint32_t count;
    enum status status;
    struct error *error;
};

static void copies_flush(struct copies *copies)
{
    if (copies->status == STATUS_OK) {
        copies->status = dev_queue_copy_ranges(copies->queue, copies->ranges, copies->count, copies->error);
    }
    copies->count = 0;
}

static void copies_add(struct copies *copies, const struct exec_op *op, const void *source,
                       uint64_t source_element, void *target, uint64_t target_element, uint64_t count)
{
    if (count == 0) {
        return;
    }
    copies->ranges[copies->count++] = (struct dev_copy_range){.source = at(op, source, source_element),
                                                              .target = at(op, target, target_element),
                                                              .bytes = count * op->element_bytes};
    if (copies->count == COPIES_MAX) {
        copies_flush(copies);
    }
}

static void broadcast(struct copies *copies, const struct exec_op *op)
{
    for (uint32_t i = 0; i < op->call.rank_count; i++) {
        if (op->ranks[i].output != NULL) {
            copies_add(copies, op, op->ranks[op->root_local].input, 0, op->ranks[i].output, 0,
                       op->call.count_elements);
        }
    }
}

static void gather(struct copies *copies, const struct exec_comm *comm, const struct exec_op *op,
                   uint32_t receiver)
{
    const struct exec_rank *to = &op->ranks[receiver];
    for (uint32_t i = 0; i < op->call.rank_count; i++) {
        copies_add(copies, op, op->ranks[i].input, 0, to->output,
                   op_block_begin(op, &to->output_layout, comm->order[i]), op_block_count(comm, op, i));
    }
}

static void scatter(struct copies *copies, const struct exec_comm *comm, const struct exec_op *op)
{
    const struct exec_rank *root = &op->ranks[op->root_local];
    for (uint32_t i = 0; i < op->call.rank_count; i++) {
        copies_add(copies, op, root->input, op_block_begin(op, &root->input_layout, comm->order[i]),
                   op->ranks[i].output, 0, op_block_count(comm, op, i));
    }
}

static void exchange(struct copies *copies, const struct exec_comm *comm, const struct exec_op *op)
{
    for (uint32_t from = 0; from < op->call.rank_count; from++) {
        for (uint32_t to = 0; to < op->call.rank_count; to++) {
            const struct exec_rank *sender = &op->ranks[from], *receiver = &op->ranks[to];
            uint32_t to_rank = comm->order[to], from_rank = comm->order[from];
            uint64_t count = sender->input_layout.counts != NULL ? sender->input_layout.counts[to_rank]
                                                                 : op->call.count_elements;
            copies_add(copies, op, sender->input, op_block_begin(op, &sender->input_layout, to_rank),
                       receiver->output, op_block_begin(op, &receiver->output_layout, from_rank), count);
        }
    }
}

static enum status copy(struct dev_queue *queue, const struct exec_comm *comm, const struct exec_op *op,
                        struct error *error)
{
    struct copies copies = {.queue = queue, .status = STATUS_OK, .error = error};
    if (op->call.kind == OP_KIND_BROADCAST) {
        broadcast(&copies, op);
    } else if (op->call.kind == OP_KIND_GATHER) {
        gather(&copies, comm, op, op->root_local);
    } else if (op->call.kind == OP_KIND_SCATTER) {
        scatter(&copies, comm, op);
    } else if (op->call.kind == OP_KIND_ALL_TO_ALL) {
        exchange(&copies, comm, op);
    } else {
        for (uint32_t i = 0; i < op->call.rank_count; i++) {
            gather(&copies, comm, op, i);
        }
    }
    copies_flush(&copies);
    return copies.status;
}

enum status device_local_put(struct exec_comm *comm, struct exec_op *op, struct error *error)
{
    struct dev_queue *queue = NULL;
    enum status status = op_measure(comm, op, error);
    if (status == STATUS_OK) {
        status = device_queue(comm, op->ranks[0].gpu, &queue, error);
    }
    if (status != STATUS_OK) {
        return status;
    }
    switch (op->call.kind) {
    case OP_KIND_ALL_REDUCE:
    case OP_KIND_REDUCE:
        return reduce_parts(queue, op, error);
    case OP_KIND_REDUCE_SCATTER:
        return reduce_blocks(queue, comm, op, error);
    case OP_KIND_SCAN:
    case OP_KIND_EXCLUSIVE_SCAN:
        return scan(queue, op, error);
    case OP_KIND_BROADCAST:
    case OP_KIND_ALL_GATHER:
    case OP_KIND_GATHER:
    case OP_KIND_SCATTER:
    case OP_KIND_ALL_TO_ALL:
        return copy(queue, comm, op, error);
    case OP_KIND_BARRIER:
    case OP_KIND_SEND:
    case OP_KIND_RECEIVE:
        break;
    }
    return STATUS_OK;
}
