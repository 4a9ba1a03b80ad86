#include "daemon/exec/exec_device.h"
#include "daemon/exec/gpu_slices_internal.h"

/* The end of a step of a slice by NCCL: what was put behind the transfers, and when all is done. */

#define SLICE_LOOK_NS TIME_MS /* between looks whether NCCL has failed: its kernels then never end */

void gpu_slice_give_slot(struct gpu_slice *slice)
{
    if (slice->slot != UINT32_MAX) {
        gpu_group_give_slot(slice->group, slice->slot);
        slice->slot = UINT32_MAX;
    }
}

void gpu_slice_drop(struct gpu_slice *slice)
{
    slice->copy_count = 0;
    gpu_transfers_clear(&slice->job.transfers);
}

/* Puts the copies behind the transfers, and marks all queues. */
static enum status finish(struct gpu_slice *slice, struct error *error)
{
    enum status status = STATUS_OK;
    for (uint32_t i = 0; i < slice->copy_count && status == STATUS_OK; i++) {
        const struct slice_copy *copy = &slice->copies[i];
        status = gpu_queue_copy(slice->queues[copy->index], copy->range.target, copy->range.source,
                                copy->range.bytes, error);
    }
    slice->copy_count = 0;
    gpu_transfers_clear(&slice->job.transfers);
    for (uint32_t g = 0; g < slice->gpu_count; g++) {
        struct error why;
        if (!slice->used[g]) {
            continue;
        }
        slice->used[g] = false;
        /* Also marks work that failed half-way, so that its end can be waited for. */
        if (gpu_queue_mark(slice->queues[g], &slice->marks[g], &why) != STATUS_OK) {
            slice->marks[g] = 0;
            status = status == STATUS_OK ? error_set(error, why.status, "%s", why.text) : status;
        }
    }
    return status;
}

enum status gpu_slice_end(struct gpu_slice *slice, const struct exec_lane *lane, struct error *error)
{
    enum status status = STATUS_OK;
    if (slice->job.transfers.count == 0) {
        return finish(slice, error);
    }
    for (uint32_t g = 0; g < slice->gpu_count && status == STATUS_OK; g++) {
        status = device_queue(lane->comm, slice->gpus[g], &slice->queues[g], error);
        slice->used[g] = true;
    }
    if (status != STATUS_OK) {
        return status;
    }
    gpu_group_works(slice->group, true);
    gpu_group_post(slice->group, &slice->job, slice->queues);
    slice->is_posted = slice->by_nccl = true;
    return STATUS_OK;
}

/* Returns whether NCCL's thread is done with the job. */
static bool job_is_over(struct gpu_slice *slice, enum status *status, struct error *error)
{
    struct error why;
    switch (gpu_group_ask(slice->group, &slice->job, &why)) {
    case GPU_GROUP_READY:
        break;
    case GPU_GROUP_FAILED:
    case GPU_GROUP_REFUSED:
        gpu_slice_drop(slice); /* what its copies would copy is not there */
        *status = error_set(error, why.status, "%s", why.text);
        break;
    case GPU_GROUP_FORMS:
    case GPU_GROUP_CALLS:
        return false;
    }
    slice->is_posted = false;
    struct error late;
    if (finish(slice, &late) != STATUS_OK && *status == STATUS_OK) {
        *status = error_set(error, late.status, "%s", late.text);
    }
    return true;
}

bool gpu_slice_is_done(struct gpu_slice *slice, const struct exec_lane *lane, uint64_t now_ns,
                       enum status *status, struct error *error)
{
    bool done = true;
    (void)lane;
    *status = STATUS_OK;
    if (slice->is_posted && !job_is_over(slice, status, error)) {
        return false;
    }
    for (uint32_t g = 0; g < slice->gpu_count; g++) {
        enum status at = STATUS_OK;
        struct error why;
        if (slice->marks[g] == 0) {
            continue;
        }
        if (!gpu_queue_is_done(slice->queues[g], slice->marks[g], now_ns, &at, &why)) {
            done = false;
            continue;
        }
        slice->marks[g] = 0;
        if (at != STATUS_OK && *status == STATUS_OK) {
            *status = error_set(error, at, "%s", why.text);
        }
    }
    if (!done && slice->by_nccl && now_ns - slice->looked_ns > SLICE_LOOK_NS) {
        struct error why;
        slice->looked_ns = now_ns;
        if (gpu_group_has_failed(slice->group, &why) && *status == STATUS_OK) {
            *status = error_set(error, why.status, "%s", why.text);
        }
    }
    if (done && slice->by_nccl) {
        gpu_group_works(slice->group, false);
        slice->by_nccl = false;
    }
    if (done) {
        gpu_slice_give_slot(slice); /* the data are on the host */
    }
    return done;
}
