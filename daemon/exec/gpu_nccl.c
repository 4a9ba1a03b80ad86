#include <assert.h>
#include <stdlib.h>

#include <utlist.h>

#include "daemon/exec/exec_internal.h"
#include "daemon/gpu/nccl.h"

/*
 * all_reduce and reduce_scatter among ranks on GPUs of one node that do not reach each other's memory. On
 * each GPU one kernel combines its ranks, then NCCL runs among the GPUs, then a kernel distributes to the
 * ranks of each GPU. Groups of GPUs are made once and shared, because an NCCL communicator takes hundreds of
 * MB of each GPU.
 */

struct exec_group {
    struct exec_group *next;
    uint32_t gpus[GPU_DEVICES_MAX];
    uint32_t count;
    struct gpu_group *group;
    const struct exec_op *user; /* the operation whose calls are under way; null: none */
};

#define EXEC_GROUPS_MAX 16 /* then unused ones are freed */

/* Buffers of each GPU of the group in an operation. */
struct group_buffers {
    struct gpu_queue *queues[GPU_DEVICES_MAX];
    const void *inputs[GPU_DEVICES_MAX];
    void *outputs[GPU_DEVICES_MAX];
    uint32_t ranks[GPU_DEVICES_MAX]; /* how many ranks share it */
};

bool gpu_nccl_serves(const struct exec_comm *comm, const struct exec_op *op)
{
    uint32_t gpus[GPU_DEVICES_MAX];
    bool used[GPU_DEVICES_MAX] = {0};
    if (comm->exec->gpu_engine == EXEC_GPU_KERNELS || comm->options.node_count != 1 ||
        op->call.terms.compression != COMPRESSION_NONE || op->call.terms.bucket_ops != 1 ||
        !device_buffers_serve(op, used) || !gpu_group_reduces(op->call.terms.dtype, op->call.terms.reduce) ||
        !gpu_group_is_there()) {
        return false;
    }
    uint32_t count = device_gpus(op, gpus);
    if (op->call.terms.kind == OP_KIND_REDUCE_SCATTER) { /* NCCL's blocks: equal, one rank per GPU */
        return count > 1 && count == op->call.rank_count && !op->call.terms.has_layouts &&
               op->call.terms.reduce != REDUCE_AVG && op->call.terms.reduce != REDUCE_PREMUL_SUM;
    }
    return count > 1 && op->call.terms.kind == OP_KIND_ALL_REDUCE && op->call.terms.count_elements > 0;
}

/* --- Groups --- */

static void group_drop(struct exec *exec, struct exec_group *group)
{
    LL_DELETE(exec->groups, group);
    gpu_group_free(group->group);
    free(group);
}

void exec_free_groups(struct exec *exec)
{
    while (exec->groups != NULL) {
        group_drop(exec, exec->groups);
    }
}

static void group_make_room(struct exec *exec)
{
    uint32_t count = 0;
    struct exec_group *group, *next;
    LL_FOREACH_SAFE(exec->groups, group, next)
    {
        if (++count >= EXEC_GROUPS_MAX && group->user == NULL) {
            group_drop(exec, group);
        }
    }
}

/* Null if there is none. */
static struct exec_group *group_of(const struct exec *exec, const uint32_t *gpus, uint32_t count)
{
    struct exec_group *group;
    LL_FOREACH(exec->groups, group)
    {
        bool same = group->count == count;
        for (uint32_t i = 0; i < count && same; i++) {
            same = group->gpus[i] == gpus[i];
        }
        if (same) {
            return group;
        }
    }
    return NULL;
}

static enum status group_find(struct exec *exec, const uint32_t *gpus, uint32_t count,
                              struct exec_group **out, struct error *error)
{
    struct exec_group *group = group_of(exec, gpus, count);
    if (group != NULL) {
        *out = group;
        return STATUS_OK;
    }
    group_make_room(exec);
    group = calloc(1, sizeof *group);
    if (group == NULL) {
        return error_set(error, STATUS_NO_MEMORY, "no memory for a group of GPUs");
    }
    for (uint32_t i = 0; i < count; i++) {
        group->gpus[i] = gpus[i];
    }
    group->count = count;
    enum status status = gpu_group_new(exec->gpus, gpus, count, &group->group, error);
    if (status != STATUS_OK) {
        free(group);
        return status;
    }
    LL_PREPEND(exec->groups, group);
    *out = group;
    return STATUS_OK;
}

bool gpu_nccl_let_go(struct exec *exec, const struct exec_op *op, bool patient)
{
    struct exec_group *group, *next;
    LL_FOREACH_SAFE(exec->groups, group, next)
    {
        if (group->user != op) {
            continue;
        }
        if (gpu_group_poll(group->group, NULL) != GPU_GROUP_BUSY) {
            group->user = NULL;
        } else if (patient) {
            return false;
        } else {
            group_drop(exec, group);
        }
    }
    return true;
}

void gpu_nccl_abort(struct exec *exec, const struct exec_op *op)
{
    uint32_t gpus[GPU_DEVICES_MAX];
    uint32_t count = device_gpus(op, gpus);
    struct exec_group *group = group_of(exec, gpus, count);
    /* If another operation's calls are under way, they are stuck too, and that operation gives up itself. */
    if (group != NULL && group->user == NULL) {
        group_drop(exec, group);
    }
}

/* --- Kernels before and after NCCL --- */

/* Lists inputs, outputs and factors of the ranks on the GPU. Returns how many. */
static uint32_t ranks_of(const struct exec_op *op, uint32_t gpu, const void **inputs, void **outputs,
                         double *factors)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < op->call.rank_count; i++) {
        if (op->ranks[i].gpu == gpu) {
            inputs[count] = op->ranks[i].input;
            outputs[count] = op->ranks[i].output;
            factors[count] = op->ranks[i].factor;
            count++;
        }
    }
    return count;
}

/* Reduces the inputs of the GPU's ranks to the first rank's output. A single rank contributes its input
 * directly. */
static enum status contribute(const struct exec_op *op, uint32_t gpu, uint32_t index,
                              struct group_buffers *buffers, struct error *error)
{
    const void *inputs[HOST_REDUCE_BUFFERS_MAX];
    void *outputs[HOST_REDUCE_BUFFERS_MAX];
    double factors[HOST_REDUCE_BUFFERS_MAX];
    uint32_t count = ranks_of(op, gpu, inputs, outputs, factors);
    assert(count > 0); /* the group consists of the ranks' GPUs */
    bool scales = op->call.terms.reduce == REDUCE_PREMUL_SUM;
    buffers->ranks[index] = count;
    buffers->outputs[index] = outputs[0];
    buffers->inputs[index] = count == 1 && !scales ? inputs[0] : outputs[0];
    if (count == 1 && !scales) {
        return STATUS_OK;
    }
    struct host_reduction reduction = {.dtype = op->call.terms.dtype,
                                       .reduce = op->call.terms.reduce,
                                       .count_elements = op->call.terms.count_elements,
                                       .input_count = count,
                                       .output_count = 1,
                                       .inputs = inputs,
                                       .outputs = outputs,
                                       .factors = scales ? factors : NULL};
    return gpu_queue_reduce(buffers->queues[index], &reduction, GPU_QUEUE_GPUS, error);
}

/* Copies the first rank's output to the other ranks, divided if the operation asks for it. */
static enum status distribute(const struct exec_op *op, uint32_t gpu, uint32_t index,
                              const struct group_buffers *buffers, struct error *error)
{
    const void *inputs[HOST_REDUCE_BUFFERS_MAX];
    void *outputs[HOST_REDUCE_BUFFERS_MAX];
    double factors[HOST_REDUCE_BUFFERS_MAX];
    uint32_t count = ranks_of(op, gpu, inputs, outputs, factors);
    assert(count > 0);
    const void *value = outputs[0];
    if (count == 1 && op->divisor <= 1) {
        return STATUS_OK;
    }
    struct host_reduction reduction = {.dtype = op->call.terms.dtype,
                                       .reduce = op->call.terms.reduce,
                                       .count_elements = op->call.terms.count_elements,
                                       .input_count = 1,
                                       .output_count = count,
                                       .inputs = &value,
                                       .outputs = outputs,
                                       .divisor = op->divisor};
    return gpu_queue_reduce(buffers->queues[index], &reduction, GPU_QUEUE_GPUS, error);
}

/* --- Steps --- */

static enum status group_queues(struct exec_comm *comm, const uint32_t *gpus, uint32_t count,
                                struct group_buffers *buffers, struct error *error)
{
    enum status status = STATUS_OK;
    for (uint32_t i = 0; i < count && status == STATUS_OK; i++) {
        status = device_queue(comm, gpus[i], &buffers->queues[i], error);
    }
    return status;
}

static enum status group_begin(struct exec_comm *comm, const struct exec_op *op, struct exec_group *group,
                               struct error *error)
{
    struct group_buffers buffers;
    enum status status = group_queues(comm, group->gpus, group->count, &buffers, error);
    if (op->call.terms.kind == OP_KIND_REDUCE_SCATTER && status == STATUS_OK) {
        for (uint32_t i = 0; i < group->count; i++) {
            buffers.inputs[i] = op->ranks[i].input;
            buffers.outputs[i] = op->ranks[i].output;
        }
        return gpu_group_reduce_scatter(group->group, buffers.queues, buffers.inputs, buffers.outputs,
                                        op->call.terms.count_elements, op->call.terms.dtype,
                                        op->call.terms.reduce, error);
    }
    for (uint32_t i = 0; i < group->count && status == STATUS_OK; i++) {
        status = contribute(op, group->gpus[i], i, &buffers, error);
    }
    return status == STATUS_OK ? gpu_group_all_reduce(group->group, buffers.queues, buffers.inputs,
                                                      buffers.outputs, op->call.terms.count_elements,
                                                      op->call.terms.dtype, op->call.terms.reduce, error)
                               : status;
}

static enum status group_end(struct exec_comm *comm, const struct exec_op *op, struct exec_group *group,
                             struct error *error)
{
    struct group_buffers buffers;
    enum status status = group_queues(comm, group->gpus, group->count, &buffers, error);
    for (uint32_t i = 0; i < group->count && status == STATUS_OK && op->call.terms.kind == OP_KIND_ALL_REDUCE;
         i++) {
        status = distribute(op, group->gpus[i], i, &buffers, error);
    }
    return status;
}

enum device_step gpu_nccl_step(struct exec_comm *comm, struct exec_op *op, bool *begun, struct error *error)
{
    uint32_t gpus[GPU_DEVICES_MAX];
    uint32_t count = device_gpus(op, gpus);
    struct exec_group *group = NULL;
    if (group_find(comm->exec, gpus, count, &group, error) != STATUS_OK) {
        return DEVICE_STEP_FAILED;
    }
    if (group->user != NULL && group->user != op) {
        return DEVICE_STEP_WAITS; /* another communicator's call is under way */
    }
    switch (gpu_group_poll(group->group, error)) {
    case GPU_GROUP_BUSY:
        return DEVICE_STEP_WAITS;
    case GPU_GROUP_FAILED:
        group_drop(comm->exec, group);
        return DEVICE_STEP_FAILED;
    case GPU_GROUP_READY:
        break;
    }
    if (!*begun) {
        *begun = true;
        group->user = op;
        if (group_begin(comm, op, group, error) != STATUS_OK) {
            group_drop(comm->exec, group); /* some calls may be under way; other operations get a new group */
            return DEVICE_STEP_FAILED;
        }
        return DEVICE_STEP_WAITS;
    }
    group->user = NULL;
    return group_end(comm, op, group, error) == STATUS_OK ? DEVICE_STEP_GO : DEVICE_STEP_FAILED;
}
