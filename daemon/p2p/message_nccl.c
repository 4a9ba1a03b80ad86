#include "daemon/p2p/message_nccl.h"

#include <stdlib.h>

#include "daemon/base/time.h"

#define ENDS 2u
#define LOOK_NS TIME_MS /* between looks whether NCCL has failed: its kernels then never end */

struct message_nccl {
    struct gpu_group *group;
    struct gpu_group_job job;
    struct message_nccl_end ends[ENDS];
    uint64_t marks[ENDS]; /* 0: reached, or none */
    enum { NCCL_BEGINS, NCCL_CALLS, NCCL_RUNS, NCCL_OVER } state;
    uint64_t now_ns;      /* of the last call */
    uint64_t looked_ns;   /* when the group was last asked whether it has failed */
    uint64_t given_up_ns; /* 0: not */
};

enum status message_nccl_new(struct gpu_group *group, const struct message_nccl_end *source,
                             const struct message_nccl_end *sink, uint64_t size_bytes, uint64_t now_ns,
                             struct message_nccl **out, struct error *error)
{
    struct message_nccl *nccl = calloc(1, sizeof *nccl);
    enum status status = nccl != NULL
                             ? gpu_transfers_init(&nccl->job.transfers, gpu_group_size(group), 1, error)
                             : error_set(error, STATUS_NO_MEMORY, "no memory for a message");
    if (status != STATUS_OK) {
        free(nccl);
        gpu_group_release(group, now_ns);
        return status;
    }
    nccl->group = group;
    nccl->ends[0] = *source;
    nccl->ends[1] = *sink;
    nccl->now_ns = now_ns;
    struct gpu_transfer *send =
        gpu_transfers_add(&nccl->job.transfers, GPU_TRANSFER_SEND, source->index, size_bytes);
    send->to = sink->index;
    send->inputs[source->index] = source->buffer;
    send->outputs[sink->index] = sink->buffer;
    gpu_group_watch(group, true);
    gpu_group_works(group, true);
    *out = nccl;
    return STATUS_OK;
}

void message_nccl_free(struct message_nccl *nccl)
{
    if (nccl != NULL) {
        gpu_group_works(nccl->group, false);
        gpu_group_watch(nccl->group, false);
        gpu_group_release(nccl->group, nccl->now_ns);
        gpu_transfers_release(&nccl->job.transfers);
        free(nccl);
    }
}

static void post(struct message_nccl *nccl)
{
    struct gpu_queue *queues[GPU_DEVICES_MAX] = {NULL};
    for (uint32_t i = 0; i < ENDS; i++) {
        queues[nccl->ends[i].index] = nccl->ends[i].queue;
    }
    gpu_group_post(nccl->group, &nccl->job, queues);
    nccl->state = NCCL_CALLS;
}

/* Also marks work that failed half-way, so that its end can be waited for. */
static enum status put_marks(struct message_nccl *nccl, struct error *error)
{
    enum status status = STATUS_OK;
    for (uint32_t i = 0; i < ENDS; i++) {
        struct error why;
        if (gpu_queue_mark(nccl->ends[i].queue, &nccl->marks[i], &why) != STATUS_OK) {
            nccl->marks[i] = 0;
            status = error_set(error, why.status, "%s", why.text);
        }
    }
    nccl->state = NCCL_RUNS;
    return status;
}

/* Looks whether NCCL's thread is done with the job. */
static enum status look_at_call(struct message_nccl *nccl, struct error *error)
{
    struct error why;
    enum gpu_group_state state = gpu_group_ask(nccl->group, &nccl->job, error);
    if (state == GPU_GROUP_CALLS || state == GPU_GROUP_FORMS) {
        return STATUS_OK;
    }
    if (state == GPU_GROUP_READY) {
        return put_marks(nccl, error);
    }
    (void)put_marks(nccl, &why);
    gpu_group_give_up(nccl->group, error, nccl->now_ns);
    return error->status;
}

/* Looks whether the marks are reached. A GPU that failed accesses no memory any more. */
static enum status look_at_marks(struct message_nccl *nccl, struct error *error)
{
    enum status status = STATUS_OK;
    bool reached = true;
    for (uint32_t i = 0; i < ENDS; i++) {
        enum status at = STATUS_OK;
        struct error why;
        if (nccl->marks[i] == 0) {
            continue;
        }
        if (!gpu_queue_is_done(nccl->ends[i].queue, nccl->marks[i], nccl->now_ns, &at, &why)) {
            reached = false;
            continue;
        }
        nccl->marks[i] = 0;
        status = at != STATUS_OK ? error_set(error, at, "%s", why.text) : status;
    }
    nccl->state = reached ? NCCL_OVER : NCCL_RUNS;
    if (!reached && nccl->now_ns - nccl->looked_ns > LOOK_NS) {
        nccl->looked_ns = nccl->now_ns;
        if (gpu_group_has_failed(nccl->group, error)) {
            gpu_group_give_up(nccl->group, error, nccl->now_ns);
            status = error->status;
        }
    }
    return status;
}

enum status message_nccl_step(struct message_nccl *nccl, uint64_t now_ns, bool *done, struct error *error)
{
    enum status status = STATUS_OK;
    nccl->now_ns = now_ns;
    if (nccl->state == NCCL_BEGINS) {
        post(nccl);
    }
    if (nccl->state == NCCL_CALLS) {
        status = look_at_call(nccl, error);
    }
    if (nccl->state == NCCL_RUNS && status == STATUS_OK) {
        status = look_at_marks(nccl, error);
    }
    *done = nccl->state == NCCL_OVER && status == STATUS_OK;
    return status;
}

bool message_nccl_is_idle(struct message_nccl *nccl, uint64_t now_ns)
{
    struct error why;
    nccl->now_ns = now_ns;
    nccl->given_up_ns = nccl->given_up_ns == 0 ? now_ns : nccl->given_up_ns;
    if (nccl->state == NCCL_CALLS) {
        (void)look_at_call(nccl, &why);
    }
    if (nccl->state == NCCL_RUNS) {
        (void)look_at_marks(nccl, &why);
    }
    bool idle = nccl->state == NCCL_BEGINS || nccl->state == NCCL_OVER;
    if (!idle && now_ns - nccl->given_up_ns >= MESSAGE_NCCL_PATIENCE_NS) {
        (void)error_set(&why, STATUS_DEVICE, "NCCL among %u GPUs: a message does not end",
                        gpu_group_size(nccl->group));
        gpu_group_give_up(nccl->group, &why, now_ns);
    }
    return idle;
}
