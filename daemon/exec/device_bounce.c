#include "daemon/exec/device_bounce.h"

#include <stdlib.h>

#include "daemon/base/budget.h"
#include "daemon/exec/exec_device.h"

#define BOUNCES_OF_RANK 3 /* input, output, residual */

/* A bounce buffer: pinned memory for a GPU buffer, or for two of one rank that overlap (in place). */
struct device_bounce {
    unsigned char *device;
    unsigned char *host;
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
    return in ? gpu_queue_copy(queue, bounce->host, bounce->device, bounce->bytes, error)
              : gpu_queue_copy(queue, bounce->device, bounce->host, bounce->bytes, error);
}

static enum status bounce_add(struct exec_comm *comm, struct device_bounces *bounces, uint32_t gpu, void *at,
                              uint64_t bytes, bool written, struct device_bounce **out, struct error *error)
{
    struct device_bounce *bounce = &bounces->list[bounces->count];
    uint64_t pinned_bytes = gpu_pinned_size(bytes);
    void *host = NULL;
    enum status status = budget_charge(comm->map->account, BUDGET_BOUNCES, pinned_bytes, error);
    if (status != STATUS_OK) {
        return status;
    }
    status = gpu_pinned_alloc(comm->exec->gpus, bytes, &host, error);
    if (status != STATUS_OK) {
        budget_release(comm->map->account, BUDGET_BOUNCES, pinned_bytes);
        return status;
    }
    *bounce =
        (struct device_bounce){.device = at, .host = host, .bytes = bytes, .gpu = gpu, .written = written};
    bounces->count++;
    *out = bounce;
    return bounce_copy(comm, bounces->marks, bounce, true, error);
}

static void *bounce_of(const struct device_bounce *bounce, const void *at)
{
    return bounce->host + ((const unsigned char *)at - bounce->device);
}

bool device_overlaps(const struct exec_rank *reader, const struct exec_rank *writer)
{
    const unsigned char *input = reader->input, *output = writer->output;
    return input != NULL && output != NULL && input < output + writer->output_bytes &&
           output < input + reader->input_bytes;
}

/* Makes a rank's bounce buffers and starts the copies in. Outputs are copied in as well, because not every
 * operation writes all of them. apart: a buffer that is input and output gets two bounce buffers. */
static enum status rank_bounces(struct exec_comm *comm, struct device_bounces *bounces,
                                struct exec_rank *rank, bool apart, struct error *error)
{
    struct device_bounce *bounce = NULL;
    unsigned char *input = (unsigned char *)(uintptr_t)rank->input, *output = rank->output;
    uint64_t in = input == NULL || rank->input_on_host ? 0 : rank->input_bytes;
    uint64_t out = output == NULL || rank->output_on_host ? 0 : rank->output_bytes;
    enum status status = STATUS_OK;
    if (in > 0 && out > 0 && device_overlaps(rank, rank) && !apart) {
        unsigned char *begin = input < output ? input : output;
        unsigned char *end = input + in > output + out ? input + in : output + out;
        status = bounce_add(comm, bounces, rank->gpu, begin, (uint64_t)(end - begin), true, &bounce, error);
        if (status == STATUS_OK) {
            rank->input = bounce_of(bounce, input);
            rank->output = bounce_of(bounce, output);
        }
        in = out = 0;
    }
    if (in > 0) {
        status = bounce_add(comm, bounces, rank->gpu, input, in, false, &bounce, error);
        rank->input = status == STATUS_OK ? bounce_of(bounce, input) : NULL;
    }
    if (out > 0 && status == STATUS_OK) {
        status = bounce_add(comm, bounces, rank->gpu, output, out, true, &bounce, error);
        rank->output = status == STATUS_OK ? bounce_of(bounce, output) : NULL;
    }
    if (rank->residual != NULL && !rank->residual_on_host && status == STATUS_OK) {
        void *residual = rank->residual;
        status = bounce_add(comm, bounces, rank->gpu, residual, rank->residual_bytes, true, &bounce, error);
        rank->residual = status == STATUS_OK ? bounce_of(bounce, residual) : NULL;
    }
    return status;
}

enum status device_bounces_in(struct exec_comm *comm, struct device_bounces *bounces, struct exec_op *op,
                              struct error *error)
{
    enum status status = STATUS_OK;
    for (uint32_t i = 0; i < bounces->rank_count && status == STATUS_OK; i++) {
        op->ranks[i].wait_count = 0;
        if (op->ranks[i].on_gpu) {
            /* In place, an all_to_all would overwrite blocks before they are sent. */
            bool apart = op->call.terms.kind == OP_KIND_ALL_TO_ALL;
            status = rank_bounces(comm, bounces, &op->ranks[i], apart, error);
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
        gpu_pinned_free(comm->exec->gpus, bounces->list[i].host);
        budget_release(comm->map->account, BUDGET_BOUNCES, gpu_pinned_size(bounces->list[i].bytes));
    }
    free(bounces->list);
}
