#include <stdlib.h>

#include "daemon/exec/exec_device.h"
#include "daemon/exec/exec_internal.h"

/*
 * Operations of communicators on one node whose buffers are all on GPUs: kernels read the ranks' inputs and
 * write their outputs directly. Several GPUs that reach each other's memory share the work. Each reduces its
 * part of the vector over all ranks, and writes it to all. Each element is reduced in one kernel, in the
 * order of the ranks. A copy is done by the GPU of its target.
 */

/* Whether input and output are the same vector, or one is the rank's own block of the other. */
static bool is_in_place(const struct exec_op *op, uint32_t index)
{
    const struct exec_rank *rank = &op->ranks[index];
    struct coll_stage_place first, same;
    if (!coll_stage_in_place(&op->stage, index, &first, &same)) {
        return false;
    }
    const void *one = first.buffer == COLL_STAGE_INPUT ? rank->input : rank->output;
    const unsigned char *other = same.buffer == COLL_STAGE_INPUT ? rank->input : rank->output;
    return one == other + same.offset_elements * op->stage.element_bytes;
}

/* Whether the rank's output overlaps another buffer. Kernels cannot handle that. The library refuses it, but
 * a client can still send it. */
static bool overlaps_another(const struct exec_op *op, uint32_t local)
{
    const struct exec_rank *writer = &op->ranks[local];
    uint32_t first = local - local % op->call.rank_count; /* each part is a kernel of its own */
    if (writer->output == NULL) {
        return false;
    }
    for (uint32_t i = first; i < first + op->call.rank_count; i++) {
        const struct exec_rank *other = &op->ranks[i];
        struct exec_rank outputs = {.input = other->output, .input_bytes = other->output_bytes};
        bool may_be_input = i == local && is_in_place(op, local);
        if ((!may_be_input && device_overlaps(other, writer)) ||
            (i != local && device_overlaps(&outputs, writer))) {
            return true;
        }
    }
    return false;
}

bool device_buffers_are_apart(const struct exec_op *op)
{
    for (uint32_t i = 0; i < op->call.terms.bucket_ops * op->call.rank_count; i++) {
        if (overlaps_another(op, i)) {
            return false;
        }
    }
    return true;
}

bool device_buffers_serve(const struct exec_op *op, bool used[GPU_DEVICES_MAX])
{
    for (uint32_t i = 0; i < op->call.terms.bucket_ops * op->call.rank_count; i++) {
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
    return device_buffers_are_apart(op);
}

bool device_reach_each_other(const struct exec_comm *comm, const struct exec_op *op)
{
    bool used[GPU_DEVICES_MAX] = {0};
    if (op->call.rank_count > GPU_QUEUE_BUFFERS_MAX || !device_buffers_serve(op, used)) {
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
    if (comm->map->ranks.node_count != 1) {
        return false;
    }
    return op->ranks[0].on_gpu && device_reach_each_other(comm, op);
}

/* --- Pieces --- */

/* State while an operation's plan is put in the queues. */
struct put {
    struct exec_comm *comm;
    const struct exec_op *op;
    struct device_copies copies;
    enum status status;
    struct error *error;
};

static void put_copies(struct put *put, const struct coll_stage_piece *piece)
{
    for (uint32_t i = 0; i < piece->target_count && put->status == STATUS_OK; i++) {
        put->status = device_copies_add(
            put->comm, &put->copies, put->op->ranks[piece->targets[i].rank].gpu,
            &(struct host_copy_range){.source = stage_at(NULL, put->op, &piece->sources[0]),
                                      .target = stage_at(NULL, put->op, &piece->targets[i]),
                                      .bytes = piece->count_elements * put->op->stage.element_bytes},
            put->error);
    }
}

/* Queues the reduction of `count` of the piece's elements, from `begin` on, on one GPU. */
static void put_reduction(struct put *put, const struct coll_stage_piece *piece, uint32_t gpu, uint64_t begin,
                          uint64_t count)
{
    struct stage_buffers buffers;
    struct gpu_queue *queue = NULL;
    struct host_reduction reduction = stage_reduction(NULL, put->op, piece, &buffers);
    uint64_t bytes = begin * put->op->stage.element_bytes;
    if (count == 0 || put->status != STATUS_OK) {
        return;
    }
    for (uint32_t i = 0; i < piece->source_count; i++) {
        buffers.inputs[i] = (const unsigned char *)buffers.inputs[i] + bytes;
    }
    for (uint32_t i = 0; i < piece->target_count; i++) {
        buffers.outputs[i] = (unsigned char *)buffers.outputs[i] + bytes;
    }
    reduction.count_elements = count;
    put->status = device_queue(put->comm, gpu, &queue, put->error);
    if (put->status == STATUS_OK) {
        put->status = gpu_queue_reduce(queue, &reduction, GPU_QUEUE_GPUS, put->error);
    }
}

static bool put_piece(void *context, const struct coll_stage_piece *piece)
{
    struct put *put = context;
    if (piece->action == COLL_STAGE_COPY) {
        put_copies(put, piece);
    } else if (piece->near != COLL_STAGE_ALL) {
        put_reduction(put, piece, put->op->ranks[piece->near].gpu, 0, piece->count_elements);
    } else {
        for (uint32_t g = 0; g < put->copies.gpu_count; g++) {
            uint64_t begin, count;
            coll_part_range(piece->count_elements, put->copies.gpu_count, g, &begin, &count);
            put_reduction(put, piece, put->copies.gpus[g], begin, count);
        }
    }
    return true;
}

enum status device_measure_alone(struct exec_comm *comm, struct exec_op *op, struct error *error)
{
    enum status status = exec_op_measure(comm, op, error);
    op->stage.has_memory = false;
    op->stage.slice_count = 1;
    op->stage.local_slice_elements = UINT64_MAX;
    op->stage.many_blocks = UINT64_MAX;
    return status;
}

enum status gpu_direct_put(struct exec_comm *comm, struct exec_op *op, struct error *error)
{
    struct put put = {.comm = comm, .op = op, .error = error};
    struct coll_stage_cursor cursor = {0};
    put.status = device_measure_alone(comm, op, error);
    if (put.status == STATUS_OK) {
        put.status = device_copies_init(&put.copies, op, error);
    }
    if (put.status != STATUS_OK) {
        return put.status;
    }
    while (!coll_stage_plan(&op->stage, COLL_STAGE_LOCAL, 0, &cursor, put_piece, &put)) {
    }
    if (put.status == STATUS_OK) {
        put.status = device_copies_flush(comm, &put.copies, error);
    }
    device_copies_release(&put.copies);
    return put.status;
}
