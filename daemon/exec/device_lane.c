#include <stdlib.h>
#include <string.h>

#include "daemon/exec/exec_internal.h"

/*
 * Slices of ranks on GPUs, between their buffers and pinned memory of the lane: the GPUs of the node take
 * turns, slice by slice, each over its own link to the host, and reach the buffers of the others as they
 * reach theirs. So every GPU carries its share of the vector to the network and back, already reduced over
 * all ranks of the node (the 2D decomposition), and each element is reduced in one kernel.
 */

#define LANE_RANGES_MAX 64

struct lane_device {
    struct dev_queue *queue; /* of the communicator; of this slice's GPU */
    uint64_t mark;
    void *memory; /* pinned: the lane's vectors of staged slices */
    uint64_t memory_bytes;
    enum status status; /* what was put failed: so */
    struct error error;
    /* Copies that wait to be put together: first all of the first, then all of the others. */
    struct dev_copy_range first[LANE_RANGES_MAX], then[LANE_RANGES_MAX];
    uint32_t first_count, then_count;
};

/* --- Which operations --- */

static bool kind_is_staged(enum op_kind kind)
{
    switch (kind) {
    case OP_KIND_ALL_REDUCE:
    case OP_KIND_REDUCE:
    case OP_KIND_BROADCAST:
    case OP_KIND_ALL_GATHER:
    case OP_KIND_REDUCE_SCATTER:
        return true;
    case OP_KIND_BARRIER: /* no buffers */
    case OP_KIND_GATHER:  /* not in slices, where layouts say the sizes */
    case OP_KIND_SCATTER:
    case OP_KIND_ALL_TO_ALL:
    case OP_KIND_SCAN:
    case OP_KIND_EXCLUSIVE_SCAN:
    case OP_KIND_SEND:
    case OP_KIND_RECEIVE:
        return false;
    }
    return false;
}

bool lane_device_serves(const struct exec_comm *comm, const struct exec_op *op)
{
    return comm->options.node_count > 1 && comm->exec->gpus != NULL && kind_is_staged(op->call.kind) &&
           op->call.compression == COMPRESSION_NONE && device_reach_each_other(comm, op);
}

/* --- Their life --- */

enum status lane_device_reserve(struct exec_lane *lane, uint64_t bytes, struct error *error)
{
    struct dev_gpus *gpus = lane->comm->exec->gpus;
    if (lane->device == NULL) {
        lane->device = calloc(1, sizeof *lane->device);
    }
    if (lane->device == NULL) {
        return error_set(error, STATUS_NO_MEMORY, "no memory for a slice");
    }
    if (bytes <= lane->device->memory_bytes) {
        return STATUS_OK;
    }
    dev_pinned_free(gpus, lane->device->memory);
    lane->device->memory = NULL;
    lane->device->memory_bytes = 0;
    enum status status = dev_pinned_alloc(gpus, bytes, &lane->device->memory, error);
    lane->device->memory_bytes = status == STATUS_OK ? bytes : 0;
    return status;
}

unsigned char *lane_device_memory(const struct exec_lane *lane)
{
    return lane->device->memory;
}

void lane_device_release(struct exec_lane *lane)
{
    if (lane->device != NULL) {
        dev_pinned_free(lane->comm->exec->gpus, lane->device->memory);
        free(lane->device);
    }
}

/* The GPUs that ranks of the operation are on take the slices in turn. */
static uint32_t gpu_of_slice(const struct exec_op *op, uint64_t slice)
{
    uint32_t gpus[DEV_GPUS_MAX];
    uint32_t count = device_gpus(op, gpus);
    return count == 0 ? 0 : gpus[slice % count];
}

enum status lane_device_begin(struct exec_lane *lane, const struct exec_op *op, struct error *error)
{
    lane->device->status = STATUS_OK;
    return device_queue(lane->comm, gpu_of_slice(op, lane->slice), &lane->device->queue, error);
}

/* --- Work --- */

static void put_ranges(struct lane_device *device, const struct dev_copy_range *ranges, uint32_t count)
{
    if (device->status != STATUS_OK || count == 0) {
        return;
    }
    device->status = count == 1 ? dev_queue_copy(device->queue, ranges[0].target, ranges[0].source,
                                                 ranges[0].bytes, &device->error)
                                : dev_queue_copy_ranges(device->queue, ranges, count, &device->error);
}

static void put_copies(struct lane_device *device)
{
    put_ranges(device, device->first, device->first_count);
    put_ranges(device, device->then, device->then_count);
    device->first_count = device->then_count = 0;
}

void lane_device_copy(const struct exec_lane *lane, void *const *targets, uint32_t target_count,
                      const void *source, uint64_t bytes)
{
    struct lane_device *device = lane->device;
    if (target_count == 0 || bytes == 0) {
        return;
    }
    if (device->first_count == LANE_RANGES_MAX) {
        put_copies(device);
    }
    device->first[device->first_count++] =
        (struct dev_copy_range){.source = source, .target = targets[0], .bytes = bytes};
    for (uint32_t i = 1; i < target_count; i++) { /* from the GPU's memory, not again from the host's */
        if (device->then_count == LANE_RANGES_MAX) {
            put_copies(device);
        }
        device->then[device->then_count++] =
            (struct dev_copy_range){.source = targets[0], .target = targets[i], .bytes = bytes};
    }
}

void lane_device_reduce(const struct exec_lane *lane, const struct dev_reduction *reduction)
{
    struct lane_device *device = lane->device;
    if (device->status == STATUS_OK) {
        device->status = dev_queue_reduce(device->queue, reduction, &device->error);
    }
}

enum status lane_device_end(struct exec_lane *lane, struct error *error)
{
    struct lane_device *device = lane->device;
    struct error why;
    put_copies(device);
    /* Also behind what failed half-way: its end is waited for. */
    enum status marked = dev_queue_mark(device->queue, &device->mark, &why);
    if (device->status != STATUS_OK || marked != STATUS_OK) {
        const struct error *cause = device->status != STATUS_OK ? &device->error : &why;
        device->mark = marked == STATUS_OK ? device->mark : 0;
        return error_set(error, cause->status, "\"%s\": %s", lane->comm->options.name, cause->text);
    }
    return STATUS_OK;
}

bool lane_device_reached(struct exec_lane *lane, uint64_t now_ns, enum status *status, struct error *error)
{
    struct lane_device *device = lane->device;
    *status = STATUS_OK;
    if (device == NULL || device->mark == 0) {
        return true;
    }
    if (!dev_queue_is_done(device->queue, device->mark, now_ns, status, error)) {
        return false;
    }
    device->mark = 0;
    return true;
}

bool lanes_are_off_devices(struct exec_comm *comm, uint64_t now_ns)
{
    bool off = true;
    for (uint32_t i = 0; i < EXEC_LANES_MAX; i++) {
        enum status status;
        off = lane_device_reached(&comm->lanes[i], now_ns, &status, NULL) && off;
    }
    comm->exec->waits_for_devices |= !off;
    return off;
}
