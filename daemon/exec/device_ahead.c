#include "daemon/base/budget.h"
#include "daemon/base/log.h"
#include "daemon/exec/device_internal.h"
#include "daemon/exec/gpu_release.h"
#include "daemon/gpu/words.h"

/*
 * Operations in a row on one GPU. While the first one runs, those behind it are put in the same stream: waits
 * for the words of the clients' streams, the kernels, and writes of the words that the clients' streams wait
 * for. So the processor is in no one's way. It looks at the marks later, to tell the clients' processes.
 *
 * A client that never writes its words holds up its own communicator's stream. At the operation's deadline,
 * or if a rank is lost, commd writes the words itself, from another stream.
 */

bool device_is_ahead(const struct exec_op *op)
{
    return op->device != NULL && op->device->is_ahead;
}

/* Whether a stream of this GPU can do all that the processor does otherwise before such an operation. */
static bool can_run_ahead(const struct exec_comm *comm, const struct exec_op *op, uint32_t gpu)
{
    uint32_t gpus[GPU_DEVICES_MAX];
    if (op->cancelled || op->begun || op->device == NULL || op->device->state != DEVICE_WAITS ||
        device_gpus(op, gpus) != 1 || gpus[0] != gpu || !gpu_direct_serves(comm, op)) {
        return false;
    }
    for (uint32_t i = 0; i < device_entries(op); i++) {
        for (uint32_t w = 0; w < op->ranks[i].wait_count; w++) {
            if (gpu_word_address(&op->ranks[i].waits[w].gpu_word) == 0) {
                return false;
            }
        }
    }
    return true;
}

static enum status put_ahead(struct exec_comm *comm, struct exec_op *op, uint32_t gpu, struct error *error)
{
    struct gpu_queue *queue = comm->queues[gpu];
    enum status status = STATUS_OK;
    for (uint32_t i = 0; i < device_entries(op); i++) {
        for (uint32_t w = 0; w < op->ranks[i].wait_count && status == STATUS_OK; w++) {
            const struct fence *fence = &op->ranks[i].waits[w];
            status = gpu_queue_wait_word(queue, gpu_word_address(&fence->gpu_word), fence->value, error);
        }
    }
    if (status == STATUS_OK) {
        status = device_put_kernels(comm, op, error);
    }
    op->device->state = DEVICE_LOCAL;
    struct error why; /* also marks work that failed half-way, so that its end can be waited for */
    if (gpu_queue_mark(queue, &op->device->marks[gpu], &why) != STATUS_OK && status == STATUS_OK) {
        status = error_set(error, why.status, "%s", why.text);
    }
    return status;
}

void device_run_ahead(struct exec_comm *comm, uint64_t now_ns)
{
    const struct exec_op *first = comm->first_op;
    uint32_t gpus[GPU_DEVICES_MAX];
    struct error error;
    uint32_t left = comm->exec->gpus != NULL ? gpu_words_ahead(comm->exec->gpus) : 0;
    if (left == 0 || first->next == NULL || comm->share_index > 0 || first->device == NULL ||
        first->device->state != DEVICE_LOCAL || first->device->nccl != NULL ||
        device_gpus(first, gpus) != 1 || first->device->marks[gpus[0]] == DEVICE_UNMARKED) {
        return;
    }
    if (comm->release == NULL &&
        gpu_release_new(comm->exec, gpus[0], comm->map->account, &comm->release, &error) != STATUS_OK) {
        return;
    }
    for (struct exec_op *op = first->next; op != NULL && left > 0; op = op->next, left--) {
        if (device_is_ahead(op)) {
            continue;
        }
        /* Without room, the processor waits for the words, as usual. */
        if (!can_run_ahead(comm, op, gpus[0]) || !gpu_words_may_wait(comm->exec->gpus, gpus[0]) ||
            budget_charge(comm->map->account, BUDGET_GPU_WAITS, 1, &error) != STATUS_OK) {
            return;
        }
        op->device->is_ahead = true;
        gpu_words_begin_wait(comm->exec->gpus, gpus[0]);
        gpu_ahead_count(comm->exec->gpus);
        if (put_ahead(comm, op, gpus[0], &error) != STATUS_OK) {
            (void)error_prefix(&error, "\"%s\"", comm->map->name);
            exec_comm_fail(comm, &error, now_ns);
            return;
        }
    }
}

/*
 * Ends the waits of an operation that has failed, so that its kernels run, on whatever the buffers hold. The
 * processor writes the words: that also works if the streams share one queue of the GPU. The client may write
 * them, too, so this is repeated. If the client took a word's page out of its file, the processor has another
 * page than the GPU. So after a while a stream writes all words as well.
 */
void device_release_words(struct exec_comm *comm, const struct exec_op *op, uint64_t now_ns)
{
    struct exec_device *device = op->device;
    bool all = now_ns - device->given_up_ns >= DEVICE_RELEASE_ALL_NS;
    struct error error;
    if (device->released_ns != 0 && now_ns - device->released_ns < DEVICE_CHECK_NS) {
        return;
    }
    all = all && gpu_release_is_done(comm->release, now_ns);
    device->released_ns = now_ns;
    enum status status = STATUS_OK;
    for (uint32_t i = 0; i < device_entries(op); i++) {
        for (uint32_t w = 0; w < op->ranks[i].wait_count; w++) {
            const struct fence *fence = &op->ranks[i].waits[w];
            if (!fences_are_reached(fence, 1)) {
                atomic_store_explicit((_Atomic uint64_t *)(uintptr_t)fence->word, fence->value,
                                      memory_order_release);
            }
            if (all && status == STATUS_OK) {
                status = gpu_release_write(comm->release, fence, &error);
            }
        }
    }
    if (status != STATUS_OK) { /* the GPU has failed, so it waits for nothing; or a later call tries again */
        log_debug("%s", error.text);
    }
    if (all && gpu_release_mark(comm->release, &error) != STATUS_OK) {
        log_debug("%s", error.text);
    }
}
