#include <stdlib.h>

#include "daemon/exec/exec_device.h"
#include "daemon/exec/exec_internal.h"

/* Copies of an operation among buffers on GPUs, collected for each GPU, because each kernel costs
 * microseconds. */

uint32_t device_gpus(const struct exec_op *op, uint32_t gpus[GPU_DEVICES_MAX])
{
    bool used[GPU_DEVICES_MAX] = {0};
    uint32_t count = 0;
    for (uint32_t i = 0; i < op->call.terms.bucket_ops * op->call.rank_count; i++) {
        used[op->ranks[i].gpu] |= op->ranks[i].on_gpu;
    }
    for (uint32_t gpu = 0; gpu < GPU_DEVICES_MAX; gpu++) {
        if (used[gpu]) {
            gpus[count++] = gpu;
        }
    }
    return count;
}

uint64_t device_bytes(const struct exec_op *op)
{
    uint64_t most_bytes = 0;
    for (uint32_t i = 0; i < op->call.rank_count; i++) {
        uint64_t bytes = 0;
        for (uint32_t part = 0; part < op->call.terms.bucket_ops; part++) {
            const struct exec_rank *rank = &op->ranks[part * op->call.rank_count + i];
            bytes += rank->input_bytes > rank->output_bytes ? rank->input_bytes : rank->output_bytes;
        }
        most_bytes = bytes > most_bytes ? bytes : most_bytes;
    }
    return most_bytes;
}

enum status device_copies_init(struct device_copies *copies, const struct exec_op *op, struct error *error)
{
    *copies = (struct device_copies){0};
    copies->gpu_count = device_gpus(op, copies->gpus);
    copies->ranges = calloc(copies->gpu_count, sizeof *copies->ranges);
    return copies->ranges != NULL ? STATUS_OK : error_set(error, STATUS_NO_MEMORY, "no memory for copies");
}

void device_copies_release(struct device_copies *copies)
{
    free(copies->ranges);
    copies->ranges = NULL;
}

static enum status flush_one(struct exec_comm *comm, struct device_copies *copies, uint32_t index,
                             struct error *error)
{
    struct gpu_queue *queue = NULL;
    uint32_t count = copies->counts[index];
    enum status status = STATUS_OK;
    copies->counts[index] = 0;
    if (count > 0) {
        status = device_queue(comm, copies->gpus[index], &queue, error);
    }
    return count > 0 && status == STATUS_OK
               ? gpu_queue_copy_ranges(queue, copies->ranges[index], count, GPU_QUEUE_GPUS, error)
               : status;
}

enum status device_copies_add(struct exec_comm *comm, struct device_copies *copies, uint32_t gpu,
                              const struct host_copy_range *range, struct error *error)
{
    uint32_t index = 0;
    while (copies->gpus[index] != gpu) {
        index++;
    }
    copies->ranges[index][copies->counts[index]++] = *range;
    return copies->counts[index] == DEVICE_COPIES_MAX ? flush_one(comm, copies, index, error) : STATUS_OK;
}

enum status device_copies_flush(struct exec_comm *comm, struct device_copies *copies, struct error *error)
{
    enum status status = STATUS_OK;
    for (uint32_t index = 0; index < copies->gpu_count && status == STATUS_OK; index++) {
        status = flush_one(comm, copies, index, error);
    }
    return status;
}
