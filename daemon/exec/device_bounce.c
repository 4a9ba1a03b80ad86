#include "daemon/exec/device_bounce.h"

#include <stdlib.h>

#include "daemon/base/budget.h"
#include "daemon/exec/exec_device.h"

#define BOUNCES_OF_RANK 3 /* input, output, residual */

/* A bounce buffer: pinned memory for a GPU buffer, or for two of one rank that overlap (in place). */
struct device_bounce {
    unsigned char *device;
    struct gpu_pinned host;
    uint64_t bytes;
    uint32_t gpu;
    bool written; /* to be copied back */
};

static enum status bounce_copy(struct exec_comm *comm, uint64_t *marks, const struct device_bounce *bounce,
                               bool in, struct error *error)
{
    struct gpu_queue *queue = NULL;
    enum status status = device_queue(comm, bounce->gpu, &queue, error);
    if (status != STATUS_OK) {
        return status;
    }
    marks[bounce->gpu] = DEVICE_UNMARKED;
    return in ? gpu_queue_copy(queue, bounce->host.memory, bounce->device, bounce->bytes, error)
              : gpu_queue_copy(queue, bounce->device, bounce->host.memory, bounce->bytes, error);
}

bool device_overlaps(const struct exec_rank *reader, const struct exec_rank *writer)
{
    const unsigned char *input = reader->input, *output = writer->output;
    return input != NULL && output != NULL && input < output + writer->output_bytes &&
           output < input + reader->input_bytes;
}

/* --- The buffers of a rank --- */

struct rank_bounces {
    struct device_bounce list[BOUNCES_OF_RANK];
    uint32_t count;
};

static void list_add(struct rank_bounces *list, uint32_t gpu, void *at, uint64_t bytes, bool written)
{
    list->list[list->count++] =
        (struct device_bounce){.device = at, .bytes = bytes, .gpu = gpu, .written = written};
}

static uint64_t input_on_gpu(const struct exec_rank *rank)
{
    return rank->input == NULL || rank->input_on_host ? 0 : rank->input_bytes;
}

static uint64_t output_on_gpu(const struct exec_rank *rank)
{
    return rank->output == NULL || rank->output_on_host ? 0 : rank->output_bytes;
}

static bool share_bounce(const struct exec_rank *rank, bool apart)
{
    return input_on_gpu(rank) > 0 && output_on_gpu(rank) > 0 && device_overlaps(rank, rank) && !apart;
}

/* The bounce buffers that a rank needs: of input and output, and then of the residual. Outputs are copied in
 * as well, because not every operation writes all of them. apart: a buffer that is input and output gets two
 * bounce buffers. */
static struct rank_bounces list_bounces(const struct exec_rank *rank, bool apart)
{
    struct rank_bounces list = {.count = 0};
    unsigned char *input = (unsigned char *)(uintptr_t)rank->input, *output = rank->output;
    uint64_t in = input_on_gpu(rank), out = output_on_gpu(rank);
    if (share_bounce(rank, apart)) {
        unsigned char *begin = input < output ? input : output;
        unsigned char *end = input + in > output + out ? input + in : output + out;
        list_add(&list, rank->gpu, begin, (uint64_t)(end - begin), true);
    } else {
        if (in > 0) {
            list_add(&list, rank->gpu, input, in, false);
        }
        if (out > 0) {
            list_add(&list, rank->gpu, output, out, true);
        }
    }
    if (rank->residual != NULL && !rank->residual_on_host) {
        list_add(&list, rank->gpu, rank->residual, rank->residual_bytes, true);
    }
    return list;
}

static void *bounce_of(const struct device_bounce *bounce, const void *at)
{
    return (unsigned char *)bounce->host.memory + ((const unsigned char *)at - bounce->device);
}

/* Lets the rank's buffers point to its bounce buffers, which stand in the order of list_bounces. Returns how
 * many there are. */
static uint32_t point_to(struct exec_rank *rank, bool apart, const struct device_bounce *bounces)
{
    uint32_t used = 0;
    bool shared = share_bounce(rank, apart);
    bool in = input_on_gpu(rank) > 0, out = output_on_gpu(rank) > 0;
    if (in) {
        rank->input = bounce_of(&bounces[used], rank->input);
        used += shared ? 0 : 1;
    }
    if (out) {
        rank->output = bounce_of(&bounces[used++], rank->output);
    }
    if (rank->residual != NULL && !rank->residual_on_host) {
        rank->residual = bounce_of(&bounces[used++], rank->residual);
    }
    return used;
}

/* --- All buffers --- */

/* In place, an all_to_all would overwrite blocks before they are sent. */
static bool is_apart(const struct exec_op *op)
{
    return op->call.terms.kind == OP_KIND_ALL_TO_ALL;
}

static enum status bounce_begin(struct exec_comm *comm, struct device_bounces *bounces,
                                const struct device_bounce *wanted, struct error *error)
{
    struct device_bounce *bounce = &bounces->list[bounces->count];
    uint64_t pinned_bytes = gpu_pinned_size(wanted->bytes);
    enum status status = budget_charge(comm->map->account, BUDGET_BOUNCES, pinned_bytes, error);
    if (status != STATUS_OK) {
        return status;
    }
    *bounce = *wanted;
    status = gpu_pinned_begin(comm->exec->gpus, wanted->bytes, &bounce->host, error);
    if (status != STATUS_OK) {
        budget_release(comm->map->account, BUDGET_BOUNCES, pinned_bytes);
        return status;
    }
    bounces->count++;
    return STATUS_OK;
}

enum status device_bounces_begin(struct exec_comm *comm, struct device_bounces *bounces,
                                 const struct exec_op *op, struct error *error)
{
    enum status status = STATUS_OK;
    for (uint32_t i = 0; i < bounces->rank_count && status == STATUS_OK; i++) {
        struct rank_bounces list = {.count = 0};
        if (op->ranks[i].on_gpu) {
            list = list_bounces(&op->ranks[i], is_apart(op));
        }
        for (uint32_t b = 0; b < list.count && status == STATUS_OK; b++) {
            status = bounce_begin(comm, bounces, &list.list[b], error);
        }
    }
    return status;
}

enum status device_bounces_poll(struct exec_comm *comm, struct device_bounces *bounces, bool *ready,
                                struct error *error)
{
    enum status status = STATUS_OK;
    *ready = true;
    for (uint32_t i = 0; i < bounces->count && status == STATUS_OK; i++) {
        status = gpu_pinned_poll(comm->exec->gpus, &bounces->list[i].host, error);
        *ready = *ready && bounces->list[i].host.memory != NULL;
    }
    return status;
}

enum status device_bounces_in(struct exec_comm *comm, struct device_bounces *bounces, struct exec_op *op,
                              struct error *error)
{
    enum status status = STATUS_OK;
    uint32_t used = 0;
    for (uint32_t i = 0; i < bounces->count && status == STATUS_OK; i++) {
        status = bounce_copy(comm, bounces->marks, &bounces->list[i], true, error);
    }
    for (uint32_t i = 0; i < bounces->rank_count; i++) {
        op->ranks[i].wait_count = 0;
        if (op->ranks[i].on_gpu) {
            used += point_to(&op->ranks[i], is_apart(op), &bounces->list[used]);
            op->ranks[i].on_gpu = false; /* from now on, also for other threads */
        }
    }
    return status;
}

enum status device_bounces_out(struct exec_comm *comm, struct device_bounces *bounces, struct error *error)
{
    enum status status = STATUS_OK;
    for (uint32_t i = 0; i < bounces->count && status == STATUS_OK; i++) {
        if (bounces->list[i].written) {
            status = bounce_copy(comm, bounces->marks, &bounces->list[i], false, error);
        }
    }
    return status;
}

bool device_bounces_init(struct device_bounces *bounces, uint32_t rank_count, uint64_t *marks)
{
    *bounces = (struct device_bounces){.rank_count = rank_count, .marks = marks};
    bounces->list = calloc((size_t)rank_count * BOUNCES_OF_RANK, sizeof *bounces->list);
    return bounces->list != NULL;
}

void device_bounces_release(struct exec_comm *comm, struct device_bounces *bounces)
{
    for (uint32_t i = 0; i < bounces->count; i++) {
        gpu_pinned_drop(comm->exec->gpus, &bounces->list[i].host);
        budget_release(comm->map->account, BUDGET_BOUNCES, gpu_pinned_size(bounces->list[i].bytes));
    }
    free(bounces->list);
}
