#include <stdlib.h>

#include "daemon/exec/exec_device.h"
#include "daemon/exec/gpu_slices.h"
#include "daemon/host/reduce.h"

/*
 * Moves slices between the ranks' buffers, some of which are on GPUs, and pinned memory of the lane.
 *
 * The node's buffers form cliques: host buffers are one, and so is each set of GPUs that reach each other's
 * memory. For each slice, one GPU of a clique works on all buffers of the clique, over its own link to the
 * host; the GPUs take turns. So every GPU moves its share of the vector to the network and back, already
 * reduced over the ranks of its clique (the 2D decomposition). The host combines the contributions of the
 * cliques to a sum, in their order. GPUs that do not reach each other would need the host's memory for that,
 * too.
 */

#define LANE_RANGES_MAX 64

struct lane_clique {
    struct gpu_queue *queue; /* the communicator's; null: nothing was queued for this slice */
    uint64_t mark;
    /* Copies that are collected before they are queued: all of `first`, then all of `then`. */
    struct host_copy_range first[LANE_RANGES_MAX], then[LANE_RANGES_MAX];
    uint32_t first_count, then_count;
};

struct lane_device {
    struct gpu_slice *slice;          /* null: none was carried out by NCCL */
    bool by_nccl;                     /* the present one is */
    struct lane_clique *cliques;      /* by number */
    uint32_t turns[EXEC_CLIQUES_MAX]; /* by clique: the GPU that works on this slice */
    uint32_t vector_gpu;              /* with vector_ranks: the GPU that has the slice's vector */
    struct gpu_pinned pinned;         /* for the slice's plan */
    uint64_t pinned_bytes;            /* its size; 0: none */
    enum status status;               /* the first failure of queued work */
    struct error error;
};

/* --- Cliques --- */

/* Whether the GPU and each lower GPU of the clique reach each other. */
static bool clique_fits(const struct exec *exec, uint32_t clique, uint32_t gpu)
{
    for (uint32_t other = 0; other < gpu; other++) {
        if (exec->cliques[other] == clique &&
            (!gpu_devices_reaches(exec->gpus, gpu, other) || !gpu_devices_reaches(exec->gpus, other, gpu))) {
            return false;
        }
    }
    return true;
}

void exec_find_cliques(struct exec *exec)
{
    uint32_t gpu_count = gpu_devices_count(exec->gpus);
    exec->clique_count = EXEC_CLIQUE_HOST + 1;
    for (uint32_t gpu = 0; gpu < gpu_count; gpu++) {
        uint32_t clique = EXEC_CLIQUE_HOST + 1;
        while (clique < exec->clique_count && !clique_fits(exec, clique, gpu)) {
            clique++;
        }
        exec->cliques[gpu] = clique;
        exec->clique_count += clique == exec->clique_count ? 1 : 0;
    }
}

uint32_t lane_device_domain(const struct exec *exec, const struct exec_op *op, const struct exec_rank *rank,
                            bool on_host)
{
    return on_host || !rank->on_gpu ? EXEC_CLIQUE_HOST
           : op->call.group != NULL ? EXEC_CLIQUE_HOST + 1 /* NCCL connects all GPUs */
                                    : exec->cliques[rank->gpu];
}

/* --- Which operations --- */

bool lane_device_serves(const struct exec_comm *comm, const struct exec_op *op)
{
    const struct exec *exec = comm->exec;
    if (exec->gpus == NULL || exec->clique_count > COLL_STAGE_DOMAINS_MAX ||
        op->call.terms.kind == OP_KIND_BARRIER || op->call.rank_count > GPU_QUEUE_BUFFERS_MAX ||
        !device_buffers_are_apart(op)) {
        return false;
    }
    for (uint32_t i = 0; i < op->call.terms.bucket_ops * op->call.rank_count; i++) {
        if (op->ranks[i].on_gpu) {
            return true;
        }
    }
    return false;
}

/* --- Creation, memory, and release --- */

static enum status lane_device_new(struct exec_lane *lane, struct error *error)
{
    if (lane->device == NULL) {
        struct lane_device *device = calloc(1, sizeof *device);
        struct lane_clique *cliques = calloc(lane->comm->exec->clique_count, sizeof *cliques);
        if (device == NULL || cliques == NULL) {
            free(device);
            free(cliques);
            return error_set(error, STATUS_NO_MEMORY, "no memory for a slice");
        }
        device->cliques = cliques;
        lane->device = device;
    }
    return STATUS_OK;
}

void lane_device_return_memory(struct exec_lane *lane)
{
    struct lane_device *device = lane->device;
    if (device != NULL && device->pinned_bytes > 0) {
        gpu_pinned_drop(lane->comm->exec->gpus, &device->pinned);
        budget_release(lane->comm->map->account, BUDGET_LANES, device->pinned_bytes);
        device->pinned_bytes = 0;
    }
}

void lane_device_release(struct exec_lane *lane)
{
    if (lane->device != NULL) {
        lane_device_return_memory(lane);
        gpu_slice_free(lane->device->slice);
        free(lane->device->cliques);
        free(lane->device);
        lane->device = NULL;
    }
}

/* In each clique, the GPUs that ranks of the operation are on take turns, slice by slice. */
static void take_turns(const struct exec_lane *lane, const struct exec_op *op)
{
    const uint32_t *cliques = lane->comm->exec->cliques;
    uint32_t gpus[GPU_DEVICES_MAX];
    if (op->stage.vector_ranks > 0) { /* the GPU that has the slice's vector */
        uint32_t gpu = op->ranks[lane->slice % op->stage.vector_ranks].gpu;
        lane->device->turns[cliques[gpu]] = lane->device->vector_gpu = gpu;
        return;
    }
    uint32_t gpu_count = device_gpus(op, gpus);
    uint32_t counts[EXEC_CLIQUES_MAX] = {0}, passed[EXEC_CLIQUES_MAX] = {0};
    for (uint32_t g = 0; g < gpu_count; g++) {
        counts[cliques[gpus[g]]]++;
    }
    for (uint32_t g = 0; g < gpu_count; g++) {
        uint32_t clique = cliques[gpus[g]];
        if (passed[clique]++ == lane->slice % counts[clique]) {
            lane->device->turns[clique] = gpus[g];
        }
    }
}

/* Makes the state for a slice by NCCL, unless the lane has it. */
static enum status lane_slice_new(struct exec_lane *lane, const struct exec_op *op, struct error *error)
{
    struct lane_device *device = lane->device;
    if (gpu_slice_fits(device->slice, op)) {
        return STATUS_OK;
    }
    gpu_slice_free(device->slice);
    device->slice = NULL;
    return gpu_slice_new(op, &device->slice, error);
}

bool lane_device_may_begin(struct exec_lane *lane, const struct exec_op *op)
{
    struct error error;
    bool fails = op->call.group == NULL || lane_device_new(lane, &error) != STATUS_OK ||
                 lane_slice_new(lane, op, &error) != STATUS_OK; /* lane_device_begin says so, too */
    return fails || gpu_slice_take_room(lane->device->slice, op);
}

enum status lane_device_begin(struct exec_lane *lane, const struct exec_op *op, struct error *error)
{
    const struct exec *exec = lane->comm->exec;
    enum status status = lane_device_new(lane, error);
    if (status != STATUS_OK) {
        return status;
    }
    struct lane_device *device = lane->device;
    device->status = STATUS_OK;
    device->by_nccl = op->call.group != NULL;
    for (uint32_t c = 0; c < exec->clique_count; c++) {
        device->cliques[c].queue = NULL;
    }
    take_turns(lane, op);
    return device->by_nccl ? lane_slice_new(lane, op, error) : STATUS_OK;
}

enum status lane_device_reserve(struct exec_lane *lane, uint64_t bytes, struct error *error)
{
    const struct exec_comm *comm = lane->comm;
    struct lane_device *device = lane->device;
    struct error why;
    if (bytes <= device->pinned_bytes) {
        return STATUS_OK; /* or it is being pinned */
    }
    lane_device_return_memory(lane);
    uint64_t size_bytes = gpu_pinned_size(bytes);
    if (budget_charge(comm->map->account, BUDGET_LANES, size_bytes, &why) != STATUS_OK) {
        return error_set(error, why.status, "\"%s\": %s", comm->map->name, why.text);
    }
    enum status status = gpu_pinned_begin(comm->exec->gpus, bytes, &device->pinned, error);
    if (status != STATUS_OK) {
        budget_release(comm->map->account, BUDGET_LANES, size_bytes);
        return status;
    }
    device->pinned_bytes = size_bytes;
    return STATUS_OK;
}

enum status lane_device_poll_memory(struct exec_lane *lane, bool *ready, struct error *error)
{
    struct lane_device *device = lane->device;
    *ready = device->pinned_bytes == 0 || device->pinned.memory != NULL;
    if (*ready) {
        return STATUS_OK;
    }
    enum status status = gpu_pinned_poll(lane->comm->exec->gpus, &device->pinned, error);
    if (status != STATUS_OK) {
        budget_release(lane->comm->map->account, BUDGET_LANES, device->pinned_bytes);
        device->pinned_bytes = 0;
    }
    *ready = device->pinned.memory != NULL;
    return status;
}

unsigned char *lane_device_memory(const struct exec_lane *lane)
{
    return lane->device->pinned.memory;
}

/* --- Work --- */

static void keep_failure(struct lane_device *device, enum status status, const struct error *error)
{
    if (device->status == STATUS_OK && status != STATUS_OK) {
        device->status = status;
        device->error = *error;
    }
}

/* Null if it failed; the failure is kept. */
static struct gpu_queue *clique_queue(const struct exec_lane *lane, uint32_t clique)
{
    struct lane_device *device = lane->device;
    struct lane_clique *at = &device->cliques[clique];
    if (at->queue == NULL && device->status == STATUS_OK) {
        struct error error;
        enum status status = device_queue(lane->comm, device->turns[clique], &at->queue, &error);
        keep_failure(device, status, &error);
        at->first_count = at->then_count = 0;
    }
    return device->status == STATUS_OK ? at->queue : NULL;
}

static void put_ranges(struct lane_device *device, struct gpu_queue *queue,
                       const struct host_copy_range *ranges, uint32_t count, enum gpu_queue_path path)
{
    struct error error;
    if (device->status == STATUS_OK && count > 0) {
        enum status status =
            count == 1 ? gpu_queue_copy(queue, ranges[0].target, ranges[0].source, ranges[0].bytes, &error)
                       : gpu_queue_copy_ranges(queue, ranges, count, path, &error);
        keep_failure(device, status, &error);
    }
}

static void put_copies(struct lane_device *device, struct lane_clique *clique)
{
    put_ranges(device, clique->queue, clique->first, clique->first_count, GPU_QUEUE_LINK);
    put_ranges(device, clique->queue, clique->then, clique->then_count, GPU_QUEUE_GPUS);
    clique->first_count = clique->then_count = 0;
}

/* Whether kernels work on GPUs alone, because the slice's vector is there, too. */
static enum gpu_queue_path path_of(const struct exec_lane *lane)
{
    return lane_op(lane)->stage.vector_ranks > 0 ? GPU_QUEUE_GPUS : GPU_QUEUE_LINK;
}

/* Collects a copy from or to the slice. Several targets are always buffers of the clique. */
static void put_copy(const struct exec_lane *lane, uint32_t clique, void *const *targets,
                     uint32_t target_count, const void *source, uint64_t bytes)
{
    struct lane_device *device = lane->device;
    struct lane_clique *at = &device->cliques[clique];
    if (clique_queue(lane, clique) == NULL) {
        return;
    }
    if (at->first_count == LANE_RANGES_MAX) {
        put_copies(device, at);
    }
    at->first[at->first_count++] =
        (struct host_copy_range){.source = source, .target = targets[0], .bytes = bytes};
    for (uint32_t i = 1; i < target_count; i++) { /* read from the GPU's memory, not again from the host's */
        if (at->then_count == LANE_RANGES_MAX) {
            put_copies(device, at);
        }
        at->then[at->then_count++] =
            (struct host_copy_range){.source = targets[0], .target = targets[i], .bytes = bytes};
    }
}

/* Whether the reduction only copies (see host_reduce), as GPUs have engines for copies. */
static bool is_copy(const struct host_reduction *reduction)
{
    return reduction->input_count == 1 && reduction->output_count == 1 && reduction->factors == NULL &&
           reduction->divisor <= 1 && reduction->dtype != DTYPE_BOOL && reduction->reduce != REDUCE_LAND &&
           reduction->reduce != REDUCE_LOR;
}

static void put_reduction(const struct exec_lane *lane, uint32_t clique,
                          const struct host_reduction *reduction)
{
    struct lane_device *device = lane->device;
    struct gpu_queue *queue = clique_queue(lane, clique);
    if (queue != NULL && is_copy(reduction)) {
        put_copy(lane, clique, reduction->outputs, 1, reduction->inputs[0],
                 reduction->count_elements * dtype_size_bytes(reduction->dtype));
    } else if (queue != NULL) {
        struct error error;
        keep_failure(device, gpu_queue_reduce(queue, reduction, path_of(lane), &error), &error);
    }
}

void lane_device_put(const struct exec_lane *lane, const struct exec_op *op,
                     const struct coll_stage_piece *piece)
{
    struct stage_buffers buffers;
    struct error error;
    if (lane->device->by_nccl) {
        if (lane->device->status == STATUS_OK) {
            keep_failure(lane->device, gpu_slice_put(lane->device->slice, lane, op, piece, &error), &error);
        }
        return;
    }
    struct host_reduction reduction = stage_reduction(lane, op, piece, &buffers);
    if (piece->action == COLL_STAGE_COPY) {
        put_copy(lane, piece->domain, buffers.outputs, piece->target_count, buffers.inputs[0],
                 piece->count_elements * op->stage.element_bytes);
    } else {
        put_reduction(lane, piece->domain, &reduction);
    }
}

void lane_device_copy_residual(const struct exec_lane *lane, const struct exec_op *op, bool in)
{
    struct lane_device *device = lane->device;
    const struct exec_rank *rank = &op->ranks[0];
    struct error error;
    if (lane->residual == NULL || device->status != STATUS_OK) {
        return;
    }
    float *there = rank->residual + lane->offset_elements;
    void *target = in ? lane->residual : there;
    const void *source = in ? there : lane->residual;
    if (device->by_nccl) {
        enum status status =
            gpu_slice_copy(device->slice, lane, rank->gpu, target, source, lane->residual_bytes, &error);
        keep_failure(device, status, &error);
    } else {
        put_copy(lane, lane->comm->exec->cliques[rank->gpu], &target, 1, source, lane->residual_bytes);
    }
}

enum status lane_device_code(const struct exec_lane *lane, const struct gpu_coding *coding, bool encodes,
                             struct error *error)
{
    struct lane_device *device = lane->device;
    uint32_t clique = lane->comm->exec->cliques[device->vector_gpu];
    struct gpu_queue *queue = clique_queue(lane, clique);
    struct error why;
    if (queue != NULL) {
        enum status status =
            encodes ? gpu_queue_encode(queue, coding, &why) : gpu_queue_decode(queue, coding, &why);
        keep_failure(device, status, &why);
        /* Also marks work that failed half-way, so that its end can be waited for. */
        keep_failure(device, gpu_queue_mark(queue, &device->cliques[clique].mark, &why), &why);
    }
    return device->status == STATUS_OK
               ? STATUS_OK
               : error_set(error, device->status, "\"%s\": %s", lane->comm->map->name, device->error.text);
}

bool lane_device_is_by_nccl(const struct exec_lane *lane)
{
    return lane->device->by_nccl;
}

/* --- Completion --- */

enum status lane_device_end(struct exec_lane *lane, struct error *error)
{
    struct lane_device *device = lane->device;
    struct error ended;
    if (device->by_nccl && device->status != STATUS_OK) {
        gpu_slice_drop(device->slice);
    }
    if (device->by_nccl) { /* also after a failure: what was put must end */
        keep_failure(device, gpu_slice_end(device->slice, lane, &ended), &ended);
    }
    for (uint32_t c = 0; c < lane->comm->exec->clique_count; c++) {
        struct lane_clique *clique = &device->cliques[c];
        struct error why;
        if (clique->queue == NULL) {
            continue;
        }
        put_copies(device, clique);
        /* Also marks work that failed half-way, so that its end can be waited for. */
        enum status marked = gpu_queue_mark(clique->queue, &clique->mark, &why);
        clique->mark = marked == STATUS_OK ? clique->mark : 0;
        keep_failure(device, marked, &why);
    }
    return device->status == STATUS_OK
               ? STATUS_OK
               : error_set(error, device->status, "\"%s\": %s", lane->comm->map->name, device->error.text);
}

bool lane_device_reached(struct exec_lane *lane, uint64_t now_ns, enum status *status, struct error *error)
{
    struct lane_device *device = lane->device;
    bool reached = true;
    *status = STATUS_OK;
    if (device != NULL && device->slice != NULL) {
        enum status at;
        struct error why;
        reached = gpu_slice_is_done(device->slice, lane, now_ns, &at, &why);
        keep_failure(device, at, &why);
    }
    for (uint32_t c = 0; device != NULL && c < lane->comm->exec->clique_count; c++) {
        struct lane_clique *clique = &device->cliques[c];
        enum status at = STATUS_OK;
        struct error why;
        if (clique->mark == 0) {
            continue;
        }
        if (!gpu_queue_is_done(clique->queue, clique->mark, now_ns, &at, &why)) {
            reached = false;
            continue;
        }
        clique->mark = 0;
        keep_failure(device, at, &why);
    }
    if (device != NULL && device->status != STATUS_OK) {
        *status = error_set(error, device->status, "%s", device->error.text);
    }
    return reached;
}

bool lanes_are_off_devices(struct exec_comm *comm, uint64_t now_ns)
{
    bool off = true;
    for (uint32_t i = 0; i < EXEC_LANES_MAX; i++) {
        enum status status;
        off = lane_device_reached(&comm->lanes[i], now_ns, &status, NULL) && off;
    }
    comm->exec->pacer.waits |= !off;
    return off;
}
