#include "daemon/exec/exec_internal.h"

/*
 * Operations among ranks that all have their buffers on GPUs of this node, and no other node to hear: kernels
 * from the ranks' inputs straight to their outputs. Several GPUs that reach each other's memory share the
 * work: each reduces its part of the vector, over all ranks, and writes it to all; each element is reduced in
 * one kernel, in the order of the ranks. Copies are the work of the GPU that they go to.
 */

static unsigned char *at(const struct exec_op *op, const void *buffer, uint64_t elements)
{
    return (unsigned char *)(uintptr_t)buffer + elements * op->element_bytes;
}

/* Input and output are one vector, or the one is the own block of the other. */
static bool is_in_place(const struct exec_comm *comm, const struct exec_op *op, uint32_t local)
{
    const struct exec_rank *rank = &op->ranks[local];
    uint32_t number = comm->order[local % op->call.rank_count];
    switch (op->call.kind) {
    case OP_KIND_ALL_GATHER:
    case OP_KIND_GATHER:
        return rank->input == at(op, rank->output, op_block_begin(op, &rank->output_layout, number));
    case OP_KIND_REDUCE_SCATTER:
    case OP_KIND_SCATTER:
        return rank->output == at(op, rank->input, op_block_begin(op, &rank->input_layout, number));
    case OP_KIND_ALL_TO_ALL:
        return false; /* it would overwrite blocks before they are sent */
    case OP_KIND_ALL_REDUCE:
    case OP_KIND_REDUCE:
    case OP_KIND_BROADCAST:
    case OP_KIND_SCAN:
    case OP_KIND_EXCLUSIVE_SCAN:
    case OP_KIND_BARRIER:
    case OP_KIND_SEND:
    case OP_KIND_RECEIVE:
        break;
    }
    return rank->input == rank->output;
}

/* Kernels bear no outputs that overlap something else, which the library refuses, but ranks can give. */
static bool overlaps_another(const struct exec_comm *comm, const struct exec_op *op, uint32_t local)
{
    const struct exec_rank *writer = &op->ranks[local];
    uint32_t first = local - local % op->call.rank_count; /* each part is a kernel of its own */
    if (writer->output == NULL) {
        return false;
    }
    for (uint32_t i = first; i < first + op->call.rank_count; i++) {
        const struct exec_rank *other = &op->ranks[i];
        struct exec_rank outputs = {.input = other->output, .input_bytes = other->output_bytes};
        bool may_be_input = i == local && is_in_place(comm, op, local);
        if ((!may_be_input && device_overlaps(other, writer)) ||
            (i != local && device_overlaps(&outputs, writer))) {
            return true;
        }
    }
    return false;
}

bool device_buffers_are_apart(const struct exec_comm *comm, const struct exec_op *op)
{
    for (uint32_t i = 0; i < op->call.part_count * op->call.rank_count; i++) {
        if (overlaps_another(comm, op, i)) {
            return false;
        }
    }
    return true;
}

bool device_buffers_serve(const struct exec_comm *comm, const struct exec_op *op, bool used[GPU_DEVICES_MAX])
{
    for (uint32_t i = 0; i < op->call.part_count * op->call.rank_count; i++) {
        const struct exec_rank *rank = &op->ranks[i];
        bool has_any = rank->input != NULL || rank->output != NULL;
        bool input_elsewhere = rank->input != NULL && rank->input_on_host;
        bool output_elsewhere = rank->output != NULL && rank->output_on_host;
        if ((has_any && !rank->on_gpu) || input_elsewhere || output_elsewhere) {
            return false;
        }
        if (has_any) {
            used[rank->gpu] = true;
        }
    }
    return device_buffers_are_apart(comm, op);
}

bool device_reach_each_other(const struct exec_comm *comm, const struct exec_op *op)
{
    bool used[GPU_DEVICES_MAX] = {0};
    if (op->call.rank_count > GPU_QUEUE_BUFFERS_MAX || !device_buffers_serve(comm, op, used)) {
        return false;
    }
    for (uint32_t gpu = 0; gpu < GPU_DEVICES_MAX; gpu++) {
        for (uint32_t other = 0; other < GPU_DEVICES_MAX && used[gpu]; other++) {
            if (used[other] && !gpu_devices_reaches(comm->exec->gpus, gpu, other)) {
                return false;
            }
        }
    }
    return true;
}

bool gpu_direct_serves(const struct exec_comm *comm, const struct exec_op *op)
{
    if (comm->options.node_count != 1 || op->call.compression != COMPRESSION_NONE) {
        return false;
    }
    return op->ranks[0].on_gpu && device_reach_each_other(comm, op);
}

uint32_t device_gpus(const struct exec_op *op, uint32_t gpus[GPU_DEVICES_MAX])
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < op->call.rank_count; i++) {
        bool known = !op->ranks[i].on_gpu;
        for (uint32_t k = 0; k < count && !known; k++) {
            known = gpus[k] == op->ranks[i].gpu;
        }
        if (!known) {
            gpus[count++] = op->ranks[i].gpu;
        }
    }
    return count;
}

/* --- Reductions --- */

/* From element `from` of the first input_count ranks' inputs on, to the outputs. */
static enum status reduce(struct gpu_queue *queue, const struct exec_op *op, const struct exec_rank *ranks,
                          uint32_t input_count, const uint64_t *from, uint64_t count, void *const *outputs,
                          uint32_t output_count, struct error *error)
{
    const void *inputs[HOST_REDUCE_BUFFERS_MAX];
    double factors[HOST_REDUCE_BUFFERS_MAX];
    for (uint32_t i = 0; i < input_count; i++) {
        inputs[i] = at(op, ranks[i].input, from[i]);
        factors[i] = ranks[i].factor;
    }
    struct host_reduction reduction = {.dtype = op->call.dtype,
                                       .reduce = op->call.reduce,
                                       .count_elements = count,
                                       .input_count = input_count,
                                       .output_count = output_count,
                                       .inputs = inputs,
                                       .outputs = outputs,
                                       .factors = op->call.reduce == REDUCE_PREMUL_SUM ? factors : NULL,
                                       .divisor = op->call.divisor};
    return gpu_queue_reduce(queue, &reduction, GPU_QUEUE_GPUS, error);
}

/* all_reduce, and reduce: the GPU's share, to whoever has an output. */
static enum status reduce_part(struct gpu_queue *queue, const struct exec_op *op,
                               const struct exec_rank *ranks, uint64_t begin, uint64_t count,
                               struct error *error)
{
    uint64_t from[HOST_REDUCE_BUFFERS_MAX];
    void *outputs[HOST_REDUCE_BUFFERS_MAX];
    uint32_t output_count = 0;
    for (uint32_t i = 0; i < op->call.rank_count; i++) {
        from[i] = begin;
        if (op->call.kind == OP_KIND_ALL_REDUCE || i == op->root_local) {
            outputs[output_count++] = at(op, ranks[i].output, begin);
        }
    }
    return reduce(queue, op, ranks, op->call.rank_count, from, count, outputs, output_count, error);
}

static enum status reduce_parts(struct exec_comm *comm, const struct exec_op *op, struct error *error)
{
    uint32_t gpus[GPU_DEVICES_MAX];
    uint32_t gpu_count = device_gpus(op, gpus);
    enum status status = STATUS_OK;
    for (uint32_t part = 0; part < op->call.part_count; part++) {
        const struct exec_rank *ranks = &op->ranks[(size_t)part * op->call.rank_count];
        for (uint32_t g = 0; g < gpu_count && status == STATUS_OK; g++) {
            struct gpu_queue *queue = NULL;
            uint64_t begin, count;
            coll_part_range(op->part_counts[part], gpu_count, g, &begin, &count);
            status = count > 0 ? device_queue(comm, gpus[g], &queue, error) : STATUS_OK;
            if (status == STATUS_OK && count > 0) {
                status = reduce_part(queue, op, ranks, begin, count, error);
            }
        }
    }
    return status;
}

/* Each block on the GPU of the rank that gets it. */
static enum status reduce_blocks(struct exec_comm *comm, const struct exec_op *op, struct error *error)
{
    uint64_t from[HOST_REDUCE_BUFFERS_MAX];
    enum status status = STATUS_OK;
    for (uint32_t owner = 0; owner < op->call.rank_count && status == STATUS_OK; owner++) {
        struct gpu_queue *queue = NULL;
        uint64_t count = op_block_count(comm, op, owner);
        void *output = op->ranks[owner].output;
        for (uint32_t i = 0; i < op->call.rank_count; i++) {
            from[i] = op_block_begin(op, &op->ranks[i].input_layout, comm->order[owner]);
        }
        if (count > 0) {
            status = device_queue(comm, op->ranks[owner].gpu, &queue, error);
        }
        if (status == STATUS_OK && count > 0) {
            status = reduce(queue, op, op->ranks, op->call.rank_count, from, count, &output, 1, error);
        }
    }
    return status;
}

/* On one GPU, from the last rank to the first: in place, an output is an input of those behind it. */
static enum status scan(struct exec_comm *comm, const struct exec_op *op, struct error *error)
{
    static const uint64_t from[HOST_REDUCE_BUFFERS_MAX];
    uint32_t skipped = op->call.kind == OP_KIND_EXCLUSIVE_SCAN ? 1 : 0;
    struct gpu_queue *queue = NULL;
    enum status status = device_queue(comm, op->ranks[0].gpu, &queue, error);
    for (uint32_t i = op->call.rank_count; i > skipped && status == STATUS_OK; i--) {
        void *output = op->ranks[i - 1].output;
        status = reduce(queue, op, op->ranks, i - skipped, from, op->call.count_elements, &output, 1, error);
    }
    return status;
}

/* --- Copies --- */

#define COPIES_MAX 64 /* handed over together */

struct copies {
    uint32_t gpu; /* those to it */
    struct gpu_queue *queue;
    struct host_copy_range ranges[COPIES_MAX];
    uint32_t count;
    enum status status;
    struct error *error;
};

static void copies_flush(struct copies *copies)
{
    if (copies->status == STATUS_OK) {
        copies->status = gpu_queue_copy_ranges(copies->queue, copies->ranges, copies->count, GPU_QUEUE_GPUS,
                                               copies->error);
    }
    copies->count = 0;
}

static void copies_add(struct copies *copies, const struct exec_op *op, const void *source,
                       uint64_t source_element, const struct exec_rank *receiver, uint64_t target_element,
                       uint64_t count)
{
    if (count == 0 || receiver->gpu != copies->gpu) {
        return;
    }
    copies->ranges[copies->count++] =
        (struct host_copy_range){.source = at(op, source, source_element),
                                 .target = at(op, receiver->output, target_element),
                                 .bytes = count * op->element_bytes};
    if (copies->count == COPIES_MAX) {
        copies_flush(copies);
    }
}

static void broadcast(struct copies *copies, const struct exec_op *op)
{
    for (uint32_t i = 0; i < op->call.rank_count; i++) {
        if (op->ranks[i].output != NULL) {
            copies_add(copies, op, op->ranks[op->root_local].input, 0, &op->ranks[i], 0,
                       op->call.count_elements);
        }
    }
}

static void gather(struct copies *copies, const struct exec_comm *comm, const struct exec_op *op,
                   uint32_t receiver)
{
    const struct exec_rank *to = &op->ranks[receiver];
    for (uint32_t i = 0; i < op->call.rank_count; i++) {
        copies_add(copies, op, op->ranks[i].input, 0, to,
                   op_block_begin(op, &to->output_layout, comm->order[i]), op_block_count(comm, op, i));
    }
}

static void scatter(struct copies *copies, const struct exec_comm *comm, const struct exec_op *op)
{
    const struct exec_rank *root = &op->ranks[op->root_local];
    for (uint32_t i = 0; i < op->call.rank_count; i++) {
        copies_add(copies, op, root->input, op_block_begin(op, &root->input_layout, comm->order[i]),
                   &op->ranks[i], 0, op_block_count(comm, op, i));
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
                       receiver, op_block_begin(op, &receiver->output_layout, from_rank), count);
        }
    }
}

static enum status copy_to(struct exec_comm *comm, const struct exec_op *op, uint32_t gpu,
                           struct error *error)
{
    struct copies copies = {.gpu = gpu, .error = error};
    copies.status = device_queue(comm, gpu, &copies.queue, error);
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

static enum status copy(struct exec_comm *comm, const struct exec_op *op, struct error *error)
{
    uint32_t gpus[GPU_DEVICES_MAX];
    uint32_t gpu_count = device_gpus(op, gpus);
    enum status status = STATUS_OK;
    for (uint32_t g = 0; g < gpu_count && status == STATUS_OK; g++) {
        status = copy_to(comm, op, gpus[g], error);
    }
    return status;
}

enum status gpu_direct_put(struct exec_comm *comm, struct exec_op *op, struct error *error)
{
    enum status status = op_measure(comm, op, error);
    if (status != STATUS_OK) {
        return status;
    }
    switch (op->call.kind) {
    case OP_KIND_ALL_REDUCE:
    case OP_KIND_REDUCE:
        return reduce_parts(comm, op, error);
    case OP_KIND_REDUCE_SCATTER:
        return reduce_blocks(comm, op, error);
    case OP_KIND_SCAN:
    case OP_KIND_EXCLUSIVE_SCAN:
        return scan(comm, op, error);
    case OP_KIND_BROADCAST:
    case OP_KIND_ALL_GATHER:
    case OP_KIND_GATHER:
    case OP_KIND_SCATTER:
    case OP_KIND_ALL_TO_ALL:
        return copy(comm, op, error);
    case OP_KIND_BARRIER:
    case OP_KIND_SEND:
    case OP_KIND_RECEIVE:
        break;
    }
    return STATUS_OK;
}
