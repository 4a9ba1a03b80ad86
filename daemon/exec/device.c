#include <stdio.h>
#include <stdlib.h>

#include "daemon/base/budget.h"
#include "daemon/exec/device_internal.h"
#include "daemon/exec/exec_device.h"
#include "daemon/exec/exec_internal.h"
#include "daemon/exec/gpu_release.h"
#include "daemon/gpu/words.h"

/*
 * Extra steps of an operation whose ranks have buffers on GPUs, or order it against their streams. It waits
 * for their semaphores before it begins. If nothing else serves, it copies GPU buffers to pinned memory and
 * back, so that the rest of the exec sees host buffers only.
 */

bool device_is_needed(const struct exec_call *call)
{
    for (uint32_t i = 0; i < call->terms.bucket_ops * call->rank_count; i++) {
        if (call->ranks[i].on_gpu || call->ranks[i].wait_count > 0) {
            return true;
        }
    }
    return false;
}

enum status device_new(const struct exec_comm *comm, struct exec_op *op, struct error *error)
{
    struct exec_device *device = calloc(1, sizeof *device);
    if (device == NULL || !device_bounces_init(&device->bounces, device_entries(op), device->marks)) {
        free(device);
        return error_set(error, STATUS_NO_MEMORY, "\"%s\": no memory for an operation", comm->map->name);
    }
    op->device = device;
    return STATUS_OK;
}

void device_release(struct exec_comm *comm, struct exec_op *op)
{
    uint32_t gpus[GPU_DEVICES_MAX];
    if (op->device == NULL) {
        return;
    }
    if (op->device->is_ahead) {
        (void)device_gpus(op, gpus); /* there is one */
        gpu_words_end_wait(comm->exec->gpus, gpus[0], comm->exec->now_ns);
        budget_release(comm->map->account, BUDGET_GPU_WAITS, 1);
    }
    device_bounces_release(comm, &op->device->bounces);
    gpu_nccl_free(op->device->nccl);
    if (op->device->watches) {
        struct error why;
        gpu_group_watch(op->call.group, false);
        if (gpu_group_has_failed(op->call.group, &why)) {
            gpu_group_give_up(op->call.group, &why, comm->exec->now_ns);
        }
    }
    free(op->device);
    op->device = NULL;
}

/* --- Queues --- */

enum status device_queue(struct exec_comm *comm, uint32_t gpu, struct gpu_queue **out, struct error *error)
{
    enum status status = STATUS_OK;
    if (comm->queues == NULL) {
        comm->queues = calloc(GPU_DEVICES_MAX, sizeof *comm->queues);
        if (comm->queues == NULL) {
            return error_set(error, STATUS_NO_MEMORY, "\"%s\": no memory for queues", comm->map->name);
        }
    }
    if (comm->queues[gpu] == NULL) {
        status = gpu_queue_new(comm->exec->gpus, gpu, comm->map->account, &comm->queues[gpu], error);
    }
    *out = comm->queues[gpu];
    return status;
}

void device_free_queues(struct exec_comm *comm)
{
    for (uint32_t gpu = 0; comm->queues != NULL && gpu < GPU_DEVICES_MAX; gpu++) {
        gpu_queue_free(comm->queues[gpu]);
    }
    free(comm->queues);
    gpu_release_free(comm->release);
}

/*
 * Whether all marks are reached. A failed GPU reaches none: *status tells that, and its marks are forgotten,
 * because it accesses no memory any more.
 */
static bool device_reached(struct exec_comm *comm, struct exec_device *device, uint64_t now_ns,
                           enum status *status, struct error *error)
{
    bool asks = now_ns - device->looked_ns > DEVICE_CHECK_NS;
    bool reached = true;
    *status = STATUS_OK;
    for (uint32_t gpu = 0; comm->queues != NULL && gpu < GPU_DEVICES_MAX; gpu++) {
        struct gpu_queue *queue = comm->queues[gpu];
        uint64_t *mark = &device->marks[gpu];
        enum status at = STATUS_OK;
        if (queue == NULL || *mark == 0) {
            continue;
        }
        if (*mark == DEVICE_UNMARKED) {
            at = gpu_queue_mark(queue, mark, error);
        }
        if (at == STATUS_OK && asks && !gpu_queue_reached(queue, *mark)) {
            at = gpu_queue_check(queue, error);
        }
        if (at != STATUS_OK) {
            *status = at;
            *mark = 0;
        } else if (gpu_queue_reached(queue, *mark)) {
            *mark = 0;
        } else {
            reached = false;
        }
    }
    device->looked_ns = asks ? now_ns : device->looked_ns;
    return reached;
}

/* --- Steps --- */

static bool words_are_reached(const struct exec_op *op)
{
    for (uint32_t i = 0; i < device_entries(op); i++) {
        if (!fences_are_reached(op->ranks[i].waits, op->ranks[i].wait_count)) {
            return false;
        }
    }
    return true;
}

static enum device_step device_failed(struct exec_comm *comm, struct error *error)
{
    (void)error_prefix(error, "\"%s\"", comm->map->name);
    return DEVICE_STEP_FAILED;
}

static enum device_step device_wait(struct exec_comm *comm)
{
    comm->exec->pacer.waits = true;
    return DEVICE_STEP_WAITS;
}

/* GO if the marks are reached; otherwise WAITS, or FAILED: then work on other GPUs may still run. */
static enum device_step device_finish(struct exec_comm *comm, struct exec_device *device, uint64_t now_ns,
                                      struct error *error)
{
    enum status status;
    bool reached = device_reached(comm, device, now_ns, &status, error);
    if (status != STATUS_OK) { /* now: the mark of a GPU that failed is forgotten */
        comm->exec->pacer.advanced = true;
        return device_failed(comm, error);
    }
    if (!reached) {
        return device_wait(comm);
    }
    comm->exec->pacer.advanced = true;
    return DEVICE_STEP_GO;
}

/* Requests a mark on all GPUs of the operation's ranks. */
static void device_expect_marks(struct exec_device *device, const struct exec_op *op)
{
    uint32_t gpus[GPU_DEVICES_MAX];
    uint32_t gpu_count = device_gpus(op, gpus);
    for (uint32_t g = 0; g < gpu_count; g++) {
        device->marks[gpus[g]] = DEVICE_UNMARKED;
    }
}

/* The row of an operation that runs on GPUs from start to end, as one slice: by NCCL, or by kernels alone. */
static uint32_t trace_row(const struct exec_op *op)
{
    return TRACE_LANE_ROW(0, op->device->nccl != NULL ? TRACE_LANE_NCCL : TRACE_LANE_GPUS);
}

/* The operation's work is being queued. */
static void trace_begun(const struct exec_comm *comm, const struct exec_op *op)
{
    const struct op_terms *terms = &op->call.terms;
    trace_op_started(comm->map->comm_id, op->call.seq, terms->kind, 0, 0, 1);
    trace_slice_started(comm->map->comm_id, op->call.seq, terms->kind, trace_row(op), 0,
                        terms->count_elements * dtype_size_bytes(terms->dtype));
}

/* Counts the operation for its engine, on the main thread. */
static void count_engine(struct exec_comm *comm, const struct exec_op *op, enum gpu_engine engine)
{
    comm->last_engine = engine;
    if (op->call.engine == EXEC_GPU_AUTO && comm->share_index == 0) {
        gpu_engine_count(comm->exec->gpus, engine);
    }
}

/* The operation's slices come from GPUs, and go back. */
static void begin_slices(struct exec_op *op)
{
    op->device->state = DEVICE_RUNS;
    op->is_staged = true;
    for (uint32_t i = 0; i < device_entries(op); i++) {
        op->ranks[i].wait_count = 0; /* other threads need not check again */
    }
}

/* Lets the stream of the operation's only GPU write the words that tell its end. */
static enum status put_ended(struct exec_comm *comm, struct exec_op *op, uint32_t gpu, struct error *error)
{
    enum status status = STATUS_OK;
    for (uint32_t i = 0; i < device_entries(op) && status == STATUS_OK; i++) {
        const struct exec_rank *rank = &op->ranks[i];
        uint64_t ended_at = gpu_word_address(&rank->ended_gpu_word);
        if (ended_at != 0) {
            *rank->ended_by_gpu = true; /* the processor must not set it back later */
            status = gpu_queue_write_word(comm->queues[gpu], ended_at, rank->ended_value, error);
        }
    }
    return status;
}

enum status device_put_kernels(struct exec_comm *comm, struct exec_op *op, struct error *error)
{
    uint32_t gpus[GPU_DEVICES_MAX];
    op->device->state = DEVICE_LOCAL;
    count_engine(comm, op, GPU_ENGINE_KERNELS);
    trace_begun(comm, op);
    enum status status = gpu_direct_put(comm, op, error);
    return status == STATUS_OK && device_gpus(op, gpus) == 1 ? put_ended(comm, op, gpus[0], error) : status;
}

/* Chooses among those who can do without NCCL, and begins. */
static enum status device_begin_without(struct exec_comm *comm, struct exec_op *op, struct error *error)
{
    struct exec_device *device = op->device;
    if (gpu_direct_serves(comm, op)) {
        device_expect_marks(device, op);
        return device_put_kernels(comm, op, error);
    }
    if (op->ranks[0].on_gpu) {
        count_engine(comm, op, GPU_ENGINE_HOST);
    }
    if (lane_device_serves(comm, op)) {
        begin_slices(op);
        return STATUS_OK;
    }
    device->state = DEVICE_PINS;
    return device_bounces_begin(comm, &device->bounces, op, error);
}

/* Waits for the memory of the bounce buffers. GO: the copies are queued. */
static enum device_step device_pins(struct exec_comm *comm, struct exec_op *op, struct error *error)
{
    struct exec_device *device = op->device;
    bool ready;
    enum status status = device_bounces_poll(comm, &device->bounces, &ready, error);
    if (status == STATUS_OK && !ready) {
        return device_wait(comm);
    }
    comm->exec->pacer.advanced = true;
    device->state = DEVICE_COPIES_IN;
    status = status == STATUS_OK ? device_bounces_in(comm, &device->bounces, op, error) : status;
    return status == STATUS_OK ? DEVICE_STEP_GO : device_failed(comm, error);
}

/* Whether NCCL is to carry out the GPUs' part of the operation's slices. The communicator holds the group. */
static bool begins_with_group(struct exec_comm *comm, const struct exec_op *op, uint64_t now_ns)
{
    uint32_t gpus[GPU_DEVICES_MAX];
    struct error why;
    return engine_of_slices_is_nccl(comm, op, now_ns) &&
           gpu_nccl_hold(comm, gpus, device_gpus(op, gpus), now_ns, &why) == STATUS_OK;
}

/* Chooses who carries the operation out, begins, and goes on. */
static enum device_step device_begin(struct exec_comm *comm, struct exec_op *op, uint64_t now_ns,
                                     struct error *error)
{
    struct exec_device *device = op->device;
    struct error why;
    comm->exec->pacer.advanced = true;
    if (op->call.group != NULL) { /* on a rail: the main thread has chosen */
        begin_slices(op);
    } else if (begins_with_group(comm, op, now_ns)) {
        device->state = DEVICE_FORMS;
    } else if (engine_is_nccl(comm, op, now_ns) &&
               gpu_nccl_new(comm, op, now_ns, &device->nccl, &why) == STATUS_OK) {
        device->state = DEVICE_GROUP;
    } else if (device_begin_without(comm, op, error) != STATUS_OK) {
        return device_failed(comm, error);
    }
    return device_before(comm, op, now_ns, error);
}

/* Waits for the group of the slices. GO: it is there, or slices do without NCCL. */
static enum device_step device_forms(struct exec_comm *comm, struct exec_op *op, uint64_t now_ns,
                                     struct error *error)
{
    struct error why;
    switch (gpu_group_poll(comm->group, now_ns, &why)) {
    case GPU_GROUP_FORMS:
        if (gpu_group_forming_ns(comm->group, now_ns) <= NCCL_PATIENCE_NS) {
            return device_wait(comm);
        }
        break;
    case GPU_GROUP_READY:
    case GPU_GROUP_CALLS:
        op->call.group = comm->group;
        op->device->watches = true;
        gpu_group_watch(comm->group, true);
        count_engine(comm, op, GPU_ENGINE_NCCL);
        begin_slices(op);
        return DEVICE_STEP_GO;
    case GPU_GROUP_FAILED: /* before this operation began; the next one gets a new group */
        gpu_group_give_up(comm->group, &why, now_ns);
        break;
    case GPU_GROUP_REFUSED:
        break;
    }
    return device_begin_without(comm, op, error) == STATUS_OK ? DEVICE_STEP_GO : device_failed(comm, error);
}

void device_end_group(struct exec_comm *comm, const struct exec_op *op, uint64_t now_ns)
{
    struct error why;
    if (op->device == NULL || !op->device->watches) {
        return;
    }
    comm->exec->pacer.waits = true;
    op->device->given_up_ns = op->device->given_up_ns == 0 ? now_ns : op->device->given_up_ns;
    if (gpu_group_poll(op->call.group, now_ns, &why) == GPU_GROUP_FAILED) {
        gpu_group_give_up(op->call.group, &why, now_ns);
    } else if (now_ns - op->device->given_up_ns >= DEVICE_PATIENCE_NS) {
        (void)error_set(&why, STATUS_DEVICE, "GPU %u, NCCL among %u GPUs: %s does not end", op->ranks[0].gpu,
                        gpu_group_transfers(op->call.group)->gpu_count, op_kind_text(op->call.terms.kind));
        gpu_group_give_up(op->call.group, &why, now_ns);
    }
}

/* Lets NCCL put the operation in the queues. GO: it is there, or others carry the operation out. */
static enum device_step device_group(struct exec_comm *comm, struct exec_op *op, uint64_t now_ns,
                                     struct error *error)
{
    struct exec_device *device = op->device;
    bool had_begun = gpu_nccl_has_begun(device->nccl);
    enum gpu_nccl_step step = gpu_nccl_step(device->nccl, now_ns, error);
    if (!had_begun && gpu_nccl_has_begun(device->nccl)) {
        device_expect_marks(device, op);
        count_engine(comm, op, GPU_ENGINE_NCCL);
        trace_begun(comm, op);
    }
    switch (step) {
    case GPU_NCCL_WAITS:
        return device_wait(comm);
    case GPU_NCCL_FAILED:
        return device_failed(comm, error);
    case GPU_NCCL_DONE:
        device->state = DEVICE_LOCAL;
        return DEVICE_STEP_GO;
    case GPU_NCCL_REFUSED:
        break;
    }
    gpu_nccl_free(device->nccl);
    device->nccl = NULL;
    return device_begin_without(comm, op, error) == STATUS_OK ? DEVICE_STEP_GO : device_failed(comm, error);
}

/* Runs on GPUs. NCCL may fail meanwhile; its kernels then never end. */
static enum device_step device_local(struct exec_comm *comm, struct exec_op *op, uint64_t now_ns,
                                     struct error *error)
{
    struct exec_device *device = op->device;
    if (device->nccl != NULL && gpu_nccl_check(device->nccl, now_ns, error) != STATUS_OK) {
        return device_failed(comm, error);
    }
    enum device_step step = device_finish(comm, device, now_ns, error);
    if (step == DEVICE_STEP_GO) {
        trace_slice_done(comm->map->comm_id, op->call.seq, op->call.terms.kind, trace_row(op), 0, 0);
        return DEVICE_STEP_ENDED;
    }
    return step;
}

enum device_step device_before(struct exec_comm *comm, struct exec_op *op, uint64_t now_ns,
                               struct error *error)
{
    struct exec_device *device = op->device;
    enum device_step step;
    if (device == NULL) {
        return DEVICE_STEP_GO;
    }
    switch (device->state) {
    case DEVICE_WAITS:
        return words_are_reached(op) ? device_begin(comm, op, now_ns, error) : device_wait(comm);
    case DEVICE_FORMS:
        step = device_forms(comm, op, now_ns, error);
        return step == DEVICE_STEP_GO ? device_before(comm, op, now_ns, error) : step;
    case DEVICE_GROUP:
        step = device_group(comm, op, now_ns, error);
        return step == DEVICE_STEP_GO ? device_before(comm, op, now_ns, error) : step;
    case DEVICE_LOCAL:
        return device_local(comm, op, now_ns, error);
    case DEVICE_PINS:
        step = device_pins(comm, op, error);
        return step == DEVICE_STEP_GO ? device_before(comm, op, now_ns, error) : step;
    case DEVICE_COPIES_IN:
        step = device_finish(comm, device, now_ns, error);
        device->state = step == DEVICE_STEP_GO ? DEVICE_RUNS : device->state;
        return step;
    case DEVICE_RUNS:
    case DEVICE_COPIES_OUT:
    case DEVICE_DONE:
        break;
    }
    return DEVICE_STEP_GO;
}

enum device_step device_after(struct exec_comm *comm, struct exec_op *op, uint64_t now_ns,
                              struct error *error)
{
    struct exec_device *device = op->device;
    if (device == NULL || device->state == DEVICE_DONE) {
        return DEVICE_STEP_GO;
    }
    if (device->state == DEVICE_RUNS) {
        device->state = DEVICE_COPIES_OUT;
        if (device_bounces_out(comm, &device->bounces, error) != STATUS_OK) {
            return device_failed(comm, error);
        }
    }
    enum device_step step = device_finish(comm, device, now_ns, error);
    device->state = step == DEVICE_STEP_GO ? DEVICE_DONE : device->state;
    return step;
}

bool device_is_idle(struct exec_comm *comm, struct exec_op *op, uint64_t now_ns)
{
    struct exec_device *device = op->device;
    enum status status;
    if (device == NULL) {
        return true;
    }
    device->given_up_ns = device->given_up_ns == 0 ? now_ns : device->given_up_ns;
    /* The queues are NCCL's until its calls are over. Then the work that they hold must end as well. */
    if (gpu_nccl_let_go(device->nccl) && device_reached(comm, device, now_ns, &status, NULL)) {
        return true;
    }
    if (gpu_nccl_has_begun(device->nccl) && now_ns - device->given_up_ns >= DEVICE_PATIENCE_NS) {
        gpu_nccl_give_up(device->nccl, "does not end", now_ns);
    }
    if (device->is_ahead) {
        device_release_words(comm, op, now_ns);
    }
    comm->exec->pacer.waits = true;
    return false;
}

bool device_describe(const struct exec_comm *comm, const struct exec_op *op, char *text, size_t size)
{
    if (op->device == NULL) {
        return false;
    }
    switch (op->device->is_ahead && !words_are_reached(op) ? DEVICE_WAITS : op->device->state) {
    case DEVICE_WAITS:
        for (uint32_t i = 0; i < device_entries(op); i++) {
            if (!fences_are_reached(op->ranks[i].waits, op->ranks[i].wait_count)) {
                uint32_t own =
                    comm->map->ranks.node_first[comm->map->ranks.node_index] + i % op->call.rank_count;
                (void)snprintf(text, size, "waiting for the stream of rank %u", comm->map->ranks.order[own]);
                return true;
            }
        }
        return false;
    case DEVICE_FORMS:
        (void)snprintf(text, size, "waiting for NCCL among the node's GPUs");
        return true;
    case DEVICE_GROUP:
        gpu_nccl_describe(op->device->nccl, text, size);
        return true;
    case DEVICE_LOCAL:
        if (op->device->nccl != NULL) {
            gpu_nccl_describe(op->device->nccl, text, size);
            return true;
        }
        (void)snprintf(text, size, "running on GPUs");
        return true;
    case DEVICE_PINS:
        (void)snprintf(text, size, "waiting for pinned memory");
        return true;
    case DEVICE_COPIES_IN:
        (void)snprintf(text, size, "copying from GPUs");
        return true;
    case DEVICE_COPIES_OUT:
        (void)snprintf(text, size, "copying to GPUs");
        return true;
    case DEVICE_RUNS:
    case DEVICE_DONE:
        break;
    }
    return false;
}
